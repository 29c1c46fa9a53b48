//! Convolutions of 8-bit integers, exact in i32: ConvInteger, and with what follows the sums QLinearConv.
//!
//! The convolution is a product of the filters, one in each row, and of the patches of the input that
//! they lie on, one in each column. Patches are written a panel at a time, beside the block that they
//! are used for; where they reach over the border they have the input's zero point, which images of two dimensions get
//! around them before ([`Phases`]). Filters become unsigned bytes, once if they are constant.
//! Groups of one channel have a way of their own ([`depthwise_integer`](super::depthwise_integer)).
//! One- and two-dimensional inputs are three-dimensional ones with extents of 1.

use super::depthwise_integer::{CHUNK, Plane, PlaneFn, plane};
use super::phases::Phases;
use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, extents};
use crate::kernels::numbers::convert::Kind;
use crate::kernels::product::int_product::{
    HALF, IntPanels, SMALL, TakeRow, Zeros, flip, scale_at, take_row,
};
use crate::kernels::product::int_tile::{COLUMNS_MAX, Factors, IntTiles, Job, Outer, Tail};
use crate::kernels::product::micro::layout_id;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;
use patches::{Patches, fill_patches};

mod patches;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor("ConvInteger", 10, prepare_sums)
    .types(&[TypeVar::of(SMALL), TypeVar::of(SMALL), TypeVar::of(&[I32])])
    .cost(cost)
    .doc("exact; one to three dimensions, groups; zero points of the filters whole or each")];

/// Multiply-adds of a chunk.
const GRAIN: usize = 1024 * 1024;

/// Filters of a unit: enough that writing the patches costs little.
const ROWS: usize = 256;

/// One spatial dimension.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spatial {
    pub input: usize,
    pub filter: usize,
    pub output: usize,
    pub stride: usize,
    pub dilation: usize,
    /// Elements before the first of the input; negative ones are left out.
    pub pad: i64,
}

impl Spatial {
    /// A dimension that the input does not have.
    const NONE: Self = Self { input: 1, filter: 1, output: 1, stride: 1, dilation: 1, pad: 0 };

    /// Returns whether each element of the output lies on one of the input.
    fn is_identity(&self) -> bool {
        self.filter == 1 && self.stride == 1 && self.pad == 0 && self.input == self.output
    }

    /// The element of the input under an output's element and a filter's.
    #[inline(always)]
    fn at(&self, output: usize, filter: usize) -> i64 {
        (output * self.stride + filter * self.dilation) as i64 - self.pad
    }
}

/// Shape of a convolution.
struct Shape {
    batch: usize,
    groups: usize,
    /// Channels and filters of a group.
    channels: usize,
    filters: usize,
    spatial: [Spatial; 3],
    output: Vec<usize>,
}

