//! Reads the sliding windows of convolutions and poolings (ONNX Conv-11, MaxPool-12).

use crate::NodeAttrs;
use devbay_plugin_api::sdk::{Attrs, Error, Result};

/// Maximum number of spatial dimensions that most kernels support.
pub const SPATIAL_MAX: usize = 3;

/// The padding around an image before a window slides over it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Padding {
    /// Explicit amounts before and after each axis.
    Explicit(Vec<(i64, i64)>),
    /// No padding, and partial windows do not count.
    Valid,
    /// Pads so that the result is the image divided by the stride, with an odd element after it.
    SameUpper,
    /// Pads likewise, with an odd element before it.
    SameLower,
}

/// The attributes of a window before any extent is known.
pub(crate) struct Sliding {
    /// Steps of the window, from 1.
    pub strides: Vec<i64>,
    /// Distance between the window's elements, from 1.
    pub dilations: Vec<i64>,
    pub padding: Padding,
}

impl Sliding {
    /// Reads the attributes of a node whose window has `rank` dimensions.
    ///
    /// # Errors
    /// Invalid for attributes that break the specification.
    pub fn of(attrs: &dyn NodeAttrs, rank: usize) -> Result<Self> {
        let padding = match attrs.string("auto_pad", "NOTSET")? {
            "SAME_UPPER" => Padding::SameUpper,
            "SAME_LOWER" => Padding::SameLower,
            "VALID" => Padding::Valid,
            "NOTSET" | "" => Padding::Explicit(match sizes(attrs, "pads", 2 * rank, 0)? {
                Some(pads) => (0..rank).map(|i| (pads[i], pads[rank + i])).collect(),
                None => vec![(0, 0); rank],
            }),
            other => {
                return Err(Error::invalid(format!(
                    "expected auto_pad NOTSET, SAME_UPPER, SAME_LOWER or VALID, found {other}"
                )));
            }
        };
        let ones_or = |said: Option<&[i64]>| said.map_or_else(|| vec![1; rank], <[i64]>::to_vec);
        let strides = ones_or(sizes(attrs, "strides", rank, 1)?);
        let dilations = ones_or(sizes(attrs, "dilations", rank, 1)?);
        Ok(Self { strides, dilations, padding })
    }

    /// Returns the padding before and after an axis; None if that depends on the result.
    pub fn padding_of(&self, i: usize) -> Option<(i64, i64)> {
        match &self.padding {
            Padding::Explicit(pads) => Some(pads[i]),
            Padding::Valid => Some((0, 0)),
            Padding::SameUpper | Padding::SameLower => None,
        }
    }
}

/// Returns an attribute with a number per axis, none below `min`. An empty list is invalid: ONNX's own inference refuses it,
/// and so does every runtime that uses it.
///
/// # Errors
/// Invalid for other lists.
pub(crate) fn sizes<'a>(
    attrs: &'a dyn NodeAttrs,
    name: &str,
    n: usize,
    min: i64,
) -> Result<Option<&'a [i64]>> {
    match attrs.ints(name)? {
        Some(list) if list.len() != n || list.iter().any(|&size| size < min) => {
            Err(Error::invalid(format!("expected {n} numbers of at least {min} as {name}, found {list:?}")))
        }
        list => Ok(list),
    }
}

/// A sliding window over the spatial dimensions of an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Window {
    /// Extents of the window.
    pub kernel: Vec<i64>,
    /// Steps of the window, from 1.
    pub strides: Vec<i64>,
    /// Distance between the window's elements, from 1.
    pub dilations: Vec<i64>,
    /// Padding before the first element and after the last one.
    pub pads: Vec<(i64, i64)>,
}

impl Window {
    /// Reads the attributes of a node whose input and output have the given spatial extents. The window's extents and the
    /// attributes must be below `limit`.
    ///
    /// # Errors
    /// Invalid for attributes that break the specification; unsupported for values that reach the limit.
    pub fn of(attrs: &Attrs<'_>, kernel: &[i64], input: &[i64], output: &[i64], limit: i64) -> Result<Self> {
        let rank = input.len();
        if kernel.len() != rank || output.len() != rank {
            let (of_kernel, of_output) = (kernel.len(), output.len());
            let text = format!("a window of {of_kernel} dimensions over {rank} into {of_output}");
            return Err(Error::invalid(text));
        }
        let sliding = Sliding::of(attrs, rank)?;
        for (name, values) in [("strides", &sliding.strides), ("dilations", &sliding.dilations)] {
            if let Some(value) = values.iter().find(|&&value| value >= limit) {
                return Err(Error::unsupported(format!("{name} of {value}, below {limit} are")));
            }
        }
        let is_counted = |list: &[i64]| list.iter().all(|extent| (0..limit).contains(extent));
        if !is_counted(kernel) {
            return Err(Error::unsupported(format!("a window of {kernel:?}, extents below {limit} are")));
        }
        let mut pads = Vec::with_capacity(rank);
        for i in 0..rank {
            let (before, after) = sliding.padding_of(i).unwrap_or_else(|| {
                let total = same(kernel[i], sliding.strides[i], sliding.dilations[i], input[i], output[i]);
                let less = total / 2;
                match sliding.padding {
                    Padding::SameLower => (total - less, less),
                    _ => (less, total - less),
                }
            });
            if !is_counted(&[before, after]) {
                return Err(Error::unsupported(format!("a padding of {before} and {after}")));
            }
            pads.push((before, after));
        }
        let Sliding { strides, dilations, .. } = sliding;
        Ok(Self { kernel: kernel.to_vec(), strides, dilations, pads })
    }

    /// Returns the input elements from the window's first to its last one, along a dimension.
    pub fn span(&self, i: usize) -> i64 {
        (self.kernel[i].max(1) - 1).saturating_mul(self.dilations[i]).saturating_add(1)
    }
}

/// Returns the padding that gives the window the expected number of positions.
fn same(kernel: i64, stride: i64, dilation: i64, input: i64, output: i64) -> i64 {
    // An empty image gets no padding.
    let span = match output {
        0 => 0,
        _ => (kernel.max(1) - 1).saturating_mul(dilation).saturating_add(1),
    };
    let places = (output.max(1) - 1).saturating_mul(stride);
    places.saturating_add(span).saturating_sub(input).max(0)
}
