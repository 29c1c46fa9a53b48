//! Plugins that end the process: the message and the exit code.

use crate::support::{Folder, command, defect, finish};
use std::path::Path;

const RELU: &str = r#"devbay-program 1

program "p"(%x: f32[16]) {
  %y: f32[16] = Relu@14(%x) as "first"
  return %y
}
"#;

/// Runs a model on a plugin that was not tried before.
fn run(folder: &Folder, library: &Path, more: &[&str]) -> crate::support::Finished {
    let model = folder.write("relu.devbay", RELU);
    let mut run = command();
    run.arg("run").arg(model).arg("--plugin").arg(library).args(["--random", "1"]).args(more);
    finish(&mut run)
}

#[test]
fn a_plugin_that_ends_the_process_is_named_and_ends_it_with_8() {
    let launch = "in its function `launch`, device minimal:0, node `first (Relu@14)`: ";
    let cases = [
        ("DEFECT_CRASH_IN_CREATE", "plugin minimal crashed in its function `create`: SIGSEGV at address 0x8"),
        ("DEFECT_EXIT_IN_CREATE", "plugin minimal called exit() in its function `create`"),
        ("DEFECT_CRASH_IN_LAUNCH", &format!("plugin minimal crashed {launch}SIGSEGV")),
        ("DEFECT_EXIT_IN_LAUNCH", &format!("plugin minimal called exit() {launch}")),
        ("DEFECT_ABORT_AT_LOAD", "crashed in its function `static constructors`: SIGABRT"),
    ];
    for (definition, words) in cases {
        let folder = Folder::new();
        let library = defect(&folder, definition);
        run(&folder, &library, &["--no-probe"]).expect(8).says(&[words]);
    }
}

/// A probe detects most of them earlier, and an answer only counts after loading.
#[test]
fn a_plugin_that_ends_its_probe_is_refused() {
    let cases = [
        ("DEFECT_CRASH_IN_CREATE", "signal 11"),
        ("DEFECT_EXIT_IN_CREATE", "exit status: 0"),
        ("DEFECT_ANSWER_AT_LOAD", "exit status: 0"),
    ];
    for (definition, words) in cases {
        let folder = Folder::new();
        let library = defect(&folder, definition);
        let words = ["the library ended the probing process", words];
        run(&folder, &library, &[]).expect(6).says(&words);
    }
}

/// The command's own ends are not blamed on a plugin.
#[test]
fn the_commands_own_ends_stay_as_they_are() {
    finish(command().arg("--version")).expect(0);
    finish(command().arg("devices")).expect(0);
    finish(command().args(["run", "/nonexistent"])).expect(1);
    finish(command().args(["run", "--nonsense"])).expect(2);
}
