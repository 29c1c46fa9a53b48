//! Atomic writes of files: caches of plugins, and everything that the host writes.
//!
//! A file is written under a random name in the folder of its destination, synced, and renamed; then the
//! folder is synced. A process number would not be unique: containers that share a volume have the same ones.
//! The name is opened exclusively, so it is never another writer's file, nor the target of a link.
//!
//! Leftovers of a killed process are found by their locks. A temporary file is locked while it is written,
//! and the system releases the lock however the process ended. If another process can lock the file, it has
//! no writer, and is removed before the next file is written there. On file systems without locks nothing is
//! removed.
//!
//! Deliberately without a crate: plugins ship this with the SDK, whose only dependency is the standard
//! library.

use crate::locks::lock;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

/// Prefix of temporary files' names; 16 hexadecimal digits follow, then the suffix.
const PREFIX: &str = ".devbay-";
const SUFFIX: &str = ".part";
const DIGITS: usize = 16;

/// Names to try before giving up: one collision is chance, this many are not.
const ATTEMPTS_MAX: usize = 16;

/// Largest number of folders that a process remembers to have swept.
const SWEPT_MAX: usize = 256;

/// Paths that this process is still writing, for [`remove_unfinished`].
static UNFINISHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Writes a file atomically: `write` receives a new file, which replaces `path` when it is complete. The
/// permissions of an existing file stay.
///
/// # Errors
/// Errors of `write` and of the system; `path` then keeps its old content. If syncing the folder fails, the
/// new file is already in place.
pub fn write_file(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let mut part = Part::file_beside(path)?;
    write(&mut part.lock)?;
    if let Ok(old) = fs::symlink_metadata(path)
        && old.is_file()
    {
        // Best effort: a user may be allowed to replace a file without owning it.
        let _ = part.lock.set_permissions(old.permissions());
    }
    part.lock.sync_all()?;
    part.move_to(path)
}

/// Creates a folder atomically: `fill` receives the path of a new folder, which is moved to `path` when it is
/// complete. `fill` does not recreate the folder if it is gone ([`remove_unfinished`]).
///
/// # Errors
/// Errors of `fill` and of the system; also if `path` exists and is not an empty folder.
pub fn write_folder(path: &Path, fill: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let part = Part::folder_beside(path)?;
    fill(&part.path)?;
    part.move_to(path)
}

/// Removes unfinished files of this process, and prevents new ones: for code that is about to end the
/// process, such as a Ctrl-C handler. Not for signal handlers, because it takes a lock.
pub fn remove_unfinished() {
    let unfinished = ManuallyDrop::new(unfinished());
    for path in unfinished.iter() {
        for _ in 0..ATTEMPTS_MAX {
            remove(path);
            // Its writer may have added a file while the folder was emptied.
            if path.symlink_metadata().is_err() {
                break;
            }
        }
    }
}

/// A temporary file or folder, removed on drop.
struct Part {
    path: PathBuf,
    /// The file, or the folder's handle; locked while it is written.
    lock: File,
    is_moved: bool,
}

impl Part {
    fn file_beside(path: &Path) -> io::Result<Self> {
        Self::beside(path, |part| OpenOptions::new().read(true).write(true).create_new(true).open(part))
    }

    fn folder_beside(path: &Path) -> io::Result<Self> {
        Self::beside(path, |part| {
            fs::create_dir(part)?;
            File::open(part)
        })
    }

    fn beside(path: &Path, create: impl Fn(&Path) -> io::Result<File>) -> io::Result<Self> {
        if path.file_name().is_none() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "the path does not end in a name"));
        }
        let folder = folder_of(path);
        sweep_once(folder);
        for _ in 0..ATTEMPTS_MAX {
            let place = folder.join(random_name());
            // Known before it is there: if the process ends in between, nothing is removed, or all.
            let mut unfinished = unfinished();
            let lock = match create(&place) {
                Ok(lock) => lock,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            };
            unfinished.insert(place.clone());
            drop(unfinished);
            let part = Self { path: place, lock, is_moved: false };
            // Without locks there is no sweep either.
            let _ = part.lock.try_lock();
            // Another process may have swept it before it was locked.
            if part.path.symlink_metadata().is_ok() {
                return Ok(part);
            }
        }
        Err(io::Error::new(ErrorKind::AlreadyExists, "no name for a temporary file is free"))
    }

    fn move_to(mut self, path: &Path) -> io::Result<()> {
        {
            // A folder that `remove_unfinished` has begun to empty must not be moved to its place.
            let _unfinished = unfinished();
            fs::rename(&self.path, path)
        }?;
        self.is_moved = true;
        sync_folder(folder_of(path))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut unfinished = unfinished();
        if !self.is_moved {
            remove(&self.path);
        }
        unfinished.remove(&self.path);
    }
}

fn unfinished() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    lock(&UNFINISHED)
}

/// Removes a temporary file or folder. If that fails, the next sweep finds it.
fn remove(path: &Path) {
    let _ = match path.symlink_metadata() {
        Ok(about) if about.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
}

/// Returns the folder that contains a path.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Creates a name that cannot be guessed: the standard library takes its hash maps' keys from the system's
/// random numbers.
fn random_name() -> String {
    let random = RandomState::new().build_hasher().finish();
    format!("{PREFIX}{random:016x}{SUFFIX}")
}

fn is_temporary(name: &str) -> bool {
    let digits = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX));
    digits.is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Runs [`sweep`], once for each folder.
