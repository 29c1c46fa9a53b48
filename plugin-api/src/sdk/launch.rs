//! Arguments of a launch, immediate or deferred: its operands and workspace.
//!
//! The host passes references by position: inputs, outputs, then the extents and workspace that `prepare`
//! requested (B21). Their memory is lent until the launch is done (B9). It is available as slices only where
//! the processor can access it, for kernels that request slices.

use super::error::{Error, Result, guard, guard_kernel};
use super::export::{StreamBox, refuse_failed};
use super::kernel::dtypes::*;
use super::memory::{BufferBox, HostBuffer};
use super::prepared::{KernelState, StateHeader};
use super::{Device, Replay};
use crate::abi::*;
use core::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;

/// A prepared kernel of a device: immutable, launched by many threads at once (B21).
pub trait Launch<D: Device>: Send + Sync + 'static {
    /// Enqueues the kernel on `stream`, or runs it immediately on an inline device.
    ///
    /// # Errors
    /// An error that is known now and concerns only this launch.
    fn launch(&self, stream: &D::Stream, operands: &mut Operands<'_, D::Buffer>) -> Result<()>;
}

/// The operands of one launch, in allocations of type `B`.
///
/// Memory that the processor can access is read by address or as slices; other memory through
/// [`Operands::input_region`] and its siblings.
pub struct Operands<'a, B = HostBuffer> {
    refs: *const BufferRef,
    header: &'a StateHeader,
    /// Bit i: output i has been taken.
    taken: u64,
    device: PhantomData<&'a B>,
}

// SAFETY: the references are read-only for the call, in which all chunks of a parallel loop run; the functions that
// hand out memory to write take `&mut self`.
unsafe impl<B: Sync> Sync for Operands<'_, B> {}

