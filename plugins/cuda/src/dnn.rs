//! cuDNN, NVIDIA's library of convolutions, where it is installed.
//!
//! A handle of the library's is for one thread at a time and enqueues on one stream, so each stream has its own, made at its
//! first convolution. The library chooses the algorithm when a kernel is prepared; one that gives the same
//! numbers each time. Without one, or without the library, the plugin's own kernels do it.
//!
//! Functions and numbers are those of cudnn.h 8 and 9; the functions are the older ones, which have no graph to build.

use crate::device::Shared;
use crate::driver::Handle;
use crate::library::{self, functions};
use crate::stream::CudaStream;
use devbay_plugin_api::abi::{DEVBAY_NUMERICS_BF16, DEVBAY_NUMERICS_F16, DEVBAY_NUMERICS_TF32};
use devbay_plugin_api::locks::lock;
use devbay_plugin_api::sdk::{Error, Result};
use devbay_shaders::step::Convolution;
use libloading::Library;
use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

/// Bytes of workspace that an algorithm may have.
const WORKSPACE_MAX: usize = 256 << 20;
/// Algorithms that the library is asked for.
const FOUND_MAX: usize = 8;

/// `CUDNN_DATA_FLOAT`, `_HALF`.
const FLOAT: c_int = 0;
const HALF: c_int = 2;
/// `CUDNN_TENSOR_NCHW`.
const NCHW: c_int = 0;
/// `CUDNN_CROSS_CORRELATION`: ONNX's convolution, which does not turn its filters.
const CROSS_CORRELATION: c_int = 1;
/// `CUDNN_ACTIVATION_RELU`, `CUDNN_PROPAGATE_NAN`.
const RELU: c_int = 1;
const PROPAGATE_NAN: c_int = 1;
/// `CUDNN_DETERMINISTIC`.
const DETERMINISTIC: c_int = 1;

/// Numbers of `cudnnMathType_t`.
mod math {
    use std::ffi::c_int;

    /// Products in the tensors' own type; TF32 for those in f32.
    pub const TENSOR_OP: c_int = 1;
    /// As above, of inputs that are rounded to f16.
    pub const TENSOR_OP_ALLOW_CONVERSION: c_int = 2;
    /// Products in f32.
    pub const FMA: c_int = 3;
}

/// `cudnnConvolutionFwdAlgoPerf_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Found {
    algorithm: c_int,
    status: c_int,
    time: f32,
    memory: usize,
    determinism: c_int,
    math: c_int,
    reserved: [c_int; 3],
}

const _: () = assert!(size_of::<Found>() == 48);

functions! {
    "cuDNN";
    create: "cudnnCreate", fn(*mut Handle);
    destroy: "cudnnDestroy", fn(Handle);
    set_stream: "cudnnSetStream", fn(Handle, Handle);
    tensor_create: "cudnnCreateTensorDescriptor", fn(*mut Handle);
    tensor_set: "cudnnSetTensor4dDescriptor", fn(Handle, c_int, c_int, c_int, c_int, c_int, c_int);
    tensor_destroy: "cudnnDestroyTensorDescriptor", fn(Handle);
    filter_create: "cudnnCreateFilterDescriptor", fn(*mut Handle);
    filter_set: "cudnnSetFilter4dDescriptor", fn(Handle, c_int, c_int, c_int, c_int, c_int, c_int);
    filter_destroy: "cudnnDestroyFilterDescriptor", fn(Handle);
    window_create: "cudnnCreateConvolutionDescriptor", fn(*mut Handle);
    window_set: "cudnnSetConvolution2dDescriptor",
        fn(Handle, c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int);
    window_groups: "cudnnSetConvolutionGroupCount", fn(Handle, c_int);
    window_math: "cudnnSetConvolutionMathType", fn(Handle, c_int);
    window_destroy: "cudnnDestroyConvolutionDescriptor", fn(Handle);
    activation_create: "cudnnCreateActivationDescriptor", fn(*mut Handle);
    activation_set: "cudnnSetActivationDescriptor", fn(Handle, c_int, c_int, f64);
    activation_destroy: "cudnnDestroyActivationDescriptor", fn(Handle);
    find: "cudnnGetConvolutionForwardAlgorithm_v7",
        fn(Handle, Handle, Handle, Handle, Handle, c_int, *mut c_int, *mut Found);
    forward: "cudnnConvolutionForward",
        fn(Handle, *const f32, Handle, u64, Handle, u64, Handle, c_int, u64, usize, *const f32, Handle, u64);
    forward_relu: "cudnnConvolutionBiasActivationForward",
        fn(Handle, *const f32, Handle, u64, Handle, u64, Handle, c_int, u64, usize, *const f32, Handle, u64, Handle, u64,
           Handle, Handle, u64);
}

