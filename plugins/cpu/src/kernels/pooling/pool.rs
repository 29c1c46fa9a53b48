//! Poolings: the largest or the mean of each window, from a padded copy of each plane, and of whole channels.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::Arith;
use crate::kernels::cost;
use crate::kernels::geometry::plane::{self, FillFn, Plane};
use crate::kernels::geometry::window::{SPATIAL_MAX, Window, image, in_and_out};
use crate::kernels::numbers::widen;
use crate::lanes::{Lanes, read, unrolled, write};
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::reserve::{self, Size};
use devbay_plugin_api::sdk::*;

const SINGLE: &[TypeVar] = &[TypeVar::of(crate::kernels::types::SINGLES)];

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("MaxPool", 12, prepare_max)
        .types(&[TypeVar::of(crate::kernels::types::SINGLES), TypeVar::of(&[I64])])
        .adapted(widen::floats)
        .cost(pool_cost),
    descriptor("AveragePool", 19, prepare_average).types(SINGLE).adapted(widen::floats).cost(pool_cost),
    descriptor("GlobalAveragePool", 1, |request| prepare_global(request, true))
        .types(SINGLE)
        .adapted(widen::floats)
        .cost(|request| cost::per_input(request, 1)),
    descriptor("GlobalMaxPool", 1, |request| prepare_global(request, false))
        .types(SINGLE)
        .adapted(widen::floats)
        .cost(|request| cost::per_input(request, 1)),
];

pub(super) fn pool_cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let taps: i64 = request.attrs.ints("kernel_shape")?.unwrap_or_default().iter().product();
    cost::per_output(request, taps.max(1) as u64)
}

/// One row: `y[i] = f over t of rows[t][i]`, a window's rows first, then its columns.
type RowFn = unsafe fn(&Row<'_>);

struct Row<'a> {
    /// The first row of the window in the copy, and the beginning of each tap from there on.
    line: *const f32,
    taps: &'a [usize],
    y: *mut f32,
    n: usize,
    /// Factors of a sum: of the row, and of each element.
    share: f32,
    shares: &'a [f32],
}

struct Pool {
    host: Host,
    planes: usize,
    window: Window,
    plane: Plane,
    fill: FillFn,
    padding: f32,
    /// Beginning of each tap, from the first row of the window in the copy.
    taps: Vec<usize>,
    row: RowFn,
    /// One over the number of elements that count, by output row and column; None for the largest.
    mean: Option<(Vec<f32>, Vec<f32>)>,
    grain: usize,
}

/// The window of a pooling of images of these extents.
pub(super) fn window_of(
    request: &PrepareRequest<'_, CpuDevice>,
    spatial: &[usize],
    places: &[usize],
) -> Result<Window> {
    let kernel = request.attrs.ints("kernel_shape")?;
    let kernel = kernel.ok_or_else(|| Error::invalid("a pooling without kernel_shape"))?;
    let kernel: Option<Vec<usize>> =
        kernel.iter().map(|&v| usize::try_from(v).ok().filter(|&v| v > 0)).collect();
    let kernel = kernel.ok_or_else(|| Error::invalid("kernel_shape is not all above 0"))?;
    Window::of(&request.attrs, &kernel, spatial, places)
}

/// One over the number of elements that count, by place along each dimension: those within the image, or within its padding
/// (ONNX AveragePool-19). Elements that rounding up adds beyond the padding never count.
pub(super) fn shares(
    request: &PrepareRequest<'_, CpuDevice>,
    window: &Window,
) -> Result<[Vec<f32>; SPATIAL_MAX]> {
    let includes_padding = request.attrs.int("count_include_pad", 0)? != 0;
    let rank = request.required_input(0)?.shape().len() - 2;
    let pads = request.attrs.ints("pads")?.unwrap_or_default();
    let of = |i: usize| -> Result<Vec<f32>> {
        let own = (i + rank).checked_sub(SPATIAL_MAX);
        let after = own.and_then(|at| pads.get(rank + at)).copied().unwrap_or(0).max(0) as usize;
        let image = window.pad[i]..window.pad[i] + window.input[i];
        let counted = if includes_padding { 0..image.end.saturating_add(after) } else { image };
        let share = |out| {
            let taps = (0..window.kernel[i]).map(|tap| out * window.stride[i] + tap * window.dilation[i]);
            1.0 / taps.filter(|position| counted.contains(position)).count().max(1) as f32
        };
        Ok(reserve::collected((0..window.output[i]).map(share), "a pooling's numbers of elements")?)
    };
    Ok([of(0)?, of(1)?, of(2)?])
}

