"""Plugins in wheels: found after `pip install` by Python and by the command, without environment variables and imports.

The wheels are made by the projects that `devbay new-plugin --python-wheel` writes. They go into an environment that has the
package and the command of the workspace's build.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import devbay

# The workspace's build, if the package under test is laid out in it.
BUILT = Path(devbay.__file__).parents[2] / "debug"
COMMAND = BUILT / "devbay"

pytestmark = pytest.mark.skipif(not COMMAND.exists(), reason="needs the command of the workspace's build")

RELU = b'devbay-program 1\nprogram "p"(%x: f32[n]) {\n  %y: f32[n] = Relu@14(%x)\n  return %y\n}\n'

VARIABLES = ("DEVBAY_PLUGIN_PATH", "DEVBAY_CONFIG", "DEVBAY_LAYERS", "PYTHONPATH")


class Environment:
    """A Python environment with devbay in it, as its wheel installs it."""

    def __init__(self, folder):
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        self.python = folder / "bin" / "python"
        scheme = {"base": str(folder), "platbase": str(folder)}
        self.packages = Path(sysconfig.get_path("platlib", "venv", scheme))
        (self.packages / "devbay").symlink_to(Path(devbay.__file__).parent)
        link(COMMAND, folder / "bin" / "devbay")
        info = self.packages / f"devbay-{devbay.__version__}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: devbay\nVersion: {devbay.__version__}\n")
        # NumPy is that of the tests.
        (self.packages / "numpy.pth").write_text(sysconfig.get_path("platlib") + "\n")

    def pip(self, *arguments):
        run([sys.executable, "-m", "pip", "--python", self.python, *arguments])

    def install(self, *wheels):
        self.pip("install", "--quiet", "--no-index", "--no-deps", "--force-reinstall", *wheels)

    def python_says(self, code):
        return json.loads(run([self.python, "-c", f"import json, sys, devbay\n{code}"], self.folder))

    def devices(self):
        return self.python_says("print(json.dumps([device.name for device in devbay.devices()]))")

    def refused(self):
        return self.python_says("print(json.dumps(devbay.Runtime().refused))")

    def command(self):
        """Returns the command's devices and its plugins by name."""
        report = json.loads(run([self.folder / "bin" / "devbay", "devices", "--json"], self.folder))
        names = [device["device"] for device in report["devices"]]
        return names, {plugin["name"]: plugin for plugin in report["plugins"]}


def run(command, folder=None):
    """Runs a command without this machine's settings, and returns its output."""
    variables = {key: value for key, value in os.environ.items() if key not in VARIABLES}
    variables["XDG_CONFIG_HOME"] = "/nonexistent"
    ended = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def link(existing, new):
    try:
        os.link(existing, new)
    except OSError:
        shutil.copy2(existing, new)


def project(folder, name):
    """Writes a project in C with a wheel."""
    run([COMMAND, "new-plugin", name, "--lang", "c", "--python-wheel", "--dir", folder])
    return folder


def wheel(project, library=None):
    """Builds a project's wheel, with a library that exists or its own."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    given = [f"DEVBAY_PLUGIN_LIBRARY={library}"] if library else []
    run(["env", *given, *pip, "--wheel-dir", project / "dist", project])
    [built] = (project / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def npu(tmp_path_factory):
    """A new plugin's project, and its wheel."""
    folder = project(tmp_path_factory.mktemp("project") / "npu", "my-npu")
    return folder, wheel(folder)


@pytest.fixture
def environment(tmp_path):
    return Environment(tmp_path / "environment")


needs_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")


@needs_cmake
def test_a_new_plugins_wheel_is_found_and_gone(npu, environment):
    _, file = npu
    system = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert file.name == f"devbay_plugin_my_npu-0.1.0-py3-none-{system}.whl"
    with zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if not ".dist-info/" in name]
    library = "libdevbay_plugin_my-npu.so"
    assert sorted(Path(name).name for name in names) == ["__init__.py", library, "my-npu.json"]
    assert "my-npu:0" not in environment.devices()

    environment.install(file)
    assert "my-npu:0" in environment.devices() and environment.refused() == []
    devices, plugins = environment.command()
    assert "my-npu:0" in devices
    assert plugins["my-npu"]["origin"] == "package devbay-plugin-my-npu 0.1.0"

    # Importing devbay loads nothing of it, and making a runtime imports nothing.
    code = """
modules = lambda: [name for name in sys.modules if name.startswith(("devbay_plugin", "devbay._plugins"))]
loaded = lambda: "my-npu" in open("/proc/self/maps").read()
seen = [modules(), loaded()]
devbay.devices()
print(json.dumps([*seen, modules(), loaded()]))"""
    assert environment.python_says(code) == [[], False, ["devbay._plugins"], True]

    # It can be left out, and runs a model.
    code = "print(json.dumps([device.name for device in devbay.Runtime({}).devices]))"
    assert "my-npu:0" not in environment.python_says(code.format("packages=False"))
    assert "my-npu:0" not in environment.python_says(code.format("search=False"))
    assert "my-npu:0" in environment.python_says(code.format("options={'search': True}"))
    code = f'y = devbay.Session({RELU}, device="my-npu:0").run({{"x": __import__("numpy").array([-1, 2], "f")}})["y"]'
    assert environment.python_says(f"{code}\nprint(json.dumps(y.tolist()))") == [0, 2]

    environment.pip("uninstall", "--quiet", "--yes", "devbay-plugin-my-npu")
    assert "my-npu:0" not in environment.devices() and "my-npu:0" not in environment.command()[0]
    assert not (environment.packages / "devbay_plugin_my_npu").exists()


