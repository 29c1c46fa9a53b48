//! Makes convolutions of a ConvTranspose, for devices with kernels for convolutions over NHWC.
//!
//! With a step of `s`, results at places that differ by a multiple of `s` are those of one convolution: output `q s + r` is
//! the sum over `j` of input `q + b - j` times weight `t + j s`, where `t` is the remainder of `r + pad` by `s`, and `b` the
//! quotient. So each remainder has a window of some of the weights, in reverse order, that moves by one. Remainders that see the same window
//! are one convolution of more channels. Their results are put together by a transposition of runs of channels.
//!
//! The nodes are NCHW with transpositions around what is NHWC, which `channels-last` then removes. A ConvTranspose stays if it is
//! dilated, if weights are not constant or not finite (zeros around the image are multiplied by them here), if a window would begin
//! within the image, or if there would be too many convolutions.

use super::made::Made;
use super::{Around, all_finite, each_region};
use crate::cancel::look;
use crate::error::Result;
use crate::program::{AttrValue, DEVBAY_DOMAIN, Node, Program, Region, ValueId};
use crate::tensor::{F32, Tensor};

/// Convolutions that one node becomes, at most.
const N_MAX: usize = 16;
/// Remainders, at most.
const REMAINDERS_MAX: usize = 256;

/// Makes convolutions where possible, except of nodes that stay. Returns the number of nodes that became some.
///
/// # Errors
/// Out of memory for constants; cancelled, or past the deadline.
pub fn run(program: &mut Program, around: &Around<'_>) -> Result<usize> {
    if !around.kernels.has(DEVBAY_DOMAIN, "NhwcFusedConv") {
        return Ok(0);
    }
    each_region(program, &mut |program, region| lower(program, region, around.stay))
}

fn lower(program: &mut Program, region: &mut Region, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    let mut lowered = 0;
    let mut kept = Vec::with_capacity(region.nodes.len());
    for node in std::mem::take(&mut region.nodes) {
        look()?;
        let is_one = node.op.is("ConvTranspose") && !stay(&node);
        match is_one.then(|| Transposed::of(program, &node)).flatten() {
            Some(transposed) => {
                transposed.apply(program, &node, &mut kept)?;
                lowered += 1;
            }
            None => kept.push(node),
        }
    }
    region.nodes = kept;
    Ok(lowered)
}

/// What the results with one remainder see along an axis.
#[derive(Clone, PartialEq, Eq)]
struct Window {
    /// Elements of the window, and zeros before and behind the image.
    n: usize,
    pads: [usize; 2],
}

/// An axis of the image.
struct Axis {
    /// Extents of the image and of the result.
    input: usize,
    output: usize,
    stride: usize,
    kernel: usize,
    pad: usize,
}

impl Axis {
    /// Results with each remainder.
    fn n_places(&self) -> usize {
        self.output.div_ceil(self.stride)
    }

    /// The first element of the weights for a remainder.
    fn first(&self, remainder: usize) -> usize {
        (remainder + self.pad) % self.stride
    }

    /// The window for a remainder; None if there is none, or if it begins within the image.
    fn window(&self, remainder: usize) -> Option<Window> {
        let n = self.kernel.checked_sub(self.first(remainder))?.div_ceil(self.stride);
        let before = n.checked_sub(1 + (remainder + self.pad) / self.stride)?;
        let behind = (self.n_places() + n - 1).checked_sub(self.input + before)?;
        Some(Window { n, pads: [before, behind] })
    }
}

/// Remainders one after the other, of which each sees the same windows.
struct Part {
    /// The remainders along all axes.
    remainders: Vec<Vec<usize>>,
    windows: Vec<Window>,
}

/// A ConvTranspose.
struct Transposed {
    image: ValueId,
    images: usize,
    axes: Vec<Axis>,
    groups: usize,
    /// Channels of a group, of the image and of the result.
    c_in: usize,
    c_out: usize,
    weights: Tensor,
    bias: Option<Tensor>,
    parts: Vec<Part>,
}

