//! Turns a library into a plugin, or into a refusal with its reason (B3, B30).

use crate::layers::Stack;
use crate::load::Library;
use devbay_core::about::{self, About, FieldSeen, Refusal, RefusalKind};
use devbay_plugin_api::abi::version::{MinorRange, Mismatch, agree};
use devbay_plugin_api::abi::{LAYOUTS, PluginInfo};
use devbay_plugin_api::sdk::export::LinkedPlugin;
use std::collections::{BTreeMap, BTreeSet};

/// Agreement with a plugin: its data, the minor, and layout differences.
#[derive(Clone)]
pub struct Agreement {
    /// The plugin's description of itself.
    pub about: About,
    /// The minor that both speak.
    pub minor: u32,
    /// Differences that abi_stable finds in the plugin's view of the header. Empty without the feature, or if the plugin
    /// does not export its view. They only explain; they never cause a refusal.
    pub differences: Vec<String>,
}

/// Location of a plugin's entry.
#[derive(Clone, Copy)]
pub enum Entry<'a> {
    /// In a loaded library.
    Library(&'a Library),
    /// In this program.
    Linked(&'a LinkedPlugin),
}

impl Entry<'_> {
    /// Queries the entry for the plugin's data.
    pub fn query(&self) -> *const PluginInfo {
        match self {
            Self::Library(library) => library.query(),
            Self::Linked(linked) => linked.query(),
        }
    }
}

/// Agrees with a plugin on a version, and reads its data.
///
/// # Errors
/// A refusal with both ranges, or with the defect.
pub fn negotiate(entry: Entry<'_>, host: MinorRange) -> Result<Agreement, Refusal> {
    // SAFETY: the entry just returned this pointer to static data of a loaded plugin.
    unsafe { negotiate_with(entry.query(), entry, host) }
}

/// Negotiates as [`negotiate`], with the info that layers present in the plugin's place.
///
/// # Errors
/// As [`negotiate`].
pub fn negotiate_layered(stack: &Stack, entry: Entry<'_>, host: MinorRange) -> Result<Agreement, Refusal> {
    // SAFETY: the pointer is the entry's, or that of a layer in front of it, whose info is never freed.
    unsafe { negotiate_with(stack.info(), entry, host) }
}

/// # Safety
/// `info` is NULL, or a pointer from the entry or a layer to static data that lives as long as the library is loaded.
unsafe fn negotiate_with(
    info: *const PluginInfo,
    entry: Entry<'_>,
    host: MinorRange,
) -> Result<Agreement, Refusal> {
    let library = match entry {
        Entry::Library(library) => Some(library),
        Entry::Linked(_) => None,
    };
    // SAFETY: `info` is NULL or points to static data of a loaded plugin or a layer (`# Safety`).
    let head = unsafe { about::read_head(info) }?;
    let minor = agree_on(host, head.minors).map_err(|mut refusal| {
        refusal.details = second_opinion(library);
        refusal
    })?;
    // SAFETY: `info` is valid (`# Safety`), and the plugin speaks a minor of this host's.
    let about = unsafe { about::read(info) }.map_err(|mut refusal| {
        // SAFETY: `info` is valid (`# Safety`); the plugin's layout may explain other defects.
        let layout = unsafe { about::read_layout(info) };
        refusal.details.extend(layout_differences(&layout));
        refusal.details.extend(second_opinion(library));
        refusal
    })?;
    // A plugin with fields at other offsets would be read wrongly, even with a matching version.
    let moved = layout_differences(&about.layout);
    if !moved.is_empty() {
        let n = moved.len();
        let reason = format!(
            "it was compiled with another header: {}{}",
            moved[0],
            if n > 1 { format!(", and {} more", n - 1) } else { String::new() }
        );
        let details = moved.into_iter().chain(second_opinion(library)).collect();
        return Err(Refusal { kind: RefusalKind::BrokenLayout, reason, details });
    }
    let differences = if head.minors.max == host.max { second_opinion(library) } else { Vec::new() };
    Ok(Agreement { about, minor, differences })
}

