//! Attention of many shapes beside its definition in f64.

use crate::isa::Isa;
use crate::kernels::test_host::{Array, Value, run};
use crate::kernels::testing::{Chance, isas};
use devbay_plugin_api::sdk::BOOL;

/// An attention by chance.
struct Case {
    n: [usize; 2],
    group: usize,
    queries: usize,
    past: usize,
    now: usize,
    sizes: [usize; 2],
    is_causal: bool,
    right: Option<usize>,
    counts: Option<Vec<i64>>,
    /// Extents and numbers; not a number stands for what a mask of booleans hides.
    mask: Option<(Vec<usize>, Vec<f32>)>,
    heads_inside: bool,
    q: Vec<f32>,
    keys: [Vec<f32>; 2],
    values: [Vec<f32>; 2],
}

impl Case {
    fn new(chance: &mut Chance) -> Self {
        let n = [1 + chance.below(2), 1 + chance.below(3)];
        let group = 1 + chance.below(2);
        let queries = [1, 5, 13, 51, 100][chance.below(5)];
        let past = [0, 0, 3, 70][chance.below(4)];
        let now = [1, 5, 64, 67, 400][chance.below(5)];
        let sizes = [[1, 16, 20, 64, 400][chance.below(5)], [1, 16, 23, 64, 80][chance.below(5)]];
        let counts = (past == 0 && chance.below(4) == 0)
            .then(|| (0..n[0]).map(|_| chance.below(now + 1) as i64).collect());
        let [batches, heads] = n;
        let total = past + now;
        let mask = (chance.below(2) == 0).then(|| {
            let mut extents = [batches, heads * group, queries, total][chance.below(3)..].to_vec();
            let outer = extents.len() - 1;
            extents[..outer].iter_mut().for_each(|n| *n = if chance.below(2) == 0 { 1 } else { *n });
            let hides = if chance.below(2) == 0 { f32::NEG_INFINITY } else { f32::NAN };
            let numbers = (0..extents.iter().product())
                .map(|_| if chance.below(3) == 0 { hides } else { chance.below(5) as f32 - 2.0 });
            let numbers = numbers.collect::<Vec<_>>();
            (extents, numbers)
        });
        let mut floats = |n: usize| chance.floats(n, 1.0);
        let q = floats(batches * heads * group * queries * sizes[0]);
        let rows = batches * heads;
        let [keys, values] = sizes.map(|size| [floats(rows * past * size), floats(rows * now * size)]);
        Self {
            n,
            group,
            queries,
            past,
            now,
            sizes,
            is_causal: chance.below(3) == 0,
            right: (chance.below(4) == 0).then(|| chance.below(3)),
            counts,
            mask,
            heads_inside: chance.below(2) == 0,
            q,
            keys,
            values,
        }
    }

    /// The first element of a row of one of these heads and steps.
    fn at(&self, heads: usize, steps: usize, [batch, head, step]: [usize; 3], inside: bool) -> usize {
        match inside {
            true => (batch * steps + step) * heads + head,
            false => (batch * heads + head) * steps + step,
        }
    }

