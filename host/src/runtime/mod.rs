//! The runtime: threads, plugins and devices of an application.

mod builder;
mod loader;

pub use builder::RuntimeBuilder;

use crate::devices::{self, Choice, Policy, Requirements};
use crate::discover;
use crate::layers;
use crate::model::Model;
use crate::rates_file::{Key, KnownRates};
use crate::report::{DeviceMemory, LoadReport, Outcome, PluginReport};
use devbay_core::about::Refusal;
use devbay_core::device::{Device, Plugin};
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::exec::queue::{QueueOptions, WorkQueue};
use devbay_plugin_api::locks::lock;
use loader::Loader;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// Threads, plugins and devices. Clones are cheap and share them.
#[derive(Clone)]
pub struct Runtime {
    inner: Arc<Inner>,
}

struct Inner {
    queue: Arc<WorkQueue>,
    plugins: Vec<Arc<Plugin>>,
    /// The devices last listed, by plugin. Never locked during a call to a plugin.
    devices: Mutex<Vec<Vec<Arc<Device>>>>,
    /// Held while plugins list their devices again.
    scanning: Mutex<()>,
    rates: Option<KnownRates>,
    report: LoadReport,
}

/// Results of [`Runtime::rescan`].
#[derive(Default)]
pub struct Rescan {
    /// Devices that appeared. A device that came back has the name of the lost one.
    pub added: Vec<Arc<Device>>,
    /// Devices that disappeared.
    pub gone: Vec<Arc<Device>>,
    /// Plugins that failed to list their devices, which stay as they were, and devices that are left out.
    pub notes: Vec<String>,
}

impl Runtime {
    /// Returns a builder with default settings.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::new()
    }

    fn new(options: &RuntimeBuilder) -> Result<Self> {
        let layers = layers::named(&options.layers)?;
        let queue = Arc::new(work_queue(options)?);
        let found = discover::discover(&options.plugins, &options.linked, &options.search);
        let (taken, loaded) = (BTreeMap::new(), Vec::new());
        let mut loader = Loader { options, layers: &layers, queue: &queue, taken, loaded };
        let mut report = LoadReport::default();
        for discover::Unreadable { origin, name, path, refusal } in found.refused {
            report.plugins.push(PluginReport {
                name,
                origin: origin.describe(),
                library: path,
                outcome: Outcome::Refused(refusal),
                notes: Vec::new(),
            });
        }
        for candidate in &found.candidates {
            report.plugins.push(loader.candidate(candidate));
        }
        let (plugins, devices): (Vec<_>, Vec<_>) = loader.loaded.into_iter().unzip();
        let known: BTreeSet<&str> = plugins.iter().map(|plugin: &Arc<Plugin>| plugin.name()).collect();
        // A plugin refused before it reported its name is known by its file's.
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

    /// Returns the devices of the last listing: by plugin in order of precedence, then in the plugin's order.
    pub fn devices(&self) -> Vec<Arc<Device>> {
        lock(&self.inner.devices).concat()
    }

    /// Asks every plugin for its present devices; this may take as long as opening a device. Call it from any thread that is
    /// not inside a plugin's call, such as a log sink's. Sessions on present devices continue. Those on devices that are
    /// gone fail with [`ErrorKind::DeviceLost`], even after the device comes back: that is a new device, which needs a new
    /// session.
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
        // Set rates before the devices become visible.
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

    /// Returns the first device that has kernels for every op of a model: accelerators before processors, then in the order
    /// of [`Runtime::devices`]. [`Runtime::choose`] takes other criteria, and gives a reason for each device.
    ///
    /// # Errors
    /// As [`Runtime::choose`].
    pub fn device_for(&self, model: &Model) -> Result<Arc<Device>> {
        let requirements = Requirements { program: Some(model.program()), ..Requirements::default() };
        Ok(self.choose(&Policy::Auto, &requirements)?.device)
    }

    /// Chooses a device.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the device does not exist or there are no devices; [`ErrorKind::UnsupportedOp`] if none
    /// meets the requirements, with the reason of each; [`ErrorKind::Refused`] with the refusal, if the device's plugin was
    /// refused.
    pub fn choose(&self, policy: &Policy, requirements: &Requirements<'_>) -> Result<Choice> {
        devices::choose(&self.devices(), policy, requirements).map_err(|error| {
            let report = self.report();
            let Some(plugin) = policy.plugin() else {
                // Without any device, every refusal is a possible reason.
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

/// Describes a refused plugin and its reason, for an error.
fn describe_refusal((plugin, refusal): (&PluginReport, &Refusal)) -> String {
    let path = || plugin.library.as_ref().map(|path| path.display().to_string());
    let name = plugin.name.clone().or_else(path);
    format!("plugin {} was refused: {refusal}", name.as_deref().unwrap_or("?"))
}

/// Makes a work queue from the application's threads, or starts the requested number.
fn work_queue(options: &RuntimeBuilder) -> Result<WorkQueue> {
    if let Some(queue) = &options.queue {
        if options.threads != 0 || options.affinity.is_some() {
            let text = "threads and their processors are the application's own, and cannot be chosen besides";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        return WorkQueue::on(Arc::clone(queue));
    }
    if options.simulated {
        return WorkQueue::simulated(options.threads);
    }
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    WorkQueue::with_options(&QueueOptions { threads, affinity: options.affinity.clone() })
}
