//! Rewrites of nodes for changed versions of their ops.

use super::{Rewriting, wrong_type};
use devbay_core::Result;
use devbay_core::program::{AttrValue, Value};
use devbay_core::tensor::{F32, Tensor};

/// Keeps the node: the new version only adds broadcasting.
pub(super) fn allows_more(_: &mut Rewriting<'_>) -> Result<()> {
    Ok(())
}

/// Lifts to BatchNormalization 9: always over the spatial extents.
pub(super) fn batch_normalization_spatial(r: &mut Rewriting<'_>) -> Result<()> {
    if r.node.int("spatial", 1) != 1 {
        return Err(r.refused("spatial = 0"));
    }
    r.node.take_attr("spatial");
    Ok(())
}

/// Lifts to BatchNormalization 14: training is an attribute, no longer the presence of more results.
pub(super) fn batch_normalization_results(r: &mut Rewriting<'_>) -> Result<()> {
    if r.node.outputs.iter().skip(1).any(Option::is_some) {
        return Err(r.refused("the results of training"));
    }
    r.node.outputs.truncate(1);
    Ok(())
}

/// Lifts to Clip 11: bounds are operands.
pub(super) fn clip_bounds(r: &mut Rewriting<'_>) -> Result<()> {
    for (name, i) in [("min", 1), ("max", 2)] {
        match r.node.take_attr(name) {
            Some(AttrValue::Float(bound)) => float_operand(r, i, bound)?,
            None => {}
            Some(_) => return Err(wrong_type(name, "a number")),
        }
    }
    Ok(())
}

/// Adds a number as the operand at `i`, in the type of the first operand.
fn float_operand(r: &mut Rewriting<'_>, i: usize, value: f32) -> Result<()> {
    let like = r.node.input(0);
    let dtype = r.dtype(0);
    let number = r.scalar(dtype.unwrap_or(F32), value)?;
    match like {
        Some(like) if dtype.is_none() => {
            let cast = r.program.add_value(Value::default());
            let node = r.helper("CastLike", &[number, like], cast);
            r.before.push(node);
            r.set_input(i, cast);
        }
        _ => r.set_input(i, number),
    }
    Ok(())
}

/// Lifts to DFT 20: the axis is an operand, with a different default.
pub(super) fn dft_axis(r: &mut Rewriting<'_>) -> Result<()> {
    let axis = r.node.int("axis", 1);
    r.node.take_attr("axis");
    let id = r.program.add_constant("", Tensor::from_elements(&[], &[axis])?);
    r.set_input(2, id);
    Ok(())
}

/// Lifts to Dropout 10: the mask is boolean. Nodes with an unused mask do not get here.
pub(super) fn dropout_mask(r: &mut Rewriting<'_>) -> Result<()> {
    Err(r.refused("a mask of its input's type"))
}

/// Lifts to Dropout 12: the ratio is an operand.
pub(super) fn dropout_ratio(r: &mut Rewriting<'_>) -> Result<()> {
    match r.node.take_attr("ratio") {
        Some(AttrValue::Float(ratio)) => float_operand(r, 1, ratio),
        None => Ok(()),
        Some(_) => Err(wrong_type("ratio", "a number")),
    }
}

/// Lifts to GridSample 20: modes have shorter names.
pub(super) fn grid_sample_mode(r: &mut Rewriting<'_>) -> Result<()> {
    let mode = match r.node.string("mode", "bilinear") {
        "bilinear" => "linear",
        "bicubic" => "cubic",
        other => other,
    };
    let mode = AttrValue::String(mode.to_owned());
    r.node.set_attr("mode", mode);
    Ok(())
}

/// Lifts to GroupNormalization 21: scale and bias are per channel, no longer per group. ONNX has declared the older version
/// unfit for use.
pub(super) fn group_normalization_scale(r: &mut Rewriting<'_>) -> Result<()> {
    Err(r.refused("scales by group"))
}

/// Lifts to OneHot 11: negative indices count from the end. They were forbidden before, but runtimes already read them this
/// way.
pub(super) fn one_hot_negative(_: &mut Rewriting<'_>) -> Result<()> {
    Ok(())
}

/// Lifts to Pad 11: amounts and value are operands.
pub(super) fn pad_operands(r: &mut Rewriting<'_>) -> Result<()> {
    r.ints_to_input("pads", 1)?;
    let value = r.node.float("value", 0.0);
    r.node.take_attr("value");
    // The operand defaults to 0.
    if r.node.string("mode", "constant") == "constant" && value.to_bits() != 0 {
        float_operand(r, 2, value)?;
    }
    Ok(())
}

/// Lifts to Reductions 18, ReduceSum 13, Squeeze 13, Unsqueeze 13: axes are an operand. No axes mean all axes, before and
/// after.
pub(super) fn axes_operand(r: &mut Rewriting<'_>) -> Result<()> {
    if r.node.ints("axes").is_some_and(<[i64]>::is_empty) {
        r.node.take_attr("axes");
    }
    r.ints_to_input("axes", 1)
}

