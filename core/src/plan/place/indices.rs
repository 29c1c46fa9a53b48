//! Indices that are constant, and name nothing: an error of the model, found before anything is run, once for all devices.
//!
//! Only nodes of a program itself are checked, because every run reaches them. Those of a branch may never run; the
//! device that runs them reports their wrong indices (B13), as it does for indices that are inputs of a run.

use crate::error::{Error, ErrorKind, Result};
use crate::program::{Node, Program};

/// Integers of a node that have to lie within bounds.
struct Bounded {
    /// The word for one of them.
    what: &'static str,
    /// The operand.
    input: usize,
    /// Lowest and highest; of several, integer `i` has number `i` modulo their count.
    bounds: Vec<(i64, i64)>,
}

/// Fails if a node has a constant index that names nothing.
///
/// # Errors
/// [`ErrorKind::InvalidModel`], with the index.
pub(in crate::plan) fn check(program: &Program, node: &Node) -> Result<()> {
    let Some(Bounded { what, input, bounds }) = bounded(program, node) else { return Ok(()) };
    let Some(tensor) = node.input(input).and_then(|id| program.constant(id)) else { return Ok(()) };
    let outside = |(i, value): &(usize, &i64)| {
        let (low, high) = bounds[i % bounds.len()];
        !(low..=high).contains(*value)
    };
    let Some(values) = tensor.to_ints()? else { return Ok(()) };
    let Some((i, value)) = values.iter().enumerate().find(outside) else { return Ok(()) };
    let (low, high) = bounds[i % bounds.len()];
    let text =
        format!("{what} {value} at position {i} of constant input {input}, expected {low} up to {high}");
    Err(Error::new(ErrorKind::InvalidModel, text))
}

/// Returns the bounds of a node's integers; None if they have none, nothing is read by them, or extents are not known.
fn bounded(program: &Program, node: &Node) -> Option<Bounded> {
    if !matches!(&*node.op.domain, "" | "ai.onnx") {
        return None;
    }
    let shape = |i: usize| -> Option<Vec<i64>> {
        let known = program.value(node.input(i)?).ty.as_ref()?.known_shape()?;
        known.into_iter().map(|extent| i64::try_from(extent).ok()).collect()
    };
    let data = shape(0)?;
    let axis = |name: &str, default: i64| -> Option<usize> {
        let axis = node.int(name, default);
        let axis = if axis < 0 { axis.checked_add(data.len() as i64)? } else { axis };
        usize::try_from(axis).ok().filter(|&axis| axis < data.len())
    };
    let index = |n: &i64| (-n, n - 1);
    let (what, input, bounds) = match &*node.op.name {
        "Gather" => {
            let axis = axis("axis", 0)?;
            let is_empty = data.iter().enumerate().any(|(i, &extent)| i != axis && extent == 0);
            ("index", 1, if is_empty { vec![] } else { vec![index(&data[axis])] })
        }
        "GatherElements" | "ScatterElements" => ("index", 1, vec![index(&data[axis("axis", 0)?])]),
        "GatherND" | "ScatterND" => {
            let first = usize::try_from(node.int("batch_dims", 0)).ok()?;
            let width = usize::try_from(*shape(1)?.last()?).ok()?;
            let named = data.get(first..first.checked_add(width)?)?;
            let is_empty = &*node.op.name == "GatherND" && data[first + width..].contains(&0);
            ("index", 1, if is_empty { vec![] } else { named.iter().map(index).collect() })
        }
        "ReverseSequence" => ("length", 1, vec![(0, data[axis("time_axis", 0)?])]),
        "RotaryEmbedding" => ("position", 3, vec![(0, shape(1)?.first()? - 1)]),
        _ => return None,
    };
    (!bounds.is_empty()).then_some(Bounded { what, input, bounds })
}
