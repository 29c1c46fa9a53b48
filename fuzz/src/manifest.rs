//! Manifests, and their checks before anything is loaded.

use devbay_host::internals::manifest::Manifest;
use devbay_plugin_api::abi::version::MinorRange;

/// Runs one input.
pub fn run(data: &[u8]) {
    let path = std::env::temp_dir().join(format!("devbay-fuzz-{}.json", std::process::id()));
    if std::fs::write(&path, data).is_ok()
        && let Ok((manifest, _)) = Manifest::read(&path)
    {
        let _ = manifest.check(MinorRange::CURRENT);
    }
}
