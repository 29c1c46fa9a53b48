//! AffineGrid and MelWeightMatrix: tables that follow from a few numbers.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, extents, host_int, host_ints};
use crate::kernels::numbers::real::Real;
use crate::kernels::types::FLOATS;
use crate::kernels::types::NUMBERS;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::reserve;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("AffineGrid", 20, affine_grid)
        .types(&[TypeVar::of(FLOATS), TypeVar::of(&[I64])])
        .cost(cost)
        .doc("positions for GridSample"),
    descriptor("MelWeightMatrix", 17, mel_weight_matrix)
        .types(&[TypeVar::of(&[I64, I32]), TypeVar::of(FLOATS), TypeVar::of(NUMBERS)])
        .cost(cost)
        .doc("frequencies by bands of hearing"),
];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    cost::per_output(request, 8)
}

struct AffineGrid {
    host: Host,
    real: Real,
    batches: usize,
    /// Extents of the image, outermost first.
    image: Vec<usize>,
    align_corners: bool,
}

fn affine_grid(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let theta = request.required_input(0)?;
    let size = host_ints(request, 1)?.unwrap_or_default();
    let sizes: Option<Vec<usize>> = size.iter().map(|&n| usize::try_from(n).ok()).collect();
    let (batches, image) = match sizes.as_deref() {
        Some([batches, _, image @ ..]) if [2, 3].contains(&image.len()) => (*batches, image.to_vec()),
        _ => return Err(Error::invalid(format!("a size of {size:?}, expected that of an image"))),
    };
    let axes = image.len();
    let found = extents(theta)?;
    if found != [batches, axes, axes + 1] {
        return Err(Error::invalid(format!("matrices of {found:?} for {batches} images of {axes} axes")));
    }
    expect_output(request, 0, &[&[batches], &image[..], &[axes]].concat())?;
    let align_corners = request.attrs.int("align_corners", 0)? != 0;
    Ok(Prepared::new(AffineGrid {
        host: request.host,
        real: Real::of(theta.dtype())?,
        batches,
        image,
        align_corners,
    }))
}

impl Launch<CpuDevice> for AffineGrid {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let theta = self.real.source(operands.input_ref(0));
        let y = self.real.sink(operands.output_ref(0));
        let (axes, n): (usize, usize) = (self.image.len(), self.image.iter().product());
        self.host.parallel_for(self.batches * n, 1024, |range, _| {
            for i in range {
                let (batch, mut at) = (i / n, i % n);
                // The innermost axis comes first; the last number stays 1.
                let mut position = [1.0; 4];
                for (position, &extent) in position[..axes].iter_mut().zip(self.image.iter().rev()) {
                    *position = place(at % extent, extent, self.align_corners);
                    at /= extent;
                }
                for row in 0..axes {
                    let first = (batch * axes + row) * (axes + 1);
                    let sum: f64 = (0..=axes).map(|k| theta.get(first + k) * position[k]).sum();
                    // SAFETY: chunks do not overlap.
                    unsafe { y.set(i * axes + row, sum) };
                }
            }
            Ok(())
        })
    }
}

/// Returns the place of element `i` of `n` between -1 and 1.
fn place(i: usize, n: usize, align_corners: bool) -> f64 {
    match (align_corners, n) {
        (true, 1) => -1.0,
        (true, n) => -1.0 + 2.0 * i as f64 / (n as f64 - 1.0),
        (false, n) => -1.0 + (2.0 * i as f64 + 1.0) / n as f64,
    }
}

struct MelWeightMatrix {
    real: Real,
    rows: usize,
    cols: usize,
    /// The row where each triangle begins; it ends where the one after the next begins.
    edges: Vec<usize>,
}

