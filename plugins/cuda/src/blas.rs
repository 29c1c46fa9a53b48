//! cuBLASLt, NVIDIA's library of matrix products, where it is installed.
//!
//! Its matrices are stored by columns. A row-major matrix is its transpose there, so that `Y = A B` is asked for as
//! `Y' = B' A'`: B first, columns for rows. The library chooses the algorithm when a kernel is prepared,
//! so that launches do the same every time; without an algorithm, or without the library, the plugin's own kernels multiply.
//!
//! Functions and numbers are those of cublasLt.h of CUDA 12 and 13.

use crate::device::Shared;
use crate::driver::Handle;
use crate::library::{self, functions};
use crate::stream::CudaStream;
use devbay_plugin_api::abi::{DEVBAY_NUMERICS_BF16, DEVBAY_NUMERICS_F16, DEVBAY_NUMERICS_TF32};
use devbay_plugin_api::sdk::{Error, LogLevel, Result};
use devbay_shaders::step::{Gemm, Matrix};
use libloading::Library;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr::{from_ref, null_mut};
use std::sync::{Arc, OnceLock};

/// Bytes of workspace that an algorithm may have: what NVIDIA advises for its newest devices.
const WORKSPACE_MAX: u64 = 32 << 20;

/// `CUDA_R_32F` and `CUDA_R_16F`.
const R_32F: c_int = 0;
const R_16F: c_int = 2;

/// Numbers of `cublasComputeType_t`.
mod compute {
    use std::ffi::c_int;

    pub const F32: c_int = 68;
    pub const FAST_F16: c_int = 74;
    pub const FAST_BF16: c_int = 75;
    pub const FAST_TF32: c_int = 77;
}

/// Numbers of `cublasLtMatmulDescAttributes_t`.
mod desc {
    use std::ffi::c_int;

    pub const TRANSA: c_int = 3;
    pub const TRANSB: c_int = 4;
    pub const EPILOGUE: c_int = 7;
    pub const BIAS_POINTER: c_int = 8;
}

/// `CUBLASLT_EPILOGUE_BIAS`.
const EPILOGUE_BIAS: u32 = 4;
/// `CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT` and `_STRIDED_BATCH_OFFSET`.
const LAYOUT_BATCH_COUNT: c_int = 5;
const LAYOUT_BATCH_OFFSET: c_int = 6;
/// `CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES`.
const PREF_MAX_WORKSPACE: c_int = 1;

/// Room for a `cublasLtMatmulDesc_t` in place, which has had 23 to 32 words.
type DescRoom = [u64; 64];

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Found {
    algorithm: [u64; 8],
    workspace_bytes: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

const _: () = assert!(size_of::<Found>() == 96);

functions! {
    "cuBLASLt";
    create: "cublasLtCreate", fn(*mut Handle);
    destroy: "cublasLtDestroy", fn(Handle);
    desc_init: "cublasLtMatmulDescInit_internal", fn(*mut DescRoom, usize, c_int, c_int);
    desc_set: "cublasLtMatmulDescSetAttribute", fn(*mut DescRoom, c_int, *const c_void, usize);
    layout_create: "cublasLtMatrixLayoutCreate", fn(*mut Handle, c_int, u64, u64, i64);
    layout_set: "cublasLtMatrixLayoutSetAttribute", fn(Handle, c_int, *const c_void, usize);
    layout_destroy: "cublasLtMatrixLayoutDestroy", fn(Handle);
    pref_create: "cublasLtMatmulPreferenceCreate", fn(*mut Handle);
    pref_set: "cublasLtMatmulPreferenceSetAttribute", fn(Handle, c_int, *const c_void, usize);
    pref_destroy: "cublasLtMatmulPreferenceDestroy", fn(Handle);
    heuristic: "cublasLtMatmulAlgoGetHeuristic",
        fn(Handle, *const DescRoom, Handle, Handle, Handle, Handle, Handle, c_int, *mut Found, *mut c_int);
    matmul: "cublasLtMatmul",
        fn(Handle, *const DescRoom, *const f32, u64, Handle, u64, Handle, *const f32, u64, Handle, u64, Handle,
           *const [u64; 8], u64, usize, Handle);
}

/// The library.
pub struct Blas {
    functions: Functions,
    /// Stays open: instances of the plugin come and go.
    _library: ManuallyDrop<Library>,
}

/// The library's names for the loader, and the version of CUDA that they are of, the newest first; 0 for any.
const NAMES: &[(u32, &str)] = match cfg!(windows) {
    true => &[(13, "cublasLt64_13.dll"), (12, "cublasLt64_12.dll")],
    false => &[(13, "libcublasLt.so.13"), (12, "libcublasLt.so.12"), (0, "libcublasLt.so")],
};

impl Blas {
    /// Opens the library at a path; without one, the newest that the loader finds and that is no newer than the driver.
    ///
    /// # Errors
    /// Unavailable with what was looked for.
    pub fn open(path: Option<&Path>, driver_major: u32) -> Result<Self> {
        let usable = NAMES.iter().filter(|(version, _)| *version <= driver_major);
        let library = library::open("cuBLASLt", path, usable.map(|(_, name)| *name))?;
        let functions = Functions::load(&library)?;
        Ok(Self { functions, _library: ManuallyDrop::new(library) })
    }
}

/// A code of the library's as a result.
fn done(call: &str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        // CUBLAS_STATUS_ALLOC_FAILED.
        3 => Err(Error::out_of_memory(format!("{call} failed: too little memory"))),
        // CUBLAS_STATUS_NOT_SUPPORTED.
        15 => Err(Error::unsupported(format!("{call}: these matrices"))),
        _ => Err(Error::internal(format!("{call} failed with cuBLAS's code {code}"))),
    }
    .map_err(|error: Error| error.with_native_code(i64::from(code)))
}

