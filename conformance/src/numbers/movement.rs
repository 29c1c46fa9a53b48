//! Ops that cut, join, repeat and pad: each element of the result is one of the operand's, or a constant.

use super::index::*;
use super::*;

pub(super) const OPS: &[OpTrials] = &[
    OpTrials::new("Concat", ANYTHING, |dtype, dice, i| {
        let mut shape = shape_of(dice, i, 1..=4);
        let axis = any_axis(dice, shape.len());
        let operands: Vec<HostTensor> = (0..1 + i % 4)
            .map(|_| {
                // An operand may have nothing along the axis.
                let extent = if i < 3 { shape[axis] } else { dice.below(6) as i64 };
                anything(dtype, dice, &with(&shape, axis, extent))
            })
            .collect();
        shape[axis] = operands.iter().map(|operand| operand.shape[axis]).sum();
        let at = |index: &[i64]| {
            let mut rest = index[axis];
            let operand = operands.iter().find(|operand| {
                let is_it = rest < operand.shape[axis];
                rest -= if is_it { 0 } else { operand.shape[axis] };
                is_it
            });
            get(operand.expect("the extents add up"), &with(index, axis, rest))
        };
        let attributes = vec![("axis", AttrValue::Int(either_way(dice, axis, shape.len())))];
        moved(attributes, operands.iter().cloned().map(Some).collect(), &shape, at)
    }),
    OpTrials::new("Split", ANYTHING, |dtype, dice, i| {
        let shape = shape_of(dice, i, 1..=4);
        let x = anything(dtype, dice, &shape);
        // Without the attribute it is axis 0.
        let axis = if i % 3 == 0 { 0 } else { any_axis(dice, shape.len()) };
        let extent = shape[axis];
        let mut attributes = match i % 3 {
            0 => Vec::new(),
            _ => vec![("axis", AttrValue::Int(either_way(dice, axis, shape.len())))],
        };
        let (sizes, split) = if i % 2 == 0 {
            // All parts but the last are of one size; as many as leave something for the last.
            let n = (1..=4).rev().find(|n| extent > (n - 1) * ((extent + n - 1) / n)).expect("1 does");
            let size = (extent + n - 1) / n;
            attributes.push(("num_outputs", AttrValue::Int(n)));
            ((0..n).map(|part| size.min(extent - part * size)).collect::<Vec<_>>(), None)
        } else {
            let mut sizes = Vec::new();
            while sizes.iter().sum::<i64>() < extent {
                let rest = extent - sizes.iter().sum::<i64>();
                sizes.push(if sizes.len() == 3 { rest } else { dice.below(rest as u64 + 1) as i64 });
            }
            (sizes.clone(), Some(list(I64, &sizes)))
        };
        let mut from = 0;
        let outputs = sizes.iter().map(|&size| {
            let part = with(&shape, axis, size);
            let values = filled(&part, |index| get(&x, &with(index, axis, index[axis] + from)));
            from += size;
            Expected::exact(dtype, &part, values)
        });
        Trial { attributes, outputs: outputs.collect(), inputs: vec![Some(x.clone()), split] }
    }),
    OpTrials::new("Slice", ANYTHING, slice),
    OpTrials::new("Expand", ANYTHING, |dtype, dice, i| {
        let mut shape = shape_of(dice, i, 0..=4);
        let (mut own, mut target) = (shape.clone(), shape.clone());
        // One of both may have 1, and the longer one more axes.
        for axis in 0..shape.len() {
            match dice.below(3) {
                0 => own[axis] = 1,
                1 => target[axis] = 1,
                _ => {}
            }
        }
        let short = if dice.below(2) == 0 { &mut own } else { &mut target };
        short.drain(..dice.below(shape.len() as u64 + 1) as usize);
        let extent =
            |list: &[i64], from_end: usize| list.len().checked_sub(from_end).map_or(1, |axis| list[axis]);
        let rank = own.len().max(target.len());
        shape = (1..=rank).rev().map(|end| extent(&own, end).max(extent(&target, end))).collect();
        let x = anything(dtype, dice, &own);
        let at = |index: &[i64]| {
            let tail = &index[rank - own.len()..];
            let index: Vec<i64> = tail.iter().zip(&own).map(|(i, n)| if *n == 1 { 0 } else { *i }).collect();
            get(&x, &index)
        };
        moved(Vec::new(), vec![Some(x.clone()), Some(list(I64, &target))], &shape, at)
    }),
    OpTrials::new("Tile", ANYTHING, |dtype, dice, i| {
        let own = shape_of(dice, i, 0..=4);
        let x = anything(dtype, dice, &own);
        let least = i64::from(i % 5 != 4);
        let repeats: Vec<i64> = own.iter().map(|_| least + dice.below(3) as i64).collect();
        let shape: Vec<i64> = own.iter().zip(&repeats).map(|(extent, n)| extent * n).collect();
        let at = |index: &[i64]| {
            let index: Vec<i64> = index.iter().zip(&own).map(|(i, extent)| i % extent).collect();
            get(&x, &index)
        };
        moved(Vec::new(), vec![Some(x.clone()), Some(list(I64, &repeats))], &shape, at)
    }),
    OpTrials::new("Pad", ANYTHING, pad),
    OpTrials::new("CenterCropPad", ANYTHING, |dtype, dice, i| {
        let own = shape_of(dice, i, 1..=4);
        let x = anything(dtype, dice, &own);
        let (axes, said) = some_axes(dice, i, own.len());
        let sizes: Vec<i64> = axes.iter().map(|&axis| 1 + dice.below(own[axis] as u64 + 5) as i64).collect();
        let mut shape = own.clone();
        axes.iter().zip(&sizes).for_each(|(&axis, &size)| shape[axis] = size);
        let at = |index: &[i64]| {
            let centred = (0..own.len()).map(|axis| {
                let (own, target) = (own[axis], shape[axis]);
                // An odd difference leaves more at the end, whether something goes or comes.
                index[axis] + if own > target { (own - target) / 2 } else { -((target - own) / 2) }
            });
            inside(&x, &centred.collect::<Vec<_>>()).unwrap_or(0.0)
        };
        let attributes = said.map(|said| ("axes", AttrValue::Ints(said))).into_iter().collect();
        moved(attributes, vec![Some(x.clone()), Some(list(index_dtype(i / 2), &sizes))], &shape, at)
    }),
    OpTrials::new("DepthToSpace", ANYTHING, |dtype, dice, i| {
        let (n, c, h, w, b) = blocks(dice, i);
        let x = anything(dtype, dice, &[n, c * b * b, h, w]);
        let at = |index: &[i64]| {
            let (y, x_) = (index[2], index[3]);
            get(&x, &[index[0], depth(i, index[1], c, b, y % b, x_ % b), y / b, x_ / b])
        };
        moved(block_attributes(i, b), vec![Some(x.clone())], &[n, c, h * b, w * b], at)
    }),
    OpTrials::new("SpaceToDepth", ANYTHING, |dtype, dice, i| {
        let (n, c, h, w, b) = blocks(dice, i);
        let x = anything(dtype, dice, &[n, c, h * b, w * b]);
        let shape = [n, c * b * b, h, w];
        let at = |index: &[i64]| {
            // The one of all places in a block and channels that goes to this depth.
            let mut places = (0..c).flat_map(|c| (0..b).flat_map(move |y| (0..b).map(move |x| (c, y, x))));
            let (from, y, x_) = places
                .find(|&(from, y, x)| depth(i, from, c, b, y, x) == index[1])
                .expect("each depth has its place");
            get(&x, &[index[0], from, index[2] * b + y, index[3] * b + x_])
        };
        moved(block_attributes(i, b), vec![Some(x.clone())], &shape, at)
    }),
    OpTrials::new("Trilu", ANYTHING, |dtype, dice, i| {
        let shape = shape_of(dice, i, 2..=4);
        let x = anything(dtype, dice, &shape);
        let rank = shape.len();
        let extent = shape[rank - 1] + shape[rank - 2];
        // Also diagonals outside of the matrix.
        let k = (i % 3 != 0).then(|| dice.below(2 * extent as u64 + 1) as i64 - extent);
        let is_upper = i % 4 < 2;
        let attributes = match i % 4 {
            0 => Vec::new(),
            _ => vec![("upper", AttrValue::Int(is_upper.into()))],
        };
        let at = |index: &[i64]| {
            let diagonal = index[rank - 1] - index[rank - 2];
            let k = k.unwrap_or(0);
            let is_kept = if is_upper { diagonal >= k } else { diagonal <= k };
            if is_kept { get(&x, index) } else { 0.0 }
        };
        let k = k.map(|k| integers(I64, &[], &[k]));
        moved(attributes, vec![Some(x.clone()), k], &shape, at)
    }),
    OpTrials::new("ReverseSequence", ANYTHING, |dtype, dice, i| {
        let shape = shape_of(dice, i, 2..=4);
        let x = anything(dtype, dice, &shape);
        let (batch, time) = if i % 3 == 2 { (0, 1) } else { (1, 0) };
        let attributes = match i % 3 {
            // The defaults.
            0 => Vec::new(),
            _ => vec![("batch_axis", AttrValue::Int(batch)), ("time_axis", AttrValue::Int(time))],
        };
        let (batch, time) = (batch as usize, time as usize);
        let lengths: Vec<i64> =
            (0..shape[batch]).map(|_| 1 + dice.below(shape[time] as u64) as i64).collect();
        let at = |index: &[i64]| {
            let (length, t) = (lengths[index[batch] as usize], index[time]);
            get(&x, &with(index, time, if t < length { length - 1 - t } else { t }))
        };
        moved(attributes, vec![Some(x.clone()), Some(list(I64, &lengths))], &shape, at)
    }),
];

