//! Sessions, passes and plans on the plugins that are built beside these tests.
//!
//! One program, because each that is linked takes seconds.

mod arena;
mod cpu;
mod dbx;
mod every_device;
mod given_late;
mod import_models;
mod interop;
mod library;
mod looks;
mod models;
mod narrow;
#[cfg(target_os = "linux")]
mod pages;
mod pass_loops;
mod passes;
mod placement;
mod streaming;
mod verdicts;
mod views;
