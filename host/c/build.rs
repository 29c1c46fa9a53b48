//! Names the library as programs look for it: by the part of its version that stands for what it promises.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo::rustc-link-arg=-Wl,-soname,libdevbay.so.0");
    }
}
