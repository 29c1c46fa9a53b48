//! Programs that a device's compiler takes as a whole, and the table of their extension, built from a
//! device's functions.

use super::export::{InstanceBox, deref, enqueue_on, free, refused, report};
use super::memory::BufferBox;
use super::view::GraphView;
use super::{Device, Error, Plugin, Result};
use crate::abi::{
    self, BufferRef, CompileDesc, CompileTable, DEVBAY_BLOB_RECOMPILE, DEVBAY_BLOB_UNSUPPORTED,
    DEVBAY_BLOB_USABLE, DEVBAY_EXECUTABLE_TAKES_OUTPUTS, DType, ErrorDetail, ExecutableInfo, ExecuteDesc,
    Growable, KeyValue, List, NodeClaim, Status, Str, Tensor, read_growable_list, read_list, read_struct,
    write_struct,
};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::OnceLock;

/// Request to [`Device::compile`].
#[derive(Clone, Copy, Debug)]
pub struct CompileRequest<'a> {
    /// Format of the code, one of [`Device::FORMATS`].
    pub format: &'a str,
    /// The program: text or bytes, as the format requires.
    pub code: &'a [u8],
    /// Types of the inputs that the program will run with.
    pub inputs: &'a [ValueType],
    /// Name of the program for messages and traces; may be empty.
    pub label: &'a str,
}

/// Request to [`Device::compile_graph`].
#[derive(Clone)]
pub struct GraphRequest<'a> {
    /// The program: every node is claimed and every type is known.
    pub graph: GraphView<'a>,
    /// Permitted numerics, a sum of `DEVBAY_NUMERICS_*`.
    pub numerics: u64,
    /// Inputs of the graph whose buffers the host intends to donate at each run, as positions in its values.
    pub donors: Vec<u32>,
    /// Name of the program for messages and traces; may be empty.
    pub label: &'a str,
}

/// Cost of a claimed node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Claim {
    /// Arithmetic operations; a multiply-add counts as two.
    pub flops: u64,
    /// Bytes of its operands and results, counting each once.
    pub bytes: u64,
    /// 0, or a number shared by nodes that are taken all together or not at all.
    pub group: u32,
}

/// Usability of stored bytes on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlobUse {
    /// A program that can run unchanged.
    Usable,
    /// A program for a similar device, to be recompiled.
    Recompile,
    /// A program for another device, or damaged bytes.
    Unsupported,
}

/// Type of an input or a result of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ValueType {
    /// Element type.
    pub dtype: DType,
    /// Extents in elements, outermost first.
    pub shape: Vec<i64>,
}

/// An input of a run: a whole buffer.
pub struct ProgramInput<'a, B> {
    /// The allocation.
    pub buffer: &'a B,
    /// Bytes that the program reads, from the first byte on.
    pub length: usize,
    /// True if the program may reuse the input's memory for a result; the buffer is then only dropped.
    pub is_donated: bool,
}

/// A result of a run.
pub struct ProgramOutput<B> {
    /// The allocation.
    pub buffer: B,
    /// Usable bytes.
    pub size_bytes: usize,
}

/// A compiled program (B23); dropping it frees it.
pub trait Executable<D: Device>: Send + Sync {
    /// Returns the types of its results.
    fn outputs(&self) -> &[ValueType];

    /// Returns, for a graph, a run's operands in order, as positions in the graph's values: its used inputs,
    /// and constants passed as buffers. A loaded program returns the operands that it had when it was
    /// compiled.
    fn inputs(&self) -> &[u32] {
        &[]
    }

    /// Serialises the program as bytes that [`Device::load`] accepts.
    ///
    /// # Errors
    /// Unsupported for a program that cannot be stored.
    fn blob(&self) -> Result<Vec<u8>> {
        Err(Error::unsupported("a program that cannot be stored"))
    }

    /// Returns whether [`Executable::execute_into`] writes results to the host's memory.
    fn takes_outputs(&self) -> bool {
        false
    }

