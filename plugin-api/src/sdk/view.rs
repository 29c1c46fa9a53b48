//! Request to `prepare`, borrowed from the host for the call.

use super::error::{Error, Result};
use super::host::Host;
use crate::abi;
use crate::abi::*;
use crate::reserve;
use std::marker::PhantomData;

/// Largest size of an operand, counting empty extents as 1: the memory that 47 bits address, and more than
/// any process has. Products of some of its extents then cannot overflow.
const OPERAND_BYTES_MAX: u64 = 1 << 47;

/// Returns the error for an unreadable list of the host.
pub(super) fn broken(error: ListError) -> Error {
    match error {
        ListError::NoMemory(error) => error.into(),
        error => Error::invalid(error.to_string()),
    }
}

/// Type of one operand, and its content if known.
#[derive(Clone, Copy)]
pub struct TensorView<'a> {
    raw: abi::Tensor,
    host: PhantomData<&'a ()>,
}

impl<'a> TensorView<'a> {
    /// # Safety
    /// `raw` was read from a host's struct whose pointers live for `'a`.
    pub(crate) unsafe fn new(raw: abi::Tensor) -> Result<Self> {
        if raw.rank > 64 {
            return Err(Error::unsupported(format!("a tensor of rank {}", raw.rank)));
        }
        if raw.rank > 0 && raw.shape.is_null() && raw.flags & DEVBAY_TENSOR_ABSENT == 0 {
            return Err(Error::invalid("a tensor without a shape"));
        }
        let tensor = Self { raw, host: PhantomData };
        if !tensor.is_absent() {
            // Sizes below, and of some of the extents, are multiplied out without asking again.
            let mut extents = tensor.shape().iter().map(|&extent| extent.max(1) as u64);
            let bits = extents.try_fold(u64::from(raw.dtype.bits), u64::checked_mul);
            if bits.is_none_or(|bits| bits / 8 > OPERAND_BYTES_MAX) {
                return Err(Error::unsupported(format!(
                    "a tensor of {:?} elements is more than can be addressed",
                    tensor.shape()
                )));
            }
        }
        Ok(tensor)
    }

    /// Returns whether an optional operand is absent.
    pub fn is_absent(&self) -> bool {
        self.raw.flags & DEVBAY_TENSOR_ABSENT != 0
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.raw.dtype
    }

