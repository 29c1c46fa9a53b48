//! Reductions, ArgMax and ArgMin of the rarer element types, an element at a time: floats in f64, integers exactly, of
//! which results keep the low bits. [`crate::kernels::reduction::reduce`] and [`crate::kernels::reduction::argmax`] have vectorised loops for the others.
//!
//! Where the elements of one result stand is a table, made once; the order is that of memory, on any number of threads.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{axis, extents, positions};
use crate::kernels::numbers::convert::{Kind, Limits, Value};
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_ops::read::reduced_axes;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const RARE: TypeVar = TypeVar::of(&[F64, I32, I64, I8, I16, U8, U16, U32, U64]);
const AXES: &[TypeVar] = &[RARE, TypeVar::of(&[I64])];

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    reduction("ReduceSum", 13, |request| reduce(request, Op::Sum)),
    reduction("ReduceMean", 18, |request| reduce(request, Op::Mean)),
    reduction("ReduceMax", 20, |request| reduce(request, Op::Max)),
    reduction("ReduceMin", 20, |request| reduce(request, Op::Min)),
    reduction("ReduceProd", 18, |request| reduce(request, Op::Product)),
    reduction("ReduceSumSquare", 18, |request| reduce(request, Op::SumSquare)),
    reduction("ReduceL1", 18, |request| reduce(request, Op::L1)),
    reduction("ReduceL2", 18, |request| reduce(request, Op::L2)),
    reduction("ReduceLogSum", 18, |request| reduce(request, Op::LogSum)),
    reduction("ReduceLogSumExp", 18, |request| reduce(request, Op::LogSumExp)),
    place("ArgMax", |request| arg(request, true)),
    place("ArgMin", |request| arg(request, false)),
];

const fn reduction(
    name: &'static str,
    since_version: u32,
    prepare: fn(&Request<'_>) -> Result<Prepared>,
) -> Kernel<CpuDevice> {
    descriptor(name, since_version, prepare).types(AXES).cost(|request| cost::per_input(request, 8))
}

const fn place(name: &'static str, prepare: fn(&Request<'_>) -> Result<Prepared>) -> Kernel<CpuDevice> {
    descriptor(name, 13, prepare).types(AXES).cost(|request| cost::per_input(request, 8))
}

/// Elements of a chunk of a parallel loop.
const GRAIN: usize = 16 * 1024;

/// Reduction of the elements of a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Sum,
    Mean,
    Max,
    Min,
    Product,
    SumSquare,
    L1,
    L2,
    LogSum,
    LogSumExp,
    /// The place of the largest or smallest one; of equal ones the first or last.
    Place {
        largest: bool,
        last: bool,
    },
}

struct Reduction {
    host: Host,
    kind: Kind,
    result: Kind,
    op: Op,
    /// Where the elements of a result are, from where the result's first one is.
    within: Vec<usize>,
    starts: Vec<usize>,
}

fn reduce(request: &Request<'_>, op: Op) -> Result<Prepared> {
    let x = extents(request.required_input(0)?)?;
    let reduced = reduced_axes(request, x.len())?;
    prepare(request, &x, &reduced, op)
}

fn arg(request: &Request<'_>, largest: bool) -> Result<Prepared> {
    let x = extents(request.required_input(0)?)?;
    let mut reduced = vec![false; x.len()];
    reduced[axis(request.attrs.int("axis", 0)?, x.len())?] = true;
    let last = request.attrs.int("select_last_index", 0)? != 0;
    prepare(request, &x, &reduced, Op::Place { largest, last })
}

fn prepare(request: &Request<'_>, x: &[usize], reduced: &[bool], op: Op) -> Result<Prepared> {
    let (within, starts) = (positions(x, reduced, true)?, positions(x, reduced, false)?);
    let (input, output) = (request.required_input(0)?, request.required_output(0)?);
    if output.n_elements() != starts.len() {
        let text = format!("an output of {} elements, expected {}", output.n_elements(), starts.len());
        return Err(Error::invalid(text));
    }
    if matches!(op, Op::Place { .. }) && within.is_empty() {
        return Err(Error::invalid("expected elements to look for a place in, found none"));
    }
    let (kind, result) = (Kind::of(input.dtype())?, Kind::of(output.dtype())?);
    Ok(Prepared::new(Reduction { host: request.host, kind, result, op, within, starts }))
}

