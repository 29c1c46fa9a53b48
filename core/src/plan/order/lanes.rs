//! The lanes and memories of a section: the order in which its devices work, and the places of its values.
//!
//! Inputs and results live in the first memory. If several devices take part and one of them is asynchronous, the
//! section is *placed*: its first memory is the host's, devices that work there share it, and each other device has a
//! memory of its own with copies in between (`streams.rs` has the order of all that). Regions of control flow have streams
//! of their own, a set for each depth of nesting, because they run in turn (`regions.rs`).

use super::streams::Order;
use crate::plan::Env;
use crate::plan::steps::CopyKind;

/// Streams that a device with a memory of its own is given: for kernels, for copies to it, for copies from it.
pub(in crate::plan) const STREAMS: u32 = 3;

/// The purpose of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Kernels,
    Copies(CopyKind),
    /// Copies of constants that are streamed.
    Weights,
}

/// A lane of a section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::plan) struct Lane {
    /// The device, by its position in the environment.
    pub site: usize,
    /// The memory that its launches read and write.
    pub memory: u32,
    role: Role,
    /// Depth of its launches in control flow; 0 for inline calls, which need no order.
    depth: u32,
}

/// All lanes of a section.
pub(in crate::plan) struct Lanes {
    lanes: Vec<Lane>,
    /// The device that allocates each memory.
    memories: Vec<usize>,
    /// For each memory whether its copies have streams of their own.
    copy_streams: Vec<bool>,
    /// For each memory whether constants that are streamed have one more.
    weight_streams: Vec<bool>,
    placed: bool,
    /// Devices whose launches are inline calls, by position.
    inline: Vec<bool>,
    /// Depth of the next launches in control flow.
    pub depth: u32,
}

impl Lanes {
    /// Returns the lanes for launches on these devices, with the host's memory among theirs where constants are
    /// streamed from it.
    pub fn new(env: &Env, mut sites: Vec<usize>, streams_weights: bool) -> Self {
        if streams_weights {
            sites.extend(env.home_site());
        }
        sites.sort_unstable();
        sites.dedup();
        if sites.is_empty() {
            // Views alone need no device, but memory that can be viewed.
            let is_plain = |site: &usize| !env.site(*site).0.space().write_once;
            sites.push((0..env.n_sites()).find(is_plain).unwrap_or(0));
        }
        let inline: Vec<bool> = (0..env.n_sites()).map(|site| env.site(site).0.about().inline).collect();
        let mut lanes = Self {
            lanes: Vec::new(),
            memories: Vec::new(),
            copy_streams: Vec::new(),
            weight_streams: Vec::new(),
            placed: sites.len() > 1 && !sites.iter().all(|&site| inline[site]),
            inline,
            depth: 0,
        };
        let placed = lanes.placed;
        if let Some(home) = env.home_site().filter(|_| placed) {
            sites.retain(|&site| site != home);
            sites.insert(0, home);
        }
        for site in sites {
            let memory = match lanes.memories.is_empty() || (placed && !env.reads_host_memory(site)) {
                true => {
                    let (device, _) = env.site(site);
                    let has_room =
                        |n: u32| device.about().streams_max == 0 || device.about().streams_max >= n;
                    lanes.memories.push(site);
                    lanes.copy_streams.push(has_room(STREAMS) && device.can_wait());
                    lanes.weight_streams.push(has_room(STREAMS + 1) && device.can_wait());
                    lanes.memories.len() as u32 - 1
                }
                false => 0,
            };
            lanes.lanes.push(Lane { site, memory, role: Role::Kernels, depth: 0 });
        }
        lanes
    }

    /// Returns whether launches are ordered by lanes, with copies in between.
    pub fn are_placed(&self) -> bool {
        self.placed
    }

    /// Returns the device of the first memory.
    pub fn home(&self) -> usize {
        self.memories[0]
    }

    pub fn len(&self) -> usize {
        self.lanes.len()
    }

    pub fn get(&self, lane: u32) -> Lane {
        self.lanes[lane as usize]
    }

    pub fn iter(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter()
    }

    /// Returns the device that allocates a memory.
    pub fn site_of(&self, memory: u32) -> usize {
        self.memories[memory as usize]
    }

    /// Returns the devices that allocate the memories, in their order.
    pub fn memories(&self) -> impl Iterator<Item = usize> {
        self.memories.iter().copied()
    }

    /// Returns the memory that a device's kernels work in.
    pub fn memory_of(&self, site: usize) -> u32 {
        self.lanes.iter().find(|lane| lane.site == site).map_or(0, |lane| lane.memory)
    }

    /// The lane of a device's kernels.
    pub fn for_kernels(&mut self, site: usize) -> u32 {
        let depth = if self.inline[site] { 0 } else { self.depth };
        self.lane(Lane { site, memory: self.memory_of(site), role: Role::Kernels, depth })
    }

    /// The number of a lane, which is added if it is new.
    fn lane(&mut self, wanted: Lane) -> u32 {
        let known = self.lanes.iter().position(|&lane| lane == wanted);
        known.unwrap_or_else(|| {
            self.lanes.push(wanted);
            self.lanes.len() - 1
        }) as u32
    }

    /// The lane of the copies between the first memory and another.
    pub fn for_copies(&mut self, kind: CopyKind, memory: u32) -> u32 {
        let site = self.memories[memory as usize];
        if !self.copy_streams[memory as usize] {
            return self.for_kernels(site);
        }
        let depth = if self.inline[site] { 0 } else { self.depth };
        self.lane(Lane { site, memory, role: Role::Copies(kind), depth })
    }

    /// The lane of constants that are streamed to a memory.
    pub fn for_weights(&mut self, memory: u32) -> u32 {
        if !self.weight_streams[memory as usize] {
            return self.for_copies(CopyKind::ToDevice, memory);
        }
        let site = self.memories[memory as usize];
        self.lane(Lane { site, memory, role: Role::Weights, depth: 0 })
    }

    /// The lane of copies within a memory.
    pub fn for_moves(&mut self, memory: u32) -> u32 {
        self.for_kernels(self.memories[memory as usize])
    }

    /// Returns the order of work on each lane.
    pub fn orders(&self, env: &Env) -> Vec<Order> {
        let order = |(i, lane): (usize, &Lane)| {
            let (device, _) = env.site(lane.site);
            match (device.about().inline, device.can_wait()) {
                (true, _) => Order::Inline,
                (false, true) => Order::Stream { group: lane.site as u32 },
                // Alone: behind the groups of devices.
                (false, false) => Order::Stream { group: (env.n_sites() + i) as u32 },
            }
        };
        self.lanes.iter().enumerate().map(order).collect()
    }

    /// A lane's name.
    pub fn name(&self, env: &Env, lane: &Lane) -> String {
        let device = env.site(lane.site).0.name();
        match lane.role {
            Role::Kernels => device.to_owned(),
            Role::Copies(CopyKind::ToDevice) => format!("copies to {device}"),
            Role::Weights => format!("weights to {device}"),
            Role::Copies(_) => format!("copies from {device}"),
        }
    }
}
