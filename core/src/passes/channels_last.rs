//! Chooses for each image whether its channels come second (NCHW) or last (NHWC), and rewrites the program so.
//!
//! Models say NCHW, or NHWC with transpositions around each convolution. Kernels for convolutions over NHWC are faster, and other
//! ops do not mind; reordering an image between the two takes as long as a small convolution. So the choice is one for the
//! whole region: the cut of least cost (`orders`) through its images and the nodes that make and read them (`images`).
//! The transpositions that a program has already are images in their other order, and are made or not as it suits.
//!
//! A convolution whose channels come last is `devbay.NhwcFusedConv`, a pool `devbay.NhwcMaxPool` or `devbay.NhwcAveragePool`;
//! a global pool is a reduction over the axes in the middle. All other ops are the same ones, with their axes elsewhere
//! (`turn`). Inputs, results, captured values, pinned nodes and ops that are not known here keep the order in which they stand.
//!
//! A second run finds what the first one chose: it would be another choice of the same cost, and changes cost a little.

mod axes;
mod costs;
mod follower;
mod images;
mod orders;
mod rewrite;
mod stands;
#[cfg(test)]
mod tests;
mod turn;

use super::{Around, each_region};
use crate::error::Result;
use crate::program::{DEVBAY_DOMAIN, Program};
use images::Images;

/// Turns nodes if the device has kernels for convolutions over NHWC, except nodes that stay. Returns the number of turned nodes.
///
/// # Errors
/// Out of memory for constants; cancelled, or past the deadline.
pub fn run(program: &mut Program, around: &Around<'_>) -> Result<usize> {
    if !around.kernels.has(DEVBAY_DOMAIN, "NhwcFusedConv") {
        return Ok(0);
    }
    each_region(program, &mut |program, region| {
        let Some(images) = Images::of_region(program, region, around)? else { return Ok(0) };
        let orders = images.choice.cheapest();
        rewrite::rewrite(program, region, &images, &orders)
    })
}
