//! Compares outputs with expected ones.

use devbay_core::Tensor;
use devbay_core::tensor::{F32, F64};
use serde::Serialize;

/// Tolerance for numbers: `|a - b| <= relative * max|expected| + absolute`. Other elements must be equal.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Share of the largest expected value.
    pub relative: f64,
    /// Term added to that share.
    pub absolute: f64,
}

/// Comparison of one output.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The output.
    pub name: String,
    /// True if it is within the tolerance.
    pub matches: bool,
    /// Largest difference.
    pub max_difference: f64,
    /// Largest difference that is allowed.
    pub allowed: f64,
    /// Reason for a mismatch that is not in the numbers.
    pub reason: Option<String>,
}

/// Compares one output.
pub fn compare(name: &str, found: &Tensor, expected: &Tensor, tolerance: Tolerance) -> Verdict {
    let verdict = |matches, max_difference, allowed, reason| Verdict {
        name: name.to_owned(),
        matches,
        max_difference,
        allowed,
        reason,
    };
    if found.dtype() != expected.dtype() || found.shape() != expected.shape() {
        let reason = format!("it is {}, expected {}", found.tensor_type(), expected.tensor_type());
        return verdict(false, f64::INFINITY, 0.0, Some(reason));
    }
    let (Some(a), Some(b)) = (floats(found), floats(expected)) else {
        let same = found.bytes() == expected.bytes();
        let reason = (!same).then(|| "elements differ".to_owned());
        return verdict(same, if same { 0.0 } else { f64::INFINITY }, 0.0, reason);
    };
    let largest = b.iter().filter(|v| v.is_finite()).fold(0.0f64, |m, v| m.max(v.abs()));
    let allowed = tolerance.relative * largest + tolerance.absolute;
    let mut worst = 0.0f64;
    for (x, y) in a.iter().zip(&b) {
        let difference = if x == y || (x.is_nan() && y.is_nan()) { 0.0 } else { (x - y).abs() };
        // NaN exceeds every tolerance.
        worst = if difference.is_nan() { f64::INFINITY } else { worst.max(difference) };
        if worst.is_infinite() {
            break;
        }
    }
    verdict(worst <= allowed, worst, allowed, None)
}

fn floats(tensor: &Tensor) -> Option<Vec<f64>> {
    match tensor.dtype() {
        F32 => tensor.elements::<f32>().map(|v| v.iter().map(|&x| f64::from(x)).collect()),
        F64 => tensor.elements::<f64>().map(<[f64]>::to_vec),
        _ => None,
    }
}