impl Transposed {
    fn of(program: &Program, node: &Node) -> Option<Self> {
        let shape = |id: ValueId| program.value(id).ty.as_ref().filter(|ty| ty.dtype == F32)?.known_shape();
        let (image, result) = (shape(node.input(0)?)?, shape(node.output(0)?)?);
        let weights = program.constant(node.input(1)?)?.clone();
        let ([images, channels, input @ ..], [_, _, output @ ..]) = (&image[..], &result[..]) else {
            return None;
        };
        let [_, c_out, kernel @ ..] = weights.shape() else { return None };
        let rank = input.len();
        let ints = |name: &str, absent: usize, n: usize| -> Option<Vec<usize>> {
            let all = match node.ints(name) {
                Some(all) => {
                    all.iter().map(|&value| usize::try_from(value).ok()).collect::<Option<Vec<_>>>()?
                }
                None => vec![absent; n],
            };
            (all.len() == n).then_some(all)
        };
        let (strides, pads) = (ints("strides", 1, rank)?, ints("pads", 0, 2 * rank)?);
        let has_own_pads = matches!(node.string("auto_pad", "NOTSET"), "NOTSET" | "")
            && node.attr("output_shape").is_none()
            && ints("dilations", 1, rank)?.iter().all(|&dilation| dilation == 1);
        let bias = match node.input(2) {
            Some(id) => Some(program.constant(id)?.clone()),
            None => None,
        };
        let is_possible = has_own_pads
            && (1..=3).contains(&rank)
            && kernel.len() == rank
            && weights.elements::<f32>().is_some()
            && all_finite(&weights)
            && image.iter().chain(&result).chain(kernel).chain(&strides).all(|&extent| extent > 0);
        if !is_possible {
            return None;
        }
        let axes: Vec<Axis> = (0..rank)
            .map(|i| Axis {
                input: input[i],
                output: output[i],
                stride: strides[i],
                kernel: kernel[i],
                pad: pads[i],
            })
            .collect();
        let groups = usize::try_from(node.int("group", 1)).ok().filter(|&n| n > 0)?;
        let parts = parts(&axes)?;
        let c_in = channels / groups;
        Some(Self {
            image: node.input(0)?,
            images: *images,
            groups,
            c_in,
            c_out: *c_out,
            axes,
            weights,
            bias,
            parts,
        })
    }

    fn apply(self, program: &mut Program, node: &Node, to: &mut Vec<Node>) -> Result<()> {
        let mut made = Made { program, to, dtype: F32 };
        let rank = self.axes.len();
        let places: Vec<usize> = self.axes.iter().map(Axis::n_places).collect();
        let strides: Vec<usize> = self.axes.iter().map(|axis| axis.stride).collect();
        let channels = self.groups * self.c_out;
        let mut parts = Vec::with_capacity(self.parts.len());
        for part in &self.parts {
            let n = part.remainders.len();
            let shape = [&[self.images, n * channels][..], &places].concat();
            let convolved = made.value(&shape);
            let mut inputs = vec![self.image, made.program.add_constant("", self.weights_of(part)?)];
            if let Some(bias) = &self.bias {
                let bias = bias.elements::<f32>().unwrap_or_default();
                let repeated = Tensor::from_elements(&[n * channels], &self.by_group(bias, n))?;
                inputs.push(made.program.add_constant("", repeated));
            }
            let conv = made.push("Conv", &inputs, convolved);
            let pads = |side: usize| part.windows.iter().map(move |window| window.pads[side] as i64);
            conv.set_attr("pads", AttrValue::Ints(pads(0).chain(pads(1)).collect()));
            conv.set_attr("group", AttrValue::Int(self.groups as i64));
            conv.name = node.name.clone();
            parts.push((convolved, n));
        }
        let result = node.output(0).expect("its type was looked at");
        let n_all: usize = strides.iter().product();
        // Channels last: all remainders of a place follow each other.
        let last = [&[0][..], &(2..rank + 2).collect::<Vec<_>>(), &[1]].concat();
        let mut turned = Vec::with_capacity(parts.len());
        for (convolved, n) in parts {
            // Of each part the remainders, the groups, and the channels of a group: channels belong together.
            let shape = [&[self.images][..], &places, &[n * channels]].concat();
            let image = made.value(&shape);
            made.transpose(convolved, &last, image);
            turned.push(self.remainders_first(&mut made, image, &places, n)?);
        }
        let mut all = turned[0];
        if turned.len() > 1 {
            all = made.value(&[&[self.images][..], &places, &[n_all * channels]].concat());
            made.push("Concat", &turned, all).set_attr("axis", AttrValue::Int(rank as i64 + 1));
        }
        if n_all > 1 {
            let apart = [&[self.images][..], &places, &strides, &[channels]].concat();
            let view = made.value(&apart);
            made.reshape(all, &apart, view)?;
            // Places and remainders of each axis by turns.
            let by_turns = (0..rank).flat_map(|i| [1 + i, 1 + rank + i]);
            let perm: Vec<usize> = [0].into_iter().chain(by_turns).chain([2 * rank + 1]).collect();
            let moved = made.value(&perm.iter().map(|&axis| apart[axis]).collect::<Vec<_>>());
            made.transpose(view, &perm, moved);
            let whole: Vec<usize> =
                places.iter().zip(&strides).map(|(place, stride)| place * stride).collect();
            let whole = [&[self.images][..], &whole, &[channels]].concat();
            all = made.value(&whole);
            made.reshape(moved, &whole, all)?;
        }
        let outputs: Vec<usize> = self.axes.iter().map(|axis| axis.output).collect();
        if self.axes.iter().any(|axis| axis.n_places() * axis.stride != axis.output) {
            let cut = made.value(&[&[self.images][..], &outputs, &[channels]].concat());
            let begins = made.list(&vec![0; rank])?;
            let ends = made.list(&outputs.iter().map(|&extent| extent as i64).collect::<Vec<_>>())?;
            let axes = made.list(&(1..=rank as i64).collect::<Vec<_>>())?;
            made.push("Slice", &[all, begins, ends, axes], cut);
            all = cut;
        }
        let second = [&[0, rank + 1][..], &(1..=rank).collect::<Vec<_>>()].concat();
        made.transpose(all, &second, result);
        Ok(())
    }

