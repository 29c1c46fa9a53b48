//! A PJRT library: opened, its version checked, its table read, set up, its attributes read.
//!
//! A library is set up once in a process and never closed: these libraries stay mapped after `dlclose`, and run threads.
//! So a [`Library`] is `'static`, and opening it again gives the same one.
//!
//! The table is copied as far as the library says that it goes. Each call looks whether its function is there; a function
//! that is there may still answer `UNIMPLEMENTED`. Both are told by [`Error::is_unimplemented`].

use crate::api::{self, Args, RawError, Slot, named_value_kind};
use crate::error::{Code, Error, Result, optional};
use devbay_plugin_api::locks::lock;
use std::ffi::{c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

/// A PJRT library that was set up.
pub struct Library {
    path: PathBuf,
    major: i32,
    minor: i32,
    table: [Option<Slot>; api::N_SLOTS],
    execute_options_size: usize,
    attributes: Vec<Attribute>,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Library({}, API {}.{})", self.path.display(), self.major, self.minor)
    }
}

/// A named value: an attribute of a library, or an option of a client.
#[derive(Clone, PartialEq, Debug)]
pub struct Attribute {
    /// Its name, such as `stablehlo_current_version`.
    pub name: String,
    /// Its value.
    pub value: Value,
}

/// The value of an [`Attribute`].
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// Text; bytes that are not UTF-8 are replaced.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// Whole numbers.
    Integers(Vec<i64>),
    /// A number.
    Float(f32),
    /// Yes or no.
    Flag(bool),
    /// A kind of value of a newer header, by its number. No client takes it as an option.
    Unknown(i32),
}

