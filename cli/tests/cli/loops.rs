//! Loops with a known number of iterations become consecutive launches: on every form of a device, on one and several
//! threads, with the results of the arithmetic done here.

use devbay_host::internals::core::plan::tasks::Policy;
use devbay_host::internals::core::program::text;
use devbay_host::{Model, PlanOptions, Runtime, Session, SessionOptions, Tensor};
use std::sync::Arc;

/// Streams of two devices, and the nodes that run on the second.
const FORMS: [(&str, &[&str]); 6] = [
    ("inline,inline", &[]),
    ("async,inline", &[]),
    ("inline,inline", &["sum"]),
    ("inline,async", &["sum"]),
    ("inline,async", &["scaled"]),
    ("inline,async", &["sum", "scaled"]),
];

/// Running sums of the rows of `x` forwards, each multiplied by `w`, backwards.
const SUMS: &str = r#"devbay-program 1

program "sums"(%x: f32[5,4], %w: f32[4], %s0: f32[4]) {
  %last: f32[4], %rows: f32[5,4], %scaled: f32[5,4] = Scan@25(%s0, %x) as "scan" {num_scan_inputs = 1, scan_output_directions = [0, 1]}
    body(%s: f32[4], %row: f32[4]) {
      %t: f32[4] = Add@14(%s, %row) as "sum"
      %u: f32[4] = Mul@14(%t, %w) as "scaled"
      return %t, %t, %u
    }
  return %last, %rows, %scaled
}
"#;

fn expected_sums() -> [Vec<f32>; 3] {
    let (mut sum, mut rows, mut scaled) = ([100.0, 200.0, 300.0, 400.0], Vec::new(), Vec::new());
    for i in 0..5 {
        for (k, sum) in sum.iter_mut().enumerate() {
            *sum += (4 * i + k) as f32;
        }
        rows.extend(sum);
        let row: Vec<f32> = sum.iter().zip([1.0, 2.0, 3.0, 4.0]).map(|(s, w)| s * w).collect();
        scaled.splice(0..0, row);
    }
    [sum.to_vec(), rows, scaled]
}

fn runtime(threads: usize, streams: &str) -> Runtime {
    let option = ("cpu".to_owned(), "streams".to_owned(), streams.to_owned());
    let linked = vec![devbay_plugin_cpu::PLUGIN];
    Runtime::builder().threads(threads).link_all(linked).options([option]).build().unwrap()
}

fn session(runtime: &Runtime, source: &str, pins: &[&str], tasks: Policy) -> Session {
    let model = Model::from_program(text::parse(source).unwrap_or_else(|error| panic!("{error}")));
    let pins = pins.iter().map(|&name| (name.to_owned(), Arc::clone(&runtime.devices()[1]))).collect();
    let plans = PlanOptions { tasks, ..PlanOptions::default() };
    let options = SessionOptions { plans, pins, ..SessionOptions::default() };
    Session::with_options(&model, &runtime.devices()[0], options).unwrap_or_else(|error| panic!("{error}"))
}

fn run(session: &Session, inputs: &[(&str, &Tensor)]) -> Vec<Vec<f32>> {
    let results = session.run(inputs).unwrap_or_else(|error| panic!("{error}"));
    results.iter().map(|tensor| tensor.elements::<f32>().unwrap().to_vec()).collect()
}

#[test]
fn a_scan_is_its_iterations_on_every_form_of_device() {
    let x: Vec<f32> = (0..20u8).map(f32::from).collect();
    let x = Tensor::from_elements(&[5, 4], &x).unwrap();
    let w = Tensor::from_elements(&[4], &[1f32, 2.0, 3.0, 4.0]).unwrap();
    let s0 = Tensor::from_elements(&[4], &[100f32, 200.0, 300.0, 400.0]).unwrap();
    let inputs = [("x", &x), ("w", &w), ("s0", &s0)];
    for threads in [1, 2, 3] {
        for (streams, pins) in FORMS {
            let runtime = runtime(threads, streams);
            for tasks in [Policy::One, Policy::Each, Policy::Auto] {
                let at = format!("{streams}, pinned {pins:?}, {threads} threads, {tasks:?}");
                let session = session(&runtime, SUMS, pins, tasks);
                let plan = session.plan_for(&inputs).unwrap();
                let section = &plan.single().unwrap_or_else(|| panic!("{at}: several stages")).section;
                let kernels = section.kernels.iter().filter(|kernel| kernel.contains('@'));
                assert_eq!(kernels.count(), 10, "{at}: two launches an iteration");
                for round in 0..3 {
                    assert_eq!(run(&session, &inputs), expected_sums(), "{at}, round {round}");
                }
            }
        }
    }
}

