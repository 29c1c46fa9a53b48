//! Ops about the order of elements: the largest, the different ones, sums and products up to each.

use super::index::*;
use super::*;
use crate::ops::random;

const SCANNED: &[DType] = &[F32, F64, I32, I64, U32, U64, F16, BF16];

pub(super) const OPS: &[OpTrials] = &[
    OpTrials::new("TopK", NUMBERS, |dtype, dice, i| {
        let own = shape_of(dice, i, 1..=4);
        // Equal elements meet: their order is that of their positions. The specification does not mention NaN.
        let mut x = random(dtype, dice, &own, (-9.0, 9.0));
        if is_float(dtype) {
            x.values.iter_mut().for_each(|value| match dice.below(20) {
                0 => *value = f64::INFINITY,
                1 => *value = f64::NEG_INFINITY,
                2..10 => *value = value.round() + 0.0,
                _ => {}
            });
        }
        let axis = if i % 3 == 0 { own.len() - 1 } else { any_axis(dice, own.len()) };
        let is_largest = i % 4 < 2;
        // Without an order only the first one is known.
        let is_sorted = i % 8 != 5;
        let k = if is_sorted { 1 + dice.below(own[axis] as u64) as i64 } else { 1 };
        let shape = with(&own, axis, k);
        let lines = with(&own, axis, 1);
        let orders: Vec<Vec<i64>> = (0..n_elements(&lines))
            .map(|line| {
                let line = index_of(line, &lines);
                let value = |at: i64| get(&x, &with(&line, axis, at));
                let mut order: Vec<i64> = (0..own[axis]).collect();
                // Sorting keeps equal ones as they are.
                order.sort_by(|&a, &b| {
                    let order = value(a).total_cmp(&value(b));
                    if is_largest { order.reverse() } else { order }
                });
                order
            })
            .collect();
        let position = |index: &[i64]| orders[offset(&with(index, axis, 0), &lines)][index[axis] as usize];
        let positions = filled(&shape, |index| position(index) as f64);
        let values = filled(&shape, |index| get(&x, &with(index, axis, position(index))));
        let mut attributes = match i % 3 {
            0 => Vec::new(),
            _ => vec![("axis", AttrValue::Int(either_way(dice, axis, own.len())))],
        };
        if i % 4 != 0 {
            attributes.push(("largest", AttrValue::Int(is_largest.into())));
            attributes.push(("sorted", AttrValue::Int(is_sorted.into())));
        }
        let outputs = vec![Expected::exact(dtype, &shape, values), Expected::exact(I64, &shape, positions)];
        Trial { attributes, inputs: vec![Some(x.clone()), Some(list(I64, &[k]))], outputs }
    }),
    OpTrials::new("Unique", ANYTHING, unique),
    OpTrials::new("CumSum", SCANNED, |dtype, dice, i| {
        let x = |dice: &mut Dice, shape: &[i64]| random(dtype, dice, shape, (-9.0, 9.0));
        scan(dice, i, x, |line| {
            let sum_bound = sum_bound(dtype, line.len(), line.iter().map(|x| x.abs()).sum());
            (line.iter().sum(), sum_bound)
        })
    }),
    OpTrials::new("CumProd", SCANNED, |dtype, dice, i| {
        // Products of many stay in range: few integers are not 1.
        let x = |dice: &mut Dice, shape: &[i64]| {
            let mut x = random(dtype, dice, shape, (0.8, 1.2));
            for value in &mut x.values {
                match dice.below(16) {
                    0 if !is_float(dtype) => *value = 2.0,
                    1..8 if !matches!(dtype, U32 | U64) => *value = -*value,
                    _ => {}
                }
            }
            x
        };
        scan(dice, i, x, |line| {
            let product: f64 = line.iter().product();
            // A factor of 1 + u for each multiplication, and one for its rounding to the result; in 16 bits, of many
            // of them more than their sum.
            let growth = (1.0 + unit_roundoff(dtype)).powi(line.len() as i32 + 1) - 1.0;
            let bound = if is_float(dtype) { growth * product.abs() + smallest(dtype) } else { 0.0 };
            (product, bound)
        })
    }),
];

