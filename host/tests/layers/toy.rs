//! A correct plugin that does nothing: three devices whose memory is never touched, kernels that compute nothing.
//!
//! Devices 0 and 1 have timelines, device 2 works inline and takes host memory. Points are reached when they are
//! signalled, but for streams with the label `held`, whose points are reached when they end, and `failed`, which fail at
//! their first signal. Tests replace single functions of its table, and forward the rest to those here.
#![allow(dead_code, reason = "each test program that includes this uses a part of it")]

use devbay_plugin_api::abi::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Kernels, by their positions.
pub const SUM: u32 = 0;
pub const WANTS_VALUE: u32 = 1;
pub const PACKS: u32 = 2;
pub const MANY: u32 = 3;

/// Bytes that the packed constant has.
pub const PACKED_BYTES: u64 = 32;

const F32: DType = DType { code: DEVBAY_DTYPE_FLOAT, bits: 32, lanes: 1 };
static DTYPES: [DType; 1] = [F32];
static TYPEVARS: [TypeVar; 1] =
    [TypeVar { struct_size: size_of::<TypeVar>() as u32, n_dtypes: 1, dtypes: DTYPES.as_ptr() }];
static VARS: [u8; 1] = [0];
static IN_PLACE: [i16; 1] = [0];

const fn kernel(op: &'static str, n_inputs: (u32, u32), flags: u64, host_value_inputs: u64) -> KernelInfo {
    KernelInfo {
        struct_size: size_of::<KernelInfo>() as u32,
        since_version: 1,
        domain: Str::new("toy"),
        op: Str::new(op),
        n_inputs_min: n_inputs.0,
        n_inputs_max: n_inputs.1,
        n_outputs_min: 1,
        n_outputs_max: 1,
        typevars: List::new(&TYPEVARS),
        input_typevars: List::new(&VARS),
        output_typevars: List::new(&VARS),
        priority: 0,
        reserved: 0,
        flags,
        host_value_inputs,
        in_place: List::new(&IN_PLACE),
        doc: Str::EMPTY,
    }
}

static KERNELS: [KernelInfo; 4] = [
    kernel("Sum", (1, 3), 0, 0),
    kernel("WantsValue", (2, 2), 0, 2),
    kernel("Packs", (2, 2), 0, 0),
    kernel("Many", (1, 9), 0, 0),
];

const SPACE: MemorySpace = MemorySpace {
    struct_size: size_of::<MemorySpace>() as u32,
    kind: DEVBAY_SPACE_DEVICE,
    flags: DEVBAY_SPACE_ADDRESSABLE,
    bytes_total: 1 << 30,
    alloc_max: 0,
    alloc_align: 64,
    bind_align: 16,
    bind_max: 1024,
    copy_align: 4,
    copy_granule: 4,
};
static SPACES: [MemorySpace; 2] = [
    SPACE,
    MemorySpace { flags: DEVBAY_SPACE_NO_SUBALLOC | DEVBAY_SPACE_WRITE_ONCE | DEVBAY_SPACE_TYPED, ..SPACE },
];

/// State behind a handle of an instance.
pub struct Toy {
    pub host: HostApi,
    pub devices: [DeviceInfo; 3],
    handles: [ToyDevice; 3],
}

pub struct ToyDevice {
    inline: bool,
}

pub struct ToyStream {
    signalled: AtomicU64,
    reached: AtomicU64,
    held: bool,
    fails: bool,
    waiting: Mutex<Vec<(DoneFn, usize)>>,
}

fn fail(error: *mut ErrorDetail, status: Status, text: &str) -> Status {
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    let Ok(known) = (unsafe { read_struct(error.cast_const()) }) else {
        return status;
    };
    let len = text.len().min(known.text_capacity as usize);
    if !known.text.is_null() {
        // SAFETY: the host has room for so many bytes.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), known.text.cast(), len) };
    }
    let detail = ErrorDetail { status, text_len: text.len() as u64, ..known };
    // SAFETY: `error` was just read, so it is the host's struct of the size that it says.
    let _ = unsafe { write_struct(error, &detail) };
    status
}

/// Runs something of the toy's on a handle.
fn with<T, H, R>(handle: *mut H, body: impl FnOnce(&T) -> R) -> R {
    // SAFETY: tests call with handles that the toy gave out and that are alive: the layer sees to the others.
    body(unsafe { &*handle.cast::<T>() })
}

