//! Programs in text form: parsed, verified, printed, and parsed again with the same result.

use devbay_host::internals::core::program::{text, verify};

/// Runs one input.
pub fn run(data: &[u8]) {
    let Ok(source) = str::from_utf8(data) else { return };
    let Ok(program) = text::parse(source) else { return };
    if verify::verify(&program).is_ok() {
        text::parse(&text::print(&program)).expect("what was printed is a program");
    }
}
