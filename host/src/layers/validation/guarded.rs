//! Results under observation: the plugin writes into memory of the layer's, with bytes behind it that nobody may touch.
//!
//! Its output is checked, then copied to the host's struct, up to the size that the host gave.

use super::books::{Fault, fault};
use devbay_plugin_api::abi::*;
use std::marker::PhantomData;

/// Bytes behind a struct or text that must stay as they are.
const BEHIND: usize = 64;
/// Their value.
const UNTOUCHED: u8 = 0xa5;
/// Initial value of a text's bytes: no byte of UTF-8.
const NO_TEXT: u8 = 0xff;
/// Most bytes of a text that a plugin is given room for.
const TEXT_MAX: u64 = 1 << 16;

/// A struct that the plugin writes.
pub(super) struct Out<T> {
    words: Vec<u64>,
    before: Vec<u64>,
    size: usize,
    kind: PhantomData<T>,
}

impl<T: Growable> Out<T> {
    /// A place as large as the host's, with what the host had in it.
    ///
    /// # Safety
    /// `host` is NULL, or points to as many readable bytes as its first field says.
    ///
    /// # Errors
    /// A fault of the host's, for NULL or a size that cannot be (B4).
    pub unsafe fn of(host: *const T) -> Result<Self, Fault> {
        // SAFETY: `host` is NULL, or points to as many readable bytes as it says (# Safety).
        let known = match unsafe { read_struct(host) } {
            Ok(known) => known,
            Err(error) => return fault("B4", format!("the struct for the result: {error}")),
        };
        let head: *const u32 = (&raw const known).cast();
        // SAFETY: a growable struct begins with its size.
        let said = unsafe { head.read() } as usize;
        let size = said.min(size_of::<T>());
        let mut words = vec![u64::from_ne_bytes([UNTOUCHED; 8]); (size_of::<T>() + BEHIND).div_ceil(8)];
        // SAFETY: both have `size` bytes, and the words are new.
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

    /// Returns the struct that the plugin wrote.
    ///
    /// # Errors
    /// A fault of the plugin's, if it wrote behind the struct or over its size (B4).
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
        // SAFETY: the words begin with the size that they had, and have more bytes than that.
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

/// Hands a result on.
///
/// # Safety
/// `host` is the struct that [`Out::of`] read, and writable.
pub(super) unsafe fn hand_on<T: Growable>(host: *mut T, value: &T) {
    // SAFETY: `host` is the struct that `Out::of` read, and writable (# Safety); its size was checked then.
    let _ = unsafe { write_struct(host, value) };
}

/// The host's place for a plugin's words, under observation.
pub(super) struct Words {
    out: Option<(Out<ErrorDetail>, Vec<u8>, usize)>,
    host: *mut ErrorDetail,
}

impl Words {
    /// A place for words like the host's; none if it has none.
    ///
    /// # Safety
    /// `host` is NULL, or as [`ErrorDetail`] says, for as long as this lives.
    ///
    /// # Errors
    /// A fault of the host's, for a size that cannot be (B4).
    pub unsafe fn of(host: *mut ErrorDetail) -> Result<Self, Fault> {
        if host.is_null() {
            return Ok(Self { out: None, host });
        }
        // SAFETY: `host` is as `ErrorDetail` says (# Safety), and not NULL.
        let mut out = unsafe { Out::of(host.cast_const()) }?;
        let (known, _) = out.read();
        let capacity = if known.text.is_null() { 0 } else { known.text_capacity.min(TEXT_MAX) as usize };
        let mut text = vec![NO_TEXT; capacity];
        text.extend([UNTOUCHED; BEHIND]);
        let place = if known.text.is_null() { known.text } else { text.as_mut_ptr().cast() };
        // Empty, so that an earlier call's words are gone: a failure then always changes its status.
        let detail = ErrorDetail {
            text: place,
            text_capacity: capacity as u64,
            status: DEVBAY_STATUS_OK,
            text_len: 0,
            native_code: 0,
            ..known
        };
        // SAFETY: `out` has at least the size that `Out::of` read and set.
        unsafe { hand_on(out.as_ptr(), &detail) };
        out.before.clone_from(&out.words);
        Ok(Self { out: Some((out, text, capacity)), host })
    }

    /// Returns the pointer to hand to the plugin.
    pub fn as_ptr(&mut self) -> *mut ErrorDetail {
        self.out.as_mut().map_or(std::ptr::null_mut(), |(out, ..)| out.as_ptr())
    }

    /// Hands the words on, and says what is wrong with them (B18).
    pub fn settle(self, status: Status) -> Result<(), Fault> {
        let Some((out, text, capacity)) = self.out else {
            return Ok(());
        };
        let (detail, mut found) = out.read();
        if !out.is_written() {
            // A detail that a panic had no time to write is no fault.
            if status != DEVBAY_STATUS_OK && status != DEVBAY_STATUS_PANICKED {
                found =
                    found.and(fault("B18", format!("failed with status {status} and left the detail empty")));
            }
            return found;
        }
        let len = (detail.text_len.min(capacity as u64)) as usize;
        let whole = detail.text_len <= capacity as u64;
        // A text that does not fit is cut at a character's border, up to three bytes before the end.
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
        // SAFETY: `host` is NULL or as `ErrorDetail` says for as long as `self` lives (# Safety of `of`).
        if let Ok(known) = unsafe { read_struct(self.host.cast_const()) } {
            if !known.text.is_null() {
                // SAFETY: the host's text has room for `capacity` bytes, and this is no more.
                unsafe { std::ptr::copy_nonoverlapping(written.as_ptr(), known.text.cast(), written.len()) };
            }
            let (text, text_capacity) = (known.text, known.text_capacity);
            // Where the host had room for more, this is the whole text.
            let text_len = if text_capacity > TEXT_MAX { written.len() as u64 } else { detail.text_len };
            // SAFETY: `host` was just read, so it is a struct of the size that it says, and the host's to write.
            unsafe { hand_on(self.host, &ErrorDetail { text, text_capacity, text_len, ..detail }) };
        }
        found
    }
}
