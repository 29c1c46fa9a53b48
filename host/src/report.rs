//! Reports of plugins that were found, loaded and refused, as data.

use devbay_core::about::Refusal;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Outcome for one candidate, and where it comes from.
#[derive(Clone, Debug)]
pub struct PluginReport {
    /// Name, as far as it is known.
    pub name: Option<String>,
    /// Where it comes from, in words.
    pub origin: String,
    /// Its library; None if it is linked in.
    pub library: Option<PathBuf>,
    /// Outcome of loading it.
    pub outcome: Outcome,
    /// Remarks: layout differences, the plugin that it replaces.
    pub notes: Vec<String>,
}

impl PluginReport {
    /// Returns its title: its file, or its name.
    pub fn title(&self) -> String {
        let path = self.library.as_ref().map(|path| path.display().to_string());
        path.or_else(|| self.name.clone()).unwrap_or_else(|| "?".to_owned())
    }
}

/// Outcome for a candidate.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It was loaded; it has so many devices.
    Loaded {
        /// ABI minor that was agreed on.
        minor: u32,
        /// Devices that it listed.
        n_devices: usize,
    },
    /// It was left alone, because only others were asked for.
    NotAsked,
    /// A plugin of its name was named explicitly and takes its place.
    Replaced,
    /// It was refused.
    Refused(Refusal),
}

/// Reports of all candidates, in order of precedence.
#[derive(Clone, Debug, Default)]
pub struct LoadReport {
    /// A report each.
    pub plugins: Vec<PluginReport>,
    /// Remarks that belong to no plugin, such as a file that cannot be used.
    pub notes: Vec<String>,
}

impl LoadReport {
    /// Returns the library of a loaded plugin; None if it is linked in.
    pub fn library_of(&self, plugin: &str) -> Option<&Path> {
        let loaded = |report: &&PluginReport| {
            report.name.as_deref() == Some(plugin) && matches!(report.outcome, Outcome::Loaded { .. })
        };
        self.plugins.iter().find(loaded)?.library.as_deref()
    }

    /// Returns the refused candidates, with their reasons.
    pub fn refused(&self) -> impl Iterator<Item = (&PluginReport, &Refusal)> {
        self.plugins.iter().filter_map(|plugin| match &plugin.outcome {
            Outcome::Refused(refusal) => Some((plugin, refusal)),
            _ => None,
        })
    }
}

/// One device in the explanation of a choice.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DeviceVerdict {
    /// `PLUGIN:INDEX`.
    pub device: String,
    /// True if it was chosen.
    pub chosen: bool,
    /// Why, or why not.
    pub reason: String,
}

/// Memory of one device that was allocated through the host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DeviceMemory {
    /// `PLUGIN:INDEX`.
    pub device: String,
    /// Now.
    pub bytes_in_use: u64,
    /// At most, so far.
    pub bytes_peak: u64,
}
