//! `cargo xtask bench`: builds the benchmarks, devbay and its peers in release mode, and runs them.
//!
//! Only the requirements of the named benchmarks are built. An unavailable peer is skipped, and the benchmark gives the
//! reason; with `--require-peers` it is an error. Peers are separate packages (`bench/peers`) with their own target folder;
//! the Python ones live in an environment below the target folder.

use crate::abi::repository_root;
use crate::{python, target_folder};
use anyhow::{Context, Result, anyhow};
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(clap::Args)]
pub struct Arguments {
    /// Benchmarks to run: launch, straight, async-value, dense, resnet50, models, passes, arena, cold-start, compiled-start,
    /// executor, from-c, serving, wake, streaming, gpu-launch, pjrt; all of them by default
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print each row as one JSON object a line
    #[arg(long)]
    json: bool,
    /// Number of times to repeat each comparison
    #[arg(long, value_name = "N")]
    passes: Option<usize>,
    /// Run only the cases whose names contain TEXT
    #[arg(long, value_name = "TEXT")]
    case: Option<String>,
    /// Fail if a peer is missing, instead of continuing without it
    #[arg(long)]
    require_peers: bool,
}

impl Arguments {
    /// Returns whether one of these benchmarks will run.
    fn run_any(&self, benches: &[&str]) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| benches.contains(&name.as_str()))
    }
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let (root, target) = (repository_root(), target_folder()?);
    // Build all released packages, with the features that they are released with.
    python::run(cargo(&root).arg("--workspace"))?;

    let mut bench = Command::new(target.join("release/devbay-bench"));
    bench.args(arguments.names.iter().filter(|name| *name != PJRT));
    bench.args(arguments.json.then_some("--json"));
    bench.args(arguments.require_peers.then_some("--require-peers"));
    bench.args(arguments.passes.iter().flat_map(|n| ["--passes".to_owned(), n.to_string()]));
    bench.args(arguments.case.iter().flat_map(|text| ["--case", text]));
    add_peers(&mut bench, arguments, &root, &target.join("bench"))?;
    let models = target.join("models");
    if std::env::var_os("DEVBAY_MODELS").is_none() && models.exists() {
        bench.env("DEVBAY_MODELS", models);
    }
    // Forward their exit codes: they have printed their errors.
    let mut code = 0;
    if arguments.names.is_empty() || arguments.names.iter().any(|name| name != PJRT) {
        let status = bench.status().context("cannot start the benchmarks")?;
        code = status.code().unwrap_or(1);
    }
    if code == 0 && arguments.run_any(&[PJRT]) {
        code = pjrt(arguments, &target)?;
    }
    std::process::exit(code);
}

/// The benchmark with a separate program, because it links a different plugin.
const PJRT: &str = "pjrt";

fn pjrt(arguments: &Arguments, target: &Path) -> Result<i32> {
    if std::env::var_os("DEVBAY_PJRT_PLUGINS").is_none() && !arguments.require_peers {
        eprintln!("pjrt: left out, as DEVBAY_PJRT_PLUGINS names no library");
        return Ok(0);
    }
    let mut bench = Command::new(target.join("release/devbay-bench-pjrt"));
    bench.args(arguments.json.then_some("--json"));
    bench.args(arguments.passes.iter().flat_map(|n| ["--passes".to_owned(), n.to_string()]));
    bench.args(arguments.case.iter().flat_map(|text| ["--case", text]));
    let models = target.join("models");
    if std::env::var_os("DEVBAY_MODELS").is_none() && models.exists() {
        bench.env("DEVBAY_MODELS", models);
    }
    let status = bench.status().context("cannot start the benchmark of PJRT")?;
    Ok(status.code().unwrap_or(1))
}

