//! Windows of usual widths that move by one or two pixels, over channels by themselves or in groups that are smaller than a vector.
//!
//! What several windows of a row see of a line is read once for all of them, and the weights of a row of the window stay in
//! registers. A vector holds output channels of one or several groups. What each of these reads lies within a vector of the
//! image, from which a permutation picks it, one input of each group after the other.
//!
//! Groups of pixels lie anywhere in their line: columns that are not there are left out, or zeros if not all weights are finite.

use super::Conv;
use super::depthwise::{GROUP, OfLine, Pixels};
use crate::dispatch;
use crate::isa::{Arith, Isa};
use crate::lanes::{Lanes, read, unrolled};
use devbay_plugin_api::reserve;
use devbay_plugin_api::sdk::Result;
use std::ops::Range;

/// Elements of a row of a window, at most.
const WIDTH_MAX: usize = 7;

/// Numbers of the widest vector.
const LANES_MAX: usize = 16;

/// A convolution whose windows slide.
pub(super) struct Sliding {
    make: SlideFn,
    /// For each vector of output channels what it reads; none if each channel reads the one of its own number.
    picks: Vec<Picks>,
}

/// What the output channels of a vector read of a pixel.
#[derive(Clone)]
struct Picks {
    /// The first channel that is read, and the number from there on to the last one.
    at: usize,
    n: usize,
    /// For each output channel the first input of its group, counted from the first that is read. The others follow.
    first: [i32; LANES_MAX],
}

impl Sliding {
    /// Returns whether the windows have functions here, and each vector of output channels reads no more than a vector.
    pub fn takes(conv: &Conv) -> bool {
        let lanes = conv.tiles.lanes;
        let reads = |at: usize| spans(conv, at, lanes.min(conv.strides().1 - at)).len() * conv.c_in;
        function(conv, Isa::Baseline).is_some()
            && conv.c_out < lanes
            && (0..conv.strides().1).step_by(lanes).all(|at| reads(at) <= lanes)
    }

    /// The functions for a convolution that is taken; None if it is not.
    ///
    /// # Errors
    /// Out of memory.
    pub fn of(conv: &Conv, isa: Isa) -> Result<Option<Self>> {
        let (Some(make), true) = (function(conv, isa), Self::takes(conv)) else { return Ok(None) };
        let mut picks = Vec::new();
        if !is_depthwise(conv) {
            let (channels, lanes) = (conv.strides().1, conv.tiles.lanes);
            picks = reserve::with_capacity(channels.div_ceil(lanes), "the inputs of a convolution's groups")?;
            for at in (0..channels).step_by(lanes) {
                let groups = spans(conv, at, lanes.min(channels - at));
                let mut first = [0; LANES_MAX];
                for (i, first) in first.iter_mut().enumerate().take(lanes.min(channels - at)) {
                    *first = (((at + i) / conv.c_out - groups.start) * conv.c_in) as i32;
                }
                picks.push(Picks { at: groups.start * conv.c_in, n: groups.len() * conv.c_in, first });
            }
        }
        Ok(Some(Self { make, picks }))
    }

    /// Makes a group of at most [`GROUP`] pixels.
    ///
    /// # Safety
    /// 1. The convolution is the one that this was made for, and the processor has the instructions.
    /// 2. The columns lie within the lines; all of them, weights, bias, `z` and `y` have the channels, or are NULL where that is
    ///    allowed.
    /// 3. The pixels are this thread's.
    pub unsafe fn make(&self, slide: &Slide<'_>) {
        // SAFETY: as this function (# Safety).
        unsafe { (self.make)(slide, &self.picks) }
    }
}

fn is_depthwise(conv: &Conv) -> bool {
    conv.c_in == 1 && conv.c_out == 1
}

/// The groups of `n` output channels from `at`.
fn spans(conv: &Conv, at: usize, n: usize) -> Range<usize> {
    at / conv.c_out..(at + n - 1) / conv.c_out + 1
}

/// The function for a convolution's windows; None if there is none.
fn function(conv: &Conv, isa: Isa) -> Option<SlideFn> {
    let window = &conv.window;
    if window.dilation[2] != 1 || is_depthwise(conv) && window.output[2] <= GROUP / 2 {
        return None;
    }
    match (window.kernel[2], window.stride[2]) {
        (1, 1) => Some(slide_of::<Moves<1, 1>>(isa)),
        (3, 1) => Some(slide_of::<Moves<3, 1>>(isa)),
        (3, 2) => Some(slide_of::<Moves<3, 2>>(isa)),
        (5, 1) => Some(slide_of::<Moves<5, 1>>(isa)),
        (5, 2) => Some(slide_of::<Moves<5, 2>>(isa)),
        (7, 1) => Some(slide_of::<Moves<7, 1>>(isa)),
        (7, 2) => Some(slide_of::<Moves<7, 2>>(isa)),
        _ => None,
    }
}

