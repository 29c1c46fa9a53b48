//! MatMul and Gemm of f64 and integers: a plain loop over rows, which [`crate::kernels::product::matmul`] has vectorised for f32.
//!
//! A row of the result is summed up from rows of the right operand, in the order of the inner dimension, so that it
//! is the same on any number of threads. Integers wrap; Gemm's factors apply to them as to floats, in f64, and results
//! lose their fractions.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{extents, row_major};
use crate::kernels::geometry::shape::Broadcast;
use crate::kernels::numbers::number::Number;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::reserve::{self, Size};
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const RARE: &[TypeVar] = &[TypeVar::of(&[F64, I64, I32, U64, U32])];

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("MatMul", 13, prepare_matmul).types(RARE).cost(product_cost),
    descriptor("Gemm", 13, prepare_gemm).types(RARE).cost(product_cost),
];

/// Multiply-adds of a chunk of a parallel loop.
const GRAIN: usize = 64 * 1024;

fn product_cost(request: &Request<'_>) -> Result<Cost> {
    let k = request.required_input(0)?.shape().last().copied().unwrap_or(1);
    cost::per_output(request, 2 * k.max(1) as u64)
}

/// A matrix by its strides.
#[derive(Clone, Copy)]
struct Matrix {
    row: usize,
    col: usize,
}

/// A product, or a batch of them: `y = a b`, times `alpha`, and `beta` times an addend.
struct Product {
    host: Host,
    /// Where the matrices of each product of the batch begin.
    batch: Vec<[usize; 2]>,
    rows: usize,
    cols: usize,
    k: usize,
    a: Matrix,
    b: Matrix,
    gemm: Option<Factors>,
    body: Body,
}

/// One row of a result: of operands, into `y`.
type Body = unsafe fn(&Product, &[*const u8; 3], *mut u8, usize);

/// Factors of Gemm beyond a product.
struct Factors {
    alpha: f64,
    beta: f64,
    /// The addend's element for each one of the result.
    addend: Option<Broadcast<1>>,
}

fn body(dtype: DType) -> Result<Body> {
    Ok(match dtype {
        F64 => row::<f64>,
        // The low bits of sums and products do not depend on signs; Gemm's factors do.
        I64 => row::<i64>,
        I32 => row::<i32>,
        U64 => row::<u64>,
        U32 => row::<u32>,
        other => return Err(Error::unsupported(format!("elements of {other:?}"))),
    })
}

fn prepare_matmul(request: &Request<'_>) -> Result<Prepared> {
    let (x, w) = (request.required_input(0)?, request.required_input(1)?);
    let (mut left, mut right) = (extents(x)?, extents(w)?);
    let broken = || Error::invalid(format!("a product of {:?} and {:?}", x.shape(), w.shape()));
    // A vector is one row on the left and one column on the right.
    if left.len() == 1 {
        left.insert(0, 1);
    }
    if right.len() == 1 {
        right.push(1);
    }
    let ([left_batch @ .., rows, k], [right_batch @ .., inner, cols]) = (&left[..], &right[..]) else {
        return Err(broken());
    };
    if k != inner {
        return Err(broken());
    }
    const WHAT: &str = "the matrices of a batch";
    let rank = left_batch.len().max(right_batch.len());
    let padded = |batch: &[usize]| [&vec![1; rank - batch.len()], batch].concat();
    let sides = [padded(left_batch), padded(right_batch)];
    let mut out = Vec::with_capacity(rank);
    for (&a, &b) in sides[0].iter().zip(&sides[1]) {
        match (a, b) {
            (1, n) | (n, 1) => out.push(n),
            (a, b) if a == b => out.push(a),
            _ => return Err(broken()),
        }
    }
    let n = Size::of_extents(&out).get(WHAT)?;
    let strides = [row_major(&sides[0]), row_major(&sides[1])];
    let sizes = [rows * k, k * cols];
    let start = |i: usize, side: usize| {
        let (mut rest, mut at) = (i, 0);
        for (d, &extent) in out.iter().enumerate().rev() {
            let position = rest % extent;
            rest /= extent;
            at += if sides[side][d] == 1 { 0 } else { position * strides[side][d] as usize };
        }
        at * sizes[side]
    };
    check_output(request, (Size::of(n) * *rows * *cols).get("a product")?)?;
    let batch: Vec<[usize; 2]> = reserve::collected((0..n).map(|i| [start(i, 0), start(i, 1)]), WHAT)?;
    Ok(Prepared::new(Product {
        host: request.host,
        batch,
        rows: *rows,
        cols: *cols,
        k: *k,
        a: Matrix { row: *k, col: 1 },
        b: Matrix { row: *cols, col: 1 },
        gemm: None,
        body: body(x.dtype())?,
    }))
}

