//! Where the windows of convolutions and pools stand on their input, by ONNX's formulas of sizes and padding.

use super::index::{every, position, word};
use super::*;

/// Extents of the axes that windows move along, for the `i`-th trial: a point, tails of SIMD, then one to three axes.
pub(super) fn spatial(dice: &mut Dice, i: u64) -> Vec<i64> {
    match i {
        0 => vec![1],
        1 => vec![5, 67],
        2 => vec![33, 34],
        _ => (0..1 + i % 3).map(|_| 1 + dice.below(8) as i64).collect(),
    }
}

/// Movement of a window over an input; every list has an element an axis.
#[derive(Clone)]
pub(super) struct Windows {
    pub input: Vec<i64>,
    pub kernel: Vec<i64>,
    pub strides: Vec<i64>,
    pub dilations: Vec<i64>,
    pub before: Vec<i64>,
    pub after: Vec<i64>,
    pub is_ceil: bool,
    /// `""` for pads that are given.
    pub auto_pad: &'static str,
}

impl Windows {
    /// Random windows; each has at least one element of the input, since a maximum or a mean of none is not defined.
    pub(super) fn random(dice: &mut Dice, i: u64, input: &[i64], may_ceil: bool) -> Self {
        loop {
            let mut draw = |low: u64, n: u64| -> Vec<i64> {
                input.iter().map(|_| (low + dice.below(n)) as i64).collect()
            };
            let kernel = match i {
                0 => vec![1],
                1 | 2 => vec![3, 3],
                _ => draw(1, 3),
            };
            let (strides, dilations) = (draw(1, 3), draw(1, if i.is_multiple_of(2) { 2 } else { 1 }));
            let mut pads = || draw(0, 3).iter().zip(&kernel).map(|(pad, extent)| *pad % *extent).collect();
            let (before, after) = (pads(), pads());
            let auto_pad = *[""; 5]
                .iter()
                .chain(&["SAME_UPPER", "SAME_LOWER", "VALID"])
                .nth(dice.below(8) as usize)
                .unwrap_or(&"");
            let is_ceil = may_ceil && auto_pad.is_empty() && dice.below(2) == 0;
            let mut windows =
                Self { input: input.to_vec(), kernel, strides, dilations, before, after, is_ceil, auto_pad };
            windows.place();
            let output = windows.output();
            if output.iter().all(|&extent| extent > 0)
                && every(&output).all(|out| windows.taps(&out).iter().any(|(_, at)| at.is_some()))
            {
                return windows;
            }
        }
    }

    /// Returns the extent of an axis that a window covers.
    fn reach(&self, axis: usize) -> i64 {
        (self.kernel[axis] - 1) * self.dilations[axis] + 1
    }

    /// The pads that auto_pad stands for.
    fn place(&mut self) {
        for axis in 0..self.input.len() {
            let total = match self.auto_pad {
                "" => continue,
                "VALID" => 0,
                _ => {
                    let n = (self.input[axis] + self.strides[axis] - 1) / self.strides[axis];
                    ((n - 1) * self.strides[axis] + self.reach(axis) - self.input[axis]).max(0)
                }
            };
            let less = total / 2;
            self.before[axis] = if self.auto_pad == "SAME_UPPER" { less } else { total - less };
            self.after[axis] = total - self.before[axis];
        }
    }

    /// Extents of the output.
    pub(super) fn output(&self) -> Vec<i64> {
        let extent = |axis: usize| {
            let (stride, padded) = (self.strides[axis], self.input[axis] + self.before[axis]);
            let rest = padded + self.after[axis] - self.reach(axis);
            if rest < 0 {
                return 0;
            }
            let n = if self.is_ceil { (rest + stride - 1) / stride + 1 } else { rest / stride + 1 };
            // Windows that would start in the padding at the end are ignored.
            if self.is_ceil && (n - 1) * stride >= padded { n - 1 } else { n }
        };
        (0..self.input.len()).map(extent).collect()
    }

    /// Returns the places of a window's elements on the axes, which may be outside.
    pub(super) fn points(&self, out: &[i64]) -> Vec<Vec<i64>> {
        let point = |tap: Vec<i64>| {
            let along = |axis: usize| {
                out[axis] * self.strides[axis] + tap[axis] * self.dilations[axis] - self.before[axis]
            };
            (0..tap.len()).map(along).collect()
        };
        every(&self.kernel).map(point).collect()
    }

    /// Returns the elements of a window: which of the kernel, and which of the input or None for padding.
    pub(super) fn taps(&self, out: &[i64]) -> Vec<(usize, Option<usize>)> {
        self.points(out).iter().map(|point| position(point, &self.input)).enumerate().collect()
    }

    /// Returns the attributes that say so to the op. Defaults may be left out.
    pub(super) fn attributes(&self, dice: &mut Dice) -> Vec<(&'static str, AttrValue)> {
        let mut attributes = Vec::new();
        let pads = [self.before.as_slice(), &self.after].concat();
        let lists = [("strides", &self.strides, 1), ("dilations", &self.dilations, 1), ("pads", &pads, 0)];
        for (name, list, default) in lists {
            let is_default = list.iter().all(|&value| value == default);
            let is_said = name != "pads" || self.auto_pad.is_empty();
            if is_said && !(is_default && dice.below(2) == 0) {
                attributes.push((name, AttrValue::Ints(list.clone())));
            }
        }
        if !self.auto_pad.is_empty() {
            attributes.push(("auto_pad", word(self.auto_pad)));
        }
        if self.is_ceil {
            attributes.push(("ceil_mode", AttrValue::Int(1)));
        }
        attributes
    }
}
