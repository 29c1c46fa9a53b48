//! Runtimes, their devices, and models.

use crate::arguments::{c_text, invalid, list, text};
use crate::errors::{attempt, devbay_error};
use crate::handles::{self, give, give_new, object};
use crate::options::{self, devbay_options};
use devbay_host::trace::{Recorder, Summary, Timeline, write_chrome};
use devbay_host::{Choice, Device, Error, ErrorKind, Model, Outcome, Policy, Requirements, Result, Runtime};
use serde_json::{Value, json};
use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::ptr::null;
use std::sync::Arc;

/// Plugins, their devices, and the threads that run kernels. The processor's plugin is always there.
///
/// Sessions, devices and values keep their runtime: it may be destroyed before them.
pub struct devbay_runtime;

/// A device of a plugin.
pub struct devbay_device;

/// A model that was read.
pub struct devbay_model;

/// A runtime, and the recorder of its sessions, if they are traced.
pub struct Host {
    pub runtime: Runtime,
    pub recorder: Option<Recorder>,
}

/// A device with its texts, as C reads them.
pub struct Named {
    pub device: Arc<Device>,
    name: CString,
    kind: CString,
    product: CString,
}

object!(Host, devbay_runtime, "runtime");
object!(Named, devbay_device, "device");
object!(Model, devbay_model, "model");

impl Named {
    pub fn new(device: Arc<Device>) -> Self {
        let about = device.about();
        let (name, kind) = (c_text(device.name()), c_text(about.kind_name()));
        let product = c_text(&about.product);
        Self { device, name, kind, product }
    }
}

/// Gives a JSON text away, to be freed by [`devbay_text_free`].
pub fn give_json(out: Option<&mut MaybeUninit<*mut c_char>>, value: &Value) -> Result<()> {
    give_text(out, &value.to_string())
}

fn give_text(out: Option<&mut MaybeUninit<*mut c_char>>, text: &str) -> Result<()> {
    let out = out.ok_or_else(|| invalid("the place for the text is NULL"))?;
    give(Some(out), c_text(text).into_raw())
}

/// Returns the choice of a device as JSON.
pub fn choice_json(choice: &Choice) -> Value {
    json!({ "device": choice.device.name(), "verdicts": choice.verdicts })
}

/// Frees a text that a function gave to the caller. NULL is ignored.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_text_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: the header says that only texts that were given to the caller are freed, and only once; `give_text` made
        // them.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// Makes a runtime: starts threads, finds and loads plugins, and lists devices. A plugin that cannot be loaded is a line in the
/// report (devbay_runtime_report); it never stops the others.
///
/// `options` may be NULL: one thread per processor, and no plugin but the processor's.
///
/// Errors: DEVBAY_ERROR_INVALID_ARGUMENT for options that cannot be; DEVBAY_ERROR_UNAVAILABLE if the system gives no threads.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_runtime_create(
    options: *const devbay_options,
    runtime: Option<&mut MaybeUninit<*mut devbay_runtime>>,
) -> *mut devbay_error {
    attempt(|| {
        give_new::<Host>(runtime, || {
            let set = options::set(options)?;
            let builder = Runtime::builder().link(devbay_plugin_cpu::PLUGIN);
            let (mut builder, recorder) = set.options.runtime(builder)?;
            if let Some(log) = set.log {
                builder = builder.log(Arc::new(move |plugin, level, text| log.send(plugin, level, text)));
            }
            Ok(Host { runtime: builder.build()?, recorder })
        })
    })
}

/// Destroys a runtime's handle. The runtime ends with the last session, device and value of its own. NULL is ignored.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_runtime_destroy(runtime: *mut devbay_runtime) {
    handles::destroy::<Host>(runtime);
}

