//! The child that tests' judges start: `devbay conformance-case` without the command.

use devbay_conformance::child::{answer, read_arguments};
use devbay_conformance::judge::Subject;
use std::io::Write;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [library, rest @ ..] = arguments.as_slice() else {
        panic!("usage: LIBRARY TEST... [--session] [--plugin-option KEY=VALUE]...");
    };
    let (ids, settings) = read_arguments(rest).expect("arguments as the judge passes them");
    answer(&Subject::Library(library.into()), &ids, &settings, &mut |lines| {
        let _ = std::io::stdout().lock().write_all(lines.as_bytes());
    })
    .expect("the tests exist");
    // Runs the functions that the plugin registered for exit, which must not crash.
    std::process::exit(0);
}