impl<'a, B> Operands<'a, B> {
    fn reference(&self, i: usize) -> &'a BufferRef {
        // SAFETY: the host passes as many references as `prepare` fixed (B21); `i` is below that.
        unsafe { &*self.refs.add(i) }
    }

    fn references(&self, first: usize, n: usize) -> &'a [BufferRef] {
        if n == 0 {
            return &[];
        }
        // SAFETY: the references are one array of as many as `prepare` fixed (B21); `first + n` is no more.
        unsafe { core::slice::from_raw_parts(self.refs.wrapping_add(first), n) }
    }

    /// Returns the reference of input `i`.
    ///
    /// # Panics
    /// If the kernel was not prepared with that many inputs.
    pub fn input_ref(&self, i: usize) -> &'a BufferRef {
        assert!(i < self.header.n_inputs as usize, "input {i} of {}", self.header.n_inputs);
        self.reference(i)
    }

    /// Returns the reference of output `i`.
    ///
    /// # Panics
    /// If the kernel was not prepared with that many outputs.
    pub fn output_ref(&self, i: usize) -> &'a BufferRef {
        assert!(i < self.header.n_outputs as usize, "output {i} of {}", self.header.n_outputs);
        self.reference(self.header.n_inputs as usize + i)
    }

    /// Returns the allocation of input `i` and its byte range there; None if the input is absent, or in host
    /// memory on a device with HOST_REFS.
    ///
    /// # Panics
    /// As [`Operands::input_ref`].
    pub fn input_region(&self, i: usize) -> Option<(&'a B, Range<u64>)> {
        self.region(self.input_ref(i))
    }

    /// Returns the allocation of output `i` and its byte range there.
    ///
    /// # Panics
    /// As [`Operands::output_ref`].
    pub fn output_region(&self, i: usize) -> Option<(&'a B, Range<u64>)> {
        self.region(self.output_ref(i))
    }

    /// Returns the allocation of the workspace and its byte range there.
    ///
    /// # Panics
    /// As [`Operands::workspace_ref`].
    pub fn workspace_region(&self) -> Option<(&'a B, Range<u64>)> {
        self.region(self.workspace_ref())
    }

    fn region(&self, reference: &BufferRef) -> Option<(&'a B, Range<u64>)> {
        // SAFETY: NULL, or a handle of this device's, whose box the host has not freed: it lends it until a point
        // signalled after the launch is reported (B9).
        let buffer = unsafe { reference.buffer.cast::<BufferBox<B>>().as_ref() }?;
        Some((&buffer.buffer, reference.offset..reference.offset + reference.length))
    }

    /// Returns the references of all inputs, for kernels with any number of them.
    pub fn input_refs(&self) -> &'a [BufferRef] {
        self.references(0, self.header.n_inputs as usize)
    }

    /// Returns the references of all outputs, for kernels with any number of them.
    pub fn output_refs(&self) -> &'a [BufferRef] {
        let n_inputs = self.header.n_inputs as usize;
        self.references(n_inputs, self.header.n_outputs as usize)
    }

    /// Returns the place where a DATA_SHAPE kernel writes its outputs' true extents, one output after the other.
    ///
    /// # Panics
    /// If the kernel is not DATA_SHAPE.
    pub fn extents_ptr(&self) -> *mut i64 {
        assert!(self.header.extents, "extents of a kernel that is not DATA_SHAPE");
        self.reference((self.header.n_inputs + self.header.n_outputs) as usize).addr as *mut i64
    }

    /// Returns the reference of the workspace that `prepare` requested.
    ///
    /// # Panics
    /// If it requested none.
    pub fn workspace_ref(&self) -> &'a BufferRef {
        assert!(self.header.workspace, "a workspace that was not asked for");
        let operands = self.header.n_inputs + self.header.n_outputs;
        self.reference(operands as usize + usize::from(self.header.extents))
    }

    /// Counts the inputs of the launch, including absent ones.
    #[inline]
    pub fn n_inputs(&self) -> usize {
        self.header.n_inputs as usize
    }

    /// Counts the outputs of the launch, including absent ones.
    #[inline]
    pub fn n_outputs(&self) -> usize {
        self.header.n_outputs as usize
    }

    /// Returns the address of input `i`; NULL if it is absent. For kernels that work in place or in parallel.
    ///
    /// # Panics
    /// As [`Operands::input_ref`].
    #[inline]
    pub fn input_ptr<T>(&self, i: usize) -> *const T {
        self.input_ref(i).addr as *const T
    }

    /// Returns the address of output `i`.
    ///
    /// # Panics
    /// As [`Operands::output_ref`].
    #[inline]
    pub fn output_ptr<T>(&self, i: usize) -> *mut T {
        self.output_ref(i).addr as *mut T
    }

    /// Returns the address of the workspace.
    ///
    /// # Panics
    /// As [`Operands::workspace_ref`].
    #[inline]
    pub fn workspace_ptr<T>(&self) -> *mut T {
        self.workspace_ref().addr as *mut T
    }

    /// Returns the elements of input `i`; empty if it is absent.
    ///
    /// # Panics
    /// If the kernel was not prepared with that many inputs, or the address is not aligned.
    pub fn input<T: Element>(&self, i: usize) -> &'a [T] {
        let (start, len) = elements_of::<T>(self.input_ref(i));
        // SAFETY: the host lends the range until the launch is done (B9), nobody writes it meanwhile but
        // this launch, and `output` refuses to alias it.
        unsafe { core::slice::from_raw_parts(start, len) }
    }

    /// Returns the elements of output `i`, with undefined content.
    ///
    /// # Panics
    /// If it was taken before, if it shares memory with an input (a kernel that works in place uses the
    /// references), or as [`Operands::input`].
    pub fn output<T: Element>(&mut self, i: usize) -> &'a mut [T] {
        let reference = self.output_ref(i);
        assert!(i < 64 && self.taken & 1 << i == 0, "output {i} was taken before");
        self.taken |= 1 << i;
        for k in 0..self.header.n_inputs as usize {
            let input = self.reference(k);
            let apart = input.addr + input.length <= reference.addr
                || reference.addr + reference.length <= input.addr;
            assert!(
                apart || input.length == 0 || reference.length == 0,
                "output {i} shares memory with input {k}; a kernel that works in place uses the references"
            );
        }
        let (start, len) = elements_of::<T>(reference);
        // SAFETY: the host lends the range to this launch alone (B9, B21), it was handed out once
        // (`taken`), and it overlaps no input (checked) and no other output (B21).
        unsafe { core::slice::from_raw_parts_mut(start, len) }
    }
}

fn elements_of<T: Element>(reference: &BufferRef) -> (*mut T, usize) {
    let start = reference.addr as *mut T;
    if start.is_null() {
        return (core::ptr::NonNull::dangling().as_ptr(), 0);
    }
    assert!(start.is_aligned(), "an operand at {start:?} is not aligned to its element");
    (start, reference.length as usize / size_of::<T>())
}

