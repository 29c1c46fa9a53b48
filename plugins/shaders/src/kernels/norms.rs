//! Normalisation by mean and variance, or by a norm: of the operand itself, or given as in BatchNormalization.
//!
//! The variance is summed up in a second pass: the difference of two sums of squares would lose what counts.

use super::cost;
use super::lines::{LineStep, Lines, Nest, axis, count, expect_output};
use super::math;
use super::walk::dense_strides;
use crate::step::{Body, Build, Param, ShaderStep, Slot, turns};
use crate::target::Target;
use crate::template::wgsl;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

const FLOAT: &[TypeVar] = &[TypeVar::of(&[F32])];

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
    kernel("LayerNormalization", 17, prepare_layer)
        .operands(&[0, 0, 0], &[0, 0, 0])
        .inputs(2, 3)
        .outputs(1, 3)
        .in_place(&[0, -1, -1]),
    kernel("RMSNormalization", 23, prepare_rms)
        .operands(&[0, 0], &[0])
        .in_place(&[0])
        .cost(|request| cost::per_output(request, 5)),
    kernel("InstanceNormalization", 6, prepare_instance).operands(&[0, 0, 0], &[0]).in_place(&[0]),
    kernel("GroupNormalization", 21, prepare_group).operands(&[0, 0, 0], &[0]).in_place(&[0]),
    kernel("BatchNormalization", 15, prepare_batch)
        .operands(&[0, 0, 0, 0, 0], &[0, 0, 0])
        .outputs(1, 3)
        .in_place(&[0, -1, -1])
        .doc("with given statistics; training is refused"),
    kernel("LpNormalization", 22, prepare_lp).operands(&[0], &[0]).in_place(&[0]),
    kernel("MeanVarianceNormalization", 13, prepare_mean_variance).operands(&[0], &[0]).in_place(&[0]),
    kernel("LRN", 13, prepare_lrn).operands(&[0], &[0]),
];

const fn kernel(
    name: &'static str,
    since_version: u32,
    prepare: fn(&Request<'_>) -> Result<Prepared>,
) -> Kernel<Target> {
    Kernel::new(name, since_version, prepare).types(FLOAT).cost(|request| cost::per_output(request, 8))
}

/// WGSL that declares `mean` and `variance` of a line.
fn statistics(lines: &Lines) -> String {
    let (step, at) = lines.walk();
    wgsl!("norms/statistics.wgsl", step, at)
}

fn epsilon(request: &Request<'_>) -> Result<(String, Param)> {
    Ok(("epsilon".to_owned(), Param::F32(request.attrs.float("epsilon", 1e-5)?)))
}

/// The operand that is normalised, its shape checked against the output's; and refused where results are made of no
/// elements.
fn operand<'a>(request: &Request<'a>) -> Result<&'a [i64]> {
    let x = request.required_input(0)?;
    let shape = x.shape();
    expect_output(request, 0, shape)?;
    let has_more = (1..request.outputs.len()).any(|i| request.output(i).is_some());
    if x.n_elements() == 0 && has_more {
        return Err(Error::unsupported("statistics of no elements"));
    }
    Ok(shape)
}

/// Returns the walk of an input that is broadcast to rows: its offset for an element's number in its row.
fn of_row(input: &TensorView<'_>, row: &[i64]) -> Result<Nest> {
    let shape = input.shape();
    // Dimensions beyond those of a row must have extent 1, or there would be a number for each row.
    let (outer, shape) = shape.split_at(shape.len().saturating_sub(row.len()));
    if outer.iter().any(|&extent| extent != 1) {
        return Err(Error::unsupported(format!("scales of shape {:?} for rows of {row:?}", input.shape())));
    }
    let (first, strides) = (row.len() - shape.len(), dense_strides(shape));
    let dim = |(axis, &extent): (usize, &i64)| match axis.checked_sub(first) {
        Some(own) if shape[own] == extent => Ok((extent, strides[own])),
        Some(own) if shape[own] != 1 => {
            Err(Error::invalid(format!("scales of shape {:?} for rows of {row:?}", input.shape())))
        }
        _ => Ok((extent, 0)),
    };
    let dims: Vec<(i64, i64)> = row.iter().enumerate().map(dim).collect::<Result<_>>()?;
    Ok(Nest::new(dims.into_iter()))
}

/// Returns the beginnings of rows, and their dimensions: those from an axis on.
fn rows<'a>(request: &Request<'_>, shape: &'a [i64]) -> Result<(Lines, &'a [i64])> {
    let at = axis(request.attrs.int("axis", -1)?, shape.len())?;
    let stash = request.attrs.int("stash_type", 1)?;
    if stash != 1 {
        return Err(Error::unsupported(format!("statistics of ONNX's type {stash}, not of f32")));
    }
    let (outer, row) = shape.split_at(at);
    Ok((Lines::rows(outer.iter().product(), row.iter().product()), row))
}