    /// An image whose channels are `[group, remainder, channel]`, as `[remainder, group, channel]`.
    fn remainders_first(
        &self,
        made: &mut Made<'_>,
        image: ValueId,
        places: &[usize],
        n: usize,
    ) -> Result<ValueId> {
        if n == 1 || self.groups == 1 {
            return Ok(image);
        }
        let rank = places.len();
        let apart = [&[self.images][..], places, &[self.groups, n, self.c_out]].concat();
        let view = made.value(&apart);
        made.reshape(image, &apart, view)?;
        let perm: Vec<usize> = (0..=rank).chain([rank + 2, rank + 1, rank + 3]).collect();
        let moved = made.value(&perm.iter().map(|&axis| apart[axis]).collect::<Vec<_>>());
        made.transpose(view, &perm, moved);
        let shape = [&[self.images][..], places, &[n * self.groups * self.c_out]].concat();
        let whole = made.value(&shape);
        made.reshape(moved, &shape, whole)?;
        Ok(whole)
    }

    /// A number for each channel, `n` times within each group.
    fn by_group(&self, numbers: &[f32], n: usize) -> Vec<f32> {
        numbers.chunks(self.c_out).flat_map(|group| group.repeat(n)).collect()
    }

    /// The weights of a part, `[group, remainder, channel; input; window]` of `[input; channel; kernel]`.
    fn weights_of(&self, part: &Part) -> Result<Tensor> {
        let from = self.weights.elements::<f32>().unwrap_or_default();
        let kernel: Vec<usize> = self.axes.iter().map(|axis| axis.kernel).collect();
        let window: Vec<usize> = part.windows.iter().map(|window| window.n).collect();
        let (n_kernel, n_window) = (kernel.iter().product::<usize>(), window.iter().product::<usize>());
        // For each remainder where each element of the window is among the weights.
        let taps: Vec<Vec<usize>> = part
            .remainders
            .iter()
            .map(|remainders| {
                let tap = |mut at: usize| {
                    let (mut tap, mut step) = (0, 1);
                    for (i, axis) in self.axes.iter().enumerate().rev() {
                        let j = window[i] - 1 - at % window[i];
                        tap += (axis.first(remainders[i]) + j * axis.stride) * step;
                        at /= window[i];
                        step *= axis.kernel;
                    }
                    tap
                };
                (0..n_window).map(tap).collect()
            })
            .collect();
        let mut to = Vec::with_capacity(from.len());
        for group in 0..self.groups {
            for taps in &taps {
                for channel in 0..self.c_out {
                    for input in 0..self.c_in {
                        let at = ((group * self.c_in + input) * self.c_out + channel) * n_kernel;
                        to.extend(taps.iter().map(|tap| from[at + tap]));
                    }
                }
            }
        }
        let n_out = self.groups * taps.len() * self.c_out;
        Tensor::from_elements(&[&[n_out, self.c_in][..], &window].concat(), &to)
    }
}

