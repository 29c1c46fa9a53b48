//! Arrays of NumPy, by its C interface: dense ones go in, and results go out, without a copy.

use crate::errors::exception;
use devbay_host::internals::core::tensor::{Bytes, bytes_of, dtype_name, n_elements};
use devbay_host::{DType, Error, ErrorKind, InputView, Tensor};
use numpy::npyffi::{self, NPY_ARRAY_WRITEABLE, NPY_TYPES, NpyTypes, PY_ARRAY_API, npy_intp};
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use smallvec::SmallVec;
use std::ffi::{c_int, c_long};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// Extents, the usual few without an allocation.
type Shape = SmallVec<[usize; 6]>;

/// A dense array in native byte order, of an element type that NumPy and the library have.
///
/// # Invariants
/// At `start` are `len` bytes: the elements of an array of type `dtype` and shape `shape`, which `array` keeps. Python programs must
/// not write them while a run reads them, nor resize the array without NumPy's check of references, as the documentation of `run`
/// says.
pub struct Dense<'py> {
    array: Bound<'py, PyUntypedArray>,
    dtype: DType,
    /// A copy: assigning `array.shape` frees NumPy's own.
    shape: Shape,
    start: NonNull<u8>,
    len: usize,
}

impl<'py> Dense<'py> {
    /// Returns a dense array; None for every other object.
    #[inline]
    pub fn of(object: &Bound<'py, PyAny>) -> Option<Self> {
        let array = object.cast::<PyUntypedArray>().ok()?;
        if !array.is_c_contiguous() || !array.is_aligned() {
            return None;
        }
        let element = array.dtype();
        // DLPack's codes, by NumPy's letters.
        let code = match element.kind() {
            b'i' => 0,
            b'u' => 1,
            b'f' => 2,
            b'c' => 5,
            b'b' => 6,
            _ => return None,
        };
        let dtype = DType { code, bits: u8::try_from(8 * element.itemsize()).ok()?, lanes: 1 };
        if element.is_native_byteorder() == Some(false) || !is_numpys(dtype) {
            return None;
        }
        let shape = Shape::from_slice(array.shape());
        let len = bytes_of(dtype, n_elements(&shape)?)?;
        // SAFETY: the thread is attached, and the object is an array, as the cast has shown.
        let start = unsafe { (*npyffi::_PyArray_GET_ITEM_DATA(array.as_array_ptr())).data };
        // INVARIANT: a contiguous array has its elements one after the other from `data` on.
        Some(Self { array: array.clone(), dtype, shape, start: NonNull::new(start)?.cast(), len })
    }

    /// Views the array for a run.
    #[inline]
    pub fn view(&self) -> devbay_host::Result<InputView<'_>> {
        // SAFETY: the invariant: `len` bytes that stay while `self` does, and are not written during a run.
        let bytes = unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) };
        InputView::new(self.dtype, &self.shape, bytes)
    }

    /// Returns a tensor that shares the array's memory and keeps the array.
    pub fn into_tensor(self) -> devbay_host::Result<Tensor> {
        let (dtype, shape, len) = (self.dtype, self.shape, self.len);
        let lent = Lent { start: self.start, len, _array: self.array.unbind() };
        Tensor::from_storage(dtype, &shape, Arc::new(lent), 0, len)
    }
}

/// Memory of an array, as the storage of a tensor.
///
/// # Invariants
/// As [`Dense`].
struct Lent {
    start: NonNull<u8>,
    len: usize,
    /// Released when the thread that drops it, or another one, is attached to the interpreter next.
    _array: Py<PyUntypedArray>,
}

// SAFETY: the memory is only read; the array is released by an attached thread.
unsafe impl Send for Lent {}
// SAFETY: shared access only reads memory that is not written during runs (invariant).
unsafe impl Sync for Lent {}

