"""Builds the plugin's library for a wheel, strips it, and writes its manifest with the SHA-256 of the result.

DEVBAY_PLUGIN_LIBRARY names a library that was built elsewhere, such as by a cross compiler; then nothing is built here.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLUGIN = "template-plugin"
PACKAGE = "devbay_plugin_template_plugin"
# As manifests name them, which is as Rust does.
SYSTEMS = {"linux": "linux", "darwin": "macos", "win32": "windows"}
PROCESSORS = {"amd64": "x86_64", "arm64": "aarch64"}


class PluginBuildHook(BuildHookInterface):
    """Adds the library and its manifest to the wheel."""

    def initialize(self, version, build_data):
        root = Path(self.root)
        folder = root / "build" / "wheel"
        built = build(root, folder / "objects")
        package = folder / "package"
        shutil.rmtree(package, ignore_errors=True)
        package.mkdir(parents=True)
        library = Path(shutil.copy(built, package))
        if sys.platform != "win32":
            option = "-x" if sys.platform == "darwin" else "--strip-unneeded"
            run(os.environ.get("STRIP", "strip"), option, library)
        manifest = json.loads((root / f"{PLUGIN}.json").read_text())
        processor = platform.machine().lower()
        manifest |= {
            "library": library.name,
            "sha256": hashlib.sha256(library.read_bytes()).hexdigest(),
            "os": SYSTEMS.get(sys.platform, sys.platform),
            "arch": PROCESSORS.get(processor, processor),
        }
        (package / f"{PLUGIN}.json").write_text(json.dumps(manifest, indent=2) + "\n")
        build_data["pure_python"] = False
        # Any Python 3, this system: the library does not use Python.
        build_data["tag"] = "py3-none-" + tag_of(sysconfig.get_platform())
        # An editable package has its code elsewhere; the library and the manifest are copies there, too.
        files = "force_include_editable" if version == "editable" else "force_include"
        for file in package.iterdir():
            build_data[files][str(file)] = f"{PACKAGE}/{file.name}"


def tag_of(system):
    """Writes a system's name as wheels do."""
    return system.replace("-", "_").replace(".", "_")


def build(root, folder):
    """Builds the library in release, and returns its path."""
    if given := os.environ.get("DEVBAY_PLUGIN_LIBRARY"):
        return Path(given)
    if (root / "Cargo.toml").exists():
        run("cargo", "build", "--release", "--target-dir", folder, "--manifest-path", root / "Cargo.toml")
        folder = folder / "release"
    else:
        run("cmake", "-S", root, "-B", folder, "-DCMAKE_BUILD_TYPE=Release")
        run("cmake", "--build", folder, "--config", "Release")
    built = [file for file in folder.glob("*devbay_plugin_*") if file.suffix in (".so", ".dylib", ".dll")]
    if len(built) != 1:
        sys.exit(f"expected one library in {folder}, found {[file.name for file in built]}")
    return built[0]


def run(*command):
    """Runs a command to its end."""
    try:
        subprocess.run(command, check=True)
    except FileNotFoundError:
        sys.exit(f"{command[0]} is not installed, or not in PATH")
