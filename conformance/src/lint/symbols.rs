//! Symbols that the library shows to others, and those that it wants from the host.

use super::checks::{ENTRY_MISSING, EXPORTS_EXTRA, EXPORTS_UNIQUE, IMPORTS_HOST};
use super::image::Image;
use super::{Report, counted, few};
use devbay_plugin_api::abi::QUERY_SYMBOL;
use object::elf;
use std::collections::BTreeSet;

/// Symbols that linkers put into every library.
const OF_LINKER: &[&str] = &["_init", "_fini", "_edata", "_end", "__bss_start", "__data_start"];

/// Returns whether a linker has put an exported symbol there.
pub(crate) fn is_of_linker(name: &str) -> bool {
    OF_LINKER.contains(&name)
}

/// Returns whether an exported symbol is one that hosts ask for: the entry, and what describes it.
pub(crate) fn is_of_abi(name: &str) -> bool {
    name.starts_with("devbay_plugin_")
}

/// Returns whether a wanted symbol is the host's, in C's names or mangled.
pub(crate) fn is_of_host(name: &str) -> bool {
    name.contains("devbay")
}

pub(super) fn look(image: &Image<'_>, report: &mut Report) {
    let entry = QUERY_SYMBOL.to_string_lossy();
    if !image.exports().any(|symbol| symbol.name == entry) {
        let other = image.exports().find(|symbol| symbol.name.starts_with("devbay_plugin_query_v"));
        let hidden = image.functions().iter().any(|(_, name)| *name == entry);
        report.find(
            &ENTRY_MISSING,
            match other {
                Some(other) => {
                    format!("{entry} is not exported, but {} is: another major of the ABI", other.name)
                }
                None if hidden => format!("{entry} is present but hidden, so it is not exported"),
                None => format!("{entry} is not exported"),
            },
        );
    }
    let names = |unique: bool| -> Vec<String> {
        let exports = image.exports().filter(|symbol| (symbol.bind == elf::STB_GNU_UNIQUE) == unique);
        sorted(exports.map(|symbol| symbol.name))
    };
    let unique = names(true);
    if !unique.is_empty() {
        report.find(&EXPORTS_UNIQUE, format!("{}: {}", counted(unique.len(), "unique symbol"), few(&unique)));
    }
    let mut others = names(false);
    others.retain(|name| !is_of_abi(name) && !is_of_linker(name));
    if !others.is_empty() {
        report.find(
            &EXPORTS_EXTRA,
            format!("{} besides the entry: {}", counted(others.len(), "export"), few(&others)),
        );
    }
    let host = sorted(image.imports().map(|symbol| symbol.name).filter(|name| is_of_host(name)));
    if !host.is_empty() {
        report.find(&IMPORTS_HOST, format!("{} of the host: {}", counted(host.len(), "import"), few(&host)));
    }
}

/// Names, each once: one that has several versions is as many symbols.
fn sorted<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let names: BTreeSet<&str> = names.collect();
    names.into_iter().map(str::to_owned).collect()
}
