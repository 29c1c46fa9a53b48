//! The plugin that is judged, and its devices as an application opens them.

use crate::verdict::{Outcome, Why, failed, not_run};
use devbay_host::internals::load::Library;
use devbay_host::internals::negotiate::{Entry, negotiate};
use devbay_host::{Device, Runtime};
use devbay_plugin_api::abi::version::MinorRange;
use devbay_plugin_api::sdk::export::LinkedPlugin;
use std::path::PathBuf;
use std::sync::Arc;

/// The plugin that is judged.
#[derive(Clone)]
pub enum Subject {
    /// A shared library.
    Library(PathBuf),
    /// A plugin that is part of the program.
    Linked(LinkedPlugin),
}

impl Subject {
    /// Its file, or its name.
    pub fn name(&self) -> String {
        match self {
            Self::Library(path) => path.display().to_string(),
            Self::Linked(linked) => linked.name().to_owned(),
        }
    }

    /// Its devices, which live as long as the runtime. There is at least one.
    pub(crate) fn devices(&self, options: &[(String, String)]) -> Outcome<(Runtime, Vec<Arc<Device>>)> {
        let (mut linked, mut plugins) = (Vec::new(), Vec::new());
        let name = match self {
            Self::Linked(plugin) => {
                linked.push(*plugin);
                plugin.name().to_owned()
            }
            Self::Library(path) => {
                plugins.push(path.clone());
                // Options are given by the plugin's name.
                let library = Library::open(path).or_else(|refusal| failed(refusal.reason))?;
                let agreement = negotiate(Entry::Library(&library), MinorRange::CURRENT);
                agreement.or_else(|refusal| failed(refusal.reason))?.about.name
            }
        };
        let options = options.iter().map(|(key, value)| (name.clone(), key.clone(), value.clone()));
        let runtime = Runtime::builder()
            .link_all(linked)
            .plugins(plugins)
            .options(options)
            .build()
            .or_else(|error| failed(error.to_string()))?;
        if let Some((_, refusal)) = runtime.report().refused().next() {
            return failed(refusal.reason.clone());
        }
        let devices = runtime.devices().to_vec();
        if devices.is_empty() {
            return not_run(Why::NoDevice, "the plugin has no device on this machine");
        }
        Ok((runtime, devices))
    }
}
