//! Reductions over any axes, with and without the axes kept, and the positions of extremes.

use super::*;
use crate::ops::random;

pub(super) const OPS: &[OpTrials] = &[
    OpTrials::new("ReduceSum", NUMBERS, |dtype, dice, i| {
        reduce(dtype, dice, i, WIDE, |x, dtype| (sum(x), bound(dtype, x.len() + 2, magnitude(x))))
    }),
    OpTrials::new("ReduceMean", NUMBERS, |dtype, dice, i| {
        reduce(dtype, dice, i, SOME, |x, dtype| {
            let n = x.len() as f64;
            (whole(dtype, sum(x) / n), bound(dtype, x.len() + 3, magnitude(x) / n))
        })
    }),
    OpTrials::new("ReduceMax", NUMBERS, |dtype, dice, i| {
        reduce(dtype, dice, i, SOME, |x, _| (x.iter().copied().fold(f64::NEG_INFINITY, f64::max), 0.0))
    }),
    OpTrials::new("ReduceMin", NUMBERS, |dtype, dice, i| {
        reduce(dtype, dice, i, SOME, |x, _| (x.iter().copied().fold(f64::INFINITY, f64::min), 0.0))
    }),
    OpTrials::new("ReduceProd", NUMBERS, |dtype, dice, i| {
        reduce(dtype, dice, i, ONES, |x, dtype| {
            let product: f64 = x.iter().product();
            (product, bound(dtype, x.len() + 2, product.abs()))
        })
    }),
    OpTrials::new("ReduceSumSquare", NUMBERS, |dtype, dice, i| {
        reduce(dtype, dice, i, WIDE, |x, dtype| (squares(x), bound(dtype, x.len() + 3, squares(x))))
    }),
    OpTrials::new("ReduceL1", NUMBERS, |dtype, dice, i| {
        reduce(dtype, dice, i, WIDE, |x, dtype| (magnitude(x), bound(dtype, x.len() + 2, magnitude(x))))
    }),
    OpTrials::new("ReduceL2", NUMBERS, |dtype, dice, i| {
        reduce(dtype, dice, i, WIDE, |x, dtype| {
            // The root halves the relative error of its operand.
            let norm = squares(x).sqrt();
            (whole(dtype, norm), bound(dtype, x.len() + 3, norm))
        })
    }),
    OpTrials::new("ReduceLogSum", FLOATS, |dtype, dice, i| {
        reduce(dtype, dice, i, POSITIVE, |x, dtype| {
            // A relative error of the sum is an absolute one of its logarithm.
            let log = sum(x).ln();
            (log, bound(dtype, x.len() + 2, 1.0) + Rounding::Function.bound(dtype, log))
        })
    }),
    OpTrials::new("ReduceLogSumExp", FLOATS, |dtype, dice, i| {
        reduce(dtype, dice, i, SOME, |x, dtype| {
            let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let log = max + x.iter().map(|x| (x - max).exp()).sum::<f64>().ln();
            // Each term is an exponential; where the plugin does not subtract the maximum, its logarithm is as large.
            let terms = bound(dtype, x.len() + 64, 1.0);
            (if x.is_empty() { f64::NEG_INFINITY } else { log }, terms + Rounding::Function.bound(dtype, log))
        })
    }),
    OpTrials::new("ArgMax", NUMBERS, |dtype, dice, i| position(dtype, dice, i, |a, b| a > b)),
    OpTrials::new("ArgMin", NUMBERS, |dtype, dice, i| position(dtype, dice, i, |a, b| a < b)),
];

/// Ranges of elements.
struct Values {
    range: (f64, f64),
    /// The same for integers.
    whole: (f64, f64),
    /// A dimension without elements has a result: the value of no terms at all.
    has_empty: bool,
}

const WIDE: Values = Values { range: (-9.0, 9.0), whole: (-1.0, 1.0), has_empty: true };
const SOME: Values = Values { range: (-9.0, 9.0), whole: (-50.0, 50.0), has_empty: false };
const ONES: Values = Values { range: (0.7, 1.4), whole: (1.0, 1.0), has_empty: true };
const POSITIVE: Values = Values { range: (0.1, 9.0), whole: (0.0, 1.0), has_empty: false };

fn sum(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() + 0.0
}

fn magnitude(x: &[f64]) -> f64 {
    x.iter().map(|x| x.abs()).sum::<f64>() + 0.0
}

fn squares(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>() + 0.0
}

fn bound(dtype: DType, n: usize, magnitude: f64) -> f64 {
    sum_bound(dtype, n, magnitude)
}

