//! Attention: each query's mean of the values, weighted by how the keys answer it.
//!
//! One kernel for all variants: heads that share keys and values, masks, windows, caches inside and outside. A chunk
//! is some queries of one head; it reads each key and value once for all of them. What is calculated is f32, or f64
//! for a softmax that asks for it; results of 16 bits are rounded once.
//!
//! Invariant: a key that a query may not see weighs 0, whatever it holds; a query that may see none gives zeros.

use super::MOVABLE;
use super::cost;
use super::extents::{expect_output, extents, room_for};
use super::real::{Real, Sink, Source};
use super::strided::copy_run;
use crate::device::CpuDevice;
use crate::stream::CpuStream;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[Kernel::new("Attention", 25, attention)
    .types(&[TypeVar::of(&[F32, F16, BF16]), TypeVar::of(MOVABLE), TypeVar::of(&[I64])])
    .operands(&[0, 0, 0, 1, 0, 0, 2], &[0, 0, 0, 0])
    .inputs(3, 7)
    .outputs(1, 4)
    .cost(cost)
    .doc("all variants; one softmax for each query")];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let q = extents(request.required_input(0)?)?;
    let k = extents(request.required_input(1)?)?;
    let of_q: usize = q.iter().product();
    let keys = if k.len() == 4 { k[2] } else { k.get(1).copied().unwrap_or(1) };
    Ok(cost::of(request, (of_q * keys * 4) as u64))
}

/// Queries of a chunk.
const QUERIES: usize = 16;

/// Where the rows of an operand lie: `[batch, heads, sequence, size]`, or with the sequence before the heads.
#[derive(Clone, Copy)]
struct Rows {
    heads: usize,
    sequence: usize,
    size: usize,
    heads_inside: bool,
}

impl Rows {
    fn of(found: &[usize], heads: i64) -> Option<(usize, Self)> {
        match *found {
            [batch, heads, sequence, size] => {
                Some((batch, Self { heads, sequence, size, heads_inside: false }))
            }
            [batch, sequence, hidden] => {
                let heads = usize::try_from(heads).ok().filter(|&n| n > 0 && hidden.is_multiple_of(n))?;
                Some((batch, Self { heads, sequence, size: hidden / heads, heads_inside: true }))
            }
            _ => None,
        }
    }

    /// The first element of a row.
    fn at(&self, batch: usize, head: usize, i: usize) -> usize {
        let row = match self.heads_inside {
            true => (batch * self.sequence + i) * self.heads + head,
            false => (batch * self.heads + head) * self.sequence + i,
        };
        row * self.size
    }
}

/// What a mask says: what is added to scores, or which are kept.
#[derive(Clone, Copy)]
struct Mask {
    real: Real,
    keeps: bool,
    /// Elements from one batch, head and query to the next: 0 where it is the same for all.
    strides: [usize; 3],
    /// Keys that it speaks of; what comes behind is not seen.
    n: usize,
}

struct Attention {
    host: Host,
    real: Real,
    batches: usize,
    q: Rows,
    k: Rows,
    v: Rows,
    past: usize,
    /// Keys of before and now.
    total: usize,
    /// Heads of queries for each head of keys.
    group: usize,
    mask: Option<Mask>,
    /// Whether the keys that are there are counted by an operand.
    counted: bool,
    is_causal: bool,
    windows: [Option<i64>; 2],
    scale: f32,
    softcap: f32,
    double: bool,
    /// What the fourth result shows.
    shown: i64,
}

