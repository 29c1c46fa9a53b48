//! NaN, infinities, zeros, subnormal and the largest numbers through activations, products and convolutions with what is
//! fused to them, elementwise ops among others, pools, reductions and Softmax.
//!
//! Each result is of the class that the definition in f64 says: no number, an infinity, or a finite number within its
//! bound. Formulas are taken by the word: HardSwish of minus infinity is `-inf * 0`, which is no number. Zeros of either
//! sign are one class, since `max(-0, 0)` may be either. Where finite terms of a sum together are beyond the largest
//! number, the order in which they are added decides, and anything is right ([`OPEN`]). Subnormal numbers may be taken
//! for zeros.

use super::elementwise::attributes;
use super::index::{every, position, word};
use super::*;
use crate::functions::{self, FUNCTIONS, Function};
use crate::ops::{flush, random};
use devbay_ops::DEVBAY_DOMAIN;

/// Ops beside those of one number.
pub(super) const OTHERS: &[(&str, &str)] = &[
    ("", "MatMul"),
    ("", "Gemm"),
    ("", "Conv"),
    ("", "MaxPool"),
    ("", "ReduceMax"),
    ("", "ReduceMin"),
    ("", "ReduceSum"),
    ("", "Softmax"),
    ("", "LogSoftmax"),
    (DEVBAY_DOMAIN, "FusedConv"),
    (DEVBAY_DOMAIN, "FusedElementwise"),
    (DEVBAY_DOMAIN, "FusedGemm"),
    (DEVBAY_DOMAIN, "FusedMatMul"),
    (DEVBAY_DOMAIN, "MatMulDequantized"),
    (DEVBAY_DOMAIN, "MatMulIntegerToFloat"),
    (DEVBAY_DOMAIN, "NhwcFusedConv"),
    (DEVBAY_DOMAIN, "NhwcMaxPool"),
];

/// The bound of what may be anything.
pub(super) const OPEN: f64 = f64::INFINITY;

/// An op of two operands.
type Pair = (&'static str, fn(f64, f64) -> f64);

const PAIRS: &[Pair] = &[
    ("Add", |a, b| a + b),
    ("Div", |a, b| a / b),
    ("Max", |a, b| -smaller(-a, -b)),
    ("Min", smaller),
    ("Mul", |a, b| a * b),
    ("Sub", |a, b| a - b),
];

fn smaller(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }
}

/// The activations of convolutions and products: name, parameters, the function, and how much steeper it is than the
/// identity.
type Activation = (&'static str, &'static [f32], &'static str, [f64; 2], f64);

const ACTIVATIONS: &[Activation] = &[
    ("Relu", &[], "Relu", [0.0; 2], 1.0),
    ("LeakyRelu", &[0.2], "LeakyRelu", [0.2f32 as f64, 0.0], 1.0),
    ("Clip", &[-0.5, 0.75], "Clip", [-0.5, 0.75], 1.0),
    ("Clip", &[0.0, f32::INFINITY], "Clip", [0.0, f64::INFINITY], 1.0),
    ("HardSigmoid", &[0.3, 0.4], "HardSigmoid", [0.3f32 as f64, 0.4f32 as f64], 0.3),
    ("HardSwish", &[], "HardSwish", [0.0; 2], 1.5),
    ("Sigmoid", &[], "Sigmoid", [0.0; 2], 0.25),
    ("Tanh", &[], "Tanh", [0.0; 2], 1.0),
    ("Silu", &[], "Swish", [1.0, 0.0], 1.1),
    ("", &[], "", [0.0; 2], 1.0),
];

/// Returns the activation of the `i`-th trial, of which each `families` have one shape after the other.
fn activation_of(i: usize, families: usize) -> &'static Activation {
    match i / families {
        0 => &ACTIVATIONS[0],
        1 => &ACTIVATIONS[2],
        turn => &ACTIVATIONS[(i + turn) % ACTIVATIONS.len()],
    }
}

