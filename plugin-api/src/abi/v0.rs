//! Version 0 of the devbay plugin ABI: every type that crosses the boundary, in the order in which a plugin
//! meets them. It holds no logic.
//!
//! This file is the one definition of the ABI. `cargo xtask header` generates `include/devbay_plugin.h` from
//! it, and reads the `Threads:`, `Order:`, `Owns:`, `Errors:` and `Since:` lines of the table's functions
//! into `tables.rs`. Read it with the rules (B1 to B30, listed in `lib.rs`) at hand. Plugins and hosts of
//! every released version are tested against this file (B8).
//!
//! There are two kinds of struct (B4). *Frozen* structs have no size field, may be embedded and never change
//! within a major. *Growable* structs start with `struct_size`, travel by pointer only, and gain fields at
//! their end.
//!
//! # Rules that hold everywhere
//!
//! Functions. Each function states its threading class:
//! - `control`: one call at a time, with no other function of the instance running;
//! - `any`: any thread, including concurrent calls;
//! - `one at a time per stream`: any thread; the host never overlaps calls on a stream.
//!
//! Functions that may block are marked `may block`; every other call returns within milliseconds. Besides the
//! errors it lists, a function that returns a status may return OUT_OF_MEMORY, INTERNAL, DEVICE_LOST,
//! PANICKED, UNKNOWN, and INVALID for an argument that breaks this header. It never reports a success that
//! did not happen. A failed call has written no result, except that it may have set one to zero.
//!
//! Memory. The side that creates a struct zeroes it: in descriptions and results, every field that is not
//! filled in is zero, including reserved fields. Readers ignore reserved fields. The content of a buffer is
//! undefined until it is written. Numbers in buffers, constants and packed constants are little-endian. A
//! list has at most 2^20 elements, and a text at most 2^24 bytes; the byte lists that `blob` returns have no
//! such limit.
//!
//! The process. The process belongs to the application. A plugin does not change the process's signal
//! handlers, environment, locale, working directory, standard streams, resource limits or floating-point
//! control. It does not write to the standard streams (use `HostApi::log`) or read standard input. It does
//! not end the process, fork, or start a process that outlives the instance. In a forked child, no function
//! may be called until the child has loaded the library again itself. Environment variables that a driver
//! reads belong to the user.
//!
//! Trust. A plugin is trusted code with the rights of the process. Probing it first in a child process finds
//! crashes and hangs; it is not a sandbox. Models and inputs are not trusted. Attributes, shapes, constants,
//! buffer contents, packed constants and blobs may have any value that their types allow; the worst that a
//! bad value may cause is an error.
//!
//! Unknown values. A host or a plugin that meets an unknown value handles it as follows:
//! - a status: treats it as UNKNOWN;
//! - a device kind: treats it as OTHER;
//! - a memory space kind: uses the space according to its flags;
//! - a threading class: treats it as SERIALISED;
//! - a log level: treats it as INFO;
//! - a flag in the lower half of a 64-bit `flags` field, or in a 32-bit one: ignores it;
//! - a flag in the upper half: leaves out the item that has it;
//! - a dtype: refuses the item that has it with UNSUPPORTED; a kernel's type variable drops it;
//! - an attribute's kind or name: a kernel returns UNSUPPORTED, a compiler claims no such node;
//! - numerics: ignores a permission, and returns UNSUPPORTED for a demand;
//! - a memory usage, or a stream's kind or priority: ignores it, because they are hints;
//! - a kind of copy or of native handle: returns UNSUPPORTED;
//! - an answer of `validate`: treats it as UNSUPPORTED;
//! - an option: returns INVALID, unless its key begins with `devbay.`; then it ignores the option;
//! - a setting of the host: returns NOT_FOUND;
//! - an extension: returns NULL;
//! - a profile: ignores it;
//! - a domain or an op: has no kernel for it.

use core::ffi::{c_char, c_void};

/// Major version of the ABI that this header describes: part of the entry's name (B1). 0 until the ABI is
/// frozen.
pub const DEVBAY_ABI_MAJOR: u32 = 0;
/// Minor version of the ABI that this header describes: the candidate for 1.0.
pub const DEVBAY_ABI_MINOR: u32 = 9;
/// Oldest minor whose plugins and hosts work with this one. Minors before 0.9 do not: flags have changed
/// meaning.
pub const DEVBAY_ABI_MINOR_MIN: u32 = 9;

// ---------------------------------------------------------------------------------------------------
// Extensible name spaces
// ---------------------------------------------------------------------------------------------------

/// Bits of a 64-bit `flags` field that must be understood: the upper half. If a plugin sets such a bit and
/// the host does not know it, the host leaves out the item described: a kernel, a memory space, a device, or
/// the plugin (B5). An unknown bit of the lower half is treated as 0.
pub const DEVBAY_FLAGS_REQUIRED: u64 = 0xffff_ffff_0000_0000;

/// First vendor number in every 32-bit name space: statuses, kinds of devices, memory spaces, native handles
/// and copies, log levels, extensions. Vendor number `n` of `plugin-api/vendors.toml` owns the 65,536 numbers
/// from `DEVBAY_VENDOR_FIRST + n * 65536` on. Numbers below DEVBAY_VENDOR_FIRST belong to this header.
pub const DEVBAY_VENDOR_FIRST: u32 = 0x4000_0000;
/// First number for experiments, which have no meaning outside them. A feature that becomes stable gets
/// another number.
pub const DEVBAY_EXPERIMENTAL_FIRST: u32 = 0x7000_0000;

/// Compiles programs and graphs: `CompileTable`, provided by the plugin.
pub const DEVBAY_EXTENSION_COMPILE: u32 = 1;
/// Wraps and exports native memory and streams: `InteropTable`, provided by the plugin.
pub const DEVBAY_EXTENSION_INTEROP: u32 = 2;
/// Records work and replays it: `ReplayTable`, provided by the plugin.
pub const DEVBAY_EXTENSION_REPLAY: u32 = 3;
/// Reserved: maps buffers of devices without addresses into the host's memory, and unmaps them.
pub const DEVBAY_EXTENSION_MAP: u32 = 4;
/// Reserved: counters and times of a device per launch, on the host's clock.
pub const DEVBAY_EXTENSION_PROFILE: u32 = 5;
/// Reserved: bandwidth and reachability between devices.
pub const DEVBAY_EXTENSION_LINKS: u32 = 6;
/// Makes streams fail and devices be lost on request, for conformance runs: `FaultTable`, provided by the
/// plugin.
pub const DEVBAY_EXTENSION_FAULT: u32 = 7;
/// Reserved: groups of devices, reductions over them, and programs that span several devices.
pub const DEVBAY_EXTENSION_COLLECTIVE: u32 = 8;
/// Reserved: memory and semaphores of other processes and APIs, by file descriptor, dma-buf or similar.
pub const DEVBAY_EXTENSION_EXTERNAL: u32 = 9;
/// Reserved: memory, load, power and temperature of a device, and its reset.
pub const DEVBAY_EXTENSION_TELEMETRY: u32 = 10;
/// Reserved: kernels that an application supplies as source or binary. Their indices begin at 2^31.
pub const DEVBAY_EXTENSION_KERNEL_SOURCE: u32 = 11;
/// Reserved: state that outlives a run and loops that run on the device.
pub const DEVBAY_EXTENSION_STATE: u32 = 12;
/// Reserved: blocked layouts that kernels pass to each other.
pub const DEVBAY_EXTENSION_LAYOUT: u32 = 13;
/// Reserved: ops that the catalogue gains within a minor, for older plugins.
pub const DEVBAY_EXTENSION_CATALOGUE: u32 = 14;
/// Reserved: limits per session on memory, time and streams.
pub const DEVBAY_EXTENSION_TENANT: u32 = 15;
/// Reserved, provided by the host: events that a plugin reports, such as devices that come and go, or low
/// memory.
pub const DEVBAY_EXTENSION_EVENTS: u32 = 256;
/// Reserved, provided by the host: key-value pairs that the processes of one job share.
pub const DEVBAY_EXTENSION_KEY_VALUE: u32 = 257;
/// Reserved, provided by the host: a keyed store for compiled artifacts.
pub const DEVBAY_EXTENSION_CACHE: u32 = 258;

/// Revision of `CompileTable` that this header describes.
pub const DEVBAY_COMPILE_REVISION: u32 = 1;
/// Revision of `InteropTable` that this header describes.
pub const DEVBAY_INTEROP_REVISION: u32 = 1;
/// Revision of `ReplayTable` that this header describes.
pub const DEVBAY_REPLAY_REVISION: u32 = 1;
/// Revision of `FaultTable` that this header describes.
pub const DEVBAY_FAULT_REVISION: u32 = 1;

// ---------------------------------------------------------------------------------------------------
// Status codes (B18). Unknown codes count as UNKNOWN.
// ---------------------------------------------------------------------------------------------------

/// Result of a call: 0 is success, every other value names a kind of failure (B18).
pub type Status = i32;

/// The call succeeded.
pub const DEVBAY_STATUS_OK: Status = 0;
/// The caller gave up; the enqueued work may or may not have run.
pub const DEVBAY_STATUS_CANCELLED: Status = 1;
/// A failure without a better name.
pub const DEVBAY_STATUS_UNKNOWN: Status = 2;
/// An argument breaks a rule of this header; nothing happened.
pub const DEVBAY_STATUS_INVALID: Status = 3;
/// A time limit passed; the work continues.
pub const DEVBAY_STATUS_TIMEOUT: Status = 4;
/// A name, file or device does not exist.
pub const DEVBAY_STATUS_NOT_FOUND: Status = 5;
/// Not enough memory of the kind asked for; nothing was allocated.
pub const DEVBAY_STATUS_OUT_OF_MEMORY: Status = 8;
/// The object is not in a state in which this call is legal.
pub const DEVBAY_STATUS_FAILED_PRECONDITION: Status = 9;
/// Work that this call depends on failed first.
pub const DEVBAY_STATUS_ABORTED: Status = 10;
/// The plugin does not support this op variant, dtype, shape, function or option.
pub const DEVBAY_STATUS_UNSUPPORTED: Status = 12;
/// A bug in the plugin, found by the plugin. `prepare`, `kernel_cost`, `kernel_shape`, `pack` and a launch
/// also return it after they catch a panic or exception that left nothing running or half done. Only that
/// call failed; the host keeps calling the plugin (B19).
pub const DEVBAY_STATUS_INTERNAL: Status = 13;
/// The driver or device is not available now, and may be later.
pub const DEVBAY_STATUS_UNAVAILABLE: Status = 14;
/// Stored data is damaged.
pub const DEVBAY_STATUS_DATA_LOSS: Status = 15;
/// The device is lost: every stream on it fails, and only free, destroy and `stream_error` are legal (B13).
pub const DEVBAY_STATUS_DEVICE_LOST: Status = 64;
/// The plugin's code panicked or threw, and its work may be half done. The host asks `stream_error` for the
/// message, never calls the plugin again, and leaks its objects (B19). If nothing was left half done, the
/// status is INTERNAL.
pub const DEVBAY_STATUS_PANICKED: Status = 65;

