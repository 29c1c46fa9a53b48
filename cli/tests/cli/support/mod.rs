//! Shared helpers of the command's tests: running it, temporary folders, the trained models.
//!
//! The command runs as for a user, in a process of its own, with an environment without the machine's settings: no
//! `DEVBAY_*`, no configured plugins.

pub mod onnx;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Doubles a matrix until its sum is at least 1,000, or up to a number of times.
pub const UNTIL: &str = r#"devbay-program 1

program "until"(%x: f32[4,4], %n: i64[]) {
  %half: f32[4,4] = const f32[4,4] [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
  %limit: f32[] = const f32[] [1000.0]
  %y: f32[4,4] = Loop@25(%n, _, %x) body(%i: i64[], %go_on: bool[], %v: f32[4,4]) {
    %a = MatMul@13(%v, %half) as "mul"
    %b = Relu@14(%a) as "relu"
    %s = ReduceSum@13(%b) as "sum" {keepdims = 0}
    %more = Less@13(%s, %limit) as "less"
    return %more, %b
  }
  return %y
}
"#;

/// Output and exit code of a finished command.
pub struct Finished {
    /// Exit code.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Finished {
    /// Expects an exit code.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "exit code; stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// Expects words on standard error.
    #[track_caller]
    pub fn says(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.err.contains(word), "expected `{word}` on stderr, found:\n{}", self.err);
        }
        self
    }

    /// Expects words on standard output.
    #[track_caller]
    pub fn prints(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.out.contains(word), "expected `{word}` on stdout, found:\n{}", self.out);
        }
        self
    }

    /// Returns standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e} in:\n{}", self.out))
    }
}

/// Returns the command in a clean environment, to be extended.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_devbay"));
    for (key, _) in std::env::vars_os() {
        if key.to_string_lossy().starts_with("DEVBAY_") {
            command.env_remove(key);
        }
    }
    // Hides the user's configuration and measured rates. Drivers of GPUs keep compiled kernels in this cache.
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache");
    command.env("XDG_CONFIG_HOME", "/nonexistent").env("XDG_CACHE_HOME", cache).stdin(Stdio::null());
    command
}

/// Runs a command from [`command`].
///
/// # Panics
/// If it ends by a signal or panics, which are bugs for any input.
#[track_caller]
pub fn finish(command: &mut Command) -> Finished {
    let output = command.output().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("expected UTF-8 from the command");
    let (out, err) = (text(output.stdout), text(output.stderr));
    let Some(code) = output.status.code() else {
        panic!("{command:?} ended with {}; stderr:\n{err}", output.status);
    };
    assert!(!err.contains("panicked at"), "{command:?} panicked:\n{err}");
    Finished { code, out, err }
}

/// Runs the command with these arguments.
#[track_caller]
pub fn devbay<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Finished {
    finish(command().args(arguments))
}

/// A test's own folder, removed at its end.
pub struct Folder(PathBuf);

impl Folder {
    /// Creates an empty folder.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("devbay-cli-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }

