//! Version 0 of the devbay plugin ABI: every type that crosses the boundary, in the order in which a
//! plugin meets them. No logic.
//!
//! This file is the one definition. `cargo xtask header` makes `include/devbay_plugin.h` from it, and
//! reads the `Threads:`, `Order:`, `Owns:`, `Errors:` and `Since:` lines of the table's functions into
//! `tables.rs`. Read it with the rules (B1 to B30, listed in `lib.rs`) at hand. Plugins and hosts of every
//! version that was released are run against what it says today (B8).
//!
//! Two kinds of struct (B4): *frozen* ones have no size field, may be embedded and never change within a
//! major; *growable* ones start with `struct_size`, travel by pointer only, and gain fields at their end.
//!
//! # What holds everywhere
//!
//! Functions. Each one states its threading class: `control` (one call at a time, and no other function of the instance
//! meanwhile), `any` (any thread, also several at once), `one at a time per stream` (any thread, and the host sees to
//! it that two calls on a stream never overlap). `may block` is said where it is so; every other call returns within
//! milliseconds. A function that returns a status may return INVALID for an argument that breaks this header,
//! OUT_OF_MEMORY, INTERNAL, DEVICE_LOST, PANICKED and UNKNOWN beside what it lists, and never a success that did not happen. A
//! failed call has written no result, but that it may have set one to zero.
//!
//! Memory. Who makes a struct zeroes it: descriptions and results come with all fields zero that their maker does not fill,
//! reserved ones too, and a reader ignores reserved ones. Content of buffers is undefined until it is written. Numbers are
//! little-endian wherever bytes are given: in buffers, constants and packed constants. A list or text is at most 2^20
//! elements or 2^24 bytes long; lists of bytes, which `blob` gives, have no such limit.
//!
//! The process. It belongs to the application. A plugin changes none of the process's signal handlers, environment,
//! locale, working folder, standard streams, resource limits or floating-point control; it writes to none of the standard
//! streams (`HostApi::log` takes words), reads no standard input, ends no process and starts none that outlives the
//! instance. It does not fork; in a child of a fork no function may be called but by who has loaded the library there
//! anew. Environment variables that a driver reads are the user's to set.
//!
//! Trust. A plugin is trusted code with the rights of the process. Probing it in a child process first finds what
//! ends or hangs, and is no sandbox. Models and inputs are not trusted: attributes, shapes, constants, contents of buffers,
//! packed constants and blobs may be anything that the types allow, and lead to an error at worst.
//!
//! Unknown values. What a host or a plugin does with one:
//! - a status: takes it for UNKNOWN;
//! - a kind of device: takes it for OTHER;
//! - a kind of memory space: uses the space by its flags;
//! - a threading class: takes it for SERIALISED;
//! - a log level: takes it for INFO;
//! - a flag in the lower half of a `flags` of 64 bits, or in one of 32 bits: ignores it;
//! - a flag in the upper half: leaves out what has it;
//! - a dtype: refuses what has it as UNSUPPORTED; a kernel's type variable goes on without it;
//! - an attribute's kind, or the name of one that a kernel does not read: gives UNSUPPORTED; a compiler does not claim the node;
//! - numerics: ignores what is allowed, and gives UNSUPPORTED for a demand;
//! - a usage of memory, a kind or a priority of a stream: ignores it, for they are hints;
//! - a kind of copy or of a native handle: gives UNSUPPORTED;
//! - an answer of `validate`: takes it for UNSUPPORTED;
//! - an option: gives INVALID, unless its key begins with `devbay.`, when it is ignored;
//! - a setting of the host: gives NOT_FOUND;
//! - an extension: gives NULL;
//! - a profile: ignores it;
//! - a domain or an op: has no kernel.

use core::ffi::{c_char, c_void};

/// Major version of the ABI that this header describes: part of the entry's name (B1). 0 until it is frozen.
pub const DEVBAY_ABI_MAJOR: u32 = 0;
/// Minor version of the ABI that this header describes: the candidate for 1.0.
pub const DEVBAY_ABI_MINOR: u32 = 9;
/// Oldest minor whose plugins and hosts still work with this one. Those before 0.9 do not: what flags mean has changed.
pub const DEVBAY_ABI_MINOR_MIN: u32 = 9;

// ---------------------------------------------------------------------------------------------------
// Names that others may add to
// ---------------------------------------------------------------------------------------------------

/// Bits of a `flags` of 64 bits that must be understood: the upper half. What a plugin describes with such a bit that the
/// host does not know is left out: a kernel, a memory space, a device, or the plugin (B5). A bit of the lower half that is
/// not known is taken for 0.
pub const DEVBAY_FLAGS_REQUIRED: u64 = 0xffff_ffff_0000_0000;

/// First number that belongs to a vendor, in every name space of 32 bits: statuses, kinds of devices, memory spaces and
/// native handles, log levels, copies, extensions. Vendor number `n` of `plugin-api/vendors.toml` has the 65,536 numbers
/// from `DEVBAY_VENDOR_FIRST + n * 65536` on; those below DEVBAY_VENDOR_FIRST are this header's.
pub const DEVBAY_VENDOR_FIRST: u32 = 0x4000_0000;
/// First number for experiments, which have no meaning for others. What becomes stable gets another number.
pub const DEVBAY_EXPERIMENTAL_FIRST: u32 = 0x7000_0000;

/// Compiles programs and graphs: `CompileTable`, plugin's side.
pub const DEVBAY_EXTENSION_COMPILE: u32 = 1;
/// Wraps and hands out native memory and streams: `InteropTable`, plugin's side.
pub const DEVBAY_EXTENSION_INTEROP: u32 = 2;
/// Takes down work and runs it again: `ReplayTable`, plugin's side.
pub const DEVBAY_EXTENSION_REPLAY: u32 = 3;
/// Reserved: maps buffers of devices without addresses into the host's memory, and gives them back.
pub const DEVBAY_EXTENSION_MAP: u32 = 4;
/// Reserved: counters and times of a device, on the host's clock, by launch.
pub const DEVBAY_EXTENSION_PROFILE: u32 = 5;
/// Reserved: bandwidth and reach between devices.
pub const DEVBAY_EXTENSION_LINKS: u32 = 6;
/// Makes streams fail and devices be lost on request, for conformance runs: `FaultTable`, plugin's side.
pub const DEVBAY_EXTENSION_FAULT: u32 = 7;
/// Reserved: groups of devices, reductions over them, and programs for several.
pub const DEVBAY_EXTENSION_COLLECTIVE: u32 = 8;
/// Reserved: memory and semaphores of other processes and interfaces, by file descriptor, dma-buf or their like.
pub const DEVBAY_EXTENSION_EXTERNAL: u32 = 9;
/// Reserved: memory, load, power and temperature of a device, and its reset.
pub const DEVBAY_EXTENSION_TELEMETRY: u32 = 10;
/// Reserved: kernels that an application brings as source or binary. Their indices begin at 2^31.
pub const DEVBAY_EXTENSION_KERNEL_SOURCE: u32 = 11;
/// Reserved: state that outlives a run and loops that run on the device.
pub const DEVBAY_EXTENSION_STATE: u32 = 12;
/// Reserved: layouts in blocks that kernels hand to each other.
pub const DEVBAY_EXTENSION_LAYOUT: u32 = 13;
/// Reserved: ops that the catalogue gains within a minor, for plugins that are older.
pub const DEVBAY_EXTENSION_CATALOGUE: u32 = 14;
/// Reserved: limits for each session, of memory, time and streams.
pub const DEVBAY_EXTENSION_TENANT: u32 = 15;
/// Reserved, host's side: what a plugin tells of: devices that come and go, memory that is short.
pub const DEVBAY_EXTENSION_EVENTS: u32 = 256;
/// Reserved, host's side: values by key that the processes of one job share.
pub const DEVBAY_EXTENSION_KEY_VALUE: u32 = 257;
/// Reserved, host's side: a store for what was compiled, by key.
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

/// Result of a call: 0 is success, everything else names a kind of failure (B18).
pub type Status = i32;

