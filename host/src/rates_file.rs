//! The file that keeps measured rates between processes: JSON in the user's cache folder.
//!
//! A record belongs to one device of one build of a plugin with one number of threads on one machine ([`Key`]). For another
//! number of threads the record still applies, except for the hand-over; in all other cases the defaults apply. The file
//! only improves estimates, so every fault in it is a warning, never an error. It is replaced atomically: a reader sees the
//! old or the new file, and the last writer wins. Only [`path_from_environment`] reads the environment.

use crate::calibrate::{Calibration, Quantity};
use crate::discover::elevated;
use crate::file::{read_regular, write_bytes};
use devbay_core::device::Device;
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::plan::cost::Rates;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Version of the file's form.
const VERSION: u32 = 1;

/// Maximum size of a file.
const SIZE_MAX: u64 = 1 << 20;

/// Returns the path of the file: in `DEVBAY_CACHE_DIR`, or `devbay` in the user's cache folder. None if there is no such
/// folder, or for an elevated process, which does not trust the user's.
pub fn path_from_environment() -> Option<PathBuf> {
    path_from_variables(elevated(), |name| std::env::var_os(name))
}

/// Returns the path as [`path_from_environment`] does, from given variables of a process that may be elevated.
pub fn path_from_variables(elevated: bool, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if elevated {
        return None;
    }
    let folder = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let devbay = folder("DEVBAY_CACHE_DIR")
        .or_else(|| folder("XDG_CACHE_HOME").map(|cache| cache.join("devbay")))
        .or_else(|| folder("HOME").map(|home| home.join(".cache/devbay")))?;
    Some(devbay.join("rates.json"))
}

/// Identity of rates: the device, the plugin's build, and the machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Key {
    /// `PLUGIN/ID`.
    pub device: String,
    /// The product's name: machines may share a folder.
    pub product: String,
    /// Driver underneath; for the CPU plugin its instruction set and kind of streams.
    pub driver: String,
    /// Threads of the queue.
    pub threads: usize,
    /// The plugin's library; the program if it is linked in.
    pub library: String,
    /// The plugin's version.
    pub plugin_version: String,
    /// Bytes of the library.
    pub library_bytes: u64,
    /// Time of the library's last change, in nanoseconds since 1970.
    pub library_modified_ns: u64,
}

impl Key {
    /// Returns a device's key; `library` is its plugin's, None if it is linked in.
    pub fn of(device: &Device, library: Option<&Path>) -> Self {
        let path =
            library.map(Path::to_path_buf).or_else(|| std::env::current_exe().ok()).unwrap_or_default();
        let path = path.canonicalize().unwrap_or(path);
        let metadata = fs::metadata(&path).ok();
        let modified = metadata.as_ref().and_then(|metadata| metadata.modified().ok());
        let since_1970 = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let about = device.about();
        Self {
            device: device.stable_id(),
            product: about.product.clone(),
            driver: about.driver.clone(),
            threads: device.plugin().services().queue().n_threads(),
            library: path.to_string_lossy().into_owned(),
            plugin_version: device.plugin().about().version.clone(),
            library_bytes: metadata.map_or(0, |metadata| metadata.len()),
            library_modified_ns: since_1970.map_or(0, |time| time.as_nanos() as u64),
        }
    }

    /// Returns the reason why the other's measurements do not apply: the first difference, with the expected and found
    /// value. Ignores the number of threads for per-thread times.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let texts = |key: &Self| {
            let Key { device, product, driver, library, plugin_version, .. } = key.clone();
            let build = format!("{} bytes, changed at {} ns", key.library_bytes, key.library_modified_ns);
            [
                ("device", device),
                ("product", product),
                ("driver", driver),
                ("library of the plugin", library),
                ("version of the plugin", plugin_version),
                ("build of the plugin", build),
            ]
        };
        let mut pairs = texts(self).into_iter().zip(texts(other));
        let ((what, expected), (_, found)) = pairs.find(|(own, other)| own != other)?;
        Some(format!("expected the {what} to be {expected}, found {found}"))
    }

    /// Returns whether the other is the same device with another build, whose rates are obsolete.
    pub(crate) fn replaces(&self, other: &Self) -> bool {
        let place = |key: &Self| {
            let Key { device, product, driver, threads, library, .. } = key.clone();
            (device, product, driver, threads, library)
        };
        place(self) == place(other)
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Record {
    #[serde(flatten)]
    key: Key,
    /// Measured values by name; absent ones keep their defaults.
    measured: BTreeMap<String, f64>,
}

impl Record {
    fn rates(&self, defaults: Rates) -> Rates {
        let mut rates = defaults;
        for quantity in Quantity::all() {
            if let Some(&value) = self.measured.get(&quantity.name()) {
                *quantity.of(&mut rates) = value;
            }
        }
        rates
    }
}

/// Content of the file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KnownRates {
    version: u32,
    devices: Vec<Record>,
}

