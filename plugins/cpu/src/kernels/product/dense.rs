//! One row times a small square matrix, plus a vector, perhaps cut off at zero: the layers of tiny networks.
//!
//! At these sizes a general product is all overhead, so each size has a function of its own that the host calls
//! without anything in between. The sums run in up to four chains, to hide the latency
//! of an addition.
//!
//! The cut keeps what is no number, as [`Lanes::at_least`] does.

use crate::device::CpuDevice;
use crate::isa::{Arith, Isa};
use crate::kernels::product::epilogue::Activation;
use crate::kernels::product::matmul::{Addend, Product};
use crate::kernels::product::micro::{as_f32s_mut, layout_id, to_weights};
use crate::lanes::{Lanes, unrolled};
use devbay_plugin_api::abi::{BufferRef, DEVBAY_STATUS_OK, LaunchFn, Status, Stream};
use devbay_plugin_api::sdk::{PrepareRequest, Prepared};
use std::ffi::c_void;

/// A kernel for the product, if it is one of the sizes here.
pub(crate) fn prepare(request: &PrepareRequest<'_, CpuDevice>, product: &Product) -> Option<Prepared> {
    let relu = match product.activation {
        Activation::None => false,
        Activation::Relu => true,
        _ => return None,
    };
    let fits = product.rows == 1
        && product.batch.len() == 1
        && product.k == product.columns
        && product.scale == 1.0
        && product.beta == 1.0
        && !product.a_transposed
        && product.packed
        && product.addend == Addend::Columns;
    let launch = fits.then(|| select(request.device.isa, product.columns, relu)).flatten()?;
    let (n, transposed) = (product.columns, product.b_transposed);
    // SAFETY: the functions below take no state, do not unwind, and use the four references of this node.
    let prepared = unsafe { Prepared::raw(launch, ()) };
    let id = layout_id(&[4, n as u64, u64::from(transposed)]);
    Some(prepared.with_packed(1, id, n * n * 4, 64, move |src, dst| {
        let (src, dst) = (to_weights(src)?, as_f32s_mut(dst)?);
        for i in 0..n {
            for j in 0..n {
                dst[i * n + j] = if transposed { src[j * n + i] } else { src[i * n + j] };
            }
        }
        Ok(())
    }))
}

/// Functions of an instruction set: by columns, the vectors that they are, and the chains of sums of each.
macro_rules! layers {
    ($n:ident, $relu:ident, $arith:ty $(, $features:literal)?: $($columns:literal: $vectors:literal x $chains:literal)*) => {{
        /// # Safety
        /// As `LaunchFn`, with the operands of [`crate::kernels::prepare`]; the processor has the instructions.
        $(#[target_feature(enable = $features)])?
        unsafe extern "C" fn layer<const N: usize, const V: usize, const CHAINS: usize, const RELU: bool>(
            _state: *const c_void,
            _stream: *mut Stream,
            refs: *const BufferRef,
            _dims: *const i64,
        ) -> Status {
            // SAFETY: there are the operands and the instructions (# Safety).
            unsafe { layer_body::<$arith, N, V, CHAINS, RELU>(refs) };
            DEVBAY_STATUS_OK
        }
        match ($n, $relu) {
            $(
                ($columns, false) => Some(layer::<$columns, $vectors, $chains, false> as LaunchFn),
                ($columns, true) => Some(layer::<$columns, $vectors, $chains, true> as LaunchFn),
            )*
            _ => None,
        }
    }};
}

/// The function for an instruction set and a size. Sums and a factor fit the registers, whose number is
/// [`Arith::REGISTERS`]: four chains of 32 columns would not fit those of AVX2 and NEON.
fn select(isa: Isa, n: usize, relu: bool) -> Option<LaunchFn> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => layers!(n, relu, crate::isa::Fused, "avx2,fma": 8: 1 x 4 16: 2 x 2 32: 4 x 2),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if n == 8 => select(Isa::Avx2, n, relu),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => layers!(
            n, relu, crate::isa::FusedWide, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma":
            16: 1 x 4 32: 2 x 4
        ),
        #[cfg(target_arch = "aarch64")]
        Isa::Baseline => layers!(n, relu, crate::isa::Baseline: 8: 2 x 4 16: 4 x 4 32: 8 x 2),
        _ => None,
    }
}

/// `y = x W + b` of `N` columns, `V` vectors.
///
/// # Safety
/// The references are those of x, W, b and y, of `N`, `N * N`, `N` and `N` elements (the host's promise, B21); the processor
/// has the instructions.
#[inline(always)]
unsafe fn layer_body<A: Arith, const N: usize, const V: usize, const CHAINS: usize, const RELU: bool>(
    refs: *const BufferRef,
) {
    const { assert!(V * A::Lanes::N == N && N.is_multiple_of(CHAINS)) };
    let n = A::Lanes::N;
    // SAFETY: there are four references (# Safety).
    let addr = |i: usize| unsafe { (*refs.add(i)).addr };
    let (x, w, b, y) =
        (addr(0) as *const f32, addr(1) as *const f32, addr(2) as *const f32, addr(3) as *mut f32);
    // SAFETY: the processor has the instructions (# Safety).
    let zero = unsafe { A::Lanes::splat(0.0) };
    let mut sums = [[zero; CHAINS]; V];
    unrolled!(v below V {
        // SAFETY: b has `N` elements (# Safety).
        sums[v][0] = unsafe { A::Lanes::load(b.wrapping_add(v * n)) };
    });
    for first in (0..N).step_by(CHAINS) {
        unrolled!(chain below CHAINS {
            let i = first + chain;
            // SAFETY: x has `N` elements, and the processor has the instructions (# Safety).
            let factor = unsafe { A::Lanes::splat(*x.wrapping_add(i)) };
            unrolled!(v below V {
                // SAFETY: W has `N` rows of `N` elements (# Safety).
                let row = unsafe { A::Lanes::load(w.wrapping_add(i * N + v * n)) };
                sums[v][chain] = factor.fma(row, sums[v][chain]);
            });
        });
    }
    unrolled!(v below V {
        let mut sum = sums[v][0].add(sums[v][1]);
        if CHAINS == 4 {
            sum = sum.add(sums[v][2].add(sums[v][3]));
        }
        let sum = if RELU { sum.at_least(zero) } else { sum };
        // SAFETY: y has `N` elements (# Safety).
        unsafe { sum.store(y.wrapping_add(v * n)) };
    });
}
