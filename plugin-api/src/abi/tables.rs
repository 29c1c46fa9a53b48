//! Layouts of the ABI's structs and rules of its functions, as data. Generated from `v0.rs` by
//! `cargo xtask header`; do not edit.

use super::growable::Growable;
use super::v0::*;
use core::ffi::*;
use core::mem::offset_of;

/// Layout of one struct on the architecture that this was compiled for.
#[derive(Clone, Copy, Debug)]
pub struct StructLayout {
    /// Name in Rust.
    pub name: &'static str,
    /// Name in C.
    pub c_name: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// True if it starts with `struct_size` and may gain fields.
    pub growable: bool,
    /// Fields in order.
    pub fields: &'static [FieldLayout],
}

/// Layout of one field.
#[derive(Clone, Copy, Debug)]
pub struct FieldLayout {
    /// Name, the same in Rust and C.
    pub name: &'static str,
    /// Offset in bytes.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

/// Threads that may call a function (B17).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ThreadClass {
    /// Any thread.
    Any,
    /// Any thread; the call never blocks.
    AnyNeverBlocks,
    /// Any thread; the call may block.
    AnyMayBlock,
    /// One call at a time per stream.
    PerStream,
    /// One call at a time, with no other call of the instance running.
    Control,
}

/// The rules of one function of `PluginTable`, from its documentation (B17).
#[derive(Clone, Copy, Debug)]
pub struct FunctionRule {
    /// Name of the function.
    pub name: &'static str,
    /// Threads that may call it.
    pub threads: ThreadClass,
    /// True if every plugin of its kind must have it (B7).
    pub required: bool,
    /// Minor version in which it appeared.
    pub since_minor: u32,
}

