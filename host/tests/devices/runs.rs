//! Runs in the background: their results, their order, their end, and the threads that they run on.
//!
//! The plugin is written on the SDK and linked. Its one kernel calls back into the test, so that what happens within a
//! launch is decided here and not by time, and then runs loops within loops on the host's threads.

use devbay_host::internals::core::exec::jobs::Job;
use devbay_host::internals::core::exec::queue::Threads;
use devbay_host::internals::core::plan::tasks::Policy;
use devbay_host::internals::core::program::text;
use devbay_host::internals::core::tensor::{Bytes, F32};
use devbay_host::{
    Cancel, Error, ErrorKind, Model, OnFull, PlanOptions, Priority, Result, Run, RunOptions, Runtime,
    RuntimeBuilder, Session, SessionOptions, Tensor,
};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use worker::hook;

/// Longer than anything here takes.
const SOON: Duration = Duration::from_secs(30);

/// A plugin with one inline device and one kernel.
mod worker {
    use devbay_plugin_api::abi::{
        DEVBAY_DEVICE_HOST_REFS, DEVBAY_DEVICE_KIND_CPU, DEVBAY_SPACE_ADDRESSABLE, DEVBAY_SPACE_HOST_VISIBLE,
    };
    use devbay_plugin_api::locks::lock;
    use devbay_plugin_api::sdk::*;
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    /// Function that a kernel calls with its first number when it is launched.
    pub type Hook = Arc<dyn Fn(f32) + Send + Sync>;

    static HOOKS: Mutex<BTreeMap<i64, Hook>> = Mutex::new(BTreeMap::new());

    /// Has kernels with the attribute `hook = id` call `body`; each test has an id of its own.
    pub fn hook(id: i64, body: impl Fn(f32) + Send + Sync + 'static) {
        lock(&HOOKS).insert(id, Arc::new(body));
    }

    pub struct Worker(WorkerDevice);

    pub struct WorkerDevice {
        desc: DeviceDesc,
        host: Host,
    }

    pub struct WorkerStream;

    impl Plugin for Worker {
        type Device = WorkerDevice;
        const ABOUT: About = About { name: "worker", vendor: "tests", version: "1", ..About::DEFAULT };
        const KERNELS: &'static [Kernel<WorkerDevice>] = &[Kernel::new("Work", 1, prepare)
            .domain("test")
            .types(&[TypeVar::of(&[F32])])
            .attributes(&["fails", "hook", "loops"])
            .operands(&[0], &[0])
            .cost(|_| Ok(Cost { flops: 10_000_000, bytes_read: 8, bytes_written: 8 }))
            .shape(|request, _| Ok((F32, request.required_input(0)?.shape().to_vec())))];

        fn create(host: Host, _options: &Options<'_>) -> Result<Self> {
            let space = SpaceDesc {
                flags: DEVBAY_SPACE_HOST_VISIBLE | DEVBAY_SPACE_ADDRESSABLE,
                ..SpaceDesc::default()
            };
            let desc = DeviceDesc {
                kind: DEVBAY_DEVICE_KIND_CPU,
                id: "0".to_owned(),
                name: "worker".to_owned(),
                inline: true,
                flags: DEVBAY_DEVICE_HOST_REFS,
                spaces: vec![space],
                ..DeviceDesc::default()
            };
            Ok(Self(WorkerDevice { desc, host }))
        }

