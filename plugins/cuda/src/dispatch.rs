//! Prepared kernels: launches of compiled kernels, with their parameters and arguments.
//!
//! [`devbay_shaders`] describes kernels as dispatches; [`Compiler`] compiles them, and all launches go one way,
//! [`Program::launch`]: the addresses of the operands into an array on the stack, and one call of the driver's for each
//! dispatch. Nothing is allocated or locked.

use crate::blas::{self, Products};
use crate::device::{CudaDevice, Shared};
use crate::dnn::{self, Convolver};
use crate::driver::Driver;
use crate::library::call;
use crate::memory::{CudaBuffer, Table};
use crate::source::{self, Source};
use crate::stream::CudaStream;
use cudarc::driver::sys::{self, CUfunction, CUmodule};
use devbay_plugin_api::abi::BufferRef;
use devbay_plugin_api::locks::lock;
use devbay_plugin_api::sdk::*;
use devbay_shaders::check::{Check, REPORT_BYTES};
use devbay_shaders::step::{self, Call, Planned, SCRATCH_ALIGN, Tables, Work};
use devbay_shaders::target::Backend;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock};

/// Parameters of a kernel: the struct, addresses and lengths.
pub const ARGS_MAX: usize = 34;
/// Bytes of parameters that every device takes; a struct has less, addresses come after it.
const PARAM_BYTES_MAX: usize = 3072;

/// A compiled kernel, loaded.
struct Kernel {
    function: CUfunction,
    block: [u32; 3],
    params: Vec<source::Param>,
}

// SAFETY: any thread may use a function's handle, several at once, while its context is current (CUDA's driver API).
unsafe impl Send for Kernel {}
// SAFETY: any thread may use a function's handle, several at once, while its context is current (CUDA's driver API).
unsafe impl Sync for Kernel {}

type Loaded = Arc<OnceLock<Result<Arc<Kernel>>>>;

/// The kernels of a device, each compiled and loaded once.
#[derive(Default)]
pub struct Kernels {
    by_text: Mutex<HashMap<String, Loaded>>,
    modules: Mutex<Vec<Module>>,
}

struct Module(CUmodule);

// SAFETY: any thread may use a module's handle while its context is current (CUDA's driver API).
unsafe impl Send for Module {}

impl Kernels {
    fn get(&self, shared: &Shared, name: &str, wgsl: &str) -> Result<Arc<Kernel>> {
        let loaded = Arc::clone(lock(&self.by_text).entry(wgsl.to_owned()).or_default());
        // Threads that need the same kernel wait for it; threads that need another one do not.
        loaded.get_or_init(|| self.load(shared, name, wgsl)).clone()
    }

    fn load(&self, shared: &Shared, name: &str, wgsl: &str) -> Result<Arc<Kernel>> {
        let Source { text, entry, params, block } = source::from_wgsl(name, wgsl)?;
        if params.len() > ARGS_MAX {
            return Err(Error::unsupported(format!("kernel {name} of {} parameters", params.len())));
        }
        let nvrtc = shared.nvrtc.as_ref().as_ref().map_err(Clone::clone)?;
        let target = nvrtc.target(shared.arch)?;
        let image = shared.cache.get(nvrtc, shared.host, name, &text, &target)?;
        let _current = shared.current()?;
        let functions = &shared.driver.functions;
        let (mut module, mut function) = (null_mut(), null_mut());
        // SAFETY: the call writes `module`; NVRTC made the image, whose PTX ends with a zero, and the cache has compared its
        // hash.
        let code = unsafe { call!(functions, sys::cuModuleLoadData(&mut module, image.as_ptr().cast())) };
        shared.done(&format!("loading kernel {name} ({target})"), code)?;
        lock(&self.modules).push(Module(module));
        let entry = CString::new(entry).map_err(|_| Error::internal("a zero in a kernel's name"))?;
        // SAFETY: the call writes `function`; the module was just loaded; `entry` ends with a zero.
        let code =
            unsafe { call!(functions, sys::cuModuleGetFunction(&mut function, module, entry.as_ptr())) };
        shared.done(&format!("finding kernel {name}"), code)?;
        Ok(Arc::new(Kernel { function, block, params }))
    }

