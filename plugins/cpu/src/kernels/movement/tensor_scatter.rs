//! TensorScatter: rows of an update written into a cache, at a place of each batch's own.
//!
//! The copy of the cache falls away when the output shares its memory.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{around, axis, element_size, expect_output, extents};
use crate::kernels::geometry::strided::{GRAIN_BYTES, copy_run};
use crate::kernels::types::MOVABLE;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor("TensorScatter", 24, tensor_scatter)
    .types(&[TypeVar::of(MOVABLE), TypeVar::of(&[I64])])
    .in_place(&[0])
    .cost(cost::moved)];

struct TensorScatter {
    host: Host,
    /// Everything before the axis, and how much of it belongs to one batch.
    outer: usize,
    per_batch: usize,
    /// Rows of the cache and of the update.
    rows: usize,
    updated: usize,
    bytes: usize,
    placed: bool,
    circular: bool,
}

fn tensor_scatter(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let cache = request.required_input(0)?;
    let (to, from) = (extents(cache)?, extents(request.required_input(1)?)?);
    let axis = axis(request.attrs.int("axis", -2)?, to.len())?;
    expect_output(request, 0, &to)?;
    let fits = |i: usize| if i == axis { from[i] <= to[i] } else { from[i] == to[i] };
    if axis == 0 || from.len() != to.len() || !(0..to.len()).all(fits) {
        return Err(Error::invalid(format!("an update of {from:?} along axis {axis} of {to:?}")));
    }
    let placed = match request.input(2).map(extents).transpose()? {
        None => false,
        Some(found) if found == to[..1] => true,
        Some(found) => return Err(Error::invalid(format!("places of {found:?} for {} batches", to[0]))),
    };
    let circular = match request.attrs.string("mode", "linear")? {
        "linear" => false,
        "circular" => true,
        mode => return Err(Error::invalid(format!("mode is linear or circular, found {mode}"))),
    };
    let [outer, rows, inner] = around(&to, axis);
    Ok(Prepared::new(TensorScatter {
        host: request.host,
        outer,
        per_batch: to[1..axis].iter().product(),
        rows,
        updated: from[axis],
        bytes: inner * element_size(cache.dtype()),
        placed,
        circular,
    }))
}

impl Launch<CpuDevice> for TensorScatter {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let cache = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let update = SendPtr(operands.input_ptr::<u8>(1).cast_mut());
        let output = SendPtr(operands.output_ptr::<u8>(0));
        let places = if self.placed { operands.input::<i64>(2) } else { &[] };
        let block = self.rows * self.bytes;
        self.host.parallel_for(self.outer, (GRAIN_BYTES / block.max(1)).max(1), |range, _| {
            for outer in range {
                let (from, to) = (cache.at(outer * block), output.at(outer * block));
                if !core::ptr::eq(from, to) {
                    // SAFETY: both have the same extents, and are the same memory or apart (`in_place`).
                    unsafe { copy_run(from, to, block) };
                }
                let place = places.get(outer / self.per_batch.max(1)).copied().unwrap_or(0);
                let first = match (usize::try_from(place), self.circular) {
                    (Ok(place), true) if self.rows > 0 => place % self.rows,
                    (Ok(place), false) if place <= self.rows - self.updated => place,
                    _ if self.updated == 0 => continue,
                    _ => {
                        return Err(Error::invalid(format!(
                            "{} rows at {place} of a cache of {}",
                            self.updated, self.rows
                        )));
                    }
                };
                for i in 0..self.updated {
                    let row = (first + i) % self.rows;
                    let source = update.at((outer * self.updated + i) * self.bytes);
                    // SAFETY: the rows lie within their operands, whose extents were checked; each chunk has
                    // blocks of its own.
                    unsafe { copy_run(source, to.add(row * self.bytes), self.bytes) };
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
    fn rows_are_written_where_they_belong() {
        let cache: Vec<u16> = (0..12).collect();
        let written = |mode: &'static str, places: [i64; 2]| {
            let inputs = [
                Some(Array::of(&[2, 3, 2], &cache)),
                Some(Array::of(&[2, 2, 2], &[50u16, 51, 52, 53, 54, 55, 56, 57])),
                Some(Array::of(&[2], &places)),
            ];
            let output = [Some(Array::empty::<u16>(&[2, 3, 2]))];
            let found =
                run(Isa::Baseline, "TensorScatter", &[("mode", Value::Text(mode))], &inputs, &output)?;
            Ok(found[0].as_ref().expect("an output").elements::<u16>())
        };
        let expected = vec![0, 1, 50, 51, 52, 53, 54, 55, 56, 57, 10, 11];
        assert_eq!(written("linear", [1, 0]), Ok(expected));
        let expected = vec![52, 53, 2, 3, 50, 51, 6, 7, 54, 55, 56, 57];
        assert_eq!(written("circular", [2, 4]), Ok(expected));
        for places in [[2, 0], [-1, 0]] {
            let error: String = written("linear", places).expect_err("no room for the rows");
            assert!(error.contains("of a cache of 3"), "{error}");
        }
        assert!(written("backwards", [0, 0]).is_err());
    }
}
