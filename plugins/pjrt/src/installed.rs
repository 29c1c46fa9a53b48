//! PJRT libraries of Python packages that are installed for JAX, found without running Python.
//!
//! JAX imports the modules of the namespace package `jax_plugins` and those that packages name under the entry point
//! `jax_plugins`; each tells it a library. What a module would tell cannot be known without running it, so the libraries
//! of a module are the shared objects in its folder that export `GetPjrtApi`. Their names are those of the entry points.
//! libtpu has no entry point, JAX knows it by its package; so do we, as `tpu`.
//!
//! Left out on purpose: `.pth` files, editable installs, and the system's own Python, which is asked for with the option
//! `site_packages`.

use crate::find::{Named, Variable};
use object::read::{NameOrOrdinal, Object, ReadCache};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Folders below a package's own that are looked through, and files in all: packages hold headers, kernels and tools.
const DEPTH_MAX: usize = 4;
const N_FILES_MAX: usize = 20_000;
/// Largest `entry_points.txt` that is read.
const ENTRY_POINTS_SIZE_MAX: u64 = 1 << 20;

/// Folders of Python packages: those of the option `site_packages`, separated as in `PATH`, none for `off`; else the one that
/// this plugin's own library is installed in, those of the environments in `VIRTUAL_ENV` and `CONDA_PREFIX`, and the entries of
/// `PYTHONPATH`.
pub fn folders(option: &str, own: Option<&Path>, variable: Variable<'_>) -> Vec<PathBuf> {
    let is_given = |path: &PathBuf| !path.as_os_str().is_empty();
    match option {
        "off" => return Vec::new(),
        "" => {}
        given => return std::env::split_paths(given).filter(is_given).collect(),
    }
    let mut folders: Vec<PathBuf> = own.and_then(packages_around).into_iter().map(Path::to_owned).collect();
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        if let Some(prefix) = variable(name).map(PathBuf::from).filter(is_given) {
            folders.extend(of_environment(&prefix));
        }
    }
    if let Some(path) = variable("PYTHONPATH") {
        folders.extend(std::env::split_paths(&path).filter(is_given));
    }
    folders
}

/// The folder of packages that a package's library is in: `site-packages/PACKAGE/LIBRARY`.
pub fn packages_around(library: &Path) -> Option<&Path> {
    let folder = library.ancestors().nth(2)?;
    // Debian's own Python has the second one.
    (folder.ends_with("site-packages") || folder.ends_with("dist-packages")).then_some(folder)
}

/// `lib/python3.*/site-packages` of an environment, or on Windows `Lib/site-packages`.
fn of_environment(prefix: &Path) -> Vec<PathBuf> {
    if cfg!(windows) {
        return vec![prefix.join("Lib/site-packages")];
    }
    let is_python =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"));
    let pythons = list(&prefix.join("lib")).into_iter().filter(is_python);
    pythons.map(|python| python.join("site-packages")).collect()
}

/// The libraries of a folder of packages, by name. A folder that is not there has none.
pub fn libraries(site_packages: &Path) -> Vec<Named> {
    // By their folder, so that a package that is found both ways is one.
    let mut packages: BTreeMap<PathBuf, String> = BTreeMap::new();
    for info in list(site_packages) {
        if info.extension().is_some_and(|extension| extension == "dist-info" || extension == "egg-info") {
            for (name, module) in entry_points(&info.join("entry_points.txt")) {
                packages.entry(package_of(site_packages, &module)).or_insert(name);
            }
        }
    }
    let namespace = list(&site_packages.join("jax_plugins")).into_iter();
    let tpu = site_packages.join("libtpu");
    for (folder, name) in namespace.map(|folder| (folder, None)).chain([(tpu, Some("tpu"))]) {
        let own = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        packages.entry(folder).or_insert_with(|| name.map_or(own, str::to_owned));
    }
    let mut found = Vec::new();
    for (folder, name) in packages {
        for path in shared_objects(&folder) {
            if exports_pjrt(&path) {
                found.push(Named { by_person: false, ..Named::new(name.clone(), path) });
            }
        }
    }
    found.sort_by(|a, b| (&a.name, &a.path).cmp(&(&b.name, &b.path)));
    found
}

/// The folder of a module: its own, or of one that is a file its package's.
fn package_of(site_packages: &Path, module: &str) -> PathBuf {
    let own = module.split('.').fold(site_packages.to_owned(), |path, part| path.join(part));
    match own.parent() {
        // The namespace and the folder of all packages hold files that are not the module's.
        Some(package) if !own.is_dir() && package != site_packages && !package.ends_with("jax_plugins") => {
            package.to_owned()
        }
        _ => own,
    }
}

/// Name and module of each entry under `[jax_plugins]`.
fn entry_points(path: &Path) -> Vec<(String, String)> {
    let is_read = std::fs::metadata(path).is_ok_and(|about| about.len() <= ENTRY_POINTS_SIZE_MAX);
    let text = if is_read { std::fs::read_to_string(path).unwrap_or_default() } else { String::new() };
    let mut entries = Vec::new();
    let mut section = "";
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name.trim();
        } else if let (Some((name, module)), "jax_plugins") = (line.split_once('='), section) {
            // `name = package.module:attribute [extra]`
            let module = module.split([':', '[']).next().unwrap_or_default().trim();
            let is_module = !module.is_empty() && module.split('.').all(is_identifier);
            if is_module && !name.trim().is_empty() && !line.starts_with(['#', ';']) {
                entries.push((name.trim().to_owned(), module.to_owned()));
            }
        }
    }
    entries
}

/// Returns whether a word can be a module's name, so that it cannot lead out of the folder of packages.
fn is_identifier(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
}

/// The shared objects of a package, by path.
fn shared_objects(package: &Path) -> Vec<PathBuf> {
    let (mut found, mut n_files) = (Vec::new(), 0);
    let mut folders = vec![(package.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for path in list(&folder) {
            n_files += 1;
            if n_files > N_FILES_MAX {
                return found;
            }
            // Links to folders are not followed: they could lead round.
            let is_folder = path.symlink_metadata().is_ok_and(|about| about.is_dir());
            if is_folder && depth < DEPTH_MAX {
                folders.push((path, depth + 1));
            } else if !is_folder && is_shared_object(&path) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// `x.so`, `x.so.1`, `x.dylib`, `x.dll`.
fn is_shared_object(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    [".so", ".dylib", ".dll"].iter().any(|end| name.ends_with(end)) || name.contains(".so.")
}

/// Returns whether a library exports `GetPjrtApi`; only its symbols are read. False for what is no library.
fn exports_pjrt(path: &Path) -> bool {
    // A pipe with such a name would hold the reader up.
    if !path.metadata().is_ok_and(|about| about.is_file()) {
        return false;
    }
    let Ok(file) = File::open(path) else { return false };
    let cache = ReadCache::new(file);
    let Ok(library) = object::File::parse(&cache) else { return false };
    let Ok(exports) = library.exports() else { return false };
    // Mach-O has an underscore before C's names.
    exports
        .map_while(Result::ok)
        .any(|export| matches!(export.name(), NameOrOrdinal::Name(b"GetPjrtApi" | b"_GetPjrtApi")))
}

/// A folder's entries by path; none if it cannot be read.
fn list(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}
