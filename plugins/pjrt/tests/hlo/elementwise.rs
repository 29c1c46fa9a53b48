//! Ops of one number at a time on real libraries, against Rust's own functions and numbers from the specification.

use crate::support::graph::{Attr, Graph, Tensor, bools, check, check_node, f32s, f64s, i32s, i64s};
use devbay_plugin_api::sdk::F32;

/// A function of two numbers.
type Both = fn(f32, f32) -> f32;

/// An op with its version and attributes, and what it calculates.
type Case<'a> = (&'a str, u32, Vec<(&'a str, Attr)>, fn(f64) -> f64);

/// Runs each op on the same numbers, all in one graph.
fn check_functions(numbers: &[f32], cases: &[Case<'_>]) {
    let dims = [numbers.len() as i64];
    let mut graph = Graph::default();
    let x = graph.input(F32, &dims);
    let mut expected = Vec::new();
    for (op, since, attrs, function) in cases {
        let result = graph.result(F32, &dims);
        graph.node(op, *since, &[x], &[result], attrs);
        graph.output(result);
        let values: Vec<f32> = numbers.iter().map(|&x| function(x.into()) as f32).collect();
        expected.push(f32s(&dims, &values));
    }
    check(&graph, &[f32s(&dims, numbers)], &expected);
}

/// The error function by its series, which converges everywhere: Abramowitz and Stegun, 7.1.6.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    sum * 2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp()
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

const ANY: &[f32] =
    &[-8.0, -3.5, -2.5, -1.5, -1.0, -0.75, -0.5, -1e-3, 0.0, 1e-3, 0.5, 0.75, 1.0, 1.5, 2.5, 3.5, 8.0];
const POSITIVE: &[f32] = &[1e-6, 0.01, 0.5, 1.0, 1.5, 2.0, 100.0, 1e6];
const WITHIN_ONE: &[f32] = &[-1.0, -0.9, -0.5, -0.01, 0.0, 0.01, 0.5, 0.9, 1.0];

#[test]
fn functions_are_those_of_mathematics() {
    let plain = |op, function: fn(f64) -> f64| (op, 13, Vec::new(), function);
    check_functions(
        ANY,
        &[
            plain("Abs", f64::abs),
            plain("Atan", f64::atan),
            plain("Asinh", f64::asinh),
            plain("Ceil", f64::ceil),
            plain("Cos", f64::cos),
            plain("Cosh", f64::cosh),
            plain("Erf", erf),
            plain("Exp", f64::exp),
            plain("Floor", f64::floor),
            plain("Identity", |x| x),
            plain("Neg", |x| -x),
            plain("Round", f64::round_ties_even),
            plain("Sigmoid", |x| 1.0 / (1.0 + (-x).exp())),
            plain("Sign", |x| if x == 0.0 { 0.0 } else { x.signum() }),
            plain("Sin", f64::sin),
            plain("Sinh", f64::sinh),
            plain("Tan", f64::tan),
            plain("Tanh", f64::tanh),
        ],
    );
    check_functions(
        POSITIVE,
        &[plain("Log", f64::ln), plain("Sqrt", f64::sqrt), plain("Reciprocal", |x| 1.0 / x)],
    );
    check_functions(
        WITHIN_ONE,
        &[plain("Acos", f64::acos), plain("Asin", f64::asin), plain("Atanh", f64::atanh)],
    );
    check_functions(&[1.0, 1.5, 2.0, 50.0], &[plain("Acosh", f64::acosh)]);
}

#[test]
fn activations_have_the_specifications_defaults() {
    let plain = |op, since, function: fn(f64) -> f64| (op, since, Vec::new(), function);
    check_functions(
        ANY,
        &[
            plain("Relu", 14, |x| x.max(0.0)),
            plain("LeakyRelu", 16, |x| if x < 0.0 { 0.01 * x } else { x }),
            plain("Elu", 6, |x| if x > 0.0 { x } else { x.exp_m1() }),
            plain("Selu", 6, |x| 1.050_701 * if x > 0.0 { x } else { 1.673_263_2 * x.exp_m1() }),
            plain("Celu", 12, |x| x.max(0.0) + x.exp_m1().min(0.0)),
            plain("ThresholdedRelu", 10, |x| if x > 1.0 { x } else { 0.0 }),
            plain("HardSigmoid", 6, |x| (0.2 * x + 0.5).clamp(0.0, 1.0)),
            plain("HardSwish", 14, |x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0)),
            plain("Softplus", 1, softplus),
            plain("Softsign", 1, |x| x / (1.0 + x.abs())),
            plain("Mish", 18, |x| x * softplus(x).tanh()),
            plain("Shrink", 9, |x| if x.abs() > 0.5 { x } else { 0.0 }),
            plain("Gelu", 20, |x| 0.5 * x * (1.0 + erf(x / 2f64.sqrt()))),
            plain("Swish", 24, |x| x / (1.0 + (-x).exp())),
        ],
    );
}

#[test]
fn activations_take_their_attributes() {
    let float = |name, value| (name, Attr::Float(value));
    check_functions(
        ANY,
        &[
            ("LeakyRelu", 6, vec![float("alpha", 0.25)], |x| if x < 0.0 { 0.25 * x } else { x }),
            ("Elu", 6, vec![float("alpha", 2.0)], |x| if x > 0.0 { x } else { 2.0 * x.exp_m1() }),
            ("Celu", 12, vec![float("alpha", 2.0)], |x| x.max(0.0) + (2.0 * (x / 2.0).exp_m1()).min(0.0)),
            ("HardSigmoid", 6, vec![float("alpha", 0.5), float("beta", 0.25)], |x| {
                (0.5 * x + 0.25).clamp(0.0, 1.0)
            }),
            ("Shrink", 9, vec![float("lambd", 1.5), float("bias", 1.0)], |x| match x {
                x if x > 1.5 => x - 1.0,
                x if x < -1.5 => x + 1.0,
                _ => 0.0,
            }),
            ("Gelu", 20, vec![("approximate", Attr::Text("tanh".into()))], |x| {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
            }),
            ("Clip", 6, vec![float("min", -1.0), float("max", 2.0)], |x| x.clamp(-1.0, 2.0)),
        ],
    );
}

/// Special numbers, and the largest finite ones.
const SPECIAL: &[f32] =
    &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 0.0, -0.0, 1e-40, -1e-40, 1.0, -1.0];

