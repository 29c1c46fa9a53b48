//! Compiled models: all trained models give the same results from them, and report the parts of the file that they used.

use crate::support::{Case, Folder, command, devbay, finish, first_cases};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the path of the repository's model.
fn mnist() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/mnist_cnn/model.onnx")
}

fn compile(model: &Path, file: &Path) -> Command {
    let mut command = command();
    command.arg("compile").arg(model).arg("-o").arg(file);
    command
}

fn run(file: &Path) -> Command {
    let mut command = command();
    command.arg("run").arg(file).args(["--device", "cpu:0"]);
    command
}

/// One case per model: the others differ only in their inputs.
#[test]
fn trained_models_match() {
    let folder = Folder::new();
    let file = folder.path("model.dbx");
    let mut failures = Vec::new();
    for case in first_cases() {
        let Case { name, model, inputs, outputs, .. } = &case;
        let made = finish(compile(model, &file).args(["--device", "cpu:0", "--shapes-from"]).arg(inputs));
        if made.code != 0 {
            failures.push(format!("{name}: {}", made.err.trim()));
            continue;
        }
        let mut run = run(&file);
        run.args(["--explain", "--verify", "--input"]).arg(inputs).arg("--compare").arg(outputs);
        let ran = finish(&mut run);
        // What a pass makes for the device is made again, and packed then: weights of transposed convolutions.
        let lowered = |line: &&str| line.contains("ConvTranspose") && line.contains("NhwcFusedConv");
        let n_new = ran.err.lines().filter(lowered).count();
        if ran.code != 0
            || !ran.err.contains("compiled  plan: the file's")
            || !ran.err.contains(&format!("file's, {n_new} new"))
        {
            failures.push(format!("{name}: exit code {}, {}", ran.code, ran.err.trim()));
        }
    }
    assert!(failures.is_empty(), "{} models:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn a_file_is_a_model_for_every_command() {
    let folder = Folder::new();
    let (file, again) = (folder.path("mnist.dbx"), folder.path("again.dbx"));
    finish(&mut compile(&mnist(), &file))
        .expect(0)
        .prints(&["mnist.dbx for cpu:0: 1 plan, 4 packed constants"]);
    finish(compile(&file, &again).arg("--json")).expect(0).prints(&["\"plans\": 1"]);
    devbay(["inspect".as_ref(), again.as_os_str()]).expect(0).prints(&["input"]);
    devbay(["inspect".as_ref(), again.as_os_str(), "--plan".as_ref()]).expect(0).prints(&["FusedConv@1"]);
    devbay(["bench".as_ref(), again.as_os_str(), "--runs".as_ref(), "3".as_ref()]).expect(0);
    // For devices and passes that the file was not compiled for.
    let random = |more: &[&str]| finish(run(&again).args(["--random", "--explain"]).args(more));
    random(&[]).expect(0).says(&["plan: the file's; packed constants: 4 of the file's, 0 new"]);
    random(&["--no-pass", "fuse-tails"]).expect(0).says(&["compiled"]);
}

#[test]
fn what_cannot_be_is_refused() {
    let folder = Folder::new();
    let file = folder.path("mnist.dbx");
    finish(compile(&mnist(), &file).args(["--target", "pjrt-tpu:v5e:2x2"])).expect(2).says(&["--target"]);
    finish(compile(&mnist(), &folder.path("x.bin")).args(["--shapes-from", "x.npz"]))
        .expect(2)
        .says(&["--shapes-from"]);
    finish(run(&mnist()).args(["--random", "--verify"])).expect(2).says(&["--verify is for .dbx files"]);
    finish(&mut compile(&mnist(), &folder.path("missing/mnist.dbx"))).expect(1).says(&["cannot write"]);
    finish(&mut compile(&mnist(), &file)).expect(0);

    let mut content = std::fs::read(&file).unwrap();
    let end = content.len() - 8;
    content[end] ^= 1;
    let changed = folder.write("changed.dbx", &content);
    finish(run(&changed).arg("--random")).expect(0);
    finish(run(&changed).args(["--random", "--verify"])).expect(4).says(&["changed.dbx", "another checksum"]);
    content[100] ^= 1;
    let damaged = folder.write("damaged.dbx", &content);
    finish(run(&damaged).arg("--random")).expect(4).says(&["damaged.dbx", "its head has another checksum"]);
    let cut = folder.write("cut.dbx", &content[..5000]);
    finish(run(&cut).arg("--random")).expect(4).says(&["it has 5000 bytes"]);
}
