//! Constants on a device: uploaded once, shared by all plans and sessions of a model.

use crate::device::{Buffer, Device, Pack, PreparedKernel, Stream, StreamUse, must_leak};
use crate::error::Result;
use crate::plan::specialise::ahead::PackedConstant;
use crate::tensor::{Bytes, Tensor, TensorType, U8};
use devbay_plugin_api::abi::{BufferRef, DEVBAY_USAGE_WEIGHT};
use devbay_plugin_api::locks::lock;
use std::collections::{HashMap, HashSet};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

/// A constant where kernels can read it.
pub enum Placed {
    /// In the host's memory, for devices whose references may name it.
    Host(Tensor),
    /// There, in a kernel's own layout.
    Packed(Tensor),
    /// In a buffer of the device.
    Device(Buffer),
    /// In a buffer of host memory that the device reaches by itself.
    Pinned(Buffer, usize),
}

impl Placed {
    /// Returns the reference that a launch is given.
    pub fn reference(&self) -> BufferRef {
        match self {
            Self::Host(tensor) | Self::Packed(tensor) => host_reference(tensor.bytes()),
            Self::Device(buffer) => buffer.reference(0, buffer.size()),
            Self::Pinned(buffer, size) => buffer.reference(0, *size),
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
    /// Constants that were packed ahead of time, by the identity of their sources and their layout.
    ahead: HashMap<((usize, usize), u64), Tensor>,
    counts: Counts,
    state: Mutex<Uploads>,
    /// Constants of files that kernels read, or runs copy, where they are, by identity. None goes: a file has as many as it has.
    in_place: Mutex<HashSet<(usize, usize)>>,
}

/// Constants that were packed for kernels so far.
#[derive(Default)]
struct Counts {
    ahead: AtomicUsize,
    now: AtomicUsize,
}

/// Number of constants packed for kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PackCounts {
    /// Ahead of time, and not again.
    pub ahead: usize,
    /// When a plan asked for them.
    pub now: usize,
}

/// A constant by the identity of its bytes, and the layout that it is in.
type Key = (usize, usize, Layout);

/// The arrangement of a constant's bytes.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Layout {
    /// As they are.
    Dense,
    /// In a kernel's own order, by its number.
    Packed(u64),
    /// In the host's memory to be copied from there, in a kernel's own order if it has one.
    Kept(Option<u64>),
    /// As they are, in a buffer for this type alone.
    Typed(TensorType),
}

struct Entry {
    placed: Weak<Placed>,
    /// Its address is an identity only as long as its bytes are alive.
    source: Tensor,
    /// Alignment that its layout asks of its address.
    align: usize,
}

/// Constants that are on the device, and the stream that brings them there.
#[derive(Default)]
struct Uploads {
    placed: HashMap<Key, Entry>,
    /// For uploads; made when the first is needed.
    stream: Option<Stream>,
}

/// Keeps the source of an upload for good if the device may still read it.
fn leak_if_lent<T>(source: T, uploaded: Result<Buffer>) -> Result<Buffer> {
    if uploaded.as_ref().is_err_and(must_leak) {
        std::mem::forget(source);
    }
    uploaded
}

/// Time after which a device whose upload has not ended counts as broken.
const UPLOAD_LIMIT: Duration = Duration::from_secs(600);

impl ConstantPool {
    /// Creates a pool for a device, with those of the constants that were packed for its plugin as it is now.
    pub fn new(device: &Arc<Device>, packed: &[PackedConstant]) -> Self {
        let about = device.plugin().about();
        let is_for =
            |packed: &&PackedConstant| packed.plugin == about.name && packed.version == about.version;
        let key =
            |packed: &PackedConstant| ((packed.source.identity(), packed.layout_id), packed.content.clone());
        let ahead = packed.iter().filter(is_for).map(key).collect();
        Self {
            device: Arc::clone(device),
            ahead,
            counts: Counts::default(),
            state: Mutex::default(),
            in_place: Mutex::default(),
        }
    }

    fn keep_in_place(&self, tensor: &Tensor) {
        if tensor.is_of_file() {
            lock(&self.in_place).insert(tensor.identity());
        }
    }

    /// Returns whether a constant of a file is read where it is.
    pub fn reads_in_place(&self, tensor: &Tensor) -> bool {
        lock(&self.in_place).contains(&tensor.identity())
    }

    /// Returns the number of constants packed so far.
    pub fn pack_counts(&self) -> PackCounts {
        let Counts { ahead, now } = &self.counts;
        PackCounts { ahead: ahead.load(Ordering::Relaxed), now: now.load(Ordering::Relaxed) }
    }

    /// Returns the constants that kernels of the plans that are there have in layouts of their own, but for those that
    /// are copied to the device while it computes.
    ///
    /// # Errors
    /// Errors of the device when it copies them to the host.
    pub fn packed(&self) -> Result<Vec<PackedConstant>> {
        let about = self.device.plugin().about();
        let mut all = Vec::new();
        for ((_, _, layout), entry) in &self.lock().placed {
            let (Layout::Packed(layout_id), Some(placed)) = (layout, entry.placed.upgrade()) else {
                continue;
            };
            let content = match &*placed {
                Placed::Host(tensor) | Placed::Packed(tensor) => tensor.clone(),
                Placed::Device(buffer) | Placed::Pinned(buffer, _) => {
                    let size = buffer.size();
                    Tensor::from_storage(U8, &[size], Arc::new(buffer.read(size)?), 0, size)?
                }
            };
            let (plugin, version) = (about.name.clone(), about.version.clone());
            all.push(PackedConstant {
                plugin,
                version,
                source: entry.source.clone(),
                layout_id: *layout_id,
                align: entry.align,
                content,
            });
        }
        Ok(all)
    }

