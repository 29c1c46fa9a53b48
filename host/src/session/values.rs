//! Sessions of models with strings, sequences, optionals and maps, and runs on any values.

use super::{Port, RunOptions, Session, SessionOptions, ports};
use crate::model::Model;
use crate::run::{InFlight, Run};
use crate::values::Value;
use crate::values::session::{HostModel, HostSession};
use devbay_core::device::Device;
use devbay_core::error::{Error, ErrorKind, Result, caught};
use devbay_core::exec::cancel::Cancel;
use devbay_core::exec::unit::Unit;
use devbay_core::plan::{Env, Placement};
use devbay_core::program::Program;
use devbay_core::tensor::Tensor;
use std::sync::Arc;
use std::time::Instant;

impl Session {
    /// Makes the session of a model whose graph the host interprets.
    pub(super) fn of_values(
        model: &Model,
        host: &Arc<HostModel>,
        device: &Arc<Device>,
        options: SessionOptions,
    ) -> Result<Self> {
        let values = HostSession::new(host, device, &options)?;
        let SessionOptions { plans, others, pins, by, runs_max, .. } = options;
        let placement = Placement { device: Arc::clone(device), others, pins, by };
        // The segments have the programs; the whole has none that a device could run.
        let nothing = Program { name: model.program().name.clone(), ..Program::default() };
        let graph = host.graph();
        Ok(Self {
            unit: Arc::new(Unit::of_model(&nothing, Env::placed(&placement, plans))?),
            device: Arc::clone(device),
            inputs: graph.inputs.iter().map(Port::of_graph).collect(),
            outputs: graph.outputs.iter().map(|(port, _)| Port::of_graph(port)).collect(),
            only_plan: None,
            in_flight: runs_max.map(|runs_max| InFlight::new(runs_max.get())),
            failover: None,
            buckets: None,
            values: Some(Arc::new(values)),
        })
    }

    /// Returns the sessions of the segments that devices run, if the host interprets the model's graph; else none.
    pub fn segments(&self) -> &[Session] {
        self.values.as_ref().map(|values| values.segments()).unwrap_or_default()
    }

    /// Returns whether the host interprets the model's graph, because it has strings, sequences, optionals or maps.
    pub fn has_values(&self) -> bool {
        self.values.is_some()
    }

    /// Runs on values by name and returns the outputs in the model's order: tensors, strings, sequences, optionals, maps.
    ///
    /// An optional input also takes a value that is not wrapped. Works for every model; one without such values takes and
    /// returns tensors.
    ///
    /// # Errors
    /// As [`Session::run_with`]; [`ErrorKind::InvalidInput`] for a value of another type than the model takes.
    pub fn run_values(&self, inputs: &[(&str, &Value)], options: &RunOptions) -> Result<Vec<Value>> {
        let given = ports::in_order(&self.inputs, inputs)?.into_iter().cloned().collect::<Vec<Value>>();
        ports::check_values(&self.inputs, &given)?;
        if self.values.is_some() {
            return self.run_hosted(given, options);
        }
        let tensors = given.into_iter().map(Value::into_tensor).collect::<Result<Vec<_>>>()?;
        let names = self.inputs.iter().map(|port| &*port.name);
        let named: Vec<(&str, &Tensor)> = names.zip(&tensors).collect();
        Ok(self.run_with(&named, options)?.into_iter().map(Value::from).collect())
    }

    /// Runs the model's graph on values that fit their types.
    fn run_hosted(&self, inputs: Vec<Value>, options: &RunOptions) -> Result<Vec<Value>> {
        let Some(values) = &self.values else {
            return Err(Error::new(ErrorKind::Internal, "the session has no graph of the host"));
        };
        let until = until(options);
        let limits = self.limit(options)?;
        values.run(inputs, options, limits.cancel.as_ref(), until)
    }

    /// Runs on tensors a model whose ports are all tensors of numbers, in the model's order.
    pub(super) fn run_hosted_tensors(
        &self,
        inputs: Vec<Tensor>,
        options: &RunOptions,
    ) -> Result<Vec<Tensor>> {
        self.check_only_tensors()?;
        let given: Vec<Value> = inputs.into_iter().map(Value::from).collect();
        ports::check_values(&self.inputs, &given)?;
        self.run_hosted(given, options)?.into_iter().map(Value::into_tensor).collect()
    }

    /// Starts a run of such a model on a thread that may wait.
    pub(super) fn start_hosted(&self, inputs: Vec<Tensor>, options: &RunOptions) -> Result<Run> {
        self.check_only_tensors()?;
        let given: Vec<Value> = inputs.into_iter().map(Value::from).collect();
        ports::check_values(&self.inputs, &given)?;
        let cancel = options.cancel.clone().unwrap_or_default();
        let (setter, run) = Run::new(self.outputs.len(), cancel.clone());
        let until = until(options);
        let limits = self.limit(&RunOptions { cancel: Some(cancel.clone()), ..options.clone() })?;
        let (values, options, priority) = (self.values.clone(), options.clone(), options.priority);
        let job = move || {
            let work = || {
                Cancel::check(Some(&cancel))?;
                let Some(values) = &values else { return Ok(Vec::new()) };
                values
                    .run(given, &options, Some(&cancel), until)?
                    .into_iter()
                    .map(Value::into_tensor)
                    .collect()
            };
            let outcome = caught("the run", work).flatten();
            drop(limits);
            setter.set(outcome);
        };
        self.device.plugin().services().queue().spawn_blocking(priority, job);
        Ok(run)
    }

    /// Refuses a call that only a whole program has.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedModel`].
    pub(super) fn refuse_values(&self, what: &str) -> Result<()> {
        if self.values.is_none() {
            return Ok(());
        }
        let text = format!(
            "{what}: the host interprets the model, which has strings, sequences, optionals or maps; its {} segments are programs (`Session::segments`)",
            self.segments().len()
        );
        Err(Error::new(ErrorKind::UnsupportedModel, text))
    }

    /// Refuses a run on tensors of a model that takes or returns other values.
    fn check_only_tensors(&self) -> Result<()> {
        match self.inputs.iter().chain(&self.outputs).find(|port| !port.value.is_numeric()) {
            None => Ok(()),
            Some(port) => {
                let text = format!(
                    "`{}` is {}, no tensor of numbers: run the model with `Session::run_values`",
                    port.name, port.value
                );
                Err(Error::new(ErrorKind::InvalidInput, text))
            }
        }
    }
}

/// Returns when the time of a run is over.
fn until(options: &RunOptions) -> Option<Instant> {
    options.deadline.and_then(|deadline| Instant::now().checked_add(deadline))
}
