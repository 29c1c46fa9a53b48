//! The report as JUnit XML, which CI systems show: a suite for each topic, a test case for each test.
//!
//! A test that is not claimed, unsupported or skipped is `skipped` there, with the reason. One that ended its process
//! or did not end is an `error`.

use super::Report;
use crate::verdict::{Failure, Verdict};
use quick_junit::{
    NonSuccessKind, Report as JunitReport, SerializeError, TestCase, TestCaseStatus, TestSuite,
};
use std::time::Duration;

/// Without the two characters that XML has no way to write and quick-junit hands on.
fn in_xml(text: &str) -> String {
    text.replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}")
}

/// Writes the XML.
///
/// # Errors
/// If it cannot be written as text.
pub fn to_xml(report: &Report) -> Result<String, SerializeError> {
    let mut xml = JunitReport::new(in_xml(&format!("devbay conformance {}", report.subject)));
    for (topic, tests) in report.topics() {
        let mut suite = TestSuite::new(topic);
        for test in tests {
            let mut status = match &test.verdict {
                Verdict::Passed => TestCaseStatus::success(),
                Verdict::Failed { failure: Failure::Wrong, .. } => {
                    TestCaseStatus::non_success(NonSuccessKind::Failure)
                }
                Verdict::Failed { .. } => TestCaseStatus::non_success(NonSuccessKind::Error),
                _ => TestCaseStatus::skipped(),
            };
            if let Some(reason) = test.verdict.reason() {
                status.set_type(test.verdict.outcome());
                status.set_message(in_xml(reason));
                let mut text = format!("{}\nrequires: {}\n", test.rules.join(" "), test.requires);
                if let Some(command) = &test.reproduce {
                    text.push_str(&format!("run it alone: {command}\n"));
                }
                status.set_description(in_xml(&text));
            }
            let mut case = TestCase::new(test.id.clone(), status);
            case.set_classname(format!("devbay.{topic}"));
            case.set_time(Duration::from_secs_f64(test.duration_ms / 1000.0));
            suite.add_test_case(case);
        }
        xml.add_test_suite(suite);
    }
    xml.to_string()
}