/// Returns the trials of an op in one dtype; none if it is not judged here.
pub(super) fn trials(domain: &str, op: &str, dtype: DType) -> Vec<Trial> {
    let many = |n: usize, make: fn(DType, &mut Dice, usize) -> Trial| {
        (0..n).map(|i| make(dtype, &mut Dice::new(9000 + i as u64), i)).collect()
    };
    // Every activation in every family of kernels; of the rarer dtypes, which families share, each once or more.
    let of =
        |families: usize| if dtype == F32 { families * ACTIVATIONS.len() } else { 3 * ACTIVATIONS.len() };
    match op {
        "Conv" => many(CONVOLUTIONS.len(), |dtype, dice, i| convolution(dtype, dice, i, None)),
        "FusedConv" => many(of(CONVOLUTIONS.len()), |dtype, dice, i| {
            convolution(dtype, dice, i, Some(activation_of(i, CONVOLUTIONS.len())))
        }),
        "NhwcFusedConv" => many(of(CONVOLUTIONS.len()), |dtype, dice, i| {
            let activation = Some(activation_of(i, CONVOLUTIONS.len()));
            convolution(dtype, dice, i, activation).channels_last(&[0, 3])
        }),
        "NhwcMaxPool" => many(3, |dtype, dice, i| max_pool(dtype, dice, i).channels_last(&[0])),
        "MatMul" => many(PRODUCTS.len(), |dtype, dice, i| product(dtype, dice, i, "MatMul", None)),
        "Gemm" => many(PRODUCTS.len(), |dtype, dice, i| product(dtype, dice, i, "Gemm", None)),
        "FusedMatMul" => many(of(PRODUCTS.len()), |dtype, dice, i| {
            product(dtype, dice, i, "MatMul", Some(activation_of(i, PRODUCTS.len())))
        }),
        "FusedGemm" => many(of(PRODUCTS.len()), |dtype, dice, i| {
            product(dtype, dice, i, "Gemm", Some(activation_of(i, PRODUCTS.len())))
        }),
        "MatMulDequantized" if dtype == F32 => many(of(PRODUCTS.len()), |_, dice, i| {
            dequantised_product(dice, i, activation_of(i, PRODUCTS.len()))
        }),
        "MatMulDequantized" => Vec::new(),
        "MatMulIntegerToFloat" if dtype == F32 => {
            many(of(PRODUCTS.len()), |_, dice, i| integer_product(dice, i, activation_of(i, PRODUCTS.len())))
        }
        "MatMulIntegerToFloat" => Vec::new(),
        "FusedElementwise" if dtype == F32 => {
            let fused =
                FUNCTIONS.iter().filter(|of| of.formula().is_some_and(|formula| formula.row.is_fused));
            let alone = fused.flat_map(|of| LENGTHS.iter().map(|&n| among_others(of, n)));
            alone.chain(PAIRS.iter().map(|(op, f)| pair_among_others(op, *f))).collect()
        }
        "FusedElementwise" => Vec::new(),
        "MaxPool" => many(3, max_pool),
        "ReduceMax" | "ReduceMin" | "ReduceSum" | "Softmax" | "LogSoftmax" => {
            LINES.iter().map(|&n| lines(dtype, op, n)).collect()
        }
        _ => {
            let found = functions::of_op(domain, op).filter(|of| of.has_edges);
            found.flat_map(|of| LENGTHS.iter().map(move |&n| alone(dtype, of, n))).collect()
        }
    }
}

/// Lengths with a tail for every width of SIMD.
const LENGTHS: [i64; 6] = [1, 7, 16, 33, 131, 1030];
/// Lengths of lines.
const LINES: [i64; 5] = [1, 5, 17, 130, 1200];

fn largest(dtype: DType) -> f64 {
    match dtype {
        F16 => f64::from(half::f16::MAX),
        BF16 => f64::from(half::bf16::MAX),
        F64 => f64::MAX,
        _ => f64::from(f32::MAX),
    }
}

/// Returns numbers that are not ordinary, and the borders of those that are.
fn specials(dtype: DType) -> Vec<f64> {
    let (largest, smallest) = (largest(dtype), smallest(dtype));
    let numbers = vec![
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        largest,
        -largest,
        0.0,
        -0.0,
        smallest,
        -smallest,
        smallest / 2.0,
        -smallest / 2.0,
        0.5,
        -0.25,
    ];
    HostTensor::new(dtype, &[numbers.len() as i64], numbers).values
}

