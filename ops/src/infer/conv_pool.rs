//! Windows that slide over images `[n, c, ...]`: convolution and pooling.

use super::extent::{Shape, agree, extent, plus, show, times, unknown, unknown_of};
use super::matrix::{activation, added};
use super::{Node, invalid};
use crate::read::{Padding, Sliding, sizes};
use crate::types::{Dim, I32, I64, TensorType};
use devbay_plugin_api::sdk::Result;

/// Infers Conv.
pub fn conv(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let dtype = node.shared_dtype(&[0, 1, 2])?;
    node.result(dtype, conv_shape(node, 0, 1, Some(2))?)
}

/// Infers devbay's FusedConv: an addend of the result's shape, then an activation.
pub fn fused_conv(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let dtype = node.shared_dtype(&[0, 1, 2, 3])?;
    activation(node)?;
    let shape = conv_shape(node, 0, 1, Some(2))?;
    node.result(dtype, added(node, 3, shape)?)
}

/// Infers devbay's NhwcFusedConv: FusedConv with the channels of X, Z and the result last.
pub fn nhwc_fused_conv(node: &Node<'_>) -> Result<Vec<TensorType>> {
    channels_last(node, &[0, 3], fused_conv)
}

/// Infers devbay's NhwcMaxPool and NhwcAveragePool: the plain ops with the channels of X and the result last.
pub fn nhwc_pool(node: &Node<'_>) -> Result<Vec<TensorType>> {
    channels_last(node, &[0], pool)
}

/// Infers an op on images whose channels come last, from the op on images whose channels come second. `images` are the
/// operands that are images.
fn channels_last(node: &Node<'_>, images: &[usize], infer: super::InferFn) -> Result<Vec<TensorType>> {
    let mut types = node.types.to_vec();
    for &image in images {
        if let Some(Some(TensorType { shape: Some(shape), .. })) = types.get_mut(image)
            && let [_, rest @ ..] = &mut shape[..]
            && !rest.is_empty()
        {
            rest.rotate_right(1);
        }
    }
    let constant = |i: usize| (node.constant)(i);
    let Node { attrs, n_outputs, .. } = *node;
    let mut results = infer(&Node { attrs, n_outputs, types: &types, constant: &constant })?;
    for result in &mut results {
        if let Some([_, rest @ ..]) = result.shape.as_deref_mut() {
            rest.rotate_left(1);
        }
    }
    Ok(results)
}

/// Infers ConvInteger: products of bytes, summed in 32 bits.
pub fn conv_integer(node: &Node<'_>) -> Result<Vec<TensorType>> {
    node.result(I32, conv_shape(node, 0, 1, None)?)
}

/// Returns the shape of a convolution of input `x` with the weights that are input `w`.
pub(super) fn conv_shape(node: &Node<'_>, x: usize, w: usize, bias: Option<usize>) -> Result<Shape> {
    node.required(x)?;
    node.required(w)?;
    let group = group(node)?;
    let Some((image, weights)) = image_and_weights(node, x, w)? else {
        return Ok(None);
    };
    let channels = times(&weights[1], group)?;
    if agree(&image[1], &channels).is_none() {
        return Err(invalid(format!(
            "expected weights of {group} groups for {} channels, found {}",
            image[1],
            show(&weights)
        )));
    }
    let mut maps = weights[0].clone();
    if let Some(n) = maps.known().filter(|n| n % group != 0) {
        return Err(invalid(format!("expected feature maps in {group} groups, found {n}")));
    }
    if let Some(bias) = bias {
        maps = one_for_each(node, bias, maps)?;
    }
    let window = Window::of(node, &weights[2..], false)?;
    let mut shape = vec![image[0].clone(), maps];
    for (i, dim) in image[2..].iter().enumerate() {
        shape.push(window.slide(i, dim)?);
    }
    Ok(Some(shape))
}

