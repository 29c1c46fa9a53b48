//! Imports ONNX models as programs.
//!
//! A model is decoded, its functions are inlined, its graphs become regions, and each node is lifted to the op version that
//! programs hold. Unused opset domains are tolerated. Nodes of domains other than ONNX's stay as they are, because domains
//! are open to vendors.
//!
//! A model with strings, sequences, optionals or maps is divided between the host and devices ([`hosted`]).
//!
//! Refused with a typed error: opsets outside [`OPSETS`], sparse tensors, element types that devbay lacks, and violations of
//! ONNX's rules.
//!
//! The cost of a small model is limited: nesting, calls, nodes and bytes after inlining.

mod attributes;
mod external;
mod functions;
mod graph;
mod hosted;
mod lift;
mod order;
pub(super) mod proto;
mod tensors;

#[cfg(test)]
mod tests;

use super::{Defaults, Imported, ModelInfo, Reading};
use bytes::Bytes;
use devbay_core::program::onnx_versions::NEWEST_OPSET;
use devbay_core::{Error, ErrorKind, Result, Tensor};
use external::External;
use graph::Builder;
use prost::Message;
use proto::{ModelProto, NodeProto, OperatorSetIdProto, TensorProto};
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::Path;

/// Supported opsets of ONNX's own domain.
const OPSETS: RangeInclusive<i64> = 7..=NEWEST_OPSET as i64;

/// Reads a model; `folder` holds its data files.
pub(super) fn import(
    bytes: Bytes,
    folder: Option<&Path>,
    reading: Reading,
    defaults: Defaults,
) -> Result<Imported> {
    let mut model = ModelProto::decode(bytes).map_err(|cause| {
        let too_deep = cause.to_string().contains("recursion limit");
        if too_deep {
            return too_deep_error().because(cause);
        }
        invalid("expected a program's text or an ONNX model, found neither, or a damaged one").because(cause)
    })?;
    let info = ModelInfo::take(&mut model);
    if hosted::touches(&model) {
        return hosted::import_all(&model, info, folder, reading, defaults);
    }
    let graph = model.graph.as_ref().ok_or_else(|| invalid("expected a graph in the model, found none"))?;
    let opsets = opsets(&model.opset_import)?;
    let mut builder = Builder::new(&model.functions, folder, reading)?;
    // Files before version 4 had to list all initializers among the inputs, so that this says nothing about defaults.
    let defaults = if model.ir_version() < 4 { Defaults::Ignored } else { defaults };
    builder.build_main(graph, opsets, defaults)?;
    Ok(Imported { program: builder.program, info, defaults: builder.defaults, values: None })
}

/// Reads a value of a type from the form of ONNX's test data.
pub(super) fn read_value(bytes: Bytes, ty: &crate::values::ValueType) -> Result<crate::values::Value> {
    hosted::values::read_value(bytes, ty)
}

/// Writes a value in the form of ONNX's test data.
pub(super) fn write_value(value: &crate::values::Value) -> Result<Vec<u8>> {
    hosted::values::write_value(value)
}

/// Reads one tensor on its own.
pub(super) fn read_tensor(bytes: Bytes) -> Result<Tensor> {
    let proto = TensorProto::decode(bytes).map_err(|cause| {
        invalid("expected a tensor, found something else, or a damaged one").because(cause)
    })?;
    tensors::tensor(&proto, &mut External::new(None, Reading::default()))
}

/// Imported opsets by domain.
type Opsets<'m> = HashMap<&'m str, u32>;

fn opsets(imports: &[OperatorSetIdProto]) -> Result<Opsets<'_>> {
    let mut opsets = HashMap::new();
    for import in imports {
        let domain = domain(import.domain());
        let version = import.version();
        let (first, last) = (OPSETS.start(), OPSETS.end());
        if domain.is_empty() && !OPSETS.contains(&version) {
            let text = format!("expected an opset of ai.onnx from {first} to {last}, found {version}");
            return Err(Error::new(ErrorKind::UnsupportedModel, text));
        }
        let version = u32::try_from(version)
            .map_err(|_| invalid(format!("expected an opset of domain {domain:?}, found {version}")))?;
        if opsets.insert(domain, version).is_some_and(|other| other != version) {
            return Err(invalid(format!("expected one opset of domain {domain:?}, found several")));
        }
    }
    Ok(opsets)
}

/// Unifies the two names of ONNX's own domain.
pub(super) fn domain(name: &str) -> &str {
    if name == "ai.onnx" { "" } else { name }
}

/// Returns a node's name for messages, before it is a node of the program.
fn label(node: &NodeProto) -> String {
    let op = node.op_type();
    match node.output.iter().find(|name| !name.is_empty()) {
        _ if !node.name().is_empty() => format!("{} ({op})", node.name()),
        Some(output) => format!("making {output:?} ({op})"),
        None => format!("({op})"),
    }
}

/// Prefixes an error with its subject.
fn about(what: &str, error: Error) -> Error {
    let text = format!("{what}: {}", error.text());
    Error::new(error.kind(), text).in_file(&error.place().file).because(error)
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidModel, text)
}

fn unsupported(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::UnsupportedModel, text)
}

fn too_deep_error() -> Error {
    let max = devbay_core::program::verify::REGION_DEPTH_MAX;
    unsupported(format!("the model nests graphs or types too deeply, at most {max} graphs in each other"))
}
