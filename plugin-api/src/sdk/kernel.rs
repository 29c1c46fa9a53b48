//! Kernels: their descriptors, what `prepare` returns, and the operands of a launch.

use self::dtypes::*;
use super::Device;
use super::error::{Error, Result, guard};
use super::export::StreamBox;
use super::view::PrepareRequest;
use crate::abi::*;
use core::ffi::c_void;

/// Element types by their usual names.
pub mod dtypes {
    use crate::abi::*;

    const fn dtype(code: u8, bits: u8) -> DType {
        DType { code, bits, lanes: 1 }
    }
    /// IEEE 754 binary32.
    pub const F32: DType = dtype(DEVBAY_DTYPE_FLOAT, 32);
    /// IEEE 754 binary64.
    pub const F64: DType = dtype(DEVBAY_DTYPE_FLOAT, 64);
    /// IEEE 754 binary16.
    pub const F16: DType = dtype(DEVBAY_DTYPE_FLOAT, 16);
    /// bfloat16.
    pub const BF16: DType = dtype(DEVBAY_DTYPE_BFLOAT, 16);
    /// Signed 8-bit integer.
    pub const I8: DType = dtype(DEVBAY_DTYPE_INT, 8);
    /// Signed 16-bit integer.
    pub const I16: DType = dtype(DEVBAY_DTYPE_INT, 16);
    /// Signed 32-bit integer.
    pub const I32: DType = dtype(DEVBAY_DTYPE_INT, 32);
    /// Signed 64-bit integer.
    pub const I64: DType = dtype(DEVBAY_DTYPE_INT, 64);
    /// Unsigned 8-bit integer.
    pub const U8: DType = dtype(DEVBAY_DTYPE_UINT, 8);
    /// Unsigned 16-bit integer.
    pub const U16: DType = dtype(DEVBAY_DTYPE_UINT, 16);
    /// Unsigned 32-bit integer.
    pub const U32: DType = dtype(DEVBAY_DTYPE_UINT, 32);
    /// Unsigned 64-bit integer.
    pub const U64: DType = dtype(DEVBAY_DTYPE_UINT, 64);
    /// Truth value in 8 bits.
    pub const BOOL: DType = dtype(DEVBAY_DTYPE_BOOL, 8);
}

impl TypeVar {
    /// A type variable that may be any of `dtypes`.
    pub const fn of(dtypes: &'static [DType]) -> Self {
        Self { struct_size: size_of::<Self>() as u32, n_dtypes: dtypes.len() as u32, dtypes: dtypes.as_ptr() }
    }
}

pub use crate::abi::TypeVar;

/// What one launch costs; see [`KernelCost`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Arithmetic operations; a multiply-add counts two.
    pub flops: u64,
    /// Bytes read, each operand once.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
}

