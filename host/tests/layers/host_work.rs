//! Hosts that are wrong about memory, copies, kernels and launches.

use crate::rig::{Case, HOST, Rig, between, call, case, check, part, tensor, to_buffer};
use crate::toy::{self, nothing};
use devbay_host::internals::layers::validation::{Settings, Side};
use devbay_plugin_api::abi::*;
use std::ffi::c_void;
use std::ptr::null_mut;

#[test]
fn copies() {
    check(Side::Host, &copy_cases());
}

fn copy_cases() -> Vec<Case> {
    vec![
        case!("B4", copy, "a description that is too small", rig => {
            let desc = CopyDesc { struct_size: 16, ..CopyDesc::empty() };
            rig.copy(rig.stream(0, ""), &desc);
        }),
        case!("B5", copy, "a kind that the header does not have", rig => {
            let desc = CopyDesc { kind: 9, ..to_buffer(part(&rig.alloc(0, 64), 0, 8)) };
            rig.copy(rig.stream(0, ""), &desc);
        }),
        case!("B9", copy, "a buffer that was freed", rig => {
            let (buffer, stream) = (rig.alloc(0, 64), rig.stream(0, ""));
            call!(rig.table, buffer_free(buffer.buffer));
            assert_eq!(rig.fill(stream, &buffer, 8), DEVBAY_STATUS_INVALID);
        }),
        case!("B9", copy, "a stream that is gone", rig => {
            let (buffer, stream) = (rig.alloc(0, 64), rig.stream(0, ""));
            call!(rig.table, stream_destroy(stream));
            rig.fill(stream, &buffer, 8);
        }),
        case!("B10", copy, "to no buffer", rig => {
            rig.copy(rig.stream(0, ""), &to_buffer(BufferRef { length: 8, ..BufferRef::ABSENT }));
        }),
        case!("B9", copy, "to no buffer, of a device that takes host memory", rig => {
            let desc = to_buffer(BufferRef::ABSENT);
            rig.copy(rig.stream(2, ""), &CopyDesc { size_bytes: 8, ..desc });
        }),
        case!("B10", copy, "host memory as a buffer, of a device that takes none", rig => {
            rig.copy(rig.stream(0, ""), &to_buffer(BufferRef { addr: 4096, length: 8, ..BufferRef::ABSENT }));
        }),
        case!("B10", copy, "behind the end", rig => {
            let buffer = rig.alloc(0, 64);
            assert_eq!(rig.copy(rig.stream(0, ""), &to_buffer(part(&buffer, 32, 36))), DEVBAY_STATUS_INVALID);
        }),
        case!("B10", copy, "an end beyond all numbers", rig => {
            let buffer = rig.alloc(0, 64);
            let wide = BufferRef { length: u64::MAX - 3, ..part(&buffer, 8, 0) };
            rig.copy(rig.stream(0, ""), &to_buffer(wide));
        }),
        case!("B10", copy, "more than the reference has", rig => {
            let buffer = rig.alloc(0, 64);
            let desc = CopyDesc { size_bytes: 16, ..to_buffer(part(&buffer, 0, 8)) };
            rig.copy(rig.stream(0, ""), &desc);
        }),
        case!("B10", copy, "an address that is another's", rig => {
            let buffer = rig.alloc(0, 64);
            let wrong = BufferRef { addr: buffer.base, ..part(&buffer, 8, 8) };
            rig.copy(rig.stream(0, ""), &to_buffer(wrong));
        }),
        case!("B10", copy, "a buffer of another device", rig => {
            rig.fill(rig.stream(1, ""), &rig.alloc(0, 64), 8);
        }),
        case!("B10", copy, "ranges that overlap", rig => {
            let buffer = rig.alloc(0, 64);
            rig.copy(rig.stream(0, ""), &between(part(&buffer, 0, 16), part(&buffer, 8, 16)));
        }),
        case!("B24", copy, "from NULL", rig => {
            let buffer = rig.alloc(0, 64);
            let desc = CopyDesc { host_src: null_mut(), ..to_buffer(part(&buffer, 0, 8)) };
            rig.copy(rig.stream(0, ""), &desc);
        }),
        case!("B24", copy, "to NULL", rig => {
            let src = part(&rig.alloc(0, 64), 0, 8);
            let kind = DEVBAY_COPY_BUFFER_TO_HOST;
            rig.copy(rig.stream(0, ""), &CopyDesc { kind, src, size_bytes: 8, ..CopyDesc::empty() });
        }),
        case!("B11", copy, "from where copies do not begin", rig => {
            rig.copy(rig.stream(0, ""), &to_buffer(part(&rig.alloc(0, 64), 2, 8)));
        }),
        case!("B11", copy, "a last granule that the buffer does not have whole", rig => {
            rig.copy(rig.stream(0, ""), &to_buffer(part(&rig.alloc(0, 63), 60, 3)));
        }),
        case!("B11", copy, "into the middle of what cannot be divided", rig => {
            rig.copy(rig.stream(0, ""), &to_buffer(part(&rig.alloc_in(0, 1, 64), 8, 8)));
        }),
        case!("B11", copy, "a second time into what is written once", rig => {
            let (buffer, stream) = (rig.alloc_in(0, 1, 64), rig.stream(0, ""));
            assert_eq!(rig.fill(stream, &buffer, 64), DEVBAY_STATUS_OK);
            rig.fill(stream, &buffer, 64);
        }),
    ]
}

