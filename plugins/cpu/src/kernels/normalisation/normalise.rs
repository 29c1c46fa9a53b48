//! Normalisation: LayerNormalization, InstanceNormalization and GroupNormalization with statistics of the
//! operand itself, BatchNormalization with statistics from training.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::Arith;
use crate::kernels::cost;
use crate::kernels::elementwise::loops::{blocks, slice};
use crate::kernels::geometry::extents::{axis, extents};
use crate::kernels::numbers::widen;
use crate::kernels::reduction::fold::{self, SquaredDistance, Sum};
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;
use std::ops::Range;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const FLOAT: &[TypeVar] = &[TypeVar::of(crate::kernels::types::SINGLES)];

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    kernel("LayerNormalization", 17, prepare_layer)
        .operands(&[0, 0, 0], &[0, 0, 0])
        .inputs(2, 3)
        .outputs(1, 3)
        .in_place(&[0, -1, -1]),
    kernel("InstanceNormalization", 6, |request| {
        let extents = extents(request.required_input(0)?)?;
        prepare_groups(request, channels(&extents)?)
    })
    .operands(&[0, 0, 0], &[0])
    .in_place(&[0]),
    kernel("GroupNormalization", 21, |request| {
        let n = request.attrs.int("num_groups", 0)?;
        let n = usize::try_from(n).map_err(|_| Error::invalid(format!("{n} groups")))?;
        prepare_groups(request, n)
    })
    .operands(&[0, 0, 0], &[0])
    .in_place(&[0]),
    kernel("BatchNormalization", 15, prepare_batch)
        .operands(&[0, 0, 0, 0, 0], &[0, 0, 0])
        .outputs(1, 3)
        .in_place(&[0, -1, -1])
        .doc("with given statistics; training is refused"),
];

const fn kernel(
    name: &'static str,
    since_version: u32,
    prepare: fn(&Request<'_>) -> Result<Prepared>,
) -> Kernel<CpuDevice> {
    descriptor(name, since_version, prepare)
        .types(FLOAT)
        .adapted(widen::floats)
        .cost(|request| cost::per_output(request, 8))
}

/// Elements of a chunk of a parallel loop.
const GRAIN: usize = 16 * 1024;

/// Rows of a chunk of a parallel loop.
fn grain(row: usize) -> usize {
    (GRAIN / row.max(1)).max(1)
}

/// The number of channels: dimension 1.
fn channels(extents: &[usize]) -> Result<usize> {
    extents.get(1).copied().ok_or_else(|| Error::invalid(format!("a shape without channels: {extents:?}")))
}

/// Refuses an input whose number of elements is not `n`.
fn check_elements(request: &Request<'_>, input: usize, n: usize) -> Result<()> {
    match request.input(input) {
        Some(tensor) if tensor.n_elements() != n => Err(Error::unsupported(format!(
            "input {input} of {} elements, expected {n}",
            tensor.n_elements()
        ))),
        _ => Ok(()),
    }
}

/// Mean and 1 / standard deviation of a row.
#[inline(always)]
fn statistics<A: Arith>(row: &[f32], epsilon: f32) -> (f32, f32) {
    let n = row.len() as f64;
    let mean = (fold::row::<A, Sum<f32>>(row, 0.0) / n) as f32;
    // A second pass: the difference of two sums of squares would lose the digits that count.
    let variance = fold::row::<A, SquaredDistance>(row, mean) / n;
    (mean, (1.0 / (variance + f64::from(epsilon)).sqrt()) as f32)
}

/// The operands of a row-wise normalisation; absent ones are NULL.
#[derive(Clone, Copy)]
struct Layer {
    x: *const f32,
    scale: *const f32,
    bias: *const f32,
    y: *mut f32,
    mean: *mut f32,
    inverse_deviation: *mut f32,
}

// SAFETY: chunks share the addresses alone; each use of one says why it is sound.
unsafe impl Sync for Layer {}

dispatch! { fn layer(operands: &Layer, n: usize, epsilon: f32, rows: Range<usize>) = layer_body }

#[inline(always)]
unsafe fn layer_body<A: Arith>(operands: &Layer, n: usize, epsilon: f32, rows: Range<usize>) {
    let Layer { scale, bias, .. } = *operands;
    for row in rows {
        let x = operands.x.wrapping_add(row * n);
        let y = operands.y.wrapping_add(row * n);
        // SAFETY: the caller lends the row, and it is written after this.
        let (mean, inverse) = statistics::<A>(unsafe { slice(x, n) }, epsilon);
        if bias.is_null() {
            blocks!(false, n, y, [v = x, s = scale] => (v - mean) * inverse * s);
        } else {
            blocks!(false, n, y, [v = x, s = scale, b = bias] => A::fma((v - mean) * inverse, s, b));
        }
        if !operands.mean.is_null() {
            // SAFETY: the output is present, so it has an element for each row.
            unsafe { operands.mean.add(row).write(mean) };
        }
        if !operands.inverse_deviation.is_null() {
            // SAFETY: the output is present, so it has an element for each row.
            unsafe { operands.inverse_deviation.add(row).write(inverse) };
        }
    }
}

struct LayerNorm {
    host: Host,
    n_rows: usize,
    n: usize,
    epsilon: f32,
    /// Operands that the node lists; optional ones beyond are absent.
    n_inputs: usize,
    n_outputs: usize,
    body: unsafe fn(&Layer, usize, f32, Range<usize>),
}

fn prepare_layer(request: &Request<'_>) -> Result<Prepared> {
    let extents = extents(request.required_input(0)?)?;
    let axis = axis(request.attrs.int("axis", -1)?, extents.len())?;
    let (rows, normalised) = extents.split_at(axis);
    let (n_rows, n) = (rows.iter().product(), normalised.iter().product());
    check_elements(request, 1, n)?;
    check_elements(request, 2, n)?;
    Ok(Prepared::new(LayerNorm {
        host: request.host,
        n_rows,
        n,
        epsilon: request.attrs.float("epsilon", 1e-5)?,
        n_inputs: request.inputs.len(),
        n_outputs: request.outputs.len(),
        body: layer(request.device.isa),
    }))
}

impl Launch<CpuDevice> for LayerNorm {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let optional = |i| match i < self.n_outputs {
            true => operands.output_ptr(i),
            false => std::ptr::null_mut(),
        };
        let addresses = Layer {
            x: operands.input_ptr(0),
            scale: operands.input_ptr(1),
            bias: match self.n_inputs > 2 {
                true => operands.input_ptr(2),
                false => std::ptr::null(),
            },
            y: operands.output_ptr(0),
            mean: optional(1),
            inverse_deviation: optional(2),
        };
        self.host.parallel_for(self.n_rows, grain(self.n), |rows, _| {
            // SAFETY: the operands have the shapes that `prepare` was told; chunks are apart; the
            // instructions are the device's.
            unsafe { (self.body)(&addresses, self.n, self.epsilon, rows) };
            Ok(())
        })
    }
}

