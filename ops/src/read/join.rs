//! Reads Concat-13 and Split-18: tensors joined along an axis.

use super::{axis, expect_output, extents};
use devbay_plugin_api::sdk::{AttrContent, Error, PrepareRequest, Result};

/// The layout of parts in the joined tensor: rows that hold one run of each part in turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Join {
    /// Number of rows.
    pub n_rows: i64,
    /// Elements of each part's run in a row.
    pub runs: Vec<i64>,
    /// Extents of the joined tensor.
    pub whole: Vec<i64>,
}

impl Join {
    /// Reads a Concat node, whose output is the joined tensor.
    ///
    /// # Errors
    /// Invalid for parts that differ in more than one extent, and for an unexpected output.
    pub fn of_concat<D>(request: &PrepareRequest<'_, D>) -> Result<Self> {
        let rank = request.required_input(0)?.shape().len();
        let axis = match request.attrs.get("axis") {
            Some(AttrContent::Int(i)) => axis(*i, rank)?,
            _ => return Err(Error::invalid("the attribute axis is missing")),
        };
        let parts = (0..request.inputs.len()).map(|i| extents(request.required_input(i)?));
        let joined = Self::of(&parts.collect::<Result<Vec<_>>>()?, axis)?;
        expect_output(request, 0, &joined.whole)?;
        Ok(joined)
    }

    /// Reads a Split node, whose input is the joined tensor. The host has inferred its outputs, which define the cuts.
    ///
    /// # Errors
    /// Invalid without outputs, and for outputs that are not the input's parts.
    pub fn of_split<D>(request: &PrepareRequest<'_, D>) -> Result<Self> {
        let whole = extents(request.required_input(0)?)?;
        let axis = axis(request.attrs.int("axis", 0)?, whole.len())?;
        let parts = (0..request.outputs.len()).map(|i| extents(request.required_output(i)?));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let joined = Self::of(&parts, axis)?;
        if joined.whole != whole {
            return Err(Error::invalid(format!("outputs of {parts:?} from {whole:?} along axis {axis}")));
        }
        Ok(joined)
    }

    fn of(parts: &[&[i64]], axis: usize) -> Result<Self> {
        let Some(mut whole) = parts.first().map(|part| part.to_vec()) else {
            return Err(Error::invalid("nothing to join or to cut"));
        };
        let inner = whole[axis + 1..].iter().fold(1, |n: i64, &extent| n.saturating_mul(extent));
        let n_rows = whole[..axis].iter().fold(1, |n: i64, &extent| n.saturating_mul(extent));
        let mut joined = 0i64;
        for part in parts {
            let alike =
                part.len() == whole.len() && (0..part.len()).all(|i| i == axis || part[i] == whole[i]);
            if !alike {
                return Err(Error::invalid(format!(
                    "parts of {part:?} and {whole:?} joined along axis {axis}"
                )));
            }
            joined = joined.saturating_add(part[axis]);
        }
        let runs = parts.iter().map(|part| part[axis].saturating_mul(inner)).collect();
        whole[axis] = joined;
        Ok(Self { n_rows, runs, whole })
    }

    /// Returns the number of elements of a row.
    pub fn row(&self) -> i64 {
        self.runs.iter().fold(0, |n: i64, &run| n.saturating_add(run))
    }
}
