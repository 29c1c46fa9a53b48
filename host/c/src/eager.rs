//! One op, one call.

use crate::arguments::{invalid, list, list_mut, text};
use crate::errors::{attempt, devbay_error};
use crate::handles::{self, give_new, object};
use crate::runtime::{Named, devbay_device};
use crate::session::values;
use crate::values::{Value, devbay_value};
use devbay_host::internals::core::program::AttrValue;
use devbay_host::internals::eager;
use devbay_host::{Result, Tensor};
use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};

/// Attributes of an op, by name.
pub struct devbay_attributes;

/// Attributes, in the order in which they were set.
#[derive(Default)]
pub struct Attributes(Mutex<Vec<(String, AttrValue)>>);

object!(Attributes, devbay_attributes, "set of attributes");

/// Sets an attribute.
///
/// # Safety
/// `name` is a text of C, or NULL.
unsafe fn set(
    attributes: *mut devbay_attributes,
    name: *const c_char,
    value: impl FnOnce() -> Result<AttrValue>,
) -> *mut devbay_error {
    attempt(|| {
        let attributes = handles::get::<Attributes>(attributes)?;
        // SAFETY: the caller's promise (`# Safety`).
        let name = unsafe { text(name, "attribute's name") }?.to_owned();
        let value = value()?;
        let mut attributes = attributes.0.lock().unwrap_or_else(PoisonError::into_inner);
        attributes.retain(|(known, _)| *known != name);
        attributes.push((name, value));
        Ok(())
    })
}

/// Makes an empty set of attributes. The caller destroys it.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_attributes_create(
    attributes: Option<&mut MaybeUninit<*mut devbay_attributes>>,
) -> *mut devbay_error {
    attempt(|| give_new::<Attributes>(attributes, || Ok(Attributes::default())))
}

/// Sets an integer.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_attributes_set_int(
    attributes: *mut devbay_attributes,
    name: *const c_char,
    value: i64,
) -> *mut devbay_error {
    // SAFETY: the name is a text of C (the header's preamble).
    unsafe { set(attributes, name, || Ok(AttrValue::Int(value))) }
}

/// Sets a number.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_attributes_set_float(
    attributes: *mut devbay_attributes,
    name: *const c_char,
    value: f32,
) -> *mut devbay_error {
    // SAFETY: the name is a text of C (the header's preamble).
    unsafe { set(attributes, name, || Ok(AttrValue::Float(value))) }
}

/// Sets a text.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_attributes_set_text(
    attributes: *mut devbay_attributes,
    name: *const c_char,
    value: *const c_char,
) -> *mut devbay_error {
    // SAFETY: the name and the value are texts of C (the header's preamble).
    unsafe { set(attributes, name, || Ok(AttrValue::String(text(value, "attribute's value")?.to_owned()))) }
}

/// Sets a list of integers, which is copied.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_attributes_set_ints(
    attributes: *mut devbay_attributes,
    name: *const c_char,
    values: *const i64,
    n: usize,
) -> *mut devbay_error {
    // SAFETY: the name is a text of C, and `n` values are there until the call returns (the header's preamble).
    unsafe { set(attributes, name, || Ok(AttrValue::Ints(list(values, n, "integers")?.to_vec()))) }
}

/// Sets a list of numbers, which is copied.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_attributes_set_floats(
    attributes: *mut devbay_attributes,
    name: *const c_char,
    values: *const f32,
    n: usize,
) -> *mut devbay_error {
    // SAFETY: the name is a text of C, and `n` values are there until the call returns (the header's preamble).
    unsafe { set(attributes, name, || Ok(AttrValue::Floats(list(values, n, "numbers")?.to_vec()))) }
}

/// Sets a tensor; its memory is shared.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_attributes_set_value(
    attributes: *mut devbay_attributes,
    name: *const c_char,
    value: *const devbay_value,
) -> *mut devbay_error {
    // SAFETY: the name is a text of C (the header's preamble).
    unsafe {
        set(attributes, name, || Ok(AttrValue::Tensor(handles::get::<Value>(value)?.tensor().to_tensor()?)))
    }
}

/// Destroys a set of attributes. NULL is ignored.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_attributes_destroy(attributes: *mut devbay_attributes) {
    handles::destroy::<Attributes>(attributes);
}

/// Runs one op of ONNX, in its newest version, on a device. `attributes` may be NULL. The library puts new values in host memory into
/// `outputs`, which the caller destroys.
///
/// Errors: DEVBAY_ERROR_UNSUPPORTED_OP for an op that does not exist, or that the device has no kernel for; errors of types and shapes.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_run_op(
    device: *const devbay_device,
    op: *const c_char,
    attributes: *const devbay_attributes,
    inputs: *const *const devbay_value,
    n_inputs: usize,
    outputs: *mut *mut devbay_value,
    n_outputs: usize,
) -> *mut devbay_error {
    attempt(|| {
        let named = handles::get::<Named>(device)?;
        // SAFETY: texts end with NUL, and as many handles are there as the caller says, until the call returns (the header's
        // preamble).
        let (op, inputs, places) = unsafe {
            (text(op, "op")?, list(inputs, n_inputs, "inputs")?, list_mut(outputs, n_outputs, "outputs")?)
        };
        let set = (!attributes.is_null()).then(|| handles::get::<Attributes>(attributes)).transpose()?;
        let set = set.map(|set| set.0.lock().unwrap_or_else(PoisonError::into_inner).clone());
        let set = set.unwrap_or_default();
        let attributes: Vec<(&str, AttrValue)> =
            set.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        let inputs = values(inputs)?;
        let tensors =
            inputs.iter().map(|value| value.tensor().to_tensor()).collect::<Result<Vec<Tensor>>>()?;
        let tensors: Vec<&Tensor> = tensors.iter().collect();
        let results = eager::run(&named.device, op, &attributes, &tensors, places.len())?;
        if results.len() != places.len() {
            let text = format!("{} outputs are given, the op has {}", places.len(), results.len());
            return Err(invalid(text));
        }
        for (place, result) in places.iter_mut().zip(results) {
            *place = handles::make(Value::of_host(result)?)?;
        }
        Ok(())
    })
}
