//! The Python package `devbay`: its tests, and wheels.

use crate::python::{environment, run};
use crate::target_folder;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Options of wheels.
#[derive(clap::Args)]
pub struct Arguments {
    /// Folder for the wheel
    #[arg(long, value_name = "FOLDER", default_value = "target/wheels")]
    out: PathBuf,
}

/// Folder of the package's sources.
fn sources() -> PathBuf {
    crate::abi::repository_root().join("host/python")
}

/// Runs the package's tests on the module that the workspace's build made. Without Python, or the packages that they need, they
/// are left out, unless `DEVBAY_REQUIRE` asks for them.
///
/// # Errors
/// If the environment cannot be made, or a test fails.
pub fn test_if_possible() -> Result<()> {
    let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    let version = ["-c", "import sys, venv; sys.exit(sys.version_info < (3, 11))"];
    let answer = Command::new(&python).args(version).stderr(Stdio::null()).status();
    let required = std::env::var("DEVBAY_REQUIRE").unwrap_or_default();
    let is_required = required.split([',', ' ']).any(|word| word == "python");
    let target = target_folder()?;
    let python = match answer {
        Ok(status) if status.success() => {
            environment(&target.join("python-tests"), &sources().join("tests/requirements.txt"))
        }
        _ => Err(anyhow!("expected Python 3.11 or newer with venv")),
    };
    let python = match python {
        Err(error) if !is_required => {
            eprintln!("xtask: the Python package is not tested: {error:#}");
            return Ok(());
        }
        python => python.context("DEVBAY_REQUIRE asks for the Python package's tests")?,
    };
    let package = target.join("python-package");
    lay_out(&target, &package)?;
    let mut tests = Command::new(python);
    tests.env("PYTHONPATH", &package).env("PYTHONDONTWRITEBYTECODE", "1");
    run(tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).arg(sources().join("tests")))
}

/// Puts the package together as a wheel has it: the Python files, and the module beside them.
fn lay_out(target: &Path, package: &Path) -> Result<()> {
    let folder = package.join("devbay");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    let files = sources().join("python/devbay");
    copy_files(&files, &folder)?;
    let library = format!("{}_devbay{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let built = target.join("debug").join(library);
    ensure!(built.exists(), "expected {}: cargo build --workspace", built.display());
    let module = folder.join("_devbay.abi3.so");
    fs::hard_link(&built, &module).or_else(|_| fs::copy(&built, &module).map(drop))?;
    Ok(())
}

/// Copies the Python files of a folder, and of those in it.
fn copy_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let path = entry?.path();
        let copy = to.join(path.file_name().unwrap_or_default());
        if path.ends_with("__pycache__") {
            continue;
        }
        if path.is_dir() {
            copy_files(&path, &copy)?;
        } else {
            fs::copy(&path, &copy)?;
        }
    }
    Ok(())
}

/// The oldest glibc that wheels run with: that of manylinux_2_28.
const GLIBC: &str = "2.28";

/// Builds a wheel in release, with the command in it; checks it in an environment of its own, and prints its path and size.
///
/// Zig links it, so that it runs with an older glibc than this machine's.
///
/// # Errors
/// If the tools cannot be had, something does not build, or the installed wheel does not do what the README says.
pub fn wheel(arguments: &Arguments) -> Result<()> {
    let target = target_folder()?;
    let python = environment(&target.join("python-wheel"), &sources().join("requirements.txt"))?;
    let tools = python.parent().context("a program is in a folder")?;
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    // maturin and cargo-zigbuild find zig beside the Python that comes first.
    let old = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(tools.to_owned()).chain(std::env::split_paths(&old)))?;

    let mut command = Command::new(tools.join("cargo-zigbuild"));
    command.args(["zigbuild", "--release", "--locked", "--package", "devbay-cli", "--target"]);
    command.arg(format!("{platform}.{GLIBC}")).env("PATH", &path).env("CARGO_PROFILE_RELEASE_STRIP", "true");
    run(command.current_dir(crate::abi::repository_root()))?;
    // maturin puts the content of this folder into the wheel, and pip puts the scripts beside Python. Its name is the module's.
    let data = sources().join("devbay._devbay.data");
    let scripts = data.join("scripts");
    fs::create_dir_all(&scripts)?;
    fs::copy(target.join(&platform).join("release/devbay"), scripts.join("devbay"))?;

    let out = crate::abi::repository_root().join(&arguments.out);
    let mut build = Command::new(tools.join("maturin"));
    build.args(["build", "--release", "--locked", "--zig", "--target", &platform, "--compression-level", "9"]);
    build.arg("--compatibility");
    build.arg(format!("manylinux_{}", GLIBC.replace('.', "_"))).arg("--manifest-path");
    build.arg(sources().join("Cargo.toml")).arg("--out").arg(&out).env("PATH", &path);
    let built = run(&mut build);
    fs::remove_dir_all(&data)?;
    built?;
    let newest = fs::read_dir(&out)?.filter_map(|entry| {
        let path = entry.ok()?.path();
        let modified = path.metadata().ok()?.modified().ok()?;
        (path.extension() == Some(OsStr::new("whl"))).then_some((modified, path))
    });
    let Some((_, wheel)) = newest.max() else { bail!("maturin made no wheel in {}", out.display()) };
    run(Command::new(tools.join("auditwheel")).arg("show").arg(&wheel))?;
    check(&wheel, &target.join("python-wheel-check"))?;
    println!("{} {:.1} MB", wheel.display(), wheel.metadata()?.len() as f64 / 1e6);
    Ok(())
}

/// A model that takes what the README's lines give it: the text form of a program may stand in the place of ONNX.
const README_MODEL: &str = "devbay-program 1\nprogram \"negate\"(%image: f32[n]) {\n    %y: f32[n] = Neg@13(%image)\n    return %y\n}\n";

/// Installs a wheel into an environment of its own, and runs the README's lines of Python and the command there.
fn check(wheel: &Path, folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    let with = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    run(Command::new(with).args(["-m", "venv"]).arg(folder))?;
    let python = folder.join("bin/python");
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).arg(wheel))?;
    run(Command::new(folder.join("bin/devbay")).arg("devices"))?;
    let readme = fs::read_to_string(crate::abi::repository_root().join("README.md"))?;
    let lines = readme.split("```python\n").nth(1).and_then(|rest| rest.split("```").next());
    let lines = lines.context("the README shows no Python")?;
    fs::write(folder.join("model.onnx"), README_MODEL)?;
    let array = "import numpy\narray = numpy.array([1, 2, 3], numpy.float32)\n";
    let expected = "assert outputs[\"y\"].tolist() == [-1, -2, -3], outputs\n";
    fs::write(folder.join("readme.py"), [array, lines, expected].concat())?;
    run(Command::new(&python).arg("readme.py").current_dir(folder))
}
