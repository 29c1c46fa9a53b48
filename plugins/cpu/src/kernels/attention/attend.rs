//! Attention: each query's mean of the values, weighted by how the keys answer it.
//!
//! A chunk is some queries of one head; it reads each key and value once for all of them. Arithmetic is in f32, or
//! f64 for a softmax that asks for it. ONNX defines the op as a function of simpler ones in the operands' type: with
//! operands of 16 bits what each of those would give is rounded here too, sums within a product excepted.
//!
//! Invariant: a key that a query may not see weighs 0, whatever it holds; a query that may see none gives zeros.

use crate::device::CpuDevice;
use crate::kernels::attention::op::{Attention, Rows};
use crate::kernels::attention::scores::dot;
use crate::kernels::geometry::strided::copy_run;
use crate::kernels::numbers::real::{Sink, Source};
use crate::stream::CpuStream;
use devbay_plugin_api::abi::BufferRef;
use devbay_plugin_api::sdk::*;

/// Queries of a chunk.
pub(crate) const QUERIES: usize = 16;

/// The operands of a launch.
pub(crate) struct Tensors {
    q: Source,
    keys: [Source; 2],
    values: [Source; 2],
    mask: Option<Source>,
    y: Sink,
    shown: Sink,
}

impl Launch<CpuDevice> for Attention {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        self.keep(operands);
        let tensors = self.tensors(operands);
        let counts = self.counts(operands);
        let workspace = SendPtr(operands.workspace_ptr::<f32>());
        let blocks = self.q.sequence.div_ceil(QUERIES);
        let n = self.batches * self.q.heads * blocks;
        self.host.parallel_for(n, 1, |range, slot| {
            let n = self.slot_scratch();
            // SAFETY: the workspace has room for each slot, and this slot's is its own.
            let scratch = unsafe { core::slice::from_raw_parts_mut(workspace.at(slot * n), n) };
            let mut pace = self.host.pace();
            for i in range {
                let (head, block) = (i / blocks, i % blocks);
                let queries = block * QUERIES..self.q.sequence.min((block + 1) * QUERIES);
                let (batch, head) = (head / self.q.heads, head % self.q.heads);
                let count = counts.get(batch).copied();
                self.queries(&tensors, scratch, [batch, head], queries, count, &mut pace)?;
            }
            Ok(())
        })
    }
}

impl Attention {
    /// Numbers that a slot needs: queries, results and scores of a chunk, and one key or value.
    pub(crate) fn slot_scratch(&self) -> usize {
        let row = self.q.size.max(self.v.size).max(1);
        let of_query = self.total.saturating_mul(2).saturating_add(self.q.size).saturating_add(self.v.size);
        // A size beyond all numbers is beyond all memory, which `prepare` asks for.
        (QUERIES.saturating_mul(of_query).saturating_add(row)).saturating_add(15) / 16 * 16
    }

    /// Writes the keys and the values of before and now, where they are wanted.
    pub(crate) fn keep(&self, operands: &Operands<'_>) {
        for (output, input, past) in [(1, 1, 4), (2, 2, 5)] {
            if operands.n_outputs() > output && operands.output_ref(output).addr != 0 {
                self.append(operands, output, input, past);
            }
        }
    }

    /// The operands of a launch.
    pub(crate) fn tensors(&self, operands: &Operands<'_>) -> Tensors {
        let source = |i: usize| match i < operands.n_inputs() {
            true => self.real.source(operands.input_ref(i)),
            false => self.real.source(&BufferRef::ABSENT),
        };
        Tensors {
            q: source(0),
            keys: [source(4), source(1)],
            values: [source(5), source(2)],
            mask: self.mask.map(|mask| mask.real.source(operands.input_ref(3))),
            y: self.real.sink(operands.output_ref(0)),
            shown: match operands.n_outputs() > 3 {
                true => self.real.sink(operands.output_ref(3)),
                false => self.real.sink(&BufferRef::ABSENT),
            },
        }
    }