fn sweep_once(folder: &Path) {
    static SWEPT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let mut swept = lock(&SWEPT);
    if swept.len() >= SWEPT_MAX {
        swept.clear();
    }
    let is_new = swept.insert(folder.to_owned());
    drop(swept);
    if is_new {
        sweep(folder);
    }
}

/// Removes temporary files and folders that no living process writes. Entries that cannot be inspected stay;
/// if one is in the way, the next write reports it.
pub fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_name().to_str().is_some_and(is_temporary) {
            continue;
        }
        let path = entry.path();
        // Opening a pipe of that name would wait, and a link is not ours.
        let is_ours = path.symlink_metadata().is_ok_and(|about| about.is_file() || about.is_dir());
        let left = is_ours.then(|| File::open(&path).ok()).flatten();
        // The lock goes with the handle, after the removal.
        if let Some(left) = left
            && !matches!(left.try_lock(), Err(TryLockError::WouldBlock | TryLockError::Error(_)))
        {
            remove(&path);
        }
    }
}

/// Syncs a folder's entries to disk, where folders can be synced.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(not(unix)) {
        return Ok(());
    }
    // A folder may be written and not read.
    let Ok(handle) = File::open(folder) else { return Ok(()) };
    match handle.sync_all() {
        // Some file systems have no such call.
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A folder that is removed with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("whole-file{}", random_name()));
            fs::create_dir(&path).expect("a new folder");
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).expect("a folder").flatten();
            let mut names: Vec<_> =
                entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_is_there_when_it_is_whole() {
        let folder = Folder::new();
        let path = folder.0.join("a");
        fs::write(&path, "before").expect("written");
        write_file(&path, |file| {
            file.write_all(b"half")?;
            assert_eq!(fs::read(&path)?, b"before");
            assert_eq!(folder.names().len(), 2);
            Ok(())
        })
        .expect("written");
        assert_eq!(fs::read(&path).expect("there"), b"half");
        let failed = write_file(&path, |file| {
            file.write_all(b"other")?;
            Err(io::Error::other("no"))
        });
        assert_eq!(failed.expect_err("it failed").to_string(), "no");
        assert_eq!(
            (fs::read(&path).expect("there"), folder.names()),
            (b"half".to_vec(), vec!["a".to_owned()])
        );
    }

    #[test]
    fn what_was_left_is_swept_and_what_is_written_is_not() {
        let folder = Folder::new();
        let left = folder.0.join(random_name());
        fs::write(&left, "left").expect("written");
        let left_folder = folder.0.join(random_name());
        fs::create_dir_all(left_folder.join("in it")).expect("made");
        let others = [".devbay-1.part", ".devbay-000000000000000g.part", "devbay-0000000000000000.part"];
        others.iter().for_each(|name| fs::write(folder.0.join(name), "").expect("written"));
        let held = Part::file_beside(&folder.0.join("a")).expect("a new file");
        assert!(!left.exists() && !left_folder.exists());
        sweep(&folder.0);
        assert!(held.path.exists());
        assert!(others.iter().all(|name| folder.0.join(name).exists()));
    }

    #[cfg(unix)]
    #[test]
    fn permissions_stay() {
        use std::os::unix::fs::PermissionsExt;
        let folder = Folder::new();
        let path = folder.0.join("a");
        fs::write(&path, "secret").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
        write_file(&path, |file| file.write_all(b"new")).expect("written");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn folders_too() {
        let folder = Folder::new();
        let path = folder.0.join("made");
        write_folder(&path, |part| fs::write(part.join("a"), "1")).expect("made");
        assert_eq!(folder.names(), ["made"]);
        let failed = write_folder(&path, |part| fs::write(part.join("a"), "2"));
        failed.expect_err("there is something");
        assert_eq!(
            (fs::read(path.join("a")).expect("there"), folder.names()),
            (b"1".to_vec(), vec!["made".to_owned()])
        );
    }

    /// A Ctrl-C between the last file and the move.
    #[test]
    fn a_folder_that_is_being_removed_does_not_come_to_its_place() {
        let folder = Folder::new();
        let path = folder.0.join("made");
        let (filled, is_filled) = std::sync::mpsc::channel();
        let (go, may_go) = std::sync::mpsc::channel();
        let to = &path;
        std::thread::scope(|scope| {
            let writer = scope.spawn(move || {
                write_folder(to, |part| {
                    fs::write(part.join("a"), "1")?;
                    fs::write(part.join("b"), "2")?;
                    filled.send(part.to_owned()).expect("the test receives it");
                    may_go.recv().map_err(io::Error::other)
                })
            });
            let part = is_filled.recv().expect("the writer sends it");
            let removing = unfinished();
            go.send(()).expect("the writer receives it");
            fs::remove_file(part.join("a")).expect("removed");
            // Long enough for a move that does not wait.
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!path.exists(), "half of it was moved");
            remove(&part);
            drop(removing);
            writer.join().expect("no panic").expect_err("there is nothing to move");
        });
        assert!(folder.names().is_empty(), "{:?}", folder.names());
    }

    #[test]
    fn names_are_not_those_of_others() {
        let names: BTreeSet<String> = (0..1000).map(|_| random_name()).collect();
        assert_eq!(names.len(), 1000);
        assert!(names.iter().all(|name| is_temporary(name)));
    }
}
