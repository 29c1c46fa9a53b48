//! Standard output, where results go.
//!
//! `println!` panics when nobody can take its text, such as a full disk; here that is an error like others, and
//! the command ends with code 1. The lint `print_stdout` keeps `println!` out of this crate.

use std::fmt;
use std::io::Write;

/// Prints a line as `println!` does.
#[macro_export]
macro_rules! say {
    () => { $crate::say::line(format_args!("")) };
    ($($text:tt)*) => { $crate::say::line(format_args!($($text)*)) };
}

/// Prints a line, or ends the process.
pub fn line(text: fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    // Complete lines are written at once, so an error comes with its line.
    if let Err(error) = out.write_fmt(text).and_then(|()| out.write_all(b"\n")) {
        eprintln!("error: cannot write to standard output: {error}");
        std::process::exit(1);
    }
}
