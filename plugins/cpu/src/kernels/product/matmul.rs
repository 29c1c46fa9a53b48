//! Matrix products: MatMul, Gemm and their fused forms.
//!
//! `C[r][c] = sum_k A[r][k] * B[k][c]`, vectors along `c`. Most products with a constant B are made in tiles of our own
//! (`tiled.rs`), the others by the micro-kernels of the gemm crate. B is packed into panels of columns, once by the host if it
//! is constant, else in each launch; rows of A are read where they are. Work is divided into units of one panel
//! and some rows.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::extents;
use crate::kernels::geometry::strided;
use crate::kernels::numbers::widen;
use crate::kernels::product::dense;
use crate::kernels::product::epilogue::{Activation, Addresses, FinishFn, Tile, finish};
use crate::kernels::product::micro::{
    Dst, KC, Left, Micro, NR, Right, as_f32s_mut, layout_id, packed_left_len, packed_left_size, to_weights,
};
use crate::kernels::product::tiled;
use crate::stream::CpuStream;
use devbay_ops::{descriptor, descriptor_of};
use devbay_plugin_api::reserve::{self, Size};
use devbay_plugin_api::sdk::*;

const SINGLE: &[TypeVar] = &[TypeVar::of(crate::kernels::types::SINGLES)];

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("MatMul", 13, prepare_matmul).types(SINGLE).adapted(widen::floats).cost(product_cost),
    descriptor_of("devbay", "FusedMatMul", 1, prepare_matmul)
        .types(SINGLE)
        .adapted(widen::floats)
        .cost(product_cost)
        .doc("MatMul with a bias over the last axis, and an activation"),
    descriptor("Gemm", 13, prepare_gemm).types(SINGLE).adapted(widen::floats).cost(product_cost),
    descriptor_of("devbay", "FusedGemm", 1, prepare_gemm)
        .types(SINGLE)
        .adapted(widen::floats)
        .cost(product_cost)
        .doc("Gemm with an activation"),
];

/// Rows of a unit.
const ROWS: usize = 16 * NR;

/// A product, or a batch of them.
pub(crate) struct Product {
    pub host: Host,
    /// Offsets of A and B for each product of the batch, in elements.
    pub batch: Vec<(usize, usize)>,
    pub rows: usize,
    pub columns: usize,
    pub k: usize,
    /// True if A is stored `[k][rows]`, and B `[columns][k]`.
    pub a_transposed: bool,
    pub b_transposed: bool,
    /// Factor of the product.
    pub scale: f32,
    /// Addend, broadcast to the result.
    pub addend: Addend,
    /// Its factor.
    pub beta: f32,
    pub activation: Activation,
    pub finish: FinishFn,
    pub micro: Micro,
    /// True if the host passes B packed.
    pub packed: bool,
    /// Products that share one B: panels are packed once for all.
    n_b: usize,
    grain: usize,
}

/// Addend of a product, as Gemm's C and MatMul's bias are.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Addend {
    None,
    /// One value per column.
    Columns,
    /// One value per row.
    Rows,
    /// One value for all.
    One,
    /// One value per element.
    All,
}

fn product_cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let a = extents(request.required_input(0)?)?;
    let k = match (request.attrs.int("transA", 0)?, a.as_slice()) {
        (0, [.., k]) | (_, [k, ..]) => *k,
        _ => 1,
    };
    Ok(cost::of(request, (2 * k as u64).saturating_mul(request.required_output(0)?.n_elements() as u64)))
}

