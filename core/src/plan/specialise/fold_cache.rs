//! Small constants that were folded before.
//!
//! A text model's shape arithmetic is some hundreds of nodes on a few integers each, most of them the same in every layer
//! and many of them the same for every length. Results of such a node are kept by its op and the contents of its
//! operands.

use crate::plan::place::alike::{Asked, Kept};
use crate::program::Node;
use crate::program::same::is_small;
use crate::tensor::{Tensor, TensorType};
use devbay_plugin_api::locks::lock;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// Results that are kept; when there are more, all are forgotten.
const KEPT_MAX: usize = 4096;

/// Results of ops on small constants.
#[derive(Default)]
pub(crate) struct FoldCache(Mutex<KeptResults>);

#[derive(Default)]
struct KeptResults {
    results: HashMap<u64, Vec<(Kept, Vec<Tensor>)>>,
    n_kept: usize,
}

impl FoldCache {
    fn lock(&self) -> MutexGuard<'_, KeptResults> {
        lock(&self.0)
    }

    /// Returns the earlier results of a node.
    pub(crate) fn find(&self, node: &Node, inputs: &[Option<Tensor>]) -> Option<Vec<Tensor>> {
        if !inputs.iter().flatten().all(is_small) {
            return None;
        }
        let types = types(inputs);
        let asked = asked(node, inputs, &types);
        let state = self.lock();
        let kept = state.results.get(&asked.hash)?;
        kept.iter().find(|(kept, _)| asked.is(kept)).map(|(_, results)| results.clone())
    }

    /// Keeps a node's results, if they and its operands are small.
    pub(crate) fn keep(&self, node: &Node, inputs: &[Option<Tensor>], results: &[Tensor]) {
        if !inputs.iter().flatten().chain(results).all(is_small) {
            return;
        }
        let types = types(inputs);
        let asked = asked(node, inputs, &types);
        let mut state = self.lock();
        if state.n_kept >= KEPT_MAX {
            *state = KeptResults::default();
        }
        state.n_kept += 1;
        state.results.entry(asked.hash).or_default().push((asked.to_kept(), results.to_vec()));
    }
}

fn types(inputs: &[Option<Tensor>]) -> Vec<Option<TensorType>> {
    inputs.iter().map(|input| input.as_ref().map(Tensor::tensor_type)).collect()
}

/// Returns a node's request on constants of these types. Which of its results are wanted counts.
fn asked<'a>(node: &'a Node, inputs: &'a [Option<Tensor>], types: &'a [Option<TensorType>]) -> Asked<'a> {
    let inputs =
        inputs.iter().zip(types).map(|(input, ty)| input.as_ref().map(|input| (ty.as_ref(), Some(input))));
    let results = node.outputs.iter().map(|output| output.map(|_| (None, None)));
    Asked::new(node, inputs.chain(results).collect())
}
