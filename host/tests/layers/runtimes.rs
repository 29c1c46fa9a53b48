//! Runtimes with layers: programs give the same results, and nothing is wrong with them.

use crate::queued::{self, FORMS, World};
use devbay_host::internals::core::program::text;
use devbay_host::internals::layers::validation::Report;
use devbay_host::{ErrorKind, Model, Runtime, Session, Tensor};

const PROGRAM: &str = r#"devbay-program 1

program "sums"(%x: i64[4], %n: i64[]) {
  %a: i64[4] = test.Node@1(%x) as "a" {n = 4, plus = 1}
  %b: i64[4] = test.Node@1(%x, %a) as "b" {n = 4, plus = 2}
  %y: i64[4] = Loop@25(%n, _, %b) body(%i: i64[], %go_on: bool[], %v: i64[4]) {
    %w: i64[4] = test.Node@1(%v, %a) as "w" {n = 4}
    %more = test.Odd@1(%w) as "more"
    return %more, %w
  }
  return %y
}
"#;

fn run(layers: &[&str], threads: usize) -> (Vec<Vec<i64>>, Report) {
    let report = Report::default();
    let mut results = Vec::new();
    for &(name, _, _, entry) in FORMS {
        let world = World::new();
        let runtime = Runtime::builder()
            .threads(threads)
            .link(entry)
            .option(name, "world", world.option())
            .layers(layers.iter().copied())
            .violations(report.clone())
            .build()
            .unwrap();
        assert_eq!(runtime.devices().len(), queued::N_DEVICES, "{:?}", runtime.report());
        let model = Model::from_program(text::parse(PROGRAM).unwrap());
        for device in runtime.devices() {
            let session = Session::new(&model, &device).unwrap();
            for n in [0i64, 1, 5] {
                let x = Tensor::from_elements(&[4], &[1i64, 2, 3, n]).unwrap();
                let n = Tensor::from_elements(&[], &[n]).unwrap();
                let outputs = session.run(&[("x", &x), ("n", &n)]).unwrap();
                results.push(outputs[0].elements::<i64>().unwrap().to_vec());
            }
        }
    }
    (results, report)
}

#[test]
fn programs_are_right_behind_layers() {
    let (expected, _) = run(&[], 1);
    for layers in [["validation"].as_slice(), &["validation"; 2]] {
        for threads in [1, 3] {
            let (found, report) = run(layers, threads);
            assert_eq!(found, expected, "{layers:?}");
            assert!(report.is_clean(), "{layers:?}, {threads} threads: {:#?}", report.violations());
        }
    }
}

#[test]
fn a_layer_that_is_not_there_is_an_error() {
    let options = Runtime::builder().layers(["trace"]);
    let error = options.build().err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.text().contains("known are: validation"), "{error}");
}
