//! Layers between host and plugin: how they are named and stacked, and that the validation layer names exactly the rule
//! that a wrong host or plugin breaks, with a case for each of its checks.

mod extensions;
mod host_objects;
mod host_work;
mod plugin_results;
mod plugin_services;
mod plugin_streams;
#[path = "../queued/mod.rs"]
mod queued;
mod rig;
mod runtimes;
mod stacks;
mod toy;