fn prepare_matmul(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let (a, b) = (request.required_input(0)?, request.required_input(1)?);
    let (mut a_shape, mut b_shape) = (extents(a)?, extents(b)?);
    // A vector is a matrix of one row on the left, of one column on the right (numpy.matmul).
    if a_shape.len() == 1 {
        a_shape.insert(0, 1);
    }
    if b_shape.len() == 1 {
        b_shape.push(1);
    }
    let (Some((a_batch, &[rows, k])), Some((b_batch, &[k_of_b, columns]))) =
        (a_shape.split_last_chunk::<2>(), b_shape.split_last_chunk::<2>())
    else {
        return Err(Error::invalid("a matrix product of scalars"));
    };
    if k != k_of_b {
        return Err(Error::invalid(format!("a product of {a_shape:?} and {b_shape:?}")));
    }
    let addend = match request.input(2) {
        None => Addend::None,
        Some(bias) if bias.n_elements() == columns => Addend::Columns,
        Some(bias) => {
            return Err(Error::invalid(format!("a bias of {} for {columns} columns", bias.n_elements())));
        }
    };
    let (mut rows, mut batch) = (rows, offsets(a_batch, rows * k, b_batch, k * columns)?);
    // Checked before products of the batch, the rows and the columns are made of it.
    let written = (Size::of(batch.len()) * rows * columns).get("a product")?;
    check_written(request, written)?;
    // Products of one B are one product of all their rows.
    if batch.iter().enumerate().all(|(i, &(a, b))| a == i * rows * k && b == 0) && !batch.is_empty() {
        rows *= batch.len();
        batch = vec![(0, 0)];
    }
    finish_prepare(request, Product { batch, rows, columns, k, addend, ..Product::blank(request)? })
}

fn prepare_gemm(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let (a, b) = (extents(request.required_input(0)?)?, extents(request.required_input(1)?)?);
    let (a_transposed, b_transposed) =
        (request.attrs.int("transA", 0)? != 0, request.attrs.int("transB", 0)? != 0);
    let (&[a0, a1], &[b0, b1]) = (a.as_slice(), b.as_slice()) else {
        return Err(Error::invalid(format!("Gemm of {a:?} and {b:?}, expected matrices")));
    };
    let (rows, k) = if a_transposed { (a1, a0) } else { (a0, a1) };
    let (k_of_b, columns) = if b_transposed { (b1, b0) } else { (b0, b1) };
    if k != k_of_b {
        return Err(Error::invalid(format!("a product of {a:?} and {b:?}")));
    }
    let addend = match request.input(2).map(extents).transpose()?.as_deref() {
        None => Addend::None,
        Some([]) | Some([1]) | Some([1, 1]) if columns != 1 || rows != 1 => Addend::One,
        Some([n]) | Some([1, n]) if *n == columns => Addend::Columns,
        Some([m, 1]) if *m == rows => Addend::Rows,
        Some([m, n]) if *m == rows && *n == columns => Addend::All,
        Some([]) | Some([1]) => Addend::One,
        Some(other) => return Err(Error::invalid(format!("an addend {other:?} for {rows} by {columns}"))),
    };
    finish_prepare(
        request,
        Product {
            batch: vec![(0, 0)],
            rows,
            columns,
            k,
            a_transposed,
            b_transposed,
            scale: request.attrs.float("alpha", 1.0)?,
            beta: request.attrs.float("beta", 1.0)?,
            addend,
            ..Product::blank(request)?
        },
    )
}