    fn lock(&self) -> MutexGuard<'_, Uploads> {
        lock(&self.state)
    }

    /// Returns a constant in the layout that a kernel asks for: packed ahead of time, else packed now.
    fn pack(&self, tensor: &Tensor, kernel: &PreparedKernel, pack: &Pack) -> Result<Tensor> {
        let fits = |ahead: &&Tensor| {
            ahead.bytes().len() == pack.size && (ahead.bytes().as_ptr() as usize).is_multiple_of(pack.align)
        };
        if let Some(ahead) = self.ahead.get(&(tensor.identity(), pack.layout_id)).filter(fits) {
            self.counts.ahead.fetch_add(1, Ordering::Relaxed);
            return Ok(ahead.clone());
        }
        self.counts.now.fetch_add(1, Ordering::Relaxed);
        let packed = kernel.pack(pack, tensor)?;
        // Now, so that a file's pages and the packed form are not both there for all of a model.
        tensor.release();
        let size = packed.bytes().len();
        Tensor::from_storage(U8, &[size], Arc::new(packed), 0, size)
    }

    /// A constant, placed now if it is not yet.
    ///
    /// # Errors
    /// Out of memory, or the plugin's error for the copy.
    pub fn place(&self, tensor: &Tensor) -> Result<Arc<Placed>> {
        if self.device.about().host_refs {
            self.keep_in_place(tensor);
            return Ok(Arc::new(Placed::Host(tensor.clone())));
        }
        let ty = self.device.space().typed.then(|| tensor.tensor_type());
        let layout = ty.clone().map_or(Layout::Dense, Layout::Typed);
        self.shared(tensor, layout, 1, |pool, state| {
            let uploaded = pool.upload(state, tensor.bytes(), ty.as_ref());
            let buffer = leak_if_lent(tensor.clone(), uploaded)?;
            tensor.release();
            Ok(Placed::Device(buffer))
        })
    }

    /// A constant in the layout that a kernel asked for, packed now if it is not yet.
    ///
    /// # Errors
    /// The errors of [`ConstantPool::place`], and the kernel's error for packing.
    pub fn place_packed(&self, tensor: &Tensor, kernel: &PreparedKernel, pack: &Pack) -> Result<Arc<Placed>> {
        self.shared(tensor, Layout::Packed(pack.layout_id), pack.align, |pool, state| {
            let packed = pool.pack(tensor, kernel, pack)?;
            if pool.device.about().host_refs {
                return Ok(Placed::Packed(packed));
            }
            let uploaded = pool.upload(state, packed.bytes(), None);
            let buffer = leak_if_lent(packed.clone(), uploaded)?;
            // It may be a compiled model's.
            packed.release();
            Ok(Placed::Device(buffer))
        })
    }

    /// A constant in host memory from which runs copy it to the device: pinned if the device has such, and in the layout
    /// that a kernel asks for.
    ///
    /// # Errors
    /// As [`ConstantPool::place_packed`].
    pub fn keep_on_host(
        &self,
        tensor: &Tensor,
        kernel: &PreparedKernel,
        pack: Option<&Pack>,
    ) -> Result<Arc<Placed>> {
        self.shared(tensor, Layout::Kept(pack.map(|pack| pack.layout_id)), 1, |pool, _| {
            let kept = pack.map_or_else(|| Ok(tensor.clone()), |pack| pool.pack(tensor, kernel, pack))?;
            let bytes = kept.bytes();
            if let Some(buffer) = pool.device.alloc_pinned(bytes.len()).transpose()? {
                buffer.fill(bytes)?;
                kept.release();
                return Ok(Placed::Pinned(buffer, bytes.len()));
            }
            if pack.is_some() {
                return Ok(Placed::Packed(kept));
            }
            pool.keep_in_place(&kept);
            Ok(Placed::Host(kept))
        })
    }

    fn shared(
        &self,
        tensor: &Tensor,
        layout: Layout,
        align: usize,
        make: impl FnOnce(&Self, &mut Uploads) -> Result<Placed>,
    ) -> Result<Arc<Placed>> {
        let mut state = self.lock();
        let (address, size) = tensor.identity();
        let key = (address, size, layout);
        if let Some(placed) = state.placed.get(&key).and_then(|entry| entry.placed.upgrade()) {
            return Ok(placed);
        }
        let placed = Arc::new(make(self, &mut state)?);
        state.placed.retain(|_, entry| entry.placed.strong_count() > 0);
        let entry = Entry { placed: Arc::downgrade(&placed), source: tensor.clone(), align };
        state.placed.insert(key, entry);
        Ok(placed)
    }

    fn upload(&self, state: &mut Uploads, bytes: &[u8], ty: Option<&TensorType>) -> Result<Buffer> {
        let buffer = match ty {
            Some(ty) => self.device.alloc_tensor(ty, DEVBAY_USAGE_WEIGHT)?,
            None => self.device.alloc(bytes.len(), DEVBAY_USAGE_WEIGHT)?,
        };
        if state.stream.is_none() {
            state.stream = Some(self.device.create_stream_for("constants", StreamUse::COPIES)?);
        }
        let Some(stream) = &mut state.stream else {
            return Ok(buffer);
        };
        // SAFETY: `finish` below waits for the copy while `bytes` is borrowed, or the callers leak it.
        let copied = unsafe { stream.copy_in(bytes.as_ptr(), buffer.reference(0, bytes.len())) };
        match copied.and_then(|()| stream.finish(UPLOAD_LIMIT)) {
            Ok(()) => Ok(buffer),
            Err(error) => {
                // A failed stream is destroyed, not recovered (B13); destroying it waits for the copy.
                state.stream = None;
                Err(error)
            }
        }
    }
}