/// Makes a trial with a result of the elements up to each along an axis, with or without itself, from either end.
fn scan(
    dice: &mut Dice,
    i: u64,
    operand: impl Fn(&mut Dice, &[i64]) -> HostTensor,
    of: impl Fn(&[f64]) -> (f64, f64),
) -> Trial {
    let own = shape_of(dice, i, 1..=4);
    let x = operand(dice, &own);
    let axis = any_axis(dice, own.len());
    let (is_exclusive, is_reverse) = (i % 4 > 1, i % 2 == 1);
    let line = |index: &[i64]| {
        let at = index[axis];
        let range = match (is_reverse, is_exclusive) {
            (false, false) => 0..at + 1,
            (false, true) => 0..at,
            (true, false) => at..own[axis],
            (true, true) => at + 1..own[axis],
        };
        of(&range.map(|at| get(&x, &with(index, axis, at))).collect::<Vec<_>>())
    };
    let (values, bounds) = (filled(&own, |index| line(index).0), filled(&own, |index| line(index).1));
    let attributes = match i % 4 {
        0 => Vec::new(),
        _ => vec![
            ("exclusive", AttrValue::Int(is_exclusive.into())),
            ("reverse", AttrValue::Int(is_reverse.into())),
        ],
    };
    let said = integers(index_dtype(i / 4), &[], &[either_way(dice, axis, own.len())]);
    let outputs = vec![Expected::within(x.dtype, &own, values, bounds)];
    Trial { attributes, inputs: vec![Some(x.clone()), Some(said)], outputs }
}

/// The different elements, or the different parts along an axis, in the order of their values or of their first
/// appearance. A part is before another if the first elements that differ are. Of NaN the specification says nothing.
fn unique(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let own = shape_of(dice, i, if i.is_multiple_of(2) { 0..=4 } else { 1..=4 });
    let axis = (i % 2 == 1).then(|| any_axis(dice, own.len()));
    // Few values, so that equal ones meet; along an axis whole parts have to.
    let mut x = random(dtype, dice, &own, if axis.is_some() { (0.0, 1.0) } else { (-9.0, 9.0) });
    x.values.iter_mut().for_each(|value| *value = value.round() + 0.0);
    let parts: Vec<Vec<f64>> = match axis {
        None => x.values.iter().map(|&value| vec![value]).collect(),
        Some(axis) => {
            let part = with(&own, axis, 1);
            (0..own[axis]).map(|at| filled(&part, |index| get(&x, &with(index, axis, at)))).collect()
        }
    };
    let mut firsts: Vec<usize> = (0..parts.len()).filter(|&at| !parts[..at].contains(&parts[at])).collect();
    let is_sorted = i % 4 < 2;
    if is_sorted {
        firsts.sort_by(|&a, &b| parts[a].partial_cmp(&parts[b]).expect("no NaN"));
    }
    let inverse: Vec<f64> = parts
        .iter()
        .map(|part| firsts.iter().position(|&first| parts[first] == *part).expect("it is one") as f64)
        .collect();
    let counts = firsts.iter().map(|&first| parts.iter().filter(|part| **part == parts[first]).count());
    let n = firsts.len() as i64;
    let result = match axis {
        None => Expected::exact(dtype, &[n], firsts.iter().map(|&first| parts[first][0]).collect()),
        Some(axis) => {
            let shape = with(&own, axis, n);
            let at = |index: &[i64]| get(&x, &with(index, axis, firsts[index[axis] as usize] as i64));
            Expected::exact(dtype, &shape, filled(&shape, at))
        }
    };
    let longs = |values: Vec<f64>| Expected::exact(I64, &[values.len() as i64], values);
    let outputs = vec![
        result,
        longs(firsts.iter().map(|&first| first as f64).collect()),
        longs(inverse),
        longs(counts.map(|count| count as f64).collect()),
    ];
    let mut attributes: Vec<_> =
        axis.map(|axis| ("axis", AttrValue::Int(either_way(dice, axis, own.len())))).into_iter().collect();
    if !i.is_multiple_of(3) || !is_sorted {
        attributes.push(("sorted", AttrValue::Int(is_sorted.into())));
    }
    Trial { attributes, inputs: vec![Some(x.clone())], outputs }
}
