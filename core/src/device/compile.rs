//! Programs that a device's compiler takes whole: code, and graphs that it claims (B23).

use super::views::Graph;
use super::{Buffer, Device, Plugin, Stream, must_leak};
use crate::about::must_understand;
use crate::error::{Error, ErrorKind, Phase, Result, of_list};
use crate::kernel::Numerics;
use crate::tensor::{Tensor, TensorType, bytes_of, n_elements};
use devbay_plugin_api::abi::tables::EXECUTABLE_FLAGS;
use devbay_plugin_api::abi::version::not_understood;
use devbay_plugin_api::abi::{
    self, BufferRef, CompileDesc, CompileTable, DEVBAY_BLOB_RECOMPILE, DEVBAY_BLOB_USABLE,
    DEVBAY_EXECUTABLE_TAKES_OUTPUTS, DEVBAY_USAGE_TRANSIENT, ErrorDetail, ExecutableInfo, ExecuteDesc,
    Growable, List, NodeClaim, Status, Str, read_growable_list, read_list,
};
use devbay_plugin_api::reserve;
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A program that a device's compiler made ready to run. Shared among threads; it lives no longer than its device.
pub struct Executable {
    device: Arc<Device>,
    handle: NonNull<abi::Executable>,
    table: CompileTable,
    /// For a graph, the values that a run takes, by their numbers there.
    takes: Vec<u32>,
    inputs: Vec<TensorType>,
    outputs: Vec<TensorType>,
    /// Results are written to memory of the host's.
    takes_outputs: bool,
}

/// A program that was compiled for a device that is not there.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The values of the graph that a run takes, by their numbers there.
    pub takes: Vec<u32>,
    /// Types of its results.
    pub outputs: Vec<TensorType>,
    /// Bytes that a device's compiler loads.
    pub blob: Vec<u8>,
}

/// The use that a device has for stored bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlobUse {
    /// A program that runs as it is.
    Usable,
    /// A program for something like this device, to be compiled anew.
    Recompile,
    /// Not for this device, or damaged.
    Unsupported,
}

// SAFETY: the plugin takes a program's calls from any thread, which the table says.
unsafe impl Send for Executable {}
// SAFETY: several threads may use a program at once, which the table says.
unsafe impl Sync for Executable {}

impl Device {
    /// Returns the formats of programs that its compiler reads; none if it has no compiler.
    ///
    /// # Errors
    /// Errors that the plugin reports.
    pub fn formats(&self) -> Result<Vec<String>> {
        let Some(table) = self.plugin().compiler() else { return Ok(Vec::new()) };
        let mut list = List::EMPTY;
        self.call(Phase::ListFormats, |_, error| {
            let formats = table.formats?;
            // SAFETY: the plugin's function with its own device; the place is ours for the call.
            Some(unsafe { formats(self.handle.as_ptr(), &mut list, error) })
        })?;
        // SAFETY: the plugin keeps the list of texts as long as the instance.
        let texts = unsafe { read_list::<Str>(&list, "Str") };
        let texts = texts.map_err(|e| self.broken(&format!("the list of formats: {e}")))?;
        // SAFETY: the texts of that list, kept as long.
        let text = |text: &Str| unsafe { text.get() }.map(str::to_owned);
        let texts: std::result::Result<Vec<String>, _> = texts.iter().map(text).collect();
        texts.map_err(|e| self.broken(&format!("the name of a format: {e}")))
    }

    /// Compiles a program of a format, one of [`Device::formats`], to be run with inputs of these types, whose extents are
    /// known; `label` names it in messages.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedOp`] if the device has no compiler, or it does not read the format; else the compiler's
    /// error.
    pub fn compile(
        self: &Arc<Self>,
        format: &str,
        code: &[u8],
        inputs: &[TensorType],
        label: &str,
    ) -> Result<Executable> {
        let shapes: Vec<Vec<i64>> = inputs.iter().map(extents).collect::<Result<_>>()?;
        let tensor = |(ty, shape): (&TensorType, &Vec<i64>)| abi::Tensor {
            dtype: ty.dtype,
            rank: shape.len() as u32,
            shape: shape.as_ptr(),
            ..abi::Tensor::empty()
        };
        let tensors: Vec<abi::Tensor> = inputs.iter().zip(&shapes).map(tensor).collect();
        let desc = CompileDesc {
            format: Str::new(format),
            code: code.as_ptr().cast::<c_void>(),
            code_bytes: code.len() as u64,
            inputs: List::new(&tensors),
            label: Str::new(label),
            ..CompileDesc::empty()
        };
        let mut made = self.make(Phase::Compile, desc, |table| table.compile)?;
        made.inputs = inputs.to_vec();
        Ok(made)
    }

