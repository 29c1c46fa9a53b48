//! Constants on a device: uploaded once, shared by all plans and sessions of a model.

use crate::device::{Buffer, Device, Stream};
use crate::error::Result;
use crate::tensor::Tensor;
use devbay_plugin_api::abi::{BufferRef, DEVBAY_USAGE_WEIGHT};
use std::collections::HashMap;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// A constant where kernels can read it.
pub enum Placed {
    /// In the host's memory, for devices whose references may name it.
    Host(Tensor),
    /// In a buffer of the device.
    Device(Buffer),
}

impl Placed {
    /// The reference that a launch is given.
    pub fn reference(&self) -> BufferRef {
        match self {
            Self::Host(tensor) => host_reference(tensor.bytes()),
            Self::Device(buffer) => buffer.reference(0, buffer.size()),
        }
    }
}

/// A reference to host memory, for devices that take such (B10).
pub fn host_reference(bytes: &[u8]) -> BufferRef {
    BufferRef { buffer: null_mut(), addr: bytes.as_ptr() as u64, offset: 0, length: bytes.len() as u64 }
}

/// The constants of a device, by the identity of their bytes. Entries go when their last plan goes.
pub struct ConstantPool {
    device: Arc<Device>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    placed: HashMap<(usize, usize), Weak<Placed>>,
    /// For uploads; made when the first is needed.
    stream: Option<Stream>,
}

/// How long an upload may take before the device counts as broken.
const UPLOAD_LIMIT: Duration = Duration::from_secs(600);

impl ConstantPool {
    /// A pool for a device.
    pub fn new(device: &Arc<Device>) -> Self {
        Self { device: Arc::clone(device), state: Mutex::default() }
    }

    /// A constant, placed now if it is not yet.
    ///
    /// # Errors
    /// Out of memory, or what the plugin says of the copy.
    pub fn place(&self, tensor: &Tensor) -> Result<Arc<Placed>> {
        if self.device.about().host_refs {
            return Ok(Arc::new(Placed::Host(tensor.clone())));
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let key = tensor.identity();
        if let Some(placed) = state.placed.get(&key).and_then(Weak::upgrade) {
            return Ok(placed);
        }
        let buffer = self.upload(&mut state, tensor)?;
        let placed = Arc::new(Placed::Device(buffer));
        state.placed.retain(|_, placed| placed.strong_count() > 0);
        state.placed.insert(key, Arc::downgrade(&placed));
        Ok(placed)
    }

    fn upload(&self, state: &mut State, tensor: &Tensor) -> Result<Buffer> {
        let bytes = tensor.bytes();
        let buffer = self.device.alloc(bytes.len(), DEVBAY_USAGE_WEIGHT)?;
        if state.stream.is_none() {
            state.stream = Some(self.device.create_stream("constants")?);
        }
        let Some(stream) = &mut state.stream else {
            return Ok(buffer);
        };
        // SAFETY: `finish` below waits for the copy while `tensor` is borrowed.
        let copied = unsafe { stream.copy_in(bytes.as_ptr(), buffer.reference(0, bytes.len())) };
        match copied.and_then(|()| stream.finish(UPLOAD_LIMIT)) {
            Ok(()) => Ok(buffer),
            Err(error) => {
                // A failed stream is destroyed, not recovered (ABI-NOTES 10); its end waits for the copy.
                state.stream = None;
                Err(error)
            }
        }
    }
}
