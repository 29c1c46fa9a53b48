//! A plugin that is built so that a panic ends the process does not compile (B19).
//!
//! Runs cargo on a small plugin of its own, which has no dependency but this crate, without features: as
//! `devbay new-plugin` copies it.

use std::path::Path;
use std::process::Command;

const PLUGIN: &str = r#"
use devbay_plugin_api::sdk::*;

pub struct Demo;
pub struct DemoDevice;
pub struct DemoStream;

impl Plugin for Demo {
    type Device = DemoDevice;
    const ABOUT: About = About { name: "demo", ..About::DEFAULT };
    const KERNELS: &'static [Kernel<DemoDevice>] = &[];
    fn create(_host: Host, _options: &Options<'_>) -> Result<Self> { Ok(Demo) }
    fn devices(&self) -> Result<Vec<&DemoDevice>> { Ok(Vec::new()) }
}

impl Device for DemoDevice {
    type Buffer = HostBuffer;
    type Stream = DemoStream;
    fn describe(&self) -> &DeviceDesc { unreachable!() }
    fn alloc(&self, request: &AllocRequest<'_>) -> Result<Allocated<HostBuffer>> { HostBuffer::alloc(request) }
    fn create_stream(&self, _request: &StreamRequest<'_>) -> Result<DemoStream> { Ok(DemoStream) }
}

impl Stream for DemoStream {
    type Buffer = HostBuffer;
    fn copy(&self, copy: &CopyRequest<'_, HostBuffer>) -> Result<()> { copy.run_on_host(); Ok(()) }
}

devbay_plugin_api::export_plugin!(Demo);
"#;

/// Checks the plugin with this way to panic, and gives what the compiler says if it refuses.
fn check(panic: &str) -> Result<(), String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("panic-{panic}"));
    std::fs::create_dir_all(folder.join("src")).unwrap();
    let manifest = format!(
        "[package]\nname = \"demo\"\nversion = \"1.0.0\"\nedition = \"2024\"\n\n[lib]\ncrate-type = [\"cdylib\"]\n\n\
         [dependencies]\ndevbay-plugin-api = {{ path = {:?}, default-features = false }}\n\n[profile.dev]\npanic = \"{panic}\"\n\n[workspace]\n",
        env!("CARGO_MANIFEST_DIR")
    );
    std::fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    std::fs::write(folder.join("src/lib.rs"), PLUGIN).unwrap();
    // The workspace's versions, so that nothing is looked up; what is not needed is dropped from it.
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.lock");
    std::fs::copy(lock, folder.join("Cargo.lock")).unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["check", "--offline", "--quiet"])
        .current_dir(&folder)
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .output()
        .unwrap_or_else(|e| panic!("cannot run cargo: {e}"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(said) }
}

#[test]
fn b19_plugins_are_not_built_with_panic_abort() {
    check("unwind").unwrap_or_else(|said| panic!("a plugin as it should be does not compile:\n{said}"));
    let said = check("abort").expect_err("a plugin whose panics end the process compiles");
    assert!(said.contains("a devbay plugin is built with panic=unwind"), "{said}");
}
