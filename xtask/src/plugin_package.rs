//! Wheels of devbay's own plugins: for each a Python package that has the library and its manifest, and nothing to import.
//!
//! The packages are projects of `devbay new-plugin --python-wheel`, so that a vendor's wheel is made in the same way. Zig links
//! the libraries for an older glibc than this machine's.

use crate::python::{environment, run};
use crate::python_package::{GLIBC, command_with_path, install_devbay, sources};
use crate::{header_package, opencl, target_folder};
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The plugins that have wheels.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Plugin {
    Wgpu,
    Opencl,
    Cuda,
    Pjrt,
}

/// What a plugin's package says of it.
struct About {
    name: &'static str,
    /// The package's summary.
    summary: &'static str,
    /// Kinds of devices, for the manifest.
    devices: &'static [&'static str],
    /// The driver, for the manifest.
    driver: &'static str,
}

impl Plugin {
    fn about(self) -> About {
        match self {
            Self::Wgpu => About {
                name: "wgpu",
                summary: "GPUs through Vulkan as devices of devbay",
                devices: &["gpu", "cpu"],
                driver: "Vulkan 1.1 or newer",
            },
            Self::Opencl => About {
                name: "opencl",
                summary: "OpenCL devices for devbay",
                devices: &["gpu", "cpu", "other"],
                driver: "OpenCL 1.2 or newer, with a compiler",
            },
            Self::Cuda => About {
                name: "cuda",
                summary: "NVIDIA GPUs through CUDA's driver as devices of devbay",
                devices: &["gpu"],
                driver: "CUDA 12.0 or newer, and NVRTC",
            },
            Self::Pjrt => About {
                name: "pjrt",
                summary: "Devices of PJRT libraries, such as TPUs, for devbay",
                devices: &["tpu", "gpu", "cpu", "other"],
                driver: "a PJRT library",
            },
        }
    }
}

