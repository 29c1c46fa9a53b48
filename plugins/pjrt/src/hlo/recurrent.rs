//! RNN, GRU and LSTM: a loop over the steps of a sequence, once for each direction.

use super::builder::{Builder, Type, Value, array};
use super::node::Node;
use super::primitive::DotDims;
use devbay_plugin_api::sdk::{AttrContent, Error, Result};

const SIGMOID: &str = "stablehlo.logistic";
const TANH: &str = "stablehlo.tanh";

/// Op, with what follows from it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rnn,
    Gru,
    Lstm,
}

impl Kind {
    /// Gates, whose weights lie one behind the other: for GRU update, reset, hidden; for LSTM input, output, forget, cell.
    fn n_gates(self) -> i64 {
        match self {
            Self::Rnn => 1,
            Self::Gru => 3,
            Self::Lstm => 4,
        }
    }

    /// The activations of one direction in the specification's defaults.
    fn activations(self) -> &'static [&'static str] {
        match self {
            Self::Rnn => &["Tanh"],
            Self::Gru => &["Sigmoid", "Tanh"],
            Self::Lstm => &["Sigmoid", "Tanh", "Tanh"],
        }
    }
}

/// Refuses attributes that change the calculation in ways that are not written here.
fn check_attributes(node: &Node<'_>, kind: Kind, n_directions: i64) -> Result<()> {
    let attrs = node.attrs();
    let refuse = |what: &str| Err(Error::unsupported(format!("{} with {what}", node.op())));
    if let Some(AttrContent::Strings(given)) = attrs.get("activations") {
        let each = (0..n_directions).flat_map(|_| kind.activations().iter().copied());
        if !given.iter().copied().eq(each) {
            return refuse("other activations than the defaults");
        }
    }
    if attrs.get("clip").is_some_and(|value| !matches!(value, AttrContent::Float(x) if *x == 0.0)) {
        return refuse("clip");
    }
    if attrs.int("layout", 0)? != 0 || attrs.int("input_forget", 0)? != 0 {
        return refuse("layout or input_forget");
    }
    Ok(())
}

/// The operands of one direction, without the axis of the directions.
struct Direction {
    /// `[batch, ...]` numbers of every step: the input times its weights, with the biases that are added at once.
    given: Value,
    /// `[gates * hidden, hidden]`.
    weights: Value,
    /// The hidden gate's own bias, where it is added before the reset gate: `[hidden]`.
    late_bias: Option<Value>,
    /// `[3 * hidden]`: what the cell adds to the gates input, output and forget.
    peepholes: Option<Value>,
    is_reverse: bool,
    resets_late: bool,
}

/// One of the directions of an operand `[directions, ...]`.
fn of_direction(b: &mut Builder<'_>, x: &Value, direction: usize) -> Value {
    let part = b.slice_axis(x, 0, direction as i64, direction as i64 + 1);
    b.reshape(&part, &x.dims()[1..])
}

/// `x * y'` for `[..., k]` and `[n, k]`.
fn times(b: &mut Builder<'_>, x: &Value, y: &Value) -> Value {
    let axes = DotDims { lhs_batch: &[], rhs_batch: &[], lhs_contract: &[x.rank() - 1], rhs_contract: &[1] };
    b.dot_general(x, y, &axes)
}

/// Adds a number for each place of the last axis.
fn add_line(b: &mut Builder<'_>, x: &Value, line: &Value) -> Value {
    let line = b.broadcast_in_dim(line, &[x.rank() - 1], x.dims());
    b.add(x, &line)
}

/// One of the gates that lie one behind the other along the last axis.
fn gate(b: &mut Builder<'_>, x: &Value, at: i64, hidden: i64) -> Value {
    b.slice_axis(x, x.rank() - 1, at * hidden, (at + 1) * hidden)
}

