//! `from-c`: a run through `libdevbay.so`'s functions, beside the same run from Rust.
//!
//! The model is one that computes almost nothing, so that the call is what is measured. `run` writes into the caller's memory, once
//! with `Session::run_into` and once with `devbay_session_run`; `bound` runs on memory that was bound before. Results are compared.

use crate::measure::{Subject, passes};
use crate::peers::Peers;
use crate::ran::Ran;
use crate::rows::{OURS, Rows};
use crate::setup;
use anyhow::{Result, bail, ensure};
use devbay_core::tensor::F32;
use devbay_host::{InputView, Model, RunOptions, Session};
use libloading::Library;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::time::Duration;

/// Four numbers, doubled.
const PROGRAM: &str =
    "devbay-program 1\nprogram \"double\"(%x: f32[4]) {\n    %y: f32[4] = Add@14(%x, %x)\n    return %y\n}\n";

/// A handle of the library's, of any type.
type Handle = *mut c_void;

/// The functions that are called, as `devbay.h` declares them.
struct Api {
    message: unsafe extern "C" fn(Handle) -> *const c_char,
    runtime_create: unsafe extern "C" fn(Handle, *mut Handle) -> Handle,
    model_from_bytes: unsafe extern "C" fn(*const u8, usize, *mut Handle) -> Handle,
    session_create: unsafe extern "C" fn(Handle, Handle, Handle, *mut Handle) -> Handle,
    value_wrap: unsafe extern "C" fn(
        u32,
        *const i64,
        usize,
        *mut c_void,
        usize,
        u32,
        Option<extern "C" fn(*mut c_void)>,
        *mut c_void,
        *mut Handle,
    ) -> Handle,
    session_run:
        unsafe extern "C" fn(Handle, *const Handle, usize, *mut Handle, usize, *const c_void) -> Handle,
    session_bind:
        unsafe extern "C" fn(Handle, *const Handle, usize, *const Handle, usize, *mut Handle) -> Handle,
    bound_run: unsafe extern "C" fn(Handle, *const c_void) -> Handle,
    _library: Library,
}

impl Api {
    fn load() -> Result<Self> {
        let path = std::env::current_exe()?.with_file_name("libdevbay.so");
        ensure!(path.exists(), "expected {}: cargo build --release --workspace", path.display());
        // SAFETY: it is what this workspace builds, whose initialisers do nothing.
        let library = unsafe { Library::new(&path) }?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the fields' types are those of `devbay.h`.
                *unsafe { library.get(concat!("devbay_", $name, "\0").as_bytes()) }?
            };
        }
        Ok(Self {
            message: function!("error_message"),
            runtime_create: function!("runtime_create"),
            model_from_bytes: function!("model_from_bytes"),
            session_create: function!("session_create"),
            value_wrap: function!("value_wrap"),
            session_run: function!("session_run"),
            session_bind: function!("session_bind"),
            bound_run: function!("bound_run"),
            _library: library,
        })
    }

    fn check(&self, error: Handle) -> Result<()> {
        if error.is_null() {
            return Ok(());
        }
        // SAFETY: the error is the library's, and its message lives as long as it does, which is not destroyed.
        let message = unsafe { CStr::from_ptr((self.message)(error)) };
        bail!("{}", message.to_string_lossy());
    }

    /// Makes the session that is measured.
    fn session(&self) -> Result<Handle> {
        let (mut runtime, mut model, mut session) = (null_mut(), null_mut(), null_mut());
        // SAFETY: as `devbay.h` declares; the places and the bytes live until the calls return.
        unsafe {
            self.check((self.runtime_create)(null_mut(), &mut runtime))?;
            self.check((self.model_from_bytes)(PROGRAM.as_ptr(), PROGRAM.len(), &mut model))?;
            self.check((self.session_create)(runtime, model, null_mut(), &mut session))?;
        }
        Ok(session)
    }

    /// Makes a value of this memory.
    fn value(&self, memory: &mut [f32; 4]) -> Result<Handle> {
        const F32_IN_C: u32 = 1 << 16 | 32 << 8 | 2;
        const WRITABLE: u32 = 1;
        let mut value = null_mut();
        let (data, size) = (memory.as_mut_ptr().cast(), size_of_val(memory));
        // SAFETY: as `devbay.h` declares; the memory lives as long as the measurement.
        let error = unsafe {
            (self.value_wrap)(F32_IN_C, [4].as_ptr(), 1, data, size, WRITABLE, None, null_mut(), &mut value)
        };
        self.check(error)?;
        Ok(value)
    }
}

