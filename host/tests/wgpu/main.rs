//! The wgpu plugin in an application: nothing leaks with sessions that come and go, idle devices are idle, and what
//! fails is told (`failures.rs`).
//!
//! The device is whatever Vulkan driver the machine has; in the gate it is Mesa's lavapipe. A program of its own, because the
//! plugin that is linked here to be made wrong exports the ABI's symbol, as another one does in `plugins`.

mod failures;
#[path = "../plugins/library.rs"]
mod library;

use crate::library::library;
use devbay_host::{
    Device, DeviceTensor, ErrorKind, Model, Policy, Requirements, Result, RunOptions, Runtime, Session,
    Tensor,
};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A runtime and its device, unless the machine has no driver; with the word `vulkan` in `DEVBAY_REQUIRE` that is a
/// failure.
fn device() -> Option<(Runtime, Arc<Device>)> {
    let options = Runtime::builder().plugin(library("wgpu"));
    let runtime = options.build().expect("a runtime");
    match runtime.choose(&Policy::Explicit("wgpu:0".to_owned()), &Requirements::default()) {
        Ok(choice) => Some((runtime, choice.device)),
        Err(error) => {
            let required = std::env::var("DEVBAY_REQUIRE").unwrap_or_default();
            let required = required.split([',', ' ']).any(|word| word == "vulkan");
            assert!(!required, "expected a Vulkan driver, which DEVBAY_REQUIRE asks for: {error}");
            eprintln!("not run: {error}");
            None
        }
    }
}

fn model() -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/mnist_cnn/model.onnx");
    Model::load(&path).expect("a model of the repository's")
}

fn run(model: &Model, device: &Arc<Device>) -> Result<()> {
    let session = Session::new(model, device)?;
    let port = &session.inputs()[0];
    let shape = [1, 1, 28, 28];
    let pixels = vec![0.5f32; 28 * 28];
    let input = Tensor::from_elements(&shape, &pixels)?;
    session.run(&[(&port.name, &input)])?;
    Ok(())
}

/// Bytes that this process has in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("the system says");
    let pages: u64 =
        status.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number of pages");
    pages * 4096
}

/// Time that this process has worked, in all of its threads.
fn worked() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("the system says");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("ticks")).sum();
    Duration::from_millis(ticks * 10)
}

#[test]
fn two_hundred_sessions_leave_nothing_behind() {
    let Some((_runtime, device)) = device() else { return };
    let model = model();
    let rounds = |n: usize| (0..n).for_each(|_| run(&model, &device).expect("a run"));
    // Pools fill, and the driver's caches.
    rounds(50);
    let (before, in_use) = (resident(), device.bytes_in_use().0);
    rounds(200);
    let grown = resident().saturating_sub(before);
    assert_eq!(device.bytes_in_use().0, in_use, "bytes of the device");
    assert_eq!(in_use, 0, "bytes of the device without a session");
    // The model has 120 kB of weights: a session that stayed would be seen 200 times.
    assert!(grown < 8 << 20, "{grown} bytes more after 200 sessions");
}

#[test]
fn an_idle_device_does_no_work() {
    let Some((_runtime, device)) = device() else { return };
    run(&model(), &device).expect("a run");
    // The run's last work: the queue's threads look for more for a moment before they sleep.
    std::thread::sleep(Duration::from_millis(300));
    let (before, begin) = (worked(), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let (worked, passed) = (worked() - before, begin.elapsed());
    assert!(worked <= Duration::from_millis(30), "{worked:?} of work in {passed:?} of rest");
}

/// Results stay where they are made, also on a device without addresses; what DLPack has no name for is refused.
#[test]
fn results_stay_on_the_device() {
    let Some((_runtime, device)) = device() else { return };
    let session = Session::new(&model(), &device).expect("a session");
    let name = session.inputs()[0].name.clone();
    let input = Tensor::from_elements(&[1, 1, 28, 28], &[0.25f32; 28 * 28]).expect("a tensor");
    let expected = session.run(&[(&name, &input)]).expect("a run");
    let x = DeviceTensor::new(&input, &device).expect("a tensor");
    let y = session.run_on_device(&[(&name, &x)], None, &RunOptions::default()).expect("a run").remove(0);
    assert_eq!(y.device().map(|device| device.name()), Some("wgpu:0"));
    assert_eq!(y.to_tensor().expect("the content").bytes(), expected[0].bytes());
    let refused = y.into_dlpack().map(drop).expect_err("a device without native memory");
    assert_eq!(refused.kind(), ErrorKind::UnsupportedOp, "{refused}");
}
