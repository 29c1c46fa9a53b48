//! Has the command rebuilt when a template of `new-plugin` is added: `include_dir!` notices changes alone.

fn main() {
    println!("cargo::rerun-if-changed=templates");
}
