//! GPUs as devices.

use crate::blas::{Blas, Handles};
use crate::compile::{Arch, Cache, Nvrtc};
use crate::dispatch::{Compiler, Kernels};
use crate::dnn::{Dnn, Planner};
use crate::driver::{Address, Driver, Functions, memory_of};
use crate::library::call;
use crate::memory::{CudaBuffer, DevicePool, PinnedPool};
use crate::stream::{CudaStream, HostSpans};
use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdevice_attribute, CUevent, CUevent_flags};
use devbay_plugin_api::abi::{
    DEVBAY_DEVICE_KIND_GPU, DEVBAY_NATIVE_CUDA_STREAM, DEVBAY_SPACE_ADDRESSABLE, DEVBAY_SPACE_DEVICE,
    DEVBAY_SPACE_HOST_VISIBLE, DEVBAY_SPACE_PINNED_HOST, DEVBAY_STATUS_DEVICE_LOST,
};
use devbay_plugin_api::locks::lock;
use devbay_plugin_api::sdk::*;
use devbay_shaders::check::Checks;
use devbay_shaders::target::{Abilities, Target};
use std::borrow::Borrow;
use std::ffi::{c_char, c_int, c_uint};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock};

/// The device's own memory among its spaces.
pub const SPACE_DEVICE: usize = 0;
/// Host memory that it reaches.
pub const SPACE_PINNED: usize = 1;

/// `kDLCUDA` of dlpack.h.
const DL_CUDA: i32 = 2;
/// `kDLCUDAHost`: page-locked memory.
const DL_CUDA_HOST: i32 = 3;

/// Alignment of operands: what 16-byte loads need, and what a warp reads at once.
const BIND_ALIGN: u64 = 256;
/// Kernels write narrow elements by words.
const COPY_GRANULE: u64 = 4;

/// Blocks along y and z, on every device; along x there may be more.
const GROUPS_MAX: u32 = 65535;

/// State that a device, its streams, buffers and kernels share.
pub struct Shared {
    /// The driver.
    pub driver: &'static Driver,
    /// The primary context, retained.
    pub context: CUcontext,
    /// The device's number.
    pub device: CUdevice,
    /// The host's services.
    pub host: Host,
    /// Compute capability.
    pub arch: Arch,
    /// A stream can write a word to memory.
    pub writes_words: bool,
    /// Launches that are recorded become graphs.
    pub graphs: bool,
    /// The device's memory.
    pub memory: DevicePool,
    /// Host memory that it reaches.
    pub pinned: PinnedPool,
    /// Compiled kernels.
    pub kernels: Kernels,
    /// Requirements on the data of prepared kernels.
    pub checks: Arc<Checks>,
    /// The run-time compiler, or the reason why it is absent.
    pub nvrtc: Arc<Result<Nvrtc>>,
    /// cuBLASLt, or the reason why it is absent.
    pub blas: Arc<Result<Blas>>,
    /// The device's handle of cuBLASLt.
    pub blas_handles: Handles,
    /// cuDNN, or the reason why it is absent.
    pub dnn: Arc<Result<Dnn>>,
    /// The handle that chooses cuDNN's algorithms.
    pub dnn_planner: Planner,
    /// Kernels of earlier processes.
    pub cache: Cache,
    /// Host memory that enqueued copies will write.
    pub spans: HostSpans,
    /// Unused events.
    events: Mutex<Vec<Event>>,
    /// Reason why the device was lost.
    lost: OnceLock<Error>,
}

// SAFETY: any thread may use the driver's handles while their context is its current one; `current` makes it so.
unsafe impl Send for Shared {}
// SAFETY: any thread may use the driver's handles while their context is its current one; `current` makes it so.
unsafe impl Sync for Shared {}

/// An event of the driver's.
#[derive(Clone, Copy)]
pub struct Event(pub CUevent);

// SAFETY: any thread may use an event's handle while its context is the current one; `Shared::current` makes it so.
unsafe impl Send for Event {}

/// The calling thread's context, set for a while.
pub struct Current<'a> {
    functions: &'a Functions,
    /// Context that was there before; None if it was the same.
    before: Option<CUcontext>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: NULL, or the context that was current before, which the application keeps alive while it is. A failure
            // leaves our own current, which is alive too.
            unsafe { call!(self.functions, sys::cuCtxSetCurrent(before)) };
        }
    }
}

