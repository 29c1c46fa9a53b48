//! Files that a model refers to: data, labels, preprocessing.
//!
//! A name comes from a model, so it is checked like a request from a stranger. Only regular files in the model's folder or
//! below it are opened, also after following links. One layout of links is allowed: in Hugging Face's cache
//! `REPOSITORY/snapshots/REVISION/...` holds links to files in `REPOSITORY/blobs`, which is part of the same download.
//!
//! A hard link looks like the file itself, and an archive may hold one to any file of its file system. A file with several
//! names reveals it: all of its names must be in the folder.

use super::read::{check_regular, open_regular};
use std::fs::{File, Metadata};
use std::io;
use std::path::{Component, Path, PathBuf};

/// Maximum number of folder entries searched for the names of one file.
#[cfg(unix)]
const ENTRIES_MAX: usize = 100_000;

/// Reason for refusing a file that a model refers to.
#[derive(Debug, thiserror::Error)]
pub enum Outside {
    /// The name is absolute, leads upwards, or is empty.
    #[error("which is absolute or leads upwards")]
    Name,
    /// A symbolic link leads elsewhere.
    #[error("a link that leads out of it")]
    Link,
    /// The file has another name outside the folder.
    #[error("a file that has other names outside of it (hard links)")]
    HardLink,
    /// The system cannot open it, or it is not a regular file.
    #[error("{1}")]
    Io(PathBuf, #[source] io::Error),
}

/// Opens the regular file `name` in `folder` or below it; also returns its real path.
///
/// # Errors
/// [`Outside`].
pub fn open_beside(folder: &Path, name: &Path) -> Result<(File, Metadata, PathBuf), Outside> {
    let plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    let has_nul = name.as_os_str().as_encoded_bytes().contains(&0);
    if name.as_os_str().is_empty() || has_nul || !name.components().all(plain) {
        return Err(Outside::Name);
    }
    let folder = match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    };
    let path = folder.join(name);
    let resolve = |path: &Path| path.canonicalize().map_err(|cause| Outside::Io(path.to_owned(), cause));
    let (real, real_folder) = (resolve(&path)?, resolve(folder)?);
    let home = match real.starts_with(&real_folder) {
        true => real_folder,
        false => match blobs_of(&real_folder).filter(|blobs| real.parent() == Some(blobs)) {
            Some(blobs) => blobs,
            None => return Err(Outside::Link),
        },
    };
    let opened = open_regular(&real).and_then(|(file, about)| check_regular(&about).map(|()| (file, about)));
    let (file, about) = opened.map_err(|cause| Outside::Io(real.clone(), cause))?;
    if has_names_outside(&about, &home) {
        return Err(Outside::HardLink);
    }
    Ok((file, about, real))
}

/// Returns the folder `REPOSITORY/blobs` for a folder `REPOSITORY/snapshots/REVISION` or one below it.
fn blobs_of(folder: &Path) -> Option<PathBuf> {
    let revision = folder.ancestors().find(|at| at.parent().is_some_and(|up| up.ends_with("snapshots")))?;
    let blobs = revision.parent()?.parent()?.join("blobs");
    // A link named `blobs` could lead anywhere.
    blobs.symlink_metadata().is_ok_and(|about| about.is_dir()).then_some(blobs)
}

/// Returns whether a file has a name that is not below `home`.
#[cfg(unix)]
fn has_names_outside(about: &Metadata, home: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    if about.nlink() <= 1 {
        return false;
    }
    let (mut n_found, mut n_entries) = (0, 0);
    let mut folders = vec![home.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            n_entries += 1;
            if n_entries > ENTRIES_MAX {
                return true;
            }
            // This does not follow links.
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() {
                folders.push(entry.path());
            } else if (found.dev(), found.ino()) == (about.dev(), about.ino()) {
                n_found += 1;
            }
        }
    }
    n_found < about.nlink()
}