/// Returns the shapes of image and weights, of one rank; if one is unknown, its extents are. None if both are.
fn image_and_weights(node: &Node<'_>, x: usize, w: usize) -> Result<Option<(Vec<Dim>, Vec<Dim>)>> {
    let (image, weights) = match (node.shape(x), node.shape(w)) {
        (None, None) => return Ok(None),
        (Some(image), None) => (image.to_vec(), unknown(image.len())),
        (None, Some(weights)) => (unknown(weights.len()), weights.to_vec()),
        (Some(image), Some(weights)) => (image.to_vec(), weights.to_vec()),
    };
    if image.len() != weights.len() || image.len() < 3 {
        return Err(invalid(format!(
            "expected an image and weights of 3 or more dimensions, as many in both, found {} and {}",
            show(&image),
            show(&weights)
        )));
    }
    Ok(Some((image, weights)))
}

fn group(node: &Node<'_>) -> Result<usize> {
    match node.int("group", 1) {
        group @ 1.. => extent(group.into()),
        group => Err(invalid(format!("expected at least 1 group, found {group}"))),
    }
}

/// Checks that a bias has one number per feature map; it may also determine their number.
fn one_for_each(node: &Node<'_>, bias: usize, maps: Dim) -> Result<Dim> {
    node.expect_rank(bias, 1)?;
    let Some([n]) = node.shape(bias) else {
        return Ok(maps);
    };
    agree(&maps, n).ok_or_else(|| invalid(format!("expected a bias of {maps} numbers, found {n}")))
}

/// A window, axis by axis.
struct Window {
    kernel: Vec<Dim>,
    sliding: Sliding,
    /// True if a partial window counts.
    ceil: bool,
}

impl Window {
    /// Reads the attributes; `kernel` holds the window's extents from the weights.
    fn of(node: &Node<'_>, kernel: &[Dim], ceil: bool) -> Result<Self> {
        let mut kernel = kernel.to_vec();
        if let Some(stated) = sizes(node.attrs, "kernel_shape", kernel.len(), 1)? {
            for (dim, &stated) in kernel.iter_mut().zip(stated) {
                *dim = agree(dim, &Dim::Known(extent(stated.into())?))
                    .ok_or_else(|| invalid(format!("expected kernel_shape {dim}, found {stated}")))?;
            }
        }
        if kernel.contains(&Dim::Known(0)) {
            return Err(invalid(format!("expected a kernel, found one of shape {}", show(&kernel))));
        }
        let sliding = Sliding::of(node.attrs, kernel.len())?;
        // With VALID, ONNX counts only complete windows, even with ceil_mode.
        let ceil = ceil && sliding.padding != Padding::Valid;
        Ok(Self { kernel, sliding, ceil })
    }

    /// Returns the distance from the window's first to its last element along an axis.
    fn reach(&self, i: usize) -> Option<i128> {
        let kernel = self.kernel[i].known()?;
        Some((kernel as i128 - 1) * i128::from(self.sliding.dilations[i]))
    }

    /// Returns the number of positions of the window along an axis of the image.
    fn slide(&self, i: usize, image: &Dim) -> Result<Dim> {
        let stride = i128::from(self.sliding.strides[i]);
        let Some((before, after)) = self.sliding.padding_of(i) else {
            return match image.known() {
                _ if stride == 1 => Ok(image.clone()),
                Some(n) => Ok(Dim::Known(extent((n as i128 + stride - 1) / stride)?)),
                None => Ok(Dim::unknown()),
            };
        };
        let (before, after) = (i128::from(before), i128::from(after));
        let Some(reach) = self.reach(i) else {
            return Ok(Dim::unknown());
        };
        let Some(n) = image.known() else {
            // As long as the image, even if that is unknown.
            return Ok(if stride == 1 && before + after == reach { image.clone() } else { Dim::unknown() });
        };
        let n = n as i128;
        let room = n + before + after - reach - 1;
        if room < 0 {
            // An empty image has no place for a window; an image smaller than the window is an error.
            return match n {
                0 => Ok(Dim::Known(0)),
                n => Err(invalid(format!(
                    "expected an image at least as large as the window of {}, found {n} padded to {}",
                    reach + 1,
                    n + before + after
                ))),
            };
        }
        let mut fits = room / stride + 1;
        if self.ceil && room % stride != 0 && fits * stride < n + before {
            // Windows that would start in the padding after the image do not count.
            fits += 1;
        }
        Ok(Dim::Known(extent(fits)?))
    }
}