/// The call did what it says.
pub const DEVBAY_STATUS_OK: Status = 0;
/// The caller gave up; what was enqueued may or may not have run.
pub const DEVBAY_STATUS_CANCELLED: Status = 1;
/// A failure without a better name.
pub const DEVBAY_STATUS_UNKNOWN: Status = 2;
/// An argument breaks a rule of this header; nothing happened.
pub const DEVBAY_STATUS_INVALID: Status = 3;
/// A time limit passed; the work goes on.
pub const DEVBAY_STATUS_TIMEOUT: Status = 4;
/// A name, file or device does not exist.
pub const DEVBAY_STATUS_NOT_FOUND: Status = 5;
/// Not enough memory of the kind asked for; nothing was allocated.
pub const DEVBAY_STATUS_OUT_OF_MEMORY: Status = 8;
/// The object is not in a state in which this call is legal.
pub const DEVBAY_STATUS_FAILED_PRECONDITION: Status = 9;
/// Work that this depends on failed first.
pub const DEVBAY_STATUS_ABORTED: Status = 10;
/// The plugin does not do this: an op variant, dtype, shape, function or option.
pub const DEVBAY_STATUS_UNSUPPORTED: Status = 12;
/// A bug in the plugin, found by the plugin. Also what `prepare`, `kernel_cost`, `kernel_shape`, `pack` and a launch give
/// when code of the plugin panicked or threw in them, was caught, and left nothing running and nothing half done: that
/// call failed, and the host calls the plugin as before (B19).
pub const DEVBAY_STATUS_INTERNAL: Status = 13;
/// The driver or device is not there now, and may be later.
pub const DEVBAY_STATUS_UNAVAILABLE: Status = 14;
/// Stored data is damaged.
pub const DEVBAY_STATUS_DATA_LOSS: Status = 15;
/// The device is gone: every stream on it fails, and only free, destroy and `stream_error` are legal (B13).
pub const DEVBAY_STATUS_DEVICE_LOST: Status = 64;
/// Code of the plugin panicked or threw, and what it was about may be half done. The host asks `stream_error` for the
/// words, calls the plugin no more, and its objects leak (B19). Where nothing was left behind, INTERNAL says so.
pub const DEVBAY_STATUS_PANICKED: Status = 65;

// ---------------------------------------------------------------------------------------------------
// Opaque objects, made and freed by the plugin (B9).
// ---------------------------------------------------------------------------------------------------

/// One use of the plugin: all its state hangs from here, and many may live at once. Opaque.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[repr(C)]
pub struct Instance {
    _private: [u8; 0],
}

/// One unit that the plugin offers; lives as long as its instance. Opaque.
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

/// A program that a device's compiler made ready to run (B23). Opaque; plugin-owned.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[repr(C)]
pub struct Executable {
    _private: [u8; 0],
}

/// Launches that a stream took down, to be run again with one call (B22). Opaque; plugin-owned.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[repr(C)]
pub struct Recording {
    _private: [u8; 0],
}

// ---------------------------------------------------------------------------------------------------
// Frozen types: no size field, embedded by value, unchanged within the major.
// ---------------------------------------------------------------------------------------------------

/// UTF-8 text, borrowed for the call unless its field says otherwise; not terminated (B5). Frozen.
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

/// An array made by one side and read by the other (B5). Frozen.
///
/// The maker writes the stride, so that elements can grow: a reader steps by `stride` and reads no more
/// of an element than it knows. Elements of a growable type also carry their own `struct_size`.
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
    /// Bits per element; below 8 the elements are packed low bits first, without strides.
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
/// Complex number, real then imaginary; `bits` counts both.
pub const DEVBAY_DTYPE_COMPLEX: u8 = 5;
/// Truth value in 8 bits: 0 or 1.
pub const DEVBAY_DTYPE_BOOL: u8 = 6;
/// Float of 8 bits with 4 of exponent and 3 of mantissa: no infinity, all ones are NaN. Since 0.2.
pub const DEVBAY_DTYPE_FLOAT8_E4M3FN: u8 = 10;
/// Float of 8 bits with 4 of exponent and 3 of mantissa: no infinity and no -0, whose code is NaN. Since 0.2.
pub const DEVBAY_DTYPE_FLOAT8_E4M3FNUZ: u8 = 11;
/// Float of 8 bits with 5 of exponent and 2 of mantissa, with infinities and NaN as in IEEE 754. Since 0.2.
pub const DEVBAY_DTYPE_FLOAT8_E5M2: u8 = 12;
/// Float of 8 bits with 5 of exponent and 2 of mantissa: no infinity and no -0, whose code is NaN. Since 0.2.
pub const DEVBAY_DTYPE_FLOAT8_E5M2FNUZ: u8 = 13;
/// Power of two in 8 bits, all of exponent: no sign and no zero, all ones are NaN. Since 0.2.
pub const DEVBAY_DTYPE_FLOAT8_E8M0FNU: u8 = 14;
/// Float of 4 bits with 2 of exponent and 1 of mantissa: no infinity and no NaN. Since 0.2.
pub const DEVBAY_DTYPE_FLOAT4_E2M1FN: u8 = 17;

/// Bytes that a launch or copy works on (B10). Frozen: two of them fit a cache line, and each launch reads them.
///
/// All zero means that an optional operand is absent. An operand that is present but empty has a
/// `length` of 0, and `prepare` was told so. Handles never leave the plugin instance that made them.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BufferRef {
    /// The allocation; NULL for host memory, which only devices with DEVBAY_DEVICE_HOST_REFS are given.
    pub buffer: *mut Buffer,
    /// Address of the first byte, `base + offset`, if the allocation has a base; else 0. Devices without
    /// pointers work from `buffer` and `offset`.
    pub addr: u64,
    /// First byte within the allocation.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// A setting handed to `create`. Frozen.
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

/// Offset and size of one field as the plugin was compiled (B30). Frozen.
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

/// Where a function that may fail writes what happened (B18). Growable; the caller owns all of it.
///
/// May be NULL in any call. Cold functions fill it on failure; on success it is left as it is.
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
    /// Caller's buffer for UTF-8 text, lower case, saying what was expected and what was found.
    pub text: *mut c_char,
    /// Size of that buffer in bytes.
    pub text_capacity: u64,
    /// Length of the whole text; what did not fit was cut at a character's border.
    pub text_len: u64,
    /// The driver's own error code, 0 if none.
    pub native_code: i64,
}

// ---------------------------------------------------------------------------------------------------
// What the host gives a plugin (B2)
// ---------------------------------------------------------------------------------------------------

/// Message of interest when hunting a bug.
pub const DEVBAY_LOG_DEBUG: u32 = 0;
/// Message of general interest.
pub const DEVBAY_LOG_INFO: u32 = 1;
/// Something that works less well than it could.
pub const DEVBAY_LOG_WARN: u32 = 2;
/// Something that failed.
pub const DEVBAY_LOG_ERROR: u32 = 3;

/// Called once when a point on a stream is reached or has failed (B16).
///
/// May come inline or from a thread of the plugin, which holds no lock while it calls. The callee calls nothing of any
/// plugin, also nothing that enqueues: it notes that the point was reported and wakes who waits for it. It does not block
/// and does not unwind.
pub type DoneFn = unsafe extern "C" fn(arg: *mut c_void, status: Status);

/// Body of a parallel loop: works on `begin..end`, and does not unwind.
///
/// `slot` is below `HostApi::n_slots` and belongs to this chunk while it runs, so that scratch memory
/// can be divided by it. A body calls nothing of the host but `log` and `parallel_for`.
pub type ChunkFn = unsafe extern "C" fn(arg: *mut c_void, begin: u64, end: u64, slot: u32) -> Status;

/// One mark on the host's timeline. Growable; the plugin owns it for the call.
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
    /// What ran; borrowed for the call.
    pub name: Str,
    /// Where it ran: a stream or engine of the device; borrowed for the call.
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
    /// Number of slots that `parallel_for` hands out; never changes.
    pub n_slots: u32,
    /// First argument of every function below.
    pub ctx: *mut c_void,
    /// Hands a message to the application. Never blocks for long. Since: 0.1
    pub log: Option<unsafe extern "C" fn(ctx: *mut c_void, level: u32, text: Str)>,
    /// Runs `body` over `0..n` in chunks of at most `grain` on the host's threads and the caller's,
    /// and returns when all chunks are done: the first non-zero status if a body failed.
    ///
    /// Chunk borders depend on `n` and `grain` only, so results do not depend on the number of threads; every
    /// chunk begins at a multiple of `grain`.
    /// May be nested. While it waits the calling thread runs only chunks of this call or of calls
    /// nested in it.
    ///
    /// It returns CANCELLED if the run that the calling thread works for is to end: chunks that have begun
    /// are done then, the others never begin. A caller that gets it returns it soon, and what it was to write is
    /// undefined. A loop over nothing, `n` is 0, says whether the run goes on: OK or CANCELLED. What takes
    /// long without a loop, or in one chunk, asks so every millisecond or so; a body may. Loading counts as a run:
    /// `prepare`, `pack` and the functions that compile may ask on the thread that called them, and give CANCELLED back.
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
    /// Looks up a setting of the host, such as `cache_dir`. On success `out` is borrowed until
    /// `destroy`; NOT_FOUND for a key that the host does not know. Since: 0.1
    pub config: Option<unsafe extern "C" fn(ctx: *mut c_void, key: Str, out: *mut Str) -> Status>,
    /// Adds a mark to the timeline; NULL where no timeline is recorded. Since: 0.1
    pub trace: Option<unsafe extern "C" fn(ctx: *mut c_void, event: *const TraceEvent)>,
    /// The host's side of an extension, or NULL (B6). Borrowed until `destroy`. Since: 0.1
    pub get_extension:
        Option<unsafe extern "C" fn(ctx: *mut c_void, id: u32, min_revision: u32) -> *const c_void>,
    /// The time on the clock of the host's timeline, in nanoseconds: it never goes back, and its zero is
    /// not specified. On Unix it is `CLOCK_MONOTONIC`. Since: 0.9
    pub now_ns: Option<unsafe extern "C" fn(ctx: *mut c_void) -> u64>,
}

