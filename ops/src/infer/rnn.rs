//! Recurrent ops: LSTM, GRU and RNN differ in their number of gates.

use super::extent::agree;
use super::{Node, invalid};
use crate::read::{Cell, directions};
use crate::types::{Dim, TensorType};
use devbay_plugin_api::sdk::Result;

/// Infers LSTM: also the last cell state.
pub fn lstm(node: &Node<'_>) -> Result<Vec<TensorType>> {
    recurrent(node, Cell::Lstm)
}

/// Infers GRU.
pub fn gru(node: &Node<'_>) -> Result<Vec<TensorType>> {
    recurrent(node, Cell::Gru)
}

/// Infers RNN.
pub fn rnn(node: &Node<'_>) -> Result<Vec<TensorType>> {
    recurrent(node, Cell::Rnn)
}

fn recurrent(node: &Node<'_>, cell: Cell) -> Result<Vec<TensorType>> {
    let dtype = node.shared_dtype(&[0, 1, 2])?;
    let [x, w, r] = [dims3(node, 0)?, dims3(node, 1)?, dims3(node, 2)?];
    let directions = Dim::Known(directions(node.string("direction", "forward"))? as usize);
    for (i, dim) in [(1, &w[0]), (2, &r[0])] {
        expect(node, i, "directions", dim, &directions)?;
    }
    expect(node, 1, "features", &w[2], &x[2])?;
    let hidden = hidden(node, cell, &w, &r)?;
    let batch_first = node.flag("layout", false)?;
    let [first, second, _] = x;
    let (sequence, batch) = if batch_first { (second, first) } else { (first, second) };
    let (all, last) = if batch_first {
        (
            [&batch, &sequence, &directions, &hidden].map(Dim::clone).to_vec(),
            [&batch, &directions, &hidden].map(Dim::clone).to_vec(),
        )
    } else {
        (
            [&sequence, &directions, &batch, &hidden].map(Dim::clone).to_vec(),
            [&directions, &batch, &hidden].map(Dim::clone).to_vec(),
        )
    };
    let ty = |shape| TensorType { dtype, shape: Some(shape) };
    let mut types = vec![ty(all), ty(last.clone())];
    if cell == Cell::Lstm {
        types.push(ty(last));
    }
    node.results(types)
}

/// Returns the extents of an operand of three dimensions.
fn dims3(node: &Node<'_>, i: usize) -> Result<[Dim; 3]> {
    node.required(i)?;
    node.expect_rank(i, 3)?;
    let dim = |at| node.shape(i).and_then(|dims| dims.get(at)).cloned();
    Ok(std::array::from_fn(|at| dim(at).unwrap_or_else(Dim::unknown)))
}

/// Returns the size of the state: from the attribute, or from the recurrent weights.
fn hidden(node: &Node<'_>, cell: Cell, w: &[Dim; 3], r: &[Dim; 3]) -> Result<Dim> {
    let mut hidden = r[2].clone();
    if node.attr("hidden_size").is_some() {
        let stated = super::extent::extent(node.int("hidden_size", 0).into())?;
        hidden = agree(&hidden, &Dim::Known(stated))
            .ok_or_else(|| invalid(format!("expected hidden_size {hidden}, found {stated}")))?;
    }
    let gates = super::extent::times(&hidden, cell.gates() as usize)?;
    for (i, dim) in [(1, &w[1]), (2, &r[1])] {
        expect(node, i, "gates times hidden_size", dim, &gates)?;
    }
    Ok(hidden)
}

fn expect(node: &Node<'_>, i: usize, what: &str, found: &Dim, expected: &Dim) -> Result<()> {
    match agree(found, expected) {
        Some(_) => Ok(()),
        None => Err(invalid(format!(
            "expected {expected} {what} in input {i}, found {found} in {}",
            node.shape(i).map(super::extent::show).unwrap_or_default()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use crate::infer::testing::check;

    #[test]
    fn sequences() {
        check(
            "LSTM hidden_size=5",
            "f32[t,b,3] f32[1,20,3] f32[1,20,5]",
            "f32[t,1,b,5] f32[1,b,5] f32[1,b,5]",
        );
        check(
            "GRU layout=1 direction=bidirectional",
            "f32[b,t,3] f32[2,15,3] f32[2,15,5]",
            "f32[b,t,2,5] f32[b,2,5]",
        );
        check("RNN direction=reverse", "f32[..] f32[1,5,3] f32[..]", "f32[?,1,?,?] f32[1,?,?]");
    }

    #[test]
    fn wrong_weights() {
        check(
            "LSTM",
            "f32[t,b,3] f32[1,15,3] f32[1,20,5]",
            "error: expected 20 gates times hidden_size in input 1, found 15 in [1,15,3]",
        );
        check("GRU", "f32[t,b,4] f32[1,15,3] f32[1,15,5]", "error: expected 4 features in input 1, found 3");
        check(
            "GRU direction=bidirectional",
            "f32[t,b,3] f32[1,15,3] f32[1,15,5]",
            "error: expected 2 directions in input 1, found 1",
        );
        check(
            "GRU hidden_size=6",
            "f32[t,b,3] f32[1,15,3] f32[1,15,5]",
            "error: expected hidden_size 5, found 6",
        );
        check("GRU hidden_size=9223372036854775807", "f32[t,b,3] f32[1,15,3] f32[..]", "error: too large");
        check(
            "GRU direction=sideways",
            "f32[t,b,3] f32[1,15,3] f32[1,15,5]",
            "error: expected direction forward",
        );
        check("GRU #3", "f32[t,b,3] f32[1,15,3] f32[1,15,5]", "error: at most 2");
    }
}
