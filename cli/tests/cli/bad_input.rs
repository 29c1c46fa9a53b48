//! Bad input gives a typed error that names the place, never a panic, an abort or a large allocation.
//!
//! Each case asserts the words that a user needs, not only the exit code. `hostile_models.rs` damages whole model files.

use crate::support::onnx::{self, FLOAT, Graph, INT64, Message, int64s, node, tensor, value};
use crate::support::{Finished, Folder, command, devbay, finish};
use devbay_host::{Tensor, arrays};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn f32s(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_elements(shape, values).unwrap()
}

/// Returns a model `x: f32[n,3] -> Relu -> y` with additions.
fn relu(nodes: &[Message], tensors: &[Message]) -> Message {
    let inputs = [value("x", FLOAT, &[-1, 3])];
    onnx::model(17, &Graph { nodes, inputs: &inputs, outputs: &[value("y", FLOAT, &[-1, 3])], tensors })
}

/// Runs `devbay run MODEL ...` on a model of these bytes.
#[track_caller]
fn run(model: impl AsRef<[u8]>, more: &[&str]) -> Finished {
    let folder = Folder::new();
    let path = folder.write("m.onnx", model);
    finish(command().arg("run").arg(path).args(more))
}

/// Returns the largest resident size of all commands that this process has run.
fn peak_bytes() -> u64 {
    // SAFETY: all zero is a valid value of this plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a struct of the type that the call writes.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage) };
    usage.ru_maxrss as u64 * 1024
}

#[test]
fn truncated_models() {
    let nodes = [node("relu", "Relu", &["x"], &["y"])];
    let whole = relu(&nodes, &[tensor("w", FLOAT, &[4], &[0; 16])]);
    run(&whole, &["--random"]).expect(0);
    let bytes = whole.as_ref();
    // `hostile_models.rs` tries all of them in process; only some go through the command.
    for len in (0..bytes.len()).step_by(7) {
        let found = run(&bytes[..len], &["--random"]).expect(4);
        assert!(found.err.starts_with("error: ") && found.err.contains("m.onnx: "), "{len}: {}", found.err);
        assert_eq!(found.err.lines().count(), 1, "{}", found.err);
    }
}

#[test]
fn files_that_are_no_models() {
    let folder = Folder::new();
    let run = |path: &Path| finish(command().arg("run").arg(path).arg("--random"));
    run(&folder.write("text.onnx", "a text about models")).expect(4).says(&["text.onnx: "]);
    run(&folder.write("empty.onnx", "")).expect(4).says(&["empty.onnx: "]);
    let text = "devbay-program 1\n\nprogram \"p\"(%x: f32[2]) {\n  %y = Relu@14(%z)\n  return %y\n}\n";
    run(&folder.write("bad.devbay", text)).expect(4).says(&["bad.devbay: ", "line 4", "%z"]);
    run(&folder.path("absent.onnx")).expect(1).says(&["absent.onnx", "No such file or directory"]);
    run(&folder.path("")).expect(1).says(&["expected a file, found a folder"]);
}

#[test]
fn unknown_ops_and_opsets() {
    let model = relu(&[node("first", "Frobnicate", &["x"], &["y"])], &[]);
    run(&model, &["--random"]).expect(4).says(&[
        "no device meets the requirements",
        "cpu:0",
        "no kernel for Frobnicate@17 (node first (Frobnicate@17))",
    ]);

    let inputs = [value("x", FLOAT, &[3])];
    let graph = |nodes: &[Message]| -> Message {
        onnx::graph(&Graph { nodes, inputs: &inputs, outputs: &[value("y", FLOAT, &[3])], tensors: &[] })
    };
    let opset = |domain: &str, version| Message::default().with(1, domain).int(2, version);
    let nodes = [node("soft", "com.acme.Soften", &["x"], &["y"])];
    let vendor = Message::default().int(1, 8).with(8, opset("", 17)).with(8, opset("com.acme", 3));
    let vendor = vendor.with(7, graph(&nodes));
    // With a policy each device lists its missing kernels; a named device does so during planning.
    let words = ["com.acme.Soften@3", "cpu:0"];
    run(&vendor, &["--random"]).expect(4).says(&words).says(&[
        "no device meets the requirements",
        "has no kernel for",
        "to run it, add a device",
    ]);
    run(&vendor, &["--random", "--device", "cpu"])
        .expect(4)
        .says(&words)
        .says(&["node soft", "has no kernel for op"]);

    let nodes = [node("r", "Relu", &["x"], &["y"])];
    for version in [6, 99] {
        let model = Message::default().int(1, 8).with(8, opset("", version)).with(7, graph(&nodes));
        let expected = format!("expected an opset of ai.onnx from 7 to 28, found {version}");
        run(&model, &["--random"]).expect(4).says(&[&expected]);
    }
    // An element type without a kernel for the op.
    let strings = [value("x", 8, &[3])];
    let model = onnx::model(
        17,
        &Graph { nodes: &nodes, inputs: &strings, outputs: &[value("y", 8, &[3])], tensors: &[] },
    );
    let found = run(&model, &["--random"]);
    assert!(found.code == 4 || found.code == 2, "{}", found.err);
}

