//! A plugin for benchmarks: one processor device, whose kernels do next to nothing or as much as they are told.
//!
//! Their op is that of every peer in `executor`: a node takes the sum of its inputs, and one more if it has a single
//! input. `bench::Node` does that alone, so that what is left of a run is the executor's; `bench::Busy` then computes
//! for about as many nanoseconds as its attribute `ns` says. Both work on `i64[1]`, in the host's memory and in the
//! call. The kernels are in [`node`].

pub mod node;

use devbay_plugin_api::abi::{
    DEVBAY_DEVICE_HOST_REFS, DEVBAY_DEVICE_KIND_CPU, DEVBAY_SPACE_ADDRESSABLE, DEVBAY_SPACE_HOST_VISIBLE,
};
use devbay_plugin_api::sdk::*;
use node::Pace;

/// One instance of the plugin, with one device.
pub struct Bench {
    device: BenchDevice,
}

/// The processor.
pub struct BenchDevice {
    /// Speed of the processor, to convert nanoseconds into work.
    pub pace: Pace,
    desc: DeviceDesc,
}

/// A queue whose work is done in the call that enqueues it.
pub struct BenchStream;

impl Plugin for Bench {
    type Device = BenchDevice;

    const ABOUT: About = About {
        name: "bench",
        vendor: "devbay",
        version: env!("CARGO_PKG_VERSION"),
        profiles: &["base", "kernels"],
        options: &[PluginOption {
            key: "rounds_per_us",
            default: "measured",
            doc: "how often Busy goes round in a microsecond: a number, or measured once, when the instance is made",
        }],
        ..About::DEFAULT
    };

    const KERNELS: &'static [Kernel<BenchDevice>] = &node::KERNELS;

    fn create(_host: Host, options: &Options<'_>) -> Result<Self> {
        let pace = match options.get("rounds_per_us") {
            "measured" => Pace::measured(),
            text => match text.parse() {
                Ok(rounds) if rounds > 0.0 => Pace { rounds_per_us: rounds },
                _ => {
                    return Err(Error::invalid(format!(
                        "option rounds_per_us is a number above 0, or measured; found {text}"
                    )));
                }
            },
        };
        let desc = DeviceDesc {
            kind: DEVBAY_DEVICE_KIND_CPU,
            id: "0".to_owned(),
            name: "the processor, for benchmarks".to_owned(),
            inline: true,
            flags: DEVBAY_DEVICE_HOST_REFS,
            spaces: vec![SpaceDesc {
                flags: DEVBAY_SPACE_HOST_VISIBLE | DEVBAY_SPACE_ADDRESSABLE,
                // A node's result is one number: with more, a graph of a million of them would be a test of the cache.
                bind_align: 8,
                ..SpaceDesc::default()
            }],
            ..DeviceDesc::default()
        };
        Ok(Self { device: BenchDevice { pace, desc } })
    }

    fn devices(&self) -> Result<Vec<&BenchDevice>> {
        Ok(vec![&self.device])
    }
}

impl Device for BenchDevice {
    type Buffer = HostBuffer;
    type Stream = BenchStream;

    fn describe(&self) -> &DeviceDesc {
        &self.desc
    }

    fn alloc(&self, request: &AllocRequest<'_>) -> Result<Allocated<HostBuffer>> {
        HostBuffer::alloc(request)
    }

    fn create_stream(&self, _request: &StreamRequest<'_>) -> Result<BenchStream> {
        Ok(BenchStream)
    }
}

impl Stream for BenchStream {
    type Buffer = HostBuffer;

    fn copy(&self, copy: &CopyRequest<'_, HostBuffer>) -> Result<()> {
        copy.run_on_host();
        Ok(())
    }
}

devbay_plugin_api::export_plugin!(Bench);
