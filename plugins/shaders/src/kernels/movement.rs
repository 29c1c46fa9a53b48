//! Ops that put elements in another order, repeat some or leave some out: most are one strided copy.

use super::cost;
use super::moved::*;
use super::walk::dense_strides;
use crate::check::Integers;
use crate::step::{Build, Slot};
use crate::target::Target;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

const MOVED: TypeVar = TypeVar::of(MOVABLE);
const INDEX: TypeVar = TypeVar::of(&[I64, I32]);

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
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
    Kernel::new("ReverseSequence", 10, reverse_sequence)
        .types(&[MOVED, TypeVar::of(&[I64])])
        .operands(&[0, 1], &[0])
        .cost(cost::moved),
    Kernel::new("Trilu", 14, trilu)
        .types(&[MOVED, TypeVar::of(&[I64])])
        .operands(&[0, 1], &[0])
        .inputs(1, 2)
        .host_values(0b10)
        .cost(cost::moved)
        .doc("the upper or lower triangle of matrices"),
];

/// A copy from input 0 to output 0: the view has `shape` and `strides` from element `start`.
fn movement(request: &Request<'_>, shape: &[i64], strides: &[i64], start: i64) -> Result<Prepared> {
    let dtype = request.required_input(0)?.dtype();
    let mut build = Build::new(request);
    Strided::new(shape, strides, start).copy(&mut build, dtype, Slot::Input(0), Slot::Output(0))?;
    build.finish()
}

/// A copy from input 0, seen with the extents `from`, to output 0, whose axis i is axis `perm[i]` of
/// that view.
fn permuted(request: &Request<'_>, from: &[i64], perm: &[usize]) -> Result<Prepared> {
    if from.contains(&0) {
        return Build::new(request).finish();
    }
    let from_strides = dense_strides(from);
    let shape: Vec<i64> = perm.iter().map(|&i| from[i]).collect();
    let strides: Vec<i64> = perm.iter().map(|&i| from_strides[i]).collect();
    movement(request, &shape, &strides, 0)
}

fn transpose(request: &Request<'_>) -> Result<Prepared> {
    let from = extents(request.required_input(0)?)?;
    let perm: Vec<usize> = match request.attrs.ints("perm")? {
        None => (0..from.len()).rev().collect(),
        Some(perm) => perm.iter().map(|&i| axis(i, from.len())).collect::<Result<_>>()?,
    };
    let mut sorted = perm.clone();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..from.len()) {
        return Err(Error::invalid(format!("perm is {perm:?}, expected each of {} axes once", from.len())));
    }
    let to: Vec<i64> = perm.iter().map(|&i| from[i]).collect();
    expect_output(request, 0, &to)?;
    permuted(request, from, &perm)
}

fn slice(request: &Request<'_>) -> Result<Prepared> {
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
    let (mut to, mut strides, mut first) = (from.to_vec(), dense_strides(from), 0);
    for i in 0..starts.len() {
        let axis = axis(axes[i], from.len())?;
        let (start, n) = slice_axis(from[axis], starts[i], ends[i], steps[i])?;
        first += start * strides[axis];
        // Where there is no second element the step is not used, and may be any number.
        if n > 1 {
            strides[axis] *= steps[i];
        }
        to[axis] = n;
    }
    expect_output(request, 0, &to)?;
    movement(request, &to, &strides, first)
}

/// The first element of a slice of one axis of `n` elements, and how many the slice has.
fn slice_axis(n: i64, start: i64, end: i64, step: i64) -> Result<(i64, i64)> {
    if step == 0 {
        return Err(Error::invalid("a step of 0"));
    }
    if n == 0 {
        return Ok((0, 0));
    }
    let from_front = |i: i64| if i < 0 { i.saturating_add(n) } else { i };
    let (start, distance) = if step > 0 {
        let start = from_front(start).clamp(0, n);
        (start, from_front(end).clamp(0, n) - start)
    } else {
        let start = from_front(start).clamp(0, n - 1);
        (start, start - from_front(end).clamp(-1, n - 1))
    };
    let count = (distance.max(0) as u64).div_ceil(step.unsigned_abs());
    Ok((start, count as i64))
}

