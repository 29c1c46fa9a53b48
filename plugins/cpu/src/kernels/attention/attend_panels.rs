//! Attention on f32 by the micro-kernels of matrix products.
//!
//! The keys of each head are packed into panels, once in a launch. A chunk is some queries of one head: their scores
//! are products with the panels, a softmax runs over the rows, and products with the values give the result. Values are
//! read where they are, unless rows of them are no whole vectors.
//!
//! Invariant: that of [`crate::kernels::attention::attend`]. Weights of 0 do not hide values that are no numbers from a product, so that a
//! chunk with such a result, and with keys that some query may not see, is calculated there again. So is one whose mask has no
//! number for a key behind the last one that is seen: what is added there is no number, and makes all weights none.

use crate::device::CpuDevice;
use crate::isa::Isa;
use crate::kernels::attention::attend::{QUERIES, Tensors};
use crate::kernels::attention::op::{Attention, Rows};
use crate::kernels::geometry::strided;
use crate::kernels::normalisation::softmax;
use crate::kernels::product::micro::{Dst, KC, Left, Micro, NR, Right};
use crate::stream::CpuStream;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;
use std::ops::Range;

/// Queries of a chunk, at most.
const ROWS_MAX: usize = 16 * NR;
const _: () = assert!(ROWS_MAX <= 128, "a bit of a u128 for each");
/// Scores of a chunk, at most, unless a few rows have more: they stay in the second-level cache.
const SCORES_MAX: usize = 64 * 1024;

/// Addend of scores.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Bias {
    None,
    /// The mask's numbers, in f32 and for all keys.
    Mask,
    /// Numbers that [`Attention::bias`] gives.
    Any,
}

/// Keys or values of before, or of now: rows side by side.
#[derive(Clone, Copy)]
struct Part {
    start: *const f32,
    /// Elements from one row to the next.
    stride: usize,
    /// The keys that these are.
    first: usize,
    n: usize,
}

/// A node that is calculated so.
struct Panels {
    attention: Attention,
    micro: Micro,
    softmax: softmax::Body,
    bias: Bias,
    /// Queries of a chunk, and chunks of a head.
    rows: usize,
    n_blocks: usize,
    /// Panels of a head's keys.
    n_panels: usize,
    /// Elements of a row of values in whole vectors, and whether they must be copied for that.
    of_value: usize,
    is_ragged: bool,
    grain: usize,
}

/// Addresses of the operands, and of the parts of the workspace.
#[derive(Clone, Copy)]
struct Addresses {
    q: SendPtr<f32>,
    /// Before and now.
    keys: [SendPtr<f32>; 2],
    values: [SendPtr<f32>; 2],
    mask: SendPtr<f32>,
    y: SendPtr<f32>,
    packed_keys: SendPtr<f32>,
    packed_values: SendPtr<f32>,
    slots: SendPtr<f32>,
}

/// Returns whether the kernel of this file does it.
pub(crate) fn takes(attention: &Attention) -> bool {
    let Attention { q, v, batches, total, .. } = *attention;
    attention.is_single() && ![batches, total, q.heads, q.sequence, q.size, v.size].contains(&0)
}

/// The kernel, for what it [`takes`].
pub(crate) fn prepare(attention: Attention, isa: Isa) -> Result<Prepared> {
    let Attention { q, v, total, .. } = attention;
    let micro = Micro::of(isa);
    let rows_max = (SCORES_MAX / micro.padded(total) / NR * NR).clamp(NR, ROWS_MAX);
    let n_blocks = q.sequence.div_ceil(rows_max);
    let rows = q.sequence.div_ceil(n_blocks).next_multiple_of(NR);
    let flops = (Size::of(2 * rows.min(q.sequence)) * (q.size + v.size) * total).saturated();
    let panels = Panels {
        micro,
        softmax: softmax::softmax(isa),
        bias: attention.panels_bias(),
        rows,
        n_blocks: q.sequence.div_ceil(rows),
        n_panels: total.div_ceil(micro.mr),
        of_value: micro.padded(v.size),
        is_ragged: !v.size.is_multiple_of(micro.lanes),
        grain: (200_000 / flops.max(1)).max(1),
        attention,
    };
    let n = panels.workspace();
    Prepared::new(panels).with_room(n * size_of::<f32>(), 64)
}

