//! What follows a matrix product while its tile is still in the cache: bias, residual, activation.

use crate::dispatch;
use crate::isa::{Arith, Isa};
use crate::kernels::math;
use devbay_plugin_api::sdk::{Attrs, Error, Result};

/// An activation, as the fused ops name it (docs/fused-ops.md).
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Activation {
    /// Nothing.
    None,
    /// `max(x, 0)`.
    Relu,
    /// `x` or `alpha x` below 0.
    LeakyRelu(f32),
    /// Between two limits.
    Clip(f32, f32),
    /// `clip(alpha x + beta, 0, 1)`.
    HardSigmoid(f32, f32),
    /// `x clip(x / 6 + 1/2, 0, 1)`.
    HardSwish,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// `x / (1 + exp(-x))`.
    Silu,
}

impl Activation {
    /// From the attributes `activation` and `activation_params`.
    ///
    /// # Errors
    /// Unsupported for a name that is not known here, invalid for missing parameters.
    pub fn of(attrs: &Attrs<'_>) -> Result<Self> {
        let name = attrs.string("activation", "")?;
        let params = attrs.floats("activation_params")?.unwrap_or_default();
        let param = |i: usize| {
            params
                .get(i)
                .copied()
                .ok_or_else(|| Error::invalid(format!("activation {name} has too few parameters")))
        };
        Ok(match name {
            "" => Self::None,
            "Relu" => Self::Relu,
            "LeakyRelu" => Self::LeakyRelu(param(0)?),
            "Clip" => Self::Clip(param(0)?, param(1)?),
            "HardSigmoid" => Self::HardSigmoid(param(0)?, param(1)?),
            "HardSwish" => Self::HardSwish,
            "Sigmoid" => Self::Sigmoid,
            "Tanh" => Self::Tanh,
            "Silu" => Self::Silu,
            other => return Err(Error::unsupported(format!("activation {other}"))),
        })
    }
}

/// A tile of a product: `y[r][i] = f(x[r][i] + row_bias[r] + column_bias[i] + z[r][i])`. Biases and `z` may be NULL.
#[derive(Clone, Copy)]
pub struct Tile {
    /// The product.
    pub x: *const f32,
    /// Distance between its rows.
    pub x_stride: usize,
    /// Where the result goes; may be `x`.
    pub y: *mut f32,
    /// Distance between its rows.
    pub y_stride: usize,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub columns: usize,
    /// Added by row.
    pub row_bias: *const f32,
    /// Added by column.
    pub column_bias: *const f32,
    /// Added by element; its rows are as far apart as the result's.
    pub z: *const f32,
}

/// Finishes a tile.
pub type FinishFn = unsafe fn(Tile, Activation);

/// The function for an instruction set.
pub fn finish(isa: Isa) -> FinishFn {
    finish_tile(isa)
}

dispatch! { fn finish_tile(tile: Tile, activation: Activation) = finish_body }

/// # Safety
/// The pointers are valid for the tile's rows and columns, or NULL where that is allowed.
#[inline(always)]
unsafe fn finish_body<A: Arith>(tile: Tile, activation: Activation) {
    // SAFETY: the caller's promise, in each arm.
    unsafe {
        match activation {
            Activation::None => each(tile, |v| v),
            Activation::Relu => each(tile, |v| if v > 0.0 { v } else { 0.0 }),
            Activation::LeakyRelu(alpha) => each(tile, |v| if v >= 0.0 { v } else { alpha * v }),
            Activation::Clip(low, high) => each(tile, |v| {
                let v = if v > low { v } else { low };
                if v < high { v } else { high }
            }),
            Activation::HardSigmoid(alpha, beta) => each(tile, |v| unit(A::fma(alpha, v, beta))),
            Activation::HardSwish => each(tile, |v| v * unit(A::fma(v, 1.0 / 6.0, 0.5))),
            Activation::Sigmoid => each(tile, |v| math::sigmoid::<A>(v)),
            Activation::Tanh => each(tile, |v| math::tanh::<A>(v)),
            Activation::Silu => each(tile, |v| v * math::sigmoid::<A>(v)),
        }
    }
}

#[inline(always)]
fn unit(v: f32) -> f32 {
    let v = if v > 0.0 { v } else { 0.0 };
    if v < 1.0 { v } else { 1.0 }
}

/// # Safety
/// As [`finish_body`].
#[inline(always)]
unsafe fn each(tile: Tile, f: impl Fn(f32) -> f32) {
    for r in 0..tile.rows {
        let x = tile.x.wrapping_add(r * tile.x_stride);
        let y = tile.y.wrapping_add(r * tile.y_stride);
        // SAFETY: `row_bias` is NULL or has an entry for each row.
        let bias = if tile.row_bias.is_null() { 0.0 } else { unsafe { *tile.row_bias.add(r) } };
        let z = tile.z.wrapping_add(r * tile.y_stride);
        match (tile.column_bias.is_null(), tile.z.is_null()) {
            (true, true) => {
                for i in 0..tile.columns {
                    // SAFETY: `i` is within the row, as in the loops below.
                    unsafe { *y.add(i) = f(*x.add(i) + bias) };
                }
            }
            (false, true) => {
                for i in 0..tile.columns {
                    // SAFETY: as above.
                    unsafe { *y.add(i) = f(*x.add(i) + (bias + *tile.column_bias.add(i))) };
                }
            }
            (true, false) => {
                for i in 0..tile.columns {
                    // SAFETY: as above.
                    unsafe { *y.add(i) = f(*x.add(i) + bias + *z.add(i)) };
                }
            }
            (false, false) => {
                for i in 0..tile.columns {
                    // SAFETY: as above.
                    unsafe { *y.add(i) = f(*x.add(i) + (bias + *tile.column_bias.add(i)) + *z.add(i)) };
                }
            }
        }
    }
}
