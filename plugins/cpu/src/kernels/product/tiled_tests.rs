//! Products with a constant B beside f64, of numbers and of pairs of bf16, and what a permission to round may change.
//!
//! On processors without the instructions the same products are made of f32, and stay within the same bounds.

use crate::kernels::test_host::{Array, Value, run_permitted};
use crate::kernels::testing::{Chance, isas, rounded};
use devbay_plugin_api::abi::{
    DEVBAY_NUMERICS_BF16, DEVBAY_NUMERICS_F16, DEVBAY_NUMERICS_STRICT, DEVBAY_NUMERICS_TF32,
};

/// A product: the op and its attributes, `[rows, k, columns]`, and the extents of what is added.
struct Case {
    op: &'static str,
    attrs: Vec<(&'static str, Value)>,
    extents: [usize; 3],
    addend: Option<Vec<usize>>,
    transposed: bool,
    beta: f64,
}

impl Case {
    fn matmul(extents: [usize; 3]) -> Self {
        Self { op: "MatMul", attrs: Vec::new(), extents, addend: None, transposed: false, beta: 1.0 }
    }

    fn fused(extents: [usize; 3]) -> Self {
        let attrs = vec![("activation", Value::Text("Relu"))];
        Self { op: "FusedMatMul", attrs, addend: Some(vec![extents[2]]), ..Self::matmul(extents) }
    }

    fn gemm(extents: [usize; 3], addend: &[usize], beta: f64) -> Self {
        let attrs = vec![("transB", Value::Int(1)), ("beta", Value::Float(beta))];
        let addend = Some(addend.to_vec());
        Self { op: "Gemm", attrs, addend, transposed: true, beta, ..Self::matmul(extents) }
    }

    fn is_cut(&self) -> bool {
        self.op == "FusedMatMul"
    }

    /// The result on every instruction set; B is a constant.
    fn found(&self, numerics: u64, [a, b, c]: &[Vec<f32>; 3]) -> Vec<Vec<f32>> {
        let [rows, k, columns] = self.extents;
        let of_b = if self.transposed { [columns, k] } else { [k, columns] };
        let addend = self.addend.as_ref().map(|extents| Array::of(extents, c));
        let mut inputs = vec![Some(Array::of(&[rows, k], a)), Some(Array::of(&of_b, b))];
        inputs.extend(addend.map(Some));
        let y = [Some(Array::empty::<f32>(&[rows, columns]))];
        let run = |isa| {
            let found = run_permitted(isa, numerics, self.op, &self.attrs, &inputs, &y, 2);
            found.expect("a product")[0].as_ref().expect("a result").elements()
        };
        isas().map(run).collect()
    }

    /// The result, and the sum of its terms without their signs.
    fn exact(&self, [a, b, c]: &[Vec<f32>; 3]) -> Vec<[f64; 2]> {
        let [rows, k, columns] = self.extents;
        let added = |row: usize, column: usize| match self.addend.as_deref() {
            None => 0.0,
            Some([1]) => f64::from(c[0]),
            Some([n]) if *n == columns => f64::from(c[column]),
            Some([_, 1]) => f64::from(c[row]),
            Some(_) => f64::from(c[row * columns + column]),
        };
        let element = |at: usize| {
            let (row, column) = (at / columns, at % columns);
            let mut sums = [self.beta * added(row, column), (self.beta * added(row, column)).abs()];
            for i in 0..k {
                let b = b[if self.transposed { column * k + i } else { i * columns + column }];
                let term = f64::from(a[row * k + i]) * f64::from(b);
                sums = [sums[0] + term, sums[1] + term.abs()];
            }
            if self.is_cut() { [sums[0].max(0.0), sums[1]] } else { sums }
        };
        (0..rows * columns).map(element).collect()
    }

