//! Builds a Debian package of the command: `devbay`, `devbay-probe`, manual pages and completions.
//!
//! `cargo-deb` makes it, with the metadata in `cli/Cargo.toml`. The pages and completions come from the command itself.

use crate::abi::repository_root;
use crate::python::run;
use crate::target_folder;
use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of the package.
#[derive(clap::Args)]
pub struct Arguments {
    /// Folder for the package
    #[arg(long, value_name = "FOLDER", default_value = "target/debian")]
    out: PathBuf,
}

/// Shells, and the name under which each looks for the command's completions.
const COMPLETIONS: [(&str, &str); 3] = [("bash", "devbay"), ("zsh", "_devbay"), ("fish", "devbay.fish")];

/// Builds the package in release, and prints its path and content.
///
/// # Errors
/// If `cargo-deb` is not installed, something does not build, or a file cannot be written.
pub fn package(arguments: &Arguments) -> Result<()> {
    let version = Command::new(env!("CARGO")).args(["deb", "--version"]).output()?;
    ensure!(version.status.success(), "cargo-deb makes the package: cargo install cargo-deb");
    let target = target_folder()?;
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--release", "--locked", "--bin", "devbay", "--bin", "devbay-probe"]);
    build.args(["--package", "devbay-cli", "--package", "devbay-host"]);
    run(build.current_dir(repository_root()).env("CARGO_TARGET_DIR", &target))?;
    // The metadata has this path, wherever cargo builds.
    write_texts(&target.join("release/devbay"), &repository_root().join("target/packaging"))?;

    let out = repository_root().join(&arguments.out);
    fs::create_dir_all(&out)?;
    let mut package = Command::new(env!("CARGO"));
    package.args(["deb", "--package", "devbay-cli", "--no-build", "--locked", "--output"]).arg(&out);
    run(package.current_dir(repository_root()).env("CARGO_TARGET_DIR", &target))?;
    let newest = fs::read_dir(&out)?.filter_map(|entry| {
        let path = entry.ok()?.path();
        let modified = path.metadata().ok()?.modified().ok()?;
        (path.extension() == Some(OsStr::new("deb"))).then_some((modified, path))
    });
    let (_, made) = newest.max().with_context(|| format!("cargo-deb made nothing in {}", out.display()))?;
    println!("{} {:.1} MB", made.display(), made.metadata()?.len() as f64 / 1e6);
    run(Command::new("dpkg-deb").arg("--contents").arg(&made))
}

/// Writes manual pages to `man`, and completions to `completions`, as `cli/Cargo.toml` expects them.
fn write_texts(command: &Path, folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    let completions = folder.join("completions");
    fs::create_dir_all(&completions)?;
    for (shell, name) in COMPLETIONS {
        let script = Command::new(command).args(["completions", shell]).output()?;
        ensure!(script.status.success(), "devbay completions {shell}: {}", script.status);
        fs::write(completions.join(name), script.stdout)?;
    }
    run(Command::new(command).args(["man", "--out"]).arg(folder.join("man")))
}
