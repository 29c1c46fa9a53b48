//! The libraries that the plugin needs, found as the loader finds them and read, not loaded: those that are not there,
//! and symbols that none of them has.
//!
//! A symbol that is bound to a version was found in a library when the plugin was linked. What is left to look up are
//! symbols without one: the loader searches the libraries that the plugin needs, those that they need, and the process.
//! Of the process only the C library is taken for granted, so that a plugin may be linked without it.

use super::checks::{IMPORTS_UNRESOLVED, NEEDED_MISSING};
use super::image::{IDENT_SIZE, Image, is_covered};
use super::linking::driver_of;
use super::symbols::is_of_host;
use super::{Report, counted, few};
use object::elf;
use object::read::{ReadCache, ReadRef};
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Names of the C library, of which a machine has one.
const C_LIBRARIES: &[&str] = &["libc.so.6", "libc.musl-x86_64.so.1"];

/// Where loaders look besides what their configuration says.
const OWN_FOLDERS: &[&str] =
    &["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// Returns the folders of `/etc/ld.so.conf`, and the loader's own.
pub(super) fn folders_of_system() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    read_configuration(Path::new("/etc/ld.so.conf"), 0, &mut folders);
    folders.extend(OWN_FOLDERS.iter().map(PathBuf::from));
    folders
}

/// Adds the folders of a file as ldconfig(8) reads it. Patterns are `FOLDER/*ENDING`, as every system has them.
fn read_configuration(path: &Path, depth: usize, folders: &mut Vec<PathBuf>) {
    const DEPTH_MAX: usize = 8;
    let Ok(text) = std::fs::read_to_string(path) else {
        return;
    };
    for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
        let Some(pattern) = line.strip_prefix("include").filter(|rest| rest.starts_with([' ', '\t'])) else {
            if line.starts_with('/') {
                folders.push(line.into());
            }
            continue;
        };
        if depth == DEPTH_MAX {
            continue;
        }
        let pattern = path.parent().unwrap_or(Path::new("/")).join(pattern.trim());
        let name = pattern.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        match (name.strip_prefix('*'), pattern.parent().and_then(|folder| std::fs::read_dir(folder).ok())) {
            (Some(ending), Some(entries)) => {
                let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
                let mut files: Vec<_> =
                    files.filter(|file| file.to_string_lossy().ends_with(ending)).collect();
                files.sort();
                files.iter().for_each(|file| read_configuration(file, depth + 1, folders));
            }
            (Some(_), None) => {}
            (None, _) => read_configuration(&pattern, depth + 1, folders),
        }
    }
}

/// A library that is needed.
struct Needed {
    name: String,
    /// The library that needs it, if it is not the plugin.
    by: Option<String>,
    /// Search folders named by the library that needs it.
    folders: Vec<PathBuf>,
}

/// Knowledge of the libraries that the plugin needs, and of those that they need.
#[derive(Default)]
struct Known {
    /// Their exports.
    exports: HashSet<String>,
    /// Missing libraries, each with the library that needs it if it is not the plugin.
    missing: Vec<(String, Option<String>)>,
    /// Those whose exports are not known, and why.
    unread: Vec<String>,
}

pub(super) fn look(image: &Image<'_>, origin: Option<&Path>, folders: &[PathBuf], report: &mut Report) {
    let known = read_needed(image, origin, folders);
    for (name, by) in &known.missing {
        // A driver that is needed is a finding of its own, whether it is there or not.
        if driver_of(name).is_none() {
            let by = by.as_ref().map(|by| format!(", which {by} needs,")).unwrap_or_default();
            report.find(&NEEDED_MISSING, format!("{name}{by} is not found"));
        }
    }
    // Symbols that may be missing: weak ones may be absent, and the host's are a finding already.
    let wanted = image.imports().filter(|symbol| symbol.bind != elf::STB_WEAK && !symbol.is_versioned);
    let wanted =
        wanted.map(|symbol| symbol.name).filter(|name| !is_of_host(name) && !known.exports.contains(*name));
    let wanted: BTreeSet<&str> = wanted.collect();
    let wanted: Vec<String> = wanted.into_iter().map(str::to_owned).collect();
    if wanted.is_empty() {
        return;
    }
    let symbols = format!("{}: {}", counted(wanted.len(), "symbol"), few(&wanted));
    if known.unread.is_empty() {
        report.find(&IMPORTS_UNRESOLVED, format!("no needed library exports {symbols}"));
    } else {
        let unread = few(&known.unread);
        report.not_checked.push(format!("the origin of {symbols}; libraries with unknown exports: {unread}"));
    }
}

