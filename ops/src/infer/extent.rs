//! Arithmetic on extents and shapes that may be unknown.
//!
//! Everything is checked, because attributes and constants come from files. Sums and products of file values use `i128`,
//! which an `i64` times an extent cannot overflow, and convert back through [`extent`].

use super::invalid;
pub(super) use crate::axes::{axes, axis, permutation};
use crate::types::Dim;
use devbay_plugin_api::sdk::Result;

/// Extents; None if even the rank is unknown.
pub(super) type Shape = Option<Vec<Dim>>;

/// Converts a computed extent; negative values and those beyond `usize` are errors.
pub(super) fn extent(value: i128) -> Result<usize> {
    usize::try_from(value).map_err(|_| {
        let reason = if value < 0 { "negative" } else { "too large" };
        invalid(format!("the result would have an extent of {value}, which is {reason}"))
    })
}

/// Maximum rank of a tensor: far above that of models, and low enough to allocate a shape.
pub(super) const RANK_MAX: usize = 64;

/// Returns that many unknown extents, for the rank of a known shape.
pub(super) fn unknown(rank: usize) -> Vec<Dim> {
    vec![Dim::unknown(); rank]
}

/// Returns that many unknown extents, for a rank from a file, which may be any number.
pub(super) fn unknown_of(rank: usize) -> Result<Vec<Dim>> {
    if rank > RANK_MAX {
        return Err(invalid(format!("expected a result of at most {RANK_MAX} dimensions, found {rank}")));
    }
    Ok(unknown(rank))
}

/// Combines two mentions of one extent; None if they contradict each other.
pub fn agree(a: &Dim, b: &Dim) -> Option<Dim> {
    match (a, b) {
        (Dim::Known(x), Dim::Known(y)) => (x == y).then(|| a.clone()),
        (Dim::Known(_), Dim::Unknown(_)) => Some(a.clone()),
        (Dim::Unknown(_), Dim::Known(_)) => Some(b.clone()),
        (Dim::Unknown(name), Dim::Unknown(_)) => Some(if name.is_empty() { b.clone() } else { a.clone() }),
    }
}

/// Returns the extent that holds for either of two: their common value, or unknown.
pub fn either(a: &Dim, b: &Dim) -> Dim {
    if a == b { a.clone() } else { Dim::unknown() }
}

/// Combines two mentions of one shape.
pub(super) fn agree_shape(what: &str, a: Shape, b: Shape) -> Result<Shape> {
    let (Some(a), Some(b)) = (&a, &b) else {
        return Ok(a.or(b));
    };
    let agreed = (a.len() == b.len()).then(|| a.iter().zip(b).map(|(a, b)| agree(a, b)).collect()).flatten();
    match agreed {
        Some(shape) => Ok(Some(shape)),
        None => Err(invalid(format!("expected {what} of shape {}, found {}", show(a), show(b)))),
    }
}

/// Returns whether two shapes may be the same.
pub(super) fn agree_all(a: &[Dim], b: &[Dim]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| agree(a, b).is_some())
}

/// Computes ONNX's (NumPy's) multidirectional broadcasting. The rank is known only if all ranks are.
pub(super) fn broadcast(shapes: &[Option<&[Dim]>]) -> Result<Shape> {
    let Some(shapes) = shapes.iter().copied().collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut result = vec![Dim::Known(1); rank];
    for shape in &shapes {
        let offset = rank - shape.len();
        for (to, dim) in result[offset..].iter_mut().zip(*shape) {
            *to = broadcast_dim(to, dim).ok_or_else(|| {
                let list: Vec<_> = shapes.iter().map(|shape| show(shape)).collect();
                invalid(format!("expected shapes that broadcast, found {}", list.join(" and ")))
            })?;
        }
    }
    Ok(Some(result))
}

/// Broadcasts two extents: a 1 yields to the other, even if that is unknown; an unknown extent yields to any other.
fn broadcast_dim(a: &Dim, b: &Dim) -> Option<Dim> {
    match (a, b) {
        (Dim::Known(1), other) | (other, Dim::Known(1)) => Some(other.clone()),
        (Dim::Known(x), Dim::Known(y)) => (x == y).then(|| a.clone()),
        (Dim::Known(_), Dim::Unknown(_)) => Some(a.clone()),
        (Dim::Unknown(_), Dim::Known(_)) => Some(b.clone()),
        (Dim::Unknown(_), Dim::Unknown(_)) => Some(either(a, b)),
    }
}

/// Checks that `from` broadcasts to `to` without changing it, if both are known.
pub(super) fn broadcasts_to(what: &str, from: Option<&[Dim]>, to: Option<&[Dim]>) -> Result<()> {
    let (Some(from), Some(to)) = (from, to) else {
        return Ok(());
    };
    let fits = from.len() <= to.len()
        && from.iter().rev().zip(to.iter().rev()).all(|(from, to)| match (from.known(), to.known()) {
            (Some(from), Some(to)) => from == 1 || from == to,
            _ => true,
        });
    if fits {
        return Ok(());
    }
    Err(invalid(format!("expected {what} that broadcasts to {}, found {}", show(to), show(from))))
}

/// Adds a number to an extent; it keeps its name if that is 0.
pub(super) fn plus(dim: &Dim, n: i128) -> Result<Dim> {
    match dim.known() {
        _ if n == 0 => Ok(dim.clone()),
        Some(known) => Ok(Dim::Known(extent(known as i128 + n)?)),
        None => Ok(Dim::unknown()),
    }
}

/// Multiplies an extent; it keeps its name if the factor is 1.
pub(super) fn times(dim: &Dim, n: usize) -> Result<Dim> {
    match dim.known() {
        _ if n == 1 => Ok(dim.clone()),
        _ if n == 0 => Ok(Dim::Known(0)),
        Some(known) => match known.checked_mul(n) {
            Some(product) => Ok(Dim::Known(product)),
            None => Err(invalid(format!(
                "the result would have an extent of {known} times {n}, which is too large"
            ))),
        },
        None => Ok(Dim::unknown()),
    }
}

/// Returns the sum of extents; it keeps its name if all the others are 0.
pub(super) fn sum(dims: &[&Dim]) -> Result<Dim> {
    let mut total = 0i128;
    let mut unknowns = Vec::new();
    for &dim in dims {
        match dim.known() {
            Some(known) => total += known as i128,
            None => unknowns.push(dim),
        }
    }
    match (unknowns.as_slice(), total) {
        ([], _) => Ok(Dim::Known(extent(total)?)),
        ([dim], 0) => Ok((*dim).clone()),
        _ => Ok(Dim::unknown()),
    }
}

/// Returns the product of extents; it keeps its name if all the others are 1.
pub(super) fn product(dims: &[Dim]) -> Result<Dim> {
    let mut known = Dim::Known(1);
    let mut unknowns = Vec::new();
    for dim in dims {
        match dim.known() {
            Some(extent) => known = times(&known, extent)?,
            None => unknowns.push(dim),
        }
    }
    match (unknowns.as_slice(), known) {
        ([], known) => Ok(known),
        (_, Dim::Known(0)) => Ok(Dim::Known(0)),
        ([dim], Dim::Known(1)) => Ok((*dim).clone()),
        _ => Ok(Dim::unknown()),
    }
}

/// Formats a shape for messages.
pub(super) fn show(shape: &[Dim]) -> String {
    let dims: Vec<_> = shape.iter().map(Dim::to_string).collect();
    format!("[{}]", dims.join(","))
}
