//! ONNX's messages of values and types as values of the host, and back.

use super::super::external::External;
use super::super::proto::tensor_proto::DataType;
use super::super::proto::type_proto::{self, Value as Kind};
use super::super::proto::{
    MapProto, OptionalProto, SequenceProto, TensorProto, TypeProto, optional_proto, sequence_proto,
};
use super::super::{invalid, tensors, unsupported};
use crate::values::{Element, Map, Optional, Sequence, Strings, Value, ValueType};
use bytes::Bytes;
use devbay_core::program::onnx_types::dtype_to_onnx;
use devbay_core::tensor::{Dim, F32, I64, n_elements};
use devbay_core::{Result, Tensor};
use devbay_plugin_api::reserve;
use prost::Message;
use std::sync::Arc;

/// Nesting of sequences and optionals at most.
const DEPTH_MAX: usize = 16;

/// Returns a text of a message.
pub fn text(bytes: &[u8]) -> Result<Arc<str>> {
    let text = str::from_utf8(bytes)
        .map_err(|cause| invalid("expected text in UTF-8, found other bytes").because(cause))?;
    Ok(Arc::from(text))
}

/// Returns whether a tensor's elements are strings.
pub fn is_string(proto: &TensorProto) -> bool {
    proto.data_type() == DataType::String as i32
}

/// Decodes a tensor, also one of strings.
pub fn value<'m>(proto: &'m TensorProto, external: &mut External<'m>) -> Result<Value> {
    if !is_string(proto) {
        return Ok(tensors::tensor(proto, external)?.into());
    }
    let shape: Option<Vec<usize>> = proto.dims.iter().map(|&extent| usize::try_from(extent).ok()).collect();
    let shape = shape.filter(|shape| n_elements(shape) == Some(proto.string_data.len()));
    let Some(shape) = shape else {
        let (dims, found) = (&proto.dims, proto.string_data.len());
        return Err(invalid(format!("expected the strings of a tensor of extents {dims:?}, found {found}")));
    };
    let texts = proto.string_data.iter().map(|bytes| text(bytes)).collect::<Result<_>>()?;
    Ok(Strings::new(&shape, texts)?.into())
}

/// Returns a type; None if the model does not say it.
pub fn value_type(proto: &TypeProto) -> Result<Option<ValueType>> {
    nested_type(proto, 0)
}

fn nested_type(proto: &TypeProto, depth: usize) -> Result<Option<ValueType>> {
    if depth > DEPTH_MAX {
        return Err(unsupported(format!("types nest too deeply, at most {DEPTH_MAX} in each other")));
    }
    let inner = |ty: &Option<Box<TypeProto>>| -> Result<ValueType> {
        let known = ty.as_deref().map(|ty| nested_type(ty, depth + 1)).transpose()?.flatten();
        Ok(known.unwrap_or(ValueType::tensor(None)))
    };
    Ok(Some(match &proto.value {
        None => return Ok(None),
        Some(Kind::TensorType(tensor)) if tensor.elem_type() == DataType::String as i32 => {
            let as_numbers =
                type_proto::Tensor { elem_type: Some(DataType::Int64 as i32), shape: tensor.shape.clone() };
            let proto = TypeProto { value: Some(Kind::TensorType(as_numbers)), ..TypeProto::default() };
            let shape = tensors::value_type(&proto)?.and_then(|ty| ty.shape);
            ValueType::Tensor { element: Some(Element::String), shape }
        }
        Some(Kind::TensorType(_)) => match tensors::value_type(proto)? {
            Some(ty) => ValueType::Tensor { element: Some(Element::Number(ty.dtype)), shape: ty.shape },
            None => return Ok(None),
        },
        Some(Kind::SequenceType(sequence)) => ValueType::sequence(inner(&sequence.elem_type)?),
        Some(Kind::OptionalType(optional)) => ValueType::optional(inner(&optional.elem_type)?),
        Some(Kind::MapType(map)) => {
            let values = inner(&map.value_type)?.element().unwrap_or(Element::Number(F32));
            ValueType::Map { keys: element(map.key_type())?, values }
        }
        Some(Kind::SparseTensorType(_)) => {
            return Err(unsupported("expected a value that devbay has, found a sparse tensor"));
        }
        Some(Kind::OpaqueType(_)) => {
            return Err(unsupported("expected a value that devbay has, found an opaque value"));
        }
    }))
}

fn element(number: i32) -> Result<Element> {
    if number == DataType::String as i32 {
        Ok(Element::String)
    } else {
        Ok(Element::Number(tensors::dtype(number)?))
    }
}

