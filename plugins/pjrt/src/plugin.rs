//! The plugin: which libraries, which of them are opened, and their devices.

use crate::client::Client;
use crate::device::{PjrtDevice, own};
use crate::find::{self, Found, Named, Places};
use crate::library::Library;
use crate::machine::Machine;
use crate::probe::{NO_DEVICE, Probing, own_file};
use crate::program::Ahead;
use crate::topology::Topology;
use crate::verdicts::{Verdict, Verdicts};
use devbay_plugin_api::sdk::{
    About, Error, Executable, GraphRequest, Host, Kernel, LogLevel, Options, Plugin, PluginOption, Result,
};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

/// One instance of the plugin.
pub struct Pjrt {
    host: Host,
    found: Found,
    judge: Judge,
    devices: OnceLock<Result<Vec<PjrtDevice>>>,
}

impl Plugin for Pjrt {
    type Device = PjrtDevice;

    const ABOUT: About = About {
        name: "pjrt",
        vendor: "devbay",
        version: env!("CARGO_PKG_VERSION"),
        profiles: &["base", "compiler"],
        options: &[
            PluginOption {
                key: "libraries",
                default: "",
                doc: "NAME:PATH[,NAME:PATH...]: PJRT libraries, or a JSON list of what manifests hold; without it those \
                      of DEVBAY_PJRT_PLUGINS, manifests, PJRT_NAMES_AND_LIBRARY_PATHS and packages installed for JAX",
            },
            PluginOption {
                key: "manifests",
                default: "",
                doc: "folders of manifests *.pjrt.json, separated as in PATH; without it those of DEVBAY_PJRT_MANIFESTS",
            },
            PluginOption {
                key: "site_packages",
                default: "",
                doc: "folders of Python packages, separated as in PATH, or off; without it the one that the plugin is \
                      installed in, and those of VIRTUAL_ENV, CONDA_PREFIX and PYTHONPATH",
            },
            PluginOption {
                key: "probe",
                default: "",
                doc: "the program that tries unknown libraries first, devbay or devbay-probe, or off; without it \
                      DEVBAY_PROBE, then the running program, one beside it, or that of the plugin's Python environment",
            },
            PluginOption {
                key: "probe_ms",
                default: "",
                doc: "milliseconds that a library may take in its probe; without it 4000, or 8000 on a machine with \
                      accelerators",
            },
            PluginOption {
                key: "reprobe",
                default: "off",
                doc: "on: libraries are probed anew, whatever was found before",
            },
        ],
        ..About::DEFAULT
    };

    const KERNELS: &'static [Kernel<PjrtDevice>] = &[];

    fn create(host: Host, options: &Options<'_>) -> Result<Self> {
        let trusts_variables = !elevated();
        let variable = |name: &str| std::env::var_os(name).filter(|_| trusts_variables);
        let library = own_file();
        let found = find::find(&Places {
            libraries: options.get("libraries"),
            manifests: options.get("manifests"),
            site_packages: options.get("site_packages"),
            own: library.as_deref(),
            variable: &variable,
        })?;
        if found.libraries.is_empty() {
            let text =
                format!("no PJRT library was named or found: {} is NAME:PATH[,NAME:PATH...]", find::VARIABLE);
            let reasons = std::iter::once(&text).chain(&found.left_out);
            return Err(Error::unavailable(reasons.map(String::as_str).collect::<Vec<_>>().join("; ")));
        }
        let reprobe = match options.get("reprobe") {
            "on" => true,
            "off" => false,
            other => return Err(Error::invalid(format!("reprobe is on or off, found {other}"))),
        };
        let machine = Machine::here();
        let probing = Probing::choose(options.get("probe"), options.get("probe_ms"), &variable, &machine)
            .map_err(Error::invalid)?;
        let cache = host.config("cache_dir").map(PathBuf::from).or_else(|| cache_folder(&variable));
        let verdicts = cache.map(|cache| Verdicts::new(&cache, machine));
        Ok(Self { host, found, judge: Judge { probing, verdicts, reprobe }, devices: OnceLock::new() })
    }

