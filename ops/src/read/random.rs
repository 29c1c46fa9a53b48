//! Reads devbay's Philox-1: random numbers from a seed, by the position of each element.
//!
//! Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", 2011) encrypts a counter of
//! four words with a key of two. Each block of four words depends on its own number alone, so that results are the same for
//! any number of threads, and on any device.

use super::{expect_output, host_ints};
use crate::onnx_types::dtype_from_onnx;
use devbay_plugin_api::sdk::{DType, Error, F32, F64, PrepareRequest, Result, U32};

/// The two multipliers of a round.
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
/// The increments of the key between rounds: the golden ratio, and the square root of 3 less 1.
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const N_ROUNDS: usize = 10;

/// A node that makes random numbers.
///
/// **Shapes**: `seed: u32[4]`, `shape: i64[rank]`, `values` of that shape. Words 0 and 1 of the seed are the key, unless the
/// attribute `key` has two others; words 2 and 3 tell runs and iterations apart. Block `i` is
/// `philox4x32(counter: [i, stream, seed[2], seed[3]], key)`.
///
/// Element `i` is, by the attribute `dtype`:
///
/// - `u32`: word `i % 4` of block `i / 4`;
/// - `f32`: the upper 24 bits of that word, times 2^-24;
/// - `f64`: the upper 53 bits of the words `2 (i % 2)`, upper half, and `2 (i % 2) + 1` of block `i / 2`, times 2^-53.
///
/// Floats are from 0 to below 1, and exact.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Philox {
    /// The key, if it is not the seed's.
    pub key: Option<[u32; 2]>,
    /// Tells nodes apart.
    pub stream: u32,
    /// The element type: f32, f64 or u32.
    pub dtype: DType,
    /// Number of elements.
    pub n: usize,
}

impl Philox {
    /// Reads a node.
    ///
    /// # Errors
    /// Invalid for a seed that is not four words, for another shape than the output's, and for attributes that are not
    /// words; unsupported for more elements than there are blocks.
    pub fn of<D>(request: &PrepareRequest<'_, D>) -> Result<Self> {
        let seed = request.required_input(0)?;
        if seed.shape() != [4] {
            return Err(Error::invalid(format!("a seed of {:?}, expected [4]", seed.shape())));
        }
        let shape = host_ints(request, 1)?.ok_or_else(|| Error::invalid("the shape is missing"))?;
        expect_output(request, 0, &shape)?;
        let output = request.required_output(0)?;
        let dtype = dtype_from_onnx(request.attrs.int("dtype", 1)?)?;
        if dtype != output.dtype() || ![F32, F64, U32].contains(&dtype) {
            return Err(Error::invalid(
                "an output of another dtype than the attribute's, or not f32, f64 or u32",
            ));
        }
        let word = |name: &str, value: i64| {
            u32::try_from(value).map_err(|_| Error::invalid(format!("{name} = {value}, expected 32 bits")))
        };
        let key = match request.attrs.ints("key")?.as_deref() {
            None => None,
            Some(&[low, high]) => Some([word("key", low)?, word("key", high)?]),
            Some(found) => return Err(Error::invalid(format!("key = {found:?}, expected two numbers"))),
        };
        let philox = Self {
            key,
            stream: word("stream", request.attrs.int("stream", 0)?)?,
            dtype,
            n: output.n_elements(),
        };
        if philox.n_blocks() > 1 << 32 {
            return Err(Error::unsupported(format!("{} random numbers, at most 2^33 are", philox.n)));
        }
        Ok(philox)
    }

    /// Returns the number of elements that a block gives.
    pub fn per_block(&self) -> usize {
        if self.dtype == F64 { 2 } else { 4 }
    }

    /// Returns the number of blocks that the elements need.
    pub fn n_blocks(&self) -> u64 {
        self.n.div_ceil(self.per_block()) as u64
    }
}

/// Returns a block of Philox4x32-10.
#[inline]
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..N_ROUNDS {
        let [first, second] = [0, 1].map(|i| u64::from(MULTIPLIERS[i]) * u64::from(counter[2 * i]));
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::philox4x32;

    /// The vectors of `philox4x32 10` in Random123's `kat_vectors` (version 1.14).
    #[test]
    fn blocks_are_those_of_the_authors() {
        let check = |counter, key, expected: [u32; 4]| assert_eq!(philox4x32(counter, key), expected);
        check([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        check([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        check(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        );
    }
}
