//! The ops that the host runs itself, on values that no device holds: one row an op.
//!
//! A row has the operands as in ONNX's schema (`?` may be absent, `+` repeats), a function for the results' types, and one
//! that reads the attributes and returns the work. Movements of strings (Gather, Concat, Equal and so on) are not here:
//! import runs them on devices, over the strings' positions in a sorted list ([`codes`]).

mod cast;
pub mod codes;
mod images;
mod labels;
mod maps;
mod optionals;
mod sequences;
mod text;
mod tokens;

use super::{Strings, Value, ValueType};
use devbay_core::{Error, ErrorKind, Result, Tensor};
use std::collections::HashMap;
use std::sync::Arc;

/// Domain of classic machine learning.
pub const ML: &str = "ai.onnx.ml";
/// Domain of onnxruntime's own ops.
pub const MICROSOFT: &str = "com.microsoft";
/// Domain of the ops that import itself adds.
pub const OWN: &str = "devbay.values";

/// Operands of a call, in the op's order; None for an absent one. They are the callee's: what nothing else shares may be
/// changed in place.
pub type Operands = Vec<Option<Value>>;

/// The work of a node. Called by any number of threads at once.
pub type Work = Box<dyn Fn(Operands) -> Result<Vec<Value>> + Send + Sync>;

/// When the host runs an op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// Always: no device has it.
    Always,
    /// If an operand or a result is not a tensor of numbers.
    ForValues,
}

/// One op that the host runs.
pub struct Row {
    /// Its domain; empty for ONNX's own ops.
    pub domain: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The oldest version that is run.
    pub since: u32,
    /// Operands by name.
    pub operands: &'static str,
    /// Results by name.
    pub results: &'static str,
    /// When the host runs it.
    pub when: When,
    /// Returns the types of the results.
    pub infer: fn(&Site<'_>) -> Result<Vec<ValueType>>,
    /// Reads the attributes and returns the work.
    pub make: fn(&Site<'_>) -> Result<Work>,
}

/// A node, as the functions of its row see it.
pub struct Site<'a> {
    /// Version of the op.
    pub version: u32,
    /// Attributes.
    pub attrs: &'a Attrs,
    /// Types of the operands; None for an absent one.
    pub inputs: &'a [Option<ValueType>],
    /// Number of results.
    pub n_outputs: usize,
}

impl Site<'_> {
    /// Returns the type of an operand.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidModel`] if it is absent.
    pub fn input(&self, i: usize) -> Result<&ValueType> {
        let missing = || invalid(format!("expected operand {i}, found none"));
        self.inputs.get(i).and_then(Option::as_ref).ok_or_else(missing)
    }
}

/// The value of an attribute.
#[derive(Clone, Debug)]
pub enum Attr {
    /// One integer.
    Int(i64),
    /// One number.
    Float(f32),
    /// Text.
    Text(Arc<str>),
    /// Integers.
    Ints(Vec<i64>),
    /// Numbers.
    Floats(Vec<f32>),
    /// Texts.
    Texts(Vec<Arc<str>>),
    /// A tensor or strings.
    Value(Value),
    /// A type.
    Type(ValueType),
}

/// Attributes of a node by name.
#[derive(Default, Debug)]
pub struct Attrs(pub HashMap<String, Attr>);

