//! Tests of each transition, of the effect of errors and panics on dependents, and of leaks at any depth or width.

use super::*;
use crate::error::{Error, ErrorKind};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Links of a deep chain; the release build has the number that we promise.
const DEEP: usize = if cfg!(debug_assertions) { 1_000_000 } else { 10_000_000 };
/// Waiters of one value.
const WIDE: usize = 1_000_000;

fn failure() -> Error {
    Error::new(ErrorKind::DeviceLost, "the device is gone").on_device("fake:0").at_node("add_1")
}

/// Returns the final state of a value as text.
fn shown(value: &AsyncValueRef<u64>) -> String {
    match value.outcome() {
        None => format!("{:?}", value.state()),
        Some(Ok(value)) => value.to_string(),
        Some(Err(error)) => format!("{error:?}"),
    }
}

/// A log of the values that waiters see.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, text: impl Into<String>) {
        self.0.lock().unwrap().push(text.into());
    }

    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// Returns a waiter that logs its value.
    fn waiter(&self, name: &str) -> impl FnOnce(Result<&u64, &Error>) + Send + use<> {
        let (log, name) = (self.clone(), name.to_owned());
        move |seen| log.add(format!("{name}: {seen:?}"))
    }
}

#[test]
fn a_value_is_set_once_and_a_second_value_comes_back() {
    type Act = fn(&mut AsyncValueSetter<u64>) -> Option<u64>;
    let emplace: Act = |setter| setter.emplace(7).err().map(|refused| refused.value);
    let construct: Act = |setter| setter.construct(5).err().map(|refused| refused.value);
    let publish: Act = |setter| setter.set_available().err().map(|_| 0);
    let fail: Act = |setter| setter.set_error(failure()).err().map(|_| 0);
    let error = "device fake:0: the device is gone";
    // The acts in order, which of them are refused, and the value afterwards.
    let cases: &[(&[Act], &[bool], &str)] = &[
        (&[], &[], "Unconstructed"),
        (&[emplace], &[true], "7"),
        (&[emplace, emplace], &[true, false], "7"),
        (&[emplace, fail], &[true, false], "7"),
        (&[emplace, construct], &[true, false], "7"),
        (&[emplace, publish], &[true, false], "7"),
        (&[construct], &[true], "Constructed"),
        (&[construct, emplace], &[true, false], "Constructed"),
        (&[construct, construct], &[true, false], "Constructed"),
        (&[construct, publish], &[true, true], "5"),
        (&[construct, publish, publish], &[true, true, false], "5"),
        (&[construct, fail], &[true, true], error),
        (&[publish], &[false], "Unconstructed"),
        (&[fail], &[true], error),
        (&[fail, emplace], &[true, false], error),
        (&[fail, fail], &[true, false], error),
        (&[fail, publish], &[true, false], error),
    ];
    for (at, (acts, taken, end)) in cases.iter().enumerate() {
        let log = Log::default();
        let (mut setter, value) = AsyncValueRef::unconstructed();
        value.and_then(log.waiter("waiter"));
        for (act, taken) in acts.iter().zip(*taken) {
            assert_eq!(act(&mut setter).is_none(), *taken, "case {at}");
        }
        assert!(shown(&value).contains(end), "case {at}: {} instead of {end}", shown(&value));
        assert_eq!(setter.state(), value.state(), "case {at}");
        assert_eq!(log.taken().len(), usize::from(value.is_concrete()), "case {at}");
        drop(setter);
        assert!(value.is_concrete(), "case {at}");
    }
    let (mut setter, _value) = AsyncValueRef::unconstructed();
    setter.emplace(String::from("first")).unwrap();
    let refused = setter.emplace(String::from("second")).unwrap_err();
    assert_eq!((refused.value.as_str(), refused.state), ("second", State::Available));
}

#[test]
fn what_is_constructed_is_changed_before_anybody_sees_it() {
    let (mut setter, value) = AsyncValueRef::unconstructed();
    assert_eq!(setter.constructed_mut(), None);
    setter.construct(1u64).unwrap();
    *setter.constructed_mut().unwrap() += 1;
    assert_eq!((value.get(), value.state()), (None, State::Constructed));
    setter.set_available().unwrap();
    assert_eq!((value.get(), setter.constructed_mut()), (Some(&2), None));
}