fn attention(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let attrs = &request.attrs;
    let shapes = [0, 1, 2].map(|i| request.required_input(i).and_then(extents));
    let [q, k, v] = shapes;
    let (q, k, v) = (q?, k?, v?);
    let broken = || Error::invalid(format!("queries of {q:?}, keys of {k:?} and values of {v:?}"));
    let (of_q, of_kv) = (attrs.int("q_num_heads", 0)?, attrs.int("kv_num_heads", 0)?);
    let (batches, of_q) = Rows::of(&q, of_q).ok_or_else(broken)?;
    let (k_batches, of_k) = Rows::of(&k, of_kv).ok_or_else(broken)?;
    let (v_batches, of_v) = Rows::of(&v, of_kv).ok_or_else(broken)?;
    let fits = [k_batches, v_batches] == [batches; 2]
        && q.len() == k.len()
        && q.len() == v.len()
        && of_q.size == of_k.size
        && (of_k.heads, of_k.sequence) == (of_v.heads, of_v.sequence)
        && of_k.heads > 0
        && of_q.heads.is_multiple_of(of_k.heads);
    if !fits {
        return Err(broken());
    }
    let past = match (request.input(4), request.input(5)) {
        (None, None) => 0,
        (Some(key), Some(value)) => {
            let (key, value) = (extents(key)?, extents(value)?);
            let n = key.get(2).copied().unwrap_or(0);
            if key != [batches, of_k.heads, n, of_k.size] || value != [batches, of_k.heads, n, of_v.size] {
                return Err(Error::invalid(format!("past keys of {key:?} and values of {value:?}")));
            }
            n
        }
        _ => return Err(Error::invalid("past keys without past values, or the other way round")),
    };
    let total = past + of_k.sequence;
    match q.len() {
        4 => expect_output(request, 0, &[batches, of_q.heads, of_q.sequence, of_v.size])?,
        _ => expect_output(request, 0, &[batches, of_q.sequence, of_q.heads * of_v.size])?,
    }
    for (i, size) in [(1, of_k.size), (2, of_v.size)] {
        if request.output(i).is_some() {
            expect_output(request, i, &[batches, of_k.heads, total, size])?;
        }
    }
    if request.output(3).is_some() {
        expect_output(request, 3, &[batches, of_q.heads, of_q.sequence, total])?;
    }
    let counted = request.input(6).is_some();
    if counted && (extents(request.required_input(6)?)? != [batches] || past > 0) {
        return Err(Error::invalid("nonpad_kv_seqlen with past keys, or not one for each batch"));
    }
    let window = |name| match attrs.int(name, -1)? {
        -1 => Ok(None),
        n if n >= 0 => Ok(Some(n)),
        n => Err(Error::invalid(format!("{name} is {n}, expected at least -1"))),
    };
    let shown = attrs.int("qk_matmul_output_mode", 0)?;
    if !(0..4).contains(&shown) {
        return Err(Error::invalid(format!("qk_matmul_output_mode is {shown}, expected 0 to 3")));
    }
    // ONNX's numbers of f32, f16, f64 and bf16.
    let precision = attrs.int("softmax_precision", 1)?;
    if ![1, 10, 11, 16].contains(&precision) {
        return Err(Error::invalid(format!("softmax_precision is {precision}, expected 1, 10, 11 or 16")));
    }
    let default_scale = 1.0 / (of_q.size as f32).sqrt();
    let kernel = Attention {
        host: request.host,
        real: Real::of(request.required_input(0)?.dtype())?,
        batches,
        q: of_q,
        k: of_k,
        v: of_v,
        past,
        total,
        group: of_q.heads / of_k.heads,
        mask: mask(request, [batches, of_q.heads, of_q.sequence, total])?,
        counted,
        is_causal: attrs.int("is_causal", 0)? != 0,
        windows: [window("left_window_size")?, window("right_window_size")?],
        scale: attrs.float("scale", default_scale)?,
        softcap: attrs.float("softcap", 0.0)?,
        double: precision == 11,
        shown,
    };
    let n = kernel.slot_scratch().checked_mul(request.host.n_slots());
    room_for(n, size_of::<f32>())?;
    Ok(Prepared::new(kernel).with_workspace(n.unwrap_or(0) * size_of::<f32>(), 64))
}

