//! Too little memory: exit code 7, whatever needs it.

use crate::support::{Folder, command, finish};
#[cfg(target_os = "linux")]
use std::path::Path;
#[cfg(target_os = "linux")]
use std::process::Command;

/// Averages a picture's colours.
const COLOURS: &str = r#"devbay-program 1
program "colours"(%image: f32[1,1,2,2]) {
  %p: f32[1,1,1,1] = GlobalAveragePool@22(%image)
  return %p
}
"#;

#[test]
fn an_image_that_is_stretched_beyond_memory() {
    let folder = Folder::new();
    let model = folder.write("model.txt", COLOURS);
    folder.write(
        "preprocessing.json",
        r#"{ "input": "image", "output": "p", "width": 2, "height": 2, "resize_shorter_side": 4096, "channels": "GRAY",
             "layout": "NCHW", "scale": 1.0, "mean": [0.0], "std": [1.0], "labels": "labels.txt" }"#,
    );
    folder.write("labels.txt", "grey\n");
    let photo = folder.path("photo.png");
    image::GrayImage::new(1, 65_535).save(&photo).unwrap();
    assert!(std::fs::metadata(&photo).unwrap().len() < 100_000);
    finish(command().arg("run").arg(&model).arg("--image").arg(&photo))
        .expect(7)
        .says(&["bytes for an image", "photo.png"]);
}

#[test]
fn an_input_that_is_larger_than_memory() {
    let folder = Folder::new();
    let text = "devbay-program 1\nprogram \"\"(%x: f32[n]) {\n  %y = Relu@14(%x)\n  return %y\n}\n";
    let model = folder.write("model.txt", text);
    let shape = format!("x={}", 1u64 << 44);
    finish(command().arg("run").arg(&model).args(["--random", "--shape", &shape])).expect(7);
}

/// The command under valgrind: no accesses beyond its memory, and no decisions on uninitialised memory.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "full: 20 seconds on a busy machine, where valgrind is"]
fn under_valgrind() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/mnist_cnn");
    let plain = command();
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--error-exitcode=99"]).arg(plain.get_program()).arg("run");
    valgrind.arg(models.join("model.onnx")).arg("--input").arg(models.join("case0.inputs.npz"));
    valgrind.arg("--compare").arg(models.join("case0.outputs.npz")).args([
        "--device",
        "cpu",
        "--threads",
        "2",
    ]);
    let found = finish(&mut valgrind).expect(0);
    assert!(!found.err.contains("=="), "{}", found.err);
}

/// Returns the command with limited address space, in MiB.
#[cfg(target_os = "linux")]
fn limited(limit: u32) -> Command {
    let command = command();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -v $0 && exec \"$@\"", &(limit * 1024).to_string()]).arg(command.get_program());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(key, value),
            None => shell.env_remove(key),
        };
    }
    shell
}

/// A part of `cargo xtask memory`: one model, with larger steps between limits.
#[cfg(target_os = "linux")]
#[test]
fn a_run_with_less_memory_than_it_needs() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/mnist_cnn");
    let (model, inputs) = (models.join("model.onnx"), models.join("case0.inputs.npz"));
    let starts = |limit: &u32| limited(*limit).arg("--version").output().unwrap().status.success();
    let start = (4..4096).step_by(4).find(starts).expect("the command starts");
    let (mut worked, mut refused) = (0, 0);
    for limit in (start..).step_by(5) {
        let mut run = limited(limit);
        run.arg("run").arg(&model).arg("--input").arg(&inputs).args(["--device", "cpu", "--threads", "2"]);
        match finish(&mut run) {
            found if found.code == 0 => worked += 1,
            found => {
                found.expect(7);
                (worked, refused) = (0, refused + 1);
            }
        }
        if worked == 3 {
            break;
        }
        assert!(limit < 8192, "it does not run with {limit} MiB");
    }
    assert!(refused > 0, "the command ran with as much as it starts with");
}
