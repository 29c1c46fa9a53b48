//! Options by key and value, as handles.

use crate::arguments::{invalid, text};
use crate::errors::{attempt, devbay_error};
use crate::handles::{self, give_new, object};
use devbay_host::Result;
use devbay_host::internals::core::services::LogLevel;
use devbay_host::internals::options::Options;
use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Options for making a runtime, reading a model, or making a session: texts by key.
pub struct devbay_options;

/// Receiver of messages of plugins: the plugin's name, the level, one of DEVBAY_LOG_*, and the text. Both texts live until it
/// returns.
///
/// Threads: any, also several at once. It must not call devbay.
pub type devbay_log_fn =
    Option<extern "C" fn(user_data: *mut c_void, plugin: *const c_char, level: u32, text: *const c_char)>;

/// A message for those who look for a bug.
pub const DEVBAY_LOG_DEBUG: u32 = 0;
/// A message about normal operation.
pub const DEVBAY_LOG_INFO: u32 = 1;
/// Something that should be looked at.
pub const DEVBAY_LOG_WARN: u32 = 2;
/// A failure.
pub const DEVBAY_LOG_ERROR: u32 = 3;

/// Options, and the receiver of messages.
pub struct Settings(Mutex<Set>);

#[derive(Clone, Default)]
pub struct Set {
    pub options: Options,
    pub log: Option<Log>,
}

/// A function of the caller's, and its argument.
#[derive(Clone, Copy)]
pub struct Log {
    function: extern "C" fn(*mut c_void, *const c_char, u32, *const c_char),
    user_data: *mut c_void,
}

// SAFETY: the header says that the function is called on any thread, with this argument.
unsafe impl Send for Log {}
// SAFETY: as it says, also on several threads at once.
unsafe impl Sync for Log {}

object!(Settings, devbay_options, "set of options");

impl Log {
    /// Passes a message on.
    pub fn send(&self, plugin: &str, level: LogLevel, text: &str) {
        let level = match level {
            LogLevel::Debug => DEVBAY_LOG_DEBUG,
            LogLevel::Info => DEVBAY_LOG_INFO,
            LogLevel::Warn => DEVBAY_LOG_WARN,
            LogLevel::Error => DEVBAY_LOG_ERROR,
        };
        let (plugin, text) = (crate::arguments::c_text(plugin), crate::arguments::c_text(text));
        (self.function)(self.user_data, plugin.as_ptr(), level, text.as_ptr());
    }
}

impl Settings {
    fn lock(&self) -> MutexGuard<'_, Set> {
        // Nothing that can panic happens under the lock but an allocation.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the content of options; none for NULL.
///
/// # Errors
/// For a handle that is gone.
pub fn set(options: *const devbay_options) -> Result<Set> {
    match options.is_null() {
        true => Ok(Set::default()),
        false => Ok(handles::get::<Settings>(options)?.lock().clone()),
    }
}

/// Makes an empty set of options.
///
/// The caller destroys it. The calls that take options copy them.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_options_create(
    options: Option<&mut MaybeUninit<*mut devbay_options>>,
) -> *mut devbay_error {
    attempt(|| give_new::<Settings>(options, || Ok(Settings(Mutex::default()))))
}

/// Sets an option. Some keys may be set several times, and all their values count; of others the last value does.
///
/// The section "Options" at the head of this file lists the keys. Values are checked by the call that takes the options.
///
/// Threads: any. Errors: DEVBAY_ERROR_INVALID_ARGUMENT for a key that does not exist.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_options_set(
    options: *mut devbay_options,
    key: *const c_char,
    value: *const c_char,
) -> *mut devbay_error {
    attempt(|| {
        let settings = handles::get::<Settings>(options)?;
        // SAFETY: texts end with NUL and live until the call returns (the header's preamble).
        let (key, value) = unsafe { (text(key, "option's key")?, text(value, "option's value")?) };
        settings.lock().options.set(key, value)
    })
}

/// Sets the receiver of the messages of a runtime's plugins; without one they are dropped. `user_data` is passed to each call.
///
/// The function may be called until the runtime, its models, sessions and values are destroyed.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_options_set_log(
    options: *mut devbay_options,
    function: devbay_log_fn,
    user_data: *mut c_void,
) -> *mut devbay_error {
    attempt(|| {
        let settings = handles::get::<Settings>(options)?;
        let function = function.ok_or_else(|| invalid("the receiver of messages is NULL"))?;
        settings.lock().log = Some(Log { function, user_data });
        Ok(())
    })
}

/// Destroys a set of options. NULL is ignored.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_options_destroy(options: *mut devbay_options) {
    handles::destroy::<Settings>(options);
}
