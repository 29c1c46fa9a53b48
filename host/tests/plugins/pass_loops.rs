//! Programs with loops and scales give on the processor what they give with all passes off, whether a loop runs or not.

use crate::library::library;
use devbay_host::internals::core::passes::Switches;
use devbay_host::internals::core::program::text;
use devbay_host::{Model, PlanOptions, Policy, Requirements, Runtime, Session, Tensor};

/// In the body of a loop of `%n` iterations, a result that is the same in each, and a division that no iteration may do.
const LOOPED: &str = r#"devbay-program 1

program "looped"(%n: i64[], %x: f32[2,2], %w: f32[2,2], %a: i64[2], %b: i64[2]) {
  %y: f32[2,2], %same, %q = Loop@25(%n, _, %x) body(%i: i64[], %go: bool[], %v: f32[2,2]) {
    %t = Transpose@25(%w) {perm = [1, 0]}
    %h = Tanh@13(%t)
    %p = MatMul@13(%v, %h)
    %s = Add@14(%p, %t)
    %z = Loop@25(%n, _, %s) body(%j: i64[], %on: bool[], %u: f32[2,2]) {
      %e = Exp@13(%h)
      %f = Sub@14(%e, %v)
      %g = Div@14(%u, %e)
      %r = Add@14(%g, %f)
      return %on, %r
    }
    %d = Div@14(%a, %b)
    return %go, %z, %h, %d
  }
  return %y, %same, %q
}
"#;

/// The carried value is replaced by one that no iteration changes, and used after the loop beside it.
const REPLACED: &str = r#"devbay-program 1

program "replaced"(%n: i64[], %x: f32[2,2], %w: f32[2,2], %a: i64[2], %b: i64[2]) {
  %y, %seen = Loop@25(%n, _, %x) body(%i: i64[], %go: bool[], %v: f32[2,2]) {
    %h = Tanh@13(%w)
    %s = Add@14(%v, %h)
    return %go, %h, %s
  }
  %scan = Scan@25(%seen) {num_scan_inputs = 1} body(%row: f32[2,2]) {
    %k = Neg@13(%w)
    %m = Mul@14(%row, %k)
    return %m
  }
  %d = Div@14(%a, %b)
  return %y, %scan, %d
}
"#;

/// Scales behind a convolution, a transposed one in groups, and both products.
const SCALED: &str = r#"devbay-program 1

program "scaled"(%n: i64[], %x: f32[2,2], %w: f32[2,2], %a: i64[2], %b: i64[2]) {
  %shape = const i64[3] [1, 2, 2]
  %kernel = const f32[2,2,2] [0.5, -1.0, 2.0, 0.25, 1.5, -0.75, 1.0, 3.0]
  %bias = const f32[2] [0.5, -0.25]
  %per_channel = const f32[2,1] [3.0, -0.7]
  %one = const f32[] [1.3]
  %back = const f32[2,1,2] [0.5, -1.0, 2.0, 0.25]
  %flat = const i64[2] [2, 2]
  %product = const f32[2,2] [1.0, 0.5, -2.0, 0.3]
  %row = const f32[2] [0.9, -4.0]
  %image = Reshape@25(%x, %shape)
  %c = Conv@22(%image, %kernel, %bias) {pads = [1, 0]}
  %c1 = Mul@14(%c, %per_channel)
  %c2 = Sub@14(%one, %c1)
  %c3 = Div@14(%c2, %per_channel)
  %t = ConvTranspose@22(%c3, %back) {group = 2, strides = [2]}
  %t1 = Add@14(%t, %per_channel)
  %t2 = Mul@14(%one, %t1)
  %m = Reshape@25(%c3, %flat)
  %g = Gemm@13(%m, %product, %row) {alpha = 0.5, beta = 2.0, transB = 1}
  %g1 = Mul@14(%g, %row)
  %g2 = Sub@14(%g1, %one)
  %p = MatMul@13(%g2, %product)
  %p1 = Div@14(%p, %row)
  return %t2, %p1
}
"#;

fn runtime() -> Runtime {
    let options = Runtime::builder().threads(2).plugin(library("cpu"));
    options.build().expect("a runtime")
}

/// Runs a program with and without passes, and expects the same; the divisors are those given.
fn expect_same(runtime: &Runtime, source: &str, pass: &str, n: i64, divisors: [i64; 2]) {
    let device = runtime.choose(&Policy::Auto, &Requirements::default()).expect("a device").device;
    let model = Model::from_program(text::parse(source).expect("a program"));
    let inputs = [
        ("n", Tensor::from_elements(&[], &[n]).expect("a tensor")),
        ("x", Tensor::from_elements(&[2, 2], &[0.5f32, -1.0, 2.0, 0.25]).expect("a tensor")),
        ("w", Tensor::from_elements(&[2, 2], &[0.1f32, 0.7, -0.3, 0.9]).expect("a tensor")),
        ("a", Tensor::from_elements(&[2], &[7i64, -9]).expect("a tensor")),
        ("b", Tensor::from_elements(&[2], &divisors).expect("a tensor")),
    ];
    let wanted: Vec<_> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let session = |passes: Switches| {
        let plans = PlanOptions { passes, ..PlanOptions::default() };
        Session::with_options(&model, &device, plans).expect("a session")
    };
    let run = |session: &Session| {
        let given: Vec<_> = session.inputs().iter().map(|port| port.name.to_string()).collect();
        let inputs: Vec<_> =
            wanted.iter().filter(|(name, _)| given.iter().any(|g| g == name)).copied().collect();
        session.run(&inputs).unwrap_or_else(|error| panic!("{pass}, {n}: {error}"))
    };
    let expected = run(&session(Switches::none()));
    let others = Switches::names().filter(|name| *name != pass);
    for passes in [Switches::default(), Switches::without(others).expect("names of passes")] {
        let session = session(passes);
        // The second run has memory that the first one used.
        for found in [run(&session), run(&session)] {
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found.shape(), expected.shape(), "{pass}, {n} iterations");
                match (found.elements::<f32>(), expected.elements::<f32>()) {
                    (Some(found), Some(expected)) => {
                        let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * b.abs().max(1.0);
                        let all = found.iter().zip(expected).all(close);
                        assert!(all, "{pass}, {n} iterations: {found:?}, expected {expected:?}");
                    }
                    _ => assert_eq!(found.bytes(), expected.bytes(), "{pass}, {n} iterations"),
                }
            }
        }
    }
}

#[test]
fn what_left_a_loop_gives_the_same() {
    let runtime = runtime();
    for n in [0, 1, 2, 5] {
        expect_same(&runtime, LOOPED, "hoist-loop-invariants", n, [2, -4]);
        expect_same(&runtime, REPLACED, "hoist-loop-invariants", n, [2, -4]);
    }
}

#[test]
fn a_division_by_zero_stays_in_a_loop_that_does_not_run() {
    expect_same(&runtime(), LOOPED, "hoist-loop-invariants", 0, [2, 0]);
}

#[test]
fn scales_in_weights_give_the_same() {
    expect_same(&runtime(), SCALED, "fold-scales", 0, [1, 1]);
}