#[test]
fn kernels() {
    check(Side::Host, &kernel_cases());
}

/// A request for a kernel with one input and one output, changed.
fn ask(rig: &Rig, kernel_idx: u32, change: impl FnOnce(&mut PrepareDesc, &mut Tensor)) -> Prepared {
    let mut input = tensor(&[4], &[]);
    let output = [tensor(&[4], &[])];
    let device = rig.device(0);
    let mut desc = PrepareDesc { kernel_idx, device, outputs: List::new(&output), ..PrepareDesc::empty() };
    change(&mut desc, &mut input);
    if desc.inputs.len == 0 {
        desc.inputs = List { ptr: (&raw const input).cast(), len: 1, stride: size_of::<Tensor>() as u64 };
    }
    rig.prepare_with(&desc)
}

fn kernel_cases() -> Vec<Case> {
    vec![
        case!("B20", prepare, "a kernel that is not there", rig => { ask(&rig, 77, |_, _| ()); }),
        case!("B20", prepare, "a type that the kernel does not take", rig => {
            ask(&rig, toy::SUM, |_, input| input.dtype.bits = 64);
        }),
        case!("B20", prepare, "too many inputs", rig => {
            let four = tensor(&[4], &[]);
            rig.prepare(toy::SUM, 0, &[four; 5], &[four]);
        }),
        case!("B20", prepare, "too few inputs", rig => {
            let four = tensor(&[4], &[]);
            rig.prepare(toy::WANTS_VALUE, 0, &[four], &[four]);
        }),
        case!("B20", prepare, "extents that nobody knows", rig => {
            let unknown = tensor(&[-1], &[]);
            rig.prepare(toy::SUM, 0, &[unknown], &[unknown]);
        }),
        case!("B20", prepare, "strides that the kernel does not take", rig => {
            ask(&rig, toy::SUM, |_, input| input.strides = [2i64].as_ptr());
        }),
        case!("B20", prepare, "a value that is not given", rig => {
            let four = tensor(&[4], &[]);
            rig.prepare(toy::WANTS_VALUE, 0, &[four, four], &[four]);
        }),
        case!("B20", prepare, "a constant that is too short", rig => {
            let four = tensor(&[4], &[]);
            rig.prepare(toy::WANTS_VALUE, 0, &[four, tensor(&[4], &[1.0, 2.0])], &[four]);
        }),
        case!("B5", prepare, "a shape at NULL", rig => {
            ask(&rig, toy::SUM, |_, input| input.shape = null_mut());
        }),
        case!("B5", prepare, "a broken list of operands", rig => {
            ask(&rig, toy::SUM, |desc, _| desc.inputs = List { ptr: null_mut(), len: 3, stride: 8 });
        }),
        case!("B5", prepare, "a broken list of attributes", rig => {
            ask(&rig, toy::SUM, |desc, _| desc.attrs = List { ptr: null_mut(), len: 3, stride: 8 });
        }),
        case!("B5", prepare, "an attribute's name that is no text", rig => {
            let attr = [Attr { name: Str { ptr: c"\xff".as_ptr(), len: 1 }, ..Attr::empty() }];
            ask(&rig, toy::SUM, |desc, _| desc.attrs = List::new(&attr));
        }),
        case!("B4", prepare, "a request that is too small", rig => {
            ask(&rig, toy::SUM, |desc, _| desc.struct_size = 24);
        }),
        case!("B10", prepare, "a device of another instance", rig => {
            rig.instance = rig.create();
            ask(&rig, toy::SUM, |_, _| ());
        }),
        case!("B9", prepare, "a device of nobody's", rig => {
            ask(&rig, toy::SUM, |desc, _| desc.device = null_mut());
        }),
        case!("B11", prepare, "more references than the device takes", rig => {
            let four = tensor(&[4], &[]);
            rig.prepare(toy::MANY, 0, &[four; 7], &[four]);
        }),
        case!("B20", kernel_cost, "a kernel that is not there", rig => {
            let desc = PrepareDesc { kernel_idx: 77, device: rig.device(0), ..PrepareDesc::empty() };
            call!(rig.table, kernel_cost(rig.instance, &desc, &mut KernelCost::empty(), nothing()));
        }),
        case!("B20", kernel_shape, "a kernel that is not there", rig => {
            let desc = PrepareDesc { kernel_idx: 77, device: rig.device(0), ..PrepareDesc::empty() };
            let (mut dtype, mut shape, mut rank) = (DType { code: 0, bits: 0, lanes: 0 }, [0i64; 4], 0);
            let place = shape.as_mut_ptr();
            call!(rig.table, kernel_shape(rig.instance, &desc, 0, &mut dtype, place, 4, &mut rank, nothing()));
        }),
        case!("B21", pack, "an input that was not asked for", rig => {
            let (kernel, src) = (packs(&rig), tensor(&[4], &[1.0; 4]));
            let mut bytes = Packed([0; 64]);
            let dst = bytes.0.as_mut_ptr().cast();
            let status = call!(rig.table, pack(rig.instance, &kernel, 0, &src, dst, nothing()));
            assert_eq!(status, DEVBAY_STATUS_INVALID);
        }),
        case!("B21", pack, "to where it is not aligned", rig => {
            let (kernel, src) = (packs(&rig), tensor(&[4], &[1.0; 4]));
            let mut bytes = Packed([0; 64]);
            let dst: *mut c_void = bytes.0[8..].as_mut_ptr().cast();
            call!(rig.table, pack(rig.instance, &kernel, 1, &src, dst, nothing()));
        }),
        case!("B9", pack, "a kernel that is gone", rig => {
            let (mut kernel, src) = (packs(&rig), tensor(&[4], &[1.0; 4]));
            let mut bytes = Packed([0; 64]);
            call!(rig.table, unprepare(rig.instance, &mut kernel));
            let dst = bytes.0.as_mut_ptr().cast();
            call!(rig.table, pack(rig.instance, &kernel, 1, &src, dst, nothing()));
        }),
    ]
}

