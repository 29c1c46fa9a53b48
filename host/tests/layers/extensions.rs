//! Extensions behind the layer: the toy's, hosts that are wrong about them, and plugins that are.

use crate::rig::{Case, Edit, Rig, between, call, case, check, part, to_buffer};
use crate::toy::{self, nothing};
use devbay_host::internals::layers::validation::Side;
use devbay_plugin_api::abi::*;
use std::ffi::c_void;
use std::ptr::{from_ref, null, null_mut};

/// Returns an invented handle, which is never followed.
fn made<T>() -> *mut T {
    Box::into_raw(Box::new(0u64)).cast()
}

unsafe extern "C" fn record_begin(_: *mut Stream, _: *const RecordDesc) -> Status {
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn record_end(_: *mut Stream, out: *mut *mut Recording) -> Status {
    // SAFETY: `out` is the test's place for one handle, alive for the call.
    unsafe { *out = made() };
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn replay(_: *mut Stream, _: *const ReplayDesc) -> Status {
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn recording_free(_: *mut Recording) {}

const REPLAY: ReplayTable = ReplayTable {
    struct_size: size_of::<ReplayTable>() as u32,
    reserved: 0,
    record_begin: Some(record_begin),
    record_end: Some(record_end),
    replay: Some(replay),
    recording_free: Some(recording_free),
};

unsafe extern "C" fn dlpack_device(
    _: *mut Device,
    _: u32,
    out_type: *mut i32,
    out_id: *mut i32,
    _: *mut ErrorDetail,
) -> Status {
    // SAFETY: both are the test's places for one number, alive for the call.
    unsafe { (*out_type, *out_id) = (1, 0) };
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn buffer_import(
    _: *mut Device,
    desc: *const ImportDesc,
    out: *mut Allocation,
    _: *mut ErrorDetail,
) -> Status {
    // SAFETY: the test passes whole structs, alive for the call.
    unsafe {
        let base = (*(*desc).native).value;
        let found =
            Allocation { base, size_bytes: (*desc).size_bytes, buffer: made(), ..Allocation::empty() };
        let _ = write_struct(out, &found);
    }
    DEVBAY_STATUS_OK
}

fn native(out: *mut NativeHandle, kind: u32) -> Status {
    // SAFETY: B4: `out` is NULL or the test's struct, of the size that it says and alive for the call.
    let _ = unsafe { write_struct(out, &NativeHandle { kind, value: 4096, ..NativeHandle::empty() }) };
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn buffer_export(_: *mut Buffer, out: *mut NativeHandle, _: *mut ErrorDetail) -> Status {
    native(out, DEVBAY_NATIVE_ADDRESS)
}

unsafe extern "C" fn stream_import(
    device: *mut Device,
    _: *const NativeHandle,
    out: *mut *mut Stream,
    error: *mut ErrorDetail,
) -> Status {
    // SAFETY: the arguments are those that the host passed for the toy's function.
    unsafe { toy::stream_create(device, &StreamDesc::empty(), out, error) }
}

unsafe extern "C" fn stream_export(_: *mut Stream, out: *mut NativeHandle, _: *mut ErrorDetail) -> Status {
    native(out, DEVBAY_NATIVE_CUDA_STREAM)
}

const INTEROP: InteropTable = InteropTable {
    struct_size: size_of::<InteropTable>() as u32,
    reserved: 0,
    dlpack_device: Some(dlpack_device),
    buffer_import: Some(buffer_import),
    buffer_export: Some(buffer_export),
    stream_import: Some(stream_import),
    stream_export: Some(stream_export),
};

unsafe extern "C" fn stream_fail(_: *mut Stream, _: Status) -> Status {
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn device_lose(_: *mut Device) -> Status {
    DEVBAY_STATUS_OK
}

const FAULT: FaultTable = FaultTable {
    struct_size: size_of::<FaultTable>() as u32,
    reserved: 0,
    stream_fail: Some(stream_fail),
    device_lose: Some(device_lose),
};

unsafe extern "C" fn formats(_: *mut Device, out: *mut List, _: *mut ErrorDetail) -> Status {
    static FORMATS: [Str; 1] = [Str::new("toy")];
    // SAFETY: `out` is the test's place for one list, alive for the call.
    unsafe { *out = List::new(&FORMATS) };
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn compile(
    _: *mut Device,
    _: *const CompileDesc,
    out: *mut *mut Executable,
    _: *mut ErrorDetail,
) -> Status {
    // SAFETY: `out` is the test's place for one handle, alive for the call.
    unsafe { *out = made() };
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn compile_ahead(
    _: *mut Instance,
    _: *const CompileDesc,
    out: *mut *mut Executable,
    _: *mut ErrorDetail,
) -> Status {
    // SAFETY: `out` is the test's place for one handle, alive for the call.
    unsafe { *out = made() };
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn executable_info(
    _: *mut Executable,
    out: *mut ExecutableInfo,
    _: *mut ErrorDetail,
) -> Status {
    // SAFETY: B4: `out` is NULL or the test's struct, of the size that it says and alive for the call.
    let _ = unsafe { write_struct(out, &ExecutableInfo::empty()) };
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn execute(_: *mut Executable, _: *mut Stream, desc: *const ExecuteDesc) -> Status {
    // SAFETY: the test passes a whole struct with a place for each result, alive for the call.
    unsafe {
        for i in 0..(*desc).n_results as usize {
            *(*desc).results.add(i) = made();
        }
    }
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn executable_free(_: *mut Executable) {}

unsafe extern "C" fn claim(
    _: *mut Device,
    _: *const GraphView,
    _: *mut NodeClaim,
    _: u64,
    _: *mut ErrorDetail,
) -> Status {
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn blob(_: *mut Executable, out: *mut List, _: *mut ErrorDetail) -> Status {
    // SAFETY: `out` is the test's place for one list, alive for the call.
    unsafe { *out = List::EMPTY };
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn validate(
    _: *mut Device,
    _: *const c_void,
    _: u64,
    out: *mut u32,
    _: *mut ErrorDetail,
) -> Status {
    // SAFETY: `out` is the test's place for one number, alive for the call.
    unsafe { *out = DEVBAY_BLOB_USABLE };
    DEVBAY_STATUS_OK
}

const COMPILE: CompileTable = CompileTable {
    struct_size: size_of::<CompileTable>() as u32,
    reserved: 0,
    formats: Some(formats),
    compile: Some(compile),
    executable_info: Some(executable_info),
    execute: Some(execute),
    executable_free: Some(executable_free),
    claim: Some(claim),
    blob: Some(blob),
    validate: Some(validate),
    load: Some(compile),
    compile_ahead: Some(compile_ahead),
};

/// The toy's extensions.
pub unsafe extern "C" fn get_extension(_: *mut Instance, id: u32, _: u32) -> *const c_void {
    static TABLES: (CompileTable, InteropTable, ReplayTable, FaultTable) = (COMPILE, INTEROP, REPLAY, FAULT);
    match id {
        extension::COMPILE => from_ref(&TABLES.0).cast(),
        extension::INTEROP => from_ref(&TABLES.1).cast(),
        extension::REPLAY => from_ref(&TABLES.2).cast(),
        extension::FAULT => from_ref(&TABLES.3).cast(),
        // It knows more than the layer does.
        _ => from_ref(&TABLES.0).cast(),
    }
}

/// The toy with its extensions.
const WITH: Edit = |_, table| table.get_extension = Some(get_extension);

/// Returns the layer's table of an extension.
fn shown<T: Growable>(rig: &Rig, id: u32) -> T {
    let table = call!(rig.table, get_extension(rig.instance, id, 1));
    assert!(!table.is_null(), "the layer does not hand on extension {id}");
    // SAFETY: the layer keeps its table of this extension as long as the instance.
    unsafe { read_struct(table.cast::<T>()) }.expect("a table that is whole")
}

fn replays(rig: &Rig) -> ReplayTable {
    shown(rig, extension::REPLAY)
}

fn begin(rig: &Rig, stream: *mut Stream, bindings: &[BufferRef]) -> Status {
    let desc = RecordDesc { bindings: List::new(bindings), ..RecordDesc::empty() };
    call!(replays(rig), record_begin(stream, &desc))
}

fn end(rig: &Rig, stream: *mut Stream) -> *mut Recording {
    let mut recording = null_mut();
    call!(replays(rig), record_end(stream, &mut recording));
    recording
}

fn again(rig: &Rig, stream: *mut Stream, recording: *mut Recording, bindings: &[BufferRef]) -> Status {
    let desc = ReplayDesc { recording, bindings: List::new(bindings), ..ReplayDesc::empty() };
    call!(replays(rig), replay(stream, &desc))
}

/// A stream of device 0, and a recording of a launch and a copy with two bindings.
fn recorded(rig: &Rig) -> (*mut Stream, *mut Recording, Allocation) {
    let (stream, buffer) = (rig.stream(0, ""), rig.alloc(0, 128));
    assert_eq!(begin(rig, stream, &[part(&buffer, 0, 32), part(&buffer, 32, 32)]), DEVBAY_STATUS_OK);
    let refs = [part(&buffer, 0, 16), part(&buffer, 16, 16), part(&buffer, 32, 16)];
    assert_eq!(rig.launch(&rig.sum(0), stream, &refs), DEVBAY_STATUS_OK);
    let copy = between(part(&buffer, 32, 16), part(&buffer, 64, 16));
    assert_eq!(rig.copy(stream, &copy), DEVBAY_STATUS_OK);
    (stream, end(rig, stream), buffer)
}

#[test]
fn recordings_that_are_right_are_found_no_fault_with() {
    let rig = Rig::of(WITH);
    let (stream, recording, buffer) = recorded(&rig);
    let (other, elsewhere) = (rig.stream(0, ""), rig.alloc(0, 256));
    assert_eq!(again(&rig, stream, recording, &[]), DEVBAY_STATUS_OK);
    assert_eq!(
        again(&rig, other, recording, &[part(&elsewhere, 0, 32), part(&buffer, 32, 32)]),
        DEVBAY_STATUS_OK
    );
    for stream in [stream, other] {
        assert_eq!(rig.signal(stream, 1), DEVBAY_STATUS_OK);
        assert_eq!(rig.reached(stream), (1, DEVBAY_STATUS_OK));
    }
    call!(replays(&rig), recording_free(recording));
    call!(rig.table, buffer_free(buffer.buffer));
    call!(rig.table, buffer_free(elsewhere.buffer));
    assert_eq!(rig.found(), []);
}

#[test]
fn a_recording_that_fails_leaves_the_stream_as_it_was() {
    unsafe extern "C" fn refuses(_: *mut Stream, _: *const CopyDesc) -> Status {
        DEVBAY_STATUS_UNSUPPORTED
    }
    let rig = Rig::of(|_, table| {
        table.get_extension = Some(get_extension);
        table.copy = Some(refuses);
    });
    let (stream, buffer) = (rig.stream(0, ""), rig.alloc(0, 128));
    assert_eq!(begin(&rig, stream, &[]), DEVBAY_STATUS_OK);
    let copy = between(part(&buffer, 32, 16), part(&buffer, 64, 16));
    assert_eq!(rig.copy(stream, &copy), DEVBAY_STATUS_UNSUPPORTED);
    end(&rig, stream);
    let refs = [part(&buffer, 0, 16), part(&buffer, 16, 16), part(&buffer, 32, 16)];
    assert_eq!(rig.launch(&rig.sum(0), stream, &refs), DEVBAY_STATUS_OK);
    assert_eq!(rig.found(), []);
}

#[test]
fn an_extension_lacks_what_the_plugins_does_and_no_unknown_one_is_shown() {
    unsafe extern "C" fn without_export(i: *mut Instance, id: u32, revision: u32) -> *const c_void {
        static TABLE: InteropTable = InteropTable { stream_export: None, ..INTEROP };
        match id {
            extension::INTEROP => from_ref(&TABLE).cast(),
            extension::COMPILE => null(),
            // SAFETY: the arguments are those that the host passed for the toy's function.
            id => unsafe { get_extension(i, id, revision) },
        }
    }
    let rig = Rig::of(|_, table| table.get_extension = Some(without_export));
    let interop: InteropTable = shown(&rig, extension::INTEROP);
    assert!(interop.stream_export.is_none() && interop.stream_import.is_some());
    for (id, revision) in [(extension::COMPILE, 1), (extension::REPLAY, 2), (DEVBAY_EXTENSION_MAP, 1)] {
        assert!(call!(rig.table, get_extension(rig.instance, id, revision)).is_null(), "{id}");
    }
    assert_eq!(rig.found(), []);
}

#[test]
fn hosts() {
    check(Side::Host, &host_cases());
}

fn host_cases() -> Vec<Case> {
    vec![
        case!("B22", record_begin, "on a stream that records", of WITH, rig => {
            let stream = rig.stream(0, "");
            begin(&rig, stream, &[]);
            assert_eq!(begin(&rig, stream, &[]), DEVBAY_STATUS_INVALID);
        }),
        case!("B22", record_begin, "bindings that overlap", of WITH, rig => {
            let buffer = rig.alloc(0, 64);
            begin(&rig, rig.stream(0, ""), &[part(&buffer, 0, 32), part(&buffer, 16, 32)]);
        }),
        case!("B10", record_begin, "a binding beyond its buffer", of WITH, rig => {
            let buffer = rig.alloc(0, 64);
            begin(&rig, rig.stream(0, ""), &[part(&buffer, 32, 64)]);
        }),
        case!("B4", record_begin, "a description that is too small", of WITH, rig => {
            let desc = RecordDesc { struct_size: 4, ..RecordDesc::empty() };
            call!(replays(&rig), record_begin(rig.stream(0, ""), &desc));
        }),
        case!("B22", record_end, "on a stream that does not record", of WITH, rig => { end(&rig, rig.stream(0, "")); }),
        case!("B22", copy, "from the host on a stream that records", of WITH, rig => {
            let (stream, buffer) = (rig.stream(0, ""), rig.alloc(0, 64));
            begin(&rig, stream, &[]);
            assert_eq!(rig.copy(stream, &to_buffer(part(&buffer, 0, 16))), DEVBAY_STATUS_INVALID);
        }),
        case!("B22", stream_signal, "on a stream that records", of WITH, rig => {
            let stream = rig.stream(0, "");
            begin(&rig, stream, &[]);
            assert_eq!(rig.signal(stream, 1), DEVBAY_STATUS_INVALID);
        }),
        case!("B22", stream_wait, "on a stream that records", of WITH, rig => {
            let (stream, other) = (rig.stream(0, ""), rig.stream(0, ""));
            rig.signal(other, 1);
            begin(&rig, stream, &[]);
            call!(rig.table, stream_wait(stream, other, 1));
        }),
        case!("B22", replay, "on a stream that records", of WITH, rig => {
            let (stream, recording, _) = recorded(&rig);
            begin(&rig, stream, &[]);
            again(&rig, stream, recording, &[]);
        }),
        case!("B22", replay, "on another device", of WITH, rig => {
            let (_, recording, _) = recorded(&rig);
            assert_eq!(again(&rig, rig.stream(1, ""), recording, &[]), DEVBAY_STATUS_INVALID);
        }),
        case!("B22", replay, "one binding of two", of WITH, rig => {
            let (stream, recording, buffer) = recorded(&rig);
            again(&rig, stream, recording, &[part(&buffer, 0, 32)]);
        }),
        case!("B22", replay, "a binding of fewer bytes", of WITH, rig => {
            let (stream, recording, buffer) = recorded(&rig);
            again(&rig, stream, recording, &[part(&buffer, 0, 32), part(&buffer, 32, 16)]);
        }),
        case!("B9", replay, "of a recording that was freed", of WITH, rig => {
            let (stream, recording, _) = recorded(&rig);
            call!(replays(&rig), recording_free(recording));
            again(&rig, stream, recording, &[]);
        }),
        case!("B9", recording_free, "while a replay is in flight", of WITH, rig => {
            let (stream, recording, _) = recorded(&rig);
            again(&rig, stream, recording, &[]);
            call!(replays(&rig), recording_free(recording));
        }),
        case!("B9", buffer_free, "a buffer of a recording that is alive", of WITH, rig => {
            let (_, _, buffer) = recorded(&rig);
            call!(rig.table, buffer_free(buffer.buffer));
        }),
        case!("B9", buffer_free, "bound memory while the replay is in flight", of WITH, rig => {
            let (stream, recording, buffer) = recorded(&rig);
            let bound = rig.alloc(0, 64);
            again(&rig, stream, recording, &[part(&bound, 0, 32), part(&buffer, 32, 32)]);
            call!(rig.table, buffer_free(bound.buffer));
        }),
        case!("B9", destroy, "a recording is left", of WITH, rig => {
            let stream = rig.stream(0, "");
            begin(&rig, stream, &[]);
            end(&rig, stream);
            call!(rig.table, stream_destroy(stream));
            call!(rig.table, destroy(rig.instance));
        }),
        case!("B4", buffer_import, "no handle", of WITH, rig => {
            let interop: InteropTable = shown(&rig, extension::INTEROP);
            let desc = ImportDesc { size_bytes: 16, ..ImportDesc::empty() };
            call!(interop, buffer_import(rig.device(0), &desc, &mut Allocation::empty(), nothing()));
        }),
        case!("B4", dlpack_device, "no place for the type", of WITH, rig => {
            let interop: InteropTable = shown(&rig, extension::INTEROP);
            call!(interop, dlpack_device(rig.device(0), 0, nothing(), &mut 0, nothing()));
        }),
        case!("B9", destroy, "an imported stream is left", of WITH, rig => {
            let interop: InteropTable = shown(&rig, extension::INTEROP);
            let native = NativeHandle { kind: DEVBAY_NATIVE_CUDA_STREAM, ..NativeHandle::empty() };
            call!(interop, stream_import(rig.device(0), &native, &mut null_mut(), nothing()));
            call!(rig.table, destroy(rig.instance));
        }),
        case!("B9", buffer_export, "a buffer that was freed", of WITH, rig => {
            let interop: InteropTable = shown(&rig, extension::INTEROP);
            let buffer = rig.alloc(0, 64);
            call!(rig.table, buffer_free(buffer.buffer));
            call!(interop, buffer_export(buffer.buffer, &mut NativeHandle::empty(), nothing()));
        }),
        case!("B22", stream_fail, "on a stream that records", of WITH, rig => {
            let (stream, fault) = (rig.stream(0, ""), shown::<FaultTable>(&rig, extension::FAULT));
            begin(&rig, stream, &[]);
            call!(fault, stream_fail(stream, DEVBAY_STATUS_ABORTED));
        }),
        case!("B9", execute, "a program that was freed", of WITH, rig => {
            let program = program(&rig, 0);
            call!(programs(&rig), executable_free(program));
            run(&rig, program, rig.stream(0, ""), &[]);
        }),
        case!("B23", execute, "on another device", of WITH, rig => {
            run(&rig, program(&rig, 0), rig.stream(1, ""), &[]);
        }),
        case!("B10", execute, "an input beyond its buffer", of WITH, rig => {
            let buffer = rig.alloc(0, 64);
            run(&rig, program(&rig, 0), rig.stream(0, ""), &[part(&buffer, 32, 64)]);
        }),
        case!("B9", executable_free, "while a run is in flight", of WITH, rig => {
            let program = program(&rig, 0);
            run(&rig, program, rig.stream(0, ""), &[]);
            call!(programs(&rig), executable_free(program));
        }),
        case!("B9", buffer_free, "a result while its run is in flight is none", of WITH, rig => {
            let result = run(&rig, program(&rig, 0), rig.stream(0, ""), &[]);
            call!(rig.table, buffer_free(result));
            // The plugin's own order holds it: only the second time is wrong.
            call!(rig.table, buffer_free(result));
        }),
        case!("B23", claim, "places for other nodes", of WITH, rig => {
            let graph = GraphView::empty();
            call!(programs(&rig), claim(rig.device(0), &graph, &mut NodeClaim::default(), 1, nothing()));
        }),
        case!("B9", destroy, "a program is left", of WITH, rig => {
            program(&rig, 0);
            call!(rig.table, destroy(rig.instance));
        }),
    ]
}

fn programs(rig: &Rig) -> CompileTable {
    shown(rig, extension::COMPILE)
}

fn program(rig: &Rig, device: usize) -> *mut Executable {
    let mut program = null_mut();
    let desc = CompileDesc::empty();
    let status = call!(programs(rig), compile(rig.device(device), &desc, &mut program, nothing()));
    assert_eq!(status, DEVBAY_STATUS_OK);
    program
}

fn run(rig: &Rig, program: *mut Executable, stream: *mut Stream, inputs: &[BufferRef]) -> *mut Buffer {
    let mut result = null_mut();
    let desc =
        ExecuteDesc { inputs: List::new(inputs), results: &mut result, n_results: 1, ..ExecuteDesc::empty() };
    call!(programs(rig), execute(program, stream, &desc));
    result
}

/// A toy one of whose extensions has another function.
macro_rules! with {
    ($id:expr, $table:ident $of:ident { $slot:ident: $function:expr }) => {
        |_: &mut PluginInfo, table: &mut PluginTable| {
            unsafe extern "C" fn lookup(i: *mut Instance, id: u32, revision: u32) -> *const c_void {
                static TABLE: $table = $table { $slot: Some($function), ..$of };
                // SAFETY: the arguments are those that the host passed for the toy's function.
                if id == $id { from_ref(&TABLE).cast() } else { unsafe { get_extension(i, id, revision) } }
            }
            table.get_extension = Some(lookup);
        }
    };
}

unsafe extern "C" fn no_recording(_: *mut Stream, _: *mut *mut Recording) -> Status {
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn replay_anyway(_: *mut Stream, _: *const ReplayDesc) -> Status {
    77
}

unsafe extern "C" fn no_kind(_: *mut Buffer, out: *mut NativeHandle, _: *mut ErrorDetail) -> Status {
    native(out, 0)
}

unsafe extern "C" fn too_little(
    device: *mut Device,
    desc: *const ImportDesc,
    out: *mut Allocation,
    error: *mut ErrorDetail,
) -> Status {
    // SAFETY: the arguments are those that the host passed for the toy's function, and `out` is the test's struct.
    unsafe {
        let status = buffer_import(device, desc, out, error);
        (*out).size_bytes -= 1;
        status
    }
}

unsafe extern "C" fn no_program(
    _: *mut Device,
    _: *const CompileDesc,
    _: *mut *mut Executable,
    _: *mut ErrorDetail,
) -> Status {
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn broken_formats(_: *mut Device, out: *mut List, _: *mut ErrorDetail) -> Status {
    // SAFETY: `out` is the test's place for one list, alive for the call.
    unsafe { *out = List { ptr: null(), len: 3, stride: 16 } };
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn small_table(_: *mut Instance, _: u32, _: u32) -> *const c_void {
    static TABLE: ReplayTable = ReplayTable { struct_size: 12, ..REPLAY };
    from_ref(&TABLE).cast()
}

#[test]
fn plugins() {
    let cases = vec![
        case!("B6", get_extension, "a table that is too small",
        of |_, table| table.get_extension = Some(small_table), rig => {
            assert!(call!(rig.table, get_extension(rig.instance, extension::REPLAY, 1)).is_null());
        }),
        case!("B9", record_end, "no recording",
        of with!(extension::REPLAY, ReplayTable REPLAY { record_end: no_recording }), rig => {
            let stream = rig.stream(0, "");
            begin(&rig, stream, &[]);
            end(&rig, stream);
        }),
        case!("B18", replay, "a status of nobody's",
        of with!(extension::REPLAY, ReplayTable REPLAY { replay: replay_anyway }), rig => {
            let (stream, recording, _) = recorded(&rig);
            again(&rig, stream, recording, &[]);
        }),
        case!("B15", buffer_export, "a handle of no kind",
        of with!(extension::INTEROP, InteropTable INTEROP { buffer_export: no_kind }), rig => {
            let interop: InteropTable = shown(&rig, extension::INTEROP);
            let buffer = rig.alloc(0, 64);
            call!(interop, buffer_export(buffer.buffer, &mut NativeHandle::empty(), nothing()));
        }),
        case!("B11", buffer_import, "fewer bytes than were asked for",
        of with!(extension::INTEROP, InteropTable INTEROP { buffer_import: too_little }), rig => {
            let interop: InteropTable = shown(&rig, extension::INTEROP);
            let native = NativeHandle { kind: DEVBAY_NATIVE_ADDRESS, value: 4096, ..NativeHandle::empty() };
            let desc = ImportDesc { native: &native, size_bytes: 64, ..ImportDesc::empty() };
            call!(interop, buffer_import(rig.device(0), &desc, &mut Allocation::empty(), nothing()));
        }),
        case!("B9", compile, "no program",
        of with!(extension::COMPILE, CompileTable COMPILE { compile: no_program }), rig => {
            program(&rig, 0);
        }),
        case!("B5", formats, "a list at NULL",
        of with!(extension::COMPILE, CompileTable COMPILE { formats: broken_formats }), rig => {
            let mut list = List::EMPTY;
            call!(programs(&rig), formats(rig.device(0), &mut list, nothing()));
        }),
    ];
    check(Side::Plugin, &cases);
}