impl Shape {
    fn of(request: &PrepareRequest<'_, CpuDevice>, places: &Places) -> Result<Self> {
        let (x, w) =
            (extents(request.required_input(places.x)?)?, extents(request.required_input(places.w)?)?);
        let to = extents(request.required_output(0)?)?;
        let groups = usize::try_from(request.attrs.int("group", 1)?).unwrap_or(0);
        let broken = Error::invalid(format!(
            "an input of {x:?}, filters of {w:?} and {groups} groups, to an output of {to:?}"
        ));
        let ([batch, all_channels, inputs @ ..], [all_filters, channels, filter @ ..], [_, _, outputs @ ..]) =
            (&x[..], &w[..], &to[..])
        else {
            return Err(broken);
        };
        let rank = inputs.len();
        if rank > 3 {
            return Err(Error::unsupported(format!("{rank} spatial dimensions, at most 3 are done")));
        }
        if rank == 0
            || [filter.len(), outputs.len()] != [rank; 2]
            || groups == 0
            || channels.checked_mul(groups) != Some(*all_channels)
            || all_filters % groups != 0
        {
            return Err(broken);
        }
        let numbers = |name: &str, n: usize, default: i64| match request.attrs.ints(name)? {
            None => Ok(vec![default; n]),
            Some(values) if values.len() == n => Ok(values),
            Some(values) => Err(Error::invalid(format!("{name} are {values:?}, expected {n} of them"))),
        };
        let (strides, dilations) = (numbers("strides", rank, 1)?, numbers("dilations", rank, 1)?);
        let pads = numbers("pads", 2 * rank, 0)?;
        let auto_pad = request.attrs.string("auto_pad", "NOTSET")?;
        let mut spatial = [Spatial::NONE; 3];
        let mut output = vec![*batch, *all_filters];
        for i in 0..rank {
            let (stride, dilation) = (strides[i], dilations[i]);
            if stride < 1 || dilation < 1 || filter[i] < 1 {
                return Err(broken);
            }
            // So that the products and sums below are counted.
            let given = [stride, dilation, filter[i] as i64, pads[i], pads[rank + i]];
            if given.iter().any(|n| n.unsigned_abs() >= 1 << 31) {
                return Err(Error::unsupported(format!(
                    "strides of {strides:?}, dilations of {dilations:?}, pads of {pads:?} and filters of {w:?}, numbers below 2^31 are"
                )));
            }
            // The reach of a filter, less its first element.
            let reach = (filter[i] as i64 - 1) * dilation;
            let input = inputs[i] as i64;
            let (before, after) = match auto_pad {
                "NOTSET" => (pads[i], pads[rank + i]),
                "VALID" => (0, 0),
                "SAME_UPPER" | "SAME_LOWER" => {
                    let covered = (inputs[i].div_ceil(stride as usize) as i64 - 1) * stride + reach + 1;
                    let total = (covered - input).max(0);
                    let less = total / 2;
                    match auto_pad {
                        "SAME_UPPER" => (less, total - less),
                        _ => (total - less, less),
                    }
                }
                other => return Err(Error::invalid(format!("unknown auto_pad {other}"))),
            };
            let room = input + before + after - reach - 1;
            let n = if room < 0 { 0 } else { room / stride + 1 };
            output.push(n as usize);
            spatial[3 - rank + i] = Spatial {
                input: inputs[i],
                filter: filter[i],
                output: n as usize,
                stride: stride as usize,
                dilation: dilation as usize,
                pad: before,
            };
        }
        // Images of which every element is a patch are lines.
        if spatial.iter().all(Spatial::is_identity) {
            let n = spatial.iter().map(|s| s.input).product();
            spatial = [Spatial::NONE, Spatial::NONE, Spatial { input: n, output: n, ..Spatial::NONE }];
        }
        Ok(Self {
            batch: *batch,
            groups,
            channels: *channels,
            filters: all_filters / groups,
            spatial,
            output,
        })
    }

    /// Elements of a patch, and patches of an image.
    fn patches(&self) -> (usize, usize) {
        let depth = self.channels * self.spatial.iter().map(|s| s.filter).product::<usize>();
        (depth, self.spatial.iter().map(|s| s.output).product())
    }
}

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let shape = Shape::of(request, &Places::SUMS)?;
    let (depth, _) = shape.patches();
    let outputs: usize = shape.output.iter().product();
    Ok(cost::of(request, (Size::of(outputs) * depth * 2).saturated() as u64))
}

/// Where images, filters and their zero points are among the operands.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    pub x: usize,
    pub w: usize,
    pub x_zero: usize,
    pub w_zero: usize,
}

impl Places {
    /// Those of ConvInteger.
    const SUMS: Self = Self { x: 0, w: 1, x_zero: 2, w_zero: 3 };
}

/// Quantisation of sums: a bias is added, and `x_scale * w_scale / y_scale` is their factor. Operands by position.
pub(crate) struct Requantise {
    pub x_scale: usize,
    pub w_scale: usize,
    pub y_scale: usize,
    pub y_zero: usize,
    pub bias: Option<usize>,
    /// Scales of filters: one, or one for each.
    pub n_w: usize,
    /// The scales' type.
    pub scale: Kind,
    pub signed: bool,
}

struct ConvInteger {
    host: Host,
    shape: Shape,
    places: Places,
    /// None where sums are the result.
    end: Option<Requantise>,
    /// Elements of a patch, and patches of an image.
    depth: usize,
    n: usize,
    panels: IntPanels,
    input_zeros: Zeros,
    filter_zeros: Zeros,
    input_flip: u8,
    filter_flip: u8,
    tiles: IntTiles,
    /// True if the host passes the filters packed.
    packed: bool,
    /// Bytes of the workspace that a slot has.
    slot: usize,
    fill: unsafe fn(&Patches, *mut i8),
    take: TakeRow,
    /// How planes are divided; None for images that are read as they are.
    phases: Option<Phases>,
    /// Of groups of one channel, which have phases.
    depthwise: Option<PlaneFn>,
    /// Where the workspace has ones for all terms, and all planes.
    ones_at: usize,
    planes_at: usize,
}

