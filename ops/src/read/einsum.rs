//! Reads the equation of an Einsum. Inference needs names; kernels also need extents and strides.

use super::{extents, row_major};
use devbay_plugin_api::sdk::{Error, PrepareRequest, Result};
use std::fmt::Display;

/// A letter, or a position of the ellipsis, counted from its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Id {
    /// A position of the ellipsis.
    Dots(usize),
    /// A letter.
    Letter(char),
}

/// An equation, one term per operand.
pub struct Terms {
    equation: String,
}

/// The names of the operands' dimensions, and of the result's.
pub struct Ids {
    /// Those of each operand.
    pub operands: Vec<Vec<Id>>,
    /// Those of the result.
    pub result: Vec<Id>,
}

impl Terms {
    /// Splits an equation for `n` operands.
    ///
    /// # Errors
    /// Invalid for a wrong number of terms.
    pub fn of(equation: &str, n: usize) -> Result<Self> {
        let terms = Self { equation: equation.chars().filter(|&c| c != ' ').collect() };
        match terms.sides().0.split(',').count() {
            found if found == n => Ok(terms),
            _ => Err(terms.broken(&format!("with {n} terms"))),
        }
    }

    /// Returns the terms of the operands, and that of the result, if present.
    fn sides(&self) -> (&str, Option<&str>) {
        match self.equation.split_once("->") {
            Some((terms, result)) => (terms, Some(result)),
            None => (&self.equation, None),
        }
    }

    fn broken(&self, expected: &str) -> Error {
        Error::invalid(format!("expected an equation {expected}, found {}", self.equation))
    }

    /// Returns the names, for operands of these extents.
    ///
    /// # Errors
    /// Invalid if a term is not made of letters and at most one ellipsis, if its length is not its operand's rank, and for a
    /// result with other letters.
    pub fn ids<D: Display>(&self, shapes: &[&[D]]) -> Result<Ids> {
        let (terms, result) = self.sides();
        let mut operands = Vec::new();
        // Count the occurrences of each letter.
        let mut times = [0usize; 128];
        let mut n_dots = 0;
        for (term, dims) in terms.split(',').zip(shapes) {
            let (before, after) = self.letters(term)?;
            let n_letters = before.len() + after.len();
            if dims.len() < n_letters || (dims.len() > n_letters && !term.contains("...")) {
                let shape = dims.iter().map(D::to_string).collect::<Vec<_>>().join(",");
                return Err(self.broken(&format!("with as many letters as [{shape}] has dimensions")));
            }
            n_dots = n_dots.max(dims.len() - n_letters);
            before.bytes().chain(after.bytes()).for_each(|letter| times[usize::from(letter)] += 1);
            operands.push(ids(before, dims.len() - n_letters, after));
        }
        let result = match result {
            Some(term) => {
                let (before, after) = self.letters(term)?;
                if before.bytes().chain(after.bytes()).any(|letter| times[usize::from(letter)] == 0) {
                    return Err(self.broken("whose result has letters of its terms"));
                }
                ids(before, if term.contains("...") { n_dots } else { 0 }, after)
            }
            None => {
                // The implicit result has the ellipsis, then the letters that occur once, in alphabetical order.
                let once = ('A'..='z').filter(|&letter| times[letter as usize] == 1).map(Id::Letter);
                (0..n_dots).rev().map(Id::Dots).chain(once).collect()
            }
        };
        Ok(Ids { operands, result })
    }

    /// Returns the letters before and after the ellipsis of a term.
    fn letters<'t>(&self, term: &'t str) -> Result<(&'t str, &'t str)> {
        let (before, after) = term.split_once("...").unwrap_or((term, ""));
        match before.chars().chain(after.chars()).all(|c| c.is_ascii_alphabetic()) {
            true => Ok((before, after)),
            false => Err(self.broken("of letters")),
        }
    }
}

/// Returns the names of a term, with an ellipsis of `n_dots` dimensions.
fn ids(before: &str, n_dots: usize, after: &str) -> Vec<Id> {
    let dots = (0..n_dots).rev().map(Id::Dots);
    before.chars().map(Id::Letter).chain(dots).chain(after.chars().map(Id::Letter)).collect()
}

/// A name of the equation: its extent, and its stride in each operand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name {
    id: Id,
    /// Its extent.
    pub extent: i64,
    /// Its stride per operand, in elements; 0 if the operand lacks the name, or has an extent of 1 for it.
    pub strides: Vec<i64>,
}

/// The names of the result, in its order, and the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Equation {
    /// Names of the result.
    pub kept: Vec<Name>,
    /// Names that are summed over.
    pub summed: Vec<Name>,
}

impl Equation {
    /// Reads a node's equation.
    ///
    /// # Errors
    /// Invalid for an equation that does not fit the operands.
    pub fn of<D>(request: &PrepareRequest<'_, D>) -> Result<Self> {
        let n = request.inputs.len();
        let terms = Terms::of(request.attrs.string("equation", "")?, n)?;
        let broken = |what: &str| Error::invalid(format!("the equation {} {what}", terms.equation));
        let shapes: Vec<&[i64]> =
            (0..n).map(|i| request.required_input(i).and_then(extents)).collect::<Result<_>>()?;
        let ids = terms.ids(&shapes)?;
        let mut names: Vec<Name> = Vec::new();
        for (operand, (ids, shape)) in ids.operands.into_iter().zip(shapes).enumerate() {
            // Without elements nothing is read, and the product of the extents may overflow.
            let strides = if shape.contains(&0) { vec![0; shape.len()] } else { row_major(shape) };
            for ((id, &extent), stride) in ids.into_iter().zip(shape).zip(strides) {
                let at = names.iter().position(|name| name.id == id).unwrap_or_else(|| {
                    names.push(Name { id, extent: 1, strides: vec![0; n] });
                    names.len() - 1
                });
                let name = &mut names[at];
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
        let kept = ids.result;
        if (1..kept.len()).any(|i| kept[..i].contains(&kept[i])) {
            return Err(broken("has a result with one name twice"));
        }
        let find = |id: &Id| names.iter().find(|name| name.id == *id).cloned();
        let of_result = kept.iter().filter_map(find).collect();
        names.retain(|name| !kept.contains(&name.id));
        let n_summed = names.iter().try_fold(1i64, |n, name| n.checked_mul(name.extent));
        if n_summed.is_none() && names.iter().all(|name| name.extent > 0) {
            return Err(broken("sums over more positions than can be counted"));
        }
        Ok(Self { kept: of_result, summed: names })
    }

    /// Returns the extents of the result.
    pub fn extents(&self) -> Vec<i64> {
        self.kept.iter().map(|name| name.extent).collect()
    }
}
