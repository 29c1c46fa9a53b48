//! Ops that take elements from places that a tensor names, or put them there.

use super::builder::{Builder, Type, Value, array, list};
use super::node::{Node, axis};
use super::primitive::{Fold, region};
use crate::element::ElementType;
use devbay_plugin_api::sdk::{Error, Result};

/// Places counted from the front: negative ones count from the back of `extent` elements.
fn from_front(b: &mut Builder<'_>, places: &Value, extent: i64) -> Result<Value> {
    if places.ty.is_unsigned() {
        return Ok(places.clone());
    }
    let is_negative = b.compare_number("LT", places, 0.0)?;
    let moved = b.with_number("stablehlo.add", places, extent as f64)?;
    Ok(b.select(&is_negative, &moved, places))
}

/// Bounds of places along axes: negative ones count from the back.
fn bounds(extents: &[i64]) -> Vec<(i64, i64)> {
    extents.iter().map(|&extent| (-extent, extent - 1)).collect()
}

/// Places that a gather or scatter goes to: the last axis of `places` has one number for each of the first axes of the
/// operand.
fn gather(b: &mut Builder<'_>, x: &Value, places: &Value, named: &[usize], dims: &[i64]) -> Value {
    b.expect(x.ty.n_elements() > 0, "taking elements", &[x]);
    let mut sizes = x.dims().to_vec();
    for &axis in named {
        sizes[axis] = 1;
    }
    let n_places = places.rank() - 1;
    let named: Vec<i64> = named.iter().map(|&axis| axis as i64).collect();
    // The dimensions of a slice follow the axes of the places.
    let offset: Vec<i64> = (n_places as i64..dims.len() as i64).collect();
    let attributes = format!(
        "dimension_numbers = #stablehlo.gather<offset_dims = {}, collapsed_slice_dims = {}, start_index_map = {}, \
         index_vector_dim = {n_places}>, slice_sizes = {}, indices_are_sorted = false",
        list(&offset),
        list(&named),
        list(&named),
        array(&sizes),
    );
    b.op("stablehlo.gather", &[x, places], &attributes, Type::new(x.element(), dims))
}

/// Elements along an axis at the places that `places` names, whose axes come in its stead. Places are not negative.
pub(super) fn take(b: &mut Builder<'_>, x: &Value, places: &Value, axis: usize) -> Value {
    b.expect(x.dims()[axis] > 0, "taking elements", &[x]);
    let mut sizes = x.dims().to_vec();
    sizes[axis] = 1;
    let n = places.rank();
    let dims = [&x.dims()[..axis], places.dims(), &x.dims()[axis + 1..]].concat();
    let offset: Vec<i64> = (0..axis).chain(axis + n..dims.len()).map(|axis| axis as i64).collect();
    let attributes = format!(
        "dimension_numbers = #stablehlo.gather<offset_dims = {}, collapsed_slice_dims = [{axis}], \
         start_index_map = [{axis}], index_vector_dim = {n}>, slice_sizes = {}, indices_are_sorted = false",
        list(&offset),
        array(&sizes),
    );
    b.op("stablehlo.gather", &[x, places], &attributes, Type::new(x.element(), &dims))
}

/// Gather. One constant place is a slice.
pub(super) fn gather_axis<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = node.input(b, 0)?;
    let axis = node.axis(0, x.rank())?;
    let extent = x.dims()[axis];
    let places = node.required_tensor(1)?;
    let single = if places.n_elements() == 1 { places.constant_ints()? } else { None };
    if let Some(&[place]) = single.as_deref() {
        let place = if place < 0 { place + extent } else { place };
        if !(0..extent).contains(&place) {
            return Err(Error::invalid(format!("place {place} of {extent}")));
        }
        let part = b.slice_axis(&x, axis, place, place + 1);
        let dims = [&x.dims()[..axis], places.shape(), &x.dims()[axis + 1..]].concat();
        return Ok(b.reshape(&part, &dims));
    }
    let given = node.input(b, 1)?;
    b.check_range(node, "index", &given, places, &bounds(&[extent]))?;
    let places = from_front(b, &given, extent)?;
    Ok(take(b, &x, &places, axis))
}