        fn devices(&self) -> Result<Vec<&WorkerDevice>> {
            Ok(vec![&self.0])
        }
    }

    impl Device for WorkerDevice {
        type Buffer = HostBuffer;
        type Stream = WorkerStream;

        fn describe(&self) -> &DeviceDesc {
            &self.desc
        }

        fn alloc(&self, request: &AllocRequest<'_>) -> Result<Allocated<HostBuffer>> {
            HostBuffer::alloc(request)
        }

        fn create_stream(&self, _request: &StreamRequest<'_>) -> Result<WorkerStream> {
            Ok(WorkerStream)
        }
    }

    impl Stream for WorkerStream {
        type Buffer = HostBuffer;

        fn copy(&self, copy: &CopyRequest<'_, HostBuffer>) -> Result<()> {
            copy.run_on_host();
            Ok(())
        }
    }

    /// Adds 1, after calling the test and going through loops within a loop.
    struct Work {
        host: Host,
        hook: i64,
        loops: usize,
        fails: bool,
    }

    fn prepare(request: &PrepareRequest<'_, WorkerDevice>) -> Result<Prepared> {
        Ok(Prepared::new(Work {
            host: request.device.host,
            hook: request.attrs.int("hook", 0)?,
            loops: request.attrs.int("loops", 0)? as usize,
            fails: request.attrs.int("fails", 0)? != 0,
        }))
    }

    impl Launch<WorkerDevice> for Work {
        fn launch(&self, _stream: &WorkerStream, operands: &mut Operands<'_>) -> Result<()> {
            let first = operands.input::<f32>(0)[0];
            let hook = lock(&HOOKS).get(&self.hook).cloned();
            if let Some(hook) = hook {
                hook(first);
            }
            if self.fails {
                return Err(Error::invalid("it was told to fail"));
            }
            let count = AtomicUsize::new(0);
            self.host.parallel_for(self.loops, 1, |_, _| {
                self.host.parallel_for(self.loops, 1, |inner, _| {
                    count.fetch_add(inner.len(), Ordering::Relaxed);
                    Ok(())
                })
            })?;
            if count.into_inner() != self.loops * self.loops {
                return Err(Error::invalid("a loop left something out"));
            }
            let x = operands.input::<f32>(0);
            for (y, x) in operands.output::<f32>(0).iter_mut().zip(x) {
                *y = x + 1.0;
            }
            Ok(())
        }
    }

    devbay_plugin_api::static_plugin!(Worker);
}

fn options(threads: usize) -> RuntimeBuilder {
    Runtime::builder().threads(threads).link(worker::devbay_entry::PLUGIN)
}

fn runtime(threads: usize) -> Runtime {
    options(threads).build().unwrap()
}

/// `n` launches in a row, each with these attributes.
fn chain(n: usize, attributes: &str) -> Model {
    let mut source = String::from("devbay-program 1\n\nprogram \"p\"(%v0: f32[2]) {\n");
    for i in 0..n {
        writeln!(source, "%v{} = test.Work@1(%v{i}) as \"work {i}\" {{{attributes}}}", i + 1).unwrap();
    }
    writeln!(source, "return %v{n}, %v1\n}}").unwrap();
    Model::from_program(text::parse(&source).unwrap_or_else(|error| panic!("{error}\n{source}")))
}

fn session(runtime: &Runtime, model: &Model) -> Session {
    Session::new(model, &runtime.devices()[0]).unwrap()
}

fn x(first: f32) -> Tensor {
    Tensor::from_elements(&[2], &[first, 0.0]).unwrap()
}

fn start(session: &Session, first: f32, options: &RunOptions) -> Run {
    session.run_async(&[("v0", &x(first))], options).unwrap()
}

fn first_of(tensors: &[Tensor]) -> f32 {
    tensors[0].elements::<f32>().unwrap()[0]
}

fn ended(run: &Run) -> Result<f32> {
    run.wait_timeout(SOON).expect("the run ends").map(|tensors| first_of(&tensors))
}

fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

/// Makes a gate at which launches with a hook wait: it reports each arrival, and lets one go for each word.
fn gate(id: i64) -> (Receiver<f32>, Sender<()>) {
    let (says, came) = channel();
    let (go, wait) = channel();
    let wait = Mutex::new(wait);
    hook(id, move |first| {
        // A test that has ended listens no more.
        let _ = says.send(first);
        let _ = wait.lock().unwrap().recv_timeout(SOON);
    });
    (came, go)
}

