//! Request to `prepare`, borrowed from the host for the call.

use super::error::{Error, Result};
use super::host::Host;
use crate::abi;
use crate::abi::*;
use crate::reserve;
use std::marker::PhantomData;

/// The most that an operand may have, empty extents counted as 1: what 47 bits address, more than which no process
/// has. Products of some of its extents then leave room to count with.
const OPERAND_BYTES_MAX: u64 = 1 << 47;

/// Returns the error for a list of the host's that cannot be read.
pub(super) fn broken(error: ListError) -> Error {
    match error {
        ListError::NoMemory(error) => error.into(),
        error => Error::invalid(error.to_string()),
    }
}

/// Type of one operand, and its content where it is known.
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

    /// Counts the elements, with the extents multiplied out.
    pub fn n_elements(&self) -> usize {
        let shape = self.shape();
        // Asked first: what stands before a 0 may overflow.
        if shape.iter().any(|&extent| extent <= 0) {
            return 0;
        }
        shape.iter().map(|&extent| extent as usize).product()
    }

    /// Returns the content, dense and little endian, if it is constant.
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

    /// Makes a dense tensor of the same extents with other elements and content, which a kernel that converts its
    /// operands shows to the kernel behind it.
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

    /// Reads the content as integers, for axes, shapes and pads of dtype int32 or int64; None for other dtypes, and if
    /// it is not constant.
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

    /// Reads the content as floating-point numbers, for scales and limits of dtype float32; None for other dtypes, and
    /// if it is not constant.
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

