//! Runs of sessions: at once, in the background, and many on the same memory.

use crate::arguments::{Growing, invalid, list, list_mut, read_struct};
use crate::errors::{self, attempt, devbay_error};
use crate::handles::{self, Kept, Used, give_new, object};
use crate::session::{Opened, devbay_session, values};
use crate::values::{Value, devbay_value};
use devbay_host::internals::core::exec::host_io::{Bound, OutputView};
use devbay_host::{
    Cancel, Error, ErrorKind, InputView, OnFull, Priority, Result, RunOptions, Tensor, TensorType,
};
use devbay_plugin_api::locks::try_lock;
use smallvec::SmallVec;
use std::ffi::c_void;
use std::mem::{MaybeUninit, offset_of};
use std::ptr::null_mut;
use std::sync::Mutex;
use std::time::Duration;

/// A flag that ends runs.
pub struct devbay_cancel;

/// A run that was started in the background.
pub struct devbay_run;

/// A session with memory for its inputs and outputs.
pub struct devbay_bound;

/// Options of a run. Set `struct_size` to sizeof(devbay_run_options), and everything else to 0 for the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct devbay_run_options {
    /// Size of the struct in the caller's header.
    pub struct_size: usize,
    /// Time limit in nanoseconds, counted from the call; 0 for none.
    pub deadline_ns: u64,
    /// Ends the run when it is set; NULL for none.
    pub cancel: *const devbay_cancel,
    /// Order in which runs in the background start: above 0 before others, below 0 after them.
    pub priority: i32,
    /// DEVBAY_RUN_* combined.
    pub flags: u32,
    /// With DEVBAY_RUN_SEED, the seed of this run's random numbers.
    pub seed: u64,
}

// SAFETY: `repr(C)`, with its size first and numbers and a pointer after it; `flags` was the last field of version 1.
unsafe impl Growing for devbay_run_options {
    const FIRST_SIZE: usize = offset_of!(Self, flags) + size_of::<u32>();
    const NAME: &'static str = "devbay_run_options";
}

/// If as many runs are in flight as may be (the session's option runs-max), wait for one to end. Without it the run fails with
/// DEVBAY_ERROR_BUSY.
pub const DEVBAY_RUN_WAIT_IF_FULL: u32 = 1;
/// Leave results on the device. Only for outputs that are new values.
pub const DEVBAY_RUN_RESULTS_ON_DEVICE: u32 = 2;
/// Draw random numbers from the options' `seed`, as the first run of a session with that seed does. Later runs of the session are as
/// if this one had not been made.
pub const DEVBAY_RUN_SEED: u32 = 4;

/// Receives the end of a run in the background: either `error` is not NULL, or `outputs` has new values in the model's order. The
/// function destroys the error, or the values; the array is the library's.
///
/// Threads: the thread that ended the run, which may be the one that started it. The function should return soon: it must not wait
/// for other runs.
pub type devbay_run_fn = Option<
    extern "C" fn(
        user_data: *mut c_void,
        error: *mut devbay_error,
        outputs: *const *mut devbay_value,
        n_outputs: usize,
    ),
>;

object!(Cancel, devbay_cancel, "flag");
object!(devbay_host::Run, devbay_run, "run");
object!(BoundRun, devbay_bound, "bound session");

/// Views of a run's inputs or outputs: the usual few without an allocation.
type Few<T> = SmallVec<[T; 8]>;

/// Options of a run, as they are in Rust.
struct Asked {
    options: RunOptions,
    on_device: bool,
}

impl Asked {
    /// Reads options.
    ///
    /// # Safety
    /// `options` is NULL or at a struct of the size that its first field has.
    unsafe fn read(options: *const devbay_run_options) -> Result<Self> {
        if options.is_null() {
            return Ok(Self { options: RunOptions::default(), on_device: false });
        }
        // SAFETY: the caller's promise (`# Safety`).
        let given = unsafe { read_struct(options) }?;
        if given.flags & !(DEVBAY_RUN_WAIT_IF_FULL | DEVBAY_RUN_RESULTS_ON_DEVICE | DEVBAY_RUN_SEED) != 0 {
            return Err(invalid(format!("there are no flags {:#x}", given.flags)));
        }
        let mut options = RunOptions {
            deadline: (given.deadline_ns != 0).then(|| Duration::from_nanos(given.deadline_ns)),
            priority: match given.priority {
                1.. => Priority::High,
                0 => Priority::Normal,
                _ => Priority::Low,
            },
            seed: (given.flags & DEVBAY_RUN_SEED != 0).then_some(given.seed),
            ..RunOptions::default()
        };
        if !given.cancel.is_null() {
            options.cancel = Some(handles::get::<Cancel>(given.cancel)?.clone());
        }
        if given.flags & DEVBAY_RUN_WAIT_IF_FULL != 0 {
            options.on_full = OnFull::Wait;
        }
        Ok(Self { options, on_device: given.flags & DEVBAY_RUN_RESULTS_ON_DEVICE != 0 })
    }
}

