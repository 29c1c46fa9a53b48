//! Products of 8-bit matrices, exact in i32: MatMulInteger, and with what follows the sums MatMulIntegerToFloat and
//! QLinearMatMul.
//!
//! The right matrix is packed into panels, once by the host if it is constant, else a panel at a time beside the block of rows
//! that it is used for. Rows of the left matrix are read where they are, unless their bytes are signed.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, extents, row_major};
use crate::kernels::geometry::walk::Walk;
use crate::kernels::numbers::convert::Kind;
use crate::kernels::product::epilogue::{Activation, FinishFn, Tile, finish};
use crate::kernels::product::int_product::{
    Columns, FillPanel, HALF, IntPanels, SMALL, TakeRow, Zeros, fill_panel, flip, scale_at, take_row,
};
use crate::kernels::product::int_tile::{COLUMNS_MAX, Factors, IntTiles, Job, Outer, Tail};
use crate::kernels::product::micro::layout_id;
use crate::kernels::product::tile::Quick;
use crate::stream::CpuStream;
use devbay_ops::{descriptor, descriptor_of};
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("MatMulInteger", 10, prepare_sums)
        .types(&[TypeVar::of(SMALL), TypeVar::of(SMALL), TypeVar::of(&[I32])])
        .cost(cost)
        .doc("exact; zero points of the whole, of rows of the left and of columns of the right"),
    descriptor_of("devbay", "MatMulIntegerToFloat", 1, prepare_floats)
        .types(&[TypeVar::of(SMALL), TypeVar::of(SMALL), TypeVar::of(&[F32])])
        .cost(cost)
        .doc("MatMulInteger as f32, scaled, with a bias and an activation"),
];

/// Multiply-adds of a chunk.
const GRAIN: usize = 1024 * 1024;

/// Rows of a unit: enough that filling a panel costs little.
const ROWS: usize = 128;

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
    fn of(left: &TensorView<'_>, right: &TensorView<'_>) -> Result<Self> {
        let (mut left, mut right) = (extents(left)?, extents(right)?);
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
    let shape = Shape::of(request.required_input(0)?, request.required_input(1)?)?;
    let products = Size::of_extents(&shape.batch) * shape.m * shape.n;
    Ok(cost::of(request, (products * shape.k * 2).saturated() as u64))
}

/// Where the matrices and their zero points are among the operands.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    pub a: usize,
    pub b: usize,
    pub a_zero: usize,
    pub b_zero: usize,
}

/// What becomes of the sums; operands by position.
pub(crate) enum End {
    /// They are the result.
    Ints,
    /// They become f32: scaled, by one number or one for each column, plus a bias, with an activation.
    Floats {
        scale: usize,
        scale_is_one: bool,
        bias: Option<usize>,
        activation: Quick,
        rest: Option<(FinishFn, Activation)>,
    },
    /// They are quantised.
    Bytes(Requantise),
}

/// Quantisation of sums: `a_scale * b_scale / y_scale` is their factor.
pub(crate) struct Requantise {
    pub a_scale: usize,
    pub b_scale: usize,
    pub y_scale: usize,
    pub y_zero: usize,
    /// Numbers of scales: one, or one for each row and one for each column.
    pub n_a: usize,
    pub n_b: usize,
    /// The scales' type.
    pub scale: Kind,
    pub signed: bool,
}

fn prepare_sums(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    prepare(request, Places { a: 0, b: 1, a_zero: 2, b_zero: 3 }, |_| Ok(End::Ints))
}

/// Operands: A, B, the scale, zero points and the bias.
fn prepare_floats(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    const SCALE: usize = 2;
    const BIAS: usize = 5;
    prepare(request, Places { a: 0, b: 1, a_zero: 3, b_zero: 4 }, |columns| {
        let n_scales = request.required_input(SCALE)?.n_elements();
        if n_scales != 1 && n_scales != columns {
            return Err(Error::invalid(format!("{n_scales} scales for {columns} columns")));
        }
        let bias = request.input(BIAS).map(TensorView::n_elements);
        if let Some(n) = bias.filter(|&n| n != columns) {
            return Err(Error::invalid(format!("a bias of {n} for {columns} columns")));
        }
        let (activation, rest) = match Quick::of(Activation::of(&request.attrs)?) {
            Ok(quick) => (quick, None),
            Err(other) => (Quick::None, Some((finish(request.device.isa), other))),
        };
        Ok(End::Floats {
            scale: SCALE,
            scale_is_one: n_scales == 1,
            bias: bias.map(|_| BIAS),
            activation,
            rest,
        })
    })
}

