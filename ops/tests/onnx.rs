//! The rows beside ONNX's own schemas, which `xtask/scripts/onnx_operands.py` wrote down.

use devbay_ops::OpRow;

/// Operands of one op from a version on, until the next line of the op.
struct Line {
    name: &'static str,
    since: u32,
    inputs: &'static str,
    outputs: &'static str,
}

fn lines() -> Vec<Line> {
    let lines = include_str!("onnx_operands.txt").lines().filter(|line| !line.starts_with('#'));
    let read = |line: &'static str| {
        let (head, operands) = line.split_once(':')?;
        let (name, since) = head.split_once(' ')?;
        let (inputs, outputs) = operands.split_once("->")?;
        Some(Line { name, since: since.parse().ok()?, inputs: inputs.trim(), outputs: outputs.trim() })
    };
    lines.map(|line| read(line).unwrap_or_else(|| panic!("cannot read {line:?}"))).collect()
}

#[test]
fn rows_have_the_operands_of_onnx() {
    let lines = lines();
    let mut n_rows = 0;
    for row in devbay_ops::all().filter(|row| row.domain.is_empty()) {
        let of_op = lines.iter().filter(|line| line.name == row.name && line.since <= row.version);
        let line = of_op.max_by_key(|line| line.since).unwrap_or_else(|| panic!("ONNX has no {}", row.name));
        assert_eq!((row.inputs.text(), row.outputs.text()), (line.inputs, line.outputs), "{}", row.name);
        n_rows += 1;
    }
    assert!(n_rows > 150, "{n_rows} rows");
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
