//! Reading and writing structs and lists whose size the other side chose (B4, B5).
//!
//! A growable struct has its size in its first field. A reader takes the fields that lie wholly within that
//! size and sees zero for the rest. A writer writes no field that does not fit. A partial field counts as
//! absent. Nothing here trusts more than it must: a size below that of every version, a stride below an
//! element's size, or a NULL with a length is an error, not a read.

use super::tables::LAYOUTS;
use super::v0::*;
use crate::reserve::{self, NoMemory};
use core::fmt;

/// A struct of the ABI that starts with `struct_size` and gains fields at its end.
///
/// # Safety
/// 1. The type is `repr(C)`, its first field is `struct_size: u32`, and all zeroes is a valid value.
/// 2. `FIELD_ENDS` has the end of each field in ascending order, and `REQUIRED_SIZE` is one of them.
///
/// Implemented only by the generated `tables.rs`.
pub unsafe trait Growable: Copy {
    /// Name in this crate.
    const NAME: &'static str;
    /// Bytes that every version of the struct has.
    const REQUIRED_SIZE: usize;
    /// End of each field, in bytes.
    const FIELD_ENDS: &'static [usize];

    /// Returns a value with all fields zero except `struct_size`.
    fn empty() -> Self {
        // SAFETY: all zeroes is a valid value (1).
        let mut value: Self = unsafe { core::mem::zeroed() };
        let size: *mut u32 = (&raw mut value).cast();
        // SAFETY: the first field is a u32 (1).
        unsafe { size.write(size_of::<Self>() as u32) };
        value
    }
}

/// Larger structs are treated as garbage.
const STRUCT_SIZE_MAX: usize = 1 << 16;
/// Longer lists are treated as garbage.
const LIST_LEN_MAX: u64 = 1 << 20;
/// Longer texts are treated as garbage.
const STR_LEN_MAX: u64 = 1 << 24;

/// Defect of a struct, list or text that the other side created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListError {
    /// A pointer is NULL that must not be.
    Null {
        /// The object that the pointer should point to.
        what: &'static str,
    },
    /// A struct states an impossible size.
    StructSize {
        /// Name of the struct.
        name: &'static str,
        /// The stated size.
        found: usize,
        /// The size that every version has at least.
        required: usize,
    },
    /// A list's stride is smaller than its elements.
    Stride {
        /// Type of element.
        name: &'static str,
        /// The list's stride.
        found: u64,
        /// The size that an element needs.
        required: usize,
    },
    /// A list or text is longer than the limit.
    TooLong {
        /// Type of element.
        name: &'static str,
        /// The stated length.
        len: u64,
    },
    /// A text is not UTF-8.
    NotUtf8,
    /// There is no memory for a copy.
    NoMemory(NoMemory),
}

impl From<NoMemory> for ListError {
    fn from(error: NoMemory) -> Self {
        Self::NoMemory(error)
    }
}

impl fmt::Display for ListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null { what } => write!(f, "{what} is NULL"),
            Self::StructSize { name, found, required } => {
                write!(f, "{name} says a size of {found} bytes, expected {required} to {STRUCT_SIZE_MAX}")
            }
            Self::Stride { name, found, required } => {
                write!(f, "a list of {name} says a stride of {found} bytes, an element needs {required}")
            }
            Self::TooLong { name, len } => {
                write!(f, "a list of {name} says a length of {len}")
            }
            Self::NotUtf8 => write!(f, "a text is not UTF-8"),
            Self::NoMemory(error) => write!(f, "{error}"),
        }
    }
}

impl core::error::Error for ListError {}

/// Returns the largest end of a field that lies within `size` bytes.
fn whole_fields<T: Growable>(size: usize) -> usize {
    let mut end = 0;
    for &field_end in T::FIELD_ENDS {
        if field_end <= size {
            end = field_end;
        }
    }
    end
}

