//! GridSample: an image seen at positions that an operand holds.
//!
//! Along each axis a position becomes a few places with weights; a sample is the sum over all their combinations.
//! The places are worked out once for all channels. Coordinates are calculated in f32 unless the grid is of f64, as
//! the models were trained, so that a position between two elements falls on the same side.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{element_size, expect_output, extents};
use crate::kernels::numbers::real::{Real, Sink, Source};
use crate::kernels::types::FLOATS;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

/// Elements that f64 holds: the nearest one of 64 bits would come out changed.
const EXACT: &[DType] = &[F32, F64, F16, BF16, I32, I16, I8, U32, U16, U8];

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] =
    &[descriptor("GridSample", 20, grid_sample).types(&[TypeVar::of(EXACT), TypeVar::of(FLOATS)]).cost(cost)];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    cost::per_output(request, 16)
}

/// Most axes of an image.
const AXES_MAX: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Nearest,
    Linear,
    Cubic,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outside {
    Zeros,
    Border,
    Reflection,
}

struct GridSample {
    host: Host,
    image: Real,
    grid: Real,
    batches: usize,
    channels: usize,
    axes: usize,
    /// Extents of the image, outermost first.
    extents: [usize; AXES_MAX],
    /// Elements of a channel, and positions of a batch.
    n_image: usize,
    n_grid: usize,
    mode: Mode,
    outside: Outside,
    align_corners: bool,
    single: bool,
}

fn grid_sample(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let (x, grid) = (request.required_input(0)?, request.required_input(1)?);
    let (from, of_grid) = (extents(x)?, extents(grid)?);
    let broken = || Error::invalid(format!("an image of {from:?} and a grid of {of_grid:?}"));
    let ([n, channels, image @ ..], [batches, places @ .., depth]) = (&from[..], &of_grid[..]) else {
        return Err(broken());
    };
    if n != batches || image.len() != places.len() || *depth != image.len() {
        return Err(broken());
    }
    expect_output(request, 0, &[&[*n, *channels], places].concat())?;
    let n_grid = places.iter().product::<usize>();
    if image.is_empty() || image.len() > AXES_MAX {
        return Err(Error::unsupported(format!(
            "an image of {} axes, expected 1 to {AXES_MAX}",
            image.len()
        )));
    }
    if n_grid > 0 && image.contains(&0) {
        return Err(Error::invalid(format!("samples of an image of {image:?}, which has no elements")));
    }
    let mut sides = [1; AXES_MAX];
    sides[..image.len()].copy_from_slice(image);
    Ok(Prepared::new(GridSample {
        host: request.host,
        image: Real::of(x.dtype())?,
        grid: Real::of(grid.dtype())?,
        batches: *n,
        channels: *channels,
        axes: image.len(),
        extents: sides,
        n_image: image.iter().product(),
        n_grid,
        mode: match request.attrs.string("mode", "linear")? {
            "nearest" => Mode::Nearest,
            "linear" | "bilinear" => Mode::Linear,
            "cubic" | "bicubic" => Mode::Cubic,
            mode => return Err(Error::invalid(format!("mode is nearest, linear or cubic, found {mode}"))),
        },
        outside: match request.attrs.string("padding_mode", "zeros")? {
            "zeros" => Outside::Zeros,
            "border" => Outside::Border,
            "reflection" => Outside::Reflection,
            mode => {
                return Err(Error::invalid(format!(
                    "padding_mode is zeros, border or reflection, found {mode}"
                )));
            }
        },
        align_corners: request.attrs.int("align_corners", 0)? != 0,
        single: element_size(grid.dtype()) <= 4,
    }))
}

/// Where a sample reads along one axis: elements, None for those outside that count as 0, and their weights.
#[derive(Clone, Copy, Default)]
struct Places {
    at: [Option<usize>; 4],
    weights: [f64; 4],
    n: usize,
}

impl Launch<CpuDevice> for GridSample {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = self.image.source(operands.input_ref(0));
        let grid = self.grid.source(operands.input_ref(1));
        let y = self.image.sink(operands.output_ref(0));
        let n = self.batches * self.n_grid;
        self.host.parallel_for(n, (4096 / self.channels.max(1)).max(1), |range, _| {
            for position in range {
                self.sample(x, grid, y, position);
            }
            Ok(())
        })
    }
}

impl GridSample {
    /// All channels at one position of the grid, which is this chunk's own.
    fn sample(&self, x: Source, grid: Source, y: Sink, position: usize) {
        let (batch, at) = (position / self.n_grid, position % self.n_grid);
        let mut places = [Places { n: 1, at: [Some(0); 4], weights: [1.0; 4] }; AXES_MAX];
        for (axis, places) in places[..self.axes].iter_mut().enumerate() {
            // The grid names the innermost axis first.
            let normalised = grid.get(position * self.axes + self.axes - 1 - axis);
            *places = self.places(normalised, self.extents[axis]);
        }
        for channel in 0..self.channels {
            let plane = batch * self.channels + channel;
            let sum = self.sum(x, plane * self.n_image, &places);
            // SAFETY: the position is this chunk's own, and so are its elements in all channels.
            unsafe { y.set(plane * self.n_grid + at, sum) };
        }
    }

    fn sum(&self, x: Source, first: usize, places: &[Places; AXES_MAX]) -> f64 {
        let [a, b, c] = places;
        let mut sum = 0.0;
        for i in 0..a.n {
            for j in 0..b.n {
                for k in 0..c.n {
                    let weight = a.weights[i] * b.weights[j] * c.weights[k];
                    let (Some(i), Some(j), Some(k)) = (a.at[i], b.at[j], c.at[k]) else {
                        continue;
                    };
                    let at = (i * self.extents[1] + j) * self.extents[2] + k;
                    sum += weight * x.get(first + at);
                }
            }
        }
        sum
    }

