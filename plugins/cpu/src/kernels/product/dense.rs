//! One row times a small square matrix, plus a vector, perhaps cut off at zero: the layers of tiny networks.
//!
//! At these sizes a general product is all overhead, so each size has a function of its own that the host calls
//! without anything in between. The sums run in four chains, to hide the latency of an addition.
//!
//! The cut keeps what is no number, as [`Lanes::at_least`](crate::lanes::Lanes::at_least) does: the instruction gives
//! its second operand unless the first is larger.

use crate::device::CpuDevice;
use crate::isa::Isa;
use crate::kernels::product::epilogue::Activation;
use crate::kernels::product::matmul::{Addend, Product};
use crate::kernels::product::micro::{as_f32s_mut, layout_id, to_f32s};
use devbay_plugin_api::abi::{BufferRef, DEVBAY_STATUS_OK, LaunchFn, Status};
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
        let (src, dst) = (to_f32s(src)?, as_f32s_mut(dst)?);
        for i in 0..n {
            for j in 0..n {
                dst[i * n + j] = if transposed { src[j * n + i] } else { src[i * n + j] };
            }
        }
        Ok(())
    }))
}

#[cfg(target_arch = "x86_64")]
fn select(isa: Isa, n: usize, relu: bool) -> Option<LaunchFn> {
    Some(match (isa, n, relu) {
        (Isa::Baseline, ..) => return None,
        (_, 8, false) => x86::eight::<false>,
        (_, 8, true) => x86::eight::<true>,
        (Isa::Avx2, 16, false) => x86::wide::<16, 2, false>,
        (Isa::Avx2, 16, true) => x86::wide::<16, 2, true>,
        (Isa::Avx2, 32, false) => x86::wide::<32, 4, false>,
        (Isa::Avx2, 32, true) => x86::wide::<32, 4, true>,
        (Isa::Avx512, 16, false) => x86::widest::<16, 1, false>,
        (Isa::Avx512, 16, true) => x86::widest::<16, 1, true>,
        (Isa::Avx512, 32, false) => x86::widest::<32, 2, false>,
        (Isa::Avx512, 32, true) => x86::widest::<32, 2, true>,
        _ => return None,
    })
}

#[cfg(not(target_arch = "x86_64"))]
fn select(_isa: Isa, _n: usize, _relu: bool) -> Option<LaunchFn> {
    None
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{BufferRef, DEVBAY_STATUS_OK, Status, c_void};
    use devbay_plugin_api::abi::Stream;
    use std::arch::x86_64::*;

    /// The four operands' addresses: x, W, b, y.
    ///
    /// # Safety
    /// `refs` has four references.
    #[inline(always)]
    unsafe fn operands(refs: *const BufferRef) -> (*const f32, *const f32, *const f32, *mut f32) {
        // SAFETY: `refs` has four references (# Safety).
        let addr = |i: usize| unsafe { (*refs.add(i)).addr };
        (addr(0) as *const f32, addr(1) as *const f32, addr(2) as *const f32, addr(3) as *mut f32)
    }

    /// Eight columns: one vector of AVX.
    ///
    /// # Safety
    /// As `LaunchFn`, with the operands of [`crate::kernels::prepare`]; the processor has AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub unsafe extern "C" fn eight<const RELU: bool>(
        _state: *const c_void,
        _stream: *mut Stream,
        refs: *const BufferRef,
        _dims: *const i64,
    ) -> Status {
        // SAFETY: the operands have 8, 64, 8 and 8 elements (the host's promise, B21).
        unsafe {
            let (x, w, b, y) = operands(refs);
            let mut sums =
                [_mm256_loadu_ps(b), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()];
            for i in 0..8 {
                let row = _mm256_loadu_ps(w.add(i * 8));
                sums[i & 3] = _mm256_fmadd_ps(_mm256_broadcast_ss(&*x.add(i)), row, sums[i & 3]);
            }
            let sum = _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]));
            _mm256_storeu_ps(y, if RELU { _mm256_max_ps(_mm256_setzero_ps(), sum) } else { sum });
        }
        DEVBAY_STATUS_OK
    }

    /// `N` columns in `C` vectors of AVX.
    ///
    /// # Safety
    /// As [`eight`].
    #[target_feature(enable = "avx2,fma")]
    pub unsafe extern "C" fn wide<const N: usize, const C: usize, const RELU: bool>(
        _state: *const c_void,
        _stream: *mut Stream,
        refs: *const BufferRef,
        _dims: *const i64,
    ) -> Status {
        // Two chains: four would not fit the sixteen registers at 32 columns.
        // SAFETY: the operands have `N`, `N * N`, `N` and `N` elements (the host's promise, B21).
        unsafe {
            let (x, w, b, y) = operands(refs);
            let mut sums = [[_mm256_setzero_ps(); 2]; C];
            for (c, sum) in sums.iter_mut().enumerate() {
                sum[0] = _mm256_loadu_ps(b.add(c * 8));
            }
            for i in 0..N {
                let xi = _mm256_broadcast_ss(&*x.add(i));
                for (c, sum) in sums.iter_mut().enumerate() {
                    sum[i & 1] = _mm256_fmadd_ps(xi, _mm256_loadu_ps(w.add(i * N + c * 8)), sum[i & 1]);
                }
            }
            for (c, sum) in sums.iter().enumerate() {
                let sum = _mm256_add_ps(sum[0], sum[1]);
                _mm256_storeu_ps(
                    y.add(c * 8),
                    if RELU { _mm256_max_ps(_mm256_setzero_ps(), sum) } else { sum },
                );
            }
        }
        DEVBAY_STATUS_OK
    }

    /// `N` columns in `C` vectors of AVX-512.
    ///
    /// # Safety
    /// As [`eight`], with AVX-512 F.
    #[target_feature(enable = "avx512f")]
    pub unsafe extern "C" fn widest<const N: usize, const C: usize, const RELU: bool>(
        _state: *const c_void,
        _stream: *mut Stream,
        refs: *const BufferRef,
        _dims: *const i64,
    ) -> Status {
        // SAFETY: the operands have `N`, `N * N`, `N` and `N` elements (the host's promise, B21).
        unsafe {
            let (x, w, b, y) = operands(refs);
            let mut sums = [[_mm512_setzero_ps(); 4]; C];
            for (c, sum) in sums.iter_mut().enumerate() {
                sum[0] = _mm512_loadu_ps(b.add(c * 16));
            }
            for i in 0..N {
                let xi = _mm512_set1_ps(*x.add(i));
                for (c, sum) in sums.iter_mut().enumerate() {
                    sum[i & 3] = _mm512_fmadd_ps(xi, _mm512_loadu_ps(w.add(i * N + c * 16)), sum[i & 3]);
                }
            }
            for (c, sum) in sums.iter().enumerate() {
                let sum = _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3]));
                _mm512_storeu_ps(
                    y.add(c * 16),
                    if RELU { _mm512_max_ps(_mm512_setzero_ps(), sum) } else { sum },
                );
            }
        }
        DEVBAY_STATUS_OK
    }
}