/// The parts of all remainders, in their order; None if one has no window, or if there are too many.
fn parts(axes: &[Axis]) -> Option<Vec<Part>> {
    let n = axes
        .iter()
        .try_fold(1usize, |n, axis| n.checked_mul(axis.stride))
        .filter(|&n| n <= REMAINDERS_MAX)?;
    let mut parts: Vec<Part> = Vec::new();
    for mut at in 0..n {
        let mut remainders = vec![0; axes.len()];
        for (i, axis) in axes.iter().enumerate().rev() {
            (remainders[i], at) = (at % axis.stride, at / axis.stride);
        }
        let windows: Vec<Window> =
            axes.iter().zip(&remainders).map(|(axis, &at)| axis.window(at)).collect::<Option<_>>()?;
        match parts.last_mut() {
            Some(part) if part.windows == windows => part.remainders.push(remainders),
            _ => parts.push(Part { remainders: vec![remainders], windows }),
        }
        if parts.len() > N_MAX {
            return None;
        }
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{body, check_on};

    const IMAGE: &str = "%x: f32[1,2,3,3]";

    #[test]
    fn remainders_with_one_window_are_one_convolution() {
        let weights = "%w = const f32[2,1,2,2] [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]";
        let node = "%y: f32[1,1,6,6] = ConvTranspose@22(%x, %w) as \"up\" {strides = [2, 2]}";
        let after = [
            "%w = const f32[4,2,1,1] [1.0, 5.0, 2.0, 6.0, 3.0, 7.0, 4.0, 8.0]",
            "%c: f32[1,4,3,3] = Conv@22(%x, %w) as \"up\" {pads = [0, 0, 0, 0], group = 1}",
            "%t: f32[1,3,3,4] = Transpose@25(%c) {perm = [0, 2, 3, 1]}",
            "%s = const i64[6] [1, 3, 3, 2, 2, 1]",
            "%a: f32[1,3,3,2,2,1] = Reshape@25(%t, %s)",
            "%b: f32[1,3,2,3,2,1] = Transpose@25(%a) {perm = [0, 1, 3, 2, 4, 5]}",
            "%s2 = const i64[4] [1, 6, 6, 1]",
            "%d: f32[1,6,6,1] = Reshape@25(%b, %s2)",
            "%y: f32[1,1,6,6] = Transpose@25(%d) {perm = [0, 3, 1, 2]}",
            "return %y",
        ];
        check_on(IMAGE, "lower-conv-transpose", &body(&[weights, node, "return %y"]), &body(&after));
    }

    #[test]
    fn a_step_of_one_turns_the_window_round() {
        let weights = "%w = const f32[2,1,1,3] [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]";
        let node = "%y: f32[1,1,3,3] = ConvTranspose@22(%x, %w) {pads = [0, 1, 0, 1]}";
        let after = [
            "%w = const f32[1,2,1,3] [3.0, 2.0, 1.0, 6.0, 5.0, 4.0]",
            "%c: f32[1,1,3,3] = Conv@22(%x, %w) {pads = [0, 1, 0, 1], group = 1}",
            "%t: f32[1,3,3,1] = Transpose@25(%c) {perm = [0, 2, 3, 1]}",
            "%y: f32[1,1,3,3] = Transpose@25(%t) {perm = [0, 3, 1, 2]}",
            "return %y",
        ];
        check_on(IMAGE, "lower-conv-transpose", &body(&[weights, node, "return %y"]), &body(&after));
    }

    #[test]
    fn what_cannot_be_stays() {
        let weights = |last: &str| format!("%w = const f32[2,1,1,3] [1.0, 2.0, 3.0, 4.0, 5.0, {last}]");
        for (last, node) in [
            ("inf", "%y: f32[1,1,3,5] = ConvTranspose@22(%x, %w)"),
            ("6.0", "%y: f32[1,1,3,7] = ConvTranspose@22(%x, %w) {dilations = [1, 2]}"),
            ("6.0", "%y: f32[1,1,3,2] = ConvTranspose@22(%x, %w) {pads = [0, 3, 0, 0]}"),
            ("6.0", "%y: f32[1,1,3,3] = ConvTranspose@22(%x, %w) {auto_pad = \"SAME_UPPER\"}"),
            // Nothing of the weights is for the last remainder.
            ("6.0", "%y: f32[1,1,3,11] = ConvTranspose@22(%x, %w) {strides = [1, 4]}"),
        ] {
            let same = body(&[&weights(last), node, "return %y"]);
            check_on(IMAGE, "lower-conv-transpose", &same, &same);
        }
    }
}
