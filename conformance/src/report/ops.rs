//! Node tests by op: what a plugin claims of ONNX, and how it does.

use super::{Report, Summary};
use crate::onnx;
use serde::Serialize;
use std::collections::BTreeMap;

/// The node tests of one op that have this node alone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct OpCount {
    /// The op, with its domain unless it is ONNX's own.
    pub op: String,
    /// Results of its tests.
    #[serde(flatten)]
    pub summary: Summary,
}

impl OpCount {
    /// Returns whether the plugin has a kernel for the op in at least one of its tests, even if the kernel refuses it.
    pub fn claimed(&self) -> bool {
        self.summary.claimed() > 0
    }
}

impl Report {
    /// Returns the ops of ONNX's node tests, by name; empty if none of them was asked for.
    pub fn ops(&self) -> Vec<OpCount> {
        let mut ops: BTreeMap<&str, Vec<&super::Test>> = BTreeMap::new();
        for test in &self.tests {
            let about = test.id.strip_prefix(onnx::PREFIX).and_then(|name| onnx::index().get(name));
            if let Some([op]) = about.filter(|about| !about.expanded).map(|about| about.ops.as_slice()) {
                ops.entry(op).or_default().push(test);
            }
        }
        let count = |(op, tests): (&str, Vec<&super::Test>)| OpCount {
            op: op.to_owned(),
            summary: Summary::of(tests),
        };
        ops.into_iter().map(count).collect()
    }
}