/// A group of pixels, and what its windows see.
pub(super) struct Slide<'a> {
    pub conv: &'a Conv,
    pub pixels: &'a Pixels,
    /// The rows of the windows, from the first column that the first window would see.
    pub lines: &'a [OfLine],
    /// The columns that there are, counted from that one: no more than the windows see.
    pub columns: Range<usize>,
    /// True if all weights are finite.
    pub is_finite: bool,
}

/// Makes a group, as [`Sliding::make`].
type SlideFn = unsafe fn(&Slide<'_>, &[Picks]);

/// How rows of windows lie.
trait Row: 'static {
    /// Elements of a row, at most [`WIDTH_MAX`].
    const WIDTH: usize;
    /// Columns from one window to the next, at most 2.
    const STEP: usize;
}

/// Rows of so many elements, so many columns from each other.
struct Moves<const WIDTH: usize, const STEP: usize>;

impl<const WIDTH: usize, const STEP: usize> Row for Moves<WIDTH, STEP> {
    const WIDTH: usize = WIDTH;
    const STEP: usize = STEP;
}

dispatch! { fn slide_of<R: Row>(slide: &Slide<'_>, picks: &[Picks]) = slide_body }

/// # Safety
/// As [`Sliding::make`].
#[inline(always)]
unsafe fn slide_body<A: Arith, R: Row>(slide: &Slide<'_>, picks: &[Picks]) {
    let (lanes, channels) = (<A::Lanes as Lanes>::N, slide.conv.strides().1);
    for (vector, at) in (0..channels).step_by(lanes).enumerate() {
        let n = lanes.min(channels - at);
        // SAFETY: there are as many channels from here, of which each reads what its picks say (# Safety).
        unsafe {
            match picks.get(vector) {
                None if lanes == 16 && n <= lanes / 2 => {
                    sums::<A, <A::Lanes as Lanes>::Half, R, false>(slide, at, n, &Picks::same(at, n));
                }
                None => sums::<A, A::Lanes, R, false>(slide, at, n, &Picks::same(at, n)),
                Some(picks) => sums::<A, A::Lanes, R, true>(slide, at, n, picks),
            }
        }
    }
    // SAFETY: the pixels are this thread's (# Safety, 3).
    unsafe { slide.conv.activate(slide.pixels.y, slide.pixels.n, channels) };
}

impl Picks {
    /// `n` channels from `at`, each of which reads the one of its number.
    #[inline(always)]
    fn same(at: usize, n: usize) -> Self {
        Self { at, n, first: [0; LANES_MAX] }
    }
}

/// Columns are counted in parts, because [`unrolled`] goes on to twelve.
const PART: usize = 4;

/// `n` channels from `at`, at most a vector, of inputs that are picked if `PICKS`.
///
/// # Safety
/// As [`Sliding::make`], and there are as many channels from `at`, of which each reads what its picks say; the instructions of
/// `L` are among those of `A`.
#[inline(always)]
unsafe fn sums<A: Arith, L: Lanes, R: Row, const PICKS: bool>(
    slide: &Slide<'_>,
    at: usize,
    n: usize,
    picks: &Picks,
) {
    let (channels, c_in) = (slide.conv.strides().1, if PICKS { slide.conv.c_in } else { 1 });
    // One bit for each column that there is.
    let columns = (1u32 << slide.columns.end) - (1u32 << slide.columns.start);
    // SAFETY: the processor has the instructions (# Safety, 1).
    let zero = unsafe { L::splat(0.0) };
    let mut sums = [zero; GROUP];
    for line in slide.lines {
        for input in 0..c_in {
            let mut factors = [zero; WIDTH_MAX];
            unrolled!(t below WIDTH_MAX {
                if t < R::WIDTH {
                    let weights = line.weights.wrapping_add((t * c_in + input) * channels + at);
                    // SAFETY: there are as many channels from here (# Safety, 2).
                    factors[t] = unsafe { read(weights, n) };
                }
            });
            // SAFETY: the processor has the instructions (# Safety, 1).
            let places = unsafe { L::places(&picks.first, input as i32) };
            let mut from = line.from.wrapping_add(picks.at);
            unrolled!(part below GROUP {
                unrolled!(rest below PART {
                    let column = part * PART + rest;
                    if column < (GROUP - 1) * R::STEP + R::WIDTH {
                        let is_there = columns >> column & 1 == 1;
                        if is_there || !slide.is_finite {
                            let mut x = zero;
                            if is_there {
                                // SAFETY: the column lies within the line, and has the channels (# Safety, 2).
                                x = unsafe { read(from, picks.n) };
                            }
                            if PICKS {
                                x = x.pick(places);
                            }
                            unrolled!(i below GROUP {
                                if column >= i * R::STEP && column - i * R::STEP < R::WIDTH {
                                    sums[i] = factors[column - i * R::STEP].fma(x, sums[i]);
                                }
                            });
                        }
                        from = from.wrapping_add(line.tap);
                    }
                });
            });
        }
    }
    // SAFETY: there are `n` channels from here, and the pixels are this thread's (# Safety).
    unsafe { slide.pixels.finish::<A, L, GROUP>(slide.conv, &sums, at, n) };
}
