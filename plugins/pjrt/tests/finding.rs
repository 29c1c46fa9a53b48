//! The libraries that are found, their order, and the messages about unusable ones. Nothing is loaded here.

#![cfg(unix)]

#[path = "support/folder.rs"]
mod folder;

use devbay_plugin_pjrt::find::{CreateOption, Found, Named, Places, find, parse};
use devbay_plugin_pjrt::installed;
use devbay_plugin_pjrt::library::Value;
use folder::Folder;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An environment.
type Variables = BTreeMap<&'static str, OsString>;

/// Finds libraries with the option `libraries` and these variables.
fn found(libraries: &str, variables: &Variables) -> Found {
    let variable = |name: &str| variables.get(name).cloned();
    find(&Places { libraries, manifests: "", site_packages: "", own: None, variable: &variable }).unwrap()
}

fn names(found: &Found) -> Vec<&str> {
    found.libraries.iter().map(|library| library.name.as_str()).collect()
}

impl Folder {
    /// `fixtures/library.c` compiled as this file; with `definition`, such as `ABORTS`.
    fn library(&self, name: &str, definition: &str) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/library.c");
        self.compile(name, &source, definition)
    }

    /// A library from a source in C.
    fn compile(&self, name: &str, source: &Path, definition: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let output = Command::new(&compiler)
            .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"])
            .arg(format!("-D{definition}"))
            .arg("-o")
            .arg(&path)
            .arg(source)
            .output()
            .unwrap_or_else(|error| panic!("the tests need a C compiler: {compiler} (CC): {error}"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        path
    }
}

#[test]
fn libraries_are_named_with_their_paths() {
    let parsed = parse("a:/x/a.so, b:/y:z/b.so").unwrap();
    assert_eq!(parsed, [Named::new("a", "/x/a.so"), Named::new("b", "/y:z/b.so")]);
    assert!(parse("").unwrap().is_empty());
    for wrong in
        ["/x/a.so", ":/x/a.so", "a:", "[", r#"[{"name": "a"}]"#, r#"[{"name": "", "library": "/a"}]"#]
    {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_list_in_json_has_options_and_any_path() {
    let text = r#"[{"name": "a", "library": "/x,y/a.so",
                    "options": {"flag": true, "n": -7, "part": 0.5, "list": [1, 2], "text": "1"}}]"#;
    let parsed = parse(text).unwrap();
    assert_eq!(parsed[0].path, PathBuf::from("/x,y/a.so"));
    let values: Vec<_> =
        parsed[0].attributes().into_iter().map(|option| (option.name, option.value)).collect();
    let expected = [
        ("flag".to_owned(), Value::Flag(true)),
        ("list".to_owned(), Value::Integers(vec![1, 2])),
        ("n".to_owned(), Value::Integer(-7)),
        ("part".to_owned(), Value::Float(0.5)),
        ("text".to_owned(), Value::Text("1".to_owned())),
    ];
    assert_eq!(values, expected);
    // The arguments of a probing process are read as they were written.
    assert_eq!(parse(&serde_json::to_string(&parsed).unwrap()).unwrap(), parsed);
}

#[test]
fn sources_have_an_order_and_the_option_excludes_the_others() {
    let folder = Folder::new();
    let site = folder.path("site");
    folder.library("site/jax_plugins/mine/mine.so", "NONE");
    folder.write("manifests/b.pjrt.json", r#"{"name": "b", "library": "b.so"}"#);
    let variables = Variables::from([
        ("PJRT_NAMES_AND_LIBRARY_PATHS", "c:/x/c.so".into()),
        ("PYTHONPATH", site.into()),
        ("DEVBAY_PJRT_MANIFESTS", folder.path("manifests").into()),
        ("DEVBAY_PJRT_PLUGINS", "a:/x/a.so".into()),
    ]);
    let all = found("", &variables);
    assert_eq!((names(&all), all.left_out.as_slice()), (vec!["a", "b", "c", "mine"], [].as_slice()));
    assert_eq!(all.libraries[1].path, folder.path("manifests/b.so"), "relative to the manifest");
    let by_person: Vec<bool> = all.libraries.iter().map(|library| library.by_person).collect();
    assert_eq!(by_person, [true, true, true, false]);
    assert_eq!(names(&found("z:/x/z.so", &variables)), ["z"]);
}

#[test]
fn one_file_is_one_library_and_one_name_is_one_file() {
    let folder = Folder::new();
    let (one, two) = (folder.write("one.so", "1"), folder.write("two.so", "2"));
    std::os::unix::fs::symlink(&one, folder.path("link.so")).unwrap();
    let list = |pairs: &[(&str, &PathBuf)]| {
        let pairs: Vec<_> = pairs.iter().map(|(name, path)| format!("{name}:{}", path.display())).collect();
        OsString::from(pairs.join(","))
    };
    let all = found(
        "",
        &Variables::from([
            ("DEVBAY_PJRT_PLUGINS", list(&[("a", &one)])),
            ("PJRT_NAMES_AND_LIBRARY_PATHS", list(&[("b", &folder.path("link.so")), ("a", &two)])),
        ]),
    );
    assert_eq!(names(&all), ["a"]);
    assert_eq!(all.libraries[0].path, one);
    assert_eq!(all.left_out.len(), 1);
    assert!(all.left_out[0].contains("two.so"), "{:?}", all.left_out);
}

#[test]
fn a_wrong_manifest_is_said_with_its_file_and_reason() {
    let folder = Folder::new();
    folder.write("1.pjrt.json", "{");
    folder.write("2.pjrt.json", r#"{"name": "x"}"#);
    folder.write("3.pjrt.json", r#"{"name": "", "library": "x.so"}"#);
    folder.write("4.pjrt.json", r#"{"name": "x", "library": "x.so", "options": {"a": null}}"#);
    folder.write("5.pjrt.json", r#"{"name": "x", "library": "x.so", "options": {"a": [1, "b"]}}"#);
    folder.write("6.pjrt.json", r#"{"name": "good", "library": "x.so", "options": {"n": 1}, "later": {}}"#);
    folder.write("other.json", "{");
    let absent = folder.path("absent");
    let folders = std::env::join_paths([folder.path(""), absent]).unwrap();
    let all = found("", &Variables::from([("DEVBAY_PJRT_MANIFESTS", folders)]));
    assert_eq!(names(&all), ["good"]);
    assert_eq!(all.libraries[0].options["n"], CreateOption::Integer(1));
    let expected = [
        ["1.pjrt.json", "EOF"],
        ["2.pjrt.json", "missing field `library`"],
        ["3.pjrt.json", "name of a PJRT library is empty"],
        ["4.pjrt.json", "an option is a text, a number"],
        ["5.pjrt.json", "an option is a text, a number"],
        ["absent", "No such file"],
    ];
    assert_eq!(all.left_out.len(), expected.len(), "{:?}", all.left_out);
    for (line, words) in all.left_out.iter().zip(expected) {
        assert!(words.iter().all(|word| line.contains(word)), "{line}: {words:?}");
    }
}

#[test]
fn a_variable_in_another_form_is_an_error_if_it_is_ours() {
    let ours = Variables::from([("DEVBAY_PJRT_PLUGINS", "nonsense".into())]);
    let variable = |name: &str| ours.get(name).cloned();
    let places =
        Places { libraries: "", manifests: "", site_packages: "off", own: None, variable: &variable };
    let error = find(&places).unwrap_err();
    assert_eq!(error.text(), "DEVBAY_PJRT_PLUGINS: a PJRT library is NAME:PATH, found nonsense");
    let jax = found("", &Variables::from([("PJRT_NAMES_AND_LIBRARY_PATHS", "nonsense".into())]));
    assert_eq!(jax.left_out, ["PJRT_NAMES_AND_LIBRARY_PATHS: a PJRT library is NAME:PATH, found nonsense"]);
}

/// Packages as pip leaves them: one in JAX's namespace with an entry point, one in it without, one that is elsewhere,
/// one whose entry point is a file of its package, libtpu, and what is none.
fn site_packages(folder: &Folder, site: &str) {
    let entry_points = |name: &str, text: &str| {
        folder.write(&format!("{site}/{name}-1.0.dist-info/entry_points.txt"), text);
    };
    folder.library(&format!("{site}/jax_plugins/xla_chip/lib/chip_plugin.so.1"), "NONE");
    entry_points("xla_chip", "[jax_plugins]\nchip = jax_plugins.xla_chip\n");
    folder.library(&format!("{site}/jax_plugins/plain/plain.so"), "NONE");
    folder.library(&format!("{site}/chip_maker/pjrt.so"), "NONE");
    entry_points(
        "chip_maker",
        "[console_scripts]\nx = wrong:main\n\n[jax_plugins]\n# a = wrong\nmaker = chip_maker : plugin\n\n[other]\ny = wrong\n",
    );
    folder.library(&format!("{site}/filed/libfiled.so"), "NONE");
    folder.write(&format!("{site}/filed/plugin.py"), "");
    entry_points("filed", "[jax_plugins]\nfiled = filed.plugin:initialize\n");
    folder.library(&format!("{site}/libtpu/libtpu.so"), "NONE");

    folder.library(&format!("{site}/wrong/library.so"), "NONE");
    folder.write(&format!("{site}/jax_plugins/text/text.so"), "no library");
    let other = folder.write("other.c", "int PJRT_other(void);\nint PJRT_other(void) { return 0; }\n");
    folder.compile(&format!("{site}/jax_plugins/xla_chip/kernels.so"), &other, "NONE");
    entry_points("out", "[jax_plugins]\nout = ..wrong\nempty =\nout2 = /etc\n");
}

#[test]
fn packages_for_jax_have_libraries_under_the_names_of_their_entry_points() {
    let folder = Folder::new();
    site_packages(&folder, "site");
    let libraries = installed::libraries(&folder.path("site"));
    let found: Vec<_> = libraries.iter().map(|library| (&*library.name, library.path.clone())).collect();
    let at = |name: &str| folder.path("site").join(name);
    let expected = [
        ("chip", at("jax_plugins/xla_chip/lib/chip_plugin.so.1")),
        ("filed", at("filed/libfiled.so")),
        ("maker", at("chip_maker/pjrt.so")),
        ("plain", at("jax_plugins/plain/plain.so")),
        ("tpu", at("libtpu/libtpu.so")),
    ];
    assert_eq!(found, expected);
    assert!(libraries.iter().all(|library| !library.by_person));
    assert!(installed::libraries(&folder.path("absent")).is_empty());
}

#[test]
fn folders_of_packages_are_those_of_the_environment_or_of_the_option() {
    let folder = Folder::new();
    for python in ["v/lib/python3.11", "v/lib/python3.12", "v/lib/other", "c/lib/python3.13"] {
        std::fs::create_dir_all(folder.path(python).join("site-packages")).unwrap();
    }
    let path = std::env::join_paths([PathBuf::from("/p"), PathBuf::new(), PathBuf::from("/q")]).unwrap();
    let variables = Variables::from([
        ("VIRTUAL_ENV", folder.path("v").into()),
        ("CONDA_PREFIX", folder.path("c").into()),
        ("PYTHONPATH", path),
    ]);
    let variable = |name: &str| variables.get(name).cloned();
    let expected = [
        folder.path("v/lib/python3.11/site-packages"),
        folder.path("v/lib/python3.12/site-packages"),
        folder.path("c/lib/python3.13/site-packages"),
        "/p".into(),
        "/q".into(),
    ];
    assert_eq!(installed::folders("", None, &variable), expected);
    assert!(installed::folders("off", None, &variable).is_empty());
    assert_eq!(installed::folders("/only", None, &variable), [PathBuf::from("/only")]);
    assert!(installed::folders("", None, &|_| None).is_empty());
    // A plugin in a package sees the packages around it, and one elsewhere sees none.
    let own = Path::new("/e/lib/python3.11/site-packages/devbay_plugin_pjrt/libdevbay_plugin_pjrt.so");
    let around = [PathBuf::from("/e/lib/python3.11/site-packages")];
    assert_eq!(installed::folders("", Some(own), &|_| None), around);
    assert!(installed::folders("off", Some(own), &|_| None).is_empty());
    assert!(installed::folders("", Some(Path::new("/usr/lib/devbay/x.so")), &|_| None).is_empty());
}