/// As many, in turn; the first is no number.
fn in_turn(dtype: DType, n: i64) -> HostTensor {
    HostTensor::new(dtype, &[n], specials(dtype).into_iter().cycle().take(n as usize).collect())
}

/// Ordinary numbers with a special one here and there.
fn sprinkled(dtype: DType, dice: &mut Dice, shape: &[i64], every: usize) -> HostTensor {
    let mut tensor = random(dtype, dice, shape, (-1.0, 1.0));
    let specials = specials(dtype);
    let first = dice.below(every as u64) as usize;
    for (k, value) in tensor.values.iter_mut().skip(first).step_by(every).enumerate() {
        *value = specials[(first + k) % specials.len()];
    }
    tensor
}

/// Of functions that are each one operation or an approximation; `flushed` is what a device gives that takes subnormal
/// operands for zeros.
fn calculated(dtype: DType, shape: &[i64], values: Vec<f64>, flushed: Vec<f64>) -> Expected {
    let in_range = |values: Vec<f64>| values.into_iter().map(|value| in_range(dtype, value)).collect();
    let expected = Expected::rounded(dtype, shape, values, Rounding::Function);
    Expected { flushed: Some(in_range(flushed)), ..expected }
}

fn alone(dtype: DType, function: &Function, n: i64) -> Trial {
    let x = in_turn(dtype, n);
    let values = x.values.iter().map(|&x| function.of(x)).collect();
    let flushed = x.values.iter().map(|&x| function.of(flush(dtype, x))).collect();
    let outputs = vec![calculated(dtype, &[n], values, flushed)];
    // Those of Clip are operands.
    let limits = function.params.map(|limit| HostTensor::new(dtype, &[], vec![limit.into()]));
    let limits = limits.into_iter().filter(|_| function.name == "Clip").map(Some);
    let inputs = std::iter::once(Some(x)).chain(limits).collect();
    Trial { attributes: attributes(function), inputs, outputs }
}

/// `-f(-x)`.
fn among_others(function: &Function, n: i64) -> Trial {
    let x = in_turn(F32, n);
    let values = x.values.iter().map(|&x| -function.of(-x)).collect();
    let flushed = x.values.iter().map(|&x| -function.of(-flush(F32, x))).collect();
    let steps =
        [("Neg", [0, 0], [0.0; 2]), (function.name, [1, 1], function.params), ("Neg", [2, 2], [0.0; 2])];
    let outputs = vec![calculated(F32, &[n], values, flushed)];
    Trial { attributes: fused(&steps), inputs: vec![Some(x)], outputs }
}

/// `-f(-x, -y)`, each number with each.
fn pair_among_others(name: &'static str, f: fn(f64, f64) -> f64) -> Trial {
    let numbers = specials(F32);
    let n = numbers.len() as i64;
    let all = |change: fn(DType, f64) -> f64| -> Vec<f64> {
        let pairs = numbers.iter().flat_map(|x| numbers.iter().map(move |y| (*x, *y)));
        pairs.map(|(x, y)| -f(-change(F32, x), -change(F32, y))).collect()
    };
    let steps = [
        ("Neg", [0, 0], [0.0; 2]),
        ("Neg", [1, 1], [0.0; 2]),
        (name, [2, 3], [0.0; 2]),
        ("Neg", [4, 4], [0.0; 2]),
    ];
    let outputs = vec![calculated(F32, &[n, n], all(|_, x| x), all(flush))];
    let operand = |shape: &[i64]| Some(HostTensor::new(F32, shape, numbers.clone()));
    Trial { attributes: fused(&steps), inputs: vec![operand(&[n, 1]), operand(&[1, n])], outputs }
}

