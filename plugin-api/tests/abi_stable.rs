//! The optional second opinion on layouts (B30): `cargo nextest run -p devbay-plugin-api --features abi-stable`.
#![cfg(feature = "abi-stable")]

use abi_stable::StableAbi;
use abi_stable::abi_stability::abi_checking::check_layout_compatibility;
use abi_stable::type_layout::TypeLayout;
use devbay_plugin_api::abi;

/// The differences, in one text.
fn differences(host: &'static TypeLayout, plugin: &'static TypeLayout) -> String {
    match check_layout_compatibility(host, plugin) {
        Ok(()) => String::new(),
        Err(errors) => format!("{:?}", errors.errors),
    }
}

#[test]
fn b30_the_description_reaches_every_struct() {
    let whole = format!("{:?}", <abi::PluginInfo as StableAbi>::LAYOUT);
    assert!(whole.contains("abi_minor_min"), "{whole}");
    let layouts: [(&str, &TypeLayout); 37] = [
        ("ErrorDetail", <abi::ErrorDetail as StableAbi>::LAYOUT),
        ("TraceEvent", <abi::TraceEvent as StableAbi>::LAYOUT),
        ("HostApi", <abi::HostApi as StableAbi>::LAYOUT),
        ("CreateDesc", <abi::CreateDesc as StableAbi>::LAYOUT),
        ("MemorySpace", <abi::MemorySpace as StableAbi>::LAYOUT),
        ("DeviceInfo", <abi::DeviceInfo as StableAbi>::LAYOUT),
        ("AllocDesc", <abi::AllocDesc as StableAbi>::LAYOUT),
        ("Allocation", <abi::Allocation as StableAbi>::LAYOUT),
        ("StreamDesc", <abi::StreamDesc as StableAbi>::LAYOUT),
        ("CopyDesc", <abi::CopyDesc as StableAbi>::LAYOUT),
        ("Tensor", <abi::Tensor as StableAbi>::LAYOUT),
        ("Attr", <abi::Attr as StableAbi>::LAYOUT),
        ("GraphView", <abi::GraphView as StableAbi>::LAYOUT),
        ("NodeView", <abi::NodeView as StableAbi>::LAYOUT),
        ("ValueView", <abi::ValueView as StableAbi>::LAYOUT),
        ("TypeVar", <abi::TypeVar as StableAbi>::LAYOUT),
        ("KernelInfo", <abi::KernelInfo as StableAbi>::LAYOUT),
        ("PrepareDesc", <abi::PrepareDesc as StableAbi>::LAYOUT),
        ("ConstantPack", <abi::ConstantPack as StableAbi>::LAYOUT),
        ("Prepared", <abi::Prepared as StableAbi>::LAYOUT),
        ("MemoryInfo", <abi::MemoryInfo as StableAbi>::LAYOUT),
        ("KernelCost", <abi::KernelCost as StableAbi>::LAYOUT),
        ("PluginTable", <abi::PluginTable as StableAbi>::LAYOUT),
        ("DeviceKernel", <abi::DeviceKernel as StableAbi>::LAYOUT),
        ("NativeHandle", <abi::NativeHandle as StableAbi>::LAYOUT),
        ("ExecuteDesc", <abi::ExecuteDesc as StableAbi>::LAYOUT),
        ("ImportDesc", <abi::ImportDesc as StableAbi>::LAYOUT),
        ("InteropTable", <abi::InteropTable as StableAbi>::LAYOUT),
        ("RecordDesc", <abi::RecordDesc as StableAbi>::LAYOUT),
        ("ReplayDesc", <abi::ReplayDesc as StableAbi>::LAYOUT),
        ("ReplayTable", <abi::ReplayTable as StableAbi>::LAYOUT),
        ("CompileDesc", <abi::CompileDesc as StableAbi>::LAYOUT),
        ("ExecutableInfo", <abi::ExecutableInfo as StableAbi>::LAYOUT),
        ("CompileTable", <abi::CompileTable as StableAbi>::LAYOUT),
        ("FaultTable", <abi::FaultTable as StableAbi>::LAYOUT),
        ("OptionInfo", <abi::OptionInfo as StableAbi>::LAYOUT),
        ("PluginInfo", <abi::PluginInfo as StableAbi>::LAYOUT),
    ];
    let growable = abi::LAYOUTS.iter().filter(|layout| layout.growable).count();
    assert_eq!(layouts.len(), growable, "a struct is missing above");
    for (name, layout) in layouts {
        let ours = abi::LAYOUTS.iter().find(|layout| layout.name == name).unwrap();
        assert_eq!((layout.size(), layout.alignment()), (ours.size, ours.align), "{name}");
        assert_eq!(differences(layout, layout), "", "{name} differs from itself");
    }
}

/// Two frozen structs as another build of the contract might have them.
mod another_build {
    use abi_stable::StableAbi;
    use devbay_plugin_api::abi;

    /// `length` is half as wide.
    #[repr(C)]
    #[derive(StableAbi)]
    pub struct BufferRef {
        pub buffer: *mut abi::Buffer,
        pub addr: u64,
        pub offset: u64,
        pub length: u32,
    }

    /// Two fields of one type change places, which no size shows.
    #[repr(C)]
    #[derive(StableAbi)]
    pub struct LayoutField {
        pub struct_name: abi::Str,
        pub field_name: abi::Str,
        pub size: u32,
        pub offset: u32,
    }
}

#[test]
fn b30_differences_name_the_field() {
    let found =
        differences(<abi::BufferRef as StableAbi>::LAYOUT, <another_build::BufferRef as StableAbi>::LAYOUT);
    assert!(found.contains("length") && found.contains("u32") && found.contains("u64"), "{found}");
    let found = differences(
        <abi::LayoutField as StableAbi>::LAYOUT,
        <another_build::LayoutField as StableAbi>::LAYOUT,
    );
    assert!(found.contains("offset") && found.contains("size"), "{found}");
}

#[test]
fn b30_a_plugin_exports_this_builds_layout() {
    let exported = devbay_plugin_api::sdk::layout::plugin_info();
    // SAFETY: the function gives a static `TypeLayout` of this very build.
    let exported: &'static TypeLayout = unsafe { &*exported.cast() };
    assert_eq!(exported.size(), size_of::<abi::PluginInfo>());
    assert_eq!(differences(<abi::PluginInfo as StableAbi>::LAYOUT, exported), "");
    assert_ne!(differences(<abi::PluginTable as StableAbi>::LAYOUT, exported), "");
    let version = abi_stable::ABI_STABLE_VERSION.parsed().unwrap();
    let (major, minor) = (version.major, version.minor);
    let name = devbay_plugin_api::sdk::layout::SYMBOL.to_str().unwrap();
    assert!(name.ends_with(&format!("_{major}_{minor}")), "{name} is not of abi_stable {major}.{minor}");
}
