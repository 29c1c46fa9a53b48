//! MatMulDequantized beside its definition in f64.

use crate::isa::Isa;
use crate::kernels::test_host::{Array, Value, run_with_constants};
use crate::kernels::testing::{Chance, isas};
use devbay_plugin_api::sdk::{DType, I4, I8, U4, U8};

/// A product's weights, elements as numbers.
struct Case {
    dtype: DType,
    k: usize,
    columns: usize,
    block: usize,
    transposed: bool,
    weights: Vec<i32>,
    scales: Vec<f32>,
    /// Empty if there are none.
    zeros: Vec<i32>,
}

/// Zero points of a case: none, one that is the middle of the type's range for all, or others for each block.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Zeros {
    None,
    Middle,
    One,
    Many,
}

impl Case {
    fn of(
        random: &mut Chance,
        dtype: DType,
        [k, columns, block]: [usize; 3],
        transposed: bool,
        zeros: Zeros,
    ) -> Self {
        let levels = 1usize << dtype.bits;
        let low = if dtype == I8 || dtype == I4 { -(levels as i32 / 2) } else { 0 };
        let mut number = || random.below(levels) as i32 + low;
        let n_blocks = if block == 0 { 1 } else { k.div_ceil(block) };
        let n = n_blocks * columns;
        let weights = (0..k * columns).map(|_| number()).collect();
        let zeros = match zeros {
            Zeros::None => Vec::new(),
            Zeros::Middle => vec![low + levels as i32 / 2; n],
            Zeros::One => vec![number()],
            Zeros::Many => (0..n).map(|_| number()).collect(),
        };
        let n_scales = if zeros.len() == 1 { 1 } else { n };
        let scales = random.floats(n_scales, 0.1);
        Self { dtype, k, columns, block, transposed, weights, scales, zeros }
    }

    fn array(&self, shape: &[usize], elements: &[i32]) -> Array {
        let mut bytes = vec![0u8; (elements.len() * usize::from(self.dtype.bits)).div_ceil(8)];
        for (i, &x) in elements.iter().enumerate() {
            match self.dtype.bits {
                4 => bytes[i / 2] |= (x as u8 & 15) << (i % 2 * 4),
                _ => bytes[i] = x as u8,
            }
        }
        Array::raw(self.dtype, shape, &bytes)
    }

    fn weight(&self, term: usize, column: usize) -> f64 {
        let (block, n_blocks) = match self.block {
            0 => (0, 1),
            block => (term / block, self.k.div_ceil(block)),
        };
        let at = if self.transposed { column * n_blocks + block } else { block * self.columns + column };
        let i = if self.transposed { column * self.k + term } else { term * self.columns + column };
        let zero = if self.zeros.is_empty() { 0 } else { self.zeros[at % self.zeros.len()] };
        f64::from(self.weights[i] - zero) * f64::from(self.scales[at % self.scales.len()])
    }

    fn run(
        &self,
        isa: Isa,
        x: &[f32],
        bias: Option<&[f32]>,
        activation: &'static str,
        constants: u64,
    ) -> Vec<f32> {
        let rows = x.len().checked_div(self.k).unwrap_or(2);
        let n_blocks = if self.block == 0 { 1 } else { self.k.div_ceil(self.block) };
        let shape = |rows: usize| if self.transposed { [self.columns, rows] } else { [rows, self.columns] };
        let of_scales = if self.scales.len() == 1 { vec![] } else { shape(n_blocks).to_vec() };
        let inputs = [
            Some(Array::of(&[rows, self.k], x)),
            Some(self.array(&shape(self.k), &self.weights)),
            Some(Array::of(&of_scales, &self.scales)),
            (!self.zeros.is_empty()).then(|| self.array(&of_scales, &self.zeros)),
            bias.map(|bias| Array::of(&[self.columns], bias)),
        ];
        let attrs = [
            ("block_size", Value::Int(self.block as i64)),
            ("transB", Value::Int(self.transposed.into())),
            ("activation", Value::Text(activation)),
        ];
        let output = [Some(Array::empty::<f32>(&[rows, self.columns]))];
        let found = run_with_constants(isa, "MatMulDequantized", &attrs, &inputs, &output, constants);
        found.expect("multiplies")[0].as_ref().expect("a product").elements()
    }

    /// Checks all rows, and that each is the same alone.
    fn check(&self, isa: Isa, x: &[f32], bias: Option<&[f32]>, constants: u64, what: &str) {
        let found = self.run(isa, x, bias, "", constants);
        for (at, &found) in found.iter().enumerate() {
            let (row, column) = (at / self.columns, at % self.columns);
            let terms = (0..self.k).map(|k| f64::from(x[row * self.k + k]) * self.weight(k, column));
            let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
            let bias = bias.map_or(0.0, |bias| f64::from(bias[column]));
            let expected = sum + bias;
            let bound = (size + bias.abs()) * (self.k + 3) as f64 * f64::from(f32::EPSILON);
            assert!((f64::from(found) - expected).abs() <= bound, "{what}: {found}, expected {expected}");
        }
        let last = &x[x.len().saturating_sub(self.k)..];
        if self.k > 0 {
            let alone = self.run(isa, last, bias, "", constants);
            let of_all = &found[found.len() - self.columns..];
            assert!(alone.iter().zip(of_all).all(|(a, b)| a.to_bits() == b.to_bits()), "{what}: alone");
        }
    }
}

