//! The entry, the services and the versions: B1 to B6, with plugins that keep the rules.

use crate::support::{Folder, Host, RELU, faulty, faulty_options, negotiated, relu, relu_of, tensor};
use devbay_host::internals::core::about::Threading;
use devbay_host::internals::core::device::PrepareRequest;
use devbay_host::internals::core::program::Op;
use devbay_host::internals::load::Library;
use devbay_host::{Cancel, ErrorKind, Outcome, RefusalKind, Runtime};
use devbay_plugin_api::abi::version::MinorRange;
use devbay_plugin_api::abi::{DEVBAY_ABI_MINOR, LAYOUTS, PluginTable, extension};
use devbay_plugin_faulty::{LEDGER, LEDGER_REVISION};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;

/// Dynamic symbols of a library, defined or wanted.
fn symbols(library: &Path, which: &str) -> Vec<String> {
    let output = Command::new("nm")
        .args(["-D", which, "--format=just-symbols"])
        .arg(library)
        .output()
        .unwrap_or_else(|e| panic!("this test needs nm, of binutils: {e}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn b01_one_symbol_is_exported() {
    let folder = Folder::new();
    for library in [folder.c_plugin("minimal", "minimal.c", &[]), faulty()] {
        let mut exported = symbols(&library, "--defined-only");
        // Of the optional feature abi-stable (B30).
        exported.retain(|name| name != "devbay_plugin_abi_stable_0_11");
        assert_eq!(exported, ["devbay_plugin_query_v0"], "{}", library.display());
    }
}

#[test]
fn b01_the_entry_says_the_same_every_time() {
    let folder = Folder::new();
    for path in [folder.c_plugin("minimal", "minimal.c", &[]), faulty()] {
        let library = Library::open(&path).unwrap();
        let first = library.query();
        assert!(!first.is_null());
        let again: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| library.query() as usize)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(again, [first as usize; 4], "{}", path.display());
    }
}

#[test]
fn b02_plugins_want_no_symbol_of_the_host() {
    let folder = Folder::new();
    for library in [folder.c_plugin("minimal", "minimal.c", &[]), faulty()] {
        let wanted = symbols(&library, "--undefined-only");
        assert!(!wanted.is_empty(), "{}: this test sees no symbols", library.display());
        let of_ours: Vec<_> = wanted.iter().filter(|name| name.contains("devbay")).collect();
        assert!(of_ours.is_empty(), "{}: {of_ours:?}", library.display());
    }
}

#[test]
fn b02_services_come_in_a_table() {
    let host = Host::new(faulty_options(&[]).threads(2));
    assert_eq!(host.log.messages(), ["created"]);
    // More than one chunk, so that the loop goes to the host's threads.
    let values: Vec<f32> = (0..10_000).map(|i| i as f32 - 5000.0).collect();
    let expected: Vec<f32> = values.iter().map(|&x| x.max(0.0)).collect();
    assert_eq!(relu_of(&host.device(), &values).unwrap(), expected);
}

#[test]
fn b02_a_loop_of_a_run_that_is_to_end_gives_cancelled() {
    for threads in [1, 2] {
        let host = Host::new(faulty_options(&[]).threads(threads));
        let values = vec![-1.0; 10_000];
        // In the middle of its 157 chunks.
        let ended = Cancel::over(Some(&Cancel::after_looks(80)), || relu_of(&host.device(), &values));
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Cancelled, "{threads} threads");
        assert_eq!(relu_of(&host.device(), &values).unwrap(), vec![0.0; 10_000], "{threads} threads");
    }
}