/// Reads a struct of any version. Absent fields are zero; `struct_size` is as found.
///
/// # Safety
/// `src` is NULL, or points to at least 4 readable bytes, and to as many as these state.
///
/// # Errors
/// [`ListError::Null`], or [`ListError::StructSize`] for a size that no version has.
pub unsafe fn read_struct<T: Growable>(src: *const T) -> Result<T, ListError> {
    if src.is_null() {
        return Err(ListError::Null { what: T::NAME });
    }
    // SAFETY: `src` is not NULL and points to at least 4 readable bytes (# Safety).
    let size = unsafe { src.cast::<u32>().read_unaligned() } as usize;
    if !(T::REQUIRED_SIZE..=STRUCT_SIZE_MAX).contains(&size) {
        return Err(ListError::StructSize { name: T::NAME, found: size, required: T::REQUIRED_SIZE });
    }
    // SAFETY: all zeroes is a valid value of a growable type.
    let mut value: T = unsafe { core::mem::zeroed() };
    let len = whole_fields::<T>(size);
    // SAFETY: `len` is at most `size`, so many bytes are readable (# Safety), and at most the size of `T`; whole fields
    // of the same struct keep their meaning.
    unsafe { core::ptr::copy_nonoverlapping(src.cast::<u8>(), (&raw mut value).cast::<u8>(), len) };
    Ok(value)
}

/// Writes a result into a struct of the size that the receiver stated; `struct_size` stays the receiver's.
///
/// # Safety
/// `dst` is NULL, or points to as many writable bytes as its first field states.
///
/// # Errors
/// As [`read_struct`]; nothing was written.
pub unsafe fn write_struct<T: Growable>(dst: *mut T, value: &T) -> Result<(), ListError> {
    // SAFETY: `dst` is NULL or points to as many writable bytes as it says (# Safety), and those are readable.
    let received = unsafe { read_struct(dst.cast_const()) }?;
    // SAFETY: the first field of a growable type is its size.
    let size = unsafe { (&raw const received).cast::<u32>().read() } as usize;
    let len = whole_fields::<T>(size);
    let head = size_of::<u32>();
    // SAFETY: `len` is within both structs, and the size field is left alone.
    unsafe {
        core::ptr::copy_nonoverlapping(
            (value as *const T).cast::<u8>().add(head),
            dst.cast::<u8>().add(head),
            len - head,
        )
    };
    Ok(())
}

/// Copies a list of frozen elements.
///
/// # Safety
/// If the list's fields are sane, they describe readable memory that holds values of `T`.
///
/// # Errors
/// [`ListError`] for an impossible pointer, stride or length.
pub unsafe fn read_list<T: Copy>(list: &List, name: &'static str) -> Result<Vec<T>, ListError> {
    check_list(list, name, size_of::<T>())?;
    let elements = (0..list.len as usize).map(|i| {
        // SAFETY: within the list, whose stride is at least an element (checked above).
        let element = unsafe { list.ptr.cast::<u8>().add(i * list.stride as usize) };
        // SAFETY: the list's elements are values of `T` (# Safety), and this one is within it.
        unsafe { element.cast::<T>().read_unaligned() }
    });
    Ok(reserve::collected(elements, "a list")?)
}

/// Copies a list of growable elements, reading each with [`read_struct`].
///
/// # Safety
/// If the list's fields are sane, they describe readable memory that holds structs of `T`'s kind.
///
/// # Errors
/// [`ListError`] for an impossible pointer, stride, length or element size.
pub unsafe fn read_growable_list<T: Growable>(list: &List) -> Result<Vec<T>, ListError> {
    check_list(list, T::NAME, T::REQUIRED_SIZE)?;
    let elements = (0..list.len as usize).map(|i| {
        // SAFETY: within the list (checked above).
        let element = unsafe { list.ptr.cast::<u8>().add(i * list.stride as usize) };
        // SAFETY: an element holds at least its size field.
        let size = unsafe { element.cast::<u32>().read_unaligned() };
        if u64::from(size) > list.stride {
            return Err(ListError::Stride { name: T::NAME, found: list.stride, required: size as usize });
        }
        // SAFETY: the element's size lies within the stride, so within the list, which is readable (# Safety).
        unsafe { read_struct(element.cast::<T>()) }
    });
    reserve::try_collected(list.len as usize, elements, "a list")
}

