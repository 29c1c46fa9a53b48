//! Images: values between their elements (GridSample, RoiAlign), the largest of whole ones (MaxRoiPool), where to take them (AffineGrid), and boxes.
//!
//! Points of 16-bit trials are chosen so that the dtype holds them: what is judged is how values are weighed, not in
//! which precision a plugin computes points, of which ONNX says nothing.

use super::index::{every, interpolated, offset, position, word};
use super::resize::weight;
use super::*;
use crate::ops::random;

pub(super) const OPS: &[OpTrials] = &[
    OpTrials::new("GridSample", ANYTHING, grid_sample),
    OpTrials::new("RoiAlign", FLOATS, roi_align),
    OpTrials::new("MaxRoiPool", FLOATS, max_roi_pool),
    OpTrials::new("AffineGrid", FLOATS, affine_grid),
    OpTrials::new("NonMaxSuppression", &[F32], non_max_suppression),
];

/// Returns the element that stands at an index that may be outside; None for a zero.
fn padded(padding: &str, align_corners: bool, at: i64, extent: i64) -> Option<i64> {
    match padding {
        "zeros" => (0..extent).contains(&at).then_some(at),
        "border" => Some(at.clamp(0, extent - 1)),
        // Reflected by the corners' centers, or by their outer edges.
        _ if align_corners => {
            let at = at.rem_euclid(2 * (extent - 1).max(1));
            Some(at.min(2 * (extent - 1) - at))
        }
        _ => {
            let at = at.rem_euclid(2 * extent);
            Some(at.min(2 * extent - 1 - at))
        }
    }
}

fn grid_sample(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let mode = if is_float(dtype) { ["linear", "nearest", "cubic"][i as usize % 3] } else { "nearest" };
    let padding = ["zeros", "border", "reflection"][((i / 3 + i) % 3) as usize];
    let align_corners = dice.below(2) == 1;
    // Ties of the nearest are decided by the rule and not by rounding where points are exact.
    let is_exact = mode == "nearest" || unit_roundoff(dtype) > unit_roundoff(F32) || i.is_multiple_of(2);
    let axes = if i > 2 && i % 4 == 3 { 3 } else { 2 };
    let mut spatial: Vec<i64> = (0..axes).map(|_| [2, 4, 8][dice.below(3) as usize]).collect();
    if !is_exact {
        spatial = (0..axes).map(|_| 2 + dice.below(9) as i64).collect();
    }
    let mut grid_shape: Vec<i64> = (0..axes).map(|_| 1 + dice.below(6) as i64).collect();
    match i {
        0 => (spatial, grid_shape) = (vec![1, 1], vec![1, 1]),
        1 | 2 => grid_shape = vec![9, 67],
        _ => {}
    }
    let align_corners = align_corners && i > 0;
    let (n, c) = (1 + (i % 2) as i64, 1 + dice.below(3) as i64);
    let range = if is_float(dtype) { (-4.0, 4.0) } else { (-100.0, 100.0) };
    let x = random(dtype, dice, &[&[n, c], spatial.as_slice()].concat(), range);
    let grid_dtype = if is_float(dtype) { dtype } else { F32 };
    // Of a point beyond the border by less than half an element, cubic implementations differ.
    let reach = if mode == "cubic" && padding == "border" { 8.0 } else { 13.0 };
    let mut grid = random(
        grid_dtype,
        dice,
        &[&[n], grid_shape.as_slice(), &[axes]].concat(),
        (-reach / 8.0, reach / 8.0),
    );
    if is_exact {
        grid.values.iter_mut().for_each(|value| *value = (*value * 8.0).round() / 8.0);
    }
    let shape = [&[n, c], grid_shape.as_slice()].concat();
    let value = |at: Vec<i64>| -> f64 {
        let along = |axis: usize| {
            let extent = spatial[axis];
            // The grid has the last axis first.
            let index = [&at[..1], &at[2..], &[axes - 1 - axis as i64]].concat();
            let g = grid.values[position(&index, &grid.shape).unwrap_or(0)];
            let point = if align_corners {
                (g + 1.0) / 2.0 * (extent - 1) as f64
            } else {
                ((g + 1.0) * extent as f64 - 1.0) / 2.0
            };
            let near = point.floor() as i64;
            let weigh =
                |tap| (padded(padding, align_corners, tap, extent), weight(mode, -0.75, tap as f64 - point));
            if mode == "nearest" {
                let nearest = point.round_ties_even() as i64;
                return vec![(padded(padding, align_corners, nearest, extent), 1.0)];
            }
            (near - 1..=near + 2).map(weigh).collect()
        };
        let inside = |(tap, weight): (Option<i64>, f64)| Some((tap?, weight));
        let lead = at[..2].iter().map(|&at| vec![(at, 1.0)]);
        let axes = (0..axes as usize).map(|axis| along(axis).into_iter().filter_map(inside).collect());
        interpolated(&x, lead.chain(axes))
    };
    let values: Vec<f64> = every(&shape).map(value).collect();
    let largest = x.values.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
    // A point is off by some u of its axis, and a filter's weights move by at most four times as much. The magnitudes
    // of the weights of an axis sum to at most 1.4.
    let longest = spatial.iter().max().map_or(1.0, |extent| *extent as f64 + 1.0);
    let moved = 4.0 * 8.0 * unit_roundoff(grid_dtype) * longest * axes as f64 * 3.0 * largest;
    let bound = match (mode, is_exact) {
        ("nearest", _) => 0.0,
        (_, true) => sum_bound(dtype, 8 * axes as usize + 8, 3.0 * largest),
        (_, false) => sum_bound(dtype, 8 * axes as usize + 8, 3.0 * largest) + moved,
    };
    let mut attributes = vec![("mode", word(mode)), ("padding_mode", word(padding))];
    if align_corners || i.is_multiple_of(2) {
        attributes.push(("align_corners", AttrValue::Int(align_corners.into())));
    }
    let bounds = vec![bound; values.len()];
    let outputs = vec![Expected::within(dtype, &shape, values, bounds)];
    Trial { attributes, inputs: vec![Some(x), Some(grid)], outputs }
}

