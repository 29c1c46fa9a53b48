//! Programs that a device's compiler takes as a whole, on every device of the PJRT libraries that the environment names.

use crate::support::{Folder, command, finish, pjrt_plugin, plugin_library};
use std::path::PathBuf;

/// Returns a program of the PJRT plugin's tests, its inputs and its results.
fn program(name: &str, extension: &str) -> (PathBuf, PathBuf) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../plugins/pjrt/tests/programs");
    (folder.join(format!("{name}.stablehlo.{extension}")), folder.join(format!("{name}.npz")))
}

#[test]
fn b23_stablehlo_runs_on_every_library() {
    let Some((plugin, n_devices)) = pjrt_plugin() else { return };
    for device in 0..n_devices {
        for (name, extension) in [("sgd_step", "mlir"), ("scan_rnn", "mlirbc")] {
            let (program, arrays) = program(name, extension);
            let mut command = command();
            command.arg("run").arg(&program).args(&plugin);
            command.args(["--device", &format!("pjrt:{device}"), "--json"]);
            command.arg("--input").arg(&arrays).arg("--compare").arg(&arrays);
            let report = finish(&mut command).expect(0).json();
            assert_eq!(report["format"], "stablehlo");
            let verdicts = report["compare"].as_array().expect("what was compared");
            assert_eq!(verdicts.len(), 2, "{name} has two results");
            assert!(verdicts.iter().all(|verdict| verdict["matches"] == true), "{verdicts:?}");
        }
    }
}

#[test]
fn wrong_programs_and_inputs_are_refused_with_words() {
    let Some((plugin, _)) = pjrt_plugin() else { return };
    let folder = Folder::new();
    let broken = folder.path("broken.mlir");
    std::fs::write(&broken, "module { func.func public @main() { nonsense } }").expect("a file");
    let (good, arrays) = program("sgd_step", "mlir");
    let run = |program: &PathBuf, inputs: Option<&PathBuf>| {
        let mut command = command();
        command.arg("run").arg(program).args(&plugin).args(["--device", "pjrt:0"]);
        if let Some(inputs) = inputs {
            command.arg("--input").arg(inputs);
        }
        finish(&mut command)
    };
    run(&broken, None).says(&["pjrt:0", "plugin pjrt"]);
    assert_ne!(run(&broken, None).code, 0);
    // The compiler does not report a program's arguments; running it does.
    assert_ne!(run(&good, None).code, 0);
    assert_eq!(run(&good, Some(&arrays)).code, 0);
    run(&folder.path("absent.mlir"), None).expect(1).says(&["absent.mlir"]);
}

#[test]
fn a_device_without_a_compiler_says_so() {
    let (good, _) = program("sgd_step", "mlir");
    let mut command = command();
    command.arg("run").arg(&good).arg("--plugin").arg(plugin_library()).args(["--device", "cpu:0"]);
    finish(&mut command).expect(4).says(&["cpu:0", "no compiler for whole programs"]);
}
