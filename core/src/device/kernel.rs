//! Kernels: what one is asked to do, and what the plugin made of it.

use super::Device;
use crate::error::Result;
use crate::kernel::Numerics;
use crate::tensor::{AlignedBytes, Dim, Tensor, TensorType};
use devbay_plugin_api::abi::{self, *};
use std::ffi::c_void;
use std::sync::Arc;

/// What a kernel is asked to do.
pub struct PrepareRequest<'a> {
    /// Position in the plugin's list of kernels.
    pub kernel_idx: u32,
    /// Attributes.
    pub attrs: &'a [(Arc<str>, crate::program::AttrValue)],
    /// Operands: type, and content if it is constant; None where an optional one is absent.
    pub inputs: &'a [Option<(TensorType, Option<Tensor>)>],
    /// Types of the results.
    pub outputs: &'a [Option<TensorType>],
    /// What matrix products may round their inputs to.
    pub numerics: Numerics,
    /// Name of the node.
    pub label: &'a str,
}

impl PrepareRequest<'_> {
    /// Builds the ABI's form of the request and passes it on; it is gone afterwards.
    pub(super) fn with_abi<R>(&self, device: *mut abi::Device, body: impl FnOnce(&PrepareDesc) -> R) -> R {
        use crate::program::AttrValue;
        let shapes: Vec<Vec<i64>> = self
            .inputs
            .iter()
            .map(|input| input.as_ref().map(|(ty, _)| ty))
            .chain(self.outputs.iter().map(Option::as_ref))
            .map(|ty| ty.map_or_else(Vec::new, abi_shape))
            .collect();
        let mut tensors: Vec<abi::Tensor> = Vec::with_capacity(shapes.len());
        let operands =
            self.inputs.iter().map(|input| input.as_ref().map(|(ty, constant)| (ty, constant.as_ref())));
        let results = self.outputs.iter().map(|output| output.as_ref().map(|ty| (ty, None)));
        for (operand, shape) in operands.chain(results).zip(&shapes) {
            tensors.push(match operand {
                Some((ty, constant)) => abi_tensor(ty, shape, constant),
                None => abi::Tensor { flags: DEVBAY_TENSOR_ABSENT, ..abi::Tensor::empty() },
            });
        }
        let (inputs, outputs) = tensors.split_at(self.inputs.len());

        // What attributes point to, made first so that nothing moves afterwards.
        let floats: Vec<Vec<f64>> = self
            .attrs
            .iter()
            .map(|(_, value)| match value {
                AttrValue::Floats(values) => values.iter().map(|&v| f64::from(v)).collect(),
                _ => Vec::new(),
            })
            .collect();
        let strings: Vec<Vec<Str>> = self
            .attrs
            .iter()
            .map(|(_, value)| match value {
                AttrValue::Strings(values) => values.iter().map(|v| Str::new(v)).collect(),
                _ => Vec::new(),
            })
            .collect();
        let attr_types: Vec<Option<(TensorType, Vec<i64>)>> = self
            .attrs
            .iter()
            .map(|(_, value)| match value {
                AttrValue::Tensor(tensor) => {
                    let ty = tensor.tensor_type();
                    let shape = abi_shape(&ty);
                    Some((ty, shape))
                }
                _ => None,
            })
            .collect();
        let attr_tensors: Vec<abi::Tensor> = self
            .attrs
            .iter()
            .zip(&attr_types)
            .map(|((_, value), ty)| match (value, ty) {
                (AttrValue::Tensor(tensor), Some((ty, shape))) => abi_tensor(ty, shape, Some(tensor)),
                _ => abi::Tensor::empty(),
            })
            .collect();
        let attrs: Vec<Attr> = self
            .attrs
            .iter()
            .enumerate()
            .map(|(i, (name, value))| {
                let mut attr = Attr { name: Str::new(name), ..Attr::empty() };
                match value {
                    AttrValue::Int(value) => (attr.kind, attr.i) = (DEVBAY_ATTR_INT, *value),
                    AttrValue::Float(value) => (attr.kind, attr.f) = (DEVBAY_ATTR_FLOAT, f64::from(*value)),
                    AttrValue::String(value) => (attr.kind, attr.s) = (DEVBAY_ATTR_STRING, Str::new(value)),
                    AttrValue::Ints(values) => (attr.kind, attr.list) = (DEVBAY_ATTR_INTS, List::new(values)),
                    AttrValue::Floats(_) => {
                        (attr.kind, attr.list) = (DEVBAY_ATTR_FLOATS, List::new(&floats[i]))
                    }
                    AttrValue::Strings(_) => {
                        (attr.kind, attr.list) = (DEVBAY_ATTR_STRINGS, List::new(&strings[i]));
                    }
                    AttrValue::Tensor(_) => {
                        (attr.kind, attr.tensor) = (DEVBAY_ATTR_TENSOR, &raw const attr_tensors[i]);
                    }
                }
                attr
            })
            .collect();
        body(&PrepareDesc {
            kernel_idx: self.kernel_idx,
            device,
            attrs: List::new(&attrs),
            inputs: List::new(inputs),
            outputs: List::new(outputs),
            numerics: self.numerics.code(),
            label: Str::new(self.label),
            ..PrepareDesc::empty()
        })
    }
}

