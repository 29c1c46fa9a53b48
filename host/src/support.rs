//! Support of a model by devices, before it runs: the device of each node, and the reason of each device that does not take
//! it. A model that no device can run has an answer too.

use crate::model::Model;
use devbay_core::device::Device;
use devbay_core::error::Result;
pub use devbay_core::kernel::Counts;
use devbay_core::passes::Moment;
pub use devbay_core::plan::place::support::{Answer, Asking, NodeSupport, Runs};
use devbay_core::plan::{Env, PlaceBy, Placement, PlanOptions};
use devbay_core::tensor::TensorType;
use std::sync::Arc;

/// Returns the support of each node of a model for inputs of these types, one for each, by its placement's devices. The
/// nodes are those that would be planned, after the enabled passes. The answers are of all `devices`.
///
/// # Errors
/// Errors of specialising, of passes, and of plugins.
pub fn of_model(
    model: &Model,
    types: &[TensorType],
    placement: &Placement,
    devices: &[Arc<Device>],
    options: &PlanOptions,
    asking: Asking,
) -> Result<Vec<NodeSupport>> {
    let unit = model.placed(placement, options.clone())?;
    let env = unit.env();
    let mut program = unit.specialised(types)?.program;
    env.run_passes(&mut program, Moment::Device)?;
    let own = placement.devices();
    let others = own[1..].iter().copied().chain(devices);
    let all = Placement {
        device: Arc::clone(own[0]),
        others: others.filter(|device| !Arc::ptr_eq(device, own[0])).cloned().collect(),
        pins: Vec::new(),
        by: PlaceBy::Order,
    };
    let asked = Env::placed(&all, options.clone());
    devbay_core::plan::place::support::support(&program, env, &asked, asking)
}
