//! Operations on async values: setting them, continuing from them, forwarding one to another.
//!
//! All of it is safe code on the producers, waiters and links of `cell`. Continuations are run through `caught`, so
//! that the functions that `cell` runs do not unwind.

use super::cell::Producer;
use super::waiter::{Link, Source, Work, when_concrete};
use super::{AsyncValueAny, AsyncValueRef, Payload, State};
use crate::error::{Error, ErrorKind, caught};
use std::fmt;
use std::marker::PhantomData;

/// A value that was not taken, because its target is set already, or is not yet in the right state.
#[derive(thiserror::Error)]
#[error("an async value is set once, and this one is {state:?}")]
pub struct Refused<V> {
    /// The value that was not taken.
    pub value: V,
    /// The state of the async value.
    pub state: State,
}

impl<V> fmt::Debug for Refused<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("state", &self.state).finish_non_exhaustive()
    }
}

/// Sets one async value, once: a value or an error.
///
/// Dropped before that, it sets an error: of kind [`ErrorKind::Cancelled`], or [`ErrorKind::Internal`] if it goes with
/// a continuation that panics.
///
/// **Threads**: any; setting runs the waiters that are there on the caller's thread, or queues them if the caller is
/// itself a waiter.
pub struct AsyncValueSetter<T: Payload> {
    /// None once the value is set.
    producer: Option<Producer<T>>,
    /// The state to which it was set.
    state: State,
}

impl<T: Payload> AsyncValueSetter<T> {
    /// Returns the state of the value.
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns a reference to the value that this sets; None once it is set.
    pub fn value(&self) -> Option<AsyncValueRef<T>> {
        self.producer.as_ref().map(Producer::value)
    }

    /// Makes the value available.
    ///
    /// # Errors
    /// Constructed or set already; the value comes back.
    #[inline]
    pub fn emplace(&mut self, value: T) -> Result<(), Refused<T>> {
        match self.producer.take_if(|_| self.state == State::Unconstructed) {
            Some(producer) => {
                self.state = State::Available;
                producer.emplace(value);
                Ok(())
            }
            None => Err(Refused { value, state: self.state }),
        }
    }

    /// Builds the value without publishing it: it stays unreadable until [`AsyncValueSetter::set_available`].
    ///
    /// # Errors
    /// Constructed or set already; the value comes back.
    pub fn construct(&mut self, value: T) -> Result<(), Refused<T>> {
        match &mut self.producer {
            Some(producer) if self.state == State::Unconstructed => {
                producer.construct(value);
                self.state = State::Constructed;
                Ok(())
            }
            _ => Err(Refused { value, state: self.state }),
        }
    }

    /// The value that was built and is not published.
    pub fn constructed_mut(&mut self) -> Option<&mut T> {
        self.producer.as_mut().and_then(Producer::constructed_mut)
    }

    /// Publishes the value that was built.
    ///
    /// # Errors
    /// Not constructed, or set already.
    pub fn set_available(&mut self) -> Result<(), Refused<()>> {
        match self.producer.take_if(|_| self.state == State::Constructed) {
            Some(producer) => {
                self.state = State::Available;
                producer.set_available();
                Ok(())
            }
            None => Err(Refused { value: (), state: self.state }),
        }
    }

    /// Makes it an error; a value that was built is dropped.
    ///
    /// # Errors
    /// Set already; the error comes back.
    pub fn set_error(&mut self, error: Error) -> Result<(), Refused<Error>> {
        match self.producer.take() {
            Some(producer) => {
                self.state = State::Error;
                producer.set_error(error);
                Ok(())
            }
            None => Err(Refused { value: error, state: self.state }),
        }
    }
}

/// The handle that resolves an indirect async value, once: to another value, or to an error.
///
/// Dropped before that, it sets an error, as an [`AsyncValueSetter`] does. Values that are forwarded in a circle never
/// become concrete, and keep their memory; one that is forwarded to itself becomes an error.
///
/// **Threads**: as for [`AsyncValueSetter`].
pub struct AsyncValueForwarder<T: Payload> {
    link: Option<Link<T, Forward<T>>>,
}

