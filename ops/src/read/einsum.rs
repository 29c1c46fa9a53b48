//! Einsum: what an equation says of operands whose shapes are known.

use super::{extents, row_major};
use devbay_plugin_api::sdk::{Error, PrepareRequest, Result};

/// A name of the equation: its extent, and elements of each operand from one position to the next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name {
    id: Id,
    /// How many positions it has.
    pub extent: i64,
    /// For each operand; 0 where it does not have the name, or has one position of it.
    pub strides: Vec<i64>,
    /// Times that it occurs among the operands.
    times: usize,
}

/// A letter, or a position of the ellipsis, counted from its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Id {
    Dots(usize),
    Letter(char),
}

/// The names that the result has, in its order, and the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Equation {
    /// Those of the result.
    pub kept: Vec<Name>,
    /// Those that are summed over.
    pub summed: Vec<Name>,
}

impl Equation {
    /// Reads a node's equation.
    ///
    /// # Errors
    /// Invalid for one that does not fit the operands.
    pub fn of<D>(request: &PrepareRequest<'_, D>) -> Result<Self> {
        let said = request.attrs.string("equation", "")?;
        let equation: String = said.chars().filter(|c| !c.is_whitespace()).collect();
        let broken = |what: &str| Error::invalid(format!("the equation {equation} {what}"));
        let (terms, result) = match equation.split_once("->") {
            Some((terms, result)) => (terms, Some(result)),
            None => (&*equation, None),
        };
        let terms: Vec<&str> = terms.split(',').collect();
        let n = request.inputs.len();
        if terms.len() != n {
            return Err(broken(&format!("has {} terms for {n} operands", terms.len())));
        }
        let (mut names, mut dots): (Vec<Name>, usize) = (Vec::new(), 0);
        for (operand, term) in terms.iter().enumerate() {
            let shape = extents(request.required_input(operand)?)?;
            let ids = ids(term, shape.len()).ok_or_else(|| broken(&format!("does not fit {shape:?}")))?;
            // Without elements nothing is read, and extents may be beyond what can be multiplied.
            let strides = if shape.contains(&0) { vec![0; shape.len()] } else { row_major(shape) };
            dots = dots.max(ids.iter().filter(|id| matches!(id, Id::Dots(_))).count());
            for ((id, &extent), stride) in ids.into_iter().zip(shape).zip(strides) {
                let at = names.iter().position(|name| name.id == id).unwrap_or_else(|| {
                    names.push(Name { id, extent: 1, strides: vec![0; n], times: 0 });
                    names.len() - 1
                });
                let name = &mut names[at];
                name.times += 1;
                if extent == 1 {
                    continue;
                }
                if name.extent != 1 && name.extent != extent {
                    return Err(broken(&format!("has one name for extents of {} and {extent}", name.extent)));
                }
                name.extent = extent;
                name.strides[operand] += stride;
            }
        }
        let kept: Vec<Id> = match result {
            Some(result) => {
                let letters = result.replace("...", "").len();
                let rank = letters + if result.contains("...") { dots } else { 0 };
                ids(result, rank).ok_or_else(|| broken("has a result that is no term"))?
            }
            None => {
                // The ellipsis, then every letter that occurs once, in the order of the alphabet.
                let once = |name: &&Name| matches!(name.id, Id::Letter(_)) && name.times == 1;
                let mut letters: Vec<Id> = names.iter().filter(once).map(|name| name.id).collect();
                letters.sort_unstable();
                (0..dots).rev().map(Id::Dots).chain(letters).collect()
            }
        };
        if (1..kept.len()).any(|i| kept[..i].contains(&kept[i])) {
            return Err(broken("has a result with one name twice"));
        }
        let find = |id: &Id| names.iter().find(|name| name.id == *id).cloned();
        let of_result: Option<Vec<Name>> = kept.iter().map(find).collect();
        let of_result = of_result.ok_or_else(|| broken("has a result with a name of no operand"))?;
        names.retain(|name| !kept.contains(&name.id));
        let n_summed = names.iter().try_fold(1i64, |n, name| n.checked_mul(name.extent));
        if n_summed.is_none() && names.iter().all(|name| name.extent > 0) {
            return Err(broken("sums over more positions than can be counted"));
        }
        Ok(Self { kept: of_result, summed: names })
    }

    /// The extents of the result.
    pub fn extents(&self) -> Vec<i64> {
        self.kept.iter().map(|name| name.extent).collect()
    }
}

/// The names of a term for a tensor of so many dimensions; None if they do not fit.
fn ids(term: &str, rank: usize) -> Option<Vec<Id>> {
    let (before, after) = term.split_once("...").unwrap_or((term, ""));
    if !before.chars().chain(after.chars()).all(|c| c.is_ascii_alphabetic()) {
        return None;
    }
    let dots = rank.checked_sub(before.len() + after.len())?;
    if dots > 0 && !term.contains("...") {
        return None;
    }
    let dots = (0..dots).rev().map(Id::Dots);
    Some(before.chars().map(Id::Letter).chain(dots).chain(after.chars().map(Id::Letter)).collect())
}