/// A product that is ready to be launched.
struct IntProduct {
    host: Host,
    tiles: IntTiles,
    places: Places,
    end: End,
    /// The products, with matrices of the left and of the right.
    batch: Walk<2>,
    left_rows: usize,
    m: usize,
    k: usize,
    n: usize,
    panels: IntPanels,
    left_zeros: Zeros,
    right_zeros: Zeros,
    left_flip: u8,
    right_flip: u8,
    /// True if the host passes the right matrix packed.
    packed: bool,
    /// Bytes of the workspace that a slot has, and where what all rows need begins.
    slot: usize,
    rows_at: usize,
    fill: FillPanel,
    take: TakeRow,
}

/// What a slot has for the columns of a unit: numbers of i32 or f32.
const COLUMN_NUMBERS: usize = 4 * COLUMNS_MAX;

/// Prepares a product. `end` gets the number of columns.
pub(crate) fn prepare(
    request: &PrepareRequest<'_, CpuDevice>,
    places: Places,
    end: impl FnOnce(usize) -> Result<End>,
) -> Result<Prepared> {
    let (left, right) = (request.required_input(places.a)?, request.required_input(places.b)?);
    let shape = Shape::of(left, right)?;
    expect_output(request, 0, &shape.output)?;
    let end = end(shape.n)?;
    let Shape { mut m, k, n, .. } = shape;
    let left_rows = (Size::of_extents(&shape.left_batch) * m).get("rows")?;
    let n_right = (Size::of_extents(&shape.right_batch)).get("matrices")?;
    let right_columns = (Size::of(n_right) * n).get("columns")?;
    let (left_signed, right_signed) = (left.dtype() == I8, right.dtype() == I8);
    let left_zeros = Zeros::new(request, places.a_zero, &[m, left_rows], if left_signed { HALF } else { 0 })?;
    let moved = if right_signed { 0 } else { -HALF };
    let right_zeros = Zeros::new(request, places.b_zero, &[n, right_columns], moved)?;
    let strides = |side: &[usize]| {
        let strides = row_major(side);
        let along = |i: usize| if side[i] == 1 { 0 } else { strides[i] };
        (0..side.len()).map(along).collect::<Vec<_>>()
    };
    let (of_left, of_right) = (strides(&shape.left_batch), strides(&shape.right_batch));
    let dim = |i: usize| (shape.batch[i], [of_left[i], of_right[i]]);
    // Products of one matrix on the right are one product of all their rows.
    let batch = match n_right {
        1 => {
            m = left_rows;
            Walk::new(std::iter::empty())?
        }
        _ => Walk::new((0..shape.batch.len()).map(dim))?,
    };
    let isa = request.device.isa;
    let tiles = IntTiles::of(isa);
    let panels = IntPanels::of(&tiles, k, n);
    // The host packs one constant, not many.
    let packed = request.abi_minor >= 2 && n_right == 1 && right.constant().is_some() && k * n > 0;
    let widest = Size::of(k.div_ceil(4)) * (4 * tiles.lanes * tiles.vectors);
    let slot = Size::of(4 * COLUMN_NUMBERS) + if packed { Size::of(0) } else { widest };
    let slot = slot.get("a panel")?.next_multiple_of(64);
    let rows_at = (Size::of(slot) * request.host.n_slots()).get("panels")?;
    let fill = fill_panel(isa);
    let kernel = IntProduct {
        host: request.host,
        tiles,
        places,
        end,
        batch,
        left_rows,
        m,
        k,
        n,
        panels,
        left_zeros,
        right_zeros,
        left_flip: flip(left_signed),
        right_flip: flip(!right_signed),
        packed,
        slot,
        rows_at,
        fill,
        take: take_row(isa),
    };
    // Two numbers for each row, and its bytes if they are moved.
    let of_row = if kernel.numbers_rows() { 8 } else { 0 } + if left_signed { k } else { 0 };
    let prepared = Prepared::new(kernel).with_room(Size::of(left_rows) * of_row + rows_at, 64)?;
    if !packed {
        return Ok(prepared);
    }
    let id = layout_id(&[
        13,
        tiles.lanes as u64,
        tiles.vectors as u64,
        k as u64,
        n as u64,
        u64::from(right_signed),
    ]);
    let bytes = panels.size().get("packed weights")?;
    let flip = flip(!right_signed);
    Ok(prepared.with_packed(places.b, id, bytes, 64, move |src, dst| {
        if src.len() != k * n {
            return Err(Error::invalid(format!("{} bytes of {k} by {n}", src.len())));
        }
        panels.pack(src, flip, fill, dst);
        Ok(())
    }))
}

