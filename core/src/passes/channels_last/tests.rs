//! Programs before and after. A convolution of four channels by single pixels gains almost what two reorderings of its image cost.

use super::super::testing::{body, check_on};

const IMAGES: &str = "%x: f32[1,4,2,2], %y: f32[1,2,2,4], %s: f32[1,4,1,1], %row: f32[2]";

/// Weights of four channels from four, pixel by pixel.
const WEIGHTS: &str = "  %w = const f32[4,4,1,1] [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0]\n";

fn expect(before: &[&str], after: &[&str]) {
    let with_weights = |lines: &[&str]| format!("{WEIGHTS}{}", body(lines));
    let (before, after) = (with_weights(before), with_weights(after));
    check_on(IMAGES, "channels-last", &before, &after);
    // A second run finds nothing.
    check_on(IMAGES, "channels-last", &after, &after);
}

#[test]
fn one_convolution_is_not_worth_it_and_two_are() {
    let alone = ["%a: f32[1,4,2,2] = Conv@22(%x, %w)", "return %a"];
    expect(&alone, &alone);
    expect(
        &[
            "%a: f32[1,4,2,2] = Conv@22(%x, %w)",
            "%b: f32[1,4,2,2] = Relu@14(%a)",
            "%c: f32[1,4,2,2] = Conv@22(%b, %w) as \"second\" {group = 1}",
            "return %c",
        ],
        &[
            "%x2: f32[1,2,2,4] = Transpose@25(%x) {perm = [0, 2, 3, 1]}",
            "%a: f32[1,2,2,4] = devbay.NhwcFusedConv@1(%x2, %w)",
            "%b: f32[1,2,2,4] = Relu@14(%a)",
            "%c2: f32[1,2,2,4] = devbay.NhwcFusedConv@1(%b, %w) as \"second\" {group = 1}",
            "%c: f32[1,4,2,2] = Transpose@25(%c2) {perm = [0, 3, 1, 2]}",
            "return %c",
        ],
    );
}

#[test]
fn transpositions_around_a_convolution_go() {
    expect(
        &[
            "%a: f32[1,4,2,2] = Transpose@25(%y) {perm = [0, 3, 1, 2]}",
            "%b: f32[1,4,2,2] = Conv@22(%a, %w)",
            "%c: f32[1,2,2,4] = Transpose@25(%b) {perm = [0, 2, 3, 1]}",
            "%d: f32[1,2,2,4] = Relu@14(%c)",
            "%e: f32[1,4,2,2] = Transpose@25(%d) {perm = [0, 3, 1, 2]}",
            "%f: f32[1,4,2,2] = Add@14(%e, %b)",
            "%g: f32[1,2,2,4] = Transpose@25(%f) {perm = [0, 2, 3, 1]}",
            "return %g",
        ],
        &[
            "%c: f32[1,2,2,4] = devbay.NhwcFusedConv@1(%y, %w)",
            "%d: f32[1,2,2,4] = Relu@14(%c)",
            "%g: f32[1,2,2,4] = Add@14(%d, %c)",
            "return %g",
        ],
    );
}

#[test]
fn pinned_nodes_stay() {
    let body = [
        "%a: f32[1,4,2,2] = Transpose@25(%y) as \"pinned\" {perm = [0, 3, 1, 2]}",
        "%b: f32[1,4,2,2] = Conv@22(%a, %w)",
        "%c: f32[1,4,2,2] = Relu@14(%b) as \"pinned\"",
        "%d: f32[1,2,2,4] = Transpose@25(%c) {perm = [0, 2, 3, 1]}",
        "return %d",
    ];
    expect(&body, &body);
}

