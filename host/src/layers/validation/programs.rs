//! Compiled programs: alive when used, run on streams of their device, with buffers that stay until the run is over
//! (B9, B23).

use super::books::*;
use super::extensions::call;
use super::threads::On;
use super::{Answer, Books};
use devbay_plugin_api::abi::*;
use std::ffi::c_void;
use std::ptr::null_mut;

/// A compiled program.
pub(super) struct ProgramBook {
    pub instance: usize,
    /// The program's device; None if it was compiled for a machine that need not be present.
    pub device: Option<usize>,
}

impl Books {
    pub(super) unsafe fn formats(
        &self,
        device: *mut Device,
        out: *mut List,
        error: *mut ErrorDetail,
    ) -> Answer {
        let entered = self.enter("formats", On::Device(device.addr()))?;
        self.refuse_null(entered.function(), out)?;
        let mut words = self.words(entered.function(), error)?;
        let next = self.compile(entered.instance());
        let mut list = List::EMPTY;
        let status = entered.call(|| call!(next, formats(device, &mut list, words.as_ptr())));
        self.settle(entered.function(), words, status);
        if status == DEVBAY_STATUS_OK {
            // SAFETY: `out` is not NULL (`refuse_null`), so it is the host's place for one list.
            unsafe { *out = list };
            // SAFETY: B5: `list` is the plugin's successful result, which it keeps as long as the instance.
            let names = unsafe { read_list::<Str>(&list, "Str") };
            // SAFETY: B5: the plugin keeps the texts as long as the list, which is as long as the instance.
            let texts =
                names.and_then(|names| names.iter().try_for_each(|name| unsafe { name.get() }.map(drop)));
            let broken =
                |error: ListError| Fault { rule: "B5", words: format!("its list of formats: {error}") };
            self.check(entered.function(), texts.map_err(broken));
        }
        Ok(status)
    }

    pub(super) unsafe fn compile_program(
        &self,
        device: *mut Device,
        desc: *const CompileDesc,
        out: *mut *mut Executable,
        error: *mut ErrorDetail,
    ) -> Answer {
        self.made_program("compile", On::Device(device.addr()), desc, out, error, |next, out, words| {
            call!(next, compile(device, desc, out, words))
        })
    }

    pub(super) unsafe fn load(
        &self,
        device: *mut Device,
        desc: *const CompileDesc,
        out: *mut *mut Executable,
        error: *mut ErrorDetail,
    ) -> Answer {
        self.made_program("load", On::Device(device.addr()), desc, out, error, |next, out, words| {
            call!(next, load(device, desc, out, words))
        })
    }

    pub(super) unsafe fn compile_ahead(
        &self,
        instance: *mut Instance,
        desc: *const CompileDesc,
        out: *mut *mut Executable,
        error: *mut ErrorDetail,
    ) -> Answer {
        self.made_program(
            "compile_ahead",
            On::Instance(instance.addr()),
            desc,
            out,
            error,
            |next, out, words| call!(next, compile_ahead(instance, desc, out, words)),
        )
    }

    /// Calls a function that makes a program, and records the program.
    fn made_program(
        &self,
        function: &'static str,
        on: On,
        desc: *const CompileDesc,
        out: *mut *mut Executable,
        error: *mut ErrorDetail,
        call: impl FnOnce(&CompileTable, *mut *mut Executable, *mut ErrorDetail) -> Status,
    ) -> Answer {
        let entered = self.enter(function, on)?;
        if self.read(function, desc)?.is_none() {
            return Ok(DEVBAY_STATUS_INVALID);
        }
        self.refuse_null(function, out)?;
        let mut words = self.words(function, error)?;
        // Starts as NULL instead of the host's value, which a host in C may leave uninitialised.
        let mut made = null_mut();
        let next = self.compile(entered.instance());
        let status = entered.call(|| call(&next, &mut made, words.as_ptr()));
        self.settle(function, words, status);
        if status != DEVBAY_STATUS_OK {
            return Ok(status);
        }
        // SAFETY: `out` is not NULL (`refuse_null`), so it is the host's place for one handle.
        unsafe { *out = made };
        if made.is_null() {
            self.plugin_broke(function, "B9", "it succeeded without a program");
            return Ok(status);
        }
        let book = ProgramBook { instance: entered.instance().unwrap_or(0), device: entered.device };
        let known = self.enter_book(Kind::Program, made.addr(), |state| {
            state.programs.insert(made.addr(), book);
        });
        self.check(function, known);
        Ok(status)
    }

    pub(super) unsafe fn executable_info(
        &self,
        program: *mut Executable,
        out: *mut ExecutableInfo,
        error: *mut ErrorDetail,
    ) -> Answer {
        let entered = self.enter("executable_info", On::Program(program.addr()))?;
        let next = self.compile(entered.instance());
        let call = |out: *mut ExecutableInfo, words| {
            entered.call(|| call!(next, executable_info(program, out, words)))
        };
        Ok(self.watched(entered.function(), out, error, call)?.0)
    }

