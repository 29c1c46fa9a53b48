//! A failure on a GPU is an error of its own kind with names in it, and affects nothing else: shaders that do not
//! compile, out of memory.

use super::{model, run};
use crate::library::library;
use devbay_host::internals::core::program::text;
use devbay_host::{Device, Error, ErrorKind, Model, Policy, Requirements, Runtime, Session, Tensor};
use devbay_plugin_api::sdk::export::LinkedPlugin;
use devbay_plugin_api::sdk::{self, F32, Kernel, Prepared, TypeVar};
use devbay_plugin_wgpu::Wgpu;
use devbay_plugin_wgpu::device::WgpuDevice;
use devbay_shaders::step::{Body, Build, ShaderStep, Slot};
use devbay_shaders::target::Target;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

/// The wgpu plugin with three kernels of its own: one whose shader is no WGSL, one that wants more of the device than it
/// has, and one that is right.
struct Faulty(Wgpu);

const SINGLE: &[TypeVar] = &[TypeVar::of(&[F32])];

const KERNELS: &[Kernel<Target>; 3] = &[
    Kernel::new("Neg", 13, |request| {
        let body = Body::Items { n: 4, functions: "", each: "out[i] = nobody_wrote_this(in0[i]);" };
        kernel(request, "misspelt", body)
    })
    .types(SINGLE)
    .operands(&[0], &[0]),
    Kernel::new("Floor", 13, |request| {
        let module = "@compute @workgroup_size(4096)\nfn main() { out[0] = in0[0]; }\n";
        kernel(request, "greedy", Body::Groups { groups: [1, 1, 1], module })
    })
    .types(SINGLE)
    .operands(&[0], &[0]),
    Kernel::new("Abs", 13, |request| {
        kernel(request, "right", Body::Items { n: 4, functions: "", each: "out[i] = abs(in0[i]);" })
    })
    .types(SINGLE)
    .operands(&[0], &[0]),
];

static SHARED: [Kernel<WgpuDevice>; 3] = Kernel::shared_all(KERNELS);

impl sdk::Plugin for Faulty {
    type Device = WgpuDevice;
    const ABOUT: sdk::About = sdk::About { name: "faulty-wgpu", ..Wgpu::ABOUT };
    const KERNELS: &'static [Kernel<WgpuDevice>] = &SHARED;

    fn create(host: sdk::Host, options: &sdk::Options<'_>) -> sdk::Result<Self> {
        Wgpu::create(host, options).map(Self)
    }

    fn devices(&self) -> sdk::Result<Vec<&WgpuDevice>> {
        self.0.devices()
    }
}

fn kernel(request: &sdk::PrepareRequest<'_, Target>, name: &str, body: Body<'_>) -> sdk::Result<Prepared> {
    let mut build = Build::new(request);
    let buffers = vec![("in0", "f32", Slot::Input(0)), ("out", "f32", Slot::Output(0))];
    build.add(ShaderStep { name, buffers, params: Vec::new(), turns: 0, body })?;
    build.finish()
}

mod entry {
    use super::Faulty;
    devbay_plugin_api::static_plugin!(Faulty);
}

/// A runtime with the plugin as a library, another one linked, and the CPU plugin, unless the machine has no driver.
fn runtime(linked: Vec<LinkedPlugin>) -> Option<Runtime> {
    super::device()?;
    let cpu = library("cpu");
    let options = Runtime::builder().plugin(library("wgpu")).plugin(cpu).link_all(linked);
    Some(options.build().expect("a runtime"))
}

fn named(runtime: &Runtime, name: &str) -> Arc<Device> {
    let choice = runtime.choose(&Policy::Explicit(name.to_owned()), &Requirements::default());
    choice.unwrap_or_else(|error| panic!("{name}: {error}")).device
}

/// Runs one op on four numbers.
fn op(device: &Arc<Device>, op: &str) -> Result<Vec<f32>, Error> {
    let source = format!(
        "devbay-program 1\n\nprogram \"one\"(%x: f32[4]) {{\n  %y = {op}@13(%x) as \"the node\"\n  return %y\n}}\n"
    );
    let session = Session::new(&Model::from_program(text::parse(&source)?), device)?;
    let x = Tensor::from_elements(&[4], &[-1.0f32, 2.0, -3.0, 4.0])?;
    let outputs = session.run(&[("x", &x)])?;
    Ok(outputs[0].elements::<f32>().expect("f32").to_vec())
}

/// Other devices, and this one where it was not lost, go on.
fn expect_life(runtime: &Runtime, names: &[&str]) {
    for name in names {
        run(&model(), &named(runtime, name)).unwrap_or_else(|error| panic!("{name} afterwards: {error}"));
    }
}

fn expect_error<T>(result: Result<T, Error>, kind: ErrorKind, words: &[&str]) {
    let error = result.err().unwrap_or_else(|| panic!("expected an error {kind:?} with {words:?}"));
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "expected `{word}` in: {text}");
    }
}

#[test]
fn a_shader_that_does_not_compile_is_an_error_with_the_compilers_words() {
    let Some(runtime) = runtime(vec![entry::devbay_entry::PLUGIN]) else { return };
    let device = named(&runtime, "faulty-wgpu:0");
    for _ in 0..2 {
        // The second time it is known already, and no less an error.
        let words =
            ["faulty-wgpu:0", "plugin faulty-wgpu", "the node", "shader misspelt", "nobody_wrote_this"];
        expect_error(op(&device, "Neg"), ErrorKind::PluginFailed, &words);
        let words = ["faulty-wgpu:0", "plugin faulty-wgpu", "the node", "shader greedy", "4096"];
        expect_error(op(&device, "Floor"), ErrorKind::PluginFailed, &words);
        assert_eq!(op(&device, "Abs").expect("a shader that is right"), [1.0, 2.0, 3.0, 4.0]);
    }
    expect_life(&runtime, &["wgpu:0", "cpu:0"]);
}

