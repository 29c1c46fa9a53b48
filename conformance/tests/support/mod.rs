//! Shared helpers of the suite's tests: libraries of this build, and children run by `devbay-judge-fixture`.
#![allow(dead_code, reason = "each test program uses a part")]

use devbay_conformance::child::Child;
use devbay_conformance::judge::{Settings, Subject, judge};
use devbay_conformance::report::Report;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Returns the path of a library of this build, which may not exist.
pub fn built(name: &str) -> PathBuf {
    // target/PROFILE/deps/TEST
    let exe = std::env::current_exe().expect("a test knows its own path");
    let profile = exe.parent().and_then(Path::parent).expect("tests are in target/PROFILE/deps");
    let file = format!("{}{name}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    // The copy among the tests' own files, in deps, may be linked without the entry.
    profile.join(file)
}

/// Returns a library of this build by its crate's name.
pub fn library(name: &str) -> PathBuf {
    let path = built(name);
    let package = name.replace('_', "-");
    assert!(path.exists(), "{} is missing; build it with `cargo build -p {package}`", path.display());
    path
}

/// Returns a child process for cases.
pub fn child(limit: Duration, environment: &[(&str, &str)]) -> Child {
    Child {
        program: env!("CARGO_BIN_EXE_devbay-judge-fixture").into(),
        arguments: Vec::new(),
        environment: environment.iter().map(|(key, value)| (key.into(), value.into())).collect(),
        limit,
    }
}

/// Returns options in the form of settings.
pub fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// The cases of the profile `compiler`, for plugins without one.
pub const COMPILER: &[&str] = &[
    "compile.formats",
    "compile.refusals",
    "compile.program",
    "compile.claims",
    "compile.claims.company",
    "compile.claims.refusals",
    "compile.graph",
    "compile.graph.info",
    "compile.graph.run",
    "compile.graph.donated",
    "compile.graph.outputs",
    "compile.graph.streams",
    "compile.graph.unclaimed",
    "compile.stored",
    "compile.stored.damaged",
    "compile.ahead",
];

/// Returns patterns in the form of settings.
pub fn patterns(list: &[&str]) -> Vec<String> {
    list.iter().map(|pattern| (*pattern).to_owned()).collect()
}

/// Tests a library in children with these variables. A case has four minutes: one takes up to ten seconds on an idle
/// machine, and the limit costs nothing unless a case hangs.
pub fn judged_with(library: PathBuf, only: &[&str], except: &[&str], environment: &[(&str, &str)]) -> Report {
    let settings = Settings {
        only: patterns(only),
        except: patterns(except),
        child: Some(child(Duration::from_secs(240), environment)),
        ..Settings::default()
    };
    judge(&Subject::Library(library), &settings, &mut |_| ())
}
