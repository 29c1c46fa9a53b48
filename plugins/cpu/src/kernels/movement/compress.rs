//! Compress and ReverseSequence: what is kept, or turned round, is in an operand of its own.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{around, axis, element_size, expect_output, extents};
use crate::kernels::geometry::strided::{GRAIN_BYTES, copy_run};
use crate::kernels::types::MOVABLE;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::abi::{DEVBAY_KERNEL_DATA_SHAPE, DEVBAY_KERNEL_DETERMINISTIC};
use devbay_plugin_api::sdk::*;

const MOVED: TypeVar = TypeVar::of(MOVABLE);

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("Compress", 11, compress)
        .types(&[MOVED, TypeVar::of(&[BOOL])])
        .flags(DEVBAY_KERNEL_DETERMINISTIC | DEVBAY_KERNEL_DATA_SHAPE)
        .cost(cost::moved)
        .doc("the slices of an axis that a condition chooses"),
    descriptor("ReverseSequence", 10, reverse_sequence)
        .types(&[MOVED, TypeVar::of(&[I64])])
        .cost(cost::moved),
];

/// Runs on one thread: where a slice is written depends on how many came before it.
struct Compress {
    outer: usize,
    n: usize,
    /// Bytes of a slice.
    bytes: usize,
    n_conditions: usize,
    /// The output's extents, of which the one at `axis` is what is found.
    to: Vec<usize>,
    axis: usize,
}

fn compress(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let from = extents(input)?;
    let n_conditions = match extents(request.required_input(1)?)?[..] {
        [n] => n,
        ref found => return Err(Error::invalid(format!("a condition of {found:?}, expected one dimension"))),
    };
    let size = element_size(input.dtype());
    let (mut to, axis, [outer, n, inner]) = match request.attrs.get("axis") {
        None => (vec![0], 0, [1, from.iter().product(), 1]),
        Some(_) => {
            let axis = axis(request.attrs.int("axis", 0)?, from.len())?;
            (from.clone(), axis, around(&from, axis))
        }
    };
    if n_conditions > n {
        return Err(Error::invalid(format!("{n_conditions} conditions for {n} slices")));
    }
    to[axis] = n_conditions;
    expect_output(request, 0, &to)?;
    Ok(Prepared::new(Compress { outer, n, bytes: inner * size, n_conditions, to, axis }))
}

impl Launch<CpuDevice> for Compress {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let (input, output) = (operands.input_ptr::<u8>(0), operands.output_ptr::<u8>(0));
        let chosen = operands.input_ptr::<u8>(1);
        // SAFETY: the condition has so many elements; any byte may be read.
        let is_chosen = |i: usize| unsafe { chosen.add(i).read() } != 0;
        let mut at = 0;
        // Slices of nothing are not copied: their number may be beyond all counting.
        for outer in (0..self.outer).take_while(|_| self.bytes > 0) {
            for i in (0..self.n_conditions).filter(|&i| is_chosen(i)) {
                let source = input.wrapping_add((outer * self.n + i) * self.bytes);
                // SAFETY: the slice lies within the input, and the output has room for one for each condition.
                unsafe { copy_run(source, output.wrapping_add(at), self.bytes) };
                at += self.bytes;
            }
        }
        let found = (0..self.n_conditions).filter(|&i| is_chosen(i)).count();
        let extents = operands.extents_ptr();
        for (i, &extent) in self.to.iter().enumerate() {
            let extent = if i == self.axis { found } else { extent };
            // SAFETY: the host lends room for the extents of the output, which has as many.
            unsafe { extents.add(i).write(extent as i64) };
        }
        Ok(())
    }
}

struct ReverseSequence {
    host: Host,
    /// Extents of time and batch.
    times: usize,
    batches: usize,
    time_is_first: bool,
    /// Bytes of everything behind both.
    bytes: usize,
}

fn reverse_sequence(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let from = extents(input)?;
    expect_output(request, 0, &from)?;
    let axes = [request.attrs.int("time_axis", 0)?, request.attrs.int("batch_axis", 1)?];
    let time_is_first = match axes {
        [0, 1] => true,
        [1, 0] => false,
        _ => return Err(Error::invalid(format!("time and batch are the axes {axes:?}, expected 0 and 1"))),
    };
    let [first, second, inner @ ..] = &from[..] else {
        return Err(Error::invalid(format!("extents of {from:?}, expected time and batch")));
    };
    let (times, batches) = if time_is_first { (*first, *second) } else { (*second, *first) };
    let lengths = extents(request.required_input(1)?)?;
    if lengths != [batches] {
        return Err(Error::invalid(format!("lengths of {lengths:?} for {batches} sequences")));
    }
    let bytes = inner.iter().product::<usize>() * element_size(input.dtype());
    Ok(Prepared::new(ReverseSequence { host: request.host, times, batches, time_is_first, bytes }))
}

