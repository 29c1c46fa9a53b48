//! The asynchronous streams through the ABI's table: points, waits between streams, and callbacks that come exactly
//! once (B12, B16), as a host that is not ours would use them.

use devbay_plugin_api::abi::*;
use devbay_plugin_cpu::PLUGIN;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// An instance with asynchronous streams whose copies take a while.
struct Cpu {
    table: PluginTable,
    instance: *mut Instance,
    device: *mut Device,
}

impl Cpu {
    fn new() -> Self {
        // SAFETY: the entry returns static data of the plugin's.
        let info = unsafe { read_struct(PLUGIN.query()) }.unwrap();
        // SAFETY: the table is static data of the plugin's.
        let table = unsafe { read_struct(info.table) }.unwrap();
        let pair = |key, value| KeyValue { key: Str::new(key), value: Str::new(value) };
        // 10^6 bytes take a second.
        let options = [pair("streams", "async"), pair("copy_mb_per_s", "1")];
        let host = HostApi::empty();
        let desc = CreateDesc {
            abi_minor: DEVBAY_ABI_MINOR,
            host: &host,
            options: List::new(&options),
            ..CreateDesc::empty()
        };
        let (mut instance, mut list) = (null_mut(), List::EMPTY);
        // SAFETY: all arguments live for the call; the services have no function that could be kept.
        assert_eq!(unsafe { table.create.unwrap()(&desc, &mut instance, null_mut()) }, DEVBAY_STATUS_OK);
        // SAFETY: the instance was just made, and the place for the list lives for the call.
        assert_eq!(unsafe { table.devices.unwrap()(instance, &mut list, null_mut()) }, DEVBAY_STATUS_OK);
        // SAFETY: the plugin keeps the list as long as the instance.
        let devices = unsafe { read_growable_list::<DeviceInfo>(&list) }.unwrap();
        Self { table, instance, device: devices[0].handle }
    }

    fn stream(&self) -> *mut Stream {
        let mut stream = null_mut();
        let desc = StreamDesc::empty();
        // SAFETY: the plugin's device; the rest lives for the call.
        let status =
            unsafe { self.table.stream_create.unwrap()(self.device, &desc, &mut stream, null_mut()) };
        assert_eq!(status, DEVBAY_STATUS_OK);
        stream
    }

    /// A piece of work that takes `millis`: a copy between two parts of `memory`.
    fn work(&self, stream: *mut Stream, memory: &mut [u8; 400_000], millis: usize) -> Status {
        let (src, dst) = memory.split_at_mut(200_000);
        let reference = |at: *mut u8| BufferRef {
            buffer: null_mut(),
            addr: at as u64,
            offset: 0,
            length: 1000 * millis as u64,
        };
        let desc = CopyDesc {
            kind: DEVBAY_COPY_HOST_TO_BUFFER,
            host_src: src.as_ptr().cast(),
            dst: reference(dst.as_mut_ptr()),
            size_bytes: 1000 * millis as u64,
            ..CopyDesc::empty()
        };
        // SAFETY: the plugin's stream; the callers keep the memory until the stream is destroyed.
        unsafe { self.table.copy.unwrap()(stream, &desc) }
    }

    fn signal(&self, stream: *mut Stream, value: u64) -> Status {
        // SAFETY: the callers' stream is the plugin's, and not destroyed yet.
        unsafe { self.table.stream_signal.unwrap()(stream, value) }
    }

    fn reached(&self, stream: *mut Stream) -> (u64, Status) {
        let mut value = 0;
        // SAFETY: the callers' stream is the plugin's, and not destroyed yet; the place for the number is ours.
        let status = unsafe { self.table.stream_reached.unwrap()(stream, &mut value) };
        (value, status)
    }

    fn host_wait(&self, stream: *mut Stream, value: u64, limit: Duration) -> Status {
        // SAFETY: the callers' stream is the plugin's, and not destroyed yet.
        unsafe { self.table.stream_host_wait.unwrap()(stream, value, limit.as_nanos() as u64) }
    }

    /// Asks for a callback that sends `label` and its status.
    fn on_reached(&self, stream: *mut Stream, value: u64, call: &Callback) -> Status {
        let arg = (&raw const *call).cast_mut().cast();
        // SAFETY: the plugin's stream; the callbacks live until the stream is destroyed.
        unsafe { self.table.stream_on_reached.unwrap()(stream, value, Some(done), arg) }
    }

