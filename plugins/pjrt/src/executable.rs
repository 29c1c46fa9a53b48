//! StableHLO compiled for a device: run, and stored to be loaded again.

use crate::api::{self, ExecuteOptions, RawBuffer, RawEvent, RawExecutable, RawLoadedExecutable};
use crate::buffer::Buffer;
use crate::client::Client;
use crate::element::{ArrayType, ElementType};
use crate::error::{Error, Result, optional};
use crate::event::Event;
use crate::library::{Library, list, text};
use std::ptr::null_mut;

/// Options of a compilation: a serialized `CompileOptionsProto` of XLA's, which is never empty, as some libraries abort
/// the process for that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompileOptions(Vec<u8>);

impl CompileOptions {
    /// One replica of one partition, on the client's first device.
    pub fn minimal() -> Self {
        // executable_build_options (3) with num_replicas (4) and num_partitions (5) of 1.
        Self(vec![0x1a, 4, 0x20, 1, 0x28, 1])
    }

    /// The options' bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// One replica of one partition, on the device with this id ([`Device::id`](crate::client::Device::id)).
    pub fn for_device(id: i32) -> Self {
        // DeviceAssignmentProto: replica_count (1), computation_count (2), computation_devices (3), each with
        // replica_device_ids (1), a packed list.
        let device = field(1, varint(i64::from(id) as u64));
        let mut assignment = vec![0x08, 1, 0x10, 1];
        assignment.extend(field(3, device));
        let mut build = vec![0x20, 1, 0x28, 1];
        build.extend(field(9, assignment));
        Self(field(3, build))
    }

    /// Options of the caller's, serialized.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are none.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        if bytes.is_empty() {
            return Err(Error::invalid("expected a serialized CompileOptionsProto, found nothing"));
        }
        Ok(Self(bytes))
    }
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self::minimal()
    }
}

/// A number as protocol buffers write it.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A field with bytes of a known length, as protocol buffers write it.
fn field(number: u64, content: Vec<u8>) -> Vec<u8> {
    let mut bytes = varint(number << 3 | 2);
    bytes.extend(varint(content.len() as u64));
    bytes.extend(content);
    bytes
}

/// A program compiled for one device and loaded there. Any number of executions of it may be under way.
///
/// # Invariants
/// `loaded` is an executable of the client's; `executable` is NULL or the one taken from it. Both are destroyed in `drop`
/// alone.
#[derive(Debug)]
pub struct Executable {
    client: Client,
    loaded: *mut RawLoadedExecutable,
    executable: *mut RawExecutable,
    name: String,
    outputs: Option<Vec<ArrayType>>,
    n_outputs: usize,
    /// The positions of all inputs: those that must not be donated, when none is.
    positions: Vec<i64>,
}

// SAFETY: an executable may be used and destroyed on any thread (the crate's page on threads).
unsafe impl Send for Executable {}
// SAFETY: the library locks when several threads execute at once; everything else is never changed.
unsafe impl Sync for Executable {}

/// An input of an execution.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The array; of the executable's client.
    pub buffer: &'a Buffer,
    /// True if the program may take the array's memory for an output, if it was compiled to. Afterwards the buffer is
    /// deleted, or as it was where the program had no use for that.
    pub donate: bool,
}

impl<'a> From<&'a Buffer> for Input<'a> {
    fn from(buffer: &'a Buffer) -> Self {
        Self { buffer, donate: false }
    }
}

/// An execution that was begun.
pub struct Execution {
    /// New buffers, which may not be there yet. After a failure they say why.
    pub outputs: Vec<Buffer>,
    /// Event of the execution's end.
    pub done: Event,
}