#[test]
fn many_runs_share_a_plan_on_threads_of_every_kind() {
    let crew = || options(0).queue(Crew::new(2));
    for (name, options) in [("1", options(1)), ("3", options(3)), ("the application's", crew())] {
        let runtime = options.build().unwrap();
        let session = session(&runtime, &chain(4, "loops = 20"));
        let runs: Vec<Run> = (0..200).map(|i| start(&session, i as f32, &RunOptions::default())).collect();
        for (i, run) in runs.iter().enumerate() {
            assert_eq!(ended(run).unwrap(), i as f32 + 4.0, "{name}");
            let one = run.outputs()[1].get().expect("all outputs are there when the run has ended");
            assert_eq!(one.elements::<f32>().unwrap()[0], i as f32 + 1.0);
        }
        // Blocking runs beside them.
        let other = start(&session, 0.0, &RunOptions::default());
        let here = session.run(&[("v0", &x(10.0))]).unwrap();
        assert_eq!((first_of(&here), ended(&other).unwrap()), (14.0, 4.0));
        assert_eq!(session.plan_for(&[("v0", &x(0.0))]).unwrap().program.main.inputs.len(), 1);
    }
}

#[test]
fn loops_within_tasks_within_jobs_end() {
    for threads in [2, 4] {
        let runtime = runtime(threads);
        // Sixteen independent launches, a task each, that all run nested loops.
        let mut source = String::from("devbay-program 1\n\nprogram \"p\"(%v0: f32[2]) {\n");
        for i in 1..=16 {
            writeln!(source, "%v{i} = test.Work@1(%v0) {{loops = 12, hook = {}}}", -i).unwrap();
        }
        let all: Vec<String> = (1..=16).map(|i| format!("%v{i}")).collect();
        writeln!(source, "return {}\n}}", all.join(", ")).unwrap();
        let model = Model::from_program(text::parse(&source).unwrap());
        let plans = PlanOptions { tasks: Policy::Each, ..PlanOptions::default() };
        let session = Session::with_options(&model, &runtime.devices()[0], plans).unwrap();
        let runs: Vec<Run> = (0..100).map(|i| start(&session, i as f32, &RunOptions::default())).collect();
        for (i, run) in runs.iter().enumerate() {
            assert_eq!(ended(run).unwrap(), i as f32 + 1.0);
        }
    }
}

#[test]
fn priority_orders_starts() {
    let runtime = runtime(2);
    let session = session(&runtime, &chain(1, "hook = 2"));
    let (came, go) = gate(2);
    let with = |priority| RunOptions { priority, ..RunOptions::default() };
    let mut runs = vec![start(&session, 0.0, &RunOptions::default())];
    assert_eq!(came.recv_timeout(SOON), Ok(0.0), "the one worker is busy");
    for (first, priority) in
        [(1.0, Priority::Low), (2.0, Priority::Normal), (3.0, Priority::High), (4.0, Priority::Normal)]
    {
        runs.push(start(&session, first, &with(priority)));
    }
    for expected in [3.0, 2.0, 4.0, 1.0] {
        go.send(()).unwrap();
        assert_eq!(came.recv_timeout(SOON), Ok(expected));
    }
    go.send(()).unwrap();
    assert!(runs.iter().all(|run| ended(run).is_ok()));
}

#[test]
fn a_cancelled_run_ends_and_the_next_is_clean() {
    let runtime = runtime(2);
    let session = session(&runtime, &chain(3, "hook = 3"));
    let (came, go) = gate(3);
    let running = start(&session, 1.0, &RunOptions::default());
    assert_eq!(came.recv_timeout(SOON), Ok(1.0));
    // The worker is busy: this one waits, and does not start.
    let waiting = start(&session, 7.0, &RunOptions::default());
    waiting.cancel();
    running.cancel();
    assert!(!running.has_ended());
    go.send(()).unwrap();
    assert_eq!(kind(ended(&running)), Some(ErrorKind::Cancelled));
    assert_eq!(kind(ended(&waiting)), Some(ErrorKind::Cancelled));
    assert!(came.try_recv().is_err(), "no launch after the first");
    // All outputs have the run's one error.
    let errors: Vec<&Error> = running.outputs().iter().map(|output| output.error().unwrap()).collect();
    assert!(errors[0].is_same(errors[1]) && errors[0].to_string().contains("device worker:0"));
    for _ in 0..3 {
        go.send(()).unwrap();
    }
    assert_eq!(ended(&start(&session, 1.0, &RunOptions::default())).unwrap(), 4.0);
}

