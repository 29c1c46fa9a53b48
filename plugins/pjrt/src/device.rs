//! Devices of PJRT libraries as devbay's: arrays as buffers that are written once, programs that are compiled whole.

use crate::buffer::{Buffer, HostArray, HostMemory};
use crate::client::Device as Client;
use crate::element::ElementType;
use crate::event::Event;
use crate::executable::{self, CompileOptions, Input};
use crate::stream::PjrtStream;
use devbay_plugin_api::abi::{
    DEVBAY_DEVICE_ENQUEUE_MAY_BLOCK, DEVBAY_DEVICE_KIND_CPU, DEVBAY_DEVICE_KIND_GPU,
    DEVBAY_DEVICE_KIND_OTHER, DEVBAY_DEVICE_KIND_TPU, DEVBAY_SPACE_DEVICE, DEVBAY_SPACE_NO_SUBALLOC,
    DEVBAY_SPACE_TYPED, DEVBAY_SPACE_WRITE_ONCE, DType,
};
use devbay_plugin_api::sdk::{
    AllocRequest, Allocated, BF16, BOOL, CompileRequest, Device, DeviceDesc, Error, Executable, F16, F32,
    F64, I8, I16, I32, I64, ProgramInput, ProgramOutput, Result, SpaceDesc, StreamRequest, U8, U16, U32, U64,
    ValueType,
};
use std::sync::OnceLock;

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

/// One device of a library.
pub struct PjrtDevice {
    device: Client,
    desc: DeviceDesc,
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
        Self { device, desc }
    }
}

/// An array, or the promise of one: it is there when it was written.
pub struct PjrtBuffer {
    device: Client,
    ty: ValueType,
    array: OnceLock<Buffer>,
}

impl PjrtBuffer {
    fn array(&self) -> Result<&Buffer> {
        self.array.get().ok_or_else(|| Error::invalid("an array that was not written"))
    }

    /// Writes the array, once and whole; the event says when the memory is not read any more.
    ///
    /// # Safety
    /// `src` has so many bytes, which stay as they are until the event is done.
    ///
    /// # Errors
    /// Invalid for a part of it, or a second time; what the library says.
    pub unsafe fn fill(&self, src: *const u8, offset: usize, size_bytes: usize) -> Result<Event> {
        if offset != 0 || self.array.get().is_some() {
            return Err(Error::invalid("an array is written once and whole"));
        }
        // SAFETY: the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts(src, size_bytes) };
        let element = element_of(self.ty.dtype)?;
        let array = HostArray { bytes, element, dims: &self.ty.shape, byte_strides: None };
        // SAFETY: the caller's promise.
        let (buffer, event) =
            unsafe { self.device.upload_from(&array, HostMemory::UntilTransferred) }.map_err(own)?;
        if self.array.set(buffer).is_err() {
            return Err(Error::invalid("an array is written once and whole"));
        }
        Ok(event)
    }

    /// Reads the array, whole; the event says when it is there.
    ///
    /// # Safety
    /// `dst` has room for so many bytes, which nobody else touches until the event is done.
    ///
    /// # Errors
    /// Invalid for a part of it; what the library says.
    pub unsafe fn read(&self, dst: *mut u8, offset: usize, size_bytes: usize) -> Result<Event> {
        if offset != 0 {
            return Err(Error::invalid("an array is read whole"));
        }
        // SAFETY: the caller's promise.
        unsafe { self.array()?.download_to(dst, size_bytes) }.map_err(own)
    }
}

/// A program on its device.
struct Program {
    executable: executable::Executable,
    device: Client,
    outputs: Vec<ValueType>,
}

impl Executable<PjrtDevice> for Program {
    fn outputs(&self) -> &[ValueType] {
        &self.outputs
    }

    fn execute(
        &self,
        stream: &PjrtStream,
        inputs: &[ProgramInput<'_, PjrtBuffer>],
    ) -> Result<Vec<ProgramOutput<PjrtBuffer>>> {
        let arrays: Vec<Input<'_>> = inputs
            .iter()
            .map(|each| Ok(Input { buffer: each.buffer.array()?, donate: each.is_donated }))
            .collect::<Result<_>>()?;
        let execution = self.executable.execute(&arrays).map_err(own)?;
        stream.add(execution.done)?;
        let output = |(buffer, ty): (Buffer, &ValueType)| -> Result<ProgramOutput<PjrtBuffer>> {
            let size_bytes = buffer.size_bytes().map_err(own)?;
            let array = OnceLock::from(buffer);
            let buffer = PjrtBuffer { device: self.device.clone(), ty: ty.clone(), array };
            Ok(ProgramOutput { buffer, size_bytes })
        };
        execution.outputs.into_iter().zip(&self.outputs).map(output).collect()
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
        let ty = ValueType { dtype: tensor.dtype(), shape: tensor.shape().to_vec() };
        let buffer = PjrtBuffer { device: self.device.clone(), ty, array: OnceLock::new() };
        Ok(Allocated { buffer, base: 0, size_bytes: request.size_bytes })
    }

    fn create_stream(&self, _request: &StreamRequest<'_>) -> Result<PjrtStream> {
        Ok(PjrtStream::default())
    }

    fn compile(&self, request: &CompileRequest<'_>) -> Result<Box<dyn Executable<Self>>> {
        let options = CompileOptions::for_device(self.device.id());
        let client = self.device.client();
        let executable =
            executable::Executable::compile(client, request.code, request.inputs.len(), &options)
                .map_err(own)?;
        let outputs = executable.outputs().ok_or_else(|| {
            Error::unsupported("a library that does not say what a program gives before it has run")
        })?;
        let value = |array: &crate::element::ArrayType| {
            let found = TYPES.iter().find(|(_, element)| *element == array.element);
            let (dtype, _) = found.ok_or_else(|| {
                let name = array.element.name().unwrap_or("of an unknown number");
                Error::unsupported(format!("a result of element type {name}"))
            })?;
            Ok(ValueType { dtype: *dtype, shape: array.dims.clone() })
        };
        let outputs = outputs.iter().map(value).collect::<Result<_>>()?;
        Ok(Box::new(Program { executable, device: self.device.clone(), outputs }))
    }
}
