//! cuDNN, NVIDIA's library of convolutions, where it is installed.
//!
//! A handle is for one thread at a time and enqueues on one stream, so each stream has its own, made at its first convolution.
//! When a kernel is prepared, the library chooses an algorithm that gives the same numbers each time. Without one, or without
//! the library, the plugin's own kernels run.
//!
//! cudarc declares the functions and enums, from cuDNN 8.9; version 9 has the same. The functions are the older ones, which have
//! no graph to build.

use crate::device::Shared;
use crate::driver::device_pointer;
use crate::library::{self, Room, call, functions, pointer, too_old};
use crate::stream::CudaStream;
use cudarc::cudnn::sys::{
    self, cudnnActivationMode_t, cudnnActivationStruct, cudnnContext, cudnnConvolutionFwdAlgo_t as Algorithm,
    cudnnConvolutionFwdAlgoPerf_t as Perf, cudnnConvolutionMode_t, cudnnConvolutionStruct, cudnnDataType_t,
    cudnnDeterminism_t, cudnnFilterStruct, cudnnMathType_t as Math, cudnnNanPropagation_t, cudnnStatus_t,
    cudnnTensorFormat_t, cudnnTensorStruct,
};
use devbay_plugin_api::abi::{DEVBAY_NUMERICS_BF16, DEVBAY_NUMERICS_F16, DEVBAY_NUMERICS_TF32};
use devbay_plugin_api::locks::lock;
use devbay_plugin_api::sdk::{Error, Result};
use devbay_shaders::step::Convolution;
use libloading::Library;
use std::ffi::c_int;
use std::mem::{ManuallyDrop, offset_of};
use std::path::Path;
use std::ptr::{from_ref, null_mut};
use std::sync::{Arc, Mutex};

/// Bytes of workspace that an algorithm may have.
const WORKSPACE_MAX: usize = 256 << 20;
/// Results that the library is asked for.
const FOUND_MAX: usize = 8;

/// One algorithm that the library has found.
#[derive(Clone, Copy)]
struct Found {
    algorithm: Algorithm,
    math: Math,
    workspace_bytes: usize,
}

functions! {
    Functions:
    cudnnCreate cudnnDestroy cudnnSetStream cudnnCreateTensorDescriptor cudnnSetTensor4dDescriptor
    cudnnDestroyTensorDescriptor cudnnCreateFilterDescriptor cudnnSetFilter4dDescriptor
    cudnnDestroyFilterDescriptor cudnnCreateConvolutionDescriptor cudnnSetConvolution2dDescriptor
    cudnnSetConvolutionGroupCount cudnnSetConvolutionMathType cudnnDestroyConvolutionDescriptor
    cudnnCreateActivationDescriptor cudnnSetActivationDescriptor cudnnDestroyActivationDescriptor
    cudnnGetConvolutionForwardAlgorithm_v7 cudnnConvolutionForward cudnnConvolutionBiasActivationForward
}

/// The library.
pub struct Dnn {
    functions: Functions,
    /// Stays open: instances of the plugin come and go.
    _library: ManuallyDrop<Library>,
}

/// File names for the loader, newest first.
const NAMES: &[&str] = match cfg!(windows) {
    true => &["cudnn64_9.dll", "cudnn64_8.dll"],
    false => &["libcudnn.so.9", "libcudnn.so.8", "libcudnn.so"],
};

impl Dnn {
    /// Opens the library at a path; without one, the newest that the loader finds.
    ///
    /// # Errors
    /// Unavailable, with the names that were tried.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let library = library::open("cuDNN", path, NAMES.iter().copied())?;
        let functions = Functions::load(&library, |_, error| too_old("cuDNN", error))?;
        Ok(Self { functions, _library: ManuallyDrop::new(library) })
    }
}

/// Turns a code of the library into a result.
fn done(call: &str, code: c_int) -> Result<()> {
    const NOT_SUPPORTED: c_int = cudnnStatus_t::CUDNN_STATUS_NOT_SUPPORTED as c_int;
    match code {
        0 => Ok(()),
        // Version 8 has one such code, version 9 a thousand.
        NOT_SUPPORTED | 3000..=3999 => Err(Error::unsupported(format!("{call}: this convolution"))),
        _ => Err(Error::internal(format!("{call} failed with cuDNN's code {code}"))),
    }
    .map_err(|error: Error| error.with_native_code(i64::from(code)))
}

