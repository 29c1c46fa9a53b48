//! The command as a user sees it, and trained models through the host as in the command: with the CPU plugin linked in and
//! as a library.

#[cfg(target_os = "linux")]
mod allocations;
mod bad_input;
mod command;
mod compiled;
mod config;
mod conformance;
mod contract;
mod cost;
mod dbx;
mod diff;
#[cfg(unix)]
mod ends;
mod examples;
mod failures;
#[cfg(unix)]
mod files;
mod generated;
mod gpu;
mod gpu_check;
mod guide;
mod hostile_models;
#[cfg(unix)]
mod kills;
mod layers;
mod lengths;
mod limits;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod lint;
mod loops;
mod memory;
mod models;
mod new_plugin;
mod null_plugin;
mod ops;
mod passes;
mod pins;
#[cfg(target_os = "linux")]
mod pjrt_libraries;
mod placement;
mod plans;
mod profile;
mod programs;
mod roofline;
mod runs;
mod sessions;
mod simulate;
mod support;
