//! Graphs for `executor`: the same numbers of nodes and edges for devbay and for every peer.
//!
//! A node's value is the sum of its predecessors' values, plus one if it has at most one predecessor; sums wrap at 64 bits.
//! The graph's value is its last node's. The graphs are those of the peers' first measurements: splitmix64, seeded with 42
//! for each graph; a number below `n` is the remainder of the next one.
//!
//! | shape | structure for about n nodes | nodes |
//! | --- | --- | --- |
//! | `one` | one node | 1 |
//! | `chain` | each after the one before | n |
//! | `wide` | a source, n parallel nodes, a sink | n + 2 |
//! | `tree` | leaves whose sums are added in pairs, as many as the power of two nearest to n / 2 | 2 leaves - 1 |
//! | `layers` | 100 layers of n / 100, each node after two different ones of the layer before, a sink | n + 1 |
//! | `random` | each after one to five different earlier ones, a sink after those without a successor | n |
//!
//! The sinks have an in-degree of a tenth of the graph or more.

use anyhow::{Context, Result};
use devbay_core::program::{AttrValue, Node, Op, Program, Value};
use devbay_core::tensor::{I64, TensorType};
use devbay_host::internals::random::Random;
use std::fmt::Write;
use std::path::Path;

/// A graph: nodes, each after its predecessors.
pub struct Graph {
    /// Start of each node's predecessors; the last entry is the end of all.
    first: Vec<u32>,
    predecessors: Vec<u32>,
}

/// Kind of work in a graph's nodes.
#[derive(Clone, Copy)]
pub enum Work {
    /// Only a sum.
    Sum,
    /// A sum, and this many nanoseconds of arithmetic.
    Busy(u32),
}

/// Shapes with a size.
pub const SHAPES: [&str; 5] = ["chain", "wide", "tree", "layers", "random"];

impl Graph {
    /// Builds a graph of a shape, of about `n` nodes.
    ///
    /// # Errors
    /// For a shape that is not in the table.
    pub fn of(shape: &str, n: usize) -> Result<Self> {
        Ok(match shape {
            "one" => Self::chain(1),
            "chain" => Self::chain(n),
            "wide" => Self::wide(n),
            "tree" => Self::tree(n),
            "layers" => Self::layers(n),
            "random" => Self::random(n),
            _ => anyhow::bail!("there is no shape `{shape}`"),
        })
    }

    fn empty() -> Self {
        Self { first: vec![0], predecessors: Vec::new() }
    }

    fn push(&mut self, predecessors: impl IntoIterator<Item = usize>) {
        self.predecessors.extend(predecessors.into_iter().map(|node| node as u32));
        self.first.push(self.predecessors.len() as u32);
    }

    /// Adds a node after all nodes without a successor.
    fn push_sink(&mut self) {
        let mut followed = vec![false; self.len()];
        self.predecessors.iter().for_each(|&node| followed[node as usize] = true);
        self.push((0..followed.len()).filter(|&node| !followed[node]));
    }

    fn chain(n: usize) -> Self {
        let mut graph = Self::empty();
        (0..n).for_each(|node| graph.push(node.checked_sub(1)));
        graph
    }

    fn wide(n: usize) -> Self {
        let mut graph = Self::empty();
        graph.push(None);
        (0..n).for_each(|_| graph.push([0]));
        graph.push(1..=n);
        graph
    }

    fn tree(n: usize) -> Self {
        let mut graph = Self::empty();
        let n_leaves = 1 << ((n / 2) as f64).log2().round() as u32;
        (0..n_leaves).for_each(|_| graph.push(None));
        // Nodes are stored level by level, so the next pair is the next two nodes without a successor.
        (0..n_leaves - 1).for_each(|pair| graph.push([2 * pair, 2 * pair + 1]));
        graph
    }

    fn layers(n: usize) -> Self {
        const LAYERS: usize = 100;
        let width = n / LAYERS;
        let (mut graph, mut random) = (Self::empty(), Random(42));
        (0..width).for_each(|_| graph.push(None));
        for layer in 1..LAYERS {
            for _ in 0..width {
                let a = random.below(width);
                let mut b = random.below(width);
                while b == a {
                    b = random.below(width);
                }
                graph.push([(layer - 1) * width + a, (layer - 1) * width + b]);
            }
        }
        graph.push_sink();
        graph
    }

    fn random(n: usize) -> Self {
        let (mut graph, mut random) = (Self::empty(), Random(42));
        graph.push(None);
        for node in 1..n - 1 {
            let wanted = node.min(1 + random.below(5));
            let mut chosen = Vec::with_capacity(wanted);
            while chosen.len() < wanted {
                let predecessor = random.below(node);
                if !chosen.contains(&predecessor) {
                    chosen.push(predecessor);
                }
            }
            graph.push(chosen);
        }
        graph.push_sink();
        graph
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.first.len() - 1
    }

