//! Order: timelines, failures that come late, memory that is lent until a point is reported (B12 to B14, B24).

use crate::support::{
    Host, MODEL_INPUT, MODEL_OUTPUT, RELU, faulty_options, model, relu, run_model, staged_model, tensor,
};
use devbay_host::internals::core::device::Stream;
use devbay_host::internals::core::program::{Node, Op, Program};
use devbay_host::internals::core::tensor::{BOOL, Bytes, F32};
use devbay_host::internals::eager;
use devbay_host::{ErrorKind, Model, RunOptions, Session, Tensor};
use devbay_plugin_api::abi::{DEVBAY_STATUS_INTERNAL, DEVBAY_STATUS_INVALID, DEVBAY_STATUS_OK, Status};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn b12_points_rise_and_are_reached_in_order() {
    let host = Host::faulty(&[("streams", "async"), ("work_ms", "150")]);
    let buffer = host.device().alloc(64, 0).unwrap();
    let source = [7u8; 64];
    let mut stream = host.device().create_stream("").unwrap();
    let mut last = 0;
    for _ in 0..3 {
        // SAFETY: the source lives until its point is reached, below.
        unsafe { stream.copy_in(source.as_ptr(), buffer.reference(0, 64)) }.unwrap();
        let value = stream.signal().unwrap();
        assert!(value > last, "{value} after {last}");
        last = value;
        let (reached, status) = stream.reached().unwrap();
        assert!(reached < value && status == DEVBAY_STATUS_OK, "{reached} reached while a copy takes 150 ms");
    }
    stream.wait_reached(last, LIMIT).unwrap();
    assert_eq!(stream.reached().unwrap(), (last, DEVBAY_STATUS_OK));
    // Reached once is reached for good, and for all before.
    stream.wait_reached(1, Duration::ZERO).unwrap();
}

/// A stream is one at a time: it moves between threads and is not shared.
#[test]
fn b12_a_stream_belongs_to_one_thread_at_a_time() {
    fn moves<T: Send>() {}
    moves::<Stream>();
    // Of two candidates for a method the compiler takes the one without a reference, where its bound holds.
    struct Probe<T>(PhantomData<T>);
    trait Shared {
        fn is_shared(&self) -> bool;
    }
    impl<T: Sync> Shared for Probe<T> {
        fn is_shared(&self) -> bool {
            true
        }
    }
    impl<T> Shared for &Probe<T> {
        fn is_shared(&self) -> bool {
            false
        }
    }
    let (number, stream) = (&Probe::<u8>(PhantomData), &Probe::<Stream>(PhantomData));
    assert!(number.is_shared());
    assert!(!stream.is_shared());
}

/// Found late, a failure is the stream's from there on; other streams do not notice.
#[test]
fn b13_a_late_failure_stays_on_its_stream() {
    // So long that a busy machine does not make a signal come behind the failure.
    let host = Host::faulty(&[("fault", "internal@work"), ("streams", "async"), ("work_ms", "500")]);
    let buffer = host.device().alloc(64, 0).unwrap();
    let source = [7u8; 64];
    let (mut bad, mut good) =
        (host.device().create_stream("").unwrap(), host.device().create_stream("").unwrap());
    // SAFETY: the source outlives both streams, which wait for their work when they are dropped.
    unsafe { bad.copy_in(source.as_ptr(), buffer.reference(0, 64)) }.expect("it is not known yet");
    let point = bad.signal().unwrap();
    let error = bad.wait_reached(point, LIMIT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PluginFailed);
    assert!(error.text().contains("a fault was asked for in work"), "{error}");
    // Sticky: the next point fails with the same words.
    let again = bad.finish(LIMIT).unwrap_err();
    assert!(again.text().contains("a fault was asked for in work"), "{again}");
    // A copy that is refused for it is not to blame.
    // SAFETY: the source outlives both streams.
    let refused = unsafe { bad.copy_in(source.as_ptr(), buffer.reference(0, 64)) }.unwrap_err();
    assert!(refused.text().contains("work on a stream"), "{refused}");
    // SAFETY: the source outlives both streams.
    unsafe { good.copy_in(source.as_ptr(), buffer.reference(0, 64)) }.unwrap();
    good.finish(LIMIT).unwrap();
    drop(bad);
    assert_eq!(relu(&host.device()).unwrap(), RELU, "a failed stream is replaced");
}

