//! Bytes that are recognised again, and structs of other sizes.

use devbay_plugin_api::abi::*;
use std::marker::PhantomData;

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(size: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        // xorshift64: quick, and no two words are alike.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

/// Describes the first difference of two byte strings.
pub(crate) fn difference(found: &[u8], expected: &[u8]) -> Option<String> {
    let at = found.iter().zip(expected).position(|(a, b)| a != b)?;
    let n = found.iter().zip(expected).filter(|(a, b)| a != b).count();
    Some(format!(
        "{n} of {} bytes differ, the first at {at}: expected {:#04x}, found {:#04x}",
        expected.len(),
        expected[at],
        found[at]
    ))
}

/// A struct of any size in zeroed memory of its own: as an older or newer host would have it.
///
/// Beyond the whole struct, or beyond what an older one has, stands a poison that looks like garbage when it
/// is followed and that must still stand there when the call is over.
pub(crate) struct AnySize<T> {
    bytes: Vec<u64>,
    size: usize,
    marker: PhantomData<T>,
}

const POISON: u8 = 0xd7;

impl<T: Growable> AnySize<T> {
    /// Returns the struct `value` with `size` bytes.
    pub(crate) fn new(value: &T, size: usize) -> Self {
        // Fields are aligned to at most 8; 64 bytes behind it are watched.
        let len = size.max(size_of::<T>()) + 64;
        let mut bytes = vec![u64::from_ne_bytes([POISON; 8]); len.div_ceil(8)];
        let known = size.min(size_of::<T>());
        // SAFETY: `known` is at most the size of `T`, and the memory behind `bytes` is longer.
        unsafe {
            std::ptr::copy_nonoverlapping(
                std::ptr::from_ref(value).cast::<u8>(),
                bytes.as_mut_ptr().cast(),
                known,
            );
        };
        // The struct's size is its first field (`Growable`).
        bytemuck::cast_slice_mut(&mut bytes)[0] = size as u32;
        // A newer host's fields, which would be zero there.
        bytemuck::cast_slice_mut::<u64, u8>(&mut bytes)[known..size].fill(0);
        Self { bytes, size, marker: PhantomData }
    }

    pub(crate) fn as_ptr(&mut self) -> *mut T {
        self.bytes.as_mut_ptr().cast()
    }

    /// Returns the fields that lie within its size.
    pub(crate) fn value(&self) -> T {
        let mut value = T::empty();
        // SAFETY: `T` is plain data, and as many bytes are there on both sides.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.bytes.as_ptr().cast::<u8>(),
                (&raw mut value).cast::<u8>(),
                self.size.min(size_of::<T>()),
            );
        };
        value
    }

    /// Returns true if the guard bytes behind it are unchanged.
    pub(crate) fn is_intact(&self) -> bool {
        bytemuck::cast_slice::<u64, u8>(&self.bytes)[self.size..].iter().all(|&byte| byte == POISON)
    }
}
