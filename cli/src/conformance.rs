//! `devbay conformance`: tests a plugin against the ABI's rules and ONNX's node tests, in child processes.

use crate::exit::usage;
use crate::{interrupt, machine, options, say, table};
use anyhow::{Context, Result};
use devbay_conformance::child::{Child, answer, read_arguments};
use devbay_conformance::judge::{Settings, Subject, judge_until};
use devbay_conformance::onnx::Path as NodePath;
use devbay_conformance::report::{Made, Report, Test, html, index, junit};
use devbay_conformance::suite::{self, Item, Profile};
use devbay_conformance::verdict::{Verdict, Why};
use devbay_host::internals::file::{read_regular_text, write_bytes};
use devbay_host::internals::layers;
use devbay_host::{Error, ErrorKind};
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// A plugin library, or the name of a plugin that is part of this command
    #[arg(required_unless_present_any = ["list", "index"])]
    plugin: Option<String>,
    /// List the cases and the rules that they check
    #[arg(long)]
    list: bool,
    /// Generate a page that compares several JSON reports, instead of testing
    #[arg(long, value_name = "REPORT.json", num_args = 1.., conflicts_with_all = ["plugin", "list", "json"])]
    index: Vec<PathBuf>,
    /// Run only matching cases: an id, a topic (`transfer`, `onnx`), or a pattern with `*`; may be repeated
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// Skip matching cases
    #[arg(long, value_name = "PATTERN")]
    except: Vec<String>,
    /// Run only cases of these profiles: base, kernels, interop, compiler
    #[arg(long, value_name = "PROFILE", value_delimiter = ',')]
    profile: Vec<String>,
    /// Run ONNX's node tests through a session, as `devbay run` does, instead of kernel by kernel
    #[arg(long)]
    session: bool,
    /// Insert layers between the cases and the plugin: `validation` reports violations of any rule during any case
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    layers: Vec<String>,
    /// Set an option of the plugin
    #[arg(long, value_name = "KEY=VALUE")]
    plugin_option: Vec<String>,
    /// Time limit of a case in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    limit: u64,
    /// Run the cases in this process, for debuggers; a crash or hang of the plugin then ends the run
    #[arg(long)]
    in_process: bool,
    /// Format of the report; defaults to the file's extension, or text
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Write the report to a file, and text to standard output; may be repeated
    #[arg(short, long, value_name = "FILE")]
    output: Vec<PathBuf>,
    /// Document that rule numbers link to in HTML
    #[arg(long, value_name = "URL", default_value = html::RULES_URL)]
    rules_url: String,
    /// Print JSON, as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

/// Forms of a report.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A table
    Text,
    /// One object with a list of cases
    Json,
    /// JUnit XML, for CI systems
    Junit,
    /// One self-contained page
    Html,
}

impl Format {
    /// Returns the format for a file's extension.
    fn of(path: &Path) -> Self {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("json") => Self::Json,
            Some("xml") => Self::Junit,
            Some("html" | "htm") => Self::Html,
            _ => Self::Text,
        }
    }
}

/// Arguments of the child.
#[derive(clap::Args)]
pub struct CaseArguments {
    /// The plugin, as the parent was given it
    plugin: String,
    /// Tests and settings, as the parent passes them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<String>,
}