/// A device's use of the library, made when it is first wanted.
#[derive(Default)]
pub struct Handles {
    handle: OnceLock<Option<LtHandle>>,
}

#[derive(Clone, Copy)]
struct LtHandle(Handle);

// SAFETY: the library's functions may be called with one handle from any thread, at once.
unsafe impl Send for LtHandle {}
// SAFETY: as for Send.
unsafe impl Sync for LtHandle {}

impl Handles {
    fn get(&self, shared: &Shared, blas: &Blas) -> Option<Handle> {
        let made = self.handle.get_or_init(|| {
            let _current = shared.current().ok()?;
            let mut handle = null_mut();
            // SAFETY: a place for a handle; the context is current.
            match done("cublasLtCreate", unsafe { (blas.functions.create)(&mut handle) }) {
                Ok(()) => Some(LtHandle(handle)),
                Err(error) => {
                    let text = format!("{}; products are the plugin's own", error.text());
                    shared.host.log(LogLevel::Warn, &text);
                    None
                }
            }
        });
        made.map(|made| made.0)
    }

    /// Gives it back; the context is current, and no product is left.
    pub fn destroy(&self, blas: Option<&Blas>) {
        if let (Some(Some(made)), Some(blas)) = (self.handle.get(), blas) {
            // SAFETY: made by `get`, destroyed once.
            unsafe { (blas.functions.destroy)(made.0) };
        }
    }
}

/// A layout of the library's, destroyed when it goes.
struct Layout {
    raw: Handle,
    blas: Arc<Result<Blas>>,
}

impl Drop for Layout {
    fn drop(&mut self) {
        if let Ok(blas) = self.blas.as_ref() {
            // SAFETY: made by `new`, destroyed once.
            unsafe { (blas.functions.layout_destroy)(self.raw) };
        }
    }
}

/// Products of one shape: what a launch hands on.
pub struct Products {
    shared: Arc<Shared>,
    handle: Handle,
    compute: c_int,
    is_turned: [bool; 2],
    has_bias: bool,
    /// Description of the products, where no bias has to be told.
    described: DescRoom,
    factors: [f32; 2],
    /// Of A, B and Y as the library sees them: B, A and Y of the product.
    layouts: [Layout; 3],
    algorithm: [u64; 8],
    workspace_bytes: usize,
}

// SAFETY: nothing of it changes after it was made; the library takes handle and layouts from any thread, at once.
unsafe impl Send for Products {}
// SAFETY: as for Send.
unsafe impl Sync for Products {}

/// Addresses of one launch; 0 for what there is not.
pub struct Addresses {
    /// A.
    pub a: u64,
    /// B.
    pub b: u64,
    /// Y.
    pub y: u64,
    /// The bias.
    pub bias: u64,
    /// C.
    pub added: u64,
    /// The workspace.
    pub scratch: u64,
}

