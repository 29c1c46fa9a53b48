//! Tables that are not as expected: older, shorter, with holes, of libraries that refuse. They are made here, byte for
//! byte as the header has them.

use devbay_plugin_pjrt::client::Client;
use devbay_plugin_pjrt::error::{Code, Error};
use devbay_plugin_pjrt::library::Library;
use std::ffi::c_void;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Mutex;

/// `PJRT_Error` of these tables.
struct Failure {
    code: i32,
    words: &'static str,
}

/// The header's argument structs as far as they are written here: 8 bytes for each field, the size first.
type Fields = *mut u64;
type Function = unsafe extern "C" fn(Fields) -> *mut Failure;

/// The field at a position.
///
/// # Safety
/// The struct has it.
unsafe fn get(fields: Fields, at: usize) -> u64 {
    // SAFETY: the struct has the field (# Safety).
    unsafe { fields.add(at).read() }
}

/// Sets the field at a position.
///
/// # Safety
/// The struct has it.
unsafe fn set(fields: Fields, at: usize, value: u64) {
    // SAFETY: the struct has the field (# Safety).
    unsafe { fields.add(at).write(value) }
}

fn fail(code: i32, words: &'static str) -> *mut Failure {
    Box::into_raw(Box::new(Failure { code, words }))
}

unsafe extern "C" fn error_destroy(fields: Fields) -> *mut Failure {
    // SAFETY: an error of `fail`, destroyed once.
    drop(unsafe { Box::from_raw(get(fields, 2) as *mut Failure) });
    null_mut()
}

unsafe extern "C" fn error_message(fields: Fields) -> *mut Failure {
    // SAFETY: an error of `fail`, alive.
    let words = unsafe { (*(get(fields, 2) as *const Failure)).words };
    // SAFETY: the struct's last two fields.
    unsafe { set(fields, 3, words.as_ptr() as u64) };
    // SAFETY: the last of those two fields.
    unsafe { set(fields, 4, words.len() as u64) };
    null_mut()
}

unsafe extern "C" fn error_code(fields: Fields) -> *mut Failure {
    // SAFETY: an error of `fail`, alive.
    let code = unsafe { (*(get(fields, 2) as *const Failure)).code };
    // SAFETY: the struct's last field, of 4 bytes.
    unsafe { fields.add(3).cast::<i32>().write(code) };
    null_mut()
}

unsafe extern "C" fn nothing(_: Fields) -> *mut Failure {
    null_mut()
}

unsafe extern "C" fn unimplemented(_: Fields) -> *mut Failure {
    fail(12, "not this one")
}

unsafe extern "C" fn no_devices(_: Fields) -> *mut Failure {
    fail(9, "No visible devices.")
}

unsafe extern "C" fn must_not_be_called(_: Fields) -> *mut Failure {
    // An unwinding panic cannot leave a C function; this ends the test as loudly.
    std::process::abort()
}

/// Places of the functions in the table.
const INITIALIZE: usize = 3;
const ATTRIBUTES: usize = 4;
const CLIENT_CREATE: usize = 10;

/// A table that says it is `size_bytes` large, with these functions besides those that every table has.
fn table(version: [i32; 2], n_functions: usize, functions: &[(usize, Option<Function>)]) -> *const c_void {
    let mut words = vec![0u64; 5 + 128];
    words[0] = 40 + 8 * n_functions as u64;
    words[2] = 24;
    words[4] = u64::from(version[0] as u32) | u64::from(version[1] as u32) << 32;
    let every: [(usize, Option<Function>); 7] = [
        (0, Some(error_destroy)),
        (1, Some(error_message)),
        (2, Some(error_code)),
        (INITIALIZE, Some(nothing)),
        (ATTRIBUTES, Some(unimplemented)),
        (5, Some(nothing)),
        (8, Some(nothing)),
    ];
    for (at, function) in every.iter().chain(functions) {
        words[5 + at] = function.map_or(0, |function| function as usize as u64);
    }
    words.leak().as_ptr().cast()
}

fn open(table: *const c_void) -> Result<&'static Library, Error> {
    // SAFETY: NULL or a table as above, never changed or freed.
    unsafe { Library::from_table(table, Path::new("a table")) }
}

