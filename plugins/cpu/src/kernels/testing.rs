//! Helpers of the kernels' tests: reproducible random numbers and shapes; broadcasting as the specification defines it;
//! the instruction sets of this machine.

use crate::isa::Isa;

/// A generator of numbers (Knuth's MMIX constants).
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    /// Integers as floating-point numbers, so that sums are exact in any order.
    pub(crate) fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.below(2001) as f32 - 1000.0).collect()
    }

    /// Numbers between -`range` and `range`.
    pub(crate) fn floats(&mut self, n: usize, range: f32) -> Vec<f32> {
        let mut one = || (self.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0) * range;
        (0..n).map(|_| one()).collect()
    }

    /// Extents whose product is small; now and then one is 0 or long.
    pub(crate) fn extents(&mut self) -> Vec<usize> {
        let rank = self.below(6);
        let mut extents: Vec<usize> = (0..rank).map(|_| [1, 1, 2, 3, 4, 5][self.below(6)]).collect();
        if rank > 0 {
            let d = self.below(rank);
            match self.below(8) {
                0..4 => extents[d] = [31, 64, 65, 300][self.below(4)],
                4 => extents[d] = 0,
                _ => {}
            }
        }
        extents
    }

    /// Extents that broadcast to `out`.
    pub(crate) fn operand_of(&mut self, out: &[usize]) -> Vec<usize> {
        let first = if self.below(3) == 0 { self.below(out.len() + 1) } else { 0 };
        out[first..].iter().map(|&extent| if self.below(3) == 0 { 1 } else { extent }).collect()
    }

    /// A range cut into parts.
    pub(crate) fn parts(&mut self, n: usize) -> Vec<std::ops::Range<usize>> {
        let mut parts = Vec::new();
        let mut at = 0;
        while at < n {
            let end = (at + 1 + self.below(n)).min(n);
            parts.push(at..end);
            at = end;
        }
        parts
    }
}

/// Position in `operand` of the element that meets element `i` of `out`.
pub(crate) fn broadcast_position(out: &[usize], operand: &[usize], mut i: usize) -> usize {
    let (mut position, mut stride) = (0, 1);
    for (d, &extent) in out.iter().rev().enumerate() {
        let (at, own) = (i % extent, operand.iter().rev().nth(d).copied().unwrap_or(1));
        position += if own == 1 { 0 } else { at * stride };
        stride *= own;
        i /= extent;
    }
    position
}

/// Returns the broadcast shape of several operands, which must be compatible.
pub(crate) fn broadcast_extents(operands: &[&[usize]]) -> Vec<usize> {
    let rank = operands.iter().map(|operand| operand.len()).max().unwrap_or(0);
    let extent = |d| {
        let own = operands.iter().filter_map(|operand| operand.iter().rev().nth(d).copied());
        own.reduce(|a, b| if a == 1 { b } else { a }).unwrap_or(1)
    };
    (0..rank).rev().map(extent).collect()
}

/// The nearest number of bf16, of two the one whose last bit is 0, by integers. Zeros for denormal numbers.
pub(crate) fn rounded(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    if x.abs() < f32::MIN_POSITIVE {
        return 0.0f32.copysign(x);
    }
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

/// The instruction sets of this machine.
pub(crate) fn isas() -> impl Iterator<Item = Isa> {
    [Isa::Baseline, Isa::Avx2, Isa::Avx512].into_iter().filter(|&isa| isa <= Isa::best())
}