/// What `create` is given. Growable; the host owns it for the call, `host` until `destroy` returns.
///
/// Required up to `options`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CreateDesc {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// The minor that both sides now speak (B3): which codes and behaviour may be used.
    pub abi_minor: u32,
    /// Services of the host.
    pub host: *const HostApi,
    /// Settings for this plugin, a list of `KeyValue`, keys unique. A plugin refuses a key or value
    /// that it does not know with INVALID and names it. Keys that begin with `devbay.` are the host's, for plugins of
    /// every vendor: a plugin ignores those that it does not know, and refuses a value that it cannot keep to.
    ///
    /// `devbay.memory_limit`: the most bytes, a decimal number, that the buffers of one memory space of a device may
    /// have together. What goes beyond it is OUT_OF_MEMORY, and `memory_info` says what is left of it. Since: 0.9
    pub options: List,
}

// ---------------------------------------------------------------------------------------------------
// Devices and memory
// ---------------------------------------------------------------------------------------------------

/// A device of another kind.
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

/// Work is complete when the call that enqueues it returns (B14). Such a device has no timeline: the
/// host calls none of the `stream_*` functions but create, destroy and `stream_error`. Must be understood.
pub const DEVBAY_DEVICE_INLINE: u64 = 0x1_0000_0000;
/// Launch, copy and signal may block on the device, so the host calls them from its blocking pool (B14).
pub const DEVBAY_DEVICE_ENQUEUE_MAY_BLOCK: u64 = 2;
/// References may name host memory: `buffer` NULL, `addr` a host address aligned to the element (B10).
pub const DEVBAY_DEVICE_HOST_REFS: u64 = 4;

/// Memory beside the device.
pub const DEVBAY_SPACE_DEVICE: u32 = 1;
/// Host memory that the device reaches directly.
pub const DEVBAY_SPACE_PINNED_HOST: u32 = 2;
/// One memory for host and device.
pub const DEVBAY_SPACE_UNIFIED: u32 = 3;

/// `Allocation::base` is an address that the host may read and write while no work uses it.
pub const DEVBAY_SPACE_HOST_VISIBLE: u64 = 1;
/// A buffer cannot be divided: one tensor, one buffer, offset 0 (PJRT). Must be understood.
pub const DEVBAY_SPACE_NO_SUBALLOC: u64 = 0x1_0000_0000;
/// A buffer is written once, whole, by one copy, and is never a kernel's output. Must be understood.
pub const DEVBAY_SPACE_WRITE_ONCE: u64 = 0x2_0000_0000;
/// `buffer_alloc` needs the tensor's type. Must be understood.
pub const DEVBAY_SPACE_TYPED: u64 = 0x4_0000_0000;
/// `Allocation::base` is an address in the device's own space.
pub const DEVBAY_SPACE_ADDRESSABLE: u64 = 16;

/// A place where buffers of a device can live (B11). Growable; plugin-owned, as its device.
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
    /// Memory in all, in bytes; 0 if unknown.
    pub bytes_total: u64,
    /// Largest allocation in bytes; 0 for no limit but the total.
    pub alloc_max: u64,
    /// Alignment of every allocation in bytes, a power of two.
    pub alloc_align: u64,
    /// Alignment of a kernel operand's offset in bytes, a power of two.
    pub bind_align: u64,
    /// Largest operand in bytes; 0 for no limit.
    pub bind_max: u64,
    /// Alignment of a copy's offsets in bytes, a power of two.
    pub copy_align: u64,
    /// Copies touch a buffer in multiples of this many bytes, and allocations are padded to it: a copy of another size
    /// reads or writes up to the next multiple, and what it writes there is undefined. The host's memory is touched
    /// for the copy's own size.
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
    /// The device's handle; no other device of the instance ever has it.
    pub handle: *mut Device,
    /// Name that stays the same from run to run and is unique within the plugin: a UUID or a bus path.
    pub id: Str,
    /// Name for a person: the product.
    pub name: Str,
    /// Sum of DEVBAY_DEVICE_* flags; those of DEVBAY_FLAGS_REQUIRED must be understood.
    pub flags: u64,
    /// Streams that may exist at once; 0 for no limit.
    pub streams_max: u32,
    /// References that one launch may have; 0 for no limit.
    pub refs_max: u32,
    /// Its memory spaces, a list of `MemorySpace`; kernels' operands live in the first.
    pub spaces: List,
    /// Bytes that are the same for one chip under two plugins, and differ for two chips; all 0 if unknown. Devices that
    /// share it share their memory. A device on PCI, an SR-IOV function too, has its address as text: `pci:0000:65:00.0`.
    /// A part of a device that shares the address and not the memory (MIG), and a device that is not on PCI, has the 16
    /// bytes of the UUID that the vendor's interfaces give it.
    pub physical_id: [u8; 16],
    /// Driver or library underneath, with its version; may be empty.
    pub driver: Str,
}

/// Operands of kernels that live for one run.
pub const DEVBAY_USAGE_TRANSIENT: u32 = 0;
/// Constants, written once and read by many runs.
pub const DEVBAY_USAGE_WEIGHT: u32 = 1;
/// Staging for copies.
pub const DEVBAY_USAGE_STAGING: u32 = 2;

/// What `buffer_alloc` is asked for. Growable; the host owns it for the call.
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
    /// Bytes; 0 is legal and gives a buffer that is never read or written.
    pub size_bytes: u64,
    /// Alignment wanted in bytes, a power of two, at least the space's `alloc_align`. It is of the
    /// address: where an allocation has none, it means nothing.
    pub align: u64,
    /// A hint, one of DEVBAY_USAGE_*.
    pub usage: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// The tensor that it will hold, for TYPED spaces; else NULL. Borrowed for the call.
    pub tensor: *const Tensor,
}

/// What `buffer_alloc` returns. Growable; the host owns the struct, the plugin the buffer.
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
    /// Its address, 0 if it has none; see the space's flags for whose address it is.
    pub base: u64,
    /// Bytes that may be used, at least those asked for.
    pub size_bytes: u64,
}

// ---------------------------------------------------------------------------------------------------
// Streams and copies
// ---------------------------------------------------------------------------------------------------

/// A stream for kernels.
pub const DEVBAY_STREAM_COMPUTE: u32 = 0;
/// A stream for copies alone, which shall overlap with kernels: no launch is enqueued on it.
pub const DEVBAY_STREAM_COPY: u32 = 1;

/// What `stream_create` is asked for. Growable; the host owns it for the call.
///
/// An application's own native stream comes through the interop extension, where a NULL native handle
/// is a valid stream and is marked by a flag, never by the pointer (B15).
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

/// A copy. Growable; the host owns the struct for the call, and what it names until a point signalled
/// after the copy is reported (B9). The host spans are the only pointers in asynchronous arguments (B24).
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
    /// Source, when it is a buffer.
    pub src: BufferRef,
    /// Destination, when it is a buffer.
    pub dst: BufferRef,
    /// Source, when it is host memory.
    pub host_src: *const c_void,
    /// Destination, when it is host memory.
    pub host_dst: *mut c_void,
    /// Bytes; 0 is legal and does nothing.
    pub size_bytes: u64,
}

// ---------------------------------------------------------------------------------------------------
// Tensors, attributes and programs, as a plugin sees them
// ---------------------------------------------------------------------------------------------------

/// The operand is not given; nothing else of the tensor is meaningful.
pub const DEVBAY_TENSOR_ABSENT: u32 = 1;
/// `constant` holds the value.
pub const DEVBAY_TENSOR_CONSTANT: u32 = 2;