    /// Returns a path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file in it.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).expect("a file in a temporary folder");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Printed at the end of a test that [`run_again`] has started, to detect names that match no test.
pub const DONE: &str = "all was well in a process of its own";

/// Runs a test again, `MODULE::TEST`, alone in a process that `prepare` sets up.
///
/// # Panics
/// If it fails, with its output, or does not print [`DONE`].
#[track_caller]
pub fn run_again(test: &str, prepare: impl FnOnce(&mut Command)) {
    let mut child = Command::new(std::env::current_exe().expect("the test's own path"));
    child.args(["--exact", test, "--include-ignored", "--nocapture", "--test-threads=1"]);
    prepare(&mut child);
    let output = child.output().expect("expected the test to start");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let tail = text.char_indices().rev().nth(20_000).map_or(0, |(at, _)| at);
    assert!(output.status.success() && text.contains(DONE), "{}:\n{}", output.status, &text[tail..]);
}

/// The trained models and their numbers of cases, 38 in all.
pub const MODELS: &[(&str, usize)] = &[
    ("aecmos_gru_b", 1),
    ("basic_pitch", 1),
    ("bert_rxnfp", 2),
    ("blaze_face", 1),
    ("dnsmos", 1),
    ("efficientnet_lite0", 2),
    ("khmercut_int8", 1),
    ("magika_v3_3", 2),
    ("melspectrogram", 1),
    ("mlp_hey_livekit", 2),
    ("mnist_cnn", 2),
    ("mnist_external", 1),
    ("ocr_cls_ppv2", 2),
    ("ocr_det_ppv4", 2),
    ("ocr_rec_ppv4", 2),
    ("picodet_layout", 1),
    ("pplcnet_orientation", 2),
    ("rivagan_decoder", 1),
    ("silero_vad_op18_ifless", 3),
    ("silero_vad_v6", 4),
    ("slanet_1m", 1),
    ("speech_embedding", 1),
    ("tashkeel_rawi_v3", 1),
    ("whisper80_stft", 1),
];

/// One case of a trained model.
pub struct Case {
    /// Model and case, for messages.
    pub name: String,
    /// The model.
    pub model: PathBuf,
    /// Its inputs.
    pub inputs: PathBuf,
    /// Its expected outputs.
    pub outputs: PathBuf,
}

/// Returns the cases of the trained models in the folder that `DEVBAY_MODELS` names, and of others in the repository's. Prints
/// the missing models.
///
/// # Panics
/// If there are none; with the word `models` in `DEVBAY_REQUIRE`, if the variable is not set. Missing models are then among
/// the cases, and fail.
pub fn cases() -> Vec<Case> {
    let named = std::env::var_os("DEVBAY_MODELS").map(PathBuf::from);
    let required = std::env::var("DEVBAY_REQUIRE").unwrap_or_default();
    let required = required.split([',', ' ']).any(|word| word == "models");
    assert!(
        named.is_some() || !required,
        "expected the models, which DEVBAY_REQUIRE asks for: set DEVBAY_MODELS to their folder"
    );
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    let folder = named.unwrap_or_else(|| ours.clone());
    let mut missing = Vec::new();
    let mut cases = Vec::new();
    for (name, n) in MODELS {
        let named = folder.join(name);
        let model = if named.exists() { named } else { ours.join(name) };
        for i in 0..*n {
            let case = Case {
                name: format!("{name} case {i}"),
                model: model.join("model.onnx"),
                inputs: model.join(format!("case{i}.inputs.npz")),
                outputs: model.join(format!("case{i}.outputs.npz")),
            };
            if required || [&case.model, &case.inputs, &case.outputs].iter().all(|path| path.exists()) {
                cases.push(case);
            } else {
                missing.push(case.name);
            }
        }
    }
    if !missing.is_empty() {
        eprintln!("not run, as {} does not have them: {}", folder.display(), missing.join(", "));
    }
    assert!(!cases.is_empty(), "expected models in {}, found none", folder.display());
    cases
}

/// Returns one case per model: the others differ only in their inputs, some of which have other extents.
pub fn first_cases() -> Vec<Case> {
    cases().into_iter().filter(|case| case.name.ends_with('0')).collect()
}

/// Models that test nothing beyond others, with many times their work or other files: where runs are slow, as on lavapipe
/// and PoCL or with baseline instructions, the gate skips them.
const NOTHING_NEW: &[&str] = &["dnsmos", "mnist_external"];

/// Returns [`first_cases`] without `NOTHING_NEW`.
pub fn distinct_cases() -> Vec<Case> {
    let is_new = |case: &Case| !NOTHING_NEW.iter().any(|name| case.name.starts_with(name));
    first_cases().into_iter().filter(is_new).collect()
}

/// Returns the path of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Builds a plugin in C with a defect of `defect.c`.
///
/// # Panics
/// Without a C compiler.
pub fn defect(folder: &Folder, definition: &str) -> PathBuf {
    let library = folder.path("libdevbay_plugin_minimal.so");
    let mut cc = Command::new("cc");
    cc.args([
        "-std=c11",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fPIC",
        "-shared",
        &format!("-D{definition}"),
    ]);
    cc.arg("-I").arg(root().join("plugin-api/include")).arg("-o").arg(&library);
    cc.arg(root().join("conformance/fixtures/defect.c"));
    let compiled = cc.output().expect("expected a C compiler called cc");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    library
}

/// Returns the CPU plugin as a shared library, beside the command.
///
/// # Panics
/// As [`library_of`].
pub fn plugin_library() -> PathBuf {
    library_of("cpu")
}

/// Returns the wgpu plugin as a shared library, if this machine has a Vulkan driver.
///
/// # Panics
/// As [`library_of`]; without a driver with the word `vulkan` in `DEVBAY_REQUIRE`.
pub fn wgpu_library() -> Option<PathBuf> {
    let library = library_of("wgpu");
    let found = devbay(["devices".as_ref(), "--plugin".as_ref(), library.as_os_str()]);
    if found.out.contains("wgpu:0") {
        return Some(library);
    }
    assert!(
        !is_required("vulkan"),
        "expected a Vulkan driver, which DEVBAY_REQUIRE asks for: {}{}",
        found.out,
        found.err
    );
    eprintln!("not run: this machine has no Vulkan driver");
    None
}

/// Returns the OpenCL plugin as a shared library, if it was built and this machine has a driver.
///
/// # Panics
/// As [`library_of`] if it was built; if something is missing with the word `opencl` in `DEVBAY_REQUIRE`.
pub fn opencl_library() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_BIN_EXE_devbay")).with_file_name("libdevbay_plugin_opencl.so");
    if is_required("opencl") || built.exists() {
        let library = library_of("opencl");
        let found = devbay(["devices".as_ref(), "--plugin".as_ref(), library.as_os_str()]);
        if found.out.contains("opencl:0") {
            return Some(library);
        }
        assert!(
            !is_required("opencl"),
            "expected an OpenCL driver, which DEVBAY_REQUIRE asks for: {}{}",
            found.out,
            found.err
        );
    }
    eprintln!("not run: the OpenCL plugin was not built, or this machine has no OpenCL driver");
    None
}

