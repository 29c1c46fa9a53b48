//! Det: determinants, by elimination with the largest pivots, in f64.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, extents};
use crate::kernels::numbers::real::Real;
use crate::kernels::types::FLOATS;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] =
    &[descriptor("Det", 11, det).types(&[TypeVar::of(FLOATS)]).cost(cost)];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let n = extents(request.required_input(0)?)?.last().copied().unwrap_or(1) as u64;
    cost::per_input(request, n)
}

struct Det {
    host: Host,
    real: Real,
    n_matrices: usize,
    n: usize,
}

fn det(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let from = extents(input)?;
    let (outer, n) = match from[..] {
        [ref outer @ .., rows, cols] if rows == cols => (outer, rows),
        _ => return Err(Error::invalid(format!("extents of {from:?}, expected square matrices"))),
    };
    expect_output(request, 0, outer)?;
    let room = Size::of((n * n).max(1)) * request.host.n_slots();
    let n_matrices = outer.iter().product();
    let kernel = Det { host: request.host, real: Real::of(input.dtype())?, n_matrices, n };
    Prepared::new(kernel).with_room(room * size_of::<f64>(), 64)
}

impl Launch<CpuDevice> for Det {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = self.real.source(operands.input_ref(0));
        let y = self.real.sink(operands.output_ref(0));
        let workspace = SendPtr(operands.workspace_ptr::<f64>());
        let n = self.n * self.n;
        self.host.parallel_for(self.n_matrices, (1024 / n.max(1)).max(1), |range, slot| {
            // SAFETY: the workspace has room for a matrix for each slot, and this slot's is its own.
            let matrix = unsafe { core::slice::from_raw_parts_mut(workspace.at(slot * n), n) };
            let mut pace = self.host.pace();
            for i in range {
                matrix.iter_mut().enumerate().for_each(|(k, to)| *to = x.get(i * n + k));
                let determinant = eliminated(matrix, self.n, |n| pace.work(n))?;
                // SAFETY: chunks do not overlap.
                unsafe { y.set(i, determinant) };
            }
            Ok(())
        })
    }
}

/// The determinant of a matrix, which is used up; `work` hears of the operations, and may end it.
fn eliminated(matrix: &mut [f64], n: usize, mut work: impl FnMut(usize) -> Result<()>) -> Result<f64> {
    let mut product = 1.0;
    for col in 0..n {
        let size = |row: usize| matrix[row * n + col].abs();
        // Of equal ones the first, so that rows do not change places without need.
        let pivot = (col..n).rev().max_by(|&a, &b| size(a).total_cmp(&size(b))).unwrap_or(col);
        if pivot != col {
            (0..n).for_each(|k| matrix.swap(pivot * n + k, col * n + k));
            product = -product;
        }
        let top = matrix[col * n + col];
        product *= top;
        if top == 0.0 {
            return Ok(product);
        }
        for row in col + 1..n {
            work(n - col)?;
            let factor = matrix[row * n + col] / top;
            for k in col..n {
                matrix[row * n + k] -= factor * matrix[col * n + k];
            }
        }
    }
    Ok(product)
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, run};

    #[test]
    fn determinants() {
        let eliminated = |matrix: &mut [f64], n| super::eliminated(matrix, n, |_| Ok(())).unwrap();
        assert_eq!(eliminated(&mut [], 0), 1.0);
        assert_eq!(eliminated(&mut [0.0, 1.0, 1.0, 0.0], 2), -1.0);
        let found = eliminated(&mut [2.0, 0.0, 1.0, 1.0, 3.0, 2.0, 1.0, 1.0, 4.0], 3);
        assert!((found - 18.0).abs() < 1e-12, "{found}");
        assert_eq!(eliminated(&mut [1.0, 2.0, 2.0, 4.0], 2), 0.0);
        let x = [1.0f32, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0];
        let output = [Some(Array::empty::<f32>(&[2]))];
        let found = run(Isa::Baseline, "Det", &[], &[Some(Array::of(&[2, 2, 2], &x))], &output);
        assert_eq!(found.expect("calculates")[0], Some(Array::of(&[2], &[-2.0f32, 0.0])));
        let error = run(Isa::Baseline, "Det", &[], &[Some(Array::of(&[4, 2], &x))], &output);
        assert!(error.expect_err("no squares").contains("expected square matrices"));
    }
}
