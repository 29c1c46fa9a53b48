//! A device that takes every node of every type and computes nothing: it measures what is around kernels.
//!
//! There is one exception: a node whose inputs are all constants is left to the next device, as hosts fold such nodes
//! and shapes are made of what comes out.
//!
//! A launch returns at once, so that `devbay bench` on this device shows what the engine itself takes for a run of a
//! model: its fixed cost, its steps, copies in and out, and, with `streams=async`, waiting for a timeline. Results are
//! whatever their memory held: zeros, as it was allocated, or another value's bytes, where the plan uses memory again.
//! So it claims the profile `base` alone; in `kernels` it fails wherever numbers are looked at, as it should.
//!
//! Memory is real, zeroed when it is allocated, and copies are made, in the call that enqueues them.

mod kernel;
mod ops;

use devbay_plugin_api::abi::{DEVBAY_DEVICE_HOST_REFS, DEVBAY_DEVICE_KIND_OTHER};
use devbay_plugin_api::sdk::*;
use std::time::Duration;

/// One instance of the plugin, with one device.
pub struct Null {
    device: NullDevice,
}

/// The device.
pub struct NullDevice {
    desc: DeviceDesc,
}

/// A queue on which everything is done when it is enqueued; it has a timeline where the host asked for one.
#[derive(Default)]
pub struct NullStream {
    timeline: Timeline,
}

impl Plugin for Null {
    type Device = NullDevice;

    const ABOUT: About = About {
        name: "null",
        vendor: "devbay",
        version: env!("CARGO_PKG_VERSION"),
        options: &[PluginOption {
            key: "streams",
            default: "inline",
            doc: "inline, or async: streams have a timeline, whose points are reached as soon as they are signalled",
        }],
        ..About::DEFAULT
    };

    const KERNELS: &'static [Kernel<NullDevice>] = &ops::KERNELS;

    fn reads_attribute(domain: &str, op: &str, name: &str) -> bool {
        devbay_ops::has_attribute(domain, op, name)
    }

    fn create(_host: Host, options: &Options<'_>) -> Result<Self> {
        let inline = match options.get("streams") {
            "inline" => true,
            "async" => false,
            other => {
                return Err(Error::invalid(format!("option streams is inline or async, found {other}")));
            }
        };
        let desc = DeviceDesc {
            kind: DEVBAY_DEVICE_KIND_OTHER,
            id: "0".to_owned(),
            name: "nothing".to_owned(),
            inline,
            flags: if inline { DEVBAY_DEVICE_HOST_REFS } else { 0 },
            ..DeviceDesc::default()
        };
        Ok(Self { device: NullDevice { desc } })
    }

    fn devices(&self) -> Result<Vec<&NullDevice>> {
        Ok(vec![&self.device])
    }
}

impl Device for NullDevice {
    type Buffer = HostBuffer;
    type Stream = NullStream;

    fn describe(&self) -> &DeviceDesc {
        &self.desc
    }

    fn alloc(&self, request: &AllocRequest<'_>) -> Result<Allocated<HostBuffer>> {
        let allocated = HostBuffer::alloc(request)?;
        // Nothing else writes what the host will read back.
        // SAFETY: the buffer has as many bytes, and was not handed out yet.
        unsafe { allocated.buffer.start().write_bytes(0, allocated.size_bytes) };
        Ok(allocated)
    }

    fn create_stream(&self, _request: &StreamRequest<'_>) -> Result<NullStream> {
        Ok(NullStream::default())
    }
}

impl Stream for NullStream {
    type Buffer = HostBuffer;

    const TIMELINE: bool = true;
    const WAIT: bool = true;
    const ON_REACHED: bool = true;
    const HOST_WAIT: bool = true;

    fn copy(&self, copy: &CopyRequest<'_, HostBuffer>) -> Result<()> {
        copy.run_on_host();
        Ok(())
    }

    fn signal(&self, value: u64) -> Result<()> {
        self.timeline.signal(value)?;
        self.timeline.reach(value);
        Ok(())
    }

    fn reached(&self) -> (u64, Result<()>) {
        self.timeline.reached()
    }

    fn wait(&self, other: &Self, value: u64) -> Result<()> {
        // A signalled value is reached: there is nothing to wait for.
        other.timeline.check_signalled(value)
    }

    fn on_reached(&self, value: u64, done: Done) -> Result<()> {
        self.timeline.on_reached(value, done)
    }

    fn host_wait(&self, value: u64, timeout: Duration) -> Result<()> {
        self.timeline.host_wait(value, timeout)
    }
}

devbay_plugin_api::export_plugin!(Null);

pub use devbay_entry::PLUGIN;
