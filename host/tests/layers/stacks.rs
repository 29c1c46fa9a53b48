//! Names and stacks of layers, slots, and what a layer shows in a plugin's place.

use crate::rig::{HOST, Rig, call, info, part, to_buffer, wrap};
use crate::toy::nothing;
use devbay_host::internals::core::services::LogSink;
use devbay_host::internals::layers::validation::{self, Settings, Side};
use devbay_host::internals::layers::{self, Stack, VARIABLE, from_variables};
use devbay_host::internals::negotiate::{Entry, negotiate, negotiate_layered};
use devbay_host::{ErrorKind, Refusal, RefusalKind};
use devbay_plugin_api::abi::version::MinorRange;
use devbay_plugin_api::abi::*;
use devbay_plugin_api::sdk::export::LinkedPlugin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

unsafe extern "C" fn query() -> *const PluginInfo {
    static INFO: OnceLock<&'static PluginInfo> = OnceLock::new();
    *INFO.get_or_init(|| info(|_, _| ()))
}

fn toy() -> LinkedPlugin {
    // SAFETY: the entry gives data that is leaked, of this header's types.
    unsafe { LinkedPlugin::new("toy", query) }
}

fn stack(names: &[&str], settings: &Settings) -> Stack {
    // SAFETY: the toy is part of this program.
    unsafe { Stack::new(Entry::Linked(&toy()), &layers::named(names).unwrap(), settings) }.unwrap()
}

#[test]
fn names_are_known_or_refused_with_those_that_are() {
    let found = layers::named(&["validation", "validation"]).unwrap();
    assert_eq!(found.iter().map(|layer| layer.name()).collect::<Vec<_>>(), ["validation"; 2]);
    let error = layers::named(&["validation", "valid"]).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(error.text(), "there is no layer valid, known are: validation, and libraries by their paths");
}

#[test]
fn the_environment_names_layers_but_for_elevated_processes() {
    let variable = |name: &str| (name == VARIABLE).then(|| " validation,, trace ".into());
    assert_eq!(from_variables(false, variable), ["validation", "trace"]);
    assert_eq!(from_variables(true, variable), [""; 0]);
    assert_eq!(from_variables(false, |_| None), [""; 0]);
}

#[test]
fn without_layers_the_table_is_the_plugins_own() {
    let plain = stack(&[], &Settings::default());
    assert!(std::ptr::eq(plain.info(), toy().query()));
    let agreement = negotiate_layered(&plain, Entry::Linked(&toy()), MinorRange::CURRENT).unwrap();
    let own = negotiate(Entry::Linked(&toy()), MinorRange::CURRENT).unwrap();
    // SAFETY: the toy's data and its table are leaked.
    let table = unsafe { *(*toy().query()).table };
    for found in [agreement.about.table, own.about.table] {
        assert_eq!(found.copy.map(|f| f as usize), table.copy.map(|f| f as usize));
        assert_eq!(found.create.map(|f| f as usize), table.create.map(|f| f as usize));
    }
    let layered = stack(&["validation"], &Settings::default());
    let agreement = negotiate_layered(&layered, Entry::Linked(&toy()), MinorRange::CURRENT).unwrap();
    assert_ne!(agreement.about.table.copy.map(|f| f as usize), table.copy.map(|f| f as usize));
    assert_eq!((agreement.about.name.as_str(), agreement.minor), ("toy", DEVBAY_ABI_MINOR));
    assert_eq!(agreement.about.kernels.len(), own.about.kernels.len());
}

#[test]
fn a_layer_offers_what_the_plugin_offers_and_no_more() {
    let wrapped = wrap(
        |_, table| {
            table.stream_wait = None;
            table.pack = None;
            table.struct_size = std::mem::offset_of!(PluginTable, memory_info) as u32;
        },
        &Settings::default(),
    );
    // SAFETY: the layer's table is alive as long as `wrapped`.
    let table = unsafe { *wrapped.info().table };
    assert!(table.stream_wait.is_none() && table.pack.is_none());
    assert!(
        table.memory_info.is_none() && table.kernel_shape.is_none(),
        "the plugin's table ends before them"
    );
    assert!(table.kernel_cost.is_some() && table.get_extension.is_some());
    let without = wrap(|_, table| table.get_extension = None, &Settings::default());
    // SAFETY: the layer's table is alive as long as the temporary.
    assert!(unsafe { *without.info().table }.get_extension.is_none());
    // The toy has every extension, the layer does not know this one.
    let rig = Rig::plain();
    assert!(call!(rig.table, get_extension(rig.instance, DEVBAY_EXTENSION_MAP, 1)).is_null());
    assert_eq!(rig.found(), []);
}

