//! The contract as text, for tools that write plugin projects: `devbay new-plugin` puts it into each, so that a project builds
//! without this crate's repository and without a network.

use include_dir::{Dir, include_dir};

/// The contract in C, `devbay_plugin.h`.
pub const HEADER: &str = include_str!("../include/devbay_plugin.h");
/// Helper functions in C, `devbay_helpers.h`.
pub const HELPERS: &str = include_str!("../include/devbay_helpers.h");
/// The licence, MIT's.
pub const LICENSE_MIT: &str = include_str!("../LICENSE-MIT");
/// The licence, Apache's.
pub const LICENSE_APACHE: &str = include_str!("../LICENSE-APACHE");

/// This crate's sources: the contract in Rust, and the SDK. They build without features and without dependencies.
pub static SOURCES: Dir<'static> = include_dir!("$CARGO_MANIFEST_DIR/src");
