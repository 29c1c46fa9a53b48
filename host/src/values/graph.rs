//! Graphs that the host interprets: steps over slots of values.
//!
//! A step is a segment, which a session runs, or a node of the host. Steps stand in an order in which each finds its
//! operands. A graph is immutable and shared by all runs; each run has slots of its own.

use super::ops::Work;
use super::{Value, ValueType};
use devbay_core::program::{Program, Region, ValueId};
use std::sync::Arc;

/// A model with values that no device holds.
pub struct HostGraph {
    /// The model's graph.
    pub main: Graph,
    /// Programs of the segments, of nested graphs too, by the numbers in [`Kind::Segment`].
    pub segments: Vec<Program>,
}

/// An input or output.
#[derive(Clone, Debug)]
pub struct GraphPort {
    /// Its name.
    pub name: Arc<str>,
    /// Its type.
    pub ty: ValueType,
}

/// A graph: inputs are in the first slots, then come captures.
pub struct Graph {
    /// Inputs, in the first slots.
    pub inputs: Vec<GraphPort>,
    /// Slots of values of the graph around it.
    pub captures: Vec<usize>,
    /// Constants and their slots.
    pub constants: Vec<(usize, Value)>,
    /// Steps in order.
    pub steps: Vec<Step>,
    /// Outputs and their slots.
    pub outputs: Vec<(GraphPort, usize)>,
    /// Number of slots.
    pub n_slots: usize,
}

/// A use of a slot. The last use takes the value, so that it may be changed in place, and its memory is freed early.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// The slot.
    pub slot: usize,
    /// Whether no later step uses it.
    pub is_last: bool,
}

/// One step.
pub struct Step {
    /// Name of the node, or of the segment's first one, for messages.
    pub label: String,
    /// Operands; None for an absent one.
    pub inputs: Vec<Option<Operand>>,
    /// Slots of results; None for one that is not used.
    pub outputs: Vec<Option<usize>>,
    /// The work.
    pub kind: Kind,
}

/// The work of a step.
pub enum Kind {
    /// A session's run of the segment with this number.
    Segment(usize),
    /// A function of values.
    Work(Work),
    /// One of two graphs, by the operand: the first one if it is true.
    If(Box<[Body; 2]>),
    /// A graph again and again.
    Loop(Box<Body>),
    /// A graph for each element of sequences.
    Map(Box<Body>),
}

/// A nested graph, and what it captures of the graph around it, in the order of [`Graph::captures`].
pub struct Body {
    /// The graph.
    pub graph: Graph,
    /// Slots of the graph around it.
    pub captures: Vec<Operand>,
}

impl Step {
    /// Calls `f` for each use of a slot, those of captures after the operands.
    fn visit(&mut self, f: &mut dyn FnMut(&mut Operand)) {
        self.inputs.iter_mut().flatten().for_each(&mut *f);
        let bodies: &mut [Body] = match &mut self.kind {
            Kind::If(bodies) => &mut bodies[..],
            Kind::Loop(body) | Kind::Map(body) => std::slice::from_mut(body),
            Kind::Segment(_) | Kind::Work(_) => &mut [],
        };
        bodies.iter_mut().flat_map(|body| &mut body.captures).for_each(f);
    }
}

impl Graph {
    /// Marks the last uses of slots. A value that is an output has none.
    pub fn mark_last_uses(&mut self) {
        let mut is_used = vec![false; self.n_slots];
        for (_, slot) in &self.outputs {
            is_used[*slot] = true;
        }
        for step in self.steps.iter_mut().rev() {
            let mut own: Vec<usize> = Vec::new();
            // Of several uses in one step none may take the value from the others.
            step.visit(&mut |operand| own.push(operand.slot));
            own.sort_unstable();
            let repeats = |slot: usize| own.iter().filter(|&&other| other == slot).count() > 1;
            step.visit(&mut |operand| operand.is_last = !is_used[operand.slot] && !repeats(operand.slot));
            for slot in own.iter() {
                is_used[*slot] = true;
            }
        }
    }
}

impl HostGraph {
    /// Returns all segments as one program, side by side: for questions about the ops of the model, not to run it.
    pub fn as_program(&self, name: &str) -> Program {
        let mut all = Program { name: name.to_owned(), ..Program::default() };
        for (i, segment) in self.segments.iter().enumerate() {
            let first = all.values.len() as u32;
            for value in &segment.values {
                let mut value = value.clone();
                if i > 0 && !value.name.is_empty() {
                    // Names of inputs and outputs differ from each other.
                    value.name = format!("segment{i}/{}", value.name).into();
                }
                all.values.push(value);
            }
            let mut region = segment.main.clone();
            shift(&mut region, first);
            all.main.inputs.extend(region.inputs);
            all.main.nodes.extend(region.nodes);
            all.main.outputs.extend(region.outputs);
        }
        all
    }
}

/// Adds to the numbers of a region's values.
fn shift(region: &mut Region, by: u32) {
    let shifted = |id: &mut ValueId| id.0 += by;
    region.inputs.iter_mut().chain(&mut region.outputs).for_each(shifted);
    for node in &mut region.nodes {
        node.inputs.iter_mut().chain(&mut node.outputs).flatten().for_each(shifted);
        node.regions.iter_mut().for_each(|(_, region)| shift(region, by));
    }
}
