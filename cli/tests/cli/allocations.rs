//! A steady-state run of a static model allocates nothing on the heap.
//!
//! Each test runs itself again in a process whose allocation functions are replaced by counting ones, including those that
//! the plugin's library calls (`support/count_allocations.c`, compiled here and loaded first with `LD_PRELOAD`). That
//! process checks that the counter counts, brings each model to its steady state, and expects the counter to stay constant
//! from then on.

use crate::support::{Case, DONE, Folder, UNTIL, first_cases, plugin_library, run_again};
use devbay_host::internals::core::plan::tasks::Policy;
use devbay_host::internals::core::program::text;
use devbay_host::{
    Device, InputView, Model, PlanOptions, RunOptions, Runtime, Session, SessionOptions, Tensor, arrays,
};
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Models whose plan is not a single section, because types depend on data: they are not static.
const NOT_STATIC: &[&str] = &["silero_vad_v6", "slanet_1m"];

/// Number of runs before counting.
const WARM_UP: usize = 2;
/// Minimum and maximum number of counted runs.
const COUNTED: std::ops::RangeInclusive<usize> = 2..=50;
/// Time after which only the minimum is counted.
const TIME: Duration = Duration::from_millis(100);

/// Returns the interposed counter; None in a process without it.
fn counter() -> Option<&'static AtomicU64> {
    // SAFETY: the name is a C string, and looking it up has no effects.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"devbay_allocations".as_ptr()) };
    // SAFETY: NULL, or the address of the library's `_Atomic uint64_t`, which has this type's layout and stays
    // loaded as long as the process lives.
    unsafe { address.cast::<AtomicU64>().as_ref() }
}

fn check(test: &str, loaded: bool, threads: usize) {
    match counter() {
        Some(counter) => count(counter, loaded, threads),
        None => run_counting(test),
    }
}

/// Runs this test again, in a process with the counter.
fn run_counting(test: &str) {
    let folder = Folder::new();
    let library = folder.path("libcount_allocations.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/support/count_allocations.c");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(source);
    let compiled = cc.output().expect("expected a C compiler called cc");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    run_again(&format!("allocations::{test}"), |child| {
        child.env("LD_PRELOAD", &library);
    });
}

