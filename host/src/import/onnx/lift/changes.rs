//! Changes of ONNX's ops that require rewriting a node.
//!
//! Harmless changes are not listed: new element types, and new attributes and operands that may be absent. Source: the
//! schemas of onnx 1.23.2, version by version.

use super::Rewriting;
use super::rewrites::*;
use devbay_core::Result;

/// A change of an op's meaning.
pub(super) struct Change {
    /// The op.
    pub(super) op: &'static str,
    /// The version that introduced it.
    pub(super) version: u32,
    /// Rewrites a node of an older version for this version, or explains why that is impossible.
    pub(super) rewrite: fn(&mut Rewriting<'_>) -> Result<()>,
}

const fn change(op: &'static str, version: u32, rewrite: fn(&mut Rewriting<'_>) -> Result<()>) -> Change {
    Change { op, version, rewrite }
}

/// Changes by op, oldest first.
pub(super) const CHANGES: &[Change] = &[
    change("BatchNormalization", 9, batch_normalization_spatial),
    change("BatchNormalization", 14, batch_normalization_results),
    change("Clip", 11, clip_bounds),
    change("DFT", 20, dft_axis),
    change("Dropout", 10, dropout_mask),
    change("Dropout", 12, dropout_ratio),
    change("GridSample", 20, grid_sample_mode),
    change("GroupNormalization", 21, group_normalization_scale),
    change("Hardmax", 13, coerced_to_matrix),
    change("LogSoftmax", 13, coerced_to_matrix),
    change("Max", 8, allows_more),
    change("Mean", 8, allows_more),
    change("Min", 8, allows_more),
    change("OneHot", 11, one_hot_negative),
    change("Pad", 11, pad_operands),
    change("ReduceL1", 18, axes_operand),
    change("ReduceL2", 18, axes_operand),
    change("ReduceLogSum", 18, axes_operand),
    change("ReduceLogSumExp", 18, axes_operand),
    change("ReduceMax", 18, axes_operand),
    change("ReduceMean", 18, axes_operand),
    change("ReduceMin", 18, axes_operand),
    change("ReduceProd", 18, axes_operand),
    change("ReduceSum", 13, axes_operand),
    change("ReduceSumSquare", 18, axes_operand),
    change("Resize", 11, resize_modes),
    change("Resize", 13, resize_operands),
    change("RoiAlign", 16, roi_align_mode),
    change("Scan", 9, scan_batches),
    change("Slice", 10, slice_operands),
    change("Softmax", 13, coerced_to_matrix),
    change("Split", 13, split_operand),
    change("Split", 18, split_count),
    change("Squeeze", 13, axes_operand),
    change("Sum", 8, allows_more),
    change("TopK", 10, top_k_operand),
    change("Unsqueeze", 13, axes_operand),
];

#[cfg(test)]
mod tests {
    use super::*;
    use devbay_core::program::catalogue;
    use devbay_core::program::onnx_versions::{since_version, versions};

    /// Changes that affect only some nodes; the others may stay as they are.
    const CONDITIONAL: &[(&str, u32)] = &[("BatchNormalization", 14), ("Resize", 13)];

    #[test]
    fn changes_are_those_that_the_catalogue_knows() {
        assert!(CHANGES.is_sorted_by_key(|change| (change.op, change.version)));
        for change in CHANGES {
            let known = versions(change.op).unwrap_or_default();
            assert!(known.contains(&change.version), "{} has no version {}", change.op, change.version);
        }
        for def in catalogue::all().filter(|def| def.domain.is_empty()) {
            let oldest = since_version(def.name, 7).unwrap_or_default();
            let known = versions(def.name).unwrap_or_default();
            for &version in known.iter().filter(|&&v| oldest <= v && v < def.version) {
                let is_crossed = |change: &&Change| {
                    change.op == def.name && version < change.version && change.version <= def.version
                };
                let crossed = CHANGES.iter().filter(is_crossed);
                let all = crossed.clone().count();
                let always = crossed.filter(|c| !CONDITIONAL.contains(&(c.op, c.version))).count();
                let stays = version >= def.lifts_since;
                assert!(if stays { always == 0 } else { all > 0 }, "{} {version}", def.name);
            }
        }
    }
}
