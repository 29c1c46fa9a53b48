//! Targets that kernels are prepared for: a device's abilities, and the back end that compiles for it.

use crate::check::Checks;
use crate::step::{Call, Planned, Work};
use devbay_plugin_api::sdk::{Prepared, Result};
use std::sync::Arc;

/// Abilities of a device, as kernels ask for them.
#[derive(Clone, Copy, Debug)]
pub struct Abilities {
    /// A program on the processor: its workgroups have no memory of their own that is nearer, barriers are dear, and loops
    /// are bounded ([`Abilities::turns_max`]).
    pub is_software: bool,
    /// 16-bit floats in shaders and in memory.
    pub f16: bool,
    /// 64-bit integers in shaders.
    pub i64: bool,
    /// Threads of a subgroup at the least, a power of two; 1 where shaders do not tell. Workgroups of 64 threads and
    /// multiples have whole subgroups alone.
    pub subgroup: u32,
    /// Storage buffers that a shader may have.
    pub storage_buffers_max: u32,
    /// Workgroups along each axis of a dispatch.
    pub groups_max: u32,
    /// Bytes of one binding.
    pub binding_max: u64,
}

/// Turns of loops of a thread, at most, where a device is a program: Mesa's llvmpipe leaves every loop after 65535 turns
/// of all of them together, and says nothing.
const SOFTWARE_TURNS_MAX: u64 = 60_000;

impl Abilities {
    /// Returns the largest permitted [`ShaderStep::turns`](crate::step::ShaderStep::turns).
    pub fn turns_max(&self) -> u64 {
        if self.is_software { SOFTWARE_TURNS_MAX } else { u64::MAX }
    }

    /// The address space of a shader's parameters in WGSL: uniform, but for devices that are programs. Mesa's llvmpipe
    /// compiles a shader anew, in every launch, for the values of uniforms that its branches ask for, and keeps what it
    /// compiled; storage it leaves alone.
    pub fn param_space(&self) -> &'static str {
        if self.is_software { "storage, read" } else { "uniform" }
    }
}

/// Makes kernels of what was described: compiles, and keeps what launches need.
pub trait Backend: Send + Sync {
    /// A kernel that runs all jobs, in order.
    ///
    /// # Errors
    /// Internal with the compiler's words; out of memory; unsupported beyond what the device can.
    fn prepare(&self, work: Work) -> Result<Prepared>;

    /// Returns the plan of a library of the device's vendor for this; None where there is none, or it cannot.
    fn plan(&self, _call: &Call) -> Option<Planned> {
        None
    }
}

/// A device, as far as kernels are concerned.
#[derive(Clone)]
pub struct Target {
    /// Abilities of the device.
    pub abilities: Abilities,
    /// Back end that compiles for it.
    pub backend: Arc<dyn Backend>,
    /// The rules of its kernels' data; None if an option leaves checks out.
    pub checks: Option<Arc<Checks>>,
}
