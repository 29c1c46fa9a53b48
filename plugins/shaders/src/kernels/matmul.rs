//! MatMul, Gemm and their fused forms: what their operands are as matrices, and which shader multiplies them.

use super::cost;
use super::epilogue::{Activation, Epilogue};
use super::product::{Product, SKINNY_ROWS, Skinny, Types, matrix, vector_of};
use super::walk::{Walk, dense_strides};
use crate::step::{Build, Slot};
use crate::target::Target;
use devbay_ops::{descriptor, descriptor_of};
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

/// Elements of products; f16 where the device has it, with sums in f32.
pub const FLOATS: &[TypeVar] = &[TypeVar::of(&[F32, F16])];

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
    descriptor("MatMul", 13, prepare_matmul).types(FLOATS).cost(product_cost),
    descriptor_of("devbay", "FusedMatMul", 1, prepare_matmul)
        .types(FLOATS)
        .cost(product_cost)
        .doc("MatMul with a bias over the last axis, and an activation"),
    descriptor("Gemm", 13, prepare_gemm).types(FLOATS).cost(product_cost),
    descriptor_of("devbay", "FusedGemm", 1, prepare_gemm)
        .types(FLOATS)
        .cost(product_cost)
        .doc("Gemm with an activation"),
];

fn product_cost(request: &Request<'_>) -> Result<Cost> {
    let k = match (request.attrs.int("transA", 0)?, request.required_input(0)?.shape()) {
        (0, [.., k]) | (_, [k, ..]) => *k,
        _ => 1,
    };
    cost::per_output(request, (k.max(0) as u64).saturating_mul(2))
}

