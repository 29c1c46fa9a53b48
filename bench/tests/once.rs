//! The benchmarks without peers run once as tests: a benchmark that nobody runs breaks unseen. Their figures are not
//! looked at, as tests run beside each other.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::process::Command;

/// Runs benchmarks with three passes: the rows, which have the fields that scripts read, and what was said besides.
fn rows(arguments: &[&str]) -> Result<(Vec<Value>, String)> {
    // Some load the libraries of plugins, which a build of the workspace makes and one of this package does not.
    let program = env!("CARGO_BIN_EXE_devbay-bench");
    let output = Command::new(program).args(arguments).args(["--passes", "3", "--json"]).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{said}");
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
    Ok((rows, said))
}

fn ensure_row(rows: &[Value], bench: &str, case: &str, subject: &str) -> Result<()> {
    let mut rows = rows.iter();
    let found = rows.any(|row| row["bench"] == bench && row["case"] == case && row["subject"] == subject);
    ensure!(found, "no row for {bench} {case} {subject}");
    Ok(())
}

#[test]
fn kernels_have_rows_beside_their_yardsticks() -> Result<()> {
    let (rows, said) = rows(&["launch", "straight", "async-value", "dense"])?;
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
        // Without AVX2 there is no handwritten code, and `dense` says so.
        if bench == "dense" && said.contains("skipped") {
            continue;
        }
        for subject in ["devbay", yardstick] {
            ensure_row(&rows, bench, case, subject)?;
        }
    }
    Ok(())
}

#[test]
fn graphs_and_control_flow_have_rows_and_missing_peers_are_named() -> Result<()> {
    for case in ["one", "cond", "loop"] {
        let (rows, _) = rows(&["executor", "--case", case])?;
        ensure_row(&rows, "executor", case, "devbay")?;
    }
    let (rows, said) = rows(&["executor", "--case", "1000/"])?;
    for shape in ["chain", "wide", "tree", "layers", "random"] {
        for form in ["tasks", "coarse"] {
            ensure_row(&rows, "executor", &format!("{shape}-1000/{form}"), "devbay")?;
        }
    }
    for peer in ["onetbb", "rust-graph", "onnxruntime", "tensorflow"] {
        ensure!(said.contains(&format!("{peer} is missing")), "{peer} is not named: {said}");
    }
    Ok(())
}

#[test]
fn callers_and_wakes_have_rows() -> Result<()> {
    let (rows, said) = rows(&["serving", "wake"])?;
    for case in ["mnist per run", "mnist p50", "mnist p99"] {
        ensure_row(&rows, "serving", case, "devbay")?;
    }
    for case in ["idle", "spinning"] {
        // One processor has nobody to wake, and `wake` says so.
        if !said.contains("skipped") {
            ensure_row(&rows, "wake", case, "devbay")?;
        }
    }
    Ok(())
}

/// Beside wgpu itself, wherever there is a driver, and in one submission whatever the length.
#[cfg(feature = "wgpu")]
#[test]
fn launches_on_a_gpu_have_rows_beside_wgpu() -> Result<()> {
    let (rows, said) = rows(&["gpu-launch"])?;
    if said.contains("skipped") {
        let required = std::env::var("DEVBAY_REQUIRE").unwrap_or_default();
        ensure!(!required.contains("vulkan"), "DEVBAY_REQUIRE asks for a Vulkan driver: {said}");
        eprintln!("not run: this machine has no Vulkan driver");
        return Ok(());
    }
    for n in [1, 100, 400] {
        for part in ["record", "host", "whole"] {
            for subject in ["devbay", "wgpu", "wgpu, state set once"] {
                ensure_row(&rows, "gpu-launch", &format!("{n} {part}"), subject)?;
            }
        }
        let case = format!("{n} submissions");
        let submissions =
            rows.iter().find(|row| row["case"] == case.as_str()).context("how many there were")?;
        ensure!(submissions["median"] == 1.0, "{submissions}");
    }
    Ok(())
}
