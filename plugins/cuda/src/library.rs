//! NVIDIA's libraries: how they are found, and how their functions are called.
//!
//! cudarc declares the functions, structs and constants (`cudarc::*::sys`). Its own loader is not used, for three reasons. It
//! panics where a library or a symbol is missing. It looks for each library by fixed names. It returns a status as an enum, of
//! which a newer library's code is an invalid value. Here a library is opened by path or name, its functions are looked up
//! once, into a struct, and [`call!`] calls one with cudarc's parameter types and an integer status. No signature is written by
//! hand.
//!
//! Enums that go *into* a library are cudarc's. Enums that come out are read as integers, from a [`Room`].

use devbay_plugin_api::sdk::{Error, Result};
use libloading::Library;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::path::Path;

/// A function pointer of no particular type: never called, only given a type.
type Untyped = unsafe extern "C" fn();

/// A function of a library, looked up by name. [`typed`] gives it its type.
#[derive(Clone, Copy)]
pub struct Symbol(Untyped);

impl Symbol {
    /// Looks up a function.
    ///
    /// # Errors
    /// The loader's, if the library has no such symbol.
    pub fn find(library: &Library, name: &str) -> std::result::Result<Self, libloading::Error> {
        // SAFETY: the type makes no claim about the function, since nothing calls it by this type.
        let symbol = unsafe { library.get::<Untyped>(name) };
        symbol.map(|symbol| Self(*symbol))
    }
}

/// A function as cudarc declares it: in Rust's calling convention, with an enum as its status.
pub trait Declared {
    /// Pointer to the library's function: the same parameters in C's calling convention, with an integer as the status.
    type Pointer: Copy;

    /// Gives a symbol this declaration's type.
    fn of(symbol: Symbol) -> Self::Pointer;
}

/// Gives a symbol the type that cudarc declares for it. [`call!`] and [`pointer!`] pair the two by name.
#[inline]
pub fn typed<D: Declared>(symbol: Symbol, _declared: D) -> D::Pointer {
    D::of(symbol)
}

/// Implements [`Declared`] for functions of so many parameters, and of fewer.
macro_rules! declared {
    () => {};
    ($first:ident $($rest:ident)*) => {
        impl<Status, $first, $($rest),*> Declared for unsafe fn($first, $($rest),*) -> Status {
            type Pointer = unsafe extern "C" fn($first, $($rest),*) -> c_int;

            #[inline]
            fn of(symbol: Symbol) -> Self::Pointer {
                const { assert!(size_of::<Status>() == size_of::<c_int>()) };
                // SAFETY: both are function pointers, and this only makes one. Calling it is unsafe: the caller vouches that
                // symbol and declaration belong together, which `call!` and `pointer!` ensure by taking both by one name.
                // cudarc's enums are `repr(u32)`, so that an integer of their size has the same ABI.
                unsafe { std::mem::transmute::<Untyped, Self::Pointer>(symbol.0) }
            }
        }
        declared!($($rest)*);
    };
}
// cuDNN's fused convolution has the most parameters, 18.
declared!(A B C D E F G H I J K L M N O P Q R);

/// Gives a symbol the type of a function that *takes* a status, and returns one: a newer library's code may go in as well.
#[inline]
pub fn taking_status<Status, A>(
    symbol: Symbol,
    _declared: unsafe fn(Status, A) -> Status,
) -> unsafe extern "C" fn(c_int, A) -> c_int {
    const { assert!(size_of::<Status>() == size_of::<c_int>()) };
    // SAFETY: both are function pointers, and the status has the size of `c_int` (asserted above), as C passes enums.
    unsafe { std::mem::transmute::<Untyped, unsafe extern "C" fn(c_int, A) -> c_int>(symbol.0) }
}

/// A struct of functions that are found by name: `functions! { pub Functions: cuInit cuDeviceGet ... }`.
macro_rules! functions {
    ($visibility:vis $struct:ident: $($name:ident)*) => {
        /// The library's functions that the plugin calls, by their names.
        #[allow(non_snake_case, reason = "the names are NVIDIA's")]
        $visibility struct $struct {
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                $visibility $name: $crate::library::Symbol,
            )*
        }

        impl $struct {
            /// Looks up all of them; `missing` makes an error of a name and the loader's reason.
            fn load(
                library: &libloading::Library,
                missing: impl Fn(&str, &libloading::Error) -> devbay_plugin_api::sdk::Error,
            ) -> devbay_plugin_api::sdk::Result<Self> {
                let find = |name: &str| {
                    $crate::library::Symbol::find(library, name).map_err(|error| missing(name, &error))
                };
                Ok(Self { $($name: find(stringify!($name))?,)* })
            }
        }
    };
}
pub(crate) use functions;

/// A pointer to a function: `pointer!(functions, sys::cuInit(_))`, with one `_` for each parameter.
macro_rules! pointer {
    ($functions:expr, $sys:ident::$name:ident($($parameter:ty),*)) => {{
        let declared: unsafe fn($($parameter),*) -> _ = $sys::$name;
        $crate::library::typed($functions.$name, declared)
    }};
}
pub(crate) use pointer;