/// Creates an object of the library.
type Create<T> = unsafe extern "C" fn(*mut *mut T) -> c_int;
/// Destroys an object of the library.
type Destroy<T> = unsafe extern "C" fn(*mut T) -> c_int;

/// An object of the library, destroyed when dropped. Descriptors are host memory alone; for a handle the context has to be
/// current then.
struct Owned<T> {
    raw: *mut T,
    destroy: Destroy<T>,
}

impl<T> Owned<T> {
    /// Creates one by a pair of functions for the same type of object.
    fn new((create, destroy): (Create<T>, Destroy<T>)) -> Result<Self> {
        let mut raw = null_mut();
        // SAFETY: the call writes `raw`, which outlives it; the caller has made the device's context current.
        done("making a descriptor of cuDNN's", unsafe { create(&mut raw) })?;
        Ok(Self { raw, destroy })
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed once, here; the library stays open.
        unsafe { (self.destroy)(self.raw) };
    }
}

/// A handle of the library, for one thread at a time.
pub struct DnnHandle(Owned<cudnnContext>);

// SAFETY: cuDNN ties a handle to a device, not to a thread.
unsafe impl Send for DnnHandle {}
// SAFETY: a handle has one user at a time: launches on its stream come one at a time (B17), and `Planner` holds a lock.
unsafe impl Sync for DnnHandle {}

impl DnnHandle {
    fn new(functions: &Functions) -> Result<Self> {
        let pair = (pointer!(functions, sys::cudnnCreate(_)), pointer!(functions, sys::cudnnDestroy(_)));
        Owned::new(pair).map(Self)
    }

    /// Makes a handle that enqueues on a stream, which has to outlive it. The context has to be current.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn on(stream: &CudaStream) -> Result<Self> {
        let functions = &stream.shared().dnn.as_ref().as_ref().map_err(Clone::clone)?.functions;
        let own = Self::new(functions)?;
        // SAFETY: the handle was just made; `CudaStream` drops it before its stream ends.
        done("cudnnSetStream", unsafe {
            call!(functions, sys::cudnnSetStream(own.0.raw, stream.raw().cast()))
        })?;
        Ok(own)
    }
}

/// The handle that chooses algorithms for a device's kernels, made on first use.
#[derive(Default)]
pub struct Planner(Mutex<Option<DnnHandle>>);

impl Planner {
    /// Destroys the handle. The context has to be current.
    pub fn destroy(&self) {
        drop(lock(&self.0).take());
    }
}

/// Algorithms that may be passed to the library.
const ALGORITHMS: [Algorithm; Algorithm::CUDNN_CONVOLUTION_FWD_ALGO_COUNT as usize] = [
    Algorithm::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
    Algorithm::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
    Algorithm::CUDNN_CONVOLUTION_FWD_ALGO_GEMM,
    Algorithm::CUDNN_CONVOLUTION_FWD_ALGO_DIRECT,
    Algorithm::CUDNN_CONVOLUTION_FWD_ALGO_FFT,
    Algorithm::CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING,
    Algorithm::CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD,
    Algorithm::CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED,
];
/// Modes of arithmetic that may be passed to the library.
const MATHS: [Math; 4] = [
    Math::CUDNN_DEFAULT_MATH,
    Math::CUDNN_TENSOR_OP_MATH,
    Math::CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION,
    Math::CUDNN_FMA_MATH,
];

/// A result of the library, as it comes.
type PerfRoom = Room<Perf, 6>;

