//! Frames: the mutable state of one run of a section, pooled.

use super::nested::Context;
use super::pool::RunCounter;
use super::replay::Replay;
use super::tasks::TaskState;
use super::timeline::Timelines;
use crate::device::{Buffer, Device, REST_LIMIT, Stream, must_leak};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::memory::constants::host_reference;
use crate::plan::section::{Memory, Section, Shaped};
use crate::tensor::{AlignedBytes, Bytes};
use devbay_plugin_api::abi::{self, BufferRef, DEVBAY_USAGE_TRANSIENT};
use std::ptr::null_mut;
use std::sync::Arc;

/// The state of one run: references, arenas and streams. Made once, then reused; a run allocates nothing.
pub struct Frame {
    /// The streams that the run owns. First, because their end waits for the work that uses the rest.
    pub(crate) streams: Streams,
    /// Launches that the device runs with one call. Behind the streams, before the memory that it names.
    pub(crate) replay: Replay,
    /// References of all steps; those of inputs and results are patched per run.
    pub(crate) refs: Box<[BufferRef]>,
    #[expect(dead_code, reason = "the references point into them")]
    arenas: Box<[Option<Buffer>]>,
    /// The context that nested and internal steps have of the run; references name its address.
    pub(crate) context: Box<Context>,
    /// Ready counts and the threads' parts; None for a straight line.
    pub(crate) tasks: Option<TaskState>,
    /// Memory for inputs and results, where kernels cannot work in the caller's.
    pub(crate) staging: Option<Box<Staging>>,
    /// Its part of the pool's count of runs.
    pub(crate) runs: RunCounter,
    /// True if a run failed; its streams are then not used again (B13).
    pub(crate) is_spent: bool,
}

/// A stream for each lane of a section.
pub(crate) struct Streams {
    /// That of the first lane: the only one of an asynchronous device that has a section to itself.
    pub first: Stream,
    others: Box<[Stream]>,
    /// All of them, as the launch loop wants them.
    handles: Box<[*mut abi::Stream]>,
}

// SAFETY: the handles are those of the streams beside them, which may be sent.
unsafe impl Send for Streams {}

impl Streams {
    fn new(section: &Section) -> Result<Self> {
        let first = section.device.create_stream_for("run", section.stream_use())?;
        let others: Box<[Stream]> = section
            .lanes
            .iter()
            .skip(1)
            .map(|device| device.create_stream_for("run", section.stream_use()))
            .collect::<Result<_>>()?;
        let handles = std::iter::once(&first).chain(&others).map(Stream::handle).collect();
        Ok(Self { first, others, handles })
    }

    /// Returns the cause of a run's failure: an error that only says that work which something waited for had failed
    /// gives way to that failure, whichever stream told first.
    pub fn cause_of(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::PluginFailed => self.iter().find_map(Stream::own_failure).unwrap_or(error),
            _ => error,
        }
    }

    /// Returns the handles, by lane.
    #[inline]
    pub fn handles(&self) -> *const *mut abi::Stream {
        self.handles.as_ptr()
    }

    /// Returns the stream of a lane.
    pub fn of_lane(&self, lane: u32) -> &Stream {
        match lane.checked_sub(1) {
            None => &self.first,
            Some(other) => &self.others[other as usize],
        }
    }

    /// Returns all streams, by lane.
    pub fn iter(&self) -> impl Iterator<Item = &Stream> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Records the signals of a run on each lane, including failed ones: no value is used twice.
    pub fn have_signalled(&mut self, signalled: impl Iterator<Item = u64>) {
        for (stream, value) in self.iter_mut().zip(signalled) {
            stream.have_signalled(value);
        }
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Stream> {
        std::iter::once(&mut self.first).chain(&mut self.others)
    }
}

/// The streams that one of several threads launches on: its own for inline lanes, the frame's for the others, which
/// one thread at a time uses because their tasks follow each other.
pub(crate) struct ThreadStreams {
    own: Box<[Option<Stream>]>,
    handles: Box<[*mut abi::Stream]>,
}

// SAFETY: the handles are those of the streams beside them, or of the frame that these are part of.
unsafe impl Send for ThreadStreams {}

impl ThreadStreams {
    /// Streams for one thread.
    ///
    /// # Errors
    /// Errors that a plugin reports.
    pub fn new(section: &Section, frame: &Streams) -> Result<Self> {
        let own = |device: &Arc<Device>| match device.about().inline {
            true => device.create_stream_for("run", section.stream_use()).map(Some),
            false => Ok(None),
        };
        let own: Box<[Option<Stream>]> = section.lanes.iter().map(own).collect::<Result<_>>()?;
        let handles = own.iter().zip(&frame.handles);
        let handles = handles.map(|(own, &shared)| own.as_ref().map_or(shared, Stream::handle)).collect();
        Ok(Self { own, handles })
    }

    /// Returns the handles, by lane.
    #[inline]
    pub fn handles(&self) -> *const *mut abi::Stream {
        self.handles.as_ptr()
    }

    /// Returns the stream of an inline lane.
    pub fn of_lane(&self, lane: u32) -> Option<&Stream> {
        self.own[lane as usize].as_ref()
    }
}

