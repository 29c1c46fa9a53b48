//! Arrays on a device: from host memory, to host memory, and what they are.

use crate::api::{self, LAYOUT_TILED, MemoryLayout, RawBuffer, TiledLayout};
use crate::client::{Client, Device};
use crate::element::{ArrayType, ElementType};
use crate::error::{Error, Result, optional};
use crate::event::Event;
use crate::library::list;

/// An array on a device. It is written once, by what made it, and may not be there yet: [`Buffer::ready`].
///
/// Dropping it frees its memory when what uses it has ended.
///
/// # Invariants
/// `raw` is a buffer of the client's, destroyed in `drop` alone.
#[derive(Debug)]
pub struct Buffer {
    client: Client,
    raw: *mut RawBuffer,
}

// SAFETY: a buffer may be used and destroyed on any thread (the crate's page on threads).
unsafe impl Send for Buffer {}
// SAFETY: the library locks when several threads ask, copy and execute with a buffer at once.
unsafe impl Sync for Buffer {}

/// An array in host memory.
#[derive(Clone, Copy, Debug)]
pub struct HostArray<'a> {
    /// Its bytes; without strides exactly as many as the elements take.
    pub bytes: &'a [u8],
    /// One element; a whole number of bytes.
    pub element: ElementType,
    /// Elements along each dimension, the slowest first.
    pub dims: &'a [i64],
    /// Bytes from one element to the next along each dimension, none negative; dense and row-major without.
    pub byte_strides: Option<&'a [i64]>,
}

/// Until when the library reads host memory that it was given: `PJRT_HostBufferSemantics` without the one that writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostMemory {
    /// Until the call returns.
    DuringCall = 0,
    /// Until the array is on the device, which the event says.
    UntilTransferred = 1,
    /// As long as the buffer lives: it may be the buffer's memory, which stays as it is. The event comes after the buffer
    /// was freed. XLA's CPU takes memory that is aligned to 64 bytes so, and copies other memory.
    ZeroCopy = 2,
}

impl HostArray<'_> {
    /// # Errors
    /// [`Error::Invalid`] if the bytes are not the array's.
    fn check(&self) -> Result<()> {
        let Some(element_bytes) = self.element.size_bytes() else {
            return Err(Error::invalid(format!(
                "element type {} has no form in host memory",
                self.element.0
            )));
        };
        let mut n_elements = Some(1_usize);
        for &dim in self.dims {
            let Ok(dim) = usize::try_from(dim) else {
                return Err(Error::invalid(format!(
                    "expected dimensions of 0 and more, found {:?}",
                    self.dims
                )));
            };
            n_elements = n_elements.and_then(|n| n.checked_mul(dim));
        }
        let found = self.bytes.len();
        let Some(strides) = self.byte_strides else {
            let expected = n_elements.and_then(|n| n.checked_mul(element_bytes));
            if expected != Some(found) {
                let dims = self.dims;
                return Err(Error::invalid(format!(
                    "expected {element_bytes} bytes for each element of {dims:?}, found {found} in all"
                )));
            }
            return Ok(());
        };
        if strides.len() != self.dims.len() {
            let (n, expected) = (strides.len(), self.dims.len());
            return Err(Error::invalid(format!("expected {expected} strides, found {n}")));
        }
        if n_elements == Some(0) {
            return Ok(());
        }
        let mut end = Some(element_bytes);
        for (&dim, &stride) in self.dims.iter().zip(strides) {
            // A dimension of 1 and more here; a negative stride fails the conversion.
            let last = usize::try_from(stride).ok().and_then(|stride| stride.checked_mul(dim as usize - 1));
            end = end.zip(last).and_then(|(end, last)| end.checked_add(last));
        }
        if end.is_none_or(|end| end > found) {
            let dims = self.dims;
            return Err(Error::invalid(format!(
                "expected strides of 0 and more bytes within {found}, found {strides:?} for {dims:?}"
            )));
        }
        Ok(())
    }
}

