//! The user's configuration file: defaults of options, in TOML.
//!
//! ```toml
//! device = "cpu:0"
//! threads = 4
//! plugins = ["libdevbay_plugin_npu.so", "plugins"]
//! ```
//!
//! Options of the command line win over it, and so do environment variables. Its place is `$XDG_CONFIG_HOME/devbay/config.toml`,
//! or the file that `DEVBAY_CONFIG` names. Unknown keys are errors, so that a misspelt one is noticed.

use anyhow::Result;
use devbay_host::internals::discover::config_file_from_environment;
use devbay_host::internals::file::read_regular_text;
use devbay_host::{Error, ErrorKind, Policy};
use serde::Deserialize;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use toml::Spanned;

/// Maximum size of a configuration file.
const SIZE_MAX: u64 = 1 << 20;

/// Defaults of options.
#[derive(Clone, Default)]
pub struct Config {
    /// The file; None if there is none.
    pub file: Option<PathBuf>,
    /// Default of `--device`.
    pub device: Option<String>,
    /// Default of `--threads`.
    pub threads: Option<usize>,
    /// Plugins to load besides those that are found: libraries, manifests, and folders of them.
    pub plugins: Vec<PathBuf>,
}

/// The keys of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    device: Option<Spanned<String>>,
    threads: Option<usize>,
    #[serde(default)]
    plugins: Vec<PathBuf>,
}

static CONFIG: OnceLock<Config> = OnceLock::new();

/// Returns the user's defaults, read on first use.
///
/// # Errors
/// As [`read`].
pub fn get() -> Result<&'static Config> {
    match CONFIG.get() {
        Some(config) => Ok(config),
        None => {
            let config = read()?;
            Ok(CONFIG.get_or_init(|| config))
        }
    }
}

/// Reads the file for `devbay doctor`, which reports its error and goes on without it.
///
/// # Errors
/// As [`read`].
pub fn get_or_ignore() -> Result<&'static Config> {
    get().inspect_err(|_| {
        let _ = CONFIG.set(Config::default());
    })
}

/// Returns the path of the file, whether or not it exists.
pub fn path() -> Option<PathBuf> {
    config_file_from_environment().map(|(path, _)| path)
}

/// Reads the file. A file that does not exist has no defaults, unless `DEVBAY_CONFIG` names it.
///
/// # Errors
/// [`ErrorKind::Io`] if it cannot be read; [`ErrorKind::InvalidArgument`] for a wrong line, with its number.
fn read() -> Result<Config> {
    let Some((path, is_named)) = config_file_from_environment() else {
        return Ok(Config::default());
    };
    match read_regular_text(&path, SIZE_MAX) {
        Ok(text) => Ok(parse(&text, &path)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !is_named => Ok(Config::default()),
        Err(error) => {
            let by = if is_named { ", which DEVBAY_CONFIG names," } else { "" };
            let text = format!("the configuration file{by} cannot be read: {error}");
            Err(Error::new(ErrorKind::of_io(&error), text).in_file(path.display()).because(error).into())
        }
    }
}

fn parse(text: &str, path: &Path) -> devbay_host::Result<Config> {
    let wrong = |at: usize, words: &str| {
        let line = 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count();
        let words = words.lines().collect::<Vec<_>>().join("; ");
        Error::new(ErrorKind::InvalidArgument, format!("line {line}: {words}")).in_file(path.display())
    };
    let keys: Keys = toml::from_str(text)
        .map_err(|error| wrong(error.span().map_or(0, |span| span.start), error.message()))?;
    if let Some(device) = &keys.device {
        Policy::parse(device.get_ref()).map_err(|error| wrong(device.span().start, error.text()))?;
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    Ok(Config {
        file: Some(path.to_owned()),
        device: keys.device.map(Spanned::into_inner),
        threads: keys.threads,
        // Relative paths are relative to the file, wherever the command runs.
        plugins: keys.plugins.iter().map(|plugin| folder.join(plugin)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_are_defaults() {
        let text = "# mine\ndevice = \"prefer:gpu\"\nthreads = 4\nplugins = [\"a.so\", \"/b.so\"]\n";
        let config = parse(text, Path::new("/home/me/config.toml")).expect("a right file");
        assert_eq!((config.device.as_deref(), config.threads), (Some("prefer:gpu"), Some(4)));
        assert_eq!(config.plugins, [Path::new("/home/me/a.so"), Path::new("/b.so")]);
        let empty = parse("", Path::new("config.toml")).expect("a right file");
        assert!(empty.device.is_none() && empty.threads.is_none() && empty.plugins.is_empty());
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (text, line, words) in [
            ("threads = 2\ndevices = \"cpu\"\n", "line 2", "unknown field `devices`"),
            ("\n\nthreads = \"two\"\n", "line 3", "invalid type"),
            ("threads = -1\n", "line 1", "-1"),
            ("threads = 1\nthreads = 2\n", "line 2", "duplicate key"),
            ("threads = 1\ndevice = \"prefer:toaster\"\n", "line 2", "no kind of device `toaster`"),
            ("threads = 1\n[device\n", "line 2", ""),
        ] {
            let error = parse(text, Path::new("/c.toml")).map(|_| ()).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{text}");
            let said = error.to_string();
            assert!(
                said.starts_with(&format!("/c.toml: {line}: ")) && said.contains(words),
                "{text}: {said}"
            );
            assert!(!said.contains('\n'), "{said}");
        }
    }
}
