//! Options that commands share, and the runtime that they create.

use crate::config;
use crate::exit::usage;
use crate::layers::LayerArguments;
use crate::shapes::ShapeArguments;
use crate::tell;
use anyhow::Result;
use clap::Args;
use devbay_host::internals::auto::{self, Allowed, Auto};
use devbay_host::internals::core::kernel::Numerics;
use devbay_host::internals::core::passes::Switches;
use devbay_host::internals::core::passes::narrow_dtypes::Narrowing;
use devbay_host::internals::core::program::Program;
use devbay_host::internals::core::units;
use devbay_host::internals::options;
use devbay_host::internals::rates_file;
use devbay_host::trace::Recorder;
use devbay_host::{
    Checks, Choice, Device, Error, ErrorKind, LoadOptions, Model, Outcome, Policy, ProbeOptions, Probing,
    Reading, Requirements, Runtime, RuntimeBuilder, SearchPaths, Session, SessionOptions, TensorType,
};
use devbay_plugin_api::abi::version::MinorRange;
use devbay_plugin_api::sdk::export::LinkedPlugin;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The plugin whose device runs nodes that the chosen one cannot.
const FALLBACK: &str = "cpu";

/// Arguments that select plugins and devices.
#[derive(Args, Clone)]
pub struct PluginArguments {
    /// Also load this plugin library or manifest; without --device, its first device is used
    #[arg(long, value_name = "PATH")]
    pub plugin: Vec<PathBuf>,
    /// Set an option of a plugin
    #[arg(long, value_name = "NAME.KEY=VALUE")]
    pub plugin_option: Vec<String>,
    /// Also look for plugins in ./.devbay/plugins.d
    #[arg(long)]
    pub project: bool,
    /// Load libraries without a manifest that has their SHA-256 directly, without trying them in a child process first
    #[arg(long)]
    pub no_probe: bool,
    /// Number of threads for kernels, including the calling thread; 0 for one per processor, which is the default
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Processors to pin the other threads to, such as 0,2,4
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub affinity: Option<Vec<usize>>,
    /// True for `devbay bench --simulate`: plans and kernels are for that number of threads, and the caller alone runs them.
    #[arg(skip)]
    pub simulated: bool,
    #[command(flatten)]
    pub layers: LayerArguments,
}

/// Arguments that select the device of a model.
#[derive(Args, Clone)]
pub struct DeviceArguments {
    /// Device: `auto` for the lowest estimated time, a name (`cpu:0`, `cpu` for the first, `cpu/ID`), or `prefer:KIND`
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Run a node, by its name in the model, on this device
    #[arg(long, value_name = "NODE=DEVICE")]
    pub pin: Vec<String>,
    /// Fail if the device has no kernel for a node, instead of running that node on the processor
    #[arg(long)]
    pub no_fallback: bool,
    /// Switch off a pass, by its name in `devbay inspect MODEL --passes`; `all` for every pass
    #[arg(long, value_name = "PASS")]
    pub no_pass: Vec<String>,
    /// Limit on device memory for constants and the values of a run, in bytes, such as 8000000, 512K, 512M or 2G (K, M and G
    /// are powers of 1024). Constants beyond it are streamed to the device in each run, overlapped with compute
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub memory_budget: Option<u64>,
    /// Precision to which matrix products and convolutions may round their inputs, for speed; they accumulate in 32 bits
    #[arg(long, value_enum, value_name = "TYPE", default_value = "strict")]
    pub numerics: NumericsName,
    /// Priority of this work on a device whose streams have priorities: above 0 is more urgent, below 0 less
    #[arg(long, value_name = "NUMBER", default_value_t = 0, allow_negative_numbers = true)]
    pub stream_priority: i32,
    /// Submit launches during long tasks instead of at their end, on devices that batch launches; each submission has a cost
    /// in the driver
    #[arg(long)]
    pub flush: bool,
    /// Compute in a narrower float type where kernels support it, as in f32=f16: less memory, less precision. Inputs and
    /// outputs keep their types
    #[arg(long, value_name = "FROM=TO")]
    pub narrow: Option<Narrowing>,
    /// Plan with launch times from this file, which `devbay bench --cost` writes; unknown times are estimated
    #[arg(long, value_name = "FILE")]
    pub feedback: Option<PathBuf>,
    /// Read the model's files into memory instead of mapping them, for files that may change during the run
    #[arg(long)]
    pub no_map: bool,
    /// Limit the model's resources: nodes, nesting, bytes (of a run, such as 2G), trips (of a loop), planning-time
    /// (milliseconds)
    #[arg(long, value_name = "NAME=VALUE", value_delimiter = ',')]
    pub limit: Vec<String>,
    /// Continue on the other devices if a device fails during the run
    #[arg(long)]
    pub failover: bool,
    /// Seed of the model's random numbers; without it, the operating system draws one
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Explain the choice of the device
    #[arg(long)]
    pub explain: bool,
    #[command(flatten)]
    pub shapes: ShapeArguments,
}

