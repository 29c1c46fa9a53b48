//! Arguments from C: texts, arrays and the caller's memory.

use devbay_host::{DType, Error, ErrorKind, Result};
use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;

/// Returns an error for an argument that cannot be.
pub fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}

/// Reads a text.
///
/// # Safety
/// `text` is NULL or ends with a NUL byte, and lives and stays as it is for `'a`.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for NULL, and for bytes that are not UTF-8.
pub unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str> {
    if text.is_null() {
        return Err(invalid(format!("the {name} is NULL")));
    }
    // SAFETY: not NULL, so it ends with a NUL byte and lives for `'a` (`# Safety`).
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| invalid(format!("the {name} is not UTF-8")))
}

/// Views an array.
///
/// # Safety
/// At `start` are `n` elements, unless it is NULL or `n` is 0; they live and stay as they are for `'a`.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for NULL with elements, and for an address that is not aligned.
pub unsafe fn list<'a, T>(start: *const T, n: usize, name: &str) -> Result<&'a [T]> {
    if n == 0 {
        return Ok(&[]);
    }
    if start.is_null() || !start.is_aligned() || n > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(invalid(format!("{n} {name} are at no address that could be")));
    }
    // SAFETY: neither NULL nor unaligned, and `n` elements live there for `'a` (`# Safety`).
    Ok(unsafe { std::slice::from_raw_parts(start, n) })
}

/// Views an array that is written to.
///
/// # Safety
/// As [`list`], and nothing else uses the elements for `'a`.
///
/// # Errors
/// As [`list`].
pub unsafe fn list_mut<'a, T>(start: *mut T, n: usize, name: &str) -> Result<&'a mut [T]> {
    if n == 0 {
        return Ok(&mut []);
    }
    if start.is_null() || !start.is_aligned() || n > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(invalid(format!("{n} {name} are at no address that could be")));
    }
    // SAFETY: neither NULL nor unaligned, and `n` elements live there for `'a`, used by nothing else (`# Safety`).
    Ok(unsafe { std::slice::from_raw_parts_mut(start, n) })
}

/// Makes a text for C; bytes that would end it early are left out.
pub fn c_text(text: &str) -> CString {
    let whole: Cow<'_, str> = match text.contains('\0') {
        true => text.replace('\0', "").into(),
        false => text.into(),
    };
    CString::new(&*whole).unwrap_or_default()
}

/// Type of a tensor's elements: DLPack's code in bits 0 to 7, the number of bits in bits 8 to 15, and the number of lanes, 1, in
/// bits 16 to 31.
pub type devbay_dtype = u32;

/// Signed integers of 8 bits.
pub const DEVBAY_DTYPE_I8: devbay_dtype = 1 << 16 | 8 << 8;
/// Signed integers of 16 bits.
pub const DEVBAY_DTYPE_I16: devbay_dtype = 1 << 16 | 16 << 8;
/// Signed integers of 32 bits.
pub const DEVBAY_DTYPE_I32: devbay_dtype = 1 << 16 | 32 << 8;
/// Signed integers of 64 bits.
pub const DEVBAY_DTYPE_I64: devbay_dtype = 1 << 16 | 64 << 8;
/// Unsigned integers of 8 bits.
pub const DEVBAY_DTYPE_U8: devbay_dtype = 1 << 16 | 8 << 8 | 1;
/// Unsigned integers of 16 bits.
pub const DEVBAY_DTYPE_U16: devbay_dtype = 1 << 16 | 16 << 8 | 1;
/// Unsigned integers of 32 bits.
pub const DEVBAY_DTYPE_U32: devbay_dtype = 1 << 16 | 32 << 8 | 1;
/// Unsigned integers of 64 bits.
pub const DEVBAY_DTYPE_U64: devbay_dtype = 1 << 16 | 64 << 8 | 1;
/// IEEE 754 floats of 16 bits.
pub const DEVBAY_DTYPE_F16: devbay_dtype = 1 << 16 | 16 << 8 | 2;
/// IEEE 754 floats of 32 bits.
pub const DEVBAY_DTYPE_F32: devbay_dtype = 1 << 16 | 32 << 8 | 2;
/// IEEE 754 floats of 64 bits.
pub const DEVBAY_DTYPE_F64: devbay_dtype = 1 << 16 | 64 << 8 | 2;
/// bfloat16.
pub const DEVBAY_DTYPE_BF16: devbay_dtype = 1 << 16 | 16 << 8 | 4;
/// Booleans in 8 bits: 0 or 1.
pub const DEVBAY_DTYPE_BOOL: devbay_dtype = 1 << 16 | 8 << 8 | 6;