/// Integers' results are cut off towards zero.
fn whole(dtype: DType, value: f64) -> f64 {
    if is_float(dtype) { value } else { value.trunc() }
}

/// Returns the elements of each result, in the order of the results.
fn groups(x: &HostTensor, axes: &[usize]) -> Vec<Vec<f64>> {
    let extent = |axis: usize| x.shape[axis] as usize;
    let kept: Vec<usize> = (0..x.shape.len()).filter(|axis| !axes.contains(axis)).collect();
    let mut groups = vec![Vec::new(); kept.iter().map(|&axis| extent(axis)).product()];
    for (i, &value) in x.values.iter().enumerate() {
        let coordinate = |axis: usize| i / n_elements(&x.shape[axis + 1..]) % extent(axis);
        let group = kept.iter().fold(0, |group, &axis| group * extent(axis) + coordinate(axis));
        groups[group].push(value);
    }
    groups
}

fn reduced_shape(shape: &[i64], axes: &[usize], is_kept: bool) -> Vec<i64> {
    let extents = shape.iter().enumerate().filter_map(|(axis, &extent)| match axes.contains(&axis) {
        true => is_kept.then_some(1),
        false => Some(extent),
    });
    extents.collect()
}

fn reduce(dtype: DType, dice: &mut Dice, i: u64, of: Values, f: fn(&[f64], DType) -> (f64, f64)) -> Trial {
    let mut shape = shape_of(dice, i, 1..=4);
    let is_empty = of.has_empty && i == 5;
    if is_empty {
        shape = vec![3, 0, 2];
    }
    let mut x = random(dtype, dice, &shape, if is_float(dtype) { of.range } else { of.whole });
    if !is_float(dtype) && of.has_empty && of.whole.0 < 0.0 && x.values.len() > 100 {
        // Sums of many stay in the range of 8 bits.
        x.values.iter_mut().filter(|_| dice.below(64) > 0).for_each(|value| *value = 0.0);
    }
    let rank = shape.len();
    let axes: Vec<usize> = match i {
        _ if is_empty => vec![1],
        // All of them, for which none may be given.
        3 | 4 => (0..rank).collect(),
        _ => {
            let first = dice.below(rank as u64) as usize;
            (0..rank).filter(|&axis| axis == first || dice.below(3) == 0).collect()
        }
    };
    let is_kept = i.is_multiple_of(2);
    let (mut values, mut bounds) = (Vec::new(), Vec::new());
    for group in groups(&x, &axes) {
        let (value, bound) = f(&group, dtype);
        values.push(value);
        bounds.push(bound);
    }
    // Also counted from the last.
    let named = |&axis: &usize| axis as f64 - if i.is_multiple_of(3) { rank as f64 } else { 0.0 };
    let list = HostTensor::new(I64, &[axes.len() as i64], axes.iter().map(named).collect());
    Trial {
        attributes: vec![("keepdims", AttrValue::Int(is_kept.into()))],
        outputs: vec![Expected::within(dtype, &reduced_shape(&shape, &axes, is_kept), values, bounds)],
        inputs: vec![Some(x), (i != 3).then_some(list)],
    }
}

fn position(dtype: DType, dice: &mut Dice, i: u64, is_better: fn(f64, f64) -> bool) -> Trial {
    let shape = shape_of(dice, i, 1..=4);
    // Few values, so that several are the best.
    let x = random(dtype, dice, &shape, (-3.0, 3.0));
    let x = HostTensor::new(dtype, &shape, x.values.iter().map(|x| x.round()).collect());
    let axis = dice.below(shape.len() as u64) as usize;
    let (is_kept, is_last) = (i.is_multiple_of(2), i % 3 == 1);
    let best = |group: &Vec<f64>| {
        let mut best = 0;
        for (at, &value) in group.iter().enumerate() {
            if is_better(value, group[best]) || (is_last && value == group[best]) {
                best = at;
            }
        }
        best as f64
    };
    let values = groups(&x, &[axis]).iter().map(best).collect();
    let named = axis as i64 - if i.is_multiple_of(4) { shape.len() as i64 } else { 0 };
    Trial {
        attributes: vec![
            ("axis", AttrValue::Int(named)),
            ("keepdims", AttrValue::Int(is_kept.into())),
            ("select_last_index", AttrValue::Int(is_last.into())),
        ],
        outputs: vec![Expected::exact(I64, &reduced_shape(&shape, &[axis], is_kept), values)],
        inputs: vec![Some(x)],
    }
}