/// Infers MaxPool: also the positions of the maxima.
pub fn max_pool(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    let shape = pool_shape(node)?;
    node.flag("storage_order", false)?;
    let positions = TensorType { dtype: I64, shape: shape.clone() };
    node.results(vec![TensorType { dtype: x.dtype, shape }, positions])
}

/// Infers AveragePool and LpPool.
pub fn pool(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.result(x.dtype, pool_shape(node)?)
}

fn pool_shape(node: &Node<'_>) -> Result<Shape> {
    let rank = node.ints("kernel_shape").unwrap_or_default().len();
    if rank == 0 {
        return Err(invalid("expected the attribute kernel_shape, found none"));
    }
    node.expect_rank(0, rank + 2)?;
    let image = match node.shape(0) {
        Some(image) => image.to_vec(),
        None => unknown_of(rank + 2)?,
    };
    let ceil = node.flag("ceil_mode", false)?;
    let window = Window::of(node, &unknown(rank), ceil)?;
    let mut shape = image[..2].to_vec();
    for (i, dim) in image[2..].iter().enumerate() {
        shape.push(window.slide(i, dim)?);
    }
    Ok(Some(shape))
}

/// Infers GlobalAveragePool and its kin: one number per channel.
pub fn global_pool(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    let shape = match x.shape.as_deref() {
        Some([n, c, image @ ..]) => {
            let mut shape = vec![n.clone(), c.clone()];
            shape.resize(2 + image.len(), Dim::Known(1));
            Some(shape)
        }
        Some(dims) => {
            return Err(invalid(format!("expected an image of 2 or more dimensions, found {}", show(dims))));
        }
        None => None,
    };
    node.result(x.dtype, shape)
}

/// Infers ConvTranspose: the image whose convolution would have the operand's shape.
pub fn conv_transpose(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let dtype = node.shared_dtype(&[0, 1, 2])?;
    node.required(0)?;
    node.required(1)?;
    let group = group(node)?;
    let Some((image, weights)) = image_and_weights(node, 0, 1)? else {
        return node.result(dtype, None);
    };
    if agree(&image[1], &weights[0]).is_none() {
        return Err(invalid(format!("expected weights for {} channels, found {}", image[1], show(&weights))));
    }
    if let Some(n) = image[1].known().filter(|n| n % group != 0) {
        return Err(invalid(format!("expected channels in {group} groups, found {n}")));
    }
    let maps = one_for_each(node, 2, times(&weights[1], group)?)?;
    let mut shape = vec![image[0].clone(), maps];
    shape.extend(spread(node, &image[2..], &weights[2..])?);
    node.result(dtype, Some(shape))
}

/// Returns the extents of ConvTranspose's image.
fn spread(node: &Node<'_>, image: &[Dim], kernel: &[Dim]) -> Result<Vec<Dim>> {
    let rank = image.len();
    let window = Window::of(node, kernel, false)?;
    let more = sizes(node.attrs, "output_padding", rank, 0)?;
    if let Some(stated) = stated_shape(node, rank)? {
        return Ok(stated);
    }
    let mut result = Vec::with_capacity(rank);
    for (i, dim) in image.iter().enumerate() {
        let stride = window.sliding.strides[i];
        let more = i128::from(more.map_or(0, |more| more[i]));
        let less = window.sliding.padding_of(i).map(|(before, after)| i128::from(before) + i128::from(after));
        result.push(match (less, window.reach(i), dim.known()) {
            (None, _, _) => times(dim, extent(stride.into())?)?,
            (Some(less), Some(reach), Some(n)) => {
                // Both summands fit `i128`, but their sum may not; a saturated sum is too large anyway.
                let full = (i128::from(stride) * (n as i128 - 1)).saturating_add(reach + 1 + more);
                Dim::Known(extent(full - less)?)
            }
            (Some(less), Some(reach), None) if stride == 1 => plus(dim, reach + more - less)?,
            _ => Dim::unknown(),
        });
    }
    Ok(result)
}

