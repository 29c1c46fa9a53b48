//! Outcome of a case, and whether two devices agree about it.

use crate::onnx::compare::numbers;
use devbay_host::{Error, ErrorKind, Tensor, TensorType};
use serde::{Deserialize, Serialize};

/// Outcome of a case on one device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// It ran; the classes of its results' elements.
    Ok(Vec<Classes>),
    /// A typed error.
    Error {
        /// Its kind's name.
        kind: String,
        /// Its words.
        text: String,
    },
    /// Something panicked, whatever became of the run.
    Panic(String),
    /// The process ended itself because memory was refused.
    AbortedForMemory(String),
    /// The process ended itself for another reason.
    Aborted(String),
    /// The process was ended by a signal.
    Crashed(String),
    /// It did not end in time.
    Hung,
}

/// A result without its numbers: what devices must agree on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Classes {
    /// Element type and extents.
    pub ty: String,
    /// A letter an element, of floating-point results alone: `n` for NaN, `P` and `N` for infinities, `H` and `h` for
    /// numbers near the type's largest and smallest, `+` and `-`, and `0` for those whose sign rounding decides.
    pub letters: String,
}

/// Elements of a result that are looked at; results of more than `NUMBERS_MAX` are not, as looking takes memory.
const ELEMENTS_MAX: usize = 4096;
const NUMBERS_MAX: usize = 1 << 20;

impl Classes {
    /// Returns the classes of a tensor's elements.
    pub(crate) fn of(tensor: &Tensor) -> Self {
        let ty = TensorType::new(tensor.dtype(), tensor.shape()).to_string();
        let is_small = tensor.shape().iter().product::<usize>() <= NUMBERS_MAX;
        let numbers = is_small.then(|| numbers(tensor)).flatten().unwrap_or_default();
        let huge = if tensor.dtype().bits == 16 { 3e4 } else { 1e38 };
        let finite = numbers.iter().map(|x| x.abs()).filter(|x| x.is_finite());
        let small = finite.fold(0.0, f64::max).min(1e30) * 1e-3 + 1e-30;
        let letter = |&x: &f64| match x {
            x if x.is_nan() => 'n',
            x if x == f64::INFINITY => 'P',
            x if x == f64::NEG_INFINITY => 'N',
            x if x >= huge => 'H',
            x if x <= -huge => 'h',
            x if x.abs() <= small => '0',
            x if x > 0.0 => '+',
            _ => '-',
        };
        Self { ty, letters: numbers.iter().take(ELEMENTS_MAX).map(letter).collect() }
    }
}

impl Outcome {
    pub(crate) fn of_error(error: &Error) -> Self {
        Self::Error { kind: error.kind().name().to_owned(), text: error.to_string() }
    }

    /// Returns the name of its class, as the table has it.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Ok(_) => "ok",
            Self::Error { kind, .. } if kind == ErrorKind::Internal.name() => "internal error",
            Self::Error { .. } => "error",
            Self::Panic(_) => "panic",
            Self::AbortedForMemory(_) => "abort for memory",
            Self::Aborted(_) => "abort",
            Self::Crashed(_) => "crash",
            Self::Hung => "hang",
        }
    }

    /// Returns whether no model may have it.
    pub fn is_failure(&self) -> bool {
        !matches!(self.class(), "ok" | "error")
    }

    /// Returns its text.
    pub fn text(&self) -> &str {
        match self {
            Self::Ok(_) => "",
            Self::Error { text, .. } => text,
            Self::Panic(text) | Self::AbortedForMemory(text) | Self::Aborted(text) | Self::Crashed(text) => {
                text
            }
            Self::Hung => "still running",
        }
    }

    /// The verdict on the model: what the command's exit code says; None where it depends on the machine, or on what
    /// kernels a device has.
    fn verdict(&self) -> Option<u8> {
        let Self::Error { kind, .. } = self else {
            return matches!(self, Self::Ok(_)).then_some(0);
        };
        match kind.as_str() {
            "invalid-model" | "unsupported-model" => Some(4),
            "invalid-input" => Some(5),
            "device-lost" | "plugin-failed" | "plugin-poisoned" | "plugin-broken" => Some(8),
            "unsupported-op" | "out-of-memory" | "deadline-exceeded" => None,
            _ => Some(1),
        }
    }

    /// Describes the difference where an input has what this one's constant has. The blame may differ: model or input.
    pub fn difference_given_late(&self, late: &Self, large: bool) -> Option<String> {
        let is_refused = |outcome: &Self| matches!(outcome.verdict(), Some(4 | 5));
        match is_refused(self) && is_refused(late) {
            true => None,
            false => self.difference(late, large),
        }
    }

    /// Describes the difference from another device's outcome. With `large`, results may overflow on one device and not
    /// on the other, as rounding and the order of additions decide.
    pub fn difference(&self, other: &Self, large: bool) -> Option<String> {
        let (mine, others) = (self.verdict()?, other.verdict()?);
        if mine != others {
            return Some(format!("exit code {mine} and {others}: {:?} and {:?}", self.text(), other.text()));
        }
        let (Self::Ok(mine), Self::Ok(others)) = (self, other) else { return None };
        if mine.len() != others.len() {
            return Some(format!("{} and {} results", mine.len(), others.len()));
        }
        mine.iter().zip(others).enumerate().find_map(|(i, (mine, others))| {
            if mine.ty != others.ty {
                return Some(format!("result {i} is {} and {}", mine.ty, others.ty));
            }
            let mut pairs = mine.letters.chars().zip(others.letters.chars());
            let at = pairs.position(|(a, b)| !same_class(a, b, large))?;
            let letter = |classes: &Classes| classes.letters.chars().nth(at).map(words).unwrap_or_default();
            Some(format!("result {i} element {at} is {} and {}", letter(mine), letter(others)))
        })
    }
}

