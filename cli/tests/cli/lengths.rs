//! Inputs of changing lengths: the cache of plans with its sharing, and buckets.

use crate::support::cases;
use devbay_host::internals::compare::{Tolerance, compare};
use devbay_host::internals::core::program::text;
use devbay_host::{
    BucketOptions, DeviceTensor, Error, ErrorKind, InputView, Model, PlanOptions, Result, RunOptions,
    Runtime, Session, SessionOptions, Sizes, Tensor,
};
use std::collections::HashSet;

const TOLERANCE: Tolerance = Tolerance { relative: 1e-4, absolute: 1e-5 };

/// Masked positions have no effect: `y` has the length of `x`, `sum` does not, `side` depends on both symbols, and `fixed`
/// on neither.
const MASKED: &str = r#"devbay-program 1

program "masked"(%x: f32[batch,seq], %mask: f32[batch,seq], %w: f32[4,4]) {
  %axes: i64[] = const i64[1] [1]
  %y = Mul@14(%x, %mask)
  %sum = ReduceSum@13(%y, %axes) {keepdims = 0}
  %t = Transpose@25(%y) {perm = [1, 0]}
  %side = MatMul@13(%t, %y)
  %fixed = MatMul@13(%w, %w)
  return %y, %sum, %side, %fixed
}
"#;

fn runtime(streams: &str) -> Runtime {
    let runtime = Runtime::builder()
        .threads(2)
        .link(devbay_plugin_cpu::PLUGIN)
        .option("cpu", "streams", streams)
        .build();
    runtime.unwrap_or_else(|error| panic!("{error}"))
}

fn session(runtime: &Runtime, program: &str, options: SessionOptions) -> Result<Session> {
    let model = Model::from_program(text::parse(program).unwrap_or_else(|error| panic!("{error}")));
    Session::with_options(&model, &runtime.devices()[0], options)
}

/// Creates a session on the model.
fn of(runtime: &Runtime, program: &str, options: SessionOptions) -> Session {
    session(runtime, program, options).unwrap_or_else(|error| panic!("{error}"))
}

fn buckets(symbol: &str, sizes: &str) -> BucketOptions {
    let sizes: Sizes = sizes.parse().unwrap_or_else(|error| panic!("{error}"));
    BucketOptions { sizes: vec![(symbol.to_owned(), sizes)], ..BucketOptions::default() }
}

fn in_buckets(buckets: BucketOptions) -> SessionOptions {
    SessionOptions { buckets: Some(buckets), ..SessionOptions::default() }
}

fn plans_max(plans_max: usize) -> SessionOptions {
    SessionOptions::from(PlanOptions { plans_max, ..PlanOptions::default() })
}

fn floats(shape: &[usize], first: usize) -> Tensor {
    let values: Vec<f32> = (first..).take(shape.iter().product()).map(|i| (i % 17) as f32 - 8.0).collect();
    Tensor::from_elements(shape, &values).expect("a tensor")
}

fn ones(shape: &[usize]) -> Tensor {
    Tensor::from_elements(shape, &vec![1.0f32; shape.iter().product()]).expect("a tensor")
}

/// Returns inputs of [`MASKED`].
fn masked(batch: usize, length: usize) -> [(&'static str, Tensor); 3] {
    [("x", floats(&[batch, length], length)), ("mask", ones(&[batch, length])), ("w", floats(&[4, 4], 3))]
}

fn run(session: &Session, inputs: &[(&str, Tensor)]) -> Result<Vec<Tensor>> {
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
    session.run(&given)
}

#[track_caller]
fn expect_close(found: &[Tensor], expected: &[Tensor]) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let verdict = compare(&format!("output {i}"), found, expected, TOLERANCE);
        assert!(verdict.matches, "{verdict:?}");
    }
}

#[track_caller]
fn expect_error<T>(result: Result<T>, kind: ErrorKind, word: &str) {
    let error: Error = result.err().expect(word);
    assert!(
        error.kind() == kind && error.text().contains(word),
        "expected {kind:?} with `{word}`, found {error:?}"
    );
}

