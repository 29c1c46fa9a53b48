//! Ops that move elements without reading their values: joining, cutting, repeating, padding, reordering.

use super::extent::{
    agree, axes, axis, broadcast, extent, permutation, plus, show, sum, times, unknown, unknown_of,
};
use super::{Node, invalid};
use crate::read::slice_axis;
use crate::types::{Dim, TensorType};
use devbay_plugin_api::sdk::Result;

/// Infers Concat.
pub fn concat(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let n = node.types.len().max(1);
    let inputs: Vec<usize> = (0..n).collect();
    for &i in &inputs {
        node.required(i)?;
    }
    let dtype = node.shared_dtype(&inputs)?;
    let shapes: Vec<&[Dim]> = inputs.iter().filter_map(|&i| node.shape(i)).collect();
    let Some((first, rest)) = shapes.split_first() else {
        return node.result(dtype, None);
    };
    let axis = axis(node.int("axis", 0), first.len())?;
    let mut result = first.to_vec();
    for shape in rest {
        let joined = (shape.len() == result.len()).then_some(()).and_then(|()| {
            for (i, dim) in shape.iter().enumerate().filter(|(i, _)| *i != axis) {
                result[i] = agree(&result[i], dim)?;
            }
            Some(())
        });
        if joined.is_none() {
            return Err(invalid(format!(
                "expected shapes that differ along axis {axis} alone, found {} and {}",
                show(first),
                show(shape)
            )));
        }
    }
    result[axis] = if shapes.len() == n {
        sum(&shapes.iter().map(|shape| &shape[axis]).collect::<Vec<_>>())?
    } else {
        Dim::unknown()
    };
    node.result(dtype, Some(result))
}

/// Infers Split: the parts' sizes are the second operand, or follow from their number.
pub fn split(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    let n = node.n_outputs;
    let sizes = node.constant_ints(1)?;
    let wanted = match (&sizes, node.optional(1)) {
        (Some(sizes), _) => Some(sizes.len()),
        (None, Some(_)) => node.n_ints(1)?,
        (None, None) => Some(extent(node.int("num_outputs", n as i64).into())?),
    };
    if let Some(wanted) = wanted.filter(|&wanted| wanted != n) {
        return Err(invalid(format!("expected {wanted} results, found {n}")));
    }
    let Some(dims) = &x.shape else {
        return node.results(vec![x.clone(); n]);
    };
    let axis = axis(node.int("axis", 0), dims.len())?;
    let parts = match sizes {
        Some(sizes) => parts_of_sizes(&dims[axis], &sizes)?,
        None if node.optional(1).is_some() => unknown(n),
        None => even_parts(&dims[axis], n)?,
    };
    let part_type = |part: Dim| {
        let mut dims = dims.clone();
        dims[axis] = part;
        TensorType { dtype: x.dtype, shape: Some(dims) }
    };
    node.results(parts.into_iter().map(part_type).collect())
}

fn parts_of_sizes(whole: &Dim, sizes: &[i64]) -> Result<Vec<Dim>> {
    let parts: Vec<Dim> =
        sizes.iter().map(|&size| Ok(Dim::Known(extent(size.into())?))).collect::<Result<_>>()?;
    let total = sum(&parts.iter().collect::<Vec<_>>())?;
    match agree(whole, &total) {
        Some(_) => Ok(parts),
        None => Err(invalid(format!("expected parts that sum to {whole}, found {sizes:?}"))),
    }
}

/// Returns the sizes of equal parts; the last may be smaller.
fn even_parts(whole: &Dim, n: usize) -> Result<Vec<Dim>> {
    let Some(whole) = whole.known() else {
        return Ok(match n {
            1 => vec![whole.clone()],
            _ => unknown(n),
        });
    };
    if n == 0 {
        return Err(invalid("expected results, found none"));
    }
    let size = whole.div_ceil(n);
    // Cannot overflow: `size * (n - 1)` is below `whole + n`.
    let last = whole as i128 - size as i128 * (n as i128 - 1);
    let Ok(last) = usize::try_from(last) else {
        return Err(invalid(format!("expected an extent that splits into {n} parts, found {whole}")));
    };
    let mut parts = vec![Dim::Known(size); n];
    parts[n - 1] = Dim::Known(last);
    Ok(parts)
}

