//! RNN, GRU and LSTM: extents, optional operands, and the computation of a step.

use devbay_plugin_api::sdk::{AttrContent, Attrs, Error, PrepareRequest, Result};

/// The kind of recurrent op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cell {
    /// RNN.
    Rnn,
    /// GRU.
    Gru,
    /// LSTM.
    Lstm,
}

impl Cell {
    /// Returns the number of gates, whose weights are consecutive: for GRU update, reset, hidden; for LSTM input, output,
    /// forget, cell.
    pub fn gates(self) -> i64 {
        match self {
            Self::Rnn => 1,
            Self::Gru => 3,
            Self::Lstm => 4,
        }
    }

    /// Returns the default activations of a direction in the specification.
    pub fn activations(self) -> &'static [&'static str] {
        match self {
            Self::Rnn => &["Tanh"],
            Self::Gru => &["Sigmoid", "Tanh"],
            Self::Lstm => &["Sigmoid", "Tanh", "Tanh"],
        }
    }
}

/// A function of each element, with its alpha and beta.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Activation {
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `tanh(x)`.
    Tanh,
    /// `max(x, 0)`.
    Relu,
    /// `x` from 0 on, else `alpha x`.
    LeakyRelu(f32),
    /// `x` above alpha, else 0.
    ThresholdedRelu(f32),
    /// `x` from 0 on, else `alpha (exp(x) - 1)`.
    Elu(f32),
    /// `alpha x + beta` between 0 and 1.
    HardSigmoid(f32, f32),
    /// `alpha tanh(beta x)`.
    ScaledTanh(f32, f32),
    /// `alpha x + beta`.
    Affine(f32, f32),
    /// `x / (1 + abs(x))`.
    Softsign,
    /// `log(1 + exp(x))`.
    Softplus,
}

impl Activation {
    /// Returns the activations of all directions; alpha and beta go to those that take them, in order.
    fn list(attrs: &Attrs<'_>, cell: Cell, directions: i64) -> Result<Vec<Self>> {
        let defaults = cell.activations();
        let n = defaults.len() * directions as usize;
        let names = match attrs.get("activations") {
            None => defaults.repeat(directions as usize),
            Some(AttrContent::Strings(names)) if names.len() == n => names.clone(),
            Some(_) => return Err(Error::invalid(format!("activations are no list of {n} names"))),
        };
        let mut alphas = attrs.floats("activation_alpha")?.unwrap_or_default().into_iter();
        let mut betas = attrs.floats("activation_beta")?.unwrap_or_default().into_iter();
        let mut alpha = |default: f32| alphas.next().unwrap_or(default);
        let mut beta = |default: f32| betas.next().unwrap_or(default);
        let activation = |name: &&str| {
            // The reference implementations ignore the case of names.
            Ok(match name.to_ascii_lowercase().as_str() {
                "sigmoid" => Self::Sigmoid,
                "tanh" => Self::Tanh,
                "relu" => Self::Relu,
                "leakyrelu" => Self::LeakyRelu(alpha(0.01)),
                "thresholdedrelu" => Self::ThresholdedRelu(alpha(1.0)),
                "elu" => Self::Elu(alpha(1.0)),
                "hardsigmoid" => Self::HardSigmoid(alpha(0.2), beta(0.5)),
                "scaledtanh" => Self::ScaledTanh(alpha(1.0), beta(1.0)),
                "affine" => Self::Affine(alpha(1.0), beta(0.0)),
                "softsign" => Self::Softsign,
                "softplus" => Self::Softplus,
                _ => return Err(Error::unsupported(format!("activation {name}"))),
            })
        };
        names.iter().map(activation).collect()
    }
}

/// Returns the number of directions for the attribute `direction`.
///
/// # Errors
/// Invalid for a word that is not in the specification.
pub(crate) fn directions(direction: &str) -> Result<i64> {
    match direction {
        "forward" | "reverse" => Ok(1),
        "bidirectional" => Ok(2),
        _ => Err(Error::invalid(format!(
            "expected direction forward, reverse or bidirectional, found {direction}"
        ))),
    }
}

/// Extents of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extents {
    /// Length of a sequence in steps.
    pub length: i64,
    /// Number of sequences.
    pub batch: i64,
    /// Numbers per step.
    pub inputs: i64,
    /// 1, or 2 for a bidirectional layer.
    pub directions: i64,
    /// Numbers per state.
    pub hidden: i64,
    /// True if the batch is the outermost dimension.
    pub batch_first: bool,
}

