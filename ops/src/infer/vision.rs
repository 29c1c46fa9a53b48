//! Ops on images whose result's extents come from an operand or attributes.

use super::extent::{Shape, axes, extent, product, show, unknown};
use super::movement::known_dims;
use super::{Node, invalid};
use crate::types::{Dim, TensorType};
use devbay_plugin_api::sdk::Result;

/// Infers AffineGrid: a position per pixel of an image.
pub fn affine_grid(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let theta = node.required(0)?;
    node.required(1)?;
    node.expect_rank(0, 3)?;
    let shape: Shape = match node.constant_ints(1)? {
        None => node.n_ints(1)?.filter(|n| [4, 5].contains(n)).map(unknown),
        Some(size) => {
            let dims = known_dims(&size)?;
            let [batch, _, places @ ..] = &dims[..] else {
                return Err(invalid(format!("expected the size of an image, found {}", show(&dims))));
            };
            Some([std::slice::from_ref(batch), places, &[Dim::Known(places.len())]].concat())
        }
    };
    node.result(theta.dtype, shape)
}

/// Infers CenterCropPad: an operand gives the extents of all axes, or of some.
pub fn center_crop_pad(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.required(1)?;
    let Some(dims) = &x.shape else {
        return node.result(x.dtype, None);
    };
    let axes = match node.ints("axes") {
        Some(list) => axes(list, dims.len())?,
        None => (0..dims.len()).collect(),
    };
    let mut dims = dims.clone();
    let wanted = match node.constant_ints(1)? {
        Some(wanted) => known_dims(&wanted)?,
        None => unknown(axes.len()),
    };
    if wanted.len() != axes.len() {
        return Err(invalid(format!("expected extents for {} axes, found {}", axes.len(), wanted.len())));
    }
    for (axis, dim) in axes.into_iter().zip(wanted) {
        dims[axis] = dim;
    }
    node.result(x.dtype, Some(dims))
}

/// Infers Col2Im: blocks combined into images.
pub fn col2im(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.expect_rank(0, 3)?;
    node.required(1)?;
    node.required(2)?;
    let image = match node.constant_ints(1)? {
        Some(image) => known_dims(&image)?,
        None => match node.n_ints(1)?.or(node.n_ints(2)?) {
            Some(n) => super::extent::unknown_of(n)?,
            None => return node.result(x.dtype, None),
        },
    };
    let channels = match (node.shape(0), node.constant_ints(2)?) {
        (Some([_, columns, _]), Some(block)) => {
            let block = product(&known_dims(&block)?)?;
            match (columns.known(), block.known()) {
                (Some(_), Some(0)) => return Err(invalid("expected blocks with elements, found none")),
                (Some(columns), Some(block)) if columns % block == 0 => Dim::Known(columns / block),
                (Some(columns), Some(block)) => {
                    return Err(invalid(format!(
                        "expected blocks of {block} elements, found {columns} rows"
                    )));
                }
                _ => Dim::unknown(),
            }
        }
        _ => Dim::unknown(),
    };
    let batch = node.shape(0).map_or_else(Dim::unknown, |dims| dims[0].clone());
    node.result(x.dtype, Some([&[batch, channels], &image[..]].concat()))
}

/// Infers DeformConv: the spatial extents of the offsets, and the kernels' channels.
pub fn deform_conv(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.required(1)?;
    node.required(2)?;
    node.shared_dtype(&[0, 1, 2, 3, 4])?;
    let rank = [0, 1, 2].into_iter().find_map(|i| node.shape(i).map(<[Dim]>::len));
    let Some(rank) = rank else {
        return node.result(x.dtype, None);
    };
    if rank < 3 {
        return Err(invalid(format!("expected an image of 3 or more dimensions, found {rank}")));
    }
    for i in [0, 1, 2] {
        node.expect_rank(i, rank)?;
    }
    let first = |i: usize| node.shape(i).map_or_else(Dim::unknown, |dims| dims[0].clone());
    let places = node.shape(2).map_or_else(|| unknown(rank - 2), |dims| dims[2..].to_vec());
    node.result(x.dtype, Some([&[first(0), first(1)], &places[..]].concat()))
}

