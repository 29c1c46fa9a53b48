//! The command as a user sees it: its output, its files and its exit codes.
//!
//! Models are small ones in text form, so that this file is self-contained.

use crate::support::onnx;
use crate::support::{
    Finished, Folder, command, devbay, finish, plugin_library, wait_until_it_takes_signals,
};
use devbay_host::{Tensor, arrays};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// `y = relu(x * w)`, and `x` again under a name that is not a valid file name.
const SMALL: &str = r#"devbay-program 1

program "small"(%x: f32[batch,3]) {
  %w = const f32[3,2] [1.0, -1.0, 1.0, -1.0, 1.0, -1.0]
  %p: f32[batch,2] = MatMul@13(%x, %w) as "product"
  %y: f32[batch,2] = Relu@14(%p) as "relu"
  %"odd name": f32[batch,3] = Identity@25(%x)
  return %y, %"odd name"
}
"#;

/// Sums `n` times, for as long as needed.
const LOOP: &str = r#"devbay-program 1

program "loop"(%n: i64[], %x: f32[4]) {
  %y: f32[4] = Loop@25(%n, _, %x) body(%i: i64[], %go: bool[], %s: f32[4]) {
    %t: f32[4] = Add@14(%s, %x)
    return %go, %t
  }
  return %y
}
"#;

fn f32s(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_elements(shape, values).unwrap()
}

/// A folder with the small model and its input.
struct Small {
    folder: Folder,
    model: PathBuf,
    inputs: PathBuf,
}

fn small() -> Small {
    let folder = Folder::new();
    let model = folder.write("small.devbay", SMALL);
    let inputs = folder.path("inputs.npz");
    let x = f32s(&[2, 3], &[1.0, 2.0, 3.0, -1.0, -1.0, -1.0]);
    arrays::write_npz(&inputs, &[("x", &x)]).unwrap();
    Small { folder, model, inputs }
}

/// Runs `devbay run` on the small model, with further arguments.
#[track_caller]
fn run<const N: usize>(small: &Small, more: [&dyn AsRef<Path>; N]) -> Finished {
    let mut command = command();
    command.arg("run").arg(&small.model);
    for argument in more {
        command.arg(argument.as_ref());
    }
    finish(&mut command)
}

fn read(path: &Path) -> Vec<(String, Tensor)> {
    arrays::read_npz(path).unwrap()
}

#[test]
fn devices_are_a_table() {
    let found =
        devbay(["devices"]).expect(0).prints(&["DEVICE", "KERNELS", "cpu:0", " cpu ", "inline streams"]);
    assert!(!found.out.contains("refused"), "{}", found.out);
    assert_eq!(found.err, "");
    devbay(["devices", "--plugin-option", "cpu.streams=async"]).expect(0).prints(&["async streams"]);
}

#[test]
fn devices_as_json() {
    let value = devbay(["devices", "--json"]).expect(0).json();
    let device = &value["devices"][0];
    assert_eq!((&device["device"], &device["id"]), (&"cpu:0".into(), &"cpu/0".into()));
    assert_eq!((&device["kind"], &device["inline"]), (&"cpu".into(), &true.into()));
    assert!(device["kernels"].as_u64().unwrap() > 70 && device["memory_bytes"].as_u64().unwrap() > 0);
    let plugin = &value["plugins"][0];
    assert_eq!((&plugin["name"], &plugin["outcome"]), (&"cpu".into(), &"loaded".into()));
    assert_eq!(plugin["library"], serde_json::Value::Null);
}

#[test]
fn a_loaded_plugin_replaces_the_linked_one() {
    let library = plugin_library();
    let arguments = ["devices".as_ref(), "--plugin".as_ref(), library.as_os_str()];
    let found = devbay(arguments).expect(0);
    assert_eq!(found.out.matches("cpu:0").count(), 1, "{}", found.out);
    assert!(
        found.out.contains("replaced by the plugin of this name that was named explicitly"),
        "{}",
        found.out
    );
    let value = devbay(arguments.into_iter().chain(["--json".as_ref()])).expect(0).json();
    let outcomes: Vec<_> = value["plugins"].as_array().unwrap().iter().map(|p| &p["outcome"]).collect();
    assert_eq!(outcomes, ["loaded", "replaced"]);
    assert_eq!(value["plugins"][0]["library"], library.display().to_string());
}