fn prepare_layer(request: &Request<'_>) -> Result<Prepared> {
    let shape = operand(request)?;
    let (lines, row) = rows(request, shape)?;
    let mut buffers =
        vec![("x", "f32", Slot::Input(0)), ("scale", "f32", Slot::Input(1)), ("y", "f32", Slot::Output(0))];
    let scale = of_row(request.required_input(1)?, row)?;
    let mut params = vec![epsilon(request)?];
    params.extend(scale.params("s")?);
    let mut bias_at = String::new();
    if let Some(bias) = request.input(2) {
        let bias = of_row(bias, row)?;
        params.extend(bias.params("b")?);
        bias_at = bias.code("b", "k", "bias_at");
        buffers.push(("bias", "f32", Slot::Input(2)));
    }
    for (i, name) in [(1, "means"), (2, "inverses")] {
        let Some(output) = request.output(i) else { continue };
        if output.n_elements() as i64 != lines.n_lines() {
            return Err(Error::invalid(format!("output {i} of shape {:?}", output.shape())));
        }
        buffers.push((name, "f32", Slot::Output(i)));
    }
    let (step, at) = lines.walk();
    let code = wgsl!(
        "norms/layer.wgsl",
        statistics = statistics(&lines),
        step,
        at,
        scale_at = scale.code("s", "k", "scale_at"),
        bias_at,
        has_bias = request.input(2).is_some(),
        has_means = request.output(1).is_some(),
        has_inverses = request.output(2).is_some(),
    );
    add(request, &lines, buffers, params, &code)
}

fn prepare_rms(request: &Request<'_>) -> Result<Prepared> {
    let shape = operand(request)?;
    let (lines, row) = rows(request, shape)?;
    let scale = of_row(request.required_input(1)?, row)?;
    let mut params = vec![epsilon(request)?];
    params.extend(scale.params("s")?);
    let (step, at) = lines.walk();
    let code = wgsl!("norms/rms.wgsl", step, at, scale_at = scale.code("s", "k", "scale_at"));
    let buffers =
        vec![("x", "f32", Slot::Input(0)), ("scale", "f32", Slot::Input(1)), ("y", "f32", Slot::Output(0))];
    add(request, &lines, buffers, params, &code)
}

/// The extents of batches, channels, and the elements of one.
fn channels(shape: &[i64]) -> Result<[i64; 3]> {
    match shape {
        [batches, channels, rest @ ..] => Ok([*batches, *channels, rest.iter().product()]),
        _ => Err(Error::invalid(format!("a shape without channels: {shape:?}"))),
    }
}

/// Refuses inputs from 1 on that do not have a number for each channel.
fn check_channels(request: &Request<'_>, n_inputs: usize, n_channels: i64) -> Result<()> {
    for i in 1..n_inputs {
        let shape = request.required_input(i)?.shape();
        if shape != [n_channels] {
            return Err(Error::invalid(format!("input {i} of shape {shape:?} for {n_channels} channels")));
        }
    }
    Ok(())
}

fn prepare_instance(request: &Request<'_>) -> Result<Prepared> {
    let n_groups = channels(operand(request)?)?[1];
    prepare_groups(request, n_groups)
}

fn prepare_group(request: &Request<'_>) -> Result<Prepared> {
    let n_groups = request.attrs.int("num_groups", 0)?;
    prepare_groups(request, n_groups)
}

fn prepare_groups(request: &Request<'_>, n_groups: i64) -> Result<Prepared> {
    let [batches, n_channels, inner] = channels(operand(request)?)?;
    check_channels(request, 3, n_channels)?;
    if n_groups < 0 || n_groups == 0 && n_channels > 0 || n_groups > 0 && n_channels % n_groups != 0 {
        return Err(Error::invalid(format!("{n_channels} channels in {n_groups} groups")));
    }
    let of_group = n_channels / n_groups.max(1);
    let lines = Lines::rows(batches * n_groups, of_group * inner);
    let mut params = vec![
        epsilon(request)?,
        ("n_groups".to_owned(), count(n_groups)?),
        ("of_group".to_owned(), count(of_group)?),
    ];
    let is_channel = of_group == 1;
    if !is_channel {
        params.push(("inner".to_owned(), count(inner)?));
    }
    let (step, at) = lines.walk();
    let code = wgsl!("norms/group.wgsl", statistics = statistics(&lines), step, at, is_channel);
    let buffers = vec![
        ("x", "f32", Slot::Input(0)),
        ("scale", "f32", Slot::Input(1)),
        ("bias", "f32", Slot::Input(2)),
        ("y", "f32", Slot::Output(0)),
    ];
    add(request, &lines, buffers, params, &code)
}

/// Elements of a channel from which on threads keep to one.
const CHANNEL_MIN: i64 = 32;