/// Builds a plugin's wheel in release, checks it in an environment of its own, and prints its path and sizes.
///
/// # Errors
/// If the tools cannot be had, something does not build, or the installed wheel is refused.
pub fn wheel(plugin: Plugin, out: &Path) -> Result<()> {
    let about = plugin.about();
    let target = target_folder()?;
    let python = environment(&target.join("python-wheel"), &sources().join("requirements.txt"))?;
    let tools = python.parent().context("a program is in a folder")?;
    let library = build(plugin, tools)?;
    let project = target.join("plugin-wheels").join(about.name);
    write_project(&about, &project)?;

    // As a vendor makes a wheel: built, repaired, hashed again.
    let built = project.join("dist");
    let mut pack = command_with_path(&python, tools)?;
    pack.args(["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]);
    run(pack.arg(&built).arg(&project).env("DEVBAY_PLUGIN_LIBRARY", &library))?;
    let repaired = project.join("repaired");
    let mut repair = command_with_path(&tools.join("auditwheel"), tools)?;
    repair.args(["repair", "--only-plat", "--plat"]).arg(platform_tag()).arg("--wheel-dir").arg(&repaired);
    run(repair.arg(only_wheel(&built)?))?;
    let wheel = only_wheel(&repaired)?;
    run(Command::new(&python).arg(project.join("rehash_wheel.py")).arg(&wheel))?;
    run(Command::new(tools.join("auditwheel")).arg("show").arg(&wheel))?;

    fs::create_dir_all(out)?;
    let result = out.join(wheel.file_name().context("a wheel has a name")?);
    fs::copy(&wheel, &result).with_context(|| format!("cannot write {}", result.display()))?;
    check(&about, &result, out, &target.join("plugin-wheel-check"))?;
    let packed = target.join("plugin-wheels").join(about.name).join("build/wheel/package");
    let stripped = packed.join(format!("libdevbay_plugin_{}.so", about.name)).metadata()?.len();
    let size = result.metadata()?.len();
    println!("{} {:.2} MB, its library {:.2} MB", result.display(), size as f64 / 1e6, stripped as f64 / 1e6);
    Ok(())
}

/// Returns the wheels' platform: this machine's processor, and the oldest glibc.
pub fn platform_tag() -> String {
    format!("manylinux_{}_{}", GLIBC.replace('.', "_"), std::env::consts::ARCH)
}

/// Builds the library in release, linked by Zig.
fn build(plugin: Plugin, tools: &Path) -> Result<PathBuf> {
    let name = plugin.about().name;
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let folder = target_folder()?.join(&triple).join("release");
    let library = folder.join(format!("libdevbay_plugin_{name}.so"));
    if plugin == Plugin::Opencl {
        fs::create_dir_all(&folder)?;
        let mut zig = Command::new(tools.join("python"));
        zig.args(["-m", "ziglang", "cc", "-target"]);
        zig.arg(format!("{}-linux-gnu.{GLIBC}", std::env::consts::ARCH));
        // Zig has the C library's headers, and leaves the system's folder out, where OpenCL's are.
        zig.args(["-idirafter", "/usr/include"]);
        opencl::compile(zig, &library)?;
        return Ok(library);
    }
    let mut command = command_with_path(&tools.join("cargo-zigbuild"), tools)?;
    command.args(["zigbuild", "--release", "--locked", "--package"]).arg(format!("devbay-plugin-{name}"));
    command.args(["--lib", "--target"]).arg(format!("{triple}.{GLIBC}"));
    run(command.current_dir(crate::abi::repository_root()))?;
    if plugin == Plugin::Cuda {
        // The loader searches these folders when the plugin opens a library by name.
        let folders = NVIDIA.map(|folder| format!("$ORIGIN/../nvidia/{folder}/lib")).join(":");
        run(Command::new(tools.join("patchelf")).args(["--set-rpath", &folders]).arg(&library))?;
    }
    Ok(library)
}

/// Folders of NVIDIA's packages of NVRTC, cuBLASLt and cuDNN, beside the plugin's: of CUDA 13, and of CUDA 12 one a library.
const NVIDIA: [&str; 4] = ["cu13", "cuda_nvrtc", "cublas", "cudnn"];

/// Writes the package's project: the template's files with the plugin's name, its manifest, and the licences.
fn write_project(about: &About, project: &Path) -> Result<()> {
    let About { name, summary, devices, driver } = about;
    if project.exists() {
        fs::remove_dir_all(project).with_context(|| format!("cannot empty {}", project.display()))?;
    }
    let root = crate::abi::repository_root();
    let named = |text: &str| text.replace("template-plugin", name).replace("template_plugin", name);
    let template = root.join("cli/templates/wheel");
    let module = "python/devbay_plugin_template_plugin/__init__.py";
    for file in ["pyproject.toml", "hatch_build.py", "rehash_wheel.py", module] {
        let path = template.join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut text = named(&text);
        if file == "pyproject.toml" {
            let version = concat!("version = \"", env!("CARGO_PKG_VERSION"), "\"");
            text = replace(
                &text,
                "version = \"0.1.0\"",
                &format!("{version}\nlicense = \"MIT OR Apache-2.0\""),
            )?;
            text = replace(&text, &format!("The devbay plugin {name}"), summary)?;
        }
        write(&project.join(named(file)), &text)?;
    }
    let readme = format!(
        "# devbay-plugin-{name}\n\n{summary}. devbay finds the plugin after `pip install`; `devbay.devices()` lists its devices.\n\
         It needs {driver}.\n"
    );
    write(&project.join("README.md"), &readme)?;
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        fs::copy(root.join(licence), project.join(licence))?;
    }
    let header = fs::read_to_string(root.join("plugin-api/include/devbay_plugin.h"))?;
    let number = |name| header_package::number(&header, name);
    let manifest = serde_json::json!({
        "devbay_manifest": 1,
        "name": name,
        "library": format!("libdevbay_plugin_{name}.so"),
        "abi": {
            "major": number("DEVBAY_ABI_MAJOR")?,
            "min": number("DEVBAY_ABI_MINOR_MIN")?,
            "max": number("DEVBAY_ABI_MINOR")?,
        },
        "devices": devices,
        "driver": driver,
    });
    write(&project.join(format!("{name}.json")), &serde_json::to_string_pretty(&manifest)?)
}

fn write(path: &Path, text: &str) -> Result<()> {
    let folder = path.parent().context("a file is in a folder")?;
    fs::create_dir_all(folder)?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Replaces text that must be there.
fn replace(text: &str, old: &str, new: &str) -> Result<String> {
    ensure!(text.contains(old), "cli/templates/wheel/pyproject.toml has no `{old}`");
    Ok(text.replace(old, new))
}

/// Returns the one wheel in a folder.
fn only_wheel(folder: &Path) -> Result<PathBuf> {
    let files = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut wheels: Vec<PathBuf> = files.filter_map(|entry| Some(entry.ok()?.path())).collect();
    wheels.retain(|path| path.extension().is_some_and(|extension| extension == "whl"));
    ensure!(wheels.len() == 1, "expected one wheel in {}, found {}", folder.display(), wheels.len());
    Ok(wheels.remove(0))
}

/// What an installed wheel must do: nothing when devbay is imported, and its plugin is tried when devices are asked for.
const CHECK: &str = "\
import sys, devbay
name = sys.argv[1]
library = f'libdevbay_plugin_{name}.so'
def traces():
    modules = [module for module in sys.modules if module.startswith('devbay_plugin')]
    return modules, library in open('/proc/self/maps').read()
assert traces() == ([], False), traces()
print(devbay.devices())
for line in devbay.Runtime().refused:
    print(line)
assert traces() == ([], True), traces()
";

/// Installs a wheel beside devbay into an environment of its own, and lists the devices. A plugin may lack its driver here.
fn check(about: &About, wheel: &Path, out: &Path, folder: &Path) -> Result<()> {
    let python = install_devbay(out, folder)?;
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).arg(wheel))?;
    let alone = |program: &Path| {
        let mut command = Command::new(program);
        command.env_remove("DEVBAY_PLUGIN_PATH").env_remove("PYTHONPATH").current_dir(folder);
        command
    };
    run(alone(&python).args(["-c", CHECK, about.name]))?;
    let command = folder.join("bin/devbay");
    run(alone(&command).arg("devices"))?;
    let output = alone(&command).args(["devices", "--json"]).output()?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let plugins = report["plugins"].as_array().context("a list of plugins")?;
    let ours = plugins.iter().find(|plugin| plugin["name"] == about.name);
    let ours = ours.with_context(|| format!("the command did not find {}", about.name))?;
    let lacks_driver = ["create-failed", "devices-failed"].iter().any(|kind| ours["kind"] == *kind);
    ensure!(ours["outcome"] == "loaded" || lacks_driver, "the plugin was refused: {ours}");
    Ok(())
}
