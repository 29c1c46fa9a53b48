//! Versions of ONNX's ops: the facts of `table.rs`, which is generated, behind a few questions.
//!
//! A version is the opset in which a definition of an op appeared; it is in force until the next one. The
//! [catalogue](super::catalogue) defines the versions' meaning for devbay.

mod table;

use table::{DEPRECATED, ML_OPS, OPS};

/// The newest opset of ONNX's own domain that is known here.
pub const NEWEST_OPSET: u32 = table::NEWEST_OPSET;

/// Returns the versions of an op of ONNX's own domain, oldest first; None if there is no such op.
pub fn versions(op: &str) -> Option<&'static [u32]> {
    let i = OPS.binary_search_by_key(&op, |(name, _)| name).ok()?;
    Some(OPS[i].1)
}

/// Returns the version of an op that is in force in an opset; None if the op is unknown, or not yet defined there. The
/// opset may be newer than [`NEWEST_OPSET`]; its changes are then unknown.
pub fn since_version(op: &str, opset: u32) -> Option<u32> {
    versions(op)?.iter().rev().find(|&&since| since <= opset).copied()
}

/// Returns whether ONNX's own domain has ever had an op of that name.
pub fn exists(op: &str) -> bool {
    versions(op).is_some()
}

/// Returns whether ONNX has declared a version unfit for use: its op was replaced or wrongly defined.
pub fn is_deprecated(op: &str, since: u32) -> bool {
    DEPRECATED.contains(&(op, since))
}

/// Returns whether it is the name of an op of ai.onnx.ml.
pub fn is_ml_op(op: &str) -> bool {
    ML_OPS.binary_search(&op).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_in_force() {
        let check = |op, opset, expected| {
            assert_eq!(since_version(op, opset), expected, "{op} in opset {opset}");
        };
        check("Relu", 5, Some(1));
        check("Relu", 13, Some(13));
        check("Relu", NEWEST_OPSET, Some(14));
        check("Relu", u32::MAX, Some(14));
        check("Relu", 0, None);
        check("Gelu", 19, None);
        check("Gelu", 20, Some(20));
        check("Zipper", 20, None);
        check("", 20, None);
    }

    #[test]
    fn tables_are_sorted_for_binary_search() {
        assert!(OPS.is_sorted_by(|a, b| a.0 < b.0));
        assert!(ML_OPS.is_sorted_by(|a, b| a < b));
        for (op, versions) in OPS {
            assert!(versions.is_sorted_by(|a, b| a < b), "{op}");
            assert!(versions.last() <= Some(&NEWEST_OPSET), "{op}");
        }
    }

    #[test]
    fn names() {
        assert!(exists("Conv") && !exists("Normalizer") && !exists("conv"));
        assert!(is_ml_op("Normalizer") && !is_ml_op("Conv"));
        assert!(is_deprecated("Upsample", 10) && !is_deprecated("Upsample", 9));
    }
}
