//! Generated models, imported and compared with the program's text.

mod damage;
mod files;
mod info;
mod lifts;
mod microsoft;
mod ml;
mod random;
mod refusals;
mod rules;
mod stored;
mod values;

use super::proto::attribute_proto::AttributeType;
use super::proto::tensor_proto::DataType;
use super::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    StringStringEntryProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto, tensor_shape_proto,
    type_proto,
};
use crate::import::{Defaults, all_from_bytes, from_bytes};
use devbay_core::program::{Program, text};
use devbay_core::{ErrorKind, Result};
use prost::Message;

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// Returns a node of ONNX's own domain, or of the domain before a point.
fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    let (domain, op) = op.rsplit_once('.').unwrap_or(("", op));
    NodeProto {
        op_type: Some(op.to_owned()),
        domain: Some(domain.to_owned()),
        input: strings(inputs),
        output: strings(outputs),
        ..NodeProto::default()
    }
}

impl NodeProto {
    fn with(mut self, attribute: AttributeProto) -> Self {
        self.attribute.push(attribute);
        self
    }

    fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }
}

fn attribute(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { name: Some(name.to_owned()), r#type: Some(kind as i32), ..AttributeProto::default() }
}

fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: Some(value), ..attribute(name, AttributeType::Int) }
}

fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto { f: Some(value), ..attribute(name, AttributeType::Float) }
}

fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { ints: values.to_vec(), ..attribute(name, AttributeType::Ints) }
}

fn floats(name: &str, values: &[f32]) -> AttributeProto {
    AttributeProto { floats: values.to_vec(), ..attribute(name, AttributeType::Floats) }
}

fn string(name: &str, value: &str) -> AttributeProto {
    AttributeProto { s: Some(value.as_bytes().to_vec()), ..attribute(name, AttributeType::String) }
}

fn tensor_attribute(name: &str, value: TensorProto) -> AttributeProto {
    AttributeProto { t: Some(Box::new(value)), ..attribute(name, AttributeType::Tensor) }
}

fn graph_attribute(name: &str, value: GraphProto) -> AttributeProto {
    AttributeProto { g: Some(Box::new(value)), ..attribute(name, AttributeType::Graph) }
}

/// Returns an attribute that refers to an argument of a function call.
fn reference(name: &str, kind: AttributeType, argument: &str) -> AttributeProto {
    AttributeProto { ref_attr_name: Some(argument.to_owned()), ..attribute(name, kind) }
}

fn tensor(name: &str, data_type: DataType, dims: &[i64]) -> TensorProto {
    TensorProto {
        name: Some(name.to_owned()),
        data_type: Some(data_type as i32),
        dims: dims.to_vec(),
        ..TensorProto::default()
    }
}

fn int64s(name: &str, values: &[i64]) -> TensorProto {
    let dims = [i64::try_from(values.len()).unwrap()];
    TensorProto { int64_data: values.to_vec(), ..tensor(name, DataType::Int64, &dims) }
}

fn float32s(name: &str, values: &[f32]) -> TensorProto {
    let dims = [i64::try_from(values.len()).unwrap()];
    TensorProto { float_data: values.to_vec(), ..tensor(name, DataType::Float, &dims) }
}

/// Returns a value and its type; None is an unknown rank, a negative extent an unknown one.
fn value(name: &str, data_type: DataType, dims: Option<&[i64]>) -> ValueInfoProto {
    let extent = |&dim: &i64| tensor_shape_proto::Dimension {
        value: (dim >= 0).then_some(tensor_shape_proto::dimension::Value::DimValue(dim)),
        ..tensor_shape_proto::Dimension::default()
    };
    let tensor = type_proto::Tensor {
        elem_type: Some(data_type as i32),
        shape: dims.map(|dims| TensorShapeProto { dim: dims.iter().map(extent).collect() }),
    };
    typed(name, type_proto::Value::TensorType(tensor))
}

fn typed(name: &str, value: type_proto::Value) -> ValueInfoProto {
    let ty = TypeProto { value: Some(value), ..TypeProto::default() };
    ValueInfoProto { name: Some(name.to_owned()), r#type: Some(ty), ..ValueInfoProto::default() }
}

/// Returns a value without a type.
fn untyped(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: Some(name.to_owned()), ..ValueInfoProto::default() }
}

/// Returns a graph with an input `x: f32[2,3,4]` and these outputs.
fn graph(nodes: Vec<NodeProto>, outputs: &[&str]) -> GraphProto {
    GraphProto {
        name: Some("g".to_owned()),
        node: nodes,
        input: vec![value("x", DataType::Float, Some(&[2, 3, 4]))],
        output: outputs.iter().map(|name| untyped(name)).collect(),
        ..GraphProto::default()
    }
}

/// Returns a nested graph, which has no inputs.
fn branch(nodes: Vec<NodeProto>, outputs: &[&str]) -> GraphProto {
    GraphProto { input: Vec::new(), ..graph(nodes, outputs) }
}

fn import_of(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: Some(domain.to_owned()), version: Some(version) }
}

fn model(opset: i64, graph: GraphProto) -> ModelProto {
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![import_of("", opset)],
        graph: Some(graph),
        ..ModelProto::default()
    }
}

fn function(name: &str, inputs: &[&str], outputs: &[&str], nodes: Vec<NodeProto>) -> FunctionProto {
    FunctionProto {
        domain: Some("f".to_owned()),
        name: Some(name.to_owned()),
        input: strings(inputs),
        output: strings(outputs),
        node: nodes,
        opset_import: vec![import_of("", 17), import_of("f", 1)],
        ..FunctionProto::default()
    }
}

fn import(model: &ModelProto) -> Result<Program> {
    from_bytes(model.encode_to_vec(), None)
}

/// Expects a model to import as these statements, the last of which is `return`.
fn check(case: &str, model: &ModelProto, expected: &str) {
    let program = import(model).unwrap_or_else(|error| panic!("{case}: {error:?}"));
    let text = text::print(&program);
    assert_eq!(text::print(&text::parse(&text).unwrap()), text, "{case}");
    let mut lines: Vec<&str> = text.lines().skip(2).collect();
    if lines[0].ends_with(": f32[2,3,4]) {") {
        lines.remove(0);
    }
    lines.pop();
    let found: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
    let expected: Vec<&str> = expected.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(found, expected, "{case}: found\n{}\n", lines.join("\n"));
}

/// Expects an error of this kind with these words.
fn check_refused(case: &str, model: &ModelProto, kind: ErrorKind, expected: &str) {
    let error = import(model).expect_err(case);
    assert_eq!(error.kind(), kind, "{case}: {error:?}");
    assert!(error.to_string().contains(expected), "{case}: {error}\n expected {expected}");
}
