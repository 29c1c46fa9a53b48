//! Numbers of any element type, read and written as f64: one plain loop for all types, where time goes elsewhere
//! than into the operands.
//!
//! A [`Source`] and a [`Sink`] know how long their operand is and never leave it, so that a kernel which counts
//! wrongly panics, and the SDK makes a status of that. Integers beyond 2 to the power of 53 lose their last digits:
//! kernels for which that matters do not read them here.

use crate::kernels::numbers::small_float::{Format, Overflow};
use devbay_plugin_api::abi::BufferRef;
use devbay_plugin_api::sdk::{DType, Error, F32, Result, SendPtr, TensorView};

/// Functions that read and write elements of one type.
#[derive(Clone, Copy)]
pub(crate) struct Real {
    load: unsafe fn(*const u8) -> f64,
    store: unsafe fn(*mut u8, f64),
    size: usize,
    /// The type is f32, whose elements may be copied as they are.
    is_single: bool,
}

/// An element that is read and written as f64.
pub(crate) trait Stored: Copy + 'static {
    /// Its value.
    fn value(self) -> f64;

    /// The element for a value: rounded, integers without the fraction and within their range.
    fn of(value: f64) -> Self;
}

macro_rules! plain {
    ($($type:ty)*) => {$(
        impl Stored for $type {
            #[inline(always)]
            fn value(self) -> f64 {
                self as f64
            }

            #[inline(always)]
            fn of(value: f64) -> Self {
                value as $type
            }
        }
    )*};
}
plain! { f32 f64 i64 i32 i16 i8 u64 u32 u16 u8 }

