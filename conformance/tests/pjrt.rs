//! The PJRT plugin compiles programs as the suite's cases want, on the libraries that `DEVBAY_PJRT_PLUGINS` names.

mod support;

use devbay_conformance::verdict::Verdict;
use support::{judged_with, library};

#[test]
fn b23_the_compiler_is_green() {
    let required = std::env::var("DEVBAY_REQUIRE").unwrap_or_default();
    let required = required.split([',', ' ']).any(|word| word == "pjrt");
    if std::env::var_os("DEVBAY_PJRT_PLUGINS").is_none() && !required {
        eprintln!("not run: DEVBAY_PJRT_PLUGINS names no library");
        return;
    }
    let only = ["compile.*", "load.*", "negotiate.*", "devices.*"];
    let report = judged_with(library("devbay_plugin_pjrt"), &only, &[], &[]);
    let failures: Vec<String> =
        report.failures().map(|test| format!("{}: {:?}", test.id, test.verdict)).collect();
    assert!(failures.is_empty(), "{} tests failed:\n{}", failures.len(), failures.join("\n"));
    for id in ["compile.formats", "compile.refusals", "compile.program"] {
        let found = report.tests.iter().find(|test| test.id == id).map(|test| &test.verdict);
        assert_eq!(found, Some(&Verdict::Passed), "{id}");
    }
}
