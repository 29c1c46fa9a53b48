//! Programs that a device's compiler takes whole (B23).

use super::{Buffer, Device, Stream};
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::{Tensor, TensorType, bytes_of, n_elements};
use devbay_plugin_api::abi::{
    self, BufferRef, CompileDesc, CompileTable, DEVBAY_USAGE_TRANSIENT, ExecutableInfo, Growable, List, Str,
    read_growable_list, read_list,
};
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
    inputs: Vec<TensorType>,
    outputs: Vec<TensorType>,
}

// SAFETY: the plugin takes a program's calls from any thread, which the table says.
unsafe impl Send for Executable {}
// SAFETY: as above, several at once.
unsafe impl Sync for Executable {}

impl Device {
    /// The formats of programs that its compiler reads; none if it has no compiler.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn formats(&self) -> Result<Vec<String>> {
        let Some(table) = self.plugin().compiler() else { return Ok(Vec::new()) };
        let mut list = List::EMPTY;
        self.call("list of formats", |_, error| {
            let formats = table.formats?;
            // SAFETY: the plugin's function with its own device; the place is ours for the call.
            Some(unsafe { formats(self.handle.as_ptr(), &mut list, error) })
        })?;
        // SAFETY: the plugin's list of texts, which it keeps.
        let texts = unsafe { read_list::<Str>(&list, "Str") };
        let texts = texts.map_err(|e| self.broken(&format!("the list of formats: {e}")))?;
        // SAFETY: as above.
        let text = |text: &Str| unsafe { text.get() }.map(str::to_owned);
        let texts: std::result::Result<Vec<String>, _> = texts.iter().map(text).collect();
        texts.map_err(|e| self.broken(&format!("the name of a format: {e}")))
    }

    /// Compiles a program of a format, one of [`Device::formats`], to be run with inputs of these types, whose extents are
    /// known; `label` names it in messages.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedOp`] if the device has no compiler, or it does not read the format; what the compiler says.
    pub fn compile(
        self: &Arc<Self>,
        format: &str,
        code: &[u8],
        inputs: &[TensorType],
        label: &str,
    ) -> Result<Executable> {
        let table = self.plugin().compiler().ok_or_else(|| {
            let text = format!("plugin {} has no compiler for whole programs", self.plugin().name());
            Error::new(ErrorKind::UnsupportedOp, text).on_device(self.name())
        })?;
        let shapes: Vec<Vec<i64>> = inputs.iter().map(extents).collect::<Result<_>>()?;
        let tensor = |(ty, shape): (&TensorType, &Vec<i64>)| abi::Tensor {
            dtype: ty.dtype,
            rank: shape.len() as u32,
            shape: shape.as_ptr(),
            ..abi::Tensor::empty()
        };
        let tensors: Vec<abi::Tensor> = inputs.iter().zip(&shapes).map(tensor).collect();
        let desc = CompileDesc {
            device: self.handle.as_ptr(),
            format: Str::new(format),
            code: code.as_ptr().cast::<c_void>(),
            code_bytes: code.len() as u64,
            inputs: List::new(&tensors),
            label: Str::new(label),
            ..CompileDesc::empty()
        };
        let mut out = null_mut();
        self.call("compiler", |_, error| {
            let compile = table.compile?;
            // SAFETY: the plugin's function with its own device; struct, code and place are ours for the call.
            Some(unsafe { compile(self.handle.as_ptr(), &desc, &mut out, error) })
        })?;
        let handle =
            NonNull::new(out).ok_or_else(|| self.broken("compile succeeded without a program (B9)"))?;
        let mut made = Executable {
            device: Arc::clone(self),
            handle,
            table,
            inputs: inputs.to_vec(),
            outputs: Vec::new(),
        };
        made.read_info()?;
        Ok(made)
    }
}

impl Executable {
    fn read_info(&mut self) -> Result<()> {
        let mut info = ExecutableInfo::empty();
        let table = self.table;
        self.device.call("description of programs", |_, error| {
            let ask = table.executable_info?;
            // SAFETY: the plugin's function with its own program; the struct is ours.
            Some(unsafe { ask(self.handle.as_ptr(), &mut info, error) })
        })?;
        self.outputs = self.types(&info.outputs)?;
        Ok(())
    }

    fn types(&self, list: &List) -> Result<Vec<TensorType>> {
        let broken = |what: &str| self.device.broken(what);
        // SAFETY: the plugin's list, which it keeps as long as the program.
        let tensors = unsafe { read_growable_list::<abi::Tensor>(list) };
        let tensors = tensors.map_err(|e| broken(&format!("the types of a program: {e}")))?;
        let ty = |tensor: &abi::Tensor| {
            if tensor.rank > 64 || (tensor.rank > 0 && tensor.shape.is_null()) {
                return Err(broken("a type of a program without extents"));
            }
            let extents: &[i64] = match tensor.rank {
                0 => &[],
                // SAFETY: so many extents, kept as the list is.
                rank => unsafe { std::slice::from_raw_parts(tensor.shape, rank as usize) },
            };
            let extents: std::result::Result<Vec<usize>, _> =
                extents.iter().map(|&extent| usize::try_from(extent)).collect();
            let extents = extents.map_err(|_| broken("an extent of a program below 0"))?;
            Ok(TensorType::new(tensor.dtype, &extents))
        };
        tensors.iter().map(ty).collect()
    }

