//! The device: the processor, its memory and its two kinds of stream.

use crate::isa::Isa;
use crate::kernels::Rounding;
use crate::stream::CpuStream;
use devbay_plugin_api::abi::{
    DEVBAY_DEVICE_HOST_REFS, DEVBAY_DEVICE_KIND_CPU, DEVBAY_SPACE_ADDRESSABLE, DEVBAY_SPACE_HOST_VISIBLE,
    DEVBAY_SPACE_UNIFIED,
};
use devbay_plugin_api::sdk::*;
use std::sync::Arc;

/// `kDLCPU` of dlpack.h.
const DL_CPU: i32 = 1;

/// Time at which the work of a stream is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// In the call that enqueues it.
    Inline,
    /// On the stream's own thread, copies at the given rate.
    Async {
        /// Rate of copies.
        bytes_per_s: u64,
    },
}

/// How kernels compute, by the plugin's options.
#[derive(Clone, Copy, Debug)]
pub struct Choices {
    /// Instructions that kernels use.
    pub isa: Isa,
    /// Rounding of the factors of Fourier transforms.
    pub dft: Rounding,
    /// True if convolutions may be made of fewer products, which round otherwise.
    pub winograd: bool,
}

/// The processor.
pub struct CpuDevice {
    /// The host's services.
    pub host: Host,
    /// Instructions that kernels use.
    pub isa: Isa,
    /// Time at which work is done.
    pub mode: Mode,
    /// Rounding of the factors of Fourier transforms.
    pub dft: Rounding,
    /// True if convolutions may be made of fewer products.
    pub winograd: bool,
    desc: DeviceDesc,
    /// Memory that its buffers may have together.
    budget: Arc<Budget>,
}

impl CpuDevice {
    /// A device of an instance, by its index.
    pub fn new(host: Host, choices: Choices, mode: Mode, index: usize, memory_limit: Option<u64>) -> Self {
        let Choices { isa, dft, winograd } = choices;
        let inline = mode == Mode::Inline;
        // An asynchronous stream keeps its operands to itself until their point is reached, so that the
        // host has to move data with copies, as for a device with memory of its own.
        let host_visible = if inline { DEVBAY_SPACE_HOST_VISIBLE } else { 0 };
        let desc = DeviceDesc {
            kind: DEVBAY_DEVICE_KIND_CPU,
            id: index.to_string(),
            name: processor_name(),
            inline,
            flags: if inline { DEVBAY_DEVICE_HOST_REFS } else { 0 },
            spaces: vec![SpaceDesc {
                kind: DEVBAY_SPACE_UNIFIED,
                flags: host_visible | DEVBAY_SPACE_ADDRESSABLE,
                bytes_total: memory_total(),
                ..SpaceDesc::default()
            }],
            physical_id: *b"devbay:processor",
            driver: format!(
                "{} instructions, {} streams",
                isa.name(),
                if inline { "inline" } else { "async" }
            ),
            ..DeviceDesc::default()
        };
        Self { host, isa, mode, dft, winograd, desc, budget: Budget::new(memory_limit) }
    }
}

impl Device for CpuDevice {
    type Buffer = HostBuffer;
    type Stream = CpuStream;

    fn describe(&self) -> &DeviceDesc {
        &self.desc
    }

    fn alloc(&self, request: &AllocRequest<'_>) -> Result<Allocated<HostBuffer>> {
        HostBuffer::alloc_within(request, &self.budget)
    }

    fn defers(&self) -> bool {
        self.mode != Mode::Inline
    }

    const MEMORY_INFO: bool = true;

    fn memory_info(&self, space_idx: usize) -> Result<MemoryUse> {
        if space_idx != 0 {
            return Err(Error::invalid(format!("memory space {space_idx} of 1")));
        }
        let available = meminfo("MemAvailable:");
        let bytes_available = available.ok_or_else(|| Error::unsupported("the system does not say"))?;
        let bytes_available = bytes_available.min(self.budget.left());
        Ok(MemoryUse { bytes_in_use: self.budget.used(), bytes_available })
    }

    fn create_stream(&self, request: &StreamRequest<'_>) -> Result<CpuStream> {
        CpuStream::new(self, request)
    }

    const INTEROP: bool = true;

    fn dlpack_device(&self, _space_idx: usize) -> Result<(i32, i32)> {
        Ok((DL_CPU, 0))
    }

    fn import(&self, request: &ImportRequest) -> Result<Allocated<HostBuffer>> {
        HostBuffer::import(request)
    }

    fn export(buffer: &HostBuffer) -> Result<Native> {
        Ok(Native::address(buffer.start().as_ptr().expose_provenance() as u64))
    }
}

/// Bytes of memory in this machine; 0 where the system does not say.
fn memory_total() -> u64 {
    meminfo("MemTotal:").unwrap_or(0)
}

/// A line of /proc/meminfo, in bytes.
fn meminfo(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// The product's name as the system has it.
fn processor_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find(|line| line.starts_with("model name"))
        .and_then(|line| line.split(':').nth(1))
        .map(|name| name.trim().to_owned());
    name.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}
