//! A small graph of f32 ops as plugins are shown it, and its numbers by plain loops.
//!
//! Inputs and constants are eighths below 2, so that products are multiples of 1/64 and every sum here is a number of f32
//! whatever the order: results are compared for equality.

use super::super::kernel::UNKNOWN_ATTRIBUTE;
use devbay_plugin_api::abi::*;

pub(super) const F32: DType = DType { code: DEVBAY_DTYPE_FLOAT, bits: 32, lanes: 1 };

/// Rows of the matrices, columns of the first, and of the second.
const M: usize = 4;
const K: usize = 48;
const N: usize = 32;

/// A value, in f32.
#[derive(Clone)]
pub(super) struct Value {
    name: &'static str,
    pub shape: Vec<i64>,
    /// Its content, little endian, if it is constant.
    constant: Option<Vec<u8>>,
}

/// A node of one result.
#[derive(Clone)]
pub(super) struct Node {
    domain: &'static str,
    pub op: &'static str,
    version: u32,
    inputs: Vec<u32>,
    output: u32,
    /// Name of the integer that it has as its one attribute.
    attribute: Option<&'static str>,
}

/// A graph; operands are positions in its values.
#[derive(Clone)]
pub(super) struct Graph {
    pub values: Vec<Value>,
    pub nodes: Vec<Node>,
    pub inputs: Vec<u32>,
    pub outputs: Vec<u32>,
}

/// Returns the bytes of numbers.
pub(super) fn bytes(numbers: &[f32]) -> Vec<u8> {
    bytemuck::cast_slice(numbers).to_vec()
}

/// Returns the numbers of bytes.
pub(super) fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(size_of::<f32>()).map(bytemuck::pod_read_unaligned).collect()
}

/// Eighths of at least -2 and below 2, by chance, always the same for a seed.
fn eighths(n: usize, seed: u64) -> Vec<f32> {
    let bytes = crate::rig::pattern(n, seed);
    bytes.into_iter().map(|byte| f32::from(byte % 32) / 8.0 - 2.0).collect()
}

fn size(shape: &[i64]) -> usize {
    shape.iter().map(|&extent| extent as usize).product()
}

impl Graph {
    /// A product of an input with a constant of 6 KiB, a sum with one of 128 bytes, and what follows: two inputs, and two
    /// results, of which the first is also read inside.
    pub fn sample() -> Self {
        let value = |name, shape: &[usize], seed: Option<u64>| Value {
            name,
            shape: shape.iter().map(|&extent| extent as i64).collect(),
            constant: seed.map(|seed| bytes(&eighths(shape.iter().product(), seed))),
        };
        let node = |op, version, inputs: &[u32], output| Node {
            domain: "",
            op,
            version,
            inputs: inputs.to_vec(),
            output,
            attribute: None,
        };
        Self {
            values: vec![
                value("x", &[M, K], None),
                value("y", &[M, N], None),
                value("weights", &[K, N], Some(1)),
                value("bias", &[N], Some(2)),
                value("product", &[M, N], None),
                value("sum", &[M, N], None),
                value("hidden", &[M, N], None),
                value("scaled", &[M, N], None),
                value("result", &[M, N], None),
            ],
            nodes: vec![
                node("MatMul", 13, &[0, 2], 4),
                node("Add", 14, &[4, 3], 5),
                node("Relu", 14, &[5], 6),
                node("Mul", 14, &[6, 1], 7),
                node("Sub", 14, &[7, 5], 8),
            ],
            inputs: vec![0, 1],
            outputs: vec![6, 8],
        }
    }

    /// Returns the sample followed by a node of an unknown op.
    pub fn with_unknown() -> Self {
        let mut graph = Self::sample();
        let output = graph.values.len() as u32;
        graph.values.push(Value { name: "unknown", shape: vec![M as i64, N as i64], constant: None });
        graph.nodes.push(Node {
            domain: "org.devbay.conformance",
            op: "NoSuchOp",
            version: 1,
            inputs: vec![8],
            output,
            attribute: None,
        });
        graph.outputs.push(output);
        graph
    }

    /// Returns the sample with an attribute on each node that no op has.
    pub fn with_attributes() -> Self {
        let mut graph = Self::sample();
        graph.nodes.iter_mut().for_each(|node| node.attribute = Some(UNKNOWN_ATTRIBUTE));
        graph
    }

    /// Some of its nodes, as a graph of their own: what they read and do not make comes in, and what others read goes out.
    pub fn part(&self, keeps: impl Fn(usize) -> bool) -> Self {
        let (kept, others): (Vec<_>, Vec<_>) =
            self.nodes.iter().enumerate().partition(|(position, _)| keeps(*position));
        let is_made = |value: &u32| kept.iter().any(|(_, node)| node.output == *value);
        let mut used: Vec<u32> =
            kept.iter().flat_map(|(_, node)| [&node.inputs[..], &[node.output]].concat()).collect();
        used.sort_unstable();
        used.dedup();
        let leaves = |value: &u32| {
            self.outputs.contains(value) || others.iter().any(|(_, node)| node.inputs.contains(value))
        };
        let position = |value: &u32| used.binary_search(value).expect("it is used") as u32;
        let is_constant = |value: &u32| self.values[*value as usize].constant.is_some();
        Self {
            values: used.iter().map(|&value| self.values[value as usize].clone()).collect(),
            nodes: kept
                .iter()
                .map(|(_, node)| Node {
                    inputs: node.inputs.iter().map(position).collect(),
                    output: position(&node.output),
                    ..(*node).clone()
                })
                .collect(),
            inputs: used
                .iter()
                .filter(|value| !is_made(value) && !is_constant(value))
                .map(position)
                .collect(),
            outputs: used.iter().filter(|value| is_made(value) && leaves(value)).map(position).collect(),
        }
    }

