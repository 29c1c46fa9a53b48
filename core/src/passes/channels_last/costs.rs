//! The costs that decide the order of channels, in picoseconds, so that sums of them are exact.

use crate::device::rates::{Rates, WorkKind};
use crate::program::{Node, Program};
use crate::tensor::{TensorType, bytes_of, n_elements};

/// The cost of each change to a node, whose only purpose is to keep a program as it is where nothing is gained.
pub const CHANGE: u64 = 1;

/// The cost of an image in the other order if that is a view of it: nothing in a run, but nodes on its two sides are not fused. More
/// than the changes to the nodes that would do without it.
const VIEW: u64 = 1000;

/// Shares of a convolution's time that NHWC saves, by what is multiplied: estimates from measured times on the processor, where
/// they lie around these. Its windows are contiguous runs of all channels, so that no pixel is gathered for the product.
const SHARE_SAVED: f64 = 0.2;
/// Of images of so few channels, such as a model's input, most of the time goes to gathering.
const FEW: usize = 4;
const SHARE_SAVED_FEW: f64 = 0.5;
/// Each channel by itself: vectors run along channels in place of short rows of pixels.
const SHARE_SAVED_DEPTHWISE: f64 = 0.4;
/// Groups: a vector holds the channels of several ones. In the order NCHW, a group of few channels is a product too small to be fast,
/// which takes several times as long as one of as many operations.
const SHARE_SAVED_GROUPS: f64 = 12.0;

/// Returns the share that NHWC saves of the time of as many operations of this kind, where each group has so many channels of the image and of
/// the result.
fn share_saved(work: WorkKind, n_groups: usize, [c_in, c_out]: [usize; 2]) -> f64 {
    if work == WorkKind::Depthwise {
        SHARE_SAVED_DEPTHWISE
    } else if n_groups > 1 {
        SHARE_SAVED.max(SHARE_SAVED_GROUPS / c_out as f64)
    } else if c_in < FEW {
        SHARE_SAVED_FEW
    } else {
        SHARE_SAVED
    }
}

/// Returns the cost of an image in the other order: it is read and written once, unless it is a view.
pub fn of_reordering(rates: &Rates, ty: &TensorType, is_view: bool) -> u64 {
    if is_view { VIEW } else { of_moving(rates, WorkKind::Permutation, ty) }
}

/// Returns the cost of putting an image together from parts along an axis, or of taking it apart, if it has these extents. Parts that
/// are contiguous are made where they belong, or read where they are. So channels cost nothing if they come second in a batch
/// of one.
pub fn of_parts(rates: &Rates, ty: &TensorType, extents: &[usize], axis: usize) -> u64 {
    let is_contiguous = extents[..axis].iter().all(|&extent| extent == 1);
    if is_contiguous { 0 } else { of_moving(rates, WorkKind::Copying, ty) }
}

fn of_moving(rates: &Rates, kind: WorkKind, ty: &TensorType) -> u64 {
    let bytes = ty.known_shape().and_then(|shape| bytes_of(ty.dtype, n_elements(&shape)?)).unwrap_or(0);
    let rates = rates.of_work(kind);
    picoseconds(rates.launch_ns + 2.0 * bytes as f64 / rates.bytes_per_ns)
}

/// Returns the time that a convolution takes more on an image whose channels come second: a share of all of it.
pub fn of_channels_second(rates: &Rates, program: &Program, node: &Node) -> Option<u64> {
    let shape = |id| program.value(id).ty.as_ref()?.known_shape();
    let (weights, result) = (shape(node.input(1)?)?, shape(node.output(0)?)?);
    let &[n_out, c_in, ..] = weights.as_slice() else { return None };
    let n_groups = usize::try_from(node.int("group", 1)).ok().filter(|&n| n > 0)?;
    let products = n_elements(&result)? as f64 * n_elements(&weights[1..])? as f64;
    let work = WorkKind::of(program, node);
    let share = share_saved(work, n_groups, [c_in, n_out / n_groups]);
    Some(picoseconds(share * 2.0 * products / rates.of_work(work).flops_per_ns))
}

/// Rounds to picoseconds. Bounded, so that sums over a program are less than [`crate::min_cut::UNCUTTABLE`].
fn picoseconds(ns: f64) -> u64 {
    (ns * 1000.0).min((1u64 << 40) as f64) as u64
}