impl<T: Payload> AsyncValueForwarder<T> {
    /// Resolves it to `target`, now or when that is concrete.
    ///
    /// # Errors
    /// Set already; the target comes back.
    pub fn forward_to(&mut self, target: AsyncValueRef<T>) -> Result<(), Refused<AsyncValueRef<T>>> {
        let Some(link) = self.link.take() else {
            return Err(Refused { value: target, state: State::Indirect });
        };
        if link.is_for(&target) {
            let text = "an async value was forwarded to itself, and would never be concrete";
            link.into_producer().set_error(Error::new(ErrorKind::Internal, text));
        } else {
            link.arm(Forward(PhantomData), &target);
        }
        Ok(())
    }

    /// Makes it an error.
    ///
    /// # Errors
    /// Set already; the error comes back.
    pub fn set_error(&mut self, error: Error) -> Result<(), Refused<Error>> {
        match self.link.take() {
            Some(link) => {
                link.into_producer().set_error(error);
                Ok(())
            }
            None => Err(Refused { value: error, state: State::Indirect }),
        }
    }
}

impl<T: Payload> AsyncValueRef<T> {
    /// Returns an unset value with its setter.
    #[inline]
    pub fn unconstructed() -> (AsyncValueSetter<T>, Self) {
        let (producer, value) = Producer::new();
        (AsyncValueSetter { producer: Some(producer), state: State::Unconstructed }, value)
    }

    /// Returns a value that will stand for another, with the handle that forwards it.
    pub fn indirect() -> (AsyncValueForwarder<T>, Self) {
        let (link, value) = Link::indirect();
        (AsyncValueForwarder { link: Some(link) }, value)
    }

    /// Returns the value, if it is available.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.outcome()?.ok()
    }

    /// Runs `waiter` with the value or the error, on the thread that sets it, or at once if it is concrete.
    ///
    /// A panic of the waiter is reported, and ends there.
    #[inline]
    pub fn and_then(&self, waiter: impl FnOnce(Result<&T, &Error>) + Send + 'static) {
        when_concrete(self, move |source: &Self| reported(|| waiter(outcome_of(source))));
    }

    /// Returns the value of a function of this one. An error, or a panic of the function, is the result's error.
    #[inline]
    pub fn map<U: Payload>(&self, f: impl FnOnce(&T) -> U + Send + 'static) -> AsyncValueRef<U> {
        self.try_map(|value| Ok(f(value)))
    }

    /// As [`AsyncValueRef::map`], with a function that may fail.
    #[inline]
    pub fn try_map<U: Payload>(
        &self,
        f: impl FnOnce(&T) -> Result<U, Error> + Send + 'static,
    ) -> AsyncValueRef<U> {
        mapped(self, |source: &Self| f(outcome_of(source).map_err(Error::clone)?))
    }

    /// Returns the value that a function of this one names, which need not be there when the function returns.
    pub fn flat_map<U: Payload>(
        &self,
        f: impl FnOnce(&T) -> AsyncValueRef<U> + Send + 'static,
    ) -> AsyncValueRef<U> {
        let (link, value) = Link::indirect();
        link.arm(FlatMap::<T, U, _>::Function(f, PhantomData), self);
        value
    }
}

impl AsyncValueAny {
    /// Returns whether it is available.
    #[inline]
    pub fn is_available(&self) -> bool {
        self.state() == State::Available
    }

    /// Returns whether it is an error, so that it will never be available.
    #[inline]
    pub fn is_error(&self) -> bool {
        self.state() == State::Error
    }

    /// Runs `waiter` when it is concrete, as [`AsyncValueRef::and_then`] does.
    #[inline]
    pub fn and_then(&self, waiter: impl FnOnce(Result<(), &Error>) + Send + 'static) {
        when_concrete(self, move |source: &Self| reported(|| waiter(source.error().map_or(Ok(()), Err))));
    }