    /// Returns the extents in elements, outermost first; empty for a scalar or an absent operand.
    pub fn shape(&self) -> &'a [i64] {
        if self.raw.shape.is_null() {
            return &[];
        }
        // SAFETY: the host's array of `rank` extents, alive for `'a`.
        unsafe { core::slice::from_raw_parts(self.raw.shape, self.raw.rank as usize) }
    }

    /// Returns the strides in elements; None for dense row-major order.
    pub fn strides(&self) -> Option<&'a [i64]> {
        // SAFETY: NULL, or the host's array of `rank` strides, alive for `'a`.
        (!self.raw.strides.is_null())
            .then(|| unsafe { core::slice::from_raw_parts(self.raw.strides, self.raw.rank as usize) })
    }

    /// Counts the elements, as the product of the extents.
    pub fn n_elements(&self) -> usize {
        let shape = self.shape();
        // Asked first: the product of the extents before a 0 may overflow.
        if shape.iter().any(|&extent| extent <= 0) {
            return 0;
        }
        shape.iter().map(|&extent| extent as usize).product()
    }

    /// Returns the content, dense and little-endian, if it is constant.
    pub fn constant(&self) -> Option<&'a [u8]> {
        if self.raw.flags & DEVBAY_TENSOR_CONSTANT == 0 {
            return None;
        }
        if self.raw.constant.is_null() {
            return Some(&[]);
        }
        // SAFETY: the host's bytes, alive and unchanged for `'a`.
        Some(unsafe {
            core::slice::from_raw_parts(self.raw.constant.cast(), self.raw.constant_bytes as usize)
        })
    }

    /// Creates a dense tensor of the same extents with other elements and content, for a kernel that converts
    /// its operands and calls another kernel.
    pub fn retyped<'b>(&self, dtype: DType, constant: Option<&'b [u8]>) -> TensorView<'b>
    where
        'a: 'b,
    {
        let mut raw = self.raw;
        raw.dtype = dtype;
        raw.strides = core::ptr::null();
        raw.flags &= !DEVBAY_TENSOR_CONSTANT;
        raw.constant = core::ptr::null();
        raw.constant_bytes = 0;
        if let Some(bytes) = constant {
            raw.flags |= DEVBAY_TENSOR_CONSTANT;
            raw.constant = bytes.as_ptr().cast();
            raw.constant_bytes = bytes.len() as u64;
        }
        TensorView { raw, host: PhantomData }
    }

    /// Reads the content as integers, for axes, shapes and pads of dtype int32 or int64; None for other
    /// dtypes, and for a tensor that is not constant.
    ///
    /// # Errors
    /// Out of memory.
    pub fn constant_ints(&self) -> Result<Option<Vec<i64>>> {
        const WHAT: &str = "a constant's integers";
        let Some(bytes) = self.constant() else {
            return Ok(None);
        };
        let found = match (self.dtype().code, self.dtype().bits) {
            (DEVBAY_DTYPE_INT, 64) => {
                reserve::collected(bytes.as_chunks().0.iter().copied().map(i64::from_le_bytes), WHAT)?
            }
            (DEVBAY_DTYPE_INT, 32) => {
                let ints = bytes.as_chunks().0.iter().copied().map(i32::from_le_bytes);
                reserve::collected(ints.map(i64::from), WHAT)?
            }
            _ => return Ok(None),
        };
        Ok(Some(found))
    }

    /// Reads the content as floating-point numbers, for scales and limits of dtype float32; None for other
    /// dtypes, and for a tensor that is not constant.
    ///
    /// # Errors
    /// Out of memory.
    pub fn constant_f32s(&self) -> Result<Option<Vec<f32>>> {
        let Some(bytes) = self.constant() else {
            return Ok(None);
        };
        if (self.dtype().code, self.dtype().bits) != (DEVBAY_DTYPE_FLOAT, 32) {
            return Ok(None);
        }
        let numbers = bytes.as_chunks().0.iter().copied().map(f32::from_le_bytes);
        Ok(Some(reserve::collected(numbers, "a constant's numbers")?))
    }
}

