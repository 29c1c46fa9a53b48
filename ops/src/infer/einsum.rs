//! Einsum: sums of products over the dimensions that an equation names; and Det, of square matrices.

use super::extent::{axis, broadcast, show};
use super::{Node, invalid};
use crate::types::{Dim, TensorType};
use devbay_plugin_api::sdk::Result;

/// Einsum. Dimensions of one name have one extent, of which 1 broadcasts, as those of an ellipsis do.
pub fn einsum(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let n = node.types.len();
    node.required(0)?;
    let dtype = node.shared_dtype(&(0..n).collect::<Vec<_>>())?;
    let equation: String = node.string("equation", "").chars().filter(|&c| c != ' ').collect();
    let broken = |what: &str| invalid(format!("expected an equation {what}, found {equation}"));
    let (terms, result) = match equation.split_once("->") {
        Some((terms, result)) => (terms, Some(result)),
        None => (&*equation, None),
    };
    let terms: Vec<&str> = terms.split(',').collect();
    if terms.len() != n {
        return Err(broken(&format!("with {n} terms")));
    }
    let Some(shapes) =
        (0..n).map(|i| node.required(i).map(|ty| ty.shape.clone())).collect::<Result<Option<Vec<_>>>>()?
    else {
        return node.result(dtype, None);
    };
    let mut named: Vec<(char, Dim, usize)> = Vec::new();
    let mut ellipses: Vec<Vec<Dim>> = Vec::new();
    for (term, dims) in terms.iter().zip(&shapes) {
        let (before, after) = parts(term).ok_or_else(|| broken("of letters"))?;
        let letters = before.len() + after.len();
        let has_ellipsis = term.contains("...");
        if dims.len() < letters || (dims.len() > letters && !has_ellipsis) {
            return Err(broken(&format!("with as many letters as {} has dimensions", show(dims))));
        }
        let inner = before.len()..dims.len() - after.len();
        let letters = before.chars().zip(dims).chain(after.chars().zip(&dims[inner.end..]));
        for (letter, dim) in letters {
            let Some(known) = named.iter_mut().find(|(name, ..)| *name == letter) else {
                named.push((letter, dim.clone(), 1));
                continue;
            };
            let (one, other) = ([known.1.clone()], [dim.clone()]);
            let dims = broadcast(&[Some(&one), Some(&other)])?.unwrap_or_default();
            *known = (letter, dims.into_iter().next().unwrap_or_else(Dim::unknown), known.2 + 1);
        }
        if has_ellipsis {
            ellipses.push(dims[inner].to_vec());
        }
    }
    let lists: Vec<_> = ellipses.iter().map(|dims| Some(&**dims)).collect();
    let of_ellipsis = broadcast(&lists)?.unwrap_or_default();
    let mut shape = Vec::new();
    match result {
        None => {
            // Every name that occurs once, in the order of the alphabet.
            shape.extend(of_ellipsis);
            named.retain(|(.., times)| *times == 1);
            named.sort_unstable_by_key(|(name, ..)| *name);
            shape.extend(named.into_iter().map(|(_, dim, _)| dim));
        }
        Some(result) => {
            let (before, after) = parts(result).ok_or_else(|| broken("of letters"))?;
            let dim = |letter: char| {
                let known = named.iter().find(|(name, ..)| *name == letter);
                known
                    .map(|(_, dim, _)| dim.clone())
                    .ok_or_else(|| broken("whose result has letters of its terms"))
            };
            shape.extend(before.chars().map(dim).collect::<Result<Vec<_>>>()?);
            if result.contains("...") {
                shape.extend(of_ellipsis);
            }
            shape.extend(after.chars().map(dim).collect::<Result<Vec<_>>>()?);
        }
    }
    node.result(dtype, Some(shape))
}

/// The letters before and after the ellipsis of a term; None if it is no term.
fn parts(term: &str) -> Option<(&str, &str)> {
    let (before, after) = term.split_once("...").unwrap_or((term, ""));
    let is_letters = |part: &str| part.chars().all(|c| c.is_ascii_alphabetic());
    (is_letters(before) && is_letters(after)).then_some((before, after))
}

/// Det: one number for each matrix.
pub fn det(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    let Some(dims) = &x.shape else {
        return node.result(x.dtype, None);
    };
    axis(-2, dims.len())?;
    let (outer, matrix) = dims.split_at(dims.len() - 2);
    if matrix[0].known().zip(matrix[1].known()).is_some_and(|(rows, cols)| rows != cols) {
        return Err(invalid(format!("expected square matrices, found {}", show(dims))));
    }
    node.result(x.dtype, Some(outer.to_vec()))
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
