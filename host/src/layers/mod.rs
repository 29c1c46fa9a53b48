//! Layers: code between host and plugin that speaks the ABI on both sides.
//!
//! A layer takes the next plugin's data (`PluginInfo` with its `PluginTable`) and presents its own instead. The host
//! negotiates with a layer as with a plugin, so core and host need no code for layers: without one, the host holds the
//! plugin's own table. Layers are stacked in the order in which they are named; the first one is nearest to the host.
//!
//! Rules for every layer: it declares the minors that both it and the plugin speak. A function that the plugin lacks is
//! NULL. Handles pass through unchanged. Unknown parts (an extension, a function of a newer minor) are not passed on.
//!
//! A library offers a layer through the plugins' entry (`PluginInfo::layer`) and is named by its path. Naming a library
//! means trusting it: the host does not probe it in a child process first, and never unloads it.

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
    /// The layer's slot, freed when this value is dropped.
    slot: Box<dyn Any + Send + Sync>,
}

/// A layer that is part of the host.
#[derive(Clone, Copy)]
pub struct OwnLayer {
    /// Its name in lists of layers.
    pub name: &'static str,
    /// A one-line description for users.
    pub about: &'static str,
    /// Puts the layer in front of data that an entry returned and that stays readable as long as the result.
    wrap: unsafe fn(*const PluginInfo, &Settings) -> std::result::Result<Layered, Refusal>,
}

/// The host's own layers.
pub const KNOWN: &[OwnLayer] = &[OwnLayer {
    name: "validation",
    about: "checks host and plugin against the ABI's rules on every call",
    wrap: validate,
}];

/// A layer that can be put in front of plugins.
#[derive(Clone)]
pub struct Layer {
    name: String,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Own(OwnLayer),
    /// A layer of a library, which stays loaded.
    Library(Arc<Library>, LayerFn),
}

impl Layer {
    /// Returns the layer's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Loads the layer that a library offers.
    ///
    /// # Errors
    /// A refusal, if the library cannot be loaded, speaks none of the host's minors, or offers no layer.
    pub fn open(path: &Path) -> std::result::Result<Self, Refusal> {
        let library = Library::open(path)?;
        let info = library.query();
        // SAFETY: `info` comes from the library's entry; it is static data (B1), and `library` is loaded.
        let head = unsafe { about::read_head(info) }?;
        agree_on(MinorRange::CURRENT, head.minors)?;
        // SAFETY: as `library` is alive, `info` is readable (B1); `agree_on` found a common minor, so its fields are
        // known.
        let (name, layer) = unsafe { about::read_layer(info) }?;
        Ok(Self { name, kind: Kind::Library(Arc::new(library), layer) })
    }

    /// Puts the layer in front of data that an entry returned.
    ///
    /// # Safety
    /// The library that holds `info` stays loaded as long as the result, and as long as anything uses the layer's data.
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
                // SAFETY: the layer returned NULL or its own data (B1), and `library` in the slot keeps the layer's
                // library loaded.
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
/// The caller guarantees the condition of [`Layer::wrap`].
unsafe fn validate(info: *const PluginInfo, settings: &Settings) -> std::result::Result<Layered, Refusal> {
    // SAFETY: the caller keeps the library that holds `info` loaded as long as the result (# Safety of `Layer::wrap`).
    let wrapped = unsafe { validation::wrap_info(info, settings) }?;
    Ok(Layered { info: wrapped.info(), slot: Box::new(wrapped) })
}

/// Returns the layers with these names, in the same order. A name that contains a path separator, or ends like a shared
/// library, is the path of a library that offers a layer.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for an unknown name, with the list of known ones, and for a library without a layer.
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

/// Returns the names in [`VARIABLE`]; none for an elevated process.
pub fn from_environment() -> Vec<String> {
    from_variables(elevated(), |name| std::env::var_os(name))
}

/// Returns the same as [`from_environment`], with the process's state and environment given by the caller.
pub fn from_variables(elevated: bool, variable: impl Fn(&str) -> Option<OsString>) -> Vec<String> {
    if elevated {
        return Vec::new();
    }
    let list = variable(VARIABLE).unwrap_or_default();
    let list = list.to_string_lossy();
    list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Layers in front of one plugin. Dropping the stack frees their slots, so no call may come after it.
pub struct Stack {
    info: *const PluginInfo,
    /// The layers, nearest to the host first, so that this one is dropped first.
    layers: Vec<Box<dyn Any + Send + Sync>>,
}

// SAFETY: `info` points to static data that is never written (B1), and the layers are `Send`.
unsafe impl Send for Stack {}
// SAFETY: `info` points to static data that is never written (B1), and the layers are `Sync`.
unsafe impl Sync for Stack {}

impl Stack {
    /// Puts layers in front of a plugin, the first one nearest to the host.
    ///
    /// # Safety
    /// The plugin's library stays loaded as long as the result, and as long as anything uses the result's data.
    ///
    /// # Errors
    /// The refusals of the layers.
    pub unsafe fn new(
        entry: Entry<'_>,
        layers: &[Layer],
        settings: &Settings,
    ) -> std::result::Result<Self, Refusal> {
        let mut stack = Self { info: entry.query(), layers: Vec::new() };
        for layer in layers.iter().rev() {
            // SAFETY: `stack.info` came from the plugin's entry or from a layer that the stack keeps alive. The caller
            // keeps the plugin's library loaded (# Safety).
            let layered = unsafe { layer.wrap(stack.info, settings) }?;
            stack.info = layered.info;
            stack.layers.insert(0, layered.slot);
        }
        Ok(stack)
    }

    /// Returns the data that the host sees: that of the first layer, or the plugin's own if there is no layer.
    pub fn info(&self) -> *const PluginInfo {
        self.info
    }
}