#[test]
fn refused_plugins_are_listed_with_reasons() {
    let folder = Folder::new();
    let text = folder.write("libdevbay_plugin_text.so", "no library");
    let missing = folder.path("libdevbay_plugin_missing.so");
    // A library of this machine that is not a plugin: one that every process has.
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().find_map(|line| line.split_whitespace().nth(5).filter(|p| p.contains("libc.so")));
    let libc = PathBuf::from(libc.expect("the C library"));
    for (path, kind, reason) in [
        (&text, "not-a-library", "not a loadable library"),
        (&missing, "unreadable", "No such file or directory"),
        (&libc, "no-entry", "does not export devbay_plugin_query_v0, so it is no devbay plugin"),
    ] {
        let arguments = ["devices".as_ref(), "--plugin".as_ref(), path.as_os_str()];
        let shown = path.display().to_string();
        devbay(arguments).expect(0).prints(&["cpu:0", "refused plugins", &shown, reason]);
        let value = devbay(arguments.into_iter().chain(["--json".as_ref()])).expect(0).json();
        let plugin = &value["plugins"][0];
        assert_eq!((&plugin["outcome"], &plugin["kind"]), (&"refused".into(), &kind.into()), "{plugin}");
        assert!(plugin["reason"].as_str().unwrap().contains(reason), "{plugin}");
    }
}

#[test]
fn inputs_come_from_archives_arrays_and_protobuf() {
    let small = small();
    let x = f32s(&[2, 3], &[1.0, 2.0, 3.0, -1.0, -1.0, -1.0]);
    let npy = small.folder.path("x.npy");
    arrays::write_npy(&npy, &x).unwrap();
    let pb = small.folder.write("x.pb", onnx::tensor("x", onnx::FLOAT, &[2, 3], x.bytes()));
    let named = |file: &Path| format!("x={}", file.display());
    for input in [small.inputs.display().to_string(), named(&npy), named(&pb)] {
        let output = small.folder.path("out.npz");
        run(&small, [&"--input", &input, &"--output", &output])
            .expect(0)
            .prints(&["OUTPUT", "f32[2,2]", "on cpu:0"]);
        let outputs = read(&output);
        assert_eq!(outputs.len(), 2);
        let y = outputs.iter().find(|(name, _)| name == "y").map(|(_, tensor)| tensor).unwrap();
        assert_eq!(y.elements::<f32>(), Some(&[6.0, 0.0, 0.0, 3.0][..]), "{input}");
    }
}

#[test]
fn random_inputs_follow_the_seed() {
    let small = small();
    let of_seed = |seed: &str| {
        let output = small.folder.path("out.npz");
        run(&small, [&"--random", &seed, &"--shape", &"x=5,3", &"--output", &output]).expect(0);
        let mut outputs = read(&output);
        outputs.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(outputs[0].1.shape(), [5, 3]);
        outputs.into_iter().map(|(_, tensor)| tensor.bytes().to_vec()).collect::<Vec<_>>()
    };
    let first = of_seed("7");
    assert_eq!(first, of_seed("7"));
    assert_ne!(first, of_seed("8"));
}

#[test]
fn outputs_go_to_a_folder() {
    let small = small();
    let folder = small.folder.path("new/outputs");
    run(&small, [&"--input", &small.inputs, &"--output", &folder]).expect(0);
    let y = arrays::read_file(&folder.join("y.npy")).unwrap();
    assert_eq!(y.elements::<f32>(), Some(&[6.0, 0.0, 0.0, 3.0][..]));
    // `odd name` is not used as a file name.
    let odd = arrays::read_file(&folder.join("output_1.npy")).unwrap();
    assert_eq!(odd.shape(), [2, 3]);
}

#[test]
fn json_is_all_of_standard_output() {
    let small = small();
    let value = run(&small, [&"--input", &small.inputs, &"--json", &"--explain", &"-v"]).expect(0).json();
    assert_eq!(value["device"], "cpu:0");
    let output = &value["outputs"][0];
    assert_eq!((&output["name"], &output["type"]), (&"y".into(), &"f32[2,2]".into()));
    assert_eq!(output["first"], serde_json::json!([6.0, 0.0, 0.0, 3.0]));
    assert!(value["times_ns"]["run"].as_u64().unwrap() > 0);
}

#[test]
fn explain_says_why() {
    let small = small();
    let explained =
        |device: &str| run(&small, [&"--input", &small.inputs, &"--explain", &"--device", &device]);
    explained("auto")
        .expect(0)
        .says(&["chosen  cpu:0", "first in the order of kinds that meets the requirements"]);
    explained("cpu/0").expect(0).says(&["chosen  cpu:0", "named: cpu/0"]);
    explained("prefer:gpu").expect(0).says(&["chosen  cpu:0"]);
}

