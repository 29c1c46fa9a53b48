//! A file's bytes, mapped or copied.
//!
//! The one unsafe call is the mapping. What can go wrong with it is that another process shortens the file:
//! touching a page behind the new end kills the process (SIGBUS). Nothing prevents that portably, so it is
//! a promise that the caller makes by choosing [`Reading::Mapped`]; who cannot make it chooses
//! [`Reading::Copied`]. What we do: the mapping is read-only and private, only regular files are mapped, and
//! no byte is read whose offset was not checked against the mapping's own length.

use super::Reading;
use bytes::Bytes;
use devbay_core::{Error, ErrorKind, Result, tensor};
use devbay_plugin_api::reserve;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

/// Bytes of a model's file or of a data file, which tensors share.
pub(crate) struct Shared(pub Bytes);

impl tensor::Bytes for Shared {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn is_of_file(&self) -> bool {
        true
    }
}

/// The content of a regular file.
pub(crate) fn read(path: &Path, reading: Reading) -> Result<Bytes> {
    let failed =
        |what: &str, cause: std::io::Error| Error::new(ErrorKind::of_io(&cause), what).because(cause);
    // Asked before opening, because opening a pipe waits for a writer.
    let metadata = fs::metadata(path).map_err(|cause| failed("cannot be read", cause))?;
    if !metadata.is_file() {
        return Err(Error::new(ErrorKind::Io, "expected a file, found a folder or a device"));
    }
    let mut file = File::open(path).map_err(|cause| failed("cannot be opened", cause))?;
    if metadata.len() == 0 {
        return Ok(Bytes::new());
    }
    match reading {
        Reading::Mapped => map(&file).map_err(|cause| failed("cannot be mapped", cause)),
        Reading::Copied => {
            let len = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
            let mut content = reserve::with_capacity(len, "the file's content")?;
            file.read_to_end(&mut content).map_err(|cause| failed("cannot be read", cause))?;
            Ok(content.into())
        }
    }
}

#[allow(unsafe_code, reason = "the mapping of model files; the file's documentation has the rule")]
fn map(file: &File) -> std::io::Result<Bytes> {
    // SAFETY: the caller of `import::open` promises that the file keeps its length and content while it is
    // mapped, which `Reading::Mapped` says.
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
        assert_eq!(error.text(), "expected a file, found a folder or a device");
    }

    #[test]
    fn both_readings_give_the_same() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let expected = fs::read(path).unwrap();
        for reading in [Reading::Mapped, Reading::Copied] {
            assert_eq!(read(path, reading).unwrap(), expected);
        }
    }
}