/// Offsets of the matrices of a batch whose leading extents are broadcast against each other.
fn offsets(a: &[usize], a_size: usize, b: &[usize], b_size: usize) -> Result<Vec<(usize, usize)>> {
    const WHAT: &str = "the matrices of a batch";
    let rank = a.len().max(b.len());
    let at = |shape: &[usize], i: usize| (i + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    let mut list = vec![(0, 0)];
    let (mut a_step, mut b_step) = (vec![0; rank], vec![0; rank]);
    let (mut a_stride, mut b_stride) = (a_size, b_size);
    for i in (0..rank).rev() {
        (a_step[i], b_step[i]) = (a_stride, b_stride);
        a_stride *= at(a, i);
        b_stride *= at(b, i);
    }
    for i in 0..rank {
        let (extent_a, extent_b) = (at(a, i), at(b, i));
        if extent_a != extent_b && extent_a != 1 && extent_b != 1 {
            return Err(Error::invalid(format!("batches {a:?} and {b:?}")));
        }
        let extent = if extent_a == 1 { extent_b } else { extent_a };
        let mut next = reserve::with_capacity((Size::of(list.len()) * extent).get(WHAT)?, WHAT)?;
        next.extend(list.iter().flat_map(|&(x, y)| {
            let (a_step, b_step) = (a_step[i], b_step[i]);
            (0..extent).map(move |n| {
                (
                    x + if extent_a == 1 { 0 } else { n * a_step },
                    y + if extent_b == 1 { 0 } else { n * b_step },
                )
            })
        }));
        list = next;
    }
    Ok(list)
}

impl Product {
    /// A product of nothing, with what comes from the device.
    pub(crate) fn blank(request: &PrepareRequest<'_, CpuDevice>) -> Result<Self> {
        Ok(Self {
            host: request.host,
            batch: Vec::new(),
            rows: 0,
            columns: 0,
            k: 0,
            a_transposed: false,
            b_transposed: false,
            scale: 1.0,
            addend: Addend::None,
            beta: 1.0,
            activation: Activation::of(&request.attrs)?,
            finish: finish(request.device.isa),
            micro: Micro::of(request.device.isa),
            packed: request.abi_minor >= 2 && request.required_input(1)?.constant().is_some(),
            n_b: 1,
            grain: 1,
        })
    }

    fn packed_len(&self) -> usize {
        packed_left_len(self.micro.mr, self.columns, self.k)
    }

    /// Packs one B.
    fn pack(&self, b: &[f32], dst: &mut [f32]) {
        pack_b(b, self.k, self.columns, self.b_transposed, self.micro.mr, dst);
    }
}

/// Panels as [`pack_left`](crate::kernels::product::micro::pack_left) makes them, of rows that are copied or columns that are turned around.
fn pack_b(b: &[f32], k: usize, columns: usize, transposed: bool, mr: usize, dst: &mut [f32]) {
    // An axis of nothing leaves nothing to pack.
    for (panel, dst) in dst.chunks_exact_mut((k * mr).max(1)).enumerate() {
        let first = panel * mr;
        let n = mr.min(columns - first);
        if transposed {
            let from = b[first * k..(first + n) * k].as_ptr();
            // SAFETY: there are `n` columns of `k` numbers, and the panel has `k` rows of at least `n`.
            unsafe { strided::transpose(from, k, dst.as_mut_ptr(), mr, [k, n]) };
        }
        for (i, row) in dst.chunks_exact_mut(mr).enumerate() {
            let (row, beyond) = row.split_at_mut(n);
            if !transposed {
                row.copy_from_slice(&b[i * columns + first..][..n]);
            }
            beyond.fill(0.0);
        }
    }
}

/// Checks that the output has as many elements as the product.
fn check_written(request: &PrepareRequest<'_, CpuDevice>, written: usize) -> Result<()> {
    let found = request.required_output(0)?;
    if found.n_elements() != written {
        return Err(Error::invalid(format!("a product of {written} elements into {:?}", found.shape())));
    }
    Ok(())
}

fn finish_prepare(request: &PrepareRequest<'_, CpuDevice>, mut product: Product) -> Result<Prepared> {
    const WHAT: &str = "a matrix product's tables";
    let written = Size::of(product.batch.len()) * product.rows * product.columns;
    check_written(request, written.get("a product")?)?;
    if let Some(prepared) = dense::prepare(request, &product) {
        return Ok(prepared);
    }
    if let Some(prepared) = tiled::prepare(request, &product) {
        return prepared;
    }
    // Each product of the batch says which packed B is its own.
    let mut order = reserve::collected(product.batch.iter().map(|&(_, b)| b), WHAT)?;
    order.sort_unstable();
    order.dedup();
    product.n_b = order.len().max(1);
    if product.n_b > 1 {
        // A batch of matrices is packed in each launch: the host packs one constant, not many.
        product.packed = false;
    }
    let flops = Size::of(2 * ROWS.min(product.rows) * product.micro.mr) * product.k;
    product.grain = (200_000 / flops.saturated().max(1)).max(1);
    let mr = product.micro.mr;
    let len = packed_left_size(mr, product.columns, product.k).get("packed weights")?;
    let ragged = if product.columns.is_multiple_of(product.micro.lanes) { 0 } else { ROWS * mr };
    let slots = product.host.n_slots() * ragged;
    let per_launch = Size::of(if product.packed { 0 } else { product.n_b }) * len;
    let (k, columns, transposed, packed) = (product.k, product.columns, product.b_transposed, product.packed);
    let b_of = product.batch.iter().map(|&(_, b)| order.binary_search(&b).unwrap_or(0));
    let b_of = reserve::collected(b_of, WHAT)?;
    let prepared = Prepared::new(MatMul { product, b_of, order }).with_room((per_launch + slots) * 4, 64)?;
    if !packed {
        return Ok(prepared);
    }
    let id = layout_id(&[3, mr as u64, k as u64, columns as u64, u64::from(transposed)]);
    Ok(prepared.with_packed(1, id, len * 4, 64, move |src, dst| {
        pack_b(&to_weights(src)?, k, columns, transposed, mr, as_f32s_mut(dst)?);
        Ok(())
    }))
}

struct MatMul {
    product: Product,
    /// Index of the packed B of each product of the batch.
    b_of: Vec<usize>,
    /// Where each distinct B begins.
    order: Vec<usize>,
}

impl Launch<CpuDevice> for MatMul {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let product = &self.product;
        let mut addresses = Addresses::of(operands);
        let (k, columns, mr) = (product.k, product.columns, product.micro.mr);
        let ragged = if columns.is_multiple_of(product.micro.lanes) { 0 } else { ROWS * mr };
        // A product over an axis of nothing has nothing to pack.
        let packs = !product.packed && product.packed_len() > 0;
        let uses_workspace = ragged > 0 || packs;
        let workspace =
            SendPtr(if uses_workspace { operands.workspace_ptr::<f32>() } else { std::ptr::null_mut() });
        if packs {
            let packed = SendPtr(workspace.at(ragged * product.host.n_slots()));
            let b = addresses.w;
            let len = product.packed_len();
            product.host.parallel_for(self.order.len(), (20_000 / len.max(1)).max(1), |range, _| {
                for i in range {
                    // SAFETY: B has `k * columns` elements from there, and each copy is its own part of the
                    // workspace.
                    let (src, dst) = unsafe {
                        (
                            std::slice::from_raw_parts(b.at(self.order[i]), k * columns),
                            std::slice::from_raw_parts_mut(packed.at(i * len), len),
                        )
                    };
                    product.pack(src, dst);
                }
                Ok(())
            })?;
            addresses.w = packed;
        }
        let panels = columns.div_ceil(mr);
        let blocks = product.rows.div_ceil(ROWS);
        product.host.parallel_for(product.batch.len() * blocks * panels, product.grain, |units, slot| {
            let scratch = workspace.at(slot * ragged);
            for unit in units {
                let (panel, unit) = (unit % panels, unit / panels);
                let (block, item) = (unit % blocks, unit / blocks);
                // SAFETY: units write disjoint parts of the result, and a slot's scratch is its own.
                unsafe { self.unit(item, block * ROWS, panel, &addresses, scratch) };
            }
            Ok(())
        })
    }
}