/// Type of one value, and its content where it is known. Growable; the host owns it for the call.
///
/// Required up to `constant_bytes`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Tensor {
    /// Size of this struct as its maker knows it.
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
    /// The value in dense row-major order, in host memory, little endian; NULL if not constant.
    pub constant: *const c_void,
    /// Bytes of `constant`.
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

/// Read-only view of a region or subgraph: plain data, in execution order. Growable; the host owns it
/// for the call.
///
/// Values are numbered by their position in `values`. A value that no node makes and that is no input
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
    /// A list of `NodeView`, each after those that it depends on.
    pub nodes: List,
    /// A list of `ValueView`.
    pub values: List,
    /// A list of uint32_t: the values that come in.
    pub inputs: List,
    /// A list of uint32_t: the values that go out.
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
    /// Version of the op: the opset in which its present definition appeared.
    pub since_version: u32,
    /// Domain of the op; empty for ONNX's own.
    pub domain: Str,
    /// Name of the op.
    pub op: Str,
    /// Name of the node in the model; may be empty.
    pub name: Str,
    /// A list of `Attr`.
    pub attrs: List,
    /// A list of uint32_t: values, UINT32_MAX where an optional one is absent.
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

/// Takes operands with strides; others are given dense data.
pub const DEVBAY_KERNEL_STRIDED: u64 = 2;
/// Gives the same bits every time.
pub const DEVBAY_KERNEL_DETERMINISTIC: u64 = 4;
/// Extents of the outputs depend on data: outputs are allocated at their upper bound, and one more
/// reference after the outputs takes the true extents as int64_t, outputs one after the other. Must be understood.
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
    /// What it may be.
    pub dtypes: *const DType,
}

/// One kernel that the plugin offers (B20). Growable; plugin-owned, static.
///
/// The list is a superset: `prepare` may still answer UNSUPPORTED for attributes and shapes.
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
    /// sees a node of another version; the host lowers or lifts, or places the node elsewhere.
    pub since_version: u32,
    /// Domain of the op; empty for ONNX's own.
    pub domain: Str,
    /// Name of the op.
    pub op: Str,
    /// Fewest inputs. The first so many are required: `prepare` is not asked for a node without one of them. Those after
    /// them may be absent.
    pub n_inputs_min: u32,
    /// Most inputs. DEVBAY_VARIADIC repeats the last one of `input_typevars`; each of the repeated ones is there.
    pub n_inputs_max: u32,
    /// Fewest outputs, likewise: a launch has the memory of each.
    pub n_outputs_min: u32,
    /// Most outputs, likewise.
    pub n_outputs_max: u32,
    /// Type variables, a list of `TypeVar`.
    pub typevars: List,
    /// Which type variable each input has, a list of uint8_t; repeated inputs share the last one's.
    pub input_typevars: List,
    /// Which type variable each output has, likewise.
    pub output_typevars: List,
    /// Above 0 is preferred to other kernels for the same node, below 0 is a last resort.
    pub priority: i32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Sum of DEVBAY_KERNEL_* flags; those of DEVBAY_FLAGS_REQUIRED must be understood.
    pub flags: u64,
    /// Bit i: input i must be known when the node is prepared, and comes as a constant.
    pub host_value_inputs: u64,
    /// Which input each output may share its memory with, a list of int16_t, -1 for none; the operands
    /// then have one size. Outputs overlap no other operand.
    pub in_place: List,
    /// One line for a person; may be empty.
    pub doc: Str,
}

/// One kernel of one device (`PluginTable::device_kernels`). Growable; plugin-owned, as the list that it is in.
/// Since: 0.9.
///
/// Required up to `info`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceKernel {
    /// Size of this struct as the plugin knows it.
    pub struct_size: u32,
    /// What `prepare` is asked for: a position in the plugin's list of kernels, or a number behind it, below 2^31. One
    /// number is one kernel for all devices of the instance.
    pub kernel_idx: u32,
    /// What the kernel is; NULL for one of the plugin's list.
    pub info: *const KernelInfo,
}

/// Nothing is allowed: results are as the op's specification has them in the tensors' own precision.
pub const DEVBAY_NUMERICS_STRICT: u64 = 0;
/// Matrix products may round their inputs to TF32.
pub const DEVBAY_NUMERICS_TF32: u64 = 1;
/// Matrix products may round their inputs to f16, with 32-bit sums.
pub const DEVBAY_NUMERICS_F16: u64 = 2;
/// Matrix products may round their inputs to bf16, with 32-bit sums. Since: 0.2.
pub const DEVBAY_NUMERICS_BF16: u64 = 4;

/// What `prepare` is asked for. Growable; the host owns it for the call.
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
    /// Where it will run.
    pub device: *mut Device,
    /// Attributes of the node, a list of `Attr`. All are of the op's definition; those with the default value may be missing. A
    /// kernel that does not read one of them gives UNSUPPORTED: a newer host may know a newer definition.
    pub attrs: List,
    /// Types of the inputs, a list of `Tensor`, optional ones that are absent included.
    pub inputs: List,
    /// Types of the outputs, likewise.
    pub outputs: List,
    /// What the numbers may be: a sum of what is allowed, DEVBAY_NUMERICS_*, of which a kernel does any or nothing. A bit that
    /// it does not know allows what it does not do. Bits from 2^32 on are demands, of which there is none yet.
    pub numerics: u64,
    /// Name of the node for messages and traces; may be empty.
    pub label: Str,
}

/// Enqueues one kernel (B21). Made by `prepare`.
///
/// `refs` are the inputs, the outputs, the extents if the kernel is DATA_SHAPE, and the workspace if it
/// asked for one: their number was fixed by `prepare`, and the array is borrowed for the call only. What
/// they name stays lent until a point signalled after the launch is reported. `dims` is reserved, for extents that are
/// known at launch alone, and NULL.
///
/// Threads: one at a time per stream; the same state from many threads and streams at once. Order: after
/// everything enqueued on the stream before. Errors: what is known now, and concerns this launch alone;
/// found later, it fails the stream (B13); the failure of a stream that has failed. The host adds no check, lock,
/// allocation or clock.
///
/// Values: what the data of an input may not be by the op's definition, as an index out of range, is INVALID: the
/// status of the launch on an inline device, else of the launch or of the stream from the next point on, with the
/// op and the value in `stream_error`. No memory beside the operands is touched then, the outputs are undefined,
/// and the device goes on. Inline devices always owed this; since 0.2 all do.
///
/// Ending: a run that is cancelled or over its deadline is told to who works for it by `HostApi::parallel_for`, which a
/// kernel may also ask without a loop. A launch on an inline device that takes longer than some milliseconds asks, and
/// gives CANCELLED back; its outputs are undefined then. It is optional for a device with a timeline: the host enqueues
/// nothing more, and waits for what runs. A kernel that does not ask ends the run when it is done.
pub type LaunchFn = unsafe extern "C" fn(
    state: *const c_void,
    stream: *mut Stream,
    refs: *const BufferRef,
    dims: *const i64,
) -> Status;

/// A constant operand that a prepared kernel wants in a layout of its own. Growable; plugin-owned, as the
/// list that it is in. Since: 0.2.
///
/// The host asks `pack` for the content once, keeps it as a buffer of its own that all kernels, shapes and
/// sessions share, and passes that buffer in place of the constant. Required up to `align`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ConstantPack {
    /// Size of this struct as the plugin knows it.
    pub struct_size: u32,
    /// Which input.
    pub input_idx: u32,
    /// Names the layout in full: one constant under one id always has the same packed bytes, in every process and on
    /// every machine, for one name and version of the plugin. A host stores packed bytes and hands them to a later
    /// process, and they may have been changed: a launch stays within its buffers whatever they are.
    pub layout_id: u64,
    /// Bytes of the packed constant.
    pub size_bytes: u64,
    /// Its alignment in bytes, a power of two.
    pub align: u64,
}

/// What `prepare` returns. Growable; the host owns the struct, the plugin what it points to, until
/// `unprepare`. Immutable: launches read it from many threads.
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
    /// Scratch memory that each launch needs, in bytes; 0 for none. Comes as the last reference, from
    /// the space of the operands, with undefined content.
    pub workspace_bytes: u64,
    /// Its alignment in bytes, a power of two, or 0.
    pub workspace_align: u64,
    /// Constant operands that come packed, a list of `ConstantPack`, plugin-owned until `unprepare`. Empty
    /// when the agreed minor is below 2. Since: 0.2.
    pub packs: List,
}

/// Memory of one space now. Growable; the host owns it. Since: 0.2.
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
    /// Bytes that an allocation could still get; not a promise.
    pub bytes_available: u64,
}

