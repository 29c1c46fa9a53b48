//! Normalisations by a norm of neighbours: RMSNormalization, LpNormalization ([`lp_norm`]), LRN and MeanVarianceNormalization;
//! Hardmax, which leaves of a row a one where its largest element is; and Softmax of f64.
//!
//! RMSNormalization of f32 and LpNormalization have vectorised loops. The others run in f64,
//! an element at a time, whatever the float type.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{around, axis, expect_output, extents, positions};
use crate::kernels::geometry::shape::Broadcast;
use crate::kernels::normalisation::{lp_norm, norms_single};
use crate::kernels::numbers::convert::{Kind, Limits, Value};
use crate::kernels::types::FLOATS;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const FLOAT: &[TypeVar] = &[TypeVar::of(FLOATS)];
const DOUBLE: &[TypeVar] = &[TypeVar::of(&[F64])];
const SCALED: &[TypeVar] = &[TypeVar::of(FLOATS), TypeVar::of(FLOATS)];

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("RMSNormalization", 23, prepare_rms)
        .types(SCALED)
        .cost(|request| cost::per_output(request, 5)),
    kernel("LpNormalization", 22, lp_norm::prepare),
    kernel("LRN", 13, prepare_lrn),
    kernel("MeanVarianceNormalization", 13, prepare_mean_variance),
    kernel("Hardmax", 13, prepare_hardmax),
    kernel("Softmax", 13, |request| groups(request, request.attrs.int("axis", -1)?, Op::Softmax))
        .types(DOUBLE),
    kernel("LogSoftmax", 13, |request| groups(request, request.attrs.int("axis", -1)?, Op::LogSoftmax))
        .types(DOUBLE),
];

const fn kernel(
    name: &'static str,
    since_version: u32,
    prepare: fn(&Request<'_>) -> Result<Prepared>,
) -> Kernel<CpuDevice> {
    descriptor(name, since_version, prepare).types(FLOAT).cost(|request| cost::per_output(request, 8))
}

/// Elements of a chunk of a parallel loop.
const GRAIN: usize = 4 * 1024;

/// Groups of elements that become new ones together.
struct Groups {
    host: Host,
    kind: Kind,
    groups: Group,
    n_groups: usize,
    grain: usize,
    op: Op,
}

/// Elements of a group: `n` of them, `step` apart, from where its number says.
#[derive(Clone, Copy)]
struct Group {
    n: usize,
    step: usize,
}

impl Group {
    /// The element at `i` of a group along the middle one of three dimensions.
    fn at(self, group: usize, i: usize) -> usize {
        group / self.step * self.n * self.step + group % self.step + i * self.step
    }
}

/// Operation on a group.
#[derive(Clone, Copy)]
enum Op {
    /// Divided by a power of what squares of neighbours add up to.
    Local { before: usize, after: usize, bias: f64, scale: f64, beta: f64 },
    /// One at the first largest element.
    Hardmax,
    /// Exponentials, divided by their sum.
    Softmax,
    /// The logarithms of those.
    LogSoftmax,
}

fn groups(request: &Request<'_>, default_axis: i64, op: Op) -> Result<Prepared> {
    let x = request.required_input(0)?;
    let shape = extents(x)?;
    expect_output(request, 0, &shape)?;
    let [outer, n, inner] = match shape.len() {
        // A scalar counts as one element.
        0 => [1, 1, 1],
        rank => around(&shape, axis(default_axis, rank)?),
    };
    Ok(Prepared::new(Groups {
        host: request.host,
        kind: Kind::of(x.dtype())?,
        groups: Group { n, step: inner.max(1) },
        n_groups: if n == 0 { 0 } else { outer * inner },
        grain: (GRAIN / n.max(1)).max(1),
        op,
    }))
}

fn prepare_hardmax(request: &Request<'_>) -> Result<Prepared> {
    groups(request, request.attrs.int("axis", -1)?, Op::Hardmax)
}

fn prepare_lrn(request: &Request<'_>) -> Result<Prepared> {
    if request.required_input(0)?.shape().len() < 2 {
        return Err(Error::invalid("expected an image batch, found a shape without channels"));
    }
    let size = request.attrs.int("size", 0)?;
    let size = usize::try_from(size).ok().filter(|&size| size > 0);
    let size = size.ok_or_else(|| Error::invalid("attribute size is not above 0"))?;
    let op = Op::Local {
        before: (size - 1) / 2,
        after: (size - 1).div_ceil(2),
        bias: f64::from(request.attrs.float("bias", 1.0)?),
        scale: f64::from(request.attrs.float("alpha", 1e-4)?) / size as f64,
        beta: f64::from(request.attrs.float("beta", 0.75)?),
    };
    groups(request, 1, op)
}

impl Groups {
    /// # Safety
    /// `x` and `y` have the group's elements, and no other thread writes it.
    unsafe fn run(&self, x: *const u8, y: *mut u8, group: usize) {
        // SAFETY: `x` has the group's elements (# Safety).
        let read = |i: usize| unsafe { self.kind.read(x, self.groups.at(group, i)) }.to_f64();
        let write = |i: usize, value: f64| {
            // SAFETY: `y` has the group's elements, and no other thread writes them (# Safety).
            unsafe { self.kind.write(y, self.groups.at(group, i), Value::Float(value), Limits::DEFAULT) };
        };
        let n = self.groups.n;
        match self.op {
            Op::Local { before, after, bias, scale, beta } => {
                for i in 0..n {
                    let near = i.saturating_sub(before)..n.min(i.saturating_add(after).saturating_add(1));
                    let squares: f64 = near.map(|k| read(k) * read(k)).sum();
                    write(i, read(i) / (bias + scale * squares).powf(beta));
                }
            }
            Op::Softmax | Op::LogSoftmax => {
                let largest = (0..n).map(read).fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = (0..n).map(|i| (read(i) - largest).exp()).sum();
                let log = sum.ln();
                (0..n).for_each(|i| match self.op {
                    Op::Softmax => write(i, (read(i) - largest).exp() / sum),
                    _ => write(i, read(i) - largest - log),
                });
            }
            Op::Hardmax => {
                let largest = (1..n).fold(0, |best, i| if read(i) > read(best) { i } else { best });
                (0..n).for_each(|i| write(i, if i == largest { 1.0 } else { 0.0 }));
            }
        }
    }
}

impl Launch<CpuDevice> for Groups {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let y = SendPtr(operands.output_ptr::<u8>(0));
        self.host.parallel_for(self.n_groups, self.grain, |groups, _| {
            for group in groups {
                // SAFETY: the operands have the shape that `prepare` was told, and groups are apart.
                unsafe { self.run(x.at(0), y.at(0), group) };
            }
            Ok(())
        })
    }
}

