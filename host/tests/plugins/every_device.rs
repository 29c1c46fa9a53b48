//! Devices of all plugins that were built.

use crate::library::library;
use devbay_host::{Device, Runtime};
use devbay_plugin_api::locks::lock;
use std::sync::{Arc, Mutex};

/// The CPU plugin, and every plugin that was built and has a device here.
///
/// # Panics
/// If one is missing that `DEVBAY_REQUIRE` asks for.
pub fn every_plugin() -> Runtime {
    // PoCL crashes if two threads open its devices for the first time at once.
    static OPENING: Mutex<()> = Mutex::new(());
    let _opening = lock(&OPENING);
    let beside = library("cpu");
    let built = |name: &str| beside.with_file_name(format!("libdevbay_plugin_{name}.so"));
    let others = ["wgpu", "opencl", "pjrt"].map(built).into_iter().filter(|path| path.exists());
    let plugins = std::iter::once(beside.clone()).chain(others);
    let runtime = Runtime::builder().plugins(plugins).build().expect("a runtime");
    let required = std::env::var("DEVBAY_REQUIRE").unwrap_or_default();
    for (word, device) in [("vulkan", "wgpu:0"), ("opencl", "opencl:0"), ("pjrt", "pjrt:0")] {
        let is_there = runtime.devices().iter().any(|found| found.name() == device);
        assert!(is_there || !required.split(',').any(|asked| asked == word), "there is no {device}");
    }
    runtime
}

/// The first device of each plugin, the CPU's first.
pub fn first_devices(runtime: &Runtime) -> Vec<Arc<Device>> {
    let mut devices: Vec<Arc<Device>> =
        runtime.devices().iter().filter(|device| device.name().ends_with(":0")).cloned().collect();
    devices.sort_by_key(|device| device.name() != "cpu:0");
    assert_eq!(devices[0].name(), "cpu:0");
    devices
}
