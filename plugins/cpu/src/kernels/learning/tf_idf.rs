//! TfIdfVectorizer: how often the sequences of a pool occur in rows of integers.
//!
//! The pool is a tree that `prepare` grows: a branch for each integer, and a leaf where a sequence ends. Strings are
//! the host's values, and pools of them are not known here.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, extents};
use crate::kernels::numbers::real::Real;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::reserve;
use devbay_plugin_api::sdk::*;
use std::collections::BTreeMap;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor("TfIdfVectorizer", 9, tf_idf)
    .types(&[TypeVar::of(&[I64, I32]), TypeVar::of(&[F32])])
    .cost(cost)
    .doc("pools of integers")];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    cost::per_input(request, 64)
}

/// Effect of one more occurrence on a number.
#[derive(Clone, Copy)]
enum Counting {
    /// It adds so much.
    Adds(f32),
    /// It sets it.
    Sets(f32),
}

struct TfIdf {
    host: Host,
    rows: usize,
    cols: usize,
    /// Numbers of a row of the output.
    to: usize,
    index: DType,
    /// The branch of a branch for an integer; the trunk is 0.
    branches: BTreeMap<(usize, i64), usize>,
    /// Where a sequence ends: its position in the output, and how it counts.
    leaves: BTreeMap<usize, (usize, Counting)>,
    /// Factors of a row's numbers in the end.
    scales: Option<Vec<f32>>,
    lengths: [usize; 2],
    skips: usize,
}

fn tf_idf(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let attrs = &request.attrs;
    let ints = |name: &str| {
        attrs.ints(name)?.ok_or_else(|| Error::invalid(format!("the attribute {name} is missing")))
    };
    let (pool, counts, indexes) = (attrs.ints("pool_int64s")?, ints("ngram_counts")?, ints("ngram_indexes")?);
    let pool = pool.ok_or_else(|| Error::unsupported("a pool that is not of integers"))?;
    let weights = attrs.floats("weights")?;
    if weights.as_ref().is_some_and(|weights| weights.len() != indexes.len()) {
        return Err(Error::invalid(format!("expected a weight for each of {} sequences", indexes.len())));
    }
    let length = |name: &str, least: usize| match usize::try_from(attrs.int(name, -1)?) {
        Ok(n) if n >= least => Ok(n),
        _ => Err(Error::invalid(format!("{name} is missing, or below {least}"))),
    };
    let lengths = [length("min_gram_length", 1)?, length("max_gram_length", 1)?];
    let from = extents(request.required_input(0)?)?;
    let (rows, cols) = match from[..] {
        [] => (1, 1),
        [cols] => (1, cols),
        [rows, cols] => (rows, cols),
        _ => return Err(Error::invalid(format!("extents of {from:?}, expected at most two"))),
    };
    let mode = attrs.string("mode", "")?;
    let mut to = 0;
    for &index in &indexes {
        let index = usize::try_from(index).ok().and_then(|index| index.checked_add(1));
        to = to.max(index.ok_or_else(|| Error::invalid(format!("ngram_indexes of {indexes:?}")))?);
    }
    let shape: &[usize] = if from.len() == 2 { &[rows, to] } else { &[to] };
    expect_output(request, 0, shape)?;
    let scales = match weights.as_ref().filter(|_| mode == "TFIDF") {
        Some(list) => scales(list, &indexes, to)?,
        None => None,
    };
    let counting = |i: usize| {
        let weight = weights.as_ref().map_or(1.0, |weights| weights[i]);
        match mode {
            "TF" => Ok(Counting::Adds(1.0)),
            "TFIDF" if scales.is_some() => Ok(Counting::Adds(1.0)),
            "IDF" => Ok(Counting::Sets(weight)),
            "TFIDF" => Ok(Counting::Adds(weight)),
            _ => Err(Error::invalid(format!("mode is TF, IDF or TFIDF, found {mode}"))),
        }
    };

    let (mut branches, mut leaves, mut sequence) = (BTreeMap::new(), BTreeMap::new(), 0);
    for (i, &start) in counts.iter().enumerate() {
        let end = counts.get(i + 1).copied().unwrap_or(pool.len() as i64);
        let part = usize::try_from(start).ok().zip(usize::try_from(end).ok());
        let part = part.and_then(|(start, end)| pool.get(start..end)).ok_or_else(|| {
            Error::invalid(format!("ngram_counts of {counts:?} for a pool of {} integers", pool.len()))
        })?;
        for item in part.chunks_exact(i + 1) {
            let mut at = 0;
            for &value in item {
                let next = branches.len() + 1;
                at = *branches.entry((at, value)).or_insert(next);
            }
            let index = *indexes.get(sequence).ok_or_else(|| {
                Error::invalid(format!("{} ngram_indexes, expected one for each sequence", indexes.len()))
            })?;
            leaves.insert(at, (index as usize, counting(sequence)?));
            sequence += 1;
        }
    }
    Ok(Prepared::new(TfIdf {
        host: request.host,
        rows,
        cols,
        to,
        index: request.required_input(0)?.dtype(),
        branches,
        leaves,
        scales,
        lengths,
        skips: length("max_skip_count", 0)?,
    }))
}

