//! Points of streams as async values: reached, failed, left by their stream; from devices that call back, and from those
//! that are polled.

use crate::queued::{FORMS, Fault, Mode, OWN, SHARED, When, World};
use devbay_host::internals::core::async_value::Chain;
use devbay_host::internals::core::device::Stream;
use devbay_host::{ErrorKind, Runtime};
use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

/// Longer than any point here takes.
const LIMIT: Duration = Duration::from_secs(20);

struct Bench {
    world: Arc<World>,
    runtime: Runtime,
    calls: bool,
}

impl Bench {
    /// One for each form.
    fn all() -> Vec<Self> {
        let bench = |&(name, _, calls, entry): &(&str, bool, bool, _)| {
            let world = World::new();
            let options = Runtime::builder().threads(1).link(entry).option(name, "world", world.option());
            Self { world, runtime: options.build().unwrap(), calls }
        };
        FORMS.iter().map(bench).collect()
    }

    fn stream(&self, device: usize) -> Stream {
        self.runtime.devices()[device].create_stream("test").unwrap()
    }
}

fn outcome(point: &Chain) -> Result<(), ErrorKind> {
    let outcome = point.wait_timeout(LIMIT).expect("the point comes in time");
    outcome.copied().map_err(|error| error.kind())
}

#[test]
fn points_come_in_their_order_and_not_before() {
    for bench in Bench::all() {
        let mut stream = bench.stream(OWN[0]);
        bench.world.begin(Mode::Stepped, None);
        let points: Vec<Chain> = (0..3)
            .map(|_| {
                let value = stream.signal().unwrap();
                stream.point(value)
            })
            .collect();
        for (i, point) in points.iter().enumerate() {
            std::thread::sleep(Duration::from_millis(2));
            assert!(points[i..].iter().all(|point| !point.is_concrete()), "point {i} has not come");
            assert!(bench.world.step(0, false));
            assert_eq!(outcome(point), Ok(()));
        }
        assert_eq!(outcome(&stream.point(2)), Ok(()), "one that was reached before");
        let unknown = stream.point(4);
        assert_eq!(outcome(&unknown), Err(ErrorKind::InvalidArgument), "one that was not signalled");
        assert_eq!(bench.world.end(), Vec::<String>::new());
        bench.world.between();
    }
}

#[test]
fn points_behind_a_failure_fail_with_its_device() {
    for bench in Bench::all() {
        let mut stream = bench.stream(SHARED[0]);
        bench.world.begin(Mode::Stepped, Some(Fault { nth: 1, when: When::Executed, lost: false }));
        let points: Vec<Chain> = (0..3)
            .map(|_| {
                let value = stream.signal().unwrap();
                stream.point(value)
            })
            .collect();
        assert!(bench.world.step(0, false) && bench.world.step(0, false));
        assert_eq!(outcome(&points[0]), Ok(()));
        for point in &points[1..] {
            assert_eq!(outcome(point), Err(ErrorKind::PluginFailed));
            let error = point.error().unwrap();
            assert!(error.place().device.ends_with(":2"), "{error}");
        }
        assert_eq!(outcome(&stream.point(1)), Ok(()), "what was reached stays reached");
        assert_eq!(outcome(&stream.point(3)), Err(ErrorKind::PluginFailed), "asked for afterwards");
        drop(stream);
        assert_eq!(bench.world.end(), Vec::<String>::new());
        bench.world.between();
    }
}

#[test]
fn points_of_a_stream_that_goes_are_settled() {
    for bench in Bench::all() {
        let mut stream = bench.stream(OWN[1]);
        bench.world.begin(Mode::Stepped, None);
        let value = stream.signal().unwrap();
        let point = stream.point(value);
        std::thread::scope(|scope| {
            let dropped = scope.spawn(|| drop(stream));
            if !bench.calls {
                // The stream is not polled any more when it is about to go.
                assert_eq!(outcome(&point), Err(ErrorKind::PluginFailed));
            }
            std::thread::sleep(Duration::from_millis(2));
            assert!(!dropped.is_finished(), "a stream's end waits for its work");
            assert!(bench.world.step(0, false));
        });
        if bench.calls {
            assert_eq!(outcome(&point), Ok(()));
        }
        assert_eq!(bench.world.end(), Vec::<String>::new());
        bench.world.between();
    }
}

#[test]
fn points_of_a_lost_device_fail_at_the_latest_with_their_stream() {
    for bench in Bench::all() {
        let (mut lost, mut other) = (bench.stream(OWN[0]), bench.stream(OWN[0]));
        bench.world.be_quiet(true);
        bench.world.begin(Mode::Stepped, Some(Fault { nth: 0, when: When::Executed, lost: true }));
        let (at, of_other) = (lost.signal().unwrap(), other.signal().unwrap());
        let (point, other_point) = (lost.point(at), other.point(of_other));
        assert!(bench.world.step(0, false));
        assert_eq!(outcome(&point), Err(ErrorKind::DeviceLost));
        drop(other);
        assert!(outcome(&other_point).is_err());
        drop(lost);
        assert_eq!(bench.world.end(), Vec::<String>::new());
        bench.world.between();
    }
}

#[test]
fn many_points_come_from_many_streams_at_once() {
    for bench in Bench::all() {
        let mut streams: Vec<Stream> =
            (0..8).map(|i| bench.stream([OWN, SHARED][i % 2][i / 2 % 2])).collect();
        let n_come = Arc::new(AtomicU32::new(0));
        bench.world.free_running(2, 3, || {
            bench.world.begin(Mode::Free, None);
            let mut points = Vec::new();
            for _ in 0..50 {
                for stream in &mut streams {
                    let value = stream.signal().unwrap();
                    let point = stream.point(value);
                    let n_come = Arc::clone(&n_come);
                    point.and_then(move |outcome| {
                        assert!(outcome.is_ok());
                        n_come.fetch_add(1, Ordering::Relaxed);
                    });
                    points.push(point);
                }
            }
            // Half by futures, from threads of their own.
            let (awaited, waited) = points.split_at(points.len() / 2);
            std::thread::scope(|scope| {
                for part in awaited.chunks(50) {
                    scope.spawn(move || {
                        for point in part {
                            assert!(block_on(point.clone().into_future()).is_ok());
                        }
                    });
                }
                waited.iter().for_each(|point| assert_eq!(outcome(point), Ok(())));
            });
            // A thread that waits for a value may see it before the callbacks come.
            while n_come.load(Ordering::Relaxed) < 400 {
                std::thread::yield_now();
            }
            assert_eq!(bench.world.end(), Vec::<String>::new());
            bench.world.between();
        });
    }
}

/// Polls a future on this thread until it is ready.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