/// Every struct of the ABI, in the order of the header.
pub const LAYOUTS: &[StructLayout] = &[
    StructLayout {
        name: "Str",
        c_name: "devbay_str",
        size: size_of::<Str>(),
        align: align_of::<Str>(),
        growable: false,
        fields: &[
            FieldLayout { name: "ptr", offset: offset_of!(Str, ptr), size: size_of::<*const c_char>() },
            FieldLayout { name: "len", offset: offset_of!(Str, len), size: size_of::<u64>() },
        ],
    },
    StructLayout {
        name: "List",
        c_name: "devbay_list",
        size: size_of::<List>(),
        align: align_of::<List>(),
        growable: false,
        fields: &[
            FieldLayout { name: "ptr", offset: offset_of!(List, ptr), size: size_of::<*const c_void>() },
            FieldLayout { name: "len", offset: offset_of!(List, len), size: size_of::<u64>() },
            FieldLayout { name: "stride", offset: offset_of!(List, stride), size: size_of::<u64>() },
        ],
    },
    StructLayout {
        name: "DType",
        c_name: "devbay_dtype",
        size: size_of::<DType>(),
        align: align_of::<DType>(),
        growable: false,
        fields: &[
            FieldLayout { name: "code", offset: offset_of!(DType, code), size: size_of::<u8>() },
            FieldLayout { name: "bits", offset: offset_of!(DType, bits), size: size_of::<u8>() },
            FieldLayout { name: "lanes", offset: offset_of!(DType, lanes), size: size_of::<u16>() },
        ],
    },
    StructLayout {
        name: "BufferRef",
        c_name: "devbay_buffer_ref",
        size: size_of::<BufferRef>(),
        align: align_of::<BufferRef>(),
        growable: false,
        fields: &[
            FieldLayout {
                name: "buffer",
                offset: offset_of!(BufferRef, buffer),
                size: size_of::<*mut Buffer>(),
            },
            FieldLayout { name: "addr", offset: offset_of!(BufferRef, addr), size: size_of::<u64>() },
            FieldLayout { name: "offset", offset: offset_of!(BufferRef, offset), size: size_of::<u64>() },
            FieldLayout { name: "length", offset: offset_of!(BufferRef, length), size: size_of::<u64>() },
        ],
    },
    StructLayout {
        name: "KeyValue",
        c_name: "devbay_key_value",
        size: size_of::<KeyValue>(),
        align: align_of::<KeyValue>(),
        growable: false,
        fields: &[
            FieldLayout { name: "key", offset: offset_of!(KeyValue, key), size: size_of::<Str>() },
            FieldLayout { name: "value", offset: offset_of!(KeyValue, value), size: size_of::<Str>() },
        ],
    },
    StructLayout {
        name: "LayoutField",
        c_name: "devbay_layout_field",
        size: size_of::<LayoutField>(),
        align: align_of::<LayoutField>(),
        growable: false,
        fields: &[
            FieldLayout {
                name: "struct_name",
                offset: offset_of!(LayoutField, struct_name),
                size: size_of::<Str>(),
            },
            FieldLayout {
                name: "field_name",
                offset: offset_of!(LayoutField, field_name),
                size: size_of::<Str>(),
            },
            FieldLayout { name: "offset", offset: offset_of!(LayoutField, offset), size: size_of::<u32>() },
            FieldLayout { name: "size", offset: offset_of!(LayoutField, size), size: size_of::<u32>() },
        ],
    },
    StructLayout {
        name: "ErrorDetail",
        c_name: "devbay_error_detail",
        size: size_of::<ErrorDetail>(),
        align: align_of::<ErrorDetail>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(ErrorDetail, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "status",
                offset: offset_of!(ErrorDetail, status),
                size: size_of::<Status>(),
            },
            FieldLayout {
                name: "text",
                offset: offset_of!(ErrorDetail, text),
                size: size_of::<*mut c_char>(),
            },
            FieldLayout {
                name: "text_capacity",
                offset: offset_of!(ErrorDetail, text_capacity),
                size: size_of::<u64>(),
            },
            FieldLayout {
                name: "text_len",
                offset: offset_of!(ErrorDetail, text_len),
                size: size_of::<u64>(),
            },
            FieldLayout {
                name: "native_code",
                offset: offset_of!(ErrorDetail, native_code),
                size: size_of::<i64>(),
            },
        ],
    },
    StructLayout {
        name: "TraceEvent",
        c_name: "devbay_trace_event",
        size: size_of::<TraceEvent>(),
        align: align_of::<TraceEvent>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(TraceEvent, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "reserved",
                offset: offset_of!(TraceEvent, reserved),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "name", offset: offset_of!(TraceEvent, name), size: size_of::<Str>() },
            FieldLayout { name: "track", offset: offset_of!(TraceEvent, track), size: size_of::<Str>() },
            FieldLayout {
                name: "begin_ns",
                offset: offset_of!(TraceEvent, begin_ns),
                size: size_of::<u64>(),
            },
            FieldLayout { name: "end_ns", offset: offset_of!(TraceEvent, end_ns), size: size_of::<u64>() },
        ],
    },
    StructLayout {
        name: "HostApi",
        c_name: "devbay_host_api",
        size: size_of::<HostApi>(),
        align: align_of::<HostApi>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(HostApi, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "n_slots", offset: offset_of!(HostApi, n_slots), size: size_of::<u32>() },
            FieldLayout { name: "ctx", offset: offset_of!(HostApi, ctx), size: size_of::<*mut c_void>() },
            FieldLayout {
                name: "log",
                offset: offset_of!(HostApi, log),
                size: size_of::<Option<unsafe extern "C" fn(ctx: *mut c_void, level: u32, text: Str)>>(),
            },
            FieldLayout {
                name: "parallel_for",
                offset: offset_of!(HostApi, parallel_for),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            ctx: *mut c_void,
                            n: u64,
                            grain: u64,
                            body: Option<ChunkFn>,
                            arg: *mut c_void,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "config",
                offset: offset_of!(HostApi, config),
                size: size_of::<
                    Option<unsafe extern "C" fn(ctx: *mut c_void, key: Str, out: *mut Str) -> Status>,
                >(),
            },
            FieldLayout {
                name: "trace",
                offset: offset_of!(HostApi, trace),
                size: size_of::<Option<unsafe extern "C" fn(ctx: *mut c_void, event: *const TraceEvent)>>(),
            },
            FieldLayout {
                name: "get_extension",
                offset: offset_of!(HostApi, get_extension),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(ctx: *mut c_void, id: u32, min_revision: u32) -> *const c_void,
                    >,
                >(),
            },
            FieldLayout {
                name: "now_ns",
                offset: offset_of!(HostApi, now_ns),
                size: size_of::<Option<unsafe extern "C" fn(ctx: *mut c_void) -> u64>>(),
            },
        ],
    },
    StructLayout {
        name: "CreateDesc",
        c_name: "devbay_create_desc",
        size: size_of::<CreateDesc>(),
        align: align_of::<CreateDesc>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(CreateDesc, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "abi_minor",
                offset: offset_of!(CreateDesc, abi_minor),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "host",
                offset: offset_of!(CreateDesc, host),
                size: size_of::<*const HostApi>(),
            },
            FieldLayout { name: "options", offset: offset_of!(CreateDesc, options), size: size_of::<List>() },
        ],
    },
    StructLayout {
        name: "MemorySpace",
        c_name: "devbay_memory_space",
        size: size_of::<MemorySpace>(),
        align: align_of::<MemorySpace>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(MemorySpace, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "kind", offset: offset_of!(MemorySpace, kind), size: size_of::<u32>() },
            FieldLayout { name: "flags", offset: offset_of!(MemorySpace, flags), size: size_of::<u64>() },
            FieldLayout {
                name: "bytes_total",
                offset: offset_of!(MemorySpace, bytes_total),
                size: size_of::<u64>(),
            },
            FieldLayout {
                name: "alloc_max",
                offset: offset_of!(MemorySpace, alloc_max),
                size: size_of::<u64>(),
            },
            FieldLayout {
                name: "alloc_align",
                offset: offset_of!(MemorySpace, alloc_align),
                size: size_of::<u64>(),
            },
            FieldLayout {
                name: "bind_align",
                offset: offset_of!(MemorySpace, bind_align),
                size: size_of::<u64>(),
            },
            FieldLayout {
                name: "bind_max",
                offset: offset_of!(MemorySpace, bind_max),
                size: size_of::<u64>(),
            },
            FieldLayout {
                name: "copy_align",
                offset: offset_of!(MemorySpace, copy_align),
                size: size_of::<u64>(),
            },
            FieldLayout {
                name: "copy_granule",
                offset: offset_of!(MemorySpace, copy_granule),
                size: size_of::<u64>(),
            },
        ],
    },
    StructLayout {
        name: "DeviceInfo",
        c_name: "devbay_device_info",
        size: size_of::<DeviceInfo>(),
        align: align_of::<DeviceInfo>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(DeviceInfo, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "kind", offset: offset_of!(DeviceInfo, kind), size: size_of::<u32>() },
            FieldLayout {
                name: "handle",
                offset: offset_of!(DeviceInfo, handle),
                size: size_of::<*mut Device>(),
            },
            FieldLayout { name: "id", offset: offset_of!(DeviceInfo, id), size: size_of::<Str>() },
            FieldLayout { name: "name", offset: offset_of!(DeviceInfo, name), size: size_of::<Str>() },
            FieldLayout { name: "flags", offset: offset_of!(DeviceInfo, flags), size: size_of::<u64>() },
            FieldLayout {
                name: "streams_max",
                offset: offset_of!(DeviceInfo, streams_max),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "refs_max",
                offset: offset_of!(DeviceInfo, refs_max),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "spaces", offset: offset_of!(DeviceInfo, spaces), size: size_of::<List>() },
            FieldLayout {
                name: "physical_id",
                offset: offset_of!(DeviceInfo, physical_id),
                size: size_of::<[u8; 16]>(),
            },
            FieldLayout { name: "driver", offset: offset_of!(DeviceInfo, driver), size: size_of::<Str>() },
        ],
    },
    StructLayout {
        name: "AllocDesc",
        c_name: "devbay_alloc_desc",
        size: size_of::<AllocDesc>(),
        align: align_of::<AllocDesc>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(AllocDesc, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "space_idx",
                offset: offset_of!(AllocDesc, space_idx),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "size_bytes",
                offset: offset_of!(AllocDesc, size_bytes),
                size: size_of::<u64>(),
            },
            FieldLayout { name: "align", offset: offset_of!(AllocDesc, align), size: size_of::<u64>() },
            FieldLayout { name: "usage", offset: offset_of!(AllocDesc, usage), size: size_of::<u32>() },
            FieldLayout { name: "reserved", offset: offset_of!(AllocDesc, reserved), size: size_of::<u32>() },
            FieldLayout {
                name: "tensor",
                offset: offset_of!(AllocDesc, tensor),
                size: size_of::<*const Tensor>(),
            },
        ],
    },
    StructLayout {
        name: "Allocation",
        c_name: "devbay_allocation",
        size: size_of::<Allocation>(),
        align: align_of::<Allocation>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(Allocation, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "reserved",
                offset: offset_of!(Allocation, reserved),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "buffer",
                offset: offset_of!(Allocation, buffer),
                size: size_of::<*mut Buffer>(),
            },
            FieldLayout { name: "base", offset: offset_of!(Allocation, base), size: size_of::<u64>() },
            FieldLayout {
                name: "size_bytes",
                offset: offset_of!(Allocation, size_bytes),
                size: size_of::<u64>(),
            },
        ],
    },
    StructLayout {
        name: "StreamDesc",
        c_name: "devbay_stream_desc",
        size: size_of::<StreamDesc>(),
        align: align_of::<StreamDesc>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(StreamDesc, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "kind", offset: offset_of!(StreamDesc, kind), size: size_of::<u32>() },
            FieldLayout {
                name: "priority",
                offset: offset_of!(StreamDesc, priority),
                size: size_of::<i32>(),
            },
            FieldLayout {
                name: "reserved",
                offset: offset_of!(StreamDesc, reserved),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "label", offset: offset_of!(StreamDesc, label), size: size_of::<Str>() },
        ],
    },
    StructLayout {
        name: "CopyDesc",
        c_name: "devbay_copy_desc",
        size: size_of::<CopyDesc>(),
        align: align_of::<CopyDesc>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(CopyDesc, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "kind", offset: offset_of!(CopyDesc, kind), size: size_of::<u32>() },
            FieldLayout { name: "src", offset: offset_of!(CopyDesc, src), size: size_of::<BufferRef>() },
            FieldLayout { name: "dst", offset: offset_of!(CopyDesc, dst), size: size_of::<BufferRef>() },
            FieldLayout {
                name: "host_src",
                offset: offset_of!(CopyDesc, host_src),
                size: size_of::<*const c_void>(),
            },
            FieldLayout {
                name: "host_dst",
                offset: offset_of!(CopyDesc, host_dst),
                size: size_of::<*mut c_void>(),
            },
            FieldLayout {
                name: "size_bytes",
                offset: offset_of!(CopyDesc, size_bytes),
                size: size_of::<u64>(),
            },
        ],
    },
    StructLayout {
        name: "Tensor",
        c_name: "devbay_tensor",
        size: size_of::<Tensor>(),
        align: align_of::<Tensor>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(Tensor, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "rank", offset: offset_of!(Tensor, rank), size: size_of::<u32>() },
            FieldLayout { name: "dtype", offset: offset_of!(Tensor, dtype), size: size_of::<DType>() },
            FieldLayout { name: "flags", offset: offset_of!(Tensor, flags), size: size_of::<u32>() },
            FieldLayout { name: "shape", offset: offset_of!(Tensor, shape), size: size_of::<*const i64>() },
            FieldLayout {
                name: "strides",
                offset: offset_of!(Tensor, strides),
                size: size_of::<*const i64>(),
            },
            FieldLayout {
                name: "constant",
                offset: offset_of!(Tensor, constant),
                size: size_of::<*const c_void>(),
            },
            FieldLayout {
                name: "constant_bytes",
                offset: offset_of!(Tensor, constant_bytes),
                size: size_of::<u64>(),
            },
        ],
    },
    StructLayout {
        name: "Attr",
        c_name: "devbay_attr",
        size: size_of::<Attr>(),
        align: align_of::<Attr>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(Attr, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "kind", offset: offset_of!(Attr, kind), size: size_of::<u32>() },
            FieldLayout { name: "name", offset: offset_of!(Attr, name), size: size_of::<Str>() },
            FieldLayout { name: "i", offset: offset_of!(Attr, i), size: size_of::<i64>() },
            FieldLayout { name: "f", offset: offset_of!(Attr, f), size: size_of::<f64>() },
            FieldLayout { name: "s", offset: offset_of!(Attr, s), size: size_of::<Str>() },
            FieldLayout { name: "list", offset: offset_of!(Attr, list), size: size_of::<List>() },
            FieldLayout {
                name: "tensor",
                offset: offset_of!(Attr, tensor),
                size: size_of::<*const Tensor>(),
            },
            FieldLayout {
                name: "graph",
                offset: offset_of!(Attr, graph),
                size: size_of::<*const GraphView>(),
            },
        ],
    },
    StructLayout {
        name: "GraphView",
        c_name: "devbay_graph_view",
        size: size_of::<GraphView>(),
        align: align_of::<GraphView>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(GraphView, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "reserved", offset: offset_of!(GraphView, reserved), size: size_of::<u32>() },
            FieldLayout { name: "nodes", offset: offset_of!(GraphView, nodes), size: size_of::<List>() },
            FieldLayout { name: "values", offset: offset_of!(GraphView, values), size: size_of::<List>() },
            FieldLayout { name: "inputs", offset: offset_of!(GraphView, inputs), size: size_of::<List>() },
            FieldLayout { name: "outputs", offset: offset_of!(GraphView, outputs), size: size_of::<List>() },
        ],
    },
    StructLayout {
        name: "NodeView",
        c_name: "devbay_node_view",
        size: size_of::<NodeView>(),
        align: align_of::<NodeView>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(NodeView, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "since_version",
                offset: offset_of!(NodeView, since_version),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "domain", offset: offset_of!(NodeView, domain), size: size_of::<Str>() },
            FieldLayout { name: "op", offset: offset_of!(NodeView, op), size: size_of::<Str>() },
            FieldLayout { name: "name", offset: offset_of!(NodeView, name), size: size_of::<Str>() },
            FieldLayout { name: "attrs", offset: offset_of!(NodeView, attrs), size: size_of::<List>() },
            FieldLayout { name: "inputs", offset: offset_of!(NodeView, inputs), size: size_of::<List>() },
            FieldLayout { name: "outputs", offset: offset_of!(NodeView, outputs), size: size_of::<List>() },
        ],
    },
    StructLayout {
        name: "ValueView",
        c_name: "devbay_value_view",
        size: size_of::<ValueView>(),
        align: align_of::<ValueView>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(ValueView, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "reserved", offset: offset_of!(ValueView, reserved), size: size_of::<u32>() },
            FieldLayout { name: "name", offset: offset_of!(ValueView, name), size: size_of::<Str>() },
            FieldLayout {
                name: "tensor",
                offset: offset_of!(ValueView, tensor),
                size: size_of::<*const Tensor>(),
            },
        ],
    },
    StructLayout {
        name: "TypeVar",
        c_name: "devbay_type_var",
        size: size_of::<TypeVar>(),
        align: align_of::<TypeVar>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(TypeVar, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "n_dtypes", offset: offset_of!(TypeVar, n_dtypes), size: size_of::<u32>() },
            FieldLayout {
                name: "dtypes",
                offset: offset_of!(TypeVar, dtypes),
                size: size_of::<*const DType>(),
            },
        ],
    },
    StructLayout {
        name: "KernelInfo",
        c_name: "devbay_kernel_info",
        size: size_of::<KernelInfo>(),
        align: align_of::<KernelInfo>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(KernelInfo, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "since_version",
                offset: offset_of!(KernelInfo, since_version),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "domain", offset: offset_of!(KernelInfo, domain), size: size_of::<Str>() },
            FieldLayout { name: "op", offset: offset_of!(KernelInfo, op), size: size_of::<Str>() },
            FieldLayout {
                name: "n_inputs_min",
                offset: offset_of!(KernelInfo, n_inputs_min),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "n_inputs_max",
                offset: offset_of!(KernelInfo, n_inputs_max),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "n_outputs_min",
                offset: offset_of!(KernelInfo, n_outputs_min),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "n_outputs_max",
                offset: offset_of!(KernelInfo, n_outputs_max),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "typevars",
                offset: offset_of!(KernelInfo, typevars),
                size: size_of::<List>(),
            },
            FieldLayout {
                name: "input_typevars",
                offset: offset_of!(KernelInfo, input_typevars),
                size: size_of::<List>(),
            },
            FieldLayout {
                name: "output_typevars",
                offset: offset_of!(KernelInfo, output_typevars),
                size: size_of::<List>(),
            },
            FieldLayout {
                name: "priority",
                offset: offset_of!(KernelInfo, priority),
                size: size_of::<i32>(),
            },
            FieldLayout {
                name: "reserved",
                offset: offset_of!(KernelInfo, reserved),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "flags", offset: offset_of!(KernelInfo, flags), size: size_of::<u64>() },
            FieldLayout {
                name: "host_value_inputs",
                offset: offset_of!(KernelInfo, host_value_inputs),
                size: size_of::<u64>(),
            },
            FieldLayout {
                name: "in_place",
                offset: offset_of!(KernelInfo, in_place),
                size: size_of::<List>(),
            },
            FieldLayout { name: "doc", offset: offset_of!(KernelInfo, doc), size: size_of::<Str>() },
        ],
    },
    StructLayout {
        name: "DeviceKernel",
        c_name: "devbay_device_kernel",
        size: size_of::<DeviceKernel>(),
        align: align_of::<DeviceKernel>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(DeviceKernel, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "kernel_idx",
                offset: offset_of!(DeviceKernel, kernel_idx),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "info",
                offset: offset_of!(DeviceKernel, info),
                size: size_of::<*const KernelInfo>(),
            },
        ],
    },
    StructLayout {
        name: "PrepareDesc",
        c_name: "devbay_prepare_desc",
        size: size_of::<PrepareDesc>(),
        align: align_of::<PrepareDesc>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(PrepareDesc, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "kernel_idx",
                offset: offset_of!(PrepareDesc, kernel_idx),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "device",
                offset: offset_of!(PrepareDesc, device),
                size: size_of::<*mut Device>(),
            },
            FieldLayout { name: "attrs", offset: offset_of!(PrepareDesc, attrs), size: size_of::<List>() },
            FieldLayout { name: "inputs", offset: offset_of!(PrepareDesc, inputs), size: size_of::<List>() },
            FieldLayout {
                name: "outputs",
                offset: offset_of!(PrepareDesc, outputs),
                size: size_of::<List>(),
            },
            FieldLayout {
                name: "numerics",
                offset: offset_of!(PrepareDesc, numerics),
                size: size_of::<u64>(),
            },
            FieldLayout { name: "label", offset: offset_of!(PrepareDesc, label), size: size_of::<Str>() },
        ],
    },
    StructLayout {
        name: "ConstantPack",
        c_name: "devbay_constant_pack",
        size: size_of::<ConstantPack>(),
        align: align_of::<ConstantPack>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(ConstantPack, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "input_idx",
                offset: offset_of!(ConstantPack, input_idx),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "layout_id",
                offset: offset_of!(ConstantPack, layout_id),
                size: size_of::<u64>(),
            },
            FieldLayout {
                name: "size_bytes",
                offset: offset_of!(ConstantPack, size_bytes),
                size: size_of::<u64>(),
            },
            FieldLayout { name: "align", offset: offset_of!(ConstantPack, align), size: size_of::<u64>() },
        ],
    },
    StructLayout {
        name: "Prepared",
        c_name: "devbay_prepared",
        size: size_of::<Prepared>(),
        align: align_of::<Prepared>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(Prepared, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "reserved", offset: offset_of!(Prepared, reserved), size: size_of::<u32>() },
            FieldLayout {
                name: "launch",
                offset: offset_of!(Prepared, launch),
                size: size_of::<Option<LaunchFn>>(),
            },
            FieldLayout {
                name: "state",
                offset: offset_of!(Prepared, state),
                size: size_of::<*mut c_void>(),
            },
            FieldLayout {
                name: "workspace_bytes",
                offset: offset_of!(Prepared, workspace_bytes),
                size: size_of::<u64>(),
            },
            FieldLayout {
                name: "workspace_align",
                offset: offset_of!(Prepared, workspace_align),
                size: size_of::<u64>(),
            },
            FieldLayout { name: "packs", offset: offset_of!(Prepared, packs), size: size_of::<List>() },
        ],
    },
    StructLayout {
        name: "MemoryInfo",
        c_name: "devbay_memory_info",
        size: size_of::<MemoryInfo>(),
        align: align_of::<MemoryInfo>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(MemoryInfo, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "reserved",
                offset: offset_of!(MemoryInfo, reserved),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "bytes_in_use",
                offset: offset_of!(MemoryInfo, bytes_in_use),
                size: size_of::<u64>(),
            },
            FieldLayout {
                name: "bytes_available",
                offset: offset_of!(MemoryInfo, bytes_available),
                size: size_of::<u64>(),
            },
        ],
    },
    StructLayout {
        name: "KernelCost",
        c_name: "devbay_kernel_cost",
        size: size_of::<KernelCost>(),
        align: align_of::<KernelCost>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(KernelCost, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "reserved",
                offset: offset_of!(KernelCost, reserved),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "flops", offset: offset_of!(KernelCost, flops), size: size_of::<u64>() },
            FieldLayout {
                name: "bytes_read",
                offset: offset_of!(KernelCost, bytes_read),
                size: size_of::<u64>(),
            },
            FieldLayout {
                name: "bytes_written",
                offset: offset_of!(KernelCost, bytes_written),
                size: size_of::<u64>(),
            },
        ],
    },
    StructLayout {
        name: "PluginTable",
        c_name: "devbay_plugin_table",
        size: size_of::<PluginTable>(),
        align: align_of::<PluginTable>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(PluginTable, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "reserved",
                offset: offset_of!(PluginTable, reserved),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "create",
                offset: offset_of!(PluginTable, create),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            desc: *const CreateDesc,
                            out: *mut *mut Instance,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "destroy",
                offset: offset_of!(PluginTable, destroy),
                size: size_of::<Option<unsafe extern "C" fn(instance: *mut Instance)>>(),
            },
            FieldLayout {
                name: "devices",
                offset: offset_of!(PluginTable, devices),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            instance: *mut Instance,
                            out: *mut List,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "buffer_alloc",
                offset: offset_of!(PluginTable, buffer_alloc),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            device: *mut Device,
                            desc: *const AllocDesc,
                            out: *mut Allocation,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "buffer_free",
                offset: offset_of!(PluginTable, buffer_free),
                size: size_of::<Option<unsafe extern "C" fn(buffer: *mut Buffer)>>(),
            },
            FieldLayout {
                name: "stream_create",
                offset: offset_of!(PluginTable, stream_create),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            device: *mut Device,
                            desc: *const StreamDesc,
                            out: *mut *mut Stream,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "stream_destroy",
                offset: offset_of!(PluginTable, stream_destroy),
                size: size_of::<Option<unsafe extern "C" fn(stream: *mut Stream)>>(),
            },
            FieldLayout {
                name: "copy",
                offset: offset_of!(PluginTable, copy),
                size: size_of::<
                    Option<unsafe extern "C" fn(stream: *mut Stream, desc: *const CopyDesc) -> Status>,
                >(),
            },
            FieldLayout {
                name: "stream_signal",
                offset: offset_of!(PluginTable, stream_signal),
                size: size_of::<Option<unsafe extern "C" fn(stream: *mut Stream, value: u64) -> Status>>(),
            },
            FieldLayout {
                name: "stream_reached",
                offset: offset_of!(PluginTable, stream_reached),
                size: size_of::<
                    Option<unsafe extern "C" fn(stream: *mut Stream, out_value: *mut u64) -> Status>,
                >(),
            },
            FieldLayout {
                name: "prepare",
                offset: offset_of!(PluginTable, prepare),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            instance: *mut Instance,
                            desc: *const PrepareDesc,
                            out: *mut Prepared,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "unprepare",
                offset: offset_of!(PluginTable, unprepare),
                size: size_of::<Option<unsafe extern "C" fn(instance: *mut Instance, prepared: *mut Prepared)>>(
                ),
            },
            FieldLayout {
                name: "get_extension",
                offset: offset_of!(PluginTable, get_extension),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            instance: *mut Instance,
                            id: u32,
                            min_revision: u32,
                        ) -> *const c_void,
                    >,
                >(),
            },
            FieldLayout {
                name: "stream_wait",
                offset: offset_of!(PluginTable, stream_wait),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(stream: *mut Stream, other: *mut Stream, value: u64) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "stream_on_reached",
                offset: offset_of!(PluginTable, stream_on_reached),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            stream: *mut Stream,
                            value: u64,
                            done: Option<DoneFn>,
                            arg: *mut c_void,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "stream_host_wait",
                offset: offset_of!(PluginTable, stream_host_wait),
                size: size_of::<
                    Option<unsafe extern "C" fn(stream: *mut Stream, value: u64, timeout_ns: u64) -> Status>,
                >(),
            },
            FieldLayout {
                name: "stream_flush",
                offset: offset_of!(PluginTable, stream_flush),
                size: size_of::<Option<unsafe extern "C" fn(stream: *mut Stream) -> Status>>(),
            },
            FieldLayout {
                name: "stream_error",
                offset: offset_of!(PluginTable, stream_error),
                size: size_of::<
                    Option<unsafe extern "C" fn(stream: *mut Stream, error: *mut ErrorDetail) -> Status>,
                >(),
            },
            FieldLayout {
                name: "kernel_cost",
                offset: offset_of!(PluginTable, kernel_cost),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            instance: *mut Instance,
                            desc: *const PrepareDesc,
                            out: *mut KernelCost,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "pack",
                offset: offset_of!(PluginTable, pack),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            instance: *mut Instance,
                            prepared: *const Prepared,
                            input_idx: u32,
                            src: *const Tensor,
                            dst: *mut c_void,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "memory_info",
                offset: offset_of!(PluginTable, memory_info),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            device: *mut Device,
                            space_idx: u32,
                            out: *mut MemoryInfo,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "kernel_shape",
                offset: offset_of!(PluginTable, kernel_shape),
                size: size_of::<
                    Option<
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
                >(),
            },
            FieldLayout {
                name: "device_kernels",
                offset: offset_of!(PluginTable, device_kernels),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            instance: *mut Instance,
                            device: *mut Device,
                            out: *mut List,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
        ],
    },
    StructLayout {
        name: "NativeHandle",
        c_name: "devbay_native_handle",
        size: size_of::<NativeHandle>(),
        align: align_of::<NativeHandle>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(NativeHandle, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "kind", offset: offset_of!(NativeHandle, kind), size: size_of::<u32>() },
            FieldLayout { name: "value", offset: offset_of!(NativeHandle, value), size: size_of::<u64>() },
            FieldLayout { name: "aux", offset: offset_of!(NativeHandle, aux), size: size_of::<u64>() },
        ],
    },
    StructLayout {
        name: "ImportDesc",
        c_name: "devbay_import_desc",
        size: size_of::<ImportDesc>(),
        align: align_of::<ImportDesc>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(ImportDesc, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "space_idx",
                offset: offset_of!(ImportDesc, space_idx),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "native",
                offset: offset_of!(ImportDesc, native),
                size: size_of::<*const NativeHandle>(),
            },
            FieldLayout {
                name: "size_bytes",
                offset: offset_of!(ImportDesc, size_bytes),
                size: size_of::<u64>(),
            },
        ],
    },
    StructLayout {
        name: "InteropTable",
        c_name: "devbay_interop_table",
        size: size_of::<InteropTable>(),
        align: align_of::<InteropTable>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(InteropTable, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "reserved",
                offset: offset_of!(InteropTable, reserved),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "dlpack_device",
                offset: offset_of!(InteropTable, dlpack_device),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            device: *mut Device,
                            space_idx: u32,
                            out_type: *mut i32,
                            out_id: *mut i32,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "buffer_import",
                offset: offset_of!(InteropTable, buffer_import),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            device: *mut Device,
                            desc: *const ImportDesc,
                            out: *mut Allocation,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "buffer_export",
                offset: offset_of!(InteropTable, buffer_export),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            buffer: *mut Buffer,
                            out_native: *mut NativeHandle,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "stream_import",
                offset: offset_of!(InteropTable, stream_import),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            device: *mut Device,
                            native: *const NativeHandle,
                            out: *mut *mut Stream,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "stream_export",
                offset: offset_of!(InteropTable, stream_export),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            stream: *mut Stream,
                            out_native: *mut NativeHandle,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
        ],
    },
    StructLayout {
        name: "RecordDesc",
        c_name: "devbay_record_desc",
        size: size_of::<RecordDesc>(),
        align: align_of::<RecordDesc>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(RecordDesc, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "reserved",
                offset: offset_of!(RecordDesc, reserved),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "bindings",
                offset: offset_of!(RecordDesc, bindings),
                size: size_of::<List>(),
            },
        ],
    },
    StructLayout {
        name: "ReplayDesc",
        c_name: "devbay_replay_desc",
        size: size_of::<ReplayDesc>(),
        align: align_of::<ReplayDesc>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(ReplayDesc, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "reserved",
                offset: offset_of!(ReplayDesc, reserved),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "recording",
                offset: offset_of!(ReplayDesc, recording),
                size: size_of::<*mut Recording>(),
            },
            FieldLayout {
                name: "bindings",
                offset: offset_of!(ReplayDesc, bindings),
                size: size_of::<List>(),
            },
        ],
    },
    StructLayout {
        name: "ReplayTable",
        c_name: "devbay_replay_table",
        size: size_of::<ReplayTable>(),
        align: align_of::<ReplayTable>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(ReplayTable, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "reserved",
                offset: offset_of!(ReplayTable, reserved),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "record_begin",
                offset: offset_of!(ReplayTable, record_begin),
                size: size_of::<
                    Option<unsafe extern "C" fn(stream: *mut Stream, desc: *const RecordDesc) -> Status>,
                >(),
            },
            FieldLayout {
                name: "record_end",
                offset: offset_of!(ReplayTable, record_end),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            stream: *mut Stream,
                            out_recording: *mut *mut Recording,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "replay",
                offset: offset_of!(ReplayTable, replay),
                size: size_of::<
                    Option<unsafe extern "C" fn(stream: *mut Stream, desc: *const ReplayDesc) -> Status>,
                >(),
            },
            FieldLayout {
                name: "recording_free",
                offset: offset_of!(ReplayTable, recording_free),
                size: size_of::<Option<unsafe extern "C" fn(recording: *mut Recording)>>(),
            },
        ],
    },
    StructLayout {
        name: "NodeClaim",
        c_name: "devbay_node_claim",
        size: size_of::<NodeClaim>(),
        align: align_of::<NodeClaim>(),
        growable: false,
        fields: &[
            FieldLayout {
                name: "is_claimed",
                offset: offset_of!(NodeClaim, is_claimed),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "group", offset: offset_of!(NodeClaim, group), size: size_of::<u32>() },
            FieldLayout { name: "flops", offset: offset_of!(NodeClaim, flops), size: size_of::<u64>() },
            FieldLayout { name: "bytes", offset: offset_of!(NodeClaim, bytes), size: size_of::<u64>() },
        ],
    },
    StructLayout {
        name: "CompileDesc",
        c_name: "devbay_compile_desc",
        size: size_of::<CompileDesc>(),
        align: align_of::<CompileDesc>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(CompileDesc, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "reserved",
                offset: offset_of!(CompileDesc, reserved),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "device",
                offset: offset_of!(CompileDesc, device),
                size: size_of::<*mut Device>(),
            },
            FieldLayout { name: "format", offset: offset_of!(CompileDesc, format), size: size_of::<Str>() },
            FieldLayout {
                name: "code",
                offset: offset_of!(CompileDesc, code),
                size: size_of::<*const c_void>(),
            },
            FieldLayout {
                name: "code_bytes",
                offset: offset_of!(CompileDesc, code_bytes),
                size: size_of::<u64>(),
            },
            FieldLayout { name: "inputs", offset: offset_of!(CompileDesc, inputs), size: size_of::<List>() },
            FieldLayout { name: "label", offset: offset_of!(CompileDesc, label), size: size_of::<Str>() },
            FieldLayout {
                name: "graph",
                offset: offset_of!(CompileDesc, graph),
                size: size_of::<*const GraphView>(),
            },
            FieldLayout {
                name: "numerics",
                offset: offset_of!(CompileDesc, numerics),
                size: size_of::<u64>(),
            },
            FieldLayout { name: "donors", offset: offset_of!(CompileDesc, donors), size: size_of::<List>() },
            FieldLayout { name: "target", offset: offset_of!(CompileDesc, target), size: size_of::<Str>() },
        ],
    },
    StructLayout {
        name: "ExecutableInfo",
        c_name: "devbay_executable_info",
        size: size_of::<ExecutableInfo>(),
        align: align_of::<ExecutableInfo>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(ExecutableInfo, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "reserved",
                offset: offset_of!(ExecutableInfo, reserved),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "outputs",
                offset: offset_of!(ExecutableInfo, outputs),
                size: size_of::<List>(),
            },
            FieldLayout {
                name: "inputs",
                offset: offset_of!(ExecutableInfo, inputs),
                size: size_of::<List>(),
            },
            FieldLayout { name: "flags", offset: offset_of!(ExecutableInfo, flags), size: size_of::<u64>() },
        ],
    },
    StructLayout {
        name: "ExecuteDesc",
        c_name: "devbay_execute_desc",
        size: size_of::<ExecuteDesc>(),
        align: align_of::<ExecuteDesc>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(ExecuteDesc, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "reserved",
                offset: offset_of!(ExecuteDesc, reserved),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "inputs", offset: offset_of!(ExecuteDesc, inputs), size: size_of::<List>() },
            FieldLayout {
                name: "donated",
                offset: offset_of!(ExecuteDesc, donated),
                size: size_of::<List>(),
            },
            FieldLayout {
                name: "outputs",
                offset: offset_of!(ExecuteDesc, outputs),
                size: size_of::<List>(),
            },
            FieldLayout {
                name: "options",
                offset: offset_of!(ExecuteDesc, options),
                size: size_of::<List>(),
            },
            FieldLayout {
                name: "results",
                offset: offset_of!(ExecuteDesc, results),
                size: size_of::<*mut *mut Buffer>(),
            },
            FieldLayout {
                name: "n_results",
                offset: offset_of!(ExecuteDesc, n_results),
                size: size_of::<u64>(),
            },
        ],
    },
    StructLayout {
        name: "CompileTable",
        c_name: "devbay_compile_table",
        size: size_of::<CompileTable>(),
        align: align_of::<CompileTable>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(CompileTable, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "reserved",
                offset: offset_of!(CompileTable, reserved),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "formats",
                offset: offset_of!(CompileTable, formats),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            device: *mut Device,
                            out: *mut List,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "compile",
                offset: offset_of!(CompileTable, compile),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            device: *mut Device,
                            desc: *const CompileDesc,
                            out: *mut *mut Executable,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "executable_info",
                offset: offset_of!(CompileTable, executable_info),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            executable: *mut Executable,
                            out: *mut ExecutableInfo,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "execute",
                offset: offset_of!(CompileTable, execute),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            executable: *mut Executable,
                            stream: *mut Stream,
                            desc: *const ExecuteDesc,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "executable_free",
                offset: offset_of!(CompileTable, executable_free),
                size: size_of::<Option<unsafe extern "C" fn(executable: *mut Executable)>>(),
            },
            FieldLayout {
                name: "claim",
                offset: offset_of!(CompileTable, claim),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            device: *mut Device,
                            graph: *const GraphView,
                            claims: *mut NodeClaim,
                            n_claims: u64,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "blob",
                offset: offset_of!(CompileTable, blob),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            executable: *mut Executable,
                            out: *mut List,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "validate",
                offset: offset_of!(CompileTable, validate),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            device: *mut Device,
                            blob: *const c_void,
                            blob_bytes: u64,
                            out: *mut u32,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "load",
                offset: offset_of!(CompileTable, load),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            device: *mut Device,
                            desc: *const CompileDesc,
                            out: *mut *mut Executable,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
            FieldLayout {
                name: "compile_ahead",
                offset: offset_of!(CompileTable, compile_ahead),
                size: size_of::<
                    Option<
                        unsafe extern "C" fn(
                            instance: *mut Instance,
                            desc: *const CompileDesc,
                            out: *mut *mut Executable,
                            error: *mut ErrorDetail,
                        ) -> Status,
                    >,
                >(),
            },
        ],
    },
    StructLayout {
        name: "FaultTable",
        c_name: "devbay_fault_table",
        size: size_of::<FaultTable>(),
        align: align_of::<FaultTable>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(FaultTable, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "reserved",
                offset: offset_of!(FaultTable, reserved),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "stream_fail",
                offset: offset_of!(FaultTable, stream_fail),
                size: size_of::<Option<unsafe extern "C" fn(stream: *mut Stream, status: Status) -> Status>>(
                ),
            },
            FieldLayout {
                name: "device_lose",
                offset: offset_of!(FaultTable, device_lose),
                size: size_of::<Option<unsafe extern "C" fn(device: *mut Device) -> Status>>(),
            },
        ],
    },
    StructLayout {
        name: "OptionInfo",
        c_name: "devbay_option_info",
        size: size_of::<OptionInfo>(),
        align: align_of::<OptionInfo>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(OptionInfo, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "reserved",
                offset: offset_of!(OptionInfo, reserved),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "key", offset: offset_of!(OptionInfo, key), size: size_of::<Str>() },
            FieldLayout {
                name: "default_value",
                offset: offset_of!(OptionInfo, default_value),
                size: size_of::<Str>(),
            },
            FieldLayout { name: "doc", offset: offset_of!(OptionInfo, doc), size: size_of::<Str>() },
        ],
    },
    StructLayout {
        name: "PluginInfo",
        c_name: "devbay_plugin_info",
        size: size_of::<PluginInfo>(),
        align: align_of::<PluginInfo>(),
        growable: true,
        fields: &[
            FieldLayout {
                name: "struct_size",
                offset: offset_of!(PluginInfo, struct_size),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "abi_minor_min",
                offset: offset_of!(PluginInfo, abi_minor_min),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "abi_minor_max",
                offset: offset_of!(PluginInfo, abi_minor_max),
                size: size_of::<u32>(),
            },
            FieldLayout {
                name: "threading",
                offset: offset_of!(PluginInfo, threading),
                size: size_of::<u32>(),
            },
            FieldLayout { name: "flags", offset: offset_of!(PluginInfo, flags), size: size_of::<u64>() },
            FieldLayout { name: "name", offset: offset_of!(PluginInfo, name), size: size_of::<Str>() },
            FieldLayout { name: "vendor", offset: offset_of!(PluginInfo, vendor), size: size_of::<Str>() },
            FieldLayout { name: "version", offset: offset_of!(PluginInfo, version), size: size_of::<Str>() },
            FieldLayout {
                name: "table",
                offset: offset_of!(PluginInfo, table),
                size: size_of::<*const PluginTable>(),
            },
            FieldLayout {
                name: "profiles",
                offset: offset_of!(PluginInfo, profiles),
                size: size_of::<List>(),
            },
            FieldLayout { name: "kernels", offset: offset_of!(PluginInfo, kernels), size: size_of::<List>() },
            FieldLayout { name: "options", offset: offset_of!(PluginInfo, options), size: size_of::<List>() },
            FieldLayout { name: "layout", offset: offset_of!(PluginInfo, layout), size: size_of::<List>() },
            FieldLayout {
                name: "layer",
                offset: offset_of!(PluginInfo, layer),
                size: size_of::<Option<LayerFn>>(),
            },
        ],
    },
];

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for ErrorDetail {
    const NAME: &'static str = "ErrorDetail";
    const REQUIRED_SIZE: usize = offset_of!(ErrorDetail, text_len) + size_of::<u64>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(ErrorDetail, struct_size) + size_of::<u32>(),
        offset_of!(ErrorDetail, status) + size_of::<Status>(),
        offset_of!(ErrorDetail, text) + size_of::<*mut c_char>(),
        offset_of!(ErrorDetail, text_capacity) + size_of::<u64>(),
        offset_of!(ErrorDetail, text_len) + size_of::<u64>(),
        offset_of!(ErrorDetail, native_code) + size_of::<i64>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for TraceEvent {
    const NAME: &'static str = "TraceEvent";
    const REQUIRED_SIZE: usize = offset_of!(TraceEvent, end_ns) + size_of::<u64>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(TraceEvent, struct_size) + size_of::<u32>(),
        offset_of!(TraceEvent, reserved) + size_of::<u32>(),
        offset_of!(TraceEvent, name) + size_of::<Str>(),
        offset_of!(TraceEvent, track) + size_of::<Str>(),
        offset_of!(TraceEvent, begin_ns) + size_of::<u64>(),
        offset_of!(TraceEvent, end_ns) + size_of::<u64>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for HostApi {
    const NAME: &'static str = "HostApi";
    const REQUIRED_SIZE: usize =
        offset_of!(HostApi, now_ns) + size_of::<Option<unsafe extern "C" fn(ctx: *mut c_void) -> u64>>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(HostApi, struct_size) + size_of::<u32>(),
        offset_of!(HostApi, n_slots) + size_of::<u32>(),
        offset_of!(HostApi, ctx) + size_of::<*mut c_void>(),
        offset_of!(HostApi, log)
            + size_of::<Option<unsafe extern "C" fn(ctx: *mut c_void, level: u32, text: Str)>>(),
        offset_of!(HostApi, parallel_for)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        ctx: *mut c_void,
                        n: u64,
                        grain: u64,
                        body: Option<ChunkFn>,
                        arg: *mut c_void,
                    ) -> Status,
                >,
            >(),
        offset_of!(HostApi, config)
            + size_of::<Option<unsafe extern "C" fn(ctx: *mut c_void, key: Str, out: *mut Str) -> Status>>(),
        offset_of!(HostApi, trace)
            + size_of::<Option<unsafe extern "C" fn(ctx: *mut c_void, event: *const TraceEvent)>>(),
        offset_of!(HostApi, get_extension)
            + size_of::<
                Option<unsafe extern "C" fn(ctx: *mut c_void, id: u32, min_revision: u32) -> *const c_void>,
            >(),
        offset_of!(HostApi, now_ns) + size_of::<Option<unsafe extern "C" fn(ctx: *mut c_void) -> u64>>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for CreateDesc {
    const NAME: &'static str = "CreateDesc";
    const REQUIRED_SIZE: usize = offset_of!(CreateDesc, options) + size_of::<List>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(CreateDesc, struct_size) + size_of::<u32>(),
        offset_of!(CreateDesc, abi_minor) + size_of::<u32>(),
        offset_of!(CreateDesc, host) + size_of::<*const HostApi>(),
        offset_of!(CreateDesc, options) + size_of::<List>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for MemorySpace {
    const NAME: &'static str = "MemorySpace";
    const REQUIRED_SIZE: usize = offset_of!(MemorySpace, alloc_align) + size_of::<u64>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(MemorySpace, struct_size) + size_of::<u32>(),
        offset_of!(MemorySpace, kind) + size_of::<u32>(),
        offset_of!(MemorySpace, flags) + size_of::<u64>(),
        offset_of!(MemorySpace, bytes_total) + size_of::<u64>(),
        offset_of!(MemorySpace, alloc_max) + size_of::<u64>(),
        offset_of!(MemorySpace, alloc_align) + size_of::<u64>(),
        offset_of!(MemorySpace, bind_align) + size_of::<u64>(),
        offset_of!(MemorySpace, bind_max) + size_of::<u64>(),
        offset_of!(MemorySpace, copy_align) + size_of::<u64>(),
        offset_of!(MemorySpace, copy_granule) + size_of::<u64>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for DeviceInfo {
    const NAME: &'static str = "DeviceInfo";
    const REQUIRED_SIZE: usize = offset_of!(DeviceInfo, spaces) + size_of::<List>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(DeviceInfo, struct_size) + size_of::<u32>(),
        offset_of!(DeviceInfo, kind) + size_of::<u32>(),
        offset_of!(DeviceInfo, handle) + size_of::<*mut Device>(),
        offset_of!(DeviceInfo, id) + size_of::<Str>(),
        offset_of!(DeviceInfo, name) + size_of::<Str>(),
        offset_of!(DeviceInfo, flags) + size_of::<u64>(),
        offset_of!(DeviceInfo, streams_max) + size_of::<u32>(),
        offset_of!(DeviceInfo, refs_max) + size_of::<u32>(),
        offset_of!(DeviceInfo, spaces) + size_of::<List>(),
        offset_of!(DeviceInfo, physical_id) + size_of::<[u8; 16]>(),
        offset_of!(DeviceInfo, driver) + size_of::<Str>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for AllocDesc {
    const NAME: &'static str = "AllocDesc";
    const REQUIRED_SIZE: usize = offset_of!(AllocDesc, tensor) + size_of::<*const Tensor>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(AllocDesc, struct_size) + size_of::<u32>(),
        offset_of!(AllocDesc, space_idx) + size_of::<u32>(),
        offset_of!(AllocDesc, size_bytes) + size_of::<u64>(),
        offset_of!(AllocDesc, align) + size_of::<u64>(),
        offset_of!(AllocDesc, usage) + size_of::<u32>(),
        offset_of!(AllocDesc, reserved) + size_of::<u32>(),
        offset_of!(AllocDesc, tensor) + size_of::<*const Tensor>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for Allocation {
    const NAME: &'static str = "Allocation";
    const REQUIRED_SIZE: usize = offset_of!(Allocation, size_bytes) + size_of::<u64>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(Allocation, struct_size) + size_of::<u32>(),
        offset_of!(Allocation, reserved) + size_of::<u32>(),
        offset_of!(Allocation, buffer) + size_of::<*mut Buffer>(),
        offset_of!(Allocation, base) + size_of::<u64>(),
        offset_of!(Allocation, size_bytes) + size_of::<u64>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for StreamDesc {
    const NAME: &'static str = "StreamDesc";
    const REQUIRED_SIZE: usize = offset_of!(StreamDesc, struct_size) + size_of::<u32>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(StreamDesc, struct_size) + size_of::<u32>(),
        offset_of!(StreamDesc, kind) + size_of::<u32>(),
        offset_of!(StreamDesc, priority) + size_of::<i32>(),
        offset_of!(StreamDesc, reserved) + size_of::<u32>(),
        offset_of!(StreamDesc, label) + size_of::<Str>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for CopyDesc {
    const NAME: &'static str = "CopyDesc";
    const REQUIRED_SIZE: usize = offset_of!(CopyDesc, size_bytes) + size_of::<u64>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(CopyDesc, struct_size) + size_of::<u32>(),
        offset_of!(CopyDesc, kind) + size_of::<u32>(),
        offset_of!(CopyDesc, src) + size_of::<BufferRef>(),
        offset_of!(CopyDesc, dst) + size_of::<BufferRef>(),
        offset_of!(CopyDesc, host_src) + size_of::<*const c_void>(),
        offset_of!(CopyDesc, host_dst) + size_of::<*mut c_void>(),
        offset_of!(CopyDesc, size_bytes) + size_of::<u64>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for Tensor {
    const NAME: &'static str = "Tensor";
    const REQUIRED_SIZE: usize = offset_of!(Tensor, constant_bytes) + size_of::<u64>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(Tensor, struct_size) + size_of::<u32>(),
        offset_of!(Tensor, rank) + size_of::<u32>(),
        offset_of!(Tensor, dtype) + size_of::<DType>(),
        offset_of!(Tensor, flags) + size_of::<u32>(),
        offset_of!(Tensor, shape) + size_of::<*const i64>(),
        offset_of!(Tensor, strides) + size_of::<*const i64>(),
        offset_of!(Tensor, constant) + size_of::<*const c_void>(),
        offset_of!(Tensor, constant_bytes) + size_of::<u64>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for Attr {
    const NAME: &'static str = "Attr";
    const REQUIRED_SIZE: usize = offset_of!(Attr, graph) + size_of::<*const GraphView>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(Attr, struct_size) + size_of::<u32>(),
        offset_of!(Attr, kind) + size_of::<u32>(),
        offset_of!(Attr, name) + size_of::<Str>(),
        offset_of!(Attr, i) + size_of::<i64>(),
        offset_of!(Attr, f) + size_of::<f64>(),
        offset_of!(Attr, s) + size_of::<Str>(),
        offset_of!(Attr, list) + size_of::<List>(),
        offset_of!(Attr, tensor) + size_of::<*const Tensor>(),
        offset_of!(Attr, graph) + size_of::<*const GraphView>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for GraphView {
    const NAME: &'static str = "GraphView";
    const REQUIRED_SIZE: usize = offset_of!(GraphView, outputs) + size_of::<List>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(GraphView, struct_size) + size_of::<u32>(),
        offset_of!(GraphView, reserved) + size_of::<u32>(),
        offset_of!(GraphView, nodes) + size_of::<List>(),
        offset_of!(GraphView, values) + size_of::<List>(),
        offset_of!(GraphView, inputs) + size_of::<List>(),
        offset_of!(GraphView, outputs) + size_of::<List>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for NodeView {
    const NAME: &'static str = "NodeView";
    const REQUIRED_SIZE: usize = offset_of!(NodeView, outputs) + size_of::<List>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(NodeView, struct_size) + size_of::<u32>(),
        offset_of!(NodeView, since_version) + size_of::<u32>(),
        offset_of!(NodeView, domain) + size_of::<Str>(),
        offset_of!(NodeView, op) + size_of::<Str>(),
        offset_of!(NodeView, name) + size_of::<Str>(),
        offset_of!(NodeView, attrs) + size_of::<List>(),
        offset_of!(NodeView, inputs) + size_of::<List>(),
        offset_of!(NodeView, outputs) + size_of::<List>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for ValueView {
    const NAME: &'static str = "ValueView";
    const REQUIRED_SIZE: usize = offset_of!(ValueView, tensor) + size_of::<*const Tensor>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(ValueView, struct_size) + size_of::<u32>(),
        offset_of!(ValueView, reserved) + size_of::<u32>(),
        offset_of!(ValueView, name) + size_of::<Str>(),
        offset_of!(ValueView, tensor) + size_of::<*const Tensor>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for TypeVar {
    const NAME: &'static str = "TypeVar";
    const REQUIRED_SIZE: usize = offset_of!(TypeVar, dtypes) + size_of::<*const DType>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(TypeVar, struct_size) + size_of::<u32>(),
        offset_of!(TypeVar, n_dtypes) + size_of::<u32>(),
        offset_of!(TypeVar, dtypes) + size_of::<*const DType>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for KernelInfo {
    const NAME: &'static str = "KernelInfo";
    const REQUIRED_SIZE: usize = offset_of!(KernelInfo, output_typevars) + size_of::<List>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(KernelInfo, struct_size) + size_of::<u32>(),
        offset_of!(KernelInfo, since_version) + size_of::<u32>(),
        offset_of!(KernelInfo, domain) + size_of::<Str>(),
        offset_of!(KernelInfo, op) + size_of::<Str>(),
        offset_of!(KernelInfo, n_inputs_min) + size_of::<u32>(),
        offset_of!(KernelInfo, n_inputs_max) + size_of::<u32>(),
        offset_of!(KernelInfo, n_outputs_min) + size_of::<u32>(),
        offset_of!(KernelInfo, n_outputs_max) + size_of::<u32>(),
        offset_of!(KernelInfo, typevars) + size_of::<List>(),
        offset_of!(KernelInfo, input_typevars) + size_of::<List>(),
        offset_of!(KernelInfo, output_typevars) + size_of::<List>(),
        offset_of!(KernelInfo, priority) + size_of::<i32>(),
        offset_of!(KernelInfo, reserved) + size_of::<u32>(),
        offset_of!(KernelInfo, flags) + size_of::<u64>(),
        offset_of!(KernelInfo, host_value_inputs) + size_of::<u64>(),
        offset_of!(KernelInfo, in_place) + size_of::<List>(),
        offset_of!(KernelInfo, doc) + size_of::<Str>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for DeviceKernel {
    const NAME: &'static str = "DeviceKernel";
    const REQUIRED_SIZE: usize = offset_of!(DeviceKernel, info) + size_of::<*const KernelInfo>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(DeviceKernel, struct_size) + size_of::<u32>(),
        offset_of!(DeviceKernel, kernel_idx) + size_of::<u32>(),
        offset_of!(DeviceKernel, info) + size_of::<*const KernelInfo>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for PrepareDesc {
    const NAME: &'static str = "PrepareDesc";
    const REQUIRED_SIZE: usize = offset_of!(PrepareDesc, label) + size_of::<Str>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(PrepareDesc, struct_size) + size_of::<u32>(),
        offset_of!(PrepareDesc, kernel_idx) + size_of::<u32>(),
        offset_of!(PrepareDesc, device) + size_of::<*mut Device>(),
        offset_of!(PrepareDesc, attrs) + size_of::<List>(),
        offset_of!(PrepareDesc, inputs) + size_of::<List>(),
        offset_of!(PrepareDesc, outputs) + size_of::<List>(),
        offset_of!(PrepareDesc, numerics) + size_of::<u64>(),
        offset_of!(PrepareDesc, label) + size_of::<Str>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for ConstantPack {
    const NAME: &'static str = "ConstantPack";
    const REQUIRED_SIZE: usize = offset_of!(ConstantPack, align) + size_of::<u64>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(ConstantPack, struct_size) + size_of::<u32>(),
        offset_of!(ConstantPack, input_idx) + size_of::<u32>(),
        offset_of!(ConstantPack, layout_id) + size_of::<u64>(),
        offset_of!(ConstantPack, size_bytes) + size_of::<u64>(),
        offset_of!(ConstantPack, align) + size_of::<u64>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for Prepared {
    const NAME: &'static str = "Prepared";
    const REQUIRED_SIZE: usize = offset_of!(Prepared, state) + size_of::<*mut c_void>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(Prepared, struct_size) + size_of::<u32>(),
        offset_of!(Prepared, reserved) + size_of::<u32>(),
        offset_of!(Prepared, launch) + size_of::<Option<LaunchFn>>(),
        offset_of!(Prepared, state) + size_of::<*mut c_void>(),
        offset_of!(Prepared, workspace_bytes) + size_of::<u64>(),
        offset_of!(Prepared, workspace_align) + size_of::<u64>(),
        offset_of!(Prepared, packs) + size_of::<List>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for MemoryInfo {
    const NAME: &'static str = "MemoryInfo";
    const REQUIRED_SIZE: usize = offset_of!(MemoryInfo, bytes_available) + size_of::<u64>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(MemoryInfo, struct_size) + size_of::<u32>(),
        offset_of!(MemoryInfo, reserved) + size_of::<u32>(),
        offset_of!(MemoryInfo, bytes_in_use) + size_of::<u64>(),
        offset_of!(MemoryInfo, bytes_available) + size_of::<u64>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for KernelCost {
    const NAME: &'static str = "KernelCost";
    const REQUIRED_SIZE: usize = offset_of!(KernelCost, bytes_written) + size_of::<u64>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(KernelCost, struct_size) + size_of::<u32>(),
        offset_of!(KernelCost, reserved) + size_of::<u32>(),
        offset_of!(KernelCost, flops) + size_of::<u64>(),
        offset_of!(KernelCost, bytes_read) + size_of::<u64>(),
        offset_of!(KernelCost, bytes_written) + size_of::<u64>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for PluginTable {
    const NAME: &'static str = "PluginTable";
    const REQUIRED_SIZE: usize = offset_of!(PluginTable, unprepare)
        + size_of::<Option<unsafe extern "C" fn(instance: *mut Instance, prepared: *mut Prepared)>>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(PluginTable, struct_size) + size_of::<u32>(),
        offset_of!(PluginTable, reserved) + size_of::<u32>(),
        offset_of!(PluginTable, create)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        desc: *const CreateDesc,
                        out: *mut *mut Instance,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
        offset_of!(PluginTable, destroy) + size_of::<Option<unsafe extern "C" fn(instance: *mut Instance)>>(),
        offset_of!(PluginTable, devices)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        instance: *mut Instance,
                        out: *mut List,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
        offset_of!(PluginTable, buffer_alloc)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        device: *mut Device,
                        desc: *const AllocDesc,
                        out: *mut Allocation,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
        offset_of!(PluginTable, buffer_free) + size_of::<Option<unsafe extern "C" fn(buffer: *mut Buffer)>>(),
        offset_of!(PluginTable, stream_create)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        device: *mut Device,
                        desc: *const StreamDesc,
                        out: *mut *mut Stream,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
        offset_of!(PluginTable, stream_destroy)
            + size_of::<Option<unsafe extern "C" fn(stream: *mut Stream)>>(),
        offset_of!(PluginTable, copy)
            + size_of::<Option<unsafe extern "C" fn(stream: *mut Stream, desc: *const CopyDesc) -> Status>>(),
        offset_of!(PluginTable, stream_signal)
            + size_of::<Option<unsafe extern "C" fn(stream: *mut Stream, value: u64) -> Status>>(),
        offset_of!(PluginTable, stream_reached)
            + size_of::<Option<unsafe extern "C" fn(stream: *mut Stream, out_value: *mut u64) -> Status>>(),
        offset_of!(PluginTable, prepare)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        instance: *mut Instance,
                        desc: *const PrepareDesc,
                        out: *mut Prepared,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
        offset_of!(PluginTable, unprepare)
            + size_of::<Option<unsafe extern "C" fn(instance: *mut Instance, prepared: *mut Prepared)>>(),
        offset_of!(PluginTable, get_extension)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        instance: *mut Instance,
                        id: u32,
                        min_revision: u32,
                    ) -> *const c_void,
                >,
            >(),
        offset_of!(PluginTable, stream_wait)
            + size_of::<
                Option<unsafe extern "C" fn(stream: *mut Stream, other: *mut Stream, value: u64) -> Status>,
            >(),
        offset_of!(PluginTable, stream_on_reached)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        stream: *mut Stream,
                        value: u64,
                        done: Option<DoneFn>,
                        arg: *mut c_void,
                    ) -> Status,
                >,
            >(),
        offset_of!(PluginTable, stream_host_wait)
            + size_of::<
                Option<unsafe extern "C" fn(stream: *mut Stream, value: u64, timeout_ns: u64) -> Status>,
            >(),
        offset_of!(PluginTable, stream_flush)
            + size_of::<Option<unsafe extern "C" fn(stream: *mut Stream) -> Status>>(),
        offset_of!(PluginTable, stream_error)
            + size_of::<Option<unsafe extern "C" fn(stream: *mut Stream, error: *mut ErrorDetail) -> Status>>(
            ),
        offset_of!(PluginTable, kernel_cost)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        instance: *mut Instance,
                        desc: *const PrepareDesc,
                        out: *mut KernelCost,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
        offset_of!(PluginTable, pack)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        instance: *mut Instance,
                        prepared: *const Prepared,
                        input_idx: u32,
                        src: *const Tensor,
                        dst: *mut c_void,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
        offset_of!(PluginTable, memory_info)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        device: *mut Device,
                        space_idx: u32,
                        out: *mut MemoryInfo,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
        offset_of!(PluginTable, kernel_shape)
            + size_of::<
                Option<
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
            >(),
        offset_of!(PluginTable, device_kernels)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        instance: *mut Instance,
                        device: *mut Device,
                        out: *mut List,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for NativeHandle {
    const NAME: &'static str = "NativeHandle";
    const REQUIRED_SIZE: usize = offset_of!(NativeHandle, aux) + size_of::<u64>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(NativeHandle, struct_size) + size_of::<u32>(),
        offset_of!(NativeHandle, kind) + size_of::<u32>(),
        offset_of!(NativeHandle, value) + size_of::<u64>(),
        offset_of!(NativeHandle, aux) + size_of::<u64>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for ImportDesc {
    const NAME: &'static str = "ImportDesc";
    const REQUIRED_SIZE: usize = offset_of!(ImportDesc, size_bytes) + size_of::<u64>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(ImportDesc, struct_size) + size_of::<u32>(),
        offset_of!(ImportDesc, space_idx) + size_of::<u32>(),
        offset_of!(ImportDesc, native) + size_of::<*const NativeHandle>(),
        offset_of!(ImportDesc, size_bytes) + size_of::<u64>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for InteropTable {
    const NAME: &'static str = "InteropTable";
    const REQUIRED_SIZE: usize = offset_of!(InteropTable, stream_export)
        + size_of::<
            Option<
                unsafe extern "C" fn(
                    stream: *mut Stream,
                    out_native: *mut NativeHandle,
                    error: *mut ErrorDetail,
                ) -> Status,
            >,
        >();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(InteropTable, struct_size) + size_of::<u32>(),
        offset_of!(InteropTable, reserved) + size_of::<u32>(),
        offset_of!(InteropTable, dlpack_device)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        device: *mut Device,
                        space_idx: u32,
                        out_type: *mut i32,
                        out_id: *mut i32,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
        offset_of!(InteropTable, buffer_import)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        device: *mut Device,
                        desc: *const ImportDesc,
                        out: *mut Allocation,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
        offset_of!(InteropTable, buffer_export)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        buffer: *mut Buffer,
                        out_native: *mut NativeHandle,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
        offset_of!(InteropTable, stream_import)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        device: *mut Device,
                        native: *const NativeHandle,
                        out: *mut *mut Stream,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
        offset_of!(InteropTable, stream_export)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        stream: *mut Stream,
                        out_native: *mut NativeHandle,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for RecordDesc {
    const NAME: &'static str = "RecordDesc";
    const REQUIRED_SIZE: usize = offset_of!(RecordDesc, bindings) + size_of::<List>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(RecordDesc, struct_size) + size_of::<u32>(),
        offset_of!(RecordDesc, reserved) + size_of::<u32>(),
        offset_of!(RecordDesc, bindings) + size_of::<List>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for ReplayDesc {
    const NAME: &'static str = "ReplayDesc";
    const REQUIRED_SIZE: usize = offset_of!(ReplayDesc, bindings) + size_of::<List>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(ReplayDesc, struct_size) + size_of::<u32>(),
        offset_of!(ReplayDesc, reserved) + size_of::<u32>(),
        offset_of!(ReplayDesc, recording) + size_of::<*mut Recording>(),
        offset_of!(ReplayDesc, bindings) + size_of::<List>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for ReplayTable {
    const NAME: &'static str = "ReplayTable";
    const REQUIRED_SIZE: usize = offset_of!(ReplayTable, recording_free)
        + size_of::<Option<unsafe extern "C" fn(recording: *mut Recording)>>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(ReplayTable, struct_size) + size_of::<u32>(),
        offset_of!(ReplayTable, reserved) + size_of::<u32>(),
        offset_of!(ReplayTable, record_begin)
            + size_of::<Option<unsafe extern "C" fn(stream: *mut Stream, desc: *const RecordDesc) -> Status>>(
            ),
        offset_of!(ReplayTable, record_end)
            + size_of::<
                Option<
                    unsafe extern "C" fn(stream: *mut Stream, out_recording: *mut *mut Recording) -> Status,
                >,
            >(),
        offset_of!(ReplayTable, replay)
            + size_of::<Option<unsafe extern "C" fn(stream: *mut Stream, desc: *const ReplayDesc) -> Status>>(
            ),
        offset_of!(ReplayTable, recording_free)
            + size_of::<Option<unsafe extern "C" fn(recording: *mut Recording)>>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for CompileDesc {
    const NAME: &'static str = "CompileDesc";
    const REQUIRED_SIZE: usize = offset_of!(CompileDesc, label) + size_of::<Str>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(CompileDesc, struct_size) + size_of::<u32>(),
        offset_of!(CompileDesc, reserved) + size_of::<u32>(),
        offset_of!(CompileDesc, device) + size_of::<*mut Device>(),
        offset_of!(CompileDesc, format) + size_of::<Str>(),
        offset_of!(CompileDesc, code) + size_of::<*const c_void>(),
        offset_of!(CompileDesc, code_bytes) + size_of::<u64>(),
        offset_of!(CompileDesc, inputs) + size_of::<List>(),
        offset_of!(CompileDesc, label) + size_of::<Str>(),
        offset_of!(CompileDesc, graph) + size_of::<*const GraphView>(),
        offset_of!(CompileDesc, numerics) + size_of::<u64>(),
        offset_of!(CompileDesc, donors) + size_of::<List>(),
        offset_of!(CompileDesc, target) + size_of::<Str>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for ExecutableInfo {
    const NAME: &'static str = "ExecutableInfo";
    const REQUIRED_SIZE: usize = offset_of!(ExecutableInfo, outputs) + size_of::<List>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(ExecutableInfo, struct_size) + size_of::<u32>(),
        offset_of!(ExecutableInfo, reserved) + size_of::<u32>(),
        offset_of!(ExecutableInfo, outputs) + size_of::<List>(),
        offset_of!(ExecutableInfo, inputs) + size_of::<List>(),
        offset_of!(ExecutableInfo, flags) + size_of::<u64>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for ExecuteDesc {
    const NAME: &'static str = "ExecuteDesc";
    const REQUIRED_SIZE: usize = offset_of!(ExecuteDesc, n_results) + size_of::<u64>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(ExecuteDesc, struct_size) + size_of::<u32>(),
        offset_of!(ExecuteDesc, reserved) + size_of::<u32>(),
        offset_of!(ExecuteDesc, inputs) + size_of::<List>(),
        offset_of!(ExecuteDesc, donated) + size_of::<List>(),
        offset_of!(ExecuteDesc, outputs) + size_of::<List>(),
        offset_of!(ExecuteDesc, options) + size_of::<List>(),
        offset_of!(ExecuteDesc, results) + size_of::<*mut *mut Buffer>(),
        offset_of!(ExecuteDesc, n_results) + size_of::<u64>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for CompileTable {
    const NAME: &'static str = "CompileTable";
    const REQUIRED_SIZE: usize = offset_of!(CompileTable, executable_free)
        + size_of::<Option<unsafe extern "C" fn(executable: *mut Executable)>>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(CompileTable, struct_size) + size_of::<u32>(),
        offset_of!(CompileTable, reserved) + size_of::<u32>(),
        offset_of!(CompileTable, formats)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        device: *mut Device,
                        out: *mut List,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
        offset_of!(CompileTable, compile)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        device: *mut Device,
                        desc: *const CompileDesc,
                        out: *mut *mut Executable,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
        offset_of!(CompileTable, executable_info)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        executable: *mut Executable,
                        out: *mut ExecutableInfo,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
        offset_of!(CompileTable, execute)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        executable: *mut Executable,
                        stream: *mut Stream,
                        desc: *const ExecuteDesc,
                    ) -> Status,
                >,
            >(),
        offset_of!(CompileTable, executable_free)
            + size_of::<Option<unsafe extern "C" fn(executable: *mut Executable)>>(),
        offset_of!(CompileTable, claim)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        device: *mut Device,
                        graph: *const GraphView,
                        claims: *mut NodeClaim,
                        n_claims: u64,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
        offset_of!(CompileTable, blob)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        executable: *mut Executable,
                        out: *mut List,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
        offset_of!(CompileTable, validate)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        device: *mut Device,
                        blob: *const c_void,
                        blob_bytes: u64,
                        out: *mut u32,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
        offset_of!(CompileTable, load)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        device: *mut Device,
                        desc: *const CompileDesc,
                        out: *mut *mut Executable,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
        offset_of!(CompileTable, compile_ahead)
            + size_of::<
                Option<
                    unsafe extern "C" fn(
                        instance: *mut Instance,
                        desc: *const CompileDesc,
                        out: *mut *mut Executable,
                        error: *mut ErrorDetail,
                    ) -> Status,
                >,
            >(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for FaultTable {
    const NAME: &'static str = "FaultTable";
    const REQUIRED_SIZE: usize = offset_of!(FaultTable, stream_fail)
        + size_of::<Option<unsafe extern "C" fn(stream: *mut Stream, status: Status) -> Status>>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(FaultTable, struct_size) + size_of::<u32>(),
        offset_of!(FaultTable, reserved) + size_of::<u32>(),
        offset_of!(FaultTable, stream_fail)
            + size_of::<Option<unsafe extern "C" fn(stream: *mut Stream, status: Status) -> Status>>(),
        offset_of!(FaultTable, device_lose)
            + size_of::<Option<unsafe extern "C" fn(device: *mut Device) -> Status>>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for OptionInfo {
    const NAME: &'static str = "OptionInfo";
    const REQUIRED_SIZE: usize = offset_of!(OptionInfo, key) + size_of::<Str>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(OptionInfo, struct_size) + size_of::<u32>(),
        offset_of!(OptionInfo, reserved) + size_of::<u32>(),
        offset_of!(OptionInfo, key) + size_of::<Str>(),
        offset_of!(OptionInfo, default_value) + size_of::<Str>(),
        offset_of!(OptionInfo, doc) + size_of::<Str>(),
    ];
}

// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional
// functions; ends and required size come from the fields in order.
unsafe impl Growable for PluginInfo {
    const NAME: &'static str = "PluginInfo";
    const REQUIRED_SIZE: usize = offset_of!(PluginInfo, table) + size_of::<*const PluginTable>();
    const FIELD_ENDS: &'static [usize] = &[
        offset_of!(PluginInfo, struct_size) + size_of::<u32>(),
        offset_of!(PluginInfo, abi_minor_min) + size_of::<u32>(),
        offset_of!(PluginInfo, abi_minor_max) + size_of::<u32>(),
        offset_of!(PluginInfo, threading) + size_of::<u32>(),
        offset_of!(PluginInfo, flags) + size_of::<u64>(),
        offset_of!(PluginInfo, name) + size_of::<Str>(),
        offset_of!(PluginInfo, vendor) + size_of::<Str>(),
        offset_of!(PluginInfo, version) + size_of::<Str>(),
        offset_of!(PluginInfo, table) + size_of::<*const PluginTable>(),
        offset_of!(PluginInfo, profiles) + size_of::<List>(),
        offset_of!(PluginInfo, kernels) + size_of::<List>(),
        offset_of!(PluginInfo, options) + size_of::<List>(),
        offset_of!(PluginInfo, layout) + size_of::<List>(),
        offset_of!(PluginInfo, layer) + size_of::<Option<LayerFn>>(),
    ];
}

// The first half of what `Growable` promises, as the compiler sees it.
#[cfg(feature = "bytemuck")]
const _: () = {
    const fn all_zeroes_is_a_value<T: bytemuck::Zeroable>() {}
    all_zeroes_is_a_value::<ErrorDetail>();
    all_zeroes_is_a_value::<TraceEvent>();
    all_zeroes_is_a_value::<HostApi>();
    all_zeroes_is_a_value::<CreateDesc>();
    all_zeroes_is_a_value::<MemorySpace>();
    all_zeroes_is_a_value::<DeviceInfo>();
    all_zeroes_is_a_value::<AllocDesc>();
    all_zeroes_is_a_value::<Allocation>();
    all_zeroes_is_a_value::<StreamDesc>();
    all_zeroes_is_a_value::<CopyDesc>();
    all_zeroes_is_a_value::<Tensor>();
    all_zeroes_is_a_value::<Attr>();
    all_zeroes_is_a_value::<GraphView>();
    all_zeroes_is_a_value::<NodeView>();
    all_zeroes_is_a_value::<ValueView>();
    all_zeroes_is_a_value::<TypeVar>();
    all_zeroes_is_a_value::<KernelInfo>();
    all_zeroes_is_a_value::<DeviceKernel>();
    all_zeroes_is_a_value::<PrepareDesc>();
    all_zeroes_is_a_value::<ConstantPack>();
    all_zeroes_is_a_value::<Prepared>();
    all_zeroes_is_a_value::<MemoryInfo>();
    all_zeroes_is_a_value::<KernelCost>();
    all_zeroes_is_a_value::<PluginTable>();
    all_zeroes_is_a_value::<NativeHandle>();
    all_zeroes_is_a_value::<ImportDesc>();
    all_zeroes_is_a_value::<InteropTable>();
    all_zeroes_is_a_value::<RecordDesc>();
    all_zeroes_is_a_value::<ReplayDesc>();
    all_zeroes_is_a_value::<ReplayTable>();
    all_zeroes_is_a_value::<CompileDesc>();
    all_zeroes_is_a_value::<ExecutableInfo>();
    all_zeroes_is_a_value::<ExecuteDesc>();
    all_zeroes_is_a_value::<CompileTable>();
    all_zeroes_is_a_value::<FaultTable>();
    all_zeroes_is_a_value::<OptionInfo>();
    all_zeroes_is_a_value::<PluginInfo>();
};

/// The flags of a plugin that this version of the ABI defines.
pub const PLUGIN_FLAGS: u64 = DEVBAY_PLUGIN_UNLOADABLE;

/// The flags of a device that this version of the ABI defines.
pub const DEVICE_FLAGS: u64 =
    DEVBAY_DEVICE_INLINE | DEVBAY_DEVICE_ENQUEUE_MAY_BLOCK | DEVBAY_DEVICE_HOST_REFS;

/// The flags of a memory space that this version of the ABI defines.
pub const SPACE_FLAGS: u64 = DEVBAY_SPACE_HOST_VISIBLE
    | DEVBAY_SPACE_NO_SUBALLOC
    | DEVBAY_SPACE_WRITE_ONCE
    | DEVBAY_SPACE_TYPED
    | DEVBAY_SPACE_ADDRESSABLE;

/// The flags of a kernel that this version of the ABI defines.
pub const KERNEL_FLAGS: u64 = DEVBAY_KERNEL_STRIDED | DEVBAY_KERNEL_DETERMINISTIC | DEVBAY_KERNEL_DATA_SHAPE;

/// The flags of a program that this version of the ABI defines.
pub const EXECUTABLE_FLAGS: u64 = DEVBAY_EXECUTABLE_TAKES_OUTPUTS;

/// The rules of the table's functions, in its order (B17).
pub const FUNCTIONS: &[FunctionRule] = &[
    FunctionRule { name: "create", threads: ThreadClass::Control, required: true, since_minor: 1 },
    FunctionRule { name: "destroy", threads: ThreadClass::Control, required: true, since_minor: 1 },
    FunctionRule { name: "devices", threads: ThreadClass::Any, required: true, since_minor: 1 },
    FunctionRule { name: "buffer_alloc", threads: ThreadClass::Any, required: true, since_minor: 1 },
    FunctionRule { name: "buffer_free", threads: ThreadClass::Any, required: true, since_minor: 1 },
    FunctionRule { name: "stream_create", threads: ThreadClass::Any, required: true, since_minor: 1 },
    FunctionRule { name: "stream_destroy", threads: ThreadClass::PerStream, required: true, since_minor: 1 },
    FunctionRule { name: "copy", threads: ThreadClass::PerStream, required: true, since_minor: 1 },
    FunctionRule { name: "stream_signal", threads: ThreadClass::PerStream, required: true, since_minor: 1 },
    FunctionRule {
        name: "stream_reached",
        threads: ThreadClass::AnyNeverBlocks,
        required: true,
        since_minor: 1,
    },
    FunctionRule { name: "prepare", threads: ThreadClass::Any, required: true, since_minor: 1 },
    FunctionRule { name: "unprepare", threads: ThreadClass::Any, required: true, since_minor: 1 },
    FunctionRule { name: "get_extension", threads: ThreadClass::Any, required: false, since_minor: 1 },
    FunctionRule { name: "stream_wait", threads: ThreadClass::PerStream, required: false, since_minor: 1 },
    FunctionRule { name: "stream_on_reached", threads: ThreadClass::Any, required: false, since_minor: 1 },
    FunctionRule {
        name: "stream_host_wait",
        threads: ThreadClass::AnyMayBlock,
        required: false,
        since_minor: 1,
    },
    FunctionRule { name: "stream_flush", threads: ThreadClass::PerStream, required: false, since_minor: 1 },
    FunctionRule { name: "stream_error", threads: ThreadClass::Any, required: false, since_minor: 1 },
    FunctionRule { name: "kernel_cost", threads: ThreadClass::Any, required: false, since_minor: 1 },
    FunctionRule { name: "pack", threads: ThreadClass::Any, required: false, since_minor: 2 },
    FunctionRule { name: "memory_info", threads: ThreadClass::Any, required: false, since_minor: 2 },
    FunctionRule { name: "kernel_shape", threads: ThreadClass::Any, required: false, since_minor: 2 },
    FunctionRule { name: "device_kernels", threads: ThreadClass::Any, required: false, since_minor: 9 },
];