/// Infers MaxUnpool: the extents come from an operand, or from the span of the windows.
pub fn max_unpool(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.required(1)?;
    let Some(dims) = &x.shape else {
        return node.result(x.dtype, None);
    };
    let n = dims.len().saturating_sub(2);
    node.expect_rank(1, dims.len())?;
    if node.optional(2).is_some() {
        let shape = match node.constant_ints(2)? {
            Some(wanted) => known_dims(&wanted)?,
            None => unknown(dims.len()),
        };
        if shape.len() != dims.len() {
            return Err(invalid(format!(
                "expected {} extents as input 2, found {}",
                dims.len(),
                shape.len()
            )));
        }
        return node.result(x.dtype, Some(shape));
    }
    let list = |name: &str, n: usize, default: i64| match node.ints(name) {
        None => Ok(vec![default; n]),
        Some(list) if list.len() == n => Ok(list.to_vec()),
        Some(list) => Err(invalid(format!("expected {n} numbers as {name}, found {}", list.len()))),
    };
    let (kernel, strides, pads) =
        (list("kernel_shape", n, 1)?, list("strides", n, 1)?, list("pads", 2 * n, 0)?);
    let mut shape = dims.clone();
    for i in 0..n {
        shape[2 + i] = match dims[2 + i].known() {
            None => Dim::unknown(),
            Some(n_windows) => {
                let span = (n_windows as i128 - 1) * i128::from(strides[i]) + i128::from(kernel[i]);
                let cut = i128::from(pads[i]) + i128::from(pads[n + i]);
                Dim::Known(extent(span - cut)?)
            }
        };
    }
    node.result(x.dtype, Some(shape))
}

#[cfg(test)]
mod tests {
    use crate::infer::testing::check;

    #[test]
    fn sizes_from_operands() {
        check("AffineGrid", "f32[n,2,3] i64[4]{2,3,5,6}", "f32[2,5,6,2]");
        check("AffineGrid", "f32[n,3,4] i64[5]", "f32[?,?,?,?,?]");
        check("AffineGrid", "f32[n,2,3] i64[1]{2}", "error: the size of an image");
        check("CenterCropPad", "f32[3,n] i64[2]{5,6}", "f32[5,6]");
        check("CenterCropPad axes=[-1]", "f32[3,n] i32[1]{6}", "f32[3,6]");
        check("CenterCropPad axes=[1]", "f32[3,n] i64[1]", "f32[3,?]");
        check(
            "CenterCropPad axes=[1]",
            "f32[3,n] i64[2]{1,2}",
            "error: expected extents for 1 axes, found 2",
        );
        check("CenterCropPad", "f32[3] i64[1]{-1}", "error: negative");
        check("Col2Im", "f32[n,12,7] i64[2]{5,6} i64[2]{2,3}", "f32[n,2,5,6]");
        check("Col2Im", "f32[n,12,7] i64[2] i64[2]", "f32[n,?,?,?]");
        check("Col2Im", "f32[n,12,7] i64[2]{5,6} i64[2]{0,3}", "error: blocks with elements");
        check("Col2Im", "f32[n,13,7] i64[2]{5,6} i64[2]{2,3}", "error: found 13 rows");
    }

    #[test]
    fn sizes_from_attributes() {
        check("DeformConv", "f32[n,3,8,8] f32[5,3,2,2] f32[n,8,7,6]", "f32[n,5,7,6]");
        check("DeformConv", "f32[3,8] f32[5,3] f32[3,8]", "error: 3 or more dimensions");
        check("MaxUnpool kernel_shape=[2,2] strides=[2,2]", "f32[n,3,4,5] i64[n,3,4,5]", "f32[n,3,8,10]");
        check("MaxUnpool kernel_shape=[2]", "f32[n,3,4] i64[n,3,4] i64[3]{1,3,9}", "f32[1,3,9]");
        check(
            "MaxUnpool kernel_shape=[2]",
            "f32[n,3,4,5] i64[n,3,4,5]",
            "error: expected 2 numbers as kernel_shape",
        );
    }
}
