//! Panics in every function of a plugin: none crosses, the host lives on, and the plugin is poisoned but for panics in
//! functions of kernels, which fail one call (B19).

use crate::support::{
    Host, MODEL_INPUT, RELU, faulty_options, ledger, model, relu, relu_of, run_model, staged_model, tensor,
};
use devbay_host::internals::core::device::PrepareRequest;
use devbay_host::internals::core::error::Phase;
use devbay_host::internals::core::program::Op;
use devbay_host::internals::core::tensor::Bytes;
use devbay_host::{Device, Error, ErrorKind, Policy, RefusalKind, Requirements, Result, RunOptions, Session};
use devbay_plugin_api::abi::{DEVBAY_STATUS_OK, DEVBAY_STATUS_PANICKED, Status};
use devbay_plugin_faulty::Ledger;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// A host whose plugin panics in a function; memory is the device's own, so that copies are needed.
fn host(place: &str, streams: &str) -> Host {
    let fault = format!("panic@{place}");
    Host::faulty(&[("fault", &fault), ("streams", streams), ("host_memory", "no")])
}

/// Expects an error that has the panic's words and place, and a plugin that is called no more.
fn check(host: &Host, place: &str, error: &Error) {
    assert_eq!(error.kind(), ErrorKind::PluginPoisoned, "{place}: {error}");
    assert!(error.text().contains(&format!("a fault was asked for in {place}")), "{place}: {error}");
    assert!(error.text().contains("fault.rs:"), "the panic's place in the source is missing: {error}");
    assert_eq!(error.place().plugin, "faulty", "{error}");
    check_left_alone(host, place);
}

/// Expects that nothing but `stream_error` was called after the panic, whatever is tried and dropped.
fn check_left_alone(host: &Host, place: &str) {
    // No extension is given any more either, so the books were opened before.
    assert!(host.plugin().is_poisoned(), "{place}");
    assert!(host.plugin().extension(devbay_plugin_faulty::LEDGER, 1).is_none());
    let error = relu(&host.device()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PluginPoisoned, "{place}: {error}");
    assert!(error.text().contains("panicked before"), "{place}: {error}");
    let refused = host.runtime.choose(&Policy::Auto, &Requirements::default()).err().unwrap();
    assert!(refused.text().contains("its plugin panicked before"), "{refused}");
}

/// Calls after the panic that the host could not help: it learns of one on a stream's thread later, when it asks.
fn calls_before_it_is_known(books: &Ledger, place: &str) -> u64 {
    let calls = books.calls_after_panic.load(SeqCst);
    if place.contains("work") { calls } else { 0 }
}

/// Runs `body` on a device whose plugin panics in `place`.
fn check_panic(place: &str, streams: &str, body: impl FnOnce(&Arc<Device>) -> Result<()>) {
    let host = host(place, streams);
    let books = host.ledger();
    let error = body(&host.device()).expect_err(place);
    let known = calls_before_it_is_known(books, place);
    check(&host, place, &error);
    assert_eq!(books.calls_after_panic.load(SeqCst), known, "{place}: the plugin was called again");
    let log = host.log.clone();
    drop(host);
    assert_eq!(log.destroyed(), None, "{place}: a poisoned instance was destroyed");
}

fn run(device: &Arc<Device>) -> Result<()> {
    relu(device).map(drop)
}

fn run_session(device: &Arc<Device>) -> Result<()> {
    run_model(&model(), device, &RunOptions::default()).map(drop)
}

fn run_staged(device: &Arc<Device>) -> Result<()> {
    run_model(&staged_model(), device, &RunOptions::default()).map(drop)
}

#[test]
fn b19_panics_when_an_instance_is_made_refuse_the_plugin() {
    for (place, kind) in [
        ("create", RefusalKind::CreateFailed),
        ("devices", RefusalKind::DevicesFailed),
        ("describe", RefusalKind::DevicesFailed),
    ] {
        let fault = format!("panic@{place}");
        let host = Host::new(faulty_options(&[("fault", &fault)]));
        assert_eq!(host.refusal().kind, kind, "{place}");
        let reason = &host.refusal().reason;
        assert!(reason.contains(&format!("a fault was asked for in {place}")), "{reason}");
        assert!(reason.contains("PANICKED") && reason.contains("fault.rs:"), "{reason}");
        assert_eq!(host.log.destroyed(), None, "{place}: a poisoned instance was destroyed");
    }
    assert_eq!(relu(&Host::faulty(&[]).device()).unwrap(), RELU);
}

