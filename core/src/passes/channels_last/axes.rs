//! The axes of images in the other order.

use super::super::position;
use super::orders::Order;
use crate::program::AttrValue;
use crate::tensor::TensorType;
use std::ops::RangeInclusive;

/// Ranks of images: one to three axes along which windows slide, besides batch and channels.
pub const RANKS: RangeInclusive<usize> = 3..=5;

/// The axes of an image in the other order: for each, the axis that it was.
pub struct Turned {
    perm: Vec<usize>,
}

impl Turned {
    /// From an order to the other one.
    pub fn from(order: Order, rank: usize) -> Self {
        let mut perm: Vec<usize> = (0..rank).collect();
        match order {
            Order::Second => perm[1..].rotate_left(1),
            Order::Last => perm[1..].rotate_right(1),
        }
        Self { perm }
    }

    /// Returns the number of axes.
    pub fn rank(&self) -> usize {
        self.perm.len()
    }

    /// Returns the attribute of the Transpose.
    pub fn attr(&self) -> AttrValue {
        AttrValue::Ints(self.perm.iter().map(|&axis| axis as i64).collect())
    }

    /// Returns whether it is what a Transpose does.
    pub fn is(&self, perm: &[i64]) -> bool {
        self.perm.iter().map(|&axis| axis as i64).eq(perm.iter().copied())
    }

    /// Puts one item for each axis in the other order.
    pub fn of<T: Clone>(&self, items: &[T]) -> Vec<T> {
        self.perm.iter().map(|&axis| items[axis].clone()).collect()
    }

    /// Returns the place of an axis.
    pub fn axis(&self, axis: usize) -> usize {
        self.perm.iter().position(|&from| from == axis).unwrap_or(axis)
    }

    /// Returns the places of axes, of which some may count from the end; None if one does not exist.
    pub fn axes(&self, axes: &[i64]) -> Option<Vec<i64>> {
        let of = |&axis: &i64| position(axis, self.perm.len()).map(|axis| self.axis(axis) as i64);
        axes.iter().map(of).collect()
    }

    /// Returns whether elements of this shape stay where they are: only extents of 1 move.
    pub fn is_view(&self, shape: &[usize]) -> bool {
        self.perm.iter().filter(|&&axis| shape[axis] != 1).is_sorted()
    }

    /// Returns the type of a value in the other order.
    pub fn ty(&self, ty: &TensorType) -> Option<TensorType> {
        Some(TensorType::new(ty.dtype, &self.of(&ty.known_shape()?)))
    }
}
