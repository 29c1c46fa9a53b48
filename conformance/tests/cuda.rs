//! The CUDA plugin passes the suite on an emulator of CUDA's driver, NVRTC, cuBLASLt and cuDNN, whose kernels run on the
//! processor. This tests the plugin's host side, and nothing of a GPU (`bench/gpu-check` does).
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod support;

use devbay_conformance::report::Report;
use devbay_conformance::verdict::Verdict;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use support::{COMPILER, judged_with, library};

/// Returns the emulator's folder, built once per process: one library under the names of all that it replaces.
fn emulator() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let name = format!("devbay-cuda-emulator-{}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        // Left by an earlier process with the same id.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder for the emulator");
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/cuda/emulator");
        let driver = folder.join("libcuda.so.1");
        let built = Command::new("c++")
            .args(["-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-o"])
            .arg(&driver)
            .args(["cuda.cpp", "blas.cpp", "dnn.cpp"].map(|file| sources.join(file)))
            .arg("-ldl")
            .status();
        assert!(
            built.expect("a C++ compiler, as the README asks for").success(),
            "the emulator does not compile"
        );
        for name in ["libcublasLt.so.13", "libcudnn.so.9"] {
            std::os::unix::fs::symlink("libcuda.so.1", folder.join(name))
                .expect("the emulator by another name");
        }
        folder
    })
}

fn judged(only: &[&str], except: &[&str], environment: &[(&str, &str)]) -> Report {
    let folder = emulator();
    let (folder, driver) = (folder.display().to_string(), folder.join("libcuda.so.1").display().to_string());
    let own = [
        ("LD_LIBRARY_PATH", &*folder),
        ("DEVBAY_NVRTC", &*driver),
        ("EMULATOR_DIR", &*folder),
        // Kernels of another emulator must not be reused.
        ("DEVBAY_CACHE_DIR", &*folder),
    ];
    let environment: Vec<(&str, &str)> = own.iter().chain(environment).copied().collect();
    judged_with(library("devbay_plugin_cuda"), only, except, &environment)
}

/// Fails with every failed case, and with unlisted ones that were skipped.
fn expect_green(report: &Report, not_run: &[&str]) {
    let not_passed = report.tests.iter().filter(|test| test.verdict != Verdict::Passed);
    let is_expected = |id: &str, verdict: &Verdict| {
        not_run.contains(&id) && matches!(verdict, Verdict::NotClaimed { .. } | Verdict::Skipped { .. })
    };
    let wrong: Vec<String> = not_passed
        .filter(|test| !is_expected(&test.id, &test.verdict))
        .map(|test| format!("{}: {:?}", test.id, test.verdict))
        .collect();
    assert!(wrong.is_empty() && report.summary().passed > 0, "{}", wrong.join("\n"));
}

/// Features that the plugin does not offer: graphs whose memory moves between replays, zero-copy host memory for operands, a
/// limit on streams, a flush function, kernels with strides or packed constants, ops whose shapes ONNX does not define.
const NOT_OFFERED: &[&str] = &[
    "memory.host_visible",
    "stream.max",
    "stream.flush",
    "transfer.host_visible",
    "kernel.shape",
    "launch.workspace",
    "launch.cancelled",
    "launch.host_refs",
    "launch.packed",
    "launch.strides",
    "replay.bindings",
    "memory.limit",
    "fault.lost",
    "kernel.listed",
    "negotiate.older",
];

#[test]
fn the_base_is_green_on_an_emulator() {
    expect_green(
        &judged(&[], &["onnx", "numerics.*", "specials.*", "stress", "fault", "figure"], &[]),
        &[NOT_OFFERED, COMPILER].concat(),
    );
}

/// Older devices lack memory pools and stream writes, and may lack recordings.
#[test]
fn older_drivers_do() {
    let lacks = [("EMULATOR_NO_POOLS", "1"), ("EMULATOR_NO_WORDS", "1"), ("EMULATOR_NO_GRAPHS", "1")];
    let topics = ["memory", "stream", "event", "replay", "interop.streams"];
    expect_green(&judged(&topics, &[], &lacks), &[NOT_OFFERED, COMPILER].concat());
}

/// With the libraries, and with the plugin's own kernels where those have no algorithm.
#[test]
fn products_are_right_with_and_without_libraries() {
    expect_green(&judged(&["numerics.matmul", "numerics.fusedgemm", "numerics.fusedconv"], &[], &[]), &[]);
    expect_green(&judged(&["numerics.gemm"], &[], &[("EMULATOR_NO_ALGORITHM", "1")]), &[]);
}

/// Models a driver that compiles kernels under the assumption that comparisons never see NaN. NVIDIA's Vulkan driver, which
/// compiles the same sources, turned Relu's comparison into a maximum, and NaN into 0.
#[test]
fn nan_stays_where_a_compiler_does_not_expect_it() {
    let ops =
        ["specials.relu", "specials.clip", "specials.hardsigmoid", "specials.maxpool", "specials.reducemax"];
    expect_green(&judged(&ops, &[], &[("EMULATOR_NO_NANS", "1")]), &[]);
}

#[test]
#[ignore = "full: all cases of special numbers, of which the gate has five"]
fn all_special_numbers_stay_where_a_compiler_does_not_expect_them() {
    expect_green(&judged(&["specials.*"], &[], &[("EMULATOR_NO_NANS", "1")]), &[]);
}
