//! devbay's own ops, which its passes make of several of ONNX's (`docs/fused-ops.md`). Of convolutions and products: the
//! trials of the plain op, then what is added, then the activation. Of elementwise ops: each op that may be among them,
//! between others.

use super::index::{onnx_dtype, word};
use super::*;
use super::{convolutions, pools, products, quantised};
use crate::functions::{FUNCTIONS, Function};
use crate::ops::{broadcast_index, random};

pub(super) const OPS: &[OpTrials] = &[
    OpTrials {
        domain: "devbay",
        op: "FusedConv",
        dtypes: FLOATS,
        make: |dtype, dice, i| fused_conv(convolutions::conv(dtype, dice, i), dtype, dice, i),
    },
    OpTrials { domain: "devbay", op: "FusedElementwise", dtypes: &[F32], make: line_of_ops },
    OpTrials {
        domain: "devbay",
        op: "FusedGemm",
        dtypes: FLOATS,
        make: |dtype, dice, i| finished(products::gemm(dtype, dice, i), usize::MAX, i),
    },
    OpTrials {
        domain: "devbay",
        op: "FusedMatMul",
        dtypes: FLOATS,
        make: |dtype, dice, i| {
            let (m, k, n) = (1 + dice.below(20) as i64, 1 + dice.below(40) as i64, 1 + dice.below(20) as i64);
            let batch: &[i64] = if i % 4 == 3 { &[3] } else { &[] };
            let mut trial = Trial::from(ops::mat_mul(dtype, dice, &[batch, &[m, k]].concat(), &[k, n]));
            if i % 3 != 1 {
                trial.inputs.push(Some(random(dtype, dice, &[n], (-1.0, 1.0))));
            }
            finished(trial, 2, i)
        },
    },
    OpTrials {
        domain: "devbay",
        op: "MatMulDequantized",
        dtypes: &[I8, U8],
        make: |dtype, dice, i| finished(by_quantised(dtype, dice, i), 4, i),
    },
    OpTrials {
        domain: "devbay",
        op: "MatMulIntegerToFloat",
        dtypes: &[I8, U8],
        make: |dtype, dice, i| finished(scaled(products::mat_mul_integer(dtype, dice, i), dice, i), 5, i),
    },
    OpTrials {
        domain: "devbay",
        op: "NhwcAveragePool",
        dtypes: FLOATS,
        make: |dtype, dice, i| pools::average_pool(dtype, dice, i).channels_last(&[0]),
    },
    OpTrials {
        domain: "devbay",
        op: "NhwcFusedConv",
        dtypes: FLOATS,
        make: |dtype, dice, i| {
            // Some with as many channels as kernels want that save products.
            let plain = match i % 8 {
                7 => convolutions::conv_of_many(dtype, dice),
                _ => convolutions::conv(dtype, dice, i),
            };
            fused_conv(plain, dtype, dice, i).channels_last(&[0, 3])
        },
    },
    OpTrials {
        domain: "devbay",
        op: "NhwcMaxPool",
        dtypes: FLOATS,
        make: |dtype, dice, i| pools::max_pool_alone(dtype, dice, i).channels_last(&[0]),
    },
    OpTrials { domain: "devbay", op: "QuantisedElementwise", dtypes: &[F32, I8, U8], make: line_of_bytes },
];