impl Device {
    /// Copies an array from host memory, which is free again when this returns.
    ///
    /// **Threads**: any; blocks for the copy, not until the array is on the device.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the bytes are not the array's; the library's words, such as that memory is short.
    pub fn upload(&self, array: &HostArray<'_>) -> Result<Buffer> {
        // SAFETY: the array outlives the call, as this kind of use asks.
        let (buffer, _done) = unsafe { self.upload_from(array, HostMemory::DuringCall) }?;
        Ok(buffer)
    }

    /// Begins to copy an array from host memory. The event says when the library reads it no more.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    ///
    /// # Safety
    /// 1. The array's bytes stay where they are until the event is done, except with [`HostMemory::DuringCall`].
    /// 2. They do not change until then.
    pub unsafe fn upload_from(&self, array: &HostArray<'_>, memory: HostMemory) -> Result<(Buffer, Event)> {
        array.check()?;
        let client = self.client();
        let mut args = api::ClientBufferFromHostBuffer {
            client: client.raw(),
            data: array.bytes.as_ptr().cast(),
            kind: array.element.0,
            dims: array.dims.as_ptr(),
            num_dims: array.dims.len(),
            byte_strides: array.byte_strides.map_or(std::ptr::null(), <[i64]>::as_ptr),
            num_byte_strides: array.byte_strides.map_or(0, <[i64]>::len),
            host_buffer_semantics: memory as i32,
            device: self.raw(),
            ..api::ClientBufferFromHostBuffer::ZERO
        };
        // SAFETY: the bytes hold the array (checked), for as long as the caller promises; client and device are alive.
        unsafe { client.library().call(&mut args) }?;
        const FUNCTION: &str = "PJRT_Client_BufferFromHostBuffer";
        // SAFETY: a buffer just made, ours to destroy.
        let buffer = unsafe { Buffer::new(client, args.buffer, FUNCTION) };
        // SAFETY: an event just made, ours to destroy.
        let done = unsafe { Event::new(client, args.done_with_host_buffer, FUNCTION) };
        Ok((buffer?, done?))
    }
}

impl Buffer {
    /// Takes a buffer that `function` returned.
    ///
    /// # Safety
    /// `raw` is NULL or a buffer of the client's that nothing else destroys.
    pub(crate) unsafe fn new(client: &Client, raw: *mut RawBuffer, function: &'static str) -> Result<Self> {
        if raw.is_null() {
            return Err(Error::Broken { function, text: "no buffer" });
        }
        Ok(Self { client: client.clone(), raw })
    }

