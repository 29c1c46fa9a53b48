//! Uses of a unit's plans, and the cost of making them.
//!
//! Runs that find their plan touch nothing that other threads write: each counts in the frame that it holds
//! (`pool.rs`), and the counters are added up here on demand. Everything else is counted while a plan is made.

use super::prepared::Prepared;
use crate::plan::Env;
use crate::plan::place::kernel_cache::KernelCounts;
use crate::trace::now_ns;
use devbay_plugin_api::locks::lock;
use std::sync::{Mutex, MutexGuard};

/// The uses of a unit's plans so far, and the cost of making them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlanStatistics {
    /// Runs that found the plan for their inputs.
    ///
    /// Runs of a plan that was thrown out are not counted from then on; of those under way at that moment some may be
    /// missing.
    pub hits: u64,
    /// Runs that had to wait until their plan was made.
    pub misses: u64,
    /// Plans that were made, those for which no run waited included.
    pub made: u64,
    /// Plans that could not be made.
    pub failed: u64,
    /// Plans that were thrown out to make room for others.
    pub evicted: u64,
    /// Plans that are there now.
    pub kept: usize,
    /// Plans that there may be ([`PlanOptions::plans_max`](crate::plan::PlanOptions::plans_max)).
    pub kept_max: usize,
    /// Nanoseconds spent on specialising: types, shapes, and constants that follow from them.
    pub specialising_ns: u64,
    /// Nanoseconds spent in passes over specialised programs.
    pub passes_ns: u64,
    /// Nanoseconds spent on planning specialised programs: kernels, tasks, memory.
    pub planning_ns: u64,
    /// Kernels of these plans, and of those of nested regions.
    pub kernels: KernelCounts,
}

impl PlanStatistics {
    /// Nanoseconds spent on making plans; the stage at which one failed is not in it.
    pub fn making_ns(&self) -> u64 {
        self.specialising_ns + self.passes_ns + self.planning_ns
    }
}

/// Counts for [`PlanStatistics`]; `hits` has the runs of plans that are gone, those that missed included.
#[derive(Default)]
pub(super) struct Tally(Mutex<PlanStatistics>);

impl Tally {
    fn lock(&self) -> MutexGuard<'_, PlanStatistics> {
        lock(&self.0)
    }

    /// A run had to wait for its plan.
    pub fn missed(&self) {
        self.lock().misses += 1;
    }

    /// A plan is there, and these were thrown out for it.
    pub fn evicted(&self, plans: &[Prepared]) {
        let mut counts = self.lock();
        counts.evicted += plans.len() as u64;
        counts.hits += plans.iter().map(Prepared::n_runs).sum::<u64>();
    }

    /// A plan begins to be made.
    pub fn plan(&self) -> Laps<'_> {
        Laps { tally: self, since_ns: now_ns(), is_made: false }
    }

    /// Returns all of it, for a unit with these plans.
    pub fn statistics(&self, plans: &[Prepared], env: &Env) -> PlanStatistics {
        let counts = *self.lock();
        let runs = counts.hits + plans.iter().map(Prepared::n_runs).sum::<u64>();
        // A run that missed may not have begun.
        let hits = runs.saturating_sub(counts.misses);
        let (kept_max, kernels) = (env.options.plans_max, env.kernels.counts());
        PlanStatistics { hits, kept: plans.len(), kept_max, kernels, ..counts }
    }
}

/// The time that making one plan takes. Dropped before the plan is there, it counts as failed.
pub(super) struct Laps<'a> {
    tally: &'a Tally,
    since_ns: u64,
    is_made: bool,
}

impl Laps<'_> {
    fn lap(&mut self, of: impl FnOnce(&mut PlanStatistics) -> &mut u64) {
        let now = now_ns();
        *of(&mut self.tally.lock()) += now - self.since_ns;
        self.since_ns = now;
    }

    /// The program is specialised.
    pub fn specialised(&mut self) {
        self.lap(|counts| &mut counts.specialising_ns);
    }

    /// Passes are done.
    pub fn passed(&mut self) {
        self.lap(|counts| &mut counts.passes_ns);
    }

    /// The plan is there.
    pub fn planned(mut self) {
        self.lap(|counts| &mut counts.planning_ns);
        self.tally.lock().made += 1;
        self.is_made = true;
    }
}

impl Drop for Laps<'_> {
    fn drop(&mut self) {
        if !self.is_made {
            self.tally.lock().failed += 1;
        }
    }
}