    /// The device that it runs on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Types of its inputs.
    pub fn inputs(&self) -> &[TensorType] {
        &self.inputs
    }

    /// Types of its results.
    pub fn outputs(&self) -> &[TensorType] {
        &self.outputs
    }

    /// Enqueues a run over whole buffers, and gives the results: what they hold is there when a point signalled behind
    /// it is reached. Inputs stay lent until then.
    ///
    /// # Errors
    /// What the plugin says; then nothing is enqueued.
    pub fn execute(&self, stream: &mut Stream, inputs: &[&Buffer]) -> Result<Vec<Buffer>> {
        let execute = self
            .table
            .execute
            .ok_or_else(|| self.device.broken("a compiler whose programs cannot be run"))?;
        let references: Vec<BufferRef> =
            inputs.iter().map(|buffer| buffer.reference(0, buffer.size())).collect();
        let mut results = vec![null_mut(); self.outputs.len()];
        self.device.check_usable()?;
        let status = {
            let _serial = self.device.plugin().serialise();
            // SAFETY: the plugin's function with its own program and stream, which one thread uses at a time (`&mut`);
            // the arrays are ours for the call, as long as they say.
            unsafe {
                execute(
                    self.handle.as_ptr(),
                    stream.handle.as_ptr(),
                    references.as_ptr(),
                    references.len() as u64,
                    std::ptr::null(),
                    results.as_mut_ptr(),
                    results.len() as u64,
                )
            }
        };
        stream.check(status, "execute")?;
        let buffer = |(handle, ty): (*mut abi::Buffer, &TensorType)| {
            let handle = NonNull::new(handle)
                .ok_or_else(|| self.device.broken("a run that succeeded without a result (B9)"))?;
            let size = size_of_type(ty)?;
            self.device.bytes_in_use.fetch_add(size as u64, Ordering::Relaxed);
            Ok(Buffer { device: Arc::clone(&self.device), handle, base: 0, size, owner: None })
        };
        results.into_iter().zip(&self.outputs).map(buffer).collect()
    }

    /// Runs on tensors in the host's memory, and waits.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for inputs that are not those of the program; what the device says; a deadline.
    pub fn run(&self, inputs: &[&Tensor], limit: Duration) -> Result<Vec<Tensor>> {
        let found: Vec<TensorType> = inputs.iter().map(|tensor| tensor.tensor_type()).collect();
        if found != self.inputs {
            let list =
                |types: &[TensorType]| types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let text = format!("inputs {}, the program takes {}", list(&found), list(&self.inputs));
            return Err(Error::new(ErrorKind::InvalidArgument, text).on_device(self.device.name()));
        }
        let mut stream = self.device.create_stream("program")?;
        let mut buffers = Vec::with_capacity(inputs.len());
        for tensor in inputs {
            let buffer = self.device.alloc_tensor(&tensor.tensor_type(), DEVBAY_USAGE_TRANSIENT)?;
            let bytes = tensor.bytes();
            // SAFETY: so many bytes, which stay until the stream has been waited for, below.
            unsafe { stream.copy_in(bytes.as_ptr(), buffer.reference(0, bytes.len()))? };
            buffers.push(buffer);
        }
        let references: Vec<&Buffer> = buffers.iter().collect();
        let run = self.execute(&mut stream, &references);
        // Whatever was enqueued is over before its memory goes.
        let results = match run {
            Ok(results) => results,
            Err(error) => {
                stream.finish(limit)?;
                return Err(error);
            }
        };
        stream.finish(limit)?;
        let mut tensors = Vec::with_capacity(results.len());
        for (buffer, ty) in results.iter().zip(&self.outputs) {
            let mut bytes = vec![0u8; size_of_type(ty)?];
            // SAFETY: so many bytes, which stay until the stream has been waited for.
            unsafe { stream.copy_out(buffer.reference(0, bytes.len()), bytes.as_mut_ptr())? };
            stream.finish(limit)?;
            let tensor = Tensor::from_bytes(ty.dtype, &ty.known_shape().unwrap_or_default(), &bytes)?;
            tensors.push(tensor);
        }
        Ok(tensors)
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
                // SAFETY: made by `compile`, given back once; whoever ran it has waited for its point (B9).
                unsafe { free(self.handle.as_ptr()) };
            }
        });
    }
}