impl Executable {
    /// Compiles StableHLO, as text or as bytecode (`mlir` for the library), whose function `main` has `n_inputs` inputs.
    ///
    /// **Threads**: any; blocks, for seconds where the program is large.
    ///
    /// # Errors
    /// The compiler's words; [`Error::Invalid`] for a program that runs on several devices.
    pub fn compile(client: &Client, code: &[u8], n_inputs: usize, options: &CompileOptions) -> Result<Self> {
        let code = Code::new(code);
        let program = code.program();
        let mut args = api::ClientCompile {
            client: client.raw(),
            program: &program,
            compile_options: options.0.as_ptr().cast(),
            compile_options_size: options.0.len(),
            ..api::ClientCompile::ZERO
        };
        // SAFETY: the client is alive; program and options live for the call and are not written.
        unsafe { client.library().call(&mut args) }?;
        // SAFETY: the library just made the executable, which is ours to destroy.
        unsafe { Self::new(client, args.executable, n_inputs, "PJRT_Client_Compile") }
    }

    /// Loads what [`serialize`](Self::serialize) gave, for the device that it was compiled for.
    ///
    /// # Errors
    /// The library's words.
    ///
    /// # Safety
    /// The bytes are what `serialize` gave with the same file of the library and the same platform, unchanged: they hold
    /// machine code, and libraries need not check them.
    pub unsafe fn load(client: &Client, bytes: &[u8], n_inputs: usize) -> Result<Self> {
        let mut args = api::DeserializeAndLoad {
            client: client.raw(),
            bytes: bytes.as_ptr().cast(),
            bytes_size: bytes.len(),
            ..api::DeserializeAndLoad::ZERO
        };
        // SAFETY: the client is alive; the bytes live for the call, and are what `serialize` gave (# Safety).
        unsafe { client.library().call(&mut args) }?;
        // SAFETY: the library just made the executable, which is ours to destroy.
        unsafe { Self::new(client, args.loaded, n_inputs, "PJRT_Executable_DeserializeAndLoad") }
    }

    /// Takes an executable that `function` returned, and reads what it is.
    ///
    /// # Safety
    /// `loaded` is NULL or an executable of the client's that nothing else destroys.
    unsafe fn new(
        client: &Client,
        loaded: *mut RawLoadedExecutable,
        n_inputs: usize,
        function: &'static str,
    ) -> Result<Self> {
        if loaded.is_null() {
            return Err(Error::Broken { function, text: "no executable" });
        }
        // From here on dropping it destroys it, also after an error.
        let mut this = Self {
            client: client.clone(),
            loaded,
            executable: null_mut(),
            name: String::new(),
            outputs: None,
            n_outputs: 0,
            positions: (0..n_inputs as i64).collect(),
        };
        this.read()?;
        Ok(this)
    }

    fn read(&mut self) -> Result<()> {
        let library = self.client.library();
        let mut args =
            api::LoadedAddressableDevices { executable: self.loaded, ..api::LoadedAddressableDevices::ZERO };
        // SAFETY: the executable is alive (invariant).
        unsafe { library.call(&mut args) }?;
        if args.num_devices != 1 {
            let n = args.num_devices;
            return Err(Error::invalid(format!("expected a program for one device, found one for {n}")));
        }
        let mut args = api::LoadedGetExecutable { loaded: self.loaded, ..api::LoadedGetExecutable::ZERO };
        // SAFETY: the executable is alive (invariant).
        unsafe { library.call(&mut args) }?;
        if args.executable.is_null() {
            return Err(Error::Broken {
                function: "PJRT_LoadedExecutable_GetExecutable",
                text: "no executable",
            });
        }
        self.executable = args.executable;
        let executable = self.executable;

        let mut outputs = api::ExecutableNumOutputs { executable, ..api::ExecutableNumOutputs::ZERO };
        // SAFETY: the executable is alive (invariant).
        unsafe { library.call(&mut outputs) }?;
        self.n_outputs = outputs.num_outputs;
        let mut name = api::ExecutableName { executable, ..api::ExecutableName::ZERO };
        // SAFETY: the executable is alive (invariant).
        optional(unsafe { library.call(&mut name) })?;
        // SAFETY: a text that lives as long as the executable; NULL where there is none.
        self.name = unsafe { text(name.text, name.text_size) };
        // SAFETY: the executable is alive (invariant).
        self.outputs = unsafe { read_outputs(library, executable, self.n_outputs) }?;
        Ok(())
    }