#[test]
fn b19_panics_in_functions_that_a_run_calls() {
    for streams in ["inline", "async"] {
        for place in ["alloc", "create_stream", "copy"] {
            check_panic(place, streams, run);
            check_panic(place, streams, run_session);
            check_panic(place, streams, run_staged);
        }
    }
    // A stream's own function puts the launch off there: the state that it keeps may be half done.
    for place in ["launch", "signal", "host_wait", "work"] {
        check_panic(place, "async", run);
        check_panic(place, "async", run_session);
        check_panic(place, "async", run_staged);
    }
}

/// Expects the failure of one call, with the panic's words and place, and a plugin that works as before.
fn check_one_failed(host: &Host, place: &str, error: &Error) {
    assert_eq!(error.kind(), ErrorKind::PluginFailed, "{place}: {error}");
    for words in [&format!("a fault was asked for in {place}"), "fault.rs:", "INTERNAL"] {
        assert!(error.text().contains(words), "{place}: {error}");
    }
    assert_eq!(error.place().plugin, "faulty", "{error}");
    check_well(host, place);
}

/// Expects a plugin that works, and gives back all that it made.
fn check_well(host: &Host, place: &str) {
    assert!(!host.plugin().is_poisoned(), "{place}");
    assert_eq!(relu(&host.device()).unwrap(), RELU, "{place}");
    let books = host.ledger();
    let alive = [&books.buffers, &books.streams, &books.kernels].map(|number| number.load(SeqCst));
    assert_eq!(alive, [0; 3], "{place}: buffers, streams and kernels that were not given back");
}

#[test]
fn b19_panics_in_kernels_fail_that_call_alone() {
    for (place, streams) in [("prepare", "inline"), ("prepare", "async"), ("launch", "inline")] {
        for body in [run, run_session, run_staged] {
            let host = host(place, streams);
            let error = body(&host.device()).expect_err(place);
            check_one_failed(&host, place, &error);
        }
    }
    // A run fails in its middle; the same session then runs.
    let host = Host::faulty(&[("fault", "panic@launch#2"), ("streams", "inline"), ("host_memory", "no")]);
    let session = Session::new(&model(), &host.device()).unwrap();
    let x = tensor(&MODEL_INPUT);
    let error = session.run(&[("x", &x)]).unwrap_err();
    assert!(!error.place().node.is_empty(), "{error}");
    session.run(&[("x", &x)]).unwrap();
    drop(session);
    check_one_failed(&host, "launch", &error);
}

