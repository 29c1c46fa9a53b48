//! Ops of language models besides attention: SwiGLU, rotary embeddings, and attention that is linear.

use super::attention::Heads;
use super::index::word;
use super::near::{Near, nears};
use super::*;
use crate::ops::random;

/// Float types that operators for inference alone have.
const SINGLES: &[DType] = &[F32, F16, BF16];

pub(super) const OPS: &[OpTrials] = &[
    OpTrials::new("SwiGLU", FLOATS, |dtype, dice, i| {
        let shape = shape_of(dice, i, 0..=4);
        let [a, b] = [(); 2].map(|()| random(dtype, dice, &shape, (-4.0, 4.0)));
        let alpha = if i % 2 == 0 { 1.0 } else { 1.75f32 };
        let gated = |(a, b): (Near, Near)| a * (Near::rounded(dtype, f64::from(alpha)) * a).sigmoid() * b;
        let y = nears(&a).into_iter().zip(nears(&b)).map(gated).collect();
        let outputs = vec![Expected::near(dtype, &shape, y)];
        let attributes = if i % 2 == 0 { Vec::new() } else { vec![("alpha", AttrValue::Float(alpha))] };
        Trial { attributes, inputs: vec![Some(a), Some(b)], outputs }
    }),
    OpTrials::new("RotaryEmbedding", SINGLES, rotary_embedding),
    OpTrials::new("LinearAttention", SINGLES, linear_attention),
];

fn rotary_embedding(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let mut some = |n: u64| 1 + dice.below(n) as usize;
    let [n_batches, n_heads, n_steps, half] = match i {
        0 => [1; 4],
        1 => [2, 2, 3, 33],
        2 => [2, 4, 17, 16],
        _ => [some(3), some(4), some(6), 1 + some(5)],
    };
    let of = Heads { n_batches, n_heads, n_steps, size: 2 * half, is_packed: i % 2 == 1 };
    // All pairs of a head are turned, or the first ones.
    let is_partial = i > 2 && i % 3 == 2;
    let n_pairs = if is_partial { half - 1 } else { half };
    let is_interleaved = i % 4 >= 2;
    let x = random(dtype, dice, &of.shape(), (-2.0, 2.0));
    let says_positions = i % 3 != 1;
    let n_positions = n_steps + 3;
    let shape: Vec<i64> = if says_positions {
        vec![n_positions as i64, n_pairs as i64]
    } else {
        vec![n_batches as i64, n_steps as i64, n_pairs as i64]
    };
    let positions = says_positions.then(|| {
        let position = |_| dice.below(n_positions as u64) as f64;
        let values = (0..n_batches * n_steps).map(position).collect();
        HostTensor::new(I64, &[n_batches as i64, n_steps as i64], values)
    });
    let [cos, sin] = [(); 2].map(|()| random(dtype, dice, &shape, (-1.0, 1.0)));
    let [numbers, cosines, sines] = [&x, &cos, &sin].map(nears);
    let y = of.rows(Near::of(dtype, 0.0), |batch, head, step| {
        let mut row = of.row(&numbers, batch, head, step).to_vec();
        let place = batch * n_steps + step;
        let angle = positions.as_ref().map_or(place, |positions| positions.values[place] as usize) * n_pairs;
        for pair in 0..n_pairs {
            let [a, b] = if is_interleaved { [2 * pair, 2 * pair + 1] } else { [pair, n_pairs + pair] };
            let (cos, sin) = (cosines[angle + pair], sines[angle + pair]);
            (row[a], row[b]) = (cos * row[a] - sin * row[b], sin * row[a] + cos * row[b]);
        }
        row
    });
    let says = [
        (of.is_packed, "num_heads", n_heads),
        (is_partial, "rotary_embedding_dim", 2 * n_pairs),
        (is_interleaved, "interleaved", 1),
    ];
    let said = says.into_iter().filter(|says| says.0);
    Trial {
        attributes: said.map(|(_, name, value)| (name, AttrValue::Int(value as i64))).collect(),
        outputs: vec![Expected::near(dtype, &of.shape(), y)],
        inputs: vec![Some(x), Some(cos), Some(sin), positions],
    }
}

