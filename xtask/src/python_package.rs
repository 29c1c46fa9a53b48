//! The Python package `devbay`: its tests, and its wheel. `plugin_package.rs` makes the plugins' wheels.

use crate::plugin_package::{self, Plugin};
use crate::python::{environment, run};
use crate::target_folder;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Options of wheels.
#[derive(clap::Args)]
pub struct Arguments {
    /// Build the wheel of a plugin in place of devbay's own
    #[arg(long, value_enum, value_name = "NAME")]
    plugin: Option<Plugin>,
    /// Folder for the wheel
    #[arg(long, value_name = "FOLDER", default_value = "target/wheels")]
    out: PathBuf,
}

/// Folder of the package's sources.
pub fn sources() -> PathBuf {
    crate::abi::repository_root().join("host/python")
}

/// Runs the package's tests on the module that the workspace's build made, then installs a wheel of that build as a user does.
/// Without Python, or the packages that they need, both are left out, unless `DEVBAY_REQUIRE` asks for them.
///
/// # Errors
/// If the environment cannot be made, a test fails, or the installed wheel does not do what the README says.
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
    let mut tests = Command::new(&python);
    tests.env("PYTHONPATH", &package).env("PYTHONDONTWRITEBYTECODE", "1");
    run(tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).arg(sources().join("tests")))?;
    check(&wheel_of_build(&target)?, &target.join("python-wheel-check"))
}

/// Packs the module and the command of the workspace's build into a wheel, with the names, requirements and entry points of
/// the package that maturin builds. It runs on this machine.
fn wheel_of_build(target: &Path) -> Result<PathBuf> {
    let python = environment(&target.join("python-tests"), &sources().join("tests/requirements.txt"))?;
    let project = target.join("python-build-wheel");
    if project.exists() {
        fs::remove_dir_all(&project).with_context(|| format!("cannot empty {}", project.display()))?;
    }
    lay_out(target, &project)?;
    fs::copy(sources().join("README.md"), project.join("README.md"))?;
    let command = target.join("debug/devbay");
    ensure!(command.exists(), "expected {}: cargo build --workspace", command.display());

    let about = fs::read_to_string(sources().join("pyproject.toml"))?;
    let package = about.split("[project]\n").nth(1).and_then(|rest| rest.split("[tool.maturin]").next());
    let package = package.context("pyproject.toml lacks [project] before [tool.maturin]")?;
    let version = format!("version = {:?}", env!("CARGO_PKG_VERSION"));
    let package = package.replace("dynamic = [\"version\"]", &version);
    // The target folder is ignored by Git, and so would be all that is in it.
    let about = format!(
        "[build-system]\nrequires = [\"hatchling\"]\nbuild-backend = \"hatchling.build\"\n\n[project]\n{package}\n\
         [tool.hatch.build]\nignore-vcs = true\n\n[tool.hatch.build.targets.wheel]\npackages = [\"devbay\"]\n\
         shared-scripts = {{ {:?} = \"devbay\" }}\n",
        command.display().to_string()
    );
    fs::write(project.join("pyproject.toml"), about)?;
    let dist = project.join("dist");
    let mut build = Command::new(python);
    build.args(["-m", "hatchling", "build", "--target", "wheel", "--directory"]).arg(&dist);
    run(build.current_dir(&project))?;
    newest_wheel(&dist)?.with_context(|| format!("hatchling made no wheel in {}", dist.display()))
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
    link(&built, &folder.join("_devbay.abi3.so"))
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
pub const GLIBC: &str = "2.28";

/// Builds a wheel in release, checks it in an environment of its own, and prints its path and size.
///
/// # Errors
/// If the tools cannot be had, something does not build, or the installed wheel does not do what its README says.
pub fn wheel(arguments: &Arguments) -> Result<()> {
    let out = crate::abi::repository_root().join(&arguments.out);
    match arguments.plugin {
        Some(plugin) => plugin_package::wheel(plugin, &out),
        None => wheel_of_devbay(&out),
    }
}

/// Returns a command that finds the wheels' tools first: maturin and cargo-zigbuild find zig beside the Python that comes first.
pub fn command_with_path(program: &Path, tools: &Path) -> Result<Command> {
    let old = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(tools.to_owned()).chain(std::env::split_paths(&old)))?;
    let mut command = Command::new(program);
    command.env("PATH", path);
    Ok(command)
}

