//! Gather, GatherElements and GatherND: reading elements that indices name.
//!
//! Every index is checked when it is used: a negative one counts from the back, and one that names
//! nothing is an error of the launch, never a read outside the data.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::{Arith, Isa};
use crate::kernels::cost;
use crate::kernels::geometry::extents::{axis, element_size, expect_output, extents, row_major};
use crate::kernels::geometry::strided::{GRAIN_BYTES, copy_run};
use crate::kernels::geometry::walk::Walk;
use crate::kernels::types::{GATHERED, MOVABLE};
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;
use std::ops::Range;

const MOVED: TypeVar = TypeVar::of(MOVABLE);
const INDEX: TypeVar = TypeVar::of(&[I64, I32]);

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("Gather", 13, gather)
        .types(&[TypeVar::of(GATHERED), INDEX])
        .cost(cost)
        .doc("slices of one axis"),
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

/// Indices that are resolved before anything is read by them.
const BLOCK: usize = 256;

type PlacesFn<I> = unsafe fn(*const I, usize, &mut [usize]) -> bool;

dispatch! { fn places<I: Index>(indices: *const I, n: usize, places: &mut [usize]) -> bool = places_body }

/// The places that some indices name, without a branch for each. False if one names nothing.
///
/// # Safety
/// There are as many indices as places.
#[inline(always)]
unsafe fn places_body<A: Arith, I: Index>(indices: *const I, n: usize, places: &mut [usize]) -> bool {
    let mut all_name = true;
    for (i, place) in places.iter_mut().enumerate() {
        // SAFETY: `i` is below the number of places (# Safety).
        let index = unsafe { indices.add(i).read() }.get();
        let from_front = if index < 0 { index + n as i64 } else { index };
        all_name &= (from_front as u64) < n as u64;
        *place = from_front as usize;
    }
    all_name
}

