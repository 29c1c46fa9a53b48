//! Reports of failures on standard error: a line of text, or with `--json` a line of JSON.
//!
//! ```json
//! {"error":{"kind":"invalid-model","exit_code":4,"message":"...","place":{"file":"m.onnx","plugin":null,"device":null,"node":null}}}
//! ```
//!
//! The form is a promise to scripts (docs/cli.md). The last such line on standard error has the reason for the exit code.
//! The command line decides the form, before it is parsed: an error of the command line is reported too.

use crate::{exit, interrupt, tell};
use devbay_host::internals::core::error::Place;
use devbay_host::{Error, ErrorKind};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, Ordering};

/// True if failures are reported as JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Chooses the form by the arguments of the command.
pub fn choose_form(arguments: impl Iterator<Item = impl AsRef<OsStr>>) {
    let mut options = arguments.take_while(|argument| argument.as_ref() != "--");
    IS_JSON.store(options.any(|argument| argument.as_ref() == "--json"), Ordering::Relaxed);
}

/// Returns whether failures are reported as JSON.
pub fn is_json() -> bool {
    IS_JSON.load(Ordering::Relaxed)
}

/// Reports an error.
pub fn report(error: &anyhow::Error) {
    let kind = if interrupt::is_pressed() { ErrorKind::Cancelled } else { exit::kind(error) };
    let place = error.downcast_ref::<Error>().map(Error::place);
    report_as(kind, exit::code_of(kind), place, &exit::describe(error));
}

/// Reports a failure that is no error value, with the exit code that follows.
pub fn report_as(kind: ErrorKind, exit_code: u8, place: Option<&Place>, message: &str) {
    if !is_json() {
        tell!("error: {message}");
        return;
    }
    let part = |part: fn(&Place) -> &String| -> Value {
        place.map(part).filter(|text| !text.is_empty()).map_or(Value::Null, |text| json!(text))
    };
    let place = json!({
        "file": part(|place| &place.file), "plugin": part(|place| &place.plugin),
        "device": part(|place| &place.device), "node": part(|place| &place.node),
    });
    let error = json!({ "kind": kind.name(), "exit_code": exit_code, "message": message, "place": place });
    tell!("{}", json!({ "error": error }));
}

/// Bytes of a handler's report. Handlers run on small stacks, which hold them once.
#[cfg(unix)]
pub type RawBytes = [u8; 1024];

/// A report in a handler's own buffer: nothing is allocated, and text beyond the buffer is cut.
#[cfg(unix)]
pub struct Raw<'b> {
    bytes: &'b mut RawBytes,
    len: usize,
    is_json: bool,
}

/// Bytes at the end of the buffer for the end of the JSON.
#[cfg(unix)]
const TAIL: usize = 8;

#[cfg(unix)]
impl<'b> Raw<'b> {
    /// Begins a report; `place` has the parts of the place that are known, by their keys.
    pub fn new(bytes: &'b mut RawBytes, kind: ErrorKind, exit_code: u8, place: &[(&str, &str)]) -> Self {
        Self::in_form(is_json(), bytes, kind, exit_code, place)
    }

    fn in_form(
        is_json: bool,
        bytes: &'b mut RawBytes,
        kind: ErrorKind,
        exit_code: u8,
        place: &[(&str, &str)],
    ) -> Self {
        let mut raw = Self { bytes, len: 0, is_json };
        if !is_json {
            raw.put(b"error: ");
            return raw;
        }
        raw.put(b"{\"error\":{\"kind\":\"");
        raw.put(kind.name().as_bytes());
        raw.put(b"\",\"exit_code\":");
        raw.add_number(u64::from(exit_code), 10);
        raw.put(b",\"place\":{");
        for (i, key) in ["file", "plugin", "device", "node"].into_iter().enumerate() {
            raw.put(if i == 0 { b"\"" } else { b",\"" });
            raw.put(key.as_bytes());
            raw.put(b"\":");
            match place.iter().find(|(known, name)| *known == key && !name.is_empty()) {
                Some((_, name)) => {
                    raw.put(b"\"");
                    raw.add(name);
                    raw.put(b"\"");
                }
                None => raw.put(b"null"),
            }
        }
        raw.put(b"},\"message\":\"");
        raw
    }

