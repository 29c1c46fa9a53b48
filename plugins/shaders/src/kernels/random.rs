//! devbay's Philox: random numbers from a seed, the same bits as on the processor.

use super::cost;
use super::fill::wide;
use super::moved::param;
use crate::step::{Body, Build, Param, ShaderStep, Slot, turns};
use crate::target::Target;
use crate::template::wgsl;
use devbay_ops::descriptor_of;
use devbay_ops::read::Philox;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[descriptor_of("devbay", "Philox", 1, philox)
    .types(&[TypeVar::of(&[U32]), TypeVar::of(&[I64]), TypeVar::of(&[F32, U32])])
    .cost(|request| cost::per_output(request, 40))];

fn philox(request: &PrepareRequest<'_, Target>) -> Result<Prepared> {
    let philox = Philox::of(request)?;
    // An f32 takes the upper 24 bits, which it holds exactly.
    let (word, value) = match philox.dtype {
        F32 => ("f32", "f32(counter[k] >> 8u) * 5.9604644775390625e-8"),
        _ => ("u32", "counter[k]"),
    };
    let own_key = philox.key.is_some();
    let [key_low, key_high] = philox.key.unwrap_or_default();
    let words = [("key_low", key_low), ("key_high", key_high), ("stream", philox.stream)];
    let mut params: Vec<_> = words.map(|(name, word)| (name.to_owned(), Param::U32(word))).into();
    params.push(param("n", philox.n as i64)?);
    let functions = wide();
    let each = wgsl!("fill/philox.wgsl", own_key, value);
    let mut build = Build::new(request);
    build.add(ShaderStep {
        name: "Philox",
        buffers: vec![("seed", "u32", Slot::Input(0)), ("y", word, Slot::Output(0))],
        params,
        turns: turns(10, 0) + turns(4, 0),
        body: Body::Items { n: philox.n_blocks(), functions: &functions, each: &each },
    })?;
    build.finish()
}
