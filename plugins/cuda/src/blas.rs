//! cuBLASLt, NVIDIA's library of matrix products, where it is installed.
//!
//! Its matrices are stored by columns. A row-major matrix is its transpose there, so that `Y = A B` is asked for as
//! `Y' = B' A'`: B first, columns for rows. The library chooses the algorithm when a kernel is prepared,
//! so that launches do the same every time; without an algorithm, or without the library, the plugin's own kernels multiply.
//!
//! cudarc declares the functions and enums, from the cublasLt.h of CUDA 12.0; version 13 of the library has the same.

use crate::device::Shared;
use crate::driver::device_pointer;
use crate::library::{self, Room, call, functions, too_old};
use crate::stream::CudaStream;
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t as Compute, cublasLtEpilogue_t, cublasLtHandle_t, cublasLtMatmulAlgo_t,
    cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t as Desc,
    cublasLtMatmulHeuristicResult_t as Heuristic, cublasLtMatmulPreferenceAttributes_t as Preference,
    cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t as LayoutAttribute, cublasStatus_t,
    cudaDataType_t,
};
use devbay_plugin_api::abi::{DEVBAY_NUMERICS_BF16, DEVBAY_NUMERICS_F16, DEVBAY_NUMERICS_TF32};
use devbay_plugin_api::sdk::{Error, LogLevel, Result};
use devbay_shaders::step::{Gemm, Matrix};
use libloading::Library;
use std::ffi::{c_int, c_void};
use std::mem::{ManuallyDrop, offset_of};
use std::path::Path;
use std::ptr::{from_ref, null_mut};
use std::sync::{Arc, OnceLock};

/// Bytes of workspace that an algorithm may have: what NVIDIA advises for its newest devices.
const WORKSPACE_MAX: u64 = 32 << 20;

/// `CUBLAS_OP_T`, by hand: cudarc has it with the rest of cuBLAS, of which the plugin needs nothing else.
const OP_T: c_int = 1;

/// Room for a `cublasLtMatmulDesc_t` in place, which has had 23 to 32 words.
type DescRoom = [u64; 64];

/// An algorithm that the library has found.
struct Found {
    algorithm: cublasLtMatmulAlgo_t,
    workspace_bytes: usize,
}

functions! {
    Functions:
    cublasLtCreate cublasLtDestroy cublasLtMatmulDescInit_internal cublasLtMatmulDescSetAttribute
    cublasLtMatrixLayoutCreate cublasLtMatrixLayoutSetAttribute cublasLtMatrixLayoutDestroy
    cublasLtMatmulPreferenceCreate cublasLtMatmulPreferenceSetAttribute cublasLtMatmulPreferenceDestroy
    cublasLtMatmulAlgoGetHeuristic cublasLtMatmul
}

/// The library.
pub struct Blas {
    functions: Functions,
    /// Stays open: instances of the plugin come and go.
    _library: ManuallyDrop<Library>,
}

/// File names for the loader, newest first, each with its version of CUDA; 0 for any.
const NAMES: &[(u32, &str)] = match cfg!(windows) {
    true => &[(13, "cublasLt64_13.dll"), (12, "cublasLt64_12.dll")],
    false => &[(13, "libcublasLt.so.13"), (12, "libcublasLt.so.12"), (0, "libcublasLt.so")],
};

impl Blas {
    /// Opens the library at a path; without one, the newest that the loader finds and that is no newer than the driver.
    ///
    /// # Errors
    /// Unavailable, with the names that were tried.
    pub fn open(path: Option<&Path>, driver_major: u32) -> Result<Self> {
        let usable = NAMES.iter().filter(|(version, _)| *version <= driver_major);
        let library = library::open("cuBLASLt", path, usable.map(|(_, name)| *name))?;
        let functions = Functions::load(&library, |_, error| too_old("cuBLASLt", error))?;
        Ok(Self { functions, _library: ManuallyDrop::new(library) })
    }
}