/// Infers Slice: starts, ends, and perhaps axes and steps.
pub fn slice(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.required(1)?;
    node.required(2)?;
    let Some(dims) = &x.shape else {
        return node.result(x.dtype, None);
    };
    let (starts, ends) = (node.constant_ints(1)?, node.constant_ints(2)?);
    let n = match node.n_ints(1)? {
        None => node.n_ints(2)?,
        known => known,
    };
    let positions = match (node.optional(3), n) {
        (None, Some(n)) if n <= dims.len() => Some((0..n).collect()),
        (None, Some(n)) => {
            return Err(invalid(format!("expected at most {} starts, found {n}", dims.len())));
        }
        (None, None) => None,
        (Some(_), _) => match node.constant_ints(3)? {
            Some(list) => Some(axes(&list, dims.len())?),
            None => None,
        },
    };
    let Some(positions) = positions else {
        return node.result(x.dtype, Some(unknown(dims.len())));
    };
    let steps = match node.optional(4) {
        None => Some(vec![1; positions.len()]),
        Some(_) => node.constant_ints(4)?,
    };
    for list in [&starts, &ends, &steps].into_iter().flatten() {
        if list.len() != positions.len() {
            return Err(invalid(format!(
                "expected as many starts, ends, axes and steps, found {} and {}",
                positions.len(),
                list.len()
            )));
        }
    }
    let mut result = dims.clone();
    for (i, &position) in positions.iter().enumerate() {
        result[position] = match (&starts, &ends, &steps) {
            (Some(starts), Some(ends), Some(steps)) => {
                slice_dim(&dims[position], starts[i], ends[i], steps[i])?
            }
            _ => Dim::unknown(),
        };
    }
    node.result(x.dtype, Some(result))
}

/// Ends from here on mean the end of the axis: exporters write the largest `i32` or `i64`.
const TO_THE_END: i64 = i32::MAX as i64;

fn slice_dim(dim: &Dim, start: i64, end: i64, step: i64) -> Result<Dim> {
    let Some(n) = dim.known() else {
        // A slice of no elements, to check the step.
        slice_axis(0, start, end, step)?;
        let forward = step == 1 && start == 0 && end >= TO_THE_END;
        let backward = step == -1 && (start == -1 || start >= TO_THE_END) && end <= -TO_THE_END;
        return Ok(if forward || backward { dim.clone() } else { Dim::unknown() });
    };
    Ok(Dim::Known(extent(slice_axis(n as i128, start, end, step)?.1)?))
}

/// Infers Expand: the operand and the shape in the second operand broadcast, both ways.
pub fn expand(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.required(1)?;
    let target = match node.constant_ints(1)? {
        Some(shape) => Some(known_dims(&shape)?),
        None => node.n_ints(1)?.map(unknown_of).transpose()?,
    };
    let shape = broadcast(&[x.shape.as_deref(), target.as_deref()])?;
    node.result(x.dtype, shape)
}

/// Converts the shape that an operand contains.
pub(super) fn known_dims(shape: &[i64]) -> Result<Vec<Dim>> {
    shape.iter().map(|&dim| Ok(Dim::Known(extent(dim.into())?))).collect()
}

/// Infers Tile: the second operand holds the repeats along each axis.
pub fn tile(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.required(1)?;
    let n = node.n_ints(1)?;
    let Some(dims) = &x.shape else {
        return node.result(x.dtype, n.map(unknown_of).transpose()?);
    };
    if let Some(n) = n.filter(|&n| n != dims.len()) {
        return Err(invalid(format!("expected {} repeats, found {n}", dims.len())));
    }
    let result = match node.constant_ints(1)? {
        Some(repeats) => {
            dims.iter().zip(repeats).map(|(dim, n)| times(dim, extent(n.into())?)).collect::<Result<_>>()?
        }
        None => unknown(dims.len()),
    };
    node.result(x.dtype, Some(result))
}

/// Infers Pad: begins of all axes, then ends; the axes are the fourth operand. Negative pads remove elements.
pub fn pad(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.required(1)?;
    node.shared_dtype(&[0, 2])?;
    let Some(dims) = &x.shape else {
        return node.result(x.dtype, None);
    };
    let positions: Option<Vec<usize>> = match (node.optional(3), node.constant_ints(3)?) {
        (None, _) => Some((0..dims.len()).collect()),
        (Some(_), Some(list)) => Some(axes(&list, dims.len())?),
        (Some(_), None) => None,
    };
    let Some(positions) = positions else {
        return node.result(x.dtype, Some(unknown(dims.len())));
    };
    let n = positions.len();
    if let Some(found) = node.n_ints(1)?.filter(|&found| found != 2 * n) {
        return Err(invalid(format!("expected {} pads, found {found}", 2 * n)));
    }
    let pads = node.constant_ints(1)?;
    let mut result = dims.clone();
    for (i, position) in positions.into_iter().enumerate() {
        result[position] = match &pads {
            Some(pads) => plus(&dims[position], i128::from(pads[i]) + i128::from(pads[n + i]))?,
            None => Dim::unknown(),
        };
    }
    node.result(x.dtype, Some(result))
}