#[test]
fn b13_runs_after_a_late_failure_have_other_streams() {
    let host = Host::faulty(&[("fault", "internal@work#2"), ("streams", "async"), ("host_memory", "no")]);
    let session = Session::new(&model(), &host.device()).unwrap();
    let x = tensor(&MODEL_INPUT);
    let run = || session.run(&[("x", &x)]);
    assert_eq!(run().unwrap_err().kind(), ErrorKind::PluginFailed);
    for _ in 0..3 {
        assert_eq!(run().unwrap()[0].elements::<f32>().unwrap(), MODEL_OUTPUT);
    }
}

/// A point that never comes is an error after the time limit, and what was lent stays lent.
#[test]
fn b12_waiting_has_a_limit() {
    // So long that a busy machine does not make a wait of 20 ms as long.
    let host = Host::faulty(&[("streams", "async"), ("work_ms", "3000")]);
    let buffer = host.device().alloc(64, 0).unwrap();
    let source = [7u8; 64];
    let mut stream = host.device().create_stream("").unwrap();
    // SAFETY: the source outlives the stream, whose drop waits for its work.
    unsafe { stream.copy_in(source.as_ptr(), buffer.reference(0, 64)) }.unwrap();
    let point = stream.signal().unwrap();
    let begin = Instant::now();
    let error = stream.wait_reached(point, Duration::from_millis(20)).unwrap_err();
    assert!(begin.elapsed() < Duration::from_millis(2900), "{:?}", begin.elapsed());
    assert_eq!(error.kind(), ErrorKind::PluginBroken);
    assert!(error.text().contains("neither reached nor failed"), "{error}");
    stream.wait_reached(point, LIMIT).unwrap();
}

/// The SDK's callbacks carry the failure of the stream, and come once for each that was asked for.
#[test]
fn b16_callbacks_of_a_failed_stream_say_so() {
    unsafe extern "C" fn done(arg: *mut c_void, status: Status) {
        // SAFETY: the callers pass a sender that lives until the stream is destroyed.
        unsafe { &*arg.cast::<Sender<Status>>() }.send(status).unwrap();
    }
    // So long that a busy machine does not make a copy come behind the failure.
    let host = Host::faulty(&[("fault", "internal@work#2"), ("streams", "async"), ("work_ms", "300")]);
    let on_reached = host.plugin().about().table.stream_on_reached.unwrap();
    let buffer = host.device().alloc(64, 0).unwrap();
    let source = [7u8; 64];
    let (sender, received) = channel();
    let arg = (&raw const sender).cast_mut().cast();
    let mut stream = host.device().create_stream("").unwrap();
    for _ in 0..3 {
        // SAFETY: the source outlives the stream, whose drop waits for its work.
        unsafe { stream.copy_in(source.as_ptr(), buffer.reference(0, 64)) }.unwrap();
        let value = stream.signal().unwrap();
        // SAFETY: the stream is the plugin's own; the sender lives until it is destroyed.
        assert_eq!(unsafe { on_reached(stream.handle(), value, Some(done), arg) }, DEVBAY_STATUS_OK);
    }
    // SAFETY: the stream is the plugin's own; the value was never signalled, so no call comes.
    assert_eq!(unsafe { on_reached(stream.handle(), 99, Some(done), arg) }, DEVBAY_STATUS_INVALID);
    drop(stream);
    // The first point was reached; the second copy failed, and with it all points behind.
    let came: Vec<Status> = received.try_iter().collect();
    assert_eq!(came, [DEVBAY_STATUS_OK, DEVBAY_STATUS_INTERNAL, DEVBAY_STATUS_INTERNAL]);
}

/// A device that completes inline says so once: no function of a timeline is ever called.
#[test]
fn b14_inline_streams_have_no_timeline() {
    let host = Host::faulty(&[("host_memory", "no")]);
    let session = Session::new(&model(), &host.device()).unwrap();
    for _ in 0..3 {
        let results = session.run(&[("x", &tensor(&MODEL_INPUT))]).unwrap();
        assert_eq!(results[0].elements::<f32>().unwrap(), MODEL_OUTPUT);
    }
    assert_eq!(relu(&host.device()).unwrap(), RELU);
    let books = host.ledger();
    assert!(books.launches.load(SeqCst) > 0 && books.copies.load(SeqCst) > 0, "nothing was enqueued");
    assert_eq!(books.inline_timeline_calls.load(SeqCst), 0);
}

