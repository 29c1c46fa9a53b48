//! Plugins whose results are wrong: what they make, write and say.

use crate::rig::{Rig, call, case, check, tensor};
use crate::toy::{self, nothing};
use devbay_host::internals::layers::validation::Side;
use devbay_plugin_api::abi::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A function that does as the toy, and then `change`s something: `wrong!(devices(instance, out, error) |status| ..)`.
macro_rules! wrong {
    ($slot:ident($($argument:ident: $type:ty),*) => |$status:ident| $change:expr) => {{
        unsafe extern "C" fn wrong($($argument: $type),*) -> Status {
            // SAFETY: the arguments are those that the host passed for the toy's function.
            let $status = unsafe { toy::$slot($($argument),*) };
            // SAFETY: the places written are the host's, or were made here.
            #[allow(unused_unsafe, reason = "some changes write nothing")]
            let change: Status = unsafe { let _ = $status; $change };
            change
        }
        Some(wrong as unsafe extern "C" fn($($type),*) -> Status)
    }};
}
pub(crate) use wrong;

macro_rules! wrong_alloc {
    (|$desc:ident, $out:ident, $error:ident, $status:ident| $change:expr) => {
        wrong!(buffer_alloc(
            _device: *mut Device, $desc: *const AllocDesc, $out: *mut Allocation, $error: *mut ErrorDetail
        ) => |$status| $change)
    };
}

macro_rules! wrong_prepare {
    (|$out:ident, $error:ident, $status:ident| $change:expr) => {
        wrong!(prepare(
            _instance: *mut Instance, _desc: *const PrepareDesc, $out: *mut Prepared, $error: *mut ErrorDetail
        ) => |$status| $change)
    };
}

/// The plugin's list of devices with a change.
unsafe fn change_devices(out: *mut List, change: impl FnOnce(&mut Vec<DeviceInfo>)) -> Status {
    // SAFETY: the list that the toy just wrote.
    let mut infos = unsafe { read_growable_list::<DeviceInfo>(&*out) }.unwrap();
    change(&mut infos);
    // SAFETY: `out` is the test's place for one list; the list is leaked.
    unsafe { *out = List::new(infos.leak()) };
    DEVBAY_STATUS_OK
}

macro_rules! wrong_devices {
    (|$infos:ident| $change:expr) => {
        wrong!(devices(_instance: *mut Instance, out: *mut List, _error: *mut ErrorDetail) => |status| {
            let _ = status;
            change_devices(out, |$infos| { $change; })
        })
    };
}

const ODD_SPACE: MemorySpace = MemorySpace {
    struct_size: size_of::<MemorySpace>() as u32,
    kind: DEVBAY_SPACE_DEVICE,
    flags: 0,
    bytes_total: 0,
    alloc_max: 0,
    alloc_align: 3,
    bind_align: 0,
    bind_max: 0,
    copy_align: 0,
    copy_granule: 0,
};

static DATA: AtomicUsize = AtomicUsize::new(0);

