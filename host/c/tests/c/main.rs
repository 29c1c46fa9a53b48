//! The library from C and C++: programs that are compiled with AddressSanitizer and call what this workspace has built.
//!
//! Needs a C and a C++ compiler: `CC` and `CXX`, else `cc` and `c++`.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folder of this crate.
fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A test's own folder, removed at its end, with the library in it under the names that programs look for.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("devbay-c-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a temporary folder");
        for name in ["libdevbay.so", "libdevbay.so.0"] {
            let link = path.join(name);
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(library(), link).expect("a link");
        }
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the library that cargo built for these tests: beside the folder of the test program.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("this program's path");
    let folder = program.ancestors().nth(2).expect("cargo builds tests two folders deep");
    folder.join("libdevbay.so")
}

fn tool(variable: &str, otherwise: &str) -> OsString {
    std::env::var_os(variable).unwrap_or_else(|| otherwise.into())
}

/// Runs a command and returns its output.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?} ended with {}:\n{out}{err}", output.status);
    out
}

/// Compiles a program with warnings as errors and sanitizers, and returns its path.
fn program(folder: &Folder, compiler: &OsString, standard: &str, source: &str) -> PathBuf {
    let program = folder.0.join("program");
    let mut command = Command::new(compiler);
    command.arg(format!("-std={standard}")).args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-g", "-O1"]);
    command.args(["-D_POSIX_C_SOURCE=200809L", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    command.arg("-I").arg(sources().join("include")).arg(sources().join("tests").join(source));
    command.arg("-o").arg(&program).arg("-L").arg(&folder.0).args(["-ldevbay", "-lpthread"]);
    run(command.arg(format!("-Wl,-rpath,{}", folder.0.display())));
    program
}

fn model() -> PathBuf {
    sources().join("../../models/mnist_cnn/model.onnx")
}

#[test]
fn the_library_keeps_what_the_header_promises_to_c() {
    let folder = Folder::new("all");
    let program = program(&folder, &tool("CC", "cc"), "c11", "all.c");
    let said = run(Command::new(program).arg(model()).arg(&folder.0));
    assert_eq!(said.trim(), "all promises are kept");
}

#[test]
fn the_classes_of_cpp_keep_what_they_promise() {
    let folder = Folder::new("classes");
    let program = program(&folder, &tool("CXX", "c++"), "c++17", "classes.cpp");
    let said = run(Command::new(program).arg(model()).arg(&folder.0));
    assert_eq!(said.trim(), "all promises are kept");
}

#[test]
fn the_library_exports_the_functions_of_its_header_and_nothing_else() {
    let header = fs::read_to_string(sources().join("include/devbay.h")).expect("the header");
    let mut after_mark = false;
    let mut declared = BTreeSet::new();
    for line in header.lines() {
        let name = line.split('(').next().and_then(|head| head.rsplit([' ', '*']).next());
        if after_mark && let Some(name) = name.filter(|name| name.starts_with("devbay_")) {
            declared.insert(name.to_owned());
        }
        after_mark = line.starts_with("DEVBAY_API");
    }
    let listed = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library()));
    let exported: BTreeSet<String> =
        listed.lines().filter_map(|line| line.split(' ').nth(2)).map(str::to_owned).collect();
    assert!(declared.len() > 50, "the header declares only {declared:?}");
    assert_eq!(declared, exported);
    // Whoever links the library finds it by the name that stands for what it promises.
    let dynamic = run(Command::new("readelf").arg("-d").arg(library()));
    assert!(dynamic.contains("[libdevbay.so.0]"), "{dynamic}");
}