impl Launch<CpuDevice> for Reduction {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let y = SendPtr(operands.output_ptr::<u8>(0));
        let grain = (GRAIN / self.within.len().max(1)).max(1);
        self.host.parallel_for(self.starts.len(), grain, |range, _| {
            for i in range {
                let start = self.starts[i];
                // SAFETY: the positions are those of the operand's elements.
                let values = self.within.iter().map(|&at| unsafe { self.kind.read(x.at(0), start + at) });
                let result = self.result_of(values);
                // SAFETY: there are as many results as starts, and chunks are apart.
                unsafe { self.result.write(y.at(0), i, result, Limits::DEFAULT) };
            }
            Ok(())
        })
    }
}

impl Reduction {
    fn result_of(&self, values: impl Iterator<Item = Value> + Clone) -> Value {
        if let Op::Place { largest, last } = self.op {
            return Value::Int(place_of(values, largest, last));
        }
        match self.kind.integers() {
            Some(range) => self.integer(values.map(integer), range),
            None => Value::Float(self.float(values.map(Value::to_f64))),
        }
    }

    fn float(&self, x: impl Iterator<Item = f64> + Clone) -> f64 {
        let n = self.within.len() as f64;
        match self.op {
            Op::Mean => x.sum::<f64>() / n,
            Op::Max => x.fold(f64::NEG_INFINITY, |a, b| if a.is_nan() || a > b { a } else { b }),
            Op::Min => x.fold(f64::INFINITY, |a, b| if a.is_nan() || a < b { a } else { b }),
            Op::Product => x.product(),
            Op::SumSquare => x.map(|x| x * x).sum::<f64>() + 0.0,
            Op::L1 => x.map(f64::abs).sum::<f64>() + 0.0,
            Op::L2 => (x.map(|x| x * x).sum::<f64>() + 0.0).sqrt(),
            Op::LogSum => x.sum::<f64>().ln(),
            Op::LogSumExp => {
                // An infinity minus itself would be NaN.
                let largest = x.clone().fold(f64::NEG_INFINITY, f64::max);
                let shift = if largest.is_finite() { largest } else { 0.0 };
                x.map(|x| (x - shift).exp()).sum::<f64>().ln() + shift
            }
            // An empty sum is -0 in Rust, and 0 in the specification.
            Op::Sum | Op::Place { .. } => x.sum::<f64>() + 0.0,
        }
    }

    /// Sums keep the low bits whatever is added, for 128 bits are never full.
    fn integer(&self, x: impl Iterator<Item = i128> + Clone, (lowest, highest): (i128, i128)) -> Value {
        Value::Int(match self.op {
            Op::Sum | Op::Place { .. } => x.sum(),
            Op::Mean => x.sum::<i128>().checked_div(self.within.len() as i128).unwrap_or(0),
            Op::Max => x.max().unwrap_or(lowest),
            Op::Min => x.min().unwrap_or(highest),
            Op::Product => x.fold(1, |a: i64, b| a.wrapping_mul(b as i64)).into(),
            Op::SumSquare => x.fold(0, |a: i64, b| a.wrapping_add((b as i64).wrapping_mul(b as i64))).into(),
            Op::L1 => x.map(i128::abs).sum(),
            Op::L2 => return Value::Float(x.map(|x| (x as f64).powi(2)).sum::<f64>().sqrt()),
            Op::LogSum => return Value::Float((x.sum::<i128>() as f64).ln()),
            Op::LogSumExp => return Value::Float(self.float(x.map(|x| x as f64))),
        })
    }
}

fn integer(value: Value) -> i128 {
    match value {
        Value::Int(x) => x,
        Value::Float(x) => x as i128,
    }
}