/// Libraries by the address of their table. The result of a library's setup is kept, also a failure: it runs once.
static LIBRARIES: Mutex<Vec<(usize, &'static Setup)>> = Mutex::new(Vec::new());

/// Result of a library's setup; empty until it ran.
type Setup = OnceLock<Result<Library>>;

impl Library {
    /// Opens a library and sets it up (`PJRT_Plugin_Initialize`), or gives the one that was opened before.
    ///
    /// **Threads**: any; blocks as long as the library's setup does. libtpu looks for the cloud's metadata server for
    /// minutes where there is none, unless `TPU_SKIP_MDS_QUERY=1` is in the environment before.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::NoSymbol`], [`Error::Version`], and what the setup says.
    ///
    /// # Safety
    /// The file, if it is a library, runs its code in this process: the caller trusts it, also to implement the PJRT API
    /// that it claims.
    pub unsafe fn open(path: &Path) -> Result<&'static Self> {
        let failed = |error: libloading::Error| match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        };
        // SAFETY: the caller trusts the file's code (# Safety).
        let opened = unsafe { load(path) };
        let library = opened.map_err(|error| Error::Open { path: path.to_owned(), reason: failed(error) })?;
        // SAFETY: the symbol's type is the header's.
        let get_api = unsafe { library.get::<unsafe extern "C" fn() -> *const c_void>("GetPjrtApi") };
        let get_api =
            *get_api.map_err(|error| Error::NoSymbol { path: path.to_owned(), reason: failed(error) })?;
        // SAFETY: it takes nothing, and may be called at any time.
        let table = unsafe { get_api() };
        // The library has run code of ours and may have made threads: it is never closed.
        std::mem::forget(library);
        // SAFETY: the table lives as long as the library, which is never closed; the caller trusts what it says
        // (# Safety).
        unsafe { Self::from_table(table, path) }
    }

    /// The library of a table in memory: what its `GetPjrtApi` returned, for a library that was linked. `path` names it
    /// in messages.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    ///
    /// # Safety
    /// `table` is NULL or a `PJRT_Api` that is never changed or freed, and what it says of itself is true.
    pub unsafe fn from_table(table: *const c_void, path: &Path) -> Result<&'static Self> {
        if table.is_null() {
            return Err(Error::Broken { function: "GetPjrtApi", text: "no table" });
        }
        let cell = {
            let mut libraries = lock(&LIBRARIES);
            let known = libraries.iter().find(|(address, _)| *address == table.addr());
            known.map(|(_, cell)| *cell).unwrap_or_else(|| {
                let cell = &*Box::leak(Box::new(OnceLock::new()));
                libraries.push((table.addr(), cell));
                cell
            })
        };
        // Outside of the lock: a setup of minutes must not hold up the opening of another library.
        let library = cell.get_or_init(|| {
            // SAFETY: `table` is not NULL (checked), and a `PJRT_Api` that is never changed or freed (# Safety).
            let mut library = unsafe { Self::read(table.cast(), path) }?;
            library.setup()?;
            Ok(library)
        });
        library.as_ref().map_err(Clone::clone)
    }

    /// Copies a table.
    ///
    /// # Safety
    /// As [`from_table`](Self::from_table), and not NULL.
    unsafe fn read(table: *const u8, path: &Path) -> Result<Self> {
        // SAFETY: `table` is not NULL (# Safety), and every table begins with its size.
        let size_bytes = unsafe { table.cast::<usize>().read() };
        if size_bytes < api::TABLE_HEADER_BYTES {
            return Err(Error::Broken { function: "GetPjrtApi", text: "a table without a version" });
        }
        // SAFETY: the table is larger than its header, whose size, extensions and struct size of the version are before.
        let version = unsafe { table.add(32).cast::<[c_int; 2]>().read() };
        let [major, minor] = version;
        if major != api::MAJOR || minor < api::MINOR_MIN {
            return Err(Error::Version { major, minor });
        }
        let mut functions = [None; api::N_SLOTS];
        let n_slots = (size_bytes - api::TABLE_HEADER_BYTES) / size_of::<Option<Slot>>();
        for (i, function) in functions.iter_mut().enumerate().take(n_slots) {
            let offset = api::TABLE_HEADER_BYTES + i * size_of::<Option<Slot>>();
            // SAFETY: within the size that the table says; each entry is a function or NULL.
            *function = unsafe { table.add(offset).cast::<Option<Slot>>().read() };
        }
        let execute_options_size =
            api::size_at(minor, size_of::<api::ExecuteOptions>(), api::ExecuteOptions::BEFORE);
        let path = path.to_owned();
        Ok(Self { path, major, minor, table: functions, execute_options_size, attributes: Vec::new() })
    }

    fn setup(&mut self) -> Result<()> {
        // Without these no error could be read, and no end of work that was begun could be waited for.
        self.function::<api::ErrorDestroy>()?;
        self.function::<api::ErrorMessage>()?;
        self.function::<api::ErrorGetCode>()?;
        self.function::<api::EventAwait>()?;
        self.function::<api::EventDestroy>()?;
        let mut args = api::PluginInitialize::ZERO;
        // SAFETY: the function takes no arguments but the size.
        unsafe { self.call(&mut args) }?;
        let mut args = api::PluginAttributes::ZERO;
        // SAFETY: the function takes no arguments but the size.
        if optional(unsafe { self.call(&mut args) })?.is_some() {
            // SAFETY: the library's list, which lives as long as the process.
            self.attributes = unsafe { read_attributes(args.attributes, args.num_attributes) };
        }
        Ok(())
    }

    /// The file that it was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The PJRT API that it implements: major and minor.
    pub fn version(&self) -> (i32, i32) {
        (self.major, self.minor)
    }

    /// Returns its attributes; the names are the library's own choice.
    pub fn attributes(&self) -> &[Attribute] {
        &self.attributes
    }

    /// The newest StableHLO that it reads (`stablehlo_current_version`), if it says so.
    pub fn stablehlo_version(&self) -> Option<[i64; 3]> {
        self.attributes.iter().find_map(|attribute| match &attribute.value {
            Value::Integers(values) if attribute.name == "stablehlo_current_version" => {
                values.as_slice().try_into().ok()
            }
            _ => None,
        })
    }

    /// Bytes of `PJRT_ExecuteOptions` that it knows.
    pub(crate) fn execute_options_size(&self) -> usize {
        self.execute_options_size
    }

    /// The function that an argument struct belongs to.
    fn function<A: Args>(&self) -> Result<Slot> {
        self.table[A::SLOT].ok_or(Error::Missing { function: A::NAME })
    }

    /// Calls a function with its arguments, whose size is set here.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Library`].
    ///
    /// # Safety
    /// The arguments are what the header asks for: objects are alive and of this library, memory is as large as it says.
    pub(crate) unsafe fn call<A: Args>(&self, args: &mut A) -> Result<()> {
        let function = self.function::<A>()?;
        args.set_struct_size(const_or(A::BEFORE, self.minor, A::SIZE));
        // SAFETY: `Args` ties the place in the table to the struct, and functions of the table that are called here take
        // a pointer to it and return an error or NULL.
        let function: unsafe extern "C" fn(*mut A) -> *mut RawError =
            unsafe { std::mem::transmute(function) };
        // SAFETY: the objects are alive and of this library, and memory is as large as it says (# Safety).
        let error = unsafe { function(args) };
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: the library just returned the error, which is ours to destroy.
        Err(unsafe { self.take_error(A::NAME, error) })
    }

    /// Reads an error and destroys it.
    ///
    /// # Safety
    /// `error` is one of this library's, not destroyed before or after.
    pub(crate) unsafe fn take_error(&self, function: &'static str, error: *mut RawError) -> Error {
        let mut message = api::ErrorMessage { error, ..api::ErrorMessage::ZERO };
        // SAFETY: `error` is one of this library's, and not yet destroyed (# Safety).
        unsafe { self.call_without_error(&mut message) };
        // SAFETY: words that live as long as the error.
        let words = unsafe { text(message.message, message.message_size) };
        let code = {
            let mut args = api::ErrorGetCode { error, ..api::ErrorGetCode::ZERO };
            // SAFETY: `error` is not yet destroyed (# Safety). An error about an error says nothing more than UNKNOWN.
            unsafe { self.call(&mut args) }.map_or(Code(2), |()| Code(args.code))
        };
        // SAFETY: `error` is destroyed once, here, and not used after this (# Safety).
        unsafe { self.call_without_error(&mut api::ErrorDestroy { error, ..api::ErrorDestroy::ZERO }) };
        Error::Library { function, code, message: words }
    }

    /// As [`call`](Self::call) for a function that returns nothing; one that is missing is not called.
    ///
    /// # Safety
    /// As [`call`](Self::call).
    unsafe fn call_without_error<A: Args>(&self, args: &mut A) {
        let Ok(function) = self.function::<A>() else { return };
        args.set_struct_size(A::SIZE);
        // SAFETY: `Args` ties the place in the table to the struct; the two functions that are called here take a
        // pointer to it and return nothing.
        let function: unsafe extern "C" fn(*mut A) = unsafe { std::mem::transmute(function) };
        // SAFETY: the objects are alive and of this library, and memory is as large as it says (# Safety of `call`).
        unsafe { function(args) };
    }
}

