//! `devbay bench --vary NAME=LOW..HIGH`: varies the length of inputs from run to run.

use crate::exit::usage;
use anyhow::Result;
use devbay_host::internals::core::program::{Program, Value};
use devbay_host::internals::core::tensor::bytes_of;
use devbay_host::internals::random::Random;
use devbay_host::{Dim, Tensor, TensorType};
use std::ops::RangeInclusive;

/// The lengths of a named extent of the model.
#[derive(Clone)]
pub struct Vary {
    name: String,
    lengths: RangeInclusive<usize>,
}

impl Vary {
    /// Parses `NAME=LOW..HIGH`, an inclusive range.
    ///
    /// # Errors
    /// For malformed text, and for a name that no input of the program has.
    pub fn parse(text: &str, program: &Program) -> Result<Self> {
        let parsed = text.rsplit_once('=').and_then(|(name, range)| {
            let (low, high) = range.split_once("..")?;
            Some((name, low.parse::<usize>().ok()?, high.parse::<usize>().ok()?))
        });
        let Some((name, low, high)) = parsed.filter(|(_, low, high)| (1..=*high).contains(low)) else {
            return Err(usage(format!("--vary is NAME=LOW..HIGH, found {text}")));
        };
        let vary = Self { name: name.to_owned(), lengths: low..=high };
        if inputs(program).all(|value| vary.axes(value).is_empty()) {
            return Err(usage(format!("no input of the model has an extent `{name}`")));
        }
        Ok(vary)
    }

    /// Returns the greatest length, as `--shape` takes it.
    pub fn longest(&self) -> String {
        format!("{}={}", self.name, self.lengths.end())
    }

    /// Returns the leading parts of inputs, one set per length, in ascending order.
    ///
    /// # Errors
    /// For inputs whose length is not the greatest.
    pub fn cut(&self, program: &Program, given: &[(String, Tensor)]) -> Result<Vec<Vec<(String, Tensor)>>> {
        let set = |length: usize| {
            let cut = |(name, tensor): &(String, Tensor)| {
                let port = inputs(program).find(|value| *value.name == **name);
                let axes = port.map(|value| self.axes(value)).unwrap_or_default();
                axes.into_iter()
                    .try_fold(tensor.clone(), |tensor, axis| self.cut_axis(name, &tensor, axis, length))
            };
            given.iter().map(|input| Ok((input.0.clone(), cut(input)?))).collect()
        };
        self.lengths.clone().map(set).collect()
    }

    fn cut_axis(&self, name: &str, tensor: &Tensor, axis: usize, length: usize) -> Result<Tensor> {
        let (shape, high) = (tensor.shape(), *self.lengths.end());
        if shape.get(axis) != Some(&high) {
            let found = shape.get(axis).copied().unwrap_or_default();
            let low = found.min(*self.lengths.start());
            let (symbol, ty) = (&self.name, tensor.tensor_type());
            let text = format!(
                "--vary cuts inputs that have its greatest length, {high}, along `{symbol}`; `{name}` is {ty}: give \
                 --vary {symbol}={low}..{found}, or inputs of {high}"
            );
            return Err(usage(text));
        }
        let inner: usize = shape[axis + 1..].iter().product();
        let row = bytes_of(tensor.dtype(), inner).unwrap_or_default();
        let mut cut = shape.to_vec();
        cut[axis] = length;
        let parts = tensor.bytes().chunks_exact((row * high).max(1)).flat_map(|part| &part[..row * length]);
        Ok(Tensor::from_bytes(tensor.dtype(), &cut, &parts.copied().collect::<Vec<u8>>())?)
    }

    fn axes(&self, value: &Value) -> Vec<usize> {
        let dims = value.ty.as_ref().and_then(|ty: &TensorType| ty.shape.as_deref()).unwrap_or_default();
        let has_name = |dim: &Dim| matches!(dim, Dim::Unknown(name) if **name == *self.name);
        (0..dims.len()).filter(|&axis| has_name(&dims[axis])).collect()
    }
}

fn inputs(program: &Program) -> impl Iterator<Item = &Value> {
    program.given_inputs().iter().map(|&id| program.value(id))
}

/// Returns which of `n` sets a run takes: pseudorandom, and the same each time the command is run.
pub fn pick(run: usize, n: usize) -> usize {
    Random::of_seed(run as u64).below(n)
}
