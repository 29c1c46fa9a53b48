//! ScatterElements and ScatterND: a copy of the data in which indices name what is replaced or reduced.
//!
//! The copy falls away when the output shares memory with the data. Indices may name one element twice;
//! updates are then applied in their order, on one thread for all that could meet.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{axis, element_size, expect_output, extents, row_major};
use crate::kernels::geometry::strided::GRAIN_BYTES;
use crate::kernels::geometry::walk::Walk;
use crate::kernels::movement::index::{Index, Tuples, expect_within, resolve};
use crate::kernels::types::MOVABLE;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

const MOVED: TypeVar = TypeVar::of(MOVABLE);

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("ScatterElements", 18, scatter_elements)
        .types(&[MOVED, TypeVar::of(&[I64, I32])])
        .in_place(&[0])
        .cost(cost)
        .doc("any dtype; reductions of f32, f64, i64, i32"),
    descriptor("ScatterND", 18, scatter_nd)
        .types(&[MOVED, TypeVar::of(&[I64])])
        .in_place(&[0])
        .cost(cost)
        .doc("any dtype; reductions of f32, f64, i64, i32"),
];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let updates = request.required_input(2)?.n_elements() as u64;
    Ok(cost::of(request, updates))
}

/// Change of an element by an update.
trait Reduction {
    /// The type of both.
    type Value: std::marker::Copy;
    /// The new element.
    fn reduce(old: Self::Value, update: Self::Value) -> Self::Value;
}

/// The update replaces the element.
struct Replace<T>(T);
struct Add<T>(T);
struct Mul<T>(T);
struct Max<T>(T);
struct Min<T>(T);

impl<T: std::marker::Copy> Reduction for Replace<T> {
    type Value = T;
    #[inline(always)]
    fn reduce(_old: T, update: T) -> T {
        update
    }
}

macro_rules! reductions {
    ($($value:ty: $add:expr, $mul:expr, $keeps:expr;)*) => {$(
        impl Reduction for Add<$value> {
            type Value = $value;
            #[inline(always)]
            fn reduce(old: $value, update: $value) -> $value {
                $add(old, update)
            }
        }
        impl Reduction for Mul<$value> {
            type Value = $value;
            #[inline(always)]
            fn reduce(old: $value, update: $value) -> $value {
                $mul(old, update)
            }
        }
        // NaN stays, on either side.
        impl Reduction for Max<$value> {
            type Value = $value;
            #[inline(always)]
            fn reduce(old: $value, update: $value) -> $value {
                if old >= update || $keeps(old) { old } else { update }
            }
        }
        impl Reduction for Min<$value> {
            type Value = $value;
            #[inline(always)]
            fn reduce(old: $value, update: $value) -> $value {
                if old <= update || $keeps(old) { old } else { update }
            }
        }
    )*};
}

reductions! {
    f32: |a, b| a + b, |a, b| a * b, f32::is_nan;
    f64: |a, b| a + b, |a, b| a * b, f64::is_nan;
    i32: i32::wrapping_add, i32::wrapping_mul, |_| false;
    i64: i64::wrapping_add, i64::wrapping_mul, |_| false;
}

/// `body::<parameters before, reduction>` for a node's dtype and attribute.
macro_rules! by_reduction {
    ($body:ident $(, $before:ty)*; $dtype:expr, $reduction:expr) => {
        match ($reduction, $dtype, element_size($dtype)) {
            ("none", _, 1) => $body::<$($before,)* Replace<u8>>,
            ("none", _, 2) => $body::<$($before,)* Replace<u16>>,
            ("none", _, 4) => $body::<$($before,)* Replace<u32>>,
            ("none", _, _) => $body::<$($before,)* Replace<u64>>,
            ("add", F32, _) => $body::<$($before,)* Add<f32>>,
            ("add", F64, _) => $body::<$($before,)* Add<f64>>,
            ("add", I32, _) => $body::<$($before,)* Add<i32>>,
            ("add", I64, _) => $body::<$($before,)* Add<i64>>,
            ("mul", F32, _) => $body::<$($before,)* Mul<f32>>,
            ("mul", F64, _) => $body::<$($before,)* Mul<f64>>,
            ("mul", I32, _) => $body::<$($before,)* Mul<i32>>,
            ("mul", I64, _) => $body::<$($before,)* Mul<i64>>,
            ("max", F32, _) => $body::<$($before,)* Max<f32>>,
            ("max", F64, _) => $body::<$($before,)* Max<f64>>,
            ("max", I32, _) => $body::<$($before,)* Max<i32>>,
            ("max", I64, _) => $body::<$($before,)* Max<i64>>,
            ("min", F32, _) => $body::<$($before,)* Min<f32>>,
            ("min", F64, _) => $body::<$($before,)* Min<f64>>,
            ("min", I32, _) => $body::<$($before,)* Min<i32>>,
            ("min", I64, _) => $body::<$($before,)* Min<i64>>,
            (reduction, dtype, _) => {
                return Err(Error::unsupported(format!(
                    "reduction {reduction} of dtype {dtype:?}, expected none, or add, mul, max or min of \
                     f32, f64, i32 or i64"
                )));
            }
        }
    };
}