/// Today's host, and simulated ones of the next minor; one of before 0.9 says that it is too old.
#[test]
fn b03_hosts_of_the_next_minor_load_the_c_plugin_and_older_ones_refuse_it() {
    let folder = Folder::new();
    let minimal = folder.c_plugin("minimal", "minimal.c", &[]);
    let now = DEVBAY_ABI_MINOR;
    let of = |min, max| Runtime::builder().threads(1).plugin(&minimal).minors(MinorRange { min, max });
    for (min, max) in [(now, now), (now, now + 1), (1, now), (1, now + 1)] {
        let host = Host::new(of(min, max));
        assert_eq!(host.plugin().minor(), now, "a host of {min} to {max}");
        assert_eq!(relu(&host.device()).unwrap(), RELU, "a host of {min} to {max}");
    }
    for (min, max, words) in [
        (now + 1, now + 2, "ask the vendor for a newer plugin"),
        (1, 2, "update devbay"),
        (now - 1, now - 1, "update devbay"),
    ] {
        let refusal = Host::new(of(min, max)).refusal().reason.clone();
        assert!(refusal.contains(words), "a host of {min} to {max}: {refusal}");
    }
}

/// A plugin of the next minor on today's host.
#[test]
fn b03_the_highest_common_minor_is_agreed_on() {
    let folder = Folder::new();
    let newer = format!("MINOR_MAX={}", DEVBAY_ABI_MINOR + 1);
    let host = Host::explicit(&folder.defect(&[&newer]));
    assert_eq!(host.plugin().minor(), DEVBAY_ABI_MINOR);
    assert_eq!(relu(&host.device()).unwrap(), RELU);
}

/// The agreed minor, not a struct's size, decides what may be used; and the host has a clock.
#[test]
fn b03_create_is_told_the_minor() {
    let folder = Folder::new();
    let next = DEVBAY_ABI_MINOR + 1;
    let plugin = folder.defect(&[&format!("MINOR_MAX={next}"), "SAYS_WHAT_IT_IS_TOLD"]);
    for (max, told) in [(DEVBAY_ABI_MINOR, DEVBAY_ABI_MINOR), (next, DEVBAY_ABI_MINOR)] {
        let host = Host::new(
            Runtime::builder().threads(1).plugin(&plugin).minors(MinorRange { min: DEVBAY_ABI_MINOR, max }),
        );
        // The plugin's code knows this minor alone, and says so to a host of the next one.
        if max == next {
            assert!(host.refusal().reason.contains(&format!("ABI minor {next}")), "{}", host.refusal());
        } else {
            assert_eq!(host.plugin().minor(), told);
        }
        assert_eq!(host.log.messages(), [format!("minor {max}, the clock goes on")]);
    }
}

/// Plugins whose structs are of another version than the host's.
#[test]
fn b04_tables_and_descriptions_of_other_versions_are_read() {
    let size = |name: &str| LAYOUTS.iter().find(|layout| layout.name == name).unwrap().size;
    let (table, info) = (size("PluginTable"), size("PluginInfo"));
    let required = <PluginTable as devbay_plugin_api::abi::Growable>::REQUIRED_SIZE;
    for size in [required, required + 4, table - 8, table - 1, table + 8] {
        let folder = Folder::new();
        let host = Host::explicit(&folder.defect(&[&format!("TABLE_SIZE={size}")]));
        assert_eq!(relu(&host.device()).unwrap(), RELU, "a table of {size} bytes, ours has {table}");
    }
    for size in [info - 24, info - 8, info + 8] {
        let folder = Folder::new();
        let host = Host::explicit(&folder.defect(&[&format!("INFO_SIZE={size}")]));
        assert_eq!(relu(&host.device()).unwrap(), RELU, "a description of {size} bytes, ours has {info}");
    }
}

#[test]
fn b05_unknown_codes_are_tolerated() {
    // A threading class, and flags of tomorrow that need not be understood.
    let folder = Folder::new();
    let host = Host::explicit(&folder.defect(&[
        "THREADING=99",
        "FLAGS=0xff000000",
        "KERNEL_FLAGS=0xff000000",
        "DEVICE_FLAGS=0xff000000",
        "SPACE_FLAGS=0xff000000",
    ]));
    assert_eq!(host.plugin().left_out(), [""; 0]);
    assert_eq!(host.plugin().about().threading, Threading::Serialised, "the strictest that is known");
    assert_eq!(relu(&host.device()).unwrap(), RELU);
    // A kind of device.
    let host = Host::faulty(&[("devices", "unheard-of")]);
    assert_eq!((host.device().about().kind, host.device().about().kind_name()), (4711, "other"));
    // A status.
    let host = Host::faulty(&[("fault", "unheard-of@launch")]);
    let error = relu(&host.device()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PluginFailed);
    assert!(error.text().contains("UNKNOWN, code 4711"), "{error}");
    assert_eq!(relu(&host.device()).unwrap(), RELU, "the next launch is well");
}

