//! CumSum, CumProd and NonZero: what comes out at one place depends on all that came before it.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{axis, expect_output, extents, host_ints};
use crate::kernels::numbers::number::Number;
use crate::kernels::numbers::widen;
use crate::kernels::reduction::fold::{Plus, Rule, Times};
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::abi::{DEVBAY_KERNEL_DATA_SHAPE, DEVBAY_KERNEL_DETERMINISTIC};
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("CumSum", 14, cum_sum).types(SUMMED).adapted(widen::floats).cost(cost),
    descriptor("CumProd", 26, cum_prod).types(SUMMED).adapted(widen::floats).cost(cost),
    descriptor("NonZero", 13, non_zero)
        .types(&[TypeVar::of(&[F32, I64, I32, BOOL, U8, I8, F64]), TypeVar::of(&[I64])])
        .flags(DEVBAY_KERNEL_DETERMINISTIC | DEVBAY_KERNEL_DATA_SHAPE)
        .cost(cost)
        .doc("positions of the elements that are not 0, one row for each dimension"),
];

const SUMMED: &[TypeVar] =
    &[TypeVar::of(&[F32, I64, I32, F64, U32, U64, F16, BF16]), TypeVar::of(&[I64, I32])];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let n = request.required_input(0)?.n_elements() as u64;
    Ok(cost::of(request, n))
}

/// Elements of a chunk.
const GRAIN: usize = 16 * 1024;

type CumSumFn = unsafe fn(&CumSum, *const u8, *mut u8);

/// Sums or products along the middle one of three dimensions.
struct CumSum {
    host: Host,
    outer: usize,
    n: usize,
    inner: usize,
    exclusive: bool,
    reverse: bool,
    size: usize,
    body: CumSumFn,
}

fn cum_sum(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    cumulative(
        request,
        match request.required_input(0)?.dtype() {
            F32 => (4, sums::<f32, Plus>),
            F64 => (8, sums::<f64, Plus>),
            I32 | U32 => (4, sums::<i32, Plus>),
            I64 | U64 => (8, sums::<i64, Plus>),
            dtype => return Err(Error::unsupported(format!("dtype {dtype:?}"))),
        },
    )
}

fn cum_prod(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    cumulative(
        request,
        match request.required_input(0)?.dtype() {
            F32 => (4, sums::<f32, Times>),
            F64 => (8, sums::<f64, Times>),
            // The low bits of a product do not depend on signs.
            I32 | U32 => (4, sums::<i32, Times>),
            I64 | U64 => (8, sums::<i64, Times>),
            dtype => return Err(Error::unsupported(format!("dtype {dtype:?}"))),
        },
    )
}

/// A kernel of elements of a size, with their loop.
fn cumulative(request: &PrepareRequest<'_, CpuDevice>, (size, body): (usize, CumSumFn)) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let from = extents(input)?;
    expect_output(request, 0, &from)?;
    let axis = match host_ints(request, 1)?.as_deref() {
        Some([i]) => axis(*i, from.len())?,
        found => {
            return Err(Error::invalid(format!("axes of {found:?}, expected one constant axis")));
        }
    };
    Ok(Prepared::new(CumSum {
        host: request.host,
        outer: from[..axis].iter().product(),
        n: from[axis],
        inner: from[axis + 1..].iter().product(),
        exclusive: request.attrs.int("exclusive", 0)? != 0,
        reverse: request.attrs.int("reverse", 0)? != 0,
        size,
        body,
    }))
}

impl Launch<CpuDevice> for CumSum {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let input = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let output = SendPtr(operands.output_ptr::<u8>(0));
        let block = self.n * self.inner;
        let grain = (GRAIN / block.max(1)).max(1);
        self.host.parallel_for(self.outer, grain, |range, _| {
            for outer in range {
                let at = outer * block * self.size;
                // SAFETY: the block lies within both operands, which have the same extents.
                unsafe { (self.body)(self, input.at(at), output.at(at)) };
            }
            Ok(())
        })
    }
}

/// # Safety
/// `input` and `output` hold the op's middle and inner elements, and are apart.
unsafe fn sums<T: Number, R: Rule>(op: &CumSum, input: *const u8, output: *mut u8) {
    let (input, output) = (input.cast::<T>(), output.cast::<T>());
    // The position of the `i`th row that is summed.
    let row = |i: usize| {
        let i = if op.reverse { op.n - 1 - i } else { i };
        i * op.inner
    };
    if op.inner == 1 {
        // The sum stays in a register.
        let mut sum = R::start::<T>();
        for i in 0..op.n {
            // SAFETY: the element lies within the input.
            let x = unsafe { input.add(row(i)).read() };
            let with = R::combine(sum, x);
            // SAFETY: the element lies within the output, too.
            unsafe { output.add(row(i)).write(if op.exclusive { sum } else { with }) };
            sum = with;
        }
        return;
    }
    for i in 0..op.n {
        for k in 0..op.inner {
            let before = match i {
                0 => R::start::<T>(),
                // SAFETY: the row before was written by this loop.
                _ => unsafe { output.add(row(i - 1) + k).read() },
            };
            let added = match (op.exclusive, i) {
                (true, 0) => R::start::<T>(),
                // SAFETY: the row lies within the input.
                (true, _) => unsafe { input.add(row(i - 1) + k).read() },
                // SAFETY: the row lies within the input.
                (false, _) => unsafe { input.add(row(i) + k).read() },
            };
            // SAFETY: the row lies within the output.
            unsafe { output.add(row(i) + k).write(R::combine(before, added)) };
        }
    }
}

