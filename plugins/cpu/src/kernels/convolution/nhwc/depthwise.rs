//! Depthwise convolutions of images whose channels come last, and such whose groups are smaller than a vector: vectors run along
//! the channels of all groups, several pixels together.
//!
//! Windows of usual widths are [`sliding`]. Of others, which are depthwise, those that lie within their lines see each row of theirs
//! at equal distances. What the rest sees, at the ends of lines, are addresses one by one, some of them in a row of zeros. What
//! sees the padding only is left out, if all weights are finite.

use super::Conv;
use super::header::{HEADER, is_finite, mark_finite};
use super::sliding::{Slide, Sliding};
use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::{Arith, Isa};
use crate::kernels::geometry::pixels::{Line, Seen};
use crate::kernels::product::epilogue::Addresses;
use crate::kernels::product::micro::{as_f32s_mut, layout_id, to_weights};
use crate::lanes::{Lanes, read, unrolled, write};
use crate::stream::CpuStream;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;
use std::ops::Range;

/// Pixels that are made together, at most.
pub(super) const GROUP: usize = 8;

/// Lines that are made one after the other of the same columns, and bytes of such a part of a line: what windows see of it is still
/// in the second-level cache when those of the next lines see it, too. Shorter parts would stay in the first one, but what comes
/// from memory is foreseen by the processor only in long ones.
const BAND: usize = 16;
const PART_BYTES: usize = 32 << 10;

/// Operations of a chunk: fewer are not worth another thread.
const FLOPS_MIN: usize = 100_000;

struct Depthwise {
    conv: Conv,
    /// Lines of a plane of the results, and bands that they are divided into.
    height: usize,
    n_bands: usize,
    /// Parts that lines are divided into, and their columns: whole groups.
    n_parts: usize,
    part: usize,
    way: Way,
    grain: usize,
}

/// How groups of pixels are made.
enum Way {
    Slides(Sliding),
    Addressed {
        /// Columns whose windows lie within their lines.
        inside: Range<usize>,
        of_elements: GroupFn<Element>,
        of_lines: GroupFn<OfLine>,
    },
}

/// Returns whether a convolution is one of these.
pub(super) fn takes(conv: &Conv) -> bool {
    let is_depthwise = conv.groups > 1 && conv.c_in == 1 && conv.c_out == 1;
    is_depthwise || conv.groups > 1 && Sliding::takes(conv)
}

pub(super) fn prepare(conv: Conv, isa: Isa) -> Result<Prepared> {
    let (channels, n_terms) = (conv.strides().1, conv.k());
    let bytes = ((Size::of(channels) * n_terms + HEADER) * 4).get("a convolution's packed weights")?;
    let [_, height, width] = conv.window.output;
    let part = GROUP * (PART_BYTES / (Size::of(channels) * 4 * GROUP).saturated().max(1)).max(1);
    let n_parts = width.div_ceil(part);
    let of_line = Size::of(2 * n_terms) * channels;
    let planes = conv.images * conv.window.output[0];
    // As many units as keep threads busy, if there are several.
    let flops = of_line * width * height * planes;
    let n_units = match conv.host.n_slots() {
        1 => 1,
        n_slots => (flops.saturated() / FLOPS_MIN).min(4 * n_slots),
    };
    let n_bands = height.div_ceil(BAND).max(n_units.div_ceil((planes * n_parts).max(1)).min(height));
    let flops = (of_line * part.min(width) * height.div_ceil(n_bands.max(1))).saturated();
    let (packed, n_slots) = (conv.packed, conv.host.n_slots());
    let room = room(&conv);
    let (c_in, n_taps) = (conv.c_in, conv.window.n_taps());
    let way = match Sliding::of(&conv, isa)? {
        Some(sliding) => Way::Slides(sliding),
        None => Way::Addressed {
            inside: if lines_pay(&conv) { conv.window.inside(2) } else { 0..0 },
            of_elements: group_of::<Element>(isa),
            of_lines: group_of::<OfLine>(isa),
        },
    };
    let kernel =
        Depthwise { height, n_bands, n_parts, part, way, grain: (FLOPS_MIN / flops.max(1)).max(1), conv };
    let prepared = Prepared::new(kernel);
    let rooms = room * n_slots;
    if !packed {
        return prepared.with_room(rooms + bytes, 64);
    }
    let id = layout_id(&[8, channels as u64, c_in as u64, n_taps as u64]);
    Ok(prepared.with_room(rooms, 64)?.with_packed(1, id, bytes, 64, move |src, dst| {
        pack(&to_weights(src)?, [channels, c_in, n_taps], as_f32s_mut(dst)?);
        Ok(())
    }))
}

