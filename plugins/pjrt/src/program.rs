//! Programs on a device: code as it comes, and graphs written as StableHLO.

use crate::buffer::Buffer;
use crate::client::Device as Client;
use crate::device::{PjrtBuffer, PjrtDevice, dtype_of, own};
use crate::element::ArrayType;
use crate::executable::{self, CompileOptions, Input};
use crate::hlo::{self, EmitOptions};
use crate::stored::Stored;
use crate::stream::PjrtStream;
use crate::topology::Topology;
use devbay_plugin_api::sdk::{
    CompileRequest, Error, Executable, GraphRequest, ProgramInput, ProgramOutput, Result, ValueType,
};
use std::sync::Arc;

/// Constants of more bytes are arguments, so that they are on the device once for all programs and shapes; smaller ones are
/// written out, where the compiler can calculate with them.
const MAX_INLINE_BYTES: u64 = 1024;

/// A program on its device.
pub struct Program {
    executable: executable::Executable,
    device: Client,
    /// The values of the graph that it takes, or their numbers for code.
    inputs: Vec<u32>,
    /// True if it came as code, which has no values to name.
    is_code: bool,
    outputs: Vec<ValueType>,
    /// The same for the arrays of a run, with their bytes.
    arrays: Vec<(Arc<ValueType>, usize)>,
    /// Requirements on the data. If there are any, the last array of a run, which is not among `outputs`, says whether
    /// they are met ([`hlo::Emitted::checks`]).
    checks: Arc<[String]>,
    /// Target that it was compiled for, where it can be stored.
    identity: String,
}

impl Program {
    /// Compiles code.
    ///
    /// # Errors
    /// The compiler's words; unsupported where the library does not say what a program gives.
    pub fn of_code(device: &Client, identity: &str, request: &CompileRequest<'_>) -> Result<Self> {
        let inputs = (0..request.inputs.len() as u32).collect();
        Ok(Self { is_code: true, ..Self::compile(device, identity, request.code, inputs, Vec::new())? })
    }

    /// Compiles a graph.
    ///
    /// # Errors
    /// As [`Program::of_code`]; unsupported with the node's name for one that StableHLO was not found for.
    pub fn of_graph(device: &Client, identity: &str, request: &GraphRequest<'_>) -> Result<Self> {
        let emitted = hlo::emit(&request.graph, &options(request))?;
        Self::compile(device, identity, emitted.text.as_bytes(), emitted.inputs, emitted.checks)
    }

    fn compile(
        device: &Client,
        identity: &str,
        code: &[u8],
        inputs: Vec<u32>,
        checks: Vec<String>,
    ) -> Result<Self> {
        let options = CompileOptions::for_device(device.id());
        let client = device.client();
        let executable =
            executable::Executable::compile(client, code, inputs.len(), &options).map_err(own)?;
        let mut outputs = output_types(executable.outputs())?;
        if !checks.is_empty() {
            outputs.pop();
        }
        Ok(Self::new(executable, device, (inputs, outputs, checks), identity.to_owned()))
    }

    fn new(
        executable: executable::Executable,
        device: &Client,
        (inputs, outputs, checks): (Vec<u32>, Vec<ValueType>, Vec<String>),
        identity: String,
    ) -> Self {
        let array = |ty: &ValueType| {
            let n: i64 = ty.shape.iter().product();
            (Arc::new(ty.clone()), n as usize * usize::from(ty.dtype.bits).div_ceil(8))
        };
        let arrays = outputs.iter().map(array).collect();
        Self {
            executable,
            device: device.clone(),
            inputs,
            is_code: false,
            outputs,
            arrays,
            checks: checks.into(),
            identity,
        }
    }

    /// Loads a program that was stored for this device.
    ///
    /// # Errors
    /// Unsupported for anything else; the library's words.
    pub fn load(device: &PjrtDevice, blob: &[u8]) -> Result<Self> {
        let stored = Stored::from_bytes(blob)?;
        if !device.runs(&stored.identity) {
            let text = format!("a program for {}, this is {}", stored.identity, device.identity());
            return Err(Error::unsupported(text));
        }
        let Stored { identity, inputs, outputs, checks, executable } = stored;
        let client = device.client();
        // SAFETY: the bytes name the same library and platform, and their checksum says that they are as
        // `Stored::to_bytes` wrote them, unless a program has forged both.
        let executable = unsafe { executable::Executable::load(client.client(), &executable, inputs.len()) }
            .map_err(own)?;
        if executable.n_outputs() != outputs.len() + usize::from(!checks.is_empty()) {
            return Err(Error::unsupported("a stored program that gives another number of results"));
        }
        Ok(Self::new(executable, client, (inputs, outputs, checks), identity))
    }
}