#[test]
fn a_table_of_another_api_is_refused_with_both_versions() {
    assert!(matches!(open(std::ptr::null()), Err(Error::Broken { function: "GetPjrtApi", .. })));
    for version in [[1, 0], [0, 56]] {
        let error = open(table(version, 128, &[])).unwrap_err();
        assert_eq!(error, Error::Version { major: version[0], minor: version[1] });
        assert_eq!(error.status(), 14);
    }
    let text = open(table([0, 56], 128, &[])).unwrap_err().to_string();
    assert_eq!(text, "expected PJRT API 0.57 or a newer minor, found 0.56");
    // A newer minor is no reason to refuse.
    assert_eq!(open(table([0, 4000], 128, &[])).unwrap().version(), (0, 4000));
}

#[test]
fn a_function_behind_the_tables_end_is_not_there() {
    let short = open(table([0, 57], CLIENT_CREATE, &[(CLIENT_CREATE, Some(must_not_be_called))])).unwrap();
    let error = Client::create(short, &[]).unwrap_err();
    assert_eq!(error, Error::Missing { function: "PJRT_Client_Create" });
    assert!(error.is_unimplemented());
    assert_eq!(error.status(), 12);
    // Part of a pointer is none.
    let mut words = vec![0u64; 200];
    words[0] = 44;
    words[4] = 100 << 32;
    words[5] = must_not_be_called as *const () as u64;
    let error = open(words.leak().as_ptr().cast()).unwrap_err();
    assert_eq!(error, Error::Missing { function: "PJRT_Error_Destroy" });
}

#[test]
fn a_function_that_is_null_and_one_that_says_unimplemented_are_told() {
    let hole = open(table([0, 115], 128, &[(CLIENT_CREATE, None)])).unwrap();
    assert_eq!(Client::create(hole, &[]).unwrap_err(), Error::Missing { function: "PJRT_Client_Create" });
    assert!(hole.attributes().is_empty());

    let refusing = open(table([0, 115], 128, &[(CLIENT_CREATE, Some(unimplemented))])).unwrap();
    let error = Client::create(refusing, &[]).unwrap_err();
    let (function, message) = ("PJRT_Client_Create", "not this one".to_owned());
    assert_eq!(error, Error::Library { function, code: Code::UNIMPLEMENTED, message });
    assert!(error.is_unimplemented());

    // No error, and no client either.
    let empty = open(table([0, 115], 128, &[(CLIENT_CREATE, Some(nothing))])).unwrap();
    assert!(matches!(Client::create(empty, &[]).unwrap_err(), Error::Broken { .. }));
}

#[test]
fn an_error_has_the_librarys_words_and_the_abis_number() {
    let library = open(table([0, 115], 128, &[(CLIENT_CREATE, Some(no_devices))])).unwrap();
    let error = Client::create(library, &[]).unwrap_err();
    assert_eq!(error.to_string(), "PJRT_Client_Create: No visible devices. (FAILED_PRECONDITION)");
    assert_eq!((error.status(), error.native_code()), (9, 9));
    let statuses: Vec<i32> = (0..18).map(|code| Code(code).status()).collect();
    assert_eq!(statuses, [2, 1, 2, 3, 4, 5, 9, 14, 8, 9, 10, 3, 12, 13, 14, 15, 14, 2]);
}

static SIZES: Mutex<Vec<u64>> = Mutex::new(Vec::new());

unsafe extern "C" fn note_size(fields: Fields) -> *mut Failure {
    // SAFETY: the first field of every struct.
    SIZES.lock().unwrap().push(unsafe { get(fields, 0) });
    fail(13, "only the size was of interest")
}

#[test]
fn a_struct_is_as_large_as_the_librarys_version_knows_it() {
    for (minor, size) in [(57, 72), (60, 72), (61, 88), (115, 88)] {
        let library = open(table([0, minor], 128, &[(CLIENT_CREATE, Some(note_size))])).unwrap();
        Client::create(library, &[]).unwrap_err();
        assert_eq!(SIZES.lock().unwrap().pop(), Some(size), "API 0.{minor}");
    }
}

static SETUPS: Mutex<u32> = Mutex::new(0);

unsafe extern "C" fn failing_setup(_: Fields) -> *mut Failure {
    *SETUPS.lock().unwrap() += 1;
    fail(5, "no chip")
}

#[test]
fn a_setup_that_failed_is_not_repeated() {
    let failing = table([0, 115], 128, &[(INITIALIZE, Some(failing_setup))]);
    for _ in 0..2 {
        let error = open(failing).unwrap_err();
        assert_eq!(error.to_string(), "PJRT_Plugin_Initialize: no chip (NOT_FOUND)");
    }
    assert_eq!(*SETUPS.lock().unwrap(), 1);
}
