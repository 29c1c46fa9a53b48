//! Libraries of NVIDIA's beside the driver: their functions by name, and how they are found.

use devbay_plugin_api::sdk::{Error, Result};
use libloading::Library;
use std::path::Path;

/// A struct of functions that are found by name, each returning a code: `functions! { "the library's name"; field: "symbol",
/// fn(types); ... }`. The types are those of the library's header.
macro_rules! functions {
    ($library:literal; $($field:ident: $name:literal, fn($($arg:ty),* $(,)?);)*) => {
        struct Functions {
            $($field: unsafe extern "C" fn($($arg),*) -> std::ffi::c_int,)*
        }

        impl Functions {
            fn load(library: &libloading::Library) -> devbay_plugin_api::sdk::Result<Self> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the type is that of the library's header.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($arg),*) -> std::ffi::c_int>($name)
                        };
                        *symbol.map_err(|error| {
                            let words = $crate::library::words(&error);
                            devbay_plugin_api::sdk::Error::unavailable(format!("{} is too old: {words}", $library))
                        })?
                    },)*
                })
            }
        }
    };
}
pub(crate) use functions;

/// An error of the loader's, with what it came from.
pub fn words(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Opens a library at a path; without one, the first of these names that the loader finds.
///
/// # Errors
/// Unavailable with what was looked for.
pub fn open<'a>(what: &str, path: Option<&'a Path>, names: impl Iterator<Item = &'a str>) -> Result<Library> {
    let names: Vec<&Path> = path.map_or_else(|| names.map(Path::new).collect(), |path| vec![path]);
    let mut reasons = Vec::new();
    for name in names {
        // SAFETY: the library's static constructors are NVIDIA's; the path is the loader's own or one that the user gave.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok(library),
            Err(error) => reasons.push(words(&error)),
        }
    }
    Err(Error::unavailable(format!("{what} was not found: {}", reasons.join("; "))))
}
