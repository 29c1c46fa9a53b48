//! Products of matrices and of rows, and what is done to a product before it is written.

pub(super) mod dense;
pub(super) mod det;
pub(super) mod einsum;
pub(super) mod epilogue;
pub(super) mod int_product;
pub(super) mod int_tile;
pub(super) mod inverse;
pub(super) mod matmul;
pub(super) mod matmul_dequantized;
#[cfg(test)]
mod matmul_dequantized_tests;
pub(super) mod matmul_integer;
pub(super) mod micro;
#[cfg(target_arch = "x86_64")]
pub(super) mod pairs;
pub(super) mod panels;
pub(super) mod product_any;
pub(super) mod small_panels;
pub(super) mod small_tile;
pub(super) mod tile;
pub(super) mod tiled;
#[cfg(test)]
mod tiled_tests;