// ---------------------------------------------------------------------------------------------------
// Opaque objects, created and freed by the plugin (B9).
// ---------------------------------------------------------------------------------------------------

/// One use of the plugin; owns all of its state. Several instances may exist at once. Opaque.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[repr(C)]
pub struct Instance {
    _private: [u8; 0],
}

/// One device that the plugin offers; lives as long as its instance. Opaque.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[repr(C)]
pub struct Device {
    _private: [u8; 0],
}

/// An allocation in one memory space of a device. Opaque.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[repr(C)]
pub struct Buffer {
    _private: [u8; 0],
}

/// An in-order queue of work on a device, with a timeline (B12). Opaque.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[repr(C)]
pub struct Stream {
    _private: [u8; 0],
}

/// A compiled program, ready to run (B23). Opaque; plugin-owned.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[repr(C)]
pub struct Executable {
    _private: [u8; 0],
}

/// Launches that a stream recorded, to be replayed with one call (B22). Opaque; plugin-owned.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[repr(C)]
pub struct Recording {
    _private: [u8; 0],
}

// ---------------------------------------------------------------------------------------------------
// Frozen types: no size field, embedded by value, unchanged within the major.
// ---------------------------------------------------------------------------------------------------

/// UTF-8 text, not terminated (B5). Borrowed for the call unless its field says otherwise. Frozen.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Str {
    /// First byte; NULL if `len` is 0.
    pub ptr: *const c_char,
    /// Length in bytes.
    pub len: u64,
}

/// An array that one side creates and the other reads (B5). Frozen.
///
/// The creator writes the stride, so that elements can grow: a reader steps by `stride` and reads only the
/// part of an element that it knows. Elements of a growable type also have their own `struct_size`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct List {
    /// First element; NULL if `len` is 0.
    pub ptr: *const c_void,
    /// Number of elements.
    pub len: u64,
    /// Distance between elements in bytes.
    pub stride: u64,
}

/// Element type, with DLPack's codes (dlpack.h, DLDataType). Frozen.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DType {
    /// One of DEVBAY_DTYPE_*.
    pub code: u8,
    /// Bits per element. Elements of fewer than 8 bits are packed, low bits first, and have no strides.
    pub bits: u8,
    /// Always 1 today.
    pub lanes: u16,
}

/// Signed integer.
pub const DEVBAY_DTYPE_INT: u8 = 0;
/// Unsigned integer.
pub const DEVBAY_DTYPE_UINT: u8 = 1;
/// IEEE 754 binary floating point.
pub const DEVBAY_DTYPE_FLOAT: u8 = 2;
/// bfloat16.
pub const DEVBAY_DTYPE_BFLOAT: u8 = 4;
/// Complex number, real part then imaginary part; `bits` counts both.
pub const DEVBAY_DTYPE_COMPLEX: u8 = 5;
/// Boolean in 8 bits: 0 or 1.
pub const DEVBAY_DTYPE_BOOL: u8 = 6;
/// 8-bit float, 4 exponent bits, 3 mantissa bits: no infinity, all ones are NaN. Since 0.2.
pub const DEVBAY_DTYPE_FLOAT8_E4M3FN: u8 = 10;
/// 8-bit float, 4 exponent bits, 3 mantissa bits: no infinity; the code of -0 is NaN. Since 0.2.
pub const DEVBAY_DTYPE_FLOAT8_E4M3FNUZ: u8 = 11;
/// 8-bit float, 5 exponent bits, 2 mantissa bits: infinities and NaN as in IEEE 754. Since 0.2.
pub const DEVBAY_DTYPE_FLOAT8_E5M2: u8 = 12;
/// 8-bit float, 5 exponent bits, 2 mantissa bits: no infinity; the code of -0 is NaN. Since 0.2.
pub const DEVBAY_DTYPE_FLOAT8_E5M2FNUZ: u8 = 13;
/// 8-bit power of two, 8 exponent bits: no sign and no zero, all ones are NaN. Since 0.2.
pub const DEVBAY_DTYPE_FLOAT8_E8M0FNU: u8 = 14;
/// 4-bit float, 2 exponent bits, 1 mantissa bit: no infinity and no NaN. Since 0.2.
pub const DEVBAY_DTYPE_FLOAT4_E2M1FN: u8 = 17;

/// Byte range that a launch or copy works on (B10). Frozen: two of them fit a cache line, and each launch
/// reads them.
///
/// All zero means that an optional operand is absent. An operand that is present but empty has a `length` of
/// 0, and `prepare` was told so. Handles never leave the plugin instance that created them.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BufferRef {
    /// The allocation; NULL for host memory, which is passed only to devices with DEVBAY_DEVICE_HOST_REFS.
    pub buffer: *mut Buffer,
    /// Address of the first byte, `base + offset`, if the allocation has a base; else 0. Devices without
    /// pointers use `buffer` and `offset`.
    pub addr: u64,
    /// First byte within the allocation.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// A setting passed to `create`. Frozen.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KeyValue {
    /// Name of the option, without the plugin's name.
    pub key: Str,
    /// Its value, as text.
    pub value: Str,
}

/// Offset and size of one field as compiled into the plugin (B30). Frozen.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LayoutField {
    /// Name of the struct in this header.
    pub struct_name: Str,
    /// Name of the field; empty for the struct as a whole.
    pub field_name: Str,
    /// Offset in bytes.
    pub offset: u32,
    /// Size in bytes.
    pub size: u32,
}

// ---------------------------------------------------------------------------------------------------
// Errors
// ---------------------------------------------------------------------------------------------------

/// Error report of a function that may fail (B18). Growable; the caller owns all of it.
///
/// May be NULL in any call. Functions off the launch path fill it on failure; on success they leave it
/// unchanged.
///
/// Required up to `text_len`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ErrorDetail {
    /// Size of this struct as the caller knows it.
    pub struct_size: u32,
    /// The status that the text belongs to.
    pub status: Status,
    /// The caller's buffer for UTF-8 text in lower case. The text says what was expected and what was found.
    pub text: *mut c_char,
    /// Size of that buffer in bytes.
    pub text_capacity: u64,
    /// Length of the whole text. Text beyond the capacity is cut at a character boundary.
    pub text_len: u64,
    /// The driver's own error code, 0 if none.
    pub native_code: i64,
}

// ---------------------------------------------------------------------------------------------------
// Host services (B2)
// ---------------------------------------------------------------------------------------------------

/// Message for debugging.
pub const DEVBAY_LOG_DEBUG: u32 = 0;
/// Message of general interest.
pub const DEVBAY_LOG_INFO: u32 = 1;
/// Something works less well than it could.
pub const DEVBAY_LOG_WARN: u32 = 2;
/// Something failed.
pub const DEVBAY_LOG_ERROR: u32 = 3;

/// Reports, exactly once, that a point on a stream was reached or has failed (B16).
///
/// May be called inline or from one of the plugin's threads; the plugin holds no lock while it calls. The
/// callee calls no function of any plugin, not even one that enqueues. It records the report and wakes the
/// waiting threads. It does not block or unwind.
pub type DoneFn = unsafe extern "C" fn(arg: *mut c_void, status: Status);

/// Body of a parallel loop: processes `begin..end`, and does not unwind.
///
/// `slot` is below `HostApi::n_slots` and belongs to this chunk while it runs, so that scratch memory can be
/// divided by slot. A body calls no function of the host except `log` and `parallel_for`.
pub type ChunkFn = unsafe extern "C" fn(arg: *mut c_void, begin: u64, end: u64, slot: u32) -> Status;

/// One span on the host's timeline. Growable; the plugin owns it for the call.
///
/// Required up to `end_ns`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TraceEvent {
    /// Size of this struct as the plugin knows it.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Name of the work; borrowed for the call.
    pub name: Str,
    /// Where the work ran: a stream or engine of the device; borrowed for the call.
    pub track: Str,
    /// Begin, in nanoseconds of the host's clock (`HostApi::now_ns`).
    pub begin_ns: u64,
    /// End on the same clock.
    pub end_ns: u64,
}

/// Services of the host (B2). Growable; valid from `create` until `destroy` returns.
///
/// Every function may be called from any thread, and none unwinds.
///
/// Required up to `now_ns`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HostApi {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// Number of slots that `parallel_for` assigns; never changes.
    pub n_slots: u32,
    /// First argument of every function below.
    pub ctx: *mut c_void,
    /// Passes a message to the application. Never blocks for long. Since: 0.1
    pub log: Option<unsafe extern "C" fn(ctx: *mut c_void, level: u32, text: Str)>,
    /// Runs `body` over `0..n` in chunks of at most `grain`, on the host's threads and the calling thread.
    /// Returns when all chunks are done: OK, or the first non-zero status that a body returned.
    ///
    /// Chunk boundaries depend only on `n` and `grain`, so results do not depend on the number of threads.
    /// Every chunk begins at a multiple of `grain`. Calls may be nested. While it waits, the calling thread
    /// runs only chunks of this call or of calls nested in it.
    ///
    /// Returns CANCELLED if the run that the calling thread works for is to end. Chunks that have begun then
    /// finish; the others never begin. The caller returns CANCELLED promptly, and its outputs are undefined.
    /// A loop with `n` 0 checks whether the run continues: it returns OK or CANCELLED. Work that takes long
    /// without a loop, or within one chunk, makes this check about every millisecond; a body may make it too.
    /// Loading counts as a run: `prepare`, `pack` and the compiling functions may check on the thread that
    /// called them, and return CANCELLED.
    /// Since: 0.1
    #[cfg_attr(feature = "abi-stable", sabi(unsafe_opaque_field))]
    pub parallel_for: Option<
        unsafe extern "C" fn(
            ctx: *mut c_void,
            n: u64,
            grain: u64,
            body: Option<ChunkFn>,
            arg: *mut c_void,
        ) -> Status,
    >,
    /// Looks up a setting of the host, such as `cache_dir`. On success `out` is borrowed until `destroy`.
    /// Returns NOT_FOUND for an unknown key. Since: 0.1
    pub config: Option<unsafe extern "C" fn(ctx: *mut c_void, key: Str, out: *mut Str) -> Status>,
    /// Adds a span to the timeline; NULL if no timeline is recorded. Since: 0.1
    pub trace: Option<unsafe extern "C" fn(ctx: *mut c_void, event: *const TraceEvent)>,
    /// Returns the host's side of an extension, or NULL (B6). Borrowed until `destroy`. Since: 0.1
    pub get_extension:
        Option<unsafe extern "C" fn(ctx: *mut c_void, id: u32, min_revision: u32) -> *const c_void>,
    /// Returns the time on the clock of the host's timeline, in nanoseconds. It never goes back, and its zero
    /// is unspecified. On Unix it is `CLOCK_MONOTONIC`. Since: 0.9
    pub now_ns: Option<unsafe extern "C" fn(ctx: *mut c_void) -> u64>,
}

