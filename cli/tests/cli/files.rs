//! Files of the command: irregular files, the time of writing, and names with terminal escapes.

use crate::support::{Finished, Folder, command, finish, root};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

fn model() -> PathBuf {
    root().join("models/mnist_cnn/model.onnx")
}

fn pipe(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().expect("mkfifo is there");
    assert!(made.success());
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Every reader of the command refuses irregular files at once.
#[test]
fn what_is_no_file_is_refused_at_once() {
    let folder = Folder::new();
    let (given, socket) = (folder.path("pipe"), folder.path("socket"));
    pipe(&given);
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    let photos = folder.path("photos");
    fs::create_dir(&photos).expect("made");
    fs::copy(model(), photos.join("model.onnx")).expect("copied");
    symlink(&given, photos.join("preprocessing.json")).expect("linked");
    let model = model();
    for (what, words) in [
        (given.as_path(), "a pipe"),
        (socket.as_path(), "a socket"),
        (Path::new("/dev/zero"), "a device"),
        (photos.as_path(), "a folder"),
    ] {
        let named = |ending: &str| -> PathBuf {
            let link = folder.path(&format!("link{ending}"));
            let _ = fs::remove_file(&link);
            symlink(what, &link).expect("linked");
            link
        };
        let mut input = std::ffi::OsString::from("x=");
        input.push(named(".npy"));
        let (npz, onnx, json, so) = (named(".npz"), named(".onnx"), named(".json"), named(".so"));
        let of_model = |arguments: &[&OsStr]| -> Vec<std::ffi::OsString> {
            let begin = [OsStr::new("run"), model.as_os_str()];
            begin.iter().chain(arguments).map(|&word| word.to_owned()).collect()
        };
        let of_file = |arguments: &[&OsStr]| -> Vec<std::ffi::OsString> {
            arguments.iter().map(|&word| word.to_owned()).collect()
        };
        let cases = [
            of_file(&["run".as_ref(), onnx.as_ref(), "--random".as_ref()]),
            of_file(&["inspect".as_ref(), onnx.as_ref()]),
            of_file(&["bench".as_ref(), onnx.as_ref()]),
            of_file(&["compile".as_ref(), onnx.as_ref(), "-o".as_ref(), folder.path("o.dbx").as_ref()]),
            of_file(&["lint".as_ref(), so.as_ref()]),
            of_model(&["--input".as_ref(), &input]),
            of_model(&["--input".as_ref(), npz.as_ref()]),
            of_model(&["--random".as_ref(), "--compare".as_ref(), npz.as_ref()]),
            of_model(&["--random".as_ref(), "--plugin".as_ref(), so.as_ref()]),
            of_model(&["--random".as_ref(), "--feedback".as_ref(), json.as_ref()]),
        ];
        for arguments in cases {
            let found: Finished = finish(command().args(&arguments));
            assert_ne!(found.code, 0, "{arguments:?}");
            assert!(found.err.contains(words), "{arguments:?}: {}", found.err);
        }
        // An unreadable manifest is a line of the table.
        finish(command().args(["devices", "--plugin"]).arg(&json)).expect(0).prints(&[words]);
    }
    let mut image = command();
    image.arg("run").arg(photos.join("model.onnx")).arg("--image").arg(&given);
    finish(&mut image).expect(1).says(&["preprocessing.json"]);
}

/// Labels that a model refers to must be in the model's folder.
#[test]
fn labels_stay_in_the_models_folder() {
    let folder = Folder::new();
    let inside = folder.path("model");
    fs::create_dir(&inside).expect("made");
    folder.write("secret", "a\nb\nc\n");
    let model = folder.write(
        "model/m.devbay",
        r#"devbay-program 1

program "colours"(%image: f32[1,3,2,2]) {
  %p: f32[1,3,1,1] = GlobalAveragePool@22(%image)
  %logits: f32[1,3] = Flatten@25(%p)
  return %logits
}
"#,
    );
    let photo = root().join("models/efficientnet_lite0/cat.png");
    let run = |labels: &str, more: &[&OsStr]| {
        let text = format!(
            r#"{{ "input": "image", "output": "logits", "labels": "{labels}", "width": 2, "height": 2, "channels": "RGB",
                 "layout": "NCHW", "scale": 1, "mean": [0, 0, 0], "std": [1, 1, 1] }}"#
        );
        folder.write("model/preprocessing.json", text);
        finish(command().arg("run").arg(&model).arg("--image").arg(&photo).args(more))
    };
    symlink("../secret", inside.join("link")).expect("linked");
    fs::hard_link(folder.path("secret"), inside.join("hard")).expect("linked");
    run("../secret", &[]).expect(1).says(&["absolute or leads upwards"]);
    run("/etc/passwd", &[]).expect(1).says(&["absolute or leads upwards"]);
    run("link", &[]).expect(1).says(&["a link that leads out of it"]);
    run("hard", &[]).expect(1).says(&["hard links"]);
    // The user may read any file that they name, and its control characters are escaped.
    let labels = folder.write("labels", "\x1b[31mred\n\u{202e}b\nc\x07\n");
    let found = run("", &["--labels".as_ref(), labels.as_ref()]).expect(0);
    assert!(!found.out.contains(['\x1b', '\x07', '\u{202e}']), "{}", found.out);
    assert!(found.out.contains("\\u{1b}[31mred"), "{}", found.out);
}