impl Extents {
    /// Reads the shapes of the input and the weights.
    ///
    /// # Errors
    /// Invalid if they do not fit together.
    pub fn of<D>(request: &PrepareRequest<'_, D>, cell: Cell) -> Result<Self> {
        let [x, w, r] = [0, 1, 2].map(|i| request.required_input(i).and_then(super::extents));
        let (x, w, r) = (x?, w?, r?);
        let broken =
            || Error::invalid(format!("an input of {x:?}, weights of {w:?} and recurrent weights of {r:?}"));
        let (&[first, second, inputs], &[directions, rows, of_inputs], &[_, _, hidden]) = (x, w, r) else {
            return Err(broken());
        };
        if inputs != of_inputs
            || Some(rows) != cell.gates().checked_mul(hidden)
            || r[..2] != [directions, rows]
            || !(1..=2).contains(&directions)
            || request.attrs.int("hidden_size", hidden)? != hidden
        {
            return Err(broken());
        }
        let batch_first = request.attrs.int("layout", 0)? != 0;
        let (length, batch) = if batch_first { (second, first) } else { (first, second) };
        Ok(Self { length, batch, inputs, directions, hidden, batch_first })
    }

    /// Returns the extents of a state.
    fn state(&self) -> [i64; 3] {
        let Self { batch, directions, hidden, .. } = *self;
        if self.batch_first { [batch, directions, hidden] } else { [directions, batch, hidden] }
    }

    /// Returns the extents of all states.
    fn states(&self) -> [i64; 4] {
        let Self { length, batch, directions, hidden, .. } = *self;
        match self.batch_first {
            true => [batch, length, directions, hidden],
            false => [length, directions, batch, hidden],
        }
    }
}

/// A recurrent node's content.
#[derive(Clone, PartialEq, Debug)]
pub struct Recurrent {
    /// The op.
    pub cell: Cell,
    /// Its extents.
    pub extents: Extents,
    /// True if direction 0 starts at the last element; direction 1 always does.
    pub reverse: bool,
    /// True for each input that is present: the required ones, then B, sequence_lens, initial_h, initial_c, P.
    pub has: [bool; 8],
    /// True for each output that is used.
    pub gives: [bool; 3],
    /// The activations of all directions, f, g and h of each.
    pub activations: Vec<Activation>,
    /// Limit on the inputs of activations.
    pub clip: Option<f32>,
    /// LSTM: the forget gate is one minus the input gate.
    pub input_forget: bool,
    /// GRU: the reset gate applies after the product with the state.
    pub linear_before_reset: bool,
}

impl Recurrent {
    /// Reads a node.
    ///
    /// # Errors
    /// Invalid for operands that do not fit together, and attributes that are not in the specification; unsupported for an
    /// unknown activation.
    pub fn of<D>(request: &PrepareRequest<'_, D>, cell: Cell) -> Result<Self> {
        let extents = Extents::of(request, cell)?;
        let Extents { batch, directions, hidden, .. } = extents;
        let attrs = &request.attrs;
        let direction = attrs.string("direction", "forward")?;
        let expected = self::directions(direction)?;
        if directions != expected {
            return Err(Error::invalid(format!(
                "weights for {directions} directions, {direction} has {expected}"
            )));
        }
        let (state, states) = (extents.state(), extents.states());
        let biases = [directions, 2 * cell.gates() * hidden];
        let peepholes = [directions, 3 * hidden];
        let optional: [(usize, &[i64]); 5] =
            [(3, &biases), (4, &[batch]), (5, &state), (6, &state), (7, &peepholes)];
        let mut has = [true, true, true, false, false, false, false, false];
        for (i, expected) in optional {
            let Some(tensor) = request.input(i) else { continue };
            if tensor.shape() != expected {
                let found = tensor.shape();
                return Err(Error::invalid(format!("input {i} of shape {found:?}, expected {expected:?}")));
            }
            has[i] = true;
        }
        let mut gives = [false; 3];
        for (i, expected) in [&states[..], &state, &state].into_iter().enumerate() {
            let Some(tensor) = request.output(i) else { continue };
            if tensor.shape() != expected {
                let found = tensor.shape();
                return Err(Error::invalid(format!("output {i} of shape {found:?}, expected {expected:?}")));
            }
            gives[i] = true;
        }
        Ok(Self {
            cell,
            extents,
            reverse: direction == "reverse",
            has,
            gives,
            activations: Activation::list(attrs, cell, directions)?,
            clip: attrs.get("clip").map(|_| attrs.float("clip", 0.0)).transpose()?,
            input_forget: attrs.int("input_forget", 0)? != 0,
            linear_before_reset: attrs.int("linear_before_reset", 0)? != 0,
        })
    }

    /// Returns the activations of a direction.
    pub fn of_direction(&self, direction: usize) -> &[Activation] {
        let n = self.cell.activations().len();
        &self.activations[direction * n..][..n]
    }
}
