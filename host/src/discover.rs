//! Discovery of plugins (B25).
//!
//! In order: plugins named through the API, linked-in plugins, the folders of `DEVBAY_PLUGIN_PATH`, plugins that the user's
//! configuration file names, plugins of installed Python packages, the user's folder, the system's folders, and a project's
//! folder only on request. Of two plugins with one name the first wins and the other is refused; a plugin named explicitly
//! replaces a linked-in or discovered one. Only [`SearchPaths::from_environment`] reads the environment.

use crate::manifest::Manifest;
use crate::packages::PythonPackage;
use devbay_core::about::{Refusal, RefusalKind};
use devbay_plugin_api::sdk::export::LinkedPlugin;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Origin of a candidate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Named through the API or the command line.
    Explicit,
    /// Named by the user's configuration file.
    Configured,
    /// Offered by an installed Python package with this name and version.
    Package(String),
    /// Linked into the program.
    Static,
    /// A manifest in a folder.
    Manifest(PathBuf),
    /// A library in a folder, without a manifest.
    Folder(PathBuf),
}

impl Origin {
    /// Describes it in words, for reports.
    pub fn describe(&self) -> String {
        match self {
            Self::Explicit => "named explicitly".to_owned(),
            Self::Configured => "named in the configuration file".to_owned(),
            Self::Package(title) => format!("package {title}"),
            Self::Static => "linked in".to_owned(),
            Self::Manifest(path) => format!("manifest {}", path.display()),
            Self::Folder(path) => format!("found in {}", path.display()),
        }
    }
}

/// A possible plugin.
#[derive(Clone)]
pub struct Candidate {
    /// Its origin.
    pub origin: Origin,
    /// Its library; None if it is linked in.
    pub library: Option<PathBuf>,
    /// Its entry, if it is linked in.
    pub linked: Option<LinkedPlugin>,
    /// Its manifest, if it has one.
    pub manifest: Option<Manifest>,
}

impl Candidate {
    /// Returns the name, if known before loading.
    pub fn name(&self) -> Option<&str> {
        let linked = self.linked.as_ref().map(LinkedPlugin::name);
        linked.or(self.manifest.as_ref().map(|manifest| manifest.name.as_str()))
    }
}

/// Folders to search, highest precedence first.
#[derive(Clone, Default, Debug)]
pub struct SearchPaths {
    /// Folders searched for manifests.
    pub manifest_folders: Vec<PathBuf>,
    /// Folders searched for manifests, and for libraries without one.
    pub library_folders: Vec<PathBuf>,
    /// Libraries and manifests that the user's configuration file names; they come after the folders with libraries.
    pub files: Vec<PathBuf>,
    /// Installed Python packages that offer plugins; they come after `files`.
    pub packages: Vec<PythonPackage>,
}

impl SearchPaths {
    /// Returns paths without folders.
    pub fn none() -> Self {
        Self::default()
    }

    /// Collects `DEVBAY_PLUGIN_PATH` (ignored for elevated processes), the user's folder, and the system's folders.
    pub fn from_environment() -> Self {
        Self::from_variables(elevated(), |name| std::env::var_os(name))
    }

    /// Collects as [`SearchPaths::from_environment`], from given variables, for a process that may be elevated.
    pub fn from_variables(elevated: bool, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let mut paths = Self::default();
        if !elevated && let Some(list) = variable("DEVBAY_PLUGIN_PATH") {
            paths.library_folders =
                std::env::split_paths(&list).filter(|p| !p.as_os_str().is_empty()).collect();
        }
        if let Some(config) = config_folder(elevated, &variable) {
            paths.manifest_folders.push(config.join("plugins.d"));
        }
        for folder in
            ["/etc/devbay/plugins.d", "/usr/local/share/devbay/plugins.d", "/usr/share/devbay/plugins.d"]
        {
            paths.manifest_folders.push(PathBuf::from(folder));
        }
        paths
    }

    /// Adds the packages with plugins of the Python environment that a program was installed into
    /// ([`PythonPackage::installed_with`]).
    #[must_use]
    pub fn with_packages_of(mut self, program: &Path) -> Self {
        self.packages.extend(PythonPackage::installed_with(program));
        self
    }

    /// Adds a project's folder, `FOLDER/.devbay/plugins.d`, which is searched only on request.
    #[must_use]
    pub fn with_project(mut self, folder: &Path) -> Self {
        self.manifest_folders.push(folder.join(".devbay/plugins.d"));
        self
    }
}

