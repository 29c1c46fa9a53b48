//! From a path to a library's entry (B1, B26).
//!
//! `RTLD_NOW | RTLD_LOCAL`: a missing symbol is found here and not in the middle of a run, and one plugin's
//! symbols are not another's. A library stays mapped when its plugin goes, unless the plugin says that it can
//! be unloaded: drivers leave threads and thread-locals behind. A library that was refused stays mapped too.

use devbay_core::about::{Refusal, RefusalKind};
use devbay_plugin_api::abi::version::{ABI_MAJOR, QUERY_SYMBOL};
use devbay_plugin_api::abi::{PluginInfo, QueryFn};
use std::error::Error;
use std::io::{Read, Seek, SeekFrom};
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
        check_whole(path).map_err(|reason| {
            Refusal::new(RefusalKind::NotALibrary, format!("not a loadable library: {reason}"))
        })?;
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

/// Refuses an ELF file that ends before its segments do, as a download that was cut does: the system's loader
/// would map what is not there, and the process would die of SIGBUS at the first touch. What is no 64-bit ELF file
/// is left to the loader, which has better words for it.
fn check_whole(path: &Path) -> Result<(), String> {
    const HEADER: usize = 64;
    const PROGRAM_HEADER: usize = 56;
    const PT_LOAD: u32 = 1;
    let io = |e: std::io::Error| format!("cannot read it: {e}");
    let mut file = std::fs::File::open(path).map_err(io)?;
    let len = file.metadata().map_err(io)?.len();
    let mut header = [0u8; HEADER];
    if file.read_exact(&mut header).is_err() || header[..5] != *b"\x7fELF\x02" {
        return Ok(());
    }
    let little = header[5] == 1;
    let word = |bytes: &[u8]| {
        let mut wide = [0u8; 8];
        if little {
            wide[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(wide)
        } else {
            wide[8 - bytes.len()..].copy_from_slice(bytes);
            u64::from_be_bytes(wide)
        }
    };
    // e_phoff, e_phentsize and e_phnum of the ELF header (elf(5)).
    let (offset, size, n) = (word(&header[32..40]), word(&header[54..56]), word(&header[56..58]));
    if size != PROGRAM_HEADER as u64 {
        return Ok(());
    }
    let cut = |end: u64| format!("the file has {len} bytes and is cut off, it needs {end}");
    let end_of_headers = offset.saturating_add(n * size);
    if end_of_headers > len {
        return Err(cut(end_of_headers));
    }
    file.seek(SeekFrom::Start(offset)).map_err(io)?;
    for _ in 0..n {
        let mut segment = [0u8; PROGRAM_HEADER];
        file.read_exact(&mut segment).map_err(io)?;
        // p_type, p_offset and p_filesz.
        let end = word(&segment[8..16]).saturating_add(word(&segment[32..40]));
        if word(&segment[..4]) == u64::from(PT_LOAD) && end > len {
            return Err(cut(end));
        }
    }
    Ok(())
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
