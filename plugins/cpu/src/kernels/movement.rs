//! Ops that put elements in another order, repeat some or leave some out: each is one strided copy.

use super::MOVABLE;
use super::cost;
use super::extents::{axis, element_size, expect_output, extents, host_ints, row_major};
use super::strided::StridedCopy;
use crate::device::CpuDevice;
use crate::stream::CpuStream;
use devbay_plugin_api::sdk::*;

const MOVED: TypeVar = TypeVar::of(MOVABLE);
const INDEX: TypeVar = TypeVar::of(&[I64, I32]);

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    Kernel::new("Transpose", 21, transpose).types(&[MOVED]).operands(&[0], &[0]).cost(cost::moved),
    Kernel::new("Slice", 13, slice)
        .types(&[MOVED, INDEX])
        .operands(&[0, 1, 1, 1, 1], &[0])
        .inputs(3, 5)
        .host_values(0b11110)
        .cost(cost::moved),
    Kernel::new("Expand", 13, expand)
        .types(&[MOVED, TypeVar::of(&[I64])])
        .operands(&[0, 1], &[0])
        .host_values(0b10)
        .cost(cost::moved)
        .doc("broadcasts to a shape"),
    Kernel::new("Tile", 13, tile)
        .types(&[MOVED, TypeVar::of(&[I64])])
        .operands(&[0, 1], &[0])
        .host_values(0b10)
        .cost(cost::moved)
        .doc("repeats the whole tensor along each axis"),
    Kernel::new("DepthToSpace", 13, depth_to_space).types(&[MOVED]).operands(&[0], &[0]).cost(cost::moved),
    Kernel::new("SpaceToDepth", 28, space_to_depth).types(&[MOVED]).operands(&[0], &[0]).cost(cost::moved),
];

struct Movement(StridedCopy);

impl Launch<CpuDevice> for Movement {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        // SAFETY: the prepare functions below keep the view within the first input and check the
        // output's extents; the host lends both (B9), and an output overlaps no input (B21).
        unsafe { self.0.run(operands.input_ptr(0), operands.output_ptr(0)) }
    }
}

/// A copy from input 0 to output 0: the view has `shape` and `strides` from element `start`.
fn movement(
    request: &PrepareRequest<'_, CpuDevice>,
    shape: &[usize],
    strides: &[isize],
    start: isize,
) -> Result<Prepared> {
    let size = element_size(request.required_input(0)?.dtype());
    let copy = StridedCopy::new(request.host, size, shape, strides, start)?;
    Ok(Prepared::new(Movement(copy)))
}

/// A copy from input 0, seen with the extents `from`, to output 0, whose axis i is axis `perm[i]` of
/// that view.
fn permuted(request: &PrepareRequest<'_, CpuDevice>, from: &[usize], perm: &[usize]) -> Result<Prepared> {
    let from_strides = row_major(from);
    let shape: Vec<usize> = perm.iter().map(|&i| from[i]).collect();
    let strides: Vec<isize> = perm.iter().map(|&i| from_strides[i]).collect();
    movement(request, &shape, &strides, 0)
}

fn transpose(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let from = extents(request.required_input(0)?)?;
    let perm = match request.attrs.ints("perm")? {
        None => (0..from.len()).rev().collect(),
        Some(perm) => {
            let perm: Vec<usize> = perm.iter().map(|&i| axis(i, from.len())).collect::<Result<_>>()?;
            let mut sorted = perm.clone();
            sorted.sort_unstable();
            if !sorted.into_iter().eq(0..from.len()) {
                return Err(Error::invalid(format!(
                    "perm is {perm:?}, expected each of {} axes once",
                    from.len()
                )));
            }
            perm
        }
    };
    let to: Vec<usize> = perm.iter().map(|&i| from[i]).collect();
    expect_output(request, 0, &to)?;
    permuted(request, &from, &perm)
}

fn slice(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
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
    let (mut to, mut strides, mut first) = (from.clone(), row_major(&from), 0);
    for i in 0..starts.len() {
        let axis = axis(axes[i], from.len())?;
        let (start, n) = slice_axis(from[axis], starts[i], ends[i], steps[i])?;
        first += start as isize * strides[axis];
        // Where there is no second element the step is not used, and may be any number.
        if n > 1 {
            strides[axis] *= steps[i] as isize;
        }
        to[axis] = n;
    }
    expect_output(request, 0, &to)?;
    movement(request, &to, &strides, first)
}