/// Returns the algorithm of a result, if it works and gives the same numbers each time. One that cudarc's header does not name
/// is passed over.
fn usable(perf: &PerfRoom) -> Option<Found> {
    let is_deterministic =
        perf.int(offset_of!(Perf, determinism)) == cudnnDeterminism_t::CUDNN_DETERMINISTIC as c_int;
    if perf.int(offset_of!(Perf, status)) != 0 || !is_deterministic {
        return None;
    }
    let (algorithm, math) = (perf.int(offset_of!(Perf, algo)), perf.int(offset_of!(Perf, mathType)));
    Some(Found {
        algorithm: ALGORITHMS.into_iter().find(|known| *known as c_int == algorithm)?,
        math: MATHS.into_iter().find(|known| *known as c_int == math)?,
        workspace_bytes: perf.size(offset_of!(Perf, memory)),
    })
}

/// A convolution, prepared for launches.
pub struct Convolver {
    shared: Arc<Shared>,
    x: Owned<cudnnTensorStruct>,
    w: Owned<cudnnFilterStruct>,
    window: Owned<cudnnConvolutionStruct>,
    y: Owned<cudnnTensorStruct>,
    /// Descriptors of the bias and of Relu.
    rest: Option<(Owned<cudnnTensorStruct>, Owned<cudnnActivationStruct>)>,
    /// True if there is a residual.
    adds: bool,
    algorithm: Algorithm,
    workspace_bytes: usize,
}

// SAFETY: nothing changes it once `new` has returned, and the library only reads the descriptors.
unsafe impl Send for Convolver {}
// SAFETY: nothing changes it once `new` has returned, and the library only reads the descriptors.
unsafe impl Sync for Convolver {}

/// Addresses of one launch; 0 for an operand that is absent.
pub struct Addresses {
    /// Images.
    pub x: u64,
    /// Filters.
    pub w: u64,
    /// Results.
    pub y: u64,
    /// Numbers of the channels.
    pub bias: u64,
    /// Address of the addend.
    pub residual: u64,
    /// The workspace.
    pub scratch: u64,
}