/// Types of 16 bits. Numbers beyond their range become infinite.
macro_rules! small {
    ($($(#[$meta:meta])* $name:ident = $format:expr;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy)]
        #[repr(transparent)]
        pub(crate) struct $name(u16);

        impl Stored for $name {
            #[inline(always)]
            fn value(self) -> f64 {
                $format.decode(self.0.into())
            }

            #[inline(always)]
            fn of(value: f64) -> Self {
                Self($format.encode(value, Overflow::Infinite) as u16)
            }
        }
    )*};
}
small! {
    /// An f16.
    Half = Format::BINARY16;
    /// A bf16.
    Brain = Format::BFLOAT16;
}

/// Calls a function for the type of an element type.
///
/// # Errors
/// Unsupported for what is no number.
macro_rules! stored {
    ($dtype:expr, $function:ident($($argument:expr),*)) => {{
        use $crate::kernels::numbers::real::{Brain, Half};
        use devbay_plugin_api::sdk::{BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
        match $dtype {
            F32 => Ok($function::<f32>($($argument),*)),
            F64 => Ok($function::<f64>($($argument),*)),
            F16 => Ok($function::<Half>($($argument),*)),
            BF16 => Ok($function::<Brain>($($argument),*)),
            I64 => Ok($function::<i64>($($argument),*)),
            I32 => Ok($function::<i32>($($argument),*)),
            I16 => Ok($function::<i16>($($argument),*)),
            I8 => Ok($function::<i8>($($argument),*)),
            U64 => Ok($function::<u64>($($argument),*)),
            U32 => Ok($function::<u32>($($argument),*)),
            U16 => Ok($function::<u16>($($argument),*)),
            U8 | BOOL => Ok($function::<u8>($($argument),*)),
            dtype => Err(devbay_plugin_api::sdk::Error::unsupported(format!("dtype {dtype:?}"))),
        }
    }};
}
pub(crate) use stored;

fn real<T: Stored>() -> Real {
    unsafe fn load<T: Stored>(at: *const u8) -> f64 {
        // SAFETY: the caller has an element of this type there (`Source` and `Sink` check the number).
        unsafe { at.cast::<T>().read_unaligned() }.value()
    }
    unsafe fn store<T: Stored>(at: *mut u8, value: f64) {
        // SAFETY: the caller has an element of this type there, and keeps others away (`Sink`).
        unsafe { at.cast::<T>().write_unaligned(T::of(value)) };
    }
    Real { load: load::<T>, store: store::<T>, size: size_of::<T>(), is_single: false }
}

impl Real {
    /// For elements of a type.
    ///
    /// # Errors
    /// Unsupported for what is no number.
    pub(crate) fn of(dtype: DType) -> Result<Self> {
        let real: Result<Self> = stored!(dtype, real());
        Ok(Self { is_single: dtype == F32, ..real? })
    }

    /// Returns whether elements are f32.
    pub(crate) fn is_single(&self) -> bool {
        self.is_single
    }

    /// Bytes of an element.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The one number of a constant of this type.
    ///
    /// # Errors
    /// Invalid if it is not there, or not one.
    pub(crate) fn constant(&self, tensor: &TensorView<'_>) -> Result<f64> {
        match tensor.constant() {
            // SAFETY: as many bytes as an element has.
            Some(bytes) if bytes.len() == self.size => Ok(unsafe { (self.load)(bytes.as_ptr()) }),
            _ => Err(Error::invalid("an input has to be a constant of one number")),
        }
    }

    /// The elements of an operand; none if it is absent.
    pub(crate) fn source(self, reference: &BufferRef) -> Source {
        Source { real: self, n: self.count(reference), at: SendPtr(reference.addr as *mut u8) }
    }

    /// The elements of an operand that is written; none if it is absent.
    pub(crate) fn sink(self, reference: &BufferRef) -> Sink {
        Sink { real: self, n: self.count(reference), at: SendPtr(reference.addr as *mut u8) }
    }

    fn count(&self, reference: &BufferRef) -> usize {
        if reference.addr == 0 { 0 } else { reference.length as usize / self.size }
    }
}

/// The elements of an operand that is read.
#[derive(Clone, Copy)]
pub(crate) struct Source {
    real: Real,
    at: SendPtr<u8>,
    n: usize,
}

impl Source {
    /// Returns whether there are no elements, as of an absent operand.
    pub(crate) fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// An element.
    ///
    /// # Panics
    /// If there is no such element.
    #[inline]
    pub(crate) fn get(&self, i: usize) -> f64 {
        assert!(i < self.n, "element {i} of {}", self.n);
        // SAFETY: checked above; the host lends the operand until the launch is done (B9).
        unsafe { (self.real.load)(self.at.at(i * self.real.size)) }
    }

    /// Elements side by side, in f32.
    ///
    /// # Panics
    /// If they are not all there.
    pub(crate) fn read(&self, first: usize, to: &mut [f32]) {
        assert!(first <= self.n && to.len() <= self.n - first, "{} from {first} of {}", to.len(), self.n);
        if self.real.is_single {
            let from = self.at.at(first * size_of::<f32>());
            // SAFETY: checked above; the host lends the operand until the launch is done (B9), and the destination is
            // this caller's alone.
            unsafe { core::ptr::copy_nonoverlapping(from, to.as_mut_ptr().cast(), size_of_val(to)) };
            return;
        }
        for (i, to) in to.iter_mut().enumerate() {
            // SAFETY: checked above; the host lends the operand until the launch is done (B9).
            *to = unsafe { (self.real.load)(self.at.at((first + i) * self.real.size)) } as f32;
        }
    }
}

/// The elements of an operand that is written.
#[derive(Clone, Copy)]
pub(crate) struct Sink {
    real: Real,
    at: SendPtr<u8>,
    n: usize,
}

impl Sink {
    /// Returns whether there are no elements, as of an absent operand.
    pub(crate) fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// Writes an element, rounded to its type.
    ///
    /// # Panics
    /// If there is no such element.
    ///
    /// # Safety
    /// No other chunk of the launch writes or reads it at the same time.
    #[inline]
    pub(crate) unsafe fn set(&self, i: usize, value: f64) {
        assert!(i < self.n, "element {i} of {}", self.n);
        // SAFETY: checked above; the host lends the operand (B9), and the caller keeps others away.
        unsafe { (self.real.store)(self.at.at(i * self.real.size), value) };
    }

    /// An element that this chunk has written.
    ///
    /// # Panics
    /// If there is no such element.
    ///
    /// # Safety
    /// As [`Sink::set`].
    #[inline]
    pub(crate) unsafe fn get(&self, i: usize) -> f64 {
        assert!(i < self.n, "element {i} of {}", self.n);
        // SAFETY: checked above; the host lends the operand (B9), and the caller keeps others away (# Safety).
        unsafe { (self.real.load)(self.at.at(i * self.real.size)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use devbay_plugin_api::sdk::I16;

    #[test]
    fn nothing_beyond_an_operand() {
        let elements = [1i16, -2, 3];
        let reference =
            BufferRef { buffer: core::ptr::null_mut(), addr: elements.as_ptr() as u64, offset: 0, length: 6 };
        let source = Real::of(I16).expect("a number").source(&reference);
        let mut read = [0.0; 2];
        source.read(1, &mut read);
        assert_eq!(read, [-2.0, 3.0]);
        assert_eq!((source.get(1), source.get(2)), (-2.0, 3.0));
        assert!(std::panic::catch_unwind(|| source.get(3)).is_err());
        assert!(std::panic::catch_unwind(|| source.read(2, &mut [0.0; 2])).is_err());
    }
}
