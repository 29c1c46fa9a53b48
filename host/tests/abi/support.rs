//! Folders, plugins and hosts for the tests beside this file.

use devbay_host::internals::core::device::Plugin;
use devbay_host::internals::core::program::text;
use devbay_host::internals::core::services::LogSink;
use devbay_host::internals::core::tensor::BOOL;
use devbay_host::internals::eager;
use devbay_host::internals::load::Library;
use devbay_host::internals::negotiate::{Agreement, Entry, negotiate};
use devbay_host::{
    Device, Model, Outcome, Refusal, Result, RunOptions, Runtime, RuntimeBuilder, Session, Tensor,
};
use devbay_plugin_api::abi::version::MinorRange;
use devbay_plugin_faulty::{LEDGER, Ledger};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// A folder that goes when the value does.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("abi-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Compiles a fixture in C; definitions are `NAME` or `NAME=VALUE`.
    pub fn c_plugin(&self, name: &str, source: &str, definitions: &[&str]) -> PathBuf {
        let library = self.0.join(library_name(name));
        let definitions: Vec<String> = definitions.iter().map(|name| format!("-D{name}")).collect();
        let arguments: Vec<&str> =
            ["-fPIC", "-shared"].into_iter().chain(definitions.iter().map(String::as_str)).collect();
        compile_c(&library, &fixtures().join(source), &root().join("plugin-api/include"), &arguments);
        library
    }

    /// `defect.c` with these definitions.
    pub fn defect(&self, definitions: &[&str]) -> PathBuf {
        self.c_plugin("minimal", "defect.c", definitions)
    }

    /// A copy of the faulty plugin's library.
    pub fn faulty(&self, name: &str) -> PathBuf {
        let path = self.0.join(library_name(name));
        std::fs::copy(faulty(), &path).unwrap();
        path
    }
}

/// The workspace's folder.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The folder of plugins and a host that tests compile.
pub fn fixtures() -> PathBuf {
    root().join("conformance/fixtures")
}

/// Compiles one file in C with the header of a folder.
pub fn compile_c(output: &Path, source: &Path, include: &Path, arguments: &[&str]) {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(&compiler);
    command.args(["-std=c11", "-O1", "-Wall", "-Wextra", "-pedantic", "-Werror"]).args(arguments);
    command.arg("-I").arg(include).arg("-o").arg(output).arg(source);
    if !arguments.contains(&"-shared") {
        // Behind the source that needs it, for linkers that drop symbols that are not asked for yet.
        command.arg("-ldl");
    }
    let compiled = command
        .output()
        .unwrap_or_else(|e| panic!("the ABI's tests need a C compiler: {compiler} (CC): {e}"));
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{} with {arguments:?}:\n{said}", source.display());
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn library_name(name: &str) -> String {
    format!("{}devbay_plugin_{name}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX)
}

/// The faulty plugin's library, which cargo builds beside the tests.
pub fn faulty() -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name(library_name("faulty"));
    assert!(path.is_file(), "{} is missing: cargo build -p devbay-plugin-faulty", path.display());
    path
}

/// A host with one plugin, and what the plugin logged.
pub struct Host {
    pub runtime: Runtime,
    pub log: Log,
}

/// Messages of plugins.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub fn sink(&self) -> LogSink {
        let log = Arc::clone(&self.0);
        Arc::new(move |_, _, text| log.lock().unwrap().push(text.to_owned()))
    }

    pub fn messages(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Returns the faulty plugin's message at the end of its instance.
    pub fn destroyed(&self) -> Option<String> {
        self.messages().into_iter().find(|text| text.starts_with("destroyed"))
    }
}

/// Settings for a runtime with the faulty plugin.
pub fn faulty_options(options: &[(&str, &str)]) -> RuntimeBuilder {
    let builder = Runtime::builder().threads(1).plugin(faulty());
    options.iter().fold(builder, |builder, &(key, value)| builder.option("faulty", key, value))
}

impl Host {
    pub fn new(builder: RuntimeBuilder) -> Self {
        let log = Log::default();
        Self { runtime: builder.log(log.sink()).build().unwrap(), log }
    }

