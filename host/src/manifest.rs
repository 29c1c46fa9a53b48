//! Manifests: a plugin's claims before it is loaded, as a small JSON file (B25).
//!
//! ```json
//! {
//!   "devbay_manifest": 1,
//!   "name": "cuda",
//!   "library": "libdevbay_plugin_cuda.so",
//!   "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
//!   "os": "linux",
//!   "arch": "x86_64",
//!   "abi": { "major": 0, "min": 1, "max": 1 },
//!   "devices": ["gpu"],
//!   "driver": "libcuda.so.1, 535 or newer",
//!   "options": { "streams": "4" }
//! }
//! ```
//!
//! `library` is relative to the manifest. `sha256`, `os`, `arch`, `abi`, `devices`, `driver` and `options` may be
//! missing; unknown keys are ignored, so that manifests can grow.

use crate::file::{open_regular, read_regular};
use devbay_core::about::{Refusal, RefusalKind, valid_name};
use devbay_plugin_api::abi::version::{ABI_MAJOR, MinorRange, agree};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Maximum size of a manifest.
const SIZE_MAX: u64 = 1 << 20;

/// Content of a manifest.
#[derive(Clone, Debug, Deserialize)]
pub struct Manifest {
    /// Version of this format: 1.
    pub devbay_manifest: u32,
    /// The plugin's name.
    pub name: String,
    /// Its library, relative to the manifest.
    pub library: PathBuf,
    /// SHA-256 of the library, in hexadecimal digits.
    pub sha256: Option<String>,
    /// Operating system, as Rust names it.
    pub os: Option<String>,
    /// Architecture, as Rust names it.
    pub arch: Option<String>,
    /// ABI versions that the plugin speaks.
    pub abi: Option<AbiRange>,
    /// Kinds of devices that it offers.
    #[serde(default)]
    pub devices: Vec<String>,
    /// The driver that it needs, in words.
    pub driver: Option<String>,
    /// Defaults for the plugin's options.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
}

/// ABI versions in a manifest.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct AbiRange {
    /// Major version.
    pub major: u32,
    /// Oldest minor.
    pub min: u32,
    /// Newest minor.
    pub max: u32,
}

impl Manifest {
    /// Reads a manifest and resolves its library's path.
    ///
    /// # Errors
    /// A refusal for a file that cannot be read or is not a manifest.
    pub fn read(path: &Path) -> Result<(Self, PathBuf), Refusal> {
        let unreadable = |e: &dyn std::fmt::Display| {
            Refusal::new(RefusalKind::Unreadable, format!("cannot read {}: {e}", path.display()))
        };
        let broken = |reason: String| Refusal::new(RefusalKind::BadManifest, reason);
        let text = read_regular(path, SIZE_MAX).map_err(|e| match e.kind() {
            std::io::ErrorKind::FileTooLarge => broken(format!("not a manifest: {e}")),
            _ => unreadable(&e),
        })?;
        let manifest: Self =
            serde_json::from_slice(&text).map_err(|e| broken(format!("not a manifest: {e}")))?;
        if manifest.devbay_manifest != 1 {
            return Err(broken(format!(
                "a manifest of version {}, this host reads version 1",
                manifest.devbay_manifest
            )));
        }
        if !valid_name(&manifest.name) {
            return Err(broken(format!(
                "the manifest names its plugin `{}`, expected a name of [a-z][a-z0-9_-]*",
                manifest.name
            )));
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        let library = folder.join(&manifest.library);
        Ok((manifest, library))
    }

    /// Checks the claims that need no library: machine and ABI versions.
    ///
    /// # Errors
    /// A refusal that names the mismatch.
    pub fn check(&self, host: MinorRange) -> Result<(), Refusal> {
        let sides = [("os", &self.os, std::env::consts::OS), ("arch", &self.arch, std::env::consts::ARCH)];
        for (what, claimed, here) in sides {
            if let Some(claimed) = claimed.as_ref().filter(|claimed| *claimed != here) {
                return Err(Refusal::new(
                    RefusalKind::BadManifest,
                    format!("the manifest is for {what} {claimed}, this machine is {here}"),
                ));
            }
        }
        if let Some(abi) = self.abi {
            let range = MinorRange { min: abi.min, max: abi.max };
            if abi.major != ABI_MAJOR || agree(host, range).is_err() {
                return Err(Refusal::new(
                    RefusalKind::NoCommonVersion,
                    format!(
                        "no common ABI version: the manifest says {}.{} to {}.{}, this host speaks {host}",
                        abi.major, abi.min, abi.major, abi.max
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// Computes the SHA-256 of a file, in hexadecimal digits.
///
/// # Errors
/// Errors of opening and reading the file.
pub fn sha256_of(path: &Path) -> std::io::Result<String> {
    sha256_of_open(open_regular(path)?.0)
}

/// Computes the SHA-256 of a reader's content, in hexadecimal digits.
///
/// # Errors
/// Errors of the reader.
pub(crate) fn sha256_of_open(mut reader: impl Read) -> std::io::Result<String> {
    let mut hasher = Sha256::new();
    let mut chunk = vec![0u8; 1 << 16];
    loop {
        match reader.read(&mut chunk)? {
            0 => break,
            n => hasher.update(&chunk[..n]),
        }
    }
    let mut text = String::with_capacity(64);
    for byte in hasher.finalize() {
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}
