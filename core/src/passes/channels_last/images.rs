//! The images of a region, with the nodes that make and read them: what the choice of orders is about.
//!
//! A value and its transpositions between the two orders are one image. An image that the region does not make is there in the
//! order in which it stands; one that goes out of it, or into a nested region, is needed so.

use super::super::Around;
use super::super::uses::reads;
use super::axes::{RANKS, Turned};
use super::costs;
use super::orders::{Choice, Image, Label, Order};
use super::stands::{Standing, Stands};
use super::turn::{Operand, Turn};
use crate::cancel::look;
use crate::device::rates::Rates;
use crate::error::Result;
use crate::program::{DEVBAY_DOMAIN, Node, Program, Region, ValueId};
use std::collections::{HashMap, HashSet};

/// The images of a region.
#[derive(Default)]
pub struct Images {
    /// What may become of each node.
    pub roles: Vec<Role>,
    /// By value, the image that it is, and its order.
    pub known: HashMap<ValueId, (usize, Order)>,
    /// For each image, its values, the first one of which the others are transpositions.
    pub values: Vec<Vec<ValueId>>,
    /// The choice of orders: its images are these, its free nodes those that follow.
    pub choice: Choice,
}

/// What may become of a node.
pub enum Role {
    /// It needs its images as they stand.
    Stays,
    /// It makes an image of itself in the other order.
    Reorders,
    /// It is the free node of this number.
    Follows(usize, Box<Turn>),
}

impl Images {
    /// Of a region; None if there is no convolution that may have its channels last.
    ///
    /// # Errors
    /// Cancelled, or past the deadline.
    pub fn of_region(program: &Program, region: &Region, around: &Around<'_>) -> Result<Option<Self>> {
        let is_convolution = |node: &Node| {
            node.op.is("Conv") || &*node.op.domain == DEVBAY_DOMAIN && node.op.name.ends_with("FusedConv")
        };
        if !region.nodes.iter().any(is_convolution) {
            return Ok(None);
        }
        let stands = Stands::of_region(program, region, around.stay)?;
        let mut found = Found { program, stands: &stands, rates: &around.rates, images: Self::default() };
        for (node, standing) in region.nodes.iter().zip(&stands.nodes) {
            look()?;
            let role = match standing {
                Standing::Stays => found.stays(node),
                Standing::Reorders(source, result) => found.reorders(*source, *result),
                Standing::Follows(follower) => {
                    let image = follower.images(node).find(|id| program.constant(*id).is_none());
                    let order = image.map_or(Order::Second, |id| stands.order(id));
                    let turn = Turn::of(program, node, follower, order, (around.kernels, &around.rates));
                    match turn {
                        Some(turn) => found.follows(node, follower.makes, order, turn),
                        None => found.stays(node),
                    }
                }
            };
            found.images.roles.push(role);
        }
        region.outputs.iter().for_each(|id| found.read(*id, None));
        Ok(Some(found.images))
    }

    /// Returns the image that a value is, and its order; None if it is none.
    pub fn get(&self, id: ValueId) -> Option<(usize, Order)> {
        self.known.get(&id).copied()
    }
}

/// The images that were found so far.
struct Found<'a> {
    program: &'a Program,
    stands: &'a Stands,
    rates: &'a Rates,
    images: Images,
}

impl Found<'_> {
    fn stays(&mut self, node: &Node) -> Role {
        read_by(node).into_iter().for_each(|id| self.read(id, None));
        node.outputs.iter().flatten().for_each(|id| self.make(*id, None));
        Role::Stays
    }

    fn reorders(&mut self, source: ValueId, result: ValueId) -> Role {
        let image = self.image(source).expect("what is reordered is an image");
        self.images.known.insert(result, (image, self.stands.order(result)));
        self.images.values[image].push(result);
        Role::Reorders
    }

    fn follows(&mut self, node: &Node, makes: bool, stands: Order, turn: Turn) -> Role {
        let number = self.images.choice.free.len();
        let mut costs = turn.costs;
        costs[stands.other() as usize] += costs::CHANGE;
        self.images.choice.free.push(costs);
        for (operand, id) in turn.operands.iter().zip(&node.inputs) {
            let free = matches!(operand, Operand::Image).then_some(Label::Free(number));
            id.iter().for_each(|id| self.read(*id, free));
        }
        let free = makes.then_some(Label::Free(number));
        node.outputs.iter().flatten().for_each(|id| self.make(*id, free));
        Role::Follows(number, Box::new(turn))
    }

    fn read(&mut self, id: ValueId, by: Option<Label>) {
        if let Some(image) = self.image(id) {
            let label = by.unwrap_or(Label::Fixed(self.stands.order(id)));
            self.images.choice.images[image].readers.push(label);
        }
    }

    fn make(&mut self, id: ValueId, by: Option<Label>) {
        if let (Some(image), Some(label)) = (self.image(id), by) {
            self.images.choice.images[image].maker = label;
        }
    }

    /// Returns the image that a value is; None for constants, and for values of other ranks or of extents that are not known.
    fn image(&mut self, id: ValueId) -> Option<usize> {
        if let Some((image, _)) = self.images.get(id) {
            return Some(image);
        }
        let value = self.program.value(id);
        let ty = value.ty.as_ref().filter(|_| value.constant.is_none())?;
        let shape = ty.known_shape().filter(|shape| RANKS.contains(&shape.len()))?;
        let order = self.stands.order(id);
        let is_view = Turned::from(order, shape.len()).is_view(&shape);
        let reordering = costs::of_reordering(self.rates, ty, is_view);
        let image = self.images.values.len();
        self.images.known.insert(id, (image, order));
        self.images.values.push(vec![id]);
        self.images.choice.images.push(Image { maker: Label::Fixed(order), readers: Vec::new(), reordering });
        Some(image)
    }
}

/// Returns the values that a node and its nested regions read, in the order of their numbers.
pub fn read_by(node: &Node) -> Vec<ValueId> {
    let mut all = HashSet::new();
    reads(node, &mut all);
    let mut all: Vec<ValueId> = all.into_iter().collect();
    all.sort_unstable();
    all
}
