//! Hosts that are wrong about objects, timelines and threads.

use crate::rig::{Case, Rig, call, case, check, part, tensor, to_buffer};
use crate::toy::nothing;
use devbay_host::internals::layers::validation::Side;
use devbay_plugin_api::abi::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Barrier;

#[test]
fn objects() {
    check(Side::Host, &OBJECTS());
}

#[allow(non_snake_case, reason = "a table of cases")]
fn OBJECTS() -> Vec<Case> {
    vec![
        case!("B4", create, "services that are too small", rig => {
            let host = HostApi { struct_size: 8, ..*rig.host };
            rig.host = Box::leak(Box::new(host));
            assert!(rig.create().is_null());
        }),
        case!("B4", create, "no place for the instance", rig => {
            let desc = CreateDesc { abi_minor: DEVBAY_ABI_MINOR, host: rig.host, ..CreateDesc::empty() };
            assert_eq!(call!(rig.table, create(&desc, nothing(), nothing())), DEVBAY_STATUS_INVALID);
        }),
        case!("B4", buffer_alloc, "an error's detail that is too small", rig => {
            let mut detail = ErrorDetail { struct_size: 4, ..ErrorDetail::empty() };
            let desc = AllocDesc { size_bytes: 4, align: 64, ..AllocDesc::empty() };
            let mut out = Allocation::empty();
            call!(rig.table, buffer_alloc(rig.device(0), &desc, &mut out, &mut detail));
        }),
        case!("B4", buffer_alloc, "a result that is too small", rig => {
            let desc = AllocDesc { size_bytes: 4, align: 64, ..AllocDesc::empty() };
            let mut out = Allocation { struct_size: 8, ..Allocation::empty() };
            call!(rig.table, buffer_alloc(rig.device(0), &desc, &mut out, nothing()));
        }),
        case!("B9", destroy, "an instance twice", rig => {
            call!(rig.table, destroy(rig.instance));
            call!(rig.table, destroy(rig.instance));
        }),
        case!("B9", destroy, "NULL", rig => { call!(rig.table, destroy(null_mut())); }),
        case!("B9", destroy, "a buffer is left", rig => {
            rig.alloc(0, 64);
            call!(rig.table, destroy(rig.instance));
        }),
        case!("B9", destroy, "a stream is left", rig => {
            rig.stream(0, "");
            call!(rig.table, destroy(rig.instance));
        }),
        case!("B9", destroy, "a prepared kernel is left", rig => {
            rig.sum(0);
            call!(rig.table, destroy(rig.instance));
        }),
        case!("B9", buffer_alloc, "a device of nobody's", rig => {
            let desc = AllocDesc { size_bytes: 4, align: 64, ..AllocDesc::empty() };
            let mut out = Allocation::empty();
            let device = rig.instance.cast::<Device>().wrapping_byte_add(1);
            let status = call!(rig.table, buffer_alloc(device, &desc, &mut out, nothing()));
            assert_eq!(status, DEVBAY_STATUS_INVALID);
        }),
        case!("B9", buffer_free, "a buffer twice", rig => {
            let buffer = rig.alloc(0, 64);
            call!(rig.table, buffer_free(buffer.buffer));
            call!(rig.table, buffer_free(buffer.buffer));
        }),
        case!("B9", buffer_free, "a stream as a buffer", rig => {
            call!(rig.table, buffer_free(rig.stream(0, "").cast()));
        }),
        case!("B9", buffer_free, "while a copy into it is in flight", rig => {
            let (buffer, stream) = (rig.alloc(0, 64), rig.stream(0, "held"));
            assert_eq!(rig.fill(stream, &buffer, 64), DEVBAY_STATUS_OK);
            assert_eq!(rig.signal(stream, 1), DEVBAY_STATUS_OK);
            assert_eq!(rig.reached(stream).0, 0);
            call!(rig.table, buffer_free(buffer.buffer));
            call!(rig.table, stream_destroy(stream));
            // A leaked object keeps its instance, and reports no more.
            call!(rig.table, destroy(rig.instance));
        }),
        case!("B9", buffer_free, "before a signal after the copy", rig => {
            let (buffer, stream) = (rig.alloc(0, 64), rig.stream(0, ""));
            rig.signal(stream, 1);
            rig.fill(stream, &buffer, 64);
            assert_eq!(rig.reached(stream).0, 1);
            call!(rig.table, buffer_free(buffer.buffer));
        }),
        case!("B9", buffer_free, "while a launch that uses it is in flight", rig => {
            let (buffer, stream, sum) = (rig.alloc(0, 64), rig.stream(0, "held"), rig.sum(0));
            let refs = [part(&buffer, 0, 16), part(&buffer, 16, 16), part(&buffer, 32, 16)];
            assert_eq!(rig.launch(&sum, stream, &refs), DEVBAY_STATUS_OK);
            call!(rig.table, buffer_free(buffer.buffer));
        }),
        case!("B9", unprepare, "while a launch of it is in flight", rig => {
            let (buffer, stream, mut sum) = (rig.alloc(0, 64), rig.stream(0, "held"), rig.sum(0));
            let refs = [part(&buffer, 0, 16), part(&buffer, 16, 16), part(&buffer, 32, 16)];
            rig.launch(&sum, stream, &refs);
            call!(rig.table, unprepare(rig.instance, &mut sum));
        }),
        case!("B9", unprepare, "a kernel twice", rig => {
            let mut sum = rig.sum(0);
            call!(rig.table, unprepare(rig.instance, &mut sum));
            call!(rig.table, unprepare(rig.instance, &mut sum));
        }),
        case!("B10", unprepare, "a kernel of another instance", rig => {
            let mut sum = rig.sum(0);
            call!(rig.table, unprepare(rig.create(), &mut sum));
        }),
        case!("B9", stream_destroy, "a stream twice", rig => {
            let stream = rig.stream(0, "");
            call!(rig.table, stream_destroy(stream));
            call!(rig.table, stream_destroy(stream));
        }),
        case!("B9", get_extension, "of an instance that is gone", rig => {
            call!(rig.table, destroy(rig.instance));
            assert!(call!(rig.table, get_extension(rig.instance, 1, 1)).is_null());
        }),
        case!("B11", buffer_alloc, "a space that is not there", rig => { rig.alloc_in(0, 2, 64); }),
        case!("B11", buffer_alloc, "less aligned than the space", rig => {
            let desc = AllocDesc { size_bytes: 4, align: 4, ..AllocDesc::empty() };
            let mut out = Allocation::empty();
            call!(rig.table, buffer_alloc(rig.device(0), &desc, &mut out, nothing()));
        }),
        case!("B11", buffer_alloc, "no type where the space wants one", rig => {
            let desc = AllocDesc { space_idx: 1, size_bytes: 4, align: 64, ..AllocDesc::empty() };
            let mut out = Allocation::empty();
            call!(rig.table, buffer_alloc(rig.device(0), &desc, &mut out, nothing()));
        }),
        case!("B11", memory_info, "of a space that is not there", rig => {
            let mut out = MemoryInfo::empty();
            call!(rig.table, memory_info(rig.device(0), 2, &mut out, nothing()));
        }),
    ]
}

