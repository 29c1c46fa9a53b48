//! Progress of making a session, told to Python; and Ctrl-C meanwhile.

use crate::errors::exception;
use devbay_host::progress::{Phase, Progress, watch};
use devbay_host::{Cancel, Error, ErrorKind};
use devbay_plugin_api::locks::lock;
use pyo3::prelude::*;
use pyo3::types::PyBool;
use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time between two calls into Python within a phase.
const INTERVAL: Duration = Duration::from_millis(50);

/// Work that tells Python how far it is, and that Python can end.
pub struct Watched {
    /// The function to call; None for work that only looks for signals.
    told: Option<Arc<Py<PyAny>>>,
    /// True if the function is a bar of ours, which is closed at the end.
    is_bar: bool,
    cancel: Cancel,
    raised: Arc<Mutex<Option<PyErr>>>,
}

impl Watched {
    /// Reads the argument `progress`: None, a truth value, or a function of phase, steps that are done, and steps in all.
    pub fn new(py: Python<'_>, progress: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let (mut told, mut is_bar) = (None, false);
        match progress {
            None => {}
            Some(progress) => match progress.cast::<PyBool>() {
                Ok(wanted) if wanted.is_true() => {
                    let bar = py.import("devbay._progress")?.getattr("bar")?.call0()?;
                    is_bar = !bar.is_none();
                    told = is_bar.then(|| Arc::new(bar.unbind()));
                }
                Ok(_) => {}
                Err(_) if progress.is_callable() => told = Some(Arc::new(progress.clone().unbind())),
                Err(_) => {
                    let text = "progress is True, False, or a function of phase, done and total";
                    return Err(exception(py, &Error::new(ErrorKind::InvalidArgument, text)));
                }
            },
        }
        Ok(Self { told, is_bar, cancel: Cancel::new(), raised: Arc::default() })
    }

    /// Runs a call of the library without the interpreter's lock. An exception of the function, or of a signal's handler, ends
    /// the call and is returned.
    pub fn run<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce() -> devbay_host::Result<R> + Send,
    ) -> PyResult<R> {
        let outcome = py.detach(|| watch(self.watcher(), || Cancel::over(Some(&self.cancel), call)));
        match lock(&self.raised).take() {
            Some(raised) => Err(raised),
            None => outcome.map_err(|error| exception(py, &error)),
        }
    }

    /// Returns the function that the work calls: the first and the last step of each phase are told, and some in between.
    fn watcher(&self) -> impl Fn(Progress) + 'static {
        let (told, cancel, raised) = (self.told.clone(), self.cancel.clone(), Arc::clone(&self.raised));
        let last: Cell<Option<(Instant, Phase)>> = Cell::new(None);
        let begin = Instant::now();
        move |at| {
            let is_edge = told.is_some() && (at.done == 0 || at.done == at.total);
            let (when, phase) = last.get().unwrap_or((begin, at.phase));
            if cancel.is_cancelled() || !(is_edge || phase != at.phase || when.elapsed() >= INTERVAL) {
                return;
            }
            last.set(Some((Instant::now(), at.phase)));
            let answer = Python::attach(|py| {
                py.check_signals()?;
                let Some(told) = &told else { return Ok(()) };
                told.call1(py, (at.phase.name(), at.done, at.total)).map(drop)
            });
            if let Err(error) = answer {
                *lock(&raised) = Some(error);
                cancel.cancel();
            }
        }
    }

    /// Takes the bar away, if there is one.
    pub fn close(&self, py: Python<'_>) -> PyResult<()> {
        match &self.told {
            Some(bar) if self.is_bar => bar.call_method0(py, "close").map(drop),
            _ => Ok(()),
        }
    }
}
