//! The runtime: threads, plugins and devices of an application.

use crate::devices::{self, Choice, Policy, Requirements};
use crate::discover::{self, Candidate, Origin, SearchPaths};
use crate::layers::validation::{Report, Settings};
use crate::layers::{self, Layer, Stack};
use crate::load::LibraryFile;
use crate::negotiate::{Agreement, Entry, negotiate, negotiate_layered};
use crate::probe::{Probing, probe};
use crate::rates_file::{Key, KnownRates};
use crate::report::{DeviceMemory, LoadReport, Outcome, PluginReport};
use devbay_core::about::{Refusal, RefusalKind};
use devbay_core::device::{Device, Plugin};
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::exec::queue::{QueueOptions, Threads, WorkQueue};
use devbay_core::services::{LogLevel, LogSink, Services, TraceSink};
use devbay_plugin_api::abi::version::MinorRange;
use devbay_plugin_api::locks::lock;
use devbay_plugin_api::sdk::export::LinkedPlugin;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// Options of a runtime.
pub struct RuntimeOptions {
    /// Number of threads for kernels, including the calling thread; 0 for one per processor.
    pub threads: usize,
    /// Processors for the threads that the runtime starts, which take one each; None lets the system choose.
    pub affinity: Option<Vec<usize>>,
    /// The application's own threads, instead of any that the runtime would start.
    pub queue: Option<Arc<dyn Threads>>,
    /// Plugins that are part of the program.
    pub linked: Vec<LinkedPlugin>,
    /// Libraries or manifests that are named explicitly.
    pub plugins: Vec<PathBuf>,
    /// Other places to look.
    pub search: SearchPaths,
    /// Only plugins of these names, where the name is known before loading; explicit ones always.
    pub only: Option<Vec<String>>,
    /// Settings by plugin: plugin, key, value.
    pub plugin_options: Vec<(String, String, String)>,
    /// Treatment of libraries that no manifest vouches for by their SHA-256.
    pub probe: Probing,
    /// Layers between the host and every plugin, the first one nearest to the host; [`layers::KNOWN`] has their names.
    pub layers: Vec<String>,
    /// Report of the validation layer; clones share its entries.
    pub violations: Report,
    /// ABI minors to speak; others than the build's own only to try out old and new hosts.
    pub minors: MinorRange,
    /// True to keep a plugin that cannot list devices: it may compile for devices that are absent.
    pub without_devices: bool,
    /// Takes plugins' messages; by default `tracing`.
    pub log: LogSink,
    /// Takes plugins' marks.
    pub trace: Option<TraceSink>,
    /// Values that plugins may ask for: `cache_dir`, ...
    pub config: BTreeMap<String, String>,
    /// File of device rates measured earlier; defaults apply without it. Nothing is measured now.
    pub rates_file: Option<PathBuf>,
}

impl Default for RuntimeOptions {
    /// One thread per processor, no plugins, no folders.
    fn default() -> Self {
        Self {
            threads: 0,
            affinity: None,
            queue: None,
            linked: Vec::new(),
            plugins: Vec::new(),
            search: SearchPaths::none(),
            only: None,
            plugin_options: Vec::new(),
            probe: Probing::default(),
            layers: Vec::new(),
            violations: Report::default(),
            minors: MinorRange::CURRENT,
            without_devices: false,
            log: Arc::new(log_to_tracing),
            trace: None,
            config: BTreeMap::new(),
            rates_file: None,
        }
    }
}

fn log_to_tracing(plugin: &str, level: LogLevel, text: &str) {
    match level {
        LogLevel::Debug => tracing::debug!(plugin, "{text}"),
        LogLevel::Info => tracing::info!(plugin, "{text}"),
        LogLevel::Warn => tracing::warn!(plugin, "{text}"),
        LogLevel::Error => tracing::error!(plugin, "{text}"),
    }
}

/// Threads, plugins and devices. Clones are cheap and share them.
#[derive(Clone)]
pub struct Runtime {
    inner: Arc<Inner>,
}

struct Inner {
    queue: Arc<WorkQueue>,
    plugins: Vec<Arc<Plugin>>,
    /// As they were last listed, by plugin. Never held while a plugin is called.
    devices: Mutex<Vec<Vec<Arc<Device>>>>,
    /// Held while plugins are asked anew.
    scanning: Mutex<()>,
    rates: Option<KnownRates>,
    report: LoadReport,
}

/// Results of [`Runtime::rescan`].
#[derive(Default)]
pub struct Rescan {
    /// Devices that were not there before. One that came back has the name of the one that was lost.
    pub added: Vec<Arc<Device>>,
    /// Devices that are gone.
    pub gone: Vec<Arc<Device>>,
    /// Plugins that could not say which devices they have, whose devices stay as they were, and devices that are left out.
    pub notes: Vec<String>,
}

