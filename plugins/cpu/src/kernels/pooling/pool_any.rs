//! Poolings of every kind that the fast ones of `pool.rs` leave: other dtypes, positions of the largest elements, and
//! windows over three dimensions. One plain loop over each window.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, extents};
use crate::kernels::geometry::window::{SPATIAL_MAX, Window};
use crate::kernels::numbers::real::{Real, Sink, Source};
use crate::kernels::types::FLOATS;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

/// The kernels of this file; those of `pool.rs` come first where they can.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("MaxPool", 12, |request| pool(request, false))
        .types(&[TypeVar::of(&[F32, F64, F16, BF16, I8, U8]), TypeVar::of(&[I64])])
        .priority(-1)
        .cost(cost)
        .doc("all dtypes, up to three dimensions, with indices"),
    descriptor("AveragePool", 19, |request| pool(request, true))
        .types(&[TypeVar::of(FLOATS)])
        .priority(-1)
        .cost(cost)
        .doc("all dtypes, up to three dimensions"),
];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let taps: i64 = request.attrs.ints("kernel_shape")?.unwrap_or_default().iter().product();
    cost::per_output(request, 4 * taps.max(1) as u64)
}

struct Pool {
    host: Host,
    real: Real,
    /// The largest element of a window of padding alone.
    lowest: f64,
    planes: usize,
    window: Window,
    /// For a mean: where each dimension's elements that count begin and end, padding before included.
    counted: Option<[[usize; 2]; SPATIAL_MAX]>,
    /// Indices count the first spatial dimension fastest.
    column_major: bool,
}

fn pool(request: &PrepareRequest<'_, CpuDevice>, mean: bool) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let (from, to) = (extents(input)?, extents(request.required_output(0)?)?);
    let ([images, channels, spatial @ ..], [_, _, places @ ..]) = (&from[..], &to[..]) else {
        return Err(Error::invalid(format!("a pooling of {from:?} to {to:?}")));
    };
    expect_output(request, 0, &[&[*images, *channels], places].concat())?;
    if request.output(1).is_some() {
        expect_output(request, 1, &to)?;
    }
    let kernel = request.attrs.ints("kernel_shape")?.unwrap_or_default();
    let kernel: Option<Vec<usize>> =
        kernel.iter().map(|&v| usize::try_from(v).ok().filter(|v| (1..1 << 31).contains(v))).collect();
    let kernel = kernel.ok_or_else(|| Error::invalid("kernel_shape is not all above 0"))?;
    let window = Window::of(&request.attrs, &kernel, spatial, places)?;
    let include = request.attrs.int("count_include_pad", 0)? != 0;
    let pads = request.attrs.ints("pads")?.unwrap_or_default();
    let automatic = request.attrs.string("auto_pad", "NOTSET")?.starts_with("SAME");
    let rank = spatial.len();
    let counted = |i: usize| {
        let end = window.pad[i] + window.input[i];
        // Elements within the image count, or also those within its padding (ONNX AveragePool-19). Elements that
        // rounding up adds beyond the padding never do. Automatic padding ends where the last window does.
        let after = (i + rank).checked_sub(SPATIAL_MAX).and_then(|i| pads.get(rank + i)).copied();
        match include {
            false => [window.pad[i], end],
            true if automatic => [0, usize::MAX],
            true => [0, end.saturating_add(after.unwrap_or(0).max(0) as usize)],
        }
    };
    Ok(Prepared::new(Pool {
        host: request.host,
        real: Real::of(input.dtype())?,
        lowest: match input.dtype() {
            I8 => i8::MIN.into(),
            U8 => 0.0,
            _ => f64::NEG_INFINITY,
        },
        planes: images * channels,
        counted: mean.then(|| core::array::from_fn(counted)),
        window,
        column_major: match request.attrs.int("storage_order", 0)? {
            0 => false,
            1 => true,
            found => return Err(Error::invalid(format!("storage_order is {found}, expected 0 or 1"))),
        },
    }))
}