/// Content of an attribute. Numbers are f64, as in the ABI.
#[derive(Clone)]
pub enum AttrContent<'a> {
    /// One integer.
    Int(i64),
    /// One number.
    Float(f64),
    /// Text.
    String(&'a str),
    /// Integers.
    Ints(Vec<i64>),
    /// Numbers.
    Floats(Vec<f64>),
    /// Texts.
    Strings(Vec<&'a str>),
    /// A tensor.
    Tensor(TensorView<'a>),
    /// A region: the body of a control-flow op or of a fused pattern.
    Graph(GraphView<'a>),
}

/// One attribute.
#[derive(Clone)]
pub struct AttrView<'a> {
    /// Its name in the op's specification.
    pub name: &'a str,
    /// Its value.
    pub value: AttrContent<'a>,
}

/// The attributes of a node.
#[derive(Clone, Default)]
pub struct Attrs<'a> {
    list: Vec<AttrView<'a>>,
}

impl<'a> Attrs<'a> {
    /// # Safety
    /// `list` is a host's list of `Attr` that lives for `'a`.
    unsafe fn read(list: &List) -> Result<Self> {
        // SAFETY: `list` is a host's list of `Attr` (# Safety).
        let raw = unsafe { read_growable_list::<Attr>(list) }.map_err(broken)?;
        let mut attrs = Vec::with_capacity(raw.len());
        for attr in raw {
            // SAFETY: the attribute was read from the host's list, whose texts live for `'a` (# Safety).
            let name = unsafe { attr.name.get() }.map_err(broken)?;
            let value = match attr.kind {
                DEVBAY_ATTR_INT => AttrContent::Int(attr.i),
                DEVBAY_ATTR_FLOAT => AttrContent::Float(attr.f),
                // SAFETY: another text of the attribute, which lives for `'a` (# Safety).
                DEVBAY_ATTR_STRING => AttrContent::String(unsafe { attr.s.get() }.map_err(broken)?),
                DEVBAY_ATTR_INTS => {
                    // SAFETY: the kind says that the list holds `int64_t` (B5).
                    AttrContent::Ints(unsafe { read_list(&attr.list, "int64_t") }.map_err(broken)?)
                }
                DEVBAY_ATTR_FLOATS => {
                    // SAFETY: the kind says that the list holds `double` (B5).
                    AttrContent::Floats(unsafe { read_list(&attr.list, "double") }.map_err(broken)?)
                }
                DEVBAY_ATTR_STRINGS => {
                    // SAFETY: the kind says that the list holds texts (B5).
                    let texts: Vec<Str> = unsafe { read_list(&attr.list, "Str") }.map_err(broken)?;
                    // SAFETY: the texts of the attribute's list live for `'a` (# Safety).
                    let texts: Result<_> = texts.iter().map(|t| unsafe { t.get() }.map_err(broken)).collect();
                    AttrContent::Strings(texts?)
                }
                DEVBAY_ATTR_TENSOR => {
                    // SAFETY: `attr.tensor` is NULL or the host's struct of the size that it says (B4), and lives for
                    // `'a` (# Safety).
                    let raw = unsafe { read_struct(attr.tensor) }.map_err(broken)?;
                    // SAFETY: `raw` was read from that struct, whose arrays live for `'a`.
                    AttrContent::Tensor(unsafe { TensorView::new(raw) }?)
                }
                DEVBAY_ATTR_GRAPH => {
                    // SAFETY: `attr.graph` is NULL or the host's struct, which lives for `'a` (# Safety).
                    AttrContent::Graph(unsafe { GraphView::read(attr.graph) }?)
                }
                kind => {
                    return Err(Error::unsupported(format!("attribute {name} of unknown kind {kind}")));
                }
            };
            attrs.push(AttrView { name, value });
        }
        Ok(Self { list: attrs })
    }

    /// Returns the attribute called `name`.
    pub fn get(&self, name: &str) -> Option<&AttrContent<'a>> {
        self.list.iter().find(|attr| attr.name == name).map(|attr| &attr.value)
    }

    /// Returns all of them.
    pub fn iter(&self) -> impl Iterator<Item = &AttrView<'a>> {
        self.list.iter()
    }

    /// Returns an integer, or `default`.
    ///
    /// # Errors
    /// Invalid if the attribute has another kind.
    pub fn int(&self, name: &str, default: i64) -> Result<i64> {
        match self.get(name) {
            None => Ok(default),
            Some(AttrContent::Int(value)) => Ok(*value),
            Some(_) => Err(Error::invalid(format!("attribute {name} is no integer"))),
        }
    }

    /// Returns a number, or `default`.
    ///
    /// # Errors
    /// Invalid if the attribute has another kind.
    pub fn float(&self, name: &str, default: f32) -> Result<f32> {
        match self.get(name) {
            None => Ok(default),
            Some(AttrContent::Float(value)) => Ok(*value as f32),
            Some(_) => Err(Error::invalid(format!("attribute {name} is no number"))),
        }
    }

    /// Returns a text, or `default`.
    ///
    /// # Errors
    /// Invalid if the attribute has another kind.
    pub fn string(&self, name: &str, default: &'a str) -> Result<&'a str> {
        match self.get(name) {
            None => Ok(default),
            Some(AttrContent::String(value)) => Ok(value),
            Some(_) => Err(Error::invalid(format!("attribute {name} is no string"))),
        }
    }

    /// Returns integers, if the attribute is given.
    ///
    /// # Errors
    /// Invalid if the attribute has another kind; out of memory.
    pub fn ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        match self.get(name) {
            None => Ok(None),
            Some(AttrContent::Ints(values)) => Ok(Some(reserve::copied(values, "an attribute's integers")?)),
            Some(_) => Err(Error::invalid(format!("attribute {name} is no list of integers"))),
        }
    }

    /// Returns numbers, if the attribute is given.
    ///
    /// # Errors
    /// Invalid if the attribute has another kind; out of memory.
    pub fn floats(&self, name: &str) -> Result<Option<Vec<f32>>> {
        match self.get(name) {
            None => Ok(None),
            Some(AttrContent::Floats(values)) => {
                Ok(Some(reserve::collected(values.iter().map(|&v| v as f32), "an attribute's numbers")?))
            }
            Some(_) => Err(Error::invalid(format!("attribute {name} is no list of numbers"))),
        }
    }
}

