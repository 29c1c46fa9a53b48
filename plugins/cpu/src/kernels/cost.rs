//! Costs of launches, for the host's planner: operands once each, and a number of operations per element.

use crate::device::CpuDevice;
use devbay_plugin_api::sdk::{Cost, PrepareRequest, Result, TensorView};

/// Operations: `flops` for each element of the first output.
///
/// # Errors
/// Invalid without an output.
pub(crate) fn per_output(request: &PrepareRequest<'_, CpuDevice>, flops: u64) -> Result<Cost> {
    Ok(of(request, flops.saturating_mul(elements(request.required_output(0)?))))
}

/// Operations: `flops` for each element of the first input.
///
/// # Errors
/// Invalid without an input.
pub(crate) fn per_input(request: &PrepareRequest<'_, CpuDevice>, flops: u64) -> Result<Cost> {
    Ok(of(request, flops.saturating_mul(elements(request.required_input(0)?))))
}

/// Operations in all; bytes from the operands' types.
pub(crate) fn of(request: &PrepareRequest<'_, CpuDevice>, flops: u64) -> Cost {
    Cost {
        flops,
        bytes_read: request.inputs.iter().map(bytes).fold(0, u64::saturating_add),
        bytes_written: request.outputs.iter().map(bytes).fold(0, u64::saturating_add),
    }
}

/// Reads as many bytes as it writes, and counts nothing.
///
/// # Errors
/// None; the signature is that of [`devbay_plugin_api::sdk::Kernel::cost`].
pub(crate) fn moved(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let bytes = request.outputs.iter().map(bytes).fold(0, u64::saturating_add);
    Ok(Cost { flops: 0, bytes_read: bytes, bytes_written: bytes })
}

fn elements(tensor: &TensorView<'_>) -> u64 {
    tensor.n_elements() as u64
}

fn bytes(tensor: &TensorView<'_>) -> u64 {
    if tensor.is_absent() {
        return 0;
    }
    let dtype = tensor.dtype();
    (elements(tensor) * u64::from(dtype.bits) * u64::from(dtype.lanes)).div_ceil(8)
}