/// Statistics over some axes, kept ones in any order.
struct MeanVariance {
    host: Host,
    kind: Kind,
    /// Where the elements of a group are, from where it begins.
    within: Vec<usize>,
    starts: Vec<usize>,
}

fn prepare_mean_variance(request: &Request<'_>) -> Result<Prepared> {
    let x = request.required_input(0)?;
    let shape = extents(x)?;
    expect_output(request, 0, &shape)?;
    let mut is_reduced = vec![false; shape.len()];
    for given in request.attrs.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]) {
        is_reduced[axis(given, shape.len())?] = true;
    }
    Ok(Prepared::new(MeanVariance {
        host: request.host,
        kind: Kind::of(x.dtype())?,
        within: positions(&shape, &is_reduced, true)?,
        starts: positions(&shape, &is_reduced, false)?,
    }))
}

impl Launch<CpuDevice> for MeanVariance {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let y = SendPtr(operands.output_ptr::<u8>(0));
        let n = self.within.len();
        self.host.parallel_for(self.starts.len(), (GRAIN / n.max(1)).max(1), |groups, _| {
            for &start in &self.starts[groups] {
                // SAFETY: the positions are those of the operand's elements.
                let read = |at: usize| unsafe { self.kind.read(x.at(0), start + at) }.to_f64();
                let mean = self.within.iter().map(|&at| read(at)).sum::<f64>() / n as f64;
                let squares = self.within.iter().map(|&at| (read(at) - mean).powi(2)).sum::<f64>();
                // The specification's function adds this, so that equal elements become 0.
                let deviation = (squares / n as f64).sqrt() + 1e-9;
                for &at in &self.within {
                    let value = Value::Float((read(at) - mean) / deviation);
                    // SAFETY: the positions are those of the operand's elements, and groups are apart.
                    unsafe { self.kind.write(y.at(0), start + at, value, Limits::DEFAULT) };
                }
            }
            Ok(())
        })
    }
}

