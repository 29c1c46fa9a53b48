//! Layouts as data explain why a plugin and a host do not fit, and refuse nothing (B30).

use crate::support::{Folder, Host, RELU, faulty, relu};
use devbay_host::core::about::RefusalKind;
use devbay_plugin_api::abi::{LAYOUT_FIELDS, LAYOUTS};

const DIFFERENCE: &str =
    "devbay_device_info.flags: the plugin has it at offset 40 with 8 bytes, this host at 48 with 8";

#[test]
fn b30_differences_are_named_field_by_field_and_refuse_nothing() {
    let folder = Folder::new();
    let host = Host::explicit(&folder.defect(&["DEFECT_LAYOUT"]));
    // A field that only the plugin has, and one that agrees, are no differences.
    assert_eq!(host.runtime.report().plugins[0].notes, [DIFFERENCE]);
    assert_eq!(relu(host.device()).unwrap(), RELU);
}

#[test]
fn b30_a_refusal_is_explained() {
    for defect in ["WITHOUT=copy", "DEFECT_KERNELS_STRIDE"] {
        let folder = Folder::new();
        let host = Host::explicit(&folder.defect(&["DEFECT_LAYOUT", defect]));
        let kinds = [RefusalKind::MissingFunction, RefusalKind::BrokenLayout];
        assert!(kinds.contains(&host.refusal().kind));
        assert_eq!(host.refusal().details, [DIFFERENCE], "{defect}");
    }
}

/// A plugin made with the SDK shows all of the header as it was compiled.
#[test]
fn b30_plugins_made_with_the_sdk_show_their_layout() {
    let host = Host::explicit(&faulty());
    let shown = &host.plugin().about().layout;
    assert_eq!(shown.len(), LAYOUT_FIELDS.len());
    for layout in LAYOUTS {
        assert!(shown.iter().any(|field| field.struct_name == layout.c_name && field.field_name.is_empty()));
        for field in layout.fields {
            let seen = shown.iter().find(|s| s.struct_name == layout.c_name && s.field_name == field.name);
            let seen = seen.unwrap_or_else(|| panic!("{}.{} is not shown", layout.c_name, field.name));
            assert_eq!((seen.offset as usize, seen.size as usize), (field.offset, field.size));
        }
    }
    assert_eq!(host.runtime.report().plugins[0].notes, Vec::<String>::new());
}

/// With the feature, abi_stable is asked too, of plugins that export its description.
#[test]
#[cfg(feature = "abi-stable")]
fn b30_the_second_opinion_refuses_nothing() {
    use devbay_plugin_api::abi::version::MinorRange;
    let (library, agreement) = crate::support::negotiated(&faulty(), MinorRange::CURRENT);
    assert!(library.has_symbol(devbay_plugin_api::sdk::layout::SYMBOL));
    assert_eq!(agreement.differences, Vec::<String>::new());
    assert_eq!(relu(Host::explicit(&faulty()).device()).unwrap(), RELU);
}
