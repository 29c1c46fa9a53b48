//! Graphs of ONNX ops from short descriptions, by way of the ABI's structs, and what a library makes of them.

use super::devices;
use devbay_plugin_api::abi::{self, DEVBAY_TENSOR_CONSTANT, DType, Growable, List, Str};
use devbay_plugin_api::sdk::{BOOL, F32, F64, GraphView, I32, I64};
use devbay_plugin_pjrt::buffer::{Buffer, HostArray};
use devbay_plugin_pjrt::client::Device;
use devbay_plugin_pjrt::element::ElementType;
use devbay_plugin_pjrt::executable::{CompileOptions, Executable, Input};
use devbay_plugin_pjrt::hlo::{EmitOptions, Emitted, claim, emit};

/// A tensor: its type, and its elements dense and little endian.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    pub dtype: DType,
    pub dims: Vec<i64>,
    pub bytes: Vec<u8>,
}

pub fn f32s(dims: &[i64], values: &[f32]) -> Tensor {
    assert_eq!(dims.iter().product::<i64>(), values.len() as i64);
    Tensor { dtype: F32, dims: dims.to_vec(), bytes: bytemuck::cast_slice(values).to_vec() }
}

pub fn f64s(dims: &[i64], values: &[f64]) -> Tensor {
    Tensor { dtype: F64, dims: dims.to_vec(), bytes: bytemuck::cast_slice(values).to_vec() }
}

pub fn i64s(dims: &[i64], values: &[i64]) -> Tensor {
    assert_eq!(dims.iter().product::<i64>(), values.len() as i64);
    Tensor { dtype: I64, dims: dims.to_vec(), bytes: bytemuck::cast_slice(values).to_vec() }
}

pub fn i32s(dims: &[i64], values: &[i32]) -> Tensor {
    Tensor { dtype: I32, dims: dims.to_vec(), bytes: bytemuck::cast_slice(values).to_vec() }
}

pub fn bools(dims: &[i64], values: &[bool]) -> Tensor {
    Tensor { dtype: BOOL, dims: dims.to_vec(), bytes: values.iter().map(|&x| u8::from(x)).collect() }
}

/// Numbers 0, 1, 2, ... as float32.
pub fn counted(dims: &[i64]) -> Tensor {
    f32s(dims, &(0..dims.iter().product()).map(|x: i64| x as f32).collect::<Vec<_>>())
}

/// Numbers between -1 and 1 that look irregular, different for each seed.
pub fn irregular(dims: &[i64], seed: u32) -> Tensor {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    f32s(dims, &(0..dims.iter().product()).map(|_: i64| next()).collect::<Vec<_>>())
}

impl Tensor {
    /// The elements of a float32 tensor.
    pub fn numbers(&self) -> Vec<f32> {
        assert_eq!(self.dtype, F32);
        super::numbers(&self.bytes)
    }

    fn element(&self) -> ElementType {
        use devbay_plugin_api::sdk::{BF16, F16, I8, I16, U8, U16, U32, U64};
        let types = [
            (F32, ElementType::F32),
            (F64, ElementType::F64),
            (F16, ElementType::F16),
            (BF16, ElementType::BF16),
            (I8, ElementType::S8),
            (I16, ElementType::S16),
            (I32, ElementType::S32),
            (I64, ElementType::S64),
            (U8, ElementType::U8),
            (U16, ElementType::U16),
            (U32, ElementType::U32),
            (U64, ElementType::U64),
            (BOOL, ElementType::PRED),
        ];
        types.iter().find(|(dtype, _)| *dtype == self.dtype).unwrap().1
    }
}

/// Value of an attribute.
#[derive(Clone, Debug)]
pub enum Attr {
    Int(i64),
    Float(f64),
    Text(String),
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Tensor(Tensor),
}

#[derive(Clone, Debug)]
struct Node {
    op: String,
    since: u32,
    inputs: Vec<u32>,
    outputs: Vec<u32>,
    attrs: Vec<(String, Attr)>,
}

/// A value: its type, and its content if it is constant.
#[derive(Clone, Debug)]
struct Value {
    ty: Tensor,
    is_constant: bool,
}

/// A graph that is being described.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    values: Vec<Value>,
    nodes: Vec<Node>,
    inputs: Vec<u32>,
    outputs: Vec<u32>,
}

/// Stands for an optional operand that is not given.
pub const NONE: u32 = u32::MAX;

impl Graph {
    fn value(&mut self, ty: Tensor, is_constant: bool) -> u32 {
        self.values.push(Value { ty, is_constant });
        self.values.len() as u32 - 1
    }

