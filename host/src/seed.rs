//! Seeds of runs: a key from the session, and the number of the run.
//!
//! A program with random numbers has one more input ([`SEED_INPUT`](devbay_core::program::SEED_INPUT)), which the session
//! fills. Its four words are the session's seed and the number of the run, so that runs differ, and two sessions with one
//! seed have the same sequence of runs ([decisions/0028](../../docs/decisions/0028-randomness-is-data.md)).

use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::exec::host_io::InputView;
use devbay_core::program::SEED_WORDS;
use devbay_core::tensor::{DType, Tensor, U32};
use std::sync::atomic::{AtomicU64, Ordering};

/// Type of the input.
pub(crate) const TYPE: (DType, &[usize]) = (U32, &[SEED_WORDS]);

/// The seed of one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RunSeed([u32; SEED_WORDS]);

impl RunSeed {
    /// Returns the seed of a session's run by its number.
    pub fn new(session: u64, run: u64) -> Self {
        let halves = |number: u64| [number as u32, (number >> 32) as u32];
        let ([key_low, key_high], [run_low, run_high]) = (halves(session), halves(run));
        Self([key_low, key_high, run_low, run_high])
    }

    /// Returns a seed for the n-th part of the run, by the steps of SplitMix64 (Steele, Lea and Flood 2014).
    pub fn part(&self, n: u64) -> u64 {
        let mixed = |state: u64| {
            let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            state ^ (state >> 31)
        };
        let [key_low, key_high, run_low, run_high] = self.0.map(u64::from);
        mixed(mixed(mixed(key_high << 32 | key_low) ^ (run_high << 32 | run_low)) ^ n)
    }

    /// Returns it as an input.
    ///
    /// # Errors
    /// None: the size is the type's.
    pub fn view(&self) -> Result<InputView<'_>> {
        InputView::new(TYPE.0, TYPE.1, bytemuck::bytes_of(&self.0))
    }

    /// Returns it as a tensor.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`].
    pub fn tensor(&self) -> Result<Tensor> {
        Tensor::from_elements(TYPE.1, &self.0)
    }
}

/// The seeds of a session's runs, in the order in which they begin.
#[derive(Debug)]
pub(crate) struct Seeds {
    session: u64,
    n_runs: AtomicU64,
}

impl Seeds {
    /// Begins a sequence: from a seed, or from one that the operating system draws.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the operating system has none.
    pub fn new(seed: Option<u64>) -> Result<Self> {
        let draw = || {
            getrandom::u64().map_err(|error| {
                let text = format!(
                    "the operating system gives no random seed: {error}; set the session's option seed"
                );
                Error::new(ErrorKind::Unavailable, text)
            })
        };
        Ok(Self { session: seed.map_or_else(draw, Ok)?, n_runs: AtomicU64::new(0) })
    }

    /// Returns the seed of the next run. A run with a seed of its own is like the first of a session with that seed, and does
    /// not count.
    pub fn next(&self, fixed: Option<u64>) -> RunSeed {
        match fixed {
            Some(seed) => RunSeed::new(seed, 0),
            None => RunSeed::new(self.session, self.n_runs.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_differ_and_sessions_of_one_seed_do_not() {
        let sequence = |seeds: &Seeds| [(); 3].map(|()| seeds.next(None));
        let (a, b) = (Seeds::new(Some(1 << 32 | 7)).unwrap(), Seeds::new(Some(1 << 32 | 7)).unwrap());
        let [first, second, third] = sequence(&a);
        assert_eq!(first, RunSeed([7, 1, 0, 0]));
        assert!(first != second && second != third);
        assert_eq!(sequence(&b), [first, second, third]);
        // A fixed run is the first of its own session, and leaves the sequence alone.
        assert_eq!(a.next(Some(1 << 32 | 7)), first);
        assert_eq!(a.next(None), RunSeed([7, 1, 3, 0]));
        assert!(first.part(0) != first.part(1) && first.part(0) != second.part(0));
        assert_eq!(first.part(5), RunSeed([7, 1, 0, 0]).part(5));
        let drawn = [(); 2].map(|()| Seeds::new(None).unwrap().next(None));
        assert!(drawn[0] != drawn[1], "the chance of equal seeds is 2^-64");
    }
}
