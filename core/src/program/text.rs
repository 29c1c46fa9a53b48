//! The text form of programs, for people, golden files and bug reports.
//!
//! [`print()`] and [`parse()`] are inverse: `parse(print(p))` is `p` with its values numbered in the order of
//! the text, without those that nothing refers to, and prints the same text again. [`print_elided`] is for
//! reading alone: it leaves out the content of large constants, and [`parse()`] refuses it.
//!
//! ```
//! use devbay_core::program::{text, verify::verify};
//!
//! let source = r#"devbay-program 1
//!
//! program "two ways"(%x: f32[batch,2], %sure: bool[]) {
//!   %w = const f32[2,1] [0.5, -inf]
//!   %h: f32[batch,1] = MatMul@13(%x, %w) as "/fc/MatMul"
//!   %y: f32[batch,?] = If@25(%sure) then_branch() {
//!     return %h
//!   } else_branch() {
//!     %5: f32[..] = com.acme.Soften@1(%h, _, %w) {alpha = 1.0, axes = [0, 1], how = "a bit"}
//!     return %5
//!   }
//!   return %y
//! }
//! "#;
//! let program = text::parse(source)?;
//! verify(&program)?;
//! assert_eq!(text::print(&program), source);
//! # Ok::<(), devbay_core::Error>(())
//! ```
//!
//! # Form
//!
//! - The first line has the version of the form. Space and line ends only separate; `//` begins a comment.
//! - A value is `%name` or, if it has no name, `%number`. Where several values have one name, a number
//!   follows: `%name#number`. Numbers count definitions from the top of the text and tell values apart;
//!   [`parse()`] gives them no other meaning. Names that are not plain words are quoted: `%"a b"`.
//! - A type follows a value's definition where it is known: `f32[1,?,batch,"n + 1"]`; `f32[..]` has no
//!   known rank.
//! - A node is `results = op(operands) as "name" {attributes} regions`. Absent operands and results are
//!   `_`. An op is `Name@version`, with its domain before a point if it is not ONNX's own.
//! - A constant stands before the node of the outermost region that uses it first, and is seen everywhere
//!   behind. Content is a list, or hexadecimal bytes: `const u8[2] hex{01ff}`. Numbers keep each bit:
//!   floating-point ones have a point or an exponent, or are `inf`, `-inf`, `nan` or `nan(0x7fc00001)`.
//! - Lists of attributes without elements name their type: `ints []`, `floats []`, `strings []`.

mod content;
mod parse;
mod print;
mod tokens;

pub use parse::parse;
pub use print::{print, print_elided};

/// Version of the form, in its first line.
const VERSION: u32 = 1;
/// First word of the form.
const MAGIC: &str = "devbay-program";

/// Returns whether `name` needs no quotes after `%`: it cannot be taken for a number or run into the next token.
fn is_bare_value(name: &str) -> bool {
    name.bytes().all(is_value_byte) && name.bytes().next().is_some_and(|b| !b.is_ascii_digit())
}

fn is_value_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'/' | b'-')
}

/// Returns whether `name` needs no quotes elsewhere: dimensions, attributes, regions.
fn is_bare_word(name: &str) -> bool {
    name.bytes().all(is_word_byte) && name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
}

fn is_word_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-')
}

/// Words that begin something else where an op or a region's name may stand.
fn is_reserved(word: &str) -> bool {
    matches!(word, "return" | "const" | "as")
}

#[cfg(all(test, not(loom)))]
mod tests;