    /// Returns whether its compiler takes graphs.
    pub fn takes_graphs(&self) -> bool {
        self.plugin().compiler().is_some_and(|table| table.claim.is_some())
    }

    /// Returns the cost of each node of a graph here; None for those that the compiler does not take.
    ///
    /// # Errors
    /// Errors that the plugin reports.
    pub fn claim(&self, graph: &Graph<'_>) -> Result<Vec<Option<NodeClaim>>> {
        let mut claims = vec![NodeClaim::default(); graph.nodes().len()];
        let table = self.compiler()?;
        graph.with_abi(|view| {
            self.call(Phase::Claim, |_, error| {
                let claim = table.claim?;
                let n = claims.len() as u64;
                // SAFETY: the plugin's function with its own device; graph and claims are ours for the call.
                Some(unsafe { claim(self.handle.as_ptr(), view, claims.as_mut_ptr(), n, error) })
            })
        })?;
        Ok(claims.into_iter().map(|claim| (claim.is_claimed != 0).then_some(claim)).collect())
    }

    /// Compiles a graph of nodes that it claimed. At each run the host means to donate the buffers of `donors`, inputs of
    /// the graph by their numbers.
    ///
    /// # Errors
    /// As [`Device::compile`].
    pub fn compile_graph(
        self: &Arc<Self>,
        graph: &Graph<'_>,
        numerics: Numerics,
        donors: &[u32],
        label: &str,
    ) -> Result<Executable> {
        let mut made = graph.with_abi(|view| {
            let desc = CompileDesc {
                graph: view,
                numerics: numerics.code(),
                donors: List::new(donors),
                label: Str::new(label),
                ..CompileDesc::empty()
            };
            self.make(Phase::Compile, desc, |table| table.compile)
        })?;
        made.inputs = input_types(graph, &made.takes).map_err(|text| self.broken(&text))?;
        check_outputs(graph, &made.outputs).map_err(|text| self.broken(&text))?;
        Ok(made)
    }

    /// Loads the result of [`Executable::blob`] for the same graph.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedOp`] for bytes that are not usable here, or of another graph.
    pub fn load_graph(self: &Arc<Self>, graph: &Graph<'_>, blob: &[u8], label: &str) -> Result<Executable> {
        let mut made = self.load_any(blob, label)?;
        let other = |text| Error::new(ErrorKind::UnsupportedOp, text).on_device(self.name());
        made.inputs = input_types(graph, &made.takes).map_err(other)?;
        check_outputs(graph, &made.outputs).map_err(other)?;
        Ok(made)
    }

    /// Loads the result of [`Executable::blob`] or [`Plugin::compile_ahead`], for inputs and results of these types.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedOp`] for bytes that are not usable here, or of another program.
    pub fn load(
        self: &Arc<Self>,
        blob: &[u8],
        inputs: &[TensorType],
        outputs: &[TensorType],
        label: &str,
    ) -> Result<Executable> {
        let mut made = self.load_any(blob, label)?;
        if made.takes.len() != inputs.len() || made.outputs != outputs {
            let text = "a stored program of other inputs or results";
            return Err(Error::new(ErrorKind::UnsupportedOp, text).on_device(self.name()));
        }
        made.inputs = inputs.to_vec();
        Ok(made)
    }

    fn load_any(self: &Arc<Self>, blob: &[u8], label: &str) -> Result<Executable> {
        let desc = CompileDesc {
            code: blob.as_ptr().cast::<c_void>(),
            code_bytes: blob.len() as u64,
            label: Str::new(label),
            ..CompileDesc::empty()
        };
        self.make(Phase::Load, desc, |table| table.load)
    }

