//! The pass before and after.

use super::super::testing::{body, changed, check_on};

const INPUTS: &str = "%x: u8[1,2,4,4], %m: u8[3,4], %i: i8[4,3], %f: f32[1,2,4,4], %long: u8[2,40000]";

/// Scales 0.5 and 0.25, zero points of 3, of the lowest byte, and of weights.
const NUMBERS: &[&str] = &[
    "%s = const f32[] [0.5]",
    "%t = const f32[] [0.25]",
    "%z = const u8[] [3]",
    "%low = const u8[] [0]",
    "%zi = const i8[] [0]",
    "%dx: f32[1,2,4,4] = DequantizeLinear@28(%x, %s, %z)",
    "%dm: f32[3,4] = DequantizeLinear@28(%m, %s, %z)",
];

/// Expects the pass to make of lines behind [`NUMBERS`] other lines behind those that are left of them.
fn check(before: &[&str], numbers: &[usize], after: &[&str]) {
    let numbers: Vec<&str> = numbers.iter().map(|&i| NUMBERS[i]).collect();
    check_on(INPUTS, super::NAME, &body(&[NUMBERS, before].concat()), &body(&[&numbers, after].concat()));
}

/// Expects it to change nothing but what is dead.
fn stays(lines: &[&str], numbers: &[usize]) {
    check(lines, numbers, lines);
}

const WEIGHTS: &str = "%w = const i8[2,2,1,1] [1, -2, 3, 4]";
const SCALES: &str = "%ws = const f32[2] [0.5, 0.25]";
const DEQUANTISED: &str = "%dw: f32[2,2,1,1] = DequantizeLinear@28(%w, %ws) {axis = 0}";

#[test]
fn convolutions_become_sums_of_integers() {
    // Steps of 0.25 and 0.125: the bias is 4 and -24 of them.
    for bias in [
        [
            "%b = const i32[2] [4, -24]",
            "%bs = const f32[2] [0.25, 0.125]",
            "%db: f32[2] = DequantizeLinear@28(%b, %bs) {axis = 0}",
        ],
        [
            "%b = const i32[2] [2, -6]",
            "%bs = const f32[] [0.5]",
            "%db: f32[2] = DequantizeLinear@28(%b, %bs)",
        ],
        ["%db = const f32[2] [1.0, -3.0]", "", ""],
    ] {
        for relu in [None, Some("%r: f32[1,2,4,4] = Relu@14(%c)")] {
            let mut before = vec![WEIGHTS, SCALES, DEQUANTISED];
            before.extend(bias.into_iter().filter(|line| !line.is_empty()));
            before.push("%c: f32[1,2,4,4] = Conv@22(%dx, %dw, %db) {group = 1}");
            before.extend(relu);
            let end = if relu.is_some() { "%r" } else { "%c" };
            let end = format!("%y: u8[1,2,4,4] = QuantizeLinear@28({end}, %t, %low)");
            before.extend([&*end, "return %y"]);
            let after = [
                "%a = const f32[] [0.5]",
                "%az = const u8[] [3]",
                WEIGHTS,
                SCALES,
                "%wz = const i8[2] [0, 0]",
                "%ys = const f32[] [0.25]",
                "%yz = const u8[] [0]",
                "%q = const i32[2] [4, -24]",
                "%y: u8[1,2,4,4] = QLinearConv@10(%x, %a, %az, %w, %ws, %wz, %ys, %yz, %q) {group = 1}",
                "return %y",
            ];
            check(&before, &[], &after);
        }
    }
}