/// For each element of `places` where it goes in an operand of the same rank: its own place, except along `axis`. The
/// last axis of the result has the coordinates.
fn coordinates(b: &mut Builder<'_>, places: &Value, axis: usize) -> Value {
    let each = [places.dims(), &[1]].concat();
    let parts: Vec<Value> = (0..places.rank())
        .map(|one| {
            let part = if one == axis { places.clone() } else { b.iota(&places.ty, one) };
            b.reshape(&part, &each)
        })
        .collect();
    b.concatenate(&parts.iter().collect::<Vec<_>>(), places.rank())
}

pub(super) fn gather_elements<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let (x, places) = (node.input(b, 0)?, node.input(b, 1)?);
    let axis = node.axis(0, x.rank())?;
    if places.rank() != x.rank() {
        return Err(Error::invalid(format!("places {} in {}", places.ty, x.ty)));
    }
    b.check_range(node, "index", &places, node.required_tensor(1)?, &bounds(&[x.dims()[axis]]))?;
    let places = from_front(b, &places, x.dims()[axis])?;
    let at = coordinates(b, &places, axis);
    let all: Vec<usize> = (0..x.rank()).collect();
    Ok(gather(b, &x, &at, &all, places.dims()))
}

/// Coordinates counted from the front, each along the axis of the operand that it belongs to.
fn coordinates_from_front(
    node: &Node<'_>,
    b: &mut Builder<'_>,
    places: &Value,
    x: &Type,
    first: usize,
) -> Result<Value> {
    let n = places.dims().last().copied().unwrap_or(0);
    let extents = x.dims.get(first..first + n as usize);
    let extents = extents.ok_or_else(|| Error::invalid(format!("places {} in {x}", places.ty)))?;
    b.check_range(node, "index", places, node.required_tensor(1)?, &bounds(extents))?;
    let line = b.integers(extents, &Type::new(places.element(), &[n]))?;
    let extents = b.broadcast(&line, places.dims())?;
    let moved = b.add(places, &extents);
    let is_negative = b.compare_number("LT", places, 0.0)?;
    Ok(b.select(&is_negative, &moved, places))
}

pub(super) fn gather_nd<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let (x, places) = (node.input(b, 0)?, node.input(b, 1)?);
    let n_batch = usize::try_from(node.attrs().int("batch_dims", 0)?).unwrap_or(usize::MAX);
    if n_batch >= places.rank() || n_batch >= x.rank() {
        return Err(Error::invalid(format!("{n_batch} batch axes of {}", places.ty)));
    }
    let mut at = coordinates_from_front(node, b, &places, &x.ty, n_batch)?;
    let last = places.rank() - 1;
    if n_batch > 0 {
        // The batch axes' own places come first.
        let mut each = places.ty.clone();
        each.dims[last] = 1;
        let mut parts: Vec<Value> = (0..n_batch).map(|axis| b.iota(&each, axis)).collect();
        parts.push(at);
        at = b.concatenate(&parts.iter().collect::<Vec<_>>(), last);
    }
    let n_named = at.dims()[last] as usize;
    let dims = [&places.dims()[..last], &x.dims()[n_named..]].concat();
    let named: Vec<usize> = (0..n_named).collect();
    Ok(gather(b, &x, &at, &named, &dims))
}

/// Returns the fold for elements that meet, by ONNX's name; with None the last to be written stays.
fn reduction(node: &Node<'_>) -> Result<Option<Fold>> {
    Ok(match node.attrs().string("reduction", "none")? {
        "none" => None,
        "add" => Some(Fold::Add),
        "mul" => Some(Fold::Multiply),
        "max" => Some(Fold::Maximum),
        "min" => Some(Fold::Minimum),
        other => return Err(Error::invalid(format!("reduction {other}"))),
    })
}

/// Puts `updates` where `at` says, whose last axis has a coordinate for each of the first axes of `x`.
fn scatter(b: &mut Builder<'_>, x: &Value, at: &Value, updates: &Value, fold: Option<Fold>) -> Value {
    let n_places = at.rank() - 1;
    let named: Vec<i64> = (0..at.dims()[n_places]).collect();
    let window: Vec<i64> = (n_places as i64..updates.rank() as i64).collect();
    let attributes = format!(
        "scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = {}, inserted_window_dims = {}, \
         scatter_dims_to_operand_dims = {}, index_vector_dim = {n_places}>, indices_are_sorted = false, \
         unique_indices = false",
        list(&window),
        list(&named),
        list(&named),
    );
    b.flops += updates.ty.n_elements() as u64;
    b.expect(x.element() == updates.element(), "a scatter", &[x, updates]);
    b.op_with_region("stablehlo.scatter", &[x, at, updates], &region(&x.ty, fold), &attributes, x.ty.clone())
}

