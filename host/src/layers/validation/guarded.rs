//! Guarded results: the plugin writes into memory of the layer, followed by guard bytes that must stay unchanged.
//!
//! The output is checked, then copied to the host's struct, up to the size that the host stated.

use super::books::{Fault, fault};
use devbay_plugin_api::abi::*;
use std::marker::PhantomData;

/// Number of guard bytes behind a struct or text.
const BEHIND: usize = 64;
/// Value of the guard bytes.
const UNTOUCHED: u8 = 0xa5;
/// Initial value of a text's bytes, which no UTF-8 text contains.
const NO_TEXT: u8 = 0xff;
/// Size of the longest text that a plugin gets room for.
const TEXT_MAX: u64 = 1 << 16;

/// A struct for the plugin to write, with guard bytes.
pub(super) struct Out<T> {
    words: Vec<u64>,
    before: Vec<u64>,
    size: usize,
    kind: PhantomData<T>,
}

impl<T: Growable> Out<T> {
    /// Creates a guarded copy of the host's struct.
    ///
    /// # Safety
    /// `host` is NULL, or points to as many readable bytes as its first field says.
    ///
    /// # Errors
    /// A fault of the host, if `host` is NULL or has an impossible size (B4).
    pub unsafe fn of(host: *const T) -> Result<Self, Fault> {
        // SAFETY: `host` is NULL, or points to as many readable bytes as it says (# Safety).
        let known = match unsafe { read_struct(host) } {
            Ok(known) => known,
            Err(error) => return fault("B4", format!("the struct for the result: {error}")),
        };
        let head: *const u32 = (&raw const known).cast();
        // SAFETY: `known` is a local value, and every growable struct begins with its size, a `u32` (`Growable`).
        let said = unsafe { head.read() } as usize;
        let size = said.min(size_of::<T>());
        let mut words = vec![u64::from_ne_bytes([UNTOUCHED; 8]); (size_of::<T>() + BEHIND).div_ceil(8)];
        // SAFETY: `size` is at most the size of `known` and of `words`, which was allocated above and overlaps nothing.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const known).cast::<u8>(), words.as_mut_ptr().cast(), size)
        };
        state_size(&mut words, size);
        Ok(Self { before: words.clone(), words, size, kind: PhantomData })
    }

    /// Returns the pointer to hand to the plugin.
    pub fn as_ptr(&mut self) -> *mut T {
        self.words.as_mut_ptr().cast()
    }

    /// Returns the bytes as the plugin left them, and as they were before.
    fn bytes(&self) -> [&[u8]; 2] {
        [bytemuck::cast_slice(&self.words), bytemuck::cast_slice(&self.before)]
    }

    /// Returns the struct that the plugin wrote, and whether it wrote correctly.
    ///
    /// # Errors
    /// A fault of the plugin, if it wrote behind the struct or changed its size (B4).
    pub fn read(&self) -> (T, Result<(), Fault>) {
        let mut words = self.words.clone();
        let [written, before] = self.bytes();
        let behind = written[self.size..] != before[self.size..];
        let resized = written[..size_of::<u32>()] != before[..size_of::<u32>()];
        let found = if behind {
            fault("B4", format!("it wrote behind the {} bytes that the host's {} has", self.size, T::NAME))
        } else if resized {
            fault("B4", format!("it changed struct_size of the host's {}", T::NAME))
        } else {
            Ok(())
        };
        state_size(&mut words, self.size);
        // SAFETY: `words` begins with `self.size`, written above, and `of` allocated more bytes than that.
        let value = unsafe { read_struct(words.as_ptr().cast::<T>()) };
        (value.unwrap_or_else(|_| T::empty()), found)
    }

    /// Returns whether the plugin wrote anything into the struct.
    pub fn is_written(&self) -> bool {
        let [written, before] = self.bytes();
        written[..self.size] != before[..self.size]
    }

    /// Returns whether the fields are unchanged or zero.
    pub fn is_untouched_or_zero(&self) -> bool {
        let [written, _] = self.bytes();
        !self.is_written() || written[..self.size].iter().skip(8).all(|&byte| byte == 0)
    }
}

/// Writes the first field of a growable struct, its size.
fn state_size(words: &mut [u64], size: usize) {
    bytemuck::cast_slice_mut(words)[0] = size as u32;
}

/// Copies a result to the host.
///
/// # Safety
/// `host` is the struct that [`Out::of`] read, and is writable.
pub(super) unsafe fn hand_on<T: Growable>(host: *mut T, value: &T) {
    // SAFETY: `host` is the struct that `Out::of` read, which checked its size, and is writable (# Safety).
    let _ = unsafe { write_struct(host, value) };
}

