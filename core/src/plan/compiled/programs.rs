//! Compiled programs that are kept from one process to the next, by their content.

use super::Origin;
use super::store::ProgramStore;
use crate::device::{BlobUse, Device, Executable, Graph};
use crate::error::{Error, ErrorKind, Result};
use crate::kernel::Numerics;
use crate::plan::Env;
use crate::program::{AttrValue, ValueId};
use crate::tensor::{DType, Tensor, TensorType};
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::Arc;

/// A graph's program: loaded if it was kept and the device still runs it, else compiled, and kept.
///
/// # Errors
/// Errors that the compiler reports.
pub(in crate::plan) fn make(
    graph: &Graph<'_>,
    device: &Arc<Device>,
    donors: &[u32],
    env: &Env,
) -> Result<(Executable, Origin)> {
    let (label, numerics) = (graph.program().name.as_str(), env.options.numerics);
    let cache = device.plugin().services().config("cache_dir").filter(|_| device.stores_programs());
    let Some(store) = cache.map(|cache| ProgramStore::new(&Path::new(cache).join("programs"))) else {
        return Ok((device.compile_graph(graph, numerics, donors, label)?, Origin::Compiled));
    };
    let key = key(graph, device, donors, numerics);
    if let Some(blob) = store.get(&key) {
        if let Ok(BlobUse::Usable) = device.validate(&blob)
            && let Ok(loaded) = device.load_graph(graph, &blob, label)
        {
            return Ok((loaded, Origin::Stored));
        }
        // If anything is wrong with it, compiling says it better.
        store.forget(&key);
    }
    let made = device.compile_graph(graph, numerics, donors, label)?;
    let stored = made.blob().and_then(|blob| {
        let failed = |error: std::io::Error| Error::new(ErrorKind::Io, error.to_string()).because(error);
        store.put(&key, &blob).map_err(failed)
    });
    if let Err(error) = stored {
        // It runs all the same, and is compiled again next time.
        device.plugin().services().note(&format!("a compiled program is not kept: {}", error.text()));
    }
    Ok((made, Origin::Compiled))
}

/// Returns a name for all that a program depends on: the graph with its constants, the device's plugin and driver, and
/// the allowed numerics. Names of nodes and values are left out.
fn key(graph: &Graph<'_>, device: &Device, donors: &[u32], numerics: Numerics) -> String {
    let mut content = Content(Sha256::new());
    content.text("devbay program 1");
    let about = device.plugin().about();
    for text in [about.name.as_str(), &about.version, &device.about().driver, &device.about().id] {
        content.text(text);
    }
    content.number(numerics.code());
    content.numbers(donors);
    content.numbers(graph.inputs());
    content.numbers(graph.outputs());
    content.number(graph.values().len() as u64);
    for &id in graph.values() {
        content.value(graph, id);
    }
    content.number(graph.nodes().len() as u64);
    for node in graph.nodes() {
        content.text(&node.op.domain);
        content.text(&node.op.name);
        content.number(u64::from(node.op.version));
        for ids in [&node.inputs, &node.outputs] {
            let number = |id: &Option<ValueId>| id.and_then(|id| graph.position(id)).unwrap_or(u32::MAX);
            content.numbers(&ids.iter().map(number).collect::<Vec<_>>());
        }
        content.number(node.attrs.len() as u64);
        for (name, value) in &node.attrs {
            content.text(name);
            content.attr(value);
        }
    }
    content.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns half of a digest of a node's attributes in hexadecimal, whatever their order.
pub(in crate::plan) fn digest_of_attrs(attrs: &[(Arc<str>, AttrValue)]) -> String {
    let mut sorted: Vec<_> = attrs.iter().collect();
    sorted.sort_by(|a, b| a.0.cmp(&b.0));
    let mut content = Content(Sha256::new());
    for (name, value) in sorted {
        content.text(name);
        content.attr(value);
    }
    content.0.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Content that is taken up with the lengths of its parts, so that two are not the same by being divided differently.
struct Content(Sha256);

impl Content {
    fn number(&mut self, number: u64) {
        self.0.update(number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn numbers(&mut self, numbers: &[u32]) {
        self.number(numbers.len() as u64);
        numbers.iter().for_each(|&number| self.number(u64::from(number)));
    }

    fn dtype(&mut self, dtype: DType) {
        self.0.update(bytemuck::bytes_of(&dtype));
    }

    fn ty(&mut self, ty: &TensorType) {
        self.dtype(ty.dtype);
        let extents = ty.known_shape().unwrap_or_default();
        self.number(extents.len() as u64);
        extents.iter().for_each(|&extent| self.number(extent as u64));
    }

    fn tensor(&mut self, tensor: &Tensor) {
        self.ty(&tensor.tensor_type());
        self.bytes(tensor.bytes());
    }

    fn value(&mut self, graph: &Graph<'_>, id: ValueId) {
        let value = graph.program().value(id);
        match (&value.constant, &value.ty) {
            (Some(tensor), _) => {
                self.number(2);
                self.tensor(tensor);
            }
            (None, Some(ty)) => {
                self.number(1);
                self.ty(ty);
            }
            (None, None) => self.number(0),
        }
    }

    fn attr(&mut self, value: &AttrValue) {
        let kind = match value {
            AttrValue::Int(_) => 1,
            AttrValue::Float(_) => 2,
            AttrValue::String(_) => 3,
            AttrValue::Ints(_) => 4,
            AttrValue::Floats(_) => 5,
            AttrValue::Strings(_) => 6,
            AttrValue::Tensor(_) => 7,
        };
        self.number(kind);
        match value {
            AttrValue::Int(value) => self.number(*value as u64),
            AttrValue::Float(value) => self.number(u64::from(value.to_bits())),
            AttrValue::String(text) => self.text(text),
            AttrValue::Ints(values) => {
                self.number(values.len() as u64);
                values.iter().for_each(|&value| self.number(value as u64));
            }
            AttrValue::Floats(values) => {
                self.number(values.len() as u64);
                values.iter().for_each(|value| self.number(u64::from(value.to_bits())));
            }
            AttrValue::Strings(texts) => {
                self.number(texts.len() as u64);
                texts.iter().for_each(|text| self.text(text));
            }
            AttrValue::Tensor(tensor) => self.tensor(tensor),
        }
    }
}