// Vectors of views are filled in place: returned by value, they would be copied, which takes as long as a small run.

/// Views values that are all in host memory. False if one is on a device.
#[inline]
fn view_all<'a>(values: &'a [Used<Value>], views: &mut Few<InputView<'a>>) -> bool {
    for value in values {
        match value.host() {
            Some(tensor) => views.push(InputView::of(tensor)),
            None => return false,
        }
    }
    true
}

/// Views the memory of outputs for writing.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for an output of another type than the result's, for memory that may not be written, and for memory
/// that an input or another output has.
#[inline]
fn memory<'a>(
    outputs: &'a [Used<Value>],
    inputs: &[InputView<'_>],
    types: &[(devbay_host::DType, Vec<usize>)],
    memory: &mut Few<OutputView<'a>>,
) -> Result<()> {
    for (i, (output, (dtype, shape))) in outputs.iter().zip(types).enumerate() {
        fits(i, output, *dtype, shape)?;
        let (start, len) = output.memory_mut()?;
        let (from, to) = (start.addr().get(), start.addr().get() + len);
        let is_shared = |bytes: &[u8]| {
            let begin = bytes.as_ptr().addr();
            from < begin + bytes.len() && begin < to
        };
        if inputs.iter().any(|input| is_shared(input.bytes())) || memory.iter().any(|other| is_shared(other))
        {
            return Err(shared(i));
        }
        // SAFETY: `len` bytes that live as long as the value, which `outputs` keeps. Nothing else uses them: no other argument of
        // the call has them, as was just seen, and of other runs and the program the header asks the same.
        memory.push(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) });
    }
    Ok(())
}

#[cold]
fn shared(i: usize) -> Error {
    invalid(format!("output {i} has memory that is also an input's or another output's"))
}

/// Refuses an output of another type than the result's.
#[inline]
fn fits(i: usize, output: &Value, dtype: devbay_host::DType, shape: &[usize]) -> Result<()> {
    #[cold]
    fn wrong(i: usize, given: TensorType, result: TensorType) -> Error {
        invalid(format!("output {i} is given as {given}, the result is {result}"))
    }
    let given = output.tensor();
    match given.dtype() == dtype && given.shape() == shape {
        true => Ok(()),
        false => Err(wrong(i, TensorType::new(given.dtype(), given.shape()), TensorType::new(dtype, shape))),
    }
}

/// Returns new results of a run, in the model's order.
fn new_results(opened: &Opened, inputs: &[Used<Value>], asked: &Asked) -> Result<Vec<Value>> {
    let mut views = SmallVec::new();
    if !asked.on_device && view_all(inputs, &mut views) {
        let results = opened.session.run_in_order(&views, &asked.options)?;
        return results.into_iter().map(Value::of_host).collect();
    }
    let ports = opened.session.inputs();
    if inputs.len() != ports.len() {
        return Err(wrong_count("inputs", inputs.len(), ports.len()));
    }
    let named: Vec<_> = ports.iter().zip(inputs).map(|(port, value)| (&*port.name, value.tensor())).collect();
    let results = opened.session.run_on_device(&named, None, &asked.options)?;
    if asked.on_device {
        return Ok(results.into_iter().map(Value::new).collect());
    }
    results.iter().map(|result| Value::of_host(result.to_tensor()?)).collect()
}

#[cold]
fn wrong_count(what: &str, found: usize, expected: usize) -> Error {
    let kind = if what == "inputs" { ErrorKind::InvalidInput } else { ErrorKind::InvalidArgument };
    Error::new(kind, format!("{found} {what} are given, the model has {expected}"))
}

