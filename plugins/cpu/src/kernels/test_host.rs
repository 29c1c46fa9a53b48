//! For unit tests: runs a kernel through the plugin's C table, as a host does.
//!
//! The host here runs the chunks of parallel loops one after the other in the reverse order, with slots
//! in turn, so that a kernel whose chunks depend on each other fails in every run.

use crate::isa::Isa;
use core::ffi::c_void;
use devbay_plugin_api::abi;
use devbay_plugin_api::abi::*;
use devbay_plugin_api::sdk::Element;
use std::ptr::{null, null_mut};

/// A dense tensor.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Array {
    dtype: DType,
    shape: Vec<i64>,
    bytes: Vec<u8>,
}

impl Array {
    /// A tensor of these elements.
    pub(crate) fn of<T: Element>(shape: &[usize], elements: &[T]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), elements.len());
        Self::raw(T::DTYPE, shape, bytemuck::cast_slice(elements))
    }

    /// A tensor whose content is yet to come.
    pub(crate) fn empty<T: Element>(shape: &[usize]) -> Self {
        let n = shape.iter().product::<usize>() * size_of::<T>();
        Self { dtype: T::DTYPE, shape: shape.iter().map(|&n| n as i64).collect(), bytes: vec![0xa5; n] }
    }

    /// A tensor of an element type that Rust has no number for, by its bytes.
    pub(crate) fn raw(dtype: DType, shape: &[usize], bytes: &[u8]) -> Self {
        Self { dtype, shape: shape.iter().map(|&n| n as i64).collect(), bytes: bytes.to_vec() }
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The elements.
    pub(crate) fn elements<T: Element>(&self) -> Vec<T> {
        assert_eq!(self.dtype, T::DTYPE);
        bytemuck::pod_collect_to_vec(&self.bytes)
    }

    fn tensor(&self, constant: bool) -> Tensor {
        Tensor {
            rank: self.shape.len() as u32,
            dtype: self.dtype,
            flags: if constant { DEVBAY_TENSOR_CONSTANT } else { 0 },
            shape: self.shape.as_ptr(),
            constant: if constant { self.bytes.as_ptr().cast() } else { null() },
            constant_bytes: if constant { self.bytes.len() as u64 } else { 0 },
            ..Tensor::empty()
        }
    }
}

/// An attribute's value.
#[derive(Clone)]
pub(crate) enum Value {
    Int(i64),
    Ints(Vec<i64>),
    Float(f64),
    Floats(Vec<f64>),
    Text(&'static str),
    Texts(Vec<Str>),
}

unsafe extern "C" fn reversed(
    _ctx: *mut c_void,
    n: u64,
    grain: u64,
    body: Option<ChunkFn>,
    arg: *mut c_void,
) -> Status {
    let body = body.expect("a body");
    for chunk in (0..n.div_ceil(grain)).rev() {
        let (begin, end) = (chunk * grain, n.min((chunk + 1) * grain));
        // SAFETY: the kernel's body with its own argument.
        let status = unsafe { body(arg, begin, end, (chunk % 3) as u32) };
        if status != DEVBAY_STATUS_OK {
            return status;
        }
    }
    DEVBAY_STATUS_OK
}

/// State of a test host.
struct TestHost {
    table: &'static PluginTable,
    info: &'static PluginInfo,
    instance: *mut Instance,
    device: *mut Device,
    stream: *mut abi::Stream,
}

impl TestHost {
    fn open(isa: Isa) -> Self {
        // SAFETY: the entry returns static data of this plugin's.
        let info = unsafe { &*crate::devbay_entry::query() };
        // SAFETY: the table is static data of this plugin's.
        let table = unsafe { &*info.table };
        let host: &'static HostApi =
            Box::leak(Box::new(HostApi { n_slots: 3, parallel_for: Some(reversed), ..HostApi::empty() }));
        let option = |key, value| KeyValue { key: Str::new(key), value: Str::new(value) };
        let options = [option("isa", isa.name()), option("dft", "exact")];
        let desc = CreateDesc {
            abi_minor: info.abi_minor_max,
            host,
            options: list(&options),
            ..CreateDesc::empty()
        };
        let (mut instance, mut devices, mut stream) = (null_mut(), List::EMPTY, null_mut());
        // SAFETY: the table's function, with structs that outlive the call.
        let status = unsafe { table.create.expect("create")(&desc, &mut instance, null_mut()) };
        assert_eq!(status, DEVBAY_STATUS_OK);
        // SAFETY: the instance was just made, and the places outlive the call.
        let status = unsafe { table.devices.expect("devices")(instance, &mut devices, null_mut()) };
        assert_eq!(status, DEVBAY_STATUS_OK);
        // SAFETY: the list has one device.
        let device = unsafe { (*devices.ptr.cast::<DeviceInfo>()).handle };
        let desc = StreamDesc::empty();
        let create = table.stream_create.expect("stream_create");
        // SAFETY: the device is the instance's, and the places outlive the call.
        let status = unsafe { create(device, &desc, &mut stream, null_mut()) };
        assert_eq!(status, DEVBAY_STATUS_OK);
        Self { table, info, instance, device, stream }
    }

