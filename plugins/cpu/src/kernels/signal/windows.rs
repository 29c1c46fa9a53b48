//! BlackmanWindow, HammingWindow and HannWindow, in every element type: sums of cosines, rounded once.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, host_int};
use crate::kernels::numbers::convert::{Kind, Limits, Value};
use crate::kernels::types::NUMBERS;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const WINDOW: &[TypeVar] = &[TypeVar::of(&[I64, I32]), TypeVar::of(NUMBERS)];

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    // The optimal Hamming window and the Blackman window of the specification's function bodies.
    window("BlackmanWindow", |request| prepare_window(request, [0.42, 0.5, 0.08])),
    window("HammingWindow", |request| prepare_window(request, [25.0 / 46.0, 21.0 / 46.0, 0.0])),
    window("HannWindow", |request| prepare_window(request, [0.5, 0.5, 0.0])),
];

const fn window(name: &'static str, prepare: fn(&Request<'_>) -> Result<Prepared>) -> Kernel<CpuDevice> {
    descriptor(name, 17, prepare).types(WINDOW).cost(written)
}

fn written(request: &Request<'_>) -> Result<Cost> {
    Ok(Cost { bytes_read: 0, ..cost::per_output(request, 50)? })
}

/// A window: `a - b cos(x) + c cos(2 x)` for x from 0 to 2 pi.
struct Window {
    n: usize,
    /// Positions of a whole turn.
    turn: f64,
    terms: [f64; 3],
    kind: Kind,
}

fn prepare_window(request: &Request<'_>, terms: [f64; 3]) -> Result<Prepared> {
    let size = host_int(request, 0, 0)?;
    let n = usize::try_from(size).map_err(|_| Error::invalid(format!("a window of {size} elements")))?;
    expect_output(request, 0, &[n])?;
    // The last element of a symmetric window equals the first one.
    let is_periodic = request.attrs.int("periodic", 1)? != 0;
    let turn = if is_periodic { n as f64 } else { n as f64 - 1.0 };
    let kind = Kind::of(request.required_output(0)?.dtype())?;
    Ok(Prepared::new(Window { n, turn, terms, kind }))
}

impl Launch<CpuDevice> for Window {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let [a, b, c] = self.terms;
        for i in 0..self.n {
            // A symmetric window of one element has no period.
            let x = if self.turn > 0.0 { std::f64::consts::TAU * i as f64 / self.turn } else { 0.0 };
            let value = a - b * x.cos() + c * (2.0 * x).cos();
            // SAFETY: the output has `n` elements, `prepare` checked that.
            unsafe { self.kind.write(operands.output_ptr(0), i, Value::Float(value), Limits::DEFAULT) };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    fn window(op: &str, n: i64, periodic: i64) -> Vec<f64> {
        let size = [Some(Array::of(&[], &[n]))];
        let output = [Some(Array::empty::<f64>(&[n as usize]))];
        let found = run(Isa::Baseline, op, &[("periodic", Value::Int(periodic))], &size, &output).expect(op);
        let found = found[0].as_ref().expect("a window").elements::<f64>();
        found.iter().map(|x| (x * 1e9).round() / 1e9).collect()
    }

    #[test]
    fn windows_rise_and_fall() {
        assert_eq!(window("HannWindow", 4, 1), [0.0, 0.5, 1.0, 0.5]);
        assert_eq!(window("HannWindow", 5, 0), [0.0, 0.5, 1.0, 0.5, 0.0]);
        assert_eq!(window("HammingWindow", 2, 1), [0.086956522, 1.0]);
        assert_eq!(window("BlackmanWindow", 4, 1), [0.0, 0.34, 1.0, 0.34]);
        assert_eq!(window("HannWindow", 1, 0), [0.0]);
        assert_eq!(window("HannWindow", 0, 1), [0.0; 0]);
    }
}