/// Defines a getter of attributes of one form.
macro_rules! getters {
    ($($(#[$doc:meta])* $name:ident: $form:ident -> $ty:ty, $what:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// [`ErrorKind::InvalidModel`] for an attribute of another form.
        pub fn $name(&self, name: &str) -> Result<Option<$ty>> {
            match self.0.get(name) {
                None => Ok(None),
                Some(Attr::$form(value)) => Ok(Some(value)),
                Some(_) => Err(invalid(format!("expected {} in the attribute {name:?}, found another form", $what))),
            }
        }
    )*};
}

impl Attrs {
    getters! {
        /// Returns an integer.
        int: Int -> &i64, "an integer";
        /// Returns a number.
        float: Float -> &f32, "a number";
        /// Returns a text.
        text: Text -> &Arc<str>, "a text";
        /// Returns integers.
        ints: Ints -> &Vec<i64>, "integers";
        /// Returns numbers.
        floats: Floats -> &Vec<f32>, "numbers";
        /// Returns texts.
        texts: Texts -> &Vec<Arc<str>>, "texts";
        /// Returns a tensor or strings.
        value: Value -> &Value, "a tensor";
        /// Returns a type.
        ty: Type -> &ValueType, "a type";
    }

    /// Returns an integer, or a default.
    ///
    /// # Errors
    /// As [`Attrs::int`].
    pub fn int_or(&self, name: &str, default: i64) -> Result<i64> {
        Ok(self.int(name)?.copied().unwrap_or(default))
    }
}

const fn row(
    (domain, name, since): (&'static str, &'static str, u32),
    (operands, results): (&'static str, &'static str),
    infer: fn(&Site<'_>) -> Result<Vec<ValueType>>,
    make: fn(&Site<'_>) -> Result<Work>,
) -> Row {
    Row { domain, name, since, operands, results, when: When::Always, infer, make }
}

impl Row {
    const fn for_values(mut self) -> Self {
        self.when = When::ForValues;
        self
    }
}

/// Every op that the host runs; If, Loop and SequenceMap are interpreted besides.
pub const ROWS: &[Row] = &[
    row(("", "StringNormalizer", 10), ("X", "Y"), text::same, text::normalizer),
    row(("", "StringConcat", 20), ("X Y", "Z"), text::concat_type, text::concat),
    row(("", "StringSplit", 20), ("X", "Y Z?"), text::split_types, text::split),
    row(("", "RegexFullMatch", 20), ("X", "Y"), text::regex_type, text::regex),
    row((MICROSOFT, "Tokenizer", 1), ("X", "Y"), tokens::result, tokens::tokenizer),
    row(("", "Cast", 6), ("input", "output"), cast::result, cast::cast).for_values(),
    row(("", "CastLike", 15), ("input target_type", "output"), cast::like_result, cast::cast_like)
        .for_values(),
    row(("", "ImageDecoder", 20), ("encoded_stream", "image"), images::result, images::decoder),
    row(
        ("", "SequenceConstruct", 11),
        ("inputs+", "output_sequence"),
        sequences::of_first,
        sequences::construct,
    ),
    row(("", "SequenceEmpty", 11), ("", "output"), sequences::of_dtype, sequences::empty),
    row(("", "SequenceAt", 11), ("input_sequence position", "tensor"), sequences::element, sequences::at),
    row(
        ("", "SequenceInsert", 11),
        ("input_sequence tensor position?", "output_sequence"),
        sequences::same,
        sequences::insert,
    ),
    row(
        ("", "SequenceErase", 11),
        ("input_sequence position?", "output_sequence"),
        sequences::same,
        sequences::erase,
    ),
    row(("", "SequenceLength", 11), ("input_sequence", "length"), sequences::count, sequences::length),
    row(
        ("", "SplitToSequence", 11),
        ("input split?", "output_sequence"),
        sequences::of_first,
        sequences::split,
    ),
    row(
        ("", "ConcatFromSequence", 11),
        ("input_sequence", "concat_result"),
        sequences::element,
        sequences::concat,
    ),
    row(("", "Optional", 15), ("input?", "output"), optionals::wrapped, optionals::optional),
    row(("", "OptionalGetElement", 15), ("input", "output"), optionals::element, optionals::get),
    row(("", "OptionalHasElement", 15), ("input?", "output"), optionals::truth, optionals::has),
    row(("", "Identity", 1), ("input", "output"), optionals::same, optionals::identity).for_values(),
    row((ML, "LabelEncoder", 1), ("X", "Y"), labels::encoder_type, labels::encoder).for_values(),
    row((ML, "CategoryMapper", 1), ("X", "Y"), labels::mapper_type, labels::mapper),
    row((ML, "ZipMap", 1), ("X", "Z"), maps::zip_type, maps::zip),
    row((ML, "CastMap", 1), ("X", "Y"), maps::cast_type, maps::cast),
    row((ML, "DictVectorizer", 1), ("X", "Y"), maps::vector_type, maps::vectorizer),
    row((OWN, "LabelEncoder", 1), ("X", "Y"), labels::encoder_type, labels::encoder),
    row((OWN, "Encode", 1), ("inputs+", "table codes+"), codes::encode_types, codes::encode),
    row((OWN, "Decode", 1), ("codes table", "output"), codes::decode_type, codes::decode),
];

/// Finds the row of an op.
pub fn find(domain: &str, name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.domain == domain && row.name == name)
}

impl Row {
    /// Checks the number of operands, and that required ones are present.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidModel`].
    pub fn check(&self, inputs: &[Option<ValueType>]) -> Result<()> {
        let names: Vec<&str> = self.operands.split_whitespace().collect();
        let repeats = names.last().is_some_and(|name| name.ends_with('+'));
        if inputs.len() > names.len() && !repeats {
            return Err(invalid(format!(
                "expected at most {} operands, found {}",
                names.len(),
                inputs.len()
            )));
        }
        let is_absent = |i: usize| inputs.get(i).is_none_or(Option::is_none);
        let missing = (0..names.len()).find(|&i| !names[i].ends_with('?') && is_absent(i));
        match missing {
            Some(i) => {
                Err(invalid(format!("expected the operand {:?}, found none", names[i].trim_end_matches('+'))))
            }
            None => Ok(()),
        }
    }
}

/// Takes an operand that must be there.
fn take(operands: &mut Operands, i: usize) -> Result<Value> {
    let missing = || wrong(format!("operand {i} is missing"));
    operands.get_mut(i).and_then(Option::take).ok_or_else(missing)
}

/// Takes an operand that must be strings.
fn take_strings(operands: &mut Operands, i: usize) -> Result<Strings> {
    take(operands, i)?.into_strings()
}

/// Takes the one integer of an operand; None for an absent one.
fn take_int(operands: &mut Operands, i: usize) -> Result<Option<i64>> {
    let Some(value) = operands.get_mut(i).and_then(Option::take) else { return Ok(None) };
    let tensor = value.into_tensor()?;
    let found = tensor.tensor_type();
    tensor
        .to_int()
        .map(Some)
        .ok_or_else(|| wrong(format!("expected one integer in operand {i}, found {found}")))
}

/// Returns a tensor of truth values.
fn truths(shape: &[usize], values: impl Iterator<Item = bool>) -> Result<Value> {
    let bytes: Vec<u8> = values.map(u8::from).collect();
    Ok(Tensor::from_bytes(devbay_core::tensor::BOOL, shape, &bytes)?.into())
}

/// An error of the model.
fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidModel, text)
}

/// An error of the inputs, or of a value that comes from them.
fn wrong(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, text)
}
