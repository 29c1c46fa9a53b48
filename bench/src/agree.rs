//! Checks that devbay and its peers agree before anything is timed.

use anyhow::{Context, Result, ensure};
use devbay_core::Tensor;
use devbay_host::internals::compare::{Tolerance, compare};

/// Tensors by name.
pub type Named = Vec<(String, Tensor)>;

/// Checks that every expected array is present, and within the tolerance.
///
/// # Errors
/// For the first array that is not, with its difference.
pub fn ensure_agree(
    found: &[(String, Tensor)],
    expected: &[(String, Tensor)],
    tolerance: Tolerance,
) -> Result<()> {
    for (name, expected) in expected {
        let (_, found) =
            found.iter().find(|(known, _)| known == name).with_context(|| format!("no output `{name}`"))?;
        // rten has its own integer width.
        if let (Some(a), Some(b)) = (found.to_ints()?, expected.to_ints()?) {
            ensure!(found.shape() == expected.shape() && a == b, "the integers of output `{name}` differ");
            continue;
        }
        let verdict = compare(name, found, expected, tolerance);
        let reason = verdict.reason.unwrap_or_else(|| {
            format!("by {:.2e}, allowed is {:.2e}", verdict.max_difference, verdict.allowed)
        });
        ensure!(verdict.matches, "output `{name}` differs: {reason}");
    }
    Ok(())
}
