//! devbay's Philox: random numbers from a seed, many blocks of four words at a time.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::Arith;
use crate::kernels::cost;
use crate::stream::CpuStream;
use devbay_ops::descriptor_of;
use devbay_ops::read::Philox;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor_of("devbay", "Philox", 1, philox)
    .types(&[TypeVar::of(&[U32]), TypeVar::of(&[I64]), TypeVar::of(&[F32, F64, U32])])
    .cost(cost)
    .doc("random numbers, the same on every device")];

/// Blocks of a strip: a vector of words each, or several.
const STRIP: usize = 16;
/// Strips of a chunk.
const GRAIN: usize = 64;

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    // Ten rounds of two products for four words.
    cost::per_output(request, 20)
}

/// A type that words become.
trait Drawn: Element + Default + Send + Sync {
    /// Elements of a block.
    const PER_BLOCK: usize;

    /// The element at `i` of a block.
    fn of(words: [u32; 4], i: usize) -> Self;
}

impl Drawn for u32 {
    const PER_BLOCK: usize = 4;

    #[inline(always)]
    fn of(words: [u32; 4], i: usize) -> Self {
        words[i]
    }
}

/// The upper 24 bits.
impl Drawn for f32 {
    const PER_BLOCK: usize = 4;

    #[inline(always)]
    fn of(words: [u32; 4], i: usize) -> Self {
        (words[i] >> 8) as f32 * (1.0 / 16_777_216.0)
    }
}

/// The upper 53 bits of two words.
impl Drawn for f64 {
    const PER_BLOCK: usize = 2;

