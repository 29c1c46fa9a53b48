//! The file that keeps measured times of launches, to be fed back into plans: JSON, written by
//! `devbay bench --cost --feedback`. Callers name it to plan with its times.
//!
//! A record belongs to one device of one build of a plugin on one machine ([`Key`]). Times are those of one thread, so a
//! record holds for any number of threads. A damaged file is an error, never skipped, because the user named it. Records of
//! another device or build are skipped with a warning.

use crate::file::{read_regular, write_bytes};
use crate::rates_file::Key;
use devbay_core::device::Device;
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::plan::feedback::Feedback;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Version of the file's form.
const VERSION: u32 = 1;

/// Maximum size of a file: room for a hundred thousand launches.
const SIZE_MAX: u64 = 64 << 20;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Record {
    #[serde(flatten)]
    key: Key,
    /// Nanoseconds of each launch, by signature.
    launches_ns: BTreeMap<String, f64>,
}

/// Content of the file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MeasuredTimes {
    version: u32,
    devices: Vec<Record>,
}

impl Default for MeasuredTimes {
    /// Returns an empty file's content.
    fn default() -> Self {
        Self { version: VERSION, devices: Vec::new() }
    }
}

impl MeasuredTimes {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it cannot be read, [`ErrorKind::InvalidArgument`] for another format or version, or an
    /// impossible time.
    pub fn read(path: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| {
            let text = format!("cannot read the measured times: {error}");
            Error::new(ErrorKind::Io, text).in_file(path.display()).because(error)
        };
        let content = read_regular(path, SIZE_MAX).map_err(|error| match error.kind() {
            std::io::ErrorKind::FileTooLarge => {
                let text = format!("expected at most {SIZE_MAX} bytes of measured times: {error}");
                Error::new(ErrorKind::InvalidArgument, text).in_file(path.display())
            }
            _ => failed(error),
        })?;
        Self::parse(&content).map_err(|error| error.in_file(path.display()))
    }

