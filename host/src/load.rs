//! Loads a library from a path and finds its entry (B1, B26).
//!
//! `RTLD_NOW | RTLD_LOCAL`: a missing symbol is found at load time instead of during a run, and plugins do not see each
//! other's symbols. A library stays mapped after its plugin is destroyed, unless the plugin declares that it can be
//! unloaded: drivers leave threads and thread-locals behind. A refused library stays mapped too.

use crate::file::open_regular;
use crate::manifest::sha256_of_open;
use devbay_core::about::{Refusal, RefusalKind};
use devbay_core::calls::{self, Call};
use devbay_plugin_api::abi::version::{ABI_MAJOR, QUERY_SYMBOL};
use devbay_plugin_api::abi::{PluginInfo, QueryFn};
use std::error::Error;
use std::fs::{File, Metadata};
use std::io::{Read, Seek, SeekFrom};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

/// Call noted while loading, since that runs a library's static constructors.
const LOADING: Call<'static> = Call { plugin: "", function: "static constructors", device: "", node: "" };

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
    /// A refusal for a file that cannot be read, is not a library for this machine, or has no entry.
    pub fn open(path: &Path) -> Result<Self, Refusal> {
        LibraryFile::open(path)?.load()
    }

    fn load(path: PathBuf) -> Result<Self, Refusal> {
        let call = Call { plugin: &path.to_string_lossy(), ..LOADING };
        let handle = calls::during(call, || open_local(&path)).map_err(|e| {
            // The loader's reason is in the error's source.
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

    /// Returns the path that it was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Asks the entry for the plugin's info.
    pub fn query(&self) -> *const PluginInfo {
        // SAFETY: the symbol's name guarantees this type, and it may be called at any time (B1); the library stays loaded as
        // long as `self`.
        let query = || unsafe { (self.query)() };
        let call = Call { plugin: &self.path.to_string_lossy(), function: "query", ..LOADING };
        calls::during(call, query)
    }

    /// Returns whether it has a symbol, for reports, such as the optional type layout.
    pub fn has_symbol(&self, name: &std::ffi::CStr) -> bool {
        // SAFETY: the address is not used, so its type does not matter.
        unsafe { self.handle.get::<*const ()>(name.to_bytes_with_nul()) }.is_ok()
    }

    /// Returns a symbol's value; None if the library does not export it.
    ///
    /// # Safety
    /// The symbol is a `T`.
    #[cfg(feature = "abi-stable")]
    pub(crate) unsafe fn symbol<T: Copy>(&self, name: &std::ffi::CStr) -> Option<T> {
        // SAFETY: `T` is the symbol's type (# Safety).
        unsafe { self.handle.get::<T>(name.to_bytes_with_nul()) }.ok().map(|symbol| *symbol)
    }

    /// Unloads the library when this value is dropped, because the plugin declares that it can be unloaded (B26).
    pub fn unload_on_drop(&mut self) {
        self.unload = true;
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if self.unload {
            // SAFETY: dropped only here. The plugin declared that it can be unloaded, and its last instance held this value
            // until it was destroyed.
            unsafe { ManuallyDrop::drop(&mut self.handle) };
        }
    }
}

/// An open library file, so that the checked file is the loaded one.
///
/// The system's loader takes a path, not a descriptor. A path through the descriptor (`/proc/self/fd/N`) would be exact, but
/// `$ORIGIN`, by which repaired wheels find their libraries, would be resolved from there. So the path is loaded, and before
/// anything is called, the mapped file is compared with the descriptor's. Static constructors have run by then: an attacker
/// who can replace a file in a plugin's folder is detected, not stopped.
pub struct LibraryFile {
    /// The given path, for messages.
    named: PathBuf,
    path: PathBuf,
    file: File,
    /// Metadata of the file when it was hashed.
    hashed: Option<Metadata>,
}

impl LibraryFile {
    /// Opens a regular file.
    ///
    /// # Errors
    /// A refusal for a file that cannot be read.
    pub fn open(path: &Path) -> Result<Self, Refusal> {
        let unreadable = |e: std::io::Error| {
            Refusal::new(RefusalKind::Unreadable, format!("cannot read {}: {e}", path.display()))
        };
        // The loader would search the system's folders for a bare file name.
        let real = path.canonicalize().map_err(unreadable)?;
        let (file, _) = open_regular(&real).map_err(unreadable)?;
        Ok(Self { named: path.to_owned(), path: real, file, hashed: None })
    }

    /// Compares the file's SHA-256 with a manifest's.
    ///
    /// # Errors
    /// A refusal for a different SHA-256, and for a file that cannot be read.
    pub fn check_sha256(&mut self, expected: &str) -> Result<(), Refusal> {
        let read = || -> std::io::Result<(Metadata, String)> {
            let about = self.file.metadata()?;
            let mut reader = &self.file;
            reader.seek(SeekFrom::Start(0))?;
            Ok((about, sha256_of_open(reader)?))
        };
        let (about, found) = read().map_err(|e| {
            Refusal::new(RefusalKind::Unreadable, format!("cannot read {}: {e}", self.named.display()))
        })?;
        if !found.eq_ignore_ascii_case(expected) {
            return Err(Refusal::new(
                RefusalKind::WrongHash,
                format!("the library's sha256 is {found}, the manifest says {expected}"),
            ));
        }
        self.hashed = Some(about);
        Ok(())
    }

    /// Loads the library and finds its entry. Runs the library's static constructors.
    ///
    /// # Errors
    /// A refusal for a file that is not a library for this machine, has no entry, or, if it was hashed, is not the file that
    /// was loaded.
    pub fn load(self) -> Result<Library, Refusal> {
        check_whole(&self.file).map_err(|reason| {
            Refusal::new(RefusalKind::NotALibrary, format!("not a loadable library: {reason}"))
        })?;
        let library = Library::load(self.path)?;
        if let Some(hashed) = &self.hashed {
            let is_same = same_since(&self.file, hashed) && is_mapped_from(library.query, &self.file);
            if !is_same {
                let text = "the library was changed or exchanged between its check and its load";
                return Err(Refusal::new(RefusalKind::WrongHash, text));
            }
        }
        Ok(library)
    }
}

/// Returns whether a file is unchanged since this metadata was read.
fn same_since(file: &File, before: &Metadata) -> bool {
    let Ok(now) = file.metadata() else { return false };
    #[cfg(unix)]
    let changed = |about: &Metadata| {
        use std::os::unix::fs::MetadataExt;
        (about.mtime(), about.mtime_nsec(), about.size())
    };
    #[cfg(not(unix))]
    let changed = |about: &Metadata| (about.modified().ok(), about.len());
    changed(&now) == changed(before)
}

/// Returns whether the code at `entry` is mapped from an open file.
///
/// Maps the file too and asks the kernel for the source of both mappings. Its answers agree with each other even on file
/// systems where they disagree with `fstat`, such as overlayfs and btrfs.
#[cfg(target_os = "linux")]
fn is_mapped_from(entry: QueryFn, file: &File) -> bool {
    // SAFETY: only the mapping's address is used; nothing is read through it.
    let Ok(ours) = (unsafe { memmap2::MmapOptions::new().len(1).map(file) }) else { return false };
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
    // `begin-end permissions offset device inode path` (proc_pid_maps(5)).
    let source_of = |address: usize| {
        maps.lines().find_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let (begin, end) = words.next()?.split_once('-')?;
            let range = usize::from_str_radix(begin, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
            let (device, inode) = (words.nth(2)?, words.next()?);
            range.contains(&address).then_some((device, inode)).filter(|(_, inode)| *inode != "0")
        })
    };
    let source = source_of(entry as usize);
    source.is_some() && source == source_of(ours.as_ptr().addr())
}

/// Returns true, because the source of a mapping is unknown elsewhere.
#[cfg(not(target_os = "linux"))]
fn is_mapped_from(_entry: QueryFn, _file: &File) -> bool {
    true
}

/// Refuses an ELF file that is shorter than its segments, such as a truncated download: the system's loader would map
/// missing pages, and the first access would kill the process with SIGBUS. Files that are not 64-bit ELF are left to the
/// loader, which reports them better.
fn check_whole(mut file: &File) -> Result<(), String> {
    const HEADER: usize = 64;
    const PROGRAM_HEADER: usize = 56;
    const PT_LOAD: u32 = 1;
    let io = |e: std::io::Error| format!("cannot read it: {e}");
    file.seek(SeekFrom::Start(0)).map_err(io)?;
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
    // SAFETY: loading runs foreign constructors, which the caller accepts by loading a plugin. Unknown files are probed in a
    // child process first (B27).
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map(Into::into)
}

#[cfg(not(unix))]
fn open_local(path: &Path) -> Result<libloading::Library, libloading::Error> {
    // SAFETY: loading runs foreign code, which the caller accepts by loading a plugin; unknown files are probed first (B27).
    unsafe { libloading::Library::new(path) }
}

fn find_entry(handle: &libloading::Library) -> Result<QueryFn, Refusal> {
    // SAFETY: the symbol's name contains the ABI's major, which fixes this type (B1).
    if let Ok(query) = unsafe { handle.get::<QueryFn>(QUERY_SYMBOL.to_bytes_with_nul()) } {
        return Ok(*query);
    }
    let wanted = QUERY_SYMBOL.to_string_lossy();
    for major in (0..10).filter(|&major| major != ABI_MAJOR) {
        let other = format!("devbay_plugin_query_v{major}\0");
        // SAFETY: the symbol is only looked up, never called.
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
