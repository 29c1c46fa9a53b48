//! `devbay bench --roofline`: launches beside the processor's peaks.

use crate::support::{Finished, Folder, command, finish};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

fn mnist() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/mnist_cnn/model.onnx")
}

/// Runs the command on a model, with few runs.
fn roofline(more: &[&str]) -> Finished {
    finish(command().arg("bench").arg(mnist()).args(["--roofline", "--runs", "3"]).args(more))
}

#[test]
fn each_launch_has_its_rates_and_its_limit() {
    roofline(&[]).expect(0).prints(&[
        "with one thread, 3 runs",
        " GFLOP/s (",
        " GB/s (STREAM's triad over three arrays of ",
        "ridge at ",
        "NODE",
        "OF PEAK",
        "OF BANDWIDTH",
        "FLOP/BYTE",
        "\nall ",
        "limited by ",
        "for reading the clock",
    ]);
    let found = roofline(&["--json"]).expect(0).json();
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} is no number"));
    let (peak, bandwidth) = (number(&found["peaks"]["gflop_per_s"]), number(&found["peaks"]["gbyte_per_s"]));
    assert_eq!(found["peaks_missing"], Value::Null);
    let launches = found["launches"].as_array().unwrap();
    let work = finish(command().arg("inspect").arg(mnist()).args(["--plan", "--json", "--threads", "1"]));
    assert_eq!(work.expect(0).json()["launches"].as_u64(), Some(launches.len() as u64));
    let mut shares = 0.0;
    for launch in launches {
        let (flops, bytes, ns) =
            (number(&launch["flops"]), number(&launch["bytes"]), number(&launch["measured_ns"]));
        let is = |field: &str, expected: f64| {
            let found = number(&launch[field]);
            assert!((found - expected).abs() <= expected * 1e-9, "{field}: expected {expected}: {launch}");
        };
        is("gflop_per_s", flops / ns);
        is("gbyte_per_s", bytes / ns);
        is("of_peak", flops / ns / peak);
        is("of_bandwidth", bytes / ns / bandwidth);
        is("flop_per_byte", flops / bytes);
        let expected = if flops / bytes > peak / bandwidth { "arithmetic" } else { "memory" };
        assert_eq!(launch["limit"], expected, "{launch}");
        assert!(!launch["node"].as_str().unwrap().is_empty(), "{launch}");
        shares += number(&launch["share"]);
    }
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");
    // The first convolution: 8 kernels of 5 x 5, and an addition of the bias or what is fused.
    let conv = launches.iter().find(|launch| launch["op"].as_str().unwrap().contains("Conv")).unwrap();
    let extents = |ty: &Value| -> Vec<f64> {
        let ty = ty.as_str().unwrap();
        let inner = ty.split(['[', ']']).nth(1).unwrap();
        inner.split(',').map(|extent| extent.parse().unwrap()).collect()
    };
    let weights = extents(&conv["inputs"][1]);
    let products: f64 =
        extents(&conv["outputs"][0]).iter().product::<f64>() * weights[1..].iter().product::<f64>();
    let flops = number(&conv["flops"]);
    assert!(flops >= 2.0 * products && flops < 2.5 * products, "{flops} for {products}: {conv}");
    let of_limits: u64 = ["arithmetic", "memory", "unknown"]
        .iter()
        .map(|limit| found["by_limit"][limit]["launches"].as_u64().unwrap())
        .sum();
    assert_eq!(of_limits, launches.len() as u64);
}

#[test]
fn a_roofline_is_drawn() {
    let folder = Folder::new();
    let path = folder.path("roofline.html");
    let found = roofline(&["--json", "--html", path.to_str().unwrap()]).expect(0).json();
    let page = fs::read_to_string(&path).unwrap();
    let launches = found["launches"].as_array().unwrap();
    let n_placed = launches.iter().filter(|launch| launch["gflop_per_s"].as_f64() > Some(0.0)).count();
    assert_eq!(page.matches("<circle ").count(), n_placed);
    for launch in launches {
        assert!(page.contains(launch["node"].as_str().unwrap()), "{launch}");
    }
    assert!(page.contains(" GFLOP/s</text>") && page.contains(" GB/s</text>"));
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</body>\n</html>\n"));
    assert!(!page.contains("<script"));
    roofline(&["--html", "/nonexistent/roofline.html"]).expect(1).says(&["cannot write "]);
}

/// A device that does not compute on the calling thread has rates, and no share of that thread's peak.
#[test]
fn other_devices_have_rates_without_shares() {
    let folder = Folder::new();
    let path = folder.path("roofline.html");
    let more = ["--plugin-option", "cpu.streams=async"];
    let found = roofline(&[&more[..], &["--json", "--html", path.to_str().unwrap()]].concat());
    let found = found.expect(0).json();
    assert_eq!(found["peaks"], Value::Null);
    assert!(found["peaks_missing"].as_str().unwrap().contains("unknown"), "{found}");
    let kernels = found["launches"].as_array().unwrap().iter().filter(|launch| !launch["flops"].is_null());
    let rates: Vec<&Value> = kernels.inspect(|launch| assert_eq!(launch["limit"], Value::Null)).collect();
    assert!(!rates.is_empty() && rates.iter().all(|launch| launch["gflop_per_s"].is_number()), "{found}");
    assert!(fs::read_to_string(&path).unwrap().contains("No lines: "));
    roofline(&more).expect(0).prints(&["the peaks of this device are unknown"]);
}

#[test]
fn options_that_do_not_fit_are_refused() {
    roofline(&["--threads", "2"]).expect(2).says(&["--roofline measures on one thread"]);
    for more in
        [["--cost"], ["--passes"], ["--profile=x.json"], ["--at-once=2"], ["--sessions=2"], ["--vary=n=1..2"]]
    {
        roofline(&more).expect(2).says(&["cannot be used with"]);
    }
    let bench = |more: &[&str]| finish(command().arg("bench").arg(mnist()).args(more));
    bench(&["--html", "x.html"]).expect(2).says(&["--roofline"]);
    bench(&["--cost", "--vary", "n=1..2"]).expect(2).says(&["cannot be used with"]);
}
