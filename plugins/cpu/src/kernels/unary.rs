//! Ops that work on each element alone.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::Arith;
use devbay_plugin_api::sdk::*;

type UnaryFn = unsafe fn(*const f32, *mut f32, usize);

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[Kernel::new("Relu", 14, |request| {
    prepare(request, relu(request.device.isa))
})
.types(&[TypeVar::of(&[F32])])
.operands(&[0], &[0])
.in_place(&[0])
.cost(cost)];

/// Elements of a chunk: enough that handing it over is cheap beside it.
const GRAIN: usize = 16 * 1024;

struct Unary {
    host: Host,
    n: usize,
    body: UnaryFn,
}

fn prepare(request: &PrepareRequest<'_, CpuDevice>, body: UnaryFn) -> Result<Prepared> {
    let n = request.required_input(0)?.n_elements();
    Ok(Prepared::new(Unary {
        host: request.host,
        n,
        body,
    }))
}

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let n = request.required_input(0)?.n_elements() as u64;
    Ok(Cost {
        flops: n,
        bytes_read: 4 * n,
        bytes_written: 4 * n,
    })
}

impl Launch<CpuDevice> for Unary {
    fn launch(
        &self,
        _stream: &crate::stream::CpuStream,
        operands: &mut Operands<'_>,
    ) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<f32>(0).cast_mut());
        let y = SendPtr(operands.output_ptr::<f32>(0));
        self.host.parallel_for(self.n, GRAIN, |range, _| {
            // SAFETY: the range lies within both operands, whose lengths `prepare` was told, and the
            // instructions are the device's.
            unsafe { (self.body)(x.at(range.start), y.at(range.start), range.len()) };
            Ok(())
        })
    }
}

#[inline(always)]
unsafe fn relu_body<A: Arith>(x: *const f32, y: *mut f32, n: usize) {
    for i in 0..n {
        // SAFETY: `i` is below `n`, and the caller lends `n` elements of each.
        unsafe { *y.add(i) = (*x.add(i)).max(0.0) };
    }
}

dispatch! { fn relu(x: *const f32, y: *mut f32, n: usize) = relu_body }
