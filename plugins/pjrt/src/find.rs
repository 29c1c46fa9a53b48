//! Search for PJRT libraries: those that a person named, and those that are installed for JAX.
//!
//! Sources in the order of their precedence: the option `libraries`, which excludes the others; the variable
//! `DEVBAY_PJRT_PLUGINS`; manifests; JAX's variable `PJRT_NAMES_AND_LIBRARY_PATHS`; packages installed for JAX
//! ([`crate::installed`]). A file that is met twice is one library, with the name and the options of the
//! source that comes first; of two files with one name the second is left out with a reason. Nothing is loaded here.

use crate::installed;
use crate::library::{Attribute, Value};
use devbay_plugin_api::sdk::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Our variable, in the form of the option `libraries`.
pub const VARIABLE: &str = "DEVBAY_PJRT_PLUGINS";
/// Folders of manifests, separated as in `PATH`.
pub const VARIABLE_MANIFESTS: &str = "DEVBAY_PJRT_MANIFESTS";
/// JAX's variable: `NAME:PATH[,NAME:PATH...]`.
pub const VARIABLE_JAX: &str = "PJRT_NAMES_AND_LIBRARY_PATHS";

/// The end of a manifest's file name.
const MANIFEST_END: &str = ".pjrt.json";
/// Largest manifest that is read.
const MANIFEST_SIZE_MAX: u64 = 1 << 20;

/// Reads a variable of the environment; tests give their own.
pub type Variable<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// A PJRT library that may be opened. It is also what a manifest holds, as JSON; unknown keys are ignored, so that
/// manifests can grow.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Named {
    /// Name that messages and devices use.
    pub name: String,
    /// The file. In a manifest a relative path begins at the manifest's folder.
    #[serde(rename = "library")]
    pub path: PathBuf,
    /// Options that its client is created with; the names are the library's own.
    #[serde(default)]
    pub options: BTreeMap<String, CreateOption>,
    /// True if a person named the file, in an option, a variable or a manifest, and so trusts it.
    #[serde(skip, default = "yes")]
    pub by_person: bool,
}

fn yes() -> bool {
    true
}

/// The value of an option that a client is created with.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged, expecting = "an option is a text, a number, true, false or a list of whole numbers")]
pub enum CreateOption {
    /// Yes or no.
    Flag(bool),
    /// A whole number.
    Integer(i64),
    /// A number.
    Float(f32),
    /// Text.
    Text(String),
    /// Whole numbers.
    Integers(Vec<i64>),
}

impl Named {
    /// A library that a person named, created without options.
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self { name: name.into(), path: path.into(), options: BTreeMap::new(), by_person: true }
    }

    /// The file that the path leads to, links followed. `None` if there is none, also for a bare name, which the system's
    /// loader looks for in folders of its own.
    pub fn file(&self) -> Option<PathBuf> {
        let is_path = self.path.components().count() > 1;
        is_path.then(|| self.path.canonicalize().ok()).flatten()
    }

    /// Its options as a client takes them.
    pub fn attributes(&self) -> Vec<Attribute> {
        let value = |option: &CreateOption| match option {
            CreateOption::Flag(flag) => Value::Flag(*flag),
            CreateOption::Integer(integer) => Value::Integer(*integer),
            CreateOption::Float(float) => Value::Float(*float),
            CreateOption::Text(text) => Value::Text(text.clone()),
            CreateOption::Integers(integers) => Value::Integers(integers.clone()),
        };
        let options = self.options.iter();
        options.map(|(name, option)| Attribute { name: name.clone(), value: value(option) }).collect()
    }
}

/// Result of the search.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Found {
    /// Libraries, in order of precedence.
    pub libraries: Vec<Named>,
    /// Findings that cannot be used, with the reason, a line each.
    pub left_out: Vec<String>,
}

/// Where to look: the plugin's options of these names, empty for the default.
#[derive(Clone, Copy)]
pub struct Places<'a> {
    /// Libraries, instead of everything else.
    pub libraries: &'a str,
    /// Folders of manifests.
    pub manifests: &'a str,
    /// Folders of Python packages, or `off`.
    pub site_packages: &'a str,
    /// This plugin's own library, which may be part of a Python package.
    pub own: Option<&'a Path>,
    /// The environment.
    pub variable: Variable<'a>,
}

