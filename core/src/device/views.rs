//! Views of a program for plugins: types, attributes and graphs in the ABI's structs.

use crate::program::{AttrValue, Node, Op, Program, ValueId};
use crate::tensor::{Dim, Tensor, TensorType};
use devbay_plugin_api::abi::*;
use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;
use std::sync::Arc;

/// Extents, -1 for those that are not known.
pub(super) fn abi_shape(ty: &TensorType) -> Vec<i64> {
    let dims = ty.shape.iter().flatten();
    dims.map(|dim| dim.known().map_or(-1, |extent| extent as i64)).collect()
}

/// A type, whose extents are known and at `shape`, and its content if it is constant.
pub(super) fn abi_tensor(
    ty: &TensorType,
    shape: &[i64],
    constant: Option<&Tensor>,
) -> devbay_plugin_api::abi::Tensor {
    debug_assert!(ty.shape.iter().flatten().all(|dim| matches!(dim, Dim::Known(_))));
    let mut raw = devbay_plugin_api::abi::Tensor {
        rank: shape.len() as u32,
        dtype: ty.dtype,
        shape: shape.as_ptr(),
        ..devbay_plugin_api::abi::Tensor::empty()
    };
    if let Some(tensor) = constant {
        raw.flags = DEVBAY_TENSOR_CONSTANT;
        raw.constant = tensor.bytes().as_ptr().cast();
        raw.constant_bytes = tensor.bytes().len() as u64;
    }
    raw
}

/// A node's attributes in the ABI's structs, which point into this and into the attributes.
pub(super) struct AttrViews<'a> {
    list: Vec<Attr>,
    #[expect(dead_code, reason = "the list points to them")]
    floats: Vec<Vec<f64>>,
    #[expect(dead_code, reason = "the list points to them")]
    strings: Vec<Vec<Str>>,
    #[expect(dead_code, reason = "the tensors point to them")]
    shapes: Vec<Vec<i64>>,
    #[expect(dead_code, reason = "the list points to them")]
    tensors: Vec<devbay_plugin_api::abi::Tensor>,
    attrs: PhantomData<&'a AttrValue>,
}

impl<'a> AttrViews<'a> {
    /// Returns the attributes that a node's op has. Others mean nothing (rule 9 of `verify.rs`), and a kernel would
    /// refuse unknown ones. An op without a row may have any.
    pub fn of(op: &Op, attrs: &'a [(Arc<str>, AttrValue)]) -> Self {
        let row = devbay_ops::find(&op.domain, &op.name);
        let is_of_op = |(name, _): &&(Arc<str>, AttrValue)| row.is_none_or(|row| row.attributes.has(name));
        let attrs: Vec<&'a (Arc<str>, AttrValue)> = attrs.iter().filter(is_of_op).collect();
        // The list's targets are made first, so that nothing moves afterwards.
        let each = |(_, value): &&(Arc<str>, AttrValue)| match value {
            AttrValue::Floats(values) => values.iter().map(|&v| f64::from(v)).collect(),
            _ => Vec::new(),
        };
        let floats: Vec<Vec<f64>> = attrs.iter().map(each).collect();
        let each = |(_, value): &&(Arc<str>, AttrValue)| match value {
            AttrValue::Strings(values) => values.iter().map(|v| Str::new(v)).collect(),
            _ => Vec::new(),
        };
        let strings: Vec<Vec<Str>> = attrs.iter().map(each).collect();
        let each = |(_, value): &&(Arc<str>, AttrValue)| match value {
            AttrValue::Tensor(tensor) => abi_shape(&tensor.tensor_type()),
            _ => Vec::new(),
        };
        let shapes: Vec<Vec<i64>> = attrs.iter().map(each).collect();
        let each = |((_, value), shape): (&&(Arc<str>, AttrValue), &Vec<i64>)| match value {
            AttrValue::Tensor(tensor) => abi_tensor(&tensor.tensor_type(), shape, Some(tensor)),
            _ => devbay_plugin_api::abi::Tensor::empty(),
        };
        let tensors: Vec<_> = attrs.iter().zip(&shapes).map(each).collect();
        let each = |(i, &(name, value)): (usize, &&'a (Arc<str>, AttrValue))| {
            let mut attr = Attr { name: Str::new(name), ..Attr::empty() };
            match value {
                AttrValue::Int(value) => (attr.kind, attr.i) = (DEVBAY_ATTR_INT, *value),
                AttrValue::Float(value) => (attr.kind, attr.f) = (DEVBAY_ATTR_FLOAT, f64::from(*value)),
                AttrValue::String(value) => (attr.kind, attr.s) = (DEVBAY_ATTR_STRING, Str::new(value)),
                AttrValue::Ints(values) => (attr.kind, attr.list) = (DEVBAY_ATTR_INTS, List::new(values)),
                AttrValue::Floats(_) => (attr.kind, attr.list) = (DEVBAY_ATTR_FLOATS, List::new(&floats[i])),
                AttrValue::Strings(_) => {
                    (attr.kind, attr.list) = (DEVBAY_ATTR_STRINGS, List::new(&strings[i]));
                }
                AttrValue::Tensor(_) => {
                    (attr.kind, attr.tensor) = (DEVBAY_ATTR_TENSOR, &raw const tensors[i]);
                }
            }
            attr
        };
        let list = attrs.iter().enumerate().map(each).collect();
        Self { list, floats, strings, shapes, tensors, attrs: PhantomData }
    }

