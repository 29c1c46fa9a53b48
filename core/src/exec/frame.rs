//! Frames: what one run of a section changes, pooled.

use super::nested::Context;
use super::tasks::TaskState;
use crate::device::{Buffer, Stream};
use crate::error::Result;
use crate::plan::section::{Section, Shaped};
use crate::tensor::AlignedBytes;
use devbay_plugin_api::abi::{BufferRef, DEVBAY_USAGE_TRANSIENT};

/// The state of one run: references, arena and stream. Made once, then reused; a run allocates nothing.
pub struct Frame {
    /// The stream that the run owns. First, because its end waits for the work that uses the rest.
    pub(crate) stream: Stream,
    /// References of all steps; those of inputs and results are patched per run.
    pub(crate) refs: Box<[BufferRef]>,
    #[expect(dead_code, reason = "the references point into it")]
    arena: Option<Buffer>,
    /// What nested steps know of the run; references name its address.
    pub(crate) context: Box<Context>,
    /// Ready counts and the threads' parts; None for a straight line.
    pub(crate) tasks: Option<TaskState>,
    /// Memory for inputs and results, where kernels cannot work in the caller's.
    pub(crate) staging: Option<Box<Staging>>,
}

/// Memory that inputs pass through on their way in, and results on their way out.
pub(crate) struct Staging {
    pub inputs: Vec<Staged>,
    pub outputs: Vec<Staged>,
}

/// Both ends of a copy.
pub(crate) struct Staged {
    pub size: usize,
    pub buffer: Buffer,
    pub host: AlignedBytes,
}

// SAFETY: the references are addresses of the frame's own memory and of what its owner lends it.
unsafe impl Send for Frame {}

impl Frame {
    /// A frame for a section.
    ///
    /// # Errors
    /// Out of memory, or what the plugin says.
    pub fn new(section: &Section) -> Result<Self> {
        let stream = section.device.create_stream("run")?;
        let arena = match section.memory.arena {
            0 => None,
            size => {
                let allocated = section.device.alloc(size, DEVBAY_USAGE_TRANSIENT);
                Some(
                    allocated
                        .map_err(|error| error.at_node(section.largest_in_arena().unwrap_or_default()))?,
                )
            }
        };
        let mut refs = section.refs.clone();
        if let Some(arena) = &arena {
            for &i in &section.arena_refs {
                let blank = &section.refs[i as usize];
                refs[i as usize] = arena.reference(blank.offset as usize, blank.length as usize);
            }
        }
        let tasks = match section.is_line() {
            true => None,
            false => {
                let n_threads = section.device.plugin().services().queue().n_threads();
                Some(TaskState::new(section, n_threads)?)
            }
        };
        let context = Box::<Context>::default();
        for &i in &section.context_refs {
            refs[i as usize].addr = std::ptr::from_ref(&*context) as u64;
        }
        Ok(Self { stream, refs, arena, context, tasks, staging: None })
    }

    /// The handle of the frame's stream, for benchmarks of a launch alone.
    pub fn stream_handle(&self) -> *mut devbay_plugin_api::abi::Stream {
        self.stream.handle()
    }

    /// Adds staging memory.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn stage(&mut self, section: &Section) -> Result<()> {
        let side = |ty: &Shaped| -> Result<Staged> {
            Ok(Staged {
                size: ty.size,
                buffer: section.device.alloc(ty.size, DEVBAY_USAGE_TRANSIENT)?,
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