/// Returns the element of an index, if there is one.
fn inside(x: &HostTensor, index: &[i64]) -> Option<f64> {
    position(index, &x.shape).map(|at| x.values[at])
}

/// All axes, without saying which; or some in any order, as an operand or an attribute says them.
fn some_axes(dice: &mut Dice, i: u64, rank: usize) -> (Vec<usize>, Option<Vec<i64>>) {
    if i.is_multiple_of(2) {
        return ((0..rank).collect(), None);
    }
    let mut axes = shuffled(dice, rank);
    axes.truncate(1 + dice.below(rank as u64) as usize);
    let said = axes.iter().map(|&axis| either_way(dice, axis, rank)).collect();
    (axes, Some(said))
}

fn slice(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let own = shape_of(dice, i, 1..=4);
    let x = anything(dtype, dice, &own);
    let (axes, said) = some_axes(dice, i, own.len());
    let index_dtype = index_dtype(i / 2);
    let (least, most) =
        if index_dtype == I64 { (i64::MIN, i64::MAX) } else { (i64::from(i32::MIN), i64::from(i32::MAX)) };
    let (mut starts, mut ends, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    let mut shape = own.clone();
    let (mut first, mut stride) = (vec![0; own.len()], vec![1; own.len()]);
    for &axis in &axes {
        let n = own[axis];
        let anywhere = |dice: &mut Dice| dice.below(2 * n as u64 + 5) as i64 - n - 2;
        // Without steps they are 1.
        let step = if i.is_multiple_of(4) { 1 } else { [1, 2, 3, -1, -2, -3][dice.below(6) as usize] };
        let (start, end) = match dice.below(4) {
            // All there is, as far as it is known.
            0 if step > 0 => (0, most),
            0 => (-1, least),
            _ => (anywhere(dice), anywhere(dice)),
        };
        starts.push(start);
        ends.push(end);
        steps.push(step);
        let from_front = |at: i64| if at < 0 { at.saturating_add(n) } else { at };
        let (start, end) = if step > 0 {
            (from_front(start).clamp(0, n), from_front(end).clamp(0, n))
        } else {
            (from_front(start).clamp(0, n - 1), from_front(end).clamp(-1, n - 1))
        };
        // As many steps as stay before the end.
        shape[axis] = (0..n).take_while(|k| (end - (start + k * step)) * step.signum() > 0).count() as i64;
        first[axis] = start;
        stride[axis] = step;
    }
    let at = |index: &[i64]| {
        let index: Vec<i64> =
            index.iter().enumerate().map(|(axis, i)| first[axis] + i * stride[axis]).collect();
        get(&x, &index)
    };
    let inputs = vec![
        Some(x.clone()),
        Some(list(index_dtype, &starts)),
        Some(list(index_dtype, &ends)),
        said.map(|said| list(index_dtype, &said)),
        (!i.is_multiple_of(4)).then(|| list(index_dtype, &steps)),
    ];
    moved(Vec::new(), inputs, &shape, at)
}

/// Pads of every mode. Left out is what the specification leaves open: a reflection that would have to be reflected
/// again, and modes that would have to continue what negative pads cut off.
fn pad(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let own = shape_of(dice, i, 1..=4);
    let x = anything(dtype, dice, &own);
    let (axes, said) = some_axes(dice, i / 4, own.len());
    let mode = ["constant", "reflect", "edge", "wrap"][i as usize % 4];
    let (mut before, mut after) = (vec![0; own.len()], vec![0; own.len()]);
    for &axis in &axes {
        let n = own[axis];
        let any = |dice: &mut Dice, low: i64, high: i64| low + dice.below((high - low + 1) as u64) as i64;
        (before[axis], after[axis]) = match mode {
            // Both ends together lose less than there is.
            "constant" => (any(dice, -((n - 1) / 2), 4), any(dice, -((n - 1) / 2), 4)),
            "reflect" => (any(dice, 0, (n - 1).min(4)), any(dice, 0, (n - 1).min(4))),
            // Also more than there is.
            _ => (any(dice, 0, 9), any(dice, 0, 9)),
        };
    }
    let shape: Vec<i64> = (0..own.len()).map(|axis| before[axis] + own[axis] + after[axis]).collect();
    let constant = (mode == "constant" && !i.is_multiple_of(8)).then(|| anything(dtype, dice, &[]));
    let at = |index: &[i64]| {
        let from: Vec<i64> = (0..own.len())
            .map(|axis| {
                let (at, n) = (index[axis] - before[axis], own[axis]);
                match mode {
                    "reflect" if at < 0 => -at,
                    "reflect" if at >= n => 2 * (n - 1) - at,
                    "edge" => at.clamp(0, n - 1),
                    "wrap" => at.rem_euclid(n),
                    _ => at,
                }
            })
            .collect();
        inside(&x, &from).unwrap_or(constant.as_ref().map_or(0.0, |constant| constant.values[0]))
    };
    let said_pads: Vec<i64> =
        axes.iter().map(|&axis| before[axis]).chain(axes.iter().map(|&axis| after[axis])).collect();
    let inputs = vec![
        Some(x.clone()),
        Some(list(I64, &said_pads)),
        constant.clone(),
        said.map(|said| list(index_dtype(i / 8), &said)),
    ];
    // Without the attribute the mode is constant.
    let attributes = if i == 0 { Vec::new() } else { vec![("mode", word(mode))] };
    moved(attributes, inputs, &shape, at)
}

/// Batches, channels of the small side, height and width of the deep side, and the extent of a block.
fn blocks(dice: &mut Dice, i: u64) -> (i64, i64, i64, i64, i64) {
    match i {
        0 => (1, 1, 1, 1, 1),
        1 => (1, 2, 3, 67, 2),
        2 => (2, 3, 8, 12, 3),
        _ => {
            let mut any = |n| 1 + dice.below(n) as i64;
            (any(3), any(4), any(5), any(5), any(3))
        }
    }
}

fn block_attributes(i: u64, block: i64) -> Vec<(&'static str, AttrValue)> {
    let mode = match i % 3 {
        0 => None,
        1 => Some(("mode", word("CRD"))),
        _ => Some(("mode", word("DCR"))),
    };
    mode.into_iter().chain([("blocksize", AttrValue::Int(block))]).collect()
}

/// Returns the depth at which a channel's element of a block is kept: by place in the block first, or by channel first.
fn depth(i: u64, channel: i64, n_channels: i64, block: i64, y: i64, x: i64) -> i64 {
    let place = y * block + x;
    if i % 3 == 1 { channel * block * block + place } else { place * n_channels + channel }
}