#[test]
fn the_comparison_decides_the_exit_code() {
    let small = small();
    let expected = |values: &[f32]| {
        let path = small.folder.path("expected.npz");
        arrays::write_npz(&path, &[("y", &f32s(&[2, 2], values))]).unwrap();
        path
    };
    let compare = |path: &Path, more: [&dyn AsRef<Path>; 2]| {
        run(&small, [&"--input", &small.inputs, &"--compare", &path, more[0], more[1]])
    };
    let exact = expected(&[6.0, 0.0, 0.0, 3.0]);
    compare(&exact, [&"--rtol", &"0"]).expect(0).prints(&["VERDICT", "match"]);
    let near = expected(&[6.0, 0.0, 0.0, 3.0005]);
    compare(&near, [&"--rtol", &"1e-4"]).expect(0);
    let far = expected(&[6.0, 0.0, 0.0, 3.25]);
    compare(&far, [&"--rtol", &"1e-4"])
        .expect(3)
        .prints(&["DIFFERS"])
        .says(&["error: output `y` differs by 2.500e-1, allowed is 6.100e-4"]);
    compare(&far, [&"--rtol", &"0.1"]).expect(0);
    let json = compare(&far, [&"--json", &"--rtol=1e-4"]).expect(3).json();
    assert_eq!((&json["compare"][0]["name"], &json["compare"][0]["matches"]), (&"y".into(), &false.into()));
    let nan = expected(&[f32::NAN, 0.0, 0.0, 3.0]);
    compare(&nan, [&"--rtol", &"1"]).expect(3).says(&["output `y` differs"]);

    let path = small.folder.path("shape.npz");
    arrays::write_npz(&path, &[("y", &f32s(&[4], &[6.0, 0.0, 0.0, 3.0]))]).unwrap();
    compare(&path, [&"--rtol", &"1"]).expect(3).says(&["it is f32[2,2], expected f32[4]"]);
    arrays::write_npz(&path, &[("z", &f32s(&[1], &[6.0]))]).unwrap();
    compare(&path, [&"--rtol", &"1"]).expect(2).says(&["the model has no output `z`; it has y, odd name"]);
    arrays::write_npz(&path, &[]).unwrap();
    compare(&path, [&"--rtol", &"1"]).expect(2).says(&["has no arrays to compare with"]);
}

#[test]
fn verbose_goes_to_standard_error() {
    let small = small();
    let quiet = run(&small, [&"--input", &small.inputs]).expect(0);
    assert_eq!(quiet.err, "");
    let refused = small.folder.write("libdevbay_plugin_x.so", "no library");
    let loud = run(&small, [&"--input", &small.inputs, &"-vv", &"--device", &"cpu", &"--plugin", &refused])
        .expect(0);
    assert!(loud.err.contains("DEBUG") && loud.err.contains("not a loadable library"), "{}", loud.err);
    assert!(!loud.out.contains("DEBUG"), "{}", loud.out);
}

#[test]
fn a_deadline_and_an_interrupt_end_a_run() {
    let folder = Folder::new();
    let model = folder.write("loop.devbay", LOOP);
    let inputs = folder.path("inputs.npz");
    let n = Tensor::from_elements(&[], &[i64::MAX]).unwrap();
    arrays::write_npz(&inputs, &[("n", &n), ("x", &f32s(&[4], &[1.0; 4]))]).unwrap();
    let mut endless = command();
    endless.arg("run").arg(&model).arg("--input").arg(&inputs);
    let mut limited = command();
    limited.args(endless.get_args()).args(["--deadline-ms", "50"]);
    finish(&mut limited).expect(9).says(&["error: ", "the deadline passed before the run ended"]);

    let mut child = endless.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until_it_takes_signals(&mut child);
    // SAFETY: the child was not waited for, so its id was not reused.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{err}");
    assert!(err.contains("was cancelled"), "{err}");
}