/// The place of an extreme; NaN counts as one.
fn place_of(values: impl Iterator<Item = Value>, largest: bool, last: bool) -> i128 {
    let mut best: Option<(usize, Value)> = None;
    for (i, value) in values.enumerate() {
        let better = |best: Value| match (value, best) {
            (Value::Int(a), Value::Int(b)) => (if largest { a > b } else { a < b }) || last && a == b,
            (a, b) => {
                let (a, b) = (a.to_f64(), b.to_f64());
                let beyond = a.is_nan() && !b.is_nan() || (if largest { a > b } else { a < b });
                beyond || last && (a == b || a.is_nan() && b.is_nan())
            }
        };
        if best.is_none_or(|(_, best)| better(best)) {
            best = Some((i, value));
        }
    }
    best.map_or(0, |(i, _)| i as i128)
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};
    use devbay_plugin_api::sdk::Element;

    fn check<T: Element, Y: Element + PartialEq + std::fmt::Debug>(op: &str, x: &[T], axis: i64, y: &[Y]) {
        let (axes, attrs) = match op {
            "ArgMax" | "ArgMin" => (None, vec![("axis", Value::Int(axis)), ("keepdims", Value::Int(0))]),
            _ => (Some(Array::of(&[1], &[axis])), vec![("keepdims", Value::Int(0))]),
        };
        let inputs = [Some(Array::of(&[2, x.len() / 2], x)), axes];
        let inputs = if op.starts_with("Arg") { &inputs[..1] } else { &inputs[..] };
        let found = run(Isa::Baseline, op, &attrs, inputs, &[Some(Array::empty::<Y>(&[y.len()]))]).expect(op);
        assert_eq!(found[0].as_ref().expect("a result").elements::<Y>(), y, "{op}");
    }

    #[test]
    fn doubles() {
        let x = [1.0f64, -3.0, 2.0, 4.0];
        check("ReduceSum", &x, 1, &[-2.0, 6.0]);
        check("ReduceSum", &x, 0, &[3.0, 1.0]);
        check("ReduceMean", &x, 1, &[-1.0, 3.0]);
        check("ReduceMax", &x, 0, &[2.0, 4.0]);
        check("ReduceMin", &x, 1, &[-3.0, 2.0]);
        check("ReduceProd", &x, 1, &[-3.0, 8.0]);
        check("ReduceSumSquare", &x, 1, &[10.0, 20.0]);
        check("ReduceL1", &x, 1, &[4.0, 6.0]);
        check("ReduceL2", &[3.0f64, 4.0, 0.0, 2.0], 1, &[5.0, 2.0]);
        check("ReduceLogSum", &[0.5f64, 0.5, 0.0, 0.0], 1, &[0.0, f64::NEG_INFINITY]);
        let log_2 = std::f64::consts::LN_2;
        check("ReduceLogSumExp", &[1000.0f64, 1000.0, 0.0, 0.0], 1, &[1000.0 + log_2, log_2]);
        check(
            "ReduceLogSumExp",
            &[f64::INFINITY, 0.0, f64::NEG_INFINITY, f64::NEG_INFINITY],
            1,
            &[f64::INFINITY, f64::NEG_INFINITY],
        );
    }

    #[test]
    fn integers_are_exact_and_keep_low_bits() {
        check("ReduceSum", &[200u8, 100, 1, 2], 1, &[44u8, 3]);
        check("ReduceMean", &[200u8, 100, 1, 2], 1, &[150u8, 1]);
        check("ReduceProd", &[-128i8, 2, 3, 5], 1, &[0i8, 15]);
        check("ReduceMax", &[u64::MAX, 1, 2, 3], 1, &[u64::MAX, 3]);
        check("ReduceL1", &[i32::MIN, 0, -1, 1], 1, &[i32::MIN, 2]);
        check("ReduceL2", &[3i64, 4, 1, 1], 1, &[5i64, 1]);
    }

    #[test]
    fn places_of_extremes() {
        check("ArgMax", &[1u16, 9, 9, 2, 2, 2], 1, &[1i64, 0]);
        check("ArgMin", &[1.0f64, f64::NAN, 0.0, 2.0, 3.0, 1.0], 1, &[1i64, 2]);
        let attrs =
            [("axis", Value::Int(0)), ("select_last_index", Value::Int(1)), ("keepdims", Value::Int(0))];
        let x = [Some(Array::of(&[2, 2], &[5i8, 7, 5, 1]))];
        let found =
            run(Isa::Baseline, "ArgMax", &attrs, &x, &[Some(Array::empty::<i64>(&[2]))]).expect("ArgMax");
        assert_eq!(found[0].as_ref().expect("places").elements::<i64>(), [1, 0]);
    }
}
