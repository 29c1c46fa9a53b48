//! Products of matrices and of tensors: Gemm, Einsum, MatMulInteger, QLinearMatMul; and determinants.

use super::index::{every, position, word};
use super::quantised::{quantised, scale_of};
use super::*;
use crate::ops::{broadcast_index, random};
use devbay_ops::MICROSOFT_DOMAIN;
use std::collections::BTreeMap;

pub(super) const OPS: &[OpTrials] = &[
    OpTrials::new("Gemm", &[F32, F64, F16, BF16, I32, I64, U32, U64], gemm),
    OpTrials::new("Einsum", NUMBERS, einsum),
    OpTrials::new("Det", FLOATS, det),
    OpTrials { domain: MICROSOFT_DOMAIN, op: "Inverse", dtypes: FLOATS, make: inverse },
    OpTrials::new("MatMulInteger", &[I8, U8], mat_mul_integer),
    OpTrials::new("QLinearMatMul", &[I8, U8], q_linear_mat_mul),
];

/// Rows, the length of the sums, columns.
fn extents(dice: &mut Dice, i: u64) -> (i64, i64, i64) {
    match i {
        0 => (1, 1, 1),
        1 => (3, 67, 5),
        2 => (33, 65, 34),
        _ => (1 + dice.below(9) as i64, 1 + dice.below(40) as i64, 1 + dice.below(20) as i64),
    }
}

pub(super) fn gemm(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let (m, mut k, n) = extents(dice, i);
    if i == 6 {
        // Sums of nothing, so that only the addend is left.
        k = 0;
    }
    let (turns_a, turns_b) = (i % 2 == 1, i % 4 > 1);
    // Whole factors for integers.
    let (alpha, beta): (f32, f32) = match (i % 3, is_float(dtype)) {
        (0, _) => (1.0, 1.0),
        (_, true) => (0.75, -1.3),
        (_, false) => (2.0, 3.0),
    };
    let range = if is_float(dtype) { (-1.0, 1.0) } else { (-9.0, 9.0) };
    let a = random(dtype, dice, &if turns_a { [k, m] } else { [m, k] }, range);
    let b = random(dtype, dice, &if turns_b { [n, k] } else { [k, n] }, range);
    let shapes: [&[i64]; 6] = [&[m, n], &[n], &[m, 1], &[1, n], &[], &[1]];
    let c = shapes.get(i as usize % 7).map(|shape| random(dtype, dice, shape, range));
    let (mut values, mut bounds) = (Vec::new(), Vec::new());
    for at in every(&[m, n]) {
        let product = |p: i64| {
            let from_a = if turns_a { p * m + at[0] } else { at[0] * k + p };
            let from_b = if turns_b { at[1] * k + p } else { p * n + at[1] };
            f64::from(alpha) * a.values[from_a as usize] * b.values[from_b as usize]
        };
        let added = c.as_ref().map(|c| {
            let index = broadcast_index((at[0] * n + at[1]) as usize, &[m, n], &c.shape);
            f64::from(beta) * c.values[index]
        });
        let terms = || (0..k).map(product).chain(added);
        values.push(terms().sum());
        bounds.push(sum_bound(dtype, k as usize + 5, terms().map(f64::abs).sum()));
    }
    let mut attributes =
        vec![("transA", AttrValue::Int(turns_a.into())), ("transB", AttrValue::Int(turns_b.into()))];
    if alpha != 1.0 {
        attributes.extend([("alpha", AttrValue::Float(alpha)), ("beta", AttrValue::Float(beta))]);
    }
    let outputs = vec![Expected::within(dtype, &[m, n], values, bounds)];
    Trial { attributes, inputs: vec![Some(a), Some(b), c], outputs }
}

/// Equations, and the same with a letter for every axis and the output written out. X and Y are the axes
/// of an ellipsis, along which operands are broadcast.
const EQUATIONS: [(&str, &str); 16] = [
    ("i,i->", "i,i->"),
    ("ij,jk->ik", "ij,jk->ik"),
    ("bhqd,bhkd->bhqk", "bhqd,bhkd->bhqk"),
    ("ij,jk", "ij,jk->ik"),
    ("...ij,...jk->...ik", "XYij,XYjk->XYik"),
    ("ii->i", "ii->i"),
    ("ii", "ii->"),
    ("ij,jk,kl->il", "ij,jk,kl->il"),
    ("bij->bji", "bij->bji"),
    ("bn,anm,bm->ba", "bn,anm,bm->ba"),
    ("i,j->ij", "i,j->ij"),
    ("...ij", "XYij->XYij"),
    (" i j , j k -> k i ", "ij,jk->ki"),
    ("ba", "ba->ab"),
    ("ij->", "ij->"),
    ("aB,Ba->aB", "aB,Ba->aB"),
];

