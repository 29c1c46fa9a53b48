//! The lock file: every struct's layout, a section for each architecture.

use super::source::between;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// Replaces this architecture's section of the lock file, and keeps the others.
pub fn merge(path: &Path, section: &str) -> Result<String> {
    let old = std::fs::read_to_string(path).unwrap_or_default();
    let mut sections = BTreeMap::new();
    for text in old.split("\n[").skip(1) {
        let name = text.split(']').next().unwrap_or_default().to_owned();
        sections.insert(name, format!("[{}", text.trim_end_matches('\n')));
    }
    let name = between(section, "[", "]")
        .context("a section has a name")?
        .to_owned();
    sections.insert(name, section.trim_end().to_owned());
    let mut out = String::from(
        "# Layout of the ABI's structs, by architecture. `cargo xtask header` writes the section of the\n\
         # machine that it runs on, and `cargo xtask header --check` fails when it differs. A change here is a\n\
         # change of the contract: appended fields raise the minor, everything else breaks it (B4, B8).\n",
    );
    for text in sections.values() {
        out.push('\n');
        out.push_str(text);
        out.push('\n');
    }
    Ok(out)
}