/// Returns a tensor's type as a message, without extents.
pub fn tensor_type_proto(ty: &ValueType) -> Option<TypeProto> {
    let ty = ty.as_tensor()?;
    let elem_type = i32::try_from(dtype_to_onnx(ty.dtype).ok()?).ok();
    let shape = ty
        .shape
        .map(|dims| super::super::proto::TensorShapeProto { dim: dims.into_iter().map(dim_proto).collect() });
    Some(TypeProto {
        value: Some(Kind::TensorType(type_proto::Tensor { elem_type, shape })),
        ..TypeProto::default()
    })
}

fn dim_proto(dim: Dim) -> super::super::proto::tensor_shape_proto::Dimension {
    use super::super::proto::tensor_shape_proto::{Dimension, dimension::Value as Extent};
    let value = match dim {
        Dim::Known(extent) => i64::try_from(extent).ok().map(Extent::DimValue),
        Dim::Unknown(name) if name.is_empty() => None,
        Dim::Unknown(name) => Some(Extent::DimParam(name.to_string())),
    };
    Dimension { value, ..Dimension::default() }
}

/// Reads the content of a `.pb` file of ONNX's test data as a value of a type: TensorProto, SequenceProto, OptionalProto or
/// MapProto.
///
/// # Errors
/// [`ErrorKind::InvalidModel`](devbay_core::ErrorKind::InvalidModel) for other bytes, and for a value of another type.
pub fn read_value(bytes: Bytes, ty: &ValueType) -> Result<Value> {
    let damaged = |cause: prost::DecodeError| {
        invalid("expected a value, found something else, or a damaged one").because(cause)
    };
    match ty {
        ValueType::Tensor { .. } => tensor(&TensorProto::decode(bytes).map_err(damaged)?),
        ValueType::Sequence(of) => sequence(&SequenceProto::decode(bytes).map_err(damaged)?, of, 0),
        ValueType::Optional(of) => optional(&OptionalProto::decode(bytes).map_err(damaged)?, of, 0),
        ValueType::Map { .. } => map(&MapProto::decode(bytes).map_err(damaged)?),
    }
}

fn tensor(proto: &TensorProto) -> Result<Value> {
    value(proto, &mut External::new(None, crate::import::Reading::default()))
}

fn check_depth(depth: usize) -> Result<()> {
    if depth <= DEPTH_MAX {
        Ok(())
    } else {
        Err(unsupported(format!("values nest too deeply, at most {DEPTH_MAX} in each other")))
    }
}

fn sequence(proto: &SequenceProto, of: &ValueType, depth: usize) -> Result<Value> {
    use sequence_proto::DataType as Form;
    check_depth(depth)?;
    let inner = || match of {
        ValueType::Sequence(of) | ValueType::Optional(of) => (**of).clone(),
        _ => ValueType::tensor(None),
    };
    let values = match Form::try_from(proto.elem_type()).unwrap_or(Form::Undefined) {
        Form::Tensor | Form::Undefined => {
            proto.tensor_values.iter().map(tensor).collect::<Result<Vec<_>>>()?
        }
        Form::Sequence => proto
            .sequence_values
            .iter()
            .map(|value| sequence(value, &inner(), depth + 1))
            .collect::<Result<_>>()?,
        Form::Map => proto.map_values.iter().map(map).collect::<Result<_>>()?,
        Form::Optional => proto
            .optional_values
            .iter()
            .map(|value| optional(value, &inner(), depth + 1))
            .collect::<Result<_>>()?,
        Form::SparseTensor => return Err(unsupported("sparse tensors are not supported")),
    };
    Ok(Sequence::new(of.without_shape(), values)?.into())
}

fn optional(proto: &OptionalProto, of: &ValueType, depth: usize) -> Result<Value> {
    use optional_proto::DataType as Form;
    check_depth(depth)?;
    let value = match Form::try_from(proto.elem_type()).unwrap_or(Form::Undefined) {
        Form::Undefined => None,
        Form::Tensor => proto.tensor_value.as_ref().map(tensor),
        Form::Sequence => {
            let inner =
                if let ValueType::Sequence(of) = of { (**of).clone() } else { ValueType::tensor(None) };
            proto.sequence_value.as_ref().map(|value| sequence(value, &inner, depth + 1))
        }
        Form::Map => proto.map_value.as_ref().map(map),
        Form::Optional => proto.optional_value.as_ref().map(|value| {
            let inner =
                if let ValueType::Optional(of) = of { (**of).clone() } else { ValueType::tensor(None) };
            optional(value, &inner, depth + 1)
        }),
        Form::SparseTensor => return Err(unsupported("sparse tensors are not supported")),
    };
    match value.transpose()? {
        Some(value) if !of.is_of(&value) => {
            Err(invalid(format!("expected an optional of {of}, found {}", value.ty())))
        }
        Some(value) => Ok(Optional::some(value).into()),
        None => Ok(Optional::none(of.without_shape()).into()),
    }
}

