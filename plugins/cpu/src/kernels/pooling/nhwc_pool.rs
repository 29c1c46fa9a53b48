//! Poolings of images whose channels come last: vectors run along channels.

use super::pool::{pool_cost, shares, window_of};
use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::Arith;
use crate::kernels::geometry::extents::{expect_output, extents};
use crate::kernels::geometry::pixels::{Groups, Line};
use crate::kernels::geometry::window::{SPATIAL_MAX, Window};
use crate::kernels::numbers::widen;
use crate::lanes::{Lanes, read, unrolled, write};
use crate::stream::CpuStream;
use devbay_ops::descriptor_of;
use devbay_plugin_api::sdk::*;

const SINGLE: &[TypeVar] = &[TypeVar::of(crate::kernels::types::SINGLES)];

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor_of("devbay", "NhwcMaxPool", 1, |request| prepare(request, false))
        .types(SINGLE)
        .adapted(widen::floats)
        .cost(pool_cost)
        .doc("MaxPool of images whose channels come last"),
    descriptor_of("devbay", "NhwcAveragePool", 1, |request| prepare(request, true))
        .types(SINGLE)
        .adapted(widen::floats)
        .cost(pool_cost)
        .doc("AveragePool of images whose channels come last"),
];

struct Pool {
    host: Host,
    channels: usize,
    window: Window,
    /// Lines of the results, pixel by pixel.
    groups: Groups,
    fold: FoldFn,
    /// One over the number of elements that count, by place along each dimension; None for the largest.
    shares: Option<[Vec<f32>; SPATIAL_MAX]>,
    grain: usize,
}

fn prepare(request: &PrepareRequest<'_, CpuDevice>, mean: bool) -> Result<Prepared> {
    let (from, to) = (extents(request.required_input(0)?)?, extents(request.required_output(0)?)?);
    let ([images, spatial @ .., channels], [_, places @ .., _]) = (&from[..], &to[..]) else {
        return Err(Error::invalid(format!("a pooling of {from:?} to {to:?}")));
    };
    expect_output(request, 0, &[&[*images], places, &[*channels]].concat())?;
    let window = window_of(request, spatial, places)?;
    let isa = request.device.isa;
    let work = window.n_taps().saturating_mul(*channels);
    Ok(Prepared::new(Pool {
        host: request.host,
        channels: *channels,
        groups: Groups::of(&window, *images, 1),
        fold: if mean { sum(isa) } else { largest(isa) },
        shares: if mean { Some(shares(request, &window)?) } else { None },
        grain: (50_000 / work.max(1)).max(1),
        window,
    }))
}

impl Launch<CpuDevice> for Pool {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let (x, y) =
            (SendPtr(operands.input_ptr::<f32>(0).cast_mut()), SendPtr(operands.output_ptr::<f32>(0)));
        let [depth, height, width] = self.window.output;
        self.host.parallel_for(self.groups.n, self.grain, |pixels, _| {
            let mut pace = self.host.pace();
            self.groups.each(pixels, &self.window, x.at(0), self.channels, |pixel, line| {
                pace.work(self.window.n_taps() * self.channels)?;
                let share = self.shares.as_ref().map_or(1.0, |[slices, rows, columns]| {
                    let (line, column) = (pixel / width, pixel % width);
                    slices[line / height % depth] * rows[line % height] * columns[column]
                });
                // SAFETY: the window lies within its image, and chunks write disjoint pixels.
                unsafe { (self.fold)(&self.window, line, y.at(pixel * self.channels), self.channels, share) };
                Ok(())
            })
        })
    }
}