fn linear_attention(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let mut some = |n: u64| 1 + dice.below(n) as usize;
    let [n_batches, kv_heads, group, n_steps, size, v_size] = match i {
        0 => [1; 6],
        1 => [2, 2, 1, 3, 17, 19],
        2 => [1, 2, 2, 7, 16, 35],
        _ => [some(3), some(3), some(3), some(5), some(8), some(8)],
    };
    let heads = |n_heads, size| Heads { n_batches, n_heads, n_steps, size, is_packed: true };
    let (of_q, of_k, of_v) = (heads(kv_heads * group, size), heads(kv_heads, size), heads(kv_heads, v_size));
    let rule = ["linear", "gated", "delta", "gated_delta"][i as usize % 4];
    let (is_gated, is_delta) = (rule.contains("gated"), rule.contains("delta"));
    let mut operand = |of: Heads, range| random(dtype, dice, &of.shape(), range);
    // Keys of a length of at most 1, so that states do not grow.
    let limit = 1.0 / (size as f64).sqrt();
    let q = operand(of_q, (-1.0, 1.0));
    let k = operand(of_k, (-limit, limit));
    let v = operand(of_v, (-1.0, 1.0));
    let of_decay = heads(kv_heads, if i % 8 < 4 { size } else { 1 });
    let decay = is_gated.then(|| operand(of_decay, (-1.0, 0.0)));
    let of_beta = heads(if i.is_multiple_of(3) { 1 } else { kv_heads }, 1);
    let beta = is_delta.then(|| operand(of_beta, (0.0, 1.0)));
    // States of 16-bit floats may be of f32.
    let of_state = if i % 5 == 4 { F32 } else { dtype };
    let state_shape = [n_batches, kv_heads, size, v_size].map(|extent| extent as i64);
    let past = (i % 2 == 1 || of_state != dtype).then(|| random(of_state, dice, &state_shape, (-1.0, 1.0)));

    let [queries, keys, values] = [&q, &k, &v].map(nears);
    let numbers = |tensor: &Option<HostTensor>| tensor.as_ref().map(nears);
    let (decays, betas) = (numbers(&decay), numbers(&beta));
    let mut states: Vec<Near> = match &past {
        Some(past) => past.values.iter().map(|&value| Near::rounded(dtype, value)).collect(),
        None => vec![Near::of(dtype, 0.0); n_elements(&state_shape)],
    };
    let says_scale = i % 3 == 2;
    let scale = Near::rounded(dtype, if says_scale { f64::from(0.3f32) } else { 1.0 / (size as f64).sqrt() });
    let of_y = Heads { size: v_size, ..of_q };
    let zero = Near::of(dtype, 0.0);
    let mut y = vec![zero; n_elements(&of_y.shape())];
    for (batch, head) in (0..n_batches).flat_map(|batch| (0..kv_heads).map(move |head| (batch, head))) {
        let state = &mut states[(batch * kv_heads + head) * size * v_size..][..size * v_size];
        for step in 0..n_steps {
            let (key, value) = (of_k.row(&keys, batch, head, step), of_v.row(&values, batch, head, step));
            if let Some(decays) = &decays {
                let decay = of_decay.row(decays, batch, head, step);
                for (at, number) in state.iter_mut().enumerate() {
                    *number = *number * decay[at / v_size % decay.len()].exp();
                }
            }
            for column in 0..v_size {
                let mut change = value[column];
                if let Some(betas) = &betas {
                    let known = (0..size).map(|row| state[row * v_size + column] * key[row]);
                    let beta = of_beta.row(betas, batch, head % of_beta.n_heads, step)[0];
                    change = beta * (change - Near::sum(dtype, known));
                }
                for row in 0..size {
                    state[row * v_size + column] = state[row * v_size + column] + key[row] * change;
                }
                for shared in head * group..(head + 1) * group {
                    let query = of_q.row(&queries, batch, shared, step);
                    let terms = (0..size).map(|row| query[row] * state[row * v_size + column]);
                    let to = ((batch * n_steps + step) * kv_heads * group + shared) * v_size + column;
                    y[to] = scale * Near::sum(dtype, terms);
                }
            }
        }
    }
    let mut attributes = vec![
        ("q_num_heads", AttrValue::Int((kv_heads * group) as i64)),
        ("kv_num_heads", AttrValue::Int(kv_heads as i64)),
    ];
    // The last rule is the default.
    if rule != "gated_delta" || i % 8 == 3 {
        attributes.push(("update_rule", word(rule)));
    }
    if says_scale {
        attributes.push(("scale", AttrValue::Float(0.3)));
    }
    let outputs =
        vec![Expected::near(dtype, &of_y.shape(), y), Expected::near(of_state, &state_shape, states)];
    Trial { attributes, inputs: vec![Some(q), Some(k), Some(v), past, decay, beta], outputs }
}
