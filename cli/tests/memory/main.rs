//! Memory that is not there: it is an error that can be coped with, whatever decides how much is wanted.
//!
//! A test binary of its own, for its allocator: it refuses what it is told to, counts what lives, and takes down large
//! requests that go past `devbay_plugin_api::reserve`. It stands with the command because that links the processor; what is
//! tested is the library.

#![cfg(feature = "cpu")]

mod allocator;
mod decoded;
mod extents;
mod refused;
mod unreserved;

use allocator::Watched;
use devbay_host::{Device, Runtime};
use devbay_plugin_api::locks::lock;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// One test at a time: the allocator is everybody's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    lock(&ALONE)
}

/// A processor with one thread, so that requests come in the same order each time.
fn runtime() -> (Runtime, Arc<Device>) {
    let linked = vec![devbay_plugin_cpu::PLUGIN];
    let options = Runtime::builder().threads(1).link_all(linked);
    let runtime = options.build().expect("a runtime");
    let device = Arc::clone(&runtime.devices()[0]);
    (runtime, device)
}

/// The repository's own models.
fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models")
}