fn check_list(list: &List, name: &'static str, element: usize) -> Result<(), ListError> {
    if list.len == 0 {
        return Ok(());
    }
    if list.len > LIST_LEN_MAX {
        return Err(ListError::TooLong { name, len: list.len });
    }
    if list.ptr.is_null() {
        return Err(ListError::Null { what: name });
    }
    if list.stride < element as u64 || list.stride > STRUCT_SIZE_MAX as u64 {
        return Err(ListError::Stride { name, found: list.stride, required: element });
    }
    Ok(())
}

impl Str {
    /// The empty text.
    pub const EMPTY: Self = Self { ptr: core::ptr::null(), len: 0 };

    /// Borrows a text; the caller keeps it alive as long as the field's rule requires.
    pub const fn new(text: &str) -> Self {
        Self { ptr: text.as_ptr().cast(), len: text.len() as u64 }
    }

    /// Returns the text.
    ///
    /// # Safety
    /// If the pointer is not NULL, it points to `len` bytes that stay unchanged for `'a`.
    ///
    /// # Errors
    /// [`ListError`] for a NULL with a length, a length above the limit, or bytes that are not UTF-8.
    pub unsafe fn get<'a>(&self) -> Result<&'a str, ListError> {
        if self.len == 0 {
            return Ok("");
        }
        if self.ptr.is_null() {
            return Err(ListError::Null { what: "a text" });
        }
        if self.len > STR_LEN_MAX {
            return Err(ListError::TooLong { name: "bytes", len: self.len });
        }
        // SAFETY: `ptr` is not NULL, so it points to `len` bytes that stay unchanged for `'a` (# Safety).
        let bytes = unsafe { core::slice::from_raw_parts(self.ptr.cast::<u8>(), self.len as usize) };
        core::str::from_utf8(bytes).map_err(|_| ListError::NotUtf8)
    }
}

impl List {
    /// The empty list.
    pub const EMPTY: Self = Self { ptr: core::ptr::null(), len: 0, stride: 0 };

    /// Borrows a slice; the caller keeps it alive as long as the field's rule requires.
    pub const fn new<T>(slice: &[T]) -> Self {
        Self { ptr: slice.as_ptr().cast(), len: slice.len() as u64, stride: size_of::<T>() as u64 }
    }
}

impl BufferRef {
    /// An absent operand.
    pub const ABSENT: Self = Self { buffer: core::ptr::null_mut(), addr: 0, offset: 0, length: 0 };
}

macro_rules! plain_data {
    ($($name:ident)*) => {$(
        // SAFETY: plain numbers and addresses; following a pointer is unsafe wherever it is done, and the code that
        // does it answers for the thread (the struct's documented rule).
        unsafe impl Send for $name {}
        // SAFETY: every field is `Copy` data, without interior mutability.
        unsafe impl Sync for $name {}
    )*};
}

plain_data! {
    Str List BufferRef KeyValue LayoutField HostApi TypeVar KernelInfo PluginTable OptionInfo PluginInfo
    Prepared DeviceInfo MemorySpace
}

/// Every field of every struct as compiled here, for a plugin's `PluginInfo::layout` (B30).
pub static LAYOUT_FIELDS: [LayoutField; n_layout_fields()] = layout_fields();

const fn n_layout_fields() -> usize {
    let (mut n, mut i) = (0, 0);
    while i < LAYOUTS.len() {
        n += 1 + LAYOUTS[i].fields.len();
        i += 1;
    }
    n
}

const fn layout_fields() -> [LayoutField; n_layout_fields()] {
    let mut list = [LayoutField { struct_name: Str::EMPTY, field_name: Str::EMPTY, offset: 0, size: 0 };
        n_layout_fields()];
    let (mut n, mut i) = (0, 0);
    while i < LAYOUTS.len() {
        let layout = &LAYOUTS[i];
        list[n].struct_name = Str::new(layout.c_name);
        list[n].size = layout.size as u32;
        n += 1;
        let mut k = 0;
        while k < layout.fields.len() {
            list[n].struct_name = Str::new(layout.c_name);
            list[n].field_name = Str::new(layout.fields[k].name);
            list[n].offset = layout.fields[k].offset as u32;
            list[n].size = layout.fields[k].size as u32;
            n += 1;
            k += 1;
        }
        i += 1;
    }
    list
}
