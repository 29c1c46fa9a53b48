//! The kernels, by kind. Each file has its descriptors in `KERNELS`, then how they are prepared, then the
//! loops.
//!
//! All take dense operands. What depends on shapes and attributes is worked out in `prepare`; a launch
//! reads the addresses and runs. Loops are split by size, never by the number of threads, so that results
//! are the same bits on any number of them.

mod activations;
mod affine_grid;
mod argmax;
mod attend;
mod attend_panels;
mod attention;
mod batch_norm_any;
mod binary;
mod bits;
mod cast;
mod causal_conv;
mod cell;
mod center;
mod col2im;
mod compress;
mod conv;
mod conv_integer;
mod conv_transpose;
mod convert;
mod cost;
mod deform_conv;
mod dense;
mod depthwise;
mod det;
mod dropout;
mod einsum;
mod elementwise;
mod epilogue;
mod extents;
mod eye_like;
mod fft;
mod fill;
mod fold;
mod formulas;
mod functions;
mod fused;
mod gated;
mod grid_sample;
mod index;
mod int_product;
mod join;
mod linear_attention;
mod loss;
mod math;
mod matmul;
mod matmul_integer;
mod max_unpool;
mod micro;
mod movement;
mod normalise;
mod norms;
mod norms_single;
mod number;
mod optimise;
mod order;
mod pad;
mod plane;
mod pool;
mod pool_any;
mod pool_norms;
mod power;
mod product_any;
mod qlinear;
mod quantised;
mod quantised_any;
mod real;
mod reduce;
mod reduce_any;
mod resize;
mod rnn;
mod roi_align;
mod rotary;
mod row_product;
mod rows;
mod scan;
mod scatter;
mod scores;
mod select;
mod shape;
mod small_float;
mod softmax;
mod sorting;
#[cfg(test)]
mod specials_tests;
mod stft;
mod strided;
mod suppress;
mod tensor_scatter;
#[cfg(test)]
mod test_host;
#[cfg(test)]
mod testing;
mod tf_idf;
mod top_k;
mod unary;
mod unique;
mod variadic;
mod walk;
mod widen;
mod window;
mod windows;

pub use fft::Rounding;

use crate::device::CpuDevice;
use devbay_plugin_api::sdk::{BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
use devbay_plugin_api::sdk::{
    DType, F4E2M1, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0, I2, I4, Kernel, U2, U4,
};

type List = &'static [Kernel<CpuDevice>];

/// Every list, in the order in which `devbay inspect` prints them.
const LISTS: &[List] = &[
    unary::KERNELS,
    fused::KERNELS,
    activations::KERNELS,
    formulas::KERNELS,
    cast::KERNELS,
    binary::KERNELS,
    power::KERNELS,
    bits::KERNELS,
    variadic::KERNELS,
    select::KERNELS,
    reduce::KERNELS,
    argmax::KERNELS,
    reduce_any::KERNELS,
    softmax::KERNELS,
    normalise::KERNELS,
    norms::KERNELS,
    conv::KERNELS,
    conv_transpose::KERNELS,
    matmul::KERNELS,
    product_any::KERNELS,
    pool::KERNELS,
    pool_norms::KERNELS,
    movement::KERNELS,
    join::KERNELS,
    index::KERNELS,
    scatter::KERNELS,
    pad::KERNELS,
    fill::KERNELS,
    windows::KERNELS,
    scan::KERNELS,
    quantised::KERNELS,
    quantised_any::KERNELS,
    matmul_integer::KERNELS,
    conv_integer::KERNELS,
    qlinear::KERNELS,
    rnn::KERNELS,
    resize::KERNELS,
    stft::KERNELS,
    top_k::KERNELS,
    compress::KERNELS,
    suppress::KERNELS,
    grid_sample::KERNELS,
    roi_align::KERNELS,
    optimise::KERNELS,
    eye_like::KERNELS,
    dropout::KERNELS,
    batch_norm_any::KERNELS,
    pool_any::KERNELS,
    max_unpool::KERNELS,
    det::KERNELS,
    deform_conv::KERNELS,
    affine_grid::KERNELS,
    col2im::KERNELS,
    center::KERNELS,
    tf_idf::KERNELS,
    unique::KERNELS,
    einsum::KERNELS,
    loss::KERNELS,
    gated::KERNELS,
    causal_conv::KERNELS,
    tensor_scatter::KERNELS,
    linear_attention::KERNELS,
    rotary::KERNELS,
    attention::KERNELS,
];

const N: usize = {
    let (mut n, mut i) = (0, 0);
    while i < LISTS.len() {
        n += LISTS[i].len();
        i += 1;
    }
    n
};

/// Every kernel.
pub static ALL: [Kernel<CpuDevice>; N] = {
    let mut all = [LISTS[0][0]; N];
    let (mut n, mut i) = (0, 0);
    while i < LISTS.len() {
        let mut k = 0;
        while k < LISTS[i].len() {
            all[n] = LISTS[i][k];
            n += 1;
            k += 1;
        }
        i += 1;
    }
    all
};

/// Floats that ops of mathematics take: loops for f32, often for f64, and conversions for the others.
pub(crate) const FLOATS: &[DType] = &[F32, F16, BF16, F64];

/// Floats that are calculated in f32.
pub(crate) const SINGLES: &[DType] = &[F32, F16, BF16];

/// Element types of arithmetic.
pub(crate) const NUMBERS: &[DType] = &[F32, I64, I32, F16, BF16, F64, I8, I16, U8, U16, U32, U64];

/// Integers.
pub(crate) const INTEGERS: &[DType] = &[I64, I32, U8, I8, I16, U16, U32, U64];

/// Element types that numbers are read from and written to.
pub(crate) const NUMERIC: &[DType] = &[
    F32, I64, I32, BOOL, U8, I8, F64, F16, BF16, I16, U16, U32, U64, F8E4M3FN, F8E4M3FNUZ, F8E5M2,
    F8E5M2FNUZ, F8E8M0, F4E2M1, I4, U4, I2, U2,
];

/// Element types that are only moved.
pub(crate) const MOVABLE: &[DType] = &[F32, I64, I32, BOOL, U8, I8, F64, F16, BF16, I16, U16, U32, U64];
