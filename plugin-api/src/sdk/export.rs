//! From a [`Plugin`] to the ABI's table: one `extern "C"` function per slot.
//!
//! Each function does three things: it refuses NULL handles and broken structs, calls the plugin under the
//! guard, and writes the result within the receiver's size. Handles are the addresses of Rust values: an
//! instance is a box of `InstanceBox`, a device a reference into it, a buffer a box of `BufferBox`, a stream
//! a box of `StreamBox`.

mod call;
mod entry;
mod instance;
mod kernel;
mod memory;
mod stream;

pub(super) use call::{deref, free, refused, report};
pub use entry::{LinkedPlugin, info, options, texts};
pub(super) use instance::InstanceBox;
pub(super) use memory::give_buffer;
pub use stream::StreamBox;
pub(super) use stream::{enqueue_on, give_stream, on_box, refuse_failed};

use super::extensions::get_extension;
use super::listing::{device_kernels, devices};
use super::{Device, Plugin, Stream};
use crate::abi::*;
use instance::{create, destroy};
use kernel::{kernel_cost, kernel_shape, pack, prepare, unprepare};
use memory::{buffer_alloc, buffer_free, memory_info};
use stream::{
    copy, stream_create, stream_destroy, stream_error, stream_flush, stream_host_wait, stream_on_reached,
    stream_reached, stream_signal, stream_wait,
};

/// Returns the table of a plugin.
pub const fn table<P: Plugin>() -> PluginTable {
    // A trait's constant decides which slots are filled, so that an absent function is NULL and the host
    // emulates it.
    PluginTable {
        struct_size: size_of::<PluginTable>() as u32,
        reserved: 0,
        create: Some(create::<P>),
        destroy: Some(destroy::<P>),
        devices: Some(devices::<P>),
        buffer_alloc: Some(buffer_alloc::<P::Device>),
        buffer_free: Some(buffer_free::<P::Device>),
        stream_create: Some(stream_create::<P::Device>),
        stream_destroy: Some(stream_destroy::<P::Device>),
        copy: Some(copy::<P::Device>),
        stream_signal: if StreamOf::<P>::TIMELINE { Some(stream_signal::<P::Device>) } else { None },
        stream_reached: if StreamOf::<P>::TIMELINE { Some(stream_reached::<P::Device>) } else { None },
        prepare: if P::KERNELS.is_empty() { None } else { Some(prepare::<P>) },
        unprepare: if P::KERNELS.is_empty() { None } else { Some(unprepare) },
        get_extension: Some(get_extension::<P>),
        stream_wait: if StreamOf::<P>::WAIT { Some(stream_wait::<P::Device>) } else { None },
        stream_on_reached: if StreamOf::<P>::ON_REACHED {
            Some(stream_on_reached::<P::Device>)
        } else {
            None
        },
        stream_host_wait: if StreamOf::<P>::HOST_WAIT { Some(stream_host_wait::<P::Device>) } else { None },
        stream_flush: if StreamOf::<P>::FLUSH { Some(stream_flush::<P::Device>) } else { None },
        stream_error: Some(stream_error::<P::Device>),
        kernel_cost: if P::KERNELS.is_empty() { None } else { Some(kernel_cost::<P>) },
        pack: if P::KERNELS.is_empty() { None } else { Some(pack) },
        memory_info: if P::Device::MEMORY_INFO { Some(memory_info::<P::Device>) } else { None },
        kernel_shape: if P::KERNELS.is_empty() { None } else { Some(kernel_shape::<P>) },
        device_kernels: if P::NARROWS { Some(device_kernels::<P>) } else { None },
    }
}

trait Streams {
    const TIMELINE: bool;
    const WAIT: bool;
    const ON_REACHED: bool;
    const HOST_WAIT: bool;
    const FLUSH: bool;
}

/// The constants of a plugin's streams.
struct StreamOf<P>(core::marker::PhantomData<P>);

impl<P: Plugin> Streams for StreamOf<P> {
    const TIMELINE: bool = <<P::Device as Device>::Stream as Stream>::TIMELINE;
    const WAIT: bool = <<P::Device as Device>::Stream as Stream>::WAIT;
    const ON_REACHED: bool = <<P::Device as Device>::Stream as Stream>::ON_REACHED;
    const HOST_WAIT: bool = <<P::Device as Device>::Stream as Stream>::HOST_WAIT;
    const FLUSH: bool = <<P::Device as Device>::Stream as Stream>::FLUSH;
}