/// Returns the attribute `output_shape`. It should exclude batch and channels, but exporters include them.
fn stated_shape(node: &Node<'_>, rank: usize) -> Result<Option<Vec<Dim>>> {
    let n = node.ints("output_shape").unwrap_or_default().len();
    let n = if n == rank + 2 { n } else { rank };
    let Some(sizes) = sizes(node.attrs, "output_shape", n, 0)? else {
        return Ok(None);
    };
    sizes[n - rank..]
        .iter()
        .map(|&size| Ok(Dim::Known(extent(size.into())?)))
        .collect::<Result<_>>()
        .map(Some)
}

/// Infers MaxRoiPool: a small image per region.
pub fn max_roi_pool(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let dtype = node.shared_dtype(&[0, 1])?;
    node.required(0)?;
    node.required(1)?;
    node.expect_rank(0, 4)?;
    node.expect_rank(1, 2)?;
    let dim = |i: usize, axis: usize| {
        node.shape(i).and_then(|dims| dims.get(axis)).cloned().unwrap_or_else(Dim::unknown)
    };
    if let Dim::Known(found) = dim(1, 1)
        && found != 5
    {
        return Err(invalid(format!("expected regions of 5 numbers, found {found}")));
    }
    let bins = node.ints("pooled_shape").unwrap_or_default();
    let &[rows, columns] = bins else {
        return Err(invalid(format!("expected 2 numbers as pooled_shape, found {bins:?}")));
    };
    let bins = |n: i64| extent(n.into()).map(Dim::Known);
    node.result(dtype, Some(vec![dim(1, 0), dim(0, 1), bins(rows)?, bins(columns)?]))
}

/// Infers RoiAlign: a small image per region.
pub fn roi_align(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.required(1)?;
    node.required(2)?;
    node.expect_rank(0, 4)?;
    node.expect_rank(1, 2)?;
    node.expect_rank(2, 1)?;
    let side = |name| extent(node.int(name, 1).into()).map(Dim::Known);
    let first = |i: usize| node.shape(i).and_then(<[Dim]>::first).cloned();
    let regions = match (first(1), first(2)) {
        (Some(a), Some(b)) => agree(&a, &b)
            .ok_or_else(|| invalid(format!("expected a batch index for each of {a} regions, found {b}")))?,
        (known, other) => known.or(other).unwrap_or_else(Dim::unknown),
    };
    let channels = node.shape(0).and_then(|dims| dims.get(1)).cloned();
    node.result(
        x.dtype,
        Some(vec![
            regions,
            channels.unwrap_or_else(Dim::unknown),
            side("output_height")?,
            side("output_width")?,
        ]),
    )
}

/// Infers GridSample: the image at the grid's positions.
pub fn grid_sample(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let (x, grid) = (node.required(0)?, node.required(1)?);
    let shape = match (x.shape.as_deref(), grid.shape.as_deref()) {
        (Some([n, c, image @ ..]), Some([batch, places @ .., depth])) => {
            let batch = agree(n, batch)
                .filter(|_| image.len() == places.len() && agree(depth, &Dim::Known(image.len())).is_some());
            let Some(batch) = batch else {
                return Err(invalid(format!(
                    "expected a grid of positions in {}, found {}",
                    show(x.shape.as_deref().unwrap_or_default()),
                    show(grid.shape.as_deref().unwrap_or_default())
                )));
            };
            Some([&[batch, c.clone()], places].concat())
        }
        (None, Some(grid)) if grid.len() >= 2 => {
            let mut shape = vec![grid[0].clone(), Dim::unknown()];
            shape.extend_from_slice(&grid[1..grid.len() - 1]);
            Some(shape)
        }
        (Some([n, c, image @ ..]), None) => {
            Some([&[n.clone(), c.clone()], unknown(image.len()).as_slice()].concat())
        }
        (None, None) => None,
        _ => {
            return Err(invalid("expected an image and a grid of 2 or more dimensions, found fewer"));
        }
    };
    node.result(x.dtype, shape)
}