/// Keeps what is no number, which `max` and `clamp` of 0 do not.
fn unit(x: f64) -> f64 {
    let x = if x < 0.0 { 0.0 } else { x };
    if x > 1.0 { 1.0 } else { x }
}

/// Activations by their definitions, taken by the word: `-inf * 0` is no number.
fn activations() -> Vec<Case<'static>> {
    let plain = |op, since, function: fn(f64) -> f64| (op, since, Vec::new(), function);
    vec![
        plain("Relu", 14, |x| if x < 0.0 { 0.0 } else { x }),
        plain("LeakyRelu", 16, |x| if x < 0.0 { 0.01 * x } else { x }),
        plain("Elu", 6, |x| if x > 0.0 { x } else { x.exp_m1() }),
        plain("Celu", 12, |x| if x > 0.0 { x } else { x.exp_m1() }),
        plain("HardSigmoid", 6, |x| unit(0.2 * x + 0.5)),
        plain("HardSwish", 14, |x| x * unit(x / 6.0 + 0.5)),
        plain("Sigmoid", 13, |x| 1.0 / (1.0 + (-x).exp())),
        plain("Tanh", 13, f64::tanh),
        plain("Exp", 13, f64::exp),
        plain("Softplus", 1, |x| if x.is_nan() { x } else { softplus(x) }),
        plain("Softsign", 1, |x| x / (1.0 + x.abs())),
        plain("Mish", 18, |x| if x.is_nan() { x } else { x * softplus(x).tanh() }),
        plain("Gelu", 20, |x| if x.is_nan() { x } else { 0.5 * x * (1.0 + erf(x / 2f64.sqrt())) }),
        plain("Swish", 24, |x| x * (1.0 / (1.0 + (-x).exp()))),
        ("Clip", 6, vec![("min", Attr::Float(-0.5)), ("max", Attr::Float(0.75))], |x| {
            if x.is_nan() { x } else { x.clamp(-0.5, 0.75) }
        }),
    ]
}

#[test]
fn special_numbers_go_through_activations() {
    check_functions(SPECIAL, &activations());
}

/// The compiler fuses what follows a product as it likes.
#[test]
fn special_numbers_go_through_activations_of_products() {
    let (n, dims) = (SPECIAL.len() as i64, [SPECIAL.len() as i64, 1]);
    let mut graph = Graph::default();
    let x = graph.input(F32, &dims);
    let one = graph.constant(f32s(&[1, 1], &[1.0]));
    let mut expected = Vec::new();
    for (op, since, attrs, function) in &activations() {
        let (product, result) = (graph.result(F32, &[n, 1]), graph.result(F32, &[n, 1]));
        graph.node("MatMul", 13, &[x, one], &[product], &[]);
        graph.node(op, *since, &[product], &[result], attrs);
        graph.output(result);
        let values: Vec<f32> = SPECIAL.iter().map(|&x| function(x.into()) as f32).collect();
        expected.push(f32s(&dims, &values));
    }
    check(&graph, &[f32s(&dims, SPECIAL)], &expected);
}

