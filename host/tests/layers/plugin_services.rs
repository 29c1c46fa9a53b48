//! Plugins that use the host's services wrongly, and hosts whose services are wrong.

use crate::plugin_results::wrong;
use crate::rig::{Case, Edit, HOST, Rig, call, case, check};
use crate::toy::{self, Toy, nothing};
use devbay_host::internals::layers::validation::{Settings, Side};
use devbay_plugin_api::abi::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Mutex;

/// A text that is none.
const NO_TEXT: Str = Str { ptr: c"\xff\xfe".as_ptr(), len: 2 };

/// The toy's services, of an instance that is alive.
fn services(instance: *mut Instance) -> HostApi {
    // SAFETY: the instance is a toy that `create` made, and alive.
    unsafe { (*instance.cast::<Toy>()).host }
}

/// A toy whose `devices`, which is called for each instance, calls its host first.
macro_rules! on_devices {
    (|$host:ident| $body:expr) => {
        |_, table| {
            unsafe extern "C" fn wrong(
                instance: *mut Instance,
                out: *mut List,
                error: *mut ErrorDetail,
            ) -> Status {
                let $host = services(instance);
                // SAFETY: the host's functions with their context, and places of this function's.
                #[allow(unused_unsafe, reason = "not every case calls")]
                unsafe {
                    $body;
                }
                // SAFETY: the arguments are those that the host passed for this function.
                unsafe { toy::devices(instance, out, error) }
            }
            table.devices = Some(wrong);
        }
    };
}

