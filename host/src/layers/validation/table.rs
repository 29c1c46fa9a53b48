//! The layer's functions. Each has a copy per slot, which passes its slot to code that is compiled once; that code
//! finds the records and forwards the call to them.
//!
//! A freed slot answers INVALID. Nothing unwinds (B19): a panic in the layer becomes INTERNAL.

use super::{Books, SLOTS};
use crate::layers::slots::{N_SLOTS, per_slot};
use devbay_plugin_api::abi::*;
use std::ffi::c_void;
use std::panic::AssertUnwindSafe;
use std::ptr::null;

/// Runs code of the layer. A panic gives `otherwise`.
fn contained<R>(otherwise: R, body: impl FnOnce() -> R) -> R {
    std::panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        // The panic hook has printed it.
        std::mem::forget(payload);
        otherwise
    })
}

fn books<R>(slot: usize, gone: R, panicked: R, body: impl FnOnce(&Books) -> R) -> R {
    match SLOTS.get(slot) {
        None => gone,
        Some(books) => contained(panicked, || body(&books)),
    }
}

/// Defines functions with a copy per slot: name, slot, arguments, result, and the body that is compiled once.
macro_rules! per_slot_functions {
    ($($name:ident($slot:ident; $($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? = $body:expr;)*) => {$(
        unsafe extern "C" fn $name<const SLOT: usize>($($argument: $type),*) $(-> $result)? {
            #[inline(never)]
            #[allow(clippy::too_many_arguments, reason = "a slot before the ABI's own")]
            unsafe fn of_slot($slot: usize, $($argument: $type),*) $(-> $result)? {
                $body
            }
            // SAFETY: the arguments are passed on unchanged; the caller guarantees the ABI's conditions on them.
            unsafe { of_slot(SLOT, $($argument),*) }
        }
    )*};
}

/// Defines functions that forward to the records: some return a status, the others nothing.
macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $status:ty)?;)*) => {$(
        per_slot_functions! {
            $name(slot; $($argument: $type),*) $(-> $status)? =
                functions!(@ slot, $name($($argument),*) $($status)?);
        }
    )*};
    (@ $slot:ident, $name:ident($($argument:ident),*) $status:ty) => {
        books($slot, DEVBAY_STATUS_INVALID, DEVBAY_STATUS_INTERNAL, |books| {
            // SAFETY: the arguments are passed on unchanged; the caller guarantees the ABI's conditions on them.
            unsafe { books.$name($($argument),*) }.unwrap_or_else(|status| status)
        })
    };
    (@ $slot:ident, $name:ident($($argument:ident),*)) => {
        books($slot, (), (), |books| {
            // SAFETY: the arguments are passed on unchanged; the caller guarantees the ABI's conditions on them. A
            // stopped call has already been reported.
            let _ = unsafe { books.$name($($argument),*) };
        })
    };
}

