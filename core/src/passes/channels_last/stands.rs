//! The order that each image has as it stands.
//!
//! A program does not say which axis of a value has the channels. Convolutions and pools do, as do transpositions between the
//! two orders, and a node that follows the order of its images has them all in the same one. An image of which no node tells
//! stands with its channels second: it is as good as any name.

use super::axes::{RANKS, Turned};
use super::follower::Follower;
use super::orders::Order;
use crate::cancel::look;
use crate::error::Result;
use crate::program::{Node, Program, Region, ValueId};

/// What a node has to do with the order of images.
pub enum Standing {
    /// It needs them as they are.
    Stays,
    /// It makes an image of itself in the other order.
    Reorders(ValueId, ValueId),
    /// It follows their order.
    Follows(Follower),
}

/// The order of images as they stand, and what each node has to do with it.
pub struct Stands {
    orders: Same,
    pub nodes: Vec<Standing>,
}

impl Stands {
    /// Of a region, where nodes `stay`.
    ///
    /// # Errors
    /// Cancelled, or past the deadline.
    pub fn of_region(program: &Program, region: &Region, stay: &dyn Fn(&Node) -> bool) -> Result<Self> {
        let mut stands = Self { orders: Same::new(program.values.len()), nodes: Vec::new() };
        for node in &region.nodes {
            look()?;
            let follower = Follower::of(program, node).filter(|_| !stay(node));
            stands.nodes.push(follower.map_or(Standing::Stays, Standing::Follows));
        }
        // Those that say the order come first. Where the others contradict them, or each other, they stay.
        for says in [true, false] {
            for (node, standing) in region.nodes.iter().zip(&mut stands.nodes) {
                let Standing::Follows(follower) = standing else { continue };
                if follower.stands.is_some() == says && !stands.orders.follows(program, node, follower) {
                    *standing = Standing::Stays;
                }
            }
        }
        for (node, standing) in region.nodes.iter().zip(&mut stands.nodes) {
            if !stay(node)
                && let Some((source, result)) = stands.orders.reorders(program, node)
            {
                *standing = Standing::Reorders(source, result);
            }
        }
        Ok(stands)
    }

    /// Returns the order of an image.
    pub fn order(&self, id: ValueId) -> Order {
        match self.orders.root(id.idx()) {
            (_, false) => Order::Second,
            (_, true) => Order::Last,
        }
    }
}

/// Values of the same order, or of the opposite one: trees, whose roots are of an order by chance. One more node, whose channels
/// are second, is the root of those of which it is known.
struct Same {
    /// For each value, one that is nearer to the root, and whether it has the other order.
    towards: Vec<(usize, bool)>,
}

impl Same {
    fn new(n_values: usize) -> Self {
        Self { towards: (0..=n_values).map(|id| (id, false)).collect() }
    }

    /// The value whose channels are second.
    fn second(&self) -> usize {
        self.towards.len() - 1
    }

    /// Returns the root of a value, and whether that has the other order.
    fn root(&self, of: usize) -> (usize, bool) {
        let (mut at, mut is_other) = (of, false);
        loop {
            let (towards, turns) = self.towards[at];
            if towards == at {
                return (at, is_other);
            }
            (at, is_other) = (towards, is_other != turns);
        }
    }

    /// Notes that two values have the same order, or the opposite one; false if that cannot be.
    fn note(&mut self, a: usize, b: usize, is_other: bool) -> bool {
        let ((a, a_turns), (b, b_turns)) = (self.root(a), self.root(b));
        let turns = a_turns ^ b_turns ^ is_other;
        if a == b {
            return !turns;
        }
        let (child, root) = if b == self.second() { (a, b) } else { (b, a) };
        self.towards[child] = (root, turns);
        true
    }

    /// Notes that a node's images have the same order, that of the op if it says one.
    fn follows(&mut self, program: &Program, node: &Node, follower: &Follower) -> bool {
        let made = node.outputs.iter().flatten().copied().filter(|_| follower.makes);
        let mut images =
            follower.images(node).chain(made).filter(|id| program.constant(*id).is_none()).map(ValueId::idx);
        let (first, is_other) = match follower.stands {
            Some(order) => (self.second(), order == Order::Last),
            None => match images.next() {
                Some(first) => (first, false),
                None => return true,
            },
        };
        images.all(|id| self.note(first, id, is_other))
    }

    /// Returns the operand and the result of a node that makes an image of itself in the other order: a Transpose, or a
    /// Reshape where only extents of 1 move.
    fn reorders(&mut self, program: &Program, node: &Node) -> Option<(ValueId, ValueId)> {
        let (source, result) = (node.input(0)?, node.output(0)?);
        let shape = |id: ValueId| program.value(id).ty.as_ref()?.known_shape();
        let (from, to) = (shape(source)?, shape(result)?);
        if program.constant(source).is_some() || !RANKS.contains(&from.len()) || from.len() != to.len() {
            return None;
        }
        let does = |order: Order| {
            let turned = Turned::from(order, from.len());
            match &*node.op.name {
                "Transpose" => node.ints("perm").is_some_and(|perm| turned.is(perm)),
                "Reshape" => turned.is_view(&from) && from != to && turned.of(&from) == to,
                _ => false,
            }
        };
        if !node.op.domain.is_empty() {
            return None;
        }
        let is_possible = match (does(Order::Second), does(Order::Last)) {
            (false, false) => false,
            (true, true) => self.note(source.idx(), result.idx(), true),
            (is_second, _) => {
                let second = self.second();
                self.note(second, source.idx(), !is_second) && self.note(second, result.idx(), is_second)
            }
        };
        is_possible.then_some((source, result))
    }
}
