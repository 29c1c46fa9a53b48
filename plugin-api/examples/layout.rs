//! Prints the ABI's layout as it was compiled, in the form of `abi.lock`. `cargo xtask header` runs it; the types are compiled
//! here, so that the generator itself builds even when the tables are stale.
#![expect(clippy::print_stdout, reason = "what it prints is what it is for")]

use devbay_plugin_api::abi::LAYOUTS;
use std::fmt::Write;

fn main() {
    print!("{}", lock());
}

/// The layout of every struct as compiled into this program, in the lock file's form.
fn lock() -> String {
    let mut out = format!("[{}]\n", std::env::consts::ARCH);
    for layout in LAYOUTS {
        let _ = writeln!(out, "{} size={} align={}", layout.c_name, layout.size, layout.align);
        for field in layout.fields {
            let _ = writeln!(out, "    {:<24} offset={:<4} size={}", field.name, field.offset, field.size);
        }
    }
    out
}