functions! {
    create(desc: *const CreateDesc, out: *mut *mut Instance, error: *mut ErrorDetail) -> Status;
    destroy(instance: *mut Instance);
    devices(instance: *mut Instance, out: *mut List, error: *mut ErrorDetail) -> Status;
    buffer_alloc(
        device: *mut Device, desc: *const AllocDesc, out: *mut Allocation, error: *mut ErrorDetail
    ) -> Status;
    buffer_free(buffer: *mut Buffer);
    stream_create(
        device: *mut Device, desc: *const StreamDesc, out: *mut *mut Stream, error: *mut ErrorDetail
    ) -> Status;
    stream_destroy(stream: *mut Stream);
    copy(stream: *mut Stream, desc: *const CopyDesc) -> Status;
    stream_signal(stream: *mut Stream, value: u64) -> Status;
    stream_reached(stream: *mut Stream, out: *mut u64) -> Status;
    prepare(
        instance: *mut Instance, desc: *const PrepareDesc, out: *mut Prepared, error: *mut ErrorDetail
    ) -> Status;
    unprepare(instance: *mut Instance, prepared: *mut Prepared);
    stream_wait(stream: *mut Stream, other: *mut Stream, value: u64) -> Status;
    stream_on_reached(stream: *mut Stream, value: u64, done: Option<DoneFn>, arg: *mut c_void) -> Status;
    stream_host_wait(stream: *mut Stream, value: u64, timeout_ns: u64) -> Status;
    stream_flush(stream: *mut Stream) -> Status;
    stream_error(stream: *mut Stream, error: *mut ErrorDetail) -> Status;
    kernel_cost(
        instance: *mut Instance, desc: *const PrepareDesc, out: *mut KernelCost, error: *mut ErrorDetail
    ) -> Status;
    pack(
        instance: *mut Instance, prepared: *const Prepared, input_idx: u32, src: *const Tensor, dst: *mut c_void,
        error: *mut ErrorDetail
    ) -> Status;
    memory_info(
        device: *mut Device, space_idx: u32, out: *mut MemoryInfo, error: *mut ErrorDetail
    ) -> Status;
    kernel_shape(
        instance: *mut Instance, desc: *const PrepareDesc, output_idx: u32, out_dtype: *mut DType,
        out_shape: *mut i64, rank_max: u32, out_rank: *mut u32, error: *mut ErrorDetail
    ) -> Status;
    device_kernels(
        instance: *mut Instance, device: *mut Device, out: *mut List, error: *mut ErrorDetail
    ) -> Status;
    launch(state: *const c_void, stream: *mut Stream, refs: *const BufferRef, dims: *const i64) -> Status;
    // Functions of extensions.
    stream_fail(stream: *mut Stream, status: Status) -> Status;
    device_lose(device: *mut Device) -> Status;
    dlpack_device(
        device: *mut Device, space_idx: u32, out_type: *mut i32, out_id: *mut i32, error: *mut ErrorDetail
    ) -> Status;
    buffer_import(
        device: *mut Device, desc: *const ImportDesc, out: *mut Allocation, error: *mut ErrorDetail
    ) -> Status;
    buffer_export(buffer: *mut Buffer, out: *mut NativeHandle, error: *mut ErrorDetail) -> Status;
    stream_import(
        device: *mut Device, native: *const NativeHandle, out: *mut *mut Stream, error: *mut ErrorDetail
    ) -> Status;
    stream_export(stream: *mut Stream, out: *mut NativeHandle, error: *mut ErrorDetail) -> Status;
    record_begin(stream: *mut Stream, desc: *const RecordDesc) -> Status;
    record_end(stream: *mut Stream, out: *mut *mut Recording) -> Status;
    replay_recording(stream: *mut Stream, desc: *const ReplayDesc) -> Status;
    recording_free(recording: *mut Recording);
    formats(device: *mut Device, out: *mut List, error: *mut ErrorDetail) -> Status;
    compile_program(
        device: *mut Device, desc: *const CompileDesc, out: *mut *mut Executable, error: *mut ErrorDetail
    ) -> Status;
    executable_info(
        program: *mut Executable, out: *mut ExecutableInfo, error: *mut ErrorDetail
    ) -> Status;
    execute(program: *mut Executable, stream: *mut Stream, desc: *const ExecuteDesc) -> Status;
    executable_free(program: *mut Executable);
    claim(
        device: *mut Device, graph: *const GraphView, claims: *mut NodeClaim, n_claims: u64,
        error: *mut ErrorDetail
    ) -> Status;
    blob(program: *mut Executable, out: *mut List, error: *mut ErrorDetail) -> Status;
    validate(
        device: *mut Device, blob: *const c_void, blob_bytes: u64, out: *mut u32, error: *mut ErrorDetail
    ) -> Status;
    load(
        device: *mut Device, desc: *const CompileDesc, out: *mut *mut Executable, error: *mut ErrorDetail
    ) -> Status;
    compile_ahead(
        instance: *mut Instance, desc: *const CompileDesc, out: *mut *mut Executable, error: *mut ErrorDetail
    ) -> Status;
}

