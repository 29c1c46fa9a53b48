//! Lists and growable structs of the ABI, in memory that ends exactly at a list's end, so that AddressSanitizer detects
//! reads beyond it.

use devbay_plugin_api::abi::growable::{Growable, read_growable_list, read_list, read_struct};
use devbay_plugin_api::abi::{DeviceInfo, KernelInfo, List, OptionInfo};

fn structs<T: Growable>(bytes: &[u8], stride: u64, len: u64) {
    // These functions require their caller to provide that many bytes.
    if len.checked_mul(stride).is_some_and(|n| n <= bytes.len() as u64) {
        let list = List { ptr: bytes.as_ptr().cast(), len, stride };
        // SAFETY: `bytes` holds `len * stride` bytes (checked above), and any bytes are a valid growable struct.
        let _ = unsafe { read_growable_list::<T>(&list) };
        // SAFETY: `bytes` holds `len * stride` bytes (checked above), and any bytes are valid integers.
        let _ = unsafe { read_list::<u64>(&list, "numbers") };
    }
    let size = bytes.first_chunk::<4>().map_or(0, |size| u32::from_ne_bytes(*size) as usize);
    if size >= 4 && size <= bytes.len() {
        // SAFETY: `bytes` holds at least the size in its first field (checked above).
        let _ = unsafe { read_struct(bytes.as_ptr().cast::<T>()) };
    }
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let Some((head, rest)) = data.split_first_chunk::<4>() else { return };
    // A heap block of exactly these bytes.
    let bytes = rest.to_vec().into_boxed_slice();
    let (stride, len) = (u64::from(u16::from_le_bytes([head[0], head[1]])), u64::from(head[2]));
    match head[3] % 3 {
        0 => structs::<DeviceInfo>(&bytes, stride, len),
        1 => structs::<KernelInfo>(&bytes, stride, len),
        _ => structs::<OptionInfo>(&bytes, stride, len),
    }
}
