//! Where cargo puts plugins.

use std::path::{Path, PathBuf};

/// The library of a plugin, `cpu` or `wgpu`, beside the tests.
pub fn library(plugin: &str) -> PathBuf {
    // target/PROFILE/deps/TEST
    let exe = std::env::current_exe().expect("a test knows its own path");
    let profile = exe.parent().and_then(Path::parent).expect("tests are in target/PROFILE/deps");
    let path = profile.join(format!("libdevbay_plugin_{plugin}.so"));
    assert!(path.exists(), "{} is missing; run `cargo build -p devbay-plugin-{plugin}`", path.display());
    path
}
