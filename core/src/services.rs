//! The host's services, as plugins see them (B2).
//!
//! One value for each plugin instance: the work queue is shared, the log knows the sender of each message. None of
//! these functions unwinds: panics of the application's sinks are caught here.

use crate::calls;
use crate::threads::queue::WorkQueue;
use crate::trace::{self, Laps};
pub use crate::trace::{Mark, TraceSink};
use devbay_plugin_api::abi::{
    ChunkFn, DEVBAY_LOG_DEBUG, DEVBAY_LOG_INFO, DEVBAY_LOG_WARN, DEVBAY_STATUS_INVALID,
    DEVBAY_STATUS_NOT_FOUND, DEVBAY_STATUS_OK, Growable, HostApi, Status, Str, TraceEvent, read_struct,
};
use devbay_plugin_api::locks::lock;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard};

/// The importance of a plugin's message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogLevel {
    /// Of interest when hunting a bug.
    Debug,
    /// Of general interest.
    Info,
    /// Something works less well than it could.
    Warn,
    /// Something failed.
    Error,
}

/// Takes plugins' messages: plugin, level, text.
pub type LogSink = Arc<dyn Fn(&str, LogLevel, &str) + Send + Sync>;
/// The services that the host offers to one plugin instance.
pub struct Services {
    plugin: String,
    queue: Arc<WorkQueue>,
    log: LogSink,
    trace: Option<TraceSink>,
    config: BTreeMap<String, String>,
    streams: Mutex<Streams>,
    api: HostApi,
}

/// Streams that are alive, while marks are taken: by label, the device's name and the handle.
type Streams = BTreeMap<String, (String, u64)>;

impl Services {
    /// Services for the plugin called `plugin`. Boxed, because plugins hold its address.
    pub fn new(
        plugin: &str,
        queue: Arc<WorkQueue>,
        log: LogSink,
        trace: Option<TraceSink>,
        config: BTreeMap<String, String>,
    ) -> Box<Self> {
        let api = HostApi {
            n_slots: queue.n_threads() as u32,
            log: Some(log_message),
            // Separate, so that loops of other queues do not ask.
            parallel_for: Some(if queue.is_simulated() { timed_parallel_for } else { parallel_for }),
            config: Some(look_up),
            trace: trace.is_some().then_some(add_mark as unsafe extern "C" fn(_, _)),
            get_extension: Some(get_extension),
            now_ns: Some(now_ns),
            ..HostApi::empty()
        };
        let mut services = Box::new(Self {
            plugin: plugin.to_owned(),
            queue,
            log,
            trace,
            config,
            streams: Mutex::default(),
            api,
        });
        services.api.ctx = (&raw mut *services).cast();
        services
    }

    /// Returns the table for `create`; lives as long as this value.
    pub fn api(&self) -> &HostApi {
        &self.api
    }

    /// A setting of the host's, such as `cache_dir`.
    pub(crate) fn config(&self, key: &str) -> Option<&str> {
        self.config.get(key).map(String::as_str)
    }

    /// Says something about the plugin that is of interest when hunting a bug.
    pub(crate) fn note(&self, text: &str) {
        (self.log)(&self.plugin, LogLevel::Debug, text);
    }

    /// Returns the work queue.
    pub fn queue(&self) -> &Arc<WorkQueue> {
        &self.queue
    }

    /// Returns a label that is unique while the stream lives, so that the marks of streams can be told apart; None if
    /// no marks are recorded. Freed with [`Services::stream_ended`].
    pub(crate) fn stream_label(&self, label: &str) -> Option<String> {
        self.trace.as_ref()?;
        let mut streams = self.streams();
        // Streams of a moment share a label, and a track, one after the other.
        let mut labels = (1..).map(|n| format!("{label} {n}"));
        let label = labels.find(|label| !streams.contains_key(label))?;
        streams.insert(label.clone(), <_>::default());
        Some(label)
    }

    /// A stream begins, whose label is its own.
    pub(crate) fn stream_begins(&self, label: &str, device: &str, handle: u64) {
        self.streams().insert(label.to_owned(), (device.to_owned(), handle));
    }

    /// It has ended.
    pub(crate) fn stream_ended(&self, label: &str) {
        self.streams().remove(label);
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        lock(&self.streams)
    }
}

unsafe extern "C" fn now_ns(_: *mut c_void) -> u64 {
    crate::trace::now_ns()
}

/// # Safety
/// `ctx` is the context of a [`Services`] that is alive.
unsafe fn services<'a>(ctx: *mut c_void) -> &'a Services {
    // SAFETY: `ctx` is that of a `Services` that is alive (# Safety): plugins pass back what they were given, and use
    // it until `destroy`.
    unsafe { &*ctx.cast::<Services>() }
}

/// Runs code of the application's; a panic ends there.
fn contained(body: impl FnOnce()) {
    if let Err(payload) = std::panic::catch_unwind(AssertUnwindSafe(body)) {
        // The panic hook has printed it; dropping a foreign payload could panic again.
        std::mem::forget(payload);
    }
}