    /// Its client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Its name, from the program's module; empty where the library has none.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Inputs of an execution, as its maker said.
    pub fn n_inputs(&self) -> usize {
        self.positions.len()
    }

    /// Outputs of an execution.
    pub fn n_outputs(&self) -> usize {
        self.n_outputs
    }

    /// Returns the types of the outputs; `None` where the library does not say before there are some.
    pub fn outputs(&self) -> Option<&[ArrayType]> {
        self.outputs.as_deref()
    }

    /// Executes it once. Inputs may be buffers that are not there yet: the execution waits for them.
    ///
    /// **Threads**: any, also at once; a library may run all of it before this returns.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another number of inputs or a buffer of another client. The library's words for what it
    /// finds at once; nothing was begun then. Later ones are [`Execution::done`]'s.
    pub fn execute(&self, inputs: &[Input<'_>]) -> Result<Execution> {
        let expected = self.n_inputs();
        if inputs.len() != expected {
            return Err(Error::invalid(format!("expected {expected} inputs, found {}", inputs.len())));
        }
        if let Some(at) = inputs.iter().position(|input| !input.buffer.client().is(&self.client)) {
            return Err(Error::invalid(format!("input {at} is a buffer of another client")));
        }
        let library = self.client.library();
        let arguments: Vec<*mut RawBuffer> = inputs.iter().map(|input| input.buffer.raw()).collect();
        // A program may be compiled to donate inputs; the inputs that the caller keeps are listed.
        let listed: Vec<i64>;
        let kept = if inputs.iter().any(|input| input.donate) {
            listed = self.positions.iter().copied().filter(|&i| !inputs[i as usize].donate).collect();
            &listed
        } else {
            &self.positions
        };
        let mut options = ExecuteOptions {
            struct_size: library.execute_options_size(),
            non_donatable_input_indices: kept.as_ptr(),
            num_non_donatable_input_indices: kept.len(),
            ..ExecuteOptions::ZERO
        };
        let mut outputs: Vec<*mut RawBuffer> = vec![null_mut(); self.n_outputs];
        let mut done: *mut RawEvent = null_mut();
        let mut args = api::LoadedExecute {
            executable: self.loaded,
            options: &mut options,
            argument_lists: &arguments.as_ptr(),
            num_devices: 1,
            num_args: arguments.len(),
            output_lists: &outputs.as_mut_ptr(),
            device_complete_events: &mut done,
            ..api::LoadedExecute::ZERO
        };
        // SAFETY: executable and buffers are alive and of one client; the lists live for the call, one for the one device
        // (checked when it was loaded), with a place for each output.
        unsafe { library.call(&mut args) }?;
        const FUNCTION: &str = "PJRT_LoadedExecutable_Execute";
        // All are taken before any is looked at, so that none stays behind.
        let take = |raw: &*mut RawBuffer| {
            // SAFETY: a buffer just made, ours to destroy.
            unsafe { Buffer::new(&self.client, *raw, FUNCTION) }
        };
        let outputs: Vec<Result<Buffer>> = outputs.iter().map(take).collect();
        // SAFETY: an event just made, ours to destroy.
        let done = unsafe { Event::new(&self.client, done, FUNCTION) };
        Ok(Execution { outputs: outputs.into_iter().collect::<Result<_>>()?, done: done? })
    }

    /// Its bytes, to be loaded again by the same library without compiling.
    ///
    /// # Errors
    /// The library's words.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        // SAFETY: the executable is alive (invariant).
        unsafe { serialize(self.client.library(), self.executable) }
    }
}

/// Code as the library is given it.
pub(crate) struct Code(Vec<u8>);

