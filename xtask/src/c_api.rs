//! The header of the interface for C: `host/c/include/devbay.h`, from the sources in `host/c/src`.

use anyhow::{Context, Result, anyhow};
use std::path::Path;

/// The header, by its path from the repository's root.
pub const HEADER: &str = "host/c/include/devbay.h";

/// Returns the content of the header.
///
/// # Errors
/// If a source cannot be read, or has what C cannot have.
pub fn header(root: &Path) -> Result<String> {
    let sources = root.join("host/c");
    let config = cbindgen::Config::from_file(sources.join("cbindgen.toml")).map_err(|e| anyhow!(e))?;
    let mut builder = cbindgen::Builder::new().with_config(config);
    for name in ["arguments", "errors", "options", "runtime", "values", "session", "run", "eager", "lib"] {
        builder = builder.with_src(sources.join("src").join(name).with_extension("rs"));
    }
    let bindings = builder.generate().context("the header of devbay for C")?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    Ok(String::from_utf8(text)?)
}