type NonZeroFn = unsafe fn(&NonZero, *const u8, *mut i64) -> usize;

/// Most dimensions whose positions are counted.
const RANK_MAX: usize = 8;

/// Runs on one thread: where a position is written depends on how many came before it.
struct NonZero {
    rank: usize,
    shape: [usize; RANK_MAX],
    n: usize,
    body: NonZeroFn,
}

fn non_zero(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let from = extents(input)?;
    let (rank, n) = (from.len(), from.iter().product());
    expect_output(request, 0, &[rank, n])?;
    let mut shape = [1; RANK_MAX];
    match shape.get_mut(..rank) {
        Some(shape) => shape.copy_from_slice(&from),
        None => return Err(Error::unsupported(format!("{rank} dimensions"))),
    }
    Ok(Prepared::new(NonZero {
        rank,
        shape,
        n,
        body: match input.dtype() {
            F32 => positions::<f32>,
            F64 => positions::<f64>,
            I64 => positions::<i64>,
            I32 => positions::<i32>,
            // False is 0 in 8 bits.
            BOOL | U8 | I8 => positions::<u8>,
            dtype => return Err(Error::unsupported(format!("dtype {dtype:?}"))),
        },
    }))
}

impl Launch<CpuDevice> for NonZero {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let (input, output) = (operands.input_ptr(0), operands.output_ptr(0));
        // SAFETY: `prepare` checked the extents, and that the output has room for every position.
        let found = unsafe { (self.body)(self, input, output) };
        let extents = operands.extents_ptr();
        // SAFETY: the host lends room for the true extents of the one output, which has two.
        unsafe { extents.write(self.rank as i64) };
        // SAFETY: the second of those two extents.
        unsafe { extents.add(1).write(found as i64) };
        Ok(())
    }
}

/// Writes the positions of the elements that are not 0, and returns how many there are. The rows are as
/// long as that, so that the output is dense for its true extents.
///
/// # Safety
/// `input` holds the op's elements, and `output` as many positions.
unsafe fn positions<T: Element + PartialEq + Default>(
    op: &NonZero,
    input: *const u8,
    output: *mut i64,
) -> usize {
    let input = input.cast::<T>();
    // SAFETY: `i` is below the number of elements.
    let is_set = |i: usize| unsafe { input.add(i).read() } != T::default();
    let found = (0..op.n).filter(|&i| is_set(i)).count();
    if found == 0 || op.rank == 0 {
        return found;
    }
    let last = op.rank - 1;
    let cols = op.shape[last];
    let mut at = [0; RANK_MAX];
    let mut n = 0;
    for row in 0..op.n / cols {
        for col in 0..cols {
            if !is_set(row * cols + col) {
                continue;
            }
            at[last] = col;
            for (dim, &position) in at[..op.rank].iter().enumerate() {
                // SAFETY: `n` is below `found`, and there are `rank` rows of that length.
                unsafe { output.add(dim * found + n).write(position as i64) };
            }
            n += 1;
        }
        for dim in (0..last).rev() {
            at[dim] += 1;
            if at[dim] < op.shape[dim] {
                break;
            }
            at[dim] = 0;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    #[test]
    fn products_in_every_direction() {
        let x = [Some(Array::of(&[2, 3], &[1i32, 2, 3, 4, 5, 6])), Some(Array::of(&[], &[1i64]))];
        let output = [Some(Array::empty::<i32>(&[2, 3]))];
        for (exclusive, reverse, expected) in [
            (0, 0, [1, 2, 6, 4, 20, 120]),
            (1, 0, [1, 1, 2, 1, 4, 20]),
            (0, 1, [6, 6, 3, 120, 30, 6]),
            (1, 1, [6, 3, 1, 30, 6, 1]),
        ] {
            let attrs = [("exclusive", Value::Int(exclusive)), ("reverse", Value::Int(reverse))];
            let found = run(Isa::Baseline, "CumProd", &attrs, &x, &output).expect("multiplies");
            assert_eq!(found[0].as_ref().expect("a result").elements::<i32>(), expected);
        }
        let x = [Some(Array::of(&[2, 2], &[0.5f64, 2.0, 4.0, 3.0])), Some(Array::of(&[], &[-2i32]))];
        let found = run(Isa::Baseline, "CumProd", &[], &x, &[Some(Array::empty::<f64>(&[2, 2]))]);
        let found = found.expect("multiplies");
        assert_eq!(found[0].as_ref().expect("a result").elements::<f64>(), [0.5, 2.0, 2.0, 6.0]);
    }

    #[test]
    fn positions_are_dense_for_the_true_extents() {
        let x = [0.0f32, 1.0, -0.0, f32::NAN, 0.0, -2.0];
        let inputs = [Some(Array::of(&[2, 3], &x))];
        let output = [Some(Array::empty::<i64>(&[2, 6]))];
        let found = run(Isa::Baseline, "NonZero", &[], &inputs, &output).expect("finds");
        let [Some(positions), Some(extents)] = &found[..] else {
            panic!("expected positions and extents");
        };
        assert_eq!(extents.elements::<i64>(), [2, 3]);
        assert_eq!(positions.elements::<i64>()[..6], [0, 1, 1, 1, 0, 2]);
    }
}
