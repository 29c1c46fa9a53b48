//! CUDA's driver: its functions, and its codes as errors.
//!
//! The library is opened when devices are asked for, and stays (B26). Codes are numbers, not an enum of a header's
//! version: a newer driver's code is kept with the name that the driver gives it.

use devbay_plugin_api::abi::DEVBAY_STATUS_DEVICE_LOST;
use devbay_plugin_api::sdk::{Error, Result};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::ptr::null;
use std::sync::OnceLock;

/// A handle of the driver's: context, stream, event, module, function or pool.
pub type Handle = *mut c_void;
/// An address in the device's memory; with unified addressing no other memory has it.
pub type Address = u64;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location {
    /// 1 for a device.
    pub kind: c_int,
    /// Its number.
    pub id: c_int,
}

impl Location {
    /// A device's memory.
    pub fn device(id: c_int) -> Self {
        Self { kind: 1, id }
    }
}

/// `CUmemPoolProps`.
#[repr(C)]
pub struct PoolProps {
    /// 1 for memory that stays where it is.
    pub alloc_type: c_int,
    /// 0 for memory of this process alone.
    pub handle_types: c_int,
    /// Its place.
    pub location: Location,
    /// Windows alone.
    pub security: *mut c_void,
    /// 0 for no limit.
    pub bytes_max: usize,
    /// Zeros.
    pub reserved: [u8; 56],
}

const _: () = assert!(size_of::<PoolProps>() == 88);

/// `CUmemAccessDesc`.
#[repr(C)]
pub struct AccessDesc {
    /// Who.
    pub location: Location,
    /// 3 for reading and writing.
    pub flags: c_int,
}

/// Numbers of `CUdevice_attribute`.
pub mod attribute {
    use std::ffi::c_int;

    /// Host and device addresses are of one space.
    pub const UNIFIED_ADDRESSING: c_int = 41;
    /// Compute capability.
    pub const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
    /// Its second number.
    pub const COMPUTE_CAPABILITY_MINOR: c_int = 76;
    /// Pools of memory.
    pub const MEMORY_POOLS_SUPPORTED: c_int = 115;
    /// `cuStreamWriteValue64_v2`.
    pub const CAN_USE_64_BIT_STREAM_MEM_OPS: c_int = 122;
}

/// Numbers of `CUmemPool_attribute`.
pub mod pool_attribute {
    use std::ffi::c_int;

    /// Bytes that are kept when they are free.
    pub const RELEASE_THRESHOLD: c_int = 4;
    /// Bytes that the pool has.
    pub const RESERVED_MEM_CURRENT: c_int = 5;
    /// Bytes of them in use.
    pub const USED_MEM_CURRENT: c_int = 7;
}

/// Numbers of `CUpointer_attribute`.
pub mod pointer_attribute {
    use std::ffi::c_int;

    /// Kind of memory: the host's, 1, or a device's, 2.
    pub const MEMORY_TYPE: c_int = 2;
    /// The device whose it is.
    pub const DEVICE_ORDINAL: c_int = 9;
    /// Beginning of its allocation.
    pub const RANGE_START_ADDR: c_int = 11;
    /// Bytes of its allocation.
    pub const RANGE_SIZE: c_int = 12;
}

macro_rules! functions {
    ($($name:ident($($arg:ty),*);)*) => {
        /// The driver's functions by their names; each returns a `CUresult`.
        #[allow(non_snake_case, reason = "the names are the driver's")]
        pub struct Functions {
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                pub $name: unsafe extern "C" fn($($arg),*) -> c_int,
            )*
        }

        impl Functions {
            fn load(library: &Library) -> Result<Self> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the type is that of cuda.h, which names each version of a function.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($arg),*) -> c_int>(stringify!($name))
                        };
                        *symbol.map_err(|_| {
                            let name = stringify!($name);
                            Error::unavailable(format!("the driver is too old: it has no {name}, CUDA 12.0 has"))
                        })?
                    },)*
                })
            }
        }
    };
}

functions! {
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuGetErrorName(c_int, *mut *const c_char);
    cuGetErrorString(c_int, *mut *const c_char);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetName(*mut c_char, c_int, c_int);
    cuDeviceGetAttribute(*mut c_int, c_int, c_int);
    cuDeviceGetPCIBusId(*mut c_char, c_int, c_int);
    cuDeviceGetUuid_v2(*mut [u8; 16], c_int);
    cuDeviceTotalMem_v2(*mut usize, c_int);
    cuDeviceCanAccessPeer(*mut c_int, c_int, c_int);
    cuDevicePrimaryCtxRetain(*mut Handle, c_int);
    cuDevicePrimaryCtxRelease_v2(c_int);
    cuCtxGetCurrent(*mut Handle);
    cuCtxSetCurrent(Handle);
    cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemAlloc_v2(*mut Address, usize);
    cuMemFree_v2(Address);
    cuMemPoolCreate(*mut Handle, *const PoolProps);
    cuMemPoolDestroy(Handle);
    cuMemPoolSetAttribute(Handle, c_int, *mut c_void);
    cuMemPoolGetAttribute(Handle, c_int, *mut c_void);
    cuMemPoolSetAccess(Handle, *const AccessDesc, usize);
    cuMemPoolTrimTo(Handle, usize);
    cuMemAllocFromPoolAsync(*mut Address, usize, Handle, Handle);
    cuMemFreeAsync(Address, Handle);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuPointerGetAttribute(*mut c_void, c_int, Address);
    cuMemcpyAsync(Address, Address, usize, Handle);
    cuStreamCreateWithPriority(*mut Handle, c_uint, c_int);
    cuStreamDestroy_v2(Handle);
    cuStreamSynchronize(Handle);
    cuStreamWaitEvent(Handle, Handle, c_uint);
    cuStreamWriteValue64_v2(Handle, Address, u64, c_uint);
    cuStreamBeginCapture_v2(Handle, c_int);
    cuStreamEndCapture(Handle, *mut Handle);
    cuGraphInstantiateWithFlags(*mut Handle, Handle, u64);
    cuGraphLaunch(Handle, Handle);
    cuGraphExecDestroy(Handle);
    cuGraphDestroy(Handle);
    cuEventCreate(*mut Handle, c_uint);
    cuEventDestroy_v2(Handle);
    cuEventRecord(Handle, Handle);
    cuEventSynchronize(Handle);
    cuModuleLoadData(*mut Handle, *const c_void);
    cuModuleUnload(Handle);
    cuModuleGetFunction(*mut Handle, Handle, *const c_char);
    cuLaunchKernel(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    );
}