/// What the workspace has of each filter: zero points, what sums begin with, factors, sums.
const FILTER_NUMBERS: usize = 4;

fn prepare_sums(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    prepare(request, Places::SUMS, None)
}

/// Prepares a convolution.
pub(crate) fn prepare(
    request: &PrepareRequest<'_, CpuDevice>,
    places: Places,
    end: Option<Requantise>,
) -> Result<Prepared> {
    let shape = Shape::of(request, &places)?;
    expect_output(request, 0, &shape.output)?;
    let isa = request.device.isa;
    let (depth, n) = shape.patches();
    let n_filters = shape.filters * shape.groups;
    let (input, filters) = (request.required_input(places.x)?, request.required_input(places.w)?);
    let (input_signed, filters_signed) = (input.dtype() == I8, filters.dtype() == I8);
    let tiles = IntTiles::of(isa);
    let packed = request.abi_minor >= 2 && filters.constant().is_some() && depth * n_filters > 0;
    let is_line = shape.spatial.iter().all(Spatial::is_identity);
    let phases = if is_line { None } else { Phases::new(&shape.spatial)? };
    let depthwise = phases.as_ref().filter(|_| shape.channels == 1).map(|_| plane(isa));
    // A row and a chunk are behind the last phase.
    let behind = phases.as_ref().map_or(0, |phases| phases.width + CHUNK);
    let plane_size = phases.as_ref().map_or(0, Phases::size);
    let slot = match depthwise {
        Some(_) => Size::of(plane_size) + behind,
        // The sums of a panel's columns, then the panel, and what a vector writes behind it.
        None => Size::of(depth.div_ceil(4)) * (4 * tiles.lanes * tiles.vectors) + (4 * COLUMNS_MAX + CHUNK),
    };
    let slot = slot.get("a panel")?.next_multiple_of(64);
    let of_filter = 4 * FILTER_NUMBERS + if packed { 0 } else { depth };
    let ones_at = Size::of(slot) * request.host.n_slots() + Size::of(n_filters) * of_filter;
    let ones_at = ones_at.get("filters")?;
    let planes_at = (Size::of(ones_at) + depth).get("filters")?.next_multiple_of(64);
    let n_planes = (Size::of(shape.batch) * shape.groups * shape.channels).get("planes")?;
    let of_planes = Size::of(if depthwise.is_some() { 0 } else { n_planes }) * plane_size;
    let bytes = of_planes + behind + planes_at;
    let take = take_row(isa);
    let filter_flip = flip(filters_signed);
    let kernel = ConvInteger {
        host: request.host,
        depth,
        n,
        panels: IntPanels::of(&tiles, depth, n),
        input_zeros: Zeros::new(request, places.x_zero, &[], if input_signed { 0 } else { -HALF })?,
        filter_zeros: Zeros::new(
            request,
            places.w_zero,
            &[n_filters],
            if filters_signed { HALF } else { 0 },
        )?,
        input_flip: flip(!input_signed),
        filter_flip,
        tiles,
        packed,
        slot,
        fill: fill_patches(isa),
        take,
        phases,
        depthwise,
        ones_at,
        planes_at,
        shape,
        places,
        end,
    };
    let prepared = Prepared::new(kernel).with_room(bytes, 64)?;
    if !packed {
        return Ok(prepared);
    }
    // The sum of each filter, then the filters.
    let id = layout_id(&[14, depth as u64, n_filters as u64, u64::from(filters_signed)]);
    let bytes = (Size::of(n_filters) * depth + 4 * n_filters).get("packed filters")?;
    Ok(prepared.with_packed(places.w, id, bytes, 64, move |src, dst| {
        if src.len() != depth * n_filters {
            return Err(Error::invalid(format!("{} bytes of {n_filters} filters of {depth}", src.len())));
        }
        let (sums, rows) = dst.split_at_mut(4 * n_filters);
        for (i, sum) in sums.chunks_exact_mut(4).enumerate() {
            let (from, to) = (src[i * depth..].as_ptr(), rows[i * depth..].as_mut_ptr());
            // SAFETY: both have `depth` bytes from there, and the instructions are the device's.
            let found = unsafe { take(from, depth, filter_flip, to) };
            sum.copy_from_slice(&found.to_ne_bytes());
        }
        Ok(())
    }))
}

