//! Rules of the repository itself: the direction of dependencies, that every file has module documentation, and that
//! documents name existing files.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The allowed dependencies (docs/ARCHITECTURE.md): a crate, and the crates that it may depend on, also for its tests. A
/// crate uses only crates listed above it.
const ARROWS: &[(&str, &[&str])] = &[
    ("devbay-plugin-api", &[]),
    ("devbay-ops", &["devbay-plugin-api"]),
    ("devbay-core", &["devbay-ops", "devbay-plugin-api"]),
    ("devbay-host", &["devbay-core", "devbay-ops", "devbay-plugin-api"]),
    ("devbay-conformance", &["devbay-host", "devbay-ops", "devbay-plugin-api"]),
    ("devbay-cli", &["devbay-conformance", "devbay-host", "devbay-plugin-api", "devbay-plugin-cpu"]),
    (
        "devbay-bench",
        &["devbay-host", "devbay-core", "devbay-plugin-api", "devbay-plugin-cpu", "devbay-plugin-pjrt"],
    ),
    ("devbay-c", &["devbay-host", "devbay-plugin-api", "devbay-plugin-cpu"]),
    ("devbay-python", &["devbay-host", "devbay-plugin-api", "devbay-plugin-cpu"]),
    ("devbay-fuzz", &["devbay-host", "devbay-plugin-api"]),
    ("xtask", &[]),
];

/// Folders of plugins: ours, the fixtures, and the one that benchmarks launch.
const PLUGIN_FOLDERS: &[&str] = &["plugins", "conformance/fixtures", "bench/plugin"];

/// The allowed dependencies of plugins.
const PLUGIN_ARROWS: &[&str] = &["devbay-plugin-api", "devbay-ops", "devbay-shaders"];

/// Plugins that wrap another one with a defect.
const LAYERED_PLUGINS: &[(&str, &[&str])] = &[
    ("devbay-plugin-defective", &["devbay-plugin-api", "devbay-plugin-cpu"]),
    ("devbay-plugin-defect", &["devbay-plugin-api", "devbay-plugin-defective"]),
];

/// Further dependencies of tests: plugins to test, and faulty ones.
const TEST_ARROWS: &[(&str, &[&str])] = &[
    ("devbay-host", &["devbay-plugin-cpu", "devbay-plugin-faulty", "devbay-plugin-wgpu", "devbay-shaders"]),
    ("devbay-conformance", &["devbay-plugin-cpu", "devbay-plugin-defective"]),
];

/// The allowed dependencies between core's modules: each with those that it may use, all of them listed above it, so that
/// there are no cycles. A module is a file or a folder of `core/src`.
const CORE_ARROWS: &[(&str, &[&str])] = &[
    ("sync", &[]),
    ("units", &[]),
    ("calls", &[]),
    ("min_cut", &[]),
    ("error", &[]),
    ("cancel", &["error", "sync"]),
    ("async_value", &["error", "sync"]),
    ("threads", &["cancel", "error", "sync"]),
    ("progress", &["sync"]),
    ("tensor", &["error"]),
    ("program", &["cancel", "error", "tensor"]),
    ("kernel", &["program", "tensor"]),
    ("trace", &["kernel"]),
    ("services", &["calls", "threads", "trace"]),
    ("about", &["kernel"]),
    (
        "device",
        &["about", "async_value", "calls", "error", "kernel", "program", "services", "tensor", "trace"],
    ),
    ("passes", &["cancel", "device", "error", "kernel", "min_cut", "program", "progress", "tensor"]),
    (
        "plan",
        &[
            "cancel", "device", "error", "kernel", "min_cut", "passes", "program", "progress", "tensor",
            "trace", "units",
        ],
    ),
    (
        "exec",
        &[
            "calls", "cancel", "device", "error", "kernel", "passes", "plan", "program", "sync", "tensor",
            "threads", "trace",
        ],
    ),
];

#[test]
fn dependencies_point_one_way() {
    for (at, (name, uses)) in ARROWS.iter().enumerate() {
        let below = ARROWS[at..].iter().find(|(below, _)| uses.contains(below));
        assert!(below.is_none(), "{name} -> {below:?}: what a crate may use stands above it");
    }
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

/// The same for the families of the processor's kernels.
const KERNEL_ARROWS: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("cost", &[]),
    ("geometry", &[]),
    ("numbers", &["geometry"]),
    ("elementwise", &["cost", "geometry", "numbers", "types"]),
    ("reduction", &["cost", "elementwise", "geometry", "numbers", "types"]),
    ("normalisation", &["cost", "elementwise", "geometry", "numbers", "reduction", "types"]),
    ("product", &["cost", "geometry", "numbers", "types"]),
    ("convolution", &["cost", "geometry", "numbers", "product", "types"]),
    ("pooling", &["cost", "geometry", "numbers", "types"]),
    ("movement", &["cost", "geometry", "numbers", "types"]),
    ("sorting", &["cost", "geometry", "numbers", "types"]),
    ("attention", &["cost", "geometry", "normalisation", "numbers", "product", "types"]),
    ("recurrent", &["cost", "geometry", "numbers", "product"]),
    ("signal", &["cost", "geometry", "numbers", "types"]),
    ("image", &["cost", "geometry", "numbers", "types"]),
    ("quantised", &["convolution", "cost", "elementwise", "geometry", "numbers", "product"]),
    ("learning", &["cost", "geometry", "numbers", "types"]),
    ("ml", &["cost", "geometry", "numbers"]),
];

