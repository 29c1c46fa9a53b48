//! devbay's Philox: random numbers from a seed, the same bits as on the processor.

use super::builder::{Builder, Type, Value};
use super::node::Node;
use crate::element::ElementType;
use devbay_plugin_api::sdk::{Error, Result};

/// The multipliers of a round, the increments of the key, and the rounds, as in `devbay_ops::read::philox4x32`.
const MULTIPLIERS: [f64; 2] = [3_528_531_795.0, 3_449_720_151.0];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const N_ROUNDS: u32 = 10;

/// Philox: blocks of four words, each word of all blocks as one array.
pub(super) fn philox<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let (result, seed) = (node.result(0)?, node.input(b, 0)?);
    let per_block = if result.element == ElementType::F64 { 2 } else { 4 };
    let n_blocks = (result.n_elements() + per_block - 1) / per_block;
    if seed.ty != Type::new(ElementType::U32, &[4]) || n_blocks > 1 << 32 {
        return Err(Error::unsupported(format!("{result} from a seed of {}", seed.ty)));
    }
    let ty = Type::new(ElementType::U32, &[n_blocks]);
    let word = |b: &mut Builder<'g>, i: i64| {
        let word = b.slice_axis(&seed, 0, i, i + 1);
        b.broadcast_in_dim(&word, &[0], &ty.dims)
    };
    let number = |b: &mut Builder<'g>, word: i64| match u32::try_from(word) {
        Ok(word) => b.splat(word.into(), &ty),
        Err(_) => Err(Error::invalid(format!("{word}, expected 32 bits"))),
    };
    let key = match node.attrs().ints("key")?.as_deref() {
        None => [word(b, 0), word(b, 1)],
        Some(&[low, high]) => [number(b, low)?, number(b, high)?],
        Some(found) => return Err(Error::invalid(format!("key = {found:?}, expected two numbers"))),
    };
    let stream = number(b, node.attrs().int("stream", 0)?)?;
    let counter = [b.iota(&ty, 0), stream, word(b, 2), word(b, 3)];
    let words = rounds(b, counter, key)?;
    let values = match result.element {
        ElementType::U32 => joined(b, &words, &result),
        ElementType::F32 => {
            let joined = joined(b, &words, &result);
            let upper = shifted(b, &joined, 8.0)?;
            let upper = b.convert(&upper, ElementType::F32);
            b.with_number("stablehlo.multiply", &upper, 1.0 / 16_777_216.0)?
        }
        ElementType::F64 => {
            let [first, second, third, fourth] = words.map(|word| b.convert(&word, ElementType::U64));
            let pairs = [(first, second), (third, fourth)];
            let pair = |b: &mut Builder<'g>, (high, low): &(Value, Value)| {
                let high = b.with_number("stablehlo.shift_left", high, 32.0)?;
                let bits = b.binary("stablehlo.or", &high, low);
                let upper = shifted(b, &bits, 11.0)?;
                let upper = b.convert(&upper, ElementType::F64);
                b.with_number("stablehlo.multiply", &upper, 1.0 / 9_007_199_254_740_992.0)
            };
            let pairs = [pair(b, &pairs[0])?, pair(b, &pairs[1])?];
            joined(b, &pairs, &result)
        }
        _ => return Err(Error::unsupported(format!("random numbers of {result}"))),
    };
    Ok(b.reshape(&values, &result.dims))
}

/// Encrypts the counters.
fn rounds(b: &mut Builder<'_>, mut words: [Value; 4], key: [Value; 2]) -> Result<[Value; 4]> {
    for round in 0..N_ROUNDS {
        let [first, second, third, fourth] = words;
        let ((left_high, left_low), (right_high, right_low)) =
            (product(b, &first, MULTIPLIERS[0])?, product(b, &third, MULTIPLIERS[1])?);
        let mixed = |b: &mut Builder<'_>, high: &Value, other: &Value, i: usize| {
            let key = b.with_number("stablehlo.add", &key[i], WEYL[i].wrapping_mul(round).into())?;
            let mixed = b.binary("stablehlo.xor", high, other);
            Ok::<_, Error>(b.binary("stablehlo.xor", &mixed, &key))
        };
        words = [mixed(b, &right_high, &second, 0)?, right_low, mixed(b, &left_high, &fourth, 1)?, left_low];
    }
    Ok(words)
}

/// Returns the upper and the lower word of products.
fn product(b: &mut Builder<'_>, x: &Value, factor: f64) -> Result<(Value, Value)> {
    let low = b.with_number("stablehlo.multiply", x, factor)?;
    let wide = b.convert(x, ElementType::U64);
    let wide = b.with_number("stablehlo.multiply", &wide, factor)?;
    let high = shifted(b, &wide, 32.0)?;
    Ok((b.convert(&high, ElementType::U32), low))
}

fn shifted(b: &mut Builder<'_>, x: &Value, n_bits: f64) -> Result<Value> {
    b.with_number("stablehlo.shift_right_logical", x, n_bits)
}

/// Returns the elements of all blocks, one block after the other, as many as the result has.
fn joined(b: &mut Builder<'_>, words: &[Value], result: &Type) -> Value {
    let n_blocks = words[0].dims()[0];
    let columns: Vec<Value> = words.iter().map(|word| b.reshape(word, &[n_blocks, 1])).collect();
    let all = b.concatenate(&columns.iter().collect::<Vec<_>>(), 1);
    let all = b.reshape(&all, &[n_blocks * words.len() as i64]);
    b.slice_axis(&all, 0, 0, result.n_elements())
}
