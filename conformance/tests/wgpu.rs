//! The wgpu plugin passes the suite on the machine's Vulkan driver; in the gate that is Mesa's lavapipe.

mod support;

use devbay_conformance::judge::{Settings, Subject, judge};
use devbay_conformance::report::Report;
use devbay_conformance::verdict::Verdict;
use std::time::Duration;
use support::{COMPILER, child, library, patterns};

/// Features that the plugin does not offer: memory that the host can access, a limit on streams, the amount of memory, which
/// wgpu does not report, kernels with strides or packed constants, ops whose shapes ONNX does not define, recordings, native
/// memory and streams, and a compiler of whole programs.
const NOT_OFFERED: &[&str] = &[
    "devices.memory_info",
    "memory.host_visible",
    "stream.max",
    "transfer.host_visible",
    "kernel.shape",
    "launch.workspace",
    "launch.cancelled",
    "launch.host_refs",
    "launch.packed",
    "launch.strides",
    "replay.launches",
    "replay.nothing_else",
    "replay.copies",
    "replay.elsewhere",
    "replay.bindings",
    "interop.device",
    "interop.buffers",
    "interop.refusals",
    "interop.streams",
    "fault.memory",
    "memory.limit",
    "kernel.listed",
    "negotiate.older",
];

/// Node tests that pass on the plugin's kernels, of 1,884, and ops whose generated numbers are tested.
const NODE_TESTS_PASSED: usize = 1100;
const OPS_JUDGED: usize = 140;

/// Returns a report, unless the machine has no driver; with the word `vulkan` in `DEVBAY_REQUIRE` that is a failure.
fn judged(only: &[&str], except: &[&str], validation: bool) -> Option<Report> {
    let settings = Settings {
        only: patterns(only),
        except: patterns(except),
        validation,
        child: Some(child(Duration::from_secs(240), &[])),
        ..Settings::default()
    };
    let report = judge(&Subject::Library(library("devbay_plugin_wgpu")), &settings, &mut |_| ());
    if report.tests.iter().any(|test| test.verdict == Verdict::Passed && test.id != "load.exports") {
        return Some(report);
    }
    let required = std::env::var("DEVBAY_REQUIRE").unwrap_or_default();
    let required = required.split([',', ' ']).any(|word| word == "vulkan");
    let first = report.tests.first().map(|test| format!("{}: {:?}", test.id, test.verdict));
    assert!(!required, "expected a Vulkan driver, which DEVBAY_REQUIRE asks for: {first:?}");
    eprintln!("not run: this machine has no Vulkan driver");
    None
}

fn expect_no_failures(report: &Report) {
    let failures: Vec<String> =
        report.failures().map(|test| format!("{}: {:?}", test.id, test.verdict)).collect();
    assert!(failures.is_empty(), "{} tests failed:\n{}", failures.len(), failures.join("\n"));
}

/// Cases that measure run without the layer.
const WITHOUT_LAYER: &[&str] = &["figure", "stress.leak.*"];

/// All cases but the numbers of kernels: none fails, and only listed ones are skipped. They run through the validation
/// layer, which finds nothing.
#[test]
fn the_base_is_green() {
    let except = [&["onnx", "numerics.*", "specials.*"], WITHOUT_LAYER].concat();
    let Some(validated) = judged(&[], &except, true) else { return };
    expect_no_failures(&validated);
    let Some(plain) = judged(WITHOUT_LAYER, &["stress.leak.instances"], false) else { return };
    expect_no_failures(&plain);
    let not_passed =
        validated.tests.iter().chain(&plain.tests).filter(|test| test.verdict != Verdict::Passed);
    let mut not_run: Vec<&str> = not_passed.map(|test| &*test.id).collect();
    not_run.sort_unstable();
    let mut expected = [NOT_OFFERED, COMPILER].concat();
    expected.sort_unstable();
    assert_eq!(not_run, expected, "cases that were not run");
}

#[test]
#[ignore = "full: instances of a driver's, for 20 s"]
fn instances_leave_nothing_behind() {
    let Some(report) = judged(&["stress.leak.instances"], &[], false) else { return };
    expect_no_failures(&report);
    assert!(report.summary().passed > 0, "{:?}", report.summary());
}

#[test]
fn numbers_are_right() {
    let Some(report) = judged(&["numerics.*", "specials.*"], &[], false) else { return };
    expect_no_failures(&report);
    assert!(report.summary().passed >= OPS_JUDGED, "{:?}", report.summary());
}

#[test]
fn node_tests_pass() {
    let Some(report) = judged(&["onnx"], &[], false) else { return };
    expect_no_failures(&report);
    let nodes = report.node_summary().expect("node tests ran");
    assert!(nodes.plugin.passed >= NODE_TESTS_PASSED, "{nodes:?}");
}

#[test]
#[ignore = "full: the base again, without the validation layer in front of the plugin"]
fn the_base_is_green_without_the_validation_layer() {
    let except = ["onnx", "numerics.*", "specials.*", "stress.leak.instances"];
    let Some(report) = judged(&[], &except, false) else { return };
    expect_no_failures(&report);
}