fn expand(request: &Request<'_>) -> Result<Prepared> {
    let from = extents(request.required_input(0)?)?;
    let to = extents(request.required_output(0)?)?;
    let fits = to.len() >= from.len();
    let added = to.len().saturating_sub(from.len());
    if !fits || !from.iter().zip(&to[added..]).all(|(&f, &t)| f == t || f == 1) {
        return Err(Error::invalid(format!("{from:?} cannot be broadcast to {to:?}")));
    }
    let mut strides = vec![0; to.len()];
    for (i, &stride) in dense_strides(from).iter().enumerate() {
        strides[added + i] = if from[i] == 1 { 0 } else { stride };
    }
    movement(request, to, &strides, 0)
}

fn tile(request: &Request<'_>) -> Result<Prepared> {
    let from = extents(request.required_input(0)?)?;
    let repeats = host_ints(request, 1)?.ok_or_else(|| Error::invalid("repeats are missing"))?;
    if repeats.len() != from.len() || repeats.iter().any(|&n| n < 0) {
        return Err(Error::invalid(format!(
            "repeats of {repeats:?} for {from:?}, expected a count from 0 for each axis"
        )));
    }
    let strides_from = dense_strides(from);
    let (mut shape, mut strides, mut tiled) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..from.len() {
        shape.extend([repeats[i], from[i]]);
        strides.extend([0, strides_from[i]]);
        tiled.push(repeats[i].saturating_mul(from[i]));
    }
    expect_output(request, 0, &tiled)?;
    movement(request, &shape, &strides, 0)
}

/// The extents of an image, and the length of its blocks.
fn image(request: &Request<'_>) -> Result<([i64; 4], i64)> {
    let block = request.attrs.int("blocksize", 0)?;
    let found = extents(request.required_input(0)?)?;
    match <[i64; 4]>::try_from(found) {
        Ok(extents) if (1..1 << 31).contains(&block) => Ok((extents, block)),
        Ok(_) => Err(Error::invalid(format!("a block size of {block}"))),
        Err(_) => Err(Error::invalid(format!("extents of {found:?}, expected four of them"))),
    }
}

fn depth_to_space(request: &Request<'_>) -> Result<Prepared> {
    let ([n, depth, height, width], block) = image(request)?;
    let c = depth / (block * block);
    if c * block * block != depth {
        return Err(Error::invalid(format!("a depth of {depth} for blocks of {block} by {block}")));
    }
    expect_output(request, 0, &[n, c, height.saturating_mul(block), width.saturating_mul(block)])?;
    match request.attrs.string("mode", "DCR")? {
        "DCR" => permuted(request, &[n, block, block, c, height, width], &[0, 3, 4, 1, 5, 2]),
        "CRD" => permuted(request, &[n, c, block, block, height, width], &[0, 1, 4, 2, 5, 3]),
        mode => Err(Error::invalid(format!("mode is DCR or CRD, found {mode}"))),
    }
}

fn space_to_depth(request: &Request<'_>) -> Result<Prepared> {
    let ([n, c, height, width], block) = image(request)?;
    let (rows, cols) = (height / block, width / block);
    if rows * block != height || cols * block != width {
        return Err(Error::invalid(format!("{height} by {width} elements for blocks of {block} by {block}")));
    }
    expect_output(request, 0, &[n, c.saturating_mul(block * block), rows, cols])?;
    let view = [n, c, rows, block, cols, block];
    match request.attrs.string("mode", "DCR")? {
        "DCR" => permuted(request, &view, &[0, 3, 5, 1, 2, 4]),
        "CRD" => permuted(request, &view, &[0, 1, 3, 5, 2, 4]),
        mode => Err(Error::invalid(format!("mode is DCR or CRD, found {mode}"))),
    }
}

