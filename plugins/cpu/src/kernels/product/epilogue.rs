//! Steps that follow a matrix product while its tile is still in the cache: bias, residual, activation.

use crate::dispatch;
use crate::isa::{Arith, Isa};
use crate::kernels::numbers::math;
use crate::lanes::{Lanes, read, write};
use devbay_plugin_api::sdk::{Attrs, Error, Operands, Result, SendPtr};

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

/// A tile of a product: `y[r][i] = f(x[r][i] + beta * (row_bias[r] + column_bias[i]) + beta * z[r][i])`. Biases and `z`
/// may be NULL.
///
/// `z` is added to what the op alone would have made, as the Add that it was did: added to a bias first, two large
/// numbers would be infinite whatever the product is.
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
    /// Factor of what is added.
    pub beta: f32,
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
            has_bias: !tile.row_bias.is_null() || !tile.column_bias.is_null(),
            beta: tile.beta,
            column_bias: tile.column_bias,
            z: if tile.z.is_null() { tile.z } else { tile.z.wrapping_add(r * tile.y_stride) },
        };
        let mut i = 0;
        while i + A::Lanes::N <= tile.columns {
            // SAFETY: the elements are within the row.
            unsafe { block::<A, A::Lanes>(&row, i, A::Lanes::N, activation) };
            i += A::Lanes::N;
        }
        if i < tile.columns {
            // SAFETY: the rest of the row is `columns - i` elements, less than a vector.
            unsafe { block::<A, A::Lanes>(&row, i, tile.columns - i, activation) };
        }
    }
}

/// One row of a tile.
struct Row {
    x: *const f32,
    y: *mut f32,
    bias: f32,
    /// True if there is a bias of either kind.
    has_bias: bool,
    beta: f32,
    column_bias: *const f32,
    z: *const f32,
}

/// `n` elements of a row from `i`, at most a vector.
///
/// # Safety
/// The row has `i + n` elements, and the processor has the instructions.
#[inline(always)]
unsafe fn block<A: Arith, L: Lanes>(row: &Row, i: usize, n: usize, activation: Activation) {
    // SAFETY: the row has `i + n` elements, and the processor has the instructions (# Safety).
    unsafe {
        let beta = L::splat(row.beta);
        let mut v: L = read(row.x.wrapping_add(i), n);
        // With a factor of 1 these are sums, rounded once.
        if row.has_bias {
            let mut bias = L::splat(row.bias);
            if !row.column_bias.is_null() {
                bias = bias.add(read(row.column_bias.wrapping_add(i), n));
            }
            v = bias.fma(beta, v);
        }
        if !row.z.is_null() {
            let z: L = read(row.z.wrapping_add(i), n);
            v = z.fma(beta, v);
        }
        write(apply::<A, L>(activation, v), row.y.wrapping_add(i), n);
    }
}

/// Applies an activation to a vector: the very numbers that the op of its name gives by itself
/// ([`crate::kernels::elementwise::unary`]), of NaN, infinities and zeros of either sign too.
///
/// # Safety
/// The processor has the instructions.
#[inline(always)]
pub unsafe fn apply<A: Arith, L: Lanes>(activation: Activation, v: L) -> L {
    macro_rules! each {
        (|$v:ident| $f:expr) => {{
            let mut values = [0.0f32; 16];
            // SAFETY: sixteen numbers are enough for every vector.
            unsafe { v.store(values.as_mut_ptr()) };
            for value in &mut values[..L::N] {
                let $v = *value;
                *value = $f;
            }
            // SAFETY: sixteen numbers are enough for every vector.
            unsafe { L::load(values.as_ptr()) }
        }};
    }
    // SAFETY: the processor has the instructions (# Safety).
    let splat = |x: f32| unsafe { L::splat(x) };
    let unit = |v: L| v.at_least(splat(0.0)).at_most(splat(1.0));
    match activation {
        Activation::None => v,
        Activation::Relu => v.at_least(splat(0.0)),
        Activation::LeakyRelu(alpha) => each!(|v| if v < 0.0 { alpha * v } else { v }),
        Activation::Clip(low, high) => v.at_least(splat(low)).at_most(splat(high)),
        Activation::HardSigmoid(alpha, beta) => unit(v.fma(splat(alpha), splat(beta))),
        Activation::HardSwish => v.mul(unit(v.fma(splat(1.0 / 6.0), splat(0.5)))),
        Activation::Sigmoid => each!(|v| math::sigmoid::<A>(v)),
        Activation::Tanh => each!(|v| math::tanh::<A>(v)),
        Activation::Silu => each!(|v| v * math::sigmoid::<A>(v)),
    }
}
/// Operands of a launch of a product or a convolution, as addresses: what is multiplied, what is added, and the result.
#[derive(Clone, Copy)]
pub(crate) struct Addresses {
    pub x: SendPtr<f32>,
    pub w: SendPtr<f32>,
    pub bias: SendPtr<f32>,
    pub z: SendPtr<f32>,
    pub y: SendPtr<f32>,
}

impl Addresses {
    pub fn of(operands: &Operands<'_>) -> Self {
        let n = operands.n_inputs();
        let input = |i: usize| {
            SendPtr(if i < n { operands.input_ptr::<f32>(i).cast_mut() } else { std::ptr::null_mut() })
        };
        Self { x: input(0), w: input(1), bias: input(2), z: input(3), y: SendPtr(operands.output_ptr(0)) }
    }

    /// An optional operand, some elements on; NULL stays NULL.
    pub fn offset(pointer: SendPtr<f32>, n: usize) -> *const f32 {
        if pointer.0.is_null() { std::ptr::null() } else { pointer.at(n) }
    }
}
