//! The CPU plugin passes the suite: linked and as a library, inline and asynchronous.

mod support;

use devbay_conformance::case;
use devbay_conformance::judge::{Settings, Subject, judge};
use devbay_conformance::report::Report;
use devbay_conformance::verdict::{Verdict, Why};
use devbay_host::internals::negotiate::{Entry, negotiate};
use devbay_plugin_api::abi::version::MinorRange;
use std::collections::BTreeSet;
use std::time::Duration;
use support::{COMPILER, child, library, pairs, patterns};

/// Cases that do not apply to a plugin that is linked and tested in the test's own process.
const IN_PROCESS: &[&str] = &[
    "load.exports",
    "load.imports",
    "shutdown.rounds",
    "shutdown.memory",
    "shutdown.output",
    "stress.leak.objects",
    "stress.leak.kernels",
    "stress.leak.refusals",
    "stress.leak.instances",
    "fault.memory",
];

/// Features that the CPU plugin does not offer: limits on streams, ops whose shapes ONNX does not define, kernels that only
/// some of its devices have; and an older minor, which no plugin offers.
const INLINE: &[&str] = &[
    "devices.timeline",
    "stream.max",
    "stream.fresh",
    "stream.signal",
    "stream.signal.refused",
    "stream.timeline.monotonic",
    "stream.flush",
    "event.host_wait",
    "event.host_wait.limits",
    "event.wait",
    "event.wait.self",
    "event.wait.destroyed",
    "event.unsignalled",
    "event.callback.once",
    "event.between",
    "event.callback.not_early",
    "event.callback.unlocked",
    "event.destroy",
    "event.destroy.finishes",
    "event.callback.destroy",
    "fault.in_flight",
    "fault.poison",
    "fault.refuse",
    "fault.refuse.launch",
    "fault.lost",
    "kernel.shape",
    "launch.strides",
    "replay.launches",
    "replay.nothing_else",
    "replay.copies",
    "replay.elsewhere",
    "replay.bindings",
    "interop.streams",
    "kernel.listed",
    "negotiate.older",
];

/// Asynchronous streams have private memory.
const ASYNC: &[&str] = &[
    "memory.host_visible",
    "stream.max",
    "transfer.host_visible",
    "kernel.shape",
    "launch.host_refs",
    "launch.strides",
    "interop.streams",
    "fault.lost",
    "kernel.listed",
    "negotiate.older",
];

fn expect_no_failures(report: &Report) {
    let failures: Vec<String> =
        report.failures().map(|test| format!("{}: {:?}", test.id, test.verdict)).collect();
    assert!(failures.is_empty(), "{} tests failed:\n{}", failures.len(), failures.join("\n"));
}

/// Fails with every failed case, and with unexpected ones that were not run. ONNX's node tests are checked separately.
fn expect_green(report: &Report, not_run: &[&str]) {
    expect_no_failures(report);
    let not_passed = report.tests.iter().filter(|test| test.verdict != Verdict::Passed);
    let mut found: Vec<&str> = not_passed.map(|test| &*test.id).collect();
    let mut not_run = not_run.to_vec();
    found.sort_unstable();
    not_run.sort_unstable();
    assert_eq!(found, not_run, "cases that were not run");
}

fn linked(text: &[(&str, &str)]) -> Report {
    let subject = Subject::Linked(devbay_plugin_cpu::PLUGIN);
    let settings = Settings { options: pairs(text), except: patterns(&["onnx"]), ..Settings::default() };
    judge(&subject, &settings, &mut |_| ())
}

fn loaded(text: &[(&str, &str)], except: &[&str]) -> Report {
    let settings = Settings {
        options: pairs(text),
        except: patterns(except),
        child: Some(child(Duration::from_secs(120), &[])),
        ..Settings::default()
    };
    judge(&Subject::Library(library("devbay_plugin_cpu")), &settings, &mut |_| ())
}

#[test]
fn linked_inline() {
    expect_green(&linked(&[]), &[IN_PROCESS, INLINE, COMPILER].concat());
}

#[test]
#[ignore = "full: the library has asynchronous streams too, and the linked plugin inline ones"]
fn linked_async() {
    expect_green(&linked(&[("streams", "async")]), &[IN_PROCESS, ASYNC, COMPILER].concat());
}

#[test]
fn library_inline() {
    let report = loaded(&[], &["onnx"]);
    expect_green(&report, &[INLINE, COMPILER].concat());
    // Cases note their measurements.
    let note = |id: &str| report.test(id).and_then(|test| test.note.clone()).unwrap_or_default();
    assert!(note("figure.launch").contains("ns a launch"), "{}", note("figure.launch"));
    assert!(note("numerics.lstm").contains("16 trials correct"), "{}", note("numerics.lstm"));
}