/// A function that prepares a kernel.
pub type PrepareFn<D> = fn(&PrepareRequest<'_, D>) -> Result<Prepared>;
/// A function that estimates what a kernel will cost.
pub type CostFn<D> = fn(&PrepareRequest<'_, D>) -> Result<Cost>;

/// A function that gives the type of one output of an op that ONNX does not define: dtype and extents.
pub type ShapeFn<D> = fn(&PrepareRequest<'_, D>, usize) -> Result<(DType, Vec<i64>)>;

/// One kernel of a plugin: what the host reads first, then what the SDK calls.
#[repr(C)]
pub struct Kernel<D> {
    info: KernelInfo,
    prepare: PrepareFn<D>,
    cost: Option<CostFn<D>>,
    shape: Option<ShapeFn<D>>,
}

impl<D> Clone for Kernel<D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D> std::marker::Copy for Kernel<D> {}

impl<D> Kernel<D> {
    /// A kernel of ONNX's op `op` as defined in opset `since_version`. Say its types and operands next.
    pub const fn new(op: &'static str, since_version: u32, prepare: PrepareFn<D>) -> Self {
        Self {
            info: KernelInfo {
                struct_size: size_of::<KernelInfo>() as u32,
                since_version,
                domain: Str::EMPTY,
                op: Str::new(op),
                n_inputs_min: 0,
                n_inputs_max: 0,
                n_outputs_min: 0,
                n_outputs_max: 0,
                typevars: List::EMPTY,
                input_typevars: List::EMPTY,
                output_typevars: List::EMPTY,
                priority: 0,
                reserved: 0,
                flags: DEVBAY_KERNEL_DETERMINISTIC,
                host_value_inputs: 0,
                in_place: List::EMPTY,
                doc: Str::EMPTY,
            },
            prepare,
            cost: None,
            shape: None,
        }
    }

    /// Op of another domain.
    #[must_use]
    pub const fn domain(mut self, domain: &'static str) -> Self {
        self.info.domain = Str::new(domain);
        self
    }

    /// The type variables.
    #[must_use]
    pub const fn types(mut self, typevars: &'static [TypeVar]) -> Self {
        self.info.typevars = List::new(typevars);
        self
    }

    /// Which type variable each named input and output has; all are required unless
    /// [`Kernel::inputs`] and [`Kernel::outputs`] say otherwise.
    #[must_use]
    pub const fn operands(mut self, inputs: &'static [u8], outputs: &'static [u8]) -> Self {
        self.info.input_typevars = List::new(inputs);
        self.info.output_typevars = List::new(outputs);
        self.info.n_inputs_min = inputs.len() as u32;
        self.info.n_inputs_max = inputs.len() as u32;
        self.info.n_outputs_min = outputs.len() as u32;
        self.info.n_outputs_max = outputs.len() as u32;
        self
    }

    /// Fewest and most inputs; [`DEVBAY_VARIADIC`] repeats the last.
    #[must_use]
    pub const fn inputs(mut self, min: u32, max: u32) -> Self {
        self.info.n_inputs_min = min;
        self.info.n_inputs_max = max;
        self
    }

    /// Fewest and most outputs; [`DEVBAY_VARIADIC`] repeats the last.
    #[must_use]
    pub const fn outputs(mut self, min: u32, max: u32) -> Self {
        self.info.n_outputs_min = min;
        self.info.n_outputs_max = max;
        self
    }

    /// Which input each output may share its memory with, -1 for none.
    #[must_use]
    pub const fn in_place(mut self, inputs: &'static [i16]) -> Self {
        self.info.in_place = List::new(inputs);
        self
    }

    /// Bit i: input i must be known when the node is prepared.
    #[must_use]
    pub const fn host_values(mut self, inputs: u64) -> Self {
        self.info.host_value_inputs = inputs;
        self
    }

    /// Flags, `DEVBAY_KERNEL_*`; the default is DETERMINISTIC.
    #[must_use]
    pub const fn flags(mut self, flags: u64) -> Self {
        self.info.flags = flags;
        self
    }

    /// Above 0 is preferred to other kernels for the same node.
    #[must_use]
    pub const fn priority(mut self, priority: i32) -> Self {
        self.info.priority = priority;
        self
    }

    /// How to estimate its cost.
    #[must_use]
    pub const fn cost(mut self, cost: CostFn<D>) -> Self {
        self.cost = Some(cost);
        self
    }

    /// Types of its outputs, for an op that ONNX does not define.
    #[must_use]
    pub const fn shape(mut self, shape: ShapeFn<D>) -> Self {
        self.shape = Some(shape);
        self
    }

    /// One line for a person.
    #[must_use]
    pub const fn doc(mut self, doc: &'static str) -> Self {
        self.info.doc = Str::new(doc);
        self
    }

    /// What the host reads.
    pub const fn info(&self) -> &KernelInfo {
        &self.info
    }

    /// Refuses operands whose dtypes the descriptor does not list, or that differ where it says that they are
    /// one; the kernel's own function need not ask.
    pub(crate) fn refuse_types(&self, request: &PrepareRequest<'_, D>) -> Result<()> {
        let broken = |e: ListError| {
            Error::new(DEVBAY_STATUS_INTERNAL, format!("the kernel's own descriptor is broken: {e}"))
        };
        // SAFETY: static lists of this plugin's, as for the reads below.
        let typevars = unsafe { read_growable_list::<TypeVar>(&self.info.typevars) }.map_err(broken)?;
        let mut bound: Vec<Option<DType>> = vec![None; typevars.len()];
        let sides = [
            ("input", &request.inputs, &self.info.input_typevars),
            ("output", &request.outputs, &self.info.output_typevars),
        ];
        for (side, operands, vars) in sides {
            // SAFETY: as above.
            let vars: Vec<u8> = unsafe { read_list(vars, "uint8_t") }.map_err(broken)?;
            for (i, operand) in operands.iter().enumerate().filter(|(_, operand)| !operand.is_absent()) {
                let var = vars.get(i).or(vars.last()).map(|&var| usize::from(var));
                let Some((var, typevar)) = var.and_then(|var| Some((var, typevars.get(var)?))) else {
                    return Err(Error::unsupported(format!("{side} {i}, which the kernel does not have")));
                };
                let dtype = operand.dtype();
                let allowed = List {
                    ptr: typevar.dtypes.cast(),
                    len: u64::from(typevar.n_dtypes),
                    stride: size_of::<DType>() as u64,
                };
                // SAFETY: as above.
                let allowed: Vec<DType> = unsafe { read_list(&allowed, "DType") }.map_err(broken)?;
                if !allowed.contains(&dtype) || bound[var].is_some_and(|other| other != dtype) {
                    return Err(Error::unsupported(format!("{side} {i} of {dtype:?}")));
                }
                bound[var] = Some(dtype);
            }
        }
        Ok(())
    }

    pub(crate) fn prepare(&self, request: &PrepareRequest<'_, D>) -> Result<Prepared> {
        (self.prepare)(request)
    }

    pub(crate) fn estimate(&self, request: &PrepareRequest<'_, D>) -> Result<Cost> {
        match self.cost {
            Some(cost) => cost(request),
            None => Err(Error::unsupported("this kernel has no cost function")),
        }
    }

    pub(crate) fn output_type(
        &self,
        request: &PrepareRequest<'_, D>,
        output_idx: usize,
    ) -> Result<(DType, Vec<i64>)> {
        match self.shape {
            Some(shape) => shape(request, output_idx),
            None => Err(Error::unsupported("this kernel has no shape function")),
        }
    }
}

/// Values that memory of any content may be read as.
///
/// # Safety
/// Every bit pattern is a valid value.
pub unsafe trait Element: std::marker::Copy + 'static {
    /// Its dtype.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($type:ty => $dtype:expr)*) => {$(
        // SAFETY: integers and floating-point numbers have no invalid bits.
        unsafe impl Element for $type {
            const DTYPE: DType = $dtype;
        }
    )*};
}
/// An address that the chunks of a parallel loop share.
///
/// Making one promises nothing; whoever reads or writes through it says why no other chunk does.
pub struct SendPtr<T>(pub *mut T);