/// Returns the four neighbours of a point with their shares; none where it is more than one beyond the map.
fn neighbours(point: [f64; 2], extents: [i64; 2]) -> Vec<([i64; 2], f64)> {
    if (0..2).any(|axis| point[axis] < -1.0 || point[axis] > extents[axis] as f64) {
        return Vec::new();
    }
    let inner = |axis: usize| point[axis].clamp(0.0, (extents[axis] - 1) as f64);
    let (y, x) = (inner(0), inner(1));
    let at = |dy: i64, dx: i64| {
        let near = [y.floor() as i64 + dy, x.floor() as i64 + dx];
        let share = (1.0 - (y - near[0] as f64).abs()) * (1.0 - (x - near[1] as f64).abs());
        // Beyond the last there is nothing, and its share is 0.
        ([near[0].min(extents[0] - 1), near[1].min(extents[1] - 1)], share)
    };
    vec![at(0, 0), at(0, 1), at(1, 0), at(1, 1)]
}

fn roi_align(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let is_small = unit_roundoff(dtype) > unit_roundoff(F32);
    let (n, c) = (1 + (i % 3) as i64, 1 + dice.below(3) as i64);
    let extents: [i64; 2] = match i {
        0 => [1, 1],
        1 if !is_small => [9, 67],
        _ => [2 + dice.below(7) as i64, 2 + dice.below(7) as i64],
    };
    let is_max = i % 2 == 1;
    let half_pixel = i % 4 < 2;
    let sampling = [0, 1, 2][dice.below(3) as usize];
    let out: [i64; 2] = if i.is_multiple_of(3) || is_small {
        [1 << dice.below(3), 1 << dice.below(3)]
    } else {
        [1 + dice.below(7) as i64, 1 + dice.below(5) as i64]
    };
    let spatial_scale = [1.0, 0.5][i as usize % 2];
    let n_rois = 1 + dice.below(5) as i64;
    let x = random(dtype, dice, &[n, c, extents[0], extents[1]], (0.1, 4.0));
    let indices = random(I64, dice, &[n_rois], (0.0, (n - 1) as f64));
    // Corners in halves of the map's elements; a little beyond the map, where the rules for it count.
    let mut rois = Vec::new();
    for _ in 0..n_rois {
        let corner = |dice: &mut Dice, extent: i64| (dice.below(2 * extent as u64 + 2) as f64 / 2.0) - 0.5;
        let (x1, y1) = (corner(dice, extents[1]), corner(dice, extents[0]));
        let size = |dice: &mut Dice| (1 + dice.below(6)) as f64 / 2.0;
        rois.extend([x1, y1, x1 + size(dice), y1 + size(dice)].map(|value| value / spatial_scale));
    }
    let rois = HostTensor::new(dtype, &[n_rois, 4], rois);
    let shape = [n_rois, c, out[0], out[1]];
    let (mut values, mut bounds) = (Vec::new(), Vec::new());
    for at in every(&shape) {
        let roi: Vec<f64> = (0..4)
            .map(|k| rois.values[at[0] as usize * 4 + k] * spatial_scale - if half_pixel { 0.5 } else { 0.0 })
            .collect();
        let image = indices.values[at[0] as usize] as i64;
        let mut points: [Vec<f64>; 2] = Default::default();
        for axis in 0..2 {
            let (start, end) = (roi[1 - axis], roi[3 - axis]);
            let size = if half_pixel { end - start } else { (end - start).max(1.0) };
            let bin = size / out[axis] as f64;
            let n = if sampling > 0 { sampling } else { bin.ceil() as i64 };
            let point = |k: i64| start + at[2 + axis] as f64 * bin + (k as f64 + 0.5) * bin / n as f64;
            points[axis] = (0..n).map(point).collect();
        }
        let (mut sum, mut most, mut count) = (0.0, f64::NEG_INFINITY, 0.0);
        for (&y, &x_at) in points[0].iter().flat_map(|y| points[1].iter().map(move |x| (y, x))) {
            let near = neighbours([y, x_at], extents);
            let share = |([row, column], share): &([i64; 2], f64)| {
                x.values[position(&[image, at[1], *row, *column], &x.shape).unwrap_or(0)] * share
            };
            sum += near.iter().map(share).sum::<f64>();
            // The largest of the shares, and not of their sums: ONNX's examples have it so.
            most = near.iter().map(share).fold(if near.is_empty() { most.max(0.0) } else { most }, f64::max);
            count += 1.0;
        }
        values.push(if is_max { most } else { sum / count });
        // Values are below 4. A point is off by some u of its axis, in f32 at the least.
        let longest = extents[0].max(extents[1]) as f64 + 4.0;
        let moved = 2.0 * 8.0 * unit_roundoff(dtype).min(unit_roundoff(F32)) * longest * 4.0;
        bounds.push(sum_bound(dtype, 4 * count as usize + 6, 4.0) + moved);
    }
    let mut attributes = vec![
        ("output_height", AttrValue::Int(out[0])),
        ("output_width", AttrValue::Int(out[1])),
        ("sampling_ratio", AttrValue::Int(sampling)),
        ("spatial_scale", AttrValue::Float(spatial_scale as f32)),
    ];
    if is_max {
        attributes.push(("mode", word("max")));
    }
    if !half_pixel {
        attributes.push(("coordinate_transformation_mode", word("output_half_pixel")));
    }
    let outputs = vec![Expected::within(dtype, &shape, values, bounds)];
    Trial { attributes, inputs: vec![Some(x), Some(rois), Some(indices)], outputs }
}

