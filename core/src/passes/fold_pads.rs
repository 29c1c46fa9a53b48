//! Makes a Pad of zeros in front of a convolution part of the convolution's own padding.
//!
//! Exporters write a Pad where the sides differ, as TensorFlow's `SAME` with a stride has it. Conv takes pads of any
//! size for each side (ONNX Conv-11), and pads with zeros, so the padded copy of the image is unnecessary. Each Conv
//! that reads it reads the image instead, and the Pad is removed if its result has no other reader.
//!
//! Only where all weights are constant and finite: a zero of the image times an infinite weight is NaN, and a kernel
//! need not compute that beyond the image.

use super::{all_finite, each_region};
use crate::cancel::look;
use crate::error::Result;
use crate::program::{AttrValue, Node, Program, Region, ValueId};
use std::collections::HashMap;

/// Folds Pads where possible, except nodes that `stay`. Returns the number of convolutions that pad themselves now.
///
/// # Errors
/// Cancelled, or past the deadline.
pub fn run(program: &mut Program, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    each_region(program, &mut |program, region| fold(program, region, stay))
}

fn fold(program: &Program, region: &mut Region, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    // For each padded value the original, with the zeros around it.
    let mut padded: HashMap<ValueId, (ValueId, Vec<i64>)> = HashMap::new();
    let mut folded = 0;
    for node in &mut region.nodes {
        look()?;
        if stay(node) {
            continue;
        }
        if let (Some(image), Some(output), Some(zeros)) =
            (node.input(0), node.output(0), zeros_around(program, node))
        {
            padded.insert(output, (image, zeros));
            continue;
        }
        let image = node.op.is("Conv").then(|| padded.get(&node.input(0)?)).flatten();
        let is_finite = || program.constant(node.input(1)?).map(all_finite);
        let Some((image, zeros)) = image.filter(|_| is_finite() == Some(true)) else { continue };
        if let Some(pads) = sum(node, zeros) {
            node.inputs[0] = Some(*image);
            node.take_attr("auto_pad");
            node.set_attr("pads", AttrValue::Ints(pads));
            folded += 1;
        }
    }
    Ok(folded)
}

/// Returns the numbers of zeros that a Pad puts before and after each spatial axis, as Conv's `pads` has them; None for
/// other nodes, for other values, and if it cuts, or pads the batch or the channels.
fn zeros_around(program: &Program, node: &Node) -> Option<Vec<i64>> {
    if !node.op.is("Pad") || node.string("mode", "constant") != "constant" {
        return None;
    }
    if let Some(value) = node.input(2)
        && !program.constant(value)?.bytes().iter().all(|&byte| byte == 0)
    {
        return None;
    }
    let rank = program.value(node.input(0)?).ty.as_ref()?.known_shape()?.len();
    let pads = program.constant(node.input(1)?)?.to_ints().ok()??;
    let axes: Vec<usize> = match node.input(3) {
        None => (0..rank).collect(),
        Some(axes) => {
            let position = |axis: i64| usize::try_from(if axis < 0 { axis + rank as i64 } else { axis }).ok();
            program.constant(axes)?.to_ints().ok()??.into_iter().map(position).collect::<Option<_>>()?
        }
    };
    let n_spatial = rank.checked_sub(2).filter(|&n| n > 0)?;
    if pads.len() != 2 * axes.len() {
        return None;
    }
    let mut zeros = vec![0; 2 * n_spatial];
    for (i, axis) in axes.iter().enumerate() {
        let (before, after) = (pads[i], pads[axes.len() + i]);
        match axis.checked_sub(2) {
            Some(at) if at < n_spatial && before >= 0 && after >= 0 => {
                (zeros[at], zeros[n_spatial + at]) = (before, after);
            }
            None if (before, after) == (0, 0) => {}
            _ => return None,
        }
    }
    Some(zeros)
}

