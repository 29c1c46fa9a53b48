//! What must hold of the house itself: which way dependencies point, that every file says what it is for, and
//! that documents name files that are there.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The arrows that there are (docs/ARCHITECTURE.md): crate, what it may depend on, also for its tests.
const ARROWS: &[(&str, &[&str])] = &[
    ("devbay-plugin-api", &[]),
    ("devbay-ops", &["devbay-plugin-api"]),
    ("devbay-core", &["devbay-ops", "devbay-plugin-api"]),
    ("devbay-host", &["devbay-core", "devbay-ops", "devbay-plugin-api"]),
    ("devbay-conformance", &["devbay-host", "devbay-core", "devbay-ops", "devbay-plugin-api"]),
    (
        "devbay-cli",
        &["devbay-conformance", "devbay-host", "devbay-core", "devbay-plugin-api", "devbay-plugin-cpu"],
    ),
    (
        "devbay-bench",
        &["devbay-host", "devbay-core", "devbay-plugin-api", "devbay-plugin-cpu", "devbay-plugin-pjrt"],
    ),
    ("devbay-fuzz", &["devbay-host", "devbay-plugin-api"]),
    ("xtask", &["devbay-plugin-api"]),
];

/// Where plugins are: ours, the fixtures, and the one that benchmarks launch.
const PLUGIN_FOLDERS: &[&str] = &["plugins", "conformance/fixtures", "bench/plugin"];

/// What plugins may depend on.
const PLUGIN_ARROWS: &[&str] = &["devbay-plugin-api", "devbay-ops", "devbay-shaders"];

/// A plugin that is another one with a defect.
const LAYERED_PLUGINS: &[(&str, &[&str])] = &[
    ("devbay-plugin-defective", &["devbay-plugin-api", "devbay-plugin-cpu"]),
    ("devbay-plugin-defect", &["devbay-plugin-api", "devbay-plugin-defective"]),
];

/// Tests may use these besides: plugins to judge and to be let down by.
const TEST_ARROWS: &[(&str, &[&str])] = &[
    ("devbay-host", &["devbay-plugin-faulty", "devbay-plugin-wgpu", "devbay-shaders"]),
    ("devbay-conformance", &["devbay-plugin-cpu", "devbay-plugin-defective"]),
];

#[test]
fn dependencies_point_one_way() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("a list");
    let names: BTreeSet<&str> = packages.iter().map(|package| text(&package["name"])).collect();
    let mut wrong = Vec::new();
    for package in packages {
        let name = text(&package["name"]);
        let manifest = Path::new(text(&package["manifest_path"]));
        let is_plugin = PLUGIN_FOLDERS.iter().any(|folder| manifest.starts_with(root().join(folder)));
        let allowed = if let Some(layered) = lookup(LAYERED_PLUGINS, name) {
            layered
        } else if is_plugin {
            PLUGIN_ARROWS
        } else {
            lookup(ARROWS, name).unwrap_or_else(|| panic!("{name} is new: say here what it may depend on"))
        };
        for dependency in package["dependencies"].as_array().expect("a list") {
            let on = text(&dependency["name"]);
            let for_tests = dependency["kind"].as_str() == Some("dev");
            let also = lookup(TEST_ARROWS, name).filter(|_| for_tests).unwrap_or(&[]);
            if names.contains(on) && on != name && !allowed.contains(&on) && !also.contains(&on) {
                wrong.push(format!("{name} -> {on}"));
            }
        }
    }
    assert!(wrong.is_empty(), "dependencies that may not be: {}", wrong.join(", "));
}

#[test]
fn every_file_says_what_it_is_for() {
    let silent: Vec<String> = sources()
        .into_iter()
        .filter(|path| {
            let content = std::fs::read_to_string(path).expect("a source file is UTF-8");
            let first = content.lines().find(|line| !line.is_empty() && !line.starts_with("#!["));
            !first.is_some_and(|line| line.starts_with("//!") || line.starts_with("// @generated"))
        })
        .map(|path| path.display().to_string())
        .collect();
    assert!(silent.is_empty(), "files that do not begin with what they are for:\n{}", silent.join("\n"));
}

