//! Gives the library its own name, which package tools and whoever links it ask for.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-link-arg=-Wl,-soname,libdevbay_plugin_template_plugin.so");
    }
}
