//! Properties of the shapes that kernels are prepared for: extents, strides, axes, and host values.
//!
//! The host has inferred every shape. These functions check what it said where a kernel would otherwise
//! write outside an operand, and turn it into the types that loops count with.

pub(crate) use devbay_ops::read::{axis, host_int, host_ints};
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
