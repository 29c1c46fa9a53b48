//! Inference cases as text: `check("Conv strides=[2,2]", "f32[1,3,8,8] f32[4,3,3,3]", "f32[1,4,3,3]")`.
//!
//! An operand is a type; `-` is an absent one, `?` an extent without a name, `[..]` an unknown rank. A constant's content
//! follows its type in braces: `i64[2]{1,2}`. The expected text holds the types of all requested results, or `error: ` and a
//! part of the message; `#2` among the attributes requests two results when an error is expected.

use super::Node;
use crate::types::{BOOL, DType, Dim, F32, F64, I32, I64, TensorType, U8, dtype_from_name};
use crate::{AttrRef, Constant, DEVBAY_DOMAIN, ML_DOMAIN, NodeAttrs, OpRow};
use devbay_plugin_api::sdk::Result;
use std::str::FromStr;

/// An attribute that owns its value.
#[derive(Clone, Debug)]
pub enum Attr {
    Int(i64),
    Float(f32),
    String(String),
    Ints(Vec<i64>),
    Floats(usize),
    Strings(usize),
    Tensor(DType),
}

impl NodeAttrs for Vec<(String, Attr)> {
    fn get(&self, name: &str) -> Option<AttrRef<'_>> {
        let (_, value) = self.iter().rfind(|(known, _)| known == name)?;
        Some(match value {
            Attr::Int(value) => AttrRef::Int(*value),
            Attr::Float(value) => AttrRef::Float(*value),
            Attr::String(value) => AttrRef::String(value),
            Attr::Ints(values) => AttrRef::Ints(values),
            Attr::Floats(n) => AttrRef::Floats(*n),
            Attr::Strings(n) => AttrRef::Strings(*n),
            Attr::Tensor(dtype) => AttrRef::Tensor(*dtype),
        })
    }
}

/// A constant that owns its bytes.
pub struct Content {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Content {
    /// Stores the elements' bytes, in the order of the elements.
    pub fn new(dtype: DType, shape: &[usize], bytes: impl IntoIterator<Item = u8>) -> Self {
        let content = Self { dtype, shape: shape.to_vec(), bytes: bytes.into_iter().collect() };
        let n_elements = shape.iter().product::<usize>();
        assert_eq!(
            content.bytes.len() * 8,
            n_elements * usize::from(dtype.bits),
            "the content fits the type"
        );
        content
    }

    fn get(&self) -> Constant<'_> {
        Constant { dtype: self.dtype, shape: &self.shape, bytes: &self.bytes }
    }

    /// Returns its type.
    pub fn ty(&self) -> TensorType {
        self.get().tensor_type()
    }
}

/// Infers a node of an op without regions.
pub fn infer(
    row: &OpRow,
    attrs: &Vec<(String, Attr)>,
    n_outputs: usize,
    types: &[Option<TensorType>],
    contents: &[Option<Content>],
) -> Result<Vec<TensorType>> {
    let constant = |i: usize| contents.get(i)?.as_ref().map(Content::get);
    let infer = super::of(row).expect("an op without regions");
    infer(&Node { attrs, n_outputs, types, constant: &constant })
}

/// Infers one node and compares the result.
#[track_caller]
pub fn check(op: &str, operands: &str, expected: &str) {
    let error = expected.strip_prefix("error: ");
    let (row, attrs, mut n_outputs) = parse_op(op);
    if error.is_none() {
        n_outputs = expected.split_whitespace().count();
    }
    let (types, contents): (Vec<_>, Vec<_>) = operands.split_whitespace().map(operand).unzip();
    let found = match infer(row, &attrs, n_outputs, &types, &contents) {
        Ok(types) => types.iter().map(TensorType::to_string).collect::<Vec<_>>().join(" "),
        Err(error) => format!("error: {}", error.text()),
    };
    let agree = match error {
        Some(part) => found.starts_with("error: ") && found.contains(part),
        None => found == expected,
    };
    assert!(agree, "{op} of {operands}\nexpected {expected}\n   found {found}");
}