#[test]
fn waiters_run_in_their_order_and_at_once_if_it_is_there() {
    let log = Log::default();
    let (mut setter, value) = AsyncValueRef::unconstructed();
    for name in ["a", "b", "c"] {
        value.and_then(log.waiter(name));
    }
    assert!(log.taken().is_empty());
    setter.emplace(1).unwrap();
    assert_eq!(log.taken(), ["a: Ok(1)", "b: Ok(1)", "c: Ok(1)"]);
    value.and_then(log.waiter("d"));
    assert_eq!(log.taken(), ["d: Ok(1)"]);
}

#[test]
fn a_value_set_within_a_waiter_has_its_waiters_run_after_that_one() {
    let log = Log::default();
    let (mut first, a) = AsyncValueRef::unconstructed();
    let (mut second, b) = AsyncValueRef::unconstructed();
    b.and_then(log.waiter("b"));
    let inner = log.clone();
    a.and_then(move |_| {
        second.emplace(2).unwrap();
        inner.add("set");
    });
    a.and_then(log.waiter("a"));
    first.emplace(1).unwrap();
    assert_eq!(log.taken(), ["set", "a: Ok(1)", "b: Ok(2)"]);
}

#[test]
fn a_setter_that_is_dropped_sets_an_error() {
    let log = Log::default();
    let (setter, value) = AsyncValueRef::<u64>::unconstructed();
    value.and_then(log.waiter("waiter"));
    drop(setter);
    assert_eq!(value.error().unwrap().kind(), ErrorKind::Cancelled);
    assert_eq!(log.taken().len(), 1);
    let (forwarder, value) = AsyncValueRef::<u64>::indirect();
    assert_eq!(value.state(), State::Indirect);
    drop(forwarder);
    assert_eq!(value.error().unwrap().kind(), ErrorKind::Cancelled);
}

#[test]
fn an_error_reaches_what_depends_on_it_as_one_and_nothing_else() {
    let (mut bad, a) = AsyncValueRef::<u64>::unconstructed();
    let (mut good, b) = AsyncValueRef::<u64>::unconstructed();
    let never = |_: &u64| -> u64 { panic!("this depends on what failed") };
    let mapped = a.map(never).map(|x| x + 1);
    let flat = a.flat_map(|_| panic!("this depends on what failed")) as AsyncValueRef<u64>;
    let erased = a.clone().erase().map(|| 1u64);
    let (mut forwarder, indirect) = AsyncValueRef::indirect();
    forwarder.forward_to(mapped.clone()).unwrap();
    let all = when_all([b.clone(), a.clone()]);
    let tried = b.try_map(|_| Err::<u64, _>(failure()));
    let independent = b.map(|x| x + 1);
    bad.set_error(failure()).unwrap();
    assert!(!all.is_concrete(), "one of its values is under way");
    good.emplace(1).unwrap();
    assert_eq!(shown(&independent), "2");
    let origin = a.error().unwrap();
    for dependent in [mapped.erase(), flat.erase(), erased.erase(), indirect.erase(), all.erase()] {
        let error = dependent.error().unwrap();
        assert!(error.is_same(origin), "{error:?}");
        assert_eq!((error.kind(), error.place().node.as_str()), (ErrorKind::DeviceLost, "add_1"));
    }
    assert_eq!(tried.error().unwrap().kind(), ErrorKind::DeviceLost);
    // Words that a dependent adds are its own.
    let own = a.error().unwrap().clone().in_file("x.onnx");
    assert_eq!((own.place().file.as_str(), origin.place().file.as_str()), ("x.onnx", ""));
}

