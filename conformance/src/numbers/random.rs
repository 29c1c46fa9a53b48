//! devbay's Philox: bits that are the same on every device.

use super::index::list;
use super::*;

pub(super) const OPS: &[OpTrials] =
    &[OpTrials { domain: devbay_ops::DEVBAY_DOMAIN, op: "Philox", dtypes: &[F32, U32, F64], make: philox }];

/// Returns a block of Philox4x32-10, from the paper (Salmon et al., 2011, section 3.3): in round `r`, each half of the block
/// gives the low word of a product, and the high word mixed with the other word of the other half and a key that grows by a
/// constant.
fn block(counter: [u64; 4], key: [u64; 2]) -> [u64; 4] {
    const WORD: u64 = 1 << 32;
    let (factors, steps) = ([3_528_531_795, 3_449_720_151], [2_654_435_769, 3_144_134_277]);
    (0..10).fold(counter, |words, round| {
        let half = |i: usize| {
            // The half's words come from the other one's product.
            let product = factors[1 - i] * words[2 - 2 * i];
            let key = (key[i] + round * steps[i]) % WORD;
            [(product / WORD) ^ words[2 * i + 1] ^ key, product % WORD]
        };
        let ([a, b], [c, d]) = (half(0), half(1));
        [a, b, c, d]
    })
}

fn philox(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let shape = if i == 3 { vec![2, 0] } else { shape_of(dice, i, 0..=4) };
    let mut word = || dice.below(1 << 32);
    let seed = [word(), word(), word(), word()];
    // Streams of nodes with a seed of their own have the highest bit.
    let (stream, own) = (word(), [word(), word()]);
    let key = if i.is_multiple_of(2) { [seed[0], seed[1]] } else { own };
    let of = |number: usize| block([number as u64, stream, seed[2], seed[3]], key);
    let value = |i: usize| match dtype {
        U32 => of(i / 4)[i % 4] as f64,
        F32 => (of(i / 4)[i % 4] / 256) as f64 / 16_777_216.0,
        _ => {
            let (words, at) = (of(i / 2), 2 * (i % 2));
            // The upper 32 and the upper 21 bits of two words.
            words[at] as f64 / 4_294_967_296.0 + (words[at + 1] / 2048) as f64 / 9_007_199_254_740_992.0
        }
    };
    let number = |word: u64| i64::try_from(word).unwrap_or(0);
    let mut attributes = vec![("stream", AttrValue::Int(number(stream)))];
    if !i.is_multiple_of(2) {
        attributes.push(("key", AttrValue::Ints(own.map(number).into())));
    }
    // f32 is the default.
    if dtype != F32 || i.is_multiple_of(3) {
        attributes.push(("dtype", super::index::onnx_dtype(dtype)));
    }
    let seed = HostTensor::new(U32, &[4], seed.map(|word| word as f64).into());
    let values = (0..n_elements(&shape)).map(value).collect();
    Trial {
        attributes,
        inputs: vec![Some(seed), Some(list(I64, &shape))],
        outputs: vec![Expected::exact(dtype, &shape, values)],
    }
}