#[cfg(test)]
mod tests {
    use crate::infer::testing::{Attr, check, infer};
    use crate::types::{F32, TensorType};

    #[test]
    fn convolutions() {
        check("Conv", "f32[1,3,8,8] f32[4,3,3,3]", "f32[1,4,6,6]");
        check("Conv strides=[2,2] pads=[1,1,1,1]", "f32[n,3,8,9] f32[4,3,3,3] f32[4]", "f32[n,4,4,5]");
        check("Conv dilations=[2]", "f32[1,3,8] f32[4,3,3]", "f32[1,4,4]");
        check("Conv group=3", "f32[1,3,8] f32[6,1,3]", "f32[1,6,6]");
        check("Conv auto_pad=SAME_UPPER strides=[3]", "f32[1,3,8] f32[4,3,3]", "f32[1,4,3]");
        check("Conv auto_pad=VALID pads=[9,9]", "f32[1,3,8] f32[4,3,3]", "f32[1,4,6]");
        check("Conv", "f32[1,3,0] f32[4,3,1]", "f32[1,4,0]");
        check("ConvInteger", "u8[1,3,8] i8[4,3,3] u8[]", "i32[1,4,6]");
        check("FusedConv activation=Relu", "f32[n,3,w] f32[4,3,3] - f32[n,4,7]", "f32[n,4,7]");
        check("NhwcFusedConv", "f32[n,w,9,3] f32[4,3,3,3] - f32[n,5,7,4]", "f32[n,5,7,4]");
        check(
            "NhwcFusedConv group=2",
            "f32[1,6,3] f32[4,2,3]",
            "error: expected weights of 2 groups for 3 channels, found [4,2,3]",
        );
        check("NhwcMaxPool kernel_shape=[2,2] strides=[2,2]", "f32[n,8,6,5]", "f32[n,4,3,5]");
        check("NhwcAveragePool kernel_shape=[3]", "f32[..]", "f32[?,?,?]");
    }

    #[test]
    fn convolutions_of_what_is_partly_known() {
        check("Conv", "f32[n,c,h] f32[4,3,3]", "f32[n,4,?]");
        check("Conv pads=[1,1]", "f32[n,c,h] f32[4,3,3]", "f32[n,4,h]");
        check("Conv auto_pad=SAME_LOWER", "f32[n,c,h] f32[4,3,3]", "f32[n,4,h]");
        check("Conv", "f32[n,c,8] f32[..] f32[4]", "f32[n,4,?]");
        check("Conv kernel_shape=[3]", "f32[n,c,8] f32[..]", "f32[n,?,6]");
        check("Conv", "f32[..] f32[4,3,3]", "f32[?,4,?]");
        check("Conv", "f32[..] f32[..]", "f32[..]");
    }