impl Default for KnownRates {
    /// Returns an empty file's content.
    fn default() -> Self {
        Self { version: VERSION, devices: Vec::new() }
    }
}

impl KnownRates {
    /// Reads a file, with a warning about unusable parts. A missing file is empty, without a warning.
    pub fn read(path: &Path) -> (Self, Option<String>) {
        let ignored = |why: String| {
            let text = format!(
                "the rates in {} are not used: {why}; `devbay devices --calibrate` measures them anew",
                path.display()
            );
            (Self::default(), Some(text))
        };
        let content = match read_regular(path, SIZE_MAX) {
            Ok(content) => content,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return (Self::default(), None),
            Err(error) => return ignored(format!("it cannot be read: {error}")),
        };
        match serde_json::from_slice::<Self>(&content) {
            Err(error) => ignored(format!("expected JSON of version {VERSION}, found {error}")),
            Ok(known) if known.version != VERSION => {
                ignored(format!("expected version {VERSION}, found {}", known.version))
            }
            Ok(known) => {
                match known.devices.iter().find(|record| !record.rates(Rates::default()).are_possible()) {
                    Some(record) => ignored(format!("{} has a rate that cannot be", record.key.device)),
                    None => (known, None),
                }
            }
        }
    }

    /// Returns the measured rates of a device, with `defaults` for the rest; None if it has none. Rates measured with
    /// another number of threads apply, except the hand-over: all others are per thread.
    pub fn find(&self, key: &Key, defaults: Rates) -> Option<Rates> {
        if let Some(record) = self.devices.iter().find(|record| record.key == *key) {
            return Some(record.rates(defaults));
        }
        let other = self.devices.iter().find(|record| key.difference(&record.key).is_none())?;
        Some(Rates { hand_over_ns: defaults.hand_over_ns, ..other.rates(defaults) })
    }

    /// Adds a device's measurements, replacing its previous ones.
    pub fn put(&mut self, key: Key, calibration: &Calibration) {
        let measured = calibration.figures.iter().filter(|figure| figure.default_because.is_none());
        let measured = measured.map(|figure| (figure.quantity.name(), figure.value)).collect();
        self.devices.retain(|record| !key.replaces(&record.key));
        self.devices.push(Record { key, measured });
    }