    fn put(&mut self, bytes: &[u8]) {
        let room = (self.bytes.len() - TAIL).saturating_sub(self.len);
        let n = bytes.len().min(room);
        self.bytes[self.len..self.len + n].copy_from_slice(&bytes[..n]);
        self.len += n;
    }

    /// Adds text to the message.
    pub fn add(&mut self, text: &str) {
        text.bytes().for_each(|byte| self.add_byte(byte));
    }

    /// Adds a byte of text. Control characters become question marks.
    pub fn add_byte(&mut self, byte: u8) {
        match byte {
            byte if byte.is_ascii_control() => self.put(b"?"),
            // An escape is there whole, or not at all.
            b'"' | b'\\' if self.is_json && self.len + 2 <= self.bytes.len() - TAIL => {
                self.put(&[b'\\', byte]);
            }
            b'"' | b'\\' if self.is_json => {}
            byte => self.put(&[byte]),
        }
    }

    /// Adds a number to a base of at most 16.
    pub fn add_number(&mut self, mut number: u64, base: u64) {
        let (mut digits, mut first) = ([0u8; 20], 20);
        loop {
            first -= 1;
            digits[first] = b"0123456789abcdef"[(number % base) as usize];
            number /= base;
            if number == 0 {
                break;
            }
        }
        self.put(&digits[first..]);
    }

    /// Returns the whole line.
    fn line(&mut self) -> &[u8] {
        let end: &[u8] = if self.is_json { b"\"}}\n" } else { b"\n" };
        self.bytes[self.len..self.len + end.len()].copy_from_slice(end);
        &self.bytes[..self.len + end.len()]
    }

    /// Returns the text so far.
    #[cfg(test)]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes[..self.len]).into_owned()
    }

    /// Prints the report and ends the process.
    pub fn print_and_end(mut self, exit_code: u8) -> ! {
        let line = self.line();
        // SAFETY: the bytes are local; handlers may call both functions, and the last does not return.
        unsafe {
            libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
            libc::_exit(i32::from(exit_code))
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_handlers_report_is_json_with_any_text() {
        let mut bytes = [0; _];
        let mut raw = Raw::in_form(
            true,
            &mut bytes,
            ErrorKind::PluginFailed,
            8,
            &[("plugin", "p\"\x1b"), ("node", ""), ("device", "p:0")],
        );
        raw.add("crashed at \\ and 0x");
        raw.add_number(0x7f0, 16);
        let line: Value = serde_json::from_slice(raw.line()).expect("JSON");
        let expected = json!({ "error": {
            "kind": "plugin-failed", "exit_code": 8, "message": "crashed at \\ and 0x7f0",
            "place": { "file": null, "plugin": "p\"?", "device": "p:0", "node": null },
        }});
        assert_eq!(line, expected);
    }

    #[test]
    fn a_long_report_is_cut_and_stays_whole() {
        for text in ["x", "\"", "\\"] {
            for n in [840, 841, 5000] {
                let (mut json, mut plain) = ([0; _], [0; _]);
                let mut raw = Raw::in_form(true, &mut json, ErrorKind::OutOfMemory, 7, &[]);
                raw.add(&text.repeat(n));
                let line: Value = serde_json::from_slice(raw.line()).expect("JSON");
                assert!(line["error"]["message"].as_str().is_some_and(|message| message.len() > 400));
                let mut raw = Raw::in_form(false, &mut plain, ErrorKind::OutOfMemory, 7, &[]);
                raw.add(&text.repeat(n));
                assert!(raw.line().starts_with(b"error: ") && raw.line().ends_with(b"\n"));
            }
        }
    }
}
