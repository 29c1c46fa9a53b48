//! LinearAttention: attention whose memory of what came before is one matrix for each head.
//!
//! The matrix is kept in f32 in the workspace while the tokens pass; tokens depend on each other, heads do not.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, extents};
use crate::kernels::numbers::real::{Real, Sink, Source};
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

const T: &[DType] = &[F32, F16, BF16];

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor("LinearAttention", 27, linear_attention)
    .types(&[TypeVar::of(T), TypeVar::of(T)])
    .cost(cost)];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let k = extents(request.required_input(1)?)?;
    let n = request.attrs.int("kv_num_heads", 1)?.max(1) as usize;
    cost::per_output(request, (6 * k.get(2).copied().unwrap_or(1) / n) as u64)
}

struct LinearAttention {
    host: Host,
    real: Real,
    state: Real,
    batches: usize,
    tokens: usize,
    heads: usize,
    /// Heads of queries for each head of keys.
    group: usize,
    /// Elements of a key and of a value.
    sizes: [usize; 2],
    /// Numbers of decay for each head, and of beta for each token; None where there is none.
    decays: Option<usize>,
    betas: Option<usize>,
    scale: f32,
}

fn linear_attention(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let attrs = &request.attrs;
    let count = |name| match usize::try_from(attrs.int(name, 0)?) {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(Error::invalid(format!("{name} is missing, or not above 0"))),
    };
    let (of_q, heads) = (count("q_num_heads")?, count("kv_num_heads")?);
    let shapes = [0, 1, 2].map(|i| request.required_input(i).and_then(extents));
    let [q, k, v] = shapes;
    let (q, k, v) = (q?, k?, v?);
    let ([batches, tokens, q_hidden], [kb, kt, k_hidden], [vb, vt, v_hidden]) = (&q[..], &k[..], &v[..])
    else {
        return Err(Error::invalid(format!("{q:?}, {k:?} and {v:?}, expected three extents of each")));
    };
    let sizes = [k_hidden / heads, v_hidden / heads];
    let fits = [kb, vb] == [batches; 2]
        && [kt, vt] == [tokens; 2]
        && of_q.is_multiple_of(heads)
        && of_q.checked_mul(sizes[0]) == Some(*q_hidden)
        && of_q.checked_mul(sizes[1]).is_some()
        && [*k_hidden, *v_hidden] == sizes.map(|size| size * heads);
    if !fits {
        return Err(Error::invalid(format!(
            "queries of {q:?}, keys of {k:?} and values of {v:?} for {of_q} and {heads} heads"
        )));
    }
    let rule = attrs.string("update_rule", "gated_delta")?;
    let (decays, corrects) = match rule {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        rule => return Err(Error::invalid(format!("update_rule {rule}"))),
    };
    // The numbers of an operand for each token.
    let per_token = |i: usize, wanted: bool, allowed: [usize; 2]| {
        let found = request.input(i).map(extents).transpose()?;
        match (found, wanted) {
            (None, false) => Ok(None),
            (Some(found), true) => match found[..] {
                [b, t, n] if b == *batches && t == *tokens && allowed.contains(&n) => Ok(Some(n)),
                _ => Err(Error::invalid(format!("input {i} has the extents {found:?}"))),
            },
            (None, true) => Err(Error::invalid(format!("no input {i} for the update rule {rule}"))),
            (Some(_), false) => Err(Error::invalid(format!("an input {i} for the update rule {rule}"))),
        }
    };
    let decays = per_token(4, decays, [heads, heads * sizes[0]])?.map(|n| n / heads);
    let betas = per_token(5, corrects, [heads, 1])?;
    let of_state = [*batches, heads, sizes[0], sizes[1]];
    if let Some(past) = request.input(3) {
        let past = extents(past)?;
        if past != of_state {
            return Err(Error::invalid(format!("a past state of {past:?}, expected {of_state:?}")));
        }
    }
    expect_output(request, 0, &[*batches, *tokens, of_q * sizes[1]])?;
    let state = match request.output(1).or(request.input(3)) {
        Some(state) => Real::of(state.dtype())?,
        None => Real::of(F32)?,
    };
    if request.output(1).is_some() {
        expect_output(request, 1, &of_state)?;
    }
    let scale = match attrs.float("scale", 0.0)? {
        0.0 => 1.0 / (sizes[0] as f32).sqrt(),
        scale => scale,
    };
    let real = Real::of(request.required_input(0)?.dtype())?;
    let kernel = LinearAttention {
        host: request.host,
        real,
        state,
        batches: *batches,
        tokens: *tokens,
        heads,
        group: of_q / heads,
        sizes,
        decays,
        betas,
        scale,
    };
    let n = Size::of(kernel.slot_scratch()) * request.host.n_slots();
    Prepared::new(kernel).with_room(n * size_of::<f32>(), 64)
}

/// The operands of a launch.
struct Tensors {
    q: Source,
    k: Source,
    v: Source,
    past: Option<Source>,
    decay: Option<Source>,
    beta: Option<Source>,
    y: Sink,
    present: Option<Sink>,
}

impl Launch<CpuDevice> for LinearAttention {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let input =
            |i: usize| Some(i).filter(|&i| i < operands.n_inputs() && operands.input_ref(i).addr != 0);
        let source = |i: usize| self.real.source(operands.input_ref(i));
        let tensors = Tensors {
            q: source(0),
            k: source(1),
            v: source(2),
            past: input(3).map(|i| self.state.source(operands.input_ref(i))),
            decay: self.decays.map(|_| source(4)),
            beta: self.betas.map(|_| source(5)),
            y: self.real.sink(operands.output_ref(0)),
            present: (operands.n_outputs() > 1).then(|| self.state.sink(operands.output_ref(1))),
        };
        let workspace = SendPtr(operands.workspace_ptr::<f32>());
        self.host.parallel_for(self.batches * self.heads, 1, |range, slot| {
            let n = self.slot_scratch();
            // SAFETY: the workspace has room for each slot, and this slot's is its own.
            let scratch = unsafe { core::slice::from_raw_parts_mut(workspace.at(slot * n), n) };
            for head in range {
                self.head(&tensors, scratch, head)?;
            }
            Ok(())
        })
    }
}