    /// Writes the file, creating its folder if needed.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]; the previous file is then unchanged.
    pub fn write(&self, path: &Path) -> Result<()> {
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Io, format!("cannot write the rates: {error}"))
                .in_file(path.display())
                .because(error)
        };
        let text = serde_json::to_string_pretty(self).map_err(|error| failed(error.into()))?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        write_bytes(path, (text + "\n").as_bytes()).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::Figure;
    use std::time::Duration;

    fn key(threads: usize, library_modified_ns: u64) -> Key {
        Key {
            device: "cpu/0".to_owned(),
            product: "a processor".to_owned(),
            driver: "avx2 instructions, inline streams".to_owned(),
            threads,
            library: "/lib/libdevbay_plugin_cpu.so".to_owned(),
            plugin_version: "1".to_owned(),
            library_bytes: 1,
            library_modified_ns,
        }
    }

    fn calibration(flops: f64) -> Calibration {
        let figure = |quantity, value, reason: Option<&str>| Figure {
            quantity,
            value,
            default_because: reason.map(str::to_owned),
        };
        Calibration {
            defaults: Rates::default(),
            figures: vec![
                figure(Quantity::Flops, flops, None),
                figure(Quantity::Launch, 7.0, Some("it was not asked")),
            ],
            took: Duration::ZERO,
        }
    }

    struct File(PathBuf);

    impl File {
        fn new(name: &str) -> Self {
            let name = format!("devbay-rates-{}-{name}", std::process::id());
            Self(std::env::temp_dir().join(name).join("new/rates.json"))
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = self.0.ancestors().nth(2).map(fs::remove_dir_all);
        }
    }

    #[test]
    fn what_is_written_is_read_for_the_same_key_alone() {
        let file = File::new("round-trip");
        let (mut known, warning) = KnownRates::read(&file.0);
        assert_eq!((known.find(&key(2, 1), Rates::default()), warning), (None, None));
        known.put(key(1, 1), &calibration(10.0));
        known.put(key(2, 1), &calibration(20.0));
        known.write(&file.0).unwrap();
        let (read, warning) = KnownRates::read(&file.0);
        assert_eq!((&read, warning), (&known, None));
        // Rates that were not measured are not stored.
        let defaults = Rates { launch_ns: 9.0, ..Rates::default() };
        let expected = Rates { flops_per_ns: 20.0, ..defaults };
        assert_eq!(read.find(&key(2, 1), defaults), Some(expected));
        let other = [
            key(2, 2),
            Key { driver: "avx512".to_owned(), ..key(2, 1) },
            Key { plugin_version: "2".to_owned(), ..key(2, 1) },
            Key { product: "another processor".to_owned(), ..key(2, 1) },
        ];
        assert!(other.iter().all(|key| read.find(key, defaults).is_none()));
        // Per-thread rates hold for any number of threads, unlike the hand-over.
        known.devices[1].measured.insert("hand_over_ns".to_owned(), 77.0);
        let of = |threads| known.find(&key(threads, 1), defaults).map(|r| (r.flops_per_ns, r.hand_over_ns));
        assert_eq!(of(2), Some((20.0, 77.0)));
        assert_eq!(of(3), Some((10.0, defaults.hand_over_ns)));
        let folder = fs::read_dir(file.0.parent().unwrap()).unwrap();
        assert_eq!(folder.count(), 1, "nothing else is left");
    }

    #[test]
    fn another_build_takes_the_place_of_the_one_before() {
        let mut known = KnownRates::default();
        known.put(key(2, 1), &calibration(10.0));
        known.put(key(2, 2), &calibration(30.0));
        assert_eq!(known.devices.len(), 1);
        assert_eq!(known.find(&key(2, 2), Rates::default()).map(|rates| rates.flops_per_ns), Some(30.0));
    }

    #[test]
    fn a_file_that_cannot_be_used_is_a_warning() {
        let file = File::new("broken");
        fs::create_dir_all(file.0.parent().unwrap()).unwrap();
        let record = |value: &str| {
            let record = Record { key: key(1, 1), measured: BTreeMap::new() };
            let text = serde_json::to_string(&record).unwrap();
            text.replace("\"measured\":{}", &format!("\"measured\":{{\"flops_per_ns\":{value}}}"))
        };
        for (content, expected) in [
            (String::new(), "expected JSON"),
            ("\u{0}\u{1}".to_owned(), "expected JSON"),
            ("[1, 2]".to_owned(), "expected JSON"),
            ("{\"version\": 9, \"devices\": []}".to_owned(), "found 9"),
            (
                format!("{{\"version\": 1, \"devices\": [{}]}}", record("-1.0")),
                "cpu/0 has a rate that cannot be",
            ),
            (
                format!("{{\"version\": 1, \"devices\": [{}]}}", record("0.0")),
                "cpu/0 has a rate that cannot be",
            ),
            (" ".repeat(SIZE_MAX as usize + 1), "at most"),
        ] {
            fs::write(&file.0, &content).unwrap();
            let (known, warning) = KnownRates::read(&file.0);
            let warning = warning.unwrap_or_default();
            assert!(warning.contains(expected), "expected `{expected}`, found: {warning}");
            assert_eq!(known, KnownRates::default());
        }
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_an_error() {
        let error = KnownRates::default().write(Path::new("/proc/devbay/rates.json")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
    }

    #[test]
    fn the_file_is_in_the_users_cache_folder() {
        let path = |variables: &[(&str, &str)], elevated| {
            path_from_variables(elevated, |name| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(*value))
            })
        };
        let all = [("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("DEVBAY_CACHE_DIR", "/d")];
        assert_eq!(path(&all[..1], false), Some("/h/.cache/devbay/rates.json".into()));
        assert_eq!(path(&all[..2], false), Some("/x/devbay/rates.json".into()));
        assert_eq!(path(&all, false), Some("/d/rates.json".into()));
        assert_eq!(path(&[("HOME", "")], false), None);
        assert_eq!(path(&all, true), None);
    }
}