/// Arguments of `create`. Growable; the host owns it for the call, and `host` until `destroy` returns.
///
/// Required up to `options`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CreateDesc {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// The minor that both sides agreed on (B3); it decides which codes and behaviour may be used.
    pub abi_minor: u32,
    /// Services of the host.
    pub host: *const HostApi,
    /// Settings for this plugin, a list of `KeyValue` with unique keys. A plugin refuses an unknown key or
    /// value with INVALID and names it. Keys that begin with `devbay.` belong to the host and apply to
    /// plugins of every vendor: a plugin ignores the ones that it does not know, and refuses a value that it
    /// cannot honour.
    ///
    /// `devbay.memory_limit`: a decimal number, the most bytes that the buffers of one memory space of a
    /// device may have together. An allocation beyond it returns OUT_OF_MEMORY, and `memory_info` reports how
    /// much of it is left. Since: 0.9
    pub options: List,
}

// ---------------------------------------------------------------------------------------------------
// Devices and memory
// ---------------------------------------------------------------------------------------------------

/// A device of a kind not listed here.
pub const DEVBAY_DEVICE_KIND_OTHER: u32 = 0;
/// General-purpose processor.
pub const DEVBAY_DEVICE_KIND_CPU: u32 = 1;
/// Graphics processor.
pub const DEVBAY_DEVICE_KIND_GPU: u32 = 2;
/// Neural processor.
pub const DEVBAY_DEVICE_KIND_NPU: u32 = 3;
/// Tensor processor.
pub const DEVBAY_DEVICE_KIND_TPU: u32 = 4;
/// Signal processor.
pub const DEVBAY_DEVICE_KIND_DSP: u32 = 5;
/// Reconfigurable logic.
pub const DEVBAY_DEVICE_KIND_FPGA: u32 = 6;

/// Work is complete when the call that enqueues it returns (B14). Such a device has no timeline: of the
/// `stream_*` functions, the host calls only create, destroy and `stream_error`. Must be understood.
pub const DEVBAY_DEVICE_INLINE: u64 = 0x1_0000_0000;
/// Launch, copy and signal may block on the device; the host calls them from its blocking pool (B14).
pub const DEVBAY_DEVICE_ENQUEUE_MAY_BLOCK: u64 = 2;
/// References may name host memory: `buffer` NULL, `addr` a host address aligned to the element (B10).
pub const DEVBAY_DEVICE_HOST_REFS: u64 = 4;

/// Memory local to the device.
pub const DEVBAY_SPACE_DEVICE: u32 = 1;
/// Host memory that the device accesses directly.
pub const DEVBAY_SPACE_PINNED_HOST: u32 = 2;
/// One memory shared by host and device.
pub const DEVBAY_SPACE_UNIFIED: u32 = 3;

/// `Allocation::base` is an address that the host may read and write while no work uses the buffer.
pub const DEVBAY_SPACE_HOST_VISIBLE: u64 = 1;
/// A buffer cannot be divided: one tensor per buffer, at offset 0 (PJRT). Must be understood.
pub const DEVBAY_SPACE_NO_SUBALLOC: u64 = 0x1_0000_0000;
/// A buffer is written once, as a whole, by one copy, and is never a kernel's output. Must be understood.
pub const DEVBAY_SPACE_WRITE_ONCE: u64 = 0x2_0000_0000;
/// `buffer_alloc` needs the tensor's type. Must be understood.
pub const DEVBAY_SPACE_TYPED: u64 = 0x4_0000_0000;
/// `Allocation::base` is an address in the device's address space.
pub const DEVBAY_SPACE_ADDRESSABLE: u64 = 16;

/// A kind of memory in which a device's buffers can live (B11). Growable; plugin-owned, as its device.
///
/// Required up to `alloc_align`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemorySpace {
    /// Size of this struct as the plugin knows it.
    pub struct_size: u32,
    /// DEVBAY_SPACE_DEVICE, _PINNED_HOST, _UNIFIED or a code that the host does not know.
    pub kind: u32,
    /// Sum of DEVBAY_SPACE_* flags; those of DEVBAY_FLAGS_REQUIRED must be understood.
    pub flags: u64,
    /// Total memory in bytes; 0 if unknown.
    pub bytes_total: u64,
    /// Largest allocation in bytes; 0 for no limit except the total.
    pub alloc_max: u64,
    /// Alignment of every allocation in bytes, a power of two.
    pub alloc_align: u64,
    /// Alignment of a kernel operand's offset in bytes, a power of two.
    pub bind_align: u64,
    /// Largest operand in bytes; 0 for no limit.
    pub bind_max: u64,
    /// Alignment of a copy's offsets in bytes, a power of two.
    pub copy_align: u64,
    /// Granularity of copies in bytes; allocations are padded to it. A copy of another size reads or writes
    /// up to the next multiple, and the extra bytes that it writes are undefined. In host memory a copy
    /// touches only its own size.
    pub copy_granule: u64,
}

/// One device of the plugin. Growable; plugin-owned until `destroy`.
///
/// Required up to `spaces`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceInfo {
    /// Size of this struct as the plugin knows it.
    pub struct_size: u32,
    /// One of DEVBAY_DEVICE_KIND_*.
    pub kind: u32,
    /// The device's handle; unique within the instance and never reused.
    pub handle: *mut Device,
    /// Name that is the same in every run and unique within the plugin: a UUID or a bus path.
    pub id: Str,
    /// Human-readable name: the product.
    pub name: Str,
    /// Sum of DEVBAY_DEVICE_* flags; those of DEVBAY_FLAGS_REQUIRED must be understood.
    pub flags: u64,
    /// Streams that may exist at once; 0 for no limit.
    pub streams_max: u32,
    /// References that one launch may have; 0 for no limit.
    pub refs_max: u32,
    /// Its memory spaces, a list of `MemorySpace`; kernel operands live in the first.
    pub spaces: List,
    /// Identity of the chip: the same under two plugins, different for two chips; all 0 if unknown. Devices
    /// with the same identity share their memory. A PCI device, including an SR-IOV function, has its address
    /// as text: `pci:0000:65:00.0`. A part of a device that shares the address but not the memory (MIG), or a
    /// device not on PCI, has the 16 bytes of its UUID from the vendor's API.
    pub physical_id: [u8; 16],
    /// Underlying driver or library, with its version; may be empty.
    pub driver: Str,
}

/// Kernel operands that live for one run.
pub const DEVBAY_USAGE_TRANSIENT: u32 = 0;
/// Constants, written once and read by many runs.
pub const DEVBAY_USAGE_WEIGHT: u32 = 1;
/// Staging for copies.
pub const DEVBAY_USAGE_STAGING: u32 = 2;

/// Arguments of `buffer_alloc`. Growable; the host owns it for the call.
///
/// Required up to `tensor`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AllocDesc {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// Position in the device's list of spaces.
    pub space_idx: u32,
    /// Size in bytes; 0 is legal and gives a buffer that is never read or written.
    pub size_bytes: u64,
    /// Requested alignment in bytes, a power of two, at least the space's `alloc_align`. It applies to the
    /// address, and is ignored where an allocation has none.
    pub align: u64,
    /// A hint, one of DEVBAY_USAGE_*.
    pub usage: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// The tensor that the buffer will hold, for TYPED spaces; else NULL. Borrowed for the call.
    pub tensor: *const Tensor,
}

/// Result of `buffer_alloc`. Growable; the host owns the struct, the plugin the buffer.
///
/// Required up to `size_bytes`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Allocation {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// The buffer; not NULL on success.
    pub buffer: *mut Buffer,
    /// Its address, or 0 if it has none. The space's flags say whether the address is the host's or the
    /// device's.
    pub base: u64,
    /// Usable bytes, at least the requested size.
    pub size_bytes: u64,
}

// ---------------------------------------------------------------------------------------------------
// Streams and copies
// ---------------------------------------------------------------------------------------------------

/// A stream for kernels.
pub const DEVBAY_STREAM_COMPUTE: u32 = 0;
/// A stream only for copies, meant to overlap with kernels: no launch is enqueued on it.
pub const DEVBAY_STREAM_COPY: u32 = 1;

/// Arguments of `stream_create`. Growable; the host owns it for the call.
///
/// An application's own native stream comes through the interop extension, where a native handle of 0 is a
/// valid stream (B15).
///
/// Required up to `struct_size`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StreamDesc {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// A hint, DEVBAY_STREAM_COMPUTE or _COPY.
    pub kind: u32,
    /// A hint: above 0 is more urgent, below 0 less.
    pub priority: i32,
    /// Reserved, 0.
    pub reserved: u32,
    /// A name for traces; may be empty.
    pub label: Str,
}

/// From `host_src` to `dst`.
pub const DEVBAY_COPY_HOST_TO_BUFFER: u32 = 1;
/// From `src` to `host_dst`.
pub const DEVBAY_COPY_BUFFER_TO_HOST: u32 = 2;
/// From `src` to `dst`, both of this device; the same buffer if the ranges are disjoint.
pub const DEVBAY_COPY_BUFFER_TO_BUFFER: u32 = 3;

/// A copy. Growable; the host owns the struct for the call, and the memory that it names until a point
/// signalled after the copy is reported (B9). Its host spans are the only pointers in asynchronous arguments
/// (B24).
///
/// Required up to `size_bytes`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CopyDesc {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// One of DEVBAY_COPY_*.
    pub kind: u32,
    /// Source, if it is a buffer.
    pub src: BufferRef,
    /// Destination, if it is a buffer.
    pub dst: BufferRef,
    /// Source, if it is host memory.
    pub host_src: *const c_void,
    /// Destination, if it is host memory.
    pub host_dst: *mut c_void,
    /// Size in bytes; 0 is legal and does nothing.
    pub size_bytes: u64,
}

// ---------------------------------------------------------------------------------------------------
// Tensors, attributes and programs, as a plugin sees them
// ---------------------------------------------------------------------------------------------------