#[test]
fn timelines() {
    check(Side::Host, &TIMELINES());
}

unsafe extern "C" fn ignore(_: *mut c_void, _: Status) {}

/// A callback that calls the plugin, whose table is its argument.
unsafe extern "C" fn calls_the_plugin(arg: *mut c_void, _: Status) {
    // SAFETY: `arg` is the test's pair of table and stream, alive until the callback has come.
    let (table, stream) = unsafe { *arg.cast::<(PluginTable, *mut Stream)>() };
    call!(table, stream_flush(stream));
}

#[allow(non_snake_case, reason = "a table of cases")]
fn TIMELINES() -> Vec<Case> {
    vec![
        case!("B12", stream_signal, "a value twice", rig => {
            let stream = rig.stream(0, "");
            rig.signal(stream, 5);
            assert_eq!(rig.signal(stream, 5), DEVBAY_STATUS_INVALID);
        }),
        case!("B12", stream_wait, "a value that is not signalled yet", rig => {
            let (a, b) = (rig.stream(0, ""), rig.stream(0, ""));
            rig.signal(a, 1);
            assert_eq!(call!(rig.table, stream_wait(b, a, 2)), DEVBAY_STATUS_INVALID);
        }),
        case!("B12", stream_wait, "a stream of another device", rig => {
            let (a, b) = (rig.stream(0, ""), rig.stream(1, ""));
            rig.signal(a, 1);
            call!(rig.table, stream_wait(b, a, 1));
        }),
        case!("B10", stream_wait, "a stream of another instance", rig => {
            let a = rig.stream(0, "");
            rig.signal(a, 1);
            rig.instance = rig.create();
            rig.devices = rig.list();
            call!(rig.table, stream_wait(rig.stream(0, ""), a, 1));
        }),
        case!("B9", stream_wait, "a stream that is gone", rig => {
            let (a, b) = (rig.stream(0, ""), rig.stream(0, ""));
            call!(rig.table, stream_destroy(a));
            call!(rig.table, stream_wait(b, a, 1));
        }),
        case!("B14", stream_wait, "an inline stream", rig => {
            call!(rig.table, stream_wait(rig.stream(0, ""), rig.stream(2, ""), 0));
        }),
        case!("B12", stream_on_reached, "a value that is not signalled", rig => {
            let stream = rig.stream(0, "");
            let status = call!(rig.table, stream_on_reached(stream, 1, Some(ignore), nothing()));
            assert_eq!(status, DEVBAY_STATUS_INVALID);
        }),
        case!("B16", stream_on_reached, "no callback", rig => {
            let stream = rig.stream(0, "");
            rig.signal(stream, 1);
            call!(rig.table, stream_on_reached(stream, 1, None, nothing()));
        }),
        case!("B12", stream_host_wait, "a value that is not signalled", rig => {
            call!(rig.table, stream_host_wait(rig.stream(0, ""), 1, 0));
        }),
        case!("B17", stream_host_wait, "of a plugin that wants one call at a time", of |info, _| {
            info.threading = DEVBAY_THREADING_SERIALISED;
        }, rig => {
            let stream = rig.stream(0, "");
            rig.signal(stream, 1);
            call!(rig.table, stream_host_wait(stream, 1, 0));
        }),
        case!("B14", stream_signal, "on an inline stream", rig => { rig.signal(rig.stream(2, ""), 1); }),
        case!("B14", stream_reached, "on an inline stream", rig => { rig.reached(rig.stream(2, "")); }),
        case!("B14", stream_wait, "from an inline stream", rig => {
            call!(rig.table, stream_wait(rig.stream(2, ""), rig.stream(2, ""), 0));
        }),
        case!("B14", stream_on_reached, "on an inline stream", rig => {
            call!(rig.table, stream_on_reached(rig.stream(2, ""), 0, Some(ignore), nothing()));
        }),
        case!("B14", stream_host_wait, "on an inline stream", rig => {
            call!(rig.table, stream_host_wait(rig.stream(2, ""), 0, 0));
        }),
        case!("B14", stream_flush, "on an inline stream", rig => {
            call!(rig.table, stream_flush(rig.stream(2, "")));
        }),
        case!("B4", stream_reached, "no place for the value", rig => {
            call!(rig.table, stream_reached(rig.stream(0, ""), nothing()));
        }),
        case!("B16", stream_flush, "from within a callback", rig => {
            let stream = rig.stream(0, "");
            let mut arg = (rig.table, stream);
            rig.signal(stream, 1);
            call!(rig.table, stream_on_reached(stream, 1, Some(calls_the_plugin), (&raw mut arg).cast()));
        }),
        case!("B13", copy, "after one that failed", of |_, table| { table.copy = Some(fails_once); }, rig => {
            let (buffer, stream) = (rig.alloc(0, 64), rig.stream(0, ""));
            assert_eq!(rig.fill(stream, &buffer, 64), DEVBAY_STATUS_INTERNAL);
            rig.fill(stream, &buffer, 64);
            rig.signal(stream, 1);
            // After a signal it may.
            rig.fill(stream, &buffer, 32);
        }),
        case!("B13", buffer_alloc, "on a device that is lost", of |_, table| { table.copy = Some(loses); }, rig => {
            let (buffer, stream) = (rig.alloc(0, 64), rig.stream(0, ""));
            assert_eq!(rig.fill(stream, &buffer, 64), DEVBAY_STATUS_DEVICE_LOST);
            rig.alloc(0, 64);
            // The rest is given back.
            call!(rig.table, stream_error(stream, nothing()));
            call!(rig.table, stream_destroy(stream));
            call!(rig.table, buffer_free(buffer.buffer));
            call!(rig.table, destroy(rig.instance));
        }),
        case!("B19", buffer_free, "of a plugin that has panicked", of |_, table| { table.copy = Some(panics); },
        rig => {
            let (buffer, stream) = (rig.alloc(0, 64), rig.stream(0, ""));
            assert_eq!(rig.fill(stream, &buffer, 64), DEVBAY_STATUS_PANICKED);
            call!(rig.table, stream_error(stream, nothing()));
            call!(rig.table, buffer_free(buffer.buffer));
        }),
    ]
}