/// `Relu(x + y * 0.75)` or with other ops in their places, where x is of the dtype, and y of another one now and then. The
/// result is quantised, but for every fourth.
fn line_of_bytes(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let y_dtype = [dtype, U8, I8, F32][i as usize % 4];
    let to = [I8, U8, dtype, F32][(i / 2) as usize % 4];
    let shape = [1 + dice.below(3) as i64, 1 + dice.below(40) as i64, 1 + dice.below(600) as i64];
    let others: [&[i64]; 5] = [&[], &shape[2..], &[shape[1], 1], &[shape[0], 1, shape[2]], &shape];
    let other = others[i as usize % others.len()];
    let bytes = |dtype: DType| [I8, U8].contains(&dtype);
    let scale =
        |dtype: DType, dice: &mut Dice| if bytes(dtype) { 0.01 + dice.below(50) as f32 / 512.0 } else { 1.0 };
    let scales = [scale(dtype, dice), scale(y_dtype, dice), scale(to, dice)];
    let zero = |dtype: DType, dice: &mut Dice| match dtype {
        I8 => dice.below(200) as i64 - 100,
        U8 => dice.below(256) as i64,
        _ => 0,
    };
    let zeros = [zero(dtype, dice), zero(y_dtype, dice), zero(to, dice)];
    let range = |dtype: DType| if bytes(dtype) { (-128.0, 255.0) } else { (-4.0, 4.0) };
    let x = random(dtype, dice, &shape, range(dtype));
    let y = random(y_dtype, dice, other, range(y_dtype));
    let (joint, join): (&str, fn(f64, f64) -> f64) = match i % 3 {
        1 => ("Sub", |a, b| a - b),
        2 => ("Max", f64::max),
        _ => ("Add", |a, b| a + b),
    };
    let number = |value: f64, of: usize| (value - zeros[of] as f64) * f64::from(scales[of]);
    let (mut values, mut bounds) = (Vec::new(), Vec::new());
    for (at, &x) in x.values.iter().enumerate() {
        let (x, y) = (number(x, 0), 0.75 * number(y.values[broadcast_index(at, &shape, other)], 1));
        let value = join(x, y).max(0.0);
        // A product for each operand, that with the factor, and the sum.
        let error = sum_bound(F32, 4, x.abs() + y.abs());
        let (value, bound) = match bytes(to) {
            true => {
                let scale = f64::from(scales[2]);
                let error = error / scale + sum_bound(F32, 1, value / scale);
                quantised::quantised(to, value / scale, error, zeros[2] as f64)
            }
            false => (value, error),
        };
        values.push(value);
        bounds.push(bound);
    }
    Trial {
        attributes: vec![
            ("ops", AttrValue::Strings(["Mul", joint, "Relu"].map(str::to_owned).to_vec())),
            ("operands", AttrValue::Ints(vec![1, -1, 0, 2, 3, 3])),
            ("params", AttrValue::Floats(vec![0.0; 6])),
            ("constants", AttrValue::Floats(vec![0.75])),
            ("scales", AttrValue::Floats(scales.to_vec())),
            ("zero_points", AttrValue::Ints(zeros.to_vec())),
            ("to", onnx_dtype(to)),
        ],
        inputs: vec![Some(x), Some(y)],
        outputs: vec![Expected::within(to, &shape, values, bounds)],
    }
}

/// A product of integers as f32, by one scale or by one for each column, with a bias for every third.
fn scaled(trial: Trial, dice: &mut Dice, i: u64) -> Trial {
    let mut inputs = trial.inputs.into_iter();
    let mut next = || inputs.next().flatten();
    let (a, b, a_zero, b_zero) = (next(), next(), next(), next());
    // A vector on the right is one column, which the result does not have.
    let columns = b.as_ref().filter(|b| b.shape.len() > 1).and_then(|b| b.shape.last().copied());
    let of_scale: Vec<i64> = columns.filter(|_| i % 2 == 1).into_iter().collect();
    let scale = random(F32, dice, &of_scale, (1e-5, 4e-5));
    let bias = columns.filter(|_| i % 3 != 1).map(|n| random(F32, dice, &[n], (-1.0, 1.0)));
    let sums = &trial.outputs[0].tensor;
    let value = |(at, sum): (usize, &f64)| sum * scale.values[at % scale.values.len()];
    let values: Vec<f64> = sums.values.iter().enumerate().map(value).collect();
    let bounds = values.iter().map(|value| sum_bound(F32, 2, value.abs())).collect();
    let outputs = vec![Expected::within(F32, &sums.shape, values, bounds)];
    Trial { attributes: Vec::new(), inputs: vec![a, b, Some(scale), a_zero, b_zero, bias], outputs }
}