/// A rescan opens a lost adapter again, and new sessions run on it.
#[test]
fn a_device_that_was_lost_is_back_when_plugins_are_asked_again() {
    if super::device().is_none() {
        return;
    }
    let options = vec![("wgpu".to_owned(), "lose_after".to_owned(), "12".to_owned())];
    let plugins = vec![library("wgpu"), library("cpu")];
    let runtime = Runtime::builder().plugins(plugins).options(options).build();
    let runtime = runtime.expect("a runtime");
    let others = runtime.devices().len() - 1;
    for _ in 0..3 {
        let device = named(&runtime, "wgpu:0");
        let mut n_runs = 0;
        let lost = loop {
            match run(&model(), &device) {
                Ok(()) => n_runs += 1,
                Err(error) => break error,
            }
            assert!(n_runs < 100, "12 submissions are not so many runs");
        };
        expect_error(Err::<(), Error>(lost), ErrorKind::DeviceLost, &["wgpu:0"]);
        expect_life(&runtime, &["cpu:0"]);
        let found = runtime.rescan();
        let names = |devices: &[Arc<Device>]| -> Vec<String> {
            devices.iter().map(|device| device.name().to_owned()).collect()
        };
        assert_eq!(
            (names(&found.added), names(&found.gone)),
            (vec!["wgpu:0".to_owned()], vec!["wgpu:0".to_owned()])
        );
        assert!(Arc::ptr_eq(&found.gone[0], &device) && !Arc::ptr_eq(&found.added[0], &device));
        assert_eq!(found.added[0].stable_id(), device.stable_id());
        assert_eq!(runtime.devices().len(), others + 1);
        expect_life(&runtime, &["wgpu:0", "cpu:0"]);
    }
}

#[test]
fn more_than_the_device_gives_at_once_is_out_of_memory() {
    let Some(runtime) = runtime(Vec::new()) else { return };
    let device = named(&runtime, "wgpu:0");
    let space = device.space();
    let (alloc_max, bind_max) = (space.alloc_max as usize, space.bind_max as usize);
    assert!(alloc_max > 0 && bind_max > 0, "the device says what it gives");
    let words = ["wgpu:0", "plugin wgpu", "wanted at once"];
    expect_error(device.alloc(alloc_max + 1, 0).map(drop), ErrorKind::OutOfMemory, &words);

    // An operand that no kernel can be bound to is found when the run is planned, before anything is allocated.
    let n = bind_max / 4 + 1;
    let source = format!(
        "devbay-program 1\n\nprogram \"wide\"(%x: f32[{n}]) {{\n  %y = Neg@13(%x) as \"the node\"\n  return %y\n}}\n"
    );
    let model = Model::from_program(text::parse(&source).expect("a program"));
    let words = ["wgpu:0", "plugin wgpu", "the node", "value `y`"];
    expect_error(Session::new(&model, &device).map(drop), ErrorKind::OutOfMemory, &words);
    assert_eq!(device.bytes_in_use().0, 0, "bytes of the device");
    expect_life(&runtime, &["wgpu:0", "cpu:0"]);
}

/// The name under which this program knows that its memory is limited.
const LIMITED: &str = "DEVBAY_TEST_MEMORY_LIMITED";

/// A driver that has no more memory: allocations go on until it says so, in a process that may not have much.
#[test]
fn a_driver_that_has_no_more_memory_is_out_of_memory() {
    if super::device().is_none() {
        return;
    }
    if std::env::var_os(LIMITED).is_none() {
        let name = "failures::a_driver_that_has_no_more_memory_is_out_of_memory";
        let exe: PathBuf = std::env::current_exe().expect("a test knows its own path");
        let mut limited = Command::new("sh");
        // 4 GB of addresses, of which only the memory that runs need is touched.
        limited
            .args(["-c", "ulimit -v 4000000 && exec \"$0\" --exact \"$1\" --nocapture"])
            .arg(exe)
            .arg(name);
        let finished = limited.env(LIMITED, "1").output().expect("a shell");
        let said = String::from_utf8_lossy(&finished.stderr).into_owned();
        assert!(finished.status.success(), "{}\n{said}", finished.status);
        assert!(said.contains("the driver refused"), "it ended before the driver refused: {said}");
        return;
    }
    let runtime = runtime(Vec::new()).expect("a driver");
    let device = named(&runtime, "wgpu:0");
    let size = (device.space().alloc_max as usize).min(512 << 20);
    let mut held = Vec::new();
    let refusal = loop {
        match device.alloc(size, 0) {
            Ok(buffer) => held.push(buffer),
            Err(error) => break error,
        }
        assert!(held.len() < 64, "{} bytes, and no end", held.len() * size);
    };
    expect_error(Err::<(), Error>(refusal.clone()), ErrorKind::OutOfMemory, &["wgpu:0", "plugin wgpu"]);
    eprintln!("the driver refused: {refusal}");
    expect_life(&runtime, &["cpu:0"]);
    // The device keeps its memory, and is as good as before when that is given back.
    drop(held);
    assert_eq!(device.bytes_in_use().0, 0, "bytes of the device");
    expect_life(&runtime, &["wgpu:0"]);
}
