//! A device for tests whose streams only queue: the test says when which of them executes its next command.
//!
//! A [`World`] has the queues of all devices of a runtime. In the mode `AtOnce` a command is executed by the call that
//! enqueues it, for what happens before and after the runs that are tested. In the mode `Stepped` a test calls
//! [`World::step`]; in the mode `Free` threads of the world step at random. Data is computed and copied when the
//! command is executed and not before, memory is full of garbage until somebody writes it, and every operand is looked
//! up among the device's allocations: an order that is missing gives a wrong result, a copy that is missing a complaint.
//!
//! Forms of the plugin differ in what their streams can do: wait for each other or not, call back or be polled. Each
//! has the same devices, by their positions: two that work inline ([`INLINE`]), two that work in the host's memory
//! later ([`SHARED`]), two with a memory of their own ([`OWN`]).
#![allow(dead_code, reason = "each test that includes this module uses a part of it")]

pub mod program;

use devbay_plugin_api::abi::{
    DEVBAY_DEVICE_HOST_REFS, DEVBAY_DEVICE_KIND_CPU, DEVBAY_SPACE_ADDRESSABLE, DEVBAY_SPACE_HOST_VISIBLE,
    DEVBAY_STATUS_ABORTED, DEVBAY_STATUS_DEVICE_LOST, DEVBAY_STATUS_INTERNAL, DEVBAY_STATUS_TIMEOUT,
    DEVBAY_VARIADIC,
};
use devbay_plugin_api::sdk::*;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Devices that work in the call.
pub const INLINE: [usize; 2] = [0, 1];
/// Devices that work later, in the host's memory.
pub const SHARED: [usize; 2] = [2, 3];
/// Devices that work later, in a memory of their own.
pub const OWN: [usize; 2] = [4, 5];
/// Devices of a form.
pub const N_DEVICES: usize = 6;

/// What fresh and freed memory is full of.
const GARBAGE: u8 = 0xA7;

/// Who executes commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The call that enqueues.
    AtOnce,
    /// The test.
    Stepped,
    /// Threads of the world.
    Free,
}

/// When a fault comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// The call that enqueues the command fails; nothing is enqueued.
    Enqueued,
    /// The command fails when it is executed.
    Executed,
}

/// The fault of one command of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Which of all commands that are executed, or that are enqueued and calls that are asked for, from 0 on.
    pub nth: usize,
    /// Then.
    pub when: When,
    /// Whether the device is lost with it.
    pub lost: bool,
}

/// The queues of all devices of a runtime.
pub struct World {
    id: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
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
    /// Whether streams of a lost device stand still, and answer when they are destroyed, but for the one that found the
    /// loss and those that wait for it.
    is_quiet: bool,
    /// A run is on; between runs no command may be executed.
    is_running: bool,
    /// What was not as it must be.
    complaints: Vec<String>,
    /// Ranges of each device's own allocations.
    owned: Vec<(String, std::ops::Range<u64>)>,
    /// For the delays and choices of free-running threads.
    random: u64,
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

#[expect(clippy::large_enum_variant, reason = "launches are the rule")]
enum Command {
    /// With what runs it: [`DeferredLaunch::run`] for the form's streams.
    Launch(DeferredLaunch, fn(DeferredLaunch) -> Result<()>),
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
struct Span {
    src: *const u8,
    dst: *mut u8,
    size_bytes: usize,
}

// SAFETY: the host lends both ranges until a point signalled after the copy is reported (B9).
unsafe impl Send for Span {}

/// What can be done next by a stream.
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
    WORLDS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// A world in the mode `AtOnce`. It is kept for ever: plugins are never unloaded either.
    pub fn new() -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let state = State { mode: Some(Mode::AtOnce), is_running: true, ..State::default() };
        let world = Arc::new(Self { id, state: Mutex::new(state), changed: Condvar::new() });
        worlds().insert(id, Arc::clone(&world));
        world
    }

