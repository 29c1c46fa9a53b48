//! The kernels, by kind: descriptors, how they are prepared, and what fills the templates of their WGSL (`wgsl/`).
//!
//! A shader's text depends on what kind of work it is, never on extents: those are parameters, so that nodes of many
//! shapes share what was compiled.

mod attention;
mod conv;
mod conv_transpose;
mod cost;
mod einsum;
mod element;
mod elementwise;
mod epilogue;
mod fill;
mod fused;
mod grid_sample;
mod index;
mod int_product;
mod join;
mod lines;
pub(crate) mod math;
mod matmul;
mod moved;
mod movement;
mod norms;
mod order;
mod pad;
mod pool;
mod product;
mod quantised;
mod random;
mod reduce;
mod resize;
mod rnn;
mod rotary;
mod scan;
mod scatter;
mod signal;
mod softmax;
mod subgroups;
mod tiles;
mod walk;
mod window;

use crate::target::Target;
use devbay_plugin_api::sdk::{Error, Kernel, Result, TensorView};

type List = &'static [Kernel<Target>];

const LISTS: &[List] = &[
    elementwise::KERNELS,
    fused::KERNELS,
    matmul::KERNELS,
    conv::KERNELS,
    quantised::KERNELS,
    int_product::KERNELS,
    einsum::KERNELS,
    conv_transpose::KERNELS,
    pool::KERNELS,
    movement::KERNELS,
    join::KERNELS,
    index::KERNELS,
    pad::KERNELS,
    scatter::KERNELS,
    resize::KERNELS,
    grid_sample::KERNELS,
    order::KERNELS,
    scan::KERNELS,
    fill::KERNELS,
    random::KERNELS,
    reduce::KERNELS,
    softmax::KERNELS,
    norms::KERNELS,
    rnn::KERNELS,
    signal::KERNELS,
    attention::KERNELS,
    rotary::KERNELS,
];

/// All of them, in the order in which `devbay inspect` prints them.
pub const ALL: &[Kernel<Target>; count()] = &all();

const fn count() -> usize {
    let (mut n, mut list) = (0, 0);
    while list < LISTS.len() {
        n += LISTS[list].len();
        list += 1;
    }
    n
}

const fn all() -> [Kernel<Target>; count()] {
    let mut all = [LISTS[0][0]; count()];
    let (mut at, mut list) = (0, 0);
    while list < LISTS.len() {
        let mut i = 0;
        while i < LISTS[list].len() {
            all[at] = LISTS[list][i];
            at += 1;
            i += 1;
        }
        list += 1;
    }
    all
}

/// Refuses an output of another shape than its input's.
fn same_shape(x: &TensorView<'_>, y: &TensorView<'_>) -> Result<()> {
    if x.shape() == y.shape() {
        return Ok(());
    }
    Err(Error::invalid(format!("an output of shape {:?} for an input of {:?}", y.shape(), x.shape())))
}