#[cfg(not(unix))]
fn has_names_outside(_about: &Metadata, _home: &Path) -> bool {
    false
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    /// Each kind of file, link and name beside a model.
    #[test]
    fn only_what_is_in_the_folder_is_opened() {
        let world = tempfile::tempdir().expect("a folder");
        let at = |name: &str| world.path().join(name);
        fs::create_dir_all(at("model/below")).expect("made");
        fs::write(at("secret"), "secret").expect("written");
        fs::write(at("model/data"), "data").expect("written");
        fs::write(at("model/below/data"), "below").expect("written");
        fs::hard_link(at("secret"), at("model/hard_out")).expect("linked");
        fs::hard_link(at("model/data"), at("model/below/hard_in")).expect("linked");
        symlink("../secret", at("model/link_out")).expect("linked");
        symlink(at("secret"), at("model/link_absolute")).expect("linked");
        symlink("below/data", at("model/link_in")).expect("linked");
        symlink("..", at("model/folder_out")).expect("linked");
        symlink("nothing", at("model/dangling")).expect("linked");
        rustix::fs::mknodat(rustix::fs::CWD, at("model/pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .expect("a pipe");
        let _listener = std::os::unix::net::UnixListener::bind(at("model/socket")).expect("a socket");
        symlink("/dev/zero", at("model/device")).expect("linked");
        let cases = [
            ("data", "data"),
            ("./below/data", "below"),
            ("below/hard_in", "data"),
            ("link_in", "below"),
            ("", "Name"),
            ("/etc/passwd", "Name"),
            ("../secret", "Name"),
            ("below/../data", "Name"),
            ("da\0ta", "Name"),
            ("hard_out", "HardLink"),
            ("link_out", "Link"),
            ("link_absolute", "Link"),
            ("folder_out/secret", "Link"),
            ("device", "Link"),
            ("dangling", "Io"),
            ("missing", "Io"),
            ("pipe", "Io"),
            ("socket", "Io"),
            ("below", "Io"),
        ];
        for (name, expected) in cases {
            let found = match open_beside(&at("model"), Path::new(name)) {
                Ok((mut file, ..)) => {
                    let mut text = String::new();
                    file.read_to_string(&mut text).expect("read");
                    text
                }
                Err(Outside::Name) => "Name".to_owned(),
                Err(Outside::Link) => "Link".to_owned(),
                Err(Outside::HardLink) => "HardLink".to_owned(),
                Err(Outside::Io(..)) => "Io".to_owned(),
            };
            assert_eq!(found, expected, "{name:?}");
        }
    }

    #[test]
    fn links_of_a_cache_lead_into_its_own_blobs() {
        let world = tempfile::tempdir().expect("a folder");
        let at = |name: &str| world.path().join(name);
        for repository in ["models--a--b", "models--c--d"] {
            fs::create_dir_all(at(repository).join("snapshots/1/onnx")).expect("made");
            fs::create_dir_all(at(repository).join("blobs")).expect("made");
            fs::write(at(repository).join("blobs/weights"), repository).expect("written");
        }
        let snapshot = at("models--a--b/snapshots/1");
        symlink("../../blobs/weights", snapshot.join("data")).expect("linked");
        symlink("../../../blobs/weights", snapshot.join("onnx/data")).expect("linked");
        symlink("../../../models--c--d/blobs/weights", snapshot.join("other")).expect("linked");
        symlink("../../refs", snapshot.join("refs")).expect("linked");
        fs::write(at("models--a--b/refs"), "main").expect("written");
        let open = |folder: &Path, name: &str| open_beside(folder, Path::new(name));
        for folder in [snapshot.clone(), snapshot.join("onnx")] {
            let (mut file, ..) = open(&folder, "data").expect("opened");
            let mut text = String::new();
            file.read_to_string(&mut text).expect("read");
            assert_eq!(text, "models--a--b");
        }
        assert!(matches!(open(&snapshot, "other"), Err(Outside::Link)));
        assert!(matches!(open(&snapshot, "refs"), Err(Outside::Link)));
    }
}