/// The operands and the workspace of a launch.
struct Launched {
    a: SendPtr<u8>,
    b: SendPtr<u8>,
    a_zeros: SendPtr<u8>,
    b_zeros: SendPtr<u8>,
    y: SendPtr<u8>,
    workspace: SendPtr<u8>,
    /// The zero point of rows that have no other, and those of rows that have.
    a_zero: i32,
    row_zeros: SendPtr<i32>,
    /// `sum x - k zero` of each row; NULL if no column has a zero point.
    row_sums: SendPtr<i32>,
    end: Ends,
}

/// What the end of a launch reads.
enum Ends {
    Ints,
    Floats { factors: Factors, bias: SendPtr<f32> },
    Bytes { a_scale: SendPtr<u8>, b_scale: SendPtr<u8>, y_scale: f32, zero: f32 },
}

// SAFETY: factors are an operand's, which every thread may read.
unsafe impl Sync for Ends {}

impl Launch<CpuDevice> for IntProduct {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let mut launched = self.launched(operands);
        self.take_rows(&mut launched)?;
        let row_blocks = self.m.div_ceil(ROWS);
        let per_product = row_blocks * self.panels.n;
        let macs = self.m.min(ROWS) * (self.tiles.lanes * self.tiles.vectors).min(self.n) * self.k.max(1);
        let grain = (GRAIN / macs.max(1)).max(1);
        self.host.parallel_for(self.batch.len() * per_product, grain, |range, slot| {
            let mut pace = self.host.pace();
            for unit in range {
                let (product, unit) = (unit / per_product, unit % per_product);
                // SAFETY: the operands are those that `prepare` was told; units write disjoint parts of the result, and a slot
                // works on one unit at a time.
                unsafe {
                    self.unit(&launched, slot, product, unit / self.panels.n * ROWS, unit % self.panels.n)
                };
                pace.work(macs / 32)?;
            }
            Ok(())
        })
    }
}

impl IntProduct {
    /// Returns whether rows have numbers in the workspace.
    fn numbers_rows(&self) -> bool {
        self.left_zeros.are_many() || !self.right_zeros.are_none()
    }

    fn launched(&self, operands: &mut Operands<'_>) -> Launched {
        let workspace = SendPtr(operands.workspace_ptr::<u8>());
        let address = |i: usize| {
            SendPtr(operands.input_refs().get(i).map_or(std::ptr::null_mut(), |input| input.addr as *mut u8))
        };
        let end = match &self.end {
            End::Ints => Ends::Ints,
            End::Floats { scale, scale_is_one, bias, .. } => Ends::Floats {
                factors: Factors {
                    first: address(*scale).at(0).cast(),
                    by_row: false,
                    by_column: !scale_is_one,
                },
                bias: SendPtr(bias.map_or(std::ptr::null_mut(), |bias| address(bias).at(0).cast())),
            },
            End::Bytes(end) => {
                let zero = address(end.y_zero).at(0);
                // SAFETY: the zero point is one element.
                let zero = unsafe { zero.read() };
                Ends::Bytes {
                    a_scale: address(end.a_scale),
                    b_scale: address(end.b_scale),
                    // SAFETY: the scale is one element.
                    y_scale: unsafe { scale_at(end.scale, address(end.y_scale).at(0), 0) },
                    zero: if end.signed { f32::from(zero as i8) } else { f32::from(zero) },
                }
            }
        };
        let a_zeros = address(self.places.a_zero);
        Launched {
            a: address(self.places.a),
            b: address(self.places.b),
            a_zeros,
            b_zeros: address(self.places.b_zero),
            workspace,
            // SAFETY: the operand is the one that `prepare` was told.
            a_zero: unsafe { self.left_zeros.get(a_zeros.at(0), 0) },
            row_zeros: SendPtr(std::ptr::null_mut()),
            row_sums: SendPtr(std::ptr::null_mut()),
            end,
            y: SendPtr(operands.output_ptr::<u8>(0)),
        }
    }

