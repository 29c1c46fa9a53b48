//! Devices of PJRT libraries as devbay's: arrays as buffers that are written once, programs that are compiled whole.

use crate::buffer::{Buffer, HostArray, HostMemory};
use crate::client::Device as Client;
use crate::element::ElementType;
use crate::event::Event;
use crate::hlo;
use crate::program::Program;
use crate::stored::Stored;
use crate::stream::PjrtStream;
use devbay_plugin_api::abi::{
    DEVBAY_DEVICE_ENQUEUE_MAY_BLOCK, DEVBAY_DEVICE_KIND_CPU, DEVBAY_DEVICE_KIND_GPU,
    DEVBAY_DEVICE_KIND_OTHER, DEVBAY_DEVICE_KIND_TPU, DEVBAY_SPACE_DEVICE, DEVBAY_SPACE_NO_SUBALLOC,
    DEVBAY_SPACE_TYPED, DEVBAY_SPACE_WRITE_ONCE, DType,
};
use devbay_plugin_api::sdk::{
    AllocRequest, Allocated, BF16, BOOL, BlobUse, Claim, CompileRequest, Device, DeviceDesc, Error,
    Executable, F16, F32, F64, GraphRequest, GraphView, I8, I16, I32, I64, Result, SpaceDesc, StreamRequest,
    U8, U16, U32, U64, ValueType,
};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::UNIX_EPOCH;

/// The library's error as the ABI has it.
pub fn own(error: crate::error::Error) -> Error {
    Error::new(error.status(), error.to_string()).with_native_code(error.native_code())
}

/// devbay's dtypes that PJRT has too.
const TYPES: &[(DType, ElementType)] = &[
    (F32, ElementType::F32),
    (F64, ElementType::F64),
    (F16, ElementType::F16),
    (BF16, ElementType::BF16),
    (I64, ElementType::S64),
    (I32, ElementType::S32),
    (I16, ElementType::S16),
    (I8, ElementType::S8),
    (U64, ElementType::U64),
    (U32, ElementType::U32),
    (U16, ElementType::U16),
    (U8, ElementType::U8),
    (BOOL, ElementType::PRED),
];

pub(crate) fn element_of(dtype: DType) -> Result<ElementType> {
    let found = TYPES.iter().find(|(own, _)| *own == dtype);
    found
        .map(|(_, element)| *element)
        .ok_or_else(|| Error::unsupported("a dtype that PJRT's devices are not given"))
}

/// devbay's name for an element type, if it has one.
pub fn dtype_of(element: ElementType) -> Option<DType> {
    TYPES.iter().find(|(_, own)| *own == element).map(|(dtype, _)| *dtype)
}

/// One device of a library.
pub struct PjrtDevice {
    device: Client,
    desc: DeviceDesc,
    /// Target that programs are compiled for: a stored one fits where this is the same.
    identity: String,
    /// Name and version of the platform, which is all that is known of one that was compiled ahead of time.
    platform: String,
}

impl PjrtDevice {
    /// A device of a client, by the name that its library was given.
    pub fn new(library: &str, device: Client) -> Self {
        let client = device.client();
        let kind = match client.platform_name() {
            "cpu" | "host" => DEVBAY_DEVICE_KIND_CPU,
            "tpu" => DEVBAY_DEVICE_KIND_TPU,
            "cuda" | "rocm" | "gpu" | "METAL" => DEVBAY_DEVICE_KIND_GPU,
            _ => DEVBAY_DEVICE_KIND_OTHER,
        };
        let (major, minor) = client.library().version();
        let bytes_total = device.memory_stats().ok().flatten().and_then(|stats| stats.limit_bytes);
        let desc = DeviceDesc {
            kind,
            id: format!("{library}-{}", device.id()),
            name: format!("{} ({library})", device.kind()),
            flags: DEVBAY_DEVICE_ENQUEUE_MAY_BLOCK,
            spaces: vec![SpaceDesc {
                kind: DEVBAY_SPACE_DEVICE,
                flags: DEVBAY_SPACE_NO_SUBALLOC | DEVBAY_SPACE_WRITE_ONCE | DEVBAY_SPACE_TYPED,
                bytes_total: bytes_total.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0),
                ..SpaceDesc::default()
            }],
            driver: format!("PJRT {major}.{minor}, {} {}", client.platform_name(), client.platform_version()),
            ..DeviceDesc::default()
        };
        let platform = format!("{} {}", client.platform_name(), client.platform_version());
        let identity = format!(
            "{platform}, API {major}.{minor}, {} {}, {}",
            device.kind(),
            device.id(),
            stamp(client.library().path())
        );
        Self { device, desc, identity, platform }
    }

    /// Returns the target that programs are compiled for.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns whether a program that was compiled for something runs here.
    pub fn runs(&self, identity: &str) -> bool {
        identity == self.identity || identity == self.platform
    }

    /// The library's device.
    pub fn client(&self) -> &Client {
        &self.device
    }
}

/// Size and time of a file: another build of a library may have the same version.
fn stamp(path: &Path) -> String {
    let Ok(about) = path.metadata() else { return "no file".to_owned() };
    let modified = about.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    format!("{} bytes of {}", about.len(), modified.map_or(0, |time| time.as_secs()))
}

/// An array, or the promise of one: it is there when it was written.
pub struct PjrtBuffer {
    device: Client,
    ty: Arc<ValueType>,
    array: OnceLock<Buffer>,
}