    /// An input of a type.
    pub fn input(&mut self, dtype: DType, dims: &[i64]) -> u32 {
        let value = self.value(Tensor { dtype, dims: dims.to_vec(), bytes: Vec::new() }, false);
        self.inputs.push(value);
        value
    }

    /// A constant.
    pub fn constant(&mut self, tensor: Tensor) -> u32 {
        self.value(tensor, true)
    }

    /// The result of a node, of a type.
    pub fn result(&mut self, dtype: DType, dims: &[i64]) -> u32 {
        self.value(Tensor { dtype, dims: dims.to_vec(), bytes: Vec::new() }, false)
    }

    /// A node between values that are there.
    pub fn node(&mut self, op: &str, since: u32, inputs: &[u32], outputs: &[u32], attrs: &[(&str, Attr)]) {
        self.nodes.push(Node {
            op: op.into(),
            since,
            inputs: inputs.to_vec(),
            outputs: outputs.to_vec(),
            attrs: attrs.iter().map(|(name, attr)| ((*name).into(), attr.clone())).collect(),
        });
    }

    /// A value that goes out.
    pub fn output(&mut self, value: u32) {
        self.outputs.push(value);
    }

    /// The content of a constant.
    pub fn content(&self, value: u32) -> &Tensor {
        &self.values[value as usize].ty
    }

    /// The values that come in.
    pub fn inputs(&self) -> &[u32] {
        &self.inputs
    }

    /// Shows the graph as a plugin sees it.
    pub fn show<R>(&self, look: impl FnOnce(&GraphView<'_>) -> R) -> R {
        let tensors: Vec<abi::Tensor> =
            self.values.iter().map(|value| raw_tensor(&value.ty, value.is_constant)).collect();
        let values: Vec<abi::ValueView> =
            tensors.iter().map(|tensor| abi::ValueView { tensor, ..abi::ValueView::empty() }).collect();
        let parts: Vec<Vec<Part>> =
            self.nodes.iter().map(|node| node.attrs.iter().map(part).collect()).collect();
        let attrs: Vec<Vec<abi::Attr>> =
            parts.iter().map(|parts| parts.iter().map(raw_attr).collect()).collect();
        let nodes: Vec<abi::NodeView> = self
            .nodes
            .iter()
            .zip(&attrs)
            .map(|(node, attrs)| abi::NodeView {
                since_version: node.since,
                op: Str::new(&node.op),
                name: Str::new(&node.op),
                attrs: List::new(attrs),
                inputs: List::new(&node.inputs),
                outputs: List::new(&node.outputs),
                ..abi::NodeView::empty()
            })
            .collect();
        let raw = abi::GraphView {
            nodes: List::new(&nodes),
            values: List::new(&values),
            inputs: List::new(&self.inputs),
            outputs: List::new(&self.outputs),
            ..abi::GraphView::empty()
        };
        // SAFETY: the struct and all that it points to live until the end of this function.
        let view = unsafe { GraphView::read(&raw) }.unwrap();
        look(&view)
    }

    /// Returns the number of claimed nodes, and the number of all nodes.
    pub fn claimed(&self) -> (usize, usize) {
        let claims = self.show(claim);
        (claims.iter().flatten().count(), claims.len())
    }

    /// The module, with constants of more than 1024 bytes as arguments.
    pub fn emitted(&self) -> devbay_plugin_api::sdk::Result<Emitted> {
        self.show(|view| emit(view, &EmitOptions { max_inline_bytes: 1024, numerics: 0, donors: &[] }))
    }

    /// Compiles it for a device and runs it with the inputs in order.
    pub fn run(&self, device: &Device, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        let emitted = self.emitted().map_err(|error| error.to_string())?;
        let code = emitted.text.as_bytes();
        let options = CompileOptions::minimal();
        let executable = Executable::compile(device.client(), code, emitted.inputs.len(), &options)
            .map_err(|error| format!("{error}\n{}", emitted.text))?;
        let argument = |&value: &u32| -> Buffer {
            let given = self.inputs.iter().position(|&input| input == value);
            let tensor = given.map_or(&self.values[value as usize].ty, |at| &inputs[at]);
            let (bytes, element) = (&tensor.bytes, tensor.element());
            device.upload(&HostArray { bytes, element, dims: &tensor.dims, byte_strides: None }).unwrap()
        };
        let buffers: Vec<Buffer> = emitted.inputs.iter().map(argument).collect();
        let arguments: Vec<Input<'_>> = buffers.iter().map(Input::from).collect();
        let execution = executable.execute(&arguments).map_err(|error| error.to_string())?;
        execution.done.wait().map_err(|error| error.to_string())?;
        let download = |(buffer, &output): (&Buffer, &u32)| {
            let mut bytes = vec![0; buffer.size_bytes().unwrap()];
            buffer.download(&mut bytes).unwrap();
            let dtype = self.values[output as usize].ty.dtype;
            let found = Tensor { dtype, dims: buffer.dims().unwrap().to_vec(), bytes };
            assert_eq!(buffer.element_type().unwrap(), found.element());
            found
        };
        Ok(execution.outputs.iter().zip(&self.outputs).map(download).collect())
    }
}

fn raw_tensor(tensor: &Tensor, is_constant: bool) -> abi::Tensor {
    abi::Tensor {
        rank: tensor.dims.len() as u32,
        dtype: tensor.dtype,
        flags: if is_constant { DEVBAY_TENSOR_CONSTANT } else { 0 },
        shape: tensor.dims.as_ptr(),
        constant: if is_constant { tensor.bytes.as_ptr().cast() } else { std::ptr::null() },
        constant_bytes: if is_constant { tensor.bytes.len() as u64 } else { 0 },
        ..abi::Tensor::empty()
    }
}

/// An attribute, with the tensor that the ABI's struct points to.
struct Part<'a> {
    name: &'a str,
    value: &'a Attr,
    tensor: Option<Box<abi::Tensor>>,
}

