//! Verdicts of probes, kept on disk, so that a library is probed once and not at every start.
//!
//! One file for each library and its options, in `pjrt` of the cache folder, replaced as a whole. A verdict
//! is about one library, one state of its file (size, time of its last change), one set of options, one version of this
//! plugin and one machine since its start with the accelerators that it has: a new driver comes with a new start, and a
//! folder may be shared by machines. Whatever cannot be read, or is about something else, is no verdict.
//!
//! A good verdict holds as long as all of that is the same. A crash is tried again after [`FAILED_HOLDS`], and so are
//! two timeouts in a row. A single timeout holds for [`UNANSWERED_HOLDS`]: it may come from a slow disk, and the next
//! try finds the file cached. A refusal holds for [`REFUSED_HOLDS`], because the device may only be in use.

use crate::find::Named;
use crate::machine::Machine;
use devbay_plugin_api::sdk::whole_file;
use serde::{Deserialize, Serialize};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time for which a library that ended its probe, or did not answer twice, is left alone.
pub const FAILED_HOLDS: Duration = Duration::from_secs(24 * 60 * 60);
/// Time for which a library that did not answer once is left alone: as long as one start of an application takes, in
/// which it may be asked for more than once.
pub const UNANSWERED_HOLDS: Duration = Duration::from_secs(60);
/// Time for which a library that refused in order is left alone.
pub const REFUSED_HOLDS: Duration = Duration::from_secs(10 * 60);

/// A larger file is none of ours.
const SIZE_MAX: u64 = 1 << 16;

/// Finding of a probe about a library.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It has so many devices.
    Devices(usize),
    /// It says why it has none.
    Refused(String),
    /// It ended the probing process.
    Failed(String),
    /// It did not answer in time.
    Unanswered(String),
}

/// Subject of a verdict.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Subject {
    file: PathBuf,
    size_bytes: u64,
    changed_ns: u128,
    options: String,
    plugin: String,
    boot: String,
    accelerators: Vec<String>,
}

/// A file's content.
#[derive(Serialize, Deserialize)]
struct Entry {
    subject: Subject,
    verdict: Verdict,
    /// True if the verdict before it was none either, for want of an answer.
    #[serde(default)]
    again: bool,
    /// Seconds since 1970.
    found_at: u64,
}

/// The verdicts in a folder.
#[derive(Clone, Debug)]
pub struct Verdicts {
    folder: PathBuf,
    machine: Machine,
}

impl Verdicts {
    /// In the folder `pjrt` of a cache folder; nothing needs to be there.
    pub fn new(cache: &Path, machine: Machine) -> Self {
        Self { folder: cache.join("pjrt"), machine }
    }

    /// The verdict that holds, and how old it is; none if there is none, or if it is too old `now`.
    pub fn find(&self, library: &Named, now: SystemTime) -> Option<(Verdict, Duration)> {
        let entry = self.read(&self.subject(library)?)?;
        // A time in the future means that the clock was wrong.
        let age = now.duration_since(UNIX_EPOCH.checked_add(Duration::from_secs(entry.found_at))?).ok()?;
        let holds = match entry.verdict {
            Verdict::Devices(_) => true,
            Verdict::Refused(_) => age < REFUSED_HOLDS,
            Verdict::Failed(_) => age < FAILED_HOLDS,
            Verdict::Unanswered(_) => age < if entry.again { FAILED_HOLDS } else { UNANSWERED_HOLDS },
        };
        holds.then_some((entry.verdict, age))
    }

    /// Keeps a verdict. A library without a file of its own, which the system's loader looks for, has none.
    ///
    /// # Errors
    /// Errors of the file system; what was there before stays.
    pub fn keep(&self, library: &Named, verdict: &Verdict, now: SystemTime) -> io::Result<()> {
        let Some(subject) = self.subject(library) else { return Ok(()) };
        let path = self.path(&subject);
        let found_at = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let is_unanswered = |verdict: &Verdict| matches!(verdict, Verdict::Unanswered(_));
        let before = self.read(&subject);
        let again = is_unanswered(verdict) && before.is_some_and(|before| is_unanswered(&before.verdict));
        let json = serde_json::to_vec(&Entry { subject, verdict: verdict.clone(), again, found_at })?;
        std::fs::create_dir_all(&self.folder)?;
        whole_file::write_file(&path, |file| file.write_all(&json))
    }

    /// The entry about this and nothing else, however old.
    fn read(&self, subject: &Subject) -> Option<Entry> {
        let path = self.path(subject);
        if std::fs::metadata(&path).ok()?.len() > SIZE_MAX {
            return None;
        }
        let entry: Entry = serde_json::from_slice(&std::fs::read(&path).ok()?).ok()?;
        (entry.subject == *subject).then_some(entry)
    }

    fn subject(&self, library: &Named) -> Option<Subject> {
        let file = library.file()?;
        let about = std::fs::metadata(&file).ok()?;
        let changed = about.modified().ok()?;
        Some(Subject {
            size_bytes: about.len(),
            changed_ns: changed.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos(),
            options: serde_json::to_string(&library.options).ok()?,
            plugin: env!("CARGO_PKG_VERSION").to_owned(),
            boot: self.machine.boot.clone(),
            accelerators: self.machine.accelerators.clone(),
            file,
        })
    }

    /// The file of a verdict. Two subjects with one hash take turns; what a file is about stands in it.
    fn path(&self, subject: &Subject) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        (&subject.file, &subject.options).hash(&mut hasher);
        self.folder.join(format!("{:016x}.json", hasher.finish()))
    }
}