/// The types with a constant in C are the engine's.
const _: () = {
    use devbay_host::internals::core::tensor::{
        BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64,
    };
    let types = [
        (DEVBAY_DTYPE_I8, I8),
        (DEVBAY_DTYPE_I16, I16),
        (DEVBAY_DTYPE_I32, I32),
        (DEVBAY_DTYPE_I64, I64),
        (DEVBAY_DTYPE_U8, U8),
        (DEVBAY_DTYPE_U16, U16),
        (DEVBAY_DTYPE_U32, U32),
        (DEVBAY_DTYPE_U64, U64),
        (DEVBAY_DTYPE_F16, F16),
        (DEVBAY_DTYPE_F32, F32),
        (DEVBAY_DTYPE_F64, F64),
        (DEVBAY_DTYPE_BF16, BF16),
        (DEVBAY_DTYPE_BOOL, BOOL),
    ];
    let mut i = 0;
    while i < types.len() {
        assert!(types[i].0 == dtype_to_c(types[i].1));
        i += 1;
    }
};

/// Returns a type in C's form.
pub const fn dtype_to_c(dtype: DType) -> devbay_dtype {
    dtype.code as u32 | (dtype.bits as u32) << 8 | (dtype.lanes as u32) << 16
}

/// Reads a type.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for a type that tensors cannot have.
pub fn dtype(dtype: devbay_dtype) -> Result<DType> {
    let [code, bits, low, high] = dtype.to_le_bytes();
    let dtype = DType { code, bits, lanes: u16::from_le_bytes([low, high]) };
    let name = devbay_host::internals::core::tensor::dtype_name(dtype);
    match devbay_host::internals::core::tensor::dtype_from_name(&name) {
        Some(known) if known == dtype => Ok(dtype),
        _ => Err(invalid(format!("tensors have no elements of type {name}"))),
    }
}

/// Reads extents.
///
/// # Safety
/// As [`list`].
///
/// # Errors
/// As [`list`]; [`ErrorKind::InvalidArgument`] for a negative extent.
pub unsafe fn extents(extents: *const i64, rank: usize) -> Result<Vec<usize>> {
    // SAFETY: the caller's promise (`# Safety`).
    let extents = unsafe { list(extents, rank, "extents") }?;
    let known = |&extent: &i64| {
        usize::try_from(extent).map_err(|_| invalid(format!("{extent} is not the extent of a tensor")))
    };
    extents.iter().map(known).collect()
}

/// A struct to which later versions append fields.
///
/// # Safety
/// It is `repr(C)`, begins with its size as a `usize`, may have zeros in all its bytes, and had `FIRST_SIZE` bytes in version 1.
pub unsafe trait Growing: Copy {
    /// Its size in version 1, for callers with the oldest header.
    const FIRST_SIZE: usize;

    /// Its name in C.
    const NAME: &'static str;
}

/// Returns how many bytes of a struct both sides know.
///
/// # Safety
/// `at` is NULL, or at a struct that begins with its size.
unsafe fn common_size<T: Growing>(at: *const T) -> Result<usize> {
    if at.is_null() || !at.is_aligned() {
        return Err(invalid(format!("a {} is at no address that could be", T::NAME)));
    }
    // SAFETY: neither NULL nor unaligned, and the struct begins with its size (`# Safety`).
    let size = unsafe { at.cast::<usize>().read() };
    if size < T::FIRST_SIZE {
        let text = format!("struct_size of a {} is at least {}, found {size}", T::NAME, T::FIRST_SIZE);
        return Err(invalid(text));
    }
    Ok(size.min(size_of::<T>()))
}

/// Reads a struct of the caller's. Fields that the caller's header does not have are 0.
///
/// # Safety
/// `at` is NULL, or at a struct of as many bytes as it says at its beginning.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for NULL, for an address that is not aligned, and for a size that no version had.
pub unsafe fn read_struct<T: Growing>(at: *const T) -> Result<T> {
    // SAFETY: the caller's promise (`# Safety`).
    let size = unsafe { common_size(at) }?;
    let mut read = MaybeUninit::<T>::zeroed();
    // SAFETY: the caller's struct has at least `size` bytes, and `T` has, too.
    unsafe { at.cast::<u8>().copy_to_nonoverlapping(read.as_mut_ptr().cast(), size) };
    // SAFETY: every byte is the caller's or 0, which `T` may have.
    Ok(unsafe { read.assume_init() })
}

/// Writes a struct of the caller's: the fields that its header has. Its size becomes that of the fields that were written.
///
/// # Safety
/// As [`read_struct`], and nothing else uses the struct.
///
/// # Errors
/// As [`read_struct`].
pub unsafe fn write_struct<T: Growing>(at: *mut T, value: &T) -> Result<()> {
    // SAFETY: the caller's promise (`# Safety`).
    let size = unsafe { common_size(at.cast_const()) }?;
    // SAFETY: the caller's struct has at least `size` bytes, `T` has, too, and both begin with the size.
    unsafe {
        std::ptr::from_ref(value).cast::<u8>().copy_to_nonoverlapping(at.cast(), size);
        at.cast::<usize>().write(size);
    }
    Ok(())
}