/// Returns the PJRT plugin and its libraries as arguments, and their number of devices, if `DEVBAY_PJRT_PLUGINS` names some.
///
/// # Panics
/// As [`library_of`]; if no device was found with the word `pjrt` in `DEVBAY_REQUIRE`.
pub fn pjrt_plugin() -> Option<([String; 6], usize)> {
    let libraries = std::env::var("DEVBAY_PJRT_PLUGINS").unwrap_or_default();
    let library = library_of("pjrt").display().to_string();
    let option = format!("pjrt.libraries={libraries}");
    // A generous limit, for busy machines.
    let limit = "pjrt.probe_ms=60000".to_owned();
    let given = || "--plugin-option".to_owned();
    let arguments = ["--plugin".to_owned(), library, given(), option, given(), limit];
    let mut devices = command();
    devices.arg("devices").args(&arguments);
    let found = finish(&mut devices);
    let n_devices = found.out.lines().filter(|line| line.starts_with("pjrt:")).count();
    if n_devices > 0 {
        return Some((arguments, n_devices));
    }
    assert!(
        !is_required("pjrt"),
        "expected devices of PJRT libraries (DEVBAY_PJRT_PLUGINS), which DEVBAY_REQUIRE asks for: {}{}",
        found.out,
        found.err
    );
    eprintln!("not run: DEVBAY_PJRT_PLUGINS names no library with a device");
    None
}

/// Returns whether `DEVBAY_REQUIRE` contains a word.
fn is_required(wanted: &str) -> bool {
    let required = std::env::var("DEVBAY_REQUIRE").unwrap_or_default();
    required.split([',', ' ']).any(|word| word == wanted)
}

