//! Comparison of constants and attributes, for passes that look for equal nodes.
//!
//! Constants of few bytes are compared by their content, since importers, passes and each specialised program make their
//! own; larger ones by where they are.

use super::{AttrValue, Node};
use crate::tensor::Tensor;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Constants of at most so many bytes are compared by their content.
const CONTENT_BYTES_MAX: usize = 256;

/// Returns whether a constant is compared by its content.
pub(crate) fn is_small(tensor: &Tensor) -> bool {
    tensor.bytes().len() <= CONTENT_BYTES_MAX
}

/// Returns whether two constants of one type have the same content, as far as that is looked at.
pub(crate) fn same_content(a: &Tensor, b: &Tensor) -> bool {
    a.identity() == b.identity() || (is_small(a) && a.bytes() == b.bytes())
}

/// Hashes the data that [`same_content`] compares.
pub(crate) fn hash_content(tensor: &Tensor, hasher: &mut impl Hasher) {
    match is_small(tensor) {
        true => hasher.write(tensor.bytes()),
        false => tensor.identity().hash(hasher),
    }
}

/// Returns whether two nodes have the same attributes, in whatever order.
pub(crate) fn same_attrs(a: &Node, b: &Node) -> bool {
    let same = |(name, value): &(std::sync::Arc<str>, AttrValue)| {
        b.attr(name).is_some_and(|other| same_attr(value, other))
    };
    a.attrs.len() == b.attrs.len() && a.attrs.iter().all(same)
}

/// Hashes the data that [`same_attrs`] compares: nodes may differ in nothing else, and there may be very many of them.
pub(crate) fn hash_attrs(node: &Node, hasher: &mut impl Hasher) {
    let hash = |(name, value): &(std::sync::Arc<str>, AttrValue)| {
        let mut own = DefaultHasher::new();
        name.hash(&mut own);
        hash_attr(value, &mut own);
        own.finish()
    };
    // A sum, so that the order does not count.
    hasher.write_u64(node.attrs.iter().map(hash).fold(0, u64::wrapping_add));
}

fn hash_attr(value: &AttrValue, hasher: &mut impl Hasher) {
    std::mem::discriminant(value).hash(hasher);
    match value {
        AttrValue::Int(value) => value.hash(hasher),
        AttrValue::Float(value) => value.to_bits().hash(hasher),
        AttrValue::String(value) => value.hash(hasher),
        AttrValue::Ints(values) => values.hash(hasher),
        AttrValue::Floats(values) => values.iter().for_each(|value| value.to_bits().hash(hasher)),
        AttrValue::Strings(values) => values.hash(hasher),
        AttrValue::Tensor(tensor) => tensor.identity().hash(hasher),
    }
}

/// Returns whether two attributes are the same, numbers to the bit.
pub(crate) fn same_attr(a: &AttrValue, b: &AttrValue) -> bool {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    match (a, b) {
        (AttrValue::Int(a), AttrValue::Int(b)) => a == b,
        (AttrValue::Float(a), AttrValue::Float(b)) => a.to_bits() == b.to_bits(),
        (AttrValue::String(a), AttrValue::String(b)) => a == b,
        (AttrValue::Ints(a), AttrValue::Ints(b)) => a == b,
        (AttrValue::Floats(a), AttrValue::Floats(b)) => bits(a) == bits(b),
        (AttrValue::Strings(a), AttrValue::Strings(b)) => a == b,
        (AttrValue::Tensor(a), AttrValue::Tensor(b)) => {
            a.identity() == b.identity() && a.tensor_type() == b.tensor_type()
        }
        _ => false,
    }
}