/// Gives the plugins that were found, loaded and refused, and the devices, as a JSON text; devbay_text_free frees it.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_runtime_report(
    runtime: *const devbay_runtime,
    report: Option<&mut MaybeUninit<*mut c_char>>,
) -> *mut devbay_error {
    attempt(|| {
        let host = handles::get::<Host>(runtime)?;
        let found = host.runtime.report();
        let plugins = found.plugins.iter().map(|plugin| {
            let (outcome, reason, n_devices) = match &plugin.outcome {
                Outcome::Loaded { n_devices, .. } => ("loaded", None, Some(*n_devices)),
                Outcome::NotAsked => ("not-asked", None, None),
                Outcome::Replaced => ("replaced", None, None),
                Outcome::Refused(refusal) => ("refused", Some(refusal.to_string()), None),
            };
            json!({
                "name": plugin.name, "origin": plugin.origin, "library": plugin.library, "outcome": outcome,
                "reason": reason, "devices": n_devices, "notes": plugin.notes,
            })
        });
        let devices = host.runtime.devices().into_iter().map(|device| {
            let (in_use, peak) = device.bytes_in_use();
            let about = device.about();
            json!({
                "name": device.name(), "kind": about.kind_name(), "product": about.product,
                "bytes_in_use": in_use, "bytes_peak": peak,
            })
        });
        let (plugins, devices): (Vec<Value>, Vec<Value>) = (plugins.collect(), devices.collect());
        let threads = host.runtime.n_threads();
        let json =
            json!({ "threads": threads, "plugins": plugins, "devices": devices, "notes": found.notes });
        give_json(report, &json)
    })
}

/// Returns the number of devices; 0 for a runtime that is gone.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_runtime_n_devices(runtime: *const devbay_runtime) -> usize {
    handles::get::<Host>(runtime).map_or(0, |host| host.runtime.devices().len())
}

/// Makes a handle of a runtime's device, by its position in the order of precedence. The caller destroys it.
///
/// Errors: DEVBAY_ERROR_NOT_FOUND after the last device.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_runtime_device(
    runtime: *const devbay_runtime,
    i: usize,
    device: Option<&mut MaybeUninit<*mut devbay_device>>,
) -> *mut devbay_error {
    attempt(|| {
        give_new::<Named>(device, || {
            let devices = handles::get::<Host>(runtime)?.runtime.devices();
            let n = devices.len();
            let found = devices.into_iter().nth(i);
            found.map(Named::new).ok_or_else(|| {
                Error::new(ErrorKind::NotFound, format!("there is no device {i}; there are {n}"))
            })
        })
    })
}

/// Chooses a device: `policy` is "auto", the name of a device such as "wgpu:0", or "prefer:KIND". With a model, only devices that
/// have kernels for all its ops are chosen; `model` may be NULL.
///
/// `explanation` may be NULL; else it receives the verdict on each device, as a JSON text that devbay_text_free frees.
///
/// Errors: DEVBAY_ERROR_NOT_FOUND if there is no such device; DEVBAY_ERROR_UNSUPPORTED_OP if none has all kernels;
/// DEVBAY_ERROR_REFUSED if the device's plugin was refused.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_runtime_choose(
    runtime: *const devbay_runtime,
    policy: *const c_char,
    model: *const devbay_model,
    device: Option<&mut MaybeUninit<*mut devbay_device>>,
    explanation: Option<&mut MaybeUninit<*mut c_char>>,
) -> *mut devbay_error {
    attempt(|| {
        let host = handles::get::<Host>(runtime)?;
        // SAFETY: a text ends with NUL and lives until the call returns (the header's preamble).
        let policy = Policy::parse(unsafe { text(policy, "policy") }?)?;
        let model = (!model.is_null()).then(|| handles::get::<Model>(model)).transpose()?;
        let program = model.as_ref().map(|model| model.program());
        let choice = host.runtime.choose(&policy, &Requirements { program, ..Requirements::default() })?;
        give_new::<Named>(device, || Ok(Named::new(Arc::clone(&choice.device))))?;
        match explanation {
            Some(out) => give_json(Some(out), &choice_json(&choice)),
            None => Ok(()),
        }
    })
}