/// A weight for each number of a row, with which counts are rounded once; None if sequences of different weights
/// count for one number, so that each occurrence has to add its own.
fn scales(weights: &[f32], indexes: &[i64], to: usize) -> Result<Option<Vec<f32>>> {
    const WHAT: &str = "the weights of sequences";
    let mut scales = reserve::filled(None, to, WHAT)?;
    for (&weight, &index) in weights.iter().zip(indexes) {
        if *scales[index as usize].get_or_insert(weight) != weight {
            return Ok(None);
        }
    }
    Ok(Some(reserve::collected(scales.into_iter().map(|scale| scale.unwrap_or(1.0)), WHAT)?))
}

impl Launch<CpuDevice> for TfIdf {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let (wide, narrow) = match self.index {
            I64 => (operands.input::<i64>(0), &[][..]),
            _ => (&[][..], operands.input::<i32>(0)),
        };
        let x = |i: usize| wide.get(i).copied().unwrap_or_else(|| narrow[i].into());
        let y = Real::of(F32)?.sink(operands.output_ref(0));
        self.host.parallel_for(self.rows, 1, |range, _| {
            for row in range {
                for i in 0..self.to {
                    // SAFETY: the row is this chunk's own.
                    unsafe { y.set(row * self.to + i, 0.0) };
                }
                self.row(
                    &mut self.host.pace(),
                    |i| x(row * self.cols + i),
                    |i, counting| {
                        let at = row * self.to + i;
                        let value = match counting {
                            // SAFETY: the row is this chunk's own, and was written before.
                            Counting::Adds(weight) => (unsafe { y.get(at) }) + f64::from(weight),
                            Counting::Sets(weight) => weight.into(),
                        };
                        // SAFETY: the row is this chunk's own.
                        unsafe { y.set(at, value) };
                    },
                )?;
                for (i, &scale) in self.scales.iter().flatten().enumerate() {
                    let at = row * self.to + i;
                    // SAFETY: the row is this chunk's own, and was written before.
                    let count = unsafe { y.get(at) };
                    // SAFETY: the row is this chunk's own.
                    unsafe { y.set(at, count * f64::from(scale)) };
                }
            }
            Ok(())
        })
    }
}

