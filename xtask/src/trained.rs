//! The trained models, and the built command, for tables over all models.

use crate::target_folder;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Plugins besides the command's own, if built.
const PLUGINS: [&str; 3] = ["wgpu", "opencl", "pjrt"];

/// The folder of programs, and those of models, by name.
pub struct Trained {
    folder: PathBuf,
    pub models: Vec<PathBuf>,
}

impl Trained {
    /// Finds the models of `DEVBAY_MODELS` or `target/models`, and the programs of `target/release` or `target/debug`.
    ///
    /// # Errors
    /// If there is no folder of models.
    pub fn new(release: bool) -> Result<Self> {
        let target = target_folder()?;
        let folder = target.join(if release { "release" } else { "debug" });
        let models = std::env::var_os("DEVBAY_MODELS").map_or_else(|| target.join("models"), PathBuf::from);
        Ok(Self { folder, models: folders(&models)? })
    }

    /// Returns a devbay command with JSON output and every built plugin.
    pub fn devbay(&self, command: &str) -> Command {
        let mut devbay = Command::new(self.folder.join("devbay"));
        devbay.arg(command).arg("--json");
        let library = |name: &str| self.folder.join(format!("libdevbay_plugin_{name}.so"));
        for library in PLUGINS.iter().map(|name| library(name)).filter(|library| library.exists()) {
            devbay.arg("--plugin").arg(library);
        }
        devbay
    }

    /// Returns a command as [`Trained::devbay`] does, on the first case of a model.
    pub fn on_case(&self, command: &str, model: &Path) -> Command {
        let mut devbay = self.devbay(command);
        devbay.arg(model.join("model.onnx")).arg("--input").arg(model.join("case0.inputs.npz"));
        devbay
    }

    /// Returns the report of `devbay bench` on a model's first case.
    ///
    /// # Errors
    /// devbay's error, with the model's name.
    pub fn bench(&self, model: &Path, options: &[&str]) -> Result<Value> {
        let mut bench = self.on_case("bench", model);
        let output = bench.args(options).output().context("cannot start devbay; `cargo build` makes it")?;
        ensure!(output.status.success(), "{}: {}", name(model), String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).context("devbay bench --json")
    }
}

/// Returns the name of a model, from its folder.
pub fn name(model: &Path) -> String {
    model.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn folders(models: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(models)
        .with_context(|| format!("no models in {}; `cargo xtask models` fetches them", models.display()))?;
    let mut folders = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.join("model.onnx").exists() && path.join("case0.inputs.npz").exists() {
            folders.push(path);
        }
    }
    folders.sort();
    Ok(folders)
}