/// A region or subgraph, in execution order.
#[derive(Clone)]
pub struct GraphView<'a> {
    /// Nodes; each follows the nodes that it depends on.
    pub nodes: Vec<NodeView<'a>>,
    /// Values; operands are positions here.
    pub values: Vec<ValueView<'a>>,
    /// The graph's input values.
    pub inputs: Vec<u32>,
    /// The graph's output values.
    pub outputs: Vec<u32>,
}

/// One node of a [`GraphView`].
#[derive(Clone)]
pub struct NodeView<'a> {
    /// Domain of the op; empty for ONNX's own.
    pub domain: &'a str,
    /// Name of the op.
    pub op: &'a str,
    /// Version of the op.
    pub since_version: u32,
    /// Name in the model.
    pub name: &'a str,
    /// Attributes.
    pub attrs: Attrs<'a>,
    /// Values that it reads; None for an absent optional one.
    pub inputs: Vec<Option<u32>>,
    /// Values that it produces.
    pub outputs: Vec<Option<u32>>,
}

/// One value of a [`GraphView`].
#[derive(Clone)]
pub struct ValueView<'a> {
    /// Name in the model.
    pub name: &'a str,
    /// Its type, and its content if it is constant.
    pub tensor: TensorView<'a>,
}

impl<'a> GraphView<'a> {
    /// Reads and checks a graph of the host.
    ///
    /// # Errors
    /// Invalid for NULL and for broken lists; unsupported for attributes of unknown kinds.
    ///
    /// # Safety
    /// 1. `raw` is NULL or a host's struct of the size that it says (B4).
    /// 2. The struct and all that it names live for `'a`.
    pub unsafe fn read(raw: *const abi::GraphView) -> Result<Self> {
        // SAFETY: `raw` is NULL or a host's struct (# Safety, 1).
        let raw = unsafe { read_struct(raw) }.map_err(broken)?;
        let operands = |list: &List| -> Result<Vec<Option<u32>>> {
            // SAFETY: a node's lists of operands hold `uint32_t` (B5), and are alive (# Safety, 2).
            let values: Vec<u32> = unsafe { read_list(list, "uint32_t") }.map_err(broken)?;
            Ok(values.into_iter().map(|v| (v != u32::MAX).then_some(v)).collect())
        };
        let mut values = Vec::new();
        // SAFETY: the graph's list holds values (B5), and is alive (# Safety, 2).
        for value in unsafe { read_growable_list::<abi::ValueView>(&raw.values) }.map_err(broken)? {
            // SAFETY: `value.tensor` is NULL or the host's struct (B4), alive for `'a` (# Safety, 2).
            let tensor = unsafe { read_struct(value.tensor) }.map_err(broken)?;
            values.push(ValueView {
                // SAFETY: the value's text lives for `'a` (# Safety, 2).
                name: unsafe { value.name.get() }.map_err(broken)?,
                // SAFETY: `tensor` was read from the host's struct, whose arrays live for `'a` (# Safety, 2).
                tensor: unsafe { TensorView::new(tensor) }?,
            });
        }
        let mut nodes = Vec::new();
        // SAFETY: the graph's list holds nodes (B5), and is alive (# Safety, 2).
        for node in unsafe { read_growable_list::<abi::NodeView>(&raw.nodes) }.map_err(broken)? {
            nodes.push(NodeView {
                // SAFETY: the node's text lives for `'a` (# Safety, 2).
                domain: unsafe { node.domain.get() }.map_err(broken)?,
                // SAFETY: the node's text lives for `'a` (# Safety, 2).
                op: unsafe { node.op.get() }.map_err(broken)?,
                since_version: node.since_version,
                // SAFETY: the node's text lives for `'a` (# Safety, 2).
                name: unsafe { node.name.get() }.map_err(broken)?,
                // SAFETY: the node's list of attributes lives for `'a` (# Safety, 2).
                attrs: unsafe { Attrs::read(&node.attrs) }?,
                inputs: operands(&node.inputs)?,
                outputs: operands(&node.outputs)?,
            });
        }
        // SAFETY: the graph's list holds `uint32_t` (B5), and is alive (# Safety, 2).
        let inputs = unsafe { read_list(&raw.inputs, "uint32_t") }.map_err(broken)?;
        // SAFETY: the graph's list holds `uint32_t` (B5), and is alive (# Safety, 2).
        let outputs = unsafe { read_list(&raw.outputs, "uint32_t") }.map_err(broken)?;
        Ok(Self { nodes, values, inputs, outputs })
    }
}