    /// Runs as [`Executable::execute`], writing results to the host's memory where it is given and to new
    /// buffers elsewhere. Returns the new buffers, in order. The SDK has checked the number of results, and
    /// that no host memory is given to a program that does not take it.
    ///
    /// # Errors
    /// As [`Executable::execute`]; invalid for memory that is too small.
    fn execute_into(
        &self,
        stream: &D::Stream,
        inputs: &[ProgramInput<'_, D::Buffer>],
        _outputs: &[Option<ProgramInput<'_, D::Buffer>>],
    ) -> Result<Vec<ProgramOutput<D::Buffer>>> {
        self.execute(stream, inputs)
    }

    /// Enqueues a run. The results' contents are valid once a point signalled after it is reached. Called
    /// from many streams at once. The SDK has checked the number of inputs.
    ///
    /// # Errors
    /// Invalid for inputs that are known not to be the program's; out of memory. Then nothing is enqueued.
    fn execute(
        &self,
        stream: &D::Stream,
        inputs: &[ProgramInput<'_, D::Buffer>],
    ) -> Result<Vec<ProgramOutput<D::Buffer>>>;
}

/// A program as its handle points to it, with its types in the ABI's form.
struct ProgramBox<D: Device> {
    program: Box<dyn Executable<D>>,
    n_inputs: usize,
    outputs: Vec<Tensor>,
    /// The stored form, once it was requested.
    blob: OnceLock<Result<Vec<u8>>>,
}

impl<D: Device> ProgramBox<D> {
    /// Creates its handle; code has `n_inputs` inputs, a graph as many as the program states.
    fn handle(program: Box<dyn Executable<D>>, n_inputs: Option<usize>) -> *mut abi::Executable {
        let outputs = tensors(program.outputs());
        let n_inputs = n_inputs.unwrap_or(program.inputs().len());
        let made = Self { program, n_inputs, outputs, blob: OnceLock::new() };
        Box::into_raw(Box::new(made)).cast()
    }
}

/// Returns the types in the ABI's form; they point into the program's own list, which does not change.
fn tensors(types: &[ValueType]) -> Vec<Tensor> {
    let tensor = |ty: &ValueType| Tensor {
        dtype: ty.dtype,
        rank: ty.shape.len() as u32,
        shape: ty.shape.as_ptr(),
        ..Tensor::empty()
    };
    types.iter().map(tensor).collect()
}

/// Reads a type of the host.
fn value_type(tensor: &Tensor) -> Result<ValueType> {
    if tensor.rank > 64 || (tensor.rank > 0 && tensor.shape.is_null()) {
        return Err(Error::invalid("the type of an input without extents"));
    }
    let shape = match tensor.rank {
        0 => Vec::new(),
        // SAFETY: so many extents, which the host lends for the call.
        rank => unsafe { std::slice::from_raw_parts(tensor.shape, rank as usize) }.to_vec(),
    };
    Ok(ValueType { dtype: tensor.dtype, shape })
}

/// A plugin's table.
pub(super) struct Programs<P>(PhantomData<P>);

impl<P: Plugin> Programs<P> {
    /// The formats in the ABI's form.
    const FORMATS: &'static [Str] = &{
        let formats = P::Device::FORMATS;
        let mut list = [Str::new(""); 8];
        assert!(formats.len() <= list.len(), "a device reads at most 8 formats");
        let mut i = 0;
        while i < formats.len() {
            list[i] = Str::new(formats[i]);
            i += 1;
        }
        list
    };

    pub(super) const TABLE: &'static CompileTable = &CompileTable {
        struct_size: size_of::<CompileTable>() as u32,
        reserved: 0,
        formats: if P::Device::FORMATS.is_empty() { None } else { Some(formats::<P>) },
        compile: Some(compile::<P::Device>),
        executable_info: Some(executable_info::<P::Device>),
        execute: Some(execute::<P::Device>),
        executable_free: Some(executable_free::<P::Device>),
        claim: if P::Device::GRAPHS { Some(claim::<P::Device>) } else { None },
        blob: if P::Device::BLOBS { Some(blob::<P::Device>) } else { None },
        validate: if P::Device::BLOBS { Some(validate::<P::Device>) } else { None },
        load: if P::Device::BLOBS { Some(load::<P::Device>) } else { None },
        compile_ahead: if P::AHEAD { Some(compile_ahead::<P>) } else { None },
    };
}

unsafe extern "C" fn formats<P: Plugin>(
    device: *mut abi::Device,
    out: *mut List,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
        let _device: &P::Device = unsafe { deref(device, "the device") }?;
        if out.is_null() {
            return Err(Error::invalid("the place for the list is NULL"));
        }
        // SAFETY: `out` is not NULL (checked), so it is the host's place for one list.
        unsafe { out.write(List::new(&Programs::<P>::FORMATS[..P::Device::FORMATS.len()])) };
        Ok(())
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report(error, body) }
}

