//! Attention, linear attention, and the stateful convolution that models put before it.

use super::extent::{Shape, agree, extent, plus, product, show, sum, times};
use super::{Node, invalid};
use crate::types::{Dim, TensorType};
use devbay_plugin_api::sdk::Result;

/// The dimensions of queries, keys or values.
struct Heads {
    batch: Dim,
    heads: Dim,
    sequence: Dim,
    size: Dim,
}

/// Returns the parts of an operand `[batch, heads, sequence, size]`, or `[batch, sequence, heads * size]` with the
/// number of heads in an attribute; None if its rank is unknown.
fn heads(node: &Node<'_>, i: usize, attribute: &str) -> Result<Option<Heads>> {
    node.required(i)?;
    match node.shape(i) {
        None => Ok(None),
        Some([batch, heads, sequence, size]) => Ok(Some(Heads {
            batch: batch.clone(),
            heads: heads.clone(),
            sequence: sequence.clone(),
            size: size.clone(),
        })),
        Some([batch, sequence, hidden]) => {
            let n = extent(node.int(attribute, 0).into())?;
            Ok(Some(Heads {
                batch: batch.clone(),
                heads: Dim::Known(n),
                sequence: sequence.clone(),
                size: divided(hidden, n, attribute)?,
            }))
        }
        Some(found) => {
            Err(invalid(format!("expected 3 or 4 dimensions as input {i}, found {}", show(found))))
        }
    }
}

fn divided(hidden: &Dim, n: usize, attribute: &str) -> Result<Dim> {
    match hidden.known() {
        _ if n == 0 => Err(invalid(format!("expected {attribute} above 0, found {n}"))),
        None => Ok(Dim::unknown()),
        Some(hidden) if hidden % n == 0 => Ok(Dim::Known(hidden / n)),
        Some(hidden) => {
            Err(invalid(format!("expected {hidden} columns to be divided by {attribute}, found {n}")))
        }
    }
}

fn agreed(what: &str, a: &Dim, b: &Dim) -> Result<Dim> {
    agree(a, b).ok_or_else(|| invalid(format!("expected one {what}, found {a} and {b}")))
}

/// Infers Attention: the attended values, the present keys and values, and the scores.
pub fn attention(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let (q, k, v) = (node.required(0)?, node.required(1)?, node.required(2)?);
    node.shared_dtype(&[0, 1, 4])?;
    node.shared_dtype(&[2, 5])?;
    for i in [4, 5] {
        node.expect_rank(i, 4)?;
    }
    node.expect_rank(6, 1)?;
    let parts =
        (heads(node, 0, "q_num_heads")?, heads(node, 1, "kv_num_heads")?, heads(node, 2, "kv_num_heads")?);
    let (Some(of_q), Some(of_k), Some(of_v)) = parts else {
        let shapes = [q, k, v, q].map(|ty| TensorType { dtype: ty.dtype, shape: None });
        return node.results(shapes.into());
    };
    let batch = agreed("batch", &agreed("batch", &of_q.batch, &of_k.batch)?, &of_v.batch)?;
    let sequence = agreed("number of keys and values", &of_k.sequence, &of_v.sequence)?;
    agreed("number of heads of keys and values", &of_k.heads, &of_v.heads)?;
    agreed("size of queries and keys", &of_q.size, &of_k.size)?;
    let past = match node.optional(4).map(|past| past.shape.as_deref()) {
        None => Dim::Known(0),
        Some(shape) => shape.map_or_else(Dim::unknown, |dims| dims[2].clone()),
    };
    let total = sum(&[&past, &sequence])?;
    let result = match node.shape(0).map(<[Dim]>::len) {
        Some(3) => {
            vec![batch.clone(), of_q.sequence.clone(), product(&[of_q.heads.clone(), of_v.size.clone()])?]
        }
        _ => vec![batch.clone(), of_q.heads.clone(), of_q.sequence.clone(), of_v.size.clone()],
    };
    let present = |heads: &Heads| vec![batch.clone(), heads.heads.clone(), total.clone(), heads.size.clone()];
    node.results(vec![
        TensorType { dtype: q.dtype, shape: Some(result) },
        TensorType { dtype: k.dtype, shape: Some(present(&of_k)) },
        TensorType { dtype: v.dtype, shape: Some(present(&of_v)) },
        TensorType {
            dtype: q.dtype,
            shape: Some(vec![batch.clone(), of_q.heads, of_q.sequence, total.clone()]),
        },
    ])
}

