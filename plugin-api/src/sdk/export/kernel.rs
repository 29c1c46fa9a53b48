//! Kernels: preparing a node, estimating its cost, inferring its shapes, and packing its constants (B21).

use super::call::{deref, refused, report_kernel};
use super::instance::InstanceBox;
use crate::abi;
use crate::abi::*;
use crate::sdk::error::{Error, Result, guard};
use crate::sdk::view::{PrepareRequest, TensorView};
use crate::sdk::{Device, Kernel, Plugin, Prepared};
use core::ffi::c_void;

/// A kernel, and a request for it.
type Request<'a, D> = (&'static Kernel<D>, PrepareRequest<'a, D>);

/// Reads a request and finds its kernel.
///
/// # Safety
/// 1. `instance` is NULL or an instance of this plugin's, which lives for the call.
/// 2. `desc` is NULL or a host's struct of the size that it says (B4), which with all that it names lives for `'a`.
/// 3. The struct's device is NULL or one of this plugin's, alive for `'a`.
unsafe fn request<'a, P: Plugin>(
    instance: *mut Instance,
    desc: *const PrepareDesc,
) -> Result<Request<'a, P::Device>> {
    // SAFETY: `instance` is NULL or an instance of this plugin's (# Safety, 1).
    let instance: &InstanceBox<P> = unsafe { deref(instance, "the instance") }?;
    // SAFETY: `desc` is NULL or a host's struct (# Safety, 2).
    let desc = unsafe { read_struct(desc) }.map_err(refused)?;
    let kernel = P::KERNELS
        .get(desc.kernel_idx as usize)
        .ok_or_else(|| Error::invalid(format!("kernel {} of {}", desc.kernel_idx, P::KERNELS.len())))?;
    // SAFETY: all that `desc` names lives for `'a` (# Safety, 2), and its device is one of this plugin's (3).
    Ok((kernel, unsafe { PrepareRequest::new(&desc, kernel.op(), instance.host, instance.abi_minor) }?))
}

pub(super) unsafe extern "C" fn prepare<P: Plugin>(
    instance: *mut Instance,
    desc: *const PrepareDesc,
    out: *mut abi::Prepared,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: B9: instance and device are NULL or this plugin's; `desc` is NULL or the host's struct, alive for the
        // call (B4).
        let (kernel, request) = unsafe { request::<P>(instance, desc) }?;
        kernel.refuse_operands(&request)?;
        kernel.refuse_attributes(&request, P::reads_attribute)?;
        let mut prepared = kernel.prepare(&request)?;
        prepared.set_operands(request.inputs.len(), request.outputs.len());
        if kernel.info().flags & DEVBAY_KERNEL_DATA_SHAPE != 0 {
            prepared.set_extents();
        }
        if request.device.defers() {
            prepared.defer::<P::Device>(request.label);
        } else if !request.device.describe().inline {
            prepared.refuse_failed::<P::Device>();
        }
        let result = prepared.into_abi();
        // SAFETY: B4: `out` is NULL or the host's struct, of the size that it says and alive for the call.
        unsafe { write_struct(out, &result) }.map_err(|e| {
            // SAFETY: the state was made above, and the host was not given it.
            unsafe { Prepared::free(result.state) };
            refused(e)
        })
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report_kernel(error, body) }
}

pub(super) unsafe extern "C" fn unprepare(_instance: *mut Instance, prepared: *mut abi::Prepared) {
    // SAFETY: B21: `prepared` is NULL or the host's struct as `prepare` wrote it, of the size that it says (B4).
    if let Ok(prepared) = unsafe { read_struct(prepared.cast_const()) }
        && !prepared.state.is_null()
    {
        let _ = guard(|| {
            // SAFETY: `prepare` made the state, and the host gives it back once (B9).
            unsafe { Prepared::free(prepared.state) };
            Ok(())
        });
    }
}

pub(super) unsafe extern "C" fn kernel_cost<P: Plugin>(
    instance: *mut Instance,
    desc: *const PrepareDesc,
    out: *mut KernelCost,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: B9: instance and device are NULL or this plugin's; `desc` is NULL or the host's struct, alive for the
        // call (B4).
        let (kernel, request) = unsafe { request::<P>(instance, desc) }?;
        let cost = kernel.estimate(&request)?;
        let result = KernelCost {
            flops: cost.flops,
            bytes_read: cost.bytes_read,
            bytes_written: cost.bytes_written,
            ..KernelCost::empty()
        };
        // SAFETY: B4: `out` is NULL or the host's struct, of the size that it says and alive for the call.
        unsafe { write_struct(out, &result) }.map_err(refused)
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report_kernel(error, body) }
}

pub(super) unsafe extern "C" fn pack(
    _instance: *mut Instance,
    prepared: *const abi::Prepared,
    input_idx: u32,
    src: *const Tensor,
    dst: *mut c_void,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: B21: `prepared` is NULL or the host's struct as `prepare` wrote it, of the size that it says (B4).
        let prepared = unsafe { read_struct(prepared) }.map_err(refused)?;
        if prepared.state.is_null() {
            return Err(Error::invalid("pack without a prepared kernel"));
        }
        // SAFETY: B4: `src` is NULL or the host's struct, of the size that it says and alive for the call.
        let src = unsafe { read_struct(src) }.map_err(refused)?;
        // SAFETY: `src` was read from the host's struct, whose arrays and bytes live for the call.
        let src = unsafe { TensorView::new(src) }?;
        let bytes = src.constant().ok_or_else(|| Error::invalid("pack of a tensor without content"))?;
        // SAFETY: the state is `prepare`'s and not freed (B21), and `dst` is NULL or zeroed memory of the size and
        // alignment that it asked for (the header's rule of `pack`).
        unsafe { Prepared::pack(prepared.state, input_idx, bytes, dst.cast()) }
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report_kernel(error, body) }
}

pub(super) unsafe extern "C" fn kernel_shape<P: Plugin>(
    instance: *mut Instance,
    desc: *const PrepareDesc,
    output_idx: u32,
    out_dtype: *mut DType,
    out_shape: *mut i64,
    rank_max: u32,
    out_rank: *mut u32,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: B9: instance and device are NULL or this plugin's; `desc` is NULL or the host's struct, alive for the
        // call (B4).
        let (kernel, request) = unsafe { request::<P>(instance, desc) }?;
        if output_idx >= kernel.n_outputs_max() {
            return Err(Error::unsupported(format!("there is no output {output_idx}")));
        }
        let (dtype, shape) = kernel.output_type(&request, output_idx as usize)?;
        if shape.len() > rank_max as usize {
            return Err(Error::invalid(format!("a rank of {}, at most {rank_max} fits", shape.len())));
        }
        if out_dtype.is_null() || out_shape.is_null() || out_rank.is_null() {
            return Err(Error::invalid("a place for the result is NULL"));
        }
        // SAFETY: no place is NULL (checked); `out_shape` has room for `rank_max` extents, and there are no more
        // (checked).
        unsafe {
            out_dtype.write(dtype);
            out_rank.write(shape.len() as u32);
            core::ptr::copy_nonoverlapping(shape.as_ptr(), out_shape, shape.len());
        }
        Ok(())
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report_kernel(error, body) }
}
