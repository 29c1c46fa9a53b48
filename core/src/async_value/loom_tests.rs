//! The races of the state word, in every order that the memory model allows.
//!
//! Payloads are the model checker's counted pointers: it fails a run that loses one, and one that reads or drops a
//! payload that another thread may still write.

use super::*;
use crate::error::{Error, ErrorKind};
use crate::sync::{AtomicUsize, Ordering};
use loom::sync::Arc;
use loom::thread;

type Text = Arc<&'static str>;

fn text() -> Text {
    Arc::new("text")
}

/// A model of three threads, in each order with so few switches in the middle of a thread: all of them take minutes.
fn model_of_three(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(test);
}

/// Counts the waiters that ran.
#[derive(Clone)]
struct Runs(Arc<AtomicUsize>);

impl Runs {
    fn new() -> Self {
        Self(Arc::new(AtomicUsize::new(0)))
    }

    /// A waiter for a value that will be there.
    fn waiter(&self) -> impl FnOnce(Result<&Text, &Error>) + Send + use<> {
        let runs = self.clone();
        move |seen| {
            assert_eq!(**seen.unwrap(), "text");
            runs.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn set_against_add_waiter() {
    loom::model(|| {
        let runs = Runs::new();
        let (mut setter, value) = AsyncValueRef::unconstructed();
        let setting = thread::spawn(move || setter.emplace(text()).unwrap());
        value.and_then(runs.waiter());
        setting.join().unwrap();
        assert_eq!(runs.count(), 1);
        assert_eq!(**value.get().unwrap(), "text");
    });
}

#[test]
fn set_against_map() {
    loom::model(|| {
        let (mut setter, value) = AsyncValueRef::<Text>::unconstructed();
        let setting = thread::spawn(move || setter.emplace(text()).unwrap());
        let mapped = value.map(Arc::clone);
        drop(value);
        setting.join().unwrap();
        assert_eq!(**mapped.get().unwrap(), "text");
    });
}

#[test]
fn set_against_get_and_error() {
    loom::model(|| {
        let (mut setter, value) = AsyncValueRef::unconstructed();
        let setting = thread::spawn(move || setter.emplace(text()).unwrap());
        if let Some(text) = value.get() {
            assert_eq!(**text, "text");
        }
        assert!(value.error().is_none());
        setting.join().unwrap();
        assert!(value.is_available());
    });
}

#[test]
fn two_adders_against_one_setter() {
    model_of_three(|| {
        let runs = Runs::new();
        let (mut setter, value) = AsyncValueRef::unconstructed();
        let adding = {
            let (value, waiter) = (value.clone(), runs.waiter());
            thread::spawn(move || value.and_then(waiter))
        };
        let setting = thread::spawn(move || setter.emplace(text()).unwrap());
        value.and_then(runs.waiter());
        adding.join().unwrap();
        setting.join().unwrap();
        assert_eq!(runs.count(), 2);
    });
}

#[test]
fn construct_and_publish_against_add_waiter() {
    loom::model(|| {
        let runs = Runs::new();
        let (mut setter, value) = AsyncValueRef::unconstructed();
        let setting = thread::spawn(move || {
            setter.construct(text()).unwrap();
            setter.set_available().unwrap();
        });
        value.and_then(runs.waiter());
        setting.join().unwrap();
        assert_eq!(runs.count(), 1);
    });
}

#[test]
fn drop_of_the_setter_against_add_waiter() {
    loom::model(|| {
        let (setter, value) = AsyncValueRef::<Text>::unconstructed();
        let dropping = thread::spawn(move || drop(setter));
        let mapped = value.map(Arc::clone);
        dropping.join().unwrap();
        assert_eq!(mapped.error().unwrap().kind(), ErrorKind::Cancelled);
    });
}

#[test]
fn forward_to_against_add_waiter() {
    loom::model(|| {
        let runs = Runs::new();
        let (mut forwarder, indirect) = AsyncValueRef::indirect();
        let forwarding =
            thread::spawn(move || forwarder.forward_to(AsyncValueRef::available(text())).unwrap());
        indirect.and_then(runs.waiter());
        forwarding.join().unwrap();
        assert_eq!(runs.count(), 1);
        assert_eq!(**indirect.get().unwrap(), "text");
    });
}

#[test]
fn forward_to_against_set_of_the_target() {
    loom::model(|| {
        let runs = Runs::new();
        let (mut forwarder, indirect) = AsyncValueRef::indirect();
        let (mut setter, target) = AsyncValueRef::unconstructed();
        indirect.and_then(runs.waiter());
        let setting = thread::spawn(move || setter.emplace(text()).unwrap());
        forwarder.forward_to(target).unwrap();
        setting.join().unwrap();
        assert_eq!(runs.count(), 1);
        assert_eq!(**indirect.get().unwrap(), "text");
    });
}

#[test]
fn forward_to_against_set_of_the_target_and_add_waiter() {
    model_of_three(|| {
        let runs = Runs::new();
        let (mut forwarder, indirect) = AsyncValueRef::indirect();
        let (mut setter, target) = AsyncValueRef::unconstructed();
        let setting = thread::spawn(move || setter.emplace(text()).unwrap());
        let forwarding = thread::spawn(move || forwarder.forward_to(target).unwrap());
        indirect.and_then(runs.waiter());
        setting.join().unwrap();
        forwarding.join().unwrap();
        assert_eq!(runs.count(), 1);
    });
}

#[test]
fn drop_of_references_against_set() {
    model_of_three(|| {
        let (mut setter, value) = AsyncValueRef::unconstructed();
        let other = value.clone();
        let setting = thread::spawn(move || setter.emplace(text()).unwrap());
        let dropping = thread::spawn(move || drop(other));
        drop(value);
        setting.join().unwrap();
        dropping.join().unwrap();
    });
}

/// A setter that finds itself alone must see the waiter of a reference that was dropped.
#[test]
fn add_waiter_and_drop_of_the_reference_against_set() {
    loom::model(|| {
        let runs = Runs::new();
        let (mut setter, value) = AsyncValueRef::unconstructed();
        let setting = thread::spawn(move || setter.emplace(text()).unwrap());
        value.and_then(runs.waiter());
        drop(value);
        setting.join().unwrap();
        assert_eq!(runs.count(), 1);
    });
}

/// The last reference frees the value, after all have read it.
#[test]
fn read_and_drop_against_read_and_drop() {
    loom::model(|| {
        let value = AsyncValueRef::available(text());
        let other = value.clone();
        let reading = thread::spawn(move || assert_eq!(**other.get().unwrap(), "text"));
        assert_eq!(**value.get().unwrap(), "text");
        drop(value);
        reading.join().unwrap();
    });
}

#[test]
fn wait_against_set() {
    loom::model(|| {
        let (mut setter, value) = AsyncValueRef::unconstructed();
        let setting = thread::spawn(move || setter.emplace(text()).unwrap());
        assert_eq!(**value.wait().unwrap(), "text");
        setting.join().unwrap();
    });
}

#[test]
fn when_all_with_two_setters() {
    loom::model(|| {
        let (mut first, a) = AsyncValueRef::unconstructed();
        let (mut second, b) = AsyncValueRef::unconstructed();
        let all = when_all([a.clone(), b.clone()]);
        let both = all.map(move |()| Arc::ptr_eq(a.get().unwrap(), b.get().unwrap()));
        drop(all);
        let setting = thread::spawn(move || first.emplace(text()).unwrap());
        second.emplace(text()).unwrap();
        setting.join().unwrap();
        assert_eq!(both.get(), Some(&false));
    });
}

#[test]
fn when_all_against_a_setter_and_an_error() {
    model_of_three(|| {
        let (mut first, a) = AsyncValueRef::<Text>::unconstructed();
        let (mut second, b) = AsyncValueRef::<Text>::unconstructed();
        let failing = thread::spawn(move || first.set_error(Error::new(ErrorKind::Io, "first")).unwrap());
        let setting = thread::spawn(move || second.emplace(text()).unwrap());
        let all = when_all([a, b]);
        failing.join().unwrap();
        setting.join().unwrap();
        assert_eq!(all.error().unwrap().text(), "first");
    });
}
