//! GroupQueryAttention: heads of queries that share keys and values, and a cache with its own length for each batch.

use super::Lowering;
use devbay_core::Result;
use devbay_core::program::{AttrValue, Value, ValueId};
use devbay_core::tensor::I64;

/// Operands that no lowering reads.
const UNREAD: &[(usize, &str)] = &[
    (10, "attention_bias"),
    (11, "head_sink"),
    (12, "k_scale"),
    (13, "v_scale"),
    (14, "q_norm_weight"),
    (15, "k_norm_weight"),
    (16, "query_seqlens"),
];

/// GroupQueryAttention: writes keys and values into the cache, behind those of before, and attends to what is there.
pub(super) fn group_query_attention(l: &mut Lowering<'_>) -> Result<()> {
    check(l)?;
    let (n_heads, n_shared) = (l.int("num_heads", 0), l.int("kv_num_heads", 0));
    let x = l.operand(0)?;
    let parts = match (l.optional(1), l.optional(2)) {
        (Some(key), Some(value)) => [x, key, value],
        (None, None) => packed(l, x, n_heads, n_shared)?,
        _ => return Err(l.refused("keys without values, or the other way round")),
    };
    let mut q = l.split_heads(parts[0], n_heads)?;
    let mut k = l.split_heads(parts[1], n_shared)?;
    let v = l.split_heads(parts[2], n_shared)?;

    // Operand 5 has the number of keys of each batch, less 1.
    let n_queries = l.length(x, 1)?;
    let total = l.operand(6)?;
    let total = l.cast(total, I64)?;
    let total = l.scalar_of(total)?;
    let are_all = l.op("Equal", &[n_queries, total])?;
    let before = n_before(l, n_queries, are_all)?;
    let queries = l.positions(n_queries)?;
    let column = l.unsqueeze(before, &[1])?;
    let positions = l.op("Add", &[column, queries])?;
    if l.int("do_rotary", 0) != 0 {
        let places = match l.optional(9) {
            Some(places) => given_positions(l, places, queries, are_all)?,
            None => positions,
        };
        q = rotated(l, q, places)?;
        k = rotated(l, k, places)?;
    }

    let key = cached(l, 3, 1, k, before, total)?;
    let value = cached(l, 4, 2, v, before, total)?;
    let n_keys = l.length(key, 2)?;
    let keys = l.positions(n_keys)?;
    let last = l.unsqueeze(positions, &[1, 3])?;
    let keeps = l.op("LessOrEqual", &[keys, last])?;
    let scale = l.float("scale", 0.0);
    let attrs = if scale == 0.0 { vec![] } else { vec![("scale", AttrValue::Float(scale))] };
    let y = l.op_with("Attention", &[q, key, value, keeps], &attrs)?;
    let y = l.transpose(y, &[0, 2, 1, 3])?;
    let y = l.reshape(y, &[0, 0, -1])?;
    l.give(0, y).map(drop)
}

/// Refuses the parts of the op that have no lowering.
fn check(l: &Lowering<'_>) -> Result<()> {
    if let Some((_, what)) = UNREAD.iter().find(|(i, _)| l.optional(*i).is_some()) {
        return Err(l.refused(what));
    }
    for (name, default) in
        [("smooth_softmax", 0), ("qk_output", 0), ("sliding_window_cache", 0), ("causal", 1)]
    {
        // onnxruntime's default of smooth_softmax is -1.
        let found = l.int(name, default);
        if found != default && !(name == "smooth_softmax" && found == -1) {
            return Err(l.refused(&format!("{name} = {found}")));
        }
    }
    if l.int("local_window_size", -1) > 0 {
        return Err(l.refused("local_window_size"));
    }
    if l.float("softcap", 0.0) != 0.0 {
        return Err(l.refused("softcap"));
    }
    for name in ["k_quant_type", "v_quant_type"] {
        if l.node.string(name, "NONE") != "NONE" {
            return Err(l.refused(name));
        }
    }
    if l.wants(3) {
        return Err(l.refused("the products of queries and keys as a result"));
    }
    if l.int("num_heads", 0) < 1 || l.int("kv_num_heads", 0) < 1 {
        return Err(l.refused("no heads"));
    }
    Ok(())
}