impl TfIdf {
    /// Finds the sequences of a row, with as many integers between theirs as may be skipped.
    fn row(
        &self,
        pace: &mut Pace<'_>,
        x: impl Fn(usize) -> i64,
        mut found: impl FnMut(usize, Counting),
    ) -> Result<()> {
        let [mut least, most] = self.lengths;
        // Further apart than the row is long there is nothing.
        for distance in 1..=self.skips.saturating_add(1).min(self.cols.max(1)) {
            for start in 0..self.cols {
                pace.work(16 * most.min(self.cols))?;
                let mut at = 0;
                let items = (start..self.cols).step_by(distance).take(most);
                for (n, i) in items.enumerate() {
                    let Some(&next) = self.branches.get(&(at, x(i))) else {
                        break;
                    };
                    at = next;
                    if let Some(&(index, counting)) = self.leaves.get(&at).filter(|_| n + 1 >= least) {
                        found(index, counting);
                    }
                }
            }
            // A sequence of one is the same for every distance.
            least = least.max(2);
            if least > most {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    #[test]
    fn counts_are_scaled_once_unless_sequences_of_different_weights_share_a_number() {
        let scaled = |indexes: Vec<i64>| {
            let attrs = [
                ("pool_int64s", Value::Ints(vec![7, 8])),
                ("ngram_counts", Value::Ints(vec![0])),
                ("ngram_indexes", Value::Ints(indexes)),
                ("min_gram_length", Value::Int(1)),
                ("max_gram_length", Value::Int(1)),
                ("max_skip_count", Value::Int(0)),
                ("mode", Value::Text("TFIDF")),
                ("weights", Value::Floats(vec![0.1, 0.5])),
            ];
            let inputs = [Some(Array::of(&[12], &[7i32, 7, 7, 8, 7, 7, 7, 8, 7, 7, 7, 7]))];
            let outputs = [Some(Array::empty::<f32>(&[2]))];
            let found = run(Isa::Baseline, "TfIdfVectorizer", &attrs, &inputs, &outputs).expect("runs");
            found[0].as_ref().expect("an output").elements::<f32>()
        };
        // Ten times 0.1 added up is more than 1.
        assert_eq!(scaled(vec![1, 0]), [1.0, 1.0]);
        let both = scaled(vec![1, 1]);
        assert!(both[0] == 0.0 && (both[1] - 2.0).abs() < 1e-5, "{both:?}");
    }

    #[test]
    fn sequences_are_counted_with_what_lies_between() {
        // The pool is 7, 8, and the pairs 7 8 and 8 7.
        let counted = |skips: i64, most: i64, mode: &'static str, counts: Vec<i64>| {
            let attrs = [
                ("pool_int64s", Value::Ints(vec![7, 8, 7, 8, 8, 7])),
                ("ngram_counts", Value::Ints(counts)),
                ("ngram_indexes", Value::Ints(vec![0, 2, 3, 4])),
                ("min_gram_length", Value::Int(1)),
                ("max_gram_length", Value::Int(most)),
                ("max_skip_count", Value::Int(skips)),
                ("mode", Value::Text(mode)),
            ];
            let inputs = [Some(Array::of(&[2, 4], &[7i32, 8, 9, 7, 9, 9, 9, 8]))];
            let found = run(
                Isa::Baseline,
                "TfIdfVectorizer",
                &attrs,
                &inputs,
                &[Some(Array::empty::<f32>(&[2, 5]))],
            )?;
            Ok(found[0].as_ref().expect("an output").elements::<f32>())
        };
        let check = |skips, most, mode, expected: [u8; 10]| {
            let expected = expected.map(f32::from).to_vec();
            assert_eq!(counted(skips, most, mode, vec![0, 2]), Ok::<_, String>(expected));
        };
        check(0, 2, "TF", [2, 0, 1, 1, 0, 0, 0, 1, 0, 0]);
        check(1, 2, "TF", [2, 0, 1, 1, 1, 0, 0, 1, 0, 0]);
        check(9, 1, "TF", [2, 0, 1, 0, 0, 0, 0, 1, 0, 0]);
        check(0, 2, "IDF", [1, 0, 1, 1, 0, 0, 0, 1, 0, 0]);
        let refused = |mode, counts, words: &str| {
            let error: String = counted(0, 2, mode, counts).expect_err("refused");
            assert!(error.contains(words), "{error}");
        };
        refused("XF", vec![0, 2], "found XF");
        refused("TF", vec![0, 9], "for a pool of 6 integers");
        refused("TF", vec![0], "4 ngram_indexes");
    }
}