#[test]
fn external_data_stays_in_the_models_folder() {
    let folder = Folder::new();
    let inside = folder.path("model");
    fs::create_dir(&inside).unwrap();
    let secret = folder.write("secret.bin", [0u8; 12]);
    std::os::unix::fs::symlink(&secret, inside.join("link.bin")).unwrap();
    fs::write(inside.join("short.bin"), [0u8; 8]).unwrap();
    let model = inside.join("m.onnx");
    for (location, code, words) in [
        ("../secret.bin", 4, "which is absolute or leads upwards"),
        (secret.to_str().unwrap(), 4, "which is absolute or leads upwards"),
        ("link.bin", 4, "a link that leads out of it"),
        ("/dev/zero", 4, "which is absolute or leads upwards"),
        ("none.bin", 1, "none.bin"),
        ("short.bin", 4, "expected 12 bytes for a tensor f32[3], found 8"),
    ] {
        let tensors = [onnx::external("w", &[3], location)];
        fs::write(&model, relu(&[node("add", "Add", &["x", "w"], &["y"])], &tensors)).unwrap();
        finish(command().arg("run").arg(&model).arg("--random")).expect(code).says(&[
            "/model/",
            "the initializer \"w\": ",
            words,
        ]);
    }
}

#[test]
fn sizes_beyond_memory_are_refused_before_allocating() {
    const HUGE: i64 = 1 << 45;
    let one_output = |nodes: &[Message], inputs: &[Message], tensors: &[Message]| {
        onnx::model(17, &Graph { nodes, inputs, outputs: &[Message::default().with(1, "y")], tensors })
    };
    let x = [value("x", FLOAT, &[1])];
    let scalars = |name: &str, value: i64| tensor(name, INT64, &[], &value.to_le_bytes());
    let of = |op: &str, inputs: &[&str], tensors: &[Message]| {
        one_output(&[node("big", op, inputs, &["y"])], &x, tensors)
    };
    let cases: Vec<(&str, Message, &[&str])> = vec![
        ("constant of shape", of("ConstantOfShape", &["s"], &[int64s("s", &[HUGE])]), &[]),
        ("overflow", of("ConstantOfShape", &["s"], &[int64s("s", &[1 << 62, 1 << 62])]), &[]),
        ("negative", of("ConstantOfShape", &["s"], &[int64s("s", &[-5])]), &[]),
        ("expand", of("Expand", &["x", "s"], &[int64s("s", &[HUGE])]), &[]),
        ("expand, overflow", of("Expand", &["x", "s"], &[int64s("s", &[i64::MAX, 3, 1])]), &[]),
        ("tile", of("Tile", &["x", "s"], &[int64s("s", &[HUGE])]), &[]),
        ("tile, overflow", of("Tile", &["x", "s"], &[int64s("s", &[i64::MAX])]), &[]),
        ("pad", of("Pad", &["x", "s"], &[int64s("s", &[HUGE, HUGE])]), &[]),
        ("pad, overflow", of("Pad", &["x", "s"], &[int64s("s", &[i64::MAX, i64::MAX])]), &[]),
        (
            "range",
            of("Range", &["a", "b", "c"], &[scalars("a", 0), scalars("b", HUGE), scalars("c", 1)]),
            &[],
        ),
        (
            "range, overflow",
            of("Range", &["a", "b", "c"], &[scalars("a", i64::MIN), scalars("b", i64::MAX), scalars("c", 1)]),
            &[],
        ),
        (
            "range, step 0",
            of("Range", &["a", "b", "c"], &[scalars("a", 0), scalars("b", 10), scalars("c", 0)]),
            &[],
        ),
        (
            "one-hot",
            of(
                "OneHot",
                &["i", "d", "v"],
                &[int64s("i", &[0, 1]), scalars("d", HUGE), tensor("v", FLOAT, &[2], &[0; 8])],
            ),
            &[],
        ),
        (
            "a tensor",
            relu(&[node("r", "Relu", &["x"], &["y"])], &[tensor("w", FLOAT, &[HUGE], &[0; 4])]),
            &[],
        ),
        (
            "a tensor, overflow",
            relu(&[node("r", "Relu", &["x"], &["y"])], &[tensor("w", FLOAT, &[1 << 62, 1 << 62], &[])]),
            &[],
        ),
        (
            "an input",
            one_output(&[node("big", "Relu", &["x"], &["y"])], &[value("x", FLOAT, &[HUGE])], &[]),
            &[],
        ),
        (
            "between two nodes",
            one_output(
                &[node("big", "Expand", &["x", "s"], &["t"]), node("sum", "ReduceSum", &["t"], &["y"])],
                &x,
                &[int64s("s", &[HUGE])],
            ),
            &[],
        ),
        (
            "a product",
            one_output(
                &[node("big", "MatMul", &["x", "w"], &["y"])],
                &[value("x", FLOAT, &[-1, 1]), value("w", FLOAT, &[1, -1])],
                &[],
            ),
            &["--shape", "x=2000000,1", "--shape", "w=1,2000000"],
        ),
    ];
    for (name, model, more) in cases {
        let arguments: Vec<&str> = [&["--random"], more].concat();
        let found = run(&model, &arguments);
        assert!(matches!(found.code, 4 | 7), "{name}: {} {}{}", found.code, found.out, found.err);
        assert!(found.err.starts_with("error: ") && found.err.lines().count() == 1, "{name}: {}", found.err);
        let named = ["node big", "`x`", "`y`", "\"w\""].iter().any(|name| found.err.contains(name));
        assert!(named, "{name}: expected the node, input, result or initializer: {}", found.err);
    }

    // An input determines the extents: the op-by-op path.
    let folder = Folder::new();
    let inputs = folder.path("in.npz");
    for extents in [vec![HUGE], vec![1 << 62, 1 << 62], vec![i64::MAX], vec![-1]] {
        let shape = Tensor::from_elements(&[extents.len()], &extents).unwrap();
        arrays::write_npz(&inputs, &[("s", &shape)]).unwrap();
        let s = [value("s", INT64, &[extents.len() as i64])];
        let model = one_output(&[node("big", "ConstantOfShape", &["s"], &["y"])], &s, &[]);
        let found = run(&model, &["--input", inputs.to_str().unwrap()]);
        assert!(matches!(found.code, 4 | 5 | 7), "{extents:?}: {} {}{}", found.code, found.out, found.err);
        assert!(found.err.contains("node big"), "{extents:?}: {}", found.err);
    }
    let peak = peak_bytes();
    assert!(peak < 512 << 20, "expected refusals before allocating, found {} MiB in use", peak >> 20);
}

