//! Ops that pick elements by their positions, or put them there.

use super::index::*;
use super::*;
use crate::ops::random;

pub(super) const OPS: &[OpTrials] = &[
    OpTrials::new("Gather", ANYTHING, |dtype, dice, i| {
        let own = shape_of(dice, i, 1..=4);
        let axis = if i % 3 == 0 { 0 } else { any_axis(dice, own.len()) };
        let x = anything(dtype, dice, &own);
        let wanted: Vec<i64> = (0..dice.below(4)).map(|_| 1 + dice.below(4) as i64).collect();
        let positions = anywhere(index_dtype(i), dice, &wanted, own[axis]);
        let shape = [&own[..axis], &wanted, &own[axis + 1..]].concat();
        let at = |index: &[i64]| {
            let (front, rest) = index.split_at(axis);
            let (wanted, back) = rest.split_at(wanted.len());
            let position = from_front(get(&positions, wanted), own[axis]);
            get(&x, &[front, &[position], back].concat())
        };
        let inputs = vec![Some(x.clone()), Some(positions.clone())];
        moved(axis_attributes(dice, i, axis, own.len()), inputs, &shape, at)
    }),
    OpTrials::new("GatherElements", ANYTHING, |dtype, dice, i| {
        let own = shape_of(dice, i, 1..=4);
        let axis = if i % 3 == 0 { 0 } else { any_axis(dice, own.len()) };
        let x = anything(dtype, dice, &own);
        // Along the axis there may be more than there are elements, beside it fewer.
        let mut shape: Vec<i64> = own.iter().map(|&extent| 1 + dice.below(extent as u64) as i64).collect();
        shape[axis] = 1 + dice.below(2 * own[axis] as u64) as i64;
        let positions = anywhere(index_dtype(i), dice, &shape, own[axis]);
        let at = |index: &[i64]| get(&x, &with(index, axis, from_front(get(&positions, index), own[axis])));
        let inputs = vec![Some(x.clone()), Some(positions.clone())];
        moved(axis_attributes(dice, i, axis, own.len()), inputs, &shape, at)
    }),
    OpTrials::new("GatherND", ANYTHING, |dtype, dice, i| {
        let own = shape_of(dice, i, 1..=4);
        let x = anything(dtype, dice, &own);
        let n_batch = if i % 3 == 0 { 0 } else { any_axis(dice, own.len()) };
        // The number of axes that a tuple of positions gives.
        let n_said = 1 + any_axis(dice, own.len() - n_batch);
        let wanted: Vec<i64> = (0..dice.below(3)).map(|_| 1 + dice.below(4) as i64).collect();
        let tuples = [&own[..n_batch], &wanted, &[n_said as i64]].concat();
        let extents = &own[n_batch..n_batch + n_said];
        let said = |dice: &mut Dice, i: usize| {
            let n = extents[i % n_said];
            (dice.below(2 * n as u64) as i64 - n) as f64
        };
        let values = (0..n_elements(&tuples)).map(|i| said(dice, i)).collect();
        let positions = HostTensor::new(I64, &tuples, values);
        let shape = [&own[..n_batch], &wanted, &own[n_batch + n_said..]].concat();
        let at = |index: &[i64]| {
            let (tuple, back) = index.split_at(n_batch + wanted.len());
            let said =
                (0..n_said).map(|k| from_front(get(&positions, &[tuple, &[k as i64]].concat()), extents[k]));
            get(&x, &[&index[..n_batch], &said.collect::<Vec<_>>(), back].concat())
        };
        let attributes = match i % 3 {
            0 => Vec::new(),
            _ => vec![("batch_dims", AttrValue::Int(n_batch as i64))],
        };
        moved(attributes, vec![Some(x.clone()), Some(positions.clone())], &shape, at)
    }),
    OpTrials::new("ScatterElements", ANYTHING, |dtype, dice, i| {
        let own = shape_of(dice, i, 1..=4);
        let axis = if i % 3 == 0 { 0 } else { any_axis(dice, own.len()) };
        let reduction = reduction(dtype, i);
        let x = reduction.operand(dtype, dice, &own);
        let shape: Vec<i64> = own.iter().map(|&extent| 1 + dice.below(extent as u64) as i64).collect();
        let updates = reduction.operand(dtype, dice, &shape);
        // Each line along the axis says its positions in its own order.
        let mut positions = integers(index_dtype(i), &shape, &vec![0; n_elements(&shape)]);
        for line in 0..n_elements(&with(&shape, axis, 1)) {
            let line = index_of(line, &with(&shape, axis, 1));
            let order = shuffled(dice, own[axis] as usize);
            for k in 0..shape[axis] {
                let position = reduction.position(order[k as usize]) as i64;
                let said = position - if dice.below(2) == 0 { 0 } else { own[axis] };
                positions.values[offset(&with(&line, axis, k), &shape)] = said as f64;
            }
        }
        let puts = (0..updates.values.len()).map(|k| {
            let index = index_of(k, &shape);
            let target = with(&index, axis, from_front(get(&positions, &index), own[axis]));
            (offset(&target, &own), updates.values[k])
        });
        let outputs = vec![reduction.scatter(&x, puts)];
        let mut attributes = axis_attributes(dice, i, axis, own.len());
        attributes.extend(reduction.attribute(i));
        Trial { attributes, inputs: vec![Some(x.clone()), Some(positions.clone()), Some(updates)], outputs }
    }),
    OpTrials::new("ScatterND", ANYTHING, |dtype, dice, i| {
        let own = shape_of(dice, i, 1..=4);
        let reduction = reduction(dtype, i);
        let x = reduction.operand(dtype, dice, &own);
        let n_said = 1 + any_axis(dice, own.len());
        let (said, rest) = own.split_at(n_said);
        let places = shuffled(dice, n_elements(said));
        // A list of tuples of positions; where it is even, a table of them.
        let n = 1 + dice.below(places.len() as u64) as i64;
        let wanted = if n % 2 == 0 { vec![n / 2, 2] } else { vec![n] };
        let mut tuples = Vec::new();
        let mut targets = Vec::new();
        for place in &places[..n as usize] {
            let place = reduction.position(*place);
            targets.push(place);
            for (at, extent) in index_of(place, said).iter().zip(said) {
                tuples.push(at - if dice.below(2) == 0 { 0 } else { *extent });
            }
        }
        let updates = reduction.operand(dtype, dice, &[&wanted, rest].concat());
        let size = n_elements(rest);
        let puts = updates
            .values
            .iter()
            .enumerate()
            .map(|(k, &update)| (targets[k / size] * size + k % size, update));
        let outputs = vec![reduction.scatter(&x, puts)];
        let positions = integers(I64, &[wanted.as_slice(), &[n_said as i64]].concat(), &tuples);
        let attributes = reduction.attribute(i).into_iter().collect();
        let inputs = vec![Some(x.clone()), Some(positions), Some(updates.clone())];
        Trial { attributes, inputs, outputs }
    }),
    OpTrials::new("TensorScatter", ANYTHING, |dtype, dice, i| {
        // The default axis must not be the first.
        let own = shape_of(dice, i, 3..=4);
        let axis = if i % 3 == 0 { own.len() - 2 } else { 1 + any_axis(dice, own.len() - 1) };
        let n = own[axis];
        let size = 1 + dice.below(n as u64) as i64;
        let is_circular = i % 4 > 1;
        let last = if is_circular { n - 1 } else { n - size };
        let starts: Option<Vec<i64>> =
            (i % 5 != 4).then(|| (0..own[0]).map(|_| dice.below(last as u64 + 1) as i64).collect());
        let x = anything(dtype, dice, &own);
        let update = anything(dtype, dice, &with(&own, axis, size));
        let at = |index: &[i64]| {
            let start = starts.as_ref().map_or(0, |starts| starts[index[0] as usize]);
            let at = index[axis] - start;
            let at = if is_circular { at.rem_euclid(n) } else { at };
            if (0..size).contains(&at) { get(&update, &with(index, axis, at)) } else { get(&x, index) }
        };
        let mut attributes = match i % 3 {
            0 => Vec::new(),
            _ => vec![("axis", AttrValue::Int(either_way(dice, axis, own.len())))],
        };
        if i % 4 != 0 {
            attributes.push(("mode", word(if is_circular { "circular" } else { "linear" })));
        }
        let starts = starts.as_ref().map(|starts| list(I64, starts));
        moved(attributes, vec![Some(x.clone()), Some(update.clone()), starts], &own, at)
    }),
    OpTrials::new("OneHot", ANYTHING, |dtype, dice, i| {
        let own = shape_of(dice, i, 0..=3);
        let depth = 1 + dice.below(9) as i64;
        let index_dtype = [I64, I32, F32, U8, I8, F64][i as usize % 6];
        // Some are nowhere. Fractions are cast, towards 0.
        let indices = random(index_dtype, dice, &own, (-12.0, 12.0));
        let depth_dtype = [I64, I32, F32][i as usize / 2 % 3];
        let depth_shape: &[i64] = if i % 2 == 0 { &[] } else { &[1] };
        let values = anything(dtype, dice, &[2]);
        let axis = if i % 3 == 0 { own.len() } else { any_axis(dice, own.len() + 1) };
        let shape = [&own[..axis], &[depth], &own[axis..]].concat();
        let outputs = filled(&shape, |index| {
            let hot = get(&indices, &[&index[..axis], &index[axis + 1..]].concat()).trunc();
            let is_hot = index[axis] as f64 == hot || (index[axis] - depth) as f64 == hot;
            values.values[usize::from(is_hot)]
        });
        let attributes = match i % 3 {
            // The last.
            0 => Vec::new(),
            _ => vec![("axis", AttrValue::Int(either_way(dice, axis, own.len() + 1)))],
        };
        let inputs = vec![
            Some(indices.clone()),
            Some(integers(depth_dtype, depth_shape, &[depth])),
            Some(values.clone()),
        ];
        Trial { attributes, inputs, outputs: vec![Expected::exact(dtype, &shape, outputs)] }
    }),
    OpTrials::new("Compress", ANYTHING, |dtype, dice, i| {
        let own = shape_of(dice, i, 1..=4);
        let x = anything(dtype, dice, &own);
        let axis = (i % 3 != 0).then(|| any_axis(dice, own.len()));
        let extent = axis.map_or(x.values.len() as i64, |axis| own[axis]);
        // Slices beyond the end of the condition are not taken.
        let n = if i % 2 == 0 { extent } else { 1 + dice.below(extent as u64) as i64 };
        let condition = random(BOOL, dice, &[n], (0.0, 1.0));
        let taken: Vec<i64> = (0..n).filter(|&k| condition.values[k as usize] != 0.0).collect();
        let shape = match axis {
            Some(axis) => with(&own, axis, taken.len() as i64),
            None => vec![taken.len() as i64],
        };
        let at = |index: &[i64]| match axis {
            Some(axis) => get(&x, &with(index, axis, taken[index[axis] as usize])),
            None => x.values[taken[index[0] as usize] as usize],
        };
        let attributes =
            axis.map(|axis| ("axis", AttrValue::Int(either_way(dice, axis, own.len())))).into_iter();
        moved(attributes.collect(), vec![Some(x.clone()), Some(condition.clone())], &shape, at)
    }),
    OpTrials::new("NonZero", ANYTHING, |dtype, dice, i| {
        let own = shape_of(dice, i, 0..=4);
        let mut x = anything(dtype, dice, &own);
        // Zeros of both signs; NaN is not 0.
        for value in &mut x.values {
            match dice.below(4) {
                0 => *value = 0.0,
                1 if is_float(dtype) => *value = -0.0,
                _ => {}
            }
        }
        let found: Vec<usize> = (0..x.values.len()).filter(|&k| x.values[k] != 0.0).collect();
        // A scalar has no indices, and so there are as many as it has elements other than 0.
        let shape = [own.len() as i64, found.len() as i64];
        let values =
            filled(&shape, |index| index_of(found[index[1] as usize], &own)[index[0] as usize] as f64);
        let outputs = vec![Expected::exact(I64, &shape, values)];
        Trial { attributes: Vec::new(), inputs: vec![Some(x.clone())], outputs }
    }),
];

