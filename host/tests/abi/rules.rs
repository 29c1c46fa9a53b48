//! No rule without code and test, and no row or list of `docs/abi-rules.md` that leads nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn rules() -> impl Iterator<Item = u32> {
    1..=30
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The workspace's Rust sources, as paths from its root, with their text.
fn sources() -> BTreeMap<String, String> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap_or_default();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                walk(&path, found);
            } else if name.ends_with(".rs") {
                found.push(path);
            }
        }
    }
    let mut files = Vec::new();
    walk(root(), &mut files);
    let relative = |path: &Path| path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
    files.iter().map(|path| (relative(path), std::fs::read_to_string(path).unwrap())).collect()
}

/// Tests whose names begin with a rule, `bNN_`: name and file.
fn tests(sources: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (file, text) in sources {
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            if line == "#[test]" {
                is_test = true;
            } else if let Some(rest) = line.strip_prefix("fn ") {
                let name = rest.split('(').next().unwrap();
                if is_test && rule_of(name).is_some() {
                    found.insert(name.to_owned(), file.clone());
                }
                is_test = false;
            }
        }
    }
    found
}

fn rule_of(test: &str) -> Option<u32> {
    let (number, _) = test.strip_prefix('b')?.split_once('_')?;
    (number.len() == 2).then(|| number.parse().ok())?
}

#[test]
fn every_rule_has_a_test() {
    let tests = tests(&sources());
    let tested: BTreeSet<u32> = tests.keys().filter_map(|name| rule_of(name)).collect();
    let missing: Vec<u32> = rules().filter(|rule| !tested.contains(rule)).collect();
    assert!(missing.is_empty(), "rules without a test named bNN_...: {missing:?}");
    let unknown: Vec<u32> =
        tested.iter().copied().filter(|rule| !rules().any(|known| known == *rule)).collect();
    assert!(unknown.is_empty(), "tests of rules that do not exist: {unknown:?}");
}

/// Returns whether a comment in a text cites a rule: `B7`, not `B70` nor `AB7`.
fn cites(text: &str, rule: u32) -> bool {
    let citation = format!("B{rule}");
    text.lines().filter(|line| line.contains("//")).any(|line| {
        line.match_indices(&citation).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + citation.len()..].chars().next();
            !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
        })
    })
}

#[test]
fn every_rule_is_cited_by_the_code_that_holds_it() {
    let sources = sources();
    let folders = ["plugin-api/src/", "core/src/", "host/src/", "conformance/src/"];
    let held = |file: &str| folders.iter().any(|folder| file.starts_with(folder));
    let code: Vec<&String> = sources.iter().filter(|(file, _)| held(file)).map(|(_, text)| text).collect();
    let missing: Vec<u32> = rules().filter(|&rule| !code.iter().any(|text| cites(text, rule))).collect();
    assert!(missing.is_empty(), "rules that no code cites: {missing:?}");
    // Of the contract itself, the rules that are about its types.
    let contract = &sources["plugin-api/src/abi/v0.rs"];
    let missing: Vec<u32> =
        rules().filter(|rule| !matches!(rule, 25 | 27..=29)).filter(|&rule| !cites(contract, rule)).collect();
    assert!(missing.is_empty(), "rules that v0.rs does not cite: {missing:?}");
}

/// The words in backquotes of a cell.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn the_table_of_rules_leads_somewhere() {
    let sources = sources();
    let tests = tests(&sources);
    let table = std::fs::read_to_string(root().join("docs/abi-rules.md")).unwrap();
    let mut rows = BTreeMap::new();
    for line in table.lines().filter(|line| line.starts_with("| <a")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [rule, says, code, proof] = cells[..] else { panic!("a row has four cells: {line}") };
        // Reports link to the anchor.
        let (anchor, rule) = rule.split_once("</a>").unwrap();
        let number: u32 = rule.strip_prefix('B').unwrap().parse().unwrap();
        assert_eq!(anchor, format!("<a id=\"b{number}\">"), "{line}");
        assert!(rows.insert(number, says).is_none(), "B{number} twice");
        assert!(quoted(code).count() > 0 && quoted(proof).count() > 0, "{line}");
        for file in quoted(code) {
            let path = file.split("::").next().unwrap();
            let text = sources.get(path).unwrap_or_else(|| panic!("B{number}: there is no {path}"));
            if let Some((_, item)) = file.split_once("::") {
                assert!(text.contains(item), "B{number}: there is no {item} in {path}");
            }
        }
        for test in quoted(proof) {
            assert!(tests.contains_key(test), "B{number}: there is no test {test}");
            assert_eq!(rule_of(test), Some(number), "{test}");
        }
    }
    assert_eq!(rows.keys().copied().collect::<Vec<_>>(), (1..=30).collect::<Vec<_>>());
}

/// The list below `Plain data` has every file that makes a slice from a raw pointer, and no other.
#[test]
fn slices_of_raw_pointers_are_made_in_the_files_that_the_list_names() {
    let text = std::fs::read_to_string(root().join("docs/abi-rules.md")).unwrap();
    let (_, list) = text.split_once("A slice is made from a raw pointer").expect("the section `Plain data`");
    let listed: Vec<&str> =
        list.split("\n- ").skip(1).flat_map(quoted).filter(|it| it.contains('/')).collect();
    let call = ["slice::from_raw", "_parts"].concat();
    let vec = ["Vec::from_raw", "_parts"].concat();
    let archived = |file: &str| file.starts_with("conformance/matrix/");
    let raw = |text: &str| text.contains(&call) || text.contains(&vec);
    let sources = sources();
    let found: Vec<&str> =
        sources.iter().filter(|(file, text)| !archived(file) && raw(text)).map(|(file, _)| &**file).collect();
    let under = |file: &str, path: &str| Path::new(file).starts_with(path);
    let unlisted: Vec<&&str> =
        found.iter().filter(|file| !listed.iter().any(|path| under(file, path))).collect();
    assert!(unlisted.is_empty(), "cast with bytemuck, or name in docs/abi-rules.md: {unlisted:?}");
    let idle: Vec<&&str> = listed.iter().filter(|path| !found.iter().any(|file| under(file, path))).collect();
    assert!(idle.is_empty(), "docs/abi-rules.md names files without such a slice: {idle:?}");
}