/// What a launch has of each filter.
struct Filters {
    rows: SendPtr<u8>,
    zeros: SendPtr<i32>,
    starts: SendPtr<i32>,
    factors: SendPtr<f32>,
}

impl Launch<CpuDevice> for ConvInteger {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let workspace = SendPtr(operands.workspace_ptr::<u8>());
        let address =
            |i: usize| operands.input_refs().get(i).map_or(std::ptr::null(), |input| input.addr as *const u8);
        // SAFETY: the operand is the one that `prepare` was told.
        let input_zero = unsafe { self.input_zeros.get(address(self.places.x_zero), 0) };
        let filters = self.filters(operands, workspace, input_zero)?;
        let tail = match &self.end {
            None => Tail::Ints,
            Some(end) => {
                // SAFETY: the zero point is one element.
                let zero = unsafe { address(end.y_zero).read() };
                let (zero, low, high) = match end.signed {
                    true => (f32::from(zero as i8), -128.0, 127.0),
                    false => (f32::from(zero), 0.0, 255.0),
                };
                let factors = Factors { first: filters.factors.at(0), by_row: true, by_column: false };
                Tail::Bytes { factors, zero, low, high }
            }
        };
        let x = SendPtr(address(self.places.x).cast_mut());
        let output = SendPtr(operands.output_ptr::<u8>(0));
        let shape = &self.shape;
        let row_blocks = shape.filters.div_ceil(ROWS);
        let per_group = row_blocks * self.panels.n;
        let image = shape.channels * shape.spatial.iter().map(|s| s.input).product::<usize>();
        let columns = (self.tiles.lanes * self.tiles.vectors).min(self.n);
        let macs = shape.filters.min(ROWS) * columns * self.depth;
        let grain = (GRAIN / macs.max(1)).max(1);
        let n_units = shape.batch * shape.groups * per_group;
        let tail = Shared(tail);
        if let (Some(body), Some(phases)) = (self.depthwise, &self.phases) {
            let macs = shape.filters * self.n * self.depth;
            let grain = (GRAIN / 8 / macs.max(1)).max(1);
            return self.host.parallel_for(shape.batch * shape.groups, grain, |range, slot| {
                let mut pace = self.host.pace();
                let plane = workspace.at(slot * self.slot).cast::<i8>();
                for image_idx in range {
                    let from = x.at(image_idx * image);
                    let behind = phases.width + CHUNK;
                    // SAFETY: the plane lies within the input, and the slot has the phases' bytes and those behind.
                    unsafe { phases.divide(from, self.input_flip, input_zero as i8, plane, behind) };
                    for row in 0..shape.filters {
                        let at = image_idx % shape.groups * shape.filters + row;
                        // SAFETY: there is a number for each filter.
                        let (zero, start) = unsafe { (*filters.zeros.at(at), *filters.starts.at(at)) };
                        let job = Plane {
                            plane,
                            phases,
                            weights: filters.rows.at(at * self.depth),
                            zero,
                            start,
                            tail: tail.of_row(at),
                            y: output.at((image_idx * shape.filters + row) * self.n * tail.size()),
                        };
                        // SAFETY: the instructions are the device's, there are phases and weights, and the plane of the
                        // result is no other chunk's.
                        unsafe { body(&job) };
                    }
                    pace.work(macs / 8)?;
                }
                Ok(())
            });
        }
        let planes = SendPtr(workspace.at(self.planes_at).cast::<i8>());
        if let Some(phases) = &self.phases {
            let (size, of_image) = (phases.size(), shape.spatial.iter().map(|s| s.input).product::<usize>());
            let grain = (GRAIN / 64 / size.max(1)).max(1);
            self.host.parallel_for(shape.batch * shape.groups * shape.channels, grain, |range, _| {
                for plane in range {
                    let (from, to) = (x.at(plane * of_image), planes.at(plane * size));
                    // SAFETY: the plane lies within the input, and its phases are no other chunk's.
                    unsafe { phases.divide(from, self.input_flip, input_zero as i8, to, 0) };
                }
                Ok(())
            })?;
        }
        let ones = SendPtr(workspace.at(self.ones_at));
        // SAFETY: there is one for each term.
        unsafe { ones.at(0).write_bytes(1, self.depth) };
        self.host.parallel_for(n_units, grain, |range, slot| {
            let mut pace = self.host.pace();
            let tail = &tail;
            for unit in range {
                // Images of a group's channels, and outputs of a group's filters, follow each other.
                let image_idx = unit / per_group;
                let first_row = unit % per_group / self.panels.n * ROWS;
                let panel = unit % self.panels.n;
                let (first_col, columns) = self.panels.columns(panel);
                let vectors = self.panels.vectors(panel).len();
                let sums = workspace.at(slot * self.slot).cast::<i32>();
                let to = workspace.at(slot * self.slot + 4 * COLUMNS_MAX).cast::<i8>();
                let (image, zero, flip) = match &self.phases {
                    Some(phases) => (
                        planes.at(image_idx * shape.channels * phases.size()).cast::<u8>().cast_const(),
                        0,
                        0,
                    ),
                    // The zero point, less what the flip takes away.
                    None => (
                        x.at(image_idx * image).cast_const(),
                        (input_zero as u8) ^ self.input_flip,
                        self.input_flip,
                    ),
                };
                let patches = Patches {
                    image,
                    phases: self.phases.as_ref(),
                    zero,
                    flip,
                    spatial: &shape.spatial,
                    depth: self.depth,
                    first_col,
                    columns,
                    width: vectors * self.tiles.lanes,
                };
                // SAFETY: the image lies within the input or the workspace, the panel is this slot's own, and the
                // instructions are the device's.
                unsafe { (self.fill)(&patches, to) };
                let mut job = Job {
                    x: ones.at(0),
                    x_stride: 0,
                    k: self.depth,
                    panel: to,
                    columns: patches.width,
                    start_columns: std::ptr::null(),
                    start_rows: std::ptr::null(),
                    outer: [Outer::NONE; 2],
                    tail: Tail::Ints,
                    y: sums.cast(),
                    y_stride: 0,
                };
                // SAFETY: ones and panel have `depth` terms, there are as many sums as columns, and the instructions are the
                // device's.
                unsafe { self.tiles.run(vectors, 1, &job) };
                job.columns = columns;
                let filter = image_idx % shape.groups * shape.filters + first_row;
                let rows = ROWS.min(shape.filters - first_row);
                let most = self.tiles.rows(vectors);
                let mut row = 0;
                while row < rows {
                    let n = (rows - row).div_ceil((rows - row).div_ceil(most));
                    let at = filter + row;
                    let out = (image_idx * shape.filters + first_row + row) * self.n + first_col;
                    job = Job {
                        x: filters.rows.at(at * self.depth),
                        x_stride: self.depth,
                        start_rows: filters.starts.at(at),
                        outer: [Outer { rows: filters.zeros.at(at), columns: sums }, Outer::NONE],
                        tail: tail.of_row(at),
                        y: output.at(out * tail.size()),
                        y_stride: self.n,
                        ..job
                    };
                    // SAFETY: filters and panel have `depth` terms, the instructions are the device's, and the block of the
                    // output is no other unit's.
                    unsafe { self.tiles.run(vectors, n, &job) };
                    row += n;
                }
                pace.work(macs / 32)?;
            }
            Ok(())
        })
    }
}