impl Convolver {
    /// Prepares a convolution, if the library has an algorithm for it.
    ///
    /// # Errors
    /// Unavailable without the library; unsupported if it has no algorithm that gives the same each time.
    pub fn new(shared: &Arc<Shared>, conv: &Convolution) -> Result<Self> {
        let functions = &shared.dnn.as_ref().as_ref().map_err(Clone::clone)?.functions;
        let _current = shared.current()?;
        let int = |n: u64| c_int::try_from(n).map_err(|_| Error::unsupported(format!("an extent of {n}")));
        let float = cudnnDataType_t::CUDNN_DATA_FLOAT;
        let element = if conv.element == "f16" { cudnnDataType_t::CUDNN_DATA_HALF } else { float };
        let format = cudnnTensorFormat_t::CUDNN_TENSOR_NCHW;
        let tensor = |[n, c, h, w]: [u64; 4]| -> Result<Owned<cudnnTensorStruct>> {
            let owned = Owned::new((
                pointer!(functions, sys::cudnnCreateTensorDescriptor(_)),
                pointer!(functions, sys::cudnnDestroyTensorDescriptor(_)),
            ))?;
            let [n, c, h, w] = [int(n)?, int(c)?, int(h)?, int(w)?];
            // SAFETY: the descriptor was just made.
            let code = unsafe {
                call!(functions, sys::cudnnSetTensor4dDescriptor(owned.raw, format, element, n, c, h, w))
            };
            done("cudnnSetTensor4dDescriptor", code)?;
            Ok(owned)
        };
        let channels = conv.c_out * conv.groups;
        let x = tensor([conv.images, conv.c_in * conv.groups, conv.input[0], conv.input[1]])?;
        let y = tensor([conv.images, channels, conv.output[0], conv.output[1]])?;
        let w = Owned::new((
            pointer!(functions, sys::cudnnCreateFilterDescriptor(_)),
            pointer!(functions, sys::cudnnDestroyFilterDescriptor(_)),
        ))?;
        let [k, c, kh, kw] = [int(channels)?, int(conv.c_in)?, int(conv.kernel[0])?, int(conv.kernel[1])?];
        // SAFETY: the descriptor was just made.
        let code = unsafe {
            call!(functions, sys::cudnnSetFilter4dDescriptor(w.raw, element, format, k, c, kh, kw))
        };
        done("cudnnSetFilter4dDescriptor", code)?;
        let window = Owned::new((
            pointer!(functions, sys::cudnnCreateConvolutionDescriptor(_)),
            pointer!(functions, sys::cudnnDestroyConvolutionDescriptor(_)),
        ))?;
        let pair = |[h, w]: [u64; 2]| -> Result<[c_int; 2]> { Ok([int(h)?, int(w)?]) };
        // ONNX's convolution, which does not turn its filters.
        let mode = cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        let ([ph, pw], [sh, sw], [dh, dw]) = (pair(conv.pad)?, pair(conv.stride)?, pair(conv.dilation)?);
        // SAFETY: the descriptor was just made.
        let code = unsafe {
            call!(
                functions,
                sys::cudnnSetConvolution2dDescriptor(window.raw, ph, pw, sh, sw, dh, dw, mode, float)
            )
        };
        done("cudnnSetConvolution2dDescriptor", code)?;
        // SAFETY: `window` was made above, and only this function has it.
        let code =
            unsafe { call!(functions, sys::cudnnSetConvolutionGroupCount(window.raw, int(conv.groups)?)) };
        done("cudnnSetConvolutionGroupCount", code)?;
        // Without conversion, products are in the tensors' own type, or in TF32 for those in f32.
        let math = match conv.element {
            "f32" if conv.numerics & DEVBAY_NUMERICS_F16 != 0 => Math::CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION,
            // TF32 rounds less than bf16 does.
            "f32" if conv.numerics & (DEVBAY_NUMERICS_TF32 | DEVBAY_NUMERICS_BF16) == 0 => {
                Math::CUDNN_FMA_MATH
            }
            _ => Math::CUDNN_TENSOR_OP_MATH,
        };
        // SAFETY: `window` was made above, and only this function has it.
        done("cudnnSetConvolutionMathType", unsafe {
            call!(functions, sys::cudnnSetConvolutionMathType(window.raw, math))
        })?;
        let rest = match &conv.rest {
            None => None,
            Some(_) => {
                let relu = Owned::new((
                    pointer!(functions, sys::cudnnCreateActivationDescriptor(_)),
                    pointer!(functions, sys::cudnnDestroyActivationDescriptor(_)),
                ))?;
                let mode = cudnnActivationMode_t::CUDNN_ACTIVATION_RELU;
                let nan = cudnnNanPropagation_t::CUDNN_PROPAGATE_NAN;
                // SAFETY: the descriptor was just made.
                let code =
                    unsafe { call!(functions, sys::cudnnSetActivationDescriptor(relu.raw, mode, nan, 0.0)) };
                done("cudnnSetActivationDescriptor", code)?;
                Some((tensor([1, channels, 1, 1])?, relu))
            }
        };
        let adds = conv.rest.as_ref().is_some_and(|rest| rest.residual.is_some());
        let shared = Arc::clone(shared);
        let mut convolver =
            Self { shared, x, w, window, y, rest, adds, algorithm: ALGORITHMS[0], workspace_bytes: 0 };
        let found = convolver.find(functions, math)?;
        // SAFETY: `convolver` owns the descriptor, and only this function has it. The algorithm is for the mode that
        // `find` returned, which may differ from the requested one.
        let code =
            unsafe { call!(functions, sys::cudnnSetConvolutionMathType(convolver.window.raw, found.math)) };
        done("cudnnSetConvolutionMathType", code)?;
        (convolver.algorithm, convolver.workspace_bytes) = (found.algorithm, found.workspace_bytes);
        Ok(convolver)
    }