fn einsum(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let (said, meant) = EQUATIONS[i as usize];
    let (operands, output) = meant.split_once("->").unwrap_or((meant, ""));
    let mut extents: BTreeMap<char, i64> = BTreeMap::new();
    for label in operands.chars().filter(char::is_ascii_alphabetic) {
        let extent = match (i, label) {
            (1, 'j') => 67,
            (2, 'd') => 64,
            (1 | 2, _) => 2 + dice.below(17) as i64,
            _ => 1 + dice.below(6) as i64,
        };
        extents.insert(label, extent);
    }
    let shape_of = |labels: &str| -> Vec<i64> { labels.chars().map(|label| extents[&label]).collect() };
    // -1, 0 and 1, of which an 8-bit integer holds each sum.
    let inputs: Vec<HostTensor> = operands
        .split(',')
        .enumerate()
        .map(|(n, labels)| {
            let mut shape = shape_of(labels);
            if n == 1 && labels.starts_with('X') {
                shape[0] = 1;
            }
            random(dtype, dice, &shape, (-1.0, 1.0))
        })
        .collect();
    let mut labels = output.to_owned();
    labels.extend(extents.keys().filter(|label| !output.contains(**label)));
    let n_outputs = n_elements(&shape_of(output));
    let n_terms = n_elements(&shape_of(&labels)) / n_outputs;
    let (mut sums, mut magnitudes) = (vec![0.0; n_outputs], vec![0.0; n_outputs]);
    for (at, coordinates) in every(&shape_of(&labels)).enumerate() {
        let factor = |(labels_of, input): (&str, &HostTensor)| {
            let along = |(label, extent): (char, &i64)| coordinates[labels.find(label).unwrap_or(0)] % extent;
            let own: Vec<i64> = labels_of.chars().zip(&input.shape).map(along).collect();
            input.values[position(&own, &input.shape).unwrap_or(0)]
        };
        let term: f64 = operands.split(',').zip(&inputs).map(factor).product();
        sums[at / n_terms] += term;
        magnitudes[at / n_terms] += term.abs();
    }
    let bound = |magnitude: &f64| sum_bound(dtype, n_terms + inputs.len() + 1, *magnitude);
    let bounds = magnitudes.iter().map(bound).collect();
    Trial {
        attributes: vec![("equation", word(said))],
        outputs: vec![Expected::within(dtype, &shape_of(output), sums, bounds)],
        inputs: inputs.into_iter().map(Some).collect(),
    }
}

fn det(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let n = if i == 0 { 1 } else { 1 + i as usize % 6 };
    let batch: Vec<i64> = match i {
        0 => vec![],
        2 => vec![5, 67],
        _ => (0..i % 3).map(|_| 1 + dice.below(4) as i64).collect(),
    };
    let x = random(dtype, dice, &[batch.as_slice(), &[n as i64, n as i64]].concat(), (-2.0, 2.0));
    let (mut values, mut bounds) = (Vec::new(), Vec::new());
    for matrix in x.values.chunks(n * n) {
        values.push(determinant(matrix, n));
        // An elimination with pivots is exact for a matrix that is off by some u of its largest element, times a
        // growth that is below n for matrices this small. By Hadamard's inequality a row that is off by e moves the
        // determinant by at most |e| times the lengths of the other rows.
        let lengths: Vec<f64> =
            matrix.chunks(n).map(|row| row.iter().map(|x| x * x).sum::<f64>().sqrt()).collect();
        let largest = matrix.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
        let others = |row: usize| -> f64 {
            (0..n).filter(|other| *other != row).map(|other| lengths[other]).product()
        };
        let moved = (0..n).map(others).sum::<f64>() * (n as f64).sqrt() * largest;
        bounds.push(sum_bound(dtype, n * n + 2, moved));
    }
    let outputs = vec![Expected::within(dtype, &batch, values, bounds)];
    Trial { attributes: Vec::new(), inputs: vec![Some(x)], outputs }
}

