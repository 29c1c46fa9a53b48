//! Every bad file and every bad plugin becomes a refusal of the right kind that says what is wrong.

use crate::support::{Folder, Host, RELU, relu};
use devbay_host::RefusalKind::{self, *};
use devbay_host::{ErrorKind, Policy, Requirements, Runtime};
use devbay_plugin_api::abi::REQUIRED_FUNCTIONS;
use devbay_plugin_api::abi::version::Needed;
use std::path::Path;

/// Expects a refusal of a kind whose reason has these words, and a host that goes on: a good plugin in the same
/// process still works.
fn check(library: &Path, kind: RefusalKind, words: &[&str]) {
    let host = Host::explicit(library);
    let refusal = host.refusal();
    assert_eq!(refusal.kind, kind, "{}: {refusal}", library.display());
    for word in words {
        assert!(refusal.reason.contains(word), "`{word}` is not in: {refusal}");
    }
    assert!(host.runtime.devices().is_empty());
}

fn check_defect(definitions: &[&str], kind: RefusalKind, words: &[&str]) {
    let folder = Folder::new();
    check(&folder.defect(definitions), kind, words);
}

#[test]
fn files_that_are_no_libraries() {
    let folder = Folder::new();
    let minimal = folder.c_plugin("minimal", "minimal.c", &[]);
    check(&folder.write("notes.so", "not a library"), NotALibrary, &["not a loadable library"]);
    check(&folder.write("empty.so", ""), NotALibrary, &["not a loadable library"]);
    let whole = std::fs::read(&minimal).unwrap();
    for part in [40, 64, whole.len() / 2] {
        let name = format!("first-{part}.so");
        check(&folder.write(&name, &whole[..part]), NotALibrary, &["not a loadable library"]);
    }
    // Of another machine: e_machine of the ELF header is at offset 18.
    let mut foreign = whole.clone();
    foreign[18..20].copy_from_slice(&[0xf3, 0x7f]);
    check(&folder.write("foreign.so", &foreign), NotALibrary, &["not a loadable library"]);
    std::fs::create_dir(folder.path().join("folder.so")).unwrap();
    check(&folder.path().join("folder.so"), Unreadable, &["folder.so", "expected a file, found a folder"]);
    check(&folder.path().join("absent.so"), Unreadable, &["cannot read", "absent.so"]);
    assert_eq!(relu(&Host::explicit(&minimal).device()).unwrap(), RELU);
}

#[test]
fn b01_a_library_without_the_entry_is_no_plugin() {
    check_defect(&["DEFECT_NO_ENTRY"], NoEntry, &["devbay_plugin_query_v0"]);
}

#[test]
fn b01_an_entry_of_another_major_is_named() {
    check_defect(&["DEFECT_ENTRY_OF_MAJOR_1"], NoCommonVersion, &["ABI major 1", "this host speaks 0"]);
}

#[test]
fn b02_a_plugin_that_wants_symbols_of_the_host_is_refused_when_it_is_loaded() {
    check_defect(&["DEFECT_UNDEFINED_SYMBOL"], NotALibrary, &["devbay_host_log"]);
}

#[test]
fn b03_a_mismatch_names_both_ranges() {
    check_defect(
        &["MINOR_MIN=10", "MINOR_MAX=11"],
        NoCommonVersion,
        &["the plugin speaks 0.10 to 0.11", "this host 0.9", "update devbay"],
    );
    check_defect(
        &["MINOR_MIN=1", "MINOR_MAX=2"],
        NoCommonVersion,
        &["the plugin speaks 0.1 to 0.2", "this host 0.9", "newer plugin"],
    );
    check_defect(&["MINOR_MIN=2", "MINOR_MAX=1"], NoCommonVersion, &["range is empty: 2 to 1"]);
}

