//! Element types, extents and types of values: the vocabulary of inference, rows and programs.

use devbay_plugin_api::abi::{
    DEVBAY_DTYPE_BFLOAT, DEVBAY_DTYPE_BOOL, DEVBAY_DTYPE_COMPLEX, DEVBAY_DTYPE_FLOAT, DEVBAY_DTYPE_INT,
    DEVBAY_DTYPE_UINT,
};
pub use devbay_plugin_api::sdk::{
    BF16, BOOL, DType, F4E2M1, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0, F16, F32, F64, I2, I4, I8,
    I16, I32, I64, U2, U4, U8, U16, U32, U64,
};
use std::fmt;
use std::sync::Arc;

/// Element types by name, as in the text form and in messages.
const NAMES: &[(&str, DType)] = &[
    ("f32", F32),
    ("f64", F64),
    ("f16", F16),
    ("bf16", BF16),
    ("i8", I8),
    ("i16", I16),
    ("i32", I32),
    ("i64", I64),
    ("u8", U8),
    ("u16", U16),
    ("u32", U32),
    ("u64", U64),
    ("bool", BOOL),
    ("i4", I4),
    ("i2", I2),
    ("u4", U4),
    ("u2", U2),
    ("f8e4m3fn", F8E4M3FN),
    ("f8e4m3fnuz", F8E4M3FNUZ),
    ("f8e5m2", F8E5M2),
    ("f8e5m2fnuz", F8E5M2FNUZ),
    ("f8e8m0", F8E8M0),
    ("f4e2m1", F4E2M1),
];

/// Returns the name of an element type: `f32`, `i64`, `bool`; other types by kind and bits.
pub fn dtype_name(dtype: DType) -> String {
    if let Some((name, _)) = NAMES.iter().find(|(_, known)| *known == dtype) {
        return (*name).to_owned();
    }
    let kind = match dtype.code {
        DEVBAY_DTYPE_INT => "i",
        DEVBAY_DTYPE_UINT => "u",
        DEVBAY_DTYPE_FLOAT => "f",
        DEVBAY_DTYPE_BFLOAT => "bf",
        DEVBAY_DTYPE_COMPLEX => "c",
        DEVBAY_DTYPE_BOOL => "bool",
        code => return format!("code{code}x{}", dtype.bits),
    };
    format!("{kind}{}", dtype.bits)
}

/// Parses the name of an element type, as written by [`dtype_name`].
pub fn dtype_from_name(name: &str) -> Option<DType> {
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype)
}

/// Returns the bytes of `n` elements: sub-byte elements are packed (ABI-NOTES 19). None on overflow.
pub fn bytes_of(dtype: DType, n: usize) -> Option<usize> {
    let bits = (dtype.bits as usize).checked_mul(dtype.lanes as usize)?;
    n.checked_mul(bits)?.checked_add(7).map(|bits| bits / 8)
}

/// Returns the product of extents; None on overflow.
pub fn n_elements(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent))
}

/// One extent of a value's shape.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Dim {
    /// A known number of elements.
    Known(usize),
    /// Unknown before run time; a name or formula of the model, possibly empty.
    Unknown(Arc<str>),
}

impl Dim {
    /// Returns the extent, if it is known.
    pub fn known(&self) -> Option<usize> {
        match self {
            Self::Known(extent) => Some(*extent),
            Self::Unknown(_) => None,
        }
    }

    /// Returns an extent without a name.
    pub fn unknown() -> Self {
        Self::Unknown(Arc::from(""))
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(extent) => write!(f, "{extent}"),
            Self::Unknown(name) if name.is_empty() => write!(f, "?"),
            Self::Unknown(name) => write!(f, "{name}"),
        }
    }
}

/// Type of a value: element type, and shape if known.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Extents; None if even the rank is unknown.
    pub shape: Option<Vec<Dim>>,
}

impl TensorType {
    /// Creates a type with a known shape.
    pub fn new(dtype: DType, shape: &[usize]) -> Self {
        Self { dtype, shape: Some(shape.iter().map(|&extent| Dim::Known(extent)).collect()) }
    }

    /// Returns a type with only the element type known.
    pub fn unranked(dtype: DType) -> Self {
        Self { dtype, shape: None }
    }

    /// Returns the shape, if every extent is known.
    pub fn known_shape(&self) -> Option<Vec<usize>> {
        self.shape.as_ref()?.iter().map(Dim::known).collect()
    }

    /// Returns whether a tensor of these elements and extents fits the type; unknown extents fit all.
    pub fn takes(&self, dtype: DType, extents: &[usize]) -> bool {
        let takes = |(dim, &extent): (&Dim, &usize)| dim.known().is_none_or(|known| known == extent);
        let fits = |shape: &Vec<Dim>| shape.len() == extents.len() && shape.iter().zip(extents).all(takes);
        self.dtype == dtype && self.shape.as_ref().is_none_or(fits)
    }

    /// Returns the number of dimensions, if it is known.
    pub fn rank(&self) -> Option<usize> {
        self.shape.as_ref().map(Vec::len)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", dtype_name(self.dtype))?;
        let Some(shape) = &self.shape else {
            return write!(f, "[..]");
        };
        write!(f, "[")?;
        for (i, dim) in shape.iter().enumerate() {
            write!(f, "{}{dim}", if i > 0 { "," } else { "" })?;
        }
        write!(f, "]")
    }
}