/// The library.
pub struct Dnn {
    functions: Functions,
    /// Stays open: instances of the plugin come and go.
    _library: ManuallyDrop<Library>,
}

/// The library's names for the loader, the newest first.
const NAMES: &[&str] = match cfg!(windows) {
    true => &["cudnn64_9.dll", "cudnn64_8.dll"],
    false => &["libcudnn.so.9", "libcudnn.so.8", "libcudnn.so"],
};

impl Dnn {
    /// Opens the library at a path; without one, the newest that the loader finds.
    ///
    /// # Errors
    /// Unavailable with what was looked for.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let library = library::open("cuDNN", path, NAMES.iter().copied())?;
        let functions = Functions::load(&library)?;
        Ok(Self { functions, _library: ManuallyDrop::new(library) })
    }
}

/// A code of the library's as a result.
fn done(call: &str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        // CUDNN_STATUS_NOT_SUPPORTED of version 8, and those of version 9.
        9 | 3000..=3999 => Err(Error::unsupported(format!("{call}: this convolution"))),
        _ => Err(Error::internal(format!("{call} failed with cuDNN's code {code}"))),
    }
    .map_err(|error: Error| error.with_native_code(i64::from(code)))
}

/// Object of the library, given back when it goes. Descriptors are the host's memory alone; for handles the context is
/// current then.
struct Owned {
    raw: Handle,
    dnn: Arc<Result<Dnn>>,
    destroy: fn(&Functions) -> unsafe extern "C" fn(Handle) -> c_int,
}

impl Owned {
    fn new(
        dnn: &Arc<Result<Dnn>>,
        create: fn(&Functions) -> unsafe extern "C" fn(*mut Handle) -> c_int,
        destroy: fn(&Functions) -> unsafe extern "C" fn(Handle) -> c_int,
    ) -> Result<Self> {
        let functions = &dnn.as_ref().as_ref().map_err(Clone::clone)?.functions;
        let mut raw = null_mut();
        // SAFETY: a place for a handle; the context is current.
        done("making a descriptor of cuDNN's", unsafe { create(functions)(&mut raw) })?;
        Ok(Self { raw, dnn: Arc::clone(dnn), destroy })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Ok(dnn) = self.dnn.as_ref() {
            // SAFETY: made by `new`, destroyed once.
            unsafe { (self.destroy)(&dnn.functions)(self.raw) };
        }
    }
}

/// A handle of the library's, for one thread at a time.
pub struct DnnHandle(Owned);

// SAFETY: the library ties a handle to no thread, but to a device.
unsafe impl Send for DnnHandle {}
// SAFETY: who uses one sees to it that nobody else does: launches on its stream come one at a time (B17), plans hold a lock.
unsafe impl Sync for DnnHandle {}

impl DnnHandle {
    fn new(dnn: &Arc<Result<Dnn>>) -> Result<Self> {
        Owned::new(dnn, |f| f.create, |f| f.destroy).map(Self)
    }

    /// One that enqueues on a stream, and ends before it; the context is current.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn on(stream: &CudaStream) -> Result<Self> {
        let dnn = &stream.shared().dnn;
        let own = Self::new(dnn)?;
        let functions = &dnn.as_ref().as_ref().map_err(Clone::clone)?.functions;
        // SAFETY: both live, the stream as long as this.
        done("cudnnSetStream", unsafe { (functions.set_stream)(own.0.raw, stream.raw()) })?;
        Ok(own)
    }
}

/// The handle by which a device's kernels are planned, made when it is first wanted.
#[derive(Default)]
pub struct Planner(Mutex<Option<DnnHandle>>);

