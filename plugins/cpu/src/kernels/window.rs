//! Windows that slide over images: the geometry that convolutions and poolings share (ONNX Conv-11, MaxPool-12).

use super::extents::extents;
use crate::device::CpuDevice;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::{Attrs, Error, PrepareRequest, Result};

/// Spatial dimensions that are worked on, at most.
pub const SPATIAL_MAX: usize = 3;

/// Extents, steps and paddings stay below this, so that products of two of them are counted.
const REACH_MAX: usize = 1 << 31;

/// How a window slides: depth, height and width, those that an image lacks of extent 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Extents of the input.
    pub input: [usize; SPATIAL_MAX],
    /// Extents of the output.
    pub output: [usize; SPATIAL_MAX],
    /// Extents of the window.
    pub kernel: [usize; SPATIAL_MAX],
    /// Steps of the window.
    pub stride: [usize; SPATIAL_MAX],
    /// Distance between the window's elements.
    pub dilation: [usize; SPATIAL_MAX],
    /// Padding before the first element.
    pub pad: [usize; SPATIAL_MAX],
}

impl Window {
    /// Reads the attributes of a node whose input and output have the given spatial extents.
    ///
    /// # Errors
    /// Invalid for attributes that break the specification, unsupported for more than three dimensions.
    pub fn of(attrs: &Attrs<'_>, kernel: &[usize], input: &[usize], output: &[usize]) -> Result<Self> {
        let rank = input.len();
        if rank == 0 || rank > SPATIAL_MAX {
            return Err(Error::unsupported(format!(
                "a window over {rank} dimensions, 1 to {SPATIAL_MAX} are"
            )));
        }
        if kernel.len() != rank || output.len() != rank {
            return Err(Error::invalid(format!(
                "a window of {} dimensions over {rank} into {}",
                kernel.len(),
                output.len()
            )));
        }
        let list = |name: &str| -> Result<Vec<usize>> {
            let Some(values) = attrs.ints(name)? else {
                return Ok(vec![1; rank]);
            };
            if values.len() != rank || values.iter().any(|&value| value < 1) {
                return Err(Error::invalid(format!("attribute {name} is not {rank} numbers above 0")));
            }
            let known = |&value: &i64| usize::try_from(value).ok().filter(|&value| value < REACH_MAX);
            let sizes: Option<Vec<usize>> = values.iter().map(known).collect();
            sizes.ok_or_else(|| Error::unsupported(format!("{name} of {values:?}, below 2^31 are")))
        };
        let (stride, dilation) = (list("strides")?, list("dilations")?);
        if kernel.iter().any(|&extent| extent >= REACH_MAX) {
            return Err(Error::unsupported(format!("a window of {kernel:?}, extents below 2^31 are")));
        }
        let span = |i: usize| (kernel[i].max(1) - 1) * dilation[i] + 1;
        let auto_pad = attrs.string("auto_pad", "NOTSET")?;
        let pads = attrs.ints("pads")?;
        let mut pad = vec![0usize; rank];
        for i in 0..rank {
            pad[i] = match auto_pad {
                "NOTSET" | "" => match &pads {
                    None => 0,
                    Some(pads) if pads.len() == 2 * rank => usize::try_from(pads[i])
                        .ok()
                        .filter(|&pad| pad < REACH_MAX)
                        .ok_or_else(|| Error::unsupported(format!("a padding of {}", pads[i])))?,
                    Some(pads) => {
                        return Err(Error::invalid(format!(
                            "{} paddings, expected {}",
                            pads.len(),
                            2 * rank
                        )));
                    }
                },
                "VALID" => 0,
                "SAME_UPPER" | "SAME_LOWER" => {
                    let needed = (output[i].max(1) - 1).saturating_mul(stride[i]).saturating_add(span(i));
                    let total = needed.saturating_sub(input[i]);
                    let pad = if auto_pad == "SAME_UPPER" { total / 2 } else { total.div_ceil(2) };
                    Some(pad)
                        .filter(|&pad| pad < REACH_MAX)
                        .ok_or_else(|| Error::unsupported(format!("a padding of {pad}")))?
                }
                other => return Err(Error::invalid(format!("auto_pad {other}"))),
            };
        }
        let mut window = Self {
            input: [1; SPATIAL_MAX],
            output: [1; SPATIAL_MAX],
            kernel: [1; SPATIAL_MAX],
            stride: [1; SPATIAL_MAX],
            dilation: [1; SPATIAL_MAX],
            pad: [0; SPATIAL_MAX],
        };
        for i in 0..rank {
            let at = SPATIAL_MAX - rank + i;
            window.input[at] = input[i];
            window.output[at] = output[i];
            window.kernel[at] = kernel[i];
            window.stride[at] = stride[i];
            window.dilation[at] = dilation[i];
            window.pad[at] = pad[i];
        }
        window.check_sizes()?;
        Ok(window)
    }

    /// Checks that every position of a window, and the number of its elements, can be counted with room to spare:
    /// kernels multiply them without asking again.
    fn check_sizes(&self) -> Result<()> {
        const POSITION_MAX: usize = 1 << 50;
        let end = |i: usize| {
            let begin = Size::of(self.output[i].max(1) - 1) * self.stride[i];
            begin + Size::of(self.kernel[i].max(1) - 1) * self.dilation[i] + 1
        };
        let ends = (0..SPATIAL_MAX).map(end);
        let n_taps = Size::of_extents(&self.kernel.map(|extent| extent.max(1)));
        let rows = Size::of_extents(&[0, 1].map(end).map(Size::saturated));
        if ends.chain([n_taps, rows]).all(|size| size.saturated() <= POSITION_MAX) {
            return Ok(());
        }
        Err(Error::unsupported(format!("a window that goes on as far as {self:?}")))
    }

    /// Elements of one channel of the input.
    pub fn n_input(&self) -> usize {
        self.input.iter().product()
    }

    /// Elements of one channel of the output.
    pub fn n_output(&self) -> usize {
        self.output.iter().product()
    }

    /// Elements of the window.
    pub fn n_taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Whether each output element is made of the input element at its own place.
    pub fn is_pointwise(&self) -> bool {
        self.n_taps() == 1
            && self.stride == [1; SPATIAL_MAX]
            && self.pad == [0; SPATIAL_MAX]
            && self.input == self.output
    }
}

/// The extents of an image batch: images, channels, and the rest.
///
/// # Errors
/// Invalid for fewer than three dimensions.
pub fn image(extents: &[usize]) -> Result<(usize, usize, &[usize])> {
    match extents {
        [images, channels, spatial @ ..] if !spatial.is_empty() => Ok((*images, *channels, spatial)),
        _ => Err(Error::invalid(format!("an image batch of rank {}", extents.len()))),
    }
}

/// The extents of an input and an output of a request.
///
/// # Errors
/// Invalid if one is missing.
pub fn in_and_out(request: &PrepareRequest<'_, CpuDevice>) -> Result<(Vec<usize>, Vec<usize>)> {
    Ok((extents(request.required_input(0)?)?, extents(request.required_output(0)?)?))
}