#[test]
fn instances_and_devices() {
    static LISTED: AtomicUsize = AtomicUsize::new(0);
    let cases = [
        case!("B9", create, "success without an instance", of |_, table| {
            table.create = wrong!(
                create(_d: *const CreateDesc, out: *mut *mut Instance, _e: *mut ErrorDetail) => |status| {
                    *out = null_mut();
                    status
                }
            );
        }, rig => { assert!(rig.instance.is_null()); }),
        case!("B9", create, "failure with an instance", of |_, table| {
            table.create = wrong!(
                create(_d: *const CreateDesc, _o: *mut *mut Instance, _e: *mut ErrorDetail) => |status| {
                    DEVBAY_STATUS_UNAVAILABLE
                }
            );
        }, rig => { assert!(rig.instance.is_null()); }),
        case!("B9", create, "one instance for all", of |_, table| {
            table.create = wrong!(
                create(_d: *const CreateDesc, out: *mut *mut Instance, _e: *mut ErrorDetail) => |status| {
                    static FIRST: AtomicUsize = AtomicUsize::new(0);
                    let first = FIRST.compare_exchange(0, *out as usize, Ordering::SeqCst, Ordering::SeqCst);
                    *out = first.map_or_else(|first| first as *mut Instance, |_| *out);
                    status
                }
            );
        }, rig => { assert_eq!(rig.create(), rig.instance); }),
        case!("B1", query, "static data that create writes", of |info, table| {
            let vendors: &'static mut [u8; 2] = Box::leak(Box::new(*b"ab"));
            let options = Box::leak(Box::new([OptionInfo {
                key: Str { ptr: vendors.as_ptr().cast(), len: 2 },
                ..OptionInfo::empty()
            }]));
            DATA.store((&raw mut options[0].reserved) as usize, Ordering::SeqCst);
            info.options = List::new(options);
            table.create = wrong!(
                create(_d: *const CreateDesc, _o: *mut *mut Instance, _e: *mut ErrorDetail) => |status| {
                    *(DATA.load(Ordering::SeqCst) as *mut u32) += 1;
                    status
                }
            );
        }, rig => { assert!(!rig.instance.is_null()); }),
        case!("B9", devices, "a device without a handle", of |_, table| {
            table.devices = wrong_devices!(|infos| infos[1].handle = null_mut());
        }, rig => { assert_eq!(rig.devices.len(), 3); }),
        case!("B29", devices, "two devices with one id", of |_, table| {
            table.devices = wrong_devices!(|infos| infos[1].id = infos[0].id);
        }, rig => { assert_eq!(rig.devices.len(), 3); }),
        case!("B29", devices, "an id that is empty", of |_, table| {
            table.devices = wrong_devices!(|infos| infos[2].id = Str::EMPTY);
        }, rig => { assert_eq!(rig.devices.len(), 3); }),
        case!("B29", devices, "another device with a handle of before", of |_, table| {
            table.devices = wrong_devices!(|infos| {
                if LISTED.fetch_add(1, Ordering::SeqCst) > 0 {
                    infos[1].id = Str::new("another");
                }
            });
        }, rig => { assert_eq!(rig.list().len(), 3); }),
        case!("B11", devices, "a device without memory", of |_, table| {
            table.devices = wrong_devices!(|infos| infos[0].spaces = List::EMPTY);
        }, rig => { assert_eq!(rig.devices.len(), 3); }),
        case!("B11", devices, "an alignment that is no power of two", of |_, table| {
            table.devices = wrong_devices!(|infos| {
                static SPACES: [MemorySpace; 1] = [ODD_SPACE];
                infos[0].spaces = List::new(&SPACES);
            });
        }, rig => { assert_eq!(rig.devices.len(), 3); }),
        case!("B5", devices, "a broken list of spaces", of |_, table| {
            table.devices = wrong_devices!(|infos| {
                infos[0].spaces = List { ptr: null_mut(), len: 2, stride: 8 };
            });
        }, rig => { assert_eq!(rig.devices.len(), 3); }),
        case!("B5", devices, "a name that is no text", of |_, table| {
            table.devices = wrong_devices!(|infos| infos[0].name = Str { ptr: c"\xff".as_ptr(), len: 1 });
        }, rig => { assert_eq!(rig.devices.len(), 3); }),
    ];
    check(Side::Plugin, &cases);
}

