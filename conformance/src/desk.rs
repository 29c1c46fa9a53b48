//! The host's services as the cases give them to a plugin: plain, counted, and never freed.
//!
//! A plugin that calls the host after `destroy` would read freed memory, and the finding would be a crash. So
//! a desk is leaked, remembers that it was closed, and counts later calls.

use devbay_plugin_api::abi::*;
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Services for one instance.
pub(crate) struct Desk {
    api: HostApi,
    closed: AtomicBool,
    late_calls: AtomicU64,
    broken_texts: AtomicU64,
    /// True if the run that the plugin works for is to end.
    is_over: AtomicBool,
    cancelled_loops: AtomicU64,
}

// SAFETY: the table's context is the desk itself, which is leaked.
unsafe impl Send for Desk {}
// SAFETY: the table is read-only after construction, and everything else is atomic.
unsafe impl Sync for Desk {}

thread_local! {
    /// The slot of the chunk that this thread runs, if it does.
    static SLOT: Cell<Option<u32>> = const { Cell::new(None) };
}

impl Desk {
    /// Opens a desk whose loops use `n_slots` threads. Leaked: a late call must find it.
    pub(crate) fn open(n_slots: u32) -> &'static Self {
        let desk = Box::leak(Box::new(Self {
            api: HostApi {
                n_slots,
                log: Some(log),
                parallel_for: Some(parallel_for),
                config: Some(config),
                get_extension: Some(get_extension),
                ..HostApi::empty()
            },
            closed: AtomicBool::new(false),
            late_calls: AtomicU64::new(0),
            broken_texts: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            cancelled_loops: AtomicU64::new(0),
        }));
        desk.api.ctx = (&raw mut *desk).cast();
        desk
    }

    /// Returns the table for `create`.
    pub(crate) fn api(&self) -> &HostApi {
        &self.api
    }

    /// From here on every call is late.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Calls that came after `close`.
    pub(crate) fn late_calls(&self) -> u64 {
        self.late_calls.load(Ordering::SeqCst)
    }

    /// Log messages that were no UTF-8, or had no bytes behind their length.
    pub(crate) fn broken_texts(&self) -> u64 {
        self.broken_texts.load(Ordering::SeqCst)
    }

    /// Loops begin no chunk from here on and give CANCELLED, or do what they are asked again.
    pub(crate) fn cancel(&self, is_over: bool) {
        self.is_over.store(is_over, Ordering::SeqCst);
    }

    /// Loops that gave CANCELLED.
    pub(crate) fn cancelled_loops(&self) -> u64 {
        self.cancelled_loops.load(Ordering::SeqCst)
    }

    /// # Safety
    /// `ctx` is NULL or a desk's.
    unsafe fn enter<'a>(ctx: *mut c_void) -> Option<&'a Self> {
        // SAFETY: `ctx` is NULL or a desk's (# Safety), and desks are leaked.
        let desk = unsafe { ctx.cast::<Self>().as_ref() }?;
        if desk.closed.load(Ordering::SeqCst) {
            desk.late_calls.fetch_add(1, Ordering::SeqCst);
        }
        Some(desk)
    }
}

unsafe extern "C" fn log(ctx: *mut c_void, _level: u32, text: Str) {
    // SAFETY: B2: the plugin passes the context of its table, which is leaked.
    if let Some(desk) = unsafe { Desk::enter(ctx) }
        // SAFETY: B5: the text's bytes are the plugin's, and unchanged for the call.
        && unsafe { text.get() }.is_err()
    {
        desk.broken_texts.fetch_add(1, Ordering::SeqCst);
    }
}

unsafe extern "C" fn config(ctx: *mut c_void, _key: Str, _out: *mut Str) -> Status {
    // SAFETY: B2: the plugin passes the context of its table, which is leaked.
    unsafe { Desk::enter(ctx) };
    DEVBAY_STATUS_NOT_FOUND
}

unsafe extern "C" fn get_extension(ctx: *mut c_void, _id: u32, _min_revision: u32) -> *const c_void {
    // SAFETY: B2: the plugin passes the context of its table, which is leaked.
    unsafe { Desk::enter(ctx) };
    std::ptr::null()
}

/// One loop.
struct Loop {
    body: ChunkFn,
    arg: *mut c_void,
    n: u64,
    grain: u64,
    next: AtomicU64,
    status: AtomicI32,
    next_slot: AtomicU32,
}

// SAFETY: the plugin asked for its body to be called from any thread with this argument.
unsafe impl Sync for Loop {}

impl Loop {
    /// Takes chunks until none is left.
    fn work(&self, slot: u32) {
        let before = SLOT.replace(Some(slot));
        loop {
            let begin = self.next.fetch_add(1, Ordering::Relaxed).saturating_mul(self.grain);
            if begin >= self.n {
                break;
            }
            let end = begin.saturating_add(self.grain).min(self.n);
            // SAFETY: the plugin's function with its own argument; it does not unwind (B19).
            let status = unsafe { (self.body)(self.arg, begin, end, slot) };
            if status != DEVBAY_STATUS_OK {
                // The first failure is kept.
                let _ = self.status.compare_exchange(0, status, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
        SLOT.set(before);
    }
}

unsafe extern "C" fn parallel_for(
    ctx: *mut c_void,
    n: u64,
    grain: u64,
    body: Option<ChunkFn>,
    arg: *mut c_void,
) -> Status {
    // SAFETY: B2: the plugin passes the context of its table, which is leaked.
    let (Some(desk), Some(body)) = (unsafe { Desk::enter(ctx) }, body) else {
        return DEVBAY_STATUS_INVALID;
    };
    if desk.is_over.load(Ordering::SeqCst) {
        desk.cancelled_loops.fetch_add(1, Ordering::SeqCst);
        return DEVBAY_STATUS_CANCELLED;
    }
    let grain = grain.max(1);
    let work = Loop {
        body,
        arg,
        n,
        grain,
        next: AtomicU64::new(0),
        status: AtomicI32::new(DEVBAY_STATUS_OK),
        next_slot: AtomicU32::new(1),
    };
    match SLOT.get() {
        // Nested: this thread's slot is taken, and others may belong to the loop around.
        Some(slot) => work.work(slot),
        None => {
            let helpers = n.div_ceil(grain).min(u64::from(desk.api.n_slots)).saturating_sub(1);
            std::thread::scope(|scope| {
                for _ in 0..helpers {
                    let help = || work.work(work.next_slot.fetch_add(1, Ordering::Relaxed));
                    // The participants that there are do all of it.
                    if std::thread::Builder::new().spawn_scoped(scope, help).is_err() {
                        break;
                    }
                }
                work.work(0);
            });
        }
    }
    work.status.into_inner()
}