    /// Makes what the rows of the left need: their zero points, their sums, and bytes without a sign.
    fn take_rows(&self, launched: &mut Launched) -> Result<()> {
        // SAFETY: the operand is the one that `prepare` was told.
        let sums = unsafe { self.right_zeros.are_used(launched.b_zeros.at(0)) };
        let (zeros, copies) = (self.left_zeros.are_many(), self.left_flip != 0);
        if !(sums || zeros || copies) {
            return Ok(());
        }
        let numbers = SendPtr(launched.workspace.at(self.rows_at).cast::<i32>());
        let bytes = if self.numbers_rows() { 8 * self.left_rows } else { 0 };
        let copy = SendPtr(launched.workspace.at(self.rows_at + bytes));
        let row_sums = SendPtr(numbers.at(self.left_rows));
        let (a, a_zeros, k) = (launched.a, launched.a_zeros, self.k);
        let grain = (GRAIN / 16 / k.max(1)).max(1);
        self.host.parallel_for(self.left_rows, grain, |range, _| {
            for row in range {
                // SAFETY: the operand is the one that `prepare` was told.
                let zero = unsafe { self.left_zeros.get(a_zeros.at(0), row) };
                let to = if copies { copy.at(row * k) } else { std::ptr::null_mut() };
                if sums || copies {
                    // SAFETY: the row lies within the operand and the workspace, of which each chunk writes its own rows, and
                    // the instructions are the device's.
                    let sum = unsafe { (self.take)(a.at(row * k), k, self.left_flip, to) };
                    if sums {
                        let sum = sum.wrapping_sub((k as i32).wrapping_mul(zero));
                        // SAFETY: there is a number for each row.
                        unsafe { row_sums.at(row).write(sum) };
                    }
                }
                if zeros {
                    // SAFETY: there is a number for each row.
                    unsafe { numbers.at(row).write(zero) };
                }
            }
            Ok(())
        })?;
        if sums {
            launched.row_sums = row_sums;
        }
        if zeros {
            launched.row_zeros = numbers;
        }
        if copies {
            launched.a = copy;
        }
        Ok(())
    }

