//! ConvInteger: convolutions of 8-bit integers, exact in i32.
//!
//! The convolution is a product of the filters, one in each row, and of the patches of the input that
//! they lie on, one in each column. Patches are written a panel at a time, beside the block that they
//! are used for; where they reach over the border they have the input's zero point, which is 0 here.
//! One- and two-dimensional inputs are three-dimensional ones with extents of 1.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::Arith;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, extents};
use crate::kernels::product::int_product::{
    Block, DEPTH, PANEL_BYTES, ROWS, SMALL, Small, Zeros, multiply, panel_cols, widen, widen_body,
};
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor("ConvInteger", 10, prepare)
    .types(&[TypeVar::of(SMALL), TypeVar::of(SMALL), TypeVar::of(&[I32])])
    .cost(cost)
    .doc("exact; one to three dimensions, groups; zero points of the filters whole or each")];

/// Multiply-adds of a chunk.
const GRAIN: usize = 512 * 1024;

/// One spatial dimension.
#[derive(Clone, Copy, Debug)]
struct Spatial {
    input: usize,
    filter: usize,
    output: usize,
    stride: usize,
    dilation: usize,
    /// Elements before the first of the input; negative ones are left out.
    pad: i64,
}

impl Spatial {
    /// A dimension that the input does not have.
    const NONE: Self = Self { input: 1, filter: 1, output: 1, stride: 1, dilation: 1, pad: 0 };

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
    fn of(request: &PrepareRequest<'_, CpuDevice>) -> Result<Self> {
        let (x, w) = (extents(request.required_input(0)?)?, extents(request.required_input(1)?)?);
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
    let shape = Shape::of(request)?;
    let (depth, _) = shape.patches();
    let outputs: usize = shape.output.iter().product();
    Ok(cost::of(request, (Size::of(outputs) * depth * 2).saturated() as u64))
}

struct ConvInteger {
    host: Host,
    shape: Shape,
    /// Elements of a patch, and patches of an image.
    depth: usize,
    n: usize,
    input_zeros: Zeros,
    filter_zeros: Zeros,
    cols: usize,
    widen: unsafe fn(*const u8, f32, *mut f32, usize),
    fill: unsafe fn(&Patches, *mut f32),
    multiply: unsafe fn(&Block),
}

/// Prepares the op; the third and fourth operand are zero points.
pub(crate) fn prepare(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let shape = Shape::of(request)?;
    expect_output(request, 0, &shape.output)?;
    let isa = request.device.isa;
    let (depth, n) = shape.patches();
    let all_filters = shape.filters * shape.groups;
    let kernel = ConvInteger {
        host: request.host,
        depth,
        n,
        input_zeros: Zeros::new(request, 2, &[])?,
        filter_zeros: Zeros::new(request, 3, &[all_filters])?,
        cols: panel_cols(isa),
        widen: match request.required_input(1)?.dtype() {
            I8 => widen::<i8>(isa),
            _ => widen::<u8>(isa),
        },
        fill: match request.required_input(0)?.dtype() {
            I8 => fill_patches::<i8>(isa),
            _ => fill_patches::<u8>(isa),
        },
        multiply: multiply(isa),
        shape,
    };
    let bytes = Size::of(all_filters) * depth * 4 + PANEL_BYTES * request.host.n_slots();
    Prepared::new(kernel).with_room(bytes, 64)
}

impl Launch<CpuDevice> for ConvInteger {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        // The workspace is a panel for each slot, then the filters as f32.
        let panels = SendPtr(operands.workspace_ptr::<f32>());
        let filters = SendPtr(panels.at(PANEL_BYTES / 4 * self.host.n_slots()));
        self.widen_filters(operands, filters)?;

