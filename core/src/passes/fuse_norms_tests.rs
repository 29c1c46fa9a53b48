//! Before and after, in the text form, on a device that has LayerNormalization and Gelu on f32.

use super::super::testing::{body, check};
use super::*;
use crate::program::text::{parse, print};

fn becomes(before: &[&str], after: &[&str]) {
    check("fuse-norms", &body(before), &body(after));
}

fn stays(lines: &[&str]) {
    becomes(lines, lines);
}

/// A normalisation of x up to the division, `%normal`.
const NORMAL: &[&str] = &[
    "%axes = const i64[1] [-1]",
    "%two = const f32[] [2.0]",
    "%epsilon = const f32[] [1e-5]",
    "%mean: f32[2,1] = ReduceMean@18(%x, %axes)",
    "%centred: f32[2,3] = Sub@14(%x, %mean)",
    "%squares: f32[2,3] = Pow@15(%centred, %two)",
    "%variance: f32[2,1] = ReduceMean@18(%squares, %axes)",
    "%sum: f32[2,1] = Add@14(%variance, %epsilon)",
    "%root: f32[2,1] = Sqrt@13(%sum)",
    "%normal: f32[2,3] = Div@14(%centred, %root)",
];

#[test]
fn a_normalisation_with_scale_and_bias_is_one_op() {
    let bias = "%bias = const f32[3] [0.5, 0.25, 1.0]";
    becomes(
        &[
            NORMAL,
            &[bias, "%s: f32[2,3] = Mul@14(%row, %normal)", "%y: f32[2,3] = Add@14(%s, %bias)", "return %y"],
        ]
        .concat(),
        &[bias, "%y: f32[2,3] = LayerNormalization@17(%x, %row, %bias) {epsilon = 1e-5}", "return %y"],
    );
}

#[test]
fn without_a_scale_there_are_ones() {
    let ones = "%ones = const f32[3] [1.0, 1.0, 1.0]";
    becomes(
        &[NORMAL, &["return %normal"]].concat(),
        &[ones, "%y: f32[2,3] = LayerNormalization@17(%x, %ones) {epsilon = 1e-5}", "return %y"],
    );
    becomes(
        &[NORMAL, &["%y: f32[2,3] = Add@14(%normal, %row)", "return %y"]].concat(),
        &[ones, "%y: f32[2,3] = LayerNormalization@17(%x, %ones, %row) {epsilon = 1e-5}", "return %y"],
    );
    // If the product without the scale has other readers, the scale is not part of it.
    let exp = "%y: f32[2,3] = Exp@13(%s)";
    becomes(
        &[NORMAL, &["%s: f32[2,3] = Mul@14(%normal, %row)", exp, "return %y, %normal"]].concat(),
        &[
            ones,
            "%normal: f32[2,3] = LayerNormalization@17(%x, %ones) {epsilon = 1e-5}",
            "%s: f32[2,3] = Mul@14(%normal, %row)",
            exp,
            "return %y, %normal",
        ],
    );
}

#[test]
fn squares_by_a_product_two_differences_and_a_reciprocal_are_the_same() {
    becomes(
        &[
            "%axes = const i64[1] [1]",
            "%epsilon = const f32[] [1e-12]",
            "%mean: f32[2,1] = ReduceMean@18(%x, %axes)",
            "%centred: f32[2,3] = Sub@14(%x, %mean)",
            "%again: f32[2,3] = Sub@14(%x, %mean)",
            "%squares: f32[2,3] = Mul@14(%again, %again)",
            "%variance: f32[2,1] = ReduceMean@18(%squares, %axes)",
            "%sum: f32[2,1] = Add@14(%epsilon, %variance)",
            "%root: f32[2,1] = Sqrt@13(%sum)",
            "%inverse: f32[2,1] = Reciprocal@13(%root)",
            "%normal: f32[2,3] = Mul@14(%centred, %inverse)",
            "%y: f32[2,3] = Mul@14(%normal, %row)",
            "return %y",
        ],
        &["%y: f32[2,3] = LayerNormalization@17(%x, %row) {epsilon = 1e-12}", "return %y"],
    );
}