impl Planner {
    /// Gives it back; the context is current.
    pub fn destroy(&self) {
        drop(lock(&self.0).take());
    }
}

/// A convolution that the library does: what a launch hands on.
pub struct Convolver {
    shared: Arc<Shared>,
    x: Owned,
    w: Owned,
    window: Owned,
    y: Owned,
    /// Of the bias, and of Relu.
    rest: Option<(Owned, Owned)>,
    /// True if there is a residual.
    adds: bool,
    algorithm: c_int,
    workspace_bytes: usize,
}

// SAFETY: nothing of it changes after it was made; the library reads descriptors from any thread.
unsafe impl Send for Convolver {}
// SAFETY: as for Send.
unsafe impl Sync for Convolver {}

/// Addresses of one launch; 0 for what there is not.
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
    /// For a convolution, if the library does such.
    ///
    /// # Errors
    /// Unavailable without the library; unsupported if it has no algorithm that gives the same each time.
    pub fn new(shared: &Arc<Shared>, conv: &Convolution) -> Result<Self> {
        let dnn = &shared.dnn;
        let functions = &dnn.as_ref().as_ref().map_err(Clone::clone)?.functions;
        let _current = shared.current()?;
        let int = |n: u64| c_int::try_from(n).map_err(|_| Error::unsupported(format!("an extent of {n}")));
        let element = if conv.element == "f16" { HALF } else { FLOAT };
        let tensor = |[n, c, h, w]: [u64; 4]| -> Result<Owned> {
            let owned = Owned::new(dnn, |f| f.tensor_create, |f| f.tensor_destroy)?;
            let [n, c, h, w] = [int(n)?, int(c)?, int(h)?, int(w)?];
            // SAFETY: the descriptor was just made.
            let code = unsafe { (functions.tensor_set)(owned.raw, NCHW, element, n, c, h, w) };
            done("cudnnSetTensor4dDescriptor", code)?;
            Ok(owned)
        };
        let channels = conv.c_out * conv.groups;
        let x = tensor([conv.images, conv.c_in * conv.groups, conv.input[0], conv.input[1]])?;
        let y = tensor([conv.images, channels, conv.output[0], conv.output[1]])?;
        let w = Owned::new(dnn, |f| f.filter_create, |f| f.filter_destroy)?;
        let [k, c, kh, kw] = [int(channels)?, int(conv.c_in)?, int(conv.kernel[0])?, int(conv.kernel[1])?];
        // SAFETY: the descriptor was just made.
        let code = unsafe { (functions.filter_set)(w.raw, element, NCHW, k, c, kh, kw) };
        done("cudnnSetFilter4dDescriptor", code)?;
        let window = Owned::new(dnn, |f| f.window_create, |f| f.window_destroy)?;
        let pair = |[h, w]: [u64; 2]| -> Result<[c_int; 2]> { Ok([int(h)?, int(w)?]) };
        let ([ph, pw], [sh, sw], [dh, dw]) = (pair(conv.pad)?, pair(conv.stride)?, pair(conv.dilation)?);
        // SAFETY: the descriptor was just made.
        let code =
            unsafe { (functions.window_set)(window.raw, ph, pw, sh, sw, dh, dw, CROSS_CORRELATION, FLOAT) };
        done("cudnnSetConvolution2dDescriptor", code)?;
        // SAFETY: as above.
        let code = unsafe { (functions.window_groups)(window.raw, int(conv.groups)?) };
        done("cudnnSetConvolutionGroupCount", code)?;
        let math = match conv.element {
            "f32" if conv.numerics & DEVBAY_NUMERICS_F16 != 0 => math::TENSOR_OP_ALLOW_CONVERSION,
            // TF32 rounds less than bf16 does.
            "f32" if conv.numerics & (DEVBAY_NUMERICS_TF32 | DEVBAY_NUMERICS_BF16) == 0 => math::FMA,
            _ => math::TENSOR_OP,
        };
        // SAFETY: as above.
        done("cudnnSetConvolutionMathType", unsafe { (functions.window_math)(window.raw, math) })?;
        let rest = match &conv.rest {
            None => None,
            Some(_) => {
                let relu = Owned::new(dnn, |f| f.activation_create, |f| f.activation_destroy)?;
                // SAFETY: the descriptor was just made.
                let code = unsafe { (functions.activation_set)(relu.raw, RELU, PROPAGATE_NAN, 0.0) };
                done("cudnnSetActivationDescriptor", code)?;
                Some((tensor([1, channels, 1, 1])?, relu))
            }
        };
        let adds = conv.rest.as_ref().is_some_and(|rest| rest.residual.is_some());
        let shared = Arc::clone(shared);
        let mut convolver = Self { shared, x, w, window, y, rest, adds, algorithm: 0, workspace_bytes: 0 };
        let found = convolver.find(functions, math)?;
        // SAFETY: as above; the algorithm is for this mode, which may be another than was asked for.
        let code = unsafe { (functions.window_math)(convolver.window.raw, found.math) };
        done("cudnnSetConvolutionMathType", code)?;
        (convolver.algorithm, convolver.workspace_bytes) = (found.algorithm, found.memory);
        Ok(convolver)
    }

    /// The first algorithm that may be used.
    fn find(&self, functions: &Functions, math: c_int) -> Result<Found> {
        const NONE: Found = Found {
            algorithm: 0,
            status: 0,
            time: 0.0,
            memory: 0,
            determinism: 0,
            math: 0,
            reserved: [0; 3],
        };
        let (mut found, mut n_found) = ([NONE; FOUND_MAX], 0);
        let mut planner = lock(&self.shared.dnn_planner.0);
        if planner.is_none() {
            *planner = Some(DnnHandle::new(&self.shared.dnn)?);
        }
        let handle = planner.as_ref().map_or(null_mut(), |handle| handle.0.raw);
        // SAFETY: all descriptors live; places for as many results as are said.
        let code = unsafe {
            (functions.find)(
                handle,
                self.x.raw,
                self.w.raw,
                self.window.raw,
                self.y.raw,
                FOUND_MAX as c_int,
                &mut n_found,
                found.as_mut_ptr(),
            )
        };
        done("cudnnGetConvolutionForwardAlgorithm", code)?;
        let n_found = (n_found.max(0) as usize).min(FOUND_MAX);
        // Nothing is rounded further than was asked for.
        let rounds_more = |found: &Found| match math {
            math::FMA => found.math != math::FMA,
            math::TENSOR_OP => found.math == math::TENSOR_OP_ALLOW_CONVERSION,
            _ => false,
        };
        let may = |found: &&Found| {
            found.status == 0
                && found.determinism == DETERMINISTIC
                && found.memory <= WORKSPACE_MAX
                && !rounds_more(found)
        };
        let none = || Error::unsupported("cuDNN has no algorithm for this convolution");
        found[..n_found].iter().find(may).copied().ok_or_else(none)
    }

    /// Bytes of workspace of a launch.
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
        let code = match &self.rest {
            // SAFETY: the addresses are of memory as the descriptors say, lent until a later point is reported (B9); the
            // workspace has the bytes that were asked for; the factors are read before the call returns. The stream's calls,
            // and so the handle's, come one at a time.
            None => unsafe {
                (functions.forward)(
                    handle,
                    &one,
                    self.x.raw,
                    at.x,
                    self.w.raw,
                    at.w,
                    self.window.raw,
                    self.algorithm,
                    at.scratch,
                    self.workspace_bytes,
                    &zero,
                    self.y.raw,
                    at.y,
                )
            },
            Some((bias, relu)) => {
                // Without a residual the result stands for it, with the factor 0.
                let (factor, z) = if self.adds { (&one, at.residual) } else { (&zero, at.y) };
                // SAFETY: as above.
                unsafe {
                    (functions.forward_relu)(
                        handle,
                        &one,
                        self.x.raw,
                        at.x,
                        self.w.raw,
                        at.w,
                        self.window.raw,
                        self.algorithm,
                        at.scratch,
                        self.workspace_bytes,
                        factor,
                        self.y.raw,
                        z,
                        bias.raw,
                        at.bias,
                        relu.raw,
                        self.y.raw,
                        at.y,
                    )
                }
            }
        };
        done("cudnnConvolutionForward", code)
    }
}
