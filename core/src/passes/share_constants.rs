//! Lets constants of the same bytes share them: they are then mapped, packed and uploaded once.
//!
//! Only constants of one element type and length are compared, and of those first a sample, so that weights that differ
//! are not read.

use crate::program::Program;
use crate::tensor::{DType, Tensor};
use std::collections::HashMap;

/// Bytes of a sample.
const SAMPLE: usize = 64;

/// Constants that are shorter are not worth it.
const BYTES_MIN: usize = 1024;

/// Shares the bytes of equal constants, and gives the number of those that were given up.
pub fn run(program: &mut Program) -> usize {
    let mut known: HashMap<(DType, usize, Vec<u8>), Vec<Tensor>> = HashMap::new();
    let mut shared = 0;
    for constant in program.values.iter_mut().filter_map(|value| value.constant.as_mut()) {
        let bytes = constant.bytes();
        if bytes.len() < BYTES_MIN {
            continue;
        }
        // The middle: many tensors begin with zeroes.
        let middle = bytes.len() / 2;
        let sample = bytes[middle..(middle + SAMPLE).min(bytes.len())].to_vec();
        let alike = known.entry((constant.dtype(), bytes.len(), sample)).or_default();
        if alike.iter().any(|other| other.identity() == constant.identity()) {
            continue;
        }
        let found = alike.iter().find(|other| other.bytes() == bytes);
        match found.and_then(|other| other.reshaped(constant.shape()).ok()) {
            Some(other) => {
                *constant = other;
                shared += 1;
            }
            None => alike.push(constant.clone()),
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_constants_share_their_bytes_and_keep_their_shapes() {
        let mut program = Program::default();
        let tensor = |shape: &[usize], last: f32| {
            let mut values: Vec<f32> = (0..512).map(|i| i as f32).collect();
            values[511] = last;
            Tensor::from_elements(shape, &values).unwrap()
        };
        let ids: Vec<_> = [(&[512][..], 1.0), (&[16, 32], 1.0), (&[512], 2.0)]
            .into_iter()
            .map(|(shape, last)| program.add_constant("", tensor(shape, last)))
            .collect();
        assert_eq!(run(&mut program), 1);
        let identity = |i: usize| program.constant(ids[i]).unwrap().identity();
        assert_eq!(identity(0), identity(1));
        assert_ne!(identity(0), identity(2));
        assert_eq!(program.constant(ids[1]).unwrap().shape(), [16, 32]);
        assert_eq!(run(&mut program), 0);
    }
}
