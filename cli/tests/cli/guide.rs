//! The vendor guide (`docs/guide`): its code compiles, its quotes are in the named files, its commands and options exist,
//! and every page is in the table of contents.
//!
//! `Kind` lists the allowed fences. Rust snippets are documentation tests of the conformance crate
//! (`conformance/src/guide.rs`), which has to list their pages.

use crate::support::{Folder, devbay, finish};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Content of a fence, by its info string.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Kind {
    /// `c`: all fences of a page are one file, in order, after the prelude.
    C,
    /// `cpp`: likewise.
    Cpp,
    /// `c` after a line `<!-- from PATH -->`: text of a file of the repository, where `/* ... */` stands for an omission. It
    /// is compiled in that file.
    Quote(String),
    /// `rust`: a documentation test.
    Rust,
    /// `console`: lines that call `devbay`.
    Console,
    /// `json`: a value.
    Json,
    /// `text`: content that no program can check.
    Text,
}

/// A fenced block of a page.
struct Fence {
    page: PathBuf,
    /// Line number of its first content line.
    line: usize,
    kind: Kind,
    text: String,
}

impl Fence {
    fn place(&self) -> String {
        format!("{}:{}", self.page.display(), self.line)
    }
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn source() -> PathBuf {
    root().join("docs/guide/src")
}

/// Returns the files of the guide with this extension, as paths from its source folder.
fn files(ending: &str) -> Vec<String> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("the guide's folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { walk(&path, found) } else { found.push(path) }
        }
    }
    let mut found = Vec::new();
    walk(&source(), &mut found);
    let mut names: Vec<String> = found
        .iter()
        .filter(|path| path.extension().is_some_and(|e| e == ending))
        .map(|path| path.strip_prefix(source()).expect("below it").display().to_string())
        .collect();
    names.sort();
    names
}

fn read(page: &str) -> String {
    fs::read_to_string(source().join(page)).expect("a page is UTF-8")
}

/// Returns all fences of all pages.
///
/// # Panics
/// On a fence of an unknown kind, or an unclosed one.
fn fences() -> Vec<Fence> {
    files("md").iter().flat_map(|page| fences_of(page)).collect()
}

fn fences_of(page: &str) -> Vec<Fence> {
    let text = read(page);
    let mut fences: Vec<Fence> = Vec::new();
    let mut is_open = false;
    let mut before = "";
    for (i, line) in text.lines().enumerate() {
        let here = || format!("{page}:{}", i + 1);
        match (line.trim_start().strip_prefix("```"), is_open) {
            (Some(info), false) => {
                let kind = kind(info, before)
                    .unwrap_or_else(|| panic!("{}: a fence of `{info}`, which nobody checks", here()));
                fences.push(Fence { page: page.into(), line: i + 2, kind, text: String::new() });
                is_open = true;
            }
            (Some(info), true) => {
                assert_eq!(info, "", "{}: expected the end of a fence", here());
                is_open = false;
            }
            (None, true) => {
                let fence = fences.last_mut().expect("it was opened");
                fence.text.push_str(line);
                fence.text.push('\n');
            }
            // rustdoc compiles such lines as Rust, and readers take them for code.
            (None, false) => assert!(!line.starts_with("    "), "{}: code without a fence", here()),
        }
        before = line;
    }
    assert!(!is_open, "{page}: a fence without an end");
    fences
}

/// Returns the kind of a fence, from its info string and the line before it.
fn kind(info: &str, before: &str) -> Option<Kind> {
    let source = before.strip_prefix("<!-- from ").and_then(|rest| rest.strip_suffix(" -->"));
    match (info, source) {
        ("c", Some(path)) => Some(Kind::Quote(path.to_owned())),
        ("c", None) => Some(Kind::C),
        ("cpp", None) => Some(Kind::Cpp),
        ("rust", None) => Some(Kind::Rust),
        ("console", None) => Some(Kind::Console),
        ("json", None) => Some(Kind::Json),
        ("text", None) => Some(Kind::Text),
        _ => None,
    }
}

/// Text before a page's code.
const PRELUDE: &str = "#include \"devbay_plugin.h\"\n\
    #include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n";

/// Compiles a page's fences of one kind as one file; the compiler's messages refer to lines of the page.
fn compile(kind: &Kind, ending: &str, compiler: &[&str], prelude: &str) {
    let mut pages: BTreeMap<PathBuf, String> = BTreeMap::new();
    for fence in fences().iter().filter(|fence| fence.kind == *kind) {
        let text = pages.entry(fence.page.clone()).or_insert_with(|| prelude.to_owned());
        text.push_str(&format!("#line {} \"{}\"\n{}", fence.line, fence.page.display(), fence.text));
    }
    assert!(!pages.is_empty(), "expected code of the kind {kind:?} in the guide");
    let folder = Folder::new();
    for (page, text) in pages {
        let file = folder.write(&format!("page.{ending}"), text);
        let mut command = Command::new(compiler[0]);
        command.args(&compiler[1..]).args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror"]);
        // Snippets are functions without callers, with the parameters of the table's functions.
        command.args(["-Wno-unused-function", "-Wno-unused-const-variable", "-Wno-unused-variable"]);
        command.args(["-Wno-unused-parameter", "-I"]).arg(root().join("plugin-api/include")).arg(file);
        let found = finish(&mut command);
        assert_eq!(found.code, 0, "{} does not compile:\n{}", page.display(), found.err);
    }
}

