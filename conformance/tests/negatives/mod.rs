//! Plugins that are right but for one thing: layers over the CPU plugin, whose handles go through unchanged.
//!
//! Each [`Negative`] replaces one or a few functions of the table and forwards the rest. What a layer has to
//! remember is in a static of its own: a test judges one plugin in one process after the other, and a case uses
//! one instance at a time as far as a fault is concerned.

pub mod kernels;
pub mod memory;
pub mod setup;
pub mod streams;

use devbay_plugin_api::abi::*;
use devbay_plugin_api::sdk::export::LinkedPlugin;
use std::sync::OnceLock;

/// The plugin underneath.
pub fn cpu() -> &'static PluginInfo {
    // SAFETY: static data of a plugin that is part of this program, made from this header's types.
    unsafe { &*devbay_plugin_cpu::devbay_entry::PLUGIN.query() }
}

/// Its table.
pub fn below() -> &'static PluginTable {
    // SAFETY: as above.
    unsafe { &*cpu().table }
}

/// A function of the plugin underneath, which has all of them.
macro_rules! forward {
    ($slot:ident ( $($argument:expr),* $(,)? )) => {{
        let function = $crate::negatives::below().$slot.expect("the CPU plugin has every function");
        // SAFETY: the arguments are those that the layer was called with, or as good.
        unsafe { function($($argument),*) }
    }};
}
pub(crate) use forward;

/// A wrong plugin, and the case that has to say so.
pub struct Negative {
    /// What is wrong, in words.
    pub what: &'static str,
    /// The case that finds it.
    pub case: &'static str,
    /// Options that the plugin underneath is run with.
    pub options: &'static [(&'static str, &'static str)],
    /// The plugin.
    pub plugin: LinkedPlugin,
}

/// Work is done when the call returns.
pub const INLINE: &[(&str, &str)] = &[];
/// Streams have timelines, and copies take their time.
pub const ASYNC: &[(&str, &str)] = &[("streams", "async"), ("copy_mb_per_s", "2000")];

/// What a layer keeps for good.
pub fn leak(edit: impl FnOnce(&mut PluginInfo, &mut PluginTable)) -> usize {
    let mut table = *below();
    let mut info = *cpu();
    edit(&mut info, &mut table);
    info.table = Box::leak(Box::new(table));
    std::ptr::from_mut(Box::leak(Box::new(info))) as usize
}

/// Where a negative's data is, once it was asked for.
pub type Place = OnceLock<usize>;

/// A negative: `negative!(ASYNC, "case", "what", |info, table| ...)`.
macro_rules! negative {
    ($options:expr, $case:literal, $what:literal, $edit:expr) => {{
        unsafe extern "C" fn query() -> *const devbay_plugin_api::abi::PluginInfo {
            static INFO: $crate::negatives::Place = std::sync::OnceLock::new();
            *INFO.get_or_init(|| $crate::negatives::leak($edit)) as *const _
        }
        $crate::negatives::Negative {
            what: $what,
            case: $case,
            options: $options,
            // SAFETY: the entry gives data that was leaked, made from this header's types.
            plugin: unsafe { devbay_plugin_api::sdk::export::LinkedPlugin::new("cpu", query) },
        }
    }};
}
pub(crate) use negative;

/// All of them.
pub fn all() -> Vec<Negative> {
    [setup::all(), memory::all(), streams::all(), kernels::all()].into_iter().flatten().collect()
}