    fn destroy(&self, stream: *mut Stream) {
        // SAFETY: the callers' stream is the plugin's, and is destroyed once.
        unsafe { self.table.stream_destroy.unwrap()(stream) };
    }
}

impl Drop for Cpu {
    fn drop(&mut self) {
        // SAFETY: `create` made the instance, which is destroyed once, here; its streams are gone.
        unsafe { self.table.destroy.unwrap()(self.instance) };
    }
}

struct Callback {
    label: u64,
    sender: Sender<(u64, Status)>,
}

unsafe extern "C" fn done(arg: *mut c_void, status: Status) {
    // SAFETY: `on_reached` passes a callback that outlives the stream.
    let callback = unsafe { &*arg.cast::<Callback>() };
    callback.sender.send((callback.label, status)).unwrap();
}

fn callbacks(n: u64) -> (Vec<Callback>, Receiver<(u64, Status)>) {
    let (sender, receiver) = channel();
    ((0..n).map(|label| Callback { label, sender: sender.clone() }).collect(), receiver)
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn b16_callbacks_come_exactly_once() {
    let cpu = Cpu::new();
    let (stream, mut memory) = (cpu.stream(), Box::new([1u8; 400_000]));
    let (calls, received) = callbacks(4);
    assert_eq!(cpu.work(stream, &mut memory, 200), DEVBAY_STATUS_OK);
    assert_eq!(cpu.signal(stream, 5), DEVBAY_STATUS_OK);
    // Two for the point that is to come, one for a value below it, one for a point that is reached already.
    for call in &calls[..2] {
        assert_eq!(cpu.on_reached(stream, 5, call), DEVBAY_STATUS_OK);
    }
    assert_eq!(cpu.on_reached(stream, 3, &calls[2]), DEVBAY_STATUS_OK);
    assert!(received.try_recv().is_err(), "called before the work was done");
    assert_eq!(cpu.host_wait(stream, 5, LONG), DEVBAY_STATUS_OK);
    assert_eq!(cpu.on_reached(stream, 5, &calls[3]), DEVBAY_STATUS_OK);
    cpu.destroy(stream);
    let mut came: Vec<_> = received.try_iter().collect();
    came.sort_unstable();
    assert_eq!(came, (0..4).map(|label| (label, DEVBAY_STATUS_OK)).collect::<Vec<_>>());
    assert_eq!(memory[200_000..], [1u8; 200_000]);
}

/// A value that was not signalled is refused, and then no callback comes.
#[test]
fn b16_a_refused_callback_never_comes() {
    let cpu = Cpu::new();
    let stream = cpu.stream();
    let (calls, received) = callbacks(1);
    assert_eq!(cpu.on_reached(stream, 1, &calls[0]), DEVBAY_STATUS_INVALID);
    // SAFETY: the callers' stream is the plugin's, and not destroyed yet; there is no callback.
    let without = unsafe { cpu.table.stream_on_reached.unwrap()(stream, 0, None, null_mut()) };
    assert_eq!(without, DEVBAY_STATUS_INVALID);
    assert_eq!(cpu.signal(stream, 1), DEVBAY_STATUS_OK);
    assert_eq!(cpu.host_wait(stream, 1, LONG), DEVBAY_STATUS_OK);
    cpu.destroy(stream);
    assert_eq!(received.try_iter().count(), 0);
}

/// Also of a stream that waits for another when it is destroyed.
#[test]
fn b16_callbacks_of_a_stream_that_ends_come_before_its_end() {
    let cpu = Cpu::new();
    let (first, second, mut memory) = (cpu.stream(), cpu.stream(), Box::new([1u8; 400_000]));
    let (calls, received) = callbacks(2);
    assert_eq!(cpu.work(first, &mut memory, 200), DEVBAY_STATUS_OK);
    assert_eq!(cpu.signal(first, 1), DEVBAY_STATUS_OK);
    // SAFETY: the plugin's streams, and a value that was signalled.
    assert_eq!(unsafe { cpu.table.stream_wait.unwrap()(second, first, 1) }, DEVBAY_STATUS_OK);
    assert_eq!(cpu.signal(second, 7), DEVBAY_STATUS_OK);
    assert_eq!(cpu.on_reached(second, 7, &calls[0]), DEVBAY_STATUS_OK);
    assert_eq!(cpu.on_reached(first, 1, &calls[1]), DEVBAY_STATUS_OK);
    assert_eq!(cpu.reached(second), (0, DEVBAY_STATUS_OK), "the other stream takes 200 ms");
    // Destroying waits for the work, and reports every point of the stream before it returns. The other stream's
    // thread may have yet to call, though its point is reached.
    cpu.destroy(second);
    let mut came: Vec<_> = received.try_iter().collect();
    assert!(came.contains(&(0, DEVBAY_STATUS_OK)), "found {came:?}");
    cpu.destroy(first);
    came.extend(received.try_iter());
    came.sort_unstable();
    assert_eq!(came, [(0, DEVBAY_STATUS_OK), (1, DEVBAY_STATUS_OK)], "each once");
}

#[test]
fn b12_values_rise_and_waits_name_what_was_signalled() {
    let cpu = Cpu::new();
    let (stream, other) = (cpu.stream(), cpu.stream());
    assert_eq!(cpu.reached(stream), (0, DEVBAY_STATUS_OK));
    assert_eq!(cpu.signal(stream, 10), DEVBAY_STATUS_OK);
    for value in [10, 3, 0] {
        assert_eq!(cpu.signal(stream, value), DEVBAY_STATUS_INVALID, "{value} after 10");
    }
    assert_eq!(cpu.host_wait(stream, 11, LONG), DEVBAY_STATUS_INVALID);
    // SAFETY: both streams are the plugin's, and not destroyed yet.
    let waited = unsafe { cpu.table.stream_wait.unwrap()(other, stream, 11) };
    assert_eq!(waited, DEVBAY_STATUS_INVALID);
    assert_eq!(cpu.host_wait(stream, 10, LONG), DEVBAY_STATUS_OK);
    assert_eq!(cpu.reached(stream), (10, DEVBAY_STATUS_OK));
    cpu.destroy(stream);
    cpu.destroy(other);
}

#[test]
fn b12_a_wait_ends_with_its_time() {
    let cpu = Cpu::new();
    let (stream, mut memory) = (cpu.stream(), Box::new([1u8; 400_000]));
    assert_eq!(cpu.work(stream, &mut memory, 200), DEVBAY_STATUS_OK);
    assert_eq!(cpu.signal(stream, 1), DEVBAY_STATUS_OK);
    assert_eq!(cpu.host_wait(stream, 1, Duration::from_millis(10)), DEVBAY_STATUS_TIMEOUT);
    assert_eq!(cpu.host_wait(stream, 1, LONG), DEVBAY_STATUS_OK);
    cpu.destroy(stream);
}

/// A fault known at enqueue fails only that call (B13), and the stream gives the reason (B18).
#[test]
fn b13_a_copy_that_cannot_be_leaves_the_stream_whole() {
    let cpu = Cpu::new();
    let stream = cpu.stream();
    let desc = CopyDesc { kind: 99, size_bytes: 8, ..CopyDesc::empty() };
    // SAFETY: the plugin's stream; a kind of copy that is refused before anything is read.
    assert_eq!(unsafe { cpu.table.copy.unwrap()(stream, &desc) }, DEVBAY_STATUS_UNSUPPORTED);
    let mut text = [0u8; 64];
    let mut detail = ErrorDetail {
        text: text.as_mut_ptr().cast(),
        text_capacity: text.len() as u64,
        ..ErrorDetail::empty()
    };
    // SAFETY: the plugin's stream; the struct and its text live for the call.
    let status = unsafe { cpu.table.stream_error.unwrap()(stream, &mut detail) };
    assert_eq!((status, detail.status), (DEVBAY_STATUS_UNSUPPORTED, DEVBAY_STATUS_UNSUPPORTED));
    assert_eq!(&text[..detail.text_len as usize], b"copy of kind 99");
    // SAFETY: the stream is the plugin's, and not destroyed yet; a NULL is left alone.
    assert_eq!(unsafe { cpu.table.copy.unwrap()(stream, null()) }, DEVBAY_STATUS_INVALID);
    assert_eq!(cpu.signal(stream, 1), DEVBAY_STATUS_OK);
    assert_eq!(cpu.host_wait(stream, 1, LONG), DEVBAY_STATUS_OK);
    cpu.destroy(stream);
}
