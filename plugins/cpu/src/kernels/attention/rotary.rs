//! RotaryEmbedding: pairs of a head's elements, turned by the angle of their position.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, extents};
use crate::kernels::numbers::real::{Real, Sink, Source};
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor("RotaryEmbedding", 23, rotary_embedding)
    .types(&[TypeVar::of(&[F32, F16, BF16]), TypeVar::of(&[I64])])
    .cost(cost)];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    cost::per_output(request, 3)
}

struct Rotary {
    host: Host,
    real: Real,
    batches: usize,
    heads: usize,
    sequence: usize,
    size: usize,
    heads_inside: bool,
    /// Pairs that are turned; the rest of a head stays.
    pairs: usize,
    interleaved: bool,
    /// Rows of the tables of angles where an operand names them; else each token has one.
    positions: Option<usize>,
}

fn rotary_embedding(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let attrs = &request.attrs;
    let input = request.required_input(0)?;
    let from = extents(input)?;
    expect_output(request, 0, &from)?;
    let n = usize::try_from(attrs.int("num_heads", 0)?).unwrap_or(0);
    let (batches, heads, sequence, size) = match from[..] {
        [batches, heads, sequence, size] => (batches, heads, sequence, size),
        [batches, sequence, hidden] if n > 0 && hidden.is_multiple_of(n) => {
            (batches, n, sequence, hidden / n)
        }
        _ => return Err(Error::invalid(format!("an input of {from:?} with {n} heads"))),
    };
    let turned = match attrs.int("rotary_embedding_dim", 0)? {
        0 => Some(size),
        turned => usize::try_from(turned).ok().filter(|&turned| turned <= size),
    };
    let Some(pairs) = turned.filter(|turned| turned.is_multiple_of(2)).map(|turned| turned / 2) else {
        return Err(Error::invalid(format!("heads of {size} elements, of which an even number is turned")));
    };
    let (cos, sin) = (extents(request.required_input(1)?)?, extents(request.required_input(2)?)?);
    let by_position = match request.input(3).map(extents).transpose()? {
        None => None,
        Some(found) if found == [batches, sequence] => Some(cos.first().copied().unwrap_or(0)),
        Some(found) => return Err(Error::invalid(format!("positions of {found:?}"))),
    };
    let expected = match by_position {
        Some(rows) => vec![rows, pairs],
        None => vec![batches, sequence, pairs],
    };
    if cos != expected || sin != expected {
        return Err(Error::invalid(format!("tables of {cos:?} and {sin:?}, expected {expected:?}")));
    }
    Ok(Prepared::new(Rotary {
        host: request.host,
        real: Real::of(input.dtype())?,
        batches,
        heads,
        sequence,
        size,
        heads_inside: from.len() == 3,
        pairs,
        interleaved: attrs.int("interleaved", 0)? != 0,
        positions: by_position,
    }))
}

impl Launch<CpuDevice> for Rotary {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let [x, cos, sin] = [0, 1, 2].map(|i| self.real.source(operands.input_ref(i)));
        let y = self.real.sink(operands.output_ref(0));
        let positions = if self.positions.is_some() { operands.input::<i64>(3) } else { &[] };
        let n = self.batches * self.sequence;
        let grain = (4096 / (self.heads * self.size).max(1)).max(1);
        self.host.parallel_for(n, grain, |range, _| {
            for token in range {
                let row = match self.positions {
                    None => token,
                    Some(rows) => {
                        let position = positions[token];
                        usize::try_from(position).ok().filter(|&row| row < rows).ok_or_else(|| {
                            Error::invalid(format!("position {position} of a table of {rows} rows"))
                        })?
                    }
                };
                self.token(x, [cos, sin], row * self.pairs, y, token);
            }
            Ok(())
        })
    }
}

impl Rotary {
    /// All heads of one token, which are this chunk's own.
    fn token(&self, x: Source, [cos, sin]: [Source; 2], angles: usize, y: Sink, token: usize) {
        let (batch, i) = (token / self.sequence, token % self.sequence);
        for head in 0..self.heads {
            let row = match self.heads_inside {
                true => token * self.heads + head,
                false => (batch * self.heads + head) * self.sequence + i,
            };
            let first = row * self.size;
            for pair in 0..self.pairs {
                let (a, b) = match self.interleaved {
                    true => (first + 2 * pair, first + 2 * pair + 1),
                    false => (first + pair, first + self.pairs + pair),
                };
                let (cos, sin) = (cos.get(angles + pair), sin.get(angles + pair));
                let (real, imaginary) = (x.get(a), x.get(b));
                // SAFETY: the token is this chunk's own.
                unsafe { y.set(a, cos * real - sin * imaginary) };
                // SAFETY: the other element of the pair is the token's, too.
                unsafe { y.set(b, sin * real + cos * imaginary) };
            }
            for at in first + 2 * self.pairs..first + self.size {
                // SAFETY: the rest of the head is the token's, too.
                unsafe { y.set(at, x.get(at)) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    #[test]
    fn pairs_are_turned() {
        // Position 1 turns by a quarter, position 0 not at all; the fifth element is not turned.
        let x: Vec<f32> = (1..=10).map(|i| i as f32).collect();
        let turned = |interleaved: i64, positions: [i64; 2], pairs: i64| {
            let inputs = [
                Some(Array::of(&[1, 2, 5], &x)),
                Some(Array::of(&[2, 2], &[1.0f32, 1.0, 0.0, 0.0])),
                Some(Array::of(&[2, 2], &[0.0f32, 0.0, 1.0, 1.0])),
                Some(Array::of(&[1, 2], &positions)),
            ];
            let attrs = [
                ("interleaved", Value::Int(interleaved)),
                ("num_heads", Value::Int(1)),
                ("rotary_embedding_dim", Value::Int(2 * pairs)),
            ];
            let output = [Some(Array::empty::<f32>(&[1, 2, 5]))];
            let found = run(Isa::Baseline, "RotaryEmbedding", &attrs, &inputs, &output)?;
            Ok(found[0].as_ref().expect("an output").elements::<f32>())
        };
        let expected = vec![-3.0, -4.0, 1.0, 2.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0];
        assert_eq!(turned(0, [1, 0], 2), Ok(expected));
        let expected = vec![1.0, 2.0, 3.0, 4.0, 5.0, -7.0, 6.0, -9.0, 8.0, 10.0];
        assert_eq!(turned(1, [0, 1], 2), Ok(expected));
        let refused = |positions, pairs, words: &str| {
            let error: String = turned(0, positions, pairs).expect_err("refused");
            assert!(error.contains(words), "{error}");
        };
        refused([0, 2], 2, "position 2 of a table of 2 rows");
        refused([-1, 0], 2, "position -1");
        refused([0, 0], 1, "expected [2, 1]");
        refused([0, 0], 3, "heads of 5 elements");
    }
}
