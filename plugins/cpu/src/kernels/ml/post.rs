//! Transforms of a row's scores into results.
//!
//! They are computed in f64 and rounded once. Source: onnxruntime's ml_common.h, as ONNX only names them.

use devbay_plugin_api::sdk::{Error, Result};

/// A transform of the scores of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Post {
    /// The scores as they are.
    None,
    /// Exponentials, divided by their sum.
    Softmax,
    /// The sigmoid of each score.
    Logistic,
    /// As softmax, but scores of 0 stay 0.
    SoftmaxZero,
    /// The quantile of the normal distribution, approximately.
    Probit,
}

impl Post {
    /// Reads the name in an attribute.
    ///
    /// # Errors
    /// Invalid for an unknown name.
    pub(super) fn of_name(name: &str) -> Result<Self> {
        Ok(match name {
            "NONE" => Self::None,
            "SOFTMAX" => Self::Softmax,
            "LOGISTIC" => Self::Logistic,
            "SOFTMAX_ZERO" => Self::SoftmaxZero,
            "PROBIT" => Self::Probit,
            other => {
                return Err(Error::invalid(format!(
                    "post_transform is NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO or PROBIT, found {other}"
                )));
            }
        })
    }

    /// Reads the number in an attribute of TreeEnsemble.
    ///
    /// # Errors
    /// Invalid for an unknown number.
    pub(super) fn of_number(number: i64) -> Result<Self> {
        Ok(match number {
            0 => Self::None,
            1 => Self::Softmax,
            2 => Self::Logistic,
            3 => Self::SoftmaxZero,
            4 => Self::Probit,
            other => return Err(Error::invalid(format!("post_transform is 0 to 4, found {other}"))),
        })
    }

    /// Transforms the scores of a row.
    pub(super) fn apply(self, scores: &mut [f64]) {
        match self {
            Self::None => {}
            Self::Softmax => softmax(scores),
            Self::Logistic => scores.iter_mut().for_each(|score| *score = logistic(*score)),
            Self::SoftmaxZero => softmax_zero(scores),
            Self::Probit => scores.iter_mut().for_each(|score| *score = probit(*score)),
        }
    }
}

/// The sigmoid.
pub(super) fn logistic(x: f64) -> f64 {
    let y = 1.0 / (1.0 + (-x.abs()).exp());
    if x < 0.0 { 1.0 - y } else { y }
}

fn softmax(scores: &mut [f64]) {
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    scores.iter_mut().for_each(|score| *score = (*score - most).exp());
    let sum: f64 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
}

fn softmax_zero(scores: &mut [f64]) {
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        if score.abs() > f64::from(1e-7f32) {
            *score = (*score - most).exp();
            sum += *score;
        } else {
            *score *= (-most).exp();
        }
    }
    scores.iter_mut().for_each(|score| *score /= sum);
}

/// Winitzki's approximation of the error function's inverse, with onnxruntime's digits of pi.
pub(super) fn probit(p: f64) -> f64 {
    const A: f64 = 0.147;
    /// A times pi, which is 3.14159 there.
    const PI_A: f64 = 0.461_813_73;
    let x = 2.0 * p - 1.0;
    let log = ((1.0 - x) * (1.0 + x)).ln();
    let v = 2.0 / PI_A + 0.5 * log;
    let root = ((v * v - log / A).sqrt() - v).sqrt();
    f64::from(std::f32::consts::SQRT_2) * if x < 0.0 { -root } else { root }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transforms_of_known_scores() {
        let check = |post: Post, scores: &[f64], expected: &[f64]| {
            let mut found = scores.to_vec();
            post.apply(&mut found);
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() < 1e-4, "{post:?} of {scores:?}: {found}");
            }
        };
        check(Post::Logistic, &[0.0, 2.0, -2.0], &[0.5, 0.880_797, 0.119_203]);
        check(Post::Softmax, &[1000.0, 1000.0], &[0.5, 0.5]);
        // Only the two others share the whole.
        check(Post::SoftmaxZero, &[0.0, 1.0, 1.0], &[0.0, 0.5, 0.5]);
        // The quantiles of 0.5 and 0.975 of the normal distribution; the approximation is good to 2e-3.
        check(Post::Probit, &[0.5], &[0.0]);
        assert!((probit(0.975) - 1.96).abs() < 5e-3, "{}", probit(0.975));
        assert!((probit(0.025) + 1.96).abs() < 5e-3, "{}", probit(0.025));
    }

    #[test]
    fn names_and_numbers_agree_with_onnx() {
        for (i, name) in ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"].into_iter().enumerate() {
            assert_eq!(Post::of_name(name), Post::of_number(i as i64));
        }
        assert!(Post::of_name("none").is_err() && Post::of_number(5).is_err());
    }
}