per_slot_functions! {
    get_extension(slot; instance: *mut Instance, id: u32, min_revision: u32) -> *const c_void =
        books(slot, null(), null(), |books| {
            // SAFETY: B6: the arguments are passed on unchanged; the host guarantees that `instance` is alive.
            unsafe { books.get_extension(instance, id, min_revision) }
        });
    done(slot; arg: *mut c_void, status: Status) = books(slot, (), (), |books| {
        // SAFETY: B16: the plugin passes the argument that it was given, a number; unknown numbers are refused.
        unsafe { books.done(arg, status) }
    });
    chunk(slot; arg: *mut c_void, begin: u64, end: u64, n: u32) -> Status =
        books(slot, DEVBAY_STATUS_INVALID, DEVBAY_STATUS_INTERNAL, |books| {
            // SAFETY: B2: the host passes the argument of a loop, a number; unknown numbers are refused.
            unsafe { books.chunk(arg, begin, end, n) }
        });
    log(slot; ctx: *mut c_void, level: u32, text: Str) = books(slot, (), (), |books| {
        // SAFETY: B2, B5: the plugin passes its context, a number, and a text that it keeps for the call.
        unsafe { books.log(ctx, level, text) }
    });
    parallel_for(
        slot; ctx: *mut c_void, n: u64, grain: u64, body: Option<ChunkFn>, arg: *mut c_void
    ) -> Status = books(slot, DEVBAY_STATUS_INVALID, DEVBAY_STATUS_INTERNAL, |books| {
        // SAFETY: B2: the plugin passes its context, a number, and a body with its argument, alive until the loop ends.
        unsafe { books.parallel_for(ctx, n, grain, body, arg) }
    });
    config(slot; ctx: *mut c_void, key: Str, out: *mut Str) -> Status =
        books(slot, DEVBAY_STATUS_INVALID, DEVBAY_STATUS_INTERNAL, |books| {
            // SAFETY: B2, B5: the plugin passes its context, a number, and a text and a place that it keeps for the
            // call.
            unsafe { books.config(ctx, key, out) }
        });
    trace(slot; ctx: *mut c_void, event: *const TraceEvent) = books(slot, (), (), |books| {
        // SAFETY: B2, B4: the plugin passes its context, a number, and a struct that it keeps for the call.
        unsafe { books.trace(ctx, event) }
    });
    now_ns(slot; ctx: *mut c_void) -> u64 = books(slot, 0, 0, |books| books.now_ns(ctx));
    host_extension(slot; ctx: *mut c_void, _id: u32, _min_revision: u32) -> *const c_void =
        books(slot, null(), null(), |books| books.host_extension(ctx));
    // The entry of the plugin in the slot.
    query(slot;) -> *const PluginInfo = books(slot, null(), null(), |books| books.info());
}

/// The functions of a slot.
struct Tables<const SLOT: usize>;

impl<const SLOT: usize> Tables<SLOT> {
    const PLUGIN: PluginTable = PluginTable {
        struct_size: size_of::<PluginTable>() as u32,
        reserved: 0,
        create: Some(create::<SLOT>),
        destroy: Some(destroy::<SLOT>),
        devices: Some(devices::<SLOT>),
        buffer_alloc: Some(buffer_alloc::<SLOT>),
        buffer_free: Some(buffer_free::<SLOT>),
        stream_create: Some(stream_create::<SLOT>),
        stream_destroy: Some(stream_destroy::<SLOT>),
        copy: Some(copy::<SLOT>),
        stream_signal: Some(stream_signal::<SLOT>),
        stream_reached: Some(stream_reached::<SLOT>),
        prepare: Some(prepare::<SLOT>),
        unprepare: Some(unprepare::<SLOT>),
        get_extension: Some(get_extension::<SLOT>),
        stream_wait: Some(stream_wait::<SLOT>),
        stream_on_reached: Some(stream_on_reached::<SLOT>),
        stream_host_wait: Some(stream_host_wait::<SLOT>),
        stream_flush: Some(stream_flush::<SLOT>),
        stream_error: Some(stream_error::<SLOT>),
        kernel_cost: Some(kernel_cost::<SLOT>),
        pack: Some(pack::<SLOT>),
        memory_info: Some(memory_info::<SLOT>),
        kernel_shape: Some(kernel_shape::<SLOT>),
        device_kernels: Some(device_kernels::<SLOT>),
    };
    const SERVICES: HostApi = HostApi {
        struct_size: size_of::<HostApi>() as u32,
        n_slots: 0,
        ctx: std::ptr::null_mut(),
        log: Some(log::<SLOT>),
        parallel_for: Some(parallel_for::<SLOT>),
        config: Some(config::<SLOT>),
        trace: Some(trace::<SLOT>),
        get_extension: Some(host_extension::<SLOT>),
        now_ns: Some(now_ns::<SLOT>),
    };
    const COMPILE: CompileTable = CompileTable {
        struct_size: size_of::<CompileTable>() as u32,
        reserved: 0,
        formats: Some(formats::<SLOT>),
        compile: Some(compile_program::<SLOT>),
        executable_info: Some(executable_info::<SLOT>),
        execute: Some(execute::<SLOT>),
        executable_free: Some(executable_free::<SLOT>),
        claim: Some(claim::<SLOT>),
        blob: Some(blob::<SLOT>),
        validate: Some(validate::<SLOT>),
        load: Some(load::<SLOT>),
        compile_ahead: Some(compile_ahead::<SLOT>),
    };
    const INTEROP: InteropTable = InteropTable {
        struct_size: size_of::<InteropTable>() as u32,
        reserved: 0,
        dlpack_device: Some(dlpack_device::<SLOT>),
        buffer_import: Some(buffer_import::<SLOT>),
        buffer_export: Some(buffer_export::<SLOT>),
        stream_import: Some(stream_import::<SLOT>),
        stream_export: Some(stream_export::<SLOT>),
    };
    const REPLAY: ReplayTable = ReplayTable {
        struct_size: size_of::<ReplayTable>() as u32,
        reserved: 0,
        record_begin: Some(record_begin::<SLOT>),
        record_end: Some(record_end::<SLOT>),
        replay: Some(replay_recording::<SLOT>),
        recording_free: Some(recording_free::<SLOT>),
    };
    const FAULT: FaultTable = FaultTable {
        struct_size: size_of::<FaultTable>() as u32,
        reserved: 0,
        stream_fail: Some(stream_fail::<SLOT>),
        device_lose: Some(device_lose::<SLOT>),
    };
    const LAUNCH: LaunchFn = launch::<SLOT>;
    const DONE: DoneFn = done::<SLOT>;
    const CHUNK: ChunkFn = chunk::<SLOT>;
    const QUERY: QueryFn = query::<SLOT>;
}

