//! Element types, shapes, and tensors in host memory.
//!
//! A [`Tensor`] is immutable and shared: constants of a program may be views of a mapped file, and two
//! sessions of one model hold the same bytes. Its address is its identity, which is how packed weights are
//! found again.

use crate::error::{Error, ErrorKind, Result};
use devbay_ops::Constant;
pub use devbay_ops::types::{Dim, TensorType, bytes_of, dtype_from_name, dtype_name, n_elements};
pub use devbay_plugin_api::abi::DType;
use devbay_plugin_api::reserve;
pub use devbay_plugin_api::sdk::{
    BF16, BOOL, Element, F4E2M1, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0, F16, F32, F64, I2, I4, I8,
    I16, I32, I64, U2, U4, U8, U16, U32, U64,
};
use std::alloc::Layout;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// Alignment of tensors that are made here: a cache line, and the widest vector.
pub const TENSOR_ALIGN: usize = 64;

/// Bytes that a tensor shares with others.
pub trait Bytes: Send + Sync {
    /// Returns the bytes, always the same ones.
    fn bytes(&self) -> &[u8];

    /// Returns whether these are a model file's own bytes, mapped or read, and not derived from them.
    fn is_of_file(&self) -> bool {
        false
    }

    /// Returns where an owner that shares them with nothing else may write them; None if they may not be written.
    fn start_mut(&self) -> Option<NonNull<u8>> {
        None
    }

    /// Gives memory back to the system that holds only a part of them, a range, and that the system can fill again: pages of a
    /// mapped file. The bytes stay where they are and what they are. Reading them takes longer the next time.
    fn release(&self, _range: Range<usize>) {}
}

impl Bytes for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// Memory of our own, aligned for vectors.
///
/// Large memory comes from the system as zeroes, and takes no space until it is written. Huge pages were tried: they save page
/// faults, but on a virtual machine whose host takes free memory back, a load took twice as long with them.
pub struct AlignedBytes {
    /// The first byte, at an alignment, within the memory that the allocator gave.
    start: NonNull<u8>,
    len: usize,
    given: NonNull<u8>,
    layout: Layout,
}

/// Alignment of requests. Memory at a larger one is zeroed by hand (`posix_memalign`), even if it is fresh from the system.
const GIVEN_ALIGN: usize = align_of::<usize>();

// SAFETY: it owns its memory, like a Vec.
unsafe impl Send for AlignedBytes {}
// SAFETY: the memory is written only through `&mut self`.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// Zeroed bytes.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`].
    pub fn zeroed(len: usize) -> Result<Self> {
        Self::zeroed_aligned(len, TENSOR_ALIGN)
    }

    /// Zeroed bytes at an alignment, a power of two.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`], also for an alignment that is no power of two.
    pub fn zeroed_aligned(len: usize, align: usize) -> Result<Self> {
        let failed = || Error::new(ErrorKind::OutOfMemory, format!("cannot allocate {len} bytes"));
        let align = align.max(TENSOR_ALIGN);
        let size = len.max(1).checked_add(align).filter(|_| align.is_power_of_two()).ok_or_else(failed)?;
        let layout = Layout::from_size_align(size, GIVEN_ALIGN).map_err(|_| failed())?;
        // SAFETY: the layout has a size of at least 1.
        let given = reserve::asking(|| unsafe { std::alloc::alloc_zeroed(layout) });
        let given = NonNull::new(given).ok_or_else(failed)?;
        let address = given.addr().get();
        let gap = address.next_multiple_of(align) - address;
        // SAFETY: the gap is less than the alignment, which was added to the size.
        let start = unsafe { given.add(gap) };
        Ok(Self { start, len, given, layout })
    }

    /// The bytes, to fill.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `len` initialised bytes that this value owns.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Bytes for AlignedBytes {
    fn bytes(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes that this value owns.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    fn start_mut(&self) -> Option<NonNull<u8>> {
        Some(self.start)
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: `given` came from `alloc_zeroed` with this layout, and this is the one place that frees it.
        unsafe { std::alloc::dealloc(self.given.as_ptr(), self.layout) };
    }
}

/// An immutable tensor in host memory: dense, row-major, little endian, shared.
///
/// # Invariants
/// 1. `offset..offset + size` lies within the storage, and has the size that dtype and shape need.
/// 2. The first byte is aligned to the element, up to 16 bytes.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Arc<[usize]>,
    storage: Arc<dyn Bytes>,
    offset: usize,
    size: usize,
}

impl Tensor {
    /// Returns a tensor that shares bytes; they are copied if they are not aligned to the element.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidModel`] if the bytes are not as many as dtype and shape need.
    pub fn from_storage(
        dtype: DType,
        shape: &[usize],
        storage: Arc<dyn Bytes>,
        offset: usize,
        size: usize,
    ) -> Result<Self> {
        let needed = n_elements(shape).and_then(|n| bytes_of(dtype, n));
        let bytes = offset.checked_add(size).and_then(|end| storage.bytes().get(offset..end));
        let Some(bytes) = bytes.filter(|bytes| Some(bytes.len()) == needed) else {
            return Err(Error::new(
                ErrorKind::InvalidModel,
                format!(
                    "a tensor {} needs {} bytes, found {size}",
                    TensorType::new(dtype, shape),
                    needed.map_or_else(|| "more than 2^64".to_owned(), |n| n.to_string())
                ),
            ));
        };
        let align = ((dtype.bits as usize).div_ceil(8)).next_power_of_two().min(16);
        if !(bytes.as_ptr() as usize).is_multiple_of(align) {
            let copy = Self::from_bytes(dtype, shape, bytes);
            storage.release(offset..offset + size);
            return copy;
        }
        // INVARIANT: range and alignment were checked above.
        Ok(Self { dtype, shape: shape.into(), storage, offset, size })
    }

