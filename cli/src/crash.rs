//! Reports a plugin that ends the command, by a crash or by `exit()`.
//!
//! One process cannot survive a plugin's crash, but it can name the plugin. Each thread notes its current call
//! (`devbay_host::internals::core::calls`). Handlers of fatal signals write it on standard error and end the process with
//! code 8. `exit()` in a plugin would end it with code 0 and no result; a function that runs at exit notices that the
//! command has not finished, and makes the code 8 too. `_exit()` and signals that cannot be caught are not covered
//! (docs/plugins.md).
//!
//! An abort for lack of memory is handled by [`crate::memory`], which ends the command with code 7. This covers linked-in
//! plugins; a library has an allocator of its own.
//!
//! A crash outside a plugin's call takes its normal course, including Rust's message about a stack overflow. Shortening a
//! model's file while it is mapped is a crash too (SIGBUS): it is reported, and ends the command with code 4.
//!
//! Handlers run on the signal stacks that Rust's runtime makes for its threads. They take no lock and allocate nothing; they
//! build their text in a small buffer.

use devbay_host::internals::core::calls::{self, Call};
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code for a failure of a plugin.
#[cfg(unix)]
const PLUGIN_FAILED: u8 = 8;
/// Exit code for a damaged model.
#[cfg(unix)]
const MODEL_DAMAGED: u8 = 4;

/// True once the command itself ends the process.
static IS_OWN_END: AtomicBool = AtomicBool::new(false);

/// Notes that the command itself is about to end the process.
pub fn end_is_near() {
    IS_OWN_END.store(true, Ordering::Relaxed);
}

/// Guard that notes the command's own end when dropped, also by a panic.
pub struct OwnEnd;

impl Drop for OwnEnd {
    fn drop(&mut self) {
        end_is_near();
    }
}

/// Installs the reports of plugins' crashes and exits.
pub fn install() {
    calls::watch();
    #[cfg(unix)]
    unix::install();
}

#[cfg(unix)]
mod unix {
    use super::*;
    use crate::failure::{Raw, RawBytes};
    use devbay_host::ErrorKind;
    use std::ffi::{c_int, c_void};
    use std::mem::MaybeUninit;
    use std::ptr::null_mut;

    /// Signals that end a process because of a fault in its code, with their names.
    const SIGNALS: [(c_int, &str); 5] = [
        (libc::SIGSEGV, "SIGSEGV"),
        (libc::SIGBUS, "SIGBUS"),
        (libc::SIGILL, "SIGILL"),
        (libc::SIGFPE, "SIGFPE"),
        (libc::SIGABRT, "SIGABRT"),
    ];

    /// Previous actions for these signals, by position; written once, before the handlers are set.
    static mut BEFORE: [MaybeUninit<libc::sigaction>; SIGNALS.len()] =
        [const { MaybeUninit::uninit() }; SIGNALS.len()];

