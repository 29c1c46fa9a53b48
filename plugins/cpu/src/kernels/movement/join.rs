//! Concat and Split: the same copy, in one direction and the other.
//!
//! The joined tensor is a list of rows, and a row is one piece of each part after the other. Chunks are
//! ranges of the joined tensor's bytes, so that many small parts and few large ones are shared out alike.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::element_size;
use crate::kernels::geometry::strided::{GRAIN_BYTES, copy_run};
use crate::kernels::types::MOVABLE;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_ops::read::Join;
use devbay_plugin_api::abi::BufferRef;
use devbay_plugin_api::sdk::*;
use std::ops::Range;

const MOVED: TypeVar = TypeVar::of(MOVABLE);

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("Concat", 13, concat).types(&[MOVED]).cost(cost::moved),
    descriptor("Split", 18, split).types(&[MOVED, TypeVar::of(&[I64])]).cost(cost::moved),
];

/// Bytes that are copied in the time that a piece takes besides its own: pieces of one f32 took 3 ns each.
const PIECE_BYTES: usize = 48;
/// Bytes of a chunk at least.
const GRAIN_MIN_BYTES: usize = 4 * 1024;
/// Bytes of a line of the cache.
const LINE: usize = 64;

/// Layout of parts in the joined tensor, in bytes.
struct Layout {
    n_rows: usize,
    row_bytes: usize,
    /// Where each part's piece of a row begins, and at last where the row ends.
    borders: Vec<usize>,
    /// Bytes of the joined tensor in a chunk.
    grain: usize,
}

impl Layout {
    /// Calls `copy(part, byte of the part, byte of the joined tensor, bytes)` for all of a range of the
    /// joined tensor.
    #[inline(always)]
    fn pieces(&self, range: Range<usize>, copy: impl Fn(usize, usize, usize, usize)) {
        let mut row = range.start / self.row_bytes;
        let mut in_row = range.start % self.row_bytes;
        let mut part = self.borders.partition_point(|&border| border <= in_row) - 1;
        let mut at = range.start;
        while at < range.end {
            let (begin, end) = (self.borders[part], self.borders[part + 1]);
            let n = (end - in_row).min(range.end - at);
            copy(part, row * (end - begin) + in_row - begin, at, n);
            at += n;
            in_row += n;
            part += 1;
            if part + 1 == self.borders.len() {
                (row, in_row, part) = (row + 1, 0, 0);
            }
        }
    }
}

impl Layout {
    /// The layout of joined tensors with elements of so many bytes.
    fn of(join: &Join, size: usize) -> Self {
        let mut borders = vec![0];
        let mut row_bytes = 0;
        for &run in &join.runs {
            row_bytes = (run as usize).saturating_mul(size).saturating_add(row_bytes);
            borders.push(row_bytes);
        }
        let grain = grain(row_bytes / join.runs.len().max(1));
        Self { n_rows: join.n_rows as usize, row_bytes, borders, grain }
    }
}

/// Returns the bytes of a chunk of pieces of so many bytes: it takes the time of `GRAIN_BYTES` in one piece. Chunks begin
/// with a line, so that threads write lines of their own.
fn grain(piece_bytes: usize) -> usize {
    let bytes = GRAIN_BYTES - GRAIN_BYTES * PIECE_BYTES / piece_bytes.saturating_add(PIECE_BYTES);
    (bytes / LINE * LINE).max(GRAIN_MIN_BYTES)
}

struct Concat {
    host: Host,
    layout: Layout,
}

struct Split {
    host: Host,
    layout: Layout,
}

fn concat(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let size = element_size(request.required_input(0)?.dtype());
    let layout = Layout::of(&Join::of_concat(request)?, size);
    Ok(Prepared::new(Concat { host: request.host, layout }))
}

fn split(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let size = element_size(request.required_input(0)?.dtype());
    let layout = Layout::of(&Join::of_split(request)?, size);
    Ok(Prepared::new(Split { host: request.host, layout }))
}

