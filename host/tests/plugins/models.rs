//! Trained models.
//!
//! They are in the folder that `DEVBAY_MODELS` names; what it lacks is in the repository's, as far as it has it. What is missing is named and left out;
//! with `models` among the words of `DEVBAY_REQUIRE` it fails.

use std::path::{Path, PathBuf};

/// The folders of these models, as far as they are there.
pub fn models<'a>(names: impl Iterator<Item = &'a str>) -> Vec<(&'a str, PathBuf)> {
    let named = std::env::var_os("DEVBAY_MODELS").map(PathBuf::from);
    let required = std::env::var("DEVBAY_REQUIRE").unwrap_or_default();
    let required = required.split([',', ' ']).any(|word| word == "models");
    assert!(
        named.is_some() || !required,
        "expected the models, which DEVBAY_REQUIRE asks for: set DEVBAY_MODELS to their folder"
    );
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    let folder = named.unwrap_or_else(|| ours.clone());
    let of = |name| [folder.join(name), ours.join(name)].into_iter().find(|path| path.exists());
    let found: Vec<_> = names.map(|name| (name, of(name).unwrap_or_else(|| folder.join(name)))).collect();
    let (there, missing): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|(_, path)| required || path.join("model.onnx").exists());
    for (name, _) in missing {
        eprintln!("not run, as {} does not have it: {name}", folder.display());
    }
    assert!(!there.is_empty(), "expected models in {}, found none", folder.display());
    there
}
