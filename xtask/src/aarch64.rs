//! `cargo xtask aarch64`: builds for aarch64 on another machine, and runs tests and the command under QEMU's user mode.
//!
//! The unit tests of the CPU plugin compare each kernel with its definition, so that they test the bodies for NEON. The
//! command then loads the plugin as a library and runs models of the repository, whose results are compared. Nothing is
//! measured: an emulator's times say nothing about a processor's.

use crate::abi::repository_root;
use crate::test::{cargo_command, succeed};
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(clap::Args)]
pub struct Arguments {
    /// Test in release, as plugins are shipped; building takes longer
    #[arg(long)]
    release: bool,
    /// Also run the conformance suite on the CPU plugin
    #[arg(long)]
    conformance: bool,
    /// Run only tests whose names contain one of these, and not the command
    names: Vec<String>,
}

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
/// The folder with the target's loader and C library, as Debian has it.
const SYSROOT: &str = "/usr/aarch64-linux-gnu";

/// The tested packages: the CPU plugin and its dependencies.
const PACKAGES: [&str; 3] = ["devbay-plugin-api", "devbay-ops", "devbay-plugin-cpu"];

/// Models of the repository, small enough for an emulator, each with inputs and expected outputs.
const MODELS: [&str; 2] = ["mnist_cnn", "tashkeel_rawi_v3"];

/// Builds and tests.
///
/// # Errors
/// If a tool is missing, with how to install it, or if a build, a test or a run fails.
pub fn run(arguments: &Arguments) -> Result<()> {
    check_tools()?;
    let mut tests = cargo(arguments, "test");
    tests.args(["--lib", "--no-fail-fast"]);
    for package in PACKAGES {
        tests.args(["--package", package]);
    }
    if !arguments.names.is_empty() {
        tests.arg("--").args(&arguments.names);
        return succeed(tests);
    }
    succeed(tests)?;
    let mut build = cargo(arguments, "build");
    build.args(["--package", "devbay-cli", "--package", "devbay-plugin-cpu"]);
    succeed(build)?;
    let folder = folder(arguments)?;
    let (program, plugin) = (folder.join("devbay"), folder.join("libdevbay_plugin_cpu.so"));
    for model in MODELS {
        let model = repository_root().join("models").join(model);
        let mut command = emulated(&program);
        command.arg("run").arg(model.join("model.onnx"));
        // QEMU does not start programs of the target that a program starts, and so none that tries out the library.
        command.arg("--plugin").arg(&plugin).arg("--no-probe");
        command.arg("--input").arg(model.join("case0.inputs.npz"));
        command.arg("--compare").arg(model.join("case0.outputs.npz"));
        succeed(command)?;
    }
    if arguments.conformance {
        let mut command = emulated(&program);
        command.arg("conformance").arg(&plugin).arg("--in-process");
        succeed(command)?;
    }
    Ok(())
}

/// Fails if a tool or the target's standard library is missing.
fn check_tools() -> Result<()> {
    for (tool, package) in [(LINKER, "gcc-aarch64-linux-gnu"), (EMULATOR, "qemu-user")] {
        let found = Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            bail!("{tool} is missing: on Debian, apt-get install {package}");
        }
    }
    if !Path::new(SYSROOT).join("lib/ld-linux-aarch64.so.1").exists() {
        bail!("{SYSROOT} has no C library: on Debian, apt-get install libc6-dev-arm64-cross");
    }
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "target-libdir", "--target", TARGET]).output()?;
    let libraries = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if !libraries.is_dir() {
        bail!("Rust's standard library for {TARGET} is missing: rustup target add {TARGET}");
    }
    Ok(())
}

/// Returns one of cargo's commands for the target, whose programs run under the emulator.
fn cargo(arguments: &Arguments, name: &str) -> Command {
    let mut command = cargo_command(&[name, "--target", TARGET]);
    if arguments.release {
        command.arg("--release");
    }
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", format!("{EMULATOR} -L {SYSROOT}"));
    // Dependencies with C code are compiled by the program that links.
    command.env("CC_aarch64_unknown_linux_gnu", LINKER);
    command
}

/// Returns a command that runs a program under the emulator.
fn emulated(program: &Path) -> Command {
    let mut command = Command::new(EMULATOR);
    command.args(["-L", SYSROOT]).arg(program);
    command
}

/// Returns cargo's build folder for the target.
fn folder(arguments: &Arguments) -> Result<PathBuf> {
    let all = crate::target_folder()?;
    Ok(all.join(TARGET).join(if arguments.release { "release" } else { "debug" }))
}
