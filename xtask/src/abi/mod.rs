//! Makes everything that follows from `plugin-api/src/abi/v0.rs`: the C header, the tables of layouts and
//! of functions' rules, and the lock file.
//!
//! v0.rs is the one definition of the ABI; nothing here knows a struct by name but for the table of
//! functions. The lock file has a section for each architecture that has been built on; a section is
//! written on that architecture alone. Why the header is not cbindgen's:
//! `docs/decisions/0002-the-header-generator.md`.

mod c_header;
mod lock;
mod source;
mod tables;

use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = "plugin-api/src/abi/v0.rs";
const HEADER: &str = "plugin-api/include/devbay_plugin.h";
const LAYOUT_CHECK: &str = "plugin-api/include/check_layout.c";
const TABLES: &str = "plugin-api/src/abi/tables.rs";
const LOCK: &str = "plugin-api/abi.lock";

/// The generated files' new content, by path from the repository's root.
type Files = BTreeMap<&'static str, String>;

/// Writes the generated files, or with `check` fails if one of them is stale.
pub fn run(check: bool) -> Result<()> {
    let root = repository_root();
    let source = source::read(&root.join(SOURCE))?;
    let files = Files::from([
        (TABLES, tables::generate(&source)?),
        (HEADER, c_header::generate(&source)?),
    ]);
    let mut stale = settle(&root, &files, check)?;
    // The rest comes from layouts as compiled with these tables.
    if stale.is_empty() || !check {
        let lock = lock::merge(&root.join(LOCK), &compiled_layout(&root, "lock")?)?;
        let layout_check = compiled_layout(&root, "check")?;
        stale.extend(settle(
            &root,
            &Files::from([(LOCK, lock), (LAYOUT_CHECK, layout_check)]),
            check,
        )?);
    }
    ensure!(
        !check || stale.is_empty(),
        "stale: {}; run `cargo xtask header` and commit what it writes",
        stale.join(", ")
    );
    Ok(())
}

/// What plugin-api's example `layout` prints, built with the tables as they are now.
fn compiled_layout(root: &Path, form: &str) -> Result<String> {
    let output = Command::new(env!("CARGO"))
        .current_dir(root)
        .args([
            "run",
            "--quiet",
            "--package",
            "devbay-plugin-api",
            "--example",
            "layout",
            "--",
            form,
        ])
        .output()?;
    ensure!(
        output.status.success(),
        "plugin-api's example `layout` failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// The folder that holds the workspace.
pub fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is a folder of the workspace")
        .to_owned()
}

/// Compares files with what is on disk, writes those that differ unless `check`, and names them.
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
