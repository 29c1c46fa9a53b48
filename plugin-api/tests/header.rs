//! The C header as C and C++ compilers see it.
//!
//! Needs a C and a C++ compiler: `CC` and `CXX`, else `cc` and `c++`. Without one the tests fail and say so.

use std::path::{Path, PathBuf};
use std::process::Command;

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// Compiles a source without making an object, and gives what the compiler says.
fn compile(variable: &str, default: &str, arguments: &[&str], source: &Path) -> Result<(), String> {
    let compiler = std::env::var(variable).unwrap_or_else(|_| default.to_owned());
    let output = Command::new(&compiler)
        .args(["-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"])
        .args(arguments)
        .arg(source)
        .output()
        .unwrap_or_else(|e| panic!("the ABI's tests need a compiler: {compiler} ({variable}): {e}"));
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// The arguments for a source of C11 and a target.
fn c11<'a>(target: &[&'a str]) -> Vec<&'a str> {
    [&["-std=c11", "-x", "c"], target].concat()
}

/// Returns the targets that the header is compiled for: 64 bits, and 32 bits if the compiler is one for x86. The 32-bit
/// target uses no system headers, because a machine may have them only for 64 bits.
fn targets() -> &'static [&'static [&'static str]] {
    if cfg!(target_arch = "x86_64") { &[&[], &["-m32", "-ffreestanding"]] } else { &[&[]] }
}

fn check_standards(variable: &str, default: &str, language: &str, standards: &[&str]) {
    let header = include().join("devbay_plugin.h");
    for (standard, target) in standards.iter().flat_map(|s| targets().iter().map(move |t| (s, t))) {
        let standard = format!("-std={standard}");
        let arguments = [&[standard.as_str(), "-x", language], *target].concat();
        compile(variable, default, &arguments, &header).unwrap_or_else(|e| panic!("{arguments:?}: {e}"));
    }
}

#[test]
fn the_header_compiles_as_c() {
    check_standards("CC", "cc", "c", &["c99", "c11", "c17"]);
}

#[test]
fn the_header_compiles_as_cpp() {
    check_standards("CXX", "c++", "c++", &["c++11", "c++14", "c++17", "c++20"]);
}

/// The small functions beside it compile alike, none of them with a warning, in a source that uses each.
#[test]
fn the_helpers_compile_as_c_and_as_cpp() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/helpers.c");
    let include = format!("-I{}", include().display());
    for standard in ["c99", "c11", "c17"] {
        let arguments = [&*format!("-std={standard}"), "-x", "c", "-Wconversion", &include];
        compile("CC", "cc", &arguments, &source).unwrap_or_else(|e| panic!("{arguments:?}: {e}"));
    }
    for standard in ["c++11", "c++17", "c++20"] {
        let arguments = [&*format!("-std={standard}"), "-x", "c++", "-Wconversion", &include];
        compile("CXX", "c++", &arguments, &source).unwrap_or_else(|e| panic!("{arguments:?}: {e}"));
    }
}

/// The helpers return the right values.
#[test]
fn the_helpers_do_what_they_say() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/helpers.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("helpers");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let include = format!("-I{}", include().display());
    let built = Command::new(&compiler).arg(&include).arg(&source).arg("-o").arg(&program).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new(&program).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn the_header_needs_two_headers_of_the_compilers_alone() {
    let text = std::fs::read_to_string(include().join("devbay_plugin.h")).unwrap();
    let includes: Vec<&str> = text.lines().filter(|line| line.starts_with("#include")).collect();
    assert_eq!(includes, ["#include <stddef.h>", "#include <stdint.h>"]);
}

/// A C compiler lays the structs out as Rust does; the same check notices when it does not.
#[test]
fn b04_c_and_rust_have_one_layout() {
    for target in targets() {
        let checked = compile("CC", "cc", &c11(target), &include().join("check_layout.c"));
        checked.unwrap_or_else(|e| panic!("{target:?}: {e}"));
    }
    // A header that says something else of one field.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("another-layout");
    std::fs::create_dir_all(&folder).unwrap();
    let read = |name| std::fs::read_to_string(include().join(name)).unwrap();
    let header = read("devbay_plugin.h").replacen("uint32_t n_slots;", "uint64_t n_slots;", 1);
    std::fs::write(folder.join("devbay_plugin.h"), header).unwrap();
    std::fs::write(folder.join("check_layout.c"), read("check_layout.c")).unwrap();
    for target in targets() {
        let said = compile("CC", "cc", &c11(target), &folder.join("check_layout.c"));
        let said = said.expect_err("the headers differ");
        assert!(said.contains("devbay_host_api.n_slots") || said.contains("devbay_host_api.ctx"), "{said}");
    }
}