    /// Returns a tensor with a copy of bytes.
    ///
    /// # Errors
    /// As [`Tensor::from_storage`]; [`ErrorKind::OutOfMemory`].
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Self> {
        let mut storage = AlignedBytes::zeroed(bytes.len())?;
        storage.as_mut_slice().copy_from_slice(bytes);
        Self::from_storage(dtype, shape, Arc::new(storage), 0, bytes.len())
    }

    /// Returns a tensor with a copy of elements.
    ///
    /// # Errors
    /// As [`Tensor::from_bytes`].
    pub fn from_elements<T: Element>(shape: &[usize], elements: &[T]) -> Result<Self> {
        Self::from_bytes(T::DTYPE, shape, bytemuck::cast_slice(elements))
    }

    /// Returns a tensor of zeroes.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`], also for extents whose product overflows.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Self> {
        let size = n_elements(shape).and_then(|n| bytes_of(dtype, n)).ok_or_else(|| {
            Error::new(
                ErrorKind::OutOfMemory,
                format!("a tensor {} is larger than memory", TensorType::new(dtype, shape)),
            )
        })?;
        Self::from_storage(dtype, shape, Arc::new(AlignedBytes::zeroed(size)?), 0, size)
    }

    /// Returns the address of the content if it may be written there: nothing else shares the memory, which was allocated here.
    pub fn start_mut(&self) -> Option<NonNull<u8>> {
        let is_own = Arc::strong_count(&self.storage) == 1 && Arc::weak_count(&self.storage) == 0;
        let start = is_own.then(|| self.storage.start_mut()).flatten()?;
        // SAFETY: the offset lies within the storage (invariant 1).
        Some(unsafe { start.add(self.offset) })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns its type.
    pub fn tensor_type(&self) -> TensorType {
        TensorType::new(self.dtype, &self.shape)
    }

    /// Returns the number of elements.
    pub fn n_elements(&self) -> usize {
        n_elements(&self.shape).unwrap_or_default()
    }

    /// Returns whether its bytes are a model file's own ([`Bytes::is_of_file`]).
    pub fn is_of_file(&self) -> bool {
        self.storage.is_of_file()
    }

    /// Gives back what the system can fill again of the memory of its content ([`Bytes::release`]): it is not read soon.
    pub fn release(&self) {
        self.release_part(0..self.size);
    }

    /// Gives back memory of a range of its bytes as [`Tensor::release`] does.
    ///
    /// # Panics
    /// If the range is not within its bytes.
    pub fn release_part(&self, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.size, "a range of {} bytes", self.size);
        self.storage.release(self.offset + range.start..self.offset + range.end);
    }

    /// Returns the content.
    pub fn bytes(&self) -> &[u8] {
        &self.storage.bytes()[self.offset..self.offset + self.size]
    }

    /// Returns the content as elements, if they have that type.
    pub fn elements<T: Element>(&self) -> Option<&[T]> {
        // The cast has nothing to refuse: the bytes are whole elements (invariant 1), aligned (invariant 2).
        (self.dtype == T::DTYPE).then(|| bytemuck::cast_slice(self.bytes()))
    }

    /// It, as inference sees constants.
    pub fn as_constant(&self) -> Constant<'_> {
        Constant { dtype: self.dtype, shape: &self.shape, bytes: self.bytes() }
    }

    /// Returns the content as integers, for axes, shapes and indices of any integer type but u64, or bool; None for
    /// others.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`].
    pub fn to_ints(&self) -> Result<Option<Vec<i64>>> {
        Ok(self.as_constant().to_ints()?)
    }

    /// Returns the one integer or truth value that it holds.
    pub fn to_int(&self) -> Option<i64> {
        self.as_constant().to_int()
    }

    /// Returns the one integer or truth value that all its elements are; None if they differ or there are none.
    pub(crate) fn only_int(&self) -> Option<i64> {
        self.as_constant().only_int()
    }

    /// Returns the same bytes with another shape of as many elements.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidModel`] if the numbers of elements differ.
    pub fn reshaped(&self, shape: &[usize]) -> Result<Self> {
        if n_elements(shape) != Some(self.n_elements()) {
            return Err(Error::new(
                ErrorKind::InvalidModel,
                format!("{} cannot be reshaped to {shape:?}", self.tensor_type()),
            ));
        }
        let mut reshaped = self.clone();
        reshaped.shape = shape.into();
        Ok(reshaped)
    }

    /// Returns whether it is the only owner of its bytes.
    pub(crate) fn is_last(&self) -> bool {
        Arc::strong_count(&self.storage) == 1
    }

    /// Returns its identity: the address and the number of its bytes.
    pub fn identity(&self) -> (usize, usize) {
        (self.bytes().as_ptr() as usize, self.size)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({}, {} bytes)", self.tensor_type(), self.size)
    }
}