/// Infers Transpose.
pub fn transpose(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    let perm = node.ints("perm");
    let shape = match (&x.shape, perm) {
        (None, None) => None,
        (None, Some(perm)) => {
            permutation(perm, perm.len())?;
            Some(unknown(perm.len()))
        }
        (Some(dims), None) => Some(dims.iter().rev().cloned().collect()),
        (Some(dims), Some(perm)) => {
            let perm = permutation(perm, dims.len())?;
            Some(perm.into_iter().map(|i| dims[i].clone()).collect())
        }
    };
    node.result(x.dtype, shape)
}

/// Infers Trilu: a matrix or a batch of them.
pub fn trilu(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    match &x.shape {
        Some(dims) if dims.len() < 2 => {
            Err(invalid(format!("expected at least 2 dimensions, found {}", show(dims))))
        }
        shape => node.result(x.dtype, shape.clone()),
    }
}

/// Infers DepthToSpace: channels become blocks of pixels.
pub fn depth_to_space(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let block = block_size(node)?;
    image_op(node, |[n, c, h, w]| {
        let area = block
            .checked_mul(block)
            .ok_or_else(|| invalid(format!("expected a smaller blocksize, found {block}")))?;
        Ok([n.clone(), divide("channels", c, area)?, times(h, block)?, times(w, block)?])
    })
}

/// Infers SpaceToDepth: blocks of pixels become channels.
pub fn space_to_depth(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let block = block_size(node)?;
    image_op(node, |[n, c, h, w]| {
        Ok([
            n.clone(),
            times(&times(c, block)?, block)?,
            divide("rows", h, block)?,
            divide("columns", w, block)?,
        ])
    })
}

fn block_size(node: &Node<'_>) -> Result<usize> {
    match node.int("blocksize", 0) {
        size @ 1.. => extent(size.into()),
        size => Err(invalid(format!("expected a blocksize, found {size}"))),
    }
}

/// Infers an op on images `[n, c, h, w]`, even if nothing of their shape is known.
fn image_op(node: &Node<'_>, f: impl FnOnce(&[Dim; 4]) -> Result<[Dim; 4]>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.expect_rank(0, 4)?;
    let dims = x.shape.clone().unwrap_or_else(|| unknown(4));
    let shape = match <&[Dim; 4]>::try_from(dims.as_slice()) {
        Ok(dims) => f(dims)?.to_vec(),
        Err(_) => unknown(4),
    };
    node.result(x.dtype, Some(shape))
}

fn divide(what: &str, dim: &Dim, n: usize) -> Result<Dim> {
    match dim.known() {
        _ if n == 1 => Ok(dim.clone()),
        Some(known) if known % n == 0 => Ok(Dim::Known(known / n)),
        Some(known) => Err(invalid(format!("expected {what} in multiples of {n}, found {known}"))),
        None => Ok(Dim::unknown()),
    }
}

#[cfg(test)]
mod tests {
    use crate::infer::testing::check;

    #[test]
    fn joining() {
        check("Concat axis=1", "f32[2,3] f32[2,4]", "f32[2,7]");
        check("Concat axis=-1", "f32[n,3] f32[2,?]", "f32[2,?]");
        check("Concat axis=0", "f32[n,3] f32[0,3]", "f32[n,3]");
        check("Concat axis=0", "f32[n,3] f32[..]", "f32[?,3]");
        check("Concat axis=0", "f32[..]", "f32[..]");
        check(
            "Concat axis=0",
            "f32[18446744073709551615] f32[1]",
            "error: extent of 18446744073709551616, which is too large",
        );
        check(
            "Concat axis=1",
            "f32[2,3] f32[3,4]",
            "error: expected shapes that differ along axis 1 alone, found [2,3] and [3,4]",
        );
        check("Concat axis=2", "f32[2,3]", "error: found axis 2");
        check("Concat axis=0", "f32[2] f32[2,1]", "error: along axis 0");
        check("Concat axis=0", "", "error: expected an input 0");
    }