unsafe extern "C" fn nothing_to_do(_: *mut c_void, _: u64, _: u64, _: u32) -> Status {
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn gives_4711(_: *mut c_void, _: u64, _: u64, _: u32) -> Status {
    4711
}

unsafe extern "C" fn looks_up(arg: *mut c_void, _: u64, _: u64, _: u32) -> Status {
    // SAFETY: `arg` is the copy of its services that the caller of the loop lends until it returns.
    let host = unsafe { *arg.cast::<HostApi>() };
    let mut out = Str::EMPTY;
    // SAFETY: the host's function with its context.
    unsafe { host.config.unwrap()(host.ctx, Str::new("key"), &mut out) };
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn nests(arg: *mut c_void, begin: u64, _: u64, _: u32) -> Status {
    // SAFETY: `arg` is the copy of its services that the caller of the loop lends until it returns.
    let host = unsafe { *arg.cast::<HostApi>() };
    // SAFETY: the host's function with its context.
    unsafe { host.log.unwrap()(host.ctx, DEVBAY_LOG_DEBUG, Str::new("in a body")) };
    // SAFETY: the host's function with its context.
    unsafe { host.parallel_for.unwrap()(host.ctx, begin + 1, 1, Some(nothing_to_do), nothing()) }
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn disturbs(_: *mut c_void, _: u64, _: u64, _: u32) -> Status {
    crate::plugin_streams::disturb_floats();
    DEVBAY_STATUS_OK
}

fn mark(begin_ns: u64, end_ns: u64, name: Str) -> TraceEvent {
    TraceEvent { begin_ns, end_ns, name, ..TraceEvent::empty() }
}

#[test]
fn plugins() {
    let mut cases = vec![
        case!("B5", log, "a text that is none", of on_devices!(|host| {
            host.log.unwrap()(host.ctx, DEVBAY_LOG_INFO, NO_TEXT)
        }), rig => { assert_eq!(rig.devices.len(), 3); }),
        case!("B5", config, "a key that is no text", of on_devices!(|host| {
            let mut out = Str::EMPTY;
            host.config.unwrap()(host.ctx, NO_TEXT, &mut out)
        }), rig => { assert_eq!(rig.devices.len(), 3); }),
        case!("B2", config, "no place for the value", of on_devices!(|host| {
            host.config.unwrap()(host.ctx, Str::new("key"), null_mut())
        }), rig => { assert_eq!(rig.devices.len(), 3); }),
        case!("B2", trace, "a mark that ends before it begins", of on_devices!(|host| {
            host.trace.unwrap()(host.ctx, &mark(5, 4, Str::EMPTY))
        }), rig => { assert_eq!(rig.devices.len(), 3); }),
        case!("B5", trace, "a mark with a name that is none", of on_devices!(|host| {
            host.trace.unwrap()(host.ctx, &mark(4, 5, NO_TEXT))
        }), rig => { assert_eq!(rig.devices.len(), 3); }),
        case!("B4", trace, "a mark that is too small", of on_devices!(|host| {
            host.trace.unwrap()(host.ctx, &TraceEvent { struct_size: 8, ..TraceEvent::empty() })
        }), rig => { assert_eq!(rig.devices.len(), 3); }),
        case!("B2", log, "a context that is none", of on_devices!(|host| {
            host.log.unwrap()(null_mut(), DEVBAY_LOG_INFO, Str::new("hello"))
        }), rig => { assert_eq!(rig.devices.len(), 3); }),
        case!("B2", parallel_for, "no body", of on_devices!(|host| {
            host.parallel_for.unwrap()(host.ctx, 4, 1, None, null_mut())
        }), rig => { assert_eq!(rig.devices.len(), 3); }),
        case!("B18", parallel_for, "a body's status that no header has", of on_devices!(|host| {
            host.parallel_for.unwrap()(host.ctx, 4, 1, Some(gives_4711), null_mut())
        }), rig => { assert_eq!(rig.devices.len(), 3); }),
        case!("B2", config, "from within a body", of on_devices!(|host| {
            let arg = (&raw const host).cast_mut().cast();
            host.parallel_for.unwrap()(host.ctx, 4, 1, Some(looks_up), arg)
        }), rig => { assert_eq!(rig.devices.len(), 3); }),
        case!("B2", log, "after the end of the instance", rig => {
            let host = services(rig.instance);
            call!(rig.table, destroy(rig.instance));
            // SAFETY: the layer's function looks its context up: it is a number.
            unsafe { host.log.unwrap()(host.ctx, DEVBAY_LOG_INFO, Str::new("hello")) };
        }),
        case!("B2", get_extension, "after the end of the instance", rig => {
            let host = services(rig.instance);
            call!(rig.table, destroy(rig.instance));
            // SAFETY: the layer's function looks its context up: it is a number.
            assert!(unsafe { host.get_extension.unwrap()(host.ctx, 1, 1) }.is_null());
        }),
        case!("B2", log, "after create has failed", of |_, table| {
            static KEPT: Mutex<Option<HostApi>> = Mutex::new(None);
            unsafe extern "C" fn fails(desc: *const CreateDesc, _: *mut *mut Instance, _: *mut ErrorDetail) -> Status {
                // SAFETY: the host's struct and its services, alive for the call.
                let host = unsafe { *(*desc).host };
                if let Some(before) = KEPT.lock().unwrap().replace(host) {
                    // SAFETY: the layer's function looks its context up: it is a number.
                    unsafe { before.log.unwrap()(before.ctx, DEVBAY_LOG_INFO, Str::new("hello")) };
                }
                DEVBAY_STATUS_UNAVAILABLE
            }
            table.create = Some(fails);
        }, rig => { assert!(rig.create().is_null()); }),
    ];
    if cfg!(target_arch = "x86_64") {
        cases.push(case!("B17", parallel_for, "a body that changes the floating-point control",
        of on_devices!(|host| {
            host.parallel_for.unwrap()(host.ctx, 1, 1, Some(disturbs), null_mut());
            crate::plugin_streams::settle_floats();
        }), rig => { assert_eq!(rig.devices.len(), 3); }));
    }
    check(Side::Plugin, &cases);
}

#[test]
fn loops_in_loops_and_messages_from_bodies_are_right() {
    let rig = Rig::of(on_devices!(|host| {
        let arg = (&raw const host).cast_mut().cast();
        host.parallel_for.unwrap()(host.ctx, 7, 2, Some(nests), arg)
    }));
    assert_eq!((rig.found().as_slice(), rig.devices.len()), ([].as_slice(), 3));
}

/// A host whose loops are wrong: what it does with the body of a loop over 4 by 2.
fn host(parallel_for: ParallelFor) -> Rig {
    let edit: Edit =
        on_devices!(|host| host.parallel_for.unwrap()(host.ctx, 4, 2, Some(nothing_to_do), null_mut()));
    Rig::with(edit, HostApi { parallel_for: Some(parallel_for), ..HOST }, &Settings::default())
}

type ParallelFor = unsafe extern "C" fn(*mut c_void, u64, u64, Option<ChunkFn>, *mut c_void) -> Status;

macro_rules! wrong_loop {
    ($($chunk:expr),*) => {{
        unsafe extern "C" fn wrong(
            _: *mut c_void, _: u64, _: u64, body: Option<ChunkFn>, arg: *mut c_void
        ) -> Status {
            $({
                let (begin, end, slot) = $chunk;
                // SAFETY: the layer's function looks its argument up, whatever it is.
                unsafe { body.unwrap()(arg, begin, end, slot) };
            })*
            let _ = (body, arg);
            DEVBAY_STATUS_OK
        }
        host(wrong)
    }};
}

#[test]
fn hosts() {
    static LATE: Mutex<Option<(ChunkFn, usize)>> = Mutex::new(None);
    unsafe extern "C" fn late(
        _: *mut c_void,
        _: u64,
        _: u64,
        body: Option<ChunkFn>,
        arg: *mut c_void,
    ) -> Status {
        for begin in [0, 2] {
            // SAFETY: the layer's function looks its argument up, whatever it is.
            unsafe { body.unwrap()(arg, begin, begin + 2, 0) };
        }
        *LATE.lock().unwrap() = body.map(|body| (body, arg as usize));
        DEVBAY_STATUS_OK
    }
    let case = |what, run| Case { rule: "B2", function: "parallel_for", what, run };
    check(
        Side::Host,
        &[
            case("a chunk behind the end", || wrong_loop!((0, 2, 0), (3, 5, 0))),
            case("a chunk that is larger than the grain", || wrong_loop!((0, 4, 0))),
            case("a chunk that begins at no multiple of the grain", || wrong_loop!((0, 1, 0), (1, 3, 0))),
            case("a slot that is not there", || wrong_loop!((0, 2, 0), (2, 4, 2))),
            case("a loop that is not done", || wrong_loop!((0, 2, 0))),
            case("a loop that is done twice", || wrong_loop!((0, 2, 0), (2, 4, 0), (0, 2, 1))),
            case("a chunk after the loop", || {
                let rig = host(late);
                let (body, arg) = LATE.lock().unwrap().take().unwrap();
                // SAFETY: the layer's function with its argument, which is a number.
                assert_eq!(unsafe { body(arg as *mut c_void, 0, 2, 0) }, DEVBAY_STATUS_INVALID);
                rig
            }),
        ],
    );
}

/// A host that calls the plugin on a thread that waits in a loop.
#[test]
fn a_waiting_thread_runs_chunks_alone() {
    static TABLE: Mutex<Option<(PluginTable, usize)>> = Mutex::new(None);
    unsafe extern "C" fn calls_the_plugin(
        _: *mut c_void,
        n: u64,
        _: u64,
        body: Option<ChunkFn>,
        arg: *mut c_void,
    ) -> Status {
        if let Some((table, stream)) = TABLE.lock().unwrap().take() {
            assert_eq!(call!(table, stream_flush(stream as *mut Stream)), DEVBAY_STATUS_INVALID);
        }
        for begin in (0..n).step_by(2) {
            // SAFETY: the layer's function looks its argument up, whatever it is.
            unsafe { body.unwrap()(arg, begin, n.min(begin + 2), 0) };
        }
        DEVBAY_STATUS_OK
    }
    let rig = host(calls_the_plugin);
    *TABLE.lock().unwrap() = Some((rig.table, rig.stream(0, "") as usize));
    rig.list();
    assert_eq!(rig.found(), [("B2", Side::Host, "stream_flush")]);
}

#[test]
fn a_service_that_the_host_lacks_stays_away() {
    let host = HostApi { trace: None, config: None, ..HOST };
    let rig = Rig::with(|_, _| (), host, &Settings::default());
    let shown = services(rig.instance);
    assert!(shown.trace.is_none() && shown.config.is_none() && shown.log.is_some());
    assert_eq!((shown.n_slots, shown.struct_size), (HOST.n_slots, HOST.struct_size));
    assert_ne!(shown.ctx, HOST.ctx, "the context is the layer's own");
    // A status that is wrong is told through the layer as it is.
    let rig =
        Rig::of(|_, table| table.stream_flush = wrong!(stream_flush(_stream: *mut Stream) => |status| 77));
    assert_eq!(call!(rig.table, stream_flush(rig.stream(0, ""))), 77);
    assert_eq!(rig.found(), [("B18", Side::Plugin, "stream_flush")]);
}