/// Corners are chosen so that each dtype holds them, and their product with the scale too.
fn max_roi_pool(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let (n, c) = (1 + (i % 3) as i64, 1 + dice.below(3) as i64);
    let extents: [i64; 2] = match i {
        0 => [1, 1],
        1 => [9, 67],
        _ => [1 + dice.below(9) as i64, 1 + dice.below(9) as i64],
    };
    let out: [i64; 2] = if i == 1 { [1, 1] } else { [1 + dice.below(7) as i64, 1 + dice.below(5) as i64] };
    let scale = [1.0, 0.5, 0.25][i as usize % 3];
    let n_rois = 1 + dice.below(5) as i64;
    let x = random(dtype, dice, &[n, c, extents[0], extents[1]], (-4.0, 4.0));
    let mut values = Vec::new();
    for _ in 0..n_rois {
        values.push(dice.below(n as u64) as f64);
        // Halves of elements from before the image to behind it; some regions end before they begin.
        let corner = |dice: &mut Dice, extent: i64| dice.below(2 * extent as u64 + 6) as f64 / 2.0 - 1.5;
        let corners =
            [extents[1], extents[0], extents[1], extents[0]].map(|extent| corner(dice, extent) / scale);
        values.extend(corners);
    }
    let rois = HostTensor::new(dtype, &[n_rois, 5], values);
    let shape = [n_rois, c, out[0], out[1]];
    let largest = |at: Vec<i64>| -> f64 {
        let roi: Vec<f64> = rois.values[5 * at[0] as usize..][..5].to_vec();
        // Whole elements, halves rounded away from zero; a bin begins rounded down and ends rounded up.
        let side = |axis: usize| {
            let [first, last] = [roi[2 - axis], roi[4 - axis]].map(|corner| (corner * scale).round());
            let bin = |i: i64| i as f64 * (last - first + 1.0).max(1.0);
            let parts = out[axis] as f64;
            let begin = first + (bin(at[2 + axis]) / parts).floor();
            let end = first + (bin(at[2 + axis] + 1) / parts).ceil();
            (0..extents[axis]).filter(move |&at| at as f64 >= begin && (at as f64) < end)
        };
        let elements = side(0).flat_map(|row| side(1).map(move |column| [row, column]));
        let value =
            |[row, column]: [i64; 2]| x.values[offset(&[roi[0] as i64, at[1], row, column], &x.shape)];
        elements.map(value).reduce(f64::max).unwrap_or(0.0)
    };
    let values = every(&shape).map(largest).collect();
    let attributes = vec![
        ("pooled_shape", AttrValue::Ints(out.to_vec())),
        ("spatial_scale", AttrValue::Float(scale as f32)),
    ];
    let outputs = vec![Expected::exact(dtype, &shape, values)];
    Trial { attributes, inputs: vec![Some(x), Some(rois)], outputs }
}