#[test]
fn operands_are_broadcast_from_the_back() {
    let row = f32s(&[3], &[1.0, 2.0, 4.0]);
    let column = f32s(&[2, 1], &[8.0, 16.0]);
    let pairs = [(8.0, 1.0), (8.0, 2.0), (8.0, 4.0), (16.0, 1.0), (16.0, 2.0), (16.0, 4.0)];
    let cases: [(&str, Both); 5] = [
        ("Add", |a, b| a + b),
        ("Sub", |a, b| a - b),
        ("Mul", |a, b| a * b),
        ("Div", |a, b| a / b),
        ("Pow", f32::powf),
    ];
    for (op, function) in cases {
        let expected: Vec<f32> = pairs.iter().map(|&(a, b)| function(a, b)).collect();
        check_node(op, 13, &[column.clone(), row.clone()], &[], &[], &[f32s(&[2, 3], &expected)]);
    }
    let slope = f32s(&[2, 1], &[0.5, 0.25]);
    let x = f32s(&[2, 2], &[-1.0, 1.0, -2.0, 2.0]);
    check_node("PRelu", 16, &[x, slope], &[], &[], &[f32s(&[2, 2], &[-0.5, 1.0, -0.5, 2.0])]);
}

#[test]
fn integers_are_divided_toward_zero_and_have_two_remainders() {
    let (x, y) = (i64s(&[6], &[7, -7, 7, -7, 6, -6]), i64s(&[6], &[2, 2, -2, -2, 3, 3]));
    let both = [x, y];
    check_node("Div", 14, &both, &[], &[], &[i64s(&[6], &[3, -3, -3, 3, 2, -2])]);
    check_node("Mod", 13, &both, &[], &[], &[i64s(&[6], &[1, 1, -1, -1, 0, 0])]);
    let fmod = [("fmod", Attr::Int(1))];
    check_node("Mod", 13, &both, &[], &fmod, &[i64s(&[6], &[1, -1, 1, -1, 0, 0])]);
    let both = [f32s(&[4], &[5.5, -5.5, 5.5, -5.5]), f32s(&[4], &[2.0, 2.0, -2.0, -2.0])];
    check_node("Mod", 13, &both, &[], &fmod, &[f32s(&[4], &[1.5, -1.5, 1.5, -1.5])]);
}

#[test]
fn powers_have_the_bases_type() {
    let (integers, halves) = (i64s(&[3], &[4, 9, 2]), f32s(&[3], &[0.5, 0.5, 3.0]));
    check_node("Pow", 15, &[integers.clone(), halves.clone()], &[], &[], &[i64s(&[3], &[2, 3, 8])]);
    check_node("Pow", 15, &[halves, integers], &[], &[], &[f32s(&[3], &[0.0625, 0.001_953_125, 9.0])]);
}