/// A request of the host, read and checked.
struct Asked<'a> {
    desc: CompileDesc,
    label: &'a str,
    code: &'a [u8],
}

impl<'a> Asked<'a> {
    /// # Safety
    /// `desc` is NULL or the host's struct of the size that it says (B4), which lives for `'a` with everything that it names.
    unsafe fn read(desc: *const CompileDesc) -> Result<Self> {
        // SAFETY: `desc` is NULL or the host's struct (# Safety).
        let desc = unsafe { read_struct(desc) }.map_err(refused)?;
        // SAFETY: NULL, or as many bytes as the struct says, alive for `'a` (# Safety).
        let code = unsafe { bytes(desc.code, desc.code_bytes) }?;
        // SAFETY: the text lives for `'a` (# Safety).
        let label = unsafe { desc.label.get() }.map_err(|e| Error::invalid(e.to_string()))?;
        Ok(Self { desc, label, code })
    }

    /// # Safety
    /// The struct's graph and lists live for `'a`.
    unsafe fn graph(&self) -> Result<GraphRequest<'a>> {
        Ok(GraphRequest {
            // SAFETY: the struct's graph is NULL or lives for `'a` (# Safety).
            graph: unsafe { GraphView::read(self.desc.graph) }?,
            numerics: self.desc.numerics,
            // SAFETY: the struct's list of donors holds `uint32_t` (B5), and is alive (# Safety).
            donors: unsafe { read_list(&self.desc.donors, "uint32_t") }.map_err(refused)?,
            label: self.label,
        })
    }
}

/// Reads bytes that the host lends.
///
/// # Safety
/// `at` is NULL, or points to `n` bytes that are unchanged for `'a`.
unsafe fn bytes<'a>(at: *const c_void, n: u64) -> Result<&'a [u8]> {
    match n {
        0 => Ok(&[]),
        n if at.is_null() || n > isize::MAX as u64 => Err(Error::invalid("bytes that cannot be there")),
        // SAFETY: `at` is not NULL, so it points to `n` bytes that are unchanged for `'a` (# Safety).
        n => Ok(unsafe { std::slice::from_raw_parts(at.cast(), n as usize) }),
    }
}

/// Writes to the host's `out` the handle of the program that `make` creates.
///
/// # Safety
/// `out` is NULL or the host's place for one handle.
unsafe fn give<D: Device>(
    out: *mut *mut abi::Executable,
    make: impl FnOnce() -> Result<(Box<dyn Executable<D>>, Option<usize>)>,
) -> Result<()> {
    if out.is_null() {
        return Err(Error::invalid("the place for the program is NULL"));
    }
    let (program, n_inputs) = make()?;
    // SAFETY: `out` is not NULL (checked), so it is the host's place for one handle (# Safety).
    unsafe { out.write(ProgramBox::handle(program, n_inputs)) };
    Ok(())
}