/// Parses a node's op, attributes and number of results.
fn parse_op(text: &str) -> (&'static OpRow, Vec<(String, Attr)>, usize) {
    let mut words = text.split_whitespace();
    let name = words.next().expect("an op has a name");
    let row = crate::find("", name)
        .or_else(|| crate::find(DEVBAY_DOMAIN, name))
        .or_else(|| crate::find(ML_DOMAIN, name))
        .unwrap_or_else(|| panic!("{name} has no row"));
    let (mut attrs, mut n_outputs) = (Vec::new(), 1);
    for word in words {
        if let Some(n) = word.strip_prefix('#') {
            n_outputs = n.parse().expect("a number of outputs");
            continue;
        }
        let (name, value) = word.split_once('=').expect("an attribute has a value");
        attrs.push((name.to_owned(), attribute(value)));
    }
    (row, attrs, n_outputs)
}

/// Parses `3`, `1.5`, `[1,2]`, `[1.5]`, `[a,b]`, `SAME_UPPER`, or a tensor with its content.
fn attribute(text: &str) -> Attr {
    if let Some(list) = text.strip_prefix('[') {
        let list = list.strip_suffix(']').expect("a list ends");
        if self::list(list).all(|word| word.parse::<i64>().is_ok()) {
            return Attr::Ints(numbers(list));
        }
        if self::list(list).all(|word| word.parse::<f32>().is_ok()) {
            return Attr::Floats(self::list(list).count());
        }
        return Attr::Strings(self::list(list).count());
    }
    if text.contains('{') {
        return Attr::Tensor(operand(text).1.expect("a tensor has a content").dtype);
    }
    if let Ok(value) = text.parse() {
        return Attr::Int(value);
    }
    match text.parse() {
        Ok(value) => Attr::Float(value),
        Err(_) => Attr::String(text.to_owned()),
    }
}

/// Parses a type, and its content if it is constant.
fn operand(text: &str) -> (Option<TensorType>, Option<Content>) {
    if text == "-" {
        return (None, None);
    }
    let (ty, content) = match text.split_once('{') {
        Some((ty, content)) => (ty, Some(content.strip_suffix('}').expect("a content ends"))),
        None => (text, None),
    };
    let (dtype, shape) = ty.split_once('[').expect("a type has a shape");
    let dtype = dtype_from_name(dtype).unwrap_or_else(|| panic!("{dtype} is no element type"));
    let shape = shape.strip_suffix(']').expect("a shape ends");
    let dims = (shape != "..").then(|| list(shape).map(dim).collect());
    let ty = TensorType { dtype, shape: dims };
    let tensor = content.map(|content| {
        let shape = ty.known_shape().expect("a constant has a known shape");
        constant(dtype, &shape, content)
    });
    (Some(ty), tensor)
}

fn dim(text: &str) -> Dim {
    match text.parse() {
        Ok(extent) => Dim::Known(extent),
        Err(_) if text == "?" => Dim::unknown(),
        Err(_) => Dim::Unknown(text.into()),
    }
}

fn constant(dtype: DType, shape: &[usize], content: &str) -> Content {
    fn bytes<T: FromStr, const N: usize>(content: &str, bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
        numbers::<T>(content).into_iter().flat_map(bytes).collect()
    }
    let bytes = match dtype {
        I64 => bytes(content, i64::to_le_bytes),
        I32 => bytes(content, i32::to_le_bytes),
        F32 => bytes(content, f32::to_le_bytes),
        F64 => bytes(content, f64::to_le_bytes),
        U8 | BOOL => numbers(content),
        // Types that Rust lacks are written as bits.
        _ => bytes(content, u16::to_le_bytes),
    };
    Content::new(dtype, shape, bytes)
}

fn numbers<T: FromStr>(text: &str) -> Vec<T> {
    list(text)
        .map(|word| word.parse().unwrap_or_else(|_| panic!("{word} is no number of its type")))
        .collect()
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(|word| !word.is_empty())
}
