//! Photos, as `--image` decodes them, at most as large as the decoder's own limits let them be.
#![no_main]

use image::{ImageReader, Limits};
use libfuzzer_sys::fuzz_target;
use std::io::Cursor;

fuzz_target!(|data: &[u8]| {
    let Ok(mut reader) = ImageReader::new(Cursor::new(data)).with_guessed_format() else { return };
    let mut limits = Limits::default();
    limits.max_alloc = Some(64 << 20);
    reader.limits(limits);
    let _ = reader.decode();
});
