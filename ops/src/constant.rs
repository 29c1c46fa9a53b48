//! The content of a constant operand, as inference reads it.

use crate::types::{BOOL, DType, I8, I16, I32, I64, TensorType, U8, U16, U32, n_elements};
use devbay_plugin_api::reserve::{self, NoMemory};

/// A tensor whose content is known: dense, row-major and little endian, borrowed from its owner.
#[derive(Clone, Copy, Debug)]
pub struct Constant<'a> {
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: &'a [usize],
    /// The elements' bytes, exactly as many as element type and extents require.
    pub bytes: &'a [u8],
}

impl Constant<'_> {
    /// Returns its type.
    pub fn tensor_type(&self) -> TensorType {
        TensorType::new(self.dtype, self.shape)
    }

    fn n_elements(&self) -> usize {
        n_elements(self.shape).unwrap_or_default()
    }

    /// Returns the bytes of the element at a position.
    fn element<const N: usize>(&self, i: usize) -> Option<[u8; N]> {
        self.bytes.get(i.checked_mul(N)?..)?.first_chunk().copied()
    }

    /// Returns the integer at a position, for dtypes that [`Constant::to_ints`] takes.
    fn int_at(&self, i: usize) -> Option<i64> {
        Some(match self.dtype {
            I64 => i64::from_le_bytes(self.element(i)?),
            I32 => i32::from_le_bytes(self.element(i)?).into(),
            I16 => i16::from_le_bytes(self.element(i)?).into(),
            I8 => i8::from_le_bytes(self.element(i)?).into(),
            U32 => u32::from_le_bytes(self.element(i)?).into(),
            U16 => u16::from_le_bytes(self.element(i)?).into(),
            U8 => u8::from_le_bytes(self.element(i)?).into(),
            BOOL => (self.element(i)? != [0]).into(),
            _ => return None,
        })
    }

    /// Returns the content as integers, for axes, shapes and indices of any integer type but u64, or bool; None for
    /// others.
    ///
    /// # Errors
    /// If memory is exhausted.
    pub fn to_ints(&self) -> Result<Option<Vec<i64>>, NoMemory> {
        if ![I64, I32, I16, I8, U32, U16, U8, BOOL].contains(&self.dtype) {
            return Ok(None);
        }
        let ints = (0..self.n_elements()).map_while(|i| self.int_at(i));
        let mut list = reserve::with_capacity(self.n_elements(), "a tensor's integers")?;
        reserve::extend(&mut list, ints, "a tensor's integers")?;
        Ok(Some(list))
    }

    /// Returns its only integer or truth value; None for more elements.
    pub fn to_int(&self) -> Option<i64> {
        self.int_at(0).filter(|_| self.n_elements() == 1)
    }

    /// Returns the integer or truth value that all its elements share; None if they differ or there are none.
    pub fn only_int(&self) -> Option<i64> {
        let first = self.int_at(0)?;
        (1..self.n_elements()).all(|i| self.int_at(i) == Some(first)).then_some(first)
    }
}
