//! Plugins whose timelines, callbacks and floating-point control are wrong.

use crate::plugin_results::wrong;
use crate::rig::{Rig, call, case, check, part};
use crate::toy::{self, nothing};
use devbay_host::internals::layers::validation::Side;
use devbay_plugin_api::abi::*;
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

unsafe extern "C" fn count(arg: *mut c_void, _: Status) {
    // SAFETY: `arg` is a counter that the test has leaked.
    unsafe { (*arg.cast::<AtomicUsize>()).fetch_add(1, Ordering::SeqCst) };
}

/// Asks for a callback of a value, and gives where it is counted.
fn ask(rig: &Rig, stream: *mut Stream, value: u64) -> &'static AtomicUsize {
    let counter: &'static AtomicUsize = Box::leak(Box::default());
    let arg = std::ptr::from_ref(counter).cast_mut().cast();
    call!(rig.table, stream_on_reached(stream, value, Some(count), arg));
    counter
}

macro_rules! wrong_reached {
    (|$out:ident, $status:ident| $change:expr) => {
        wrong!(stream_reached(_stream: *mut Stream, $out: *mut u64) => |$status| $change)
    };
}

#[test]
fn timelines() {
    static FALLS: AtomicU64 = AtomicU64::new(0);
    static FAILS: AtomicU64 = AtomicU64::new(0);
    let cases = [
        case!("B12", stream_reached, "a value that falls", of |_, table| {
            table.stream_reached = wrong_reached!(|out, status| { *out -= FALLS.fetch_add(1, Ordering::SeqCst); status });
        }, rig => {
            let stream = rig.stream(0, "");
            rig.signal(stream, 5);
            assert_eq!(rig.reached(stream).0, 5);
            assert_eq!(rig.reached(stream).0, 4, "what the plugin says is passed on");
        }),
        case!("B12", stream_reached, "a value that nobody signalled", of |_, table| {
            table.stream_reached = wrong_reached!(|out, status| { *out += 1; status });
        }, rig => { rig.reached(rig.stream(0, "")); }),
        case!("B12", stream_reached, "no value", of |_, table| {
            unsafe extern "C" fn silent(_: *mut Stream, _: *mut u64) -> Status {
                DEVBAY_STATUS_OK
            }
            table.stream_reached = Some(silent);
        }, rig => { rig.reached(rig.stream(0, "")); }),
        case!("B13", stream_reached, "a failure that heals", of |_, table| {
            table.stream_reached = wrong_reached!(|_out, status| match FAILS.fetch_add(1, Ordering::SeqCst) {
                0 => DEVBAY_STATUS_INTERNAL,
                _ => status,
            });
        }, rig => {
            let stream = rig.stream(0, "");
            assert_eq!(rig.reached(stream).1, DEVBAY_STATUS_INTERNAL);
            assert_eq!(rig.reached(stream).1, DEVBAY_STATUS_OK);
        }),
        case!("B18", stream_reached, "a status that no header has", of |_, table| {
            table.stream_reached = wrong_reached!(|_out, status| 1000);
        }, rig => { rig.reached(rig.stream(0, "")); }),
        case!("B12", stream_host_wait, "a time limit that did not pass", of |_, table| {
            table.stream_host_wait = wrong!(stream_host_wait(_s: *mut Stream, _v: u64, _t: u64) => |status| DEVBAY_STATUS_TIMEOUT);
        }, rig => {
            let stream = rig.stream(0, "");
            rig.signal(stream, 1);
            call!(rig.table, stream_host_wait(stream, 1, 10_000_000_000));
        }),
        case!("B16", stream_reached, "less than a wait has said", of |_, table| {
            unsafe extern "C" fn at_once(_: *mut Stream, _: u64, _: u64) -> Status {
                DEVBAY_STATUS_OK
            }
            table.stream_host_wait = Some(at_once);
        }, rig => {
            let stream = rig.stream(0, "held");
            rig.signal(stream, 1);
            call!(rig.table, stream_host_wait(stream, 1, 0));
            rig.reached(stream);
        }),
    ];
    check(Side::Plugin, &cases);
}

/// A stream that has failed, and was seen to.
fn failed(rig: &Rig) -> *mut Stream {
    let stream = rig.stream(0, "failed");
    rig.signal(stream, 1);
    assert_eq!(rig.reached(stream).1, DEVBAY_STATUS_INTERNAL);
    stream
}