impl MatMul {
    /// One panel of columns, some rows.
    ///
    /// # Safety
    /// The addresses are the launch's operands, packed B included; no other thread works on this unit or in this
    /// scratch memory.
    unsafe fn unit(&self, item: usize, row0: usize, panel: usize, addresses: &Addresses, scratch: *mut f32) {
        let product = &self.product;
        let Product { k, columns, rows: all_rows, .. } = *product;
        let mr = product.micro.mr;
        let rows = ROWS.min(all_rows - row0);
        let column0 = panel * mr;
        let n = mr.min(columns - column0);
        let m = product.micro.padded(n);
        let (a_offset, _) = product.batch[item];
        let (k_stride, row_stride) = if product.a_transposed { (all_rows, 1) } else { (1, k) };
        let a = addresses.x.at(a_offset + row0 * row_stride);
        let b = addresses.w.at(self.b_of[item] * product.packed_len() + panel * mr * k);
        let y0 = (item * all_rows + row0) * columns + column0;
        let (start, stride) = if m == n { (addresses.y.at(y0), columns) } else { (scratch, mr) };
        if k == 0 {
            for row in 0..rows {
                // A sum of nothing is 0.
                // SAFETY: the row is this unit's, and a 0 of floats is a 0 of bits.
                unsafe { start.wrapping_add(row * stride).write_bytes(0, m) };
            }
        }
        for k0 in (0..k).step_by(KC) {
            let kc = KC.min(k - k0);
            for row in (0..rows).step_by(NR) {
                // SAFETY: `m` is whole vectors; the panel of B and the rows of A have `kc` values of k from here,
                // and the rows of the result are this unit's.
                unsafe {
                    product.micro.tile(
                        m,
                        NR.min(rows - row),
                        kc,
                        Left { start: b.wrapping_add(k0 * mr), stride: mr },
                        Right {
                            start: a.wrapping_add(row * row_stride + k0 * k_stride),
                            k_stride: k_stride as isize,
                            row_stride: row_stride as isize,
                        },
                        Dst {
                            start: start.wrapping_add(row * stride),
                            stride,
                            scale: product.scale,
                            accumulate: k0 > 0,
                        },
                    );
                }
            }
        }
        if m == n && product.addend == Addend::None && product.activation == Activation::None {
            return;
        }
        let c = addresses.bias;
        let one = if product.addend == Addend::One {
            // SAFETY: the operand has one element.
            unsafe { *c.0 }
        } else {
            0.0
        };
        let ones = [one; ROWS];
        let tile = Tile {
            x: start,
            x_stride: stride,
            y: addresses.y.at(y0),
            y_stride: columns,
            rows,
            columns: n,
            row_bias: match product.addend {
                Addend::Rows => c.at(row0),
                Addend::One => ones.as_ptr(),
                _ => std::ptr::null(),
            },
            column_bias: if product.addend == Addend::Columns { c.at(column0) } else { std::ptr::null() },
            z: if product.addend == Addend::All { c.at(row0 * columns + column0) } else { std::ptr::null() },
            beta: product.beta,
        };
        // SAFETY: rows and columns are this unit's, within the addend and the result.
        unsafe { (product.finish)(tile, product.activation) };
    }
}

#[cfg(test)]
mod tests {
    use crate::kernels::test_host::{Array, run};
    use crate::kernels::testing::isas;

    #[test]
    fn a_product_over_an_axis_of_nothing_is_what_is_added() {
        for isa in isas() {
            let inputs = [
                Some(Array::of::<f32>(&[3, 0], &[])),
                Some(Array::of::<f32>(&[0, 2], &[])),
                Some(Array::of(&[2], &[1f32, 2.0])),
            ];
            // The previous content counts for nothing.
            let output = [Some(Array::of(&[3, 2], &[9f32; 6]))];
            let found = run(isa, "MatMul", &[], &inputs[..2], &output).expect("MatMul");
            assert_eq!(found[0].as_ref().expect("a product").elements::<f32>(), [0.0; 6]);
            let found = run(isa, "Gemm", &[], &inputs, &output).expect("Gemm");
            assert_eq!(
                found[0].as_ref().expect("a product").elements::<f32>(),
                [1.0, 2.0, 1.0, 2.0, 1.0, 2.0]
            );
        }
    }
}
