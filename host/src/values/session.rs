//! A model with values of the host on a device: its graph, and a session for each segment.

use super::graph::HostGraph;
use super::run::Run;
use super::{Value, graph::Graph};
use crate::model::Model;
use crate::session::{RunOptions, Session, SessionOptions};
use devbay_core::device::Device;
use devbay_core::exec::cancel::Cancel;
use devbay_core::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::time::Instant;

/// A model's graph, and its segments as models, which sessions share.
pub struct HostModel {
    graph: Graph,
    segments: Vec<Model>,
}

impl HostModel {
    /// Makes models of the segments.
    pub fn new(host: HostGraph) -> Self {
        let segments = host.segments.into_iter().map(Model::of_segment).collect();
        Self { graph: host.main, segments }
    }

    /// Returns the model's graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }
}

/// Sessions of a model's segments.
pub struct HostSession {
    model: Arc<HostModel>,
    sessions: Vec<Session>,
}

impl HostSession {
    /// Makes a session for each segment. A pin holds in the segment that has the node.
    ///
    /// # Errors
    /// As [`Session::with_options`]; [`ErrorKind::InvalidArgument`] for buckets, which these models do not have.
    pub fn new(model: &Arc<HostModel>, device: &Arc<Device>, options: &SessionOptions) -> Result<Self> {
        if options.buckets.is_some() {
            let text = "buckets pad the inputs of a whole program; a model with strings, sequences, optionals or maps has none";
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let has = |segment: &Model, name: &str| {
            let mut found = false;
            segment.program().main.visit(&mut |node| found |= !name.is_empty() && *node.name == *name);
            found
        };
        if let Some((name, _)) =
            options.pins.iter().find(|(name, _)| !model.segments.iter().any(|s| has(s, name)))
        {
            let text = format!("there is no node `{name}` that a device runs, to be pinned");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let session = |segment: &Model| {
            let mut own = SessionOptions { runs_max: None, ..options.clone() };
            own.pins.retain(|(name, _)| has(segment, name));
            Session::with_options(segment, device, own)
        };
        let sessions = model.segments.iter().map(session).collect::<Result<_>>()?;
        Ok(Self { model: Arc::clone(model), sessions })
    }

    /// Returns the sessions of the segments, in the order of their numbers.
    pub fn segments(&self) -> &[Session] {
        &self.sessions
    }

    /// Runs on inputs in the model's order, which fit their types.
    ///
    /// # Errors
    /// The first error of a node of the host, or of a segment.
    pub fn run(
        &self,
        inputs: Vec<Value>,
        options: &RunOptions,
        cancel: Option<&Cancel>,
        until: Option<Instant>,
    ) -> Result<Vec<Value>> {
        let options = RunOptions { cancel: None, deadline: None, ..options.clone() };
        let run = Run { sessions: &self.sessions, cancel, until, options: &options };
        Cancel::over(cancel, || run.graph(&self.model.graph, inputs, &[]))
    }
}