/// Copies the data to the output, unless they are the same memory.
///
/// # Safety
/// Both hold `bytes` bytes, and are the same or apart; nothing else uses the output.
unsafe fn copy_data(host: &Host, data: *const u8, output: *mut u8, bytes: usize) -> Result<()> {
    if core::ptr::eq(data, output) {
        return Ok(());
    }
    let (data, output) = (SendPtr(data.cast_mut()), SendPtr(output));
    host.parallel_for(bytes, GRAIN_BYTES, |range, _| {
        let (source, target) = (data.at(range.start), output.at(range.start));
        // SAFETY: the range lies within both (the caller's promise), and chunks do not overlap.
        unsafe { core::ptr::copy_nonoverlapping(source, target, range.len()) };
        Ok(())
    })
}

type ElementsFn = fn(&ScatterElements, *const u8, *const u8, *mut u8) -> Result<()>;

struct ScatterElements {
    host: Host,
    data_bytes: usize,
    /// All dimensions of the indices but the last, with elements of the data; the axis has none.
    rows: Walk<1>,
    row: usize,
    /// Rows that stay within one position of the first dimension: others never meet them.
    rows_apart: usize,
    col_stride: usize,
    n: usize,
    axis_stride: usize,
    body: ElementsFn,
}

fn scatter_elements(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let (data, indices) = (request.required_input(0)?, request.required_input(1)?);
    let (to, from) = (extents(data)?, extents(indices)?);
    let axis = axis(request.attrs.int("axis", 0)?, to.len())?;
    expect_output(request, 0, &to)?;
    expect_within(&from, &to, axis)?;
    let updates = extents(request.required_input(2)?)?;
    if updates != from {
        return Err(Error::invalid(format!(
            "updates of {updates:?} for indices of {from:?}, expected the same"
        )));
    }
    let strides = row_major(&to);
    let last = to.len() - 1;
    let along = |i: usize| if i == axis { 0 } else { strides[i] };
    let rows = Walk::new((0..last).map(|i| (from[i], [along(i)])))?;
    let reduction = request.attrs.string("reduction", "none")?;
    let rows_apart = match axis {
        0 => rows.len(),
        _ => from[1..last].iter().product(),
    };
    Ok(Prepared::new(ScatterElements {
        host: request.host,
        data_bytes: data.n_elements() * element_size(data.dtype()),
        rows,
        row: from[last],
        rows_apart,
        col_stride: along(last) as usize,
        n: to[axis],
        axis_stride: strides[axis] as usize,
        body: match indices.dtype() {
            I32 => by_reduction!(scatter_rows, i32; data.dtype(), reduction),
            _ => by_reduction!(scatter_rows, i64; data.dtype(), reduction),
        },
    }))
}

impl Launch<CpuDevice> for ScatterElements {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let output = operands.output_ptr::<u8>(0);
        // SAFETY: data and output have the same extents; the host lends both, and they are the same
        // memory or apart (`in_place`).
        unsafe { copy_data(&self.host, operands.input_ptr(0), output, self.data_bytes) }?;
        (self.body)(self, operands.input_ptr(1), operands.input_ptr(2), output)
    }
}

