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
    for r in 0..tile.rows {
        let row = Row {
            x: tile.x.wrapping_add(r * tile.x_stride),
            y: tile.y.wrapping_add(r * tile.y_stride),
            // SAFETY: `row_bias` is NULL or has an entry for each row.
            bias: if tile.row_bias.is_null() { 0.0 } else { unsafe { *tile.row_bias.add(r) } },
            column_bias: tile.column_bias,
            z: if tile.z.is_null() { tile.z } else { tile.z.wrapping_add(r * tile.y_stride) },
        };
        let mut i = 0;
        while i + 64 <= tile.columns {
            // SAFETY: the block is within the row, as in the others.
            unsafe { block::<A, 64>(&row, i, 64, activation) };
            i += 64;
        }
        while i + 16 <= tile.columns {
            // SAFETY: as above.
            unsafe { block::<A, 16>(&row, i, 16, activation) };
            i += 16;
        }
        if i < tile.columns {
            // SAFETY: as above.
            unsafe { block::<A, 16>(&row, i, tile.columns - i, activation) };
        }
    }
}

/// One row of a tile.
struct Row {
    x: *const f32,
    y: *mut f32,
    bias: f32,
    column_bias: *const f32,
    z: *const f32,
}

/// `n` elements of a row from `i`, at most `N`. All are read before one is written: the result may be in the
/// product's place, and a loop that goes back and forth between them is not vectorised.
///
/// # Safety
/// The row has `i + n` elements.
#[inline(always)]
unsafe fn block<A: Arith, const N: usize>(row: &Row, i: usize, n: usize, activation: Activation) {
    // SAFETY: the caller's promise, here and below.
    let mut values = unsafe { read::<N>(row.x.wrapping_add(i), n) };
    if row.column_bias.is_null() {
        for value in &mut values {
            *value += row.bias;
        }
    } else {
        // SAFETY: as above.
        let biases = unsafe { read::<N>(row.column_bias.wrapping_add(i), n) };
        for lane in 0..N {
            values[lane] += row.bias + biases[lane];
        }
    }
    if !row.z.is_null() {
        // SAFETY: as above.
        let z = unsafe { read::<N>(row.z.wrapping_add(i), n) };
        for lane in 0..N {
            values[lane] += z[lane];
        }
    }
    apply::<A, N>(activation, &mut values);
    // SAFETY: as above.
    unsafe { write(&values, row.y.wrapping_add(i), n) };
}

/// # Safety
/// There are `n` elements to read, at most `N`.
#[inline(always)]
pub unsafe fn read<const N: usize>(from: *const f32, n: usize) -> [f32; N] {
    if n == N {
        // SAFETY: the caller's promise.
        return unsafe { from.cast::<[f32; N]>().read_unaligned() };
    }
    let mut values = [0.0; N];
    for (lane, value) in values.iter_mut().enumerate().take(n) {
        // SAFETY: as above.
        *value = unsafe { *from.wrapping_add(lane) };
    }
    values
}

/// # Safety
/// There is room for `n` elements, at most `N`.
#[inline(always)]
pub unsafe fn write<const N: usize>(values: &[f32; N], to: *mut f32, n: usize) {
    if n == N {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f32; N]>().write_unaligned(*values) };
        return;
    }
    for (lane, value) in values.iter().enumerate().take(n) {
        // SAFETY: as above.
        unsafe { *to.wrapping_add(lane) = *value };
    }
}

/// Applies an activation to a block.
#[inline(always)]
pub fn apply<A: Arith, const N: usize>(activation: Activation, values: &mut [f32; N]) {
    macro_rules! each {
        (|$v:ident| $f:expr) => {
            for value in values.iter_mut() {
                let $v = *value;
                *value = $f;
            }
        };
    }
    match activation {
        Activation::None => {}
        Activation::Relu => each!(|v| if v > 0.0 { v } else { 0.0 }),
        Activation::LeakyRelu(alpha) => each!(|v| if v >= 0.0 { v } else { alpha * v }),
        Activation::Clip(low, high) => each!(|v| {
            let v = if v > low { v } else { low };
            if v < high { v } else { high }
        }),
        Activation::HardSigmoid(alpha, beta) => each!(|v| unit(A::fma(alpha, v, beta))),
        Activation::HardSwish => each!(|v| v * unit(A::fma(v, 1.0 / 6.0, 0.5))),
        Activation::Sigmoid => each!(|v| math::sigmoid::<A>(v)),
        Activation::Tanh => each!(|v| math::tanh::<A>(v)),
        Activation::Silu => each!(|v| v * math::sigmoid::<A>(v)),
    }
}

#[inline(always)]
fn unit(v: f32) -> f32 {
    let v = if v > 0.0 { v } else { 0.0 };
    if v < 1.0 { v } else { 1.0 }
}