/// Looks for libraries.
///
/// # Errors
/// Invalid if the option or `DEVBAY_PJRT_PLUGINS` has another form than it should. What is wrong in other places is
/// left out with a line.
pub fn find(places: &Places<'_>) -> Result<Found> {
    let mut found = Found::default();
    if !places.libraries.is_empty() {
        for library in parse(places.libraries)? {
            found.add(library);
        }
        return Ok(found);
    }
    let variable = |name: &str| (places.variable)(name).filter(|value| !value.is_empty());
    if let Some(given) = variable(VARIABLE) {
        let wrong = |error: Error| Error::invalid(format!("{VARIABLE}: {}", error.text()));
        let given = given.to_str().ok_or_else(|| Error::invalid(format!("{VARIABLE} is not UTF-8")))?;
        for library in parse(given).map_err(wrong)? {
            found.add(library);
        }
    }
    let folders = match places.manifests {
        "" => variable(VARIABLE_MANIFESTS).unwrap_or_default(),
        given => given.into(),
    };
    for folder in std::env::split_paths(&folders).filter(|folder| !folder.as_os_str().is_empty()) {
        found.manifests(&folder);
    }
    if let Some(given) = variable(VARIABLE_JAX) {
        match given.to_str().map(parse) {
            Some(Ok(libraries)) => libraries.into_iter().for_each(|library| found.add(library)),
            Some(Err(error)) => found.left_out.push(format!("{VARIABLE_JAX}: {}", error.text())),
            None => found.left_out.push(format!("{VARIABLE_JAX} is not UTF-8")),
        }
    }
    for folder in installed::folders(places.site_packages, places.own, places.variable) {
        for library in installed::libraries(&folder) {
            found.add(library);
        }
    }
    Ok(found)
}

/// `NAME:PATH`, separated by commas, or a JSON list of what manifests hold.
///
/// # Errors
/// Invalid for another form.
pub fn parse(text: &str) -> Result<Vec<Named>> {
    if text.starts_with('[') {
        let libraries: Vec<Named> = serde_json::from_str(text)
            .map_err(|error| Error::invalid(format!("not a JSON list of PJRT libraries: {error}")))?;
        return match libraries.iter().map(check).find_map(|checked| checked.err()) {
            Some(reason) => Err(Error::invalid(reason)),
            None => Ok(libraries),
        };
    }
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let part = |part: &str| {
        let (name, path) =
            part.split_once(':')
                .filter(|(name, path)| !name.is_empty() && !path.is_empty())
                .ok_or_else(|| Error::invalid(format!("a PJRT library is NAME:PATH, found {part}")))?;
        Ok(Named::new(name, path))
    };
    parts.map(part).collect()
}

/// Refuses what JSON may hold and a library cannot have.
fn check(library: &Named) -> std::result::Result<(), &'static str> {
    match library {
        Named { name, .. } if name.is_empty() => Err("the name of a PJRT library is empty"),
        Named { path, .. } if path.as_os_str().is_empty() => Err("the path of a PJRT library is empty"),
        _ => Ok(()),
    }
}

impl Found {
    /// Adds a library, unless its file is there already; one whose name is taken is left out.
    fn add(&mut self, library: Named) {
        let file = |library: &Named| library.file().unwrap_or_else(|| library.path.clone());
        if self.libraries.iter().any(|known| file(known) == file(&library)) {
            return;
        }
        match self.libraries.iter().find(|known| known.name == library.name) {
            Some(taken) => self.left_out.push(format!(
                "{}: {} has this name, so that {} needs another",
                library.name,
                taken.path.display(),
                library.path.display()
            )),
            None => self.libraries.push(library),
        }
    }

    /// The manifests of a folder, by file name.
    fn manifests(&mut self, folder: &Path) {
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) => {
                self.left_out.push(format!("the folder of manifests {}: {error}", folder.display()));
                return;
            }
        };
        let is_manifest = |path: &PathBuf| {
            path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.ends_with(MANIFEST_END))
        };
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(is_manifest).collect();
        paths.sort();
        for path in paths {
            match read_manifest(&path) {
                Ok(library) => self.add(library),
                Err(reason) => self.left_out.push(format!("the manifest {}: {reason}", path.display())),
            }
        }
    }
}

/// Reads a manifest; what is wrong with it is said in words.
fn read_manifest(path: &Path) -> std::result::Result<Named, String> {
    let size = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > MANIFEST_SIZE_MAX {
        return Err(format!("it has {size} bytes, at most {MANIFEST_SIZE_MAX} are read"));
    }
    let text = std::fs::read(path).map_err(|error| error.to_string())?;
    let mut library: Named = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    check(&library)?;
    library.path = path.parent().unwrap_or(Path::new(".")).join(&library.path);
    Ok(library)
}
