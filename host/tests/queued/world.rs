//! The queues of all devices of a runtime, and the execution of their commands.
//!
//! `world/calls.rs` has the calls of the plugin's streams to their world; this file takes commands out of queues.

mod calls;

use super::{Fault, Mode, When};
use devbay_host::internals::random::Random;
use devbay_plugin_api::abi::{DEVBAY_STATUS_ABORTED, DEVBAY_STATUS_DEVICE_LOST, DEVBAY_STATUS_INTERNAL};
use devbay_plugin_api::locks::{lock, unpoisoned, wait};
use devbay_plugin_api::sdk::{DeferredLaunch, Done, Error, Result};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// The queues of all devices of a runtime.
pub struct World {
    id: u64,
    state: Mutex<WorldState>,
    changed: Condvar,
}

#[derive(Default)]
struct WorldState {
    mode: Option<Mode>,
    /// Streams that are alive, in the order in which they were made.
    lines: BTreeMap<u64, Line>,
    n_lines: u64,
    /// Of this run: commands, and those and calls that were asked for.
    n_enqueued: usize,
    n_asked: usize,
    n_executed: usize,
    /// Fault of this run.
    fault: Option<Fault>,
    /// The device and command that the fault met.
    met: Option<(String, &'static str)>,
    /// Devices that were lost.
    lost: Vec<String>,
    /// True if streams of a lost device stall and answer only when they are destroyed, except for the one that found
    /// the loss and those that wait for it.
    is_quiet: bool,
    /// A run is on; between runs no command may be executed.
    is_running: bool,
    /// Violated expectations.
    complaints: Vec<String>,
    /// Ranges of each device's own allocations.
    owned: Vec<(String, std::ops::Range<u64>)>,
    /// For the delays and choices of free-running threads.
    random: Random,
    is_closed: bool,
}

/// A stream.
#[derive(Default)]
struct Line {
    device: String,
    commands: VecDeque<Command>,
    /// A command is being executed.
    is_busy: bool,
    signalled: u64,
    reached: u64,
    failure: Option<Error>,
    waiting: Vec<(u64, Done)>,
}

/// A command of a stream.
#[expect(clippy::large_enum_variant, reason = "launches are the rule")]
pub(super) enum Command {
    /// With what runs it: [`DeferredLaunch::run`] for the form's streams.
    Launch(DeferredLaunch, fn(&DeferredLaunch) -> Result<()>),
    Copy(Span),
    Signal(u64),
    Wait(u64, u64),
}

impl Command {
    fn name(&self) -> &'static str {
        match self {
            Self::Launch(..) => "launch",
            Self::Copy(_) => "copy",
            Self::Signal(_) => "signal",
            Self::Wait(..) => "wait",
        }
    }
}

/// A copy between addresses.
pub(super) struct Span {
    pub src: *const u8,
    pub dst: *mut u8,
    pub size_bytes: usize,
}

// SAFETY: the host lends both ranges until a point signalled after the copy is reported (B9).
unsafe impl Send for Span {}

/// The next possible step of a stream.
enum Ready {
    /// Nothing.
    No,
    /// A command, behind waits that are over.
    Command,
    /// It waits for a stream that has failed.
    Abort(String),
}

static WORLDS: OnceLock<Mutex<BTreeMap<u64, Arc<World>>>> = OnceLock::new();

fn worlds() -> MutexGuard<'static, BTreeMap<u64, Arc<World>>> {
    lock(WORLDS.get_or_init(Mutex::default))
}

