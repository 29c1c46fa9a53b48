//! NaN, infinities, zeros of both signs, subnormal and the largest numbers through every activation, by itself and in
//! each kernel that has it fused, on every instruction set of this machine.
//!
//! A fused kernel is compared with the kernels of the ops that it stands for, of which the last is compared with the
//! definition in f64: not only may no special number be lost, a zero keeps its sign too.

use crate::isa::Isa;
use crate::kernels::elementwise::formulas::Interpreter;
use crate::kernels::test_host::{Array, Value, run, run_with_constants};
use crate::kernels::testing::{Chance, isas};
use devbay_ops::formula::{self, Formula};
use devbay_plugin_api::abi::Str;

/// Special numbers, and the limits of ordinary ones.
const SPECIALS: [f32; 14] = [
    f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    0.0,
    -0.0,
    1e-40,
    -1e-40,
    f32::MIN_POSITIVE,
    -f32::MIN_POSITIVE,
    f32::MAX,
    f32::MIN,
    1.5e19,
    -1.5e19,
    -0.25,
];

type Attrs = Vec<(&'static str, Value)>;

/// The formulas that fused ops have, of one operand, with numbers for each.
fn functions() -> Vec<(&'static Formula, Vec<f32>)> {
    // A limit that is the lowest, or the highest number, limits infinities alone.
    const LIMITS: [[f32; 2]; 4] =
        [[-0.5, 0.75], [f32::MIN, f32::MAX], [f32::NEG_INFINITY, f32::INFINITY], [0.0, -0.0]];
    let fused = formula::all().iter().filter(|formula| formula.row.is_fused && formula.n_operands == 1);
    let each = fused.flat_map(|formula| match formula.name() {
        "Clip" => LIMITS.iter().map(|limits| (formula, limits.to_vec())).collect(),
        _ => vec![(formula, [1.5, 1.25][..formula.params.len()].to_vec())],
    });
    each.collect()
}

/// Computes a formula in f64.
fn definition(formula: &Formula, params: &[f32], x: &[f32]) -> Vec<f32> {
    let mut both = [0.0; 2];
    both.iter_mut().zip(params).for_each(|(both, param)| *both = *param);
    let mut values: Vec<f64> = x.iter().map(|&x| x.into()).collect();
    Interpreter::new(formula, both).expect("a formula of one operand").run_doubles(&mut values);
    values.iter().map(|&value| value as f32).collect()
}

/// The activations that convolutions and products have, with their parameters, and the op that each is by itself.
const ACTIVATIONS: &[(&str, &[f32], &str)] = &[
    ("", &[], ""),
    ("Relu", &[], "Relu"),
    ("LeakyRelu", &[0.2], "LeakyRelu"),
    ("Clip", &[-0.5, 0.75], "Clip"),
    ("Clip", &[0.0, 6.0], "Clip"),
    ("HardSigmoid", &[0.3, 0.4], "HardSigmoid"),
    ("HardSwish", &[], "HardSwish"),
    ("Sigmoid", &[], "Sigmoid"),
    ("Tanh", &[], "Tanh"),
    ("Silu", &[], "Swish"),
];

fn floats(array: &Option<Array>) -> Vec<f32> {
    array.as_ref().expect("a result").elements()
}

/// Runs an op of one operand by itself.
fn alone(isa: Isa, op: &str, params: &[f32], x: &[f32]) -> Vec<f32> {
    if op.is_empty() {
        return x.to_vec();
    }
    let formula = formula::find(op).expect("a formula");
    let has = |name: &str| formula.row.attributes.has(name);
    let (op, mut inputs) = (formula.row.name, vec![Some(Array::of(&[x.len()], x))]);
    let mut attrs: Attrs = Vec::new();
    for (i, param) in formula.params.iter().enumerate() {
        let value = params.get(i).copied().unwrap_or(param.default);
        match has(param.name) {
            true => attrs.push((param.name, Value::Float(value.into()))),
            false => inputs.push(Some(Array::of(&[], &[value]))),
        }
    }
    attrs.extend(formula.form.when.map(|(name, value)| (name, Value::Text(value))));
    let found = run(isa, op, &attrs, &inputs, &[Some(Array::empty::<f32>(&[x.len()]))]);
    floats(&found.unwrap_or_else(|error| panic!("{op}: {error}"))[0])
}

/// Of one class, with one sign if they are zeros; finite numbers are close.
fn alike(found: f32, expected: f32) -> bool {
    match (found.is_nan(), expected.is_nan()) {
        (false, false) if expected == 0.0 && found == 0.0 => {
            found.is_sign_negative() == expected.is_sign_negative()
        }
        (false, false) if expected.is_finite() => {
            found.is_finite() && (found - expected).abs() <= 2e-5 * expected.abs() + f32::MIN_POSITIVE
        }
        (false, false) => found == expected,
        (found, expected) => found == expected,
    }
}

#[track_caller]
fn check(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        assert!(alike(found, expected), "{what}: element {i} is {found:e}, expected {expected:e}");
    }
}