fn map(proto: &MapProto) -> Result<Value> {
    let keys: Value = if proto.key_type() == DataType::String as i32 {
        let texts: Vec<Arc<str>> =
            proto.string_keys.iter().map(|bytes| text(bytes)).collect::<Result<_>>()?;
        Strings::new(&[texts.len()], texts)?.into()
    } else {
        Tensor::from_elements(&[proto.keys.len()], &proto.keys)?.into()
    };
    let values = proto
        .values
        .as_ref()
        .map(|values| values.tensor_values.iter().map(tensor).collect::<Result<Vec<_>>>());
    let values = values.transpose()?.unwrap_or_default();
    // A tensor of all elements, or one each.
    let joined = match &values[..] {
        [one] if one.shape()?.len() == 1 => one.clone(),
        [] => Tensor::zeros(F32, &[0])?.into(),
        several => {
            let flat = several
                .iter()
                .map(|value| crate::values::layout::reshaped(value, &[1]))
                .collect::<Result<Vec<_>>>()?;
            crate::values::layout::joined(&flat, 0)?
        }
    };
    Ok(Map::new(keys, joined)?.into())
}

/// Writes a value in the form of ONNX's test data.
///
/// # Errors
/// [`ErrorKind::UnsupportedModel`](devbay_core::ErrorKind::UnsupportedModel) for an element type that ONNX does not have.
pub fn write_value(value: &Value) -> Result<Vec<u8>> {
    Ok(match value {
        Value::Tensor(_) | Value::Strings(_) => tensor_proto(value)?.encode_to_vec(),
        Value::Sequence(sequence) => sequence_proto(sequence)?.encode_to_vec(),
        Value::Optional(optional) => optional_proto(optional)?.encode_to_vec(),
        Value::Map(map) => map_proto(map)?.encode_to_vec(),
    })
}

/// Copies a list.
fn copied<T: Copy>(list: &[T]) -> Result<Vec<T>> {
    let mut copy = reserve::with_capacity(list.len(), "a message")?;
    copy.extend_from_slice(list);
    Ok(copy)
}

/// Returns a tensor or strings as a message.
pub fn tensor_proto(value: &Value) -> Result<TensorProto> {
    let dims = value.shape()?.iter().map(|&extent| extent as i64).collect();
    Ok(match value {
        Value::Strings(strings) => TensorProto {
            dims,
            data_type: Some(DataType::String as i32),
            string_data: strings
                .elements()
                .iter()
                .map(|text| copied(text.as_bytes()))
                .collect::<Result<_>>()?,
            ..TensorProto::default()
        },
        other => {
            let tensor = other.clone().into_tensor()?;
            let number = i32::try_from(dtype_to_onnx(tensor.dtype())?).ok();
            let raw = Bytes::from_owner(Raw(tensor));
            TensorProto { dims, data_type: number, raw_data: Some(raw), ..TensorProto::default() }
        }
    })
}

/// A tensor's content, shared by a message.
struct Raw(Tensor);