    /// Unloads all of them; the context is current, and nothing is launched any more.
    pub fn unload(&self, driver: &Driver) {
        for module in lock(&self.modules).drain(..) {
            // SAFETY: loaded by `load`, unloaded once, when `Shared` is dropped; every program keeps `Shared` alive.
            unsafe { call!(driver.functions, sys::cuModuleUnload(module.0)) };
        }
    }
}

/// Argument that a launch passes for one parameter.
enum Arg {
    /// The struct.
    Params,
    /// The address of an operand.
    Address(Slot),
    /// Number of elements of so many bytes that an operand has.
    Length(Slot, u32),
}

/// A launch that is ready.
struct Dispatch {
    kernel: Arc<Kernel>,
    params: Box<[u8]>,
    args: Box<[Arg]>,
    grid: [u32; 3],
}

/// A part of a kernel that is ready.
enum Job {
    Dispatch(Dispatch),
    Gemm(Gemm),
    Convolution(Convolution),
}

/// A convolution by cuDNN, and where its operands are.
struct Convolution {
    convolver: Arc<Convolver>,
    x: Slot,
    w: Slot,
    y: Slot,
    bias: Option<Slot>,
    residual: Option<Slot>,
    scratch: Option<Slot>,
}

/// Products by cuBLASLt, and where their operands are.
struct Gemm {
    products: Arc<Products>,
    a: Slot,
    b: Slot,
    y: Slot,
    bias: Option<Slot>,
    added: Option<Slot>,
    scratch: Option<Slot>,
}

/// Target of a shader buffer's binding.
type Slot = step::Slot<Arc<Table>>;

/// Makes a device's kernels.
pub struct Compiler(pub Arc<Shared>);

impl Backend for Compiler {
    fn prepare(&self, work: Work) -> Result<Prepared> {
        let shared = &self.0;
        let mut tables = Tables::new(|words: &[u32]| Table::new(shared, words).map(Arc::new));
        let mut jobs = Vec::with_capacity(work.jobs.len());
        for job in work.jobs {
            jobs.push(match job {
                step::Job::Dispatch(step::Dispatch { name, wgsl, params, slots, groups: grid }) => {
                    let kernel = shared.kernels.get(shared, &name, &wgsl)?;
                    let slots: Vec<Slot> =
                        slots.into_iter().map(|slot| tables.place(slot)).collect::<Result<_>>()?;
                    let args = arguments(&kernel.params, &params, &slots)
                        .map_err(|e| Error::new(e.status(), format!("kernel {name}: {}", e.text())))?;
                    Job::Dispatch(Dispatch { kernel, params, args, grid })
                }
                step::Job::Call(call, plan, scratch) => {
                    let other = |_| Error::internal("a plan of another back end's");
                    let mut place =
                        |slot: Option<step::Slot>| slot.map(|slot| tables.place(slot)).transpose();
                    let scratch = place(scratch)?;
                    match *call {
                        Call::Gemm(gemm) => Job::Gemm(Gemm {
                            products: plan.downcast().map_err(other)?,
                            bias: place(gemm.bias)?,
                            added: place(gemm.added.map(|(slot, _)| slot))?,
                            scratch,
                            a: tables.place(gemm.a.slot)?,
                            b: tables.place(gemm.b.slot)?,
                            y: tables.place(gemm.y)?,
                        }),
                        Call::Convolution(conv) => {
                            let (bias, residual) =
                                conv.rest.map_or((None, None), |r| (Some(r.bias), r.residual));
                            Job::Convolution(Convolution {
                                convolver: plan.downcast().map_err(other)?,
                                bias: place(bias)?,
                                residual: place(residual)?,
                                scratch,
                                x: tables.place(conv.x)?,
                                w: tables.place(conv.w)?,
                                y: tables.place(conv.y)?,
                            })
                        }
                    }
                }
            });
        }
        let prepared = Prepared::new::<CudaDevice, _>(Program { jobs, checks: work.checks.into() });
        match work.scratch_bytes as usize {
            0 => Ok(prepared),
            bytes => Ok(prepared.with_workspace(bytes, SCRATCH_ALIGN as usize)),
        }
    }

