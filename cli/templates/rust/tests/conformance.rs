//! The plugin's test: devbay's conformance suite judges the library that cargo has just built.

use std::process::Command;

#[test]
fn the_plugin_conforms() {
    // This test is target/PROFILE/deps/conformance-..., and the library lies beside it.
    let test = std::env::current_exe().expect("a test knows where it is");
    let library = test.with_file_name("libdevbay_plugin_template_plugin.so");
    let mut suite = Command::new("devbay");
    let status = suite.arg("conformance").arg(&library).status();
    assert!(status.expect("expected the command devbay in PATH").success());
}
