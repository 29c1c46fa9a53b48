//! Warnings of later trouble, from a library's file without loading it (B28).
//!
//! A [`Report`] has a [`Finding`] for each thing found: what it is, why it hurts and how to mend it, of the kinds in
//! [`CHECKS`]. The file is read as the system's loader reads it, by its segments and its dynamic section, so that a
//! library without section headers is judged like any other. Covered are ELF libraries for x86-64; every other file is
//! a refusal, and so is one that is damaged.
//!
//! Left out on purpose: a plugin's writing to standard output cannot be seen in its imports. It is found by running
//! it (`shutdown.output` of the suite).
//!
//! ```no_run
//! use devbay_conformance::lint::{Settings, Severity, lint};
//!
//! let report = lint("libdevbay_plugin_mine.so".as_ref(), &Settings::of_system())?;
//! assert_eq!(report.count(Severity::Error), 0);
//! # Ok::<(), devbay_host::Refusal>(())
//! ```

mod checks;
mod constructors;
mod image;
mod libraries;
mod linking;
mod symbols;

pub use checks::{CHECKS, Check};
pub(crate) use symbols::{is_of_abi, is_of_host, is_of_linker};

use devbay_host::internals::file::read_regular;
use devbay_host::{Refusal, RefusalKind};
use image::Image;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The form's version in JSON: readers refuse what they do not know.
pub const REPORT_VERSION: u32 = 1;

/// Severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// A rule is broken, or the library does not load in every process.
    Error,
    /// It works here, and may not elsewhere.
    Warning,
}

impl Severity {
    /// Its name in JSON and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// One thing that was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// Kind of the finding, with why it hurts and how to mend it.
    #[serde(flatten)]
    pub check: &'static Check,
    /// Finding in this library, on one line.
    pub found: String,
}

/// Findings in one library.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// The library's path, as it was given.
    pub library: String,
    /// Findings, errors first.
    pub findings: Vec<Finding>,
    /// Checks that could not be made, and why.
    pub not_checked: Vec<String>,
}

impl Report {
    /// Counts the findings of a severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.check.severity == severity).count()
    }

    /// Returns the report for programs: the findings, how many there are of each severity, and the form's version.
    pub fn to_json(&self) -> serde_json::Value {
        let mut object = serde_json::json!(self);
        object["report_version"] = REPORT_VERSION.into();
        object["errors"] = self.count(Severity::Error).into();
        object["warnings"] = self.count(Severity::Warning).into();
        object
    }

    fn find(&mut self, check: &'static Check, found: impl Into<String>) {
        self.findings.push(Finding { check, found: found.into() });
    }
}

/// Facts of the machine that lint needs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settings {
    /// Folders in which libraries are looked for that the plugin needs, behind those that it names itself.
    pub folders: Vec<PathBuf>,
}

impl Settings {
    /// Returns the folders in which this machine's loader looks: those of `/etc/ld.so.conf`, and its own.
    pub fn of_system() -> Self {
        Self { folders: libraries::folders_of_system() }
    }
}

/// Reads a library and says what will hurt later. Nothing of it runs.
///
/// # Errors
/// A refusal for a file that cannot be read, is damaged, or is no ELF library for x86-64.
pub fn lint(path: &Path, settings: &Settings) -> Result<Report, Refusal> {
    let unreadable = |words: String| {
        Refusal::new(RefusalKind::Unreadable, format!("cannot read {}: {words}", path.display()))
    };
    let bytes = read_regular(path, u64::MAX).map_err(|error| unreadable(error.to_string()))?;
    let folder = path.canonicalize().ok().and_then(|path| path.parent().map(Path::to_owned));
    lint_bytes(&bytes, &path.display().to_string(), folder.as_deref(), settings)
}

/// As [`lint`], of a library's bytes. Folders that it names from where it lies (`$ORIGIN`) begin at `origin`.
///
/// # Errors
/// As [`lint`].
pub fn lint_bytes(
    bytes: &[u8],
    name: &str,
    origin: Option<&Path>,
    settings: &Settings,
) -> Result<Report, Refusal> {
    let refusal = |words: String| Refusal::new(RefusalKind::NotALibrary, format!("{name}: {words}"));
    let image = Image::of_library(bytes).map_err(refusal)?;
    let mut report = Report { library: name.to_owned(), findings: Vec::new(), not_checked: Vec::new() };
    symbols::look(&image, &mut report);
    linking::look(&image, &mut report);
    libraries::look(&image, origin, &settings.folders, &mut report);
    constructors::look(&image, &mut report).map_err(refusal)?;
    report.findings.sort_by_key(|finding| finding.check.severity != Severity::Error);
    Ok(report)
}

/// Returns a few names of many, and how many there are besides.
fn few(names: &[String]) -> String {
    const SHOWN_MAX: usize = 5;
    let shown = names.iter().take(SHOWN_MAX).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Returns a number of things, as one says it.
fn counted(n: usize, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}
