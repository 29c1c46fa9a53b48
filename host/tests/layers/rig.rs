//! A host that calls the raw table, rightly or not as a test wants it, and a check of what the layer says to it.
#![allow(
    dead_code,
    unused_macros,
    unused_imports,
    reason = "each test program that includes this uses a part of it"
)]

use crate::toy;
use devbay_host::internals::layers::validation::{self, Settings, Side, Wrapped};
use devbay_plugin_api::abi::*;
use std::ffi::c_void;
use std::ptr::null_mut;

/// Calls a function of a table: `call!(rig.table, copy(stream, &desc))`.
macro_rules! call {
    ($table:expr, $slot:ident($($argument:expr),* $(,)?)) => {{
        let function = $table.$slot.expect("the toy has every function");
        // SAFETY: the layer follows no handle, and the other arguments are the test's own or NULL.
        #[allow(unused_unsafe, reason = "some arguments have blocks of their own")]
        unsafe { function($($argument),*) }
    }};
}
pub(crate) use call;

/// A plugin behind the layer, with an instance.
pub struct Rig {
    pub wrapped: Wrapped,
    pub table: PluginTable,
    pub instance: *mut Instance,
    pub devices: Vec<DeviceInfo>,
    pub host: &'static HostApi,
}

/// A change to the toy.
pub type Edit = fn(&mut PluginInfo, &mut PluginTable);

unsafe extern "C" fn log(_: *mut c_void, _: u32, _: Str) {}

unsafe extern "C" fn parallel_for(
    _: *mut c_void,
    n: u64,
    grain: u64,
    body: Option<ChunkFn>,
    arg: *mut c_void,
) -> Status {
    let grain = grain.max(1);
    let body = body.expect("the layer has a body");
    let mut first = DEVBAY_STATUS_OK;
    for begin in (0..n).step_by(grain as usize) {
        // SAFETY: the body takes its own argument on any thread until the loop returns (B2).
        let status = unsafe { body(arg, begin, (begin + grain).min(n), 0) };
        first = if first == DEVBAY_STATUS_OK { status } else { first };
    }
    first
}

unsafe extern "C" fn config(_: *mut c_void, _: Str, _: *mut Str) -> Status {
    DEVBAY_STATUS_NOT_FOUND
}

unsafe extern "C" fn trace(_: *mut c_void, _: *const TraceEvent) {}

unsafe extern "C" fn extension(ctx: *mut c_void, _: u32, _: u32) -> *const c_void {
    ctx
}

unsafe extern "C" fn now_ns(_: *mut c_void) -> u64 {
    7
}

/// Services that are right.
pub const HOST: HostApi = HostApi {
    struct_size: size_of::<HostApi>() as u32,
    n_slots: 2,
    ctx: std::ptr::without_provenance_mut(usize::MAX),
    log: Some(log),
    parallel_for: Some(parallel_for),
    config: Some(config),
    trace: Some(trace),
    get_extension: Some(extension),
    now_ns: Some(now_ns),
};

/// The toy with a change, for good.
pub fn info(edit: Edit) -> &'static PluginInfo {
    let (mut info, mut table) = (toy::info(), toy::TABLE);
    edit(&mut info, &mut table);
    info.table = Box::leak(Box::new(table));
    Box::leak(Box::new(info))
}

/// The layer in front of it.
pub fn wrap(edit: Edit, settings: &Settings) -> Wrapped {
    // SAFETY: data that is leaked, of this header's types.
    unsafe { validation::wrap_info(info(edit), settings) }.expect("the toy can be wrapped")
}

impl Rig {
    /// With the toy as it is.
    pub fn plain() -> Self {
        Self::of(|_, _| ())
    }

    /// With a change.
    pub fn of(edit: Edit) -> Self {
        Self::with(edit, HOST, &Settings::default())
    }