fn pool(request: &PrepareRequest<'_, CpuDevice>, padding: f32, row: RowFn) -> Result<Pool> {
    let (input, output) = in_and_out(request)?;
    let (images, channels, spatial) = image(&input)?;
    let window = window_of(request, spatial, &output[2..])?;
    let plane = Plane::of(&window).ok_or_else(|| Error::unsupported("a pooling over three dimensions"))?;
    let taps = plane.taps(&window)?;
    let work = (Size::of(window.n_taps()) * window.n_output() + window.n_input()).saturated();
    Ok(Pool {
        host: request.host,
        planes: images * channels,
        window,
        plane,
        fill: plane::fill(request.device.isa),
        padding,
        taps,
        row,
        mean: None,
        grain: (50_000 / work.max(1)).max(1),
    })
}

fn finish(pool: Pool) -> Result<Prepared> {
    let workspace = pool.plane.size() * (4 * pool.host.n_slots());
    Prepared::new(pool).with_room(workspace, 64)
}

fn prepare_max(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    if request.output(1).is_some() {
        return Err(Error::unsupported("MaxPool with indices"));
    }
    finish(pool(request, f32::NEG_INFINITY, largest(request.device.isa))?)
}

fn prepare_average(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let mut pool = pool(request, 0.0, sum(request.device.isa))?;
    let [_, rows, columns] = shares(request, &pool.window)?;
    pool.mean = Some((rows, columns));
    finish(pool)
}

impl Launch<CpuDevice> for Pool {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let (x, y) =
            (SendPtr(operands.input_ptr::<f32>(0).cast_mut()), SendPtr(operands.output_ptr::<f32>(0)));
        let workspace = SendPtr(operands.workspace_ptr::<f32>());
        let [_, height, width] = self.window.output;
        self.host.parallel_for(self.planes, self.grain, |planes, slot| {
            let copy = workspace.at(slot * self.plane.len());
            // SAFETY: a slot's scratch is its own and has room for the copy.
            unsafe { self.plane.clear(copy, self.padding) };
            let mut pace = self.host.pace();
            for plane in planes {
                for band in self.plane.bands() {
                    let x = x.at(plane * self.window.n_input());
                    // SAFETY: the plane is within the input.
                    unsafe { (self.fill)(&self.plane, x, copy, &band, self.padding) };
                    for row in band.clone() {
                        pace.work(self.taps.len() * width)?;
                        let step = self.window.stride[1] * self.plane.row_len();
                        let line = copy.wrapping_add((row - band.start) * step);
                        let dst = y.at((plane * height + row) * width);
                        let (share, shares): (_, &[f32]) = match &self.mean {
                            Some((rows, columns)) => (rows[row], columns),
                            None => (1.0, &[]),
                        };
                        let row = Row { line, taps: &self.taps, y: dst, n: width, share, shares };
                        // SAFETY: each tap begins a run of `width` elements of the copy; planes are written by
                        // one chunk each.
                        unsafe { (self.row)(&row) };
                    }
                }
            }
            Ok(())
        })
    }
}

