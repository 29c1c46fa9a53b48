//! A file's bytes, mapped or copied.
//!
//! The one unsafe call is the mapping. Its risk is that another process shortens the file: touching a page beyond the new
//! end kills the process (SIGBUS). Nothing prevents that portably, so the caller vouches for the file by choosing
//! [`Reading::Mapped`], and otherwise chooses [`Reading::Copied`]. On our side, the mapping is read-only and private, only
//! regular files are mapped, and every offset is checked against the mapping's own length before it is read.

use super::Reading;
use crate::file::{open_regular, read_open};
use bytes::Bytes;
use devbay_core::{Error, ErrorKind, Result, tensor};
use std::fs::{File, Metadata};
use std::path::Path;

/// Bytes of a model file or a data file, shared by tensors.
pub(crate) struct Shared(pub Bytes);

impl tensor::Bytes for Shared {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn is_of_file(&self) -> bool {
        true
    }
}

/// Reads the content of a regular file.
pub(crate) fn read(path: &Path, reading: Reading) -> Result<Bytes> {
    let (file, about) = open_regular(path).map_err(|cause| failed("cannot be opened", cause))?;
    read_opened(file, &about, reading)
}

/// Reads the content of an open regular file.
pub(crate) fn read_opened(file: File, about: &Metadata, reading: Reading) -> Result<Bytes> {
    if about.len() == 0 {
        return Ok(Bytes::new());
    }
    match reading {
        Reading::Mapped => map(&file).map_err(|cause| failed("cannot be mapped", cause)),
        Reading::Copied => {
            // Read exactly the length at opening: a file that grows was incomplete.
            let content = read_open(file, about.len(), about.len());
            Ok(content.map_err(|cause| failed("cannot be read", cause))?.into())
        }
    }
}

fn failed(what: &str, cause: std::io::Error) -> Error {
    if cause.kind() == std::io::ErrorKind::OutOfMemory {
        return Error::new(ErrorKind::OutOfMemory, "the file is larger than memory").because(cause);
    }
    Error::new(ErrorKind::Io, format!("{what}: {cause}")).because(cause)
}

#[allow(unsafe_code, reason = "the mapping of model files; the file's documentation has the rule")]
fn map(file: &File) -> std::io::Result<Bytes> {
    // SAFETY: by choosing `Reading::Mapped`, the caller of `import::open` guarantees that the file keeps its length and
    // content while it is mapped.
    let map = unsafe { memmap2::Mmap::map(file)? };
    Ok(Bytes::from_owner(map))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files() {
        let error = read(Path::new("/nonexistent/model.onnx"), Reading::Mapped).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        let error = read(&std::env::temp_dir(), Reading::Mapped).unwrap_err();
        assert_eq!(error.text(), "cannot be opened: expected a file, found a folder");
    }

    #[test]
    fn both_readings_give_the_same() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let expected = std::fs::read(path).unwrap();
        for reading in [Reading::Mapped, Reading::Copied] {
            assert_eq!(read(path, reading).unwrap(), expected);
        }
    }
}
