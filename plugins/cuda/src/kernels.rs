//! The kernels that the plugin has now: one, which shows the way from WGSL to a launch. The others come with the crate
//! that the GPU plugins share.

use crate::device::CudaDevice;
use crate::dispatch::{Body, Build, Slot, Step};
use devbay_plugin_api::sdk::*;

/// All of them.
pub const ALL: &[Kernel<CudaDevice>] = &[Kernel::new("Relu", 14, prepare_relu)
    .types(&[TypeVar::of(&[F32])])
    .operands(&[0], &[0])
    .in_place(&[0])
    .cost(|request| {
        let n = request.required_output(0)?.n_elements() as u64;
        Ok(Cost { flops: n, bytes_read: 4 * n, bytes_written: 4 * n })
    })];

/// Negative numbers become 0, NaN stays.
fn prepare_relu(request: &PrepareRequest<'_, CudaDevice>) -> Result<Prepared> {
    let (x, y) = (request.required_input(0)?, request.required_output(0)?);
    if x.shape() != y.shape() {
        let text = format!("an output of shape {:?} for an input of {:?}", y.shape(), x.shape());
        return Err(Error::invalid(text));
    }
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
