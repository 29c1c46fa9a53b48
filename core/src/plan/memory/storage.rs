//! Where the values of a section live: memory for each, in place, as a part of another, or a result of the caller's.
//!
//! The order of work decides which values may share memory: tasks and their edges are known when this runs. Offsets are
//! `offsets.rs`'s.

use super::offsets::{self, ArenaPlan, Interval};
use crate::cancel::{self, look};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::launches::{Launch, Planner, Root, Storage};
use crate::plan::order::tasks::{Reach, TaskGraph};
use crate::plan::section::{Memory, Shaped, Source};
use crate::program::ValueId;
use std::collections::HashMap;
use std::sync::Arc;

/// Alignment of values in an arena: of the largest element, and of a cache line.
const ALIGN_MIN: usize = 16;
pub(in crate::plan) const ALIGN_MAX: usize = 64;

impl Planner<'_> {
    /// Memory for every value and workspace: one of its own, or in place that of an input.
    ///
    /// # Errors
    /// Cancelled, or past the deadline.
    pub(in crate::plan) fn storages(
        &mut self,
        schedule: &Schedule<'_>,
    ) -> Result<(Vec<Storage>, Vec<Vec<usize>>)> {
        let mut storages: Vec<Storage> = Vec::with_capacity(self.made.len());
        let mut workspaces: Vec<Vec<usize>> = Vec::with_capacity(self.launches.len());
        for made in &mut self.made {
            made.storage = usize::MAX;
        }
        for phi in &self.phis {
            storages.push(Storage::of(&self.made[phi.made]));
            self.made[phi.made].storage = storages.len() - 1;
        }
        let launches = std::mem::take(&mut self.launches);
        for (at, launch) in launches.iter().enumerate() {
            look()?;
            let at = at as u32;
            for (i, made) in launch.outputs.iter().enumerate() {
                let Some(made) = made.filter(|&made| self.made[made].phi.is_none()) else {
                    continue;
                };
                // A result has memory of its own, the caller's: in place it would drag its predecessors there, and
                // every run would have to patch all of that.
                let hint = launch.work.in_place(i).filter(|_| !self.made[made].wanted);
                if let Some((whole, offset)) = self.made[made].part_of {
                    self.store_part(made, whole, offset, at, &mut storages);
                    continue;
                }
                let shared = hint.and_then(|input| {
                    let storage = self.storage_of_input(launch, input)?;
                    let free = storages[storage].size == self.made[made].size
                        && storages[storage].memory == self.made[made].memory
                        && !storages[storage].wanted
                        && storages[storage].phi.is_none()
                        // The last of them first: it is the one that comes too late, if any does.
                        && storages[storage]
                            .touches
                            .iter()
                            .rev()
                            .all(|&touch| touch == at || schedule.precedes(touch, at));
                    free.then_some(storage)
                });
                if let Some(storage) = shared {
                    // All of them come before this launch, and so before all later ones.
                    storages[storage].touches.clear();
                }
                let storage = shared.unwrap_or_else(|| {
                    storages.push(Storage::of(&self.made[made]));
                    storages.len() - 1
                });
                if storages[storage].makers.is_empty() {
                    storages[storage].makers.push(at);
                }
                // All future readers count from now on: a value that takes it over must come after them.
                storages[storage].touches.push(at);
                storages[storage].touches.extend(&self.made[made].users);
                self.made[made].storage = storage;
            }
            let sizes = launch.work.workspaces();
            workspaces.push((storages.len()..storages.len() + sizes.len()).collect());
            let memory = self.lanes.get(launch.lane).memory;
            storages.extend(sizes.into_iter().map(|size| Storage {
                size,
                touches: vec![at],
                makers: vec![at],
                written: None,
                wanted: false,
                memory,
                phi: None,
            }));
        }
        self.launches = launches;
        // A value that no launch makes has no elements; it still has a place.
        for made in self.made.iter_mut().filter(|made| made.storage == usize::MAX) {
            storages.push(Storage::of(made));
            made.storage = storages.len() - 1;
        }
        Ok((storages, workspaces))
    }

    /// Puts a part of a value where the whole lives.
    fn store_part(&mut self, part: usize, whole: usize, offset: usize, at: u32, storages: &mut Vec<Storage>) {
        if self.made[whole].storage == usize::MAX {
            storages.push(Storage::of(&self.made[whole]));
            self.made[whole].storage = storages.len() - 1;
            // All future readers count from now on.
            let users = self.made[whole].users.iter();
            storages[self.made[whole].storage].touches.extend(users);
        }
        let storage = self.made[whole].storage;
        storages[storage].makers.push(at);
        storages[storage].touches.push(at);
        storages[storage].touches.extend(&self.made[part].users);
        (self.made[part].storage, self.made[part].offset) = (storage, offset);
    }

    /// Returns the memory of an input, if the launch reads it through that input alone.
    fn storage_of_input(&self, launch: &Launch, input: usize) -> Option<usize> {
        let storage = |operand: &Option<(Root, usize)>| match operand {
            Some((Root::Made(made, _), _)) => Some(self.made[*made].storage),
            _ => None,
        };
        let wanted = storage(launch.inputs.get(input)?)?;
        let readers = launch.inputs.iter().filter(|operand| storage(operand) == Some(wanted));
        (readers.count() == 1 && wanted != usize::MAX).then_some(wanted)
    }

    /// Returns the result for each wanted value; storages of those that are written are marked.
    pub(in crate::plan) fn results(
        &self,
        wanted: &[(ValueId, Root)],
        storages: &mut [Storage],
    ) -> Result<Results> {
        let mut results = Results::default();
        let mut result_of_storage: HashMap<usize, u32> = HashMap::new();
        for (i, (id, root)) in wanted.iter().enumerate() {
            let shaped = self.shaped(self.program, *id)?;
            let source = match root {
                Root::Input(input, _) => Source::Input(*input),
                Root::Constant(tensor) => Source::Constant(tensor.clone()),
                Root::Made(made, _) => {
                    let storage = self.made[*made].storage;
                    match result_of_storage.get(&storage) {
                        Some(&earlier) => Source::Same(earlier),
                        None => {
                            result_of_storage.insert(storage, i as u32);
                            let written = results.written.len() as u32;
                            storages[storage].written = Some(written);
                            results.written.push(shaped.clone());
                            results.result_of_written.push(i as u32);
                            Source::Written(written)
                        }
                    }
                }
            };
            results.sources.push((shaped, source));
        }
        Ok(results)
    }

    /// An offset for every storage in its memory's arena; 0 for those that have no memory here.
    pub(in crate::plan) fn arena(
        &self,
        storages: &[Storage],
        graph: &TaskGraph,
        schedule: &Schedule<'_>,
    ) -> Result<Arenas> {
        let mut arenas = Arenas { offsets: vec![0; storages.len()], ..Arenas::default() };
        for (memory, site) in self.lanes.memories().enumerate() {
            let device = self.env.site(site).0;
            let plan = self.arena_of(memory as u32, device, storages, graph, schedule)?;
            arenas.size += plan.size;
            arenas.lower_bound += plan.lower_bound;
            arenas.memories.push(Memory { device: Arc::clone(device), arena: plan.size });
            for (storage, offset) in plan.placed.iter().zip(&plan.offsets) {
                arenas.offsets[*storage] = *offset;
            }
        }
        Ok(arenas)
    }

    fn arena_of(
        &self,
        memory: u32,
        device: &Device,
        storages: &[Storage],
        graph: &TaskGraph,
        schedule: &Schedule<'_>,
    ) -> Result<Placed> {
        // Copies touch whole granules: no two values share one.
        let space = device.space();
        let granule = space.copy_granule.max(space.copy_align).max(1).next_power_of_two();
        let bind_align = space.bind_align.max(granule) as usize;
        let (placed, intervals): (Vec<usize>, Vec<Interval>) = storages
            .iter()
            .enumerate()
            .filter(|(_, storage)| storage.memory == memory && storage.written.is_none())
            .filter(|(_, storage)| storage.phi.is_none() && storage.size > 0)
            .map(|(i, storage)| {
                let first = storage.makers.iter().min().copied().unwrap_or(0);
                let last = storage.touches.iter().max().copied().unwrap_or(0);
                // Small values are not spread over more cache lines than they fill.
                let align = storage.size.next_power_of_two().clamp(ALIGN_MIN, ALIGN_MAX).max(bind_align);
                (i, Interval { size: storage.size, align, first, last })
            })
            .unzip();
        let plan = match &schedule.reach {
            _ if graph.len() <= 1 => offsets::assign(&intervals),
            Some(_) if offsets::is_greedy(intervals.len()) => {
                let ends_before = |a: usize, b: usize| {
                    let makers = &storages[placed[b]].makers;
                    let mut touches = storages[placed[a]].touches.iter();
                    touches.all(|&touch| makers.iter().all(|&maker| schedule.precedes(touch, maker)))
                };
                offsets::assign_where(&intervals, ends_before)
            }
            _ => offsets::assign_apart(&intervals),
        };
        let ArenaPlan { offsets, size, lower_bound } = plan.ok_or_else(|| {
            if let Some(error) = cancel::ended() {
                return error;
            }
            Error::new(ErrorKind::OutOfMemory, "the values of the program are larger than memory")
                .on_device(device.name())
        })?;
        Ok(Placed { placed, offsets, size, lower_bound })
    }
}
/// The arenas of a section's memories.
#[derive(Default)]
pub(in crate::plan) struct Arenas {
    /// Of each storage.
    pub offsets: Vec<usize>,
    pub memories: Vec<Memory>,
    pub size: usize,
    pub lower_bound: usize,
}

/// One arena.
struct Placed {
    /// The storages in it.
    placed: Vec<usize>,
    /// The offset of each of them.
    offsets: Vec<usize>,
    size: usize,
    lower_bound: usize,
}

/// The order of launches: which ends before which begins.
pub(in crate::plan) struct Schedule<'a> {
    /// None if there are too many tasks to know all paths.
    pub reach: Option<Reach>,
    pub task_of: &'a [u32],
}

impl Schedule<'_> {
    /// Returns whether launch `a` ends before launch `b` begins.
    pub fn precedes(&self, a: u32, b: u32) -> bool {
        let (task_a, task_b) = (self.task_of[a as usize], self.task_of[b as usize]);
        if task_a == task_b {
            return a < b;
        }
        self.reach.as_ref().is_some_and(|reach| reach.precedes(task_a, task_b))
    }
}

/// The results of a section.
#[derive(Default)]
pub(in crate::plan) struct Results {
    pub sources: Vec<(Shaped, Source)>,
    pub written: Vec<Shaped>,
    pub result_of_written: Vec<u32>,
}