    /// The first kernel of an op that takes so many inputs, and a dtype as the first.
    fn kernel(&self, op: &str, first: DType, n_inputs: usize) -> (u32, KernelInfo) {
        // SAFETY: the plugin's own static list.
        let kernels = unsafe { read_growable_list::<KernelInfo>(&self.info.kernels) }.expect("list");
        let takes = |info: &KernelInfo| {
            if (info.n_inputs_max as usize) < n_inputs {
                return false;
            }
            // SAFETY: the plugin's own static lists.
            let typevars = unsafe { read_growable_list::<TypeVar>(&info.typevars) }.expect("list");
            // SAFETY: the kernel's own static list.
            let of = unsafe { read_list::<u8>(&info.input_typevars, "uint8_t") }.expect("list");
            let typevar = &typevars[of[0] as usize];
            // SAFETY: the dtypes of the kernel's own type variable are static.
            unsafe { core::slice::from_raw_parts(typevar.dtypes, typevar.n_dtypes as usize) }.contains(&first)
        };
        // SAFETY: the kernel's own static text.
        let named = |info: &KernelInfo| unsafe { info.op.get() } == Ok(op);
        let idx = kernels.iter().position(|info| named(info) && takes(info));
        let idx = idx.unwrap_or_else(|| panic!("no kernel for {op} of {first:?}"));
        (idx as u32, kernels[idx])
    }
}

impl Drop for TestHost {
    fn drop(&mut self) {
        // SAFETY: made by `open`, destroyed once, the stream before its instance.
        unsafe { self.table.stream_destroy.expect("stream_destroy")(self.stream) };
        // SAFETY: `open` made the instance, which is destroyed once; its stream is gone.
        unsafe { self.table.destroy.expect("destroy")(self.instance) };
    }
}

/// Prepares and launches a kernel; `outputs` are given as [`Array::empty`]. Inputs that have to be host
/// values are constants. For a DATA_SHAPE kernel the true extents come as one more output.
pub(crate) fn run(
    isa: Isa,
    op: &str,
    attrs: &[(&'static str, Value)],
    inputs: &[Option<Array>],
    outputs: &[Option<Array>],
) -> Result<Vec<Option<Array>>, String> {
    run_with_constants(isa, op, attrs, inputs, outputs, 0)
}

/// As [`run`]; the inputs whose bits are set in `constants` are constants too, and come packed as the kernel asks.
pub(crate) fn run_with_constants(
    isa: Isa,
    op: &str,
    attrs: &[(&'static str, Value)],
    inputs: &[Option<Array>],
    outputs: &[Option<Array>],
    constants: u64,
) -> Result<Vec<Option<Array>>, String> {
    run_permitted(isa, DEVBAY_NUMERICS_STRICT, op, attrs, inputs, outputs, constants)
}

/// As [`run_with_constants`], with the deviations that are permitted.
pub(crate) fn run_permitted(
    isa: Isa,
    numerics: u64,
    op: &str,
    attrs: &[(&'static str, Value)],
    inputs: &[Option<Array>],
    outputs: &[Option<Array>],
    constants: u64,
) -> Result<Vec<Option<Array>>, String> {
    let host = TestHost::open(isa);
    let first = inputs[0].as_ref().expect("a first input").dtype;
    let (kernel_idx, info) = host.kernel(op, first, inputs.len());
    let attrs: Vec<Attr> = attrs
        .iter()
        .map(|(name, value)| {
            let mut attr = Attr { name: Str::new(name), ..Attr::empty() };
            match value {
                Value::Int(i) => (attr.kind, attr.i) = (DEVBAY_ATTR_INT, *i),
                Value::Float(f) => (attr.kind, attr.f) = (DEVBAY_ATTR_FLOAT, *f),
                Value::Ints(ints) => (attr.kind, attr.list) = (DEVBAY_ATTR_INTS, list(ints)),
                Value::Floats(floats) => (attr.kind, attr.list) = (DEVBAY_ATTR_FLOATS, list(floats)),
                Value::Texts(texts) => (attr.kind, attr.list) = (DEVBAY_ATTR_STRINGS, list(texts)),
                Value::Text(text) => (attr.kind, attr.s) = (DEVBAY_ATTR_STRING, Str::new(text)),
            }
            attr
        })
        .collect();
    let absent = Tensor { flags: DEVBAY_TENSOR_ABSENT, ..Tensor::empty() };
    let is_host_value = |i: usize| (info.host_value_inputs | constants) >> i & 1 == 1;
    let tensor = |i: usize, array: &Option<Array>, constant: bool| {
        array.as_ref().map_or(absent, |a| a.tensor(constant && is_host_value(i)))
    };
    let of_inputs: Vec<Tensor> = inputs.iter().enumerate().map(|(i, a)| tensor(i, a, true)).collect();
    let of_outputs: Vec<Tensor> = outputs.iter().enumerate().map(|(i, a)| tensor(i, a, false)).collect();
    let desc = PrepareDesc {
        kernel_idx,
        device: host.device,
        attrs: list(&attrs),
        inputs: list(&of_inputs),
        outputs: list(&of_outputs),
        numerics,
        ..PrepareDesc::empty()
    };
    let mut prepared = abi::Prepared::empty();
    let mut text = [0u8; 500];
    let mut detail = ErrorDetail {
        text: text.as_mut_ptr().cast(),
        text_capacity: text.len() as u64,
        ..ErrorDetail::empty()
    };
    let prepare = host.table.prepare.expect("prepare");
    // SAFETY: the table's function, with structs that outlive the call.
    if unsafe { prepare(host.instance, &desc, &mut prepared, &mut detail) } != DEVBAY_STATUS_OK {
        return Err(String::from_utf8_lossy(&text[..detail.text_len.min(500) as usize]).into());
    }

    // SAFETY: the list of the prepared kernel.
    let packs = unsafe { read_growable_list::<ConstantPack>(&prepared.packs) }.expect("list");
    let mut packed: Vec<Vec<[u64; 8]>> = Vec::new();
    for pack in &packs {
        let mut memory = vec![[0u64; 8]; (pack.size_bytes as usize).div_ceil(64) + 1];
        let source = &of_inputs[pack.input_idx as usize];
        let to = (memory.as_mut_ptr() as usize).next_multiple_of(64) as *mut c_void;
        let run = host.table.pack.expect("pack");
        // SAFETY: the table's function, with zeroed memory of the size that was asked for.
        let status = unsafe { run(host.instance, &prepared, pack.input_idx, source, to, &mut detail) };
        assert_eq!(status, DEVBAY_STATUS_OK);
        packed.push(memory);
    }
    let mut outputs = outputs.to_vec();
    let data_shape = info.flags & DEVBAY_KERNEL_DATA_SHAPE != 0;
    let ranks: usize = outputs.iter().flatten().map(|a| a.shape.len()).sum();
    if data_shape {
        outputs.push(Some(Array::empty::<i64>(&[ranks])));
    }
    let mut workspace = vec![f64::NAN; (prepared.workspace_bytes as usize + 64) / 8 + 8];
    let mut refs: Vec<BufferRef> = Vec::new();
    let none = BufferRef { buffer: null_mut(), addr: 0, offset: 0, length: 0 };
    for array in inputs {
        refs.push(array.as_ref().map_or(none, |a| BufferRef {
            addr: a.bytes.as_ptr() as u64,
            length: a.bytes.len() as u64,
            ..none
        }));
    }
    for (pack, memory) in packs.iter().zip(&packed) {
        let addr = (memory.as_ptr() as u64).next_multiple_of(64);
        refs[pack.input_idx as usize] = BufferRef { addr, length: pack.size_bytes, ..none };
    }
    for array in &mut outputs {
        refs.push(array.as_mut().map_or(none, |a| BufferRef {
            addr: a.bytes.as_mut_ptr() as u64,
            length: a.bytes.len() as u64,
            ..none
        }));
    }
    if prepared.workspace_bytes > 0 {
        refs.push(BufferRef {
            addr: (workspace.as_mut_ptr() as u64).next_multiple_of(64),
            length: prepared.workspace_bytes,
            ..none
        });
    }
    let launch = prepared.launch.expect("launch");
    // SAFETY: the state that `prepare` returned, with the references that it fixed.
    let status = unsafe { launch(prepared.state, host.stream, refs.as_ptr(), null()) };
    let unprepare = host.table.unprepare.expect("unprepare");
    // SAFETY: `prepare` made the state, which is given back once.
    unsafe { unprepare(host.instance, &mut prepared) };
    if status != DEVBAY_STATUS_OK {
        let error = host.table.stream_error.expect("stream_error");
        // SAFETY: the table's function, with a struct that outlives the call.
        unsafe { error(host.stream, &mut detail) };
        return Err(String::from_utf8_lossy(&text[..detail.text_len.min(500) as usize]).into());
    }
    Ok(outputs)
}

fn list<T>(items: &[T]) -> List {
    List { ptr: items.as_ptr().cast(), len: items.len() as u64, stride: size_of::<T>() as u64 }
}