impl Runtime {
    /// Starts threads, finds and loads plugins, lists devices. A bad plugin is a line in the report; it never
    /// stops the others.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a number of threads, a processor, a layer or an option that cannot be;
    /// [`ErrorKind::Unavailable`] if the system gives no threads.
    pub fn new(options: RuntimeOptions) -> Result<Self> {
        let layers = layers::named(&options.layers)?;
        let queue = Arc::new(work_queue(&options)?);
        let found = discover::discover(&options.plugins, &options.linked, &options.search);
        let (taken, loaded) = (BTreeMap::new(), Vec::new());
        let mut loader = Loader { options: &options, layers: &layers, queue: &queue, taken, loaded };
        let mut report = LoadReport::default();
        for (path, refusal) in found.refused {
            report.plugins.push(PluginReport {
                name: None,
                origin: "discovered".to_owned(),
                library: Some(path),
                outcome: Outcome::Refused(refusal),
                notes: Vec::new(),
            });
        }
        for candidate in &found.candidates {
            report.plugins.push(loader.candidate(candidate));
        }
        let (plugins, devices): (Vec<_>, Vec<_>) = loader.loaded.into_iter().unzip();
        let known: BTreeSet<&str> = plugins.iter().map(|plugin: &Arc<Plugin>| plugin.name()).collect();
        // A plugin that was refused before it said its name is known by its file's.
        let file_name = |plugin: &PluginReport| plugin.library.as_deref().and_then(discover::name_of_library);
        let mentioned = |name: &str| {
            let mut plugins = report.plugins.iter();
            plugins.any(|p| p.name.as_deref() == Some(name) || file_name(p).as_deref() == Some(name))
        };
        for (plugin, key, _) in &options.plugin_options {
            if !known.contains(plugin.as_str()) && !mentioned(plugin) {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!("option {plugin}.{key} is for a plugin that is not there"),
                ));
            }
        }
        let rates = options.rates_file.as_deref().map(|path| {
            let (known, warning) = KnownRates::read(path);
            if let Some(warning) = warning {
                tracing::warn!("{warning}");
                report.notes.push(warning);
            }
            known
        });
        let runtime = Self {
            inner: Arc::new(Inner {
                queue,
                plugins,
                devices: Mutex::new(devices),
                scanning: Mutex::default(),
                rates,
                report,
            }),
        };
        runtime.devices().iter().for_each(|device| runtime.tell_rates(device));
        Ok(runtime)
    }

    /// Sets a device's rates from the rates file, if it has them. Called before planning for the device.
    fn tell_rates(&self, device: &Device) {
        let Some(known) = &self.inner.rates else { return };
        if let Some(rates) = known.find(&self.rates_key(device), device.default_rates()) {
            device.set_rates(rates);
        }
    }

    /// Returns the devices that were present when plugins were last asked: by plugin in order of precedence, then as the
    /// plugin lists them.
    pub fn devices(&self) -> Vec<Arc<Device>> {
        lock(&self.inner.devices).concat()
    }

    /// Asks every plugin which devices are there now, from any thread but one that is within a plugin's call, such as a log
    /// sink's; that may take as long as it takes to open a device. Sessions on devices that stay go on. Those on devices
    /// that are gone fail with [`ErrorKind::DeviceLost`], also when the device has come back: that is a new one, which a new
    /// session uses.
    pub fn rescan(&self) -> Rescan {
        let mut found = Rescan::default();
        let _alone = lock(&self.inner.scanning);
        let mut devices = lock(&self.inner.devices).clone();
        for (plugin, known) in self.inner.plugins.iter().zip(&mut devices) {
            let before = plugin.left_out();
            match plugin.devices(known) {
                Err(refusal) => found.notes.push(format!("plugin {}: {refusal}", plugin.name())),
                Ok(now) => {
                    let is_in = |list: &[Arc<Device>], device: &Arc<Device>| {
                        list.iter().any(|other| Arc::ptr_eq(other, device))
                    };
                    found.gone.extend(known.iter().filter(|device| !is_in(&now, device)).cloned());
                    let added = now.iter().filter(|device| !is_in(known, device));
                    found.added.extend(added.cloned());
                    *known = now;
                    found.notes.extend(plugin.left_out().into_iter().filter(|line| !before.contains(line)));
                }
            }
        }
        // Before anybody sees them.
        found.added.iter().for_each(|device| self.tell_rates(device));
        *lock(&self.inner.devices) = devices;
        found
    }

    /// Returns the loaded plugins.
    pub fn plugins(&self) -> &[Arc<Plugin>] {
        &self.inner.plugins
    }

    /// Reports the plugins that were found, loaded and refused.
    pub fn report(&self) -> &LoadReport {
        &self.inner.report
    }

    /// Returns the memory that this runtime has allocated on each device.
    pub fn memory(&self) -> Vec<DeviceMemory> {
        let of = |device: &Arc<Device>| {
            let (bytes_in_use, bytes_peak) = device.bytes_in_use();
            DeviceMemory { device: device.name().to_owned(), bytes_in_use, bytes_peak }
        };
        self.devices().iter().map(of).collect()
    }

    /// Returns the key under which a device's rates are stored.
    pub fn rates_key(&self, device: &Device) -> Key {
        Key::of(device, self.report().library_of(device.plugin().name()))
    }

    /// Returns the number of threads for kernels, including the calling thread.
    pub fn n_threads(&self) -> usize {
        self.inner.queue.n_threads()
    }

    /// Chooses a device.
    ///
    /// # Errors
    /// As [`devices::choose`]; for a plugin that was refused, the refusal.
    pub fn choose(&self, policy: &Policy, requirements: &Requirements<'_>) -> Result<Choice> {
        devices::choose(&self.devices(), policy, requirements).map_err(|error| {
            let report = self.report();
            let Some(plugin) = policy.plugin() else {
                // Without any device, each refusal may be why.
                let refusals: Vec<String> = report.refused().map(describe_refusal).collect();
                if !self.devices().is_empty() || refusals.is_empty() {
                    return error;
                }
                let text = format!("{}; {}", error.text(), refusals.join("; "));
                return Error::new(ErrorKind::Refused, text);
            };
            let named = |name: &Option<String>| name.as_deref() == Some(plugin);
            if let Some((_, refusal)) = report.refused().find(|(report, _)| named(&report.name)) {
                let text = format!("{}; the plugin was refused: {refusal}", error.text());
                return Error::new(ErrorKind::Refused, text);
            }
            if report.plugins.iter().any(|report| named(&report.name)) {
                return error;
            }
            let known: BTreeSet<&str> = report.plugins.iter().filter_map(|p| p.name.as_deref()).collect();
            if known.is_empty() {
                return error;
            }
            let known: Vec<&str> = known.into_iter().collect();
            let text = format!("there is no plugin {plugin}; found: [{}]", known.join(", "));
            Error::new(ErrorKind::NotFound, text)
        })
    }
}