/// Calls a function and gives its status as an integer: `call!(functions, sys::cuInit(0))`. The caller's `unsafe` block
/// vouches for the arguments.
macro_rules! call {
    ($functions:expr, $sys:ident::$name:ident($($argument:expr),* $(,)?)) => {
        $crate::library::pointer!(
            $functions,
            $sys::$name($($crate::library::inferred!($argument)),*)
        )($($argument),*)
    };
}
pub(crate) use call;

/// Leaves the type of an argument to the compiler.
macro_rules! inferred {
    ($argument:expr) => {
        _
    };
}
pub(crate) use inferred;

/// Room for a struct that a library fills, of so many 64-bit words. Its fields are read as integers, by their offsets: a newer
/// library may write a value that an enum does not have, and reading it as the enum would be undefined behaviour.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Room<T, const WORDS: usize> {
    words: [u64; WORDS],
    of: PhantomData<T>,
}

impl<T, const WORDS: usize> Room<T, WORDS> {
    /// Zeros.
    pub const ZERO: Self = {
        assert!(size_of::<T>() == 8 * WORDS && align_of::<T>() <= 8);
        Self { words: [0; WORDS], of: PhantomData }
    };

    /// Returns the struct, for a library to fill.
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.words.as_mut_ptr().cast()
    }

    /// Returns the enum or integer of 32 bits at an offset.
    pub fn int(&self, offset: usize) -> c_int {
        self.read(offset)
    }

    /// Returns the size at an offset.
    pub fn size(&self, offset: usize) -> usize {
        self.read(offset)
    }

    /// Returns so many words at an offset that is a multiple of 8.
    pub fn words<const N: usize>(&self, offset: usize) -> [u64; N] {
        std::array::from_fn(|i| self.words[offset / 8 + i])
    }

    fn read<V: bytemuck::AnyBitPattern>(&self, offset: usize) -> V {
        bytemuck::pod_read_unaligned(&bytemuck::bytes_of(&self.words)[offset..offset + size_of::<V>()])
    }

    /// Sets the 32 bits at an offset, in a library's place.
    #[cfg(test)]
    pub fn set(&mut self, offset: usize, value: c_int) {
        bytemuck::cast_slice_mut(&mut self.words)[offset / size_of::<c_int>()] = value;
    }
}

/// The error for a library without one of the functions.
pub fn too_old(library: &str, error: &libloading::Error) -> Error {
    Error::unavailable(format!("{library} is too old: {}", words(error)))
}

/// The text of a loader's error, with its cause.
pub fn words(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Opens a library at a path; without one, the first of these names that the loader finds.
///
/// # Errors
/// Unavailable, with the names that were tried.
pub fn open<'a>(what: &str, path: Option<&'a Path>, names: impl Iterator<Item = &'a str>) -> Result<Library> {
    let names: Vec<&Path> = path.map_or_else(|| names.map(Path::new).collect(), |path| vec![path]);
    let mut reasons = Vec::new();
    for name in names {
        // SAFETY: loading runs NVIDIA's static constructors: the names are of its libraries, and the user vouches for a path.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok(library),
            Err(error) => reasons.push(words(&error)),
        }
    }
    Err(Error::unavailable(format!("{what} was not found: {}", reasons.join("; "))))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use cudarc::driver::sys;
    use std::ffi::c_uint;

    functions! { Functions: cuInit cuDeviceGet }

    /// A status that no header knows.
    const UNKNOWN: c_int = 98765;

    unsafe extern "C" fn init(_: c_uint) -> c_int {
        UNKNOWN
    }

    unsafe extern "C" fn device_get(_: *mut c_int, _: c_int) -> c_int {
        UNKNOWN
    }

    #[test]
    fn a_missing_symbol_is_an_error_that_names_it() {
        let library = Library::from(libloading::os::unix::Library::this());
        let missing = |name: &str, _: &libloading::Error| Error::unavailable(format!("no {name}"));
        let error = Functions::load(&library, missing).err().expect("this process has no CUDA");
        assert_eq!(error.text(), "no cuInit");
    }

    #[test]
    fn a_status_that_no_header_knows_stays_a_number() {
        type Init = unsafe extern "C" fn(c_uint) -> c_int;
        type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
        // SAFETY: a function pointer of another type, which nothing calls by that type.
        let init = Symbol(unsafe { std::mem::transmute::<Init, Untyped>(init) });
        // SAFETY: a function pointer of another type, which only calls by its own type use.
        let device_get = Symbol(unsafe { std::mem::transmute::<DeviceGet, Untyped>(device_get) });
        let functions = Functions { cuInit: init, cuDeviceGet: device_get };
        let mut device = 0;
        // SAFETY: the function above, which has cudarc's parameters.
        assert_eq!(unsafe { call!(functions, sys::cuInit(0)) }, UNKNOWN);
        // SAFETY: `device_get` above, which has the parameters that cudarc declares for `cuDeviceGet`.
        assert_eq!(unsafe { call!(functions, sys::cuDeviceGet(&mut device, 0)) }, UNKNOWN);
    }
}
