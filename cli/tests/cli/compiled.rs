//! Models compiled by a device's compiler: on every PJRT library that the environment names, stored, and in files.

use crate::support::{
    Case, Folder, cases, command, expect_models, finish, first_cases, pjrt_plugin, plugin_library,
};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Models that are not CNNs, transformers or MLPs: with control flow, quantised, of signals.
const NOT_FOR_PJRT: &[&str] = &["khmercut_int8", "silero_vad", "slanet_1m", "tashkeel", "whisper80_stft"];

fn wanted(case: &Case) -> bool {
    !NOT_FOR_PJRT.iter().any(|name| case.name.starts_with(name))
}

/// Returns the first device of each library: in the output of `devices`, name and number alternate.
fn first_devices(plugin: &[String]) -> Vec<String> {
    let mut devices = command();
    devices.arg("devices").args(plugin);
    let out = finish(&mut devices).out;
    let mut libraries: Vec<String> = Vec::new();
    let mut first = Vec::new();
    for line in out.lines().filter(|line| line.starts_with("pjrt:")) {
        let library = line.split_once('(').and_then(|(_, rest)| rest.split_once(')')).map(|(name, _)| name);
        let library = library.expect("a library's name in brackets").to_owned();
        if !libraries.contains(&library) {
            libraries.push(library);
            first.extend(line.split_whitespace().next().map(str::to_owned));
        }
    }
    first
}

#[test]
fn models_match_on_the_newest_library_and_run_there() {
    let Some((plugin, _)) = pjrt_plugin() else { return };
    let device = first_devices(&plugin).pop().expect("a library");
    expect_models(&plugin, &device, first_cases().into_iter().filter(wanted));
}

/// Maximum bytes of a small model.
const SMALL: u64 = 1_000_000;

/// Small models suffice: a library's version affects all models alike.
#[test]
fn small_models_match_on_the_older_libraries_and_run_there() {
    let Some((plugin, _)) = pjrt_plugin() else { return };
    let mut devices = first_devices(&plugin);
    devices.pop();
    let is_small = |case: &Case| std::fs::metadata(&case.model).is_ok_and(|file| file.len() < SMALL);
    for device in devices {
        let cases = first_cases().into_iter().filter(|case| wanted(case) && is_small(case));
        expect_models(&plugin, &device, cases);
    }
}

#[test]
#[ignore = "full: the large models on the older libraries, and the other cases of each model"]
fn every_case_matches_on_every_library() {
    let Some((plugin, _)) = pjrt_plugin() else { return };
    for device in first_devices(&plugin) {
        expect_models(&plugin, &device, cases().into_iter().filter(wanted));
    }
}

/// The processor runs control flow and ops that no compiler takes; values between them are copied back and forth.
#[test]
fn other_models_match_with_a_part_elsewhere() {
    let Some((plugin, _)) = pjrt_plugin() else { return };
    let device = first_devices(&plugin).pop().expect("a library");
    let mut failures = Vec::new();
    for case in first_cases().into_iter().filter(|case| !wanted(case)) {
        let mut command = command();
        command.arg("run").arg(&case.model).arg("--input").arg(&case.inputs);
        command.arg("--compare").arg(&case.outputs).args(&plugin).args(["--device", &device]);
        let finished = finish(&mut command);
        if finished.code != 0 {
            failures.push(format!("{}: exit code {}, {}", case.name, finished.code, finished.err.trim()));
        }
    }
    assert!(failures.is_empty(), "{} cases:\n{}", failures.len(), failures.join("\n"));
}

fn case_of(name: &str) -> Option<Case> {
    cases().into_iter().find(|case| case.name.starts_with(name))
}

fn plan(plugin: &[String], model: &Path, folder: &Folder) -> Value {
    let mut command = command();
    command.arg("inspect").arg(model).arg("--plan").args(plugin).args(["--device", "pjrt:0", "--json"]);
    command.env("DEVBAY_CACHE_DIR", folder.path("."));
    finish(&mut command).expect(0).json()
}

#[test]
fn a_program_is_compiled_once_and_found_again() {
    let Some((plugin, _)) = pjrt_plugin() else { return };
    let (folder, case) = (Folder::new(), case_of("mnist_cnn").expect("it is in the repository"));
    let stage = |plan: &Value| plan["stages"][0].clone();
    let first = stage(&plan(&plugin, &case.model, &folder));
    assert_eq!((&first["kind"], &first["stored"]), (&"compiled".into(), &false.into()), "{first}");
    let second = stage(&plan(&plugin, &case.model, &folder));
    assert_eq!(second["stored"], true);

    // Damaged entries are compiled again, and repaired.
    let files = || -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder.path("programs")).expect("the programs");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    };
    assert_eq!(files().len(), 1);
    let bytes = std::fs::read(&files()[0]).expect("the program");
    for damaged in [&bytes[..bytes.len() / 2], &[0u8; 100][..], &[]] {
        std::fs::write(&files()[0], damaged).expect("written");
        assert_eq!(stage(&plan(&plugin, &case.model, &folder))["stored"], false);
        assert_eq!(stage(&plan(&plugin, &case.model, &folder))["stored"], true);
    }
}

