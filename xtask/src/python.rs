//! Python environments below the target folder, made from a list of pinned packages and used until the list changes.
//!
//! They hold what Rust has no equal of: the peers that are Python packages, and what writes ONNX files. The Python that
//! makes them is the one that `PYTHON` names, or else `python3`.

use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The environment `folder` with the packages that `requirements` lists, made if it is not there as it should be.
///
/// # Errors
/// Where there is no Python, or a package cannot be had.
pub fn environment(folder: &Path, requirements: &Path) -> Result<PathBuf> {
    let python = folder.join("bin/python");
    let wanted = std::fs::read_to_string(requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    // Written last: an environment that was not finished has none.
    let mark = folder.join("made-from.txt");
    if std::fs::read_to_string(&mark).is_ok_and(|made| made == wanted) {
        return Ok(python);
    }
    eprintln!("making the Python environment {}", folder.display());
    let with = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    run(Command::new(with).args(["-m", "venv", "--clear"]).arg(folder))?;
    let install = ["-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--requirement"];
    run(Command::new(&python).args(install).arg(requirements))?;
    std::fs::write(mark, wanted)?;
    Ok(python)
}

/// Runs a command to its end. What it says goes to standard error: standard output is for results.
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
