//! Files: one way to write them, one way to open them.
//!
//! Outputs, caches, reports and compiled models are written with [`write_whole`]: they are there whole or not at all.
//! Models, inputs, manifests, libraries and all else that is read is opened with [`open_regular`] or read with
//! [`read_regular`]: only regular files are, so that a pipe or a device never makes a reader wait. Files that a model names
//! are opened with [`open_beside`]: they do not leave the model's folder.

mod beside;
mod read;
mod write;

pub use beside::{Outside, open_beside};
pub use devbay_plugin_api::sdk::whole_file::{remove_unfinished, write_folder};
pub(crate) use read::read_open;
pub use read::{open_regular, read_open_text, read_regular, read_regular_text};
pub use write::{write_bytes, write_whole};