#[test]
fn modules_of_core_point_one_way() {
    check_modules("core/src", "lib.rs", CORE_ARROWS, str::to_owned);
}

#[test]
fn families_of_kernels_point_one_way() {
    // Dependencies outside the kernels are not checked.
    let within = |code: &str| code.replace("crate::", "outer::").replace("outer::kernels::", "crate::");
    check_modules("plugins/cpu/src/kernels", "mod.rs", KERNEL_ARROWS, within);
}

/// Compares the dependencies between the modules of a folder with a table; `within` makes `crate` stand for the folder in
/// their code.
fn check_modules(folder: &str, file: &str, table: &[(&str, &[&str])], within: impl Fn(&str) -> String) {
    let source = root().join(folder);
    let lib = std::fs::read_to_string(source.join(file)).expect("the folder has a first file");
    let modules: BTreeSet<&str> =
        declared(&lib).filter(|module| !module.is_for_tests).map(|module| module.name).collect();
    let known: BTreeSet<&str> = table.iter().map(|(name, _)| *name).collect();
    assert_eq!(modules, known, "{folder}: say in the table what each module may use");
    for (at, (name, uses)) in table.iter().enumerate() {
        for used in *uses {
            let above = table[..at].iter().any(|(above, _)| above == used);
            assert!(above, "{name} -> {used}: what a module may use stands above it");
        }
    }
    let mut wrong = Vec::new();
    let mut unused: BTreeSet<(&str, &str)> =
        table.iter().flat_map(|(name, uses)| uses.iter().map(|used| (*name, *used))).collect();
    for path in files_of(&source) {
        let content = std::fs::read_to_string(&path).expect("a source file is UTF-8");
        let file = path.strip_prefix(&source).expect("a file of the folder");
        let place = module_path(file);
        let Some(&own) = place.first().and_then(|own| known.get(own.as_str())) else { continue };
        for (line, used) in used_modules(&within(&without_tests(&code_of(&content))), &place) {
            // An item that the first file re-exports hides its origin.
            let Some(&used) = known.get(used.as_str()) else {
                wrong.push(format!("{}:{line}: {used} names no module", file.display()));
                continue;
            };
            unused.remove(&(own, used));
            if used != own && !lookup(table, own).is_some_and(|uses| uses.contains(&used)) {
                wrong.push(format!("{}:{line}: {own} -> {used}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "arrows of {folder} that may not be:\n{}", wrong.join("\n"));
    assert!(unused.is_empty(), "the table has arrows that no file has: {unused:?}");
}

/// Returns the files of a folder, without those compiled only for tests.
fn files_of(source: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        walk(source).into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs")).collect();
    let mut for_tests = Vec::new();
    for path in &files {
        let content = std::fs::read_to_string(path).expect("a source file is UTF-8");
        let folder = match path.file_stem().and_then(|stem| stem.to_str()) {
            Some("mod" | "lib") | None => path.parent().expect("a file lies in a folder").to_owned(),
            Some(_) => path.with_extension(""),
        };
        for module in declared(&content).filter(|module| module.is_for_tests) {
            for_tests.push(match module.path {
                Some(file) => path.with_file_name(file).with_extension(""),
                None => folder.join(module.name),
            });
        }
    }
    files.retain(|path| {
        !for_tests.iter().any(|module| path.with_extension("") == *module || path.starts_with(module))
    });
    files
}

/// Returns a file's place in the tree of modules.
fn module_path(file: &Path) -> Vec<String> {
    let mut path: Vec<String> = file
        .with_extension("")
        .components()
        .map(|component| component.as_os_str().to_string_lossy().into_owned())
        .collect();
    if path.last().is_some_and(|last| last == "mod") {
        path.pop();
    }
    path
}

/// A module in a separate file.
struct Declared<'a> {
    name: &'a str,
    /// The file, unless it has the module's name.
    path: Option<&'a str>,
    is_for_tests: bool,
}

/// Returns the modules that a file declares without content.
fn declared(content: &str) -> impl Iterator<Item = Declared<'_>> {
    let (mut is_for_tests, mut path) = (false, None);
    content.lines().filter_map(move |line| {
        let line = line.trim();
        if line.starts_with("#[") {
            is_for_tests |= is_test_attribute(line);
            path = path.or(line.strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]")));
            return None;
        }
        let (is_for_tests, path) = (std::mem::take(&mut is_for_tests), path.take());
        let (visibility, name) = line.strip_suffix(';')?.rsplit_once("mod ")?;
        let is_module = visibility.is_empty() || visibility.starts_with("pub");
        is_module.then_some(Declared { name, path, is_for_tests })
    })
}

fn is_test_attribute(line: &str) -> bool {
    line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test")
}

/// Returns a file's code without comments and the content of strings; lines keep their numbers.
fn code_of(content: &str) -> String {
    let mut code = String::with_capacity(content.len());
    let mut rest = content;
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            'r' if rest.starts_with("r#\"") => rest.find("\"#").map_or(rest.len(), |end| end + 2),
            '"' => {
                let mut escaped = false;
                let end = rest[1..].find(|c| {
                    let ends = c == '"' && !escaped;
                    escaped = c == '\\' && !escaped;
                    ends
                });
                end.map_or(rest.len(), |end| end + 2)
            }
            // The only character literal that would begin a string.
            '\'' if rest.starts_with("'\"'") => 3,
            '\'' if rest.starts_with("'\\\"'") => 4,
            c => {
                code.push(c);
                rest = &rest[c.len_utf8()..];
                continue;
            }
        };
        code.extend(rest[..length].chars().filter(|c| *c == '\n'));
        rest = &rest[length..];
    }
    code
}

/// Returns code without its test modules; lines keep their numbers.
fn without_tests(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut is_for_tests = false;
    // Depth of open braces within a test module.
    let mut depth = 0i32;
    for line in code.lines() {
        let trimmed = line.trim();
        let opens = || line.matches('{').count() as i32 - line.matches('}').count() as i32;
        if depth > 0 {
            depth += opens();
        } else if trimmed.starts_with("#[") {
            is_for_tests |= is_test_attribute(trimmed);
        } else if is_for_tests && trimmed.contains("mod ") && trimmed.ends_with('{') {
            (depth, is_for_tests) = (opens(), false);
        } else {
            if !trimmed.is_empty() {
                is_for_tests = false;
            }
            kept.push_str(line);
        }
        kept.push('\n');
    }
    kept
}

/// Returns the modules of the crate that code at a place uses, with their lines: after `crate::`, and after as many
/// `super::` as lead there.
fn used_modules(code: &str, place: &[String]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let line_of = |at: usize| code[..at].matches('\n').count() + 1;
    for (at, _) in code.match_indices("crate::") {
        found.extend(heads(&code[at + "crate::".len()..]).into_iter().map(|head| (line_of(at), head)));
    }
    for (at, _) in code.match_indices("super::").filter(|(at, _)| !code[..*at].ends_with("super::")) {
        let mut rest = &code[at..];
        let mut n_up = 0;
        while let Some(behind) = rest.strip_prefix("super::") {
            (rest, n_up) = (behind, n_up + 1);
        }
        // Fewer `super::` stay within the module itself.
        if n_up == place.len() {
            found.extend(heads(rest).into_iter().map(|head| (line_of(at), head)));
        }
    }
    found
}

/// Returns the first segments of paths here: one, or several in braces.
fn heads(code: &str) -> Vec<String> {
    let name = |code: &str| -> String {
        code.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let Some(list) = code.strip_prefix('{') else {
        return Vec::from([name(code)]);
    };
    let (mut depth, mut begins) = (0, true);
    let mut found = Vec::new();
    for (at, c) in list.char_indices() {
        match c {
            '}' if depth == 0 => break,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            c if begins && !c.is_whitespace() => {
                found.push(name(&list[at..]));
                begins = false;
            }
            _ => {}
        }
    }
    found
}

#[test]
fn arrows_of_modules_are_found() {
    let place = ["plan".to_owned(), "order".to_owned(), "tasks".to_owned()];
    let check = |code: &str, expected: &[(usize, &str)]| {
        let found = used_modules(&without_tests(&code_of(code)), &place);
        let expected: Vec<(usize, String)> =
            expected.iter().map(|(line, name)| (*line, (*name).to_owned())).collect();
        assert_eq!(found, expected, "{code}");
    };
    check("use crate::exec::unit::Unit;", &[(1, "exec")]);
    check("\nfn f() { crate::trace::begin() }", &[(2, "trace")]);
    check("use crate::{\n    device::{Buffer, Device},\n    exec,\n};", &[(1, "device"), (1, "exec")]);
    check("use super::super::super::exec::unit;", &[(1, "exec")]);
    check("use super::merge;\nuse super::super::memory::views;", &[]);
    check("// crate::exec\n/// [`crate::exec`]\nlet a = \"crate::exec\";", &[]);
    check("let a = ('\"', crate::exec::A, '\"');", &[(1, "exec")]);
    let tests =
        "#[cfg(test)]\nmod tests {\n    use crate::exec;\n    fn f() {}\n}\nuse crate::device::Device;";
    check(tests, &[(6, "device")]);
    check("#[cfg(all(test, loom))]\n#[expect(x)]\nmod tests {\n    use crate::exec;\n}", &[]);
}

/// With `lto` the level of the crate that is linked last holds for all code in a program or a library, and a level for size
/// vectorises no loop: the kernels in the command took ten times as long.
#[test]
fn no_crate_of_ours_is_made_small_in_releases() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("the workspace has a manifest");
    let mut section = "";
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        }
        let is_small = line.contains("opt-level = \"s\"") || line.contains("opt-level = \"z\"");
        let is_ours =
            line.starts_with("devbay") || line.starts_with("xtask") || section == "[profile.release]";
        assert!(!(section.starts_with("[profile.release") && is_small && is_ours), "{section} {line}");
    }
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
    for document in ["README.md", "CONTRIBUTING.md", "models/README.md"]
        .map(|name| root().join(name))
        .into_iter()
        .chain(documents())
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