/// Returns whether a line takes less time if the windows within it are made for themselves: addresses are saved, and groups are
/// split. Times are in those of a pixel.
fn lines_pay(conv: &Conv) -> bool {
    /// Of making a group's addresses, for each pixel and channel.
    const ADDRESSES: f32 = 12.0;
    // Small groups load factors for fewer pixels.
    let time = |n: usize| match n % GROUP {
        0 => n,
        rest @ 1..=2 => n - rest + 3,
        rest @ 3..=4 => n - rest + 5,
        _ => n.next_multiple_of(GROUP),
    };
    let (width, inside) = (conv.window.output[2], conv.window.inside(2));
    let lines = time(inside.start) + time(inside.len()) + time(width - inside.end);
    let addresses = width.next_multiple_of(GROUP) as f32 * (1.0 + ADDRESSES / conv.groups as f32);
    (lines as f32) < addresses
}

/// Bytes of what the windows of a group see: of elements, and of lines before them.
fn room(conv: &Conv) -> Size {
    let lines = Size::of(conv.window.n_rows()) * size_of::<OfLine>();
    (lines + Size::of(conv.window.n_taps()) * size_of::<Element>()).next_multiple_of(64)
}

/// Weights come as `[channel, input, tap]`, the inputs those of the channel's group, and leave as `[tap, input, channel]`, after
/// a header.
fn pack(src: &[f32], [channels, c_in, n_taps]: [usize; 3], dst: &mut [f32]) {
    let dst = mark_finite(src, f32::INFINITY, dst);
    for (term, row) in dst.chunks_exact_mut(channels.max(1)).enumerate().take(c_in * n_taps) {
        let (tap, input) = (term / c_in, term % c_in);
        for (channel, value) in row.iter_mut().enumerate() {
            *value = src[(channel * c_in + input) * n_taps + tap];
        }
    }
}

