//! Matrix products whose factors are rounded to bf16 ([`Pairs`]): rows of A in the workspace, and a constant B when it is
//! packed.

use crate::device::CpuDevice;
use crate::kernels::product::epilogue::{Activation, Addresses, FinishFn, Tile};
use crate::kernels::product::matmul::{Addend, Product};
use crate::kernels::product::micro::{as_f32s_mut, layout_id, to_f32s};
use crate::kernels::product::pairs::Pairs;
use crate::kernels::product::panels::Panels;
use crate::kernels::product::tile::{Job, Quick, Segment, TERMS_MAX, Tail};
use crate::stream::CpuStream;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

/// Rows of a unit, at most: of a thousand pairs, they stay in the second-level cache while panels pass.
const ROWS: usize = 96;

/// A kernel for the product, if the host permits it to round, and it is one of these: one matrix, or a few that share a constant
/// B, in the order of their rows.
pub(crate) fn prepare(
    request: &PrepareRequest<'_, CpuDevice>,
    product: &Product,
) -> Option<Result<Prepared>> {
    let pairs = Pairs::permitted(request)?;
    let fits = product.packed
        && product.batch == [(0, 0)]
        && !product.a_transposed
        && product.scale == 1.0
        && product.k > 1
        && product.rows > 0;
    fits.then(|| prepare_pairs(product, pairs))
}

fn prepare_pairs(product: &Product, pairs: Pairs) -> Result<Prepared> {
    let Product { host, rows, columns, k, b_transposed, addend, beta, activation, finish, .. } = *product;
    let panels = Panels::of(columns, Pairs::of_row(k), &pairs.tiles);
    let bytes = (panels.size() * 4).get("packed weights")?;
    let workspace = Size::of(rows) * (4 * panels.k);
    // What tiles add in registers: numbers of a column or an element, once.
    let of_tile = match Quick::of(activation) {
        Ok(quick) if addend == Addend::None => Some(quick),
        Ok(quick) if matches!(addend, Addend::Columns | Addend::All) && beta == 1.0 => Some(quick),
        _ => None,
    };
    let flops = Size::of(2 * ROWS.min(rows)) * panels.widest() * pairs.tiles.lanes * panels.k;
    let grain = (200_000 / flops.saturated().max(1)).max(1);
    let kernel =
        Rounded { host, pairs, rows, columns, k, panels, addend, beta, activation, of_tile, finish, grain };
    let id = layout_id(&[12, k as u64, columns as u64, u64::from(b_transposed)]);
    let prepared = Prepared::new(kernel).with_room(workspace, 64)?;
    Ok(prepared.with_packed(1, id, bytes, 64, move |src, dst| {
        let (src, dst) = (to_f32s(src)?, as_f32s_mut(dst)?);
        if b_transposed {
            pairs.pack(&src, [columns, k, 1], dst)
        } else {
            pairs.pack_matrix(&src, k, columns, dst)
        }
    }))
}

struct Rounded {
    host: Host,
    pairs: Pairs,
    rows: usize,
    columns: usize,
    k: usize,
    panels: Panels,
    addend: Addend,
    beta: f32,
    activation: Activation,
    /// The activation, if tiles do all that follows the sums.
    of_tile: Option<Quick>,
    finish: FinishFn,
    /// Units of a chunk.
    grain: usize,
}

impl Launch<CpuDevice> for Rounded {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let mut addresses = Addresses::of(operands);
        let rounded = operands.workspace_ptr::<f32>();
        // SAFETY: A has the rows, and the workspace, which is this launch's, room for their pairs.
        unsafe { self.pairs.round(&self.host, addresses.x.0, [self.rows, self.k], rounded)? };
        addresses.x = SendPtr(rounded);
        let blocks = self.rows.div_ceil(ROWS);
        self.host.parallel_for(blocks * self.panels.n, self.grain, |units, _| {
            let mut pace = self.host.pace();
            for unit in units {
                let (panel, block) = (unit % self.panels.n, unit / self.panels.n);
                let rows = [block, block + 1].map(|block| self.rows * block / blocks);
                // SAFETY: units write disjoint parts of the result, A is rounded and B packed.
                unsafe { self.unit(rows, panel, &addresses, &mut pace)? };
            }
            Ok(())
        })
    }
}

impl Rounded {
    /// One panel of columns, some rows.
    ///
    /// # Safety
    /// The addresses are the launch's, of pairs of A and a packed B; no other thread works on these rows of these columns.
    ///
    /// # Errors
    /// CANCELLED if the run is to end.
    unsafe fn unit(
        &self,
        [begin, end]: [usize; 2],
        panel: usize,
        addresses: &Addresses,
        pace: &mut Pace<'_>,
    ) -> Result<()> {
        let tiles = &self.pairs.tiles;
        let (k, vectors, n) = (self.panels.k, self.panels.vectors(panel).len(), end - begin);
        let (column, columns) = self.panels.columns(panel);
        let weights = addresses.w.at(self.panels.at(panel));
        let n_tiles = n.div_ceil(tiles.rows(vectors));
        let bias = if self.addend == Addend::Columns { addresses.bias.at(column) } else { std::ptr::null() };
        for k0 in (0..k).step_by(TERMS_MAX) {
            let len = TERMS_MAX.min(k - k0);
            for tile in 0..n_tiles {
                let [row, end] = [tile, tile + 1].map(|tile| begin + n * tile / n_tiles);
                let rows = end - row;
                pace.work(rows * len * vectors * tiles.lanes)?;
                let mut segment = Segment { len, k: k0, ..Segment::EMPTY };
                for (i, from) in segment.rows.iter_mut().enumerate().take(rows) {
                    *from = addresses.x.at((row + i) * k + k0);
                }
                let at = row * self.columns + column;
                let z = if self.addend == Addend::All { addresses.bias.at(at) } else { std::ptr::null() };
                let tail = self.of_tile.map(|activation| Tail { z, activation });
                let job = Job {
                    segments: std::slice::from_ref(&segment),
                    weights,
                    ahead: self.panels.ahead(weights, panel, tile),
                    y: addresses.y.at(at),
                    stride: self.columns,
                    columns,
                    bias: if self.of_tile.is_some() { bias } else { std::ptr::null() },
                    adds: k0 > 0,
                    tail: tail.as_ref().filter(|_| k0 + len == k),
                };
                // SAFETY: the rows and the panel have these pairs, and the tile is this thread's (# Safety); so it is of what
                // is added, one number for each element or column.
                unsafe { tiles.run(vectors, rows, &job) };
            }
        }
        if self.of_tile.is_some() {
            return Ok(());
        }
        let c = addresses.bias;
        let one = match self.addend {
            // SAFETY: the operand has one element.
            Addend::One => unsafe { *c.0 },
            _ => 0.0,
        };
        let ones = [one; ROWS];
        let y = addresses.y.at(begin * self.columns + column);
        let tile = Tile {
            x: y,
            x_stride: self.columns,
            y,
            y_stride: self.columns,
            rows: n,
            columns,
            row_bias: match self.addend {
                Addend::Rows => c.at(begin),
                Addend::One => ones.as_ptr(),
                _ => std::ptr::null(),
            },
            column_bias: bias,
            z: if self.addend == Addend::All {
                c.at(begin * self.columns + column)
            } else {
                std::ptr::null()
            },
            beta: self.beta,
        };
        // SAFETY: rows and columns are this unit's, within the addend and the result.
        unsafe { (self.finish)(tile, self.activation) };
        Ok(())
    }
}
