//! The plugin through the ABI's table, with and without a driver: it loads, and lists devices or says why there are none.
//!
//! Drivers with faults are variants of the emulator. A child process loads one in place of CUDA's driver, and runs the first
//! test below.

use devbay_plugin_api::abi::*;
use devbay_plugin_cuda::devbay_entry::PLUGIN;
use std::ptr::null_mut;

#[test]
fn devices_are_listed_or_the_reason_is_told() {
    // SAFETY: the entry returns a static struct, which begins with its size.
    let info = unsafe { read_struct(PLUGIN.query()) }.unwrap();
    // SAFETY: the table of the static struct is static too, and begins with its size.
    let table = unsafe { read_struct(info.table) }.unwrap();
    let host = HostApi::empty();
    let desc = CreateDesc { abi_minor: info.abi_minor_max, host: &host, ..CreateDesc::empty() };
    let mut instance = null_mut();
    // SAFETY: all arguments live for the call; the services have no function that could be kept.
    assert_eq!(unsafe { table.create.unwrap()(&desc, &mut instance, null_mut()) }, DEVBAY_STATUS_OK);
    let mut text = [0u8; 400];
    let mut detail = ErrorDetail {
        text: text.as_mut_ptr().cast(),
        text_capacity: text.len() as u64,
        ..ErrorDetail::empty()
    };
    for _ in 0..2 {
        let mut list = List::EMPTY;
        // SAFETY: the instance just made; places for a list and an error.
        let status = unsafe { table.devices.unwrap()(instance, &mut list, &mut detail) };
        if status == DEVBAY_STATUS_OK {
            // SAFETY: the plugin's list.
            let devices = unsafe { read_growable_list::<DeviceInfo>(&list) }.unwrap();
            assert!(!devices.is_empty(), "a list of no devices has a reason");
            continue;
        }
        let text = String::from_utf8_lossy(&text[..detail.text_len.min(400) as usize]).into_owned();
        eprintln!("{text}");
        assert_eq!(status, DEVBAY_STATUS_UNAVAILABLE, "{text}");
        assert!(text.contains("driver") || text.contains("cuInit") || text.contains("device"), "{text}");
    }
    // SAFETY: the instance, once.
    unsafe { table.destroy.unwrap()(instance) };
}

/// Returns the plugin's reason for refusing a driver: the emulator, compiled with these arguments, in a child with this variable.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn reason(name: &str, arguments: &[&str], variable: (&str, &str)) -> String {
    use std::path::Path;
    use std::process::Command;

    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("devbay-cuda-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the emulator");
    let built = Command::new("c++")
        .args(["-std=c++17", "-shared", "-fPIC", "-pthread", "-o"])
        .arg(folder.join("libcuda.so.1"))
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("emulator/cuda.cpp"))
        .args(arguments)
        .arg("-ldl")
        .status();
    assert!(
        built.expect("a C++ compiler, as the README asks for").success(),
        "the emulator does not compile"
    );
    let child = Command::new(std::env::current_exe().expect("a test knows its own path"))
        .args(["--exact", "devices_are_listed_or_the_reason_is_told", "--nocapture"])
        .env("LD_LIBRARY_PATH", &folder)
        .env(variable.0, variable.1)
        .output()
        .expect("a child");
    std::fs::remove_dir_all(&folder).expect("the folder just made");
    let text = String::from_utf8_lossy(&child.stderr).into_owned();
    assert!(child.status.success(), "{text}");
    text
}

#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn a_driver_without_a_function_is_too_old() {
    let text = reason("old", &["-DcuMemPoolTrimTo=left_out"], ("EMULATOR_INIT", "0"));
    assert!(text.contains("the driver is too old: it has no cuMemPoolTrimTo, CUDA 12.0 has"), "{text}");
}

#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn codes_that_no_header_knows_are_kept() {
    let text = reason("unknown", &[], ("EMULATOR_INIT", "98765"));
    assert!(text.contains("cuInit failed with code 98765, for which the driver has no name"), "{text}");
}

/// The emulated driver names a code that CUDA 12.0, whose declarations the plugin has, did not.
#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn codes_of_a_newer_driver_have_its_name() {
    let text = reason("newer", &[], ("EMULATOR_INIT", "721"));
    assert!(text.contains("cuInit failed: CUDA_ERROR_TENSOR_MEMORY_LEAK (721)"), "{text}");
}
