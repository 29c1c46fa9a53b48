//! Windows that slide over images: what convolutions and poolings say of them (ONNX Conv-11, MaxPool-12).

use devbay_plugin_api::sdk::{Attrs, Error, Result};

/// Spatial dimensions that most kernels work on, at most.
pub const SPATIAL_MAX: usize = 3;

/// How a window slides, for each spatial dimension of the image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Window {
    /// Extents of the window.
    pub kernel: Vec<i64>,
    /// Steps of the window, from 1.
    pub strides: Vec<i64>,
    /// Distance between the window's elements, from 1.
    pub dilations: Vec<i64>,
    /// Padding before the first element and behind the last one.
    pub pads: Vec<(i64, i64)>,
}

impl Window {
    /// Reads the attributes of a node whose input and output have the given spatial extents. The window's, and what the attributes say,
    /// are below `limit`.
    ///
    /// # Errors
    /// Invalid for attributes that break the specification; unsupported for what reaches the limit.
    pub fn of(attrs: &Attrs<'_>, kernel: &[i64], input: &[i64], output: &[i64], limit: i64) -> Result<Self> {
        let rank = input.len();
        if kernel.len() != rank || output.len() != rank {
            let (of_kernel, of_output) = (kernel.len(), output.len());
            let text = format!("a window of {of_kernel} dimensions over {rank} into {of_output}");
            return Err(Error::invalid(text));
        }
        let list = |name: &str| -> Result<Vec<i64>> {
            let values = attrs.ints(name)?.unwrap_or_else(|| vec![1; rank]);
            if values.len() != rank || values.iter().any(|&value| value < 1) {
                return Err(Error::invalid(format!("attribute {name} is not {rank} numbers above 0")));
            }
            match values.iter().find(|&&value| value >= limit) {
                Some(value) => Err(Error::unsupported(format!("{name} of {value}, below {limit} are"))),
                None => Ok(values),
            }
        };
        let (strides, dilations) = (list("strides")?, list("dilations")?);
        let is_counted = |list: &[i64]| list.iter().all(|extent| (0..limit).contains(extent));
        if !is_counted(kernel) {
            return Err(Error::unsupported(format!("a window of {kernel:?}, extents below {limit} are")));
        }
        let auto_pad = attrs.string("auto_pad", "NOTSET")?;
        let given = attrs.ints("pads")?.unwrap_or_else(|| vec![0; 2 * rank]);
        let mut pads = Vec::with_capacity(rank);
        for i in 0..rank {
            let (before, after) = match auto_pad {
                "NOTSET" | "" if given.len() == 2 * rank => (given[i], given[rank + i]),
                "NOTSET" | "" => {
                    return Err(Error::invalid(format!("{} paddings, expected {}", given.len(), 2 * rank)));
                }
                "VALID" => (0, 0),
                "SAME_UPPER" | "SAME_LOWER" => {
                    let total = same(kernel[i], strides[i], dilations[i], input[i], output[i]);
                    let less = total / 2;
                    if auto_pad == "SAME_UPPER" { (less, total - less) } else { (total - less, less) }
                }
                other => return Err(Error::invalid(format!("auto_pad {other}"))),
            };
            if !is_counted(&[before, after]) {
                return Err(Error::unsupported(format!("a padding of {before} and {after}")));
            }
            pads.push((before, after));
        }
        Ok(Self { kernel: kernel.to_vec(), strides, dilations, pads })
    }

    /// Elements of the input from the window's first to its last one, along a dimension.
    pub fn span(&self, i: usize) -> i64 {
        (self.kernel[i].max(1) - 1).saturating_mul(self.dilations[i]).saturating_add(1)
    }
}

/// The padding with which a window has as many places as it should.
fn same(kernel: i64, stride: i64, dilation: i64, input: i64, output: i64) -> i64 {
    // Nothing is put around an empty image.
    let span = match output {
        0 => 0,
        _ => (kernel.max(1) - 1).saturating_mul(dilation).saturating_add(1),
    };
    let places = (output.max(1) - 1).saturating_mul(stride);
    places.saturating_add(span).saturating_sub(input).max(0)
}