dispatch! { fn largest(row: &Row<'_>) = largest_body }
dispatch! { fn sum(row: &Row<'_>) = sum_body }

/// # Safety
/// As [`fold`].
#[inline(always)]
unsafe fn largest_body<A: Arith>(row: &Row<'_>) {
    // SAFETY: as this function.
    unsafe { fold::<A::Lanes, true>(row) }
}

/// # Safety
/// As [`fold`].
#[inline(always)]
unsafe fn sum_body<A: Arith>(row: &Row<'_>) {
    // SAFETY: as this function.
    unsafe { fold::<A::Lanes, false>(row) }
}

/// The largest of each window, or the sum.
///
/// # Safety
/// Each tap begins `n` elements of a copy with slack for a vector behind it; `y` has room for `n`, for each of which a sum has a
/// share; the processor has the instructions.
#[inline(always)]
unsafe fn fold<L: Lanes, const LARGEST: bool>(row: &Row<'_>) {
    let mut at = 0;
    // Several vectors together, so that one need not wait for another.
    while at + 3 * L::N < row.n {
        // SAFETY: four vectors begin within the row (# Safety).
        unsafe { fold_vectors::<L, LARGEST, 4>(row, at) };
        at += 4 * L::N;
    }
    while at + L::N < row.n {
        // SAFETY: two vectors begin within the row (# Safety).
        unsafe { fold_vectors::<L, LARGEST, 2>(row, at) };
        at += 2 * L::N;
    }
    if at < row.n {
        // SAFETY: a vector begins within the row (# Safety).
        unsafe { fold_vectors::<L, LARGEST, 1>(row, at) };
    }
}

/// `V` vectors from `at`, all of which begin within the row.
///
/// # Safety
/// As [`fold`].
#[inline(always)]
unsafe fn fold_vectors<L: Lanes, const LARGEST: bool, const V: usize>(row: &Row<'_>, at: usize) {
    // SAFETY: the processor has the instructions (# Safety).
    let (first, share) =
        unsafe { (L::splat(if LARGEST { f32::NEG_INFINITY } else { 0.0 }), L::splat(row.share)) };
    let mut folded = [first; V];
    for &tap in row.taps {
        unrolled!(v below V {
            // SAFETY: the copy has slack for a whole vector (# Safety).
            let value = unsafe { L::load(row.line.wrapping_add(tap + at + v * L::N)) };
            folded[v] = if LARGEST { folded[v].at_least(value).or_nan(value) } else { folded[v].add(value) };
        });
    }
    unrolled!(v below V {
        let at = at + v * L::N;
        let n = L::N.min(row.n - at);
        // SAFETY: the elements are within the row, and each has a share (# Safety).
        unsafe {
            if !LARGEST {
                let shares = read::<L>(row.shares.as_ptr().wrapping_add(at), n);
                folded[v] = folded[v].mul(share.mul(shares));
            }
            write(folded[v], row.y.wrapping_add(at), n);
        }
    });
}

// --- whole channels -------------------------------------------------------------------------------

type PlaneFn = unsafe fn(*const f32, usize) -> f32;

struct Global {
    host: Host,
    planes: usize,
    n: usize,
    plane: PlaneFn,
    grain: usize,
}

fn prepare_global(request: &PrepareRequest<'_, CpuDevice>, mean: bool) -> Result<Prepared> {
    let (input, _) = in_and_out(request)?;
    let (images, channels, spatial) = image(&input)?;
    let n = spatial.iter().product();
    let plane = if mean { mean_of(request.device.isa) } else { max_of(request.device.isa) };
    Ok(Prepared::new(Global {
        host: request.host,
        planes: images * channels,
        n,
        plane,
        grain: (50_000 / n.max(1)).max(1),
    }))
}

impl Launch<CpuDevice> for Global {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let (x, y) =
            (SendPtr(operands.input_ptr::<f32>(0).cast_mut()), SendPtr(operands.output_ptr::<f32>(0)));
        self.host.parallel_for(self.planes, self.grain, |planes, _| {
            let mut pace = self.host.pace();
            for plane in planes {
                pace.work(self.n)?;
                // SAFETY: the plane is within the input; each chunk writes its own elements.
                unsafe { *y.at(plane) = (self.plane)(x.at(plane * self.n), self.n) };
            }
            Ok(())
        })
    }
}

dispatch! { fn mean_of(x: *const f32, n: usize) -> f32 = mean_body }
dispatch! { fn max_of(x: *const f32, n: usize) -> f32 = max_body }

/// # Safety
/// `x` has `n` elements.
#[inline(always)]
unsafe fn mean_body<A: Arith>(x: *const f32, n: usize) -> f32 {
    // SAFETY: `x` has `n` elements (# Safety).
    unsafe { reduce(x, n, 0.0, |a, b| a + b) / n as f32 }
}

/// # Safety
/// `x` has `n` elements.
#[inline(always)]
unsafe fn max_body<A: Arith>(x: *const f32, n: usize) -> f32 {
    // SAFETY: `x` has `n` elements (# Safety).
    unsafe { reduce(x, n, f32::NEG_INFINITY, |a, b| if b > a || b.is_nan() { b } else { a }) }
}

/// Sixty-four partial results, then their combination in a fixed order.
///
/// # Safety
/// `x` has `n` elements.
#[inline(always)]
unsafe fn reduce(x: *const f32, n: usize, first: f32, f: impl Fn(f32, f32) -> f32) -> f32 {
    const LANES: usize = 64;
    let mut parts = [first; LANES];
    let mut i = 0;
    while i + LANES <= n {
        // SAFETY: sixty-four elements from `i` are within the plane.
        let row = unsafe { x.wrapping_add(i).cast::<[f32; LANES]>().read_unaligned() };
        for lane in 0..LANES {
            parts[lane] = f(parts[lane], row[lane]);
        }
        i += LANES;
    }
    let mut rest = first;
    while i < n {
        // SAFETY: `i` is below `n`.
        rest = f(rest, unsafe { *x.wrapping_add(i) });
        i += 1;
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            parts[lane] = f(parts[lane], parts[lane + width]);
        }
        width /= 2;
    }
    f(parts[0], rest)
}