/// Types that inputs of matrix products may be rounded to.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum NumericsName {
    /// Inputs are not rounded
    Strict,
    /// f32 with ten bits of mantissa
    Tf32,
    /// 16-bit floats
    F16,
    /// 16-bit floats with the range of f32
    Bf16,
}

impl From<NumericsName> for Numerics {
    fn from(name: NumericsName) -> Self {
        match name {
            NumericsName::Strict => Self::Strict,
            NumericsName::Tf32 => Self::Tf32,
            NumericsName::F16 => Self::F16,
            NumericsName::Bf16 => Self::Bf16,
        }
    }
}

/// A runtime, and its device for a model.
pub struct Chosen {
    /// The plugins and devices.
    pub runtime: Runtime,
    /// The requested device; with `auto` the first one, until estimates decide.
    pub device: Arc<Device>,
    /// True if estimates decide.
    is_auto: bool,
}

/// Returns the version of the command, with the ABI versions that it speaks.
pub fn version() -> String {
    format!("{} (plugin ABI {})", env!("CARGO_PKG_VERSION"), MinorRange::CURRENT)
}

/// Returns the plugins that are part of the command.
pub fn linked() -> Vec<LinkedPlugin> {
    vec![
        #[cfg(feature = "cpu")]
        devbay_plugin_cpu::PLUGIN,
    ]
}

impl PluginArguments {
    /// Creates the runtime that the options describe; a policy that names a plugin loads only that one.
    ///
    /// # Errors
    /// For invalid options.
    pub fn runtime(&self, policy: Option<&Policy>) -> Result<Runtime> {
        self.runtime_with(policy, &[], None)
    }

    /// Creates a runtime as [`PluginArguments::runtime`] does, with the plugin `name`, which may compile without having a
    /// device.
    ///
    /// # Errors
    /// For invalid options.
    pub fn runtime_for_compiling(&self, name: &str) -> Result<Runtime> {
        let (compiler, kernels) = (Policy::Explicit(name.to_owned()), Policy::Explicit(FALLBACK.to_owned()));
        let options = self.runtime_options(Some(&compiler), &[kernels], None)?;
        Ok(options.without_devices().build()?)
    }

    /// Creates a runtime as [`PluginArguments::runtime`] does, with the plugins that other policies name, and a receiver of
    /// their marks.
    fn runtime_with(
        &self,
        policy: Option<&Policy>,
        others: &[Policy],
        trace: Option<&Recorder>,
    ) -> Result<Runtime> {
        Ok(self.runtime_options(policy, others, trace)?.build()?)
    }

    /// Returns the folders to search for plugins.
    ///
    /// # Errors
    /// If the current folder is unknown; for a wrong configuration file.
    pub fn search(&self) -> Result<SearchPaths> {
        let mut search = SearchPaths::from_environment();
        let (folders, files) =
            config::get()?.plugins.iter().cloned().partition(|path: &PathBuf| path.is_dir());
        search.library_folders.extend::<Vec<_>>(folders);
        search.files = files;
        // The command of the Python package finds the plugins that are installed beside it.
        if let Ok(program) = std::env::current_exe() {
            search = search.with_packages_of(&program);
        }
        Ok(match self.project {
            true => search.with_project(&std::env::current_dir()?),
            false => search,
        })
    }

    fn runtime_options(
        &self,
        policy: Option<&Policy>,
        others: &[Policy],
        trace: Option<&Recorder>,
    ) -> Result<RuntimeBuilder> {
        let mut plugin_options = Vec::new();
        for text in &self.plugin_option {
            let parsed = text.split_once('=').and_then(|(name, value)| Some((name.split_once('.')?, value)));
            let Some(((plugin, key), value)) = parsed else {
                return Err(usage(format!("--plugin-option is NAME.KEY=VALUE, found {text}")));
            };
            plugin_options.push((plugin.to_owned(), key.to_owned(), value.to_owned()));
        }
        let search = self.search()?;
        let rates_file = rates_file::path_from_environment();
        // Plugins keep the output of their drivers' compilers beside the rates.
        let cache_dir = rates_file.as_ref().and_then(|file| file.parent()).and_then(|dir| dir.to_str());
        let probe = match std::env::current_exe() {
            _ if self.no_probe => Probing::Trusted,
            Ok(program) => Probing::Tried(ProbeOptions::new(program)),
            Err(_) => Probing::Refused,
        };
        let mut builder = Runtime::builder()
            .threads(self.threads.or(config::get()?.threads).unwrap_or(0))
            .affinity(self.affinity.clone())
            .link_all(linked())
            .plugins(&self.plugin)
            .search(search)
            .options(plugin_options)
            .probe(probe)
            .layers(self.layers.names())
            .violations(self.layers.report.clone())
            .trace(trace.map(Recorder::sink));
        if self.simulated {
            builder = builder.simulated();
        }
        if let Some(plugin) = policy.and_then(Policy::plugin) {
            builder = builder.only(std::iter::once(plugin).chain(others.iter().filter_map(Policy::plugin)));
        }
        if let Some(dir) = cache_dir {
            builder = builder.config("cache_dir", dir);
        }
        if let Some(file) = &rates_file {
            builder = builder.rates_file(file);
        }
        Ok(builder)
    }
}

