//! Numbers that carry how far off a plugin's may be: running error analysis (N. Higham, "Accuracy and Stability of
//! Numerical Algorithms", 2002, section 3.3).
//!
//! For ops of many steps, whose errors no short formula has. A reference is written with [`Near`] as with plain
//! numbers. Each step computes in f64, and keeps as the error what the dtype loses in the step and what the step makes
//! of its operands' errors. An operation is granted what [`crate::ops::Rounding`] grants it, a sum any order, and a
//! subnormal result may be 0. Errors only add up, never cancel, so a bound is above what any order of steps loses. Where
//! 16-bit floats sum many terms it says little; the same trial in f32 says it.

use super::*;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A number in f64, and how far off it may be in the dtype.
#[derive(Clone, Copy, Debug)]
pub(super) struct Near {
    pub value: f64,
    pub error: f64,
    /// Unit roundoff of the dtype that the next step is computed in.
    unit: f64,
    /// Below it numbers of the dtype are subnormal.
    smallest: f64,
}

impl Near {
    /// A number that the dtype has.
    pub(super) fn of(dtype: DType, value: f64) -> Self {
        Self { value, error: 0.0, unit: unit_roundoff(dtype), smallest: smallest(dtype) }
    }

    /// A number that the dtype may not have, as an attribute.
    pub(super) fn rounded(dtype: DType, value: f64) -> Self {
        Self::of(dtype, value).plus_units(1.0)
    }

    /// Returns the same number in another dtype, which the next steps are computed in.
    pub(super) fn cast(self, dtype: DType) -> Self {
        Self { value: self.value, error: self.error, ..Self::of(dtype, 0.0) }.plus_units(1.0)
    }

    /// Another number of the dtype.
    pub(super) fn like(self, value: f64) -> Self {
        Self { value, error: 0.0, ..self }
    }

    /// Returns the number with an error that something else makes larger.
    pub(super) fn at_least_off(mut self, error: f64) -> Self {
        self.error = self.error.max(error);
        self
    }

    /// Adds so many units of roundoff, and what is lost where results below the normal numbers are 0.
    fn plus_units(mut self, n: f64) -> Self {
        self.error += n * self.unit * (self.value.abs() + self.error);
        if self.value != 0.0 && self.value.abs() < self.smallest {
            self.error += self.smallest;
        }
        self
    }

    /// e^x. WGSL promises 3 + 2 |x| units in the last place, and no language less. (A unit in the last place is two of
    /// roundoff.)
    pub(super) fn exp(self) -> Self {
        let value = self.value.exp();
        let units = 6.0 + 4.0 * self.value.abs();
        Self { value, error: value * self.error.exp_m1(), ..self }.plus_units(units)
    }

    /// ln x: 3 units in the last place of it or of 1, for near 1 it is less exact.
    pub(super) fn ln(self) -> Self {
        let margin = self.value - self.error;
        let error = if margin > 0.0 { self.error / margin } else { f64::INFINITY };
        let value = self.value.ln();
        Self { value, error: error + 6.0 * self.unit, ..self }.plus_units(6.0)
    }

    /// x^y of a positive number: 16 units in the last place, as OpenCL promises.
    pub(super) fn powf(self, power: f64) -> Self {
        let value = self.value.powf(power);
        let off = |number: f64| (number.max(0.0).powf(power) - value).abs();
        let error = off(self.value - self.error).max(off(self.value + self.error));
        Self { value, error, ..self }.plus_units(32.0)
    }

    /// As exact as a quotient: 2.5 units in the last place.
    pub(super) fn sqrt(self) -> Self {
        let value = self.value.sqrt();
        let low = (self.value - self.error).max(0.0).sqrt();
        let high = (self.value + self.error).sqrt();
        Self { value, error: (value - low).max(high - value), ..self }.plus_units(5.0)
    }

    /// Returns the larger of two, which is one of them.
    pub(super) fn max(self, other: Self) -> Self {
        Self { value: self.value.max(other.value), error: self.error.max(other.error), ..self }
    }

    pub(super) fn abs(self) -> Self {
        if self.value < 0.0 { -self } else { self }
    }

    /// Within limits, which are exact.
    pub(super) fn clamp(self, low: f64, high: f64) -> Self {
        Self { value: self.value.clamp(low, high), ..self }
    }

