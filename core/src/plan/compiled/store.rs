//! The folder in which compiled programs are kept between processes, a file for each.
//!
//! Files are written atomically ([`whole_file`]); several processes write the same content. The size of the folder is
//! limited; the oldest files are removed first.

use devbay_plugin_api::sdk::whole_file;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Bytes that the folder may hold.
const BYTES_MAX: u64 = 4 << 30;

/// A folder of programs.
pub struct ProgramStore {
    folder: PathBuf,
    bytes_max: u64,
}

impl ProgramStore {
    /// Returns the programs in a folder, which is made when the first is kept.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), bytes_max: BYTES_MAX }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(key).with_extension("program")
    }

    /// Returns the program kept under a key of hexadecimal digits.
    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        fs::read(self.path(key)).ok()
    }

    /// Forgets a program that is of no use any more.
    pub fn forget(&self, key: &str) {
        // An entry that cannot be removed is found useless again.
        let _ = fs::remove_file(self.path(key));
    }

    /// Keeps a program.
    ///
    /// # Errors
    /// Errors of the system; a program that cannot be kept is compiled again next time.
    pub fn put(&self, key: &str, program: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        self.make_room(program.len() as u64)?;
        whole_file::write_file(&self.path(key), |file| file.write_all(program))
    }

    /// Removes the oldest files until there is room for so many bytes more.
    fn make_room(&self, size: u64) -> io::Result<()> {
        let mut files: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let (path, about) = match entry.and_then(|entry| Ok((entry.path(), entry.metadata()?))) {
                Ok(found) => found,
                // Another process removed it.
                Err(_) => continue,
            };
            if about.is_file() {
                files.push((about.modified().unwrap_or(SystemTime::UNIX_EPOCH), about.len(), path));
            }
        }
        files.sort();
        let mut total: u64 = size + files.iter().map(|(_, size, _)| size).sum::<u64>();
        for (_, size, path) in files {
            if total <= self.bytes_max {
                break;
            }
            // As above.
            let _ = fs::remove_file(path);
            total -= size;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(name: &str, bytes_max: u64) -> ProgramStore {
        let folder = std::env::temp_dir().join(format!("devbay-programs-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        ProgramStore { folder, bytes_max }
    }

    #[test]
    fn what_was_kept_is_found_until_it_is_forgotten() {
        let store = store("kept", BYTES_MAX);
        assert_eq!(store.get("ab"), None);
        store.put("ab", b"one").expect("kept");
        store.put("ab", b"two").expect("kept");
        assert_eq!(store.get("ab").as_deref(), Some(&b"two"[..]));
        store.forget("ab");
        assert_eq!(store.get("ab"), None);
        fs::remove_dir_all(&store.folder).expect("removed");
    }

    #[test]
    fn the_oldest_go_first_when_there_is_no_room() {
        let store = store("room", 25);
        for (i, key) in ["aa", "bb", "cc"].into_iter().enumerate() {
            store.put(key, &[0; 10]).expect("kept");
            let file = fs::File::options().write(true).open(store.path(key)).expect("there");
            let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(i as u64 + 1);
            file.set_modified(at).expect("set");
        }
        let left: Vec<bool> = ["aa", "bb", "cc"].iter().map(|key| store.get(key).is_some()).collect();
        assert_eq!(left, [false, true, true]);
        fs::remove_dir_all(&store.folder).expect("removed");
    }

    #[test]
    fn a_folder_that_cannot_be_is_an_error() {
        let file = std::env::temp_dir().join(format!("devbay-programs-{}-file", std::process::id()));
        fs::write(&file, b"").expect("written");
        assert!(ProgramStore::new(&file.join("programs")).put("aa", b"x").is_err());
        fs::remove_file(&file).expect("removed");
    }
}