unsafe extern "C" fn compile<D: Device>(
    device: *mut abi::Device,
    desc: *const CompileDesc,
    out: *mut *mut abi::Executable,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
        let device: &D = unsafe { deref(device, "the device") }?;
        // SAFETY: B4: `desc` is NULL or the host's struct, of the size that it says and alive for the call.
        let asked = unsafe { Asked::read(desc) }?;
        let make = || {
            if !asked.desc.graph.is_null() {
                // SAFETY: `asked` was read from the host's struct, whose graph and lists live for the call (B5).
                return Ok((device.compile_graph(&unsafe { asked.graph() }?)?, None));
            }
            // SAFETY: B5: the text's bytes are the host's, and unchanged for the call.
            let format = unsafe { asked.desc.format.get() }.map_err(|e| Error::invalid(e.to_string()))?;
            if !D::FORMATS.contains(&format) {
                let known = D::FORMATS.join(", ");
                return Err(Error::unsupported(format!("code of format {format}, there are {known}")));
            }
            // SAFETY: B5: the list holds the host's tensors, and lives for the call.
            let inputs = unsafe { read_growable_list::<Tensor>(&asked.desc.inputs) }.map_err(refused)?;
            let inputs = inputs.iter().map(value_type).collect::<Result<Vec<_>>>()?;
            let (code, label) = (asked.code, asked.label);
            let program = device.compile(&CompileRequest { format, code, inputs: &inputs, label })?;
            Ok((program, Some(inputs.len())))
        };
        // SAFETY: `out` is NULL or the host's place for one handle, as the header says of `compile`.
        unsafe { give::<D>(out, make) }
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report(error, body) }
}

unsafe extern "C" fn claim<D: Device>(
    device: *mut abi::Device,
    graph: *const abi::GraphView,
    claims: *mut NodeClaim,
    n_claims: u64,
    error: *mut ErrorDetail,
) -> Status {
    let body =
        || {
            // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
            let device: &D = unsafe { deref(device, "the device") }?;
            // SAFETY: `graph` is NULL or the host's struct (B4), alive for the call with all that it names.
            let graph = unsafe { GraphView::read(graph) }?;
            if n_claims != graph.nodes.len() as u64 || (claims.is_null() && n_claims > 0) {
                return Err(Error::invalid(format!("{n_claims} claims for {} nodes", graph.nodes.len())));
            }
            let found = device.claim(&graph)?;
            if found.len() != graph.nodes.len() {
                return Err(Error::internal(format!("{} claims for {n_claims} nodes", found.len())));
            }
            for (i, found) in found.into_iter().enumerate() {
                let claim = found.map_or_else(NodeClaim::default, |Claim { flops, bytes, group }| {
                    NodeClaim { is_claimed: 1, group, flops, bytes }
                });
                // SAFETY: `claims` is the host's array of `n_claims` elements, not NULL, and `i` is below `n_claims`
                // (checked).
                unsafe { claims.add(i).write(claim) };
            }
            Ok(())
        };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report(error, body) }
}

unsafe extern "C" fn blob<D: Device>(
    executable: *mut abi::Executable,
    out: *mut List,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
        let made: &ProgramBox<D> = unsafe { deref(executable, "the program") }?;
        if out.is_null() {
            return Err(Error::invalid("the place for the bytes is NULL"));
        }
        let bytes = made.blob.get_or_init(|| made.program.blob()).as_ref().map_err(Clone::clone)?;
        // SAFETY: `out` is not NULL (checked), so it is the host's place for one list.
        unsafe { out.write(List::new(bytes)) };
        Ok(())
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report(error, body) }
}

unsafe extern "C" fn validate<D: Device>(
    device: *mut abi::Device,
    blob: *const c_void,
    blob_bytes: u64,
    out: *mut u32,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
        let device: &D = unsafe { deref(device, "the device") }?;
        if out.is_null() {
            return Err(Error::invalid("the place for the answer is NULL"));
        }
        // SAFETY: `blob` is NULL or the host's `blob_bytes` bytes, unchanged for the call.
        let found = device.validate(unsafe { bytes(blob, blob_bytes) }?)?;
        let code = match found {
            BlobUse::Usable => DEVBAY_BLOB_USABLE,
            BlobUse::Recompile => DEVBAY_BLOB_RECOMPILE,
            BlobUse::Unsupported => DEVBAY_BLOB_UNSUPPORTED,
        };
        // SAFETY: `out` is not NULL (checked), so it is the host's place for the answer.
        unsafe { out.write(code) };
        Ok(())
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report(error, body) }
}

