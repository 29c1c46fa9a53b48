//! `devbay new-plugin`: a project builds with the commands of its README, passes the conformance suite, and is short;
//! invalid names and folders are refused, and nothing is written.

use crate::support::{Finished, Folder, command, devbay, finish};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A project and the commands of its README.
struct Project {
    folder: PathBuf,
    commands: Vec<String>,
}

/// Writes a project into `folder` and reads its README.
#[track_caller]
fn project(folder: &Folder, name: &str, lang: &str) -> Project {
    let project = folder.path(name);
    devbay(["new-plugin", name, "--lang", lang, "--dir", &project.display().to_string()]).expect(0);
    let readme = fs::read_to_string(project.join("README.md")).unwrap();
    let blocks = readme.split("```console\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let commands = blocks.flat_map(str::lines).map(str::to_owned).collect();
    Project { folder: project, commands }
}

impl Project {
    /// Runs the only command of the README that begins with this text, with `devbay` in the search path.
    #[track_caller]
    fn run(&self, begins: &str) -> Finished {
        let mut fitting = self.commands.iter().filter(|command| command.starts_with(begins));
        let (Some(line), None) = (fitting.next(), fitting.next()) else {
            panic!("expected one command {begins}... in the README, found {:#?}", self.commands);
        };
        let tool = Path::new(env!("CARGO_BIN_EXE_devbay")).parent().unwrap();
        let path = std::env::join_paths(
            [tool.to_owned()].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
        );
        let mut shell = Command::new("sh");
        // Without this machine's settings, as for the command itself.
        for (key, value) in command().get_envs() {
            match value {
                Some(value) => shell.env(key, value),
                None => shell.env_remove(key),
            };
        }
        // The project's own folder for cargo's output, and none of this build's flags.
        shell.env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS").env("CARGO_NET_OFFLINE", "true");
        finish(shell.args(["-ec", line]).current_dir(&self.folder).env("PATH", path.unwrap()))
    }

    /// Returns the project's files, as paths from its folder.
    fn files(&self) -> Vec<String> {
        let mut files = Vec::new();
        let mut folders = vec![self.folder.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    files.push(path.strip_prefix(&self.folder).unwrap().display().to_string());
                }
            }
        }
        files.sort();
        files
    }

    /// Counts the lines of the files that a vendor reads.
    fn n_lines(&self, files: &[&str]) -> usize {
        files.iter().map(|file| fs::read_to_string(self.folder.join(file)).unwrap().lines().count()).sum()
    }

    /// Tests the library as the README describes, and expects that all three kernels were tested, nothing failed, and lint
    /// finds nothing.
    #[track_caller]
    fn conforms(&self, library: &str) {
        let path = self.folder.join(library);
        let library = path.display().to_string();
        let arguments = ["conformance", &library, "--json"];
        let report = devbay(arguments).expect(0).json();
        assert_eq!(report["summary"]["failed"], 0, "{}", report["tests"]);
        assert_eq!(report["level"]["grade"], "gold");
        let passed = |id: &str| {
            let tests = report["tests"].as_array().unwrap();
            let test = tests.iter().find(|test| test["id"] == id).unwrap_or_else(|| panic!("no test {id}"));
            assert_eq!(test["outcome"], "passed", "{test}");
        };
        for id in ["load.exports", "stress.leak.objects", "numerics.relu", "numerics.add", "numerics.matmul"]
        {
            passed(id);
        }
        for id in ["onnx/test_relu", "onnx/test_add", "onnx/test_matmul_2d"] {
            passed(id);
        }
        if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            devbay(["lint", &library, "--deny", "warnings"]).expect(0);
        }
    }

    /// Checks that the template's name is gone, and that the manifest loads the plugin.
    #[track_caller]
    fn is_named(&self, name: &str, built: &str) {
        let built_in = format!("{}/", built.split('/').next().unwrap());
        for file in self.files().iter().filter(|file| !file.starts_with(&built_in)) {
            let text = fs::read_to_string(self.folder.join(file)).unwrap();
            for word in ["template-plugin", "template_plugin", "TEMPLATE"] {
                assert!(!text.contains(word) && !file.contains(word), "{file} has the template's {word}");
            }
        }
        let manifest = format!("{name}.json");
        fs::copy(self.folder.join(&manifest), self.folder.join(built).join(&manifest)).unwrap();
        let folder = self.folder.join(built);
        let found = finish(command().args(["devices", "--json"]).env("DEVBAY_PLUGIN_PATH", folder)).expect(0);
        let json = found.json();
        let plugins = json["plugins"].as_array().unwrap();
        let ours = plugins.iter().find(|plugin| plugin["name"] == name).expect("the plugin");
        assert_eq!(ours["outcome"], "loaded", "{ours}");
    }
}