/// The mask, which broadcasts to batch, heads, queries and keys.
fn mask(request: &PrepareRequest<'_, CpuDevice>, to: [usize; 4]) -> Result<Option<Mask>> {
    let Some(tensor) = request.input(3) else {
        return Ok(None);
    };
    let found = extents(tensor)?;
    let broken = || Error::invalid(format!("a mask of {found:?}, expected one for {to:?}"));
    let (&n, outer) = found.split_last().ok_or_else(broken)?;
    if outer.len() > 3 || n > to[3] {
        return Err(broken());
    }
    let (mut strides, mut stride) = ([0; 3], n);
    for (i, &extent) in outer.iter().enumerate().rev() {
        let axis = 3 - outer.len() + i;
        match extent {
            1 => {}
            extent if extent == to[axis] => strides[axis] = stride,
            _ => return Err(broken()),
        }
        stride *= extent;
    }
    let keeps = tensor.dtype() == BOOL;
    Ok(Some(Mask { real: Real::of(tensor.dtype())?, keeps, strides, n }))
}

/// The operands of a launch.
struct Tensors {
    q: Source,
    keys: [Source; 2],
    values: [Source; 2],
    mask: Option<Source>,
    y: Sink,
    shown: Sink,
}

impl Launch<CpuDevice> for Attention {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        for (output, input, past) in [(1, 1, 4), (2, 2, 5)] {
            if operands.n_outputs() > output && operands.output_ref(output).addr != 0 {
                self.append(operands, output, input, past);
            }
        }
        let source = |i: usize| match i < operands.n_inputs() {
            true => self.real.source(operands.input_ref(i)),
            false => self.real.source(&devbay_plugin_api::abi::BufferRef::ABSENT),
        };
        let tensors = Tensors {
            q: source(0),
            keys: [source(4), source(1)],
            values: [source(5), source(2)],
            mask: self.mask.map(|mask| mask.real.source(operands.input_ref(3))),
            y: self.real.sink(operands.output_ref(0)),
            shown: match operands.n_outputs() > 3 {
                true => self.real.sink(operands.output_ref(3)),
                false => self.real.sink(&devbay_plugin_api::abi::BufferRef::ABSENT),
            },
        };
        let counts = if self.counted { operands.input::<i64>(6) } else { &[] };
        let workspace = SendPtr(operands.workspace_ptr::<f32>());
        let blocks = self.q.sequence.div_ceil(QUERIES);
        let n = self.batches * self.q.heads * blocks;
        self.host.parallel_for(n, 1, |range, slot| {
            let n = self.slot_scratch();
            // SAFETY: the workspace has room for each slot, and this slot's is its own.
            let scratch = unsafe { core::slice::from_raw_parts_mut(workspace.at(slot * n), n) };
            for i in range {
                let (head, block) = (i / blocks, i % blocks);
                let queries = block * QUERIES..self.q.sequence.min((block + 1) * QUERIES);
                let (batch, head) = (head / self.q.heads, head % self.q.heads);
                let count = counts.get(batch).copied();
                self.queries(&tensors, scratch, [batch, head], queries, count);
            }
            Ok(())
        })
    }
}