/// Tests the plugin.
///
/// # Errors
/// Not found for a missing plugin; invalid for a pattern that matches no test; cancelled after Ctrl-C (the report has the
/// verdicts so far); a mismatch if a test failed.
pub fn main(arguments: &Arguments) -> Result<()> {
    if !arguments.index.is_empty() {
        return write_index(arguments);
    }
    for pattern in arguments.only.iter().chain(&arguments.except) {
        if !suite::all().any(|item| suite::matches(pattern, &item.id())) {
            return Err(usage(format!("{pattern} fits no test; `--list` has them all")));
        }
    }
    let settings = settings(arguments)?;
    if arguments.list {
        return list(arguments, &settings);
    }
    let name = arguments.plugin.as_deref().ok_or_else(|| usage("which plugin?"))?;
    let subject = subject(name)?;
    let bar = progress(suite::all().filter(|item| settings.wants(item)).count());
    let cancel = interrupt::cancel();
    let mut report = judge_until(&cancel, &subject, &settings, &mut |test| {
        bar.inc(1);
        bar.set_message(test.id.clone());
    });
    bar.finish_and_clear();
    report.made = Some(Made { date: machine::now(), machine: machine::describe() });
    refuse_unlisted(&report, &settings)?;
    hand_over(arguments, &report)?;
    if report.n_not_run > 0 {
        return Err(cancel.error().into());
    }
    let summary = report.summary();
    if summary.failed > 0 {
        let text = format!("{} of {} tests failed", summary.failed, summary.passed + summary.failed);
        return Err(Error::new(ErrorKind::Mismatch, text).into());
    }
    Ok(())
}

/// Refuses options that the plugin does not list: they are the user's mistake, so they fail no test.
fn refuse_unlisted(report: &Report, settings: &Settings) -> Result<()> {
    let Some(plugin) = &report.plugin else { return Ok(()) };
    let Some(key) = plugin.unlisted(&settings.options) else { return Ok(()) };
    let known = match plugin.options.as_slice() {
        [] => format!("{} lists none", plugin.name),
        options => format!("known are {}", options.join(", ")),
    };
    let is_prefixed = key.strip_prefix(plugin.name.as_str()).is_some_and(|rest| rest.starts_with('.'));
    let hint = if is_prefixed { "; keys stand without the plugin's name here" } else { "" };
    Err(usage(format!("--plugin-option: no option {key}, {known}{hint}")))
}

fn settings(arguments: &Arguments) -> Result<Settings> {
    let child = Child {
        program: std::env::current_exe()?,
        arguments: vec!["conformance-case".into()],
        environment: Vec::new(),
        limit: Duration::from_secs(arguments.limit),
    };
    let profile = |name: &String| {
        let known = Profile::ALL.map(Profile::name).join(", ");
        Profile::find(name).ok_or_else(|| usage(format!("no tests of a profile {name}; known are {known}")))
    };
    // This refuses unknown layers, and lists the known ones.
    let validation = !layers::named(&arguments.layers)?.is_empty();
    let is_own = |name: &String| layers::KNOWN.iter().any(|layer| layer.name == name);
    if let Some(library) = arguments.layers.iter().find(|name| !is_own(name)) {
        return Err(usage(format!(
            "the suite judges a plugin by itself, and not behind the layer {library}"
        )));
    }
    Ok(Settings {
        options: pairs(&arguments.plugin_option)?,
        only: arguments.only.clone(),
        except: arguments.except.clone(),
        profiles: arguments.profile.iter().map(profile).collect::<Result<_>>()?,
        path: if arguments.session { NodePath::Session } else { NodePath::Kernels },
        validation,
        child: (!arguments.in_process).then_some(child),
    })
}

/// Prints the report, or writes it to the files.
fn hand_over(arguments: &Arguments, report: &Report) -> Result<()> {
    let asked = if arguments.json { Some(Format::Json) } else { arguments.format };
    let form = |format: Format| -> Result<String> {
        Ok(match format {
            Format::Text => text(report),
            Format::Json => serde_json::to_string_pretty(&report.to_json())?,
            Format::Junit => junit::to_xml(report)?,
            Format::Html => html::to_html(report, &arguments.rules_url),
        })
    };
    for path in &arguments.output {
        write(path, &form(asked.unwrap_or_else(|| Format::of(path)))?)?;
    }
    let shown = if arguments.output.is_empty() { form(asked.unwrap_or(Format::Text))? } else { text(report) };
    say!("{}", shown.trim_end());
    Ok(())
}

/// Maximum size of a report.
const REPORT_SIZE_MAX: u64 = 256 << 20;

