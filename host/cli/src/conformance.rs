//! `devbay conformance`: judges a plugin by the ABI's rules, each case in a process of its own.

use crate::exit::usage;
use crate::{options, say, table};
use anyhow::Result;
use devbay_conformance::case;
use devbay_conformance::judge::{Child, Settings, Subject, answer, judge};
use devbay_conformance::report::{Report, Test};
use devbay_conformance::verdict::Verdict;
use devbay_host::core::{Error, ErrorKind};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

/// Arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// A plugin library, or the name of a plugin that is part of this command
    #[arg(required_unless_present = "list")]
    plugin: Option<String>,
    /// List the cases, with the rules that they check
    #[arg(long)]
    list: bool,
    /// Run only cases that fit: an id, a topic (`transfer`), or a pattern with `*`; may be given several times
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// Set an option of the plugin
    #[arg(long, value_name = "KEY=VALUE")]
    plugin_option: Vec<String>,
    /// Seconds that one case may take
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    limit: u64,
    /// Run the cases in this process, for debuggers: a plugin that crashes or hangs ends the run
    #[arg(long)]
    in_process: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of the child.
#[derive(clap::Args)]
pub struct CaseArguments {
    /// The plugin, as the parent was given it
    plugin: String,
    /// The case
    case: String,
    /// An option of the plugin
    #[arg(long, value_name = "KEY=VALUE")]
    plugin_option: Vec<String>,
}

/// Judges the plugin.
///
/// # Errors
/// Not found for a plugin that does not exist, invalid for a pattern that fits no case, and a mismatch if a case
/// failed.
pub fn main(arguments: &Arguments) -> Result<()> {
    for pattern in &arguments.only {
        if !case::all().any(|case| case::matches(pattern, case.id)) {
            return Err(usage(format!("--only {pattern} fits no case; `--list` has them all")));
        }
    }
    if arguments.list {
        return list(arguments);
    }
    let name = arguments.plugin.as_deref().ok_or_else(|| usage("which plugin?"))?;
    let subject = subject(name)?;
    let child = Child {
        program: std::env::current_exe()?,
        arguments: vec!["conformance-case".into()],
        limit: Duration::from_secs(arguments.limit),
    };
    let settings = Settings {
        options: pairs(&arguments.plugin_option)?,
        only: arguments.only.clone(),
        child: (!arguments.in_process).then_some(child),
    };
    let bar = progress();
    let report = judge(&subject, &settings, &mut |test| {
        bar.inc(1);
        bar.set_message(test.id);
    });
    bar.finish_and_clear();
    if arguments.json {
        say!("{}", serde_json::to_string_pretty(&report.to_json())?);
    } else {
        print(&report);
    }
    let summary = report.summary();
    if summary.failed > 0 {
        let text = format!("{} of {} cases failed", summary.failed, summary.passed + summary.failed);
        return Err(Error::new(ErrorKind::Mismatch, text).into());
    }
    Ok(())
}

/// Runs one case and prints its verdict. What it finds out is a result, also a failure; the exit code is 0.
///
/// # Errors
/// For arguments that cannot be read.
pub fn case(arguments: &CaseArguments) -> Result<()> {
    let options = pairs(&arguments.plugin_option)?;
    let line = answer(&subject(&arguments.plugin)?, &arguments.case, &options)
        .ok_or_else(|| usage(format!("there is no case {}", arguments.case)))?;
    // On a line of its own, whatever the plugin has printed before.
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "\n{line}")?;
    stdout.flush()?;
    // Runs what the plugin left to be run at exit: a crash there is the parent's finding.
    std::process::exit(0);
}

/// A file, or a plugin that is linked.
fn subject(name: &str) -> Result<Subject> {
    let linked = options::linked().into_iter().find(|linked| linked.name() == name);
    match linked {
        Some(linked) => Ok(Subject::Linked(linked)),
        None if Path::new(name).is_file() => Ok(Subject::Library(name.into())),
        None => Err(Error::new(
            ErrorKind::NotFound,
            format!("no plugin library {name}, and no plugin of that name is part of this command"),
        )
        .into()),
    }
}

fn pairs(options: &[String]) -> Result<Vec<(String, String)>> {
    let pair = |text: &String| {
        let (key, value) = text
            .split_once('=')
            .ok_or_else(|| usage(format!("--plugin-option is KEY=VALUE here, found {text}")))?;
        Ok((key.to_owned(), value.to_owned()))
    };
    options.iter().map(pair).collect()
}

fn list(arguments: &Arguments) -> Result<()> {
    let wanted = |case: &&case::Case| {
        arguments.only.is_empty() || arguments.only.iter().any(|pattern| case::matches(pattern, case.id))
    };
    let cases: Vec<_> = case::all().filter(wanted).collect();
    if arguments.json {
        let list: Vec<_> = cases
            .iter()
            .map(|case| {
                let (id, rules, requires, needs) = (case.id, case.rules, case.requires, case.needs);
                serde_json::json!({ "id": id, "rules": rules, "requires": requires, "needs": needs })
            })
            .collect();
        say!("{}", serde_json::to_string_pretty(&list)?);
        return Ok(());
    }
    let row = |case: &&case::Case| vec![case.id.to_owned(), case.rules.join(" "), case.requires.to_owned()];
    table::print(&["CASE", "RULES", "REQUIRES"], &cases.iter().map(row).collect::<Vec<_>>());
    Ok(())
}

/// Which case runs, for a person who waits.
fn progress() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(case::all().count() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar
}

fn print(report: &Report) {
    match &report.plugin {
        None => say!("plugin {}", report.subject),
        Some(plugin) => say!(
            "plugin {} {} by {}: ABI 0.{} to 0.{}, agreed on 0.{}, {}",
            plugin.name,
            plugin.version,
            plugin.vendor,
            plugin.abi_minors.0,
            plugin.abi_minors.1,
            plugin.abi_minor,
            plugin.threading
        ),
    }
    say!();
    let row = |test: &Test| {
        let (outcome, reason) = match &test.verdict {
            Verdict::Passed => ("passed", String::new()),
            Verdict::Failed { reason, .. } => ("FAILED", reason.clone()),
            Verdict::NotApplicable { reason, .. } => ("n/a", reason.clone()),
        };
        vec![test.id.to_owned(), test.rules.join(" "), outcome.to_owned(), reason]
    };
    table::print(&["CASE", "RULES", "RESULT", ""], &report.tests.iter().map(row).collect::<Vec<_>>());
    for test in report.failures() {
        say!("\n{} requires: {}", test.id, test.requires);
        if let Some(command) = &test.reproduce {
            say!("  again alone: {command}");
        }
    }
    let summary = report.summary();
    say!("\n{} passed, {} failed, {} not applicable", summary.passed, summary.failed, summary.not_applicable);
}
