//! Sessions: a model on a device.

use crate::arguments::{Growing, c_text, devbay_dtype, dtype_to_c, list, text, write_struct};
use crate::errors::{attempt, devbay_error};
use crate::handles::{self, Used, give, give_new, object};
use crate::options::{self, devbay_options};
use crate::runtime::{Host, Named, choice_json, devbay_device, devbay_model, devbay_runtime, give_json};
use crate::values::{Value, devbay_value};
use devbay_host::internals::core::program::ValueId;
use devbay_host::internals::plan_json;
use devbay_host::{DType, Dim, Error, ErrorKind, Model, Port, Result, Session};
use serde_json::Value as Json;
use std::ffi::{CString, c_char};
use std::mem::{MaybeUninit, offset_of};
use std::path::Path;
use std::ptr::null;

/// A model on a device. Any number of threads may run it at once.
pub struct devbay_session;

/// An input or output of a model. Everything that it points to lives as long as the session.
///
/// Later versions append fields. The library writes those that the caller's struct has room for, and sets `struct_size` to their size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct devbay_port {
    /// Size of the struct.
    pub struct_size: usize,
    /// Its name.
    pub name: *const c_char,
    /// Type of its elements; 0 if the model does not say.
    pub r#type: devbay_dtype,
    /// Number of extents; -1 if the model does not say.
    pub rank: i32,
    /// Extents, outermost first; -1 for those that the model leaves open.
    pub extents: *const i64,
    /// The names of open extents, which may be empty; NULL for known ones.
    pub symbols: *const *const c_char,
}

// SAFETY: `repr(C)`, with its size first and numbers and pointers after it; `symbols` was the last field of version 1.
unsafe impl Growing for devbay_port {
    const FIRST_SIZE: usize = offset_of!(Self, symbols) + size_of::<*const *const c_char>();
    const NAME: &'static str = "devbay_port";
}

/// A port, and the memory that its struct in C points to.
struct OwnedPort {
    name: CString,
    dtype: devbay_dtype,
    rank: i32,
    extents: Box<[i64]>,
    symbols: Box<[Option<CString>]>,
    symbol_pointers: Box<[*const c_char]>,
}

// SAFETY: the pointers are to the symbols beside them, which do not change.
unsafe impl Send for OwnedPort {}
// SAFETY: as for `Send`: everything behind the pointers is only read.
unsafe impl Sync for OwnedPort {}

/// Types of tensors, each with its extents.
pub type Types = Vec<(DType, Vec<usize>)>;

/// A session, and what C asks about it.
pub struct Opened {
    pub session: Session,
    inputs: Vec<OwnedPort>,
    outputs: Vec<OwnedPort>,
    /// Types of the results, if there is only one plan: then runs write into the caller's memory.
    pub results: Option<Types>,
    choice: Json,
}

object!(Opened, devbay_session, "session");

impl OwnedPort {
    fn new(port: &Port) -> Self {
        let shape = port.ty.as_ref().and_then(|ty| ty.shape.as_ref());
        let dims = shape.map(|shape| shape.as_slice()).unwrap_or_default();
        let extent = |dim: &Dim| dim.known().map_or(-1, |extent| extent as i64);
        let symbol = |dim: &Dim| match dim {
            Dim::Known(_) => None,
            Dim::Unknown(name) => Some(c_text(name)),
        };
        let symbols: Box<[Option<CString>]> = dims.iter().map(symbol).collect();
        let pointer = |symbol: &Option<CString>| symbol.as_ref().map_or(null(), |symbol| symbol.as_ptr());
        Self {
            name: c_text(&port.name),
            dtype: port.ty.as_ref().map_or(0, |ty| dtype_to_c(ty.dtype)),
            rank: shape.map_or(-1, |shape| shape.len() as i32),
            extents: dims.iter().map(extent).collect(),
            symbol_pointers: symbols.iter().map(pointer).collect(),
            symbols,
        }
    }

    fn in_c(&self) -> devbay_port {
        debug_assert_eq!(self.symbols.len(), self.symbol_pointers.len());
        devbay_port {
            struct_size: size_of::<devbay_port>(),
            name: self.name.as_ptr(),
            r#type: self.dtype,
            rank: self.rank,
            extents: self.extents.as_ptr(),
            symbols: self.symbol_pointers.as_ptr(),
        }
    }
}

