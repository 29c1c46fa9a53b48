//! A file's bytes, mapped or copied.
//!
//! The unsafe calls are the mapping, and giving its pages back. The risk is that another process shortens the file: touching a
//! page beyond the new end kills the process (SIGBUS). Nothing prevents that portably, so the caller vouches for the file by
//! choosing [`Reading::Mapped`], and otherwise chooses [`Reading::Copied`]. On our side, the mapping is read-only and private,
//! only regular files are mapped, and every offset is checked against the mapping's own length before it is read.
//!
//! Pages of constants that no kernel reads in place are given back once the constants are packed or uploaded (docs/memory.md).
//! Bytes travel through decoders that know no mappings, so that a list of these finds the mapping of a tensor's bytes again.

use super::Reading;
use crate::file::{open_regular, read_open};
use bytes::Bytes;
use devbay_core::{Error, ErrorKind, Result, tensor};
use devbay_plugin_api::locks::lock;
use memmap2::Mmap;
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};

/// Mappings of files by the address of their first byte. Entries of mappings that are gone go when the next one comes.
static MAPPINGS: Mutex<BTreeMap<usize, Weak<Mmap>>> = Mutex::new(BTreeMap::new());

/// A mapping as the owner of [`Bytes`].
struct Mapping(Arc<Mmap>);

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Bytes of a model file or a data file, shared by tensors.
pub(crate) struct Shared {
    bytes: Bytes,
    /// The mapping that they are in, if they are in one.
    mapping: Option<Arc<Mmap>>,
}

impl Shared {
    /// Returns bytes as tensors share them.
    pub(crate) fn new(bytes: Bytes) -> Self {
        let start = bytes.as_ptr() as usize;
        let mapping = lock(&MAPPINGS).range(..=start).next_back().and_then(|(_, mapping)| mapping.upgrade());
        // A mapping that is alive shares its addresses with nothing else.
        let mapping = mapping.filter(|mapping| within(mapping, &bytes).is_some());
        Self { bytes, mapping }
    }
}

/// Returns the part of a mapping that bytes are, if they are one.
fn within(mapping: &Mmap, bytes: &[u8]) -> Option<Range<usize>> {
    let begin = (bytes.as_ptr() as usize).checked_sub(mapping.as_ptr() as usize)?;
    let end = begin.checked_add(bytes.len())?;
    (end <= mapping.len()).then_some(begin..end)
}

impl tensor::Bytes for Shared {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn is_of_file(&self) -> bool {
        true
    }

    fn release(&self, range: Range<usize>) {
        if let (Some(mapping), Some(bytes)) = (&self.mapping, self.bytes.get(range))
            && let Some(part) = within(mapping, bytes)
        {
            release(mapping, part);
        }
    }
}

/// Gives the whole pages of a part of a mapping back to the system.
#[cfg(unix)]
#[allow(unsafe_code, reason = "pages of mapped model files; the file's documentation has the rule")]
fn release(mapping: &Mmap, part: Range<usize>) {
    // The least page size: with larger pages, the first page of the part is given back whole.
    const PAGE: usize = 4096;
    let (begin, end) = (part.start.next_multiple_of(PAGE), part.end / PAGE * PAGE);
    if begin < end {
        // SAFETY: the mapping is read-only and private, so that its pages are those of the file. They stay mapped: the next
        // read, also of a slice that is borrowed now, finds the file's page again, whose content the caller of
        // `import::open` guarantees not to change.
        // A failure leaves the pages where they are.
        let _ =
            unsafe { mapping.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, begin, end - begin) };
    }
}

#[cfg(not(unix))]
fn release(_mapping: &Mmap, _part: Range<usize>) {}

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
    let mapping = Arc::new(unsafe { Mmap::map(file)? });
    let mut mappings = lock(&MAPPINGS);
    mappings.retain(|_, mapping| mapping.strong_count() > 0);
    mappings.insert(mapping.as_ptr() as usize, Arc::downgrade(&mapping));
    Ok(Bytes::from_owner(Mapping(mapping)))
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