impl Bytes for Lent {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the invariant: `len` bytes that stay while the array does.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

/// The owner of an array's memory.
#[pyclass(frozen, module = "devbay")]
struct Memory(#[expect(dead_code, reason = "its drop releases the memory")] Tensor);

/// Returns NumPy's number of an element type; None if it does not have the type.
fn number_of(dtype: DType) -> Option<NPY_TYPES> {
    const HAS_WIDE_LONG: bool = size_of::<c_long>() == 8;
    Some(match (dtype.code, dtype.bits, dtype.lanes) {
        (0, 8, 1) => NPY_TYPES::NPY_BYTE,
        (0, 16, 1) => NPY_TYPES::NPY_SHORT,
        (0, 32, 1) => NPY_TYPES::NPY_INT,
        (0, 64, 1) if HAS_WIDE_LONG => NPY_TYPES::NPY_LONG,
        (0, 64, 1) => NPY_TYPES::NPY_LONGLONG,
        (1, 8, 1) => NPY_TYPES::NPY_UBYTE,
        (1, 16, 1) => NPY_TYPES::NPY_USHORT,
        (1, 32, 1) => NPY_TYPES::NPY_UINT,
        (1, 64, 1) if HAS_WIDE_LONG => NPY_TYPES::NPY_ULONG,
        (1, 64, 1) => NPY_TYPES::NPY_ULONGLONG,
        (2, 16, 1) => NPY_TYPES::NPY_HALF,
        (2, 32, 1) => NPY_TYPES::NPY_FLOAT,
        (2, 64, 1) => NPY_TYPES::NPY_DOUBLE,
        (5, 64, 1) => NPY_TYPES::NPY_CFLOAT,
        (5, 128, 1) => NPY_TYPES::NPY_CDOUBLE,
        (6, 8, 1) => NPY_TYPES::NPY_BOOL,
        _ => return None,
    })
}

/// Returns whether NumPy itself has an element type.
pub fn is_numpys(dtype: DType) -> bool {
    number_of(dtype).is_some()
}

/// Makes an array of a tensor's memory. It can be written if `is_writable`, and nothing else uses the memory.
///
/// # Errors
/// [`ErrorKind::UnsupportedOp`] if NumPy does not have the element type.
pub fn array_of(py: Python<'_>, tensor: Tensor, is_writable: bool) -> PyResult<Bound<'_, PyAny>> {
    let Some(number) = number_of(tensor.dtype()) else {
        let text = format!("NumPy does not have the element type {}", dtype_name(tensor.dtype()));
        return Err(exception(py, &Error::new(ErrorKind::UnsupportedOp, text)));
    };
    let mut extents: SmallVec<[npy_intp; 6]> =
        tensor.shape().iter().map(|&extent| extent as npy_intp).collect();
    let exclusive = tensor.start_mut().filter(|_| is_writable);
    let start = exclusive.map_or_else(|| tensor.bytes().as_ptr().cast_mut(), NonNull::as_ptr);
    let flags = if exclusive.is_some() { NPY_ARRAY_WRITEABLE } else { 0 };
    let memory = Bound::new(py, Memory(tensor))?;
    // SAFETY: the thread is attached. The type and the element type are NumPy's, which takes over the reference to the latter.
    // `start` has the elements of the extents one after the other: a tensor is dense.
    let array = unsafe {
        let element = PY_ARRAY_API.PyArray_DescrFromType(py, number as c_int);
        let class = npyffi::get_type_object(py, NpyTypes::PyArray_Type);
        let (n, extents) = (extents.len() as c_int, extents.as_mut_ptr());
        let data = start.cast();
        PY_ARRAY_API.PyArray_NewFromDescr(py, class, element, n, extents, null_mut(), data, flags, null_mut())
    };
    // SAFETY: NumPy returned a new reference, or NULL with an exception.
    let array = unsafe { Bound::from_owned_ptr_or_err(py, array) }?;
    // SAFETY: the object is an array. NumPy takes over the reference to `memory`, also if it fails.
    let set = unsafe { PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast(), memory.into_ptr()) };
    match set {
        0 => Ok(array),
        _ => Err(PyErr::fetch(py)),
    }
}
