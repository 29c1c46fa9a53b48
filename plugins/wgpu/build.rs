//! Sets the library's own name, which package tools and linkers look for.
//!
//! Not by `rustc-link-arg-cdylib`, which cargo also applies to libraries that link this crate.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-link-arg=-Wl,-soname,libdevbay_plugin_wgpu.so");
    }
}
