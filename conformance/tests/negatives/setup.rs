//! Wrong entries, negotiations, options, errors and devices.

use super::{INLINE, Negative, cpu, forward, negative};
use devbay_plugin_api::abi::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

pub fn all() -> Vec<Negative> {
    vec![
        negative!(
            INLINE,
            "load.structs",
            "a list of profiles with a stride below its elements",
            |info, _| {
                info.profiles.stride = 4;
            }
        ),
        negative!(INLINE, "load.required", "no buffer_free", |_, table| table.buffer_free = None),
        negative!(INLINE, "load.name", "a name with a capital letter", |info, _| info.name = Str::new("Cpu")),
        Negative {
            what: "an entry that gives two pointers in turn",
            case: "load.entry.same",
            options: INLINE,
            // SAFETY: both pointers are to static data, made from this header's types.
            plugin: unsafe { devbay_plugin_api::sdk::export::LinkedPlugin::new("cpu", two_faced) },
        },
        Negative {
            what: "an entry that gives NULL",
            case: "load.entry",
            options: INLINE,
            // SAFETY: NULL is what is tested; hosts look before they read.
            plugin: unsafe { devbay_plugin_api::sdk::export::LinkedPlugin::new("cpu", nobody) },
        },
        negative!(INLINE, "negotiate.create", "a create that fails", |_, table| table.create =
            Some(no_driver)),
        Negative {
            what: "a create that counts in the plugin's data",
            case: "negotiate.constant",
            options: INLINE,
            // SAFETY: the data was leaked, made from this header's types.
            plugin: unsafe { devbay_plugin_api::sdk::export::LinkedPlugin::new("cpu", counted) },
        },
        negative!(
            INLINE,
            "negotiate.older",
            "the newest minor alone, though the range says more",
            |_, table| {
                table.create = Some(newest_only);
            }
        ),
        negative!(INLINE, "negotiate.range", "any minor is taken", |_, table| table.create = Some(any_minor)),
        negative!(INLINE, "negotiate.sizes", "a description of one size alone", |_, table| {
            table.create = Some(one_size);
        }),
        negative!(INLINE, "negotiate.options.unknown", "unknown options are overlooked", |_, table| {
            table.create = Some(no_options);
        }),
        negative!(INLINE, "negotiate.options.known", "an option that is listed and not known", |info, _| {
            info.options = List::new(Box::leak(Box::new([OptionInfo {
                key: Str::new("colour"),
                default_value: Str::new("red"),
                ..OptionInfo::empty()
            }])));
        }),
        negative!(INLINE, "negotiate.extensions", "a table for every extension", |_, table| {
            table.get_extension = Some(every_extension);
        }),
        negative!(INLINE, "error.text", "failures without words", |_, table| table.create = Some(speechless)),
        negative!(INLINE, "error.capacity", "words beyond the room for them", |_, table| {
            table.create = Some(talkative);
        }),
        negative!(INLINE, "error.sizes", "native_code of hosts that do not have it", |_, table| {
            table.create = Some(native_code);
        }),
        negative!(INLINE, "error.success", "an error's place is cleared on success", |_, table| {
            table.create = Some(clears_error);
        }),
        negative!(INLINE, "error.stream", "stream_error says OK", |_, table| {
            table.stream_error = Some(no_stream_error);
        }),
        negative!(INLINE, "devices.list", "devices without spaces", |_, table| {
            table.devices = Some(no_spaces);
        }),
        negative!(INLINE, "devices.same", "an id that counts", |_, table| table.devices = Some(counting_id)),
        negative!(INLINE, "devices.ids", "two devices of one id", |_, table| table.devices = Some(twins)),
        negative!(INLINE, "devices.spaces", "an alignment of 96", |_, table| table.devices = Some(align_96)),
        negative!(super::ASYNC, "devices.timeline", "a timeline without stream_reached", |_, table| {
            table.stream_reached = None;
        }),
        negative!(INLINE, "devices.memory_info", "memory of a space that is not there", |_, table| {
            table.memory_info = Some(any_space);
        }),
        negative!(INLINE, "shutdown.host_services", "the host is called after destroy", |_, table| {
            table.create = Some(keeps_host);
            table.destroy = Some(calls_host);
        }),
        negative!(INLINE, "shutdown.thread", "devices for the thread that made the instance", |_, table| {
            table.create = Some(notes_thread);
            table.devices = Some(of_its_thread);
        }),
        negative!(INLINE, "shutdown.instances", "one instance for all", |_, table| {
            table.create = Some(singleton);
            table.destroy = Some(keeps_instance);
        }),
    ]
}

unsafe extern "C" fn nobody() -> *const PluginInfo {
    null()
}

unsafe extern "C" fn two_faced() -> *const PluginInfo {
    static SECOND: super::Place = super::Place::new();
    static N: AtomicU32 = AtomicU32::new(0);
    if N.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
        return cpu();
    }
    *SECOND.get_or_init(|| super::leak(|_, _| ())) as *const PluginInfo
}