unsafe extern "C" fn load<D: Device>(
    device: *mut abi::Device,
    desc: *const CompileDesc,
    out: *mut *mut abi::Executable,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
        let device: &D = unsafe { deref(device, "the device") }?;
        // SAFETY: B4: `desc` is NULL or the host's struct, of the size that it says and alive for the call.
        let asked = unsafe { Asked::read(desc) }?;
        // SAFETY: `out` is NULL or the host's place for one handle, as the header says of `load`.
        unsafe { give::<D>(out, || Ok((device.load(asked.code, asked.label)?, None))) }
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report(error, body) }
}

unsafe extern "C" fn compile_ahead<P: Plugin>(
    instance: *mut abi::Instance,
    desc: *const CompileDesc,
    out: *mut *mut abi::Executable,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
        let instance: &InstanceBox<P> = unsafe { deref(instance, "the instance") }?;
        // SAFETY: B4: `desc` is NULL or the host's struct, of the size that it says and alive for the call.
        let asked = unsafe { Asked::read(desc) }?;
        let make = || {
            // SAFETY: B5: the text's bytes are the host's, and unchanged for the call.
            let target = unsafe { asked.desc.target.get() }.map_err(|e| Error::invalid(e.to_string()))?;
            // SAFETY: `asked` was read from the host's struct, whose graph and lists live for the call (B5).
            Ok((instance.plugin.compile_ahead(target, &unsafe { asked.graph() }?)?, None))
        };
        // SAFETY: `out` is NULL or the host's place for one handle, as the header says of `compile_ahead`.
        unsafe { give::<P::Device>(out, make) }
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report(error, body) }
}

unsafe extern "C" fn executable_info<D: Device>(
    executable: *mut abi::Executable,
    out: *mut ExecutableInfo,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
        let made: &ProgramBox<D> = unsafe { deref(executable, "the program") }?;
        let info = ExecutableInfo {
            outputs: List::new(&made.outputs),
            inputs: List::new(made.program.inputs()),
            flags: if made.program.takes_outputs() { DEVBAY_EXECUTABLE_TAKES_OUTPUTS } else { 0 },
            ..ExecutableInfo::empty()
        };
        // SAFETY: B4: `out` is NULL or the host's struct, of the size that it says and alive for the call.
        unsafe { write_struct(out, &info) }.map_err(refused)
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report(error, body) }
}

/// Returns a whole buffer that a run reads or writes.
///
/// # Safety
/// The reference's buffer is NULL, or one of this device's that the host has not freed, for `'a`.
unsafe fn whole<'a, D: Device>(
    reference: &BufferRef,
    what: &str,
    is_donated: bool,
) -> Result<ProgramInput<'a, D::Buffer>> {
    // SAFETY: the reference's buffer is NULL, or one of this device's that was not freed (# Safety).
    let buffer: &BufferBox<D::Buffer> = unsafe { deref(reference.buffer, what) }?;
    if reference.offset != 0 || reference.length > buffer.size_bytes {
        return Err(Error::invalid(format!("{what} is no whole buffer")));
    }
    Ok(ProgramInput { buffer: &buffer.buffer, length: reference.length as usize, is_donated })
}

/// Refuses settings of a run, except the host's own; none are defined yet.
fn refuse_options(options: &[KeyValue]) -> Result<()> {
    for option in options {
        // SAFETY: B5: the text's bytes are the host's, and unchanged for the call.
        let key = unsafe { option.key.get() }.map_err(refused)?;
        if !key.starts_with(crate::abi::HOST_OPTIONS) {
            return Err(Error::invalid(format!("unknown option {key} of a run, there are none")));
        }
    }
    Ok(())
}