impl Launch<CpuDevice> for Concat {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let parts = Addresses(operands.input_refs());
        let whole = SendPtr(operands.output_ptr::<u8>(0));
        let bytes = self.layout.n_rows * self.layout.row_bytes;
        self.host.parallel_for(bytes, self.layout.grain, |range, _| {
            self.layout.pieces(range, |part, from, to, n| {
                let source = parts.get(part).wrapping_add(from);
                // SAFETY: `prepare` was told the extents of all operands, a piece lies within both
                // sides, the host lends them (B9), and the output overlaps no input (B21).
                unsafe { copy_run(source, whole.at(to), n) };
            });
            Ok(())
        })
    }
}

impl Launch<CpuDevice> for Split {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let parts = Addresses(operands.output_refs());
        let whole = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let bytes = self.layout.n_rows * self.layout.row_bytes;
        self.host.parallel_for(bytes, self.layout.grain, |range, _| {
            self.layout.pieces(range, |part, to, from, n| {
                let target = parts.get(part).wrapping_add(to);
                // SAFETY: `prepare` was told the extents of all operands, a piece lies within both sides, the host
                // lends them (B9), and outputs overlap neither the input nor each other (B21).
                unsafe { copy_run(whole.at(from), target, n) };
            });
            Ok(())
        })
    }
}

/// Addresses of operands, shared by the chunks of a loop. A reference also holds a handle, which is not
/// `Sync`, but it is unused here.
struct Addresses<'a>(&'a [BufferRef]);

// SAFETY: only the addresses are read, which are plain numbers.
unsafe impl Sync for Addresses<'_> {}

impl Addresses<'_> {
    fn get(&self, i: usize) -> *mut u8 {
        self.0[i].addr as *mut u8
    }
}

#[cfg(test)]
mod tests {
    use super::{GRAIN_BYTES, GRAIN_MIN_BYTES, LINE, grain};
    use crate::kernels::test_host::{Array, Value, run};
    use crate::kernels::testing::isas;

    #[test]
    fn short_pieces_are_smaller_chunks() {
        assert!(grain(4) < GRAIN_BYTES / 10 && grain(1 << 20) > GRAIN_BYTES * 9 / 10);
        for piece_bytes in [0, 1, 3, 64, 1000, usize::MAX] {
            let bytes = grain(piece_bytes);
            assert!(
                (GRAIN_MIN_BYTES..=GRAIN_BYTES).contains(&bytes) && bytes.is_multiple_of(LINE),
                "{bytes}"
            );
        }
    }

    #[test]
    fn columns_are_joined_in_several_chunks() {
        let column =
            |k: i16| Some(Array::of(&[5000, 1], &(0..5000).map(|i| i * 3 + k).collect::<Vec<i16>>()));
        let parts: Vec<_> = (0..3).map(column).collect();
        let whole = Some(Array::empty::<i16>(&[5000, 3]));
        assert!(grain(2) < 5000 * 3 * 2 / 4);
        for isa in isas() {
            let joined = run(isa, "Concat", &[("axis", Value::Int(1))], &parts, std::slice::from_ref(&whole));
            let joined = joined.expect("joins")[0].as_ref().expect("an output").elements::<i16>();
            assert!(joined.iter().zip(0..15_000).all(|(&found, expected)| found == expected));
        }
    }

    #[test]
    fn what_was_joined_comes_apart_again() {
        let extents = [0, 70, 1, 129];
        let part = |(k, &n): (usize, &usize)| {
            let elements: Vec<i32> = (0..200 * n * 3).map(|i| (i * 4 + k) as i32).collect();
            Some(Array::of(&[200, n, 3], &elements))
        };
        let parts: Vec<_> = extents.iter().enumerate().map(part).collect();
        let axis = [("axis", Value::Int(1))];
        let whole = Some(Array::empty::<i32>(&[200, 200, 3]));
        for isa in isas() {
            let joined = run(isa, "Concat", &axis, &parts, std::slice::from_ref(&whole)).expect("joins");
            let elements = joined[0].as_ref().expect("an output").elements::<i32>();
            // The first element of the last part in the second row.
            assert_eq!(elements[200 * 3 + 71 * 3], (129 * 3) * 4 + 3);
            let empty = extents.map(|n| Some(Array::empty::<i32>(&[200, n, 3])));
            let apart = run(isa, "Split", &axis, &joined, &empty).expect("splits");
            assert_eq!(apart, parts);
        }
    }
}