    fn plan(&self, call: &Call) -> Option<Planned> {
        // Whatever keeps a library from it, the plugin's own kernels do it.
        Some(match call {
            Call::Gemm(gemm) => {
                let products = Products::new(&self.0, gemm).ok()?;
                Planned { scratch_bytes: products.workspace_bytes(), plan: Arc::new(products) }
            }
            Call::Convolution(conv) => {
                let convolver = Convolver::new(&self.0, conv).ok()?;
                Planned { scratch_bytes: convolver.workspace_bytes(), plan: Arc::new(convolver) }
            }
        })
    }
}

/// Returns the arguments of a kernel's parameters; binding `i + 1` is buffer `i` of the step.
fn arguments(wanted: &[source::Param], params: &[u8], slots: &[Slot]) -> Result<Box<[Arg]>> {
    let slot = |binding: u32| {
        let slot = (binding as usize).checked_sub(1).and_then(|i| slots.get(i));
        slot.cloned().ok_or_else(|| Error::internal(format!("no buffer of binding {binding}")))
    };
    let arg = |param: &source::Param| match *param {
        // The driver reads as many bytes as the kernel's struct has.
        source::Param::Uniform(size) if size as usize != params.len() => {
            Err(Error::internal(format!("{} bytes of parameters for a struct of {size}", params.len())))
        }
        source::Param::Uniform(_) if params.len() > PARAM_BYTES_MAX => {
            Err(Error::unsupported(format!("{} bytes of parameters", params.len())))
        }
        source::Param::Uniform(_) => Ok(Arg::Params),
        source::Param::Storage(binding) => Ok(Arg::Address(slot(binding)?)),
        source::Param::Length(binding, stride) => Ok(Arg::Length(slot(binding)?, stride)),
    };
    wanted.iter().map(arg).collect()
}

/// A prepared kernel.
pub struct Program {
    jobs: Vec<Job>,
    /// Requirements on its data; with any, the stream's report is read behind its launches.
    checks: Box<[Check]>,
}

impl Launch<CudaDevice> for Program {
    fn launch(&self, stream: &CudaStream, operands: &mut Operands<'_, CudaBuffer>) -> Result<()> {
        let shared = stream.shared();
        let _current = shared.current()?;
        if !self.checks.is_empty() {
            stream.will_report();
        }
        for job in &self.jobs {
            let dispatch = match job {
                Job::Dispatch(dispatch) => dispatch,
                Job::Gemm(gemm) => {
                    gemm.launch(stream, operands)?;
                    continue;
                }
                Job::Convolution(convolution) => {
                    convolution.launch(stream, operands)?;
                    continue;
                }
            };
            let mut values = [0u64; ARGS_MAX];
            let mut pointers = [null_mut::<c_void>(); ARGS_MAX];
            let at = values.as_mut_ptr();
            for (i, arg) in dispatch.args.iter().enumerate() {
                // A length is the low half of its word: devices and hosts of CUDA are little endian.
                let value = match arg {
                    Arg::Params => {
                        pointers[i] = dispatch.params.as_ptr().cast_mut().cast();
                        continue;
                    }
                    Arg::Address(Slot::Status) => stream.report_address(),
                    Arg::Length(Slot::Status, stride) => REPORT_BYTES as u64 / u64::from(*stride).max(1),
                    Arg::Address(slot) => resolve(slot, operands)?.0,
                    Arg::Length(slot, stride) => {
                        let n = resolve(slot, operands)?.1 / u64::from(*stride).max(1);
                        u64::from(u32::try_from(n).unwrap_or(u32::MAX))
                    }
                };
                // SAFETY: `i` is below ARGS_MAX, which `load` has checked.
                unsafe { at.add(i).write(value) };
                pointers[i] = at.wrapping_add(i).cast();
            }
            let ([gx, gy, gz], [bx, by, bz]) = (dispatch.grid, dispatch.kernel.block);
            // SAFETY: `arguments` has matched the arguments with the parameters that the kernel's text declares; the host lends
            // the memory that they name until a later point is reported (B9). The driver copies them before it returns.
            let code = unsafe {
                call!(
                    shared.driver.functions,
                    sys::cuLaunchKernel(
                        dispatch.kernel.function,
                        gx,
                        gy,
                        gz,
                        bx,
                        by,
                        bz,
                        0,
                        stream.raw(),
                        pointers.as_mut_ptr(),
                        null_mut(),
                    )
                )
            };
            shared.done("cuLaunchKernel", code)?;
        }
        Ok(())
    }
}

