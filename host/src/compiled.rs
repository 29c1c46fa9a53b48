//! Files that hold a model compiled by a device's compiler, for a present or an absent device.
//!
//! A file is in the safetensors format: the program's bytes and its constants are tensors. The metadata under `devbay` holds
//! the data needed to run it.

use crate::file::{read_regular, write_bytes};
use crate::model::Model;
use crate::session::Port;
use devbay_core::device::{Device, Executable, Graph, Plugin};
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::kernel::Numerics;
use devbay_core::plan::{Env, PlanOptions, whole};
use devbay_core::program::Program;
use devbay_core::progress::{Counter, Phase};
use devbay_core::tensor::{self, DType, Tensor, TensorType};
use devbay_plugin_api::reserve;
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The metadata's key.
const KEY: &str = "devbay";
/// The tensor that holds the program.
const BLOB: &str = "program";
/// The version of the metadata's form.
const VERSION: u32 = 1;

/// A model as a compiled program.
pub struct CompiledModel {
    about: About,
    constants: Vec<Tensor>,
    blob: Vec<u8>,
}

/// The metadata.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct About {
    version: u32,
    model: String,
    plugin: String,
    plugin_version: String,
    target: String,
    inputs: Vec<PortAbout>,
    outputs: Vec<PortAbout>,
    /// Arguments of a run, in order.
    takes: Vec<Taken>,
    /// SHA-256 of the program and then the constants, in hexadecimal digits.
    sha256: String,
}

/// An input or a result.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct PortAbout {
    name: String,
    dtype: String,
    shape: Vec<usize>,
}

/// One argument of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Taken {
    /// An input of the model, by its position.
    Input(usize),
    /// A constant of the file, by its position.
    Constant(usize),
}

/// The target that a model is compiled for.
pub enum Target<'a> {
    /// A device that is present.
    Device(&'a Arc<Device>),
    /// An absent device, by the plugin's name for it.
    Ahead(&'a Plugin, &'a str),
}

impl CompiledModel {
    /// Compiles a model for inputs of given types; constants are folded on the device `folds`, which has kernels.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedOp`], with the node, for ops that the compiler rejects; other errors of the compiler.
    pub fn new(
        model: &Model,
        types: &[TensorType],
        target: &Target<'_>,
        numerics: Numerics,
        folds: &Arc<Device>,
    ) -> Result<Self> {
        let program = whole::specialised(model.program(), types, &Env::new(folds, PlanOptions::default()))?;
        let graph = whole::graph(&program)?;
        let label = program.name.as_str();
        let counter = Counter::begin(Phase::Compile, 1);
        let (takes, blob, plugin, target) = match target {
            Target::Device(device) => {
                refuse_unclaimed(device, &graph)?;
                let made = device.compile_graph(&graph, numerics, &[], label)?;
                (made.takes().to_vec(), made.blob()?, &**device.plugin(), device.stable_id())
            }
            Target::Ahead(plugin, target) => {
                let made = plugin.compile_ahead(&graph, target, numerics, label)?;
                (made.takes, made.blob, *plugin, (*target).to_owned())
            }
        };
        counter.done(1);
        let mut constants = Vec::new();
        let take = |&number: &u32| {
            let id = graph.values()[number as usize];
            match program.constant(id) {
                Some(tensor) => {
                    constants.push(tensor.clone());
                    Ok(Taken::Constant(constants.len() - 1))
                }
                None => {
                    let at = program.main.inputs.iter().position(|&input| input == id);
                    at.map(Taken::Input).ok_or_else(|| {
                        Error::new(ErrorKind::Internal, "a program takes a value that nothing produces")
                    })
                }
            }
        };
        let takes = takes.iter().map(take).collect::<Result<_>>()?;
        let sha256 = digest(&blob, &constants);
        let about = About {
            version: VERSION,
            model: program.name.clone(),
            plugin: plugin.name().to_owned(),
            plugin_version: plugin.about().version.clone(),
            target,
            inputs: ports(&program, &program.main.inputs)?,
            outputs: ports(&program, &program.main.outputs)?,
            takes,
            sha256,
        };
        Ok(Self { about, constants, blob })
    }