#[test]
fn failed_streams() {
    let cases = [
        case!("B13", copy, "a copy is taken", of |_, table| {
            table.copy = wrong!(copy(_s: *mut Stream, _d: *const CopyDesc) => |_status| DEVBAY_STATUS_OK);
        }, rig => {
            let buffer = rig.alloc(0, 64);
            rig.fill(failed(&rig), &buffer, 64);
        }),
        case!("B13", stream_signal, "a signal is taken", of |_, table| {
            table.stream_signal = wrong!(stream_signal(_s: *mut Stream, _v: u64) => |_status| DEVBAY_STATUS_OK);
        }, rig => { rig.signal(failed(&rig), 2); }),
        case!("B13", stream_wait, "a wait is taken", of |_, table| {
            table.stream_wait = wrong!(stream_wait(_s: *mut Stream, _o: *mut Stream, _v: u64) => |_status| DEVBAY_STATUS_OK);
        }, rig => {
            let other = rig.stream(0, "");
            call!(rig.table, stream_wait(failed(&rig), other, 0));
        }),
        case!("B13", stream_flush, "a flush is taken", of |_, table| {
            table.stream_flush = wrong!(stream_flush(_s: *mut Stream) => |_status| DEVBAY_STATUS_OK);
        }, rig => { call!(rig.table, stream_flush(failed(&rig))); }),
        case!("B13", launch, "a launch is taken", of |_, table| {
            unsafe extern "C" fn takes(
                _: *const c_void,
                _: *mut Stream,
                _: *const BufferRef,
                _: *const i64,
            ) -> Status {
                DEVBAY_STATUS_OK
            }
            table.prepare = wrong!(prepare(
                _i: *mut Instance, _d: *const PrepareDesc, out: *mut Prepared, _e: *mut ErrorDetail
            ) => |status| {
                (*out).launch = Some(takes);
                status
            });
        }, rig => {
            let (sum, buffer) = (rig.sum(0), rig.alloc(0, 64));
            let refs = [part(&buffer, 0, 16), part(&buffer, 16, 16), part(&buffer, 32, 16)];
            rig.launch(&sum, failed(&rig), &refs);
        }),
    ];
    check(Side::Plugin, &cases);
}

macro_rules! wrong_callback {
    (|$stream:ident, $done:ident, $arg:ident, $status:ident| $change:expr) => {
        wrong!(stream_on_reached(
            $stream: *mut Stream, _value: u64, $done: Option<DoneFn>, $arg: *mut c_void
        ) => |$status| $change)
    };
}