#[cfg(feature = "bytemuck")]
pub use bytemuck::Pod;

/// Plain data: stands in for bytemuck's trait of that name where the SDK is built without the crate.
///
/// # Safety
/// Every bit pattern is a valid value, and there is no padding.
#[cfg(not(feature = "bytemuck"))]
pub unsafe trait Pod: std::marker::Copy + 'static {}

/// Values that memory of any content may be read as, and written from.
pub trait Element: Pod {
    /// Its dtype.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($type:ty => $dtype:expr)*) => {$(
        // SAFETY: integers and floating-point numbers have no invalid bits and no padding.
        #[cfg(not(feature = "bytemuck"))]
        unsafe impl Pod for $type {}

        impl Element for $type {
            const DTYPE: DType = $dtype;
        }
    )*};
}

elements! { f32 => F32  f64 => F64  i8 => I8  i16 => I16  i32 => I32  i64 => I64  u8 => U8  u16 => U16  u32 => U32  u64 => U64 }

/// An address shared by the chunks of a parallel loop.
///
/// Creating one promises nothing. Code that reads or writes through it must state why no other chunk touches
/// the same memory.
pub struct SendPtr<T>(pub *mut T);

impl<T> Clone for SendPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> std::marker::Copy for SendPtr<T> {}

// SAFETY: an address is plain data; every use of it is in an unsafe block of its own.
unsafe impl<T> Send for SendPtr<T> {}
// SAFETY: an address is plain data; every use of it is in an unsafe block of its own.
unsafe impl<T> Sync for SendPtr<T> {}

impl<T> SendPtr<T> {
    /// Returns the address `i` elements further; wraps like `wrapping_add`.
    #[inline(always)]
    pub fn at(&self, i: usize) -> *mut T {
        self.0.wrapping_add(i)
    }
}

/// Number of references that a deferred launch holds without allocating.
const REFS_INLINE: usize = 12;

/// A deferred launch, with everything needed to run it later on the stream's own thread.
pub struct DeferredLaunch {
    state: *const StateHeader,
    stream: *mut crate::abi::Stream,
    /// Function that returns the detail of the stream's last failure; it knows the stream's type.
    kept: unsafe fn(*mut crate::abi::Stream) -> Option<Error>,
    n_refs: usize,
    inline: [BufferRef; REFS_INLINE],
    /// All references, if there are more than fit above.
    spilled: Vec<BufferRef>,
}

// SAFETY: the state is launched by many threads at once (B21) and lent until a point signalled after the launch
// is reported (B9), or its recording freed; references are addresses.
unsafe impl Send for DeferredLaunch {}
// SAFETY: it does not change, and its stream orders its runs.
unsafe impl Sync for DeferredLaunch {}

impl DeferredLaunch {
    /// Runs the launch now. The stream calls this once, in stream order, before it reports a later point.
    ///
    /// # Errors
    /// The kernel's error; a panic in it becomes an error.
    pub fn run(&self) -> Result<()> {
        self.run_with(self.stream, self.refs())
    }

    /// Runs the launch as part of a recording for one replay: on the replay's stream, with its bound memory.
    ///
    /// # Errors
    /// As [`DeferredLaunch::run`].
    pub fn run_again(&self, replay: &Replay) -> Result<()> {
        if let Some(inline) = self.inline.get(..self.n_refs) {
            let mut refs = [BufferRef::ABSENT; REFS_INLINE];
            refs.iter_mut().zip(inline).for_each(|(bound, recorded)| *bound = replay.place(recorded));
            return self.run_with(replay.stream(), &refs[..self.n_refs]);
        }
        let refs: Vec<BufferRef> = self.spilled.iter().map(|recorded| replay.place(recorded)).collect();
        self.run_with(replay.stream(), &refs)
    }

    fn refs(&self) -> &[BufferRef] {
        self.inline.get(..self.n_refs).unwrap_or(&self.spilled)
    }

    fn run_with(&self, stream: *mut crate::abi::Stream, refs: &[BufferRef]) -> Result<()> {
        // SAFETY: the host keeps the state until a later point is reported (B9).
        let launch = unsafe { (*self.state).launch };
        // SAFETY: state and number of references are those of the host's launch; the stream is that of it or of the replay, and
        // alive, as its work is done before it is destroyed.
        let status = unsafe { launch(self.state.cast(), stream, refs.as_ptr(), core::ptr::null()) };
        if status == DEVBAY_STATUS_OK {
            return Ok(());
        }
        // SAFETY: the function is that of the stream's type; the stream is alive, as above.
        let kept = unsafe { (self.kept)(stream) };
        Err(kept.unwrap_or_else(|| Error::new(status, "the launch failed")))
    }