fn prepare_gemm(request: &Request<'_>) -> Result<Prepared> {
    let (x, w) = (request.required_input(0)?, request.required_input(1)?);
    let ([m, n], [p, q]) = (matrix(x)?, matrix(w)?);
    let (a_turned, b_turned) = (request.attrs.int("transA", 0)? != 0, request.attrs.int("transB", 0)? != 0);
    let (rows, k, a) =
        if a_turned { (n, m, Matrix { row: 1, col: n }) } else { (m, n, Matrix { row: n, col: 1 }) };
    let (inner, cols, b) =
        if b_turned { (q, p, Matrix { row: 1, col: q }) } else { (p, q, Matrix { row: q, col: 1 }) };
    if k != inner {
        return Err(Error::invalid(format!("a product of {:?} and {:?}", x.shape(), w.shape())));
    }
    let addend = request.input(2).map(|c| Broadcast::new(&[rows, cols], [&extents(c)?])).transpose()?;
    check_output(request, rows * cols)?;
    let factors = Factors {
        alpha: f64::from(request.attrs.float("alpha", 1.0)?),
        beta: f64::from(request.attrs.float("beta", 1.0)?),
        addend,
    };
    Ok(Prepared::new(Product {
        host: request.host,
        batch: vec![[0, 0]],
        rows,
        cols,
        k,
        a,
        b,
        gemm: Some(factors),
        body: body(x.dtype())?,
    }))
}

fn matrix(tensor: &TensorView<'_>) -> Result<[usize; 2]> {
    let shape = extents(tensor)?;
    shape[..].try_into().map_err(|_| Error::invalid(format!("expected a matrix, found a shape of {shape:?}")))
}

fn check_output(request: &Request<'_>, n: usize) -> Result<()> {
    let found = request.required_output(0)?.n_elements();
    if found == n {
        return Ok(());
    }
    Err(Error::invalid(format!("an output of {found} elements, expected {n}")))
}

/// Elements that Gemm's factors apply to.
trait Scaled: Number {
    fn to_f64(self) -> f64;
    /// Without a fraction for integers.
    fn from_f64(x: f64) -> Self;
}

macro_rules! scaled {
    ($($type:ty)*) => {$(
        impl Scaled for $type {
            fn to_f64(self) -> f64 {
                self as f64
            }
            fn from_f64(x: f64) -> Self {
                x as Self
            }
        }
    )*};
}
scaled! { f64 i64 i32 u64 u32 }

/// A factor times a number; 1 leaves an integer exact.
fn times<T: Scaled>(factor: f64, x: T) -> T {
    if factor == 1.0 { x } else { T::from_f64(factor * x.to_f64()) }
}

/// One row of the result, counted over the batch.
///
/// # Safety
/// The operands have the matrices of the product, and no other thread writes the row.
unsafe fn row<T: Scaled>(op: &Product, operands: &[*const u8; 3], y: *mut u8, row: usize) {
    let [a_start, b_start] = op.batch[row / op.rows];
    let a = operands[0].cast::<T>().wrapping_add(a_start + row % op.rows * op.a.row);
    let b = operands[1].cast::<T>().wrapping_add(b_start);
    let y = y.cast::<T>().wrapping_add(row * op.cols);
    for col in 0..op.cols {
        // SAFETY: the row lies within the result.
        unsafe { y.add(col).write(T::ZERO) };
    }
    for k in 0..op.k {
        // SAFETY: the element lies within the left matrix.
        let left = unsafe { a.add(k * op.a.col).read() };
        for col in 0..op.cols {
            // SAFETY: the element lies within the right matrix.
            let right = unsafe { b.add(k * op.b.row + col * op.b.col).read() };
            // SAFETY: the row lies within the result, and was written before.
            let sum = unsafe { y.add(col).read() };
            // SAFETY: the row lies within the result.
            unsafe { y.add(col).write(sum.add(left.mul(right))) };
        }
    }
    let Some(factors) = &op.gemm else {
        return;
    };
    for col in 0..op.cols {
        // SAFETY: the row lies within the result, and was written before.
        let sum = unsafe { y.add(col).read() };
        // SAFETY: the row lies within the result.
        unsafe { y.add(col).write(times(factors.alpha, sum)) };
    }
    if let Some(addend) = &factors.addend {
        let first = row * op.cols;
        addend.walk(first..first + op.cols, |[from], at, part| {
            for i in 0..part.n_rows * part.n_cols {
                let from = from + i / part.n_cols * part.steps[0] + i % part.n_cols * part.inner[0];
                // SAFETY: `walk` stays within the addend that it was made for.
                let added = unsafe { operands[2].cast::<T>().add(from).read() };
                let place = y.wrapping_add(at + i - first);
                // SAFETY: `at + i - first` is below `cols`: the row lies within the result, and was written before.
                let sum = unsafe { place.read() };
                // SAFETY: the same element of the row.
                unsafe { place.write(sum.add(times(factors.beta, added))) };
            }
        });
    }
}