/// Positions along an axis, counted from either end.
fn anywhere(dtype: DType, dice: &mut Dice, shape: &[i64], n: i64) -> HostTensor {
    let position = |_| dice.below(2 * n as u64) as i64 - n;
    integers(dtype, shape, &(0..n_elements(shape)).map(position).collect::<Vec<_>>())
}

fn from_front(position: f64, n: i64) -> i64 {
    let position = position as i64;
    if position < 0 { position + n } else { position }
}

/// Returns the axis, unless it is the default of the trial.
fn axis_attributes(dice: &mut Dice, i: u64, axis: usize, rank: usize) -> Vec<(&'static str, AttrValue)> {
    match i % 3 {
        0 => Vec::new(),
        _ => vec![("axis", AttrValue::Int(either_way(dice, axis, rank)))],
    }
}

/// Result for an element that meets another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reduction {
    None,
    Add,
    Mul,
    Max,
    Min,
}

/// Returns the trial's reduction. Truths have none: the specification says neither what their sums are nor which is larger.
fn reduction(dtype: DType, i: u64) -> Reduction {
    match i % 5 {
        1 if dtype != BOOL => Reduction::Add,
        2 if dtype != BOOL => Reduction::Mul,
        3 if dtype != BOOL => Reduction::Max,
        4 if dtype != BOOL => Reduction::Min,
        _ => Reduction::None,
    }
}

