//! Tensors' content in files beside the model.
//!
//! The model chooses the file, so it is opened with the checks of [`crate::file`]. Each file is mapped once.

use crate::file::{Outside, open_beside};
use crate::import::{Reading, file};
use bytes::Bytes;
use devbay_core::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use super::proto::StringStringEntryProto;

/// The data files of one model.
pub(super) struct External<'m> {
    folder: Option<&'m Path>,
    reading: Reading,
    /// Files by the model's names for them.
    files: HashMap<&'m str, Bytes>,
    /// Number of unaligned bytes that may still be copied out of them. Tensors that do not overlap need each byte once; a
    /// small file that expands to a lot of memory is an attack.
    copies_left: usize,
}

impl<'m> External<'m> {
    pub(super) fn new(folder: Option<&'m Path>, reading: Reading) -> Self {
        Self { folder, reading, files: HashMap::new(), copies_left: 0 }
    }

    /// Returns the bytes that a tensor's `external_data` refers to.
    pub(super) fn bytes(&mut self, entries: &'m [StringStringEntryProto]) -> Result<Bytes> {
        let find = |key: &str| {
            let mut found = entries.iter().filter(|entry| entry.key() == key).map(|entry| entry.value());
            (found.next(), found.next())
        };
        let number = |key: &str| match find(key) {
            (None, _) => Ok(None),
            (Some(text), None) => text.parse::<usize>().map(Some).map_err(|_| {
                invalid(format!("expected a number as the {key} of external data, found {text:?}"))
            }),
            _ => Err(invalid(format!("expected one {key} of external data, found several"))),
        };
        let (Some(location), None) = find("location") else {
            return Err(invalid("expected one location of external data"));
        };
        let offset = number("offset")?.unwrap_or(0);
        let length = number("length")?;
        let file = self.file(location)?;
        let end = match length {
            Some(length) => offset.checked_add(length),
            None => Some(file.len()),
        };
        match end {
            Some(end) if offset <= end && end <= file.len() => Ok(file.slice(offset..end)),
            _ => {
                let length = length.map_or_else(|| "to the end".to_owned(), |n| format!("{n} bytes"));
                Err(invalid(format!(
                    "expected {length} from byte {offset} of {location:?}, found a file of {} bytes",
                    file.len()
                )))
            }
        }
    }

    /// Charges a copy of `size` bytes to the limit.
    pub(super) fn charge_copy(&mut self, size: usize) -> Result<()> {
        self.copies_left = self.copies_left.checked_sub(size).ok_or_else(|| {
            let text = "expected external tensors that do not overlap, found more bytes than the files have";
            Error::new(ErrorKind::UnsupportedModel, text)
        })?;
        Ok(())
    }

    fn file(&mut self, location: &'m str) -> Result<Bytes> {
        match self.files.entry(location) {
            Entry::Occupied(file) => Ok(file.get().clone()),
            Entry::Vacant(vacant) => {
                let folder = self.folder.ok_or_else(|| {
                    let text = format!(
                        "the model keeps data in {location:?}, and the folder is not known; open it by its path"
                    );
                    Error::new(ErrorKind::UnsupportedModel, text)
                })?;
                let bytes = read(folder, location, self.reading)?;
                self.copies_left = self.copies_left.saturating_add(bytes.len());
                Ok(vacant.insert(bytes).clone())
            }
        }
    }
}

/// Reads the content of a data file, if it is in `folder`.
fn read(folder: &Path, location: &str, reading: Reading) -> Result<Bytes> {
    match open_beside(folder, Path::new(location)) {
        Ok((opened, about, path)) => {
            file::read_opened(opened, &about, reading).map_err(|error| error.in_file(path.display()))
        }
        Err(Outside::Io(path, cause)) => {
            let text = match cause.kind() {
                std::io::ErrorKind::NotFound => "cannot be found".to_owned(),
                _ => format!("cannot be opened: {cause}"),
            };
            Err(Error::new(ErrorKind::Io, text).because(cause).in_file(path.display()))
        }
        Err(why) => Err(invalid(format!(
            "expected external data in the model's folder, found {location:?}, {why}; copy the file there"
        ))),
    }
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidModel, text)
}
