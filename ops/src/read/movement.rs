//! Ops that reorder, repeat or drop elements, as one view of their first input: Transpose, Slice, Expand, Tile,
//! DepthToSpace, SpaceToDepth.

use super::{axis, expect_output, extents, host_ints, row_major};
use crate::axes::permutation;
use devbay_plugin_api::sdk::{Error, PrepareRequest, Result};

/// A strided view of a tensor's elements; the result holds them consecutively.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// Extents; their product is the result's, which may have others.
    pub shape: Vec<i64>,
    /// Stride of each axis, in elements of the input.
    pub strides: Vec<i64>,
    /// Position of its first element in the input.
    pub start: i64,
}

impl View {
    /// Returns a dense tensor of these extents with permuted axes: axis i of the result is axis `perm[i]` of it.
    fn permuted(from: &[i64], perm: &[usize]) -> Self {
        let from_strides = row_major(from);
        Self {
            shape: perm.iter().map(|&i| from[i]).collect(),
            strides: perm.iter().map(|&i| from_strides[i]).collect(),
            start: 0,
        }
    }

    /// Returns whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }
}

/// Reads a Transpose node.
///
/// # Errors
/// Invalid for a `perm` that is not a permutation, and for an unexpected output.
pub fn transpose<D>(request: &PrepareRequest<'_, D>) -> Result<View> {
    let from = extents(request.required_input(0)?)?;
    let perm = match request.attrs.ints("perm")? {
        None => (0..from.len()).rev().collect(),
        Some(perm) => permutation(&perm, from.len())?,
    };
    let view = View::permuted(from, &perm);
    expect_output(request, 0, &view.shape)?;
    Ok(view)
}

/// Reads a Slice node.
///
/// # Errors
/// Invalid for lists of different lengths, a step of 0, axes that do not exist, and for an unexpected output.
pub fn slice<D>(request: &PrepareRequest<'_, D>) -> Result<View> {
    let from = extents(request.required_input(0)?)?;
    let missing = || Error::invalid("starts and ends are missing");
    let starts = host_ints(request, 1)?.ok_or_else(missing)?;
    let ends = host_ints(request, 2)?.ok_or_else(missing)?;
    let axes = host_ints(request, 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = host_ints(request, 4)?.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
        return Err(Error::invalid(format!(
            "{} starts, {} ends, {} axes and {} steps, expected as many of each",
            starts.len(),
            ends.len(),
            axes.len(),
            steps.len()
        )));
    }
    let mut view = View { shape: from.to_vec(), strides: row_major(from), start: 0 };
    for i in 0..starts.len() {
        let axis = axis(axes[i], from.len())?;
        let (start, n) = slice_axis(from[axis].into(), starts[i], ends[i], steps[i])?;
        // Neither exceeds the extent.
        let (start, n) = (start as i64, n as i64);
        view.start = view.start.saturating_add(start.saturating_mul(view.strides[axis]));
        // Without a second element the step is unused, and may be any number.
        if n > 1 {
            view.strides[axis] = view.strides[axis].saturating_mul(steps[i]);
        }
        view.shape[axis] = n;
    }
    expect_output(request, 0, &view.shape)?;
    Ok(view)
}

/// Returns the first element of a slice of an axis of `n` elements, and the slice's length. Uses `i128`, so that no extent
/// or number of a node overflows.
///
/// # Errors
/// Invalid for a step of 0.
pub(crate) fn slice_axis(n: i128, start: i64, end: i64, step: i64) -> Result<(i128, i128)> {
    if step == 0 {
        return Err(Error::invalid("expected a step other than 0, found 0"));
    }
    if n == 0 {
        return Ok((0, 0));
    }
    let from_front = |i: i64| i128::from(i) + if i < 0 { n } else { 0 };
    let (start, distance) = if step > 0 {
        let start = from_front(start).clamp(0, n);
        (start, from_front(end).clamp(0, n) - start)
    } else {
        // From `start` down to just after `end`, where -1 is before the first element. ONNX clamps a start before the first
        // element to the first, unlike NumPy.
        let start = from_front(start).clamp(0, n - 1);
        (start, start - from_front(end).clamp(-1, n - 1))
    };
    let step = i128::from(step).abs();
    Ok((start, (distance.max(0) + step - 1) / step))
}

/// Reads an Expand node: the output is the input, broadcast.
///
/// # Errors
/// Invalid if the input does not broadcast.
pub fn expand<D>(request: &PrepareRequest<'_, D>) -> Result<View> {
    let from = extents(request.required_input(0)?)?;
    let to = extents(request.required_output(0)?)?;
    let fits = to.len() >= from.len();
    let added = to.len().saturating_sub(from.len());
    if !fits || !from.iter().zip(&to[added..]).all(|(&f, &t)| f == t || f == 1) {
        return Err(Error::invalid(format!("{from:?} cannot be broadcast to {to:?}")));
    }
    let mut strides = vec![0; to.len()];
    for (i, &stride) in row_major(from).iter().enumerate() {
        strides[added + i] = if from[i] == 1 { 0 } else { stride };
    }
    Ok(View { shape: to.to_vec(), strides, start: 0 })
}

