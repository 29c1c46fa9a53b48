//! `devbay-probe probe PATH [--token TOKEN] [--option KEY=VALUE]...`: tries one plugin library and prints the outcome.
//!
//! The same as `devbay probe`, for applications that ship the host without the command: name it in
//! [`devbay_host::ProbeOptions`].

use std::io::Write;
use std::path::PathBuf;

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let mut library = None;
    let mut options = Vec::new();
    let mut token = String::new();
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("probe") if library.is_none() => library = arguments.next().map(PathBuf::from),
            Some("--token") => {
                token = arguments.next().and_then(|token| token.into_string().ok()).unwrap_or_default();
            }
            Some("--option") => {
                let pair = arguments.next().and_then(|pair| pair.into_string().ok()).unwrap_or_default();
                match pair.split_once('=') {
                    Some((key, value)) => options.push((key.to_owned(), value.to_owned())),
                    None => fail(&format!("--option is KEY=VALUE, found {pair}")),
                }
            }
            _ => fail(&format!("unknown argument {}", argument.display())),
        }
    }
    let Some(library) = library else {
        fail("usage: devbay-probe probe PATH [--option KEY=VALUE]...");
    };
    let line = match devbay_host::internals::probe::answer(&library, &options, &token) {
        Ok(line) => line,
        Err(error) => fail(&error.to_string()),
    };
    devbay_host::internals::probe::print_and_end(&line)
}

fn fail(text: &str) -> ! {
    let _ = writeln!(std::io::stderr(), "devbay-probe: {text}");
    std::process::exit(2);
}