#[test]
fn a_compiled_file_runs_on_its_device_alone() {
    let Some((plugin, n_devices)) = pjrt_plugin() else { return };
    let (folder, case) = (Folder::new(), case_of("mnist_cnn").expect("it is in the repository"));
    let file = folder.path("mnist.compiled");
    let compile = |model: &Path, device: &str| {
        let mut command = command();
        command.arg("compile").arg(model).arg("-o").arg(&file).args(&plugin).args(["--device", device]);
        finish(&mut command)
    };
    let out = compile(&case.model, "pjrt:0").expect(0).out;
    assert!(out.contains("pjrt/") && out.contains("by plugin pjrt"), "{out}");
    let run = |device: &str, inputs: Option<&Path>| {
        let mut command = command();
        command.arg("run").arg(&file).args(&plugin).args(["--device", device, "--json"]);
        if let Some(inputs) = inputs {
            command.arg("--input").arg(inputs).arg("--compare").arg(&case.outputs);
        }
        finish(&mut command)
    };
    let report = run("pjrt:0", Some(&case.inputs)).expect(0).json();
    assert_eq!(report["format"], "compiled");
    assert!(report["compare"].as_array().is_some_and(|list| list.iter().all(|v| v["matches"] == true)));
    run("pjrt:0", None).says(&["input", "missing"]);
    run("cpu:0", Some(&case.inputs)).expect(4).says(&["compiled by plugin pjrt"]);
    let other = format!("pjrt:{}", n_devices - 1);
    run(&other, Some(&case.inputs)).expect(4).says(&["a program for"]);

    let whole = std::fs::read(&file).expect("the file");
    std::fs::write(&file, &whole[..whole.len() - 10]).expect("written");
    run("pjrt:0", Some(&case.inputs)).expect(4).says(&["no compiled program"]);
    // Constants are in the middle, the program at the end.
    for at in [whole.len() / 2, whole.len() - 100] {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        std::fs::write(&file, &damaged).expect("written");
        run("pjrt:0", Some(&case.inputs))
            .expect(4)
            .says(&["no compiled program", "differs from what was written"]);
    }
}

#[test]
fn what_cannot_be_compiled_says_why() {
    let Some((plugin, _)) = pjrt_plugin() else { return };
    let (folder, case) = (Folder::new(), case_of("mnist_cnn").expect("it is in the repository"));
    let file = folder.path("x.compiled");
    let compile = |model: &Path, more: &[&str]| {
        let mut command = command();
        command.arg("compile").arg(model).arg("-o").arg(&file).args(&plugin).args(more);
        finish(&mut command)
    };
    compile(&case.model, &["--target", "pjrt-absent:v5e:2x2"]).expect(4).says(&["no PJRT library absent"]);
    // XLA's compiler for the processor cannot target absent devices.
    let libraries = std::env::var("DEVBAY_PJRT_PLUGINS").expect("the libraries");
    let known = format!("pjrt-{}:cpu", libraries.split(':').next().unwrap_or_default());
    compile(&case.model, &["--target", &known]).expect(4).says(&["Topology"]);
    compile(&case.model, &["--target", "pjrt"]).expect(2).says(&["PLUGIN-TARGET"]);
    compile(&case.model, &["--target", "other-x"]).says(&["no plugin other"]);
    assert!(!file.exists());

    // The error names an op that no compiler takes.
    let model = folder.write("places.devbay", UNCLAIMED);
    compile(&model, &["--device", "pjrt:0"]).expect(4).says(&["places (NonZero@13)", "depend on data"]);

    let mut command = command();
    command.arg("compile").arg(&case.model).arg("-o").arg(&file).arg("--plugin").arg(plugin_library());
    command.args(["--device", "cpu:0"]);
    finish(&mut command).expect(4).says(&["cpu", "no compiler for whole programs"]);
}

const UNCLAIMED: &str = r#"devbay-program 1

program "places"(%x: f32[4]) {
  %y = Relu@14(%x) as "relu"
  %z = NonZero@13(%y) as "places"
  return %z
}
"#;

/// Products and sums for a compiler, with a determinant between them that it does not take.
const DIVIDED: &str = r#"devbay-program 1

program "divided"(%x: f32[3,3]) {
  %w = const f32[3,3] [2.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 2.0]
  %m: f32[3,3] = MatMul@13(%x, %w) as "product"
  %d: f32[] = Det@22(%m) as "det"
  %b: f32[3,3] = Relu@14(%x) as "beside"
  %s: f32[3,3] = Add@14(%m, %d) as "sum"
  %y: f32[3,3] = Mul@14(%s, %b) as "result"
  return %y
}
"#;

#[test]
fn what_a_compiler_does_not_take_runs_elsewhere() {
    let Some((plugin, _)) = pjrt_plugin() else { return };
    let folder = Folder::new();
    let model = folder.write("divided.devbay", DIVIDED);
    let plan = plan(&plugin, &model, &folder);
    let stages = plan["stages"].as_array().expect("stages");
    let nodes = |stage: &Value| -> Vec<String> {
        let nodes = stage["nodes"].as_array().into_iter().flatten().filter_map(Value::as_str);
        nodes.map(|node| node.split(' ').next().unwrap_or_default().to_owned()).collect()
    };
    let kinds: Vec<&str> = stages.iter().filter_map(|stage| stage["kind"].as_str()).collect();
    assert_eq!(kinds, ["compiled", "section", "compiled"]);
    // A ready node joins the first program, although it comes after the determinant in the model.
    assert_eq!(nodes(&stages[0]), ["product", "beside"]);
    assert_eq!(nodes(&stages[2]), ["sum", "result"]);

    let expected = folder.path("expected.npz");
    let run = |device: &str, option: &str| {
        let mut command = command();
        command.arg("run").arg(&model).args(&plugin).args(["--device", device, "--random", "7", option]);
        finish(command.arg(&expected)).expect(0)
    };
    run("cpu:0", "--output");
    run("pjrt:0", "--compare");

    // On the processor, copies to a program and back take longer than this node.
    let mut command = command();
    command.arg("run").arg(&model).args(&plugin).args(["--device", "auto", "--random", "7", "--json"]);
    let report = finish(&mut command).expect(0).json();
    assert_eq!(report["device"], "cpu:0");
}
