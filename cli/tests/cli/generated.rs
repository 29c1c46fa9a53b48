//! Completions and manual pages: made for every command.

use crate::support::{Folder, devbay};
use std::collections::BTreeSet;

/// Returns the commands that the help lists.
fn commands() -> Vec<String> {
    let help = devbay(["--help"]).expect(0).out;
    let lines = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<String> =
        names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
    assert!(names.len() > 10 && names.iter().any(|name| name == "run"), "{help}");
    names.into_iter().filter(|name| name != "help").collect()
}

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = devbay(["completions", shell]).expect(0).out;
        for name in commands() {
            assert!(script.contains(&name), "{shell} lacks {name}");
        }
        assert!(script.contains("--memory-budget") || script.contains("memory-budget"), "{shell}");
        assert!(!script.contains("conformance-case") && !script.contains("probe a plugin"), "{shell}");
    }
    devbay(["completions", "tcsh"]).expect(2).says(&["invalid value 'tcsh'"]);
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = Folder::new();
    let out = folder.path("man/pages");
    devbay(["man", "--out", out.to_str().expect("a path")]).expect(0).prints(&["pages written to"]);
    let found: BTreeSet<String> = std::fs::read_dir(&out)
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    let expected =
        commands().into_iter().map(|name| format!("devbay-{name}.1")).chain(["devbay.1".to_owned()]);
    assert_eq!(found, expected.collect());
    let page = |name: &str| std::fs::read_to_string(out.join(name)).expect("a page");
    let run = page("devbay-run.1");
    assert!(
        run.contains(".TH devbay-run 1") && run.contains("Run a model") && run.contains("deadline"),
        "{run}"
    );
    assert!(page("devbay.1").contains("devbay\\-run(1)"), "{}", page("devbay.1"));
    // The same pages from the same definitions: a package's build is reproducible.
    devbay(["man", "--out", out.to_str().expect("a path")]).expect(0);
    assert_eq!(page("devbay-run.1"), run);
}
