//! The header of the interface for C: `host/c/include/devbay.h`, from the sources in `host/c/src`.

use anyhow::{Context, Result, anyhow};
use std::path::Path;

/// The header, by its path from the repository's root.
pub const HEADER: &str = "host/c/include/devbay.h";

/// The modules with items of the header, in its order.
const MODULES: [&str; 9] =
    ["version", "errors", "options", "runtime", "arguments", "values", "session", "run", "eager"];

/// Returns the content of the header.
///
/// # Errors
/// If a source cannot be read, or has what C cannot have.
pub fn header(root: &Path) -> Result<String> {
    let sources = root.join("host/c");
    let config = cbindgen::Config::from_file(sources.join("cbindgen.toml")).map_err(|e| anyhow!(e))?;
    let mut builder = cbindgen::Builder::new().with_config(config);
    for name in MODULES {
        builder = builder.with_src(sources.join("src").join(name).with_extension("rs"));
    }
    let bindings = builder.generate().context("the header of devbay for C")?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    Ok(shortened(&String::from_utf8(text)?))
}

/// Marks functions that can fail, and puts comments of one line on one line.
fn shortened(header: &str) -> String {
    // cbindgen has marks for functions, but not by what they return.
    let header = header.replace("DEVBAY_API\ndevbay_error *", "DEVBAY_API DEVBAY_CHECKED\ndevbay_error *");
    let mut lines: Vec<String> = Vec::new();
    for line in header.lines() {
        let n = lines.len();
        if line.trim() == "*/" && n >= 2 && lines[n - 2].trim() == "/**" {
            let text = lines.pop().unwrap_or_default();
            if let Some(begin) = lines.last_mut() {
                begin.push_str(text.trim_start().trim_start_matches('*'));
                begin.push_str(" */");
            }
        } else if !(line.is_empty() && lines.last().is_some_and(String::is_empty)) {
            lines.push(line.to_owned());
        }
    }
    lines.join("\n") + "\n"
}