/// The hidden state that a step leaves, and the cell of an LSTM.
fn step(
    b: &mut Builder<'_>,
    kind: Kind,
    direction: &Direction,
    given: &Value,
    state: &[Value],
) -> Result<Vec<Value>> {
    let h = &state[0];
    let hidden = h.dims()[1];
    let recurrent = times(b, h, &direction.weights);
    let sum = |b: &mut Builder<'_>, at: i64| {
        let (x, y) = (gate(b, given, at, hidden), gate(b, &recurrent, at, hidden));
        b.add(&x, &y)
    };
    match kind {
        Kind::Rnn => {
            let all = sum(b, 0);
            Ok(vec![b.unary(TANH, &all)])
        }
        Kind::Gru => {
            let (update, reset) = (sum(b, 0), sum(b, 1));
            let (update, reset) = (b.unary(SIGMOID, &update), b.unary(SIGMOID, &reset));
            let from_state = if direction.resets_late {
                let mut own = gate(b, &recurrent, 2, hidden);
                if let Some(bias) = &direction.late_bias {
                    own = add_line(b, &own, bias);
                }
                b.multiply(&reset, &own)
            } else {
                let weights = b.slice_axis(&direction.weights, 0, 2 * hidden, 3 * hidden);
                let kept = b.multiply(&reset, h);
                times(b, &kept, &weights)
            };
            let own = gate(b, given, 2, hidden);
            let new = b.add(&own, &from_state);
            let new = b.unary(TANH, &new);
            let one = b.splat(1.0, &update.ty)?;
            let rest = b.subtract(&one, &update);
            let (new, old) = (b.multiply(&rest, &new), b.multiply(&update, h));
            Ok(vec![b.add(&new, &old)])
        }
        Kind::Lstm => {
            let cell = &state[1];
            // The gates input, output and forget see the cell through the peepholes; output sees the new one.
            let seen = |b: &mut Builder<'_>, sum: Value, at: i64, cell: &Value| {
                let Some(all) = &direction.peepholes else { return sum };
                let own = gate(b, all, at, hidden);
                let own = b.broadcast_in_dim(&own, &[1], cell.dims());
                let part = b.multiply(&own, cell);
                b.add(&sum, &part)
            };
            let (input, forget, new) = (sum(b, 0), sum(b, 2), sum(b, 3));
            let (input, forget) = (seen(b, input, 0, cell), seen(b, forget, 2, cell));
            let (input, forget) = (b.unary(SIGMOID, &input), b.unary(SIGMOID, &forget));
            let new = b.unary(TANH, &new);
            let (old, new) = (b.multiply(&forget, cell), b.multiply(&input, &new));
            let cell = b.add(&old, &new);
            let output = sum(b, 1);
            let output = seen(b, output, 1, &cell);
            let output = b.unary(SIGMOID, &output);
            let bent = b.unary(TANH, &cell);
            Ok(vec![b.multiply(&output, &bent), cell])
        }
    }
}

/// Runs over the sequence: all hidden states `[steps, batch, hidden]`, then the last state.
fn run(b: &mut Builder<'_>, kind: Kind, direction: &Direction, state: &[Value]) -> Result<Vec<Value>> {
    let n_steps = direction.given.dims()[0];
    let h = &state[0];
    let all = Type::new(h.element(), &[&[n_steps], h.dims()].concat());
    let all = b.splat(0.0, &all)?;
    // Everything that a step reads goes around with the loop.
    let mut values = vec![all];
    values.extend_from_slice(state);
    let n_changed = values.len();
    values.extend([direction.given.clone(), direction.weights.clone()]);
    values.extend(direction.late_bias.iter().chain(&direction.peepholes).cloned());
    let results = b.repeat(n_steps, &values, |b, at, values| {
        let (changed, fixed) = values.split_at(n_changed);
        let mut others = fixed[2..].iter().cloned();
        let inside = Direction {
            given: fixed[0].clone(),
            weights: fixed[1].clone(),
            late_bias: direction.late_bias.as_ref().and_then(|_| others.next()),
            peepholes: direction.peepholes.as_ref().and_then(|_| others.next()),
            ..*direction
        };
        let place = if direction.is_reverse {
            let last = b.splat((n_steps - 1) as f64, &at.ty)?;
            b.subtract(&last, at)
        } else {
            at.clone()
        };
        let zero = b.splat(0.0, &at.ty)?;
        let given = &inside.given;
        let one = [&[1], &given.dims()[1..]].concat();
        let attributes = format!("slice_sizes = {}", array(&one));
        let operands = [given, &place, &zero, &zero];
        let own = b.op("stablehlo.dynamic_slice", &operands, &attributes, Type::new(given.element(), &one));
        let own = b.reshape(&own, &one[1..]);
        let state = step(b, kind, &inside, &own, &changed[1..])?;
        let line = b.reshape(&state[0], &[&[1], state[0].dims()].concat());
        let operands = [&changed[0], &line, &place, &zero, &zero];
        let all = b.op("stablehlo.dynamic_update_slice", &operands, "", changed[0].ty.clone());
        Ok([vec![all], state, fixed.to_vec()].concat())
    })?;
    Ok(results[..n_changed].to_vec())
}