    #[test]
    fn cutting_into_parts() {
        check("Split num_outputs=2", "f32[6]", "f32[3] f32[3]");
        check("Split num_outputs=3 axis=-1", "f32[n,7]", "f32[n,3] f32[n,3] f32[n,1]");
        check("Split", "f32[4,2]", "f32[2,2] f32[2,2]");
        check("Split axis=1", "f32[2,n]", "f32[2,?] f32[2,?]");
        check("Split", "f32[6] i64[3]{1,2,3}", "f32[1] f32[2] f32[3]");
        check("Split", "f32[n] i64[2]{1,2}", "f32[1] f32[2]");
        check("Split", "f32[6,2] i64[2]", "f32[?,2] f32[?,2]");
        check("Split", "f32[..] i64[2]", "f32[..] f32[..]");
        check("Split #2", "f32[6] i64[2]{1,2}", "error: expected parts that sum to 6, found [1, 2]");
        check("Split #2", "f32[6] i64[2]{7,-1}", "error: negative");
        check("Split #3", "f32[6] i64[2]{3,3}", "error: expected 2 results, found 3");
        check(
            "Split #4 num_outputs=4",
            "f32[5]",
            "error: expected an extent that splits into 4 parts, found 5",
        );
        check("Split num_outputs=-1", "f32[5]", "error: negative");
    }

    #[test]
    fn slicing() {
        let all = "9223372036854775807";
        let none = "-9223372036854775808";
        let check_slice = |dim: &str, range: [&str; 3], expected: &str| {
            let [start, end, step] = range;
            check(
                "Slice",
                &format!("f32[{dim}] i64[1]{{{start}}} i64[1]{{{end}}} - i64[1]{{{step}}}"),
                expected,
            );
        };
        check_slice("10", ["2", "5", "1"], "f32[3]");
        check_slice("10", ["2", all, "3"], "f32[3]");
        check_slice("10", ["-3", all, "1"], "f32[3]");
        check_slice("10", ["0", "-1", "1"], "f32[9]");
        check_slice("10", ["5", "2", "1"], "f32[0]");
        check_slice("10", ["20", "30", "1"], "f32[0]");
        check_slice("10", ["-1", none, "-1"], "f32[10]");
        check_slice("10", [all, none, "-3"], "f32[4]");
        check_slice("10", ["8", "2", "-2"], "f32[3]");
        check_slice("10", [none, "2", "1"], "f32[2]");
        // ONNX clamps a start before the first element to the first; NumPy returns nothing here.
        check_slice("10", [none, none, none], "f32[1]");
        check_slice("10", [all, none, none], "f32[1]");
        check_slice("0", ["-1", none, "-1"], "f32[0]");
        check_slice("0", ["0", all, "1"], "f32[0]");
        check_slice("n", ["0", all, "1"], "f32[n]");
        check_slice("n", ["0", "2147483647", "1"], "f32[n]");
        check_slice("n", ["-1", none, "-1"], "f32[n]");
        check_slice("n", ["1", all, "1"], "f32[?]");
        check_slice("10", ["0", "5", "0"], "error: expected a step other than 0, found 0");
    }

    #[test]
    fn slicing_axes() {
        check("Slice", "f32[n,8,9] i64[2]{1,2} i64[2]{3,3} i64[2]{-1,1}", "f32[n,1,2]");
        check("Slice", "f32[4,5] i64[1]{1} i64[1]{3}", "f32[2,5]");
        // Reversed, from before the first element.
        check("Slice", "f32[4,5] i64[1]{-6} i64[1]{-9} i64[1]{0} i64[1]{-1}", "f32[1,5]");
        check("Slice", "f32[0,5] i64[1]{-1} i64[1]{-9} i64[1]{0} i64[1]{-1}", "f32[0,5]");
        check("Slice", "f32[4,5] i64[1] i64[1]{3} i64[1]{1}", "f32[4,?]");
        check("Slice", "f32[4,5] i64[1]{1} i64[1]{3} i64[1]", "f32[?,?]");
        check("Slice", "f32[4,5] i64[1] i64[1]", "f32[?,5]");
        check("Slice", "f32[4,5] i64[?] i64[?]", "f32[?,?]");
        check("Slice", "f32[..] i64[1]{1} i64[1]{3}", "f32[..]");
        check("Slice", "f32[4] i64[2]{0,0} i64[2]{1,1}", "error: expected at most 1 starts, found 2");
        check(
            "Slice",
            "f32[4,5] i64[1]{0} i64[2]{1,1}",
            "error: expected as many starts, ends, axes and steps, found 1 and 2",
        );
        check("Slice", "f32[4,5] i64[2]{0,0} i64[2]{1,1} i64[2]{0,-2}", "error: expected each axis once");
    }