#[test]
fn a_deadline_counts_from_the_call() {
    let runtime = runtime(2);
    let session = session(&runtime, &chain(2, "hook = 4"));
    let (came, go) = gate(4);
    let busy = start(&session, 1.0, &RunOptions::default());
    assert_eq!(came.recv_timeout(SOON), Ok(1.0));
    let cancel = Cancel::new();
    let deadline = Some(Duration::from_millis(20));
    let late =
        start(&session, 2.0, &RunOptions { deadline, cancel: Some(cancel.clone()), ..RunOptions::default() });
    let begin = Instant::now();
    while !cancel.is_cancelled() {
        assert!(begin.elapsed() < SOON, "the deadline does not come");
        std::thread::sleep(Duration::from_millis(1));
    }
    for _ in 0..2 {
        go.send(()).unwrap();
    }
    assert_eq!(kind(ended(&late)), Some(ErrorKind::DeadlineExceeded));
    assert_eq!(ended(&busy).unwrap(), 3.0);
}

#[test]
fn dropping_the_handle_does_not_cancel() {
    let runtime = runtime(2);
    let session = session(&runtime, &chain(2, "hook = 5"));
    let (came, go) = gate(5);
    let run = start(&session, 1.0, &RunOptions::default());
    let results = run.results().clone();
    drop((run, session, runtime));
    // All else is gone: the run holds the parts that it needs, and ends its threads when it ends.
    assert_eq!(came.recv_timeout(SOON), Ok(1.0));
    for _ in 0..2 {
        go.send(()).unwrap();
    }
    let outcome = results.wait_timeout(SOON).expect("the run ends").unwrap();
    assert_eq!(first_of(outcome), 3.0);
}

#[test]
fn a_failed_run_leaves_the_next_clean() {
    for threads in [1, 3] {
        let runtime = runtime(threads);
        let device = &runtime.devices()[0];
        let good = session(&runtime, &chain(3, "loops = 3"));
        let bad = session(&runtime, &chain(3, "fails = 1"));
        let peak_at_rest = |n: usize| {
            for i in 0..n {
                let runs =
                    [start(&bad, 1.0, &RunOptions::default()), start(&good, 1.0, &RunOptions::default())];
                let error = ended(&runs[0]).unwrap_err();
                assert_eq!(error.place().node, "work 0 (test.Work@1)", "{i}: {error}");
                assert_eq!(ended(&runs[1]).unwrap(), 4.0);
            }
            device.bytes_in_use().0
        };
        // The memory that runs keep for the next ones does not grow with their number.
        let after = peak_at_rest(10);
        assert_eq!(peak_at_rest(50), after);
        let memory = runtime.memory();
        assert_eq!((&*memory[0].device, memory[0].bytes_in_use), ("worker:0", after));
        assert!(memory[0].bytes_peak >= after);
    }
}

/// Memory of an input that only the thread that made it may read.
struct Shy([f32; 2], std::thread::ThreadId);

impl Bytes for Shy {
    fn bytes(&self) -> &[u8] {
        assert_eq!(std::thread::current().id(), self.1, "read by a stranger");
        bytemuck::bytes_of(&self.0)
    }
}

