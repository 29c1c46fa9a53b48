//! LabelEncoder and CategoryMapper: a table from labels to others, of which one side is strings.

use super::{Attrs, Site, Work, invalid, take};
use crate::values::{Element, Strings, Value, ValueType};
use devbay_core::cancel::look;
use devbay_core::tensor::{BF16, F16, F32, F64, I8, I16, I32, I64};
use devbay_core::{Result, Tensor};
use std::collections::HashMap;
use std::sync::Arc;

/// A label, so that equal ones hash alike.
#[derive(PartialEq, Eq, Hash, Debug)]
enum Label {
    Int(i64),
    /// The bits of a number: every NaN is one label, and so are both zeroes.
    Float(u64),
    Text(Arc<str>),
}

fn float(value: f64) -> Label {
    Label::Float(if value.is_nan() { f64::NAN.to_bits() } else { (value + 0.0).to_bits() })
}

/// Returns the elements of a value as labels.
fn labels(value: &Value) -> Result<Vec<Label>> {
    let tensor = match value {
        Value::Strings(strings) => {
            return Ok(strings.elements().iter().map(|text| Label::Text(Arc::clone(text))).collect());
        }
        other => other.clone().into_tensor()?,
    };
    if let Some(values) = tensor.elements::<f32>() {
        return Ok(values.iter().map(|&value| float(f64::from(value))).collect());
    }
    if let Some(values) = tensor.elements::<f64>() {
        return Ok(values.iter().map(|&value| float(value)).collect());
    }
    match tensor.to_ints()? {
        Some(values) => Ok(values.into_iter().map(Label::Int).collect()),
        None => Err(invalid(format!(
            "expected labels of integers, floats or strings, found {}",
            tensor.tensor_type()
        ))),
    }
}

/// A table of labels: the position of each key among the values.
struct Table {
    positions: HashMap<Label, usize>,
    /// The values, and behind them the default.
    values: Value,
    keys: Element,
}

impl Table {
    /// Makes a table. A key that is there twice has its last value.
    fn new(keys: &Value, values: Value, default: Value) -> Result<Self> {
        let element = |value: &Value| {
            value.ty().element().ok_or_else(|| invalid("expected labels, found another value"))
        };
        let (n_keys, n_values) =
            (keys.shape()?.iter().product::<usize>(), values.shape()?.iter().product::<usize>());
        if n_keys != n_values {
            return Err(invalid(format!(
                "expected as many values as keys, found {n_keys} keys and {n_values} values"
            )));
        }
        if element(&values)? != element(&default)? {
            let (values, default) = (element(&values)?, element(&default)?);
            return Err(invalid(format!("expected a default of the values' type {values}, found {default}")));
        }
        let flat = |value: &Value, n: usize| crate::values::layout::reshaped(value, &[n]);
        let values = crate::values::layout::joined(&[flat(&values, n_values)?, flat(&default, 1)?], 0)?;
        let positions = labels(keys)?.into_iter().enumerate().map(|(i, label)| (label, i)).collect();
        Ok(Self { positions, values, keys: element(keys)? })
    }

    /// Returns the type of its values.
    fn element(&self) -> Option<Element> {
        self.values.ty().element()
    }

    /// Replaces each element by its value, or by the default.
    fn apply(&self, value: &Value) -> Result<Value> {
        look()?;
        if value.ty().element() != Some(self.keys) {
            return Err(super::wrong(format!("expected labels of {}, found {}", self.keys, value.ty())));
        }
        let keys = labels(value)?;
        let n = self.values.shape()?[0] - 1;
        let at = keys.iter().map(|key| self.positions.get(key).copied().unwrap_or(n));
        match &self.values {
            Value::Strings(strings) => {
                let texts = at.map(|at| Arc::clone(&strings.elements()[at]));
                Ok(Strings::new(value.shape()?, texts.collect())?.into())
            }
            other => {
                let tensor = other.clone().into_tensor()?;
                let size = usize::from(tensor.dtype().bits) / 8;
                let bytes: Vec<u8> =
                    at.flat_map(|at| tensor.bytes()[at * size..(at + 1) * size].iter().copied()).collect();
                Ok(Tensor::from_bytes(tensor.dtype(), value.shape()?, &bytes)?.into())
            }
        }
    }

    fn into_work(self) -> Work {
        Box::new(move |mut operands| Ok(vec![self.apply(&take(&mut operands, 0)?)?]))
    }
}

/// Returns a list as a value `[n]`.
fn ints(values: &[i64]) -> Result<Value> {
    Ok(Tensor::from_elements(&[values.len()], values)?.into())
}