unsafe extern "C" fn log_message(ctx: *mut c_void, level: u32, text: Str) {
    // SAFETY: B2: the plugin passes the context of its table, which is alive until `destroy`.
    let services = unsafe { services(ctx) };
    let level = match level {
        DEVBAY_LOG_DEBUG => LogLevel::Debug,
        DEVBAY_LOG_INFO => LogLevel::Info,
        DEVBAY_LOG_WARN => LogLevel::Warn,
        // Unknown levels are not lost (B5).
        _ => LogLevel::Error,
    };
    // SAFETY: B5: the text's bytes are the plugin's, and unchanged for the call.
    match unsafe { text.get() } {
        Ok(text) => contained(|| (services.log)(&services.plugin, level, text)),
        Err(error) => contained(|| {
            (services.log)(&services.plugin, LogLevel::Warn, &format!("a broken log message: {error}"));
        }),
    }
}

struct ChunkCall {
    body: ChunkFn,
    arg: *mut c_void,
}

// SAFETY: the plugin's body may be called from any thread with its argument: the plugin asked for that.
unsafe impl Sync for ChunkCall {}

impl ChunkCall {
    fn run(&self, begin: u64, end: u64, slot: u32) -> Status {
        // SAFETY: the plugin's function with its own argument; it does not unwind (B19).
        unsafe { (self.body)(self.arg, begin, end, slot) }
    }
}

/// The services of a context, and the loop's body, which a plugin may have left out.
///
/// # Safety
/// As [`services`].
#[inline(always)]
unsafe fn told<'a>(
    ctx: *mut c_void,
    body: Option<ChunkFn>,
    arg: *mut c_void,
) -> Option<(&'a Services, ChunkCall)> {
    let body = body?;
    // SAFETY: as this function (# Safety).
    Some((unsafe { services(ctx) }, ChunkCall { body, arg }))
}

unsafe extern "C" fn parallel_for(
    ctx: *mut c_void,
    n: u64,
    grain: u64,
    body: Option<ChunkFn>,
    arg: *mut c_void,
) -> Status {
    // SAFETY: B2: the plugin passes the context of its table, which is alive until `destroy`.
    let Some((services, call)) = (unsafe { told(ctx, body, arg) }) else {
        return DEVBAY_STATUS_INVALID;
    };
    // Threads that help are in the same call of the plugin's.
    let here = calls::here();
    let run = |begin, end, slot| calls::within(here, || call.run(begin, end, slot));
    services.queue.parallel_for(n, grain, &run)
}

/// The loop of a simulated queue: its chunks follow each other on this thread, and a traced run takes the time of each
/// down.
unsafe extern "C" fn timed_parallel_for(
    ctx: *mut c_void,
    n: u64,
    grain: u64,
    body: Option<ChunkFn>,
    arg: *mut c_void,
) -> Status {
    // SAFETY: B2: the plugin passes the context of its table, which is alive until `destroy`.
    let Some((services, call)) = (unsafe { told(ctx, body, arg) }) else {
        return DEVBAY_STATUS_INVALID;
    };
    let laps = trace::begin_laps();
    services.queue.parallel_for(n, grain, &|begin, end, slot| {
        let status = call.run(begin, end, slot);
        laps.iter().for_each(Laps::lap);
        status
    })
}

unsafe extern "C" fn look_up(ctx: *mut c_void, key: Str, out: *mut Str) -> Status {
    // SAFETY: B2: the plugin passes the context of its table, which is alive until `destroy`.
    let services = unsafe { services(ctx) };
    // SAFETY: B5: the text's bytes are the plugin's, and unchanged for the call.
    let Ok(key) = (unsafe { key.get() }) else {
        return DEVBAY_STATUS_INVALID;
    };
    // SAFETY: `out` is NULL or the plugin's place for one text, alive for the call.
    let Some(out) = (unsafe { out.as_mut() }) else {
        return DEVBAY_STATUS_INVALID;
    };
    match services.config.get(key) {
        None => DEVBAY_STATUS_NOT_FOUND,
        Some(value) => {
            *out = Str::new(value);
            DEVBAY_STATUS_OK
        }
    }
}

unsafe extern "C" fn add_mark(ctx: *mut c_void, event: *const TraceEvent) {
    // SAFETY: B2: the plugin passes the context of its table, which is alive until `destroy`.
    let services = unsafe { services(ctx) };
    // SAFETY: B4: NULL, or the plugin's struct of the size that it says, alive for the call.
    let Ok(event) = (unsafe { read_struct(event) }) else {
        return;
    };
    // SAFETY: B5: the texts' bytes are the plugin's, and unchanged for the call.
    let texts = unsafe { (event.name.get(), event.track.get()) };
    if let (Some(trace), (Ok(name), Ok(track))) = (&services.trace, texts) {
        let (device, stream) = services.streams().get(track).cloned().unwrap_or_default();
        let mark = Mark {
            name: name.to_owned(),
            track: track.to_owned(),
            device,
            stream,
            begin_ns: event.begin_ns,
            end_ns: event.end_ns,
        };
        contained(|| trace(&services.plugin, mark));
    }
}

/// The host has no extensions yet; unknown ids give NULL (B6).
unsafe extern "C" fn get_extension(_ctx: *mut c_void, _id: u32, _min_revision: u32) -> *const c_void {
    std::ptr::null()
}
