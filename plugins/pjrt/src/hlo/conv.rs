//! Convolutions, and how windows lie on an input: strides, dilations and pads as ONNX gives them.

use super::builder::{Builder, Type, Value, array, padding};
use super::node::Node;
use super::primitive::Window;
use devbay_ops::read;
use devbay_plugin_api::sdk::{Error, Result};

/// The window of a convolution or pool over the spatial axes, with the pads that the attributes ask for.
///
/// # Errors
/// Invalid for lists of another length than the input has spatial axes.
pub(super) fn window(node: &Node<'_>, extents: &[i64], input: &[i64]) -> Result<Window> {
    let result = node.result(0)?;
    let output = result.dims.get(2..).unwrap_or_default();
    let read::Window { kernel, strides, dilations, pads } =
        read::Window::of(node.attrs(), extents, input, output, 1 << 31)?;
    if kernel.iter().any(|&extent| extent < 1) {
        return Err(Error::invalid(format!("a window of {kernel:?} over {} spatial axes", input.len())));
    }
    Ok(Window { extents: kernel, strides, dilations, pads })
}

/// A number of elements for both ends, one more behind (or in front) if it is odd.
fn halves(total: i64, more_behind: bool) -> (i64, i64) {
    let (less, more) = (total.div_euclid(2), total - total.div_euclid(2));
    if more_behind { (less, more) } else { (more, less) }
}

/// Names of the axes for `#stablehlo.conv`: `[b, f, 0, 1]` with other words for the first two.
fn axes(first: &str, second: &str, n: usize) -> String {
    let spatial = (0..n).map(|axis| format!(", {axis}"));
    format!("[{first}, {second}{}]", spatial.collect::<String>())
}

struct Convolution<'a> {
    window: &'a Window,
    /// Distance between elements of the input, more than 1 in a transposed convolution.
    spread: &'a [i64],
    groups: i64,
    /// Names of the kernel's first two axes, `o` and `i`.
    kernel_axes: [&'a str; 2],
    n_channels: i64,
}

/// Writes a convolution of `[N, C, ...]` whose result is the graph's.
fn convolution(
    b: &mut Builder<'_>,
    x: &Value,
    kernel: &Value,
    conv: &Convolution<'_>,
    result: &Type,
) -> Result<Value> {
    let window = conv.window;
    let n = window.extents.len();
    let mut dims = vec![x.dims()[0], conv.n_channels];
    for axis in 0..n {
        dims.push(window.n_places(axis, (x.dims()[axis + 2] - 1) * conv.spread[axis] + 1));
    }
    if dims != result.dims {
        return Err(Error::invalid(format!("a convolution that gives {dims:?} where {result} is expected")));
    }
    b.expect(x.element() == kernel.element(), "a convolution", &[x, kernel]);
    let data = axes("b", "f", n);
    let [first, second] = conv.kernel_axes;
    let names = format!("{data}x{}->{data}", axes(first, second, n));
    let attributes = format!(
        "window_strides = {}, padding = {}, lhs_dilation = {}, rhs_dilation = {}, \
         dimension_numbers = #stablehlo.conv<{names}>, feature_group_count = {} : i64, \
         batch_group_count = 1 : i64, {}",
        array(&window.strides),
        padding(&window.pads),
        array(conv.spread),
        array(&window.dilations),
        conv.groups,
        b.precision(),
    );
    let per_result = 2 * kernel.ty.n_elements() / conv.n_channels.max(1);
    // In a transposed convolution only one in `spread` elements is not zero.
    let zeros: i64 = conv.spread.iter().product();
    b.flops += (result.n_elements() * per_result / zeros.max(1)) as u64;
    Ok(b.op("stablehlo.convolution", &[x, kernel], &attributes, result.clone()))
}

/// Adds a number for each channel.
fn add_bias(b: &mut Builder<'_>, x: &Value, bias: Option<Value>) -> Value {
    let Some(bias) = bias else { return x.clone() };
    let bias = b.broadcast_in_dim(&bias, &[1], x.dims());
    b.add(x, &bias)
}

/// Checks that input and kernel have the same spatial axes, of which there is at least one.
fn check_ranks(x: &Value, kernel: &Value) -> Result<()> {
    let is_right = x.rank() >= 3 && kernel.rank() == x.rank();
    is_right
        .then_some(())
        .ok_or_else(|| Error::unsupported(format!("a convolution of {} with {}", x.ty, kernel.ty)))
}

