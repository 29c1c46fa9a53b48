//! A small part of the hostile corpus in the gate, on the plugins of this build; `cargo xtask hostile` runs all of it.

mod support;

use devbay_conformance::hostile::campaign::{Finding, Side, SideOutcomes, Workers, findings, run_side};
use devbay_conformance::hostile::outcome::Outcome;
use devbay_conformance::hostile::{Case, Corpus, Selection};
use std::time::Duration;
use support::{built, library};

/// One of this many changes is run.
const EVERY: usize = 97;

/// The same, for changes to both an input and a constant.
const PAIRS_EVERY: usize = 11;

/// Generous limits: being busy with other tests is not a hang.
fn workers() -> Workers {
    Workers {
        program: env!("CARGO_BIN_EXE_devbay-hostile").into(),
        arguments: ["--worker", "5000", "2048"].map(Into::into).to_vec(),
        batch: 500,
        limit: Duration::from_secs(120),
    }
}

fn side(plugin: &str) -> Side {
    Side {
        name: plugin.to_owned(),
        device: format!("{plugin}:0"),
        library: library(&format!("devbay_plugin_{plugin}")),
        environment: Vec::new(),
    }
}

fn corpus(ops: &[&str], every: usize) -> (Corpus, Vec<Case>) {
    let ops = ops.iter().map(|op| (*op).to_owned()).collect();
    let corpus = Corpus::select(&Selection { ops, seeds_per_op: 1, every });
    let cases = corpus.cases();
    (corpus, cases)
}

/// Returns the findings, one per line.
fn lines(corpus: &Corpus, cases: &[Case], sides: &[SideOutcomes]) -> Vec<String> {
    let line = |Finding { class, op, case, text, .. }: Finding| {
        format!("{class} {op} {case}, {}: {text}", corpus.describe(&case))
    };
    findings(corpus, cases, sides).into_iter().map(line).collect()
}

/// A part of every op's changes runs or is refused on the processor, without any other outcome.
#[test]
fn hostile_models_run_or_are_refused_on_the_processor() {
    let (corpus, cases) = corpus(&[], EVERY);
    assert!(corpus.n_ops() > 150, "{} ops", corpus.n_ops());
    let cpu = run_side(&side("cpu"), &workers(), &cases, &mut |_| ()).expect("workers start");
    let ran = cpu.outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Ok(_))).count();
    assert!(ran > cases.len() / 4, "{ran} of {} cases ran", cases.len());
    let found = lines(&corpus, &cases, &[cpu]);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Runs cases on the processor and on all other available sides.
fn on_all_devices(cases: &[Case]) -> Vec<SideOutcomes> {
    let cpu = run_side(&side("cpu"), &workers(), cases, &mut |_| ()).expect("workers start");
    let mut sides = vec![cpu];
    let required = std::env::var("DEVBAY_REQUIRE").unwrap_or_default();
    for (plugin, word) in [("wgpu", "vulkan"), ("opencl", "opencl")] {
        let required = required.split([',', ' ']).any(|required| required == word);
        let outcomes = match built(&format!("devbay_plugin_{plugin}")).exists() {
            true => run_side(&side(plugin), &workers(), cases, &mut |_| ()),
            false => Err(format!("the plugin {plugin} was not built")),
        };
        match outcomes {
            Ok(outcomes) => sides.push(outcomes),
            Err(error) => {
                assert!(!required, "DEVBAY_REQUIRE asks for {word}: {error}");
                eprintln!("not run: {error}");
            }
        }
    }
    // There is a result to compare.
    for side in &sides {
        let ran = side.outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Ok(_))).count();
        assert!(ran > 0, "{} ran none of {} cases", side.side.name, cases.len());
    }
    sides
}

/// GPUs agree with the processor on indices, sizes and special numbers of a few ops.
#[test]
fn devices_agree_on_hostile_models() {
    let (corpus, cases) = corpus(&["Gather", "Relu", "Clip", "MatMul", "Where"], 5);
    let sides = on_all_devices(&cases);
    let found = lines(&corpus, &cases, &sides);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// For every op, a value as an input has the same verdict and result as the same value as a constant.
#[test]
fn what_comes_with_a_run_is_judged_as_a_constant_is() {
    let (corpus, all) = corpus(&[], 1);
    let pairs = all.iter().filter_map(|case| Some([corpus.given_late(case)?, case.clone()]));
    let cases: Vec<Case> = pairs.step_by(PAIRS_EVERY).flatten().collect();
    let cpu = run_side(&side("cpu"), &workers(), &cases, &mut |_| ()).expect("workers start");
    let ran = cpu.outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Ok(_))).count();
    assert!(ran > cases.len() / 4, "{ran} of {} cases ran", cases.len());
    let found = lines(&corpus, &cases, &[cpu]);
    assert!(found.is_empty(), "{} cases\n{}", cases.len(), found.join("\n"));
}

/// For every op, all devices agree on attributes that are missing, have another type, or lists of another length; those of
/// another type are refused.
#[test]
fn devices_agree_on_the_form_of_attributes() {
    let (corpus, mut cases) = corpus(&[], 1);
    cases.retain(|case| case.mutation_idx == 0 || corpus.is_form_of_attribute(case));
    let sides = on_all_devices(&cases);
    let mut found = lines(&corpus, &cases, &sides);
    let mut n_types = 0;
    for (case, outcome) in cases.iter().zip(&sides[0].outcomes) {
        // A seed of one version lacks the attributes of others.
        let (op, words) = (corpus.op(case), corpus.describe(case));
        let row = devbay_ops::find("", &op);
        let is_known = row.is_some_and(|row| {
            row.attributes.iter().any(|attribute| words.split(' ').next() == Some(attribute.name))
        });
        if is_known && corpus.is_type_of_attribute(case) {
            n_types += 1;
            if matches!(outcome, Outcome::Ok(_)) {
                found.push(format!("{op} {case}, {words}: it ran"));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(n_types > 500, "{n_types} cases");
}

/// A worker that dies, hangs or panics costs one case, and the table counts it.
#[test]
fn what_ends_a_worker_is_the_outcome_of_its_case() {
    let (corpus, cases) = corpus(&["Relu"], 1);
    // A program that begins the first case of each batch and then ends as its variable selects.
    let script = r#"read case; printf '\n@devbay-hostile "Ready"\n\n@devbay-hostile {"Begin":0}\n'; "#;
    let check = |end: &str, class: &str| {
        let workers = Workers {
            program: "sh".into(),
            arguments: vec!["-c".into(), format!("{script}{end}").into()],
            batch: 10,
            limit: Duration::from_secs(if class == "hang" { 2 } else { 120 }),
        };
        let side = side("cpu");
        let outcomes = run_side(&side, &workers, &cases[..2], &mut |_| ()).expect("it begins cases");
        let classes: Vec<&str> = outcomes.outcomes.iter().map(Outcome::class).collect();
        assert_eq!(classes, [class, class], "{end}: {:?}", outcomes.outcomes);
        assert_eq!(findings(&corpus, &cases[..2], &[outcomes]).len(), 1, "{end}");
    };
    check("kill -SEGV $$", "crash");
    check("kill -ABRT $$", "abort");
    check("echo 'memory allocation of 12 bytes failed' >&2; kill -ABRT $$", "abort for memory");
    check("exec sleep 600", "hang");
    let end = r#"echo "thread 'main' panicked at a.rs:1:2:" >&2; echo boom >&2; printf '\n@devbay-hostile {"End":[0,{"Ok":[]}]}\n'"#;
    check(end, "panic");
}