#[test]
fn plans_are_counted() {
    let runtime = runtime("inline");
    let session = of(&runtime, MASKED, plans_max(2));
    assert_eq!(session.plan_statistics().made, 0);
    for length in [3, 3, 4, 3, 5, 5] {
        run(&session, &masked(1, length)).expect("a run");
    }
    let plans = session.plan_statistics();
    assert_eq!((plans.misses, plans.made, plans.failed), (3, 3, 0), "{plans:?}");
    assert_eq!((plans.hits, plans.evicted, plans.kept, plans.kept_max), (3, 1, 2, 2), "{plans:?}");
    assert!(plans.specialising_ns > 0 && plans.planning_ns > 0, "{plans:?}");
    // A plan made ahead is not a miss, and the following run finds it.
    session.plan_for(&masked(1, 9).each_ref().map(|(name, tensor)| (*name, tensor))).expect("a plan");
    run(&session, &masked(1, 9)).expect("a run");
    let plans = session.plan_statistics();
    assert_eq!((plans.hits, plans.misses, plans.made), (4, 3, 4), "{plans:?}");
    // A failed plan is counted as such.
    let wrong = [("x", ones(&[1, 4])), ("mask", ones(&[1, 3])), ("w", ones(&[4, 4]))];
    run(&session, &wrong).expect_err("extents that do not fit each other");
    assert_eq!(session.plan_statistics().failed, 1);
}

#[test]
fn runs_into_memory_and_of_several_stages_are_counted() {
    let runtime = runtime("inline");
    // NonZero is a stage, so the plan is not a single section.
    let program = r#"devbay-program 1

program "staged"(%x: f32[n]) {
  %y = NonZero@13(%x)
  return %y
}
"#;
    let session = of(&runtime, program, SessionOptions::default());
    for _ in 0..3 {
        run(&session, &[("x", ones(&[5]))]).expect("a run");
    }
    let plans = session.plan_statistics();
    assert_eq!((plans.hits, plans.misses), (2, 1), "{plans:?}");

    let session = of(&runtime, MASKED, SessionOptions::default());
    let inputs = masked(1, 3);
    let views: Vec<InputView<'_>> = inputs.iter().map(|(_, tensor)| InputView::of(tensor)).collect();
    for _ in 0..4 {
        let (mut y, mut sum, mut side, mut fixed) = ([0; 12], [0; 4], [0; 36], [0; 64]);
        let outputs = &mut [&mut y[..], &mut sum[..], &mut side[..], &mut fixed[..]];
        session.run_into(&views, outputs, &RunOptions::default()).expect("a run");
    }
    let plans = session.plan_statistics();
    assert_eq!((plans.hits, plans.misses), (3, 1), "{plans:?}");
}

#[test]
fn threads_that_run_other_lengths_share_plans() {
    let runtime = runtime("inline");
    let reference = of(&runtime, MASKED, SessionOptions::default());
    let lengths: Vec<usize> = (1..=8).collect();
    let expected: Vec<Vec<Tensor>> =
        lengths.iter().map(|&length| run(&reference, &masked(2, length)).expect("a run")).collect();
    // With room for all, each plan is made once; with room for three, plans are evicted while other threads run them.
    for (most, all) in [(16, true), (3, false)] {
        let session = of(&runtime, MASKED, plans_max(most));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (session, expected, lengths) = (&session, &expected, &lengths);
                scope.spawn(move || {
                    for i in 0..100 {
                        let at = (i * (2 * thread + 1) + thread) % lengths.len();
                        expect_close(&run(session, &masked(2, lengths[at])).expect("a run"), &expected[at]);
                    }
                });
            }
        });
        let plans = session.plan_statistics();
        assert_eq!(plans.made - plans.evicted, plans.kept as u64, "{plans:?}");
        assert_eq!(plans.misses, plans.made, "{plans:?}");
        if all {
            assert_eq!((plans.made, plans.hits), (8, 392), "{plans:?}");
        } else {
            assert!(plans.kept == 3 && plans.evicted > 0 && plans.hits + plans.misses <= 400, "{plans:?}");
        }
    }
}

#[test]
fn what_does_not_depend_on_a_length_is_prepared_once() {
    let runtime = runtime("inline");
    let session = of(&runtime, MASKED, plans_max(2));
    let prepared = |length: usize| {
        let before = session.plan_statistics().kernels;
        run(&session, &masked(1, length)).expect("a run");
        let after = session.plan_statistics().kernels;
        (after.prepared - before.prepared, after.shared - before.shared)
    };
    let (first, shared) = prepared(3);
    assert_eq!(shared, 0);
    // The product of `w` with itself is the same for all lengths.
    assert_eq!(prepared(4), (first - 1, 1));
    assert_eq!(prepared(3), (0, 0), "there is a plan");
    // Kernels are dropped with their plans, unless another plan uses them; the plan for 3 is evicted by one of these.
    for length in [5, 6] {
        assert_eq!(prepared(length), (first - 1, 1));
    }
    assert_eq!(prepared(3), (first - 1, 1));
}