/// Lifts to Resize 11: modes are attributes. Before, coordinates were divided by the scale; the nearest neighbour was then
/// rounded down if the extent grows and up if it shrinks, as in the test that came with version 10. Scales that are not
/// constant are assumed to grow, the only use we know.
pub(super) fn resize_modes(r: &mut Rewriting<'_>) -> Result<()> {
    let scales = r.node.input(1).and_then(|id| r.program.constant(id)).and_then(Tensor::elements::<f32>);
    let scales = scales.unwrap_or_default();
    let (grows, shrinks) = (scales.iter().any(|&s| s > 1.0), scales.iter().any(|&s| s < 1.0));
    if grows && shrinks && r.node.string("mode", "nearest") == "nearest" {
        return Err(r.refused("the nearest neighbour, and scales above and below 1"));
    }
    let nearest = if shrinks { "ceil" } else { "floor" };
    for (name, value) in [("coordinate_transformation_mode", "asymmetric"), ("nearest_mode", nearest)] {
        r.node.set_attr(name, AttrValue::String(value.to_owned()));
    }
    // Resize 11 inserted the region of interest as operand 1.
    if r.node.inputs.len() >= 2 {
        r.node.inputs.insert(1, None);
    }
    Ok(())
}

/// Lifts to Resize 13: operands may be absent. Empty tensors stood for them before.
pub(super) fn resize_operands(r: &mut Rewriting<'_>) -> Result<()> {
    let mode = r.node.string("coordinate_transformation_mode", "half_pixel");
    // Version 13 removed this mode.
    if mode == "tf_half_pixel_for_nn" {
        return Err(r.refused("tf_half_pixel_for_nn"));
    }
    let uses_region = mode == "tf_crop_and_resize";
    for i in 1..r.node.inputs.len() {
        let is_empty = |id| r.program.constant(id).is_some_and(|tensor| tensor.n_elements() == 0);
        if r.node.input(i).is_some_and(is_empty) || (i == 1 && !uses_region) {
            r.node.inputs[i] = None;
        }
    }
    while r.node.inputs.last().is_some_and(Option::is_none) {
        r.node.inputs.pop();
    }
    Ok(())
}

/// Lifts to RoiAlign 16: the coordinate transformation is an attribute, and its default changed.
pub(super) fn roi_align_mode(r: &mut Rewriting<'_>) -> Result<()> {
    let mode = AttrValue::String("output_half_pixel".to_owned());
    r.node.set_attr("coordinate_transformation_mode", mode);
    Ok(())
}

/// Lifts to Scan 9: no batches, and no operand for lengths of sequences.
pub(super) fn scan_batches(r: &mut Rewriting<'_>) -> Result<()> {
    Err(r.refused("batches"))
}

/// Lifts to Slice 10: starts, ends and axes are operands.
pub(super) fn slice_operands(r: &mut Rewriting<'_>) -> Result<()> {
    for (name, i) in [("starts", 1), ("ends", 2), ("axes", 3)] {
        r.ints_to_input(name, i)?;
    }
    Ok(())
}

/// Lifts to Softmax 13 and its kind: along one axis. Before, the input was treated as a matrix whose columns are the extents
/// from the axis on. Both agree for the last axis; otherwise the input is reshaped to that matrix, and the result to the
/// input's shape.
pub(super) fn coerced_to_matrix(r: &mut Rewriting<'_>) -> Result<()> {
    let axis = r.node.int("axis", 1);
    let (Some(input), Some(output)) = (r.node.input(0), r.node.output(0)) else {
        // Nothing to compute: verification reports the missing operand.
        return Ok(());
    };
    let rank = r.rank(input, output).and_then(|rank| i64::try_from(rank).ok());
    r.node.set_attr("axis", AttrValue::Int(-1));
    if axis == -1 || rank.is_some_and(|rank| axis == rank - 1) {
        return Ok(());
    }
    let [shape, matrix, result] = [(); 3].map(|()| r.program.add_value(Value::default()));
    let shape_node = r.helper("Shape", &[input], shape);
    let mut flatten = r.helper("Flatten", &[input], matrix);
    flatten.set_attr("axis", AttrValue::Int(axis));
    let mut reshape = r.helper("Reshape", &[result, shape], output);
    // The shape is literal, also where an extent is 0.
    reshape.set_attr("allowzero", AttrValue::Int(1));
    r.node.inputs = vec![Some(matrix)];
    r.node.outputs = vec![Some(result)];
    r.before = vec![shape_node, flatten];
    r.after = vec![reshape];
    Ok(())
}

/// Lifts to Split 13: sizes are an operand.
pub(super) fn split_operand(r: &mut Rewriting<'_>) -> Result<()> {
    r.ints_to_input("split", 1)
}

/// Lifts to Split 18: without sizes, the number of parts is an attribute.
pub(super) fn split_count(r: &mut Rewriting<'_>) -> Result<()> {
    if r.node.input(1).is_none() {
        let n = i64::try_from(r.node.outputs.len()).unwrap_or(i64::MAX);
        r.node.set_attr("num_outputs", AttrValue::Int(n));
    }
    Ok(())
}

/// Lifts to TopK 10: the count is an operand.
pub(super) fn top_k_operand(r: &mut Rewriting<'_>) -> Result<()> {
    let Some(AttrValue::Int(k)) = r.node.take_attr("k") else {
        return Err(wrong_type("k", "an integer"));
    };
    r.set_ints(1, &[k])
}
