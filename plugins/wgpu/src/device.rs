//! Adapters as devices.

use crate::dispatch::{Compiler, ParamPool};
use crate::memory::{Pool, WgpuBuffer};
use crate::shader::Shaders;
use crate::stream::WgpuStream;
use crate::worker::Worker;
use devbay_plugin_api::abi::{
    DEVBAY_DEVICE_KIND_CPU, DEVBAY_DEVICE_KIND_GPU, DEVBAY_DEVICE_KIND_OTHER, DEVBAY_SPACE_DEVICE,
    DEVBAY_STATUS_DEVICE_LOST,
};
use devbay_plugin_api::locks::lock;
use devbay_plugin_api::sdk::*;
use devbay_shaders::check::Checks;
use devbay_shaders::step::GROUP;
use devbay_shaders::target::{Abilities, Target};
use std::borrow::Borrow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Choice of the adapters that become devices.
pub struct Adapters {
    /// Drivers to ask.
    pub backends: wgpu::Backends,
    /// True if programs on the processor count.
    pub software: bool,
    /// Submissions until a device is given up; 0 for never.
    pub lose_after: u64,
    /// True if kernels check indices and the like in their data.
    pub checks: bool,
}

impl Adapters {
    /// Opens all of them but those that are open already, and not lost.
    ///
    /// # Errors
    /// Unavailable if there is none, with what was looked for.
    pub fn open(&self, host: Host, known: &[&WgpuDevice]) -> Result<Vec<Listed<WgpuDevice>>> {
        let instance = drivers(self.backends);
        let mut refused = Vec::new();
        let mut devices = Vec::new();
        for adapter in pollster::block_on(instance.enumerate_adapters(self.backends)) {
            let info = adapter.get_info();
            let compute = wgpu::DownlevelFlags::COMPUTE_SHADERS;
            if !self.software && info.device_type == wgpu::DeviceType::Cpu {
                refused.push(format!("{} is a program on the processor", info.name));
            } else if !adapter.get_downlevel_capabilities().flags.contains(compute) {
                refused.push(format!("{} has no compute shaders", info.name));
            } else if let Some(lacking) = lacking(&adapter.limits()) {
                refused.push(format!("{} {lacking}", info.name));
            } else {
                let id = stable_id(&info, devices.len());
                let is_open = |device: &&&WgpuDevice| device.desc.id == id && device.shared.check().is_ok();
                if let Some(place) = known.iter().position(|device| is_open(&device)) {
                    devices.push(Listed::Stays(place));
                    continue;
                }
                match WgpuDevice::open(&adapter, host, id, self) {
                    Ok(device) => devices.push(Listed::New(device)),
                    Err(error) => refused.push(format!("{}: {}", info.name, error.text())),
                }
            }
        }
        if devices.is_empty() {
            let drivers = format!("{:?}", self.backends).replace("Backends(", "").replace(')', "");
            let mut text = format!("no adapter with compute shaders was found by {drivers}");
            refused.iter().for_each(|reason| text.push_str(&format!("; {reason}")));
            return Err(Error::unavailable(text));
        }
        for reason in refused {
            host.log(LogLevel::Info, &reason);
        }
        Ok(devices)
    }
}

/// Returns what kernels require and an adapter lacks: its driver is too old, or its chip small.
pub fn lacking(limits: &wgpu::Limits) -> Option<String> {
    let needs = [
        (limits.max_compute_invocations_per_workgroup, GROUP, "threads in a workgroup"),
        (limits.max_compute_workgroup_size_x, GROUP, "threads along a workgroup's first axis"),
        (limits.max_storage_buffers_per_shader_stage, 8, "storage buffers in a shader"),
        (limits.max_compute_workgroup_storage_size, 16 << 10, "bytes of memory in a workgroup"),
    ];
    let (found, least, what) = needs.into_iter().find(|(found, least, _)| found < least)?;
    Some(format!("has {found} {what}, kernels need {least}"))
}

/// [`Abilities::subgroup`] of an adapter: workgroups have whole subgroups if 64 is a multiple of the largest.
pub fn subgroup(features: wgpu::Features, info: &wgpu::AdapterInfo) -> u32 {
    let (least, most) = (info.subgroup_min_size, info.subgroup_max_size);
    let is_usable = features.contains(wgpu::Features::SUBGROUP) && least.is_power_of_two() && most <= 64;
    if is_usable { least } else { 1 }
}