/// An entry with an unknown flag that must be understood is left out and reported; the rest is loaded.
#[test]
fn b05_what_must_be_understood_is_left_out() {
    let host = |definition: &str| Host::explicit(&Folder::new().defect(&[definition]));
    let flags = "has flags that must be understood and are not known here: 0x8000000000000000";

    let refused = host("FLAGS=0x8000000000000000");
    assert_eq!(refused.refusal().kind, RefusalKind::NotUnderstood);
    assert_eq!(refused.refusal().reason, format!("the plugin {flags}; update devbay"));

    let without_kernel = host("KERNEL_FLAGS=0x8000000000000000");
    assert_eq!(without_kernel.plugin().left_out(), [format!("kernel 0 (Relu) {flags}")]);
    assert!(without_kernel.device().kernels().is_empty());
    assert_eq!(without_kernel.runtime.report().plugins[0].notes, without_kernel.plugin().left_out());

    let without_device = host("DEVICE_FLAGS=0x8000000000000000");
    assert_eq!(without_device.runtime.devices().len(), 0);
    let notes = &without_device.runtime.report().plugins[0].notes;
    assert_eq!(*notes, [format!("minimal:0 {flags}")]);

    let without_memory = host("SPACE_FLAGS=0x8000000000000000");
    assert_eq!(without_memory.runtime.devices().len(), 0);
    let notes = &without_memory.runtime.report().plugins[0].notes;
    assert_eq!(*notes, [format!("minimal:0 has its operands in a memory space that {flags}")]);

    // A space that only some things go to.
    let pinned = host("SECOND_SPACE_FLAGS=0");
    assert!(pinned.device().alloc_pinned(64).is_some(), "the space is asked, which minimal.c does not have");
    let without_pinned = host("SECOND_SPACE_FLAGS=0x8000000000000000");
    assert!(without_pinned.device().alloc_pinned(64).is_none());
    assert_eq!(without_pinned.plugin().left_out(), [format!("memory space 1 of minimal:0 {flags}")]);
    assert_eq!(relu(&without_pinned.device()).unwrap(), RELU);
}

/// A device's own list of kernels stands in the place of the plugin's.
#[test]
fn b20_a_device_lists_its_own_kernels() {
    let host = |which: &str| Host::explicit(&Folder::new().defect(&[&format!("DEVICE_KERNELS={which}")]));
    assert!(host("NONE").device().kernels().is_empty());
    assert_eq!(relu(&host("ONE").device()).unwrap(), RELU);

    let more = host("ADDED");
    let kernels: Vec<_> =
        more.device().kernels().iter().map(|k| (k.idx, k.domain.clone(), k.op.clone())).collect();
    assert_eq!(kernels, [(0, String::new(), "Relu".into()), (77, "com.example".into(), "Rectify".into())]);
    assert_eq!(more.plugin().about().kernels.len(), 1, "the plugin's list is as it was");
    let ty = tensor(&RELU).tensor_type();
    let prepared = more.device().prepare(&PrepareRequest {
        kernel_idx: 77,
        op: &Op::onnx("Relu", 14),
        attrs: &[],
        inputs: &[Some((ty.clone(), None))],
        outputs: &[Some(ty)],
        numerics: devbay_host::internals::core::kernel::Numerics::Strict,
        label: "",
    });
    assert!(prepared.is_ok(), "{:?}", prepared.err());

    // One that gives no description is left out.
    let silent = host("FAILS");
    assert_eq!(silent.runtime.devices().len(), 0);
    let notes = &silent.runtime.report().plugins[0].notes;
    assert_eq!(notes.len(), 1);
    assert!(
        notes[0].starts_with("minimal:0 does not say which kernels it has")
            && notes[0].contains("the driver does not answer"),
        "{notes:?}"
    );
}

