//! Gather, GatherElements and GatherND: reading elements that indices name.
//!
//! Every index is checked when it is used: a negative one counts from the back, and one that names
//! nothing is an error of the launch, never a read outside the data.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{axis, element_size, expect_output, extents, row_major};
use crate::kernels::geometry::strided::{GRAIN_BYTES, copy_run};
use crate::kernels::geometry::walk::Walk;
use crate::kernels::types::MOVABLE;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

const MOVED: TypeVar = TypeVar::of(MOVABLE);
const INDEX: TypeVar = TypeVar::of(&[I64, I32]);

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("Gather", 13, gather).types(&[MOVED, INDEX]).cost(cost).doc("slices of one axis"),
    descriptor("GatherElements", 13, gather_elements)
        .types(&[MOVED, INDEX])
        .cost(cost)
        .doc("one element for each index along one axis"),
    descriptor("GatherND", 13, gather_nd)
        .types(&[MOVED, TypeVar::of(&[I64])])
        .cost(cost)
        .doc("slices named by tuples of indices"),
];

/// Of the data only what is gathered is read.
fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let indices = request.required_input(1)?;
    let index_bytes = indices.n_elements() * element_size(indices.dtype());
    let all = cost::of(request, 0);
    Ok(Cost { bytes_read: all.bytes_written + index_bytes as u64, ..all })
}

/// A type that indices may have.
pub(crate) trait Index: Element {
    /// Its value.
    fn get(self) -> i64;
}

impl Index for i64 {
    #[inline(always)]
    fn get(self) -> i64 {
        self
    }
}

impl Index for i32 {
    #[inline(always)]
    fn get(self) -> i64 {
        self.into()
    }
}

/// The position that an index names on an axis of `n` elements.
///
/// # Errors
/// Invalid if there is none.
#[inline(always)]
pub(crate) fn resolve(index: i64, n: usize) -> Result<usize> {
    let from_front = if index < 0 { index + n as i64 } else { index };
    if (from_front as u64) < n as u64 {
        return Ok(from_front as usize);
    }
    Err(out_of_range(index, n))
}

#[cold]
fn out_of_range(index: i64, n: usize) -> Error {
    Error::invalid(format!("index {index} of an axis of {n} elements, expected at least -{n} and below {n}"))
}

/// Elements of a chunk that each have an index of their own.
const GRAIN: usize = 16 * 1024;

/// `body::<index type, bytes of an element>` for the dtypes of a request; 0 bytes stand for any number.
macro_rules! by_types {
    ($body:ident, $index:expr, $bytes:expr) => {
        match ($index.bits, $bytes) {
            (32, 1) => $body::<i32, 1>,
            (32, 2) => $body::<i32, 2>,
            (32, 4) => $body::<i32, 4>,
            (32, 8) => $body::<i32, 8>,
            (32, _) => $body::<i32, 0>,
            (_, 1) => $body::<i64, 1>,
            (_, 2) => $body::<i64, 2>,
            (_, 4) => $body::<i64, 4>,
            (_, 8) => $body::<i64, 8>,
            (_, _) => $body::<i64, 0>,
        }
    };
}

/// Copies `N` bytes, or `n` if `N` is 0.
///
/// # Safety
/// `from` and `to` hold that many bytes, and are apart.
#[inline(always)]
unsafe fn copy_element<const N: usize>(from: *const u8, to: *mut u8, n: usize) {
    let n = if N == 0 { n } else { N };
    // SAFETY: `from` and `to` hold `n` bytes, and are apart (# Safety).
    unsafe { copy_run(from, to, n) };
}

type GatherFn = fn(&Gather, *const u8, *const u8, *mut u8) -> Result<()>;

struct Gather {
    host: Host,
    outer: usize,
    /// Extent of the axis.
    n: usize,
    n_indices: usize,
    /// Bytes of a slice: everything inside the axis.
    bytes: usize,
    body: GatherFn,
}

fn gather(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let (data, indices) = (request.required_input(0)?, request.required_input(1)?);
    let from = extents(data)?;
    let axis = axis(request.attrs.int("axis", 0)?, from.len())?;
    let of_indices = extents(indices)?;
    expect_output(request, 0, &[&from[..axis], &of_indices, &from[axis + 1..]].concat())?;
    let inner: usize = from[axis + 1..].iter().product();
    let bytes = inner * element_size(data.dtype());
    Ok(Prepared::new(Gather {
        host: request.host,
        outer: from[..axis].iter().product(),
        n: from[axis],
        n_indices: of_indices.iter().product(),
        bytes,
        body: by_types!(gather_slices, indices.dtype(), bytes),
    }))
}

impl Launch<CpuDevice> for Gather {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let (data, indices) = (operands.input_ptr(0), operands.input_ptr(1));
        (self.body)(self, data, indices, operands.output_ptr(0))
    }
}