    const AHEAD: bool = true;

    /// `LIBRARY:TOPOLOGY`, such as `tpu:v5e:2x2`.
    fn compile_ahead(
        &self,
        target: &str,
        request: &GraphRequest<'_>,
    ) -> Result<Box<dyn Executable<PjrtDevice>>> {
        let known = || {
            let names: Vec<&str> = self.found.libraries.iter().map(|library| library.name.as_str()).collect();
            names.join(", ")
        };
        let (name, topology) = target
            .split_once(':')
            .ok_or_else(|| Error::unsupported(format!("a target is LIBRARY:TOPOLOGY, found {target}")))?;
        let library = self.found.libraries.iter().find(|library| library.name == name).ok_or_else(|| {
            Error::unsupported(format!("there is no PJRT library {name}, there are {}", known()))
        })?;
        self.judge
            .admits_compiler(library)
            .map_err(|reason| Error::unavailable(format!("{name}: {reason}")))?;
        let topology = Topology::new(opened(library).map_err(own)?, topology).map_err(own)?;
        Ok(Box::new(Ahead::new(&topology, request)?))
    }

    fn devices(&self) -> Result<Vec<&PjrtDevice>> {
        let devices = self.devices.get_or_init(|| self.open());
        devices.as_ref().map(|devices| devices.iter().collect()).map_err(Clone::clone)
    }
}

/// Returns whether the process has rights that its user lacks, so that the user's variables name no code for it.
fn elevated() -> bool {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: it reads a number that the kernel gave this process at its start.
        unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
    }
    #[cfg(not(target_os = "linux"))]
    {
        false
    }
}

/// The host's own default for `cache_dir`. A host that says nothing, such as the one in a probing process, so finds the
/// verdicts of the others.
fn cache_folder(variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    folder("DEVBAY_CACHE_DIR")
        .or_else(|| folder("XDG_CACHE_HOME").map(|cache| cache.join("devbay")))
        .or_else(|| folder("HOME").map(|home| home.join(".cache/devbay")))
}

/// Age below which a finding is not sought again, whatever is asked for: a host that probes this plugin before it
/// loads it has just had these libraries probed.
const JUST_NOW: Duration = Duration::from_secs(10);

/// Judge of which libraries are opened in this process.
pub struct Judge {
    /// Way to try unknown libraries.
    pub probing: Probing,
    /// Verdicts on libraries; `None` where nothing is kept.
    pub verdicts: Option<Verdicts>,
    /// True if what is known does not count, unless it was found this moment.
    pub reprobe: bool,
}

impl Judge {
    /// Checks that a library may be opened in this process; probes it if nothing is known of it. Blocks as long as the
    /// probe takes.
    ///
    /// # Errors
    /// In words, why it is left out.
    pub fn admits(&self, library: &Named) -> std::result::Result<(), String> {
        let Some((verdict, age)) = self.judge(library)? else { return Ok(()) };
        admitted(&verdict).map_err(|reason| {
            if age < JUST_NOW {
                return reason;
            }
            let age = words(age);
            format!("{reason}; found {age} ago, --plugin-option pjrt.reprobe=on tries again")
        })
    }

    /// The verdict on a library and its age, if there is one; None for a library that is opened without.
    ///
    /// # Errors
    /// The reason, in words, why there can be no verdict.
    fn judge(&self, library: &Named) -> std::result::Result<Option<(Verdict, Duration)>, String> {
        // A path that leads to no file is no danger, and the loader's words about it are the best.
        let is_path = library.path.components().count() > 1;
        if self.probing == Probing::Off || is_path && !library.path.exists() {
            return Ok(None);
        }
        let now = SystemTime::now();
        let known = self.verdicts.as_ref().and_then(|verdicts| verdicts.find(library, now));
        if let Some(known) = known.filter(|(_, age)| !self.reprobe || *age < JUST_NOW) {
            return Ok(Some(known));
        }
        match &self.probing {
            Probing::Missing(_) if library.by_person => Ok(None),
            Probing::Missing(reason) => Err(format!("not probed: {reason}")),
            Probing::By(prober) => {
                let verdict = prober.probe(library).map_err(|error| error.to_string())?;
                if let Some(verdicts) = &self.verdicts {
                    // Without a file the only loss is another probe at the next start.
                    let _ = verdicts.keep(library, &verdict, now);
                }
                Ok(Some((verdict, Duration::ZERO)))
            }
            Probing::Off => Ok(None),
        }
    }

