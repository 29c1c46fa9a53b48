//! Files: one way to write them, one way to open them.
//!
//! [`write_whole`] writes outputs, caches, reports and compiled models atomically. Models, inputs, manifests, libraries and
//! all other files are opened with [`open_regular`] or read with [`read_regular`]. These accept only regular files, so a
//! pipe or a device never makes a reader wait. [`open_beside`] opens files that a model refers to, and only within the
//! model's folder.

mod beside;
mod read;
mod write;

pub use beside::{Outside, open_beside};
pub use devbay_plugin_api::sdk::whole_file::{remove_unfinished, write_folder};
pub(crate) use read::read_open;
pub use read::{open_regular, read_open_text, read_regular, read_regular_text};
pub use write::{write_bytes, write_whole};
