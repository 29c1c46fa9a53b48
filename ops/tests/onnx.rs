//! The rows beside ONNX's own schemas, which `xtask/scripts/onnx_rows.py` wrote down.

use devbay_ops::{ML_DOMAIN, OpRow};

/// A row of one op, valid from a version until the op's next row.
struct Line {
    name: &'static str,
    since: u32,
    text: &'static str,
}

fn lines(file: &'static str) -> Vec<Line> {
    let lines = file.lines().filter(|line| !line.starts_with('#'));
    let read = |line: &'static str| {
        let (head, text) = line.split_once(':')?;
        let (name, since) = head.split_once(' ')?;
        Some(Line { name, since: since.parse().ok()?, text: text.trim() })
    };
    lines.map(|line| read(line).unwrap_or_else(|| panic!("cannot read {line:?}"))).collect()
}

/// Compares what rows of ONNX's ops say with the lines in force in their versions.
fn check(file: &'static str, text: impl Fn(&OpRow) -> String) {
    let lines = lines(file);
    let mut n_with_text = 0;
    for row in devbay_ops::all().filter(|row| ["", ML_DOMAIN].contains(&row.domain)) {
        let name = [row.domain, row.name].join(if row.domain.is_empty() { "" } else { "." });
        // Later versions of an op of ai.onnx.ml only add to it, and its row has all of them.
        let version = if row.domain.is_empty() { row.version } else { u32::MAX };
        let of_op = lines.iter().filter(|line| line.name == name && line.since <= version);
        let line = of_op.max_by_key(|line| line.since).map_or("", |line| line.text);
        assert_eq!(text(row), line, "{}", row.name);
        n_with_text += usize::from(!line.is_empty());
    }
    assert!(n_with_text > 80, "{n_with_text} rows");
}

#[test]
fn rows_have_the_operands_of_onnx() {
    check(include_str!("onnx_operands.txt"), |row| {
        // Which operands a kernel has to know is devbay's own.
        format!("{} -> {}", row.inputs.text(), row.outputs.text()).replace('!', "").trim().to_owned()
    });
}

#[test]
fn rows_have_the_attributes_of_onnx() {
    check(include_str!("onnx_attributes.txt"), |row| row.attributes.text().to_owned());
}

#[test]
fn the_header_of_formulas_is_that_of_the_rows() {
    let committed = include_str!("../../plugins/opencl/src/formulas.h");
    let hint = "`cargo run --example formulas_h > plugins/opencl/src/formulas.h` writes it";
    assert!(committed == devbay_ops::opencl::header(), "formulas.h is stale: {hint}");
}

#[test]
fn rows_are_found() {
    let names: Vec<(&str, &str)> = devbay_ops::all().map(|row| (row.domain, row.name)).collect();
    for pair in names.windows(2) {
        assert!(pair[0].0 != pair[1].0 || pair[0].1 < pair[1].1, "{pair:?} are not in order");
    }
    for row in devbay_ops::all() {
        let found: Option<&OpRow> = devbay_ops::find(row.domain, row.name);
        assert_eq!(found.map(|found| found.inputs), Some(row.inputs), "{}", row.name);
    }
    assert!(devbay_ops::find("", "FusedConv").is_none() && devbay_ops::find("com.acme", "Conv").is_none());
}

/// A kernel's descriptor has a count: the first so many are required. That is the truth for all ops with kernels, as
/// ONNX lists required operands first.
#[test]
fn required_operands_stand_first() {
    for row in devbay_ops::all().filter(|row| !["If", "Loop", "Scan"].contains(&row.name)) {
        for operands in [row.inputs, row.outputs] {
            for i in 0..operands.n_min() {
                assert!(operands.is_required(i), "{} {i} of {operands:?}", row.name);
            }
        }
    }
}

/// The document's tables of fused ops are the rows'.
#[test]
fn the_document_has_every_fused_op() {
    let text = include_str!("../../docs/fused-ops.md");
    let table = text.split_once("| ops | `params` |").map_or("", |(_, rest)| rest);
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let mut listed: Vec<(&str, Vec<&str>)> = Vec::new();
    for row in rows {
        let columns: Vec<&str> = row.split('|').collect();
        let words = |i: usize| columns.get(i).map_or("", |text| text).split('`').skip(1).step_by(2);
        listed.extend(words(1).filter(|word| !word.contains('=')).map(|op| (op, words(2).collect())));
    }
    let fused = devbay_ops::formula::all().iter().filter(|formula| formula.row.is_fused);
    let mut expected: Vec<(&str, Vec<&str>)> = fused
        .map(|formula| (formula.name(), formula.params.iter().map(|param| param.name).collect()))
        .collect();
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected, "docs/fused-ops.md, and the formulas that are fused");
}