    /// With the faulty plugin, loaded.
    pub fn faulty(options: &[(&str, &str)]) -> Self {
        let host = Self::new(faulty_options(options));
        assert!(!host.runtime.plugins().is_empty(), "{:?}", host.runtime.report());
        host
    }

    /// With a plugin that was named explicitly.
    pub fn explicit(library: &Path) -> Self {
        Self::new(Runtime::builder().threads(1).plugin(library))
    }

    pub fn plugin(&self) -> &Arc<Plugin> {
        &self.runtime.plugins()[0]
    }

    pub fn device(&self) -> Arc<Device> {
        self.runtime.devices().swap_remove(0)
    }

    pub fn ledger(&self) -> &Ledger {
        ledger(self.plugin())
    }

    /// Why the only candidate was refused.
    pub fn refusal(&self) -> &Refusal {
        match &self.runtime.report().plugins[..] {
            [plugin] => match &plugin.outcome {
                Outcome::Refused(refusal) => refusal,
                outcome => panic!("expected a refusal, found {outcome:?}"),
            },
            plugins => panic!("expected one candidate, found {plugins:?}"),
        }
    }
}

/// The books of a faulty plugin. Asked for before anything goes wrong, they stay readable afterwards: a poisoned
/// instance is never destroyed.
pub fn ledger(plugin: &Plugin) -> &Ledger {
    let table = plugin.extension(LEDGER, 1).expect("the faulty plugin has its books");
    // SAFETY: the extension's table is a ledger that lives as long as the instance, which the reference holds.
    unsafe { table.cast::<Ledger>().as_ref() }
}

/// The faulty plugin, negotiated with but not made: its description may be changed first.
pub fn negotiated(library: &Path, minors: MinorRange) -> (Library, Agreement) {
    let library = Library::open(library).unwrap();
    let agreement = negotiate(Entry::Library(&library), minors).unwrap();
    (library, agreement)
}

pub fn tensor(values: &[f32]) -> Tensor {
    Tensor::from_elements(&[values.len()], values).unwrap()
}

/// Runs one kernel on a device.
pub fn relu(device: &Arc<Device>) -> Result<Vec<f32>> {
    relu_of(device, &[1.0, -2.0, 3.0, -0.5])
}

pub fn relu_of(device: &Arc<Device>, values: &[f32]) -> Result<Vec<f32>> {
    let results = eager::run(device, "Relu", &[], &[&tensor(values)], 1)?;
    Ok(results[0].elements::<f32>().unwrap().to_vec())
}

pub const RELU: [f32; 4] = [1.0, 0.0, 3.0, 0.0];

/// Two kernels, one after the other, on four numbers called `x`.
pub fn model() -> Model {
    let source = r#"devbay-program 1

program "two kernels"(%x: f32[4]) {
  %h: f32[4] = Relu@14(%x) as "first"
  %y: f32[4] = Mul@14(%h, %x) as "second"
  return %y
}
"#;
    Model::from_program(text::parse(source).unwrap())
}

/// The same with a choice between the kernels, so that it is planned in stages.
pub fn staged_model() -> Model {
    let source = r#"devbay-program 1

program "kernels and a choice"(%x: f32[4], %sure: bool[]) {
  %g: f32[4] = Relu@14(%x) as "zeroth"
  %h: f32[4] = Relu@14(%g) as "first"
  %y: f32[4] = If@25(%sure) then_branch() {
    %t: f32[4] = Mul@14(%h, %x) as "second"
    return %t
  } else_branch() {
    return %h
  }
  return %y
}
"#;
    Model::from_program(text::parse(source).unwrap())
}

/// Runs one of the two models once, in a session of its own.
pub fn run_model(model: &Model, device: &Arc<Device>, options: &RunOptions) -> Result<Vec<f32>> {
    let session = Session::new(model, device)?;
    let (x, sure) = (tensor(&MODEL_INPUT), Tensor::from_bytes(BOOL, &[], &[1])?);
    let inputs = [("x", &x), ("sure", &sure)];
    let results = session.run_with(&inputs[..session.inputs().len()], options)?;
    Ok(results[0].elements::<f32>().unwrap().to_vec())
}

pub const MODEL_INPUT: [f32; 4] = [1.0, -2.0, 3.0, -0.5];
pub const MODEL_OUTPUT: [f32; 4] = [1.0, -0.0, 9.0, -0.0];