impl Reduction {
    /// Without a reduction anything is copied; with one the values stay in every dtype's range.
    fn operand(self, dtype: DType, dice: &mut Dice, shape: &[i64]) -> HostTensor {
        match self {
            Self::None => anything(dtype, dice, shape),
            _ => random(dtype, dice, shape, (-4.0, 4.0)),
        }
    }

    /// Without a reduction no position comes twice; with one, each at most so.
    fn position(self, place: usize) -> usize {
        if self == Self::None { place } else { place / 2 }
    }

    fn attribute(self, i: u64) -> Option<(&'static str, AttrValue)> {
        let name = match self {
            Self::None if i.is_multiple_of(2) => return None,
            Self::None => "none",
            Self::Add => "add",
            Self::Mul => "mul",
            Self::Max => "max",
            Self::Min => "min",
        };
        Some(("reduction", word(name)))
    }

    /// A copy of a tensor with elements put into it.
    fn scatter(self, x: &HostTensor, puts: impl Iterator<Item = (usize, f64)>) -> Expected {
        let mut values = x.values.clone();
        let mut magnitudes: Vec<f64> = values.iter().map(|value| value.abs()).collect();
        for (at, update) in puts {
            values[at] = match self {
                Self::None => update,
                Self::Add => values[at] + update,
                Self::Mul => values[at] * update,
                Self::Max => values[at].max(update),
                Self::Min => values[at].min(update),
            };
            magnitudes[at] = match self {
                Self::Mul => values[at].abs(),
                _ => magnitudes[at] + update.abs(),
            };
        }
        match self {
            // Two updates are two roundings; the third is the product of their errors.
            Self::Add | Self::Mul => {
                let bounds = magnitudes.iter().map(|&magnitude| sum_bound(x.dtype, 3, magnitude));
                Expected::within(x.dtype, &x.shape, values, bounds.collect())
            }
            _ => Expected::exact(x.dtype, &x.shape, values),
        }
    }
}
