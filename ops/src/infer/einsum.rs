//! Einsum, sums of products over the named dimensions of an equation; and Det, of square matrices.

use super::extent::{axis, broadcast, show};
use super::{Node, invalid};
use crate::read::{Id, Terms};
use crate::types::{Dim, TensorType};
use devbay_plugin_api::sdk::Result;

/// Infers Einsum. Dimensions of one name have one extent, and an extent of 1 broadcasts, as do those of an ellipsis.
pub fn einsum(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let n = node.types.len();
    node.required(0)?;
    let dtype = node.shared_dtype(&(0..n).collect::<Vec<_>>())?;
    let terms = Terms::of(node.string("equation", ""), n)?;
    let Some(shapes) =
        (0..n).map(|i| Ok(node.required(i)?.shape.as_deref())).collect::<Result<Option<Vec<&[Dim]>>>>()?
    else {
        return node.result(dtype, None);
    };
    let ids = terms.ids(&shapes)?;
    let mut letters: Vec<(Id, Dim)> = Vec::new();
    let mut ellipses: Vec<Option<&[Dim]>> = Vec::new();
    for (ids, &dims) in ids.operands.iter().zip(&shapes) {
        for (&id, dim) in ids.iter().zip(dims).filter(|(id, _)| matches!(id, Id::Letter(_))) {
            match letters.iter_mut().find(|(known, _)| *known == id) {
                None => letters.push((id, dim.clone())),
                Some((_, known)) => {
                    let one =
                        broadcast(&[Some(std::slice::from_ref(known)), Some(std::slice::from_ref(dim))])?;
                    *known = one.and_then(|dims| dims.into_iter().next()).unwrap_or_else(Dim::unknown);
                }
            }
        }
        let is_dots = |id: &Id| matches!(id, Id::Dots(_));
        let first = ids.iter().position(is_dots).unwrap_or(0);
        ellipses.push(Some(&dims[first..][..ids.iter().filter(|id| is_dots(id)).count()]));
    }
    let ellipsis = broadcast(&ellipses)?.unwrap_or_default();
    let dim = |id: &Id| match *id {
        Id::Dots(from_end) => ellipsis.iter().nth_back(from_end),
        letter => letters.iter().find(|(known, _)| *known == letter).map(|(_, dim)| dim),
    };
    node.result(dtype, Some(ids.result.iter().filter_map(dim).cloned().collect()))
}

/// Infers Det: one number per matrix.
pub fn det(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    let Some(dims) = &x.shape else {
        return node.result(x.dtype, None);
    };
    let outer = around_squares(dims)?;
    node.result(x.dtype, Some(outer.to_vec()))
}

/// Infers Inverse: square matrices, as its operand.
pub fn inverse(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    if let Some(dims) = &x.shape {
        around_squares(dims)?;
    }
    node.result(x.dtype, x.shape.clone())
}

/// Returns the dimensions before those of the square matrices.
fn around_squares(dims: &[Dim]) -> Result<&[Dim]> {
    axis(-2, dims.len())?;
    let (outer, matrix) = dims.split_at(dims.len() - 2);
    match matrix[0].known().zip(matrix[1].known()) {
        Some((rows, cols)) if rows != cols => {
            Err(invalid(format!("expected square matrices, found {}", show(dims))))
        }
        _ => Ok(outer),
    }
}

#[cfg(test)]
mod tests {
    use crate::infer::testing::check;

    #[test]
    fn equations() {
        check("Einsum equation=ij,jk->ik", "f32[2,n] f32[3,4]", "f32[2,4]");
        check("Einsum equation=ij,jk", "f32[2,n] f32[3,4]", "f32[2,4]");
        check("Einsum equation=...ii->...i", "f32[2,n,5,5]", "f32[2,n,5]");
        check("Einsum equation=b...j,...jk->b...k", "f32[7,2,3] f32[2,3,4]", "f32[7,2,4]");
        check("Einsum equation=ba", "f32[2,3]", "f32[3,2]");
        check("Einsum equation=i,i->", "f32[3] f32[3]", "f32[]");
        check("Einsum equation=i,i->i", "f32[3] f32[4]", "error: expected shapes that broadcast");
        check("Einsum equation=ij->i", "f32[3]", "error: as many letters as [3]");
        check("Einsum equation=i->j", "f32[3]", "error: letters of its terms");
        check("Einsum equation=i", "f32[3] f32[3]", "error: with 2 terms");
        check("Einsum equation=i.j->i", "f32[3,3]", "error: of letters");
    }

    #[test]
    fn determinants() {
        check("Det", "f32[n,3,3]", "f32[n]");
        check("Det", "f32[3,4]", "error: expected square matrices");
        check("Det", "f32[3]", "error: axis -2");
    }
}