/// Request to prepare a kernel.
pub struct PrepareRequest<'a, D> {
    /// Device that the kernel will run on.
    pub device: &'a D,
    /// The domain of the kernel's op; empty for ONNX's own.
    pub domain: &'static str,
    /// The kernel's op: one prepare function may serve several ops.
    pub op: &'static str,
    /// The host's services.
    pub host: Host,
    /// Attributes of the node.
    pub attrs: Attrs<'a>,
    /// Types of the inputs, including absent ones.
    pub inputs: Vec<TensorView<'a>>,
    /// Types of the outputs, including absent ones.
    pub outputs: Vec<TensorView<'a>>,
    /// Permitted numerics, a sum of `DEVBAY_NUMERICS_*`.
    pub numerics: u64,
    /// Name of the node.
    pub label: &'a str,
    /// The minor that host and plugin agreed on (B3).
    pub abi_minor: u32,
}

impl<'a, D> PrepareRequest<'a, D> {
    /// # Safety
    /// 1. `desc` was read from a host's struct, and all that it names lives for `'a`.
    /// 2. `desc.device` is NULL or a `D`, alive for `'a`.
    pub(crate) unsafe fn new(
        desc: &PrepareDesc,
        (domain, op): (&'static str, &'static str),
        host: Host,
        abi_minor: u32,
    ) -> Result<Self> {
        let tensors = |list: &List| -> Result<Vec<TensorView<'a>>> {
            // SAFETY: the struct's lists of operands hold tensors (B5), and are alive (# Safety, 1).
            let raw = unsafe { read_growable_list::<Tensor>(list) }.map_err(broken)?;
            // SAFETY: `raw` is a tensor of the host's, whose arrays live for `'a` (# Safety, 1).
            raw.into_iter().map(|raw| unsafe { TensorView::new(raw) }).collect()
        };
        Ok(Self {
            // SAFETY: `desc.device` is NULL or a `D`, alive for `'a` (# Safety, 2); NULL is refused.
            device: unsafe { desc.device.cast::<D>().as_ref() }
                .ok_or_else(|| Error::invalid("prepare without a device"))?,
            domain,
            op,
            host,
            // SAFETY: the list holds attributes (B5), and lives for `'a` (# Safety, 1).
            attrs: unsafe { Attrs::read(&desc.attrs) }?,
            inputs: tensors(&desc.inputs)?,
            outputs: tensors(&desc.outputs)?,
            numerics: desc.numerics,
            // SAFETY: the text lives for `'a` (# Safety, 1).
            label: unsafe { desc.label.get() }.map_err(broken)?,
            abi_minor,
        })
    }

    /// Creates the same request for another type that the device stands for.
    pub(crate) fn on<T>(&self, device: &'a T) -> PrepareRequest<'a, T> {
        let Self { device: _, domain, op, host, attrs, inputs, outputs, numerics, label, abi_minor } = self;
        PrepareRequest {
            device,
            domain,
            op,
            host: *host,
            attrs: attrs.clone(),
            inputs: inputs.clone(),
            outputs: outputs.clone(),
            numerics: *numerics,
            label,
            abi_minor: *abi_minor,
        }
    }

    /// Returns input `i`; None if it is absent or beyond the given inputs.
    pub fn input(&self, i: usize) -> Option<&TensorView<'a>> {
        self.inputs.get(i).filter(|tensor| !tensor.is_absent())
    }

    /// Returns input `i`.
    ///
    /// # Errors
    /// Invalid if it is absent.
    pub fn required_input(&self, i: usize) -> Result<&TensorView<'a>> {
        self.input(i).ok_or_else(|| Error::invalid(format!("input {i} is missing")))
    }

    /// Returns output `i`; None if it is absent or beyond the given outputs.
    pub fn output(&self, i: usize) -> Option<&TensorView<'a>> {
        self.outputs.get(i).filter(|tensor| !tensor.is_absent())
    }

    /// Returns output `i`.
    ///
    /// # Errors
    /// Invalid if it is absent.
    pub fn required_output(&self, i: usize) -> Result<&TensorView<'a>> {
        self.output(i).ok_or_else(|| Error::invalid(format!("output {i} is missing")))
    }
}