/// Returns whether a program of this machine can be started.
fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Checks a project for a compiler of C or C++, built by hand and, if installed, by CMake.
#[track_caller]
fn compiles_and_conforms(lang: &str, compiler: &str, sources: &[&str]) {
    let folder = Folder::new();
    let project = project(&folder, "my-npu", lang);
    let mut files = vec![
        ".github/workflows/conformance.yml",
        ".gitignore",
        "CMakeLists.txt",
        "README.md",
        "include/devbay_helpers.h",
        "include/devbay_plugin.h",
        "my-npu.json",
    ];
    files.extend(sources);
    assert_eq!(project.files(), files);
    assert!(project.n_lines(&sources[sources.len() - 1..]) <= 300);

    let compiled = project.run(&format!("mkdir -p build && {compiler} "));
    assert_eq!(compiled.err, "", "the compiler warns");
    project.is_named("my-npu", "build");
    project.conforms("build/libdevbay_plugin_my-npu.so");
    project.run("devbay devices").expect(0).prints(&["my-npu:0"]);
    if is_installed("cmake") {
        fs::remove_dir_all(project.folder.join("build")).unwrap();
        let built = project.run("cmake -B").expect(0);
        assert_eq!(built.err, "", "the compiler warns");
        project.run("ctest").expect(0);
    } else {
        eprintln!("not run, as there is no cmake: the project's CMakeLists.txt");
    }
}

#[test]
fn b07_c_builds_and_conforms() {
    compiles_and_conforms("c", "cc", &["src/plugin.c"]);
}

#[test]
fn b07_cpp_builds_and_conforms() {
    compiles_and_conforms("cpp", "c++", &["src/exports.map", "src/plugin.cpp"]);
}

#[test]
fn b07_rust_builds_and_conforms() {
    let folder = Folder::new();
    let project = project(&folder, "my-npu", "rust");
    let files = [
        ".github/workflows/conformance.yml",
        ".gitignore",
        "Cargo.toml",
        "README.md",
        "build.rs",
        "my-npu.json",
        "rustfmt.toml",
        "src/lib.rs",
        "tests/conformance.rs",
        "vendor/devbay-plugin-api/Cargo.toml",
    ];
    let found = project.files();
    assert_eq!(found.iter().filter(|file| !is_sdk(file)).collect::<Vec<_>>(), files);
    assert_eq!(found.iter().filter(|file| file.ends_with("src/sdk/mod.rs")).count(), 1);
    assert!(project.n_lines(&["src/lib.rs"]) <= 150);
    let format = Command::new("rustfmt")
        .args(["--check", "--edition", "2024", "src/lib.rs"])
        .current_dir(&project.folder)
        .output();
    assert!(format.unwrap().status.success(), "the project is not formatted");

    let built = project.run("cargo build --release").expect(0);
    assert!(!built.err.contains("warning"), "{}", built.err);
    project.is_named("my-npu", "target/release");
    project.conforms("target/release/libdevbay_plugin_my_npu.so");
    project.run("devbay devices").expect(0).prints(&["my-npu:0"]);
    project.run("cargo test").expect(0).prints(&["the_plugin_conforms ... ok"]);
}

/// Returns whether a file of a Rust project is one of the SDK's sources or its licence.
fn is_sdk(file: &str) -> bool {
    let sdk = "vendor/devbay-plugin-api/";
    file.starts_with(&format!("{sdk}src/")) || file.starts_with(&format!("{sdk}LICENSE"))
}