#[test]
fn a_run_that_panics_is_an_error_and_costs_no_thread() {
    let runtime = runtime(3);
    let session = session(&runtime, &chain(2, "loops = 5"));
    let memory = Arc::new(Shy([1.0, 2.0], std::thread::current().id()));
    let shy = Tensor::from_storage(F32, &[2], memory, 0, 8).unwrap();
    for _ in 0..10 {
        let run = session.run_async(&[("v0", &shy)], &RunOptions::default()).unwrap();
        let error = ended(&run).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        let text = error.to_string();
        assert!(text.contains("device worker:0") && text.contains("the run panicked: "), "{text}");
        assert!(text.contains("read by a stranger"), "{text}");
        assert_eq!(ended(&start(&session, 1.0, &RunOptions::default())).unwrap(), 3.0);
    }
}

#[test]
fn inputs_that_do_not_fit_are_refused_at_once() {
    let runtime = runtime(1);
    let session = session(&runtime, &chain(1, ""));
    let start = |name: &str, tensor: &Tensor| session.run_async(&[(name, tensor)], &RunOptions::default());
    assert_eq!(kind(start("v1", &x(1.0))), Some(ErrorKind::InvalidInput));
    assert_eq!(
        kind(start("v0", &Tensor::from_elements(&[1], &[1.0f32]).unwrap())),
        Some(ErrorKind::InvalidInput)
    );
}

#[test]
fn runs_beyond_the_bound_are_refused_or_wait() {
    let runtime = runtime(2);
    let options = SessionOptions { runs_max: NonZeroUsize::new(2), ..SessionOptions::default() };
    let model = chain(1, "hook = 6");
    let session = Session::with_options(&model, &runtime.devices()[0], options).unwrap();
    let (came, go) = gate(6);
    let first = start(&session, 1.0, &RunOptions::default());
    assert_eq!(came.recv_timeout(SOON), Ok(1.0));
    let second = start(&session, 2.0, &RunOptions::default());
    // One runs and one waits for a thread: both are in flight. Blocking runs count too.
    let refuse = RunOptions::default();
    let text = session.run_async(&[("v0", &x(3.0))], &refuse).err().unwrap();
    assert_eq!(text.kind(), ErrorKind::Busy);
    assert!(text.to_string().contains("2 runs of this session are in flight"), "{text}");
    assert_eq!(kind(session.run_with(&[("v0", &x(3.0))], &refuse)), Some(ErrorKind::Busy));
    // A run that waits can be cancelled, and has a deadline.
    let on_full = OnFull::Wait;
    let deadline = Some(Duration::from_millis(20));
    let late = RunOptions { deadline, on_full, ..RunOptions::default() };
    assert_eq!(kind(session.run_with(&[("v0", &x(3.0))], &late)), Some(ErrorKind::DeadlineExceeded));
    assert_eq!(kind(session.run_async(&[("v0", &x(3.0))], &late)), Some(ErrorKind::DeadlineExceeded));
    std::thread::scope(|scope| {
        let waits = RunOptions { on_full, ..RunOptions::default() };
        let session = &session;
        let third = scope.spawn(move || start(session, 3.0, &waits));
        for _ in 0..3 {
            go.send(()).unwrap();
        }
        assert_eq!(ended(&third.join().unwrap()).unwrap(), 4.0);
    });
    assert_eq!((ended(&first).unwrap(), ended(&second).unwrap()), (2.0, 3.0));
    // When the end of a run is reported, its place is free.
    for i in 0..100 {
        let runs = [0.0, 1.0].map(|first| start(&session, first, &refuse));
        for _ in &runs {
            go.send(()).unwrap();
        }
        assert!(runs.iter().all(|run| ended(run).is_ok()), "{i}");
    }
}

struct Flag(AtomicBool, std::thread::Thread);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
        self.1.unpark();
    }
}

