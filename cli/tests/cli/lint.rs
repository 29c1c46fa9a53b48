//! `devbay lint`: its table, its JSON, and its exit codes.

use crate::support::{Folder, devbay, plugin_library};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the plugin that vendors start from, with further arguments for the compiler.
fn minimal(folder: &Folder, arguments: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let library = folder.path("libdevbay_plugin_minimal.so");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O1", "-shared", "-fPIC", "-pthread", "-I"]).arg(root.join("plugin-api/include"));
    cc.args(arguments).arg("-o").arg(&library).arg(root.join("conformance/fixtures/minimal.c"));
    let compiled = cc.output().expect("expected a C compiler called cc");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    library
}

fn lint(library: &Path, more: &[&str]) -> Vec<String> {
    let arguments = ["lint", &library.display().to_string()].map(str::to_owned);
    arguments.into_iter().chain(more.iter().map(|&text| text.to_owned())).collect()
}

#[test]
fn a_clean_plugin_ends_with_0() {
    let folder = Folder::new();
    let library = minimal(&folder, &["-Wl,-soname,libdevbay_plugin_minimal.so"]);
    let finished =
        devbay(lint(&library, &["--deny", "warnings"])).expect(0).prints(&["0 errors, 0 warnings"]);
    assert_eq!(finished.out.lines().count(), 3, "{}", finished.out);
    let json = devbay(lint(&library, &["--json"])).expect(0).json();
    assert_eq!((&json["findings"], &json["not_checked"]), (&serde_json::json!([]), &serde_json::json!([])));
    devbay(lint(&plugin_library(), &["--deny", "warnings"])).expect(0);
}

#[test]
fn warnings_fail_where_they_are_denied() {
    let folder = Folder::new();
    let library = minimal(&folder, &[]);
    let words = [
        "FINDING         SEVERITY  RULES  FOUND",
        "soname.missing  warning",
        "mend: link with `-Wl,-soname,FILE`",
        "0 errors, 1 warning",
    ];
    devbay(lint(&library, &[])).expect(0).prints(&words);
    devbay(lint(&library, &["--deny", "warnings"]))
        .expect(3)
        .prints(&words)
        .says(&["lint found 0 errors, 1 warning"]);
    devbay(lint(&library, &["--deny", "warnings", "--json"])).expect(3);
}

#[test]
fn errors_fail_and_are_data() {
    let folder = Folder::new();
    let library = minimal(&folder, &["-Wl,-z,execstack", "-Wl,-rpath,/home/builder/out"]);
    let finished = devbay(lint(&library, &["--json"])).expect(3).says(&["lint found 1 error, 2 warnings"]);
    let json = finished.json();
    assert_eq!(
        (&json["report_version"], &json["errors"], &json["warnings"]),
        (&1.into(), &1.into(), &2.into())
    );
    let first = &json["findings"][0];
    assert_eq!((&first["id"], &first["severity"]), (&"stack.executable".into(), &"error".into()));
    assert!(first["rules"].is_array() && first["why"].is_string() && first["mend"].is_string());
    assert!(json["findings"][1]["found"].as_str().unwrap().contains("/home/builder/out"));
    assert_eq!(json["library"], library.display().to_string());
}

#[test]
fn what_is_no_library_is_refused() {
    let folder = Folder::new();
    let text = folder.write("libtext.so", "no library");
    devbay(lint(&text, &[])).expect(6).says(&["libtext.so", "does not begin with an ELF header"]);
    let bytes = std::fs::read(minimal(&folder, &[])).unwrap();
    let cut = folder.write("libcut.so", &bytes[..bytes.len() / 2]);
    devbay(lint(&cut, &[])).expect(6).says(&["libcut.so", "damaged", "cut off"]);
    let mach = folder.write("libmach.dylib", [[0xcf, 0xfa, 0xed, 0xfe].as_slice(), &[0; 60]].concat());
    devbay(lint(&mach, &["--json"])).expect(6).says(&["Mach-O", "not cover"]);
    devbay(["lint", "no_such.so"]).expect(6).says(&["cannot read no_such.so"]);
    devbay(lint(&folder.path("."), &[])).expect(6).says(&["expected a file, found a folder"]);
}

#[test]
fn wrong_command_lines_are_refused() {
    devbay(["lint"]).expect(2);
    devbay(["lint", "cpu"]).expect(2).says(&["cpu is part of this command", "no library to read"]);
    devbay(["lint", "x.so", "--deny", "everything"]).expect(2).says(&["everything", "warnings"]);
}
