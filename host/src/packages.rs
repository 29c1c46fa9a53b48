//! Plugins in installed Python packages (B25).
//!
//! A package offers plugins through entry points of the group `devbay.plugins`, a table in its metadata:
//!
//! ```ini
//! [devbay.plugins]
//! my-npu = devbay_plugin_my_npu
//! ```
//!
//! The entry's name is the plugin's. Its value names a module of the package: a folder with the manifest `my-npu.json`, or with
//! a library alone. So a plugin is found by files, and nothing of its package is imported. Python tells its packages by
//! `importlib.metadata`; the command reads the folders of the Python that it was installed into.

use crate::discover::elevated;
use crate::file::read_regular;
use devbay_core::about::{Refusal, RefusalKind};
use std::path::{Path, PathBuf};

/// Group of the entry points.
const GROUP: &str = "devbay.plugins";

/// Maximum size of a file of a package's metadata.
const SIZE_MAX: u64 = 1 << 20;

/// The metadata of an installed Python package.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PythonPackage {
    /// Name and version, for reports.
    pub title: String,
    /// Content of its `entry_points.txt`.
    pub entry_points: String,
    /// Folders that its modules may be in, highest precedence first.
    pub folders: Vec<PathBuf>,
}

/// A plugin that a package offers.
pub(crate) struct Offer {
    /// The plugin's name; None if the entry is not readable.
    pub name: Option<String>,
    /// Its manifest or library.
    pub file: Result<PathBuf, Refusal>,
}

impl PythonPackage {
    /// Returns the packages with plugins of the Python environment that a program was installed into, as the wheel installs the
    /// command: beside the package `devbay` itself. None for other programs, and for elevated processes.
    pub fn installed_with(program: &Path) -> Vec<Self> {
        let prefix = program.canonicalize().ok().and_then(|path| Some(path.parent()?.parent()?.to_owned()));
        let Some(prefix) = prefix.filter(|_| !elevated()) else { return Vec::new() };
        let mut folders: Vec<PathBuf> = Vec::new();
        for library in ["lib", "lib64"] {
            let pythons = entries(&prefix.join(library)).into_iter().filter(|path| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"))
            });
            for python in pythons {
                // Debian's own Python has the second one.
                for packages in ["site-packages", "dist-packages"] {
                    // One of `lib` and `lib64` may be a link to the other.
                    folders
                        .extend(python.join(packages).canonicalize().ok().filter(|f| !folders.contains(f)));
                }
            }
        }
        let has_devbay = |folder: &PathBuf| metadata_of(folder).any(|info| is_of_devbay(&info));
        folders
            .iter()
            .filter(|folder| has_devbay(folder))
            .flat_map(|folder| Self::installed_in(folder))
            .collect()
    }

    /// Returns the packages with plugins in one folder of packages.
    fn installed_in(folder: &Path) -> Vec<Self> {
        let read = |info: PathBuf| {
            let text = |file: &str| {
                let bytes = read_regular(&info.join(file), SIZE_MAX).ok()?;
                Some(String::from_utf8_lossy(&bytes).into_owned())
            };
            let entry_points = text("entry_points.txt").filter(|entries| entries.contains(GROUP))?;
            let metadata = text("METADATA").unwrap_or_default();
            let field = |name: &str| metadata.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let title = match (field("Name:"), field("Version:")) {
                (Some(name), Some(version)) => format!("{name} {version}"),
                _ => info.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            };
            Some(Self { title, entry_points, folders: vec![folder.to_owned()] })
        };
        metadata_of(folder).filter_map(read).collect()
    }

    /// Returns the plugins that the package offers, in its order.
    pub(crate) fn offers(&self) -> Vec<Offer> {
        let mut is_ours = false;
        let mut offers = Vec::new();
        for line in self.entry_points.lines().map(str::trim) {
            if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                is_ours = section.trim() == GROUP;
            } else if is_ours && !line.is_empty() && !line.starts_with(['#', ';']) {
                offers.push(self.offer(line));
            }
        }
        offers
    }

    /// Finds the file of an entry, `NAME = MODULE`.
    fn offer(&self, line: &str) -> Offer {
        let entry = line.split_once('=').map(|(name, module)| (name.trim(), module.trim()));
        let is_module = |module: &str| {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            module.split('.').all(|part| !part.is_empty() && part.chars().all(is_word))
        };
        let Some((name, module)) = entry.filter(|(_, module)| is_module(module)) else {
            let text = format!("expected an entry point NAME = MODULE in [{GROUP}], found `{line}`");
            return Offer { name: None, file: Err(Refusal::new(RefusalKind::BadManifest, text)) };
        };
        let folder: PathBuf = module.split('.').collect();
        let (prefix, suffix) = (std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        let files = [format!("{name}.json"), format!("{prefix}devbay_plugin_{name}{suffix}")];
        let paths =
            self.folders.iter().flat_map(|parent| files.iter().map(|file| parent.join(&folder).join(file)));
        let file = paths.into_iter().find(|path| path.is_file()).ok_or_else(|| {
            let place = self.folders.first().map(|parent| parent.join(&folder)).unwrap_or(folder);
            let text = format!("expected {} or {} in {}", files[0], files[1], place.display());
            Refusal::new(RefusalKind::Unreadable, text)
        });
        Offer { name: Some(name.to_owned()), file }
    }
}

/// Returns what a folder holds, by name; nothing if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let found = std::fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> = found.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

/// Returns the folders with metadata of installed packages: `NAME-VERSION.dist-info`.
fn metadata_of(folder: &Path) -> impl Iterator<Item = PathBuf> {
    entries(folder)
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "dist-info"))
}

/// Returns whether this is the metadata of the package `devbay` itself.
fn is_of_devbay(info: &Path) -> bool {
    info.file_name().is_some_and(|name| name.to_string_lossy().starts_with("devbay-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(entry_points: &str) -> PythonPackage {
        let folders = vec![PathBuf::from("/nothere")];
        PythonPackage { title: "a 1".to_owned(), entry_points: entry_points.to_owned(), folders }
    }

    #[test]
    fn entry_points_of_other_groups_are_not_plugins() {
        let text = "[console_scripts]\na = b:c\n\n[ devbay.plugins ]\n# none\n;\n  my-npu =  a.b_1 \n[devbay.other]\nx = y\n";
        let offers = package(text).offers();
        let names: Vec<_> = offers.iter().map(|offer| offer.name.as_deref()).collect();
        assert_eq!(names, [Some("my-npu")]);
        let refusal = offers[0].file.as_ref().unwrap_err();
        assert!(refusal.reason.contains("my-npu.json or"), "{refusal}");
        assert!(refusal.reason.contains("/nothere/a/b_1"), "{refusal}");
    }

    #[test]
    fn entries_that_do_not_name_a_module_are_refused() {
        for line in ["npu", "npu = ", "npu = a:b", "npu = ../a", "npu = a [x]", "npu = a..b"] {
            let offers = package(&format!("[devbay.plugins]\n{line}\nok = a\n")).offers();
            let refusal = offers[0].file.as_ref().unwrap_err();
            assert!(refusal.reason.contains(line.trim()), "{line}: {refusal}");
            assert_eq!(offers[1].name.as_deref(), Some("ok"));
        }
    }
}