/// Runs a session once.
///
/// `inputs` are values in the model's order. Each of `outputs` is NULL, or a value in host memory of the result's type: a result is
/// written there without a copy if the model's extents are known when the session is made, and else copied there. For NULL, the
/// library puts a new value into the array, which the caller destroys. `options` may be NULL.
///
/// On an error NULL outputs stay NULL, and values may have been written in part.
///
/// Threads: any number at once, on different outputs. The call blocks until the results are there.
///
/// Errors: DEVBAY_ERROR_INVALID_INPUT for inputs that are too few, or of another type than the model takes;
/// DEVBAY_ERROR_INVALID_ARGUMENT for outputs that do not fit; DEVBAY_ERROR_CANCELLED; DEVBAY_ERROR_DEADLINE_EXCEEDED;
/// DEVBAY_ERROR_BUSY; otherwise the first failure of the run.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_session_run(
    session: *const devbay_session,
    inputs: *const *const devbay_value,
    n_inputs: usize,
    outputs: *mut *mut devbay_value,
    n_outputs: usize,
    options: *const devbay_run_options,
) -> *mut devbay_error {
    attempt(|| {
        let opened = handles::get::<Opened>(session)?;
        // SAFETY: as many handles are there as the caller says, until the call returns (the header's preamble).
        let (inputs, places) =
            unsafe { (list(inputs, n_inputs, "inputs")?, list_mut(outputs, n_outputs, "outputs")?) };
        // SAFETY: a struct begins with its size (the header's `devbay_run_options`).
        let asked = unsafe { Asked::read(options) }?;
        let n_results = opened.session.outputs().len();
        if places.len() != n_results {
            return Err(wrong_count("outputs", places.len(), n_results));
        }
        let (mut taken, mut given): (Few<Used<Value>>, Few<Used<Value>>) = (SmallVec::new(), SmallVec::new());
        for input in inputs {
            taken.push(handles::get::<Value>(*input)?);
        }
        for place in places.iter().filter(|place| !place.is_null()) {
            given.push(handles::get::<Value>(*place)?);
        }
        let mut views = SmallVec::new();
        if given.len() == n_results
            && !asked.on_device
            && let Some(types) = &opened.results
            && view_all(&taken, &mut views)
        {
            let mut results = SmallVec::new();
            memory(&given, &views, types, &mut results)?;
            return opened.session.run_into(&views, &mut results, &asked.options);
        }
        if asked.on_device && !given.is_empty() {
            return Err(invalid("results that stay on the device are new values: outputs must be NULL"));
        }
        let results = new_results(&opened, &taken, &asked)?;
        // Everything is checked before anything is written or given away.
        let mut values = given.iter();
        for (i, (place, result)) in places.iter().zip(&results).enumerate() {
            if let Some(value) = (!place.is_null()).then(|| values.next()).flatten() {
                fits(i, value, result.tensor().dtype(), result.tensor().shape())?;
                value.memory_mut()?;
            }
        }
        let mut values = given.iter();
        for (place, result) in places.iter_mut().zip(results) {
            if place.is_null() {
                *place = handles::make(result)?;
            } else if let (Some(value), Some(tensor)) = (values.next(), result.host()) {
                let (start, len) = value.memory_mut()?;
                debug_assert_eq!(len, tensor.bytes().len());
                // SAFETY: as many bytes as the result has, since the types are equal; the result is new memory.
                unsafe { start.as_ptr().copy_from_nonoverlapping(tensor.bytes().as_ptr(), len) };
            }
        }
        Ok(())
    })
}

/// A function of the caller's, and its argument.
struct Callback {
    function: extern "C" fn(*mut c_void, *mut devbay_error, *const *mut devbay_value, usize),
    user_data: *mut c_void,
}

// SAFETY: the header says that the function is called on the thread that ends the run.
unsafe impl Send for Callback {}

impl Callback {
    fn call(self, outcome: std::result::Result<&Vec<Tensor>, &Error>) {
        let values = outcome.map_err(Error::clone).and_then(|results| {
            results
                .iter()
                .map(|result| handles::make(Value::of_host(result.clone())?))
                .collect::<Result<Vec<_>>>()
        });
        let (function, user_data) = (self.function, self.user_data);
        match values {
            Ok(values) => function(user_data, null_mut(), values.as_ptr(), values.len()),
            Err(error) => function(user_data, errors::handle(&error), null_mut(), 0),
        }
    }
}