pub unsafe extern "C" fn create(
    desc: *const CreateDesc,
    out: *mut *mut Instance,
    error: *mut ErrorDetail,
) -> Status {
    // SAFETY: B4: `desc` is NULL or the host's struct, of the size that it says and alive for the call.
    let Ok(desc) = (unsafe { read_struct(desc) }) else {
        return fail(error, DEVBAY_STATUS_INVALID, "a broken description");
    };
    if desc.options.len > 0 {
        return fail(error, DEVBAY_STATUS_INVALID, "the toy has no options");
    }
    // SAFETY: `desc.host` is NULL or the host's table of services, of the size that it says (B4).
    let Ok(host) = (unsafe { read_struct(desc.host) }) else {
        return fail(error, DEVBAY_STATUS_INVALID, "broken services");
    };
    let info = |id: &'static str, flags: u64| DeviceInfo {
        kind: DEVBAY_DEVICE_KIND_OTHER,
        id: Str::new(id),
        name: Str::new("toy"),
        flags,
        refs_max: 6,
        spaces: List::new(&SPACES),
        ..DeviceInfo::empty()
    };
    let inline = DEVBAY_DEVICE_INLINE | DEVBAY_DEVICE_HOST_REFS;
    let devices = [info("a", 0), info("b", 0), info("c", inline)];
    let handles = [false, false, true].map(|inline| ToyDevice { inline });
    let mut toy = Box::new(Toy { host, devices, handles });
    for i in 0..3 {
        toy.devices[i].handle = (&raw mut toy.handles[i]).cast();
    }
    // SAFETY: `out` is the test's place for one handle, alive for the call.
    unsafe { *out = Box::into_raw(toy).cast() };
    DEVBAY_STATUS_OK
}

pub unsafe extern "C" fn destroy(instance: *mut Instance) {
    // SAFETY: `create` made the instance, and it is given back once.
    drop(unsafe { Box::from_raw(instance.cast::<Toy>()) });
}

pub unsafe extern "C" fn devices(instance: *mut Instance, out: *mut List, _: *mut ErrorDetail) -> Status {
    with(instance, |toy: &Toy| {
        // SAFETY: `out` is the test's place for one list, alive for the call.
        unsafe { *out = List::new(&toy.devices) };
        DEVBAY_STATUS_OK
    })
}

pub unsafe extern "C" fn buffer_alloc(
    _: *mut Device,
    desc: *const AllocDesc,
    out: *mut Allocation,
    error: *mut ErrorDetail,
) -> Status {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 20);
    // SAFETY: B4: `desc` is NULL or the host's struct, of the size that it says and alive for the call.
    let Ok(desc) = (unsafe { read_struct(desc) }) else {
        return fail(error, DEVBAY_STATUS_INVALID, "a broken description");
    };
    if desc.size_bytes > 1 << 30 {
        return fail(error, DEVBAY_STATUS_OUT_OF_MEMORY, "so much is not there");
    }
    // Addresses that are never followed.
    let base = NEXT.fetch_add(desc.size_bytes.next_multiple_of(1 << 16) + (1 << 16), Ordering::Relaxed);
    let buffer = Box::into_raw(Box::new(base)).cast();
    let made = Allocation { buffer, base, size_bytes: desc.size_bytes, ..Allocation::empty() };
    // SAFETY: B4: `out` is NULL or the host's struct, of the size that it says and alive for the call.
    let _ = unsafe { write_struct(out, &made) };
    DEVBAY_STATUS_OK
}

pub unsafe extern "C" fn buffer_free(buffer: *mut Buffer) {
    // SAFETY: `buffer_alloc` made the buffer, and it is given back once.
    drop(unsafe { Box::from_raw(buffer.cast::<u64>()) });
}

pub unsafe extern "C" fn stream_create(
    device: *mut Device,
    desc: *const StreamDesc,
    out: *mut *mut Stream,
    _: *mut ErrorDetail,
) -> Status {
    // SAFETY: the host's struct and its label, alive for the call.
    let label = unsafe { read_struct(desc) }.ok().and_then(|desc| unsafe { desc.label.get() }.ok());
    let stream = with(device, |device: &ToyDevice| ToyStream {
        signalled: AtomicU64::new(0),
        reached: AtomicU64::new(0),
        held: label == Some("held") && !device.inline,
        fails: label == Some("failed"),
        waiting: Mutex::default(),
    });
    // SAFETY: `out` is the test's place for one handle, alive for the call.
    unsafe { *out = Box::into_raw(Box::new(stream)).cast() };
    DEVBAY_STATUS_OK
}

pub unsafe extern "C" fn stream_destroy(stream: *mut Stream) {
    // SAFETY: `stream_create` made the stream, and it is given back once.
    let stream = unsafe { Box::from_raw(stream.cast::<ToyStream>()) };
    for (done, arg) in stream.waiting.lock().unwrap().drain(..) {
        // SAFETY: B16: the host's function with its own argument, called once: it was taken out of the list.
        unsafe { done(arg as *mut c_void, DEVBAY_STATUS_ABORTED) };
    }
}

pub unsafe extern "C" fn copy(stream: *mut Stream, _: *const CopyDesc) -> Status {
    with(stream, status)
}

