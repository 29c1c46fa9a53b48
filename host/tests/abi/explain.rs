//! Layouts as data explain why a plugin and a host do not fit (B30).

use crate::support::{Folder, Host, faulty};
use devbay_host::RefusalKind;
use devbay_host::internals::abi_report::{AbiReport, Slot};
use devbay_host::internals::load::Library;
use devbay_plugin_api::abi::version::MinorRange;
use devbay_plugin_api::abi::{DEVBAY_ABI_MINOR, LAYOUT_FIELDS, LAYOUTS, PluginTable};

const DIFFERENCE: &str =
    "devbay_device_info.flags: the plugin has it at offset 40 with 8 bytes, this host at 48 with 8";

#[test]
fn b30_a_field_at_another_place_is_refused_and_named() {
    let folder = Folder::new();
    let host = Host::explicit(&folder.defect(&["DEFECT_LAYOUT"]));
    // A field that only the plugin has, and one that agrees, are no differences.
    assert_eq!(host.refusal().kind, RefusalKind::BrokenLayout);
    assert_eq!(host.refusal().details, [DIFFERENCE]);
    assert_eq!(host.refusal().reason, format!("it was compiled with another header: {DIFFERENCE}"));
}

/// Slot by slot and field by field, also of a plugin that is refused.
#[test]
fn b30_a_report_says_what_a_plugin_lacks_and_has_beyond() {
    let report = |definitions: &[&str]| {
        let folder = Folder::new();
        let library = Library::open(&folder.defect(definitions)).unwrap();
        AbiReport::of(&library).unwrap()
    };
    let own = report(&[]);
    assert_eq!(own.verdict, Ok(DEVBAY_ABI_MINOR));
    assert!(own.sizes.iter().all(|size| size.found == size.expected && size.lacks.is_empty()), "{own:?}");
    assert!(own.slots_that_are(Slot::Filled).starts_with(&["create", "destroy", "devices"]));
    assert!(own.slots_that_are(Slot::Empty).contains(&"stream_signal"));
    assert_eq!((own.n_shown, own.slots_that_are(Slot::Beyond)), (0, Vec::new()));

    let table = size_of::<PluginTable>();
    let shorter = report(&[&format!("TABLE_SIZE={}", table - 16)]);
    assert_eq!(shorter.slots_that_are(Slot::Beyond), ["kernel_shape", "device_kernels"]);
    assert_eq!(shorter.sizes[1].lacks, ["kernel_shape", "device_kernels"]);
    let longer = report(&[&format!("TABLE_SIZE={}", table + 8)]);
    assert_eq!((longer.sizes[1].found, longer.sizes[1].expected), (table + 8, table));

    let moved = report(&["DEFECT_LAYOUT"]);
    assert!(moved.verdict.is_err());
    assert_eq!(moved.differs, [DIFFERENCE]);
    assert_eq!(moved.only_there, ["devbay_device_info.a_field_of_tomorrow"]);
    assert!(moved.only_here.contains(&"devbay_copy_desc.kind".to_owned()));

    let older = report(&["MINOR_MIN=1", "MINOR_MAX=2"]);
    assert_eq!(older.minors, MinorRange { min: 1, max: 2 });
    assert_eq!(older.verdict.unwrap_err().kind, RefusalKind::NoCommonVersion);
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
    use crate::support::{RELU, relu};
    let (library, agreement) = crate::support::negotiated(&faulty(), MinorRange::CURRENT);
    assert!(library.has_symbol(devbay_plugin_api::sdk::layout::SYMBOL));
    assert_eq!(agreement.differences, Vec::<String>::new());
    assert_eq!(relu(&Host::explicit(&faulty()).device()).unwrap(), RELU);
}