impl Launch<CpuDevice> for Product {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let input = |i: usize| {
            SendPtr(match i < operands.n_inputs() {
                true => operands.input_ptr::<u8>(i).cast_mut(),
                false => core::ptr::null_mut(),
            })
        };
        let inputs = [input(0), input(1), input(2)];
        let y = SendPtr(operands.output_ptr::<u8>(0));
        let grain = (GRAIN / (self.k * self.cols).max(1)).max(1);
        self.host.parallel_for(self.batch.len() * self.rows, grain, |rows, _| {
            let addresses = inputs.each_ref().map(|input| input.at(0).cast_const());
            for row in rows {
                // SAFETY: the operands have the shapes that `prepare` was told, and rows are apart.
                unsafe { (self.body)(self, &addresses, y.at(0), row) };
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    #[test]
    fn products_of_batches_and_vectors() {
        let multiply = |a: (&[usize], &[f64]), b: (&[usize], &[f64]), y: &[usize]| {
            let inputs = [Some(Array::of(a.0, a.1)), Some(Array::of(b.0, b.1))];
            let found =
                run(Isa::Baseline, "MatMul", &[], &inputs, &[Some(Array::empty::<f64>(y))]).expect("MatMul");
            found[0].as_ref().expect("a product").elements::<f64>()
        };
        let b = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(multiply((&[1, 2], &[1.0, 10.0]), (&[2, 2], &b), &[1, 2]), [31.0, 42.0]);
        assert_eq!(multiply((&[2], &[1.0, 10.0]), (&[2], &[2.0, 3.0]), &[]), [32.0]);
        // Two matrices on the left meet one on the right.
        assert_eq!(
            multiply((&[2, 1, 2], &[1.0, 0.0, 0.0, 1.0]), (&[1, 2, 2], &b), &[2, 1, 2]),
            [1.0, 2.0, 3.0, 4.0]
        );
        assert_eq!(multiply((&[2, 0], &[]), (&[0, 1], &[]), &[2, 1]), [0.0, 0.0]);
    }

    #[test]
    fn gemm_turns_scales_and_adds() {
        let inputs = [
            Some(Array::of(&[2, 1], &[2i32, 3])),
            Some(Array::of(&[2, 2], &[1i32, 2, 3, 4])),
            Some(Array::of(&[2], &[10i32, 20])),
        ];
        let attrs = [
            ("transA", Value::Int(1)),
            ("transB", Value::Int(1)),
            ("alpha", Value::Float(0.5)),
            ("beta", Value::Float(2.0)),
        ];
        let found = run(Isa::Baseline, "Gemm", &attrs, &inputs, &[Some(Array::empty::<i32>(&[1, 2]))]);
        // (2, 3) times (1, 2) and (3, 4): 8 and 18.
        assert_eq!(found.expect("Gemm")[0].as_ref().expect("a product").elements::<i32>(), [24, 49]);
        let wrong = [inputs[0].clone(), inputs[0].clone()];
        let found = run(Isa::Baseline, "Gemm", &[], &wrong, &[Some(Array::empty::<i32>(&[2, 1]))]);
        assert!(found.is_err_and(|error| error.contains("a product of")));
    }
}