impl Attention {
    /// Returns the addend of scores, as far as a loop over rows knows it.
    fn panels_bias(&self) -> Bias {
        let is_limited = self.is_causal || self.counted || self.windows != [None; 2];
        match self.mask {
            None if !is_limited => Bias::None,
            Some(mask) if !is_limited && mask.real.is_single() && mask.n == self.total => Bias::Mask,
            _ => Bias::Any,
        }
    }

    /// The first key that none of some queries sees, nor any behind it.
    fn end_of(&self, queries: &Range<usize>, count: Option<i64>) -> usize {
        let last = self.position(queries.end - 1, count);
        let limits = [
            self.is_causal.then_some(last),
            self.windows[1].map(|n| last.saturating_add(n)),
            count.map(|count| count.saturating_sub(1)),
        ];
        let last = limits.into_iter().flatten().min().unwrap_or(i64::MAX);
        usize::try_from(last.saturating_add(1)).unwrap_or(0).min(self.total)
    }
}

impl Rows {
    /// Elements from the row of one step to that of the next.
    fn stride(&self) -> usize {
        if self.heads_inside { self.heads * self.size } else { self.size }
    }
}

impl Panels {
    fn n_heads(&self) -> usize {
        self.attention.batches * self.attention.k.heads
    }

    fn of_keys(&self) -> usize {
        self.n_panels * self.micro.mr * self.attention.q.size
    }

    fn of_values(&self) -> usize {
        if self.is_ragged { self.attention.total * self.of_value } else { 0 }
    }

    /// Numbers that a slot needs: scores, results that are no whole vectors, and what is added to one row.
    fn per_slot(&self) -> usize {
        let results = if self.is_ragged { self.rows * self.of_value } else { 0 };
        let here = self.rows * self.micro.padded(self.attention.total) + results + self.attention.total;
        // Chunks may be calculated again by the other kernel.
        here.max(self.attention.slot_scratch()).next_multiple_of(16)
    }

    fn workspace(&self) -> Size {
        let of_head = (Size::of(self.of_keys()) + self.of_values()).next_multiple_of(16);
        of_head * self.n_heads() + Size::of(self.per_slot()) * self.attention.host.n_slots()
    }

    /// The rows of before and of now that a head has.
    fn parts(&self, from: &[SendPtr<f32>; 2], rows: &Rows, [batch, head]: [usize; 2]) -> [Part; 2] {
        let Attention { past, total, .. } = self.attention;
        let before = from[0].0.wrapping_add((batch * rows.heads + head) * past * rows.size);
        let now = from[1].0.wrapping_add(rows.at(batch, head, 0));
        [
            Part { start: before, stride: rows.size, first: 0, n: past },
            Part { start: now, stride: rows.stride(), first: past, n: total - past },
        ]
    }

    /// Packs a panel of keys: for each component, the keys side by side, zeros up to whole vectors.
    ///
    /// # Safety
    /// The addresses are the launch's, and no other thread works on this panel.
    unsafe fn pack_keys(&self, addresses: &Addresses, of: [usize; 2], panel: usize) {
        let Attention { k, total, .. } = self.attention;
        let mr = self.micro.mr;
        let first = panel * mr;
        let end = total.min(first + mr);
        let at = (of[0] * k.heads + of[1]) * self.of_keys() + first * k.size;
        let to = addresses.packed_keys.0.wrapping_add(at);
        for part in self.parts(&addresses.keys, &k, of) {
            let (low, high) = (first.max(part.first), end.min(part.first + part.n));
            if low >= high {
                continue;
            }
            let from = part.start.wrapping_add((low - part.first) * part.stride);
            // SAFETY: the part has these keys, and the panel a column for each.
            unsafe {
                strided::transpose(from, part.stride, to.wrapping_add(low - first), mr, [k.size, high - low]);
            };
        }
        let n = end - first;
        for i in 0..k.size {
            // SAFETY: the panel has `mr` columns for each component.
            unsafe { to.wrapping_add(i * mr + n).write_bytes(0, self.micro.padded(n) - n) };
        }
    }

