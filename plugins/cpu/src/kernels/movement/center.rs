//! CenterCropPad: the middle of a tensor, or a tensor in the middle of zeros.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{axis, element_size, expect_output, extents, host_ints, row_major};
use crate::kernels::geometry::strided::copy_run;
use crate::kernels::geometry::walk::Walk;
use crate::kernels::types::MOVABLE;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor("CenterCropPad", 18, center_crop_pad)
    .types(&[TypeVar::of(MOVABLE), TypeVar::of(&[I64, I32])])
    .cost(cost::moved)];

struct CenterCropPad {
    host: Host,
    n_bytes: usize,
    /// Rows that are copied, with bytes of both sides from one to the next, and where they begin.
    rows: Walk<2>,
    first: [usize; 2],
    row_bytes: usize,
}

fn center_crop_pad(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let from = extents(input)?;
    let wanted = host_ints(request, 1)?.ok_or_else(|| Error::invalid("the extents are missing"))?;
    let axes = match request.attrs.ints("axes")? {
        Some(axes) => axes.iter().map(|&i| axis(i, from.len())).collect::<Result<Vec<_>>>()?,
        None => (0..from.len()).collect(),
    };
    if axes.len() != wanted.len() {
        return Err(Error::invalid(format!("{} extents for {} axes", wanted.len(), axes.len())));
    }
    let mut to = from.clone();
    for (&axis, &wanted) in axes.iter().zip(&wanted) {
        to[axis] = usize::try_from(wanted).map_err(|_| Error::invalid(format!("an extent of {wanted}")))?;
    }
    expect_output(request, 0, &to)?;
    let size = element_size(input.dtype());
    let (strides_from, strides_to) = (row_major(&from), row_major(&to));
    let (mut first, mut dims) = ([0; 2], Vec::new());
    for i in 0..from.len() {
        // The part cut off at the front, or added there: the smaller half.
        first[0] += from[i].saturating_sub(to[i]) / 2 * strides_from[i] as usize * size;
        first[1] += to[i].saturating_sub(from[i]) / 2 * strides_to[i] as usize * size;
        let size = size as isize;
        dims.push((from[i].min(to[i]), [strides_from[i] * size, strides_to[i] * size]));
    }
    let row = dims.pop().map_or(1, |(n, _)| n);
    Ok(Prepared::new(CenterCropPad {
        host: request.host,
        n_bytes: to.iter().product::<usize>() * size,
        rows: Walk::new(dims.into_iter())?,
        first,
        row_bytes: row * size,
    }))
}

impl Launch<CpuDevice> for CenterCropPad {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let input = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let output = SendPtr(operands.output_ptr::<u8>(0));
        self.host.parallel_for(
            self.n_bytes,
            crate::kernels::geometry::strided::GRAIN_BYTES,
            |range, _| {
                // SAFETY: the range lies within the output, and chunks do not overlap.
                unsafe { output.at(range.start).write_bytes(0, range.len()) };
                Ok(())
            },
        )?;
        if self.row_bytes == 0 {
            return Ok(());
        }
        let grain = (crate::kernels::geometry::strided::GRAIN_BYTES / self.row_bytes).max(1);
        self.host.parallel_for(self.rows.len(), grain, |range, _| {
            let mut at = self.rows.position(range.start);
            for _ in range {
                let (source, target) = (
                    input.at(self.first[0] + at.offsets[0] as usize),
                    output.at(self.first[1] + at.offsets[1] as usize),
                );
                // SAFETY: the smaller of both extents from these places on lies within both sides.
                unsafe { copy_run(source, target, self.row_bytes) };
                self.rows.advance(&mut at);
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
    fn the_middle_is_kept() {
        let x: Vec<i16> = (1..=12).collect();
        let centred = |wanted: [i64; 2], axes: Vec<i64>, to: [usize; 2]| {
            let inputs = [Some(Array::of(&[3, 4], &x)), Some(Array::of(&[2], &wanted))];
            let output = [Some(Array::empty::<i16>(&to))];
            let found =
                run(Isa::Baseline, "CenterCropPad", &[("axes", Value::Ints(axes))], &inputs, &output)?;
            Ok(found[0].as_ref().expect("an output").elements::<i16>())
        };
        assert_eq!(centred([2, 1], vec![-1, 0], [1, 2]), Ok(vec![6, 7]));
        assert_eq!(centred([2, 7], vec![0, 1], [2, 7]), Ok(vec![0, 1, 2, 3, 4, 0, 0, 0, 5, 6, 7, 8, 0, 0]));
        assert_eq!(centred([0, 7], vec![0, 1], [0, 7]), Ok(vec![]));
        let error: String = centred([2, 1], vec![0], [2, 4]).expect_err("as many extents as axes");
        assert!(error.contains("2 extents for 1 axes"), "{error}");
    }
}