    /// Returns the use that it has for stored bytes.
    ///
    /// # Errors
    /// Errors that the plugin reports.
    pub fn validate(&self, blob: &[u8]) -> Result<BlobUse> {
        let mut out = u32::MAX;
        let table = self.compiler()?;
        self.call(Phase::Validate, |_, error| {
            let validate = table.validate?;
            // SAFETY: the plugin's function with its own device; bytes and place are ours for the call.
            Some(unsafe {
                validate(self.handle.as_ptr(), blob.as_ptr().cast(), blob.len() as u64, &mut out, error)
            })
        })?;
        Ok(match out {
            DEVBAY_BLOB_USABLE => BlobUse::Usable,
            DEVBAY_BLOB_RECOMPILE => BlobUse::Recompile,
            _ => BlobUse::Unsupported,
        })
    }

    /// Returns whether its programs can be stored and loaded.
    pub fn stores_programs(&self) -> bool {
        self.plugin().compiler().is_some_and(|table| table.blob.is_some() && table.load.is_some())
    }

    fn compiler(&self) -> Result<CompileTable> {
        self.plugin().compiler().ok_or_else(|| {
            let text = format!("plugin {} has no compiler for whole programs", self.plugin().name());
            Error::new(ErrorKind::UnsupportedOp, text).on_device(self.name())
        })
    }

    /// Makes a program with one of the compiler's functions. Only the plugin's description of a graph's inputs is
    /// known.
    fn make(
        self: &Arc<Self>,
        phase: Phase,
        desc: CompileDesc,
        function: impl FnOnce(&CompileTable) -> Option<MakeFn>,
    ) -> Result<Executable> {
        let table = self.compiler()?;
        let desc = CompileDesc { device: self.handle.as_ptr(), ..desc };
        let mut out = null_mut();
        self.call(phase, |_, error| {
            let make = function(&table)?;
            // SAFETY: the plugin's function with its own device; the struct, all that it names, and the place are the
            // callers' for the call.
            Some(unsafe { make(self.handle.as_ptr(), &desc, &mut out, error) })
        })?;
        let handle = NonNull::new(out)
            .ok_or_else(|| self.broken("a compiler that succeeded without a program (B9)"))?;
        let mut made = Executable {
            device: Arc::clone(self),
            handle,
            table,
            takes: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            takes_outputs: false,
        };
        let info = read_info(&self.plugin, &table, handle).map_err(|e| self.failed(e))?;
        (made.takes, made.outputs, made.takes_outputs) = (info.takes, info.outputs, info.takes_outputs);
        Ok(made)
    }
}

/// `compile`, and `load`.
type MakeFn = unsafe extern "C" fn(
    *mut abi::Device,
    *const CompileDesc,
    *mut *mut abi::Executable,
    *mut ErrorDetail,
) -> Status;

impl Plugin {
    /// Compiles a graph for a device that is not there, in the plugin's own words.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedOp`] if the plugin cannot, does not know the target, or does not take a node of the graph.
    pub fn compile_ahead(
        &self,
        graph: &Graph<'_>,
        target: &str,
        numerics: Numerics,
        label: &str,
    ) -> Result<Compiled> {
        let none = || {
            let text = format!("plugin {} does not compile for devices that are not there", self.name());
            Error::new(ErrorKind::UnsupportedOp, text)
        };
        let table = self.compiler().ok_or_else(none)?;
        let compile = table.compile_ahead.ok_or_else(none)?;
        let mut out = null_mut();
        graph.with_abi(|view| {
            let desc = CompileDesc {
                graph: view,
                numerics: numerics.code(),
                label: Str::new(label),
                target: Str::new(target),
                ..CompileDesc::empty()
            };
            self.call(Phase::Compile, |_, error| {
                // SAFETY: the plugin's function with its own instance; struct, graph and place are ours for the call.
                Some(unsafe { compile(self.instance.as_ptr(), &desc, &mut out, error) })
            })
        })?;
        let broken = |text: &str| Error::new(ErrorKind::PluginBroken, text).in_plugin(self.name());
        let handle =
            NonNull::new(out).ok_or_else(|| broken("a compiler that succeeded without a program (B9)"))?;
        let read = || {
            let ProgramInfo { takes, outputs, .. } = read_info(self, &table, handle)?;
            input_types(graph, &takes).map_err(|text| broken(&text))?;
            check_outputs(graph, &outputs).map_err(|text| broken(&text))?;
            Ok(Compiled { takes, outputs, blob: read_blob(self, &table, handle)? })
        };
        let read = read();
        self.release(|_| {
            if let Some(free) = table.executable_free {
                // SAFETY: made above, given back once, never run.
                unsafe { free(handle.as_ptr()) };
            }
        });
        read
    }
}

