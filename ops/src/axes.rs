//! Resolves the axes of nodes, for inference and for plugins.

use devbay_plugin_api::sdk::{Error, Result};

/// Returns the position of an axis; a negative one counts from the end.
///
/// # Errors
/// Invalid if the axis does not exist.
pub fn axis(axis: i64, rank: usize) -> Result<usize> {
    let counted = if axis < 0 { i128::from(axis) + rank as i128 } else { i128::from(axis) };
    match usize::try_from(counted) {
        Ok(position) if position < rank => Ok(position),
        _ => Err(Error::invalid(format!("expected an axis of {rank} dimensions, found axis {axis}"))),
    }
}

/// Returns the positions of distinct axes.
///
/// # Errors
/// As [`axis`], and invalid for a duplicate.
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

/// Returns a permutation of all axes.
///
/// # Errors
/// As [`axes`], and invalid for a list that lacks axes, and for negative axes.
pub(crate) fn permutation(perm: &[i64], rank: usize) -> Result<Vec<usize>> {
    let positions = axes(perm, rank)?;
    if positions.len() != rank || perm.iter().any(|&i| i < 0) {
        return Err(Error::invalid(format!("expected a permutation of {rank} dimensions, found {perm:?}")));
    }
    Ok(positions)
}