fn gather_slices<I: Index, const N: usize>(
    gather: &Gather,
    data: *const u8,
    indices: *const u8,
    output: *mut u8,
) -> Result<()> {
    let data = SendPtr(data.cast_mut());
    let indices = SendPtr(indices.cast_mut().cast::<I>());
    let output = SendPtr(output);
    if gather.bytes == 0 {
        return Ok(());
    }
    let grain = (GRAIN_BYTES / gather.bytes).clamp(1, GRAIN);
    let n_slices = gather.outer * gather.n_indices;
    gather.host.parallel_for(n_slices, grain, |range, _| {
        let mut outer = range.start / gather.n_indices;
        let mut i = range.start % gather.n_indices;
        for slice in range {
            // SAFETY: `i` is below the number of indices that `prepare` was told.
            let index = unsafe { indices.at(i).read() };
            let row = outer * gather.n + resolve(index.get(), gather.n)?;
            let (source, target) = (data.at(row * gather.bytes), output.at(slice * gather.bytes));
            // SAFETY: `row` is a row of the data, `slice` one of the output, whose extents were checked.
            unsafe { copy_element::<N>(source, target, gather.bytes) };
            i += 1;
            if i == gather.n_indices {
                (i, outer) = (0, outer + 1);
            }
        }
        Ok(())
    })
}

type GatherElementsFn = fn(&GatherElements, *const u8, *const u8, *mut u8) -> Result<()>;

struct GatherElements {
    host: Host,
    /// All dimensions of the indices but the last, with elements of the data; the axis has none.
    rows: Walk<1>,
    row: usize,
    /// Elements of the data from one column to the next: 0 if the columns are the axis.
    col_stride: usize,
    /// Extent and stride of the axis in the data.
    n: usize,
    axis_stride: usize,
    body: GatherElementsFn,
}

fn gather_elements(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let (data, indices) = (request.required_input(0)?, request.required_input(1)?);
    let (from, to) = (extents(data)?, extents(indices)?);
    let axis = axis(request.attrs.int("axis", 0)?, from.len())?;
    expect_output(request, 0, &to)?;
    expect_within(&to, &from, axis)?;
    let strides = row_major(&from);
    let last = from.len() - 1;
    let along = |i: usize| if i == axis { 0 } else { strides[i] };
    Ok(Prepared::new(GatherElements {
        host: request.host,
        rows: Walk::new((0..last).map(|i| (to[i], [along(i)])))?,
        row: to[last],
        col_stride: along(last) as usize,
        n: from[axis],
        axis_stride: strides[axis] as usize,
        body: by_types!(gather_rows, indices.dtype(), element_size(data.dtype())),
    }))
}

/// Checks that indices have no larger extent than the data, but on the axis.
///
/// # Errors
/// Invalid if they have.
pub(crate) fn expect_within(indices: &[usize], data: &[usize], axis: usize) -> Result<()> {
    let fits = |i: usize| i == axis || indices[i] <= data[i];
    if indices.len() == data.len() && (0..data.len()).all(fits) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "indices of {indices:?} for axis {axis} of {data:?}, expected no larger extent beside the axis"
    )))
}

impl Launch<CpuDevice> for GatherElements {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let (data, indices) = (operands.input_ptr(0), operands.input_ptr(1));
        (self.body)(self, data, indices, operands.output_ptr(0))
    }
}

fn gather_rows<I: Index, const N: usize>(
    gather: &GatherElements,
    data: *const u8,
    indices: *const u8,
    output: *mut u8,
) -> Result<()> {
    let data = SendPtr(data.cast_mut());
    let indices = SendPtr(indices.cast_mut().cast::<I>());
    let output = SendPtr(output);
    let grain = (GRAIN / gather.row.max(1)).max(1);
    let n_rows = if gather.row == 0 { 0 } else { gather.rows.len() };
    gather.host.parallel_for(n_rows, grain, |range, _| {
        let mut position = gather.rows.position(range.start);
        for row in range {
            let base = position.offsets[0] as usize;
            for col in 0..gather.row {
                let i = row * gather.row + col;
                // SAFETY: `i` is below the number of indices that `prepare` was told.
                let index = unsafe { indices.at(i).read() };
                let at = resolve(index.get(), gather.n)? * gather.axis_stride;
                let source = data.at((base + col * gather.col_stride + at) * N);
                // SAFETY: the index was resolved and the other extents checked, so that the element
                // lies within the data; the output has the extents of the indices.
                unsafe { copy_element::<N>(source, output.at(i * N), N) };
            }
            gather.rows.advance(&mut position);
        }
        Ok(())
    })
}

