//! Ops that make one number of many: Reduce*, ArgMax and ArgMin; and running sums.

use super::builder::{Builder, Type, Value};
use super::node::{Node, axes, axis};
use super::primitive::{Fold, comparison};
use crate::element::ElementType;
use devbay_plugin_api::sdk::{Error, Result};

/// Half-precision numbers as float32, in which they are summed.
pub(super) fn widened(b: &mut Builder<'_>, x: &Value) -> Value {
    match x.element() {
        ElementType::F16 | ElementType::BF16 => b.convert(x, ElementType::F32),
        _ => x.clone(),
    }
}

/// The mean over axes, which are in the result with an extent of 1.
///
/// # Errors
/// As [`Builder::reduce`].
pub(super) fn mean_keeping(b: &mut Builder<'_>, x: &Value, over: &[usize]) -> Result<Value> {
    let sum = b.reduce_keeping(Fold::Add, x, over)?;
    let n: i64 = over.iter().map(|&axis| x.dims()[axis]).product();
    b.with_number("stablehlo.divide", &sum, n as f64)
}

/// The axes of a reduction: an attribute in older versions, a constant input in newer ones; all without them, or none
/// with `noop_with_empty_axes`.
fn reduced_axes(node: &Node<'_>, rank: usize) -> Result<Vec<usize>> {
    let given = node.ints_or_attr(1, "axes")?.unwrap_or_default();
    if !given.is_empty() {
        return axes(&given, rank);
    }
    let keeps_all = node.attrs().int("noop_with_empty_axes", 0)? != 0;
    Ok(if keeps_all { Vec::new() } else { (0..rank).collect() })
}

/// Reduce*: what is done before, the reduction, and what is done behind it.
pub(super) fn reduce<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let given = node.input(b, 0)?;
    let result = node.result(0)?;
    let over = reduced_axes(node, given.rank())?;
    let fold = match node.op() {
        "ReduceMax" if given.ty.is_bool() => Fold::Or,
        "ReduceMin" if given.ty.is_bool() => Fold::And,
        "ReduceMax" => Fold::Maximum,
        "ReduceMin" => Fold::Minimum,
        "ReduceProd" => Fold::Multiply,
        _ => Fold::Add,
    };
    // The largest of half-precision numbers is one of them; sums are made of wider ones.
    let is_exact = matches!(fold, Fold::Maximum | Fold::Minimum);
    let x = if is_exact { given.clone() } else { widened(b, &given) };
    let mut shift = None;
    let before = match node.op() {
        "ReduceL1" if !x.ty.is_unsigned() => b.unary("stablehlo.abs", &x),
        "ReduceL2" | "ReduceSumSquare" => b.multiply(&x, &x),
        "ReduceLogSumExp" => {
            // The largest is taken out so that nothing overflows; an infinite one would leave NaN.
            let largest = b.reduce_keeping(Fold::Maximum, &x, &over)?;
            let is_finite =
                b.op("stablehlo.is_finite", &[&largest], "", Type::new(ElementType::PRED, largest.dims()));
            let zero = b.splat(0.0, &largest.ty)?;
            let largest = b.select(&is_finite, &largest, &zero);
            let spread = b.broadcast(&largest, x.dims())?;
            let less = b.subtract(&x, &spread);
            shift = Some(largest);
            b.unary("stablehlo.exponential", &less)
        }
        _ => x.clone(),
    };
    let reduced = b.reduce_keeping(fold, &before, &over)?;
    let after = match node.op() {
        "ReduceMean" => {
            let n: i64 = over.iter().map(|&axis| x.dims()[axis]).product();
            b.with_number("stablehlo.divide", &reduced, n as f64)?
        }
        // The root of an integer's squares is calculated as a number of float64, then cut.
        "ReduceL2" if !x.ty.is_float() => {
            let wide = b.convert(&reduced, ElementType::F64);
            b.unary("stablehlo.sqrt", &wide)
        }
        "ReduceL2" => b.unary("stablehlo.sqrt", &reduced),
        "ReduceLogSum" | "ReduceLogSumExp" => {
            if !x.ty.is_float() {
                return Err(Error::unsupported(format!("a logarithm of {}", x.ty)));
            }
            let log = b.unary("stablehlo.log", &reduced);
            match shift {
                Some(shift) => b.add(&log, &shift),
                None => log,
            }
        }
        _ => reduced,
    };
    let after = b.convert(&after, result.element);
    if after.ty.n_elements() != result.n_elements() {
        return Err(Error::invalid(format!("{} over axes {over:?} gives {result}", given.ty)));
    }
    Ok(b.reshape(&after, &result.dims))
}

