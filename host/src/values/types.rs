//! Types of values, written as in ONNX: `tensor(float)`, `seq(map(int64,tensor(float)))`.

use super::Value;
use devbay_core::tensor::{
    BF16, BOOL, DType, Dim, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F16, F32, F64, I8, I16, I32, I64,
    TensorType, U8, U16, U32, U64, dtype_name,
};
use std::fmt;
use std::sync::Arc;

/// The type of a tensor's elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Element {
    /// Numbers or truth values, on any device.
    Number(DType),
    /// Texts, in the host's memory.
    String,
}

/// The type of a value. Unknown parts are None; they accept any value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ValueType {
    /// A tensor, also of strings.
    Tensor {
        /// Type of its elements.
        element: Option<Element>,
        /// Its extents.
        shape: Option<Vec<Dim>>,
    },
    /// Values of one type, in order.
    Sequence(Arc<ValueType>),
    /// A value of a type, or none.
    Optional(Arc<ValueType>),
    /// Keys with one element each.
    Map {
        /// Keys: [`Element::String`] or i64.
        keys: Element,
        /// Elements.
        values: Element,
    },
}

impl ValueType {
    /// Returns the type of a tensor of any shape.
    pub const fn tensor(element: Option<Element>) -> Self {
        Self::Tensor { element, shape: None }
    }

    /// Returns the type of a tensor of numbers, of any shape.
    pub const fn number(dtype: DType) -> Self {
        Self::tensor(Some(Element::Number(dtype)))
    }

    /// Returns the type of strings of any shape.
    pub const fn strings() -> Self {
        Self::tensor(Some(Element::String))
    }

    /// Describes it with the extents of strings, if they are known: `string[batch,1]`.
    pub fn with_extents(&self) -> String {
        match self {
            Self::Tensor { element: Some(Element::String), shape: Some(shape) } => {
                let extents: Vec<String> = shape.iter().map(ToString::to_string).collect();
                format!("string[{}]", extents.join(","))
            }
            other => other.to_string(),
        }
    }

    /// Returns the type of a tensor with known extents.
    pub fn of_shape(element: Option<Element>, shape: &[usize]) -> Self {
        Self::Tensor { element, shape: Some(shape.iter().map(|&extent| Dim::Known(extent)).collect()) }
    }

    /// Returns the type of a sequence.
    pub fn sequence(element: Self) -> Self {
        Self::Sequence(Arc::new(element))
    }

    /// Returns the type of an optional.
    pub fn optional(of: Self) -> Self {
        Self::Optional(Arc::new(of))
    }

    /// Returns whether devices may hold values of this type. An unknown element type counts as a number.
    pub fn is_numeric(&self) -> bool {
        matches!(self, Self::Tensor { element, .. } if *element != Some(Element::String))
    }

    /// Returns the type as programs have it; None for values that no device holds, or an unknown element type.
    pub fn as_tensor(&self) -> Option<TensorType> {
        match self {
            Self::Tensor { element: Some(Element::Number(dtype)), shape } => {
                Some(TensorType { dtype: *dtype, shape: shape.clone() })
            }
            _ => None,
        }
    }

    /// Returns the element type of a tensor; None for other values, and if it is unknown.
    pub fn element(&self) -> Option<Element> {
        match self {
            Self::Tensor { element, .. } => *element,
            _ => None,
        }
    }

    /// Returns the type without extents, as elements of sequences have it.
    #[must_use]
    pub fn without_shape(&self) -> Self {
        match self {
            Self::Tensor { element, .. } => Self::tensor(*element),
            Self::Sequence(of) => Self::sequence(of.without_shape()),
            Self::Optional(of) => Self::optional(of.without_shape()),
            map @ Self::Map { .. } => map.clone(),
        }
    }

    /// Returns whether values of another type are of this type too, in all that both know.
    pub fn takes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tensor { element, shape }, Self::Tensor { element: other, shape: found }) => {
                let same = |a: &Dim, b: &Dim| match (a, b) {
                    (Dim::Known(a), Dim::Known(b)) => a == b,
                    _ => true,
                };
                let fits = match (shape, found) {
                    (Some(shape), Some(found)) => {
                        shape.len() == found.len() && shape.iter().zip(found).all(|(a, b)| same(a, b))
                    }
                    _ => true,
                };
                fits && (element.is_none() || other.is_none() || element == other)
            }
            (Self::Sequence(of), Self::Sequence(other)) | (Self::Optional(of), Self::Optional(other)) => {
                of.takes(other)
            }
            (Self::Map { .. }, Self::Map { .. }) => self == other,
            _ => false,
        }
    }

    /// Returns whether a value is of this type. An optional also takes a value that is not wrapped.
    pub fn is_of(&self, value: &Value) -> bool {
        let found = value.ty();
        match self {
            Self::Optional(of) => self.takes(&found) || of.takes(&found),
            _ => self.takes(&found),
        }
    }
}

/// ONNX's names of element types.
const NAMES: &[(DType, &str)] = &[
    (F32, "float"),
    (F64, "double"),
    (F16, "float16"),
    (BF16, "bfloat16"),
    (I8, "int8"),
    (I16, "int16"),
    (I32, "int32"),
    (I64, "int64"),
    (U8, "uint8"),
    (U16, "uint16"),
    (U32, "uint32"),
    (U64, "uint64"),
    (BOOL, "bool"),
    (F8E4M3FN, "float8e4m3fn"),
    (F8E4M3FNUZ, "float8e4m3fnuz"),
    (F8E5M2, "float8e5m2"),
    (F8E5M2FNUZ, "float8e5m2fnuz"),
];

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::String => f.write_str("string"),
            Self::Number(dtype) => match NAMES.iter().find(|(known, _)| known == dtype) {
                Some((_, name)) => f.write_str(name),
                None => f.write_str(&dtype_name(*dtype)),
            },
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor { element: Some(element), .. } => write!(f, "tensor({element})"),
            Self::Tensor { element: None, .. } => f.write_str("tensor"),
            Self::Sequence(of) => write!(f, "seq({of})"),
            Self::Optional(of) => write!(f, "optional({of})"),
            Self::Map { keys, values } => write!(f, "map({keys},tensor({values}))"),
        }
    }
}
