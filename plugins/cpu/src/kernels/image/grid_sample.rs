//! GridSample: an image seen at positions that an operand holds.
//!
//! Along each axis a position becomes a few places with weights; a sample is the sum over all their combinations, in f64.
//! The places of some neighbouring positions are worked out once, and then all channels are sampled there. Coordinates are
//! calculated in f32 unless the grid is of f64, as the models were trained, so that a position between two elements falls on
//! the same side.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::Arith;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{element_size, expect_output, extents};
use crate::kernels::numbers::real::{Real, Source, Stored, stored};
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

/// Elements of the image that the positions of a block read in each channel, at most: few enough for the nearest cache.
const TAPS_MAX: usize = 512;

/// Samples of a chunk of a parallel loop.
const GRAIN: usize = 16 * 1024;

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
    /// Extents of the image, outermost first; the last ones of these.
    extents: [usize; AXES_MAX],
    /// Elements of a channel, and positions of a batch.
    n_image: usize,
    n_grid: usize,
    mode: Mode,
    /// Elements that a sample reads in all.
    n_taps: usize,
    outside: Outside,
    align_corners: bool,
    single: bool,
    find: FindFn,
    sample: SampleFn,
}

/// An element that a sample reads, by its place in a channel, and its weight.
#[derive(Clone, Copy)]
struct Tap {
    at: usize,
    weight: f64,
}

/// Neighbouring positions of a batch, those whose samples lie within the image apart from the others, so that loops over them have a
/// constant number of steps.
struct Block {
    /// Positions.
    n: usize,
    /// Rows of taps side by side, of positions that have all of them: where each begins, their weights, and those positions within the
    /// block.
    rows: [usize; TAPS_MAX],
    weights: [f64; TAPS_MAX],
    of_whole: [u16; TAPS_MAX],
    n_whole: usize,
    /// Single taps of the other positions, with the end of each one's taps.
    part: [Tap; TAPS_MAX],
    of_part: [(u16, u16); TAPS_MAX],
    n_part: usize,
}

const _: () = assert!(TAPS_MAX <= u16::MAX as usize);

impl Block {
    fn new() -> Self {
        Self {
            n: 0,
            rows: [0; TAPS_MAX],
            weights: [0.0; TAPS_MAX],
            of_whole: [0; TAPS_MAX],
            n_whole: 0,
            part: [Tap { at: 0, weight: 0.0 }; TAPS_MAX],
            of_part: [(0, 0); TAPS_MAX],
            n_part: 0,
        }
    }
}

type FindFn = unsafe fn(&GridSample, Source, usize, &mut Block);
type SampleFn = unsafe fn(*const u8, *mut u8, &Block);

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
    let mode = match request.attrs.string("mode", "linear")? {
        "nearest" => Mode::Nearest,
        "linear" | "bilinear" => Mode::Linear,
        "cubic" | "bicubic" => Mode::Cubic,
        mode => return Err(Error::invalid(format!("mode is nearest, linear or cubic, found {mode}"))),
    };
    let n_taps = mode.n_taps().pow(image.len() as u32);
    let mut sides = [1; AXES_MAX];
    sides[AXES_MAX - image.len()..].copy_from_slice(image);
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
        mode,
        n_taps,
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
        find: find(request.device.isa),
        sample: stored!(x.dtype(), sampler(mode, image.len()))?,
    }))
}

/// Where a sample reads along one axis: elements, [`OUTSIDE`] for those that count as 0, and their weights.
#[derive(Clone, Copy)]
struct Places {
    at: [usize; 4],
    weights: [f64; 4],
    n: usize,
    any_outside: bool,
    side_by_side: bool,
}

const OUTSIDE: usize = usize::MAX;

impl Places {
    /// Of an axis that the image does not have.
    const ONE: Self = Self { at: [0; 4], weights: [1.0; 4], n: 1, any_outside: false, side_by_side: true };
}

dispatch! {
    /// The taps of the block's `n` positions, from the one whose number among those of all batches is `first`.
    fn find(op: &GridSample, grid: Source, first: usize, block: &mut Block) = find_body
}

