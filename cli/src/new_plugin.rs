//! `devbay new-plugin`: generates a plugin project with one device and three kernels that builds and passes the conformance
//! suite, in C, C++ or Rust.
//!
//! It consists of the files of `templates/LANGUAGE` with the plugin's name, and the contract: the header for C and C++, the
//! SDK's sources for Rust. So it builds without this repository and without a network. On request it is also a Python package,
//! with the files of `templates/wheel`. A project is written completely or not at all.

use crate::exit::usage;
use crate::say;
use anyhow::{Context, Result};
use clap::ValueEnum;
use devbay_host::internals::core::about::valid_name;
use devbay_host::internals::file::write_folder;
use devbay_plugin_api::texts;
use include_dir::{Dir, include_dir};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The project templates, one folder per language.
static TEMPLATES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/templates");

/// Name of the Rust project's manifest among the templates. It is not called Cargo.toml there, because a package leaves out folders
/// with packages of their own.
const MANIFEST: &str = "manifest.toml";

/// Manifest for a copy of the SDK: standalone, without dependencies. It is not called Cargo.toml, because cargo would find two
/// packages of one name in this repository.
const SDK_MANIFEST: &str = include_str!("../templates/sdk.toml");

/// The contract in C, and its helper functions.
const HEADERS: [(&str, &str); 2] =
    [("include/devbay_plugin.h", texts::HEADER), ("include/devbay_helpers.h", texts::HELPERS)];

/// The plugin's name in the templates, in file names too.
const TEMPLATE_NAME: &str = "template-plugin";
/// The same name as a Rust identifier.
const TEMPLATE_IDENTIFIER: &str = "template_plugin";
/// Placeholder for the release that writes a project.
const TEMPLATE_VERSION: &str = "TEMPLATE_DEVBAY_VERSION";

/// The command that builds a wheel, in the project's folder.
const PACKS: &[&str] = &["pip wheel --no-deps -w dist ."];

/// Arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// Name of the plugin: lowercase letters, digits, `-` and `_`, starting with a letter; its device is NAME:0
    name: String,
    /// Language of the project
    #[arg(long, value_enum)]
    lang: Language,
    /// Folder for the project, new or empty; defaults to NAME
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// Make it a Python package too: `pip wheel` builds the plugin as a wheel, which devbay finds after `pip install`
    #[arg(long)]
    python_wheel: bool,
    /// Print a summary of the project as JSON
    #[arg(long)]
    json: bool,
}

/// Languages that there is a template for.
#[derive(Clone, Copy, ValueEnum)]
enum Language {
    C,
    Cpp,
    Rust,
}

impl Language {
    /// Returns its folder in the templates.
    fn folder(self) -> &'static str {
        match self {
            Self::C => "c",
            Self::Cpp => "cpp",
            Self::Rust => "rust",
        }
    }

    /// Returns the commands that build and test, in the project's folder.
    fn next(self) -> &'static [&'static str] {
        match self {
            Self::C | Self::Cpp => {
                &["cmake -B build && cmake --build build", "ctest --test-dir build --output-on-failure"]
            }
            Self::Rust => &["cargo build --release", "cargo test"],
        }
    }
}