unsafe extern "C" fn counted() -> *const PluginInfo {
    static INFO: super::Place = super::Place::new();
    unsafe extern "C" fn counts(
        desc: *const CreateDesc,
        out: *mut *mut Instance,
        error: *mut ErrorDetail,
    ) -> Status {
        // SAFETY: the leaked data, which no reference borrows.
        let info = unsafe { counted() }.cast_mut();
        // SAFETY: as above.
        unsafe { (*info).flags += 1 << 40 };
        forward!(create(desc, out, error))
    }
    *INFO.get_or_init(|| super::leak(|_, table| table.create = Some(counts))) as *const PluginInfo
}

unsafe extern "C" fn no_driver(_: *const CreateDesc, _: *mut *mut Instance, _: *mut ErrorDetail) -> Status {
    DEVBAY_STATUS_UNAVAILABLE
}

/// What the host says, as far as all versions have it; the CPU plugin is given a whole one.
fn whole(desc: *const CreateDesc) -> CreateDesc {
    // SAFETY: the host's struct.
    let desc = unsafe { read_struct(desc) }.expect("hosts make whole structs");
    CreateDesc { struct_size: size_of::<CreateDesc>() as u32, ..desc }
}

unsafe extern "C" fn newest_only(
    desc: *const CreateDesc,
    out: *mut *mut Instance,
    error: *mut ErrorDetail,
) -> Status {
    if whole(desc).abi_minor < DEVBAY_ABI_MINOR {
        return DEVBAY_STATUS_UNSUPPORTED;
    }
    forward!(create(desc, out, error))
}

unsafe extern "C" fn any_minor(
    desc: *const CreateDesc,
    out: *mut *mut Instance,
    error: *mut ErrorDetail,
) -> Status {
    let desc = CreateDesc { abi_minor: DEVBAY_ABI_MINOR, ..whole(desc) };
    forward!(create(&desc, out, error))
}

unsafe extern "C" fn one_size(
    desc: *const CreateDesc,
    out: *mut *mut Instance,
    error: *mut ErrorDetail,
) -> Status {
    // SAFETY: the host's struct.
    if unsafe { (*desc).struct_size } as usize != size_of::<CreateDesc>() {
        return DEVBAY_STATUS_INVALID;
    }
    forward!(create(desc, out, error))
}

unsafe extern "C" fn no_options(
    desc: *const CreateDesc,
    out: *mut *mut Instance,
    error: *mut ErrorDetail,
) -> Status {
    let desc = CreateDesc { options: List::EMPTY, ..whole(desc) };
    forward!(create(&desc, out, error))
}

unsafe extern "C" fn every_extension(_: *mut Instance, _: u32, _: u32) -> *const c_void {
    static TABLE: u64 = 0;
    (&raw const TABLE).cast()
}

unsafe extern "C" fn speechless(
    desc: *const CreateDesc,
    out: *mut *mut Instance,
    _: *mut ErrorDetail,
) -> Status {
    forward!(create(desc, out, null_mut()))
}

unsafe extern "C" fn talkative(
    desc: *const CreateDesc,
    out: *mut *mut Instance,
    error: *mut ErrorDetail,
) -> Status {
    // SAFETY: NULL, or the host's struct.
    let room = unsafe { error.as_ref() }.map_or(0, |error| error.text_capacity);
    let status = forward!(create(desc, out, error));
    if status != DEVBAY_STATUS_OK && (1..64).contains(&room) {
        // SAFETY: beyond the room, in memory that the test has behind it.
        unsafe { (*error).text.add(room as usize).write_bytes(b'!' as _, 1) };
    }
    status
}

unsafe extern "C" fn native_code(
    desc: *const CreateDesc,
    out: *mut *mut Instance,
    error: *mut ErrorDetail,
) -> Status {
    let status = forward!(create(desc, out, error));
    if status != DEVBAY_STATUS_OK && !error.is_null() {
        // SAFETY: beyond an old host's struct, in memory that the test has behind it.
        unsafe { (*error).native_code = 7 };
    }
    status
}

unsafe extern "C" fn clears_error(
    desc: *const CreateDesc,
    out: *mut *mut Instance,
    error: *mut ErrorDetail,
) -> Status {
    // SAFETY: NULL, or the host's struct.
    if let Some(error) = unsafe { error.as_mut() } {
        error.text_len = 0;
    }
    forward!(create(desc, out, error))
}

unsafe extern "C" fn no_stream_error(_: *mut Stream, _: *mut ErrorDetail) -> Status {
    DEVBAY_STATUS_OK
}