/// The WGSL type of a float's elements.
///
/// # Errors
/// Unsupported for f16 on a device without.
pub fn float_type(request: &Request<'_>) -> Result<&'static str> {
    match request.required_input(0)?.dtype() {
        F32 => Ok("f32"),
        F16 if request.device.abilities.f16 => Ok("f16"),
        F16 => Err(Error::unsupported("the device has no f16 in shaders")),
        other => Err(Error::unsupported(format!("elements of {other:?}"))),
    }
}

/// A matrix product as numpy has it, with what is broadcast: batches are those of the output.
pub struct Matrices {
    /// Extents of the batch, and the distances of both operands along them.
    pub batch: Vec<i64>,
    pub a_strides: Vec<i64>,
    pub b_strides: Vec<i64>,
    pub rows: i64,
    pub k: i64,
    pub cols: i64,
}

impl Matrices {
    /// Of MatMul's operands and output.
    ///
    /// # Errors
    /// Invalid for shapes that do not fit.
    pub fn of(a: &TensorView<'_>, b: &TensorView<'_>, y: &TensorView<'_>) -> Result<Self> {
        let (mut left, mut right) = (a.shape().to_vec(), b.shape().to_vec());
        let broken = || Error::invalid(format!("a product of {:?} and {:?}", a.shape(), b.shape()));
        // A vector is a matrix of one row on the left, of one column on the right.
        let (is_row, is_col) = (left.len() == 1, right.len() == 1);
        if is_row {
            left.insert(0, 1);
        }
        if is_col {
            right.push(1);
        }
        let (Some((a_batch, &[rows, k])), Some((b_batch, &[k_of_b, cols]))) =
            (left.split_last_chunk::<2>(), right.split_last_chunk::<2>())
        else {
            return Err(broken());
        };
        if k != k_of_b {
            return Err(broken());
        }
        let rank = a_batch.len().max(b_batch.len());
        let padded = |batch: &[i64]| [&vec![1; rank - batch.len()], batch].concat();
        let (a_batch, b_batch) = (padded(a_batch), padded(b_batch));
        let mut batch = Vec::with_capacity(rank);
        for (&a, &b) in a_batch.iter().zip(&b_batch) {
            match (a, b) {
                (1, n) | (n, 1) => batch.push(n),
                (a, b) if a == b => batch.push(a),
                _ => return Err(broken()),
            }
        }
        // Without elements extents may be too large to be multiplied, and nothing is read.
        let is_empty = y.n_elements() == 0;
        let strides = |own: &[i64], lines: i64| -> Vec<i64> {
            let stride = |dense: &[i64], i: usize| if own[i] == 1 { 0 } else { dense[i] * lines * k };
            match is_empty {
                true => vec![0; rank],
                false => (0..rank).map(|i| stride(&dense_strides(own), i)).collect(),
            }
        };
        let (a_strides, b_strides) = (strides(&a_batch, rows), strides(&b_batch, cols));
        let mut output = batch.clone();
        if !is_row {
            output.push(rows);
        }
        if !is_col {
            output.push(cols);
        }
        if output != y.shape() {
            return Err(Error::invalid(format!("a product of {output:?} into {:?}", y.shape())));
        }
        Ok(Self { batch, a_strides, b_strides, rows, k, cols })
    }

    /// Takes products of one B as one product of all their rows; there are some.
    fn fold(&mut self) {
        let is_one = self.b_strides.iter().all(|&stride| stride == 0);
        let dense = dense_strides(&self.batch);
        let each = self.rows * self.k;
        let follow =
            (0..self.batch.len()).all(|i| self.batch[i] == 1 || self.a_strides[i] == dense[i] * each);
        if is_one && follow {
            self.rows *= self.batch.iter().product::<i64>();
            self.batch.clear();
            self.a_strides.clear();
            self.b_strides.clear();
        }
    }

    /// The walk over the batch; what is added begins at the same place for all.
    pub fn walk(&self) -> Walk {
        let none = vec![0; self.batch.len()];
        let walk = Walk::over(&self.batch).operand(0, &self.a_strides).operand(0, &self.b_strides);
        walk.operand(0, &none).merged()
    }

    fn n_batch(&self) -> u64 {
        self.batch.iter().product::<i64>() as u64
    }
}

fn prepare_matmul(request: &Request<'_>) -> Result<Prepared> {
    let (a, b, y) = (request.required_input(0)?, request.required_input(1)?, request.required_output(0)?);
    let mut matrices = Matrices::of(a, b, y)?;
    if y.n_elements() == 0 {
        return Build::new(request).finish();
    }
    matrices.fold();
    let addend = match request.input(2) {
        None => None,
        Some(bias) if bias.n_elements() as i64 == matrices.cols => Some((Slot::Input(2), 0, 1)),
        Some(bias) => {
            return Err(Error::invalid(format!(
                "a bias of {:?} for {} columns",
                bias.shape(),
                matrices.cols
            )));
        }
    };
    let epilogue = Epilogue { addend, activation: Activation::of(&request.attrs)?, ..Epilogue::NONE };
    multiply(request, "MatMul", &matrices, [false; 2], epilogue)
}

fn prepare_gemm(request: &Request<'_>) -> Result<Prepared> {
    let (a, b, y) = (request.required_input(0)?, request.required_input(1)?, request.required_output(0)?);
    let turned = [request.attrs.int("transA", 0)? != 0, request.attrs.int("transB", 0)? != 0];
    let (&[a0, a1], &[b0, b1]) = (a.shape(), b.shape()) else {
        let text = format!("Gemm of {:?} and {:?}, expected matrices", a.shape(), b.shape());
        return Err(Error::invalid(text));
    };
    let (rows, k) = if turned[0] { (a1, a0) } else { (a0, a1) };
    let (k_of_b, cols) = if turned[1] { (b1, b0) } else { (b0, b1) };
    if k != k_of_b || y.shape() != [rows, cols] {
        let text = format!("a product of {:?} and {:?} into {:?}", a.shape(), b.shape(), y.shape());
        return Err(Error::invalid(text));
    }
    let addend = match request.input(2).map(TensorView::shape) {
        None => None,
        Some([] | [1] | [1, 1]) => Some((0, 0)),
        Some([n] | [1, n]) if *n == cols => Some((0, 1)),
        Some([m, 1]) if *m == rows => Some((1, 0)),
        Some([m, n]) if *m == rows && *n == cols => Some((cols as u32, 1)),
        Some(other) => return Err(Error::invalid(format!("an addend {other:?} for {rows} by {cols}"))),
    };
    let epilogue = Epilogue {
        alpha: request.attrs.float("alpha", 1.0)?,
        addend: addend.map(|(row, col)| (Slot::Input(2), row, col)),
        beta: request.attrs.float("beta", 1.0)?,
        activation: Activation::of(&request.attrs)?,
        ..Epilogue::NONE
    };
    let empty = Vec::new;
    let matrices = Matrices { batch: empty(), a_strides: empty(), b_strides: empty(), rows, k, cols };
    multiply(request, "Gemm", &matrices, turned, epilogue)
}

/// Adds a product of inputs 0 and 1, which may be turned, into output 0.
///
/// # Errors
/// Unsupported beyond what the device can do.
pub fn multiply(
    request: &Request<'_>,
    name: &'static str,
    matrices: &Matrices,
    [a_turned, b_turned]: [bool; 2],
    epilogue: Epilogue,
) -> Result<Prepared> {
    let element = float_type(request)?;
    let mut build = Build::new(request);
    let [rows, k, cols] = [matrices.rows, matrices.k, matrices.cols].map(|extent| extent as u64);
    let n_batch = matrices.n_batch();
    if rows == 0 || cols == 0 || n_batch == 0 {
        return build.finish();
    }
    let skinny = rows.min(cols) <= SKINNY_ROWS && k > 0;
    if skinny {
        let a = (if a_turned { 1 } else { k }, if a_turned { rows } else { 1 });
        let b = (if b_turned { 1 } else { cols }, if b_turned { k } else { 1 });
        let (a, b, y) = ((Slot::Input(0), a.0, a.1), (Slot::Input(1), b.0, b.1), Slot::Output(0));
        // A few columns are a few rows of the turned product.
        if rows <= SKINNY_ROWS {
            let batch = matrices.walk();
            Skinny { name, element, batch, n_batch, rows, cols, k, a, b, y: (y, cols, 1), epilogue }
                .add(&mut build)?;
        } else {
            let addend = epilogue.addend.map(|(slot, row, col)| (slot, col, row));
            let epilogue = Epilogue { addend, ..epilogue };
            let none = vec![0; matrices.batch.len()];
            let batch = Walk::over(&matrices.batch).operand(0, &matrices.b_strides);
            let batch = batch.operand(0, &matrices.a_strides).operand(0, &none).merged();
            let (a, b) = ((b.0, b.2, b.1), (a.0, a.2, a.1));
            Skinny {
                name,
                element,
                batch,
                n_batch,
                rows: cols,
                cols: rows,
                k,
                a,
                b,
                y: (y, 1, cols),
                epilogue,
            }
            .add(&mut build)?;
        }
        return build.finish();
    }
    let a_vectors = a_turned && rows % 4 == 0;
    let vectors = cols % 4 == 0;
    let b_vectors = vectors && !b_turned;
    let bound = |is_vectors| if is_vectors { vector_of(element) } else { element };
    let product = Product {
        name,
        types: Types { sum: "f32", element },
        batch: matrices.walk(),
        n_batch,
        rows,
        cols,
        k,
        buffers: vec![("a", bound(a_vectors), Slot::Input(0)), ("b", bound(b_vectors), Slot::Input(1))],
        params: Vec::new(),
        functions: String::new(),
        left: matrix("a", "rows", !a_turned, a_vectors),
        right: matrix("b", "cols", b_turned, b_vectors),
        vectors,
        turned: Some([a_turned, b_turned]),
        convolution: None,
        epilogue,
        output: Slot::Output(0),
    };
    product.add(&mut build, request)?;
    build.finish()
}
