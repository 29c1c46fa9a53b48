//! Pools: the largest, the mean or the norm of what a window covers.

use super::builder::{Builder, Type, Value};
use super::conv;
use super::node::Node;
use super::primitive::{Fold, Window};
use devbay_plugin_api::sdk::{Error, Result};

/// A pool's window over all axes of `[N, C, ...]`, and the pads that the attributes ask for on the spatial ones.
///
/// With `ceil_mode` the last place may reach beyond the pads, which is more padding here.
fn window(node: &Node<'_>, x: &Type, result: &Type) -> Result<(Window, Vec<(i64, i64)>)> {
    let extents = node.attrs().ints("kernel_shape")?.unwrap_or_default();
    if x.rank() < 3 || result.rank() != x.rank() {
        return Err(Error::unsupported(format!("a pool of {x}")));
    }
    let spatial = conv::window(node, &extents, &x.dims[2..])?;
    let given = spatial.pads.clone();
    let all = |first: i64, rest: Vec<i64>| [vec![first; 2], rest].concat();
    let mut window = Window {
        extents: all(1, spatial.extents),
        strides: all(1, spatial.strides),
        dilations: all(1, spatial.dilations),
        pads: [vec![(0, 0); 2], spatial.pads].concat(),
    };
    for axis in 2..x.rank() {
        let reach = (window.extents[axis] - 1) * window.dilations[axis] + 1;
        let needed = (result.dims[axis] - 1) * window.strides[axis] + reach - x.dims[axis];
        let (low, high) = &mut window.pads[axis];
        *high = (*high).max(needed - *low);
        if window.n_places(axis, x.dims[axis]) != result.dims[axis] {
            return Err(Error::invalid(format!("a pool of {x} that gives {result}")));
        }
    }
    Ok((window, given))
}

/// MaxPool without the positions of what it found.
pub(super) fn max_pool<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = node.input(b, 0)?;
    let (window, _) = window(node, &x.ty, &node.result(0)?)?;
    b.reduce_window(Fold::Maximum, &x, &window)
}

/// Returns the number of elements that the window covers at each place along an axis.
fn counts(window: &Window, axis: usize, extent: i64, given: (i64, i64), with_pads: bool) -> Vec<f64> {
    let (first, last) = if with_pads { (-given.0, extent + given.1) } else { (0, extent) };
    let count = |place: i64| {
        let start = place * window.strides[axis] - window.pads[axis].0;
        let at = (0..window.extents[axis]).map(|step| start + step * window.dilations[axis]);
        at.filter(|at| (first..last).contains(at)).count() as f64
    };
    (0..window.n_places(axis, extent)).map(count).collect()
}

/// AveragePool: pads count with `count_include_pad`; what `ceil_mode` adds never does.
pub(super) fn average_pool<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = node.input(b, 0)?;
    let result = node.result(0)?;
    let (window, given) = window(node, &x.ty, &result)?;
    let with_pads = node.attrs().int("count_include_pad", 0)? != 0;
    let sum = b.reduce_window(Fold::Add, &x, &window)?;
    let mut same = 1.0;
    let mut divisor: Option<Value> = None;
    for axis in 2..x.rank() {
        let counts = counts(&window, axis, x.dims()[axis], given[axis - 2], with_pads);
        match counts.first() {
            Some(&first) if counts.iter().all(|&count| count == first) => same *= first,
            _ => {
                let line = b.numbers(&counts, &Type::new(x.element(), &[counts.len() as i64]))?;
                let line = b.broadcast_in_dim(&line, &[axis], &result.dims);
                divisor = Some(match divisor {
                    Some(before) => b.multiply(&before, &line),
                    None => line,
                });
            }
        }
    }
    let divisor = match divisor {
        Some(divisor) if same == 1.0 => divisor,
        Some(divisor) => b.with_number("stablehlo.multiply", &divisor, same)?,
        None => b.splat(same, &result)?,
    };
    Ok(b.divide(&sum, &divisor))
}

/// LpPool, GlobalLpPool: the root of the sum of powers.
pub(super) fn lp_pool<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = node.input(b, 0)?;
    // Versions before 2 have a number that is no integer.
    if node.since() < 2 {
        return Err(Error::unsupported("LpPool before opset 2"));
    }
    let p = node.attrs().int("p", 2)? as f64;
    let size = b.unary("stablehlo.abs", &x);
    let powers = b.with_number("stablehlo.power", &size, p)?;
    let sum = if node.op() == "GlobalLpPool" {
        let axes: Vec<usize> = (2..x.rank()).collect();
        b.reduce_keeping(Fold::Add, &powers, &axes)?
    } else {
        let (window, _) = window(node, &x.ty, &node.result(0)?)?;
        b.reduce_window(Fold::Add, &powers, &window)?
    };
    b.with_number("stablehlo.power", &sum, 1.0 / p)
}

/// GlobalAveragePool and GlobalMaxPool.
pub(super) fn global_pool<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = node.input(b, 0)?;
    let axes: Vec<usize> = (2..x.rank()).collect();
    if node.op() == "GlobalMaxPool" {
        return b.reduce_keeping(Fold::Maximum, &x, &axes);
    }
    let sum = b.reduce_keeping(Fold::Add, &x, &axes)?;
    let n: i64 = axes.iter().map(|&axis| x.dims()[axis]).product();
    b.with_number("stablehlo.divide", &sum, n as f64)
}