    pub(super) unsafe fn execute(
        &self,
        program: *mut Executable,
        stream: *mut Stream,
        desc: *const ExecuteDesc,
    ) -> Answer {
        let entered = self.enter("execute", On::Owner(stream.addr()))?;
        let Some(wanted) = self.read(entered.function(), desc)? else {
            return Ok(DEVBAY_STATUS_INVALID);
        };
        self.refuse_recording(entered.function(), stream.addr())?;
        let device = entered.device.unwrap_or(0);
        let used = used(&self.state(), program.addr(), device, &wanted);
        let mut lent = self.expect(entered.function(), used)?;
        if wanted.n_results > 0 {
            self.refuse_null(entered.function(), wanted.results)?;
        }
        lent.push(Lent::Program(program.addr()));
        let next = self.compile(entered.instance());
        let status = self.enqueue(&entered, stream, &lent, || call!(next, execute(program, stream, desc)));
        if status == DEVBAY_STATUS_OK {
            for i in 0..wanted.n_results as usize {
                // SAFETY: `results` is not NULL (`refuse_null`). The host guarantees `n_results` places (B23), which
                // the plugin has written.
                let made = unsafe { *wanted.results.add(i) };
                if !made.is_null() {
                    let book = BufferBook::of_plugin(device);
                    let known = self.enter_book(Kind::Buffer, made.addr(), |state| {
                        state.buffers.insert(made.addr(), book);
                    });
                    self.check(entered.function(), known);
                }
            }
        }
        Ok(status)
    }

    pub(super) unsafe fn executable_free(&self, program: *mut Executable) -> Result<(), Status> {
        let entered = self.enter("executable_free", On::Program(program.addr()))?;
        let mut state = self.state();
        let lent = state.not_lent(Lent::Program(program.addr()));
        state.programs.remove(&program.addr());
        state.ended(Kind::Program, program.addr());
        drop(state);
        self.expect(entered.function(), lent)
            .inspect_err(|_| entered.instance().into_iter().for_each(|of| self.leak(of)))?;
        let next = self.compile(entered.instance());
        if let Some(free) = next.executable_free {
            // SAFETY: B9: the host guarantees that the plugin made `program` and that it is freed once.
            entered.run(|| unsafe { free(program) });
        }
        Ok(())
    }

    pub(super) unsafe fn claim(
        &self,
        device: *mut Device,
        graph: *const GraphView,
        claims: *mut NodeClaim,
        n_claims: u64,
        error: *mut ErrorDetail,
    ) -> Answer {
        let entered = self.enter("claim", On::Device(device.addr()))?;
        let Some(asked) = self.read(entered.function(), graph)? else {
            return Ok(DEVBAY_STATUS_INVALID);
        };
        if n_claims != asked.nodes.len {
            let words = format!("places for {n_claims} claims of {} nodes", asked.nodes.len);
            self.host(entered.function(), Fault { rule: "B23", words })?;
        }
        if n_claims > 0 {
            self.refuse_null(entered.function(), claims)?;
        }
        let mut words = self.words(entered.function(), error)?;
        let next = self.compile(entered.instance());
        let status = entered.call(|| call!(next, claim(device, graph, claims, n_claims, words.as_ptr())));
        self.settle(entered.function(), words, status);
        Ok(status)
    }

    pub(super) unsafe fn blob(
        &self,
        program: *mut Executable,
        out: *mut List,
        error: *mut ErrorDetail,
    ) -> Answer {
        let entered = self.enter("blob", On::Program(program.addr()))?;
        self.refuse_null(entered.function(), out)?;
        let mut words = self.words(entered.function(), error)?;
        let next = self.compile(entered.instance());
        let status = entered.call(|| call!(next, blob(program, out, words.as_ptr())));
        self.settle(entered.function(), words, status);
        Ok(status)
    }

    pub(super) unsafe fn validate(
        &self,
        device: *mut Device,
        blob: *const c_void,
        blob_bytes: u64,
        out: *mut u32,
        error: *mut ErrorDetail,
    ) -> Answer {
        let entered = self.enter("validate", On::Device(device.addr()))?;
        if blob_bytes > 0 {
            self.refuse_null(entered.function(), blob.cast_mut())?;
        }
        self.refuse_null(entered.function(), out)?;
        let mut words = self.words(entered.function(), error)?;
        let next = self.compile(entered.instance());
        let status = entered.call(|| call!(next, validate(device, blob, blob_bytes, out, words.as_ptr())));
        self.settle(entered.function(), words, status);
        Ok(status)
    }
}

/// Checks a run. Returns the objects that it uses.
fn used(state: &Register, program: usize, device: usize, run: &ExecuteDesc) -> Result<Vec<Lent>, Fault> {
    let book = state.program(program)?;
    if book.device.is_none_or(|of| of != device) {
        return fault("B23", "a program of another device than the stream's");
    }
    let mut lent = Vec::new();
    for (list, what) in [(&run.inputs, "input"), (&run.outputs, "output")] {
        // SAFETY: B5: the list was read from the host's struct, and the host keeps it for the call.
        let operands = unsafe { read_list::<BufferRef>(list, "BufferRef") };
        let operands = operands.map_err(|error| Fault { rule: "B5", words: error.to_string() })?;
        for (i, reference) in operands.iter().enumerate() {
            if reference.buffer.is_null() && what == "output" {
                continue;
            }
            state.range(device, reference, &format!("{what} {i} of the program"))?;
            lent.push(Lent::Buffer(reference.buffer.addr()));
        }
    }
    Ok(lent)
}