/// As many special numbers, in turn.
fn specials(n: usize) -> Vec<f32> {
    SPECIALS.iter().copied().cycle().take(n).collect()
}

/// Ordinary numbers with a special one here and there.
fn sprinkled(chance: &mut Chance, n: usize, every: usize) -> Vec<f32> {
    let mut numbers = chance.floats(n, 2.0);
    for (i, number) in numbers.iter_mut().enumerate().skip(chance.below(every)).step_by(every) {
        *number = SPECIALS[(i / every + i) % SPECIALS.len()];
    }
    numbers
}

#[test]
fn activations_are_what_their_definitions_say() {
    for isa in isas() {
        for (formula, values) in functions() {
            let op = formula.name();
            for n in [1, 7, 16, 45, 1030] {
                let x = specials(n);
                let expected = definition(formula, &values, &x);
                check(&format!("{op} {values:?} on {isa:?}"), &alone(isa, op, &values, &x), &expected);
            }
        }
    }
}

#[test]
fn elementwise_ops_fused_are_what_they_are_alone() {
    for isa in isas() {
        for (formula, values) in functions() {
            let op = formula.name();
            let both = |i: usize| values.get(i).copied().unwrap_or(0.0).into();
            for n in [1, 15, 33, 513, 1030] {
                let x = specials(n);
                let attrs = vec![
                    ("ops", Value::Texts(["Neg", op, "Neg"].map(Str::new).to_vec())),
                    ("operands", Value::Ints(vec![0, 0, 1, 1, 2, 2])),
                    ("params", Value::Floats(vec![0.0, 0.0, both(0), both(1), 0.0, 0.0])),
                ];
                let inputs = [Some(Array::of(&[n], &x))];
                let output = [Some(Array::empty::<f32>(&[n]))];
                let found = run(isa, "FusedElementwise", &attrs, &inputs, &output).expect("FusedElementwise");
                let negated: Vec<f32> = x.iter().map(|x| -x).collect();
                let expected: Vec<f32> = alone(isa, op, &values, &negated).iter().map(|y| -y).collect();
                check(&format!("{op} {values:?} among others on {isa:?}"), &floats(&found[0]), &expected);
            }
        }
    }
}

fn activation(name: &'static str, params: &[f32]) -> Attrs {
    let params = params.iter().map(|&param| param.into()).collect();
    if name.is_empty() {
        return vec![];
    }
    vec![("activation", Value::Text(name)), ("activation_params", Value::Floats(params))]
}

/// A convolution: extents of the image and of the weights, groups, stride, pads at every side.
type Shape = (&'static [usize], &'static [usize], usize, usize, usize);

/// By pixels, by channels, over more than a block of terms, pointwise, grouped; depthwise by windows that overlap, in few
/// rows, that do not, and of other sizes; of one and of three dimensions.
const CONVOLUTIONS: &[Shape] = &[
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
    (&[1, 2, 11, 21], &[2, 1, 5, 5], 2, 2, 2),
    (&[1, 2, 9, 11], &[2, 1, 4, 3], 2, 1, 1),
    (&[1, 4, 50], &[6, 4, 3], 1, 1, 1),
    (&[1, 2, 4, 5, 6], &[3, 2, 2, 2, 2], 1, 1, 0),
];