/// Returns the result types of a session with one plan.
fn results(session: &Session) -> Result<Option<Types>> {
    let known = |port: &Port| port.ty.as_ref().and_then(|ty| Some((ty.dtype, ty.known_shape()?)));
    let Some(inputs) = session.inputs().iter().map(known).collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let types: Vec<(DType, &[usize])> =
        inputs.iter().map(|(dtype, shape)| (*dtype, shape.as_slice())).collect();
    let plan = session.plan_for_types(&types)?;
    let result = |&id: &ValueId| {
        let ty = plan.program.value(id).ty.as_ref()?;
        Some((ty.dtype, ty.known_shape()?))
    };
    Ok(plan.program.main.outputs.iter().map(result).collect())
}

/// Looks up values by their handles.
pub fn values(handles: &[*const devbay_value]) -> Result<smallvec::SmallVec<[Used<Value>; 8]>> {
    handles.iter().map(|&handle| handles::get::<Value>(handle)).collect()
}

/// Makes a session of a model. `options` may be NULL: the first device that has kernels for the whole model, accelerators first.
///
/// A model whose inputs have known extents is planned now, others on their first run.
///
/// Errors: DEVBAY_ERROR_INVALID_ARGUMENT for options that cannot be; DEVBAY_ERROR_NOT_FOUND if there is no such device;
/// DEVBAY_ERROR_UNSUPPORTED_OP for an op without a kernel; DEVBAY_ERROR_OUT_OF_MEMORY.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_session_create(
    runtime: *const devbay_runtime,
    model: *const devbay_model,
    options: *const devbay_options,
    session: Option<&mut MaybeUninit<*mut devbay_session>>,
) -> *mut devbay_error {
    attempt(|| {
        give_new::<Opened>(session, || {
            let (host, model) = (handles::get::<Host>(runtime)?, handles::get::<Model>(model)?);
            let options = options::set(options)?.options;
            let (session, choice) = options.session(&host.runtime, &model, host.recorder.as_ref())?;
            let ports = |ports: &[Port]| ports.iter().map(OwnedPort::new).collect();
            let (inputs, outputs) = (ports(session.inputs()), ports(session.outputs()));
            let results = results(&session)?;
            Ok(Opened { session, inputs, outputs, results, choice: choice_json(&choice) })
        })
    })
}

/// Destroys a session. Runs that are in flight still end well. NULL is ignored.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_session_destroy(session: *mut devbay_session) {
    handles::destroy::<Opened>(session);
}

/// Returns the number of the model's inputs; 0 for a session that is gone.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_session_n_inputs(session: *const devbay_session) -> usize {
    handles::get::<Opened>(session).map_or(0, |run| run.inputs.len())
}

/// Returns the number of the model's outputs; 0 for a session that is gone.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_session_n_outputs(session: *const devbay_session) -> usize {
    handles::get::<Opened>(session).map_or(0, |run| run.outputs.len())
}

/// Describes a port in the caller's struct.
///
/// # Safety
/// At `out` is a `devbay_port` of the size that its first field has, or it is NULL.
unsafe fn describe(ports: &[OwnedPort], i: usize, out: *mut devbay_port) -> Result<()> {
    let found = ports.get(i).map(OwnedPort::in_c).ok_or_else(|| {
        Error::new(ErrorKind::NotFound, format!("there is no port {i}; there are {}", ports.len()))
    })?;
    // SAFETY: the caller's promise (`# Safety`).
    unsafe { write_struct(out, &found) }
}

/// Describes an input, in the model's order. The caller sets `struct_size` of `port` to the size of its struct.
///
/// Errors: DEVBAY_ERROR_NOT_FOUND after the last input.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_session_input(
    session: *const devbay_session,
    i: usize,
    port: *mut devbay_port,
) -> *mut devbay_error {
    // SAFETY: the header says that the caller sets the struct's size.
    attempt(|| unsafe { describe(&handles::get::<Opened>(session)?.inputs, i, port) })
}