/// Builds devbay's wheel, with the command in it. Zig links it, so that it runs with an older glibc than this machine's.
fn wheel_of_devbay(out: &Path) -> Result<()> {
    let target = target_folder()?;
    let python = environment(&target.join("python-wheel"), &sources().join("requirements.txt"))?;
    let tools = python.parent().context("a program is in a folder")?;
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);

    let mut command = command_with_path(&tools.join("cargo-zigbuild"), tools)?;
    command.args(["zigbuild", "--release", "--locked", "--package", "devbay-cli", "--target"]);
    command.arg(format!("{platform}.{GLIBC}")).env("CARGO_PROFILE_RELEASE_STRIP", "true");
    run(command.current_dir(crate::abi::repository_root()))?;
    // maturin puts the content of this folder into the wheel, and pip puts the scripts beside Python. Its name is the module's.
    let data = sources().join("devbay._devbay.data");
    let scripts = data.join("scripts");
    fs::create_dir_all(&scripts)?;
    fs::copy(target.join(&platform).join("release/devbay"), scripts.join("devbay"))?;

    let mut build = command_with_path(&tools.join("maturin"), tools)?;
    build.args(["build", "--release", "--locked", "--zig", "--compression-level", "9"]);
    build.args(["--target", &platform, "--compatibility"]);
    build
        .arg(format!("manylinux_{}", GLIBC.replace('.', "_")))
        .arg("--interpreter")
        .arg(&python)
        .arg("--manifest-path");
    build.arg(sources().join("Cargo.toml")).arg("--out").arg(out);
    if let Some(configuration) = free_threaded(&python, &target)? {
        build.env("PYO3_CONFIG_FILE", configuration);
    }
    let built = run(&mut build);
    fs::remove_dir_all(&data)?;
    built?;
    let Some(wheel) = newest_wheel(out)? else { bail!("maturin made no wheel in {}", out.display()) };
    run(Command::new(tools.join("auditwheel")).arg("show").arg(&wheel))?;
    check(&wheel, &target.join("python-wheel-check"))?;
    println!("{} {:.1} MB", wheel.display(), wheel.metadata()?.len() as f64 / 1e6);
    Ok(())
}

/// Returns PyO3's configuration for a Python without the interpreter's lock, which has no stable ABI before 3.15; None for
/// others. PyO3 does not ask that Python itself, as `.cargo/config.toml` has it build without one.
fn free_threaded(python: &Path, target: &Path) -> Result<Option<PathBuf>> {
    let ask = "import sys, sysconfig; is_free = sysconfig.get_config_var('Py_GIL_DISABLED'); \
               print(f'{sys.version_info[0]}.{sys.version_info[1]}' if is_free else '', end='')";
    let version = String::from_utf8(Command::new(python).args(["-c", ask]).output()?.stdout)?;
    if version.is_empty() {
        return Ok(None);
    }
    let configuration = target.join("python-wheel/pyo3.txt");
    fs::write(
        &configuration,
        format!("implementation=CPython\nversion={version}\nbuild_flags=Py_GIL_DISABLED\n"),
    )?;
    Ok(Some(configuration))
}

/// Returns the newest of devbay's own wheels in a folder.
fn newest_wheel(folder: &Path) -> Result<Option<PathBuf>> {
    let newest = fs::read_dir(folder)?.filter_map(|entry| {
        let path = entry.ok()?.path();
        let name = path.file_name()?.to_str()?;
        let is_ours = name.starts_with("devbay-") && name.ends_with(".whl");
        is_ours.then_some((path.metadata().ok()?.modified().ok()?, path))
    });
    Ok(newest.max().map(|(_, wheel)| wheel))
}

/// Makes an environment with devbay in it, and returns its Python. It has the wheel that `wheels` holds, or else one of the
/// workspace's build.
///
/// # Errors
/// If there is neither, or it cannot be installed.
pub fn install_devbay(wheels: &Path, folder: &Path) -> Result<PathBuf> {
    let wheel = match newest_wheel(wheels)? {
        Some(wheel) => wheel,
        None => wheel_of_build(&target_folder()?)?,
    };
    installed(&wheel, folder)
}

/// Puts a file into a second place, by a link if the file system can.
fn link(from: &Path, to: &Path) -> Result<()> {
    let linked = fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop));
    linked.with_context(|| format!("cannot make {}", to.display()))
}

/// Installs a wheel into an empty environment, which takes the place of an earlier one, and returns its Python.
fn installed(wheel: &Path, folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    let with = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    run(Command::new(with).args(["-m", "venv"]).arg(folder))?;
    let python = folder.join("bin/python");
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).arg(wheel))?;
    Ok(python)
}

/// A model that takes what the README's lines give it: the text form of a program may stand in the place of ONNX.
const README_MODEL: &str = "devbay-program 1\nprogram \"negate\"(%image: f32[n]) {\n    %y: f32[n] = Neg@13(%image)\n    return %y\n}\n";

/// Installs a wheel into an environment of its own, and runs the README's lines of Python and the command there.
fn check(wheel: &Path, folder: &Path) -> Result<()> {
    let python = installed(wheel, folder)?;
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
