//! `devbay doctor`: checks what devbay finds on this machine, and says what to do about each problem.

use crate::layers::Done;
use crate::options::{self, PluginArguments};
use crate::{config, exit, say, table};
use anyhow::Result;
use devbay_host::internals::core::units::count;
use devbay_host::internals::rates_file;
use devbay_host::{Error, ErrorKind, Outcome, RefusalKind, Runtime};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    plugins: PluginArguments,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One line of the report.
struct Finding {
    /// Part of the system, such as `plugin` or `driver`.
    about: &'static str,
    /// The observation.
    text: String,
    /// Advice; None if nothing is wrong.
    advice: Option<String>,
}

impl Finding {
    fn good(about: &'static str, text: impl Into<String>) -> Self {
        Self { about, text: text.into(), advice: None }
    }

    fn bad(about: &'static str, text: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { about, text: text.into(), advice: Some(advice.into()) }
    }
}

/// Prints what was found, and advice.
///
/// # Errors
/// [`ErrorKind::NotFound`] if no device works; findings of layers.
pub fn main(arguments: &Arguments) -> Result<()> {
    arguments.plugins.layers.conclude(examine(arguments))
}

fn examine(arguments: &Arguments) -> Result<Done> {
    let config = config();
    let runtime = arguments.plugins.runtime(None)?;
    let mut findings = vec![command(&runtime), config];
    findings.extend(folders(&arguments.plugins)?);
    findings.extend(plugins(&runtime));
    findings.extend(devices(&runtime));
    findings.extend(drivers());
    findings.extend(cache(&runtime));
    let verdict = match runtime.devices().is_empty() {
        true => Err(Error::new(ErrorKind::NotFound, "no device works").into()),
        false => Ok(()),
    };
    if arguments.json {
        let findings: Vec<_> = findings
            .iter()
            .map(|finding| json!({ "about": finding.about, "text": finding.text, "advice": finding.advice }))
            .collect();
        return Ok(Done { json: Some(json!({ "findings": findings })), verdict });
    }
    let width = findings.iter().map(|finding| finding.about.len()).max().unwrap_or(0);
    for Finding { about, text, advice } in &findings {
        let mark = if advice.is_some() { "!" } else { " " };
        say!("{mark} {about:<width$}  {text}");
        if let Some(advice) = advice {
            say!("  {:<width$}  -> {advice}", "");
        }
    }
    let problems = findings.iter().filter(|finding| finding.advice.is_some()).count();
    say!("\n{}, {}", count(runtime.devices().len(), "device"), count(problems, "remark"));
    Ok(Done { json: None, verdict })
}

fn command(runtime: &Runtime) -> Finding {
    let program = std::env::current_exe().map(|path| path.display().to_string()).unwrap_or_default();
    let threads = count(runtime.n_threads(), "thread");
    Finding::good("command", format!("devbay {}, {program}, {threads} for kernels", options::version()))
}

/// Reads the configuration file. A wrong one is a finding here, and an error for other commands.
fn config() -> Finding {
    let config = match config::get_or_ignore() {
        Ok(config) => config,
        Err(error) => {
            let advice = "correct that line; other commands refuse the file";
            return Finding::bad("config", exit::describe(&error), advice);
        }
    };
    let Some(file) = &config.file else {
        let place = config::path().map(|path| format!(" at {}", path.display())).unwrap_or_default();
        return Finding::good("config", format!("no configuration file{place}"));
    };
    let device = config.device.as_ref().map(|device| format!("device {device}"));
    let threads = config.threads.map(|n| count(n, "thread"));
    let plugins = (!config.plugins.is_empty()).then(|| count(config.plugins.len(), "plugin"));
    let set: Vec<String> = device.into_iter().chain(threads).chain(plugins).collect();
    let set = if set.is_empty() { "sets nothing".to_owned() } else { set.join(", ") };
    if let Some(missing) = config.plugins.iter().find(|path| !path.exists()) {
        let text = format!("{}: {set}; there is no {}", file.display(), missing.display());
        return Finding::bad("config", text, "correct `plugins`; relative paths are relative to the file");
    }
    Finding::good("config", format!("{}: {set}", file.display()))
}

/// Looks at the folders that are searched for plugins.
fn folders(arguments: &PluginArguments) -> Result<Vec<Finding>> {
    let search = arguments.search()?;
    let configured = &config::get()?.plugins;
    let from_variable = |folder: &PathBuf| match folder.is_dir() {
        true if configured.contains(folder) => {
            Finding::good("folder", format!("{} (configuration file)", folder.display()))
        }
        true => Finding::good("folder", format!("{} (DEVBAY_PLUGIN_PATH)", folder.display())),
        false => Finding::bad(
            "folder",
            format!("{} is no folder", folder.display()),
            "correct DEVBAY_PLUGIN_PATH, which names it",
        ),
    };
    let of_manifests = search.manifest_folders.iter().filter(|folder| folder.is_dir());
    let of_manifests = of_manifests.map(|folder| Finding::good("folder", folder.display().to_string()));
    Ok(search.library_folders.iter().map(from_variable).chain(of_manifests).collect())
}

