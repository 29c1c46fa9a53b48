//! MatMulInteger: products of 8-bit matrices, exact in i32.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, extents, row_major};
use crate::kernels::geometry::walk::Walk;
use crate::kernels::product::int_product::{
    Block, COLS_MAX, DEPTH, PANEL_BYTES, ROWS, SMALL, Zeros, fill_panel, multiply, panel_cols, widen,
};
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor("MatMulInteger", 10, prepare)
    .types(&[TypeVar::of(SMALL), TypeVar::of(SMALL), TypeVar::of(&[I32])])
    .cost(cost)
    .doc("exact; zero points of the whole, of rows of the left and of columns of the right")];

/// Multiply-adds of a chunk.
const GRAIN: usize = 512 * 1024;

/// Extents of a product: matrices as numpy has them.
struct Shape {
    /// Matrices of each side in row-major order, and the whole product's.
    left_batch: Vec<usize>,
    right_batch: Vec<usize>,
    batch: Vec<usize>,
    m: usize,
    k: usize,
    n: usize,
    output: Vec<usize>,
}

impl Shape {
    fn of(request: &PrepareRequest<'_, CpuDevice>) -> Result<Self> {
        let (mut left, mut right) =
            (extents(request.required_input(0)?)?, extents(request.required_input(1)?)?);
        let broken = Error::invalid(format!("a product of {left:?} and {right:?}"));
        // A vector is one row on the left and one column on the right, which the output does not have.
        let (row, col) = (left.len() == 1, right.len() == 1);
        if row {
            left.insert(0, 1);
        }
        if col {
            right.push(1);
        }
        let ([left_batch @ .., m, k], [right_batch @ .., rows, n]) = (&left[..], &right[..]) else {
            return Err(broken);
        };
        let rank = left_batch.len().max(right_batch.len());
        let padded = |batch: &[usize]| [&vec![1; rank - batch.len()], batch].concat();
        let (left_batch, right_batch) = (padded(left_batch), padded(right_batch));
        let mut batch = Vec::with_capacity(rank);
        for (&a, &b) in left_batch.iter().zip(&right_batch) {
            match (a, b) {
                (1, n) | (n, 1) => batch.push(n),
                (a, b) if a == b => batch.push(a),
                _ => return Err(broken),
            }
        }
        if k != rows {
            return Err(broken);
        }
        let mut output = batch.clone();
        if !row {
            output.push(*m);
        }
        if !col {
            output.push(*n);
        }
        Ok(Self { m: *m, k: *k, n: *n, left_batch, right_batch, batch, output })
    }
}

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let shape = Shape::of(request)?;
    let products = Size::of_extents(&shape.batch) * shape.m * shape.n;
    Ok(cost::of(request, (products * shape.k * 2).saturated() as u64))
}

struct MatMulInteger {
    host: Host,
    /// The products, with matrices of the left and of the right.
    batch: Walk<2>,
    left_rows: usize,
    m: usize,
    k: usize,
    n: usize,
    left_zeros: Zeros,
    right_zeros: Zeros,
    cols: usize,
    widen: unsafe fn(*const u8, f32, *mut f32, usize),
    fill_panel: unsafe fn(*const u8, usize, usize, usize, *const f32, *mut f32),
    multiply: unsafe fn(&Block),
}

/// Prepares the op; the third and fourth operand are zero points.
pub(crate) fn prepare(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let shape = Shape::of(request)?;
    expect_output(request, 0, &shape.output)?;
    let isa = request.device.isa;
    let (left, right) = (request.required_input(0)?, request.required_input(1)?);
    let left_rows = shape.left_batch.iter().product::<usize>() * shape.m;
    let right_cols = shape.right_batch.iter().product::<usize>() * shape.n;
    let strides = |side: &[usize]| {
        let strides = row_major(side);
        let along = |i: usize| if side[i] == 1 { 0 } else { strides[i] };
        (0..side.len()).map(along).collect::<Vec<_>>()
    };
    let (of_left, of_right) = (strides(&shape.left_batch), strides(&shape.right_batch));
    let dim = |i: usize| (shape.batch[i], [of_left[i], of_right[i]]);
    let kernel = MatMulInteger {
        host: request.host,
        batch: Walk::new((0..shape.batch.len()).map(dim))?,
        left_rows,
        m: shape.m,
        k: shape.k,
        n: shape.n,
        left_zeros: Zeros::new(request, 2, &[shape.m, left_rows])?,
        right_zeros: Zeros::new(request, 3, &[shape.n, right_cols])?,
        cols: panel_cols(isa),
        widen: match left.dtype() {
            I8 => widen::<i8>(isa),
            _ => widen::<u8>(isa),
        },
        fill_panel: match right.dtype() {
            I8 => fill_panel::<i8>(isa),
            _ => fill_panel::<u8>(isa),
        },
        multiply: multiply(isa),
    };
    let bytes = Size::of(kernel.left_rows) * kernel.k * 4 + PANEL_BYTES * request.host.n_slots();
    Prepared::new(kernel).with_room(bytes, 64)
}

impl Launch<CpuDevice> for MatMulInteger {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        // The workspace is a panel for each slot, then the left matrices as f32.
        let panels = SendPtr(operands.workspace_ptr::<f32>());
        let left = SendPtr(panels.at(PANEL_BYTES / 4 * self.host.n_slots()));
        self.widen_left(operands, left)?;