fn scatter_rows<I: Index, R: Reduction>(
    scatter: &ScatterElements,
    indices: *const u8,
    updates: *const u8,
    output: *mut u8,
) -> Result<()> {
    let indices = SendPtr(indices.cast_mut().cast::<I>());
    let updates = SendPtr(updates.cast_mut().cast::<R::Value>());
    let output = SendPtr(output.cast::<R::Value>());
    let apart = scatter.rows_apart;
    if scatter.row == 0 || apart == 0 {
        return Ok(());
    }
    let grain = (GRAIN_BYTES / 16 / (apart * scatter.row)).max(1);
    let n_groups = scatter.rows.len() / apart;
    scatter.host.parallel_for(n_groups, grain, |range, _| {
        let mut position = scatter.rows.position(range.start * apart);
        for row in range.start * apart..range.end * apart {
            let base = position.offsets[0] as usize;
            for col in 0..scatter.row {
                let i = row * scatter.row + col;
                // SAFETY: `i` is below the number of indices that `prepare` was told.
                let index = unsafe { indices.at(i).read() };
                let at = resolve(index.get(), scatter.n)? * scatter.axis_stride;
                let element = output.at(base + col * scatter.col_stride + at);
                // SAFETY: there are as many updates as indices.
                let update = unsafe { updates.at(i).read() };
                // SAFETY: the index was resolved and the other extents checked, so that the element lies
                // within the output; other chunks have other positions of the first dimension.
                unsafe { element.write(R::reduce(element.read(), update)) };
            }
            scatter.rows.advance(&mut position);
        }
        Ok(())
    })
}

type NdFn = fn(&ScatterNd, *const i64, *const u8, *mut u8) -> Result<()>;

struct ScatterNd {
    host: Host,
    data_bytes: usize,
    tuples: Tuples,
    body: NdFn,
}

fn scatter_nd(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let data = request.required_input(0)?;
    let to = extents(data)?;
    expect_output(request, 0, &to)?;
    let indices = extents(request.required_input(1)?)?;
    let (tuples, slices) = Tuples::new(&to, &indices, 0)?;
    let updates = extents(request.required_input(2)?)?;
    if updates != slices {
        return Err(Error::invalid(format!("updates of {updates:?}, expected {slices:?}")));
    }
    let reduction = request.attrs.string("reduction", "none")?;
    Ok(Prepared::new(ScatterNd {
        host: request.host,
        data_bytes: data.n_elements() * element_size(data.dtype()),
        tuples,
        body: by_reduction!(scatter_slices; data.dtype(), reduction),
    }))
}

impl Launch<CpuDevice> for ScatterNd {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let output = operands.output_ptr::<u8>(0);
        // SAFETY: data and output have the same extents; the host lends both, and they are the same memory or apart
        // (`in_place`).
        unsafe { copy_data(&self.host, operands.input_ptr(0), output, self.data_bytes) }?;
        (self.body)(self, operands.input_ptr(1), operands.input_ptr(2), output)
    }
}

fn scatter_slices<R: Reduction>(
    scatter: &ScatterNd,
    indices: *const i64,
    updates: *const u8,
    output: *mut u8,
) -> Result<()> {
    let (updates, output) = (updates.cast::<R::Value>(), output.cast::<R::Value>());
    let n = scatter.tuples.slice;
    for tuple in 0..scatter.tuples.n {
        // SAFETY: `tuple` is below the number of tuples that `prepare` was told.
        let at = unsafe { scatter.tuples.slice_at(indices, tuple) }?;
        for i in 0..n {
            let element = output.wrapping_add(at + i);
            // SAFETY: the updates have `n` elements for each tuple.
            let update = unsafe { updates.add(tuple * n + i).read() };
            // SAFETY: the slice was resolved within the output.
            unsafe { element.write(R::reduce(element.read(), update)) };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};
    use crate::kernels::testing::Chance;

    #[test]
    fn updates_of_one_element_add_up_on_every_axis() {
        let mut random = Chance::new(3);
        for axis in 0..3 {
            let shape = [70, 5, 90];
            let n = shape.iter().product();
            let data: Vec<i64> = (0..n).map(|_| random.below(100) as i64).collect();
            let updates: Vec<i64> = (0..n).map(|_| random.below(100) as i64).collect();
            let range = shape[axis];
            let indices: Vec<i64> = (0..n).map(|_| random.below(2 * range) as i64 - range as i64).collect();
            let mut expected = data.clone();
            for i in 0..n {
                let mut at = [i / (5 * 90), i / 90 % 5, i % 90];
                at[axis] = (indices[i] + range as i64) as usize % range;
                expected[(at[0] * 5 + at[1]) * 90 + at[2]] += updates[i];
            }
            let inputs = [&data, &indices, &updates].map(|a| Some(Array::of(&shape, a)));
            let attrs = [("axis", Value::Int(axis as i64)), ("reduction", Value::Text("add"))];
            let output = [Some(Array::empty::<i64>(&shape))];
            let found = run(Isa::Baseline, "ScatterElements", &attrs, &inputs, &output).expect("scatters");
            assert_eq!(found[0], Some(Array::of(&shape, &expected)), "axis {axis}");
        }
    }
}
