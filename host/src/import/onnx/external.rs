//! Tensors' content in files beside the model.
//!
//! A model says which file, so it is checked like a request from a stranger: only regular files in the
//! model's folder or below it, also after symbolic links are followed. Each file is mapped once.

use crate::import::{Reading, file};
use bytes::Bytes;
use devbay_core::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Component, Path, PathBuf};

use super::proto::StringStringEntryProto;

/// The data files of one model.
pub(super) struct External<'m> {
    folder: Option<&'m Path>,
    reading: Reading,
    /// By what the model calls them.
    files: HashMap<&'m str, Bytes>,
    /// How many bytes may still be copied out of them because they are not aligned: tensors that do not
    /// overlap need each byte once, and a few bytes of file that stand for a lot of memory are an attack.
    copies_left: usize,
}

impl<'m> External<'m> {
    pub(super) fn new(folder: Option<&'m Path>, reading: Reading) -> Self {
        Self { folder, reading, files: HashMap::new(), copies_left: 0 }
    }

    /// The bytes that a tensor's `external_data` names.
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

    /// Takes note that so many bytes are going to be copied.
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
                let path = locate(folder, location)?;
                let bytes = file::read(&path, self.reading).map_err(|error| error.in_file(path.display()))?;
                self.copies_left = self.copies_left.saturating_add(bytes.len());
                Ok(vacant.insert(bytes).clone())
            }
        }
    }
}

/// The path of a data file, if it is in `folder`.
fn locate(folder: &Path, location: &str) -> Result<PathBuf> {
    let refused = |why: &str| {
        invalid(format!(
            "expected external data in the model's folder, found {location:?}, {why}; copy the file there"
        ))
    };
    let relative = Path::new(location);
    let plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if location.is_empty() || location.contains('\0') || !relative.components().all(plain) {
        return Err(refused("which is absolute or leads upwards"));
    }
    let path = folder.join(relative);
    let resolve = |path: &Path| {
        path.canonicalize().map_err(|cause| {
            Error::new(ErrorKind::Io, "cannot be found").because(cause).in_file(path.display())
        })
    };
    let resolved = resolve(&path)?;
    if !resolved.starts_with(resolve(folder)?) {
        return Err(refused("a link that leads out of it"));
    }
    Ok(resolved)
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidModel, text)
}