/// What one launch costs, for the planner. Growable; the host owns it.
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
    /// Arithmetic operations; a multiply-add counts two.
    pub flops: u64,
    /// Bytes read from memory, each operand once.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
}

// ---------------------------------------------------------------------------------------------------
// The functions
// ---------------------------------------------------------------------------------------------------

/// The plugin's functions. Growable; plugin-owned, static.
///
/// The first twelve are required, the rest may be NULL and are emulated by the host (B7). Any function
/// may be called with an `error` of NULL. Handles are those of this instance; a NULL or foreign handle is
/// the host's bug, and a plugin may answer INVALID. Every function, and every body of a host's loop, leaves the
/// calling thread's floating-point control (rounding, flushing of subnormals, exception masks) as it found it
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

    /// Makes an instance: starts threads, opens the driver. May be called many times.
    ///
    /// Owns: the host owns `*out` and gives it back to `destroy`; `desc->host` is lent until then.
    /// Threads: control.
    /// Order: first.
    /// Errors: UNAVAILABLE without a driver, INVALID for an option it does not know, UNSUPPORTED for an
    /// `abi_minor` outside its range; then `*out` is untouched.
    /// Since: 0.1, required.
    pub create: Option<
        unsafe extern "C" fn(
            desc: *const CreateDesc,
            out: *mut *mut Instance,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Ends an instance: joins its threads. Everything made from it has been freed before.
    ///
    /// Owns: takes the instance.
    /// Threads: control.
    /// Order: last; after it the host's services are dead.
    /// Errors: none.
    /// Since: 0.1, required.
    pub destroy: Option<unsafe extern "C" fn(instance: *mut Instance)>,
    /// Lists the devices that are there now, a list of `DeviceInfo`; none is a success.
    ///
    /// A list is a snapshot: it stays as it is, and a later call gives another one where devices came or went. A device that is
    /// still there has the handle and the properties that it had. One that was lost or taken out is not listed; its handle
    /// stays until `destroy`, and answers DEVICE_LOST. One that came back, after a reset too, is listed with its id and a new
    /// handle. What becomes of one device stops no other.
    ///
    /// Owns: the plugin owns the list and the devices until `destroy`. A plugin that finds nothing changed gives the list that
    /// it gave before, so that asking often costs nothing.
    /// Threads: any.
    /// Order: after `create`.
    /// Errors: UNAVAILABLE with the reason when the driver cannot be asked; devices that the host knows go on.
    /// Since: 0.1, required.
    pub devices: Option<
        unsafe extern "C" fn(instance: *mut Instance, out: *mut List, error: *mut ErrorDetail) -> Status,
    >,

    /// Allocates memory, content undefined.
    ///
    /// Owns: the host owns the buffer and gives it back to `buffer_free`.
    /// Threads: any.
    /// Order: none.
    /// Errors: OUT_OF_MEMORY, INVALID for a space, alignment or size that the space does not have; then
    /// `*out` is untouched but for zeroes.
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

    /// Makes a stream, with nothing enqueued and value 0 reached.
    ///
    /// Owns: the host owns the stream and gives it back to `stream_destroy`.
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
    /// Ends a stream. What was enqueued is done first, signalled or not: the call waits for it, and for the callbacks. On a
    /// stream that has failed nothing further runs: the call waits until the device will touch nothing of what was enqueued,
    /// and points that were not reached are reported as failed to their callbacks (B24). Once the device is lost the call
    /// asks the driver for nothing that may not return, and is over within a second. A stream that another one waits for
    /// may be ended.
    ///
    /// Owns: takes the stream.
    /// Threads: one at a time per stream.
    /// Order: last on the stream.
    /// Errors: none.
    /// Since: 0.1, required.
    pub stream_destroy: Option<unsafe extern "C" fn(stream: *mut Stream)>,

    /// Enqueues a copy.
    ///
    /// Owns: what it names is lent until a point signalled after it is reported.
    /// Threads: one at a time per stream.
    /// Order: after everything enqueued on the stream before.
    /// Errors: INVALID for ranges outside their buffers, overlap or misalignment, the failure of a stream that has failed;
    /// nothing is enqueued.
    /// Since: 0.1, required.
    pub copy: Option<unsafe extern "C" fn(stream: *mut Stream, desc: *const CopyDesc) -> Status>,
    /// Enqueues a point: `value` is reached when everything before it is done and the device will never
    /// touch it again (B12). It is not reached, and the stream fails with INVALID, if a launch before it has met
    /// data that its op does not allow (B21). Implies a flush. NULL on plugins whose devices are all
    /// inline.
    ///
    /// Up to `value` all values count as signalled from now on: 0 on every stream, and those between two signals, which are
    /// reached with the later one.
    ///
    /// Owns: nothing.
    /// Threads: one at a time per stream.
    /// Order: values rise strictly.
    /// Errors: INVALID for a value that does not rise: nothing has changed, and the next signal stands for all that was
    /// enqueued before it. The failure of a stream that has failed. On any other failure everything since the last good
    /// signal has failed, and the value is never reached.
    /// Since: 0.1, required.
    pub stream_signal: Option<unsafe extern "C" fn(stream: *mut Stream, value: u64) -> Status>,
    /// Writes the last value reached with success, as cheaply as a load; never blocks, but may drive the
    /// driver on. Returns the stream's status: once it has failed, every later point has (B13). NULL on
    /// plugins whose devices are all inline.
    ///
    /// Work before a point happens before the point's report, be it here, by a callback or by a wait: the thread that gets the
    /// report sees what the work wrote to memory that the host can read, as does every thread that it then synchronises
    /// with.
    ///
    /// Once this, a callback or a wait has reported a failure, `copy`, a launch, `stream_wait`, `stream_signal`,
    /// `stream_flush` and a replay on that stream return it and enqueue nothing. Before, they may.
    ///
    /// Owns: nothing.
    /// Threads: any, never blocks, also while the owner enqueues.
    /// Order: none.
    /// Errors: the stream's sticky failure; INVALID where the data of a run was at fault, and not the device.
    /// Since: 0.1, required.
    pub stream_reached: Option<unsafe extern "C" fn(stream: *mut Stream, out_value: *mut u64) -> Status>,

    /// Makes a kernel for given attributes, dtypes, shapes and constants; checks everything (B21). Owns
    /// no memory of the size of weights. NULL on plugins without kernels.
    ///
    /// Owns: the host owns `*out` and gives it back to `unprepare`.
    /// Threads: any.
    /// Order: none.
    /// Errors: UNSUPPORTED with the reason, and the host asks the next kernel; INVALID for what breaks
    /// the op's specification; then `*out` is zero.
    /// Since: 0.1, required.
    pub prepare: Option<
        unsafe extern "C" fn(
            instance: *mut Instance,
            desc: *const PrepareDesc,
            out: *mut Prepared,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Frees what `prepare` made. No launch of it is in flight. NULL on plugins without kernels.
    ///
    /// Owns: takes `prepared->state`.
    /// Threads: any.
    /// Order: none.
    /// Errors: none.
    /// Since: 0.1, required.
    pub unprepare: Option<unsafe extern "C" fn(instance: *mut Instance, prepared: *mut Prepared)>,

    /// The plugin's side of an extension, or NULL for one that it does not have (B6).
    ///
    /// Owns: the plugin, until `destroy`.
    /// Threads: any.
    /// Order: after `create`.
    /// Errors: NULL.
    /// Since: 0.1.
    pub get_extension:
        Option<unsafe extern "C" fn(instance: *mut Instance, id: u32, min_revision: u32) -> *const c_void>,
    /// What is enqueued on `stream` from here on runs after `other` has reached `value`. Emulated by
    /// holding back what follows. `other` is of the same device, and may be `stream`, which then has nothing to wait for.
    ///
    /// Owns: nothing. `other` is borrowed for the call, and may be destroyed once it has returned.
    /// Threads: one at a time per `stream`, any for `other`.
    /// Order: `value` is at most the last that was signalled on `other` with success.
    /// Errors: INVALID for a value above it, with nothing enqueued; if `other` fails before it has reached `value`, so
    /// does `stream`, with ABORTED, which the call may return already; the failure of a `stream` that has failed.
    /// Since: 0.1.
    pub stream_wait:
        Option<unsafe extern "C" fn(stream: *mut Stream, other: *mut Stream, value: u64) -> Status>,
    /// Calls `done` exactly once, when `value` is reached or can be no more: on failure, device loss and
    /// `stream_destroy` too (B16). At once if it already is. Emulated by polling `stream_reached`.
    ///
    /// Owns: `arg` is lent until the call.
    /// Threads: any.
    /// Order: `value` is at most the last that was signalled with success.
    /// Errors: INVALID for a value above it; then `done` is not called.
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
    /// Blocks until `value` is reached, the stream fails or the time is over. A `timeout_ns` of 0 asks and does not block,
    /// UINT64_MAX is no limit. Emulated by polling.
    ///
    /// Owns: nothing.
    /// Threads: any, may block.
    /// Order: `value` is at most the last that was signalled with success.
    /// Errors: TIMEOUT, INVALID for a value above it, the stream's failure if `value` was not reached before it.
    /// Since: 0.1.
    pub stream_host_wait:
        Option<unsafe extern "C" fn(stream: *mut Stream, value: u64, timeout_ns: u64) -> Status>,
    /// Makes the device start on what is enqueued, for plugins that gather (B22): those whose launches wait for a flush or a
    /// signal. A host may call it within a long task, behind launches that it takes for worth a submission. A plugin without it
    /// starts at once, or on its own terms.
    ///
    /// Owns: nothing.
    /// Threads: one at a time per stream.
    /// Order: after what is enqueued.
    /// Errors: as `stream_signal`, and no INVALID.
    /// Since: 0.1.
    pub stream_flush: Option<unsafe extern "C" fn(stream: *mut Stream) -> Status>,
    /// Writes the detail of the stream's last non-zero status or failure. Also on inline devices: a
    /// launch has no error argument.
    ///
    /// Owns: nothing.
    /// Threads: any.
    /// Order: none.
    /// Errors: returns the status whose detail it wrote, OK if there is none.
    /// Since: 0.1.
    pub stream_error: Option<unsafe extern "C" fn(stream: *mut Stream, error: *mut ErrorDetail) -> Status>,
    /// Estimates what one launch will cost, before `prepare`.
    ///
    /// Owns: nothing.
    /// Threads: any.
    /// Order: none.
    /// Errors: UNSUPPORTED if it cannot say.
    /// Since: 0.1.
    pub kernel_cost: Option<
        unsafe extern "C" fn(
            instance: *mut Instance,
            desc: *const PrepareDesc,
            out: *mut KernelCost,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Writes a constant in the layout that a prepared kernel asked for.
    ///
    /// Owns: nothing; `src` and `dst` are lent for the call. `dst` is zeroed host memory of the size and
    /// alignment that were asked for.
    /// Threads: any. Order: between `prepare` and `unprepare`.
    /// Errors: INVALID for an input that was not asked for.
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
    /// Says how much memory there is. Without it the host knows the space's `bytes_total` alone.
    ///
    /// Owns: nothing.
    /// Threads: any. Order: none.
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
    /// Gives the type of one output of an op that ONNX does not define, from its inputs' types; `desc` has no
    /// outputs. At most `rank_max` extents are written. Without it such an op runs only where the model states
    /// the types of its results.
    ///
    /// Owns: nothing.
    /// Threads: any. Order: none.
    /// Errors: UNSUPPORTED for an output that the kernel does not make, INVALID for inputs that do not fit, or
    /// a rank above `rank_max`.
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
    /// Lists the kernels that one device has, a list of `DeviceKernel`, in the place of the plugin's list: to leave out what
    /// it cannot do, and to add what only it can, or what is known when the driver is open. Without it each device
    /// has those of the plugin's list. Called once for a device.
    ///
    /// Owns: the plugin owns the list, and what it points to, until `destroy`.
    /// Threads: any.
    /// Order: after `devices`.
    /// Errors: what the driver says; the device is then left out.
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

/// Memory: an address, of the host or the device, which DLPack calls `data`.
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
/// Stream: a `CUstream`, of which 0 is the default stream.
pub const DEVBAY_NATIVE_CUDA_STREAM: u32 = 64;
/// Stream: a `hipStream_t`, of which 0 is the default stream.
pub const DEVBAY_NATIVE_HIP_STREAM: u32 = 65;
/// Stream: a `cl_command_queue` that works in order.
pub const DEVBAY_NATIVE_OPENCL_QUEUE: u32 = 66;
/// Stream: an immediate `ze_command_list_handle_t`.
pub const DEVBAY_NATIVE_LEVEL_ZERO_LIST: u32 = 67;
/// Stream: a `VkQueue`; `aux` is its family.
pub const DEVBAY_NATIVE_VULKAN_QUEUE: u32 = 68;
/// Stream: a `MTLCommandQueue`.
pub const DEVBAY_NATIVE_METAL_QUEUE: u32 = 69;

/// A handle of a device's native interface (B15). Growable; who passes it owns the struct for the call. Since: 0.9.
///
/// That it is there is said by the pointer to this struct, what it is by `kind`: a `value` of 0 is a handle like any other.
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
    /// What the kind needs besides; else 0.
    pub aux: u64,
}

/// What `buffer_import` is asked for. Growable; the host owns it for the call. Since: 0.2.
///
/// Required up to `size_bytes`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ImportDesc {
    /// Size of this struct as the host knows it.
    pub struct_size: u32,
    /// Position in the device's list of spaces: the space whose memory it is.
    pub space_idx: u32,
    /// The memory's first byte as the device's native API names it.
    pub native: *const NativeHandle,
    /// Bytes that may be used. Copies may read up to the next multiple of the space's `copy_granule`, as in any buffer.
    pub size_bytes: u64,
}

/// Table of the extension that wraps and hands out what the device's native API knows: memory and streams, id 2 (B6,
/// B10, B15). Growable; plugin-owned, as long as the instance.
///
/// Required up to `stream_export`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct InteropTable {
    /// Bytes of this struct that its maker knows.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Says how DLPack names the device of a space's memory: `DLDevice`'s device_type and device_id.
    ///
    /// Owns: nothing.
    /// Threads: any.
    /// Order: none.
    /// Errors: INVALID for a space that the device does not have; UNSUPPORTED for one that DLPack has no name for.
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
    /// Makes a buffer of memory that the application or another library allocated. Its content is what the memory holds.
    ///
    /// Owns: the host owns the buffer and gives it back to `buffer_free`, which leaves the memory to its owner; it is
    /// lent until then.
    /// Threads: any.
    /// Order: what writes the memory outside of the device's streams is over, or ordered by a native stream that was
    /// wrapped.
    /// Errors: INVALID for memory that is not the device's, as far as that can be told, is not aligned to the space's
    /// `bind_align`, or for a space or size that the device does not have; UNSUPPORTED for a kind of handle that the
    /// device does not take; DEVICE_LOST.
    /// Since: 0.2; handles have a kind since 0.9.
    pub buffer_import: Option<
        unsafe extern "C" fn(
            device: *mut Device,
            desc: *const ImportDesc,
            out: *mut Allocation,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Gives the first byte of a buffer as the device's native API names it.
    ///
    /// Owns: nothing; it is valid until the buffer is freed.
    /// Threads: any.
    /// Order: none; who uses it natively sees to the order.
    /// Errors: UNSUPPORTED for a buffer without a native name.
    /// Since: 0.2; handles have a kind since 0.9.
    pub buffer_export: Option<
        unsafe extern "C" fn(
            buffer: *mut Buffer,
            out_native: *mut NativeHandle,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Makes a stream that works on a native one, such as an application's. A value of 0 may be one: CUDA's default stream.
    ///
    /// Owns: the host owns the stream and gives it back to `stream_destroy`, which waits for what was enqueued through
    /// it and leaves the native one to its owner; that is lent until then.
    /// Threads: any.
    /// Order: what is enqueued through the stream, and natively, comes in the order of the calls.
    /// Errors: UNSUPPORTED on a device without native streams, and for a kind of handle that it does not take; INVALID for
    /// what is none, as far as that can be told; as `stream_create`.
    /// Since: 0.2; handles have a kind since 0.9.
    pub stream_import: Option<
        unsafe extern "C" fn(
            device: *mut Device,
            native: *const NativeHandle,
            out: *mut *mut Stream,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Gives the native stream of a stream.
    ///
    /// Owns: nothing; it is valid until the stream is destroyed.
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

/// What a recording is to be. Growable; the host owns it, and the list that it names, for the call. Since: 0.9.
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
    /// Memory that may be other memory in a replay, a list of `BufferRef` of which none overlap. What a launch or a copy is
    /// given within one of them is bound to it: the same `buffer`, or addresses of the host's memory, and no byte
    /// outside. May be empty.
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
    /// What is replayed.
    pub recording: *mut Recording,
    /// What stands in the place of the recording's bindings, a list of `BufferRef`: as many, in the same order, each of the
    /// same length and in the same space. Empty where they are those of `record_begin`.
    pub bindings: List,
}

/// Table of the extension that takes down the work of a task once and runs it again with one call, id 3 (B6, B22).
/// Growable; plugin-owned, as long as the instance.
///
/// A recording has launches, and copies within the device's memory, with the references that they were given: the memory and
/// the prepared kernels that it names stay until it is freed and every point that was signalled behind a replay is reached.
/// What the memory holds may change from replay to replay; where it is may change for bindings alone. A host records what
/// it has launched before, so that a kernel may do in its first launch what cannot be recorded. What orders streams stands
/// around a replay, not in it.
///
/// Two replays of one recording are ordered by the host, unless they have their own memory in all that is written.
///
/// Required up to `recording_free`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ReplayTable {
    /// Bytes of this struct that its maker knows.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Begins a recording: launches on the stream, and copies from buffer to buffer, are taken down from now on and do not
    /// run. Nothing else may be enqueued there until `record_end`.
    ///
    /// Owns: nothing; the description is borrowed for the call.
    /// Threads: one at a time per stream; what is recorded comes from the thread that began.
    /// Order: what was enqueued before runs as it would.
    /// Errors: UNSUPPORTED on an inline stream, and for bindings where the plugin records none: the host may then record without;
    /// INVALID on a stream that records, and for bindings that overlap.
    /// Since: 0.2; takes a description since 0.9.
    pub record_begin: Option<unsafe extern "C" fn(stream: *mut Stream, desc: *const RecordDesc) -> Status>,
    /// Ends the recording that was begun, and gives it.
    ///
    /// Owns: the host owns what is written to `out_recording`, and frees it with `recording_free`.
    /// Threads: that of `record_begin`.
    /// Order: what is enqueued from now on runs again.
    /// Errors: UNSUPPORTED for work that cannot be recorded; INVALID on a stream that does not record. After an
    /// error there is no recording, and the stream is as before `record_begin`.
    /// Since: 0.2.
    pub record_end:
        Option<unsafe extern "C" fn(stream: *mut Stream, out_recording: *mut *mut Recording) -> Status>,
    /// Enqueues all that a recording has, in its order, on any stream of the device, which need not be the one that
    /// recorded. Failures of what it does are that stream's.
    ///
    /// Owns: nothing; the recording and the memory that is bound are lent until a point signalled behind it is reached.
    /// Threads: one at a time per stream; one recording from one thread at a time.
    /// Order: as a launch.
    /// Errors: as a launch; INVALID on a stream that records, of another device, and for bindings that are not as many and as long
    /// as the recording's; nothing is then enqueued.
    /// Since: 0.2; on any stream, with bindings, since 0.9.
    pub replay: Option<unsafe extern "C" fn(stream: *mut Stream, desc: *const ReplayDesc) -> Status>,
    /// Frees a recording.
    ///
    /// Owns: takes it back.
    /// Threads: any.
    /// Order: after the last replay's points were reached, or its streams destroyed, and before the memory and the
    /// prepared kernels that it names.
    /// Errors: none.
    /// Since: 0.2.
    pub recording_free: Option<unsafe extern "C" fn(recording: *mut Recording)>,
}

/// What the plugin says of one node of a graph that it was shown. Frozen. Since: 0.2, with groups since 0.9.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeClaim {
    /// 1 if the compiler takes the node, whichever others of the graph it is compiled with, but for its `group`; else 0.
    pub is_claimed: u32,
    /// 0, or a number of the plugin's that nodes share which it takes together or not at all, as the pieces of a quantised
    /// product: a graph that is compiled has all nodes of a group or none. Since: 0.9.
    pub group: u32,
    /// Arithmetic operations; a multiply-add counts two.
    pub flops: u64,
    /// Bytes of its operands and results, each once.
    pub bytes: u64,
}

/// What `compile`, `load` and `compile_ahead` are asked for: a program as code of a format, or as a graph. Growable; the
/// host owns it for the call. Since: 0.2.
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
    /// Where it will run; NULL for `compile_ahead`.
    pub device: *mut Device,
    /// What the code is, one of the device's formats, such as `stablehlo`. Empty for a graph, and for `load`.
    pub format: Str,
    /// The program: text, or whatever bytes the format has; for `load`, what `blob` gave. NULL for a graph. Borrowed for
    /// the call.
    #[cfg_attr(feature = "abi-stable", sabi(unsafe_opaque_field))]
    pub code: *const c_void,
    /// Bytes of `code`.
    pub code_bytes: u64,
    /// Types of the inputs that it will be run with, a list of `Tensor`: compilers need not tell what code takes. Empty for
    /// a graph and for `load`.
    pub inputs: List,
    /// Name of the program for messages and traces; may be empty.
    pub label: Str,
    /// The program as a graph, all of whose nodes the plugin claimed and all of whose types are known; NULL for code. A
    /// constant's bytes stay as they are for the call.
    pub graph: *const GraphView,
    /// What the numbers of a graph may be, as in `PrepareDesc`.
    pub numerics: u64,
    /// Inputs of the graph whose buffers the host means to donate at each run, a list of uint32_t: positions in the graph's
    /// values. A compiler may plan to reuse their memory; a run may still keep them.
    pub donors: List,
    /// What `compile_ahead` compiles for, in the plugin's own words.
    pub target: Str,
}