    /// Returns the library's first choice among the algorithms that may be used.
    fn find(&self, functions: &Functions, math: Math) -> Result<Found> {
        let (mut found, mut n_found) = ([PerfRoom::ZERO; FOUND_MAX], 0);
        let mut planner = lock(&self.shared.dnn_planner.0);
        if planner.is_none() {
            *planner = Some(DnnHandle::new(functions)?);
        }
        let handle = planner.as_ref().map_or(null_mut(), |handle| handle.0.raw);
        // SAFETY: `self` owns the descriptors, and the lock keeps the handle; `found` has room for `FOUND_MAX` results.
        let code = unsafe {
            call!(
                functions,
                sys::cudnnGetConvolutionForwardAlgorithm_v7(
                    handle,
                    self.x.raw,
                    self.w.raw,
                    self.window.raw,
                    self.y.raw,
                    FOUND_MAX as c_int,
                    &mut n_found,
                    found.as_mut_ptr().cast(),
                )
            )
        };
        done("cudnnGetConvolutionForwardAlgorithm", code)?;
        let n_found = (n_found.max(0) as usize).min(FOUND_MAX);
        // Nothing is rounded further than was asked for.
        let rounds_more = |found: &Found| match math {
            Math::CUDNN_FMA_MATH => found.math != Math::CUDNN_FMA_MATH,
            Math::CUDNN_TENSOR_OP_MATH => found.math == Math::CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION,
            _ => false,
        };
        let may = |found: &Found| found.workspace_bytes <= WORKSPACE_MAX && !rounds_more(found);
        let none = || Error::unsupported("cuDNN has no algorithm for this convolution");
        found[..n_found].iter().filter_map(usable).find(may).ok_or_else(none)
    }

    /// Returns the bytes of workspace that a launch needs.
    pub fn workspace_bytes(&self) -> u64 {
        self.workspace_bytes as u64
    }

    /// Enqueues the convolution; the context is current.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn launch(&self, at: &Addresses, stream: &CudaStream) -> Result<()> {
        let functions = &self.shared.dnn.as_ref().as_ref().map_err(Clone::clone)?.functions;
        let handle = stream.dnn_handle()?.0.raw;
        let (one, zero) = (1f32, 0f32);
        let (one, zero) = (from_ref(&one).cast(), from_ref(&zero).cast());
        let code = match &self.rest {
            // SAFETY: the operands have the descriptors' sizes, and the host lends them until a later point is reported (B9);
            // the workspace has the bytes that the algorithm asked for; the call reads the factors before it returns. Calls on
            // the stream, and so on its handle, come one at a time (B17).
            None => unsafe {
                call!(
                    functions,
                    sys::cudnnConvolutionForward(
                        handle,
                        one,
                        self.x.raw,
                        device_pointer(at.x),
                        self.w.raw,
                        device_pointer(at.w),
                        self.window.raw,
                        self.algorithm,
                        device_pointer(at.scratch),
                        self.workspace_bytes,
                        zero,
                        self.y.raw,
                        device_pointer(at.y),
                    )
                )
            },
            Some((bias, relu)) => {
                // Without a residual the result is passed in its place, with the factor 0.
                let (factor, z) = if self.adds { (one, at.residual) } else { (zero, at.y) };
                // SAFETY: the operands have the descriptors' sizes, and the host lends them until a later point is
                // reported (B9); the workspace has the bytes that the algorithm asked for; the call reads the factors
                // before it returns. Calls on the stream, and so on its handle, come one at a time (B17).
                unsafe {
                    call!(
                        functions,
                        sys::cudnnConvolutionBiasActivationForward(
                            handle,
                            one,
                            self.x.raw,
                            device_pointer(at.x),
                            self.w.raw,
                            device_pointer(at.w),
                            self.window.raw,
                            self.algorithm,
                            device_pointer(at.scratch),
                            self.workspace_bytes,
                            factor,
                            self.y.raw,
                            device_pointer(z),
                            bias.raw,
                            device_pointer(at.bias),
                            relu.raw,
                            self.y.raw,
                            device_pointer(at.y),
                        )
                    )
                }
            }
        };
        done("cudnnConvolutionForward", code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_algorithm_that_no_header_names_is_passed_over() {
        let of = |algorithm: c_int, status: c_int| {
            let mut perf = PerfRoom::ZERO;
            perf.set(offset_of!(Perf, algo), algorithm);
            perf.set(offset_of!(Perf, status), status);
            perf.set(offset_of!(Perf, determinism), 1);
            usable(&perf).map(|found| found.algorithm)
        };
        assert_eq!(of(1, 0), Some(Algorithm::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM));
        assert_eq!(of(8, 0), None);
        assert_eq!(of(98765, 0), None);
        assert_eq!(of(1, 98765), None);
    }
}
