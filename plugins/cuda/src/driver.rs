//! CUDA's driver: its functions, and its status codes as errors.
//!
//! cudarc declares the functions, and `library.rs` looks them up. The driver is opened when devices are asked
//! for, and stays open (B26). Codes stay integers: a newer driver's code is kept, with the name that the driver gives it.

use crate::library::{call, functions, taking_status};
use cudarc::driver::sys::{self, CUresult};
use devbay_plugin_api::abi::DEVBAY_STATUS_DEVICE_LOST;
use devbay_plugin_api::sdk::{Error, Result};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr::{null, with_exposed_provenance_mut};
use std::sync::OnceLock;

/// An address in the device's memory. With unified addressing no other memory has the same one.
pub type Address = sys::CUdeviceptr;

/// Returns an address as a pointer, for the libraries that take the device's memory so.
pub fn device_pointer(at: Address) -> *mut c_void {
    with_exposed_provenance_mut(at as usize)
}

/// Returns the location of a device's memory, for its pool.
pub fn memory_of(device: c_int) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

functions! {
    pub Functions:
    cuInit cuDriverGetVersion cuGetErrorName cuGetErrorString cuDeviceGetCount cuDeviceGet cuDeviceGetName
    cuDeviceGetAttribute cuDeviceGetPCIBusId cuDeviceGetUuid_v2 cuDeviceTotalMem_v2 cuDeviceCanAccessPeer
    cuDevicePrimaryCtxRetain cuDevicePrimaryCtxRelease_v2 cuCtxGetCurrent cuCtxSetCurrent
    cuCtxGetStreamPriorityRange cuMemGetInfo_v2 cuMemAlloc_v2 cuMemFree_v2 cuMemPoolCreate cuMemPoolDestroy
    cuMemPoolSetAttribute cuMemPoolGetAttribute cuMemPoolSetAccess cuMemPoolTrimTo cuMemAllocFromPoolAsync
    cuMemFreeAsync cuMemHostAlloc cuMemFreeHost cuPointerGetAttribute cuMemcpyAsync cuStreamCreateWithPriority
    cuStreamDestroy_v2 cuStreamSynchronize cuStreamWaitEvent cuStreamWriteValue64_v2 cuStreamBeginCapture_v2
    cuStreamEndCapture cuGraphInstantiateWithFlags cuGraphLaunch cuGraphExecDestroy cuGraphDestroy
    cuEventCreate cuEventDestroy_v2 cuEventRecord cuEventSynchronize cuModuleLoadData cuModuleUnload
    cuModuleGetFunction cuLaunchKernel
}

/// The driver, opened and initialised.
pub struct Driver {
    /// Its functions.
    pub functions: Functions,
    /// Its CUDA version, major and minor.
    pub version: (u32, u32),
    /// Stays open even when it is of no use: NVIDIA does not promise that a driver can be unloaded.
    _library: ManuallyDrop<Library>,
}

/// File names to open.
const NAMES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

impl Driver {
    /// Returns the driver, opened once in a process.
    ///
    /// # Errors
    /// Unavailable: no library, one that is too old, or one that cannot be initialised, with the code's name. The next
    /// call tries again.
    pub fn get() -> Result<&'static Self> {
        static DRIVER: OnceLock<Driver> = OnceLock::new();
        if let Some(driver) = DRIVER.get() {
            return Ok(driver);
        }
        let opened = Self::open()?;
        // Two threads may get here; both have then opened the same library.
        Ok(DRIVER.get_or_init(|| opened))
    }

    fn open() -> Result<Self> {
        let mut reasons = Vec::new();
        let library = NAMES.iter().find_map(|name| {
            // SAFETY: loading runs the static constructors of NVIDIA's driver, which the system's owner installed.
            let library = unsafe { Library::new(*name) };
            library.map_err(|e| reasons.push(std::error::Error::source(&e).unwrap_or(&e).to_string())).ok()
        });
        let Some(library) = library else {
            let text = format!("CUDA's driver was not found: {}", reasons.join("; "));
            return Err(Error::unavailable(text));
        };
        let missing = |name: &str, _: &libloading::Error| {
            Error::unavailable(format!("the driver is too old: it has no {name}, CUDA 12.0 has"))
        };
        let functions = Functions::load(&library, missing)?;
        let mut driver = Self { functions, version: (0, 0), _library: ManuallyDrop::new(library) };
        // SAFETY: cuInit may be called any number of times, and takes no flags but 0.
        let code = unsafe { call!(driver.functions, sys::cuInit(0)) };
        driver
            .check("cuInit", code)
            .map_err(|e| Error::unavailable(e.text()).with_native_code(i64::from(code)))?;
        let mut version = 0;
        // SAFETY: the call writes `version`, which outlives it.
        let code = unsafe { call!(driver.functions, sys::cuDriverGetVersion(&mut version)) };
        driver.check("cuDriverGetVersion", code)?;
        driver.version = (version as u32 / 1000, version as u32 % 1000 / 10);
        Ok(driver)
    }

    /// Turns a code into a result. The error has the code with the driver's name and description.
    ///
    /// # Errors
    /// Device lost for a code after which every later call fails too; out of memory, unsupported, unavailable; otherwise
    /// internal.
    #[inline]
    pub fn check(&self, call: &str, code: c_int) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.error(call, code)) }
    }

    #[cold]
    fn error(&self, call: &str, code: c_int) -> Error {
        let name = text(taking_status(self.functions.cuGetErrorName, sys::cuGetErrorName), code);
        let words = text(taking_status(self.functions.cuGetErrorString, sys::cuGetErrorString), code);
        let text = match (name, words) {
            (Some(name), Some(words)) => format!("{call} failed: {name} ({code}), {words}"),
            _ => format!("{call} failed with code {code}, for which the driver has no name"),
        };
        classified(code, text).with_native_code(i64::from(code))
    }
}

