//! Standard output, where results go, and standard error.
//!
//! Names and messages come from models, files and plugins, and a terminal interprets control characters in them. So all
//! output has its control characters escaped here, at the edge. JSON escapes its own.
//!
//! `println!` panics when writing fails, such as on a full disk; here that is an ordinary error, and the command ends with
//! code 1. The lint `print_stdout` keeps `println!` out of this crate.

use crate::{crash, exit, failure};
use devbay_host::ErrorKind;
use std::borrow::Cow;
use std::fmt;
use std::io::Write;

/// Prints a line on standard output as `println!` does.
#[macro_export]
macro_rules! say {
    () => { $crate::say::line(format_args!("")) };
    ($($text:tt)*) => { $crate::say::line(format_args!($($text)*)) };
}

/// Prints a line on standard error as `eprintln!` does.
#[macro_export]
macro_rules! tell {
    ($($text:tt)*) => { $crate::say::aside(format_args!($($text)*)) };
}

/// Prints a line, or ends the process.
pub fn line(text: fmt::Arguments<'_>) {
    styled("", text, "");
}

/// Prints a line between two terminal codes, or ends the process.
pub fn styled(begin: &str, text: fmt::Arguments<'_>, end: &str) {
    let text = text.to_string();
    let mut out = std::io::stdout().lock();
    // Standard output writes complete lines at once, so the failing line reports the error.
    if let Err(error) = writeln!(out, "{begin}{}{end}", plain(&text)) {
        let kind = ErrorKind::of_io(&error);
        let message = format!("cannot write to standard output: {error}");
        failure::report_as(kind, exit::code_of(kind), None, &message);
        crash::end_is_near();
        std::process::exit(exit::code_of(kind).into());
    }
}

/// Prints a line on standard error. A failure to write is ignored: there is no other place to report it.
pub fn aside(text: fmt::Arguments<'_>) {
    let text = text.to_string();
    let _ = writeln!(std::io::stderr().lock(), "{}", plain(&text));
}

/// Escapes text for a terminal: control characters and bidirectional formatting characters. Line ends and tabs stay.
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| is_obeyed(c) && !"\n\t".contains(c)) {
        return Cow::Borrowed(text);
    }
    let escaped = |c: char| if is_obeyed(c) && !"\n\t".contains(c) { Err(c) } else { Ok(c) };
    Cow::Owned(escape(text, escaped))
}

/// Escapes as [`plain`], for text within a line: line ends and tabs are escaped too.
pub fn cell(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_obeyed) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(escape(text, |c| if is_obeyed(c) { Err(c) } else { Ok(c) }))
}

fn escape(text: &str, keep: impl Fn(char) -> Result<char, char>) -> String {
    text.chars().fold(String::new(), |mut escaped, c| {
        match keep(c) {
            Ok(c) => escaped.push(c),
            Err(c) => escaped.extend(c.escape_default()),
        }
        escaped
    })
}

fn is_obeyed(c: char) -> bool {
    // Directional formatting and line separators: Unicode Standard Annex 9, section 2; Rust does not count them as control
    // characters.
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        assert_eq!(plain("Egyptian cat \u{2588} 38 %\n"), "Egyptian cat \u{2588} 38 %\n");
        assert_eq!(
            plain("a\x1b]0;owned\x07b\r\u{9b}31mc\n\td"),
            "a\\u{1b}]0;owned\\u{7}b\\r\\u{9b}31mc\n\td"
        );
        assert_eq!(cell("a\nb\t\u{202e}c"), "a\\nb\\t\\u{202e}c");
        let all: String = (0..=0x10_ffff).filter_map(char::from_u32).collect();
        assert!(!cell(&all).chars().any(is_obeyed));
    }
}