/// Returns the user's folder with devbay's configuration; None for an elevated process, which trusts only the system's
/// folders.
fn config_folder(elevated: bool, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let config = variable("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| variable("HOME").map(|home| PathBuf::from(home).join(".config")));
    config.filter(|_| !elevated).map(|config| config.join("devbay"))
}

/// Returns the path of the user's configuration file: `DEVBAY_CONFIG`, else `config.toml` in the user's folder. True with it
/// if the variable names it. None without either, and for elevated processes.
pub fn config_file_from_environment() -> Option<(PathBuf, bool)> {
    config_file(elevated(), |name| std::env::var_os(name))
}

fn config_file(elevated: bool, variable: impl Fn(&str) -> Option<OsString>) -> Option<(PathBuf, bool)> {
    let named = variable("DEVBAY_CONFIG").filter(|path| !elevated && !path.is_empty());
    match named {
        Some(path) => Some((path.into(), true)),
        None => config_folder(elevated, variable).map(|folder| (folder.join("config.toml"), false)),
    }
}

/// Returns whether the process has privileges beyond its user's.
pub(crate) fn elevated() -> bool {
    #[cfg(target_os = "linux")]
    {
        // The kernel reports this in the auxiliary vector, also for capabilities (getauxval(3), AT_SECURE).
        const AT_SECURE: u64 = 23;
        let Ok(auxv) = std::fs::read("/proc/self/auxv") else {
            return true;
        };
        let mut pairs = auxv.chunks_exact(size_of::<[u64; 2]>()).map(bytemuck::pod_read_unaligned);
        pairs.any(|[key, value]: [u64; 2]| key == AT_SECURE && value != 0)
    }
    #[cfg(not(target_os = "linux"))]
    {
        false
    }
}

/// Results of discovery: candidates in order of precedence, and unreadable files.
#[derive(Default)]
pub struct Discovered {
    /// Candidates, highest precedence first.
    pub candidates: Vec<Candidate>,
    /// Unreadable files named like plugins, with reasons.
    pub refused: Vec<Unreadable>,
}

/// A file that is named like a plugin, or offered as one, and cannot be read.
pub struct Unreadable {
    /// Its origin.
    pub origin: Origin,
    /// The plugin's name, if known.
    pub name: Option<String>,
    /// The file; None if it was not found.
    pub path: Option<PathBuf>,
    /// The reason.
    pub refusal: Refusal,
}

/// Searches for plugins.
pub fn discover(explicit: &[PathBuf], linked: &[LinkedPlugin], paths: &SearchPaths) -> Discovered {
    let mut found = Discovered::default();
    for path in explicit {
        found.named(path, Origin::Explicit);
    }
    for plugin in linked {
        found.candidates.push(Candidate {
            origin: Origin::Static,
            library: None,
            linked: Some(*plugin),
            manifest: None,
        });
    }
    for folder in &paths.library_folders {
        found.folder(folder, true);
    }
    for path in &paths.files {
        found.named(path, Origin::Configured);
    }
    for package in &paths.packages {
        found.package(package);
    }
    for folder in &paths.manifest_folders {
        found.folder(folder, false);
    }
    found
}

impl Discovered {
    /// Adds a library or a manifest by its path.
    fn named(&mut self, path: &Path, origin: Origin) {
        if path.extension().is_some_and(|extension| extension == "json") {
            self.manifest(path, origin);
        } else {
            let library = Some(path.to_owned());
            self.candidates.push(Candidate { origin, library, linked: None, manifest: None });
        }
    }

    /// Adds the plugins that a package offers.
    fn package(&mut self, package: &PythonPackage) {
        let origin = Origin::Package(package.title.clone());
        for offer in package.offers() {
            match offer.file {
                Ok(path) => self.named(&path, origin.clone()),
                Err(refusal) => {
                    let (origin, name) = (origin.clone(), offer.name);
                    self.refused.push(Unreadable { origin, name, path: None, refusal });
                }
            }
        }
    }

    fn manifest(&mut self, path: &Path, origin: Origin) {
        match Manifest::read(path) {
            Ok((manifest, library)) => self.candidates.push(Candidate {
                origin,
                library: Some(library),
                linked: None,
                manifest: Some(manifest),
            }),
            Err(refusal) => {
                self.refused.push(Unreadable { origin, name: None, path: Some(path.to_owned()), refusal });
            }
        }
    }

    /// Visits files of a folder by name, so that the order is the same on every system.
    fn folder(&mut self, folder: &Path, with_libraries: bool) {
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            // A missing folder has no plugins.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return,
            Err(e) => {
                let refusal = Refusal::new(RefusalKind::Unreadable, format!("cannot read the folder: {e}"));
                let (origin, path) = (Origin::Folder(folder.to_owned()), Some(folder.to_owned()));
                self.refused.push(Unreadable { origin, name: None, path, refusal });
                return;
            }
        };
        let mut files: Vec<PathBuf> =
            entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
        files.sort();
        let n_before = self.candidates.len();
        for path in files.iter().filter(|path| path.extension().is_some_and(|e| e == "json")) {
            self.manifest(path, Origin::Manifest(path.clone()));
        }
        if !with_libraries {
            return;
        }
        let described: Vec<PathBuf> =
            self.candidates[n_before..].iter().filter_map(|candidate| candidate.library.clone()).collect();
        for path in files.iter().filter(|path| is_plugin_library(path) && !described.contains(path)) {
            self.candidates.push(Candidate {
                origin: Origin::Folder(folder.to_owned()),
                library: Some(path.clone()),
                linked: None,
                manifest: None,
            });
        }
    }
}

/// Returns whether a file is named like a plugin library: `libdevbay_plugin_NAME.so`, or the platform's form of it.
fn is_plugin_library(path: &Path) -> bool {
    name_of_library(path).is_some()
}

/// Returns the plugin's name from its library's file name.
pub fn name_of_library(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let stem = format!("{}devbay_plugin_", std::env::consts::DLL_PREFIX);
    let name = name.strip_prefix(&stem)?.strip_suffix(std::env::consts::DLL_SUFFIX)?;
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_file_is_the_variables_or_the_users() {
        let file = |elevated: bool, set: &[(&str, &str)]| {
            let found = config_file(elevated, |name| {
                set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            });
            found.map(|(path, is_named)| (path.to_string_lossy().into_owned(), is_named))
        };
        let all = [("DEVBAY_CONFIG", "/c.toml"), ("XDG_CONFIG_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(file(false, &all), Some(("/c.toml".to_owned(), true)));
        assert_eq!(file(false, &all[1..]), Some(("/x/devbay/config.toml".to_owned(), false)));
        assert_eq!(file(false, &all[2..]), Some(("/h/.config/devbay/config.toml".to_owned(), false)));
        assert_eq!(file(false, &[("DEVBAY_CONFIG", "")]), None);
        assert_eq!(file(true, &all), None);
    }
}