/// The first element of a slice of one axis of `n` elements, and how many the slice has.
fn slice_axis(n: usize, start: i64, end: i64, step: i64) -> Result<(i64, usize)> {
    if step == 0 {
        return Err(Error::invalid("a step of 0"));
    }
    if n == 0 {
        return Ok((0, 0));
    }
    let n = n as i64;
    let from_front = |i: i64| if i < 0 { i.saturating_add(n) } else { i };
    let (start, distance) = if step > 0 {
        let start = from_front(start).clamp(0, n);
        (start, from_front(end).clamp(0, n) - start)
    } else {
        let start = from_front(start).clamp(0, n - 1);
        (start, start - from_front(end).clamp(-1, n - 1))
    };
    let count = (distance.max(0) as u64).div_ceil(step.unsigned_abs());
    Ok((start, count as usize))
}

fn expand(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let from = extents(request.required_input(0)?)?;
    let to = extents(request.required_output(0)?)?;
    let fits = to.len() >= from.len();
    let added = to.len().saturating_sub(from.len());
    if !fits || !from.iter().zip(&to[added..]).all(|(&f, &t)| f == t || f == 1) {
        return Err(Error::invalid(format!("{from:?} cannot be broadcast to {to:?}")));
    }
    let mut strides = vec![0; to.len()];
    for (i, &stride) in row_major(&from).iter().enumerate() {
        strides[added + i] = if from[i] == 1 { 0 } else { stride };
    }
    movement(request, &to, &strides, 0)
}

fn tile(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let from = extents(request.required_input(0)?)?;
    let repeats = host_ints(request, 1)?.ok_or_else(|| Error::invalid("repeats are missing"))?;
    if repeats.len() != from.len() || repeats.iter().any(|&n| n < 0) {
        return Err(Error::invalid(format!(
            "repeats of {repeats:?} for {from:?}, expected a count from 0 for each axis"
        )));
    }
    let strides_from = row_major(&from);
    let (mut shape, mut strides, mut tiled) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..from.len() {
        let n = repeats[i] as usize;
        shape.extend([n, from[i]]);
        strides.extend([0, strides_from[i]]);
        tiled.push(n * from[i]);
    }
    expect_output(request, 0, &tiled)?;
    movement(request, &shape, &strides, 0)
}

/// The extents of an image, and the length of its blocks.
fn image(request: &PrepareRequest<'_, CpuDevice>) -> Result<([usize; 4], usize)> {
    let block = request.attrs.int("blocksize", 0)?;
    let found = extents(request.required_input(0)?)?;
    match <[usize; 4]>::try_from(found) {
        Ok(extents) if block > 0 => Ok((extents, block as usize)),
        Ok(_) => Err(Error::invalid(format!("a block size of {block}"))),
        Err(found) => Err(Error::invalid(format!("extents of {found:?}, expected four of them"))),
    }
}

fn depth_to_space(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let ([n, depth, height, width], block) = image(request)?;
    let c = depth / (block * block);
    if c * block * block != depth {
        return Err(Error::invalid(format!("a depth of {depth} for blocks of {block} by {block}")));
    }
    expect_output(request, 0, &[n, c, height * block, width * block])?;
    match request.attrs.string("mode", "DCR")? {
        "DCR" => permuted(request, &[n, block, block, c, height, width], &[0, 3, 4, 1, 5, 2]),
        "CRD" => permuted(request, &[n, c, block, block, height, width], &[0, 1, 4, 2, 5, 3]),
        mode => Err(Error::invalid(format!("mode is DCR or CRD, found {mode}"))),
    }
}

fn space_to_depth(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let ([n, c, height, width], block) = image(request)?;
    let (rows, cols) = (height / block, width / block);
    if rows * block != height || cols * block != width {
        return Err(Error::invalid(format!("{height} by {width} elements for blocks of {block} by {block}")));
    }
    expect_output(request, 0, &[n, c * block * block, rows, cols])?;
    let view = [n, c, rows, block, cols, block];
    match request.attrs.string("mode", "DCR")? {
        "DCR" => permuted(request, &view, &[0, 3, 5, 1, 2, 4]),
        "CRD" => permuted(request, &view, &[0, 1, 3, 5, 2, 4]),
        mode => Err(Error::invalid(format!("mode is DCR or CRD, found {mode}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::slice_axis;

    #[test]
    fn a_slice_is_clamped_to_its_axis() {
        let check = |args: (usize, i64, i64, i64), expected| {
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
