//! The optional second opinion on a failed negotiation: abi_stable's type layouts (B30).
//!
//! A plugin built with the feature `abi-stable` exports one more function. Its name contains abi_stable's
//! version, because a layout is that crate's data. The host looks for it only to explain a failure.

/// Name of the exported function, with a terminating zero.
pub const SYMBOL: &core::ffi::CStr = c"devbay_plugin_abi_stable_0_11";

/// Exports the layout of `PluginInfo` and of every type that it reaches.
#[cfg(feature = "abi-stable")]
#[macro_export]
macro_rules! __export_abi_stable_layout {
    () => {
        /// abi_stable's layout of the ABI as this plugin was compiled.
        // SAFETY: the name is the SDK's, and a library has one plugin.
        #[unsafe(no_mangle)]
        pub extern "C" fn devbay_plugin_abi_stable_0_11() -> *const core::ffi::c_void {
            $crate::sdk::layout::plugin_info()
        }
    };
}

/// Exports nothing, without the feature `abi-stable`.
#[cfg(not(feature = "abi-stable"))]
#[macro_export]
macro_rules! __export_abi_stable_layout {
    () => {};
}

/// Returns the layout of `PluginInfo` as this crate was compiled: a `&'static TypeLayout`.
#[cfg(feature = "abi-stable")]
pub fn plugin_info() -> *const core::ffi::c_void {
    let layout: &'static abi_stable::type_layout::TypeLayout =
        <crate::abi::PluginInfo as abi_stable::StableAbi>::LAYOUT;
    (layout as *const abi_stable::type_layout::TypeLayout).cast()
}
