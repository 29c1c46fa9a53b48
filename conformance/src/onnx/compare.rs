//! Comparison of a result with a node test's expectation: floating-point numbers within its tolerance, as NumPy's
//! `allclose` has it, everything else to the bit.

use devbay_host::internals::core::tensor::{BF16, F16, F32, F64};
use devbay_host::{Tensor, TensorType};
use half::{bf16, f16};

/// Maximum error of a number: `|found - expected| <= absolute + relative * |expected|`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tolerance {
    pub relative: f64,
    pub absolute: f64,
}

/// Says what differs, if something does.
pub(crate) fn difference(found: &Tensor, expected: &Tensor, tolerance: Tolerance) -> Option<String> {
    let ty = |tensor: &Tensor| TensorType::new(tensor.dtype(), tensor.shape());
    if found.dtype() != expected.dtype() || found.shape() != expected.shape() {
        return Some(format!("expected {}, found {}", ty(expected), ty(found)));
    }
    let (Some(found_numbers), Some(numbers)) = (numbers(found), numbers(expected)) else {
        // Elements below a byte need not fill the last one: the bits behind them belong to no element.
        let n_bits = found.shape().iter().product::<usize>() * usize::from(found.dtype().bits);
        let own = |at: usize, byte: u8| match n_bits.saturating_sub(8 * at) {
            n @ 1..8 => byte & ((1 << n) - 1),
            _ => byte,
        };
        let (found, expected) = (found.bytes(), expected.bytes());
        let at = (0..expected.len()).find(|&at| own(at, found[at]) != own(at, expected[at]))?;
        let (found, expected) = (own(at, found[at]), own(at, expected[at]));
        return Some(format!("byte {at} is 0x{found:02x}, expected 0x{expected:02x}"));
    };
    let within = |(&found, &expected): (&f64, &f64)| {
        found == expected
            || (found.is_nan() && expected.is_nan())
            || (found - expected).abs() <= tolerance.absolute + tolerance.relative * expected.abs()
                && expected.is_finite()
    };
    let wrong = found_numbers.iter().zip(&numbers).position(|pair| !within(pair))?;
    let n = found_numbers.iter().zip(&numbers).filter(|pair| !within(*pair)).count();
    Some(format!(
        "{n} of {} elements differ, the first at {wrong}: expected {}, found {}",
        numbers.len(),
        numbers[wrong],
        found_numbers[wrong]
    ))
}

/// Elements as numbers; None for those that are compared to the bit.
pub(crate) fn numbers(tensor: &Tensor) -> Option<Vec<f64>> {
    match tensor.dtype() {
        F32 => tensor.elements::<f32>().map(|v| v.iter().map(|&x| f64::from(x)).collect()),
        F64 => tensor.elements::<f64>().map(<[f64]>::to_vec),
        F16 => Some(bytemuck::cast_slice(tensor.bytes()).iter().map(|x: &f16| x.to_f64()).collect()),
        BF16 => Some(bytemuck::cast_slice(tensor.bytes()).iter().map(|x: &bf16| x.to_f64()).collect()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use devbay_host::internals::core::tensor::I4;

    const TOLERANCE: Tolerance = Tolerance { relative: 1e-3, absolute: 1e-7 };

    fn check(found: &[f32], expected: &[f32], same: bool) {
        let tensor = |values: &[f32]| Tensor::from_elements(&[values.len()], values).expect("it fits");
        let difference = difference(&tensor(found), &tensor(expected), TOLERANCE);
        assert_eq!(difference.is_none(), same, "{found:?} {expected:?} {difference:?}");
    }

    #[test]
    fn numbers_are_within_the_tolerance_of_each_element() {
        check(&[1000.9, 1.0], &[1000.0, 1.0], true);
        check(&[1001.1, 1.0], &[1000.0, 1.0], false);
        // The largest element does not excuse a small one.
        check(&[1000.0, 1.1], &[1000.0, 1.0], false);
        check(&[f32::NAN, f32::INFINITY], &[f32::NAN, f32::INFINITY], true);
        check(&[1.0], &[f32::INFINITY], false);
        check(&[f32::INFINITY], &[f32::MAX], false);
        check(&[f32::NAN], &[1.0], false);
        check(&[1.0], &[1.0, 1.0], false);
    }

    #[test]
    fn bits_behind_the_last_element_are_not_compared() {
        let tensor = |bytes: &[u8]| Tensor::from_bytes(I4, &[3], bytes).expect("it fits");
        assert_eq!(difference(&tensor(&[0x21, 0xf3]), &tensor(&[0x21, 0x03]), TOLERANCE), None);
        assert!(difference(&tensor(&[0x21, 0xf4]), &tensor(&[0x21, 0x03]), TOLERANCE).is_some());
    }

    #[test]
    fn other_elements_are_equal() {
        let tensor = |values: &[i64]| Tensor::from_elements(&[values.len()], values).expect("it fits");
        assert!(difference(&tensor(&[100_000]), &tensor(&[100_001]), TOLERANCE).is_some());
        assert!(difference(&tensor(&[7, -1]), &tensor(&[7, -1]), TOLERANCE).is_none());
    }
}
