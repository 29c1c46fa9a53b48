//! Running a graph of the host: step by step, on slots of the run's own.

use super::graph::{Graph, Kind, Operand, Step};
use super::{Value, control};
use crate::session::{RunOptions, Session};
use devbay_core::exec::cancel::Cancel;
use devbay_core::exec::host_io::InputView;
use devbay_core::{Error, ErrorKind, Result};
use std::time::Instant;

/// One run: the sessions of the segments, and the limits that all of them keep.
pub struct Run<'a> {
    /// Sessions of the segments by number.
    pub sessions: &'a [Session],
    /// Cancels the run.
    pub cancel: Option<&'a Cancel>,
    /// When the run's time is over.
    pub until: Option<Instant>,
    /// Options of the segments' runs, without those two.
    pub options: &'a RunOptions,
}

/// The values of a graph during a run.
struct Slots(Vec<Option<Value>>);

impl Slots {
    /// Returns a value, which is taken at its last use.
    fn read(&mut self, operand: Operand) -> Result<Value> {
        let value = &mut self.0[operand.slot];
        let found = if operand.is_last { value.take() } else { value.clone() };
        found.ok_or_else(|| Error::new(ErrorKind::Internal, "a value of the host is used before it is made"))
    }
}

impl Run<'_> {
    /// Runs a graph on its inputs and captures, and returns its outputs.
    pub fn graph(&self, graph: &Graph, inputs: Vec<Value>, captures: &[Value]) -> Result<Vec<Value>> {
        let mut slots = Slots(vec![None; graph.n_slots]);
        for (slot, value) in inputs.into_iter().enumerate() {
            slots.0[slot] = Some(value);
        }
        for (&slot, value) in graph.captures.iter().zip(captures) {
            slots.0[slot] = Some(value.clone());
        }
        for (slot, value) in &graph.constants {
            slots.0[*slot] = Some(value.clone());
        }
        for step in &graph.steps {
            Cancel::check(self.cancel)?;
            self.step(step, &mut slots).map_err(|error| error.at_node(&step.label))?;
        }
        let output = |(_, slot): &(_, usize)| slots.read(Operand { slot: *slot, is_last: false });
        graph.outputs.iter().map(output).collect()
    }

    fn step(&self, step: &Step, slots: &mut Slots) -> Result<()> {
        let inputs = step.inputs.iter().map(|operand| operand.map(|operand| slots.read(operand)).transpose());
        let inputs = inputs.collect::<Result<Vec<Option<Value>>>>()?;
        let mut captured = |captures: &[Operand]| {
            captures.iter().map(|&operand| slots.read(operand)).collect::<Result<Vec<Value>>>()
        };
        let results = match &step.kind {
            Kind::Segment(i) => self.segment(*i, inputs)?,
            Kind::Work(work) => work(inputs)?,
            Kind::If(bodies) => {
                let captures = [captured(&bodies[0].captures)?, captured(&bodies[1].captures)?];
                control::branch(self, bodies, &captures, inputs)?
            }
            Kind::Loop(body) => {
                control::repeat(self, body, &captured(&body.captures)?, inputs, step.outputs.len())?
            }
            Kind::Map(body) => control::map(self, body, &captured(&body.captures)?, inputs)?,
        };
        for (slot, value) in step.outputs.iter().zip(results) {
            if let Some(slot) = slot {
                slots.0[*slot] = Some(value);
            }
        }
        Ok(())
    }

    /// Runs a segment on tensors.
    fn segment(&self, i: usize, inputs: Vec<Option<Value>>) -> Result<Vec<Value>> {
        let tensors = inputs.into_iter().flatten().map(Value::into_tensor).collect::<Result<Vec<_>>>()?;
        let views: Vec<InputView<'_>> = tensors.iter().map(InputView::of).collect();
        let deadline = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        let options = RunOptions { cancel: self.cancel.cloned(), deadline, ..self.options.clone() };
        Ok(self.sessions[i].run_in_order(&views, &options)?.into_iter().map(Value::from).collect())
    }
}
