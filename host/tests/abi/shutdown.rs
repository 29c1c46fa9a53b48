//! The end: streams, buffers and kernels first, the instance after them, its services and library last (B26).

use crate::support::{Folder, Host, MODEL_INPUT, MODEL_OUTPUT, RELU, model, relu, tensor};
use devbay_host::Session;
use devbay_host::internals::load::Library;
use std::path::Path;

const CLEAN: &str = "destroyed with 0 buffers, 0 streams, 0 kernels";

/// Returns whether a file is mapped into this process.
#[cfg(target_os = "linux")]
fn is_mapped(library: &Path) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let library = library.canonicalize().unwrap();
    maps.lines().any(|line| line.ends_with(library.to_str().unwrap()))
}

#[test]
fn a_session_outlives_its_runtime() {
    for streams in ["inline", "async"] {
        let Host { runtime, log } = Host::faulty(&[("streams", streams), ("host_memory", "no")]);
        let session = Session::new(&model(), &runtime.devices()[0]).unwrap();
        drop(runtime);
        for _ in 0..2 {
            let results = session.run(&[("x", &tensor(&MODEL_INPUT))]).unwrap();
            assert_eq!(results[0].elements::<f32>().unwrap(), MODEL_OUTPUT);
        }
        assert_eq!(log.destroyed(), None, "the instance ended before its session");
        drop(session);
        // Said by the plugin through the host's services, which are there until `destroy` has returned.
        assert_eq!(log.destroyed().as_deref(), Some(CLEAN), "{streams}");
    }
}

#[test]
fn b09_whatever_is_left_last_ends_the_instance() {
    // One of each object that a device makes, in the order in which they are dropped.
    for last in ["buffer", "stream", "device", "plugin"] {
        let Host { runtime, log } = Host::faulty(&[("streams", "async")]);
        let device = runtime.devices()[0].clone();
        let plugin = runtime.plugins()[0].clone();
        drop(runtime);
        let buffer = device.alloc(64, 0).unwrap();
        let stream = device.create_stream("").unwrap();
        let mut left: Vec<(&str, Box<dyn std::any::Any>)> = vec![
            ("buffer", Box::new(buffer)),
            ("stream", Box::new(stream)),
            ("device", Box::new(device)),
            ("plugin", Box::new(plugin)),
        ];
        left.sort_by_key(|(name, _)| *name == last);
        while left.len() > 1 {
            drop(left.remove(0));
            assert_eq!(log.destroyed(), None, "{last} is still there");
        }
        drop(left);
        assert_eq!(log.destroyed().as_deref(), Some(CLEAN), "{last}");
    }
}

#[test]
fn results_outlive_everything() {
    let host = Host::faulty(&[("streams", "async"), ("host_memory", "no")]);
    let session = Session::new(&model(), &host.device()).unwrap();
    let results = session.run(&[("x", &tensor(&MODEL_INPUT))]).unwrap();
    let log = host.log.clone();
    drop((session, host));
    assert_eq!(log.destroyed().as_deref(), Some(CLEAN));
    assert_eq!(results[0].elements::<f32>().unwrap(), MODEL_OUTPUT);
}

#[test]
fn many_instances_of_one_library() {
    let (first, second) = (Host::faulty(&[]), Host::faulty(&[]));
    assert_eq!(relu(&first.device()).unwrap(), RELU);
    let log = first.log.clone();
    drop(first);
    assert_eq!(log.destroyed().as_deref(), Some(CLEAN));
    assert_eq!(relu(&second.device()).unwrap(), RELU);
    assert_eq!(second.log.destroyed(), None);
}

/// Drivers leave threads and thread-locals behind: a library stays unless it says that it may go.
#[test]
#[cfg(target_os = "linux")]
fn b26_libraries_stay_unless_they_may_go() {
    let folder = Folder::new();
    let stays = folder.c_plugin("stays", "defect.c", &[]);
    let goes = folder.c_plugin("goes", "defect.c", &["FLAGS=DEVBAY_PLUGIN_UNLOADABLE"]);
    let refused = folder.c_plugin("refused", "defect.c", &["DEFECT_QUERY_NULL"]);
    for (library, stays) in [(&stays, true), (&goes, false), (&refused, true)] {
        assert!(!is_mapped(library));
        let host = Host::explicit(library);
        assert!(is_mapped(library));
        if let Some(device) = host.runtime.devices().first().cloned() {
            drop(host);
            assert!(is_mapped(library), "its device is still there");
            assert_eq!(relu(&device).unwrap(), RELU);
        }
        assert_eq!(is_mapped(library), stays, "{}", library.display());
    }
}

/// One plugin's symbols are not another's, nor the program's.
#[test]
#[cfg(unix)]
fn b26_symbols_of_a_plugin_stay_its_own() {
    let folder = Folder::new();
    let library = Library::open(&folder.defect(&[])).unwrap();
    assert!(library.has_symbol(c"minimal_query"));
    let program = libloading::os::unix::Library::this();
    // SAFETY: the symbol is only looked up.
    let found = unsafe { program.get::<*const ()>(b"minimal_query\0") };
    assert!(found.is_err(), "the plugin's symbols are the program's");
}