    /// With services that may be wrong.
    pub fn with(edit: Edit, host: HostApi, settings: &Settings) -> Self {
        let mut rig = Self::bare(edit, host, settings);
        rig.instance = rig.create();
        rig.devices = rig.list();
        rig
    }

    /// Without an instance.
    pub fn bare(edit: Edit, host: HostApi, settings: &Settings) -> Self {
        let wrapped = wrap(edit, settings);
        // SAFETY: the layer's table is alive as long as `wrapped`.
        let table = unsafe { *wrapped.info().table };
        let host: &'static HostApi = Box::leak(Box::new(host));
        Self { wrapped, table, instance: null_mut(), devices: Vec::new(), host }
    }

    /// An instance; NULL if `create` fails.
    pub fn create(&self) -> *mut Instance {
        let desc = CreateDesc { abi_minor: DEVBAY_ABI_MINOR, host: self.host, ..CreateDesc::empty() };
        let mut out = null_mut();
        let _ = call!(self.table, create(&desc, &mut out, null_mut()));
        out
    }

    /// Devices of the instance.
    pub fn list(&self) -> Vec<DeviceInfo> {
        let mut list = List::EMPTY;
        if self.instance.is_null() {
            return Vec::new();
        }
        call!(self.table, devices(self.instance, &mut list, null_mut()));
        // SAFETY: the plugin keeps the list as long as the instance.
        unsafe { read_growable_list(&list) }.unwrap_or_default()
    }

    /// Handle of a device.
    pub fn device(&self, i: usize) -> *mut Device {
        self.devices[i].handle
    }

    /// Returns the layer's findings, in order: rule, side, function.
    pub fn found(&self) -> Vec<(&'static str, Side, &'static str)> {
        let violations = self.wrapped.report().violations();
        violations.iter().map(|v| (v.rule, v.by, v.function)).collect()
    }

    pub fn alloc_in(&self, device: usize, space_idx: u32, size_bytes: u64) -> Allocation {
        let tensor = tensor(&[], &[]);
        let desc = AllocDesc { space_idx, size_bytes, align: 64, tensor: &tensor, ..AllocDesc::empty() };
        let mut out = Allocation::empty();
        let _ = call!(self.table, buffer_alloc(self.device(device), &desc, &mut out, null_mut()));
        out
    }

    pub fn alloc(&self, device: usize, size_bytes: u64) -> Allocation {
        self.alloc_in(device, 0, size_bytes)
    }

    pub fn stream(&self, device: usize, label: &str) -> *mut Stream {
        let desc = StreamDesc { label: Str::new(label), ..StreamDesc::empty() };
        let mut out = null_mut();
        let _ = call!(self.table, stream_create(self.device(device), &desc, &mut out, null_mut()));
        out
    }

    /// Copies host memory to the beginning of a buffer.
    pub fn fill(&self, stream: *mut Stream, to: &Allocation, size_bytes: u64) -> Status {
        self.copy(stream, &to_buffer(part(to, 0, size_bytes)))
    }

    pub fn copy(&self, stream: *mut Stream, desc: &CopyDesc) -> Status {
        call!(self.table, copy(stream, desc))
    }

    pub fn signal(&self, stream: *mut Stream, value: u64) -> Status {
        call!(self.table, stream_signal(stream, value))
    }

    /// The value that a stream has reached, and its status.
    pub fn reached(&self, stream: *mut Stream) -> (u64, Status) {
        let mut value = 0;
        let status = call!(self.table, stream_reached(stream, &mut value));
        (value, status)
    }

    /// Prepares a kernel on operands of these types.
    pub fn prepare(&self, kernel: u32, device: usize, inputs: &[Tensor], outputs: &[Tensor]) -> Prepared {
        self.prepare_with(&PrepareDesc {
            kernel_idx: kernel,
            device: self.device(device),
            inputs: List::new(inputs),
            outputs: List::new(outputs),
            ..PrepareDesc::empty()
        })
    }

