//! If, Loop and SequenceMap over graphs of the host.

use super::graph::{Body, Graph};
use super::layout::stacked;
use super::run::Run;
use super::{Element, Sequence, Strings, Value, ValueType};
use devbay_core::exec::cancel::Cancel;
use devbay_core::tensor::{BOOL, Dim, F32};
use devbay_core::{Error, ErrorKind, Result, Tensor};

fn wrong(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, text)
}

/// Returns one integer or truth value.
fn int(value: Value) -> Result<i64> {
    let tensor = value.into_tensor()?;
    tensor
        .to_int()
        .ok_or_else(|| wrong(format!("expected one integer or truth value, found {}", tensor.tensor_type())))
}

/// If: runs one of two graphs.
pub fn branch(
    run: &Run<'_>,
    bodies: &[Body; 2],
    captures: &[Vec<Value>; 2],
    inputs: Vec<Option<Value>>,
) -> Result<Vec<Value>> {
    let condition = inputs.into_iter().next().flatten().ok_or_else(|| wrong("the condition is missing"))?;
    let chosen = usize::from(int(condition)? == 0);
    run.graph(&bodies[chosen].graph, Vec::new(), &captures[chosen])
}

/// Loop: runs a graph while its condition holds, at most as often as the trip count says.
pub fn repeat(
    run: &Run<'_>,
    body: &Body,
    captures: &[Value],
    inputs: Vec<Option<Value>>,
    n_outputs: usize,
) -> Result<Vec<Value>> {
    let mut inputs = inputs.into_iter();
    let trips = inputs.next().flatten().map(int).transpose()?.unwrap_or(i64::MAX);
    let mut goes_on = inputs.next().flatten().map(int).transpose()?.unwrap_or(1) != 0;
    let missing = || wrong("a value that the loop carries is missing");
    let mut carried = inputs.map(|value| value.ok_or_else(missing)).collect::<Result<Vec<Value>>>()?;
    let n_carried = carried.len();
    let n_scanned = n_outputs.max(body.graph.outputs.len().saturating_sub(1)).saturating_sub(n_carried);
    let mut scanned: Vec<Vec<Value>> = vec![Vec::new(); n_scanned];
    let mut trip = 0;
    while goes_on && trip < trips {
        Cancel::check(run.cancel)?;
        let counter = Tensor::from_elements(&[], &[trip])?;
        let mut given: Vec<Value> = vec![counter.into(), Tensor::from_bytes(BOOL, &[], &[1])?.into()];
        given.append(&mut carried);
        let mut results = run.graph(&body.graph, given, captures)?.into_iter();
        goes_on = int(results.next().ok_or_else(|| wrong("the body returns no condition"))?)? != 0;
        carried.extend(results.by_ref().take(n_carried));
        for (values, value) in scanned.iter_mut().zip(results) {
            values.push(value);
        }
        trip += 1;
    }
    for (i, values) in scanned.iter().enumerate() {
        carried.push(match values.is_empty() {
            false => stacked(values, 0)?,
            true => nothing(&body.graph, 1 + n_carried + i)?,
        });
    }
    Ok(carried)
}

/// Returns the result of a loop that never ran: no elements. Extents that the body leaves open are 0.
fn nothing(graph: &Graph, output: usize) -> Result<Value> {
    let ty = graph.outputs.get(output).map(|(port, _)| &port.ty);
    let (element, dims) = match ty {
        Some(ValueType::Tensor { element, shape }) => (*element, shape.as_deref().unwrap_or_default()),
        _ => (None, &[][..]),
    };
    let mut shape = vec![0];
    shape.extend(dims.iter().map(|dim| if let Dim::Known(extent) = dim { *extent } else { 0 }));
    match element.unwrap_or(Element::Number(F32)) {
        Element::String => Ok(Strings::new(&shape, Vec::new())?.into()),
        Element::Number(dtype) => Ok(Tensor::zeros(dtype, &shape)?.into()),
    }
}

/// SequenceMap: runs a graph for each element of the first sequence. Other sequences give their elements at the same
/// position; all else is given to each run.
pub fn map(run: &Run<'_>, body: &Body, captures: &[Value], inputs: Vec<Option<Value>>) -> Result<Vec<Value>> {
    let missing = || wrong("an operand is missing");
    let inputs = inputs.into_iter().map(|value| value.ok_or_else(missing)).collect::<Result<Vec<Value>>>()?;
    let Some(Value::Sequence(first)) = inputs.first() else {
        return Err(wrong("expected a sequence as the first operand, found another value"));
    };
    let n = first.values().len();
    for input in &inputs {
        if let Value::Sequence(sequence) = input
            && sequence.values().len() != n
        {
            let text =
                format!("expected sequences of {n} elements, found one of {}", sequence.values().len());
            return Err(wrong(text));
        }
    }
    let mut results: Vec<Vec<Value>> = vec![Vec::new(); body.graph.outputs.len()];
    for i in 0..n {
        Cancel::check(run.cancel)?;
        let given = |input: &Value| match input {
            Value::Sequence(sequence) => sequence.values()[i].clone(),
            other => other.clone(),
        };
        let found = run.graph(&body.graph, inputs.iter().map(given).collect(), captures)?;
        results.iter_mut().zip(found).for_each(|(values, value)| values.push(value));
    }
    let sequences = results.into_iter().zip(&body.graph.outputs).map(|(values, (port, _))| {
        let element =
            values.first().map_or_else(|| port.ty.without_shape(), |value| value.ty().without_shape());
        Ok(Sequence::new(element, values)?.into())
    });
    sequences.collect()
}