pub fn run(rows: &mut Rows, _peers: &Peers, n_passes: usize) -> Result<()> {
    /// Calls a round, so that the clock is not what is measured.
    const N: usize = 1000;
    let api = Api::load()?;
    let runtime = setup::runtime(0)?;
    let rust = Session::new(&Model::from_text(PROGRAM)?, &setup::device(&runtime)?)?;
    let x = [1.0f32, 2.0, 3.0, 4.0];
    let wanted = x.map(|x| 2.0 * x);
    let shape = [4];
    let views = [InputView::new(F32, &shape, bytemuck::bytes_of(&x))?];
    let mut x_of_c = x;
    let (mut of_rust, mut of_c) = ([0.0f32; 4], [0.0f32; 4]);
    let (start, of_c_start) = (of_rust.as_mut_ptr(), of_c.as_mut_ptr());
    let session = api.session()?;
    let (input, output) = (api.value(&mut x_of_c)?, api.value(&mut of_c)?);
    // Both sides write their results again and again; the last ones are looked at.
    let written = |start: *mut f32| -> [f32; 4] {
        // SAFETY: four numbers, which no run writes at this moment.
        unsafe { start.cast::<[f32; 4]>().read() }
    };

    let from_rust = Subject::fallible("from Rust", N as f64, || {
        for _ in 0..N {
            // SAFETY: nothing else uses the memory during the call.
            let memory = unsafe { &mut *start.cast::<[f32; 4]>() };
            rust.run_into(&views, &mut [bytemuck::bytes_of_mut(memory)], &RunOptions::default())?;
        }
        Ok(())
    });
    let from_c = Subject::fallible(OURS, N as f64, || {
        for _ in 0..N {
            let mut outputs = [output];
            // SAFETY: as `devbay.h` declares; handles and arrays live until the call returns.
            api.check(unsafe { (api.session_run)(session, &input, 1, outputs.as_mut_ptr(), 1, null()) })?;
        }
        Ok(())
    });
    let figures = passes(&mut [from_c, from_rust], n_passes, Duration::from_millis(30))?;
    ensure!(written(start) == wanted && written(of_c_start) == wanted, "results that are no doubles");
    rows.case("from-c", "run", runtime.n_threads(), "ns", &figures, Ran::of("results", 2, 2))?;

    let mut bound_memory = [0.0f32; 4];
    let bound_start = bound_memory.as_mut_ptr();
    let mut bound = null_mut();
    // SAFETY: as `devbay.h` declares.
    api.check(unsafe { (api.session_bind)(session, &input, 1, &output, 1, &mut bound) })?;
    let Some(mut bound_rust) = rust.bind(&views, &mut [bytemuck::bytes_of_mut(&mut bound_memory)])? else {
        bail!("the model cannot be bound");
    };
    let from_rust = Subject::fallible("from Rust", N as f64, || {
        (0..N).try_for_each(|_| bound_rust.run(None))?;
        Ok(())
    });
    let from_c = Subject::fallible(OURS, N as f64, || {
        // SAFETY: as `devbay.h` declares.
        (0..N).try_for_each(|_| api.check(unsafe { (api.bound_run)(bound, null()) }))
    });
    let figures = passes(&mut [from_c, from_rust], n_passes, Duration::from_millis(30))?;
    ensure!(written(bound_start) == wanted && written(of_c_start) == wanted, "results that are no doubles");
    rows.case("from-c", "bound", runtime.n_threads(), "ns", &figures, Ran::of("results", 2, 2))
}
