//! Wrong kernels: their table, what prepare answers, what launches do, and their numbers.
//!
//! A layer that changes launches wraps the state: [`Wrapped`] holds the CPU plugin's, and a launch of the layer
//! calls it before or after doing wrong.

use super::{ASYNC, INLINE, Negative, cpu, forward, negative};
use devbay_plugin_api::abi::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub fn all() -> Vec<Negative> {
    let mut all = vec![
        negative!(INLINE, "kernel.table", "an input with a type variable that is not there", |info, _| {
            info.kernels = kernels(|kernel| kernel.input_typevars = List::new(&[9u8]));
        }),
        negative!(INLINE, "kernel.prepare", "plain shapes are invalid", |_, table| {
            table.prepare = Some(nothing_valid);
        }),
        negative!(INLINE, "kernel.prepare.index", "kernels beyond the table", |_, table| {
            table.prepare = Some(any_index);
        }),
        negative!(INLINE, "kernel.prepare.dtype", "unknown dtypes are taken for f32", |_, table| {
            table.prepare = Some(any_dtype);
        }),
        negative!(
            INLINE,
            "kernel.prepare.attribute",
            "unknown kinds of attributes are overlooked",
            |_, table| {
                table.prepare = Some(no_attributes);
            }
        ),
        negative!(INLINE, "kernel.prepare.shape", "outputs are not looked at", |_, table| {
            table.prepare = Some(any_output);
        }),
        negative!(
            INLINE,
            "kernel.prepare.sizes",
            "a result as the plugin knows it, not as the host",
            |_, table| {
                table.prepare = Some(writes_on);
            }
        ),
        negative!(INLINE, "kernel.prepare.threads", "prepare for one thread at a time", |_, table| {
            table.prepare = Some(alone);
        }),
        negative!(INLINE, "kernel.cost", "a cost of one element", |_, table| {
            table.kernel_cost = Some(cheap);
        }),
        negative!(INLINE, "kernel.shape", "a shape function that answers with a scalar", |_, table| {
            table.kernel_shape = Some(scalar);
        }),
        negative!(INLINE, "launch.packed", "packing forgets the last bytes", |_, table| {
            table.pack = Some(packs_less);
        }),
    ];
    macro_rules! launches {
        ($($options:expr, $case:literal, $what:literal, $launch:expr;)*) => {
            $(all.push(negative!($options, $case, $what, |_, table| {
                unsafe extern "C" fn prepare(
                    instance: *mut Instance,
                    desc: *const PrepareDesc,
                    out: *mut Prepared,
                    error: *mut ErrorDetail,
                ) -> Status {
                    wrap(instance, desc, out, error, $launch)
                }
                table.prepare = Some(prepare);
                table.unprepare = Some(unwrap);
                table.pack = Some(pack);
            }));)*
        };
    }
    launches! {
        INLINE, "launch.inputs_kept", "a launch writes into its input", into_input;
        INLINE, "launch.bounds", "a launch writes one element too many", one_too_many;
        INLINE, "launch.workspace", "a launch writes behind its workspace", behind_workspace;
        INLINE, "launch.repeat", "an element that depends on what the output held", depends_on_output;
        INLINE, "launch.in_place", "an input that is read after it is overwritten", not_in_place;
        ASYNC, "launch.order", "a launch that does not wait for its turn", out_of_turn;
        INLINE, "launch.threads", "one scratch for all launches", one_scratch;
        INLINE, "launch.hand_over", "a stream for the thread that prepared", one_thread;
        INLINE, "launch.host_refs", "only buffers, whatever the device says", only_buffers;
    }
    all.push(negative!(INLINE, "launch.slots", "a result that depends on the threads", |_, table| {
        unsafe extern "C" fn prepare(
            instance: *mut Instance,
            desc: *const PrepareDesc,
            out: *mut Prepared,
            error: *mut ErrorDetail,
        ) -> Status {
            wrap(instance, desc, out, error, depends_on_slots)
        }
        table.create = Some(notes_slots);
        table.prepare = Some(prepare);
        table.unprepare = Some(unwrap);
        table.pack = Some(pack);
    }));
    // Each op's numbers are judged by themselves.
    macro_rules! numbers {
        ($($case:literal $op:literal;)*) => {
            $(all.push(negative!(INLINE, $case, "an element off by one part in 200", |_, table| {
                unsafe extern "C" fn prepare(
                    instance: *mut Instance,
                    desc: *const PrepareDesc,
                    out: *mut Prepared,
                    error: *mut ErrorDetail,
                ) -> Status {
                    if op_of(desc) != $op {
                        return wrap(instance, desc, out, error, through);
                    }
                    wrap(instance, desc, out, error, off_by_a_little)
                }
                table.prepare = Some(prepare);
                table.unprepare = Some(unwrap);
                table.pack = Some(pack);
            }));)*
        };
    }
    numbers! {
        "numerics.add" "Add";
        "numerics.sub" "Sub";
        "numerics.mul" "Mul";
        "numerics.div" "Div";
        "numerics.relu" "Relu";
        "numerics.neg" "Neg";
        "numerics.abs" "Abs";
        "numerics.exp" "Exp";
        "numerics.sqrt" "Sqrt";
        "numerics.tanh" "Tanh";
        "numerics.sigmoid" "Sigmoid";
        "numerics.matmul" "MatMul";
        "numerics.softmax" "Softmax";
        "numerics.transpose" "Transpose";
    }
    all
}

