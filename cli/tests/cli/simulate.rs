//! `devbay bench --simulate`: the structure of what it says, not the times.

use crate::support::{Finished, Folder, command, finish};
use serde_json::Value;
use std::path::Path;

/// Two branches with loops that are divided, a join, and a tail that is too small to be.
const BRANCHES: &str = r#"devbay-program 1

program "branches"(%x: f32[256,256], %y: f32[256,256]) {
  %a: f32[256,256] = MatMul@13(%x, %y) as "left"
  %b: f32[256,256] = MatMul@13(%y, %x) as "right"
  %c: f32[256,256] = Add@14(%a, %b) as "both"
  %d: f32[256,1] = ReduceMax@20(%c) {keepdims = 1}
  return %d
}
"#;

fn simulate(model: &Path, more: &[&str]) -> Finished {
    finish(command().arg("bench").arg(model).args(["--runs", "3", "--seconds", "0"]).args(more))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn a_model_is_simulated_on_more_processors() {
    let folder = Folder::new();
    let model = folder.write("branches.devbay", BRANCHES);
    // Listed counts are sorted and each is there once, one and two always are.
    let found = simulate(&model, &["--simulate", "8,64,8", "--bandwidth", "1000", "--json"]).expect(0).json();
    let simulated = found["simulated"].as_array().unwrap();
    let threads: Vec<u64> = simulated.iter().map(|of| of["threads"].as_u64().unwrap()).collect();
    assert_eq!(threads, [1, 2, 8, 64]);
    // One processor takes the sum of all chunks and of what is between them.
    let one = &simulated[0];
    let (ns, work_ns) = (number(&one["ns"]), number(&one["work_ns"]));
    assert!((ns - work_ns).abs() <= work_ns * 1e-9, "{one}");
    assert!(number(&one["idle"]) < 1e-9 && number(&one["speedup"]) == 1.0, "{one}");
    for of in simulated {
        assert_eq!((&of["runs"], of["gbyte_per_s"].as_f64()), (&3.into(), Some(1000.0)), "{of}");
        assert!(of["chunks"].as_u64() > Some(2), "{of}");
        let least_ns = number(&of["work_ns"]) / number(&of["threads"]);
        assert!(number(&of["ns"]) >= least_ns * (1.0 - 1e-9), "{of}");
        assert!((0.0..=1.0).contains(&number(&of["idle"])), "{of}");
        let slowest = of["slowest"].as_array().unwrap();
        assert!(!slowest.is_empty() && slowest.len() <= 5, "{of}");
        assert!(slowest.is_sorted_by(|a, b| number(&a["ns"]) >= number(&b["ns"])), "{of}");
        let chunks: u64 = slowest.iter().map(|launch| launch["chunks"].as_u64().unwrap()).sum();
        assert!(slowest.len() == 5 || Some(chunks) == of["chunks"].as_u64(), "all are counted: {of}");
    }
    // The plan is that of so many threads: one task on one, several where threads share them.
    assert_eq!(one["tasks"], 1, "{one}");
    assert!(simulated[3]["tasks"].as_u64() > Some(1), "{}", simulated[3]);
    assert!(number(&found["saturates_at"]) >= 1.0);
    let check = found["check"].as_array().unwrap();
    assert_eq!(check[0]["threads"], 1);
    assert!(
        check.iter().all(|of| number(&of["measured_ns"]) > 0.0 && number(&of["ratio"]) > 0.0),
        "{check:?}"
    );
}

#[test]
fn a_simulation_is_printed() {
    let folder = Folder::new();
    let model = folder.write("branches.devbay", BRANCHES);
    simulate(&model, &["--simulate", "16"]).expect(0).prints(&[
        "on cpu:0, simulated from one thread",
        "another thread joins after ",
        "memory ",
        "THREADS",
        "LIMITED BY",
        "with 1 thread: predicted ",
        "doubling the threads saves less than a tenth",
        "slowest launches with 16 threads:",
        "left",
    ]);
}

#[test]
fn counts_and_devices_that_cannot_be_simulated_are_refused() {
    let folder = Folder::new();
    let model = folder.write("branches.devbay", BRANCHES);
    for (more, code, says) in [
        (&["--simulate", "0"][..], 2, "--simulate takes 1 to 512 threads, found 0"),
        (&["--simulate", "8,513"], 2, "found 513"),
        (&["--simulate", "8,many"], 2, "invalid value 'many'"),
        (&["--simulate", "8", "--threads", "2"], 2, "leave --threads out"),
        (&["--simulate", "8", "--cost"], 2, "cannot be used with"),
        (&["--simulate", "8", "--bandwidth", "0"], 2, "expected GB/s, a number above 0"),
        (&["--bandwidth", "10"], 2, "--simulate"),
        (
            &["--simulate", "8", "--plugin-option", "cpu.streams=async"],
            6,
            "--simulate is for devices that run kernels inline",
        ),
    ] {
        simulate(&model, more).expect(code).says(&[says]);
    }
}
