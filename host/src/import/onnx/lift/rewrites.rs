//! How nodes get over the changes that take more than another number.

use super::changes::Step;
use super::{Rewriting, wrong_type};
use devbay_core::Result;
use devbay_core::program::{AttrValue, Node, Value};
use devbay_core::tensor::{BF16, F16, F32, F64, Tensor};

/// Clip 11: bounds are operands.
pub(super) fn clip_bounds(r: &mut Rewriting<'_>) -> Result<Step> {
    let bounds = [("min", 1), ("max", 2)].map(|(name, i)| {
        let is_there = r.node.attr(name).is_some();
        (name, i, is_there.then(|| r.node.float(name, 0.0)))
    });
    let dtype = r.dtype(r.node.input(0));
    let has_bounds = bounds.iter().any(|(_, _, bound)| bound.is_some());
    if has_bounds && !dtype.is_some_and(|dtype| [F32, F64, F16, BF16].contains(&dtype)) {
        return Ok(Step::Stay);
    }
    for (name, i, bound) in bounds {
        r.node.take_attr(name);
        if let (Some(bound), Some(dtype)) = (bound, dtype)
            && let Some(id) = r.scalar(dtype, bound)?
        {
            r.set_input(i, id);
        }
    }
    Ok(Step::Done)
}

/// BatchNormalization 9: always over the spatial extents.
pub(super) fn batch_normalization_spatial(r: &mut Rewriting<'_>) -> Result<Step> {
    if r.node.int("spatial", 1) != 1 {
        return Ok(Step::Stay);
    }
    r.node.take_attr("spatial");
    Ok(Step::Done)
}

/// BatchNormalization 14: training is an attribute, no longer the presence of more results.
pub(super) fn batch_normalization_results(r: &mut Rewriting<'_>) -> Result<Step> {
    if r.node.outputs.iter().skip(1).any(Option::is_some) {
        return Ok(Step::Stay);
    }
    r.node.outputs.truncate(1);
    Ok(Step::Done)
}

/// DFT 20: the axis is an operand with another default.
pub(super) fn dft_axis(r: &mut Rewriting<'_>) -> Result<Step> {
    let axis = r.node.int("axis", 1);
    r.node.take_attr("axis");
    let id = r.program.add_constant("", Tensor::from_elements(&[], &[axis])?);
    r.set_input(2, id);
    Ok(Step::Done)
}

/// Dropout 10: the mask is boolean.
pub(super) fn dropout_mask(r: &mut Rewriting<'_>) -> Result<Step> {
    Ok(if r.node.output(1).is_some() { Step::Stay } else { Step::Done })
}

/// Dropout 12: the ratio is an operand.
pub(super) fn dropout_ratio(r: &mut Rewriting<'_>) -> Result<Step> {
    let ratio = r.node.float("ratio", 0.5);
    r.node.take_attr("ratio");
    if let Some(id) = r.scalar(F32, ratio)? {
        r.set_input(1, id);
    }
    Ok(Step::Done)
}

/// GridSample 20: modes have shorter names.
pub(super) fn grid_sample_mode(r: &mut Rewriting<'_>) -> Result<Step> {
    let mode = match r.node.string("mode", "bilinear") {
        "bilinear" => "linear",
        "bicubic" => "cubic",
        other => other,
    };
    let mode = AttrValue::String(mode.to_owned());
    r.node.set_attr("mode", mode);
    Ok(Step::Done)
}

pub(super) fn grid_sample_old_mode(node: &mut Node) {
    let mode = match node.string("mode", "linear") {
        "linear" => "bilinear",
        "cubic" => "bicubic",
        other => other,
    };
    let mode = AttrValue::String(mode.to_owned());
    node.set_attr("mode", mode);
}

/// Softmax 13 and its kind: along one axis. Before, the input was taken for a matrix whose columns are the
/// extents from the axis on. That is the same along the last axis; else the input becomes that matrix, and
/// the result gets the input's shape.
pub(super) fn coerced_to_matrix(r: &mut Rewriting<'_>) -> Result<Step> {
    let axis = r.node.int("axis", 1);
    let last = AttrValue::Int(-1);
    let (Some(input), Some(output)) = (r.node.input(0), r.node.output(0)) else {
        return Ok(Step::Stay);
    };
    let rank = r.rank(Some(input), Some(output)).and_then(|rank| i64::try_from(rank).ok());
    r.node.set_attr("axis", last);
    if axis == -1 || rank.is_some_and(|rank| axis == rank - 1) {
        return Ok(Step::Done);
    }
    let [shape, matrix, result] = [(); 3].map(|()| r.program.add_value(Value::default()));
    let shape_node = r.helper("Shape", &[input], shape);
    let mut flatten = r.helper("Flatten", &[input], matrix);
    flatten.set_attr("axis", AttrValue::Int(axis));
    let mut reshape = r.helper("Reshape", &[result, shape], output);
    // The shape is meant as it is, also where an extent is 0.
    reshape.set_attr("allowzero", AttrValue::Int(1));
    r.node.inputs = vec![Some(matrix)];
    r.node.outputs = vec![Some(result)];
    r.before = vec![shape_node, flatten];
    r.after = vec![reshape];
    Ok(Step::Done)
}

