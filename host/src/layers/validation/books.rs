//! The layer's records of one plugin: live objects, calls inside them, and lent memory.
//!
//! Handles are plain numbers here and are never followed. An object is added when the call that made it has returned.
//! It is removed before the call that ends it goes on, because from then on the plugin may reuse its handle.
//!
//! This module calls neither host nor plugin. It returns a broken rule as a [`Fault`], which the caller reports after
//! releasing the lock.

use super::extensions::Extensions;
use super::programs::ProgramBook;
use super::recordings::{RecordBook, RecordingBook};
use devbay_core::kernel::KernelDef;
use devbay_plugin_api::abi::{Growable, MemorySpace, Prepared};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Number of freed handles that are remembered, for better messages.
const GONE_MAX: usize = 1 << 14;

/// Time for which other threads may still call a lost device or a panicked plugin, because the news has to reach them.
const GRACE: Duration = Duration::from_secs(1);

/// A broken rule, with details.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    pub rule: &'static str,
    pub words: String,
}

/// Returns a fault as an error.
pub(super) fn fault<T>(rule: &'static str, words: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { rule, words: words.into() })
}

/// Kinds of handles.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Kind {
    Instance,
    Device,
    Buffer,
    Stream,
    Kernel,
    Recording,
    Program,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Instance => "instance",
            Self::Device => "device",
            Self::Buffer => "buffer",
            Self::Stream => "stream",
            Self::Kernel => "prepared kernel",
            Self::Recording => "recording",
            Self::Program => "program",
        }
    }
}

/// An object that work on a stream uses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Lent {
    Buffer(usize),
    Kernel(usize),
    Recording(usize),
    Program(usize),
}

/// Bad news that the plugin told a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    thread: ThreadId,
    at: Instant,
}

impl Told {
    pub fn now() -> Self {
        Self { thread: std::thread::current().id(), at: Instant::now() }
    }

    /// Returns whether the calling thread is bound by the news: it was told itself, or the grace time is over.
    pub fn binds(&self) -> bool {
        self.thread == std::thread::current().id() || self.at.elapsed() > GRACE
    }
}

/// One instance.
pub(super) struct InstanceBook {
    /// Number of the services that the instance was given.
    pub services: usize,
    /// Number of calls inside the instance.
    pub n_calls: u32,
    pub panicked: Option<Told>,
    /// True if a part of the instance was leaked because freeing it would have been wrong.
    pub leaks: bool,
}

/// Properties of a device that stay fixed while it has its handle.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct DeviceSeen {
    pub handle: usize,
    pub id: String,
    pub flags: u64,
    pub spaces: Vec<[u64; 8]>,
}

/// One device.
pub(super) struct DeviceBook {
    pub instance: usize,
    /// Properties from the first list of devices.
    pub seen: DeviceSeen,
    pub refs_max: u32,
    pub spaces: Vec<MemorySpace>,
    pub lost: Option<Told>,
}

/// One buffer.
#[derive(Clone)]
pub(super) struct BufferBook {
    pub device: usize,
    pub base: u64,
    pub size: u64,
    pub space: MemorySpace,
    /// True if a copy wrote it.
    pub written: bool,
    /// True if the plugin made it for a result, so that its address and size are unknown.
    pub unsaid: bool,
}

impl BufferBook {
    /// Returns the record of a result that the plugin made.
    pub fn of_plugin(device: usize) -> Self {
        Self { device, base: 0, size: u64::MAX, space: MemorySpace::empty(), written: true, unsaid: true }
    }
}

/// One stream.
pub(super) struct StreamBook {
    /// A number that no other stream ever has.
    pub serial: usize,
    pub device: usize,
    pub instance: usize,
    pub inline: bool,
    /// True for a stream made only for copies.
    pub copies: bool,
    /// Number of calls inside the stream, and whether one of them is its owner's.
    pub n_calls: u32,
    pub owned: bool,
    /// The last value signalled with success. All values up to it count as signalled.
    pub last_signalled: u64,
    /// The highest value of any signal, successful or not.
    pub tried: u64,
    /// `floor` is the least value that `stream_reached` may return; `told` is the highest that a callback or wait
    /// reported.
    pub floor: u64,
    pub told: u64,
    /// The status with which `stream_reached` reported the stream's failure.
    pub failed: Option<i32>,
    /// The status of a failed enqueue, after which only a signal may come.
    pub refused: Option<i32>,
    /// The recording in progress.
    pub records: Option<RecordBook>,
    /// `unsignalled` has objects used since the last good signal, `in_flight` those used before earlier signals.
    pub unsignalled: HashSet<Lent>,
    pub in_flight: VecDeque<(u64, HashSet<Lent>)>,
}

