//! MaxRoiPool: regions of images, cut into bins of whole elements, each the largest of its elements.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::numbers::number::Number;
use crate::kernels::numbers::real::{Real, Source};
use crate::kernels::types::FLOATS;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_ops::read::Regions;
use devbay_plugin_api::sdk::*;
use std::ops::Range;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] =
    &[descriptor("MaxRoiPool", 22, max_roi_pool).types(&[TypeVar::of(FLOATS)]).cost(cost)];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    // Regions are known when they come; one that covers its image reads each element about once.
    let Regions { images: [_, channels, height, width], n, .. } = Regions::of_max_roi_pool(request)?;
    let elements =
        [channels, height, width].iter().fold(n as u64, |n, &extent| n.saturating_mul(extent as u64));
    Ok(cost::of(request, elements))
}

/// Furthest that a corner may be from the first element, so that the sums of positions fit 64 bits. Nothing is there.
const FURTHEST: f64 = (1u64 << 52) as f64;

struct MaxRoiPool {
    host: Host,
    real: Real,
    /// Extents of the images: batch, channels, height, width.
    images: [usize; 4],
    regions: usize,
    /// Bins of a region: rows and columns.
    bins: [usize; 2],
    scale: f64,
}

fn max_roi_pool(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let Regions { images, n, bins, scale } = Regions::of_max_roi_pool(request)?;
    Ok(Prepared::new(MaxRoiPool {
        host: request.host,
        real: Real::of(request.required_input(0)?.dtype())?,
        images: images.map(|extent| extent as usize),
        regions: n as usize,
        bins: bins.map(|bins| bins as usize),
        scale: scale.into(),
    }))
}

impl Launch<CpuDevice> for MaxRoiPool {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = self.real.source(operands.input_ref(0));
        let rois = self.real.source(operands.input_ref(1));
        let y = self.real.sink(operands.output_ref(0));
        let [_, channels, height, width] = self.images;
        let [rows, columns] = self.bins;
        self.host.parallel_for(self.regions * channels, 1, |range, _| {
            let mut pace = self.host.pace();
            for i in range {
                let (region, channel) = (i / channels, i % channels);
                let plane = self.image(rois, region)? * channels + channel;
                let corner = |k: usize| {
                    // A cast makes 0 of NaN.
                    (rois.get(region * 5 + k) * self.scale).round().clamp(-FURTHEST, FURTHEST) as i64
                };
                for row in 0..rows {
                    let down = bin(corner(2), corner(4), row, rows, height);
                    for column in 0..columns {
                        let right = bin(corner(1), corner(3), column, columns, width);
                        pace.work(4 * (1 + down.len() * right.len()))?;
                        let value = self.largest(x, plane, &down, &right);
                        // SAFETY: the region's channel is this chunk's own.
                        unsafe { y.set((i * rows + row) * columns + column, value) };
                    }
                }
            }
            Ok(())
        })
    }
}

impl MaxRoiPool {
    /// Returns the image of a region.
    fn image(&self, rois: Source, region: usize) -> Result<usize> {
        let (image, n) = (rois.get(region * 5), self.images[0]);
        if image >= 0.0 && image < n as f64 {
            return Ok(image as usize);
        }
        Err(Error::invalid(format!("region {region} is of image {image}, of which there are {n}")))
    }

    /// The largest element of a plane within rows and columns; 0 if there is none.
    fn largest(&self, x: Source, plane: usize, rows: &Range<usize>, columns: &Range<usize>) -> f64 {
        let [_, _, height, width] = self.images;
        let at = |row: usize| (plane * height + row) * width;
        let elements =
            rows.clone().flat_map(|row| columns.clone().map(move |column| x.get(at(row) + column)));
        elements.reduce(f64::larger).unwrap_or(0.0)
    }
}

/// The elements of a bin along one side of a region from its first to its last element, within the image.
fn bin(first: i64, last: i64, i: usize, bins: usize, extent: usize) -> Range<usize> {
    let length = i128::from((last - first).saturating_add(1).max(1));
    let (i, bins) = (i as i128, bins as i128);
    // Rounded down and up. Lengths are positive.
    let (start, end) = (i * length / bins, ((i + 1) * length + bins - 1) / bins);
    let inside = |position: i128| (position + i128::from(first)).clamp(0, extent as i128) as usize;
    inside(start)..inside(end)
}

#[cfg(test)]
mod tests {
    use super::bin;
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    #[test]
    fn bins_cover_a_region_and_end_with_the_image() {
        let bins =
            |first, last, n, extent| (0..n).map(|i| bin(first, last, i, n, extent)).collect::<Vec<_>>();
        assert_eq!(bins(1, 4, 2, 8), [1..3, 3..5]);
        assert_eq!(bins(0, 4, 2, 8), [0..3, 2..5], "an element between two bins is in both");
        assert_eq!(bins(2, 2, 3, 8), [2..3, 2..3, 2..3]);
        assert_eq!(bin(5, 1, 0, 1, 8), 5..6, "a region has at least one element");
        assert_eq!(bins(-2, 1, 2, 8), [0..0, 0..2]);
        assert_eq!(bins(6, 9, 2, 8), [6..8, 8..8]);
        assert_eq!(bin(-(1 << 52), 1 << 52, 0, 1, 8), 0..8);
    }

    #[test]
    fn the_largest_of_each_bin() {
        let x: Vec<f32> = (0..32).map(|i| if i == 19 { f32::NAN } else { i as f32 }).collect();
        let found = |roi: [f32; 5]| {
            let inputs = [Some(Array::of(&[2, 1, 4, 4], &x)), Some(Array::of(&[1, 5], &roi))];
            let attrs = [("pooled_shape", Value::Ints(vec![1, 2])), ("spatial_scale", Value::Float(0.5))];
            let output = [Some(Array::empty::<f32>(&[1, 1, 1, 2]))];
            let found = run(Isa::Baseline, "MaxRoiPool", &attrs, &inputs, &output)?;
            Ok(found[0].as_ref().expect("an output").elements::<f32>())
        };
        assert_eq!(found([0.0, 0.0, 2.0, 6.0, 4.0]), Ok(vec![9.0, 11.0]));
        // Halves are rounded away from zero; beyond the image there is nothing.
        assert_eq!(found([1.0, 1.0, 3.0, 1.0, 3.0]), Ok(vec![25.0, 25.0]));
        assert_eq!(found([1.0, 20.0, 0.0, 30.0, 2.0]), Ok(vec![0.0, 0.0]));
        let with_nan = found([1.0, 0.0, 0.0, 6.0, 2.0]).expect("an image");
        assert!(with_nan[0] == 21.0 && with_nan[1].is_nan(), "{with_nan:?}");
        for image in [2.0, -1.0, f32::NAN] {
            let error: String = found([image, 0.0, 0.0, 1.0, 1.0]).expect_err("no such image");
            assert!(error.contains("of which there are 2"), "{error}");
        }
    }
}
