//! Programs: graphs of ops in SSA form, with regions for control flow.
//!
//! Op semantics are ONNX's: domain, name and the version of the op (the opset in which its present
//! definition appeared). All values of a program, those of nested regions included, are numbered in one
//! list, so a region uses a value of a surrounding one by its number. It captures the values that it uses
//! without making them. Nodes stand in execution order.
//!
//! Absent on purpose: sequences, optionals and strings (typed errors at import), and anything about
//! devices.

pub mod catalogue;
pub mod fold;
pub mod infer;
pub mod onnx_types;
pub mod onnx_versions;
pub(crate) mod same;
pub mod scan;
pub mod text;
pub mod verify;
pub mod weights;

use crate::error::{Error, ErrorKind};
use crate::tensor::{Tensor, TensorType, U32};
use devbay_ops::{AttributeType, OpRow};
use devbay_plugin_api::abi::{DEVBAY_STATUS_INVALID, DEVBAY_STATUS_OUT_OF_MEMORY, DEVBAY_STATUS_UNSUPPORTED};
use devbay_plugin_api::sdk;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// Number of a value within its program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ValueId(pub u32);

impl ValueId {
    /// Returns its position in [`Program::values`].
    pub fn idx(self) -> usize {
        self.0 as usize
    }
}

/// Name of the input that a session fills, and its callers do not see: the last one of a program with random numbers.
pub const SEED_INPUT: &str = "devbay.seed";

/// Number of words of that input: the key, then the number of the run, low words first
/// ([`devbay_ops::read::Philox`]).
pub const SEED_WORDS: usize = 4;

/// A graph of ops, with its inputs and outputs.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Name of the model.
    pub name: String,
    /// All values, those of nested regions included.
    pub values: Vec<Value>,
    /// The graph.
    pub main: Region,
}

/// One value: made by a node, an input, or constant.
#[derive(Clone, Debug, Default)]
pub struct Value {
    /// Name in the model; may be empty, and need not be unique.
    pub name: Arc<str>,
    /// Its type, as far as it is known.
    pub ty: Option<TensorType>,
    /// Its content, if it is constant.
    pub constant: Option<Tensor>,
}

/// Nodes in execution order, with their inputs and outputs.
#[derive(Clone, Debug, Default)]
pub struct Region {
    /// Values that come in.
    pub inputs: Vec<ValueId>,
    /// Nodes, each after those that it depends on.
    pub nodes: Vec<Node>,
    /// Values that go out.
    pub outputs: Vec<ValueId>,
}

/// The operation of a node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Op {
    /// Domain; empty for ONNX's own.
    pub domain: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// The opset in which its present definition appeared.
    pub version: u32,
}

impl Op {
    /// Returns an op of ONNX's own domain.
    pub fn onnx(name: &str, version: u32) -> Self {
        Self { domain: Arc::from(""), name: Arc::from(name), version }
    }

    /// Returns an op of devbay's domain: fused patterns.
    pub fn devbay(name: &str, version: u32) -> Self {
        Self { domain: Arc::from(DEVBAY_DOMAIN), name: Arc::from(name), version }
    }

    /// Returns the op of a row, in the version that programs hold.
    pub fn of(row: &OpRow) -> Self {
        Self { domain: row.domain.into(), name: row.name.into(), version: row.version }
    }

    /// Says what can be done about a node of this op that no device takes.
    pub fn remedy(&self) -> &'static str {
        match &*self.domain {
            "" => "to run it, add a device whose plugin takes it",
            _ => "to run it, add a device whose plugin takes it, or export the model with ONNX's own ops",
        }
    }

    /// Returns whether it is ONNX's op of that name.
    pub fn is(&self, name: &str) -> bool {
        self.domain.is_empty() && &*self.name == name
    }
}

/// Domain of the fused patterns that devbay's passes make.
pub const DEVBAY_DOMAIN: &str = "devbay";

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.domain.is_empty() {
            write!(f, "{}@{}", self.name, self.version)
        } else {
            write!(f, "{}.{}@{}", self.domain, self.name, self.version)
        }
    }
}

/// One operation in a program.
#[derive(Clone, Debug)]
pub struct Node {
    /// Name in the model; may be empty.
    pub name: Arc<str>,
    /// Its operation.
    pub op: Op,
    /// Operands; None where an optional one is absent.
    pub inputs: Vec<Option<ValueId>>,
    /// Results; None for an optional one that is unused.
    pub outputs: Vec<Option<ValueId>>,
    /// Attributes by name.
    pub attrs: Vec<(Arc<str>, AttrValue)>,
    /// Regions by name: bodies and branches.
    pub regions: Vec<(Arc<str>, Region)>,
}

