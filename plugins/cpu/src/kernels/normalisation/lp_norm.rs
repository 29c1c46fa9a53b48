//! LpNormalization: elements along an axis, divided by their norm.
//!
//! Sums, roots and quotients are in f64, so that squares do not overflow and each result is rounded once. A row adds up in lanes,
//! whose number is the same on every processor, and so are the bits of its norm.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::{Arith, Isa};
use crate::kernels::elementwise::loops::{blocks, slice};
use crate::kernels::geometry::extents::{around, axis, expect_output, extents};
use crate::kernels::numbers::real::{Brain, Half, Stored};
use crate::stream::CpuStream;
use devbay_plugin_api::sdk::*;
use std::ops::Range;

/// Elements of a chunk of a parallel loop.
const GRAIN: usize = 16 * 1024;
/// Sums of a row.
const LANES: usize = 32;
/// Columns that are worked on at once.
const TILE: usize = 64;

/// A norm: what it adds up, and what becomes of the sum.
trait Norm: 'static {
    fn term(x: f64) -> f64;
    fn of(sum: f64) -> f64;
}

struct L1;
struct L2;

impl Norm for L1 {
    #[inline(always)]
    fn term(x: f64) -> f64 {
        x.abs()
    }

    #[inline(always)]
    fn of(sum: f64) -> f64 {
        sum
    }
}

impl Norm for L2 {
    #[inline(always)]
    fn term(x: f64) -> f64 {
        x * x
    }

    #[inline(always)]
    fn of(sum: f64) -> f64 {
        sum.sqrt()
    }
}

/// The divisor of elements whose terms have a sum. Zeros stay zeros.
#[inline(always)]
fn divisor<P: Norm>(sum: f64) -> f64 {
    let norm = P::of(sum);
    if norm == 0.0 { 1.0 } else { norm }
}

/// Extents at and after the axis.
#[derive(Clone, Copy)]
struct Plan {
    n: usize,
    inner: usize,
}

type Body = unsafe fn(*const u8, *mut u8, &Plan, Range<usize>);

dispatch! { fn body<T: Stored, P: Norm>(x: *const u8, y: *mut u8, plan: &Plan, items: Range<usize>) = norm_body }

/// Items are rows, or tiles of columns where the axis is not the last.
///
/// # Safety
/// `x` and `y` have the elements of the plan, of which no other thread writes those of the items.
#[inline(always)]
unsafe fn norm_body<A: Arith, T: Stored, P: Norm>(
    x: *const u8,
    y: *mut u8,
    plan: &Plan,
    items: Range<usize>,
) {
    let (x, y) = (x.cast::<T>(), y.cast::<T>());
    for item in items {
        if plan.inner == 1 {
            let at = item * plan.n;
            // SAFETY: the item is a row of both operands (# Safety).
            unsafe { row::<T, P>(x.add(at), y.add(at), plan.n) };
        } else {
            // SAFETY: the item is a tile of both operands (# Safety).
            unsafe { columns::<T, P>(x, y, plan, item) };
        }
    }
}

