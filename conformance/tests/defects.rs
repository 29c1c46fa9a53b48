//! Tests of the suite itself: plugins with exactly one defect are each caught by the case that covers it.
//!
//! They are one library, `conformance/fixtures/defective`, with its defect selected by a variable; each is tested like a
//! vendor's library, in child processes. `docs/conformance-defects.md` lists which case catches which defect.
//!
//! The gate runs only the cases of a defect's own topic, exactly one of which must find it. The tests of [`alone`] check
//! that no case of another topic finds it too.

mod support;

use devbay_conformance::case;
use devbay_conformance::report::Report;
use devbay_conformance::verdict::Verdict;
use devbay_plugin_defective::{COMPILER, Defect, VARIABLE, all};
use std::collections::BTreeSet;
use support::{judged_with, library};

/// Node tests check numbers that `numerics` checks too, and stress repeats the findings of other cases in ten times the
/// time.
const COSTLY: &[&str] = &["onnx", "stress", "fault", "figure"];

/// Cases that launch every kernel in many ways take most of the suite's time, and recordings build on them; data at fault
/// needs every function that reports failures. The gate runs these cases only for the defects that they must find; the tests
/// of [`alone`] run them for all defects of their topic.
const LAUNCH_EVERYTHING: &[&str] = &[
    "launch.order",
    "launch.slots",
    "launch.workspace",
    "launch.packed",
    "launch.values",
    "launch.cancelled",
    "shutdown.rounds",
    "replay.launches",
    "replay.nothing_else",
    "replay.copies",
    "replay.elsewhere",
    "replay.bindings",
];

/// Ops whose numbers are tested unless a defect concerns those of every op.
const OPS: &[&str] = &[
    "numerics.add",
    "numerics.matmul",
    "numerics.softmax",
    "numerics.fusedconv",
    "numerics.matmuldequantized",
    "numerics.matmulintegertofloat",
    "numerics.quantisedelementwise",
    "specials.relu",
    "specials.fusedconv",
    "specials.nhwcfusedconv",
];

/// Defects that also use freed memory in these other cases; whether that crashes or is noticed is chance.
const BY_CHANCE: &[(&str, &[&str])] = &[
    // Results are checked through a runtime, which frees memory that this one still uses. The suite's own services are
    // leaked.
    ("the-host-is-called-after-destroy", OPS),
    // Buffers are freed after unreached points, while copies in them continue.
    ("a-point-is-reached-as-soon-as-it-is-signalled-async", &["event.host_wait", "event.wait"]),
];

fn judge_defect(name: &str, only: &[&str], except: &[&str], all_numbers: bool) -> Report {
    let others = case::all().map(|case| case.id).filter(|id| !all_numbers && is_other_op(id));
    let except: Vec<&str> = except.iter().copied().chain(others).collect();
    judged_with(library("devbay_plugin_defect"), only, &except, &[(VARIABLE, name)])
}

fn is_other_op(id: &str) -> bool {
    ["numerics", "specials"].iter().any(|topic| case::matches(topic, id)) && !OPS.contains(&id)
}

/// Returns the cases that must find a defect.
fn cases(defect: &Defect) -> BTreeSet<&'static str> {
    case::all().map(|case| case.id).filter(|id| case::matches(defect.case, id)).collect()
}

/// The cases that test a defect.
#[derive(Clone, Copy, PartialEq)]
enum Asked {
    /// The cases of its own topic.
    OwnTopic,
    All,
}

/// Returns the topic of a case: `launch` of `launch.order`.
fn topic(id: &str) -> &str {
    id.split('.').next().unwrap_or(id)
}

