//! Has the command rebuilt when a file is added to what `new-plugin` writes: `include_dir!` notices changes alone.

fn main() {
    println!("cargo::rerun-if-changed=templates");
    println!("cargo::rerun-if-changed=../plugin-api/src");
    println!("cargo::rerun-if-changed=../plugin-api/include");
}