@needs_cmake
def test_a_changed_library_is_refused_and_a_rehashed_wheel_is_not(npu, environment, tmp_path):
    folder, file = npu
    # As auditwheel and signing do: other bytes, the same manifest.
    changed = tmp_path / file.name
    with zipfile.ZipFile(file) as before, zipfile.ZipFile(changed, "w") as after:
        for info in before.infolist():
            content = before.read(info)
            after.writestr(info, content + b"\0" if info.filename.endswith(".so") else content)
    environment.install(changed)
    [(title, reason)] = environment.refused()
    assert "package devbay-plugin-my-npu 0.1.0" in title
    assert "the library's sha256 is" in reason and "the manifest says" in reason
    devices, plugins = environment.command()
    assert "my-npu:0" not in devices and plugins["my-npu"]["kind"] == "wrong-hash"
    code = f"""
try:
    devbay.Session({RELU}, device="my-npu:0")
except devbay.Error as error:
    print(json.dumps(str(error)))"""
    assert "the plugin was refused: the library's sha256 is" in environment.python_says(code)

    said = run([sys.executable, folder / "rehash_wheel.py", changed])
    assert "devbay_plugin_my_npu/my-npu.json has sha256" in said
    assert run([sys.executable, folder / "rehash_wheel.py", changed]) == ""
    environment.install(changed)
    assert "my-npu:0" in environment.devices() and environment.refused() == []


def test_broken_packages_are_refused_and_others_go_on(environment):
    def package(name, entry_points, files=()):
        info = environment.packages / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_bytes(entry_points)
        for path, text in files:
            (environment.packages / path).parent.mkdir(exist_ok=True)
            (environment.packages / path).write_text(text)

    group = b"[devbay.plugins]\n"
    package("a-missing", group + b"missing = a_missing\n")
    package("b-unclear", group + b"unclear = ../b\n")
    package("c-damaged", group + b"damaged = c_damaged\n", [("c_damaged/damaged.json", "no manifest")])
    package("d-other", b"\xff\xfe")
    null = BUILT / "libdevbay_plugin_null.so"
    manifest = {"devbay_manifest": 1, "name": "null", "library": str(null)}
    package("e-unhashed", group + b"null = e_unhashed\n", [("e_unhashed/null.json", json.dumps(manifest))])
    found = [(title.rsplit(" (", 1)[1], reason) for title, reason in environment.refused()]
    words = {
        "package a-missing 1.0)": "expected missing.json or libdevbay_plugin_missing.so in",
        "package b-unclear 1.0)": "found `unclear = ../b`",
        "package c-damaged 1.0)": "not a manifest",
        "package e-unhashed 1.0)": "its manifest has no sha256",
    }
    assert sorted(title for title, _ in found) == sorted(words)
    for title, reason in found:
        assert words[title] in reason
    # The command tries such a library in a process of its own first.
    devices, plugins = environment.command()
    assert "null:0" in devices and plugins["null"]["origin"] == "package e-unhashed 1.0"
    assert plugins["missing"]["outcome"] == "refused"


@pytest.mark.skipif(not (BUILT / "libdevbay_plugin_opencl.so").exists(), reason="needs `cargo xtask opencl`")
def test_a_library_that_was_built_elsewhere_is_packed(environment, tmp_path):
    library = BUILT / "libdevbay_plugin_opencl.so"
    file = wheel(project(tmp_path / "opencl", "opencl"), library)
    environment.install(file)
    with zipfile.ZipFile(file) as archive:
        assert archive.getinfo(f"devbay_plugin_opencl/{library.name}").file_size < library.stat().st_size, "stripped"
    _, plugins = environment.command()
    # Without a driver it is refused for that, and for nothing else.
    assert plugins["opencl"]["origin"] == "package devbay-plugin-opencl 0.1.0"
    assert plugins["opencl"]["outcome"] == "loaded" or plugins["opencl"]["kind"] in ("create-failed", "devices-failed")
    is_listed = any(name.startswith("opencl:") for name in environment.devices())
    assert is_listed == (plugins["opencl"]["outcome"] == "loaded")