#[inline(always)]
unsafe fn find_body<A: Arith>(op: &GridSample, grid: Source, first: usize, block: &mut Block) {
    (block.n_whole, block.n_part) = (0, 0);
    let (mut n_rows, mut n_weights, mut n_taps) = (0, 0, 0);
    for position in 0..block.n {
        // The innermost axis of the image is the last one here, so that its places are neighbours.
        let mut places = [Places::ONE; AXES_MAX];
        for axis in 0..op.axes {
            // The grid names the innermost axis first.
            let normalised = grid.get((first + position) * op.axes + op.axes - 1 - axis);
            places[AXES_MAX - op.axes + axis] = op.places(normalised, op.extents[AXES_MAX - op.axes + axis]);
        }
        let [a, b, c] = &places;
        if c.side_by_side && !a.any_outside && !b.any_outside {
            for i in 0..a.n {
                for j in 0..b.n {
                    block.rows[n_rows] = (a.at[i] * op.extents[1] + b.at[j]) * op.extents[2] + c.at[0];
                    n_rows += 1;
                    for k in 0..c.n {
                        block.weights[n_weights] = a.weights[i] * b.weights[j] * c.weights[k];
                        n_weights += 1;
                    }
                }
            }
            block.of_whole[block.n_whole] = position as u16;
            block.n_whole += 1;
            continue;
        }
        for i in 0..a.n {
            for j in 0..b.n {
                for k in 0..c.n {
                    if a.at[i] == OUTSIDE || b.at[j] == OUTSIDE || c.at[k] == OUTSIDE {
                        continue;
                    }
                    let at = (a.at[i] * op.extents[1] + b.at[j]) * op.extents[2] + c.at[k];
                    block.part[n_taps] = Tap { at, weight: a.weights[i] * b.weights[j] * c.weights[k] };
                    n_taps += 1;
                }
            }
        }
        block.of_part[block.n_part] = (position as u16, n_taps as u16);
        block.n_part += 1;
    }
}

/// The samples of a channel at a block's positions, whose whole ones have `ROWS` rows of `N` taps. Sums are in f64, each column of the
/// rows by itself, and in the same order on every processor.
///
/// # Safety
/// 1. `x` is a channel of the image that the block was made for.
/// 2. `y` has an element for each position of the block, which is the caller's own.
unsafe fn sample<T: Stored, const ROWS: usize, const N: usize>(x: *const u8, y: *mut u8, block: &Block) {
    let (x, y) = (x.cast::<T>(), y.cast::<T>());
    let (rows, _) = block.rows.as_chunks::<ROWS>();
    let (weights, _) = block.weights.as_chunks::<N>();
    let weights = weights.chunks_exact(ROWS);
    for ((rows, weights), &position) in rows.iter().zip(weights).zip(&block.of_whole[..block.n_whole]) {
        let mut sums = [0.0; N];
        for (&at, weights) in rows.iter().zip(weights) {
            // SAFETY: a row of taps lies within the channel (# Safety, 1).
            let elements = unsafe { x.add(at).cast::<[T; N]>().read() };
            for k in 0..N {
                sums[k] += weights[k] * elements[k].value();
            }
        }
        let sum = match sums[..] {
            [a, b, c, d] => (a + c) + (b + d),
            _ => sums.into_iter().sum(),
        };
        // SAFETY: `y` has an element for each position (# Safety, 2).
        unsafe { y.add(position.into()).write(T::of(sum)) };
    }
    let mut first = 0;
    for &(position, end) in &block.of_part[..block.n_part] {
        let taps = &block.part[first..usize::from(end)];
        // SAFETY: a tap lies within the channel (# Safety, 1).
        let term = |tap: &Tap| tap.weight * unsafe { x.add(tap.at).read() }.value();
        let sum = taps.iter().fold(0.0, |sum, tap| sum + term(tap));
        // SAFETY: `y` has an element for each position (# Safety, 2).
        unsafe { y.add(position.into()).write(T::of(sum)) };
        first = usize::from(end);
    }
}