/// A product by weights that are quantised in blocks, or with one scale for all, as they are or transposed.
fn by_quantised(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let (m, k, n) = (1 + dice.below(20) as i64, 1 + dice.below(70) as i64, 1 + dice.below(40) as i64);
    let block = [0, 16, 7, 32][i as usize % 4];
    let n_blocks = if block == 0 { 1 } else { (k + block - 1) / block };
    let is_turned = i % 3 == 1;
    let shape = |rows: i64| if is_turned { [n, rows] } else { [rows, n] };
    let of_scale = if i % 5 == 4 { vec![] } else { shape(n_blocks).to_vec() };
    let a = random(F32, dice, &[if i % 4 == 3 { &[3][..] } else { &[] }, &[m, k]].concat(), (-1.0, 1.0));
    let b = random(dtype, dice, &shape(k), (-128.0, 255.0));
    let scale = random(F32, dice, &of_scale, (0.001, 0.01));
    let zero = (i % 2 == 1).then(|| random(dtype, dice, &of_scale, (-128.0, 255.0)));
    let bias = (i % 3 != 1).then(|| random(F32, dice, &[n], (-1.0, 1.0)));
    let weight = |term: i64, column: i64| {
        let at = |[rows, columns]: [i64; 2], row: i64| {
            (if is_turned { column * columns + row } else { row * columns + column }) as usize
                % (rows * columns) as usize
        };
        let block = term.checked_div(block).unwrap_or(0);
        let of_block = at(shape(n_blocks), block) % scale.values.len();
        (b.values[at(shape(k), term)] - zero.as_ref().map_or(0.0, |zero| zero.values[of_block]))
            * scale.values[of_block]
    };
    let (mut values, mut bounds) = (Vec::new(), Vec::new());
    for (row, column) in
        (0..a.values.len() as i64 / k).flat_map(|row| (0..n).map(move |column| (row, column)))
    {
        let term = |p: i64| a.values[(row * k + p) as usize] * weight(p, column);
        values.push((0..k).map(term).sum());
        bounds.push(sum_bound(F32, k as usize + 4, (0..k).map(|p| term(p).abs()).sum()));
    }
    let shape = [&a.shape[..a.shape.len() - 1], &[n]].concat();
    Trial {
        attributes: vec![("block_size", AttrValue::Int(block)), ("transB", AttrValue::Int(is_turned.into()))],
        inputs: vec![Some(a), Some(b), Some(scale), zero, bias],
        outputs: vec![Expected::within(F32, &shape, values, bounds)],
    }
}

/// A convolution, what is added to it, and an activation.
fn fused_conv(mut trial: Trial, dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    trial.inputs.resize(3, None);
    if i % 3 != 1 {
        let shape = trial.outputs[0].tensor.shape.clone();
        trial.inputs.push(Some(random(dtype, dice, &shape, (-1.0, 1.0))));
    }
    finished(trial, 3, i)
}

/// An activation: its name, its parameters, what it does with them, and how much steeper than the identity it gets.
type Activation = (&'static str, &'static [f32], fn(f64, &[f64]) -> f64, f64);

const ACTIVATIONS: &[Activation] = &[
    ("", &[], |x, _| x, 1.0),
    ("Relu", &[], |x, _| x.max(0.0), 1.0),
    ("LeakyRelu", &[0.2], |x, p| if x < 0.0 { p[0] * x } else { x }, 1.0),
    ("Clip", &[-0.5, 0.75], |x, p| x.clamp(p[0], p[1]), 1.0),
    ("HardSigmoid", &[0.3, 0.4], |x, p| (p[0] * x + p[1]).clamp(0.0, 1.0), 0.3),
    ("HardSwish", &[], |x, _| x * (x / 6.0 + 0.5).clamp(0.0, 1.0), 1.5),
    ("Sigmoid", &[], |x, _| 1.0 / (1.0 + (-x).exp()), 0.25),
    ("Tanh", &[], |x, _| x.tanh(), 1.0),
    ("Silu", &[], |x, _| x / (1.0 + (-x).exp()), 1.1),
];

/// Adds the operand at this place to the result, if it is there, and applies an activation. An error before it is as
/// much larger behind it as it is steep.
fn finished(mut trial: Trial, added: usize, i: u64) -> Trial {
    let (name, params, function, slope) = ACTIVATIONS[i as usize % ACTIVATIONS.len()];
    let addend = trial.inputs.get(added).cloned().flatten();
    let Expected { tensor, bounds, .. } = &mut trial.outputs[0];
    let numbers: Vec<f64> = params.iter().map(|&param| f64::from(param)).collect();
    for (at, (value, bound)) in tensor.values.iter_mut().zip(bounds).enumerate() {
        if let Some(addend) = &addend {
            let term = addend.values[at % addend.values.len()];
            *bound += sum_bound(tensor.dtype, 2, value.abs() + term.abs());
            *value += term;
        }
        *value = function(*value, &numbers);
        *bound = slope * *bound + Rounding::Function.bound(tensor.dtype, *value);
    }
    if !name.is_empty() {
        trial.attributes.push(("activation", word(name)));
        trial.attributes.push(("activation_params", AttrValue::Floats(params.to_vec())));
    }
    trial
}