    fn row<'a>(&self, of: &'a [Vec<f32>; 2], size: usize, [batch, head, key]: [usize; 3]) -> &'a [f32] {
        let at = match key.checked_sub(self.past) {
            None => self.at(self.n[1], self.past, [batch, head, key], false),
            Some(key) => self.at(self.n[1], self.now, [batch, head, key], self.heads_inside),
        };
        &of[usize::from(key >= self.past)][at * size..][..size]
    }

    fn is_seen(&self, [batch, head, query, key]: [usize; 4]) -> Option<f32> {
        let count = self.counts.as_ref().map(|counts| counts[batch]);
        let offset = count.map_or(self.past as i64, |count| count - self.queries as i64);
        let (position, j) = (offset + query as i64, key as i64);
        let right = self.right.map_or(i64::MAX, |n| position + n as i64);
        if count.is_some_and(|count| j >= count) || (self.is_causal && j > position) || j > right {
            return None;
        }
        let Some((extents, numbers)) = &self.mask else { return Some(0.0) };
        let of = &[batch, head, query, key][4 - extents.len()..];
        let at = of.iter().zip(extents).fold(0, |at, (&i, &n)| at * n + if n == 1 { 0 } else { i });
        match numbers[at] {
            hidden if hidden.is_nan() || hidden == f32::NEG_INFINITY => None,
            _ if numbers.iter().any(|x| x.is_nan()) => Some(0.0),
            bias => Some(bias),
        }
    }

    fn expected(&self) -> Vec<f64> {
        let [batches, heads] = self.n;
        let [size, of_value] = self.sizes;
        let mut y = vec![0.0; batches * heads * self.group * self.queries * of_value];
        for (batch, head, query) in (0..batches).flat_map(|b| {
            (0..heads * self.group).flat_map(move |h| (0..self.queries).map(move |q| (b, h, q)))
        }) {
            let at = self.at(heads * self.group, self.queries, [batch, head, query], self.heads_inside);
            let q = &self.q[at * size..][..size];
            let of = |key| [batch, head / self.group, key];
            let score = |key: usize| {
                let bias = self.is_seen([batch, head, query, key])?;
                let row = self.row(&self.keys, size, of(key));
                let dot: f64 = q.iter().zip(row).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                Some((dot / (size as f64).sqrt() + f64::from(bias)).exp())
            };
            let scores: Vec<_> = (0..self.past + self.now).map(score).collect();
            let sum: f64 = scores.iter().flatten().sum();
            for (key, score) in scores.into_iter().enumerate() {
                let Some(score) = score else { continue };
                let row = self.row(&self.values, of_value, of(key));
                for (y, value) in y[at * of_value..].iter_mut().zip(row) {
                    *y += score / sum * f64::from(*value);
                }
            }
        }
        y
    }

    fn found(&self, isa: Isa) -> Vec<f32> {
        let [batches, heads] = self.n;
        let shape = |heads: usize, steps: usize, size: usize, inside| match inside {
            true => vec![batches, steps, heads * size],
            false => vec![batches, heads, steps, size],
        };
        let operand = |heads, steps, size, inside, numbers: &[f32]| {
            Some(Array::of(&shape(heads, steps, size, inside), numbers))
        };
        let (of_q, inside) = (heads * self.group, self.heads_inside);
        let mask = self.mask.as_ref().map(|(extents, numbers)| {
            if numbers.iter().any(|x| x.is_nan()) {
                let kept: Vec<u8> = numbers.iter().map(|x| u8::from(!x.is_nan())).collect();
                Array::raw(BOOL, extents, &kept)
            } else {
                Array::of(extents, numbers)
            }
        });
        let [keys, values] = [(&self.keys, self.sizes[0]), (&self.values, self.sizes[1])];
        let before = |of: (&[Vec<f32>; 2], usize)| {
            (self.past > 0).then(|| operand(heads, self.past, of.1, false, &of.0[0])).flatten()
        };
        let inputs = [
            operand(of_q, self.queries, self.sizes[0], inside, &self.q),
            operand(heads, self.now, keys.1, inside, &keys.0[1]),
            operand(heads, self.now, values.1, inside, &values.0[1]),
            mask,
            before(keys),
            before(values),
            self.counts.as_ref().map(|counts| Array::of(&[batches], counts)),
        ];
        let mut attrs = vec![("is_causal", Value::Int(i64::from(self.is_causal)))];
        attrs.extend(self.right.map(|n| ("right_window_size", Value::Int(n as i64))));
        if inside {
            attrs.push(("q_num_heads", Value::Int(of_q as i64)));
            attrs.push(("kv_num_heads", Value::Int(heads as i64)));
        }
        let y = Array::empty::<f32>(&shape(of_q, self.queries, self.sizes[1], inside));
        let found = run(isa, "Attention", &attrs, &inputs, &[Some(y)]).expect("attends");
        found[0].as_ref().expect("an output").elements::<f32>()
    }

    fn check(&self, isa: Isa, i: usize) {
        for (at, (found, expected)) in self.found(isa).into_iter().zip(self.expected()).enumerate() {
            let is_right = (f64::from(found) - expected).abs() < 1e-5 || found.is_nan() && expected.is_nan();
            assert!(is_right, "{found} at {at} of {i}, expected {expected}");
        }
    }
}

#[test]
fn attention_is_what_the_definition_says() {
    for isa in isas() {
        let mut chance = Chance::new(11);
        for i in 0..100 {
            Case::new(&mut chance).check(isa, i);
        }
    }
}

#[test]
fn what_is_not_seen_may_hold_anything() {
    for isa in isas() {
        let mut chance = Chance::new(3);
        for i in 0..50 {
            let mut case = Case::new(&mut chance);
            let key = chance.below(case.now);
            let [of_key, of_value] = case.sizes;
            case.keys[1][key * of_key] = f32::NAN;
            case.values[1][key * of_value] = f32::NAN;
            case.check(isa, i);
        }
    }
}

/// The mask's value is added also for an unseen key, so a NaN there makes all of a query's weights NaN.
#[test]
fn a_mask_counts_behind_the_last_key() {
    let (queries, keys, size) = (5, 7, 16);
    let mut chance = Chance::new(5);
    let [q, k, v] = [queries, keys, keys].map(|n| Array::of(&[1, 1, n, size], &chance.floats(n * size, 1.0)));
    let inputs = [Some(q), Some(k), Some(v)];
    for isa in isas() {
        for (query, key) in [(0, 1), (0, 6), (2, 3), (4, 6), (4, 0)] {
            let mut numbers = vec![0.0; queries * keys];
            numbers[query * keys + key] = f32::NAN;
            let inputs = [&inputs[..], &[Some(Array::of(&[queries, keys], &numbers))]].concat();
            let y = Array::empty::<f32>(&[1, 1, queries, size]);
            let causal = [("is_causal", Value::Int(1))];
            let found = run(isa, "Attention", &causal, &inputs, &[Some(y)]).expect("attends");
            let found = found[0].as_ref().expect("an output").elements::<f32>();
            for (at, x) in found.iter().enumerate() {
                assert_eq!(x.is_nan(), at / size == query, "{x} at {at}, mask {query}, {key}");
            }
        }
    }
}
