//! DynamicQuantizeLSTM: LSTM whose products are of integers.
//!
//! The input is quantised by its own range once, and the hidden state by its range in each step, as onnxruntime does on one
//! thread. The input's products are outside the loop over time, a Scan.

use super::activations::activated;
use super::{Lowering, held, quantised};
use devbay_core::Result;
use devbay_core::program::{AttrValue, Node, Value, ValueId};
use devbay_core::tensor::{Dim, F32, Tensor, TensorType};

/// Positions of the operands.
const X: usize = 0;
const W: usize = 1;
const R: usize = 2;
const BIAS: usize = 3;
const LENGTHS: usize = 4;
const INITIAL_H: usize = 5;
const INITIAL_C: usize = 6;
const PEEPHOLES: usize = 7;
const W_SCALE: usize = 8;
const R_SCALE: usize = 10;

/// DynamicQuantizeLSTM.
pub(super) fn dynamic_quantize_lstm(l: &mut Lowering<'_>) -> Result<()> {
    if l.optional(LENGTHS).is_some() {
        return Err(l.refused("sequence_lens"));
    }
    for name in ["activation_alpha", "activation_beta"] {
        if l.node.attr(name).is_some() {
            return Err(l.refused(name));
        }
    }
    let reversed: &[bool] = match l.node.string("direction", "forward") {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => return Err(l.refused(&format!("direction = {other:?}"))),
    };
    let n = reversed.len();
    let hidden = match (l.int("hidden_size", 0), l.extent(l.operand(R)?, 1)) {
        (0, Some(hidden)) => i64::try_from(hidden).unwrap_or(i64::MAX),
        (0, None) => return Err(l.refused("a hidden size that is unknown")),
        (hidden, _) => hidden,
    };
    let activations = activations(l, n)?;
    let x = l.operand(X)?;
    let input = quantised::Quantised::of(l, x)?;
    let shape = {
        let (batch, hidden) = (l.extents(x, 1, 2)?, l.ints(&[hidden])?);
        l.op_with("Concat", &[batch, hidden], &[("axis", AttrValue::Int(0))])?
    };
    let mut results: [Vec<ValueId>; 3] = Default::default();
    for (d, &is_reversed) in reversed.iter().enumerate() {
        let parts = Direction::new(l, d, is_reversed, &activations[3 * d..])?;
        for (all, of_direction) in results.iter_mut().zip(parts.append(l, &input, shape)?) {
            all.push(of_direction);
        }
    }
    // Y is [time, directions, batch, hidden]; the last states are [directions, batch, hidden].
    for (i, (of_directions, axis)) in results.into_iter().zip([1, 0, 0]).enumerate() {
        if l.wants(i) {
            let apart = of_directions.iter().map(|&y| l.unsqueeze(y, &[axis])).collect::<Result<Vec<_>>>()?;
            let y = l.op_with("Concat", &apart, &[("axis", AttrValue::Int(axis))])?;
            l.give(i, y)?;
        }
    }
    Ok(())
}

/// Returns the names of three activations for each direction: of the gates, of the cell's input, of its output.
fn activations(l: &Lowering<'_>, n_directions: usize) -> Result<Vec<String>> {
    let names: Vec<String> = match l.node.attr("activations") {
        Some(AttrValue::Strings(names)) => names.clone(),
        _ => ["Sigmoid", "Tanh", "Tanh"].repeat(n_directions).into_iter().map(str::to_owned).collect(),
    };
    let is_known = |name: &String| ["Relu", "Sigmoid", "Tanh"].contains(&&**name);
    if names.len() != 3 * n_directions || !names.iter().all(is_known) {
        return Err(l.refused(&format!("activations = {names:?}")));
    }
    Ok(names)
}

/// Operands of one direction.
struct Direction<'a> {
    w: quantised::Weights,
    r: quantised::Weights,
    /// The sum of both biases, `[4 * hidden]`.
    bias: Option<ValueId>,
    /// For the gates i, o and f.
    peepholes: Option<Vec<ValueId>>,
    initial: [Option<ValueId>; 2],
    /// Of the gates, of the cell's input, of its output.
    activations: &'a [String],
    is_reversed: bool,
}

impl<'a> Direction<'a> {
    fn new(l: &mut Lowering<'_>, d: usize, is_reversed: bool, activations: &'a [String]) -> Result<Self> {
        let bias = part(l, BIAS, d)?;
        let bias = match bias {
            None => None,
            Some(both) => {
                let halves =
                    l.append(held("Split"), &[Some(both)], &[("num_outputs", AttrValue::Int(2))], 2)?;
                Some(l.op("Add", &halves)?)
            }
        };
        let peepholes = match part(l, PEEPHOLES, d)? {
            None => None,
            Some(all) => {
                Some(l.append(held("Split"), &[Some(all)], &[("num_outputs", AttrValue::Int(3))], 3)?)
            }
        };
        Ok(Self {
            w: weights(l, W, W_SCALE, d)?,
            r: weights(l, R, R_SCALE, d)?,
            bias,
            peepholes,
            initial: [part(l, INITIAL_H, d)?, part(l, INITIAL_C, d)?],
            activations,
            is_reversed,
        })
    }

