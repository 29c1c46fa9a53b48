//! The direct way with numbers rounded to bf16 ([`Pairs`]): the image is rounded into the workspace, and the weights when they
//! are packed. An image of pairs is one of half as many channels, of which nothing else has to know.
//!
//! Where each result sees one pixel of its own, a block of pixels is rounded when it is multiplied, and stays in the cache.

use super::Conv;
use super::direct::Direct;
use super::header::{HEADER, mark_finite};
use crate::device::CpuDevice;
use crate::kernels::product::epilogue::Addresses;
use crate::kernels::product::micro::{as_f32s_mut, layout_id, to_weights};
use crate::kernels::product::pairs::{INFINITE, Pairs};
use crate::kernels::product::tile::ROWS_MAX;
use crate::stream::CpuStream;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

/// The time of a convolution, as [`Conv::directly`] counts it.
pub(super) fn estimate(conv: &Conv) -> f64 {
    // A vector is read from the third-level cache, rounded and written.
    const ROUNDED: f64 = 4.0;
    let numbers = conv.images * conv.window.n_input() * conv.groups * conv.c_in;
    conv.directly(Pairs::of_row(conv.c_in)) + ROUNDED * numbers as f64 / conv.tiles.lanes as f64
}

struct Rounded {
    pairs: Pairs,
    /// Rows of the image that are paired, and numbers of each: the channels that a group has of a pixel.
    rows: [usize; 2],
    /// The convolution of pairs.
    direct: Direct,
    /// Pairs that a slot has room for, if blocks are rounded one by one.
    of_slot: Option<usize>,
}

pub(super) fn prepare(conv: Conv, pairs: Pairs) -> Result<Prepared> {
    let (groups, c_out, c_in, n_taps) = (conv.groups, conv.c_out, conv.c_in, conv.window.n_taps());
    let rows = [conv.images * conv.window.n_input() * groups, c_in];
    let direct = Direct::of(Conv { c_in: Pairs::of_row(c_in), tiles: pairs.tiles, ..conv });
    let len = direct.panels.len();
    let packed_len = (Size::of(len) * groups + HEADER).get("a convolution's packed weights")?;
    let bytes = (Size::of(packed_len) * 4).get("a convolution's packed weights")?;
    let by_block = direct.conv.window.is_pointwise() && groups == 1 && direct.n_parts == 1;
    let most = direct.tiles.n.div_ceil(direct.n_blocks) * ROWS_MAX;
    let of_slot = by_block.then_some(most * Pairs::of_row(c_in));
    let workspace = match of_slot {
        Some(pairs) => Size::of(4 * pairs) * direct.conv.host.n_slots(),
        None => Size::of(rows[0]) * (4 * Pairs::of_row(c_in)),
    };
    let id = layout_id(&[15, groups as u64, c_out as u64, c_in as u64, n_taps as u64]);
    let kernel = Rounded { pairs, rows, direct, of_slot };
    Ok(Prepared::new(kernel).with_room(workspace, 64)?.with_packed(1, id, bytes, 64, move |src, dst| {
        let src = to_weights(src)?;
        let dst = mark_finite(&src, INFINITE, as_f32s_mut(dst)?);
        for (group, dst) in dst.chunks_exact_mut(len.max(1)).enumerate().take(groups) {
            pairs.pack(&src[group * c_out * c_in * n_taps..], [c_out, c_in, n_taps], dst)?;
        }
        Ok(())
    }))
}

impl Launch<CpuDevice> for Rounded {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let mut addresses = Addresses::of(operands);
        let rounded = operands.workspace_ptr::<f32>();
        if let Some(of_slot) = self.of_slot {
            let (x, rounded) = (addresses.x, SendPtr(rounded));
            let [_, c_in] = self.rows;
            return self.direct.run_by_block(addresses, |tiles, slot| {
                let pixels = self.direct.tiles.pixels(tiles);
                let to = rounded.at(slot * of_slot);
                // SAFETY: the operand has the pixels, and the slot, which is this thread's, room for their pairs.
                unsafe { self.pairs.round_here(x.at(pixels.start * c_in), [pixels.len(), c_in], to) };
                // Where the image's first pixel would be.
                SendPtr(to.wrapping_sub(pixels.start * Pairs::of_row(c_in)))
            });
        }
        // SAFETY: the operand has the rows, and the workspace, which is this launch's, room for their pairs.
        unsafe { self.pairs.round(&self.direct.conv.host, addresses.x.0, self.rows, rounded)? };
        addresses.x = SendPtr(rounded);
        self.direct.run(addresses)
    }
}