    /// Writes the model to a file, replacing an existing one atomically.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]; unsupported for constants of types that the format does not have.
    pub fn write(&self, path: &Path) -> Result<()> {
        let failed = |error: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Io, format!("cannot write the program: {error}")).in_file(path.display())
        };
        let mut tensors = vec![(BLOB.to_owned(), view(Dtype::U8, vec![self.blob.len()], &self.blob)?)];
        for (i, constant) in self.constants.iter().enumerate() {
            let dtype = format_of(constant.dtype())?;
            tensors
                .push((format!("constant.{i}"), view(dtype, constant.shape().to_vec(), constant.bytes())?));
        }
        let about = serde_json::to_string(&self.about).map_err(|error| failed(&error))?;
        let metadata = HashMap::from([(KEY.to_owned(), about)]);
        // The format's own writer makes files readable only by their owner.
        let bytes = serialize(tensors, Some(metadata)).map_err(|error| failed(&error))?;
        write_bytes(path, &bytes).map_err(|error| failed(&error))
    }

    /// Reads a file that [`CompiledModel::write`] wrote.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]; [`ErrorKind::InvalidModel`] for a file that is damaged or not a compiled model.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = read_regular(path, u64::MAX).map_err(|error| {
            Error::new(ErrorKind::of_io(&error), format!("cannot read the program: {error}"))
                .in_file(path.display())
                .because(error)
        })?;
        Self::from_bytes(&bytes).map_err(|error| error.in_file(path.display()))
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let damaged =
            |text: String| Error::new(ErrorKind::InvalidModel, format!("no compiled program: {text}"));
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| damaged(error.to_string()))?;
        let file = SafeTensors::deserialize(bytes).map_err(|error| damaged(error.to_string()))?;
        let about = header.metadata().as_ref().and_then(|metadata| metadata.get(KEY));
        let about = about.ok_or_else(|| damaged("it has no metadata of devbay's".to_owned()))?;
        let about: About = serde_json::from_str(about).map_err(|error| damaged(error.to_string()))?;
        if about.version != VERSION {
            return Err(damaged(format!("form {}, this reads form {VERSION}", about.version)));
        }
        let blob = file.tensor(BLOB).map_err(|error| damaged(error.to_string()))?;
        let blob = reserve::copied(blob.data(), "a compiled program")?;
        let mut constants = Vec::new();
        for i in 0..about.takes.iter().filter(|taken| matches!(taken, Taken::Constant(_))).count() {
            let view = file.tensor(&format!("constant.{i}")).map_err(|error| damaged(error.to_string()))?;
            constants.push(Tensor::from_bytes(dtype_of(view.dtype())?, view.shape(), view.data())?);
        }
        let is_there = |taken: &Taken| match *taken {
            Taken::Input(i) => i < about.inputs.len(),
            Taken::Constant(i) => i < constants.len(),
        };
        if !about.takes.iter().all(is_there) {
            return Err(damaged("it takes a value that is not there".to_owned()));
        }
        if about.sha256 != digest(&blob, &constants) {
            return Err(damaged("its content differs from what was written".to_owned()));
        }
        Ok(Self { about, constants, blob })
    }

    /// Returns the name of the model.
    pub fn model(&self) -> &str {
        &self.about.model
    }

    /// Returns the target that it was compiled for: the plugin and its version, and the device or target.
    pub fn target(&self) -> (&str, &str, &str) {
        (&self.about.plugin, &self.about.plugin_version, &self.about.target)
    }

    /// Returns the model's inputs, in its order.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidModel`] for an unknown dtype.
    pub fn inputs(&self) -> Result<Vec<Port>> {
        self.about.inputs.iter().map(port).collect()
    }

    /// Returns the model's results, in its order.
    ///
    /// # Errors
    /// As [`CompiledModel::inputs`].
    pub fn outputs(&self) -> Result<Vec<Port>> {
        self.about.outputs.iter().map(port).collect()
    }

    /// Returns the sizes in bytes of the program and of its constants.
    pub fn size(&self) -> (usize, usize) {
        (self.blob.len(), self.constants.iter().map(|constant| constant.bytes().len()).sum())
    }

    /// Loads the model on a device.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedOp`] if it was not compiled for this kind of device.
    pub fn load<'a>(&'a self, device: &Arc<Device>) -> Result<LoadedModel<'a>> {
        let (plugin, version, target) = self.target();
        if device.plugin().name() != plugin {
            let text = format!("the program was compiled by plugin {plugin} {version} for {target}");
            return Err(Error::new(ErrorKind::UnsupportedOp, text).on_device(device.name()));
        }
        let types = |ports: Vec<Port>| ports.into_iter().filter_map(|port| port.ty).collect::<Vec<_>>();
        let (inputs, outputs) = (types(self.inputs()?), types(self.outputs()?));
        let ty = |taken: &Taken| match *taken {
            Taken::Input(i) => inputs[i].clone(),
            Taken::Constant(i) => self.constants[i].tensor_type(),
        };
        let taken: Vec<TensorType> = self.about.takes.iter().map(ty).collect();
        let executable = device.load(&self.blob, &taken, &outputs, self.model())?;
        Ok(LoadedModel { model: self, executable })
    }
}