fn type_of(element: &str) -> c_int {
    if element == "f16" { R_16F } else { R_32F }
}

impl Products {
    /// For a product, if the library multiplies such.
    ///
    /// # Errors
    /// Unavailable without the library; unsupported if it has no algorithm.
    pub fn new(shared: &Arc<Shared>, gemm: &Gemm) -> Result<Self> {
        let blas = shared.blas.as_ref().as_ref().map_err(Clone::clone)?;
        let handle = shared.blas_handles.get(shared, blas);
        let handle = handle.ok_or_else(|| Error::unavailable("cuBLASLt cannot be used on this device"))?;
        let _current = shared.current()?;
        // The fastest of what is allowed.
        let fast = [
            (DEVBAY_NUMERICS_F16, compute::FAST_F16),
            (DEVBAY_NUMERICS_BF16, compute::FAST_BF16),
            (DEVBAY_NUMERICS_TF32, compute::FAST_TF32),
        ];
        let allowed = fast.into_iter().find(|(bit, _)| gemm.element == "f32" && gemm.numerics & bit != 0);
        let compute = allowed.map_or(compute::F32, |(_, fast)| fast);
        let (own, result) = (type_of(gemm.element), type_of(gemm.result));
        // As the library sees it, a matrix that is stored by rows is turned.
        let operand = |matrix: &Matrix, rows: u64, cols: u64| {
            let (rows, cols) = if matrix.is_turned { (cols, rows) } else { (rows, cols) };
            Layout::new(shared, own, [cols, rows], gemm.n_batch, matrix.stride)
        };
        let of_y = gemm.rows.saturating_mul(gemm.cols);
        let layouts = [
            operand(&gemm.b, gemm.k, gemm.cols)?,
            operand(&gemm.a, gemm.rows, gemm.k)?,
            Layout::new(shared, result, [gemm.cols, gemm.rows], gemm.n_batch, of_y)?,
        ];
        let mut products = Self {
            shared: Arc::clone(shared),
            handle,
            compute,
            is_turned: [gemm.b.is_turned, gemm.a.is_turned],
            has_bias: gemm.bias.is_some(),
            described: [0; 64],
            factors: [gemm.alpha, gemm.added.as_ref().map_or(0.0, |(_, factor)| *factor)],
            layouts,
            algorithm: [0; 8],
            workspace_bytes: 0,
        };
        products.described = products.describe(blas, 0)?;
        let found = products.find(blas)?;
        (products.algorithm, products.workspace_bytes) = (found.algorithm, found.workspace_bytes);
        Ok(products)
    }

    /// Bytes of workspace of a launch.
    pub fn workspace_bytes(&self) -> u64 {
        self.workspace_bytes as u64
    }

    /// Describes the products, with a bias at an address.
    fn describe(&self, blas: &Blas, bias: u64) -> Result<DescRoom> {
        let functions = &blas.functions;
        let mut room: DescRoom = [0; 64];
        // SAFETY: room of the size that is said.
        let code = unsafe { (functions.desc_init)(&mut room, size_of::<DescRoom>(), self.compute, R_32F) };
        done("cublasLtMatmulDescInit", code)?;
        let mut set = |attribute: c_int, value: *const c_void, size: usize| {
            // SAFETY: the description was made above; the value has the size of the attribute.
            let code = unsafe { (functions.desc_set)(&mut room, attribute, value, size) };
            done("cublasLtMatmulDescSetAttribute", code)
        };
        for (attribute, is_turned) in [(desc::TRANSA, self.is_turned[0]), (desc::TRANSB, self.is_turned[1])] {
            if is_turned {
                // CUBLAS_OP_T.
                let turned: i32 = 1;
                set(attribute, from_ref(&turned).cast(), size_of::<i32>())?;
            }
        }
        if self.has_bias {
            set(desc::EPILOGUE, from_ref(&EPILOGUE_BIAS).cast(), size_of::<u32>())?;
            set(desc::BIAS_POINTER, from_ref(&bias).cast(), size_of::<u64>())?;
        }
        Ok(room)
    }