/// The operand is absent; the tensor's other fields are meaningless.
pub const DEVBAY_TENSOR_ABSENT: u32 = 1;
/// `constant` holds the value.
pub const DEVBAY_TENSOR_CONSTANT: u32 = 2;

/// Type of one value, and its content if known. Growable; the host owns it for the call.
///
/// Required up to `constant_bytes`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Tensor {
    /// Size of this struct as its creator knows it.
    pub struct_size: u32,
    /// Number of dimensions; 0 is a scalar.
    pub rank: u32,
    /// Element type.
    pub dtype: DType,
    /// Sum of DEVBAY_TENSOR_* flags.
    pub flags: u32,
    /// Extents in elements, outermost first.
    pub shape: *const i64,
    /// Distance between elements per dimension, in elements; NULL for dense row-major order.
    pub strides: *const i64,
    /// The value in dense row-major order, in host memory, little-endian; NULL if not constant.
    pub constant: *const c_void,
    /// Size of `constant` in bytes.
    pub constant_bytes: u64,
}

/// `i` holds the value.
pub const DEVBAY_ATTR_INT: u32 = 1;
/// `f` holds the value.
pub const DEVBAY_ATTR_FLOAT: u32 = 2;
/// `s` holds the value.
pub const DEVBAY_ATTR_STRING: u32 = 3;
/// `list` holds int64_t.
pub const DEVBAY_ATTR_INTS: u32 = 4;
/// `list` holds double.
pub const DEVBAY_ATTR_FLOATS: u32 = 5;
/// `list` holds `Str`.
pub const DEVBAY_ATTR_STRINGS: u32 = 6;
/// `tensor` holds the value.
pub const DEVBAY_ATTR_TENSOR: u32 = 7;
/// `graph` holds the value: the body of a control-flow op or of a fused pattern.
pub const DEVBAY_ATTR_GRAPH: u32 = 8;

/// One attribute of a node. Growable; the host owns it for the call.
///
/// Required up to `graph`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Attr {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// One of DEVBAY_ATTR_*; a kind that the plugin does not know makes `prepare` UNSUPPORTED.
    pub kind: u32,
    /// Name, as the op's specification gives it.
    pub name: Str,
    /// Value of an INT.
    pub i: i64,
    /// Value of a FLOAT.
    pub f: f64,
    /// Value of a STRING.
    pub s: Str,
    /// Values of INTS, FLOATS and STRINGS.
    pub list: List,
    /// Value of a TENSOR.
    pub tensor: *const Tensor,
    /// Value of a GRAPH.
    pub graph: *const GraphView,
}

/// Read-only view of a region or subgraph: plain data, in execution order. Growable; the host owns it for the
/// call.
///
/// Values are numbered by their position in `values`. A value that is neither an input nor made by a node
/// comes from the surrounding graph, or is constant.
///
/// Required up to `outputs`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct GraphView {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// A list of `NodeView`; each node follows the nodes that it depends on.
    pub nodes: List,
    /// A list of `ValueView`.
    pub values: List,
    /// A list of uint32_t: the graph's input values.
    pub inputs: List,
    /// A list of uint32_t: the graph's output values.
    pub outputs: List,
}

/// One node of a `GraphView`. Growable; the host owns it for the call.
///
/// Required up to `outputs`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NodeView {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// Version of the op: the opset in which its current definition appeared.
    pub since_version: u32,
    /// Domain of the op; empty for ONNX's own.
    pub domain: Str,
    /// Name of the op.
    pub op: Str,
    /// Name of the node in the model; may be empty.
    pub name: Str,
    /// A list of `Attr`.
    pub attrs: List,
    /// A list of uint32_t: value numbers, UINT32_MAX for an absent optional input.
    pub inputs: List,
    /// A list of uint32_t, likewise.
    pub outputs: List,
}

/// One value of a `GraphView`. Growable; the host owns it for the call.
///
/// Required up to `tensor`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ValueView {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Name of the value in the model; may be empty.
    pub name: Str,
    /// Its type, and its content if it is constant.
    pub tensor: *const Tensor,
}

// ---------------------------------------------------------------------------------------------------
// Kernels (B20, B21)
// ---------------------------------------------------------------------------------------------------

/// Accepts strided operands; other kernels receive dense data.
pub const DEVBAY_KERNEL_STRIDED: u64 = 2;
/// Gives the same bits in every run.
pub const DEVBAY_KERNEL_DETERMINISTIC: u64 = 4;
/// Output extents depend on data. Outputs are allocated at their upper bound, and one more reference after
/// the outputs receives the true extents as int64_t, one output after the other. Must be understood.
pub const DEVBAY_KERNEL_DATA_SHAPE: u64 = 0x1_0000_0000;

/// The last operand may be repeated.
pub const DEVBAY_VARIADIC: u32 = 0xffff_ffff;

/// A set of dtypes that operands share. Growable; plugin-owned, static.
///
/// Required up to `dtypes`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TypeVar {
    /// Size of this struct as the plugin knows it.
    pub struct_size: u32,
    /// Number of dtypes.
    pub n_dtypes: u32,
    /// The dtypes that the variable allows.
    pub dtypes: *const DType,
}

/// One kernel that the plugin offers (B20). Growable; plugin-owned, static.
///
/// The list is a superset: `prepare` may still return UNSUPPORTED for attributes and shapes.
///
/// Required up to `output_typevars`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelInfo {
    /// Size of this struct as the plugin knows it.
    pub struct_size: u32,
    /// The op version that it implements: the opset in which that definition appeared. A kernel never
    /// receives a node of another version; the host converts the node to that version or places it elsewhere.
    pub since_version: u32,
    /// Domain of the op; empty for ONNX's own.
    pub domain: Str,
    /// Name of the op.
    pub op: Str,
    /// Fewest inputs. These first inputs are required: `prepare` is not called for a node without one of
    /// them. Later inputs may be absent.
    pub n_inputs_min: u32,
    /// Most inputs. DEVBAY_VARIADIC repeats the last one of `input_typevars`; every repeated input is
    /// present.
    pub n_inputs_max: u32,
    /// Fewest outputs, likewise: a launch has memory for each of them.
    pub n_outputs_min: u32,
    /// Most outputs, likewise.
    pub n_outputs_max: u32,
    /// Type variables, a list of `TypeVar`.
    pub typevars: List,
    /// Type variable of each input, a list of uint8_t; repeated inputs share the last one's.
    pub input_typevars: List,
    /// Type variable of each output, likewise.
    pub output_typevars: List,
    /// Above 0 is preferred to other kernels for the same node; below 0 is a last resort.
    pub priority: i32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Sum of DEVBAY_KERNEL_* flags; those of DEVBAY_FLAGS_REQUIRED must be understood.
    pub flags: u64,
    /// Bit i: input i must be known when the node is prepared, and is passed as a constant.
    pub host_value_inputs: u64,
    /// For each output, the input whose memory it may share, a list of int16_t, -1 for none. Both operands
    /// then have the same size. An output overlaps no other operand.
    pub in_place: List,
    /// One human-readable line; may be empty.
    pub doc: Str,
}

/// One kernel of one device (`PluginTable::device_kernels`). Growable; plugin-owned, as the list that
/// contains it. Since: 0.9.
///
/// Required up to `info`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceKernel {
    /// Size of this struct as the plugin knows it.
    pub struct_size: u32,
    /// Number to pass to `prepare`: a position in the plugin's list of kernels, or a number after the list's
    /// last, below 2^31. A number means the same kernel for all devices of the instance.
    pub kernel_idx: u32,
    /// Description of the kernel; NULL for one of the plugin's list.
    pub info: *const KernelInfo,
}

/// No deviation is allowed: results follow the op's specification in the tensors' own precision.
pub const DEVBAY_NUMERICS_STRICT: u64 = 0;
/// Matrix products may round their inputs to TF32.
pub const DEVBAY_NUMERICS_TF32: u64 = 1;
/// Matrix products may round their inputs to f16, with 32-bit sums.
pub const DEVBAY_NUMERICS_F16: u64 = 2;
/// Matrix products may round their inputs to bf16, with 32-bit sums. Since: 0.2.
pub const DEVBAY_NUMERICS_BF16: u64 = 4;

/// Arguments of `prepare`. Growable; the host owns it for the call.
///
/// Required up to `label`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PrepareDesc {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// Position in the plugin's list of kernels, or a number that `device_kernels` gave.
    pub kernel_idx: u32,
    /// The device that the kernel will run on.
    pub device: *mut Device,
    /// Attributes of the node, a list of `Attr`. All belong to the op's definition; those with the default
    /// value may be missing. A kernel that does not read one of them returns UNSUPPORTED, because a newer
    /// host may know a newer definition.
    pub attrs: List,
    /// Types of the inputs, a list of `Tensor`, including absent optional inputs.
    pub inputs: List,
    /// Types of the outputs, likewise.
    pub outputs: List,
    /// Permitted deviations, a sum of DEVBAY_NUMERICS_*. A kernel may use any of them or none, and ignores
    /// bits that it does not know. Bits from 2^32 on are demands; none is defined yet.
    pub numerics: u64,
    /// Name of the node for messages and traces; may be empty.
    pub label: Str,
}

/// Enqueues one kernel (B21). Created by `prepare`. The host adds no check, lock, allocation or clock to the
/// call.
///
/// `refs` holds the inputs, the outputs, the extents if the kernel is DATA_SHAPE, and the workspace if it
/// requested one. `prepare` fixed their number. The array is borrowed for the call only; the memory that it
/// names stays lent until a point signalled after the launch is reported. `dims` is reserved for extents
/// known only at launch, and is NULL.
///
/// Threads: one at a time per stream; the same state from many threads and streams at once.
/// Order: after everything enqueued on the stream before.
/// Errors: an error known now concerns only this launch; an error found later fails the stream (B13). A
/// launch on a failed stream returns the stream's failure.
///
/// Values: input data that the op's definition forbids, such as an index out of range, is INVALID. An inline
/// device reports it as the launch's status; other devices report it there or as the stream's failure from
/// the next point on. `stream_error` names the op and the value. The launch then touches no memory besides
/// its operands, its outputs are undefined, and the device keeps working. Inline devices always had to do
/// this; all devices must since 0.2.
///
/// Cancellation: `HostApi::parallel_for` reports a run that is cancelled or past its deadline; a kernel may
/// also check without a loop. On an inline device, a launch that takes longer than some milliseconds checks
/// and returns CANCELLED; its outputs are then undefined. The check is optional for a device with a timeline:
/// the host enqueues nothing more and waits for the running work. If a kernel does not check, the run ends
/// when the kernel is done.
pub type LaunchFn = unsafe extern "C" fn(
    state: *const c_void,
    stream: *mut Stream,
    refs: *const BufferRef,
    dims: *const i64,
) -> Status;

