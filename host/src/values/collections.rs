//! Sequences, optionals and maps.

use super::{Element, Strings, Value, ValueType};
use devbay_core::tensor::{F32, F64, I64};
use devbay_core::{Error, ErrorKind, Result};
use std::sync::Arc;

/// Values of one type, in order. Clones share them.
#[derive(Clone, Debug)]
pub struct Sequence {
    element: ValueType,
    values: Arc<Vec<Value>>,
}

impl Sequence {
    /// Makes a sequence of values of a type.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a value of another type, with its position.
    pub fn new(element: ValueType, values: Vec<Value>) -> Result<Self> {
        if let Some(i) = values.iter().position(|value| !element.is_of(value)) {
            let text = format!("expected elements of type {element}, found {} at {i}", values[i].ty());
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        Ok(Self { element, values: Arc::new(values) })
    }

    /// Makes a sequence whose elements are of the first one's type. An empty one takes any tensor.
    ///
    /// # Errors
    /// As [`Sequence::new`].
    pub fn of(values: Vec<Value>) -> Result<Self> {
        let element = values.first().map_or(ValueType::tensor(None), |first| first.ty().without_shape());
        Self::new(element, values)
    }

    /// Returns the type of its elements.
    pub fn element(&self) -> &ValueType {
        &self.element
    }

    /// Returns the elements.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// Changes the elements in place if nothing else shares them, else a copy. The caller keeps the type.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Vec<Value>)) {
        change(Arc::make_mut(&mut self.values));
    }
}

/// A value of a type, or none. Clones share it.
#[derive(Clone, Debug)]
pub struct Optional {
    of: ValueType,
    value: Option<Arc<Value>>,
}

impl Optional {
    /// Wraps a value.
    pub fn some(value: Value) -> Self {
        Self { of: value.ty().without_shape(), value: Some(Arc::new(value)) }
    }

    /// Makes an optional without a value.
    pub fn none(of: ValueType) -> Self {
        Self { of, value: None }
    }

    /// Returns the type of the value that it may have.
    pub fn of(&self) -> &ValueType {
        &self.of
    }

    /// Returns the value, if it has one.
    pub fn value(&self) -> Option<&Value> {
        self.value.as_deref()
    }
}

/// Keys with one element each, in the order in which they were given. Clones share them.
///
/// # Invariants
/// 1. `keys` and `values` are tensors or strings of one extent, and it is the same.
/// 2. Keys are i64 or strings, and differ.
#[derive(Clone, Debug)]
pub struct Map {
    keys: Arc<Value>,
    values: Arc<Value>,
}

impl Map {
    /// Makes a map from keys, `[n]` of i64 or strings, and elements, `[n]` of i64, f32, f64 or strings.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for other shapes or types, and for keys that are there twice.
    pub fn new(keys: Value, values: Value) -> Result<Self> {
        let (n_keys, n_values) = (keys.shape()?.to_vec(), values.shape()?.to_vec());
        if n_keys.len() != 1 || n_keys != n_values {
            return Err(invalid(format!(
                "expected a list of keys and one of as many elements, found extents {n_keys:?} and {n_values:?}"
            )));
        }
        let is_key = matches!(keys.ty().element(), Some(Element::String | Element::Number(I64)));
        let is_value =
            matches!(values.ty().element(), Some(Element::String | Element::Number(I64 | F32 | F64)));
        if !is_key || !is_value {
            return Err(invalid(format!(
                "expected keys of int64 or string and elements of int64, float, double or string, found {} and {}",
                keys.ty(),
                values.ty()
            )));
        }
        let is_repeated = match &keys {
            Value::Strings(strings) => is_repeated(strings.elements()),
            Value::Tensor(tensor) => is_repeated(tensor.elements::<i64>().unwrap_or_default()),
            _ => false,
        };
        if is_repeated {
            return Err(invalid("expected keys that differ, found one twice"));
        }
        // INVARIANT: shapes, types and keys were checked above.
        Ok(Self { keys: Arc::new(keys), values: Arc::new(values) })
    }

    /// Returns the keys, `[n]`: a tensor of i64, or strings.
    pub fn keys(&self) -> &Value {
        &self.keys
    }

    /// Returns the elements in the order of the keys, `[n]`.
    pub fn values(&self) -> &Value {
        &self.values
    }

    /// Returns the keys, if they are integers.
    pub fn int_keys(&self) -> Option<&[i64]> {
        match &*self.keys {
            Value::Tensor(tensor) => tensor.elements(),
            _ => None,
        }
    }

    /// Returns the keys, if they are texts.
    pub fn text_keys(&self) -> Option<&[Arc<str>]> {
        match &*self.keys {
            Value::Strings(strings) => Some(Strings::elements(strings)),
            _ => None,
        }
    }

    /// Returns the type of the keys.
    pub fn key_type(&self) -> Element {
        self.keys.ty().element().unwrap_or(Element::String)
    }

    /// Returns the type of the elements.
    pub fn value_type(&self) -> Element {
        self.values.ty().element().unwrap_or(Element::String)
    }
}

fn is_repeated<K: Ord>(keys: &[K]) -> bool {
    let mut sorted: Vec<&K> = keys.iter().collect();
    sorted.sort_unstable();
    sorted.windows(2).any(|pair| pair[0] == pair[1])
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, text)
}
