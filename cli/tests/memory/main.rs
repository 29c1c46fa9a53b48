//! Running out of memory is an error that callers can handle, for any request whose size depends on content.
//!
//! A test binary of its own, for its allocator: it refuses requests on demand, counts live bytes, and records large requests
//! that bypass `devbay_plugin_api::reserve`. It is part of the command because that links the processor's plugin; the
//! library is under test.

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

/// Serialises the tests, because they share the allocator.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    lock(&ALONE)
}

/// Returns a processor with one thread, so that requests always come in the same order.
fn runtime() -> (Runtime, Arc<Device>) {
    let linked = vec![devbay_plugin_cpu::PLUGIN];
    let options = Runtime::builder().threads(1).link_all(linked);
    let runtime = options.build().expect("a runtime");
    let device = Arc::clone(&runtime.devices()[0]);
    (runtime, device)
}

/// Returns the folder of the repository's own models.
fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models")
}