/// The CPU plugin's kernels, the first of them changed.
fn kernels(change: impl Fn(&mut KernelInfo)) -> List {
    // SAFETY: the CPU plugin's list.
    let mut kernels = unsafe { read_growable_list::<KernelInfo>(&cpu().kernels) }.expect("it is whole");
    for kernel in &mut kernels {
        kernel.struct_size = size_of::<KernelInfo>() as u32;
    }
    change(&mut kernels[0]);
    List::new(kernels.leak())
}

/// What is asked for, as far as every version has it.
fn whole(desc: *const PrepareDesc) -> PrepareDesc {
    // SAFETY: the host's struct.
    let desc = unsafe { read_struct(desc) }.expect("hosts make whole structs");
    PrepareDesc { struct_size: size_of::<PrepareDesc>() as u32, ..desc }
}

fn op_of(desc: *const PrepareDesc) -> String {
    // SAFETY: the CPU plugin's list.
    let kernels = unsafe { read_growable_list::<KernelInfo>(&cpu().kernels) }.expect("it is whole");
    let kernel = kernels.get(whole(desc).kernel_idx as usize);
    // SAFETY: the CPU plugin's static text.
    kernel.map(|kernel| unsafe { kernel.op.get() }.expect("it is UTF-8").to_owned()).unwrap_or_default()
}

fn tensors(list: &List) -> Vec<Tensor> {
    // SAFETY: the host's list.
    let mut tensors = unsafe { read_growable_list::<Tensor>(list) }.expect("hosts make whole lists");
    for tensor in &mut tensors {
        tensor.struct_size = size_of::<Tensor>() as u32;
    }
    tensors
}

type Instances = *mut Instance;
type Desc = *const PrepareDesc;
type Out = *mut Prepared;
type Error = *mut ErrorDetail;

unsafe extern "C" fn nothing_valid(_: Instances, _: Desc, _: Out, _: Error) -> Status {
    DEVBAY_STATUS_INVALID
}

unsafe extern "C" fn any_index(instance: Instances, desc: Desc, out: Out, error: Error) -> Status {
    let n = cpu().kernels.len as u32;
    let asked = whole(desc);
    if asked.kernel_idx < n {
        return forward!(prepare(instance, desc, out, error));
    }
    // Any kernel that takes the operands.
    for kernel_idx in 0..n {
        let desc = PrepareDesc { kernel_idx, ..asked };
        let status = forward!(prepare(instance, &desc, out, error));
        if status == DEVBAY_STATUS_OK {
            return status;
        }
    }
    DEVBAY_STATUS_INVALID
}

unsafe extern "C" fn any_dtype(instance: Instances, desc: Desc, out: Out, error: Error) -> Status {
    let asked = whole(desc);
    let as_f32 = |list: &List| -> Vec<Tensor> {
        let known = |dtype: DType| dtype.code != 77 && dtype.bits != 33;
        let dtype = DType { code: DEVBAY_DTYPE_FLOAT, bits: 32, lanes: 1 };
        let change = |tensor: Tensor| if known(tensor.dtype) { tensor } else { Tensor { dtype, ..tensor } };
        tensors(list).into_iter().map(change).collect()
    };
    let (inputs, outputs) = (as_f32(&asked.inputs), as_f32(&asked.outputs));
    let desc = PrepareDesc { inputs: List::new(&inputs), outputs: List::new(&outputs), ..asked };
    forward!(prepare(instance, &desc, out, error))
}