/// Describes an output, in the model's order. The caller sets `struct_size` of `port` to the size of its struct.
///
/// Errors: DEVBAY_ERROR_NOT_FOUND after the last output.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_session_output(
    session: *const devbay_session,
    i: usize,
    port: *mut devbay_port,
) -> *mut devbay_error {
    // SAFETY: the header says that the caller sets the struct's size.
    attempt(|| unsafe { describe(&handles::get::<Opened>(session)?.outputs, i, port) })
}

/// Finds a port by its name.
fn position(ports: &[Port], name: &str, kind: &str) -> Result<usize> {
    ports.iter().position(|port| &*port.name == name).ok_or_else(|| {
        let names: Vec<&str> = ports.iter().map(|port| &*port.name).collect();
        let text = format!("the model has no {kind} `{name}`; it has {}", names.join(", "));
        Error::new(ErrorKind::NotFound, text)
    })
}

/// Gives the position of an input in the model's order, by its name.
///
/// Errors: DEVBAY_ERROR_NOT_FOUND, with the names that there are.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_session_find_input(
    session: *const devbay_session,
    name: *const c_char,
    i: Option<&mut MaybeUninit<usize>>,
) -> *mut devbay_error {
    attempt(|| {
        // SAFETY: a text ends with NUL and lives until the call returns (the header's preamble).
        let name = unsafe { text(name, "name") }?;
        give(i, position(handles::get::<Opened>(session)?.session.inputs(), name, "input")?)
    })
}

/// Gives the position of an output in the model's order, by its name.
///
/// Errors: DEVBAY_ERROR_NOT_FOUND, with the names that there are.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_session_find_output(
    session: *const devbay_session,
    name: *const c_char,
    i: Option<&mut MaybeUninit<usize>>,
) -> *mut devbay_error {
    attempt(|| {
        // SAFETY: a text ends with NUL and lives until the call returns (the header's preamble).
        let name = unsafe { text(name, "name") }?;
        give(i, position(handles::get::<Opened>(session)?.session.outputs(), name, "output")?)
    })
}

/// Makes a handle of the session's device. The caller destroys it.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_session_device(
    session: *const devbay_session,
    device: Option<&mut MaybeUninit<*mut devbay_device>>,
) -> *mut devbay_error {
    attempt(|| {
        give_new::<Named>(device, || {
            Ok(Named::new(handles::get::<Opened>(session)?.session.device().clone()))
        })
    })
}

/// Gives the choice of the session's device, with the verdict on each, as a JSON text; devbay_text_free frees it.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_session_explain(
    session: *const devbay_session,
    explanation: Option<&mut MaybeUninit<*mut c_char>>,
) -> *mut devbay_error {
    attempt(|| give_json(explanation, &handles::get::<Opened>(session)?.choice))
}

/// Gives the plan for inputs of the types of these values, in the model's order, as a JSON text: tasks, launches, estimated times and
/// memory. devbay_text_free frees it. A plan that does not exist yet is made.
///
/// Errors: as devbay_session_run.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_session_plan(
    session: *const devbay_session,
    inputs: *const *const devbay_value,
    n_inputs: usize,
    plan: Option<&mut MaybeUninit<*mut c_char>>,
) -> *mut devbay_error {
    attempt(|| {
        let run = handles::get::<Opened>(session)?;
        // SAFETY: `n_inputs` handles are there until the call returns (the header's preamble).
        let inputs = values(unsafe { list(inputs, n_inputs, "inputs") }?)?;
        let types: Vec<_> =
            inputs.iter().map(|value| (value.tensor().dtype(), value.tensor().shape())).collect();
        let made = run.session.plan_for_types(&types)?;
        give_json(plan, &plan_json::json(&run.session.plan_report(&made)))
    })
}

/// Writes the model as a compiled file (.dbx), which devbay_model_load reads: specialised for the input types that the session has
/// plans for, with constants packed for its devices. An existing file is replaced as a whole.
///
/// Errors: DEVBAY_ERROR_IO; errors of devices that return constants.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_session_compile(
    session: *const devbay_session,
    path: *const c_char,
) -> *mut devbay_error {
    attempt(|| {
        // SAFETY: a text ends with NUL and lives until the call returns (the header's preamble).
        let path = Path::new(unsafe { text(path, "path") }?);
        handles::get::<Opened>(session)?.session.compile_to(path).map(drop)
    })
}