impl Launch<CpuDevice> for Depthwise {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let conv = &self.conv;
        let mut addresses = Addresses::of(operands);
        let workspace = SendPtr(operands.workspace_ptr::<u8>());
        let (n_rows, n_taps) = (conv.window.n_rows(), conv.window.n_taps());
        let room = room(conv).saturated();
        if !conv.packed {
            let packed = SendPtr(workspace.at(room * conv.host.n_slots()).cast::<f32>());
            let n = conv.strides().1 * conv.k();
            // SAFETY: the operand has the weights' elements, and the workspace has room for them packed.
            let (src, dst) = unsafe {
                (
                    std::slice::from_raw_parts(addresses.w.0, n),
                    std::slice::from_raw_parts_mut(packed.0, HEADER + n),
                )
            };
            pack(src, [conv.strides().1, conv.c_in, n_taps], dst);
            addresses.w = packed;
        }
        // SAFETY: packed weights begin with the header.
        let place = unsafe { Place::of(&addresses) };
        let [depth, _, width] = conv.window.output;
        let n_units = conv.images * depth * self.n_bands * self.n_parts;
        conv.host.parallel_for(n_units, self.grain, |units, slot| {
            let mut pace = conv.host.pace();
            // SAFETY: a slot's part of the workspace is its own, and has room for the lines and the elements, which are written
            // before they are read.
            let (lines, elements) = unsafe {
                let lines = workspace.at(slot * room).cast::<OfLine>();
                let elements = lines.wrapping_add(n_rows).cast::<Element>();
                (
                    std::slice::from_raw_parts_mut(lines, n_rows),
                    std::slice::from_raw_parts_mut(elements, n_taps),
                )
            };
            for unit in units {
                let (part, unit) = (unit % self.n_parts, unit / self.n_parts);
                let (band, plane) = (unit % self.n_bands, unit / self.n_bands);
                let columns = part * self.part..((part + 1) * self.part).min(width);
                for row in self.height * band / self.n_bands..self.height * (band + 1) / self.n_bands {
                    let (of_image, of_result) = conv.strides();
                    pace.work(columns.len() * of_result * conv.k())?;
                    let line = plane * self.height + row;
                    let place = place.line(line * width * of_result);
                    let sees = Line::of(&conv.window, addresses.x.at(0), of_image, line);
                    // SAFETY: the pixels are within the operands, and units write disjoint ones.
                    unsafe {
                        match &self.way {
                            Way::Slides(sliding) => self.slide(sliding, &place, &sees, &columns, lines),
                            Way::Addressed { inside, of_elements, of_lines } => {
                                let inside = inside.start.clamp(columns.start, columns.end)
                                    ..inside.end.clamp(columns.start, columns.end);
                                let (before, behind) = (columns.start..inside.start, inside.end..columns.end);
                                self.edge(*of_elements, &place, &sees, before, elements);
                                self.within(*of_lines, &place, &sees, inside, lines);
                                self.edge(*of_elements, &place, &sees, behind, elements);
                            }
                        }
                    }
                }
            }
            Ok(())
        })
    }
}

/// Where a line of the result is, and what it is made of besides the image.
#[derive(Clone, Copy)]
struct Place {
    /// For each element of the window a number for each channel.
    weights: SendPtr<f32>,
    /// True if all weights are finite.
    is_finite: bool,
    bias: SendPtr<f32>,
    z: SendPtr<f32>,
    y: SendPtr<f32>,
}

impl Place {
    /// The first line.
    ///
    /// # Safety
    /// The weights are packed: a header, then the numbers.
    unsafe fn of(addresses: &Addresses) -> Self {
        // SAFETY: the weights begin with the header (# Safety).
        let is_finite = unsafe { is_finite(addresses.w.at(0)) };
        let weights = SendPtr(addresses.w.at(HEADER));
        Self { weights, is_finite, bias: addresses.bias, z: addresses.z, y: addresses.y }
    }

    /// The line that begins so many numbers later.
    fn line(&self, at: usize) -> Self {
        let z = SendPtr(Addresses::offset(self.z, at).cast_mut());
        Self { z, y: SendPtr(self.y.at(at)), ..*self }
    }
}

impl Depthwise {
    /// Makes pixels of a line, which sees what it does; their windows may lie in the padding.
    ///
    /// # Safety
    /// The pixels are this thread's.
    unsafe fn edge(
        &self,
        of_elements: GroupFn<Element>,
        place: &Place,
        sees: &Line<'_>,
        columns: Range<usize>,
        elements: &mut [Element],
    ) {
        for first in columns.clone().step_by(GROUP) {
            let group = first..(first + GROUP).min(columns.end);
            let elements = self.elements(place, &sees.columns(&group), elements);
            // SAFETY: the pixels are this thread's (# Safety), and what is seen lies within the image, or in the zeros.
            unsafe { of_elements(&self.conv, &self.pixels(place, &group), elements) };
        }
    }

    /// Makes pixels of a line, which sees what it does; their windows lie within the lines of the image.
    ///
    /// # Safety
    /// The pixels are this thread's.
    unsafe fn within(
        &self,
        of_lines: GroupFn<OfLine>,
        place: &Place,
        sees: &Line<'_>,
        columns: Range<usize>,
        lines: &mut [OfLine],
    ) {
        if columns.is_empty() {
            return;
        }
        let lines = self.lines(place, sees, columns.start, lines);
        let mut first = columns.start;
        while first < columns.end {
            let n = (columns.end - first).min(GROUP);
            let pixels = self.pixels(place, &(first..first + n));
            // SAFETY: the pixels are this thread's (# Safety), and their windows lie within the lines.
            unsafe { of_lines(&self.conv, &pixels, lines) };
            for of_line in lines.iter_mut() {
                of_line.from = of_line.from.wrapping_add(n * of_line.step);
            }
            first += n;
        }
    }

