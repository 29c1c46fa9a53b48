//! Ops on the lines along one axis: norms, LogSoftmax, Hardmax; and LRN, whose lines are short.

use super::near::{Near, nears};
use super::*;
use crate::ops::random;

pub(super) const OPS: &[OpTrials] = &[
    OpTrials::new("LpNormalization", FLOATS, |dtype, dice, i| {
        let p = 1 + i as i64 % 2;
        let mut lines = Lines::new(dtype, dice, i, (-3.0, 3.0));
        if i % 3 == 2 {
            // The norm of zeros is 0, and so is the result.
            lines.set_first(|_| 0.0);
        }
        // 2 is the default.
        if p == 1 || i % 4 == 1 {
            lines.attributes.push(("p", AttrValue::Int(p)));
        }
        lines.trial(|line| {
            let terms = line.iter().map(|&x| if p == 1 { x.abs() } else { x * x });
            let sum = Near::sum(dtype, terms);
            let norm = if p == 1 { sum } else { sum.sqrt() };
            let divided = |x| if norm.value == 0.0 { x } else { x / norm };
            line.iter().copied().map(divided).collect()
        })
    }),
    OpTrials::new("LogSoftmax", FLOATS, |dtype, dice, i| {
        // Large numbers as well, whose exponential is infinite.
        let far = if i % 4 == 3 { 1000.0 } else { 0.0 };
        let mut lines = Lines::new(dtype, dice, i, (far - 8.0, far + 8.0));
        if i % 5 == 2 {
            lines.set_first(|x| if x.is_sign_positive() && x > 4.0 { f64::NEG_INFINITY } else { x });
        }
        lines.trial(|line| {
            let finite = line.iter().copied().filter(|x| x.value.is_finite());
            let Some(max) = finite.clone().reduce(Near::max) else {
                // A line of negative infinities alone: their difference is NaN.
                return line.iter().map(|_| Near::of(dtype, f64::NAN)).collect();
            };
            let sum = Near::sum(dtype, finite.map(|x| (x - max).exp()));
            let log = |x: Near| if x.value.is_finite() { x - max - sum.ln() } else { x };
            line.iter().copied().map(log).collect()
        })
    }),
    OpTrials::new("Hardmax", FLOATS, |dtype, dice, i| {
        // Few values, so that the largest is there more than once.
        let mut lines = Lines::new(dtype, dice, i, (-2.0, 2.0));
        let values = lines.x.values.iter().map(|x| x.round()).collect();
        lines.x = HostTensor::new(dtype, &lines.x.shape, values);
        let mut trial = lines.trial(|line| {
            let largest = line.iter().map(|x| x.value).fold(f64::NEG_INFINITY, f64::max);
            let first = line.iter().position(|x| x.value == largest);
            (0..line.len()).map(|at| Near::of(dtype, f64::from(u8::from(Some(at) == first)))).collect()
        });
        trial.outputs[0].bounds.fill(0.0);
        trial
    }),
    OpTrials::new("LRN", FLOATS, |dtype, dice, i| {
        let shape = match i {
            0 => vec![1, 1, 1, 1],
            1 => vec![2, 7, 3, 13],
            2 => vec![2, 9, 17, 11],
            _ => (0..4).map(|_| 1 + dice.below(6) as i64).collect(),
        };
        let size = 1 + dice.below(6) as usize;
        let mut attributes = vec![("size", AttrValue::Int(size as i64))];
        let (alpha, beta, bias) = if i % 3 == 0 { (1e-4f32, 0.75, 1.0) } else { (0.5f32, 0.625, 2.0) };
        if i % 3 != 0 {
            attributes.push(("alpha", AttrValue::Float(alpha)));
            attributes.push(("beta", AttrValue::Float(beta)));
            attributes.push(("bias", AttrValue::Float(bias)));
        }
        let x = random(dtype, dice, &shape, (-3.0, 3.0));
        let (numbers, inner) = (nears(&x), n_elements(&shape[2..]));
        let n_channels = shape[1] as usize;
        let y = (0..numbers.len()).map(|at| {
            let channel = at / inner % n_channels;
            let first = channel.saturating_sub((size - 1) / 2);
            let last = (n_channels - 1).min(channel + size / 2);
            let neighbours = (first..=last).map(|other| numbers[at + other * inner - channel * inner]);
            let squares = Near::sum(dtype, neighbours.map(|x| x * x));
            let attribute = |value: f32| Near::rounded(dtype, f64::from(value));
            let share = attribute(alpha) / Near::of(dtype, size as f64);
            numbers[at] / (attribute(bias) + share * squares).powf(f64::from(beta))
        });
        let outputs = vec![Expected::near(dtype, &shape, y.collect())];
        Trial { attributes, inputs: vec![Some(x)], outputs }
    }),
];

/// An operand with an axis.
struct Lines {
    x: HostTensor,
    axis: usize,
    attributes: Vec<(&'static str, AttrValue)>,
}

impl Lines {
    /// The axis is counted from either end, or left out for the last.
    fn new(dtype: DType, dice: &mut Dice, i: u64, range: (f64, f64)) -> Self {
        let shape = shape_of(dice, i, 1..=4);
        let x = random(dtype, dice, &shape, range);
        let rank = shape.len() as i64;
        let axis = if i.is_multiple_of(3) { rank - 1 } else { dice.below(rank as u64) as i64 };
        let value = if i.is_multiple_of(2) { axis - rank } else { axis };
        let attributes = if i.is_multiple_of(3) { Vec::new() } else { vec![("axis", AttrValue::Int(value))] };
        Self { x, axis: axis as usize, attributes }
    }

    /// Returns the places of each line's elements.
    fn places(&self) -> Vec<Vec<usize>> {
        let extent = self.x.shape[self.axis] as usize;
        let inner = n_elements(&self.x.shape[self.axis + 1..]);
        let first = (0..self.x.values.len()).filter(|at| (at / inner).is_multiple_of(extent));
        first.map(|first| (0..extent).map(|i| first + i * inner).collect()).collect()
    }

    /// Changes the first line.
    fn set_first(&mut self, change: impl Fn(f64) -> f64) {
        for &at in &self.places()[0] {
            self.x.values[at] = change(self.x.values[at]);
        }
    }

    /// Makes a trial in which each line gives a line.
    fn trial(self, f: impl Fn(&[Near]) -> Vec<Near>) -> Trial {
        let x = nears(&self.x);
        let mut y = x.clone();
        for places in self.places() {
            let line: Vec<Near> = places.iter().map(|&at| x[at]).collect();
            f(&line).into_iter().zip(places).for_each(|(number, at)| y[at] = number);
        }
        let outputs = vec![Expected::near(self.x.dtype, &self.x.shape, y)];
        Trial { attributes: self.attributes, inputs: vec![Some(self.x)], outputs }
    }
}
