//! Axes as nodes name them, for inference and for plugins.

use devbay_plugin_api::sdk::{Error, Result};

/// Returns the position of an axis, which counts from the back if it is negative.
///
/// # Errors
/// Invalid if there is none.
pub fn axis(axis: i64, rank: usize) -> Result<usize> {
    let counted = if axis < 0 { i128::from(axis) + rank as i128 } else { i128::from(axis) };
    match usize::try_from(counted) {
        Ok(position) if position < rank => Ok(position),
        _ => Err(Error::invalid(format!("expected an axis of {rank} dimensions, found axis {axis}"))),
    }
}

/// Positions of axes, none of them twice.
///
/// # Errors
/// As [`axis`], and invalid for one that is there twice.
pub(crate) fn axes(list: &[i64], rank: usize) -> Result<Vec<usize>> {
    let mut positions = Vec::with_capacity(list.len());
    for &number in list {
        let position = axis(number, rank)?;
        if positions.contains(&position) {
            return Err(Error::invalid(format!(
                "expected each axis once, found {list:?} of {rank} dimensions"
            )));
        }
        positions.push(position);
    }
    Ok(positions)
}

/// An order of all axes.
///
/// # Errors
/// As [`axes`], and invalid for a list that lacks some, and for axes that count from the back.
pub(crate) fn permutation(perm: &[i64], rank: usize) -> Result<Vec<usize>> {
    let positions = axes(perm, rank)?;
    if positions.len() != rank || perm.iter().any(|&i| i < 0) {
        return Err(Error::invalid(format!("expected a permutation of {rank} dimensions, found {perm:?}")));
    }
    Ok(positions)
}