/// The status of a launch or copy says nothing about its completion: the work is not done before its point.
#[test]
fn b14_enqueuing_does_not_wait() {
    // So long that a busy machine does not make enqueuing as long.
    let host = Host::faulty(&[("streams", "async"), ("work_ms", "500")]);
    let buffer = host.device().alloc(64, 0).unwrap();
    let source = [7u8; 64];
    let mut stream = host.device().create_stream("").unwrap();
    let begin = Instant::now();
    for _ in 0..4 {
        // SAFETY: the source outlives the stream, whose drop waits for its work.
        unsafe { stream.copy_in(source.as_ptr(), buffer.reference(0, 64)) }.unwrap();
    }
    assert!(begin.elapsed() < Duration::from_millis(1900), "{:?}", begin.elapsed());
    stream.finish(LIMIT).unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(2000), "{:?}", begin.elapsed());
}

/// Prepared once for a plan, launched by every run and thread.
#[test]
fn b21_kernels_are_prepared_once_and_launched_by_many() {
    for streams in ["inline", "async"] {
        let host = Host::faulty(&[("streams", streams)]);
        let session = Session::new(&model(), &host.device()).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        let x = tensor(&MODEL_INPUT);
                        let results = session.run(&[("x", &x)]).unwrap();
                        assert_eq!(results[0].elements::<f32>().unwrap(), MODEL_OUTPUT);
                    }
                });
            }
        });
        let books = host.ledger();
        assert_eq!(books.prepares.load(SeqCst), 2, "{streams}");
        assert_eq!(books.launches.load(SeqCst), 200, "{streams}");
    }
}

/// A run that fails or is cut short keeps its memory until the device is through with it.
#[test]
fn b24_memory_lives_until_the_work_is_over() {
    // A kernel fails while more is in the queue, or was never enqueued; a deadline in the middle of the work.
    let deadline = Some(Duration::from_millis(10));
    let cases = [("internal@work", None), ("internal@work#2", None), ("internal@launch#2", None)];
    for (fault, deadline) in cases.into_iter().chain([("none", deadline)]) {
        for model in [model(), staged_model()] {
            let host = Host::faulty(&[
                ("fault", fault),
                ("streams", "async"),
                ("host_memory", "no"),
                ("work_ms", "40"),
            ]);
            let outcome =
                run_model(&model, &host.device(), &RunOptions { deadline, ..RunOptions::default() });
            assert!(outcome.is_err() || deadline.is_some(), "{fault}");
            let books = host.ledger();
            assert_eq!(books.freed_in_flight.load(SeqCst), 0, "{fault}");
            assert_eq!(books.in_flight.load(SeqCst), 0, "{fault}: the run's end did not wait");
        }
    }
}

/// A kernel that does not return keeps the thread and what it borrowed; the call returns, and says where it is.
#[test]
fn b24_a_kernel_that_does_not_return_keeps_what_it_borrowed() {
    // Long enough to come to the second launch on any machine.
    let options = RunOptions { deadline: Some(Duration::from_secs(3)), ..RunOptions::default() };
    let host = Host::faulty(&[("fault", "hang@launch#2")]);
    let session = Session::new(&model(), &host.device()).unwrap();
    let x = tensor(&MODEL_INPUT);
    let error = session.run_with(&[("x", &x)], &options).unwrap_err();
    let place = error.place();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
    assert_eq!((&*place.plugin, &*place.device), ("faulty", "faulty:0"), "{error}");
    assert!(place.node.contains("second") && error.text().contains("has not returned"), "{error}");
}