/// A library offers a layer through the entry that plugins have.
#[test]
fn b01_a_library_offers_a_layer() {
    let folder = Folder::new();
    let minimal = folder.c_plugin("minimal", "minimal.c", &[]);
    let layer = folder.c_plugin("saying", "layer.c", &[]);
    let with = |plugins: Vec<PathBuf>, layers: &[&Path]| {
        Runtime::builder()
            .threads(1)
            .plugins(plugins)
            .layers(layers.iter().map(|path| path.display().to_string()))
    };
    for layers in [&["saying"][..], &["validation", "saying"], &["saying", "validation"]] {
        // It remembers the plugin behind it.
        let folder = Folder::new();
        let layer = folder.c_plugin("saying", "layer.c", &[]);
        let path = |name: &&str| if *name == "saying" { layer.clone() } else { PathBuf::from(name) };
        let paths: Vec<PathBuf> = layers.iter().map(path).collect();
        let paths: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
        let host = Host::new(with(vec![minimal.clone()], &paths));
        assert_eq!(relu(&host.device()).unwrap(), RELU, "{layers:?}");
        assert_eq!(host.log.messages(), ["layer: create", "layer: prepare"], "{layers:?}");
    }
    // It names the plugin that it does not take.
    let host = Host::new(with(vec![minimal.clone(), faulty()], &[&layer]));
    let refusals: Vec<String> = host.runtime.report().refused().map(|(_, r)| r.to_string()).collect();
    assert_eq!(refusals, ["the layer saying does not take it: it is in front of another plugin"]);
    // A plugin is no layer, a layer no plugin, and a file neither.
    let refused = |layer: &Path| with(Vec::new(), &[layer]).build().err().expect("a refusal");
    let error = refused(&minimal);
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.text().ends_with("minimal offers no layer"), "{error}");
    assert!(refused(&folder.write("notes.so", "no library")).text().contains("not a loadable library"));
    let host = Host::new(with(vec![layer], &[]));
    assert_eq!(host.refusal().kind, RefusalKind::OtherKind);
    assert_eq!(host.refusal().reason, "saying is a layer and no plugin; --layers takes its library");
}

/// Options of the host's are for every plugin; those that a plugin does not know change nothing.
#[test]
fn b25_options_of_the_host_go_to_every_plugin() {
    let folder = Folder::new();
    let minimal = folder.c_plugin("minimal", "minimal.c", &[]);
    for (plugin, library) in [("minimal", minimal), ("faulty", faulty())] {
        let host =
            Host::new(Runtime::builder().threads(1).plugin(library).option(plugin, "devbay.unheard_of", "1"));
        assert_eq!(relu(&host.device()).unwrap(), RELU, "{plugin}");
    }
}