#[test]
fn numbers_at_their_limits() {
    // The step is unused, so it may be any number.
    for step in [i64::MIN, i64::MAX, -(1 << 45)] {
        let (start, end) = if step < 0 { (-1, i64::MIN) } else { (0, i64::MAX) };
        let tensors = [int64s("s", &[start]), int64s("e", &[end]), int64s("a", &[0]), int64s("t", &[step])];
        let model = relu(&[node("cut", "Slice", &["x", "s", "e", "a", "t"], &["y"])], &tensors);
        run(&model, &["--random", "--shape", "x=4,3"]).expect(0).prints(&["f32[1,3]"]);
    }
    let axis = [int64s("s", &[0]), int64s("e", &[1]), int64s("a", &[i64::MIN])];
    let model = relu(&[node("cut", "Slice", &["x", "s", "e", "a"], &["y"])], &axis);
    run(&model, &["--random"]).expect(4).says(&["node cut"]);
}

#[test]
fn what_a_kernel_refuses_is_the_models_or_the_inputs_fault() {
    let folder = Folder::new();
    let text =
        |body: &str| format!("devbay-program 1\n\nprogram \"p\"(%x: f32[2,3], %i: i64[1]) {{\n{body}\n}}\n");
    let inputs = folder.path("in.npz");
    let index = Tensor::from_elements(&[1], &[100i64]).unwrap();
    arrays::write_npz(&inputs, &[("x", &f32s(&[2, 3], &[0.0; 6])), ("i", &index)]).unwrap();
    let pad = folder.write(
        "pad.devbay",
        text("  %p = const i64[4] [1, 1, 1, 1]\n  %y = Pad@25(%x, %p) as \"pad\" {mode = \"sideways\"}\n  return %y"),
    );
    let take = folder.write("take.devbay", text("  %y = Gather@13(%x, %i) as \"take\"\n  return %y"));
    let run = |model: &Path, more: &[&str]| {
        finish(command().arg("run").arg(model).arg("--input").arg(&inputs).args(more))
    };
    for streams in ["cpu.streams=inline", "cpu.streams=async"] {
        let more = ["--plugin-option", streams];
        run(&pad, &more).expect(4).says(&["node pad (Pad@25)", "plugin cpu", "unknown mode sideways"]);
        run(&take, &more).expect(5).says(&["device cpu:0", "plugin cpu", "100"]);
    }
    run(&take, &[]).says(&["node take (Gather@13)"]);
}

