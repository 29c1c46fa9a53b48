//! Writes files atomically, wherever the user's path leads.
//!
//! | at the path | action |
//! | --- | --- |
//! | nothing, or a file | a new file takes its place |
//! | a link, even a dangling one | the same at its target; the link stays |
//! | a pipe, a terminal, another character device, an open file by `/dev/stdout` or `/proc` | written to once all is ready |
//! | a folder, a socket, a block device | refused |
//!
//! A file is never overwritten in place: other processes may have it mapped.

use devbay_plugin_api::sdk::whole_file;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Result, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Maximum number of links to follow, as on Linux.
const LINKS_MAX: usize = 40;

/// Writes a file atomically. `write` gets a new, empty file in which it may seek.
///
/// # Errors
/// Errors of `write` and the system; the previous file is then unchanged.
pub fn write_whole(path: &Path, write: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    match Destination::of(path)? {
        Destination::File(place) => whole_file::write_file(&place, write),
        Destination::Stream => {
            // Spool into an unnamed file first, so that readers get all of the content or none.
            let mut spool = tempfile::tempfile()?;
            write(&mut spool)?;
            spool.seek(SeekFrom::Start(0))?;
            let mut stream = open_stream(path)?;
            io::copy(&mut spool, &mut stream)?;
            Ok(())
        }
    }
}

/// Writes given content as [`write_whole`] does.
///
/// # Errors
/// As [`write_whole`].
pub fn write_bytes(path: &Path, content: &[u8]) -> Result<()> {
    write_whole(path, |file| io::Write::write_all(file, content))
}

/// Destination of a path.
enum Destination {
    /// An existing or new file here.
    File(PathBuf),
    /// A destination that takes bytes in sequence.
    Stream,
}

impl Destination {
    fn of(path: &Path) -> Result<Self> {
        let about = match fs::metadata(path) {
            Ok(about) => Some(about),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        match about {
            Some(about) if about.is_dir() => Err(ErrorKind::IsADirectory.into()),
            Some(about) if is_stream(&about) => Ok(Self::Stream),
            Some(about) if !about.is_file() => {
                Err(io::Error::new(ErrorKind::InvalidInput, "it is a socket or a block device, not a file"))
            }
            _ => match behind_links(path)? {
                Some(place) => Ok(Self::File(place)),
                None => Ok(Self::Stream),
            },
        }
    }
}

fn is_stream(about: &Metadata) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        about.file_type().is_fifo() || about.file_type().is_char_device()
    }
    #[cfg(not(unix))]
    {
        let _ = about;
        false
    }
}

/// Returns the path that links lead to; None for an open file of a process, which has no path that could be replaced.
fn behind_links(path: &Path) -> Result<Option<PathBuf>> {
    let mut place = path.to_owned();
    for _ in 0..LINKS_MAX {
        if !place.symlink_metadata().is_ok_and(|about| about.is_symlink()) {
            return Ok(Some(place));
        }
        let folder = place.parent().unwrap_or(Path::new(""));
        // `/dev/stdout` and `/dev/fd/1` lead into `/proc`.
        if folder.starts_with("/proc") {
            return Ok(None);
        }
        place = match folder.as_os_str().is_empty() {
            true => fs::read_link(&place)?,
            false => folder.join(fs::read_link(&place)?),
        };
    }
    Err(io::Error::new(ErrorKind::InvalidInput, "too many links, or links in a circle"))
}

/// Opens a pipe or a device for writing. Waits for a reader of the pipe, for a limited time.
#[cfg(unix)]
fn open_stream(path: &Path) -> Result<File> {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    use std::os::unix::fs::OpenOptionsExt;
    use std::time::{Duration, Instant};
    const READER_LIMIT: Duration = Duration::from_secs(10);
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let deadline = Instant::now() + READER_LIMIT;
    let stream = loop {
        match fs::OpenOptions::new().append(true).custom_flags(flags).open(path) {
            // The pipe has no reader (open(2)).
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => {
                if Instant::now() >= deadline {
                    let text = "it is a pipe, and no process has read from it for ten seconds";
                    return Err(io::Error::new(ErrorKind::TimedOut, text));
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            opened => break opened?,
        }
    };
    // From here on, writes wait for a slow reader.
    fcntl_setfl(&stream, fcntl_getfl(&stream)? - OFlags::NONBLOCK)?;
    Ok(stream)
}

#[cfg(not(unix))]
fn open_stream(path: &Path) -> Result<File> {
    fs::OpenOptions::new().append(true).open(path)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("a folder")
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("a folder").flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_link_stays_and_what_it_points_at_is_replaced() {
        let folder = folder();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("deep")).expect("made");
        fs::write(at("deep/real"), "before").expect("written");
        // A process that has the file open or mapped keeps the old content.
        let mut mapped = File::open(at("deep/real")).expect("there");
        symlink("deep/real", at("one")).expect("linked");
        symlink("one", at("two")).expect("linked");
        symlink("deep/new", at("dangling")).expect("linked");
        write_bytes(&at("two"), b"after").expect("written");
        write_bytes(&at("dangling"), b"new").expect("written");
        assert_eq!(fs::read(at("deep/real")).expect("there"), b"after");
        assert_eq!(fs::read(at("deep/new")).expect("there"), b"new");
        assert!(["one", "two", "dangling"].iter().all(|name| at(name).is_symlink()));
        let mut kept = String::new();
        mapped.read_to_string(&mut kept).expect("read");
        assert_eq!(kept, "before");
        symlink("circle", at("circle")).expect("linked");
        write_bytes(&at("circle"), b"x").expect_err("a circle");
        assert_eq!(names(folder.path()), ["circle", "dangling", "deep", "one", "two"]);
    }

    #[test]
    fn a_pipe_is_written_to() {
        let folder = folder();
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .expect("a pipe");
        let reading = pipe.clone();
        let reader = std::thread::spawn(move || fs::read(reading).expect("read"));
        write_bytes(&pipe, b"through").expect("written");
        assert_eq!(reader.join().expect("it ended"), b"through");
        assert_eq!(names(folder.path()), ["pipe"]);
    }

    #[test]
    fn devices_are_written_to_and_folders_and_sockets_are_not() {
        write_bytes(Path::new("/dev/null"), b"x").expect("written");
        assert!(!Path::new("/dev/null").metadata().expect("there").is_file());
        let folder = folder();
        write_bytes(folder.path(), b"x").expect_err("a folder");
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
        write_bytes(&socket, b"x").expect_err("a socket");
        write_bytes(Path::new(""), b"x").expect_err("no name");
        assert_eq!(names(folder.path()), ["socket"]);
    }

    #[test]
    fn an_open_file_is_written_to_by_its_number() {
        use std::os::fd::AsRawFd;
        let folder = folder();
        let path = folder.path().join("file");
        fs::write(&path, "first ").expect("written");
        let file = File::open(&path).expect("there");
        write_bytes(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())), b"second").expect("written");
        assert_eq!(fs::read(&path).expect("there"), b"first second");
    }
}
