//! From CUDA C to images that the driver loads: NVRTC, and a cache of its results.
//!
//! NVRTC needs no GPU, and may be absent: kernels are then refused with the names that were tried. It makes a cubin for the
//! device's own architecture, which no driver has to compile again; for an architecture newer than itself, PTX for the newest
//! one that it knows.
//!
//! Nothing is contracted (`--fmad=false`): `fma` in WGSL is one operation, `a * b + c` two, so that a kernel gives the same
//! numbers here as where it was tested. A kernel that needs the speed of a multiply-add uses `fma`.

use crate::library::{call, functions, pointer, too_old, words};
use cudarc::nvrtc::sys::{self, nvrtcProgram};
use devbay_plugin_api::reserve;
use devbay_plugin_api::sdk::{Error, Host, LogLevel, Result, whole_file};
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut};

/// A device's architecture: major and minor compute capability.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Arch(pub u32, pub u32);

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.0, self.1)
    }
}

/// Options that every kernel is compiled with, besides the architecture; they are part of a cached kernel's key.
const OPTIONS: &[&CStr] = &[c"--std=c++17", c"--fmad=false"];

functions! {
    Functions:
    nvrtcVersion nvrtcGetNumSupportedArchs nvrtcGetSupportedArchs nvrtcCreateProgram nvrtcCompileProgram
    nvrtcDestroyProgram nvrtcGetProgramLogSize nvrtcGetProgramLog nvrtcGetCUBINSize nvrtcGetCUBIN
    nvrtcGetPTXSize nvrtcGetPTX
}

/// The run-time compiler. All methods may be called from any thread.
pub struct Nvrtc {
    functions: Functions,
    version: (u32, u32),
    /// Architectures that it compiles for, ascending.
    archs: Vec<Arch>,
    /// Stays open: instances of the plugin come and go.
    _library: ManuallyDrop<Library>,
}

impl Nvrtc {
    /// Opens the library at a path; without one, the first that the loader finds and that is no newer than the driver, whose
    /// major version is given if there is a driver: it may refuse images of a newer NVRTC.
    ///
    /// # Errors
    /// Unavailable, with the names that were tried.
    pub fn open(path: Option<&Path>, driver_major: Option<u32>) -> Result<Self> {
        if let Some(path) = path {
            return Self::open_at(path).map_err(|e| {
                Error::unavailable(format!("nvrtc at {} cannot be used: {}", path.display(), e.text()))
            });
        }
        let newest = driver_major.unwrap_or(13);
        let mut reasons = Vec::new();
        for name in candidates(newest) {
            match Self::open_at(Path::new(&name)) {
                Ok(nvrtc) if nvrtc.version.0 > newest => {
                    reasons.push(format!("{name} is of CUDA {}, the driver of {newest}", nvrtc.version.0));
                }
                Ok(nvrtc) => return Ok(nvrtc),
                Err(error) => reasons.push(error.text().to_owned()),
            }
        }
        Err(Error::unavailable(format!(
            "nvrtc, which compiles kernels, was not found (DEVBAY_NVRTC names its file): {}",
            reasons.join("; ")
        )))
    }

    fn open_at(path: &Path) -> Result<Self> {
        // SAFETY: loading runs NVRTC's static constructors; the name is NVIDIA's, or the user named the file.
        let library = unsafe { Library::new(path) };
        let library = library.map_err(|e| Error::unavailable(words(&e)))?;
        let functions = Functions::load(&library, |_, error| too_old("nvrtc", error))?;
        let (mut major, mut minor, mut n) = (0, 0, 0);
        // SAFETY: the call writes `major` and `minor`, which outlive it.
        check("nvrtcVersion", unsafe { call!(functions, sys::nvrtcVersion(&mut major, &mut minor)) })?;
        load_builtins(path, major, minor);
        // SAFETY: the call writes `n`, which outlives it.
        check("nvrtcGetNumSupportedArchs", unsafe {
            call!(functions, sys::nvrtcGetNumSupportedArchs(&mut n))
        })?;
        let mut archs = vec![0; n.max(0) as usize];
        // SAFETY: `archs` has room for as many numbers as NVRTC has just announced.
        check("nvrtcGetSupportedArchs", unsafe {
            call!(functions, sys::nvrtcGetSupportedArchs(archs.as_mut_ptr()))
        })?;
        let mut archs: Vec<Arch> = archs.iter().map(|&a| Arch(a as u32 / 10, a as u32 % 10)).collect();
        archs.sort();
        Ok(Self {
            functions,
            version: (major as u32, minor as u32),
            archs,
            _library: ManuallyDrop::new(library),
        })
    }