/// Infers LinearAttention: `[batch, tokens, heads * size]` of values, and the state `[batch, heads, key, value]`.
pub fn linear_attention(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let (q, k, v) = (node.required(0)?, node.required(1)?, node.required(2)?);
    node.shared_dtype(&[0, 1, 2, 4, 5])?;
    for i in [0, 1, 2, 4, 5] {
        node.expect_rank(i, 3)?;
    }
    node.expect_rank(3, 4)?;
    let count = |name: &str| match extent(node.int(name, 0).into())? {
        0 => Err(invalid(format!("expected the attribute {name} above 0, found none"))),
        n => Ok(n),
    };
    let (of_q, of_kv) = (count("q_num_heads")?, count("kv_num_heads")?);
    let state = node.optional(3).map_or(q.dtype, |state| state.dtype);
    let hidden = |ty: &TensorType| ty.shape.as_ref().map_or_else(Dim::unknown, |dims| dims[2].clone());
    let key = divided(&hidden(k), of_kv, "kv_num_heads")?;
    let value = divided(&hidden(v), of_kv, "kv_num_heads")?;
    let leading = |i: usize| q.shape.as_ref().map_or_else(Dim::unknown, |dims| dims[i].clone());
    let result = vec![leading(0), leading(1), times(&value, of_q)?];
    node.results(vec![
        TensorType { dtype: q.dtype, shape: Some(result) },
        TensorType { dtype: state, shape: Some(vec![leading(0), Dim::Known(of_kv), key, value]) },
    ])
}

/// Infers CausalConvWithState: the operand's shape, and the state for the next step.
pub fn causal_conv(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let (x, w) = (node.required(0)?, node.required(1)?);
    node.shared_dtype(&[0, 1, 2, 3])?;
    for i in [0, 1, 3] {
        node.expect_rank(i, 3)?;
    }
    let past = match w.shape.as_ref().map(|dims| &dims[2]) {
        None => Dim::unknown(),
        Some(Dim::Known(0)) => return Err(invalid("expected a kernel with elements, found none")),
        Some(k) => plus(k, -1)?,
    };
    let leading = |i: usize| x.shape.as_ref().map_or_else(Dim::unknown, |dims| dims[i].clone());
    let state: Shape = Some(vec![leading(0), leading(1), past]);
    node.results(vec![x.clone(), TensorType { dtype: x.dtype, shape: state }])
}

#[cfg(test)]
mod tests {
    use crate::infer::testing::check;

    #[test]
    fn attentions() {
        check("Attention", "f32[2,3,4,8] f32[2,3,6,8] f32[2,3,6,10]", "f32[2,3,4,10]");
        check("Attention q_num_heads=9 kv_num_heads=3", "f32[2,s,72] f32[2,6,24] f32[2,6,30]", "f32[2,s,90]");
        check("Attention", "f32[n,3,4,8] f32[..] f32[2,3,6,10]", "f32[..]");
        check(
            "Attention",
            "f32[2,3,4,8] f32[2,3,6,9] f32[2,3,6,10]",
            "error: expected one size of queries and keys",
        );
        check("Attention", "f32[2,4,8] f32[2,6,8] f32[2,6,8]", "error: expected q_num_heads above 0");
        check(
            "Attention q_num_heads=3 kv_num_heads=2",
            "f32[2,4,8] f32[2,6,8] f32[2,6,8]",
            "error: divided by",
        );
        check("Attention", "f32[2,3] f32[2,3] f32[2,3]", "error: expected 3 or 4 dimensions as input 0");
        check(
            "Attention",
            "f32[2,3,4,8] f32[2,1,6,8] f32[2,1,6,5] - f32[2,1,7,8] f32[2,1,7,5]",
            "f32[2,3,4,5]",
        );
    }

    #[test]
    fn states() {
        let heads = "LinearAttention q_num_heads=4 kv_num_heads=2";
        check(heads, "f32[n,3,8] f32[n,3,4] f32[n,3,10]", "f32[n,3,20] f32[n,2,2,5]");
        check(
            "LinearAttention q_num_heads=4",
            "f32[n,3,8] f32[n,3,4] f32[n,3,10]",
            "error: kv_num_heads above 0",
        );
        check(heads, "f32[n,3,8] f32[n,3,5] f32[n,3,10]", "error: expected 5 columns to be divided");
        check("CausalConvWithState", "f32[2,c,9] f32[c,1,4]", "f32[2,c,9] f32[2,c,3]");
        check("CausalConvWithState", "f32[2,c,9] f32[c,1,0]", "error: a kernel with elements");
        check("CausalConvWithState", "f32[2,c,9] f32[c,1]", "error: expected 3 dimensions as input 1");
    }
}
