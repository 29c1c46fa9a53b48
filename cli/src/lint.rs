//! `devbay lint`: finds future problems in a plugin library without loading it.

use crate::exit::usage;
use crate::{options, say, table};
use anyhow::Result;
use devbay_conformance::lint::{Finding, Report, Settings, Severity, lint};
use devbay_host::{Error, ErrorKind};
use std::path::{Path, PathBuf};

/// Arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// A plugin library; it is parsed, not loaded
    plugin: PathBuf,
    /// Also fail on findings of this kind
    #[arg(long, value_enum, value_name = "KIND")]
    deny: Option<Deny>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Findings that fail besides errors.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Deny {
    /// Warnings
    Warnings,
}

/// Reads the library and prints the findings.
///
/// # Errors
/// Refused for a file that cannot be read or is not a library that lint covers; invalid for a plugin that is part of this
/// command; a mismatch for findings that fail.
pub fn main(arguments: &Arguments) -> Result<()> {
    let path = &arguments.plugin;
    if !path.exists() && options::linked().iter().any(|linked| Path::new(linked.name()) == path) {
        return Err(usage(format!(
            "plugin {} is part of this command: there is no library to read",
            path.display()
        )));
    }
    let mut settings = Settings::of_system();
    // The loader searches there first.
    let variable = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    settings.folders.splice(0..0, std::env::split_paths(&variable));
    let report = lint(path, &settings).map_err(|refusal| Error::new(ErrorKind::Refused, refusal.reason))?;
    if arguments.json {
        say!("{}", serde_json::to_string_pretty(&report.to_json())?);
    } else {
        say!("{}", text(&report).trim_end());
    }
    let (errors, warnings) = (report.count(Severity::Error), report.count(Severity::Warning));
    if errors > 0 || (warnings > 0 && arguments.deny == Some(Deny::Warnings)) {
        return Err(Error::new(ErrorKind::Mismatch, format!("lint found {}", counts(&report))).into());
    }
    Ok(())
}

/// Returns the report for display: a table, each kind of finding with its harm and remedy, and the counts.
fn text(report: &Report) -> String {
    let mut text = format!("library {}\n\n", report.library);
    let row = |finding: &Finding| {
        let check = finding.check;
        vec![
            check.id.to_owned(),
            check.severity.name().to_owned(),
            check.rules.join(" "),
            finding.found.clone(),
        ]
    };
    let rows: Vec<_> = report.findings.iter().map(row).collect();
    if !rows.is_empty() {
        text.push_str(&table::text(&["FINDING", "SEVERITY", "RULES", "FOUND"], &rows));
        text.push('\n');
    }
    let mut said = Vec::new();
    for check in report.findings.iter().map(|finding| finding.check) {
        if !said.contains(&check.id) {
            text.push_str(&format!("{}: {}\n  mend: {}\n", check.id, check.why, check.mend));
            said.push(check.id);
        }
    }
    if !said.is_empty() {
        text.push('\n');
    }
    for what in &report.not_checked {
        text.push_str(&format!("not checked: {what}\n"));
    }
    text + &counts(report) + "\n"
}

fn counts(report: &Report) -> String {
    let count = |severity: Severity| {
        let n = report.count(severity);
        format!("{n} {}{}", severity.name(), if n == 1 { "" } else { "s" })
    };
    format!("{}, {}", count(Severity::Error), count(Severity::Warning))
}
