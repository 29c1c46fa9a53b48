//! A node test of ONNX's as what hostile models are made of: the model as messages, and its inputs as tensors.

use super::wire::{Message, Wire, int, text};
use crate::onnx::corpus::NodeTest;

// Fields of onnx.proto.
pub(super) mod field {
    pub(crate) const MODEL_GRAPH: u32 = 7;
    pub(crate) const GRAPH_NODE: u32 = 1;
    pub(crate) const GRAPH_INITIALIZER: u32 = 5;
    pub(crate) const GRAPH_INPUT: u32 = 11;
    pub(crate) const GRAPH_OUTPUT: u32 = 12;
    pub(crate) const GRAPH_VALUE: u32 = 13;
    pub(crate) const NODE_INPUT: u32 = 1;
    pub(crate) const NODE_OUTPUT: u32 = 2;
    pub(crate) const NODE_OP: u32 = 4;
    pub(crate) const NODE_ATTRIBUTE: u32 = 5;
    pub(crate) const NODE_DOMAIN: u32 = 7;
    pub(crate) const ATTRIBUTE_NAME: u32 = 1;
    pub(crate) const ATTRIBUTE_FLOAT: u32 = 2;
    pub(crate) const ATTRIBUTE_INT: u32 = 3;
    pub(crate) const ATTRIBUTE_STRING: u32 = 4;
    pub(crate) const ATTRIBUTE_FLOATS: u32 = 7;
    pub(crate) const ATTRIBUTE_INTS: u32 = 8;
    pub(crate) const ATTRIBUTE_TYPE: u32 = 20;
    pub(crate) const TENSOR_DIMS: u32 = 1;
    pub(crate) const TENSOR_TYPE: u32 = 2;
    pub(crate) const TENSOR_NAME: u32 = 8;
    pub(crate) const TENSOR_RAW: u32 = 9;
    pub(crate) const VALUE_NAME: u32 = 1;
    pub(crate) const VALUE_TYPE: u32 = 2;
    pub(crate) const TYPE_TENSOR: u32 = 1;
    pub(crate) const TENSOR_TYPE_ELEMENT: u32 = 1;
    pub(crate) const TENSOR_TYPE_SHAPE: u32 = 2;
    pub(crate) const SHAPE_DIM: u32 = 1;
    pub(crate) const DIM_VALUE: u32 = 1;
}

/// An input tensor with its content.
#[derive(Clone, Debug)]
pub(super) struct Array {
    pub dtype: i64,
    pub dims: Vec<i64>,
    pub raw: Vec<u8>,
}

impl Array {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let message = Message::parse(bytes)?;
        let raw = message.all_bytes(field::TENSOR_RAW).last().unwrap_or_default().to_vec();
        let array =
            Self { dtype: message.int(field::TENSOR_TYPE)?, dims: message.ints(field::TENSOR_DIMS), raw };
        // Strings, and tensors whose elements are in another field, are not changed by element.
        let bits = bits(array.dtype)?;
        let n_bits = array.dims.iter().product::<i64>() * bits;
        (n_bits.unsigned_abs().div_ceil(8) == array.raw.len() as u64).then_some(array)
    }

    /// As a TensorProto.
    pub fn message(&self, name: &str) -> Message {
        let mut message = Message::default();
        for dim in &self.dims {
            message.push(field::TENSOR_DIMS, int(*dim));
        }
        message.push(field::TENSOR_TYPE, int(self.dtype));
        message.push(field::TENSOR_NAME, text(name));
        message.push(field::TENSOR_RAW, Wire::Bytes(self.raw.clone()));
        message
    }
}

/// Bits of an element; None for strings and what ONNX does not have.
pub(super) fn bits(dtype: i64) -> Option<i64> {
    Some(match dtype {
        1 | 6 | 12 => 32,
        2 | 3 | 9 | 17..=20 | 24 => 8,
        4 | 5 | 10 | 16 => 16,
        7 | 11 | 13 => 64,
        21..=23 => 4,
        _ => return None,
    })
}

/// A model with its inputs, as a case of the corpus runs it.
#[derive(Clone, Debug)]
pub struct HostileModel {
    /// The file.
    pub model: Vec<u8>,
    /// Its inputs by name, as serialised tensors.
    pub inputs: Vec<(String, Vec<u8>)>,
}

/// A node test that is whole.
#[derive(Clone, Debug)]
pub(super) struct Seed {
    pub model: Message,
    /// Inputs by name. Those without a tensor's content are kept as they came.
    pub inputs: Vec<(String, Vec<u8>)>,
    /// The same as arrays, where they are.
    pub arrays: Vec<Option<Array>>,
    /// Position of the node that is changed.
    pub node_idx: usize,
    pub node: Message,
}

