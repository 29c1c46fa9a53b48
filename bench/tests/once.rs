//! The benchmarks without peers run once as tests: a benchmark that nobody runs breaks unseen. Their figures are not
//! looked at, as tests run beside each other.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::process::Command;

#[test]
fn rows_are_json_objects_with_the_fields_that_scripts_read() -> Result<()> {
    // `launch` loads the CPU plugin's library, which a build of the workspace makes and one of this package does not.
    let program = env!("CARGO_BIN_EXE_devbay-bench");
    let output = Command::new(program)
        .args(["launch", "straight", "async-value", "dense", "--passes", "3", "--json"])
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<Value> = String::from_utf8(output.stdout)?
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("`{line}` is no JSON")))
        .collect::<Result<_>>()?;
    for row in &rows {
        for field in ["bench", "case", "subject", "unit"] {
            ensure!(row[field].is_string(), "{row} has no {field}");
        }
        for field in ["threads", "median", "min", "max", "runs"] {
            ensure!(row[field].is_number(), "{row} has no {field}");
        }
    }
    for (bench, case, yardstick) in [
        ("launch", "launch", "bare call"),
        ("straight", "straight", "bare call"),
        ("async-value", "make", "malloc"),
        ("async-value", "continue", "malloc"),
        ("async-value", "link", "malloc"),
        ("async-value", "indirect", "malloc"),
        ("dense", "n8", "handwritten"),
        ("dense", "n16", "handwritten"),
        ("dense", "n32", "handwritten"),
    ] {
        for subject in ["devbay", yardstick] {
            let found = rows
                .iter()
                .any(|row| row["bench"] == bench && row["case"] == case && row["subject"] == subject);
            // Without AVX2 there is no handwritten code, and `dense` says so.
            let skipped = bench == "dense" && String::from_utf8_lossy(&output.stderr).contains("skipped");
            ensure!(found || skipped, "no row for {bench} {case} {subject}");
        }
    }
    Ok(())
}
