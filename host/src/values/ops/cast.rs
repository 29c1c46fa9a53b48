//! Cast and CastLike between numbers and strings.
//!
//! Numbers become texts as onnxruntime writes them: eight significant digits at most, `NaN`, `INF` and `-INF`.

use super::sequences::element_of;
use super::{Site, Work, invalid, take, wrong};
use crate::values::{Element, Strings, Value, ValueType};
use devbay_core::tensor::{
    BF16, BOOL, DType, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, dtype_name,
};
use devbay_core::{Error, ErrorKind, Result, Tensor};
use half::{bf16, f16};
use std::sync::Arc;

/// A tensor of the attribute's type.
pub fn result(site: &Site<'_>) -> Result<Vec<ValueType>> {
    let to = site.attrs.int("to")?.ok_or_else(|| invalid("expected the attribute \"to\", found none"))?;
    Ok(vec![ValueType::tensor(Some(element_of(*to)?))])
}

/// A tensor of the second operand's type.
pub fn like_result(site: &Site<'_>) -> Result<Vec<ValueType>> {
    Ok(vec![ValueType::tensor(site.input(1)?.element())])
}

/// Cast, from strings or to them.
pub fn cast(site: &Site<'_>) -> Result<Work> {
    let to = result(site)?.remove(0).element();
    Ok(Box::new(move |mut operands| Ok(vec![converted(take(&mut operands, 0)?, to)?])))
}

/// CastLike, from strings or to them.
pub fn cast_like(_: &Site<'_>) -> Result<Work> {
    Ok(Box::new(|mut operands| {
        let to = take(&mut operands, 1)?.ty().element();
        Ok(vec![converted(take(&mut operands, 0)?, to)?])
    }))
}

fn converted(value: Value, to: Option<Element>) -> Result<Value> {
    match (value, to) {
        (Value::Tensor(tensor), Some(Element::String)) => {
            Ok(Strings::new(tensor.shape(), texts(&tensor)?)?.into())
        }
        (Value::Strings(strings), Some(Element::Number(dtype))) => Ok(numbers(&strings, dtype)?.into()),
        (strings @ Value::Strings(_), _) => Ok(strings),
        (other, _) => Err(wrong(format!("expected numbers or strings to cast, found {}", other.ty()))),
    }
}

/// Returns a tensor's elements as texts.
///
/// # Errors
/// [`ErrorKind::UnsupportedModel`] for element types that have no texts.
pub fn texts(tensor: &Tensor) -> Result<Vec<Arc<str>>> {
    macro_rules! of {
        ($ty:ty, $text:expr) => {
            tensor.elements::<$ty>().unwrap_or_default().iter().map($text).collect()
        };
    }
    Ok(match tensor.dtype() {
        F32 => of!(f32, |&x| Arc::from(general(f64::from(x)))),
        F64 => of!(f64, |&x| Arc::from(general(x))),
        F16 => halves(tensor, |bits| f16::from_bits(bits).to_f64()),
        BF16 => halves(tensor, |bits| bf16::from_bits(bits).to_f64()),
        I8 => of!(i8, |x| Arc::from(x.to_string())),
        I16 => of!(i16, |x| Arc::from(x.to_string())),
        I32 => of!(i32, |x| Arc::from(x.to_string())),
        I64 => of!(i64, |x| Arc::from(x.to_string())),
        U16 => of!(u16, |x| Arc::from(x.to_string())),
        U32 => of!(u32, |x| Arc::from(x.to_string())),
        U64 => of!(u64, |x| Arc::from(x.to_string())),
        U8 | BOOL => tensor.bytes().iter().map(|x| Arc::from(x.to_string())).collect(),
        other => return Err(no_texts(other)),
    })
}

fn halves(tensor: &Tensor, number: fn(u16) -> f64) -> Vec<Arc<str>> {
    let bits = tensor.bytes().chunks_exact(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
    bits.map(|bits| Arc::from(general(number(bits)))).collect()
}

fn no_texts(dtype: DType) -> Error {
    let text = format!("casts between strings and {} are not supported", dtype_name(dtype));
    Error::new(ErrorKind::UnsupportedModel, text)
}

/// Significant digits of a number at most.
const DIGITS: i32 = 8;

/// Writes a number as C's `%.8g` does.
fn general(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "INF" } else { "-INF" }.to_owned();
    }
    let scientific = format!("{value:.*e}", DIGITS as usize - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if !(-4..DIGITS).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs());
    }
    let decimals = usize::try_from(DIGITS - 1 - exponent).unwrap_or(0);
    trimmed(&format!("{value:.decimals$}"))
}

/// Returns texts as numbers of a type.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a text that is no such number; [`ErrorKind::UnsupportedModel`] for element types that
/// have no texts.
pub fn numbers(strings: &Strings, dtype: DType) -> Result<Tensor> {
    fn all<T: std::str::FromStr + devbay_core::tensor::Element>(strings: &Strings) -> Result<Tensor> {
        let number = |text: &Arc<str>| {
            let refused =
                || wrong(format!("expected a number of type {}, found {text:?}", dtype_name(T::DTYPE)));
            text.trim().parse::<T>().map_err(|_| refused())
        };
        let numbers = strings.elements().iter().map(number).collect::<Result<Vec<T>>>()?;
        Tensor::from_elements(strings.shape(), &numbers)
    }
    let halves = |bits: fn(f32) -> u16| {
        let numbers = all::<f32>(strings)?;
        let elements = numbers.elements::<f32>().unwrap_or_default();
        let bytes: Vec<u8> = elements.iter().flat_map(|&x| bits(x).to_le_bytes()).collect();
        Tensor::from_bytes(dtype, strings.shape(), &bytes)
    };
    match dtype {
        F32 => all::<f32>(strings),
        F64 => all::<f64>(strings),
        F16 => halves(|x| f16::from_f32(x).to_bits()),
        BF16 => halves(|x| bf16::from_f32(x).to_bits()),
        I8 => all::<i8>(strings),
        I16 => all::<i16>(strings),
        I32 => all::<i32>(strings),
        I64 => all::<i64>(strings),
        U8 => all::<u8>(strings),
        U16 => all::<u16>(strings),
        U32 => all::<u32>(strings),
        U64 => all::<u64>(strings),
        other => Err(no_texts(other)),
    }
}