/// The loop for images of so many axes.
fn sampler<T: Stored>(mode: Mode, axes: usize) -> SampleFn {
    match (mode, axes) {
        (Mode::Nearest, _) => sample::<T, 1, 1>,
        (Mode::Linear, 1) => sample::<T, 1, 2>,
        (Mode::Linear, 2) => sample::<T, 2, 2>,
        (Mode::Linear, _) => sample::<T, 4, 2>,
        (Mode::Cubic, 1) => sample::<T, 1, 4>,
        (Mode::Cubic, 2) => sample::<T, 4, 4>,
        (Mode::Cubic, _) => sample::<T, 16, 4>,
    }
}

impl Mode {
    /// Elements that a sample reads along an axis.
    fn n_taps(self) -> usize {
        match self {
            Self::Nearest => 1,
            Self::Linear => 2,
            Self::Cubic => 4,
        }
    }
}

impl Launch<CpuDevice> for GridSample {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let grid = self.grid.source(operands.input_ref(1));
        let y = SendPtr(operands.output_ptr::<u8>(0));
        let size = self.image.size();
        let grain = (GRAIN / self.channels.max(1)).max(1);
        self.host.parallel_for(self.batches * self.n_grid, grain, |range, _| {
            let (mut pace, mut block) = (self.host.pace(), Block::new());
            let mut position = range.start;
            while position < range.end {
                let (batch, at) = (position / self.n_grid, position % self.n_grid);
                block.n = (TAPS_MAX / self.n_taps).min(range.end - position).min(self.n_grid - at);
                // SAFETY: the instructions are the device's.
                unsafe { (self.find)(self, grid, position, &mut block) };
                for plane in batch * self.channels..(batch + 1) * self.channels {
                    pace.work(block.n * self.n_taps)?;
                    let from = x.at(plane * self.n_image * size);
                    let to = y.at((plane * self.n_grid + at) * size);
                    // SAFETY: the plane is a channel of the image, whose shape `prepare` was told, and so is the one of the
                    // output; the positions are this chunk's own, and so are their elements in all channels.
                    unsafe { (self.sample)(from, to, &block) };
                }
                position += block.n;
            }
            Ok(())
        })
    }
}

impl GridSample {
    /// The elements around a position along an axis of `n` elements.
    #[inline(always)]
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
        let n_places = self.mode.n_taps();
        let (first, weights) = match self.mode {
            // A position reflected at half an element is cut off towards 0.
            Mode::Nearest => (position.trunc(), [1.0, 0.0, 0.0, 0.0]),
            Mode::Linear => (floor, [1.0 - t, t, 0.0, 0.0]),
            Mode::Cubic => (floor - 1.0, cubic(t)),
        };
        let mut places =
            Places { at: [OUTSIDE; 4], weights, n: n_places, any_outside: false, side_by_side: false };
        if first >= 0.0 && first + n_places as f64 <= n as f64 {
            let first = first as usize;
            places.at = [first, first + 1, first + 2, first + 3];
            places.side_by_side = true;
            return places;
        }
        for (i, at) in places.at[..n_places].iter_mut().enumerate() {
            let wanted = first + i as f64;
            let inside = wanted >= 0.0 && wanted < n as f64;
            let found = match self.outside {
                _ if inside => wanted,
                Outside::Zeros => {
                    places.any_outside = true;
                    continue;
                }
                Outside::Border => wanted,
                Outside::Reflection => reflected(wanted, low, high),
            };
            // A cast cuts off towards 0, and makes NaN 0.
            *at = (found.max(0.0) as usize).min(n - 1);
        }
        places
    }
}