impl AsRef<[u8]> for Raw {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

fn sequence_proto(sequence: &Sequence) -> Result<SequenceProto> {
    use sequence_proto::DataType as Form;
    let form = match sequence.element() {
        ValueType::Tensor { .. } => Form::Tensor,
        ValueType::Sequence(_) => Form::Sequence,
        ValueType::Optional(_) => Form::Optional,
        ValueType::Map { .. } => Form::Map,
    };
    let mut proto = SequenceProto { elem_type: Some(form as i32), ..SequenceProto::default() };
    for value in sequence.values() {
        match value {
            Value::Tensor(_) | Value::Strings(_) => proto.tensor_values.push(tensor_proto(value)?),
            Value::Sequence(value) => proto.sequence_values.push(sequence_proto(value)?),
            Value::Optional(value) => proto.optional_values.push(optional_proto(value)?),
            Value::Map(value) => proto.map_values.push(map_proto(value)?),
        }
    }
    Ok(proto)
}

fn optional_proto(optional: &Optional) -> Result<OptionalProto> {
    use optional_proto::DataType as Form;
    let mut proto = OptionalProto { elem_type: Some(Form::Undefined as i32), ..OptionalProto::default() };
    let form = match optional.value() {
        None => return Ok(proto),
        Some(value @ (Value::Tensor(_) | Value::Strings(_))) => {
            proto.tensor_value = Some(tensor_proto(value)?);
            Form::Tensor
        }
        Some(Value::Sequence(value)) => {
            proto.sequence_value = Some(sequence_proto(value)?);
            Form::Sequence
        }
        Some(Value::Map(value)) => {
            proto.map_value = Some(map_proto(value)?);
            Form::Map
        }
        Some(Value::Optional(value)) => {
            proto.optional_value = Some(Box::new(optional_proto(value)?));
            Form::Optional
        }
    };
    proto.elem_type = Some(form as i32);
    Ok(proto)
}

fn map_proto(map: &Map) -> Result<MapProto> {
    let values = SequenceProto {
        elem_type: Some(sequence_proto::DataType::Tensor as i32),
        tensor_values: vec![tensor_proto(map.values())?],
        ..SequenceProto::default()
    };
    let mut proto = MapProto { values: Some(values), ..MapProto::default() };
    match (map.int_keys(), map.text_keys()) {
        (Some(keys), _) => {
            proto.key_type = Some(DataType::Int64 as i32);
            proto.keys = copied(keys)?;
        }
        (_, keys) => {
            proto.key_type = Some(DataType::String as i32);
            let bytes = keys.unwrap_or_default().iter().map(|key| copied(key.as_bytes()));
            proto.string_keys = bytes.collect::<Result<_>>()?;
        }
    }
    Ok(proto)
}

/// Returns a constant's value from the attributes of a Constant node.
pub fn constant<'m>(node: &'m super::super::proto::NodeProto, external: &mut External<'m>) -> Result<Value> {
    let missing = || invalid("expected one attribute with the constant's value, found none");
    let is_form = |name: &str| super::super::graph::CONSTANT_FORMS.contains(&name);
    let mut forms = node.attribute.iter().filter(|attribute| is_form(attribute.name()));
    let attribute = forms.next().ok_or_else(missing)?;
    if forms.next().is_some() {
        return Err(invalid("expected one attribute with the constant's value, found several"));
    }
    match attribute.name() {
        "value" => value(attribute.t.as_deref().ok_or_else(missing)?, external),
        "value_string" => Ok(Strings::new(&[], vec![text(attribute.s())?])?.into()),
        "value_strings" => {
            let texts: Vec<Arc<str>> =
                attribute.strings.iter().map(|bytes| text(bytes)).collect::<Result<_>>()?;
            Ok(Strings::new(&[texts.len()], texts)?.into())
        }
        "value_int" => Ok(Tensor::from_elements(&[], &[attribute.i()])?.into()),
        "value_ints" => Ok(Tensor::from_elements(&[attribute.ints.len()], &attribute.ints)?.into()),
        "value_float" => Ok(Tensor::from_elements(&[], &[attribute.f()])?.into()),
        "value_floats" => Ok(Tensor::from_elements(&[attribute.floats.len()], &attribute.floats)?.into()),
        other => Err(unsupported(format!("constants with a {other} are not supported"))),
    }
}

/// Returns the type of a constant, without decoding its numbers.
pub fn constant_type(node: &super::super::proto::NodeProto) -> ValueType {
    let attribute = node
        .attribute
        .iter()
        .find(|attribute| super::super::graph::CONSTANT_FORMS.contains(&attribute.name()));
    let element = match attribute.map(|attribute| (attribute.name(), attribute.t.as_deref())) {
        Some(("value", Some(tensor))) => return tensor_type(tensor),
        Some(("value_string" | "value_strings", _)) => Some(Element::String),
        Some(("value_int" | "value_ints", _)) => Some(Element::Number(I64)),
        Some(("value_float" | "value_floats", _)) => Some(Element::Number(F32)),
        _ => None,
    };
    ValueType::tensor(element)
}

/// Returns the type of a stored tensor.
pub fn tensor_type(proto: &TensorProto) -> ValueType {
    let shape: Vec<usize> = proto.dims.iter().map(|&extent| usize::try_from(extent).unwrap_or(0)).collect();
    ValueType::of_shape(element(proto.data_type()).ok(), &shape)
}