#[test]
fn names_do_not_reach_the_terminal() {
    let folder = Folder::new();
    let model = folder.write(
        "m.devbay",
        "devbay-program 1\n\nprogram \"p\"(%\"i\\u{1b}]0;x\\u{7}\": f32[4]) {\n  %\"y\\u{9b}31m\": f32[4] = Relu@14(%\"i\\u{1b}]0;x\\u{7}\") as \"n\\u{1b}[2J\"\n  return %\"y\\u{9b}31m\"\n}\n",
    );
    let model = model.as_path();
    let obeyed = |text: &str| text.chars().any(|c| c.is_control() && c != '\n');
    for arguments in [
        &["inspect"][..],
        &["inspect", "--plan"],
        &["inspect", "--passes"],
        &["inspect", "--text"],
        &["run", "--random", "1", "--explain"],
        &["run", "--random", "1", "--pin", "a\x1b[1m=cpu"],
        &["run", "--input", "a\x1b[1m=x.npy"],
        &["bench", "--runs", "1"],
    ] {
        let mut command = command();
        command.arg(arguments[0]).arg(model).args(&arguments[1..]);
        let found = finish(&mut command);
        assert!(!obeyed(&found.out) && !obeyed(&found.err), "{arguments:?}: {:?} {:?}", found.out, found.err);
    }
}

/// Shortening a model during a run is reported, and is harmless with `--no-map`.
#[cfg(target_os = "linux")]
#[test]
fn a_model_that_becomes_shorter_is_an_error() {
    let folder = Folder::new();
    let path = folder.path("m.dbx");
    finish(command().arg("compile").arg(model()).arg("-o").arg(&path)).expect(0);
    finish(command().arg("run").arg(&path).args(["--random", "1", "--no-map"])).expect(0);
    let mut bench = command();
    bench.arg("bench").arg(&path).args(["--seconds", "3600"]).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = bench.spawn().expect("it starts");
    let maps = format!("/proc/{}/maps", child.id());
    while !fs::read_to_string(&maps).expect("it runs").contains("m.dbx") {
        std::thread::sleep(Duration::from_millis(1));
    }
    let file = fs::File::options().write(true).open(&path).expect("there");
    file.set_len(4096).expect("shortened");
    let ended = child.wait_with_output().expect("it ended");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(4), "{said}");
    assert!(said.contains("m.dbx became shorter while it was mapped"), "{said}");
}

#[test]
fn a_model_is_the_same_bytes_when_it_is_compiled_again() {
    let folder = Folder::new();
    let made: Vec<Vec<u8>> = (0..3)
        .map(|i| {
            let path = folder.path(&format!("{i}.dbx"));
            finish(command().arg("compile").arg(model()).arg("-o").arg(&path)).expect(0);
            fs::read(path).expect("there")
        })
        .collect();
    assert!(made[1..].iter().all(|again| *again == made[0]));
}

#[test]
fn a_pipe_gets_the_output() {
    let folder = Folder::new();
    let path = folder.path("pipe.npz");
    pipe(&path);
    let reading = path.clone();
    let reader = std::thread::spawn(move || fs::read(reading).expect("read"));
    finish(command().arg("run").arg(model()).args(["--random", "1", "--output"]).arg(&path)).expect(0);
    let through = reader.join().expect("it ended");
    let file = folder.path("file.npz");
    finish(command().arg("run").arg(model()).args(["--random", "1", "--output"]).arg(&file)).expect(0);
    assert_eq!(through, fs::read(file).expect("there"));
    assert_eq!(names(&folder.path("")).len(), 2);
}