impl World {
    /// A world in the mode `AtOnce`. It is kept for ever: plugins are never unloaded either.
    pub fn new() -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let state = WorldState { mode: Some(Mode::AtOnce), is_running: true, ..WorldState::default() };
        let world = Arc::new(Self { id, state: Mutex::new(state), changed: Condvar::new() });
        worlds().insert(id, Arc::clone(&world));
        world
    }

    /// The plugins' option that leads them here.
    pub fn option(&self) -> String {
        self.id.to_string()
    }

    /// The world that an option leads to.
    pub(super) fn of(option: &str) -> Result<Arc<Self>> {
        let id: u64 = option.parse().map_err(|_| Error::invalid("the world is a number"))?;
        worlds().get(&id).cloned().ok_or_else(|| Error::unavailable("there is no such world"))
    }

    fn lock(&self) -> MutexGuard<'_, WorldState> {
        lock(&self.state)
    }

    /// Begins a run in this mode. What was wrong with the run before is asked for first ([`World::end`]).
    pub fn begin(&self, mode: Mode, fault: Option<Fault>) {
        let mut state = self.lock();
        state.mode = Some(mode);
        state.fault = fault;
        state.met = None;
        (state.n_enqueued, state.n_asked, state.n_executed) = (0, 0, 0);
        state.is_running = true;
        drop(state);
        self.changed.notify_all();
    }

    /// Ends a run: nothing may be left in a queue but waits, nothing may be executed from now on until
    /// [`World::begin`] or [`World::between`]. Gives what was wrong.
    pub fn end(&self) -> Vec<String> {
        let mut state = self.lock();
        state.is_running = false;
        let left: Vec<String> = state
            .lines
            .iter()
            .filter(|(_, line)| line.is_busy || line.commands.iter().any(|c| !matches!(c, Command::Wait(..))))
            .map(|(i, line)| {
                let names: Vec<&str> = line.commands.iter().map(Command::name).collect();
                format!("the run has ended, but stream {i} of {} still has {names:?}", line.device)
            })
            .collect();
        state.complaints.extend(left);
        let waiting = state.lines.values().filter(|line| !line.waiting.is_empty()).count();
        if waiting > 0 {
            state.complaints.push(format!("the run has ended, but {waiting} streams have calls to make"));
        }
        std::mem::take(&mut state.complaints)
    }

    /// Executes at once, until the next run begins.
    pub fn between(&self) {
        let mut state = self.lock();
        state.mode = Some(Mode::AtOnce);
        state.fault = None;
        state.is_running = true;
    }

    /// The device and command that the run's fault met.
    pub fn met(&self) -> Option<(String, &'static str)> {
        self.lock().met.clone()
    }

    /// Sets whether streams of a lost device answer only when they are destroyed, except for the one that found the
    /// loss and those that wait for it.
    pub fn be_quiet(&self, is_quiet: bool) {
        self.lock().is_quiet = is_quiet;
    }

    /// Commands that were enqueued in this run.
    pub fn n_enqueued(&self) -> usize {
        self.lock().n_enqueued
    }

    /// Waits until so many commands were enqueued, `done` says that it is over, or the limit has passed.
    pub fn wait_enqueued(&self, n: usize, limit: Duration, done: impl Fn() -> bool) {
        let deadline = Instant::now() + limit;
        let mut state = self.lock();
        while state.n_enqueued < n && !done() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            // Short, because a change of `done` wakes no thread.
            let nap = left.min(Duration::from_micros(200));
            state = unpoisoned(self.changed.wait_timeout(state, nap)).0;
        }
    }

    /// Streams that can do something now, by their places among those that are alive.
    pub fn ready(&self) -> Vec<usize> {
        let state = self.lock();
        let serials = state.lines.keys().copied().enumerate();
        serials.filter(|(_, serial)| !matches!(state.ready(*serial), Ready::No)).map(|(i, _)| i).collect()
    }

    /// Has a stream execute its next command, and with `signals` the signals behind it; false if it cannot.
    pub fn step(&self, place: usize, signals: bool) -> bool {
        let serial = self.lock().lines.keys().nth(place).copied();
        let Some(serial) = serial else {
            return false;
        };
        if !self.execute(serial) {
            return false;
        }
        while signals && self.lock().is_signal_next(serial) {
            self.execute(serial);
        }
        true
    }

    /// Executes the next command of a stream; false if there is none that could be.
    fn execute(&self, serial: u64) -> bool {
        let mut state = self.lock();
        let ready = state.ready(serial);
        let WorldState { lines, is_running, .. } = &mut *state;
        let is_running = *is_running;
        let Some(line) = lines.get_mut(&serial) else {
            return false;
        };
        match ready {
            Ready::No => return false,
            Ready::Abort(text) => {
                self.fail(state, serial, Error::new(DEVBAY_STATUS_ABORTED, text));
                return true;
            }
            Ready::Command => {}
        }
        while let Some(Command::Wait(..)) = line.commands.front() {
            line.commands.pop_front();
        }
        let Some(command) = line.commands.pop_front() else {
            return false;
        };
        line.is_busy = true;
        let device = line.device.clone();
        if !is_running {
            state.complaints.push(format!("{device} executes a {} between runs", command.name()));
        }
        let nth = state.n_executed;
        state.n_executed += 1;
        let fault = state.fault.filter(|fault| fault.when == When::Executed && fault.nth == nth);
        let lost = state.lost.contains(&device);
        let name = command.name();
        if fault.is_some() {
            state.met = Some((device.clone(), name));
        }
        drop(state);
        let outcome = match (fault, command) {
            _ if lost => Err(Error::new(DEVBAY_STATUS_DEVICE_LOST, "it was lost before")),
            (Some(Fault { lost: true, .. }), _) => {
                Err(Error::new(DEVBAY_STATUS_DEVICE_LOST, format!("lost in a {name}")))
            }
            (Some(_), _) => {
                Err(Error::new(DEVBAY_STATUS_INTERNAL, format!("a {name} was told to fail later")))
            }
            (None, Command::Launch(launch, run)) => run(&launch),
            (None, Command::Copy(span)) => {
                // SAFETY: the host lends both ranges until a later point is reported, and `copy` allows overlap.
                unsafe { std::ptr::copy(span.src, span.dst, span.size_bytes) };
                Ok(())
            }
            (None, Command::Signal(value)) => {
                if let Some(line) = self.lock().lines.get_mut(&serial) {
                    line.reached = value;
                }
                Ok(())
            }
            (None, Command::Wait(..)) => Ok(()),
        };
        let mut state = self.lock();
        if let Some(line) = state.lines.get_mut(&serial) {
            line.is_busy = false;
        }
        match outcome {
            Ok(()) => self.answer(state, serial),
            Err(error) => {
                if error.status() == DEVBAY_STATUS_DEVICE_LOST && !state.lost.contains(&device) {
                    state.lost.push(device);
                }
                self.fail(state, serial, error);
            }
        }
        true
    }

    /// Fails a stream: drops all later commands, and tells the waiting streams and callers.
    fn fail(&self, mut state: MutexGuard<'_, WorldState>, serial: u64, error: Error) {
        if let Some(line) = state.lines.get_mut(&serial) {
            line.failure.get_or_insert(error);
            line.commands.clear();
        }
        self.answer(state, serial);
    }

    /// Calls back waiters whose point is reached, or can no longer be reached.
    fn answer(&self, mut state: MutexGuard<'_, WorldState>, serial: u64) {
        let Some(line) = state.lines.get_mut(&serial) else {
            return;
        };
        let (reached, failure) = (line.reached, line.failure.clone());
        let waiting = std::mem::take(&mut line.waiting);
        let (due, waiting) =
            waiting.into_iter().partition(|(value, _)| *value <= reached || failure.is_some());
        line.waiting = waiting;
        drop(state);
        self.changed.notify_all();
        let due: Vec<(u64, Done)> = due;
        for (value, done) in due {
            match &failure {
                Some(error) if value > reached => done.call(&Err(error.clone())),
                _ => done.call(&Ok(())),
            }
        }
    }

    /// Steps streams at random, with pauses, on so many threads of its own while `body` runs.
    pub fn free_running<R>(self: &Arc<Self>, n_threads: usize, seed: u64, body: impl FnOnce() -> R) -> R {
        let mut state = self.lock();
        (state.is_closed, state.random) = (false, Random(seed));
        drop(state);
        /// Ends the threads, also when `body` panics.
        struct Closed<'a>(&'a World);
        impl Drop for Closed<'_> {
            fn drop(&mut self) {
                self.0.lock().is_closed = true;
                self.0.changed.notify_all();
            }
        }
        std::thread::scope(|scope| {
            for _ in 0..n_threads {
                scope.spawn(|| self.run_freely());
            }
            let _closed = Closed(self);
            body()
        })
    }

    fn run_freely(&self) {
        let mut state = self.lock();
        while !state.is_closed {
            let ready: Vec<u64> = match state.mode {
                Some(Mode::Free) => {
                    let serials = state.lines.keys().copied();
                    serials.filter(|&serial| !matches!(state.ready(serial), Ready::No)).collect()
                }
                _ => Vec::new(),
            };
            if ready.is_empty() {
                state = wait(&self.changed, state);
                continue;
            }
            let random = state.random.next();
            let chosen = ready[(random >> 8) as usize % ready.len()];
            drop(state);
            match random % 64 {
                0 => std::thread::sleep(Duration::from_micros(random >> 8 & 63)),
                1..8 => std::thread::yield_now(),
                _ => (0..random >> 8 & 255).for_each(|_| std::hint::spin_loop()),
            }
            self.execute(chosen);
            state = self.lock();
        }
    }
}

impl WorldState {
    fn ready(&self, serial: u64) -> Ready {
        let Some(line) = self.lines.get(&serial).filter(|line| !line.is_busy) else {
            return Ready::No;
        };
        let stands_still = self.is_quiet && self.lost.contains(&line.device);
        for command in &line.commands {
            let Command::Wait(other, value) = command else {
                return if stands_still { Ready::No } else { Ready::Command };
            };
            match self.lines.get(other) {
                Some(other) if other.reached >= *value => {}
                Some(Line { failure: Some(error), .. }) => {
                    return Ready::Abort(format!(
                        "a stream that this one waits for failed: {}",
                        error.text()
                    ));
                }
                Some(_) => return Ready::No,
                None => return Ready::Abort("a stream that this one waits for is gone".to_owned()),
            }
        }
        Ready::No
    }

    fn is_signal_next(&self, serial: u64) -> bool {
        let line = self.lines.get(&serial).filter(|line| !line.is_busy);
        line.is_some_and(|line| matches!(line.commands.front(), Some(Command::Signal(_))))
    }
}
