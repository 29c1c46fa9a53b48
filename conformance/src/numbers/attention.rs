//! Attention: shared heads, both layouts, masks, causal and windowed, caches inside and outside; FlexAttention without
//! its subgraphs.

use super::near::{Near, nears};
use super::*;
use crate::ops::{broadcast_index, random};

pub(super) const OPS: &[OpTrials] = &[
    OpTrials::new("Attention", FLOATS, attention),
    OpTrials { domain: "ai.onnx.preview", op: "FlexAttention", dtypes: FLOATS, make: flex_attention },
];

/// Layout of an operand's heads: `[batch, head, step, element]`, or packed as `[batch, step, head * element]`.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub n_batches: usize,
    pub n_heads: usize,
    pub n_steps: usize,
    pub size: usize,
    pub is_packed: bool,
}

impl Heads {
    pub(super) fn shape(self) -> Vec<i64> {
        let Self { n_batches, n_heads, n_steps, size, is_packed } = self;
        let shape = if is_packed {
            vec![n_batches, n_steps, n_heads * size]
        } else {
            vec![n_batches, n_heads, n_steps, size]
        };
        shape.into_iter().map(|extent| extent as i64).collect()
    }

    /// Returns the elements of a head at a step.
    pub(super) fn row<T>(self, values: &[T], batch: usize, head: usize, step: usize) -> &[T] {
        let row = if self.is_packed {
            (batch * self.n_steps + step) * self.n_heads + head
        } else {
            (batch * self.n_heads + head) * self.n_steps + step
        };
        &values[row * self.size..][..self.size]
    }

    /// A tensor of what `f` says of each row.
    pub(super) fn rows<T: Clone>(self, zero: T, mut f: impl FnMut(usize, usize, usize) -> Vec<T>) -> Vec<T> {
        let mut values = vec![zero; n_elements(&self.shape())];
        for row in 0..self.n_batches * self.n_heads * self.n_steps {
            let (step, rest) = (row % self.n_steps, row / self.n_steps);
            let (head, batch) = (rest % self.n_heads, rest / self.n_heads);
            let to = if self.is_packed { (batch * self.n_steps + step) * self.n_heads + head } else { row };
            values[to * self.size..][..self.size].clone_from_slice(&f(batch, head, step));
        }
        values
    }
}

/// Sizes of a trial.
struct Sizes {
    n_batches: usize,
    kv_heads: usize,
    /// Query heads for each of the others.
    group: usize,
    n_queries: usize,
    n_keys: usize,
    size: usize,
    v_size: usize,
}

fn sizes(dice: &mut Dice, i: u64) -> Sizes {
    let mut some = |n: u64| 1 + dice.below(n) as usize;
    let [n_batches, kv_heads, group, n_queries, n_keys, size, v_size] = match i {
        0 => [1; 7],
        1 => [2, 2, 1, 5, 67, 16, 19],
        2 => [1, 2, 2, 33, 40, 32, 32],
        _ => [some(3), some(3), some(3), some(6), some(9), some(9), some(9)],
    };
    Sizes { n_batches, kv_heads, group, n_queries, n_keys, size, v_size }
}

/// The keys and values that one query sees, and how.
struct Sight<'a> {
    keys: Vec<&'a [Near]>,
    values: Vec<&'a [Near]>,
    /// Addend of each score; negative infinity for a key that is not attended.
    bias: Vec<f64>,
    scale: f64,
    /// 0 for none.
    softcap: f64,
    /// In what the softmax is computed.
    softmax: DType,
}

impl Sight<'_> {
    /// Returns the result of a query; and the scores as they are, capped, with the bias, and after the softmax.
    fn attend(&self, dtype: DType, query: &[Near]) -> (Vec<Near>, [Vec<Near>; 4]) {
        // The specification scales both operands by the root.
        let root = Near::rounded(dtype, self.scale.sqrt());
        let product =
            |key: &&[Near]| Near::sum(dtype, query.iter().zip(*key).map(|(&q, &k)| (q * root) * (k * root)));
        let scores: Vec<Near> = self.keys.iter().map(product).collect();
        let cap = Near::rounded(dtype, self.softcap);
        let cap_score = |&score: &Near| if self.softcap > 0.0 { (score / cap).tanh() * cap } else { score };
        let capped: Vec<Near> = scores.iter().map(cap_score).collect();
        let with_bias = |(&score, &bias): (&Near, &f64)| {
            let bias = Near::of(dtype, bias);
            if bias.value.is_finite() { score + bias } else { bias }
        };
        let biased: Vec<Near> = capped.iter().zip(&self.bias).map(with_bias).collect();
        let staged: Vec<Near> = biased.iter().map(|score| score.cast(self.softmax)).collect();
        let attended = staged.iter().copied().filter(|score| score.value.is_finite());
        let zero = Near::of(dtype, 0.0);
        // A query without any key has zeros.
        let probabilities: Vec<Near> = match attended.clone().reduce(Near::max) {
            None => vec![zero; self.keys.len()],
            Some(max) => {
                let sum = Near::sum(self.softmax, attended.map(|score| (score - max).exp()));
                let share = |score: &Near| match score.value.is_finite() {
                    true => ((*score - max).exp() / sum).cast(dtype),
                    false => zero,
                };
                staged.iter().map(share).collect()
            }
        };
        let element = |at: usize| {
            let terms = probabilities.iter().zip(&self.values).filter(|(p, _)| p.value != 0.0);
            Near::sum(dtype, terms.map(|(&p, value)| p * value[at]))
        };
        let y = (0..self.values[0].len()).map(element).collect();
        (y, [scores, capped, biased, probabilities])
    }
}

