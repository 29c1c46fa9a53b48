//! The entry by which a host finds the plugin: the only symbol of a library, or linked into the program (B1).

use crate::abi::*;
use crate::sdk::{Kernel, Plugin, PluginOption};

/// Returns texts of a plugin in the ABI's form; `N` is at least their number.
pub const fn texts<const N: usize>(texts: &[&'static str]) -> [Str; N] {
    let mut list = [Str::EMPTY; N];
    let mut i = 0;
    while i < texts.len() {
        list[i] = Str::new(texts[i]);
        i += 1;
    }
    list
}

/// Returns options of a plugin in the ABI's form; `N` is at least their number.
pub const fn options<const N: usize>(options: &[PluginOption]) -> [OptionInfo; N] {
    let mut list = [OptionInfo {
        struct_size: size_of::<OptionInfo>() as u32,
        reserved: 0,
        key: Str::EMPTY,
        default_value: Str::EMPTY,
        doc: Str::EMPTY,
    }; N];
    let mut i = 0;
    while i < options.len() {
        list[i].key = Str::new(options[i].key);
        list[i].default_value = Str::new(options[i].default);
        list[i].doc = Str::new(options[i].doc);
        i += 1;
    }
    list
}

/// Builds the entry's result from the plugin's static lists.
pub const fn info<P: Plugin>(
    table: &'static PluginTable,
    profiles: &'static [Str],
    options: &'static [OptionInfo],
) -> PluginInfo {
    PluginInfo {
        struct_size: size_of::<PluginInfo>() as u32,
        abi_minor_min: P::ABOUT.abi_minor_min,
        abi_minor_max: DEVBAY_ABI_MINOR,
        threading: P::ABOUT.threading,
        flags: if P::ABOUT.unloadable { DEVBAY_PLUGIN_UNLOADABLE } else { 0 },
        name: Str::new(P::ABOUT.name),
        vendor: Str::new(P::ABOUT.vendor),
        version: Str::new(P::ABOUT.version),
        table,
        profiles: List::new(profiles),
        kernels: List::new::<Kernel<P::Device>>(P::KERNELS),
        options: List::new(options),
        layout: List::new(&LAYOUT_FIELDS),
        layer: None,
    }
}

/// A plugin that is linked into the program: its name, and its entry.
#[derive(Clone, Copy)]
pub struct LinkedPlugin {
    name: &'static str,
    query: QueryFn,
}

impl LinkedPlugin {
    /// Creates the description of an entry. [`static_plugin!`](crate::static_plugin) does this for plugins
    /// made with the SDK.
    ///
    /// # Safety
    /// `query` is a plugin's entry as [`QueryFn`] requires: it returns static data, a version of
    /// `PluginInfo`.
    pub const unsafe fn new(name: &'static str, query: QueryFn) -> Self {
        Self { name, query }
    }

    /// Returns its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Calls the entry and returns the plugin's description.
    pub fn query(&self) -> *const PluginInfo {
        // SAFETY: the promise of `new`; the entry may be called at any time (B1).
        unsafe { (self.query)() }
    }
}

/// Creates the entry of a plugin for static linking: a module `devbay_entry` with a [`LinkedPlugin`].
/// [`export_plugin!`](crate::export_plugin) also exports the symbol.
#[macro_export]
macro_rules! static_plugin {
    ($plugin:ty) => {
        #[cfg(panic = "abort")]
        compile_error!("a devbay plugin is built with panic=unwind: a panic becomes a status (B19)");

        /// The plugin's entry, for hosts that link it.
        pub mod devbay_entry {
            #[allow(unused_imports, reason = "the plugin's type may be named by any path")]
            use super::*;
            use $crate::abi::{OptionInfo, PluginInfo, PluginTable, Str};
            use $crate::sdk::{Plugin, export};

            type Exported = $plugin;
            static TABLE: PluginTable = export::table::<Exported>();
            static PROFILES: [Str; Exported::ABOUT.profiles.len()] = export::texts(Exported::ABOUT.profiles);
            static OPTIONS: [OptionInfo; Exported::ABOUT.options.len()] =
                export::options(Exported::ABOUT.options);
            static INFO: PluginInfo = export::info::<Exported>(&TABLE, &PROFILES, &OPTIONS);

            /// Returns the plugin's description; see `QueryFn`.
            pub(super) unsafe extern "C" fn query() -> *const PluginInfo {
                &INFO
            }

            /// The plugin, for a host that links it.
            // SAFETY: the entry above returns static data, made from this header's types.
            pub const PLUGIN: export::LinkedPlugin =
                unsafe { export::LinkedPlugin::new(Exported::ABOUT.name, query) };
        }
    };
}

/// Exports the only symbol of a plugin (B1).
#[macro_export]
macro_rules! export_plugin {
    ($plugin:ty) => {
        $crate::static_plugin!($plugin);
        $crate::export_symbol!();
    };
}

/// Exports the entry that [`static_plugin!`](crate::static_plugin) made.
#[macro_export]
macro_rules! export_symbol {
    () => {
        /// The plugin's entry; see `devbay_plugin.h`.
        ///
        /// # Safety
        /// None is needed; the type is the ABI's.
        // SAFETY: the name is the ABI's, and a library has one plugin.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn devbay_plugin_query_v0() -> *const $crate::abi::PluginInfo {
            // SAFETY: the entry asks for nothing.
            unsafe { devbay_entry::query() }
        }
        $crate::__export_abi_stable_layout!();
    };
}