#[test]
fn convolutions_that_f32_makes_faster_stay() {
    let conv = |channels: usize, group: usize, window: [usize; 2], step: usize| {
        let (c_in, [h, w]) = (channels * group, window);
        let inputs = format!("%x: u8[1,{c_in},9,9]");
        let weights = vec!["1"; 16 * channels * h * w].join(", ");
        let [y_h, y_w] = window.map(|extent| (9 - extent) / step + 1);
        let lines = [
            "%s = const f32[] [0.5]".to_owned(),
            "%z = const u8[] [3]".to_owned(),
            format!("%dx: f32[1,{c_in},9,9] = DequantizeLinear@28(%x, %s, %z)"),
            format!("%w = const i8[16,{channels},{h},{w}] [{weights}]"),
            format!("%dw: f32[16,{channels},{h},{w}] = DequantizeLinear@28(%w, %s)"),
            format!(
                "%c: f32[1,16,{y_h},{y_w}] = Conv@22(%dx, %dw) {{group = {group}, strides = [{step}, {step}]}}"
            ),
            format!("%y: u8[1,16,{y_h},{y_w}] = QuantizeLinear@28(%c, %s, %z)"),
            "return %y".to_owned(),
        ];
        let program = changed(super::NAME, None, &inputs, &body(&lines.each_ref().map(String::as_str)));
        program.main.nodes.iter().any(|node| node.op.is("QLinearConv"))
    };
    // Groups of one channel and of four, the window of Winograd's products, and a first layer.
    for (channels, group, window, step) in
        [(1, 16, [3, 3], 1), (1, 16, [5, 5], 2), (4, 4, [1, 3], 1), (16, 1, [3, 3], 1), (3, 1, [3, 3], 2)]
    {
        assert!(!conv(channels, group, window, step), "{channels} of {group} groups, {window:?} by {step}");
    }
    for (channels, group, window, step) in
        [(16, 1, [3, 3], 2), (16, 1, [1, 1], 1), (3, 1, [1, 1], 1), (16, 1, [3, 1], 1)]
    {
        assert!(conv(channels, group, window, step), "{channels} of {group} groups, {window:?} by {step}");
    }
}

const CONV: &str = "%c: f32[1,2,4,4] = Conv@22(%dx, %dw)";
const END: &str = "%y: u8[1,2,4,4] = QuantizeLinear@28(%e, %t, %z)";

/// The lines of [`CONV`] in integers, to be quantised with step 0.25 and a zero point of 3.
fn in_integers(result: &str) -> Vec<String> {
    let lines = [
        "%a = const f32[] [0.5]",
        "%az = const u8[] [3]",
        WEIGHTS,
        SCALES,
        "%wz = const i8[2] [0, 0]",
        "%ys = const f32[] [0.25]",
        "%yz = const u8[] [3]",
    ];
    let mut lines: Vec<String> = lines.map(str::to_owned).into();
    lines.push(format!("{result}: u8[1,2,4,4] = QLinearConv@10(%x, %a, %az, %w, %ws, %wz, %ys, %yz)"));
    lines
}

#[test]
fn limits_that_bytes_do_not_have_are_those_of_bytes() {
    let cases: [(&[&str], &[&str]); 3] = [
        (&["%e: f32[1,2,4,4] = Relu@14(%c)"], &["%l = const u8[] [3]", "%y: u8[1,2,4,4] = Max@13(%q, %l)"]),
        (
            &[
                "%six = const f32[] [6.0]",
                "%one = const f32[] [1.0]",
                "%e: f32[1,2,4,4] = Clip@13(%c, %one, %six)",
            ],
            &[
                "%l = const u8[] [7]",
                "%p: u8[1,2,4,4] = Max@13(%q, %l)",
                "%h = const u8[] [27]",
                "%y: u8[1,2,4,4] = Min@13(%p, %h)",
            ],
        ),
        (&["%most = const f32[] [63.0]", "%e: f32[1,2,4,4] = Clip@13(%c, _, %most)"], &[]),
    ];
    for (activation, after) in cases {
        let before = [&[WEIGHTS, SCALES, DEQUANTISED, CONV], activation, &[END, "return %y"]].concat();
        let product = in_integers(if after.is_empty() { "%y" } else { "%q" });
        let product: Vec<&str> = product.iter().map(String::as_str).collect();
        check(&before, &[], &[&product, after, &["return %y"]].concat());
    }
}

/// What f32 makes of these is another number, or NaN.
#[test]
fn unusual_scales_biases_and_long_sums_stay() {
    for scale in ["nan", "inf", "0.0", "-0.5", "1e-40", "3e38"] {
        let scales = format!("%ws = const f32[2] [0.5, {scale}]");
        stays(&[WEIGHTS, &scales, DEQUANTISED, CONV, &END.replace("%e", "%c"), "return %y"], &[0, 1, 2, 5]);
    }
    for bias in ["[0.3, 1.0]", "[nan, 1.0]", "[1e30, 1.0]"] {
        let bias = format!("%db = const f32[2] {bias}");
        let conv = CONV.replace("%dw)", "%dw, %db)");
        stays(
            &[WEIGHTS, SCALES, DEQUANTISED, &bias, &conv, &END.replace("%e", "%c"), "return %y"],
            &[0, 1, 2, 5],
        );
    }
    // 40000 * 252 * 252 is beyond 2^31.
    let long = [
        "%dl: f32[2,40000] = DequantizeLinear@28(%long, %s, %z)",
        "%turned: f32[40000,2] = Transpose@25(%dl) {perm = [1, 0]}",
        "%bytes: u8[40000,2] = QuantizeLinear@28(%turned, %t, %z)",
        "%dt: f32[40000,2] = DequantizeLinear@28(%bytes, %t, %z)",
        "%c: f32[2,2] = MatMul@13(%dl, %dt)",
        "%y: u8[2,2] = QuantizeLinear@28(%c, %t, %z)",
        "return %y",
    ];
    stays(&long[..], &[0, 1, 2]);
}