unsafe extern "C" fn no_attributes(instance: Instances, desc: Desc, out: Out, error: Error) -> Status {
    let asked = whole(desc);
    // SAFETY: the host's list.
    let attrs = unsafe { read_growable_list::<Attr>(&asked.attrs) }.expect("hosts make whole lists");
    let known: Vec<Attr> =
        attrs.into_iter().filter(|attr| (DEVBAY_ATTR_INT..=DEVBAY_ATTR_GRAPH).contains(&attr.kind)).collect();
    let desc = PrepareDesc { attrs: List::new(&known), ..asked };
    forward!(prepare(instance, &desc, out, error))
}

unsafe extern "C" fn any_output(instance: Instances, desc: Desc, out: Out, error: Error) -> Status {
    static SHAPES: [[i64; 2]; 2] = [[6, 11], [13, 19]];
    let asked = whole(desc);
    let status = forward!(prepare(instance, desc, out, error));
    if status != DEVBAY_STATUS_INVALID {
        return status;
    }
    for shape in &SHAPES {
        let mut outputs = tensors(&asked.outputs);
        for tensor in &mut outputs {
            tensor.rank = 2;
            tensor.shape = shape.as_ptr();
        }
        let desc = PrepareDesc { outputs: List::new(&outputs), ..asked };
        if forward!(prepare(instance, &desc, out, error)) == DEVBAY_STATUS_OK {
            return DEVBAY_STATUS_OK;
        }
    }
    status
}

unsafe extern "C" fn writes_on(instance: Instances, desc: Desc, out: Out, error: Error) -> Status {
    let status = forward!(prepare(instance, desc, out, error));
    if status == DEVBAY_STATUS_OK {
        // SAFETY: beyond an old host's struct, in memory that the test has behind it.
        unsafe { (*out).packs = List::EMPTY };
    }
    status
}

unsafe extern "C" fn alone(instance: Instances, desc: Desc, out: Out, error: Error) -> Status {
    static INSIDE: AtomicU32 = AtomicU32::new(0);
    let others = INSIDE.fetch_add(1, Ordering::SeqCst);
    // Widens the window.
    std::thread::sleep(std::time::Duration::from_micros(50));
    let status =
        if others > 0 { DEVBAY_STATUS_INTERNAL } else { forward!(prepare(instance, desc, out, error)) };
    INSIDE.fetch_sub(1, Ordering::SeqCst);
    status
}

unsafe extern "C" fn cheap(_: Instances, _: Desc, out: *mut KernelCost, _: Error) -> Status {
    let cost = KernelCost { flops: 1, bytes_read: 4, bytes_written: 4, ..KernelCost::empty() };
    // SAFETY: the host's struct.
    unsafe { write_struct(out, &cost) }.map_or(DEVBAY_STATUS_INVALID, |()| DEVBAY_STATUS_OK)
}

unsafe extern "C" fn scalar(
    _: Instances,
    _: Desc,
    _: u32,
    dtype: *mut DType,
    _: *mut i64,
    _: u32,
    rank: *mut u32,
    _: Error,
) -> Status {
    // SAFETY: the host's places.
    unsafe {
        *dtype = DType { code: DEVBAY_DTYPE_FLOAT, bits: 32, lanes: 1 };
        *rank = 0;
    }
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn packs_less(
    instance: Instances,
    prepared: *const Prepared,
    input_idx: u32,
    src: *const Tensor,
    dst: *mut c_void,
    error: Error,
) -> Status {
    let status = forward!(pack(instance, prepared, input_idx, src, dst, error));
    // SAFETY: the plugin's own list.
    let packs = unsafe { read_growable_list::<ConstantPack>(&(*prepared).packs) }.expect("it is whole");
    if status == DEVBAY_STATUS_OK {
        let size = packs[0].size_bytes as usize;
        // SAFETY: the host's memory of that size; the first half of it is lost.
        unsafe { dst.cast::<u8>().write_bytes(0, size / 2) };
    }
    status
}

/// Launches through a layer.
type Through = fn(&Wrapped, *mut Stream, &[BufferRef], *const i64) -> Status;

/// The CPU plugin's prepared kernel, and how the layer launches it.
struct Wrapped {
    inner: Prepared,
    through: Through,
    /// References that the inner launch has.
    n_refs: usize,
    n_inputs: usize,
    /// Whether the layer asked for a workspace where the kernel has none.
    own_workspace: bool,
    /// Slots of the host that was last given to `create`, if the layer looks.
    slots: u32,
    /// A stream of the layer's own, if it wants one.
    own_stream: *mut Stream,
    thread: std::thread::ThreadId,
    /// The first dtype is a float of 32 bits.
    is_f32: bool,
    packs: List,
}

/// Bytes of workspace that a layer asks for.
const WORKSPACE: u64 = 96;

impl Wrapped {
    fn launch(&self, stream: *mut Stream, refs: &[BufferRef], dims: *const i64) -> Status {
        let launch = self.inner.launch.expect("it was prepared");
        // SAFETY: the CPU plugin's state, with as many references as it was prepared for.
        unsafe { launch(self.inner.state.cast_const(), stream, refs.as_ptr(), dims) }
    }

    fn output<'a>(&self, refs: &'a [BufferRef]) -> &'a BufferRef {
        &refs[self.n_inputs]
    }
}