    /// Returns the result of a function that runs once this is available; otherwise as [`AsyncValueRef::map`].
    pub fn map<U: Payload>(&self, f: impl FnOnce() -> U + Send + 'static) -> AsyncValueRef<U> {
        mapped(self, |source: &Self| match source.error() {
            Some(error) => Err(error.clone()),
            None => Ok(f()),
        })
    }
}

impl<T: Payload> From<AsyncValueRef<T>> for AsyncValueAny {
    fn from(value: AsyncValueRef<T>) -> Self {
        value.erase()
    }
}

impl fmt::Debug for AsyncValueAny {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AsyncValue<{}>({:?}", self.type_name(), self.state())?;
        self.error().map_or(Ok(()), |error| write!(f, ": {error}"))?;
        f.write_str(")")
    }
}

impl<T: Payload> fmt::Debug for AsyncValueRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl<T: Payload> fmt::Debug for AsyncValueSetter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncValueSetter").field("state", &self.state).finish_non_exhaustive()
    }
}

/// Returns the outcome that a waiter was called for.
#[inline]
fn outcome_of<T: Payload>(source: &AsyncValueRef<T>) -> Result<&T, &Error> {
    source.outcome().expect("waiters run when a value is concrete")
}

/// Runs a waiter that has no value to make an error of.
fn reported(waiter: impl FnOnce()) {
    if let Err(error) = caught("a waiter", waiter) {
        tracing::error!("{error}");
    }
}

#[inline]
fn mapped<S, U, F>(source: &S, f: F) -> AsyncValueRef<U>
where
    S: Source + 'static,
    U: Payload,
    F: FnOnce(&S) -> Result<U, Error> + Send + 'static,
{
    if source.any().is_concrete() {
        return compute(source, f).map_or_else(AsyncValueRef::from_error, AsyncValueRef::available);
    }
    let (link, value) = Link::new();
    link.arm(Map(f, PhantomData::<fn(S)>), source);
    value
}

/// Calls the function of a `map`, whose panic is an error as others are.
#[inline]
fn compute<S, U>(source: &S, f: impl FnOnce(&S) -> Result<U, Error>) -> Result<U, Error> {
    caught("a continuation", || f(source)).flatten()
}

/// The waiter of `map`: `F` gives the value, or the error that it hands on.
struct Map<S, F>(F, PhantomData<fn(S)>);

impl<S: Source + 'static, U: Payload, F: FnOnce(&S) -> Result<U, Error> + Send + 'static> Work<U>
    for Map<S, F>
{
    type Source = S;

    #[inline]
    fn run(self, source: &S, link: Link<U, Self>) {
        match compute(source, self.0) {
            Ok(value) => link.into_producer().emplace(value),
            Err(error) => link.into_producer().set_error(error),
        }
    }
}

/// The waiter of an indirect value.
struct Forward<T>(PhantomData<fn(T)>);

impl<T: Payload> Work<T> for Forward<T> {
    type Source = AsyncValueRef<T>;

    fn run(self, source: &AsyncValueRef<T>, link: Link<T, Self>) {
        link.into_producer().forward(source);
    }
}

/// The waiter of `flat_map`: first for the function's argument, then for the value that it returned.
enum FlatMap<T, U, F> {
    Function(F, PhantomData<fn(T)>),
    Forward(PhantomData<fn(U)>),
}

impl<T: Payload, U: Payload, F> Work<U> for FlatMap<T, U, F>
where
    F: FnOnce(&T) -> AsyncValueRef<U> + Send + 'static,
{
    type Source = AsyncValueAny;

    fn run(self, source: &AsyncValueAny, link: Link<U, Self>) {
        let Self::Function(f, _) = self else {
            let target = source.downcast_ref().expect("it waits for what its function named");
            return link.into_producer().forward(target);
        };
        let source = source.downcast_ref::<T>().expect("it waits for its function's argument first");
        let named = compute(source, |source| Ok(f(outcome_of(source).map_err(Error::clone)?)));
        match named {
            Ok(target) => link.arm(Self::Forward(PhantomData), &target),
            Err(error) => link.into_producer().set_error(error),
        }
    }
}
