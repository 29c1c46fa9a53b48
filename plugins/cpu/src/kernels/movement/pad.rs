//! Pad: a tensor with a border around it, constant or made of its own elements.
//!
//! A negative pad removes elements; they are removed first, and the border is made of what is left. The
//! last axis that has a border is walked in three pieces, of which the middle one is a plain copy; each
//! axis outside it has a table from its positions in the output to those in the input.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{axis, element_size, expect_output, extents, host_ints, row_major};
use crate::kernels::geometry::rows::{OUTSIDE, Rows};
use crate::kernels::geometry::strided::{GRAIN_BYTES, copy_run, fill};
use crate::kernels::types::MOVABLE;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::reserve;
use devbay_plugin_api::sdk::*;
use std::ops::Range;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor("Pad", 21, prepare)
    .types(&[TypeVar::of(MOVABLE), TypeVar::of(&[I64]), TypeVar::of(&[I64, I32])])
    .cost(cost::moved)
    .doc("modes constant, reflect, edge and wrap")];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Constant,
    Reflect,
    Edge,
    Wrap,
}

/// Content of the positions of one axis of the output.
struct Border {
    /// The position of the input for each of the output; None for the constant.
    sources: Vec<Option<usize>>,
    /// The positions of the output that show the input in its own order.
    inside: Range<usize>,
}

type PadFn = fn(&Pad, *const u8, *const u8, *mut u8) -> Result<()>;

struct Pad {
    host: Host,
    /// Everything outside the last axis that has a border.
    rows: Rows,
    /// Along that axis: the byte of the input for each position, or [`OUTSIDE`].
    row: Vec<usize>,
    inside: Range<usize>,
    /// Bytes of one position of that axis.
    run: usize,
    /// True if the border is one value, and not made of elements.
    constant: bool,
    /// True if that value is input 2.
    value: bool,
    body: PadFn,
}

/// Name of the memory that the kernel takes.
const TABLE: &str = "a table of positions";

fn prepare(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let data = request.required_input(0)?;
    let size = element_size(data.dtype());
    let from = extents(data)?;
    let mode = match request.attrs.string("mode", "constant")? {
        "constant" => Mode::Constant,
        "reflect" => Mode::Reflect,
        "edge" => Mode::Edge,
        "wrap" => Mode::Wrap,
        mode => return Err(Error::invalid(format!("unknown mode {mode}"))),
    };
    let borders = borders(request, mode, &from)?;
    let to: Vec<usize> = borders.iter().map(|border| border.sources.len()).collect();
    expect_output(request, 0, &to)?;

    let padded = |i: &usize| borders[*i].inside != (0..from[*i]) || to[*i] != from[*i];
    let last = (0..from.len()).rev().find(padded);
    let last = last.unwrap_or(from.len().saturating_sub(1));
    let strides = row_major(&from);
    let in_bytes = |i: usize| -> Result<Vec<usize>> {
        let stride = strides[i] as usize * size;
        let bytes = |source: &Option<usize>| source.map_or(OUTSIDE, |at| at * stride);
        Ok(reserve::collected(borders[i].sources.iter().map(bytes), TABLE)?)
    };
    // A scalar is one position of an axis that it does not have.
    let (row, inside) = match borders.get(last) {
        Some(border) => (in_bytes(last)?, border.inside.clone()),
        None => (vec![0], 0..1),
    };
    let inner: usize = from.get(last + 1..).unwrap_or_default().iter().product();
    Ok(Prepared::new(Pad {
        host: request.host,
        rows: Rows::new((0..last).map(in_bytes).collect::<Result<_>>()?),
        row,
        inside,
        run: inner * size,
        constant: mode == Mode::Constant,
        value: request.input(2).is_some_and(|value| value.n_elements() > 0),
        body: match size {
            1 => pad::<u8>,
            2 => pad::<u16>,
            4 => pad::<u32>,
            8 => pad::<u64>,
            _ => {
                return Err(Error::unsupported(format!("elements of {size} bytes")));
            }
        },
    }))
}

/// The border of each axis.
fn borders(request: &PrepareRequest<'_, CpuDevice>, mode: Mode, from: &[usize]) -> Result<Vec<Border>> {
    let pads = host_ints(request, 1)?.ok_or_else(|| Error::invalid("pads are missing"))?;
    let axes = match host_ints(request, 3)? {
        Some(axes) => axes.iter().map(|&i| axis(i, from.len())).collect::<Result<_>>()?,
        None => (0..from.len()).collect::<Vec<_>>(),
    };
    if pads.len() != 2 * axes.len() {
        return Err(Error::invalid(format!(
            "{} pads for {} axes, expected two for each",
            pads.len(),
            axes.len()
        )));
    }
    let mut amounts = vec![(0, 0); from.len()];
    for (i, &axis) in axes.iter().enumerate() {
        amounts[axis] = (pads[i], pads[axes.len() + i]);
    }
    from.iter().zip(amounts).map(|(&n, (before, after))| border(mode, n, before, after)).collect()
}