        let x = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let zeros = operands.input_refs().get(2);
        let zeros = zeros.map_or(core::ptr::null(), |zeros| zeros.addr as *const u8);
        // SAFETY: the operand is the one that `prepare` was told.
        let zero = unsafe { self.input_zeros.get(zeros, 0) };
        let output = SendPtr(operands.output_ptr::<i32>(0));
        let shape = &self.shape;
        let (row_blocks, panels_wide) = (shape.filters.div_ceil(ROWS), self.n.div_ceil(self.cols));
        let per_group = row_blocks * panels_wide;
        let image = shape.channels * shape.spatial.iter().map(|s| s.input).product::<usize>();
        let macs = shape.filters.min(ROWS) * self.cols * self.depth;
        let grain = (GRAIN / macs.max(1)).max(1);
        let n_blocks = shape.batch * shape.groups * per_group;
        self.host.parallel_for(n_blocks, grain, |range, slot| {
            let panel = panels.at(slot * PANEL_BYTES / 4);
            for block in range {
                // Images of a group's channels, and outputs of a group's filters, follow each other.
                let image_idx = block / per_group;
                let first_row = block % per_group / panels_wide * ROWS;
                let first_col = block % panels_wide * self.cols;
                let cols = self.cols.min(self.n - first_col);
                let group = image_idx % shape.groups;
                let mut from = 0;
                while from < self.depth {
                    let depth = DEPTH.min(self.depth - from);
                    let patches = Patches {
                        image: x.at(image_idx * image),
                        zero,
                        spatial: &shape.spatial,
                        from,
                        depth,
                        first_col,
                        cols,
                    };
                    // SAFETY: the image lies within the input, the panel is this slot's own, and the
                    // instructions are the device's.
                    unsafe { (self.fill)(&patches, panel) };
                    let filter = group * shape.filters + first_row;
                    let out_row = image_idx * shape.filters + first_row;
                    let block = Block {
                        left: filters.at(filter * self.depth + from),
                        left_stride: self.depth,
                        rows: ROWS.min(shape.filters - first_row),
                        depth,
                        panel,
                        out: output.at(out_row * self.n + first_col),
                        out_stride: self.n,
                        cols,
                        adds: from > 0,
                    };
                    // SAFETY: filters and panel hold `depth` of each, the instructions are the device's, and the block
                    // of the output is no other chunk's.
                    unsafe { (self.multiply)(&block) };
                    from += depth;
                }
            }
            Ok(())
        })
    }
}

impl ConvInteger {
    /// Writes the filters, less their zero points, as f32.
    fn widen_filters(&self, operands: &Operands<'_>, filters: SendPtr<f32>) -> Result<()> {
        let w = SendPtr(operands.input_ptr::<u8>(1).cast_mut());
        let zeros = operands.input_refs().get(3);
        let zeros = SendPtr(zeros.map_or(core::ptr::null_mut(), |zeros| zeros.addr as *mut u8));
        let n = self.shape.filters * self.shape.groups;
        let grain = (GRAIN / 8 / self.depth.max(1)).max(1);
        self.host.parallel_for(n, grain, |range, _| {
            for filter in range {
                let at = filter * self.depth;
                // SAFETY: the operand is the one that `prepare` was told.
                let zero = unsafe { self.filter_zeros.get(zeros.at(0), filter) };
                // SAFETY: the filter lies within the input and the workspace, of which each chunk
                // writes its own, and the instructions are the device's.
                unsafe { (self.widen)(w.at(at), zero, filters.at(at), self.depth) };
            }
            Ok(())
        })
    }
}

/// Patches that go into a panel: a range of their elements, and a range of the output's positions.
struct Patches<'a> {
    /// The first channel of a group.
    image: *const u8,
    zero: f32,
    spatial: &'a [Spatial; 3],
    from: usize,
    depth: usize,
    first_col: usize,
    cols: usize,
}