    /// As [`admits`](Self::admits), for a library whose compiler alone is wanted: that it has no device is no reason. It is
    /// opened as in its probe, so what is set there has to be set here.
    ///
    /// # Errors
    /// In words, why it is left out.
    pub fn admits_compiler(&self, library: &Named) -> std::result::Result<(), String> {
        if let Probing::By(prober) = &self.probing
            && let Some((name, value)) =
                prober.environment.iter().find(|(name, _)| std::env::var_os(name).is_none())
        {
            return Err(format!("{name}={value} has to be set before this process starts"));
        }
        match self.judge(library)? {
            Some((Verdict::Refused(_), _)) | None => Ok(()),
            Some((verdict, _)) => admitted(&verdict),
        }
    }

    /// [`admits`](Self::admits) of several libraries side by side, in their order.
    pub fn admit_all(&self, libraries: &[Named]) -> Vec<std::result::Result<(), String>> {
        std::thread::scope(|scope| {
            let admit = |library| {
                let body = move || self.admits(library);
                std::thread::Builder::new().name("pjrt probe".into()).spawn_scoped(scope, body)
            };
            let threads: Vec<_> = libraries.iter().map(admit).collect();
            let join = |thread: std::io::Result<std::thread::ScopedJoinHandle<'_, _>>| match thread {
                Ok(thread) => {
                    thread.join().unwrap_or_else(|_| Err("not probed: the probe panicked".to_owned()))
                }
                Err(error) => Err(format!("not probed: {error}")),
            };
            threads.into_iter().map(join).collect()
        })
    }
}

fn admitted(verdict: &Verdict) -> std::result::Result<(), String> {
    match verdict {
        Verdict::Devices(_) => Ok(()),
        Verdict::Refused(reason) | Verdict::Failed(reason) | Verdict::Unanswered(reason) => {
            Err(reason.clone())
        }
    }
}

/// An age for people.
fn words(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

impl Pjrt {
    /// Opens the libraries that are admitted; one that does not work is said and left out.
    ///
    /// # Errors
    /// Unavailable with every reason if there is no device.
    fn open(&self) -> Result<Vec<PjrtDevice>> {
        let mut devices = Vec::new();
        let mut left_out = self.found.left_out.clone();
        let admitted = self.judge.admit_all(&self.found.libraries);
        for (library, admitted) in self.found.libraries.iter().zip(admitted) {
            match admitted.and_then(|()| open(library).map_err(|error| error.to_string())) {
                Ok(client) if client.devices().is_empty() => {
                    left_out.push(format!("{}: it has no device", library.name));
                }
                Ok(client) => {
                    let own = client.devices().into_iter();
                    devices.extend(own.map(|device| PjrtDevice::new(&library.name, device)));
                }
                Err(reason) => left_out.push(format!("{}: {reason}", library.name)),
            }
        }
        if devices.is_empty() {
            return Err(Error::unavailable(format!("{NO_DEVICE}{}", left_out.join("; "))));
        }
        for reason in left_out {
            self.host.log(LogLevel::Warn, &format!("a PJRT library is left out: {reason}"));
        }
        Ok(devices)
    }
}

/// A library that was admitted.
fn opened(library: &Named) -> crate::error::Result<&'static Library> {
    // SAFETY: a person named the library to be run in this process, or it came through a probe.
    unsafe { Library::open(&library.path) }
}

/// A client of a library that was admitted.
fn open(library: &Named) -> crate::error::Result<Client> {
    Client::create(opened(library)?, &library.attributes())
}

devbay_plugin_api::static_plugin!(Pjrt);

pub use devbay_entry::PLUGIN;
#[cfg(feature = "entry")]
devbay_plugin_api::export_symbol!();
