//! Types, attributes and the content of tensors.

use super::tokens::Tokens;
use crate::error::{ErrorKind, Result};
use crate::program::AttrValue;
use crate::tensor::{
    BF16, BOOL, DType, Dim, F16, F32, F64, I8, I16, I32, I64, Tensor, TensorType, U8, U16, U32, U64,
    bytes_of, dtype_from_name, n_elements,
};
use devbay_plugin_api::reserve;
use half::{bf16, f16};
use std::str::FromStr;

/// The purpose of the memory that reading takes.
const CONTENT: &str = "a tensor's content";

impl Tokens<'_> {
    /// `f32[1,?,n]`, `f32[..]`.
    pub(super) fn tensor_type(&mut self) -> Result<TensorType> {
        let dtype = self.dtype()?;
        self.expect("[")?;
        if self.eat("..") {
            self.expect("]")?;
            return Ok(TensorType::unranked(dtype));
        }
        let mut shape = Vec::new();
        let mut first = true;
        while self.more(&mut first, "]")? {
            shape.push(self.dim()?);
        }
        Ok(TensorType { dtype, shape: Some(shape) })
    }

    fn dim(&mut self) -> Result<Dim> {
        if self.eat("?") {
            return Ok(Dim::unknown());
        }
        if self.peek_char().is_some_and(|c| c.is_ascii_digit()) {
            return Ok(Dim::Known(self.number("an extent")?));
        }
        Ok(Dim::Unknown(self.word("an extent")?.into()))
    }

    fn dtype(&mut self) -> Result<DType> {
        let at = self.next_token();
        let name = self.run(super::is_word_byte);
        if let Some(dtype) = dtype_from_name(name) {
            return Ok(dtype);
        }
        if name != "dtype" {
            return Err(self.error_at(at, format!("expected an element type, found {name:?}")));
        }
        self.expect("(")?;
        let code = self.number("a code")?;
        self.expect(",")?;
        let bits = self.number("bits")?;
        self.expect(",")?;
        let lanes = self.number("lanes")?;
        self.expect(")")?;
        Ok(DType { code, bits, lanes })
    }

    /// Reads an attribute's value, whose beginning determines its kind.
    pub(super) fn attr(&mut self) -> Result<AttrValue> {
        let start = self.next_token();
        match self.peek_char() {
            Some('"') => Ok(AttrValue::String(self.string("a text")?)),
            Some('[') => self.attr_list(),
            Some(c) if c.is_ascii_digit() || c == '-' => {
                let token = self.number_token();
                if is_float(token) {
                    Ok(AttrValue::Float(self.float(start, token)?))
                } else {
                    Ok(AttrValue::Int(self.parsed(start, token, "an integer")?))
                }
            }
            _ if self.peek_word("inf") || self.peek_word("nan") => {
                let token = self.number_token();
                Ok(AttrValue::Float(self.float(start, token)?))
            }
            _ if self.eat_word("ints") => self.empty_list(AttrValue::Ints(Vec::new())),
            _ if self.eat_word("floats") => self.empty_list(AttrValue::Floats(Vec::new())),
            _ if self.eat_word("strings") => self.empty_list(AttrValue::Strings(Vec::new())),
            _ => Ok(AttrValue::Tensor(self.tensor()?)),
        }
    }

    fn empty_list(&mut self, value: AttrValue) -> Result<AttrValue> {
        self.expect("[")?;
        self.expect("]")?;
        Ok(value)
    }

    /// Integers, numbers or texts: the first element says which.
    fn attr_list(&mut self) -> Result<AttrValue> {
        self.expect("[")?;
        let mut first = true;
        if self.peek("]") {
            return Err(self.error("expected ints, floats or strings before an empty list"));
        }
        if self.peek("\"") {
            let mut values = Vec::new();
            while self.more(&mut first, "]")? {
                values.push(self.string("a text")?);
            }
            return Ok(AttrValue::Strings(values));
        }
        let start = self.next_token();
        let is_float = is_float(self.number_token());
        self.back_to(start);
        if is_float {
            let mut values = Vec::new();
            while self.more(&mut first, "]")? {
                let at = self.next_token();
                let token = self.number_token();
                values.push(self.float(at, token)?);
            }
            return Ok(AttrValue::Floats(values));
        }
        let mut values = Vec::new();
        while self.more(&mut first, "]")? {
            values.push(self.number("an integer")?);
        }
        Ok(AttrValue::Ints(values))
    }

    /// A type whose extents are known, and content.
    pub(super) fn tensor(&mut self) -> Result<Tensor> {
        let at = self.next_token();
        let ty = self.tensor_type()?;
        let sizes = ty.known_shape().and_then(|shape| {
            let n = n_elements(&shape)?;
            Some((shape, n, bytes_of(ty.dtype, n)?))
        });
        let Some((shape, n, size)) = sizes else {
            let text = format!("expected known extents that fit in memory, found {ty}");
            return Err(self.error_at(at, text));
        };
        let start = self.next_token();
        if self.eat("...") {
            let text = "expected content, found an elided constant; print the program in full";
            return Err(self.error_at(start, text));
        }
        let bytes = if self.eat_word("hex") { self.hex(size)? } else { self.elements(ty.dtype, n)? };
        if bytes.len() != size {
            let found = bytes.len();
            return Err(self.error_at(start, format!("expected {size} bytes, found {found}")));
        }
        Tensor::from_bytes(ty.dtype, &shape, &bytes).map_err(|error| match error.kind() {
            ErrorKind::OutOfMemory => error,
            _ => self.error_at(at, error.text()).because(error),
        })
    }

    fn hex(&mut self, size: usize) -> Result<Vec<u8>> {
        self.expect("{")?;
        // Two digits a byte: bytes that are claimed and not there are not allocated.
        let mut bytes = reserve::with_capacity(size.min(self.rest().len() / 2), CONTENT)?;
        while !self.eat("}") {
            let start = self.next_token();
            let digits = self.run(|b| b.is_ascii_hexdigit()).as_bytes();
            if digits.is_empty() || !digits.len().is_multiple_of(2) {
                return Err(self.error_at(start, "expected pairs of hexadecimal digits"));
            }
            for pair in digits.chunks_exact(2) {
                reserve::push(&mut bytes, nibble(pair[0]) << 4 | nibble(pair[1]), CONTENT)?;
            }
        }
        Ok(bytes)
    }

    fn elements(&mut self, dtype: DType, n: usize) -> Result<Vec<u8>> {
        let at = self.next_token();
        let mut bytes = Vec::new();
        let mut found = 0usize;
        self.expect("[")?;
        let mut first = true;
        while self.more(&mut first, "]")? {
            found += 1;
            // No element has more.
            reserve::grow(&mut bytes, 16, CONTENT)?;
            self.element(dtype, &mut bytes)?;
        }
        if found != n {
            return Err(self.error_at(at, format!("expected {n} elements, found {found}")));
        }
        Ok(bytes)
    }

    fn element(&mut self, dtype: DType, bytes: &mut Vec<u8>) -> Result<()> {
        let at = self.next_token();
        if dtype == BOOL {
            bytes.push(u8::from(self.truth()?));
            return Ok(());
        }
        let token = self.number_token();
        match dtype {
            F32 => bytes.extend(self.float::<f32>(at, token)?.to_le_bytes()),
            F64 => bytes.extend(self.float::<f64>(at, token)?.to_le_bytes()),
            F16 => bytes.extend(self.float::<f16>(at, token)?.to_le_bytes()),
            BF16 => bytes.extend(self.float::<bf16>(at, token)?.to_le_bytes()),
            I8 => bytes.extend(self.integer::<i8>(at, token)?.to_le_bytes()),
            I16 => bytes.extend(self.integer::<i16>(at, token)?.to_le_bytes()),
            I32 => bytes.extend(self.integer::<i32>(at, token)?.to_le_bytes()),
            I64 => bytes.extend(self.integer::<i64>(at, token)?.to_le_bytes()),
            U8 => bytes.extend(self.integer::<u8>(at, token)?.to_le_bytes()),
            U16 => bytes.extend(self.integer::<u16>(at, token)?.to_le_bytes()),
            U32 => bytes.extend(self.integer::<u32>(at, token)?.to_le_bytes()),
            U64 => bytes.extend(self.integer::<u64>(at, token)?.to_le_bytes()),
            _ => return Err(self.error_at(at, "expected hex for elements of this type")),
        }
        Ok(())
    }

    fn truth(&mut self) -> Result<bool> {
        let is_true = self.eat_word("true");
        if is_true || self.eat_word("false") {
            Ok(is_true)
        } else {
            Err(self.error("expected true or false"))
        }
    }

    fn integer<T: FromStr>(&self, at: usize, token: &str) -> Result<T> {
        self.parsed(at, token, "an integer of the element type")
    }

    fn float<T: Float>(&self, at: usize, token: &str) -> Result<T> {
        let bits = token.strip_prefix("nan(0x").and_then(|rest| rest.strip_suffix(')'));
        let value = match bits {
            Some(bits) => T::nan(bits),
            None => T::number(token),
        };
        value.ok_or_else(|| {
            self.error_at(at, format!("expected a number of the element type, found {token:?}"))
        })
    }
}

