//! Python environments below the target folder, created from a list of pinned packages and reused until the list or the
//! Python changes.
//!
//! They provide what Rust lacks: the peers that are Python packages, and the writers of ONNX files. The Python that creates
//! them is the one in `PYTHON`, or else `python3`.

use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the environment `folder` with the packages in `requirements`, creating it if it is missing or out of date.
///
/// # Errors
/// If Python is missing, or a package is unavailable.
pub fn environment(folder: &Path, requirements: &Path) -> Result<PathBuf> {
    let python = folder.join("bin/python");
    let packages = std::fs::read_to_string(requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    let with = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    // It tells apart builds of one version, such as the one without the interpreter's lock.
    let version = Command::new(&with).args(["-c", "import sys; print(sys.version)"]).output();
    let version = version.with_context(|| format!("cannot start {}", with.display()))?.stdout;
    let wanted = format!("# {}\n{packages}", String::from_utf8_lossy(&version).trim_end());
    // Written last, so an incomplete environment lacks it.
    let mark = folder.join("made-from.txt");
    if std::fs::read_to_string(&mark).is_ok_and(|made| made == wanted) {
        return Ok(python);
    }
    eprintln!("making the Python environment {}", folder.display());
    run(Command::new(with).args(["-m", "venv", "--clear"]).arg(folder))?;
    let install = ["-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--requirement"];
    run(Command::new(&python).args(install).arg(requirements))?;
    std::fs::write(mark, wanted)?;
    Ok(python)
}

/// Runs a command to its end. Its output goes to standard error: standard output is for results.
///
/// # Errors
/// If it cannot be started or fails.
pub fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_owned();
    let name = Path::new(&name).file_name().unwrap_or(OsStr::new("command")).display().to_string();
    let status = command
        .stdin(Stdio::null())
        .stdout(std::io::stderr())
        .status()
        .with_context(|| format!("cannot start {name}"))?;
    let arguments: Vec<_> = command.get_args().map(|argument| argument.display().to_string()).collect();
    ensure!(status.success(), "`{name} {}` failed: {status}", arguments.join(" "));
    Ok(())
}