impl<T> Clone for SendPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> std::marker::Copy for SendPtr<T> {}

// SAFETY: an address is plain data; every use of it is in an unsafe block of its own.
unsafe impl<T> Send for SendPtr<T> {}
// SAFETY: as for Send.
unsafe impl<T> Sync for SendPtr<T> {}

impl<T> SendPtr<T> {
    /// The address `i` elements further on; wraps like `wrapping_add`.
    #[inline(always)]
    pub fn at(&self, i: usize) -> *mut T {
        self.0.wrapping_add(i)
    }
}

elements! { f32 => F32  f64 => F64  i8 => I8  i16 => I16  i32 => I32  i64 => I64  u8 => U8  u16 => U16  u32 => U32  u64 => U64 }

/// The operands of one launch on a device whose memory the processor reaches.
pub struct Operands<'a> {
    refs: *const BufferRef,
    header: &'a StateHeader,
    /// Bit i: output i has been handed out.
    taken: u64,
}

// SAFETY: the references are read-only for the call, in which all chunks of a parallel loop run; what
// hands out memory to write takes `&mut self`.
unsafe impl Sync for Operands<'_> {}

impl<'a> Operands<'a> {
    fn reference(&self, i: usize) -> &'a BufferRef {
        // SAFETY: the host passes as many references as `prepare` fixed (B21); `i` is below that.
        unsafe { &*self.refs.add(i) }
    }

    fn references(&self, first: usize, n: usize) -> &'a [BufferRef] {
        if n == 0 {
            return &[];
        }
        // SAFETY: as above; the references are one array.
        unsafe { core::slice::from_raw_parts(self.refs.wrapping_add(first), n) }
    }

    /// The reference of input `i`.
    ///
    /// # Panics
    /// If the kernel was not prepared with that many inputs.
    pub fn input_ref(&self, i: usize) -> &'a BufferRef {
        assert!(i < self.header.n_inputs as usize, "input {i} of {}", self.header.n_inputs);
        self.reference(i)
    }

    /// The reference of output `i`.
    ///
    /// # Panics
    /// If the kernel was not prepared with that many outputs.
    pub fn output_ref(&self, i: usize) -> &'a BufferRef {
        assert!(i < self.header.n_outputs as usize, "output {i} of {}", self.header.n_outputs);
        self.reference(self.header.n_inputs as usize + i)
    }

    /// The references of all inputs, for kernels that take any number of them.
    pub fn input_refs(&self) -> &'a [BufferRef] {
        self.references(0, self.header.n_inputs as usize)
    }

    /// The references of all outputs, for kernels that make any number of them.
    pub fn output_refs(&self) -> &'a [BufferRef] {
        let n_inputs = self.header.n_inputs as usize;
        self.references(n_inputs, self.header.n_outputs as usize)
    }

    /// Where a DATA_SHAPE kernel writes the true extents of its outputs, one output after the other.
    ///
    /// # Panics
    /// If the kernel is not DATA_SHAPE.
    pub fn extents_ptr(&self) -> *mut i64 {
        assert!(self.header.extents, "extents of a kernel that is not DATA_SHAPE");
        self.reference((self.header.n_inputs + self.header.n_outputs) as usize).addr as *mut i64
    }

    /// Address of the workspace that `prepare` asked for.
    ///
    /// # Panics
    /// If it asked for none.
    pub fn workspace_ref(&self) -> &'a BufferRef {
        assert!(self.header.workspace, "a workspace that was not asked for");
        let operands = self.header.n_inputs + self.header.n_outputs;
        self.reference(operands as usize + usize::from(self.header.extents))
    }

    /// Inputs of the launch, absent ones included.
    #[inline]
    pub fn n_inputs(&self) -> usize {
        self.header.n_inputs as usize
    }

    /// Outputs of the launch, absent ones included.
    #[inline]
    pub fn n_outputs(&self) -> usize {
        self.header.n_outputs as usize
    }

    /// Address of input `i`; NULL if it is absent. For kernels that read and write in place, or in parallel.
    ///
    /// # Panics
    /// As [`Operands::input_ref`].
    #[inline]
    pub fn input_ptr<T>(&self, i: usize) -> *const T {
        self.input_ref(i).addr as *const T
    }

    /// Address of output `i`.
    ///
    /// # Panics
    /// As [`Operands::output_ref`].
    #[inline]
    pub fn output_ptr<T>(&self, i: usize) -> *mut T {
        self.output_ref(i).addr as *mut T
    }

    /// Address of the workspace.
    ///
    /// # Panics
    /// As [`Operands::workspace_ref`].
    #[inline]
    pub fn workspace_ptr<T>(&self) -> *mut T {
        self.workspace_ref().addr as *mut T
    }

    /// The elements of input `i`; none if it is absent.
    ///
    /// # Panics
    /// If the kernel was not prepared with that many inputs, or the address is not aligned.
    pub fn input<T: Element>(&self, i: usize) -> &'a [T] {
        let (start, len) = elements_of::<T>(self.input_ref(i));
        // SAFETY: the host lends the range until the launch is done (B9), nobody writes it meanwhile but
        // this launch, and `output` refuses to alias it.
        unsafe { core::slice::from_raw_parts(start, len) }
    }

    /// The elements of output `i`, content undefined.
    ///
    /// # Panics
    /// If it was taken before, shares memory with an input (a kernel that works in place uses the
    /// references), or for what [`Operands::input`] panics for.
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

