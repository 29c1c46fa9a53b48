//! Result of preparing a kernel: a state that the host keeps, launches from many threads at once, and frees
//! (B21).
//!
//! The state of every kernel begins with a [`StateHeader`], so that the SDK finds its own fields without
//! knowing the type. Nothing writes to a state once the host has it.

use super::Device;
use super::error::{Error, Result};
use super::launch::{Launch, launch, launch_deferred, launch_unless_failed};
use crate::abi::*;
use crate::reserve::Size;
use core::ffi::c_void;

/// Function that packs a constant: from its bytes to zeroed memory of the requested size.
type PackFn = Box<dyn Fn(&[u8], &mut [u8]) -> Result<()> + Send + Sync>;

/// Beginning of every state: how to free it, and the number of references of a launch.
#[repr(C)]
pub struct StateHeader {
    drop: unsafe fn(*mut StateHeader),
    /// The kernel's own launch function, even if launches are deferred.
    pub(super) launch: LaunchFn,
    /// Constants to pass packed, and their packing functions: one list for the host, one for `pack`.
    packs: Vec<ConstantPack>,
    pack_fns: Vec<PackFn>,
    /// Inputs of a launch, including absent ones.
    pub n_inputs: u32,
    /// Outputs of a launch, including absent ones.
    pub n_outputs: u32,
    /// True if a reference for the true extents follows the outputs (DATA_SHAPE).
    pub extents: bool,
    /// True if a workspace is the last reference.
    pub workspace: bool,
    /// The node's name, for traces; empty unless launches are deferred.
    pub(super) label: Box<str>,
}

impl StateHeader {
    /// Counts the references of a launch.
    pub fn n_refs(&self) -> usize {
        self.n_inputs as usize
            + self.n_outputs as usize
            + usize::from(self.extents)
            + usize::from(self.workspace)
    }
}

/// A state as `prepare` returns it: the header, then the kernel's own state.
#[repr(C)]
pub struct KernelState<K> {
    pub(super) header: StateHeader,
    /// The kernel's own state.
    pub kernel: K,
}

/// Result of a prepare function.
pub struct Prepared {
    launch: LaunchFn,
    state: *mut StateHeader,
    workspace_bytes: usize,
    workspace_align: usize,
}

// SAFETY: the state behind the pointer is Send and Sync (`Launch`, and the promise of `raw`).
unsafe impl Send for Prepared {}
// SAFETY: several threads share the state, which is Sync (`Launch`, and the promise of `raw`).
unsafe impl Sync for Prepared {}

impl Prepared {
    /// Wraps a kernel that is launched through [`Launch`]; a panic becomes a status.
    pub fn new<D: Device, K: Launch<D>>(kernel: K) -> Self {
        // SAFETY: `launch::<D, K>` takes the state that `raw` makes, catches panics, and keeps to the
        // number of references in its header.
        unsafe { Self::raw(launch::<D, K>, kernel) }
    }