/// A guarded place for the plugin's words.
pub(super) struct Words {
    out: Option<(Out<ErrorDetail>, Vec<u8>, usize)>,
    host: *mut ErrorDetail,
}

impl Words {
    /// Creates a place for words with the host's capacity; an empty one if the host has no place.
    ///
    /// # Safety
    /// `host` is NULL, or meets the conditions of [`ErrorDetail`] as long as the result lives.
    ///
    /// # Errors
    /// A fault of the host, if the struct has an impossible size (B4).
    pub unsafe fn of(host: *mut ErrorDetail) -> Result<Self, Fault> {
        if host.is_null() {
            return Ok(Self { out: None, host });
        }
        // SAFETY: `host` is not NULL here, so it meets the conditions of `ErrorDetail` (# Safety).
        let mut out = unsafe { Out::of(host.cast_const()) }?;
        let (known, _) = out.read();
        let capacity = if known.text.is_null() { 0 } else { known.text_capacity.min(TEXT_MAX) as usize };
        let mut text = vec![NO_TEXT; capacity];
        text.extend([UNTOUCHED; BEHIND]);
        let place = if known.text.is_null() { known.text } else { text.as_mut_ptr().cast() };
        // Starts empty, without an earlier call's words, so that a failure always changes the detail's status.
        let detail = ErrorDetail {
            text: place,
            text_capacity: capacity as u64,
            status: DEVBAY_STATUS_OK,
            text_len: 0,
            native_code: 0,
            ..known
        };
        // SAFETY: `out` is the copy that `Out::of` made: it is owned here, and begins with the size that was checked.
        unsafe { hand_on(out.as_ptr(), &detail) };
        out.before.clone_from(&out.words);
        Ok(Self { out: Some((out, text, capacity)), host })
    }

    /// Returns the pointer to hand to the plugin.
    pub fn as_ptr(&mut self) -> *mut ErrorDetail {
        self.out.as_mut().map_or(std::ptr::null_mut(), |(out, ..)| out.as_ptr())
    }

    /// Copies the words to the host, and fails if they are wrong (B18).
    pub fn settle(self, status: Status) -> Result<(), Fault> {
        let Some((out, text, capacity)) = self.out else {
            return Ok(());
        };
        let (detail, mut found) = out.read();
        if !out.is_written() {
            // A panic leaves no time to write a detail, so a missing one is no fault then.
            if status != DEVBAY_STATUS_OK && status != DEVBAY_STATUS_PANICKED {
                found =
                    found.and(fault("B18", format!("failed with status {status} and left the detail empty")));
            }
            return found;
        }
        let len = (detail.text_len.min(capacity as u64)) as usize;
        let whole = detail.text_len <= capacity as u64;
        // A text that does not fit is cut at a character boundary, up to three bytes before the end.
        let cut = text[..len]
            .iter()
            .rev()
            .take(if whole { 0 } else { 3 })
            .take_while(|&&byte| byte == NO_TEXT)
            .count();
        let written = &text[..len - cut];
        let found = found.and_then(|()| {
            if status == DEVBAY_STATUS_OK {
                return fault("B18", "it wrote an error's detail and succeeded");
            }
            if detail.status != status {
                return fault(
                    "B18",
                    format!("the detail is of status {}, the call gave {status}", detail.status),
                );
            }
            if text[capacity..].iter().any(|&byte| byte != UNTOUCHED) {
                return fault(
                    "B18",
                    format!("it wrote more than the {capacity} bytes of text that there is room for"),
                );
            }
            match std::str::from_utf8(written) {
                Ok(_) => Ok(()),
                Err(error) => fault(
                    "B18",
                    format!(
                        "expected {len} bytes of UTF-8 as the error's text, found {} of them",
                        error.valid_up_to()
                    ),
                ),
            }
        });
        // SAFETY: `host` is NULL or meets the conditions of `ErrorDetail` as long as `self` lives (# Safety of `of`).
        if let Ok(known) = unsafe { read_struct(self.host.cast_const()) } {
            if !known.text.is_null() {
                // SAFETY: `written` was cut to the host's `capacity`, and `of`'s caller guarantees room for that many
                // bytes.
                unsafe { std::ptr::copy_nonoverlapping(written.as_ptr(), known.text.cast(), written.len()) };
            }
            let (text, text_capacity) = (known.text, known.text_capacity);
            // If the host has more room than `TEXT_MAX`, `written` is the whole text.
            let text_len = if text_capacity > TEXT_MAX { written.len() as u64 } else { detail.text_len };
            // SAFETY: `read_struct` above checked the struct's size, and the host lends it for writing (# Safety of
            // `of`).
            unsafe { hand_on(self.host, &ErrorDetail { text, text_capacity, text_len, ..detail }) };
        }
        found
    }
}