    fn operands(&self, chance: &mut Chance) -> [Vec<f32>; 3] {
        let [rows, k, columns] = self.extents;
        let n_addend = self.addend.iter().flatten().product();
        [rows * k, k * columns, n_addend].map(|n| chance.floats(n, 1.0))
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    // Tiles of every number of rows, panels of every number of vectors and of half a vector, and odd numbers of terms.
    for (i, rows) in (1..=13).chain([97, 100, 193]).enumerate() {
        let columns = [1, 8, 16, 17, 24, 40, 48, 50, 64, 72, 100, 129][i % 12];
        cases.push(Case::matmul([rows, [2, 3, 33, 128][i % 4], columns]));
        cases.push(Case::fused([rows, 31 + i, columns]));
        cases.push(Case::gemm([rows, 20 + i, columns], &[rows, columns], 1.0));
    }
    // More terms than a panel has at once.
    cases.push(Case::fused([7, 5001, 33]));
    cases.push(Case::gemm([5, 12, 70], &[1], 1.0));
    cases.push(Case::gemm([5, 12, 70], &[5, 1], 1.0));
    cases.push(Case::gemm([5, 12, 70], &[70], 0.5));
    cases.push(Case::gemm([5, 12, 70], &[5, 70], -2.0));
    cases
}

/// Rounding of sums in f32, as a share of the sum of the terms' sizes.
const SUMS: f64 = 1e-5;

fn check(case: &Case, found: &[f32], expected: &[[f64; 2]], bound: f64) {
    for (at, (found, [sum, size])) in found.iter().zip(expected).enumerate() {
        let off = (f64::from(*found) - sum).abs();
        assert!(
            off <= bound * size,
            "{} {:?}: {at}: {found} for {sum}, off by {off:e}",
            case.op,
            case.extents
        );
    }
}

#[test]
fn rounded_inputs_are_all_that_a_permission_changes() {
    let mut chance = Chance::new(43);
    for case in cases() {
        let operands = case.operands(&mut chance);
        let exact = case.exact(&operands);
        // Two inputs, each off by 2^-8 of it at most: half a unit of eight bits.
        for found in case.found(DEVBAY_NUMERICS_BF16, &operands) {
            check(&case, &found, &exact, 1.01 / 128.0 + SUMS);
        }
        let strict = case.found(DEVBAY_NUMERICS_STRICT, &operands);
        strict.iter().for_each(|found| check(&case, found, &exact, SUMS));
        // What is permitted but not used.
        assert_eq!(case.found(DEVBAY_NUMERICS_TF32 | DEVBAY_NUMERICS_F16, &operands), strict);
        // Of numbers that are rounded already, only the sums round.
        let [a, b, c] = operands;
        let near = [a.into_iter().map(rounded).collect(), b.into_iter().map(rounded).collect(), c];
        let exact = case.exact(&near);
        for found in case.found(DEVBAY_NUMERICS_BF16, &near) {
            check(&case, &found, &exact, SUMS);
        }
    }
}

#[test]
fn what_is_not_finite_is_seen_by_its_row_or_column() {
    let mut chance = Chance::new(47);
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for side in 0..2 {
            let case = Case::matmul([9, 37, 50]);
            let mut operands = case.operands(&mut chance);
            let at = chance.below(operands[side].len());
            operands[side][at] = special;
            let expected = case.exact(&operands);
            let found = [DEVBAY_NUMERICS_BF16, DEVBAY_NUMERICS_STRICT]
                .map(|numerics| case.found(numerics, &operands));
            for found in found.iter().flatten() {
                for (at, (&found, &[expected, _])) in found.iter().zip(&expected).enumerate() {
                    let same = found.is_nan() == expected.is_nan()
                        && found.is_finite() == expected.is_finite()
                        && (expected.is_nan() || expected.is_finite() || f64::from(found) == expected);
                    assert!(same, "{special}: {at}: {found} for {expected}");
                }
            }
        }
    }
}

#[test]
fn subnormal_weights_are_zeros_of_their_sign() {
    let case = Case::matmul([1, 1, 4]);
    let least = f32::MIN_POSITIVE;
    let below = f32::from_bits(least.to_bits() - 1);
    for factor in [1.0, -1.0, f32::MAX] {
        let operands = [vec![factor], vec![below, -below, least, -least], Vec::new()];
        for found in case.found(DEVBAY_NUMERICS_STRICT, &operands) {
            // A sum that begins with a zero has its sign in common with the product, or is a positive zero.
            assert!(found[..2].iter().all(|&y| y == 0.0), "{found:?}");
            assert_eq!(found[2..], [least * factor, -least * factor]);
        }
    }
}

#[test]
fn numbers_beyond_the_range_of_bf16_become_infinite_and_denormal_ones_zero() {
    let case = Case::matmul([2, 3, 20]);
    // The middle between the largest number and the next power of two, and what is just below it.
    let (beyond, below) = (f32::from_bits(0x7f7f_8000), f32::from_bits(0x7f7f_7fff));
    let mut operands = case.operands(&mut Chance::new(53));
    operands[0] = vec![beyond, 0.0, 0.0, below, f32::from_bits(1), 0.0];
    operands[1] = vec![1.0; 60];
    for (isa, found) in isas().zip(case.found(DEVBAY_NUMERICS_BF16, &operands)) {
        #[cfg(target_arch = "x86_64")]
        let rounds = isa.multiplies_pairs();
        #[cfg(not(target_arch = "x86_64"))]
        let rounds = false;
        let (first, second) = found.split_at(20);
        let largest = if rounds { f32::from_bits(0x7f7f_0000) } else { below };
        let expected = [if rounds { f32::INFINITY } else { beyond }, largest];
        assert!(
            first.iter().all(|&y| y == expected[0]) && second.iter().all(|&y| y == expected[1]),
            "{isa:?}: {found:?}"
        );
    }
}