#[test]
fn comparisons_and_logic_give_truth_values() {
    let both = [f32s(&[4], &[1.0, 2.0, 3.0, f32::NAN]), f32s(&[4], &[2.0, 2.0, 2.0, 2.0])];
    for (op, expected) in [
        ("Equal", [false, true, false, false]),
        ("Less", [true, false, false, false]),
        ("LessOrEqual", [true, true, false, false]),
        ("Greater", [false, false, true, false]),
        ("GreaterOrEqual", [false, true, true, false]),
    ] {
        check_node(op, 13, &both, &[], &[], &[bools(&[4], &expected)]);
    }
    let both = [bools(&[4], &[false, true, false, true]), bools(&[4], &[false, false, true, true])];
    check_node("And", 7, &both, &[], &[], &[bools(&[4], &[false, false, false, true])]);
    check_node("Or", 7, &both, &[], &[], &[bools(&[4], &[false, true, true, true])]);
    check_node("Xor", 7, &both, &[], &[], &[bools(&[4], &[false, true, true, false])]);
    check_node("Not", 1, &both[..1], &[], &[], &[bools(&[4], &[true, false, true, false])]);
    let odd = f32s(&[4], &[1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
    check_node(
        "IsNaN",
        20,
        std::slice::from_ref(&odd),
        &[],
        &[],
        &[bools(&[4], &[false, true, false, false])],
    );
    check_node(
        "IsInf",
        20,
        std::slice::from_ref(&odd),
        &[],
        &[],
        &[bools(&[4], &[false, false, true, true])],
    );
    let below = [("detect_positive", Attr::Int(0))];
    check_node("IsInf", 20, &[odd], &[], &below, &[bools(&[4], &[false, false, false, true])]);
}

#[test]
fn what_is_no_number_stays_so() {
    let both = [f32s(&[3], &[f32::NAN, 1.0, 3.0]), f32s(&[3], &[1.0, f32::NAN, 2.0])];
    let expected = |last| [f32s(&[3], &[f32::NAN, f32::NAN, last])];
    check_node("Max", 13, &both, &[], &[], &expected(3.0));
    check_node("Min", 13, &both, &[], &[], &expected(2.0));
    check_node("Relu", 14, &both[..1], &[], &[], &[f32s(&[3], &[f32::NAN, 1.0, 3.0])]);
}

#[test]
fn any_number_of_operands() {
    let three = [f32s(&[2], &[1.0, 5.0]), f32s(&[1], &[3.0]), f32s(&[2, 1], &[2.0, 4.0])];
    let expected = |numbers: [f32; 4]| [f32s(&[2, 2], &numbers)];
    check_node("Max", 13, &three, &[], &[], &expected([3.0, 5.0, 4.0, 5.0]));
    check_node("Min", 13, &three, &[], &[], &expected([1.0, 2.0, 1.0, 3.0]));
    check_node("Sum", 13, &three, &[], &[], &expected([6.0, 10.0, 8.0, 12.0]));
    check_node("Mean", 13, &three, &[], &[], &expected([2.0, 10.0 / 3.0, 8.0 / 3.0, 4.0]));
    check_node("Sum", 13, &three[..1], &[], &[], &three[..1]);
}

#[test]
fn where_takes_one_or_the_other() {
    let condition = bools(&[2, 1], &[true, false]);
    let (yes, no) = (f32s(&[3], &[1.0, 2.0, 3.0]), f32s(&[], &[-1.0]));
    check_node(
        "Where",
        16,
        &[condition, yes, no],
        &[],
        &[],
        &[f32s(&[2, 3], &[1.0, 2.0, 3.0, -1.0, -1.0, -1.0])],
    );
}

#[test]
fn numbers_are_converted_as_cast_says() {
    let numbers = f32s(&[6], &[-1.7, -0.5, 0.0, 0.5, 1.7, 300.0]);
    let cast =
        |from: &Tensor, to: Tensor| check_node("Cast", 13, std::slice::from_ref(from), &[], &[], &[to]);
    cast(&numbers, i64s(&[6], &[-1, 0, 0, 0, 1, 300]));
    cast(&numbers, i32s(&[6], &[-1, 0, 0, 0, 1, 300]));
    cast(&numbers, bools(&[6], &[true, true, false, true, true, true]));
    cast(&bools(&[2], &[true, false]), f32s(&[2], &[1.0, 0.0]));
    cast(&i64s(&[3], &[-3, 0, 1 << 40]), f32s(&[3], &[-3.0, 0.0, (1u64 << 40) as f32]));
    cast(&i64s(&[2], &[2, 0]), bools(&[2], &[true, false]));
    cast(&f32s(&[2], &[0.5, -3.25]), f64s(&[2], &[0.5, -3.25]));
}

#[test]
fn constants_of_every_form_are_literals() {
    // Truth values that are all the same, that differ, and numbers that are all the same.
    let flags = bools(&[10], &[true, false, true, true, false, false, true, false, true, true]);
    check_node(
        "And",
        7,
        &[bools(&[10], &[true; 10])],
        std::slice::from_ref(&flags),
        &[],
        std::slice::from_ref(&flags),
    );
    check_node(
        "Or",
        7,
        std::slice::from_ref(&flags),
        &[bools(&[10], &[false; 10])],
        &[],
        std::slice::from_ref(&flags),
    );
    let numbers = f32s(&[3], &[1.0, 2.0, 3.0]);
    check_node("Add", 14, &[numbers], &[f32s(&[3], &[0.5; 3])], &[], &[f32s(&[3], &[1.5, 2.5, 3.5])]);
    check_node("Add", 14, &[i64s(&[], &[1])], &[i64s(&[], &[-3])], &[], &[i64s(&[], &[-2])]);
    let odd = [f32s(&[4], &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0])];
    check_node("Add", 14, &[f32s(&[4], &[-0.0; 4])], &odd, &[], &odd);
}