#[test]
fn allocations_and_streams() {
    let cases = [
        case!("B9", buffer_alloc, "success without a buffer", of |_, table| {
            table.buffer_alloc = wrong_alloc!(|_d, out, _e, status| { (*out).buffer = null_mut(); status });
        }, rig => { rig.alloc(0, 64); }),
        case!("B9", buffer_alloc, "one buffer twice", of |_, table| {
            table.buffer_alloc = wrong_alloc!(|_d, out, _e, status| {
                static ONE: u64 = 0;
                (*out).buffer = (&raw const ONE).cast_mut().cast();
                status
            });
        }, rig => { rig.alloc(0, 64); rig.alloc(0, 64); }),
        case!("B9", buffer_alloc, "failure with a buffer", of |_, table| {
            table.buffer_alloc = wrong_alloc!(|_d, _o, _e, status| DEVBAY_STATUS_OUT_OF_MEMORY);
        }, rig => { rig.alloc(0, 64); }),
        case!("B11", buffer_alloc, "fewer bytes than were asked for", of |_, table| {
            table.buffer_alloc = wrong_alloc!(|desc, out, _e, status| { (*out).size_bytes = (*desc).size_bytes - 1; status });
        }, rig => { rig.alloc(0, 64); }),
        case!("B11", buffer_alloc, "less aligned than was asked for", of |_, table| {
            table.buffer_alloc = wrong_alloc!(|_d, out, _e, status| { (*out).base += 32; status });
        }, rig => { rig.alloc(0, 64); }),
        case!("B4", buffer_alloc, "bytes behind the struct", of |_, table| {
            table.buffer_alloc = wrong_alloc!(|_d, out, _e, status| { *out.add(1).cast::<u8>() = 1; status });
        }, rig => { rig.alloc(0, 64); }),
        case!("B4", buffer_alloc, "the struct's size", of |_, table| {
            table.buffer_alloc = wrong_alloc!(|_d, out, _e, status| { (*out).struct_size += 8; status });
        }, rig => { assert!(!rig.alloc(0, 64).buffer.is_null()); }),
        case!("B18", buffer_alloc, "a status that no header has", of |_, table| {
            table.buffer_alloc = wrong_alloc!(|_d, out, _e, status| { *out = Allocation::empty(); 4711 });
        }, rig => { rig.alloc(0, 64); }),
        case!("B9", stream_create, "success without a stream", of |_, table| {
            table.stream_create = wrong!(stream_create(
                _d: *mut Device, _desc: *const StreamDesc, out: *mut *mut Stream, _e: *mut ErrorDetail
            ) => |status| { *out = null_mut(); status });
        }, rig => { rig.stream(0, ""); }),
        case!("B18", copy, "a status that no header has", of |_, table| {
            table.copy = wrong!(copy(_s: *mut Stream, _d: *const CopyDesc) => |status| -1);
        }, rig => { rig.fill(rig.stream(0, ""), &rig.alloc(0, 64), 8); }),
    ];
    check(Side::Plugin, &cases);
}

/// Asks for memory with a place for words, and gives those.
fn words(rig: &Rig, size_bytes: u64) -> String {
    let mut text = [0u8; 16];
    let capacity = text.len() as u64;
    let mut detail =
        ErrorDetail { text: text.as_mut_ptr().cast(), text_capacity: capacity, ..ErrorDetail::empty() };
    let desc = AllocDesc { size_bytes, align: 64, ..AllocDesc::empty() };
    let mut out = Allocation::empty();
    call!(rig.table, buffer_alloc(rig.device(0), &desc, &mut out, &mut detail));
    String::from_utf8_lossy(&text[..(detail.text_len.min(capacity)) as usize]).into_owned()
}

/// A buffer that is too large to be had.
const TOO_MUCH: u64 = 1 << 40;

