//! Ops that give the operand's bytes another shape: Reshape, Squeeze, Unsqueeze, Flatten.

use super::extent::{axes, extent, product, show, unknown, unknown_of};
use super::{Node, invalid};
use crate::onnx_types::dtype_from_onnx;
use crate::types::{Dim, TensorType, dtype_name};
use devbay_plugin_api::sdk::Result;

/// Infers Reshape.
pub fn reshape(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.required(1)?;
    let from = x.shape.as_deref();
    let shape = match (node.constant_ints(1)?, node.n_ints(1)?) {
        (Some(target), _) => Some(reshaped(from, &target, node.flag("allowzero", false)?)?),
        (None, None) => None,
        // A scalar, which has one element.
        (None, Some(0)) => Some(reshaped(from, &[], false)?),
        // A single dimension must hold all elements, but only the run can check its number.
        (None, Some(n)) => Some(unknown_of(n)?),
    };
    node.result(x.dtype, shape)
}

/// The meaning of a number in Reshape's second operand.
enum Target {
    /// The operand's extent in the same place.
    Copied(Dim),
    /// A fixed extent.
    Exactly(usize),
    /// The rest: at most once.
    Rest,
}

fn reshaped(from: Option<&[Dim]>, target: &[i64], zero_is_zero: bool) -> Result<Vec<Dim>> {
    let mut targets = Vec::with_capacity(target.len());
    for (i, &n) in target.iter().enumerate() {
        targets.push(match n {
            -1 => Target::Rest,
            0 if !zero_is_zero => Target::Copied(copied(from, i)?),
            n => Target::Exactly(extent(n.into())?),
        });
    }
    let n_rest = target.iter().filter(|&&n| n == -1).count();
    if n_rest > 1 || (n_rest == 1 && zero_is_zero && target.contains(&0)) {
        return Err(invalid(format!(
            "expected a shape that leaves at most one extent open, found {target:?}"
        )));
    }
    let rest = match from {
        Some(from) => rest(from, target, &targets)?,
        None => Dim::unknown(),
    };
    let dim = |target| match target {
        Target::Copied(dim) => dim,
        Target::Exactly(extent) => Dim::Known(extent),
        Target::Rest => rest.clone(),
    };
    Ok(targets.into_iter().map(dim).collect())
}

fn copied(from: Option<&[Dim]>, i: usize) -> Result<Dim> {
    match from {
        None => Ok(Dim::unknown()),
        Some(from) => from.get(i).cloned().ok_or_else(|| {
            invalid(format!("expected an extent to keep as dimension {i}, found the shape {}", show(from)))
        }),
    }
}

/// Returns the extent that -1 stands for. Copied extents cancel, so that an unknown batch does not hide the rest. Without -1
/// the rest must be 1; this is checked if everything is known.
fn rest(from: &[Dim], target: &[i64], targets: &[Target]) -> Result<Dim> {
    let open = target.contains(&-1);
    let is_copied = |i: usize| matches!(targets.get(i), Some(Target::Copied(_)));
    let left: Vec<Dim> = (0..from.len()).filter(|&i| !is_copied(i)).map(|i| from[i].clone()).collect();
    let (known, unknown): (Vec<Dim>, Vec<Dim>) = left.into_iter().partition(|dim| dim.known().is_some());
    let exactly = |target: &Target| match target {
        Target::Exactly(extent) => Some(Dim::Known(*extent)),
        _ => None,
    };
    let taken: Vec<Dim> = targets.iter().filter_map(exactly).collect();
    let (left, taken) = (product(&known)?, product(&taken)?);
    let (Some(left), Some(taken)) = (left.known(), taken.known()) else {
        return Ok(Dim::unknown());
    };
    let fits = match (unknown.as_slice(), open) {
        ([], true) => {
            if left.checked_rem(taken) == Some(0) {
                return Ok(Dim::Known(left / taken));
            }
            false
        }
        // A copied 0 makes both sides empty, whatever the other extents are.
        ([], false) => left == taken || (0..from.len()).any(|i| is_copied(i) && from[i] == Dim::Known(0)),
        ([dim], true) if left == taken => return Ok(dim.clone()),
        _ => true,
    };
    if fits {
        return Ok(Dim::unknown());
    }
    Err(invalid(format!("expected a shape of as many elements as {}, found {target:?}", show(from))))
}

