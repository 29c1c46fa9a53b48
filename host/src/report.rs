//! Reports of found, loaded and refused plugins, as data.

use devbay_core::about::Refusal;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Outcome for one candidate, with its origin.
#[derive(Clone, Debug)]
pub struct PluginReport {
    /// Its name, if known.
    pub name: Option<String>,
    /// Its origin in words.
    pub origin: String,
    /// Its library; None if it is linked in.
    pub library: Option<PathBuf>,
    /// Outcome of loading it.
    pub outcome: Outcome,
    /// Remarks: layout differences, the plugin that it replaces.
    pub notes: Vec<String>,
}

impl PluginReport {
    /// Returns its title: its file or its name.
    pub fn title(&self) -> String {
        let path = self.library.as_ref().map(|path| path.display().to_string());
        path.or_else(|| self.name.clone()).unwrap_or_else(|| "?".to_owned())
    }
}

/// Outcome for a candidate.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It was loaded.
    Loaded {
        /// The agreed ABI minor.
        minor: u32,
        /// Number of devices that it listed.
        n_devices: usize,
    },
    /// It was skipped, because only other plugins were requested.
    NotAsked,
    /// A plugin of the same name was named explicitly and takes its place.
    Replaced,
    /// It was refused.
    Refused(Refusal),
}

/// Reports of all candidates, in order of precedence.
#[derive(Clone, Debug, Default)]
pub struct LoadReport {
    /// One report per candidate.
    pub plugins: Vec<PluginReport>,
    /// Remarks that concern no plugin, such as an unusable file.
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
    /// Reason for or against it.
    pub reason: String,
}

/// Memory of one device that was allocated through the host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DeviceMemory {
    /// `PLUGIN:INDEX`.
    pub device: String,
    /// Bytes allocated now.
    pub bytes_in_use: u64,
    /// Maximum so far.
    pub bytes_peak: u64,
}
