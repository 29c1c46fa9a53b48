//! Models with values that no device holds, as graphs of the host.
//!
//! The model's graph is walked in order, with the types of all names ([`survey`]). Nodes that touch strings, sequences,
//! optionals or maps become functions of the host; what is left between them becomes segments: graphs of tensors, which the
//! ordinary importer reads ([`build`]). A few nodes are rewritten first ([`rewrite`]), so that devices do what they can.
//!
//! A model without such values is not looked at beyond [`touches`].

mod build;
mod inline;
mod rewrite;
mod survey;
pub mod values;

use super::external::External;
use super::functions::Functions;
use super::proto::attribute_proto::AttributeType;
use super::proto::type_proto::Value as Kind;
use super::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto,
};
use super::{attributes, domain, invalid, opsets, unsupported};
use crate::import::{Defaults, ModelInfo, Reading};
use crate::values::graph::HostGraph;
use crate::values::ops::{self, Attr, Attrs, When};
use devbay_core::{Result, Tensor};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// ONNX's number of the element type string.
const STRING: i32 = 8;

/// A model with values of the host, as its file has it.
pub struct Hosted {
    /// The graph and its segments.
    pub graph: HostGraph,
    /// Values of initializers that are also inputs, by name. Only those that are tensors of numbers.
    pub defaults: Vec<(String, Tensor)>,
}

/// Returns whether a model has a value that no device holds.
pub fn touches(model: &ModelProto) -> bool {
    let functions = model.functions.iter().any(|function| function.node.iter().any(node_touches));
    functions || model.graph.as_ref().is_some_and(graph_touches)
}

/// Returns whether a graph, or one nested in it, has such a value of its own.
fn graph_touches(graph: &GraphProto) -> bool {
    let declared = graph.input.iter().chain(&graph.output);
    declared.filter_map(|info| info.r#type.as_ref()).any(is_hosted_type)
        || graph.initializer.iter().any(values::is_string)
        || graph.node.iter().any(node_touches)
}

fn is_hosted_type(ty: &TypeProto) -> bool {
    match &ty.value {
        Some(Kind::TensorType(tensor)) => tensor.elem_type() == STRING,
        Some(Kind::SequenceType(_) | Kind::OptionalType(_) | Kind::MapType(_)) => true,
        _ => false,
    }
}

/// Returns whether a node makes such a value, whatever its operands are, or holds one.
fn node_touches(node: &NodeProto) -> bool {
    let op = node.op_type();
    let row = ops::find(domain(node.domain()), op);
    if row.is_some_and(|row| row.when == When::Always)
        || (op == "SequenceMap" && domain(node.domain()).is_empty())
    {
        return true;
    }
    node.attribute.iter().any(|attribute| {
        let is_text = matches!(attribute.name(), "value_string" | "value_strings") && op == "Constant";
        let is_cast = attribute.name() == "to" && op == "Cast" && attribute.i() == i64::from(STRING);
        let is_label = domain(node.domain()) == ops::ML || op == "TfIdfVectorizer";
        is_text
            || is_cast
            || (is_label && !attribute.strings.is_empty() && rewrite::holds_labels(attribute.name()))
            || attribute.t.as_deref().is_some_and(values::is_string)
            || attribute.g.as_deref().is_some_and(graph_touches)
    })
}

/// Reads a model with such values.
pub fn import(
    model: &ModelProto,
    folder: Option<&Path>,
    reading: Reading,
    defaults: Defaults,
) -> Result<Hosted> {
    let graph = model.graph.as_ref().ok_or_else(|| invalid("expected a graph in the model, found none"))?;
    let functions = Functions::new(&model.functions)?;
    functions.check(graph)?;
    let mut importer = Importer {
        model,
        functions,
        opsets: opsets(&model.opset_import)?
            .into_iter()
            .map(|(domain, version)| (domain.to_owned(), version))
            .collect(),
        folder,
        reading,
        segments: Vec::new(),
        stored: HashMap::new(),
        n_fresh: 0,
    };
    importer.main(graph, defaults)
}

/// State of an import.
struct Importer<'m> {
    model: &'m ModelProto,
    functions: Functions<'m>,
    opsets: HashMap<String, u32>,
    folder: Option<&'m Path>,
    reading: Reading,
    /// Programs of the segments so far.
    segments: Vec<devbay_core::program::Program>,
    /// Initializers of segments by message, in a form whose copies share their content.
    stored: HashMap<*const TensorProto, (Arc<TensorProto>, TensorProto)>,
    /// Number of names that were made up.
    n_fresh: usize,
}