/// Tuples of indices that name slices of the data.
pub(crate) struct Tuples {
    /// Tuples of one batch, and of all.
    pub(crate) per_batch: usize,
    pub(crate) n: usize,
    /// Elements of the data for each batch.
    pub(crate) batch_stride: usize,
    /// Extent and stride in elements of each dimension that a tuple names.
    pub(crate) dims: Vec<(usize, usize)>,
    /// Elements of a slice.
    pub(crate) slice: usize,
}

impl Tuples {
    /// For data and indices of these extents, and the extents of all slices together.
    ///
    /// # Errors
    /// Invalid if they do not fit.
    pub(crate) fn new(data: &[usize], indices: &[usize], batch_dims: i64) -> Result<(Self, Vec<usize>)> {
        let broken = || {
            Error::invalid(format!(
                "indices of {indices:?} for data of {data:?} and {batch_dims} batch dimensions"
            ))
        };
        let (&width, outer) = indices.split_last().ok_or_else(broken)?;
        let batch = usize::try_from(batch_dims).map_err(|_| broken())?;
        if batch > outer.len() || batch + width > data.len() || outer[..batch] != data[..batch] {
            return Err(broken());
        }
        let strides = row_major(data);
        let dim = |i: usize| (data[i], strides[i] as usize);
        let tuples = Self {
            per_batch: outer[batch..].iter().product(),
            n: outer.iter().product(),
            batch_stride: data[batch..].iter().product(),
            dims: (batch..batch + width).map(dim).collect(),
            slice: data[batch + width..].iter().product(),
        };
        Ok((tuples, [outer, &data[batch + width..]].concat()))
    }

    /// The element of the data where the slice of a tuple begins.
    ///
    /// # Errors
    /// Invalid if an index names nothing.
    ///
    /// # Safety
    /// `indices` are those that `new` was told, and `tuple` is below `n`.
    #[inline(always)]
    pub(crate) unsafe fn slice_at(&self, indices: *const i64, tuple: usize) -> Result<usize> {
        let first = indices.wrapping_add(tuple * self.dims.len());
        let mut at = tuple / self.per_batch * self.batch_stride;
        for (i, &(n, stride)) in self.dims.iter().enumerate() {
            // SAFETY: `tuple` is below `n`, so it has as many indices as there are dimensions (# Safety).
            at += resolve(unsafe { first.add(i).read() }, n)? * stride;
        }
        Ok(at)
    }
}

struct GatherNd {
    host: Host,
    tuples: Tuples,
    size: usize,
}

fn gather_nd(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let data = request.required_input(0)?;
    let indices = extents(request.required_input(1)?)?;
    let batch_dims = request.attrs.int("batch_dims", 0)?;
    let (tuples, to) = Tuples::new(&extents(data)?, &indices, batch_dims)?;
    expect_output(request, 0, &to)?;
    Ok(Prepared::new(GatherNd { host: request.host, tuples, size: element_size(data.dtype()) }))
}

impl Launch<CpuDevice> for GatherNd {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let data = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let indices = SendPtr(operands.input_ptr::<i64>(1).cast_mut());
        let output = SendPtr(operands.output_ptr::<u8>(0));
        let bytes = self.tuples.slice * self.size;
        if bytes == 0 {
            return Ok(());
        }
        let grain = (GRAIN_BYTES / bytes).clamp(1, GRAIN);
        self.host.parallel_for(self.tuples.n, grain, |range, _| {
            for tuple in range {
                // SAFETY: `tuple` is below the number of tuples that `prepare` was told.
                let at = unsafe { self.tuples.slice_at(indices.at(0), tuple) }?;
                let (source, target) = (data.at(at * self.size), output.at(tuple * bytes));
                // SAFETY: the slice was resolved within the data, and the output's extents checked.
                unsafe { copy_run(source, target, bytes) };
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    #[test]
    fn indices_count_from_both_ends_and_not_beyond() {
        let data: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let gathered = |indices: &[i32]| {
            let inputs = [Some(Array::of(&[3, 4], &data)), Some(Array::of(&[indices.len()], indices))];
            let output = [Some(Array::empty::<f32>(&[3, indices.len()]))];
            run(Isa::Baseline, "Gather", &[("axis", Value::Int(1))], &inputs, &output)
        };
        let found = gathered(&[3, -4, 0]).expect("gathers");
        let elements = found[0].as_ref().expect("an output").elements::<f32>();
        assert_eq!(elements, [3.0, 0.0, 0.0, 7.0, 4.0, 4.0, 11.0, 8.0, 8.0]);
        for index in [4, -5, i32::MAX, i32::MIN] {
            let error = gathered(&[0, index]).expect_err("an index of nothing");
            assert!(error.contains(&index.to_string()), "{error}");
        }
    }
}
