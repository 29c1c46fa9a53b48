//! Patterns that exporters write in many ops: normalisations, activations and attention.

use super::{Choices, MOST, Made, Maker};
use devbay_host::internals::core::program::{AttrValue, ValueId};

impl Maker {
    /// A normalisation over the last axis as exporters write it, with a scale and a bias or without.
    pub(super) fn layer_norm(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let n = *x.shape.last()?;
        let mut row = x.clone();
        *row.shape.last_mut()? = 1;
        let (is_product, has_scale, has_bias, is_dirty) =
            (choices.of(2) == 1, choices.of(3) > 0, choices.of(3) > 0, choices.of(6) == 5);
        let mean = |maker: &mut Self, of: ValueId, most: f32| {
            let axes = maker.list(&[-1]);
            maker.add("ReduceMean", &[of, axes], &[], Made { most, ..row.clone() })
        };
        let average = mean(self, x.id, x.most)?;
        let centred = self.add("Sub", &[x.id, average.id], &[], Made { most: x.most * 2.0, ..x.clone() })?;
        let second = if is_product { centred.id } else { self.number(2.0) };
        let op = if is_product { "Mul" } else { "Pow" };
        // Squares may be large: they have no other use.
        let squares = self.add(op, &[centred.id, second], &[], Made { most: MOST, ..x.clone() })?;
        let variance = mean(self, squares.id, MOST - 1.0)?;
        let epsilon = self.number(0.01);
        let shifted = self.add("Add", &[variance.id, epsilon], &[], Made { most: MOST, ..row.clone() })?;
        let deviation = self.apply("Sqrt", &shifted)?;
        let unit = Made { most: (n as f32).sqrt(), ..x };
        let mut last = self.add("Div", &[centred.id, deviation.id], &[], unit.clone())?;
        if has_scale {
            last = self.apply_with("Mul", &last, &[n], 1, is_product)?;
        }
        if has_bias {
            last = self.apply_with("Add", &last, &[n], 2, false)?;
        }
        if !is_dirty {
            // Values inside are not seen by others, or there would be nothing to fuse.
            self.pool.retain(|made| ![average.id, centred.id, squares.id, variance.id].contains(&made.id));
            self.pool.retain(|made| ![shifted.id, deviation.id].contains(&made.id));
            self.pool
                .retain(|made| made.id == last.id || made.shape != last.shape || made.id.0 < average.id.0);
        }
        Some(())
    }

    /// The Gaussian error linear unit as exporters write it: exact, or by tanh.
    pub(super) fn gelu(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        if x.most > 4.0 {
            return None;
        }
        let n_pool = self.pool.len();
        let (form, half, one) = (choices.of(4), self.number(0.5), self.number(1.0));
        let of = |most: f32| Made { most, ..x.clone() };
        let inner = if form < 3 {
            let root = self.number(std::f32::consts::SQRT_2);
            let scaled = self.add("Div", &[x.id, root], &[], of(3.0))?;
            self.add("Erf", &[scaled.id], &[], of(1.0))?
        } else {
            let three = self.number(3.0);
            let cube = self.add("Pow", &[x.id, three], &[], of(MOST))?;
            let (small, root) = (self.number(0.044_715), self.number(0.797_884_6));
            let term = self.add("Mul", &[cube.id, small], &[], of(4.0))?;
            let sum = self.add("Add", &[x.id, term.id], &[], of(8.0))?;
            let scaled = self.add("Mul", &[root, sum.id], &[], of(7.0))?;
            self.add("Tanh", &[scaled.id], &[], of(1.0))?
        };
        let sum = self.add("Add", &[inner.id, one], &[], of(2.0))?;
        let last = if form == 1 {
            let scaled = self.add("Mul", &[sum.id, half], &[], of(1.0))?;
            self.add("Mul", &[x.id, scaled.id], &[], of(4.0))?
        } else {
            let (a, b) = if form == 2 { (sum.id, x.id) } else { (x.id, sum.id) };
            let product = self.add("Mul", &[a, b], &[], of(8.0))?;
            self.add("Mul", &[product.id, half], &[], of(4.0))?
        };
        self.pool.truncate(n_pool);
        self.pool.push(last);
        Some(())
    }

