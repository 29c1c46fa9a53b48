//! Depthwise convolutions: each channel by a window of its own, from a padded copy of its plane.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::{Arith, Isa};
use crate::kernels::convolution::conv::Conv;
use crate::kernels::geometry::plane::{self, FillFn, Plane};
use crate::kernels::product::epilogue::Addresses;
use crate::kernels::product::epilogue::{Activation, apply};
use crate::lanes::{Lanes, read, write};
use crate::stream::CpuStream;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

/// Taps of a window, at most; larger windows go the way of other convolutions.
const TAPS_MAX: usize = 49;

/// Returns whether a convolution is one per channel, over planes.
pub(crate) fn takes(conv: &Conv) -> bool {
    conv.c_in == 1
        && conv.c_out == 1
        && conv.groups > 1
        && conv.window.n_taps() <= TAPS_MAX
        && Plane::of(&conv.window).is_some()
}

/// Parameters of a channel's loop besides its addresses.
struct Rows {
    /// Beginning of each tap, from the first row of the window in the copy.
    taps: Vec<usize>,
    /// Elements of the copy from one output row to the next.
    step: usize,
    width: usize,
    activation: Activation,
}

/// The addresses of some rows of one channel; `z` may be NULL.
#[derive(Clone, Copy)]
struct Channel {
    height: usize,
    copy: *const f32,
    weights: *const f32,
    bias: f32,
    z: *const f32,
    y: *mut f32,
}

type ChannelFn = unsafe fn(&Rows, Channel);

struct Depthwise {
    conv: Conv,
    plane: Plane,
    fill: FillFn,
    rows: Rows,
    channel: ChannelFn,
    grain: usize,
}

pub(crate) fn prepare(conv: Conv, isa: Isa) -> Result<Prepared> {
    let Some(plane) = Plane::of(&conv.window) else {
        unreachable!("`takes` found a plane");
    };
    let window = &conv.window;
    let [_, height, width] = window.kernel;
    // The next output row's window is one row further in the copy: values that were read serve both.
    let overlaps = window.stride[1] == window.dilation[1];
    let channel = match (height, width, window.n_taps()) {
        (3, 3, _) if overlaps => overlapping_of::<Three>(isa),
        (5, 5, _) if overlaps => overlapping_of::<Five>(isa),
        (_, _, 9) => channel_of::<Nine>(isa),
        (_, _, 25) => channel_of::<TwentyFive>(isa),
        _ => channel_of::<Any>(isa),
    };
    let rows = Rows {
        taps: plane.taps(window)?,
        step: window.stride[1] * plane.row_len(),
        width: window.output[2],
        activation: conv.activation,
    };
    let fill = plane::fill(isa);
    let workspace = plane.size() * (4 * conv.host.n_slots());
    let flops = (Size::of(2 * window.n_taps()) * window.n_output()).saturated();
    Prepared::new(Depthwise { plane, fill, rows, channel, grain: (100_000 / flops.max(1)).max(1), conv })
        .with_room(workspace, 64)
}

/// Operations of rows of a channel that are worked on at once.
const ROWS_WORK: usize = 1 << 22;

impl Launch<CpuDevice> for Depthwise {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let conv = &self.conv;
        let addresses = Addresses::of(operands);
        let workspace = SendPtr(operands.workspace_ptr::<f32>());
        let (n_in, n_out, n_taps) = (conv.window.n_input(), conv.window.n_output(), conv.window.n_taps());
        conv.host.parallel_for(conv.images * conv.groups, self.grain, |channels, slot| {
            let copy = workspace.at(slot * self.plane.len());
            // SAFETY: a slot's scratch is its own and has room for the copy.
            unsafe { self.plane.clear(copy, 0.0) };
            let mut pace = conv.host.pace();
            for channel in channels {
                let group = channel % conv.groups;
                let bias = Addresses::offset(addresses.bias, group);
                for band in self.plane.bands() {
                    // SAFETY: the channel is within the input, the copy within the scratch memory.
                    unsafe { (self.fill)(&self.plane, addresses.x.at(channel * n_in), copy, &band, 0.0) };
                    let first = channel * n_out + band.start * self.rows.width;
                    let channel = Channel {
                        height: band.len(),
                        copy,
                        weights: addresses.w.at(group * n_taps),
                        // SAFETY: NULL, or a bias for each channel.
                        bias: if bias.is_null() { 0.0 } else { unsafe { *bias } },
                        z: Addresses::offset(addresses.z, first),
                        y: addresses.y.at(first),
                    };
                    // Few rows at a time of a long channel, so that the launch can end between them.
                    let of_row = (n_taps * self.rows.width).max(1);
                    let most = (ROWS_WORK / of_row).max(1);
                    for row in (0..channel.height).step_by(most) {
                        let height = most.min(channel.height - row);
                        pace.work(height * of_row)?;
                        let to = row * self.rows.width;
                        let rows = Channel {
                            height,
                            copy: channel.copy.wrapping_add(row * self.rows.step),
                            z: if channel.z.is_null() { channel.z } else { channel.z.wrapping_add(to) },
                            y: channel.y.wrapping_add(to),
                            ..channel
                        };
                        // SAFETY: the channel's planes are within the operands, and channels write disjoint ones.
                        unsafe { (self.channel)(&self.rows, rows) };
                    }
                }
            }
            Ok(())
        })
    }
}