    /// 1 / (1 + e^-x).
    pub(super) fn sigmoid(self) -> Self {
        let one = self.like(1.0);
        let denominator = one + (-self.abs()).exp();
        if self.value < 0.0 { one - one / denominator } else { one / denominator }
    }

    /// (1 - e^-2x) / (1 + e^-2x), which near 0 is less exact than better ways, and so grants as much as any way takes.
    pub(super) fn tanh(self) -> Self {
        let one = self.like(1.0);
        let power = (self.like(-2.0) * self.abs()).exp();
        let value = (one - power) / (one + power);
        if self.value < 0.0 { -value } else { value }
    }

    /// A sum in any order: each number goes through at most as many additions as there are numbers.
    pub(super) fn sum(dtype: DType, terms: impl IntoIterator<Item = Self>) -> Self {
        let (mut total, mut magnitude, mut n) = (Self::of(dtype, 0.0), 0.0, 0.0);
        for term in terms {
            total.value += term.value;
            total.error += term.error;
            magnitude += term.value.abs() + term.error;
            n += 1.0;
        }
        if n > 1.0 {
            total.error += n * total.unit * magnitude;
        }
        total
    }

    pub(super) fn mean(dtype: DType, terms: &[Self]) -> Self {
        Self::sum(dtype, terms.iter().copied()) / Self::of(dtype, terms.len() as f64)
    }
}

impl Add for Near {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        let error = self.error + other.error;
        let sum = Self { value: self.value + other.value, error, ..self };
        // Adding 0 loses nothing.
        if self.value == 0.0 || other.value == 0.0 { sum } else { sum.plus_units(1.0) }
    }
}

impl Neg for Near {
    type Output = Self;
    fn neg(self) -> Self {
        Self { value: -self.value, ..self }
    }
}

impl Sub for Near {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

impl Mul for Near {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        let error =
            self.value.abs() * other.error + other.value.abs() * self.error + self.error * other.error;
        Self { value: self.value * other.value, error, ..self }.plus_units(1.0)
    }
}

impl Div for Near {
    type Output = Self;
    /// 2.5 units in the last place, as everywhere in the suite.
    fn div(self, other: Self) -> Self {
        let value = self.value / other.value;
        let margin = other.value.abs() - other.error;
        // A divisor that may be 0 leaves nothing to judge, besides 0 itself.
        let error =
            if margin > 0.0 { (self.error + value.abs() * other.error) / margin } else { f64::INFINITY };
        Self { value, error, ..self }.plus_units(5.0)
    }
}

/// A tensor's numbers.
pub(super) fn nears(tensor: &HostTensor) -> Vec<Near> {
    tensor.values.iter().map(|&value| Near::of(tensor.dtype, value)).collect()
}

impl Expected {
    /// Numbers with their errors, and the last rounding.
    pub(super) fn near(dtype: DType, shape: &[i64], numbers: Vec<Near>) -> Self {
        let numbers: Vec<Near> = numbers.into_iter().map(|number| number.cast(dtype)).collect();
        let values = numbers.iter().map(|number| number.value).collect();
        // An infinite bound would take an infinity, too.
        let bounds = numbers.iter().map(|number| number.error.min(f64::MAX)).collect();
        Self::within(dtype, shape, values, bounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_cover_a_computation_in_the_dtype_and_not_much_more() {
        let mut dice = Dice::new(3);
        for _ in 0..100 {
            let [a, b, c] = [(); 3].map(|()| dice.between(0.5, 2.0) as f32);
            let near = |value: f32| Near::of(F32, f64::from(value));
            let checks = [
                (near(a) * near(b) - near(c), a * b - c),
                ((near(a) / near(b)).sqrt(), (a / b).sqrt()),
                ((near(a) + near(c)).exp(), (a + c).exp()),
                ((near(a) * near(c)).tanh(), (a * c).tanh()),
                ((-near(b)).sigmoid(), 1.0 / (1.0 + b.exp())),
                (near(c + 2.0).ln(), (c + 2.0).ln()),
                (Near::mean(F32, &[near(a), near(b), near(c)]), (a + b + c) / 3.0),
            ];
            for (expected, found) in checks {
                let off = (f64::from(found) - expected.value).abs();
                assert!(off <= expected.error, "{expected:?} {found}");
                assert!(expected.error < 64.0 * f64::from(f32::EPSILON) * 64.0, "{expected:?}");
            }
        }
    }
}