#[test]
fn details_of_errors() {
    let rig = Rig::plain();
    assert_eq!(words(&rig, TOO_MUCH), "so much is not t", "as much as there is room for");
    assert_eq!((words(&rig, 64).as_str(), rig.found().as_slice()), ("", [].as_slice()));
    let cases = [
        case!("B18", buffer_alloc, "no detail", of |_, table| {
            table.buffer_alloc = wrong_alloc!(|_d, _o, error, status| { *error = ErrorDetail { status: 0, text_len: 0, ..*error }; status });
        }, rig => { words(&rig, TOO_MUCH); }),
        case!("B18", buffer_alloc, "another status in the detail", of |_, table| {
            table.buffer_alloc = wrong_alloc!(|_d, _o, error, status| { (*error).status = DEVBAY_STATUS_INTERNAL; status });
        }, rig => { assert_eq!(words(&rig, TOO_MUCH), "so much is not t"); }),
        case!("B18", buffer_alloc, "words that are no text", of |_, table| {
            table.buffer_alloc = wrong_alloc!(|_d, _o, error, status| { *(*error).text = -2; status });
        }, rig => { words(&rig, TOO_MUCH); }),
        case!("B18", buffer_alloc, "a length that is more than was written", of |_, table| {
            table.buffer_alloc = wrong_alloc!(|_d, _o, error, status| {
                (*error).text.cast::<u8>().add(3).write_bytes(0xff, 13);
                (*error).text_len = 10;
                status
            });
        }, rig => { words(&rig, TOO_MUCH); }),
        case!("B18", buffer_alloc, "words behind the place for them", of |_, table| {
            table.buffer_alloc = wrong_alloc!(|_d, _o, error, status| { *(*error).text.add(16) = 65; status });
        }, rig => { words(&rig, TOO_MUCH); }),
        case!("B18", buffer_alloc, "a detail of a success", of |_, table| {
            table.buffer_alloc = wrong_alloc!(|_d, _o, error, status| { (*error).native_code = 5; status });
        }, rig => { words(&rig, 64); }),
        case!("B4", buffer_alloc, "bytes behind the detail", of |_, table| {
            table.buffer_alloc = wrong_alloc!(|_d, _o, error, status| { *error.add(1).cast::<u8>() = 1; status });
        }, rig => { words(&rig, TOO_MUCH); }),
        case!("B18", stream_error, "a detail without a failure", of |_, table| {
            table.stream_error = wrong!(stream_error(_s: *mut Stream, error: *mut ErrorDetail) => |status| {
                (*error).text_len = 3;
                status
            });
        }, rig => {
            let mut detail = ErrorDetail::empty();
            call!(rig.table, stream_error(rig.stream(0, ""), &mut detail));
        }),
    ];
    check(Side::Plugin, &cases);
}

