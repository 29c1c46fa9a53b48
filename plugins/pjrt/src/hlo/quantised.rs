//! Numbers as small integers with a scale and a zero point, and products of such integers.

use super::builder::{Builder, Type, Value};
use super::node::Node;
use super::primitive::Fold;
use super::{conv, linear, node};
use crate::element::ElementType;
use devbay_plugin_api::sdk::{Error, Result};

/// The smallest and the largest number of a type of at most 16 bits.
fn range(ty: &Type) -> Result<(f64, f64)> {
    use ElementType as E;
    Ok(match ty.element {
        E::U8 => (0.0, 255.0),
        E::S8 => (-128.0, 127.0),
        E::U16 => (0.0, 65_535.0),
        E::S16 => (-32_768.0, 32_767.0),
        _ => return Err(Error::unsupported(format!("numbers quantised as {ty}"))),
    })
}

/// A scale or zero point for every element: one for all, or one for each place along the attribute's axis.
fn spread<'g>(node: &Node<'g>, b: &mut Builder<'g>, x: &Value, value: &Value) -> Result<Value> {
    if node.attrs().int("block_size", 0)? != 0 {
        return Err(Error::unsupported("scales of blocks"));
    }
    if value.ty.n_elements() == 1 {
        let one = b.reshape(value, &[]);
        return b.broadcast(&one, x.dims());
    }
    let axis = node::axis(node.attrs().int("axis", 1)?, x.rank())?;
    if value.dims() != [x.dims()[axis]] {
        return Err(Error::unsupported(format!("scales {} of {}", value.ty, x.ty)));
    }
    Ok(b.broadcast_in_dim(value, &[axis], x.dims()))
}

/// `round(x / scale) + zero` within the range of a type; ties go to the even number. All operands are float32.
fn rounded(b: &mut Builder<'_>, x: &Value, scale: &Value, zero: Option<&Value>, ty: &Type) -> Result<Value> {
    let (least, most) = range(ty)?;
    let divided = b.divide(x, scale);
    let mut whole = b.unary("stablehlo.round_nearest_even", &divided);
    if let Some(zero) = zero {
        whole = b.add(&whole, zero);
    }
    let whole = b.with_number("stablehlo.maximum", &whole, least)?;
    let whole = b.with_number("stablehlo.minimum", &whole, most)?;
    Ok(b.convert(&whole, ty.element))
}

/// QuantizeLinear; the graph has the type of the result.
pub(super) fn quantize<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = node.input(b, 0)?;
    let x = b.convert(&x, ElementType::F32);
    let mut operand = |at| -> Result<Option<Value>> {
        let Some(value) = node.optional_input(b, at)? else { return Ok(None) };
        let value = b.convert(&value, ElementType::F32);
        spread(node, b, &x, &value).map(Some)
    };
    let scale = operand(1)?.ok_or_else(|| Error::invalid("a scale is missing"))?;
    let zero = operand(2)?;
    rounded(b, &x, &scale, zero.as_ref(), &node.result(0)?)
}

/// DequantizeLinear: `(x - zero) * scale`.
pub(super) fn dequantize<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let (given, scale) = (node.input(b, 0)?, node.input(b, 1)?);
    let mut x = b.convert(&given, ElementType::S32);
    if let Some(zero) = node.optional_input(b, 2)? {
        let zero = b.convert(&zero, ElementType::S32);
        let zero = spread(node, b, &x, &zero)?;
        x = b.subtract(&x, &zero);
    }
    let x = b.convert(&x, scale.element());
    let scale = spread(node, b, &x, &scale)?;
    let result = b.multiply(&x, &scale);
    Ok(b.convert(&result, node.result(0)?.element))
}

/// DynamicQuantizeLinear: numbers as bytes, with the scale and the zero point that their range asks for.
pub(super) fn quantize_by_range<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Vec<Value>> {
    let x = node.input(b, 0)?;
    let all: Vec<usize> = (0..x.rank()).collect();
    // Zero always is one of the numbers.
    let least = b.reduce(Fold::Minimum, &x, &all)?;
    let least = b.with_number("stablehlo.minimum", &least, 0.0)?;
    let most = b.reduce(Fold::Maximum, &x, &all)?;
    let most = b.with_number("stablehlo.maximum", &most, 0.0)?;
    let extent = b.subtract(&most, &least);
    // Zeros alone have no extent; any scale but 0 gives zeros back.
    let is_none = b.compare_number("EQ", &extent, 0.0)?;
    let one = b.splat(1.0, &extent.ty)?;
    let extent = b.select(&is_none, &one, &extent);
    let scale = b.with_number("stablehlo.divide", &extent, 255.0)?;
    let byte = Type::new(ElementType::U8, &[]);
    let below = b.unary("stablehlo.negate", &least);
    // Clipped before it is rounded; the order makes no difference between whole limits.
    let zero = rounded(b, &below, &scale, None, &byte)?;
    let wide = b.convert(&zero, x.element());
    let wide = b.broadcast(&wide, x.dims())?;
    let all_scales = b.broadcast(&scale, x.dims())?;
    let bytes = rounded(b, &x, &all_scales, Some(&wide), &Type::new(ElementType::U8, x.dims()))?;
    Ok(vec![bytes, scale, zero])
}

/// An integer operand as int32 less its zero point, which is one number or one for each place along `axis`.
fn centred<'g>(
    node: &Node<'g>,
    b: &mut Builder<'g>,
    at: usize,
    zero_at: usize,
    axis: impl Fn(usize) -> usize,
) -> Result<Value> {
    let x = node.input(b, at)?;
    let x = b.convert(&x, ElementType::S32);
    let Some(zero) = node.optional_input(b, zero_at)? else { return Ok(x) };
    let zero = b.convert(&zero, ElementType::S32);
    let zero = match zero.ty.n_elements() {
        1 => {
            let one = b.reshape(&zero, &[]);
            b.broadcast(&one, x.dims())?
        }
        _ if zero.rank() == 1 => b.broadcast_in_dim(&zero, &[axis(x.rank())], x.dims()),
        // One for each row or column of every matrix.
        _ => b.broadcast(&zero, x.dims())?,
    };
    Ok(b.subtract(&x, &zero))
}

/// MatMulInteger: a product of integers in int32. Zero points may be one for each row on the left and for each column on
/// the right.
pub(super) fn matmul_integer<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = centred(node, b, 0, 2, |rank| rank.saturating_sub(2))?;
    let y = centred(node, b, 1, 3, |rank| rank.saturating_sub(1))?;
    let result = node.result(0)?;
    let product = linear::product(b, &x, &y)?;
    Ok(b.reshape(&product, &result.dims))
}

/// ConvInteger: a convolution of integers in int32. Padding is the zero point.
pub(super) fn conv_integer<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = centred(node, b, 0, 2, |_| 1)?;
    let kernel = centred(node, b, 1, 3, |_| 0)?;
    conv::convolved(node, b, &x, &kernel)
}