/// Returns the attributes of a FusedElementwise.
fn fused(steps: &[(&'static str, [i64; 2], [f32; 2])]) -> Vec<(&'static str, AttrValue)> {
    vec![
        ("ops", AttrValue::Strings(steps.iter().map(|step| step.0.to_owned()).collect())),
        ("operands", AttrValue::Ints(steps.iter().flat_map(|step| step.1).collect())),
        ("params", AttrValue::Floats(steps.iter().flat_map(|step| step.2).collect())),
    ]
}

/// A sum under way: of all terms, of the magnitudes of the finite ones, and how many there are.
#[derive(Clone, Copy, Default)]
struct Sum {
    all: f64,
    magnitude: f64,
    n: usize,
}

impl Sum {
    fn add(&mut self, term: f64) {
        self.all += term;
        self.magnitude += if term.is_finite() { term.abs() } else { 0.0 };
        self.n += 1;
    }
}

/// Applies an activation to sums.
fn finished(dtype: DType, shape: &[i64], sums: &[Sum], activation: Option<&Activation>) -> Expected {
    let none = &ACTIVATIONS[ACTIVATIONS.len() - 1];
    let (_, _, name, params, slope) = activation.unwrap_or(none);
    let f = FUNCTIONS.iter().find(|function| function.name == *name).map(|function| function.f);
    let of = |sum: &Sum| f.map_or(sum.all, |f| f(sum.all, *params));
    let values: Vec<f64> = sums.iter().map(of).collect();
    let bound = |(sum, value): (&Sum, &f64)| match sum.magnitude > largest(dtype) * 0.999 {
        true => OPEN,
        false => slope * sum_bound(dtype, sum.n + 3, sum.magnitude) + Rounding::Function.bound(dtype, *value),
    };
    let bounds = sums.iter().zip(&values).map(bound).collect();
    Expected::within(dtype, shape, values, bounds)
}

fn activated(
    mut attributes: Vec<(&'static str, AttrValue)>,
    activation: Option<&Activation>,
) -> Vec<(&'static str, AttrValue)> {
    if let Some((name, params, ..)) = activation.filter(|activation| !activation.0.is_empty()) {
        attributes.push(("activation", word(name)));
        attributes.push(("activation_params", AttrValue::Floats(params.to_vec())));
    }
    attributes
}

/// A convolution: extents of the image and of the weights, groups, stride and pads of every axis.
type Convolution = (&'static [i64], &'static [i64], i64, i64, i64);

/// Many pixels and few, more terms than a block has, pointwise, grouped; depthwise by windows that overlap, in few rows, that
/// do not, and of other sizes; of one and of three dimensions.
const CONVOLUTIONS: &[Convolution] = &[
    (&[2, 3, 9, 11], &[5, 3, 3, 3], 1, 1, 1),
    (&[1, 3, 5, 7], &[20, 3, 3, 3], 1, 1, 1),
    (&[1, 40, 12, 13], &[17, 40, 3, 3], 1, 1, 1),
    (&[1, 9, 10, 13], &[7, 9, 1, 1], 1, 1, 0),
    (&[1, 70, 3, 5], &[33, 70, 1, 1], 1, 1, 0),
    (&[1, 6, 9, 12], &[4, 3, 3, 3], 2, 1, 1),
    (&[2, 3, 6, 17], &[3, 1, 3, 3], 3, 1, 1),
    (&[1, 3, 3, 9], &[3, 1, 3, 3], 3, 1, 1),
    (&[1, 2, 9, 25], &[2, 1, 5, 5], 2, 1, 2),
    (&[1, 2, 9, 21], &[2, 1, 3, 3], 2, 2, 1),
    (&[1, 2, 9, 11], &[2, 1, 4, 3], 2, 1, 1),
    (&[1, 4, 50], &[6, 4, 3], 1, 1, 1),
    (&[1, 2, 4, 5, 6], &[3, 2, 2, 2, 2], 1, 1, 0),
];

fn convolution(dtype: DType, dice: &mut Dice, i: usize, activation: Option<&Activation>) -> Trial {
    let (image, weights, groups, stride, pad) = CONVOLUTIONS[i % CONVOLUTIONS.len()];
    let kernel = &weights[2..];
    let spatial = image[2..].iter().zip(kernel).map(|(n, taps)| (n + 2 * pad - taps) / stride + 1);
    let shape: Vec<i64> = [image[0], weights[0]].into_iter().chain(spatial).collect();
    let x = sprinkled(dtype, dice, image, 41);
    // Weights are finite and none is zero: not every device computes a zero around the image times an infinity.
    let mut w = random(dtype, dice, weights, (0.1, 1.0));
    w.values.iter_mut().skip(1).step_by(2).for_each(|weight| *weight = -*weight);
    let bias = (i % 3 != 1).then(|| sprinkled(dtype, dice, &[weights[0]], 7));
    let z = (activation.is_some() && i.is_multiple_of(2)).then(|| sprinkled(dtype, dice, &shape, 11));
    let per_group = weights[0] / groups;
    let mut sums = vec![Sum::default(); n_elements(&shape)];
    for (sum, out) in sums.iter_mut().zip(every(&shape)) {
        for tap in every(kernel) {
            let from: Vec<i64> = (0..kernel.len()).map(|k| out[2 + k] * stride - pad + tap[k]).collect();
            for channel in 0..weights[1] {
                let of_group = out[1] / per_group * weights[1] + channel;
                let at = position(&[&[out[0], of_group][..], &from].concat(), image);
                let weight = position(&[&[out[1], channel][..], &tap].concat(), weights);
                if let (Some(at), Some(weight)) = (at, weight) {
                    sum.add(x.values[at] * w.values[weight]);
                }
            }
        }
        bias.iter().for_each(|bias| sum.add(bias.values[out[1] as usize]));
    }
    if let Some(z) = &z {
        sums.iter_mut().zip(&z.values).for_each(|(sum, z)| sum.add(*z));
    }
    let n_spatial = kernel.len();
    let attributes = vec![
        ("group", AttrValue::Int(groups)),
        ("strides", AttrValue::Ints(vec![stride; n_spatial])),
        ("pads", AttrValue::Ints(vec![pad; 2 * n_spatial])),
    ];
    let outputs = vec![finished(dtype, &shape, &sums, activation)];
    let added = activation.is_some().then_some(z);
    Trial {
        attributes: activated(attributes, activation),
        inputs: [Some(x), Some(w), bias].into_iter().chain(added).collect(),
        outputs,
    }
}

/// Rows, terms and columns of products.
const PRODUCTS: &[[i64; 3]] = &[
    [1, 8, 8],
    [1, 16, 16],
    [1, 32, 32],
    [5, 7, 19],
    [33, 300, 50],
    [3, 5, 3],
    [8, 4, 64],
    [1, 64, 1],
    [17, 33, 130],
];

fn product(dtype: DType, dice: &mut Dice, i: usize, op: &str, activation: Option<&Activation>) -> Trial {
    let [m, k, n] = PRODUCTS[i % PRODUCTS.len()];
    let (mut a, mut b) =
        (random(dtype, dice, &[m, k], (-1.0, 1.0)), random(dtype, dice, &[k, n], (-1.0, 1.0)));
    let specials = specials(dtype);
    let turn = i / PRODUCTS.len() + i;
    // A special number in each row of one operand, or in each column of the other.
    match turn % 3 {
        0 | 1 => (0..m).for_each(|row| {
            a.values[(row * k + row % k) as usize] = specials[(turn + row as usize) % specials.len()];
        }),
        _ => (0..n).for_each(|col| {
            b.values[(col % k * n + col) as usize] = specials[(turn + col as usize) % specials.len()];
        }),
    }
    let is_gemm = op == "Gemm";
    let added = (is_gemm || activation.is_some()) && i % 4 != 1;
    let c = added.then(|| sprinkled(dtype, dice, &[n], 5));
    let mut sums = vec![Sum::default(); (m * n) as usize];
    for (at, sum) in sums.iter_mut().enumerate() {
        let (row, col) = (at as i64 / n, at as i64 % n);
        (0..k).for_each(|p| sum.add(a.values[(row * k + p) as usize] * b.values[(p * n + col) as usize]));
        c.iter().for_each(|c| sum.add(c.values[col as usize]));
    }
    let mut attributes = Vec::new();
    if is_gemm && turn % 2 == 1 {
        let turned = every(&[n, k]).map(|at| b.values[(at[1] * n + at[0]) as usize]).collect();
        b = HostTensor::new(dtype, &[n, k], turned);
        attributes.push(("transB", AttrValue::Int(1)));
    }
    let outputs = vec![finished(dtype, &[m, n], &sums, activation)];
    let inputs = [Some(a), Some(b)].into_iter().chain(added.then_some(c)).collect();
    Trial { attributes: activated(attributes, activation), inputs, outputs }
}

/// A product of integers, with special numbers among the scales and the biases; some sums are 0.
fn integer_product(dice: &mut Dice, i: usize, activation: &Activation) -> Trial {
    let [m, k, n] = PRODUCTS[i % PRODUCTS.len()];
    let mut a = random(U8, dice, &[m, k], (0.0, 255.0));
    let b = random(I8, dice, &[k, n], (-128.0, 127.0));
    a.values[..k as usize].fill(0.0);
    let scale = match i % 3 {
        0 => HostTensor::new(F32, &[], vec![specials(F32)[(i / 3) % specials(F32).len()]]),
        _ => sprinkled(F32, dice, &[n], 3),
    };
    let bias = (i % 4 != 1).then(|| sprinkled(F32, dice, &[n], 5));
    let mut sums = vec![Sum::default(); (m * n) as usize];
    for (at, sum) in sums.iter_mut().enumerate() {
        let (row, col) = (at as i64 / n, at as i64 % n);
        let terms = (0..k).map(|p| a.values[(row * k + p) as usize] * b.values[(p * n + col) as usize]);
        sum.add(terms.sum::<f64>() * scale.values[col as usize % scale.values.len()]);
        bias.iter().for_each(|bias| sum.add(bias.values[col as usize]));
    }
    let outputs = vec![finished(F32, &[m, n], &sums, Some(activation))];
    let inputs = vec![Some(a), Some(b), Some(scale), None, None, bias];
    Trial { attributes: activated(Vec::new(), Some(activation)), inputs, outputs }
}

/// A product by quantised weights, with special numbers among the rows, the scales and the biases; some weights are 0.
fn dequantised_product(dice: &mut Dice, i: usize, activation: &Activation) -> Trial {
    let [m, k, n] = PRODUCTS[i % PRODUCTS.len()];
    let b = random(U8, dice, &[k, n], (0.0, 255.0));
    let (a, scale) = match i % 3 {
        0 => (random(F32, dice, &[m, k], (-1.0, 1.0)), sprinkled(F32, dice, &[1, n], 3)),
        _ => (sprinkled(F32, dice, &[m, k], 5), random(F32, dice, &[1, n], (0.001, 0.01))),
    };
    // Each column's first weight is its zero point.
    let zero = HostTensor::new(U8, &[1, n], b.values[..n as usize].to_vec());
    let bias = (i % 4 != 1).then(|| sprinkled(F32, dice, &[n], 5));
    let mut sums = vec![Sum::default(); (m * n) as usize];
    for (at, sum) in sums.iter_mut().enumerate() {
        let (row, col) = (at as i64 / n, at as i64 % n);
        for p in 0..k {
            let weight = b.values[(p * n + col) as usize] - zero.values[col as usize];
            sum.add(a.values[(row * k + p) as usize] * (weight * scale.values[col as usize]));
        }
        bias.iter().for_each(|bias| sum.add(bias.values[col as usize]));
    }
    let outputs = vec![finished(F32, &[m, n], &sums, Some(activation))];
    let inputs = vec![Some(a), Some(b), Some(scale), Some(zero), bias];
    Trial { attributes: activated(Vec::new(), Some(activation)), inputs, outputs }
}

/// The largest of each window; of several that are no numbers among them, one.
fn max_pool(dtype: DType, dice: &mut Dice, i: usize) -> Trial {
    let (stride, pad) = [(1, 0), (2, 1), (3, 1)][i % 3];
    let image = [1, 2, 9, 11 + 8 * i as i64];
    let x = sprinkled(dtype, dice, &image, 5);
    let shape: Vec<i64> =
        [1, 2].into_iter().chain(image[2..].iter().map(|n| (n + 2 * pad - 3) / stride + 1)).collect();
    let value = |out: Vec<i64>| {
        let taps = every(&[3, 3]).filter_map(|tap| {
            let at = [out[0], out[1], out[2] * stride - pad + tap[0], out[3] * stride - pad + tap[1]];
            position(&at, &image)
        });
        taps.map(|at| x.values[at]).fold(f64::NEG_INFINITY, |a, b| -smaller(-a, -b))
    };
    let values = every(&shape).map(value).collect();
    let attributes = vec![
        ("kernel_shape", AttrValue::Ints(vec![3, 3])),
        ("strides", AttrValue::Ints(vec![stride; 2])),
        ("pads", AttrValue::Ints(vec![pad; 4])),
    ];
    let outputs = vec![Expected::rounded(dtype, &shape, values, Rounding::Exact)];
    Trial { attributes, inputs: vec![Some(x)], outputs }
}

/// Lines with one special number each, along the last axis or, every other length, the one before.
fn lines(dtype: DType, op: &str, n: i64) -> Trial {
    let specials = specials(dtype);
    let n_lines = specials.len() as i64;
    let dice = &mut Dice::new(9100 + n as u64);
    let mut all = random(dtype, dice, &[n_lines, n], (-2.0, 2.0));
    for (line, special) in specials.iter().enumerate() {
        all.values[line * n as usize + dice.below(n as u64) as usize] = *special;
    }
    let is_last = n % 2 == 1;
    let turned = |lines: &[f64], rows: i64, columns: i64| -> Vec<f64> {
        every(&[columns, rows]).map(|at| lines[(at[1] * columns + at[0]) as usize]).collect()
    };
    let shape = if is_last { [n_lines, n] } else { [n, n_lines] };
    let x = if is_last { all.values.clone() } else { turned(&all.values, n_lines, n) };
    let x = HostTensor::new(dtype, &shape, x);
    let axis = if is_last { 1 } else { 0 };
    let of_lines = || all.values.chunks_exact(n as usize);
    if op.ends_with("Softmax") {
        let mut values = Vec::new();
        for line in of_lines() {
            let most = line.iter().copied().fold(f64::NEG_INFINITY, |a, b| -smaller(-a, -b));
            let sum: f64 = line.iter().map(|x| (x - most).exp()).sum();
            let log = |x: &f64| (x - most) - sum.ln();
            values.extend(line.iter().map(|x| if op == "Softmax" { log(x).exp() } else { log(x) }));
        }
        let values = if is_last { values } else { turned(&values, n_lines, n) };
        // A difference is off by as much as its operands are large.
        let bounds = values.iter().map(|value| 2.0 * Rounding::Function.bound(dtype, *value)).collect();
        let outputs = vec![Expected::within(dtype, &shape, values, bounds)];
        return Trial { attributes: vec![("axis", AttrValue::Int(axis))], inputs: vec![Some(x)], outputs };
    }
    let value = |line: &[f64]| -> f64 {
        match op {
            "ReduceMax" => line.iter().copied().fold(f64::NEG_INFINITY, |a, b| -smaller(-a, -b)),
            "ReduceMin" => line.iter().copied().fold(f64::INFINITY, smaller),
            _ => line.iter().sum(),
        }
    };
    let values: Vec<f64> = of_lines().map(value).collect();
    let finite = |line: &[f64]| line.iter().filter(|x| x.is_finite()).map(|x| x.abs()).sum::<f64>();
    let bounds = of_lines().map(|line| match finite(line) {
        magnitude if op == "ReduceSum" && magnitude > largest(dtype) * 0.999 => OPEN,
        magnitude if op == "ReduceSum" => sum_bound(dtype, n as usize + 2, magnitude),
        _ => smallest(dtype),
    });
    let outputs = vec![Expected::within(dtype, &[n_lines], values, bounds.collect())];
    let axes = HostTensor::new(I64, &[1], vec![axis as f64]);
    let attributes = vec![("keepdims", AttrValue::Int(0))];
    Trial { attributes, inputs: vec![Some(x), Some(axes)], outputs }
}