unsafe extern "C" fn execute<D: Device>(
    executable: *mut abi::Executable,
    stream: *mut abi::Stream,
    desc: *const ExecuteDesc,
) -> Status {
    let body = |stream: &D::Stream| {
        // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
        let made: &ProgramBox<D> = unsafe { deref(executable, "the program") }?;
        // SAFETY: B4: `desc` is NULL or the host's struct, of the size that it says and alive for the call.
        let desc = unsafe { read_struct(desc) }.map_err(refused)?;
        // SAFETY: B5: the list holds references, and lives for the call.
        let inputs = unsafe { read_list::<BufferRef>(&desc.inputs, "BufferRef") }.map_err(refused)?;
        // SAFETY: B5: the list holds bytes, and lives for the call.
        let donated = unsafe { read_list::<u8>(&desc.donated, "uint8_t") }.map_err(refused)?;
        // SAFETY: B5: the list holds references, and lives for the call.
        let outputs = unsafe { read_list::<BufferRef>(&desc.outputs, "BufferRef") }.map_err(refused)?;
        // SAFETY: B5: the list holds pairs of texts, and lives for the call.
        refuse_options(&unsafe { read_list::<KeyValue>(&desc.options, "KeyValue") }.map_err(refused)?)?;
        let (n_inputs, n_results) = (made.n_inputs, made.outputs.len());
        if inputs.len() != n_inputs || desc.n_results != n_results as u64 {
            let (found, results) = (inputs.len(), desc.n_results);
            let text =
                format!("{found} inputs and {results} results, the program has {n_inputs} and {n_results}");
            return Err(Error::invalid(text));
        }
        if n_results > 0 && desc.results.is_null() {
            return Err(Error::invalid("the place for results is NULL"));
        }
        let one_each = |what: &str, found: usize, n: usize| match found {
            0 => Ok(()),
            found if found == n => Ok(()),
            found => Err(Error::invalid(format!("{found} {what} for {n}"))),
        };
        one_each("marks of donation", donated.len(), n_inputs)?;
        one_each("outputs", outputs.len(), n_results)?;
        let mut given = Vec::with_capacity(n_inputs);
        for (i, reference) in inputs.iter().enumerate() {
            let is_donated = donated.get(i).is_some_and(|&mark| mark != 0);
            // SAFETY: B9: the reference's buffer is NULL, or one of this device's that the host lends until a point
            // after the run.
            given.push(unsafe { whole::<D>(reference, "the buffer of an input", is_donated) }?);
        }
        let mut places: Vec<Option<ProgramInput<'_, D::Buffer>>> = Vec::with_capacity(n_results);
        places.resize_with(n_results, || None);
        for (place, reference) in places.iter_mut().zip(&outputs).filter(|(_, of)| !of.buffer.is_null()) {
            if !made.program.takes_outputs() {
                return Err(Error::invalid("memory for a result, of a program that takes none"));
            }
            // SAFETY: B9: the reference's buffer is one of this device's, lent until a point after the run.
            *place = Some(unsafe { whole::<D>(reference, "the buffer of a result", false) }?);
        }
        let n_made = places.iter().filter(|place| place.is_none()).count();
        let results = if n_made == n_results {
            made.program.execute(stream, &given)?
        } else {
            made.program.execute_into(stream, &given, &places)?
        };
        if results.len() != n_made {
            return Err(Error::internal(format!("a run made {} results of {n_made}", results.len())));
        }
        let mut results = results.into_iter();
        for (i, place) in places.iter().enumerate() {
            let result = if place.is_none() { results.next() } else { None };
            let handle = result.map_or(std::ptr::null_mut(), |result| {
                let size_bytes = result.size_bytes as u64;
                Box::into_raw(Box::new(BufferBox { buffer: result.buffer, size_bytes })).cast()
            });
            // SAFETY: `results` is not NULL (checked), and has `n_results` places, of which `i` is one (checked).
            unsafe { desc.results.add(i).write(handle) };
        }
        Ok(())
    };
    // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
    unsafe { enqueue_on::<D>(stream, body) }
}

unsafe extern "C" fn executable_free<D: Device>(executable: *mut abi::Executable) {
    // SAFETY: `compile`, `load` or `compile_ahead` made the handle, and the host gives it back once (B9).
    unsafe { free::<ProgramBox<D>, _>(executable) };
}