fn affine_grid(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let align_corners = i % 2 == 1;
    let axes = if i > 2 && i % 4 > 1 { 3 } else { 2 };
    let spatial: Vec<i64> = match i {
        0 => vec![1, 1],
        1 => vec![5, 67],
        2 => vec![33, 34],
        // The only point of an axis is a corner and the center at once: no corners there.
        _ => (0..axes).map(|_| if align_corners { 2 } else { 1 } + dice.below(8) as i64).collect(),
    };
    let n = 1 + (i % 3) as i64;
    let theta = random(dtype, dice, &[n, axes, axes + 1], (-2.0, 2.0));
    let shape = [&[n], spatial.as_slice(), &[axes]].concat();
    let (mut values, mut bounds) = (Vec::new(), Vec::new());
    for at in every(&shape) {
        let axes = axes as usize;
        // A point has the last axis first, as the output has.
        let along = |k: usize| {
            let (at, extent) = (at[axes - k] as f64, spatial[axes - 1 - k] as f64);
            if align_corners { 2.0 * at / (extent - 1.0) - 1.0 } else { (2.0 * at + 1.0) / extent - 1.0 }
        };
        let row = &theta.values[(at[0] as usize * axes + at[axes + 1] as usize) * (axes + 1)..][..=axes];
        values.push(row[axes] + (0..axes).map(|k| row[k] * along(k)).sum::<f64>());
        // Points are within 1, and some u of that off.
        bounds.push(sum_bound(dtype, axes + 8, row.iter().map(|x| x.abs()).sum()));
    }
    let channels = 1 + dice.below(3) as i64;
    let size: Vec<f64> = [n, channels].iter().chain(&spatial).map(|&extent| extent as f64).collect();
    let size = HostTensor::new(I64, &[size.len() as i64], size);
    Trial {
        attributes: vec![("align_corners", AttrValue::Int(align_corners.into()))],
        outputs: vec![Expected::within(dtype, &shape, values, bounds)],
        inputs: vec![Some(theta), Some(size)],
    }
}