impl LinearAttention {
    /// Numbers that a slot needs: the matrix, a query, a key, and two values.
    fn slot_scratch(&self) -> usize {
        let [key, value] = self.sizes;
        // More than there is, if it cannot be counted.
        let n = key.saturating_mul(value).saturating_add(2 * key + 2 * value);
        n.checked_next_multiple_of(16).unwrap_or(usize::MAX)
    }

    /// One head of one batch, which is this chunk's own.
    fn head(&self, tensors: &Tensors, scratch: &mut [f32], which: usize) -> Result<()> {
        let ([size, of_value], (batch, head)) = (self.sizes, (which / self.heads, which % self.heads));
        let (state, rest) = scratch.split_at_mut(size * of_value);
        let (q, rest) = rest.split_at_mut(size);
        let (k, rest) = rest.split_at_mut(size);
        let (v, rest) = rest.split_at_mut(of_value);
        let sum = &mut rest[..of_value];
        match tensors.past.filter(|past| !past.is_empty()) {
            Some(past) => past.read(which * size * of_value, state),
            None => state.fill(0.0),
        }
        let mut pace = self.host.pace();
        for token in 0..self.tokens {
            pace.work(4 * (self.group + 2) * size * of_value)?;
            let row = batch * self.tokens + token;
            tensors.k.read((row * self.heads + head) * size, k);
            tensors.v.read((row * self.heads + head) * of_value, v);
            if let (Some(decay), Some(n)) = (&tensors.decay, self.decays) {
                for (i, line) in state.chunks_exact_mut(of_value.max(1)).enumerate() {
                    let rate = decay.get((row * self.heads + head) * n + i % n).exp() as f32;
                    line.iter_mut().for_each(|x| *x *= rate);
                }
            }
            if let (Some(beta), Some(n)) = (&tensors.beta, self.betas) {
                recall(state, k, sum);
                let beta = beta.get(row * n + head % n) as f32;
                for (v, known) in v.iter_mut().zip(&*sum) {
                    *v = beta * (*v - known);
                }
            }
            for (line, &key) in state.chunks_exact_mut(of_value.max(1)).zip(&*k) {
                line.iter_mut().zip(&*v).for_each(|(x, value)| *x += key * value);
            }
            for i in 0..self.group {
                let of_query = (row * self.heads + head) * self.group + i;
                tensors.q.read(of_query * size, q);
                recall(state, q, sum);
                for (c, &value) in sum.iter().enumerate() {
                    // SAFETY: the head is this chunk's own, and so are its queries.
                    unsafe { tensors.y.set(of_query * of_value + c, (self.scale * value).into()) };
                }
            }
        }
        if let Some(present) = tensors.present.filter(|present| !present.is_empty()) {
            for (i, &x) in state.iter().enumerate() {
                // SAFETY: the state of the head is this chunk's own, too.
                unsafe { present.set(which * size * of_value + i, x.into()) };
            }
        }
        Ok(())
    }
}

/// The value that the matrix has for a key.
fn recall(state: &[f32], key: &[f32], sum: &mut [f32]) {
    sum.fill(0.0);
    for (line, &k) in state.chunks_exact(sum.len().max(1)).zip(key) {
        sum.iter_mut().zip(line).for_each(|(sum, x)| *sum += k * x);
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    #[test]
    fn what_was_written_is_recalled() {
        // Two tokens with keys of one element: the state is one number, first 2 * 3 = 6 and then the rule's result.
        let found = |rule: &'static str, decay: bool, beta: bool| {
            let token = |values: [f32; 2]| Some(Array::of(&[1, 2, 1], &values));
            let inputs = [
                token([1.0, 10.0]),
                token([2.0, 1.0]),
                token([3.0, 5.0]),
                None,
                if decay { token([0.0, f32::ln(0.5)]) } else { None },
                if beta { token([1.0, 0.5]) } else { None },
            ];
            let attrs = [
                ("update_rule", Value::Text(rule)),
                ("q_num_heads", Value::Int(1)),
                ("kv_num_heads", Value::Int(1)),
            ];
            let outputs = [Some(Array::empty::<f32>(&[1, 2, 1])), Some(Array::empty::<f32>(&[1, 1, 1, 1]))];
            let found = run(Isa::Baseline, "LinearAttention", &attrs, &inputs, &outputs)?;
            assert_eq!(found[1].as_ref().expect("a state").elements::<f32>().len(), 1);
            Ok(found[0].as_ref().expect("an output").elements::<f32>())
        };
        assert_eq!(found("linear", false, false), Ok(vec![6.0, 110.0]));
        assert_eq!(found("gated", true, false), Ok(vec![6.0, 80.0]));
        assert_eq!(found("delta", false, true), Ok(vec![6.0, 55.0]));
        assert_eq!(found("gated_delta", true, true), Ok(vec![6.0, 40.0]));
        let error: String = found("delta", true, true).expect_err("a decay that is not used");
        assert!(error.contains("for the update rule delta"), "{error}");
        assert!(found("gated", false, false).is_err() && found("cubic", true, true).is_err());
    }
}