/// Why a run failed that failed twice: when it was launched, and when its devices were to come to rest.
///
/// Returns the first failure, unless the device was lost: a launch may then report only a consequence, on a stream that
/// waited for another.
pub(crate) fn first_cause(launched: Result<()>, rested: Error) -> Error {
    let is_lost = |error: &Error| error.kind() == ErrorKind::DeviceLost;
    match launched {
        Err(error) if is_lost(&error) || !is_lost(&rested) => error,
        _ => rested,
    }
}

/// Memory that inputs pass through on their way in, and results on their way out.
pub(crate) struct Staging {
    pub inputs: Vec<Staged>,
    pub outputs: Vec<Staged>,
}

/// Both ends of a copy.
pub(crate) struct Staged {
    pub size: usize,
    /// The device's end; None where inputs and results live in the host's memory.
    pub buffer: Option<Buffer>,
    pub host: AlignedBytes,
}

impl Staged {
    /// Returns the reference for kernels, or for the section's own copies.
    pub fn reference(&self) -> BufferRef {
        match &self.buffer {
            Some(buffer) => buffer.reference(0, self.size),
            None => host_reference(self.host.bytes()),
        }
    }
}

// SAFETY: the references are addresses of the frame's own memory and of memory that its owner lends it.
unsafe impl Send for Frame {}

impl Frame {
    /// Creates a frame for a section.
    ///
    /// # Errors
    /// Out of memory, or the plugin's error.
    pub fn new(section: &Section) -> Result<Self> {
        let streams = Streams::new(section)?;
        let arena = |memory: &Memory| match memory.arena {
            0 => Ok(None),
            size => {
                let allocated = memory.device.alloc(size, DEVBAY_USAGE_TRANSIENT).map(Some);
                allocated.map_err(|error| error.at_node(section.largest_in_arena().unwrap_or_default()))
            }
        };
        let arenas: Box<[Option<Buffer>]> = section.memories.iter().map(arena).collect::<Result<_>>()?;
        let mut refs = section.refs.clone();
        for reference in &section.arena_refs {
            let at = reference.ref_idx as usize;
            let blank = &section.refs[at];
            if let Some(arena) = &arenas[reference.memory as usize] {
                let own = arena.reference(blank.offset as usize, blank.length as usize);
                refs[at] = match reference.foreign {
                    false => own,
                    true => BufferRef { buffer: null_mut(), offset: 0, ..own },
                };
            }
        }
        let queue = section.device.plugin().services().queue();
        let mut context = Box::new(Context::new(section.trips_max));
        context.set_controls(section.controls.len());
        let tasks = match section.is_line() {
            true => None,
            false => Some(TaskState::new(section, &streams, queue.n_threads())?),
        };
        if let Some(tasks) = tasks.as_ref().filter(|_| section.is_placed) {
            let clocks: Vec<*mut abi::Stream> = streams.handles.to_vec();
            let n_arrivals = section.graph.arrivals.len();
            let queue = section.is_shared().then_some(queue);
            context.set_timelines(Timelines::new(&clocks, n_arrivals, tasks.sleeper(), queue));
        }
        for &i in &section.context_refs {
            refs[i as usize].addr = std::ptr::from_ref(&*context) as u64;
        }
        let replay = Replay::of(section);
        Ok(Self {
            streams,
            replay,
            refs,
            arenas,
            context,
            tasks,
            staging: None,
            runs: RunCounter::default(),
            is_spent: false,
        })
    }

    /// Brings the devices to rest after a run. One that ended well has left those of a placed section at rest.
    ///
    /// # Errors
    /// As [`Stream::finish`].
    pub(crate) fn rest(&mut self) -> Result<()> {
        let Some(timelines) = self.context.timelines() else {
            return self.streams.first.finish(REST_LIMIT);
        };
        // Values that the run's steps have signalled, or were to.
        if self.is_spent {
            // All of them, even if the first fails.
            let mut rested = Ok(());
            for stream in self.streams.iter_mut() {
                let finished = stream.finish(REST_LIMIT);
                // An error after which memory must be leaked counts most.
                if rested.is_ok() || finished.as_ref().is_err_and(must_leak) {
                    rested = finished;
                }
            }
            // Calls that are still to come may come with the streams' end, so that only the frame's end waits for them.
            rested?;
        }
        timelines.end();
        Ok(())
    }

    /// Returns the handle of the frame's stream, for benchmarks of a launch alone.
    pub fn stream_handle(&self) -> *mut devbay_plugin_api::abi::Stream {
        self.streams.first.handle()
    }

    /// Adds staging memory.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn stage(&mut self, section: &Section) -> Result<()> {
        let side = |ty: &Shaped| -> Result<Staged> {
            Ok(Staged {
                size: ty.size,
                buffer: match section.is_placed {
                    true => None,
                    false => Some(section.device.alloc(ty.size, DEVBAY_USAGE_TRANSIENT)?),
                },
                host: AlignedBytes::zeroed(ty.size)?,
            })
        };
        self.staging = Some(Box::new(Staging {
            inputs: section.inputs.iter().map(side).collect::<Result<_>>()?,
            outputs: section.written.iter().map(side).collect::<Result<_>>()?,
        }));
        Ok(())
    }
}