impl Shared {
    /// Makes the device's context the calling thread's until the value is dropped (rule B18 of the notes).
    ///
    /// # Errors
    /// Device lost, and errors of the driver.
    #[inline]
    pub fn current(&self) -> Result<Current<'_>> {
        self.check()?;
        self.current_even_lost()
    }

    /// As [`Shared::current`], also on a device that is lost: for calls that wait or free.
    ///
    /// # Errors
    /// Errors of the driver.
    #[inline]
    pub fn current_even_lost(&self) -> Result<Current<'_>> {
        let functions = &self.driver.functions;
        let mut before = null_mut();
        // SAFETY: the call writes `before`, which outlives it.
        self.done("cuCtxGetCurrent", unsafe { call!(functions, sys::cuCtxGetCurrent(&mut before)) })?;
        if before == self.context {
            return Ok(Current { functions, before: None });
        }
        // SAFETY: `open` has retained the context, and only `drop` releases it.
        self.done("cuCtxSetCurrent", unsafe { call!(functions, sys::cuCtxSetCurrent(self.context)) })?;
        Ok(Current { functions, before: Some(before) })
    }

    /// Turns a code of the driver into a result. A code after which every call fails loses the device, for all of its
    /// streams.
    ///
    /// # Errors
    /// As [`Driver::check`].
    #[inline]
    pub fn done(&self, call: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        self.driver.check(call, code).inspect_err(|error| {
            if error.status() == DEVBAY_STATUS_DEVICE_LOST {
                self.lose(error.clone());
            }
        })
    }

    /// Declares the device lost.
    pub fn lose(&self, error: Error) {
        let _ = self.lost.set(error);
    }

    /// Refuses work on a device that is lost.
    ///
    /// # Errors
    /// Device lost, with the error that lost it.
    #[inline]
    pub fn check(&self) -> Result<()> {
        match self.lost.get() {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// Returns an event, from the pool or a new one. The context has to be current.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn take_event(&self) -> Result<Event> {
        if let Some(event) = lock(&self.events).pop() {
            return Ok(event);
        }
        let mut event = null_mut();
        // Waiting threads sleep instead of spinning; timing is not used.
        let flags = CUevent_flags::CU_EVENT_BLOCKING_SYNC as c_uint
            | CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
        // SAFETY: the call writes `event`, which outlives it.
        self.done("cuEventCreate", unsafe {
            call!(self.driver.functions, sys::cuEventCreate(&mut event, flags))
        })?;
        Ok(Event(event))
    }

    /// Returns an event to the pool. No stream may be told to wait for it from now on; a wait that is enqueued keeps the
    /// event's state from then.
    pub fn give_event(&self, event: Event) {
        lock(&self.events).push(event);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let functions = &self.driver.functions;
        let mut before = null_mut();
        // SAFETY: the call writes `before`, which outlives it.
        unsafe { call!(functions, sys::cuCtxGetCurrent(&mut before)) };
        // SAFETY: the context is released below, not before. On a lost device the calls here may fail, and that changes
        // nothing.
        unsafe { call!(functions, sys::cuCtxSetCurrent(self.context)) };
        for event in lock(&self.events).drain(..) {
            // SAFETY: made by `take_event`; no stream is left that uses it.
            unsafe { call!(functions, sys::cuEventDestroy_v2(event.0)) };
        }
        self.dnn_planner.destroy();
        self.blas_handles.destroy(self.blas.as_ref().as_ref().ok());
        self.kernels.unload(self.driver);
        self.pinned.free_all(self.driver);
        self.memory.destroy(self.driver);
        let before = if before == self.context { null_mut() } else { before };
        // SAFETY: NULL, or the context that was current before and is not ours, which may end below.
        unsafe { call!(functions, sys::cuCtxSetCurrent(before)) };
        // SAFETY: retained once, by `open`.
        unsafe { call!(functions, sys::cuDevicePrimaryCtxRelease_v2(self.device)) };
    }
}

/// One GPU, opened.
pub struct CudaDevice {
    shared: Arc<Shared>,
    /// Target that its kernels are prepared for.
    target: Target,
    desc: DeviceDesc,
}