#[test]
fn names_and_folders_that_will_not_do_are_refused() {
    let folder = Folder::new();
    let at = |name: &str| folder.path(name).display().to_string();
    let long = "n".repeat(65);
    for name in ["Npu", "1npu", "-npu", "_npu", "npu.so", "npu/x", "", "npü", "a b", &long] {
        let found = devbay(["new-plugin", "--lang", "c", "--dir", &at("wrong"), "--", name]).expect(2);
        found.says(&["lowercase letters", &format!("{name:?}")]);
    }
    assert!(!folder.path("wrong").exists());
    devbay(["new-plugin", "npu", "--lang", "java", "--dir", &at("wrong")]).expect(2).says(&["java"]);
    devbay(["new-plugin", "npu"]).expect(2).says(&["--lang"]);

    let new = |dir: &str| devbay(["new-plugin", "npu", "--lang", "c", "--dir", &at(dir)]);
    fs::create_dir(folder.path("full")).unwrap();
    folder.write("full/mine.txt", "mine");
    new("full").expect(2).says(&["full is there, and not empty"]);
    folder.write("file", "mine");
    new("file").expect(2).says(&["file is there, and no folder"]);
    new("no/such").expect(1).says(&["cannot write", "no/such"]);
    fs::create_dir(folder.path("here")).unwrap();
    let mut here = command();
    here.args(["new-plugin", "npu", "--lang", "c", "--dir", "../here"]).current_dir(folder.path("here"));
    finish(&mut here).expect(2).says(&["the current folder"]);
    // Nothing was written before the failure.
    let mut left: Vec<_> = fs::read_dir(folder.path("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["file", "full", "here"]);
    assert_eq!(fs::read_dir(folder.path("full")).unwrap().count(), 1);
    assert_eq!(fs::read_dir(folder.path("here")).unwrap().count(), 0);
}

#[test]
fn a_project_goes_to_a_folder_of_its_name_or_an_empty_one() {
    let folder = Folder::new();
    let mut named = command();
    named.args(["new-plugin", "npu2", "--lang", "c"]).current_dir(folder.path(""));
    finish(&mut named).expect(0).prints(&["cd npu2", "cmake -B build"]);
    assert!(folder.path("npu2/npu2.json").is_file());
    fs::create_dir(folder.path("empty")).unwrap();
    let empty = folder.path("empty").display().to_string();
    let json = devbay(["new-plugin", "npu", "--lang", "c", "--json", "--dir", &empty]).expect(0).json();
    assert_eq!((&json["name"], &json["language"]), (&"npu".into(), &"c".into()));
    for file in json["files"].as_array().unwrap() {
        assert!(folder.path("empty").join(file.as_str().unwrap()).is_file(), "{file}");
    }
}

/// The files that make a project a Python package. The package's tests build its wheel (`host/python/tests/test_plugins.py`).
#[test]
fn a_project_is_a_python_package_on_request() {
    let folder = Folder::new();
    for lang in ["c", "cpp", "rust"] {
        let at = folder.path(lang);
        let dir = at.display().to_string();
        let plain = folder.path(&format!("{lang}-plain")).display().to_string();
        let new = ["new-plugin", "my-npu", "--lang", lang, "--json", "--dir"];
        let next = devbay(new.iter().copied().chain([&*plain])).expect(0).json()["next"].clone();
        let json = devbay(new.iter().copied().chain([&*dir, "--python-wheel"])).expect(0).json();
        let commands = json["next"].as_array().unwrap();
        assert_eq!(commands.len(), next.as_array().unwrap().len() + 1);
        assert!(commands.last().unwrap().as_str().unwrap().starts_with("pip wheel"), "{commands:?}");
        let module = "python/devbay_plugin_my_npu/__init__.py";
        for file in ["pyproject.toml", "hatch_build.py", "rehash_wheel.py", module, ".gitignore", "README.md"]
        {
            assert!(at.join(file).is_file(), "{lang}: {file}");
            let text = fs::read_to_string(at.join(file)).unwrap();
            assert!(!text.contains("template"), "{lang}: {file} has the template's name");
        }
        let project = fs::read_to_string(at.join("pyproject.toml")).unwrap();
        assert!(project.contains("my-npu = \"devbay_plugin_my_npu\""), "{project}");
        let readme = fs::read_to_string(at.join("README.md")).unwrap();
        assert!(readme.contains("# my-npu") && readme.contains("## A wheel for Python"), "{readme}");
    }
    let dir = folder.path("wrong").display().to_string();
    let wrong = devbay(["new-plugin", "npu-", "--lang", "c", "--python-wheel", "--dir", &dir]);
    wrong.expect(2).says(&["a Python package's name"]);
}