    pub fn install() {
        // SAFETY: `at_exit` takes no arguments and does not unwind. A full table is no reason to stop.
        let _ = unsafe { libc::atexit(at_exit) };
        for (i, (signal, _)) in SIGNALS.iter().enumerate() {
            // SAFETY: zeros are a valid `sigaction`; the handler has the type that SA_SIGINFO requires; the place for the
            // old action is static, and no handler reads it yet.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_crash as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigemptyset(&mut action.sa_mask);
                let before = (&raw mut BEFORE).cast::<libc::sigaction>().add(i);
                // A failure leaves the signal as it was.
                libc::sigaction(*signal, null_mut(), before);
                libc::sigaction(*signal, &action, null_mut());
            }
        }
    }

    extern "C" fn at_exit() {
        if IS_OWN_END.load(Ordering::Relaxed) {
            return;
        }
        const ADVICE: &str = ": a plugin must not end the process";
        let mut buffer = [0; _];
        calls::current(|call| {
            let mut raw = report(&mut buffer, call, " called exit() in ");
            raw.add(ADVICE);
            raw.print_and_end(PLUGIN_FAILED)
        });
        let mut raw = Raw::new(&mut buffer, ErrorKind::PluginFailed, PLUGIN_FAILED, &[]);
        raw.add("a plugin called exit() outside of any call of the command's");
        raw.add(ADVICE);
        raw.print_and_end(PLUGIN_FAILED);
    }

    unsafe extern "C" fn on_crash(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
        let position = SIGNALS.iter().position(|(known, _)| *known == signal).unwrap_or(0);
        let name = SIGNALS[position].1;
        // SAFETY: the kernel passes a valid `info` with SA_SIGINFO; for signals sent by a process, only its address is
        // meaningless.
        let address = unsafe { (*info).si_addr() }.addr();
        if signal == libc::SIGABRT {
            // Check this first: a lack of memory is not the plugin's fault.
            crate::memory::end_if_a_request_failed();
        }
        let mut buffer = [0; _];
        if signal == libc::SIGBUS {
            let mut raw = Raw::new(&mut buffer, ErrorKind::InvalidModel, MODEL_DAMAGED, &[]);
            if add_model_at(address, &mut raw) {
                raw.add(" became shorter while it was mapped; with --no-map models are read into memory");
                raw.print_and_end(MODEL_DAMAGED);
            }
        }
        calls::current(|call| {
            let mut raw = report(&mut buffer, call, " crashed in ");
            raw.add(": ");
            raw.add(name);
            if signal != libc::SIGABRT {
                raw.add(" at address 0x");
                raw.add_number(address as u64, 16);
            }
            raw.print_and_end(PLUGIN_FAILED)
        });
        // Not a plugin's fault: restore the previous action, which applies when the instruction is retried or abort()
        // continues.
        // SAFETY: `BEFORE` was written before this handler was set, and has only been read since.
        unsafe {
            let before = (&raw const BEFORE).cast::<libc::sigaction>().add(position);
            libc::sigaction(signal, before, null_mut());
        }
    }

    /// Finds the file that is mapped at an address, and adds its path; returns whether the mapping is read-only, as models
    /// are and libraries are not. The line is not copied: the stack is small.
    fn add_model_at(address: usize, raw: &mut Raw<'_>) -> bool {
        // SAFETY: the path is a C string; handlers may call open, read and close (signal-safety(7)).
        let maps = unsafe { libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
        if maps < 0 {
            return false;
        }
        let (mut chunk, mut line) = ([0u8; 256], Line::default());
        let mut found = false;
        'read: loop {
            // SAFETY: `chunk` is a local buffer of the given length.
            let n = unsafe { libc::read(maps, chunk.as_mut_ptr().cast(), chunk.len()) };
            let Some(bytes) = usize::try_from(n).ok().filter(|&n| n > 0).and_then(|n| chunk.get(..n)) else {
                break;
            };
            for &byte in bytes {
                if byte != b'\n' {
                    line.add(byte);
                    continue;
                }
                if line.begin <= address && address < line.end {
                    found = line.is_read_only && line.path_len > 0 && !line.is_library;
                    raw.add("the file ");
                    line.path[..line.path_len].iter().for_each(|&byte| raw.add_byte(byte));
                    break 'read;
                }
                line = Line::default();
            }
        }
        // SAFETY: `maps` was opened above and is closed once.
        unsafe { libc::close(maps) };
        found
    }

    /// A line of `/proc/self/maps`, read byte by byte: `begin-end permissions offset device inode path`.
    struct Line {
        field: usize,
        begin: usize,
        end: usize,
        is_read_only: bool,
        is_library: bool,
        path: [u8; 256],
        path_len: usize,
    }

    impl Default for Line {
        fn default() -> Self {
            let (field, begin, end, path_len) = (0, 0, 0, 0);
            Self { field, begin, end, is_read_only: true, is_library: false, path: [0; 256], path_len }
        }
    }

    impl Line {
        fn add(&mut self, byte: u8) {
            let hex = |byte: u8| (byte as char).to_digit(16).unwrap_or(0) as usize;
            match (self.field, byte) {
                (0, b'-') => self.field = 1,
                (0, byte) => self.begin = self.begin << 4 | hex(byte),
                // Several spaces precede a path.
                (6, b' ') if self.path_len == 0 => {}
                (1..6, b' ') => self.field += 1,
                (1, byte) => self.end = self.end << 4 | hex(byte),
                (2, b'w' | b'x') => self.is_read_only = false,
                (6.., byte) => {
                    if let Some(place) = self.path.get_mut(self.path_len) {
                        *place = byte;
                        self.path_len += 1;
                    }
                    self.is_library |= self.path[..self.path_len].ends_with(b".so");
                }
                _ => {}
            }
        }
    }

    /// Calls a function with the parts of a call's place that are known, by their keys. A name from a model may be long, and
    /// must leave room for the rest.
    fn with_place<R>(call: &Call<'_>, act: impl FnOnce(&[(&str, &str)]) -> R) -> R {
        const NAME_MAX: usize = 160;
        let short = |name: &str| name.floor_char_boundary(NAME_MAX.min(name.len()));
        let [plugin, device, node] = [call.plugin, call.device, call.node].map(|name| &name[..short(name)]);
        act(&[("plugin", plugin), ("device", device), ("node", node)])
    }

    /// Begins the report of a plugin's failure: `plugin P<did>its F (device D, node N)`.
    fn report<'b>(buffer: &'b mut RawBytes, call: &Call<'_>, did: &str) -> Raw<'b> {
        with_place(call, |place| {
            let mut raw = Raw::new(buffer, ErrorKind::PluginFailed, PLUGIN_FAILED, place);
            add_call(&mut raw, call.function, did, place);
            raw
        })
    }

    fn add_call(raw: &mut Raw, function: &str, did: &str, place: &[(&str, &str)]) {
        for (key, name) in place.iter().filter(|(key, name)| *key == "plugin" || !name.is_empty()) {
            let (before, after) = match *key {
                "plugin" => ("plugin ", ""),
                "device" => (", device ", ""),
                _ => (", node `", "`"),
            };
            raw.add(before);
            raw.add(name);
            raw.add(after);
            if *key == "plugin" {
                raw.add(did);
                raw.add("its function `");
                raw.add(function);
                raw.add("`");
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn texts_are_cut_and_have_no_control_characters() {
            let node = "n".repeat(500);
            let call = Call { plugin: "p\x1b[31m", function: "launch", device: "p:0", node: &node };
            let mut buffer = [0; _];
            let mut raw = report(&mut buffer, &call, " crashed in ");
            raw.add_number(0x7f0, 16);
            let said = raw.text();
            let expected = format!(
                "error: plugin p?[31m crashed in its function `launch`, device p:0, node `{}`7f0",
                "n".repeat(160)
            );
            assert_eq!(said, expected);
        }

        #[test]
        fn lines_of_maps_are_read() {
            let mut line = Line::default();
            b"7f00-7f10 r--s 00001000 fe:00 1234                       /models/a b.onnx"
                .iter()
                .for_each(|&byte| line.add(byte));
            assert_eq!((line.begin, line.end, line.is_read_only), (0x7f00, 0x7f10, true));
            assert_eq!(&line.path[..line.path_len], b"/models/a b.onnx");
            let mut line = Line::default();
            b"0-10 r-xp 0 fe:00 1 /lib/libc.so.6".iter().for_each(|&byte| line.add(byte));
            assert!(!line.is_read_only && line.is_library);
        }
    }
}
