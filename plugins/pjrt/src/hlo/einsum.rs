//! Einsum: sums of products named by letters.

use super::builder::{Builder, Value};
use super::node::Node;
use super::primitive::{DotDims, Fold};
use devbay_plugin_api::sdk::{Error, Result};

/// Letters of an operand's axes.
type Letters = Vec<char>;

/// The letters of the operands and of the result. Without an arrow the result has those that stand once, in the order of
/// the alphabet.
fn parse(equation: &str, n_operands: usize) -> Result<(Vec<Letters>, Letters)> {
    let text: String = equation.chars().filter(|letter| !letter.is_whitespace()).collect();
    let (left, right) = match text.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (text.as_str(), None),
    };
    let operands: Vec<Letters> = left.split(',').map(|term| term.chars().collect()).collect();
    let all = || operands.iter().flatten();
    let result: Letters = match right {
        Some(right) => right.chars().collect(),
        None => {
            let mut once: Letters =
                all().copied().filter(|a| all().filter(|b| *b == a).count() == 1).collect();
            once.sort_unstable();
            once
        }
    };
    let is_letter = |letter: &char| letter.is_ascii_alphabetic();
    if operands.len() != n_operands || !all().all(is_letter) || !result.iter().all(is_letter) {
        return Err(Error::unsupported(format!("equation {equation} of {n_operands} operands")));
    }
    for term in operands.iter().chain([&result]) {
        if term.iter().enumerate().any(|(at, letter)| term[..at].contains(letter)) {
            return Err(Error::unsupported(format!("equation {equation}, with a letter twice in a term")));
        }
    }
    if result.iter().any(|letter| !all().any(|other| other == letter)) {
        return Err(Error::invalid(format!("equation {equation}: a letter comes from nowhere")));
    }
    Ok((operands, result))
}

/// Sums over the letters that are no longer needed.
fn summed(b: &mut Builder<'_>, x: &Value, letters: &mut Letters, needed: &[char]) -> Result<Value> {
    let gone: Vec<usize> = (0..letters.len()).filter(|&at| !needed.contains(&letters[at])).collect();
    letters.retain(|letter| needed.contains(letter));
    b.reduce(Fold::Add, x, &gone)
}

pub(super) fn einsum<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let inputs = node.all_inputs(b)?;
    let (terms, result) = parse(node.attrs().string("equation", "")?, inputs.len())?;
    if inputs.iter().zip(&terms).any(|(input, term)| input.rank() != term.len()) {
        return Err(Error::invalid("terms of the equation with other ranks than the operands"));
    }
    let needed_behind =
        |at: usize| -> Letters { terms[at + 1..].iter().flatten().chain(&result).copied().collect() };
    let mut have = terms[0].clone();
    let mut value = inputs[0].clone();
    value = summed(b, &value, &mut have, &needed_behind(0))?;
    for at in 1..inputs.len() {
        let later = needed_behind(at);
        let mut own = terms[at].clone();
        let needed: Letters = have.iter().chain(&later).copied().collect();
        let other = summed(b, &inputs[at], &mut own, &needed)?;
        let place = |letters: &[char], letter: char| letters.iter().position(|&one| one == letter);
        let shared: Letters = have.iter().copied().filter(|letter| own.contains(letter)).collect();
        let (batch, contract): (Letters, Letters) = shared.iter().partition(|letter| later.contains(letter));
        let places = |letters: &[char], of: &[char]| -> Vec<usize> {
            of.iter().filter_map(|&letter| place(letters, letter)).collect()
        };
        let axes = DotDims {
            lhs_batch: &places(&have, &batch),
            rhs_batch: &places(&own, &batch),
            lhs_contract: &places(&have, &contract),
            rhs_contract: &places(&own, &contract),
        };
        let fits = |&letter: &char| {
            let of = |value: &Value, letters: &[char]| place(letters, letter).map(|axis| value.dims()[axis]);
            of(&value, &have) == of(&other, &own)
        };
        if !shared.iter().all(fits) {
            return Err(Error::unsupported("an equation with extents that are broadcast"));
        }
        value = b.dot_general(&value, &other, &axes);
        let rest = |letters: &[char]| -> Letters {
            letters.iter().copied().filter(|letter| !shared.contains(letter)).collect()
        };
        have = [batch, rest(&have), rest(&own)].concat();
        // Letters that only the two had, and that the result has not.
        value = summed(b, &value, &mut have, &later)?;
    }
    let order: Option<Vec<usize>> =
        result.iter().map(|letter| have.iter().position(|one| one == letter)).collect();
    let order = order.ok_or_else(|| Error::internal("a letter of the result was lost"))?;
    Ok(b.transpose(&value, &order))
}
