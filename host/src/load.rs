//! From a path to a library's entry (B1, B26).
//!
//! `RTLD_NOW | RTLD_LOCAL`: a missing symbol is found here and not in the middle of a run, and one plugin's
//! symbols are not another's. A library stays mapped when its plugin goes, unless the plugin says that it can
//! be unloaded: drivers leave threads and thread-locals behind. A library that was refused stays mapped too.

use devbay_core::about::{Refusal, RefusalKind};
use devbay_plugin_api::abi::version::{ABI_MAJOR, QUERY_SYMBOL};
use devbay_plugin_api::abi::{PluginInfo, QueryFn};
use std::error::Error;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

/// A loaded library with the ABI's entry.
pub struct Library {
    path: PathBuf,
    query: QueryFn,
    handle: ManuallyDrop<libloading::Library>,
    unload: bool,
}

impl Library {
    /// Loads a library and finds its entry. Runs the library's static constructors.
    ///
    /// # Errors
    /// A refusal for a file that cannot be read, is no library for this machine, or has no entry.
    pub fn open(path: &Path) -> Result<Self, Refusal> {
        let metadata = std::fs::metadata(path).map_err(|e| {
            Refusal::new(RefusalKind::Unreadable, format!("cannot read {}: {e}", path.display()))
        })?;
        if !metadata.is_file() {
            return Err(Refusal::new(RefusalKind::Unreadable, format!("{} is not a file", path.display())));
        }
        // A bare file name would be looked up in the system's folders.
        let path = path.canonicalize().map_err(|e| {
            Refusal::new(RefusalKind::Unreadable, format!("cannot read {}: {e}", path.display()))
        })?;
        let handle = open_local(&path).map_err(|e| {
            // The loader's reason is in the source.
            let reason = e.source().map_or_else(|| e.to_string(), ToString::to_string);
            Refusal::new(RefusalKind::NotALibrary, format!("not a loadable library: {reason}"))
        })?;
        let query = match find_entry(&handle) {
            Ok(query) => query,
            Err(refusal) => {
                std::mem::forget(handle);
                return Err(refusal);
            }
        };
        Ok(Self { path, query, handle: ManuallyDrop::new(handle), unload: false })
    }

    /// Where it was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Asks the entry who the plugin is.
    pub fn query(&self) -> *const PluginInfo {
        // SAFETY: the symbol's name promises this type and that it may be called at any time (B1); the
        // library stays loaded as long as `self`.
        unsafe { (self.query)() }
    }

    /// A symbol for reports, such as the optional type layout.
    pub fn has_symbol(&self, name: &std::ffi::CStr) -> bool {
        // SAFETY: the address is not used, so its type does not matter.
        unsafe { self.handle.get::<*const ()>(name.to_bytes_with_nul()) }.is_ok()
    }

    #[cfg(feature = "abi-stable")]
    pub(crate) fn symbol<T: Copy>(&self, name: &std::ffi::CStr) -> Option<T> {
        // SAFETY: the caller knows the symbol's type by its name.
        unsafe { self.handle.get::<T>(name.to_bytes_with_nul()) }.ok().map(|symbol| *symbol)
    }

    /// Lets the library go when this value does: the plugin says that it may (B26).
    pub fn unload_on_drop(&mut self) {
        self.unload = true;
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if self.unload {
            // SAFETY: dropped once, here. The plugin declared that it can be unloaded, and its last instance
            // held this value until it was destroyed.
            unsafe { ManuallyDrop::drop(&mut self.handle) };
        }
    }
}

#[cfg(unix)]
fn open_local(path: &Path) -> Result<libloading::Library, libloading::Error> {
    use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
    // SAFETY: loading runs foreign constructors; that is what loading a plugin means. Unknown files are
    // probed in a child process first (B27).
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map(Into::into)
}

#[cfg(not(unix))]
fn open_local(path: &Path) -> Result<libloading::Library, libloading::Error> {
    // SAFETY: as on Unix.
    unsafe { libloading::Library::new(path) }
}

fn find_entry(handle: &libloading::Library) -> Result<QueryFn, Refusal> {
    // SAFETY: the symbol's name, with the ABI's major in it, promises this type (B1).
    if let Ok(query) = unsafe { handle.get::<QueryFn>(QUERY_SYMBOL.to_bytes_with_nul()) } {
        return Ok(*query);
    }
    let wanted = QUERY_SYMBOL.to_string_lossy();
    for major in (0..10).filter(|&major| major != ABI_MAJOR) {
        let other = format!("devbay_plugin_query_v{major}\0");
        // SAFETY: only looked up, not called.
        if unsafe { handle.get::<*const ()>(other.as_bytes()) }.is_ok() {
            return Err(Refusal::new(
                RefusalKind::NoCommonVersion,
                format!("the plugin speaks ABI major {major}, this host speaks {ABI_MAJOR}"),
            ));
        }
    }
    Err(Refusal::new(
        RefusalKind::NoEntry,
        format!("the library does not export {wanted}, so it is no devbay plugin"),
    ))
}
