//! RotaryEmbedding: pairs of a head's elements, turned by the angle of their position.

use super::cost;
use super::lines::{count, expect_output};
use crate::check::Integers;
use crate::step::{Body, Build, Param, ShaderStep, Slot};
use crate::target::Target;
use crate::template::wgsl;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[descriptor("RotaryEmbedding", 23, prepare)
    .types(&[TypeVar::of(&[F32]), TypeVar::of(&[I64])])
    .cost(|request| cost::per_output(request, 3))
    .doc("a position beyond the table has its last row")];

fn prepare(request: &Request<'_>) -> Result<Prepared> {
    let attrs = &request.attrs;
    let shape = request.required_input(0)?.shape();
    expect_output(request, 0, shape)?;
    let n = attrs.int("num_heads", 0)?;
    let (batches, heads, sequence, size) = match *shape {
        [batches, heads, sequence, size] => (batches, heads, sequence, size),
        [batches, sequence, hidden] if n > 0 && hidden % n == 0 => (batches, n, sequence, hidden / n),
        _ => return Err(Error::invalid(format!("an input of {shape:?} with {n} heads"))),
    };
    let turned = match attrs.int("rotary_embedding_dim", 0)? {
        0 => size,
        turned => turned,
    };
    if !(0..=size).contains(&turned) || turned % 2 != 0 {
        return Err(Error::invalid(format!("heads of {size} elements, of which {turned} are turned")));
    }
    let pairs = turned / 2;
    let (cos, sin) = (request.required_input(1)?.shape(), request.required_input(2)?.shape());
    let rows = match request.input(3).map(|positions| positions.shape()) {
        None => None,
        Some(found) if found == [batches, sequence] => Some(cos.first().copied().unwrap_or(0)),
        Some(found) => return Err(Error::invalid(format!("positions of {found:?}"))),
    };
    let expected = match rows {
        Some(rows) => vec![rows, pairs],
        None => vec![batches, sequence, pairs],
    };
    if cos != expected || sin != expected {
        return Err(Error::invalid(format!("tables of {cos:?} and {sin:?}, expected {expected:?}")));
    }
    if pairs == 0 || rows == Some(0) {
        return Err(Error::unsupported("tables of no elements"));
    }
    let mut buffers = vec![
        ("x", "f32", Slot::Input(0)),
        ("cosines", "f32", Slot::Input(1)),
        ("sines", "f32", Slot::Input(2)),
        ("y", "f32", Slot::Output(0)),
    ];
    let numbers = [
        ("heads", heads),
        ("sequence", sequence),
        ("size", size),
        ("pairs", pairs),
        ("table", rows.unwrap_or(1)),
    ];
    let params: Vec<(String, Param)> =
        numbers.iter().map(|&(name, n)| Ok((name.to_owned(), count(n)?))).collect::<Result<_>>()?;
    if rows.is_some() {
        buffers.push(("positions", "vec2<u32>", Slot::Input(3)));
    }
    let each = wgsl!(
        "rotary.wgsl",
        is_flat = shape.len() == 3,
        has_positions = rows.is_some(),
        is_interleaved = attrs.int("interleaved", 0)? != 0,
    );
    let mut build = Build::new(request);
    if let (Some(rows), Some(tensor)) = (rows, request.input(3)) {
        let bounds = &[(0, rows - 1)];
        let positions =
            Integers { op: "RotaryEmbedding", what: "position", tensor, slot: Slot::Input(3), bounds };
        build.expect(&positions)?;
    }
    build.add(ShaderStep {
        name: "rotate",
        buffers,
        params,
        turns: 0,
        body: Body::Items { n: request.required_output(0)?.n_elements() as u64, functions: "", each: &each },
    })?;
    build.finish()
}