    /// One panel of columns, some rows.
    ///
    /// # Safety
    /// The launch is of the operands that `prepare` was told, and no other thread works on this unit or in this slot.
    unsafe fn unit(&self, launched: &Launched, slot: usize, product: usize, row0: usize, panel: usize) {
        let [left_at, right_at] = self.batch.position(product).offsets;
        let (left_at, right_at) = (left_at as usize, right_at as usize);
        let (first, columns) = self.panels.columns(panel);
        let vectors = self.panels.vectors(panel).len();
        let width = vectors * self.tiles.lanes;
        let scratch = launched.workspace.at(slot * self.slot);
        // Numbers of each column: where sums begin, zero points, sums, factors.
        let of_columns = |i: usize| scratch.wrapping_add(4 * i * COLUMNS_MAX);
        let (start, zeros) = (of_columns(0).cast::<i32>(), of_columns(1).cast::<i32>());
        let factors = of_columns(3).cast::<f32>();
        let (columns_of, sums) = if self.packed {
            let packed = launched.b.at(0);
            (
                packed.wrapping_add(self.panels.at(panel)).cast::<i8>(),
                packed.cast::<i32>().wrapping_add(first),
            )
        } else {
            let source = Columns {
                first: launched.b.at(right_at * self.k * self.n + first),
                stride: self.n,
                k: self.k,
                columns,
                width,
                flip: self.right_flip,
            };
            let (to, sums) = (scratch.wrapping_add(4 * COLUMN_NUMBERS).cast(), of_columns(2).cast());
            // SAFETY: the right matrix has these columns, and the slot a panel and its sums.
            unsafe { (self.fill)(&source, to, sums) };
            (to, sums)
        };
        let has_rows = !launched.row_zeros.at(0).is_null();
        let mut job = Job {
            x: launched.a.at((left_at * self.m + row0) * self.k),
            x_stride: self.k,
            k: self.k,
            panel: columns_of,
            columns,
            start_columns: std::ptr::null(),
            start_rows: std::ptr::null(),
            outer: [Outer::NONE; 2],
            tail: Tail::Ints,
            y: launched.y.at(0),
            y_stride: self.n,
        };
        if has_rows {
            job.outer[0] = Outer { rows: launched.row_zeros.at(left_at * self.m + row0), columns: sums };
        } else if launched.a_zero != 0 {
            for i in 0..width {
                // SAFETY: there is a sum for each column of the panel.
                let sum = unsafe { sums.wrapping_add(i).read() };
                // SAFETY: the slot has a number for each column.
                unsafe { start.wrapping_add(i).write(sum.wrapping_mul(-launched.a_zero)) };
            }
            job.start_columns = start;
        }
        if !launched.row_sums.at(0).is_null() {
            for i in 0..width {
                let column = right_at * self.n + (first + i).min(self.n - 1);
                // SAFETY: the operand is the one that `prepare` was told, and the slot has a number for each column.
                unsafe {
                    zeros.wrapping_add(i).write(self.right_zeros.get(launched.b_zeros.at(0), column));
                }
            }
            job.outer[1] = Outer { rows: launched.row_sums.at(left_at * self.m + row0), columns: zeros };
        }
        let rows = ROWS.min(self.m - row0);
        let y0 = (product * self.m + row0) * self.n + first;
        match (&self.end, &launched.end) {
            (End::Floats { activation, rest, .. }, Ends::Floats { factors, bias }) => {
                let at = if factors.by_column { first } else { 0 };
                let factors = Factors { first: factors.first.wrapping_add(at), ..*factors };
                let bias = if bias.at(0).is_null() { bias.at(0) } else { bias.at(first) };
                job.tail = Tail::Floats { factors, bias, activation: *activation };
                // SAFETY: the rows are this unit's, with what the job names.
                unsafe { self.rows(job, vectors, rows, y0, 4) };
                if let Some((finish, activation)) = rest {
                    let y = launched.y.at(4 * y0).cast::<f32>();
                    let tile = Tile {
                        x: y,
                        x_stride: self.n,
                        y,
                        y_stride: self.n,
                        rows,
                        columns,
                        row_bias: std::ptr::null(),
                        column_bias: std::ptr::null(),
                        z: std::ptr::null(),
                        beta: 1.0,
                    };
                    // SAFETY: the rows and columns are this unit's.
                    unsafe { finish(tile, *activation) };
                }
            }
            (End::Bytes(end), Ends::Bytes { a_scale, b_scale, y_scale, zero }) => {
                let (low, high) = if end.signed { (-128.0, 127.0) } else { (0.0, 255.0) };
                // Where rows have scales of their own, they are made one by one.
                let (step, times) = if end.n_a == 1 { (rows, 1) } else { (1, rows) };
                for row in 0..times {
                    let of_row = if end.n_a == 1 { 0 } else { (row0 + row) % end.n_a };
                    // SAFETY: there are so many scales.
                    let of_row = unsafe { scale_at(end.scale, a_scale.at(0), of_row) };
                    let by_column = end.n_b > 1;
                    for i in 0..if by_column { columns } else { 1 } {
                        let column = if by_column { first + i } else { 0 };
                        // SAFETY: there are so many scales.
                        let of_column = unsafe { scale_at(end.scale, b_scale.at(0), column) };
                        // SAFETY: the slot has a number for each column.
                        unsafe { factors.wrapping_add(i).write(of_row * of_column / y_scale) };
                    }
                    let factors = Factors { first: factors, by_row: false, by_column };
                    let tail = Tail::Bytes { factors, zero: *zero, low, high };
                    let mut job = Job { tail, x: job.x.wrapping_add(row * self.k), ..job };
                    for outer in job.outer.iter_mut().filter(|outer| !outer.rows.is_null()) {
                        outer.rows = outer.rows.wrapping_add(row);
                    }
                    // SAFETY: the rows are this unit's, with what the job names.
                    unsafe { self.rows(job, vectors, step, y0 + row * self.n, 1) };
                }
            }
            // SAFETY: the rows are this unit's, with what the job names.
            _ => unsafe { self.rows(job, vectors, rows, y0, 4) },
        }
    }

