//! Frames: what one run of a line changes, pooled.

use crate::device::{Buffer, Stream};
use crate::error::Result;
use crate::plan::line::{Line, Shaped};
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
    /// A frame for a line.
    ///
    /// # Errors
    /// Out of memory, or what the plugin says.
    pub fn new(line: &Line) -> Result<Self> {
        let stream = line.device.create_stream("run")?;
        let arena = match line.memory.arena {
            0 => None,
            size => {
                let allocated = line.device.alloc(size, DEVBAY_USAGE_TRANSIENT);
                Some(allocated.map_err(|error| error.at_node(line.largest_in_arena().unwrap_or_default()))?)
            }
        };
        let mut refs = line.refs.clone();
        if let Some(arena) = &arena {
            for &i in &line.arena_refs {
                let blank = &line.refs[i as usize];
                refs[i as usize] = arena.reference(blank.offset as usize, blank.length as usize);
            }
        }
        Ok(Self { stream, refs, arena, staging: None })
    }

    /// The handle of the frame's stream, for benchmarks of a launch alone.
    pub fn stream_handle(&self) -> *mut devbay_plugin_api::abi::Stream {
        self.stream.handle()
    }

    /// Adds staging memory.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn stage(&mut self, line: &Line) -> Result<()> {
        let side = |ty: &Shaped| -> Result<Staged> {
            Ok(Staged {
                size: ty.size,
                buffer: line.device.alloc(ty.size, DEVBAY_USAGE_TRANSIENT)?,
                host: AlignedBytes::zeroed(ty.size)?,
            })
        };
        self.staging = Some(Box::new(Staging {
            inputs: line.inputs.iter().map(side).collect::<Result<_>>()?,
            outputs: line.written.iter().map(side).collect::<Result<_>>()?,
        }));
        Ok(())
    }
}
