//! The builder of a runtime: its settings, with their defaults.

use super::Runtime;
use crate::discover::SearchPaths;
use crate::layers::validation::Report;
use crate::probe::Probing;
use devbay_core::error::Result;
use devbay_core::exec::queue::Threads;
use devbay_core::services::{LogLevel, LogSink, TraceSink};
use devbay_plugin_api::abi::version::MinorRange;
use devbay_plugin_api::sdk::export::LinkedPlugin;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Builder of a [`Runtime`]: which plugins to load, and the threads that run their kernels.
///
/// Without any settings, the runtime has one thread per processor, no plugin and searches no folder.
///
/// ```
/// use devbay_host::Runtime;
///
/// # fn main() -> devbay_host::Result<()> {
/// let runtime = Runtime::builder()
///     .link(devbay_plugin_cpu::PLUGIN)
///     .option("cpu", "streams", "async")
///     .threads(2)
///     .build()?;
/// assert_eq!(runtime.devices().len(), 1);
/// # Ok(()) }
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct RuntimeBuilder {
    pub(super) threads: usize,
    pub(super) affinity: Option<Vec<usize>>,
    pub(super) queue: Option<Arc<dyn Threads>>,
    pub(super) simulated: bool,
    pub(super) linked: Vec<LinkedPlugin>,
    pub(super) plugins: Vec<PathBuf>,
    pub(super) search: SearchPaths,
    pub(super) only: Option<Vec<String>>,
    pub(super) plugin_options: Vec<(String, String, String)>,
    pub(super) probe: Probing,
    pub(super) layers: Vec<String>,
    pub(super) violations: Report,
    pub(super) minors: MinorRange,
    pub(super) without_devices: bool,
    pub(super) log: LogSink,
    pub(super) trace: Option<TraceSink>,
    pub(super) config: BTreeMap<String, String>,
    pub(super) rates_file: Option<PathBuf>,
}

impl RuntimeBuilder {
    pub(super) fn new() -> Self {
        Self {
            threads: 0,
            affinity: None,
            queue: None,
            simulated: false,
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

    /// Adds a plugin that is part of the program: `.link(devbay_plugin_cpu::PLUGIN)`.
    pub fn link(mut self, plugin: LinkedPlugin) -> Self {
        self.linked.push(plugin);
        self
    }

    /// Adds plugins that are part of the program, as [`RuntimeBuilder::link`] does.
    pub fn link_all(mut self, plugins: impl IntoIterator<Item = LinkedPlugin>) -> Self {
        self.linked.extend(plugins);
        self
    }

    /// Adds a plugin by the path of its library or manifest. It takes precedence over one that is found by searching.
    pub fn plugin(mut self, path: impl Into<PathBuf>) -> Self {
        self.plugins.push(path.into());
        self
    }

    /// Adds plugins by their paths, as [`RuntimeBuilder::plugin`] does.
    pub fn plugins<P: Into<PathBuf>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        self.plugins.extend(paths.into_iter().map(P::into));
        self
    }

    /// Sets the folders to search for plugins. By default none is searched.
    pub fn search(mut self, paths: SearchPaths) -> Self {
        self.search = paths;
        self
    }

    /// Loads only plugins of these names, where the name is known before loading. Plugins that are given by path are always
    /// loaded.
    pub fn only<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.only = Some(names.into_iter().map(S::into).collect());
        self
    }

    /// Sets an option of a plugin. A later value replaces an earlier one and the manifest's default.
    pub fn option(
        mut self,
        plugin: impl Into<String>,
        key: impl Into<String>,
        value: impl Into<String>,
    ) -> Self {
        self.plugin_options.push((plugin.into(), key.into(), value.into()));
        self
    }

    /// Sets options of plugins, each as plugin, key and value, as [`RuntimeBuilder::option`] does.
    pub fn options(mut self, options: impl IntoIterator<Item = (String, String, String)>) -> Self {
        self.plugin_options.extend(options);
        self
    }

    /// Sets the treatment of libraries that no manifest vouches for by their SHA-256. By default they are refused unless
    /// they are given by path.
    pub fn probe(mut self, probing: Probing) -> Self {
        self.probe = probing;
        self
    }

    /// Sets the number of threads for kernels, including the calling thread; 0, the default, for one per processor.
    pub fn threads(mut self, n: usize) -> Self {
        self.threads = n;
        self
    }

    /// Pins the threads that the runtime starts to processors, one each. None, the default, lets the system choose.
    pub fn affinity(mut self, processors: impl Into<Option<Vec<usize>>>) -> Self {
        self.affinity = processors.into();
        self
    }

    /// Starts no threads, while plans and kernels are those for [`RuntimeBuilder::threads`]. The calling thread runs all
    /// chunks and tasks one after the other, to measure them for a machine that has more processors.
    pub fn simulated(mut self) -> Self {
        self.simulated = true;
        self
    }

    /// Uses the application's own threads instead of starting any.
    pub fn queue(mut self, threads: Arc<dyn Threads>) -> Self {
        self.queue = Some(threads);
        self
    }

    /// Puts layers between the host and every plugin, the first one nearest to the host
    /// ([`layers::KNOWN`](crate::internals::layers::KNOWN) has their names).
    pub fn layers<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.layers = names.into_iter().map(S::into).collect();
        self
    }

    /// Sets the report of the validation layer; clones share its entries.
    pub fn violations(mut self, report: Report) -> Self {
        self.violations = report;
        self
    }

    /// Sets the ABI minors to speak; others than the build's own only to try out old and new hosts.
    pub fn minors(mut self, minors: MinorRange) -> Self {
        self.minors = minors;
        self
    }

    /// Keeps plugins that cannot list devices: they may compile for devices that are absent.
    pub fn without_devices(mut self) -> Self {
        self.without_devices = true;
        self
    }

    /// Sets the receiver of plugins' messages; by default `tracing`.
    pub fn log(mut self, sink: LogSink) -> Self {
        self.log = sink;
        self
    }

    /// Sets the receiver of plugins' trace marks ([`trace::Recorder::sink`](crate::trace::Recorder::sink)); None, the default,
    /// drops them.
    pub fn trace(mut self, sink: impl Into<Option<TraceSink>>) -> Self {
        self.trace = sink.into();
        self
    }

    /// Sets a value that plugins may ask for, such as `cache_dir`.
    pub fn config(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.config.insert(key.into(), value.into());
        self
    }

    /// Reads devices' rates, measured earlier, from a file. Without it, planning uses the defaults by kind of device.
    pub fn rates_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.rates_file = Some(path.into());
        self
    }

    /// Starts threads, finds and loads plugins, and lists devices. A bad plugin is a line in the report
    /// ([`Runtime::report`]); it never stops the others.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for an impossible number of threads, processor, layer or
    /// plugin option; [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the system gives no threads.
    pub fn build(self) -> Result<Runtime> {
        Runtime::new(&self)
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
