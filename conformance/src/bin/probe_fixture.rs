//! `devbay probe` without the command: what the tests' hosts start to try a library in a process of its own.
#![expect(clippy::print_stdout, reason = "its answer is a line on standard output")]

use std::path::PathBuf;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [command, library, rest @ ..] = arguments.as_slice() else {
        panic!("usage: probe PATH [--option KEY=VALUE]...");
    };
    assert_eq!(command, "probe", "the one command is probe");
    let options: Vec<(String, String)> = rest
        .iter()
        .filter(|argument| *argument != "--option")
        .map(|pair| pair.split_once('=').expect("an option is KEY=VALUE"))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let line =
        devbay_host::probe::answer(&PathBuf::from(library), &options).expect("the machine has threads");
    println!("\n{line}");
    // What a library does at exit is not part of the question.
    std::process::exit(0);
}