/// The drivers of some backends, opened once in a process: opening Vulkan's loader anew leaves memory behind in it and
/// in the C library, every time.
fn drivers(backends: wgpu::Backends) -> wgpu::Instance {
    static OPEN: Mutex<Vec<(wgpu::Backends, wgpu::Instance)>> = Mutex::new(Vec::new());
    let mut open = lock(&OPEN);
    if let Some((_, instance)) = open.iter().find(|(known, _)| *known == backends) {
        return instance.clone();
    }
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends,
        // No validation layers of the driver's: errors come from wgpu's own checks.
        flags: wgpu::InstanceFlags::empty(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    open.push((backends, instance.clone()));
    instance
}

/// Returns the binding type of a device's parameters, as [`Abilities::param_space`] declares them.
pub fn param_binding(abilities: &Abilities) -> wgpu::BufferBindingType {
    match abilities.is_software {
        true => wgpu::BufferBindingType::Storage { read_only: true },
        false => wgpu::BufferBindingType::Uniform,
    }
}

/// Returns the usage of memory of parameters.
pub fn param_usage(abilities: &Abilities) -> wgpu::BufferUsages {
    match abilities.is_software {
        true => wgpu::BufferUsages::STORAGE,
        false => wgpu::BufferUsages::UNIFORM,
    }
}

/// State that a device, its streams, buffers and kernels share.
pub struct Shared {
    /// wgpu's device.
    pub device: wgpu::Device,
    /// Its queue.
    pub queue: wgpu::Queue,
    /// The host's services.
    pub host: Host,
    /// Abilities that shaders may use.
    pub abilities: Abilities,
    /// The device tells times of passes.
    pub timestamps: bool,
    /// Free memory.
    pub pool: Pool,
    /// Pipelines.
    pub shaders: Shaders,
    /// Parameters of prepared kernels.
    pub params: ParamPool,
    /// Requirements on their data.
    pub checks: Arc<Checks>,
    /// Submissions that are under way.
    pub worker: Worker,
    /// Reason why the device was lost.
    lost: OnceLock<String>,
    /// Submissions until the device is given up, for tests; 0 for never.
    lose_after: AtomicU64,
}

impl Shared {
    /// Refuses work on a device that is lost.
    ///
    /// # Errors
    /// Device lost, with the driver's words.
    pub fn check(&self) -> Result<()> {
        match self.lost.get() {
            Some(reason) => Err(Error::new(DEVBAY_STATUS_DEVICE_LOST, reason.clone())),
            None => Ok(()),
        }
    }

    /// Counts a submission that is done, and gives the device up if a test wants that now.
    pub fn count_submission(&self) {
        if self.lose_after.load(Ordering::Relaxed) > 0 && self.lose_after.fetch_sub(1, Ordering::Relaxed) == 1
        {
            self.lose("a test gave it up");
        }
    }

    /// Gives the device up, as if its driver had.
    pub fn lose(&self, reason: &str) {
        let _ = self.lost.set(format!("the device was lost: {reason}"));
        self.device.destroy();
    }

    /// Runs something with wgpu's errors caught.
    ///
    /// # Errors
    /// Device lost, out of memory, or internal with wgpu's words.
    pub fn guarded<T>(&self, body: impl FnOnce() -> T) -> Result<T> {
        self.check()?;
        let memory = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let internal = self.device.push_error_scope(wgpu::ErrorFilter::Internal);
        let validation = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let result = body();
        let errors = [validation.pop(), internal.pop()].map(pollster::block_on);
        let memory = pollster::block_on(memory.pop());
        self.check()?;
        if let Some(error) = memory {
            return Err(Error::out_of_memory(words(&error)));
        }
        match errors.into_iter().flatten().next() {
            Some(error) => Err(Error::internal(words(&error))),
            None => Ok(result),
        }
    }
}

/// wgpu's error and what it came from, in one line.
fn words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        source = inner.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// One adapter, opened.
pub struct WgpuDevice {
    shared: Arc<Shared>,
    /// Target that its kernels are prepared for.
    target: Target,
    desc: DeviceDesc,
}

impl WgpuDevice {
    fn open(adapter: &wgpu::Adapter, host: Host, id: String, settings: &Adapters) -> Result<Self> {
        let info = adapter.get_info();
        let wanted = wgpu::Features::SHADER_F16
            | wgpu::Features::SHADER_INT64
            | wgpu::Features::SUBGROUP
            | wgpu::Features::TIMESTAMP_QUERY
            | wgpu::Features::PIPELINE_CACHE;
        let features = adapter.features() & wanted;
        let limits = adapter.limits();
        let (device, queue) = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor {
            label: Some("devbay"),
            required_features: features,
            required_limits: limits.clone(),
            ..Default::default()
        }))
        .map_err(|e| Error::unavailable(format!("cannot be opened: {}", words(&e))))?;
        let abilities = Abilities {
            is_software: info.device_type == wgpu::DeviceType::Cpu,
            f16: features.contains(wgpu::Features::SHADER_F16),
            i64: features.contains(wgpu::Features::SHADER_INT64),
            subgroup: subgroup(features, &info),
            storage_buffers_max: limits.max_storage_buffers_per_shader_stage,
            groups_max: limits.max_compute_workgroups_per_dimension,
            binding_max: limits.max_storage_buffer_binding_size,
        };
        let cached = features.contains(wgpu::Features::PIPELINE_CACHE);
        let shared = Arc::new(Shared {
            shaders: Shaders::open(&device, &info, cached, host),
            pool: Pool::default(),
            params: ParamPool::new(
                limits.min_uniform_buffer_offset_alignment.max(limits.min_storage_buffer_offset_alignment),
            ),
            checks: Arc::default(),
            worker: Worker::default(),
            lost: OnceLock::new(),
            lose_after: AtomicU64::new(settings.lose_after),
            device,
            queue,
            host,
            abilities,
            timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
        });
        // Errors outside of a scope would end the process; kernels check for all of them before.
        shared.device.on_uncaptured_error(Arc::new(move |error| {
            host.log(LogLevel::Error, &format!("wgpu: {}", words(&error)));
        }));
        let weak = Arc::downgrade(&shared);
        shared.device.set_device_lost_callback(move |reason, text| {
            if let Some(shared) = weak.upgrade() {
                let _ = shared.lost.set(format!("the device was lost ({reason:?}): {text}"));
            }
        });
        Worker::start(&shared)?;
        let bind_align = u64::from(limits.min_storage_buffer_offset_alignment).max(16);
        let kind = match info.device_type {
            wgpu::DeviceType::Cpu => DEVBAY_DEVICE_KIND_CPU,
            wgpu::DeviceType::Other => DEVBAY_DEVICE_KIND_OTHER,
            _ => DEVBAY_DEVICE_KIND_GPU,
        };
        let backend = backend(&info);
        let desc = DeviceDesc {
            kind,
            id,
            physical_id: physical_id(&info.device_pci_bus_id),
            driver: format!("{backend}, {} {}", info.driver, info.driver_info).trim().to_owned(),
            name: info.name,
            spaces: vec![SpaceDesc {
                kind: DEVBAY_SPACE_DEVICE,
                flags: 0,
                bytes_total: 0,
                alloc_max: limits.max_buffer_size,
                alloc_align: 256,
                bind_align,
                bind_max: limits.max_storage_buffer_binding_size,
                copy_align: wgpu::COPY_BUFFER_ALIGNMENT,
                copy_granule: wgpu::COPY_BUFFER_ALIGNMENT,
            }],
            ..DeviceDesc::default()
        };
        let checks = settings.checks.then(|| Arc::clone(&shared.checks));
        let target = Target { abilities, backend: Arc::new(Compiler(Arc::clone(&shared))), checks };
        Ok(Self { shared, target, desc })
    }

    /// Returns the state that its streams, buffers and kernels share.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Borrow<Target> for WgpuDevice {
    fn borrow(&self) -> &Target {
        &self.target
    }
}

