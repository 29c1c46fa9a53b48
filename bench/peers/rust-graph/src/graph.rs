//! A graph as it is computed: predecessors and successors, values, and how many predecessors a node waits for.

use anyhow::{Context, Result, ensure};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Lists of nodes, one after the other in one array.
struct Lists {
    first: Vec<u32>,
    nodes: Vec<u32>,
}

impl Lists {
    fn of(&self, node: u32) -> &[u32] {
        &self.nodes[self.first[node as usize] as usize..self.first[node as usize + 1] as usize]
    }
}

/// A graph, and the state of a run.
pub struct Graph {
    predecessors: Lists,
    successors: Lists,
    sources: Vec<u32>,
    values: Vec<AtomicU64>,
    /// Predecessors that a node still waits for.
    waiting: Vec<AtomicU32>,
    /// Number of nodes not computed yet, for libraries without another way to know the end.
    left: AtomicUsize,
}

impl Graph {
    /// Reads the number of nodes, then for each its predecessors, their number first.
    ///
    /// # Errors
    /// For a file that is not there, or holds something else.
    pub fn read(path: &str) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
        let mut numbers = text.split_ascii_whitespace().map(str::parse::<u32>);
        let mut next = || anyhow::Ok(numbers.next().context("the file ends early")??);
        let n = next()?;
        ensure!(n > 0, "{path} has no nodes");
        let mut predecessors = Lists { first: vec![0], nodes: Vec::new() };
        for node in 0..n {
            for _ in 0..next()? {
                let predecessor = next()?;
                ensure!(predecessor < node, "node {node} comes after {predecessor}, which is later");
                predecessors.nodes.push(predecessor);
            }
            predecessors.first.push(predecessors.nodes.len() as u32);
        }
        let mut of: Vec<Vec<u32>> = vec![Vec::new(); n as usize];
        for node in 0..n {
            predecessors.of(node).iter().for_each(|&predecessor| of[predecessor as usize].push(node));
        }
        let mut successors = Lists { first: vec![0], nodes: Vec::new() };
        for list in of {
            successors.nodes.extend(list);
            successors.first.push(successors.nodes.len() as u32);
        }
        let degree = |node| predecessors.of(node).len() as u32;
        Ok(Self {
            sources: (0..n).filter(|&node| degree(node) == 0).collect(),
            values: (0..n).map(|_| AtomicU64::new(0)).collect(),
            waiting: (0..n).map(|node| AtomicU32::new(degree(node))).collect(),
            left: AtomicUsize::new(0),
            predecessors,
            successors,
        })
    }

    /// Returns the nodes without predecessors.
    pub fn sources(&self) -> &[u32] {
        &self.sources
    }

    /// The value of the last node, which wraps around.
    pub fn value(&self) -> i64 {
        self.values.last().map_or(0, |value| value.load(Ordering::Relaxed).cast_signed())
    }

    /// Computes a node and gives the successors that can be computed now.
    pub fn compute(&self, node: u32) -> impl Iterator<Item = u32> {
        let predecessors = self.predecessors.of(node);
        let own = u64::from(predecessors.len() <= 1);
        let value = |&node: &u32| self.values[node as usize].load(Ordering::Relaxed);
        let sum = predecessors.iter().fold(own, |sum, node| sum.wrapping_add(value(node)));
        self.values[node as usize].store(sum, Ordering::Relaxed);
        self.successors.of(node).iter().copied().filter(|&successor| self.arrive(successor))
    }

    /// Counts a ready predecessor of a node. Returns whether it was the last one.
    fn arrive(&self, node: u32) -> bool {
        let degree = self.predecessors.of(node).len() as u32;
        if degree == 1 {
            return true;
        }
        let waiting = &self.waiting[node as usize];
        let last = waiting.fetch_sub(1, Ordering::AcqRel) == 1;
        if last {
            waiting.store(degree, Ordering::Relaxed);
        }
        last
    }

    /// Begins a run that counts its nodes.
    pub fn begin(&self) {
        self.left.store(self.values.len(), Ordering::Release);
    }

    /// Counts a computed node. Returns whether it was the last one of the run.
    pub fn end(&self) -> bool {
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }
}
