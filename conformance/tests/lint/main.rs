//! The linter: each finding in a library made to have only that one, libraries without findings, and files that are damaged
//! or not libraries.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod constructors;
mod damage;
mod findings;
#[path = "../support/mod.rs"]
mod support;

use devbay_conformance::lint::{CHECKS, Report, Settings, lint};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The plugin that vendors start from, with more sources and arguments, linked in its own folder.
struct Build {
    folder: PathBuf,
    sources: Vec<PathBuf>,
    arguments: Vec<String>,
    soname: Option<&'static str>,
}

impl Build {
    fn new() -> Self {
        Self::of(&[&root().join("conformance/fixtures/minimal.c")])
    }

    /// Builds from other sources than the plugin's.
    fn of(sources: &[&Path]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("lint-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).expect("a folder for the library");
        Self {
            folder,
            sources: sources.iter().map(|&path| path.to_owned()).collect(),
            arguments: Vec::new(),
            soname: Some("libdevbay_plugin_minimal.so"),
        }
    }

    /// Adds a source; the name's extension gives its language.
    fn source(mut self, name: &str, text: &str) -> Self {
        let path = self.folder.join(name);
        std::fs::write(&path, text).expect("a source of the library");
        self.sources.push(path);
        self
    }

    fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// Adds a library that the plugin needs, which exports `helper`. The plugin is linked with the file, which is beside it
    /// as `name`.
    fn needs(mut self, name: &str, soname: Option<&str>) -> Self {
        let stub = Build::of(&[]).source("stub.c", "int helper(int x) { return x; }\n");
        let path = self.folder.join(name);
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(&path).args(&stub.sources);
        cc.args(soname.map(|soname| format!("-Wl,-soname,{soname}")));
        run(&mut cc);
        std::fs::remove_dir_all(&stub.folder).expect("the stub's folder goes");
        self.arguments.push(path.display().to_string());
        self.source(
            "needs.c",
            "extern int helper(int); __attribute__((used)) static int call(void) { return helper(1); }\n",
        )
    }

    fn library(&self) -> PathBuf {
        let library = self.folder.join("libdevbay_plugin_minimal.so");
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-shared", "-fPIC", "-pthread", "-I"]).arg(root().join("plugin-api/include"));
        cc.args(self.soname.map(|soname| format!("-Wl,-soname,{soname}")));
        cc.arg("-o").arg(&library).args(&self.sources).args(&self.arguments);
        run(&mut cc);
        library
    }

    fn lint(&self) -> Report {
        lint(&self.library(), &Settings::of_system()).expect("a library")
    }

    /// Lints, and expects exactly these kinds of findings, the first with these words.
    #[track_caller]
    fn expect(self, ids: &[&str], words: &[&str]) -> Report {
        let report = self.lint();
        let found: Vec<&str> = report.findings.iter().map(|finding| finding.check.id).collect();
        assert_eq!(found, ids, "{report:#?}");
        for word in words {
            assert!(
                report.findings[0].found.contains(word),
                "expected `{word}`: {:?}",
                report.findings[0].found
            );
        }
        report
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn run(command: &mut Command) {
    let output = command.output().expect("the tests need a C and C++ compiler called cc");
    assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn b28_a_clean_library_has_no_findings() {
    let report = Build::new().expect(&[], &[]);
    assert_eq!(report.not_checked, Vec::<String>::new());
}

/// The plugins of benchmarks and tests have no name of their own, because they are not packaged.
#[test]
fn b28_our_plugins_have_no_findings() {
    for name in ["devbay_plugin_cpu", "devbay_plugin_wgpu", "devbay_plugin_cuda"] {
        let report = lint(&support::library(name), &Settings::of_system()).expect("a library");
        assert_eq!((report.findings, report.not_checked), (Vec::new(), Vec::new()), "{name}");
    }
}

#[test]
fn every_finding_has_its_section_in_the_document() {
    let document = std::fs::read_to_string(root().join("docs/lint.md")).expect("the document");
    let sections: Vec<&str> = document.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let expected: Vec<String> =
        CHECKS.iter().map(|check| format!("`{}` ({})", check.id, check.severity.name())).collect();
    assert_eq!(sections, expected);
    let rules = std::fs::read_to_string(root().join("docs/abi-rules.md")).expect("the document");
    for rule in CHECKS.iter().flat_map(|check| check.rules) {
        assert!(rules.contains(&format!("| <a id=\"{}\"></a>{rule} |", rule.to_lowercase())), "{rule}");
    }
}