/// The border of an axis of `n` elements.
fn border(mode: Mode, n: usize, before: i64, after: i64) -> Result<Border> {
    let n = n as i64;
    // Pads at the ends of i64 would overflow a sum.
    let to = i64::try_from(i128::from(n) + i128::from(before) + i128::from(after)).unwrap_or(i64::MAX);
    // The part of the input that a negative pad leaves.
    let (first, end) = (before.saturating_neg().clamp(0, n), n - after.saturating_neg().clamp(0, n));
    let kept = end - first;
    let broken = || Error::invalid(format!("pads of {before} and {after} in mode {mode:?} for {n} elements"));
    if to < 0 || kept < 0 || (kept == 0 && to > 0 && mode != Mode::Constant) {
        return Err(broken());
    }
    let source = |at: i64| {
        let at = at - before.max(0);
        let kept_at = match mode {
            _ if (0..kept).contains(&at) => at,
            Mode::Constant => return None,
            Mode::Edge => at.clamp(0, kept - 1),
            Mode::Wrap => at.rem_euclid(kept),
            // Longer pads go forth and back as often as it takes; one element is its own mirror.
            Mode::Reflect => {
                let period = (2 * (kept - 1)).max(1);
                let phase = at.rem_euclid(period);
                phase.min(period - phase)
            }
        };
        Some((first + kept_at.min(kept - 1)) as usize)
    };
    let inside = before.max(0).min(to);
    Ok(Border {
        sources: {
            let mut sources = reserve::with_capacity(to as usize, TABLE)?;
            sources.extend((0..to).map(source));
            sources
        },
        inside: inside as usize..(inside + kept).min(to) as usize,
    })
}

impl Launch<CpuDevice> for Pad {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let value = match self.value {
            true => operands.input_ptr(2),
            false => core::ptr::null(),
        };
        (self.body)(self, operands.input_ptr(0), value, operands.output_ptr(0))
    }
}

fn pad<U: Element + Default + Sync>(
    pad: &Pad,
    data: *const u8,
    value: *const u8,
    output: *mut u8,
) -> Result<()> {
    let value = match value.is_null() {
        true => U::default(),
        // SAFETY: the host lends one element there.
        false => unsafe { value.cast::<U>().read_unaligned() },
    };
    let (data, output) = (SendPtr(data.cast_mut()), SendPtr(output));
    let (n, run) = (pad.row.len(), pad.run);
    let units = run / size_of::<U>();
    let grain = (GRAIN_BYTES / run.max(1)).max(1);
    let value_for = |target: *mut u8, positions: usize| {
        // SAFETY: the callers below name positions of the output, which they alone write.
        unsafe { fill(target.cast::<U>(), positions * units, value) };
    };
    // What rows with a constant border are made of, for those that are made at once: many have a few elements only.
    let whole = pad.constant && !pad.inside.is_empty();
    let from = if whole { pad.row[pad.inside.start] } else { 0 };
    let [before, inside, after] =
        [pad.inside.start, pad.inside.len(), n - pad.inside.end.min(n)].map(|positions| positions * run);
    // Chunks may begin and end within a row: one long row is shared out too.
    pad.host.parallel_for(pad.rows.len() * n, grain, |range, _| {
        let rows = range.start / n..range.end.div_ceil(n);
        pad.rows.each(rows, |row, start| {
            let first = range.start.max(row * n) - row * n;
            let end = range.end.min((row + 1) * n) - row * n;
            if whole && start != OUTSIDE && end - first == n {
                let target = output.at(row * n * run);
                // SAFETY: the row is this chunk's, and its parts are as long as the tables say, whose extents were checked.
                unsafe {
                    fill(target.cast::<U>(), before / size_of::<U>(), value);
                    copy_run(data.at(start + from), target.add(before), inside);
                    fill(target.add(before + inside).cast::<U>(), after / size_of::<U>(), value);
                }
                return;
            }
            let target = |position: usize| output.at((row * n + position) * run);
            if start == OUTSIDE {
                value_for(target(first), end - first);
                return;
            }
            for side in [first..end.min(pad.inside.start), first.max(pad.inside.end)..end] {
                if pad.constant {
                    value_for(target(side.start), side.len());
                    continue;
                }
                for position in side {
                    let source = data.at(start + pad.row[position]);
                    // SAFETY: the tables name positions of the input and of the output, whose extents
                    // were checked, and chunks write positions of their own.
                    unsafe { copy_run(source, target(position), run) };
                }
            }
            let inside = first.max(pad.inside.start)..end.min(pad.inside.end);
            if !inside.is_empty() {
                let source = data.at(start + pad.row[inside.start]);
                // SAFETY: the positions inside follow each other on both sides, whose extents were checked; chunks
                // write their own.
                unsafe { copy_run(source, target(inside.start), inside.len() * run) };
            }
        });
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_finds_its_elements() {
        let check = |mode, n, before, after, expected: &[i64]| {
            let border = border(mode, n, before, after).expect("a border");
            let found: Vec<i64> = border.sources.iter().map(|s| s.map_or(-1, |s| s as i64)).collect();
            assert_eq!(found, expected, "{mode:?} {n} {before} {after}");
            for position in border.inside.clone() {
                let first = border.sources[border.inside.start];
                assert_eq!(border.sources[position], first.map(|f| f + position - border.inside.start));
            }
        };
        check(Mode::Constant, 3, 2, 1, &[-1, -1, 0, 1, 2, -1]);
        check(Mode::Constant, 3, -1, 1, &[1, 2, -1]);
        check(Mode::Constant, 0, 1, 1, &[-1, -1]);
        check(Mode::Constant, 3, -4, 3, &[-1, -1]);
        check(Mode::Edge, 3, 2, 1, &[0, 0, 0, 1, 2, 2]);
        check(Mode::Reflect, 3, 4, 3, &[0, 1, 2, 1, 0, 1, 2, 1, 0, 1]);
        check(Mode::Reflect, 1, 2, 1, &[0, 0, 0, 0]);
        check(Mode::Reflect, 4, -1, 2, &[1, 2, 3, 2, 1]);
        check(Mode::Wrap, 3, 4, 2, &[2, 0, 1, 2, 0, 1, 2, 0, 1]);
        assert!(border(Mode::Edge, 0, 1, 0).is_err());
        assert!(border(Mode::Constant, 3, -2, -2).is_err());
    }
}