    /// Returns the number of keys of each batch; empty if no operand gives it.
    pub(crate) fn counts<'o>(&self, operands: &'o Operands<'_>) -> &'o [i64] {
        if self.counted { operands.input::<i64>(6) } else { &[] }
    }

    /// Writes the keys or values of before and now, one after the other for each head.
    fn append(&self, operands: &Operands<'_>, output: usize, input: usize, past: usize) {
        let rows = if output == 1 { self.k } else { self.v };
        let bytes = rows.size * self.real.size();
        let target = operands.output_ptr::<u8>(output);
        for batch in 0..self.batches {
            for head in 0..rows.heads {
                let at = (batch * rows.heads + head) * self.total * bytes;
                if self.past > 0 {
                    let n = self.past * bytes;
                    let from = (batch * rows.heads + head) * n;
                    // SAFETY: `prepare` checked the extents of past, now and both together.
                    unsafe {
                        copy_run(
                            operands.input_ptr::<u8>(past).wrapping_add(from),
                            target.wrapping_add(at),
                            n,
                        );
                    };
                }
                for i in 0..rows.sequence {
                    let from = rows.at(batch, head, i) * self.real.size();
                    let to = target.wrapping_add(at + (self.past + i) * bytes);
                    // SAFETY: `prepare` checked the extents of now and of both together, and the row follows the
                    // earlier ones.
                    unsafe { copy_run(operands.input_ptr::<u8>(input).wrapping_add(from), to, bytes) };
                }
            }
        }
    }

    /// Reads the key or value at `j` of before and now.
    fn read(&self, from: &[Source; 2], rows: &Rows, batch: usize, head: usize, j: usize, to: &mut [f32]) {
        match j.checked_sub(self.past) {
            Some(j) => from[1].read(rows.at(batch, head, j), to),
            None => from[0].read(((batch * rows.heads + head) * self.past + j) * rows.size, to),
        }
    }

