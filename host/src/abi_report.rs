//! Differences between a plugin's view of the ABI and this host's: sizes, slot by slot, and field by field (B30).
//!
//! Reads only fields whose offset never changes and fields within the plugin's own sizes, so it can also explain a refused
//! plugin.

use crate::load::Library;
use crate::negotiate::{Entry, negotiate};
use devbay_core::about::{self, FieldSeen, Refusal};
use devbay_plugin_api::abi::version::MinorRange;
use devbay_plugin_api::abi::{FUNCTIONS, Growable, LAYOUTS, PluginInfo, PluginTable, read_struct};
use std::collections::BTreeSet;

/// State of a slot in a plugin's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// A function.
    Filled,
    /// NULL.
    Empty,
    /// Past the end of the plugin's table.
    Beyond,
}

/// A struct as the plugin was compiled with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SizeSeen {
    /// Name in C.
    pub name: &'static str,
    /// Size that the plugin reports.
    pub found: usize,
    /// Size in this host's header.
    pub expected: usize,
    /// Fields of this host's header that lie beyond the plugin's size.
    pub lacks: Vec<&'static str>,
}

/// Differences between a plugin's view of the ABI and this host's.
#[derive(Clone, Debug)]
pub struct AbiReport {
    /// Minors that the plugin speaks.
    pub minors: MinorRange,
    /// The minor that was agreed on, or why there is none.
    pub verdict: Result<u32, Refusal>,
    /// The plugin's info struct and its table, if present.
    pub sizes: Vec<SizeSeen>,
    /// Each slot of the table, in the header's order; empty without a table.
    pub slots: Vec<(&'static str, Slot)>,
    /// Fields that the plugin reports of its header; 0 for plugins that report none, such as plugins in C.
    pub n_shown: usize,
    /// Fields that both have at a different offset or with a different size.
    pub differs: Vec<String>,
    /// Structs and fields that only the plugin has.
    pub only_there: Vec<String>,
    /// Structs and fields that only this host has.
    pub only_here: Vec<String>,
}

impl AbiReport {
    /// Compares a library's view of the ABI with this host's.
    ///
    /// # Errors
    /// A refusal for a library that reports nothing at all.
    pub fn of(library: &Library) -> Result<Self, Refusal> {
        let info = library.query();
        // SAFETY: `info` came from the library's entry point, and the library stays loaded while `library` lives; here and
        // below.
        let head = unsafe { about::read_head(info) }?;
        let verdict =
            negotiate(Entry::Library(library), MinorRange::CURRENT).map(|agreement| agreement.minor);
        let mut sizes = vec![seen::<PluginInfo>("devbay_plugin_info", head.struct_size as usize)];
        let mut slots = Vec::new();
        // SAFETY: `info` came from the entry point of a loaded library.
        if let Ok(whole) = unsafe { read_struct(info) }
            && !whole.table.is_null()
        {
            // SAFETY: a table of every version begins with its size.
            let size = unsafe { whole.table.cast::<u32>().read_unaligned() } as usize;
            sizes.push(seen::<PluginTable>("devbay_plugin_table", size));
            // SAFETY: the table is the loaded plugin's, and `size` is the size it gives for itself.
            slots = unsafe { slots_of(whole.table, size) };
        }
        // SAFETY: `info` came from the entry point of a loaded library.
        let layout = unsafe { about::read_layout(info) };
        let (only_there, only_here) = one_sided(&layout);
        Ok(Self {
            minors: head.minors,
            verdict,
            sizes,
            slots,
            n_shown: layout.len(),
            differs: crate::negotiate::layout_differences(&layout),
            only_there,
            only_here,
        })
    }

    /// Returns the names of the slots in a given state.
    pub fn slots_that_are(&self, kind: Slot) -> Vec<&'static str> {
        self.slots.iter().filter(|(_, slot)| *slot == kind).map(|(name, _)| *name).collect()
    }
}

fn seen<T: Growable>(name: &'static str, found: usize) -> SizeSeen {
    let layout = LAYOUTS.iter().find(|layout| layout.name == T::NAME);
    let fields = layout.into_iter().flat_map(|layout| layout.fields);
    let lacks = fields.filter(|field| field.offset + field.size > found).map(|field| field.name).collect();
    SizeSeen { name, found, expected: size_of::<T>(), lacks }
}

/// # Safety
/// `table` is a plugin's table of `size` bytes.
unsafe fn slots_of(table: *const PluginTable, size: usize) -> Vec<(&'static str, Slot)> {
    let layout = LAYOUTS.iter().find(|layout| layout.name == "PluginTable");
    let fields = layout.into_iter().flat_map(|layout| layout.fields);
    let functions = fields.filter(|field| FUNCTIONS.iter().any(|function| function.name == field.name));
    let slot = |field: &devbay_plugin_api::abi::tables::FieldLayout| {
        if field.offset + field.size > size {
            return Slot::Beyond;
        }
        // SAFETY: the field lies within the table's `size` bytes (`# Safety`), and a slot's bits may be read as a number.
        let bits = unsafe { table.cast::<u8>().add(field.offset).cast::<usize>().read_unaligned() };
        if bits == 0 { Slot::Empty } else { Slot::Filled }
    };
    functions.map(|field| (field.name, slot(field))).collect()
}

/// Lists names only in the plugin's header, and names only in this host's; nothing if the plugin shows none.
fn one_sided(layout: &[FieldSeen]) -> (Vec<String>, Vec<String>) {
    let name = |of: &str, field: &str| match field {
        "" => of.to_owned(),
        field => format!("{of}.{field}"),
    };
    if layout.is_empty() {
        return Default::default();
    }
    let theirs: BTreeSet<String> =
        layout.iter().map(|seen| name(&seen.struct_name, &seen.field_name)).collect();
    let ours: BTreeSet<String> = LAYOUTS
        .iter()
        .flat_map(|layout| {
            let fields = layout.fields.iter().map(|field| name(layout.c_name, field.name));
            fields.chain([layout.c_name.to_owned()])
        })
        .collect();
    (theirs.difference(&ours).cloned().collect(), ours.difference(&theirs).cloned().collect())
}