/// What a program gives. Growable; the host owns the struct, the plugin what it points to, until
/// `executable_free`. Since: 0.2.
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
    /// For a graph, what a run takes, in the order of the inputs of `execute`: a list of uint32_t, positions in the graph's
    /// values, each once. They are inputs of the graph that are used, and constants that the compiler wants as buffers,
    /// which the host writes once for all runs; other constants are in the program. Empty for code.
    pub inputs: List,
    /// Sum of DEVBAY_EXECUTABLE_* flags; those of DEVBAY_FLAGS_REQUIRED must be understood: the program is else not run.
    /// Since: 0.9.
    pub flags: u64,
}

/// `execute` writes results to memory that the host gives, where it gives some.
pub const DEVBAY_EXECUTABLE_TAKES_OUTPUTS: u64 = 1;

/// A run of a program. Growable; the host owns it, and the arrays that it names, for the call. Since: 0.9.
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
    /// A list of uint8_t, empty or one for each input: 1 where the program may take the input's memory for a result.
    /// The buffer is then only freed.
    pub donated: List,
    /// Where results go, a list of `BufferRef`, empty or one for each result: whole buffers of the host's, which are written;
    /// an absent reference where the plugin makes the buffer. Empty unless the program has
    /// DEVBAY_EXECUTABLE_TAKES_OUTPUTS. They overlap no other operand.
    pub outputs: List,
    /// Settings of this run, a list of `KeyValue`, by the rules of `CreateDesc::options`.
    pub options: List,
    /// Takes a buffer of the plugin's for each result; NULL is written where the host gave one.
    pub results: *mut *mut Buffer,
    /// Places of `results`: as many as the program has results.
    pub n_results: u64,
}

