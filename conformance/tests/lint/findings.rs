//! One library per finding that is not about code.

use crate::{Build, run};
use devbay_conformance::lint::{Settings, lint, lint_bytes};
use std::path::Path;
use std::process::Command;

#[test]
fn b01_the_entry_is_missing() {
    let source = "__attribute__((used)) static int nothing(void) { return 1; }\n";
    let none = || Build::of(&[]);
    none().source("a.c", source).expect(&["entry.missing"], &["devbay_plugin_query_v0 is not exported"]);
    let other = "const void *devbay_plugin_query_v7(void) { return 0; }\n";
    none().source("a.c", other).expect(&["entry.missing"], &["devbay_plugin_query_v7 is", "another major"]);
    let script = Build::new().source("hide.map", "{ local: *; };\n");
    let argument = format!("-Wl,--version-script={}", script.folder.join("hide.map").display());
    let mut hidden = script.arguments(&[&argument]);
    hidden.sources.retain(|path| path.extension().is_some_and(|ending| ending == "c"));
    hidden.expect(&["entry.missing"], &["present but hidden"]);
}

#[test]
fn b28_exports_are_listed() {
    let source = (0..7).map(|i| format!("int helper_{i}(void) {{ return {i}; }}\n")).collect::<String>();
    let words =
        ["7 exports besides the entry", "helper_0, helper_1, helper_2, helper_3, helper_4 and 2 more"];
    Build::new().source("a.c", &source).expect(&["exports.extra"], &words);
    Build::new().source("a.c", &source).arguments(&["-fvisibility=hidden"]).expect(&[], &[]);
}

#[test]
fn b28_unique_symbols_are_listed() {
    let source = "template <class T> struct __attribute__((visibility(\"default\"))) Count { static int n; };\n\
                  template <class T> int Count<T>::n = 0;\n\
                  __attribute__((used)) static int *use = &Count<int>::n;\n";
    Build::new()
        .source("a.cpp", source)
        .expect(&["exports.unique"], &["1 unique symbol: ", "_ZN5CountIiE1nE"]);
    // The fix that the finding suggests.
    Build::new().source("a.cpp", source).arguments(&["-fno-gnu-unique"]).expect(&["exports.extra"], &[]);
}

#[test]
fn b02_symbols_of_the_host_are_errors() {
    let source =
        "extern int devbay_log(int); __attribute__((used)) static int call(void) { return devbay_log(1); }\n";
    Build::new().source("a.c", source).expect(&["imports.host"], &["1 import of the host: devbay_log"]);
    let weak = source.replace("extern", "extern __attribute__((weak))");
    Build::new().source("a.c", &weak).expect(&["imports.host"], &["1 import of the host: devbay_log"]);
}

#[test]
fn b02_symbols_that_no_library_has_are_errors() {
    let source =
        "extern float cosf(float); __attribute__((used)) static float call(float x) { return cosf(x); }\n";
    Build::new().source("a.c", source).expect(&["imports.unresolved"], &["1 symbol: cosf"]);
    Build::new().source("a.c", source).arguments(&["-lm"]).expect(&[], &[]);
}

/// The C library is loaded in every process.
#[test]
fn libraries_may_be_linked_without_the_c_library() {
    let report = Build::new().arguments(&["-nostdlib"]).expect(&[], &[]);
    assert_eq!(report.not_checked, Vec::<String>::new());
}

#[test]
fn b01_drivers_are_opened_at_run_time() {
    for (name, whose) in [
        ("libcuda.so.1", "NVIDIA's driver"),
        ("libamdhip64.so.6", "ROCm"),
        ("libze_loader.so.1", "Level Zero"),
    ] {
        let report = Build::new().needs("libstub.so", Some(name)).expect(&["needed.driver"], &[name, whose]);
        // No driver is installed where the test runs, so its exports are unknown.
        assert!(report.not_checked[0].contains("helper"), "{report:?}");
        assert!(report.not_checked[0].contains(name), "{report:?}");
    }
}

#[test]
fn libraries_that_are_not_there_are_said() {
    let build = Build::new().needs("libstub.so", Some("libnowhere.so.3"));
    build.expect(&["needed.missing"], &["libnowhere.so.3 is not found"]);
    let beside = Build::new().needs("libnowhere.so.3", Some("libnowhere.so.3"));
    let report = beside.arguments(&["-Wl,-rpath,$ORIGIN"]).expect(&[], &[]);
    assert_eq!(report.not_checked, Vec::<String>::new());
}

/// The plugin is not blamed for a library whose exports cannot be read.
#[test]
fn needed_libraries_that_are_damaged_are_said() {
    let build =
        Build::new().needs("libbroken.so.1", Some("libbroken.so.1")).arguments(&["-Wl,-rpath,$ORIGIN"]);
    let library = build.library();
    let broken = build.folder.join("libbroken.so.1");
    let bytes = std::fs::read(&broken).expect("the needed library");
    std::fs::write(&broken, &bytes[..bytes.len() / 4]).expect("a part of it");
    let report = lint(&library, &Settings::of_system()).expect("a library");
    assert_eq!(report.findings, []);
    assert_eq!(report.not_checked.len(), 1);
    for word in ["1 symbol: helper", "libbroken.so.1: the file is damaged"] {
        assert!(report.not_checked[0].contains(word), "{report:?}");
    }
}

#[test]
fn libraries_are_not_needed_by_a_path() {
    Build::new().needs("libstub.so", None).expect(&["needed.path"], &["libstub.so is needed by its path"]);
}

