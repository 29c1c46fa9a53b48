//! RMSNormalization of f32: sums of squares in lanes that are emptied into f64 ([`crate::kernels::reduction::fold`]), then one pass.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::Arith;
use crate::kernels::elementwise::loops::{blocks, slice};
use crate::kernels::reduction::fold::{self, SumSquare};
use crate::stream::CpuStream;
use devbay_plugin_api::sdk::*;

/// Elements of a chunk of a parallel loop.
const GRAIN: usize = 16 * 1024;

struct Rms {
    host: Host,
    n_rows: usize,
    n: usize,
    epsilon: f32,
    body: unsafe fn(*const f32, *const f32, *mut f32, usize, f32),
}

/// A kernel for rows of `n` elements with a scale for each of them.
pub(crate) fn prepare(
    request: &PrepareRequest<'_, CpuDevice>,
    n_rows: usize,
    n: usize,
    epsilon: f32,
) -> Prepared {
    Prepared::new(Rms { host: request.host, n_rows, n, epsilon, body: row(request.device.isa) })
}

dispatch! { fn row(x: *const f32, scale: *const f32, y: *mut f32, n: usize, epsilon: f32) = row_body }

/// # Safety
/// All have `n` elements.
#[inline(always)]
unsafe fn row_body<A: Arith>(x: *const f32, scale: *const f32, y: *mut f32, n: usize, epsilon: f32) {
    // SAFETY: `x` has `n` elements (# Safety), and the row is written after this.
    let squares = fold::row::<A, SumSquare>(unsafe { slice(x, n) }, 0.0);
    let inverse = (1.0 / (squares / n as f64 + f64::from(epsilon)).sqrt()) as f32;
    blocks!(false, n, y, [v = x, s = scale] => v * inverse * s);
}

impl Launch<CpuDevice> for Rms {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<f32>(0).cast_mut());
        let scale = SendPtr(operands.input_ptr::<f32>(1).cast_mut());
        let y = SendPtr(operands.output_ptr::<f32>(0));
        self.host.parallel_for(self.n_rows, (GRAIN / self.n.max(1)).max(1), |rows, _| {
            for row in rows {
                let at = row * self.n;
                // SAFETY: the row lies within both operands, whose shapes `prepare` was told, the scale has as
                // many elements; the instructions are the device's.
                unsafe { (self.body)(x.at(at), scale.at(0), y.at(at), self.n, self.epsilon) };
            }
            Ok(())
        })
    }
}