#[test]
fn convolutions_keep_what_their_tails_would_be_given() {
    let mut chance = Chance::new(11);
    for isa in isas() {
        for &(image, weights, groups, stride, pad) in CONVOLUTIONS {
            let n_spatial = image.len() - 2;
            let extent = |i: usize| (image[2 + i] + 2 * pad - weights[2 + i]) / stride + 1;
            let spatial: Vec<usize> = (0..n_spatial).map(extent).collect();
            let out: Vec<usize> = [&[image[0], weights[0]][..], &spatial].concat();
            let size = |shape: &[usize]| shape.iter().product::<usize>();
            let attrs: Attrs = vec![
                ("group", Value::Int(groups as i64)),
                ("strides", Value::Ints(vec![stride as i64; n_spatial])),
                ("pads", Value::Ints(vec![pad as i64; 2 * n_spatial])),
            ];
            let x = Array::of(image, &sprinkled(&mut chance, size(image), 41));
            let w = Array::of(weights, &chance.floats(size(weights), 1.0));
            let mut biases = chance.floats(weights[0], 1.0);
            biases[0] = f32::MAX;
            let bias = Array::of(&[weights[0]], &biases);
            let z = sprinkled(&mut chance, size(&out), 5);
            let output = [Some(Array::empty::<f32>(&out))];
            for (has_bias, has_z, constants) in
                [(true, true, 2), (false, true, 0), (true, false, 2), (false, false, 2)]
            {
                let bias = has_bias.then(|| bias.clone());
                let inputs = [Some(x.clone()), Some(w.clone()), bias, has_z.then(|| Array::of(&out, &z))];
                let plain = run_with_constants(isa, "Conv", &attrs, &inputs[..3], &output, constants);
                let mut plain = floats(&plain.expect("Conv")[0]);
                if has_z {
                    plain.iter_mut().zip(&z).for_each(|(plain, z)| *plain += z);
                }
                for &(name, params, op) in ACTIVATIONS {
                    let attrs = [attrs.clone(), activation(name, params)].concat();
                    let found = run_with_constants(isa, "FusedConv", &attrs, &inputs, &output, constants);
                    let what =
                        format!("{name} of {image:?} {weights:?}, bias {has_bias}, z {has_z}, on {isa:?}");
                    let found = floats(&found.unwrap_or_else(|error| panic!("{what}: {error}"))[0]);
                    check(&what, &found, &alone(isa, op, params, &plain));
                }
            }
        }
    }
}

#[test]
fn products_keep_what_their_tails_would_be_given() {
    let mut chance = Chance::new(12);
    // The small dense ones with weights that are packed, rows with tails, more than a block of terms.
    for (rows, k, columns) in
        [(1, 8, 8), (1, 16, 16), (1, 32, 32), (5, 7, 19), (33, 300, 50), (3, 5, 3), (8, 4, 64)]
    {
        for (isa, special) in isas().flat_map(|isa| SPECIALS.iter().map(move |&special| (isa, special))) {
            let mut x = chance.floats(rows * k, 1.0);
            x[chance.below(k)] = special;
            let w = Array::of(&[k, columns], &chance.floats(k * columns, 1.0));
            let mut bias = chance.floats(columns, 1.0);
            bias[chance.below(columns)] = SPECIALS[chance.below(SPECIALS.len())];
            let inputs = [Array::of(&[rows, k], &x), w, Array::of(&[columns], &bias)].map(Some);
            let output = [Some(Array::empty::<f32>(&[rows, columns]))];
            let plain = run_with_constants(isa, "MatMul", &[], &inputs[..2], &output, 2).expect("MatMul");
            let bias_of = |i: usize| bias[i % columns];
            let plain: Vec<f32> = floats(&plain[0]).iter().enumerate().map(|(i, x)| x + bias_of(i)).collect();
            for &(name, params, op) in ACTIVATIONS {
                for fused in ["FusedMatMul", "FusedGemm"] {
                    let found =
                        run_with_constants(isa, fused, &activation(name, params), &inputs, &output, 2);
                    let what = format!("{name} of {fused} [{rows}, {k}, {columns}], {special:e}, on {isa:?}");
                    let found = floats(&found.unwrap_or_else(|error| panic!("{what}: {error}"))[0]);
                    let expected = alone(isa, op, params, &plain);
                    // The terms of a sum, its bias among them, come in any order; terms that cancel are rounded
                    // otherwise.
                    let close = |(found, expected): (&f32, &f32)| {
                        let near =
                            (found - expected).abs() <= 1e-4 && found.is_finite() && expected.is_finite();
                        near || alike(*found, *expected)
                    };
                    let off = found.iter().zip(&expected).position(|pair| !close(pair));
                    assert!(off.is_none(), "{what}: element {off:?} of {found:?}, expected {expected:?}");
                }
            }
        }
    }
}