impl Attention {
    /// Numbers that a slot needs: queries, results and scores of a chunk, and one key or value.
    fn slot_scratch(&self) -> usize {
        let row = self.q.size.max(self.v.size).max(1);
        (QUERIES * (self.q.size + self.v.size + 2 * self.total) + row).next_multiple_of(16)
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
                    // SAFETY: as above.
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
    fn queries(
        &self,
        tensors: &Tensors,
        scratch: &mut [f32],
        [batch, head]: [usize; 2],
        queries: core::ops::Range<usize>,
        count: Option<i64>,
    ) {
        let (size, of_value, total) = (self.q.size, self.v.size, self.total);
        let (q, rest) = scratch.split_at_mut(QUERIES * size);
        let (sums, rest) = rest.split_at_mut(QUERIES * of_value);
        let (scores, rest) = rest.split_at_mut(QUERIES * total);
        let (biases, row) = rest.split_at_mut(QUERIES * total);
        let n = queries.len();
        let shows = !tensors.shown.is_empty();
        for (k, i) in queries.clone().enumerate() {
            tensors.q.read(self.q.at(batch, head, i), &mut q[k * size..][..size]);
            self.bias(tensors, [batch, head, i], count, &mut biases[k * total..][..total]);
        }
        let kv_head = head / self.group;
        for j in 0..total {
            if !shows && (0..n).all(|k| biases[k * total + j] == f32::NEG_INFINITY) {
                continue;
            }
            self.read(&tensors.keys, &self.k, batch, kv_head, j, &mut row[..size]);
            for k in 0..n {
                scores[k * total + j] = dot(&q[k * size..][..size], &row[..size]) * self.scale;
            }
        }
        for (k, i) in queries.clone().enumerate() {
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
                scores.iter_mut().for_each(|score| *score = (*score / self.softcap).tanh() * self.softcap);
            }
            show(1, scores);
            for (score, &bias) in scores.iter_mut().zip(&biases[k * total..][..total]) {
                // What is not seen may hold anything, also what is no number.
                *score = if bias == f32::NEG_INFINITY { bias } else { *score + bias };
            }
            show(2, scores);
            if self.double {
                softmax::<true>(scores)
            } else {
                softmax::<false>(scores)
            }
            show(3, scores);
        }
        sums.fill(0.0);
        for j in 0..total {
            if (0..n).all(|k| scores[k * total + j] == 0.0) {
                continue;
            }
            self.read(&tensors.values, &self.v, batch, kv_head, j, &mut row[..of_value]);
            for k in (0..n).filter(|&k| scores[k * total + j] != 0.0) {
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
    }

    /// What is added to the scores of one query: minus infinity for keys that it does not see.
    fn bias(&self, tensors: &Tensors, [batch, head, i]: [usize; 3], count: Option<i64>, to: &mut [f32]) {
        let offset = match count {
            Some(count) => count.saturating_sub(self.q.sequence as i64),
            None => self.past as i64,
        };
        let position = offset.saturating_add(i as i64);
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

/// The sum of products, in eight chains.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; 8];
    let (a, b) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a.remainder().iter().zip(b.remainder()).map(|(x, y)| x * y).sum();
    for (a, b) in a.zip(b) {
        for (sum, (x, y)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += x * y;
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// Weights of scores; all 0 if every one is minus infinity.
fn softmax<const DOUBLE: bool>(scores: &mut [f32]) {
    let most =
        scores.iter().copied().fold(f32::NEG_INFINITY, |a, b| if a >= b || a.is_nan() { a } else { b });
    if most == f32::NEG_INFINITY {
        return scores.fill(0.0);
    }
    if DOUBLE {
        let exp = |score: f32| (f64::from(score) - f64::from(most)).exp();
        let sum: f64 = scores.iter().map(|&score| exp(score)).sum();
        scores.iter_mut().for_each(|score| *score = (exp(*score) / sum) as f32);
        return;
    }
    scores.iter_mut().for_each(|score| *score = (*score - most).exp());
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};
    use crate::kernels::testing::Chance;

    /// Queries `[1, heads, 1, 2]` along the axes, keys and values of one head.
    fn attended(attrs: &[(&'static str, Value)], mask: Option<Array>) -> Result<Vec<f32>, String> {
        let inputs = [
            Some(Array::of(&[1, 2, 2, 1], &[0.0f32, 0.0, 0.0, 0.0])),
            Some(Array::of(&[1, 1, 3, 1], &[1.0f32, f32::INFINITY, 3.0])),
            Some(Array::of(&[1, 1, 3, 1], &[3.0f32, f32::NAN, 9.0])),
            mask,
        ];
        let output = [Some(Array::empty::<f32>(&[1, 2, 2, 1]))];
        let found = run(Isa::Baseline, "Attention", attrs, &inputs, &output)?;
        Ok(found[0].as_ref().expect("an output").elements::<f32>())
    }

    #[test]
    fn what_is_not_seen_may_hold_anything() {
        // The second key and value are no numbers; two heads share them. Scores are 0: a mean of what is seen.
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
        let attrs = [("q_num_heads", Value::Int(1)), ("kv_num_heads", Value::Int(1))];
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
