//! The parts behind the façade, for the tools that come with devbay: the command, the conformance suite and the benchmarks.
//!
//! They carry no promise of stability: any version may change or remove any of them. Applications should need only the types
//! at the root of this crate.

pub use devbay_core as core;

/// Declares public modules that re-export this crate's private ones.
macro_rules! internals {
    ($($name:ident: $doc:literal;)*) => {$(
        #[doc = $doc]
        pub mod $name {
            pub use crate::$name::*;
        }
    )*};
}

internals! {
    abi_report: "Differences between a plugin's view of the ABI and this host's (B30).";
    auto: "The cheapest way to run a model on several devices, by estimates, and why.";
    buckets: "Padding of inputs of varying length to a few sizes.";
    calibrate: "Measures how fast a device works, for the planner's estimates.";
    compare: "Compares outputs with the expected ones.";
    compiled: "Files of models that a device's compiler made into a program.";
    dbx: "Compiled models: `.dbx` files.";
    device_tensor: "Tensors that stay on a device between runs, and sharing with applications.";
    devices: "The device registry and the choice of a device (B29).";
    diff: "The first node whose results differ between two ways to run a model.";
    discover: "Discovery of plugins (B25).";
    eager: "One op, one call, on a chosen device.";
    feedback_file: "The file of measured launch times.";
    file: "Files: one way to write them, one way to open them.";
    forks: "Objects of processes that fork.";
    group: "Child processes that end with all that they started.";
    import: "From a model file to a program.";
    layers: "Layers: code that speaks the ABI on both sides and stands between host and plugin.";
    load: "From a path to a library's entry (B1, B26).";
    manifest: "Manifests: a plugin's claims before it is loaded (B25).";
    negotiate: "From a library to a plugin, or a refusal with its reason (B3, B30).";
    options: "Options as text, by key and value.";
    plan_json: "A plan as JSON.";
    probe: "Probing: an unknown library is tried in a child process before it is loaded here (B27).";
    random: "Reproducible random numbers for inputs, tests and tools.";
    rates_file: "The file of measured device rates.";
    report: "Reports of plugins that were found, loaded and refused.";
    values: "Strings, sequences, optionals and maps, and the ops of the host on them.";
    simulate: "How a model would scale on more processors than there are.";
    support: "Which device runs each node of a model, and why not another.";
}