#[test]
fn bench_measures() {
    let small = small();
    let arguments = |more: &[&str]| {
        let mut command = command();
        command
            .arg("bench")
            .arg(&small.model)
            .args(["--input".as_ref(), small.inputs.as_os_str()])
            .args(more);
        finish(&mut command)
    };
    let value = arguments(&["--runs", "5", "--json", "--threads", "2"]).expect(0).json();
    assert_eq!((&value["runs"], &value["threads"]), (&5.into(), &2.into()));
    assert_eq!((&value["unit"], &value["launches"]), (&"ns".into(), &1.into()), "{value}");
    let at = |key: &str| value[key].as_f64().unwrap_or_else(|| panic!("{key} in {value}"));
    assert!(0.0 < at("min") && at("min") <= at("median") && at("median") <= at("max"));
    arguments(&["--seconds", "0"]).expect(0).prints(&["on cpu:0 with", "MEDIAN", "1 launch; arena"]);
}

#[test]
fn doctor_advises() {
    let folder = Folder::new();
    let broken = folder.write("libdevbay_plugin_broken.so", b"no library");
    let doctor = |more: &[&str]| {
        let mut command = command();
        command.env("DEVBAY_PLUGIN_PATH", folder.path("nowhere")).arg("doctor").args(more);
        finish(&mut command)
    };
    let broken = broken.display().to_string();
    doctor(&["--plugin", &broken]).expect(0).prints(&[
        "cpu:0: ",
        "nowhere is no folder",
        "-> correct DEVBAY_PLUGIN_PATH",
        "libdevbay_plugin_broken.so",
        "was refused",
        "Vulkan",
        "1 device, ",
    ]);
    let findings = doctor(&["--json"]).expect(0).json()["findings"].clone();
    let findings = findings.as_array().expect("a list");
    assert!(findings.iter().any(|finding| finding["about"] == "device" && finding["text"].is_string()));
}

#[test]
fn inspect_shows_a_model() {
    let small = small();
    let inspect = |more: &[&str]| finish(command().arg("inspect").arg(&small.model).args(more)).expect(0);
    inspect(&[]).prints(&[
        "3 nodes, 6 parameters in 24 B of constants",
        "format    a program in text form",
        "graph     small",
        "input     x f32[batch,3]",
        "output    y f32[batch,2]",
        "MatMul@13",
        "?: 2 nodes of unknown work; --shape NAME=DIMS fixes open extents",
    ]);
    let value = inspect(&["--json"]).json();
    assert_eq!(value["ops"], serde_json::json!({ "Identity@25": 1, "MatMul@13": 1, "Relu@14": 1 }));
    assert_eq!(value["missing_kernels"], serde_json::json!({ "cpu:0": [] }));
    assert_eq!(value["inputs"], serde_json::json!([{ "name": "x", "type": "f32[batch,3]" }]));
    assert_eq!((&value["parameters"], &value["work"]["flops"]), (&6.into(), &0.into()));
    // The product of [4,3] and [3,2], two operations each, and the largest of each element and 0.
    let sized = inspect(&["--json", "--shape", "batch=4"]).json();
    let work = &sized["work"];
    assert_eq!((&work["flops"], &work["unknown_nodes"]), (&(2 * 4 * 3 * 2 + 4 * 2).into(), &0.into()));
    assert_eq!(work["layers"][0]["node"], "product (MatMul@13)");
    assert_eq!((&work["layers"][0]["flops"], &work["layers"][0]["result"]), (&48.into(), &"f32[4,2]".into()));
    inspect(&["--nodes", "--shape", "batch=4"]).prints(&[
        "NODE",
        "SHARE",
        "relu (Relu@14)",
        "f32[4,2]",
        "85.7 %",
    ]);
    // Small constants are printed completely, so the text is the program.
    assert_eq!(inspect(&["--text"]).out, SMALL);
}

#[test]
fn inspect_tells_where_a_model_comes_from() {
    let folder = Folder::new();
    let (x, y) = (onnx::value("x", onnx::FLOAT, &[2]), onnx::value("y", onnx::FLOAT, &[2]));
    let graph = onnx::Graph {
        nodes: &[onnx::node("r", "Relu", &["x"], &["y"])],
        inputs: &[x],
        outputs: &[y],
        ..Default::default()
    };
    // producer_name, producer_version, metadata_props (onnx.proto, ModelProto).
    let note = onnx::Message::default().with(1, "labels").with(2, "cat\u{1b}[31m,dog");
    let proto = onnx::model(17, &graph).with(2, "exporter").with(3, "1.2").with(14, note);
    let model = folder.write("m.onnx", &proto);
    let inspect = |more: &[&str]| finish(command().arg("inspect").arg(&model).args(more)).expect(0);
    inspect(&[]).prints(&[
        "format    ONNX, IR version",
        ", opset 17",
        "producer  exporter 1.2",
        "note      labels=cat\\u{1b}[31m,dog",
    ]);
    let value = inspect(&["--json"]).json();
    assert_eq!(value["opsets"], serde_json::json!([{ "domain": "", "version": 17 }]));
    assert_eq!(value["producer"], serde_json::json!({ "name": "exporter", "version": "1.2" }));
    assert_eq!(value["metadata"][0]["key"], "labels");
}