#[test]
fn regions_are_for_control_flow() {
    let folder = Folder::new();
    let text = r#"devbay-program 1

program "p"(%x: f32[2], %c: bool[]) {
  %a: f32[2] = Relu@14(%x)
  %y: f32[2] = test.Maybe@1(%c) as "maybe" body() {
    %b: f32[2] = Neg@13(%a)
    return %b
  }
  return %y
}
"#;
    let model = folder.write("regions.devbay", text);
    finish(command().arg("run").arg(model).args(["--random", "--device", "cpu"])).expect(4).says(&[
        "node maybe (test.Maybe@1)",
        "op test.Maybe@1 has regions; those of If, Loop and Scan are supported",
    ]);
}

#[test]
fn wrong_inputs() {
    let folder = Folder::new();
    let inputs = [value("x", FLOAT, &[-1, 3]), value("k", INT64, &[])];
    let nodes = [node("r", "Relu", &["x"], &["y"]), node("i", "Identity", &["k"], &["l"])];
    let outputs = [value("y", FLOAT, &[-1, 3]), value("l", INT64, &[])];
    let model = onnx::model(17, &Graph { nodes: &nodes, inputs: &inputs, outputs: &outputs, tensors: &[] });
    let path = folder.path("in.npz");
    let run = |arrays: &[(&str, &Tensor)], more: &[&str]| {
        arrays::write_npz(&path, arrays).unwrap();
        let arguments: Vec<&str> = [&["--input", path.to_str().unwrap()], more].concat();
        run(&model, &arguments)
    };
    let x = f32s(&[1, 3], &[1.0, 2.0, 3.0]);
    let k = Tensor::from_elements(&[], &[1i64]).unwrap();
    run(&[("x", &x), ("k", &k)], &[]).expect(0);
    run(&[("x", &x)], &[]).expect(5).says(&["error: input `k` i64[] is missing", "--input", "--random"]);
    run(&[("x", &x), ("k", &k), ("z", &x)], &[])
        .expect(5)
        .says(&["the model has no input `z`; it takes `x` f32[n,3], `k` i64[]"]);
    run(&[("x", &f32s(&[3], &[0.0; 3])), ("k", &k)], &[])
        .expect(5)
        .says(&["input `x` f32[n,3] is given as f32[3]"]);
    run(&[("x", &f32s(&[1, 4], &[0.0; 4])), ("k", &k)], &[])
        .expect(5)
        .says(&["input `x` f32[n,3] is given as f32[1,4]"]);
    run(&[("x", &x), ("k", &Tensor::from_elements(&[], &[1i32]).unwrap())], &[])
        .expect(5)
        .says(&["input `k` i64[] is given as i32[]"]);
    let again = folder.path("x.npy");
    arrays::write_npy(&again, &x).unwrap();
    let again = format!("x={}", again.display());
    run(&[("x", &x), ("k", &k)], &["--input", &again]).expect(5).says(&["input `x` is given twice"]);
    // An empty batch is valid.
    run(&[("x", &f32s(&[0, 3], &[])), ("k", &k)], &[]).expect(0).prints(&["f32[0,3]"]);
}