impl DeviceArguments {
    /// Returns the policy of `--device`, else that of the configuration file; None if neither says. A plugin that was named
    /// with `--plugin` wins over the file.
    ///
    /// # Errors
    /// As [`Policy::parse`]; for a wrong configuration file.
    pub fn policy(&self, plugins: &PluginArguments) -> Result<Option<Policy>> {
        let device = match &self.device {
            None if plugins.plugin.is_empty() => config::get()?.device.as_deref(),
            device => device.as_deref(),
        };
        Ok(device.map(Policy::parse).transpose()?)
    }

    /// Parses `--pin`.
    fn pins(&self) -> Result<Vec<(String, Policy)>> {
        Ok(self.pin.iter().map(|text| options::pin(text)).collect::<devbay_host::Result<_>>()?)
    }

    /// Reads the file of a model that is a program, for commands that plan it as a whole.
    ///
    /// # Errors
    /// As [`Model::load_with`]; [`ErrorKind::UnsupportedModel`] for one with strings, sequences, optionals or maps.
    pub fn load(&self, path: &Path, checks: Checks) -> Result<Model> {
        let model = self.load_any(path, checks)?;
        if model.has_values() {
            let text = "the model has strings, sequences, optionals or maps, so it has no plan of the whole; \
                `devbay run` runs it and `devbay inspect` shows its segments";
            return Err(Error::new(ErrorKind::UnsupportedModel, text).in_file(path.display()).into());
        }
        Ok(model)
    }

    /// Reads the file of any model.
    ///
    /// # Errors
    /// As [`Model::load_with`].
    pub fn load_any(&self, path: &Path, checks: Checks) -> Result<Model> {
        let reading = if self.no_map { Reading::Copied } else { Reading::Mapped };
        Ok(Model::load_with(path, LoadOptions { checks, reading })?)
    }

    /// Creates a session for a model with [`DeviceArguments::session_options`].
    ///
    /// # Errors
    /// As [`DeviceArguments::session_options`] and [`Session::with_options`].
    pub fn session(
        &self,
        chosen: &Chosen,
        model: &Model,
        types: &[TensorType],
        trace: Option<&Recorder>,
    ) -> Result<(Session, Option<Auto>)> {
        let (device, options, auto) = self.session_options(chosen, model, types, trace)?;
        Ok((Session::with_options(model, &device, options)?, auto))
    }

    /// Returns the device of a session for a model, and its options: pins, fallback devices, and the recorder of its trace.
    /// Without a given device, chooses the cheapest of several for inputs of these types, in the model's order.
    ///
    /// # Errors
    /// For a pin to a missing device; as [`auto::choose`].
    pub fn session_options(
        &self,
        chosen: &Chosen,
        model: &Model,
        types: &[TensorType],
        trace: Option<&Recorder>,
    ) -> Result<(Arc<Device>, SessionOptions, Option<Auto>)> {
        let (runtime, mut device) = (&chosen.runtime, &chosen.device);
        let mut options = SessionOptions::default();
        options.plans.trace = trace.cloned();
        options.plans.passes = Switches::without(self.no_pass.iter().map(String::as_str))?;
        options.plans.memory_budget = self.memory_budget;
        options.plans.numerics = self.numerics.into();
        options.plans.stream_priority = self.stream_priority;
        options.plans.flushes = self.flush;
        options.plans.narrow = self.narrow;
        let feedback = self.feedback.as_deref().map(|path| options::feedback(path, runtime));
        options.plans.feedback = feedback.transpose()?;
        for text in &self.limit {
            options::limit(&mut options.plans.limits, text)?;
        }
        self.shapes.apply(&mut options)?;
        options.seed = self.seed;
        for (node, policy) in self.pins()? {
            let choice = runtime.choose(&policy, &Requirements::default())?;
            options.pins.push((node, choice.device));
        }
        if self.failover {
            options.failover = Some(runtime.devices());
        }
        let is_complete = types.len() == model.program().given_inputs().len();
        let auto = if chosen.is_auto && is_complete && runtime.devices().len() > 1 {
            let allowed = Allowed { pins: &options.pins, whole: self.no_fallback };
            Some(auto::choose(model, &runtime.devices(), types, allowed, &options.plans)?)
        } else {
            None
        };
        if let Some(auto) = &auto {
            let placement = auto.placement();
            device = &placement.device;
            options.others.clone_from(&placement.others);
            options.by = placement.by;
            if self.explain {
                explain_estimates(auto);
            }
        } else if !self.no_fallback {
            let is_other =
                |other: &Arc<Device>| !Arc::ptr_eq(other, device) && other.plugin().name() == FALLBACK;
            options.others = runtime.devices().into_iter().filter(is_other).take(1).collect();
        }
        Ok((Arc::clone(device), options, auto))
    }