/// Writes a file atomically.
fn write(path: &Path, text: &str) -> Result<()> {
    write_bytes(path, text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}

fn write_index(arguments: &Arguments) -> Result<()> {
    let mut entries = Vec::new();
    for path in &arguments.index {
        let text = read_regular_text(path, REPORT_SIZE_MAX)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let entry =
            index::Entry::from_json(&text).map_err(|words| usage(format!("{}: {words}", path.display())))?;
        // Link to a plugin's own page, if it is beside its report.
        let page = path.with_extension("html");
        entries.push((entry, page.is_file().then_some(page)));
    }
    let page = |folder: &Path| {
        let link = |page: &PathBuf| link(folder, page);
        index::to_html(
            &entries.iter().map(|(entry, page)| (entry, page.as_ref().map(link))).collect::<Vec<_>>(),
        )
    };
    match arguments.output.as_slice() {
        [] => say!("{}", page(Path::new("")).trim_end()),
        paths => {
            paths.iter().try_for_each(|path| write(path, &page(path.parent().unwrap_or(Path::new("")))))?
        }
    }
    Ok(())
}

/// Returns the URL of a file, relative to a page in a folder.
fn link(folder: &Path, file: &Path) -> String {
    let whole =
        |path: &Path| std::path::absolute(if path.as_os_str().is_empty() { Path::new(".") } else { path });
    let (Ok(folder), Ok(file)) = (whole(folder), whole(file)) else {
        return file.to_string_lossy().into_owned();
    };
    let (from, to): (Vec<_>, Vec<_>) = (folder.components().collect(), file.components().collect());
    let n_same = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = from[n_same..].iter().map(|_| "..".to_owned());
    let down = to[n_same..].iter().map(|part| encoded(&part.as_os_str().to_string_lossy()));
    up.chain(down).collect::<Vec<_>>().join("/")
}

/// Percent-encodes a part of a path for a URL (RFC 3986, section 2.3).
fn encoded(part: &str) -> String {
    let one = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    part.bytes().map(one).collect()
}

/// Runs tests and prints their verdicts. Every finding is a result, even a failure; the exit code is 0.
///
/// # Errors
/// For invalid arguments.
pub fn case(arguments: &CaseArguments) -> Result<()> {
    let (ids, settings) = read_arguments(&arguments.rest).map_err(usage)?;
    let print = &mut |lines: &str| {
        // A closed pipe means that the parent no longer reads.
        let mut stdout = std::io::stdout().lock();
        let _ = stdout.write_all(lines.as_bytes()).and_then(|()| stdout.flush());
    };
    answer(&subject(&arguments.plugin)?, &ids, &settings, print).map_err(usage)?;
    // This runs the plugin's exit handlers: the parent reports a crash there.
    std::process::exit(0);
}

/// Returns a file, or a linked plugin.
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

fn list(arguments: &Arguments, settings: &Settings) -> Result<()> {
    let items: Vec<Item> = suite::all().filter(|item| settings.wants(item)).collect();
    if arguments.json || arguments.format == Some(Format::Json) {
        let list: Vec<_> = items
            .iter()
            .map(|item| {
                serde_json::json!({
                    "id": item.id(),
                    "profile": item.profile(),
                    "rules": item.rules(),
                    "requires": item.requires(),
                    "needs": item.needs(),
                })
            })
            .collect();
        say!("{}", serde_json::to_string_pretty(&list)?);
        return Ok(());
    }
    let row = |item: &Item| {
        vec![item.id(), item.profile().name().to_owned(), item.rules().join(" "), item.requires()]
    };
    table::print(&["TEST", "PROFILE", "RULES", "REQUIRES"], &items.iter().map(row).collect::<Vec<_>>());
    Ok(())
}

/// Shows the running test.
fn progress(n_tests: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(n_tests as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar
}

/// Topics with at least one test per op. The text report lists every case, but of these topics only failures and remarks.
const OF_OPS: &[&str] = &["onnx", "numerics", "specials"];

fn text(report: &Report) -> String {
    let mut text = match &report.plugin {
        None => format!("plugin {}\n\n", report.subject),
        Some(plugin) => format!(
            "plugin {} {} by {}: ABI 0.{} to 0.{}, agreed on 0.{}, {}\n\n",
            plugin.name,
            plugin.version,
            plugin.vendor,
            plugin.abi_minors.0,
            plugin.abi_minors.1,
            plugin.abi_minor,
            plugin.threading
        ),
    };
    let row = |test: &Test| {
        let outcome = if test.verdict.is_failed() { "FAILED" } else { test.verdict.outcome() };
        let reason = test.verdict.reason().or(test.note.as_deref()).unwrap_or_default();
        vec![test.id.clone(), test.rules.join(" "), outcome.to_owned(), reason.to_owned()]
    };
    // One line stands for all kernels that pass or are missing, and one for all tests of an unclaimed profile.
    let is_of_ops = |test: &Test| OF_OPS.contains(&test.topic());
    let is_of_profile = |test: &Test| test.verdict.why() == Some(Why::Profile);
    let is_summed = |test: &Test| {
        is_of_profile(test) || is_of_ops(test) && !test.verdict.is_failed() && test.verdict != Verdict::Passed
    };
    let shown = |test: &&Test| {
        let is_right_node = test.topic() == "onnx" && test.verdict == Verdict::Passed;
        !is_right_node && !is_summed(test)
    };
    let mut rows: Vec<_> = report.tests.iter().filter(shown).map(row).collect();
    let mut summed: BTreeMap<(&str, &str, &str), usize> = BTreeMap::new();
    for test in report.tests.iter().filter(|test| is_summed(test)) {
        let why = match test.verdict.reason() {
            Some(reason) if is_of_profile(test) => reason,
            _ => "a line each in reports of the other forms (-o report.html)",
        };
        *summed.entry((test.topic(), test.verdict.outcome(), why)).or_default() += 1;
    }
    rows.extend(summed.into_iter().map(|((topic, outcome, why), n)| {
        vec![format!("{n} of {topic}"), String::new(), outcome.to_owned(), why.to_owned()]
    }));
    if !rows.is_empty() {
        text.push_str(&table::text(&["TEST", "RULES", "RESULT", ""], &rows));
    }
    for test in report.failures() {
        text.push_str(&format!("\n{} requires: {}\n", test.id, test.requires));
        if let Some(command) = &test.reproduce {
            text.push_str(&format!("  run it alone: {command}\n"));
        }
    }
    text + "\n" + &last_lines(report)
}

fn last_lines(report: &Report) -> String {
    let mut text = String::new();
    if let Some(plugin) = &report.plugin {
        let untested: Vec<&str> = plugin.claims_untested().collect();
        if !untested.is_empty() {
            text.push_str(&format!("claimed, and not judged by this suite: {}\n", untested.join(", ")));
        }
    }
    if let Some(nodes) = report.node_summary() {
        let n = nodes.plugin;
        text.push_str(&format!(
            "ONNX's node tests: {} passed, {} failed, {} unsupported, {} not claimed, {} skipped; {} run by the host\n",
            n.passed, n.failed, n.unsupported, n.not_claimed, n.skipped, nodes.host
        ));
    }
    if report.n_not_run > 0 {
        text.push_str(&format!("cancelled: {} more tests were asked for and not run\n", report.n_not_run));
    }
    let summary = report.summary();
    text.push_str(&format!(
        "{} passed, {} failed, {} unsupported, {} not claimed, {} skipped\n",
        summary.passed, summary.failed, summary.unsupported, summary.not_claimed, summary.skipped
    ));
    if let Some(level) = report.level() {
        text.push_str(&format!("level {}\n", level.line()));
        if !level.ops_claimed.is_empty() {
            text.push_str(&format!("ops claimed: {}\n", level.ops_claimed.join(", ")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_an_index_are_relative_to_its_folder() {
        let cases = [
            ("", "cpu/a.html", "cpu/a.html"),
            ("out", "cpu/a.html", "../cpu/a.html"),
            ("cpu", "cpu/a b#1.html", "a%20b%231.html"),
            ("/x/y", "/x/z/a.html", "../z/a.html"),
        ];
        for (folder, file, expected) in cases {
            assert_eq!(link(Path::new(folder), Path::new(file)), expected, "{folder} {file}");
        }
    }
}
