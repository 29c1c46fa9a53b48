//! Reads and checks the contents of nodes once: attributes, shapes, and operands that are known when a kernel is prepared.
//!
//! The host has inferred every shape. These functions check the inferred facts that keep a kernel within its operands, and
//! return the numbers for loops and shaders. Extents are `i64`, as in the ABI, and not negative.

mod einsum;
mod join;
mod movement;
mod one_hot;
mod random;
mod recurrent;
mod reduce;
mod region;
mod resize;
mod spectra;
mod window;

pub use crate::axes::axis;
pub use einsum::{Equation, Id, Ids, Name, Terms};
pub use join::Join;
pub(crate) use movement::slice_axis;
pub use movement::{View, depth_to_space, expand, slice, space_to_depth, tile, transpose};
pub use one_hot::OneHot;
pub use random::{Philox, philox4x32};
pub(crate) use recurrent::directions;
pub use recurrent::{Activation, Cell, Extents, Recurrent};
pub use reduce::reduced_axes;
pub use region::Regions;
pub use resize::{Axis, Filter, Method, Nearest, Resize, Samples, Transform};
pub use spectra::{Layout, Signal, Spectra};
pub(crate) use window::{Padding, Sliding, sizes};
pub use window::{SPATIAL_MAX, Window};

use devbay_plugin_api::sdk::{Error, PrepareRequest, Result, TensorView};

/// Returns the extents of an operand.
///
/// # Errors
/// Invalid if an extent is negative: kernels that use this are not DYNAMIC.
pub fn extents<'a>(tensor: &TensorView<'a>) -> Result<&'a [i64]> {
    let shape = tensor.shape();
    match shape.iter().all(|&extent| extent >= 0) {
        true => Ok(shape),
        false => Err(Error::invalid(format!("a shape of {shape:?}, expected extents from 0"))),
    }
}

/// Returns the strides of a dense tensor, in elements.
pub fn row_major(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1i64; shape.len()];
    for i in (1..shape.len()).rev() {
        // An overflow implies an extent of 0, and no elements.
        strides[i - 1] = strides[i].saturating_mul(shape[i]);
    }
    strides
}

/// Checks that output `i` has the extents that the kernel will write.
///
/// # Errors
/// Invalid if they differ.
pub fn expect_output<D>(request: &PrepareRequest<'_, D>, i: usize, expected: &[i64]) -> Result<()> {
    let found = request.required_output(i)?.shape();
    if found == expected {
        return Ok(());
    }
    Err(Error::invalid(format!("output {i} has the extents {found:?}, expected {expected:?}")))
}

/// Maximum number of integers in a host value: axes, extents and pads are a few for each of 64 dimensions, and a Split has
/// as many parts as outputs. The limit keeps derived data small.
const HOST_INTS_MAX: usize = 1 << 12;

/// Returns the integers of an input that is a host value; None if it is absent.
///
/// # Errors
/// Invalid if its content is missing or not integers; unsupported above the limit.
pub fn host_ints<D>(request: &PrepareRequest<'_, D>, i: usize) -> Result<Option<Vec<i64>>> {
    let Some(tensor) = request.input(i) else {
        return Ok(None);
    };
    if tensor.n_elements() > HOST_INTS_MAX {
        let text = format!("{} integers as input {i}, at most {HOST_INTS_MAX} are", tensor.n_elements());
        return Err(Error::unsupported(text));
    }
    let ints = tensor.constant_ints()?;
    let ints = ints.ok_or_else(|| Error::invalid(format!("input {i} has to be a constant of integers")))?;
    Ok(Some(ints))
}

/// Returns the single integer of an input that is a host value, or `default` if it is absent.
///
/// # Errors
/// As [`host_ints`], and invalid unless there is exactly one.
pub fn host_int<D>(request: &PrepareRequest<'_, D>, i: usize, default: i64) -> Result<i64> {
    match host_ints(request, i)?.as_deref() {
        None => Ok(default),
        Some([value]) => Ok(*value),
        Some(values) => Err(Error::invalid(format!("input {i} has {} elements, expected 1", values.len()))),
    }
}