fn options<'a>(request: &'a GraphRequest<'_>) -> EmitOptions<'a> {
    EmitOptions { max_inline_bytes: MAX_INLINE_BYTES, numerics: request.numerics, donors: &request.donors }
}

/// Types of a program's results as the ABI has them.
fn output_types(outputs: Option<&[ArrayType]>) -> Result<Vec<ValueType>> {
    let outputs = outputs.ok_or_else(|| {
        Error::unsupported("a library that does not say what a program gives before it has run")
    })?;
    let value = |array: &ArrayType| {
        let dtype = dtype_of(array.element).ok_or_else(|| {
            let name = array.element.name().unwrap_or("of an unknown number");
            Error::unsupported(format!("a result of element type {name}"))
        })?;
        Ok(ValueType { dtype, shape: array.dims.clone() })
    };
    outputs.iter().map(value).collect()
}

impl Executable<PjrtDevice> for Program {
    fn outputs(&self) -> &[ValueType] {
        &self.outputs
    }

    fn inputs(&self) -> &[u32] {
        if self.is_code { &[] } else { &self.inputs }
    }

    fn blob(&self) -> Result<Vec<u8>> {
        let stored = Stored {
            identity: self.identity.clone(),
            inputs: self.inputs.clone(),
            outputs: self.outputs.clone(),
            checks: self.checks.to_vec(),
            executable: self.executable.serialize().map_err(own)?,
        };
        Ok(stored.to_bytes())
    }

    fn execute(
        &self,
        stream: &PjrtStream,
        inputs: &[ProgramInput<'_, PjrtBuffer>],
    ) -> Result<Vec<ProgramOutput<PjrtBuffer>>> {
        let arrays: Vec<Input<'_>> = inputs
            .iter()
            .map(|each| Ok(Input { buffer: each.buffer.array()?, donate: each.is_donated }))
            .collect::<Result<_>>()?;
        let mut execution = self.executable.execute(&arrays).map_err(own)?;
        stream.add(execution.done)?;
        if !self.checks.is_empty() {
            let report = execution.outputs.pop();
            let report = report.ok_or_else(|| Error::internal("a program without a report of its data"))?;
            stream.add_report(report, &self.checks)?;
        }
        let output = |(buffer, (ty, size_bytes)): (Buffer, &(Arc<ValueType>, usize))| ProgramOutput {
            buffer: PjrtBuffer::of(&self.device, ty, buffer),
            size_bytes: *size_bytes,
        };
        Ok(execution.outputs.into_iter().zip(&self.arrays).map(output).collect())
    }
}

/// A program for a device that is not there.
pub struct Ahead {
    stored: Stored,
}

impl Ahead {
    /// Compiles a graph for the devices of a topology.
    ///
    /// # Errors
    /// As [`Program::of_graph`].
    pub fn new(topology: &Topology, request: &GraphRequest<'_>) -> Result<Self> {
        let emitted = hlo::emit(&request.graph, &options(request))?;
        let made = topology.compile(emitted.text.as_bytes(), &CompileOptions::minimal()).map_err(own)?;
        let outputs = match made.outputs.as_deref() {
            Some(outputs) => {
                let reported = usize::from(!emitted.checks.is_empty());
                output_types(outputs.get(..outputs.len().saturating_sub(reported)))?
            }
            // The types of the graph, which every library that compiles it must give.
            None => graph_outputs(request)?,
        };
        let identity = topology.platform().to_owned();
        let (inputs, checks) = (emitted.inputs, emitted.checks);
        let stored = Stored { identity, inputs, outputs, checks, executable: made.bytes };
        Ok(Self { stored })
    }
}

fn graph_outputs(request: &GraphRequest<'_>) -> Result<Vec<ValueType>> {
    let graph = &request.graph;
    let ty = |&value: &u32| {
        let value = graph.values.get(value as usize);
        let tensor = &value.ok_or_else(|| Error::invalid("a result that is no value of the graph"))?.tensor;
        Ok(ValueType { dtype: tensor.dtype(), shape: tensor.shape().to_vec() })
    };
    graph.outputs.iter().map(ty).collect()
}

impl Executable<PjrtDevice> for Ahead {
    fn outputs(&self) -> &[ValueType] {
        &self.stored.outputs
    }

    fn inputs(&self) -> &[u32] {
        &self.stored.inputs
    }

    fn blob(&self) -> Result<Vec<u8>> {
        Ok(self.stored.to_bytes())
    }

    fn execute(
        &self,
        _stream: &PjrtStream,
        _inputs: &[ProgramInput<'_, PjrtBuffer>],
    ) -> Result<Vec<ProgramOutput<PjrtBuffer>>> {
        Err(Error::unsupported("a program that was compiled for a device that is not there"))
    }
}
