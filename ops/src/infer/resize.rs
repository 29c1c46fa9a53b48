//! Resize: extents from scales or from sizes, perhaps for some axes only.

use super::extent::{axes, extent, show, unknown, unknown_of};
use super::{Node, invalid};
use crate::Constant;
use crate::types::{Dim, F32, TensorType};
use devbay_plugin_api::sdk::Result;

const ROI: usize = 1;
const SCALES: usize = 2;
const SIZES: usize = 3;

/// Infers Resize.
pub fn resize(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    let by = match (is_given(node, SCALES), is_given(node, SIZES)) {
        (true, false) => SCALES,
        (false, true) => SIZES,
        (scales, _) => {
            let found = if scales { "both" } else { "neither" };
            return Err(invalid(format!("expected scales or sizes, found {found}")));
        }
    };
    let Some(dims) = &x.shape else {
        // Without axes, all dimensions have a number each.
        let rank = match node.attr("axes") {
            None => node.n_ints(by)?.map(unknown_of).transpose()?,
            Some(_) => None,
        };
        return node.result(x.dtype, rank);
    };
    let positions = match node.ints("axes") {
        Some(list) => axes(list, dims.len())?,
        None => (0..dims.len()).collect(),
    };
    if let Some(n) = node.n_ints(by)?.filter(|&n| n != positions.len()) {
        return Err(invalid(format!(
            "expected {} scales or sizes for {}, found {n}",
            positions.len(),
            show(dims)
        )));
    }
    let resized: Vec<Dim> = positions.iter().map(|&i| dims[i].clone()).collect();
    let resized = match by {
        SCALES => scaled(node, &resized)?,
        _ => sized(node, &resized)?,
    };
    let mut result = dims.clone();
    for (position, dim) in positions.into_iter().zip(resized) {
        result[position] = dim;
    }
    node.result(x.dtype, Some(result))
}

/// Returns whether an operand has content: older exporters write an empty list for an absent one.
fn is_given(node: &Node<'_>, i: usize) -> bool {
    node.optional(i).is_some() && node.shape(i) != Some(&[Dim::Known(0)])
}

/// Returns extents times scales, in the scales' precision, which onnxruntime computes in.
fn scaled(node: &Node<'_>, dims: &[Dim]) -> Result<Vec<Dim>> {
    let Some(scales) = node.constant(SCALES).and_then(floats) else {
        return Ok(unknown(dims.len()));
    };
    let crops = node.string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize";
    let roi = match crops {
        true => node.constant(ROI).and_then(floats),
        false => None,
    };
    let mut result = Vec::with_capacity(dims.len());
    for (i, (dim, &scale)) in dims.iter().zip(&scales).enumerate() {
        if !(scale > 0.0 && scale.is_finite()) {
            return Err(invalid(format!("expected scales above 0, found {scale}")));
        }
        let part = match &roi {
            _ if !crops => Some(1.0),
            Some(roi) if roi.len() == 2 * dims.len() => Some(roi[dims.len() + i] - roi[i]),
            Some(roi) => {
                return Err(invalid(format!(
                    "expected {} numbers as roi, found {}",
                    2 * dims.len(),
                    roi.len()
                )));
            }
            None => None,
        };
        result.push(match (dim.known(), part) {
            (None, Some(1.0)) if scale == 1.0 => dim.clone(),
            (Some(n), Some(part)) => Dim::Known(floor(scale * part * n as f32)?),
            _ => Dim::unknown(),
        });
    }
    Ok(result)
}

fn floor(value: f32) -> Result<usize> {
    if value.is_nan() {
        return Err(invalid("expected a region of the image, found NaN"));
    }
    // A cast saturates, and saturated extents are refused.
    extent(value.floor() as i128)
}

