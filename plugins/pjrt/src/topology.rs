//! Devices that are not there: what a library's compiler knows of them by name, and programs compiled for them.

use crate::api::{self, RawExecutable, RawTopology};
use crate::element::ArrayType;
use crate::error::{Error, Result, optional};
use crate::executable::{Code, CompileOptions, read_outputs, serialize};
use crate::library::{Library, text};

/// Devices by a name of the library's, such as `v5e:2x2` of libtpu's.
///
/// # Invariants
/// `topology` is the library's, and is destroyed in `drop` alone.
#[derive(Debug)]
pub struct Topology {
    library: &'static Library,
    topology: *mut RawTopology,
    platform: String,
}

/// A program that was compiled ahead of time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ahead {
    /// Its bytes, which a client of the same library loads.
    pub bytes: Vec<u8>,
    /// Types of its outputs; `None` where the library does not say.
    pub outputs: Option<Vec<ArrayType>>,
}

impl Topology {
    /// The devices with a name.
    ///
    /// # Errors
    /// The library's words for a name that it does not know; [`Error::Missing`] for a library that knows none.
    pub fn new(library: &'static Library, name: &str) -> Result<Self> {
        let mut args = api::TopologyCreate {
            name: name.as_ptr().cast(),
            name_size: name.len(),
            ..api::TopologyCreate::ZERO
        };
        // SAFETY: the name lives for the call; there are no options.
        unsafe { library.call(&mut args) }?;
        if args.topology.is_null() {
            return Err(Error::Broken { function: "PJRT_TopologyDescription_Create", text: "no topology" });
        }
        // From here on dropping it destroys it.
        let mut this = Self { library, topology: args.topology, platform: String::new() };
        let mut name =
            api::TopologyPlatformName { topology: this.topology, ..api::TopologyPlatformName::ZERO };
        // SAFETY: the topology is alive (invariant).
        optional(unsafe { library.call(&mut name) })?;
        let mut version =
            api::TopologyPlatformVersion { topology: this.topology, ..api::TopologyPlatformVersion::ZERO };
        // SAFETY: the topology is alive (invariant).
        optional(unsafe { library.call(&mut version) })?;
        // SAFETY: texts that live as long as the topology; NULL where there is none.
        let (name, version) =
            unsafe { (text(name.text, name.text_size), text(version.text, version.text_size)) };
        this.platform = format!("{name} {version}");
        Ok(this)
    }

    /// Name and version of the platform.
    pub fn platform(&self) -> &str {
        &self.platform
    }

    /// Compiles StableHLO, as text or as bytecode. The bytes are loaded by a client on such devices.
    ///
    /// **Threads**: any; blocks, for seconds where the program is large.
    ///
    /// # Errors
    /// The compiler's words.
    pub fn compile(&self, code: &[u8], options: &CompileOptions) -> Result<Ahead> {
        let code = Code::new(code);
        let program = code.program();
        let mut args = api::Compile {
            topology: self.topology,
            program: &program,
            compile_options: options.bytes().as_ptr().cast(),
            compile_options_size: options.bytes().len(),
            ..api::Compile::ZERO
        };
        // SAFETY: the topology is alive; program and options live for the call and are not written.
        unsafe { self.library.call(&mut args) }?;
        if args.executable.is_null() {
            return Err(Error::Broken { function: "PJRT_Compile", text: "no executable" });
        }
        let made = Made { library: self.library, executable: args.executable };
        let mut outputs =
            api::ExecutableNumOutputs { executable: made.executable, ..api::ExecutableNumOutputs::ZERO };
        // SAFETY: the library just made the executable, which lives until `made` is dropped.
        unsafe { self.library.call(&mut outputs) }?;
        // SAFETY: the executable lives until `made` is dropped.
        let bytes = unsafe { serialize(self.library, made.executable) }?;
        // SAFETY: the executable lives until `made` is dropped.
        let outputs = unsafe { read_outputs(self.library, made.executable, outputs.num_outputs) }?;
        Ok(Ahead { bytes, outputs })
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        let mut args = api::TopologyDestroy { topology: self.topology, ..api::TopologyDestroy::ZERO };
        // SAFETY: it is alive (invariant) and ends here. An error leaves nothing to do.
        let _ = unsafe { self.library.call(&mut args) };
    }
}

/// An executable that is destroyed when this goes.
struct Made {
    library: &'static Library,
    executable: *mut RawExecutable,
}

impl Drop for Made {
    fn drop(&mut self) {
        let mut args = api::ExecutableDestroy { executable: self.executable, ..api::ExecutableDestroy::ZERO };
        // SAFETY: the library made the executable, and it is destroyed once, here. An error leaves nothing to do.
        let _ = unsafe { self.library.call(&mut args) };
    }
}