#[test]
fn a_run_is_a_future() {
    let runtime = runtime(2);
    let session = session(&runtime, &chain(2, "hook = 7"));
    let (_came, go) = gate(7);
    let mut future = std::pin::pin!(start(&session, 5.0, &RunOptions::default()).into_future());
    let flag = Arc::new(Flag(AtomicBool::new(false), std::thread::current()));
    let waker = Waker::from(Arc::clone(&flag));
    let mut context = Context::from_waker(&waker);
    assert!(future.as_mut().poll(&mut context).is_pending());
    for _ in 0..2 {
        go.send(()).unwrap();
    }
    let begin = Instant::now();
    while !flag.0.load(Ordering::SeqCst) {
        assert!(begin.elapsed() < SOON, "nobody woke the task");
        std::thread::park_timeout(SOON);
    }
    let Poll::Ready(outcome) = future.as_mut().poll(&mut context) else { panic!("woken too early") };
    assert_eq!(first_of(&outcome.unwrap()), 7.0);
}

/// Threads as an application may have them: a channel of jobs, and a few that take from it.
struct Crew {
    jobs: Sender<Job>,
    n_threads: usize,
    n_jobs: AtomicUsize,
}

impl Crew {
    fn new(n_threads: usize) -> Arc<Self> {
        let (jobs, inbox) = channel::<Job>();
        let inbox = Arc::new(Mutex::new(inbox));
        for _ in 0..n_threads {
            let inbox = Arc::clone(&inbox);
            std::thread::spawn(move || {
                loop {
                    let job = inbox.lock().unwrap().recv();
                    let Ok(job) = job else { return };
                    job();
                }
            });
        }
        Arc::new(Self { jobs, n_threads, n_jobs: AtomicUsize::new(0) })
    }
}

impl Threads for Crew {
    fn n_threads(&self) -> usize {
        self.n_threads
    }

    fn run(&self, job: Job) {
        self.n_jobs.fetch_add(1, Ordering::Relaxed);
        self.jobs.send(job).unwrap();
    }
}

#[test]
fn the_applications_threads_do_all_work() {
    let crew = Crew::new(3);
    let queue: Arc<dyn Threads> = Arc::clone(&crew) as _;
    let runtime = options(0).queue(queue.clone()).build().unwrap();
    assert_eq!(runtime.n_threads(), 4);
    // Launches that take a while, a task each: others than the caller take part.
    let mut source = String::from("devbay-program 1\n\nprogram \"p\"(%v0: f32[2]) {\n");
    for i in 1..=16 {
        writeln!(source, "%v{i} = test.Work@1(%v0) {{hook = 8, loops = {i}}}").unwrap();
    }
    let all: Vec<String> = (1..=16).map(|i| format!("%v{i}")).collect();
    writeln!(source, "return {}\n}}", all.join(", ")).unwrap();
    let model = Model::from_program(text::parse(&source).unwrap());
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let seen_by_hook = Arc::clone(&seen);
    hook(8, move |_| {
        seen_by_hook.lock().unwrap().insert(format!("{:?}", std::thread::current().id()));
        std::thread::sleep(Duration::from_millis(1));
    });
    let plans = PlanOptions { tasks: Policy::Each, ..PlanOptions::default() };
    let session = Session::with_options(&model, &runtime.devices()[0], plans).unwrap();
    let begin = Instant::now();
    while seen.lock().unwrap().len() < 2 {
        assert!(begin.elapsed() < SOON, "nobody helped");
        let outputs = session.run(&[("v0", &x(1.0))]).unwrap();
        assert_eq!(first_of(&outputs), 2.0);
    }
    seen.lock().unwrap().clear();
    assert_eq!(ended(&start(&session, 2.0, &RunOptions::default())).unwrap(), 3.0);
    let here = format!("{:?}", std::thread::current().id());
    assert!(!seen.lock().unwrap().contains(&here), "a run in the background ran here");
    assert!(crew.n_jobs.load(Ordering::Relaxed) > 0);

    let both = |threads, affinity| kind(options(threads).queue(queue.clone()).affinity(affinity).build());
    assert_eq!(both(2, None), Some(ErrorKind::InvalidArgument));
    assert_eq!(both(0, Some(vec![0])), Some(ErrorKind::InvalidArgument));
}