/// A run that is cancelled while the device works ends when the device is through with its memory, and leaves the
/// next one clean.
#[test]
fn b24_a_run_is_cancelled_with_work_in_flight() {
    for model in [model(), staged_model()] {
        let host = Host::faulty(&[("streams", "async"), ("host_memory", "no"), ("work_ms", "40")]);
        let session = Session::new(&model, &host.device()).unwrap();
        let (x, sure) = (tensor(&MODEL_INPUT), Tensor::from_bytes(BOOL, &[], &[1]).unwrap());
        let inputs = &[("x", &x), ("sure", &sure)][..session.inputs().len()];
        let books = host.ledger();
        for round in 0..3 {
            let run = session.run_async(inputs, &RunOptions::default()).unwrap();
            let begin = Instant::now();
            while books.in_flight.load(SeqCst) == 0 {
                assert!(begin.elapsed() < LIMIT && !run.has_ended(), "{round}: nothing was enqueued");
                std::thread::sleep(Duration::from_millis(1));
            }
            run.cancel();
            let outcome = run.wait_timeout(LIMIT).expect("the run ends");
            assert_eq!(books.in_flight.load(SeqCst), 0, "{round}: the run's end did not wait");
            assert_eq!(outcome.err().map(|error| error.kind()), Some(ErrorKind::Cancelled), "{round}");
            let next = session.run_async(inputs, &RunOptions::default()).unwrap();
            let results = next.wait_timeout(LIMIT).expect("the run ends").unwrap();
            assert_eq!(results[0].elements::<f32>().unwrap(), MODEL_OUTPUT, "{round}");
        }
        assert_eq!(books.freed_in_flight.load(SeqCst), 0);
    }
}

/// Memory that says when it goes.
struct Watched(Vec<u64>, Arc<AtomicBool>);

impl Bytes for Watched {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.1.store(true, SeqCst);
    }
}

/// Four numbers, and whether their memory is gone.
fn watched() -> (Tensor, Arc<AtomicBool>) {
    let gone = Arc::new(AtomicBool::new(false));
    let memory = Arc::new(Watched(vec![0; 2], Arc::clone(&gone)));
    (Tensor::from_storage(F32, &[4], memory, 0, 16).unwrap(), gone)
}

/// A plugin that panicked cannot be asked when its device has finished, so the memory lent to it stays for good. Here a
/// device that works in the host's own memory has a launch in flight when the signal behind it panics.
#[test]
fn b24_what_a_poisoned_plugin_may_still_use_is_kept() {
    for fault in ["panic@signal", "none"] {
        // The constant is used as it is.
        let options = [("fault", fault), ("streams", "async"), ("work_ms", "50"), ("packs", "no")];
        let host = || Host::new(faulty_options(&options));

        let (input, input_gone) = watched();
        let one = host();
        let outcome = eager::run(&one.device(), "Relu", &[], &[&input], 1);
        let expected = |fault| if fault == "none" { None } else { Some(ErrorKind::PluginPoisoned) };
        assert_eq!(outcome.map(drop).err().map(|error| error.kind()), expected(fault));
        drop((one, input));
        assert_eq!(input_gone.load(SeqCst), fault == "none", "an input, {fault}");

        let (constant, constant_gone) = watched();
        let mut program = Program::default();
        let ty = constant.tensor_type();
        let (x, y) = (program.add_typed("x", ty.clone()), program.add_typed("y", ty));
        let factor = program.add_constant("factor", constant);
        program.main.nodes.push(Node::new(Op::onnx("Mul", 14), vec![Some(x), Some(factor)], vec![Some(y)]));
        (program.main.inputs, program.main.outputs) = (vec![x], vec![y]);
        let (one, model) = (host(), Model::from_program(program));
        let outcome = run_model(&model, &one.device(), &RunOptions::default());
        assert_eq!(outcome.err().map(|error| error.kind()), expected(fault));
        drop((one, model));
        assert_eq!(constant_gone.load(SeqCst), fault == "none", "a constant, {fault}");
    }
}

/// The end of a stream waits for its work.
#[test]
fn b24_dropping_a_stream_waits() {
    let host = Host::faulty(&[("streams", "async"), ("work_ms", "200")]);
    let buffer = host.device().alloc(64, 0).unwrap();
    let source = [7u8; 64];
    let mut stream = host.device().create_stream("").unwrap();
    // SAFETY: the source outlives the stream, whose drop waits for its work.
    unsafe { stream.copy_in(source.as_ptr(), buffer.reference(0, 64)) }.unwrap();
    assert_eq!(host.ledger().in_flight.load(SeqCst), 1);
    drop(stream);
    assert_eq!(host.ledger().in_flight.load(SeqCst), 0);
}