/// A compiled model on its device.
pub struct LoadedModel<'a> {
    model: &'a CompiledModel,
    executable: Executable,
}

impl LoadedModel<'_> {
    /// Runs on inputs in the model's order, and waits.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for inputs that are not the model's; errors of the device.
    pub fn run(&self, inputs: &[&Tensor], limit: Duration) -> Result<Vec<Tensor>> {
        let expected = self.model.about.inputs.len();
        if inputs.len() != expected {
            let text = format!("{} inputs are given, the model takes {expected}", inputs.len());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        let given = |taken: &Taken| match *taken {
            Taken::Input(i) => inputs[i],
            Taken::Constant(i) => &self.model.constants[i],
        };
        let given: Vec<&Tensor> = self.model.about.takes.iter().map(given).collect();
        self.executable.run(&given, limit)
    }
}

/// Refuses a graph with nodes that a device's compiler does not take, with their names.
fn refuse_unclaimed(device: &Arc<Device>, graph: &Graph<'_>) -> Result<()> {
    let claims = device.claim(graph)?;
    let left = graph.nodes().iter().zip(claims).filter(|(_, claim)| claim.is_none());
    let left: Vec<String> = left.map(|(node, _)| node.label()).collect();
    if left.is_empty() {
        return Ok(());
    }
    const NAMED_MAX: usize = 8;
    let more =
        if left.len() > NAMED_MAX { format!(" and {} more", left.len() - NAMED_MAX) } else { String::new() };
    let named: Vec<&str> = left.iter().take(NAMED_MAX).map(String::as_str).collect();
    let text = format!("the compiler does not take {}{more}", named.join(", "));
    Err(Error::new(ErrorKind::UnsupportedOp, text).on_device(device.name()))
}

/// Computes a checksum of a file's content other than its metadata.
fn digest(blob: &[u8], constants: &[Tensor]) -> String {
    let mut digest = Sha256::new();
    digest.update(blob);
    constants.iter().for_each(|constant| digest.update(constant.bytes()));
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn ports(program: &Program, ids: &[devbay_core::program::ValueId]) -> Result<Vec<PortAbout>> {
    let about = |&id: &devbay_core::program::ValueId| {
        let value = program.value(id);
        let ty = value.ty.as_ref().and_then(|ty| Some((ty.dtype, ty.known_shape()?)));
        let (dtype, shape) = ty.ok_or_else(|| {
            Error::new(ErrorKind::UnsupportedOp, format!("the type of `{}` is not known", value.name))
        })?;
        let dtype = tensor::dtype_name(dtype);
        Ok(PortAbout { name: value.name.to_string(), dtype, shape: shape.to_vec() })
    };
    ids.iter().map(about).collect()
}

fn port(about: &PortAbout) -> Result<Port> {
    let dtype = tensor::dtype_from_name(&about.dtype).ok_or_else(|| {
        Error::new(ErrorKind::InvalidModel, format!("`{}` of unknown type {}", about.name, about.dtype))
    })?;
    Ok(Port::of_tensor(about.name.as_str().into(), Some(TensorType::new(dtype, &about.shape))))
}

/// The format's names for dtypes.
const FORMATS: &[(DType, Dtype)] = &[
    (tensor::BOOL, Dtype::BOOL),
    (tensor::U8, Dtype::U8),
    (tensor::I8, Dtype::I8),
    (tensor::U16, Dtype::U16),
    (tensor::I16, Dtype::I16),
    (tensor::U32, Dtype::U32),
    (tensor::I32, Dtype::I32),
    (tensor::U64, Dtype::U64),
    (tensor::I64, Dtype::I64),
    (tensor::F16, Dtype::F16),
    (tensor::BF16, Dtype::BF16),
    (tensor::F32, Dtype::F32),
    (tensor::F64, Dtype::F64),
];

fn format_of(dtype: DType) -> Result<Dtype> {
    let found = FORMATS.iter().find(|(own, _)| *own == dtype);
    found.map(|(_, format)| *format).ok_or_else(|| {
        let text = format!("constants of {} in a file", tensor::dtype_name(dtype));
        Error::new(ErrorKind::UnsupportedOp, text)
    })
}

fn dtype_of(format: Dtype) -> Result<DType> {
    let found = FORMATS.iter().find(|(_, known)| *known == format);
    found
        .map(|(dtype, _)| *dtype)
        .ok_or_else(|| Error::new(ErrorKind::InvalidModel, format!("a constant of unknown type {format:?}")))
}

fn view(dtype: Dtype, shape: Vec<usize>, bytes: &[u8]) -> Result<TensorView<'_>> {
    TensorView::new(dtype, shape, bytes).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
}