    /// Returns the list that a plugin is given.
    pub fn list(&self) -> List {
        List::new(&self.list)
    }
}

/// A part of a program as a compiler sees it: nodes without regions, whose types are all known.
pub struct Graph<'a> {
    program: &'a Program,
    nodes: Vec<&'a Node>,
    /// The values, constants included, in the order in which they are met; plugins know them by their position here.
    values: Vec<ValueId>,
    positions: HashMap<ValueId, u32>,
    inputs: Vec<u32>,
    outputs: Vec<u32>,
}

impl<'a> Graph<'a> {
    /// Returns a graph of some nodes of a program, in its order, with results `outputs`. Values that they read but do
    /// not make are inputs, unless they are constant.
    pub fn new(program: &'a Program, nodes: Vec<&'a Node>, outputs: &[ValueId]) -> Self {
        let made: HashSet<ValueId> =
            nodes.iter().flat_map(|node| node.outputs.iter().copied().flatten()).collect();
        let mut seen = HashSet::new();
        let read = nodes.iter().flat_map(|node| node.inputs.iter().copied().flatten());
        let comes_in =
            |id: &ValueId| !made.contains(id) && program.constant(*id).is_none() && seen.insert(*id);
        let inputs: Vec<ValueId> = read.filter(comes_in).collect();
        let mut graph = Self {
            program,
            nodes: Vec::new(),
            values: Vec::new(),
            positions: HashMap::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        graph.inputs = inputs.iter().map(|&id| graph.add(id)).collect();
        for node in &nodes {
            for &id in node.inputs.iter().chain(&node.outputs).flatten() {
                graph.add(id);
            }
        }
        graph.outputs = outputs.iter().map(|&id| graph.add(id)).collect();
        graph.nodes = nodes;
        graph
    }

    fn add(&mut self, id: ValueId) -> u32 {
        *self.positions.entry(id).or_insert_with(|| {
            self.values.push(id);
            self.values.len() as u32 - 1
        })
    }

    /// Returns the program that it is a part of.
    pub fn program(&self) -> &'a Program {
        self.program
    }

    /// Returns the nodes, in order.
    pub fn nodes(&self) -> &[&'a Node] {
        &self.nodes
    }

    /// Returns the values, as plugins number them.
    pub fn values(&self) -> &[ValueId] {
        &self.values
    }

    /// A value's number.
    pub fn position(&self, id: ValueId) -> Option<u32> {
        self.positions.get(&id).copied()
    }

    /// Returns the values that come in, by their numbers.
    pub fn inputs(&self) -> &[u32] {
        &self.inputs
    }

    /// Returns the values that go out, by their numbers.
    pub fn outputs(&self) -> &[u32] {
        &self.outputs
    }

    /// Builds the ABI's form and passes it on; it is gone afterwards. A value of unknown type is shown as absent.
    pub(super) fn with_abi<R>(&self, body: impl FnOnce(&GraphView) -> R) -> R {
        let typed = |id: &ValueId| self.program.value(*id).ty.as_ref();
        let shapes: Vec<Vec<i64>> =
            self.values.iter().map(|id| typed(id).map_or_else(Vec::new, abi_shape)).collect();
        let tensors: Vec<_> = self
            .values
            .iter()
            .zip(&shapes)
            .map(|(id, shape)| match typed(id) {
                Some(ty) => abi_tensor(ty, shape, self.program.constant(*id)),
                None => devbay_plugin_api::abi::Tensor {
                    flags: DEVBAY_TENSOR_ABSENT,
                    ..devbay_plugin_api::abi::Tensor::empty()
                },
            })
            .collect();
        let values: Vec<ValueView> = self
            .values
            .iter()
            .zip(&tensors)
            .map(|(id, tensor)| ValueView {
                name: Str::new(&self.program.value(*id).name),
                tensor,
                ..ValueView::empty()
            })
            .collect();
        let numbers = |ids: &[Option<ValueId>]| -> Vec<u32> {
            ids.iter().map(|id| id.and_then(|id| self.position(id)).unwrap_or(u32::MAX)).collect()
        };
        let attrs: Vec<AttrViews<'_>> =
            self.nodes.iter().map(|node| AttrViews::of(&node.op, &node.attrs)).collect();
        let operands: Vec<(Vec<u32>, Vec<u32>)> =
            self.nodes.iter().map(|node| (numbers(&node.inputs), numbers(&node.outputs))).collect();
        let nodes: Vec<NodeView> = self
            .nodes
            .iter()
            .zip(attrs.iter().zip(&operands))
            .map(|(node, (attrs, (inputs, outputs)))| NodeView {
                since_version: node.op.version,
                domain: Str::new(&node.op.domain),
                op: Str::new(&node.op.name),
                name: Str::new(&node.name),
                attrs: attrs.list(),
                inputs: List::new(inputs),
                outputs: List::new(outputs),
                ..NodeView::empty()
            })
            .collect();
        body(&GraphView {
            nodes: List::new(&nodes),
            values: List::new(&values),
            inputs: List::new(&self.inputs),
            outputs: List::new(&self.outputs),
            ..GraphView::empty()
        })
    }
}