/// Settings of [`open_all`].
pub struct Settings<'a> {
    /// NVRTC's file, if it was named.
    pub nvrtc: Option<&'a Path>,
    /// `auto`, `no`, or cuBLASLt's file.
    pub cublas: &'a str,
    /// Likewise of cuDNN.
    pub cudnn: &'a str,
    /// True if launches that are recorded become graphs.
    pub graphs: bool,
    /// True if kernels check indices and the like in their data.
    pub checks: bool,
    /// The host's services.
    pub host: Host,
}

/// NVIDIA's libraries beside the driver, opened once for all devices, or why not.
struct Libraries {
    nvrtc: Arc<Result<Nvrtc>>,
    blas: Arc<Result<Blas>>,
    dnn: Arc<Result<Dnn>>,
}

/// A library as an option has it: `auto`, `no`, or its file. Without it the plugin's own kernels do its work.
fn library<T>(option: &str, host: Host, open: impl FnOnce(Option<&Path>) -> Result<T>) -> Arc<Result<T>> {
    let (opened, level) = match option {
        "auto" => (open(None), LogLevel::Info),
        "no" => (Err(Error::unavailable("an option leaves it out")), LogLevel::Debug),
        // One that was named is wanted.
        path => (open(Some(Path::new(path))), LogLevel::Warn),
    };
    if let Err(error) = &opened {
        host.log(level, error.text());
    }
    Arc::new(opened)
}

/// Opens every GPU.
///
/// # Errors
/// Unavailable without a driver or a device that it can open, with the reasons.
pub fn open_all(settings: &Settings<'_>) -> Result<Vec<CudaDevice>> {
    let driver = Driver::get()?;
    let functions = &driver.functions;
    let mut n = 0;
    // SAFETY: the call writes `n`, which outlives it.
    driver.check("cuDeviceGetCount", unsafe { call!(functions, sys::cuDeviceGetCount(&mut n)) })?;
    if n == 0 {
        return Err(Error::unavailable("CUDA's driver knows no device"));
    }
    let nvrtc = Arc::new(Nvrtc::open(settings.nvrtc, Some(driver.version.0)));
    if let Err(error) = nvrtc.as_ref() {
        settings.host.log(LogLevel::Warn, error.text());
    }
    let blas = library(settings.cublas, settings.host, |path| Blas::open(path, driver.version.0));
    let dnn = library(settings.cudnn, settings.host, Dnn::open);
    let libraries = Libraries { nvrtc, blas, dnn };
    let (mut devices, mut refused) = (Vec::new(), Vec::new());
    for ordinal in 0..n {
        match CudaDevice::open(driver, ordinal, &libraries, settings) {
            Ok(device) => devices.push(device),
            Err(error) => refused.push(format!("device {ordinal}: {}", error.text())),
        }
    }
    if devices.is_empty() {
        return Err(Error::unavailable(format!("no device can be used; {}", refused.join("; "))));
    }
    for reason in refused {
        settings.host.log(LogLevel::Warn, &reason);
    }
    share_memory(driver, &devices, settings.host);
    Ok(devices)
}

/// Lets devices reach each other's memory where their links allow it.
fn share_memory(driver: &Driver, devices: &[CudaDevice], host: Host) {
    for (owner, other) in devices.iter().flat_map(|owner| devices.iter().map(move |other| (owner, other))) {
        let mut can = 0;
        let (from, to) = (other.shared.device, owner.shared.device);
        if from == to {
            continue;
        }
        // SAFETY: the call writes `can`, which outlives it; the driver has both devices.
        let code = unsafe { call!(driver.functions, sys::cuDeviceCanAccessPeer(&mut can, from, to)) };
        if code != 0 || can == 0 {
            continue;
        }
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let desc = sys::CUmemAccessDesc { location: memory_of(from), flags };
        // Copies work without it, by way of the host.
        if let Err(error) = owner.shared.memory.share(&owner.shared, &desc) {
            host.log(LogLevel::Info, &format!("device {from} does not reach device {to}: {}", error.text()));
        }
    }
}