/// Files whose sizes come from a model, an input or a file: they allocate through `devbay_plugin_api::reserve`.
const RESERVED: &[&str] = &[
    "ops/src/read",
    "plugins/cpu/src/kernels",
    "plugins/shaders/src/kernels",
    "host/src/import",
    "host/src/arrays.rs",
];

/// Lengths of lists that may be allocated infallibly, with the reason why each is short.
const SHORT: &[(&str, &[&str])] = &[
    (
        "dimensions, of which a tensor has at most 64",
        &[
            "rank",
            "2 * rank",
            "kernel",
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
            "list.strings.len()",
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

/// The only reason to ignore poison is in a single file.
#[test]
fn poison_of_locks_is_ignored_in_one_place() {
    let name = ["Poison", "Error"].concat();
    let ignored = |path: &Path| std::fs::read_to_string(path).is_ok_and(|content| content.contains(&name));
    let archived = root().join("conformance/matrix");
    let places: Vec<PathBuf> =
        sources().into_iter().filter(|path| !path.starts_with(&archived) && ignored(path)).collect();
    assert_eq!(
        places,
        [root().join("plugin-api/src/locks.rs")],
        "take locks with `devbay_plugin_api::locks`"
    );
}

/// An ABI list has no lifetime: a list of an array created in its argument dangles after the statement, unless the array is
/// a constant of literals.
#[test]
fn abi_lists_borrow_what_has_a_name() {
    let archived = root().join("conformance/matrix");
    let call = ["List::new", "(&"].concat();
    for path in sources().into_iter().filter(|path| !path.starts_with(&archived)) {
        let content = std::fs::read_to_string(&path).unwrap_or_default();
        for rest in content.split(call.as_str()).skip(1) {
            let made = rest.starts_with('[') || rest.starts_with("vec!");
            let argument = rest.split_once(';').map_or(rest, |(argument, _)| argument);
            let array = argument.split_once(']').map_or(argument, |(array, _)| array);
            assert!(!made || !array.contains(['(', '{']), "{}: {call}{array}", path.display());
        }
    }
}

/// Returns the lengths of lists that a line allocates infallibly.
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

/// Returns the targets of links to files: `](path)` without a scheme.
fn links(content: &str) -> Vec<String> {
    let targets = content.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets
        .filter(|target| !target.contains("://") && !target.starts_with('#'))
        .map(|target| target.split('#').next().unwrap_or(target).to_owned())
        .collect()
}

/// Returns words that begin with one of the repository's folders and name a source file in it.
fn code_paths(content: &str) -> Vec<String> {
    const FOLDERS: &[&str] = &[
        "plugin-api/",
        "ops/",
        "core/",
        "host/",
        "cli/",
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
        // A pattern, or a name that the reader chooses.
        .filter(|word| !word.contains('*') && !word.contains("NAME"))
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
    let crates =
        ["plugin-api", "ops", "core", "host", "cli", "plugins", "conformance", "bench", "fuzz", "xtask"];
    let files = crates.iter().flat_map(|folder| walk(&root().join(folder)));
    files.filter(|path| path.extension().is_some_and(|e| e == "rs")).collect()
}

/// Returns the files below a folder, without build output.
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
