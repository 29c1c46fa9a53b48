//! Attention of the fused kinds, as ONNX's Attention, and rotary embeddings.
//!
//! Masks are numbers that are added to the scores, as in onnxruntime: rows whose keys are all masked still have a softmax.

use super::{Lowering, quantised};
use devbay_core::Result;
use devbay_core::program::{AttrValue, Value, ValueId};
use devbay_core::tensor::{I32, I64, Tensor};

/// RotaryEmbedding: ONNX's, with the number of heads by the caches' size, and positions that count from one number on.
pub(super) fn rotary_embedding(l: &mut Lowering<'_>) -> Result<()> {
    let (x, mut positions) = (l.operand(0)?, l.operand(1)?);
    let (cos, sin) = (l.operand(2)?, l.operand(3)?);
    if l.int("is_packed_batching", 0) != 0 {
        return Err(l.refused("is_packed_batching"));
    }
    if l.float("scale", 1.0).to_bits() != 1f32.to_bits() {
        return Err(l.refused("a scale other than 1"));
    }
    let rank = l.required_rank(x)?;
    if l.required_rank(positions)? == 1 {
        // [batch, sequence, hidden], or [batch, heads, sequence, size].
        let sequence = if rank == 3 { 1 } else { 2 };
        let n = l.length(x, sequence)?;
        let counted = l.positions(n)?;
        let counted = l.op("Add", &[counted, positions])?;
        let (batch, n) = (l.extents(x, 0, 1)?, l.extents(x, sequence, sequence + 1)?);
        let shape = l.op_with("Concat", &[batch, n], &[("axis", AttrValue::Int(0))])?;
        positions = l.op("Expand", &[counted, shape])?;
    }
    let mut attrs = l.attributes(&["interleaved", "rotary_embedding_dim"]);
    if rank == 3 {
        let heads = match l.int("num_heads", 0) {
            0 => {
                let (hidden, half) = (l.extent(x, 2), l.extent(cos, 1));
                let heads =
                    hidden.zip(half).and_then(|(hidden, half)| hidden.checked_div(half.saturating_mul(2)));
                let heads = heads.and_then(|heads| i64::try_from(heads).ok());
                heads.ok_or_else(|| l.refused("a number of heads that is unknown"))?
            }
            heads => heads,
        };
        attrs.push(("num_heads", AttrValue::Int(heads)));
    }
    let y = l.op_with("RotaryEmbedding", &[x, cos, sin, positions], &attrs)?;
    l.give(0, y).map(drop)
}

/// MultiHeadAttention: queries, keys and values in operands of their own, with biases.
pub(super) fn multi_head_attention(l: &mut Lowering<'_>) -> Result<()> {
    for (i, what) in [(8, "past_sequence_length"), (9, "cache_indirection")] {
        if l.optional(i).is_some() {
            return Err(l.refused(what));
        }
    }
    if l.wants(3) {
        return Err(l.refused("the products of queries and keys as a result"));
    }
    let mut q = l.operand(0)?;
    let (Some(mut k), Some(mut v)) = (l.optional(1), l.optional(2)) else {
        return Err(l.refused("queries, keys and values in fewer than three operands"));
    };
    let ranks = [l.required_rank(q)?, l.required_rank(k)?, l.required_rank(v)?];
    let heads = l.int("num_heads", 0);
    let mut is_split = false;
    match (ranks, l.optional(3)) {
        ([3, 3, 3], None) => {}
        ([3, 3, 3], Some(bias)) => {
            let hidden = [q, k, v].map(|id| l.extent(id, 2));
            let [Some(of_q), Some(of_k), Some(of_v)] = hidden else {
                return Err(l.refused("a bias, and operands whose last extent is unknown"));
            };
            let parts = l.split(bias, 0, &[of_q, of_k, of_v])?;
            q = l.op("Add", &[q, parts[0]])?;
            k = l.op("Add", &[k, parts[1]])?;
            v = l.op("Add", &[v, parts[2]])?;
        }
        ([3, 4, 4], None) => {
            // Keys and values of before, by heads already.
            q = l.split_heads(q, heads)?;
            is_split = true;
        }
        _ => return Err(l.refused(&format!("operands of ranks {ranks:?}"))),
    }
    let past = match (l.optional(6), l.optional(7)) {
        (None, None) => None,
        (Some(key), Some(value)) => Some([key, value]),
        _ => return Err(l.refused("past keys without past values, or the other way round")),
    };
    let attention = Attention { q, k, v, heads, is_split, past, mask: l.optional(4), bias: l.optional(5) };
    attention.append(l, &[Some(0), Some(1), Some(2)])
}

