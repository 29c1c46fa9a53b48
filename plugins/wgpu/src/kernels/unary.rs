//! Functions of one number.

use crate::device::WgpuDevice;
use crate::dispatch::{Body, Build, Slot, Step};
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<WgpuDevice>] =
    &[Kernel::new("Relu", 14, prepare).types(&[TypeVar::of(&[F32])]).operands(&[0], &[0]).in_place(&[0])];

fn prepare(request: &PrepareRequest<'_, WgpuDevice>) -> Result<Prepared> {
    let (x, y) = (request.required_input(0)?, request.required_output(0)?);
    super::same_shape(x, y)?;
    let mut build = Build::new(request);
    build.add(Step {
        name: "Relu",
        buffers: vec![("x", "f32", Slot::Input(0)), ("y", "f32", Slot::Output(0))],
        params: vec![],
        body: Body::Items {
            n: y.n_elements() as u64,
            functions: "",
            each: "let v = x[i];\ny[i] = select(v, 0.0, v < 0.0);",
        },
    })?;
    Ok(build.finish())
}