/// The position mirrored at both borders until it lies between them.
#[inline(always)]
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
#[inline(always)]
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

    /// An image of floats sampled by loops that look up one element after the other.
    #[test]
    fn all_channels_agree_with_the_definition() {
        use crate::kernels::testing::{Chance, isas};
        let mut chance = Chance::new(3);
        for (shape, places) in [
            (&[2usize, 3, 7][..], &[9usize][..]),
            (&[2, 5, 6, 4], &[13, 30]),
            (&[1, 70, 9, 11], &[5, 7]),
            (&[1, 2, 4, 3, 5], &[2, 3, 11]),
        ] {
            let (axes, size) = (places.len(), shape[2..].iter().product::<usize>());
            let n: usize = places.iter().product();
            for (mode, outside) in ["nearest", "linear", "cubic"]
                .into_iter()
                .flat_map(|mode| ["zeros", "border", "reflection"].map(|outside| (mode, outside)))
            {
                let x = chance.floats(shape.iter().product(), 2.0);
                let mut grid = chance.floats(shape[0] * n * axes, 1.4);
                (grid[0], grid[axes]) = (f32::NAN, f32::INFINITY);
                let low = -0.5;
                // The elements of an axis and their weights.
                let of_axis = |g: f32, n: usize| -> Vec<(Option<usize>, f64)> {
                    let mut at = f64::from(((g + 1.0) * n as f32 - 1.0) / 2.0);
                    let (last, high) = (n as f64 - 1.0, n as f64 - 0.5);
                    if mode == "nearest" {
                        at = at.round_ties_even();
                    }
                    if at < low || at > high {
                        match outside {
                            "border" => at = at.clamp(0.0, last),
                            "reflection" => at = reflected(at, low, high),
                            _ => {}
                        }
                    }
                    let t = at - at.floor();
                    let (first, weights) = match mode {
                        "nearest" => (at.trunc(), vec![1.0]),
                        "linear" => (at.floor(), vec![1.0 - t, t]),
                        _ => (at.floor() - 1.0, cubic(t).to_vec()),
                    };
                    let place = |i: usize| {
                        let wanted = first + i as f64;
                        match outside {
                            _ if wanted >= 0.0 && wanted <= last => Some(wanted as usize),
                            "zeros" => None,
                            "border" => Some((wanted.max(0.0) as usize).min(n - 1)),
                            _ => Some((reflected(wanted, low, high).max(0.0) as usize).min(n - 1)),
                        }
                    };
                    weights.into_iter().enumerate().map(|(i, weight)| (place(i), weight)).collect()
                };
                let mut expected = Vec::new();
                for plane in 0..shape[0] * shape[1] {
                    for position in 0..n {
                        let at = (plane / shape[1] * n + position) * axes;
                        let mut terms = vec![(Some(0), 1.0)];
                        for axis in 0..axes {
                            let of_axis = of_axis(grid[at + axes - 1 - axis], shape[2 + axis]);
                            let both = |(at, weight): &(Option<usize>, f64)| {
                                let (at, weight) = (*at, *weight);
                                let one = move |(place, w): &(Option<usize>, f64)| {
                                    let at = at.zip(*place).map(|(at, place)| at * shape[2 + axis] + place);
                                    (at, weight * w)
                                };
                                of_axis.iter().map(one).collect::<Vec<_>>()
                            };
                            terms = terms.iter().flat_map(both).collect();
                        }
                        let value = |at: usize| f64::from(x[plane * size + at]);
                        let sum =
                            terms.iter().fold(0.0, |sum, (at, w)| at.map_or(sum, |at| sum + w * value(at)));
                        expected.push(sum as f32);
                    }
                }
                for isa in isas() {
                    let of_grid = [&shape[..1], places, &[axes]].concat();
                    let to = [&shape[..2], places].concat();
                    let inputs = [Some(Array::of(shape, &x)), Some(Array::of(&of_grid, &grid))];
                    let attrs = [("mode", Value::Text(mode)), ("padding_mode", Value::Text(outside))];
                    let found = run(isa, "GridSample", &attrs, &inputs, &[Some(Array::empty::<f32>(&to))]);
                    let found = found.expect("samples")[0].as_ref().expect("an output").elements::<f32>();
                    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                        let same =
                            found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                        assert!(same, "{mode} {outside} of {shape:?}, {i}, {isa:?}: {found}, not {expected}");
                    }
                }
            }
        }
    }
}