#[test]
fn when_all_waits_for_all_and_gives_the_first_error_of_its_arguments() {
    assert!(when_all([] as [AsyncValueAny; 0]).is_available());
    assert!(when_all([Chain::ready(), Chain::ready()]).is_available());
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [1, 0, 2]] {
        let (mut setters, values): (Vec<_>, Vec<_>) =
            (0..3).map(|_| AsyncValueRef::<u64>::unconstructed()).unzip();
        let all = when_all(values.clone());
        let failing =
            when_all(values.iter().map(|value| value.try_map(|x| Err::<u64, _>(failure().at_node(x)))));
        let any_text = when_all(
            values
                .iter()
                .map(|value| value.try_map(|x| Err::<(), _>(Error::new(ErrorKind::Io, x.to_string())))),
        );
        for (n_set, at) in order.into_iter().enumerate() {
            assert!(!all.is_concrete() && !failing.is_concrete(), "{n_set} of 3 are set");
            setters[at].emplace(at as u64).unwrap();
        }
        assert!(all.is_available() && failing.is_error());
        assert_eq!(any_text.error().unwrap().text(), "0");
    }
}

#[test]
fn an_indirect_value_is_what_it_is_forwarded_to() {
    let log = Log::default();
    let (mut forwarder, a) = AsyncValueRef::indirect();
    let (mut other, b) = AsyncValueRef::indirect();
    let (mut setter, c) = AsyncValueRef::unconstructed();
    a.and_then(log.waiter("a"));
    forwarder.forward_to(b.clone()).unwrap();
    other.forward_to(c.clone()).unwrap();
    assert_eq!(other.forward_to(c.clone()).unwrap_err().value.state(), State::Unconstructed);
    assert_eq!((a.state(), b.state()), (State::Indirect, State::Indirect));
    setter.emplace(3).unwrap();
    assert_eq!(log.taken(), ["a: Ok(3)"]);
    assert_eq!((a.get(), b.get()), (Some(&3), Some(&3)));
    // All three have one value.
    assert!(std::ptr::eq(a.get().unwrap(), c.get().unwrap()));
    // To a value that is concrete already, and to itself.
    let (mut forwarder, d) = AsyncValueRef::indirect();
    forwarder.forward_to(a).unwrap();
    assert!(std::ptr::eq(d.get().unwrap(), c.get().unwrap()));
    let (mut forwarder, e) = AsyncValueRef::<u64>::indirect();
    forwarder.forward_to(e.clone()).unwrap();
    assert_eq!(e.error().unwrap().kind(), ErrorKind::Internal);
}

#[test]
fn flat_map_becomes_what_its_function_names() {
    let (mut outer, a) = AsyncValueRef::<u64>::unconstructed();
    let (mut inner, b) = AsyncValueRef::<u64>::unconstructed();
    let flat = a.flat_map(move |x| {
        let x = *x;
        b.map(move |y| x + y)
    });
    outer.emplace(1).unwrap();
    assert_eq!(shown(&flat), "Indirect");
    inner.emplace(10).unwrap();
    assert_eq!(shown(&flat), "11");
    assert_eq!(shown(&flat.flat_map(|x| AsyncValueRef::available(x * 2))), "22");
}

#[test]
fn a_panic_is_an_error_where_there_is_a_value_and_harms_no_other_waiter() {
    let log = Log::default();
    let (mut setter, value) = AsyncValueRef::<u64>::unconstructed();
    let (mut lost, captured) = AsyncValueRef::<u64>::unconstructed();
    value.and_then(log.waiter("before"));
    value.and_then(move |_| {
        assert!(lost.state() != State::Unconstructed, "a waiter's panic");
        lost.emplace(1).unwrap();
    });
    let mapped = value.map(|x| -> u64 { panic!("no {x}") });
    let flat: AsyncValueRef<u64> = value.flat_map(|_| panic!("no value"));
    value.and_then(log.waiter("after"));
    setter.emplace(1).unwrap();
    assert_eq!(log.taken(), ["before: Ok(1)", "after: Ok(1)"]);
    assert_eq!(mapped.error().unwrap().to_string(), "a continuation panicked: no 1");
    assert_eq!(flat.error().unwrap().kind(), ErrorKind::Internal);
    assert!(captured.error().unwrap().text().contains("panicked"));
    // At once, as well.
    assert!(value.map(|_| -> u64 { panic!("late") }).is_error());
    value.and_then(|_| panic!("late"));
}

#[test]
fn erased_references_know_their_type() {
    let any = AsyncValueRef::available(1u64).erase();
    assert!(any.is::<u64>() && any.downcast_ref::<i64>().is_none());
    assert_eq!(format!("{any:?}"), "AsyncValue<u64>(Available)");
    let any = any.downcast::<String>().unwrap_err();
    assert_eq!(any.downcast_ref::<u64>().unwrap().get(), Some(&1));
    assert_eq!(any.downcast::<u64>().unwrap().get(), Some(&1));
}

