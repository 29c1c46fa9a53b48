//! GPUs through wgpu: Vulkan, Metal and DirectX 12, as asynchronous devices without pointers.
//!
//! - [`device`]: adapters as devices, what they can, what they are lost by;
//! - [`memory`]: allocations, pooled, and the staging memory of uploads and readbacks;
//! - [`stream`]: command encoders that are submitted when a stream is signalled or flushed;
//! - [`worker`]: the thread that waits for submissions, and reports their points;
//! - [`marks`]: when launches ran, for the host's timeline;
//! - [`shader`]: WGSL to pipelines, once for each text, with a cache on disk;
//! - [`dispatch`]: what a prepared kernel is: shaders, their parameters, and what they are bound to.
//!
//! The kernels, in WGSL, are those of [`devbay_shaders`].

pub mod device;
pub mod dispatch;
pub mod marks;
pub mod memory;
pub mod shader;
pub mod stream;
pub mod worker;

use devbay_plugin_api::sdk::{About, DeviceSet, Error, Host, Kernel, Options, Plugin, PluginOption, Result};
use devbay_shaders::kernels::ALL;
use device::{Adapters, WgpuDevice};

static KERNELS: [Kernel<WgpuDevice>; ALL.len()] = Kernel::shared_all(ALL);

/// One instance of the plugin.
pub struct Wgpu {
    adapters: Adapters,
    host: Host,
    devices: DeviceSet<WgpuDevice>,
}

impl Plugin for Wgpu {
    type Device = WgpuDevice;

    const ABOUT: About = About {
        name: "wgpu",
        vendor: "devbay",
        version: env!("CARGO_PKG_VERSION"),
        profiles: &["base", "kernels"],
        options: &[
            PluginOption {
                key: "backend",
                default: "auto",
                doc: "drivers to look for: auto (all that the system has), vulkan, metal, dx12",
            },
            PluginOption {
                key: "software",
                default: "yes",
                doc: "yes, or no to leave out adapters that are programs on the processor",
            },
            PluginOption {
                key: "checks",
                default: "yes",
                doc: "yes, or no to clamp indices out of range in silence, where they would fail the run",
            },
            PluginOption {
                key: "lose_after",
                default: "0",
                doc: "for tests: the device is given up, and so lost, after so many submissions; 0 for never",
            },
        ],
        ..About::DEFAULT
    };

    const KERNELS: &'static [Kernel<WgpuDevice>] = &KERNELS;

    fn reads_attribute(domain: &str, op: &str, name: &str) -> bool {
        devbay_ops::has_attribute(domain, op, name)
    }

    fn create(host: Host, options: &Options<'_>) -> Result<Self> {
        let backends = match options.get("backend") {
            "auto" => wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12,
            "vulkan" => wgpu::Backends::VULKAN,
            "metal" => wgpu::Backends::METAL,
            "dx12" => wgpu::Backends::DX12,
            other => {
                let text = format!("option backend is auto, vulkan, metal or dx12, found {other}");
                return Err(Error::invalid(text));
            }
        };
        let software = match options.get("software") {
            "yes" => true,
            "no" => false,
            other => return Err(Error::invalid(format!("option software is yes or no, found {other}"))),
        };
        let lose_after = options.get("lose_after").parse().map_err(|_| {
            Error::invalid(format!("option lose_after is a number, found {}", options.get("lose_after")))
        })?;
        let checks = match options.get("checks") {
            "yes" => true,
            "no" => false,
            other => return Err(Error::invalid(format!("option checks is yes or no, found {other}"))),
        };
        let adapters = Adapters { backends, software, lose_after, checks };
        Ok(Self { adapters, host, devices: DeviceSet::default() })
    }

    fn devices(&self) -> Result<Vec<&WgpuDevice>> {
        self.devices.update(|known| self.adapters.open(self.host, known))
    }
}

devbay_plugin_api::static_plugin!(Wgpu);

pub use devbay_entry::PLUGIN;
#[cfg(feature = "entry")]
devbay_plugin_api::export_symbol!();
