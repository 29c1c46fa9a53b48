//! Values of the host: tensors of numbers, and the values that no device holds.
//!
//! Strings, sequences, optionals and maps live in host memory and are shared by reference. Devices, plans and plugins know
//! tensors of numbers only. A model with other values is a [`graph::Graph`]: the host runs the nodes that touch them, and
//! ordinary sessions run the parts in between (`docs/decisions/0027-host-values.md`).

#![deny(unsafe_code)]

mod collections;
mod control;
pub(crate) mod graph;
pub(crate) mod layout;
pub mod ops;
mod run;
pub(crate) mod session;
mod strings;
mod types;

pub use collections::{Map, Optional, Sequence};
pub use strings::Strings;
pub use types::{Element, ValueType};

use devbay_core::{Error, ErrorKind, Result, Tensor};

/// A value that a model takes or returns. Clones share their content.
///
/// ```
/// use devbay_host::{Strings, Value};
///
/// # fn main() -> devbay_host::Result<()> {
/// let words = Value::from(Strings::from_texts(&[2], &["good", "day"])?);
/// assert_eq!(words.ty().to_string(), "tensor(string)");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub enum Value {
    /// Numbers or truth values, the only values that devices hold.
    Tensor(Tensor),
    /// Texts with a shape.
    Strings(Strings),
    /// Values of one type, in order.
    Sequence(Sequence),
    /// A value, or none.
    Optional(Optional),
    /// Keys with one number or text each.
    Map(Map),
}

impl Value {
    /// Returns its type, with its own extents.
    pub fn ty(&self) -> ValueType {
        match self {
            Self::Tensor(tensor) => {
                ValueType::of_shape(Some(Element::Number(tensor.dtype())), tensor.shape())
            }
            Self::Strings(strings) => ValueType::of_shape(Some(Element::String), strings.shape()),
            Self::Sequence(sequence) => ValueType::sequence(sequence.element().clone()),
            Self::Optional(optional) => ValueType::optional(optional.of().clone()),
            Self::Map(map) => ValueType::Map { keys: map.key_type(), values: map.value_type() },
        }
    }

    /// Returns the tensor.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for another value.
    pub fn into_tensor(self) -> Result<Tensor> {
        match self {
            Self::Tensor(tensor) => Ok(tensor),
            other => Err(unexpected("a tensor of numbers", &other)),
        }
    }

    /// Returns the strings.
    ///
    /// # Errors
    /// As [`Value::into_tensor`].
    pub fn into_strings(self) -> Result<Strings> {
        match self {
            Self::Strings(strings) => Ok(strings),
            other => Err(unexpected("strings", &other)),
        }
    }

    /// Returns the sequence.
    ///
    /// # Errors
    /// As [`Value::into_tensor`].
    pub fn into_sequence(self) -> Result<Sequence> {
        match self {
            Self::Sequence(sequence) => Ok(sequence),
            other => Err(unexpected("a sequence", &other)),
        }
    }

    /// Returns the map.
    ///
    /// # Errors
    /// As [`Value::into_tensor`].
    pub fn into_map(self) -> Result<Map> {
        match self {
            Self::Map(map) => Ok(map),
            other => Err(unexpected("a map", &other)),
        }
    }

    /// Returns the shape of a tensor or of strings.
    ///
    /// # Errors
    /// As [`Value::into_tensor`].
    pub fn shape(&self) -> Result<&[usize]> {
        match self {
            Self::Tensor(tensor) => Ok(tensor.shape()),
            Self::Strings(strings) => Ok(strings.shape()),
            other => Err(unexpected("a tensor", other)),
        }
    }
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Self {
        Self::Tensor(tensor)
    }
}

impl From<Strings> for Value {
    fn from(strings: Strings) -> Self {
        Self::Strings(strings)
    }
}

impl From<Sequence> for Value {
    fn from(sequence: Sequence) -> Self {
        Self::Sequence(sequence)
    }
}

impl From<Optional> for Value {
    fn from(optional: Optional) -> Self {
        Self::Optional(optional)
    }
}

impl From<Map> for Value {
    fn from(map: Map) -> Self {
        Self::Map(map)
    }
}

fn unexpected(expected: &str, found: &Value) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("expected {expected}, found {}", found.ty()))
}
