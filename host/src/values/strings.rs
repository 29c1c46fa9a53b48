//! Strings: texts with a shape, row-major, shared.

use devbay_core::tensor::n_elements;
use devbay_core::{Error, ErrorKind, Result};
use std::sync::Arc;

/// Texts in UTF-8 with a shape, row-major. Clones share them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Strings {
    shape: Arc<[usize]>,
    elements: Arc<[Arc<str>]>,
}

impl Strings {
    /// Makes strings of a shape.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there are not as many elements as the shape has.
    pub fn new(shape: &[usize], elements: Vec<Arc<str>>) -> Result<Self> {
        if n_elements(shape) != Some(elements.len()) {
            let text = format!("{} strings do not have the shape {shape:?}", elements.len());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        Ok(Self { shape: shape.into(), elements: elements.into() })
    }

    /// Makes strings of a shape from texts, which are copied.
    ///
    /// # Errors
    /// As [`Strings::new`].
    pub fn from_texts<T: AsRef<str>>(shape: &[usize], texts: &[T]) -> Result<Self> {
        Self::new(shape, texts.iter().map(|text| Arc::from(text.as_ref())).collect())
    }

    /// Returns the extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the texts, row-major.
    pub fn elements(&self) -> &[Arc<str>] {
        &self.elements
    }
}