impl Seed {
    /// Reads a test's first data set; None if its messages are damaged, or it has no node.
    pub fn of(test: &NodeTest) -> Option<Self> {
        let model = Message::parse(&test.model)?;
        let graph = Message::parse(model.all_bytes(field::MODEL_GRAPH).last()?)?;
        let names = graph
            .all_bytes(field::GRAPH_INPUT)
            .map(|value| Message::parse(value).map(|value| value.text(field::VALUE_NAME).to_owned()));
        let names: Vec<String> = names.collect::<Option<_>>()?;
        let set = test.sets.values().next()?;
        let inputs: Vec<_> = names.into_iter().zip(set.inputs.values().cloned()).collect();
        let arrays = inputs.iter().map(|(_, bytes)| Array::parse(bytes)).collect();
        let nodes: Vec<Message> =
            graph.all_bytes(field::GRAPH_NODE).map(Message::parse).collect::<Option<_>>()?;
        let node_idx = nodes.iter().position(|node| node.text(field::NODE_OP) != "Constant").or(Some(0))?;
        let node = nodes.get(node_idx)?.clone();
        Some(Self { model, inputs, arrays, node_idx, node })
    }

    /// Inputs of the node, by name; "" where one is absent.
    pub fn node_inputs(&self) -> Vec<String> {
        names(&self.node, field::NODE_INPUT)
    }

    /// Outputs of the node, as above.
    pub fn node_outputs(&self) -> Vec<String> {
        names(&self.node, field::NODE_OUTPUT)
    }

    /// Returns the model with another node in the place of the one that is changed, and the graph changed besides.
    pub fn with(&self, node: &Message, change: impl FnOnce(&mut Message)) -> HostileModel {
        let mut model = self.model.clone();
        model.change(field::MODEL_GRAPH, 0, |graph| {
            graph.change(field::GRAPH_NODE, self.node_idx, |old| *old = node.clone());
            change(graph);
        });
        HostileModel { model: model.bytes(), inputs: self.inputs.clone() }
    }

    /// Returns the model as the test has it.
    pub fn unchanged(&self) -> HostileModel {
        HostileModel { model: self.model.bytes(), inputs: self.inputs.clone() }
    }

    /// Returns the model with another array as an input, or as a constant.
    pub fn with_array(&self, input: usize, array: &Array, constant: bool) -> HostileModel {
        let name = self.inputs[input].0.clone();
        let tensor = array.message(&name);
        let mut hostile = self.with(&self.node, |graph| {
            if constant {
                remove_named(graph, field::GRAPH_INPUT, &name);
                graph.push(field::GRAPH_INITIALIZER, Wire::Bytes(tensor.bytes()));
            } else {
                set_input_type(graph, &name, array);
            }
            forget_shapes(graph);
        });
        if constant {
            hostile.inputs.remove(input);
        } else {
            hostile.inputs[input].1 = tensor.bytes();
        }
        hostile
    }
}

fn names(node: &Message, number: u32) -> Vec<String> {
    node.all_bytes(number).map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

/// Removes values of a list by name.
pub(super) fn remove_named(graph: &mut Message, number: u32, name: &str) {
    graph.fields.retain(|(found, wire)| {
        let Wire::Bytes(bytes) = wire else { return true };
        *found != number || Message::parse(bytes).is_none_or(|value| value.text(field::VALUE_NAME) != name)
    });
}

/// Says an array's type of an input.
fn set_input_type(graph: &mut Message, name: &str, array: &Array) {
    let mut shape = Message::default();
    for dim in &array.dims {
        let mut extent = Message::default();
        extent.push(field::DIM_VALUE, int(*dim));
        shape.push(field::SHAPE_DIM, Wire::Bytes(extent.bytes()));
    }
    let mut tensor = Message::default();
    tensor.push(field::TENSOR_TYPE_ELEMENT, int(array.dtype));
    tensor.push(field::TENSOR_TYPE_SHAPE, Wire::Bytes(shape.bytes()));
    let mut ty = Message::default();
    ty.push(field::TYPE_TENSOR, Wire::Bytes(tensor.bytes()));
    for (number, wire) in &mut graph.fields {
        let Wire::Bytes(bytes) = wire else { continue };
        if *number != field::GRAPH_INPUT {
            continue;
        }
        if let Some(mut value) = Message::parse(bytes)
            && value.text(field::VALUE_NAME) == name
        {
            value.replace(field::VALUE_TYPE, [Wire::Bytes(ty.bytes())]);
            *bytes = value.bytes();
        }
    }
}

/// Takes the shapes from outputs, which may be others than the test's.
pub(super) fn forget_shapes(graph: &mut Message) {
    graph.remove(field::GRAPH_VALUE);
    for (number, wire) in &mut graph.fields {
        let Wire::Bytes(bytes) = wire else { continue };
        if *number != field::GRAPH_OUTPUT {
            continue;
        }
        if let Some(mut value) = Message::parse(bytes) {
            value.change(field::VALUE_TYPE, 0, |ty| {
                ty.change(field::TYPE_TENSOR, 0, |tensor| tensor.remove(field::TENSOR_TYPE_SHAPE));
            });
            *bytes = value.bytes();
        }
    }
}