/// Resolves some indices.
///
/// # Errors
/// Invalid if one names nothing; the first one says so.
///
/// # Safety
/// There are as many indices as places, and the processor has the instructions of the function.
#[inline(always)]
unsafe fn resolve_block<I: Index>(
    body: PlacesFn<I>,
    indices: *const I,
    n: usize,
    places: &mut [usize],
) -> Result<()> {
    // SAFETY: there are as many indices as places, and the processor has the instructions (# Safety).
    if unsafe { body(indices, n, places) } {
        return Ok(());
    }
    for (i, place) in places.iter_mut().enumerate() {
        // SAFETY: `i` is below the number of places (# Safety).
        *place = resolve(unsafe { indices.add(i).read() }.get(), n)?;
    }
    Ok(())
}

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
    isa: Isa,
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
    let bits = usize::from(data.dtype().bits);
    if !(Size::of(inner) * bits).get("a slice")?.is_multiple_of(8) {
        return Ok(Prepared::new(GatherHalves {
            host: request.host,
            n: from[axis],
            n_indices: of_indices.iter().product(),
            inner,
            n_elements: request.required_output(0)?.n_elements(),
            index: if indices.dtype().bits == 32 { index_at::<i32> } else { index_at::<i64> },
        }));
    }
    let bytes = inner * bits / 8;
    Ok(Prepared::new(Gather {
        host: request.host,
        isa: request.device.isa,
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
    let find = places::<I>(gather.isa);
    let (n, n_indices, bytes) = (gather.n, gather.n_indices, if N == 0 { gather.bytes } else { N });
    // The slices of some indices, resolved once, for some positions before the axis.
    let copy = |outers: Range<usize>, of: Range<usize>| -> Result<()> {
        let mut places = [0; BLOCK];
        for first in of.clone().step_by(BLOCK) {
            let places = &mut places[..BLOCK.min(of.end - first)];
            // SAFETY: the indices are of those that `prepare` was told; the instructions are the device's.
            unsafe { resolve_block(find, indices.at(first).cast_const(), n, places) }?;
            for outer in outers.clone() {
                let (from, to) = (data.at(outer * n * bytes), output.at((outer * n_indices + first) * bytes));
                for (i, &place) in places.iter().enumerate() {
                    let (source, target) = (from.wrapping_add(place * bytes), to.wrapping_add(i * bytes));
                    // SAFETY: the place was resolved on the axis, and the output has a slice for each index, whose extents
                    // were checked.
                    unsafe { copy_element::<N>(source, target, bytes) };
                }
            }
        }
        Ok(())
    };
    gather.host.parallel_for(n_slices, grain, |range, _| {
        let place = |slice: usize| (slice / n_indices, slice % n_indices);
        let ((mut outer, i), (last, end)) = (place(range.start), place(range.end));
        if outer == last {
            return copy(outer..outer + 1, i..end);
        }
        // What is left of a round of the indices, whole rounds together, and the beginning of one.
        if i > 0 {
            copy(outer..outer + 1, i..n_indices)?;
            outer += 1;
        }
        copy(outer..last, 0..n_indices)?;
        copy(last..last + 1, 0..end)
    })
}

/// Gather of slices that end within a byte, of elements of half a byte.
struct GatherHalves {
    host: Host,
    /// Extent of the axis.
    n: usize,
    n_indices: usize,
    /// Elements of a slice.
    inner: usize,
    /// Elements of the result.
    n_elements: usize,
    index: unsafe fn(*const u8, usize) -> i64,
}

/// # Safety
/// There are more than `i` indices of the type.
unsafe fn index_at<I: Index>(indices: *const u8, i: usize) -> i64 {
    // SAFETY: there are more than `i` (# Safety).
    unsafe { indices.cast::<I>().wrapping_add(i).read() }.get()
}

impl Launch<CpuDevice> for GatherHalves {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let (data, indices) = (
            SendPtr(operands.input_ptr::<u8>(0).cast_mut()),
            SendPtr(operands.input_ptr::<u8>(1).cast_mut()),
        );
        let output = SendPtr(operands.output_ptr::<u8>(0));
        self.host.parallel_for(self.n_elements.div_ceil(2), GRAIN, |range, _| {
            for byte in range {
                let mut both = 0;
                for at in 2 * byte..(2 * byte + 2).min(self.n_elements) {
                    let (slice, inner) = (at / self.inner, at % self.inner);
                    let (outer, i) = (slice / self.n_indices, slice % self.n_indices);
                    // SAFETY: there is an index for each slice.
                    let place = resolve(unsafe { (self.index)(indices.at(0), i) }, self.n)?;
                    let from = (outer * self.n + place) * self.inner + inner;
                    // SAFETY: the place was resolved on the axis.
                    let element = (unsafe { data.at(from / 2).read() } >> (from % 2 * 4)) & 15;
                    both |= element << (at % 2 * 4);
                }
                // SAFETY: the result has a byte for each two elements, and this one is the chunk's.
                unsafe { output.at(byte).write(both) };
            }
            Ok(())
        })
    }
}

type GatherElementsFn = fn(&GatherElements, *const u8, *const u8, *mut u8) -> Result<()>;

struct GatherElements {
    host: Host,
    isa: Isa,
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
        isa: request.device.isa,
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
    let find = places::<I>(gather.isa);
    let grain = (GRAIN / gather.row.max(1)).max(1);
    let n_rows = if gather.row == 0 { 0 } else { gather.rows.len() };
    gather.host.parallel_for(n_rows, grain, |range, _| {
        let mut position = gather.rows.position(range.start);
        let mut places = [0; BLOCK];
        for row in range {
            let base = position.offsets[0] as usize;
            for first in (0..gather.row).step_by(BLOCK) {
                let places = &mut places[..BLOCK.min(gather.row - first)];
                let i = row * gather.row + first;
                // SAFETY: the indices are of those that `prepare` was told; the instructions are the device's.
                unsafe { resolve_block(find, indices.at(i).cast_const(), gather.n, places) }?;
                let (from, to) = (data.at((base + first * gather.col_stride) * N), output.at(i * N));
                let copy = |col_stride: usize, axis_stride: usize| {
                    for (col, &place) in places.iter().enumerate() {
                        let source = from.wrapping_add((col * col_stride + place * axis_stride) * N);
                        // SAFETY: the index was resolved and the other extents checked, so that the element
                        // lies within the data; the output has the extents of the indices.
                        unsafe { copy_element::<N>(source, to.wrapping_add(col * N), N) };
                    }
                };
                match (gather.col_stride, gather.axis_stride) {
                    // The axis is the last: no products.
                    (0, 1) => copy(0, 1),
                    (col_stride, axis_stride) => copy(col_stride, axis_stride),
                }
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
    use crate::kernels::testing::Chance;
    use devbay_plugin_api::sdk::{Element, U4};

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

    /// Blocks of indices that are whole or not, chunks that end within a round of the indices, and all widths of elements.
    #[test]
    fn indices_name_elements_of_any_axis() {
        fn check<T: Element + PartialEq + std::fmt::Debug>(of: fn(usize) -> T) {
            let mut chance = Chance::new(8);
            for (outer, n, inner, n_indices) in
                [(1, 5, 1, 3), (7, 9, 1, 300), (90, 40, 1, 500), (3, 6, 2, 257), (2, 3, 5, 4), (40, 3, 1, 2)]
            {
                let data: Vec<T> = (0..outer * n * inner).map(of).collect();
                let indices: Vec<i64> =
                    (0..n_indices).map(|_| chance.below(2 * n) as i64 - n as i64).collect();
                let place = |index: i64| index.rem_euclid(n as i64) as usize;
                let rows = || (0..outer).flat_map(|o| indices.iter().map(move |&index| o * n + place(index)));
                let expected: Vec<T> =
                    rows().flat_map(|row| data[row * inner..][..inner].iter().copied()).collect();
                let inputs =
                    [Some(Array::of(&[outer, n, inner], &data)), Some(Array::of(&[n_indices], &indices))];
                let output = [Some(Array::empty::<T>(&[outer, n_indices, inner]))];
                let found = run(Isa::Baseline, "Gather", &[("axis", Value::Int(1))], &inputs, &output)
                    .expect("gathers");
                assert_eq!(found[0].as_ref().expect("a result").elements::<T>(), expected);

                for axis in [1, 2] {
                    // Indices along the axis, elsewhere those of a part of the data.
                    let shape = match axis {
                        1 => [outer, n_indices, inner],
                        _ => [outer, n, n_indices],
                    };
                    let extent = [outer, n, inner][axis];
                    let indices: Vec<i64> = (0..shape.iter().product())
                        .map(|_| chance.below(2 * extent) as i64 - extent as i64)
                        .collect();
                    let expected: Vec<T> = indices
                        .iter()
                        .enumerate()
                        .map(|(i, &index)| {
                            let mut at = [i / (shape[1] * shape[2]), i / shape[2] % shape[1], i % shape[2]];
                            at[axis] = index.rem_euclid(extent as i64) as usize;
                            data[(at[0] * n + at[1]) * inner + at[2]]
                        })
                        .collect();
                    let inputs =
                        [Some(Array::of(&[outer, n, inner], &data)), Some(Array::of(&shape, &indices))];
                    let output = [Some(Array::empty::<T>(&shape))];
                    let attrs = [("axis", Value::Int(axis as i64))];
                    let found =
                        run(Isa::Baseline, "GatherElements", &attrs, &inputs, &output).expect("gathers");
                    assert_eq!(found[0].as_ref().expect("a result").elements::<T>(), expected);
                    for wrong in [extent as i64, -1 - extent as i64] {
                        let mut indices = indices.clone();
                        let at = chance.below(indices.len());
                        indices[at] = wrong;
                        let inputs =
                            [Some(Array::of(&[outer, n, inner], &data)), Some(Array::of(&shape, &indices))];
                        let found = run(Isa::Baseline, "GatherElements", &attrs, &inputs, &output);
                        assert!(
                            found.is_err_and(|error| error.contains(&format!("index {wrong} of an axis")))
                        );
                    }
                }
            }
        }
        check(|i| i as u8);
        check(|i| i as i16);
        check(|i| i as f32);
        check(|i| i as i64);
    }

    /// Rows of whole bytes and of a half; the elements of half a byte are 0 to 14 in turn.
    #[test]
    fn elements_of_half_a_byte() {
        for columns in [4usize, 3, 1] {
            let n = 5 * columns;
            let packed = |of: &[usize]| {
                let mut bytes = vec![0u8; of.len().div_ceil(2)];
                of.iter().enumerate().for_each(|(at, &i)| bytes[at / 2] |= ((i % 15) as u8) << (at % 2 * 4));
                bytes
            };
            let data = Array::raw(U4, &[5, columns], &packed(&(0..n).collect::<Vec<_>>()));
            let indices = [3i64, -1, 0];
            let places: Vec<usize> =
                [3, 4, 0].iter().flat_map(|row| row * columns..(row + 1) * columns).collect();
            let expected = packed(&places);
            let inputs = [Some(data), Some(Array::of(&[3], &indices))];
            let output = [Some(Array::raw(U4, &[3, columns], &vec![0xa5; expected.len()]))];
            let found = run(Isa::Baseline, "Gather", &[], &inputs, &output).expect("gathers");
            assert_eq!(found[0].as_ref().expect("rows").bytes(), expected, "{columns} columns");
        }
    }
}