#[test]
fn inspect_shows_what_a_device_lacks() {
    let folder = Folder::new();
    let text =
        "devbay-program 1\n\nprogram \"v\"(%x: f32[2]) {\n  %y = com.acme.Soften@1(%x)\n  return %y\n}\n";
    let model = folder.write("v.devbay", text);
    let inspect = |more: &[&str]| finish(command().arg("inspect").arg(&model).args(more)).expect(0);
    inspect(&[]).prints(&["cpu:0 has no kernel for com.acme.Soften@1"]);
    assert_eq!(
        inspect(&["--json"]).json()["missing_kernels"]["cpu:0"],
        serde_json::json!(["com.acme.Soften@1"])
    );
}

#[test]
fn inspect_shows_a_plugin() {
    let library = plugin_library();
    let inspect = |more: &[&str]| finish(command().arg("inspect").arg(&library).args(more)).expect(0);
    inspect(&[]).prints(&[
        "plugin cpu ",
        "threading",
        "functions  the 12 required ones, and ",
        "option     streams=inline",
        "onnx.Conv",
    ]);
    let value = inspect(&["--json"]).json();
    assert_eq!((&value["name"], &value["vendor"]), (&"cpu".into(), &"devbay".into()));
    assert!(value["kernels"].as_array().unwrap().len() > 70);
    assert_eq!(value["layout_differences"], serde_json::json!([]));
}

#[test]
fn probe_answers_on_a_marked_line() {
    let probe = |path: &Path, more: &[&str]| {
        let found = finish(command().arg("probe").arg(path).args(more)).expect(0);
        let line = found.out.lines().find_map(|line| line.strip_prefix("devbay-probe-result "));
        serde_json::from_str::<serde_json::Value>(line.expect("a marked line")).unwrap()
    };
    let good = probe(&plugin_library(), &["--option", "streams=async"]);
    assert_eq!(good, serde_json::json!({ "name": "cpu", "n_devices": 1, "refusal": null }));
    let refused = probe(&plugin_library(), &["--option", "streams=sideways"]);
    assert_eq!(refused["refusal"][0], "create-failed");
    let reason = refused["refusal"][1].as_str().unwrap();
    assert!(reason.contains("option streams is inline or async, found sideways"), "{reason}");
    let folder = Folder::new();
    let none = probe(&folder.write("x.so", "no library"), &[]);
    assert_eq!(none["refusal"][0], "not-a-library");
    devbay(["probe", "x.so", "--option", "streams"])
        .expect(2)
        .says(&["--option is KEY=VALUE, found streams"]);
}

#[test]
fn a_photo_becomes_classes() {
    let folder = Folder::new();
    let model = folder.write(
        "colours.devbay",
        r#"devbay-program 1

program "colours"(%image: f32[1,3,2,2]) {
  %p: f32[1,3,1,1] = GlobalAveragePool@22(%image)
  %logits: f32[1,3] = Flatten@25(%p)
  return %logits
}
"#,
    );
    folder.write(
        "preprocessing.json",
        r#"{ "input": "image", "output": "logits", "softmax": true, "labels": "labels.txt", "width": 2, "height": 2,
             "channels": "RGB", "layout": "NCHW", "scale": 0.0196, "mean": [0, 0, 0], "std": [1, 1, 1] }"#,
    );
    folder.write("labels.txt", "red\ngreen\nblue\n");
    let photo = folder.path("green.png");
    image::save_buffer(&photo, &[0, 255, 0].repeat(16), 4, 4, image::ColorType::Rgb8).unwrap();
    let run = |more: &[&std::ffi::OsStr]| {
        finish(command().arg("run").arg(&model).arg("--image").arg(&photo).args(more))
    };
    let found = run(&[]).expect(0);
    let first = found.out.lines().next().unwrap();
    assert!(first.starts_with("green") && first.contains('%') && first.contains('█'), "{}", found.out);
    assert!(!found.out.contains('\x1b'), "{}", found.out);
    let value = run(&["--json".as_ref(), "--top".as_ref(), "1".as_ref()]).expect(0).json();
    assert_eq!(value["classes"].as_array().map(Vec::len), Some(1));
    assert_eq!(value["classes"][0]["label"], "green");
    let labels = folder.write("two.txt", "a\nb\n");
    run(&["--labels".as_ref(), labels.as_os_str()]).expect(1).says(&["has 2 labels, the model 3 classes"]);
    let text = folder.write("photo.png", "no photo");
    finish(command().arg("run").arg(&model).arg("--image").arg(text))
        .expect(1)
        .says(&["is no JPEG or PNG image"]);
}

