//! Element types, shapes, and tensors in host memory.
//!
//! A [`Tensor`] is immutable and shared: constants of a program may be views of a mapped file, and two
//! sessions of one model hold the same bytes. Its address is its identity, which is how packed weights are
//! found again.

use crate::error::{Error, ErrorKind, Result};
pub use devbay_plugin_api::abi::DType;
use devbay_plugin_api::abi::{
    DEVBAY_DTYPE_BFLOAT, DEVBAY_DTYPE_BOOL, DEVBAY_DTYPE_COMPLEX, DEVBAY_DTYPE_FLOAT, DEVBAY_DTYPE_INT,
    DEVBAY_DTYPE_UINT,
};
use devbay_plugin_api::reserve;
pub use devbay_plugin_api::sdk::{
    BF16, BOOL, Element, F4E2M1, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0, F16, F32, F64, I2, I4, I8,
    I16, I32, I64, U2, U4, U8, U16, U32, U64,
};
use std::alloc::Layout;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// Alignment of tensors that are made here: a cache line, and the widest vector.
pub const TENSOR_ALIGN: usize = 64;

/// Every element type by name, as the text form and messages have them.
const NAMES: &[(&str, DType)] = &[
    ("f32", F32),
    ("f64", F64),
    ("f16", F16),
    ("bf16", BF16),
    ("i8", I8),
    ("i16", I16),
    ("i32", I32),
    ("i64", I64),
    ("u8", U8),
    ("u16", U16),
    ("u32", U32),
    ("u64", U64),
    ("bool", BOOL),
    ("i4", I4),
    ("i2", I2),
    ("u4", U4),
    ("u2", U2),
    ("f8e4m3fn", F8E4M3FN),
    ("f8e4m3fnuz", F8E4M3FNUZ),
    ("f8e5m2", F8E5M2),
    ("f8e5m2fnuz", F8E5M2FNUZ),
    ("f8e8m0", F8E8M0),
    ("f4e2m1", F4E2M1),
];

/// The name of an element type: `f32`, `i64`, `bool`; other types by kind and bits.
pub fn dtype_name(dtype: DType) -> String {
    if let Some((name, _)) = NAMES.iter().find(|(_, known)| *known == dtype) {
        return (*name).to_owned();
    }
    let kind = match dtype.code {
        DEVBAY_DTYPE_INT => "i",
        DEVBAY_DTYPE_UINT => "u",
        DEVBAY_DTYPE_FLOAT => "f",
        DEVBAY_DTYPE_BFLOAT => "bf",
        DEVBAY_DTYPE_COMPLEX => "c",
        DEVBAY_DTYPE_BOOL => "bool",
        code => return format!("code{code}x{}", dtype.bits),
    };
    format!("{kind}{}", dtype.bits)
}

/// The element type of a name, as [`dtype_name`] writes it.
pub fn dtype_from_name(name: &str) -> Option<DType> {
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype)
}

/// Bytes that `n` elements take: sub-byte elements are packed (ABI-NOTES 19). None if it overflows.
pub fn bytes_of(dtype: DType, n: usize) -> Option<usize> {
    let bits = (dtype.bits as usize).checked_mul(dtype.lanes as usize)?;
    n.checked_mul(bits)?.checked_add(7).map(|bits| bits / 8)
}

/// Product of extents; None if it overflows.
pub fn n_elements(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent))
}

/// One extent of a value's shape.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Dim {
    /// So many elements.
    Known(usize),
    /// Not known before run time; a name or formula of the model, possibly empty.
    Unknown(Arc<str>),
}

impl Dim {
    /// The extent, if it is known.
    pub fn known(&self) -> Option<usize> {
        match self {
            Self::Known(extent) => Some(*extent),
            Self::Unknown(_) => None,
        }
    }

    /// An extent without a name.
    pub fn unknown() -> Self {
        Self::Unknown(Arc::from(""))
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(extent) => write!(f, "{extent}"),
            Self::Unknown(name) if name.is_empty() => write!(f, "?"),
            Self::Unknown(name) => write!(f, "{name}"),
        }
    }
}

/// Type of a value: element type, and shape as far as it is known.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Extents; None if not even the rank is known.
    pub shape: Option<Vec<Dim>>,
}

impl TensorType {
    /// A type with a known shape.
    pub fn new(dtype: DType, shape: &[usize]) -> Self {
        Self { dtype, shape: Some(shape.iter().map(|&extent| Dim::Known(extent)).collect()) }
    }

    /// A type of which only the elements are known.
    pub fn unranked(dtype: DType) -> Self {
        Self { dtype, shape: None }
    }

    /// The shape, if every extent is known.
    pub fn known_shape(&self) -> Option<Vec<usize>> {
        self.shape.as_ref()?.iter().map(Dim::known).collect()
    }

    /// Whether a tensor of these elements and extents is of the type, as far as that is known.
    pub fn takes(&self, dtype: DType, extents: &[usize]) -> bool {
        let takes = |(dim, &extent): (&Dim, &usize)| dim.known().is_none_or(|known| known == extent);
        let fits = |shape: &Vec<Dim>| shape.len() == extents.len() && shape.iter().zip(extents).all(takes);
        self.dtype == dtype && self.shape.as_ref().is_none_or(fits)
    }

    /// The number of dimensions, if it is known.
    pub fn rank(&self) -> Option<usize> {
        self.shape.as_ref().map(Vec::len)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", dtype_name(self.dtype))?;
        let Some(shape) = &self.shape else {
            return write!(f, "[..]");
        };
        write!(f, "[")?;
        for (i, dim) in shape.iter().enumerate() {
            write!(f, "{}{dim}", if i > 0 { "," } else { "" })?;
        }
        write!(f, "]")
    }
}

