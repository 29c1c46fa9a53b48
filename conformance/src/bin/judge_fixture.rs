//! The child that tests' judges start: `devbay conformance-case` without the command.
#![expect(clippy::print_stdout, reason = "its answer is a line on standard output")]

use devbay_conformance::judge::{Subject, answer};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, case, rest @ ..] = arguments.as_slice() else {
        panic!("usage: PATH CASE [--plugin-option KEY=VALUE]...");
    };
    let options: Vec<(String, String)> = rest
        .iter()
        .filter(|argument| *argument != "--plugin-option")
        .map(|pair| pair.split_once('=').expect("an option is KEY=VALUE"))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let line = answer(&Subject::Library(path.into()), case, &options).expect("the case exists");
    println!("\n{line}");
    // Runs what the plugin left to be run at exit, which must not crash.
    std::process::exit(0);
}