    /// Its version, major and minor.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Returns the target that a device of an architecture loads: `sm_` and a number for a cubin, `compute_` for PTX.
    ///
    /// # Errors
    /// Unsupported for a device older than every architecture that NVRTC knows.
    pub fn target(&self, arch: Arch) -> Result<String> {
        if self.archs.contains(&arch) {
            return Ok(format!("sm_{arch}"));
        }
        match self.archs.iter().rev().find(|known| **known < arch) {
            Some(known) => Ok(format!("compute_{known}")),
            None => Err(Error::unsupported(format!(
                "compute capability {}.{}, which nvrtc {}.{} does not compile for",
                arch.0, arch.1, self.version.0, self.version.1
            ))),
        }
    }

    /// Compiles a text for a target of [`Nvrtc::target`]; PTX ends with a zero.
    ///
    /// # Errors
    /// Internal with the compiler's log.
    pub fn compile(&self, name: &str, text: &str, target: &str) -> Result<Vec<u8>> {
        let broken = |_| Error::internal(format!("kernel {name}: a zero in its text"));
        let (text, file) = (CString::new(text).map_err(broken)?, CString::new(name).map_err(broken)?);
        let arch = CString::new(format!("--gpu-architecture={target}")).map_err(broken)?;
        let program = self.create(&text, &file)?;
        let options: Vec<*const c_char> =
            OPTIONS.iter().map(|option| option.as_ptr()).chain([arch.as_ptr()]).collect();
        // SAFETY: `program` is not destroyed yet; the options end with zeros and outlive the call.
        let code = unsafe {
            call!(
                self.functions,
                sys::nvrtcCompileProgram(program.raw, options.len() as c_int, options.as_ptr())
            )
        };
        let functions = &self.functions;
        if code != 0 {
            let size = pointer!(functions, sys::nvrtcGetProgramLogSize(_, _));
            let log = program.bytes(size, pointer!(functions, sys::nvrtcGetProgramLog(_, _)));
            let log = log.unwrap_or_default();
            let log = String::from_utf8_lossy(&log).replace('\0', "");
            return Err(Error::internal(format!(
                "kernel {name} does not compile for {target}: {}",
                log.trim()
            ))
            .with_native_code(i64::from(code)));
        }
        let (size, fill) = match target.starts_with("sm_") {
            true => (
                pointer!(functions, sys::nvrtcGetCUBINSize(_, _)),
                pointer!(functions, sys::nvrtcGetCUBIN(_, _)),
            ),
            false => {
                (pointer!(functions, sys::nvrtcGetPTXSize(_, _)), pointer!(functions, sys::nvrtcGetPTX(_, _)))
            }
        };
        program.bytes(size, fill)
    }

    fn create(&self, text: &CStr, file: &CStr) -> Result<Created<'_>> {
        let mut raw = null_mut();
        // SAFETY: the call writes `raw`; both texts end with a zero; with 0 headers no list is read.
        let code = unsafe {
            call!(
                self.functions,
                sys::nvrtcCreateProgram(&mut raw, text.as_ptr(), file.as_ptr(), 0, null(), null())
            )
        };
        check("nvrtcCreateProgram", code)?;
        Ok(Created { raw, functions: &self.functions })
    }
}

/// Opens the second library that NVRTC opens by name when it compiles, if it lies in the same folder. Wheels before 13.1 do not
/// tell the loader to look there.
fn load_builtins(nvrtc: &Path, major: c_int, minor: c_int) {
    let beside = nvrtc.with_file_name(format!("libnvrtc-builtins.so.{major}.{minor}"));
    if cfg!(unix) && beside.is_file() {
        // SAFETY: loading runs NVIDIA's static constructors, of a file that NVRTC would load itself. If it fails, NVRTC says
        // which file it misses.
        if let Ok(library) = unsafe { Library::new(beside) } {
            std::mem::forget(library);
        }
    }
}

/// Returns the library's names for the loader, newest first.
fn candidates(newest: u32) -> Vec<String> {
    let mut names = Vec::new();
    for major in (11..=newest).rev() {
        match cfg!(windows) {
            true => names.extend([format!("nvrtc64_{major}0_0.dll"), format!("nvrtc64_{major}2_0.dll")]),
            false => names.push(format!("libnvrtc.so.{major}")),
        }
    }
    if !cfg!(windows) {
        names.extend(["libnvrtc.so".to_owned(), "/usr/local/cuda/lib64/libnvrtc.so".to_owned()]);
    }
    names
}

fn check(call: &str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(Error::internal(format!("{call} failed with code {code}")).with_native_code(code.into())),
    }
}