/// The struct's size for a minor; a constant for a struct that never grew.
fn const_or(before: &[(i32, usize)], minor: i32, size: usize) -> usize {
    if before.is_empty() { size } else { api::size_at(minor, size, before) }
}

/// Opens a library. Its symbols are local, and missing ones are reported now.
///
/// # Safety
/// The library's constructors are trusted.
unsafe fn load(path: &Path) -> std::result::Result<libloading::Library, libloading::Error> {
    #[cfg(unix)]
    {
        use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
        // SAFETY: the library's constructors are trusted (# Safety).
        unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map(Into::into)
    }
    #[cfg(not(unix))]
    {
        // SAFETY: the library's constructors are trusted (# Safety).
        unsafe { libloading::Library::new(path) }
    }
}

/// Copies a text of the library's.
///
/// # Safety
/// `bytes` is NULL, or `size_bytes` bytes can be read there.
pub(crate) unsafe fn text(bytes: *const c_char, size_bytes: usize) -> String {
    if bytes.is_null() {
        return String::new();
    }
    // SAFETY: `bytes` is not NULL, so `size_bytes` bytes can be read there (# Safety).
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), size_bytes) };
    String::from_utf8_lossy(bytes).into_owned()
}

/// A list of the library's; empty for NULL.
///
/// # Safety
/// `items` is NULL, or `n` items can be read there for `'a`.
pub(crate) unsafe fn list<'a, T>(items: *const T, n: usize) -> &'a [T] {
    if items.is_null() || n == 0 {
        return &[];
    }
    // SAFETY: `items` is not NULL, so `n` items can be read there for `'a` (# Safety).
    unsafe { std::slice::from_raw_parts(items, n) }
}

/// Copies a list of named values.
///
/// # Safety
/// `values` is NULL, or `n` values of the library's can be read there.
unsafe fn read_attributes(values: *const api::NamedValue, n: usize) -> Vec<Attribute> {
    // SAFETY: `values` is NULL, or `n` values can be read there (# Safety).
    let values = unsafe { list(values, n) };
    let read = |value: &api::NamedValue| {
        // SAFETY: the name's bytes and their number are the library's.
        let name = unsafe { text(value.name, value.name_size) };
        let value = match value.kind {
            named_value_kind::TEXT => {
                // SAFETY: the kind says which field was written; its size is beside it.
                Value::Text(unsafe { text(value.value.text, value.value_size) })
            }
            // SAFETY: the kind says which field was written.
            named_value_kind::INTEGER => Value::Integer(unsafe { value.value.integer }),
            named_value_kind::INTEGERS => {
                // SAFETY: the kind says which field was written; its size is beside it.
                Value::Integers(unsafe { list(value.value.integers, value.value_size) }.to_vec())
            }
            // SAFETY: the kind says which field was written.
            named_value_kind::FLOAT => Value::Float(unsafe { value.value.float }),
            // SAFETY: the kind says which field was written.
            named_value_kind::FLAG => Value::Flag(unsafe { value.value.flag } != 0),
            unknown => Value::Unknown(unknown),
        };
        Attribute { name, value }
    };
    values.iter().map(read).collect()
}