    /// Some queries of one head.
    ///
    /// # Errors
    /// CANCELLED if the run is to end.
    pub(crate) fn queries(
        &self,
        tensors: &Tensors,
        scratch: &mut [f32],
        [batch, head]: [usize; 2],
        queries: core::ops::Range<usize>,
        count: Option<i64>,
        pace: &mut Pace<'_>,
    ) -> Result<()> {
        let (size, of_value, total) = (self.q.size, self.v.size, self.total);
        let (q, rest) = scratch.split_at_mut(QUERIES * size);
        let (sums, rest) = rest.split_at_mut(QUERIES * of_value);
        let (scores, rest) = rest.split_at_mut(QUERIES * total);
        let (biases, row) = rest.split_at_mut(QUERIES * total);
        let n = queries.len();
        let shows = !tensors.shown.is_empty();
        for (k, i) in queries.clone().enumerate() {
            pace.work(4 * total)?;
            let q = &mut q[k * size..][..size];
            tensors.q.read(self.q.at(batch, head, i), q);
            q.iter_mut().for_each(|q| *q = (self.round)(*q * self.scales[0]));
            self.bias(tensors, [batch, head, i], count, &mut biases[k * total..][..total]);
        }
        let kv_head = head / self.group;
        for j in 0..total {
            pace.work(n * (size + 2))?;
            if !shows && (0..n).all(|k| biases[k * total + j] == f32::NEG_INFINITY) {
                continue;
            }
            self.read(&tensors.keys, &self.k, batch, kv_head, j, &mut row[..size]);
            row[..size].iter_mut().for_each(|k| *k = (self.round)(*k * self.scales[1]));
            for k in 0..n {
                scores[k * total + j] = (self.round)(dot(&q[k * size..][..size], &row[..size]));
            }
        }
        for (k, i) in queries.clone().enumerate() {
            pace.work(16 * total)?;
            let scores = &mut scores[k * total..][..total];
            let at = ((batch * self.q.heads + head) * self.q.sequence + i) * total;
            let show = |mode: i64, scores: &[f32]| {
                if shows && self.shown == mode {
                    for (j, &score) in scores.iter().enumerate() {
                        // SAFETY: the query is this chunk's own.
                        unsafe { tensors.shown.set(at + j, score.into()) };
                    }
                }
            };
            show(0, scores);
            if self.softcap > 0.0 {
                let capped = |score: f32| {
                    let bent = (self.round)((self.round)(score / self.softcap).tanh());
                    (self.round)(bent * self.softcap)
                };
                scores.iter_mut().for_each(|score| *score = capped(*score));
            }
            show(1, scores);
            let biases = &biases[k * total..][..total];
            for (score, &bias) in scores.iter_mut().zip(biases) {
                // Hidden scores may hold anything, NaN included.
                *score = if bias == f32::NEG_INFINITY { bias } else { (self.round)(*score + bias) };
            }
            show(2, scores);
            match biases.iter().all(|&bias| bias == f32::NEG_INFINITY) {
                // A query without visible keys. If all visible scores are minus infinity, the result is NaN.
                true => scores.fill(0.0),
                false => self.softmax.weights(scores),
            }
            scores.iter_mut().for_each(|score| *score = (self.round)(*score));
            show(3, scores);
        }
        sums.fill(0.0);
        for j in 0..total {
            pace.work(n * (of_value + 2))?;
            // A weight of 0 takes part: times an infinity it is NaN.
            let sees = |k: usize| biases[k * total + j] != f32::NEG_INFINITY;
            if !(0..n).any(sees) {
                continue;
            }
            self.read(&tensors.values, &self.v, batch, kv_head, j, &mut row[..of_value]);
            for k in (0..n).filter(|&k| sees(k)) {
                let weight = scores[k * total + j];
                for (sum, value) in sums[k * of_value..][..of_value].iter_mut().zip(&*row) {
                    *sum += weight * value;
                }
            }
        }
        let to = Rows { sequence: self.q.sequence, heads: self.q.heads, ..self.v };
        for (k, i) in queries.enumerate() {
            let at = to.at(batch, head, i);
            for (c, &sum) in sums[k * of_value..][..of_value].iter().enumerate() {
                // SAFETY: the query is this chunk's own.
                unsafe { tensors.y.set(at + c, sum.into()) };
            }
        }
        Ok(())
    }

    /// The key that stands where a query does.
    pub(crate) fn position(&self, i: usize, count: Option<i64>) -> i64 {
        let offset = match count {
            Some(count) => count.saturating_sub(self.q.sequence as i64),
            None => self.past as i64,
        };
        offset.saturating_add(i as i64)
    }