        let right = SendPtr(operands.input_ptr::<u8>(1).cast_mut());
        let zeros = operands.input_refs().get(3);
        let zeros = SendPtr(zeros.map_or(core::ptr::null_mut(), |zeros| zeros.addr as *mut u8));
        let output = SendPtr(operands.output_ptr::<i32>(0));
        let (row_blocks, panels_wide) = (self.m.div_ceil(ROWS), self.n.div_ceil(self.cols));
        let per_product = row_blocks * panels_wide;
        let macs = self.m.min(ROWS) * self.cols * self.k.max(1);
        let n_blocks = self.batch.len() * per_product;
        let grain = (GRAIN / macs.max(1)).max(1);
        self.host.parallel_for(n_blocks, grain, |range, slot| {
            let panel = panels.at(slot * PANEL_BYTES / 4);
            for block in range {
                let product = block / per_product;
                let [left_at, right_at] = self.batch.position(product).offsets;
                let first_row = block % per_product / panels_wide * ROWS;
                let first_col = block % panels_wide * self.cols;
                let rows = ROWS.min(self.m - first_row);
                let cols = self.cols.min(self.n - first_col);
                let mut col_zeros = [0.0; COLS_MAX];
                for (i, zero) in col_zeros[..cols].iter_mut().enumerate() {
                    let col = right_at as usize * self.n + first_col + i;
                    // SAFETY: the operand is the one that `prepare` was told.
                    *zero = unsafe { self.right_zeros.get(zeros.at(0), col) };
                }
                let mut from = 0;
                loop {
                    let depth = DEPTH.min(self.k - from);
                    let row = right_at as usize * self.k + from;
                    // SAFETY: the rows and columns lie within the right matrix, the panel is this
                    // slot's own, and the instructions are the device's.
                    unsafe {
                        (self.fill_panel)(
                            right.at(row * self.n + first_col),
                            self.n,
                            depth,
                            cols,
                            col_zeros.as_ptr(),
                            panel,
                        );
                    }
                    let left_row = left_at as usize * self.m + first_row;
                    let out_row = product * self.m + first_row;
                    let block = Block {
                        left: left.at(left_row * self.k + from),
                        left_stride: self.k,
                        rows,
                        depth,
                        panel,
                        out: output.at(out_row * self.n + first_col),
                        out_stride: self.n,
                        cols,
                        adds: from > 0,
                    };
                    // SAFETY: rows and panel hold `depth` of each, the instructions are the device's, and the block of
                    // the output is no other chunk's.
                    unsafe { (self.multiply)(&block) };
                    from += depth;
                    if from == self.k {
                        break;
                    }
                }
            }
            Ok(())
        })
    }
}

impl MatMulInteger {
    /// Writes the left matrices, less their zero points, as f32.
    fn widen_left(&self, operands: &Operands<'_>, left: SendPtr<f32>) -> Result<()> {
        let input = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let zeros = operands.input_refs().get(2);
        let zeros = SendPtr(zeros.map_or(core::ptr::null_mut(), |zeros| zeros.addr as *mut u8));
        let grain = (GRAIN / 8 / self.k.max(1)).max(1);
        self.host.parallel_for(self.left_rows, grain, |range, _| {
            for row in range {
                let at = row * self.k;
                // SAFETY: the operand is the one that `prepare` was told.
                let zero = unsafe { self.left_zeros.get(zeros.at(0), row) };
                // SAFETY: the row lies within the input and the workspace, of which each chunk writes
                // its own rows, and the instructions are the device's.
                unsafe { (self.widen)(input.at(at), zero, left.at(at), self.k) };
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::kernels::test_host::{Array, run};
    use crate::kernels::testing::{Chance, isas};

    #[test]
    fn products_are_exact() {
        let mut random = Chance::new(5);
        for (m, k, n) in [(1, 1, 1), (3, 700, 5), (150, 33, 70), (7, 256, 32), (4, 0, 3)] {
            let a: Vec<u8> = (0..2 * m * k).map(|_| random.below(256) as u8).collect();
            let b: Vec<i8> = (0..k * n).map(|_| random.below(256) as u8 as i8).collect();
            let rows: Vec<u8> = (0..m).map(|_| random.below(256) as u8).collect();
            let cols: Vec<i8> = (0..n).map(|_| random.below(256) as u8 as i8).collect();
            let mut expected = Vec::new();
            for row in 0..2 * m {
                for col in 0..n {
                    let product = |k_at: usize| {
                        (i32::from(a[row * k + k_at]) - i32::from(rows[row % m]))
                            * (i32::from(b[k_at * n + col]) - i32::from(cols[col]))
                    };
                    expected.push((0..k).map(product).sum::<i32>());
                }
            }
            let inputs = [
                Some(Array::of(&[2, m, k], &a)),
                Some(Array::of(&[k, n], &b)),
                Some(Array::of(&[m], &rows)),
                Some(Array::of(&[n], &cols)),
            ];
            for isa in isas() {
                let output = [Some(Array::empty::<i32>(&[2, m, n]))];
                let found = run(isa, "MatMulInteger", &[], &inputs, &output).expect("multiplies");
                assert_eq!(found[0], Some(Array::of(&[2, m, n], &expected)), "{isa:?} {m} {k} {n}");
            }
        }
    }
}