/// Infers Squeeze: the axes are the second operand, or all of extent 1.
pub fn squeeze(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    let Some(dims) = &x.shape else {
        return node.result(x.dtype, None);
    };
    let shape = match (node.optional(1), node.constant_ints(1)?) {
        (_, Some(list)) => Some(without(dims, &axes(&list, dims.len())?)?),
        (None, None) => dims.iter().all(|dim| dim.known().is_some()).then(|| {
            let mut kept = dims.clone();
            kept.retain(|dim| *dim != Dim::Known(1));
            kept
        }),
        (Some(_), None) => match node.n_ints(1)? {
            Some(n) if n <= dims.len() => Some(unknown(dims.len() - n)),
            Some(n) => {
                return Err(invalid(format!("expected at most {} axes, found {n}", dims.len())));
            }
            None => None,
        },
    };
    node.result(x.dtype, shape)
}

fn without(dims: &[Dim], axes: &[usize]) -> Result<Vec<Dim>> {
    let mut kept = Vec::with_capacity(dims.len());
    for (i, dim) in dims.iter().enumerate() {
        if !axes.contains(&i) {
            kept.push(dim.clone());
        } else if dim.known().is_some_and(|extent| extent != 1) {
            return Err(invalid(format!(
                "expected an extent of 1 as dimension {i}, found the shape {}",
                show(dims)
            )));
        }
    }
    Ok(kept)
}

/// Infers Unsqueeze: the axes are positions in the result.
pub fn unsqueeze(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.required(1)?;
    let Some(dims) = &x.shape else {
        return node.result(x.dtype, None);
    };
    let shape = match (node.constant_ints(1)?, node.n_ints(1)?) {
        (Some(list), _) => {
            let new = axes(&list, dims.len() + list.len())?;
            let mut old = dims.iter();
            let dim = |i| match new.contains(&i) {
                true => Some(Dim::Known(1)),
                false => old.next().cloned(),
            };
            (0..dims.len() + list.len()).map(dim).collect()
        }
        (None, Some(n)) => Some(unknown_of(dims.len().saturating_add(n))?),
        (None, None) => None,
    };
    node.result(x.dtype, shape)
}

/// Infers Flatten: a matrix of the extents before the axis and those from it on.
pub fn flatten(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    let Some(dims) = &x.shape else {
        return node.result(x.dtype, Some(unknown(2)));
    };
    let axis = node.int("axis", 1);
    // The axis may be after the last dimension.
    let at = match axis {
        axis if i128::from(axis) == dims.len() as i128 => dims.len(),
        axis => super::extent::axis(axis, dims.len())?,
    };
    let (rows, columns) = dims.split_at(at);
    node.result(x.dtype, Some(vec![product(rows)?, product(columns)?]))
}

/// Infers BitCast: the same bits as elements of another type of the same width.
pub fn bit_cast(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    let to = dtype_from_onnx(node.int("to", 0))?;
    if to.bits != x.dtype.bits {
        return Err(invalid(format!(
            "expected a type as wide as {}, found {}",
            dtype_name(x.dtype),
            dtype_name(to)
        )));
    }
    node.result(to, x.shape.clone())
}

#[cfg(test)]
mod tests {
    use crate::infer::testing::check;

    #[test]
    fn reshaping() {
        check("Reshape", "f32[2,3,4] i64[2]{6,4}", "f32[6,4]");
        check("Reshape", "f32[2,3,4] i64[2]{-1,4}", "f32[6,4]");
        check("Reshape", "f32[2,3,4] i64[3]{0,-1,2}", "f32[2,6,2]");
        check("Reshape", "f32[1] i64[0]{}", "f32[]");
        check("Reshape", "f32[0,3] i64[2]{-1,3}", "f32[0,3]");
        check("Reshape allowzero=1", "f32[0,3] i64[2]{3,0}", "f32[3,0]");
        check("Reshape", "f32[0,4] i64[2]{0,-1}", "f32[0,4]");
        check(
            "Reshape",
            "f32[2,3] i64[1]{5}",
            "error: expected a shape of as many elements as [2,3], found [5]",
        );
        check("Reshape", "f32[2,3] i64[2]{4,-1}", "error: as many elements");
        check(
            "Reshape",
            "f32[2,3] i64[2]{-1,-1}",
            "error: expected a shape that leaves at most one extent open",
        );
        check("Reshape allowzero=1", "f32[0,3] i64[2]{0,-1}", "error: at most one extent open");
        check("Reshape", "f32[2,3] i64[1]{-2}", "error: negative");
        check(
            "Reshape",
            "f32[6] i64[2]{6,0}",
            "error: expected an extent to keep as dimension 1, found the shape [6]",
        );
    }

