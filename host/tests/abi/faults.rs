//! Functions that fail: typed errors with the place and the plugin's words, nothing lost, and the next call works.

use crate::support::{Host, MODEL_OUTPUT, RELU, faulty_options, model, relu, run_model, staged_model};
use devbay_host::{Error, ErrorKind, Policy, RefusalKind, Requirements, Result, RunOptions};
use std::sync::atomic::Ordering::SeqCst;

const PLACES: [&str; 9] =
    ["alloc", "create_stream", "copy", "prepare", "launch", "signal", "host_wait", "work", "work#3"];

fn run_session(host: &Host) -> Result<Vec<f32>> {
    run_model(&model(), &host.device(), &RunOptions::default())
}

fn check_words(fault: &str, error: &Error) {
    let place = fault.split(['@', '#']).nth(1).unwrap();
    assert!(error.text().contains(&format!("a fault was asked for in {place}")), "{fault}: {error}");
    assert_eq!((&*error.place().plugin, &*error.place().device), ("faulty", "faulty:0"), "{fault}: {error}");
}

/// Whatever fails in a run, all that was made is given back, and before the work that uses it is over nothing.
#[test]
fn b09_failed_runs_give_everything_back() {
    for (streams, model) in
        [("inline", model()), ("async", model()), ("inline", staged_model()), ("async", staged_model())]
    {
        for place in PLACES {
            if streams == "inline" && ["signal", "host_wait", "work", "work#3"].contains(&place) {
                continue;
            }
            let fault = format!("internal@{place}");
            let host = Host::faulty(&[
                ("fault", &fault),
                ("streams", streams),
                ("host_memory", "no"),
                ("work_ms", "2"),
            ]);
            let run = || run_model(&model, &host.device(), &RunOptions::default());
            let error = run().expect_err(&fault);
            assert_eq!(error.kind(), ErrorKind::PluginFailed, "{fault}: {error}");
            check_words(&fault, &error);
            assert_eq!(host.ledger().freed_in_flight.load(SeqCst), 0, "{fault} {streams}");
            // It happened once; the host's state is whole.
            assert_eq!(run().unwrap(), MODEL_OUTPUT, "{fault} {streams}");
            let log = host.log.clone();
            drop(host);
            let alive = "destroyed with 0 buffers, 0 streams, 0 kernels";
            assert_eq!(log.destroyed().as_deref(), Some(alive), "{fault} {streams}");
        }
    }
}

#[test]
fn out_of_memory() {
    for fault in ["memory@alloc", "memory@create_stream", "memory@prepare", "memory@launch"] {
        let host = Host::faulty(&[("fault", fault), ("host_memory", "no")]);
        let error = run_session(&host).expect_err(fault);
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{fault}: {error}");
        check_words(fault, &error);
        assert_eq!(run_session(&host).unwrap(), MODEL_OUTPUT, "{fault}");
    }
}

/// A device that was listed and is gone when it is used.
#[test]
fn b13_a_device_that_disappears_is_lost() {
    for place in PLACES {
        let fault = format!("lost@{place}");
        let host =
            Host::faulty(&[("fault", &fault), ("streams", "async"), ("host_memory", "no"), ("work_ms", "1")]);
        let books = host.ledger();
        let error = run_session(&host).expect_err(&fault);
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{fault}: {error}");
        assert!(error.text().contains("the device was pulled out"), "{fault}: {error}");
        assert_eq!(error.place().device, "faulty:0", "{fault}: {error}");
        assert!(host.device().is_lost(), "{fault}");
        // The host refuses: the plugin is asked for nothing more but free and destroy.
        let error = relu(&host.device()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{fault}: {error}");
        assert!(error.text().contains("the device is lost"), "{fault}: {error}");
        assert_eq!(books.calls_after_loss.load(SeqCst), 0, "{fault}");
        let refused = host.runtime.choose(&Policy::Auto, &Requirements::default()).err().unwrap();
        assert!(refused.text().contains("faulty:0: the device is lost"), "{refused}");
        // Lost is not poisoned: everything is given back.
        let log = host.log.clone();
        drop(host);
        let alive = "destroyed with 0 buffers, 0 streams, 0 kernels";
        assert_eq!(log.destroyed().as_deref(), Some(alive), "{fault}");
    }
}

#[test]
fn a_driver_that_is_not_there() {
    let host = Host::new(faulty_options(&[("fault", "lost@devices")]));
    assert_eq!(host.refusal().kind, RefusalKind::DevicesFailed);
    assert!(host.refusal().reason.contains("DEVICE_LOST"), "{}", host.refusal());
    assert!(host.log.destroyed().is_some(), "the instance was not ended");
}

/// The detail of a launch comes from its stream, the name of the node from the plan.
#[test]
fn b18_a_failed_launch_names_its_node() {
    for streams in ["inline", "async"] {
        let host = Host::faulty(&[("fault", "internal@launch#2"), ("streams", streams)]);
        let error = run_session(&host).unwrap_err();
        check_words("internal@launch", &error);
        assert!(error.place().node.contains("second"), "{streams}: {error:?}");
        assert!(error.text().contains("INTERNAL"), "{error}");
    }
}

/// A fault known at enqueue concerns only that op.
#[test]
fn b13_a_failed_launch_leaves_the_device_whole() {
    for streams in ["inline", "async"] {
        let host = Host::faulty(&[("fault", "internal@launch"), ("streams", streams)]);
        assert_eq!(relu(&host.device()).unwrap_err().kind(), ErrorKind::PluginFailed);
        assert!(!host.device().is_lost() && !host.plugin().is_poisoned());
        assert_eq!(relu(&host.device()).unwrap(), RELU);
    }
}