/// Returns whether two letters may be of one result. Where operands are the largest numbers of their type, rounding
/// decides what overflows.
fn same_class(a: char, b: char, large: bool) -> bool {
    let is_large = |x: char| "nPNHh".contains(x);
    let is_finite = |x: char| "+-0Hh".contains(x);
    a == b
        || (a == '0' && is_finite(b))
        || (b == '0' && is_finite(a))
        || (large && is_large(a) && is_large(b))
        || matches!((a, b), ('H', '+') | ('+', 'H') | ('h', '-') | ('-', 'h'))
}

fn words(letter: char) -> &'static str {
    match letter {
        'n' => "NaN",
        'P' => "inf",
        'N' => "-inf",
        'H' => "very large",
        'h' => "very large negative",
        '+' => "positive",
        '-' => "negative",
        _ => "near zero",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ok(values: &[f32]) -> Outcome {
        Outcome::Ok(vec![Classes::of(&Tensor::from_elements(&[values.len()], values).expect("it fits"))])
    }

    fn error(kind: ErrorKind) -> Outcome {
        Outcome::of_error(&Error::new(kind, "no"))
    }

    fn check(a: &Outcome, b: &Outcome, large: bool, same: bool) {
        let difference = a.difference(b, large);
        assert_eq!(difference.is_none(), same, "{a:?} {b:?} {difference:?}");
    }

    #[test]
    fn devices_agree_on_verdicts_and_classes_and_may_differ_in_rounding() {
        check(&ok(&[1.0, -1.0]), &ok(&[1.1, -0.9]), false, true);
        check(&ok(&[1.0, 1e-9]), &ok(&[1.0, -1e-9]), false, true);
        check(&ok(&[1.0, -1.0]), &ok(&[1.0, 1.0]), false, false);
        check(&ok(&[f32::NAN]), &ok(&[0.0]), false, false);
        check(&ok(&[f32::INFINITY]), &ok(&[f32::MAX]), false, false);
        check(&ok(&[f32::INFINITY]), &ok(&[f32::MAX]), true, true);
        check(&ok(&[1.0]), &error(ErrorKind::InvalidInput), false, false);
        check(&ok(&[1.0]), &error(ErrorKind::UnsupportedOp), false, true);
        check(&error(ErrorKind::InvalidModel), &error(ErrorKind::InvalidInput), false, false);
        check(&error(ErrorKind::InvalidModel), &error(ErrorKind::UnsupportedModel), false, true);
        check(&error(ErrorKind::OutOfMemory), &ok(&[1.0]), false, true);
    }

    #[test]
    fn only_results_and_typed_errors_are_no_failures() {
        assert!(!ok(&[1.0]).is_failure());
        assert!(!error(ErrorKind::InvalidModel).is_failure());
        assert!(error(ErrorKind::Internal).is_failure());
        assert!(Outcome::Hung.is_failure());
    }
}