    /// HardSwish as exporters write it: by a Clip and a division or a product, or by HardSigmoid.
    pub(super) fn hard_swish(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let n_pool = self.pool.len();
        if x.most > 4.0 {
            return None;
        }
        let of = |most: f32| Made { most, ..x.clone() };
        let form = choices.of(4);
        let last = if form == 0 {
            let slope = [("alpha", AttrValue::Float(1.0 / 6.0)), ("beta", AttrValue::Float(0.5))];
            let ramp = self.add("HardSigmoid", &[x.id], &slope, of(1.0))?;
            self.add("Mul", &[x.id, ramp.id], &[], of(x.most))?
        } else {
            let [zero, three, six, sixth] = [0.0, 3.0, 6.0, 1.0 / 6.0].map(|value| self.number(value));
            let sum = self.add("Add", &[x.id, three], &[], of(x.most + 3.0))?;
            let ramp = self.add("Clip", &[sum.id, zero, six], &[], of(6.0))?;
            let product = self.add("Mul", &[ramp.id, x.id], &[], of(x.most * 6.0))?;
            let (op, number) = if form == 1 { ("Mul", sixth) } else { ("Div", six) };
            self.add(op, &[product.id, number], &[], of(x.most))?
        };
        self.pool.truncate(n_pool);
        self.pool.push(last);
        Some(())
    }

    /// Attention of a value to itself as exporters write it: heads in front of the sequence, or behind it and transposed, with
    /// a batch or without, with a mask or none, and with its factor in one of three places.
    pub(super) fn attention(&mut self, choices: &mut Choices<'_>) -> Option<()> {
        let x = self.pick(choices);
        let (n_pool, n) = (self.pool.len(), x.n());
        let divisor = |of: usize, choice: usize| {
            let divisors: Vec<usize> = (1..=6).rev().filter(|n| of.is_multiple_of(*n)).collect();
            divisors[choice % divisors.len()]
        };
        let steps = divisor(n, choices.byte());
        let heads = divisor(n / steps, choices.byte());
        let size = n / steps / heads;
        let (is_inside, has_batch, masks, factor) =
            (choices.of(3) > 0, choices.of(2) == 0, choices.of(4), choices.of(4));
        if x.most > 8.0 || size > 32 {
            return None;
        }
        let with_batch = |of: [usize; 3]| if has_batch { [&[1], &of[..]].concat() } else { of.to_vec() };
        let perm = |of: [i64; 3]| {
            let of = if has_batch { vec![0, of[0] + 1, of[1] + 1, of[2] + 1] } else { of.to_vec() };
            [("perm", AttrValue::Ints(of))]
        };
        let made = |shape: [usize; 3], most: f32| Made { shape: with_batch(shape), most, ..x.clone() };
        let divided = if is_inside { [steps, heads, size] } else { [heads, steps, size] };
        let extents: Vec<i64> = with_batch(divided).iter().map(|&n| n as i64).collect();
        let extents = self.list(&extents);
        let [q, k] = [self.apply("Tanh", &x)?, self.apply("Sigmoid", &x)?];
        let [q, k, v] = [(q, 1.0), (k, 1.0), (x.clone(), x.most)]
            .map(|(of, most)| self.add("Reshape", &[of.id, extents], &[], made(divided, most)));
        let (mut q, mut k, mut v) = (q?, k?, v?);
        let (turned, rows) = (made([heads, size, steps], 1.0), made([heads, steps, size], x.most));
        if is_inside {
            q = self.add("Transpose", &[q.id], &perm([1, 0, 2]), Made { most: 1.0, ..rows.clone() })?;
            k = self.add("Transpose", &[k.id], &perm([1, 2, 0]), turned)?;
            v = self.add("Transpose", &[v.id], &perm([1, 0, 2]), rows.clone())?;
        } else {
            k = self.add("Transpose", &[k.id], &perm([0, 2, 1]), turned)?;
        }
        let number = self.number(0.5);
        if factor == 1 {
            q = self.add("Mul", &[number, q.id], &[], q)?;
        }
        let full = made([heads, steps, steps], MOST);
        let mut scores = self.add("MatMul", &[q.id, k.id], &[], full.clone())?;
        if factor > 1 {
            scores = self.add(["Mul", "Div"][factor - 2], &[scores.id, number], &[], full.clone())?;
        }
        if masks > 0 {
            let extents = [vec![steps], vec![heads, 1, steps], vec![1, steps]];
            let mask = self.numbers(&extents[masks - 1], masks, 1.0);
            scores = self.add("Add", &[scores.id, mask], &[], full.clone())?;
        }
        let weights = self.add("Softmax", &[scores.id], &[("axis", AttrValue::Int(-1))], full)?;
        let mut last = self.add("MatMul", &[weights.id, v.id], &[], rows)?;
        if is_inside {
            last = self.add("Transpose", &[last.id], &perm([1, 0, 2]), made(divided, x.most))?;
        }
        self.pool.truncate(n_pool);
        self.pool.push(last);
        Some(())
    }
}