/// The operands that a program takes, for a graph, and its results.
struct ProgramInfo {
    takes: Vec<u32>,
    outputs: Vec<TensorType>,
    takes_outputs: bool,
}

fn read_info(plugin: &Plugin, table: &CompileTable, handle: NonNull<abi::Executable>) -> Result<ProgramInfo> {
    let mut info = ExecutableInfo::empty();
    plugin.call(Phase::Describe, |_, error| {
        let ask = table.executable_info?;
        // SAFETY: the plugin's function with its own program; the struct is ours.
        Some(unsafe { ask(handle.as_ptr(), &mut info, error) })
    })?;
    let broken = |text: String| Error::new(ErrorKind::PluginBroken, text).in_plugin(plugin.name());
    // SAFETY: the plugin keeps the list as long as the program, which was not freed.
    let takes = unsafe { read_list::<u32>(&info.inputs, "uint32_t") };
    let takes =
        takes.map_err(|error| of_list(error, |e| broken(format!("the operands of a program: {e}"))))?;
    let unknown = not_understood(info.flags, EXECUTABLE_FLAGS);
    if unknown != 0 {
        let text = format!("a program that {}", must_understand(unknown));
        return Err(Error::new(ErrorKind::UnsupportedOp, text).in_plugin(plugin.name()));
    }
    let takes_outputs = info.flags & DEVBAY_EXECUTABLE_TAKES_OUTPUTS != 0;
    Ok(ProgramInfo { takes, outputs: types(&info.outputs).map_err(broken)?, takes_outputs })
}

fn read_blob(plugin: &Plugin, table: &CompileTable, handle: NonNull<abi::Executable>) -> Result<Vec<u8>> {
    let mut list = List::EMPTY;
    plugin.call(Phase::Store, |_, error| {
        let blob = table.blob?;
        // SAFETY: the plugin's function with its own program; the place is ours.
        Some(unsafe { blob(handle.as_ptr(), &mut list, error) })
    })?;
    // Longer than lists of anything else may be: programs have constants.
    let is_possible = list.stride == 1 && !list.ptr.is_null() && list.len <= isize::MAX as u64;
    if !is_possible {
        let text = "the stored form of a program is no list of bytes";
        return Err(Error::new(ErrorKind::PluginBroken, text).in_plugin(plugin.name()));
    }
    // SAFETY: so many bytes of the plugin's, which it keeps as long as the program.
    let bytes = unsafe { std::slice::from_raw_parts(list.ptr.cast::<u8>(), list.len as usize) };
    Ok(reserve::copied(bytes, "the stored form of a program")?)
}

/// Returns the types of the values of a graph that a program takes.
fn input_types(graph: &Graph<'_>, takes: &[u32]) -> std::result::Result<Vec<TensorType>, String> {
    let ty = |&number: &u32| {
        let id = graph.values().get(number as usize).copied();
        let is_given = |id| graph.inputs().contains(&number) || graph.program().constant(id).is_some();
        let id = id.filter(|&id| is_given(id));
        let ty = id.and_then(|id| graph.program().value(id).ty.clone());
        ty.ok_or_else(|| {
            format!("a program takes value {number}, which is neither an input of its graph nor constant")
        })
    };
    takes.iter().map(ty).collect()
}

/// Checks that a program gives the outputs of its graph.
fn check_outputs(graph: &Graph<'_>, outputs: &[TensorType]) -> std::result::Result<(), String> {
    let ty = |&number: &u32| graph.program().value(graph.values()[number as usize]).ty.as_ref();
    if graph.outputs().iter().map(ty).eq(outputs.iter().map(Some)) {
        return Ok(());
    }
    Err("a program gives other types than its graph".to_owned())
}