/// The program runs as it is.
pub const DEVBAY_BLOB_USABLE: u32 = 0;
/// It was made for something like this device: it has to be compiled anew.
pub const DEVBAY_BLOB_RECOMPILE: u32 = 1;
/// It is not for this device, or damaged.
pub const DEVBAY_BLOB_UNSUPPORTED: u32 = 2;

/// Table of the extension that compiles whole programs, id 1 (B6, B23): code of a format that the device's compiler reads,
/// or graphs whose nodes the plugin claims. Growable; plugin-owned, as long as the instance.
///
/// A plugin that takes no code has no `formats`; one that takes no graphs has no `claim`.
///
/// Required up to `executable_free`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CompileTable {
    /// Bytes of this struct that its maker knows.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Lists the formats that a device's compiler reads, a list of `Str`.
    ///
    /// Owns: the plugin owns the list until `destroy`.
    /// Threads: any.
    /// Order: none.
    /// Errors: what the driver says.
    /// Since: 0.2.
    pub formats:
        Option<unsafe extern "C" fn(device: *mut Device, out: *mut List, error: *mut ErrorDetail) -> Status>,
    /// Compiles a program; may take long.
    ///
    /// Owns: the host owns `*out` and gives it back to `executable_free`.
    /// Threads: any, may block.
    /// Order: none.
    /// Errors: UNSUPPORTED for a format that the compiler does not read; INVALID with the compiler's words for code
    /// that is wrong, or takes other inputs, as far as it tells; OUT_OF_MEMORY; then `*out` is untouched.
    /// Since: 0.2.
    pub compile: Option<
        unsafe extern "C" fn(
            device: *mut Device,
            desc: *const CompileDesc,
            out: *mut *mut Executable,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Says what a program gives.
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
    /// Enqueues a run. Results that the host gave no memory for are buffers of the plugin's, written to `desc->results` when
    /// the call returns; what results hold is there when a point signalled behind the run is reached.
    ///
    /// Owns: the description is borrowed for the call, the buffers that it names are lent until a point signalled after it
    /// is reported; the host owns the results and gives them back to `buffer_free`.
    /// Threads: one at a time per stream; one executable from many streams at once.
    /// Order: after everything enqueued on the stream before.
    /// Errors: INVALID for inputs or outputs that are not those of the program, as far as that is known, and for an option
    /// that it does not know; OUT_OF_MEMORY; then nothing is enqueued and nothing written. Found later, it fails the
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
    /// Owns: takes it back.
    /// Threads: any.
    /// Order: none; its results may live on.
    /// Errors: none.
    /// Since: 0.2.
    pub executable_free: Option<unsafe extern "C" fn(executable: *mut Executable)>,
    /// Says which nodes of a graph the device's compiler takes, and what they cost. A claim is a promise: any set of
    /// claimed nodes compiles that has no part of a group, but for memory. Nothing is compiled, and the graph's constants are shown but need not be
    /// read: this is asked often. `claims` has an element for each node, in order. NULL where no graphs are taken.
    ///
    /// Owns: graph and claims are the host's, for the call.
    /// Threads: any.
    /// Order: none.
    /// Errors: what the driver says; a node that is not known is not claimed, and no error.
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
    /// Gives a compiled program as bytes that can be stored, a list of uint8_t: what `load` takes, in this process or
    /// another. NULL where programs cannot be stored.
    ///
    /// Owns: the plugin owns the bytes until `executable_free`.
    /// Threads: any, may block.
    /// Order: none.
    /// Errors: UNSUPPORTED for a program that cannot be stored; OUT_OF_MEMORY.
    /// Since: 0.2.
    pub blob: Option<
        unsafe extern "C" fn(executable: *mut Executable, out: *mut List, error: *mut ErrorDetail) -> Status,
    >,
    /// Says whether stored bytes are a program for a device, one of DEVBAY_BLOB_*, without loading it. Bytes may be
    /// anything, also damaged.
    ///
    /// Owns: the bytes are borrowed for the call.
    /// Threads: any.
    /// Order: none.
    /// Errors: what the driver says.
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
    /// Makes a stored program ready to run: `desc->code` is what `blob` gave.
    ///
    /// Owns: as `compile`.
    /// Threads: any, may block.
    /// Order: none.
    /// Errors: UNSUPPORTED for bytes that `validate` does not find usable; as `compile` else.
    /// Since: 0.2.
    pub load: Option<
        unsafe extern "C" fn(
            device: *mut Device,
            desc: *const CompileDesc,
            out: *mut *mut Executable,
            error: *mut ErrorDetail,
        ) -> Status,
    >,
    /// Compiles a graph for a device that is not there, `desc->target`. The program has an `executable_info` and a `blob`,
    /// and cannot be run.
    ///
    /// Owns: as `compile`.
    /// Threads: any, may block.
    /// Order: none.
    /// Errors: UNSUPPORTED for a target that is not known, or a graph with a node that the compiler does not take, with
    /// the node's name; as `compile` else.
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

/// Table of the extension that makes streams fail and devices be lost on request, id 7 (B6, B13), so that a conformance
/// run sees what a failure does to a stream, to those that wait for it and to the others. Growable;
/// plugin-owned, as long as the instance.
///
/// Required up to `stream_fail`; a slot that a plugin does not have is NULL.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FaultTable {
    /// Bytes of this struct that its maker knows.
    pub struct_size: u32,
    /// Reserved, 0.
    pub reserved: u32,
    /// Enqueues work that fails with `status`, as a device's would: points that were signalled before are reached, later
    /// ones fail.
    ///
    /// Owns: nothing.
    /// Threads: one at a time per stream.
    /// Order: after what is enqueued.
    /// Errors: INVALID for a status of 0; UNSUPPORTED on an inline stream.
    /// Since: 0.2.
    pub stream_fail: Option<unsafe extern "C" fn(stream: *mut Stream, status: Status) -> Status>,
    /// Gives a device up as its driver would: its streams fail with DEVICE_LOST, and `devices` lists its handle no more.
    ///
    /// Owns: nothing; the device stays the plugin's.
    /// Threads: any.
    /// Order: none.
    /// Errors: DEVICE_LOST for one that is lost already.
    /// Since: 0.9.
    pub device_lose: Option<unsafe extern "C" fn(device: *mut Device) -> Status>,
}