/// A number of taps that the compiler knows, or none.
trait Taps: Copy + Send + Sync + 'static {
    const N: Option<usize>;
}

#[derive(Clone, Copy)]
struct Nine;
#[derive(Clone, Copy)]
struct TwentyFive;
#[derive(Clone, Copy)]
struct Any;

impl Taps for Nine {
    const N: Option<usize> = Some(9);
}
impl Taps for TwentyFive {
    const N: Option<usize> = Some(25);
}
impl Taps for Any {
    const N: Option<usize> = None;
}

dispatch! { fn channel_of<T: Taps>(rows: &Rows, channel: Channel) = channel_body }

/// # Safety
/// Each tap of each row begins `width` elements of the copy, which has slack for a vector behind the last;
/// there is a weight for each tap; `z`, unless NULL, and `y` have the rows.
#[inline(always)]
unsafe fn channel_body<A: Arith, T: Taps>(rows: &Rows, channel: Channel) {
    let taps = match T::N {
        // A length that is known unrolls the loop over the taps.
        Some(n) => &rows.taps[..n],
        None => &rows.taps[..],
    };
    for row in 0..channel.height {
        // SAFETY: the taps, weights and rows are those that the caller lends (# Safety), and `row` is one of them.
        unsafe { line::<A>(rows, taps, &channel, row) };
    }
}

/// A row.
///
/// # Safety
/// As [`channel_body`].
#[inline(always)]
unsafe fn line<A: Arith>(rows: &Rows, taps: &[usize], channel: &Channel, row: usize) {
    let line = channel.copy.wrapping_add(row * rows.step);
    let mut i = 0;
    let half = <A::Lanes as Lanes>::Half::N;
    // SAFETY: the columns are within the row, and the half vector's instructions are there.
    unsafe {
        while i + half < rows.width {
            block::<A, A::Lanes>(rows, taps, channel, line, row, i);
            i += A::Lanes::N;
        }
        if i < rows.width {
            block::<A, <A::Lanes as Lanes>::Half>(rows, taps, channel, line, row, i);
        }
    }
}

/// A vector of columns of a row from `i`, or as many as there are.
///
/// # Safety
/// As [`channel_body`]; rows are worked on from first to last, and columns too.
#[inline(always)]
unsafe fn block<A: Arith, L: Lanes>(
    rows: &Rows,
    taps: &[usize],
    channel: &Channel,
    line: *const f32,
    row: usize,
    i: usize,
) {
    // SAFETY: the processor has the instructions (# Safety).
    let mut sum = unsafe { L::splat(channel.bias) };
    for (t, tap) in taps.iter().enumerate() {
        // SAFETY: there is a weight for each tap, and the copy has slack for a whole vector behind the last
        // element.
        let (weight, values) =
            unsafe { (L::splat(*channel.weights.wrapping_add(t)), L::load(line.wrapping_add(tap + i))) };
        sum = weight.fma(values, sum);
    }
    // SAFETY: the rows are those that the caller lends, worked on from first to last, and `sum` is a vector from `i`
    // (# Safety).
    unsafe { put::<A, L>(rows, channel, row, i, sum) };
}