/// # Safety
/// The image has the group's channels, the elements and positions are its patches', `panel` is a whole
/// panel, and the processor has the instructions.
#[inline(always)]
unsafe fn fill_patches_body<A: Arith, T: Small>(patches: &Patches<'_>, panel: *mut f32) {
    use crate::lanes::Lanes;
    let width = 2 * A::Lanes::N;
    let [planes, rows, cols] = patches.spatial;
    for k in 0..patches.depth {
        let element = patches.from + k;
        let (rest, in_col) = (element / cols.filter, element % cols.filter);
        let (rest, in_row) = (rest / rows.filter, rest % rows.filter);
        let (channel, in_plane) = (rest / planes.filter, rest % planes.filter);
        let to = panel.wrapping_add(k * width);
        let mut n = 0;
        while n < patches.cols {
            let position = patches.first_col + n;
            let (rest, col) = (position / cols.output, position % cols.output);
            let (plane, row) = (rest / rows.output, rest % rows.output);
            let run = (cols.output - col).min(patches.cols - n);
            let to = to.wrapping_add(n);
            n += run;
            let plane = planes.at(plane, in_plane);
            let row = rows.at(row, in_row);
            let first = cols.at(col, in_col);
            let inside = (0..planes.input as i64).contains(&plane) && (0..rows.input as i64).contains(&row);
            if !inside {
                for i in 0..run {
                    // SAFETY: the run lies within the row of the panel.
                    unsafe { to.add(i).write(0.0) };
                }
                continue;
            }
            // Positions of the run whose column is within the input.
            let stride = cols.stride as i64;
            let within = |n: i64| (n.max(0) as u64).div_ceil(stride as u64) as usize;
            let end = within(cols.input as i64 - first).min(run);
            let begin = within(-first).min(end);
            let line = (channel * planes.input + plane as usize) * rows.input + row as usize;
            let line = patches.image.cast::<T>().wrapping_add(line * cols.input);
            let from = line.wrapping_offset(first as isize);
            for i in (0..begin).chain(end..run) {
                // SAFETY: the run lies within the row of the panel.
                unsafe { to.add(i).write(0.0) };
            }
            if cols.stride == 1 {
                let (from, to) = (from.wrapping_add(begin).cast(), to.wrapping_add(begin));
                // SAFETY: the columns of these positions are within the input, and they within the row.
                unsafe { widen_body::<A, T>(from, patches.zero, to, end - begin) };
                continue;
            }
            for i in begin..end {
                // SAFETY: the column of this position is within the input's row.
                let x: f32 = unsafe { from.wrapping_add(i * cols.stride).read() }.into();
                // SAFETY: the position is within the row of the panel.
                unsafe { to.add(i).write(x - patches.zero) };
            }
        }
        for i in patches.cols..width {
            // SAFETY: the row of the panel has `width` elements.
            unsafe { to.add(i).write(0.0) };
        }
    }
}

dispatch! { fn fill_patches<T: Small>(patches: &Patches<'_>, panel: *mut f32) = fill_patches_body }

#[cfg(test)]
mod tests {
    use crate::kernels::test_host::{Array, Value, run};
    use crate::kernels::testing::{Chance, isas};

    #[test]
    fn convolutions_are_exact() {
        let mut random = Chance::new(9);
        for (stride, dilation, pad) in [(1, 1, 1), (2, 1, 0), (1, 2, 2), (3, 2, 1)] {
            // Two groups of three channels and four filters each, on 9 by 40 elements.
            let (height, width) = (9, 40);
            let x: Vec<i8> = (0..6 * height * width).map(|_| random.below(256) as u8 as i8).collect();
            let w: Vec<u8> = (0..8 * 3 * 3 * 2).map(|_| random.below(256) as u8).collect();
            let zeros: Vec<u8> = (0..8).map(|_| random.below(256) as u8).collect();
            let zero = 17i8;
            let to = |n: usize, k: usize| (n + 2 * pad - (k - 1) * dilation - 1) / stride + 1;
            let (rows, cols) = (to(height, 3), to(width, 2));
            let mut expected = Vec::new();
            for at in 0..8 * rows * cols {
                let (filter, row, col) = (at / (rows * cols), at / cols % rows, at % cols);
                let mut sum = 0;
                for k in 0..18 {
                    let (channel, i, j) = (k / 6, k / 2 % 3, k % 2);
                    let y = (row * stride + i * dilation).wrapping_sub(pad);
                    let z = (col * stride + j * dilation).wrapping_sub(pad);
                    if y < height && z < width {
                        let x = x[((filter / 4 * 3 + channel) * height + y) * width + z];
                        let w = i32::from(w[filter * 18 + k]) - i32::from(zeros[filter]);
                        sum += (i32::from(x) - i32::from(zero)) * w;
                    }
                }
                expected.push(sum);
            }
            let attrs = [
                ("group", Value::Int(2)),
                ("strides", Value::Ints(vec![stride as i64; 2])),
                ("dilations", Value::Ints(vec![dilation as i64; 2])),
                ("pads", Value::Ints(vec![pad as i64; 4])),
            ];
            let inputs = [
                Some(Array::of(&[1, 6, height, width], &x)),
                Some(Array::of(&[8, 3, 3, 2], &w)),
                Some(Array::of(&[], &[zero])),
                Some(Array::of(&[8], &zeros)),
            ];
            for isa in isas() {
                let output = [Some(Array::empty::<i32>(&[1, 8, rows, cols]))];
                let found = run(isa, "ConvInteger", &attrs, &inputs, &output).expect("convolves");
                let expected = Some(Array::of(&[1, 8, rows, cols], &expected));
                assert_eq!(found[0], expected, "{isa:?} {stride} {dilation} {pad}");
            }
        }
    }
}