    /// Wraps a kernel with its own launch function, for plugins that count nanoseconds.
    ///
    /// # Safety
    /// 1. `launch` takes a [`KernelState<K>`] as its state, and does not unwind.
    /// 2. It keeps rule B21: it uses no more references than the kernel's operands and workspace.
    pub unsafe fn raw<K: Send + Sync + 'static>(launch: LaunchFn, kernel: K) -> Self {
        let state = Box::new(KernelState {
            header: StateHeader {
                drop: drop_state::<K>,
                launch,
                packs: Vec::new(),
                pack_fns: Vec::new(),
                n_inputs: 0,
                n_outputs: 0,
                extents: false,
                workspace: false,
                label: Box::default(),
            },
            kernel,
        });
        Self { launch, state: Box::into_raw(state).cast(), workspace_bytes: 0, workspace_align: 0 }
    }

    /// Requests scratch memory for each launch; `align` is a power of two.
    #[must_use]
    pub fn with_workspace(mut self, bytes: usize, align: usize) -> Self {
        self.workspace_bytes = bytes;
        self.workspace_align = align;
        self
    }

    /// Requests scratch memory for each launch, of a size that may overflow; `align` is a power of two.
    ///
    /// # Errors
    /// Out of memory for more bytes than a process can have.
    pub fn with_room(self, bytes: Size, align: usize) -> Result<Self> {
        let bytes = bytes.get("a kernel's workspace")?;
        Ok(self.with_workspace(bytes, align))
    }

    /// Requests a constant input in its own layout: the host packs it once, with `pack`, and passes the
    /// result in place of the constant. `layout_id` identifies the layout completely. Only if the agreed
    /// minor is at least 2 ([`super::PrepareRequest::abi_minor`]).
    #[must_use]
    pub fn with_packed(
        self,
        input_idx: usize,
        layout_id: u64,
        size_bytes: usize,
        align: usize,
        pack: impl Fn(&[u8], &mut [u8]) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        // SAFETY: `state` came from the box that `raw` made, and no launch knows it before `into_abi`.
        let header = unsafe { &mut *self.state };
        header.packs.push(ConstantPack {
            input_idx: input_idx as u32,
            layout_id,
            size_bytes: size_bytes as u64,
            align: align as u64,
            ..ConstantPack::empty()
        });
        header.pack_fns.push(Box::new(pack));
        self
    }

    /// Returns the requested workspace, in bytes, and its alignment.
    pub fn workspace(&self) -> (usize, usize) {
        (self.workspace_bytes, self.workspace_align)
    }

    /// Runs the kernel as a part of another one's launch. The stream has the detail of a non-zero status.
    ///
    /// # Safety
    /// 1. `stream` is that launch's stream.
    /// 2. `refs` has [`StateHeader::n_refs`] elements, and matches the prepared operands (B21).
    pub unsafe fn launch_within(&self, stream: *mut crate::abi::Stream, refs: &[BufferRef]) -> Status {
        // SAFETY: the stream is that of the launch around it (1), the references are as many as the kernel was prepared
        // for (2), and the state is this value's own.
        unsafe { (self.launch)(self.state.cast(), stream, refs.as_ptr(), core::ptr::null()) }
    }

    /// Returns the constants to pass packed.
    pub fn packs(&self) -> &[ConstantPack] {
        &self.header().packs
    }

    /// Packs a constant for a kernel that runs as a part of another one; `dst` is zeroed memory of the
    /// requested size.
    ///
    /// # Errors
    /// Invalid for an input that was not requested, or another size; the kernel's error.
    pub fn pack_within(&self, input_idx: u32, src: &[u8], dst: &mut [u8]) -> Result<()> {
        let header = self.header();
        let Some(at) = header.packs.iter().position(|pack| pack.input_idx == input_idx) else {
            return Err(Error::invalid(format!("input {input_idx} does not come packed")));
        };
        if header.packs[at].size_bytes != dst.len() as u64 {
            let text =
                format!("{} bytes for a packed constant of {}", dst.len(), header.packs[at].size_bytes);
            return Err(Error::invalid(text));
        }
        (header.pack_fns[at])(src, dst)
    }

    /// Sets the number of references of each launch; `prepare` calls it once.
    pub fn set_operands(&mut self, n_inputs: usize, n_outputs: usize) {
        // SAFETY: `state` came from the box that `raw` made, and no launch knows it before `into_abi`.
        let header = unsafe { &mut *self.state };
        header.n_inputs = n_inputs as u32;
        header.n_outputs = n_outputs as u32;
        header.workspace = self.workspace_bytes > 0;
    }

    /// Marks the kernel as DATA_SHAPE; `prepare` calls it once.
    pub fn set_extents(&mut self) {
        // SAFETY: `state` came from the box that `raw` made, and no launch knows it before `into_abi`.
        unsafe { &mut *self.state }.extents = true;
    }

    /// Returns the header of the state.
    pub fn header(&self) -> &StateHeader {
        // SAFETY: `state` came from the box that `raw` made, which lives as long as this value.
        unsafe { &*self.state }
    }

    /// Defers launches, which the device's streams then run ([`super::Stream::defer`]).
    pub(crate) fn defer<D: Device>(&mut self, label: &str) {
        self.launch = launch_deferred::<D>;
        // SAFETY: `state` came from the box that `raw` made, which the host has not seen yet.
        unsafe { (*self.state).label = label.into() };
    }

    /// Makes launches on a failed stream fail.
    pub(crate) fn refuse_failed<D: Device>(&mut self) {
        self.launch = launch_unless_failed::<D>;
    }

    /// Transfers the state to the host.
    pub(crate) fn into_abi(self) -> crate::abi::Prepared {
        let this = std::mem::ManuallyDrop::new(self);
        crate::abi::Prepared {
            launch: Some(this.launch),
            state: this.state.cast(),
            workspace_bytes: this.workspace_bytes as u64,
            workspace_align: this.workspace_align as u64,
            packs: List::new(&this.header().packs),
            ..crate::abi::Prepared::empty()
        }
    }

    /// Packs a constant for a state that the host holds.
    ///
    /// # Safety
    /// 1. `state` came from [`Prepared::into_abi`] and was not freed.
    /// 2. `dst` is NULL, or memory as `PluginTable::pack` requires.
    ///
    /// # Errors
    /// Invalid for an input that was not requested; the kernel's error.
    pub(crate) unsafe fn pack(state: *const c_void, input_idx: u32, src: &[u8], dst: *mut u8) -> Result<()> {
        // SAFETY: a state from `into_abi` begins with its header, and was not freed (# Safety, 1).
        let header = unsafe { &*state.cast::<StateHeader>() };
        let Some(at) = header.packs.iter().position(|pack| pack.input_idx == input_idx) else {
            return Err(Error::invalid(format!("input {input_idx} does not come packed")));
        };
        if dst.is_null() {
            return Err(Error::invalid("the memory for a packed constant is NULL"));
        }
        // SAFETY: the host lends zeroed memory of the size that was asked for.
        let dst = unsafe { core::slice::from_raw_parts_mut(dst, header.packs[at].size_bytes as usize) };
        (header.pack_fns[at])(src, dst)
    }

    /// Takes a state back from the host and frees it.
    ///
    /// # Safety
    /// `state` came from [`Prepared::into_abi`], and is freed once.
    pub(crate) unsafe fn free(state: *mut c_void) {
        let header: *mut StateHeader = state.cast();
        // SAFETY: a state from `into_abi` begins with its header, and was not freed before (# Safety).
        let drop = unsafe { (*header).drop };
        // SAFETY: `drop` was made for this state's type.
        unsafe { drop(header) };
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // SAFETY: this value owns its state and is dropped once; `into_abi` forgets it.
        unsafe { Self::free(self.state.cast()) };
    }
}

unsafe fn drop_state<K>(header: *mut StateHeader) {
    // SAFETY: `raw` made it from a box of this type, and it is freed once.
    drop(unsafe { Box::from_raw(header.cast::<KernelState<K>>()) });
}