/// Tests the defects whose case is in one of the topics, and lists those that were not caught, or not by one case alone.
fn check(topics: &[&str], asked: Asked) {
    let mut wrong = Vec::new();
    let of_topics = |defect: &Defect| topics.iter().any(|topic| case::matches(topic, defect.case));
    for defect in all().into_iter().filter(of_topics) {
        let is_costly = COSTLY.iter().any(|topic| case::matches(topic, defect.case));
        let expected = cases(&defect);
        let mut except = if is_costly { vec!["onnx", "figure"] } else { COSTLY.to_vec() };
        if asked == Asked::OwnTopic
            || !["launch", "shutdown"].iter().any(|topic| case::matches(topic, defect.case))
        {
            except.extend(LAUNCH_EVERYTHING.iter().filter(|id| !expected.contains(*id)));
        }
        if expected.len() > 1 && case::matches("specials", defect.case) {
            // Some of these are edge cases in the numbers of plain ops.
            except.push("numerics");
        }
        except.extend(
            BY_CHANCE.iter().filter(|(name, _)| *name == defect.name()).flat_map(|(_, cases)| *cases),
        );
        let own: BTreeSet<&str> = expected.iter().map(|id| topic(id)).collect();
        let only: Vec<&str> = if asked == Asked::All { Vec::new() } else { own.into_iter().collect() };
        let report = judge_defect(&defect.name(), &only, &except, expected.len() > 1);
        let caught: BTreeSet<&str> = report.failures().map(|test| &*test.id).collect();
        let reasons: Vec<_> = report.failures().map(|test| (&test.id, test.verdict.reason())).collect();
        if expected.len() > 1 {
            let missed: Vec<_> = expected.symmetric_difference(&caught).collect();
            if !missed.is_empty() {
                wrong.push(format!("{}: not as expected in {missed:?}", defect.name()));
            }
        } else if caught.is_empty() {
            wrong.push(format!("{} ({}) was not caught", defect.name(), defect.case));
        } else if caught != expected {
            wrong.push(format!("{}: expected {}, found {reasons:?}", defect.name(), defect.case));
        }
    }
    assert!(wrong.is_empty(), "{} defects:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn without_a_defect_the_library_passes() {
    for (name, except, all_numbers) in [("none", &["onnx", "figure"][..], true), ("", COSTLY, false)] {
        let report = judge_defect(name, &[], except, all_numbers);
        let failures: Vec<_> = report.failures().map(|test| (&test.id, &test.verdict)).collect();
        assert!(failures.is_empty() && report.summary().passed > 80, "{failures:?}");
    }
}

#[test]
fn without_a_defect_the_compiler_passes() {
    let report = judge_defect(COMPILER, &[], &["onnx", "figure"], true);
    let failures: Vec<_> = report.failures().map(|test| (&test.id, &test.verdict)).collect();
    assert!(failures.is_empty(), "{failures:?}");
    let passes = |id: &str| report.tests.iter().any(|test| test.id == id && test.verdict == Verdict::Passed);
    // Its memory is typed and written once, which base has cases for.
    let asked = ["memory.alloc", "memory.sizes", "transfer.round_trip", "transfer.range", "stress.threads"];
    let compiler = case::all().map(|case| case.id).filter(|id| case::matches("compile", id));
    let missing: Vec<_> =
        compiler.filter(|id| *id != "compile.program").chain(asked).filter(|id| !passes(id)).collect();
    assert!(missing.is_empty(), "not passed: {missing:?}");
}

#[test]
fn names_are_unique() {
    let mut names = BTreeSet::new();
    for defect in all() {
        assert!(names.insert(defect.name()), "two defects are called {}", defect.name());
    }
    assert!(names.len() > 100, "{}", names.len());
}

/// Defines tests of the defects of some topics by their own topic, and one of the same name below `alone`.
macro_rules! topics {
    ($(#[test] fn $name:ident() { check([$($topic:literal),*]) })*) => {
        $(
            #[test]
            fn $name() {
                check(&[$($topic),*], Asked::OwnTopic);
            }
        )*

        /// Each defect tested by all cases.
        mod alone {
            use super::{Asked, check};

            $(
                #[test]
                #[ignore = "full: what the cases of other topics say of a defect"]
                fn $name() {
                    check(&[$($topic),*], Asked::All);
                }
            )*
        }
    };
}

topics! {
    #[test]
    fn entries_and_negotiations() {
        check(["load", "negotiate", "error", "devices"])
    }
    #[test]
    fn memory() {
        check(["memory"])
    }
    #[test]
    fn copies() {
        check(["transfer"])
    }
    #[test]
    fn streams() {
        check(["stream", "event"])
    }
    #[test]
    fn extensions() {
        check(["replay", "interop"])
    }
    #[test]
    fn b23_compilers() {
        check(["compile"])
    }
    #[test]
    fn kernels() {
        check(["kernel"])
    }
    #[test]
    fn launches() {
        check(["launch", "shutdown"])
    }
    #[test]
    fn stress_and_faults() {
        check(["stress", "fault"])
    }
    #[test]
    fn numbers() {
        check(["numerics", "specials"])
    }
}

/// Cases that no defect here trips, with reasons.
const WITHOUT_A_DEFECT: &[(&str, &str)] = &[
    ("negotiate.older", "hosts of 0.9 do not support an older minor yet"),
    ("figure.launch", "a figure for information, which no plugin fails"),
    ("figure.copy", "a figure for information, which no plugin fails"),
    ("load.exports", "concerns a file's symbols: see processes.rs"),
    ("load.imports", "concerns a file's symbols: see processes.rs"),
    ("error.absent", "a plugin that writes through NULL ends the process: see processes.rs"),
    ("memory.host_visible", "a host that cannot write there ends the process: see processes.rs"),
    ("interop.streams", "concerns native streams, which the underlying plugin does not have"),
    ("compile.program", "concerns StableHLO, which the fixture's compiler does not read"),
    ("shutdown.rounds", "counted in a separate process: see processes.rs"),
    ("shutdown.memory", "measured in a separate process: see processes.rs"),
    ("shutdown.output", "collected from the cases' processes: see processes.rs"),
];

#[test]
fn every_case_has_a_defect_or_is_on_the_list_of_those_without() {
    let tripped: BTreeSet<&str> = all().iter().flat_map(cases).collect();
    let excused: BTreeSet<&str> = WITHOUT_A_DEFECT.iter().map(|(id, _)| *id).collect();
    let without: Vec<&str> =
        case::all().map(|case| case.id).filter(|id| !tripped.contains(id) && !excused.contains(id)).collect();
    assert!(without.is_empty(), "cases that no defect trips: {}", without.join(", "));
    let stale: Vec<_> = tripped.intersection(&excused).collect();
    assert!(stale.is_empty(), "these have a defect and an excuse: {stale:?}");
}

/// The document lists the suite's cases.
#[test]
fn the_document_lists_every_case() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/conformance.md");
    let text = std::fs::read_to_string(path).expect("the document is in docs");
    let listed: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    // A case for each op has one row for all of them.
    let of_ops = |case: &&case::Case| ["numerics", "specials"].contains(&case.topic());
    for case in case::all().filter(|case| !of_ops(case)) {
        let row = format!("| `{}` | {} | {} |", case.id, case.rules.join(", "), case.requires);
        assert!(text.contains(&row), "docs/conformance.md lacks this row:\n{row}");
    }
    let first = |topic: &str| case::all().find(|case| case.topic() == topic).expect("a case of each");
    for case in ["numerics", "specials"].map(first) {
        let what = case.requires.split_once(' ').map_or("", |(_, what)| what);
        let row = format!("| `{}.OP` | {} | OP {what} |", case.topic(), case.rules.join(", "));
        assert!(text.contains(&row), "docs/conformance.md lacks this row:\n{row}");
    }
    let mut known: BTreeSet<&str> = case::all().filter(|case| !of_ops(case)).map(|case| case.id).collect();
    known.extend(["numerics.OP", "specials.OP"]);
    let stale: Vec<_> = listed.iter().filter(|id| id.contains('.') && !known.contains(*id)).collect();
    assert!(stale.is_empty(), "docs/conformance.md has rows of removed cases: {stale:?}");
}

/// The document lists the suite's defects.
#[test]
fn the_document_lists_every_defect() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/conformance-defects.md");
    let text = std::fs::read_to_string(path).expect("the document is in docs");
    let row = |defect: &Defect| format!("| `{}` | {} | `{}` |", defect.name(), defect.what, defect.case);
    let missing: Vec<String> = all().iter().map(row).filter(|row| !text.contains(row)).collect();
    assert!(missing.is_empty(), "docs/conformance-defects.md lacks these rows:\n{}", missing.join("\n"));
    let n_rows = text.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(n_rows, all().len(), "the document has rows of removed defects");
}