#[test]
fn a_wrong_command_line_ends_with_2() {
    let small = small();
    let model = small.model.to_str().unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&[], "Usage: devbay"),
        (&["walk"], "unrecognized subcommand 'walk'"),
        (&["run"], "<MODEL>"),
        (&["run", model, "--sideways"], "unexpected argument '--sideways'"),
        (&["run", model, "--threads", "many"], "invalid value 'many'"),
        (
            &["run", model, "--random", "--threads", "100000"],
            "the number of threads is 1 to 512, found 100000",
        ),
        (
            &["run", model, "--random", "--plugin-option", "streams"],
            "--plugin-option is NAME.KEY=VALUE, found streams",
        ),
        (
            &["run", model, "--random", "--plugin-option", "tpu.a=1"],
            "option tpu.a is for a plugin that is not there",
        ),
        (&["run", model, "--input", "x.txt"], "--input is FILE.npz or NAME=FILE, found x.txt"),
        (&["run", model, "--random", "--shape", "x=1,wide"], "--shape x=1,wide: wide is no extent"),
        (&["run", model, "--random", "--shape", "1,3"], "--shape is NAME=DIMS, found 1,3"),
        (&["run", model, "--labels", "l.txt"], "--labels goes with --image"),
        (&["bench", model, "--seconds", "soon"], "invalid value 'soon'"),
    ];
    for (arguments, words) in cases {
        let found = devbay(*arguments).expect(2).says(&[words]);
        assert_eq!(found.out, "", "{arguments:?}");
    }
}

#[test]
fn help_and_version_are_results() {
    devbay(["--help"]).expect(0).prints(&["Usage: devbay", "devices", "inspect"]);
    devbay(["--version"]).expect(0).prints(&["devbay ", "(plugin ABI 0."]);
}

#[test]
fn a_closed_pipe_ends_the_command_quietly() {
    use std::os::unix::process::ExitStatusExt;
    let small = small();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = command();
    command.arg("inspect").arg(&small.model).stdout(writer).stderr(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    // Other commands also end this way when their reader is gone.
    assert_eq!(output.status.signal(), Some(libc::SIGPIPE));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn colour_is_for_terminals_alone() {
    let piped = devbay(["devices"]).expect(0);
    assert!(!piped.out.contains('\x1b') && piped.out.contains("DEVICE"));
    assert!(on_terminal(&[]).contains("\x1b[1mDEVICE"), "{}", on_terminal(&[]));
    assert!(!on_terminal(&[("NO_COLOR", "1")]).contains('\x1b'), "NO_COLOR is set");
}

/// Returns the output of `devbay devices` on a terminal.
fn on_terminal(environment: &[(&str, &str)]) -> String {
    use std::io::Read;
    use std::os::fd::{FromRawFd, OwnedFd};
    let (mut host, mut terminal) = (0, 0);
    let null = std::ptr::null_mut();
    // SAFETY: the call writes two integers of ours; the other arguments may be NULL.
    let status = unsafe { libc::openpty(&mut host, &mut terminal, null, null.cast(), null.cast()) };
    assert_eq!(status, 0, "expected a pseudo-terminal");
    // SAFETY: `openpty` opened `host`, and nothing else owns it.
    let host = unsafe { OwnedFd::from_raw_fd(host) };
    // SAFETY: `openpty` opened `terminal`, and nothing else owns it.
    let terminal = unsafe { OwnedFd::from_raw_fd(terminal) };
    let mut command = command();
    command.arg("devices").env_remove("NO_COLOR").envs(environment.iter().copied()).stdout(terminal);
    let status = command.status().unwrap();
    assert!(status.success());
    // The command still owns the terminal.
    drop(command);
    let (mut text, mut part) = (Vec::new(), [0; 4096]);
    let mut host = fs::File::from(host);
    // Reading from a terminal without an open other end is an error, not an end of file.
    while let Ok(n @ 1..) = host.read(&mut part) {
        text.extend_from_slice(&part[..n]);
    }
    String::from_utf8(text).unwrap()
}
