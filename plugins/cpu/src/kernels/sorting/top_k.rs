//! TopK: the largest or smallest elements along an axis, with their positions.
//!
//! Of equal elements the one that comes first is taken first, so that the result does not depend on how it is
//! found. It is sorted also where the node leaves the order open.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{around, axis, element_size, expect_output, extents, host_int};
use crate::kernels::geometry::strided::copy_run;
use crate::kernels::numbers::order::{KeyFn, key_of};
use crate::kernels::sorting::lists::{Natural, select, sort};
use crate::kernels::types::NUMBERS;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor("TopK", 11, top_k)
    .types(&[TypeVar::of(NUMBERS), TypeVar::of(&[I64])])
    .operands(&[0, 1], &[0, 1])
    .cost(cost)];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    cost::per_input(request, 8)
}

/// An element while it is sorted: its key, the smallest first, and its position.
type Entry = (u64, u64);

/// Elements between two looks whether the run goes on.
const PIECE: usize = 1 << 16;

/// Along the middle one of three dimensions.
struct TopK {
    host: Host,
    around: [usize; 3],
    k: usize,
    size: usize,
    largest: bool,
    key: KeyFn,
}

fn top_k(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let from = extents(input)?;
    let axis = axis(request.attrs.int("axis", -1)?, from.len())?;
    let k = host_int(request, 1, 1)?;
    let Some(k) = usize::try_from(k).ok().filter(|&k| k <= from[axis]) else {
        return Err(Error::invalid(format!("k is {k}, expected 0 to {}", from[axis])));
    };
    let mut to = from.clone();
    to[axis] = k;
    for i in (0..2).filter(|&i| request.output(i).is_some()) {
        expect_output(request, i, &to)?;
    }
    let kernel = TopK {
        host: request.host,
        around: around(&from, axis),
        k,
        size: element_size(input.dtype()),
        largest: request.attrs.int("largest", 1)? != 0,
        key: key_of(input.dtype())?,
    };
    let n = Size::of(from[axis].max(1)) * request.host.n_slots();
    Prepared::new(kernel).with_room(n * size_of::<Entry>(), 64)
}

impl Launch<CpuDevice> for TopK {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let input = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let (values, positions) = (operands.output_ptr::<u8>(0), operands.output_ptr::<i64>(1));
        let (values, positions) = (SendPtr(values), SendPtr(positions));
        let workspace = SendPtr(operands.workspace_ptr::<Entry>());
        let [outer, n, inner] = self.around;
        if self.k == 0 {
            return Ok(());
        }
        let grain = (16 * 1024 / n).max(1);
        self.host.parallel_for(outer * inner, grain, |range, slot| {
            let mut pace = self.host.pace();
            // SAFETY: the workspace has room for the axis for each slot, and this slot's is its own.
            let entries = unsafe { core::slice::from_raw_parts_mut(workspace.at(slot * n), n) };
            for lane in range {
                let (outer, inner_at) = (lane / inner, lane % inner);
                let at = |i: usize, n: usize| (outer * n + i) * inner + inner_at;
                for (piece, entries) in entries.chunks_mut(PIECE).enumerate() {
                    pace.work(2 * entries.len())?;
                    for (i, entry) in entries.iter_mut().enumerate() {
                        let i = piece * PIECE + i;
                        // SAFETY: the element lies within the input, whose extents `prepare` was told.
                        let key = unsafe { (self.key)(input.at(at(i, n) * self.size)) };
                        *entry = (if self.largest { !key } else { key }, i as u64);
                    }
                }
                select(entries, self.k, &Natural, &mut pace)?;
                sort(&mut entries[..self.k], &Natural, &mut pace)?;
                for (i, &(_, position)) in entries[..self.k].iter().enumerate() {
                    if i % PIECE == PIECE - 1 {
                        pace.work(2 * PIECE)?;
                    }
                    if !positions.0.is_null() {
                        // SAFETY: the element lies within the output, whose extents were checked; chunks
                        // have lanes of their own.
                        unsafe { positions.at(at(i, self.k)).write(position as i64) };
                    }
                    if values.0.is_null() {
                        continue;
                    }
                    let source = input.at(at(position as usize, n) * self.size);
                    let target = values.at(at(i, self.k) * self.size);
                    // SAFETY: the element lies within the output, the position is one of the input's, and chunks have
                    // lanes of their own.
                    unsafe { copy_run(source, target, self.size) };
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

    #[test]
    fn equal_elements_come_in_their_order() {
        let x = [2.0f32, f32::NAN, -0.0, 2.0, 0.0, 7.0];
        let top = |k: i64, largest: i64| {
            let n = k.clamp(0, 6) as usize;
            let inputs = [Some(Array::of(&[1, 6, 1], &x)), Some(Array::of(&[1], &[k]))];
            let outputs = [Some(Array::empty::<f32>(&[1, n, 1])), Some(Array::empty::<i64>(&[1, n, 1]))];
            let attrs = [("axis", Value::Int(1)), ("largest", Value::Int(largest))];
            let found = run(Isa::Baseline, "TopK", &attrs, &inputs, &outputs)?;
            Ok(found[1].as_ref().expect("positions").elements::<i64>())
        };
        assert_eq!(top(4, 1), Ok(vec![1, 5, 0, 3]));
        assert_eq!(top(6, 0), Ok(vec![2, 4, 0, 3, 5, 1]));
        assert_eq!(top(0, 1), Ok(vec![]));
        for k in [-1, 7] {
            let error: String = top(k, 1).expect_err("no such number of elements");
            assert!(error.contains(&format!("k is {k}")), "{error}");
        }
    }

    #[test]
    fn integers_keep_all_their_digits() {
        let x = [(1i64 << 60) + 1, 1 << 60, (1 << 60) + 2, i64::MIN];
        let inputs = [Some(Array::of(&[4], &x)), Some(Array::of(&[1], &[2i64]))];
        let outputs = [Some(Array::empty::<i64>(&[2])), Some(Array::empty::<i64>(&[2]))];
        let found = run(Isa::Baseline, "TopK", &[], &inputs, &outputs).expect("sorts");
        assert_eq!(found[0], Some(Array::of(&[2], &[(1i64 << 60) + 2, (1 << 60) + 1])));
    }
}