#[repr(align(64))]
struct Packed([u8; 64]);

/// A kernel that wants its second input packed, and a workspace.
fn packs(rig: &Rig) -> Prepared {
    let four = tensor(&[4], &[]);
    rig.prepare(toy::PACKS, 0, &[four, tensor(&[4], &[1.0; 4])], &[four])
}

#[test]
fn launches() {
    check(Side::Host, &launch_cases());
}

fn launch_cases() -> Vec<Case> {
    vec![
        case!("B9", launch, "a kernel that is gone", rig => {
            let (buffer, stream, mut sum) = (rig.alloc(0, 64), rig.stream(0, ""), rig.sum(0));
            call!(rig.table, unprepare(rig.instance, &mut sum));
            let refs = [part(&buffer, 0, 16), part(&buffer, 16, 16), part(&buffer, 32, 16)];
            assert_eq!(rig.launch(&sum, stream, &refs), DEVBAY_STATUS_INVALID);
        }),
        case!("B9", launch, "a stream that is gone", rig => {
            let (buffer, stream, sum) = (rig.alloc(0, 64), rig.stream(0, ""), rig.sum(0));
            call!(rig.table, stream_destroy(stream));
            rig.launch(&sum, stream, &[part(&buffer, 0, 16), part(&buffer, 16, 16), part(&buffer, 32, 16)]);
        }),
        case!("B9", launch, "a buffer that was freed", rig => {
            let (buffer, gone) = (rig.alloc(0, 64), rig.alloc(0, 64));
            call!(rig.table, buffer_free(gone.buffer));
            let refs = [part(&buffer, 0, 16), part(&gone, 16, 16), part(&buffer, 32, 16)];
            assert_eq!(rig.launch(&rig.sum(0), rig.stream(0, ""), &refs), DEVBAY_STATUS_INVALID);
        }),
        case!("B21", launch, "on another device's stream", rig => {
            let buffer = rig.alloc(1, 64);
            let refs = [part(&buffer, 0, 16), part(&buffer, 16, 16), part(&buffer, 32, 16)];
            rig.launch(&rig.sum(0), rig.stream(1, ""), &refs);
        }),
        case!("B12", launch, "on a stream for copies", rig => {
            let (buffer, mut stream) = (rig.alloc(0, 64), null_mut());
            let desc = StreamDesc { kind: DEVBAY_STREAM_COPY, ..StreamDesc::empty() };
            let created = call!(rig.table, stream_create(rig.device(0), &desc, &mut stream, null_mut()));
            assert_eq!(created, DEVBAY_STATUS_OK);
            let refs = [part(&buffer, 0, 16), part(&buffer, 16, 16), part(&buffer, 32, 16)];
            assert_eq!(rig.launch(&rig.sum(0), stream, &refs), DEVBAY_STATUS_INVALID);
        }),
        case!("B10", launch, "too few bytes", rig => {
            let buffer = rig.alloc(0, 64);
            let refs = [part(&buffer, 0, 16), part(&buffer, 16, 8), part(&buffer, 32, 16)];
            rig.launch(&rig.sum(0), rig.stream(0, ""), &refs);
        }),
        case!("B10", launch, "an operand that is not optional", rig => {
            let buffer = rig.alloc(0, 64);
            let refs = [part(&buffer, 0, 16), BufferRef::ABSENT, part(&buffer, 32, 16)];
            rig.launch(&rig.sum(0), rig.stream(0, ""), &refs);
        }),
        case!("B10", launch, "an operand that was to be absent", rig => {
            let four = tensor(&[4], &[]);
            let absent = Tensor { flags: DEVBAY_TENSOR_ABSENT, ..Tensor::empty() };
            let kernel = rig.prepare(toy::SUM, 0, &[four, absent, four], &[four]);
            let (buffer, stream) = (rig.alloc(0, 64), rig.stream(0, ""));
            let [a, b, c] = [0, 16, 32].map(|offset| part(&buffer, offset, 16));
            assert_eq!(rig.launch(&kernel, stream, &[a, BufferRef::ABSENT, b, c]), DEVBAY_STATUS_OK);
            rig.launch(&kernel, stream, &[a, b, b, c]);
        }),
        case!("B10", launch, "an end behind the buffer's", rig => {
            let buffer = rig.alloc(0, 64);
            let refs = [part(&buffer, 0, 16), part(&buffer, 16, 16), part(&buffer, 64, 16)];
            rig.launch(&rig.sum(0), rig.stream(0, ""), &refs);
        }),
        case!("B10", launch, "an address that is another's", rig => {
            let buffer = rig.alloc(0, 64);
            let wrong = BufferRef { addr: buffer.base, ..part(&buffer, 16, 16) };
            let refs = [part(&buffer, 0, 16), wrong, part(&buffer, 32, 16)];
            rig.launch(&rig.sum(0), rig.stream(0, ""), &refs);
        }),
        case!("B10", launch, "host memory, of a device that takes none", rig => {
            let buffer = rig.alloc(0, 64);
            let host = BufferRef { addr: 4096, length: 16, ..BufferRef::ABSENT };
            rig.launch(&rig.sum(0), rig.stream(0, ""), &[part(&buffer, 0, 16), host, part(&buffer, 32, 16)]);
        }),
        case!("B10", launch, "host memory that is not aligned to its elements", rig => {
            let host = |addr: u64| BufferRef { addr, length: 16, ..BufferRef::ABSENT };
            rig.launch(&rig.sum(2), rig.stream(2, ""), &[host(4096), host(4098), host(8192)]);
        }),
        case!("B11", launch, "from where operands do not begin", rig => {
            let buffer = rig.alloc(0, 64);
            let refs = [part(&buffer, 0, 16), part(&buffer, 20, 16), part(&buffer, 48, 16)];
            rig.launch(&rig.sum(0), rig.stream(0, ""), &refs);
        }),
        case!("B11", launch, "a larger operand than the space binds", rig => {
            let buffer = rig.alloc(0, 4096);
            let refs = [part(&buffer, 0, 2048), part(&buffer, 2048, 16), part(&buffer, 3072, 16)];
            rig.launch(&rig.sum(0), rig.stream(0, ""), &refs);
        }),
        case!("B11", launch, "an output where copies alone write", rig => {
            let (buffer, once) = (rig.alloc(0, 64), rig.alloc_in(0, 1, 64));
            let refs = [part(&buffer, 0, 16), part(&buffer, 16, 16), part(&once, 0, 16)];
            rig.launch(&rig.sum(0), rig.stream(0, ""), &refs);
        }),
        case!("B21", launch, "an output upon the second input", rig => {
            let buffer = rig.alloc(0, 64);
            let refs = [part(&buffer, 0, 16), part(&buffer, 16, 16), part(&buffer, 16, 16)];
            rig.launch(&rig.sum(0), rig.stream(0, ""), &refs);
        }),
        case!("B21", launch, "an output upon half of the first input", rig => {
            let buffer = rig.alloc(0, 64);
            let refs = [part(&buffer, 0, 32), part(&buffer, 32, 16), part(&buffer, 16, 16)];
            rig.launch(&rig.sum(0), rig.stream(0, ""), &refs);
        }),
        case!("B21", launch, "extents at launch, whose place is reserved", rig => {
            let (sum, stream, buffer) = (rig.sum(0), rig.stream(0, ""), rig.alloc(0, 64));
            let refs = [part(&buffer, 0, 16), part(&buffer, 16, 16), part(&buffer, 32, 16)];
            let launch = sum.launch.expect("a launch function");
            // SAFETY: the layer's function, which refuses the extents.
            let status = unsafe { launch(sum.state, stream, refs.as_ptr(), [4i64; 3].as_ptr()) };
            assert_eq!(status, DEVBAY_STATUS_INVALID);
        }),
        case!("B4", launch, "no references", rig => {
            let (sum, stream) = (rig.sum(0), rig.stream(0, ""));
            let launch = sum.launch.expect("a launch function");
            // SAFETY: the layer's function, which refuses the NULL.
            unsafe { launch(sum.state, stream, null_mut(), null_mut()) };
        }),
        case!("B10", launch, "a packed constant and a workspace that are too short", rig => {
            let (kernel, buffer, stream) = (packs(&rig), rig.alloc(0, 512), rig.stream(0, ""));
            let [x, packed, y] = [(0, 16), (64, toy::PACKED_BYTES), (128, 16)].map(|(at, n)| part(&buffer, at, n));
            let right = [x, packed, y, part(&buffer, 256, 128)];
            assert_eq!(rig.launch(&kernel, stream, &right), DEVBAY_STATUS_OK);
            let unpacked = part(&buffer, 64, 16);
            assert_eq!(rig.launch(&kernel, stream, &[x, unpacked, y, right[3]]), DEVBAY_STATUS_INVALID);
            assert_eq!(rig.launch(&kernel, stream, &[x, packed, y, part(&buffer, 256, 64)]), DEVBAY_STATUS_INVALID);
            // Both are counted, under the words of the first.
            assert_eq!(rig.wrapped.report().violations()[0].count, 2);
        }),
    ]
}

/// A host that is only watched is told what the plugin says.
#[test]
fn a_host_that_is_watched_is_not_stopped() {
    let settings = Settings { only_watch: true, ..Settings::default() };
    let rig = Rig::with(|_, _| (), HOST, &settings);
    let buffer = rig.alloc(0, 64);
    assert_eq!(rig.copy(rig.stream(0, ""), &to_buffer(part(&buffer, 32, 64))), DEVBAY_STATUS_OK);
    assert_eq!(rig.found(), [("B10", Side::Host, "copy")]);
}