    pub fn prepare_with(&self, desc: &PrepareDesc) -> Prepared {
        let mut out = Prepared::empty();
        let _ = call!(self.table, prepare(self.instance, desc, &mut out, null_mut()));
        out
    }

    /// The sum of two times four numbers, on a device.
    pub fn sum(&self, device: usize) -> Prepared {
        let four = tensor(&[4], &[]);
        self.prepare(toy::SUM, device, &[four, four], &[four])
    }

    pub fn launch(&self, kernel: &Prepared, stream: *mut Stream, refs: &[BufferRef]) -> Status {
        let launch = kernel.launch.expect("a launch function");
        // SAFETY: the layer's function; the references are those of the kernel.
        unsafe { launch(kernel.state, stream, refs.as_ptr(), null_mut()) }
    }
}

/// A tensor of 32-bit numbers; constant, if there is any content.
pub fn tensor(shape: &'static [i64], content: &'static [f32]) -> Tensor {
    let is_constant = !content.is_empty();
    Tensor {
        rank: shape.len() as u32,
        dtype: DType { code: DEVBAY_DTYPE_FLOAT, bits: 32, lanes: 1 },
        flags: if is_constant { DEVBAY_TENSOR_CONSTANT } else { 0 },
        shape: shape.as_ptr(),
        constant: if is_constant { content.as_ptr().cast() } else { null_mut() },
        constant_bytes: size_of_val(content) as u64,
        ..Tensor::empty()
    }
}

/// A reference to a part of a buffer.
pub fn part(of: &Allocation, offset: u64, length: u64) -> BufferRef {
    BufferRef { buffer: of.buffer, addr: of.base + offset, offset, length }
}

/// A copy of as many bytes of host memory as the reference has.
pub fn to_buffer(dst: BufferRef) -> CopyDesc {
    static BYTES: [u8; 4096] = [0; 4096];
    let host_src = BYTES.as_ptr().cast();
    CopyDesc { kind: DEVBAY_COPY_HOST_TO_BUFFER, dst, host_src, size_bytes: dst.length, ..CopyDesc::empty() }
}

/// A copy from buffer to buffer.
pub fn between(src: BufferRef, dst: BufferRef) -> CopyDesc {
    let size_bytes = src.length;
    CopyDesc { kind: DEVBAY_COPY_BUFFER_TO_BUFFER, src, dst, size_bytes, ..CopyDesc::empty() }
}

/// A wrong host or plugin: the rule that it breaks, the function in which that is seen, and what it does.
pub struct Case {
    pub rule: &'static str,
    pub function: &'static str,
    pub what: &'static str,
    pub run: fn() -> Rig,
}

/// Runs cases, each of which breaks one rule and no other.
pub fn check(side: Side, cases: &[Case]) {
    let mut wrong = Vec::new();
    for case in cases {
        let found = (case.run)().wrapped.report().violations();
        let right = found.len() == 1
            && (found[0].rule, found[0].by, found[0].function) == (case.rule, side, case.function);
        if !right {
            let expected = format!("{} by the {side} in {}", case.rule, case.function);
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            wrong.push(format!("{}: expected {expected}, found {found:#?}", case.what));
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// A case: `case!("B9", destroy, "twice", rig => { .. })` on the toy as it is, or with `of |info, table| { .. }` on a
/// changed one.
macro_rules! case {
    ($rule:literal, $function:ident, $what:literal, $rig:ident => $body:block) => {
        case!($rule, $function, $what, of |_, _| (), $rig => $body)
    };
    ($rule:literal, $function:ident, $what:literal, of $edit:expr, $rig:ident => $body:block) => {
        $crate::rig::Case {
            rule: $rule,
            function: stringify!($function),
            what: $what,
            run: || {
                #[allow(unused_mut, reason = "some cases make another instance")]
                let mut $rig = $crate::rig::Rig::of($edit);
                $body
                $rig
            },
        }
    };
}
pub(crate) use case;