impl<'m> Importer<'m> {
    /// Returns a name that the model does not have: `#` and a number behind one of its own.
    fn fresh(&mut self, name: &str) -> String {
        self.n_fresh += 1;
        format!("{name}#{}", self.n_fresh)
    }

    /// Returns the version of an op in force.
    fn version(&self, node: &NodeProto) -> Result<u32> {
        let domain = domain(node.domain());
        if domain == ops::OWN {
            return Ok(1);
        }
        let named = if domain.is_empty() { "ai.onnx" } else { domain };
        let opset = self.opsets.get(domain);
        let opset = *opset.ok_or_else(|| {
            invalid(format!("expected an imported opset of the domain {named:?}, found none"))
        })?;
        let since = devbay_core::program::onnx_versions::since_version(node.op_type(), opset);
        Ok(since.filter(|_| domain.is_empty()).unwrap_or(opset))
    }

    /// Reads the attributes of a node of the host. Graphs are left out.
    fn attrs(&self, node: &NodeProto) -> Result<Attrs> {
        let mut attrs = HashMap::new();
        for attribute in &node.attribute {
            attributes::resolved(attribute, None)?;
            if let Some(value) = self.attr(attribute)?
                && attrs.insert(attribute.name().to_owned(), value).is_some()
            {
                return Err(invalid(format!("the attribute {:?} is there twice", attribute.name())));
            }
        }
        Ok(Attrs(attrs))
    }

    fn attr(&self, proto: &AttributeProto) -> Result<Option<Attr>> {
        Ok(Some(match attributes::kind(proto)? {
            AttributeType::Float => Attr::Float(proto.f()),
            AttributeType::Int => Attr::Int(proto.i()),
            AttributeType::String => Attr::Text(values::text(proto.s())?),
            AttributeType::Floats => Attr::Floats(proto.floats.clone()),
            AttributeType::Ints => Attr::Ints(proto.ints.clone()),
            AttributeType::Strings => {
                Attr::Texts(proto.strings.iter().map(|bytes| values::text(bytes)).collect::<Result<_>>()?)
            }
            AttributeType::Tensor => {
                let tensor = proto.t.as_deref().ok_or_else(|| invalid("expected a tensor, found none"))?;
                Attr::Value(values::value(tensor, &mut External::new(self.folder, self.reading))?)
            }
            AttributeType::TypeProto => {
                let ty = proto.tp.as_deref().map(values::value_type).transpose()?.flatten();
                Attr::Type(ty.ok_or_else(|| invalid("expected a type, found none"))?)
            }
            AttributeType::Graph => return Ok(None),
            other => {
                return Err(unsupported(format!(
                    "attributes of type {} are not supported",
                    other.as_str_name()
                )));
            }
        }))
    }
}

/// Returns the graph in an attribute of a node.
fn body<'n>(node: &'n NodeProto, name: &str) -> Result<&'n GraphProto> {
    let attribute = node.attribute.iter().find(|attribute| attribute.name() == name);
    let graph = attribute.and_then(|attribute| attribute.g.as_deref());
    graph.ok_or_else(|| invalid(format!("expected a graph in the attribute {name:?}, found none")))
}

/// Reads what the file says about itself, and the graph.
pub fn import_all(
    model: &ModelProto,
    info: ModelInfo,
    folder: Option<&Path>,
    reading: Reading,
    defaults: Defaults,
) -> Result<crate::import::Imported> {
    let Hosted { graph, defaults } = import(model, folder, reading, defaults)?;
    let program = graph.as_program(&info.graph_name);
    Ok(crate::import::Imported { program, info, defaults, values: Some(graph) })
}

/// Returns whether a function has a node that makes such a value.
fn function_touches(function: &FunctionProto) -> bool {
    function.node.iter().any(node_touches)
}