    /// Makes pixels of a line, which sees what it does.
    ///
    /// # Safety
    /// The pixels are this thread's, and the windows slide so.
    unsafe fn slide(
        &self,
        sliding: &Sliding,
        place: &Place,
        sees: &Line<'_>,
        columns: &Range<usize>,
        lines: &mut [OfLine],
    ) {
        let window = &self.conv.window;
        let lines = self.lines(place, sees, columns.start, lines);
        let n_groups = columns.len().div_ceil(GROUP);
        let column = |group: usize| columns.start + columns.len() * group / n_groups;
        for group in 0..n_groups {
            let (first, end) = (column(group), column(group + 1));
            let pixels = self.pixels(place, &(first..end));
            // What the windows see of the line: all of it that their elements reach.
            let (begin, n_steps) = (first * window.stride[2], end - first - 1);
            let reach = n_steps * window.stride[2] + window.kernel[2];
            let low = window.pad[2].saturating_sub(begin);
            let high = (window.input[2] + window.pad[2]).saturating_sub(begin).min(reach);
            let columns = low.min(high)..high;
            let conv = &self.conv;
            let slide = Slide { conv, pixels: &pixels, lines, columns, is_finite: place.is_finite };
            // SAFETY: the pixels are this thread's (# Safety), and the columns lie within the lines.
            unsafe { sliding.make(&slide) };
            for of_line in lines.iter_mut() {
                of_line.from = of_line.from.wrapping_add((end - first) * of_line.step);
            }
        }
    }

    /// What the windows of the pixels from a column on see, row by row.
    fn lines<'a>(
        &self,
        place: &Place,
        sees: &Line<'_>,
        column: usize,
        lines: &'a mut [OfLine],
    ) -> &'a mut [OfLine] {
        let (conv, window) = (&self.conv, &self.conv.window);
        let channels = conv.strides().0;
        let step = window.stride[2] * channels;
        let of_row = window.kernel[2] * conv.c_in * conv.strides().1;
        let mut n = 0;
        for row in 0..window.n_rows() {
            let weights = place.weights.at(row * of_row);
            lines[n] = match sees.row(row) {
                Some(line) => {
                    let from = line.wrapping_add(column * step).wrapping_sub(window.pad[2] * channels);
                    OfLine { from, step, tap: window.dilation[2] * channels, weights }
                }
                None if place.is_finite => continue,
                None => OfLine { from: self.conv.zeros.as_ptr(), step: 0, tap: 0, weights },
            };
            n += 1;
        }
        &mut lines[..n]
    }

    /// Some pixels of a line of the result.
    fn pixels(&self, place: &Place, columns: &Range<usize>) -> Pixels {
        let at = columns.start * self.conv.strides().1;
        Pixels {
            n: columns.len(),
            bias: Addresses::offset(place.bias, 0),
            z: Addresses::offset(place.z, at),
            y: place.y.at(at),
        }
    }

    /// What each element of the windows sees, with room for all.
    fn elements<'a>(&self, place: &Place, line: &Line<'_>, room: &'a mut [Element]) -> &'a [Element] {
        let (width, zeros) = (self.conv.window.kernel[2], self.conv.zeros.as_ptr());
        let mut n = 0;
        for row in 0..self.conv.window.n_rows() {
            let of_row = line.row(row);
            if of_row.is_none() && place.is_finite {
                continue;
            }
            for tap in 0..width {
                let element = &mut room[n];
                let sees = line.seen(of_row, tap, zeros, &mut element.seen);
                if sees || !place.is_finite {
                    element.weights = place.weights.at((row * width + tap) * self.conv.groups);
                    n += 1;
                }
            }
        }
        &room[..n]
    }
}