#[test]
fn documents_name_files_that_are_there() {
    let mut missing = Vec::new();
    for document in
        ["README.md", "models/README.md"].map(|name| root().join(name)).into_iter().chain(documents())
    {
        let content = std::fs::read_to_string(&document).expect("a document is UTF-8");
        let folder = document.parent().expect("a document lies in a folder");
        for path in links(&content) {
            if !folder.join(&path).exists() {
                missing.push(format!("{}: {path}", document.display()));
            }
        }
        for path in code_paths(&content) {
            if !root().join(&path).exists() {
                missing.push(format!("{}: {path}", document.display()));
            }
        }
    }
    assert!(missing.is_empty(), "documents name what is not there:\n{}", missing.join("\n"));
}

/// Where sizes are a model's, an input's or a file's: memory is taken through `devbay_plugin_api::reserve` there.
const RESERVED: &[&str] =
    &["plugins/cpu/src/kernels", "plugins/shaders/src/kernels", "host/src/import", "host/src/arrays.rs"];

/// Lengths of lists that may be made in ways that cannot fail, with the reason why each is short.
const SHORT: &[(&str, &[&str])] = &[
    (
        "dimensions, of which a tensor has at most 64",
        &[
            "rank",
            "2 * rank",
            "rank - batch.len()",
            "shape.len()",
            "from.len()",
            "to.len()",
            "x.len()",
            "extents.len()",
            "spatial.len()",
            "strides.len()",
            "self.batch.len()",
            "matrices.batch.len()",
            "window.rank",
            "axes",
            "order.len()",
            "image",
            "from",
            "from[..2]",
            "shape",
            "to",
            "part",
            "parts[0]",
            "strides",
            "extents",
            "a.shape()",
            "b.shape()",
            "x.shape()",
            "input.shape()",
        ],
    ),
    ("host values, which `host_ints` bounds", &["n", "starts.len()", "sizes.len()"]),
    (
        "operands, attributes or nodes: each takes room in the file already",
        &[
            "request.inputs.len()",
            "steps.len()",
            "nodes.len()",
            "proto.input.len()",
            "proto.output.len()",
            "self.operands.len()",
            "names.len()",
        ],
    ),
    ("one or two", &["n_directions", "directions as usize"]),
    ("the power of a norm, which the lines above bound", &["order as usize"]),
    ("a number's bytes", &["to_le_bytes()"]),
];