impl StreamBook {
    /// Records a good signal: objects used before it stay in flight until the value is reported.
    pub fn signal(&mut self, value: u64) {
        self.last_signalled = value;
        let used = std::mem::take(&mut self.unsignalled);
        if !used.is_empty() {
            self.in_flight.push_back((value, used));
        }
    }
}

/// A kernel that was prepared, as the plugin gave it.
pub(super) struct KernelBook {
    pub instance: usize,
    pub device: usize,
    pub name: String,
    pub inner: Prepared,
    pub operands: Vec<Operand>,
    pub n_inputs: usize,
    /// The input that each output may share memory with.
    pub in_place: Vec<Option<usize>>,
    /// Packed constants: input, bytes, alignment.
    pub packs: Vec<(u32, u64, u64)>,
}

/// Requirement on one reference of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operand {
    /// An absent optional operand.
    Absent,
    /// The least number of bytes, and the bytes of an element.
    Bytes(u64, u64),
}

/// A callback that has not come yet.
pub(super) struct CallbackBook {
    pub stream: usize,
    pub stream_serial: usize,
    pub value: u64,
    pub done: devbay_plugin_api::abi::DoneFn,
    pub arg: usize,
    pub state: CallbackState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CallbackState {
    /// The stream is alive, so the callback may come.
    Awaited,
    /// The stream has ended without the callback.
    Overdue,
}

/// The state of one plugin.
#[derive(Default)]
pub(super) struct Register {
    pub instances: HashMap<usize, InstanceBook>,
    pub devices: HashMap<usize, DeviceBook>,
    pub buffers: HashMap<usize, BufferBook>,
    pub streams: HashMap<usize, StreamBook>,
    pub kernels: HashMap<usize, Arc<KernelBook>>,
    /// Kernels that `device_kernels` added, by instance and number.
    pub added: HashMap<(usize, u32), KernelDef>,
    pub callbacks: HashMap<usize, CallbackBook>,
    pub recordings: HashMap<usize, RecordingBook>,
    pub programs: HashMap<usize, ProgramBook>,
    pub extensions: Extensions,
    lent: HashMap<Lent, u32>,
    gone: HashSet<(Kind, usize)>,
}

impl Register {
    /// Returns the fault for an unknown handle.
    fn unknown<T>(&self, kind: Kind, handle: usize) -> Result<T, Fault> {
        let name = kind.name();
        fault(
            "B9",
            if handle == 0 {
                format!("expected a {name}, found NULL")
            } else if self.gone.contains(&(kind, handle)) {
                format!("{name} {handle:#x} was given back before")
            } else {
                format!("{name} {handle:#x} is none of this plugin's")
            },
        )
    }

    pub fn instance(&self, handle: usize) -> Result<&InstanceBook, Fault> {
        self.instances.get(&handle).map_or_else(|| self.unknown(Kind::Instance, handle), Ok)
    }

    pub fn device(&self, handle: usize) -> Result<&DeviceBook, Fault> {
        self.devices.get(&handle).map_or_else(|| self.unknown(Kind::Device, handle), Ok)
    }

    pub fn buffer(&self, handle: usize) -> Result<&BufferBook, Fault> {
        self.buffers.get(&handle).map_or_else(|| self.unknown(Kind::Buffer, handle), Ok)
    }

    pub fn stream(&self, handle: usize) -> Result<&StreamBook, Fault> {
        self.streams.get(&handle).map_or_else(|| self.unknown(Kind::Stream, handle), Ok)
    }

