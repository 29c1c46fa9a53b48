//! The processor as a devbay device.
//!
//! Everything runs through the plugin ABI: memory is the host's, loops go to the host's threads
//! ([`devbay_plugin_api::sdk::Host::parallel_for`]), and SIMD is chosen when the instance is made
//! ([`isa`]), so that the library itself is built for the baseline instruction set (B1). Streams complete
//! inline, or with the option `streams=async` each has a thread, a timeline and rate-limited copies
//! ([`stream`]), so that what asynchronous devices need is exercised without one.

#![expect(
    clippy::extra_unused_type_parameters,
    clippy::needless_range_loop,
    reason = "`dispatch!` gives every body its arithmetic, and loops over lanes are by index for the autovectoriser"
)]

pub mod device;
pub mod isa;
pub mod kernels;
pub mod lanes;
pub mod peaks;
pub mod stream;

use devbay_plugin_api::sdk::{About, Error, Host, Kernel, Options, Plugin, PluginOption, Result};
use device::{Choices, CpuDevice, Mode};
use isa::Isa;
use kernels::Rounding;

/// One instance of the plugin.
pub struct Cpu {
    /// The processor, once for each kind of stream that was asked for.
    devices: Vec<CpuDevice>,
}

impl Plugin for Cpu {
    type Device = CpuDevice;

    const ABOUT: About = About {
        name: "cpu",
        vendor: "devbay",
        version: env!("CARGO_PKG_VERSION"),
        profiles: &["base", "kernels", "interop"],
        options: &[
            PluginOption {
                key: "isa",
                default: "auto",
                doc: "instruction set: auto (DEVBAY_CPU_ISA, else the best), baseline, neon, avx2, avx512 (with AVX512-BF16, if \
                      there, where the host permits bf16)",
            },
            PluginOption {
                key: "streams",
                default: "inline",
                doc: "inline: work is done in the call; async: a thread and a timeline per stream; \
                      several, such as inline,async, are a device each",
            },
            PluginOption {
                key: "copy_mb_per_s",
                default: "20000",
                doc: "rate of copies on asynchronous streams, in 10^6 bytes per second",
            },
            PluginOption {
                key: "dft",
                default: "onnxruntime",
                doc: "factors of STFT's transforms: onnxruntime (rounded as there) or exact (also faster)",
            },
            PluginOption {
                key: "winograd",
                default: "on",
                doc: "3 x 3 convolutions with fewer products where that is faster: on (rounds by the largest number of a tile \
                      of pixels) or off",
            },
        ],
        ..About::DEFAULT
    };

    const KERNELS: &'static [Kernel<CpuDevice>] = &kernels::ALL;

    fn reads_attribute(domain: &str, op: &str, name: &str) -> bool {
        devbay_ops::has_attribute(domain, op, name)
    }

    fn create(host: Host, options: &Options<'_>) -> Result<Self> {
        let isa = Isa::choose(options.get("isa"))?;
        let bytes_per_s = copy_rate(options.get("copy_mb_per_s"))?;
        let mode = |text: &str| match text {
            "inline" => Ok(Mode::Inline),
            "async" => Ok(Mode::Async { bytes_per_s }),
            other => Err(Error::invalid(format!("option streams is inline or async, found {other}"))),
        };
        let modes: Vec<Mode> = options.get("streams").split(',').map(mode).collect::<Result<_>>()?;
        let dft = match options.get("dft") {
            "onnxruntime" => Rounding::Onnxruntime,
            "exact" => Rounding::Exact,
            other => {
                return Err(Error::invalid(format!("option dft is onnxruntime or exact, found {other}")));
            }
        };
        let winograd = match options.get("winograd") {
            "on" => true,
            "off" => false,
            other => return Err(Error::invalid(format!("option winograd is on or off, found {other}"))),
        };
        let choices = Choices { isa, dft, winograd };
        let limit = options.memory_limit();
        let device = |(index, mode)| CpuDevice::new(host, choices, mode, index, limit);
        Ok(Self { devices: modes.into_iter().enumerate().map(device).collect() })
    }

    fn devices(&self) -> Result<Vec<&CpuDevice>> {
        Ok(self.devices.iter().collect())
    }
}

fn copy_rate(text: &str) -> Result<u64> {
    match text.parse::<u64>() {
        Ok(rate) if rate > 0 => Ok(rate.saturating_mul(1_000_000)),
        _ => Err(Error::invalid(format!("option copy_mb_per_s is a number above 0, found {text}"))),
    }
}

devbay_plugin_api::static_plugin!(Cpu);

pub use devbay_entry::PLUGIN;
#[cfg(feature = "entry")]
devbay_plugin_api::export_symbol!();