#[test]
fn values_with_other_readers_and_pinned_nodes_stay() {
    let lines = [WEIGHTS, SCALES, DEQUANTISED, CONV, &END.replace("%e", "%c"), "return %y, %c"];
    stays(&lines, &[0, 1, 2, 5]);
    let pinned = format!("{CONV} as \"pinned\"");
    stays(&[WEIGHTS, SCALES, DEQUANTISED, &pinned, &END.replace("%e", "%c"), "return %y"], &[0, 1, 2, 5]);
}

#[test]
fn products_of_computed_matrices_become_sums_of_integers() {
    let matrix = "%di: f32[4,3] = DequantizeLinear@28(%i, %t, %zi)";
    let product = "%c: f32[3,3] = MatMul@13(%dm, %di)";
    let before = [matrix, product, "%y: u8[3,3] = QuantizeLinear@28(%c, %t, %z)", "return %y"];
    let after = [
        "%a = const f32[] [0.5]",
        "%az = const u8[] [3]",
        "%b = const f32[] [0.25]",
        "%bz = const i8[] [0]",
        "%ys = const f32[] [0.25]",
        "%yz = const u8[] [3]",
        "%y: u8[3,3] = QLinearMatMul@21(%m, %a, %az, %i, %b, %bz, %ys, %yz)",
        "return %y",
    ];
    check(&before, &[], &after);
    // A result of f32.
    let scaled = [
        "%ab = const f32[] [0.125]",
        "%az = const u8[] [3]",
        "%bz = const i8[] [0]",
        "%c: f32[3,3] = devbay.MatMulIntegerToFloat@1(%m, %i, %ab, %az, %bz)",
        "return %c",
    ];
    check(&[matrix, product, "return %c"], &[], &scaled);
}

#[test]
fn gemms_keep_their_bias() {
    let before = [
        "%w = const i8[2,4] [1, 2, 3, 4, 5, 6, 7, 8]",
        "%ws = const f32[2] [0.5, 0.25]",
        "%dw: f32[2,4] = DequantizeLinear@28(%w, %ws) {axis = 0}",
        "%b = const f32[2] [0.3, 0.7]",
        "%c: f32[3,2] = Gemm@13(%dm, %dw, %b) {transB = 1}",
        "return %c",
    ];
    let after = [
        "%turned = const i8[4,2] [1, 5, 2, 6, 3, 7, 4, 8]",
        "%ab = const f32[2] [0.25, 0.125]",
        "%az = const u8[] [3]",
        "%bz = const i8[2] [0, 0]",
        "%b = const f32[2] [0.3, 0.7]",
        "%c: f32[3,2] = devbay.MatMulIntegerToFloat@1(%m, %turned, %ab, %az, %bz, %b)",
        "return %c",
    ];
    check(&before, &[], &after);
}

#[test]
fn what_moves_elements_moves_bytes() {
    let cases: [(&[&str], &[&str]); 5] = [
        (
            &["%v: f32[1,4,4,4] = Concat@13(%dx, %dx) {axis = 1}"],
            &["%y: u8[1,4,4,4] = Concat@13(%x, %x) {axis = 1}"],
        ),
        (
            &[
                "%u: f32[4,4,2,1] = Transpose@25(%dx) {perm = [3, 2, 1, 0]}",
                "%ones = const i64[1] [3]",
                "%v: f32[4,4,2] = Squeeze@25(%u, %ones)",
            ],
            &[
                "%u: u8[4,4,2,1] = Transpose@25(%x) {perm = [3, 2, 1, 0]}",
                "%ones = const i64[1] [3]",
                "%y: u8[4,4,2] = Squeeze@25(%u, %ones)",
            ],
        ),
        (&["%v: f32[1,2,4,4] = Relu@14(%dx)"], &["%l = const u8[] [3]", "%y: u8[1,2,4,4] = Max@13(%x, %l)"]),
        (
            &[
                "%pads = const i64[8] [0, 0, 1, 0, 0, 0, 0, 0]",
                "%two = const f32[] [2.1]",
                "%v: f32[1,2,5,4] = Pad@25(%dx, %pads, %two)",
            ],
            &[
                "%pads = const i64[8] [0, 0, 1, 0, 0, 0, 0, 0]",
                "%two = const u8[] [7]",
                "%y: u8[1,2,5,4] = Pad@25(%x, %pads, %two)",
            ],
        ),
        (&["%v: f32[1,2,4,4] = Identity@25(%dx)"], &["%y: u8[1,2,4,4] = Identity@25(%x)"]),
    ];
    for (before, after) in cases {
        let shape =
            before.last().and_then(|line| line.split_once("f32")).and_then(|(_, line)| line.split_once(" ="));
        let (shape, _) = shape.expect("a type");
        let end = format!("%y: u8{shape} = QuantizeLinear@28(%v, %s, %z)");
        check(&[before, &[&end, "return %y"]].concat(), &[], &[after, &["return %y"]].concat());
    }
}