    pub fn kernel(&self, number: usize) -> Result<&Arc<KernelBook>, Fault> {
        self.kernels.get(&number).map_or_else(|| self.unknown(Kind::Kernel, number), Ok)
    }

    pub fn recording(&self, handle: usize) -> Result<&RecordingBook, Fault> {
        self.recordings.get(&handle).map_or_else(|| self.unknown(Kind::Recording, handle), Ok)
    }

    pub fn program(&self, handle: usize) -> Result<&ProgramBook, Fault> {
        self.programs.get(&handle).map_or_else(|| self.unknown(Kind::Program, handle), Ok)
    }

    /// Records that the plugin returned this handle: it no longer stands for a freed object.
    pub fn made(&mut self, kind: Kind, handle: usize) -> Result<(), Fault> {
        self.gone.remove(&(kind, handle));
        let known = match kind {
            Kind::Instance => self.instances.contains_key(&handle),
            Kind::Buffer => self.buffers.contains_key(&handle),
            Kind::Stream => self.streams.contains_key(&handle),
            Kind::Recording => self.recordings.contains_key(&handle),
            Kind::Program => self.programs.contains_key(&handle),
            Kind::Device | Kind::Kernel => false,
        };
        if known {
            return fault("B9", format!("{} {handle:#x} was given out before and is alive", kind.name()));
        }
        Ok(())
    }

    /// Records that a handle was given back.
    pub fn ended(&mut self, kind: Kind, handle: usize) {
        if self.gone.len() >= GONE_MAX {
            self.gone.clear();
        }
        self.gone.insert((kind, handle));
    }

    /// Fails if enqueued work still uses the object (B9).
    pub fn not_lent(&self, what: Lent) -> Result<(), Fault> {
        match self.lent.get(&what) {
            None => Ok(()),
            Some(_) => fault(
                "B9",
                "work that uses it is in flight: expected that a point signalled after it was reported"
                    .to_owned(),
            ),
        }
    }

    pub fn lend(&mut self, what: Lent) {
        *self.lent.entry(what).or_insert(0) += 1;
    }

    pub fn give_back(&mut self, what: Lent) {
        if let Some(n) = self.lent.get_mut(&what) {
            *n -= 1;
            if *n == 0 {
                self.lent.remove(&what);
            }
        }
    }

    /// Ends loans after a point of a stream was reported: objects used before it are no longer lent. `all` ends every
    /// loan of the stream; it is set after a failure, when no enqueued work runs any more.
    pub fn reported(&mut self, stream: usize, value: u64, all: bool) {
        let Some(book) = self.streams.get_mut(&stream) else {
            return;
        };
        let mut back: Vec<Lent> = Vec::new();
        while book.in_flight.front().is_some_and(|&(until, _)| until <= value || all) {
            back.extend(book.in_flight.pop_front().into_iter().flat_map(|(_, used)| used));
        }
        if all {
            back.extend(book.unsignalled.drain());
        }
        back.into_iter().for_each(|what| self.give_back(what));
    }

    /// Ends all loans of a stream that was destroyed.
    pub fn stream_ended(&mut self, book: StreamBook) {
        let used = book.in_flight.into_iter().flat_map(|(_, used)| used).chain(book.unsignalled);
        let used: Vec<Lent> = used.collect();
        used.into_iter().for_each(|what| self.give_back(what));
    }

    /// Describes the remaining objects of an instance; empty if there are none.
    pub fn left_of(&self, instance: usize) -> String {
        let of_device = |device: &usize| self.devices.get(device).is_some_and(|d| d.instance == instance);
        let counts = [
            ("buffers", self.buffers.values().filter(|buffer| of_device(&buffer.device)).count()),
            ("streams", self.streams.values().filter(|stream| stream.instance == instance).count()),
            ("prepared kernels", self.kernels.values().filter(|kernel| kernel.instance == instance).count()),
            (
                "recordings",
                self.recordings.values().filter(|recording| recording.instance == instance).count(),
            ),
            ("programs", self.programs.values().filter(|program| program.instance == instance).count()),
        ];
        let left: Vec<String> =
            counts.iter().filter(|(_, n)| *n > 0).map(|(what, n)| format!("{n} {what}")).collect();
        left.join(", ")
    }
}