#[test]
fn a_borrowed_reference_is_copied_and_outlives_its_copies() {
    let value = AsyncValueRef::available(String::from("text"));
    let text = {
        let pointer = value.as_ptr();
        let copy = pointer;
        assert!(pointer.is_same(&copy.to_ref()));
        copy.get().unwrap()
    };
    assert_eq!(text, "text");
}

#[test]
fn a_thread_waits_parked_and_gives_up_after_its_time() {
    let (mut setter, value) = AsyncValueRef::unconstructed();
    assert!(value.wait_timeout(Duration::from_millis(1)).is_none());
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            setter.emplace(1u64).unwrap();
        });
        assert_eq!(*value.wait().unwrap(), 1);
    });
    assert!(begin.elapsed() >= Duration::from_millis(20));
    assert_eq!(value.wait_timeout(Duration::ZERO).unwrap().unwrap(), &1);
    let failed = AsyncValueRef::<u64>::from_error(failure());
    assert_eq!(failed.wait().unwrap_err().kind(), ErrorKind::DeviceLost);
}

struct CountWakes(AtomicUsize);

impl Wake for CountWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_task_is_woken_by_the_waker_of_its_last_poll() {
    let wakes: [Arc<CountWakes>; 2] = std::array::from_fn(|_| Arc::new(CountWakes(AtomicUsize::new(0))));
    let wakers = wakes.clone().map(Waker::from);
    let (mut setter, value) = AsyncValueRef::<u64>::unconstructed();
    let other = value.clone();
    let mut task = pin!(async move { Ok::<u64, Error>(*value.await? + 1) });
    for waker in &wakers {
        assert!(task.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    }
    setter.emplace(1).unwrap();
    assert_eq!(wakes.map(|count| count.0.load(Ordering::Relaxed)), [0, 1]);
    let Poll::Ready(result) = task.as_mut().poll(&mut Context::from_waker(&wakers[0])) else {
        panic!("the value is there");
    };
    assert_eq!(result.unwrap(), 2);
    let mut failed = pin!(async { other.try_map(|_| Err::<u64, _>(failure())).await });
    let Poll::Ready(result) = failed.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("the value is an error");
    };
    assert_eq!(result.unwrap_err().kind(), ErrorKind::DeviceLost);
}