#[test]
fn callbacks() {
    static LATE: Mutex<Option<(DoneFn, usize)>> = Mutex::new(None);
    unsafe extern "C" fn keeps(_: *mut Stream, _: u64, done: Option<DoneFn>, arg: *mut c_void) -> Status {
        *LATE.lock().unwrap() = done.map(|done| (done, arg as usize));
        DEVBAY_STATUS_OK
    }
    unsafe extern "C" fn fails(_: *mut Stream, _: u64, done: Option<DoneFn>, arg: *mut c_void) -> Status {
        // SAFETY: B16: the host's function with its own argument.
        unsafe { done.unwrap()(arg, DEVBAY_STATUS_ABORTED) };
        DEVBAY_STATUS_OK
    }
    unsafe extern "C" fn unheard_of(
        _: *mut Stream,
        _: u64,
        done: Option<DoneFn>,
        arg: *mut c_void,
    ) -> Status {
        // SAFETY: B16: the host's function with its own argument.
        unsafe { done.unwrap()(arg, 999) };
        DEVBAY_STATUS_OK
    }
    let cases = [
        case!("B16", stream_on_reached, "a callback that comes twice", of |_, table| {
            table.stream_on_reached = wrong_callback!(|_s, done, arg, status| { done.unwrap()(arg, DEVBAY_STATUS_OK); status });
        }, rig => {
            let stream = rig.stream(0, "");
            rig.signal(stream, 1);
            assert_eq!(ask(&rig, stream, 1).load(Ordering::SeqCst), 1, "the second one is kept back");
        }),
        case!("B16", stream_on_reached, "a refusal that calls", of |_, table| {
            table.stream_on_reached = wrong_callback!(|_s, _done, _arg, status| DEVBAY_STATUS_INTERNAL);
        }, rig => {
            let stream = rig.stream(0, "");
            rig.signal(stream, 1);
            ask(&rig, stream, 1);
        }),
        case!("B16", stream_destroy, "a callback that never comes", of |_, table| {
            table.stream_on_reached = Some(keeps);
        }, rig => {
            let stream = rig.stream(0, "");
            rig.signal(stream, 1);
            let counter = ask(&rig, stream, 1);
            call!(rig.table, stream_destroy(stream));
            assert_eq!(counter.load(Ordering::SeqCst), 0);
        }),
        case!("B16", stream_on_reached, "a failure of a point that was reached", of |_, table| {
            table.stream_on_reached = Some(fails);
        }, rig => {
            let stream = rig.stream(0, "");
            rig.signal(stream, 1);
            rig.reached(stream);
            ask(&rig, stream, 1);
        }),
        case!("B18", stream_on_reached, "a status that no header has", of |_, table| {
            table.stream_on_reached = Some(unheard_of);
        }, rig => {
            let stream = rig.stream(0, "");
            rig.signal(stream, 1);
            ask(&rig, stream, 1);
        }),
        case!("B16", stream_reached, "a callback before its point", of |_, table| {
            table.stream_on_reached = wrong_callback!(|_s, _done, _arg, status| status);
            table.stream_reached = wrong_reached!(|out, status| { *out = 0; status });
        }, rig => {
            let stream = rig.stream(0, "");
            rig.signal(stream, 1);
            assert_eq!(ask(&rig, stream, 1).load(Ordering::SeqCst), 1);
            rig.reached(stream);
        }),
    ];
    check(Side::Plugin, &cases);
    // A callback behind the end is two violations: it was missing, and it came.
    let rig = Rig::of(|_, table| table.stream_on_reached = Some(keeps));
    let stream = rig.stream(0, "");
    rig.signal(stream, 1);
    let counter = ask(&rig, stream, 1);
    call!(rig.table, stream_destroy(stream));
    let (done, arg) = LATE.lock().unwrap().take().unwrap();
    // SAFETY: the layer's function looks its argument up, whatever it is.
    unsafe { done(arg as *mut c_void, DEVBAY_STATUS_OK) };
    let found = [("B16", Side::Plugin, "stream_destroy"), ("B16", Side::Plugin, "stream_on_reached")];
    assert_eq!((rig.found().as_slice(), counter.load(Ordering::SeqCst)), (found.as_slice(), 1));
}

/// Flushes small numbers to zero from here on.
#[cfg(target_arch = "x86_64")]
pub fn disturb_floats() {
    change_floats(|control| control | 0x8000);
}

/// Takes that back.
#[cfg(target_arch = "x86_64")]
pub fn settle_floats() {
    change_floats(|control| control & !0x8000);
}

#[cfg(target_arch = "x86_64")]
fn change_floats(change: impl FnOnce(u32) -> u32) {
    let mut control = 0u32;
    // SAFETY: stores four bytes in a variable.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut control, options(nostack)) };
    control = change(control);
    // SAFETY: loads a control word that differs in one valid bit.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const control, options(nostack)) };
}

#[cfg(target_arch = "x86_64")]
#[test]
fn floating_point_control() {
    unsafe extern "C" fn flushes(
        _: *const c_void,
        _: *mut Stream,
        _: *const BufferRef,
        _: *const i64,
    ) -> Status {
        disturb_floats();
        DEVBAY_STATUS_OK
    }
    let cases = [
        case!("B17", launch, "a kernel that leaves it changed", of |_, table| {
            table.prepare = wrong!(prepare(
                _i: *mut Instance, _d: *const PrepareDesc, out: *mut Prepared, _e: *mut ErrorDetail
            ) => |status| { (*out).launch = Some(flushes); status });
        }, rig => {
            let (buffer, stream, sum) = (rig.alloc(0, 64), rig.stream(0, ""), rig.sum(0));
            let refs = [0, 16, 32].map(|at| crate::rig::part(&buffer, at, 16));
            assert_eq!(rig.launch(&sum, stream, &refs), DEVBAY_STATUS_OK);
            settle_floats();
        }),
        case!("B17", stream_error, "a cold function that leaves it changed", of |_, table| {
            table.stream_error = wrong!(stream_error(_s: *mut Stream, _e: *mut ErrorDetail) => |status| {
                disturb_floats();
                status
            });
        }, rig => {
            call!(rig.table, stream_error(rig.stream(0, ""), nothing()));
            settle_floats();
        }),
    ];
    check(Side::Plugin, &cases);
}
