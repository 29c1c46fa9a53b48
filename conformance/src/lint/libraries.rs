//! The libraries that the plugin needs, found as the loader finds them and read, not loaded: those that are not there,
//! and symbols that none of them has.
//!
//! A symbol that is bound to a version was found in a library when the plugin was linked. What is left to look up are
//! symbols without one: the loader searches the libraries that the plugin needs, those that they need, and the process.
//! Of the process only the C library is taken for granted, so that a plugin may be linked without it.

use super::checks::{IMPORTS_UNRESOLVED, NEEDED_MISSING};
use super::image::Image;
use super::linking::driver_of;
use super::symbols::is_of_host;
use super::{Report, few};
use object::elf;
use object::read::{ReadCache, ReadRef};
use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Names of the C library, of which a machine has one.
const C_LIBRARIES: &[&str] = &["libc.so.6", "libc.musl-x86_64.so.1"];

/// Where loaders look besides what their configuration says.
const OWN_FOLDERS: &[&str] =
    &["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// Libraries that are read at most: more are a circle of names that never ends, or nothing that a plugin needs.
const LIBRARIES_MAX: usize = 1024;

/// The folders of `/etc/ld.so.conf`, and the loader's own.
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

/// What is known of a library that is needed.
struct Needed {
    name: String,
    /// Who needs it, if it is not the plugin.
    by: Option<String>,
    /// Folders that whoever needs it names.
    folders: Vec<PathBuf>,
}

pub(super) fn look(image: &Image<'_>, origin: Option<&Path>, folders: &[PathBuf], report: &mut Report) {
    // What the loader resolves without a library: weak symbols may be absent, and the host's are a finding already.
    let wanted = image.imports().filter(|symbol| symbol.bind != elf::STB_WEAK && !symbol.is_versioned);
    let mut wanted: HashSet<String> =
        wanted.filter(|symbol| !is_of_host(symbol.name)).map(|symbol| symbol.name.to_owned()).collect();
    let mut missing = Vec::new();
    read_needed(image, origin, folders, &mut |found| match found {
        Found::Library(exports) => exports.iter().for_each(|name| {
            wanted.remove(name);
        }),
        Found::Missing(needed) => missing.push(needed),
    });
    let mut wanted: Vec<String> = wanted.into_iter().collect();
    wanted.sort_unstable();
    let c_library = missing.iter().any(|needed| needed.name == C_LIBRARIES[0]);
    if missing.is_empty() && !wanted.is_empty() {
        let text =
            format!("{} symbols are imported that no needed library has: {}", wanted.len(), few(&wanted));
        report.find(&IMPORTS_UNRESOLVED, text);
    } else if !wanted.is_empty() {
        let absent = missing.iter().map(|needed| needed.name.clone()).collect::<Vec<_>>();
        report.not_checked.push(format!(
            "where {} imported symbols come from ({}): this machine has no {}",
            wanted.len(),
            few(&wanted),
            few(&absent)
        ));
    }
    // Drivers, and the C library of another kind of system, have a finding of their own or are no fault.
    for needed in missing.iter().filter(|needed| driver_of(&needed.name).is_none()) {
        if needed.by.is_none() && c_library && needed.name == C_LIBRARIES[0] && !needs(image, &needed.name) {
            continue;
        }
        let by = needed.by.as_ref().map(|by| format!(", which {by} needs")).unwrap_or_default();
        report.find(&NEEDED_MISSING, format!("{}{by} is not found", needed.name));
    }
}

fn needs(image: &Image<'_>, library: &str) -> bool {
    image.texts(elf::DT_NEEDED).any(|name| name == library)
}

enum Found {
    /// What a library that was found exports.
    Library(Vec<String>),
    /// A library that was not found.
    Missing(Needed),
}

/// Goes through the libraries that are needed, in the loader's order, each once.
fn read_needed(image: &Image<'_>, origin: Option<&Path>, folders: &[PathBuf], tell: &mut dyn FnMut(Found)) {
    let mut queue = needed_by(image, origin, None);
    let c_library =
        C_LIBRARIES.iter().find(|name| find(name, &[], folders).is_some()).unwrap_or(&C_LIBRARIES[0]);
    queue.push(Needed { name: (*c_library).to_owned(), by: None, folders: Vec::new() });
    let (mut next, mut seen) = (0, HashSet::new());
    while let Some(needed) = queue.get(next) {
        next += 1;
        if !seen.insert(needed.name.clone()) {
            continue;
        }
        let Some(path) = find(&needed.name, &needed.folders, folders) else {
            let Needed { name, by, folders } = needed;
            tell(Found::Missing(Needed { name: name.clone(), by: by.clone(), folders: folders.clone() }));
            continue;
        };
        let Ok(file) = File::open(&path) else {
            continue;
        };
        let cache = ReadCache::new(file);
        let Ok(library) = Image::parse(&cache) else {
            continue;
        };
        tell(Found::Library(library.exports().map(|symbol| symbol.name.to_owned()).collect()));
        if queue.len() < LIBRARIES_MAX {
            let folder = path.canonicalize().ok().and_then(|path| path.parent().map(Path::to_owned));
            let name = needed.name.clone();
            queue.extend(needed_by(&library, folder.as_deref(), Some(&name)));
        }
    }
}

/// What a library needs, and in which folders of its own it is looked for.
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

/// The library of a name that this machine's loader would take: the first that is one for x86-64.
fn find(name: &str, own: &[PathBuf], folders: &[PathBuf]) -> Option<PathBuf> {
    let fits = |path: &Path| {
        path.is_file() && File::open(path).is_ok_and(|file| Image::parse(&ReadCache::new(file)).is_ok())
    };
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| fits(path));
    }
    let absolute = own.iter().chain(folders).filter(|folder| folder.is_absolute());
    absolute.map(|folder| folder.join(name)).find(|path| fits(path))
}
