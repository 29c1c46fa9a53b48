//! Before and after, in the text form.

use super::*;
use crate::program::text::{parse, print};
use crate::program::verify::verify;

fn program(body: &str) -> Program {
    let inputs = "%x: f32[2,2,5,5], %line: f32[2,2,5], %a: f32[3,2], %u";
    let text = format!("devbay-program 1\n\nprogram \"\"({inputs}) {{\n{body}}}\n");
    parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Expects the body of a program to become another.
fn check(folds: Folds, before: &str, after: &str) {
    let mut found = program(before);
    run(&mut found, folds, &|node| &*node.name == "pinned").unwrap();
    verify(&found).unwrap();
    assert_eq!(print(&found), print(&program(after)));
}

/// Expects that nothing is folded.
fn stays(body: &str) {
    check(Folds::Arithmetic, body, body);
}

#[test]
fn a_normalisation_becomes_weights_and_bias() {
    // k = 1/2 and 4/4; bias = offset - mean * k.
    check(
        Folds::Normalisations,
        "  %w = const f32[2,2,1,1] [2.0, 4.0, 3.0, 5.0]\n\
         \u{20} %scale = const f32[2] [1.0, 4.0]\n\
         \u{20} %offset = const f32[2] [0.5, 0.25]\n\
         \u{20} %mean = const f32[2] [1.0, 2.0]\n\
         \u{20} %variance = const f32[2] [4.0, 16.0]\n\
         \u{20} %y = Conv@22(%x, %w)\n\
         \u{20} %z = BatchNormalization@15(%y, %scale, %offset, %mean, %variance) {epsilon = 0.0}\n\
         \u{20} return %z\n",
        "  %4 = const f32[2,2,1,1] [1.0, 2.0, 3.0, 5.0]\n\
         \u{20} %5 = const f32[2] [0.0, -1.75]\n\
         \u{20} %z = Conv@22(%x, %4, %5)\n\
         \u{20} return %z\n",
    );
}

#[test]
fn a_line_of_ops_becomes_weights_and_bias_of_a_convolution() {
    // 6 - ((conv + b) * k / 2 - 1), with k per channel.
    check(
        Folds::Arithmetic,
        "  %w = const f32[2,1,1,1] [1.0, 3.0]\n\
         \u{20} %b = const f32[2] [1.0, -1.0]\n\
         \u{20} %k = const f32[2,1,1] [4.0, 8.0]\n\
         \u{20} %two = const f32[] [2.0]\n\
         \u{20} %one = const f32[1,1,1,1] [1.0]\n\
         \u{20} %six = const f32[1] [6.0]\n\
         \u{20} %y = Conv@22(%x, %w, %b) {group = 2}\n\
         \u{20} %m = Mul@14(%k, %y)\n\
         \u{20} %d = Div@14(%m, %two)\n\
         \u{20} %s = Sub@14(%d, %one)\n\
         \u{20} %r = Sub@14(%six, %s)\n\
         \u{20} return %r\n",
        "  %4 = const f32[2,1,1,1] [-2.0, -12.0]\n\
         \u{20} %5 = const f32[2] [5.0, 11.0]\n\
         \u{20} %r = Conv@22(%x, %4, %5) {group = 2}\n\
         \u{20} return %r\n",
    );
}

#[test]
fn channels_of_a_transposed_convolution_in_groups_are_along_two_axes() {
    check(
        Folds::Arithmetic,
        "  %w = const f32[2,2,1] [1.0, 1.0, 1.0, 1.0]\n\
         \u{20} %k = const f32[1,4,1] [2.0, 3.0, 4.0, 5.0]\n\
         \u{20} %y = ConvTranspose@22(%line, %w) {group = 2}\n\
         \u{20} %m = Mul@14(%y, %k)\n\
         \u{20} return %m\n",
        "  %4 = const f32[2,2,1] [2.0, 3.0, 4.0, 5.0]\n\
         \u{20} %m = ConvTranspose@22(%line, %4) {group = 2}\n\
         \u{20} return %m\n",
    );
}

#[test]
fn alpha_stays_and_beta_goes_into_the_bias() {
    // (2 a w + 0.5 * 4) * [2, 3] + 1
    check(
        Folds::Arithmetic,
        "  %w = const f32[2,2] [1.0, 2.0, 3.0, 4.0]\n\
         \u{20} %b = const f32[] [4.0]\n\
         \u{20} %k = const f32[2] [2.0, 3.0]\n\
         \u{20} %one = const f32[1,1] [1.0]\n\
         \u{20} %y = Gemm@13(%a, %w, %b) {alpha = 2.0, beta = 0.5}\n\
         \u{20} %m = Mul@14(%y, %k)\n\
         \u{20} %s = Add@14(%one, %m)\n\
         \u{20} return %s\n",
        "  %4 = const f32[2,2] [2.0, 6.0, 6.0, 12.0]\n\
         \u{20} %5 = const f32[2] [5.0, 7.0]\n\
         \u{20} %s = Gemm@13(%a, %4, %5) {alpha = 2.0, beta = 1.0}\n\
         \u{20} return %s\n",
    );
    check(
        Folds::Arithmetic,
        "  %w = const f32[2,2] [1.0, 2.0, 3.0, 4.0]\n\
         \u{20} %k = const f32[2] [2.0, 3.0]\n\
         \u{20} %y = Gemm@13(%a, %w) {transB = 1}\n\
         \u{20} %m = Mul@14(%y, %k)\n\
         \u{20} return %m\n",
        "  %4 = const f32[2,2] [2.0, 4.0, 9.0, 12.0]\n\
         \u{20} %m = Gemm@13(%a, %4) {transB = 1}\n\
         \u{20} return %m\n",
    );
}

#[test]
fn a_product_takes_factors_alone() {
    let weights = "  %w = const f32[2,2] [1.0, 2.0, 3.0, 4.0]\n";
    let product = |rest: &str| format!("{weights}{rest}");
    check(
        Folds::Arithmetic,
        &product(
            "  %k = const f32[2] [2.0, 4.0]\n  %y = MatMul@13(%u, %w)\n  %m = Div@14(%y, %k)\n  return %m\n",
        ),
        "  %4 = const f32[2,2] [0.5, 0.5, 1.5, 1.0]\n  %m = MatMul@13(%u, %4)\n  return %m\n",
    );
    for op in ["Add@14(%y, %k)", "Sub@14(%k, %y)", "Div@14(%k, %y)"] {
        let body =
            format!("  %k = const f32[2] [2.0, 4.0]\n  %y = MatMul@13(%u, %w)\n  %m = {op}\n  return %m\n");
        stays(&product(&body));
    }
    // It is unknown whether the result has two axes; here it is known.
    let wide = |x: &str| {
        format!(
            "  %k = const f32[1,2] [2.0, 4.0]\n  %y = MatMul@13({x}, %w)\n  %m = Mul@14(%y, %k)\n  return %m\n"
        )
    };
    stays(&product(&wide("%u")));
    check(
        Folds::Arithmetic,
        &product(&wide("%a")),
        "  %4 = const f32[2,2] [2.0, 8.0, 6.0, 16.0]\n  %m = MatMul@13(%a, %4)\n  return %m\n",
    );
}

#[test]
fn what_is_not_per_channel_or_needed_elsewhere_stays() {
    let conv = |constant: &str, rest: &str| {
        format!(
            "  %w = const f32[2,2,1] [1.0, 2.0, 3.0, 4.0]\n  %k = const {constant}\n\
             \u{20} %y = Conv@22(%line, %w)\n{rest}"
        )
    };
    let mul = "  %m = Mul@14(%y, %k)\n  return %m\n";
    // Along the batch, along the last axis, of a higher rank, and with no finite inverse.
    for constant in ["f32[2,1,1] [1.0, 2.0]", "f32[2] [1.0, 2.0]", "f32[1,1,2,1] [1.0, 2.0]"] {
        stays(&conv(constant, mul));
    }
    let constant = "f32[2,1] [1.0, 0.0]";
    stays(&conv(constant, "  %m = Div@14(%y, %k)\n  return %m\n"));
    stays(&conv(constant, "  %m = Mul@14(%y, %k)\n  return %m, %y\n"));
    stays(&conv(constant, "  %m = Mul@14(%y, %k) as \"pinned\"\n  return %m\n"));
    // The weights would be there twice.
    stays(&conv(constant, "  %m = Mul@14(%y, %k)\n  return %m, %w\n"));
}
