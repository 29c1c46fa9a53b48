//! Ops that move elements about without calculating: shapes, order, parts, and constants.

use super::builder::{Builder, Type, Value};
use super::node::{Node, axis};
use crate::element::ElementType;
use devbay_plugin_api::sdk::{AttrContent, Error, Result};

/// Ops whose result has the same elements in the same order: Reshape, Flatten, Squeeze, Unsqueeze. The graph has the
/// extents of the result.
pub(super) fn reshape<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = node.input(b, 0)?;
    let result = node.result(0)?;
    if x.ty.n_elements() != result.n_elements() {
        return Err(Error::invalid(format!("{} as {result}", x.ty)));
    }
    Ok(b.reshape(&x, &result.dims))
}

pub(super) fn transpose<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = node.input(b, 0)?;
    let order: Vec<usize> = match node.attrs().ints("perm")? {
        Some(order) => order.iter().map(|&one| axis(one, x.rank())).collect::<Result<_>>()?,
        None => (0..x.rank()).rev().collect(),
    };
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if sorted.iter().ne((0..x.rank()).collect::<Vec<_>>().iter()) {
        return Err(Error::invalid(format!("perm {order:?} of rank {}", x.rank())));
    }
    Ok(b.transpose(&x, &order))
}

/// Expand: the graph has the extents of the result.
pub(super) fn expand<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = node.input(b, 0)?;
    b.broadcast(&x, &node.result(0)?.dims)
}

/// Tile: the repeats follow from the extents of operand and result.
pub(super) fn tile<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = node.input(b, 0)?;
    let result = node.result(0)?;
    let mut dims = Vec::new();
    for (&from, &to) in x.dims().iter().zip(&result.dims) {
        if result.rank() != x.rank() || from == 0 || to % from != 0 {
            return Err(Error::unsupported(format!("{} repeated to {result}", x.ty)));
        }
        dims.extend([to / from, from]);
    }
    let axes: Vec<usize> = (0..x.rank()).map(|axis| 2 * axis + 1).collect();
    let repeated = b.broadcast_in_dim(&x, &axes, &dims);
    Ok(b.reshape(&repeated, &result.dims))
}

pub(super) fn concat<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let parts = node.all_inputs(b)?;
    let rank = parts.first().map_or(0, Value::rank);
    // The attribute came to be required in opset 4; before, it was 1.
    let axis = node.axis(1, rank)?;
    if parts.iter().any(|part| part.rank() != rank) {
        return Err(Error::invalid("parts of different ranks"));
    }
    Ok(b.concatenate(&parts.iter().collect::<Vec<_>>(), axis))
}

/// Split: the graph has the extents of the parts.
pub(super) fn split<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Vec<Value>> {
    let x = node.input(b, 0)?;
    let axis = node.axis(0, x.rank())?;
    let n = node.outputs().len() as i64;
    let given = node.ints_or_attr(1, "split")?;
    let mut start = 0;
    let mut parts = Vec::new();
    for at in 0..node.outputs().len() {
        // Equal parts, of which the last may be smaller.
        let equal = (x.dims()[axis] + n - 1) / n;
        let size = match &given {
            Some(given) => given.get(at).copied().unwrap_or(0),
            None => equal.min(x.dims()[axis] - start),
        };
        if size < 0 || start + size > x.dims()[axis] {
            return Err(Error::invalid(format!("part {at} of {} elements from {start} on", size)));
        }
        parts.push(b.slice_axis(&x, axis, start, start + size));
        start += size;
    }
    Ok(parts)
}

/// Slice: bounds are attributes before opset 10, and constant inputs since. Counted from the back if negative, and cut
/// to what there is.
pub(super) fn slice<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = node.input(b, 0)?;
    let required = |at, name| {
        node.ints_or_attr(at, name)?.ok_or_else(|| Error::invalid(format!("{name} of a slice is missing")))
    };
    let (starts, ends) = (required(1, "starts")?, required(2, "ends")?);
    let n = starts.len();
    let given = node.ints_or_attr(3, "axes")?.unwrap_or_else(|| (0..n as i64).collect());
    let steps = node.ints(4)?.unwrap_or_else(|| vec![1; n]);
    if ends.len() != n || given.len() != n || steps.len() != n {
        return Err(Error::invalid("bounds of a slice for different numbers of axes"));
    }
    let (mut from, mut to) = (vec![0; x.rank()], x.dims().to_vec());
    let mut strides = vec![1; x.rank()];
    let mut reversed = Vec::new();
    for (i, &one) in given.iter().enumerate() {
        let axis = axis(one, x.rank())?;
        let extent = x.dims()[axis];
        let from_front = |at: i64| if at < 0 { at.saturating_add(extent) } else { at };
        let (start, end) = (from_front(starts[i]), from_front(ends[i]));
        match steps[i] {
            0 => return Err(Error::invalid("a slice with steps of 0")),
            step if step > 0 => {
                from[axis] = start.clamp(0, extent);
                to[axis] = end.clamp(from[axis], extent.max(from[axis]));
                strides[axis] = step.min(extent.max(1));
            }
            step => {
                let (start, end) = (start.clamp(-1, extent - 1), end.clamp(-1, extent - 1));
                let step = step.saturating_neg().min(extent.max(1));
                let n = if start > end { (start - end + step - 1) / step } else { 0 };
                // The same elements from the other end.
                from[axis] = if n > 0 { start - (n - 1) * step } else { 0 };
                to[axis] = if n > 0 { start + 1 } else { 0 };
                strides[axis] = step;
                reversed.push(axis);
            }
        }
    }
    let part = b.slice(&x, &from, &to, &strides);
    Ok(b.reverse(&part, &reversed))
}

