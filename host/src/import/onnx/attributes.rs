//! Attributes of nodes.

use super::external::External;
use super::proto::attribute_proto::AttributeType;
use super::proto::{AttributeProto, GraphProto};
use super::{invalid, tensors, unsupported};
use devbay_core::Result;
use devbay_core::program::AttrValue;
use std::collections::HashMap;

/// Attributes of a function call, by the names that the function's body refers to.
pub(super) type Arguments<'m> = HashMap<&'m str, &'m AttributeProto>;

/// An attribute's form in a program.
pub(super) enum Attribute<'m> {
    /// A value.
    Value(AttrValue),
    /// A graph, which becomes a region.
    Graph(&'m GraphProto),
}

/// Resolves an attribute: returns itself, or the function argument that it refers to. None if the call does not give that
/// argument, which leaves the attribute out.
pub(super) fn resolved<'m>(
    attribute: &'m AttributeProto,
    arguments: Option<&Arguments<'m>>,
) -> Result<Option<&'m AttributeProto>> {
    let reference = attribute.ref_attr_name();
    if reference.is_empty() {
        return Ok(Some(attribute));
    }
    match arguments {
        Some(arguments) => Ok(arguments.get(reference).copied()),
        None => Err(invalid(format!(
            "the attribute {:?} refers to {reference:?}, expected such a reference in a function only",
            attribute.name()
        ))),
    }
}

/// Reads an attribute's value.
pub(super) fn value<'m>(proto: &'m AttributeProto, external: &mut External<'m>) -> Result<Attribute<'m>> {
    let value = match kind(proto)? {
        AttributeType::Float => AttrValue::Float(proto.f()),
        AttributeType::Int => AttrValue::Int(proto.i()),
        AttributeType::String => AttrValue::String(text(proto.s())?),
        AttributeType::Floats => AttrValue::Floats(proto.floats.clone()),
        AttributeType::Ints => AttrValue::Ints(proto.ints.clone()),
        AttributeType::Strings => {
            AttrValue::Strings(proto.strings.iter().map(|bytes| text(bytes)).collect::<Result<_>>()?)
        }
        AttributeType::Tensor => {
            let tensor = proto.t.as_ref().ok_or_else(|| invalid("expected a tensor, found none"))?;
            AttrValue::Tensor(tensors::tensor(tensor, external)?)
        }
        AttributeType::Graph => {
            let graph = proto.g.as_ref().ok_or_else(|| invalid("expected a graph, found none"))?;
            return Ok(Attribute::Graph(graph));
        }
        other => {
            return Err(unsupported(format!("attributes of type {} are not supported", other.as_str_name())));
        }
    };
    Ok(Attribute::Value(value))
}

/// Returns an attribute's type. The oldest files do not give it; then the field that is set decides.
pub(super) fn kind(proto: &AttributeProto) -> Result<AttributeType> {
    let number = proto.r#type.unwrap_or_default();
    let kind = AttributeType::try_from(number)
        .map_err(|_| unsupported(format!("the attribute type {number} is not known")))?;
    if kind != AttributeType::Undefined {
        return Ok(kind);
    }
    let fields = [
        (proto.f.is_some(), AttributeType::Float),
        (proto.i.is_some(), AttributeType::Int),
        (proto.s.is_some(), AttributeType::String),
        (proto.t.is_some(), AttributeType::Tensor),
        (proto.g.is_some(), AttributeType::Graph),
        (!proto.floats.is_empty(), AttributeType::Floats),
        (!proto.ints.is_empty(), AttributeType::Ints),
        (!proto.strings.is_empty(), AttributeType::Strings),
    ];
    let mut set = fields.iter().filter(|(is_set, _)| *is_set).map(|(_, kind)| *kind);
    match (set.next(), set.next()) {
        (Some(kind), None) => Ok(kind),
        _ => Err(invalid("expected an attribute with a type, or with one value")),
    }
}

fn text(bytes: &[u8]) -> Result<String> {
    let text = str::from_utf8(bytes).map_err(|cause| unsupported("expected text in UTF-8").because(cause))?;
    Ok(text.to_owned())
}