    /// Copies the values of a head, zeros up to whole vectors behind each.
    ///
    /// # Safety
    /// The addresses are the launch's, and no other thread works on this head.
    unsafe fn pack_values(&self, addresses: &Addresses, of: [usize; 2]) {
        let v = &self.attention.v;
        let to = addresses.packed_values.0.wrapping_add((of[0] * v.heads + of[1]) * self.of_values());
        for part in self.parts(&addresses.values, v, of) {
            for i in 0..part.n {
                let to = to.wrapping_add((part.first + i) * self.of_value);
                // SAFETY: the part has this row, and the copy room for it.
                unsafe {
                    std::ptr::copy_nonoverlapping(part.start.wrapping_add(i * part.stride), to, v.size);
                    to.wrapping_add(v.size).write_bytes(0, self.of_value - v.size);
                }
            }
        }
    }

    /// Some queries of one head.
    ///
    /// # Errors
    /// CANCELLED if the run is to end.
    ///
    /// # Safety
    /// The addresses are the launch's, with packed keys and values; no other thread works on these queries or in this
    /// slot's scratch memory.
    unsafe fn chunk(
        &self,
        tensors: &Tensors,
        addresses: &Addresses,
        scratch: *mut f32,
        of: [usize; 2],
        queries: Range<usize>,
        count: Option<i64>,
    ) -> Result<()> {
        let attention = &self.attention;
        let mut pace = attention.host.pace();
        let [batch, head] = of;
        let n_keys = attention.end_of(&queries, count);
        let stride = self.micro.padded(n_keys);
        // SAFETY: the scratch has room for as many scores, and behind them for what follows.
        let scores = unsafe { std::slice::from_raw_parts_mut(scratch, queries.len() * stride) };
        let rest = scratch.wrapping_add(self.rows * self.micro.padded(attention.total));
        // SAFETY: the addresses are the launch's, and queries and scratch are this chunk's own (# Safety).
        unsafe { self.scores(addresses, of, &queries, n_keys, scores, &mut pace)? };
        let mut is_hidden = n_keys < attention.total;
        let mut has_nan_beyond = false;
        // Queries without visible keys, a bit each: a chunk has fewer than 128.
        let mut blind = 0u128;
        if self.bias == Bias::None {
            scores.chunks_exact_mut(stride.max(1)).for_each(|row| row[n_keys..].fill(f32::NEG_INFINITY));
        } else {
            // SAFETY: the scratch has room for a row behind the scores, where results come later.
            let row = unsafe { std::slice::from_raw_parts_mut(rest, attention.total) };
            for (i, scores) in scores.chunks_exact_mut(stride.max(1)).enumerate() {
                let (scores, beyond) = scores.split_at_mut(n_keys);
                let biases: &[f32] = match attention.mask.filter(|_| self.bias == Bias::Mask) {
                    Some(mask) => {
                        let steps = [batch, head, queries.start + i].into_iter().zip(mask.strides);
                        let at: usize = steps.map(|(i, stride)| i * stride).sum();
                        // SAFETY: `prepare` checked the mask's extents.
                        unsafe { std::slice::from_raw_parts(addresses.mask.at(at), n_keys) }
                    }
                    None => {
                        attention.bias(tensors, [batch, head, queries.start + i], count, row);
                        has_nan_beyond |= row[n_keys..].iter().any(|bias| bias.is_nan());
                        &row[..n_keys]
                    }
                };
                let mut n_hidden = 0;
                for (score, &bias) in scores.iter_mut().zip(biases) {
                    let is_hidden = bias == f32::NEG_INFINITY;
                    // Hidden scores may hold anything, NaN included.
                    *score = if is_hidden { bias } else { *score + bias };
                    n_hidden += u32::from(is_hidden);
                }
                beyond.fill(f32::NEG_INFINITY);
                is_hidden |= n_hidden > 0;
                if n_hidden as usize == n_keys {
                    blind |= 1 << i;
                }
            }
        }
        pace.work(16 * scores.len())?;
        // SAFETY: the rows are the scores', in place.
        unsafe {
            (self.softmax)(
                scores.as_ptr(),
                scores.as_mut_ptr(),
                &softmax::Plan::of_rows(stride),
                0..queries.len(),
            );
        };
        for i in (0..queries.len()).filter(|i| blind >> i & 1 == 1) {
            scores[i * stride..][..stride].fill(0.0);
        }
        // SAFETY: the addresses are the launch's, and queries and scratch are this chunk's own (# Safety).
        let is_finite = unsafe { self.results(addresses, of, &queries, n_keys, scores, rest)? };
        if has_nan_beyond || is_hidden && !is_finite {
            // SAFETY: the scratch is the slot's own, with room for the other kernel; the scores are used up.
            let scratch = unsafe { std::slice::from_raw_parts_mut(scratch, attention.slot_scratch()) };
            for start in queries.clone().step_by(QUERIES) {
                let queries = start..queries.end.min(start + QUERIES);
                attention.queries(tensors, scratch, of, queries, count, &mut pace)?;
            }
        }
        Ok(())
    }

