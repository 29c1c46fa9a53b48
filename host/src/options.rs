//! Options as text, by key and value: for C, Python and files, which do not have this crate's structs.
//!
//! A key has the name of the command's flag for the same option. [`KEYS`] lists all of them.

use crate::buckets::BucketOptions;
use crate::compare::Tolerance;
use crate::dbx::Checks;
use crate::devices::{Choice, Policy, Requirements};
use crate::discover::SearchPaths;
use crate::feedback_file::MeasuredTimes;
use crate::import::Reading;
use crate::model::{LoadOptions, Model};
use crate::probe::{ProbeOptions, Probing};
use crate::runtime::{Runtime, RuntimeBuilder};
use crate::session::{Session, SessionOptions};
use devbay_core::device::Device;
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::kernel::Numerics;
use devbay_core::passes::Switches;
use devbay_core::plan::PlaceBy;
use devbay_core::plan::feedback::Feedback;
use devbay_core::plan::limits::Limits;
use devbay_core::trace::Recorder;
use devbay_core::units;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// The call that an option is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum For {
    /// Making a runtime.
    Runtime,
    /// Reading a model.
    Model,
    /// Making a session.
    Session,
}

/// An option.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// The call that it is for.
    pub of: For,
    /// Its values.
    pub values: &'static str,
    /// True if it may be set several times, and all values count; otherwise the last one does.
    pub is_list: bool,
    /// Its meaning.
    pub about: &'static str,
}

const fn key(name: &'static str, of: For, values: &'static str, about: &'static str) -> Key {
    Key { name, of, values, is_list: false, about }
}

const fn list(name: &'static str, of: For, values: &'static str, about: &'static str) -> Key {
    Key { name, of, values, is_list: true, about }
}

/// All options. Options of plugins come on top: their keys are PLUGIN.KEY.
pub const KEYS: &[Key] = {
    use For::{Model, Runtime, Session};
    &[
        list("plugin", Runtime, "PATH", "Load this plugin library or manifest."),
        key(
            "search",
            Runtime,
            "true|false",
            "Look for plugins in the user's and the system's folders and in DEVBAY_PLUGIN_PATH.",
        ),
        list("only", Runtime, "NAME", "Of the plugins that are found, load only those of these names."),
        key(
            "probe",
            Runtime,
            "refuse|try|trust",
            "Treatment of libraries whose SHA-256 is in no manifest. Those given by path are loaded, unless they are to be tried.",
        ),
        key(
            "probe-program",
            Runtime,
            "PATH",
            "The program that tries unknown libraries: `devbay` or `devbay-probe`.",
        ),
        key("probe-time", Runtime, "MILLISECONDS", "Time limit for trying a library; 10,000 by default."),
        key(
            "threads",
            Runtime,
            "NUMBER",
            "Threads for kernels, including the calling thread; 0, the default, for one per processor.",
        ),
        key("affinity", Runtime, "LIST", "Processors to pin the other threads to, such as 0,2,4."),
        list(
            "layer",
            Runtime,
            "NAME",
            "Put a layer between the host and every plugin, such as `validation`.",
        ),
        key("rates-file", Runtime, "PATH", "Read the measured rates of devices from this file."),
        key(
            "cache-dir",
            Runtime,
            "PATH",
            "Folder in which plugins keep the output of their drivers' compilers.",
        ),
        key("trace", Runtime, "true|false", "Record what the runtime's sessions do."),
        key(
            "checks",
            Model,
            "head|weights",
            "Checksums of a compiled model to check: those of its head, or also those of its weights.",
        ),
        key(
            "read",
            Model,
            "mapped|copied",
            "Map the model's files, or read them into memory, for files that may change during a run.",
        ),
        key(
            "device",
            Session,
            "auto|NAME|prefer:KIND",
            "The device. `auto`, the default, takes the first one that has kernels for the whole model, accelerators first.",
        ),
        key(
            "fallback",
            Session,
            "true|false",
            "Run nodes that the device has no kernel for on the processor; true by default.",
        ),
        list("pin", Session, "NODE=DEVICE", "Run a node, by its name in the model, on this device."),
        key("place", Session, "order|cost", "Place nodes by the order of devices, or by estimated times."),
        list("no-pass", Session, "PASS", "Switch off a pass; `all` for every pass."),
        key(
            "memory-budget",
            Session,
            "BYTES",
            "Limit on device memory for constants and the values of a run, such as 512M; constants beyond it are streamed.",
        ),
        key(
            "numerics",
            Session,
            "strict|tf32|f16|bf16",
            "Precision to which matrix products and convolutions may round their inputs.",
        ),
        key(
            "stream-priority",
            Session,
            "NUMBER",
            "Priority of the work on a device whose streams have priorities: above 0 is more urgent.",
        ),
        key("flush", Session, "true|false", "Submit launches during long tasks instead of at their end."),
        key(
            "narrow",
            Session,
            "FROM=TO",
            "Compute in a narrower float type where kernels support it, as in f32=f16.",
        ),
        key("feedback", Session, "FILE", "Plan with the launch times in this file."),
        list(
            "limit",
            Session,
            "NAME=VALUE",
            "Limit a model's resources: nodes, nesting, bytes, trips, planning-time.",
        ),
        key("plans-max", Session, "NUMBER", "Plans to keep, one per set of input shapes."),
        list(
            "bucket",
            Session,
            "NAME=SIZES",
            "Pad a named extent of inputs to the next of these sizes, as in seq=8,16,32 or seq=*8.",
        ),
        list("pad", Session, "INPUT=VALUE", "Padding value of an input; 0 by default."),
        key(
            "check-buckets",
            Session,
            "true|false",
            "Repeat the first run of each size without padding, and fail if results differ.",
        ),
        key("failover", Session, "true|false", "Continue on the runtime's other devices if a device fails."),
        key("runs-max", Session, "NUMBER", "Maximum number of runs in flight."),
        key(
            "seed",
            Session,
            "NUMBER",
            "Seed of the model's random numbers; by default the operating system draws one.",
        ),
    ]
};

