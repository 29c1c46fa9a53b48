//! The benchmarks without peers run once as tests, so that a broken benchmark is noticed. Their figures are not checked,
//! because tests run in parallel.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Runs benchmarks with three passes; returns the rows, checked for the fields that scripts read, and the other output.
fn rows(arguments: &[&str]) -> Result<(Vec<Value>, String)> {
    rows_with(arguments, &[])
}

/// Runs as [`rows`], with environment variables.
fn rows_with(arguments: &[&str], environment: &[(&str, &Path)]) -> Result<(Vec<Value>, String)> {
    // Some load plugin libraries, which building the workspace makes, but building this package does not.
    let program = env!("CARGO_BIN_EXE_devbay-bench");
    let mut command = Command::new(program);
    command.args(arguments).args(["--passes", "1", "--json"]).envs(environment.iter().copied());
    let output = command.output()?;
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
        // The work was counted, and matched the row's claim.
        ensure!(row["counted"].as_u64() > Some(0) && row["counted_what"].is_string(), "{row} counts nothing");
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
        // Without AVX2 there is no handwritten code, and `dense` prints that.
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

/// Both devices run all of their nodes: 10,000 in each of the three sessions.
#[test]
fn two_devices_run_every_node() -> Result<()> {
    let (rows, _) = rows(&["executor", "--case", "two-devices"])?;
    for form in ["tasks", "coarse"] {
        let case = format!("two-devices-10000/{form}");
        ensure_row(&rows, "executor", &case, "each device alone, mean")?;
        ensure_row(&rows, "executor", &case, "devbay")?;
    }
    for row in &rows {
        ensure!(row["counted"] == 30_000 && row["counted_what"] == "launches", "{row}");
    }
    Ok(())
}

#[test]
fn a_streamed_model_launches_every_layer() -> Result<()> {
    let (rows, _) = rows(&["streaming", "--case", "balanced"])?;
    for subject in ["devbay", "the longer of both", "their sum"] {
        ensure_row(&rows, "streaming", "balanced", subject)?;
    }
    ensure!(rows.iter().all(|row| row["counted"] == 64), "{rows:?}");
    Ok(())
}

/// On a model of the repository.
#[test]
fn trained_models_have_rows_whose_outputs_were_compared() -> Result<()> {
    // The others there have no recorded inputs.
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/mnist_cnn");
    let models = tempfile::tempdir()?;
    std::fs::create_dir(models.path().join("mnist_cnn"))?;
    for file in ["model.onnx", "case0.inputs.npz", "case0.outputs.npz"] {
        std::fs::copy(model.join(file), models.path().join("mnist_cnn").join(file))?;
    }
    let arguments = ["models", "passes", "arena", "--case", "mnist_cnn/0"];
    let (rows, _) = rows_with(&arguments, &[("DEVBAY_MODELS", models.path())])?;
    for bench in ["models", "passes", "arena"] {
        ensure_row(&rows, bench, "mnist_cnn/0", "devbay")?;
    }
    ensure!(rows.iter().all(|row| row["counted_what"] == "outputs"), "{rows:?}");
    Ok(())
}

#[test]
fn callers_and_wakes_have_rows() -> Result<()> {
    let (rows, said) = rows(&["serving", "wake"])?;
    for case in ["mnist per run", "mnist p50", "mnist p99"] {
        ensure_row(&rows, "serving", case, "devbay")?;
    }
    for case in ["idle", "spinning"] {
        // With one processor there is no thread to wake, and `wake` prints that.
        if !said.contains("skipped") {
            ensure_row(&rows, "wake", case, "devbay")?;
        }
    }
    Ok(())
}

/// Beside wgpu itself, wherever there is a driver, and in one submission for any length.
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
