//! EyeLike: a matrix of zeros with ones on one diagonal.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{element_size, expect_output, extents};
use crate::kernels::numbers::real::Real;
use crate::kernels::types::MOVABLE;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor("EyeLike", 9, eye_like)
    .types(&[TypeVar::of(MOVABLE), TypeVar::of(MOVABLE)])
    .cost(cost::moved)];

struct EyeLike {
    real: Real,
    rows: usize,
    cols: usize,
    size: usize,
    /// Columns that the diagonal is moved to the right.
    k: i64,
}

fn eye_like(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let from = extents(request.required_input(0)?)?;
    let [rows, cols] = from[..] else {
        return Err(Error::invalid(format!("extents of {from:?}, expected a matrix")));
    };
    expect_output(request, 0, &from)?;
    let dtype = request.required_output(0)?.dtype();
    let (real, size) = (Real::of(dtype)?, element_size(dtype));
    Ok(Prepared::new(EyeLike { real, rows, cols, size, k: request.attrs.int("k", 0)? }))
}

impl Launch<CpuDevice> for EyeLike {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let y = self.real.sink(operands.output_ref(0));
        // SAFETY: the output has these extents; zero has the same bits in all dtypes.
        unsafe { operands.output_ptr::<u8>(0).write_bytes(0, self.rows * self.cols * self.size) };
        for row in 0..self.rows {
            let col = (row as i64).checked_add(self.k).and_then(|col| usize::try_from(col).ok());
            if let Some(col) = col.filter(|&col| col < self.cols) {
                // SAFETY: this is the only thread that writes.
                unsafe { y.set(row * self.cols + col, 1.0) };
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    #[test]
    fn ones_on_a_diagonal() {
        let eye = |k: i64| {
            let output = [Some(Array::empty::<i16>(&[2, 3]))];
            let input = [Some(Array::of(&[2, 3], &[9.0f32; 6]))];
            let found = run(Isa::Baseline, "EyeLike", &[("k", Value::Int(k))], &input, &output);
            found.expect("fills")[0].as_ref().expect("an output").elements::<i16>()
        };
        assert_eq!(eye(0), [1, 0, 0, 0, 1, 0]);
        assert_eq!(eye(2), [0, 0, 1, 0, 0, 0]);
        assert_eq!(eye(-1), [0, 0, 0, 1, 0, 0]);
        assert_eq!(eye(i64::MAX), [0; 6]);
        assert_eq!(eye(i64::MIN), [0; 6]);
        let vector = [Some(Array::of(&[3], &[9.0f32; 3]))];
        let error = run(Isa::Baseline, "EyeLike", &[], &vector, &[Some(Array::empty::<f32>(&[3]))]);
        assert!(error.expect_err("no matrix").contains("expected a matrix"));
    }
}
