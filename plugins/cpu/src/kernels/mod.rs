//! The kernels, by kind. Each file has its descriptors in `KERNELS`, then how they are prepared, then the
//! loops.
//!
//! All take dense operands. What depends on shapes and attributes is worked out in `prepare`; a launch
//! reads the addresses and runs. Loops are split by size, never by the number of threads, so that results
//! are the same bits on any number of them.

mod attention;
mod convolution;
mod cost;
mod elementwise;
mod geometry;
mod image;
mod learning;
mod ml;
mod movement;
mod normalisation;
mod numbers;
mod pooling;
mod product;
mod quantised;
mod recurrent;
mod reduction;
mod signal;
mod sorting;
#[cfg(test)]
mod specials_tests;
#[cfg(test)]
mod test_host;
#[cfg(test)]
pub(crate) mod testing;
mod types;

pub use signal::fft::Rounding;

use crate::device::CpuDevice;
use devbay_plugin_api::sdk::Kernel;

type List = &'static [Kernel<CpuDevice>];

/// Every list, in the order in which `devbay inspect` prints them.
const LISTS: &[List] = &[
    elementwise::unary::KERNELS,
    elementwise::fused::KERNELS,
    elementwise::activations::KERNELS,
    elementwise::formulas::KERNELS,
    elementwise::cast::KERNELS,
    elementwise::binary::KERNELS,
    elementwise::power::KERNELS,
    elementwise::bits::KERNELS,
    elementwise::variadic::KERNELS,
    elementwise::select::KERNELS,
    reduction::reduce::KERNELS,
    reduction::argmax::KERNELS,
    reduction::reduce_any::KERNELS,
    normalisation::softmax::KERNELS,
    normalisation::normalise::KERNELS,
    normalisation::norms::KERNELS,
    convolution::conv::KERNELS,
    convolution::nhwc::KERNELS,
    convolution::conv_transpose::KERNELS,
    product::matmul::KERNELS,
    product::product_any::KERNELS,
    pooling::pool::KERNELS,
    pooling::nhwc_pool::KERNELS,
    pooling::pool_norms::KERNELS,
    movement::views::KERNELS,
    movement::join::KERNELS,
    movement::index::KERNELS,
    movement::scatter::KERNELS,
    movement::pad::KERNELS,
    movement::fill::KERNELS,
    movement::random::KERNELS,
    signal::windows::KERNELS,
    reduction::scan::KERNELS,
    quantised::elementwise::KERNELS,
    quantised::scales::KERNELS,
    quantised::quantised_any::KERNELS,
    product::matmul_dequantized::KERNELS,
    product::matmul_integer::KERNELS,
    convolution::conv_integer::KERNELS,
    quantised::qlinear::KERNELS,
    recurrent::rnn::KERNELS,
    image::resize::KERNELS,
    signal::stft::KERNELS,
    sorting::top_k::KERNELS,
    movement::compress::KERNELS,
    sorting::suppress::KERNELS,
    image::grid_sample::KERNELS,
    pooling::roi_align::KERNELS,
    pooling::max_roi_pool::KERNELS,
    learning::optimise::KERNELS,
    movement::eye_like::KERNELS,
    elementwise::dropout::KERNELS,
    normalisation::batch_norm_any::KERNELS,
    pooling::pool_any::KERNELS,
    pooling::max_unpool::KERNELS,
    product::det::KERNELS,
    product::inverse::KERNELS,
    convolution::deform_conv::KERNELS,
    image::affine_grid::KERNELS,
    convolution::col2im::KERNELS,
    movement::center::KERNELS,
    learning::tf_idf::KERNELS,
    sorting::unique::KERNELS,
    product::einsum::KERNELS,
    learning::loss::KERNELS,
    elementwise::gated::KERNELS,
    convolution::causal_conv::KERNELS,
    movement::tensor_scatter::KERNELS,
    attention::linear_attention::KERNELS,
    attention::rotary::KERNELS,
    attention::op::KERNELS,
    ml::TREE_KERNELS,
    ml::SVM_KERNELS,
    ml::LOOKUP_KERNELS,
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