#[test]
fn input_files_that_are_damaged() {
    let folder = Folder::new();
    let model = folder.write("m.onnx", relu(&[node("r", "Relu", &["x"], &["y"])], &[]));
    let run = |input: String| finish(command().arg("run").arg(&model).arg("--input").arg(input)).expect(1);
    let path = |path: &PathBuf| path.display().to_string();
    let named = |path: &PathBuf| format!("x={}", path.display());

    let absent = folder.path("absent.npz");
    run(path(&absent)).says(&["cannot read", "absent.npz", "No such file"]);
    run(path(&folder.write("text.npz", "no archive"))).says(&["text.npz is not a .npz archive"]);
    let good = folder.path("good.npz");
    arrays::write_npz(&good, &[("x", &f32s(&[1, 3], &[1.0, 2.0, 3.0]))]).unwrap();
    let bytes = fs::read(&good).unwrap();
    // A truncated archive is an error, or the same input if nothing relevant was cut off.
    for len in (0..bytes.len()).step_by(11) {
        run(path(&folder.write("cut.npz", &bytes[..len]))).says(&["cut.npz"]);
    }
    // A change in an array's content (the archive's first entry begins with 30 bytes and its name) fails its checksum.
    let mut flipped = bytes.clone();
    flipped[30 + "x.npy".len() + 40] ^= 1;
    run(path(&folder.write("flipped.npz", &flipped))).says(&["array `x` of", "flipped.npz"]);

    let npy = folder.path("good.npy");
    arrays::write_npy(&npy, &f32s(&[1, 3], &[1.0, 2.0, 3.0])).unwrap();
    let bytes = fs::read(&npy).unwrap();
    let header = |from: &str, to: &str| {
        let text = String::from_utf8_lossy(&bytes[..bytes.len() - 12]).into_owned();
        assert!(text.contains(from), "{text}");
        // The header's length comes before it, so take the bytes from the padding.
        let at = bytes.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
        let mut changed = bytes[..at].to_vec();
        changed.extend_from_slice(to.as_bytes());
        let mut rest = bytes[at + from.len()..].to_vec();
        let longer = to.len().saturating_sub(from.len());
        let blank = rest.iter().position(|&byte| byte == b'}').unwrap() + 1;
        rest.drain(blank..blank + longer);
        changed.extend(rest);
        folder.write("header.npy", changed)
    };
    run(named(&folder.write("cut.npy", &bytes[..bytes.len() - 1])))
        .says(&["cut.npy", "cut off: 11 of 12 bytes"]);
    run(named(&header("(1, 3)", "(1, 9, )"))).says(&["header.npy", "cut off: 12 of 36 bytes"]);
    run(named(&header("(1, 3)", "(1152921504606846976, 64)"))).says(&["an array larger than memory"]);
    run(named(&header("(1, 3)", "(35184372088832,)"))).says(&["cut off: 12 of 140737488355328 bytes"]);
    run(named(&header("<f4", "<c8"))).says(&["an array of type <c8, which is not supported"]);
    run(named(&header("<f4", ">f4"))).says(&["big-endian"]);
    run(named(&folder.write("text.npy", "no array"))).says(&["text.npy", "not a .npy array"]);
    run(named(&folder.write("text.pb", "no tensor"))).says(&["text.pb"]);
    run(named(&folder.write("x.bin", "bytes"))).says(&["x.bin", "expected a .npy or .pb file"]);
    assert!(peak_bytes() < 512 << 20, "found {} MiB in use", peak_bytes() >> 20);
}