/// Returns the pads of a convolution and those in front of it; None if its own follow from the extents of its image.
fn sum(conv: &Node, zeros: &[i64]) -> Option<Vec<i64>> {
    let own = match conv.string("auto_pad", "NOTSET") {
        "NOTSET" | "" => conv.ints("pads"),
        "VALID" => None,
        _ => return None,
    };
    match own {
        None => Some(zeros.to_vec()),
        Some(own) if own.len() == zeros.len() => {
            own.iter().zip(zeros).map(|(own, zeros)| own.checked_add(*zeros)).collect()
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::check;

    /// An image of two rows and three columns, weights, and Pads of it.
    const IMAGE: &str = "  %shape = const i64[4] [1, 1, 2, 3]\n\
                        \u{20} %image: f32[1,1,2,3] = Reshape@25(%x, %shape)\n\
                        \u{20} %w = const f32[1,1,2,2] [1.0, 2.0, 3.0, 4.0]\n";

    #[test]
    fn zeros_in_front_of_convolutions_are_theirs() {
        check(
            "fold-pads",
            &format!(
                "{IMAGE}\
                 \u{20} %around = const i64[8] [0, 0, 1, 0, 0, 0, 2, 3]\n\
                 \u{20} %padded: f32[1,1,5,6] = Pad@25(%image, %around)\n\
                 \u{20} %a: f32[1,1,4,5] = Conv@22(%padded, %w)\n\
                 \u{20} %b: f32[1,1,4,5] = Conv@22(%padded, %w) {{auto_pad = \"VALID\"}}\n\
                 \u{20} %c: f32[1,1,5,8] = Conv@22(%padded, %w) {{pads = [1, 1, 0, 2]}}\n\
                 \u{20} return %a, %b, %c\n"
            ),
            &format!(
                "{IMAGE}\
                 \u{20} %a: f32[1,1,4,5] = Conv@22(%image, %w) {{pads = [1, 0, 2, 3]}}\n\
                 \u{20} %b: f32[1,1,4,5] = Conv@22(%image, %w) {{pads = [1, 0, 2, 3]}}\n\
                 \u{20} %c: f32[1,1,5,8] = Conv@22(%image, %w) {{pads = [2, 1, 2, 5]}}\n\
                 \u{20} return %a, %b, %c\n"
            ),
        );
    }

    #[test]
    fn axes_by_number_and_a_zero_that_is_stated() {
        check(
            "fold-pads",
            &format!(
                "{IMAGE}\
                 \u{20} %around = const i64[2] [1, 2]\n\
                 \u{20} %zero = const f32[] [0.0]\n\
                 \u{20} %axes = const i64[1] [-1]\n\
                 \u{20} %padded: f32[1,1,2,6] = Pad@25(%image, %around, %zero, %axes)\n\
                 \u{20} %a: f32[1,1,1,5] = Conv@22(%padded, %w)\n\
                 \u{20} return %a, %padded\n"
            ),
            &format!(
                "{IMAGE}\
                 \u{20} %around = const i64[2] [1, 2]\n\
                 \u{20} %zero = const f32[] [0.0]\n\
                 \u{20} %axes = const i64[1] [-1]\n\
                 \u{20} %padded: f32[1,1,2,6] = Pad@25(%image, %around, %zero, %axes)\n\
                 \u{20} %a: f32[1,1,1,5] = Conv@22(%image, %w) {{pads = [0, 1, 0, 2]}}\n\
                 \u{20} return %a, %padded\n"
            ),
        );
    }

    #[test]
    fn what_is_no_padding_of_zeros_stays() {
        let body = format!(
            "{IMAGE}\
             \u{20} %around = const i64[8] [0, 0, 0, 1, 0, 0, 0, 1]\n\
             \u{20} %one = const f32[] [1.0]\n\
             \u{20} %ones: f32[1,1,2,5] = Pad@25(%image, %around, %one)\n\
             \u{20} %a: f32[1,1,1,4] = Conv@22(%ones, %w)\n\
             \u{20} %edge: f32[1,1,2,5] = Pad@25(%image, %around) {{mode = \"edge\"}}\n\
             \u{20} %b: f32[1,1,1,4] = Conv@22(%edge, %w)\n\
             \u{20} %less = const i64[8] [0, 0, 0, -1, 0, 0, 0, 1]\n\
             \u{20} %cut: f32[1,1,2,3] = Pad@25(%image, %less)\n\
             \u{20} %c: f32[1,1,1,2] = Conv@22(%cut, %w)\n\
             \u{20} %more = const i64[8] [1, 0, 0, 0, 0, 0, 0, 0]\n\
             \u{20} %batch: f32[2,1,2,3] = Pad@25(%image, %more)\n\
             \u{20} %d: f32[2,1,1,2] = Conv@22(%batch, %w)\n\
             \u{20} %zeros: f32[1,1,2,5] = Pad@25(%image, %around)\n\
             \u{20} %e: f32[1,1,2,5] = Conv@22(%zeros, %w) {{auto_pad = \"SAME_UPPER\"}}\n\
             \u{20} return %a, %b, %c, %d, %e\n"
        );
        check("fold-pads", &body, &body);
    }

    #[test]
    fn weights_that_may_be_infinite_meet_the_zeros() {
        let body = format!(
            "{IMAGE}\
             \u{20} %around = const i64[8] [0, 0, 0, 1, 0, 0, 0, 1]\n\
             \u{20} %zeros: f32[1,1,2,5] = Pad@25(%image, %around)\n\
             \u{20} %inf = const f32[1,1,2,2] [1.0, inf, 3.0, 4.0]\n\
             \u{20} %a: f32[1,1,1,4] = Conv@22(%zeros, %inf)\n\
             \u{20} %tanh: f32[1,1,2,2] = Tanh@13(%w)\n\
             \u{20} %b: f32[1,1,1,4] = Conv@22(%zeros, %tanh)\n\
             \u{20} return %a, %b\n"
        );
        check("fold-pads", &body, &body);
    }
}