    fn parse(content: &[u8]) -> Result<Self> {
        let damaged = |why: String| {
            let text = format!("{why}; `devbay bench MODEL --cost --feedback FILE` measures anew");
            Err(Error::new(ErrorKind::InvalidArgument, text))
        };
        // A later version may have other fields; its version number explains more than a missing field.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        match serde_json::from_slice::<Versioned>(content) {
            Ok(Versioned { version }) if version != VERSION => {
                return damaged(format!("expected measured times of version {VERSION}, found {version}"));
            }
            _ => {}
        }
        let known: Self = match serde_json::from_slice(content) {
            Ok(known) => known,
            Err(error) => return damaged(format!("expected measured times as JSON, found {error}")),
        };
        let times = || known.devices.iter().flat_map(|record| &record.launches_ns);
        match times().find(|(_, ns)| !(ns.is_finite() && **ns > 0.0)) {
            Some((launch, ns)) => damaged(format!("{launch} took {ns} ns, which cannot be")),
            None => Ok(known),
        }
    }

    /// Adds the times of launches on a device, keeping other devices' records; removes those of another build of the same
    /// plugin.
    pub fn put(&mut self, key: Key, times: impl IntoIterator<Item = (String, f64)>) {
        self.devices.retain(|record| record.key == key || !key.replaces(&record.key));
        match self.devices.iter_mut().find(|record| record.key == key) {
            Some(record) => record.launches_ns.extend(times),
            None => self.devices.push(Record { key, launches_ns: times.into_iter().collect() }),
        }
    }

    /// Returns the records that apply to some devices, each with its key, and warnings for the rest. A record of another
    /// device is mentioned only if no other record applies.
    pub fn feedback(&self, devices: &[(Arc<Device>, Key)]) -> (Feedback, Vec<String>) {
        let (mut feedback, mut warnings, mut absent) = (Feedback::default(), Vec::new(), Vec::new());
        for record in &self.devices {
            let name = &record.key.device;
            match devices.iter().find(|(_, key)| key.device == *name) {
                None => absent.push(format!("the measured times of {name} are not used: it is not here")),
                Some((device, key)) => match key.difference(&record.key) {
                    None => {
                        record.launches_ns.iter().for_each(|(launch, ns)| feedback.put(device, launch, *ns));
                    }
                    Some(why) => warnings.push(format!("the measured times of {name} are not used: {why}")),
                },
            }
        }
        if feedback.is_empty() {
            warnings.extend(absent);
        }
        (feedback, warnings)
    }

    /// Writes the file.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]; the previous file is then unchanged.
    pub fn write(&self, path: &Path) -> Result<()> {
        let failed = |error: std::io::Error| {
            let text = format!("cannot write the measured times: {error}");
            Error::new(ErrorKind::Io, text).in_file(path.display()).because(error)
        };
        let text = serde_json::to_string_pretty(self).map_err(|error| failed(error.into()))?;
        write_bytes(path, (text + "\n").as_bytes()).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(device: &str, library_modified_ns: u64) -> Key {
        Key {
            device: device.to_owned(),
            product: "a processor".to_owned(),
            driver: "avx2 instructions, inline streams".to_owned(),
            threads: 1,
            library: "/lib/libdevbay_plugin_cpu.so".to_owned(),
            plugin_version: "1".to_owned(),
            library_bytes: 1,
            library_modified_ns,
        }
    }

    fn times(times: &[(&str, f64)]) -> Vec<(String, f64)> {
        times.iter().map(|(launch, ns)| ((*launch).to_owned(), *ns)).collect()
    }

    #[test]
    fn what_is_written_is_read_and_added_to() {
        let path = std::env::temp_dir().join(format!("devbay-feedback-{}.json", std::process::id()));
        let mut known = MeasuredTimes::default();
        known.put(key("cpu/0", 1), times(&[("a", 1.5), ("b", 2.0)]));
        known.put(key("gpu/0", 1), times(&[("a", 9.0)]));
        known.put(key("cpu/0", 1), times(&[("b", 3.0), ("c", 4.0)]));
        known.write(&path).unwrap();
        let read = MeasuredTimes::read(&path);
        std::fs::remove_file(&path).unwrap();
        let read = read.unwrap();
        assert_eq!(read, known);
        assert_eq!(read.devices.len(), 2);
        let all = times(&[("a", 1.5), ("b", 3.0), ("c", 4.0)]).into_iter().collect();
        assert_eq!(read.devices[0].launches_ns, all);
    }

    #[test]
    fn another_build_takes_the_place_of_the_one_before() {
        let mut known = MeasuredTimes::default();
        known.put(key("cpu/0", 1), times(&[("a", 1.0)]));
        known.put(key("cpu/0", 2), times(&[("b", 2.0)]));
        assert_eq!(known.devices.len(), 1);
        assert_eq!(known.devices[0].launches_ns, times(&[("b", 2.0)]).into_iter().collect());
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let mut whole = MeasuredTimes::default();
        whole.put(key("cpu/0", 1), times(&[("a", 1.5)]));
        let text = serde_json::to_string(&whole).unwrap();
        assert!(MeasuredTimes::parse(text.as_bytes()).is_ok());
        for (content, expected) in [
            (String::new(), "as JSON"),
            ("[1, 2]".to_owned(), "as JSON"),
            (text[..text.len() / 2].to_owned(), "as JSON"),
            (text.replace("\"version\":1", "\"version\":2"), "of version 1, found 2"),
            ("{\"version\": 3}".to_owned(), "of version 1, found 3"),
            (text.replace("1.5", "-1.5"), "a took -1.5 ns"),
            (text.replace("1.5", "0"), "a took 0 ns"),
            (text.replace("1.5", "\"long\""), "as JSON"),
            (text.replace("\"product\"", "\"produkt\""), "as JSON"),
        ] {
            let error = MeasuredTimes::parse(content.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.text().contains(expected), "expected `{expected}`, found: {}", error.text());
        }
        let error = MeasuredTimes::read(Path::new("/nonexistent/feedback.json")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
    }

    #[test]
    fn a_key_says_what_differs() {
        let own = key("cpu/0", 1);
        assert_eq!(own.difference(&Key { threads: 8, ..own.clone() }), None);
        let why = |other: Key| own.difference(&other).unwrap();
        assert!(why(key("cpu/0", 2)).contains("build of the plugin"));
        assert!(why(Key { product: "another".to_owned(), ..own.clone() }).contains("found another"));
        assert!(why(Key { plugin_version: "2".to_owned(), ..own.clone() }).contains("version of the plugin"));
    }
}