#[test]
fn lengths_in_a_bucket_share_a_plan() {
    for streams in ["inline", "async"] {
        let runtime = runtime(streams);
        let (plain, bucketed) = (
            of(&runtime, MASKED, SessionOptions::default()),
            of(
                &runtime,
                MASKED,
                in_buckets(BucketOptions { check: Some(TOLERANCE), ..buckets("seq", "4,8") }),
            ),
        );
        for length in 1..=10 {
            let inputs = masked(2, length);
            expect_close(&run(&bucketed, &inputs).expect("a run"), &run(&plain, &inputs).expect("a run"));
        }
        // Two buckets, two lengths beyond them, and one repeated run per bucket for comparison.
        assert_eq!(bucketed.plan_statistics().made, 2 + 2 + 2, "{streams}");
    }
}

#[test]
fn results_are_cropped_along_the_symbol_whatever_the_other_extents_are() {
    let runtime = runtime("inline");
    let plain = of(&runtime, MASKED, SessionOptions::default());
    let mut both = buckets("seq", "*4");
    both.sizes.push(("batch".to_owned(), Sizes::Listed(vec![4, 8])));
    let bucketed = of(&runtime, MASKED, in_buckets(both));
    for (batch, length) in [(3, 3), (4, 3), (3, 4), (1, 1), (4, 4), (5, 7), (9, 2)] {
        let inputs = masked(batch, length);
        expect_close(&run(&bucketed, &inputs).expect("a run"), &run(&plain, &inputs).expect("a run"));
    }
    let plan =
        bucketed.plan_for(&masked(1, 1).each_ref().map(|(name, tensor)| (*name, tensor))).expect("a plan");
    assert_eq!(*plan.inputs[0].shape, [4, 4]);
}