/// Two plugins are linked into one program, each under its own name.
#[test]
fn b01_two_plugins_link_into_one_program() {
    let folder = Folder::new();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/fixtures");
    let main = folder.write(
        "main.c",
        "#include \"devbay_plugin.h\"\n\
         #include <stdio.h>\n\
         const devbay_plugin_info *devbay_plugin_query_v0_one(void);\n\
         const devbay_plugin_info *devbay_plugin_query_v0_two(void);\n\
         int main(void) {\n\
             const devbay_plugin_info *one = devbay_plugin_query_v0_one();\n\
             const devbay_plugin_info *two = devbay_plugin_query_v0_two();\n\
             printf(\"%d %u %u\", one != two, (unsigned)one->abi_minor_max, (unsigned)two->kernels.len);\n\
             return 0;\n\
         }\n",
    );
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let run = |program: &mut Command| {
        let output = program.output().unwrap_or_else(|e| panic!("{program:?}: {e}"));
        assert!(output.status.success(), "{program:?}:\n{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugin-api/include");
    let mut objects = Vec::new();
    for name in ["one", "two"] {
        let object = folder.path().join(format!("{name}.o"));
        run(Command::new(&compiler)
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-c"])
            .arg(format!("-DDEVBAY_PLUGIN_STATIC={name}"))
            .arg("-I")
            .arg(&include)
            .arg("-o")
            .arg(&object)
            .arg(fixtures.join("minimal.c")));
        objects.push(object);
    }
    let program = folder.path().join("program");
    run(Command::new(&compiler).arg("-I").arg(&include).arg("-o").arg(&program).arg(main).args(&objects));
    assert_eq!(run(&mut Command::new(program)), format!("1 {DEVBAY_ABI_MINOR} 1"));
}

#[test]
fn b06_unknown_extensions_give_null() {
    let host = Host::faulty(&[]);
    let plugin = host.plugin();
    assert!(plugin.extension(LEDGER, LEDGER_REVISION).is_some());
    assert!(plugin.extension(LEDGER, LEDGER_REVISION + 1).is_none(), "a revision that it does not have");
    assert!(plugin.extension(extension::COMPILE, 0).is_none());
    assert!(plugin.extension(u32::MAX, 0).is_none());
    // A plugin without the function has none.
    let folder = Folder::new();
    let minimal = Host::explicit(&folder.c_plugin("minimal", "minimal.c", &[]));
    assert!(minimal.plugin().extension(LEDGER, 0).is_none());
    // The other way.
    let api = plugin.services().api();
    let get = api.get_extension.unwrap();
    // SAFETY: the host's function with its own context.
    assert!(unsafe { get(api.ctx, LEDGER, 0) }.is_null());
}

#[test]
fn b10_references_name_handle_address_and_offset() {
    let host = Host::faulty(&[]);
    let buffer = host.device().alloc(256, 0).unwrap();
    let (whole, part) = (buffer.reference(0, 256), buffer.reference(64, 32));
    assert_ne!(whole.addr, 0);
    assert_eq!((part.buffer, part.addr, part.offset, part.length), (whole.buffer, whole.addr + 64, 64, 32));
    let beyond = std::panic::AssertUnwindSafe(|| buffer.reference(250, 7));
    assert!(std::panic::catch_unwind(beyond).is_err(), "a range outside the buffer");
}

#[test]
fn b11_limits_of_a_memory_space_are_kept() {
    let host = Host::faulty(&[("alloc_max", "4096"), ("align", "512"), ("granule", "96")]);
    let (device, ledger) = (&host.device(), host.ledger());
    assert_eq!(device.about().spaces.len(), 1);
    let error = device.alloc(5000, 0).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.text().contains("the device has 4096"), "{error}");
    assert_eq!(ledger.bytes_asked.load(SeqCst), 0, "the plugin was asked for what it said it cannot give");
    let buffer = device.alloc(100, 0).unwrap();
    assert_eq!(ledger.bytes_asked.load(SeqCst), 192, "allocations are padded to the granule of copies");
    assert_eq!(buffer.reference(0, 1).addr % 512, 0);
}

/// The plugin that vendors start from is short, and made from the header and the C library alone (B7).
#[test]
fn b07_a_first_plugin_is_at_most_300_lines_of_c() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/fixtures");
    let source = std::fs::read_to_string(fixtures.join("minimal.c")).unwrap();
    let n_lines = source.lines().count();
    assert!(n_lines <= 300, "{n_lines} lines");
    let longest = source.lines().map(|line| line.chars().count()).max();
    assert!(longest <= Some(100), "a line of {longest:?} characters is not as clang-format has it");
    let ours: Vec<_> = source.lines().filter(|line| line.starts_with("#include \"")).collect();
    assert_eq!(ours, ["#include \"devbay_plugin.h\""]);
}

/// A good plugin is loaded with the layout that it was built from, and its report has no notes.
#[test]
fn good_plugins_are_loaded_without_notes() {
    let folder = Folder::new();
    for library in [folder.c_plugin("minimal", "minimal.c", &[]), faulty()] {
        let (_library, agreement) = negotiated(&library, MinorRange::CURRENT);
        assert_eq!(agreement.differences, Vec::<String>::new());
        let host = Host::explicit(&library);
        let report = &host.runtime.report().plugins[0];
        assert!(matches!(report.outcome, Outcome::Loaded { n_devices: 1, .. }), "{report:?}");
        assert_eq!(report.notes, Vec::<String>::new());
    }
}