#[test]
fn what_a_body_only_passes_on_is_collected_and_no_iteration_gives_nothing() {
    let source = |n: usize| {
        format!(
            "devbay-program 1\n\nprogram \"passed\"(%x: f32[{n},2], %c: f32[2]) {{\n  \
             %s: f32[2], %a: f32[{n},2], %b: f32[{n},2] = Scan@25(%c, %x) {{num_scan_inputs = 1}} \
             body(%t: f32[2], %row: f32[2]) {{\n return %row, %row, %c\n }}\n  return %s, %a, %b\n}}\n"
        )
    };
    for streams in ["inline,inline", "async,inline"] {
        let runtime = runtime(2, streams);
        for n in [0usize, 1, 3] {
            let values: Vec<f32> = (0..2 * n as u8).map(f32::from).collect();
            let x = Tensor::from_elements(&[n, 2], &values).unwrap();
            let c = Tensor::from_elements(&[2], &[7f32, 8.0]).unwrap();
            let session = session(&runtime, &source(n), &[], Policy::Auto);
            let last = if n == 0 { vec![7.0, 8.0] } else { values[2 * n - 2..].to_vec() };
            let found = run(&session, &[("x", &x), ("c", &c)]);
            assert_eq!(found, [last, values, [7f32, 8.0].repeat(n)], "{streams}, {n} iterations");
        }
    }
}

#[test]
fn scans_nest_and_a_loop_with_a_constant_trip_count_collects() {
    // The inner scan sums a row's elements; the loop adds its number to its carried value, and collects that.
    let source = r#"devbay-program 1

program "nested"(%x: f32[3,4], %zero: f32[], %one: f32[]) {
  %n = const i64[] [4]
  %total: f32[], %sums: f32[3,4] = Scan@25(%zero, %x) {num_scan_inputs = 1} body(%t: f32[], %row: f32[4]) {
    %u: f32[], %partial: f32[4] = Scan@25(%t, %row) {num_scan_inputs = 1} body(%v: f32[], %element: f32[]) {
      %w: f32[] = Add@14(%v, %element)
      return %w, %w
    }
    return %u, %partial
  }
  %end: f32[], %turns: f32[4] = Loop@25(%n, _, %total) body(%i: i64[], %go: bool[], %carried: f32[]) {
    %next: f32[] = Add@14(%carried, %one)
    return %go, %next, %next
  }
  return %sums, %end, %turns
}
"#;
    let values: Vec<f32> = (1..=12u8).map(f32::from).collect();
    let x = Tensor::from_elements(&[3, 4], &values).unwrap();
    let (zero, one) =
        (Tensor::from_elements(&[], &[0f32]).unwrap(), Tensor::from_elements(&[], &[1f32]).unwrap());
    let sums: Vec<f32> = values
        .iter()
        .scan(0.0, |sum, x| {
            *sum += x;
            Some(*sum)
        })
        .collect();
    for streams in ["inline,inline", "async,inline"] {
        for threads in [1, 2] {
            let runtime = runtime(threads, streams);
            let session = session(&runtime, source, &[], Policy::Auto);
            let inputs = [("x", &x), ("zero", &zero), ("one", &one)];
            let plan = session.plan_for(&inputs).unwrap();
            assert!(plan.single().is_some(), "{streams}: several stages");
            let found = run(&session, &inputs);
            assert_eq!(found, [sums.clone(), vec![82.0], vec![79.0, 80.0, 81.0, 82.0]], "{streams}");
        }
    }
}