/// Between two convolutions that have their channels last, all that can follow does.
fn between(op: &[&str], turned: &[&str]) {
    let x = "%x2: f32[1,2,2,4] = Transpose@25(%x) {perm = [0, 2, 3, 1]}";
    let first = ["%a: f32[1,4,2,2] = Conv@22(%x, %w)", "%b: f32[1,4,2,2] = Conv@22(%a, %w)"];
    let last = ["%y1: f32[1,4,2,2] = Conv@22(%o, %w)", "%y2: f32[1,4,2,2] = Conv@22(%y1, %w)", "return %y2"];
    let first_turned = [
        x,
        "%a: f32[1,2,2,4] = devbay.NhwcFusedConv@1(%x2, %w)",
        "%b: f32[1,2,2,4] = devbay.NhwcFusedConv@1(%a, %w)",
    ];
    let last_turned = [
        "%y1: f32[1,2,2,4] = devbay.NhwcFusedConv@1(%o, %w)",
        "%y2: f32[1,2,2,4] = devbay.NhwcFusedConv@1(%y1, %w)",
        "%y3: f32[1,4,2,2] = Transpose@25(%y2) {perm = [0, 3, 1, 2]}",
        "return %y3",
    ];
    expect(&[&first[..], op, &last].concat(), &[&first_turned[..], turned, &last_turned].concat());
}

#[test]
fn elementwise_ops_follow_with_their_constants_views_and_scalars() {
    between(
        &[
            "%bias = const f32[4,1,1] [1.0, 2.0, 3.0, 4.0]",
            "%c: f32[1,4,2,2] = Add@14(%b, %bias)",
            "%place = const f32[2,2] [1.0, 2.0, 3.0, 4.0]",
            "%d: f32[1,4,2,2] = Mul@14(%place, %c)",
            "%e: f32[1,4,2,2] = Mul@14(%d, %row)",
            "%e2: f32[1,4,2,2] = Mul@14(%e, %s)",
            "%six = const f32[] [6.0]",
            "%o: f32[1,4,2,2] = Clip@13(%e2, _, %six)",
        ],
        &[
            "%bias = const f32[1,1,1,4] [1.0, 2.0, 3.0, 4.0]",
            "%c: f32[1,2,2,4] = Add@14(%b, %bias)",
            "%place = const f32[1,2,2,1] [1.0, 2.0, 3.0, 4.0]",
            "%d: f32[1,2,2,4] = Mul@14(%place, %c)",
            "%r = const i64[4] [1, 1, 2, 1]",
            "%row2: f32[1,1,2,1] = Reshape@25(%row, %r)",
            "%e: f32[1,2,2,4] = Mul@14(%d, %row2)",
            "%r2 = const i64[4] [1, 1, 1, 4]",
            "%s2: f32[1,1,1,4] = Reshape@25(%s, %r2)",
            "%e2: f32[1,2,2,4] = Mul@14(%e, %s2)",
            "%six = const f32[] [6.0]",
            "%o: f32[1,2,2,4] = Clip@13(%e2, _, %six)",
        ],
    );
}

#[test]
fn constant_images_are_reordered_at_once() {
    between(
        &[
            "%k = const f32[1,4,2,2] [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0]",
            "%o: f32[1,4,2,2] = Sub@14(%b, %k)",
        ],
        &[
            "%k = const f32[1,2,2,4] [0.0, 4.0, 8.0, 12.0, 1.0, 5.0, 9.0, 13.0, 2.0, 6.0, 10.0, 14.0, 3.0, 7.0, 11.0, 15.0]",
            "%o: f32[1,2,2,4] = Sub@14(%b, %k)",
        ],
    );
}

#[test]
fn constants_of_lower_rank_are_padded_first() {
    let weights = "%w2 = const f32[2,4,1,1] [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0]";
    expect(
        &[
            "%a: f32[1,4,2,2] = Conv@22(%x, %w)",
            "%k = const f32[4,2,1] [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]",
            "%b: f32[1,4,2,2] = Add@14(%a, %k)",
            weights,
            "%c: f32[1,2,2,2] = Conv@22(%b, %w2)",
            "return %c",
        ],
        &[
            "%x2: f32[1,2,2,4] = Transpose@25(%x) {perm = [0, 2, 3, 1]}",
            "%a: f32[1,2,2,4] = devbay.NhwcFusedConv@1(%x2, %w)",
            "%k = const f32[1,2,1,4] [0.0, 2.0, 4.0, 6.0, 1.0, 3.0, 5.0, 7.0]",
            "%b: f32[1,2,2,4] = Add@14(%a, %k)",
            weights,
            "%c2: f32[1,2,2,2] = devbay.NhwcFusedConv@1(%b, %w2)",
            "%c: f32[1,2,2,2] = Transpose@25(%c2) {perm = [0, 3, 1, 2]}",
            "return %c",
        ],
    );
}