unsafe extern "C" fn fails_once(_: *mut Stream, desc: *const CopyDesc) -> Status {
    use std::sync::atomic::{AtomicBool, Ordering};
    static FAILED: AtomicBool = AtomicBool::new(false);
    // SAFETY: B4: `desc` is NULL or the host's struct, of the size that it says and alive for the call.
    let _ = unsafe { read_struct(desc) };
    if FAILED.swap(true, Ordering::SeqCst) { DEVBAY_STATUS_OK } else { DEVBAY_STATUS_INTERNAL }
}

unsafe extern "C" fn loses(_: *mut Stream, _: *const CopyDesc) -> Status {
    DEVBAY_STATUS_DEVICE_LOST
}

unsafe extern "C" fn panics(_: *mut Stream, _: *const CopyDesc) -> Status {
    DEVBAY_STATUS_PANICKED
}

static ENTERED: Barrier = Barrier::new(2);
static MAY_LEAVE: Barrier = Barrier::new(2);

/// A flush that another call meets.
unsafe extern "C" fn takes_long(_: *mut Stream) -> Status {
    ENTERED.wait();
    MAY_LEAVE.wait();
    DEVBAY_STATUS_OK
}

/// Has one thread in `stream_flush` while `body` runs in another.
fn meanwhile(rig: &Rig, stream: *mut Stream, body: impl FnOnce()) {
    let (table, stream) = (rig.table, stream as usize);
    std::thread::scope(|scope| {
        let flush = scope.spawn(move || call!(table, stream_flush(stream as *mut Stream)));
        ENTERED.wait();
        body();
        MAY_LEAVE.wait();
        assert_eq!(flush.join().unwrap(), DEVBAY_STATUS_OK);
    });
}