/// The operands of a normalisation by channel.
#[derive(Clone, Copy)]
struct Channels {
    x: *const f32,
    scale: *const f32,
    bias: *const f32,
    /// Given statistics; NULL where they are those of the operand.
    mean: *const f32,
    variance: *const f32,
    y: *mut f32,
}

// SAFETY: chunks share the addresses alone; each use of one says why it is sound.
unsafe impl Sync for Channels {}

/// Extents of a normalisation by channel.
#[derive(Clone, Copy)]
struct Plan {
    n_channels: usize,
    /// Channels whose elements have statistics in common.
    n_in_group: usize,
    /// Elements of a channel.
    inner: usize,
    epsilon: f32,
}

type ChannelsBody = unsafe fn(&Channels, &Plan, Range<usize>);

dispatch! { fn groups(operands: &Channels, plan: &Plan, items: Range<usize>) = groups_body }
dispatch! { fn batch(operands: &Channels, plan: &Plan, items: Range<usize>) = batch_body }
dispatch! { fn batch_of_scalars(operands: &Channels, plan: &Plan, items: Range<usize>) = batch_of_scalars_body }

/// Items are groups of channels.
#[inline(always)]
unsafe fn groups_body<A: Arith>(operands: &Channels, plan: &Plan, items: Range<usize>) {
    let n = plan.inner;
    for item in items {
        let first = item * plan.n_in_group;
        let x = operands.x.wrapping_add(first * n);
        // SAFETY: the caller lends the group, and it is written after this.
        let group = unsafe { slice(x, plan.n_in_group * n) };
        let (mean, inverse) = statistics::<A>(group, plan.epsilon);
        for row in first..first + plan.n_in_group {
            let channel = row % plan.n_channels;
            // SAFETY: there is a number for each channel.
            let (scale, bias) = unsafe { (*operands.scale.add(channel), *operands.bias.add(channel)) };
            let (x, y) = (operands.x.wrapping_add(row * n), operands.y.wrapping_add(row * n));
            // As in the formula: the product of both factors may overflow where the result does not.
            blocks!(false, n, y, [v = x] => A::fma((v - mean) * inverse, scale, bias));
        }
    }
}