/// The driver, opened and initialised.
pub struct Driver {
    /// Its functions.
    pub functions: Functions,
    /// The CUDA version that it has, major and minor.
    pub version: (u32, u32),
    /// Stays open, also where it is of no use: nobody promises that a driver can be closed.
    _library: ManuallyDrop<Library>,
}

/// File names to open.
const NAMES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so.1", "libcuda.so"] };

impl Driver {
    /// The driver, opened once in a process.
    ///
    /// # Errors
    /// Unavailable: no library, one that is too old, or one that cannot be initialised, with the code's name. What
    /// failed is tried again by the next call.
    pub fn get() -> Result<&'static Self> {
        static DRIVER: OnceLock<Driver> = OnceLock::new();
        if let Some(driver) = DRIVER.get() {
            return Ok(driver);
        }
        let opened = Self::open()?;
        // If two threads were here, both have opened the same library.
        Ok(DRIVER.get_or_init(|| opened))
    }

    fn open() -> Result<Self> {
        let mut reasons = Vec::new();
        let library = NAMES.iter().find_map(|name| {
            // SAFETY: the static constructors are those of NVIDIA's driver, which the system's owner installed.
            let library = unsafe { Library::new(*name) };
            library.map_err(|e| reasons.push(std::error::Error::source(&e).unwrap_or(&e).to_string())).ok()
        });
        let Some(library) = library else {
            let text = format!("CUDA's driver was not found: {}", reasons.join("; "));
            return Err(Error::unavailable(text));
        };
        let functions = Functions::load(&library)?;
        let mut driver = Self { functions, version: (0, 0), _library: ManuallyDrop::new(library) };
        // SAFETY: cuInit may be called any number of times; the only flags are 0.
        let code = unsafe { (driver.functions.cuInit)(0) };
        driver
            .check("cuInit", code)
            .map_err(|e| Error::unavailable(e.text()).with_native_code(i64::from(code)))?;
        let mut version = 0;
        // SAFETY: a place for a number.
        driver.check("cuDriverGetVersion", unsafe { (driver.functions.cuDriverGetVersion)(&mut version) })?;
        driver.version = (version as u32 / 1000, version as u32 % 1000 / 10);
        Ok(driver)
    }

    /// A code as a result; the error has the code, its name and its words.
    ///
    /// # Errors
    /// Device lost for what the driver reports for every later call too; out of memory, unsupported, unavailable;
    /// else internal.
    #[inline]
    pub fn check(&self, call: &str, code: c_int) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(self.error(call, code)) }
    }

    #[cold]
    fn error(&self, call: &str, code: c_int) -> Error {
        let name = self.text(self.functions.cuGetErrorName, code);
        let words = self.text(self.functions.cuGetErrorString, code);
        let text = match (name, words) {
            (Some(name), Some(words)) => format!("{call} failed: {name} ({code}), {words}"),
            _ => format!("{call} failed with code {code}, for which the driver has no name"),
        };
        classified(code, text).with_native_code(i64::from(code))
    }

    fn text(
        &self,
        of: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
        code: c_int,
    ) -> Option<String> {
        let mut text = null();
        // SAFETY: a place for a pointer; unknown codes are refused.
        let status = unsafe { of(code, &mut text) };
        if status != 0 || text.is_null() {
            return None;
        }
        // SAFETY: the driver's static text.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

/// The error of a code.
fn classified(code: c_int, text: String) -> Error {
    match code {
        2 => Error::out_of_memory(text),
        // No device, the toolkit's library in place of a driver, a driver of another version than the kernel's module, a device that others hold.
        34 | 46 | 100..=102 | 802..=804 => Error::unavailable(text),
        801 => Error::unsupported(text),
        // Deinitialised, ECC, NVLink, contained; the context is destroyed; illegal addresses and instructions,
        // time-outs, asserts, launch failures: "the process must be terminated", the header says.
        4 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 => {
            Error::new(DEVBAY_STATUS_DEVICE_LOST, text)
        }
        _ => Error::internal(text),
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