/// Rows divided by the root of their mean square, and scaled.
struct Rms {
    host: Host,
    n_rows: usize,
    n: usize,
    epsilon: f64,
    kinds: [Kind; 3],
    /// The element of the scale for each element of the operand.
    scale: Broadcast<1>,
}

fn prepare_rms(request: &Request<'_>) -> Result<Prepared> {
    let (x, scale, y) = (request.required_input(0)?, request.required_input(1)?, request.required_output(0)?);
    let shape = extents(x)?;
    expect_output(request, 0, &shape)?;
    let axis = axis(request.attrs.int("axis", -1)?, shape.len())?;
    let (rows, normalised) = shape.split_at(axis);
    let n: usize = normalised.iter().product();
    // Rows of nothing are not counted.
    let n_rows = if n == 0 { 0 } else { rows.iter().product() };
    let epsilon = request.attrs.float("epsilon", 1e-5)?;
    let stash = request.attrs.int("stash_type", 1)?;
    if ![1, 10, 11, 16].contains(&stash) {
        return Err(Error::invalid(format!(
            "expected a float type as stash_type, found ONNX's number {stash}"
        )));
    }
    let all_single = [x, scale, y].iter().all(|tensor| tensor.dtype() == F32);
    // One factor for each element of a row, and not for each row.
    let of_row = extents(scale)?;
    let fits = of_row.len() >= normalised.len()
        && of_row.iter().rev().zip(normalised.iter().rev()).all(|(a, b)| a == b);
    if all_single && scale.n_elements() == n && fits && stash == 1 {
        return Ok(norms_single::prepare(request, n_rows, n, epsilon));
    }
    let kind = |tensor: &TensorView<'_>| Kind::of(tensor.dtype());
    Ok(Prepared::new(Rms {
        host: request.host,
        n_rows,
        n,
        epsilon: f64::from(epsilon),
        kinds: [kind(x)?, kind(scale)?, kind(y)?],
        scale: Broadcast::new(&shape, [&extents(scale)?])?,
    }))
}

