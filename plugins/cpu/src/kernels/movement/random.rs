//! devbay's Philox: random numbers from a seed, a block of four words at a time.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::stream::CpuStream;
use devbay_ops::descriptor_of;
use devbay_ops::read::{Philox, philox4x32};
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor_of("devbay", "Philox", 1, philox)
    .types(&[TypeVar::of(&[U32]), TypeVar::of(&[I64]), TypeVar::of(&[F32, F64, U32])])
    .cost(cost)
    .doc("random numbers, the same on every device")];

/// Blocks of a chunk.
const GRAIN: usize = 1024;

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    // Ten rounds of two products for four words.
    cost::per_output(request, 20)
}

/// A node, with the conversion of a block to the elements that it gives.
struct Random<F> {
    host: Host,
    philox: Philox,
    convert: F,
}

fn philox(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let philox = Philox::of(request)?;
    let host = request.host;
    Ok(match philox.dtype {
        F32 => Prepared::new(Random { host, philox, convert: |words: [u32; 4]| words.map(single) }),
        F64 => Prepared::new(Random { host, philox, convert: doubles }),
        _ => Prepared::new(Random { host, philox, convert: |words: [u32; 4]| words }),
    })
}

/// A number from 0 to below 1 of the upper 24 bits.
fn single(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / 16_777_216.0)
}

/// Two numbers from 0 to below 1 of the upper 53 bits of two words each; the last two are not used.
fn doubles(words: [u32; 4]) -> [f64; 4] {
    let double = |high: u32, low: u32| {
        let bits = u64::from(high) << 32 | u64::from(low);
        (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    };
    [double(words[0], words[1]), double(words[2], words[3]), 0.0, 0.0]
}

impl<T: Element, F: Fn([u32; 4]) -> [T; 4] + Send + Sync + 'static> Launch<CpuDevice> for Random<F> {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        // SAFETY: `prepare` checked that there are four words.
        let seed: [u32; 4] = unsafe { operands.input_ptr::<[u32; 4]>(0).read_unaligned() };
        let key = self.philox.key.unwrap_or([seed[0], seed[1]]);
        let (n, per_block) = (self.philox.n, self.philox.per_block());
        let output = SendPtr(operands.output_ptr::<T>(0));
        self.host.parallel_for(n.div_ceil(per_block), GRAIN, |range, _| {
            for block in range {
                let counter = [block as u32, self.philox.stream, seed[2], seed[3]];
                let values = (self.convert)(philox4x32(counter, key));
                let first = block * per_block;
                for (i, &value) in values[..per_block.min(n - first)].iter().enumerate() {
                    // SAFETY: the output has `n` elements, and chunks do not overlap.
                    unsafe { output.at(first + i).write(value) };
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};
    use devbay_plugin_api::sdk::Element;

    fn values<T: Element>(
        dtype: i64,
        n: usize,
        seed: [u32; 4],
        key: Option<Vec<i64>>,
    ) -> Result<Vec<T>, String> {
        let inputs = [Some(Array::of(&[4], &seed)), Some(Array::of(&[1], &[n as i64]))];
        let mut attrs = vec![("dtype", Value::Int(dtype)), ("stream", Value::Int(0))];
        attrs.extend(key.map(|key| ("key", Value::Ints(key))));
        let output = [Some(Array::empty::<T>(&[n]))];
        let found = run(Isa::Baseline, "Philox", &attrs, &inputs, &output)?;
        Ok(found[0].as_ref().expect("an output").elements::<T>())
    }

    #[test]
    fn words_and_numbers_of_the_first_blocks() {
        // The first block is Random123's known answer for zeros; the second one begins in the middle of the output.
        let words = values::<u32>(12, 6, [0; 4], None).expect("words");
        assert_eq!(words[..4], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let singles = values::<f32>(1, 6, [0; 4], None).expect("numbers");
        let upper: Vec<f32> = words.iter().map(|word| (word >> 8) as f32 / 16_777_216.0).collect();
        assert_eq!(singles, upper);
        let doubles = values::<f64>(11, 3, [0; 4], None).expect("numbers");
        assert!((doubles[0] - f64::from(0x6627_e8d5u32) / f64::from(u32::MAX)).abs() < 1e-9, "{doubles:?}");
        assert!((doubles[2] - f64::from(words[4]) / f64::from(u32::MAX)).abs() < 1e-9, "{doubles:?}");
        // A key of the node's own stands for that of the seed.
        assert_eq!(values::<u32>(12, 6, [7, 9, 0, 0], Some(vec![0, 0])), Ok(words));
        let error = values::<u32>(12, 6, [0; 4], Some(vec![-1, 0])).expect_err("no word");
        assert!(error.contains("expected 32 bits"), "{error}");
    }
}
