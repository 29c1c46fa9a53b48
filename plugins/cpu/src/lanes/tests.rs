//! Vectors beside single numbers.

use super::*;
use crate::dispatch;
use crate::kernels::testing::isas;

dispatch! { fn check(bytes: &[u8; 256]) = check_body }

/// Compares each function with what its description says of single numbers.
#[inline(always)]
unsafe fn check_body<A: Arith>(bytes: &[u8; 256]) {
    let n = A::Lanes::N;
    let numbers = [f32::NAN, 0.0, -0.0, 1.5, -2.5, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE];
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let stored = |vector: A::Lanes| {
        let mut values = [7.0; 16];
        // SAFETY: sixteen numbers are enough for every vector.
        unsafe { vector.store(values.as_mut_ptr()) };
        values[..n].to_vec()
    };
    let all = |vector: A::Lanes, expected: f32| {
        let found = stored(vector);
        assert!(found.iter().all(|x| x.to_bits() == expected.to_bits()), "{found:?}, expected {expected}");
    };
    for a in numbers {
        for b in numbers {
            // SAFETY: the caller has the instructions.
            let (x, y) = unsafe { (A::Lanes::splat(a), A::Lanes::splat(b)) };
            all(x.at_least(y), if b > a { b } else { a });
            all(x.at_most(y), if b < a { b } else { a });
            all(x.or_nan(y), if b.is_nan() { b } else { a });
        }
    }
    for first in (0..256).step_by(n) {
        let from = bytes[first..].as_ptr();
        // SAFETY: there is a vector of bytes from `first`, since its length divides 256.
        let (unsigned, signed) = unsafe { (A::Lanes::load_u8(from), A::Lanes::load_i8(from.cast())) };
        let expected =
            |f: fn(u8) -> f32| bytes[first..first + n].iter().map(|&byte| f(byte)).collect::<Vec<_>>();
        assert_eq!(stored(unsigned), expected(f32::from));
        assert_eq!(stored(signed), expected(|byte| f32::from(byte as i8)));
        // SAFETY: as above.
        let [low, high] = unsafe { A::Lanes::load_nibbles(from) };
        assert_eq!(stored(low), expected(|byte| f32::from(byte & 15)));
        assert_eq!(stored(high), expected(|byte| f32::from(byte >> 4)));
    }
    let some: Vec<f32> = (0..n).map(|i| i as f32 + 0.5).collect();
    for count in 0..=n {
        // Exactly as many as may be read.
        let few = some[..count].to_vec();
        // SAFETY: there are `count` numbers, and the caller has the instructions.
        let vector: A::Lanes = unsafe { A::Lanes::load_first(few.as_ptr(), count) };
        let mut expected = vec![0.0; n];
        expected[..count].copy_from_slice(&few);
        assert_eq!(stored(vector), expected);
        let mut written = vec![9.0; n];
        // SAFETY: there is room for a vector, and it has its numbers.
        unsafe { A::Lanes::load(some.as_ptr()).store_first(written.as_mut_ptr(), count) };
        expected[..count].copy_from_slice(&some[..count]);
        expected[count..].fill(9.0);
        assert_eq!(bits(&written), bits(&expected));
    }
    // SAFETY: there is a vector of numbers, and the caller has the instructions.
    let (vector, one) = unsafe { (A::Lanes::load(some.as_ptr()), A::Lanes::splat(1.0)) };
    all(vector.fma_element::<2>(one, one), 3.5);
    all(one.fma(one, one), 2.0);
    let sum: f32 = some.iter().sum();
    assert_eq!(A::Lanes::sums([vector, one, vector, one.sub(one)]), [sum, n as f32, sum, 0.0]);
}

#[test]
fn vectors_do_what_single_numbers_do() {
    let bytes = core::array::from_fn(|i| i as u8);
    for isa in isas() {
        // SAFETY: the processor has the instructions.
        unsafe { check(isa)(&bytes) };
    }
}