/// Types in a plugin's list.
fn types(list: &List) -> std::result::Result<Vec<TensorType>, String> {
    // SAFETY: the plugin keeps the list as long as the program, which the callers have not freed.
    let tensors = unsafe { read_growable_list::<abi::Tensor>(list) };
    let tensors = tensors.map_err(|e| format!("the types of a program: {e}"))?;
    let ty = |tensor: &abi::Tensor| {
        if tensor.rank > 64 || (tensor.rank > 0 && tensor.shape.is_null()) {
            return Err("a type of a program without extents".to_owned());
        }
        let extents: &[i64] = match tensor.rank {
            0 => &[],
            // SAFETY: so many extents, kept as the list is.
            rank => unsafe { std::slice::from_raw_parts(tensor.shape, rank as usize) },
        };
        let extents: std::result::Result<Vec<usize>, _> =
            extents.iter().map(|&extent| usize::try_from(extent)).collect();
        let extents = extents.map_err(|_| "an extent of a program below 0".to_owned())?;
        Ok(TensorType::new(tensor.dtype, &extents))
    };
    tensors.iter().map(ty).collect()
}

impl Executable {
    /// Returns the device that it runs on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// For a graph, the values that a run takes, by their numbers there: inputs and constants.
    pub fn takes(&self) -> &[u32] {
        &self.takes
    }

    /// Returns the program as bytes that [`Device::load_graph`] takes.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedOp`] for a program that cannot be stored.
    pub fn blob(&self) -> Result<Vec<u8>> {
        read_blob(&self.device.plugin, &self.table, self.handle).map_err(|e| self.device.failed(e))
    }

    /// Returns the types of its inputs.
    pub fn inputs(&self) -> &[TensorType] {
        &self.inputs
    }

    /// Returns the types of its results.
    pub fn outputs(&self) -> &[TensorType] {
        &self.outputs
    }

    /// Enqueues a run over whole buffers, and returns the results. Their content is there when a point signalled behind
    /// it is reached. Inputs stay lent until then. `donated`, empty or one for each input, says which buffers the program
    /// may take for itself: they are only freed afterwards. A program that takes memory for its results is given some.
    ///
    /// # Errors
    /// Errors that the plugin reports; then nothing is enqueued.
    pub fn execute(&self, stream: &mut Stream, inputs: &[&Buffer], donated: &[bool]) -> Result<Vec<Buffer>> {
        debug_assert!(donated.is_empty() || donated.len() == inputs.len());
        let execute = self
            .table
            .execute
            .ok_or_else(|| self.device.broken("a compiler whose programs cannot be run"))?;
        let references: Vec<BufferRef> =
            inputs.iter().map(|buffer| buffer.reference(0, buffer.size())).collect();
        let mut results = vec![null_mut(); self.outputs.len()];
        let given: Vec<Buffer> = if self.takes_outputs {
            let types = self.outputs.iter();
            types.map(|ty| self.device.alloc_tensor(ty, DEVBAY_USAGE_TRANSIENT)).collect::<Result<_>>()?
        } else {
            Vec::new()
        };
        let places: Vec<BufferRef> = given.iter().map(|buffer| buffer.reference(0, buffer.size())).collect();
        let desc = ExecuteDesc {
            inputs: List::new(&references),
            donated: List::new(donated),
            outputs: List::new(&places),
            results: results.as_mut_ptr(),
            n_results: results.len() as u64,
            ..ExecuteDesc::empty()
        };
        self.device.check_usable()?;
        let status = {
            let _serial = self.device.plugin().serialise();
            // SAFETY: the plugin's function with its own program and stream, which one thread uses at a time (`&mut`);
            // the description and its arrays are ours for the call. A bool is a byte of 0 or 1.
            unsafe { execute(self.handle.as_ptr(), stream.handle.as_ptr(), &desc) }
        };
        stream.check(status, Phase::Execute)?;
        if self.takes_outputs {
            if results.iter().all(|handle| handle.is_null()) {
                return Ok(given);
            }
            // The run goes on, and may write to memory that was given: it is leaked.
            given.into_iter().for_each(std::mem::forget);
            return Err(self.device.broken("a run that made a result for which there was memory (B23)"));
        }
        let buffer = |(handle, ty): (*mut abi::Buffer, &TensorType)| {
            let handle = NonNull::new(handle)
                .ok_or_else(|| self.device.broken("a run that succeeded without a result (B9)"))?;
            let size = size_of_type(ty)?;
            self.device.bytes_in_use.fetch_add(size as u64, Ordering::Relaxed);
            let tensor = Some(ty.clone());
            Ok(Buffer { device: Arc::clone(&self.device), handle, base: 0, size, tensor, owner: None })
        };
        results.into_iter().zip(&self.outputs).map(buffer).collect()
    }