fn prepare_batch(request: &Request<'_>) -> Result<Prepared> {
    let has_more = (1..request.outputs.len()).any(|i| request.output(i).is_some());
    if request.attrs.int("training_mode", 0)? != 0 || has_more {
        return Err(Error::unsupported("BatchNormalization in training mode"));
    }
    let shape = operand(request)?;
    // Without dimension 1 there is one channel.
    let [batches, n_channels, inner] = match shape {
        [] => [1, 1, 1],
        [n] => [*n, 1, 1],
        _ => channels(shape)?,
    };
    check_channels(request, 5, n_channels)?;
    let buffers = vec![
        ("x", "f32", Slot::Input(0)),
        ("scale", "f32", Slot::Input(1)),
        ("bias", "f32", Slot::Input(2)),
        ("means", "f32", Slot::Input(3)),
        ("variances", "f32", Slot::Input(4)),
        ("y", "f32", Slot::Output(0)),
    ];
    let mut params = vec![epsilon(request)?, ("n_channels".to_owned(), count(n_channels)?)];
    if inner >= CHANNEL_MIN {
        let lines = Lines::rows(batches * n_channels, inner).in_pieces();
        let (step, at) = lines.walk();
        let code = wgsl!("norms/batch_lines.wgsl", step, at);
        return add(request, &lines, buffers, params, &code);
    }
    params.push(("inner".to_owned(), count(inner)?));
    let mut build = Build::new(request);
    build.add(ShaderStep {
        name: "normalise channels",
        buffers,
        params,
        turns: 0,
        body: Body::Items {
            n: request.required_output(0)?.n_elements() as u64,
            functions: "",
            each: &wgsl!("norms/batch_items.wgsl"),
        },
    })?;
    build.finish()
}

fn prepare_lp(request: &Request<'_>) -> Result<Prepared> {
    let shape = operand(request)?;
    let lines = along(shape, &[request.attrs.int("axis", -1)?])?;
    let is_square = match request.attrs.int("p", 2)? {
        1 => false,
        2 => true,
        order => return Err(Error::invalid(format!("expected a norm of order 1 or 2, found {order}"))),
    };
    let (step, at) = lines.walk();
    let code = wgsl!("norms/lp.wgsl", step, at, is_square);
    add(request, &lines, in_and_out(), vec![], &code)
}

fn prepare_mean_variance(request: &Request<'_>) -> Result<Prepared> {
    let shape = operand(request)?;
    let lines = along(shape, &request.attrs.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]))?;
    let (step, at) = lines.walk();
    let code = wgsl!("norms/mean_variance.wgsl", statistics = statistics(&lines), step, at);
    add(request, &lines, in_and_out(), vec![], &code)
}

fn in_and_out() -> Vec<(&'static str, &'static str, Slot)> {
    vec![("x", "f32", Slot::Input(0)), ("y", "f32", Slot::Output(0))]
}

/// The lines along some axes; a scalar counts as one element.
fn along(shape: &[i64], axes: &[i64]) -> Result<Lines> {
    let mut is_along = vec![false; shape.len()];
    for &given in axes.iter().filter(|_| !shape.is_empty()) {
        is_along[axis(given, shape.len())?] = true;
    }
    Ok(Lines::new(shape, &is_along))
}

fn add(
    request: &Request<'_>,
    lines: &Lines,
    buffers: Vec<(&str, &str, Slot)>,
    params: Vec<(String, Param)>,
    code: &str,
) -> Result<Prepared> {
    let mut build = Build::new(request);
    let functions = match code.contains("total(") {
        true => lines.fold(&request.device.abilities, "total", "f32", "a + b"),
        false => String::new(),
    };
    lines.add(&mut build, LineStep { name: "normalise", buffers, params, functions: &functions, code })?;
    build.finish()
}

fn prepare_lrn(request: &Request<'_>) -> Result<Prepared> {
    let [_, n_channels, inner] = channels(operand(request)?)?;
    let size = request.attrs.int("size", 0)?;
    if size <= 0 {
        return Err(Error::invalid("attribute size is not above 0"));
    }
    let scale = f64::from(request.attrs.float("alpha", 1e-4)?) / size as f64;
    // There are no more neighbours than channels.
    let neighbours = |n: i64| count(n.min(n_channels));
    let params = vec![
        ("inner".to_owned(), count(inner)?),
        ("n_channels".to_owned(), count(n_channels)?),
        ("before".to_owned(), neighbours((size - 1) / 2)?),
        ("after".to_owned(), neighbours(size / 2)?),
        ("scale".to_owned(), Param::F32(scale as f32)),
        ("bias".to_owned(), Param::F32(request.attrs.float("bias", 1.0)?)),
        ("beta".to_owned(), Param::F32(request.attrs.float("beta", 0.75)?)),
    ];
    let mut build = Build::new(request);
    build.add(ShaderStep {
        name: "LRN",
        buffers: in_and_out(),
        params,
        turns: turns(size.min(n_channels) as u64, 0),
        body: Body::Items {
            n: request.required_output(0)?.n_elements() as u64,
            functions: &math::functions(&["pow_f"]),
            each: &wgsl!("norms/lrn.wgsl"),
        },
    })?;
    build.finish()
}
