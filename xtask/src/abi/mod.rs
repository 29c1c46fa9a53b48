//! Generates everything that follows from `plugin-api/src/abi/v0.rs`: the C header, the tables of layouts and of functions'
//! rules, and the lock file.
//!
//! v0.rs is the only definition of the ABI; nothing here knows a struct by name except the table of functions. The lock file
//! has a section per architecture: this machine's, and 32-bit x86 if its target is installed.
//! `docs/decisions/0002-the-header-generator.md` explains why the header does not come from cbindgen.

mod c_header;
mod lock;
mod source;
mod tables;

use crate::c_api;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = "plugin-api/src/abi/v0.rs";
const HEADER: &str = "plugin-api/include/devbay_plugin.h";
const LAYOUT_CHECK: &str = "plugin-api/include/check_layout.c";
const TABLES: &str = "plugin-api/src/abi/tables.rs";
const LOCK: &str = "plugin-api/abi.lock";

/// The generated files' content, by path from the repository's root.
type Files = BTreeMap<&'static str, String>;

/// Writes the generated files, or with `check` fails if one of them is stale.
pub fn run(check: bool) -> Result<()> {
    let root = repository_root();
    let source = source::read(&root.join(SOURCE))?;
    let files = Files::from([
        (TABLES, tables::generate(&source)?),
        (HEADER, c_header::generate(&source)?),
        (c_api::HEADER, c_api::header(&root)?),
    ]);
    let mut stale = settle(&root, &files, check)?;
    // The other files come from layouts compiled with these tables.
    if stale.is_empty() || !check {
        let mut sections = vec![compiled_layout(&root, None)?];
        match is_installed(WITH_32_BITS)? {
            true => sections.push(compiled_layout(&root, Some(WITH_32_BITS))?),
            false => println!(
                "the layout for 32 bits is as it was: `rustup target add {WITH_32_BITS}` has it compiled"
            ),
        }
        let lock = lock::merge(&root.join(LOCK), &sections)?;
        let layout_check = lock::c_check(&lock)?;
        stale.extend(settle(&root, &Files::from([(LOCK, lock), (LAYOUT_CHECK, layout_check)]), check)?);
    }
    ensure!(
        !check || stale.is_empty(),
        "stale: {}; run `cargo xtask header` and commit the result",
        stale.join(", ")
    );
    Ok(())
}

/// A 32-bit target whose programs link and run without the system's libraries.
const WITH_32_BITS: &str = "i686-unknown-linux-musl";

/// Returns whether the compiler has a target's standard library.
fn is_installed(target: &str) -> Result<bool> {
    let output = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output()?;
    let folder = String::from_utf8(output.stdout)?;
    Ok(output.status.success() && Path::new(folder.trim()).is_dir())
}

/// Returns the output of plugin-api's example `layout`, built with the current tables for this machine, or for a target
/// whose programs it can run.
fn compiled_layout(root: &Path, target: Option<&str>) -> Result<String> {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root);
    command.args(["run", "--quiet", "--package", "devbay-plugin-api", "--example", "layout"]);
    if let Some(target) = target {
        let linker = format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_"));
        command.args(["--target", target]).env(linker, "rust-lld");
    }
    let output = command.output()?;
    ensure!(
        output.status.success(),
        "plugin-api's example `layout` failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the folder that holds the workspace.
pub fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace").to_owned()
}

/// Compares files with those on disk, writes the differing ones unless `check`, and returns their names.
fn settle(root: &Path, files: &Files, check: bool) -> Result<Vec<&'static str>> {
    let mut differing = Vec::new();
    for (path, content) in files {
        if std::fs::read_to_string(root.join(path)).unwrap_or_default() != *content {
            differing.push(*path);
            if !check {
                let target = root.join(path);
                std::fs::create_dir_all(target.parent().expect("a file has a folder"))?;
                std::fs::write(&target, content).with_context(|| (*path).to_owned())?;
                println!("wrote {path}");
            }
        }
    }
    Ok(differing)
}