    /// Runs on tensors in the host's memory, and waits.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for inputs that are not those of the program; the device's error; a deadline.
    pub fn run(&self, inputs: &[&Tensor], limit: Duration) -> Result<Vec<Tensor>> {
        let found: Vec<TensorType> = inputs.iter().map(|tensor| tensor.tensor_type()).collect();
        if found != self.inputs {
            let list =
                |types: &[TensorType]| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let text = format!("inputs {}, the program takes {}", list(&found), list(&self.inputs));
            return Err(Error::new(ErrorKind::InvalidArgument, text).on_device(self.device.name()));
        }
        // The stream reads them until it is at rest.
        let kept: Vec<Tensor> = inputs.iter().map(|&tensor| tensor.clone()).collect();
        let mut buffers = Vec::with_capacity(inputs.len());
        let mut stream = self.device.create_stream("program")?;
        let run = self.enqueue(&mut stream, &kept, &mut buffers);
        if let Err(error) = stream.finish(limit) {
            let first = run.as_ref().err().cloned();
            if must_leak(&error) {
                std::mem::forget((stream, kept, buffers, run));
            } else {
                // It waits for its work, so it goes before the memory of that work.
                drop(stream);
            }
            return Err(first.unwrap_or(error));
        }
        let download = |(buffer, ty): (&Buffer, &TensorType)| {
            let size = size_of_type(ty)?;
            let bytes = buffer.read_within(size, limit)?;
            Tensor::from_storage(ty.dtype, &ty.known_shape().unwrap_or_default(), Arc::new(bytes), 0, size)
        };
        run?.iter().zip(&self.outputs).map(download).collect()
    }

    /// Enqueues uploads of the inputs, into `buffers`, and the program. Both have to stay until the stream is at rest.
    fn enqueue(
        &self,
        stream: &mut Stream,
        inputs: &[Tensor],
        buffers: &mut Vec<Buffer>,
    ) -> Result<Vec<Buffer>> {
        for tensor in inputs {
            let buffer = self.device.alloc_tensor(&tensor.tensor_type(), DEVBAY_USAGE_TRANSIENT)?;
            let bytes = tensor.bytes();
            let dst = buffer.reference(0, bytes.len());
            buffers.push(buffer);
            // SAFETY: `bytes` are as many as the range. The only caller, `run`, keeps tensors and buffers until the stream
            // is at rest or dropped, or leaks them.
            unsafe { stream.copy_in(bytes.as_ptr(), dst)? };
        }
        let references: Vec<&Buffer> = buffers.iter().collect();
        self.execute(stream, &references, &[])
    }
}

/// Extents as the ABI has them.
fn extents(ty: &TensorType) -> Result<Vec<i64>> {
    let shape = ty.known_shape().ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("an input of type {ty}, whose extents have to be known"),
        )
    })?;
    Ok(shape.into_iter().map(|extent| extent as i64).collect())
}

/// Bytes of a tensor.
fn size_of_type(ty: &TensorType) -> Result<usize> {
    let n = ty.known_shape().and_then(|shape| n_elements(&shape));
    n.and_then(|n| bytes_of(ty.dtype, n))
        .ok_or_else(|| Error::new(ErrorKind::OutOfMemory, "a result is larger than memory"))
}

impl Drop for Executable {
    fn drop(&mut self) {
        self.device.plugin.release(|_| {
            if let Some(free) = self.table.executable_free {
                // SAFETY: the compiler made the handle, and it is given back once, here; users of the program have
                // waited for its point (B9).
                unsafe { free(self.handle.as_ptr()) };
            }
        });
    }
}
