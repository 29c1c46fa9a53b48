//! The host's services as a plugin uses them: called while they exist, with valid texts and bodies (B2, B5). Also
//! checks that the host divides parallel loops as promised.
//!
//! The plugin gets a number as its context, so a call after the instance's end finds nothing instead of freed memory.
//! The table is leaked for the same reason: about a hundred bytes per instance.

use super::books::{Fault, fault};
use super::table::{CHUNK, SERVICES};
use super::threads::{Inside, float_control, inside, mark};
use super::{Books, next_number};
use devbay_plugin_api::abi::*;
use devbay_plugin_api::locks::lock;
use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The services of each instance, and the loops in progress.
#[derive(Default)]
pub(super) struct Services {
    open: HashMap<usize, HostApi>,
    /// Contexts of leaked instances. Their threads may still call, and are answered without the host.
    silent: HashSet<usize>,
    loops: HashMap<usize, Arc<Loop>>,
}

/// A parallel loop in progress.
struct Loop {
    body: ChunkFn,
    arg: usize,
    n: u64,
    grain: u64,
    n_slots: u32,
    n_done: AtomicU64,
    busy: Mutex<HashSet<u32>>,
}

impl Books {
    fn services(&self) -> std::sync::MutexGuard<'_, Services> {
        lock(&self.services)
    }

    /// Creates the table for an instance. Returns its number and the table.
    pub(super) fn open_services(&self, host: HostApi) -> (usize, &'static HostApi) {
        let number = next_number();
        let own = &SERVICES[self.slot];
        let api = HostApi {
            struct_size: host.struct_size.min(size_of::<HostApi>() as u32),
            n_slots: host.n_slots,
            ctx: std::ptr::without_provenance_mut(number),
            log: host.log.and(own.log),
            parallel_for: host.parallel_for.and(own.parallel_for),
            config: host.config.and(own.config),
            trace: host.trace.and(own.trace),
            get_extension: host.get_extension.and(own.get_extension),
            now_ns: host.now_ns.and(own.now_ns),
        };
        self.services().open.insert(number, host);
        (number, Box::leak(Box::new(api)))
    }

    /// Ends an instance's services. If the instance leaks, later calls are answered without the host; otherwise they
    /// are faults.
    pub(super) fn close_services(&self, number: usize, leaks: bool) {
        let mut services = self.services();
        services.open.remove(&number);
        if leaks {
            services.silent.insert(number);
        }
    }

    /// Returns the host's services if they still exist. A call that the plugin may not make now is reported.
    fn service(&self, function: &'static str, ctx: *mut c_void) -> Option<HostApi> {
        let services = self.services();
        let host = services.open.get(&ctx.addr()).copied();
        let silent = services.silent.contains(&ctx.addr());
        drop(services);
        if host.is_none() && !silent {
            self.plugin_broke(
                function,
                "B2",
                "called with a context that is not, or after the end of its instance",
            );
        }
        let in_body =
            function != "log" && function != "parallel_for" && inside(self.slot) == Some(Inside::Chunk);
        if in_body {
            self.plugin_broke(
                function,
                "B2",
                "called by the body of a loop, which calls log and parallel_for alone",
            );
        }
        host
    }

    pub(super) unsafe fn log(&self, ctx: *mut c_void, level: u32, text: Str) {
        let host = self.service("log", ctx);
        // SAFETY: B5: the plugin guarantees that the text's bytes stay readable and unchanged for the call.
        if let Err(error) = unsafe { text.get() } {
            self.plugin("log", Fault { rule: "B5", words: format!("its text: {error}") });
        }
        if let Some(HostApi { ctx, log: Some(log), .. }) = host {
            // SAFETY: B2: `log` and `ctx` come from the host's own table, and the host keeps `ctx` until `destroy`.
            unsafe { log(ctx, level, text) };
        }
    }

    pub(super) unsafe fn config(&self, ctx: *mut c_void, key: Str, out: *mut Str) -> Status {
        let host = self.service("config", ctx);
        // SAFETY: B5: the plugin guarantees that the text's bytes stay readable and unchanged for the call.
        if let Err(error) = unsafe { key.get() } {
            self.plugin("config", Fault { rule: "B5", words: format!("its key: {error}") });
        }
        if out.is_null() {
            self.plugin_broke("config", "B2", "called without a place for the value");
            return DEVBAY_STATUS_INVALID;
        }
        match host {
            // SAFETY: B2: `config` and `ctx` come from the host's own table, and the host keeps `ctx` until `destroy`.
            Some(HostApi { ctx, config: Some(config), .. }) => unsafe { config(ctx, key, out) },
            _ => DEVBAY_STATUS_NOT_FOUND,
        }
    }

    pub(super) unsafe fn trace(&self, ctx: *mut c_void, event: *const TraceEvent) {
        let host = self.service("trace", ctx);
        // SAFETY: B4: `event` is NULL or the plugin's struct with its size; the plugin keeps it for the call.
        let found = match unsafe { read_struct(event) } {
            Err(error) => fault("B4", format!("its mark: {error}")),
            Ok(event) if event.begin_ns > event.end_ns => {
                fault("B2", format!("a mark that begins at {} and ends at {}", event.begin_ns, event.end_ns))
            }
            Ok(event) => {
                // SAFETY: B5: the plugin guarantees that the texts' bytes stay readable and unchanged for the call.
                let texts = unsafe { event.name.get().and(event.track.get()) };
                texts.map(drop).map_err(|error| Fault { rule: "B5", words: format!("its mark: {error}") })
            }
        };
        self.check("trace", found);
        if let Some(HostApi { ctx, trace: Some(trace), .. }) = host {
            // SAFETY: B2: `trace` and `ctx` come from the host's own table, and the host keeps `ctx` until `destroy`.
            unsafe { trace(ctx, event) };
        }
    }

    pub(super) fn now_ns(&self, ctx: *mut c_void) -> u64 {
        match self.service("now_ns", ctx) {
            // SAFETY: B2: `now_ns` and `ctx` come from the host's own table, and the host keeps `ctx` until `destroy`.
            Some(HostApi { ctx, now_ns: Some(now_ns), .. }) => unsafe { now_ns(ctx) },
            _ => 0,
        }
    }

    /// Returns NULL: unknown extensions are not passed on, and the layer knows none (B6).
    pub(super) fn host_extension(&self, ctx: *mut c_void) -> *const c_void {
        let _ = self.service("get_extension", ctx);
        std::ptr::null()
    }

    pub(super) unsafe fn parallel_for(
        &self,
        ctx: *mut c_void,
        n: u64,
        grain: u64,
        body: Option<ChunkFn>,
        arg: *mut c_void,
    ) -> Status {
        const FUNCTION: &str = "parallel_for";
        let Some(HostApi { ctx, n_slots, parallel_for: Some(parallel_for), .. }) =
            self.service(FUNCTION, ctx)
        else {
            return DEVBAY_STATUS_ABORTED;
        };
        let Some(body) = body else {
            self.plugin_broke(FUNCTION, "B2", "called without a body");
            return DEVBAY_STATUS_INVALID;
        };
        let arg = arg.expose_provenance();
        let (n_done, busy) = (AtomicU64::new(0), Mutex::default());
        let running = Arc::new(Loop { body, arg, n, grain, n_slots, n_done, busy });
        let number = next_number();
        self.services().loops.insert(number, Arc::clone(&running));
        let marked = mark(self.slot, Inside::Loop);
        // SAFETY: B2: `parallel_for` and `ctx` come from the host's own table, and the host keeps `ctx` until
        // `destroy`. The chunk function is this layer's, and its argument is a number that it looks up.
        let status = unsafe {
            parallel_for(ctx, n, grain, Some(CHUNK[self.slot]), std::ptr::without_provenance_mut(number))
        };
        drop(marked);
        self.services().loops.remove(&number);
        let done = running.n_done.load(Ordering::Acquire);
        if status == DEVBAY_STATUS_OK && done != n {
            let words = format!("a loop over {n} returned when {done} were done");
            self.host_noted(FUNCTION, Fault { rule: "B2", words });
        }
        status
    }

    /// Runs a chunk of a loop for the host.
    pub(super) unsafe fn chunk(&self, arg: *mut c_void, begin: u64, end: u64, slot: u32) -> Status {
        const FUNCTION: &str = "parallel_for";
        let running = self.services().loops.get(&arg.addr()).map(Arc::clone);
        let Some(running) = running else {
            let words = "a chunk of a loop that has returned".to_owned();
            self.host_noted(FUNCTION, Fault { rule: "B2", words });
            return DEVBAY_STATUS_INVALID;
        };
        let busy = || lock(&running.busy);
        let (n, grain) = (running.n, running.grain.max(1));
        if begin >= end || end > n || end - begin > grain || !begin.is_multiple_of(grain) {
            let words = format!("a chunk {begin}..{end} of a loop over {n} by {grain}");
            self.host_noted(FUNCTION, Fault { rule: "B2", words });
        }
        if slot >= running.n_slots || !busy().insert(slot) {
            let words = format!("a chunk in slot {slot} of {}, expected a free one", running.n_slots);
            self.host_noted(FUNCTION, Fault { rule: "B2", words });
        }
        let before = float_control();
        let marked = mark(self.slot, Inside::Chunk);
        // SAFETY: B2: the plugin passed this function with this argument, and keeps both until its loop returns.
        let status =
            unsafe { (running.body)(std::ptr::with_exposed_provenance_mut(running.arg), begin, end, slot) };
        drop(marked);
        let after = float_control();
        if before != after {
            let words = format!("a body left the floating-point control as {after:#x}, it was {before:#x}");
            self.plugin(FUNCTION, Fault { rule: "B17", words });
        }
        self.expect_known(FUNCTION, status);
        busy().remove(&slot);
        running.n_done.fetch_add(end.saturating_sub(begin), Ordering::AcqRel);
        status
    }
}