#[test]
fn code_in_c_compiles() {
    compile(&Kind::C, "c", &["cc", "-std=c11", "-pedantic"], PRELUDE);
}

/// A driver for the stream of `streams.md`, which completes fences when the test says so, and prints the stream's state.
const STREAM_TEST: &str = r#"
struct npu_queue { int n_fences, n_freed, n_done, fails; };
struct npu_fence { struct npu_queue *queue; int number; };
npu_fence *npu_queue_fence(npu_queue *queue) {
    npu_fence *fence = malloc(sizeof(*fence));
    *fence = (npu_fence){queue, ++queue->n_fences};
    return fence;
}
int npu_queue_submit(npu_queue *queue) { return queue->fails; }
int npu_fence_is_done(npu_fence *fence) {
    return fence->queue->fails ? -1 : fence->number <= fence->queue->n_done;
}
void npu_fence_free(npu_fence *fence) {
    fence->queue->n_freed++;
    free(fence);
}
#define EXPECT(condition) \
    if (!(condition)) { \
        printf("line %d: expected %s\n", __LINE__, #condition); \
        return 1; \
    }
int main(void) {
    npu_queue queue = {0};
    struct devbay_stream stream = {.queue = &queue};
    uint64_t reached = 9;
    EXPECT(stream_reached(&stream, &reached) == DEVBAY_STATUS_OK && reached == 0)
    /* Three rounds of the ring: its places are used again. */
    for (uint64_t value = 2; value <= 6 * POINTS_MAX; value += 2) {
        EXPECT(stream_signal(&stream, value) == DEVBAY_STATUS_OK)
        EXPECT(stream_signal(&stream, value) == DEVBAY_STATUS_INVALID)
        EXPECT(stream_reached(&stream, &reached) == DEVBAY_STATUS_OK && reached == value - 2)
        queue.n_done++;
        EXPECT(stream_reached(&stream, &reached) == DEVBAY_STATUS_OK && reached == value)
    }
    EXPECT(queue.n_freed == 3 * POINTS_MAX)
    uint64_t value = 1000;
    for (int i = 0; i < POINTS_MAX; i++) {
        EXPECT(stream_signal(&stream, value++) == DEVBAY_STATUS_OK)
    }
    EXPECT(stream_signal(&stream, value) == DEVBAY_STATUS_OUT_OF_MEMORY)
    queue.n_done += 2;
    EXPECT(stream_signal(&stream, value) == DEVBAY_STATUS_OK)
    EXPECT(stream_reached(&stream, &reached) == DEVBAY_STATUS_OK && reached == 1001)
    /* What was reached stays so, and a failure too. */
    queue.fails = 1;
    EXPECT(stream_reached(&stream, &reached) == DEVBAY_STATUS_INTERNAL && reached == 1001)
    queue.fails = 0;
    EXPECT(stream_reached(&stream, &reached) == DEVBAY_STATUS_INTERNAL && reached == 1001)
    EXPECT(stream_signal(&stream, value + 1) == DEVBAY_STATUS_INTERNAL)
    return 0;
}
"#;

#[test]
fn the_stream_of_the_guide_keeps_its_promises() {
    let page = fences_of("streams.md").into_iter().filter(|fence| fence.kind == Kind::C);
    let code: String = page.map(|fence| fence.text).collect();
    let folder = Folder::new();
    let source = folder.write("stream.c", format!("{PRELUDE}{code}{STREAM_TEST}"));
    let program = folder.path("stream");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-I"]).arg(root().join("plugin-api/include"));
    compiler.arg("-o").arg(&program).arg(source);
    finish(&mut compiler).expect(0);
    finish(&mut Command::new(program)).expect(0);
}

#[test]
fn code_in_cpp_compiles() {
    let prelude = format!(
        "{PRELUDE}#include <algorithm>\n#include <cstring>\n#include <exception>\n#include <memory>\n#include <new>\n#include <vector>\n"
    );
    compile(&Kind::Cpp, "cpp", &["c++", "-std=c++17", "-pedantic"], &prelude);
}

#[test]
fn quotes_are_what_the_sources_say() {
    let mut n_quotes = 0;
    for fence in fences() {
        let Kind::Quote(path) = &fence.kind else { continue };
        let content = fs::read_to_string(root().join(path))
            .unwrap_or_else(|e| panic!("{}: cannot read {path}: {e}", fence.place()));
        let mut rest = content.as_str();
        for part in fence.text.split("/* ... */") {
            // The indentation of the mark's line belongs to the mark.
            let part = part.trim_matches(['\n', ' ']);
            let Some(at) = rest.find(part) else {
                panic!("{}: {path} does not have this, or not in this order:\n{part}", fence.place());
            };
            rest = &rest[at + part.len()..];
        }
        n_quotes += 1;
    }
    assert!(n_quotes > 0, "expected quotes in the guide");
}

#[test]
fn commands_and_their_options_are_there() {
    let mut helps: BTreeMap<String, String> = BTreeMap::new();
    for fence in fences().iter().filter(|fence| fence.kind == Kind::Console) {
        for line in fence.text.lines() {
            let line = line.split(" #").next().expect("the first part");
            let mut words = line.split_whitespace().skip_while(|word| word.contains('='));
            let (Some("devbay"), Some(subcommand)) = (words.next(), words.next()) else {
                panic!("{}: expected `devbay SUBCOMMAND`, found {line}", fence.place());
            };
            let help = helps
                .entry(subcommand.to_owned())
                .or_insert_with(|| devbay([subcommand, "--help"]).expect(0).out);
            for option in words.filter(|word| word.starts_with('-')) {
                let is_end = |c: char| c == ',' || c.is_whitespace();
                let is_there = help.split(is_end).any(|word| word == option);
                assert!(is_there, "{}: devbay {subcommand} has no {option}", fence.place());
            }
        }
    }
    let needed = ["conformance", "devices", "inspect", "lint", "new-plugin", "run"];
    let missing: Vec<_> = needed.iter().filter(|name| !helps.contains_key(**name)).collect();
    assert!(missing.is_empty(), "commands that the guide does not show: {missing:?}");
}

#[test]
fn patterns_of_tests_fit_some() {
    let list = devbay(["conformance", "--list"]).expect(0).out;
    let ids: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let mut n_patterns = 0;
    for page in files("md") {
        for rest in read(&page).split("--only ").skip(1) {
            let end = rest.find(|c: char| c.is_whitespace() || "`,;)".contains(c)).unwrap_or(rest.len());
            let pattern = rest[..end].trim_matches('\'');
            if pattern == "ID" {
                continue;
            }
            let fits = |id: &&str| match pattern.split_once('*') {
                Some((begin, end)) => id.starts_with(begin) && id.ends_with(end),
                None => id
                    .strip_prefix(pattern)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '/'])),
            };
            assert!(ids.iter().any(fits), "{page}: no test fits --only {pattern}");
            n_patterns += 1;
        }
    }
    assert!(n_patterns > 0, "expected patterns in the guide");
}

