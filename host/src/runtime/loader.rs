//! Turns a candidate into a loaded plugin with its devices, or the reason for its refusal.

use super::builder::RuntimeBuilder;
use crate::discover::{self, Candidate, Origin};
use crate::layers::{Layer, Stack, validation};
use crate::load::LibraryFile;
use crate::negotiate::{Agreement, Entry, negotiate, negotiate_layered};
use crate::probe::{Probing, probe};
use crate::report::{Outcome, PluginReport};
use devbay_core::about::{Refusal, RefusalKind};
use devbay_core::device::{Device, Plugin};
use devbay_core::exec::queue::WorkQueue;
use devbay_core::services::{LogLevel, LogSink, Services};
use devbay_plugin_api::locks::lock;
use std::any::Any;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Forwards a plugin's messages, and collects its warnings while the list exists: warnings from loading belong in the
/// report.
fn gathering(log: &LogSink, warnings: &Arc<Mutex<Option<Vec<String>>>>) -> LogSink {
    let (log, warnings) = (Arc::clone(log), Arc::clone(warnings));
    Arc::new(move |plugin: &str, level: LogLevel, text: &str| {
        if level == LogLevel::Warn
            && let Some(list) = &mut *lock(&warnings)
        {
            list.push(text.to_owned());
        }
        log(plugin, level, text);
    })
}

pub(super) type Loaded = (Arc<Plugin>, Vec<Arc<Device>>);

pub(super) struct Loader<'a> {
    pub options: &'a RuntimeBuilder,
    pub layers: &'a [Layer],
    pub queue: &'a Arc<WorkQueue>,
    /// Names in use, with their origins.
    pub taken: BTreeMap<String, Origin>,
    pub loaded: Vec<Loaded>,
}

