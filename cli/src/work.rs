//! The work of a model by node, for `devbay inspect`: arithmetic operations and bytes, as kernels state them.
//!
//! Nodes are the model's own: no pass runs. Counts need shapes, so nodes whose shapes are open have none unless `--shape` gives
//! them. They are those of one device: the chosen one, else the processor.

use anyhow::Result;
use devbay_host::internals::core::passes::Switches;
use devbay_host::internals::core::plan::{Placement, PlanOptions};
use devbay_host::internals::support::{self, Asking, Counts, NodeSupport, Runs};
use devbay_host::{Device, Model, TensorType};
use serde_json::{Value, json};
use std::sync::Arc;

/// The work of a model's nodes.
pub struct Work {
    /// The device whose kernels stated the counts.
    pub device: String,
    /// The nodes in order, those of regions after the node that contains them.
    pub nodes: Vec<NodeWork>,
}

/// The work of one node.
pub struct NodeWork {
    pub support: NodeSupport,
    /// None if shapes are open, or if no kernel states counts. Views and the host's nodes have none to count.
    pub counts: Option<Counts>,
}

impl Work {
    /// Returns the work of a model for inputs of these types, one for each; extents may be open.
    ///
    /// # Errors
    /// Errors of inference for these types.
    pub fn of(model: &Model, types: &[TensorType], device: &Arc<Device>) -> Result<Self> {
        let options = PlanOptions { passes: Switches::none(), ..PlanOptions::default() };
        let placement = Placement::on(device);
        let devices = [Arc::clone(device)];
        let nodes = support::of_model(model, types, &placement, &devices, &options, Asking::Descriptors)?;
        let of_node = |support: NodeSupport| {
            let counts = match support.runs {
                Runs::View | Runs::Host => Some(Counts { flops: 0, bytes: 0 }),
                _ => support.answers.iter().find_map(|answer| answer.counts),
            };
            NodeWork { support, counts }
        };
        let nodes = nodes.into_iter().map(of_node).collect();
        Ok(Self { device: device.name().to_owned(), nodes })
    }

    /// Returns the sum over nodes that are not in regions, and the number of nodes without counts.
    pub fn sum(&self) -> (Counts, usize) {
        let main = self.nodes.iter().filter(|node| node.support.within.is_empty());
        let known = main.clone().filter_map(|node| node.counts);
        let sum = known.fold(Counts { flops: 0, bytes: 0 }, add);
        (sum, self.nodes.iter().filter(|node| node.counts.is_none()).count())
    }

    /// Returns the nodes as JSON.
    pub fn json(&self) -> Value {
        let node = |node: &NodeWork| {
            let support = &node.support;
            json!({
                "node": support.node, "op": support.op.to_string(), "within": support.within,
                "result": support.result.as_ref().map(ToString::to_string),
                "flops": node.counts.map(|counts| counts.flops), "bytes": node.counts.map(|counts| counts.bytes),
            })
        };
        self.nodes.iter().map(node).collect()
    }
}

/// Adds counts.
pub fn add(a: Counts, b: Counts) -> Counts {
    Counts { flops: a.flops.saturating_add(b.flops), bytes: a.bytes.saturating_add(b.bytes) }
}
