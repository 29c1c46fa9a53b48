//! Costs of launches, for the host's planner: operands once each, and a number of operations per element.

use crate::target::Target;
use devbay_plugin_api::sdk::{Cost, PrepareRequest, Result, TensorView};

/// Operations: `flops` for each element of the first output.
///
/// # Errors
/// Invalid without an output.
pub fn per_output(request: &PrepareRequest<'_, Target>, flops: u64) -> Result<Cost> {
    Ok(of(request, flops.saturating_mul(request.required_output(0)?.n_elements() as u64)))
}

/// Operations: `flops` for each element of the first input.
///
/// # Errors
/// Invalid without an input.
pub fn per_input(request: &PrepareRequest<'_, Target>, flops: u64) -> Result<Cost> {
    Ok(of(request, flops.saturating_mul(request.required_input(0)?.n_elements() as u64)))
}

/// Reads as many bytes as it writes, and counts nothing.
///
/// # Errors
/// None; the signature is that of [`devbay_plugin_api::sdk::Kernel::cost`].
pub fn moved(request: &PrepareRequest<'_, Target>) -> Result<Cost> {
    let bytes = request.outputs.iter().map(bytes).sum();
    Ok(Cost { flops: 0, bytes_read: bytes, bytes_written: bytes })
}

/// Of a kernel that reads next to nothing.
///
/// # Errors
/// As [`moved`].
pub fn written(request: &PrepareRequest<'_, Target>) -> Result<Cost> {
    Ok(Cost { bytes_read: 0, ..moved(request)? })
}

/// Extents multiplied out, as far as there are numbers: of a tensor without elements they may be beyond.
pub fn volume(extents: &[i64]) -> u64 {
    extents.iter().fold(1, |n: u64, &extent| n.saturating_mul(extent.max(0) as u64))
}

/// Operations in all; bytes from the operands' types.
pub fn of(request: &PrepareRequest<'_, Target>, flops: u64) -> Cost {
    Cost {
        flops,
        bytes_read: request.inputs.iter().map(bytes).sum(),
        bytes_written: request.outputs.iter().map(bytes).sum(),
    }
}

/// Bytes of an operand, 0 of one that is absent.
pub fn bytes(tensor: &TensorView<'_>) -> u64 {
    if tensor.is_absent() {
        return 0;
    }
    (tensor.n_elements() as u64 * u64::from(tensor.dtype().bits)).div_ceil(8)
}