    /// The products of some queries with the keys.
    ///
    /// # Safety
    /// As of [`Self::chunk`].
    unsafe fn scores(
        &self,
        addresses: &Addresses,
        of: [usize; 2],
        queries: &Range<usize>,
        n_keys: usize,
        scores: &mut [f32],
        pace: &mut Pace<'_>,
    ) -> Result<()> {
        let Attention { q, k, group, scales, .. } = self.attention;
        let (mr, stride) = (self.micro.mr, self.micro.padded(n_keys));
        let packed = (of[0] * k.heads + of[1] / group) * self.of_keys();
        for first in (0..n_keys).step_by(mr) {
            pace.work(mr * q.size * queries.len())?;
            let m = self.micro.padded(mr.min(n_keys - first));
            let panel = addresses.packed_keys.0.wrapping_add(packed + first * q.size);
            for k0 in (0..q.size).step_by(KC) {
                for row in (0..queries.len()).step_by(NR) {
                    let of_query = q.at(of[0], of[1], queries.start + row) + k0;
                    let right = Right {
                        start: addresses.q.0.wrapping_add(of_query),
                        k_stride: 1,
                        row_stride: q.stride() as isize,
                    };
                    let start = scores.as_mut_ptr().wrapping_add(row * stride + first);
                    let dst = Dst { start, stride, scale: scales[0] * scales[1], accumulate: k0 > 0 };
                    let left = Left { start: panel.wrapping_add(k0 * mr), stride: mr };
                    let n = NR.min(queries.len() - row);
                    // SAFETY: `m` is whole vectors; the panel and the queries have as many components from `k0` on;
                    // rows of scores are whole vectors.
                    unsafe { self.micro.tile(m, n, KC.min(q.size - k0), left, right, dst) };
                }
            }
        }
        Ok(())
    }

    /// The means of the values, weighted; gives whether they are finite.
    ///
    /// # Safety
    /// As of [`Self::chunk`]; `results` has room for a chunk's, if rows of values are no whole vectors.
    unsafe fn results(
        &self,
        addresses: &Addresses,
        of: [usize; 2],
        queries: &Range<usize>,
        n_keys: usize,
        weights: &[f32],
        results: *mut f32,
    ) -> Result<bool> {
        let mut pace = self.attention.host.pace();
        let Attention { q, v, group, total, .. } = self.attention;
        let of_kv = [of[0], of[1] / group];
        let (mr, of_weights) = (self.micro.mr, self.micro.padded(n_keys));
        let to = Rows { sequence: q.sequence, heads: q.heads, ..v };
        let y = addresses.y.0.wrapping_add(to.at(of[0], of[1], queries.start));
        let (dst, dst_stride) = if self.is_ragged { (results, self.of_value) } else { (y, to.stride()) };
        let copies = (of_kv[0] * v.heads + of_kv[1]) * self.of_values();
        let copied = addresses.packed_values.0.wrapping_add(copies);
        let copied = Part { start: copied, stride: self.of_value, first: 0, n: total };
        let parts = match self.is_ragged {
            true => [copied, Part { n: 0, ..copied }],
            false => self.parts(&addresses.values, &v, of_kv),
        };
        if n_keys == 0 {
            for row in 0..queries.len() {
                // SAFETY: the row is this chunk's, and a 0 of floats is a 0 of bits.
                unsafe { dst.wrapping_add(row * dst_stride).write_bytes(0, v.size) };
            }
        }
        for c in (0..self.of_value).step_by(mr) {
            let m = mr.min(self.of_value - c);
            for part in parts {
                let n = part.n.min(n_keys.saturating_sub(part.first));
                for k0 in (0..n).step_by(KC) {
                    pace.work(mr * KC.min(n - k0) * queries.len())?;
                    for row in (0..queries.len()).step_by(NR) {
                        let of_row = row * of_weights + part.first + k0;
                        let right = Right {
                            start: weights.as_ptr().wrapping_add(of_row),
                            k_stride: 1,
                            row_stride: of_weights as isize,
                        };
                        let left = Left {
                            start: part.start.wrapping_add(k0 * part.stride + c),
                            stride: part.stride,
                        };
                        let start = dst.wrapping_add(row * dst_stride + c);
                        let accumulate = part.first + k0 > 0;
                        let dst = Dst { start, stride: dst_stride, scale: 1.0, accumulate };
                        // SAFETY: `m` is whole vectors of rows of values, and of results; there are as many weights.
                        unsafe {
                            let n_rows = NR.min(queries.len() - row);
                            self.micro.tile(m, n_rows, KC.min(n - k0), left, right, dst);
                        };
                    }
                }
            }
        }
        let mut is_finite = true;
        for row in 0..queries.len() {
            // SAFETY: the chunk's results, written above.
            let found = unsafe { std::slice::from_raw_parts(dst.wrapping_add(row * dst_stride), v.size) };
            // If sum * 0 != 0, some term is infinite or NaN.
            is_finite &= found.iter().map(|x| x * 0.0).sum::<f32>() == 0.0;
            if self.is_ragged {
                let y = y.wrapping_add(row * to.stride());
                // SAFETY: the query is this chunk's own, and the results are elsewhere.
                unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), y, v.size) };
            }
        }
        Ok(is_finite)
    }
}