    fn find(&self, blas: &Blas) -> Result<Found> {
        let functions = &blas.functions;
        let mut preference = null_mut();
        // SAFETY: a place for a handle.
        done("cublasLtMatmulPreferenceCreate", unsafe { (functions.pref_create)(&mut preference) })?;
        let value = from_ref(&WORKSPACE_MAX).cast();
        // SAFETY: the preference was just made; the attribute is a u64.
        let set = unsafe { (functions.pref_set)(preference, PREF_MAX_WORKSPACE, value, size_of::<u64>()) };
        let (mut found, mut n_found) = ([const { Found::NONE }; 1], 0);
        let [b, a, y] = &self.layouts;
        let asked = done("cublasLtMatmulPreferenceSetAttribute", set).and_then(|()| {
            // SAFETY: all of them live; a place for one result.
            let code = unsafe {
                (functions.heuristic)(
                    self.handle,
                    &self.described,
                    b.raw,
                    a.raw,
                    y.raw,
                    y.raw,
                    preference,
                    1,
                    found.as_mut_ptr(),
                    &mut n_found,
                )
            };
            done("cublasLtMatmulAlgoGetHeuristic", code)
        });
        // SAFETY: made above, destroyed once.
        unsafe { (functions.pref_destroy)(preference) };
        asked?;
        match (n_found, &found[0]) {
            (1, found) if found.state == 0 => Ok(*found),
            _ => Err(Error::unsupported("cuBLASLt has no algorithm for these matrices")),
        }
    }

    /// Enqueues the products; the context is current.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn launch(&self, at: &Addresses, stream: &CudaStream) -> Result<()> {
        let blas = self.shared.blas.as_ref().as_ref().map_err(Clone::clone)?;
        // The bias is this launch's own, and others may be launching too.
        let with_bias = if self.has_bias { Some(self.describe(blas, at.bias)?) } else { None };
        let [b, a, y] = &self.layouts;
        let [alpha, beta] = &self.factors;
        // Without C the result stands for it, and is not read.
        let c = if at.added == 0 { at.y } else { at.added };
        // SAFETY: the addresses are of memory as the layouts say, lent until a later point is reported (B9); the workspace
        // has the bytes that were asked for; the factors are the host's, and read before the call returns.
        let code = unsafe {
            (blas.functions.matmul)(
                self.handle,
                with_bias.as_ref().unwrap_or(&self.described),
                alpha,
                at.b,
                b.raw,
                at.a,
                a.raw,
                beta,
                c,
                y.raw,
                at.y,
                y.raw,
                &self.algorithm,
                at.scratch,
                self.workspace_bytes,
                stream.raw(),
            )
        };
        done("cublasLtMatmul", code)
    }
}

impl Found {
    const NONE: Self = Self { algorithm: [0; 8], workspace_bytes: 0, state: 0, waves: 0.0, reserved: [0; 4] };
}

impl Layout {
    /// A matrix that is stored by columns, without gaps, and so many of them that far apart.
    fn new(
        shared: &Shared,
        element: c_int,
        [rows, cols]: [u64; 2],
        n_batch: u64,
        stride: u64,
    ) -> Result<Self> {
        let blas = shared.blas.as_ref().as_ref().map_err(Clone::clone)?;
        let too_many = |_| Error::unsupported("matrices beyond what cuBLASLt counts");
        let n_batch = i32::try_from(n_batch).map_err(too_many)?;
        let (ld, stride) = (i64::try_from(rows).map_err(too_many)?, i64::try_from(stride).map_err(too_many)?);
        let mut raw = null_mut();
        // SAFETY: a place for a handle.
        let code = unsafe { (blas.functions.layout_create)(&mut raw, element, rows, cols, ld) };
        done("cublasLtMatrixLayoutCreate", code)?;
        let layout = Self { raw, blas: Arc::clone(&shared.blas) };
        if n_batch > 1 {
            let set = |attribute: c_int, value: *const c_void, size: usize| {
                // SAFETY: the layout was just made; the value has the size of the attribute.
                let code = unsafe { (blas.functions.layout_set)(raw, attribute, value, size) };
                done("cublasLtMatrixLayoutSetAttribute", code)
            };
            set(LAYOUT_BATCH_COUNT, from_ref(&n_batch).cast(), size_of::<i32>())?;
            set(LAYOUT_BATCH_OFFSET, from_ref(&stride).cast(), size_of::<i64>())?;
        }
        Ok(layout)
    }
}
