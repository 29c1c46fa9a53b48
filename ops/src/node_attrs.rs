//! Attributes of a node, borrowed from a program or from a plugin's view of it.

use crate::types::DType;
use devbay_plugin_api::sdk::{AttrContent, Attrs, Error, Result};

/// The attributes of a node, by name.
pub trait NodeAttrs {
    /// Returns the attribute called `name`.
    fn get(&self, name: &str) -> Option<AttrRef<'_>>;
}

/// Value of an attribute, borrowed.
///
/// Lists of numbers and texts are reduced to their lengths, tensors to their element types: no result's type depends on
/// more.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum AttrRef<'a> {
    /// One integer.
    Int(i64),
    /// One number.
    Float(f32),
    /// Text.
    String(&'a str),
    /// Integers.
    Ints(&'a [i64]),
    /// The length of a list of numbers.
    Floats(usize),
    /// The length of a list of texts.
    Strings(usize),
    /// A tensor of this element type.
    Tensor(DType),
    /// A graph.
    Graph,
}

impl dyn NodeAttrs + '_ {
    /// Returns a text, or `default`.
    ///
    /// # Errors
    /// Invalid for an attribute of another kind.
    pub fn string<'a>(&'a self, name: &str, default: &'a str) -> Result<&'a str> {
        match self.get(name) {
            None => Ok(default),
            Some(AttrRef::String(value)) => Ok(value),
            Some(_) => Err(Error::invalid(format!("attribute {name} is no string"))),
        }
    }

    /// Returns integers, if present.
    ///
    /// # Errors
    /// Invalid for an attribute of another kind.
    pub fn ints(&self, name: &str) -> Result<Option<&[i64]>> {
        match self.get(name) {
            None => Ok(None),
            Some(AttrRef::Ints(values)) => Ok(Some(values)),
            Some(_) => Err(Error::invalid(format!("attribute {name} is no list of integers"))),
        }
    }
}

impl NodeAttrs for Attrs<'_> {
    fn get(&self, name: &str) -> Option<AttrRef<'_>> {
        Some(match Attrs::get(self, name)? {
            AttrContent::Int(value) => AttrRef::Int(*value),
            AttrContent::Float(value) => AttrRef::Float(*value as f32),
            AttrContent::String(value) => AttrRef::String(value),
            AttrContent::Ints(values) => AttrRef::Ints(values),
            AttrContent::Floats(values) => AttrRef::Floats(values.len()),
            AttrContent::Strings(values) => AttrRef::Strings(values.len()),
            AttrContent::Tensor(tensor) => AttrRef::Tensor(tensor.dtype()),
            AttrContent::Graph(_) => AttrRef::Graph,
        })
    }
}