/// Starts a run in the background. The values keep their memory until the run has ended, even if they are destroyed.
///
/// `callback` may be NULL; else it is called once with `user_data` at the end of the run, whatever that is, if this call succeeds.
/// `run` may be NULL; else it receives a handle to wait for the run, to end it and to take its results, which the caller destroys.
/// Destroying it neither ends nor waits for the run.
///
/// Errors: DEVBAY_ERROR_INVALID_INPUT and DEVBAY_ERROR_BUSY as devbay_session_run. Other failures are the run's.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_session_start(
    session: *const devbay_session,
    inputs: *const *const devbay_value,
    n_inputs: usize,
    options: *const devbay_run_options,
    callback: devbay_run_fn,
    user_data: *mut c_void,
    run: Option<&mut MaybeUninit<*mut devbay_run>>,
) -> *mut devbay_error {
    attempt(|| {
        let opened = handles::get::<Opened>(session)?;
        // SAFETY: as many handles are there as the caller says, until the call returns (the header's preamble).
        let inputs = values(unsafe { list(inputs, n_inputs, "inputs") }?)?;
        // SAFETY: a struct begins with its size (the header's `devbay_run_options`).
        let asked = unsafe { Asked::read(options) }?;
        if asked.on_device {
            return Err(invalid("results of runs in the background do not stay on the device"));
        }
        let ports = opened.session.inputs();
        if inputs.len() != ports.len() {
            return Err(wrong_count("inputs", inputs.len(), ports.len()));
        }
        let tensors = inputs.iter().map(|value| value.tensor().to_tensor()).collect::<Result<Vec<_>>>()?;
        let named: Vec<_> = ports.iter().zip(&tensors).map(|(port, tensor)| (&*port.name, tensor)).collect();
        let started = opened.session.run_async(&named, &asked.options)?;
        let results = started.results().clone();
        if let Some(out) = run {
            out.write(handles::make(started)?);
        }
        if let Some(function) = callback {
            let callback = Callback { function, user_data };
            results.and_then(move |outcome| callback.call(outcome));
        }
        Ok(())
    })
}

/// Waits for a run to end, at most `timeout_ns` nanoseconds; UINT64_MAX for as long as it takes. `has_ended` may be NULL.
///
/// Threads: not in callbacks of runs.
///
/// Errors: the run's.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_run_wait(
    run: *const devbay_run,
    timeout_ns: u64,
    has_ended: Option<&mut MaybeUninit<bool>>,
) -> *mut devbay_error {
    attempt(|| {
        let run = handles::get::<devbay_host::Run>(run)?;
        let outcome = match timeout_ns {
            u64::MAX => Some(run.wait()),
            limit => run.wait_timeout(Duration::from_nanos(limit)),
        };
        has_ended.map(|out| out.write(outcome.is_some()));
        outcome.transpose().map(drop)
    })
}

/// Takes the results of a run that has ended: new values in the model's order, which the caller destroys.
///
/// Errors: the run's; DEVBAY_ERROR_BUSY if it has not ended; DEVBAY_ERROR_INVALID_ARGUMENT for another number of outputs than the
/// model's.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_run_results(
    run: *const devbay_run,
    outputs: *mut *mut devbay_value,
    n_outputs: usize,
) -> *mut devbay_error {
    attempt(|| {
        let run = handles::get::<devbay_host::Run>(run)?;
        if !run.has_ended() {
            return Err(Error::new(ErrorKind::Busy, "the run has not ended"));
        }
        let results = run.wait()?;
        // SAFETY: as many places are there as the caller says, until the call returns (the header's preamble).
        let places = unsafe { list_mut(outputs, n_outputs, "outputs") }?;
        if places.len() != results.len() {
            return Err(wrong_count("outputs", places.len(), results.len()));
        }
        for (place, result) in places.iter_mut().zip(results) {
            *place = handles::make(Value::of_host(result)?)?;
        }
        Ok(())
    })
}

/// Ends a run at its next check: between launches, or between parts of long ones. It then fails with DEVBAY_ERROR_CANCELLED.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_run_cancel(run: *const devbay_run) -> *mut devbay_error {
    attempt(|| {
        handles::get::<devbay_host::Run>(run)?.cancel();
        Ok(())
    })
}

/// Destroys the handle of a run. The run goes on. NULL is ignored.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_run_destroy(run: *mut devbay_run) {
    handles::destroy::<devbay_host::Run>(run);
}

/// Makes a flag that ends all runs that have it in their options. The caller destroys it.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_cancel_create(
    cancel: Option<&mut MaybeUninit<*mut devbay_cancel>>,
) -> *mut devbay_error {
    attempt(|| give_new::<Cancel>(cancel, || Ok(Cancel::default())))
}