/// Makes a work queue of the threads that an application brings, or asks for.
fn work_queue(options: &RuntimeOptions) -> Result<WorkQueue> {
    if let Some(queue) = &options.queue {
        if options.threads != 0 || options.affinity.is_some() {
            let text = "threads and their processors are the application's own, and cannot be chosen besides";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        return WorkQueue::on(Arc::clone(queue));
    }
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    WorkQueue::with_options(&QueueOptions { threads, affinity: options.affinity.clone() })
}

/// Describes a refused plugin and its reason, for an error.
fn describe_refusal((plugin, refusal): (&PluginReport, &Refusal)) -> String {
    let path = || plugin.library.as_ref().map(|path| path.display().to_string());
    let name = plugin.name.clone().or_else(path);
    format!("plugin {} was refused: {refusal}", name.as_deref().unwrap_or("?"))
}

/// Passes a plugin's messages on, and keeps its warnings as long as there is a list for them: warnings from loading belong
/// in the report.
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

type Loaded = (Arc<Plugin>, Vec<Arc<Device>>);

struct Loader<'a> {
    options: &'a RuntimeOptions,
    layers: &'a [Layer],
    queue: &'a Arc<WorkQueue>,
    /// Names that are taken, and by what.
    taken: BTreeMap<String, Origin>,
    loaded: Vec<Loaded>,
}

impl Loader<'_> {
    fn candidate(&mut self, candidate: &Candidate) -> PluginReport {
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
        // Fields go in their order: no layer is left that could call into a library that is gone.
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

    /// Agrees with a plugin, and then with the layers in front of it, if there are any.
    fn negotiate(&self, entry: Entry<'_>) -> std::result::Result<(Agreement, Option<Stack>), Refusal> {
        let agreement = negotiate(entry, self.options.minors)?;
        if self.layers.is_empty() {
            return Ok((agreement, None));
        }
        let settings = Settings {
            report: self.options.violations.clone(),
            log: Some(Arc::clone(&self.options.log)),
            ..Settings::default()
        };
        // SAFETY: the stack is kept beside its library, and goes first; so does one that is refused.
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

    /// Tries an unknown library in a child first (B27). It is unknown if no manifest has its SHA-256.
    fn probe(&self, candidate: &Candidate, path: &std::path::Path) -> std::result::Result<(), Refusal> {
        match &self.options.probe {
            Probing::Tried(options) => {
                let given = match &candidate.manifest {
                    Some(manifest) => self.options_for(&manifest.name, candidate),
                    None => self.options_by_file(path),
                };
                probe(path, &given, options).map(|_| ())
            }
            Probing::Trusted => Ok(()),
            // Who names a library trusts it.
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
    fn options_by_file(&self, path: &std::path::Path) -> Vec<(String, String)> {
        let name = discover::name_of_library(path).unwrap_or_default();
        let options = self.options.plugin_options.iter();
        options
            .filter(|(plugin, ..)| *plugin == name)
            .map(|(_, key, value)| (key.clone(), value.clone()))
            .collect()
    }
}