/// Returns one of our plugins as a shared library, beside the command.
///
/// # Panics
/// If it is missing, or older than its sources: cargo does not build it for packages that merely depend on it.
pub fn library_of(plugin: &str) -> PathBuf {
    let command = Path::new(env!("CARGO_BIN_EXE_devbay"));
    let library = command.with_file_name(format!("libdevbay_plugin_{plugin}.so"));
    let release =
        if command.parent().is_some_and(|folder| folder.ends_with("release")) { " --release" } else { "" };
    let build = match plugin {
        "opencl" => format!("run `cargo xtask opencl{release}`"),
        _ => format!("run `cargo build{release} -p devbay-plugin-{plugin}`"),
    };
    let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
    let Ok(built) = modified(&library) else {
        panic!("expected the plugin {plugin} at {}; {build}", library.display());
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for folder in [&*format!("plugins/{plugin}/src"), "plugin-api/src"] {
        let (path, changed) = newest(&root.join(folder));
        assert!(changed <= built, "{} is older than {}; {build}", library.display(), path.display());
    }
    library
}

/// Returns the file of a folder that was changed last.
fn newest(folder: &Path) -> (PathBuf, SystemTime) {
    let entries = fs::read_dir(folder).expect("the sources");
    let files = entries.map(|entry| {
        let path = entry.expect("the sources").path();
        if path.is_dir() {
            return newest(&path);
        }
        let changed = fs::metadata(&path).and_then(|metadata| metadata.modified()).expect("the sources");
        (path, changed)
    });
    files.max_by_key(|(_, changed)| *changed).expect("a folder with sources")
}

/// Returns whether this processor has an instruction set of `DEVBAY_CPU_ISA`, according to the system.
pub fn has_isa(isa: &str) -> bool {
    let text = fs::read_to_string("/proc/cpuinfo").expect("/proc/cpuinfo");
    let flags = text.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or_default();
    let has = |wanted: &[&str]| wanted.iter().all(|flag| flags.split_whitespace().any(|word| word == *flag));
    match isa {
        "baseline" => true,
        "avx2" => has(&["avx2", "fma"]),
        "avx512" => has(&["avx2", "fma", "avx512f", "avx512vl", "avx512bw", "avx512dq"]),
        other => panic!("no instruction set {other}"),
    }
}

/// Minimum share of a model's operations on the device itself.
const SHARE_MIN: f64 = 0.99;

/// Runs cases on a device of the plugin in the arguments: results match, and nearly all operations run on the device.
#[track_caller]
pub fn expect_models(plugin: &[String], device: &str, cases: impl Iterator<Item = Case>) {
    let mut failures = Vec::new();
    for case in cases {
        let mut command = command();
        command
            .arg("run")
            .arg(&case.model)
            .arg("--input")
            .arg(&case.inputs)
            .arg("--compare")
            .arg(&case.outputs);
        command.args(plugin).args(["--device", device, "--json", "--explain"]);
        let finished = finish(&mut command);
        if finished.code != 0 {
            failures.push(format!("{}: exit code {}, {}", case.name, finished.code, finished.err.trim()));
            continue;
        }
        let report: serde_json::Value = serde_json::from_str(&finished.out).expect("a report in JSON");
        let flops = report["work"]["flops"].as_object().expect("operations by device");
        let all: f64 = flops.values().filter_map(serde_json::Value::as_f64).sum();
        let own = flops.get(device).and_then(serde_json::Value::as_f64).unwrap_or(0.0);
        if own < SHARE_MIN * all {
            failures.push(format!(
                "{}: {own} of {all} operations; elsewhere:\n{}",
                case.name,
                finished.err.trim()
            ));
        }
    }
    assert!(failures.is_empty(), "{} cases:\n{}", failures.len(), failures.join("\n"));
}

/// Waits until a child has the thread that handles SIGINT for all others, which starts first.
pub fn wait_until_it_takes_signals(child: &mut Child) {
    let status = format!("/proc/{}/status", child.id());
    let begin = Instant::now();
    loop {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let blocked = text.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap_or("0");
        // Bit 1 is SIGINT.
        if u64::from_str_radix(blocked.trim(), 16).unwrap_or(0) & 2 != 0 {
            return;
        }
        assert!(
            child.try_wait().unwrap().is_none() && begin.elapsed() < Duration::from_secs(60),
            "expected an endless run"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