impl Drop for WgpuDevice {
    fn drop(&mut self) {
        self.shared.worker.stop();
        self.shared.shaders.save(self.shared.host);
    }
}

fn backend(info: &wgpu::AdapterInfo) -> String {
    format!("{:?}", info.backend).to_lowercase()
}

/// A name that stays: where the card sits, or what it is and which of those.
fn stable_id(info: &wgpu::AdapterInfo, index: usize) -> String {
    let backend = backend(info);
    if info.device_pci_bus_id.is_empty() {
        return format!("{backend}-{:04x}-{:04x}-{index}", info.vendor, info.device);
    }
    format!("{backend}-{}", info.device_pci_bus_id)
}

/// `pci:` and the address, which every plugin can tell; zero for what sits on no bus.
fn physical_id(pci_bus_id: &str) -> [u8; 16] {
    let mut id = [0; 16];
    if !pci_bus_id.is_empty() {
        let text = format!("pci:{}", pci_bus_id.to_lowercase());
        for (to, from) in id.iter_mut().zip(text.bytes()) {
            *to = from;
        }
    }
    id
}

impl Device for WgpuDevice {
    type Buffer = WgpuBuffer;
    type Stream = WgpuStream;

    fn describe(&self) -> &DeviceDesc {
        &self.desc
    }

    fn alloc(&self, request: &AllocRequest<'_>) -> Result<Allocated<WgpuBuffer>> {
        self.shared.check()?;
        WgpuBuffer::alloc(&self.shared, request.size_bytes)
    }

    fn create_stream(&self, request: &StreamRequest<'_>) -> Result<WgpuStream> {
        self.shared.check()?;
        Ok(WgpuStream::new(&self.shared, request))
    }

    const LOSE: bool = true;

    fn lose(&self) -> Result<()> {
        self.shared.check()?;
        self.shared.lose("it was given up on request");
        Ok(())
    }
}
