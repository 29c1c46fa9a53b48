//! Where regions of control flow begin and end among a section's launches, and the edges that cross their borders.

use super::tasks::Edges;
use std::collections::HashMap;

/// The regions of a section, and the launches that lead in and out of them.
#[derive(Default)]
pub(crate) struct Regions {
    /// The region of each launch, set when all are known; 0 for the section itself.
    pub region_of: Vec<u32>,
    pub controls: Vec<Control>,
    /// The control flow that each entry is of, and each exit.
    entries: HashMap<u32, usize>,
    exits: HashMap<u32, usize>,
    /// Regions from 1 on.
    regions: Vec<Region>,
}

/// The launches of a control-flow node, which are all that is between entry and exit.
pub(crate) struct Control {
    pub entry: u32,
    pub exit: u32,
    pub is_loop: bool,
    pub regions: Vec<u32>,
}

/// A region of control flow.
pub(crate) struct Region {
    control: u32,
    /// The region around it.
    pub parent: u32,
    depth: u32,
}

impl Regions {
    /// Regions, the section's own counted.
    pub fn len(&self) -> usize {
        self.regions.len() + 1
    }

    /// Adds control flow that begins with a launch; gives its number.
    pub fn enter(&mut self, entry: u32, is_loop: bool) -> usize {
        let control = self.controls.len();
        self.controls.push(Control { entry, exit: entry, is_loop, regions: Vec::new() });
        self.entries.insert(entry, control);
        control
    }

    /// Adds a region of control flow within another region; gives its number.
    pub fn open(&mut self, control: usize, parent: u32) -> u32 {
        let depth = self.depth(parent) + 1;
        self.regions.push(Region { control: control as u32, parent, depth });
        let region = self.regions.len() as u32;
        self.controls[control].regions.push(region);
        region
    }

    /// Ends control flow with a launch.
    pub fn leave(&mut self, control: usize, exit: u32) {
        self.controls[control].exit = exit;
        self.exits.insert(exit, control);
    }

    /// Returns the region of a launch.
    pub fn of(&self, launch: u32) -> u32 {
        self.region_of.get(launch as usize).copied().unwrap_or(0)
    }

    /// Returns the control flow that a region is of.
    pub fn control(&self, region: u32) -> Option<&Control> {
        Some(&self.controls[self.at(region)?.control as usize])
    }

    /// Returns the control flow that a launch is the entry of.
    pub fn entered_at(&self, launch: u32) -> Option<&Control> {
        self.entries.get(&launch).map(|&control| &self.controls[control])
    }

    /// Returns whether a launch is an entry or an exit.
    pub fn is_control(&self, launch: u32) -> bool {
        self.entries.contains_key(&launch) || self.exits.contains_key(&launch)
    }

    /// A region; None for the section itself.
    pub fn at(&self, region: u32) -> Option<&Region> {
        self.regions.get((region as usize).checked_sub(1)?)
    }

    /// Returns the depth of a region; 0 for the section itself.
    pub fn depth(&self, region: u32) -> u32 {
        self.at(region).map_or(0, |region| region.depth)
    }

    /// Lifts an edge between launches to one between launches of one region; None if it is implied. From a region out
    /// it begins at the exit, into a region it ends at the entry. An edge from before the
    /// entry to the exit ends at the entry.
    fn lift(&self, pred: u32, launch: u32) -> Option<(u32, u32)> {
        let (mut pred, mut launch) = (pred, launch);
        if let Some(control) = self.exits.get(&launch).map(|&control| &self.controls[control]) {
            if pred >= control.entry {
                return None;
            }
            launch = control.entry;
        }
        let (mut from, mut to) = (self.of(pred), self.of(launch));
        while from != to {
            if self.depth(from) >= self.depth(to) {
                let (region, control) = (self.at(from)?, self.control(from)?);
                (pred, from) = (control.exit, region.parent);
            } else {
                let (region, control) = (self.at(to)?, self.control(to)?);
                (launch, to) = (control.entry, region.parent);
            }
        }
        (pred != launch).then_some((pred, launch))
    }

    /// Returns the edges of launches: within regions, from entries to the first launches, and from the last launches to
    /// exits.
    pub fn edges(&self, preds_of: impl Fn(usize) -> Vec<u32>) -> Edges {
        let n = self.region_of.len();
        let mut edges: Vec<Vec<u32>> = vec![Vec::new(); n];
        for launch in 0..n {
            for pred in preds_of(launch) {
                if let Some((pred, launch)) = self.lift(pred, launch as u32) {
                    edges[launch as usize].push(pred);
                }
            }
        }
        for control in &self.controls {
            edges[control.exit as usize].push(control.entry);
        }
        let mut is_last = vec![true; n];
        edges.iter().flatten().for_each(|&pred| is_last[pred as usize] = false);
        for launch in 0..n as u32 {
            let Some(control) = self.control(self.of(launch)) else {
                continue;
            };
            if edges[launch as usize].is_empty() {
                edges[launch as usize].push(control.entry);
            }
            if is_last[launch as usize] {
                edges[control.exit as usize].push(launch);
            }
        }
        let mut all = Edges::new();
        edges.into_iter().for_each(|preds| all.push(preds));
        all
    }
}