/// Reads a Tile node: each axis has two in the view, its repeats first.
///
/// # Errors
/// Invalid unless the repeats are one count per axis, and for an unexpected output.
pub fn tile<D>(request: &PrepareRequest<'_, D>) -> Result<View> {
    let from = extents(request.required_input(0)?)?;
    let repeats = host_ints(request, 1)?.ok_or_else(|| Error::invalid("repeats are missing"))?;
    if repeats.len() != from.len() || repeats.iter().any(|&n| n < 0) {
        return Err(Error::invalid(format!(
            "repeats of {repeats:?} for {from:?}, expected a count from 0 for each axis"
        )));
    }
    let of_input = row_major(from);
    let (mut shape, mut strides, mut tiled) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..from.len() {
        shape.extend([repeats[i], from[i]]);
        strides.extend([0, of_input[i]]);
        tiled.push(repeats[i].saturating_mul(from[i]));
    }
    expect_output(request, 0, &tiled)?;
    Ok(View { shape, strides, start: 0 })
}

/// Returns the extents of an image, and the length of its blocks.
fn image<D>(request: &PrepareRequest<'_, D>) -> Result<([i64; 4], i64)> {
    let block = request.attrs.int("blocksize", 0)?;
    let found = extents(request.required_input(0)?)?;
    match <[i64; 4]>::try_from(found) {
        Ok(extents) if (1..1 << 31).contains(&block) => Ok((extents, block)),
        Ok(_) => Err(Error::invalid(format!("a block size of {block}"))),
        Err(_) => Err(Error::invalid(format!("extents of {found:?}, expected four of them"))),
    }
}

/// Returns the order of axes for `mode`.
fn by_mode<D, T>(request: &PrepareRequest<'_, D>, dcr: T, crd: T) -> Result<T> {
    match request.attrs.string("mode", "DCR")? {
        "DCR" => Ok(dcr),
        "CRD" => Ok(crd),
        mode => Err(Error::invalid(format!("mode is DCR or CRD, found {mode}"))),
    }
}

/// Reads a DepthToSpace node.
///
/// # Errors
/// Invalid for a depth that is not a multiple of the block, an unknown mode, and for an unexpected output.
pub fn depth_to_space<D>(request: &PrepareRequest<'_, D>) -> Result<View> {
    let ([n, depth, height, width], block) = image(request)?;
    let c = depth / (block * block);
    if c * block * block != depth {
        return Err(Error::invalid(format!("a depth of {depth} for blocks of {block} by {block}")));
    }
    expect_output(request, 0, &[n, c, height.saturating_mul(block), width.saturating_mul(block)])?;
    let dcr = ([n, block, block, c, height, width], [0, 3, 4, 1, 5, 2]);
    let crd = ([n, c, block, block, height, width], [0, 1, 4, 2, 5, 3]);
    let (from, perm) = by_mode(request, dcr, crd)?;
    Ok(View::permuted(&from, &perm))
}

/// Reads a SpaceToDepth node.
///
/// # Errors
/// Invalid for an image that is not a multiple of the block, an unknown mode, and for an unexpected output.
pub fn space_to_depth<D>(request: &PrepareRequest<'_, D>) -> Result<View> {
    let ([n, c, height, width], block) = image(request)?;
    let (rows, cols) = (height / block, width / block);
    if rows * block != height || cols * block != width {
        return Err(Error::invalid(format!("{height} by {width} elements for blocks of {block} by {block}")));
    }
    expect_output(request, 0, &[n, c.saturating_mul(block * block), rows, cols])?;
    let perm = by_mode(request, [0, 3, 5, 1, 2, 4], [0, 1, 3, 5, 2, 4])?;
    Ok(View::permuted(&[n, c, rows, block, cols, block], &perm))
}

#[cfg(test)]
mod tests {
    use super::slice_axis;

    #[test]
    fn a_slice_is_clamped_to_its_axis() {
        let check = |args: (i128, i64, i64, i64), expected| {
            let found = slice_axis(args.0, args.1, args.2, args.3).expect("a slice");
            assert_eq!(found, expected, "{args:?}");
        };
        check((10, 0, i64::MAX, 3), (0, 4));
        check((10, -3, i64::MAX, 1), (7, 3));
        check((10, i64::MIN, 4, 1), (0, 4));
        check((10, 20, 30, 1), (10, 0));
        check((10, i64::MAX, i64::MIN, -1), (9, 10));
        check((10, 7, 1, -4), (7, 2));
        check((10, 2, 5, -1), (2, 0));
        check((10, 0, 10, i64::MIN), (0, 0));
        check((0, 0, 5, -1), (0, 0));
        assert!(slice_axis(4, 0, 4, 0).is_err());
    }
}