#[test]
fn the_manifest_of_the_guide_finds_its_library() {
    let manifests: Vec<Fence> = fences().into_iter().filter(|fence| fence.kind == Kind::Json).collect();
    let [manifest] = &manifests[..] else { panic!("expected one manifest, found {}", manifests.len()) };
    let value: serde_json::Value =
        serde_json::from_str(&manifest.text).unwrap_or_else(|e| panic!("{}: {e}", manifest.place()));
    let folder = Folder::new();
    let library = folder.path(value["library"].as_str().expect("the library's name"));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-shared", "-fPIC", "-I"]).arg(root().join("plugin-api/include"));
    compiler.arg("-o").arg(library).arg(root().join("conformance/fixtures/minimal.c"));
    finish(&mut compiler).expect(0);
    let file = folder.write("minimal.json", &manifest.text);
    devbay(["devices".as_ref(), "--plugin".as_ref(), file.as_os_str()]).expect(0).prints(&["minimal:0"]);
}

#[test]
fn every_page_and_picture_has_its_place() {
    let summary = read("SUMMARY.md");
    for page in files("md").iter().filter(|page| *page != "SUMMARY.md") {
        assert!(summary.contains(&format!("]({page})")), "{page} is not in SUMMARY.md");
    }
    // mdBook makes a page for each link of the summary; a test of the workspace checks that all links resolve.
    let text: String = files("md").iter().map(|page| read(page)).collect();
    for picture in files("svg") {
        assert!(text.contains(&format!("{picture})")), "no page shows {picture}");
        let drawing = read(&picture);
        assert!(
            drawing.contains("<title>") && drawing.contains("<desc>"),
            "{picture} does not say what it shows"
        );
    }
}

#[test]
fn code_in_rust_is_tested_as_documentation() {
    let list = fs::read_to_string(root().join("conformance/src/guide.rs")).expect("the list of pages");
    let mut pages: Vec<PathBuf> =
        fences().into_iter().filter(|fence| fence.kind == Kind::Rust).map(|fence| fence.page).collect();
    pages.dedup();
    assert!(!pages.is_empty(), "expected code in Rust in the guide");
    for page in pages {
        assert!(
            list.contains(&format!("/{}\"", page.display())),
            "conformance/src/guide.rs lacks {}",
            page.display()
        );
    }
}