/// Bytes that a tensor shares with others.
pub trait Bytes: Send + Sync {
    /// The bytes, always the same ones.
    fn bytes(&self) -> &[u8];

    /// Whether they are a model file's as they are, mapped or read, and not bytes that were made of them.
    fn is_of_file(&self) -> bool {
        false
    }
}

impl Bytes for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// Memory of our own, aligned for vectors.
pub struct AlignedBytes {
    start: NonNull<u8>,
    len: usize,
    layout: Layout,
}

// SAFETY: it owns its memory, like a Vec.
unsafe impl Send for AlignedBytes {}
// SAFETY: shared references only read.
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
        let layout = Layout::from_size_align(len.max(1), align.max(TENSOR_ALIGN)).map_err(|_| failed())?;
        // SAFETY: the layout has a size of at least 1.
        let start = reserve::asking(|| unsafe { std::alloc::alloc_zeroed(layout) });
        let start = NonNull::new(start).ok_or_else(failed)?;
        Ok(Self { start, len, layout })
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
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, freed once.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// An immutable tensor in host memory: dense, row-major, little endian, shared.
///
/// # Invariants
/// 1. `offset..offset + size` lies within the storage, and is what dtype and shape need.
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
    /// A tensor that shares bytes; they are copied if they are not aligned to the element.
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
            return Self::from_bytes(dtype, shape, bytes);
        }
        // INVARIANT: range and alignment were checked above.
        Ok(Self { dtype, shape: shape.into(), storage, offset, size })
    }

    /// A tensor with a copy of bytes.
    ///
    /// # Errors
    /// As [`Tensor::from_storage`]; [`ErrorKind::OutOfMemory`].
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Self> {
        let mut storage = AlignedBytes::zeroed(bytes.len())?;
        storage.as_mut_slice().copy_from_slice(bytes);
        Self::from_storage(dtype, shape, Arc::new(storage), 0, bytes.len())
    }

    /// A tensor with a copy of elements.
    ///
    /// # Errors
    /// As [`Tensor::from_bytes`].
    pub fn from_elements<T: Element>(shape: &[usize], elements: &[T]) -> Result<Self> {
        // SAFETY: an `Element` is plain data without padding, so its bytes may be read.
        let bytes = unsafe {
            std::slice::from_raw_parts(elements.as_ptr().cast::<u8>(), std::mem::size_of_val(elements))
        };
        Self::from_bytes(T::DTYPE, shape, bytes)
    }

    /// A tensor of zeroes.
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

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Its type.
    pub fn tensor_type(&self) -> TensorType {
        TensorType::new(self.dtype, &self.shape)
    }

    /// Number of elements.
    pub fn n_elements(&self) -> usize {
        n_elements(&self.shape).unwrap_or_default()
    }

    /// Whether its bytes are a model file's as they are ([`Bytes::is_of_file`]).
    pub fn is_of_file(&self) -> bool {
        self.storage.is_of_file()
    }

    /// The content.
    pub fn bytes(&self) -> &[u8] {
        &self.storage.bytes()[self.offset..self.offset + self.size]
    }

    /// The content as elements, if they have that type.
    pub fn elements<T: Element>(&self) -> Option<&[T]> {
        if self.dtype != T::DTYPE {
            return None;
        }
        let bytes = self.bytes();
        // SAFETY: the bytes hold `n` elements of this type (invariant 1), aligned (invariant 2), and every
        // bit pattern is a value of an `Element`.
        Some(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<T>(), bytes.len() / size_of::<T>()) })
    }

    /// The integer at a position, for dtypes that [`Tensor::to_ints`] takes.
    fn int_at(&self, i: usize) -> Option<i64> {
        Some(match self.dtype {
            I64 => *self.elements::<i64>()?.get(i)?,
            I32 => i64::from(*self.elements::<i32>()?.get(i)?),
            I16 => i64::from(*self.elements::<i16>()?.get(i)?),
            I8 => i64::from(*self.elements::<i8>()?.get(i)?),
            U32 => i64::from(*self.elements::<u32>()?.get(i)?),
            U16 => i64::from(*self.elements::<u16>()?.get(i)?),
            U8 => i64::from(*self.elements::<u8>()?.get(i)?),
            BOOL => i64::from(*self.bytes().get(i)? != 0),
            _ => return None,
        })
    }

    /// The content as integers, for axes, shapes and indices of any integer type but u64, or bool; None for others.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`].
    pub fn to_ints(&self) -> Result<Option<Vec<i64>>> {
        if ![I64, I32, I16, I8, U32, U16, U8, BOOL].contains(&self.dtype) {
            return Ok(None);
        }
        let ints = (0..self.n_elements()).map_while(|i| self.int_at(i));
        let mut list = reserve::with_capacity(self.n_elements(), "a tensor's integers")?;
        reserve::extend(&mut list, ints, "a tensor's integers")?;
        Ok(Some(list))
    }

    /// The one integer or truth value that it holds.
    pub fn to_int(&self) -> Option<i64> {
        self.int_at(0).filter(|_| self.n_elements() == 1)
    }

    /// The one integer or truth value that all its elements are; None if they differ or there are none.
    pub(crate) fn only_int(&self) -> Option<i64> {
        let first = self.int_at(0)?;
        (1..self.n_elements()).all(|i| self.int_at(i) == Some(first)).then_some(first)
    }

    /// The same bytes with another shape of as many elements.
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

    /// Whether nobody else has its bytes.
    pub(crate) fn is_last(&self) -> bool {
        Arc::strong_count(&self.storage) == 1
    }

    /// What tells two tensors apart: where their bytes are, and how many.
    pub fn identity(&self) -> (usize, usize) {
        (self.bytes().as_ptr() as usize, self.size)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({}, {} bytes)", self.tensor_type(), self.size)
    }
}