#[test]
fn normalisations_along_another_axis_and_those_whose_inside_is_used_stay() {
    stays(&[NORMAL, &["return %normal, %variance"]].concat());
    let changed = |from: &str, to: &str| -> Vec<String> {
        let lines = NORMAL.iter().chain(&["return %normal"]);
        lines.map(|line| line.replace(from, to)).collect()
    };
    let others = [
        changed("[-1]", "[0]"),
        changed("const f32[] [2.0]", "const f32[] [3.0]"),
        changed("Pow@15(%centred,", "Pow@15(%x,"),
        changed("Div@14(%centred, %root)", "Div@14(%centred, %root) as \"pinned\""),
        changed("Sub@14(%x, %mean)", "Sub@14(%x, %mean) as \"pinned\""),
    ];
    for lines in others {
        // Along the first axis the extents differ, too.
        let lines: Vec<String> = match lines[0].contains("[0]") {
            true => lines.iter().map(|line| line.replace("f32[2,1]", "f32[1,3]")).collect(),
            false => lines,
        };
        stays(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

const HALF: &str = "%half = const f32[] [0.5]";
const ONE: &str = "%one = const f32[1] [1.0]";
const GELU: &[&str] = &["%y: f32[2,3] = Gelu@20(%x)", "return %y"];

#[test]
fn a_gelu_is_one_op_in_whatever_order_it_is_written() {
    let root = "%root = const f32[] [1.4142135]";
    let erf =
        &["%d: f32[2,3] = Div@14(%x, %root)", "%e: f32[2,3] = Erf@13(%d)", "%s: f32[2,3] = Add@14(%e, %one)"];
    let ends: [&[&str]; 4] = [
        &["%product: f32[2,3] = Mul@14(%x, %s)", "%y: f32[2,3] = Mul@14(%product, %half)"],
        &["%product: f32[2,3] = Mul@14(%x, %half)", "%y: f32[2,3] = Mul@14(%s, %product)"],
        &["%product: f32[2,3] = Mul@14(%half, %s)", "%y: f32[2,3] = Mul@14(%x, %product)"],
        &[
            "%two = const f32[] [2.0]",
            "%product: f32[2,3] = Mul@14(%s, %x)",
            "%y: f32[2,3] = Div@14(%product, %two)",
        ],
    ];
    for end in ends {
        becomes(&[&[HALF, ONE, root], &erf[..], end, &["return %y"]].concat(), GELU);
    }
    let product = "%d: f32[2,3] = Mul@14(%root, %x)";
    let root = "%root = const f32[] [0.70710677]";
    becomes(&[&[HALF, ONE, root, product], &erf[1..], ends[0], &["return %y"]].concat(), GELU);
}

#[test]
fn a_gelu_by_tanh_says_so() {
    let constants = [
        HALF,
        ONE,
        "%three = const f32[] [3.0]",
        "%small = const f32[] [0.044715]",
        "%root = const f32[] [0.7978846]",
    ];
    let end = [
        "%t: f32[2,3] = Tanh@13(%u)",
        "%s: f32[2,3] = Add@14(%one, %t)",
        "%h: f32[2,3] = Mul@14(%half, %x)",
        "%y: f32[2,3] = Mul@14(%h, %s)",
        "return %y",
    ];
    let power = [
        "%c: f32[2,3] = Pow@15(%x, %three)",
        "%m: f32[2,3] = Mul@14(%c, %small)",
        "%a: f32[2,3] = Add@14(%x, %m)",
        "%u: f32[2,3] = Mul@14(%a, %root)",
    ];
    let products = [
        "%square: f32[2,3] = Mul@14(%x, %x)",
        "%c: f32[2,3] = Mul@14(%square, %x)",
        "%m: f32[2,3] = Mul@14(%small, %c)",
        "%a: f32[2,3] = Add@14(%m, %x)",
        "%u: f32[2,3] = Mul@14(%root, %a)",
    ];
    let fast = [
        "%k: f32[2,3] = Mul@14(%x, %root)",
        "%c: f32[2,3] = Mul@14(%x, %small)",
        "%m: f32[2,3] = Mul@14(%c, %x)",
        "%a: f32[2,3] = Add@14(%m, %one)",
        "%u: f32[2,3] = Mul@14(%k, %a)",
    ];
    for curve in [&power[..], &products, &fast] {
        becomes(
            &[&constants, curve, &end].concat(),
            &["%y: f32[2,3] = Gelu@20(%x) {approximate = \"tanh\"}", "return %y"],
        );
    }
}

#[test]
fn what_is_nearly_a_gelu_stays() {
    let lines = |root: &str, x: &str, results: &str| {
        [
            HALF.to_owned(),
            ONE.to_owned(),
            format!("%root = const f32[] [{root}]"),
            "%n: f32[2,3] = Neg@13(%x)".to_owned(),
            "%d: f32[2,3] = Div@14(%x, %root)".to_owned(),
            "%e: f32[2,3] = Erf@13(%d)".to_owned(),
            "%s: f32[2,3] = Add@14(%e, %one)".to_owned(),
            format!("%product: f32[2,3] = Mul@14({x}, %s)"),
            "%y: f32[2,3] = Mul@14(%product, %half)".to_owned(),
            format!("return {results}"),
        ]
    };
    for lines in
        [lines("1.5", "%x", "%y, %n"), lines("1.4142135", "%n", "%y"), lines("1.4142135", "%x", "%y, %e, %n")]
    {
        stays(&lines.each_ref().map(String::as_str));
    }
}

#[test]
fn a_device_without_the_kernels_keeps_the_ops() {
    let body = body(&[NORMAL, &["return %normal"]].concat());
    let mut program =
        parse(&format!("devbay-program 1\n\nprogram \"\"(%x: f32[2,3]) {{\n{body}}}\n")).expect("a program");
    let before = print(&program);
    assert_eq!(run(&mut program, &KernelTable::default(), &|_| false).expect("no error"), 0);
    assert_eq!(print(&program), before);
}

#[test]
fn a_hard_swish_is_one_op() {
    let whole = ["%y: f32[2,3] = HardSwish@22(%x)", "return %y"];
    let numbers = [
        "%zero = const f32[] [0.0]",
        "%three = const f32[1] [3.0]",
        "%six = const f32[] [6.0]",
        "%sum: f32[2,3] = Add@14(%three, %x)",
        "%ramp: f32[2,3] = Clip@13(%sum, %zero, %six)",
    ];
    let divided =
        ["%product: f32[2,3] = Mul@14(%x, %ramp)", "%y: f32[2,3] = Div@14(%product, %six)", "return %y"];
    becomes(&[&numbers[..], &divided].concat(), &whole);
    let sixth = [
        "%sixth = const f32[] [0.16666667]",
        "%part: f32[2,3] = Mul@14(%ramp, %sixth)",
        "%y: f32[2,3] = Mul@14(%part, %x)",
        "return %y",
    ];
    becomes(&[&numbers[..], &sixth].concat(), &whole);
    let sigmoid = |alpha: &str| {
        let ramp = format!("%ramp: f32[2,3] = HardSigmoid@22(%x) {{alpha = {alpha}}}");
        [ramp, "%y: f32[2,3] = Mul@14(%ramp, %x)".to_owned(), "return %y".to_owned()]
    };
    let lines = sigmoid("0.16666667");
    becomes(&lines.each_ref().map(|line| line.as_str()), &whole);
    // Another slope, and a ramp of something else.
    let lines = sigmoid("0.2");
    stays(&lines.each_ref().map(|line| line.as_str()));
    let other =
        ["%product: f32[2,3] = Mul@14(%row, %ramp)", "%y: f32[2,3] = Div@14(%product, %six)", "return %y"];
    stays(&[&numbers[..], &other].concat());
}