/// `tanh(f(x / 2) * y + g(x / 2))`, or with other ops in their places; `y` is broadcast, or a number.
fn line_of_ops(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let fused = |of: &&Function| of.formula().is_some_and(|formula| formula.row.is_fused);
    let inner: Vec<&Function> = FUNCTIONS.iter().filter(fused).collect();
    let half_way = inner.len() / 2;
    let (f, g) = (inner[i as usize % half_way], inner[half_way + i as usize % (inner.len() - half_way)]);
    // Numbers of which both are usual, and none so large that the bound says nothing.
    let low = f64::max(f.from.0, g.from.0).max(-5.0);
    let high = f64::min(f.from.1, g.from.1).min(5.0);
    let shape = [1 + dice.below(3) as i64, 1 + dice.below(40) as i64, 1 + dice.below(600) as i64];
    let others: [&[i64]; 4] = [&[], &shape[2..], &[shape[1], 1], &shape];
    let other = others[i as usize % others.len()];
    let is_number = other.is_empty();
    // Half of it is a number of the dtype, so that the inner ops' argument is exact.
    let x = random(dtype, dice, &shape, (2.0 * low, 2.0 * high));
    let y = random(dtype, dice, other, (0.5, 2.0));
    let divides = i % 3 == 1;
    let (joint, join): (&str, fn(f64, f64) -> f64) = match i % 5 {
        1 => ("Sub", |a, b| a - b),
        2 => ("Max", f64::max),
        3 => ("Min", f64::min),
        _ => ("Add", |a, b| a + b),
    };
    let round = |value: f64, rounding: Rounding| rounding.bound(dtype, value);
    let (mut values, mut bounds) = (Vec::new(), Vec::new());
    for (at, x) in x.values.iter().enumerate() {
        let left = f.of(x / 2.0);
        let right = g.of(x / 2.0);
        let y = y.values[broadcast_index(at, &shape, other)];
        let factor = if divides { 1.0 / y } else { y };
        let scaled = left * factor;
        let value = join(scaled, right).tanh();
        let off = round(left, Rounding::Function) * factor
            + round(scaled, Rounding::Division)
            + round(right, Rounding::Function)
            + round(scaled.abs() + right.abs(), Rounding::Exact);
        values.push(value);
        // A hyperbolic tangent is nowhere steeper than 1.
        bounds.push(off + round(value, Rounding::Function));
    }
    let n_inputs = if is_number { 1 } else { 2 };
    let place = if is_number { -2 } else { 1 };
    let [half, left, scaled, right, sum] = [0, 1, 2, 3, 4].map(|step| n_inputs + step);
    let steps = [
        ("Mul", [0, -1], [0.0; 2]),
        (f.name, [half, half], f.params),
        (if divides { "Div" } else { "Mul" }, [left, place], [0.0; 2]),
        (g.name, [half, half], g.params),
        (joint, [scaled, right], [0.0; 2]),
        ("Tanh", [sum, sum], [0.0; 2]),
    ];
    let mut constants = vec![0.5];
    constants.extend(is_number.then(|| y.values[0] as f32));
    Trial {
        attributes: vec![
            ("ops", AttrValue::Strings(steps.iter().map(|step| step.0.to_owned()).collect())),
            ("operands", AttrValue::Ints(steps.iter().flat_map(|step| step.1).collect())),
            ("params", AttrValue::Floats(steps.iter().flat_map(|step| step.2).collect())),
            ("constants", AttrValue::Floats(constants)),
        ],
        inputs: [Some(x)].into_iter().chain((!is_number).then_some(Some(y))).collect(),
        outputs: vec![Expected::within(dtype, &shape, values, bounds)],
    }
}