impl Node {
    /// Creates a node without attributes and regions.
    pub fn new(op: Op, inputs: Vec<Option<ValueId>>, outputs: Vec<Option<ValueId>>) -> Self {
        Self { name: Arc::from(""), op, inputs, outputs, attrs: Vec::new(), regions: Vec::new() }
    }

    /// Returns the attribute called `name`.
    pub fn attr(&self, name: &str) -> Option<&AttrValue> {
        self.attrs.iter().find(|(known, _)| &**known == name).map(|(_, value)| value)
    }

    /// An integer attribute, or `default` if it is absent or no integer.
    pub fn int(&self, name: &str, default: i64) -> i64 {
        match self.attr(name) {
            Some(AttrValue::Int(value)) => *value,
            _ => default,
        }
    }

    /// A number, or `default`.
    pub fn float(&self, name: &str, default: f32) -> f32 {
        match self.attr(name) {
            Some(AttrValue::Float(value)) => *value,
            _ => default,
        }
    }

    /// A text, or `default`.
    pub fn string<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        match self.attr(name) {
            Some(AttrValue::String(value)) => value,
            _ => default,
        }
    }

    /// Integers, if the attribute is there.
    pub fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.attr(name) {
            Some(AttrValue::Ints(values)) => Some(values),
            _ => None,
        }
    }

    /// Sets an attribute.
    pub fn set_attr(&mut self, name: &str, value: AttrValue) {
        match self.attrs.iter_mut().find(|(known, _)| &**known == name) {
            Some((_, old)) => *old = value,
            None => self.attrs.push((Arc::from(name), value)),
        }
    }

    /// Removes an attribute and gives it.
    pub fn take_attr(&mut self, name: &str) -> Option<AttrValue> {
        let i = self.attrs.iter().position(|(known, _)| &**known == name)?;
        Some(self.attrs.remove(i).1)
    }

    /// Returns the region called `name`.
    pub fn region(&self, name: &str) -> Option<&Region> {
        self.regions.iter().find(|(known, _)| &**known == name).map(|(_, region)| region)
    }

    /// Returns the operand at `i`, None if it is absent or beyond those given.
    pub fn input(&self, i: usize) -> Option<ValueId> {
        self.inputs.get(i).copied().flatten()
    }

    /// Returns the result at `i`; None if it is unused.
    pub fn output(&self, i: usize) -> Option<ValueId> {
        self.outputs.get(i).copied().flatten()
    }

    /// Returns its name for messages: name and op.
    pub fn label(&self) -> String {
        if self.name.is_empty() {
            let output = self.outputs.iter().flatten().next();
            return match output {
                Some(id) => format!("making %{} ({})", id.0, self.op),
                None => format!("({})", self.op),
            };
        }
        format!("{} ({})", self.name, self.op)
    }
}

/// Value of an attribute. Graphs are in [`Node::regions`].
#[derive(Clone, Debug)]
pub enum AttrValue {
    /// One integer.
    Int(i64),
    /// One number.
    Float(f32),
    /// Text.
    String(String),
    /// Integers.
    Ints(Vec<i64>),
    /// Numbers.
    Floats(Vec<f32>),
    /// Texts.
    Strings(Vec<String>),
    /// A tensor.
    Tensor(Tensor),
}

impl AttrValue {
    /// Returns its type, as the definitions of ops have it.
    pub fn ty(&self) -> AttributeType {
        match self {
            Self::Int(_) => AttributeType::Int,
            Self::Float(_) => AttributeType::Float,
            Self::String(_) => AttributeType::String,
            Self::Ints(_) => AttributeType::Ints,
            Self::Floats(_) => AttributeType::Floats,
            Self::Strings(_) => AttributeType::Strings,
            Self::Tensor(_) => AttributeType::Tensor,
        }
    }
}

/// Converts an error that devbay-ops found in a node to an error of the model.
pub(crate) fn of_model(error: sdk::Error) -> Error {
    let kind = match error.status() {
        DEVBAY_STATUS_INVALID => ErrorKind::InvalidModel,
        DEVBAY_STATUS_UNSUPPORTED => ErrorKind::UnsupportedModel,
        DEVBAY_STATUS_OUT_OF_MEMORY => ErrorKind::OutOfMemory,
        _ => ErrorKind::Internal,
    };
    Error::new(kind, error.text())
}