#[test]
fn b04_sizes_that_lie_are_refused() {
    check_defect(&["DEFECT_QUERY_NULL"], BrokenLayout, &["entry returned NULL"]);
    check_defect(&["INFO_SIZE=8"], BrokenLayout, &["size of 8 bytes"]);
    check_defect(&["INFO_SIZE=64"], BrokenLayout, &["PluginInfo says a size of 64 bytes"]);
    check_defect(&["INFO_SIZE=0x40000000"], BrokenLayout, &["PluginInfo says a size"]);
    check_defect(&["DEFECT_TABLE_NULL"], BrokenLayout, &["PluginTable is NULL"]);
    check_defect(&["TABLE_SIZE=4"], BrokenLayout, &["PluginTable says a size of 4 bytes"]);
    check_defect(&["TABLE_SIZE=0x7fffffff"], BrokenLayout, &["PluginTable says a size"]);
    check_defect(&["DEFECT_KERNEL_SIZE"], BrokenLayout, &["a list of KernelInfo says a stride"]);
    check_defect(&["DEFECT_DEVICES_SIZE"], BrokenLayout, &["DeviceInfo says a size of 12 bytes"]);
}

#[test]
fn b05_lists_and_texts_that_lie_are_refused() {
    check_defect(&["DEFECT_KERNELS_STRIDE"], BrokenLayout, &["KernelInfo says a stride of 16 bytes"]);
    check_defect(&["DEFECT_KERNELS_COUNT"], BrokenLayout, &["KernelInfo says a length of 1099511627776"]);
    check_defect(&["DEFECT_KERNELS_NULL"], BrokenLayout, &["KernelInfo is NULL"]);
    check_defect(&["DEFECT_KERNEL_TYPES"], BrokenLayout, &["kernel 0", "TypeVar says a stride of 2 bytes"]);
    check_defect(&["DEFECT_NAME_UTF8"], BrokenLayout, &["not UTF-8"]);
    check_defect(&["DEFECT_NAME_NULL"], BrokenLayout, &["a text is NULL"]);
    check_defect(&["DEFECT_NAME_LONG"], BrokenLayout, &["a length of 1099511627776"]);
    check_defect(&["NAME=\"Mini mal\""], BadName, &["`Mini mal`", "[a-z][a-z0-9_-]*"]);
    check_defect(&["NAME=\"\""], BadName, &["``"]);
    check_defect(&["DEFECT_DEVICES_STRIDE"], BrokenLayout, &["DeviceInfo says a stride of 8 bytes"]);
    check_defect(&["DEFECT_DEVICES_COUNT"], BrokenLayout, &["DeviceInfo says a length of 1099511627776"]);
    check_defect(&["DEFECT_DEVICES_NULL"], BrokenLayout, &["DeviceInfo is NULL"]);
    check_defect(&["DEFECT_DEVICE_NAME"], BrokenLayout, &["not UTF-8"]);
}

#[test]
fn b07_each_required_function_is_asked_for_by_name() {
    for (function, needed) in REQUIRED_FUNCTIONS {
        if needed != Needed::WithTimelines {
            let without = format!("WITHOUT={function}");
            check_defect(&[&without], MissingFunction, &["required functions are missing", function]);
        }
    }
    let timeline = ["stream_signal", "stream_reached"];
    check_defect(&["DEFECT_DEVICE_WITHOUT_TIMELINE"], MissingFunction, &timeline);
    // A table that ends before them.
    check_defect(&["TABLE_SIZE=64"], MissingFunction, &["size of 64 bytes", "copy", "unprepare"]);
}

#[test]
fn b11_a_device_lives_somewhere() {
    check_defect(&["DEFECT_DEVICE_WITHOUT_MEMORY"], DevicesFailed, &["no memory space"]);
    check_defect(&["DEFECT_SPACE_ALIGN"], DevicesFailed, &["alloc_align 48", "power of two"]);
}

#[test]
fn b18_what_create_and_devices_say_is_the_reason() {
    check_defect(
        &["DEFECT_CREATE_UNAVAILABLE"],
        CreateFailed,
        &["libnpu.so.2 is not installed", "UNAVAILABLE"],
    );
    check_defect(&["DEFECT_CREATE_LONG_TEXT"], CreateFailed, &["cut", "INTERNAL"]);
    check_defect(&["DEFECT_CREATE_NULL"], CreateFailed, &["without an instance"]);
    check_defect(&["DEFECT_DEVICES_FAIL"], DevicesFailed, &["the driver does not answer"]);
    check_defect(&["DEFECT_DEVICE_WITHOUT_HANDLE"], BrokenLayout, &["device 0 has no handle"]);
}

