//! Asynchronous runs: their results as async values, and the limit on their number.

use devbay_core::async_value::{AsyncValueRef, AsyncValueSetter, AwaitedValue};
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::exec::cancel::Cancel;
use devbay_core::tensor::Tensor;
use devbay_plugin_api::locks::{lock, unpoisoned, wait};
use std::future::IntoFuture;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// A started run. Dropping it neither ends nor waits for the run.
///
/// Awaiting it returns the outputs in the model's order.
pub struct Run {
    outputs: Vec<AsyncValueRef<Tensor>>,
    /// All outputs; set after each single output, once the run holds no more resources.
    results: AsyncValueRef<Vec<Tensor>>,
    cancel: Cancel,
}

/// Setter of a run's results.
pub(crate) struct RunSetter {
    outputs: Vec<AsyncValueSetter<Tensor>>,
    results: AsyncValueSetter<Vec<Tensor>>,
}

impl Run {
    pub(crate) fn new(n_outputs: usize, cancel: Cancel) -> (RunSetter, Self) {
        let (setters, outputs) = (0..n_outputs).map(|_| AsyncValueRef::unconstructed()).unzip();
        let (setter, results) = AsyncValueRef::unconstructed();
        (RunSetter { outputs: setters, results: setter }, Self { outputs, results, cancel })
    }

    /// Returns the outputs. When the run has ended, each is present, or all have the run's error.
    pub fn outputs(&self) -> &[AsyncValueRef<Tensor>] {
        &self.outputs
    }

    /// Returns all outputs together.
    pub fn results(&self) -> &AsyncValueRef<Vec<Tensor>> {
        &self.results
    }

    /// Returns whether the run has ended, successfully or not.
    pub fn has_ended(&self) -> bool {
        self.results.is_concrete()
    }

    /// Ends the run at its next check: between launches, or between chunks of parallel loops. Work in flight on a device
    /// still completes. A queued run will not start.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Waits for the outputs.
    ///
    /// **Threads**: blocks, parked. Not for jobs and waiters of async values: the run may be queued behind them.
    ///
    /// # Errors
    /// As [`Session::run`](crate::session::Session::run); [`ErrorKind::Internal`] if the run panicked.
    pub fn wait(&self) -> Result<Vec<Tensor>> {
        self.results.wait().cloned().map_err(Error::clone)
    }

    /// Waits as [`Run::wait`] does; None if the run has not ended after that time.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<Result<Vec<Tensor>>> {
        self.results.wait_timeout(timeout).map(|outcome| outcome.cloned().map_err(Error::clone))
    }
}

impl IntoFuture for Run {
    type Output = <AwaitedValue<Vec<Tensor>> as Future>::Output;
    type IntoFuture = AwaitedValue<Vec<Tensor>>;

    fn into_future(self) -> Self::IntoFuture {
        self.results.into_future()
    }
}

impl RunSetter {
    /// Sets the run's outcome.
    pub fn set(mut self, outcome: Result<Vec<Tensor>>) {
        // This is the only setter, so setting never fails.
        match outcome {
            Ok(tensors) => {
                for (output, tensor) in self.outputs.iter_mut().zip(&tensors) {
                    let _ = output.emplace(tensor.clone());
                }
                let _ = self.results.emplace(tensors);
            }
            Err(error) => {
                for output in &mut self.outputs {
                    let _ = output.set_error(error.clone());
                }
                let _ = self.results.set_error(error);
            }
        }
    }
}

/// Behaviour of a run when the maximum number of runs is in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnFull {
    /// It fails at once with [`ErrorKind::Busy`].
    #[default]
    Refuse,
    /// It blocks the starting thread until a run has ended, or it is cancelled or past its deadline.
    Wait,
}

/// Interval at which a waiting run checks for cancellation.
const LOOK: Duration = Duration::from_millis(5);

/// The runs of a session that are in flight, if limited.
pub(crate) struct InFlight {
    runs_max: usize,
    n_runs: Mutex<usize>,
    ended: Condvar,
}

/// A run's place among those in flight; dropping it releases the place.
pub(crate) struct Admission(Arc<InFlight>);

impl InFlight {
    pub fn new(runs_max: usize) -> Arc<Self> {
        Arc::new(Self { runs_max: runs_max.max(1), n_runs: Mutex::new(0), ended: Condvar::new() })
    }

    /// Takes a place for a run.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`]; cancelled or past the deadline while waiting.
    pub fn admit(this: &Arc<Self>, on_full: OnFull, cancel: Option<&Cancel>) -> Result<Admission> {
        let mut n_runs = this.lock();
        while *n_runs == this.runs_max {
            if on_full == OnFull::Refuse {
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!("{n_runs} runs of this session are in flight, and no more may be; wait for one"),
                ));
            }
            Cancel::check(cancel)?;
            n_runs = match cancel {
                None => wait(&this.ended, n_runs),
                Some(_) => unpoisoned(this.ended.wait_timeout(n_runs, LOOK)).0,
            };
        }
        *n_runs += 1;
        Ok(Admission(Arc::clone(this)))
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        lock(&self.n_runs)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        *self.0.lock() -= 1;
        self.0.ended.notify_one();
    }
}
