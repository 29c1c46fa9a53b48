//! Layers: code that speaks the ABI on both sides and stands between host and plugin.
//!
//! A layer takes the next plugin's data (`PluginInfo` with its `PluginTable`) and shows its own in its place. The host
//! then negotiates with the layer as with a plugin, so that core and host know nothing of layers: without one the table
//! that they hold is the plugin's own. Layers are stacked in the order in which they are named; the first one is nearest
//! to the host.
//!
//! Rules for every layer: it shows the minors that both it and the plugin speak; a function that the plugin lacks is
//! NULL; handles go through unchanged; it does not pass on unknown parts (an extension, a function of a newer minor).
//!
//! A library offers a layer through the entry that plugins have (`PluginInfo::layer`), and is named by its path. Who names it
//! trusts it: it is not tried in a child process first, and stays loaded.

pub mod slots;
pub mod validation;

use crate::discover::elevated;
use crate::load::Library;
use crate::negotiate::{Entry, agree_on};
use devbay_core::about::{self, Refusal, RefusalKind};
use devbay_core::device::Detail;
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_plugin_api::abi::version::MinorRange;
use devbay_plugin_api::abi::{LayerFn, PluginInfo};
use std::any::Any;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use validation::Settings;

/// The environment variable that names layers, with commas between them.
pub const VARIABLE: &str = "DEVBAY_LAYERS";

/// A plugin seen through a layer.
struct Layered {
    info: &'static PluginInfo,
    /// Its slot, given back when this goes.
    slot: Box<dyn Any + Send + Sync>,
}

/// A layer that is part of the host.
#[derive(Clone, Copy)]
pub struct OwnLayer {
    /// Its name in lists of layers.
    pub name: &'static str,
    /// One line for a person.
    pub about: &'static str,
    /// Puts it in front of data that an entry returned, which stays as long as the result.
    wrap: unsafe fn(*const PluginInfo, &Settings) -> std::result::Result<Layered, Refusal>,
}

/// The host's own layers.
pub const KNOWN: &[OwnLayer] = &[OwnLayer {
    name: "validation",
    about: "checks host and plugin against the ABI's rules on every call",
    wrap: validate,
}];

/// A layer, to be put in front of plugins.
#[derive(Clone)]
pub struct Layer {
    name: String,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Own(OwnLayer),
    /// Of a library, which stays loaded.
    Library(Arc<Library>, LayerFn),
}

impl Layer {
    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The layer that a library offers.
    ///
    /// # Errors
    /// A refusal for a library that cannot be loaded, speaks none of the host's minors, or offers no layer.
    pub fn open(path: &Path) -> std::result::Result<Self, Refusal> {
        let library = Library::open(path)?;
        let info = library.query();
        // SAFETY: `info` is what the entry returned, and its library stays loaded as long as `library`.
        let head = unsafe { about::read_head(info) }?;
        agree_on(MinorRange::CURRENT, head.minors)?;
        // SAFETY: `info` is what the entry returned, and the library speaks a minor of this host's.
        let (name, layer) = unsafe { about::read_layer(info) }?;
        Ok(Self { name, kind: Kind::Library(Arc::new(library), layer) })
    }

    /// Puts it in front of data that an entry returned.
    ///
    /// # Safety
    /// The library that holds `info` stays loaded as long as the result, and as long as anything uses the data it shows.
    unsafe fn wrap(
        &self,
        info: *const PluginInfo,
        settings: &Settings,
    ) -> std::result::Result<Layered, Refusal> {
        match &self.kind {
            // SAFETY: the library that holds `info` stays loaded as long as the result is used (# Safety).
            Kind::Own(own) => unsafe { (own.wrap)(info, settings) },
            Kind::Library(library, layer) => {
                let mut detail = Detail::new();
                // SAFETY: the library that holds `info` stays loaded as long as the result is used (# Safety); the
                // detail is ours for the call.
                let shown = unsafe { layer(info, detail.as_ptr()) };
                // SAFETY: NULL, or data that the layer keeps as long as the process, in which its library stays.
                match unsafe { shown.as_ref() } {
                    Some(info) => Ok(Layered { info, slot: Box::new(Arc::clone(library)) }),
                    None => Err(Refusal::new(
                        RefusalKind::LayerFailed,
                        format!("the layer {} does not take it: {}", self.name, detail.text()),
                    )),
                }
            }
        }
    }
}