fn wrap(instance: Instances, desc: Desc, out: Out, error: Error, through: Through) -> Status {
    let asked = whole(desc);
    let mut inner = Prepared::empty();
    let status = forward!(prepare(instance, desc, &mut inner, error));
    if status != DEVBAY_STATUS_OK {
        return status;
    }
    let own_workspace =
        inner.workspace_bytes == 0 && std::ptr::fn_addr_eq(through, behind_workspace as Through);
    let mut own_stream = null_mut();
    if std::ptr::fn_addr_eq(through, out_of_turn as Through) {
        forward!(stream_create(asked.device, &StreamDesc::empty(), &mut own_stream, null_mut()));
    }
    let inputs = tensors(&asked.inputs);
    let dtype = inputs[0].dtype;
    let wrapped = Box::new(Wrapped {
        inner,
        through,
        n_inputs: asked.inputs.len as usize,
        n_refs: (asked.inputs.len + asked.outputs.len) as usize
            + usize::from(inner.workspace_bytes > 0 || own_workspace),
        own_workspace,
        slots: SLOTS.load(Ordering::Relaxed),
        own_stream,
        thread: std::thread::current().id(),
        is_f32: dtype.code == DEVBAY_DTYPE_FLOAT && dtype.bits == 32,
        packs: inner.packs,
    });
    let result = Prepared {
        launch: Some(launch_wrapped),
        workspace_bytes: if own_workspace { WORKSPACE } else { inner.workspace_bytes },
        workspace_align: if own_workspace { 32 } else { inner.workspace_align },
        packs: wrapped.packs,
        state: Box::into_raw(wrapped).cast(),
        ..Prepared::empty()
    };
    // SAFETY: the host's struct.
    unsafe { write_struct(out, &result) }.map_or(DEVBAY_STATUS_INVALID, |()| DEVBAY_STATUS_OK)
}

unsafe extern "C" fn unwrap(instance: Instances, prepared: *mut Prepared) {
    // SAFETY: made by `wrap`, given back once.
    let mut wrapped = unsafe { Box::from_raw((*prepared).state.cast::<Wrapped>()) };
    if !wrapped.own_stream.is_null() {
        forward!(stream_destroy(wrapped.own_stream));
    }
    forward!(unprepare(instance, &mut wrapped.inner));
}

unsafe extern "C" fn pack(
    instance: Instances,
    prepared: *const Prepared,
    input_idx: u32,
    src: *const Tensor,
    dst: *mut c_void,
    error: Error,
) -> Status {
    // SAFETY: made by `wrap`.
    let wrapped = unsafe { &*(*prepared).state.cast::<Wrapped>() };
    forward!(pack(instance, &wrapped.inner, input_idx, src, dst, error))
}

unsafe extern "C" fn launch_wrapped(
    state: *const c_void,
    stream: *mut Stream,
    refs: *const BufferRef,
    dims: *const i64,
) -> Status {
    // SAFETY: made by `wrap`.
    let wrapped = unsafe { &*state.cast::<Wrapped>() };
    // SAFETY: the host passes as many references as were asked for.
    let refs = unsafe { std::slice::from_raw_parts(refs, wrapped.n_refs) };
    (wrapped.through)(wrapped, stream, refs, dims)
}

fn through(kernel: &Wrapped, stream: *mut Stream, refs: &[BufferRef], dims: *const i64) -> Status {
    kernel.launch(stream, refs, dims)
}

/// Changes a byte of what an inline launch has written.
fn meddle(addr: u64, change: impl Fn(u8) -> u8) {
    let byte = addr as *mut u8;
    // SAFETY: in an operand of the suite's, or in the guard around one.
    unsafe { byte.write_volatile(change(byte.read_volatile())) };
}

fn into_input(kernel: &Wrapped, stream: *mut Stream, refs: &[BufferRef], dims: *const i64) -> Status {
    let status = kernel.launch(stream, refs, dims);
    // In place, an input is the output.
    if refs[0].addr != kernel.output(refs).addr {
        meddle(refs[0].addr, |byte| byte ^ 0x40);
    }
    status
}