/// Some pixels of the result, one after the other.
pub(super) struct Pixels {
    pub n: usize,
    pub bias: *const f32,
    pub z: *const f32,
    pub y: *mut f32,
}

impl Pixels {
    /// Writes `n` channels of each pixel from `at`, of which these are the sums of products.
    ///
    /// # Safety
    /// The pixels are this thread's and at most `P`; they, the bias and what is added have as many channels from there. The
    /// instructions of `L` are among those of `A`.
    #[inline(always)]
    pub unsafe fn finish<A: Arith, L: Lanes, const P: usize>(
        &self,
        conv: &Conv,
        sums: &[L; P],
        at: usize,
        n: usize,
    ) {
        let tail = conv.tail(self.z);
        // SAFETY: the processor has the instructions, and there are `n` channels from here (# Safety).
        let bias =
            unsafe { if self.bias.is_null() { L::splat(0.0) } else { read(self.bias.wrapping_add(at), n) } };
        unrolled!(i below P {
            if i < self.n {
                let mut sum = sums[i].add(bias);
                let at = i * conv.strides().1 + at;
                // SAFETY: there are `n` channels from here (# Safety).
                unsafe {
                    if !tail.z.is_null() {
                        sum = sum.add(read(tail.z.wrapping_add(at), n));
                    }
                    write(tail.activation.apply::<A, L>(sum), self.y.wrapping_add(at), n);
                }
            }
        });
    }
}

/// What some elements of the windows see.
trait Sees: Copy + 'static {
    /// What the first of the elements sees, for each of `n` windows, at most `P`; those that there are not see what the last one
    /// does.
    fn first<const P: usize>(&self, n: usize) -> Seen<P>;

    /// Its elements, if a row of the windows has so many.
    fn n_taps(&self, width: usize) -> usize;

    /// Numbers from what an element sees to what the next one does.
    fn tap(&self) -> usize;

    /// The weights of the first of the elements; those of the next ones follow.
    fn weights(&self) -> *const f32;
}

/// One element, which sees a pixel for each window.
#[derive(Clone, Copy)]
struct Element {
    seen: Seen<GROUP>,
    weights: *const f32,
}

impl Sees for Element {
    #[inline(always)]
    fn first<const P: usize>(&self, _n: usize) -> Seen<P> {
        let mut first = [self.seen[0]; P];
        unrolled!(i below P { first[i] = self.seen[i.min(GROUP - 1)]; });
        first
    }

    #[inline(always)]
    fn n_taps(&self, _width: usize) -> usize {
        1
    }

    #[inline(always)]
    fn tap(&self) -> usize {
        0
    }

    #[inline(always)]
    fn weights(&self) -> *const f32 {
        self.weights
    }
}

/// A row of the windows: what its first element sees of the first one, and the numbers from one window to the next and from one
/// element to the next.
#[derive(Clone, Copy)]
pub(super) struct OfLine {
    pub from: *const f32,
    step: usize,
    pub tap: usize,
    pub weights: *const f32,
}

impl Sees for OfLine {
    #[inline(always)]
    fn first<const P: usize>(&self, n: usize) -> Seen<P> {
        let mut first = [self.from; P];
        // Without a jump, which would not be foreseen, and without a multiplication.
        unrolled!(i below P {
            if i > 0 {
                first[i] = first[i - 1].wrapping_add(if i < n { self.step } else { 0 });
            }
        });
        first
    }

    #[inline(always)]
    fn n_taps(&self, width: usize) -> usize {
        width
    }

    #[inline(always)]
    fn tap(&self) -> usize {
        self.tap
    }

    #[inline(always)]
    fn weights(&self) -> *const f32 {
        self.weights
    }
}

/// Makes pixels.
type GroupFn<S> = unsafe fn(&Conv, &Pixels, &[S]);

dispatch! { fn group_of<S: Sees>(conv: &Conv, pixels: &Pixels, sees: &[S]) = group_body }