/// Sets a flag, for good. Threads: any, also while runs have it.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_cancel_set(cancel: *const devbay_cancel) -> *mut devbay_error {
    attempt(|| {
        handles::get::<Cancel>(cancel)?.cancel();
        Ok(())
    })
}

/// Destroys a flag. Runs that have it go on. NULL is ignored.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_cancel_destroy(cancel: *mut devbay_cancel) {
    handles::destroy::<Cancel>(cancel);
}

/// A session that is bound to memory.
pub struct BoundRun {
    // Dropped before the values whose memory it uses.
    bound: Mutex<Bound<'static>>,
    #[expect(dead_code, reason = "its drop lets go of the memory")]
    values: Vec<Kept<Value>>,
}

/// Binds a session to the memory of values, for many runs: nothing is checked or looked up between them. All inputs and outputs are
/// in host memory, which is kept until the bound session is destroyed. The caller destroys it.
///
/// Errors: as devbay_session_run; DEVBAY_ERROR_UNSUPPORTED_OP if the model has no single plan whose kernels can work in that memory:
/// use devbay_session_run.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_session_bind(
    session: *const devbay_session,
    inputs: *const *const devbay_value,
    n_inputs: usize,
    outputs: *const *mut devbay_value,
    n_outputs: usize,
    bound: Option<&mut MaybeUninit<*mut devbay_bound>>,
) -> *mut devbay_error {
    attempt(|| {
        give_new::<BoundRun>(bound, || {
            let opened = handles::get::<Opened>(session)?;
            // SAFETY: as many handles are there as the caller says, until the call returns (the header's preamble).
            let (inputs, outputs) =
                unsafe { (list(inputs, n_inputs, "inputs")?, list(outputs, n_outputs, "outputs")?) };
            let unsupported = |text| Error::new(ErrorKind::UnsupportedOp, text);
            let types = opened.results.as_ref().ok_or_else(|| {
                unsupported("extents of the model are open, so that it cannot be bound to memory")
            })?;
            if outputs.len() != types.len() {
                return Err(wrong_count("outputs", outputs.len(), types.len()));
            }
            let read = values(inputs)?;
            let written = outputs.iter().map(|&output| handles::get::<Value>(output));
            let written = written.collect::<Result<Few<_>>>()?;
            let (mut views, mut results) = (SmallVec::new(), SmallVec::new());
            if !view_all(&read, &mut views) {
                return Err(unsupported("an input is on a device"));
            }
            memory(&written, &views, types, &mut results)?;
            let bound = opened.session.bind(&views, &mut results)?;
            let bound = bound.ok_or_else(|| {
                unsupported("the device cannot work in this memory, or the model is not one line of launches")
            })?;
            let kept = inputs.iter().copied().chain(outputs.iter().map(|output| output.cast_const()));
            let values = kept.map(handles::keep::<Value>).collect::<Result<Vec<_>>>()?;
            // SAFETY: the memory is the values', which are kept beside it and dropped after it.
            let bound = unsafe { std::mem::transmute::<Bound<'_>, Bound<'static>>(bound) };
            Ok(BoundRun { bound: Mutex::new(bound), values })
        })
    })
}

/// Runs a bound session once, on the present content of its inputs. Of the options only `cancel` is used; they may be NULL.
///
/// Threads: one at a time for one bound session.
///
/// Errors: DEVBAY_ERROR_BUSY if another thread runs it; DEVBAY_ERROR_INVALID_ARGUMENT for a deadline; the first failure of the run.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_bound_run(
    bound: *const devbay_bound,
    options: *const devbay_run_options,
) -> *mut devbay_error {
    attempt(|| {
        let bound = handles::get::<BoundRun>(bound)?;
        // SAFETY: a struct begins with its size (the header's `devbay_run_options`).
        let options = unsafe { Asked::read(options) }?.options;
        if options.deadline.is_some() {
            return Err(invalid("runs of a bound session have no deadline; use devbay_session_run"));
        }
        let mut run = try_lock(&bound.bound)
            .ok_or_else(|| Error::new(ErrorKind::Busy, "another thread runs this bound session"))?;
        let cancel = options.cancel.as_ref();
        Cancel::over(cancel, || run.run(cancel))
    })
}

/// Destroys a bound session. NULL is ignored.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_bound_destroy(bound: *mut devbay_bound) {
    handles::destroy::<BoundRun>(bound);
}