/// Matrices whose diagonal outweighs their rows, so that a rounding moves their inverses little.
fn inverse(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let n = if i == 0 { 1 } else { 1 + i as usize % 5 };
    let batch: Vec<i64> = match i {
        0 => vec![],
        2 => vec![3, 67],
        _ => (0..i % 3).map(|_| 1 + dice.below(4) as i64).collect(),
    };
    let shape = [batch.as_slice(), &[n as i64, n as i64]].concat();
    let random = random(dtype, dice, &shape, (-1.0, 1.0));
    let is_diagonal = |at: usize| (at % (n * n)).is_multiple_of(n + 1);
    let heavier = |(at, x): (usize, &f64)| if is_diagonal(at) { x.signum() * (n + 1) as f64 + x } else { *x };
    let values: Vec<f64> = random.values.iter().enumerate().map(heavier).collect();
    let x = HostTensor::new(dtype, &shape, values);
    let (mut values, mut bounds) = (Vec::new(), Vec::new());
    for matrix in x.values.chunks(n * n) {
        let whole = determinant(matrix, n);
        // By Cramer's rule.
        for at in 0..n * n {
            let (row, col) = (at % n, at / n);
            let is_left = |at: &usize| at / n != row && at % n != col;
            let rest: Vec<f64> = (0..n * n).filter(is_left).map(|at| matrix[at]).collect();
            let sign = if (row + col).is_multiple_of(2) { 1.0 } else { -1.0 };
            values.push(sign * determinant(&rest, n - 1) / whole);
        }
        // Each row outweighs its other elements by at least 1, so the largest sum of a row of the inverse is 1 at most (Varah),
        // and the matrix's is 2 n + 1: the product of both bounds how much a relative error of the matrix grows.
        bounds.extend(std::iter::repeat_n(sum_bound(dtype, n * n + 2, (2 * n + 1) as f64), n * n));
    }
    let outputs = vec![Expected::within(dtype, &shape, values, bounds)];
    Trial { attributes: Vec::new(), inputs: vec![Some(x)], outputs }
}

/// A determinant along its first row.
fn determinant(matrix: &[f64], n: usize) -> f64 {
    if n == 0 {
        return 1.0;
    }
    let along = |column: usize| {
        let rest: Vec<f64> = (n..n * n).filter(|at| at % n != column).map(|at| matrix[at]).collect();
        let sign = if column.is_multiple_of(2) { 1.0 } else { -1.0 };
        sign * matrix[column] * determinant(&rest, n - 1)
    };
    (0..n).map(along).sum()
}

/// Returns the other of the two dtypes of 8 bits.
fn other(dtype: DType) -> DType {
    if dtype == I8 { U8 } else { I8 }
}

/// Two operands of integers and what stands beside them an operand: nothing, a number for all, or one a row or column.
struct Operands {
    a: HostTensor,
    b: HostTensor,
    m: i64,
    n: i64,
    batch: Vec<i64>,
    /// Shapes of the scales and zero points.
    of_a: Vec<i64>,
    of_b: Vec<i64>,
}

fn operands(dtype: DType, dice: &mut Dice, i: u64) -> Operands {
    let (m, k, n) = extents(dice, i);
    let b_dtype = if i.is_multiple_of(2) { dtype } else { other(dtype) };
    let (batch_a, batch_b): (&[i64], &[i64]) = match i % 5 {
        3 => (&[3], &[3]),
        4 => (&[2, 1], &[2, 3]),
        _ => (&[], &[]),
    };
    let a = random(dtype, dice, &[batch_a, &[m, k]].concat(), (-128.0, 255.0));
    let b = random(b_dtype, dice, &[batch_b, &[k, n]].concat(), (-128.0, 255.0));
    // Of matrices it is a vector; of stacks of them it has an axis for each.
    let (of_a, of_b) = match (i % 4 == 3, batch_a.is_empty()) {
        (false, _) => (Vec::new(), Vec::new()),
        (true, true) => (vec![m], vec![n]),
        (true, false) => ([batch_a, &[m, 1]].concat(), [batch_b, &[1, n]].concat()),
    };
    Operands { a, b, m, n, batch: batch_b.to_vec(), of_a, of_b }
}