/// A constant operand that a prepared kernel wants in its own layout. Growable; plugin-owned, as the list
/// that contains it. Since: 0.2.
///
/// The host calls `pack` once for the content and keeps it in its own buffer, shared by all kernels, shapes
/// and sessions. It passes that buffer in place of the constant.
///
/// Required up to `align`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ConstantPack {
    /// Size of this struct as the plugin knows it.
    pub struct_size: u32,
    /// Index of the input.
    pub input_idx: u32,
    /// Complete identity of the layout: one constant under one id always has the same packed bytes, in every
    /// process and on every machine, for one name and version of the plugin. A host may store packed bytes
    /// and pass them to a later process, and they may have been changed meanwhile: a launch stays within its
    /// buffers whatever they contain.
    pub layout_id: u64,
    /// Size of the packed constant in bytes.
    pub size_bytes: u64,
    /// Its alignment in bytes, a power of two.
    pub align: u64,
}

/// Result of `prepare`. Growable; the host owns the struct, the plugin owns the memory that it points to
/// until `unprepare`. Immutable: launches read it from many threads.
///
/// Required up to `state`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Prepared {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Enqueues the kernel; not NULL on success.
    #[cfg_attr(feature = "abi-stable", sabi(unsafe_opaque_field))]
    pub launch: Option<LaunchFn>,
    /// First argument of `launch`.
    pub state: *mut c_void,
    /// Scratch memory that each launch needs, in bytes; 0 for none. It is the last reference, in the
    /// operands' memory space, with undefined content.
    pub workspace_bytes: u64,
    /// Its alignment in bytes, a power of two, or 0.
    pub workspace_align: u64,
    /// Constant operands to pass packed, a list of `ConstantPack`, plugin-owned until `unprepare`. Empty if
    /// the agreed minor is below 2. Since: 0.2.
    pub packs: List,
}

/// Current memory use of one space. Growable; the host owns it. Since: 0.2.
///
/// Required up to `bytes_available`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemoryInfo {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Bytes that this instance has allocated.
    pub bytes_in_use: u64,
    /// Bytes still available to an allocation; not a promise.
    pub bytes_available: u64,
}

/// Estimated cost of one launch, for the planner. Growable; the host owns it.
///
/// Required up to `bytes_written`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelCost {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Arithmetic operations; a multiply-add counts as two.
    pub flops: u64,
    /// Bytes read from memory, counting each operand once.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
}

// ---------------------------------------------------------------------------------------------------
// The functions
// ---------------------------------------------------------------------------------------------------