impl Launch<CpuDevice> for Pool {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = self.real.source(operands.input_ref(0));
        let y = self.real.sink(operands.output_ref(0));
        let indices = match operands.n_outputs() > 1 {
            true => SendPtr(operands.output_ptr::<i64>(1)),
            false => SendPtr(core::ptr::null_mut()),
        };
        let n = self.window.n_output();
        let grain = (16 * 1024 / self.window.n_taps().max(1)).max(1);
        self.host.parallel_for(self.planes * n, grain, |range, _| {
            let mut pace = self.host.pace();
            for i in range {
                pace.work(8 * self.window.n_taps())?;
                let (plane, at) = (i / n, i % n);
                if let Some(counted) = &self.counted {
                    self.mean(x, y, plane, at, counted);
                    continue;
                }
                let found = self.largest(x, y, plane, at);
                if !indices.0.is_null() {
                    // SAFETY: the output has the extents of the first one, and chunks do not overlap.
                    unsafe { indices.at(i).write(found as i64) };
                }
            }
            Ok(())
        })
    }
}

impl Pool {
    /// Calls `tap` with the position of each element of a window, counted from the padding's first.
    fn window(&self, at: usize, mut tap: impl FnMut([usize; SPATIAL_MAX])) {
        let window = &self.window;
        let [_, height, width] = window.output;
        let out = [at / (height * width), at / width % height, at % width];
        let place = |i: usize, k: usize| out[i] * window.stride[i] + k * window.dilation[i];
        for a in 0..window.kernel[0] {
            for b in 0..window.kernel[1] {
                for c in 0..window.kernel[2] {
                    tap([place(0, a), place(1, b), place(2, c)]);
                }
            }
        }
    }

    /// The position in the image of one counted from the padding's first; None if it is outside.
    fn inside(&self, place: [usize; SPATIAL_MAX]) -> Option<[usize; SPATIAL_MAX]> {
        let mut found = [0; SPATIAL_MAX];
        for i in 0..SPATIAL_MAX {
            let position = place[i].checked_sub(self.window.pad[i])?;
            found[i] = Some(position).filter(|&position| position < self.window.input[i])?;
        }
        Some(found)
    }

    /// Writes the largest element of a window and gives its position; of a window of padding alone the lowest number
    /// of the type, and the position of the plane's first element.
    fn largest(&self, x: Source, y: Sink, plane: usize, at: usize) -> usize {
        let [depth, height, width] = self.window.input;
        let mut best: Option<(f64, usize)> = None;
        self.window(at, |place| {
            let Some([a, b, c]) = self.inside(place) else {
                return;
            };
            let value = x.get(((plane * depth + a) * height + b) * width + c);
            // The first one of equal elements, and NaN before all.
            if best.is_none_or(|(best, _)| value > best || (value.is_nan() && !best.is_nan())) {
                let index = match self.column_major {
                    true => a + depth * (b + height * c),
                    false => (a * height + b) * width + c,
                };
                best = Some((value, plane * depth * height * width + index));
            }
        });
        let (value, index) = best.unwrap_or((self.lowest, plane * depth * height * width));
        // SAFETY: the element is this chunk's own.
        unsafe { y.set(plane * self.window.n_output() + at, value) };
        index
    }

    fn mean(&self, x: Source, y: Sink, plane: usize, at: usize, counted: &[[usize; 2]; SPATIAL_MAX]) {
        let [depth, height, width] = self.window.input;
        let (mut sum, mut n) = (0.0, 0);
        self.window(at, |place| {
            n += usize::from((0..SPATIAL_MAX).all(|i| (counted[i][0]..counted[i][1]).contains(&place[i])));
            if let Some([a, b, c]) = self.inside(place) {
                sum += x.get(((plane * depth + a) * height + b) * width + c);
            }
        });
        // SAFETY: the element is this chunk's own.
        unsafe { y.set(plane * self.window.n_output() + at, sum / n.max(1) as f64) };
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};
    use devbay_plugin_api::sdk::Element;