    /// The plugins' option that leads them here.
    pub fn option(&self) -> String {
        self.id.to_string()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Whether a device's loss is answered by the stream that found it and those that wait for it, and by others only
    /// when they are destroyed.
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
            // Short, because nobody says when `done` changes.
            let nap = left.min(Duration::from_micros(200));
            state = self.changed.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0;
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
        let State { lines, is_running, .. } = &mut *state;
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
            (None, Command::Launch(launch, run)) => run(launch),
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

    /// A stream fails: what is behind the command is dropped, and who waits is told.
    fn fail(&self, mut state: MutexGuard<'_, State>, serial: u64, error: Error) {
        if let Some(line) = state.lines.get_mut(&serial) {
            line.failure.get_or_insert(error);
            line.commands.clear();
        }
        self.answer(state, serial);
    }

    /// Calls back who waits for a point that is reached, or can be no more.
    fn answer(&self, mut state: MutexGuard<'_, State>, serial: u64) {
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

    /// Puts a command into a stream's queue, or fails as the run's fault says.
    fn push(&self, serial: u64, command: Command) -> Result<()> {
        let mut state = self.lock();
        let device = state.lines[&serial].device.clone();
        if state.lost.contains(&device) {
            return Err(Error::new(DEVBAY_STATUS_DEVICE_LOST, "it was lost before"));
        }
        if state.met_by(When::Enqueued, &device, command.name()) {
            let lost = state.fault.is_some_and(|fault| fault.lost);
            if lost {
                state.lost.push(device);
                return Err(Error::new(DEVBAY_STATUS_DEVICE_LOST, "lost in a call"));
            }
            let text = format!("a {} was told to fail at once", command.name());
            return Err(Error::new(DEVBAY_STATUS_INTERNAL, text));
        }
        let mode = state.mode;
        let Some(line) = state.lines.get_mut(&serial) else {
            return Err(Error::invalid("a stream that is gone"));
        };
        if let Command::Signal(value) = command {
            if value <= line.signalled {
                let text = format!("signal of value {value} after {}", line.signalled);
                state.complaints.push(text.clone());
                return Err(Error::invalid(text));
            }
            line.signalled = value;
        }
        if line.failure.is_none() {
            line.commands.push_back(command);
            state.n_enqueued += 1;
        }
        drop(state);
        self.changed.notify_all();
        if mode == Some(Mode::AtOnce) {
            while self.execute(serial) {}
        }
        Ok(())
    }

    /// Waits until a stream has nothing to do any more, then takes it out.
    fn remove(&self, serial: u64) {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut state = self.lock();
        loop {
            if state.mode == Some(Mode::AtOnce) {
                drop(state);
                while self.execute(serial) {}
                state = self.lock();
            }
            let lost = state.lost.clone();
            let line = &state.lines[&serial];
            let has_work = line.commands.iter().any(|command| !matches!(command, Command::Wait(..)));
            if !line.is_busy && (!has_work || lost.contains(&line.device)) {
                break;
            }
            if Instant::now() > deadline {
                state.complaints.push(format!("stream {serial} does not end"));
                break;
            }
            let nap = Duration::from_millis(1);
            state = self.changed.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0;
        }
        let line = state.lines.remove(&serial);
        drop(state);
        self.changed.notify_all();
        for (_, done) in line.into_iter().flat_map(|line| line.waiting) {
            done.call(&Err(Error::new(DEVBAY_STATUS_ABORTED, "the stream was destroyed")));
        }
    }

    /// Steps streams at random, with pauses, on so many threads of its own while `body` runs.
    pub fn free_running<R>(self: &Arc<Self>, n_threads: usize, seed: u64, body: impl FnOnce() -> R) -> R {
        let mut state = self.lock();
        (state.is_closed, state.random) = (false, seed);
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
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let random = state.next_random();
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

impl State {
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z ^ (z >> 27)
    }

    /// Counts a command that is enqueued; whether the run's fault meets it.
    fn met_by(&mut self, when: When, device: &str, name: &'static str) -> bool {
        let nth = self.n_asked;
        self.n_asked += 1;
        let is_met = self.fault.is_some_and(|fault| fault.when == when && fault.nth == nth);
        if is_met {
            self.met = Some((device.to_owned(), name));
        }
        is_met
    }

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

/// A form of the plugin: whether streams wait for each other, and whether they call back.
pub struct Queued<const WAIT: bool, const CALLS: bool>(Vec<QueuedDevice<WAIT, CALLS>>);

/// One device.
pub struct QueuedDevice<const WAIT: bool, const CALLS: bool> {
    desc: DeviceDesc,
    world: Arc<World>,
    /// Its name in the world.
    name: String,
    has_own_memory: bool,
}

/// One stream.
pub struct QueuedStream<const WAIT: bool, const CALLS: bool> {
    world: Arc<World>,
    /// Device, and whether operands must be its own.
    device: String,
    has_own_memory: bool,
    /// None for an inline one.
    serial: Option<u64>,
}

/// An allocation, which is garbage before and after.
pub struct QueuedBuffer {
    inner: Option<HostBuffer>,
    base: u64,
    size_bytes: usize,
    /// The world that knows it as a device's own.
    owner: Option<Arc<World>>,
}

const fn name_of(wait: bool, calls: bool) -> &'static str {
    match (wait, calls) {
        (true, true) => "queued",
        (true, false) => "queued-polled",
        (false, true) => "queued-alone",
        (false, false) => "queued-alone-polled",
    }
}

impl<const WAIT: bool, const CALLS: bool> Plugin for Queued<WAIT, CALLS> {
    type Device = QueuedDevice<WAIT, CALLS>;
    const ABOUT: About = About {
        name: name_of(WAIT, CALLS),
        vendor: "tests",
        version: "1",
        options: &[PluginOption { key: "world", default: "0", doc: "the number of the world" }],
        ..About::DEFAULT
    };
    const KERNELS: &'static [Kernel<Self::Device>] = &[
        Kernel::new("Node", 1, prepare::<WAIT, CALLS>)
            .domain("test")
            .types(&[TypeVar::of(&[I64])])
            .operands(&[0], &[0])
            .inputs(1, DEVBAY_VARIADIC)
            .in_place(&[0])
            .cost(|request| {
                let flops = request.attrs.int("flops", 1)? as u64;
                Ok(Cost { flops, bytes_read: 8, bytes_written: 8 })
            })
            .shape(|request, _| Ok((I64, vec![request.attrs.int("n", 1)?]))),
        Kernel::new("Odd", 1, prepare_odd::<WAIT, CALLS>)
            .domain("test")
            .types(&[TypeVar::of(&[I64]), TypeVar::of(&[BOOL])])
            .operands(&[0], &[1])
            .shape(|_, _| Ok((BOOL, Vec::new()))),
        Kernel::new("Trips", 1, prepare_trips::<WAIT, CALLS>)
            .domain("test")
            .types(&[TypeVar::of(&[I64])])
            .operands(&[0], &[0])
            .shape(|_, _| Ok((I64, Vec::new()))),
    ];

    fn create(_host: Host, options: &Options<'_>) -> Result<Self> {
        let id: u64 = options.get("world").parse().map_err(|_| Error::invalid("the world is a number"))?;
        let world = worlds().get(&id).cloned().ok_or_else(|| Error::unavailable("there is no such world"))?;
        let device = |i: usize| {
            let (inline, has_own_memory) = (INLINE.contains(&i), OWN.contains(&i));
            let kind = if inline {
                "inline"
            } else if has_own_memory {
                "own"
            } else {
                "shared"
            };
            let visible = if has_own_memory { 0 } else { DEVBAY_SPACE_HOST_VISIBLE };
            let space = SpaceDesc {
                kind: if has_own_memory {
                    devbay_plugin_api::abi::DEVBAY_SPACE_DEVICE
                } else {
                    SpaceDesc::default().kind
                },
                flags: visible | DEVBAY_SPACE_ADDRESSABLE,
                bind_align: 16,
                ..SpaceDesc::default()
            };
            let id = format!("{kind}-{i}");
            QueuedDevice {
                name: format!("{}:{i}", Self::ABOUT.name),
                desc: DeviceDesc {
                    kind: DEVBAY_DEVICE_KIND_CPU,
                    id,
                    name: kind.to_owned(),
                    inline,
                    flags: if has_own_memory { 0 } else { DEVBAY_DEVICE_HOST_REFS },
                    spaces: vec![space],
                    ..DeviceDesc::default()
                },
                world: Arc::clone(&world),
                has_own_memory,
            }
        };
        Ok(Self((0..N_DEVICES).map(device).collect()))
    }

    fn devices(&self) -> Result<Vec<&QueuedDevice<WAIT, CALLS>>> {
        Ok(self.0.iter().collect())
    }
}

impl<const WAIT: bool, const CALLS: bool> Device for QueuedDevice<WAIT, CALLS> {
    type Buffer = QueuedBuffer;
    type Stream = QueuedStream<WAIT, CALLS>;

    fn describe(&self) -> &DeviceDesc {
        &self.desc
    }

    fn alloc(&self, request: &AllocRequest<'_>) -> Result<Allocated<QueuedBuffer>> {
        let inner = HostBuffer::alloc(request)?;
        let (base, size_bytes) = (inner.base, inner.size_bytes);
        // SAFETY: the allocation is new and this long.
        unsafe { std::ptr::write_bytes(base as *mut u8, GARBAGE, size_bytes) };
        let owner = self.has_own_memory.then(|| Arc::clone(&self.world));
        if let Some(world) = &owner {
            world.lock().owned.push((self.name.clone(), base..base + size_bytes as u64));
        }
        let buffer = QueuedBuffer { inner: Some(inner.buffer), base, size_bytes, owner };
        Ok(Allocated { buffer, base, size_bytes })
    }

    fn defers(&self) -> bool {
        !self.desc.inline
    }

    fn create_stream(&self, _request: &StreamRequest<'_>) -> Result<QueuedStream<WAIT, CALLS>> {
        let serial = (!self.desc.inline).then(|| {
            let mut state = self.world.lock();
            state.n_lines += 1;
            let serial = state.n_lines;
            state.lines.insert(serial, Line { device: self.name.clone(), ..Line::default() });
            serial
        });
        let device = self.name.clone();
        let world = Arc::clone(&self.world);
        Ok(QueuedStream { world, device, has_own_memory: self.has_own_memory, serial })
    }
}

impl Drop for QueuedBuffer {
    fn drop(&mut self) {
        if let Some(world) = &self.owner {
            world.lock().owned.retain(|(_, range)| range.start != self.base);
        }
        // SAFETY: the allocation is this buffer's until `inner` goes, and nobody uses it any more.
        unsafe { std::ptr::write_bytes(self.base as *mut u8, GARBAGE, self.size_bytes) };
        drop(self.inner.take());
    }
}

impl<const WAIT: bool, const CALLS: bool> Drop for QueuedStream<WAIT, CALLS> {
    fn drop(&mut self) {
        if let Some(serial) = self.serial {
            self.world.remove(serial);
        }
    }
}

impl<const WAIT: bool, const CALLS: bool> QueuedStream<WAIT, CALLS> {
    fn serial(&self) -> Result<u64> {
        self.serial.ok_or_else(|| Error::unsupported("an inline stream has no timeline"))
    }

    /// Complains of operands that are in another memory than the device's.
    fn check(&self, addr: u64, length: u64) {
        if length == 0 {
            return;
        }
        let mut state = self.world.lock();
        let owner = state.owned.iter().find(|(_, range)| range.contains(&addr)).map(|(owner, range)| {
            if addr + length > range.end { format!("{owner}, beyond its end") } else { owner.clone() }
        });
        let wanted = self.has_own_memory.then(|| self.device.clone());
        if owner != wanted {
            let text = format!("{} is given memory of {owner:?}", self.device);
            state.complaints.push(text);
        }
    }
}

impl<const WAIT: bool, const CALLS: bool> Stream for QueuedStream<WAIT, CALLS> {
    type Buffer = QueuedBuffer;
    const TIMELINE: bool = true;
    const WAIT: bool = WAIT;
    const ON_REACHED: bool = CALLS;
    const HOST_WAIT: bool = CALLS;

    fn copy(&self, copy: &CopyRequest<'_, QueuedBuffer>) -> Result<()> {
        let Some(serial) = self.serial else {
            copy.run_on_host();
            return Ok(());
        };
        let device_ends = match &copy.kind {
            CopyKind::HostToBuffer(_, region) | CopyKind::BufferToHost(region, _) => vec![region.addr],
            CopyKind::BufferToBuffer(src, dst) => vec![src.addr, dst.addr],
        };
        device_ends.into_iter().for_each(|addr| self.check(addr, copy.size_bytes as u64));
        let (src, dst) = copy.host_addresses();
        self.world.push(serial, Command::Copy(Span { src, dst, size_bytes: copy.size_bytes }))
    }

    fn defer(&self, launch: DeferredLaunch) -> Result<()> {
        self.world.push(self.serial()?, Command::Launch(launch, DeferredLaunch::run::<Self>))
    }

    fn signal(&self, value: u64) -> Result<()> {
        self.world.push(self.serial()?, Command::Signal(value))
    }

    fn reached(&self) -> (u64, Result<()>) {
        let Some(serial) = self.serial else {
            return (0, Err(Error::unsupported("an inline stream has no timeline")));
        };
        let state = self.world.lock();
        let line = &state.lines[&serial];
        (line.reached, line.failure.clone().map_or(Ok(()), Err))
    }

    fn wait(&self, other: &Self, value: u64) -> Result<()> {
        let (serial, other) = (self.serial()?, other.serial()?);
        let mut state = self.world.lock();
        if state.lines[&other].signalled < value {
            let text = format!("a wait for {value}, which was not signalled");
            state.complaints.push(text.clone());
            return Err(Error::invalid(text));
        }
        drop(state);
        self.world.push(serial, Command::Wait(other, value))
    }

    fn on_reached(&self, value: u64, done: Done) -> Result<()> {
        let serial = self.serial()?;
        let mut state = self.world.lock();
        if state.met_by(When::Enqueued, &self.device, "call back") {
            if state.fault.is_some_and(|fault| fault.lost) {
                state.lost.push(self.device.clone());
                return Err(Error::new(DEVBAY_STATUS_DEVICE_LOST, "lost in a call"));
            }
            return Err(Error::new(DEVBAY_STATUS_INTERNAL, "a call back was told to fail at once"));
        }
        let Some(line) = state.lines.get_mut(&serial).filter(|line| line.signalled >= value) else {
            let text = format!("a call back for {value}, which was not signalled");
            state.complaints.push(text.clone());
            return Err(Error::invalid(text));
        };
        line.waiting.push((value, done));
        self.world.answer(state, serial);
        Ok(())
    }

    fn host_wait(&self, value: u64, timeout: Duration) -> Result<()> {
        let serial = self.serial()?;
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.world.lock();
        loop {
            let line = &state.lines[&serial];
            if line.reached >= value {
                return Ok(());
            }
            if let Some(error) = &line.failure {
                return Err(error.clone());
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Error::new(DEVBAY_STATUS_TIMEOUT, "not in time"));
            }
            let nap = Duration::from_millis(1);
            state = self.world.changed.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn failure(&self) -> Option<Error> {
        let serial = self.serial?;
        self.world.lock().lines[&serial].failure.clone()
    }
}

/// Element `i` of the output is the sum of the elements `i` of all inputs, which repeat, and a number.
struct Add {
    n_inputs: usize,
    n: usize,
    plus: i64,
    spins: u32,
    fails: bool,
}

fn prepare<const WAIT: bool, const CALLS: bool>(
    request: &PrepareRequest<'_, QueuedDevice<WAIT, CALLS>>,
) -> Result<Prepared> {
    Ok(Prepared::new::<QueuedDevice<WAIT, CALLS>, _>(Add {
        n_inputs: request.inputs.len(),
        n: request.attrs.int("n", 1)? as usize,
        plus: request.attrs.int("plus", 0)?,
        spins: request.attrs.int("spins", 0)? as u32,
        fails: request.attrs.int("fails", 0)? != 0,
    }))
}

impl<const WAIT: bool, const CALLS: bool> Launch<QueuedDevice<WAIT, CALLS>> for Add {
    fn launch(&self, stream: &QueuedStream<WAIT, CALLS>, operands: &mut Operands<'_>) -> Result<()> {
        for reference in operands.input_refs().iter().chain(operands.output_refs()) {
            stream.check(reference.addr, reference.length);
        }
        for _ in 0..self.spins {
            std::hint::spin_loop();
        }
        if self.fails {
            return Err(Error::invalid("it was told to fail"));
        }
        // In place the output is the first input: all is read before anything is written.
        let inputs: Vec<&[i64]> = (0..self.n_inputs).map(|k| operands.input::<i64>(k)).collect();
        let at = |i: usize| add_up(self.plus, inputs.iter().copied(), i);
        let sums: Vec<i64> = (0..self.n).map(at).collect();
        let output = operands.output_ref(0).addr as *mut i64;
        // SAFETY: the host lends as many numbers as the output has, and the inputs are read no more.
        unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr(), output, self.n) };
        Ok(())
    }
}

/// Element `i` of a node's result.
pub fn add_up<'a>(plus: i64, inputs: impl Iterator<Item = &'a [i64]>, i: usize) -> i64 {
    inputs.fold(plus, |sum, input| match input.len() {
        0 => sum,
        n => sum.wrapping_mul(3).wrapping_add(input[i % n]),
    })
}

