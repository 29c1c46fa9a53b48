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

/// Builds a wheel in release, and prints its path and size.
///
/// # Errors
/// If maturin cannot be had or fails.
pub fn wheel(arguments: &Arguments) -> Result<()> {
    let target = target_folder()?;
    let python = environment(&target.join("python-wheel"), &sources().join("requirements.txt"))?;
    let maturin = python.with_file_name("maturin");
    let out = crate::abi::repository_root().join(&arguments.out);
    let manifest = sources().join("Cargo.toml");
    let mut build = Command::new(maturin);
    build.args(["build", "--release", "--locked", "--manifest-path"]).arg(&manifest).arg("--out").arg(&out);
    run(&mut build)?;
    let newest = fs::read_dir(&out)?.filter_map(|entry| {
        let path = entry.ok()?.path();
        let modified = path.metadata().ok()?.modified().ok()?;
        (path.extension() == Some(OsStr::new("whl"))).then_some((modified, path))
    });
    let Some((_, wheel)) = newest.max() else { bail!("maturin made no wheel in {}", out.display()) };
    println!("{} {:.1} MB", wheel.display(), wheel.metadata()?.len() as f64 / 1e6);
    Ok(())
}