#[test]
fn folders_of_builds_are_said() {
    let build = |folders: &str| Build::new().arguments(&[&format!("-Wl,-rpath,{folders}")]);
    build("/home/builder/out/lib").expect(&["runpath.absolute"], &["RUNPATH has /home/builder/out/lib"]);
    build("$ORIGIN:/home/builder").expect(&["runpath.absolute"], &["RUNPATH has /home/builder"]);
    build("/home/builder").arguments(&["-Wl,--disable-new-dtags"]).expect(&["runpath.absolute"], &["RPATH"]);
    build("$ORIGIN/../lib:/usr/lib/vendor:/opt/vendor/lib").expect(&[], &[]);
    build("lib").expect(&["runpath.relative"], &["`lib`"]);
    build("$ORIGIN:").expect(&["runpath.relative"], &["``"]);
}

#[test]
fn executable_stacks_are_errors() {
    Build::new().arguments(&["-Wl,-z,execstack"]).expect(&["stack.executable"], &["asks for"]);
    // A missing header means the same. The header's type is its first word.
    const PT_GNU_STACK: u32 = 0x6474_e551;
    let mut bytes = std::fs::read(Build::new().library()).expect("the library");
    let headers = 64..64 + 56 * usize::from(bytes[56]);
    let at = headers.step_by(56).find(|&at| bytes[at..at + 4] == PT_GNU_STACK.to_le_bytes());
    let at = at.expect("a header about the stack");
    bytes[at..at + 4].fill(0);
    let report = lint_bytes(&bytes, "it", None, &Settings::of_system()).expect("a library");
    assert_eq!(report.findings.len(), 1);
    assert!(report.findings[0].found.contains("absent"), "{report:?}");
}

#[test]
fn relocations_in_code_are_said() {
    let source = "__asm__(\".text\\n.quad a_word\\n.data\\na_word: .quad 0\\n.text\\n\");\n";
    Build::new().source("a.c", source).arguments(&["-Wl,-z,notext"]).expect(&["text.relocations"], &["code"]);
}

#[test]
fn static_thread_locals_are_said() {
    let source = "static __thread int n; __attribute__((used)) static int call(void) { return ++n; }\n";
    Build::new().source("a.c", source).expect(&[], &[]);
    let build = Build::new().source("a.c", source).arguments(&["-ftls-model=initial-exec"]);
    build.expect(&["tls.static"], &["initial-exec"]);
}

#[test]
fn a_name_is_wanted() {
    let mut build = Build::new();
    build.soname = None;
    build.expect(&["soname.missing"], &["no name"]);
}

/// Data that the loader does not read is not required.
#[test]
fn libraries_without_section_headers_are_judged_alike() {
    let build = Build::new().source("a.c", "int helper(void) { return 1; }\n");
    let library = build.library();
    run(Command::new("strip").arg("--strip-all").arg(&library));
    let mut bytes = std::fs::read(&library).expect("the library");
    // e_shoff, e_shentsize, e_shnum and e_shstrndx.
    bytes[40..48].fill(0);
    bytes[58..64].fill(0);
    let report = lint_bytes(&bytes, "it", None, &Settings::of_system()).expect("a library");
    let found: Vec<&str> = report.findings.iter().map(|finding| finding.check.id).collect();
    assert_eq!(found, ["exports.extra"]);
}

/// Older linkers write another hash table.
#[test]
fn both_hash_tables_are_read() {
    for style in ["sysv", "gnu", "both"] {
        let build = Build::new().arguments(&[&format!("-Wl,--hash-style={style}")]);
        build.source("a.c", "int helper(void) { return 1; }\n").expect(&["exports.extra"], &["helper"]);
    }
}

/// A library without exports has no hash table that gives the number of symbols; the linker chooses where the next table
/// begins.
#[test]
fn symbols_of_libraries_without_exports_are_counted() {
    let source =
        "extern int helper(int); __attribute__((used)) static int call(void) { return helper(1); }\n";
    for linker in linkers() {
        let build = Build::of(&[])
            .source("a.c", source)
            .arguments(&linker.iter().map(String::as_str).collect::<Vec<_>>());
        let report = build.expect(&["entry.missing", "imports.unresolved"], &[]);
        assert_eq!(report.findings[1].found, "no needed library exports 1 symbol: helper", "{linker:?}");
    }
}

/// Returns arguments for the linkers of this machine: the compiler's own, and Rust's copy of lld.
fn linkers() -> Vec<Vec<String>> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).args(["--print", "sysroot"]).output().expect("rustc starts");
    let sysroot = String::from_utf8(output.stdout).expect("a path in UTF-8");
    let folder = format!("{}/lib/rustlib/x86_64-unknown-linux-gnu/bin/gcc-ld", sysroot.trim());
    let lld = Some(folder).filter(|folder| Path::new(folder).join("ld.lld").is_file());
    if lld.is_none() {
        eprintln!("not run with lld: this Rust comes without it");
    }
    let lld = lld.map(|folder| vec![format!("-B{folder}"), "-fuse-ld=lld".to_owned()]);
    std::iter::once(vec!["-fuse-ld=bfd".to_owned()]).chain(lld).collect()
}

#[test]
fn errors_come_first() {
    let mut build = Build::new().arguments(&["-Wl,-rpath,/home/builder", "-Wl,-z,execstack"]);
    build.soname = None;
    build.expect(&["stack.executable", "runpath.absolute", "soname.missing"], &[]);
}
