//! RoiAlign: regions of images, cut into bins, each the mean or maximum of samples between the elements.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::numbers::number::Number;
use crate::kernels::numbers::real::{Real, Sink, Source};
use crate::kernels::types::FLOATS;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_ops::read::Regions;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] =
    &[descriptor("RoiAlign", 16, roi_align).types(&[TypeVar::of(FLOATS), TypeVar::of(&[I64])]).cost(cost)];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    cost::per_output(request, 32)
}

/// Most samples of one side of a bin where the op leaves their number open: a region may be any size.
const SAMPLES_MAX: usize = 4096;

struct RoiAlign {
    host: Host,
    real: Real,
    /// Extents of the images: batch, channels, height, width.
    image: [usize; 4],
    regions: usize,
    /// Bins of a region: rows and columns.
    bins: [usize; 2],
    samples: usize,
    scale: f64,
    half_pixel: bool,
    maximum: bool,
}

fn roi_align(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let Regions { images, n, bins, scale } = Regions::of_roi_align(request)?;
    let samples = request.attrs.int("sampling_ratio", 0)?;
    Ok(Prepared::new(RoiAlign {
        host: request.host,
        real: Real::of(request.required_input(0)?.dtype())?,
        image: images.map(|extent| extent as usize),
        regions: n as usize,
        bins: bins.map(|bins| bins as usize),
        samples: match usize::try_from(samples) {
            Ok(n) if n <= SAMPLES_MAX => n,
            Ok(n) => return Err(Error::unsupported(format!("sampling_ratio {n}, up to {SAMPLES_MAX} are"))),
            Err(_) => {
                return Err(Error::invalid(format!("sampling_ratio is {samples}, expected at least 0")));
            }
        },
        scale: scale.into(),
        half_pixel: match request.attrs.string("coordinate_transformation_mode", "half_pixel")? {
            "half_pixel" => true,
            "output_half_pixel" => false,
            mode => return Err(Error::invalid(format!("coordinate_transformation_mode {mode}"))),
        },
        maximum: match request.attrs.string("mode", "avg")? {
            "avg" => false,
            "max" => true,
            mode => return Err(Error::invalid(format!("mode is avg or max, found {mode}"))),
        },
    }))
}

impl Launch<CpuDevice> for RoiAlign {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = self.real.source(operands.input_ref(0));
        let rois = self.real.source(operands.input_ref(1));
        let y = self.real.sink(operands.output_ref(0));
        let batches = operands.input::<i64>(2);
        let [n, channels, ..] = self.image;
        self.host.parallel_for(self.regions * channels, 1, |range, _| {
            for i in range {
                let (region, channel) = (i / channels, i % channels);
                let batch = batches[region];
                let Some(batch) = usize::try_from(batch).ok().filter(|&batch| batch < n) else {
                    return Err(Error::invalid(format!(
                        "region {region} is of image {batch}, of which there are {n}"
                    )));
                };
                self.region(x, batch * channels + channel, rois, region, y, i)?;
            }
            Ok(())
        })
    }
}

impl RoiAlign {
    /// One channel of a region.
    fn region(&self, x: Source, plane: usize, rois: Source, region: usize, y: Sink, to: usize) -> Result<()> {
        let offset = if self.half_pixel { 0.5 } else { 0.0 };
        let side = |i: usize| rois.get(region * 4 + i) * self.scale - offset;
        let start = [side(1), side(0)];
        let mut length = [side(3) - start[0], side(2) - start[1]];
        if !self.half_pixel {
            length = length.map(|length| length.max(1.0));
        }
        let bin = [length[0] / self.bins[0] as f64, length[1] / self.bins[1] as f64];
        // A cast makes negative numbers and NaN 0.
        let samples = bin.map(|bin| match self.samples {
            0 => (bin.ceil() as usize).min(SAMPLES_MAX),
            samples => samples,
        });
        let mut pace = self.host.pace();
        for row in 0..self.bins[0] {
            for col in 0..self.bins[1] {
                let (mut sum, mut largest) = (0.0, None);
                for i in 0..samples[0] {
                    let at = |k: usize, n: usize, bin_at: usize, i: usize| {
                        start[k] + bin_at as f64 * bin[k] + (i as f64 + 0.5) * bin[k] / n as f64
                    };
                    pace.work(16 * samples[1])?;
                    let down = at(0, samples[0], row, i);
                    for k in 0..samples[1] {
                        let parts = self.parts(x, plane, [down, at(1, samples[1], col, k)]);
                        sum += parts.iter().sum::<f64>();
                        let part = parts.into_iter().fold(f64::NEG_INFINITY, f64::larger);
                        largest = Some(largest.map_or(part, |largest: f64| largest.larger(part)));
                    }
                }
                let value = match self.maximum {
                    true => largest.unwrap_or(0.0),
                    false => sum / (samples[0] * samples[1]).max(1) as f64,
                };
                // SAFETY: the region's channel is this chunk's own.
                unsafe { y.set((to * self.bins[0] + row) * self.bins[1] + col, value) };
            }
        }
        Ok(())
    }

    /// The four elements around a position, each times its weight: their sum is the sample. Nothing is there
    /// beyond one element outside of the image.
    fn parts(&self, x: Source, plane: usize, at: [f64; 2]) -> [f64; 4] {
        let extents = [self.image[2], self.image[3]];
        if (0..2).any(|i| !(at[i] >= -1.0 && at[i] <= extents[i] as f64)) {
            return [0.0; 4];
        }
        let around = |i: usize| {
            let (position, last) = (at[i].max(0.0), extents[i] - 1);
            let low = position as usize;
            if low >= last { (last, last, 0.0) } else { (low, low + 1, position - low as f64) }
        };
        let ((top, bottom, v), (left, right, u)) = (around(0), around(1));
        let get = |row: usize, col: usize| x.get((plane * extents[0] + row) * extents[1] + col);
        [
            (1.0 - v) * (1.0 - u) * get(top, left),
            (1.0 - v) * u * get(top, right),
            v * (1.0 - u) * get(bottom, left),
            v * u * get(bottom, right),
        ]
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    #[test]
    fn a_region_is_cut_into_bins() {
        // On a plane that rises by 10 a row and 1 a column a mean is the plane at the middle of the bin.
        let x: Vec<f32> = (0..36).map(|i| (i / 6 * 10 + i % 6) as f32).collect();
        let found = |batch: i64, samples: i64| {
            let inputs = [
                Some(Array::of(&[1, 1, 6, 6], &x)),
                Some(Array::of(&[1, 4], &[1.0f32, 1.0, 5.0, 3.0])),
                Some(Array::of(&[1], &[batch])),
            ];
            let attrs = [
                ("output_height", Value::Int(2)),
                ("output_width", Value::Int(2)),
                ("sampling_ratio", Value::Int(samples)),
            ];
            let output = [Some(Array::empty::<f32>(&[1, 1, 2, 2]))];
            let found = run(Isa::Baseline, "RoiAlign", &attrs, &inputs, &output)?;
            Ok(found[0].as_ref().expect("an output").elements::<f32>())
        };
        assert_eq!(found(0, 2), Ok(vec![11.5, 13.5, 21.5, 23.5]));
        assert_eq!(found(0, 0), Ok(vec![11.5, 13.5, 21.5, 23.5]));
        for batch in [1, -1] {
            let error: String = found(batch, 2).expect_err("no such image");
            assert!(error.contains("of which there are 1"), "{error}");
        }
        let error: String = found(0, -1).expect_err("fewer samples than none");
        assert!(error.contains("sampling_ratio is -1"), "{error}");
    }
}
