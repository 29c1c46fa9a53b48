//! Files that are there whole or not at all.

use std::io::Result;
use std::path::Path;

/// Writes a file beside its place and moves it there when it is whole: who ends the process finds all of it or nothing.
///
/// # Errors
/// What `write`, which is given the path to write to, and the system say.
pub fn write_whole(path: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    // What is no plain file, such as a pipe or a link, is written where it is.
    if path.symlink_metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return write(path);
    }
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let written = write(&part).and_then(|()| std::fs::rename(&part, path));
    if written.is_err() {
        // Perhaps it was never made.
        let _ = std::fs::remove_file(&part);
    }
    written
}