/// ArgMax and ArgMin: the first place of the largest element, or the last with `select_last_index`. What is no number
/// counts as largest and as smallest too, so that there always is a place.
pub(super) fn arg<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = node.input(b, 0)?;
    let result = node.result(0)?;
    let axis = node.axis(0, x.rank())?;
    let best = if node.op() == "ArgMax" { Fold::Maximum } else { Fold::Minimum };
    let best = b.reduce_keeping(best, &x, &[axis])?;
    let best = b.broadcast(&best, x.dims())?;
    let mut is_best = b.compare("EQ", &x, &best);
    if x.ty.is_float() {
        let is_nan = b.compare("NE", &x, &x);
        is_best = b.binary("stablehlo.or", &is_best, &is_nan);
    }
    let places = Type::new(ElementType::S64, x.dims());
    let at = b.iota(&places, axis);
    let from_last = node.attrs().int("select_last_index", 0)? != 0;
    let (other, fold) = if from_last { (-1, Fold::Maximum) } else { (x.dims()[axis], Fold::Minimum) };
    let other = b.splat(other as f64, &places)?;
    let at = b.select(&is_best, &at, &other);
    let found = b.reduce(fold, &at, &[axis])?;
    Ok(b.reshape(&found, &result.dims))
}

/// CumSum, by adding what lies 1, 2, 4, ... places before: as many ops as the extent has bits.
pub(super) fn cumulative_sum<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let given = node.input(b, 0)?;
    let at = node.ints(1)?.and_then(|axes| axes.first().copied());
    let axis = axis(at.ok_or_else(|| Error::invalid("the axis of CumSum is missing"))?, given.rank())?;
    let is_reverse = node.attrs().int("reverse", 0)? != 0;
    let mut sum = widened(b, &given);
    let zero = b.splat(0.0, &Type::new(sum.element(), &[]))?;
    let extent = given.dims()[axis];
    // Everything moved by some places, zero where nothing comes from.
    let moved = |b: &mut Builder<'g>, x: &Value, places: i64| {
        let mut ends = vec![(0, 0); x.rank()];
        ends[axis] = if is_reverse { (-places, places) } else { (places, -places) };
        b.pad(x, &zero, &ends)
    };
    let mut places = 1;
    while places < extent {
        let before = moved(b, &sum, places);
        sum = b.add(&sum, &before);
        places *= 2;
    }
    if node.attrs().int("exclusive", 0)? != 0 && extent > 0 {
        sum = moved(b, &sum, 1);
    }
    Ok(b.convert(&sum, given.element()))
}

/// TopK along an axis, by a stable sort of elements with their places: of equal elements the first comes first.
pub(super) fn top_k<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Vec<Value>> {
    let x = node.input(b, 0)?;
    let axis = node.axis(-1, x.rank())?;
    let at = if node.has_result(0) { 0 } else { 1 };
    let k = node.result(at)?.dims.get(axis).copied().unwrap_or(0);
    if k > x.dims()[axis] {
        return Err(Error::invalid(format!("the first {k} of {} elements", x.dims()[axis])));
    }
    let places = Type::new(ElementType::S64, x.dims());
    let at = b.iota(&places, axis);
    let scalar = Type::new(x.element(), &[]);
    let direction = if node.attrs().int("largest", 1)? != 0 { "GT" } else { "LT" };
    let attributes = comparison(direction, &x.ty);
    let region = format!(
        "    ^bb0(%x: {scalar}, %y: {scalar}, %i: tensor<i64>, %j: tensor<i64>):\n      \
         %z = \"stablehlo.compare\"(%x, %y) {{{attributes}}} : ({scalar}, {scalar}) -> tensor<i1>\n      \
         \"stablehlo.return\"(%z) : (tensor<i1>) -> ()\n"
    );
    let levels = u64::from(64 - (x.dims()[axis].max(1) as u64).leading_zeros());
    b.flops += x.ty.n_elements() as u64 * levels;
    let attributes = format!("dimension = {axis} : i64, is_stable = true");
    let types = vec![x.ty.clone(), places];
    let sorted = b.op_with_results("stablehlo.sort", &[&x, &at], &region, &attributes, types);
    Ok(sorted.iter().map(|sorted| b.slice_axis(sorted, axis, 0, k)).collect())
}