/// All of the weights' operands are constant.
const CONSTANT: u64 = 0b1110;

#[test]
fn products_are_those_of_the_definition() {
    let mut random = Chance::new(11);
    let shapes = [
        [1, 1, 0],
        [32, 64, 16],
        [64, 70, 32],
        [100, 7, 32],
        [33, 130, 0],
        [45, 20, 3],
        [47, 33, 64],
        [300, 16, 128],
        [600, 24, 256],
        [1025, 9, 0],
    ];
    for (i, shape) in shapes.into_iter().enumerate() {
        for dtype in [I8, U8, I4, U4] {
            for (j, zeros) in [Zeros::None, Zeros::Middle, Zeros::One, Zeros::Many].into_iter().enumerate() {
                let case = Case::of(&mut random, dtype, shape, (i + j) % 2 == 1, zeros);
                let rows = [1, 3, 9, 13][(i + 2 * j + usize::from(dtype.bits)) % 4];
                let x = random.floats(rows * case.k, 2.0);
                let bias = random.floats(case.columns, 1.0);
                let bias = (j % 2 == 0).then_some(&bias[..]);
                for (isa, constants) in isas().flat_map(|isa| [(isa, 0), (isa, CONSTANT)]) {
                    let what = format!("{isa:?} {dtype:?} {shape:?} {zeros:?} {rows} rows, {constants}");
                    case.check(isa, &x, bias, constants, &what);
                }
            }
        }
    }
}

/// Every number of rows up to those that widen a panel, of panels of every number of vectors.
#[test]
fn rows_and_columns_of_every_number() {
    let mut random = Chance::new(12);
    for rows in [1, 2, 3, 4, 5, 7, 8, 9, 129, 260] {
        for columns in [1, 15, 17, 40, 64, 100] {
            let dtype = if columns % 2 == 0 { U4 } else { I8 };
            let case = Case::of(&mut random, dtype, [50, columns, 16], rows % 2 == 0, Zeros::Many);
            let x = random.floats(rows * case.k, 2.0);
            for isa in isas() {
                case.check(isa, &x, None, CONSTANT, &format!("{isa:?} {rows} by {columns}"));
            }
        }
    }
}

/// Infinities and NaN in a row, and in scales, are what they are in the definition.
#[test]
fn what_is_not_finite_stays() {
    let mut random = Chance::new(13);
    for (dtype, rows) in [(I8, 2), (U4, 2), (U8, 12), (I4, 12)] {
        let mut case = Case::of(&mut random, dtype, [40, 20, 16], false, Zeros::Many);
        // A weight of zero, whose product with an infinity is no number.
        (case.weights[3], case.zeros[3]) = (case.weights[3].max(1), case.weights[3].max(1));
        case.scales[5] = f32::INFINITY;
        case.scales[6] = f32::NAN;
        let mut x = random.floats(rows * 40, 2.0);
        x[0] = f32::INFINITY;
        x[40] = f32::NAN;
        for (isa, constants) in isas().flat_map(|isa| [(isa, 0), (isa, CONSTANT)]) {
            let found = case.run(isa, &x, None, "Relu", constants);
            for (at, &found) in found.iter().enumerate() {
                let (row, column) = (at / 20, at % 20);
                let sum: f64 = (0..40).map(|k| f64::from(x[row * 40 + k]) * case.weight(k, column)).sum();
                let expected = if sum < 0.0 { 0.0 } else { sum };
                let same = if expected.is_finite() {
                    (f64::from(found) - expected).abs() < 1e-3
                } else {
                    f64::from(found) == expected || found.is_nan() && expected.is_nan()
                };
                assert!(same, "{isa:?} {dtype:?} {at}: {found}, expected {expected}");
            }
        }
    }
}

/// An activation that is no few instructions is applied too, behind either kernel.
#[test]
fn activations_follow() {
    let mut random = Chance::new(14);
    for rows in [2, 20] {
        let case = Case::of(&mut random, U8, [30, 37, 0], true, Zeros::Middle);
        let x = random.floats(rows * 30, 0.1);
        for isa in isas() {
            let plain = case.run(isa, &x, None, "", CONSTANT);
            let tanh = case.run(isa, &x, None, "Tanh", CONSTANT);
            let close = |(x, y): (&f32, &f32)| (f64::from(*x).tanh() - f64::from(*y)).abs() < 1e-6;
            assert!(plain.iter().zip(&tanh).all(close), "{isa:?} {rows}");
        }
    }
}

#[test]
fn a_sum_of_nothing_is_its_bias() {
    let mut random = Chance::new(15);
    for dtype in [I8, U4] {
        let case = Case::of(&mut random, dtype, [0, 5, 0], false, Zeros::None);
        for (isa, constants) in isas().flat_map(|isa| [(isa, 0), (isa, CONSTANT)]) {
            let bias = [1.0, 2.0, 3.0, 4.0, 5.0];
            assert_eq!(case.run(isa, &[], Some(&bias), "", constants), [bias, bias].concat());
        }
    }
}