#[test]
fn ops_along_axes_take_them_along() {
    between(
        &[
            "%c: f32[1,4,4,2] = Concat@13(%b, %a) {axis = 2}",
            "%sizes = const i64[2] [2, 2]",
            "%d: f32[1,4,2,2], %e: f32[1,4,2,2] = Split@18(%c, %sizes) {axis = -2}",
            "%f: f32[1,4,2,2] = Softmax@13(%d) {axis = -1}",
            "%starts = const i64[2] [1, 0]",
            "%ends = const i64[2] [3, 2]",
            "%axes = const i64[2] [1, -1]",
            "%g: f32[1,2,2,2] = Slice@13(%f, %starts, %ends, %axes)",
            "%pads = const i64[8] [0, 1, 0, 2, 0, 1, 0, -2]",
            "%o: f32[1,4,2,2] = Pad@25(%g, %pads)",
        ],
        &[
            "%c: f32[1,4,2,4] = Concat@13(%b, %a) {axis = 1}",
            "%sizes = const i64[2] [2, 2]",
            "%d: f32[1,2,2,4], %e: f32[1,2,2,4] = Split@18(%c, %sizes) {axis = 1}",
            "%f: f32[1,2,2,4] = Softmax@13(%d) {axis = 2}",
            "%starts = const i64[2] [1, 0]",
            "%ends = const i64[2] [3, 2]",
            "%axes = const i64[2] [3, 2]",
            "%g: f32[1,2,2,2] = Slice@13(%f, %starts, %ends, %axes)",
            "%pads = const i64[8] [0, 0, 2, 1, 0, 0, -2, 1]",
            "%o: f32[1,2,2,4] = Pad@25(%g, %pads)",
        ],
    );
}

/// Their parts are contiguous in a batch of one.
#[test]
fn channels_that_come_second_are_put_together_for_nothing() {
    let body = [
        "%a: f32[1,4,2,2] = MaxPool@22(%x) {kernel_shape = [1, 1]}",
        "%b: f32[1,8,2,2] = Concat@13(%x, %a) {axis = 1}",
        "%c: f32[1,4,2,2], %d: f32[1,4,2,2] = Split@18(%b) {axis = 1, num_outputs = 2}",
        "%e: f32[1,4,2,2] = Conv@22(%c, %w)",
        "return %d, %e",
    ];
    expect(&body, &body);
}

#[test]
fn pools_resizes_and_means_follow() {
    between(
        &[
            "%c: f32[1,4,2,2] = MaxPool@22(%b) {kernel_shape = [1, 1], storage_order = 1}",
            "%d: f32[1,4,1,1] = AveragePool@22(%c) {kernel_shape = [2, 2]}",
            "%scales = const f32[4] [1.0, 1.0, 2.0, 2.0]",
            "%e: f32[1,4,2,2] = Resize@19(%d, _, %scales)",
            "%f: f32[1,4,1,1] = GlobalAveragePool@22(%e)",
            "%g: f32[1,4,2,2] = Mul@14(%e, %f)",
            "%axes = const i64[2] [2, 3]",
            "%h: f32[1,4] = ReduceMean@18(%g, %axes) {keepdims = 0}",
            "%l: f32[1,4] = Softmax@13(%h)",
            "%extents = const i64[4] [1, 4, 1, 1]",
            "%m: f32[1,4,1,1] = Reshape@25(%l, %extents)",
            "%o: f32[1,4,2,2] = Add@14(%g, %m)",
        ],
        &[
            "%c: f32[1,2,2,4] = devbay.NhwcMaxPool@1(%b) {kernel_shape = [1, 1]}",
            "%d: f32[1,1,1,4] = devbay.NhwcAveragePool@1(%c) {kernel_shape = [2, 2]}",
            "%scales = const f32[4] [1.0, 2.0, 2.0, 1.0]",
            "%e: f32[1,2,2,4] = Resize@19(%d, _, %scales)",
            "%pixels = const i64[2] [1, 2]",
            "%f: f32[1,1,1,4] = ReduceMean@18(%e, %pixels)",
            "%g: f32[1,2,2,4] = Mul@14(%e, %f)",
            "%axes = const i64[2] [1, 2]",
            "%h: f32[1,4] = ReduceMean@18(%g, %axes) {keepdims = 0}",
            "%l: f32[1,4] = Softmax@13(%h)",
            "%extents = const i64[4] [1, 4, 1, 1]",
            "%m: f32[1,4,1,1] = Reshape@25(%l, %extents)",
            "%extents2 = const i64[4] [1, 1, 1, 4]",
            "%m2: f32[1,1,1,4] = Reshape@25(%m, %extents2)",
            "%o: f32[1,2,2,4] = Add@14(%g, %m2)",
        ],
    );
}