/// Returns whether a number's text stands for a floating-point one.
fn is_float(token: &str) -> bool {
    token.contains(['.', 'e', 'E', 'n'])
}

fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}

/// A floating-point type, read exactly.
trait Float: Sized {
    /// A number, or `inf`, `-inf`, `nan`. None if it is too large for the type.
    fn number(token: &str) -> Option<Self>;
    /// The NaN with these hexadecimal bits.
    fn nan(bits: &str) -> Option<Self>;
}

macro_rules! float {
    ($type:ty, $bits:ty, $read:ty, $narrow:expr) => {
        impl Float for $type {
            fn number(token: &str) -> Option<Self> {
                if token == "nan" {
                    return Some(<$type>::NAN);
                }
                // Rust reads more words than we write.
                let infinite = matches!(token, "inf" | "-inf");
                if !infinite && token.contains(|c: char| c.is_ascii_alphabetic() && c != 'e') {
                    return None;
                }
                let value = $narrow(token.parse::<$read>().ok()?);
                (value.is_infinite() == infinite).then_some(value)
            }

            fn nan(bits: &str) -> Option<Self> {
                let value = <$type>::from_bits(<$bits>::from_str_radix(bits, 16).ok()?);
                value.is_nan().then_some(value)
            }
        }
    };
}

float!(f32, u32, f32, |x: f32| x);
float!(f64, u64, f64, |x: f64| x);
float!(f16, u16, f32, f16::from_f32);
float!(bf16, u16, f32, bf16::from_f32);
