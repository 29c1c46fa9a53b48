//! Inverse, of onnxruntime's domain: inverses of matrices, by Gauss-Jordan elimination with the largest pivots, in f64.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, extents};
use crate::kernels::numbers::real::Real;
use crate::kernels::types::FLOATS;
use crate::stream::CpuStream;
use devbay_ops::{MICROSOFT_DOMAIN, descriptor_of};
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] =
    &[descriptor_of(MICROSOFT_DOMAIN, "Inverse", 1, inverse).types(&[TypeVar::of(FLOATS)]).cost(cost)];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let n = extents(request.required_input(0)?)?.last().copied().unwrap_or(1) as u64;
    cost::per_input(request, 2 * n)
}

struct Inverse {
    host: Host,
    real: Real,
    n_matrices: usize,
    n: usize,
}

fn inverse(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let from = extents(input)?;
    let (outer, n) = match from[..] {
        [ref outer @ .., rows, cols] if rows == cols => (outer, rows),
        _ => return Err(Error::invalid(format!("extents of {from:?}, expected square matrices"))),
    };
    expect_output(request, 0, &from)?;
    let room = Size::of((2 * n * n).max(1)) * request.host.n_slots();
    let n_matrices = outer.iter().product();
    let kernel = Inverse { host: request.host, real: Real::of(input.dtype())?, n_matrices, n };
    Prepared::new(kernel).with_room(room * size_of::<f64>(), 64)
}

impl Launch<CpuDevice> for Inverse {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = self.real.source(operands.input_ref(0));
        let y = self.real.sink(operands.output_ref(0));
        let workspace = SendPtr(operands.workspace_ptr::<f64>());
        let n = self.n;
        let size = n * n;
        self.host.parallel_for(self.n_matrices, (1024 / size.max(1)).max(1), |range, slot| {
            // SAFETY: the workspace has room for a matrix with the identity beside it for each slot, and this slot's is its own.
            let rows = unsafe { core::slice::from_raw_parts_mut(workspace.at(slot * 2 * size), 2 * size) };
            let mut pace = self.host.pace();
            for i in range {
                for (at, to) in rows.iter_mut().enumerate() {
                    let (row, col) = (at / (2 * n), at % (2 * n));
                    *to = if col < n { x.get(i * size + row * n + col) } else { f64::from(col - n == row) };
                }
                invert(rows, n, |n| pace.work(n))?;
                for at in 0..size {
                    // SAFETY: chunks do not overlap.
                    unsafe { y.set(i * size + at, rows[at / n * 2 * n + n + at % n]) };
                }
            }
            Ok(())
        })
    }
}

/// Turns the rows of `n` by `2 n` numbers, a matrix and the identity, into the identity and the inverse; `work` hears of the
/// operations, and may end it. A singular matrix gives infinities and NaN, as divisions by 0 do.
fn invert(rows: &mut [f64], n: usize, mut work: impl FnMut(usize) -> Result<()>) -> Result<()> {
    let width = 2 * n;
    for col in 0..n {
        let size = |row: usize| rows[row * width + col].abs();
        // Of equal ones the first, so that rows do not change places without need.
        let pivot = (col..n).rev().max_by(|&a, &b| size(a).total_cmp(&size(b))).unwrap_or(col);
        if pivot != col {
            (0..width).for_each(|k| rows.swap(pivot * width + k, col * width + k));
        }
        let top = rows[col * width + col];
        rows[col * width..][..width].iter_mut().for_each(|x| *x /= top);
        for row in (0..n).filter(|row| *row != col) {
            work(width)?;
            let factor = rows[row * width + col];
            for k in 0..width {
                rows[row * width + k] -= factor * rows[col * width + k];
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, run};

    #[test]
    fn inverses() {
        let x = [1.0f32, 2.0, 3.0, 4.0, 0.0, 2.0, 4.0, 0.0];
        let output = [Some(Array::empty::<f32>(&[2, 2, 2]))];
        let found = run(Isa::Baseline, "Inverse", &[], &[Some(Array::of(&[2, 2, 2], &x))], &output);
        let expected = [-2.0f32, 1.0, 1.5, -0.5, 0.0, 0.25, 0.5, 0.0];
        assert_eq!(found.expect("calculates")[0], Some(Array::of(&[2, 2, 2], &expected)));

        let singular = [1.0f32, 2.0, 2.0, 4.0];
        let output = [Some(Array::empty::<f32>(&[2, 2]))];
        let found = run(Isa::Baseline, "Inverse", &[], &[Some(Array::of(&[2, 2], &singular))], &output);
        let found = found.expect("calculates")[0].as_ref().expect("has the result").elements::<f32>();
        assert!(found.iter().all(|x| !x.is_finite()), "{found:?}");
        let error = run(Isa::Baseline, "Inverse", &[], &[Some(Array::of(&[4, 2], &x))], &output);
        assert!(error.expect_err("no squares").contains("expected square matrices"));
    }
}