fn one_too_many(kernel: &Wrapped, stream: *mut Stream, refs: &[BufferRef], dims: *const i64) -> Status {
    let status = kernel.launch(stream, refs, dims);
    let output = kernel.output(refs);
    meddle(output.addr + output.length, |byte| !byte);
    status
}

fn behind_workspace(kernel: &Wrapped, stream: *mut Stream, refs: &[BufferRef], dims: *const i64) -> Status {
    let status = kernel.launch(stream, refs, dims);
    if kernel.own_workspace || kernel.inner.workspace_bytes > 0 {
        let workspace = &refs[kernel.n_refs - 1];
        meddle(workspace.addr + workspace.length, |byte| !byte);
    }
    status
}

fn depends_on_output(kernel: &Wrapped, stream: *mut Stream, refs: &[BufferRef], dims: *const i64) -> Status {
    let output = kernel.output(refs);
    // SAFETY: the host's output; undefined content is still content.
    let before = unsafe { (output.addr as *const u8).read_volatile() };
    let status = kernel.launch(stream, refs, dims);
    // The lowest bit of the first element: within every bound, and not the same every time.
    meddle(output.addr, |byte| if before == 85 { byte ^ 1 } else { byte });
    status
}

static SLOTS: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn notes_slots(
    desc: *const CreateDesc,
    out: *mut *mut Instance,
    error: *mut ErrorDetail,
) -> Status {
    // SAFETY: the host's struct and its services; every version has both fields.
    SLOTS.store(unsafe { (*(*desc).host).n_slots }, Ordering::Relaxed);
    forward!(create(desc, out, error))
}

fn depends_on_slots(kernel: &Wrapped, stream: *mut Stream, refs: &[BufferRef], dims: *const i64) -> Status {
    let status = kernel.launch(stream, refs, dims);
    // An odd number is what a plugin that divides by it gets wrong.
    if kernel.slots == 7 {
        meddle(kernel.output(refs).addr, |byte| byte ^ 1);
    }
    status
}

fn not_in_place(kernel: &Wrapped, stream: *mut Stream, refs: &[BufferRef], dims: *const i64) -> Status {
    let output = kernel.output(refs);
    let shares = refs[..kernel.n_inputs].iter().any(|input| input.addr == output.addr);
    let status = kernel.launch(stream, refs, dims);
    if shares { kernel.launch(stream, refs, dims) } else { status }
}

/// Launches on a stream of its own, which is idle: what follows waits for it, and it waits for nothing.
fn out_of_turn(kernel: &Wrapped, stream: *mut Stream, refs: &[BufferRef], dims: *const i64) -> Status {
    static VALUE: AtomicU64 = AtomicU64::new(0);
    let value = VALUE.fetch_add(1, Ordering::Relaxed) + 1;
    let status = kernel.launch(kernel.own_stream, refs, dims);
    forward!(stream_signal(kernel.own_stream, value));
    forward!(stream_wait(stream, kernel.own_stream, value));
    status
}

/// Scratch that all launches share: the first byte of the first input, kept over a window.
fn one_scratch(kernel: &Wrapped, stream: *mut Stream, refs: &[BufferRef], dims: *const i64) -> Status {
    static INSIDE: AtomicU32 = AtomicU32::new(0);
    let others = INSIDE.fetch_add(1, Ordering::SeqCst);
    std::thread::sleep(std::time::Duration::from_micros(100));
    let status = kernel.launch(stream, refs, dims);
    if others > 0 {
        meddle(kernel.output(refs).addr, |byte| byte ^ 1);
    }
    INSIDE.fetch_sub(1, Ordering::SeqCst);
    status
}

fn one_thread(kernel: &Wrapped, stream: *mut Stream, refs: &[BufferRef], dims: *const i64) -> Status {
    if kernel.thread != std::thread::current().id() {
        return DEVBAY_STATUS_FAILED_PRECONDITION;
    }
    kernel.launch(stream, refs, dims)
}

fn only_buffers(kernel: &Wrapped, stream: *mut Stream, refs: &[BufferRef], dims: *const i64) -> Status {
    if refs.iter().any(|reference| reference.buffer.is_null() && reference.length > 0) {
        return DEVBAY_STATUS_INVALID;
    }
    kernel.launch(stream, refs, dims)
}

fn off_by_a_little(kernel: &Wrapped, stream: *mut Stream, refs: &[BufferRef], dims: *const i64) -> Status {
    let status = kernel.launch(stream, refs, dims);
    let output = kernel.output(refs);
    if kernel.is_f32 && output.length >= 4 {
        // The sixth bit from above of the mantissa.
        meddle(output.addr + 2, |byte| byte ^ 1);
    }
    status
}
