//! Programs that a device's compiler takes whole, and the table of the extension for them, made of a device's functions.

use super::export::{deref, enqueue_on, free, refused, report};
use super::memory::BufferBox;
use super::{Device, Error, Result};
use crate::abi::{
    self, BufferRef, CompileDesc, CompileTable, DType, ErrorDetail, ExecutableInfo, Growable, List, Status,
    Str, Tensor, read_growable_list, read_struct, write_struct,
};
use std::marker::PhantomData;

/// What [`Device::compile`] is asked for.
#[derive(Clone, Copy, Debug)]
pub struct CompileRequest<'a> {
    /// What the code is, one of [`Device::FORMATS`].
    pub format: &'a str,
    /// The program: text, or whatever bytes the format has.
    pub code: &'a [u8],
    /// Types of the inputs that it will be run with.
    pub inputs: &'a [ValueType],
    /// Name of the program for messages and traces; may be empty.
    pub label: &'a str,
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
    /// Bytes that the program reads, from its first on.
    pub length: usize,
    /// The program may take its memory for a result; the buffer is then only dropped.
    pub is_donated: bool,
}

/// A result of a run.
pub struct ProgramOutput<B> {
    /// The allocation.
    pub buffer: B,
    /// Bytes that may be used.
    pub size_bytes: usize,
}

/// A compiled program (B23); dropping it frees it.
pub trait Executable<D: Device>: Send + Sync {
    /// Types of its results.
    fn outputs(&self) -> &[ValueType];

    /// Enqueues a run; the results' contents are there when a point signalled behind it is reached. From many streams
    /// at once. The SDK has checked the number of inputs.
    ///
    /// # Errors
    /// Invalid for inputs that are not those of the program, as far as that is known; out of memory. Then nothing is
    /// enqueued.
    fn execute(
        &self,
        stream: &D::Stream,
        inputs: &[ProgramInput<'_, D::Buffer>],
    ) -> Result<Vec<ProgramOutput<D::Buffer>>>;
}

/// A program as its handle points to it, with its types as the host reads them.
struct ProgramBox<D: Device> {
    program: Box<dyn Executable<D>>,
    n_inputs: usize,
    outputs: Vec<Tensor>,
}

/// The types as the ABI has them; they point into the program's own list, which does not change.
fn tensors(types: &[ValueType]) -> Vec<Tensor> {
    let tensor = |ty: &ValueType| Tensor {
        dtype: ty.dtype,
        rank: ty.shape.len() as u32,
        shape: ty.shape.as_ptr(),
        ..Tensor::empty()
    };
    types.iter().map(tensor).collect()
}

/// A type as the host describes it.
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

/// A device's table.
pub(super) struct Programs<D>(PhantomData<D>);

impl<D: Device> Programs<D> {
    /// The formats as the host reads them.
    const FORMATS: &'static [Str] = &{
        let mut list = [Str::new(""); 8];
        assert!(D::FORMATS.len() <= list.len(), "a device reads at most 8 formats");
        let mut i = 0;
        while i < D::FORMATS.len() {
            list[i] = Str::new(D::FORMATS[i]);
            i += 1;
        }
        list
    };

    pub(super) const TABLE: &'static CompileTable = &CompileTable {
        struct_size: size_of::<CompileTable>() as u32,
        reserved: 0,
        formats: Some(formats::<D>),
        compile: Some(compile::<D>),
        executable_info: Some(executable_info::<D>),
        execute: Some(execute::<D>),
        executable_free: Some(executable_free::<D>),
    };
}

unsafe extern "C" fn formats<D: Device>(
    device: *mut abi::Device,
    out: *mut List,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: the host's handle of this plugin's.
        let _device: &D = unsafe { deref(device, "the device") }?;
        if out.is_null() {
            return Err(Error::invalid("the place for the list is NULL"));
        }
        // SAFETY: the host's place for a list.
        unsafe { out.write(List::new(&Programs::<D>::FORMATS[..D::FORMATS.len()])) };
        Ok(())
    };
    // SAFETY: the host's error struct.
    unsafe { report(error, body) }
}