#[test]
fn plugins_and_devices_that_are_not_there() {
    let folder = Folder::new();
    let model = folder.write("m.onnx", relu(&[node("r", "Relu", &["x"], &["y"])], &[]));
    let run = |more: &[&str]| finish(command().arg("run").arg(&model).arg("--random").args(more));
    let text = folder.write("libdevbay_plugin_text.so", "no library").display().to_string();
    let absent = folder.path("libdevbay_plugin_absent.so").display().to_string();
    run(&["--plugin", &text]).expect(6).says(&["the plugin was refused: not a loadable library", &text]);
    run(&["--plugin", &absent]).expect(6).says(&[
        "the plugin was refused",
        &absent,
        "No such file or directory",
    ]);
    run(&["--plugin", "/"]).expect(6).says(&["the plugin was refused"]);
    // Loaded directly, without trying it in a child process first.
    run(&["--plugin", &text, "--no-probe"])
        .expect(6)
        .says(&["the plugin was refused: not a loadable library"]);
    // A named device does not need the plugin.
    run(&["--plugin", &text, "--device", "cpu"]).expect(0);

    run(&["--device", "cpu:7"]).expect(6).says(&["there is no device cpu:7; there are: cpu:0"]);
    run(&["--device", "tpu"]).expect(6).says(&["there is no plugin tpu; found: [cpu]"]);
    run(&["--device", ""]).expect(6);
    run(&["--plugin-option", "cpu.sideways=1"]).expect(6).says(&["sideways"]);
    run(&["--plugin-option", "cpu.streams=sideways", "--device", "cpu"])
        .expect(6)
        .says(&["the plugin was refused", "option streams is inline or async, found sideways"]);
    let isa = finish(command().arg("run").arg(&model).arg("--random").env("DEVBAY_CPU_ISA", "mmx"));
    isa.expect(6);
    devbay(["devices", "--plugin-option", "cpu.streams=sideways"]).expect(0).prints(&[
        "no devices",
        "refused plugins",
        "option streams is inline or async, found sideways",
    ]);
}

#[test]
fn outputs_that_cannot_be_written() {
    let folder = Folder::new();
    let model = folder.write("m.onnx", relu(&[node("r", "Relu", &["x"], &["y"])], &[]));
    let run = |output: &Path| {
        finish(command().arg("run").arg(&model).arg("--random").arg("--output").arg(output)).expect(1)
    };
    run(Path::new("/nonexistent/out.npz"))
        .says(&["cannot write /nonexistent/out.npz", "No such file or directory"]);
    let file = folder.write("file", "");
    run(&file.join("out")).says(&["file/out", "Not a directory"]);
    run(&file).says(&["file", "File exists"]);
    // A full disk.
    let full = folder.path("full.npz");
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    run(&full).says(&["cannot write", "full.npz", "No space left on device"]);
    let outputs = folder.path("outputs");
    fs::create_dir(&outputs).unwrap();
    std::os::unix::fs::symlink("/dev/full", outputs.join("y.npy")).unwrap();
    run(&outputs).says(&["cannot write", "y.npy", "No space left on device"]);

    let to_full = |command: &mut Command| {
        let has_json = command.get_args().any(|argument| argument == "--json");
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        let last = err.lines().last().unwrap_or_default();
        let message = "cannot write to standard output: No space left on device (os error 28)";
        let is_text = last == format!("error: {message}");
        let is_json = last.starts_with("{\"error\":") && last.contains(&format!("\"message\":\"{message}\""));
        assert_eq!((is_text, is_json), (!has_json, has_json), "{err}");
        assert_eq!(output.status.code(), Some(1));
    };
    to_full(command().arg("devices"));
    to_full(command().args(["devices", "--json"]));
    to_full(command().arg("run").arg(&model).arg("--random"));
    to_full(command().arg("inspect").arg(&model).arg("--text"));
}