    /// The tiles of some rows: the job is that of the first one, but for where its result goes.
    ///
    /// # Safety
    /// As [`IntTiles::run`] for each of them; the result has elements of `size` bytes, of which the first tile's begin at `y0`.
    unsafe fn rows(&self, mut job: Job, vectors: usize, rows: usize, y0: usize, size: usize) {
        job.y = job.y.wrapping_add(size * y0);
        let most = self.tiles.rows(vectors);
        let mut row = 0;
        while row < rows {
            // As many tiles as there must be, and as even as they can be.
            let n = (rows - row).div_ceil((rows - row).div_ceil(most));
            // SAFETY: the rows are the caller's (# Safety).
            unsafe { self.tiles.run(vectors, n, &job) };
            row += n;
            job.x = job.x.wrapping_add(n * job.x_stride);
            job.y = job.y.wrapping_add(size * n * job.y_stride);
            for outer in job.outer.iter_mut().filter(|outer| !outer.rows.is_null()) {
                outer.rows = outer.rows.wrapping_add(n);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::kernels::test_host::{Array, Value, run, run_with_constants};
    use crate::kernels::testing::{Chance, isas};

    /// The right matrix comes with the launch and as a constant; zero points are of rows, columns and the whole.
    #[test]
    fn products_are_exact() {
        let mut random = Chance::new(5);
        for (m, k, n) in [(1, 1, 1), (3, 700, 5), (150, 33, 70), (7, 256, 32), (4, 0, 3), (2, 5, 200)] {
            let a: Vec<u8> = (0..2 * m * k).map(|_| random.below(256) as u8).collect();
            let b: Vec<i8> = (0..k * n).map(|_| random.below(256) as u8 as i8).collect();
            let rows: Vec<u8> = (0..m).map(|_| random.below(256) as u8).collect();
            let cols: Vec<i8> = (0..n).map(|_| random.below(256) as u8 as i8).collect();
            for (rows, cols) in [(&rows[..], &cols[..]), (&rows[..1], &cols[..]), (&rows[..1], &[0][..])] {
                let mut expected = Vec::new();
                for row in 0..2 * m {
                    for col in 0..n {
                        let product = |k_at: usize| {
                            (i32::from(a[row * k + k_at]) - i32::from(rows[row % rows.len()]))
                                * (i32::from(b[k_at * n + col]) - i32::from(cols[col % cols.len()]))
                        };
                        expected.push((0..k).map(product).sum::<i32>());
                    }
                }
                let inputs = [
                    Some(Array::of(&[2, m, k], &a)),
                    Some(Array::of(&[k, n], &b)),
                    Some(Array::of(&[rows.len()], rows)),
                    Some(Array::of(&[cols.len()], cols)),
                ];
                for (isa, constants) in isas().flat_map(|isa| [(isa, 0), (isa, 2)]) {
                    let output = [Some(Array::empty::<i32>(&[2, m, n]))];
                    let found = run_with_constants(isa, "MatMulInteger", &[], &inputs, &output, constants);
                    let expected = Some(Array::of(&[2, m, n], &expected));
                    assert_eq!(found.expect("multiplies")[0], expected, "{isa:?} {constants} {m} {k} {n}");
                }
            }
        }
    }

    /// The left matrix is signed and the right one is not: both are moved, without zero points too.
    #[test]
    fn numbers_of_the_other_sign_are_exact() {
        let mut random = Chance::new(6);
        let (m, k, n) = (5, 131, 37);
        let a: Vec<i8> = (0..m * k).map(|_| random.below(256) as u8 as i8).collect();
        let b: Vec<u8> = (0..k * n).map(|_| random.below(256) as u8).collect();
        let product =
            |row: usize, col: usize, at: usize| i32::from(a[row * k + at]) * i32::from(b[at * n + col]);
        let sum = |i: usize| (0..k).map(|at| product(i / n, i % n, at)).sum::<i32>();
        let expected = Some(Array::of(&[m, n], &(0..m * n).map(sum).collect::<Vec<_>>()));
        let inputs = [Some(Array::of(&[m, k], &a)), Some(Array::of(&[k, n], &b))];
        for (isa, constants) in isas().flat_map(|isa| [(isa, 0), (isa, 2)]) {
            let output = [Some(Array::empty::<i32>(&[m, n]))];
            let found = run_with_constants(isa, "MatMulInteger", &[], &inputs, &output, constants);
            assert_eq!(found.expect("multiplies")[0], expected, "{isa:?} {constants}");
        }
    }

    #[test]
    fn sums_wrap() {
        let (k, n) = (70_000, 3);
        let inputs =
            [Some(Array::of(&[1, k], &vec![255u8; k])), Some(Array::of(&[k, n], &vec![-128i8; k * n]))];
        let wrapped = (255i64 * -128 * k as i64) as i32;
        for isa in isas() {
            let output = [Some(Array::empty::<i32>(&[1, n]))];
            let found = run(isa, "MatMulInteger", &[], &inputs, &output).expect("multiplies");
            assert_eq!(found[0].as_ref().expect("a product").elements::<i32>(), [wrapped; 3], "{isa:?}");
        }
    }

    /// Each step rounds as the op of its name, of scales that are not finite too.
    #[test]
    fn scaled_sums_are_those_of_the_single_ops() {
        let mut random = Chance::new(7);
        let (m, k, n) = (9, 300, 75);
        let a: Vec<u8> = (0..m * k).map(|_| random.below(256) as u8).collect();
        let b: Vec<i8> = (0..k * n).map(|_| random.below(256) as u8 as i8).collect();
        let mut scales = random.floats(n, 1e-3);
        scales[..4].copy_from_slice(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0]);
        let bias = random.floats(n, 3.0);
        for (scales, zero, activation) in
            [(&scales[..], 7u8, "Relu"), (&scales[..], 0, ""), (&scales[5..6], 200, "Sigmoid")]
        {
            let mut expected = Vec::new();
            for i in 0..m * n {
                let (row, col) = (i / n, i % n);
                let sum: i32 = (0..k)
                    .map(|at| (i32::from(a[row * k + at]) - i32::from(zero)) * i32::from(b[at * n + col]))
                    .sum();
                let y = sum as f32 * scales[col % scales.len()] + bias[col];
                expected.push(if activation == "Relu" && y < 0.0 { 0.0 } else { y });
            }
            let inputs = [
                Some(Array::of(&[m, k], &a)),
                Some(Array::of(&[k, n], &b)),
                Some(Array::of(&[scales.len()], scales)),
                Some(Array::of(&[], &[zero])),
                None,
                Some(Array::of(&[n], &bias)),
            ];
            let attrs = [("activation", Value::Text(activation))];
            for (isa, constants) in isas().flat_map(|isa| [(isa, 0), (isa, 2)]) {
                let output = [Some(Array::empty::<f32>(&[m, n]))];
                let found =
                    run_with_constants(isa, "MatMulIntegerToFloat", &attrs, &inputs, &output, constants);
                let found = found.expect("multiplies")[0].as_ref().expect("a product").elements::<f32>();
                let mut expected = expected.clone();
                if activation == "Sigmoid" {
                    let single = [Some(Array::of(&[m * n], &expected))];
                    let output = [Some(Array::empty::<f32>(&[m * n]))];
                    let single = run(isa, "Sigmoid", &[], &single, &output).expect("Sigmoid");
                    expected = single[0].as_ref().expect("a result").elements::<f32>();
                }
                let same = |(x, y): (&f32, &f32)| x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan();
                assert!(found.iter().zip(&expected).all(same), "{isa:?} {constants} {activation}");
            }
        }
    }
}