    #[test]
    fn repeating() {
        check("Expand", "f32[3,1] i64[3]{2,1,6}", "f32[2,3,6]");
        check("Expand", "f32[3,n] i64[2]{1,1}", "f32[3,n]");
        check("Expand", "f32[3,1] i64[3]", "f32[?,3,?]");
        check("Expand", "f32[3,1] i64[?]", "f32[..]");
        check("Expand", "f32[3] i64[1]{-1}", "error: negative");
        check("Expand", "f32[3] i64[1]{4}", "error: broadcast");
        check("Tile", "f32[2,n] i64[2]{3,1}", "f32[6,n]");
        check("Tile", "f32[2,n] i64[2]{0,2}", "f32[0,?]");
        check("Tile", "f32[2,n] i64[2]", "f32[?,?]");
        check("Tile", "f32[..] i64[2]", "f32[?,?]");
        check("Tile", "f32[2] i64[2]{1,1}", "error: expected 1 repeats, found 2");
        check(
            "Tile",
            "f32[4] i64[1]{9223372036854775807}",
            "error: extent of 4 times 9223372036854775807, which is too large",
        );
        check("Tile", "f32[1,1] i64[2]{4294967296,4294967296}", "error: would be larger than memory");
    }

    #[test]
    fn padding() {
        check("Pad", "f32[2,3] i64[4]{0,1,0,2}", "f32[2,6]");
        check("Pad", "f32[2,3] i64[4]{-1,0,0,0}", "f32[1,3]");
        check("Pad", "f32[n,3] i64[4]{0,1,0,2} f32[]", "f32[n,6]");
        check("Pad", "f32[n,3] i64[4]{1,0,0,0}", "f32[?,3]");
        check("Pad", "f32[n,3] i64[2]{1,2} - i64[1]{-1}", "f32[n,6]");
        check("Pad", "f32[n,3] i64[2] - i64[1]{1}", "f32[n,?]");
        check("Pad", "f32[n,3] i64[2] - i64[1]", "f32[?,?]");
        check("Pad", "f32[..] i64[4]", "f32[..]");
        check("Pad", "f32[2,3] i64[2]{1,1}", "error: expected 4 pads, found 2");
        check("Pad", "f32[2] i64[2]{-3,0}", "error: extent of -1");
        check(
            "Pad",
            "f32[2] i64[2]{-9223372036854775808,-9223372036854775808}",
            "error: extent of -18446744073709551614, which is negative",
        );
    }

    #[test]
    fn reordering() {
        check("Transpose", "f32[2,n,4]", "f32[4,n,2]");
        check("Transpose perm=[1,0,2]", "f32[2,n,4]", "f32[n,2,4]");
        check("Transpose perm=[1,0]", "f32[..]", "f32[?,?]");
        check("Transpose", "f32[..]", "f32[..]");
        check("Transpose", "f32[]", "f32[]");
        check("Transpose perm=[0,0]", "f32[2,3]", "error: expected each axis once");
        check("Transpose perm=[0]", "f32[2,3]", "error: permutation of 2");
        check("Transpose perm=[-1,0]", "f32[2,3]", "error: permutation of 2");
        check("Transpose perm=[0,2]", "f32[2,3]", "error: found axis 2");
        check("Trilu", "f32[2,3]", "f32[2,3]");
        check("Trilu", "f32[2]", "error: expected at least 2 dimensions");
        check("DepthToSpace blocksize=2", "f32[n,8,2,w]", "f32[n,2,4,?]");
        check("SpaceToDepth blocksize=2", "f32[n,2,4,w]", "f32[n,8,2,?]");
        check("DepthToSpace blocksize=1", "f32[..]", "f32[?,?,?,?]");
        check(
            "DepthToSpace blocksize=2",
            "f32[1,6,2,2]",
            "error: expected channels in multiples of 4, found 6",
        );
        check("DepthToSpace", "f32[1,6,2,2]", "error: expected a blocksize, found 0");
        check(
            "DepthToSpace blocksize=9223372036854775807",
            "f32[1,6,2,2]",
            "error: expected a smaller blocksize",
        );
        check("SpaceToDepth blocksize=2", "f32[1,6,2]", "error: expected 4 dimensions");
    }
}
