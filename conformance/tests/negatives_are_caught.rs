//! The suite is tested: plugins that are right but for one thing are each caught by the case that is about it.
//!
//! Set `DEVBAY_NEGATIVES=table` to print what caught what.

mod negatives;

use devbay_conformance::case;
use devbay_conformance::judge::{Settings, Subject, judge};
use negatives::Negative;
use std::collections::BTreeSet;

/// The cases that a negative trips.
fn caught_by(negative: &Negative) -> Vec<(&'static str, String)> {
    let options = negative.options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let settings = Settings { options: options.collect(), ..Settings::default() };
    let report = judge(&Subject::Linked(negative.plugin), &settings, &mut |_| ());
    report.failures().map(|test| (test.id, format!("{:?}", test.verdict))).collect()
}

/// Judges the negatives whose case is in one of the topics, and says which were not caught, or not alone.
fn check(topics: &[&str]) {
    let mut wrong = Vec::new();
    for negative in negatives::all() {
        if !topics.iter().any(|topic| case::matches(topic, negative.case)) {
            continue;
        }
        let caught = caught_by(&negative);
        if std::env::var("DEVBAY_NEGATIVES").is_ok_and(|value| value == "table") {
            eprintln!("{}: {:?}", negative.what, caught);
        }
        match caught.as_slice() {
            [(id, _)] if *id == negative.case => {}
            [] => wrong.push(format!("{} ({}) was not caught", negative.what, negative.case)),
            others => {
                wrong.push(format!("{}: expected {}, found {others:?}", negative.what, negative.case));
            }
        }
    }
    assert!(wrong.is_empty(), "{} negatives:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn entries_and_negotiations() {
    check(&["load", "negotiate", "error", "devices"]);
}

#[test]
fn memory() {
    check(&["memory"]);
}

#[test]
fn copies() {
    check(&["transfer"]);
}

#[test]
fn streams() {
    check(&["stream", "event"]);
}

#[test]
fn kernels() {
    check(&["kernel"]);
}

#[test]
fn launches() {
    check(&["launch", "shutdown"]);
}

#[test]
fn numbers() {
    check(&["numerics"]);
}

/// What no negative here trips, and why.
const WITHOUT_A_NEGATIVE: &[(&str, &str)] = &[
    ("load.exports", "about a file's symbols: see processes.rs"),
    ("load.imports", "about a file's symbols: see processes.rs"),
    ("error.absent", "a plugin that writes through NULL ends the process: see processes.rs"),
    ("memory.host_visible", "a host that cannot write there ends the process: see processes.rs"),
    ("shutdown.rounds", "counted in a process of the case's own: see processes.rs"),
    ("shutdown.memory", "measured in a process of the case's own: see processes.rs"),
    ("shutdown.output", "collected from processes of the cases' own: see processes.rs"),
];

#[test]
fn every_case_has_a_negative_or_is_on_the_list_of_those_without() {
    let tripped: BTreeSet<&str> = negatives::all().iter().map(|negative| negative.case).collect();
    let excused: BTreeSet<&str> = WITHOUT_A_NEGATIVE.iter().map(|(id, _)| *id).collect();
    let without: Vec<&str> =
        case::all().map(|case| case.id).filter(|id| !tripped.contains(id) && !excused.contains(id)).collect();
    assert!(without.is_empty(), "cases that nothing trips: {}", without.join(", "));
    let stale: Vec<_> = tripped.intersection(&excused).collect();
    assert!(stale.is_empty(), "these have a negative and an excuse: {stale:?}");
}

/// The document's list of cases is the suite's.
#[test]
fn the_document_lists_every_case() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/conformance.md");
    let text = std::fs::read_to_string(path).expect("the document is in docs");
    let listed: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    for case in case::all() {
        let row = format!("| `{}` | {} | {} |", case.id, case.rules.join(", "), case.requires);
        assert!(text.contains(&row), "docs/conformance.md lacks this row:\n{row}");
    }
    let known: BTreeSet<&str> = case::all().map(|case| case.id).collect();
    let stale: Vec<_> = listed.iter().filter(|id| id.contains('.') && !known.contains(*id)).collect();
    assert!(stale.is_empty(), "docs/conformance.md has rows of cases that are no more: {stale:?}");
}