pub unsafe extern "C" fn stream_signal(stream: *mut Stream, value: u64) -> Status {
    with(stream, |stream: &ToyStream| {
        if status(stream) != DEVBAY_STATUS_OK {
            return status(stream);
        }
        stream.signalled.store(value, Ordering::SeqCst);
        if !stream.held && !stream.fails {
            stream.reached.store(value, Ordering::SeqCst);
        }
        DEVBAY_STATUS_OK
    })
}

/// A stream's status.
fn status(stream: &ToyStream) -> Status {
    match stream.fails && stream.signalled.load(Ordering::SeqCst) > 0 {
        true => DEVBAY_STATUS_INTERNAL,
        false => DEVBAY_STATUS_OK,
    }
}

pub unsafe extern "C" fn stream_reached(stream: *mut Stream, out: *mut u64) -> Status {
    with(stream, |stream: &ToyStream| {
        // SAFETY: `out` is the test's place for one number, alive for the call.
        unsafe { *out = stream.reached.load(Ordering::SeqCst) };
        status(stream)
    })
}

pub unsafe extern "C" fn prepare(
    _: *mut Instance,
    desc: *const PrepareDesc,
    out: *mut Prepared,
    error: *mut ErrorDetail,
) -> Status {
    static PACK: [ConstantPack; 1] = [ConstantPack {
        struct_size: size_of::<ConstantPack>() as u32,
        input_idx: 1,
        layout_id: 7,
        size_bytes: PACKED_BYTES,
        align: 64,
    }];
    // SAFETY: B4: `desc` is NULL or the host's struct, of the size that it says and alive for the call.
    let Ok(desc) = (unsafe { read_struct(desc) }) else {
        return fail(error, DEVBAY_STATUS_INVALID, "a broken description");
    };
    let packs = desc.kernel_idx == PACKS;
    let made = Prepared {
        launch: Some(launch),
        state: Box::into_raw(Box::new(0u64)).cast(),
        workspace_bytes: if packs { 128 } else { 0 },
        workspace_align: if packs { 64 } else { 0 },
        packs: if packs { List::new(&PACK) } else { List::EMPTY },
        ..Prepared::empty()
    };
    // SAFETY: B4: `out` is NULL or the host's struct, of the size that it says and alive for the call.
    let _ = unsafe { write_struct(out, &made) };
    DEVBAY_STATUS_OK
}

pub unsafe extern "C" fn unprepare(_: *mut Instance, prepared: *mut Prepared) {
    // SAFETY: `prepare` made the state, and it is given back once.
    drop(unsafe { Box::from_raw((*prepared).state.cast::<u64>()) });
}

pub unsafe extern "C" fn launch(
    _: *const c_void,
    stream: *mut Stream,
    _: *const BufferRef,
    _: *const i64,
) -> Status {
    with(stream, status)
}

pub unsafe extern "C" fn get_extension(instance: *mut Instance, _: u32, _: u32) -> *const c_void {
    instance.cast_const().cast()
}

pub unsafe extern "C" fn stream_wait(stream: *mut Stream, _: *mut Stream, _: u64) -> Status {
    with(stream, status)
}

pub unsafe extern "C" fn stream_on_reached(
    stream: *mut Stream,
    value: u64,
    done: Option<DoneFn>,
    arg: *mut c_void,
) -> Status {
    let Some(done) = done else {
        return DEVBAY_STATUS_INVALID;
    };
    with(stream, |stream: &ToyStream| {
        if stream.reached.load(Ordering::SeqCst) >= value {
            // SAFETY: B16: the host's function with its own argument, called once: it goes into no list.
            unsafe { done(arg, DEVBAY_STATUS_OK) };
        } else {
            stream.waiting.lock().unwrap().push((done, arg as usize));
        }
        DEVBAY_STATUS_OK
    })
}

pub unsafe extern "C" fn stream_host_wait(stream: *mut Stream, value: u64, timeout_ns: u64) -> Status {
    with(stream, |stream: &ToyStream| {
        if stream.reached.load(Ordering::SeqCst) >= value {
            return DEVBAY_STATUS_OK;
        }
        if status(stream) != DEVBAY_STATUS_OK {
            return status(stream);
        }
        std::thread::sleep(std::time::Duration::from_nanos(timeout_ns));
        DEVBAY_STATUS_TIMEOUT
    })
}

pub unsafe extern "C" fn stream_flush(stream: *mut Stream) -> Status {
    with(stream, status)
}

pub unsafe extern "C" fn stream_error(stream: *mut Stream, error: *mut ErrorDetail) -> Status {
    with(stream, |stream: &ToyStream| match status(stream) {
        DEVBAY_STATUS_OK => DEVBAY_STATUS_OK,
        status => fail(error, status, "it was told to fail"),
    })
}

