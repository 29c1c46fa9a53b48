//! One node of the graph as the functions that express it see it.

use super::builder::{Builder, Type, Value, constant_ints};
pub(super) use devbay_ops::read::axis;
use devbay_plugin_api::sdk::{Attrs, Error, GraphView, NodeView, Result, TensorView};

/// A node, and the graph around it.
pub(super) struct Node<'g> {
    graph: &'g GraphView<'g>,
    view: &'g NodeView<'g>,
}

impl<'g> Node<'g> {
    pub(super) fn new(graph: &'g GraphView<'g>, view: &'g NodeView<'g>) -> Self {
        Self { graph, view }
    }

    /// Empty for ONNX's own, which has a longer name too.
    pub(super) fn domain(&self) -> &'g str {
        if self.view.domain == "ai.onnx" { "" } else { self.view.domain }
    }

    pub(super) fn op(&self) -> &'g str {
        self.view.op
    }

    pub(super) fn name(&self) -> &'g str {
        self.view.name
    }

    /// The opset in which the op's definition appeared.
    pub(super) fn since(&self) -> u32 {
        self.view.since_version
    }

    pub(super) fn attrs(&self) -> &'g Attrs<'g> {
        &self.view.attrs
    }

    pub(super) fn outputs(&self) -> &'g [Option<u32>] {
        &self.view.outputs
    }

    pub(super) fn n_inputs(&self) -> usize {
        self.view.inputs.len()
    }

    fn position(&self, at: usize) -> Option<u32> {
        let position = self.view.inputs.get(at).copied().flatten()?;
        let is_absent =
            self.graph.values.get(position as usize).is_some_and(|value| value.tensor.is_absent());
        (!is_absent).then_some(position)
    }

    /// The input at `at`.
    ///
    /// # Errors
    /// Invalid if it is absent; as [`Builder::value`].
    pub(super) fn input(&self, b: &mut Builder<'g>, at: usize) -> Result<Value> {
        let position = self.position(at).ok_or_else(|| Error::invalid(format!("input {at} is missing")))?;
        b.value(position)
    }

    /// The input at `at`, if it is given.
    ///
    /// # Errors
    /// As [`Builder::value`].
    pub(super) fn optional_input(&self, b: &mut Builder<'g>, at: usize) -> Result<Option<Value>> {
        self.position(at).map(|position| b.value(position)).transpose()
    }

    /// All inputs, none of which may be absent.
    ///
    /// # Errors
    /// As [`input`](Self::input).
    pub(super) fn all_inputs(&self, b: &mut Builder<'g>) -> Result<Vec<Value>> {
        (0..self.n_inputs()).map(|at| self.input(b, at)).collect()
    }

    /// The tensor at `at`, if it is given; nothing is written for it.
    pub(super) fn tensor(&self, at: usize) -> Option<&'g TensorView<'g>> {
        Some(&self.graph.values.get(self.position(at)? as usize)?.tensor)
    }

    /// The tensor at `at`; nothing is written for it.
    ///
    /// # Errors
    /// Invalid if it is absent.
    pub(super) fn required_tensor(&self, at: usize) -> Result<&'g TensorView<'g>> {
        self.tensor(at).ok_or_else(|| Error::invalid(format!("input {at} is missing")))
    }

    /// The integers of a constant input, if it is given.
    ///
    /// # Errors
    /// Unsupported if it is not constant.
    pub(super) fn ints(&self, at: usize) -> Result<Option<Vec<i64>>> {
        self.tensor(at).map(constant_ints).transpose()
    }

    /// The integers of an attribute, or of the constant input at `at` in versions of the op where they came to be one.
    ///
    /// # Errors
    /// Unsupported if the input is not constant.
    pub(super) fn ints_or_attr(&self, at: usize, name: &str) -> Result<Option<Vec<i64>>> {
        match self.attrs().ints(name)? {
            Some(ints) => Ok(Some(ints)),
            None => self.ints(at),
        }
    }

    /// The type that the graph has for the result at `at`.
    ///
    /// # Errors
    /// Invalid if there is no such result; unsupported for a type that a PJRT device is not given.
    pub(super) fn result(&self, at: usize) -> Result<Type> {
        let position = self.outputs().get(at).copied().flatten();
        let value = position.and_then(|position| self.graph.values.get(position as usize));
        Type::of(&value.ok_or_else(|| Error::invalid(format!("result {at} is missing")))?.tensor)
    }

    /// Returns whether the result at `at` is asked for.
    pub(super) fn has_result(&self, at: usize) -> bool {
        self.outputs().get(at).copied().flatten().is_some()
    }

    /// The attribute `axis`, counted from the front.
    ///
    /// # Errors
    /// Invalid if the rank has no such axis.
    pub(super) fn axis(&self, default: i64, rank: usize) -> Result<usize> {
        axis(self.attrs().int("axis", default)?, rank)
    }
}

/// Axes counted from the front, sorted.
///
/// # Errors
/// Invalid if the rank has no such axis, or one is given twice.
pub(super) fn axes(given: &[i64], rank: usize) -> Result<Vec<usize>> {
    let mut found = given.iter().map(|&one| axis(one, rank)).collect::<Result<Vec<_>>>()?;
    found.sort_unstable();
    if found.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Error::invalid(format!("axes {given:?} name one twice")));
    }
    Ok(found)
}