/// Adds the paths of the peers, or the reasons why they are missing.
fn add_peers(bench: &mut Command, arguments: &Arguments, root: &Path, target: &Path) -> Result<()> {
    if arguments.run_any(&["resnet50", "cold-start"]) {
        add_peer(bench, "rten", build(root, target, "rten"));
    }
    if arguments.run_any(&["executor"]) {
        add_peer(bench, "onetbb", build_onetbb(root, target));
        add_peer(bench, "rust-graph", build(root, target, "rust-graph"));
        let requirements = root.join("bench/python/requirements-tensorflow.txt");
        add_peer(bench, "tensorflow", python::environment(&target.join("python-tensorflow"), &requirements));
    }
    let of_onnxruntime =
        ["resnet50", "models", "passes", "arena", "cold-start", "compiled-start", "executor", "serving"];
    if !arguments.run_any(&of_onnxruntime) {
        return Ok(());
    }
    let python = python::environment(&target.join("python"), &root.join("bench/python/requirements.txt"));
    if arguments.run_any(&["cold-start", "compiled-start", "serving"]) {
        let library = match &python {
            Ok(python) => onnxruntime_library(python),
            Err(_) => Err(anyhow!("it uses the library of the Python package, which is missing too")),
        };
        let native = library.and_then(|library| {
            bench.env("ORT_DYLIB_PATH", library);
            build(root, target, "onnxruntime")
        });
        add_peer(bench, "onnxruntime-native", native);
    }
    if let Ok(python) = &python
        && arguments.run_any(&["resnet50", "compiled-start"])
    {
        let generated = target.join("models");
        make_model(root, python, &generated, "resnet50")?;
        bench.arg("--generated").arg(generated);
    }
    if arguments.run_any(&["resnet50", "models"]) {
        let same = python.as_ref().cloned().map_err(|error| anyhow!("{error:#}"));
        add_peer(bench, "openvino", same);
    }
    add_peer(bench, "onnxruntime", python);
    Ok(())
}

fn add_peer(bench: &mut Command, peer: &str, program: Result<PathBuf>) {
    match program {
        Ok(program) => bench.arg(format!("--{peer}")).arg(program),
        Err(error) => bench.arg("--missing").arg(format!("{peer}={error:#}")),
    };
}

/// Builds a package below bench/peers, and returns its program's path.
fn build(root: &Path, target: &Path, name: &str) -> Result<PathBuf> {
    let manifest = root.join("bench/peers").join(name).join("Cargo.toml");
    let target = target.join("peers");
    python::run(
        cargo(root).arg("--locked").arg("--manifest-path").arg(manifest).arg("--target-dir").arg(&target),
    )?;
    Ok(target.join("release").join(format!("{name}-peer")))
}

/// Compiles bench/peers/onetbb against the system's library, with the compiler in `CXX`, or `c++`.
fn build_onetbb(root: &Path, target: &Path) -> Result<PathBuf> {
    let program = target.join("peers/onetbb-peer");
    std::fs::create_dir_all(target.join("peers"))?;
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    let mut command = Command::new(compiler);
    command.args(["-std=c++17", "-O3", "-march=native"]);
    command.arg(root.join("bench/peers/onetbb/main.cpp")).arg("-ltbb").arg("-o").arg(&program);
    python::run(&mut command).context("it needs a C++ compiler and oneTBB (Debian's package libtbb-dev)")?;
    Ok(program)
}

fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root).args(["build", "--release"]);
    cargo
}

/// Returns the library in onnxruntime's Python package, `libonnxruntime.so.VERSION`, which the peer without Python loads, so
/// that both peers use the same version and build.
fn onnxruntime_library(python: &Path) -> Result<PathBuf> {
    // Importing the package would take longer.
    let code = "import importlib.util as u, pathlib as p
print(*p.Path(u.find_spec('onnxruntime').origin).parent.glob('capi/libonnxruntime.so.*'), sep='\\n')";
    let output = Command::new(python).args(["-c", code]).output()?;
    let paths = String::from_utf8(output.stdout)?;
    let path =
        paths.lines().next().context("onnxruntime's Python package has no libonnxruntime.so.VERSION")?;
    Ok(PathBuf::from(path))
}

/// Writes the model of `bench/python/make_NAME.py`, unless that script has already written it.
fn make_model(root: &Path, python: &Path, generated: &Path, name: &str) -> Result<()> {
    let script = root.join(format!("bench/python/make_{name}.py"));
    let text =
        std::fs::read_to_string(&script).with_context(|| format!("cannot read {}", script.display()))?;
    let folder = generated.join(name);
    // Written last, so an incomplete model lacks it.
    let mark = folder.join("made-by.py");
    if std::fs::read_to_string(&mark).is_ok_and(|made| made == text) {
        return Ok(());
    }
    eprintln!("making the model {}", folder.display());
    python::run(Command::new(python).arg(script).arg(&folder))?;
    Ok(std::fs::write(mark, text)?)
}
