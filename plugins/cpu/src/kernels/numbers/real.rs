//! Numbers of any element type, read and written as f64: one plain loop for all types, where time goes elsewhere
//! than into the operands.
//!
//! A [`Source`] and a [`Sink`] know how long their operand is and never leave it, so that a kernel which counts
//! wrongly panics, and the SDK makes a status of that. Integers beyond 2 to the power of 53 lose their last digits:
//! kernels for which that matters do not read them here.

use crate::kernels::numbers::small_float::{Format, Overflow};
use devbay_plugin_api::abi::BufferRef;
use devbay_plugin_api::sdk::{BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
use devbay_plugin_api::sdk::{DType, Error, Result, SendPtr, TensorView};

/// Functions that read and write elements of one type.
#[derive(Clone, Copy)]
pub(crate) struct Real {
    load: unsafe fn(*const u8) -> f64,
    store: unsafe fn(*mut u8, f64),
    size: usize,
    /// The type is f32, whose elements may be copied as they are.
    is_single: bool,
}

macro_rules! plain {
    ($type:ty) => {{
        unsafe fn load(at: *const u8) -> f64 {
            // SAFETY: the caller has an element of this type there (`Source` and `Sink` check the number).
            (unsafe { at.cast::<$type>().read_unaligned() }) as f64
        }
        unsafe fn store(at: *mut u8, value: f64) {
            // SAFETY: the caller has an element of this type there, and keeps others away (`Sink`).
            unsafe { at.cast::<$type>().write_unaligned(value as $type) };
        }
        Real { load, store, size: size_of::<$type>(), is_single: false }
    }};
}

/// Types of 16 bits. Numbers beyond their range become infinite.
macro_rules! small {
    ($format:expr) => {{
        unsafe fn load(at: *const u8) -> f64 {
            // SAFETY: the caller has an element of this type there (`Source` and `Sink` check the number).
            $format.decode(unsafe { at.cast::<u16>().read_unaligned() }.into())
        }
        unsafe fn store(at: *mut u8, value: f64) {
            // SAFETY: the caller has an element of this type there, and keeps others away (`Sink`).
            unsafe { at.cast::<u16>().write_unaligned($format.encode(value, Overflow::Infinite) as u16) };
        }
        Real { load, store, size: 2, is_single: false }
    }};
}

impl Real {
    /// For elements of a type.
    ///
    /// # Errors
    /// Unsupported for what is no number.
    pub(crate) fn of(dtype: DType) -> Result<Self> {
        Ok(match dtype {
            F32 => Self { is_single: true, ..plain!(f32) },
            F64 => plain!(f64),
            F16 => small!(Format::BINARY16),
            BF16 => small!(Format::BFLOAT16),
            I64 => plain!(i64),
            I32 => plain!(i32),
            I16 => plain!(i16),
            I8 => plain!(i8),
            U64 => plain!(u64),
            U32 => plain!(u32),
            U16 => plain!(u16),
            U8 | BOOL => plain!(u8),
            dtype => return Err(Error::unsupported(format!("dtype {dtype:?}"))),
        })
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
