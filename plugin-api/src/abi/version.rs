//! Agreement on one minor version (B3), and the functions that every plugin must have (B7).

use super::tables::LAYOUTS;
use super::v0::{
    DEVBAY_ABI_MAJOR, DEVBAY_ABI_MINOR, DEVBAY_ABI_MINOR_MIN, DEVBAY_FLAGS_REQUIRED, PluginTable,
};
use core::ffi::CStr;
use core::fmt;

/// Name of the entry symbol: the ABI's major is part of it (B1).
pub const QUERY_SYMBOL: &CStr = c"devbay_plugin_query_v0";

/// Major version of the ABI; 0 until it is frozen.
pub const ABI_MAJOR: u32 = DEVBAY_ABI_MAJOR;

/// The minors that one side supports, including both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MinorRange {
    /// Oldest minor it can work with.
    pub min: u32,
    /// Newest minor it knows.
    pub max: u32,
}

impl MinorRange {
    /// The minors that this build of the contract supports.
    pub const CURRENT: Self = Self { min: DEVBAY_ABI_MINOR_MIN, max: DEVBAY_ABI_MINOR };
}

impl fmt::Display for MinorRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max {
            write!(f, "{ABI_MAJOR}.{}", self.min)
        } else {
            write!(f, "{ABI_MAJOR}.{} to {ABI_MAJOR}.{}", self.min, self.max)
        }
    }
}

/// Reason why two sides have no minor in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mismatch {
    /// The range ends before it begins.
    Empty,
    /// The plugin needs a newer host.
    PluginNewer,
    /// The plugin is older than the oldest that the host supports.
    PluginOlder,
}

/// Returns the highest minor that both sides support (B3).
///
/// ```
/// use devbay_plugin_api::abi::version::{agree, MinorRange, Mismatch};
/// let host = MinorRange { min: 1, max: 3 };
/// assert_eq!(agree(host, MinorRange { min: 1, max: 2 }), Ok(2));
/// assert_eq!(agree(host, MinorRange { min: 4, max: 5 }), Err(Mismatch::PluginNewer));
/// ```
///
/// # Errors
/// [`Mismatch`] says which side is behind.
pub fn agree(host: MinorRange, plugin: MinorRange) -> Result<u32, Mismatch> {
    if plugin.min > plugin.max || host.min > host.max {
        Err(Mismatch::Empty)
    } else if plugin.min > host.max {
        Err(Mismatch::PluginNewer)
    } else if plugin.max < host.min {
        Err(Mismatch::PluginOlder)
    } else {
        Ok(host.max.min(plugin.max))
    }
}

/// Condition under which a plugin must have a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needed {
    /// Every plugin.
    Always,
    /// A plugin with a device that is not inline.
    WithTimelines,
    /// A plugin that lists kernels.
    WithKernels,
}

/// The twelve functions that a plugin must have (B7). Everything else is optional.
pub const REQUIRED_FUNCTIONS: [(&str, Needed); 12] = [
    ("create", Needed::Always),
    ("destroy", Needed::Always),
    ("devices", Needed::Always),
    ("buffer_alloc", Needed::Always),
    ("buffer_free", Needed::Always),
    ("stream_create", Needed::Always),
    ("stream_destroy", Needed::Always),
    ("copy", Needed::Always),
    ("stream_signal", Needed::WithTimelines),
    ("stream_reached", Needed::WithTimelines),
    ("prepare", Needed::WithKernels),
    ("unprepare", Needed::WithKernels),
];

/// Returns the functions that the plugin needs but that are NULL or beyond the size of `table` (B7).
///
/// `table` is the result of [`super::read_struct`], where absent functions are NULL.
pub fn missing_functions(table: &PluginTable, needed: &[Needed]) -> Vec<&'static str> {
    REQUIRED_FUNCTIONS
        .iter()
        .filter(|(name, when)| needed.contains(when) && !has_function(table, name))
        .map(|(name, _)| *name)
        .collect()
}

/// Returns whether the function called `name` is present; false for an unknown name.
pub fn has_function(table: &PluginTable, name: &str) -> bool {
    let layout = LAYOUTS
        .iter()
        .find(|layout| layout.name == "PluginTable")
        .expect("the generated tables have every struct of v0.rs");
    let Some(field) =
        layout.fields.iter().find(|field| field.name == name && field.size == size_of::<usize>())
    else {
        return false;
    };
    let base: *const u8 = (table as *const PluginTable).cast();
    // SAFETY: `offset` comes from `offset_of!` on this struct, and the field is a pointer-sized `Option` of a function,
    // whose bits may be read as an integer.
    let bits = unsafe { base.add(field.offset).cast::<usize>().read() };
    bits != 0
}

/// Returns the flags that must be understood and are not in `known` (B5); 0 if there are none.
///
/// ```
/// use devbay_plugin_api::abi::{DEVBAY_DEVICE_INLINE, tables::DEVICE_FLAGS, version::not_understood};
/// assert_eq!(not_understood(DEVBAY_DEVICE_INLINE, DEVICE_FLAGS), 0);
/// assert_eq!(not_understood(1 << 30, DEVICE_FLAGS), 0, "what need not be understood");
/// assert_eq!(not_understood(1 << 63 | DEVBAY_DEVICE_INLINE, DEVICE_FLAGS), 1 << 63);
/// ```
pub fn not_understood(flags: u64, known: u64) -> u64 {
    flags & DEVBAY_FLAGS_REQUIRED & !known
}