#[test]
fn b09_success_without_a_result_is_the_plugins_fault() {
    let cases = [
        ("DEFECT_ALLOC_NULL", "buffer_alloc succeeded without a buffer (B9)"),
        ("DEFECT_ALLOC_SHORT", "buffer_alloc gave fewer bytes"),
        ("DEFECT_STREAM_NULL", "stream_create succeeded without a stream (B9)"),
        ("DEFECT_PREPARE_NULL", "prepare succeeded without a launch function (B21)"),
        ("DEFECT_PREPARE_ALIGN", "alignment is no power of two"),
    ];
    for (defect, words) in cases {
        let folder = Folder::new();
        let host = Host::explicit(&folder.defect(&[defect]));
        // Inline devices lend the host's memory, so that Relu alone would allocate nothing.
        let error = match host.device().alloc(64, 0) {
            Ok(_) => relu(&host.device()).expect_err(defect),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::PluginBroken, "{error}");
        assert!(error.text().contains(words), "{error}");
        assert_eq!((&*error.place().plugin, &*error.place().device), ("minimal", "minimal:0"), "{error}");
    }
}

#[test]
fn b20_kernels_are_known_without_a_device() {
    let folder = Folder::new();
    let host = Host::explicit(&folder.defect(&["DEFECT_NO_DEVICE"]));
    assert!(host.runtime.devices().is_empty());
    let kernels: Vec<_> = host.plugin().about().kernels.iter().map(|kernel| kernel.op.clone()).collect();
    assert_eq!(kernels, ["Relu"]);
}

/// One bad plugin stops neither the others nor the host, and every one is a line in the report.
#[test]
fn b25_bad_plugins_are_lines_in_a_report() {
    let (good, first, second) = (Folder::new(), Folder::new(), Folder::new());
    let host = Host::new(
        Runtime::builder()
            .threads(1)
            .plugin(first.defect(&["DEFECT_QUERY_NULL"]))
            .plugin(second.defect(&["WITHOUT=copy"]))
            .plugin(good.c_plugin("minimal", "minimal.c", &[])),
    );
    let kinds: Vec<_> = host.runtime.report().refused().map(|(_, refusal)| refusal.kind).collect();
    assert_eq!(kinds, [BrokenLayout, MissingFunction]);
    assert_eq!(relu(&host.device()).unwrap(), RELU);
}

#[test]
fn no_plugin_at_all() {
    let host = Host::new(Runtime::builder().threads(1));
    assert!(host.runtime.report().plugins.is_empty());
    let Err(error) = host.runtime.choose(&Policy::Auto, &Requirements::default()) else {
        panic!("a device out of nothing");
    };
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.text().contains("no plugin was loaded"), "{error}");
}

#[test]
fn options_that_nobody_takes() {
    let folder = Folder::new();
    let minimal = folder.c_plugin("minimal", "minimal.c", &[]);
    let with = |plugin: &str, library: &Path| {
        Runtime::builder().threads(1).plugin(library).option(plugin, "speed", "11")
    };
    // It lists no options, and refuses itself.
    let host = Host::new(with("minimal", &minimal));
    assert_eq!(host.refusal().kind, CreateFailed);
    assert!(host.refusal().reason.contains("unknown option speed"), "{}", host.refusal());
    // It lists its options, and is not asked.
    let host = Host::new(with("faulty", &crate::support::faulty()));
    assert_eq!(host.refusal().kind, UnknownOption);
    assert!(host.refusal().reason.contains("no option speed, known are: fault, "), "{}", host.refusal());
    // There is no such plugin.
    let Err(error) = with("nobody", &minimal).build() else {
        panic!("an option of nobody's was taken");
    };
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}
