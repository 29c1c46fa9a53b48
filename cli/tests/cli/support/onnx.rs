//! Writes ONNX files for tests field by field, valid and invalid ones.
//!
//! Field numbers are those of `host/proto/onnx.proto`. The importer's own types are not used, so that a
//! mistake in them cannot hide.

/// A protobuf message under construction.
#[derive(Clone, Default)]
pub struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// Adds a number.
    pub fn int(mut self, field: u64, value: i64) -> Self {
        self.varint(field << 3);
        self.varint(value as u64);
        self
    }

    /// Adds text, bytes or a message.
    pub fn with(mut self, field: u64, content: impl AsRef<[u8]>) -> Self {
        let content = content.as_ref();
        self.varint(field << 3 | 2);
        self.varint(content.len() as u64);
        self.0.extend_from_slice(content);
        self
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// ONNX's numbers for element types.
pub const FLOAT: i64 = 1;
/// See [`FLOAT`].
pub const INT64: i64 = 7;
/// See [`FLOAT`].
pub const BOOL: i64 = 9;

/// Returns a node; an op of another domain has the domain before a point.
pub fn node(name: &str, op: &str, inputs: &[&str], outputs: &[&str]) -> Message {
    let (domain, op) = op.rsplit_once('.').unwrap_or(("", op));
    let mut message = Message::default();
    for input in inputs {
        message = message.with(1, input);
    }
    for output in outputs {
        message = message.with(2, output);
    }
    message.with(3, name).with(4, op).with(7, domain)
}

/// Returns a graph attribute, for a node's field 5.
pub fn graph_attribute(name: &str, graph: &Message) -> Message {
    Message::default().with(1, name).with(6, graph).int(20, 5)
}

/// Returns an attribute with a list of integers.
pub fn ints_attribute(name: &str, values: &[i64]) -> Message {
    let message = Message::default().with(1, name).int(20, 7);
    values.iter().fold(message, |message, &value| message.int(8, value))
}

/// Returns a value with its type; a negative extent is an unknown one.
pub fn value(name: &str, element: i64, dims: &[i64]) -> Message {
    let shape = dims.iter().fold(Message::default(), |shape, &dim| {
        let extent = Message::default();
        shape.with(1, if dim < 0 { extent.with(2, "n") } else { extent.int(1, dim) })
    });
    let tensor = Message::default().int(1, element).with(2, shape);
    Message::default().with(1, name).with(2, Message::default().with(1, tensor))
}

/// Returns a tensor with its content as bytes.
pub fn tensor(name: &str, element: i64, dims: &[i64], bytes: &[u8]) -> Message {
    let message = dims.iter().fold(Message::default(), |message, &dim| message.int(1, dim));
    message.int(2, element).with(8, name).with(9, bytes)
}

/// Returns a tensor of integers.
pub fn int64s(name: &str, values: &[i64]) -> Message {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensor(name, INT64, &[values.len() as i64], &bytes)
}

/// Returns a tensor whose content is in another file.
pub fn external(name: &str, dims: &[i64], location: &str) -> Message {
    let message = dims.iter().fold(Message::default(), |message, &dim| message.int(1, dim));
    let entry = Message::default().with(1, "location").with(2, location);
    message.int(2, FLOAT).with(8, name).with(13, entry).int(14, 1)
}

/// Parts of a graph.
#[derive(Default)]
pub struct Graph<'a> {
    /// Its nodes.
    pub nodes: &'a [Message],
    /// Its inputs.
    pub inputs: &'a [Message],
    /// Its outputs.
    pub outputs: &'a [Message],
    /// Its constants.
    pub tensors: &'a [Message],
}

/// Builds a graph.
pub fn graph(parts: &Graph<'_>) -> Message {
    let fields = [(1, parts.nodes), (5, parts.tensors), (11, parts.inputs), (12, parts.outputs)];
    let mut message = Message::default().with(2, "g");
    for (field, list) in fields {
        for item in list {
            message = message.with(field, item);
        }
    }
    message
}

/// Builds a model of ONNX's own domain; add other domains' opsets to field 8.
pub fn model(opset: i64, parts: &Graph<'_>) -> Message {
    Message::default().int(1, 8).with(8, Message::default().int(2, opset)).with(7, graph(parts))
}