/// Goes through the libraries that are needed, each name once. It ends: the files of a machine have so many names.
fn read_needed(image: &Image<'_>, origin: Option<&Path>, folders: &[PathBuf]) -> Known {
    let mut known = Known::default();
    let mut queue = VecDeque::from(needed_by(image, origin, None));
    match C_LIBRARIES.iter().find(|name| find(name, &[], folders).is_some()) {
        Some(name) => queue.push_back(Needed { name: (*name).to_owned(), by: None, folders: Vec::new() }),
        None => known.unread.push("the C library, which is not found".to_owned()),
    }
    let mut seen = HashSet::new();
    while let Some(needed) = queue.pop_front() {
        if !seen.insert(needed.name.clone()) {
            continue;
        }
        let Some(path) = find(&needed.name, &needed.folders, folders) else {
            known.unread.push(format!("{}, which is not found", needed.name));
            known.missing.push((needed.name, needed.by));
            continue;
        };
        let cache = match File::open(&path) {
            Ok(file) => ReadCache::new(file),
            Err(error) => {
                known.unread.push(format!("{}: {error}", path.display()));
                continue;
            }
        };
        match Image::parse(&cache) {
            Ok(library) => {
                known.exports.extend(library.exports().map(|symbol| symbol.name.to_owned()));
                let folder = path.canonicalize().ok().and_then(|path| path.parent().map(Path::to_owned));
                queue.extend(needed_by(&library, folder.as_deref(), Some(&needed.name)));
            }
            Err(words) => known.unread.push(format!("{}: {words}", path.display())),
        }
    }
    known
}

/// Returns the libraries that a library needs, and the folders of its own in which they are looked for.
fn needed_by<'data, R: ReadRef<'data>>(
    image: &Image<'data, R>,
    origin: Option<&Path>,
    by: Option<&str>,
) -> Vec<Needed> {
    // A RUNPATH puts an RPATH out of force (ld.so(8)).
    let runpath: Vec<&str> = image.texts(elf::DT_RUNPATH).collect();
    let lists = if runpath.is_empty() { image.texts(elf::DT_RPATH).collect() } else { runpath };
    let origin = origin.map(|origin| origin.to_string_lossy().into_owned()).unwrap_or_default();
    let whole =
        |folder: &str| PathBuf::from(folder.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin));
    let folders: Vec<PathBuf> = lists.iter().flat_map(|list| list.split(':')).map(whole).collect();
    let needed =
        |name: &str| Needed { name: name.to_owned(), by: by.map(str::to_owned), folders: folders.clone() };
    image.texts(elf::DT_NEEDED).map(needed).collect()
}

/// Returns the library of a name that this machine's loader would take: the first that is one for x86-64.
fn find(name: &str, own: &[PathBuf], folders: &[PathBuf]) -> Option<PathBuf> {
    let fits = |path: &Path| {
        let mut ident = [0; IDENT_SIZE];
        File::open(path).and_then(|mut file| file.read_exact(&mut ident)).is_ok() && is_covered(&ident)
    };
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| fits(path));
    }
    let absolute = own.iter().chain(folders).filter(|folder| folder.is_absolute());
    absolute.map(|folder| folder.join(name)).find(|path| fits(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaders_configuration_is_read() {
        let folder = std::env::temp_dir().join(format!("devbay-lint-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("more.d")).unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        write(
            "main.conf",
            "# folders\n/first # here\n\ninclude more.d/*.conf\ninclude\tlast.conf\ninclude none.d/*\n",
        );
        write("more.d/b.conf", "/third\n");
        write("more.d/a.conf", "/second\ninclude ../main.conf\n");
        write("more.d/c.txt", "/never\n");
        write("last.conf", "/fourth\n");
        let mut folders = Vec::new();
        read_configuration(&folder.join("main.conf"), 0, &mut folders);
        std::fs::remove_dir_all(&folder).unwrap();
        // A file that includes itself is read again until it is too deep, and adds nothing new.
        let mut seen = HashSet::new();
        folders.retain(|folder| seen.insert(folder.clone()));
        let expected = ["/first", "/second", "/third", "/fourth"].map(PathBuf::from);
        assert_eq!(seen, expected.iter().cloned().collect());
        assert_eq!(folders[..2], expected[..2]);
    }
}