/// Finishes a vector of columns of a row and writes it, or as many as there are.
///
/// # Safety
/// As [`channel_body`]; what is behind the columns of this vector in the rows that follow is written later.
#[inline(always)]
unsafe fn put<A: Arith, L: Lanes>(rows: &Rows, channel: &Channel, row: usize, i: usize, mut sum: L) {
    let at = row * rows.width + i;
    // A whole vector may reach into the rows that follow, which are yet to be written, but not beyond the
    // plane, where another chunk may be at work.
    let rest = channel.height * rows.width - at;
    let n = if rest >= L::N { L::N } else { L::N.min(rows.width - i) };
    // SAFETY: the elements are within the plane.
    unsafe {
        if !channel.z.is_null() {
            sum = sum.add(read(channel.z.wrapping_add(at), n));
        }
        write(apply::<A, L>(rows.activation, sum), channel.y.wrapping_add(at), n);
    }
}

/// A square window whose extent the compiler knows.
trait Square: Copy + Send + Sync + 'static {
    const SIDE: usize;

    /// Adds what the window sees to a vector of each of [`TOGETHER`] rows. `line` is the first row of the first one's window,
    /// at the vector's first column; the others follow at `step`.
    ///
    /// # Safety
    /// As [`channel_body`].
    unsafe fn add<L: Lanes>(
        sums: &mut [L; TOGETHER],
        line: *const f32,
        step: usize,
        taps: &[usize],
        weights: *const f32,
    );
}

/// Rows of the output that are made together.
const TOGETHER: usize = 4;

/// A window: by row of the copy, the rows of the output that see it. They are written out, since sums that are counted by a loop do
/// not stay in registers.
macro_rules! square {
    ($name:ident, $side:literal, $($down:literal: [$($r:literal)*])*) => {
        #[derive(Clone, Copy)]
        struct $name;

        impl Square for $name {
            const SIDE: usize = $side;

            #[inline(always)]
            unsafe fn add<L: Lanes>(
                sums: &mut [L; TOGETHER],
                line: *const f32,
                step: usize,
                taps: &[usize],
                weights: *const f32,
            ) {
                $(for (across, tap) in taps[..$side].iter().enumerate() {
                    // SAFETY: the copy has slack for a whole vector behind the last element.
                    let values = unsafe { L::load(line.wrapping_add($down * step + tap)) };
                    $(
                        // SAFETY: there is a weight for each tap.
                        let weight = unsafe { L::splat(*weights.wrapping_add(($down - $r) * $side + across)) };
                        sums[$r] = weight.fma(values, sums[$r]);
                    )*
                })*
            }
        }
    };
}

square!(Three, 3, 0: [0] 1: [0 1] 2: [0 1 2] 3: [1 2 3] 4: [2 3] 5: [3]);
square!(Five, 5, 0: [0] 1: [0 1] 2: [0 1 2] 3: [0 1 2 3] 4: [0 1 2 3] 5: [1 2 3] 6: [2 3] 7: [3]);

dispatch! { fn overlapping_of<S: Square>(rows: &Rows, channel: Channel) = overlapping_body }

/// # Safety
/// As [`channel_body`]; the window is square, and from one output row to the next it moves by one of its rows.
#[inline(always)]
unsafe fn overlapping_body<A: Arith, S: Square>(rows: &Rows, channel: Channel) {
    let (n, half) = (<A::Lanes as Lanes>::N, <A::Lanes as Lanes>::Half::N);
    let across = rows.width / n * n;
    if channel.height < TOGETHER {
        for row in 0..channel.height {
            // SAFETY: the window's taps, weights and rows are those that the caller lends (# Safety), and `row` is one
            // of them.
            unsafe { line::<A>(rows, &rows.taps[..S::SIDE * S::SIDE], &channel, row) };
        }
        return;
    }
    for row in (0..channel.height).step_by(TOGETHER) {
        // The last rows are made together too, some of them again.
        let row = row.min(channel.height - TOGETHER);
        // From the last columns to the first: a vector at the end of a row writes beyond it into the start of the next
        // row, which comes later.
        // SAFETY: the columns are within the rows, and the half vector's instructions are there.
        unsafe {
            match rows.width - across {
                0 => {}
                rest if rest <= half => {
                    together::<A, <A::Lanes as Lanes>::Half, S>(rows, &channel, row, across);
                }
                _ => together::<A, A::Lanes, S>(rows, &channel, row, across),
            }
            for i in (0..across).step_by(n).rev() {
                together::<A, A::Lanes, S>(rows, &channel, row, i);
            }
        }
    }
}