/// What becomes of the sums of all filters.
struct Shared(Tail);

// SAFETY: factors lie in the workspace, and are only read.
unsafe impl Sync for Shared {}

impl Shared {
    /// Of filters from one on.
    fn of_row(&self, row: usize) -> Tail {
        match self.0 {
            Tail::Bytes { factors, zero, low, high } => {
                let factors = Factors { first: factors.first.wrapping_add(row), ..factors };
                Tail::Bytes { factors, zero, low, high }
            }
            other => other,
        }
    }

    /// Bytes of an element of the result.
    fn size(&self) -> usize {
        if matches!(self.0, Tail::Bytes { .. }) { 1 } else { 4 }
    }
}

impl ConvInteger {
    /// Makes what the tiles need of the filters.
    fn filters(&self, operands: &Operands<'_>, workspace: SendPtr<u8>, input_zero: i32) -> Result<Filters> {
        let address = |i: usize| {
            let input = operands.input_refs().get(i);
            SendPtr(input.map_or(std::ptr::null_mut(), |input| input.addr as *mut u8))
        };
        let (w, zero_points) = (address(self.places.w), address(self.places.w_zero));
        let n = self.shape.filters * self.shape.groups;
        let numbers = |i: usize| workspace.at(self.slot * self.host.n_slots() + 4 * i * n);
        let (zeros, starts) = (SendPtr(numbers(0).cast::<i32>()), SendPtr(numbers(1).cast::<i32>()));
        let (factors, sums, rows) = (SendPtr(numbers(2).cast::<f32>()), numbers(3).cast::<i32>(), numbers(4));
        let (sums, rows) = match self.packed {
            true => (SendPtr(w.at(0).cast::<i32>()), SendPtr(w.at(4 * n))),
            false => (SendPtr(sums), SendPtr(rows)),
        };
        let end = self.end.as_ref().map(|end| {
            let bias = end.bias.map_or(std::ptr::null_mut(), |bias| address(bias).at(0).cast::<i32>());
            // SAFETY: the scales of images and of the result are one element each.
            let scales = unsafe {
                [
                    scale_at(end.scale, address(end.x_scale).at(0), 0),
                    scale_at(end.scale, address(end.y_scale).at(0), 0),
                ]
            };
            (end, address(end.w_scale), SendPtr(bias), scales)
        });
        let depth = self.depth;
        let grain = (GRAIN / 16 / depth.max(1)).max(1);
        self.host.parallel_for(n, grain, |range, _| {
            for filter in range {
                let sum = match self.packed {
                    // SAFETY: there is a sum for each filter.
                    true => unsafe { sums.at(filter).read() },
                    false => {
                        let at = filter * depth;
                        // SAFETY: the filter lies within the operand and the workspace, of which each chunk writes its own,
                        // and the instructions are the device's.
                        unsafe { (self.take)(w.at(at), depth, self.filter_flip, rows.at(at)) }
                    }
                };
                // SAFETY: the operand is the one that `prepare` was told.
                let zero = unsafe { self.filter_zeros.get(zero_points.at(0), filter) };
                let sum = sum.wrapping_sub((depth as i32).wrapping_mul(zero));
                let mut start = sum.wrapping_mul(input_zero).wrapping_neg();
                if let Some((end, w_scale, bias, [x_scale, y_scale])) = &end {
                    if !bias.at(0).is_null() {
                        // SAFETY: there is one for each filter.
                        start = start.wrapping_add(unsafe { bias.at(filter).read() });
                    }
                    // SAFETY: there is one, or one for each filter.
                    let scale =
                        unsafe { scale_at(end.scale, w_scale.at(0), if end.n_w == 1 { 0 } else { filter }) };
                    // SAFETY: there is a number for each filter.
                    unsafe { factors.at(filter).write(x_scale * scale / y_scale) };
                }
                // SAFETY: there is a number for each filter.
                unsafe { zeros.at(filter).write(zero) };
                // SAFETY: the same.
                unsafe { starts.at(filter).write(start) };
            }
            Ok(())
        })?;
        Ok(Filters { rows, zeros, starts, factors })
    }
}

