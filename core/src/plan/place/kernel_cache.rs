//! Kernels that are prepared once for all plans of an environment.
//!
//! A node whose types, constants and attributes are those of a node of another plan gets its kernel, so that plans for
//! other lengths prepare only kernels that depend on the length. The plans own their kernels. The cache has weak
//! references, and drops the entries of a deleted plan when the next plan has been made.

use super::alike::{Asked, Kept};
use super::kernel::{Chosen, WeakChosen};
use devbay_plugin_api::locks::lock;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

/// Kernels of living plans, by the request that they were prepared for.
#[derive(Default)]
pub(crate) struct KernelCache(Mutex<KeptKernels>);

#[derive(Default)]
struct KeptKernels {
    entries: HashMap<u64, Vec<Entry>>,
    counts: KernelCounts,
}

/// Numbers of kernels that were prepared, and of nodes that shared one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KernelCounts {
    /// Kernels that were prepared.
    pub prepared: u64,
    /// Nodes that got a kernel of another node, of this plan or of another one.
    pub shared: u64,
}

/// The devices that a node may run on: those at positions, and the one that is asked before the others.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::plan) struct Sites {
    pub first: Option<usize>,
    pub all: Range<usize>,
}

struct Entry {
    asked: Kept,
    sites: Sites,
    site: usize,
    chosen: WeakChosen,
}

impl KernelCache {
    fn lock(&self) -> MutexGuard<'_, KeptKernels> {
        lock(&self.0)
    }

    /// Returns the kernel that was prepared for the same, and the position of its device.
    pub(in crate::plan) fn find(&self, asked: &Asked<'_>, sites: &Sites) -> Option<(usize, Chosen)> {
        let mut state = self.lock();
        let entries = state.entries.get(&asked.hash)?;
        let mut same = entries.iter().filter(|entry| entry.sites == *sites && asked.is(&entry.asked));
        let found = same.find_map(|entry| Some((entry.site, entry.chosen.upgrade()?)))?;
        state.counts.shared += 1;
        Some(found)
    }

    /// Notes a kernel that was prepared.
    pub(in crate::plan) fn note(&self, asked: &Asked<'_>, sites: Sites, site: usize, chosen: &Chosen) {
        let entry = Entry { asked: asked.to_kept(), sites, site, chosen: chosen.downgrade() };
        let mut state = self.lock();
        state.counts.prepared += 1;
        state.entries.entry(asked.hash).or_default().push(entry);
    }

    /// Drops entries whose plans are gone, and with them the constants that they name.
    pub(crate) fn sweep(&self) {
        self.lock().entries.retain(|_, entries| {
            entries.retain(|entry| entry.chosen.is_there());
            !entries.is_empty()
        });
    }

    pub(crate) fn counts(&self) -> KernelCounts {
        self.lock().counts
    }
}