/// Attention: queries, keys and values are products of one operand.
pub(super) fn attention(l: &mut Lowering<'_>) -> Result<()> {
    if l.optional(6).is_some() {
        return Err(l.refused("past_sequence_length"));
    }
    let (x, weights) = (l.operand(0)?, l.operand(1)?);
    let sizes: Option<Vec<usize>> = match l.node.ints("qkv_hidden_sizes") {
        Some(sizes) => sizes.iter().map(|&n| usize::try_from(n).ok()).collect(),
        None => l.extent(weights, 1).map(|n| vec![n / 3; 3]),
    };
    let product = l.op("MatMul", &[x, weights])?;
    let product = l.plus(product, 2)?;
    let projected =
        Projected { product, sizes, past: l.optional(4), mask: l.optional(3), bias: l.optional(5) };
    projected.attend(l)
}

/// QAttention: Attention, whose product is of integers.
pub(super) fn q_attention(l: &mut Lowering<'_>) -> Result<()> {
    let sizes = l.extent(l.operand(1)?, 1).map(|n| vec![n / 3; 3]);
    let product = quantised::projection(l)?;
    let projected = Projected { product, sizes, past: l.optional(8), mask: l.optional(5), bias: None };
    projected.attend(l)
}

/// Queries, keys and values side by side: `[batch, sequence, sum of sizes]`.
struct Projected {
    product: ValueId,
    /// Their sizes, if they are known.
    sizes: Option<Vec<usize>>,
    /// Keys and values of before, as one value.
    past: Option<ValueId>,
    mask: Option<ValueId>,
    bias: Option<ValueId>,
}

impl Projected {
    /// Appends the attention of a node whose results are the output, and the present keys and values as one.
    fn attend(&self, l: &mut Lowering<'_>) -> Result<()> {
        for name in ["do_rotary", "past_present_share_buffer"] {
            if l.int(name, 0) != 0 {
                return Err(l.refused(name));
            }
        }
        let sizes = self.sizes.as_ref().filter(|sizes| sizes.len() == 3);
        let sizes = sizes.ok_or_else(|| l.refused("hidden sizes that are unknown"))?;
        let parts = l.split(self.product, -1, sizes)?;
        let past = match self.past {
            None => None,
            Some(past) => {
                let halves = l.split(past, 0, &[1, 1])?;
                let axes = l.ints(&[0])?;
                Some([l.op("Squeeze", &[halves[0], axes])?, l.op("Squeeze", &[halves[1], axes])?])
            }
        };
        let attention = Attention {
            q: parts[0],
            k: parts[1],
            v: parts[2],
            heads: l.int("num_heads", 0),
            is_split: false,
            past,
            mask: self.mask,
            bias: self.bias,
        };
        if !l.wants(1) {
            return attention.append(l, &[Some(0)]);
        }
        let [key, value] = attention.append_with_present(l)?;
        let (key, value) = (l.unsqueeze(key, &[0])?, l.unsqueeze(value, &[0])?);
        let present = l.op_with("Concat", &[key, value], &[("axis", AttrValue::Int(0))])?;
        l.give(1, present).map(drop)
    }
}