#[test]
fn threads() {
    check(
        Side::Host,
        &[
            case!("B17", copy, "two threads on one stream", of |_, table| {
                table.stream_flush = Some(takes_long);
            }, rig => {
                let (buffer, stream) = (rig.alloc(0, 64), rig.stream(0, ""));
                meanwhile(&rig, stream, || {
                    assert_eq!(rig.fill(stream, &buffer, 64), DEVBAY_STATUS_INVALID);
                    // Asking is allowed on any thread, and another stream is another matter.
                    assert_eq!(rig.reached(stream).1, DEVBAY_STATUS_OK);
                    assert_eq!(rig.fill(rig.stream(0, ""), &buffer, 64), DEVBAY_STATUS_OK);
                });
                assert_eq!(rig.fill(stream, &buffer, 64), DEVBAY_STATUS_OK);
            }),
            case!("B17", stream_reached, "meanwhile, of a plugin that wants one call at a time on a stream",
            of |info, table| {
                info.threading = DEVBAY_THREADING_PER_STREAM;
                table.stream_flush = Some(takes_long);
            }, rig => {
                let stream = rig.stream(0, "");
                meanwhile(&rig, stream, || {
                    rig.reached(stream);
                    rig.reached(rig.stream(0, ""));
                });
            }),
            case!("B17", stream_create, "meanwhile, of a plugin that wants one call at a time", of |info, table| {
                info.threading = DEVBAY_THREADING_SERIALISED;
                table.stream_flush = Some(takes_long);
            }, rig => {
                let stream = rig.stream(0, "");
                meanwhile(&rig, stream, || assert!(rig.stream(0, "").is_null()));
            }),
            case!("B17", destroy, "while another call is in the instance", of |_, table| {
                table.stream_flush = Some(takes_long);
            }, rig => {
                let stream = rig.stream(0, "");
                meanwhile(&rig, stream, || {
                    // Asking which devices there are is allowed on any thread.
                    assert_eq!(rig.list().len(), 3);
                    call!(rig.table, destroy(rig.instance));
                });
            }),
            case!("B17", stream_destroy, "while another call is in it", of |_, table| {
                table.stream_host_wait = Some(waits_long);
            }, rig => {
                let stream = rig.stream(0, "");
                let (table, handle) = (rig.table, stream as usize);
                rig.signal(stream, 1);
                std::thread::scope(|scope| {
                    scope.spawn(move || call!(table, stream_host_wait(handle as *mut Stream, 1, 0)));
                    ENTERED.wait();
                    call!(rig.table, stream_destroy(stream));
                    MAY_LEAVE.wait();
                });
            }),
        ],
    );
}

