//! Inference cases as text: `check("Conv strides=[2,2]", "f32[1,3,8,8] f32[4,3,3,3]", "f32[1,4,3,3]")`.
//!
//! An operand is a type; `-` is an absent one, `?` an extent without a name, `[..]` an unknown rank. A
//! constant's content follows its type in braces: `i64[2]{1,2}`. What is expected is the types of as many
//! results as are asked for, or `error: ` and a part of the message; `#2` among the attributes asks for two
//! results where an error is expected.

use super::infer;
use crate::program::{AttrValue, DEVBAY_DOMAIN, Node, Op, ValueId, catalogue};
use crate::tensor::{BOOL, DType, Dim, F32, F64, I32, I64, Tensor, TensorType, U8, dtype_from_name};

/// Infers one node and compares.
#[track_caller]
pub fn check(op: &str, operands: &str, expected: &str) {
    let error = expected.strip_prefix("error: ");
    let mut node = parse_op(op);
    if error.is_none() {
        node.outputs =
            (0..expected.split_whitespace().count()).map(|i| Some(ValueId(100 + i as u32))).collect();
    }
    let (types, constants): (Vec<_>, Vec<_>) = operands.split_whitespace().map(operand).unzip();
    node.inputs = types.iter().enumerate().map(|(i, ty)| ty.as_ref().map(|_| ValueId(i as u32))).collect();
    let found = match infer(&node, &types, &constants) {
        Ok(types) => types.iter().map(TensorType::to_string).collect::<Vec<_>>().join(" "),
        Err(error) => format!("error: {}", error.text()),
    };
    let agree = match error {
        Some(part) => found.starts_with("error: ") && found.contains(part),
        None => found == expected,
    };
    assert!(agree, "{op} of {operands}\nexpected {expected}\n   found {found}");
}

/// A node from its name and attributes.
fn parse_op(text: &str) -> Node {
    let mut words = text.split_whitespace();
    let name = words.next().expect("an op has a name");
    let def = catalogue::find("", name)
        .or_else(|| catalogue::find(DEVBAY_DOMAIN, name))
        .unwrap_or_else(|| panic!("{name} is not in the catalogue"));
    let op = match def.domain {
        "" => Op::onnx(name, def.version),
        _ => Op::devbay(name, def.version),
    };
    let mut node = Node::new(op, Vec::new(), vec![Some(ValueId(100))]);
    for word in words {
        if let Some(n) = word.strip_prefix('#') {
            let n: u32 = n.parse().expect("a number of outputs");
            node.outputs = (0..n).map(|i| Some(ValueId(100 + i))).collect();
            continue;
        }
        let (name, value) = word.split_once('=').expect("an attribute has a value");
        node.set_attr(name, attribute(value));
    }
    node
}

/// `3`, `1.5`, `[1,2]`, `[1.5]`, `[a,b]`, `SAME_UPPER`, or a tensor with its content.
fn attribute(text: &str) -> AttrValue {
    if let Some(list) = text.strip_prefix('[') {
        let list = list.strip_suffix(']').expect("a list ends");
        if self::list(list).all(|word| word.parse::<i64>().is_ok()) {
            return AttrValue::Ints(numbers(list));
        }
        if self::list(list).all(|word| word.parse::<f32>().is_ok()) {
            return AttrValue::Floats(numbers(list));
        }
        return AttrValue::Strings(self::list(list).map(str::to_owned).collect());
    }
    if text.contains('{') {
        return AttrValue::Tensor(operand(text).1.expect("a tensor has a content"));
    }
    if let Ok(value) = text.parse() {
        return AttrValue::Int(value);
    }
    match text.parse() {
        Ok(value) => AttrValue::Float(value),
        Err(_) => AttrValue::String(text.to_owned()),
    }
}

/// A type, and its content if it is constant.
pub fn operand(text: &str) -> (Option<TensorType>, Option<Tensor>) {
    if text == "-" {
        return (None, None);
    }
    let (ty, content) = match text.split_once('{') {
        Some((ty, content)) => (ty, Some(content.strip_suffix('}').expect("a content ends"))),
        None => (text, None),
    };
    let (dtype, shape) = ty.split_once('[').expect("a type has a shape");
    let dtype = dtype_from_name(dtype).unwrap_or_else(|| panic!("{dtype} is no element type"));
    let shape = shape.strip_suffix(']').expect("a shape ends");
    let dims = (shape != "..").then(|| list(shape).map(dim).collect());
    let ty = TensorType { dtype, shape: dims };
    let tensor = content.map(|content| {
        let shape = ty.known_shape().expect("a constant has a known shape");
        constant(dtype, &shape, content)
    });
    (Some(ty), tensor)
}

fn dim(text: &str) -> Dim {
    match text.parse() {
        Ok(extent) => Dim::Known(extent),
        Err(_) if text == "?" => Dim::unknown(),
        Err(_) => Dim::Unknown(text.into()),
    }
}

fn constant(dtype: DType, shape: &[usize], content: &str) -> Tensor {
    match dtype {
        I64 => Tensor::from_elements(shape, &numbers::<i64>(content)),
        I32 => Tensor::from_elements(shape, &numbers::<i32>(content)),
        F32 => Tensor::from_elements(shape, &numbers::<f32>(content)),
        F64 => Tensor::from_elements(shape, &numbers::<f64>(content)),
        U8 => Tensor::from_elements(shape, &numbers::<u8>(content)),
        BOOL => Tensor::from_bytes(BOOL, shape, &numbers::<u8>(content)),
        // Types without a number in Rust are written as bits.
        _ => {
            let bytes: Vec<u8> = numbers::<u16>(content).into_iter().flat_map(u16::to_le_bytes).collect();
            Tensor::from_bytes(dtype, shape, &bytes)
        }
    }
    .expect("the content fits the type")
}

fn numbers<T: std::str::FromStr>(text: &str) -> Vec<T> {
    list(text)
        .map(|word| word.parse().unwrap_or_else(|_| panic!("{word} is no number of its type")))
        .collect()
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').filter(|word| !word.is_empty())
}