fn texts(values: &[Arc<str>]) -> Result<Value> {
    Ok(Strings::new(&[values.len()], values.to_vec())?.into())
}

/// Returns the one list of `keys_*` or `values_*` that is there.
fn list(attrs: &Attrs, prefix: &str) -> Result<Value> {
    let name = |form: &str| format!("{prefix}_{form}");
    let mut found = Vec::new();
    found.extend(attrs.ints(&name("int64s"))?.map(|values| ints(values)).transpose()?);
    found.extend(attrs.texts(&name("strings"))?.map(|values| texts(values)).transpose()?);
    if let Some(values) = attrs.floats(&name("floats"))? {
        found.push(Tensor::from_elements(&[values.len()], values)?.into());
    }
    found.extend(attrs.value(&name("tensor"))?.cloned());
    match (found.pop(), found.is_empty()) {
        (Some(list), true) => Ok(list),
        _ => Err(invalid(format!("expected one of the attributes {prefix}_*, found none or several"))),
    }
}

/// Returns the value of labels that have none: the attribute's, or that of ONNX's specification.
fn default(attrs: &Attrs, element: Option<Element>) -> Result<Value> {
    if let Some(value) = attrs.value("default_tensor")? {
        return Ok(value.clone());
    }
    match element {
        Some(Element::String) => {
            texts(&[attrs.text("default_string")?.cloned().unwrap_or_else(|| Arc::from("_Unused"))])
        }
        Some(Element::Number(I64)) => ints(&[attrs.int_or("default_int64", -1)?]),
        Some(Element::Number(F32)) => {
            Ok(Tensor::from_elements(&[1], &[attrs.float("default_float")?.copied().unwrap_or(-0.0)])?.into())
        }
        Some(Element::Number(F64)) => Ok(Tensor::from_elements(&[1], &[-0.0f64])?.into()),
        // -1 of any width.
        Some(Element::Number(dtype @ (I8 | I16 | I32))) => {
            Ok(Tensor::from_bytes(dtype, &[1], &vec![0xff; usize::from(dtype.bits) / 8])?.into())
        }
        Some(Element::Number(dtype @ (F16 | BF16))) => {
            Ok(Tensor::from_bytes(dtype, &[1], &[0, 0x80])?.into())
        }
        _ => Err(invalid("expected the attribute \"default_tensor\" for values of this type, found none")),
    }
}

/// Reads the table of a LabelEncoder.
fn table(site: &Site<'_>) -> Result<Table> {
    // Before version 2 there is one list of strings, whose positions are the other side.
    if let Some(classes) = site.attrs.texts("classes_strings")? {
        let positions: Vec<i64> = (0..classes.len() as i64).collect();
        let (names, numbers) = (texts(classes)?, ints(&positions)?);
        let (keys, values) = if site.input(0)?.element() == Some(Element::String) {
            (names, numbers)
        } else {
            (numbers, names)
        };
        let default = default(site.attrs, values.ty().element())?;
        return Table::new(&keys, values, default);
    }
    let (keys, values) = (list(site.attrs, "keys")?, list(site.attrs, "values")?);
    let default = default(site.attrs, values.ty().element())?;
    Table::new(&keys, values, default)
}

/// The values' type.
pub fn encoder_type(site: &Site<'_>) -> Result<Vec<ValueType>> {
    Ok(vec![ValueType::tensor(table(site)?.element())])
}

/// LabelEncoder.
pub fn encoder(site: &Site<'_>) -> Result<Work> {
    Ok(table(site)?.into_work())
}

/// Reads the table of a CategoryMapper, in the direction that the operand needs.
fn categories(site: &Site<'_>) -> Result<Table> {
    let missing = |name: &str| invalid(format!("expected the attribute {name:?}, found none"));
    let names = texts(site.attrs.texts("cats_strings")?.ok_or_else(|| missing("cats_strings"))?)?;
    let numbers = ints(site.attrs.ints("cats_int64s")?.ok_or_else(|| missing("cats_int64s"))?)?;
    let (keys, values) =
        if site.input(0)?.element() == Some(Element::String) { (names, numbers) } else { (numbers, names) };
    let default = default(site.attrs, values.ty().element())?;
    Table::new(&keys, values, default)
}

/// The other side's type.
pub fn mapper_type(site: &Site<'_>) -> Result<Vec<ValueType>> {
    Ok(vec![ValueType::tensor(categories(site)?.element())])
}

/// CategoryMapper.
pub fn mapper(site: &Site<'_>) -> Result<Work> {
    Ok(categories(site)?.into_work())
}
