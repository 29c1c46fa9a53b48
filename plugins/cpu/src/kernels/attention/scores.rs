//! Arithmetic of attention: products of queries and keys, and weights of scores, rounded as operands of 16 bits
//! ask for.

use crate::kernels::numbers::small_float::{Format, Overflow};
use devbay_plugin_api::sdk::{BF16, DType, F16};

/// The sum of products, in eight chains.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; 8];
    let (a, b) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a.remainder().iter().zip(b.remainder()).map(|(x, y)| x * y).sum();
    for (a, b) in a.zip(b) {
        for (sum, (x, y)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += x * y;
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// Returns the function that rounds a number to a type that f32 holds.
pub(crate) fn rounding(dtype: DType) -> fn(f32) -> f32 {
    match dtype {
        F16 => |x| rounded(Format::BINARY16, x),
        BF16 => |x| rounded(Format::BFLOAT16, x),
        _ => |x| x,
    }
}

fn rounded(format: Format, x: f32) -> f32 {
    format.decode(format.encode(x.into(), Overflow::Infinite)) as f32
}

/// Type that a softmax is calculated in.
#[derive(Clone, Copy)]
pub(crate) enum Softmax {
    Single,
    Double,
    /// Every step is rounded. ONNX's reference adds up bfloat16 with a rounding at each step, in the order of the keys,
    /// and binary16 with one at the end; so it is here.
    Rounded {
        round: fn(f32) -> f32,
        each: bool,
    },
}

impl Softmax {
    /// The steps in this type.
    pub(crate) fn of(dtype: DType) -> Self {
        match dtype {
            F16 | BF16 => Self::Rounded { round: rounding(dtype), each: dtype == BF16 },
            _ => Self::Single,
        }
    }

    /// Makes weights of scores; no numbers if every one is minus infinity.
    pub(crate) fn weights(self, scores: &mut [f32]) {
        let larger = |a: f32, b: f32| if a >= b || a.is_nan() { a } else { b };
        let most = scores.iter().copied().fold(f32::NEG_INFINITY, larger);
        match self {
            Self::Single => {
                scores.iter_mut().for_each(|score| *score = (*score - most).exp());
                let sum: f32 = scores.iter().sum();
                scores.iter_mut().for_each(|score| *score /= sum);
            }
            Self::Double => {
                let exp = |score: f32| (f64::from(score) - f64::from(most)).exp();
                let sum: f64 = scores.iter().map(|&score| exp(score)).sum();
                scores.iter_mut().for_each(|score| *score = (exp(*score) / sum) as f32);
            }
            Self::Rounded { round, each } => {
                scores.iter_mut().for_each(|score| *score = round(round(*score - most).exp()));
                let sum = match each {
                    true => scores.iter().fold(0.0, |sum, &score| round(sum + score)),
                    false => round(scores.iter().sum()),
                };
                scores.iter_mut().for_each(|score| *score = round(*score / sum));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Softmax, dot, rounding};
    use devbay_plugin_api::sdk::{BF16, F16, F32};

    #[test]
    fn weights_of_scores() {
        let weights = |softmax: Softmax, mut scores: Vec<f32>| {
            softmax.weights(&mut scores);
            scores
        };
        let never = f32::NEG_INFINITY;
        for softmax in [Softmax::Single, Softmax::Double, Softmax::of(F16), Softmax::of(F32)] {
            assert_eq!(weights(softmax, vec![7.0, never, 7.0]), [0.5, 0.0, 0.5]);
            assert!(weights(softmax, vec![never; 3]).iter().all(|weight| weight.is_nan()));
            assert!(weights(softmax, vec![never, f32::NAN]).iter().all(|weight| weight.is_nan()));
        }
        // Beyond 256 adding 1 changes nothing in bfloat16; it does in binary16.
        assert_eq!(weights(Softmax::of(BF16), vec![0.0; 300])[0], 1.0 / 256.0);
        assert_eq!(weights(Softmax::of(F16), vec![0.0; 512])[0], 1.0 / 512.0);
        // A third in bfloat16.
        assert_eq!(weights(Softmax::of(BF16), vec![0.0; 3]), [0.333_984_38; 3]);
        assert_eq!(rounding(BF16)(1.0 / 3.0), 0.333_984_38);
    }

    #[test]
    fn products_of_any_length() {
        for n in 0..40 {
            let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let expected: f32 = a.iter().map(|x| x * x).sum();
            assert_eq!(dot(&a, &a), expected, "{n}");
        }
    }
}
