//! Parser for devbay's own op `FusedElementwise` 1: reads its calculation from its attributes.
//!
//! The op stands for a sequence of elementwise ops on f32. Each element of the result comes from the elements
//! of the inputs at the same position, after broadcasting, through all steps.

use super::error::{Error, Result};
use super::view::{AttrContent, PrepareRequest};

/// Source of a step's operand.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum FusedOperand {
    /// An input of the node.
    Input(usize),
    /// The result of an earlier step.
    Step(usize),
    /// A number.
    Constant(f32),
}

/// One of the fused ops.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FusedStep<'a> {
    /// ONNX's name, or `GeluTanh` for Gelu with `approximate="tanh"`.
    pub op: &'a str,
    /// Its operands; an op of one operand has it twice.
    pub operands: [FusedOperand; 2],
    /// Its numeric attributes in ONNX's order: `alpha`, `beta` or `gamma`; 0 where it has none.
    pub params: [f32; 2],
}

/// Reads the steps of a node, in order; the last one's result is the node's.
///
/// # Errors
/// Invalid for lists that do not fit together, or that refer to missing entries.
pub fn fused_steps<'a, D>(request: &PrepareRequest<'a, D>) -> Result<Vec<FusedStep<'a>>> {
    let attrs = &request.attrs;
    let ops = match attrs.get("ops") {
        Some(AttrContent::Strings(ops)) if !ops.is_empty() => ops,
        _ => return Err(Error::invalid("attribute ops has to be a list of names")),
    };
    let operands = attrs.ints("operands")?.unwrap_or_default();
    let params = attrs.floats("params")?.unwrap_or_default();
    let constants = attrs.floats("constants")?.unwrap_or_default();
    if operands.len() != 2 * ops.len() || params.len() != 2 * ops.len() {
        let text = format!("{} ops, {} operands and {} params", ops.len(), operands.len(), params.len());
        return Err(Error::invalid(text));
    }
    let n_inputs = request.inputs.len();
    let place = |at: i64, step: usize| {
        let found = match usize::try_from(at) {
            Ok(i) if i < n_inputs => Some(FusedOperand::Input(i)),
            Ok(i) => Some(i - n_inputs).filter(|&i| i < step).map(FusedOperand::Step),
            Err(_) => {
                let number = usize::try_from(-1 - at).ok().and_then(|i| constants.get(i));
                number.map(|&number| FusedOperand::Constant(number))
            }
        };
        found.ok_or_else(|| Error::invalid(format!("operand {at} of step {step}")))
    };
    let steps = ops.iter().enumerate().map(|(i, op)| {
        Ok(FusedStep {
            op,
            operands: [place(operands[2 * i], i)?, place(operands[2 * i + 1], i)?],
            params: [params[2 * i], params[2 * i + 1]],
        })
    });
    steps.collect()
}