    #[inline(always)]
    fn of(words: [u32; 4], i: usize) -> Self {
        let bits = u64::from(words[2 * i]) << 32 | u64::from(words[2 * i + 1]);
        (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

/// What all blocks of a launch share: the key, and the counter's words after the first.
#[derive(Clone, Copy)]
struct Draw {
    key: [u32; 2],
    rest: [u32; 3],
}

/// Returns the words of the blocks from `first` on, as [`philox4x32`](devbay_ops::read::philox4x32) defines them. Each word of
/// all blocks is an array, so that a round is vector instructions.
#[inline(always)]
fn strip(draw: Draw, first: u32) -> [[u32; STRIP]; 4] {
    let [stream, low, high] = draw.rest.map(|word| [word; STRIP]);
    let mut words = [[0; STRIP], stream, low, high];
    for (i, word) in (0u32..).zip(&mut words[0]) {
        *word = first.wrapping_add(i);
    }
    let [mut even, mut odd] = draw.key;
    for _ in 0..10 {
        let [a, b, c, d] = words;
        for i in 0..STRIP {
            let (left, right) = (u64::from(a[i]) * 0xd251_1f53, u64::from(c[i]) * 0xcd9e_8d57);
            words[0][i] = (right >> 32) as u32 ^ b[i] ^ even;
            words[1][i] = right as u32;
            words[2][i] = (left >> 32) as u32 ^ d[i] ^ odd;
            words[3][i] = left as u32;
        }
        (even, odd) = (even.wrapping_add(0x9e37_79b9), odd.wrapping_add(0xbb67_ae85));
    }
    words
}

/// Writes `n` elements, those of the blocks from `first` on.
///
/// # Safety
/// `y` holds `n` elements, and the processor has the instructions.
#[inline(always)]
unsafe fn draw_body<A: Arith, T: Drawn>(draw: Draw, first: u32, y: *mut T, n: usize) {
    let per_strip = STRIP * T::PER_BLOCK;
    for (at, first) in (0..n).step_by(per_strip).zip((first..).step_by(STRIP)) {
        let [a, b, c, d] = strip(draw, first);
        let mut values = [T::default(); 4 * STRIP];
        for (block, values) in values.chunks_exact_mut(T::PER_BLOCK).take(STRIP).enumerate() {
            for (i, value) in values.iter_mut().enumerate() {
                *value = T::of([a[block], b[block], c[block], d[block]], i);
            }
        }
        // SAFETY: `at` is below `n`, and no more is written than is left.
        unsafe { values.as_ptr().copy_to_nonoverlapping(y.add(at), per_strip.min(n - at)) };
    }
}

dispatch! { fn draw<T: Drawn>(draw: Draw, first: u32, y: *mut T, n: usize) = draw_body }

/// A prepared node.
struct Random<T> {
    host: Host,
    philox: Philox,
    draw: unsafe fn(Draw, u32, *mut T, usize),
}

fn philox(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    fn prepared<T: Drawn>(request: &PrepareRequest<'_, CpuDevice>, philox: Philox) -> Prepared {
        Prepared::new(Random { host: request.host, philox, draw: draw::<T>(request.device.isa) })
    }
    let philox = Philox::of(request)?;
    Ok(match philox.dtype {
        F32 => prepared::<f32>(request, philox),
        F64 => prepared::<f64>(request, philox),
        _ => prepared::<u32>(request, philox),
    })
}

impl<T: Drawn> Launch<CpuDevice> for Random<T> {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        // SAFETY: `prepare` checked that there are four words.
        let seed: [u32; 4] = unsafe { operands.input_ptr::<[u32; 4]>(0).read_unaligned() };
        let draw = Draw {
            key: self.philox.key.unwrap_or([seed[0], seed[1]]),
            rest: [self.philox.stream, seed[2], seed[3]],
        };
        let (n, per_strip) = (self.philox.n, STRIP * T::PER_BLOCK);
        let output = SendPtr(operands.output_ptr::<T>(0));
        self.host.parallel_for(n.div_ceil(per_strip), GRAIN, |strips, _| {
            let (at, first) = (strips.start * per_strip, strips.start * STRIP);
            let n = (strips.len() * per_strip).min(n - at);
            // SAFETY: the output has as many elements after `at`, chunks do not overlap, and `prepare` chose the function
            // by the processor's instructions. `prepare` allowed no more blocks than 32 bits count.
            unsafe { (self.draw)(draw, first as u32, output.at(at), n) };
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::STRIP;
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};
    use devbay_ops::read::philox4x32;
    use devbay_plugin_api::sdk::Element;

    const SEED: [u32; 4] = [7, 9, 5, 1 << 31];

    fn values<T: Element>(isa: Isa, dtype: i64, n: usize, key: Option<Vec<i64>>) -> Result<Vec<T>, String> {
        let inputs = [Some(Array::of(&[4], &SEED)), Some(Array::of(&[1], &[n as i64]))];
        let mut attrs = vec![("dtype", Value::Int(dtype)), ("stream", Value::Int(3))];
        attrs.extend(key.map(|key| ("key", Value::Ints(key))));
        let output = [Some(Array::empty::<T>(&[n]))];
        let found = run(isa, "Philox", &attrs, &inputs, &output)?;
        Ok(found[0].as_ref().expect("an output").elements::<T>())
    }

    #[test]
    fn words_and_numbers_are_those_of_their_blocks() {
        // Several chunks, the last of which ends within a block.
        let n = 4 * STRIP * 130 + 7;
        let word = |i: usize| philox4x32([(i / 4) as u32, 3, SEED[2], SEED[3]], [SEED[0], SEED[1]])[i % 4];
        let expected: Vec<u32> = (0..n + 1).map(word).collect();
        for isa in [Isa::Baseline, Isa::Avx2, Isa::Avx512].into_iter().filter(|&isa| isa <= Isa::best()) {
            let words = values::<u32>(isa, 12, n, None).expect("words");
            assert_eq!(words, expected[..n], "{isa:?}");
            let singles = values::<f32>(isa, 1, n, None).expect("numbers");
            assert!(
                singles.iter().zip(&words).all(|(x, word)| *x == (word >> 8) as f32 / 16_777_216.0),
                "{isa:?}"
            );
            let doubles = values::<f64>(isa, 11, n / 2 + 1, None).expect("numbers");
            for (x, pair) in doubles.iter().zip(expected.chunks(2)) {
                let bits = u64::from(pair[0]) << 21 | u64::from(pair[1] >> 11);
                assert_eq!(*x, bits as f64 / (1u64 << 53) as f64, "{isa:?}");
            }
            // A key of the node's own stands for that of the seed.
            assert_eq!(values::<u32>(isa, 12, n, Some(vec![7, 9])), Ok(words));
        }
        let error = values::<u32>(Isa::Baseline, 12, 6, Some(vec![-1, 0])).expect_err("no word");
        assert!(error.contains("expected 32 bits"), "{error}");
    }
}