/// Pad 11: amounts and value are operands.
pub(super) fn pad_operands(r: &mut Rewriting<'_>) -> Result<Step> {
    let value = r.node.float("value", 0.0);
    let is_used = r.node.string("mode", "constant") == "constant" && value.to_bits() != 0;
    let dtype = r.dtype(r.node.input(0));
    if is_used && !dtype.is_some_and(|dtype| [F32, F64, F16, BF16].contains(&dtype)) {
        return Ok(Step::Stay);
    }
    r.ints_to_input("pads", 1)?;
    r.node.take_attr("value");
    if let (true, Some(dtype)) = (is_used, dtype)
        && let Some(id) = r.scalar(dtype, value)?
    {
        r.set_input(2, id);
    }
    Ok(Step::Done)
}

/// Reductions 18, Squeeze 13, Unsqueeze 13: axes are an operand. No axes mean all of them, before and after.
pub(super) fn axes_operand(r: &mut Rewriting<'_>) -> Result<Step> {
    if r.node.ints("axes").is_some_and(<[i64]>::is_empty) {
        r.node.take_attr("axes");
    }
    r.ints_to_input("axes", 1)?;
    Ok(Step::Done)
}

/// Resize 11: modes are attributes. Before, coordinates were divided by the scale and then, for the nearest
/// neighbour, rounded down where the extent grows and up where it shrinks, as in the test that came with
/// version 10. Scales that are not constant are taken for growing ones, the only use we know.
pub(super) fn resize_modes(r: &mut Rewriting<'_>) -> Result<Step> {
    let scales = r.node.input(1).and_then(|id| r.program.constant(id)).and_then(Tensor::elements::<f32>);
    let scales = scales.unwrap_or_default();
    let (grows, shrinks) = (scales.iter().any(|&s| s > 1.0), scales.iter().any(|&s| s < 1.0));
    if grows && shrinks && r.node.string("mode", "nearest") == "nearest" {
        return Ok(Step::Stay);
    }
    let nearest = if shrinks { "ceil" } else { "floor" };
    for (name, value) in [("coordinate_transformation_mode", "asymmetric"), ("nearest_mode", nearest)] {
        r.node.set_attr(name, AttrValue::String(value.to_owned()));
    }
    // The region of interest came in between.
    if r.node.inputs.len() >= 2 {
        r.node.inputs.insert(1, None);
    }
    Ok(Step::Done)
}

/// Resize 13: operands may be absent. Before, empty tensors stood for them.
pub(super) fn resize_operands(r: &mut Rewriting<'_>) -> Result<Step> {
    let mode = coordinate_mode(&r.node);
    // A mode that version 13 took away.
    if mode == "tf_half_pixel_for_nn" {
        return Ok(Step::Stay);
    }
    let uses_region = mode == "tf_crop_and_resize";
    for i in 1..r.node.inputs.len() {
        let Some(id) = r.node.inputs[i] else {
            continue;
        };
        if r.is_empty_constant(id) || (i == 1 && !uses_region) {
            r.node.inputs[i] = None;
        }
    }
    while r.node.inputs.last().is_some_and(Option::is_none) {
        r.node.inputs.pop();
    }
    Ok(Step::Done)
}

pub(super) fn coordinate_mode(node: &Node) -> &str {
    node.string("coordinate_transformation_mode", "half_pixel")
}

/// RoiAlign 16: where coordinates are taken is an attribute, by default another than before.
pub(super) fn roi_align_mode(r: &mut Rewriting<'_>) -> Result<Step> {
    let mode = AttrValue::String("output_half_pixel".to_owned());
    r.node.set_attr("coordinate_transformation_mode", mode);
    Ok(Step::Done)
}

pub(super) fn is_old_reduction(node: &Node) -> bool {
    matches!(node.string("reduction", "none"), "none" | "add" | "mul")
}

/// Slice 10: starts, ends and axes are operands.
pub(super) fn slice_operands(r: &mut Rewriting<'_>) -> Result<Step> {
    for (name, i) in [("starts", 1), ("ends", 2), ("axes", 3)] {
        r.ints_to_input(name, i)?;
    }
    Ok(Step::Done)
}

/// Split 13: sizes are an operand.
pub(super) fn split_operand(r: &mut Rewriting<'_>) -> Result<Step> {
    r.ints_to_input("split", 1)?;
    Ok(Step::Done)
}

/// Split 18: without sizes, the number of parts is an attribute.
pub(super) fn split_count(r: &mut Rewriting<'_>) -> Result<Step> {
    if r.node.input(1).is_none() {
        let n = i64::try_from(r.node.outputs.len()).unwrap_or(i64::MAX);
        r.node.set_attr("num_outputs", AttrValue::Int(n));
    }
    Ok(Step::Done)
}

/// TopK 10: the count is an operand.
pub(super) fn top_k_operand(r: &mut Rewriting<'_>) -> Result<Step> {
    let Some(AttrValue::Int(k)) = r.node.take_attr("k") else {
        return Err(wrong_type("k", "an integer"));
    };
    r.set_ints(1, &[k])?;
    Ok(Step::Done)
}