/// Items are channels.
#[inline(always)]
unsafe fn batch_body<A: Arith>(operands: &Channels, plan: &Plan, items: Range<usize>) {
    let n = plan.inner;
    for row in items {
        let channel = row % plan.n_channels;
        // SAFETY: there is a number for each channel.
        let (mean, variance) = unsafe { (*operands.mean.add(channel), *operands.variance.add(channel)) };
        // SAFETY: scale and bias have a number for each channel, too.
        let (scale, bias) = unsafe { (*operands.scale.add(channel), *operands.bias.add(channel)) };
        let inverse = 1.0 / (variance + plan.epsilon).sqrt();
        let (x, y) = (operands.x.wrapping_add(row * n), operands.y.wrapping_add(row * n));
        blocks!(false, n, y, [v = x] => A::fma((v - mean) * inverse, scale, bias));
    }
}

/// Items are samples whose channels have one element each.
#[inline(always)]
unsafe fn batch_of_scalars_body<A: Arith>(operands: &Channels, plan: &Plan, items: Range<usize>) {
    let n = plan.n_channels;
    let Channels { scale, bias, mean, variance, .. } = *operands;
    for row in items {
        let (x, y) = (operands.x.wrapping_add(row * n), operands.y.wrapping_add(row * n));
        blocks!(false, n, y, [v = x, s = scale, b = bias, m = mean, r = variance] =>
            A::fma((v - m) / (r + plan.epsilon).sqrt(), s, b));
    }
}

struct ChannelNorm {
    host: Host,
    plan: Plan,
    n_items: usize,
    grain: usize,
    has_statistics: bool,
    body: ChannelsBody,
}

impl Launch<CpuDevice> for ChannelNorm {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let statistics = |i| match self.has_statistics {
            true => operands.input_ptr(i),
            false => std::ptr::null(),
        };
        let addresses = Channels {
            x: operands.input_ptr(0),
            scale: operands.input_ptr(1),
            bias: operands.input_ptr(2),
            mean: statistics(3),
            variance: statistics(4),
            y: operands.output_ptr(0),
        };
        self.host.parallel_for(self.n_items, self.grain, |items, _| {
            // SAFETY: the operands have the shapes that `prepare` was told; chunks are apart; the
            // instructions are the device's.
            unsafe { (self.body)(&addresses, &self.plan, items) };
            Ok(())
        })
    }
}

fn prepare_groups(request: &Request<'_>, n_groups: usize) -> Result<Prepared> {
    let extents = extents(request.required_input(0)?)?;
    let n_channels = channels(&extents)?;
    check_elements(request, 1, n_channels)?;
    check_elements(request, 2, n_channels)?;
    if n_groups == 0 && n_channels > 0 || n_groups > 0 && n_channels % n_groups != 0 {
        return Err(Error::invalid(format!("{n_channels} channels in {n_groups} groups")));
    }
    let n_in_group = n_channels / n_groups.max(1);
    let inner = extents[2..].iter().product();
    Ok(Prepared::new(ChannelNorm {
        host: request.host,
        plan: Plan { n_channels, n_in_group, inner, epsilon: request.attrs.float("epsilon", 1e-5)? },
        n_items: extents[0] * n_groups,
        grain: grain(n_in_group * inner),
        has_statistics: false,
        body: groups(request.device.isa),
    }))
}

fn prepare_batch(request: &Request<'_>) -> Result<Prepared> {
    let has_more = (1..request.outputs.len()).any(|i| request.output(i).is_some());
    if request.attrs.int("training_mode", 0)? != 0 || has_more {
        return Err(Error::unsupported("BatchNormalization in training mode"));
    }
    let extents = extents(request.required_input(0)?)?;
    // Without dimension 1 there is one channel.
    let n_channels = extents.get(1).copied().unwrap_or(1);
    for input in 1..5 {
        request.required_input(input)?;
        check_elements(request, input, n_channels)?;
    }
    let n_samples = extents.first().copied().unwrap_or(1);
    let inner: usize = extents.iter().skip(2).product();
    let isa = request.device.isa;
    let (n_items, row, body) = match inner {
        1 => (n_samples, n_channels, batch_of_scalars(isa)),
        _ => (n_samples * n_channels, inner, batch(isa)),
    };
    Ok(Prepared::new(ChannelNorm {
        host: request.host,
        plan: Plan { n_channels, n_in_group: 1, inner, epsilon: request.attrs.float("epsilon", 1e-5)? },
        n_items,
        grain: grain(row),
        has_statistics: true,
        body,
    }))
}
