//! Threading classes: what a plugin says it cannot bear, the host does not do (B17).

use crate::support::{Folder, Host, Log, RELU, faulty, ledger, model, negotiated, relu, tensor};
use crate::support::{MODEL_INPUT, MODEL_OUTPUT};
use devbay_host::Session;
use devbay_host::internals::core::about::Threading;
use devbay_host::internals::core::device::Plugin;
use devbay_host::internals::core::exec::queue::WorkQueue;
use devbay_host::internals::core::services::Services;
use devbay_plugin_api::abi::version::MinorRange;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// The faulty plugin as if it had declared a class; its calls take a while, so that they overlap where they may.
fn plugin(threading: Threading, options: &[(&str, &str)]) -> Arc<Plugin> {
    let (library, agreement) = negotiated(&faulty(), MinorRange::CURRENT);
    let mut about = agreement.about;
    assert_eq!(about.threading, Threading::Free);
    about.threading = threading;
    let queue = Arc::new(WorkQueue::new(1).unwrap());
    let services = Services::new("faulty", queue, Log::default().sink(), None, BTreeMap::new());
    let options: Vec<_> = options.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    Plugin::create(about, agreement.minor, services, &options, Some(Arc::new(library))).unwrap()
}

/// Runs models and single kernels from four threads, and gives the most calls that were in the plugin at once, and
/// in one of its streams.
fn calls_at_once(threading: Threading, streams: &str) -> (u64, u64) {
    let plugin = plugin(threading, &[("streams", streams), ("pause_us", "300"), ("host_memory", "no")]);
    let device = plugin.devices(&[]).unwrap().remove(0);
    let session = Session::new(&model(), &device).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let x = tensor(&MODEL_INPUT);
                    let results = session.run(&[("x", &x)]).unwrap();
                    assert_eq!(results[0].elements::<f32>().unwrap(), MODEL_OUTPUT);
                    assert_eq!(relu(&device).unwrap(), RELU);
                }
            });
        }
    });
    drop(session);
    let books = ledger(&plugin);
    (books.calls_at_once.load(SeqCst), books.stream_calls_at_once.load(SeqCst))
}

#[test]
fn b17_a_serialised_plugin_is_called_once_at_a_time() {
    for streams in ["inline", "async"] {
        assert_eq!(calls_at_once(Threading::Serialised, streams).0, 1, "{streams}");
    }
}

/// While one thread waits for a serialised plugin, others can call it: its wait is not called, but polled.
#[test]
fn b17_waiting_for_a_serialised_plugin_holds_no_lock() {
    let options = [("streams", "async"), ("fault", "panic@host_wait"), ("work_ms", "30")];
    let plugin = plugin(Threading::Serialised, &options);
    let device = plugin.devices(&[]).unwrap().remove(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert_eq!(relu(&device).unwrap(), RELU));
        }
    });
    assert!(!plugin.is_poisoned());
}

#[test]
fn b17_streams_of_a_per_stream_plugin_are_called_once_at_a_time() {
    let (all, one_stream) = calls_at_once(Threading::PerStream, "async");
    assert_eq!(one_stream, 1);
    assert!(all > 1, "different streams are used at once; otherwise this test sees nothing");
}

/// The same runs on a plugin that bears it: the tests above would notice a missing lock.
#[test]
fn b17_a_free_plugin_is_called_from_many_threads_at_once() {
    for streams in ["inline", "async"] {
        assert!(calls_at_once(Threading::Free, streams).0 > 1, "{streams}");
    }
}

#[test]
fn b17_the_class_is_read_from_the_plugin() {
    let classes = [("0", Threading::Free), ("1", Threading::PerStream), ("2", Threading::Serialised)];
    for (code, class) in classes {
        let folder = Folder::new();
        let host = Host::explicit(&folder.defect(&[&format!("THREADING={code}")]));
        assert_eq!(host.plugin().about().threading, class);
        assert_eq!(relu(&host.device()).unwrap(), RELU);
    }
}