fn abi_shape(ty: &TensorType) -> Vec<i64> {
    let dims = ty.shape.iter().flatten();
    dims.map(|dim| dim.known().map_or(-1, |extent| extent as i64)).collect()
}

fn abi_tensor(ty: &TensorType, shape: &[i64], constant: Option<&Tensor>) -> abi::Tensor {
    debug_assert!(ty.shape.iter().flatten().all(|dim| matches!(dim, Dim::Known(_))));
    let mut raw = abi::Tensor {
        rank: shape.len() as u32,
        dtype: ty.dtype,
        shape: shape.as_ptr(),
        ..abi::Tensor::empty()
    };
    if let Some(tensor) = constant {
        raw.flags = DEVBAY_TENSOR_CONSTANT;
        raw.constant = tensor.bytes().as_ptr().cast();
        raw.constant_bytes = tensor.bytes().len() as u64;
    }
    raw
}

/// A constant input that a kernel wants in a layout of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pack {
    /// Which input.
    pub input_idx: usize,
    /// Names the layout in full.
    pub layout_id: u64,
    /// Bytes of the packed constant.
    pub size: usize,
    /// Its alignment.
    pub align: usize,
}

/// A prepared kernel; given back when dropped.
pub struct PreparedKernel {
    pub(super) device: Arc<Device>,
    pub(super) raw: abi::Prepared,
    pub(super) launch: LaunchFn,
    pub(super) packs: Vec<Pack>,
}

// SAFETY: what `prepare` returns is immutable and launched by many threads at once (B21).
unsafe impl Send for PreparedKernel {}
// SAFETY: as for Send.
unsafe impl Sync for PreparedKernel {}

impl PreparedKernel {
    /// The function to launch it with.
    pub fn launch_fn(&self) -> LaunchFn {
        self.launch
    }

    /// The first argument of the function.
    pub fn state(&self) -> *const c_void {
        self.raw.state
    }

    /// Constant inputs that come packed.
    pub fn packs(&self) -> &[Pack] {
        &self.packs
    }

    /// Packs a constant as this kernel asked for it.
    ///
    /// # Errors
    /// Out of memory, or what the plugin says.
    pub fn pack(&self, pack: &Pack, tensor: &Tensor) -> Result<AlignedBytes> {
        let mut packed = AlignedBytes::zeroed_aligned(pack.size, pack.align)?;
        let ty = tensor.tensor_type();
        let shape = abi_shape(&ty);
        let src = abi_tensor(&ty, &shape, Some(tensor));
        let plugin = &self.device.plugin;
        self.device.call("pack", |table, error| {
            let pack_fn = table.pack?;
            let dst = packed.as_mut_slice().as_mut_ptr().cast();
            // SAFETY: the plugin's function with what its `prepare` made; `dst` is zeroed memory of the size and
            // alignment that it asked for.
            Some(unsafe {
                pack_fn(plugin.instance.as_ptr(), &self.raw, pack.input_idx as u32, &src, dst, error)
            })
        })?;
        Ok(packed)
    }

    /// Scratch memory that each launch needs: bytes and alignment.
    pub fn workspace(&self) -> (usize, usize) {
        (self.raw.workspace_bytes as usize, (self.raw.workspace_align as usize).max(1))
    }
}

impl Drop for PreparedKernel {
    fn drop(&mut self) {
        let plugin = &self.device.plugin;
        plugin.release(|table| {
            if let Some(unprepare) = table.unprepare {
                // SAFETY: the plugin's function with what its `prepare` made, once; no launch is in flight,
                // because who launched has waited for its point (B9).
                unsafe { unprepare(plugin.instance.as_ptr(), &mut self.raw) };
            }
        });
    }
}