impl Program {
    /// Adds a value.
    pub fn add_value(&mut self, value: Value) -> ValueId {
        let id = ValueId(u32::try_from(self.values.len()).expect("a program has fewer than 2^32 values"));
        self.values.push(value);
        id
    }

    /// Adds a constant.
    pub fn add_constant(&mut self, name: &str, tensor: Tensor) -> ValueId {
        self.add_value(Value {
            name: Arc::from(name),
            ty: Some(tensor.tensor_type()),
            constant: Some(tensor),
        })
    }

    /// Adds a value of a type.
    pub fn add_typed(&mut self, name: &str, ty: TensorType) -> ValueId {
        self.add_value(Value { name: Arc::from(name), ty: Some(ty), constant: None })
    }

    /// A value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.idx()]
    }

    /// A value, to change.
    pub fn value_mut(&mut self, id: ValueId) -> &mut Value {
        &mut self.values[id.idx()]
    }

    /// Returns the content of a value, if it is constant.
    pub fn constant(&self, id: ValueId) -> Option<&Tensor> {
        self.values[id.idx()].constant.as_ref()
    }

    /// Adds a value for the seed of a run, or of an iteration.
    pub fn add_seed(&mut self) -> ValueId {
        self.add_typed(SEED_INPUT, TensorType::new(U32, &[SEED_WORDS]))
    }

    /// Returns the input that takes the seed of a run; None if the program has no random numbers.
    pub fn seed_input(&self) -> Option<ValueId> {
        let last = *self.main.inputs.last()?;
        let value = self.value(last);
        let is_seed = |ty: &TensorType| *ty == TensorType::new(U32, &[SEED_WORDS]);
        (*value.name == *SEED_INPUT && value.ty.as_ref().is_some_and(is_seed)).then_some(last)
    }

    /// Returns the inputs that a caller gives: all but the seed.
    pub fn given_inputs(&self) -> &[ValueId] {
        let n_seeds = usize::from(self.seed_input().is_some());
        &self.main.inputs[..self.main.inputs.len() - n_seeds]
    }

    /// Gives back memory of constants of files that passes and kernels have read and that are not `kept` ([`Tensor::release`]).
    pub(crate) fn release_constants(&self, kept: impl Fn(&Tensor) -> bool) {
        let constants = self.values.iter().filter_map(|value| value.constant.as_ref());
        constants.filter(|tensor| tensor.is_of_file() && !kept(tensor)).for_each(Tensor::release);
    }

    /// Returns the number of nodes, those of nested regions included.
    pub fn n_nodes(&self) -> usize {
        let mut n = 0;
        self.main.visit(&mut |_| n += 1);
        n
    }
}

impl Region {
    /// Calls `f` for each node, those of nested regions after the one that holds them.
    pub fn visit<'a>(&'a self, f: &mut dyn FnMut(&'a Node)) {
        for node in &self.nodes {
            f(node);
            for (_, region) in &node.regions {
                region.visit(f);
            }
        }
    }

    /// Calls `f` for each node, to change it.
    pub fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Node)) {
        for node in &mut self.nodes {
            f(node);
            for (_, region) in &mut node.regions {
                region.visit_mut(f);
            }
        }
    }

    /// Values that it uses, nested regions included, and neither makes nor takes as inputs; each once, in
    /// order of first use. Constants of the program are among them.
    pub fn captures(&self) -> Vec<ValueId> {
        let mut captures = Captures::default();
        captures.region(self);
        captures.list
    }
}

#[derive(Default)]
struct Captures {
    /// Made inside, or already in the list.
    known: HashSet<ValueId>,
    list: Vec<ValueId>,
}

impl Captures {
    fn region(&mut self, region: &Region) {
        self.known.extend(&region.inputs);
        for node in &region.nodes {
            for &id in node.inputs.iter().flatten() {
                self.used(id);
            }
            for (_, nested) in &node.regions {
                self.region(nested);
            }
            self.known.extend(node.outputs.iter().flatten());
        }
        for &id in &region.outputs {
            self.used(id);
        }
    }

    fn used(&mut self, id: ValueId) {
        if self.known.insert(id) {
            self.list.push(id);
        }
    }
}
