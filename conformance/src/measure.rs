//! Resources of this process: memory, threads, open files. Asked of Linux; elsewhere nothing is known.

use std::ffi::OsString;

/// Resident memory in bytes.
pub(crate) fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * page_size())
}

/// Memory that is mapped, in bytes.
pub(crate) fn mapped() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().next()?.parse().ok()?;
    Some(pages * page_size())
}

#[cfg(unix)]
fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// Never asked: there is no `/proc`.
#[cfg(not(unix))]
fn page_size() -> u64 {
    0
}

/// Entries of a folder of this process's, such as its threads (`task`) and files (`fd`).
pub(crate) fn count(folder: &str) -> Option<usize> {
    Some(std::fs::read_dir(format!("/proc/self/{folder}")).ok()?.count())
}

/// Returns the variable for a process in which [`allocated`] is exact. glibc counts a block in a thread's cache as in
/// use, and how full the caches of a driver's threads are depends on other load on the machine.
pub(crate) fn without_thread_caches() -> (OsString, OsString) {
    const NAME: &str = "GLIBC_TUNABLES";
    let mut tunables = std::env::var_os(NAME).unwrap_or_default();
    if !tunables.is_empty() {
        tunables.push(":");
    }
    tunables.push("glibc.malloc.tcache_count=0");
    (NAME.into(), tunables)
}

/// Bytes that the C library's allocator has given out and not got back, over all threads: plugins share it with
/// the host unless they bring an allocator of their own. None before glibc 2.33.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn allocated() -> Option<u64> {
    /// `struct mallinfo2` of malloc.h, since glibc 2.33.
    #[repr(C)]
    struct Info {
        /// arena, ordblks, smblks, hblks.
        _before: [usize; 4],
        /// Bytes in blocks of their own mapping.
        hblkhd: usize,
        /// usmblks, fsmblks.
        _between: [usize; 2],
        /// Bytes in use elsewhere.
        uordblks: usize,
        /// fordblks, keepcost.
        _after: [usize; 2],
    }
    // Looked up, so that the command also starts where the C library is older.
    let this = libloading::os::unix::Library::this();
    // SAFETY: the function of this name takes nothing and returns the struct as malloc.h has it.
    let info = unsafe { this.get::<unsafe extern "C" fn() -> Info>(c"mallinfo2").ok()?() };
    Some((info.hblkhd + info.uordblks) as u64)
}

/// Returns None, because this system has no such count.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn allocated() -> Option<u64> {
    None
}

/// Lets this process map so many bytes more than it has, for good.
#[cfg(target_os = "linux")]
pub(crate) fn limit_mapped(more: u64) -> Option<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = Rlimit { current: Some(mapped()? + more), maximum: getrlimit(Resource::As).maximum };
    setrlimit(Resource::As, limit).ok()
}

/// As above, where it cannot be said.
#[cfg(not(target_os = "linux"))]
pub(crate) fn limit_mapped(_more: u64) -> Option<()> {
    None
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_allocated_is_counted() {
        let before = allocated().expect("glibc says");
        let kept = std::hint::black_box(vec![1u8; 3 << 20]);
        let grown = allocated().expect("glibc says").saturating_sub(before);
        // Other tests of this process allocate too, but not that much.
        assert!((3 << 20..16 << 20).contains(&grown), "{grown}");
        drop(kept);
        assert!(resident().is_some_and(|bytes| bytes > 1 << 20));
        assert!(mapped() > resident());
        assert!(count("fd").is_some_and(|n| n >= 3));
    }
}
