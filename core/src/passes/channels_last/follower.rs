//! Nodes that can have their images in either order.

use super::super::is_elementwise;
use super::axes::RANKS;
use super::orders::Order;
use crate::program::{DEVBAY_DOMAIN, Node, Op, Program, ValueId};
use crate::tensor::n_elements;
use std::ops::RangeInclusive;

/// Ops with an axis, which moves with the others, and the axis if the attribute is absent.
pub const ALONG_AXIS: &[(&str, i64)] = &[
    ("Concat", 0),
    ("Hardmax", -1),
    ("LogSoftmax", -1),
    ("LpNormalization", -1),
    ("Softmax", -1),
    ("Split", 0),
];

/// Ops that reduce the axes of their second operand, all of them if it is absent.
pub const REDUCTIONS: &[&str] = &[
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
];

/// A node that can have its images in either order, as it stands.
pub struct Follower {
    /// Positions of the operands that are images in its order.
    pub reads: Vec<usize>,
    /// True if its results are, too.
    pub makes: bool,
    /// The rank of the images that it reads.
    pub rank: usize,
    /// The order that they have, if the op says so.
    pub stands: Option<Order>,
}

impl Follower {
    /// Returns how a node follows the order of its images; None for a node that has no images, or needs them as they are.
    pub fn of(program: &Program, node: &Node) -> Option<Self> {
        let shape = |id: ValueId| program.value(id).ty.as_ref()?.known_shape();
        let name = &*node.op.name;
        let of_first = |makes, stands| {
            let rank = shape(node.input(0)?)?.len();
            Some(Self { reads: vec![0], makes, rank, stands })
        };
        let follower = match (&*node.op.domain, name) {
            ("", "Conv") | (DEVBAY_DOMAIN, "FusedConv" | "NhwcFusedConv") => {
                let stands = if name == "NhwcFusedConv" { Order::Last } else { Order::Second };
                let reads = [0, 3].into_iter().filter(|&i| node.input(i).is_some()).collect();
                Self { reads, ..of_first(true, Some(stands))? }
            }
            ("", "MaxPool" | "AveragePool" | "GlobalAveragePool" | "GlobalMaxPool") => {
                of_first(true, Some(Order::Second))?
            }
            (DEVBAY_DOMAIN, "NhwcMaxPool" | "NhwcAveragePool") => of_first(true, Some(Order::Last))?,
            ("", "Concat") => Self { reads: (0..node.inputs.len()).collect(), ..of_first(true, None)? },
            ("", "Slice" | "Pad" | "Resize" | "QuantizeLinear" | "DequantizeLinear") => of_first(true, None)?,
            ("", "ArgMax" | "ArgMin") => of_first(node.int("keepdims", 1) != 0, None)?,
            ("", name) if VIEWS.contains(&name) => {
                let (from, to) = (shape(node.input(0)?)?, shape(node.output(0)?)?);
                let may_be = |order| keeps_channels(order, &from, &to);
                of_first(true, None).filter(|_| may_be(Order::Second) || may_be(Order::Last))?
            }
            ("", _) if ALONG_AXIS.iter().any(|(op, _)| *op == name) => of_first(true, None)?,
            ("", _) if REDUCTIONS.contains(&name) => of_first(node.int("keepdims", 1) != 0, None)?,
            _ if is_elementwise(&node.op) || is_like_elementwise(&node.op) => {
                let whole = shape(node.output(0)?)?.len();
                let is_image = |id: ValueId| {
                    shape(id).filter(|shape| shape.len() == whole && n_elements(shape) != Some(1))
                };
                let reads = (0..node.inputs.len()).filter(|&i| node.input(i).and_then(is_image).is_some());
                Self { reads: reads.collect(), makes: true, rank: whole, stands: None }
            }
            _ => return None,
        };
        let is_of = |id: ValueId, ranks: RangeInclusive<usize>| {
            shape(id).is_some_and(|shape| ranks.contains(&shape.len()) && !shape.contains(&0))
        };
        let mut made = node.outputs.iter().flatten().filter(|_| follower.makes);
        let is_whole = RANKS.contains(&follower.rank)
            && follower.images(node).all(|id| is_of(id, follower.rank..=follower.rank))
            && made.all(|id| is_of(*id, RANKS));
        is_whole.then_some(follower)
    }

    /// Returns the operands that are images in the node's order, constants included.
    pub fn images(&self, node: &Node) -> impl Iterator<Item = ValueId> {
        self.reads.iter().filter_map(|&i| node.input(i))
    }
}

/// Ops that change the extents alone.
pub const VIEWS: &[&str] = &["Flatten", "Reshape", "Squeeze", "Unsqueeze"];

/// Returns whether a view leaves batch and channels of an image of this order alone: then it is a view in the other order, too.
pub fn keeps_channels(order: Order, from: &[usize], to: &[usize]) -> bool {
    let is_image = |shape: &[usize]| RANKS.contains(&shape.len());
    is_image(from)
        && is_image(to)
        && from[0] == to[0]
        && match order {
            Order::Second => from[1] == to[1],
            Order::Last => from.last() == to.last(),
        }
}

/// Returns whether an op gives for each element of its operands, broadcast to each other, an element in the same place, though
/// it has no formula.
pub fn is_like_elementwise(op: &Op) -> bool {
    op.is("Identity") || *op == Op::devbay("FusedElementwise", 1)
}