fn mel_weight_matrix(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let count = |i: usize| {
        let found = host_int(request, i, -1)?;
        usize::try_from(found)
            .map_err(|_| Error::invalid(format!("input {i} is {found}, expected at least 0")))
    };
    let number = |i: usize| {
        let tensor = request.required_input(i)?;
        Real::of(tensor.dtype())?.constant(tensor)
    };
    let (cols, length, rate) = (count(0)?, count(1)?, count(2)?);
    let (low, high) = (number(3)?, number(4)?);
    let rows = length / 2 + 1;
    expect_output(request, 0, &[rows, cols])?;
    let mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let hertz = |mel: f64| 700.0 * (f64::powf(10.0, mel / 2595.0) - 1.0);
    let step = (mel(high) - mel(low)) / (cols as f64 + 2.0);
    let edge = |i: usize| {
        let bin = ((length as f64 + 1.0) * hertz(mel(low) + i as f64 * step) / rate as f64).floor();
        if bin >= 0.0 && bin < rows as f64 {
            return Ok(bin as usize);
        }
        Err(Error::invalid(format!(
            "bands from {low} to {high} hertz, which end beyond a spectrum of {rows} frequencies at {rate} hertz"
        )))
    };
    let edges: Vec<usize> = reserve::try_collected(cols + 2, (0..cols + 2).map(edge), "the edges of bands")?;
    if !edges.is_sorted() {
        return Err(Error::invalid(format!("bands from {low} to {high} hertz, expected rising ones")));
    }
    let real = Real::of(request.required_output(0)?.dtype())?;
    Ok(Prepared::new(MelWeightMatrix { real, rows, cols, edges }))
}

impl Launch<CpuDevice> for MelWeightMatrix {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let y = self.real.sink(operands.output_ref(0));
        for row in 0..self.rows {
            for col in 0..self.cols {
                let [from, top, to] = [0, 1, 2].map(|i| self.edges[col + i]);
                let value = match row {
                    row if row == top => 1.0,
                    row if row >= from && row < top => (row - from) as f64 / (top - from) as f64,
                    row if row > top && row < to => (to - row) as f64 / (to - top) as f64,
                    _ => 0.0,
                };
                // SAFETY: this is the only thread that writes.
                unsafe { y.set(row * self.cols + col, value) };
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::place;
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    #[test]
    fn places_of_elements() {
        assert_eq!([0, 1, 2].map(|i| place(i, 3, true)), [-1.0, 0.0, 1.0]);
        assert_eq!([0, 1].map(|i| place(i, 2, false)), [-0.5, 0.5]);
        assert_eq!(place(0, 1, true), -1.0);
    }

    #[test]
    fn a_grid_is_turned_and_moved() {
        // x' = y, y' = x + 10.
        let grid = |size: [i64; 4]| {
            let theta = [0.0f32, 1.0, 0.0, 1.0, 0.0, 10.0];
            let inputs = [Some(Array::of(&[1, 2, 3], &theta)), Some(Array::of(&[4], &size))];
            let attrs = [("align_corners", Value::Int(1))];
            let output = [Some(Array::empty::<f32>(&[1, 2, 3, 2]))];
            let found = run(Isa::Baseline, "AffineGrid", &attrs, &inputs, &output)?;
            Ok(found[0].as_ref().expect("an output").elements::<f32>())
        };
        let expected = vec![-1.0, 9.0, -1.0, 10.0, -1.0, 11.0, 1.0, 9.0, 1.0, 10.0, 1.0, 11.0];
        assert_eq!(grid([1, 7, 2, 3]), Ok(expected));
        let error: String = grid([2, 7, 2, 3]).expect_err("a matrix for each image");
        assert!(error.contains("for 2 images of 2 axes"), "{error}");
        assert!(grid([1, 7, -2, 3]).is_err());
    }

    #[test]
    fn bands_are_triangles() {
        let matrix = |high: f32| {
            let inputs = [
                Some(Array::of(&[], &[2i64])),
                Some(Array::of(&[], &[16i64])),
                Some(Array::of(&[], &[8192i64])),
                Some(Array::of(&[], &[0.0f32])),
                Some(Array::of(&[], &[high])),
            ];
            let output = [Some(Array::empty::<f32>(&[9, 2]))];
            let found = run(Isa::Baseline, "MelWeightMatrix", &[], &inputs, &output)?;
            Ok(found[0].as_ref().expect("an output").elements::<f32>())
        };
        // Edges at 0, 458.8, 1218.5 and 2476 hertz of 481.9 each: the frequencies 0, 0, 2, 5.
        let found: Vec<f32> = matrix(4560.0).expect("a matrix");
        let column = |col: usize| found.chunks(2).map(|row| row[col]).collect::<Vec<_>>();
        assert_eq!(column(0), [1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        let third = 1.0 / 3.0;
        assert_eq!(column(1), [0.0, 0.5, 1.0, 2.0 * third, third, 0.0, 0.0, 0.0, 0.0]);
        let error: String = matrix(1e6).expect_err("bands beyond the spectrum");
        assert!(error.contains("9 frequencies"), "{error}");
    }
}