/// Takes what was recorded since the last call, if the runtime was made with the option trace=true: a timeline for
/// ui.perfetto.dev and chrome://tracing, and sums by op, both as JSON texts that devbay_text_free frees. Either place may be NULL.
///
/// Errors: DEVBAY_ERROR_INVALID_ARGUMENT if the runtime does not record.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_runtime_take_trace(
    runtime: *const devbay_runtime,
    timeline: Option<&mut MaybeUninit<*mut c_char>>,
    summary: Option<&mut MaybeUninit<*mut c_char>>,
) -> *mut devbay_error {
    attempt(|| {
        let host = handles::get::<Host>(runtime)?;
        let recorder = host.recorder.as_ref();
        let recorder =
            recorder.ok_or_else(|| invalid("the runtime was made without the option trace=true"))?;
        let recording = recorder.take();
        let slices = Timeline::of(&recording);
        if let Some(out) = timeline {
            let mut bytes = Vec::new();
            write_chrome(&mut bytes, &slices)
                .map_err(|e| Error::new(ErrorKind::Internal, "a timeline that is no text").because(e))?;
            give_text(Some(out), &String::from_utf8_lossy(&bytes))?;
        }
        match summary {
            Some(out) => give_json(Some(out), &Summary::of(&slices).json()),
            None => Ok(()),
        }
    })
}

/// Returns the name of a device, PLUGIN:INDEX. It lives as long as the handle; NULL for a handle that is gone.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_device_name(device: *const devbay_device) -> *const c_char {
    handles::get::<Named>(device).map_or(null(), |named| named.name.as_ptr())
}

/// Returns the kind of a device: cpu, gpu, npu, tpu, dsp, fpga or other. It lives as long as the handle.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_device_kind(device: *const devbay_device) -> *const c_char {
    handles::get::<Named>(device).map_or(null(), |named| named.kind.as_ptr())
}

/// Returns the name of a device's product. It lives as long as the handle.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_device_product(device: *const devbay_device) -> *const c_char {
    handles::get::<Named>(device).map_or(null(), |named| named.product.as_ptr())
}

/// Gives the bytes of a device's memory that the runtime has allocated now, and at most so far. Either place may be NULL.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_device_memory(
    device: *const devbay_device,
    in_use: Option<&mut MaybeUninit<u64>>,
    peak: Option<&mut MaybeUninit<u64>>,
) -> *mut devbay_error {
    attempt(|| {
        let (now, most) = handles::get::<Named>(device)?.device.bytes_in_use();
        in_use.map(|out: &mut MaybeUninit<u64>| out.write(now));
        peak.map(|out: &mut MaybeUninit<u64>| out.write(most));
        Ok(())
    })
}

/// Destroys a device's handle. NULL is ignored.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_device_destroy(device: *mut devbay_device) {
    handles::destroy::<Named>(device);
}

/// Reads a model's file: ONNX, a compiled model, or a program in text form. `options` may be NULL.
///
/// Errors: DEVBAY_ERROR_IO if a file cannot be read; DEVBAY_ERROR_INVALID_MODEL if it is damaged; DEVBAY_ERROR_UNSUPPORTED_MODEL
/// if it uses what devbay does not have.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_model_load(
    path: *const c_char,
    options: *const devbay_options,
    model: Option<&mut MaybeUninit<*mut devbay_model>>,
) -> *mut devbay_error {
    attempt(|| {
        give_new::<Model>(model, || {
            let load = options::set(options)?.options.load()?;
            // SAFETY: a text ends with NUL and lives until the call returns (the header's preamble).
            Model::load_with(unsafe { text(path, "path") }?, load)
        })
    })
}

/// Reads a model in memory, in any format of devbay_model_load. The bytes are copied.
///
/// Errors: as devbay_model_load; DEVBAY_ERROR_UNSUPPORTED_MODEL for a model with data in other files.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_model_from_bytes(
    bytes: *const u8,
    size: usize,
    model: Option<&mut MaybeUninit<*mut devbay_model>>,
) -> *mut devbay_error {
    attempt(|| {
        give_new::<Model>(model, || {
            // SAFETY: `size` bytes live there until the call returns (the header's preamble).
            Model::from_bytes(unsafe { list(bytes, size, "bytes of a model") }?.to_vec())
        })
    })
}

/// Destroys a model's handle. Sessions keep what they need of it. NULL is ignored.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_model_destroy(model: *mut devbay_model) {
    handles::destroy::<Model>(model);
}