/// The plugin's functions. Growable; plugin-owned, static.
///
/// The first twelve are required; the others may be NULL, and the host emulates them (B7). Any function may
/// be called with an `error` of NULL. Handles belong to this instance; passing a NULL or foreign handle is a
/// bug in the host, and a plugin may return INVALID. Every function, and every body of a host's loop, leaves
/// the calling thread's floating-point control (rounding, flushing of subnormals, exception masks) unchanged
/// (B17).
///
/// Required up to `unprepare`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PluginTable {
    /// Size of this struct as the plugin knows it.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,

    /// Creates an instance: starts threads, opens the driver. May be called many times.
    ///
    /// Owns: the host owns `*out` and frees it with `destroy`; `desc->host` is lent until then.
    /// Threads: control.
    /// Order: first.
    /// Errors: UNAVAILABLE without a driver, INVALID for an unknown option, UNSUPPORTED for an `abi_minor`
    /// outside the plugin's range. On error `*out` is unchanged.
    /// Since: 0.1, required.
    pub create: Option<
        unsafe extern "C" fn(
            desc: *const CreateDesc,
            out: *mut *mut Instance,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Destroys an instance and joins its threads. Everything created from it has been freed before.
    ///
    /// Owns: takes the instance.
    /// Threads: control.
    /// Order: last; the host's services are no longer valid after it.
    /// Errors: none.
    /// Since: 0.1, required.
    pub destroy: Option<unsafe extern "C" fn(instance: *mut Instance)>,
    /// Lists the devices that are present now, a list of `DeviceInfo`. An empty list is a success.
    ///
    /// A list is a snapshot and never changes; a later call returns another list if devices came or went. A
    /// device that is still present keeps its handle and properties. A device that was lost or removed is not
    /// listed; its handle stays valid until `destroy`, and calls on it return DEVICE_LOST. A device that
    /// returned, even after a reset, is listed with its old id and a new handle. Changes to one device do not
    /// affect the others.
    ///
    /// Owns: the plugin owns the list and the devices until `destroy`. If nothing has changed, the plugin
    /// returns its previous list, so that frequent calls cost almost nothing.
    /// Threads: any.
    /// Order: after `create`.
    /// Errors: UNAVAILABLE with the reason if the driver cannot be queried; devices that the host knows keep
    /// working.
    /// Since: 0.1, required.
    pub devices: Option<
        unsafe extern "C" fn(instance: *mut Instance, out: *mut List, error: *mut ErrorDetail) -> Status,
    >,

    /// Allocates memory with undefined content.
    ///
    /// Owns: the host owns the buffer and frees it with `buffer_free`.
    /// Threads: any.
    /// Order: none.
    /// Errors: OUT_OF_MEMORY; INVALID for a space, alignment or size that the device does not support. On
    /// error `*out` is unchanged or zeroed.
    /// Since: 0.1, required.
    pub buffer_alloc: Option<
        unsafe extern "C" fn(
            device: *mut Device,
            desc: *const AllocDesc,
            out: *mut Allocation,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Frees memory. No work that uses it is in flight: its points have been reported (B9).
    ///
    /// Owns: takes the buffer.
    /// Threads: any.
    /// Order: none.
    /// Errors: none.
    /// Since: 0.1, required.
    pub buffer_free: Option<unsafe extern "C" fn(buffer: *mut Buffer)>,

    /// Creates a stream with nothing enqueued; its value 0 is reached.
    ///
    /// Owns: the host owns the stream and frees it with `stream_destroy`.
    /// Threads: any.
    /// Order: none.
    /// Errors: OUT_OF_MEMORY, FAILED_PRECONDITION beyond `streams_max`, DEVICE_LOST.
    /// Since: 0.1, required.
    pub stream_create: Option<
        unsafe extern "C" fn(
            device: *mut Device,
            desc: *const StreamDesc,
            out: *mut *mut Stream,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Destroys a stream, after completing its enqueued work, signalled or not: the call waits for the work
    /// and for the callbacks. On a failed stream no further work runs. The call waits until the device no
    /// longer touches the enqueued work's memory, and callbacks of points that were not reached report
    /// failure (B24). Once the device is lost, the call makes no driver call that may hang, and returns
    /// within a second. A stream may be destroyed while another one waits for it.
    ///
    /// Owns: takes the stream.
    /// Threads: one at a time per stream.
    /// Order: last on the stream.
    /// Errors: none.
    /// Since: 0.1, required.
    pub stream_destroy: Option<unsafe extern "C" fn(stream: *mut Stream)>,

    /// Enqueues a copy.
    ///
    /// Owns: the memory named in `desc` is lent until a point signalled after the copy is reported.
    /// Threads: one at a time per stream.
    /// Order: after everything enqueued on the stream before.
    /// Errors: INVALID for ranges outside their buffers, overlap or misalignment; a failed stream's failure.
    /// On error nothing is enqueued.
    /// Since: 0.1, required.
    pub copy: Option<unsafe extern "C" fn(stream: *mut Stream, desc: *const CopyDesc) -> Status>,
    /// Enqueues a point. `value` is reached when all earlier work is done and the device will never touch
    /// that work's memory again (B12). If an earlier launch met data that its op forbids, `value` is not
    /// reached and the stream fails with INVALID (B21). Implies a flush. NULL on plugins whose devices are
    /// all inline.
    ///
    /// From this call on, all values up to `value` count as signalled. That includes 0 on every stream, and
    /// values between two signals, which are reached with the later one.
    ///
    /// Owns: nothing.
    /// Threads: one at a time per stream.
    /// Order: values strictly increase.
    /// Errors: INVALID for a value that does not increase: nothing changes, and the next signal covers all
    /// work enqueued before it. A failed stream's failure. On any other failure, everything since the last
    /// successful signal has failed, and the value is never reached.
    /// Since: 0.1, required.
    pub stream_signal: Option<unsafe extern "C" fn(stream: *mut Stream, value: u64) -> Status>,
    /// Writes the last value reached successfully, as cheaply as a load. Never blocks, but may make the
    /// driver progress. Returns the stream's status: once it is a failure, every later point has failed
    /// (B13). NULL on plugins whose devices are all inline.
    ///
    /// Work before a point happens before the report of that point by this function, a callback or a wait.
    /// The thread that receives the report sees the work's writes to host-readable memory, and so does every
    /// thread that it then synchronises with.
    ///
    /// Once this function, a callback or a wait has reported a failure, `copy`, a launch, `stream_wait`,
    /// `stream_signal`, `stream_flush` and a replay on that stream return the failure and enqueue nothing.
    /// Before the report, they may do so.
    ///
    /// Owns: nothing.
    /// Threads: any, never blocks, even while the stream's owner enqueues.
    /// Order: none.
    /// Errors: the stream's sticky failure; INVALID if a run's data was at fault, not the device.
    /// Since: 0.1, required.
    pub stream_reached: Option<unsafe extern "C" fn(stream: *mut Stream, out_value: *mut u64) -> Status>,

    /// Prepares a kernel for given attributes, dtypes, shapes and constants, and checks everything except the
    /// data (B21). A prepared kernel owns no weight-sized memory. NULL on plugins without kernels.
    ///
    /// Owns: the host owns `*out` and frees it with `unprepare`.
    /// Threads: any.
    /// Order: none.
    /// Errors: UNSUPPORTED with the reason: the host tries the next kernel. INVALID for arguments that break
    /// the op's specification. On error `*out` is zero.
    /// Since: 0.1, required.
    pub prepare: Option<
        unsafe extern "C" fn(
            instance: *mut Instance,
            desc: *const PrepareDesc,
            out: *mut Prepared,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Frees the result of `prepare`. No launch of it is in flight. NULL on plugins without kernels.
    ///
    /// Owns: takes `prepared->state`.
    /// Threads: any.
    /// Order: none.
    /// Errors: none.
    /// Since: 0.1, required.
    pub unprepare: Option<unsafe extern "C" fn(instance: *mut Instance, prepared: *mut Prepared)>,

    /// Returns the plugin's side of an extension, or NULL if the plugin does not have it (B6).
    ///
    /// Owns: the plugin owns the table until `destroy`.
    /// Threads: any.
    /// Order: after `create`.
    /// Errors: NULL.
    /// Since: 0.1.
    pub get_extension:
        Option<unsafe extern "C" fn(instance: *mut Instance, id: u32, min_revision: u32) -> *const c_void>,
    /// Makes work enqueued on `stream` after this call run after `other` has reached `value`. `other` belongs
    /// to the same device, and may be `stream` itself, which then has nothing to wait for. Emulated by
    /// holding back later work.
    ///
    /// Owns: nothing. `other` is borrowed for the call, and may be destroyed once the call has returned.
    /// Threads: one at a time per `stream`, any for `other`.
    /// Order: `value` is at most the last value signalled on `other` successfully.
    /// Errors: INVALID for a larger value, with nothing enqueued. If `other` fails before it reaches `value`,
    /// `stream` fails with ABORTED, which this call may already return. A failed `stream`'s failure.
    /// Since: 0.1.
    pub stream_wait:
        Option<unsafe extern "C" fn(stream: *mut Stream, other: *mut Stream, value: u64) -> Status>,
    /// Calls `done` exactly once, when `value` is reached or can no longer be reached, including after
    /// failure, device loss and `stream_destroy` (B16). Calls it immediately if that is already so. Emulated
    /// by polling `stream_reached`.
    ///
    /// Owns: `arg` is lent until `done` is called.
    /// Threads: any.
    /// Order: `value` is at most the last value signalled successfully.
    /// Errors: INVALID for a larger value; then `done` is not called.
    /// Since: 0.1.
    #[cfg_attr(feature = "abi-stable", sabi(unsafe_opaque_field))]
    pub stream_on_reached: Option<
        unsafe extern "C" fn(
            stream: *mut Stream,
            value: u64,
            done: Option<DoneFn>,
            arg: *mut c_void,
        ) -> Status,
    >,
    /// Blocks until `value` is reached, the stream fails or the timeout expires. A `timeout_ns` of 0 checks
    /// without blocking; UINT64_MAX means no limit. Emulated by polling.
    ///
    /// Owns: nothing.
    /// Threads: any, may block.
    /// Order: `value` is at most the last value signalled successfully.
    /// Errors: TIMEOUT; INVALID for a larger value; the stream's failure if it came before `value` was
    /// reached.
    /// Since: 0.1.
    pub stream_host_wait:
        Option<unsafe extern "C" fn(stream: *mut Stream, value: u64, timeout_ns: u64) -> Status>,
    /// Makes the device start the enqueued work, on plugins that batch it (B22): those whose launches wait
    /// for a flush or a signal. A host may call it within a long task, after enough launches to be worth a
    /// submission. A plugin without it starts work at once, or on its own terms.
    ///
    /// Owns: nothing.
    /// Threads: one at a time per stream.
    /// Order: after the enqueued work.
    /// Errors: as `stream_signal`, except INVALID.
    /// Since: 0.1.
    pub stream_flush: Option<unsafe extern "C" fn(stream: *mut Stream) -> Status>,
    /// Writes the detail of the stream's last non-zero status or failure. Inline devices have it too, because
    /// a launch has no error argument.
    ///
    /// Owns: nothing.
    /// Threads: any.
    /// Order: none.
    /// Errors: returns the status whose detail it wrote, or OK if there is none.
    /// Since: 0.1.
    pub stream_error: Option<unsafe extern "C" fn(stream: *mut Stream, error: *mut ErrorDetail) -> Status>,
    /// Estimates the cost of one launch, before `prepare`.
    ///
    /// Owns: nothing.
    /// Threads: any.
    /// Order: none.
    /// Errors: UNSUPPORTED if it cannot estimate.
    /// Since: 0.1.
    pub kernel_cost: Option<
        unsafe extern "C" fn(
            instance: *mut Instance,
            desc: *const PrepareDesc,
            out: *mut KernelCost,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Writes a constant in the layout that a prepared kernel requested.
    ///
    /// Owns: nothing; `src` and `dst` are lent for the call. `dst` is zeroed host memory of the requested
    /// size and alignment.
    /// Threads: any.
    /// Order: between `prepare` and `unprepare`.
    /// Errors: INVALID for an input that was not requested.
    /// Since: 0.2.
    pub pack: Option<
        unsafe extern "C" fn(
            instance: *mut Instance,
            prepared: *const Prepared,
            input_idx: u32,
            src: *const Tensor,
            dst: *mut c_void,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Reports used and available memory. Without it the host knows only the space's `bytes_total`.
    ///
    /// Owns: nothing.
    /// Threads: any.
    /// Order: none.
    /// Errors: INVALID for a space that the device does not have, UNSUPPORTED if the plugin cannot tell.
    /// Since: 0.2.
    pub memory_info: Option<
        unsafe extern "C" fn(
            device: *mut Device,
            space_idx: u32,
            out: *mut MemoryInfo,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Infers the type of one output of an op that ONNX does not define, from the types of its inputs; `desc`
    /// has no outputs. At most `rank_max` extents are written. Without it such an op runs only if the model
    /// states its result types.
    ///
    /// Owns: nothing.
    /// Threads: any.
    /// Order: none.
    /// Errors: UNSUPPORTED for an output that the kernel does not have; INVALID for inputs that do not fit,
    /// or a rank above `rank_max`.
    /// Since: 0.2.
    pub kernel_shape: Option<
        unsafe extern "C" fn(
            instance: *mut Instance,
            desc: *const PrepareDesc,
            output_idx: u32,
            out_dtype: *mut DType,
            out_shape: *mut i64,
            rank_max: u32,
            out_rank: *mut u32,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Lists the kernels of one device, a list of `DeviceKernel` that replaces the plugin's list. It can
    /// leave out kernels that the device cannot run, and add kernels that only this device has or that are
    /// known only once the driver is open. Without it each device has the plugin's list. Called once per
    /// device.
    ///
    /// Owns: the plugin owns the list, and everything it points to, until `destroy`.
    /// Threads: any.
    /// Order: after `devices`.
    /// Errors: the driver's error; the device is then left out.
    /// Since: 0.9.
    pub device_kernels: Option<
        unsafe extern "C" fn(
            instance: *mut Instance,
            device: *mut Device,
            out: *mut List,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
}

/// Memory: an address of the host or the device, called `data` in DLPack.
pub const DEVBAY_NATIVE_ADDRESS: u32 = 1;
/// Memory: a `cl_mem`; `aux` is an offset in bytes.
pub const DEVBAY_NATIVE_OPENCL_MEM: u32 = 2;
/// Memory: a `VkBuffer`; `aux` is an offset in bytes.
pub const DEVBAY_NATIVE_VULKAN_BUFFER: u32 = 3;
/// Memory: a `MTLBuffer`; `aux` is an offset in bytes.
pub const DEVBAY_NATIVE_METAL_BUFFER: u32 = 4;
/// Memory: an `ID3D12Resource`; `aux` is an offset in bytes.
pub const DEVBAY_NATIVE_D3D12_RESOURCE: u32 = 5;
/// Memory: a `PJRT_Buffer`.
pub const DEVBAY_NATIVE_PJRT_BUFFER: u32 = 6;
/// Stream: a `CUstream`; 0 is the default stream.
pub const DEVBAY_NATIVE_CUDA_STREAM: u32 = 64;
/// Stream: a `hipStream_t`; 0 is the default stream.
pub const DEVBAY_NATIVE_HIP_STREAM: u32 = 65;
/// Stream: an in-order `cl_command_queue`.
pub const DEVBAY_NATIVE_OPENCL_QUEUE: u32 = 66;
/// Stream: an immediate `ze_command_list_handle_t`.
pub const DEVBAY_NATIVE_LEVEL_ZERO_LIST: u32 = 67;
/// Stream: a `VkQueue`; `aux` is its family.
pub const DEVBAY_NATIVE_VULKAN_QUEUE: u32 = 68;
/// Stream: a `MTLCommandQueue`.
pub const DEVBAY_NATIVE_METAL_QUEUE: u32 = 69;

/// A handle of a device's native API (B15). Growable; the caller owns the struct for the call. Since: 0.9.
///
/// A non-NULL pointer to this struct means that a handle is given, and `kind` says of which type. A `value`
/// of 0 is a valid handle.
///
/// Required up to `aux`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NativeHandle {
    /// Size of this struct as its owner knows it.
    pub struct_size: u32,
    /// One of DEVBAY_NATIVE_*, or a vendor's.
    pub kind: u32,
    /// The handle.
    pub value: u64,
    /// Additional data that the kind needs; else 0.
    pub aux: u64,
}

/// Arguments of `buffer_import`. Growable; the host owns it for the call. Since: 0.2.
///
/// Required up to `size_bytes`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ImportDesc {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// Position in the device's list of spaces: the space that the memory belongs to.
    pub space_idx: u32,
    /// Native handle of the memory's first byte.
    pub native: *const NativeHandle,
    /// Usable bytes. Copies may read up to the next multiple of the space's `copy_granule`, as in any buffer.
    pub size_bytes: u64,
}

/// Table of the extension that imports and exports native memory and streams, id 2 (B6, B10, B15). Growable;
/// plugin-owned, as long as the instance.
///
/// Required up to `stream_export`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct InteropTable {
    /// Size of this struct as its creator knows it.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Returns DLPack's name for the device of a memory space: `DLDevice`'s device_type and device_id.
    ///
    /// Owns: nothing.
    /// Threads: any.
    /// Order: none.
    /// Errors: INVALID for a space that the device does not have; UNSUPPORTED for one that DLPack has no name
    /// for.
    /// Since: 0.2.
    pub dlpack_device: Option<
        unsafe extern "C" fn(
            device: *mut Device,
            space_idx: u32,
            out_type: *mut i32,
            out_id: *mut i32,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Creates a buffer from memory that the application or another library allocated. The memory keeps its
    /// content.
    ///
    /// Owns: the host owns the buffer and frees it with `buffer_free`, which leaves the memory allocated. The
    /// memory is lent until then.
    /// Threads: any.
    /// Order: writes to the memory from outside the device's streams are complete, or ordered by an imported
    /// native stream.
    /// Errors: INVALID for memory that the plugin knows is not the device's, for memory not aligned to the
    /// space's `bind_align`, and for a space or size that the device does not have; UNSUPPORTED for a kind of
    /// handle that the device does not accept; DEVICE_LOST.
    /// Since: 0.2; handles have a kind since 0.9.
    pub buffer_import: Option<
        unsafe extern "C" fn(
            device: *mut Device,
            desc: *const ImportDesc,
            out: *mut Allocation,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Returns the native handle of a buffer's first byte.
    ///
    /// Owns: nothing; the handle is valid until the buffer is freed.
    /// Threads: any.
    /// Order: none; code that uses the handle natively is responsible for ordering.
    /// Errors: UNSUPPORTED for a buffer without a native handle.
    /// Since: 0.2; handles have a kind since 0.9.
    pub buffer_export: Option<
        unsafe extern "C" fn(
            buffer: *mut Buffer,
            out_native: *mut NativeHandle,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Creates a stream on top of a native one, such as an application's. A value of 0 may be a stream:
    /// CUDA's default stream.
    ///
    /// Owns: the host owns the stream and frees it with `stream_destroy`, which waits for the work enqueued
    /// through it and does not destroy the native stream. The native stream is lent until then.
    /// Threads: any.
    /// Order: work enqueued through the stream and natively runs in the order of the calls.
    /// Errors: UNSUPPORTED on a device without native streams, and for a kind of handle that it does not
    /// accept; INVALID for a handle that the plugin knows is not a stream; as `stream_create`.
    /// Since: 0.2; handles have a kind since 0.9.
    pub stream_import: Option<
        unsafe extern "C" fn(
            device: *mut Device,
            native: *const NativeHandle,
            out: *mut *mut Stream,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Returns the native handle of a stream.
    ///
    /// Owns: nothing; the handle is valid until the stream is destroyed.
    /// Threads: any.
    /// Order: none.
    /// Errors: UNSUPPORTED on a device without native streams.
    /// Since: 0.2; handles have a kind since 0.9.
    pub stream_export: Option<
        unsafe extern "C" fn(
            stream: *mut Stream,
            out_native: *mut NativeHandle,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
}

/// Arguments of `record_begin`. Growable; the host owns it, and the list that it names, for the call. Since:
/// 0.9.
///
/// Required up to `bindings`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RecordDesc {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Memory that a replay may replace, a list of `BufferRef` that do not overlap; may be empty. An operand
    /// of a launch or copy is bound if it lies entirely within one of them, in the same `buffer` or at the
    /// same host addresses.
    pub bindings: List,
}

/// A replay. Growable; the host owns it, and the list that it names, for the call. Since: 0.9.
///
/// Required up to `bindings`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ReplayDesc {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// The recording to replay.
    pub recording: *mut Recording,
    /// Replacements for the recording's bindings, a list of `BufferRef`: the same number in the same order,
    /// each with the same length and space. Empty to use the bindings given to `record_begin`.
    pub bindings: List,
}

/// Table of the extension that records a task's work once and replays it with one call, id 3 (B6, B22).
/// Growable; plugin-owned, as long as the instance.
///
/// A recording holds launches, and copies within the device's memory, with their references. The memory and
/// the prepared kernels that it names stay valid until it is freed and every point signalled after a replay
/// is reached. The content of the memory may change between replays; only bindings may change its place. A
/// host records only work that it has launched before, so that a kernel may do unrecordable work in its first
/// launch. Waits and signals between streams surround a replay and are not part of it.
///
/// The host orders two replays of one recording, unless all memory that they write is separate.
///
/// Required up to `recording_free`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ReplayTable {
    /// Size of this struct as its creator knows it.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Begins a recording: from now on, launches and buffer-to-buffer copies on the stream are recorded and
    /// do not run. Nothing else may be enqueued on it until `record_end`.
    ///
    /// Owns: nothing; the description is borrowed for the call.
    /// Threads: one at a time per stream; the thread that began the recording makes the recorded calls.
    /// Order: work enqueued before runs as usual.
    /// Errors: UNSUPPORTED on an inline stream, and for bindings if the plugin does not record any: the host
    /// may then record without them. INVALID on a stream that is recording, and for overlapping bindings.
    /// Since: 0.2; takes a description since 0.9.
    pub record_begin: Option<unsafe extern "C" fn(stream: *mut Stream, desc: *const RecordDesc) -> Status>,
    /// Ends the recording and returns it.
    ///
    /// Owns: the host owns `*out_recording`, and frees it with `recording_free`.
    /// Threads: that of `record_begin`.
    /// Order: work enqueued from now on runs again.
    /// Errors: UNSUPPORTED for work that cannot be recorded; INVALID on a stream that is not recording. On
    /// error there is no recording, and the stream is as it was before `record_begin`.
    /// Since: 0.2.
    pub record_end:
        Option<unsafe extern "C" fn(stream: *mut Stream, out_recording: *mut *mut Recording) -> Status>,
    /// Enqueues all work of a recording, in its order, on any stream of the device, not only the one that
    /// recorded it. If the work fails, the replaying stream fails.
    ///
    /// Owns: nothing; the recording and the bound memory are lent until a point signalled after the replay is
    /// reached.
    /// Threads: one at a time per stream; one recording from one thread at a time.
    /// Order: as a launch.
    /// Errors: as a launch; INVALID on a stream that is recording or belongs to another device, and for
    /// bindings whose number or lengths differ from the recording's. Nothing is then enqueued.
    /// Since: 0.2; on any stream, with bindings, since 0.9.
    pub replay: Option<unsafe extern "C" fn(stream: *mut Stream, desc: *const ReplayDesc) -> Status>,
    /// Frees a recording.
    ///
    /// Owns: takes the recording.
    /// Threads: any.
    /// Order: after the points of its last replay were reached, or their streams destroyed; before the memory
    /// and the prepared kernels that it names are freed.
    /// Errors: none.
    /// Since: 0.2.
    pub recording_free: Option<unsafe extern "C" fn(recording: *mut Recording)>,
}

/// The plugin's answer for one node of a graph. Frozen. Since: 0.2, with groups since 0.9.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeClaim {
    /// 1 if the compiler takes the node, together with any other nodes of the graph, subject to its `group`;
    /// else 0.
    pub is_claimed: u32,
    /// 0, or a number chosen by the plugin for nodes that it takes all together or not at all, such as the
    /// pieces of a quantised product. A graph to compile contains all nodes of a group or none. Since: 0.9.
    pub group: u32,
    /// Arithmetic operations; a multiply-add counts as two.
    pub flops: u64,
    /// Bytes of its operands and results, counting each once.
    pub bytes: u64,
}

/// Arguments of `compile`, `load` and `compile_ahead`: a program, as code in some format or as a graph.
/// Growable; the host owns it for the call. Since: 0.2.
///
/// Required up to `label`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CompileDesc {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// The device that the program will run on; NULL for `compile_ahead`.
    pub device: *mut Device,
    /// Format of the code, one of the device's formats, such as `stablehlo`. Empty for a graph, and for
    /// `load`.
    pub format: Str,
    /// The program: text or bytes, as the format requires; for `load`, the bytes from `blob`. NULL for a
    /// graph. Borrowed for the call.
    #[cfg_attr(feature = "abi-stable", sabi(unsafe_opaque_field))]
    pub code: *const c_void,
    /// Size of `code` in bytes.
    pub code_bytes: u64,
    /// Types of the inputs that the program will run with, a list of `Tensor`, because a compiler need not
    /// report the inputs of code. Empty for a graph and for `load`.
    pub inputs: List,
    /// Name of the program for messages and traces; may be empty.
    pub label: Str,
    /// The program as a graph; NULL for code. The plugin claimed all of its nodes, and all of its types are
    /// known. A constant's bytes do not change during the call.
    pub graph: *const GraphView,
    /// Permitted deviations in a graph's numbers, as in `PrepareDesc`.
    pub numerics: u64,
    /// Inputs of the graph whose buffers the host intends to donate at each run, a list of uint32_t:
    /// positions in the graph's values. A compiler may plan to reuse their memory; a run may still keep them.
    pub donors: List,
    /// Target that `compile_ahead` compiles for, in the plugin's own terms.
    pub target: Str,
}

/// Inputs and outputs of a program. Growable; the host owns the struct, the plugin owns the memory that it
/// points to until `executable_free`. Since: 0.2.
///
/// Required up to `outputs`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ExecutableInfo {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Types of its results, a list of `Tensor`.
    pub outputs: List,
    /// For a graph, the inputs of `execute` in order, a list of uint32_t: positions in the graph's values,
    /// each once. They are the graph's used inputs, and constants that the compiler wants as buffers, which
    /// the host writes once for all runs. Other constants are part of the program. Empty for code.
    pub inputs: List,
    /// Sum of DEVBAY_EXECUTABLE_* flags. Those of DEVBAY_FLAGS_REQUIRED must be understood; otherwise the
    /// program is not run.
    /// Since: 0.9.
    pub flags: u64,
}

/// `execute` writes results to the memory that the host provides for them, if any.
pub const DEVBAY_EXECUTABLE_TAKES_OUTPUTS: u64 = 1;

/// Arguments of `execute`. Growable; the host owns it, and the arrays that it names, for the call. Since:
/// 0.9.
///
/// Required up to `n_results`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ExecuteDesc {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// The inputs, a list of `BufferRef`: whole buffers.
    pub inputs: List,
    /// A list of uint8_t, empty or one for each input: 1 if the program may reuse the input's memory for a
    /// result. The host then only frees that buffer.
    pub donated: List,
    /// Memory for the results, a list of `BufferRef`, empty or one for each result: whole buffers of the host
    /// to write, or an absent reference where the plugin creates the buffer. Empty unless the program has
    /// DEVBAY_EXECUTABLE_TAKES_OUTPUTS. They overlap no other operand.
    pub outputs: List,
    /// Settings of this run, a list of `KeyValue`, under the rules of `CreateDesc::options`.
    pub options: List,
    /// Receives the plugin's buffer for each result, or NULL where the host provided one.
    pub results: *mut *mut Buffer,
    /// Length of `results`: the number of the program's results.
    pub n_results: u64,
}

/// The program can run unchanged.
pub const DEVBAY_BLOB_USABLE: u32 = 0;
/// The program was compiled for a similar device and must be recompiled.
pub const DEVBAY_BLOB_RECOMPILE: u32 = 1;
/// The program is not for this device, or is damaged.
pub const DEVBAY_BLOB_UNSUPPORTED: u32 = 2;

/// Table of the extension that compiles whole programs, id 1 (B6, B23): code in a format that the device's
/// compiler reads, or graphs whose nodes the plugin claims. Growable; plugin-owned, as long as the instance.
///
/// A plugin that does not accept code has no `formats`; one that does not accept graphs has no `claim`.
///
/// Required up to `executable_free`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CompileTable {
    /// Size of this struct as its creator knows it.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Lists the formats that a device's compiler reads, a list of `Str`.
    ///
    /// Owns: the plugin owns the list until `destroy`.
    /// Threads: any.
    /// Order: none.
    /// Errors: the driver's error.
    /// Since: 0.2.
    pub formats:
        Option<unsafe extern "C" fn(device: *mut Device, out: *mut List, error: *mut ErrorDetail) -> Status>,
    /// Compiles a program; may take long.
    ///
    /// Owns: the host owns `*out` and frees it with `executable_free`.
    /// Threads: any, may block.
    /// Order: none.
    /// Errors: UNSUPPORTED for a format that the compiler does not read; INVALID with the compiler's message
    /// for code that is wrong or, if the compiler can tell, takes other inputs; OUT_OF_MEMORY. On error
    /// `*out` is unchanged.
    /// Since: 0.2.
    pub compile: Option<
        unsafe extern "C" fn(
            device: *mut Device,
            desc: *const CompileDesc,
            out: *mut *mut Executable,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Describes the inputs and outputs of a program.
    ///
    /// Owns: the plugin owns the lists until `executable_free`.
    /// Threads: any.
    /// Order: none.
    /// Errors: UNSUPPORTED for results of types that devbay has no name for.
    /// Since: 0.2.
    pub executable_info: Option<
        unsafe extern "C" fn(
            executable: *mut Executable,
            out: *mut ExecutableInfo,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Enqueues a run. For results without memory from the host, the plugin creates buffers and writes them
    /// to `desc->results` before the call returns. Their content is valid once a point signalled after the
    /// run is reached.
    ///
    /// Owns: the description is borrowed for the call, and the buffers that it names are lent until a point
    /// signalled after the run is reported; the host owns the results and frees them with `buffer_free`.
    /// Threads: one at a time per stream; one executable from many streams at once.
    /// Order: after everything enqueued on the stream before.
    /// Errors: INVALID for inputs or outputs that are known not to be the program's, and for an unknown
    /// option; OUT_OF_MEMORY. Then nothing is enqueued and nothing written. An error found later fails the
    /// stream (B13).
    /// Since: 0.2; takes a description since 0.9.
    pub execute: Option<
        unsafe extern "C" fn(
            executable: *mut Executable,
            stream: *mut Stream,
            desc: *const ExecuteDesc,
        ) -> Status,
    >,
    /// Frees a program. No run of it is in flight: its points have been reported.
    ///
    /// Owns: takes the executable.
    /// Threads: any.
    /// Order: none; its results may outlive it.
    /// Errors: none.
    /// Since: 0.2.
    pub executable_free: Option<unsafe extern "C" fn(executable: *mut Executable)>,
    /// Reports which nodes of a graph the device's compiler takes, and their cost. A claim is a promise: any
    /// set of claimed nodes that does not split a group compiles, unless memory runs out. The call compiles
    /// nothing and need not read the graph's constants, because the host makes it often. `claims` has one
    /// element per node, in order. NULL if graphs are not accepted.
    ///
    /// Owns: graph and claims belong to the host, for the call.
    /// Threads: any.
    /// Order: none.
    /// Errors: the driver's error. An unknown node is not an error; it is not claimed.
    /// Since: 0.2.
    pub claim: Option<
        unsafe extern "C" fn(
            device: *mut Device,
            graph: *const GraphView,
            claims: *mut NodeClaim,
            n_claims: u64,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Serialises a compiled program, as a list of uint8_t that `load` accepts in this process or another.
    /// NULL if programs cannot be stored.
    ///
    /// Owns: the plugin owns the bytes until `executable_free`.
    /// Threads: any, may block.
    /// Order: none.
    /// Errors: UNSUPPORTED for a program that cannot be stored; OUT_OF_MEMORY.
    /// Since: 0.2.
    pub blob: Option<
        unsafe extern "C" fn(executable: *mut Executable, out: *mut List, error: *mut ErrorDetail) -> Status,
    >,
    /// Reports whether stored bytes are a program for a device, one of DEVBAY_BLOB_*, without loading it. The
    /// bytes may be arbitrary or damaged.
    ///
    /// Owns: the bytes are borrowed for the call.
    /// Threads: any.
    /// Order: none.
    /// Errors: the driver's error.
    /// Since: 0.2.
    pub validate: Option<
        unsafe extern "C" fn(
            device: *mut Device,
            blob: *const c_void,
            blob_bytes: u64,
            out: *mut u32,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Makes a stored program ready to run: `desc->code` holds the bytes from `blob`.
    ///
    /// Owns: as `compile`.
    /// Threads: any, may block.
    /// Order: none.
    /// Errors: UNSUPPORTED for bytes that `validate` does not report as usable; otherwise as `compile`.
    /// Since: 0.2.
    pub load: Option<
        unsafe extern "C" fn(
            device: *mut Device,
            desc: *const CompileDesc,
            out: *mut *mut Executable,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Compiles a graph for `desc->target`, a device that is not present. The program has an
    /// `executable_info` and a `blob`, and cannot be run.
    ///
    /// Owns: as `compile`.
    /// Threads: any, may block.
    /// Order: none.
    /// Errors: UNSUPPORTED for an unknown target, or for a node that the compiler does not take, naming the
    /// node; otherwise as `compile`.
    /// Since: 0.2.
    pub compile_ahead: Option<
        unsafe extern "C" fn(
            instance: *mut Instance,
            desc: *const CompileDesc,
            out: *mut *mut Executable,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
}

/// Table of the extension that makes streams fail and devices be lost on request, id 7 (B6, B13). A
/// conformance run uses it to see how a failure affects a stream, the streams that wait for it, and the
/// others. Growable; plugin-owned, as long as the instance.
///
/// Required up to `stream_fail`; a function that the plugin does not have is NULL.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FaultTable {
    /// Size of this struct as its creator knows it.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Enqueues work that fails with `status`, as a device's would: points signalled before it are reached,
    /// later ones fail.
    ///
    /// Owns: nothing.
    /// Threads: one at a time per stream.
    /// Order: after the enqueued work.
    /// Errors: INVALID for a status of 0; UNSUPPORTED on an inline stream.
    /// Since: 0.2.
    pub stream_fail: Option<unsafe extern "C" fn(stream: *mut Stream, status: Status) -> Status>,
    /// Loses a device as its driver would: its streams fail with DEVICE_LOST, and `devices` no longer lists
    /// its handle.
    ///
    /// Owns: nothing; the device stays the plugin's.
    /// Threads: any.
    /// Order: none.
    /// Errors: DEVICE_LOST if the device is already lost.
    /// Since: 0.9.
    pub device_lose: Option<unsafe extern "C" fn(device: *mut Device) -> Status>,
}

// ---------------------------------------------------------------------------------------------------
// The entry
// ---------------------------------------------------------------------------------------------------

/// Any function may be called from any thread, concurrently (B17).
pub const DEVBAY_THREADING_FREE: u32 = 0;
/// Functions that take a stream, including `stream_reached` and its like, are called one at a time per
/// stream; other functions from any thread. The host adds the lock.
pub const DEVBAY_THREADING_PER_STREAM: u32 = 1;
/// One function of an instance is called at a time. The host adds the lock, and polls instead of calling
/// `stream_host_wait`.
pub const DEVBAY_THREADING_SERIALISED: u32 = 2;

/// The library may be unloaded after its last instance is destroyed. Without this flag the host never unloads
/// it (B26).
pub const DEVBAY_PLUGIN_UNLOADABLE: u64 = 1;

/// An option that `create` accepts. Growable; plugin-owned, static.
///
/// Required up to `key`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OptionInfo {
    /// Size of this struct as the plugin knows it.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Name of the option, without the plugin's name.
    pub key: Str,
    /// Value if the option is not given.
    pub default_value: Str,
    /// One human-readable line.
    pub doc: Str,
}

/// Puts a layer in front of a plugin. Returns a description to use in place of `next`, whose table calls the
/// functions of `next`.
///
/// The layer offers the minors that both it and `next` support, and reads only those fields of `next` that
/// its own header has. A function that is NULL in `next` is NULL in the layer. The layer passes handles on
/// unchanged, and returns NULL for an extension that it does not know. `next` may belong to a plugin or to
/// another layer.
///
/// Owns: `next` and the returned data live as long as the process.
/// Threads: control. May be called many times.
/// Errors: NULL, with a message, for a plugin that it does not support.
/// Since: 0.9.
pub type LayerFn =
    unsafe extern "C" fn(next: *const PluginInfo, error: *mut ErrorDetail) -> *const PluginInfo;

/// Description of the plugin (B1). Growable; plugin-owned, static, never written.
///
/// `struct_size`, `abi_minor_min` and `abi_minor_max` have the same place in every version, so that any host
/// can tell why it cannot use a plugin.
///
/// Required up to `table`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PluginInfo {
    /// Size of this struct as the plugin knows it.
    pub struct_size: u32,
    /// Oldest minor that it can work with: the one whose additions its code depends on.
    pub abi_minor_min: u32,
    /// Newest minor that it supports: DEVBAY_ABI_MINOR of the header that it was built with.
    pub abi_minor_max: u32,
    /// One of DEVBAY_THREADING_*.
    pub threading: u32,
    /// Sum of DEVBAY_PLUGIN_* flags; those of DEVBAY_FLAGS_REQUIRED must be understood.
    pub flags: u64,
    /// Short name, `[a-z][a-z0-9_-]*`; devices are called NAME:INDEX.
    pub name: Str,
    /// Name of its vendor.
    pub vendor: Str,
    /// Its own version.
    pub version: Str,
    /// Its functions; NULL for a library that offers only a layer.
    pub table: *const PluginTable,
    /// Conformance profiles that it claims, a list of `Str`: `base`, `kernels`, ...
    pub profiles: List,
    /// Its kernels, a list of `KernelInfo`. The stride may be the size of a larger struct of the plugin that
    /// begins with the `KernelInfo`.
    pub kernels: List,
    /// The options that `create` accepts, a list of `OptionInfo`.
    pub options: List,
    /// The layout of this header's structs as compiled into the plugin, a list of `LayoutField`, for reports;
    /// may be empty (B30).
    pub layout: List,
    /// The layer that it offers under its name, or NULL. Since: 0.9.
    #[cfg_attr(feature = "abi-stable", sabi(unsafe_opaque_field))]
    pub layer: Option<LayerFn>,
}

/// The only symbol that a plugin exports, `devbay_plugin_query_v0` (B1).
///
/// Pure: it starts no thread, touches no driver, allocates nothing, and returns the same pointer every time.
/// The pointer is not NULL. Threads: any. Since: 0.1.
pub type QueryFn = unsafe extern "C" fn() -> *const PluginInfo;