// ---------------------------------------------------------------------------------------------------
// The entry
// ---------------------------------------------------------------------------------------------------

/// Every function from any thread at once (B17).
pub const DEVBAY_THREADING_FREE: u32 = 0;
/// Functions that take a stream: one at a time per stream, also `stream_reached` and its like; others
/// from any thread. The host adds the lock.
pub const DEVBAY_THREADING_PER_STREAM: u32 = 1;
/// One function of an instance at a time; the host adds the lock, and polls instead of `stream_host_wait`.
pub const DEVBAY_THREADING_SERIALISED: u32 = 2;

/// The library may be unloaded after its last instance is destroyed. Without it the host never does (B26).
pub const DEVBAY_PLUGIN_UNLOADABLE: u64 = 1;

/// An option that `create` takes. Growable; plugin-owned, static.
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
    /// Name, without the plugin's.
    pub key: Str,
    /// Value when it is not given.
    pub default_value: Str,
    /// One line for a person.
    pub doc: Str,
}

/// Puts a layer in front of a plugin: gives data to be used in the place of `next`, with a table whose functions call those
/// of `next`.
///
/// The layer shows the minors that both it and `next` speak, reads of `next` what its own header has, leaves a slot NULL that
/// is NULL there, passes handles on as they are, and answers NULL for an extension that it does not know. `next` may be a
/// plugin's, or another layer's.
///
/// Owns: `next`, and what is returned, stay as long as the process. Threads: control. May be called many times. Errors: NULL
/// with words, for a plugin that it cannot stand in front of. Since: 0.9.
pub type LayerFn =
    unsafe extern "C" fn(next: *const PluginInfo, error: *mut ErrorDetail) -> *const PluginInfo;

/// Who the plugin is (B1). Growable; plugin-owned, static, never written.
///
/// `struct_size`, `abi_minor_min` and `abi_minor_max` stay where they are in every version, so that any
/// host can read why it cannot use any plugin.
///
/// Required up to `table`.
#[cfg_attr(feature = "abi-stable", derive(abi_stable::StableAbi))]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Zeroable))]
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PluginInfo {
    /// Size of this struct as the plugin knows it.
    pub struct_size: u32,
    /// Oldest minor that it can work with: the one whose additions its code cannot do without.
    pub abi_minor_min: u32,
    /// Newest minor that it knows: DEVBAY_ABI_MINOR of the header that it was built with.
    pub abi_minor_max: u32,
    /// One of DEVBAY_THREADING_*.
    pub threading: u32,
    /// Sum of DEVBAY_PLUGIN_* flags; those of DEVBAY_FLAGS_REQUIRED must be understood.
    pub flags: u64,
    /// Short name, `[a-z][a-z0-9_-]*`; devices are called NAME:INDEX.
    pub name: Str,
    /// Who made it.
    pub vendor: Str,
    /// Its own version.
    pub version: Str,
    /// Its functions; NULL for a library that offers a layer alone.
    pub table: *const PluginTable,
    /// Conformance profiles that it claims, a list of `Str`: `base`, `kernels`, ...
    pub profiles: List,
    /// Its kernels, a list of `KernelInfo`. The list's stride may be that of a larger struct of the
    /// plugin's that begins with the descriptor.
    pub kernels: List,
    /// The options of `create`, a list of `OptionInfo`.
    pub options: List,
    /// Its view of this header's structs, a list of `LayoutField`, for reports; may be empty (B30).
    pub layout: List,
    /// A layer that it offers, by its name, or NULL. Since: 0.9.
    #[cfg_attr(feature = "abi-stable", sabi(unsafe_opaque_field))]
    pub layer: Option<LayerFn>,
}

/// The one symbol that a plugin exports, `devbay_plugin_query_v0` (B1).
///
/// Pure: starts no thread, touches no driver, allocates nothing, and gives the same pointer every time.
/// Not NULL. Threads: any. Since: 0.1.
pub type QueryFn = unsafe extern "C" fn() -> *const PluginInfo;