fn reverse_sequence(request: &Request<'_>) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let from = extents(input)?;
    expect_output(request, 0, from)?;
    let axes = [request.attrs.int("time_axis", 0)?, request.attrs.int("batch_axis", 1)?];
    let time_is_first = match axes {
        [0, 1] => true,
        [1, 0] => false,
        _ => return Err(Error::invalid(format!("time and batch are the axes {axes:?}, expected 0 and 1"))),
    };
    let [first, second, inner @ ..] = from else {
        return Err(Error::invalid(format!("extents of {from:?}, expected time and batch")));
    };
    let (times, batches) = if time_is_first { (*first, *second) } else { (*second, *first) };
    let lengths = request.required_input(1)?.shape();
    if lengths != [batches] {
        return Err(Error::invalid(format!("lengths of {lengths:?} for {batches} sequences")));
    }
    let mut build = Build::new(request);
    let n = input.n_elements() as i64;
    let tensor = request.required_input(1)?;
    let bounds = &[(0, times)];
    let lengths = Integers { op: "ReverseSequence", what: "length", tensor, slot: Slot::Input(1), bounds };
    build.expect(&lengths)?;
    if n > 0 {
        let run: i64 = inner.iter().product();
        let (unit, ratio) = Unit::of(input.dtype())?.widened(&[run]);
        // A length that is none fails the stream, and is cut to one.
        let order = "let length = u32(clamp(bitcast<i32>(lengths[batch].x), 0, i32(p.times)));\n\
                     if (time < length) { time = length - 1u - time; }\n";
        let code = match time_is_first {
            true => format!(
                "let row = e / p.run;\nvar time = row / p.batches;\nlet batch = row % p.batches;\n{order}\
                 let at = (time * p.batches + batch) * p.run + e % p.run;\nv = {};",
                unit.load("x", "at")
            ),
            false => format!(
                "let row = e / p.run;\nvar time = row % p.times;\nlet batch = row / p.times;\n{order}\
                 let at = (batch * p.times + time) * p.run + e % p.run;\nv = {};",
                unit.load("x", "at")
            ),
        };
        let made = Made {
            name: "ReverseSequence",
            buffers: vec![("x", unit.storage(), Slot::Input(0)), ("lengths", "vec2<u32>", Slot::Input(1))],
            params: vec![param("run", run / ratio)?, param("times", times)?, param("batches", batches)?],
            functions: "",
            code: &code,
            turns: 0,
        };
        unit.make(&mut build, Slot::Output(0), n / ratio, made)?;
    }
    build.finish()
}

fn trilu(request: &Request<'_>) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let from = extents(input)?;
    expect_output(request, 0, from)?;
    let &[.., rows, cols] = from else {
        return Err(Error::invalid(format!("{from:?} has no matrices")));
    };
    // Beyond the corners all diagonals are alike.
    let k = host_int(request, 1, 0)?.clamp(-rows - 1, cols + 1);
    let unit = Unit::of(input.dtype())?;
    let keeps = if request.attrs.int("upper", 1)? != 0 { ">=" } else { "<=" };
    let code = format!(
        "let col = i32(e % p.cols);\nlet row = i32((e / p.cols) % p.rows);\n\
         if (col - row {keeps} p.k) {{ v = {}; }}",
        unit.load("x", "e")
    );
    let mut build = Build::new(request);
    let made = Made {
        name: "Trilu",
        buffers: vec![("x", unit.storage(), Slot::Input(0))],
        params: vec![param("rows", rows)?, param("cols", cols)?, param_i32("k", k)?],
        functions: "",
        code: &code,
        turns: 0,
    };
    unit.make(&mut build, Slot::Output(0), input.n_elements() as i64, made)?;
    build.finish()
}

#[cfg(test)]
mod tests {
    use super::slice_axis;

    #[test]
    fn a_slice_is_clamped_to_its_axis() {
        let check = |args: (i64, i64, i64, i64), expected| {
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