/// Pad with a constant, with the border, or with what lies on the other side of it or of the whole.
pub(super) fn pad<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = node.input(b, 0)?;
    let name = if node.since() < 2 { "paddings" } else { "pads" };
    let pads = node.ints_or_attr(1, name)?.ok_or_else(|| Error::invalid("pads are missing"))?;
    let given = match node.ints(3)? {
        Some(given) => given.iter().map(|&one| axis(one, x.rank())).collect::<Result<Vec<_>>>()?,
        None => (0..x.rank()).collect(),
    };
    if pads.len() != 2 * given.len() {
        return Err(Error::invalid(format!("{} pads for {} axes", pads.len(), given.len())));
    }
    let mut ends = vec![(0, 0); x.rank()];
    for (i, &axis) in given.iter().enumerate() {
        ends[axis] = (pads[i], pads[i + given.len()]);
    }
    let mode = node.attrs().string("mode", "constant")?;
    if mode == "constant" {
        let value = match node.optional_input(b, 2)? {
            Some(value) => b.reshape(&value, &[]),
            None => b.splat(node.attrs().float("value", 0.0)?.into(), &Type::new(x.element(), &[]))?,
        };
        return Ok(b.pad(&x, &value, &ends));
    }
    let mut padded = x;
    for (axis, &(low, high)) in ends.iter().enumerate() {
        // Negative numbers take elements away first.
        let extent = padded.dims()[axis];
        let kept = b.slice_axis(&padded, axis, (-low).max(0), extent + high.min(0));
        let (low, high) = (low.max(0), high.max(0));
        padded = border(b, &kept, axis, low, high, mode)?;
    }
    Ok(padded)
}

/// Adds `low` and `high` elements at the ends of one axis.
fn border(b: &mut Builder<'_>, x: &Value, axis: usize, low: i64, high: i64, mode: &str) -> Result<Value> {
    let extent = x.dims()[axis];
    let limit = match mode {
        "reflect" => extent - 1,
        "wrap" => extent,
        "edge" if extent > 0 => i64::MAX,
        "edge" => 0,
        other => return Err(Error::invalid(format!("mode {other} of Pad"))),
    };
    if low > limit || high > limit {
        return Err(Error::unsupported(format!(
            "{low} and {high} elements at the ends of {extent} by {mode}"
        )));
    }
    let mut parts = vec![x.clone()];
    for (n, is_low) in [(low, true), (high, false)] {
        if n == 0 {
            continue;
        }
        let part = match (mode, is_low) {
            ("reflect", true) => b.slice_axis(x, axis, 1, n + 1),
            ("reflect", false) => b.slice_axis(x, axis, extent - 1 - n, extent - 1),
            ("wrap", true) => b.slice_axis(x, axis, extent - n, extent),
            ("wrap", false) => b.slice_axis(x, axis, 0, n),
            (_, true) => b.slice_axis(x, axis, 0, 1),
            (_, false) => b.slice_axis(x, axis, extent - 1, extent),
        };
        let part = match mode {
            "reflect" => b.reverse(&part, &[axis]),
            "edge" => {
                let mut dims = x.dims().to_vec();
                dims[axis] = n;
                b.broadcast(&part, &dims)?
            }
            _ => part,
        };
        parts.insert(if is_low { 0 } else { parts.len() }, part);
    }
    Ok(b.concatenate(&parts.iter().collect::<Vec<_>>(), axis))
}

/// DepthToSpace and SpaceToDepth of `[N, C, H, W]`.
pub(super) fn depth_and_space<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = node.input(b, 0)?;
    let result = node.result(0)?;
    let size = node.attrs().int("blocksize", 0)?;
    let (&[n, c, h, w], true) = (x.dims(), size > 0 && x.ty.n_elements() == result.n_elements()) else {
        return Err(Error::invalid(format!("blocks of {size} in {}", x.ty)));
    };
    let to_space = node.op() == "DepthToSpace";
    let is_whole = if to_space { c % (size * size) == 0 } else { h % size == 0 && w % size == 0 };
    if !is_whole {
        return Err(Error::invalid(format!("blocks of {size} in {}", x.ty)));
    }
    let mode = node.attrs().string("mode", "DCR")?;
    // CRD: the channel comes before its place in the block; DCR: the place comes before the channel.
    let is_channel_first = match mode {
        "CRD" => true,
        "DCR" => false,
        other => return Err(Error::invalid(format!("mode {other} of {}", node.op()))),
    };
    let (dims, order) = match (to_space, is_channel_first) {
        (true, true) => ([n, c / (size * size), size, size, h, w], [0, 1, 4, 2, 5, 3]),
        (true, false) => ([n, size, size, c / (size * size), h, w], [0, 3, 4, 1, 5, 2]),
        (false, true) => ([n, c, h / size, size, w / size, size], [0, 1, 3, 5, 2, 4]),
        (false, false) => ([n, c, h / size, size, w / size, size], [0, 3, 5, 1, 2, 4]),
    };
    let blocks = b.reshape(&x, &dims);
    let turned = b.transpose(&blocks, &order);
    Ok(b.reshape(&turned, &result.dims))
}

