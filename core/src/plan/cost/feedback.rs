//! Measured times, for plans: a launch's time in earlier runs replaces its estimate.
//!
//! A launch is known by its *signature*: the kernel, the types of its operands and results, which of them are constant,
//! and a digest of its attributes. Two launches of one signature do the same work, in whatever model they are, so that a
//! profile of one model serves others too. Names of nodes are no part of it.
//!
//! Times are those of one thread where a device is the processor, as [`crate::device::rates::Rates`] are. Whether a profile
//! belongs to this device and this build of its plugin is decided where it is read; here a device is known by its
//! stable identity.

use super::work::WorkKind;
use crate::device::Device;
use crate::kernel::Numerics;
use crate::plan::Env;
use crate::plan::compiled::programs::digest_of_attrs;
use crate::plan::place::kernel::NodeTypes;
use crate::plan::steps::CopyKind;
use crate::program::{Node, Program};
use crate::tensor::TensorType;
use devbay_plugin_api::abi::KernelCost;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

/// Source of a launch's cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CostFrom {
    /// The device's rates, and the kernel's counts.
    #[default]
    Estimate,
    /// Earlier runs.
    Measurement,
}

impl CostFrom {
    /// Returns its name in text and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Estimate => "estimated",
            Self::Measurement => "measured",
        }
    }
}

/// The expected cost of a launch.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// Nanoseconds.
    pub ns: f64,
    /// Source of the cost.
    pub from: CostFrom,
}

/// Measured times of launches, by device and signature.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Feedback {
    devices: BTreeMap<String, BTreeMap<String, f64>>,
}

impl Feedback {
    /// Stores the time of a launch on a device, in nanoseconds; the latest counts.
    pub fn put(&mut self, device: &Device, signature: &str, ns: f64) {
        self.devices.entry(device.stable_id()).or_default().insert(signature.to_owned(), ns);
    }

    /// Nanoseconds that a launch took on a device, if it was measured.
    pub fn find(&self, device: &Device, signature: &str) -> Option<f64> {
        self.devices.get(&device.stable_id())?.get(signature).copied()
    }

    /// Launches that were measured, on all devices.
    pub fn len(&self) -> usize {
        self.devices.values().map(BTreeMap::len).sum()
    }

    /// Returns whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Returns the key of a node's launch: `Conv@11(f32[1,3,8,8], const f32[4,3,3,3]) f32[1,4,8,8] 0123456789abcdef`.
pub fn signature(kernel: &str, node: &Node, types: &NodeTypes, numerics: Numerics) -> String {
    let mut text = format!("{kernel}(");
    for (i, input) in types.inputs.iter().enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        // Writing to a string cannot fail.
        let _ = match input {
            None => write!(text, "{comma}_"),
            Some((ty, constant)) => {
                let constant = if constant.is_some() { "const " } else { "" };
                write!(text, "{comma}{constant}{}", Plain(ty))
            }
        };
    }
    text.push(')');
    for output in &types.outputs {
        let _ = match output {
            None => write!(text, " _"),
            Some(ty) => write!(text, " {}", Plain(ty)),
        };
    }
    if !node.attrs.is_empty() {
        let _ = write!(text, " {}", digest_of_attrs(&node.attrs));
    }
    if numerics != Numerics::Strict {
        let _ = write!(text, " {numerics:?}");
    }
    text
}

/// Returns the types in a launch's key: of its operands, as `const f32[4,3]` if constant and `_` if absent, and of its
/// results. A copy's key has none.
pub fn types_in(signature: &str) -> (Vec<&str>, Vec<&str>) {
    let Some((inputs, rest)) = signature.split_once('(').and_then(|(_, rest)| rest.split_once(')')) else {
        return (Vec::new(), Vec::new());
    };
    let inputs = inputs.split(", ").filter(|ty| !ty.is_empty());
    // The digest of attributes and the numerics have no extents.
    (inputs.collect(), rest.split(' ').filter(|word| word.contains('[')).collect())
}

/// A type without the names of its extents, which say nothing of the work.
struct Plain<'a>(&'a TensorType);

impl std::fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.known_shape() {
            Some(shape) => TensorType::new(self.0.dtype, &shape).fmt(f),
            None => self.0.fmt(f),
        }
    }
}

/// Returns the key of a copy.
pub(crate) fn signature_of_copy(kind: CopyKind, bytes: usize) -> String {
    let direction = match kind {
        CopyKind::ToDevice => "to device",
        CopyKind::FromDevice => "from device",
        CopyKind::Within => "within a memory",
    };
    format!("copy {direction}, {bytes} bytes")
}

impl Env {
    /// Returns whether anybody measures launches, or has.
    pub(in crate::plan) fn asks_signatures(&self) -> bool {
        self.options.trace.is_some() || self.options.feedback.is_some()
    }

    /// Returns the key of the launch of a node of known types, if anybody measures launches or has.
    pub(in crate::plan) fn signature(
        &self,
        program: &Program,
        node: &Node,
        kernel: &str,
    ) -> Option<Arc<str>> {
        if !self.asks_signatures() {
            return None;
        }
        let types = NodeTypes::of(program, node)?;
        Some(signature(kernel, node, &types, self.options.numerics).into())
    }

    /// Returns the expected cost of a launch on a device: as measured, else from its kernel's counts.
    pub(in crate::plan) fn launch_cost(
        &self,
        (site, kind): (usize, WorkKind),
        signature: Option<&str>,
        cost: Option<&KernelCost>,
        operand_bytes: usize,
    ) -> Cost {
        let measured = signature.and_then(|signature| self.measured(site, signature));
        Cost::of(measured, || self.rates_of(site).launch(kind, cost, operand_bytes))
    }

    /// Returns the expected cost of a copy that a device makes: as measured, else as its link says.
    pub(in crate::plan) fn copy_cost(&self, site: usize, kind: CopyKind, bytes: usize) -> Cost {
        let rates = self.rates_of(site);
        Cost::of(self.measured_copy(site, kind, bytes), || match kind {
            CopyKind::ToDevice => rates.to_device.copy(bytes),
            CopyKind::FromDevice => rates.from_device.copy(bytes),
            CopyKind::Within => rates.launch(WorkKind::Copying, None, bytes),
        })
    }

    /// Nanoseconds that a copy took, if it was measured.
    pub(in crate::plan) fn measured_copy(&self, site: usize, kind: CopyKind, bytes: usize) -> Option<f64> {
        self.options.feedback.as_ref()?;
        self.measured(site, &signature_of_copy(kind, bytes))
    }

    fn measured(&self, site: usize, signature: &str) -> Option<f64> {
        self.options.feedback.as_ref()?.find(self.site(site).0, signature)
    }
}

impl Cost {
    fn of(measured: Option<f64>, estimate: impl FnOnce() -> f64) -> Self {
        match measured {
            Some(ns) => Self { ns, from: CostFrom::Measurement },
            None => Self { ns: estimate(), from: CostFrom::Estimate },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_read_from_keys() {
        let key = "Conv@22(f32[1,3,8,8], const f32[4,3,3,3], _) f32[1,4,8,8] 0123456789abcdef Tf32";
        assert_eq!(types_in(key), (vec!["f32[1,3,8,8]", "const f32[4,3,3,3]", "_"], vec!["f32[1,4,8,8]"]));
        assert_eq!(types_in("Range@11() i64[3] i64[]"), (vec![], vec!["i64[3]", "i64[]"]));
        assert_eq!(types_in(&signature_of_copy(CopyKind::ToDevice, 12)), (vec![], vec![]));
    }
}