#[test]
fn kernels() {
    static NOT_CONSTANT: [ConstantPack; 1] = [ConstantPack {
        struct_size: size_of::<ConstantPack>() as u32,
        input_idx: 0,
        layout_id: 1,
        size_bytes: 8,
        align: 8,
    }];
    static NOT_ALIGNED: [ConstantPack; 1] = [ConstantPack { input_idx: 1, align: 3, ..NOT_CONSTANT[0] }];
    let cases = [
        case!("B21", prepare, "success without a launch function", of |_, table| {
            table.prepare = wrong_prepare!(|out, _e, status| { (*out).launch = None; status });
        }, rig => { assert!(rig.sum(0).launch.is_none()); }),
        case!("B21", prepare, "failure with a kernel", of |_, table| {
            table.prepare = wrong_prepare!(|_o, _e, status| DEVBAY_STATUS_UNSUPPORTED);
        }, rig => { rig.sum(0); }),
        case!("B21", prepare, "a workspace's alignment of 48", of |_, table| {
            table.prepare = wrong_prepare!(|out, _e, status| { (*out).workspace_align = 48; status });
        }, rig => { rig.sum(0); }),
        case!("B21", prepare, "an operand packed that is no constant", of |_, table| {
            table.prepare = wrong_prepare!(|out, _e, status| { (*out).packs = List::new(&NOT_CONSTANT); status });
        }, rig => { packs(&rig); }),
        case!("B21", prepare, "a packed constant's alignment of 3", of |_, table| {
            table.prepare = wrong_prepare!(|out, _e, status| { (*out).packs = List::new(&NOT_ALIGNED); status });
        }, rig => { packs(&rig); }),
        case!("B5", prepare, "a broken list of packed constants", of |_, table| {
            table.prepare = wrong_prepare!(|out, _e, status| {
                (*out).packs = List { ptr: null_mut(), len: 1, stride: 32 };
                status
            });
        }, rig => { packs(&rig); }),
        case!("B4", prepare, "bytes behind the struct", of |_, table| {
            table.prepare = wrong_prepare!(|out, _e, status| { *out.add(1).cast::<u8>() = 1; status });
        }, rig => { rig.sum(0); }),
        case!("B4", prepare, "fields that an older host does not have", rig => {
            let four = [tensor(&[4], &[])];
            let (device, inputs, outputs) = (rig.device(0), List::new(&four), List::new(&four));
            let desc = PrepareDesc { device, inputs, outputs, ..PrepareDesc::empty() };
            let mut out = Prepared { struct_size: 24, ..Prepared::empty() };
            // The toy keeps to the host's size.
            call!(rig.table, prepare(rig.instance, &desc, &mut out, nothing()));
            assert_eq!(rig.found(), []);
            rig = Rig::of(|_, table| {
                table.prepare = wrong_prepare!(|out, _e, status| { (*out).workspace_bytes = 8; status });
            });
            let desc = PrepareDesc { device: rig.device(0), ..desc };
            call!(rig.table, prepare(rig.instance, &desc, &mut out, nothing()));
        }),
        case!("B21", pack, "bytes behind the packed constant", of |_, table| {
            table.pack = wrong!(pack(
                _i: *mut Instance, _p: *const Prepared, _n: u32, _s: *const Tensor, dst: *mut c_void,
                _e: *mut ErrorDetail
            ) => |status| { *dst.cast::<u8>().add(toy::PACKED_BYTES as usize) = 1; status });
        }, rig => {
            let (kernel, src) = (packs(&rig), tensor(&[4], &[1.0; 4]));
            let mut bytes = Packed([0; 64]);
            let dst = bytes.0.as_mut_ptr().cast();
            call!(rig.table, pack(rig.instance, &kernel, 1, &src, dst, nothing()));
            assert_eq!(bytes.0[..33], [[7; 32].as_slice(), &[0]].concat(), "the constant, and no more");
        }),
        case!("B21", kernel_shape, "more extents than there is room for", of |_, table| {
            table.kernel_shape = wrong!(kernel_shape(
                _i: *mut Instance, _d: *const PrepareDesc, _n: u32, _t: *mut DType, shape: *mut i64, rank_max: u32,
                _r: *mut u32, _e: *mut ErrorDetail
            ) => |status| { *shape.add(rank_max as usize) = 1; status });
        }, rig => { shape(&rig); }),
        case!("B21", kernel_shape, "a rank that there is no room for", of |_, table| {
            table.kernel_shape = wrong!(kernel_shape(
                _i: *mut Instance, _d: *const PrepareDesc, _n: u32, _t: *mut DType, _s: *mut i64, rank_max: u32,
                rank: *mut u32, _e: *mut ErrorDetail
            ) => |status| { *rank = rank_max + 1; status });
        }, rig => { shape(&rig); }),
        case!("B4", kernel_cost, "bytes behind the struct", of |_, table| {
            table.kernel_cost = wrong!(kernel_cost(
                _i: *mut Instance, _d: *const PrepareDesc, out: *mut KernelCost, _e: *mut ErrorDetail
            ) => |status| { *out.add(1).cast::<u8>() = 1; status });
        }, rig => {
            let four = [tensor(&[4], &[])];
            let (device, inputs, outputs) = (rig.device(0), List::new(&four), List::new(&four));
            let desc = PrepareDesc { device, inputs, outputs, ..PrepareDesc::empty() };
            call!(rig.table, kernel_cost(rig.instance, &desc, &mut KernelCost::empty(), nothing()));
        }),
        case!("B4", memory_info, "bytes behind the struct", of |_, table| {
            table.memory_info = wrong!(memory_info(
                _d: *mut Device, _s: u32, out: *mut MemoryInfo, _e: *mut ErrorDetail
            ) => |status| { *out.add(1).cast::<u8>() = 1; status });
        }, rig => {
            call!(rig.table, memory_info(rig.device(0), 0, &mut MemoryInfo::empty(), nothing()));
        }),
    ];
    check(Side::Plugin, &cases);
}

#[repr(align(64))]
struct Packed([u8; 64]);

fn packs(rig: &Rig) -> Prepared {
    let four = tensor(&[4], &[]);
    rig.prepare(toy::PACKS, 0, &[four, tensor(&[4], &[1.0; 4])], &[four])
}

fn shape(rig: &Rig) {
    let four = [tensor(&[4], &[])];
    let desc = PrepareDesc { device: rig.device(0), inputs: List::new(&four), ..PrepareDesc::empty() };
    let (mut dtype, mut shape, mut rank) = (DType { code: 0, bits: 0, lanes: 0 }, [0i64; 2], 0);
    let place = shape.as_mut_ptr();
    call!(rig.table, kernel_shape(rig.instance, &desc, 0, &mut dtype, place, 2, &mut rank, nothing()));
    assert_eq!(shape[0], 4);
}