impl Operands {
    /// Returns the index of an element's zero point, or scale: of a row of `a`, or a column of `b`.
    fn index(of: &[i64], stack: usize, stacks: &[i64], line: i64, lines: i64, own: &[i64]) -> usize {
        match of.len() {
            0 => 0,
            1 => line as usize,
            rank => broadcast_index(stack, stacks, &own[..rank - 2]) * lines as usize + line as usize,
        }
    }

    /// Returns the product of what is left without the zero points: an element with its indices of a's and b's scales.
    fn product(&self, a_zero: &[f64], b_zero: &[f64]) -> Vec<(f64, usize, usize)> {
        let (a, b, k) = (&self.a, &self.b, self.a.shape[self.a.shape.len() - 1]);
        let element = |at: Vec<i64>| {
            let (stack, row, column) = (at[0] as usize, at[1], at[2]);
            let stack_of = |tensor: &HostTensor| {
                broadcast_index(stack, &self.batch, &tensor.shape[..tensor.shape.len() - 2])
            };
            let of_a = Self::index(&self.of_a, stack, &self.batch, row, self.m, &a.shape);
            let of_b = Self::index(&self.of_b, stack, &self.batch, column, self.n, &b.shape);
            let term = |p: i64| {
                let x = a.values[stack_of(a) * (self.m * k) as usize + (row * k + p) as usize];
                let y = b.values[stack_of(b) * (k * self.n) as usize + (p * self.n + column) as usize];
                (x - a_zero[of_a]) * (y - b_zero[of_b])
            };
            ((0..k).map(term).sum(), of_a, of_b)
        };
        every(&[n_elements(&self.batch) as i64, self.m, self.n]).map(element).collect()
    }

    fn shape(&self) -> Vec<i64> {
        [self.batch.as_slice(), &[self.m, self.n]].concat()
    }
}

pub(super) fn mat_mul_integer(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let operands = operands(dtype, dice, i);
    let a_zero = (!i.is_multiple_of(4)).then(|| random(dtype, dice, &operands.of_a, (-128.0, 255.0)));
    let b_zero = (i % 4 > 1).then(|| random(operands.b.dtype, dice, &operands.of_b, (-128.0, 255.0)));
    let values = |zero: &Option<HostTensor>| zero.as_ref().map_or(vec![0.0], |zero| zero.values.clone());
    let product = operands.product(&values(&a_zero), &values(&b_zero));
    let product = product.into_iter().map(|(sum, ..)| sum).collect();
    Trial {
        attributes: Vec::new(),
        outputs: vec![Expected::exact(I32, &operands.shape(), product)],
        inputs: vec![Some(operands.a), Some(operands.b), a_zero, b_zero],
    }
}

fn q_linear_mat_mul(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let operands = operands(dtype, dice, i);
    let y_dtype = if i % 3 == 2 { other(dtype) } else { dtype };
    let scale_dtype = if i < 8 { F32 } else { [F16, BF16, F32][i as usize % 3] };
    let (a_scale, b_scale) =
        (scale_of(scale_dtype, dice, &operands.of_a), scale_of(scale_dtype, dice, &operands.of_b));
    let a_zero = random(dtype, dice, &operands.of_a, (-128.0, 255.0));
    let b_zero = random(operands.b.dtype, dice, &operands.of_b, (-128.0, 255.0));
    let k = operands.a.shape[operands.a.shape.len() - 1] as f64;
    // So that most results are within 8 bits, and some are not.
    let typical = a_scale.values[0] * b_scale.values[0] * k.sqrt() * 120.0;
    let y_scale = HostTensor::new(scale_dtype, &[], vec![typical]);
    let y_zero = random(y_dtype, dice, &[], (-20.0, 140.0));
    let element = |(sum, of_a, of_b): (f64, usize, usize)| {
        let quotient = sum * a_scale.values[of_a] * b_scale.values[of_b] / y_scale.values[0];
        // Four operations in the scales' dtype, one of them a division.
        quantised(y_dtype, quotient, sum_bound(scale_dtype, 8, quotient.abs()), y_zero.values[0])
    };
    let (values, bounds) = operands.product(&a_zero.values, &b_zero.values).into_iter().map(element).unzip();
    let outputs = vec![Expected::within(y_dtype, &operands.shape(), values, bounds)];
    let Operands { a, b, .. } = operands;
    let inputs = [a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero];
    Trial { attributes: Vec::new(), inputs: inputs.into_iter().map(Some).collect(), outputs }
}