/// # Safety
/// What is seen, weights, bias, `z` and `y` have the channels, or are NULL where that is allowed; the pixels are this thread's.
#[inline(always)]
unsafe fn group_body<A: Arith, S: Sees>(conv: &Conv, pixels: &Pixels, sees: &[S]) {
    let job = Job { conv, pixels, sees, width: conv.window.kernel[2], channels: conv.groups };
    // SAFETY: as this function; there are at most as many pixels.
    unsafe {
        match pixels.n {
            ..=2 => channels_body::<A, S, 2>(&job),
            3..=4 => channels_body::<A, S, 4>(&job),
            _ => channels_body::<A, S, GROUP>(&job),
        }
    }
    // SAFETY: the pixels are this thread's (# Safety).
    unsafe { conv.activate(pixels.y, pixels.n, conv.groups) };
}

/// What a group is made of.
struct Job<'a, S> {
    conv: &'a Conv,
    pixels: &'a Pixels,
    sees: &'a [S],
    /// Elements of a row of the windows.
    width: usize,
    channels: usize,
}

/// All channels of at most `P` pixels.
///
/// # Safety
/// As [`group_body`].
#[inline(always)]
unsafe fn channels_body<A: Arith, S: Sees, const P: usize>(job: &Job<'_, S>) {
    let lanes = <A::Lanes as Lanes>::N;
    let mut at = 0;
    // An address serves two vectors, where there are registers for the sums of both.
    while A::REGISTERS == 32 && at + 2 * lanes <= job.channels {
        // SAFETY: there are two vectors of channels from here (# Safety).
        unsafe { vectors::<A, A::Lanes, S, P, 2>(job, at, lanes) };
        at += 2 * lanes;
    }
    while at < job.channels {
        let n = job.channels - at;
        // SAFETY: there are as many channels from here (# Safety).
        unsafe {
            if lanes == 16 && n <= lanes / 2 {
                vectors::<A, <A::Lanes as Lanes>::Half, S, P, 1>(job, at, n);
            } else {
                vectors::<A, A::Lanes, S, P, 1>(job, at, lanes.min(n));
            }
        }
        at += lanes;
    }
}

/// `V` vectors of channels from `at`, the last of which may have fewer: `n`.
///
/// # Safety
/// As [`group_body`], and there are as many channels from `at`; the instructions of `L` are among those of `A`.
#[inline(always)]
unsafe fn vectors<A: Arith, L: Lanes, S: Sees, const P: usize, const V: usize>(
    job: &Job<'_, S>,
    at: usize,
    n: usize,
) {
    let (pixels, channels) = (job.pixels, job.channels);
    let count = |v: usize| if v + 1 == V { n } else { L::N };
    // SAFETY: the processor has the instructions.
    let zero = unsafe { L::splat(0.0) };
    let mut sums = [[zero; V]; P];
    for sees in job.sees {
        let first = sees.first::<P>(pixels.n);
        let mut weights = sees.weights().wrapping_add(at);
        let mut offset = at;
        for _ in 0..sees.n_taps(job.width) {
            let mut factors = [zero; V];
            unrolled!(v below V {
                // SAFETY: there are as many channels from here (# Safety).
                factors[v] = unsafe { read(weights.wrapping_add(v * L::N), count(v)) };
            });
            unrolled!(i below P {
                unrolled!(v below V {
                    // SAFETY: the same.
                    let x: L = unsafe { read(first[i].wrapping_add(offset + v * L::N), count(v)) };
                    sums[i][v] = factors[v].fma(x, sums[i][v]);
                });
            });
            weights = weights.wrapping_add(channels);
            offset += sees.tap();
        }
    }
    unrolled!(v below V {
        let mut of_vector = [zero; P];
        unrolled!(i below P { of_vector[i] = sums[i][v]; });
        // SAFETY: there are as many channels from here, and the pixels are this thread's (# Safety).
        unsafe { pixels.finish::<A, L, P>(job.conv, &of_vector, at + v * L::N, count(v)) };
    });
}
