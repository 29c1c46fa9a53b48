//! What kernels ask of the shapes they are prepared for: extents, strides, axes, and host values.
//!
//! The host has inferred every shape. These functions check what it said where a kernel would otherwise
//! write outside an operand, and turn it into the types that loops count with.

use devbay_plugin_api::reserve::{self, Size};
use devbay_plugin_api::sdk::{DType, Error, PrepareRequest, Result, TensorView};

/// The extents of an operand.
///
/// # Errors
/// Invalid if one is negative: these kernels are not DYNAMIC.
pub(crate) fn extents(tensor: &TensorView<'_>) -> Result<Vec<usize>> {
    let shape = tensor.shape();
    let extent = |&extent: &i64| usize::try_from(extent).ok();
    shape
        .iter()
        .map(extent)
        .collect::<Option<_>>()
        .ok_or_else(|| Error::invalid(format!("a shape of {shape:?}, expected extents from 0")))
}

/// The strides of a dense tensor, in elements.
pub(crate) fn row_major(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i] as isize;
    }
    strides
}

/// Where elements of a dense tensor are that differ along some dimensions alone, in the order of memory: along those
/// that `reduced` marks, or along the others.
///
/// # Errors
/// Out of memory.
pub(crate) fn positions(shape: &[usize], reduced: &[bool], of_reduced: bool) -> Result<Vec<usize>> {
    // Of nothing, however long its other dimensions are.
    if shape.iter().zip(reduced).any(|(&extent, &is_reduced)| is_reduced == of_reduced && extent == 0) {
        return Ok(Vec::new());
    }
    const WHAT: &str = "a table of positions";
    let (mut stride, mut found) = (1, vec![0]);
    for (&extent, &is_reduced) in shape.iter().zip(reduced).rev() {
        if is_reduced == of_reduced {
            let n = (Size::of(found.len()) * extent).get(WHAT)?;
            let mut next = reserve::with_capacity(n, WHAT)?;
            next.extend((0..extent).flat_map(|i| found.iter().map(move |at| at + i * stride)));
            found = next;
        }
        stride *= extent;
    }
    Ok(found)
}

/// The extents before, at and after a dimension, as three.
pub(crate) fn around(extents: &[usize], axis: usize) -> [usize; 3] {
    [extents[..axis].iter().product(), extents[axis], extents[axis + 1..].iter().product()]
}

/// The axis that a number names, counted from the back if it is negative.
///
/// # Errors
/// Invalid if there is none.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize> {
    let from_front = if axis < 0 { axis + rank as i64 } else { axis };
    match usize::try_from(from_front) {
        Ok(found) if found < rank => Ok(found),
        _ => Err(Error::invalid(format!("axis {axis} of a rank of {rank}"))),
    }
}

/// Checks that output `i` has the extents that the kernel will write.
///
/// # Errors
/// Invalid if not.
pub(crate) fn expect_output<D>(request: &PrepareRequest<'_, D>, i: usize, expected: &[usize]) -> Result<()> {
    let found = extents(request.required_output(i)?)?;
    if found == expected {
        return Ok(());
    }
    Err(Error::invalid(format!("output {i} has the extents {found:?}, expected {expected:?}")))
}

/// Bytes of an element.
pub(crate) fn element_size(dtype: DType) -> usize {
    usize::from(dtype.bits).div_ceil(8)
}

/// Integers of a host value, at most: axes, extents and pads are a few for each of 64 dimensions, and parts of a Split as
/// many as it has outputs. What is made of them is small for that reason.
const HOST_INTS_MAX: usize = 1 << 12;

/// The integers of an input that is a host value; None if it is absent.
///
/// # Errors
/// Invalid if its content is not there, or no integers; unsupported for very many.
pub(crate) fn host_ints<D>(request: &PrepareRequest<'_, D>, i: usize) -> Result<Option<Vec<i64>>> {
    let Some(tensor) = request.input(i) else {
        return Ok(None);
    };
    if tensor.n_elements() > HOST_INTS_MAX {
        let text = format!("{} integers as input {i}, at most {HOST_INTS_MAX} are", tensor.n_elements());
        return Err(Error::unsupported(text));
    }
    let ints = tensor
        .constant_ints()?
        .ok_or_else(|| Error::invalid(format!("input {i} has to be a constant of integers")))?;
    Ok(Some(ints))
}

/// One integer of an input that is a host value, or `default` if it is absent.
///
/// # Errors
/// As [`host_ints`], and invalid if there is not one.
pub(crate) fn host_int<D>(request: &PrepareRequest<'_, D>, i: usize, default: i64) -> Result<i64> {
    match host_ints(request, i)?.as_deref() {
        None => Ok(default),
        Some([value]) => Ok(*value),
        Some(values) => Err(Error::invalid(format!("input {i} has {} elements, expected 1", values.len()))),
    }
}