fn part((name, value): &(String, Attr)) -> Part<'_> {
    let tensor = match value {
        Attr::Tensor(tensor) => Some(Box::new(raw_tensor(tensor, true))),
        _ => None,
    };
    Part { name, value, tensor }
}

fn raw_attr(part: &Part<'_>) -> abi::Attr {
    let empty = abi::Attr { name: Str::new(part.name), ..abi::Attr::empty() };
    match part.value {
        Attr::Int(i) => abi::Attr { kind: abi::DEVBAY_ATTR_INT, i: *i, ..empty },
        Attr::Float(f) => abi::Attr { kind: abi::DEVBAY_ATTR_FLOAT, f: *f, ..empty },
        Attr::Text(text) => abi::Attr { kind: abi::DEVBAY_ATTR_STRING, s: Str::new(text), ..empty },
        Attr::Ints(list) => abi::Attr { kind: abi::DEVBAY_ATTR_INTS, list: List::new(list), ..empty },
        Attr::Floats(list) => abi::Attr { kind: abi::DEVBAY_ATTR_FLOATS, list: List::new(list), ..empty },
        Attr::Tensor(_) => {
            let tensor = part.tensor.as_deref().map_or(std::ptr::null(), std::ptr::from_ref);
            abi::Attr { kind: abi::DEVBAY_ATTR_TENSOR, tensor, ..empty }
        }
    }
}

/// Runs a graph on every library and compares what comes out: exactly where it is no floating-point number, to within
/// `1e-5` of the largest number else.
pub fn check(graph: &Graph, inputs: &[Tensor], expected: &[Tensor]) {
    let (claimed, n) = graph.claimed();
    assert_eq!(claimed, n, "nodes are not claimed: {:?}", graph.emitted());
    for device in devices() {
        let found = graph.run(&device, inputs).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!((found.dtype, &found.dims), (expected.dtype, &expected.dims));
            if found.dtype != F32 {
                assert_eq!(found, expected, "{:?}", device.client().library());
                continue;
            }
            let (found, expected) = (found.numbers(), expected.numbers());
            let largest = expected.iter().filter(|x| x.is_finite()).fold(0f32, |most, x| most.max(x.abs()));
            for (at, (a, b)) in found.iter().zip(&expected).enumerate() {
                let is_same = a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-5 * largest + 1e-7;
                assert!(is_same, "element {at}: {a} where {b} was expected, in {found:?} for {expected:?}");
            }
        }
    }
}

/// Runs one node, whose inputs are `given` and then `constants`, and compares its results.
pub fn check_node(
    op: &str,
    since: u32,
    given: &[Tensor],
    constants: &[Tensor],
    attrs: &[(&str, Attr)],
    expected: &[Tensor],
) {
    let mut graph = Graph::default();
    let mut operands: Vec<u32> = given.iter().map(|tensor| graph.input(tensor.dtype, &tensor.dims)).collect();
    operands.extend(constants.iter().map(|tensor| graph.constant(tensor.clone())));
    let results: Vec<u32> = expected.iter().map(|tensor| graph.result(tensor.dtype, &tensor.dims)).collect();
    graph.node(op, since, &operands, &results, attrs);
    for result in results {
        graph.output(result);
    }
    check(&graph, given, expected);
}
