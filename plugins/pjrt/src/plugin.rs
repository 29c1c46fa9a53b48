//! The plugin: which libraries, and their devices.

use crate::client::Client;
use crate::device::PjrtDevice;
use crate::library::Library;
use devbay_plugin_api::sdk::{About, Error, Host, Kernel, LogLevel, Options, Plugin, PluginOption, Result};
use std::path::PathBuf;
use std::sync::OnceLock;

/// Where libraries are named: ours, and JAX's.
const VARIABLES: [&str; 2] = ["DEVBAY_PJRT_PLUGINS", "PJRT_NAMES_AND_LIBRARY_PATHS"];

/// One instance of the plugin.
pub struct Pjrt {
    host: Host,
    libraries: Vec<(String, PathBuf)>,
    devices: OnceLock<Result<Vec<PjrtDevice>>>,
}

impl Plugin for Pjrt {
    type Device = PjrtDevice;

    const ABOUT: About = About {
        name: "pjrt",
        vendor: "devbay",
        version: env!("CARGO_PKG_VERSION"),
        profiles: &["compiler"],
        options: &[PluginOption {
            key: "libraries",
            default: "",
            doc: "NAME:PATH[,NAME:PATH...]: PJRT libraries; without it those of DEVBAY_PJRT_PLUGINS, then \
                  PJRT_NAMES_AND_LIBRARY_PATHS",
        }],
        ..About::DEFAULT
    };

    const KERNELS: &'static [Kernel<PjrtDevice>] = &[];

    fn create(host: Host, options: &Options<'_>) -> Result<Self> {
        let given = match options.get("libraries") {
            "" => VARIABLES.iter().find_map(|name| std::env::var(name).ok()).unwrap_or_default(),
            given => given.to_owned(),
        };
        let libraries = parse(&given)?;
        if libraries.is_empty() {
            let names = VARIABLES.join(" or ");
            return Err(Error::unavailable(format!(
                "no PJRT library was named: {names} is NAME:PATH[,NAME:PATH...]"
            )));
        }
        Ok(Self { host, libraries, devices: OnceLock::new() })
    }

    fn devices(&self) -> Result<Vec<&PjrtDevice>> {
        let devices = self.devices.get_or_init(|| self.open());
        devices.as_ref().map(|devices| devices.iter().collect()).map_err(Clone::clone)
    }
}

/// `NAME:PATH`, separated by commas.
fn parse(text: &str) -> Result<Vec<(String, PathBuf)>> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let part = |part: &str| {
        let (name, path) =
            part.split_once(':')
                .filter(|(name, path)| !name.is_empty() && !path.is_empty())
                .ok_or_else(|| Error::invalid(format!("a PJRT library is NAME:PATH, found {part}")))?;
        Ok((name.to_owned(), PathBuf::from(path)))
    };
    parts.map(part).collect()
}

impl Pjrt {
    /// Opens all libraries; one that does not work is said and left out.
    ///
    /// # Errors
    /// Unavailable with every reason if there is no device.
    fn open(&self) -> Result<Vec<PjrtDevice>> {
        let mut devices = Vec::new();
        let mut refused = Vec::new();
        for (name, path) in &self.libraries {
            // SAFETY: the user named the library to be run in this process.
            let client = unsafe { Library::open(path) }.and_then(|library| Client::create(library, &[]));
            match client {
                Ok(client) => {
                    devices.extend(client.devices().into_iter().map(|device| PjrtDevice::new(name, device)));
                }
                Err(error) => refused.push(format!("{name}: {error}")),
            }
        }
        if devices.is_empty() {
            return Err(Error::unavailable(format!("no PJRT library has a device; {}", refused.join("; "))));
        }
        for reason in refused {
            self.host.log(LogLevel::Warn, &format!("a PJRT library is left out: {reason}"));
        }
        Ok(devices)
    }
}

devbay_plugin_api::static_plugin!(Pjrt);
#[cfg(feature = "entry")]
devbay_plugin_api::export_symbol!();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_named_with_their_paths() {
        let parsed = parse("a:/x/a.so, b:/y:z/b.so").expect("two libraries");
        assert_eq!(parsed, [("a".to_owned(), "/x/a.so".into()), ("b".to_owned(), "/y:z/b.so".into())]);
        assert!(parse("").expect("none").is_empty());
        for wrong in ["/x/a.so", ":/x/a.so", "a:"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