unsafe extern "C" fn compile<D: Device>(
    device: *mut abi::Device,
    desc: *const CompileDesc,
    out: *mut *mut abi::Executable,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: the host's handle of this plugin's.
        let device: &D = unsafe { deref(device, "the device") }?;
        // SAFETY: the host's struct, alive for the call.
        let desc = unsafe { read_struct(desc) }.map_err(refused)?;
        if out.is_null()
            || (desc.code.is_null() && desc.code_bytes > 0)
            || desc.code_bytes > isize::MAX as u64
        {
            return Err(Error::invalid("a place for the program and its code are needed"));
        }
        // SAFETY: texts that the host lends for the call.
        let (format, label) = unsafe { (desc.format.get(), desc.label.get()) };
        let format = format.map_err(|e| Error::invalid(e.to_string()))?;
        let label = label.map_err(|e| Error::invalid(e.to_string()))?;
        if !D::FORMATS.contains(&format) {
            let known = D::FORMATS.join(", ");
            return Err(Error::unsupported(format!("code of format {format}, there are {known}")));
        }
        let code = match desc.code_bytes {
            0 => &[][..],
            // SAFETY: so many bytes that the host lends for the call.
            n => unsafe { std::slice::from_raw_parts(desc.code.cast::<u8>(), n as usize) },
        };
        // SAFETY: a list that the host lends for the call.
        let inputs = unsafe { read_growable_list::<Tensor>(&desc.inputs) }.map_err(refused)?;
        let inputs = inputs.iter().map(value_type).collect::<Result<Vec<_>>>()?;
        let program = device.compile(&CompileRequest { format, code, inputs: &inputs, label })?;
        let outputs = tensors(program.outputs());
        let made = Box::new(ProgramBox { program, n_inputs: inputs.len(), outputs });
        // SAFETY: the host's place for one handle.
        unsafe { out.write(Box::into_raw(made).cast()) };
        Ok(())
    };
    // SAFETY: the host's error struct.
    unsafe { report(error, body) }
}

unsafe extern "C" fn executable_info<D: Device>(
    executable: *mut abi::Executable,
    out: *mut ExecutableInfo,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: the host's handle of this plugin's.
        let made: &ProgramBox<D> = unsafe { deref(executable, "the program") }?;
        let info = ExecutableInfo { outputs: List::new(&made.outputs), ..ExecutableInfo::empty() };
        // SAFETY: the host's struct.
        unsafe { write_struct(out, &info) }.map_err(refused)
    };
    // SAFETY: the host's error struct.
    unsafe { report(error, body) }
}

unsafe extern "C" fn execute<D: Device>(
    executable: *mut abi::Executable,
    stream: *mut abi::Stream,
    inputs: *const BufferRef,
    n_inputs: u64,
    donated: *const u8,
    outputs: *mut *mut abi::Buffer,
    n_outputs: u64,
) -> Status {
    let body = |stream: &D::Stream| {
        // SAFETY: the host's handle of this plugin's.
        let made: &ProgramBox<D> = unsafe { deref(executable, "the program") }?;
        let n_known = made.n_inputs;
        if n_inputs as usize != n_known || n_outputs as usize != made.outputs.len() {
            let text = format!(
                "{n_inputs} inputs and {n_outputs} results, the program has {n_known} and {}",
                made.outputs.len()
            );
            return Err(Error::invalid(text));
        }
        if (n_inputs > 0 && inputs.is_null()) || (n_outputs > 0 && outputs.is_null()) {
            return Err(Error::invalid("the list of inputs or of results is NULL"));
        }
        let mut given = Vec::with_capacity(n_known);
        for i in 0..n_known {
            // SAFETY: an element of the host's list.
            let reference = unsafe { &*inputs.add(i) };
            // SAFETY: NULL, or a box that the host has not freed.
            let buffer: &BufferBox<D::Buffer> = unsafe { deref(reference.buffer, "the buffer of an input") }?;
            if reference.offset != 0 || reference.length > buffer.size_bytes {
                return Err(Error::invalid(format!("input {i} is no whole buffer")));
            }
            // SAFETY: NULL, or a byte for each input.
            let is_donated = !donated.is_null() && unsafe { *donated.add(i) } != 0;
            given.push(ProgramInput {
                buffer: &buffer.buffer,
                length: reference.length as usize,
                is_donated,
            });
        }
        let results = made.program.execute(stream, &given)?;
        if results.len() != made.outputs.len() {
            let text = format!("a run gave {} results of {}", results.len(), made.outputs.len());
            return Err(Error::internal(text));
        }
        for (i, result) in results.into_iter().enumerate() {
            let size_bytes = result.size_bytes as u64;
            let handle = Box::into_raw(Box::new(BufferBox { buffer: result.buffer, size_bytes }));
            // SAFETY: the host's list has a place for each result.
            unsafe { outputs.add(i).write(handle.cast()) };
        }
        Ok(())
    };
    // SAFETY: the host's handle of this plugin's.
    unsafe { enqueue_on::<D>(stream, body) }
}

unsafe extern "C" fn executable_free<D: Device>(executable: *mut abi::Executable) {
    // SAFETY: made by `compile`, given back once (B9).
    unsafe { free::<ProgramBox<D>, _>(executable) };
}