    #[test]
    fn hostile_convolutions() {
        let operands = "f32[1,3,8] f32[4,3,3]";
        let check_error = |attrs: &str, text: &str| {
            check(&format!("Conv {attrs}"), operands, &format!("error: {text}"));
        };
        check_error("pads=[-9223372036854775808,0]", "expected 2 numbers of at least 0 as pads");
        check_error("pads=[1]", "expected 2 numbers of at least 0 as pads");
        for name in ["pads", "strides", "dilations", "kernel_shape"] {
            check_error(&format!("{name}=[]"), &format!("as {name}, found []"));
        }
        check_error(
            "pads=[9223372036854775807,9223372036854775807]",
            "extent of 18446744073709551620, which is too large",
        );
        check_error("strides=[0]", "expected 1 numbers of at least 1 as strides");
        check_error(
            "dilations=[9223372036854775807]",
            "expected an image at least as large as the window of 18446744073709551615",
        );
        check_error("kernel_shape=[3,3]", "as kernel_shape, found [3, 3]");
        check_error("kernel_shape=[5]", "expected kernel_shape 3, found 5");
        check_error("group=0", "expected at least 1 group, found 0");
        check_error("group=2", "expected weights of 2 groups for 3 channels");
        check_error("auto_pad=FULL", "expected auto_pad NOTSET");
        check(
            "Conv",
            "f32[1,3,8] f32[4,3,9]",
            "error: expected an image at least as large as the window of 9, found 8 padded to 8",
        );
        check("Conv", "f32[1,3,8] f32[4,3,0]", "error: expected a kernel");
        check("Conv group=3", "f32[1,3,8] f32[4,1,3]", "error: expected feature maps in 3 groups, found 4");
        check("Conv", "f32[1,3,8] f32[4,3,3] f32[5]", "error: expected a bias of 4 numbers, found 5");
        check("Conv", "f32[1,3] f32[4,3]", "error: 3 or more dimensions");
        check(
            "Conv dilations=[9223372036854775807]",
            "f32[1,3,8] f32[4,3,18446744073709551615]",
            "error: expected an image at least as large",
        );
        check(
            "FusedConv",
            "f32[1,3,8] f32[4,3,3] - f32[1,4,7]",
            "error: expected an addend of shape [1,4,6], found [1,4,7]",
        );
    }

    /// Checks that no valid image, window or attribute makes the arithmetic overflow.
    #[test]
    fn no_arithmetic_overflows() {
        let extents = [0, 1, 3, 1 << 62, usize::MAX];
        let sizes = [0, 1, 2, i64::MAX - 1, i64::MAX];
        let rows = ["Conv", "ConvTranspose", "MaxPool"].map(|name| crate::find("", name).expect("known"));
        let mut n_known = 0;
        for (image, kernel, stride) in product3(&extents, &extents, &sizes) {
            let types = [[1, 1, image], [1, 1, kernel]].map(|shape| Some(TensorType::new(F32, &shape)));
            for (dilation, pad, more) in product3(&sizes, &sizes, &sizes) {
                for row in rows {
                    let kernel = i64::try_from(kernel).unwrap_or(i64::MAX);
                    let lists = [
                        ("strides", vec![stride]),
                        ("dilations", vec![dilation]),
                        ("output_padding", vec![more]),
                        ("pads", vec![pad, more]),
                        ("kernel_shape", vec![kernel]),
                    ];
                    let n_lists = if row.name == "MaxPool" { 5 } else { 4 };
                    let lists = lists.into_iter().take(n_lists);
                    let mut attrs: Vec<_> =
                        lists.map(|(name, list)| (name.to_owned(), Attr::Ints(list))).collect();
                    attrs.push(("ceil_mode".to_owned(), Attr::Int(pad & 1)));
                    n_known += usize::from(infer(row, &attrs, 1, &types, &[]).is_ok());
                }
            }
        }
        assert!(n_known > 100, "{n_known}");
    }

    fn product3<A: Copy, B: Copy, C: Copy>(a: &[A], b: &[B], c: &[C]) -> impl Iterator<Item = (A, B, C)> {
        a.iter().flat_map(move |&a| b.iter().flat_map(move |&b| c.iter().map(move |&c| (a, b, c))))
    }