/// Content of an attribute. Numbers are f64, as the ABI has them.
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
        // SAFETY: the caller's promise.
        let raw = unsafe { read_growable_list::<Attr>(list) }.map_err(broken)?;
        let mut attrs = Vec::with_capacity(raw.len());
        for attr in raw {
            // SAFETY: the host's text, alive for `'a`.
            let name = unsafe { attr.name.get() }.map_err(broken)?;
            let value = match attr.kind {
                DEVBAY_ATTR_INT => AttrContent::Int(attr.i),
                DEVBAY_ATTR_FLOAT => AttrContent::Float(attr.f),
                // SAFETY: as for the name.
                DEVBAY_ATTR_STRING => AttrContent::String(unsafe { attr.s.get() }.map_err(broken)?),
                DEVBAY_ATTR_INTS => {
                    // SAFETY: the kind says what the list holds.
                    AttrContent::Ints(unsafe { read_list(&attr.list, "int64_t") }.map_err(broken)?)
                }
                DEVBAY_ATTR_FLOATS => {
                    // SAFETY: as above.
                    AttrContent::Floats(unsafe { read_list(&attr.list, "double") }.map_err(broken)?)
                }
                DEVBAY_ATTR_STRINGS => {
                    // SAFETY: as above.
                    let texts: Vec<Str> = unsafe { read_list(&attr.list, "Str") }.map_err(broken)?;
                    // SAFETY: the host's texts, alive for `'a`.
                    let texts: Result<_> = texts.iter().map(|t| unsafe { t.get() }.map_err(broken)).collect();
                    AttrContent::Strings(texts?)
                }
                DEVBAY_ATTR_TENSOR => {
                    // SAFETY: the host's struct, alive for `'a`.
                    let raw = unsafe { read_struct(attr.tensor) }.map_err(broken)?;
                    // SAFETY: as above.
                    AttrContent::Tensor(unsafe { TensorView::new(raw) }?)
                }
                DEVBAY_ATTR_GRAPH => {
                    // SAFETY: the host's struct, alive for `'a`.
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
    /// Invalid if it has another kind.
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
    /// Invalid if it has another kind.
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
    /// Invalid if it has another kind.
    pub fn string(&self, name: &str, default: &'a str) -> Result<&'a str> {
        match self.get(name) {
            None => Ok(default),
            Some(AttrContent::String(value)) => Ok(value),
            Some(_) => Err(Error::invalid(format!("attribute {name} is no string"))),
        }
    }

    /// Returns integers, if they are given.
    ///
    /// # Errors
    /// Invalid if it has another kind; out of memory.
    pub fn ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        match self.get(name) {
            None => Ok(None),
            Some(AttrContent::Ints(values)) => Ok(Some(reserve::copied(values, "an attribute's integers")?)),
            Some(_) => Err(Error::invalid(format!("attribute {name} is no list of integers"))),
        }
    }

    /// Returns numbers, if they are given.
    ///
    /// # Errors
    /// Invalid if it has another kind; out of memory.
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
    /// Nodes, each after those that it depends on.
    pub nodes: Vec<NodeView<'a>>,
    /// Values; operands are positions here.
    pub values: Vec<ValueView<'a>>,
    /// The values that come in.
    pub inputs: Vec<u32>,
    /// The values that go out.
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
    /// Values that it reads; None where an optional one is absent.
    pub inputs: Vec<Option<u32>>,
    /// Values that it makes.
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
    /// Reads a graph as the host shows it, and checks it.
    ///
    /// # Errors
    /// Invalid for NULL and for lists that are broken; unsupported for attributes of unknown kinds.
    ///
    /// # Safety
    /// `raw` is NULL or a host's struct that lives for `'a`.
    pub unsafe fn read(raw: *const abi::GraphView) -> Result<Self> {
        // SAFETY: the caller's promise, as for every read below.
        let raw = unsafe { read_struct(raw) }.map_err(broken)?;
        let operands = |list: &List| -> Result<Vec<Option<u32>>> {
            // SAFETY: the field's rule says what the list holds.
            let values: Vec<u32> = unsafe { read_list(list, "uint32_t") }.map_err(broken)?;
            Ok(values.into_iter().map(|v| (v != u32::MAX).then_some(v)).collect())
        };
        let mut values = Vec::new();
        // SAFETY: as above.
        for value in unsafe { read_growable_list::<abi::ValueView>(&raw.values) }.map_err(broken)? {
            // SAFETY: as above.
            let tensor = unsafe { read_struct(value.tensor) }.map_err(broken)?;
            values.push(ValueView {
                // SAFETY: as above.
                name: unsafe { value.name.get() }.map_err(broken)?,
                // SAFETY: as above.
                tensor: unsafe { TensorView::new(tensor) }?,
            });
        }
        let mut nodes = Vec::new();
        // SAFETY: as above.
        for node in unsafe { read_growable_list::<abi::NodeView>(&raw.nodes) }.map_err(broken)? {
            nodes.push(NodeView {
                // SAFETY: as above.
                domain: unsafe { node.domain.get() }.map_err(broken)?,
                // SAFETY: as above.
                op: unsafe { node.op.get() }.map_err(broken)?,
                since_version: node.since_version,
                // SAFETY: as above.
                name: unsafe { node.name.get() }.map_err(broken)?,
                // SAFETY: as above.
                attrs: unsafe { Attrs::read(&node.attrs) }?,
                inputs: operands(&node.inputs)?,
                outputs: operands(&node.outputs)?,
            });
        }
        // SAFETY: as above.
        let inputs = unsafe { read_list(&raw.inputs, "uint32_t") }.map_err(broken)?;
        // SAFETY: as above.
        let outputs = unsafe { read_list(&raw.outputs, "uint32_t") }.map_err(broken)?;
        Ok(Self { nodes, values, inputs, outputs })
    }
}

/// Request to prepare a kernel.
pub struct PrepareRequest<'a, D> {
    /// Device on which it will run.
    pub device: &'a D,
    /// The domain of the kernel's op; empty for ONNX's own.
    pub domain: &'static str,
    /// The kernel's op: one function may serve several.
    pub op: &'static str,
    /// The host's services.
    pub host: Host,
    /// Attributes of the node.
    pub attrs: Attrs<'a>,
    /// Types of the inputs, absent ones included.
    pub inputs: Vec<TensorView<'a>>,
    /// Types of the outputs, absent ones included.
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
    /// `desc` was read from a host's struct whose pointers live for `'a`, and `desc.device` is a `D`.
    pub(crate) unsafe fn new(
        desc: &PrepareDesc,
        (domain, op): (&'static str, &'static str),
        host: Host,
        abi_minor: u32,
    ) -> Result<Self> {
        let tensors = |list: &List| -> Result<Vec<TensorView<'a>>> {
            // SAFETY: the caller's promise.
            let raw = unsafe { read_growable_list::<Tensor>(list) }.map_err(broken)?;
            // SAFETY: the caller's promise.
            raw.into_iter().map(|raw| unsafe { TensorView::new(raw) }).collect()
        };
        Ok(Self {
            // SAFETY: the caller's promise; NULL is refused.
            device: unsafe { desc.device.cast::<D>().as_ref() }
                .ok_or_else(|| Error::invalid("prepare without a device"))?,
            domain,
            op,
            host,
            // SAFETY: the caller's promise.
            attrs: unsafe { Attrs::read(&desc.attrs) }?,
            inputs: tensors(&desc.inputs)?,
            outputs: tensors(&desc.outputs)?,
            numerics: desc.numerics,
            // SAFETY: the caller's promise.
            label: unsafe { desc.label.get() }.map_err(broken)?,
            abi_minor,
        })
    }

    /// Makes the same request of something else that the device stands for.
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

    /// Returns the input at `i`, None if it is absent or beyond those given.
    pub fn input(&self, i: usize) -> Option<&TensorView<'a>> {
        self.inputs.get(i).filter(|tensor| !tensor.is_absent())
    }

    /// Returns the input at `i`.
    ///
    /// # Errors
    /// Invalid if it is absent.
    pub fn required_input(&self, i: usize) -> Result<&TensorView<'a>> {
        self.input(i).ok_or_else(|| Error::invalid(format!("input {i} is missing")))
    }

    /// Returns the output at `i`, None if it is absent or beyond those given.
    pub fn output(&self, i: usize) -> Option<&TensorView<'a>> {
        self.outputs.get(i).filter(|tensor| !tensor.is_absent())
    }

    /// Returns the output at `i`.
    ///
    /// # Errors
    /// Invalid if it is absent.
    pub fn required_output(&self, i: usize) -> Result<&TensorView<'a>> {
        self.output(i).ok_or_else(|| Error::invalid(format!("output {i} is missing")))
    }
}
