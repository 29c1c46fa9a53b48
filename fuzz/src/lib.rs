//! Readers of bytes that a stranger may have written, each as a function of the bytes alone. libFuzzer calls them
//! (`libfuzzer/`), and a test calls them with the seeds and with what failed once.

pub mod abi_lists;
pub mod arrays;
pub mod dbx;
pub mod image;
pub mod manifest;
pub mod mutate;
pub mod onnx_run;
pub mod text;

/// A target: it may refuse its input in any way but a panic, an abort, or memory and time without end.
pub type Target = fn(&[u8]);

/// The targets by name, which is their module's.
pub const TARGETS: &[(&str, Target)] = &[
    ("onnx_run", onnx_run::run),
    ("text", text::run),
    ("dbx", dbx::run),
    ("arrays", arrays::run),
    ("image", image::run),
    ("manifest", manifest::run),
    ("abi_lists", abi_lists::run),
];

/// The target of that name.
///
/// # Errors
/// A sentence with the names that there are.
pub fn target(name: &str) -> Result<Target, String> {
    let found = TARGETS.iter().find(|(other, _)| *other == name);
    found.map(|(_, target)| *target).ok_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
        format!("there is no fuzz target `{name}`; there are: {}", names.join(", "))
    })
}
