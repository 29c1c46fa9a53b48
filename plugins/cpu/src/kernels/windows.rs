//! Tensors that are made from a formula: BlackmanWindow, HammingWindow, HannWindow and EyeLike, in every element type.

use super::convert::{Kind, Limits, Value};
use super::cost;
use super::extents::{expect_output, extents, host_int};
use super::{MOVABLE, NUMBERS};
use crate::device::CpuDevice;
use crate::stream::CpuStream;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const WINDOW: &[TypeVar] = &[TypeVar::of(&[I64, I32]), TypeVar::of(NUMBERS)];
const EYE: &[TypeVar] = &[TypeVar::of(MOVABLE), TypeVar::of(MOVABLE)];

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    // The optimal Hamming window and the Blackman window of the specification's function bodies.
    window("BlackmanWindow", |request| prepare_window(request, [0.42, 0.5, 0.08])),
    window("HammingWindow", |request| prepare_window(request, [25.0 / 46.0, 21.0 / 46.0, 0.0])),
    window("HannWindow", |request| prepare_window(request, [0.5, 0.5, 0.0])),
    Kernel::new("EyeLike", 22, prepare_eye).types(EYE).operands(&[0], &[1]).cost(written),
];

const fn window(name: &'static str, prepare: fn(&Request<'_>) -> Result<Prepared>) -> Kernel<CpuDevice> {
    Kernel::new(name, 17, prepare).types(WINDOW).operands(&[0], &[1]).host_values(0b1).cost(written)
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
    // Of a symmetric window the last element is the first one again.
    let is_periodic = request.attrs.int("periodic", 1)? != 0;
    let turn = if is_periodic { n as f64 } else { n as f64 - 1.0 };
    let kind = Kind::of(request.required_output(0)?.dtype())?;
    Ok(Prepared::new(Window { n, turn, terms, kind }))
}

impl Launch<CpuDevice> for Window {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let [a, b, c] = self.terms;
        for i in 0..self.n {
            // A symmetric window of one element has no turn.
            let x = if self.turn > 0.0 { std::f64::consts::TAU * i as f64 / self.turn } else { 0.0 };
            let value = a - b * x.cos() + c * (2.0 * x).cos();
            // SAFETY: the output has `n` elements, `prepare` checked that.
            unsafe { self.kind.write(operands.output_ptr(0), i, Value::Float(value), Limits::DEFAULT) };
        }
        Ok(())
    }
}

/// A matrix of zeros with ones along a diagonal.
struct Eye {
    rows: usize,
    cols: usize,
    /// The column of the first row's one, or less than 0.
    k: i64,
    kind: Kind,
}

fn prepare_eye(request: &Request<'_>) -> Result<Prepared> {
    let shape = extents(request.required_input(0)?)?;
    expect_output(request, 0, &shape)?;
    let [rows, cols] = shape[..] else {
        return Err(Error::invalid(format!("expected a matrix, found a shape of {shape:?}")));
    };
    let kind = Kind::of(request.required_output(0)?.dtype())?;
    Ok(Prepared::new(Eye { rows, cols, k: request.attrs.int("k", 0)?, kind }))
}

impl Launch<CpuDevice> for Eye {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let y = operands.output_ptr::<u8>(0);
        // Zero has the same bits in all types.
        let bytes = self.rows * self.cols * (self.kind.bits() / 8) as usize;
        // SAFETY: the output has these bytes, `prepare` checked that; elements have whole bytes.
        unsafe { y.write_bytes(0, bytes) };
        for row in 0..self.rows {
            let col = i64::try_from(row).ok().and_then(|row| row.checked_add(self.k));
            let col = col.and_then(|col| usize::try_from(col).ok()).filter(|&col| col < self.cols);
            if let Some(col) = col {
                // SAFETY: the place is within the matrix.
                unsafe { self.kind.write(y, row * self.cols + col, Value::Int(1), Limits::DEFAULT) };
            }
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

    #[test]
    fn ones_along_a_diagonal() {
        let eye = |k: i64, rows: usize, cols: usize| {
            let x = [Some(Array::empty::<f32>(&[rows, cols]))];
            let y = [Some(Array::empty::<i8>(&[rows, cols]))];
            let found = run(Isa::Baseline, "EyeLike", &[("k", Value::Int(k))], &x, &y).expect("EyeLike");
            found[0].as_ref().expect("a matrix").elements::<i8>()
        };
        assert_eq!(eye(0, 2, 3), [1, 0, 0, 0, 1, 0]);
        assert_eq!(eye(1, 2, 3), [0, 1, 0, 0, 0, 1]);
        assert_eq!(eye(-1, 3, 2), [0, 0, 1, 0, 0, 1]);
        assert_eq!(eye(i64::MAX, 2, 2), [0; 4]);
        assert_eq!(eye(i64::MIN, 2, 2), [0; 4]);
    }
}