impl Launch<CpuDevice> for ReverseSequence {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let input = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let output = SendPtr(operands.output_ptr::<u8>(0));
        let lengths = SendPtr(operands.input_ptr::<i64>(1).cast_mut());
        let grain = (GRAIN_BYTES / (self.times * self.bytes).max(1)).max(1);
        self.host.parallel_for(self.batches, grain, |range, _| {
            for batch in range {
                // SAFETY: there is a length for each sequence.
                let length = unsafe { lengths.at(batch).read() };
                let Some(length) = usize::try_from(length).ok().filter(|&length| length <= self.times) else {
                    return Err(Error::invalid(format!(
                        "sequence {batch} has the length {length}, expected 0 to {}",
                        self.times
                    )));
                };
                let at = |time: usize| match self.time_is_first {
                    true => (time * self.batches + batch) * self.bytes,
                    false => (batch * self.times + time) * self.bytes,
                };
                for time in 0..self.times {
                    let source = if time < length { length - 1 - time } else { time };
                    // SAFETY: both lie within their operand, which have the same extents; each chunk has
                    // sequences of its own.
                    unsafe { copy_run(input.at(at(source)), output.at(at(time)), self.bytes) };
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};
    use devbay_plugin_api::sdk::Element;

    /// A truth value, as the tests write it.
    #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
    #[repr(transparent)]
    struct Truth(u8);
    impl Element for Truth {
        const DTYPE: devbay_plugin_api::sdk::DType = devbay_plugin_api::sdk::BOOL;
    }

    #[test]
    fn chosen_slices_lie_side_by_side() {
        let x: Vec<i16> = (0..6).collect();
        let chosen = |conditions: &[u8], axis: Option<i64>, bound: &[usize]| {
            let conditions: Vec<Truth> = conditions.iter().map(|&c| Truth(c)).collect();
            let conditions = Array::of(&[conditions.len()], &conditions);
            let inputs = [Some(Array::of(&[2, 3], &x)), Some(conditions)];
            let attrs: Vec<_> = axis.into_iter().map(|axis| ("axis", Value::Int(axis))).collect();
            let output = [Some(Array::empty::<i16>(bound))];
            let found = run(Isa::Baseline, "Compress", &attrs, &inputs, &output)?;
            let [Some(output), Some(extents)] = &found[..] else {
                panic!("expected an output and extents");
            };
            let extents = extents.elements::<i64>();
            let n = extents.iter().product::<i64>() as usize;
            Ok((extents, output.elements::<i16>()[..n].to_vec()))
        };
        assert_eq!(chosen(&[1, 0, 1], Some(-1), &[2, 3]), Ok((vec![2, 2], vec![0, 2, 3, 5])));
        assert_eq!(chosen(&[0, 1], Some(1), &[2, 2]), Ok((vec![2, 1], vec![1, 4])));
        assert_eq!(chosen(&[0, 1, 0, 0, 1], None, &[5]), Ok((vec![2], vec![1, 4])));
        assert_eq!(chosen(&[0, 0], Some(0), &[2, 3]), Ok((vec![0, 3], vec![])));
        let error: String = chosen(&[1, 1, 1], Some(0), &[3, 3]).expect_err("too many conditions");
        assert!(error.contains("3 conditions for 2 slices"), "{error}");
    }

    #[test]
    fn sequences_are_turned_round_up_to_their_lengths() {
        let x: Vec<u8> = (0..8).collect();
        let turned = |axes: [i64; 2], lengths: &[i64]| {
            let inputs = [Some(Array::of(&[4, 2], &x)), Some(Array::of(&[lengths.len()], lengths))];
            let attrs = [("time_axis", Value::Int(axes[0])), ("batch_axis", Value::Int(axes[1]))];
            let output = [Some(Array::empty::<u8>(&[4, 2]))];
            let found = run(Isa::Baseline, "ReverseSequence", &attrs, &inputs, &output)?;
            Ok(found[0].as_ref().expect("an output").elements::<u8>())
        };
        assert_eq!(turned([0, 1], &[3, 1]), Ok(vec![4, 1, 2, 3, 0, 5, 6, 7]));
        assert_eq!(turned([1, 0], &[2, 1, 0, 2]), Ok(vec![1, 0, 2, 3, 4, 5, 7, 6]));
        let refused = |axes, lengths: &[i64], words: &str| {
            let error: String = turned(axes, lengths).expect_err("refused");
            assert!(error.contains(words), "{error}");
        };
        refused([0, 1], &[5, 1], "has the length 5");
        refused([0, 1], &[-1, 1], "has the length -1");
        refused([0, 0], &[1, 1], "expected 0 and 1");
        refused([0, 1], &[1, 1, 1], "for 2 sequences");
    }
}