fn flex_attention(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let Sizes { n_batches, kv_heads, group, n_queries, n_keys, size, v_size } = sizes(dice, i);
    let heads = |n_heads, n_steps, size| Heads { n_batches, n_heads, n_steps, size, is_packed: false };
    let of_q = heads(kv_heads * group, n_queries, size);
    let [of_k, of_v] = [size, v_size].map(|size| heads(kv_heads, n_keys, size));
    let [q, k, v] = [of_q, of_k, of_v].map(|heads| random(dtype, dice, &heads.shape(), (-1.0, 1.0)));
    let [queries, keys, values] = [&q, &k, &v].map(nears);
    let (attributes, scale) = scale_of(i, size);
    let of_y = Heads { size: v_size, ..of_q };
    let y = of_y.rows(Near::of(dtype, 0.0), |batch, head, step| {
        let sight = Sight {
            keys: (0..n_keys).map(|j| of_k.row(&keys, batch, head / group, j)).collect(),
            values: (0..n_keys).map(|j| of_v.row(&values, batch, head / group, j)).collect(),
            bias: vec![0.0; n_keys],
            scale,
            softcap: 0.0,
            // The type unless the node says otherwise.
            softmax: if dtype == F64 { F64 } else { F32 },
        };
        sight.attend(dtype, of_q.row(&queries, batch, head, step)).0
    });
    let outputs = vec![Expected::near(dtype, &of_y.shape(), y)];
    Trial { attributes, inputs: [q, k, v].map(Some).into(), outputs }
}

