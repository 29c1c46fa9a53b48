//! Stored programs: read again as they were written, and refused where a byte is another.

use devbay_plugin_api::sdk::{BlobUse, F32, ValueType};
use devbay_plugin_pjrt::stored::Stored;

fn stored() -> Stored {
    Stored {
        identity: "cpu 1".to_owned(),
        inputs: vec![3, 0],
        outputs: vec![ValueType { dtype: F32, shape: vec![2, 3] }, ValueType { dtype: F32, shape: vec![] }],
        checks: vec!["an index".to_owned()],
        executable: vec![7; 100],
    }
}

#[test]
fn what_was_stored_is_read_again() {
    let bytes = stored().to_bytes();
    assert_eq!(Stored::from_bytes(&bytes).expect("a program"), stored());
    assert_eq!(Stored::use_of(&bytes, "cpu 1"), BlobUse::Usable);
    assert_eq!(Stored::use_of(&bytes, "cpu 2"), BlobUse::Recompile);
}

#[test]
fn what_is_damaged_anywhere_is_refused() {
    let bytes = stored().to_bytes();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert_eq!(Stored::use_of(&damaged, "cpu 1"), BlobUse::Unsupported, "byte {at}");
        assert_eq!(Stored::use_of(&bytes[..at], "cpu 1"), BlobUse::Unsupported, "{at} bytes");
    }
}