    /// Its client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn raw(&self) -> *mut RawBuffer {
        self.raw
    }

    /// Returns the type of one element.
    ///
    /// # Errors
    /// The library's words.
    pub fn element_type(&self) -> Result<ElementType> {
        let mut args = api::BufferElementType { buffer: self.raw, ..api::BufferElementType::ZERO };
        // SAFETY: the buffer is alive (invariant).
        unsafe { self.client.library().call(&mut args) }?;
        Ok(ElementType(args.kind))
    }

    /// Elements along each dimension, the slowest first.
    ///
    /// # Errors
    /// The library's words.
    pub fn dims(&self) -> Result<&[i64]> {
        let mut args = api::BufferDimensions { buffer: self.raw, ..api::BufferDimensions::ZERO };
        // SAFETY: the buffer is alive (invariant).
        unsafe { self.client.library().call(&mut args) }?;
        // SAFETY: a list that lives as long as the buffer.
        Ok(unsafe { list(args.dims, args.num_dims) })
    }

    /// Element type and dimensions.
    ///
    /// # Errors
    /// The library's words.
    pub fn array_type(&self) -> Result<ArrayType> {
        Ok(ArrayType { element: self.element_type()?, dims: self.dims()?.to_vec() })
    }

    /// Bytes of the array in host memory, dense.
    ///
    /// # Errors
    /// [`Error::Invalid`] for element types without a form in host memory; the library's words.
    pub fn size_bytes(&self) -> Result<usize> {
        let element = self.element_type()?;
        let Some(element_bytes) = element.size_bytes() else {
            return Err(Error::invalid(format!("element type {} has no form in host memory", element.0)));
        };
        let mut size_bytes = Some(element_bytes);
        for &dim in self.dims()? {
            size_bytes =
                size_bytes.zip(usize::try_from(dim).ok()).and_then(|(size, dim)| size.checked_mul(dim));
        }
        size_bytes
            .ok_or(Error::Broken { function: "PJRT_Buffer_Dimensions", text: "more bytes than there can be" })
    }

    /// Bytes that it takes on its device, with padding.
    ///
    /// # Errors
    /// The library's words.
    pub fn size_on_device_bytes(&self) -> Result<usize> {
        let mut args =
            api::BufferOnDeviceSizeInBytes { buffer: self.raw, ..api::BufferOnDeviceSizeInBytes::ZERO };
        // SAFETY: the buffer is alive (invariant).
        unsafe { self.client.library().call(&mut args) }?;
        Ok(args.size_bytes)
    }

    /// When it is there, or why it will not be.
    ///
    /// # Errors
    /// The library's words.
    pub fn ready(&self) -> Result<Event> {
        let mut args = api::BufferReadyEvent { buffer: self.raw, ..api::BufferReadyEvent::ZERO };
        // SAFETY: the buffer is alive (invariant).
        unsafe { self.client.library().call(&mut args) }?;
        // SAFETY: an event just made, ours to destroy.
        unsafe { Event::new(&self.client, args.event, "PJRT_Buffer_ReadyEvent") }
    }

    /// Frees its memory when what uses it has ended; the buffer can then be asked [`is_deleted`](Self::is_deleted) and
    /// nothing else.
    ///
    /// # Errors
    /// The library's words.
    pub fn delete(&self) -> Result<()> {
        let mut args = api::BufferDelete { buffer: self.raw, ..api::BufferDelete::ZERO };
        // SAFETY: the buffer is alive (invariant).
        unsafe { self.client.library().call(&mut args) }
    }

    /// Returns whether its memory was freed: deleted, or donated to an execution.
    ///
    /// # Errors
    /// The library's words.
    pub fn is_deleted(&self) -> Result<bool> {
        let mut args = api::BufferIsDeleted { buffer: self.raw, ..api::BufferIsDeleted::ZERO };
        // SAFETY: the buffer is alive (invariant).
        unsafe { self.client.library().call(&mut args) }?;
        Ok(args.is_deleted != 0)
    }

    /// Copies it to host memory, dense and row-major.
    ///
    /// **Threads**: any; blocks until it is there and copied.
    ///
    /// # Errors
    /// As [`download_to`](Self::download_to), and what went wrong with what makes the array.
    pub fn download(&self, destination: &mut [u8]) -> Result<()> {
        // SAFETY: the memory is borrowed until the copy is done: every library has the function to wait with.
        let done = unsafe { self.download_to(destination.as_mut_ptr(), destination.len()) }?;
        done.wait()
    }

    /// Begins to copy it to host memory, dense and row-major; the copy waits for the array.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the size is not [`size_bytes`](Self::size_bytes); the library's words.
    ///
    /// # Safety
    /// `size_bytes` bytes at `destination` can be written, and nothing else touches them, until the event is done.
    pub unsafe fn download_to(&self, destination: *mut u8, size_bytes: usize) -> Result<Event> {
        let expected = self.size_bytes()?;
        if size_bytes != expected {
            return Err(Error::invalid(format!("expected memory of {expected} bytes, found {size_bytes}")));
        }
        // Without a layout the device's own would be kept, which on TPUs need not be row-major.
        let minor_to_major: Vec<i64> = (0..self.dims()?.len() as i64).rev().collect();
        let mut layout = MemoryLayout {
            tiled: TiledLayout {
                minor_to_major: minor_to_major.as_ptr(),
                minor_to_major_size: minor_to_major.len(),
                ..TiledLayout::ZERO
            },
            kind: LAYOUT_TILED,
            ..MemoryLayout::ZERO
        };
        let mut args = api::BufferToHostBuffer {
            src: self.raw,
            host_layout: &mut layout,
            dst: destination.cast(),
            dst_size: size_bytes,
            ..api::BufferToHostBuffer::ZERO
        };
        // SAFETY: the buffer is alive (invariant), the layout lives for the call, and the caller keeps the memory.
        unsafe { self.client.library().call(&mut args) }?;
        // SAFETY: an event just made, ours to destroy.
        unsafe { Event::new(&self.client, args.event, "PJRT_Buffer_ToHostBuffer") }
    }

    /// Its bytes where they are, dense and row-major, without a copy: for devices whose memory is the host's. `None` where
    /// that is not so, or the library does not say.
    ///
    /// **Threads**: any; blocks until the array is there.
    ///
    /// # Errors
    /// The failure of what makes the array; the library's words.
    pub fn host_view(&self) -> Result<Option<HostView<'_>>> {
        let library = self.client.library();
        let mut on_cpu = api::BufferIsOnCpu { buffer: self.raw, ..api::BufferIsOnCpu::ZERO };
        // SAFETY: the buffer is alive (invariant).
        if optional(unsafe { library.call(&mut on_cpu) })?.is_none() || on_cpu.is_on_cpu == 0 {
            return Ok(None);
        }
        self.ready()?.wait()?;
        if !self.is_row_major()? {
            return Ok(None);
        }
        let size_bytes = self.size_bytes()?;
        let mut references =
            api::BufferIncreaseReferences { buffer: self.raw, ..api::BufferIncreaseReferences::ZERO };
        // SAFETY: the buffer is alive (invariant).
        if optional(unsafe { library.call(&mut references) })?.is_none() {
            return Ok(None);
        }
        // From here on dropping the view gives the reference back.
        let mut view = HostView { buffer: self, bytes: &[] };
        let mut args = api::BufferDataPointer { buffer: self.raw, ..api::BufferDataPointer::ZERO };
        // SAFETY: the buffer is alive (invariant).
        if optional(unsafe { library.call(&mut args) })?.is_none() {
            return Ok(None);
        }
        if size_bytes > 0 {
            if args.data.is_null() || size_bytes > self.size_on_device_bytes()? {
                return Ok(None);
            }
            // SAFETY: the array's memory on the host, dense, complete, and kept by the reference until the view is gone.
            view.bytes = unsafe { std::slice::from_raw_parts(args.data.cast_const().cast(), size_bytes) };
        }
        Ok(Some(view))
    }

    /// Returns whether its memory is row-major without tiles; no where the library does not say.
    fn is_row_major(&self) -> Result<bool> {
        let mut args = api::BufferGetMemoryLayout { buffer: self.raw, ..api::BufferGetMemoryLayout::ZERO };
        // SAFETY: the buffer is alive (invariant).
        if optional(unsafe { self.client.library().call(&mut args) })?.is_none()
            || args.layout.kind != LAYOUT_TILED
        {
            return Ok(false);
        }
        let tiled = &args.layout.tiled;
        // SAFETY: a list that lives as long as the buffer.
        let minor_to_major = unsafe { list(tiled.minor_to_major, tiled.minor_to_major_size) };
        let n_dims = self.dims()?.len();
        let row_major = minor_to_major.iter().copied().eq((0..n_dims as i64).rev());
        Ok(row_major && tiled.num_tiles == 0)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut args = api::BufferDestroy { buffer: self.raw, ..api::BufferDestroy::ZERO };
        // SAFETY: the buffer is alive (invariant) and ends here. An error leaves nothing to do.
        let _ = unsafe { self.client.library().call(&mut args) };
    }
}

/// A buffer's bytes in the host's memory. While it lives, the buffer's memory is not moved, freed or given to a program.
#[derive(Debug)]
pub struct HostView<'a> {
    buffer: &'a Buffer,
    bytes: &'a [u8],
}

impl std::ops::Deref for HostView<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl Drop for HostView<'_> {
    fn drop(&mut self) {
        let buffer = self.buffer;
        let mut args =
            api::BufferDecreaseReferences { buffer: buffer.raw, ..api::BufferDecreaseReferences::ZERO };
        // SAFETY: the buffer is alive (borrowed), and the reference was taken when the view was made.
        let _ = unsafe { buffer.client.library().call(&mut args) };
    }
}
