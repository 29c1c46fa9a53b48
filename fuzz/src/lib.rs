//! Readers of untrusted bytes, each as a function of the bytes alone. libFuzzer calls them (`libfuzzer/`), and a test calls
//! them with the seeds and with earlier failures.

pub mod abi_lists;
pub mod arrays;
pub mod dbx;
pub mod image;
pub mod manifest;
pub mod mutate;
pub mod onnx_run;
pub mod text;

/// A target. It may refuse its input, but must not panic, abort, or use unbounded memory or time.
pub type Target = fn(&[u8]);

/// The targets by name, which is their module's name.
pub const TARGETS: &[(&str, Target)] = &[
    ("onnx_run", onnx_run::run),
    ("text", text::run),
    ("dbx", dbx::run),
    ("arrays", arrays::run),
    ("image", image::run),
    ("manifest", manifest::run),
    ("abi_lists", abi_lists::run),
];

/// Returns the target with a name.
///
/// # Errors
/// A sentence with the existing names.
pub fn target(name: &str) -> Result<Target, String> {
    let found = TARGETS.iter().find(|(other, _)| *other == name);
    found.map(|(_, target)| *target).ok_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
        format!("there is no fuzz target `{name}`; there are: {}", names.join(", "))
    })
}