/// RNN, GRU and LSTM with their default activations, over sequences of one length.
pub(super) fn recurrent<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Vec<Value>> {
    let kind = match node.op() {
        "RNN" => Kind::Rnn,
        "GRU" => Kind::Gru,
        _ => Kind::Lstm,
    };
    let (x, w, r) = (node.input(b, 0)?, node.input(b, 1)?, node.input(b, 2)?);
    let word = node.attrs().string("direction", "forward")?;
    let reverse: &[bool] = match word {
        "forward" => &[false],
        "reverse" => &[true],
        "bidirectional" => &[false, true],
        other => return Err(Error::invalid(format!("direction {other}"))),
    };
    check_attributes(node, kind, reverse.len() as i64)?;
    let wrong = || Error::invalid(format!("{} of {} with {} and {}", node.op(), x.ty, w.ty, r.ty));
    let (&[n_steps, n_batch, n_inputs], &[n_directions, rows, hidden]) = (x.dims(), r.dims()) else {
        return Err(wrong());
    };
    let gates = kind.n_gates();
    if n_directions != reverse.len() as i64
        || rows != gates * hidden
        || w.dims() != [n_directions, rows, n_inputs]
    {
        return Err(wrong());
    }
    if let Some(lengths) = node.ints(4)?
        && lengths.iter().any(|&length| length != n_steps)
    {
        return Err(Error::unsupported("sequences of different lengths"));
    }
    let bias = node.optional_input(b, 3)?;
    let initial =
        [node.optional_input(b, 5)?, if kind == Kind::Lstm { node.optional_input(b, 6)? } else { None }];
    let peepholes = if kind == Kind::Lstm { node.optional_input(b, 7)? } else { None };
    let resets_late = node.attrs().int("linear_before_reset", 0)? != 0;
    let n_states = if kind == Kind::Lstm { 2 } else { 1 };
    let mut results: Vec<Vec<Value>> = Vec::new();
    for (at, &is_reverse) in reverse.iter().enumerate() {
        let weights = of_direction(b, &r, at);
        let own = of_direction(b, &w, at);
        let mut given = times(b, &x, &own);
        let mut late_bias = None;
        if let Some(bias) = &bias {
            // The input's biases, then the state's.
            let both = of_direction(b, bias, at);
            let (first, second) = (b.slice_axis(&both, 0, 0, rows), b.slice_axis(&both, 0, rows, 2 * rows));
            given = add_line(b, &given, &first);
            if kind == Kind::Gru && resets_late {
                let own = gate(b, &second, 2, hidden);
                let others = b.slice_axis(&second, 0, 0, 2 * hidden);
                let none = b.splat(0.0, &own.ty)?;
                let others = b.concatenate(&[&others, &none], 0);
                given = add_line(b, &given, &others);
                late_bias = Some(own);
            } else {
                given = add_line(b, &given, &second);
            }
        }
        let mut state = Vec::new();
        for initial in &initial[..n_states] {
            state.push(match initial {
                Some(initial) => of_direction(b, initial, at),
                None => b.splat(0.0, &Type::new(x.element(), &[n_batch, hidden]))?,
            });
        }
        let peepholes = peepholes.as_ref().map(|all| of_direction(b, all, at));
        let direction = Direction { given, weights, late_bias, peepholes, is_reverse, resets_late };
        results.push(run(b, kind, &direction, &state)?);
    }
    // All states are `[steps, directions, batch, hidden]`, the last ones `[directions, batch, hidden]`.
    let mut joined = Vec::new();
    for result in 0..=n_states {
        let axis = usize::from(result == 0);
        let mut parts = Vec::new();
        for own in &results {
            let mut dims = own[result].dims().to_vec();
            dims.insert(axis, 1);
            parts.push(b.reshape(&own[result], &dims));
        }
        joined.push(b.concatenate(&parts.iter().collect::<Vec<_>>(), axis));
    }
    Ok(joined)
}