/// Whether the sum of a value's elements is odd.
pub fn is_odd(value: &[i64]) -> bool {
    value.iter().fold(0i64, |sum, x| sum.wrapping_add(*x)) & 1 == 1
}

/// How often a loop runs that asks a value.
pub fn trips(value: &[i64]) -> i64 {
    value.iter().fold(0i64, |sum, x| sum.wrapping_add(*x)).rem_euclid(4)
}

/// One number of a value.
struct Ask {
    odd: bool,
}

fn prepare_odd<const WAIT: bool, const CALLS: bool>(
    _request: &PrepareRequest<'_, QueuedDevice<WAIT, CALLS>>,
) -> Result<Prepared> {
    Ok(Prepared::new::<QueuedDevice<WAIT, CALLS>, _>(Ask { odd: true }))
}

fn prepare_trips<const WAIT: bool, const CALLS: bool>(
    _request: &PrepareRequest<'_, QueuedDevice<WAIT, CALLS>>,
) -> Result<Prepared> {
    Ok(Prepared::new::<QueuedDevice<WAIT, CALLS>, _>(Ask { odd: false }))
}

impl<const WAIT: bool, const CALLS: bool> Launch<QueuedDevice<WAIT, CALLS>> for Ask {
    fn launch(&self, stream: &QueuedStream<WAIT, CALLS>, operands: &mut Operands<'_>) -> Result<()> {
        for reference in operands.input_refs().iter().chain(operands.output_refs()) {
            stream.check(reference.addr, reference.length);
        }
        let input = operands.input::<i64>(0);
        if self.odd {
            operands.output::<u8>(0)[0] = u8::from(is_odd(input));
        } else {
            operands.output::<i64>(0)[0] = trips(input);
        }
        Ok(())
    }
}

macro_rules! forms {
    ($($module:ident $wait:literal $calls:literal)*) => {$(
        mod $module {
            use super::Queued;
            devbay_plugin_api::static_plugin!(Queued<$wait, $calls>);
            pub const PLUGIN: devbay_plugin_api::sdk::export::LinkedPlugin = devbay_entry::PLUGIN;
        }
    )*

    /// The forms: name, whether streams wait, whether they call back, entry.
    pub const FORMS: &[(&str, bool, bool, export::LinkedPlugin)] =
        &[$((name_of($wait, $calls), $wait, $calls, $module::PLUGIN)),*];
    };
}

forms! {
    waiting_calling true true
    waiting_polled true false
    alone_calling false true
    alone_polled false false
}