unsafe extern "C" fn waits_long(stream: *mut Stream, _: u64, _: u64) -> Status {
    // SAFETY: the stream is the one that the host passed for this function.
    unsafe { takes_long(stream) }
}

#[test]
fn what_is_right_is_no_violation() {
    let rig = Rig::plain();
    let (a, b, inline) = (rig.stream(0, ""), rig.stream(0, "held"), rig.stream(2, ""));
    let (buffer, other, own) = (rig.alloc(0, 256), rig.alloc(0, 64), rig.alloc(2, 64));
    for value in 1..100 {
        assert_eq!(rig.fill(a, &buffer, 64), DEVBAY_STATUS_OK);
        let value = value * value;
        assert_eq!(rig.signal(a, value), DEVBAY_STATUS_OK);
        assert_eq!(rig.reached(a), (value, DEVBAY_STATUS_OK));
        assert_eq!(call!(rig.table, stream_wait(b, a, value)), DEVBAY_STATUS_OK);
        assert_eq!(call!(rig.table, stream_on_reached(a, value, Some(ignore), nothing())), DEVBAY_STATUS_OK);
        assert_eq!(call!(rig.table, stream_host_wait(a, value, 1)), DEVBAY_STATUS_OK);
    }
    // All values up to the last count as signalled, and a stream may wait for itself.
    assert_eq!(call!(rig.table, stream_wait(b, a, 0)), DEVBAY_STATUS_OK);
    assert_eq!(call!(rig.table, stream_wait(b, a, 99 * 99 - 1)), DEVBAY_STATUS_OK);
    assert_eq!(call!(rig.table, stream_wait(a, a, 99 * 99)), DEVBAY_STATUS_OK);
    rig.fill(b, &other, 64);
    rig.signal(b, 1);
    call!(rig.table, stream_on_reached(b, 1, Some(ignore), nothing()));
    assert_eq!(call!(rig.table, stream_host_wait(b, 1, 2_000_000)), DEVBAY_STATUS_TIMEOUT);
    rig.copy(inline, &to_buffer(part(&own, 0, 8)));
    let mut kernels = [rig.sum(0), rig.sum(2)];
    let refs = [part(&buffer, 0, 16), part(&buffer, 16, 16), part(&buffer, 0, 16)];
    assert_eq!(rig.launch(&kernels[0], a, &refs), DEVBAY_STATUS_OK, "in place of the first input");
    let numbers = [0f32; 8];
    let address = numbers.as_ptr() as u64;
    let host = |i: u64| BufferRef { addr: address + 16 * i, length: 16, ..BufferRef::ABSENT };
    assert_eq!(rig.launch(&kernels[1], inline, &[host(0), host(0), host(1)]), DEVBAY_STATUS_OK);
    // Asked for in words too.
    let four = tensor(&[4], &[]);
    let (inputs, outputs) = ([four], [four]);
    let desc = PrepareDesc {
        device: rig.device(0),
        inputs: List::new(&inputs),
        outputs: List::new(&outputs),
        ..PrepareDesc::empty()
    };
    let mut cost = KernelCost::empty();
    call!(rig.table, kernel_cost(rig.instance, &desc, &mut cost, nothing()));
    let mut memory = MemoryInfo::empty();
    call!(rig.table, memory_info(rig.device(0), 0, &mut memory, nothing()));
    assert_eq!((cost.flops, memory.bytes_available), (3, 5));
    for stream in [a, b, inline] {
        assert_eq!(call!(rig.table, stream_error(stream, nothing())), DEVBAY_STATUS_OK);
        call!(rig.table, stream_destroy(stream));
    }
    for buffer in [buffer, other, own] {
        call!(rig.table, buffer_free(buffer.buffer));
    }
    for kernel in &mut kernels {
        call!(rig.table, unprepare(rig.instance, kernel));
    }
    call!(rig.table, destroy(rig.instance));
    assert_eq!(rig.found(), []);
}
