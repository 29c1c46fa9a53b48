//! Plugins in C, tested in child processes: the one that vendors start from passes, and those that crash, hang, print or
//! leak cost one case each.

mod support;

use devbay_conformance::judge::{Settings, Subject, judge};
use devbay_conformance::report::Report;
use devbay_conformance::verdict::{Failure, Verdict};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use support::{child, patterns};

/// Compiles a fixture with the command in its first lines, and returns the library.
fn compile(source: &str, name: &str, defines: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("libdevbay_plugin_{name}.so"));
    let output = Command::new("cc")
        .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-pedantic", "-Werror", "-shared", "-fPIC", "-pthread"])
        .args(defines.iter().map(|define| format!("-D{define}")))
        .arg("-I")
        .arg(root.join("../plugin-api/include"))
        .arg("-o")
        .arg(&library)
        .arg(root.join("fixtures").join(source))
        .args(["-Wl,-z,defs", "-lm"])
        .output()
        .expect("the tests need a C compiler called cc");
    assert!(output.status.success(), "{source} {defines:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    library
}

fn judged(library: PathBuf, only: &[&str], limit: Duration) -> Report {
    judged_but(library, only, &[], limit)
}

fn judged_but(library: PathBuf, only: &[&str], except: &[&str], limit: Duration) -> Report {
    let settings = Settings {
        child: Some(child(limit, &[])),
        only: patterns(only),
        except: patterns(except),
        ..Settings::default()
    };
    judge(&Subject::Library(library), &settings, &mut |_| ())
}

const LONG: Duration = Duration::from_secs(60);

fn failures(report: &Report) -> Vec<(&str, &Verdict)> {
    report.failures().map(|test| (&*test.id, &test.verdict)).collect()
}

#[test]
fn the_plugin_that_vendors_start_from_passes() {
    let report = judged(compile("minimal.c", "minimal", &[]), &[], LONG);
    assert_eq!(failures(&report), []);
    assert_eq!(report.plugin.as_ref().map(|plugin| plugin.name.as_str()), Some("minimal"));
    for id in ["numerics.relu", "launch.bounds", "kernel.prepare.attribute", "transfer.range", "load.exports"]
    {
        let test = report.test(id).expect("the case exists");
        assert_eq!(test.verdict, Verdict::Passed, "{id}");
    }
    // One object per case, with the outcome beside the id.
    let json = report.to_json();
    let tests = json["tests"].as_array().expect("tests are a list");
    assert_eq!(tests.len(), report.tests.len());
    let relu = tests.iter().find(|test| test["id"] == "numerics.relu").expect("the case exists");
    assert_eq!(relu["outcome"], "passed");
    let add = tests.iter().find(|test| test["id"] == "numerics.add").expect("the case exists");
    assert_eq!((&add["outcome"], &add["why"]), (&"not-claimed".into(), &"not-offered".into()));
    assert_eq!(json["summary"]["failed"], 0);
}

#[test]
fn a_plugin_with_a_worker_thread_passes() {
    // The skipped cases do not test streams, and take longest; minimal.c is tested for kernels and leaks.
    let except = ["onnx", "stress.leak", "figure"];
    let report = judged_but(compile("worker.c", "worker", &[]), &[], &except, LONG);
    assert_eq!(failures(&report), []);
    for id in [
        "stream.signal.refused",
        "stream.flush",
        "event.between",
        "event.host_wait.limits",
        "event.wait",
        "event.wait.self",
        "event.wait.destroyed",
        "event.callback.not_early",
        "event.callback.unlocked",
        "event.callback.destroy",
        "event.destroy.finishes",
        "launch.values",
        "fault.poison",
        "fault.refuse",
        "fault.refuse.launch",
        "stress.queue",
        "stress.threads",
    ] {
        let test = report.test(id).expect("the case exists");
        assert_eq!(test.verdict, Verdict::Passed, "{id}");
    }
}

#[test]
fn a_plugin_of_the_next_minor_passes() {
    let report = judged(compile("negative_process.c", "twin", &[]), &[], LONG);
    assert_eq!(failures(&report), []);
    let plugin = report.plugin.as_ref().expect("the plugin says who it is");
    assert_eq!(plugin.abi_minors.1, plugin.abi_minor + 1);
}