#[test]
fn every_way_to_run_pads_or_says_that_it_does_not() {
    let runtime = runtime("inline");
    let plain = of(&runtime, MASKED, SessionOptions::default());
    let bucketed = of(&runtime, MASKED, in_buckets(buckets("seq", "4,8")));
    let inputs = masked(1, 3);
    let given = inputs.each_ref().map(|(name, tensor)| (*name, tensor));
    let expected = run(&plain, &inputs).expect("a run");
    let options = RunOptions::default();
    expect_close(&bucketed.run_async(&given, &options).expect("a run").wait().expect("results"), &expected);

    let views: Vec<InputView<'_>> = inputs.iter().map(|(_, tensor)| InputView::of(tensor)).collect();
    let mut memory: Vec<Vec<u8>> = expected.iter().map(|tensor| vec![1; tensor.bytes().len()]).collect();
    let mut outputs: Vec<&mut [u8]> = memory.iter_mut().map(Vec::as_mut_slice).collect();
    bucketed.run_into(&views, &mut outputs, &options).expect("a run");
    let found: Vec<Tensor> = memory
        .iter()
        .zip(&expected)
        .map(|(bytes, expected)| {
            Tensor::from_bytes(expected.dtype(), expected.shape(), bytes).expect("a tensor")
        })
        .collect();
    expect_close(&found, &expected);

    // A padded result's size is not the result's.
    memory[0].push(0);
    let mut outputs: Vec<&mut [u8]> = memory.iter_mut().map(Vec::as_mut_slice).collect();
    let wrong = bucketed.run_into(&views, &mut outputs, &options);
    expect_error(wrong, ErrorKind::InvalidArgument, "memory of 13 bytes for result 0, expected 12");

    let bound = bucketed.bind(&views, &mut outputs).map(|_| ());
    expect_error(bound, ErrorKind::InvalidArgument, "give `seq` of 4 instead of 3");
    let on_host =
        |(name, tensor): &(&'static str, Tensor)| (*name, DeviceTensor::on_host(tensor).expect("a tensor"));
    let tensors = inputs.each_ref().map(on_host);
    let tensors = tensors.each_ref().map(|(name, tensor)| (*name, tensor));
    let on_device = bucketed.run_on_device(&tensors, None, &options).map(|_| ());
    expect_error(on_device, ErrorKind::InvalidArgument, "are not padded");
    let whole = masked(1, 4).each_ref().map(on_host);
    let whole = whole.each_ref().map(|(name, tensor)| (*name, tensor));
    bucketed.run_on_device(&whole, None, &options).expect("a length that is a bucket's");
}

/// Runs a program of one output in buckets, and expects an error.
fn refused(body: &str, pad: Option<f64>, kind: ErrorKind, word: &str) {
    let runtime = runtime("inline");
    let program = format!("devbay-program 1\n\nprogram \"p\"(%x: f32[2,n]) {{\n{body}  return %y\n}}\n");
    let options = BucketOptions {
        padding: pad.map(|value| ("x".to_owned(), value)).into_iter().collect(),
        check: Some(TOLERANCE),
        ..buckets("n", "8")
    };
    let session = of(&runtime, &program, in_buckets(options));
    expect_error(run(&session, &[("x", ones(&[2, 5]))]), kind, word);
}

#[test]
fn results_that_nobody_can_crop_are_refused() {
    let unsupported = ErrorKind::UnsupportedModel;
    refused(
        "  %y = Concat@13(%x, %x) {axis = 1}\n",
        None,
        unsupported,
        "output `y` is [2, 16] where `n` is 8",
    );
    refused(
        "  %s: i64[] = const i64[1] [-1]\n  %y = Reshape@25(%x, %s)\n",
        None,
        unsupported,
        "[10] where it is 5",
    );
    refused("  %y = NonZero@13(%x)\n", Some(1.0), unsupported, "extents that depend on data");
}

#[test]
fn a_model_that_padding_changes_is_refused_when_it_is_checked() {
    let mean = "  %axes: i64[] = const i64[1] [1]\n  %y = ReduceMean@18(%x, %axes)\n";
    refused(mean, None, ErrorKind::Mismatch, "padding `n` from 5 to 8 changes output `y`");
    // Padding with the mean gives the mean: the padding's value takes effect.
    let runtime = runtime("inline");
    let program = format!("devbay-program 1\n\nprogram \"p\"(%x: f32[2,n]) {{\n{mean}  return %y\n}}\n");
    let options =
        BucketOptions { padding: vec![("x".to_owned(), 1.0)], check: Some(TOLERANCE), ..buckets("n", "8") };
    let found = run(&of(&runtime, &program, in_buckets(options)), &[("x", ones(&[2, 5]))]).expect("a run");
    expect_close(&found, &[ones(&[2, 1])]);
}

#[test]
fn buckets_that_the_model_does_not_have_are_refused() {
    let runtime = runtime("inline");
    let made = session(&runtime, MASKED, in_buckets(buckets("length", "8")));
    expect_error(made, ErrorKind::InvalidArgument, "no input of the model's has an extent `length`");
    let session = of(&runtime, MASKED, in_buckets(buckets("seq", "8")));
    let uneven = [("x", ones(&[1, 4])), ("mask", ones(&[1, 3])), ("w", ones(&[4, 4]))];
    expect_error(
        run(&session, &uneven),
        ErrorKind::InvalidInput,
        "`seq` is 4 in input `x` and 3 in input `mask`",
    );
}

#[test]
fn a_text_model_plans_once_a_bucket() {
    // `cases` reports missing models, and fails if they are required.
    let Some(case) = cases().into_iter().find(|case| case.name.starts_with("bert_rxnfp")) else {
        return;
    };
    let model = Model::load(&case.model).expect("a model");
    let runtime = runtime("inline");
    let device = &runtime.devices()[0];
    let make = |options: SessionOptions| Session::with_options(&model, device, options).expect("a session");
    let (plain, bucketed) = (make(plans_max(64)), make(in_buckets(buckets("seq", "*8"))));
    let tensor = |values: Vec<i64>| Tensor::from_elements(&[1, values.len()], &values).expect("a tensor");
    let lengths: Vec<usize> = (5..=40).step_by(3).chain([40, 7, 33]).collect();
    for &length in &lengths {
        let inputs = [
            ("input_ids", tensor((0..length as i64).map(|i| (i * 37 + length as i64) % 500).collect())),
            ("attention_mask", tensor(vec![1; length])),
            ("token_type_ids", tensor(vec![0; length])),
        ];
        let (found, expected) =
            (run(&bucketed, &inputs).expect("a run"), run(&plain, &inputs).expect("a run"));
        assert_eq!(found[0].shape(), [1, length, 256]);
        expect_close(&found, &expected);
    }
    let distinct =
        |key: &dyn Fn(usize) -> usize| lengths.iter().map(|&n| key(n)).collect::<HashSet<_>>().len() as u64;
    assert_eq!(plain.plan_statistics().made, distinct(&|length| length));
    assert_eq!(bucketed.plan_statistics().made, distinct(&|length| length.div_ceil(8)));
}