/// # Safety
/// As for [`Layer::wrap`].
unsafe fn validate(info: *const PluginInfo, settings: &Settings) -> std::result::Result<Layered, Refusal> {
    // SAFETY: the library that holds `info` stays loaded as long as the result is used (# Safety of `Layer::wrap`).
    let wrapped = unsafe { validation::wrap_info(info, settings) }?;
    Ok(Layered { info: wrapped.info(), slot: Box::new(wrapped) })
}

/// The layers of these names, in their order. A name with a separator of paths, or a library's ending, is the path of a
/// library that offers one.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for a name that no layer has, with those that there are, and for a library without a layer.
pub fn named<S: AsRef<str>>(names: &[S]) -> Result<Vec<Layer>> {
    let invalid = |text: String| Error::new(ErrorKind::InvalidArgument, text);
    let find = |name: &S| {
        let name = name.as_ref();
        if name.contains(std::path::is_separator) || name.ends_with(std::env::consts::DLL_SUFFIX) {
            return Layer::open(Path::new(name))
                .map_err(|refusal| invalid(format!("layer {name}: {refusal}")));
        }
        let own = KNOWN.iter().find(|layer| layer.name == name).ok_or_else(|| {
            let known: Vec<&str> = KNOWN.iter().map(|layer| layer.name).collect();
            let known = known.join(", ");
            invalid(format!("there is no layer {name}, known are: {known}, and libraries by their paths"))
        })?;
        Ok(Layer { name: own.name.to_owned(), kind: Kind::Own(*own) })
    };
    names.iter().map(find).collect()
}

/// The names in [`VARIABLE`]; none for an elevated process.
pub fn from_environment() -> Vec<String> {
    from_variables(elevated(), |name| std::env::var_os(name))
}

/// As [`from_environment`], for a process that is elevated or not and has these variables.
pub fn from_variables(elevated: bool, variable: impl Fn(&str) -> Option<OsString>) -> Vec<String> {
    if elevated {
        return Vec::new();
    }
    let list = variable(VARIABLE).unwrap_or_default();
    let list = list.to_string_lossy();
    list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Layers in front of one plugin, until this is dropped: nobody may call it any more then.
pub struct Stack {
    info: *const PluginInfo,
    /// The one nearest to the host first, so that it goes first.
    layers: Vec<Box<dyn Any + Send + Sync>>,
}

// SAFETY: `info` is static data that is not written (B1), and the layers are `Send`.
unsafe impl Send for Stack {}
// SAFETY: the data is only read, and the layers are `Sync`.
unsafe impl Sync for Stack {}

impl Stack {
    /// Puts layers in front of a plugin, the first one nearest to the host.
    ///
    /// # Safety
    /// A library stays loaded as long as the result, and as long as anything uses what it shows.
    ///
    /// # Errors
    /// Refusals of the layers.
    pub unsafe fn new(
        entry: Entry<'_>,
        layers: &[Layer],
        settings: &Settings,
    ) -> std::result::Result<Self, Refusal> {
        let mut stack = Self { info: entry.query(), layers: Vec::new() };
        for layer in layers.iter().rev() {
            // SAFETY: what an entry returned, or a layer shows that is in the stack; the library stays loaded as the caller
            // promises.
            let layered = unsafe { layer.wrap(stack.info, settings) }?;
            stack.info = layered.info;
            stack.layers.insert(0, layered.slot);
        }
        Ok(stack)
    }

    /// Returns the data that the host sees: that of the first layer, or the plugin's own.
    pub fn info(&self) -> *const PluginInfo {
        self.info
    }
}