    /// Returns the predecessors of a node.
    pub fn predecessors(&self, node: usize) -> &[u32] {
        &self.predecessors[self.first[node] as usize..self.first[node + 1] as usize]
    }

    /// Returns the graph's value.
    pub fn value(&self) -> i64 {
        let mut values = Vec::with_capacity(self.len());
        for node in 0..self.len() {
            let predecessors = self.predecessors(node);
            let own = i64::from(predecessors.len() <= 1);
            let add = |sum: i64, &node: &u32| sum.wrapping_add(values[node as usize]);
            values.push(predecessors.iter().fold(own, add));
        }
        values.last().copied().unwrap_or_default()
    }

    /// Returns its value in floating-point numbers, which do not wrap.
    pub fn value_f64(&self) -> f64 {
        let mut values: Vec<f64> = Vec::with_capacity(self.len());
        for node in 0..self.len() {
            let predecessors = self.predecessors(node);
            let own = if predecessors.len() <= 1 { 1.0 } else { 0.0 };
            values.push(predecessors.iter().fold(own, |sum, &node| sum + values[node as usize]));
        }
        values.last().copied().unwrap_or_default()
    }

    /// Returns the graph as a program of the bench plugin's ops. Nodes without predecessors add to the input, 0.
    pub fn program(&self, work: Work) -> Program {
        let mut program = Program { name: "graph".to_owned(), ..Program::default() };
        let x = program.add_typed("x", TensorType::new(I64, &[1]));
        program.main.inputs = vec![x];
        let (name, ns) = match work {
            Work::Sum => ("Node", None),
            Work::Busy(ns) => ("Busy", Some(ns)),
        };
        let op = Op { domain: "bench".into(), name: name.into(), version: 1 };
        let mut made = Vec::with_capacity(self.len());
        for node in 0..self.len() {
            let mut inputs: Vec<_> =
                self.predecessors(node).iter().map(|&node| Some(made[node as usize])).collect();
            if inputs.is_empty() {
                inputs.push(Some(x));
            }
            let value = program.add_value(Value::default());
            let mut node = Node::new(op.clone(), inputs, vec![Some(value)]);
            if let Some(ns) = ns {
                node.set_attr("ns", AttrValue::Int(i64::from(ns)));
            }
            program.main.nodes.push(node);
            made.push(value);
        }
        if let Some(&last) = made.last() {
            program.value_mut(last).name = "y".into();
            program.main.outputs = vec![last];
        }
        program
    }

    /// Writes the graph for peers: the number of nodes, then one line per node with its predecessors, preceded by their
    /// number.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = String::new();
        writeln!(text, "{}", self.len())?;
        for node in 0..self.len() {
            let predecessors = self.predecessors(node);
            write!(text, "{}", predecessors.len())?;
            predecessors.iter().try_for_each(|node| write!(text, " {node}"))?;
            text.push('\n');
        }
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The graphs of the peers' first measurements: nodes, edges, maximum in-degree, value.
    #[test]
    fn graphs_are_those_that_peers_were_measured_with() {
        let known = [
            ("one", 1, (1, 0, 0, 1)),
            ("chain", 1000, (1000, 999, 1, 1000)),
            ("chain", 10_000, (10_000, 9999, 1, 10_000)),
            ("wide", 1000, (1002, 2000, 1000, 2000)),
            ("wide", 10_000, (10_002, 20_000, 10_000, 20_000)),
            ("tree", 1000, (1023, 1022, 2, 512)),
            ("layers", 10_000, (10_001, 21_256, 1456, 14_449_322_282_094_817_779)),
            ("random", 10_000, (10_000, 32_211, 2449, 18_300_018_383)),
        ];
        for (shape, n, expected) in known {
            let graph = Graph::of(shape, n).expect("a shape of the table");
            let degrees = (0..graph.len()).map(|node| graph.predecessors(node).len());
            let found = (
                graph.len(),
                graph.predecessors.len(),
                degrees.max().unwrap_or_default(),
                graph.value().cast_unsigned(),
            );
            assert_eq!(found, expected, "{shape} {n}");
        }
    }

    #[test]
    fn a_tree_has_about_as_many_nodes_as_wanted() {
        for (n, expected) in [(1000, 1023), (10_000, 8191), (100_000, 131_071), (1_000_000, 1_048_575)] {
            assert_eq!(Graph::of("tree", n).expect("a shape of the table").len(), expected);
        }
    }
}