impl Gemm {
    fn launch(&self, stream: &CudaStream, operands: &Operands<'_, CudaBuffer>) -> Result<()> {
        let at = blas::Addresses {
            a: address(&self.a, operands)?,
            b: address(&self.b, operands)?,
            y: address(&self.y, operands)?,
            bias: perhaps(self.bias.as_ref(), operands)?,
            added: perhaps(self.added.as_ref(), operands)?,
            scratch: perhaps(self.scratch.as_ref(), operands)?,
        };
        self.products.launch(&at, stream)
    }
}

impl Convolution {
    fn launch(&self, stream: &CudaStream, operands: &Operands<'_, CudaBuffer>) -> Result<()> {
        let at = dnn::Addresses {
            x: address(&self.x, operands)?,
            w: address(&self.w, operands)?,
            y: address(&self.y, operands)?,
            bias: perhaps(self.bias.as_ref(), operands)?,
            residual: perhaps(self.residual.as_ref(), operands)?,
            scratch: perhaps(self.scratch.as_ref(), operands)?,
        };
        self.convolver.launch(&at, stream)
    }
}

fn address(slot: &Slot, operands: &Operands<'_, CudaBuffer>) -> Result<u64> {
    resolve(slot, operands).map(|(address, _)| address)
}

/// As [`address`], 0 without a slot.
fn perhaps(slot: Option<&Slot>, operands: &Operands<'_, CudaBuffer>) -> Result<u64> {
    slot.map_or(Ok(0), |slot| address(slot, operands))
}

/// The address and the bytes of what a slot is in this launch.
#[inline]
fn resolve(slot: &Slot, operands: &Operands<'_, CudaBuffer>) -> Result<(u64, u64)> {
    let whole = |reference: &BufferRef| (reference.addr, reference.length);
    let (address, length) = match slot {
        Slot::Input(i) => whole(operands.input_ref(*i)),
        Slot::Output(i) => whole(operands.output_ref(*i)),
        Slot::Scratch(part) => (operands.workspace_ref().addr + part.start, part.end - part.start),
        Slot::Table(table) => (table.address(), table.size()),
        Slot::Status => return Err(Error::internal("a report is the stream's, and no operand")),
    };
    if address == 0 && length > 0 {
        return Err(Error::invalid("an operand without an address"));
    }
    Ok((address, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_that_do_not_fit_the_kernel_are_refused() {
        let wanted = [source::Param::Uniform(8), source::Param::Storage(1), source::Param::Length(2, 4)];
        let slots = [Slot::Input(0), Slot::Output(0)];
        assert_eq!(arguments(&wanted, &[0; 8], &slots).map(|args| args.len()), Ok(3));
        assert!(arguments(&wanted, &[0; 12], &slots).is_err());
        assert!(arguments(&wanted, &[0; 8], &slots[..1]).is_err());
    }
}
