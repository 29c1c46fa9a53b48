//! Opens files without ever blocking.
//!
//! Opening a pipe waits for a writer, reading a terminal waits for a person, and opening some devices has side effects. So
//! the path is checked first, then opened without blocking, and the open file is checked again.

use devbay_plugin_api::reserve;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Result};
use std::path::Path;

/// Opens a regular file for reading.
///
/// # Errors
/// Errors of the system; invalid input for anything but a regular file, naming its kind.
pub fn open_regular(path: &Path) -> Result<(File, Metadata)> {
    check_regular(&fs::metadata(path)?)?;
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        std::os::unix::fs::OpenOptionsExt::custom_flags(
            &mut options,
            (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32,
        );
    }
    let file = options.open(path)?;
    // Another file may have replaced it since the first check.
    let about = file.metadata()?;
    check_regular(&about)?;
    Ok((file, about))
}

/// Reads a regular file of at most `size_max` bytes.
///
/// # Errors
/// As [`open_regular`]; file too large, also if it grows while being read; out of memory.
pub fn read_regular(path: &Path, size_max: u64) -> Result<Vec<u8>> {
    let (file, about) = open_regular(path)?;
    read_open(file, about.len(), size_max)
}

/// Reads as [`read_regular`], for UTF-8.
///
/// # Errors
/// As [`read_regular`]; invalid data.
pub fn read_regular_text(path: &Path, size_max: u64) -> Result<String> {
    let (file, about) = open_regular(path)?;
    read_open_text(file, &about, size_max)
}

/// Reads as [`read_regular_text`], from an open file.
///
/// # Errors
/// As [`read_regular_text`].
pub fn read_open_text(file: File, about: &Metadata, size_max: u64) -> Result<String> {
    let text = String::from_utf8(read_open(file, about.len(), size_max)?);
    text.map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is no text in UTF-8"))
}

/// Reads an open file with an expected length of `len` bytes.
pub(crate) fn read_open(file: File, len: u64, size_max: u64) -> Result<Vec<u8>> {
    let too_large = |found: u64| {
        let text = format!("it has {found} bytes or more, and at most {size_max} are read");
        io::Error::new(ErrorKind::FileTooLarge, text)
    };
    if len > size_max {
        return Err(too_large(len));
    }
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let content = reserve::with_capacity(len, "the file's content");
    let mut content: Vec<u8> = content.map_err(|_| io::Error::from(ErrorKind::OutOfMemory))?;
    // One byte more detects growing files, and the system's files, which report no length.
    file.take(size_max.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > size_max {
        return Err(too_large(content.len() as u64));
    }
    Ok(content)
}

/// Fails unless the file is regular.
pub(crate) fn check_regular(about: &Metadata) -> Result<()> {
    if about.is_file() {
        return Ok(());
    }
    let text = format!("expected a file, found {}", kind_of(about));
    Err(io::Error::new(ErrorKind::InvalidInput, text))
}

fn kind_of(about: &Metadata) -> &'static str {
    if about.is_dir() {
        return "a folder";
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kind = about.file_type();
        if kind.is_fifo() {
            return "a pipe; write its output to a file first";
        }
        if kind.is_socket() {
            return "a socket";
        }
    }
    "a device"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, "12345").expect("written");
        assert_eq!(read_regular(&path, 5).expect("read"), b"12345");
        assert_eq!(read_regular(&path, 4).expect_err("too large").kind(), ErrorKind::FileTooLarge);
        let words = |path: &Path| open_regular(path).expect_err("no file").to_string();
        assert_eq!(words(folder.path()), "expected a file, found a folder");
        #[cfg(unix)]
        {
            let pipe = folder.path().join("pipe");
            rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0)
                .expect("a pipe");
            assert!(words(&pipe).starts_with("expected a file, found a pipe"));
            assert_eq!(words(Path::new("/dev/zero")), "expected a file, found a device");
            let socket = folder.path().join("socket");
            let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
            assert_eq!(words(&socket), "expected a file, found a socket");
            let link = folder.path().join("link");
            std::os::unix::fs::symlink("file", &link).expect("linked");
            assert_eq!(read_regular(&link, 5).expect("read"), b"12345");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_that_does_not_say_how_long_it_is_has_a_limit_too() {
        let path = Path::new("/proc/self/status");
        assert_eq!(read_regular(path, 10).expect_err("too large").kind(), ErrorKind::FileTooLarge);
        assert!(!read_regular_text(path, 1 << 20).expect("read").is_empty());
    }
}