#[cfg(test)]
mod tests {
    use crate::kernels::test_host::{Array, Value, run_with_constants};
    use crate::kernels::testing::{Chance, isas};

    /// Groups of three channels, of one, and all six together; the filters come as constants and with the launch.
    #[test]
    fn convolutions_are_exact() {
        let mut random = Chance::new(9);
        let kinds = [(2, 8), (6, 12), (6, 6), (1, 20)];
        let windows = [(1, 1, 1), (2, 1, 0), (1, 2, 2), (3, 2, 1)];
        for ((groups, filters), (stride, dilation, pad)) in
            kinds.into_iter().flat_map(|kind| windows.map(|window| (kind, window)))
        {
            let (height, width, channels) = (9, 40, 6 / groups);
            let depth = channels * 6;
            let x: Vec<i8> = (0..6 * height * width).map(|_| random.below(256) as u8 as i8).collect();
            let w: Vec<u8> = (0..filters * depth).map(|_| random.below(256) as u8).collect();
            let zeros: Vec<u8> = (0..filters).map(|_| random.below(256) as u8).collect();
            let zero = 17i8;
            let to = |n: usize, k: usize| (n + 2 * pad - (k - 1) * dilation - 1) / stride + 1;
            let (rows, cols) = (to(height, 3), to(width, 2));
            let mut expected = Vec::new();
            for at in 0..filters * rows * cols {
                let (filter, row, col) = (at / (rows * cols), at / cols % rows, at % cols);
                let mut sum = 0;
                for k in 0..depth {
                    let (channel, i, j) = (k / 6, k / 2 % 3, k % 2);
                    let y = (row * stride + i * dilation).wrapping_sub(pad);
                    let z = (col * stride + j * dilation).wrapping_sub(pad);
                    if y < height && z < width {
                        let plane = filter / (filters / groups) * channels + channel;
                        let x = x[(plane * height + y) * width + z];
                        let w = i32::from(w[filter * depth + k]) - i32::from(zeros[filter]);
                        sum += (i32::from(x) - i32::from(zero)) * w;
                    }
                }
                expected.push(sum);
            }
            let attrs = [
                ("group", Value::Int(groups as i64)),
                ("strides", Value::Ints(vec![stride as i64; 2])),
                ("dilations", Value::Ints(vec![dilation as i64; 2])),
                ("pads", Value::Ints(vec![pad as i64; 4])),
            ];
            let inputs = [
                Some(Array::of(&[1, 6, height, width], &x)),
                Some(Array::of(&[filters, channels, 3, 2], &w)),
                Some(Array::of(&[], &[zero])),
                Some(Array::of(&[filters], &zeros)),
            ];
            let expected = Some(Array::of(&[1, filters, rows, cols], &expected));
            for (isa, constants) in isas().flat_map(|isa| [(isa, 0), (isa, 2)]) {
                let output = [Some(Array::empty::<i32>(&[1, filters, rows, cols]))];
                let found = run_with_constants(isa, "ConvInteger", &attrs, &inputs, &output, constants);
                let found = found.expect("convolves");
                assert_eq!(found[0], expected, "{isa:?} {constants} {groups} {stride} {dilation} {pad}");
            }
        }
    }