    /// Appends the steps, and returns all outputs, the last hidden state and the last cell state.
    fn append(
        &self,
        l: &mut Lowering<'_>,
        input: &quantised::Quantised,
        shape: ValueId,
    ) -> Result<[ValueId; 3]> {
        let mut products = input.times(l, &self.w)?;
        if let Some(bias) = self.bias {
            products = l.op("Add", &[products, bias])?;
        }
        let mut operands = Vec::new();
        for initial in self.initial {
            operands.push(match initial {
                Some(initial) => Some(initial),
                None => {
                    let zero = l.program.add_constant("", Tensor::zeros(F32, &[])?);
                    Some(l.op("Expand", &[zero, shape])?)
                }
            });
        }
        operands.push(Some(products));
        let body = l.region(&[rows(), rows(), rows()], |l, inputs| self.step(l, inputs))?;
        let ids = [(); 3].map(|()| l.program.add_value(Value::default()));
        let mut scan = Node::new(held("Scan"), operands, ids.map(Some).into());
        scan.regions.push(("body".into(), body));
        scan.set_attr("num_scan_inputs", AttrValue::Int(1));
        if self.is_reversed {
            scan.set_attr("scan_input_directions", AttrValue::Ints(vec![1]));
            scan.set_attr("scan_output_directions", AttrValue::Ints(vec![1]));
        }
        l.append_node(scan)?;
        let [h, c, y] = ids;
        Ok([y, h, c])
    }

    /// Appends one step: the states of before and the input's products; returns the new states and the output.
    fn step(&self, l: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<Vec<ValueId>> {
        let &[h, c, product] = inputs else { return Err(l.refused("a step of other operands")) };
        let hidden = quantised::Quantised::of(l, h)?;
        let recurrent = hidden.times(l, &self.r)?;
        let sums = l.op("Add", &[product, recurrent])?;
        let attrs = [("axis", AttrValue::Int(-1)), ("num_outputs", AttrValue::Int(4))];
        let gates = l.append(held("Split"), &[Some(sums)], &attrs, 4)?;
        let i = self.gate(l, gates[0], c, 0, 0)?;
        let f = match l.int("input_forget", 0) {
            0 => self.gate(l, gates[2], c, 2, 0)?,
            _ => {
                let one = l.number(1.0, i)?;
                l.op("Sub", &[one, i])?
            }
        };
        let g = self.activated(l, gates[3], 1)?;
        let (kept, new) = (l.op("Mul", &[f, c])?, l.op("Mul", &[i, g])?);
        let c = l.op("Add", &[kept, new])?;
        let o = self.gate(l, gates[1], c, 1, 0)?;
        let out = activated(l, c, &self.activations[2], &[])?;
        let h = l.op("Mul", &[o, out])?;
        // A result of its own for the output over time.
        let y = l.op("Identity", &[h])?;
        Ok(vec![h, c, y])
    }

    /// Appends a gate: its sum plus what it sees of the cell, activated.
    fn gate(
        &self,
        l: &mut Lowering<'_>,
        sum: ValueId,
        c: ValueId,
        peephole: usize,
        of: usize,
    ) -> Result<ValueId> {
        let sum = match &self.peepholes {
            None => sum,
            Some(peepholes) => {
                let seen = l.op("Mul", &[peepholes[peephole], c])?;
                l.op("Add", &[sum, seen])?
            }
        };
        self.activated(l, sum, of)
    }

    /// Appends an activation of a sum, which is clipped before.
    fn activated(&self, l: &mut Lowering<'_>, sum: ValueId, of: usize) -> Result<ValueId> {
        let sum = match l.float("clip", 0.0) {
            clip if clip > 0.0 => {
                let (low, high) = (l.number(-clip, sum)?, l.number(clip, sum)?);
                l.op("Clip", &[sum, low, high])?
            }
            _ => sum,
        };
        activated(l, sum, &self.activations[of], &[])
    }
}

/// The type of a step's operands: `[batch, n]`, of unknown extents.
fn rows() -> TensorType {
    TensorType { dtype: F32, shape: Some(vec![Dim::Unknown("".into()), Dim::Unknown("".into())]) }
}

/// Returns one direction of an operand, without that axis.
fn part(l: &mut Lowering<'_>, i: usize, d: usize) -> Result<Option<ValueId>> {
    let Some(all) = l.optional(i) else { return Ok(None) };
    let index = l.int_scalar(i64::try_from(d).unwrap_or(i64::MAX))?;
    l.op_with("Gather", &[all, index], &[("axis", AttrValue::Int(0))]).map(Some)
}

/// Returns one direction's weights, with the scale at `scale` and the zero point behind it.
fn weights(l: &mut Lowering<'_>, i: usize, scale: usize, d: usize) -> Result<quantised::Weights> {
    let of =
        |l: &mut Lowering<'_>, i: usize| part(l, i, d)?.ok_or_else(|| l.refused(&format!("no operand {i}")));
    Ok(quantised::Weights { values: of(l, i)?, scale: of(l, scale)?, zero: part(l, scale + 1, d)? })
}