/// Splits queries, keys and values that are one operand.
fn packed(l: &mut Lowering<'_>, x: ValueId, n_heads: i64, n_shared: i64) -> Result<[ValueId; 3]> {
    let width = l.extent(x, 2).ok_or_else(|| l.refused("packed queries of an unknown size"))?;
    let [n_heads, n_shared] = [n_heads, n_shared].map(|n| usize::try_from(n).unwrap_or(1));
    let size = width / n_shared.saturating_mul(2).saturating_add(n_heads);
    let parts = l.split(x, 2, &[n_heads * size, n_shared * size, n_shared * size])?;
    Ok([parts[0], parts[1], parts[2]])
}

/// Returns the number of keys before these, for each batch: none if these are all.
fn n_before(l: &mut Lowering<'_>, n_queries: ValueId, are_all: ValueId) -> Result<ValueId> {
    let last = l.operand(5)?;
    let last = l.cast(last, I64)?;
    let last = l.reshape(last, &[-1])?;
    let one = l.int_scalar(1)?;
    let n = l.op("Add", &[last, one])?;
    let before = l.op("Sub", &[n, n_queries])?;
    let zero = l.int_scalar(0)?;
    l.op("Where", &[are_all, zero, before])
}

/// Returns the positions that an operand gives. Of the first keys, onnxruntime reads one position and counts from there.
fn given_positions(
    l: &mut Lowering<'_>,
    given: ValueId,
    queries: ValueId,
    are_all: ValueId,
) -> Result<ValueId> {
    let flat = l.reshape(given, &[-1])?;
    let zero = l.int_scalar(0)?;
    let first = l.op("Gather", &[flat, zero])?;
    let counted = l.op("Add", &[first, queries])?;
    l.op("Where", &[are_all, counted, given])
}

/// Rotates by positions, as far as the caches say.
fn rotated(l: &mut Lowering<'_>, x: ValueId, positions: ValueId) -> Result<ValueId> {
    let (cos, sin) = (l.operand(7)?, l.operand(8)?);
    let half = l.extent(cos, 1).and_then(|n| i64::try_from(n).ok());
    let half = half.ok_or_else(|| l.refused("caches of an unknown size"))?;
    let attrs = [
        ("interleaved", AttrValue::Int(l.int("rotary_interleaved", 0))),
        ("rotary_embedding_dim", AttrValue::Int(half.saturating_mul(2))),
    ];
    l.op_with("RotaryEmbedding", &[x, cos, sin, positions], &attrs)
}

/// Returns the cache with new keys or values in it, which is also a result of the node.
fn cached(
    l: &mut Lowering<'_>,
    past: usize,
    result: usize,
    new: ValueId,
    before: ValueId,
    total: ValueId,
) -> Result<ValueId> {
    let Some(past) = l.optional(past) else {
        return l.give(result, new);
    };
    // The cache is as long as it was, or as all keys if they are more.
    let n = l.length(past, 2)?;
    let missing = l.op("Sub", &[total, n])?;
    let zero = l.int_scalar(0)?;
    let missing = l.op("Max", &[missing, zero])?;
    let missing = l.reshape(missing, &[1])?;
    let none = l.ints(&[0])?;
    let pads = l.op_with("Concat", &[none, missing], &[("axis", AttrValue::Int(0))])?;
    let axis = l.ints(&[2])?;
    let cache = l.op_with("Pad", &[Some(past), Some(pads), None, Some(axis)], &[])?;
    let filled = l.program.add_value(Value::default());
    let operands = [Some(cache), Some(new), Some(before)];
    l.append_to(super::held("TensorScatter"), &operands, &[("axis", AttrValue::Int(2))], vec![Some(filled)])?;
    l.give(result, filled)
}