/// Turns a code of the library into a result.
fn done(call: &str, code: c_int) -> Result<()> {
    const ALLOC_FAILED: c_int = cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED as c_int;
    const NOT_SUPPORTED: c_int = cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED as c_int;
    match code {
        0 => Ok(()),
        ALLOC_FAILED => Err(Error::out_of_memory(format!("{call} failed: too little memory"))),
        NOT_SUPPORTED => Err(Error::unsupported(format!("{call}: these matrices"))),
        _ => Err(Error::internal(format!("{call} failed with cuBLAS's code {code}"))),
    }
    .map_err(|error: Error| error.with_native_code(i64::from(code)))
}

/// A device's handle of the library, made on first use.
#[derive(Default)]
pub struct Handles {
    handle: OnceLock<Option<LtHandle>>,
}

#[derive(Clone, Copy)]
struct LtHandle(cublasLtHandle_t);

// SAFETY: cuBLASLt's handles are thread-safe, as its documentation says: several threads may use one at once.
unsafe impl Send for LtHandle {}
// SAFETY: cuBLASLt's handles are thread-safe, as its documentation says: several threads may use one at once.
unsafe impl Sync for LtHandle {}

impl Handles {
    fn get(&self, shared: &Shared, blas: &Blas) -> Option<cublasLtHandle_t> {
        let made = self.handle.get_or_init(|| {
            let _current = shared.current().ok()?;
            let mut handle = null_mut();
            // SAFETY: the call writes `handle`, which outlives it; the device's context is current.
            match done("cublasLtCreate", unsafe { call!(blas.functions, sys::cublasLtCreate(&mut handle)) }) {
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

    /// Destroys the handle. The context has to be current, and no product may be left.
    pub fn destroy(&self, blas: Option<&Blas>) {
        if let (Some(Some(made)), Some(blas)) = (self.handle.get(), blas) {
            // SAFETY: made by `get`; `Shared` calls this once, when it is dropped.
            unsafe { call!(blas.functions, sys::cublasLtDestroy(made.0)) };
        }
    }
}

/// A layout of the library, destroyed when dropped.
struct Layout {
    raw: cublasLtMatrixLayout_t,
    blas: Arc<Result<Blas>>,
}

impl Drop for Layout {
    fn drop(&mut self) {
        if let Ok(blas) = self.blas.as_ref() {
            // SAFETY: made by `new`, destroyed once, here.
            unsafe { call!(blas.functions, sys::cublasLtMatrixLayoutDestroy(self.raw)) };
        }
    }
}

/// Products of one shape, prepared for launches.
pub struct Products {
    shared: Arc<Shared>,
    handle: cublasLtHandle_t,
    compute: Compute,
    is_turned: [bool; 2],
    has_bias: bool,
    /// Description of the products; with a bias, each launch makes its own.
    described: DescRoom,
    factors: [f32; 2],
    /// The library's A, B and Y: B, A and Y of the product.
    layouts: [Layout; 3],
    algorithm: cublasLtMatmulAlgo_t,
    workspace_bytes: usize,
}

// SAFETY: nothing changes it once `new` has returned, and the library only reads handle, layouts and description.
unsafe impl Send for Products {}
// SAFETY: nothing changes it once `new` has returned, and the library only reads handle, layouts and description.
unsafe impl Sync for Products {}

/// Addresses of one launch; 0 for an operand that is absent.
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

fn type_of(element: &str) -> cudaDataType_t {
    if element == "f16" { cudaDataType_t::CUDA_R_16F } else { cudaDataType_t::CUDA_R_32F }
}

/// A description as the library takes it, which only reads it.
fn described(room: &DescRoom) -> cublasLtMatmulDesc_t {
    from_ref(room).cast_mut().cast()
}

impl Products {
    /// Prepares a product, if the library has an algorithm for it.
    ///
    /// # Errors
    /// Unavailable without the library; unsupported if it has no algorithm.
    pub fn new(shared: &Arc<Shared>, gemm: &Gemm) -> Result<Self> {
        let blas = shared.blas.as_ref().as_ref().map_err(Clone::clone)?;
        let handle = shared.blas_handles.get(shared, blas);
        let handle = handle.ok_or_else(|| Error::unavailable("cuBLASLt cannot be used on this device"))?;
        let _current = shared.current()?;
        // The fastest of the modes that are allowed.
        let fast = [
            (DEVBAY_NUMERICS_F16, Compute::CUBLAS_COMPUTE_32F_FAST_16F),
            (DEVBAY_NUMERICS_BF16, Compute::CUBLAS_COMPUTE_32F_FAST_16BF),
            (DEVBAY_NUMERICS_TF32, Compute::CUBLAS_COMPUTE_32F_FAST_TF32),
        ];
        let allowed = fast.into_iter().find(|(bit, _)| gemm.element == "f32" && gemm.numerics & bit != 0);
        let compute = allowed.map_or(Compute::CUBLAS_COMPUTE_32F, |(_, fast)| fast);
        let (own, result) = (type_of(gemm.element), type_of(gemm.result));
        // The library stores matrices by columns, so one stored by rows is turned.
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
            algorithm: cublasLtMatmulAlgo_t { data: [0; 8] },
            workspace_bytes: 0,
        };
        products.described = products.describe(blas, 0)?;
        let found = products.find(blas)?;
        (products.algorithm, products.workspace_bytes) = (found.algorithm, found.workspace_bytes);
        Ok(products)
    }

    /// Returns the bytes of workspace that a launch needs.
    pub fn workspace_bytes(&self) -> u64 {
        self.workspace_bytes as u64
    }

    /// Describes the products, with a bias at an address.
    fn describe(&self, blas: &Blas, bias: u64) -> Result<DescRoom> {
        let functions = &blas.functions;
        let mut room: DescRoom = [0; 64];
        // SAFETY: `room` has the size that is passed with it.
        let code = unsafe {
            call!(
                functions,
                sys::cublasLtMatmulDescInit_internal(
                    (&raw mut room).cast(),
                    size_of::<DescRoom>(),
                    self.compute,
                    cudaDataType_t::CUDA_R_32F,
                )
            )
        };
        done("cublasLtMatmulDescInit", code)?;
        let mut set = |attribute: Desc, value: *const c_void, size: usize| {
            // SAFETY: the call above has initialised `room`; `value` is readable for `size` bytes.
            let code = unsafe {
                call!(
                    functions,
                    sys::cublasLtMatmulDescSetAttribute((&raw mut room).cast(), attribute, value, size)
                )
            };
            done("cublasLtMatmulDescSetAttribute", code)
        };
        for (attribute, is_turned) in [
            (Desc::CUBLASLT_MATMUL_DESC_TRANSA, self.is_turned[0]),
            (Desc::CUBLASLT_MATMUL_DESC_TRANSB, self.is_turned[1]),
        ] {
            if is_turned {
                set(attribute, from_ref(&OP_T).cast(), size_of_val(&OP_T))?;
            }
        }
        if self.has_bias {
            let epilogue = cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
            set(Desc::CUBLASLT_MATMUL_DESC_EPILOGUE, from_ref(&epilogue).cast(), size_of_val(&epilogue))?;
            set(Desc::CUBLASLT_MATMUL_DESC_BIAS_POINTER, from_ref(&bias).cast(), size_of_val(&bias))?;
        }
        Ok(room)
    }

    fn find(&self, blas: &Blas) -> Result<Found> {
        let functions = &blas.functions;
        let mut preference = null_mut();
        // SAFETY: the call writes `preference`, which outlives it.
        let code = unsafe { call!(functions, sys::cublasLtMatmulPreferenceCreate(&mut preference)) };
        done("cublasLtMatmulPreferenceCreate", code)?;
        let attribute = Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let (value, size) = (from_ref(&WORKSPACE_MAX).cast(), size_of_val(&WORKSPACE_MAX));
        // SAFETY: the preference was just made; the attribute is a u64, as `WORKSPACE_MAX` is.
        let set = unsafe {
            call!(functions, sys::cublasLtMatmulPreferenceSetAttribute(preference, attribute, value, size))
        };
        let (mut found, mut n_found) = (Room::<Heuristic, 12>::ZERO, 0);
        let [b, a, y] = &self.layouts;
        let asked = done("cublasLtMatmulPreferenceSetAttribute", set).and_then(|()| {
            // SAFETY: `self` keeps handle, description and layouts alive, and the preference is destroyed below; `found` has
            // room for the one result that is asked for.
            let code = unsafe {
                call!(
                    functions,
                    sys::cublasLtMatmulAlgoGetHeuristic(
                        self.handle,
                        described(&self.described),
                        b.raw,
                        a.raw,
                        y.raw,
                        y.raw,
                        preference,
                        1,
                        found.as_mut_ptr(),
                        &mut n_found,
                    )
                )
            };
            done("cublasLtMatmulAlgoGetHeuristic", code)
        });
        // SAFETY: made above, destroyed once, here.
        unsafe { call!(functions, sys::cublasLtMatmulPreferenceDestroy(preference)) };
        asked?;
        if n_found != 1 || found.int(offset_of!(Heuristic, state)) != 0 {
            return Err(Error::unsupported("cuBLASLt has no algorithm for these matrices"));
        }
        let algorithm = cublasLtMatmulAlgo_t { data: found.words(offset_of!(Heuristic, algo)) };
        let workspace_bytes = found.size(offset_of!(Heuristic, workspaceSize));
        Ok(Found { algorithm, workspace_bytes })
    }

    /// Enqueues the products; the context is current.
    ///
    /// # Errors
    /// Errors of the library.
    pub fn launch(&self, at: &Addresses, stream: &CudaStream) -> Result<()> {
        let blas = self.shared.blas.as_ref().as_ref().map_err(Clone::clone)?;
        // Each launch has its own bias, and other threads may be launching too.
        let with_bias = if self.has_bias { Some(self.describe(blas, at.bias)?) } else { None };
        let [b, a, y] = &self.layouts;
        let [alpha, beta] = &self.factors;
        // Without C the result is passed in its place, and is not read.
        let c = if at.added == 0 { at.y } else { at.added };
        // SAFETY: the operands have the layouts' sizes, and the host lends them until a later point is reported (B9); the
        // workspace has the bytes that the algorithm asked for; the call reads the factors before it returns.
        let code = unsafe {
            call!(
                blas.functions,
                sys::cublasLtMatmul(
                    self.handle,
                    described(with_bias.as_ref().unwrap_or(&self.described)),
                    from_ref(alpha).cast(),
                    device_pointer(at.b),
                    b.raw,
                    device_pointer(at.a),
                    a.raw,
                    from_ref(beta).cast(),
                    device_pointer(c),
                    y.raw,
                    device_pointer(at.y),
                    y.raw,
                    &self.algorithm,
                    device_pointer(at.scratch),
                    self.workspace_bytes,
                    stream.raw().cast(),
                )
            )
        };
        done("cublasLtMatmul", code)
    }
}

impl Layout {
    /// Describes a batch of matrices, each stored by columns without gaps, `stride` elements apart.
    fn new(
        shared: &Shared,
        element: cudaDataType_t,
        [rows, cols]: [u64; 2],
        n_batch: u64,
        stride: u64,
    ) -> Result<Self> {
        let blas = shared.blas.as_ref().as_ref().map_err(Clone::clone)?;
        let too_many = |_| Error::unsupported("matrices beyond what cuBLASLt counts");
        let n_batch = i32::try_from(n_batch).map_err(too_many)?;
        let (ld, stride) = (i64::try_from(rows).map_err(too_many)?, i64::try_from(stride).map_err(too_many)?);
        let mut raw = null_mut();
        // SAFETY: the call writes `raw`, which outlives it.
        let code = unsafe {
            call!(blas.functions, sys::cublasLtMatrixLayoutCreate(&mut raw, element, rows, cols, ld))
        };
        done("cublasLtMatrixLayoutCreate", code)?;
        let layout = Self { raw, blas: Arc::clone(&shared.blas) };
        if n_batch > 1 {
            let set = |attribute: LayoutAttribute, value: *const c_void, size: usize| {
                // SAFETY: the layout was just made; `value` is readable for `size` bytes.
                let code = unsafe {
                    call!(blas.functions, sys::cublasLtMatrixLayoutSetAttribute(raw, attribute, value, size))
                };
                done("cublasLtMatrixLayoutSetAttribute", code)
            };
            set(
                LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                from_ref(&n_batch).cast(),
                size_of_val(&n_batch),
            )?;
            set(
                LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                from_ref(&stride).cast(),
                size_of_val(&stride),
            )?;
        }
        Ok(layout)
    }
}