    #[test]
    fn the_largest_and_where_they_were() {
        let x = [1u8, 5, 5, 2, 9, 3];
        let largest = |order: i64| {
            let attrs = [("kernel_shape", Value::Ints(vec![2, 2])), ("storage_order", Value::Int(order))];
            let outputs = [Some(Array::empty::<u8>(&[1, 1, 1, 2])), Some(Array::empty::<i64>(&[1, 1, 1, 2]))];
            let found =
                run(Isa::Baseline, "MaxPool", &attrs, &[Some(Array::of(&[1, 1, 2, 3], &x))], &outputs)?;
            let indices = found[1].as_ref().expect("indices").elements::<i64>();
            Ok((found[0].as_ref().expect("an output").elements::<u8>(), indices))
        };
        assert_eq!(largest(0), Ok((vec![9, 9], vec![4, 4])));
        assert_eq!(largest(1), Ok((vec![9, 9], vec![3, 3])));
        let error: String = largest(2).expect_err("an order of nothing");
        assert!(error.contains("storage_order is 2"), "{error}");
    }

    #[test]
    fn a_window_of_padding_alone_gives_the_lowest_number() {
        fn check<T: Element>(x: [T; 2], lowest: T) {
            let attrs = [("kernel_shape", Value::Ints(vec![1])), ("pads", Value::Ints(vec![1, 1]))];
            let outputs = [Some(Array::empty::<T>(&[1, 1, 4])), Some(Array::empty::<i64>(&[1, 1, 4]))];
            let found = run(Isa::Baseline, "MaxPool", &attrs, &[Some(Array::of(&[1, 1, 2], &x))], &outputs);
            let found = found.expect("pools");
            assert_eq!(found[0], Some(Array::of(&[1, 1, 4], &[lowest, x[0], x[1], lowest])));
            assert_eq!(found[1], Some(Array::of(&[1, 1, 4], &[0i64, 0, 1, 0])));
        }
        check([3u8, 4], 0);
        check([-3i8, 4], -128);
        check([-3.0f64, 4.0], f64::NEG_INFINITY);
    }

    #[test]
    fn means_count_what_the_node_says() {
        let x = [2.0f64, 4.0, 8.0];
        let mean = |include: i64| {
            let attrs = [
                ("kernel_shape", Value::Ints(vec![2])),
                ("pads", Value::Ints(vec![1, 0])),
                ("strides", Value::Ints(vec![2])),
                ("count_include_pad", Value::Int(include)),
                ("ceil_mode", Value::Int(1)),
            ];
            let output = [Some(Array::empty::<f64>(&[1, 1, 2]))];
            let found =
                run(Isa::Baseline, "AveragePool", &attrs, &[Some(Array::of(&[1, 1, 3], &x))], &output)?;
            Ok::<_, String>(found[0].as_ref().expect("an output").elements::<f64>())
        };
        assert_eq!(mean(0), Ok(vec![2.0, 6.0]));
        assert_eq!(mean(1), Ok(vec![1.0, 6.0]));
        // Rounding up lets the last window end beyond an image without padding: only 8 counts.
        let attrs = [
            ("kernel_shape", Value::Ints(vec![2])),
            ("strides", Value::Ints(vec![2])),
            ("count_include_pad", Value::Int(1)),
            ("ceil_mode", Value::Int(1)),
        ];
        let output = [Some(Array::empty::<f64>(&[1, 1, 2]))];
        let found = run(Isa::Baseline, "AveragePool", &attrs, &[Some(Array::of(&[1, 1, 3], &x))], &output);
        assert_eq!(found.expect("pools")[0], Some(Array::of(&[1, 1, 2], &[3.0f64, 8.0])));
    }
}