/// Counts in the process with the counter.
fn count(counter: &AtomicU64, loaded: bool, threads: usize) {
    check_counter(counter);
    let builder = Runtime::builder().threads(threads).option("cpu", "streams", "inline,inline");
    let builder = match loaded {
        true => builder.plugin(plugin_library()),
        false => builder.link(devbay_plugin_cpu::PLUGIN),
    };
    let runtime = builder.build().unwrap();
    let devices = runtime.devices();
    let device = devices.first().unwrap_or_else(|| panic!("{:?}", runtime.report()));
    let before = counter.load(Ordering::Relaxed);
    drop(device.alloc(1 << 12, 0).unwrap());
    assert!(counter.load(Ordering::Relaxed) > before, "the plugin's allocations are not counted");

    assert_eq!(steady_regions(counter, &runtime), 0, "allocations of control flow over two devices");
    let first = first_cases();
    let (mut n_models, mut failures) = (0, Vec::new());
    let is_static = |case: &Case| !NOT_STATIC.iter().any(|name| case.name.starts_with(name));
    for case in &first {
        match steady(counter, case, device) {
            Some(0) => n_models += 1,
            Some(n) => failures.push(format!("{}: {n} allocations in its steady state", case.name)),
            None => assert!(!is_static(case), "{}: expected a plan of one section", case.name),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(n_models, first.iter().filter(|case| is_static(case)).count());
    eprintln!("{DONE}: the counter stood still for {n_models} models");
}

/// Checks that each allocating function counts once.
fn check_counter(counter: &AtomicU64) {
    let counted = |body: &dyn Fn()| {
        let before = counter.load(Ordering::Relaxed);
        body();
        counter.load(Ordering::Relaxed) - before
    };
    assert_eq!(counted(&|| drop(black_box(Box::new(1u8)))), 1, "malloc");
    assert_eq!(counted(&|| drop(black_box(vec![0u8; black_box(100)]))), 1, "calloc");
    let grow = || {
        let mut bytes = black_box(Vec::<u8>::with_capacity(16));
        bytes.reserve_exact(black_box(4096));
        drop(black_box(bytes));
    };
    assert_eq!(counted(&grow), 2, "malloc and realloc");
    #[repr(align(4096))]
    struct Page(#[expect(dead_code, reason = "fills the page")] [u8; 4096]);
    assert_eq!(counted(&|| drop(black_box(Box::new(Page([0; 4096]))))), 1, "posix_memalign");
    assert_eq!(counted(&|| ()), 0, "nothing");
}

/// Returns the allocations of a model's runs in its steady state; None if it is not static.
fn steady(counter: &AtomicU64, case: &Case, device: &Arc<Device>) -> Option<u64> {
    let model = Model::load(&case.model).unwrap_or_else(|error| panic!("{error:?}"));
    let inputs = arrays::read_npz(&case.inputs).unwrap();
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let session = Session::new(&model, device).unwrap_or_else(|error| panic!("{error:?}"));
    session.plan_for(&given).unwrap().single()?;
    Some(steady_runs(counter, &session, &given, &case.name))
}

/// Returns the allocations of runs whose control flow is tasks, one per launch, over two devices.
fn steady_regions(counter: &AtomicU64, runtime: &Runtime) -> u64 {
    let [first, second, ..] = &runtime.devices()[..] else {
        panic!("expected two devices: {:?}", runtime.report());
    };
    let model = Model::from_program(text::parse(UNTIL).unwrap());
    let options = SessionOptions {
        plans: PlanOptions { tasks: Policy::Each, ..PlanOptions::default() },
        pins: vec![("mul".to_owned(), Arc::clone(second))],
        ..SessionOptions::default()
    };
    let session = Session::with_options(&model, first, options).unwrap();
    let x = Tensor::from_elements(&[4, 4], &[1f32; 16]).unwrap();
    let n = Tensor::from_elements(&[], &[100i64]).unwrap();
    let given = [("x", &x), ("n", &n)];
    let plan = session.plan_for(&given).unwrap();
    assert_eq!(plan.single().map(|stage| stage.section.graph.controls.len()), Some(1));
    steady_runs(counter, &session, &given, "until")
}

/// Returns the allocations of a session's runs in its steady state.
fn steady_runs(counter: &AtomicU64, session: &Session, given: &[(&str, &Tensor)], name: &str) -> u64 {
    let expected = session.run(given).unwrap();
    let views: Vec<InputView<'_>> = session.in_order(given).unwrap();
    let mut memory: Vec<Vec<u8>> = expected.iter().map(|tensor| vec![0; tensor.bytes().len()]).collect();
    let mut outputs: Vec<&mut [u8]> = memory.iter_mut().map(Vec::as_mut_slice).collect();
    let options = RunOptions::default();
    let mut run = || session.run_into(&views, &mut outputs, &options).unwrap();
    (0..WARM_UP).for_each(|_| run());
    let before = counter.load(Ordering::Relaxed);
    let begin = Instant::now();
    for i in 0..*COUNTED.end() {
        if i >= *COUNTED.start() && begin.elapsed() > TIME {
            break;
        }
        run();
    }
    let n = counter.load(Ordering::Relaxed) - before;
    for (found, expected) in memory.iter().zip(&expected) {
        assert!(found == expected.bytes(), "{name}: the counted runs gave other results");
    }
    n
}

#[test]
fn linked_one_thread() {
    check("linked_one_thread", false, 1);
}

#[test]
#[ignore = "full: the gate has the other two of the four"]
fn linked_two_threads() {
    check("linked_two_threads", false, 2);
}

#[test]
#[ignore = "full: the gate has the other two of the four"]
fn loaded_one_thread() {
    check("loaded_one_thread", true, 1);
}

#[test]
fn loaded_two_threads() {
    check("loaded_two_threads", true, 2);
}