impl Launch<CpuDevice> for Rms {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let scale = SendPtr(operands.input_ptr::<u8>(1).cast_mut());
        let y = SendPtr(operands.output_ptr::<u8>(0));
        let [of_x, of_scale, of_y] = self.kinds;
        self.host.parallel_for(self.n_rows, (GRAIN / self.n.max(1)).max(1), |rows, _| {
            for row in rows {
                let first = row * self.n;
                // SAFETY: the row lies within the operand, whose shape `prepare` was told.
                let read = |at: usize| unsafe { of_x.read(x.at(0), at) }.to_f64();
                let squares: f64 = (first..first + self.n).map(|at| read(at) * read(at)).sum();
                let rms = (squares / self.n as f64 + self.epsilon).sqrt();
                self.scale.walk(first..first + self.n, |[from], at, part| {
                    for i in 0..part.n_rows * part.n_cols {
                        let (row, col) = (i / part.n_cols, i % part.n_cols);
                        let from = from + row * part.steps[0] + col * part.inner[0];
                        // SAFETY: `walk` stays within the operands that it was made for.
                        let scale = unsafe { of_scale.read(scale.at(0), from) }.to_f64();
                        // The quotient has the operand's type before it is scaled.
                        let quotient = of_x.rounded(read(at + i) / rms);
                        let value = Value::Float(quotient * scale);
                        // SAFETY: the element lies within the row of the output, and rows are apart.
                        unsafe { of_y.write(y.at(0), at + i, value, Limits::DEFAULT) };
                    }
                });
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};
    use crate::kernels::testing::{Chance, isas};

    fn check(op: &str, attrs: &[(&'static str, Value)], shape: &[usize], x: &[f64], expected: &[f64]) {
        let inputs = [Some(Array::of(shape, x))];
        let found = run(Isa::Baseline, op, attrs, &inputs, &[Some(Array::empty::<f64>(shape))]).expect(op);
        let found = found[0].as_ref().expect("a result").elements::<f64>();
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-7, "{op}: {found}, not {expected}");
        }
    }

    #[test]
    fn norms_along_an_axis() {
        let x = [3.0, -4.0, 0.0, 0.0];
        check("LpNormalization", &[], &[2, 2], &x, &[0.6, -0.8, 0.0, 0.0]);
        check("LpNormalization", &[("p", Value::Int(1))], &[2, 2], &x, &[3.0 / 7.0, -4.0 / 7.0, 0.0, 0.0]);
        check("LpNormalization", &[("axis", Value::Int(0))], &[2, 2], &x, &[1.0, -1.0, 0.0, 0.0]);
        let wrong = [Some(Array::of(&[1], &[1.0f64]))];
        let found = run(Isa::Baseline, "LpNormalization", &[("p", Value::Int(3))], &wrong, &wrong);
        assert!(found.is_err_and(|error| error.contains("expected a norm of order 1 or 2")));
    }

    /// The first of equal elements has the one.
    #[test]
    fn the_largest_element_is_marked() {
        let x = [1.0, 5.0, 5.0, 7.0, 0.0, 5.0];
        check("Hardmax", &[], &[2, 3], &x, &[0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
        check("Hardmax", &[("axis", Value::Int(0))], &[2, 3], &x, &[0.0, 1.0, 1.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn softmax_of_doubles() {
        let x = [1000.0, 1000.0 + 3f64.ln()];
        check("Softmax", &[], &[2], &x, &[0.25, 0.75]);
        check("LogSoftmax", &[], &[2], &x, &[0.25f64.ln(), 0.75f64.ln()]);
    }

    /// Three channels of one pixel; of a size of 2 the neighbour behind counts.
    #[test]
    fn neighbouring_channels() {
        let attrs = || {
            vec![
                ("size", Value::Int(2)),
                ("alpha", Value::Float(2.0)),
                ("beta", Value::Float(0.5)),
                ("bias", Value::Float(0.0)),
            ]
        };
        let root = |x: f64| x.sqrt();
        let expected = [3.0 / 5.0, 4.0 / root(17.0), 1.0];
        check("LRN", &attrs(), &[1, 3, 1], &[3.0, 4.0, 1.0], &expected);
    }

    #[test]
    fn mean_and_variance_over_axes() {
        let x = [1.0, 3.0, 10.0, 10.0];
        check(
            "MeanVarianceNormalization",
            &[("axes", Value::Ints(vec![1]))],
            &[2, 2],
            &x,
            &[-1.0, 1.0, 0.0, 0.0],
        );
        // Images of two channels: over images and pixels.
        let x = [1.0, 0.0, 3.0, 2.0];
        check("MeanVarianceNormalization", &[], &[2, 2, 1, 1], &x, &[-1.0, -1.0, 1.0, 1.0]);
    }

    #[test]
    fn root_mean_squares_agree_on_every_instruction_set() {
        let mut chance = Chance::new(5);
        for n in [1, 7, 64, 65, 300] {
            let (x, scale) = (chance.floats(3 * n, 4.0), chance.floats(n, 2.0));
            let expected: Vec<f64> = x
                .chunks(n)
                .flat_map(|row| {
                    let mean = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n as f64;
                    let rms = (mean + 1e-5).sqrt();
                    row.iter().zip(&scale).map(move |(&x, &s)| f64::from(x) / rms * f64::from(s))
                })
                .collect();
            for isa in isas() {
                let inputs = [Some(Array::of(&[3, n], &x)), Some(Array::of(&[n], &scale))];
                let output = [Some(Array::empty::<f32>(&[3, n]))];
                let found = run(isa, "RMSNormalization", &[], &inputs, &output).expect("RMSNormalization");
                for (&found, expected) in
                    found[0].as_ref().expect("a result").elements::<f32>().iter().zip(&expected)
                {
                    assert!(
                        (f64::from(found) - expected).abs() <= expected.abs() * 1e-6,
                        "{found} {expected}"
                    );
                }
            }
            // One number scales all, and in f64.
            let wide: Vec<f64> = x.iter().map(|&x| x.into()).collect();
            let inputs = [Some(Array::of(&[3, n], &wide)), Some(Array::of(&[], &[1.0f64]))];
            let output = [Some(Array::empty::<f64>(&[3, n]))];
            let found =
                run(Isa::Baseline, "RMSNormalization", &[], &inputs, &output).expect("RMSNormalization");
            let found = found[0].as_ref().expect("a result").elements::<f64>();
            for ((found, expected), &scale) in found.iter().zip(&expected).zip(scale.iter().cycle()) {
                let unscaled = found * f64::from(scale);
                assert!((unscaled - expected).abs() <= expected.abs() * 1e-9, "{unscaled} {expected}");
            }
        }
    }
}