    /// Steps far beyond an image, which phases would have to span.
    #[test]
    fn steps_may_be_longer_than_images() {
        let x: Vec<u8> = (0..2 * 25).collect();
        let w: Vec<u8> = (1..=2 * 9).collect();
        for step in [5, 1000, 1 << 20] {
            let attrs = [("strides", Value::Ints(vec![step, step])), ("group", Value::Int(2))];
            let sum = |group: usize| -> i32 {
                let term =
                    |k: usize| i32::from(x[group * 25 + k / 3 * 5 + k % 3]) * i32::from(w[group * 9 + k]);
                (0..9).map(term).sum()
            };
            let inputs = [Some(Array::of(&[1, 2, 5, 5], &x)), Some(Array::of(&[2, 1, 3, 3], &w))];
            for isa in isas() {
                let output = [Some(Array::empty::<i32>(&[1, 2, 1, 1]))];
                let found = run_with_constants(isa, "ConvInteger", &attrs, &inputs, &output, 2);
                let expected = Array::of(&[1, 2, 1, 1], &[sum(0), sum(1)]);
                assert_eq!(found.expect("convolves")[0], Some(expected), "{isa:?}, {step}");
            }
        }
    }

    /// Pointwise convolutions of many channels, whose images are lines.
    #[test]
    fn pointwise_convolutions_are_exact() {
        let mut random = Chance::new(10);
        let (channels, filters, n) = (37, 300, 70);
        let x: Vec<u8> = (0..2 * channels * n).map(|_| random.below(256) as u8).collect();
        let w: Vec<i8> = (0..filters * channels).map(|_| random.below(256) as u8 as i8).collect();
        let mut expected = Vec::new();
        for at in 0..2 * filters * n {
            let (image, filter, col) = (at / n / filters, at / n % filters, at % n);
            let product = |k: usize| {
                (i32::from(x[(image * channels + k) * n + col]) - 100) * i32::from(w[filter * channels + k])
            };
            expected.push((0..channels).map(product).sum::<i32>());
        }
        let inputs = [
            Some(Array::of(&[2, channels, 7, 10], &x)),
            Some(Array::of(&[filters, channels, 1, 1], &w)),
            Some(Array::of(&[], &[100u8])),
        ];
        for isa in isas() {
            let output = [Some(Array::empty::<i32>(&[2, filters, 7, 10]))];
            let found = run_with_constants(isa, "ConvInteger", &[], &inputs, &output, 2).expect("convolves");
            assert_eq!(found[0], Some(Array::of(&[2, filters, 7, 10], &expected)), "{isa:?}");
        }
    }
}