/// Writes the project and prints the next steps.
///
/// # Errors
/// For an invalid name, a folder that is not empty, and files that cannot be written; then nothing is written.
pub fn main(arguments: &Arguments) -> Result<()> {
    let Arguments { name, lang, dir, python_wheel, json } = arguments;
    if !valid_name(name) {
        return Err(usage(format!(
            "a plugin's name is at most 64 lowercase letters, digits, - and _, a letter first; found {name:?}"
        )));
    }
    if *python_wheel && name.ends_with(['-', '_']) {
        return Err(usage(format!("a Python package's name ends in a letter or digit; found {name:?}")));
    }
    let folder = dir.clone().unwrap_or_else(|| PathBuf::from(name));
    let files = project(*lang, name, *python_wheel)?;
    let packs = if *python_wheel { PACKS } else { &[] };
    let next: Vec<&str> = lang.next().iter().chain(packs).copied().collect();
    write(&folder, &files)?;
    if *json {
        let value = serde_json::json!({
            "name": name,
            "language": lang.folder(),
            "folder": folder,
            "files": files.keys().collect::<Vec<_>>(),
            "next": next,
        });
        say!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    say!(
        "{} has the plugin {name} in {} files; its README.md describes them. Next:\n",
        folder.display(),
        files.len()
    );
    say!("    cd {}", folder.display());
    for command in next {
        say!("    {command}");
    }
    Ok(())
}

/// Returns the files of a project: paths in its folder, and their content.
///
/// # Errors
/// For a file of ours that is not text: a bug.
fn project(lang: Language, name: &str, python_wheel: bool) -> Result<BTreeMap<PathBuf, String>> {
    let identifier = name.replace('-', "_");
    let named = |text: &str| {
        text.replace(TEMPLATE_NAME, name)
            .replace(TEMPLATE_IDENTIFIER, &identifier)
            .replace(TEMPLATE_VERSION, env!("CARGO_PKG_VERSION"))
    };
    let template = TEMPLATES.get_dir(lang.folder()).context("a language without a template")?;
    let mut files = BTreeMap::new();
    for (path, text) in files_of(template)? {
        let path = if path == Path::new(MANIFEST) { Path::new("Cargo.toml") } else { path };
        files.insert(PathBuf::from(named(&path.to_string_lossy())), named(text));
    }
    if python_wheel {
        let package = TEMPLATES.get_dir("wheel").context("a wheel without a template")?;
        for (path, text) in files_of(package)? {
            // The README and the list of ignored files continue the language's.
            let file = files.entry(PathBuf::from(named(&path.to_string_lossy()))).or_default();
            file.push_str(&named(text));
        }
    }
    match lang {
        Language::C | Language::Cpp => {
            files.extend(HEADERS.map(|(path, text)| (PathBuf::from(path), text.to_owned())));
        }
        Language::Rust => {
            let sdk = Path::new("vendor/devbay-plugin-api");
            files.insert(sdk.join("Cargo.toml"), named(SDK_MANIFEST));
            files.insert(sdk.join("LICENSE-MIT"), texts::LICENSE_MIT.to_owned());
            files.insert(sdk.join("LICENSE-APACHE"), texts::LICENSE_APACHE.to_owned());
            for (path, text) in files_of(&texts::SOURCES)? {
                files.insert(sdk.join("src").join(path), text.to_owned());
            }
        }
    }
    Ok(files)
}

/// Returns all files below a folder, with relative paths.
fn files_of<'a>(folder: &'a Dir<'_>) -> Result<Vec<(&'a Path, &'a str)>> {
    let mut found = Vec::new();
    let mut folders = vec![folder];
    while let Some(next) = folders.pop() {
        folders.extend(next.dirs());
        for file in next.files() {
            let path = file.path();
            let text = file.contents_utf8().with_context(|| format!("{} is no text", path.display()))?;
            found.push((path.strip_prefix(folder.path())?, text));
        }
    }
    Ok(found)
}

/// Writes files into a new or empty folder: all of them, or none.
///
/// # Errors
/// For a folder that is not empty or whose parent does not exist, and for errors of the system.
fn write(folder: &Path, files: &BTreeMap<PathBuf, String>) -> Result<()> {
    let shown = folder.display();
    match folder.read_dir().map(|mut entries| entries.next().is_none()) {
        Ok(true) if is_current(folder) => {
            return Err(usage(format!(
                "{shown} is the current folder: go to the one above, and name it from there"
            )));
        }
        Ok(true) => {}
        Ok(false) => {
            return Err(usage(format!("{shown} is there, and not empty: --dir FOLDER names another folder")));
        }
        Err(_) if folder.symlink_metadata().is_ok() => {
            return Err(usage(format!("{shown} is there, and no folder that can be read")));
        }
        Err(_) => {}
    }
    if folder.file_name().is_none() {
        return Err(usage(format!("{shown} does not end in a folder's name")));
    }
    write_folder(folder, |part| write_all(part, files)).with_context(|| format!("cannot write {shown}"))
}

fn write_all(folder: &Path, files: &BTreeMap<PathBuf, String>) -> std::io::Result<()> {
    for (path, text) in files {
        // Create folders one by one below the project's: if that is gone, as after Ctrl-C, it is not created again.
        let mut parent = folder.to_owned();
        for name in path.parent().into_iter().flat_map(Path::components) {
            parent.push(name);
            match fs::create_dir(&parent) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => made?,
            }
        }
        fs::write(folder.join(path), text)?;
    }
    Ok(())
}

/// Returns whether a folder is the current one: replacing it would leave the user in a deleted folder.
fn is_current(folder: &Path) -> bool {
    let current = std::env::current_dir().and_then(fs::canonicalize);
    matches!((fs::canonicalize(folder), current), (Ok(folder), Ok(current)) if folder == current)
}