fn scale_of(i: u64, size: usize) -> (Vec<(&'static str, AttrValue)>, f64) {
    match i % 3 {
        2 => (vec![("scale", AttrValue::Float(0.3))], f64::from(0.3f32)),
        _ => (Vec::new(), 1.0 / (size as f64).sqrt()),
    }
}

/// A mask, or none: of truths or numbers, of full rank or less, shorter than the keys, with negative infinities.
fn mask(dtype: DType, dice: &mut Dice, i: u64, full: [i64; 4], n_valid: i64) -> Option<HostTensor> {
    let [_, n_heads, n_queries, n_keys] = full;
    let shape = match i % 6 {
        0 => return None,
        1 => vec![n_queries, n_keys],
        2 => vec![1, n_heads, n_queries, n_keys],
        3 => full.to_vec(),
        // A last extent of 1 could be shorter, or broadcast.
        4 => vec![n_queries, n_keys.min(n_valid.max(2))],
        _ => vec![n_heads, 1, n_keys],
    };
    let dtype = if i % 2 == 1 { BOOL } else { dtype };
    let mut mask = random(dtype, dice, &shape, (-1.0, 1.0));
    for value in &mut mask.values {
        let is_closed = dice.below(4) == 0;
        match (dtype, is_closed) {
            (BOOL, _) => *value = f64::from(u8::from(!is_closed)),
            (_, true) if i % 4 == 2 => *value = f64::NEG_INFINITY,
            _ => {}
        }
    }
    Some(mask)
}

fn attention(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let Sizes { n_batches, kv_heads, group, n_queries, n_keys, size, v_size } = sizes(dice, i);
    let is_packed = i % 4 == 1;
    let heads = |n_heads, n_steps, size| Heads { n_batches, n_heads, n_steps, size, is_packed };
    let of_q = heads(kv_heads * group, n_queries, size);
    let [of_k, of_v] = [size, v_size].map(|size| heads(kv_heads, n_keys, size));
    let [q, k, v] = [of_q, of_k, of_v].map(|heads| random(dtype, dice, &heads.shape(), (-1.0, 1.0)));
    let zero = Near::of(dtype, 0.0);

    // Keys of earlier steps, inside the op; or the number of keys that count, where the cache is outside.
    let n_past = if matches!(i % 5, 2 | 3) { 1 + dice.below(5) as usize } else { 0 };
    let n_total = n_past + n_keys;
    let cached = |of: Heads| Heads { n_steps: n_past, is_packed: false, ..of };
    let past =
        (n_past > 0).then(|| [of_k, of_v].map(|of| random(dtype, dice, &cached(of).shape(), (-1.0, 1.0))));
    let joined = |of: Heads, new: &HostTensor, which: usize| {
        let present = Heads { n_steps: n_total, is_packed: false, ..of };
        let values = present.rows(0.0, |batch, head, step| match &past {
            Some(past) if step < n_past => cached(of).row(&past[which].values, batch, head, step).to_vec(),
            _ => of.row(&new.values, batch, head, step - n_past).to_vec(),
        });
        (present, HostTensor::new(dtype, &present.shape(), values))
    };
    let ((of_keys, present_k), (of_values, present_v)) = (joined(of_k, &k, 0), joined(of_v, &v, 1));
    let counts: Option<Vec<f64>> = (n_past == 0 && i % 5 == 4)
        .then(|| (0..n_batches).map(|_| 1.0 + dice.below(n_keys as u64) as f64).collect());
    let n_valid = counts.iter().flatten().fold(1.0, |a: f64, &b| a.max(b)) as i64;

    let (mut attributes, scale) = scale_of(i, size);
    let is_causal = i % 3 == 1;
    let softcap = if i % 4 == 2 { 2.0f32 } else { 0.0 };
    let window = |name, at: bool, attributes: &mut Vec<(&'static str, AttrValue)>, extent: i64| {
        at.then(|| attributes.push((name, AttrValue::Int(extent)))).map(|()| extent)
    };
    let left = window("left_window_size", matches!(i, 5 | 7 | 11), &mut attributes, i as i64 % 3);
    let right = window("right_window_size", matches!(i, 6 | 11 | 14), &mut attributes, 1);
    let softmax = if i % 8 == 7 { F32 } else { dtype };
    let mode = i as usize / 2 % 4;
    let says = [
        (is_causal, "is_causal", AttrValue::Int(1)),
        (softcap > 0.0, "softcap", AttrValue::Float(softcap)),
        (i % 8 == 7, "softmax_precision", AttrValue::Int(1)),
        (i % 2 == 1 && mode > 0, "qk_matmul_output_mode", AttrValue::Int(mode as i64)),
        (is_packed, "q_num_heads", AttrValue::Int((kv_heads * group) as i64)),
        (is_packed, "kv_num_heads", AttrValue::Int(kv_heads as i64)),
    ];
    attributes.extend(says.into_iter().filter(|says| says.0).map(|(_, name, value)| (name, value)));

    let full = [n_batches, kv_heads * group, n_queries, n_total].map(|extent| extent as i64);
    let mask = mask(dtype, dice, i, full, n_valid);
    let bias = |batch: usize, head: usize, query: usize, key: usize| {
        let count = counts.as_ref().map_or(n_total, |counts| counts[batch] as usize) as i64;
        // The number of keys before the first query.
        let offset = match (n_past, &counts) {
            (0, Some(_)) => count - n_queries as i64,
            _ => n_past as i64,
        };
        let (position, key) = (offset + query as i64, key as i64);
        let is_open = key < count
            && (!is_causal || key <= position)
            && left.is_none_or(|left| position - left <= key)
            && right.is_none_or(|right| key <= position + right);
        let masked = mask.as_ref().map_or(0.0, |mask| {
            let n = *mask.shape.last().expect("a mask has keys");
            if key >= n {
                return f64::NEG_INFINITY;
            }
            let at = ((batch as i64 * full[1] + head as i64) * full[2] + query as i64) * n + key;
            let value =
                mask.values[broadcast_index(at as usize, &[full[0], full[1], full[2], n], &mask.shape)];
            match mask.dtype {
                BOOL if value != 0.0 => 0.0,
                BOOL => f64::NEG_INFINITY,
                _ => value,
            }
        });
        if is_open { masked } else { f64::NEG_INFINITY }
    };

    let [queries, keys, values] = [&q, &present_k, &present_v].map(nears);
    let of_y = Heads { size: v_size, ..of_q };
    let of_scores = Heads { size: n_total, is_packed: false, ..of_q };
    let mut scores = vec![zero; n_elements(&full)];
    let y = of_y.rows(zero, |batch, head, step| {
        let sight = Sight {
            keys: (0..n_total).map(|j| of_keys.row(&keys, batch, head / group, j)).collect(),
            values: (0..n_total).map(|j| of_values.row(&values, batch, head / group, j)).collect(),
            bias: (0..n_total).map(|j| bias(batch, head, step, j)).collect(),
            scale,
            softcap: f64::from(softcap),
            softmax,
        };
        let (y, shown) = sight.attend(dtype, of_q.row(&queries, batch, head, step));
        let row = (batch * kv_heads * group + head) * n_queries + step;
        scores[row * n_total..][..n_total].copy_from_slice(&shown[mode]);
        y
    });
    let mut outputs = vec![Expected::near(dtype, &of_y.shape(), y)];
    // Not together with a cache that is outside.
    if counts.is_none() && (n_past > 0 || i % 2 == 1) {
        for present in [present_k, present_v] {
            outputs.push(Expected::exact(dtype, &present.shape.clone(), present.values));
        }
        if i % 2 == 1 {
            outputs.push(Expected::near(dtype, &of_scores.shape(), scores));
        }
    }
    let [past_k, past_v] = past.map_or([None, None], |past| past.map(Some));
    let counts = counts.map(|counts| HostTensor::new(I64, &[n_batches as i64], counts));
    Trial { attributes, inputs: vec![Some(q), Some(k), Some(v), mask, past_k, past_v, counts], outputs }
}