    /// Returns whether a run may be given a value: an input or a constant.
    pub fn is_given(&self, value: u32) -> bool {
        self.inputs.contains(&value) || self.constant(value).is_some()
    }

    /// Returns the content of a constant.
    pub fn constant(&self, value: u32) -> Option<&[u8]> {
        self.values.get(value as usize)?.constant.as_deref()
    }

    /// Returns the numbers of all its values, with inputs by chance.
    pub fn numbers(&self, seed: u64) -> Vec<Vec<f32>> {
        let given = |(position, value): (usize, &Value)| match &value.constant {
            Some(content) => numbers(content),
            None => eighths(size(&value.shape), 100 * seed + position as u64 + 3),
        };
        let mut all: Vec<Vec<f32>> = self.values.iter().enumerate().map(given).collect();
        for node in &self.nodes {
            let operands: Vec<&[f32]> = node.inputs.iter().map(|&value| &all[value as usize][..]).collect();
            all[node.output as usize] = calculate(node.op, &operands);
        }
        all
    }

    /// Builds the ABI's form and passes it on; it is gone afterwards.
    pub fn with_abi<R>(&self, body: impl FnOnce(&GraphView) -> R) -> R {
        let tensor = |value: &Value| {
            let mut tensor = Tensor {
                dtype: F32,
                rank: value.shape.len() as u32,
                shape: value.shape.as_ptr(),
                ..Tensor::empty()
            };
            if let Some(content) = &value.constant {
                tensor.flags = DEVBAY_TENSOR_CONSTANT;
                tensor.constant = content.as_ptr().cast();
                tensor.constant_bytes = content.len() as u64;
            }
            tensor
        };
        let tensors: Vec<Tensor> = self.values.iter().map(tensor).collect();
        let values: Vec<ValueView> = self
            .values
            .iter()
            .zip(&tensors)
            .map(|(value, tensor)| ValueView { name: Str::new(value.name), tensor, ..ValueView::empty() })
            .collect();
        let attribute = |name| Attr { kind: DEVBAY_ATTR_INT, i: 1, name: Str::new(name), ..Attr::empty() };
        let attributes: Vec<Option<Attr>> =
            self.nodes.iter().map(|node| node.attribute.map(attribute)).collect();
        let nodes: Vec<NodeView> = self
            .nodes
            .iter()
            .zip(&attributes)
            .map(|(node, attribute)| NodeView {
                attrs: List::new(attribute.as_slice()),
                since_version: node.version,
                domain: Str::new(node.domain),
                op: Str::new(node.op),
                name: Str::new(self.values[node.output as usize].name),
                inputs: List::new(&node.inputs),
                outputs: List::new(std::slice::from_ref(&node.output)),
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

/// An op of the sample; a shorter operand is repeated.
fn calculate(op: &str, operands: &[&[f32]]) -> Vec<f32> {
    let each = |f: fn(f32, f32) -> f32| {
        let (a, b) = (operands[0], operands[1]);
        a.iter().enumerate().map(|(at, &a)| f(a, b[at % b.len()])).collect()
    };
    match op {
        "Add" => each(|a, b| a + b),
        "Sub" => each(|a, b| a - b),
        "Mul" => each(|a, b| a * b),
        "Relu" => operands[0].iter().map(|&a| a.max(0.0)).collect(),
        "MatMul" => {
            let (a, b) = (operands[0], operands[1]);
            let sum = |at: usize| (0..K).map(|k| a[at / N * K + k] * b[k * N + at % N]).sum();
            (0..M * N).map(sum).collect()
        }
        // An unknown node has no numbers, and no case runs one.
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_what_they_read_and_what_others_read() {
        let graph = Graph::sample();
        assert_eq!(graph.values[2].constant.as_ref().map(Vec::len), Some(6144));
        let part = graph.part(|position| position == 1 || position == 3);
        let names = |list: &[u32]| -> Vec<&str> {
            list.iter().map(|&value| part.values[value as usize].name).collect()
        };
        assert_eq!(names(&part.inputs), ["y", "product", "hidden"]);
        assert_eq!(names(&part.outputs), ["sum", "scaled"]);
        let whole = graph.part(|_| true);
        assert_eq!((whole.inputs, whole.outputs), (graph.inputs, graph.outputs));
    }

    #[test]
    fn numbers_are_exact() {
        let graph = Graph::sample();
        let all = graph.numbers(1);
        // Exact in f32 in any order: multiples of 1/512 below 2^14.
        let is_exact = |&number: &f32| number.abs() < 16_384.0 && (number * 512.0).fract() == 0.0;
        assert!(all.iter().flatten().all(is_exact));
        assert!(all[6].iter().any(|&number| number > 0.0) && all[6].contains(&0.0));
        assert_ne!(all[8], graph.numbers(2)[8]);
    }
}