/// The CPU plugin's one device, and changes to it.
fn edited(
    instance: *mut Instance,
    out: *mut List,
    error: *mut ErrorDetail,
    edit: impl Fn(DeviceInfo) -> Vec<DeviceInfo>,
) -> Status {
    let status = forward!(devices(instance, out, error));
    // SAFETY: the list that the CPU plugin just wrote.
    let infos = unsafe { read_growable_list::<DeviceInfo>(&*out) }.expect("the CPU plugin's list is whole");
    let infos: Vec<DeviceInfo> = infos.into_iter().flat_map(edit).collect();
    // SAFETY: the host's place; the list is leaked, so it outlives the instance.
    unsafe { *out = List::new(infos.leak()) };
    status
}

unsafe extern "C" fn no_spaces(i: *mut Instance, out: *mut List, error: *mut ErrorDetail) -> Status {
    edited(i, out, error, |info| vec![DeviceInfo { spaces: List::EMPTY, ..info }])
}

unsafe extern "C" fn counting_id(i: *mut Instance, out: *mut List, error: *mut ErrorDetail) -> Status {
    static N: AtomicU32 = AtomicU32::new(0);
    edited(i, out, error, |info| {
        let id = N.fetch_add(1, Ordering::Relaxed).to_string();
        vec![DeviceInfo { id: Str::new(id.leak()), ..info }]
    })
}

unsafe extern "C" fn twins(i: *mut Instance, out: *mut List, error: *mut ErrorDetail) -> Status {
    edited(i, out, error, |info| vec![info, info])
}

unsafe extern "C" fn align_96(i: *mut Instance, out: *mut List, error: *mut ErrorDetail) -> Status {
    edited(i, out, error, |info| {
        // SAFETY: the CPU plugin's list.
        let spaces = unsafe { read_growable_list::<MemorySpace>(&info.spaces) }.expect("it is whole");
        let spaces: Vec<_> =
            spaces.into_iter().map(|space| MemorySpace { bind_align: 96, ..space }).collect();
        vec![DeviceInfo { spaces: List::new(spaces.leak()), ..info }]
    })
}

unsafe extern "C" fn any_space(
    device: *mut Device,
    _: u32,
    out: *mut MemoryInfo,
    error: *mut ErrorDetail,
) -> Status {
    forward!(memory_info(device, 0, out, error))
}

static HOST: AtomicPtr<HostApi> = AtomicPtr::new(null_mut());

unsafe extern "C" fn keeps_host(
    desc: *const CreateDesc,
    out: *mut *mut Instance,
    error: *mut ErrorDetail,
) -> Status {
    HOST.store(whole(desc).host.cast_mut(), Ordering::Relaxed);
    forward!(create(desc, out, error))
}

unsafe extern "C" fn calls_host(instance: *mut Instance) {
    let host = HOST.load(Ordering::Relaxed) as usize;
    forward!(destroy(instance));
    std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(10));
        // SAFETY: dead by the ABI; the suite leaks its services to find out.
        let host = unsafe { &*(host as *const HostApi) };
        let log = host.log.expect("the suite's host has a log");
        // SAFETY: as above.
        unsafe { log(host.ctx, DEVBAY_LOG_INFO, Str::new("too late")) };
    });
}

static ONE: AtomicPtr<Instance> = AtomicPtr::new(null_mut());

unsafe extern "C" fn singleton(
    desc: *const CreateDesc,
    out: *mut *mut Instance,
    error: *mut ErrorDetail,
) -> Status {
    let mut made = null_mut();
    let status = forward!(create(desc, &mut made, error));
    if status != DEVBAY_STATUS_OK {
        return status;
    }
    let first = ONE.compare_exchange(null_mut(), made, Ordering::Relaxed, Ordering::Relaxed);
    // SAFETY: the host's place for one handle.
    unsafe { *out = first.err().unwrap_or(made) };
    DEVBAY_STATUS_OK
}

unsafe extern "C" fn keeps_instance(_: *mut Instance) {}

/// Instances by the thread that made them.
static MADE: std::sync::Mutex<Vec<(usize, std::thread::ThreadId)>> = std::sync::Mutex::new(Vec::new());

unsafe extern "C" fn notes_thread(
    desc: *const CreateDesc,
    out: *mut *mut Instance,
    error: *mut ErrorDetail,
) -> Status {
    let status = forward!(create(desc, out, error));
    if status == DEVBAY_STATUS_OK {
        // SAFETY: the handle that was just written.
        let instance = unsafe { *out } as usize;
        let mut made = MADE.lock().expect("nobody panics here");
        made.retain(|(other, _)| *other != instance);
        made.push((instance, std::thread::current().id()));
    }
    status
}

unsafe extern "C" fn of_its_thread(i: *mut Instance, out: *mut List, error: *mut ErrorDetail) -> Status {
    let here = (i as usize, std::thread::current().id());
    if !MADE.lock().expect("nobody panics here").contains(&here) {
        return DEVBAY_STATUS_FAILED_PRECONDITION;
    }
    forward!(devices(i, out, error))
}