#[test]
fn payloads_and_continuations_are_dropped_once() {
    let alive = Arc::new(());
    let counted = || Arc::clone(&alive);
    let made = || {
        let held = counted();
        let (setter, value) = AsyncValueRef::<Arc<()>>::unconstructed();
        let mapped = value.map(move |payload| (Arc::clone(payload), held));
        let held = counted();
        value.and_then(move |_| drop(held));
        let held = counted();
        let flat = value.flat_map(move |_| AsyncValueRef::available(held));
        let (mut forwarder, indirect) = AsyncValueRef::indirect();
        forwarder.forward_to(value.clone()).unwrap();
        let all = when_all([value.clone().erase(), mapped.clone().erase()]);
        (setter, (value, mapped, flat, indirect, all))
    };
    type End<'a> = &'a dyn Fn(&mut AsyncValueSetter<Arc<()>>);
    let ends: [(&str, End<'_>); 5] = [
        ("available", &|setter| setter.emplace(counted()).unwrap()),
        ("constructed", &|setter| setter.construct(counted()).unwrap()),
        ("error after constructed", &|setter| {
            setter.construct(counted()).unwrap();
            setter.set_error(failure()).unwrap();
        }),
        ("error", &|setter| setter.set_error(failure()).unwrap()),
        ("dropped", &|_| {}),
    ];
    for (name, end) in ends {
        let (mut setter, values) = made();
        end(&mut setter);
        drop(setter);
        drop(values);
        assert_eq!(Arc::strong_count(&alive), 1, "{name}, references last");
        let (mut setter, values) = made();
        drop(values);
        end(&mut setter);
        drop(setter);
        assert_eq!(Arc::strong_count(&alive), 1, "{name}, references first");
    }
    drop(AsyncValueRef::available(counted()));
    assert_eq!(Arc::strong_count(&alive), 1);
}

type Link = fn(AsyncValueRef<u64>) -> AsyncValueRef<u64>;

/// Links behind a value, by each way that there is.
const LINKS: [(&str, Link); 5] = [
    ("map", |value| value.map(|x| x + 1)),
    ("and_then", |value| {
        let (mut setter, next) = AsyncValueRef::unconstructed();
        value.and_then(move |seen| match seen {
            Ok(x) => setter.emplace(x + 1).unwrap(),
            Err(error) => setter.set_error(error.clone()).unwrap(),
        });
        next
    }),
    ("flat_map", |value| value.flat_map(|x| AsyncValueRef::available(x + 1))),
    ("forward_to", |value| {
        let (mut forwarder, next) = AsyncValueRef::indirect();
        forwarder.forward_to(value.map(|x| x + 1)).unwrap();
        next
    }),
    ("when_all", |value| {
        let all = when_all([value.clone()]);
        all.map(move |()| value.get().unwrap() + 1)
    }),
];

#[test]
fn a_deep_chain_fires_and_fails_and_goes_without_a_deep_stack() {
    for (name, link) in LINKS {
        let begin = Instant::now();
        let chain = || {
            let (setter, head) = AsyncValueRef::unconstructed();
            (setter, (0..DEEP).fold(head, |value, _| link(value)))
        };
        let (mut setter, last) = chain();
        let built = begin.elapsed();
        setter.emplace(0).unwrap();
        let fired = begin.elapsed();
        assert_eq!(last.get(), Some(&(DEEP as u64)), "{name}");
        let (mut setter, last) = chain();
        setter.set_error(failure()).unwrap();
        assert!(last.is_error(), "{name}");
        // The last waiter is gone, and then the setter goes.
        let (setter, last) = chain();
        drop(last);
        drop(setter);
        // The setter goes while a waiter still waits.
        let (setter, last) = chain();
        drop(setter);
        assert_eq!(last.error().unwrap().kind(), ErrorKind::Cancelled, "{name}");
        eprintln!("{DEEP} links by {name}: built {built:?}, fired {:?}", fired.checked_sub(built));
    }
}

#[test]
fn values_held_by_values_are_freed_without_a_deep_stack() {
    struct Node(#[expect(dead_code, reason = "held to be dropped")] Option<AsyncValueRef<Node>>);
    let mut last = None;
    for _ in 0..DEEP {
        last = Some(AsyncValueRef::available(Node(last)));
    }
    drop(last);
}

#[test]
fn a_million_waiters_on_one_value() {
    let ran = Arc::new(AtomicUsize::new(0));
    let (mut setter, value) = AsyncValueRef::<u64>::unconstructed();
    let mut mapped = Vec::with_capacity(WIDE);
    for at in 0..WIDE {
        let ran = Arc::clone(&ran);
        value.and_then(move |_| assert_eq!(ran.fetch_add(1, Ordering::Relaxed), at));
        mapped.push(value.map(move |x| x + at as u64));
    }
    let all = when_all(mapped.clone());
    setter.emplace(1).unwrap();
    assert_eq!(ran.load(Ordering::Relaxed), WIDE);
    assert!(all.is_available());
    assert_eq!(mapped.last().unwrap().get(), Some(&(WIDE as u64)));
}

#[test]
fn many_threads_add_waiters_while_one_sets() {
    for round in 0..200 {
        let ran = Arc::new(AtomicUsize::new(0));
        let (mut setter, value) = AsyncValueRef::<u64>::unconstructed();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (value, ran) = (value.clone(), Arc::clone(&ran));
                scope.spawn(move || {
                    for _ in 0..100 {
                        let ran = Arc::clone(&ran);
                        value.map(|x| x + 1).and_then(move |x| {
                            ran.fetch_add(*x.unwrap() as usize, Ordering::Relaxed);
                        });
                    }
                });
            }
            scope.spawn(move || setter.emplace(round).unwrap());
        });
        assert_eq!(ran.load(Ordering::Relaxed), 300 * (round as usize + 1));
    }
}