#[test]
fn recurrent_layers_and_regions_keep_what_is_no_number() {
    for isa in isas() {
        for name in ["Relu", "LeakyRelu", "Tanh", "HardSigmoid", "Softplus"] {
            let attrs = [
                ("hidden_size", Value::Int(1)),
                ("activations", Value::Texts(vec![Str::new(name)])),
                ("clip", Value::Float(3.0)),
            ];
            let inputs = [
                Array::of(&[1, 1, 1], &[f32::NAN]),
                Array::of(&[1, 1, 1], &[1.0f32]),
                Array::of(&[1, 1, 1], &[1.0f32]),
            ];
            let output = [Some(Array::empty::<f32>(&[1, 1, 1, 1]))];
            let found = run(isa, "RNN", &attrs, &inputs.map(Some), &output).expect(name);
            assert!(floats(&found[0])[0].is_nan(), "{name} on {isa:?}");
        }
        let attrs = [
            ("mode", Value::Text("max")),
            ("output_height", Value::Int(1)),
            ("output_width", Value::Int(1)),
            ("sampling_ratio", Value::Int(2)),
        ];
        let inputs = [
            Array::of(&[1, 1, 2, 2], &[1.0, f32::NAN, 2.0, 3.0]),
            Array::of(&[1, 4], &[0.0f32, 0.0, 2.0, 2.0]),
            Array::of(&[1], &[0i64]),
        ];
        let output = [Some(Array::empty::<f32>(&[1, 1, 1, 1]))];
        let found = run(isa, "RoiAlign", &attrs, &inputs.map(Some), &output).expect("RoiAlign");
        assert!(floats(&found[0])[0].is_nan(), "{isa:?}");
    }
}

/// A query of which nothing is hidden is what the product and the Softmax make of it.
#[test]
fn attention_without_a_mask_hides_nothing() {
    // Scores that are all minus infinity; a weight of 0 before an infinite value.
    let rows = [(f32::NEG_INFINITY, 1.0, f32::NAN), (300.0, f32::INFINITY, f32::NAN)];
    for isa in isas() {
        for (query, value, expected) in rows {
            for mode in [1, 11] {
                let inputs = [
                    Array::of(&[1, 1, 1, 1], &[query]),
                    Array::of(&[1, 1, 2, 1], &[1.0f32, 2.0]),
                    Array::of(&[1, 1, 2, 1], &[value, 1.0]),
                ];
                let output = [Some(Array::empty::<f32>(&[1, 1, 1, 1]))];
                let attrs = [("softmax_precision", Value::Int(mode)), ("scale", Value::Float(1.0))];
                let found = run(isa, "Attention", &attrs, &inputs.map(Some), &output).expect("Attention");
                check(&format!("{query} of {value} on {isa:?}"), &floats(&found[0]), &[expected]);
            }
        }
    }
}