#[test]
fn a_byte_that_is_quantised_again_is_the_same_byte() {
    let same = "%y: u8[1,2,4,4] = QuantizeLinear@28(%dx, %s, %z)";
    let then = "%n: u8[1,4,4,2] = Transpose@25(%y) {perm = [0, 2, 3, 1]}";
    check(&[same, then, "return %n"], &[], &[&then.replace("%y", "%x"), "return %n"]);
    // With another scale it is not.
    let other = "%y: u8[1,2,4,4] = QuantizeLinear@28(%dx, %t, %z)";
    stays(&[other, "return %y"], &[0, 1, 2, 5]);
}

/// A conversion in front of a transposition may be the end of a convolution. A Relu makes 0 of no NaN.
#[test]
fn conversions_move_in_front_of_what_keeps_all_elements() {
    let exp = "%v: f32[1,2,4,4] = Exp@13(%f)";
    let turned = "%u: f32[1,4,4,2] = Transpose@25(%v) {perm = [0, 2, 3, 1]}";
    let end = "%y: u8[1,4,4,2] = QuantizeLinear@28(%u, %s, %z)";
    let after = [
        exp,
        "%q: u8[1,2,4,4] = QuantizeLinear@28(%v, %s, %z)",
        "%y: u8[1,4,4,2] = Transpose@25(%q) {perm = [0, 2, 3, 1]}",
        "return %y",
    ];
    check(&[exp, turned, end, "return %y"], &[0, 2], &after);
    let relu = "%u: f32[1,2,4,4] = Relu@14(%v)";
    stays(&[exp, relu, "%y: u8[1,2,4,4] = QuantizeLinear@28(%u, %s, %z)", "return %y"], &[0, 2]);
}

/// A bias next to 2^31 fits if the filter is next to nothing.
#[test]
fn the_weights_of_a_filter_decide_about_its_bias() {
    for (weights, fits) in [("[1, -2, 0, 0]", true), ("[1, -2, 9, 0]", false)] {
        let weights = format!("%w = const i8[2,2,1,1] {weights}");
        let bias = "%b = const i32[2] [4, 2147483000]";
        let before = [
            &*weights,
            SCALES,
            DEQUANTISED,
            bias,
            "%bs = const f32[2] [0.25, 0.125]",
            "%db: f32[2] = DequantizeLinear@28(%b, %bs) {axis = 0}",
            "%c: f32[1,2,4,4] = Conv@22(%dx, %dw, %db)",
            &END.replace("%e", "%c"),
            "return %y",
        ];
        if !fits {
            stays(&before, &[0, 1, 2, 5]);
            continue;
        }
        let mut after = in_integers("%y");
        after[2] = weights.clone();
        let product = after.pop().expect("a product").replace("%yz)", "%yz, %b)");
        after.extend([bias.to_owned(), product]);
        let after: Vec<&str> = after.iter().map(String::as_str).chain(["return %y"]).collect();
        check(&before, &[], &after);
    }
}

#[test]
fn parts_become_bytes_together() {
    let split = "%a: f32[1,1,4,4], %b: f32[1,1,4,4] = Split@18(%dx) {axis = 1, num_outputs = 2}";
    let ends = [
        "%p: u8[1,1,4,4] = QuantizeLinear@28(%a, %s, %z)",
        "%q: u8[1,1,4,4] = QuantizeLinear@28(%b, %s, %z)",
    ];
    let after = "%p: u8[1,1,4,4], %q: u8[1,1,4,4] = Split@18(%x) {axis = 1, num_outputs = 2}";
    check(&[split, ends[0], ends[1], "return %p, %q"], &[], &[after, "return %p, %q"]);
    stays(&[split, ends[0], "return %p, %b"], &[0, 2, 5]);
}