#[test]
fn views_of_pixels_quantised_images_and_places_follow() {
    between(
        &[
            "%extents = const i64[3] [0, 0, -1]",
            "%c: f32[1,4,4] = Reshape@25(%b, %extents)",
            "%d: f32[1,4,4] = Relu@14(%c)",
            "%extents2 = const i64[4] [1, 4, 2, 2]",
            "%e: f32[1,4,2,2] = Reshape@25(%d, %extents2)",
            "%scale = const f32[4] [1.0, 2.0, 3.0, 4.0]",
            "%f: u8[1,4,2,2] = QuantizeLinear@28(%e, %scale)",
            "%one = const f32[] [1.0]",
            "%g: f32[1,4,2,2] = DequantizeLinear@28(%f, %one)",
            "%h: i64[1,2,2] = ArgMax@13(%g) {axis = 1, keepdims = 0}",
            "%l: f32[1,2,2] = Cast@28(%h) {to = 1}",
            "%one_axis = const i64[1] [1]",
            "%m: f32[1,2] = ReduceMax@20(%l, %one_axis) {keepdims = 0}",
            "%axes = const i64[2] [1, 2]",
            "%n: f32[1,1,1,2] = Unsqueeze@25(%m, %axes)",
            "%o: f32[1,4,2,2] = Mul@14(%g, %n)",
        ],
        &[
            "%extents = const i64[3] [1, 4, 4]",
            "%c: f32[1,4,4] = Reshape@25(%b, %extents)",
            "%d: f32[1,4,4] = Relu@14(%c)",
            "%extents2 = const i64[4] [1, 2, 2, 4]",
            "%e: f32[1,2,2,4] = Reshape@25(%d, %extents2)",
            "%scale = const f32[4] [1.0, 2.0, 3.0, 4.0]",
            "%f: u8[1,2,2,4] = QuantizeLinear@28(%e, %scale) {axis = 3}",
            "%one = const f32[] [1.0]",
            "%g: f32[1,2,2,4] = DequantizeLinear@28(%f, %one)",
            "%h: i64[1,2,2] = ArgMax@13(%g) {axis = 3, keepdims = 0}",
            "%l: f32[1,2,2] = Cast@28(%h) {to = 1}",
            "%one_axis = const i64[1] [1]",
            "%m: f32[1,2] = ReduceMax@20(%l, %one_axis) {keepdims = 0}",
            "%axes = const i64[2] [1, 2]",
            "%n: f32[1,1,1,2] = Unsqueeze@25(%m, %axes)",
            "%extents3 = const i64[4] [1, 1, 2, 1]",
            "%n2: f32[1,1,2,1] = Reshape@25(%n, %extents3)",
            "%o: f32[1,2,2,4] = Mul@14(%g, %n2)",
        ],
    );
}