/// Returns the highest minor that both speak (B3).
///
/// # Errors
/// A refusal with both ranges, and the side to update.
pub(crate) fn agree_on(host: MinorRange, plugin: MinorRange) -> Result<u32, Refusal> {
    agree(host, plugin).map_err(|mismatch| {
        let reason = match mismatch {
            Mismatch::Empty => {
                format!("the plugin's version range is empty: {} to {}", plugin.min, plugin.max)
            }
            Mismatch::PluginNewer => format!(
                "no common ABI version: the plugin speaks {plugin}, this host {host}; \
                 update devbay, or ask for a plugin built for an older one"
            ),
            Mismatch::PluginOlder => format!(
                "no common ABI version: the plugin speaks {plugin}, this host {host}; \
                 ask the vendor for a newer plugin"
            ),
        };
        Refusal::new(RefusalKind::NoCommonVersion, reason)
    })
}

/// Compares the plugin's layout of the header's structs with this build's, field by field. A struct or field that only one
/// side has, or a larger size, is not a difference but a sign of an older or newer minor.
pub fn layout_differences(layout: &[FieldSeen]) -> Vec<String> {
    let ours: BTreeMap<(&str, &str), (usize, usize)> = LAYOUTS
        .iter()
        .flat_map(|layout| {
            layout.fields.iter().map(|field| ((layout.c_name, field.name), (field.offset, field.size)))
        })
        .collect();
    let growable: BTreeSet<&str> =
        LAYOUTS.iter().filter(|layout| layout.growable).map(|layout| layout.c_name).collect();
    layout
        .iter()
        .filter_map(|seen| {
            let &(offset, size) = ours.get(&(seen.struct_name.as_str(), seen.field_name.as_str()))?;
            let found = (seen.offset as usize, seen.size as usize);
            // The size of a growable struct of another minor follows from its fields.
            let may_grow = seen.field_name.is_empty() && growable.contains(seen.struct_name.as_str());
            (found != (offset, size) && !may_grow).then(|| {
                format!(
                    "{}.{}: the plugin has it at offset {} with {} bytes, this host at {offset} with {size}",
                    seen.struct_name, seen.field_name, found.0, found.1
                )
            })
        })
        .collect()
}

/// Lists differences that abi_stable finds, one per line; none without the feature or the plugin's export.
#[cfg(feature = "abi-stable")]
fn second_opinion(library: Option<&Library>) -> Vec<String> {
    use abi_stable::type_layout::TypeLayout;
    type LayoutFn = extern "C" fn() -> *const std::ffi::c_void;
    // SAFETY: the symbol's name contains abi_stable's version, which fixes this type.
    let export =
        |library: &Library| unsafe { library.symbol::<LayoutFn>(devbay_plugin_api::sdk::layout::SYMBOL) };
    let Some(export) = library.and_then(export) else {
        return Vec::new();
    };
    // SAFETY: the symbol's name contains abi_stable's version, the one this host is built with, and guarantees a static
    // `TypeLayout`.
    let Some(theirs) = (unsafe { export().cast::<TypeLayout>().as_ref() }) else {
        return Vec::new();
    };
    opinion_on(theirs)
}

#[cfg(feature = "abi-stable")]
fn opinion_on(theirs: &'static abi_stable::type_layout::TypeLayout) -> Vec<String> {
    use abi_stable::StableAbi;
    use abi_stable::abi_stability::abi_checking::check_layout_compatibility;
    match check_layout_compatibility(devbay_plugin_api::abi::PluginInfo::LAYOUT, theirs) {
        Ok(()) => Vec::new(),
        Err(errors) => {
            errors.errors.iter().map(|error| format!("abi_stable: {error:?}").replace('\n', " ")).collect()
        }
    }
}

#[cfg(not(feature = "abi-stable"))]
fn second_opinion(_library: Option<&Library>) -> Vec<String> {
    Vec::new()
}

#[cfg(all(test, feature = "abi-stable"))]
mod tests {
    use super::*;
    use abi_stable::StableAbi;
    use devbay_plugin_api::abi;

    #[test]
    fn b30_the_second_opinion_is_a_line_for_each_difference() {
        assert_eq!(opinion_on(abi::PluginInfo::LAYOUT), Vec::<String>::new());
        // A plugin of another build exports its view; here, that of an entirely different struct.
        let lines = opinion_on(abi::OptionInfo::LAYOUT);
        assert!(!lines.is_empty());
        assert!(
            lines.iter().all(|line| line.starts_with("abi_stable: ") && !line.contains('\n')),
            "{lines:?}"
        );
        assert!(lines.iter().any(|line| line.contains("OptionInfo")), "{lines:?}");
    }
}