/// Up to this size the library copies what it uploads within the call: that takes less than an event.
const COPIED_BYTES_MAX: usize = 64 << 10;

impl PjrtBuffer {
    /// An array that is there, or will be.
    pub fn of(device: &Client, ty: &Arc<ValueType>, array: Buffer) -> Self {
        Self { device: device.clone(), ty: Arc::clone(ty), array: OnceLock::from(array) }
    }

    /// The array.
    ///
    /// # Errors
    /// Invalid if it was not written.
    pub fn array(&self) -> Result<&Buffer> {
        self.array.get().ok_or_else(|| Error::invalid("an array that was not written"))
    }

    /// Writes the array, once and whole; the event says when the memory is not read any more, none that it is not.
    ///
    /// # Safety
    /// `src` has so many bytes, which stay as they are until the event is done.
    ///
    /// # Errors
    /// Invalid for a part of it, or a second time; what the library says.
    pub unsafe fn fill(&self, src: *const u8, offset: usize, size_bytes: usize) -> Result<Option<Event>> {
        if offset != 0 || self.array.get().is_some() {
            return Err(Error::invalid("an array is written once and whole"));
        }
        // SAFETY: `src` has `size_bytes` bytes, which stay as they are until the event is done (# Safety).
        let bytes = unsafe { std::slice::from_raw_parts(src, size_bytes) };
        let element = element_of(self.ty.dtype)?;
        let array = HostArray { bytes, element, dims: &self.ty.shape, byte_strides: None };
        let memory = match size_bytes {
            0..=COPIED_BYTES_MAX => HostMemory::DuringCall,
            _ => HostMemory::UntilTransferred,
        };
        // SAFETY: the bytes stay as they are until the event is done (# Safety).
        let (buffer, event) = unsafe { self.device.upload_from(&array, memory) }.map_err(own)?;
        if self.array.set(buffer).is_err() {
            return Err(Error::invalid("an array is written once and whole"));
        }
        Ok((memory != HostMemory::DuringCall).then_some(event))
    }

    /// Reads the array, whole; the event says when it is there, none that it is. An array in the host's memory, that is
    /// ready, is copied at once: the library's own way takes some 20 us for it.
    ///
    /// # Safety
    /// `dst` has room for so many bytes, which nothing else touches until the event is done.
    ///
    /// # Errors
    /// Invalid for a part of it; what the library says.
    pub unsafe fn read(&self, dst: *mut u8, offset: usize, size_bytes: usize) -> Result<Option<Event>> {
        if offset != 0 {
            return Err(Error::invalid("an array is read whole"));
        }
        let array = self.array()?;
        if matches!(array.ready().and_then(|event| event.outcome()), Ok(Some(Ok(()))))
            && let Ok(Some(view)) = array.host_view()
            && view.len() == size_bytes
        {
            // SAFETY: `dst` has room for `size_bytes` bytes of the caller's (# Safety), so none of the library's; the
            // view has as many.
            unsafe { std::ptr::copy_nonoverlapping(view.as_ptr(), dst, size_bytes) };
            return Ok(None);
        }
        // SAFETY: `dst` has room for `size_bytes` bytes, which only this copy touches until the event is done
        // (# Safety).
        unsafe { array.download_to(dst, size_bytes) }.map(Some).map_err(own)
    }
}

impl Device for PjrtDevice {
    type Buffer = PjrtBuffer;
    type Stream = PjrtStream;
    const FORMATS: &'static [&'static str] = &["stablehlo"];

    fn describe(&self) -> &DeviceDesc {
        &self.desc
    }

    fn alloc(&self, request: &AllocRequest<'_>) -> Result<Allocated<PjrtBuffer>> {
        let tensor = request.tensor.as_ref().ok_or_else(|| Error::invalid("an array needs a type"))?;
        element_of(tensor.dtype())?;
        let ty = Arc::new(ValueType { dtype: tensor.dtype(), shape: tensor.shape().to_vec() });
        let buffer = PjrtBuffer { device: self.device.clone(), ty, array: OnceLock::new() };
        Ok(Allocated { buffer, base: 0, size_bytes: request.size_bytes })
    }

    fn create_stream(&self, _request: &StreamRequest<'_>) -> Result<PjrtStream> {
        Ok(PjrtStream::default())
    }

    fn compile(&self, request: &CompileRequest<'_>) -> Result<Box<dyn Executable<Self>>> {
        Ok(Box::new(Program::of_code(&self.device, &self.identity, request)?))
    }

    const GRAPHS: bool = true;

    fn claim(&self, graph: &GraphView<'_>) -> Result<Vec<Option<Claim>>> {
        Ok(hlo::claim(graph))
    }

    fn compile_graph(&self, request: &GraphRequest<'_>) -> Result<Box<dyn Executable<Self>>> {
        Ok(Box::new(Program::of_graph(&self.device, &self.identity, request)?))
    }

    const BLOBS: bool = true;

    fn validate(&self, blob: &[u8]) -> Result<BlobUse> {
        Ok(match Stored::from_bytes(blob) {
            Ok(stored) if self.runs(&stored.identity) => BlobUse::Usable,
            Ok(_) => BlobUse::Recompile,
            Err(_) => BlobUse::Unsupported,
        })
    }

    fn load(&self, blob: &[u8], _label: &str) -> Result<Box<dyn Executable<Self>>> {
        Ok(Box::new(Program::load(self, blob)?))
    }
}
