//! Builds the OpenCL plugin with a C compiler, using the one command of its documentation.

use crate::test::succeed;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the plugin beside the plugins that cargo builds.
///
/// # Errors
/// If the compiler is missing or fails, or OpenCL's headers are missing.
pub fn build(release: bool) -> Result<PathBuf> {
    let root = crate::abi::repository_root();
    let folder = crate::target_folder()?.join(if release { "release" } else { "debug" });
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let library = folder.join("libdevbay_plugin_opencl.so");
    if !has_headers(&root)? {
        bail!("the headers of OpenCL (CL/cl_icd.h) are missing: opencl-c-headers on Debian");
    }
    compile(compiler(), &library)?;
    Ok(library)
}

/// Compiles the plugin with a C compiler.
///
/// # Errors
/// If the compiler fails.
pub fn compile(mut command: Command, library: &Path) -> Result<()> {
    let root = crate::abi::repository_root();
    command.args(LANGUAGE);
    command.args(["-shared", "-fPIC", "-fvisibility=hidden", "-O2", "-g", "-I"]);
    command.arg(root.join("plugin-api/include")).args(["-o"]).arg(library);
    command.arg("-Wl,-soname,libdevbay_plugin_opencl.so").args(sources(&root)?);
    command.args(["-lm", "-ldl", "-pthread"]);
    succeed(command)
}

/// Builds the plugin if OpenCL's headers are installed, or if `DEVBAY_REQUIRE` asks for it.
///
/// # Errors
/// As [`build`].
pub fn build_if_possible() -> Result<()> {
    let required = std::env::var("DEVBAY_REQUIRE").unwrap_or_default();
    let is_required = required.split([',', ' ']).any(|word| word == "opencl");
    if !is_required && !has_headers(&crate::abi::repository_root())? {
        eprintln!("xtask: the OpenCL plugin is left out: there are no headers of OpenCL here");
        return Ok(());
    }
    build(false).map(drop)
}

/// Flags of the language.
const LANGUAGE: [&str; 6] = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-pedantic", "-Werror"];

/// Returns the C compiler.
fn compiler() -> Command {
    Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
}

fn sources(root: &Path) -> Result<Vec<PathBuf>> {
    let folder = root.join("plugins/opencl/src");
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "c") {
            sources.push(path);
        }
    }
    sources.sort();
    Ok(sources)
}

/// Returns whether the compiler finds OpenCL's headers.
fn has_headers(root: &Path) -> Result<bool> {
    let mut command = compiler();
    command.args(LANGUAGE).args(["-fsyntax-only", "-I"]).arg(root.join("plugin-api/include"));
    command.arg(root.join("plugins/opencl/src/driver.c"));
    let output = command.output().context("a C compiler is needed: cc, or the one that CC names")?;
    let said = String::from_utf8_lossy(&output.stderr);
    Ok(output.status.success() || !said.contains("No such file"))
}