impl Code {
    /// A copy, which for texts ends with a 0: their parser reads the byte behind the last one, and expects that.
    pub fn new(code: &[u8]) -> Self {
        Self([code, b"\0"].concat())
    }

    /// The program, which points here.
    pub fn program(&self) -> api::Program {
        api::Program {
            code: self.0.as_ptr().cast_mut().cast(),
            code_size: self.0.len() - 1,
            format: c"mlir".as_ptr(),
            format_size: 4,
            ..api::Program::ZERO
        }
    }
}

/// An executable's bytes.
///
/// # Errors
/// The library's words.
///
/// # Safety
/// The executable is alive and the library's.
pub(crate) unsafe fn serialize(library: &Library, executable: *mut RawExecutable) -> Result<Vec<u8>> {
    let mut args = api::ExecutableSerialize { executable, ..api::ExecutableSerialize::ZERO };
    // SAFETY: the executable is alive and the library's (# Safety).
    unsafe { library.call(&mut args) }?;
    // SAFETY: the bytes live as long as their owner, which is freed below.
    let bytes = unsafe { list(args.bytes.cast::<u8>(), args.bytes_size) }.to_vec();
    if let Some(deleter) = args.deleter {
        // SAFETY: the owner was just made, and this is the one place that frees it.
        unsafe { deleter(args.owner) };
    }
    Ok(bytes)
}

/// Returns the types of an executable's outputs; `None` where the library does not say.
///
/// # Safety
/// The executable is alive and the library's.
pub(crate) unsafe fn read_outputs(
    library: &Library,
    executable: *mut RawExecutable,
    n_outputs: usize,
) -> Result<Option<Vec<ArrayType>>> {
    let mut types =
        api::ExecutableOutputElementTypes { executable, ..api::ExecutableOutputElementTypes::ZERO };
    // SAFETY: the executable is alive and the library's (# Safety).
    if optional(unsafe { library.call(&mut types) })?.is_none() {
        return Ok(None);
    }
    let mut dims = api::ExecutableOutputDimensions { executable, ..api::ExecutableOutputDimensions::ZERO };
    // SAFETY: the executable is alive and the library's (# Safety).
    if optional(unsafe { library.call(&mut dims) })?.is_none() {
        return Ok(None);
    }
    if types.num_types != n_outputs || dims.num_outputs != n_outputs {
        return Err(Error::Broken {
            function: "PJRT_Executable_OutputDimensions",
            text: "another number of outputs",
        });
    }
    // SAFETY: lists that live as long as the executable, one entry for each output.
    let (types, n_dims) = unsafe { (list(types.types, n_outputs), list(dims.dim_sizes, n_outputs)) };
    // SAFETY: a list that lives as long as the executable, as long as all outputs' dimensions together.
    let mut rest = unsafe { list(dims.dims, n_dims.iter().sum()) };
    let mut outputs = Vec::new();
    for (element, n_dims) in types.iter().zip(n_dims) {
        let Some((dims, others)) = rest.split_at_checked(*n_dims) else {
            return Err(Error::Broken {
                function: "PJRT_Executable_OutputDimensions",
                text: "too few dimensions",
            });
        };
        outputs.push(ArrayType { element: ElementType(*element), dims: dims.to_vec() });
        rest = others;
    }
    Ok(Some(outputs))
}

impl Drop for Executable {
    fn drop(&mut self) {
        let library = self.client.library();
        if !self.executable.is_null() {
            let mut args =
                api::ExecutableDestroy { executable: self.executable, ..api::ExecutableDestroy::ZERO };
            // SAFETY: it is alive (invariant) and ends here. An error leaves nothing to do.
            let _ = unsafe { library.call(&mut args) };
        }
        let mut args = api::LoadedDestroy { executable: self.loaded, ..api::LoadedDestroy::ZERO };
        // SAFETY: it is alive (invariant) and ends here; executions under way keep what they need. An error leaves
        // nothing to do.
        let _ = unsafe { library.call(&mut args) };
    }
}