/// Operands and attributes of a node.
type Parts = (Vec<Option<ValueId>>, Vec<(&'static str, AttrValue)>);

/// Queries, keys and values that were projected.
struct Attention {
    q: ValueId,
    k: ValueId,
    v: ValueId,
    heads: i64,
    /// Whether they are by heads: `[batch, heads, sequence, size]`.
    is_split: bool,
    past: Option<[ValueId; 2]>,
    /// Keys that are kept, as the ops' mask.
    mask: Option<ValueId>,
    /// Numbers that are added to the scores.
    bias: Option<ValueId>,
}

impl Attention {
    /// Appends the attention and makes its results, by position, the node's.
    fn append(&self, l: &mut Lowering<'_>, results: &[Option<usize>]) -> Result<()> {
        let (operands, attrs) = self.node(l)?;
        if !self.is_split {
            return l.finish("Attention", &operands, &attrs, results);
        }
        let y = l.program.add_value(Value::default());
        let results = vec![Some(y), l.node.output(1), l.node.output(2)];
        l.append_to(super::held("Attention"), &operands, &attrs, results)?;
        let y = l.transpose(y, &[0, 2, 1, 3])?;
        let y = l.reshape(y, &[0, 0, -1])?;
        l.give(0, y).map(drop)
    }

    /// Appends the attention, makes the node's first result, and returns the present keys and values.
    fn append_with_present(&self, l: &mut Lowering<'_>) -> Result<[ValueId; 2]> {
        let (operands, attrs) = self.node(l)?;
        let present = [(); 2].map(|()| l.program.add_value(Value::default()));
        let results = vec![l.node.output(0), Some(present[0]), Some(present[1])];
        l.append_to(super::held("Attention"), &operands, &attrs, results)?;
        Ok(present)
    }

    /// Returns whether queries see only the keys up to their own. One query sees all keys.
    fn is_causal(&self, l: &Lowering<'_>) -> Result<bool> {
        if l.int("unidirectional", 0) == 0 {
            return Ok(false);
        }
        let axis = if self.is_split { 2 } else { 1 };
        match (l.extent(self.q, axis), l.extent(self.k, axis)) {
            (Some(1), _) => Ok(false),
            // onnxruntime shows all keys to the last query, also those behind it.
            (Some(queries), Some(keys)) if queries != keys => {
                Err(l.refused(&format!("unidirectional, {queries} queries and {keys} keys")))
            }
            _ => Ok(true),
        }
    }

    /// Returns the operands and attributes of ONNX's Attention.
    fn node(&self, l: &mut Lowering<'_>) -> Result<Parts> {
        if self.heads < 1 {
            return Err(l.refused(&format!("num_heads = {}", self.heads)));
        }
        let mut attrs = Vec::new();
        if !self.is_split {
            attrs.push(("q_num_heads", AttrValue::Int(self.heads)));
            attrs.push(("kv_num_heads", AttrValue::Int(self.heads)));
        }
        let scale = l.float("scale", 0.0);
        if scale != 0.0 {
            attrs.push(("scale", AttrValue::Float(scale)));
        }
        if self.is_causal(l)? {
            attrs.push(("is_causal", AttrValue::Int(1)));
        }
        let mask = self.additive_mask(l)?;
        let [past_key, past_value] = self.past.map_or([None, None], |past| past.map(Some));
        Ok((vec![Some(self.q), Some(self.k), Some(self.v), mask, past_key, past_value], attrs))
    }

    /// Returns the numbers to add to the scores: those of masked keys, and the bias.
    fn additive_mask(&self, l: &mut Lowering<'_>) -> Result<Option<ValueId>> {
        let Some(mask) = self.mask else { return Ok(self.bias) };
        let keeps = self.kept_keys(l, mask)?;
        let zero = l.number(0.0, self.q)?;
        let filter = l.number(l.float("mask_filter_value", -10_000.0), self.q)?;
        let numbers = l.op("Where", &[keeps, zero, filter])?;
        match self.bias {
            Some(bias) => l.op("Add", &[numbers, bias]).map(Some),
            None => Ok(Some(numbers)),
        }
    }

    /// Returns which keys a mask keeps, as booleans `[batch, 1, queries or 1, keys]`.
    fn kept_keys(&self, l: &mut Lowering<'_>, mask: ValueId) -> Result<ValueId> {
        let axes: &[i64] = match l.required_rank(mask)? {
            1 => return self.kept_ranges(l, mask),
            2 => &[1, 2],
            3 => &[1],
            rank => return Err(l.refused(&format!("a mask of rank {rank}"))),
        };
        let zero = l.program.add_constant("", Tensor::from_elements(&[], &[0i32])?);
        let mask = l.cast(mask, I32)?;
        let keeps = l.op("Greater", &[mask, zero])?;
        l.unsqueeze(keeps, axes)
    }

    /// Returns which keys are below an end for each batch, and maybe from a start on: ends, then starts.
    fn kept_ranges(&self, l: &mut Lowering<'_>, mask: ValueId) -> Result<ValueId> {
        let known = l.extent(mask, 0).zip(l.extent(self.q, 0));
        let (ends, starts) = match known {
            Some((found, batch)) if found == batch => (mask, None),
            Some((found, batch)) if found == 2 * batch => {
                let halves = l.split(mask, 0, &[batch, batch])?;
                (halves[0], Some(halves[1]))
            }
            _ => return Err(l.refused("a mask of lengths that are not one or two for each batch")),
        };
        let mut n = l.length(self.k, if self.is_split { 2 } else { 1 })?;
        if let Some([past, _]) = self.past {
            let before = l.length(past, 2)?;
            n = l.op("Add", &[n, before])?;
        }
        let keys = l.positions(n)?;
        let ends = l.cast(ends, I64)?;
        let ends = l.unsqueeze(ends, &[1, 2, 3])?;
        let mut keeps = l.op("Less", &[keys, ends])?;
        if let Some(starts) = starts {
            let starts = l.cast(starts, I64)?;
            let starts = l.unsqueeze(starts, &[1, 2, 3])?;
            let begun = l.op("GreaterOrEqual", &[keys, starts])?;
            keeps = l.op("And", &[keeps, begun])?;
        }
        Ok(keeps)
    }
}

impl Lowering<'_> {
    /// Splits a value along an axis.
    pub(super) fn split(&mut self, x: ValueId, axis: i64, sizes: &[usize]) -> Result<Vec<ValueId>> {
        let lengths: Vec<i64> = sizes.iter().map(|&n| i64::try_from(n).unwrap_or(i64::MAX)).collect();
        let lengths = self.ints(&lengths)?;
        let operands = [Some(x), Some(lengths)];
        self.append(super::held("Split"), &operands, &[("axis", AttrValue::Int(axis))], sizes.len())
    }

    /// Returns `[batch, heads, sequence, size]` of `[batch, sequence, heads * size]`.
    pub(super) fn split_heads(&mut self, x: ValueId, heads: i64) -> Result<ValueId> {
        let x = self.reshape(x, &[0, 0, heads, -1])?;
        self.transpose(x, &[0, 2, 1, 3])
    }
}