/// A prepared kernel of a device: immutable, launched by many threads at once (B21).
pub trait Launch<D: Device>: Send + Sync + 'static {
    /// Enqueues the kernel on `stream`, or runs it there on an inline device.
    ///
    /// # Errors
    /// What is known now, and concerns this launch alone.
    fn launch(&self, stream: &D::Stream, operands: &mut Operands<'_>) -> Result<()>;
}

/// How a constant is packed: from its bytes to zeroed memory of the size that was asked for.
type PackFn = Box<dyn Fn(&[u8], &mut [u8]) -> Result<()> + Send + Sync>;

/// What every state begins with: how to free it, and how many references a launch has.
#[repr(C)]
pub struct StateHeader {
    drop: unsafe fn(*mut StateHeader),
    /// The kernel's own launch function, also where launches are put off.
    launch: LaunchFn,
    /// Constants that come packed, and how they are packed: one list for the host, one for `pack`.
    packs: Vec<ConstantPack>,
    pack_fns: Vec<PackFn>,
    /// Inputs of a launch, absent ones included.
    pub n_inputs: u32,
    /// Outputs of a launch, absent ones included.
    pub n_outputs: u32,
    /// Whether a reference for the true extents follows the outputs (DATA_SHAPE).
    pub extents: bool,
    /// Whether a workspace comes last.
    pub workspace: bool,
    /// The node's name, for traces; empty unless launches are put off.
    label: Box<str>,
}

