//! NVIDIA GPUs through CUDA's driver, as asynchronous devices with addresses.
//!
//! - `library`: NVIDIA's libraries, opened at run time, and calls of the functions that cudarc declares;
//! - [`driver`]: CUDA's driver, and its status codes as errors;
//! - [`blas`], [`dnn`]: products by cuBLASLt and convolutions by cuDNN, where those are installed;
//! - [`device`]: GPUs as devices, their contexts, and their loss;
//! - [`memory`]: the device's memory and page-locked memory, both pooled;
//! - [`stream`]: streams, their points, and the thread that reports them;
//! - [`source`]: WGSL to CUDA C;
//! - [`compile`]: CUDA C to cubins, once for each text, with a cache on disk;
//! - [`dispatch`]: prepared kernels: compiled kernels with their parameters and arguments.
//!
//! The kernels, in WGSL, are those of [`devbay_shaders`].
//!
//! Building needs no part of CUDA. Without its driver there are no devices, and the plugin gives the reason; without NVRTC there
//! are no kernels.

pub mod blas;
pub mod compile;
pub mod device;
pub mod dispatch;
pub mod dnn;
pub mod driver;
pub(crate) mod library;
pub mod memory;
pub mod source;
pub mod stream;

use devbay_plugin_api::sdk::{About, Error, Host, Kernel, Options, Plugin, PluginOption, Result};
use devbay_shaders::kernels::ALL;
use device::{CudaDevice, Settings};
use std::path::PathBuf;
use std::sync::OnceLock;

static KERNELS: [Kernel<CudaDevice>; ALL.len()] = Kernel::shared_all(ALL);

/// One instance of the plugin.
pub struct Cuda {
    host: Host,
    nvrtc: Option<PathBuf>,
    cublas: String,
    cudnn: String,
    graphs: bool,
    checks: bool,
    devices: OnceLock<Result<Vec<CudaDevice>>>,
}

impl Plugin for Cuda {
    type Device = CudaDevice;

    const ABOUT: About = About {
        name: "cuda",
        vendor: "devbay",
        version: env!("CARGO_PKG_VERSION"),
        profiles: &["base", "kernels", "interop"],
        options: &[
            PluginOption {
                key: "nvrtc",
                default: "",
                doc: "file of NVRTC, which compiles kernels; else DEVBAY_NVRTC, else what the loader finds",
            },
            PluginOption {
                key: "cublas",
                default: "auto",
                doc: "cuBLASLt for products of matrices: auto where the loader finds it, no, or the library's file",
            },
            PluginOption {
                key: "cudnn",
                default: "auto",
                doc: "cuDNN for convolutions: auto where the loader finds it, no, or the library's file",
            },
            PluginOption {
                key: "graphs",
                default: "yes",
                doc: "yes, or no to launch each kernel by itself, where the host would have them as one of the driver's graphs",
            },
            PluginOption {
                key: "checks",
                default: "yes",
                doc: "yes, or no to clamp indices out of range in silence, where they would fail the run",
            },
        ],
        ..About::DEFAULT
    };

    const KERNELS: &'static [Kernel<CudaDevice>] = &KERNELS;

    fn reads_attribute(domain: &str, op: &str, name: &str) -> bool {
        devbay_ops::has_attribute(domain, op, name)
    }

    fn create(host: Host, options: &Options<'_>) -> Result<Self> {
        let nvrtc = match options.get("nvrtc") {
            "" => std::env::var_os("DEVBAY_NVRTC").map(PathBuf::from),
            path => Some(PathBuf::from(path)),
        };
        let switch = |key: &str| match options.get(key) {
            "yes" => Ok(true),
            "no" => Ok(false),
            other => Err(Error::invalid(format!("option {key} is yes or no, found {other}"))),
        };
        let (graphs, checks) = (switch("graphs")?, switch("checks")?);
        let (cublas, cudnn) = (options.get("cublas").to_owned(), options.get("cudnn").to_owned());
        Ok(Self { host, nvrtc, cublas, cudnn, graphs, checks, devices: OnceLock::new() })
    }

    fn devices(&self) -> Result<Vec<&CudaDevice>> {
        // The first call opens the devices and later ones do not: CUDA brings no lost context back within a process.
        let nvrtc = self.nvrtc.as_deref();
        let (cublas, cudnn) = (&*self.cublas, &*self.cudnn);
        let settings =
            Settings { nvrtc, cublas, cudnn, graphs: self.graphs, checks: self.checks, host: self.host };
        let devices = self.devices.get_or_init(|| device::open_all(&settings));
        let devices = devices.as_ref().map_err(Clone::clone)?;
        Ok(devices.iter().filter(|device| device.shared().check().is_ok()).collect())
    }
}

devbay_plugin_api::static_plugin!(Cuda);

pub use devbay_entry::PLUGIN;
#[cfg(feature = "entry")]
devbay_plugin_api::export_symbol!();