/// Returns the driver's text for a code, from one of its two functions; None for a code that it does not know.
fn text(of: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int, code: c_int) -> Option<String> {
    let mut text = null();
    // SAFETY: `of` is cuGetErrorName or cuGetErrorString, which writes `text` and refuses a code that it does not know.
    let status = unsafe { of(code, &mut text) };
    if status != 0 || text.is_null() {
        return None;
    }
    // SAFETY: the call succeeded, so that this is the driver's static text, which ends with a zero.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// Codes of a machine on which there is no device to use.
const UNAVAILABLE: &[CUresult] = &[
    // The toolkit's library in place of a driver.
    CUresult::CUDA_ERROR_STUB_LIBRARY,
    // Another process holds the device.
    CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE,
    CUresult::CUDA_ERROR_NO_DEVICE,
    CUresult::CUDA_ERROR_INVALID_DEVICE,
    CUresult::CUDA_ERROR_DEVICE_NOT_LICENSED,
    CUresult::CUDA_ERROR_SYSTEM_NOT_READY,
    // A driver of another version than the kernel's module.
    CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
    CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
];

/// Codes after which every later call fails too: cuda.h says of them that the process must be terminated.
const LOST: &[CUresult] = &[
    CUresult::CUDA_ERROR_DEINITIALIZED,
    CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
    CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE,
    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
    CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
    CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
    CUresult::CUDA_ERROR_ASSERT,
    CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
    CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
    CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUresult::CUDA_ERROR_INVALID_PC,
    CUresult::CUDA_ERROR_LAUNCH_FAILED,
];

/// Codes of the same kind that CUDA 12.0 did not have: `CUDA_ERROR_CONTAINED` and `CUDA_ERROR_TENSOR_MEMORY_LEAK`.
const LOST_SINCE: [c_int; 2] = [226, 721];

/// Makes an error of a code.
fn classified(code: c_int, text: String) -> Error {
    let is = |known: &CUresult| *known as c_int == code;
    if is(&CUresult::CUDA_ERROR_OUT_OF_MEMORY) {
        Error::out_of_memory(text)
    } else if is(&CUresult::CUDA_ERROR_NOT_SUPPORTED) {
        Error::unsupported(text)
    } else if UNAVAILABLE.iter().any(is) {
        Error::unavailable(text)
    } else if LOST.iter().any(is) || LOST_SINCE.contains(&code) {
        Error::new(DEVBAY_STATUS_DEVICE_LOST, text)
    } else {
        Error::internal(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use devbay_plugin_api::abi::{DEVBAY_STATUS_INTERNAL, DEVBAY_STATUS_OUT_OF_MEMORY};

    #[test]
    fn sticky_codes_are_a_lost_device_and_unknown_ones_are_kept() {
        let status = |code| classified(code, String::new()).status();
        assert_eq!(status(700), DEVBAY_STATUS_DEVICE_LOST);
        assert_eq!(status(719), DEVBAY_STATUS_DEVICE_LOST);
        assert_eq!(status(2), DEVBAY_STATUS_OUT_OF_MEMORY);
        assert_eq!(status(98765), DEVBAY_STATUS_INTERNAL);
    }
}