/// A vector of columns from `i` of each of [`TOGETHER`] rows, or as many as there are.
///
/// # Safety
/// As [`overlapping_body`].
#[inline(always)]
unsafe fn together<A: Arith, L: Lanes, S: Square>(rows: &Rows, channel: &Channel, row: usize, i: usize) {
    let line = channel.copy.wrapping_add(row * rows.step + i);
    // SAFETY: the processor has the instructions, and the copy has the columns (# Safety); rows are written from first
    // to last.
    unsafe {
        let mut sums = [L::splat(channel.bias); TOGETHER];
        S::add(&mut sums, line, rows.step, &rows.taps, channel.weights);
        for (r, &sum) in sums.iter().enumerate() {
            put::<A, L>(rows, channel, row + r, i, sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::kernels::test_host::{Array, Value, run};
    use crate::kernels::testing::{Chance, isas};

    /// Small integers, so that sums are exact in any order.
    fn numbers(chance: &mut Chance, n: usize) -> Vec<f32> {
        (0..n).map(|_| chance.below(41) as f32 - 20.0).collect()
    }

    #[test]
    fn windows_of_planes_large_and_small_are_what_the_definition_says() {
        let mut chance = Chance::new(5);
        for i in 0..60 {
            // Some planes need several bands.
            let [height, width] = [0, 1].map(|_| [1, 2, 7, 14, 33, 100, 150][chance.below(7)]);
            let side = [1, 2, 3, 5][chance.below(4)];
            let (stride, dilation, pad) = (1 + chance.below(3), 1 + chance.below(2), chance.below(side));
            let (channels, is_pool) = (2, chance.below(3) == 0);
            let span = (side - 1) * dilation + 1;
            if height + 2 * pad < span || width + 2 * pad < span {
                continue;
            }
            let [rows, columns] = [height, width].map(|n| (n + 2 * pad - span) / stride + 1);
            let x = numbers(&mut chance, channels * height * width);
            let w = numbers(&mut chance, channels * side * side);
            let bias = numbers(&mut chance, channels);
            let z = numbers(&mut chance, channels * rows * columns);
            let mut expected = z.clone();
            for (at, y) in expected.iter_mut().enumerate() {
                let (channel, row, column) = (at / columns / rows, at / columns % rows, at % columns);
                let seen = (0..side * side).filter_map(|tap| {
                    let at = |out: usize, tap: usize| (out * stride + tap * dilation).checked_sub(pad);
                    let (row, column) = (at(row, tap / side)?, at(column, tap % side)?);
                    let is_inside = row < height && column < width;
                    is_inside.then(|| (tap, x[(channel * height + row) * width + column]))
                });
                *y = match is_pool {
                    true => seen.map(|(_, x)| x).fold(f32::NEG_INFINITY, f32::max),
                    false => {
                        let weights = &w[channel * side * side..];
                        (*y + bias[channel] + seen.map(|(tap, x)| weights[tap] * x).sum::<f32>()).max(0.0)
                    }
                };
            }
            let ints = |values: &[usize]| Value::Ints(values.iter().map(|&n| n as i64).collect());
            let mut attrs = vec![
                ("kernel_shape", ints(&[side, side])),
                ("strides", ints(&[stride, stride])),
                ("dilations", ints(&[dilation, dilation])),
                ("pads", ints(&[pad; 4])),
            ];
            let mut inputs = vec![Some(Array::of(&[1, channels, height, width], &x))];
            if !is_pool {
                attrs.push(("group", Value::Int(channels as i64)));
                attrs.push(("activation", Value::Text("Relu")));
                inputs.push(Some(Array::of(&[channels, 1, side, side], &w)));
                inputs.push(Some(Array::of(&[channels], &bias)));
                inputs.push(Some(Array::of(&[1, channels, rows, columns], &z)));
            }
            let op = if is_pool { "MaxPool" } else { "FusedConv" };
            for isa in isas() {
                let y = [Some(Array::empty::<f32>(&[1, channels, rows, columns]))];
                let found = run(isa, op, &attrs, &inputs, &y).expect(op);
                let found = found[0].as_ref().expect("a result").elements::<f32>();
                let what = format!("{i}: {op} of {height} x {width}, {side}, {stride}, {dilation}, {pad}");
                assert_eq!(found, expected, "{what}");
            }
        }
    }
}