/// Folds what a window sees, channel by channel, and multiplies it.
type FoldFn = unsafe fn(&Window, &Line<'_>, *mut f32, usize, f32);

dispatch! { fn largest(window: &Window, line: &Line<'_>, y: *mut f32, channels: usize, share: f32) = largest_body }
dispatch! { fn sum(window: &Window, line: &Line<'_>, y: *mut f32, channels: usize, share: f32) = sum_body }

/// # Safety
/// As [`fold`].
#[inline(always)]
unsafe fn largest_body<A: Arith>(window: &Window, line: &Line<'_>, y: *mut f32, channels: usize, share: f32) {
    // SAFETY: as this function.
    unsafe { fold::<A::Lanes, true>(window, line, y, channels, share) }
}

/// # Safety
/// As [`fold`].
#[inline(always)]
unsafe fn sum_body<A: Arith>(window: &Window, line: &Line<'_>, y: *mut f32, channels: usize, share: f32) {
    // SAFETY: as this function.
    unsafe { fold::<A::Lanes, false>(window, line, y, channels, share) }
}

/// Elements of a window that are folded at once.
const SEEN_MAX: usize = 32;

/// The largest of what a window sees, or the sum.
///
/// # Safety
/// `line` is of one window of an image whose pixels have the channels, and so has `y`; the processor has the instructions.
#[inline(always)]
unsafe fn fold<L: Lanes, const LARGEST: bool>(
    window: &Window,
    line: &Line<'_>,
    y: *mut f32,
    channels: usize,
    share: f32,
) {
    let mut seen = [std::ptr::null(); SEEN_MAX];
    let (mut n, mut is_first) = (0, true);
    let rows = window.kernel[0] * window.kernel[1];
    for row in 0..rows {
        let of_row = line.row(row);
        for tap in 0..window.kernel[2] {
            let mut pixel = [std::ptr::null(); 1];
            if line.seen(of_row, tap, std::ptr::null(), &mut pixel) {
                seen[n] = pixel[0];
                n += 1;
            }
            let is_last = row + 1 == rows && tap + 1 == window.kernel[2];
            if n == SEEN_MAX || is_last {
                // SAFETY: what is seen and `y` have the channels (# Safety).
                unsafe {
                    let share = if is_last { share } else { 1.0 };
                    fold_seen::<L, LARGEST>(&seen[..n], y, channels, share, is_first);
                }
                (n, is_first) = (0, false);
            }
        }
    }
}

/// Folds pixels, with what is in `y` unless they are the first.
///
/// # Safety
/// The pixels and `y` have the channels, and the processor has the instructions.
#[inline(always)]
unsafe fn fold_seen<L: Lanes, const LARGEST: bool>(
    seen: &[*const f32],
    y: *mut f32,
    channels: usize,
    share: f32,
    is_first: bool,
) {
    let mut at = 0;
    // Several vectors together, so that one need not wait for another.
    while at + 4 * L::N <= channels {
        // SAFETY: there are as many channels from here (# Safety).
        unsafe { fold_vectors::<L, LARGEST, 4>(seen, y.wrapping_add(at), at, L::N, share, is_first) };
        at += 4 * L::N;
    }
    while at < channels {
        let n = L::N.min(channels - at);
        // SAFETY: there are as many channels from here (# Safety).
        unsafe { fold_vectors::<L, LARGEST, 1>(seen, y.wrapping_add(at), at, n, share, is_first) };
        at += L::N;
    }
}

/// `V` vectors of channels from `at`, the last of which may have fewer: `n`.
///
/// # Safety
/// As [`fold_seen`].
#[inline(always)]
unsafe fn fold_vectors<L: Lanes, const LARGEST: bool, const V: usize>(
    seen: &[*const f32],
    y: *mut f32,
    at: usize,
    n: usize,
    share: f32,
    is_first: bool,
) {
    let count = |v: usize| if v + 1 == V { n } else { L::N };
    // SAFETY: the processor has the instructions (# Safety).
    let first = unsafe { L::splat(if LARGEST { f32::NEG_INFINITY } else { 0.0 }) };
    let mut folded = [first; V];
    if !is_first {
        // SAFETY: there are as many channels from here (# Safety).
        unrolled!(v below V { folded[v] = unsafe { read(y.wrapping_add(v * L::N), count(v)) }; });
    }
    for from in seen {
        unrolled!(v below V {
            // SAFETY: there are as many channels from here (# Safety).
            let value: L = unsafe { read(from.wrapping_add(at + v * L::N), count(v)) };
            folded[v] = if LARGEST { folded[v].at_least(value).or_nan(value) } else { folded[v].add(value) };
        });
    }
    // SAFETY: the processor has the instructions, and there are as many channels from here (# Safety).
    unsafe {
        let share = L::splat(share);
        unrolled!(v below V { write(folded[v].mul(share), y.wrapping_add(v * L::N), count(v)); });
    }
}

#[cfg(test)]
mod tests {
    use crate::kernels::test_host::{Array, Value, run};
    use crate::kernels::testing::{Chance, isas};

    /// Turns `[images, channels, rows, columns]` around.
    fn last(values: &[f32], [images, channels, pixels]: [usize; 3]) -> Vec<f32> {
        let at = |i: usize| {
            let (pixel, channel) = (i / channels, i % channels);
            (pixel / pixels * channels + channel) * pixels + pixel % pixels
        };
        (0..images * channels * pixels).map(|i| values[at(i)]).collect()
    }

    #[test]
    fn pools_are_those_of_images_whose_channels_come_second() {
        let mut chance = Chance::new(41);
        for i in 0..60 {
            let [height, width] = [0; 2].map(|_| 3 + chance.below(12));
            let (images, channels) = (1 + chance.below(2), 1 + chance.below([5, 40, 150][i % 3]));
            let kernel = [0; 2].map(|_| 1 + chance.below(3));
            let (stride, pad) = ([0; 2].map(|_| 1 + chance.below(3)), kernel.map(|n| chance.below(n)));
            let ceil = chance.below(2);
            let out = |i: usize, extent: usize| {
                let room = extent + 2 * pad[i] - kernel[i];
                let n = (room + ceil * (stride[i] - 1)) / stride[i] + 1;
                // No window starts in the padding behind the image.
                n - usize::from((n - 1) * stride[i] >= extent + pad[i])
            };
            let [rows, columns] = [out(0, height), out(1, width)];
            let ints = |values: [usize; 2]| Value::Ints(values.iter().map(|&n| n as i64).collect());
            let attrs = [
                ("kernel_shape", ints(kernel)),
                ("strides", ints(stride)),
                ("pads", Value::Ints([pad, pad].concat().iter().map(|&n| n as i64).collect())),
                ("ceil_mode", Value::Int(ceil as i64)),
                ("count_include_pad", Value::Int(i as i64 % 2)),
            ];
            let mut x = chance.floats(images * channels * height * width, 1.0);
            let n = x.len();
            for special in [f32::NAN, f32::INFINITY, -0.0, f32::NEG_INFINITY] {
                x[chance.below(n)] = special;
            }
            for op in ["MaxPool", "AveragePool"] {
                let attrs = &attrs[..if op == "MaxPool" { 4 } else { 5 }];
                for isa in isas() {
                    let run = |op: &str, x: Array, y: [usize; 4]| -> Vec<f32> {
                        let y = [Some(Array::empty::<f32>(&y))];
                        let found = run(isa, op, attrs, &[Some(x)], &y);
                        found.unwrap_or_else(|error| panic!("{op}: {error}"))[0]
                            .as_ref()
                            .expect("Y")
                            .elements()
                    };
                    let of = Array::of(&[images, channels, height, width], &x);
                    let expected = run(op, of, [images, channels, rows, columns]);
                    let expected = last(&expected, [images, channels, rows * columns]);
                    let turned = last(&x, [images, channels, height * width]);
                    let of = Array::of(&[images, height, width, channels], &turned);
                    let found = run(&format!("Nhwc{op}"), of, [images, rows, columns, channels]);
                    for (at, (a, b)) in found.iter().zip(&expected).enumerate() {
                        let same = a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                        assert!(same || (a - b).abs() <= 1e-6, "{i}: {op} {at}: {a} {b}");
                    }
                }
            }
        }
    }
}