    /// Returns the name of the prepared node, for traces; empty if the node has no name. Equal nodes share a
    /// kernel, and then it is the name of the first.
    pub fn label(&self) -> &str {
        // SAFETY: the host keeps the state until a later point is reported (B9).
        unsafe { &(*self.state).label }
    }

    /// Counts the references of the launch, for tests and traces.
    pub fn n_refs(&self) -> usize {
        self.n_refs
    }
}

/// Returns the detail of a stream's last failure.
///
/// # Safety
/// The stream belongs to a `D`, and the host has not destroyed it.
unsafe fn kept<D: Device>(stream: *mut crate::abi::Stream) -> Option<Error> {
    // SAFETY: the stream is one of a `D`, and was not destroyed (# Safety).
    unsafe { &*stream.cast::<StreamBox<D::Stream>>() }.kept()
}

/// Defers a launch: passes everything that it needs to the stream.
pub(super) unsafe extern "C" fn launch_deferred<D: Device>(
    state: *const c_void,
    stream: *mut crate::abi::Stream,
    refs: *const BufferRef,
    _dims: *const i64,
) -> Status {
    // SAFETY: the host passes the state that `prepare` returned (B21).
    let header = unsafe { &*state.cast::<StateHeader>() };
    // SAFETY: the host passes as many references as `prepare` fixed.
    let refs = unsafe { core::slice::from_raw_parts(refs, header.n_refs()) };
    let mut deferred = DeferredLaunch {
        state: header,
        stream,
        kept: kept::<D>,
        n_refs: refs.len(),
        inline: [BufferRef::ABSENT; REFS_INLINE],
        spilled: Vec::new(),
    };
    match deferred.inline.get_mut(..refs.len()) {
        Some(inline) => inline.copy_from_slice(refs),
        None => deferred.spilled = refs.to_vec(),
    }
    // SAFETY: the host passes a stream of this device, which it has not destroyed.
    let stream = unsafe { &*stream.cast::<StreamBox<D::Stream>>() };
    let defer = || {
        refuse_failed(stream.inner())?;
        super::Stream::defer(stream.inner(), deferred)
    };
    match guard(defer) {
        Ok(()) => DEVBAY_STATUS_OK,
        Err(error) => stream.keep(error),
    }
}

/// Launches a kernel on a stream that has not failed (B13).
pub(super) unsafe extern "C" fn launch_unless_failed<D: Device>(
    state: *const c_void,
    stream: *mut crate::abi::Stream,
    refs: *const BufferRef,
    dims: *const i64,
) -> Status {
    // SAFETY: the host passes a stream of this device, which it has not destroyed.
    let on = unsafe { &*stream.cast::<StreamBox<D::Stream>>() };
    if let Err(error) = guard(|| refuse_failed(on.inner())) {
        return on.keep(error);
    }
    // SAFETY: the host passes the state that `prepare` returned (B21).
    let launch = unsafe { (*state.cast::<StateHeader>()).launch };
    // SAFETY: the host's launch is passed on as it came, to the function of the same state (B21).
    unsafe { launch(state, stream, refs, dims) }
}

/// Launches a kernel through [`Launch`]; a panic fails only this launch.
pub(super) unsafe extern "C" fn launch<D: Device, K: Launch<D>>(
    state: *const c_void,
    stream: *mut crate::abi::Stream,
    refs: *const BufferRef,
    _dims: *const i64,
) -> Status {
    // SAFETY: the host passes the state that `prepare` returned (B21).
    let state = unsafe { &*state.cast::<KernelState<K>>() };
    // SAFETY: the host passes a stream of this device, which it has not destroyed.
    let stream = unsafe { &*stream.cast::<StreamBox<D::Stream>>() };
    let mut operands = Operands { refs, header: &state.header, taken: 0, device: PhantomData };
    match guard_kernel(|| state.kernel.launch(stream.inner(), &mut operands)) {
        Ok(()) => DEVBAY_STATUS_OK,
        Err(error) => stream.keep(error),
    }
}