    /// Writes the addends of the scores of one query: minus infinity for keys that it does not see.
    pub(crate) fn bias(
        &self,
        tensors: &Tensors,
        [batch, head, i]: [usize; 3],
        count: Option<i64>,
        to: &mut [f32],
    ) {
        let position = self.position(i, count);
        let last = if self.is_causal { position } else { i64::MAX };
        let last = self.windows[1].map_or(last, |n| last.min(position.saturating_add(n)));
        let first = self.windows[0].map_or(0, |n| position.saturating_sub(n));
        let end = count.unwrap_or(i64::MAX);
        for (j, bias) in to.iter_mut().enumerate() {
            let key = j as i64;
            *bias = if key >= first && key <= last && key < end { 0.0 } else { f32::NEG_INFINITY };
        }
        let (Some(mask), Some(source)) = (&self.mask, &tensors.mask) else {
            return;
        };
        let at = batch * mask.strides[0] + head * mask.strides[1] + i * mask.strides[2];
        for (j, bias) in to.iter_mut().enumerate() {
            let said = if j < mask.n { source.get(at + j) as f32 } else { f32::NEG_INFINITY };
            *bias = match mask.keeps && j < mask.n {
                false => *bias + said,
                true if said != 0.0 => *bias,
                true => f32::NEG_INFINITY,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};
    use crate::kernels::testing::Chance;

    /// A softmax in f64, which is not what [`crate::kernels::attention::attend_panels`] takes.
    const DOUBLE: (&str, Value) = ("softmax_precision", Value::Int(11));

    /// Queries `[1, heads, 1, 2]` along the axes, keys and values of one head.
    fn attended(attrs: &[(&'static str, Value)], mask: Option<Array>) -> Result<Vec<f32>, String> {
        let inputs = [
            Some(Array::of(&[1, 2, 2, 1], &[0.0f32, 0.0, 0.0, 0.0])),
            Some(Array::of(&[1, 1, 3, 1], &[1.0f32, f32::INFINITY, 3.0])),
            Some(Array::of(&[1, 1, 3, 1], &[3.0f32, f32::NAN, 9.0])),
            mask,
        ];
        let output = [Some(Array::empty::<f32>(&[1, 2, 2, 1]))];
        let attrs: Vec<_> = attrs.iter().cloned().chain([DOUBLE]).collect();
        let found = run(Isa::Baseline, "Attention", &attrs, &inputs, &output)?;
        Ok(found[0].as_ref().expect("an output").elements::<f32>())
    }

    #[test]
    fn what_is_not_seen_may_hold_anything() {
        // The second key and value are NaN; two heads share them. Scores are 0: a mean of the visible values.
        let never = f32::NEG_INFINITY;
        let mask = Array::of(&[2, 3], &[0.0, never, 0.0, never, never, never]);
        assert_eq!(attended(&[], Some(mask)), Ok(vec![6.0, 0.0, 6.0, 0.0]));
        let short = Array::of(&[1], &[5.0f32]);
        assert_eq!(attended(&[], Some(short)), Ok(vec![3.0; 4]));
        let causal = attended(&[("is_causal", Value::Int(1))], None).expect("attends");
        assert!(causal[0] == 3.0 && causal[1].is_nan());
        let refused = |attrs: &[(&'static str, Value)], mask, words: &str| {
            let error = attended(attrs, mask).expect_err("refused");
            assert!(error.contains(words), "{error}");
        };
        refused(&[], Some(Array::of(&[3, 3], &[0.0f32; 9])), "a mask of [3, 3]");
        refused(&[("left_window_size", Value::Int(-2))], None, "left_window_size is -2");
        refused(&[("qk_matmul_output_mode", Value::Int(4))], None, "expected 0 to 3");
    }

    #[test]
    fn many_queries_agree_with_the_definition() {
        let (mut random, [n, keys, size]) = (Chance::new(7), [37, 45, 12]);
        let [q, k, v] = [n, keys, keys].map(|n| random.floats(n * size, 2.0));
        let inputs = [(&q, n), (&k, keys), (&v, keys)].map(|(x, n)| Some(Array::of(&[1, n, size], x)));
        let attrs = [("q_num_heads", Value::Int(1)), ("kv_num_heads", Value::Int(1)), DOUBLE];
        let output = [Some(Array::empty::<f32>(&[1, n, size]))];
        let found = run(Isa::Baseline, "Attention", &attrs, &inputs, &output).expect("attends");
        let found = found[0].as_ref().expect("an output").elements::<f32>();
        for i in 0..n {
            let score = |j: usize| -> f64 {
                let products = (0..size).map(|c| f64::from(q[i * size + c]) * f64::from(k[j * size + c]));
                (products.sum::<f64>() / (size as f64).sqrt()).exp()
            };
            let sum: f64 = (0..keys).map(score).sum();
            for c in 0..size {
                let expected: f64 = (0..keys).map(|j| score(j) / sum * f64::from(v[j * size + c])).sum();
                let found = f64::from(found[i * size + c]);
                assert!((found - expected).abs() < 1e-5, "{found} at {i}, {c}, expected {expected}");
            }
        }
    }
}
