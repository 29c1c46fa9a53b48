//! The PJRT plugin passes the suite on the libraries that `DEVBAY_PJRT_PLUGINS` names: the base on memory that is typed and
//! written once, and the compiler.

mod support;

use devbay_conformance::judge::{Settings, Subject, judge};
use devbay_conformance::report::Report;
use devbay_conformance::verdict::Verdict;
use std::collections::BTreeSet;
use std::time::Duration;
use support::{child, judged_with, library, patterns};

/// Returns whether there are libraries to test.
fn is_there() -> bool {
    let required = std::env::var("DEVBAY_REQUIRE").unwrap_or_default();
    let required = required.split([',', ' ']).any(|word| word == "pjrt");
    let is_there = std::env::var_os("DEVBAY_PJRT_PLUGINS").is_some() || required;
    if !is_there {
        eprintln!("not run: DEVBAY_PJRT_PLUGINS names no library");
    }
    is_there
}

/// Libraries are opened without a probe, which may exceed its limit on a busy machine.
const UNTRIED: &[(&str, &str)] = &[("DEVBAY_PROBE", "off")];

/// Fails on failures and on unlisted skipped cases.
fn check(report: &Report, not_asked: &[&str]) {
    let failures: Vec<String> =
        report.failures().map(|test| format!("{}: {:?}", test.id, test.verdict)).collect();
    assert!(failures.is_empty(), "{} tests failed:\n{}", failures.len(), failures.join("\n"));
    let others = report.tests.iter().filter(|test| test.verdict != Verdict::Passed);
    let others: BTreeSet<&str> = others.map(|test| &*test.id).collect();
    assert_eq!(others, not_asked.iter().copied().collect());
}

#[test]
fn b23_the_compiler_is_green() {
    if is_there() {
        // PJRT allocates the results of its programs.
        let not_asked = &["compile.graph.outputs"];
        // Through the validation layer, which finds nothing.
        let settings = Settings {
            only: patterns(&["compile"]),
            validation: true,
            child: Some(child(Duration::from_secs(240), UNTRIED)),
            ..Settings::default()
        };
        let library = Subject::Library(library("devbay_plugin_pjrt"));
        check(&judge(&library, &settings, &mut |_| ()), not_asked);
    }
}

/// Features that the plugin does not offer: the amount of memory, limits on streams, waits between streams, recordings,
/// failures on request, kernels; and uses that its memory does not support: parts of a buffer, and writing it twice.
const NOT_ASKED: &[&str] = &[
    "devices.memory_info",
    "memory.too_large",
    "memory.host_visible",
    "stream.max",
    "stream.flush",
    "transfer.offsets",
    "transfer.device",
    "transfer.order",
    "transfer.zero",
    "transfer.overlap",
    "transfer.host_visible",
    "event.wait",
    "event.wait.self",
    "event.wait.destroyed",
    "replay.launches",
    "replay.nothing_else",
    "replay.copies",
    "replay.elsewhere",
    "replay.bindings",
    "stress.leak.kernels",
    "fault.memory",
    "fault.poison",
    "fault.refuse",
    "fault.refuse.launch",
    "fault.lost",
    "figure.launch",
    "figure.copy",
    "memory.limit",
    "negotiate.older",
];

#[test]
fn the_base_is_green_on_typed_memory() {
    if !is_there() {
        return;
    }
    let except =
        ["onnx", "kernel", "launch", "numerics", "specials", "interop", "compile", "stress.leak.instances"];
    check(&judged_with(library("devbay_plugin_pjrt"), &[], &except, UNTRIED), NOT_ASKED);
}

#[test]
#[ignore = "full: instances, each with a client of the library, for 20 s"]
fn instances_leave_nothing_behind() {
    if is_there() {
        check(&judged_with(library("devbay_plugin_pjrt"), &["stress.leak.instances"], &[], UNTRIED), &[]);
    }
}
