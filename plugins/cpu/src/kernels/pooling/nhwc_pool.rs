//! Poolings of images whose channels come last: vectors run along channels.

use super::pool::{pool_cost, shares, window_of};
use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::Arith;
use crate::kernels::geometry::extents::{expect_output, extents};
use crate::kernels::geometry::pixels::{Groups, Line};
use crate::kernels::geometry::window::{SPATIAL_MAX, Window};
use crate::kernels::numbers::widen;
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
            self.groups.each(pixels, &self.window, x.at(0), self.channels, |pixel, line| {
                let share = self.shares.as_ref().map_or(1.0, |[slices, rows, columns]| {
                    let (line, column) = (pixel / width, pixel % width);
                    slices[line / height % depth] * rows[line % height] * columns[column]
                });
                // SAFETY: the window lies within its image, and chunks write disjoint pixels.
                unsafe { (self.fold)(&self.window, line, y.at(pixel * self.channels), self.channels, share) };
            });
            Ok(())
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
    let largest = |a: f32, b: f32| if b > a || b.is_nan() { b } else { a };
    // SAFETY: as this function.
    unsafe { fold(window, line, y, channels, share, f32::NEG_INFINITY, largest) }
}

/// # Safety
/// As [`fold`].
#[inline(always)]
unsafe fn sum_body<A: Arith>(window: &Window, line: &Line<'_>, y: *mut f32, channels: usize, share: f32) {
    // SAFETY: as this function.
    unsafe { fold(window, line, y, channels, share, 0.0, |a, b| a + b) }
}

/// # Safety
/// `line` is of one window of an image whose pixels have the channels, and so has `y`.
#[inline(always)]
unsafe fn fold(
    window: &Window,
    line: &Line<'_>,
    y: *mut f32,
    channels: usize,
    share: f32,
    first: f32,
    f: impl Fn(f32, f32) -> f32,
) {
    /// Channels that are folded together: those of some vectors.
    const TOGETHER: usize = 64;
    for begin in (0..channels).step_by(TOGETHER) {
        let n = TOGETHER.min(channels - begin);
        let mut folded = [first; TOGETHER];
        for row in 0..window.kernel[0] * window.kernel[1] {
            let Some(of_row) = line.row(row) else { continue };
            for tap in 0..window.kernel[2] {
                let mut seen = [std::ptr::null(); 1];
                if !line.seen(of_row, tap, std::ptr::null(), &mut seen) {
                    continue;
                }
                let from = seen[0].wrapping_add(begin);
                if n == TOGETHER {
                    // SAFETY: there are as many channels from here (# Safety).
                    let values = unsafe { from.cast::<[f32; TOGETHER]>().read_unaligned() };
                    for (folded, value) in folded.iter_mut().zip(values) {
                        *folded = f(*folded, value);
                    }
                } else {
                    // SAFETY: there are as many channels from here (# Safety).
                    let values = unsafe { std::slice::from_raw_parts(from, n) };
                    for (folded, value) in folded.iter_mut().zip(values) {
                        *folded = f(*folded, *value);
                    }
                }
            }
        }
        for (i, folded) in folded.iter().enumerate().take(n) {
            // SAFETY: `y` has the channels (# Safety).
            unsafe { *y.wrapping_add(begin + i) = folded * share };
        }
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