pub(super) fn scatter_nd<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let (x, places, updates) = (node.input(b, 0)?, node.input(b, 1)?, node.input(b, 2)?);
    let last = places.rank().checked_sub(1).ok_or_else(|| Error::invalid("a scalar of places"))?;
    let at = coordinates_from_front(node, b, &places, &x.ty, 0)?;
    let expected = [&places.dims()[..last], &x.dims()[places.dims()[last] as usize..]].concat();
    if updates.dims() != expected {
        return Err(Error::invalid(format!("updates {} at {} of {}", updates.ty, places.ty, x.ty)));
    }
    Ok(scatter(b, &x, &at, &updates, reduction(node)?))
}

/// ScatterElements, and Scatter of opset 9.
pub(super) fn scatter_elements<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let (x, places, updates) = (node.input(b, 0)?, node.input(b, 1)?, node.input(b, 2)?);
    let axis = node.axis(0, x.rank())?;
    if places.rank() != x.rank() || updates.dims() != places.dims() {
        return Err(Error::invalid(format!("updates {} at {} of {}", updates.ty, places.ty, x.ty)));
    }
    b.check_range(node, "index", &places, node.required_tensor(1)?, &bounds(&[x.dims()[axis]]))?;
    let places = from_front(b, &places, x.dims()[axis])?;
    let at = coordinates(b, &places, axis);
    Ok(scatter(b, &x, &at, &updates, reduction(node)?))
}

/// OneHot: the second value where a place is named, the first elsewhere. The graph has the depth.
pub(super) fn one_hot<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let (places, values) = (node.input(b, 0)?, node.input(b, 2)?);
    let result = node.result(0)?;
    let axis = node.axis(-1, result.rank())?;
    let depth = result.dims[axis];
    if places.rank() + 1 != result.rank() || values.dims() != [2] {
        return Err(Error::invalid(format!("places {} of {result}", places.ty)));
    }
    // Numbers of other types name the place that they are equal to.
    let places = if places.ty.is_float() { b.convert(&places, ElementType::S64) } else { places };
    let places = from_front(b, &places, depth)?;
    let axes: Vec<usize> = (0..result.rank()).filter(|&one| one != axis).collect();
    let places = b.broadcast_in_dim(&places, &axes, &result.dims);
    let own = b.iota(&places.ty, axis);
    let is_named = b.compare("EQ", &places, &own);
    let mut value = |at| -> Value {
        let one = b.slice_axis(&values, 0, at, at + 1);
        let one = b.reshape(&one, &[]);
        b.broadcast_in_dim(&one, &[], &result.dims)
    };
    let (off, on) = (value(0), value(1));
    Ok(b.select(&is_named, &on, &off))
}

/// ReverseSequence: the first so many elements of each sequence backward.
pub(super) fn reverse_sequence<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let (x, lengths) = (node.input(b, 0)?, node.input(b, 1)?);
    let time = axis(node.attrs().int("time_axis", 0)?, x.rank())?;
    let batch = axis(node.attrs().int("batch_axis", 1)?, x.rank())?;
    let ty = Type::new(ElementType::S64, x.dims());
    b.check_range(node, "length", &lengths, node.required_tensor(1)?, &[(0, x.dims()[time])])?;
    let lengths = b.convert(&lengths, ElementType::S64);
    let lengths = b.broadcast_in_dim(&lengths, &[batch], x.dims());
    let at = b.iota(&ty, time);
    let last = b.with_number("stablehlo.subtract", &lengths, 1.0)?;
    let other = b.subtract(&last, &at);
    let is_within = b.compare("LT", &at, &lengths);
    let from = b.select(&is_within, &other, &at);
    let from = coordinates(b, &from, time);
    let all: Vec<usize> = (0..x.rank()).collect();
    Ok(gather(b, &x, &from, &all, x.dims()))
}