    /// Starts a runtime, with `trace` as the receiver of its plugins' marks, and chooses the device for a program.
    ///
    /// # Errors
    /// As [`Runtime::choose`]; for a named plugin that was refused, its refusal.
    pub fn choose(
        &self,
        plugins: &PluginArguments,
        program: &Program,
        trace: Option<&Recorder>,
    ) -> Result<Chosen> {
        let policy = self.policy(plugins)?;
        let mut others: Vec<Policy> = self.pins()?.into_iter().map(|(_, policy)| policy).collect();
        if !self.no_fallback || self.failover {
            others.push(Policy::Explicit(FALLBACK.to_owned()));
        }
        let runtime = plugins.runtime_with(policy.as_ref(), &others, trace)?;
        let policy = match policy {
            Some(policy) => policy,
            None => first_of_named(&runtime, plugins)?.unwrap_or_default(),
        };
        let is_auto = policy == Policy::Auto;
        let requirements = match policy {
            // For a named device, planning reports missing kernels in their own words. For several devices the estimates do.
            Policy::Explicit(_) => Requirements::default(),
            Policy::Auto if runtime.devices().len() > 1 => Requirements::default(),
            _ => Requirements { program: Some(program), ..Requirements::default() },
        };
        let choice = runtime.choose(&policy, &requirements)?;
        if self.explain && !(is_auto && runtime.devices().len() > 1) {
            explain(&choice);
        }
        Ok(Chosen { runtime, device: choice.device, is_auto })
    }
}

/// Parses a number of bytes with an optional unit.
fn bytes(text: &str) -> std::result::Result<u64, String> {
    units::bytes_from(text)
        .ok_or_else(|| "expected a number of bytes such as 8000000, 512K, 512M or 2G".to_owned())
}

/// Returns the first device of the first plugin that was named with `--plugin`.
fn first_of_named(runtime: &Runtime, plugins: &PluginArguments) -> Result<Option<Policy>> {
    if plugins.plugin.is_empty() {
        return Ok(None);
    }
    let named = runtime.report().plugins.iter().find(|plugin| plugin.origin == "named explicitly");
    match named.map(|plugin| (plugin, &plugin.outcome)) {
        Some((plugin, Outcome::Refused(refusal))) => {
            let path = plugin.library.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
            Err(Error::new(ErrorKind::Refused, format!("the plugin was refused: {refusal}"))
                .in_file(path)
                .into())
        }
        Some((plugin, Outcome::Loaded { n_devices: 0, .. })) => Err(Error::new(
            ErrorKind::NotFound,
            format!("plugin {} has no device on this machine", plugin.name.as_deref().unwrap_or("?")),
        )
        .into()),
        Some((plugin, Outcome::Loaded { .. })) => {
            Ok(plugin.name.as_ref().map(|name| Policy::Explicit(format!("{name}:0"))))
        }
        _ => Ok(None),
    }
}

/// Prints the estimated time of each way to run the model, on standard error.
fn explain_estimates(auto: &Auto) {
    for (i, candidate) in auto.candidates.iter().enumerate() {
        let mark = if i == auto.chosen { "chosen " } else { "not    " };
        let (title, time) = (auto::title(candidate), auto::time(candidate));
        tell!("{mark} {title}: {time}");
    }
}

/// Prints why a device was chosen, on standard error.
fn explain(choice: &Choice) {
    let width = choice.verdicts.iter().map(|verdict| verdict.device.len()).max().unwrap_or(0);
    for verdict in &choice.verdicts {
        let mark = if verdict.chosen { "chosen " } else { "not    " };
        tell!("{mark} {:<width$}  {}", verdict.device, verdict.reason);
    }
}