impl Launch<CpuDevice> for Panels {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let attention = &self.attention;
        let Attention { host, batches, q, k, .. } = *attention;
        attention.keep(operands);
        let tensors = attention.tensors(operands);
        let counts = attention.counts(operands);
        let input = |i: usize| match i < operands.n_inputs() && operands.input_ref(i).addr != 0 {
            true => SendPtr(operands.input_ptr::<f32>(i).cast_mut()),
            false => SendPtr(std::ptr::null_mut()),
        };
        let workspace = SendPtr(operands.workspace_ptr::<f32>());
        let packed_values = self.n_heads() * self.of_keys();
        let slots = self.n_heads() * (self.of_keys() + self.of_values()).next_multiple_of(16);
        let addresses = Addresses {
            q: input(0),
            keys: [input(4), input(1)],
            values: [input(5), input(2)],
            mask: input(3),
            y: SendPtr(operands.output_ptr(0)),
            packed_keys: workspace,
            packed_values: SendPtr(workspace.at(packed_values)),
            slots: SendPtr(workspace.at(slots)),
        };
        let of_head = |head: usize| [head / k.heads, head % k.heads];
        let grain = (20_000 / (self.micro.mr * q.size)).max(1);
        host.parallel_for(self.n_heads() * self.n_panels, grain, |range, _| {
            for i in range {
                // SAFETY: the addresses are this launch's, and each panel is packed once.
                unsafe { self.pack_keys(&addresses, of_head(i / self.n_panels), i % self.n_panels) };
            }
            Ok(())
        })?;
        if self.is_ragged {
            host.parallel_for(self.n_heads(), (20_000 / self.of_values()).max(1), |range, _| {
                for i in range {
                    // SAFETY: the addresses are this launch's, and each head is packed once.
                    unsafe { self.pack_values(&addresses, of_head(i)) };
                }
                Ok(())
            })?;
        }
        host.parallel_for(batches * q.heads * self.n_blocks, self.grain, |range, slot| {
            let scratch = addresses.slots.at(slot * self.per_slot());
            for i in range {
                let (head, block) = (i / self.n_blocks, i % self.n_blocks);
                let queries = block * self.rows..q.sequence.min((block + 1) * self.rows);
                let of = [head / q.heads, head % q.heads];
                let count = counts.get(of[0]).copied();
                // SAFETY: the addresses are this launch's, chunks are apart, and a slot's scratch is its own.
                unsafe { self.chunk(&tensors, &addresses, scratch, of, queries, count)? };
            }
            Ok(())
        })
    }
}

#[cfg(test)]
#[path = "attend_panels_tests.rs"]
mod tests;