/// Tolerance between results of padded and unpadded inputs: their sums have a different order.
const BUCKET_TOLERANCE: Tolerance = Tolerance { relative: 1e-4, absolute: 1e-5 };

/// Options by key, in the order in which they were set.
#[derive(Clone, Default, Debug)]
pub struct Options {
    pairs: Vec<(String, String)>,
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}

/// Returns the plugin and key of a plugin's option.
fn of_plugin(key: &str) -> Option<(&str, &str)> {
    key.split_once('.').filter(|(plugin, key)| !plugin.is_empty() && !key.is_empty())
}

impl Options {
    /// Sets an option.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a key that does not exist. Values are checked when they are used.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<String>) -> Result<()> {
        let key = key.into();
        if of_plugin(&key).is_none() && !KEYS.iter().any(|known| known.name == key) {
            let known: Vec<&str> = KEYS.iter().map(|known| known.name).collect();
            let known = known.join(", ");
            return Err(invalid(format!("there is no option `{key}`; there are {known}, and PLUGIN.KEY")));
        }
        self.pairs.push((key, value.into()));
        Ok(())
    }

    /// Returns whether an option was set.
    pub fn has(&self, key: &str) -> bool {
        self.last(key).is_some()
    }

    /// Refuses options that are for another call.
    fn check(&self, of: For) -> Result<()> {
        for (key, _) in &self.pairs {
            let (its, call) = match KEYS.iter().find(|known| known.name == *key) {
                None => (For::Runtime, "a runtime"),
                Some(Key { of, .. }) => match of {
                    For::Runtime => (*of, "a runtime"),
                    For::Model => (*of, "reading a model"),
                    For::Session => (*of, "a session"),
                },
            };
            if its != of {
                return Err(invalid(format!("option `{key}` is for {call}")));
            }
        }
        Ok(())
    }

    /// Returns all values of a key.
    fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs.iter().filter(move |(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Returns the last value of a key.
    fn last(&self, key: &str) -> Option<&str> {
        self.pairs.iter().rfind(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    fn wrong(key: &str, value: &str) -> Error {
        let values = KEYS.iter().find(|known| known.name == key).map_or("", |known| known.values);
        invalid(format!("option {key} is {values}, found `{value}`"))
    }

    /// Reads the last value of a key as one of several words.
    fn word<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Result<Option<T>> {
        let Some(value) = self.last(key) else { return Ok(None) };
        let found = words.iter().find(|(word, _)| *word == value);
        found.map(|(_, value)| Some(*value)).ok_or_else(|| Self::wrong(key, value))
    }

    fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.word(key, &[("true", true), ("false", false)])
    }

    fn parsed<T: FromStr>(&self, key: &str) -> Result<Option<T>> {
        self.last(key).map(|value| value.parse().map_err(|_| Self::wrong(key, value))).transpose()
    }

    /// Applies these options to a runtime's builder.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for values that are not the option's, and for options of other calls.
    pub fn runtime(&self, mut builder: RuntimeBuilder) -> Result<(RuntimeBuilder, Option<Recorder>)> {
        self.check(For::Runtime)?;
        builder = builder.plugins(self.all("plugin")).layers(self.all("layer"));
        if self.flag("search")? == Some(true) {
            builder = builder.search(SearchPaths::from_environment());
        }
        if self.last("only").is_some() {
            builder = builder.only(self.all("only"));
        }
        let program = self.last("probe-program");
        let probing = match self.last("probe") {
            None | Some("refuse") => Probing::Refused,
            Some("trust") => Probing::Trusted,
            Some("try") => {
                let program = program.ok_or_else(|| {
                    invalid("option probe=try needs probe-program: the path of `devbay` or `devbay-probe`")
                })?;
                let mut options = ProbeOptions::new(program);
                if let Some(limit) = self.parsed("probe-time")? {
                    options.limit = Duration::from_millis(limit);
                }
                Probing::Tried(options)
            }
            Some(other) => return Err(Self::wrong("probe", other)),
        };
        builder = builder.probe(probing);
        if let Some(threads) = self.parsed("threads")? {
            builder = builder.threads(threads);
        }
        if let Some(processors) = self.last("affinity") {
            let read: std::result::Result<Vec<usize>, _> =
                processors.split(',').map(|processor| processor.trim().parse()).collect();
            builder = builder.affinity(read.map_err(|_| Self::wrong("affinity", processors))?);
        }
        if let Some(path) = self.last("rates-file") {
            builder = builder.rates_file(path);
        }
        if let Some(path) = self.last("cache-dir") {
            builder = builder.config("cache_dir", path);
        }
        let recorder = self.flag("trace")?.unwrap_or_default().then(Recorder::default);
        builder = builder.trace(recorder.as_ref().map(Recorder::sink));
        for (key, value) in &self.pairs {
            if let Some((plugin, key)) = of_plugin(key) {
                builder = builder.option(plugin, key, value);
            }
        }
        Ok((builder, recorder))
    }

    /// Returns options for reading a model.
    ///
    /// # Errors
    /// As [`Options::runtime`].
    pub fn load(&self) -> Result<LoadOptions> {
        self.check(For::Model)?;
        let checks = self.word("checks", &[("head", Checks::Head), ("weights", Checks::Weights)])?;
        let reading = self.word("read", &[("mapped", Reading::Mapped), ("copied", Reading::Copied)])?;
        let default = LoadOptions::default();
        let (checks, reading) = (checks.unwrap_or(default.checks), reading.unwrap_or(default.reading));
        Ok(LoadOptions { checks, reading })
    }

    /// Makes a session of a model on the device that these options choose, traced by `recorder` if there is one.
    ///
    /// # Errors
    /// As [`Options::runtime`], [`Runtime::choose`] and [`Session::with_options`].
    pub fn session(
        &self,
        runtime: &Runtime,
        model: &Model,
        recorder: Option<&Recorder>,
    ) -> Result<(Session, Choice)> {
        self.check(For::Session)?;
        let policy = self.last("device").map(Policy::parse).transpose()?.unwrap_or_default();
        // For a named device, planning reports missing kernels in their own words.
        let program = Some(model.program()).filter(|_| !matches!(policy, Policy::Explicit(_)));
        let mut options = self.session_options(runtime)?;
        options.plans.trace = recorder.cloned();
        let choice = runtime.choose(&policy, &Requirements { program, ..Requirements::default() })?;
        if self.flag("fallback")? != Some(false) {
            let is_other =
                |other: &Arc<Device>| other.plugin().name() == "cpu" && !Arc::ptr_eq(other, &choice.device);
            options.others = runtime.devices().into_iter().filter(is_other).take(1).collect();
        }
        Ok((Session::with_options(model, &choice.device, options)?, choice))
    }

    /// Returns options of a session, without its other devices and its recorder.
    fn session_options(&self, runtime: &Runtime) -> Result<SessionOptions> {
        let mut options = SessionOptions::default();
        let plans = &mut options.plans;
        plans.passes = Switches::without(self.all("no-pass"))?;
        if let Some(budget) = self.last("memory-budget") {
            let bytes = units::bytes_from(budget).ok_or_else(|| Self::wrong("memory-budget", budget))?;
            plans.memory_budget = Some(bytes);
        }
        let numerics = [
            ("strict", Numerics::Strict),
            ("tf32", Numerics::Tf32),
            ("f16", Numerics::F16),
            ("bf16", Numerics::Bf16),
        ];
        plans.numerics = self.word("numerics", &numerics)?.unwrap_or(plans.numerics);
        plans.stream_priority = self.parsed("stream-priority")?.unwrap_or_default();
        plans.flushes = self.flag("flush")?.unwrap_or_default();
        plans.narrow = self.last("narrow").map(str::parse).transpose()?;
        plans.feedback = self.last("feedback").map(|path| feedback(Path::new(path), runtime)).transpose()?;
        for text in self.all("limit") {
            limit(&mut plans.limits, text)?;
        }
        if let Some(max) = self.parsed::<std::num::NonZeroUsize>("plans-max")? {
            plans.plans_max = max.get();
        }
        options.runs_max = self.parsed("runs-max")?;
        options.seed = self.parsed("seed")?;
        options.by =
            self.word("place", &[("order", PlaceBy::Order), ("cost", PlaceBy::Cost)])?.unwrap_or_default();
        for text in self.all("pin") {
            let (node, policy) = pin(text)?;
            let choice = runtime.choose(&policy, &Requirements::default())?;
            options.pins.push((node, choice.device));
        }
        options.failover = self.flag("failover")?.unwrap_or_default().then(|| runtime.devices());
        let check = self.flag("check-buckets")?.unwrap_or_default();
        options.buckets = buckets(self.all("bucket"), self.all("pad"), check)?;
        Ok(options)
    }
}

/// Reads a pin: a node by its name in the model, and the device that it must run on.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for anything but NODE=DEVICE.
pub fn pin(text: &str) -> Result<(String, Policy)> {
    // A node's name may contain any character; a device's has no `=`.
    let parsed = text.rsplit_once('=').filter(|(node, device)| !node.is_empty() && !device.is_empty());
    let (node, device) = parsed.ok_or_else(|| Options::wrong("pin", text))?;
    Ok((node.to_owned(), Policy::Explicit(device.to_owned())))
}

/// Sets a limit of a model's resources.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for anything but NAME=VALUE with a name that exists.
pub fn limit(limits: &mut Limits, text: &str) -> Result<()> {
    let (name, value) = text.split_once('=').ok_or_else(|| Options::wrong("limit", text))?;
    limits.set(name, value)
}

/// Reads buckets, as NAME=SIZES, and padding values, as INPUT=VALUE; None without any.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for anything else, and for padding or a check without a bucket.
pub fn buckets<'a>(
    sizes: impl Iterator<Item = &'a str>,
    padding: impl Iterator<Item = &'a str>,
    check: bool,
) -> Result<Option<BucketOptions>> {
    let mut buckets = BucketOptions { check: check.then_some(BUCKET_TOLERANCE), ..BucketOptions::default() };
    for text in sizes {
        let (name, sizes) = text.rsplit_once('=').ok_or_else(|| Options::wrong("bucket", text))?;
        buckets.sizes.push((name.to_owned(), sizes.parse()?));
    }
    for text in padding {
        let parsed = text.rsplit_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
        let (name, value): (&str, f64) = parsed.ok_or_else(|| Options::wrong("pad", text))?;
        buckets.padding.push((name.to_owned(), value));
    }
    if buckets.sizes.is_empty() && (check || !buckets.padding.is_empty()) {
        return Err(invalid("options pad and check-buckets need a bucket"));
    }
    Ok(Some(buckets).filter(|buckets| !buckets.sizes.is_empty()))
}

/// Reads measured times of launches for a runtime's devices, and warns about those of other devices.
///
/// # Errors
/// If the file cannot be read.
pub fn feedback(path: &Path, runtime: &Runtime) -> Result<Arc<Feedback>> {
    let keyed = |device: &Arc<Device>| (Arc::clone(device), runtime.rates_key(device));
    let devices: Vec<_> = runtime.devices().iter().map(keyed).collect();
    let (feedback, warnings) = MeasuredTimes::read(path)?.feedback(&devices);
    warnings.iter().for_each(|warning| tracing::warn!("{}: {warning}", path.display()));
    Ok(Arc::new(feedback))
}

#[cfg(test)]
mod tests {
    use super::{For, KEYS, Options};
    use crate::{ErrorKind, Model, Runtime};

    fn options(pairs: &[(&str, &str)]) -> Options {
        let mut options = Options::default();
        for (key, value) in pairs {
            options.set(*key, *value).expect("a key that exists");
        }
        options
    }

    const IDENTITY: &str = "devbay-program 1\nprogram \"identity\"(%x: f32[n]) {\n    %y: f32[n] = Neg@13(%x)\n    return %y\n}\n";

    /// Uses options as their call does.
    fn used(of: For, options: &Options) -> crate::Result<()> {
        let builder = Runtime::builder().threads(1).link(devbay_plugin_cpu::PLUGIN);
        match of {
            For::Runtime => options.runtime(builder)?.0.build().map(drop),
            For::Model => options.load().map(drop),
            For::Session => {
                let runtime = builder.build()?;
                options.session(&runtime, &Model::from_text(IDENTITY)?, None).map(drop)
            }
        }
    }

    #[test]
    fn every_option_is_read_by_its_call_and_refused_by_the_others() {
        for key in KEYS {
            // No option takes this value, but for those that are free text; those are refused where they are used.
            let wrong = options(&[(key.name, "\u{1}")]);
            let is_text = ["plugin", "only", "rates-file", "cache-dir", "probe-program", "probe-time"];
            let result = used(key.of, &wrong);
            assert_eq!(result.is_err(), !is_text.contains(&key.name), "{}: {result:?}", key.name);
            for other in [For::Runtime, For::Model, For::Session] {
                if other != key.of {
                    let error = used(other, &wrong).expect_err(key.name);
                    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                    assert!(error.text().starts_with(&format!("option `{}` is for", key.name)), "{error}");
                }
            }
        }
    }

    #[test]
    fn every_option_is_in_the_documentation() {
        let page = include_str!("../../docs/options.md");
        for key in KEYS {
            let (values, more) =
                (key.values.replace('|', "\\|"), if key.is_list { " May be set several times." } else { "" });
            let row = format!("| `{}` | {values} | {}{more} |", key.name, key.about);
            assert!(page.contains(&row), "docs/options.md lacks the row\n{row}");
        }
    }

    #[test]
    fn a_key_that_does_not_exist_is_refused_with_those_that_do() {
        let error = Options::default().set("devise", "cpu").expect_err("there is no such key");
        assert!(error.text().contains("device"), "{error}");
    }

    #[test]
    fn options_reach_the_session() {
        let runtime =
            Runtime::builder().threads(1).link(devbay_plugin_cpu::PLUGIN).build().expect("a runtime");
        let model = Model::from_text(IDENTITY).expect("a model");
        let set = options(&[("device", "cpu:0"), ("bucket", "n=*8"), ("pad", "x=1"), ("plans-max", "3")]);
        let (session, choice) = set.session(&runtime, &model, None).expect("a session");
        assert_eq!(choice.device.name(), "cpu:0");
        let x = crate::Tensor::from_elements(&[3], &[1.0f32, 2.0, 3.0]).expect("a tensor");
        let plan = session.plan_for(&[("x", &x)]).expect("a plan");
        assert_eq!(plan.inputs[0].shape[..], [8]);
        let y = session.run(&[("x", &x)]).expect("a run");
        assert_eq!(y[0].elements::<f32>(), Some(&[-1.0, -2.0, -3.0][..]));
    }
}