fn plugins(runtime: &Runtime) -> Vec<Finding> {
    let mut findings = Vec::new();
    for plugin in &runtime.report().plugins {
        let title = format!("{} ({})", plugin.title(), plugin.origin);
        findings.push(match &plugin.outcome {
            Outcome::Loaded { minor, n_devices: 0 } => Finding::bad(
                "plugin",
                format!("{title}: ABI 0.{minor}, no device"),
                "check that its device is plugged in and its driver installed; `devbay devices -v` shows its messages",
            ),
            Outcome::Loaded { minor, n_devices } => {
                Finding::good("plugin", format!("{title}: ABI 0.{minor}, {}", count(*n_devices, "device")))
            }
            Outcome::NotAsked | Outcome::Replaced => Finding::good("plugin", format!("{title}: not loaded")),
            Outcome::Refused(refusal) => {
                Finding::bad("plugin", format!("{title} was refused: {refusal}"), advice_on(refusal.kind))
            }
        });
        findings.extend(plugin.notes.iter().map(|note| Finding::good("note", note.clone())));
    }
    findings
}

/// Returns what to do about a refusal.
fn advice_on(kind: RefusalKind) -> &'static str {
    match kind {
        RefusalKind::Unreadable => "check the path and its permissions",
        RefusalKind::NotALibrary => {
            "install the libraries that the message names, or take the plugin's build for this machine"
        }
        RefusalKind::WrongHash | RefusalKind::BadManifest => {
            "install the plugin again: its manifest and its library do not belong together"
        }
        RefusalKind::NotProbed => "name it with --plugin, or add its SHA-256 to its manifest",
        RefusalKind::FailedProbe => {
            "run `devbay conformance LIBRARY`, and report the crash or hang to the plugin's vendor"
        }
        RefusalKind::NoCommonVersion | RefusalKind::NotUnderstood => {
            "update devbay or the plugin, as the message says"
        }
        RefusalKind::DuplicateName => "remove one of the two, or give one a lower place in the search",
        RefusalKind::CreateFailed | RefusalKind::DevicesFailed => {
            "check the device's driver; `devbay devices -vv` shows the plugin's messages"
        }
        RefusalKind::UnknownOption => "correct --plugin-option; `devbay inspect LIBRARY` lists the options",
        _ => {
            "run `devbay lint LIBRARY` and `devbay conformance LIBRARY`, and report it to the plugin's vendor"
        }
    }
}

fn devices(runtime: &Runtime) -> Vec<Finding> {
    let finding = |device: &std::sync::Arc<devbay_host::Device>| {
        let about = device.about();
        let text = format!("{}: {}, {}", device.name(), about.product, about.driver);
        match device.rates() {
            Some(_) => Finding::good("device", format!("{text}, rates measured")),
            None => Finding::bad(
                "device",
                format!("{text}, rates guessed"),
                "`devbay devices --calibrate` measures them, for better plans",
            ),
        }
    };
    runtime.devices().iter().map(finding).collect()
}

/// Looks for the drivers of our plugins, where Linux keeps them.
fn drivers() -> Vec<Finding> {
    let listed = |folders: &[&str], extension: &str| -> Vec<String> {
        let files = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
        let mut names: Vec<String> = files
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|found| found == extension))
            .filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()))
            .collect();
        names.sort();
        names
    };
    let mut findings = Vec::new();
    for (name, folders, extension) in [
        ("Vulkan", &["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"][..], "json"),
        ("OpenCL", &["/etc/OpenCL/vendors"][..], "icd"),
    ] {
        let found = listed(folders, extension);
        findings.push(match found.is_empty() {
            true => Finding::good("driver", format!("{name}: none in {}", folders.join(", "))),
            false => Finding::good("driver", format!("{name}: {}", found.join(", "))),
        });
    }
    let cuda = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
    let cuda = cuda.as_deref().and_then(|text| text.lines().next()).unwrap_or("none").trim().to_owned();
    findings.push(Finding::good("driver", format!("NVIDIA: {cuda}")));
    findings
}

/// Looks at the folder of measured rates and of compiled kernels.
fn cache(runtime: &Runtime) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    let notes = runtime.report().notes.iter();
    findings.extend(
        notes.map(|note| Finding::bad("cache", note.clone(), "`devbay devices --calibrate` replaces it")),
    );
    let file = rates_file::path_from_environment();
    let Some(folder) = file.as_deref().and_then(Path::parent) else {
        findings.push(Finding::bad(
            "cache",
            "there is no folder for measured rates and compiled kernels",
            "set HOME, XDG_CACHE_HOME or DEVBAY_CACHE_DIR",
        ));
        return findings;
    };
    let text = match bytes_in(folder) {
        0 => format!("{}: empty", folder.display()),
        bytes => format!("{}: {}", folder.display(), table::bytes(bytes)),
    };
    findings.push(Finding::good("cache", text));
    findings
}

/// Returns the bytes of all files in a folder. Files that cannot be read count as empty.
fn bytes_in(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_in(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}