/// All functions of the plugin's table, by slot.
static PLUGIN: [PluginTable; N_SLOTS] = per_slot!(Tables::PLUGIN);
/// All functions of the host's services, by slot.
pub(super) static SERVICES: [HostApi; N_SLOTS] = per_slot!(Tables::SERVICES);
/// All functions of the extension that compiles, by slot.
static COMPILE: [CompileTable; N_SLOTS] = per_slot!(Tables::COMPILE);
/// All functions of the extension for native memory and streams, by slot.
static INTEROP: [InteropTable; N_SLOTS] = per_slot!(Tables::INTEROP);
/// All functions of the extension that records, by slot.
static REPLAY: [ReplayTable; N_SLOTS] = per_slot!(Tables::REPLAY);
/// All functions of the extension that makes things fail, by slot.
static FAULT: [FaultTable; N_SLOTS] = per_slot!(Tables::FAULT);
/// Launch functions, by slot.
pub(super) static LAUNCH: [LaunchFn; N_SLOTS] = per_slot!(Tables::LAUNCH);
/// Callbacks, by slot.
pub(super) static DONE: [DoneFn; N_SLOTS] = per_slot!(Tables::DONE);
/// Functions that run a chunk, by slot.
pub(super) static CHUNK: [ChunkFn; N_SLOTS] = per_slot!(Tables::CHUNK);
/// The entries, by slot.
pub(super) static QUERY: [QueryFn; N_SLOTS] = per_slot!(Tables::QUERY);

/// Builds a table with the layer's functions, but only those that the plugin has: the host emulates missing ones.
macro_rules! in_place_of {
    ($($function:ident: $table:ident of $own:ident = $($name:ident)*;)*) => {$(
        /// Returns the table that replaces this one in a slot.
        pub(super) fn $function(slot: usize, next: &$table) -> $table {
            let own = &$own[slot];
            $table {
                struct_size: own.struct_size,
                reserved: 0,
                $($name: next.$name.and(own.$name),)*
            }
        }
    )*};
}

in_place_of! {
    in_place_of: PluginTable of PLUGIN =
        create destroy devices buffer_alloc buffer_free stream_create stream_destroy copy stream_signal
        stream_reached prepare unprepare get_extension stream_wait stream_on_reached stream_host_wait
        stream_flush stream_error kernel_cost pack memory_info kernel_shape device_kernels;
    compile_in_place_of: CompileTable of COMPILE =
        formats compile executable_info execute executable_free claim blob validate load compile_ahead;
    interop_in_place_of: InteropTable of INTEROP =
        dlpack_device buffer_import buffer_export stream_import stream_export;
    replay_in_place_of: ReplayTable of REPLAY = record_begin record_end replay recording_free;
    fault_in_place_of: FaultTable of FAULT = stream_fail device_lose;
}
