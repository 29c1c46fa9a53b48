//! Strings in `.npy` files: NumPy's `<U` (UTF-32) and `S` (bytes) arrays. NumPy pads both with zeroes.

use super::wrong;
use crate::values::Strings;
use devbay_core::Result;
use devbay_plugin_api::reserve;
use std::io::Write;
use std::sync::Arc;

/// Bytes of a character in a `U` array.
const CHARACTER: usize = 4;

/// Encoding of an array of texts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// `<U`: UTF-32, little-endian.
    Characters,
    /// `S`: bytes, read as UTF-8.
    Bytes,
}

/// Returns the form of an element type without its byte order, such as `U5`, and the bytes of an element; None for numbers.
pub fn form_of(name: &str) -> Option<(Form, usize)> {
    let (kind, length) = name.split_at_checked(1)?;
    let length: usize = length.parse().ok()?;
    match kind {
        "U" => Some((Form::Characters, length.checked_mul(CHARACTER)?)),
        "S" => Some((Form::Bytes, length)),
        _ => None,
    }
}

/// Decodes elements of so many bytes each.
///
/// # Errors
/// For bytes that are no text.
pub fn decoded(form: Form, size: usize, shape: &[usize], bytes: &[u8]) -> Result<Strings> {
    let n = shape.iter().product();
    let mut texts: Vec<Arc<str>> = reserve::with_capacity(n, "an array of texts")?;
    if size == 0 {
        texts.resize(n, Arc::from(""));
        return Strings::new(shape, texts);
    }
    for element in bytes.chunks_exact(size) {
        texts.push(match form {
            Form::Bytes => {
                let end = element.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
                Arc::from(
                    str::from_utf8(&element[..end])
                        .map_err(|_| wrong("an array of bytes that are no UTF-8, expected texts"))?,
                )
            }
            Form::Characters => {
                let codes = element
                    .chunks_exact(CHARACTER)
                    .map(|code| u32::from_le_bytes([code[0], code[1], code[2], code[3]]));
                let text: Option<String> = codes.map(char::from_u32).collect();
                let text =
                    text.ok_or_else(|| wrong("an array with codes that are no characters, expected texts"))?;
                Arc::from(text.trim_end_matches('\0'))
            }
        });
    }
    Strings::new(shape, texts)
}

/// Returns the name of the element type that strings are written as: `<U` with the longest text's number of characters.
pub fn name_of(strings: &Strings) -> String {
    format!("<U{}", width(strings))
}

fn width(strings: &Strings) -> usize {
    strings.elements().iter().map(|text| text.chars().count()).max().unwrap_or(0).max(1)
}

/// Writes elements as [`name_of`] says.
///
/// # Errors
/// Of the file.
pub fn write(to: &mut (impl Write + ?Sized), strings: &Strings) -> std::io::Result<()> {
    let width = width(strings);
    for text in strings.elements() {
        let codes = text.chars().map(u32::from).chain(std::iter::repeat(0)).take(width);
        for code in codes {
            to.write_all(&code.to_le_bytes())?;
        }
    }
    Ok(())
}