/// Trilu: the upper or the lower triangle, zero elsewhere.
pub(super) fn trilu<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = node.input(b, 0)?;
    let k = node.ints(1)?.and_then(|k| k.first().copied()).unwrap_or(0);
    let rank = x.rank();
    if rank < 2 {
        return Err(Error::invalid(format!("a triangle of {}", x.ty)));
    }
    let ty = Type::new(ElementType::S64, x.dims());
    let (row, column) = (b.iota(&ty, rank - 2), b.iota(&ty, rank - 1));
    let from = b.splat(k as f64, &ty)?;
    let from = b.add(&row, &from);
    let is_upper = node.attrs().int("upper", 1)? != 0;
    let keep = b.compare(if is_upper { "GE" } else { "LE" }, &column, &from);
    let zero = b.splat(0.0, &x.ty)?;
    Ok(b.select(&keep, &x, &zero))
}

/// Shape, of extents from `start` up to `end`.
pub(super) fn shape<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let dims = Type::of(node.required_tensor(0)?)?.dims;
    let rank = dims.len() as i64;
    let cut = |at: i64| (if at < 0 { at + rank } else { at }).clamp(0, rank) as usize;
    let (start, end) = (cut(node.attrs().int("start", 0)?), cut(node.attrs().int("end", rank)?));
    let part = dims.get(start..end).unwrap_or_default();
    b.integers(part, &Type::new(ElementType::S64, &[part.len() as i64]))
}

/// Size.
pub(super) fn size<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let n = Type::of(node.required_tensor(0)?)?.n_elements();
    b.integers(&[n], &Type::new(ElementType::S64, &[]))
}

/// Constant, in each of its attributes' forms that holds numbers.
pub(super) fn constant<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let result = node.result(0)?;
    let attrs = node.attrs();
    for name in ["value", "value_int", "value_ints", "value_float", "value_floats"] {
        match attrs.get(name) {
            Some(AttrContent::Tensor(tensor)) => {
                let bytes = tensor.constant().ok_or_else(|| Error::invalid("a constant without content"))?;
                return b.literal(bytes, &Type::of(tensor)?);
            }
            Some(AttrContent::Int(value)) => return b.integers(&[*value], &result),
            Some(AttrContent::Ints(values)) => return b.integers(values, &result),
            Some(AttrContent::Float(value)) => return b.numbers(&[*value], &result),
            Some(AttrContent::Floats(values)) => return b.numbers(values, &result),
            _ => {}
        }
    }
    Err(Error::unsupported("a constant that holds no numbers"))
}

/// ConstantOfShape: one element everywhere; the graph has the extents.
pub(super) fn constant_of_shape<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let result = node.result(0)?;
    match node.attrs().get("value") {
        Some(AttrContent::Tensor(tensor)) => {
            let bytes = tensor.constant().ok_or_else(|| Error::invalid("a constant without content"))?;
            let element = b.literal(bytes, &Type::of(tensor)?)?;
            let element = b.reshape(&element, &[]);
            b.broadcast(&element, &result.dims)
        }
        _ => b.splat(0.0, &result),
    }
}

/// Range: `start + i * delta`; the graph has the number of elements.
pub(super) fn range<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let result = node.result(0)?;
    let (start, delta) = (node.input(b, 0)?, node.input(b, 2)?);
    let scalar = |b: &mut Builder<'g>, value: &Value| {
        let value = b.reshape(value, &[]);
        b.broadcast(&value, &result.dims)
    };
    let (start, delta) = (scalar(b, &start)?, scalar(b, &delta)?);
    let at = b.iota(&result, 0);
    let ahead = b.multiply(&at, &delta);
    Ok(b.add(&start, &ahead))
}

/// EyeLike: ones on a diagonal.
pub(super) fn eye_like<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let result = node.result(0)?;
    if result.rank() != 2 {
        return Err(Error::invalid(format!("a diagonal of {result}")));
    }
    let ty = Type::new(ElementType::S64, &result.dims);
    let (row, column) = (b.iota(&ty, 0), b.iota(&ty, 1));
    let k = b.splat(node.attrs().int("k", 0)? as f64, &ty)?;
    let on = b.add(&row, &k);
    let is_on = b.compare("EQ", &column, &on);
    Ok(b.convert(&is_on, result.element))
}