    #[test]
    fn pools() {
        check("MaxPool kernel_shape=[3,3] strides=[2,2]", "f32[1,3,8,n]", "f32[1,3,3,?] i64[1,3,3,?]");
        check("AveragePool kernel_shape=[3] strides=[2] ceil_mode=1", "f32[1,3,8]", "f32[1,3,4]");
        // The last window would start in the padding after the image.
        check("MaxPool kernel_shape=[1] strides=[2] pads=[0,2] ceil_mode=1", "f32[1,3,4]", "f32[1,3,3]");
        check("MaxPool kernel_shape=[2] strides=[3] pads=[1,1] ceil_mode=1", "f32[1,1,2]", "f32[1,1,1]");
        check("MaxPool kernel_shape=[3] strides=[2] auto_pad=VALID ceil_mode=1", "f32[1,3,4]", "f32[1,3,1]");
        check("MaxPool kernel_shape=[2] strides=[2] auto_pad=SAME_LOWER", "f32[1,3,5]", "f32[1,3,3]");
        check("LpPool kernel_shape=[2]", "f32[..]", "f32[?,?,?]");
        check("MaxPool", "f32[1,3,8]", "error: kernel_shape, found none");
        check("MaxPool kernel_shape=[0]", "f32[1,3,8]", "error: at least 1");
        check(
            "MaxPool kernel_shape=[2] storage_order=2",
            "f32[1,3,8]",
            "error: 0 or 1 as attribute storage_order",
        );
        check(
            "MaxPool kernel_shape=[2,2]",
            "f32[1,3,8]",
            "error: expected 4 dimensions as input 0, found [1,3,8]",
        );
        check("GlobalAveragePool", "f32[n,3,8,w]", "f32[n,3,1,1]");
        check("GlobalMaxPool", "f32[..]", "f32[..]");
        check("GlobalMaxPool", "f32[3]", "error: 2 or more dimensions");
    }

    #[test]
    fn transposed_convolutions() {
        let check_transposed = |attrs: &str, dim: &str, expected: &str| {
            check(&format!("ConvTranspose {attrs}"), &format!("f32[1,4,{dim}] f32[4,3,3]"), expected);
        };
        check_transposed("", "8", "f32[1,3,10]");
        check_transposed("strides=[2]", "8", "f32[1,3,17]");
        check_transposed("strides=[2] pads=[1,1] output_padding=[1]", "8", "f32[1,3,16]");
        check_transposed("dilations=[2]", "8", "f32[1,3,12]");
        check_transposed("group=2", "8", "f32[1,6,10]");
        check_transposed("auto_pad=SAME_UPPER strides=[2]", "8", "f32[1,3,16]");
        check_transposed("output_shape=[20] strides=[2]", "8", "f32[1,3,20]");
        check_transposed("output_shape=[1,3,20]", "n", "f32[1,3,20]");
        check_transposed("pads=[1,1]", "n", "f32[1,3,n]");
        check_transposed("strides=[2]", "n", "f32[1,3,?]");
        check_transposed("pads=[9,9]", "8", "error: extent of -8");
        check_transposed("group=3", "8", "error: channels in 3 groups");
        check_transposed("output_padding=[-1]", "8", "error: output_padding");
        check_transposed("output_padding=[]", "8", "error: output_padding");
        check_transposed("output_shape=[]", "8", "error: output_shape");
        check_transposed("pads=[]", "8", "error: pads");
        check_transposed(
            "strides=[9223372036854775807] dilations=[9223372036854775807]",
            "18446744073709551615",
            "error: too large",
        );
        check(
            "ConvTranspose",
            "f32[1,4,8] f32[3,4,3]",
            "error: expected weights for 4 channels, found [3,4,3]",
        );
    }

    #[test]
    fn regions_and_grids() {
        check("RoiAlign output_height=2 output_width=3", "f32[1,c,8,8] f32[n,4] i64[5]", "f32[5,c,2,3]");
        check("MaxRoiPool pooled_shape=[2,3]", "f32[1,c,8,8] f32[n,5]", "f32[n,c,2,3]");
        check("MaxRoiPool pooled_shape=[2,3]", "f32[..] f32[..]", "f32[?,?,2,3]");
        check(
            "MaxRoiPool pooled_shape=[2,3]",
            "f32[1,1,8,8] f32[1,4]",
            "error: expected regions of 5 numbers, found 4",
        );
        check("GridSample", "f32[n,c,8,8] f32[2,3,4,2]", "f32[2,c,3,4]");
        check("GridSample", "f32[..] f32[2,3,4,2]", "f32[2,?,3,4]");
        check("GridSample", "f32[1,2,3] f32[..]", "f32[1,2,?]");
        check("GridSample", "f32[1,2,3] f32[1,2,2]", "error: a grid of");
        check("GridSample", "f32[1] f32[1]", "error: found fewer");
    }
}
