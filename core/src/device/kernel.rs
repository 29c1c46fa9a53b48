//! Kernels: requests, and the kernels that the plugin prepares for them.

use super::Device;
use super::views::{AttrViews, abi_shape, abi_tensor};
use crate::error::{Phase, Result};
use crate::kernel::Numerics;
use crate::tensor::{AlignedBytes, Tensor, TensorType};
use devbay_plugin_api::abi::{self, *};
use std::ffi::c_void;
use std::sync::Arc;

/// A request to prepare a kernel.
pub struct PrepareRequest<'a> {
    /// Position in the plugin's list of kernels.
    pub kernel_idx: u32,
    /// The op.
    pub op: &'a crate::program::Op,
    /// Attributes; those that the op does not have are not shown to the plugin.
    pub attrs: &'a [(Arc<str>, crate::program::AttrValue)],
    /// Operands: type, and content if it is constant; None where an optional one is absent.
    pub inputs: &'a [Option<(TensorType, Option<Tensor>)>],
    /// Types of the results.
    pub outputs: &'a [Option<TensorType>],
    /// The precision that matrix products may round their inputs to.
    pub numerics: Numerics,
    /// Name of the node.
    pub label: &'a str,
}

impl PrepareRequest<'_> {
    /// Builds the ABI's form of the request and passes it on; it is gone afterwards.
    pub(super) fn with_abi<R>(&self, device: *mut abi::Device, body: impl FnOnce(&PrepareDesc) -> R) -> R {
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

        let attrs = AttrViews::of(self.op, self.attrs);
        body(&PrepareDesc {
            kernel_idx: self.kernel_idx,
            device,
            attrs: attrs.list(),
            inputs: List::new(inputs),
            outputs: List::new(outputs),
            numerics: self.numerics.code(),
            label: Str::new(self.label),
            ..PrepareDesc::empty()
        })
    }
}

/// A constant input that a kernel wants in a layout of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pack {
    /// Position of the input.
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

// SAFETY: `prepare`'s result belongs to no thread (B21).
unsafe impl Send for PreparedKernel {}
// SAFETY: `prepare`'s result is immutable, and launched by many threads at once (B21).
unsafe impl Sync for PreparedKernel {}

impl PreparedKernel {
    /// Returns the function to launch it with.
    pub fn launch_fn(&self) -> LaunchFn {
        self.launch
    }

    /// Returns the first argument of the function.
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
    /// Out of memory, or the plugin's error.
    pub fn pack(&self, pack: &Pack, tensor: &Tensor) -> Result<AlignedBytes> {
        let mut packed = AlignedBytes::zeroed_aligned(pack.size, pack.align)?;
        let ty = tensor.tensor_type();
        let shape = abi_shape(&ty);
        let src = abi_tensor(&ty, &shape, Some(tensor));
        let plugin = &self.device.plugin;
        self.device.call(Phase::Pack, |table, error| {
            let pack_fn = table.pack?;
            let dst = packed.as_mut_slice().as_mut_ptr().cast();
            // SAFETY: the plugin's function with the kernel that its `prepare` made; `dst` is zeroed memory of the size
            // and alignment that it asked for.
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
                // SAFETY: `prepare` made the state, which is given back once, here; no launch is in flight, because its
                // caller has waited for its point (B9).
                unsafe { unprepare(plugin.instance.as_ptr(), &mut self.raw) };
            }
        });
    }
}