/// Of many runs at once, that one fails in which the kernel panicked.
#[test]
fn b19_a_panic_in_a_launch_is_one_runs() {
    const N_THREADS: usize = 4;
    const N_RUNS: usize = 20;
    let host = Host::faulty(&[("fault", "panic@launch#40"), ("streams", "inline"), ("host_memory", "no")]);
    let x = tensor(&MODEL_INPUT);
    let failures: Vec<Error> = std::thread::scope(|scope| {
        let run = || {
            // A session each, as users of one runtime have them.
            let session = Session::new(&model(), &host.device()).unwrap();
            let runs = (0..N_RUNS).map(|_| session.run(&[("x", &x)]));
            runs.filter_map(Result::err).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..N_THREADS).map(|_| scope.spawn(run)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let [error] = &failures[..] else { panic!("{failures:?}") };
    check_one_failed(&host, "launch", error);
}

#[test]
fn b19_panics_in_the_middle_of_a_run() {
    // The copy of the result, and the work on the stream's thread.
    for fault in ["panic@copy#2", "panic@work#2", "panic@work#3"] {
        let host =
            Host::faulty(&[("fault", fault), ("streams", "async"), ("host_memory", "no"), ("work_ms", "1")]);
        let books = host.ledger();
        let error = run_session(&host.device()).expect_err(fault);
        assert_eq!(error.kind(), ErrorKind::PluginPoisoned, "{fault}: {error}");
        let known = calls_before_it_is_known(books, fault);
        check_left_alone(&host, fault);
        assert_eq!(books.calls_after_panic.load(SeqCst), known, "{fault}");
    }
}

/// A plugin whose waits are polled.
#[test]
fn b19_panics_in_reached() {
    let options = faulty_options(&[("fault", "panic@reached"), ("streams", "async"), ("host_memory", "no")]);
    let host = Host::new(options);
    let mut stream = host.device().create_stream("").unwrap();
    stream.signal().unwrap();
    let (_, status) = stream.reached().unwrap();
    let error = stream.check(status, Phase::AskReached).unwrap_err();
    check(&host, "reached", &error);
}

#[test]
fn b19_panics_in_optional_functions() {
    let (op, ty) = (Op::onnx("Relu", 14), tensor(&[1.0; 4]).tensor_type());
    let request = PrepareRequest {
        kernel_idx: 0,
        op: &op,
        attrs: &[],
        inputs: &[Some((ty.clone(), None))],
        outputs: &[Some(ty.clone())],
        numerics: devbay_host::internals::core::kernel::Numerics::Strict,
        label: "",
    };
    let asked = host("shape", "inline");
    check_one_failed(&asked, "shape", &asked.device().output_type(&request, 0).unwrap_err());
    let asked = host("pack", "inline");
    let pack = |device: &Arc<Device>| -> Result<()> {
        let factor = tensor(&[2.0; 4]);
        let kernel = device.prepare(&PrepareRequest {
            kernel_idx: 1,
            inputs: &[Some((ty.clone(), None)), Some((ty.clone(), Some(factor.clone())))],
            ..request
        })?;
        let packed = kernel.pack(&kernel.packs()[0], &factor)?;
        assert_eq!(packed.bytes(), factor.bytes());
        Ok(())
    };
    check_one_failed(&asked, "pack", &pack(&asked.device()).unwrap_err());
    pack(&asked.device()).unwrap();
    // Functions whose failure leaves the answer unknown. The cost of a kernel is asked of a node alone; the memory of a
    // device, whose panic counts all the same.
    let asked = host("cost", "inline");
    assert!(asked.device().cost(&request).is_none());
    check_well(&asked, "cost");
    let asked = host("memory_info", "inline");
    assert!(asked.device().bytes_available().is_none());
    check_left_alone(&asked, "memory_info");
}

/// Functions of streams that the host has no use for yet, through the table.
#[test]
fn b19_panics_in_functions_of_streams() {
    for place in ["wait", "on_reached", "flush"] {
        let host = host(place, "async");
        let table = &host.plugin().about().table;
        let (stream, other) =
            (host.device().create_stream("").unwrap(), host.device().create_stream("").unwrap());
        let call = |at: &str| -> Status {
            // SAFETY: the plugin's functions with its own streams; nothing is enqueued, and no callback given.
            unsafe {
                match at {
                    "wait" => table.stream_wait.unwrap()(stream.handle(), other.handle(), 0),
                    "on_reached" => {
                        unsafe extern "C" fn done(_: *mut std::ffi::c_void, _: Status) {}
                        table.stream_on_reached.unwrap()(stream.handle(), 0, Some(done), std::ptr::null_mut())
                    }
                    _ => table.stream_flush.unwrap()(stream.handle()),
                }
            }
        };
        assert_eq!(call(place), DEVBAY_STATUS_PANICKED, "{place}");
        let error = stream.check(DEVBAY_STATUS_PANICKED, Phase::Work).unwrap_err();
        check(&host, place, &error);
        // Without the fault they do their work.
        let host = Host::faulty(&[("streams", "async")]);
        let table = &host.plugin().about().table;
        let stream = host.device().create_stream("").unwrap();
        // SAFETY: the stream is the plugin's own, and nothing is enqueued on it.
        assert_eq!(unsafe { table.stream_flush.unwrap()(stream.handle()) }, DEVBAY_STATUS_OK);
    }
}

/// The words of a failure are asked for when there is one already: a panic there loses the words alone.
#[test]
fn b19_panics_while_a_failure_is_explained() {
    let host = host("failure", "async");
    let stream = host.device().create_stream("").unwrap();
    let error = stream.check(devbay_plugin_api::abi::DEVBAY_STATUS_INTERNAL, Phase::Launch).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PluginFailed, "{error}");
    assert!(error.text().contains("INTERNAL"), "{error}");
}

/// Functions that give back have no status to say it with; the panic stays in the plugin and the host goes on.
#[test]
fn b19_panics_in_destructors() {
    for place in ["free", "destroy_stream", "unprepare", "destroy"] {
        let host = host(place, "async");
        run_session(&host.device()).unwrap_or_else(|error| panic!("{place}: {error}"));
        assert!(!host.plugin().is_poisoned(), "{place}");
        let log = host.log.clone();
        drop(host);
        let alive = "destroyed with 0 buffers, 0 streams, 0 kernels";
        assert_eq!(log.destroyed().as_deref(), Some(alive), "{place}");
    }
    let host = host("extension", "inline");
    assert!(host.plugin().extension(devbay_plugin_faulty::LEDGER, 1).is_none(), "a panic is no table");
    assert_eq!(relu(&host.device()).unwrap(), RELU);
}

/// A body of a parallel loop runs on the host's threads: they survive it and work for others.
#[test]
fn b19_panics_in_a_parallel_loop() {
    let values = vec![-1.0; 100_000];
    // On a stream's own thread as on the caller's: all chunks have ended when the loop returns.
    for streams in ["async", "inline"] {
        let options = faulty_options(&[("fault", "panic@chunk#700"), ("streams", streams)]);
        let host = Host::new(options.threads(4));
        let error = relu_of(&host.device(), &values).unwrap_err();
        check_one_failed(&host, "chunk", &error);
    }
    let host = Host::new(faulty_options(&[]).threads(4));
    let threads = host.plugin().services().queue();
    let sum = std::sync::atomic::AtomicU64::new(0);
    let status = threads.parallel_for(1000, 1, &|begin, end, _| {
        sum.fetch_add((begin..end).sum(), SeqCst);
        0
    });
    assert_eq!((status, sum.into_inner()), (0, 499_500));
}

/// One poisoned plugin is none of another's business, nor of another instance of the same library.
#[test]
fn b19_other_instances_go_on() {
    let (bad, good) = (host("alloc", "inline"), Host::faulty(&[]));
    assert_eq!(relu(&good.device()).unwrap(), RELU);
    assert_eq!(relu(&bad.device()).unwrap_err().kind(), ErrorKind::PluginPoisoned);
    assert_eq!(relu(&good.device()).unwrap(), RELU);
    assert_eq!(ledger(good.plugin()).calls_after_panic.load(SeqCst), 0);
}

/// Of threads that run at once, one sees the panic and the others a poisoned plugin, or were through.
#[test]
fn b19_runs_of_other_threads_end_in_order() {
    let host = Host::faulty(&[("fault", "panic@copy#40"), ("streams", "async"), ("host_memory", "no")]);
    let books = host.ledger();
    let session = Session::new(&model(), &host.device()).unwrap();
    let x = tensor(&MODEL_INPUT);
    let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
        // Until the panic has reached this thread too.
        let run = || {
            let begin = Instant::now();
            let mut outcome = Ok(());
            while outcome.is_ok() && begin.elapsed() < Duration::from_secs(20) {
                outcome = session.run(&[("x", &x)]).map(drop);
            }
            outcome
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let kinds: Vec<_> = outcomes.iter().map(|outcome| outcome.as_ref().err().map(Error::kind)).collect();
    assert!(kinds.iter().all(|kind| *kind == Some(ErrorKind::PluginPoisoned)), "{kinds:?}");
    // Calls of other threads came in while the panic was on its way; none begins when it is known.
    let before = books.calls_after_panic.load(SeqCst);
    drop(session);
    check_left_alone(&host, "copy");
    assert_eq!(books.calls_after_panic.load(SeqCst), before);
}