impl StateHeader {
    /// References that a launch is given.
    pub fn n_refs(&self) -> usize {
        self.n_inputs as usize
            + self.n_outputs as usize
            + usize::from(self.extents)
            + usize::from(self.workspace)
    }
}

/// A state as `prepare` hands it out: the header, then what the kernel keeps.
#[repr(C)]
pub struct State<K> {
    header: StateHeader,
    /// What the kernel keeps.
    pub kernel: K,
}

/// What a prepare function returns.
pub struct Prepared {
    launch: LaunchFn,
    state: *mut StateHeader,
    workspace_bytes: usize,
    workspace_align: usize,
}

// SAFETY: the state behind the pointer is Send and Sync (`Launch`, and the promise of `raw`).
unsafe impl Send for Prepared {}
// SAFETY: as for Send.
unsafe impl Sync for Prepared {}

impl Prepared {
    /// A kernel that is launched through [`Launch`]; panics become a status.
    pub fn new<D: Device, K: Launch<D>>(kernel: K) -> Self {
        // SAFETY: `launch::<D, K>` takes the state that `raw` makes, catches panics, and keeps to the
        // number of references in its header.
        unsafe { Self::raw(launch::<D, K>, kernel) }
    }

    /// A kernel with a launch function of its own, for those who count nanoseconds.
    ///
    /// # Safety
    /// 1. `launch` takes a [`State<K>`] as its state, and does not unwind.
    /// 2. It keeps to rule B21: no more references than the kernel's operands and workspace.
    pub unsafe fn raw<K: Send + Sync + 'static>(launch: LaunchFn, kernel: K) -> Self {
        let state = Box::new(State {
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

    /// Asks for scratch memory in each launch; `align` is a power of two.
    #[must_use]
    pub fn with_workspace(mut self, bytes: usize, align: usize) -> Self {
        self.workspace_bytes = bytes;
        self.workspace_align = align;
        self
    }

    /// Asks for a constant input in a layout of its own: the host packs it once, with `pack`, and passes the
    /// result in place of the constant. `layout_id` names the layout in full. Only if the agreed minor is at
    /// least 2 ([`PrepareRequest::abi_minor`]).
    #[must_use]
    pub fn with_packed(
        self,
        input_idx: usize,
        layout_id: u64,
        size_bytes: usize,
        align: usize,
        pack: impl Fn(&[u8], &mut [u8]) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        // SAFETY: `state` is this value's own box, and nobody launches it yet.
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

    /// The workspace asked for, in bytes, and its alignment.
    pub fn workspace(&self) -> (usize, usize) {
        (self.workspace_bytes, self.workspace_align)
    }

    /// Tells the state how many references each launch will have; `prepare` does, once.
    pub fn set_operands(&mut self, n_inputs: usize, n_outputs: usize) {
        // SAFETY: `state` is this value's own box, and nobody launches it yet.
        let header = unsafe { &mut *self.state };
        header.n_inputs = n_inputs as u32;
        header.n_outputs = n_outputs as u32;
        header.workspace = self.workspace_bytes > 0;
    }

    /// Tells the state that its kernel is DATA_SHAPE; `prepare` does, once.
    pub fn set_extents(&mut self) {
        // SAFETY: `state` is this value's own box, and nobody launches it yet.
        unsafe { &mut *self.state }.extents = true;
    }

    /// The header of the state.
    pub fn header(&self) -> &StateHeader {
        // SAFETY: `state` is this value's own box.
        unsafe { &*self.state }
    }

    /// Has launches put off, to be run by the device's streams ([`super::Stream::defer`]).
    pub(crate) fn defer<D: Device>(&mut self, label: &str) {
        self.launch = launch_deferred::<D>;
        // SAFETY: `state` is this value's own box, which the host has not seen yet.
        unsafe { (*self.state).label = label.into() };
    }

    /// Hands the state to the host.
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

    /// Packs a constant for a state that the host has.
    ///
    /// # Safety
    /// `state` came from [`Prepared::into_abi`] and was not freed; `dst` is as `PluginTable::pack` says.
    ///
    /// # Errors
    /// Invalid for an input that was not asked for; what the kernel says.
    pub(crate) unsafe fn pack(state: *const c_void, input_idx: u32, src: &[u8], dst: *mut u8) -> Result<()> {
        // SAFETY: the caller's promise: the header is alive.
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

    /// Takes a state back from the host.
    ///
    /// # Safety
    /// `state` came from [`Prepared::into_abi`], and is given back once.
    pub(crate) unsafe fn free(state: *mut c_void) {
        let header: *mut StateHeader = state.cast();
        // SAFETY: the caller's promise: the header is alive.
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
    drop(unsafe { Box::from_raw(header.cast::<State<K>>()) });
}

/// References that a deferred launch holds without allocating.
const REFS_INLINE: usize = 12;

/// A launch that was put off: what it needs to be run later, on the stream's own thread.
pub struct DeferredLaunch {
    state: *const StateHeader,
    stream: *mut crate::abi::Stream,
    n_refs: usize,
    inline: [BufferRef; REFS_INLINE],
    /// All of them, if they are more than fit above.
    spilled: Vec<BufferRef>,
}

// SAFETY: the state is launched by many threads at once (B21) and lent until a point signalled after the launch
// is reported (B9); references are addresses.
unsafe impl Send for DeferredLaunch {}

impl DeferredLaunch {
    /// Runs it now. Once, in the order of the stream, before a later point is reported.
    ///
    /// # Errors
    /// What the kernel says; a panic in it becomes an error.
    pub fn run<S: super::Stream>(self) -> Result<()> {
        let refs = if self.spilled.is_empty() { self.inline.as_ptr() } else { self.spilled.as_ptr() };
        // SAFETY: the host keeps the state until a later point is reported (B9).
        let launch = unsafe { (*self.state).launch };
        // SAFETY: state, stream and references are those of the host's launch, copied.
        let status = unsafe { launch(self.state.cast(), self.stream, refs, core::ptr::null()) };
        if status == DEVBAY_STATUS_OK {
            return Ok(());
        }
        // SAFETY: the stream is alive: its work is done before it is destroyed.
        let stream = unsafe { &*self.stream.cast::<StreamBox<S>>() };
        Err(stream.kept().unwrap_or_else(|| Error::new(status, "the launch failed")))
    }

    /// The name of the node that the kernel was prepared for, for traces; equal nodes share a kernel, and then it is that
    /// of the first of them. Empty where the node has no name.
    pub fn label(&self) -> &str {
        // SAFETY: the host keeps the state until a later point is reported (B9).
        unsafe { &(*self.state).label }
    }

    /// References of the launch, for tests and traces.
    pub fn n_refs(&self) -> usize {
        self.n_refs
    }
}

unsafe extern "C" fn launch_deferred<D: Device>(
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
    match guard(|| super::Stream::defer(stream.inner(), deferred)) {
        Ok(()) => DEVBAY_STATUS_OK,
        Err(error) => stream.keep(error),
    }
}

unsafe extern "C" fn launch<D: Device, K: Launch<D>>(
    state: *const c_void,
    stream: *mut crate::abi::Stream,
    refs: *const BufferRef,
    _dims: *const i64,
) -> Status {
    // SAFETY: the host passes the state that `prepare` returned (B21).
    let state = unsafe { &*state.cast::<State<K>>() };
    // SAFETY: the host passes a stream of this device, which it has not destroyed.
    let stream = unsafe { &*stream.cast::<StreamBox<D::Stream>>() };
    let mut operands = Operands { refs, header: &state.header, taken: 0 };
    match guard(|| state.kernel.launch(stream.inner(), &mut operands)) {
        Ok(()) => DEVBAY_STATUS_OK,
        Err(error) => stream.keep(error),
    }
}

/// A `Kernel` is in the ABI's list by its first field.
const _: () = assert!(core::mem::offset_of!(Kernel<()>, info) == 0);