/// # Safety
/// `x` and `y` have `n` elements.
#[inline(always)]
unsafe fn row<T: Stored, P: Norm>(x: *const T, y: *mut T, n: usize) {
    // SAFETY: `x` has `n` elements (# Safety), and nothing is written before their last use here.
    let (steps, rest) = unsafe { slice(x, n) }.as_chunks::<LANES>();
    let mut lanes = [0f64; LANES];
    for step in steps {
        for (lane, x) in lanes.iter_mut().zip(step) {
            *lane += P::term(x.value());
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += P::term(x.value());
    }
    let norm = divisor::<P>(lanes.iter().sum());
    blocks!(false, n, y, [v = x] => T::of(v.value() / norm));
}

/// # Safety
/// `x` and `y` have the elements of the plan, and `item` is one of its tiles.
#[inline(always)]
unsafe fn columns<T: Stored, P: Norm>(x: *const T, y: *mut T, plan: &Plan, item: usize) {
    let n_tiles = plan.inner.div_ceil(TILE);
    let first = item % n_tiles * TILE;
    let width = TILE.min(plan.inner - first);
    let start = item / n_tiles * plan.n * plan.inner + first;
    let rows = (0..plan.n).map(|i| start + i * plan.inner);
    let mut norms = [0f64; TILE];
    let norms = &mut norms[..width];
    for at in rows.clone() {
        // SAFETY: the tile lies within the operand (# Safety).
        for (sum, x) in norms.iter_mut().zip(unsafe { slice(x.add(at), width) }) {
            *sum += P::term(x.value());
        }
    }
    norms.iter_mut().for_each(|norm| *norm = divisor::<P>(*norm));
    for at in rows {
        blocks!(false, width, y.wrapping_add(at), [v = x.wrapping_add(at), norm = norms.as_ptr()] => T::of(v.value() / norm));
    }
}

struct LpNorm {
    host: Host,
    plan: Plan,
    n_items: usize,
    grain: usize,
    body: Body,
}

/// Prepares the op.
///
/// # Errors
/// Invalid for another order than 1 and 2, and for a result of another shape.
pub(crate) fn prepare(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let x = request.required_input(0)?;
    let isa = request.device.isa;
    let body = match request.attrs.int("p", 2)? {
        1 => body_for::<L1>(x.dtype(), isa)?,
        2 => body_for::<L2>(x.dtype(), isa)?,
        p => return Err(Error::invalid(format!("expected a norm of order 1 or 2, found {p}"))),
    };
    let shape = extents(x)?;
    expect_output(request, 0, &shape)?;
    let [outer, n, inner] = match shape.len() {
        // A scalar counts as one element.
        0 => [1, 1, 1],
        rank => around(&shape, axis(request.attrs.int("axis", -1)?, rank)?),
    };
    Ok(Prepared::new(LpNorm {
        host: request.host,
        plan: Plan { n, inner },
        n_items: if n == 0 { 0 } else { outer * inner.div_ceil(TILE) },
        grain: (GRAIN / (n * inner.min(TILE)).max(1)).max(1),
        body,
    }))
}

fn body_for<P: Norm>(dtype: DType, isa: Isa) -> Result<Body> {
    Ok(match dtype {
        F32 => body::<f32, P>(isa),
        F64 => body::<f64, P>(isa),
        F16 => body::<Half, P>(isa),
        BF16 => body::<Brain, P>(isa),
        dtype => return Err(Error::unsupported(format!("dtype {dtype:?}"))),
    })
}

impl Launch<CpuDevice> for LpNorm {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let y = SendPtr(operands.output_ptr::<u8>(0));
        self.host.parallel_for(self.n_items, self.grain, |items, _| {
            // SAFETY: the operands have the shape that `prepare` was told; chunks are apart; the instructions are the device's.
            unsafe { (self.body)(x.at(0), y.at(0), &self.plan, items) };
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::test_host::{Array, Value, run};
    use crate::kernels::testing::{Chance, isas};

    /// Rows and columns that fill lanes and tiles or do not, with squares beyond f32, zeros, and what is no number.
    #[test]
    fn norms_agree_with_their_definition() {
        let mut chance = Chance::new(6);
        for (outer, n, inner) in
            [(3, 1, 1), (4, 7, 1), (2, 64, 1), (3, 131, 1), (2, 5, 3), (2, 33, 64), (1, 9, 70)]
        {
            for special in [0.0, 1e30, 1e-30, f32::NAN, f32::INFINITY] {
                for p in [1, 2] {
                    let mut x = chance.floats(outer * n * inner, 2.0);
                    if special == 0.0 {
                        x[..n * inner].fill(-0.0);
                    } else {
                        x[chance.below(outer * n * inner)] = special;
                    }
                    let mut expected = vec![0f32; x.len()];
                    for lane in 0..outer * inner {
                        let at = |i: usize| (lane / inner * n + i) * inner + lane % inner;
                        let wide = |i: usize| f64::from(x[at(i)]);
                        let norm: f64 = match p {
                            1 => (0..n).map(|i| wide(i).abs()).sum(),
                            _ => (0..n).map(|i| wide(i) * wide(i)).sum::<f64>().sqrt(),
                        };
                        let norm = if norm == 0.0 { 1.0 } else { norm };
                        (0..n).for_each(|i| expected[at(i)] = (wide(i) / norm) as f32);
                    }
                    for isa in isas() {
                        let inputs = [Some(Array::of(&[outer, n, inner], &x))];
                        let output = [Some(Array::empty::<f32>(&[outer, n, inner]))];
                        let attrs = [("axis", Value::Int(1)), ("p", Value::Int(p))];
                        let found = run(isa, "LpNormalization", &attrs, &inputs, &output).expect("norms");
                        let found = found[0].as_ref().expect("a result").elements::<f32>();
                        for (found, expected) in found.iter().zip(&expected) {
                            // The sum comes in another order, whose last digit seldom shows.
                            let near = (found - expected).abs() <= expected.abs() * f32::EPSILON;
                            let same =
                                found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                            assert!(
                                near || same,
                                "{p} of {outer}x{n}x{inner}, {isa:?}: {found}, not {expected}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn halves_are_rounded_once() {
        let x = [0x4200u16, 0xc400, 0x8000];
        let inputs = [Some(Array::raw(F16, &[3], bytemuck::cast_slice(&x)))];
        let output = [Some(Array::raw(F16, &[3], &[0; 6]))];
        let found = run(Isa::Baseline, "LpNormalization", &[], &inputs, &output).expect("norms");
        // 0.6, -0.8 and -0.
        let expected: [u16; 3] = [0x38cd, 0xba66, 0x8000];
        assert_eq!(found[0].as_ref().expect("a result").bytes(), bytemuck::cast_slice::<u16, u8>(&expected));
    }
}