/// Tests a defect, and expects one case to fail in one way.
fn expect(defect: &str, defines: &[&str], only: &[&str], limit: Duration, case: &str, failure: Failure) {
    let define = format!("DEFECT={defect}");
    let defines = [&[define.as_str()], defines].concat();
    let library = compile("negative_process.c", &defect.to_lowercase(), &defines);
    // The slow cases repeat findings of others.
    let report = judged_but(library, only, &["stress", "fault", "onnx"], limit);
    match failures(&report).as_slice() {
        [(id, Verdict::Failed { failure: found, .. })] if *id == case && *found == failure => {}
        others => panic!("{defect}: expected {case} to fail ({failure:?}), found {others:?}"),
    }
}

#[test]
fn a_plugin_that_dies_costs_one_case() {
    expect("ABORT_ON_ZERO", &[], &[], LONG, "memory.zero", Failure::Died);
    expect("ERROR_AT_NULL", &[], &[], LONG, "error.absent", Failure::Died);
    expect("READ_ONLY_BASE", &[], &[], LONG, "memory.host_visible", Failure::Died);
}

#[test]
fn a_plugin_that_dies_at_load_or_exit_is_reported() {
    expect("ABORT_AT_LOAD", &[], &[], LONG, "load.entry", Failure::Died);
    expect("ABORT_AT_EXIT", &[], &[], LONG, "load.entry", Failure::Died);
}

#[test]
fn a_plugin_that_hangs_costs_one_case() {
    let limit = Duration::from_secs(5);
    expect("HANG_IN_CREATE", &[], &[], limit, "negotiate.create", Failure::TimedOut);
    expect("HANG_ON_ALIGNMENT", &[], &["memory"], limit, "memory.align", Failure::TimedOut);
    // A plugin's output is not taken for a verdict, even if it looks like one.
    let library = compile("negative_process.c", "forges", &["DEFECT=FORGES"]);
    let report = judged(library, &["negotiate.create", "shutdown.output"], limit);
    match failures(&report).as_slice() {
        [
            ("negotiate.create", Verdict::Failed { failure: Failure::TimedOut, .. }),
            ("shutdown.output", _),
        ] => {}
        others => panic!("expected create to time out, and what was printed, found {others:?}"),
    }
    // Output does not count as a sign of life.
    expect("TALKS_WITHOUT_END", &[], &["negotiate"], limit, "negotiate.create", Failure::TimedOut);
}

#[test]
fn what_is_used_after_it_was_freed_is_found() {
    expect("USES_FREED", &[], &[], LONG, "negotiate.create", Failure::Died);
}

#[test]
fn an_exception_that_leaves_a_function_costs_one_case() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let object = Path::new(env!("CARGO_TARGET_TMPDIR")).join("minimal_for_throws.o");
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libdevbay_plugin_throws.so");
    let run = |command: &mut Command| {
        let output = command.output().expect("the tests need compilers called cc and c++");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let include = root.join("../plugin-api/include");
    run(Command::new("cc")
        .args([
            "-std=c11",
            "-O2",
            "-c",
            "-fPIC",
            "-fvisibility=hidden",
            "-Ddevbay_plugin_query_v0=minimal_query",
            "-I",
        ])
        .arg(&include)
        .arg("-o")
        .arg(&object)
        .arg(root.join("fixtures/minimal.c")));
    run(Command::new("c++")
        .args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I"])
        .arg(&include)
        .arg("-o")
        .arg(&library)
        .arg(root.join("fixtures/throws.cpp"))
        .arg(&object));
    let report = judged(library, &["load.entry", "negotiate", "memory"], LONG);
    match failures(&report).as_slice() {
        [("memory.refusals", Verdict::Failed { failure: Failure::Died, .. })] => {}
        others => panic!("expected memory.refusals to die, found {others:?}"),
    }
}

#[test]
fn b28_output_symbols_and_leaks_are_found() {
    expect("PRINTS", &[], &[], LONG, "shutdown.output", Failure::Wrong);
    expect("EXPORTS", &["WITH_EXPORT"], &[], LONG, "load.exports", Failure::Wrong);
    expect("IMPORTS", &["WITH_IMPORT"], &[], LONG, "load.imports", Failure::Wrong);
    expect("LEAKS_THREADS", &[], &[], LONG, "shutdown.rounds", Failure::Wrong);
    expect("LEAKS_BUFFERS", &[], &[], LONG, "shutdown.memory", Failure::Wrong);
}

#[test]
fn a_file_that_is_no_plugin_fails_at_its_entry() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libdevbay_plugin_text.so");
    std::fs::write(&path, "no library").expect("the folder for tests can be written");
    let report = judged(path, &[], LONG);
    assert_eq!(failures(&report).len(), 1);
    assert_eq!(failures(&report)[0].0, "load.entry");
    assert!(report.plugin.is_none());
}