/// Conv: `[N, C, ...]` with a kernel `[M, C / group, ...]`.
pub(super) fn conv<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let (x, kernel) = (node.input(b, 0)?, node.input(b, 1)?);
    let result = convolved(node, b, &x, &kernel)?;
    let bias = node.optional_input(b, 2)?;
    Ok(add_bias(b, &result, bias))
}

/// The convolution that the node's attributes say, of any operands.
///
/// # Errors
/// Invalid if the operands do not go together or give another type than the graph has.
pub(super) fn convolved<'g>(
    node: &Node<'g>,
    b: &mut Builder<'g>,
    x: &Value,
    kernel: &Value,
) -> Result<Value> {
    check_ranks(x, kernel)?;
    let groups = node.attrs().int("group", 1)?;
    let window = window(node, &kernel.dims()[2..], &x.dims()[2..])?;
    let n_channels = kernel.dims()[0];
    if groups < 1 || x.dims()[1] != kernel.dims()[1] * groups || n_channels % groups != 0 {
        return Err(Error::invalid(format!("{groups} groups of {} with {}", x.ty, kernel.ty)));
    }
    let spread = vec![1; x.rank() - 2];
    let conv = Convolution { window: &window, spread: &spread, groups, kernel_axes: ["o", "i"], n_channels };
    let dims = node.result(0)?.dims;
    convolution(b, x, kernel, &conv, &Type::new(x.element(), &dims))
}

/// ConvTranspose: `[N, C, ...]` with a kernel `[C, M / group, ...]`, as a convolution of the input with its elements
/// spread by the strides and the kernel reversed.
pub(super) fn conv_transpose<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let (x, kernel) = (node.input(b, 0)?, node.input(b, 1)?);
    check_ranks(&x, &kernel)?;
    let result = node.result(0)?;
    let groups = node.attrs().int("group", 1)?;
    let n = x.rank() - 2;
    if groups < 1 || x.dims()[1] != kernel.dims()[0] || x.dims()[1] % groups != 0 || result.rank() != n + 2 {
        return Err(Error::invalid(format!("{groups} groups of {} with {}", x.ty, kernel.ty)));
    }
    let mut window = window(node, &kernel.dims()[2..], &x.dims()[2..])?;
    let strides = std::mem::replace(&mut window.strides, vec![1; n]);
    let auto_pad = node.attrs().string("auto_pad", "NOTSET")?;
    let has_shape = node.attrs().ints("output_shape")?.is_some();
    let more = node.attrs().ints("output_padding")?.unwrap_or_else(|| vec![0; n]);
    if more.len() != n {
        return Err(Error::invalid(format!("output_padding for {n} spatial axes")));
    }
    for axis in 0..n {
        let reach = (window.extents[axis] - 1) * window.dilations[axis];
        let (low, high) = if has_shape || auto_pad.starts_with("SAME") {
            // The window's reach beyond the given extents is cut off.
            let whole = strides[axis] * (x.dims()[axis + 2] - 1) + more[axis] + reach + 1;
            halves(whole - result.dims[axis + 2], auto_pad == "SAME_UPPER")
        } else {
            window.pads[axis]
        };
        window.pads[axis] = (reach - low, reach - high + more[axis]);
    }
    let spatial: Vec<usize> = (2..n + 2).collect();
    let kernel = b.reverse(&kernel, &spatial);
    let per_group = kernel.dims()[1];
    // The groups' input channels stand in one axis; StableHLO has the groups in the axis of the results.
    let kernel = if groups == 1 {
        kernel
    } else {
        let rest = &kernel.dims()[2..];
        let split = [&[groups, x.dims()[1] / groups, per_group], rest].concat();
        let split = b.reshape(&kernel, &split);
        let order: Vec<usize> = [0, 2, 1].into_iter().chain(3..n + 3).collect();
        let turned = b.transpose(&split, &order);
        b.reshape(&turned, &[&[groups * per_group, x.dims()[1] / groups], rest].concat())
    };
    let kernel_axes = if groups == 1 { ["i", "o"] } else { ["o", "i"] };
    let n_channels = groups * per_group;
    let conv = Convolution { window: &window, spread: &strides, groups, kernel_axes, n_channels };
    let made = convolution(b, &x, &kernel, &conv, &result)?;
    let bias = node.optional_input(b, 2)?;
    Ok(add_bias(b, &made, bias))
}
