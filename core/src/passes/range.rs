//! Ranges of the elements of a value, as far as they follow from the nodes that make it.
//!
//! Enough for the masks that are added to scores: numbers of truth values and integers, choices between constants,
//! sums and products of those, and their movements. A run's inputs have no known range.

use super::search::Search;
use crate::program::ValueId;
use crate::tensor::{BOOL, DType, F32, I8, I16, I32, I64, Tensor, U8, U16, U32, U64};

/// Nodes in front of a value that are looked at, one behind the other.
const DEPTH_MAX: usize = 24;

/// Ops whose results are elements of their first operand.
const MOVES: &[&str] = &[
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "Reshape",
    "Slice",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
];

/// The lowest and the highest number.
type Range = (f64, f64);

impl Search<'_> {
    /// Returns the numbers between which elements of an f32 lie; those that are no numbers do not count. None if that
    /// is not known, or one may be infinite.
    pub fn range(&self, id: ValueId) -> Option<Range> {
        self.range_within(id, DEPTH_MAX)
    }

    fn range_within(&self, id: ValueId, depth: usize) -> Option<Range> {
        if let Some(constant) = self.program.constant(id) {
            return of_constant(constant);
        }
        let ty = self.ty(id)?;
        let (node, depth) = match (self.maker(id), depth.checked_sub(1)) {
            (Some(node), Some(depth)) => (node, depth),
            _ => return of_type(ty.dtype),
        };
        let operand = |i: usize| self.range_within(node.input(i)?, depth);
        let found = match &*node.op.name {
            name if MOVES.contains(&name) => operand(0),
            "Concat" => {
                let each = node.inputs.iter().map(|input| self.range_within((*input)?, depth));
                each.reduce(|a, b| Some(union(a?, b?))).flatten()
            }
            "Where" => Some(union(operand(1)?, operand(2)?)),
            // The other half is zeros.
            "Trilu" => Some(union(operand(0)?, (0.0, 0.0))),
            "Cast" => operand(0),
            "Neg" => operand(0).map(|(low, high)| (-high, -low)),
            "Add" if ty.dtype == F32 => corners(operand(0)?, operand(1)?, |a, b| a + b),
            "Sub" if ty.dtype == F32 => corners(operand(0)?, operand(1)?, |a, b| a - b),
            "Mul" if ty.dtype == F32 => corners(operand(0)?, operand(1)?, |a, b| a * b),
            _ => None,
        };
        found.filter(|range| ty.dtype != F32 || is_within_f32(*range)).or_else(|| of_type(ty.dtype))
    }
}

/// Returns whether no rounding makes an infinity of it.
fn is_within_f32((low, high): Range) -> bool {
    f64::max(-low, high) <= f64::from(f32::MAX)
}

fn union(a: Range, b: Range) -> Range {
    (a.0.min(b.0), a.1.max(b.1))
}

/// Returns the range of an operation that is monotonic in each operand.
fn corners(a: Range, b: Range, f: impl Fn(f64, f64) -> f64) -> Option<Range> {
    let all = [f(a.0, b.0), f(a.0, b.1), f(a.1, b.0), f(a.1, b.1)];
    all.into_iter().map(|corner| (corner, corner)).reduce(union)
}

fn of_constant(constant: &Tensor) -> Option<Range> {
    let numbers: Vec<f64> = match constant.elements::<f32>() {
        Some(numbers) => numbers.iter().filter(|x| !x.is_nan()).map(|&x| x.into()).collect(),
        None => constant.to_ints().ok()??.into_iter().map(|x| x as f64).collect(),
    };
    let range = numbers.into_iter().map(|x| (x, x)).reduce(union);
    range.map_or(Some((0.0, 0.0)), |range| is_within_f32(range).then_some(range))
}

/// Returns the range of a type of integers; None for floats, which may be infinite.
fn of_type(dtype: DType) -> Option<Range> {
    Some(match dtype {
        BOOL => (0.0, 1.0),
        I8 => (i8::MIN.into(), i8::MAX.into()),
        I16 => (i16::MIN.into(), i16::MAX.into()),
        I32 => (i32::MIN.into(), i32::MAX.into()),
        I64 => (i64::MIN as f64, i64::MAX as f64),
        U8 => (0.0, u8::MAX.into()),
        U16 => (0.0, u16::MAX.into()),
        U32 => (0.0, u32::MAX.into()),
        U64 => (0.0, u64::MAX as f64),
        _ => return None,
    })
}