pub unsafe extern "C" fn kernel_cost(
    _: *mut Instance,
    _: *const PrepareDesc,
    out: *mut KernelCost,
    _: *mut ErrorDetail,
) -> Status {
    // SAFETY: B4: `out` is NULL or the host's struct, of the size that it says and alive for the call.
    let _ = unsafe { write_struct(out, &KernelCost { flops: 3, ..KernelCost::empty() }) };
    DEVBAY_STATUS_OK
}

pub unsafe extern "C" fn pack(
    _: *mut Instance,
    _: *const Prepared,
    _: u32,
    _: *const Tensor,
    dst: *mut c_void,
    _: *mut ErrorDetail,
) -> Status {
    // SAFETY: `dst` has the `PACKED_BYTES` that `prepare` asked for.
    unsafe { dst.cast::<u8>().write_bytes(7, PACKED_BYTES as usize) };
    DEVBAY_STATUS_OK
}

pub unsafe extern "C" fn memory_info(
    _: *mut Device,
    _: u32,
    out: *mut MemoryInfo,
    _: *mut ErrorDetail,
) -> Status {
    // SAFETY: B4: `out` is NULL or the host's struct, of the size that it says and alive for the call.
    let _ = unsafe { write_struct(out, &MemoryInfo { bytes_available: 5, ..MemoryInfo::empty() }) };
    DEVBAY_STATUS_OK
}

pub unsafe extern "C" fn kernel_shape(
    _: *mut Instance,
    _: *const PrepareDesc,
    _: u32,
    out_dtype: *mut DType,
    out_shape: *mut i64,
    _: u32,
    out_rank: *mut u32,
    _: *mut ErrorDetail,
) -> Status {
    // SAFETY: the places are the test's, for one dtype, one number and at least one extent.
    unsafe { (*out_dtype, *out_shape, *out_rank) = (F32, 4, 1) };
    DEVBAY_STATUS_OK
}

/// All of its kernels.
unsafe extern "C" fn device_kernels(
    _: *mut Instance,
    _: *mut Device,
    out: *mut List,
    _: *mut ErrorDetail,
) -> Status {
    const OWN: DeviceKernel =
        DeviceKernel { struct_size: size_of::<DeviceKernel>() as u32, kernel_idx: 0, info: null() };
    static LISTED: Listed = Listed({
        let mut listed = [OWN; KERNELS.len()];
        let mut i = 0;
        while i < listed.len() {
            listed[i].kernel_idx = i as u32;
            i += 1;
        }
        listed
    });
    // SAFETY: `out` is the test's place for one list, alive for the call.
    unsafe { *out = List::new(&LISTED.0) };
    DEVBAY_STATUS_OK
}

/// Kernels that a device lists.
struct Listed([DeviceKernel; KERNELS.len()]);

// SAFETY: positions, whose pointers are NULL.
unsafe impl Sync for Listed {}

/// Its functions.
pub const TABLE: PluginTable = PluginTable {
    struct_size: size_of::<PluginTable>() as u32,
    reserved: 0,
    create: Some(create),
    destroy: Some(destroy),
    devices: Some(devices),
    buffer_alloc: Some(buffer_alloc),
    buffer_free: Some(buffer_free),
    stream_create: Some(stream_create),
    stream_destroy: Some(stream_destroy),
    copy: Some(copy),
    stream_signal: Some(stream_signal),
    stream_reached: Some(stream_reached),
    prepare: Some(prepare),
    unprepare: Some(unprepare),
    get_extension: Some(get_extension),
    stream_wait: Some(stream_wait),
    stream_on_reached: Some(stream_on_reached),
    stream_host_wait: Some(stream_host_wait),
    stream_flush: Some(stream_flush),
    stream_error: Some(stream_error),
    kernel_cost: Some(kernel_cost),
    pack: Some(pack),
    memory_info: Some(memory_info),
    kernel_shape: Some(kernel_shape),
    device_kernels: Some(device_kernels),
};

/// Returns the plugin's data, for tests that change it; its table is NULL.
pub fn info() -> PluginInfo {
    PluginInfo {
        struct_size: size_of::<PluginInfo>() as u32,
        abi_minor_min: DEVBAY_ABI_MINOR_MIN,
        abi_minor_max: DEVBAY_ABI_MINOR,
        threading: DEVBAY_THREADING_FREE,
        flags: 0,
        name: Str::new("toy"),
        vendor: Str::new("tests"),
        version: Str::new("1"),
        table: null(),
        profiles: List::EMPTY,
        kernels: List::new(&KERNELS),
        options: List::EMPTY,
        layout: List::EMPTY,
        layer: None,
    }
}

/// A place without anything in it.
pub fn nothing<T>() -> *mut T {
    null_mut()
}
