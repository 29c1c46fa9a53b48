//! Products with a constant B: tiles of rows and packed panels, with what follows the sums done in registers where that is simple.
//!
//! Where the host permits it and the processor multiplies pairs of bf16, factors are rounded to them (`pairs.rs`): rows of A in
//! the workspace, B when it is packed.

use crate::device::CpuDevice;
use crate::kernels::product::epilogue::{Activation, Addresses, FinishFn, Tile};
use crate::kernels::product::matmul::{Addend, Product};
use crate::kernels::product::micro::{as_f32s_mut, layout_id, to_weights};
#[cfg(target_arch = "x86_64")]
use crate::kernels::product::pairs::Pairs;
use crate::kernels::product::panels::Panels;
use crate::kernels::product::tile::{Job, Quick, Segment, TERMS_MAX, Tail, Tiles};
use crate::stream::CpuStream;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

/// Rows of a unit, at most: of a thousand terms, they stay in the second-level cache while panels pass.
const ROWS: usize = 96;
/// Operations of a chunk: fewer are not worth another thread.
const FLOPS_MIN: usize = 200_000;

/// A kernel for the product, if it is one of these: one matrix, or a few that share a constant B, in the order of their rows.
pub(crate) fn prepare(
    request: &PrepareRequest<'_, CpuDevice>,
    product: &Product,
) -> Option<Result<Prepared>> {
    let fits = product.packed
        && product.batch == [(0, 0)]
        && !product.a_transposed
        && product.scale == 1.0
        && product.k > 0
        && product.rows > 0;
    if !fits {
        return None;
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(pairs) = Pairs::permitted(request).filter(|_| product.k > 1) {
        return Some(prepare_pairs(product, pairs));
    }
    Some(prepare_numbers(product, Tiles::of(request.device.isa)))
}

fn prepare_numbers(product: &Product, tiles: Tiles) -> Result<Prepared> {
    let Product { columns, k, b_transposed, .. } = *product;
    let kernel = Tiled::of(product, tiles, k);
    let panels = kernel.panels;
    let bytes = (panels.size() * 4).get("packed weights")?;
    let [lanes, vectors] = [tiles.lanes, tiles.vectors].map(|n| n as u64);
    let id = layout_id(&[17, lanes, vectors, k as u64, columns as u64, u64::from(b_transposed)]);
    Ok(Prepared::new(kernel).with_packed(1, id, bytes, 64, move |src, dst| {
        let (src, dst) = (to_weights(src)?, as_f32s_mut(dst)?);
        if b_transposed {
            panels.pack(&src, 1, dst)
        } else {
            panels.pack_matrix(&src, dst)
        }
        Ok(())
    }))
}

#[cfg(target_arch = "x86_64")]
fn prepare_pairs(product: &Product, pairs: Pairs) -> Result<Prepared> {
    let Product { rows, columns, k, b_transposed, .. } = *product;
    let kernel = Tiled { pairs: Some((pairs, k)), ..Tiled::of(product, pairs.tiles, Pairs::of_row(k)) };
    let bytes = (kernel.panels.size() * 4).get("packed weights")?;
    let workspace = Size::of(rows) * (4 * kernel.panels.k);
    let id = layout_id(&[12, k as u64, columns as u64, u64::from(b_transposed)]);
    let prepared = Prepared::new(kernel).with_room(workspace, 64)?;
    Ok(prepared.with_packed(1, id, bytes, 64, move |src, dst| {
        let (src, dst) = (to_weights(src)?, as_f32s_mut(dst)?);
        if b_transposed {
            pairs.pack(&src, [columns, k, 1], dst)
        } else {
            pairs.pack_matrix(&src, k, columns, dst)
        }
    }))
}

struct Tiled {
    host: Host,
    tiles: Tiles,
    /// What rounds A, and the numbers of its rows, if terms are pairs.
    #[cfg(target_arch = "x86_64")]
    pairs: Option<(Pairs, usize)>,
    rows: usize,
    columns: usize,
    /// The panels of B, whose terms are numbers or pairs.
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

impl Tiled {
    /// The kernel of a product of so many terms, which are numbers unless pairs are set.
    fn of(product: &Product, tiles: Tiles, terms: usize) -> Self {
        let Product { host, rows, columns, addend, beta, activation, finish, .. } = *product;
        let panels = Panels::of(columns, terms, &tiles);
        // What tiles add in registers: numbers of a column or an element, once.
        let of_tile = match Quick::of(activation) {
            Ok(quick) if addend == Addend::None => Some(quick),
            Ok(quick) if matches!(addend, Addend::Columns | Addend::All) && beta == 1.0 => Some(quick),
            _ => None,
        };
        let flops = Size::of(2 * ROWS.min(rows)) * panels.widest() * tiles.lanes * panels.k;
        let grain = (FLOPS_MIN / flops.saturated().max(1)).max(1);
        Self {
            host,
            tiles,
            #[cfg(target_arch = "x86_64")]
            pairs: None,
            rows,
            columns,
            panels,
            addend,
            beta,
            activation,
            of_tile,
            finish,
            grain,
        }
    }
}

impl Launch<CpuDevice> for Tiled {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let mut addresses = Addresses::of(operands);
        #[cfg(target_arch = "x86_64")]
        if let Some((pairs, k)) = self.pairs {
            let rounded = operands.workspace_ptr::<f32>();
            // SAFETY: A has the rows, and the workspace, which is this launch's, room for their pairs.
            unsafe { pairs.round(&self.host, addresses.x.0, [self.rows, k], rounded)? };
            addresses.x = SendPtr(rounded);
        }
        // Blocks of whole tiles of the widest panel: only the last tile has fewer rows than fit the registers.
        let rows_of_tile = self.tiles.rows(self.panels.widest().max(1));
        let n_tiles = self.rows.div_ceil(rows_of_tile);
        let blocks = n_tiles.div_ceil((ROWS / rows_of_tile).max(1));
        self.host.parallel_for(blocks * self.panels.n, self.grain, |units, _| {
            let mut pace = self.host.pace();
            for unit in units {
                let (panel, block) = (unit % self.panels.n, unit / self.panels.n);
                let rows =
                    [block, block + 1].map(|block| (n_tiles * block / blocks * rows_of_tile).min(self.rows));
                // SAFETY: units write disjoint parts of the result, A is of the kernel's terms and B packed.
                unsafe { self.unit(rows, panel, &addresses, &mut pace)? };
            }
            Ok(())
        })
    }
}

impl Tiled {
    /// One panel of columns, some rows.
    ///
    /// # Safety
    /// The addresses are the launch's, of the terms of A and a packed B; no other thread works on these rows of these columns.
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
        let tiles = &self.tiles;
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
                // SAFETY: the rows and the panel have these terms, and the tile is this thread's (# Safety); so it is of what
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