#[test]
fn lists_of_a_models_size_are_reserved() {
    let allowed = |length: &str| {
        let number = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
        number || SHORT.iter().flat_map(|(_, lengths)| *lengths).any(|short| *short == length)
    };
    let mut wrong = Vec::new();
    for path in sources() {
        let relative = path.strip_prefix(root()).expect("a file of the repository").to_owned();
        let is_test = relative.to_string_lossy().contains("test");
        if is_test || !RESERVED.iter().any(|folder| relative.starts_with(folder)) {
            continue;
        }
        let content = std::fs::read_to_string(&path).expect("a source file is UTF-8");
        let content = content.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for (i, line) in content.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for length in lengths(code).into_iter().filter(|length| !allowed(length)) {
                wrong.push(format!("{}:{}: a list of {length}", relative.display(), i + 1));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "take these from `reserve`, or say in SHORT why they are short:\n{}",
        wrong.join("\n")
    );
}

/// The lengths of lists that a line makes in ways that cannot fail.
fn lengths(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let inside = |rest: &str, open: char, close: char| {
        let mut depth = 1;
        let end = rest.find(|c| {
            depth += i32::from(c == open) - i32::from(c == close);
            depth == 0
        });
        rest[..end.unwrap_or(rest.len())].to_owned()
    };
    for rest in code.split("vec![").skip(1) {
        let inner = inside(rest, '[', ']');
        found.extend(inner.rsplit_once(';').map(|(_, length)| length.trim().to_owned()));
    }
    for rest in code.split("with_capacity(").skip(1).filter(|_| !code.contains("reserve::with_capacity(")) {
        found.push(inside(rest, '(', ')').trim().to_owned());
    }
    for before in code.split(".to_vec()").take(code.matches(".to_vec()").count()) {
        let start =
            before.rfind(|c: char| !(c.is_alphanumeric() || "_.[]()".contains(c))).map_or(0, |at| at + 1);
        let what = before[start..].trim_start_matches('(');
        let what = what.strip_prefix("Some(").unwrap_or(what);
        found.push(if what.ends_with("to_le_bytes()") {
            "to_le_bytes()".to_owned()
        } else {
            what.to_owned()
        });
    }
    for rest in code.split(".repeat(").skip(1) {
        found.push(inside(rest, '(', ')').trim().to_owned());
    }
    found
}

#[test]
fn lengths_are_found() {
    let check = |code: &str, expected: &[&str]| assert_eq!(lengths(code), expected, "{code}");
    check("let a = vec![(0, 0); from.len()];", &["from.len()"]);
    check("let a = vec![0.0f32; n * w * h];", &["n * w * h"]);
    check("[&vec![1; rank - batch.len()], batch].concat()", &["rank - batch.len()"]);
    check("Vec::with_capacity(values.len() * N);", &["values.len() * N"]);
    check("reserve::with_capacity(n, WHAT)?;", &[]);
    check("(*batches, image.to_vec())", &["image"]);
    check("vec![1, 2, 3]", &[]);
}

/// Targets of links to files: `](path)` without a scheme.
fn links(content: &str) -> Vec<String> {
    let targets = content.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .filter(|target| !target.contains("://") && !target.starts_with('#'))
        .map(|target| target.split('#').next().unwrap_or(target).to_owned())
        .collect()
}

/// Words that begin with one of the house's folders and name a source file in it.
fn code_paths(content: &str) -> Vec<String> {
    const FOLDERS: &[&str] = &[
        "plugin-api/",
        "ops/",
        "core/",
        "host/",
        "plugins/",
        "conformance/",
        "bench/",
        "fuzz/",
        "xtask/",
        "docs/",
    ];
    const ENDINGS: &[&str] = &[".rs", ".c", ".h", ".toml", ".md", ".lock", "/"];
    let words = content.split(|c: char| c.is_whitespace() || "`(),;\"".contains(c));
    words
        .map(|word| word.trim_end_matches(['.', ':']))
        .filter(|word| FOLDERS.iter().any(|folder| word.starts_with(folder)))
        .filter(|word| !word.contains('*'))
        .filter(|word| ENDINGS.iter().any(|ending| word.ends_with(ending)))
        .map(str::to_owned)
        .collect()
}

fn documents() -> Vec<PathBuf> {
    walk(&root().join("docs"))
        .into_iter()
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .collect()
}

fn sources() -> Vec<PathBuf> {
    let crates = ["plugin-api", "ops", "core", "host", "plugins", "conformance", "bench", "fuzz", "xtask"];
    let files = crates.iter().flat_map(|folder| walk(&root().join(folder)));
    files.filter(|path| path.extension().is_some_and(|e| e == "rs")).collect()
}

/// Files below a folder, without what is built there.
fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let path = entry.expect("an entry can be read").path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target" && name != ".venv") {
                files.extend(walk(&path));
            }
        } else {
            files.push(path);
        }
    }
    files
}

fn lookup<'a>(table: &[(&str, &'a [&'a str])], name: &str) -> Option<&'a [&'a str]> {
    table.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
}

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata writes JSON")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a string")
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("conformance is a folder of the workspace")
}