    fn places(&self, normalised: f64, n: usize) -> Places {
        let mut position = match (self.single, self.align_corners) {
            (true, true) => f64::from((normalised as f32 + 1.0) / 2.0 * (n as f32 - 1.0)),
            (true, false) => f64::from(((normalised as f32 + 1.0) * n as f32 - 1.0) / 2.0),
            (false, true) => (normalised + 1.0) / 2.0 * (n as f64 - 1.0),
            (false, false) => ((normalised + 1.0) * n as f64 - 1.0) / 2.0,
        };
        if self.mode == Mode::Nearest {
            position = position.round_ties_even();
        }
        let (low, high) = match self.align_corners {
            true => (0.0, n as f64 - 1.0),
            false => (-0.5, n as f64 - 0.5),
        };
        if position < low || position > high {
            position = match self.outside {
                Outside::Zeros => position,
                Outside::Border => position.clamp(0.0, n as f64 - 1.0),
                Outside::Reflection => reflected(position, low, high),
            };
        }
        let floor = position.floor();
        let t = position - floor;
        let (first, n_places, weights) = match self.mode {
            // A position reflected at half an element is cut off towards 0.
            Mode::Nearest => (position.trunc(), 1, [1.0, 0.0, 0.0, 0.0]),
            Mode::Linear => (floor, 2, [1.0 - t, t, 0.0, 0.0]),
            Mode::Cubic => (floor - 1.0, 4, cubic(t)),
        };
        let mut places = Places { weights, n: n_places, ..Places::default() };
        for (i, at) in places.at[..n_places].iter_mut().enumerate() {
            let wanted = first + i as f64;
            let inside = wanted >= 0.0 && wanted < n as f64;
            let found = match self.outside {
                _ if inside => wanted,
                Outside::Zeros => continue,
                Outside::Border => wanted,
                Outside::Reflection => reflected(wanted, low, high),
            };
            // A cast cuts off towards 0, and makes NaN 0.
            *at = Some((found.max(0.0) as usize).min(n - 1));
        }
        places
    }
}

/// The position mirrored at both borders until it lies between them.
fn reflected(position: f64, low: f64, high: f64) -> f64 {
    let length = high - low;
    if length <= 0.0 {
        return low;
    }
    let (distance, below) =
        if position < low { (low - position, true) } else { ((position - high).max(0.0), false) };
    if position >= low && position <= high {
        return position;
    }
    let times = (distance / length).floor();
    let rest = distance - times * length;
    // An even number of turns ends at the border where it began.
    if (times % 2.0 == 0.0) == below { low + rest } else { high - rest }
}

/// The weights of four elements, of which the second lies `t` before (Keys, with -0.75).
fn cubic(t: f64) -> [f64; 4] {
    const A: f64 = -0.75;
    let far = |x: f64| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    let near = |x: f64| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]
}

#[cfg(test)]
mod tests {
    use super::{cubic, reflected};
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    #[test]
    fn positions_are_mirrored() {
        let check = |position: f64, expected: f64| {
            let found = reflected(position, -0.5, 2.5);
            assert!((found - expected).abs() < 1e-12, "{position}: {found}, expected {expected}");
        };
        check(1.0, 1.0);
        check(-1.0, 0.0);
        check(3.0, 2.0);
        check(-4.0, 2.0);
        check(6.0, 0.0);
        assert_eq!(reflected(5.0, 0.0, 0.0), 0.0);
        assert_eq!(cubic(0.0), [0.0, 1.0, 0.0, 0.0]);
        assert!((cubic(0.3).iter().sum::<f64>() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_line_between_its_elements_and_outside() {
        let sampled = |mode: &'static str, outside: &'static str, align: i64, at: &[f32]| {
            let inputs =
                [Some(Array::of(&[1, 1, 3], &[10.0f32, 20.0, 40.0])), Some(Array::of(&[1, at.len(), 1], at))];
            let attrs = [
                ("mode", Value::Text(mode)),
                ("padding_mode", Value::Text(outside)),
                ("align_corners", Value::Int(align)),
            ];
            let output = [Some(Array::empty::<f32>(&[1, 1, at.len()]))];
            let found = run(Isa::Baseline, "GridSample", &attrs, &inputs, &output)?;
            Ok(found[0].as_ref().expect("an output").elements::<f32>())
        };
        let positions = [-1.0, -0.5, 0.5, 1.0, 3.0];
        assert_eq!(sampled("linear", "zeros", 1, &positions), Ok(vec![10.0, 15.0, 30.0, 40.0, 0.0]));
        assert_eq!(sampled("linear", "zeros", 0, &[-1.0, 0.0, 1.0]), Ok(vec![5.0, 20.0, 20.0]));
        assert_eq!(sampled("linear", "border", 1, &[-9.0, 9.0]), Ok(vec![10.0, 40.0]));
        assert_eq!(sampled("nearest", "reflection", 1, &[1.9, 3.1]), Ok(vec![20.0, 10.0]));
        assert_eq!(sampled("cubic", "border", 1, &positions[3..4]), Ok(vec![40.0]));
        let any = sampled("cubic", "reflection", 0, &[f32::NAN, f32::INFINITY, -1e30]);
        assert!(any.is_ok());
        let error: String = sampled("quadratic", "zeros", 0, &[0.0]).expect_err("a mode of nothing");
        assert!(error.contains("found quadratic"), "{error}");
    }
}