impl Loader<'_> {
    pub fn candidate(&mut self, candidate: &Candidate) -> PluginReport {
        let mut report = PluginReport {
            name: candidate.name().map(str::to_owned),
            origin: candidate.origin.describe(),
            library: candidate.library.clone(),
            outcome: Outcome::NotAsked,
            notes: Vec::new(),
        };
        let explicit = candidate.origin == Origin::Explicit;
        if let (Some(only), Some(name), false) = (&self.options.only, candidate.name(), explicit)
            && !only.iter().any(|wanted| wanted == name)
        {
            return report;
        }
        if !explicit && candidate.name().is_some_and(|name| self.replaced(name)) {
            report.outcome = Outcome::Replaced;
            report.notes.push("replaced by the plugin of this name that was named explicitly".to_owned());
            return report;
        }
        report.outcome = match self.load(candidate, &mut report) {
            Ok((plugin, devices)) => {
                report.notes.extend(plugin.left_out());
                let outcome = Outcome::Loaded { minor: plugin.minor(), n_devices: devices.len() };
                report.name = Some(plugin.name().to_owned());
                self.loaded.push((plugin, devices));
                outcome
            }
            Err(refusal) => {
                tracing::debug!("refused {:?}: {refusal}", report.library);
                Outcome::Refused(refusal)
            }
        };
        report
    }

    fn load(
        &mut self,
        candidate: &Candidate,
        report: &mut PluginReport,
    ) -> std::result::Result<Loaded, Refusal> {
        if let Some(name) = candidate.name() {
            self.refuse_taken(name)?;
        }
        let mut library = None;
        let (agreement, stack) = match (&candidate.linked, &candidate.library) {
            (Some(linked), _) => self.negotiate(Entry::Linked(linked))?,
            (None, Some(path)) => {
                if let Some(manifest) = &candidate.manifest {
                    manifest.check(self.options.minors)?;
                }
                let mut file = LibraryFile::open(path)?;
                match candidate.manifest.as_ref().and_then(|manifest| manifest.sha256.as_deref()) {
                    Some(sha256) => file.check_sha256(sha256)?,
                    None => self.probe(candidate, path)?,
                }
                let opened = library.insert(file.load()?);
                self.negotiate(Entry::Library(opened))?
            }
            (None, None) => {
                return Err(Refusal::new(RefusalKind::Unreadable, "a candidate without a library"));
            }
        };
        let about = agreement.about;
        report.name = Some(about.name.clone());
        report.notes.extend(agreement.differences);
        if let Some(manifest) = candidate.manifest.as_ref().filter(|manifest| manifest.name != about.name) {
            return Err(Refusal::new(
                RefusalKind::BadManifest,
                format!("the manifest names the plugin {}, the library {}", manifest.name, about.name),
            ));
        }
        self.refuse_taken(&about.name)?;
        let options = self.options_for(&about.name, candidate);
        if let Some(library) = library.as_mut().filter(|_| about.unloadable) {
            library.unload_on_drop();
        }
        // Fields drop in order, so no layer can call into an unloaded library.
        let kept = Arc::new((stack, library)) as Arc<dyn Any + Send + Sync>;
        let warnings = Arc::new(Mutex::new(Some(Vec::new())));
        let services = Services::new(
            &about.name,
            Arc::clone(self.queue),
            gathering(&self.options.log, &warnings),
            self.options.trace.clone(),
            self.options.config.clone(),
        );
        let name = about.name.clone();
        let plugin = Plugin::create(about, agreement.minor, services, &options, Some(kept))?;
        if candidate.linked.is_none() {
            plugin.set_foreign();
        }
        let devices = match plugin.devices(&[]) {
            Err(refusal) if self.options.without_devices => {
                report.notes.push(refusal.to_string());
                Vec::new()
            }
            listed => listed?,
        };
        report.notes.extend(lock(&warnings).take().into_iter().flatten());
        self.taken.insert(name, candidate.origin.clone());
        Ok((plugin, devices))
    }

    /// Negotiates with a plugin, and then with the layers in front of it, if any.
    fn negotiate(&self, entry: Entry<'_>) -> std::result::Result<(Agreement, Option<Stack>), Refusal> {
        let agreement = negotiate(entry, self.options.minors)?;
        if self.layers.is_empty() {
            return Ok((agreement, None));
        }
        let settings = validation::Settings {
            report: self.options.violations.clone(),
            log: Some(Arc::clone(&self.options.log)),
            ..validation::Settings::default()
        };
        // SAFETY: the stack is kept beside its library and dropped first, also after a refusal.
        let stack = unsafe { Stack::new(entry, self.layers, &settings) }?;
        Ok((negotiate_layered(&stack, entry, self.options.minors)?, Some(stack)))
    }

    /// Returns whether a plugin of this name was named explicitly and loaded.
    fn replaced(&self, name: &str) -> bool {
        self.taken.get(name) == Some(&Origin::Explicit)
    }

    fn refuse_taken(&self, name: &str) -> std::result::Result<(), Refusal> {
        match self.taken.get(name) {
            None => Ok(()),
            Some(by) => Err(Refusal::new(
                RefusalKind::DuplicateName,
                format!("a plugin called {name} was loaded before ({}); the first one wins", by.describe()),
            )),
        }
    }

    /// Tries an unknown library in a child process first (B27). A library is unknown if no manifest has its SHA-256.
    fn probe(&self, candidate: &Candidate, path: &Path) -> std::result::Result<(), Refusal> {
        match &self.options.probe {
            Probing::Tried(options) => {
                let given = match &candidate.manifest {
                    Some(manifest) => self.options_for(&manifest.name, candidate),
                    None => self.options_by_file(path),
                };
                probe(path, &given, options).map(|_| ())
            }
            Probing::Trusted => Ok(()),
            // Naming a library means trusting it.
            Probing::Refused if candidate.origin == Origin::Explicit => Ok(()),
            Probing::Refused => {
                let lacks = match &candidate.manifest {
                    Some(_) => "its manifest has no sha256",
                    None => "the library has no manifest",
                };
                let text = format!("not probed: {lacks}, and this program has no probe; name it explicitly");
                Err(Refusal::new(RefusalKind::NotProbed, text))
            }
        }
    }

    /// Collects a plugin's options: the manifest's defaults, overridden by the application's.
    fn options_for(&self, name: &str, candidate: &Candidate) -> Vec<(String, String)> {
        let mut options: BTreeMap<String, String> =
            candidate.manifest.as_ref().map(|manifest| manifest.options.clone()).unwrap_or_default();
        for (plugin, key, value) in &self.options.plugin_options {
            if plugin == name {
                options.insert(key.clone(), value.clone());
            }
        }
        options.into_iter().collect()
    }

    /// Returns options for a library whose plugin name is known only from its file name: `libdevbay_plugin_NAME.so`.
    fn options_by_file(&self, path: &Path) -> Vec<(String, String)> {
        let name = discover::name_of_library(path).unwrap_or_default();
        let options = self.options.plugin_options.iter();
        options
            .filter(|(plugin, ..)| *plugin == name)
            .map(|(_, key, value)| (key.clone(), value.clone()))
            .collect()
    }
}
