//! The plugin through the ABI's table, with and without a driver: it loads, and lists devices or says why there are none.

use devbay_plugin_api::abi::*;
use devbay_plugin_cuda::devbay_entry::PLUGIN;
use std::ptr::null_mut;

#[test]
fn devices_are_listed_or_the_reason_is_told() {
    // SAFETY: what the entry returned.
    let info = unsafe { read_struct(PLUGIN.query()) }.unwrap();
    // SAFETY: as above.
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
        assert_eq!(status, DEVBAY_STATUS_UNAVAILABLE, "{text}");
        assert!(text.contains("driver") || text.contains("cuInit") || text.contains("device"), "{text}");
    }
    // SAFETY: the instance, once.
    unsafe { table.destroy.unwrap()(instance) };
}