/// Random programs of images: what the pass chooses is what the best of all choices costs, the result has the types that inference
/// finds, and another run finds a program of that cost.
#[cfg(not(loom))]
mod random {
    use super::super::super::testing::around;
    use super::super::images::Images;
    use super::super::orders::{Order, all_choices};
    use super::super::{costs, run};
    use super::{IMAGES, WEIGHTS};
    use crate::program::infer::infer_program;
    use crate::program::text::{parse, print};
    use crate::program::verify::verify;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// A program of steps. Images with their channels second, and last, are the last ones of two lists.
    fn source(steps: &[(u8, u8)]) -> String {
        let (mut second, mut last) = (vec!["x".to_owned()], vec!["y".to_owned()]);
        let mut body = WEIGHTS.to_owned();
        for (i, &(kind, choice)) in steps.iter().enumerate() {
            let pick = |list: &[String], back: u8| {
                list[list.len() - 1 - usize::from(back) % list.len().min(3)].clone()
            };
            let (a, b, z) = (pick(&second, choice), pick(&second, choice / 4), pick(&last, choice));
            let (image, turned) = (format!("  %v{i}: f32[1,4,2,2]"), format!("  %v{i}: f32[1,2,2,4]"));
            let is_last = matches!(kind % 11, 5..=7);
            let line = match kind % 11 {
                0 | 1 => format!("{image} = Conv@22(%{a}, %w)"),
                2 => format!("{image} = Add@14(%{a}, %{b})"),
                3 => format!("{image} = Relu@14(%{a})"),
                4 => format!("{image} = Transpose@25(%{z}) {{perm = [0, 3, 1, 2]}}"),
                5 => format!("{turned} = Transpose@25(%{a}) {{perm = [0, 2, 3, 1]}}"),
                6 => format!("{turned} = Tanh@13(%{z})"),
                7 => format!("{turned} = LayerNormalization@17(%{z}, %s4)"),
                8 => format!("{image} = MaxPool@22(%{a}) {{kernel_shape = [1, 1]}}"),
                9 => format!(
                    "  %g{i}: f32[1,4,1,1] = GlobalAveragePool@22(%{a})\n{image} = Mul@14(%{b}, %g{i})"
                ),
                _ => format!(
                    "  %c{i}: f32[1,8,2,2] = Concat@13(%{a}, %{b}) {{axis = 1}}\n\
                     \u{20} %p{i}: f32[1,4,2,2], %v{i}: f32[1,4,2,2] = Split@18(%c{i}) {{axis = 1, num_outputs = 2}}"
                ),
            };
            body += &format!("{line}\n");
            if is_last { &mut last } else { &mut second }.push(format!("v{i}"));
        }
        let results = format!("  return %{}, %{}\n", second[second.len() - 1], last[last.len() - 1]);
        format!("devbay-program 1\n\nprogram \"\"({IMAGES}, %s4: f32[4]) {{\n{body}{results}}}\n")
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]
        #[test]
        fn the_choice_is_the_best_of_all_and_stays(steps in vec(any::<(u8, u8)>(), 1..14)) {
            let mut program = parse(&source(&steps)).expect("a program");
            verify(&program).expect("a valid program");
            let found = |program: &crate::program::Program| {
                around(|around| Images::of_region(program, &program.main, around)).expect("images")
            };
            let Some(images) = found(&program) else { return Ok(()) };
            let n = images.choice.free.len();
            prop_assume!(n <= 12);
            let chosen = images.choice.cheapest();
            let cost = images.choice.cost(&chosen);
            let least = all_choices(n).map(|orders: Vec<Order>| images.choice.cost(&orders)).min();
            prop_assert_eq!(Some(cost), least);

            let turned = around(|around| run(&mut program, around)).expect("a run");
            verify(&program).expect("a valid program");
            let text = print(&program);
            infer_program(&mut program).expect("types");
            prop_assert_eq!(print(&program), text);
            let images = found(&program).expect("images");
            prop_assert_eq!(around(|around| run(&mut program, around)).expect("a run"), 0);
            let orders = images.choice.cheapest();
            prop_assert_eq!(images.choice.cost(&orders), cost - turned as u64 * costs::CHANGE);
        }
    }
}