/// Returns the sizes, adjusted on request so that the image keeps its proportions.
fn sized(node: &Node<'_>, dims: &[Dim]) -> Result<Vec<Dim>> {
    let largest_wins = match node.string("keep_aspect_ratio_policy", "stretch") {
        "stretch" => None,
        "not_larger" => Some(false),
        "not_smaller" => Some(true),
        other => {
            return Err(invalid(format!(
                "expected keep_aspect_ratio_policy stretch, not_larger or not_smaller, found {other}"
            )));
        }
    };
    let Some(sizes) = node.constant_ints(SIZES)? else {
        return Ok(unknown(dims.len()));
    };
    let sizes: Vec<usize> = sizes.iter().map(|&size| extent(size.into())).collect::<Result<_>>()?;
    let Some(largest_wins) = largest_wins else {
        return Ok(sizes.into_iter().map(Dim::Known).collect());
    };
    let Some(known) = dims.iter().map(Dim::known).collect::<Option<Vec<_>>>() else {
        return Ok(unknown(dims.len()));
    };
    // Ratios are compared and applied as fractions: a float would round halves either way.
    let ratios = sizes.iter().zip(&known).map(|(&size, &n)| (size, n));
    let smaller =
        |a: (usize, usize), b: (usize, usize)| (a.0 as u128 * b.1 as u128) < (b.0 as u128 * a.1 as u128);
    let ratio = ratios.reduce(|a, b| if smaller(a, b) != largest_wins { a } else { b });
    let Some((size, n)) = ratio.filter(|_| !known.contains(&0)) else {
        return Err(invalid(format!("expected an image with proportions, found {}", show(dims))));
    };
    // Halves round up; products of extents fit `u128`.
    let round = |dim: usize| {
        let product = dim as u128 * size as u128;
        let (whole, rest) = (product / n as u128, product % n as u128);
        i128::try_from(whole + u128::from(2 * rest >= n as u128)).unwrap_or(i128::MAX)
    };
    known.into_iter().map(|dim| Ok(Dim::Known(extent(round(dim))?))).collect()
}

/// Returns the content of an `f32` tensor, such as scales and regions.
fn floats(constant: Constant<'_>) -> Option<Vec<f32>> {
    let numbers = constant.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    (constant.dtype == F32).then(|| numbers.collect())
}

#[cfg(test)]
mod tests {
    use crate::infer::testing::check;

    #[test]
    fn by_scales() {
        check("Resize", "f32[1,n,4,5] - f32[4]{1,1,2,0.5}", "f32[1,n,8,2]");
        check("Resize", "f32[n] - f32[1]{2}", "f32[?]");
        check("Resize", "f32[2,3] - f32[2] i64[0]", "f32[?,?]");
        check("Resize axes=[-1]", "f32[2,3] - f32[1]{2}", "f32[2,6]");
        check("Resize", "f32[..] - f32[2]{2,2}", "f32[?,?]");
        check("Resize axes=[0]", "f32[..] - f32[1]{2}", "f32[..]");
        // 0.7 is less than 7 tenths in f32, but the product rounds to 7.
        check("Resize", "f32[10] - f32[1]{0.7}", "f32[7]");
        check(
            "Resize coordinate_transformation_mode=tf_crop_and_resize",
            "f32[4,8] f32[4]{0,0.25,1,0.75} f32[2]{1,2}",
            "f32[4,8]",
        );
        check(
            "Resize coordinate_transformation_mode=tf_crop_and_resize",
            "f32[4,8] f32[4] f32[2]{1,2}",
            "f32[?,?]",
        );
        check("Resize", "f32[4] - f32[1]{0}", "error: scales above 0");
        check("Resize", "f32[4] - f32[1]{NaN}", "error: scales above 0");
        check("Resize", "f32[4] - f32[1]{1e38}", "error: too large");
        check("Resize", "f32[4] - f32[2]{1,1}", "error: expected 1 scales");
        check("Resize axes=[0,0]", "f32[4] - f32[2]{1,1}", "error: once");
        check("Resize", "f32[4]", "error: scales or sizes, found neither");
        check("Resize", "f32[4] - f32[1] i64[1]", "error: found both");
    }

    #[test]
    fn by_sizes() {
        check("Resize", "f32[1,n] - - i64[2]{1,7}", "f32[1,7]");
        check("Resize", "f32[1,n] - f32[0] i64[2]", "f32[?,?]");
        check("Resize axes=[1]", "f32[m,n] - - i64[1]{7}", "f32[m,7]");
        check(
            "Resize keep_aspect_ratio_policy=not_larger axes=[1,2]",
            "f32[1,2,4] - - i64[2]{7,8}",
            "f32[1,4,8]",
        );
        check(
            "Resize keep_aspect_ratio_policy=not_smaller axes=[1,2]",
            "f32[1,2,4] - - i64[2]{7,8}",
            "f32[1,7,14]",
        );
        // 3 halves round up.
        check("Resize keep_aspect_ratio_policy=not_larger", "f32[2,3] - - i64[2]{1,3}", "f32[1,2]");
        check("Resize keep_aspect_ratio_policy=not_larger", "f32[2,n] - - i64[2]{1,3}", "f32[?,?]");
        check(
            "Resize keep_aspect_ratio_policy=not_larger",
            "f32[0,3] - - i64[2]{1,3}",
            "error: expected an image with proportions, found [0,3]",
        );
        check(
            "Resize keep_aspect_ratio_policy=not_smaller",
            "f32[1,18446744073709551615] - - i64[2]{9223372036854775807,1}",
            "error: too large",
        );
        check("Resize", "f32[4] - - i64[1]{-1}", "error: negative");
    }
}