/// A box by the least and the greatest of its corners.
fn corners(sides: &[f64], by_center: bool) -> [f64; 4] {
    let [a, b, c, d] = [sides[0], sides[1], sides[2], sides[3]];
    if by_center {
        [a - c / 2.0, b - d / 2.0, a + c / 2.0, b + d / 2.0]
    } else {
        [a.min(c), b.min(d), a.max(c), b.max(d)]
    }
}

/// Returns the intersection of two boxes over their union.
fn overlap(a: [f64; 4], b: [f64; 4]) -> f64 {
    let side = |axis: usize| (a[axis + 2].min(b[axis + 2]) - a[axis].max(b[axis])).max(0.0);
    let area = |of: [f64; 4]| (of[2] - of[0]) * (of[3] - of[1]);
    let both = side(0) * side(1);
    both / (area(a) + area(b) - both)
}

fn non_max_suppression(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    loop {
        let by_center = i % 3 == 2;
        let n = match i {
            0 => 1,
            1 => 67,
            _ => 1 + dice.below(30) as i64,
        };
        let (batches, classes) = (1 + (i % 2) as i64, 1 + dice.below(3) as i64);
        let mut boxes = random(dtype, dice, &[batches, n, 4], (0.0, 1.0));
        // An overlap of exactly the limit: the same box again and again.
        let is_same = i == 6;
        if is_same {
            let one = boxes.values[..4].to_vec();
            boxes.values = one.repeat((batches * n) as usize);
        }
        if by_center {
            boxes.values.iter_mut().skip(2).step_by(4).for_each(|side| *side += 0.05);
            boxes.values.iter_mut().skip(3).step_by(4).for_each(|side| *side += 0.05);
            boxes = HostTensor::new(dtype, &boxes.shape, boxes.values);
        }
        let scores = random(dtype, dice, &[batches, classes, n], (0.0, 1.0));
        let number = |dtype, value| HostTensor::new(dtype, &[], vec![value]);
        // Left out: no boxes at all; an overlap limit of 0; any score.
        let limit = (i % 8 != 7).then(|| number(I64, [1.0, 3.0, 100.0][dice.below(3) as usize]));
        let most_overlap =
            (i % 4 != 3).then(|| number(F32, if is_same { 1.0 } else { dice.between(0.1, 0.9) }));
        let least_score = (i % 3 != 1).then(|| number(F32, 0.3));
        let value = |tensor: &Option<HostTensor>, other| tensor.as_ref().map_or(other, |t| t.values[0]);
        let (limit_of, overlap_of) = (value(&limit, 0.0) as usize, value(&most_overlap, 0.0));
        let score_of = value(&least_score, f64::NEG_INFINITY);
        let (mut selected, mut is_unsure) = (Vec::new(), false);
        for (batch, class) in (0..batches).flat_map(|batch| (0..classes).map(move |class| (batch, class))) {
            let score = |at: i64| scores.values[((batch * classes + class) * n + at) as usize];
            let sides = |at: i64| corners(&boxes.values[((batch * n + at) * 4) as usize..][..4], by_center);
            let mut order: Vec<i64> = (0..n).filter(|&at| score(at) >= score_of).collect();
            order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
            let mut kept: Vec<i64> = Vec::new();
            for at in order {
                let overlaps: Vec<f64> = kept.iter().map(|&other| overlap(sides(at), sides(other))).collect();
                // Where f32 would decide.
                is_unsure |=
                    !is_same && overlaps.iter().any(|&one| one != 0.0 && (one - overlap_of).abs() < 1e-4);
                if kept.len() < limit_of && overlaps.iter().all(|&one| one <= overlap_of) {
                    kept.push(at);
                }
            }
            selected.extend(kept.iter().flat_map(|&at| [batch as f64, class as f64, at as f64]));
        }
        if is_unsure {
            continue;
        }
        let outputs = vec![Expected::exact(I64, &[selected.len() as i64 / 3, 3], selected)];
        return Trial {
            attributes: vec![("center_point_box", AttrValue::Int(by_center.into()))],
            inputs: vec![Some(boxes), Some(scores), limit, most_overlap, least_score],
            outputs,
        };
    }
}