impl CudaDevice {
    fn open(
        driver: &'static Driver,
        ordinal: c_int,
        Libraries { nvrtc, blas, dnn }: &Libraries,
        settings: &Settings<'_>,
    ) -> Result<Self> {
        let host = settings.host;
        let functions = &driver.functions;
        let mut device = 0;
        // SAFETY: the call writes `device`, which outlives it.
        driver.check("cuDeviceGet", unsafe { call!(functions, sys::cuDeviceGet(&mut device, ordinal)) })?;
        let number = |attribute: CUdevice_attribute| -> Result<u32> {
            let mut value = 0;
            // SAFETY: the call writes `value`, which outlives it.
            let code = unsafe { call!(functions, sys::cuDeviceGetAttribute(&mut value, attribute, device)) };
            driver.check("cuDeviceGetAttribute", code)?;
            Ok(value.max(0) as u32)
        };
        let arch = Arch(
            number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        if arch < Arch(7, 0) {
            let text = format!("compute capability {}.{}, 7.0 is the oldest that is used", arch.0, arch.1);
            return Err(Error::unsupported(text));
        }
        if number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)? == 0 {
            return Err(Error::unsupported("a device without unified addressing"));
        }
        let name = text(64, |buffer, n| {
            // SAFETY: `text` passes a buffer of `n` bytes.
            driver.check("cuDeviceGetName", unsafe {
                call!(functions, sys::cuDeviceGetName(buffer, n, device))
            })
        })?;
        let pci = text(32, |buffer, n| {
            // SAFETY: `text` passes a buffer of `n` bytes.
            driver.check("cuDeviceGetPCIBusId", unsafe {
                call!(functions, sys::cuDeviceGetPCIBusId(buffer, n, device))
            })
        })?;
        let (mut uuid, mut bytes_total) = ([0u8; 16], 0);
        // SAFETY: the call writes the 16 bytes of `uuid`.
        driver.check("cuDeviceGetUuid", unsafe {
            call!(functions, sys::cuDeviceGetUuid_v2(uuid.as_mut_ptr().cast(), device))
        })?;
        // SAFETY: the call writes `bytes_total`, which outlives it.
        let code = unsafe { call!(functions, sys::cuDeviceTotalMem_v2(&mut bytes_total, device)) };
        driver.check("cuDeviceTotalMem", code)?;
        let abilities = Abilities {
            is_software: false,
            f16: true,
            i64: true,
            subgroup: crate::source::WARP,
            storage_buffers_max: crate::dispatch::ARGS_MAX as u32 - 2,
            groups_max: GROUPS_MAX,
            binding_max: u64::from(u32::MAX),
        };
        let writes_words =
            number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)? != 0;
        let has_pools = number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? != 0;
        let mut context = null_mut();
        // SAFETY: the call writes `context`, which outlives it.
        let code = unsafe { call!(functions, sys::cuDevicePrimaryCtxRetain(&mut context, device)) };
        driver.check("cuDevicePrimaryCtxRetain", code)?;
        let shared = Arc::new(Shared {
            driver,
            context,
            device,
            host,
            arch,
            writes_words,
            graphs: settings.graphs,
            memory: DevicePool::default(),
            pinned: PinnedPool::default(),
            kernels: Kernels::default(),
            checks: Arc::default(),
            nvrtc: Arc::clone(nvrtc),
            blas: Arc::clone(blas),
            blas_handles: Handles::default(),
            dnn: Arc::clone(dnn),
            dnn_planner: Planner::default(),
            cache: Cache::new(host.config("cache_dir").map(Path::new)),
            spans: HostSpans::default(),
            events: Mutex::default(),
            lost: OnceLock::new(),
        });
        if has_pools {
            shared.memory.open(&shared)?;
        }
        let compiler = match nvrtc.as_ref() {
            Ok(nvrtc) => format!("nvrtc {}.{}", nvrtc.version().0, nvrtc.version().1),
            Err(_) => "no nvrtc".to_owned(),
        };
        let libraries = [(blas.is_ok(), "cuBLASLt"), (dnn.is_ok(), "cuDNN")];
        let libraries = libraries.into_iter().filter(|(is_there, _)| *is_there);
        let libraries: String = libraries.map(|(_, name)| format!(", {name}")).collect();
        let (major, minor) = driver.version;
        let space = SpaceDesc {
            kind: DEVBAY_SPACE_DEVICE,
            flags: DEVBAY_SPACE_ADDRESSABLE,
            bytes_total: bytes_total as u64,
            alloc_max: 0,
            alloc_align: 256,
            bind_align: BIND_ALIGN,
            bind_max: 0,
            copy_align: 1,
            copy_granule: COPY_GRANULE,
        };
        let pinned = SpaceDesc {
            kind: DEVBAY_SPACE_PINNED_HOST,
            flags: DEVBAY_SPACE_HOST_VISIBLE | DEVBAY_SPACE_ADDRESSABLE,
            bytes_total: 0,
            ..space
        };
        let desc = DeviceDesc {
            kind: DEVBAY_DEVICE_KIND_GPU,
            id: stable_id(&uuid),
            physical_id: physical_id(&pci),
            driver: format!("CUDA {major}.{minor}, driver {}, {compiler}{libraries}", module_version()),
            name,
            spaces: vec![space, pinned],
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

/// Returns a text that the driver writes into a buffer.
fn text(n: usize, fill: impl FnOnce(*mut c_char, c_int) -> Result<()>) -> Result<String> {
    let mut bytes = vec![0u8; n];
    fill(bytes.as_mut_ptr().cast(), n as c_int)?;
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(n);
    Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// The name that NVIDIA's tools print: two parts of one card have their own.
fn stable_id(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("gpu-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
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

/// The version of the driver itself, as its kernel module says it on Linux.
fn module_version() -> String {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    let version = text.lines().next().and_then(|line| line.split_whitespace().find(is_version));
    version.unwrap_or("of unknown version").to_owned()
}

impl Borrow<Target> for CudaDevice {
    fn borrow(&self) -> &Target {
        &self.target
    }
}

impl Device for CudaDevice {
    type Buffer = CudaBuffer;
    type Stream = CudaStream;
    const MEMORY_INFO: bool = true;

    fn describe(&self) -> &DeviceDesc {
        &self.desc
    }

    fn alloc(&self, request: &AllocRequest<'_>) -> Result<Allocated<CudaBuffer>> {
        CudaBuffer::alloc(&self.shared, request)
    }

    fn memory_info(&self, space_idx: usize) -> Result<MemoryUse> {
        match space_idx {
            SPACE_DEVICE => self.shared.memory.usage(&self.shared),
            SPACE_PINNED => Ok(self.shared.pinned.usage()),
            other => Err(Error::invalid(format!("memory space {other}, there are 2"))),
        }
    }

    fn create_stream(&self, request: &StreamRequest<'_>) -> Result<CudaStream> {
        CudaStream::new(&self.shared, request)
    }

    const INTEROP: bool = true;

    fn dlpack_device(&self, space_idx: usize) -> Result<(i32, i32)> {
        Ok(match space_idx {
            SPACE_PINNED => (DL_CUDA_HOST, 0),
            _ => (DL_CUDA, self.shared.device),
        })
    }

    fn import(&self, request: &ImportRequest) -> Result<Allocated<CudaBuffer>> {
        CudaBuffer::import(&self.shared, request)
    }

    fn export(buffer: &CudaBuffer) -> Result<Native> {
        Ok(Native::address(buffer.address()))
    }

    fn import_stream(&self, native: Native) -> Result<CudaStream> {
        let raw = native.of_kind(DEVBAY_NATIVE_CUDA_STREAM)?;
        CudaStream::wrap(&self.shared, std::ptr::with_exposed_provenance_mut(raw as usize))
    }

    fn export_stream(stream: &CudaStream) -> Result<Native> {
        let value = stream.raw().expose_provenance() as u64;
        Ok(Native { kind: DEVBAY_NATIVE_CUDA_STREAM, value, aux: 0 })
    }
}

/// Returns a pointer as the driver takes addresses.
pub fn address<T>(pointer: *const T) -> Address {
    pointer.expose_provenance() as Address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_the_forms_that_others_use() {
        let pci = physical_id("0000:65:00.0");
        assert_eq!(&pci, b"pci:0000:65:00.0");
        assert_eq!(physical_id(""), [0; 16]);
        let uuid = [0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(stable_id(&uuid), "gpu-12345678-9abc-def0-0102-030405060708");
    }
}