    #[test]
    fn reshaping_what_is_partly_known() {
        check("Reshape", "f32[n,3,4] i64[2]{0,-1}", "f32[n,12]");
        check("Reshape", "f32[n,3,4] i64[2]{-1,12}", "f32[n,12]");
        check("Reshape", "f32[n,3,4] i64[2]{-1,6}", "f32[?,6]");
        check("Reshape", "f32[n,3,m] i64[3]{0,0,-1}", "f32[n,3,m]");
        check("Reshape", "f32[n,m] i64[1]{-1}", "f32[?]");
        check("Reshape", "f32[n,3] i64[2]{2,6}", "f32[2,6]");
        check("Reshape", "f32[..] i64[2]{0,-1}", "f32[?,?]");
        check("Reshape", "f32[2,3] i64[3]", "f32[?,?,?]");
        check("Reshape", "f32[2,3] i64[1]", "f32[?]");
        check("Reshape", "f32[0] i64[0]", "error: expected a shape of as many elements as [0], found []");
        check("Reshape", "f32[2,3] i64[?]", "f32[..]");
        check("Reshape", "f32[2,3] i64[..]", "f32[..]");
        check(
            "Reshape",
            "f32[2,3] i64[9223372036854775807]",
            "error: expected a result of at most 64 dimensions",
        );
    }

    #[test]
    fn dimensions_of_one() {
        check("Squeeze", "f32[1,n,1] i64[2]{0,-1}", "f32[n]");
        check("Squeeze", "f32[1,3,1]", "f32[3]");
        check("Squeeze", "f32[1,n]", "f32[..]");
        check("Squeeze", "f32[m,n] i64[1]{0}", "f32[n]");
        check("Squeeze", "f32[m,1,n] i64[1]", "f32[?,?]");
        check(
            "Squeeze",
            "f32[2,3] i64[1]{0}",
            "error: expected an extent of 1 as dimension 0, found the shape [2,3]",
        );
        check("Squeeze", "f32[1] i64[2]", "error: at most 1 axes, found 2");
        check("Unsqueeze", "f32[n,3] i64[2]{0,-1}", "f32[1,n,3,1]");
        check("Unsqueeze", "f32[] i64[1]{0}", "f32[1]");
        check("Unsqueeze", "f32[n] i64[2]", "f32[?,?,?]");
        check("Unsqueeze", "f32[n] i64[?]", "f32[..]");
        check("Unsqueeze", "f32[3] i64[2]{1,-1}", "f32[3,1,1]");
        check("Unsqueeze", "f32[3] i64[2]{2,-1}", "error: expected each axis once");
        check("Unsqueeze", "f32[3] i64[1]{3}", "error: found axis 3");
    }

    #[test]
    fn flattening() {
        check("Flatten", "f32[2,3,4]", "f32[2,12]");
        check("Flatten axis=0", "f32[2,3]", "f32[1,6]");
        check("Flatten axis=2", "f32[2,3]", "f32[6,1]");
        check("Flatten axis=-1", "f32[n,1,4]", "f32[n,4]");
        check("Flatten", "f32[n,m,4]", "f32[n,?]");
        check("Flatten", "f32[..]", "f32[?,?]");
        check("Flatten axis=0", "f32[]", "f32[1,1]");
        check("Flatten axis=3", "f32[2,3]", "error: found axis 3");
        check("Flatten axis=-3", "f32[2,3]", "error: found axis -3");
    }

    #[test]
    fn other_types_of_the_same_bits() {
        check("BitCast to=6", "f32[2,n]", "i32[2,n]");
        check("BitCast to=7", "f32[2,n]", "error: expected a type as wide as f32, found i64");
    }
}