#[test]
fn a_layer_speaks_the_minors_that_both_know() {
    let minors = |edit| {
        let wrapped = wrap(edit, &Settings::default());
        (wrapped.info().abi_minor_min, wrapped.info().abi_minor_max)
    };
    const NOW: u32 = DEVBAY_ABI_MINOR;
    const OLDEST: u32 = DEVBAY_ABI_MINOR_MIN;
    assert_eq!(minors(|info, _| (info.abi_minor_min, info.abi_minor_max) = (OLDEST, NOW + 7)), (OLDEST, NOW));
    assert_eq!(
        minors(|info, _| (info.abi_minor_min, info.abi_minor_max) = (OLDEST - 1, OLDEST)),
        (OLDEST, OLDEST)
    );
    let newer = info(|info, _| (info.abi_minor_min, info.abi_minor_max) = (NOW + 1, NOW + 1));
    // SAFETY: `newer` is data that was leaked.
    let refusal: Refusal = unsafe { validation::wrap_info(newer, &Settings::default()) }.err().unwrap();
    assert_eq!(refusal.kind, RefusalKind::NoCommonVersion);
    // A minor that the plugin knows and the layer does not is not passed on.
    let rig = Rig::bare(|info, _| info.abi_minor_max = NOW + 1, HOST, &Settings::default());
    let desc = CreateDesc { abi_minor: NOW + 1, host: rig.host, ..CreateDesc::empty() };
    let mut out = nothing();
    assert_eq!(call!(rig.table, create(&desc, &mut out, nothing())), DEVBAY_STATUS_UNSUPPORTED);
    assert!(out.is_null());
}

#[test]
fn what_cannot_be_read_is_refused_as_without_a_layer() {
    // SAFETY: the test is about NULL, which is refused.
    let refusal = unsafe { validation::wrap_info(nothing(), &Settings::default()) }.err().unwrap();
    assert_eq!(refusal.kind, RefusalKind::BrokenLayout);
    let broken = info(|_, table| table.create = None);
    // SAFETY: `broken` is data that was leaked.
    let refusal = unsafe { validation::wrap_info(broken, &Settings::default()) }.err().unwrap();
    assert_eq!(refusal.kind, RefusalKind::MissingFunction);
}

/// Two plugins whose handles are equal numbers do not meet: each slot has books of its own. Here one instance is behind
/// two layers that do not know of each other.
#[test]
fn plugins_with_equal_handles_do_not_meet() {
    let (mut a, b) = (Rig::plain(), Rig::plain());
    let buffer = a.alloc(0, 64);
    assert_ne!(a.wrapped.info().table, b.wrapped.info().table);
    a.table.buffer_free = b.table.buffer_free;
    call!(a.table, buffer_free(buffer.buffer));
    assert_eq!(a.found(), []);
    assert_eq!(b.found(), [("B9", Side::Host, "buffer_free")], "the other one never gave this buffer out");
}

/// Calls that the outer layer stops do not reach the inner one; both see the plugin's faults.
#[test]
fn layers_are_stacked() {
    let settings = Settings::default();
    let stack = stack(&["validation", "validation"], &settings);
    // SAFETY: the layer's data and its table are alive as long as `stack`.
    let table = unsafe { *(*stack.info()).table };
    let mut instance = nothing();
    let desc = CreateDesc { abi_minor: 2, host: &HOST, ..CreateDesc::empty() };
    assert_eq!(call!(table, create(&desc, &mut instance, nothing())), DEVBAY_STATUS_OK);
    call!(table, destroy(instance));
    assert!(settings.report.is_clean());
    call!(table, destroy(instance));
    let found = settings.report.violations();
    assert_eq!((found.len(), found[0].rule, found[0].count), (1, "B9", 1));
}

/// The log is the application's, and may well ask the plugin something: no lock is held meanwhile.
#[test]
fn the_log_may_call_the_plugin() {
    static ASKED: Mutex<Option<(PluginTable, usize)>> = Mutex::new(None);
    static N_LOGGED: AtomicUsize = AtomicUsize::new(0);
    let log: LogSink = Arc::new(|plugin, _, text| {
        assert!(plugin == "toy" && text.starts_with("validation: B"), "{plugin}: {text}");
        let (table, device) = ASKED.lock().unwrap().expect("the instance is there");
        let mut out = MemoryInfo::empty();
        let status = call!(table, memory_info(device as *mut Device, 0, &mut out, nothing()));
        assert_eq!((status, out.bytes_available), (DEVBAY_STATUS_OK, 5));
        N_LOGGED.fetch_add(1, Ordering::SeqCst);
    });
    let rig = Rig::with(|_, _| (), HOST, &Settings { log: Some(log), ..Settings::default() });
    *ASKED.lock().unwrap() = Some((rig.table, rig.device(0) as usize));
    let (buffer, stream, sum) = (rig.alloc(0, 64), rig.stream(0, "held"), rig.sum(0));
    rig.copy(stream, &to_buffer(part(&buffer, 32, 64)));
    rig.launch(&sum, stream, &[part(&buffer, 0, 16), part(&buffer, 16, 8), part(&buffer, 32, 16)]);
    rig.prepare(77, 0, &[], &[]);
    rig.signal(stream, 1);
    rig.signal(stream, 1);
    call!(rig.table, stream_wait(stream, stream, 9));
    call!(rig.table, stream_host_wait(stream, 9, 0));
    call!(rig.table, stream_on_reached(stream, 9, None, nothing()));
    rig.reached(rig.stream(2, ""));
    rig.alloc_in(0, 7, 64);
    rig.fill(stream, &buffer, 64);
    call!(rig.table, buffer_free(buffer.buffer));
    call!(rig.table, unprepare(rig.instance, &mut Prepared::empty()));
    call!(rig.table, stream_destroy(nothing()));
    call!(rig.table, destroy(rig.instance));
    let n = rig.found().len();
    assert_eq!((n, N_LOGGED.load(Ordering::SeqCst)), (13, 13), "{:?}", rig.found());
}
