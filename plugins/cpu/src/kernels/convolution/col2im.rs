//! Col2Im: blocks put back where they were cut from; where they overlap they add up.
//!
//! Each element of the image looks for the blocks that cover it, so that sums have one order and no chunk meets
//! another.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, extents, host_ints};
use crate::kernels::numbers::real::{Real, Source};
use crate::kernels::types::FLOATS;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] =
    &[descriptor("Col2Im", 18, col2im).types(&[TypeVar::of(FLOATS), TypeVar::of(&[I64])]).cost(cost)];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    cost::per_input(request, 4)
}

/// One axis of the image.
struct Axis {
    extent: usize,
    block: usize,
    stride: usize,
    dilation: usize,
    pad: usize,
    /// Blocks along it.
    n: usize,
}

struct Col2Im {
    host: Host,
    real: Real,
    axes: Vec<Axis>,
    planes: usize,
    image: usize,
    block: usize,
    n_blocks: usize,
}

fn col2im(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let from = extents(input)?;
    let list = |i: usize| {
        let found = host_ints(request, i)?.unwrap_or_default();
        found
            .iter()
            .map(|&n| usize::try_from(n).ok())
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| Error::invalid(format!("input {i} holds {found:?}, expected extents from 0")))
    };
    let (image, block) = (list(1)?, list(2)?);
    let n = image.len();
    let attr = |name: &str, n: usize, default: usize, least: usize| match request.attrs.ints(name)? {
        None => Ok(vec![default; n]),
        Some(found) => {
            let list: Option<Vec<_>> = found.iter().map(|&n| usize::try_from(n).ok()).collect();
            list.filter(|list| list.len() == n && list.iter().all(|&n| n >= least)).ok_or_else(|| {
                Error::invalid(format!("{name} is {found:?}, expected {n} numbers from {least}"))
            })
        }
    };
    let (strides, dilations) = (attr("strides", n, 1, 1)?, attr("dilations", n, 1, 1)?);
    let pads = attr("pads", 2 * n, 0, 0)?;
    let broken = || Error::invalid(format!("blocks of {block:?} in {from:?} for an image of {image:?}"));
    if block.len() != n || block.contains(&0) {
        return Err(broken());
    }
    let mut axes = Vec::with_capacity(n);
    for i in 0..n {
        let span = (block[i] - 1).checked_mul(dilations[i]).and_then(|span| span.checked_add(1));
        let room = image[i].checked_add(pads[i]).and_then(|room| room.checked_add(pads[n + i]));
        let (span, room) = span.zip(room).filter(|(span, room)| span <= room).ok_or_else(broken)?;
        axes.push(Axis {
            extent: image[i],
            block: block[i],
            stride: strides[i],
            dilation: dilations[i],
            pad: pads[i],
            n: (room - span) / strides[i] + 1,
        });
    }
    let product = |of: &dyn Fn(&Axis) -> usize| {
        axes.iter().try_fold(1usize, |product, axis| product.checked_mul(of(axis))).ok_or_else(broken)
    };
    let (in_block, n_blocks) = (product(&|axis| axis.block)?, product(&|axis| axis.n)?);
    let [batches, rows, cols] = from[..] else {
        return Err(broken());
    };
    if cols != n_blocks || !rows.is_multiple_of(in_block) {
        return Err(broken());
    }
    let channels = rows / in_block;
    expect_output(request, 0, &[&[batches, channels], &image[..]].concat())?;
    Ok(Prepared::new(Col2Im {
        host: request.host,
        real: Real::of(input.dtype())?,
        axes,
        planes: batches * channels,
        image: image.iter().product(),
        block: in_block,
        n_blocks,
    }))
}

impl Launch<CpuDevice> for Col2Im {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = self.real.source(operands.input_ref(0));
        let y = self.real.sink(operands.output_ref(0));
        let grain = (4096 / self.block).max(1);
        self.host.parallel_for(self.planes * self.image, grain, |range, _| {
            for i in range {
                let (plane, at) = (i / self.image, i % self.image);
                let sum: f64 = (0..self.block).map(|k| self.part(x, plane, at, k)).sum();
                // SAFETY: chunks do not overlap.
                unsafe { y.set(i, sum) };
            }
            Ok(())
        })
    }
}

impl Col2Im {
    /// Returns what the element `k` of some block adds to an element of the image; 0 if none lies there.
    fn part(&self, x: Source, plane: usize, mut at: usize, k: usize) -> f64 {
        let (mut rest, mut which, mut stride) = (k, 0, 1);
        for axis in self.axes.iter().rev() {
            let (position, offset) = (at % axis.extent, rest % axis.block * axis.dilation);
            (at, rest) = (at / axis.extent, rest / axis.block);
            match (position + axis.pad).checked_sub(offset) {
                Some(first) if first % axis.stride == 0 && first / axis.stride < axis.n => {
                    which += first / axis.stride * stride;
                }
                _ => return 0.0,
            }
            stride *= axis.n;
        }
        x.get((plane * self.block + k) * self.n_blocks + which)
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    #[test]
    fn blocks_add_up_where_they_overlap() {
        // A line of 4 from blocks of 2: at 0, 1, 2.
        let x = [1.0f32, 2.0, 3.0, 10.0, 20.0, 30.0];
        let put = |block: i64, attrs: &[(&'static str, Value)], cols: usize| {
            let n = 6 / cols;
            let inputs = [
                Some(Array::of(&[1, n, cols], &x[..n * cols])),
                Some(Array::of(&[1], &[4i64])),
                Some(Array::of(&[1], &[block])),
            ];
            let output = [Some(Array::empty::<f32>(&[1, 1, 4]))];
            let found = run(Isa::Baseline, "Col2Im", attrs, &inputs, &output)?;
            Ok(found[0].as_ref().expect("an output").elements::<f32>())
        };
        assert_eq!(put(2, &[], 3), Ok(vec![1.0, 12.0, 23.0, 30.0]));
        let attrs = [("strides", Value::Ints(vec![2])), ("pads", Value::Ints(vec![1, 1]))];
        assert_eq!(put(2, &attrs, 3), Ok(vec![10.0, 2.0, 20.0, 3.0]));
        assert_eq!(
            put(2, &[("dilations", Value::Ints(vec![2]))], 2),
            Err::<Vec<f32>, _>("blocks of [2] in [1, 3, 2] for an image of [4]".to_owned())
        );
        assert!(put(0, &[], 3).is_err() && put(9, &[], 3).is_err());
        let error: String = put(2, &[("strides", Value::Ints(vec![0]))], 3).expect_err("a stride of 0");
        assert!(error.contains("expected 1 numbers from 1"), "{error}");
    }
}
