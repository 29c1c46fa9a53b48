//! SwiGLU: one operand, let through by the Swish of another.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, extents};
use crate::kernels::numbers::real::Real;
use crate::kernels::types::FLOATS;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] =
    &[descriptor("SwiGLU", 28, swi_glu).types(&[TypeVar::of(FLOATS)]).cost(cost)];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    cost::per_output(request, 12)
}

struct SwiGlu {
    host: Host,
    real: Real,
    n: usize,
    alpha: f64,
}

fn swi_glu(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let (a, b) = (request.required_input(0)?, request.required_input(1)?);
    let shapes = [extents(a)?, extents(b)?];
    if shapes[0] != shapes[1] {
        return Err(Error::invalid(format!(
            "{:?} and {:?}, expected the same extents",
            shapes[0], shapes[1]
        )));
    }
    expect_output(request, 0, &shapes[0])?;
    let n = shapes[0].iter().product();
    let alpha = request.attrs.float("alpha", 1.0)?.into();
    Ok(Prepared::new(SwiGlu { host: request.host, real: Real::of(a.dtype())?, n, alpha }))
}

impl Launch<CpuDevice> for SwiGlu {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let [a, b] = [0, 1].map(|i| self.real.source(operands.input_ref(i)));
        let y = self.real.sink(operands.output_ref(0));
        self.host.parallel_for(self.n, 4096, |range, _| {
            for i in range {
                let gate = a.get(i);
                let value = gate / (1.0 + (-self.alpha * gate).exp()) * b.get(i);
                // SAFETY: chunks do not overlap.
                unsafe { y.set(i, value) };
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, run};

    #[test]
    fn a_gate_lets_through() {
        let gated = |n: usize| {
            let inputs = [
                Some(Array::of(&[3], &[0.0f32, 1.0, -50.0])),
                Some(Array::of(&[n], &[2.0f32, 2.0, 2.0, 2.0][..n])),
            ];
            let output = [Some(Array::empty::<f32>(&[3]))];
            let found = run(Isa::Baseline, "SwiGLU", &[], &inputs, &output)?;
            Ok(found[0].as_ref().expect("an output").elements::<f32>())
        };
        let found: Vec<f32> = gated(3).expect("gates");
        assert_eq!(found[0], 0.0);
        assert!((found[1] - 1.462_117_2).abs() < 1e-6 && found[2].abs() < 1e-18, "{found:?}");
        let error: String = gated(4).expect_err("other extents");
        assert!(error.contains("expected the same extents"), "{error}");
    }
}
