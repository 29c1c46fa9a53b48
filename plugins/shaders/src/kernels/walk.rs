//! From the position of an output's element to the positions of what it is made from.
//!
//! The extents and strides of a walk are parameters of the shader; only the number of axes, after those are merged that
//! every operand walks alike, and which strides are 0, are part of its text.

use crate::step::Param;
use devbay_plugin_api::sdk::{Error, Result};

/// The elements of a shape in row-major order, and where each operand has its element for them.
pub struct Walk {
    extents: Vec<i64>,
    operands: Vec<Operand>,
}

struct Operand {
    offset: i64,
    strides: Vec<i64>,
}

/// Strides of a dense row-major tensor, in elements.
pub fn dense_strides(shape: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

impl Walk {
    /// Over the elements of a shape, without an operand yet.
    pub fn over(extents: &[i64]) -> Self {
        Self { extents: extents.to_vec(), operands: Vec::new() }
    }

    /// Adds an operand whose element for the position `c` is at `offset + sum(c[k] * strides[k])`; strides may be
    /// negative.
    #[must_use]
    pub fn operand(mut self, offset: i64, strides: &[i64]) -> Self {
        assert_eq!(strides.len(), self.extents.len(), "a stride for each axis");
        self.operands.push(Operand { offset, strides: strides.to_vec() });
        self
    }

    /// Adds a dense operand that is broadcast to the walk's shape as NumPy does.
    ///
    /// # Errors
    /// Invalid if it cannot be.
    pub fn broadcast(self, shape: &[i64]) -> Result<Self> {
        let (own, rank) = (dense_strides(shape), self.extents.len());
        let fits = shape.len() <= rank
            && shape.iter().rev().zip(self.extents.iter().rev()).all(|(&own, &out)| own == out || own == 1);
        if !fits {
            return Err(Error::invalid(format!("{shape:?} cannot be broadcast to {:?}", self.extents)));
        }
        let first = rank - shape.len();
        let stride = |axis: usize| match axis.checked_sub(first) {
            Some(axis) if shape[axis] != 1 => own[axis],
            _ => 0,
        };
        let strides: Vec<i64> = (0..rank).map(stride).collect();
        Ok(self.operand(0, &strides))
    }

    /// Merges neighbouring axes that all operands walk as one, and drops those of extent 1.
    #[must_use]
    pub fn merged(self) -> Self {
        let mut extents: Vec<i64> = Vec::new();
        let mut strides: Vec<Vec<i64>> = vec![Vec::new(); self.operands.len()];
        for (axis, &extent) in self.extents.iter().enumerate() {
            if extent == 1 {
                continue;
            }
            let continues = |(operand, own): (&Operand, &Vec<i64>)| {
                own.last().is_some_and(|&outer| outer == operand.strides[axis] * extent)
            };
            if !extents.is_empty() && self.operands.iter().zip(&strides).all(continues) {
                let last = extents.len() - 1;
                extents[last] *= extent;
                for (own, operand) in strides.iter_mut().zip(&self.operands) {
                    own[last] = operand.strides[axis];
                }
            } else {
                extents.push(extent);
                for (own, operand) in strides.iter_mut().zip(&self.operands) {
                    own.push(operand.strides[axis]);
                }
            }
        }
        let operands = self.operands.iter().zip(strides);
        let operands = operands.map(|(operand, strides)| Operand { offset: operand.offset, strides });
        Self { extents, operands: operands.collect() }
    }

    /// Returns whether an operand's positions are those of the walk.
    pub fn is_identity(&self, operand: usize) -> bool {
        let operand = &self.operands[operand];
        operand.offset == 0 && operand.strides == dense_strides(&self.extents)
    }

    /// Returns each operand's stride from position to position, if all begin at 0 and go evenly; else None.
    pub fn even_strides(&self) -> Option<Vec<u64>> {
        let stride = |operand: &Operand| match operand.strides[..] {
            _ if operand.offset != 0 => None,
            [] => Some(0),
            [stride] => u64::try_from(stride).ok(),
            _ => None,
        };
        self.operands.iter().map(stride).collect()
    }

    /// The shader's parameters: extents `d1`.., and for operand `k` its offset `o{k}` and strides `s{k}_0`.. .
    ///
    /// # Errors
    /// Unsupported for positions beyond 32 bits.
    pub fn params(&self) -> Result<Vec<(String, Param)>> {
        let mut params = Vec::new();
        let mut add = |name: String, value: i64| -> Result<()> {
            let value = i32::try_from(value).map(|value| value as u32).or_else(|_| u32::try_from(value));
            let value =
                value.map_err(|_| Error::unsupported("a tensor of more elements than 32 bits count"))?;
            params.push((name, Param::U32(value)));
            Ok(())
        };
        for (axis, &extent) in self.extents.iter().enumerate().skip(1) {
            add(format!("d{axis}"), extent)?;
        }
        for (k, operand) in self.operands.iter().enumerate().filter(|(k, _)| !self.is_identity(*k)) {
            if operand.offset != 0 {
                add(format!("o{k}"), operand.offset)?;
            }
            for (axis, &stride) in operand.strides.iter().enumerate().filter(|(_, stride)| **stride != 0) {
                add(format!("s{k}_{axis}"), stride)?;
            }
        }
        Ok(params)
    }

    /// WGSL statements that take the position `e: u32` apart and declare `at0`, `at1`.. as each operand's, u32.
    pub fn code(&self) -> String {
        let mut text = String::new();
        let rank = self.extents.len();
        let is_needed = (0..self.operands.len()).any(|k| !self.is_identity(k));
        if is_needed {
            text.push_str("var rest = e;\n");
            for axis in (1..rank).rev() {
                text.push_str(&format!("let c{axis} = rest % p.d{axis};\nrest = rest / p.d{axis};\n"));
            }
            text.push_str("let c0 = rest;\n");
        }
        for (k, operand) in self.operands.iter().enumerate() {
            if self.is_identity(k) {
                text.push_str(&format!("let at{k} = e;\n"));
                continue;
            }
            let mut terms: Vec<String> = Vec::new();
            if operand.offset != 0 {
                terms.push(format!("p.o{k}"));
            }
            for axis in (0..rank).filter(|&axis| operand.strides[axis] != 0) {
                // Negative strides wrap around, as u32 does.
                terms.push(format!("c{axis} * p.s{k}_{axis}"));
            }
            let sum = if terms.is_empty() { "0u".to_owned() } else { terms.join(" + ") };
            text.push_str(&format!("let at{k} = {sum};\n"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_that_all_walk_alike_are_one() {
        let walk = Walk::over(&[2, 3, 4]).broadcast(&[2, 3, 4]).unwrap().broadcast(&[3, 4]).unwrap().merged();
        assert_eq!(walk.extents, [2, 12]);
        assert!(walk.is_identity(0) && !walk.is_identity(1));
        assert_eq!(walk.operands[1].strides, [0, 1]);
        assert_eq!(walk.params().unwrap(), [("d1".into(), Param::U32(12)), ("s1_1".into(), Param::U32(1))]);
    }

    #[test]
    fn what_cannot_be_broadcast_is_refused() {
        assert!(Walk::over(&[2, 3]).broadcast(&[2]).is_err());
        assert!(Walk::over(&[3]).broadcast(&[1, 3]).is_err());
    }

    #[test]
    fn a_scalar_is_at_nothing() {
        let walk = Walk::over(&[]).broadcast(&[]).unwrap().merged();
        assert_eq!(walk.code(), "let at0 = e;\n");
    }
}