/// A program of NVRTC, destroyed when dropped.
struct Created<'a> {
    raw: nvrtcProgram,
    functions: &'a Functions,
}

impl Created<'_> {
    /// Returns the bytes that a pair of functions gives: one returns a size, the other fills a buffer.
    fn bytes(
        &self,
        size: unsafe extern "C" fn(nvrtcProgram, *mut usize) -> c_int,
        fill: unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>> {
        let mut n = 0;
        // SAFETY: the program is not destroyed before `self` is dropped; the call writes `n`.
        check("asking nvrtc for a size", unsafe { size(self.raw, &mut n) })?;
        let mut bytes = reserve::zeroed::<u8>(n, "what NVRTC made of a kernel")?;
        // SAFETY: `self` keeps the program alive; `bytes` has the size that NVRTC returned above, which `fill` writes.
        check("reading from nvrtc", unsafe { fill(self.raw, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }
}

impl Drop for Created<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `create`, destroyed once, here. A failure would leave nothing to do.
        unsafe { call!(self.functions, sys::nvrtcDestroyProgram(&mut self.raw)) };
    }
}

/// Compiled kernels on disk, one file each, for all processes.
///
/// A file's name is a hash of everything that its content depends on, and it begins with a hash of the content. Files are written
/// atomically, and never deleted.
pub struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// In the host's cache folder, or none.
    pub fn new(folder: Option<&Path>) -> Self {
        Self { folder: folder.map(|folder| folder.join("cuda")) }
    }

    /// Returns a kernel's image, from the cache if it is there.
    ///
    /// # Errors
    /// As [`Nvrtc::compile`].
    pub fn get(&self, nvrtc: &Nvrtc, host: Host, name: &str, text: &str, target: &str) -> Result<Vec<u8>> {
        let Some(folder) = &self.folder else { return nvrtc.compile(name, text, target) };
        let (major, minor) = nvrtc.version;
        let key = format!("{OPTIONS:?} {target} {major}.{minor} {text}");
        let path = folder.join(format!("{:032x}.bin", hash(key.as_bytes())));
        if let Some(image) = read(&path) {
            return Ok(image);
        }
        let image = nvrtc.compile(name, text, target)?;
        if let Err(error) = write(folder, &path, &image) {
            host.log(LogLevel::Warn, &format!("kernels are not cached in {}: {error}", folder.display()));
        }
        Ok(image)
    }
}

/// Returns the content of a file, unless it is broken.
fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = std::fs::read(path).ok()?;
    let sum = bytes.get(..16)?.try_into().ok()?;
    if u128::from_le_bytes(sum) != hash(&bytes[16..]) {
        return None;
    }
    Some(bytes.split_off(16))
}

fn write(folder: &Path, path: &Path, image: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    whole_file::write_file(path, |file| {
        file.write_all(&hash(image).to_le_bytes())?;
        file.write_all(image)
    })
}

/// FNV-1a of 128 bits. It does not resist deliberate collisions, but an attacker able to cause one can also write the
/// file.
fn hash(bytes: &[u8]) -> u128 {
    let mut hash = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58du128;
    for &byte in bytes {
        hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(hash(b""), 0x6c62272e07bb014262b821756295c58d);
        assert_eq!(hash(b"a"), 0xd228cb696f1a8caf78912b704e4a8964);
    }

    #[test]
    fn a_broken_file_is_not_read() {
        let folder = std::env::temp_dir().join(format!("devbay-cuda-cache-{}", std::process::id()));
        let path = folder.join("a.bin");
        write(&folder, &path, b"image").unwrap();
        assert_eq!(read(&path).as_deref(), Some(&b"image"[..]));
        std::fs::write(&path, b"0123456789abcdefimage").unwrap();
        assert_eq!(read(&path), None);
        std::fs::write(&path, b"short").unwrap();
        assert_eq!(read(&path), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_library_that_is_not_there_is_a_reason() {
        let error = Nvrtc::open(Some(Path::new("/nowhere/libnvrtc.so")), None).err().expect("an error");
        assert_eq!(error.status(), devbay_plugin_api::abi::DEVBAY_STATUS_UNAVAILABLE);
        assert!(error.text().contains("/nowhere/libnvrtc.so"), "{error}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_library_without_a_function_is_a_reason_that_names_it() {
        let error = Nvrtc::open(Some(Path::new("libc.so.6")), None).err().expect("an error");
        assert_eq!(error.status(), devbay_plugin_api::abi::DEVBAY_STATUS_UNAVAILABLE);
        assert!(error.text().contains("nvrtc is too old"), "{error}");
        assert!(error.text().contains("nvrtcVersion"), "{error}");
    }
}
