//! Pseudorandom numbers, reproducible by seed: for the command's random inputs, tests and tools.
//!
//! Hidden, because the sequence is not part of the interface. It uses nothing of this crate, because `xtask` compiles the
//! file as its own.

/// 2^64 by the golden ratio, made odd.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A generator, by its state: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug, Default)]
pub struct Random(pub u64);

impl Random {
    /// Returns a generator far from those of neighbouring seeds.
    pub fn of_seed(seed: u64) -> Self {
        Self(seed.wrapping_mul(GAMMA))
    }

    /// Returns the next number.
    #[allow(clippy::should_implement_trait, reason = "a sequence without an end needs no Option")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`, which must not be 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Returns true once in `of` times.
    pub fn chance(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers that the authors' `splitmix64.c` gives for 1234567.
    #[test]
    fn numbers_are_those_of_splitmix64() {
        let mut random = Random(1_234_567);
        let known = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!(known.map(|_| random.next()), known);
    }
}