/// The numbers of kernels on asynchronous streams are tested through the validation layer.
#[test]
fn library_async() {
    let report = loaded(&[("streams", "async")], &["onnx", "numerics.*", "specials.*"]);
    expect_green(&report, &[ASYNC, COMPILER].concat());
    let plugin = report.plugin.as_ref().expect("the plugin says who it is");
    assert_eq!((plugin.name.as_str(), plugin.vendor.as_str()), ("cpu", "devbay"));
    assert!(report.tests.iter().all(|test| test.reproduce.is_some()));
}

/// Tests through the validation layer, which must find nothing; leaks are measured without it.
fn check_validated(streams: &str) {
    let settings = Settings {
        options: pairs(&[("streams", streams)]),
        except: patterns(&["onnx", "figure"]),
        validation: true,
        child: Some(child(Duration::from_secs(120), &[])),
        ..Settings::default()
    };
    let report = judge(&Subject::Library(library("devbay_plugin_cpu")), &settings, &mut |_| ());
    expect_no_failures(&report);
    assert!(report.summary().passed > 230, "{:?}", report.summary());
}

#[test]
fn behind_the_validation_layer() {
    check_validated("async");
}

#[test]
#[ignore = "full: asynchronous streams ask for more"]
fn inline_behind_the_validation_layer() {
    check_validated("inline");
}

#[test]
fn a_case_in_need_of_its_own_process_says_so_in_this_one() {
    let subject = Subject::Linked(devbay_plugin_cpu::PLUGIN);
    let settings = Settings { only: vec!["shutdown.rounds".to_owned()], ..Settings::default() };
    let report = judge(&subject, &settings, &mut |_| ());
    assert_eq!(report.tests.len(), 1);
    assert!(matches!(report.tests[0].verdict, Verdict::Skipped { why: Why::OwnProcess, .. }));
}

#[test]
fn b28_the_cpu_plugin_has_one_export_and_prints_nothing() {
    let settings = Settings {
        only: patterns(&["load.exports", "load.imports", "memory.alloc", "shutdown.output"]),
        child: Some(child(Duration::from_secs(120), &[])),
        ..Settings::default()
    };
    let report = judge(&Subject::Library(library("devbay_plugin_cpu")), &settings, &mut |_| ());
    assert_eq!((report.tests.len(), report.summary().passed), (4, 4));
}

/// ONNX's node tests on the library's kernels: none fails, and as many pass as before.
#[test]
fn node_tests_pass() {
    let settings = Settings {
        only: patterns(&["onnx"]),
        child: Some(child(Duration::from_secs(120), &[])),
        ..Settings::default()
    };
    let report = judge(&Subject::Library(library("devbay_plugin_cpu")), &settings, &mut |_| ());
    expect_no_failures(&report);
    let nodes = report.node_summary().expect("node tests ran");
    assert!(nodes.plugin.passed >= PASSED_ON_KERNELS, "{nodes:?}");
}

/// The same number passes in sessions, which is how `devbay run` runs a model.
#[test]
fn node_tests_pass_in_sessions() {
    let settings = Settings {
        only: patterns(&["onnx"]),
        path: devbay_conformance::onnx::Path::Session,
        child: Some(child(Duration::from_secs(120), &[])),
        ..Settings::default()
    };
    let report = judge(&Subject::Library(library("devbay_plugin_cpu")), &settings, &mut |_| ());
    expect_no_failures(&report);
    let nodes = report.node_summary().expect("node tests ran");
    assert!(nodes.plugin.passed >= PASSED_IN_SESSIONS, "{nodes:?}");
}

/// Of 1,884, as in docs/onnx-coverage.md; onnxruntime 1.31 passes 1,398.
const PASSED_ON_KERNELS: usize = 1718;
const PASSED_IN_SESSIONS: usize = 1872;

/// A kernel of our plugins takes strides, so that at least one plugin passes the case about them.
#[test]
fn a_kernel_that_takes_strides_passes() {
    let settings = Settings {
        only: patterns(&["launch.strides", "numerics.relu", "kernel.shape"]),
        child: Some(child(Duration::from_secs(120), &[])),
        ..Settings::default()
    };
    let report = judge(&Subject::Library(library("devbay_plugin_faulty")), &settings, &mut |_| ());
    assert_eq!(report.summary().passed, 3, "{:?}", report.tests);
}

/// Every op with a kernel has generated numbers besides ONNX's tests.
#[test]
fn every_op_with_a_kernel_has_generated_numbers() {
    let agreement = negotiate(Entry::Linked(&devbay_plugin_cpu::PLUGIN), MinorRange::CURRENT);
    let about = agreement.expect("it is of this build").about;
    let id = |op: &str| format!("numerics.{}", op.to_ascii_lowercase());
    let without: BTreeSet<&str> = about
        .kernels
        .iter()
        .map(|kernel| kernel.op.as_str())
        .filter(|op| case::find(&id(op)).is_none())
        .collect();
    assert!(without.is_empty(), "ops without a generator: {without:?}");
}
