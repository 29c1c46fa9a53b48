//! The cell of an async value: its count, its state word, and the access to its body.
//!
//! # Protocol
//!
//! A cell is one allocation: `refs` (references, the producer's among them), `word`, a table for the
//! type, and the body. `word` is a state in its low three bits and, while that is not concrete, the list of waiters
//! above them, newest first. The *producer* is the one handle that may write. Holders of other references may add
//! waiters and, once the state is concrete, read.
//!
//! | state | body | access to the body |
//! | --- | --- | --- |
//! | unconstructed, indirect | empty | the producer |
//! | constructed | the value | the producer |
//! | available | the value | every reference reads |
//! | error | the error | every reference reads |
//! | forwarded | a reference to the value's cell, which is available | every reference reads |
//!
//! | actor | transition of `word` | ordering |
//! | --- | --- | --- |
//! | any reference | not concrete: a waiter is put in front of the list | Release: it is whole before it is seen; Acquire if refused because it is concrete |
//! | producer | unconstructed to constructed, the list kept | Relaxed: the body is not read before it is concrete |
//! | producer | any to available, error or forwarded, the list taken; once | AcqRel: the body is published, the waiters are seen |
//! | any reference | reads the state | Acquire: the body is seen |
//! | the last reference | frees the cell | AcqRel on `refs`: the actions of all others on it are over |
//!
//! A state that is not concrete has a producer, which holds a reference, and which sets an error when it is dropped. So
//! a cell that has waiters lives, and a cell that is freed has none.
//!
//! A producer whose reference is the only one (`refs` reads 1, Acquire) is alone: no other thread can make a reference
//! or add a waiter. It sets the word by a plain store, and the last reference goes without counting down.
//!
//! An indirect value becomes concrete after its target, and refers to the cell that has the value, never to
//! another indirect one: reading is one step however many were linked.
//!
//! A *waiter* ([`super::waiter`]) is a node `next, source, run` at the front of its function's data: a task, which is
//! an allocation of its own, or the cell that it will set, whose producer it then stands for. Waiters that are due
//! belong to the thread that published ([`super::run`]); the last one of a value gives back the producer's reference to
//! it.

use super::run;
use super::waiter::{Waiter, Waiters};
use crate::error::{Error, ErrorKind};
use crate::sync::{AtomicPtr, AtomicUsize, Ordering, UnsafeCell};
use std::any::TypeId;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, forget, needs_drop};
use std::ops::Deref;
use std::ptr::{NonNull, null_mut, without_provenance_mut};

/// A type that an async value can hold: it is dropped and read on any thread.
pub trait Payload: Send + Sync + 'static {}
impl<T: Send + Sync + 'static> Payload for T {}

/// The state of an async value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum State {
    /// Nothing is there yet.
    Unconstructed,
    /// It will be another value, which is not known or not concrete yet.
    Indirect,
    /// The value is built, but its setter has not published it.
    Constructed,
    /// The value can be read.
    Available,
    /// It will never be there.
    Error,
}

pub(super) const UNCONSTRUCTED: usize = 0;
const CONSTRUCTED: usize = 1;
pub(super) const INDIRECT: usize = 2;
/// Set in the states that are concrete, which are final.
const CONCRETE: usize = 4;
const AVAILABLE: usize = CONCRETE;
const ERROR: usize = CONCRETE + 1;
const FORWARDED: usize = CONCRETE + 2;
const STATE_BITS: usize = 7;

fn state_of(word: *mut Waiter) -> usize {
    word.addr() & STATE_BITS
}

fn list_of(word: *mut Waiter) -> *mut Waiter {
    word.map_addr(|addr| addr & !STATE_BITS)
}

/// References so many that the count could overflow: only a program that forgets references gets there.
const REFS_MAX: usize = isize::MAX as usize;

#[repr(C)]
pub(super) struct Header {
    refs: AtomicUsize,
    word: AtomicPtr<Waiter>,
    table: &'static Table,
}

/// Data that depends on the type of the value, or on the other content of the allocation.
pub(super) struct Table {
    type_id: TypeId,
    type_name: fn() -> &'static str,
    /// True if dropping the value runs code, which may drop other cells.
    nests: bool,
    /// The error of a cell in state error.
    error: unsafe fn(NonNull<Header>) -> *const Error,
    /// Frees the allocation.
    free: unsafe fn(NonNull<Header>),
}

impl Table {
    pub(super) const fn new<T: Payload>(free: unsafe fn(NonNull<Header>)) -> Self {
        Self {
            type_id: TypeId::of::<T>(),
            type_name: std::any::type_name::<T>,
            nests: needs_drop::<T>(),
            error: error_in::<T>,
            free,
        }
    }
}

/// The contents of a cell; the table of states says which when.
pub(super) enum Body<T: Payload> {
    Empty,
    Value(T),
    Error(Error),
    Forwarded(AsyncValueRef<T>),
}

/// # Invariants
/// A `NonNull<Header>` here and in `waiter.rs` points to the front of a live `Cell<T>`, with the right to the whole allocation,
/// and `table` was made for that `T`.
#[repr(C)]
pub(super) struct Cell<T: Payload> {
    header: Header,
    body: UnsafeCell<Body<T>>,
}

// The rule of two cache lines.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Cell<u64>>() <= 64);

impl<T: Payload> Cell<T> {
    const TABLE: &'static Table = &Table::new::<T>(free::<Self>);

    pub(super) fn new(table: &'static Table, refs: usize, state: usize, body: Body<T>) -> Self {
        let word = AtomicPtr::new(without_provenance_mut(state));
        Self { header: Header { refs: AtomicUsize::new(refs), word, table }, body: UnsafeCell::new(body) }
    }

    fn allocate(refs: usize, state: usize, body: Body<T>) -> NonNull<Header> {
        NonNull::from(Box::leak(Box::new(Self::new(Self::TABLE, refs, state, body)))).cast()
    }
}

/// # Safety
/// 1. `header` is the front of a boxed `C`, which is not used any more.
pub(super) unsafe fn free<C>(header: NonNull<Header>) {
    // SAFETY: condition 1; `table` is the one of `C`, which was leaked from a box.
    drop(unsafe { Box::from_raw(header.cast::<C>().as_ptr()) });
}

/// # Safety
/// 1. The cell holds a `T`, is in state error, and that was read with Acquire.
unsafe fn error_in<T: Payload>(header: NonNull<Header>) -> *const Error {
    // SAFETY: condition 1: a concrete body is written no more, and the pointer is live.
    let body = unsafe { header.cast::<Cell<T>>().as_ref() }.body.with(|body| unsafe { &*body });
    match body {
        Body::Error(error) => error,
        _ => unreachable!("a cell in state error has one"),
    }
}

/// A counted reference to an async value of any type.
///
/// **Threads**: any. **Owns**: a share of the value, which goes with its last reference.
#[repr(transparent)]
pub struct AsyncValueAny {
    pub(super) header: NonNull<Header>,
}

// SAFETY: the value is `Send + Sync` (Payload), and so are errors and waiters; the rest is atomic, by the protocol.
unsafe impl Send for AsyncValueAny {}
// SAFETY: a shared reference gives `&T` of a payload that is `Sync`, or an error; the rest is atomic.
unsafe impl Sync for AsyncValueAny {}

impl AsyncValueAny {
    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: this reference is counted, so the cell lives (invariant of Cell).
        unsafe { self.header.as_ref() }
    }

    #[inline]
    fn raw_state(&self) -> usize {
        state_of(self.header().word.load(Ordering::Acquire))
    }

    /// Returns the state of the value; it may be further when this returns.
    pub fn state(&self) -> State {
        match self.raw_state() {
            UNCONSTRUCTED => State::Unconstructed,
            CONSTRUCTED => State::Constructed,
            INDIRECT => State::Indirect,
            ERROR => State::Error,
            _ => State::Available,
        }
    }

    /// Returns whether it is available or an error.
    #[inline]
    pub fn is_concrete(&self) -> bool {
        self.raw_state() & CONCRETE != 0
    }

    /// Returns its error, if it is one.
    #[inline]
    pub fn error(&self) -> Option<&Error> {
        if self.raw_state() != ERROR {
            return None;
        }
        // SAFETY: the state was read with Acquire, and the table is of the cell's type.
        let error = unsafe { (self.header().table.error)(self.header) };
        // SAFETY: a concrete body is not written any more, and lives as long as this reference.
        Some(unsafe { &*error })
    }

    /// Returns whether it is a value of type `T`.
    pub fn is<T: Payload>(&self) -> bool {
        self.header().table.type_id == TypeId::of::<T>()
    }

    /// Returns the name of the value's type, for messages.
    pub fn type_name(&self) -> &'static str {
        (self.header().table.type_name)()
    }

    /// Returns whether both are references to one value.
    pub fn is_same(&self, other: &Self) -> bool {
        self.header == other.header
    }

    /// Returns the same with its type, if that is `T`.
    pub fn downcast_ref<T: Payload>(&self) -> Option<&AsyncValueRef<T>> {
        // SAFETY: the type was compared.
        self.is::<T>().then(|| unsafe { AsyncValueRef::of(self) })
    }

    /// Returns the same with its type.
    ///
    /// # Errors
    /// The reference as it was, if the type is another.
    pub fn downcast<T: Payload>(self) -> Result<AsyncValueRef<T>, Self> {
        if self.is::<T>() { Ok(AsyncValueRef { any: self, marker: PhantomData }) } else { Err(self) }
    }

    /// Puts a waiter in front of the list; false if the value is concrete, and the waiter still the caller's.
    ///
    /// # Safety
    /// 1. `waiter` is live, in no list, and its function suits the object that it stands in.
    pub(super) unsafe fn push(&self, waiter: NonNull<Waiter>) -> bool {
        let mut word = self.header().word.load(Ordering::Acquire);
        loop {
            if state_of(word) & CONCRETE != 0 {
                return false;
            }
            // SAFETY: condition 1: the waiter is live and in no list; no other thread sees it before the exchange below
            // succeeds.
            unsafe { (*waiter.as_ptr()).next = list_of(word) };
            let front = waiter.as_ptr().map_addr(|addr| addr | state_of(word));
            match self.header().word.compare_exchange_weak(word, front, Ordering::Release, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }
}

impl Clone for AsyncValueAny {
    #[inline]
    fn clone(&self) -> Self {
        // Relaxed: the holder of a reference can give another.
        if self.header().refs.fetch_add(1, Ordering::Relaxed) > REFS_MAX {
            std::process::abort();
        }
        Self { header: self.header }
    }
}

impl Drop for AsyncValueAny {
    #[inline]
    fn drop(&mut self) {
        let refs = &self.header().refs;
        if refs.load(Ordering::Acquire) == 1 || refs.fetch_sub(1, Ordering::AcqRel) == 1 {
            let grave = Grave { header: self.header };
            if self.header().table.nests { run::bury(grave) } else { grave.free() }
        }
    }
}

/// A cell without references, to be freed.
pub(super) struct Grave {
    header: NonNull<Header>,
}

impl Grave {
    #[inline]
    pub(super) fn free(self) {
        // SAFETY: the count was 1 or came to 0 (AcqRel), so this is the last reference; the table is the cell's.
        unsafe { (self.header.as_ref().table.free)(self.header) };
    }
}

/// Cells to be freed, linked through their state words, which are no longer read.
#[derive(Default)]
pub(super) struct Graves {
    newest: Option<NonNull<Header>>,
}

impl Graves {
    pub(super) const NONE: Self = Self { newest: None };

    pub(super) fn push(&mut self, grave: Grave) {
        let next = self.newest.map_or(null_mut(), NonNull::as_ptr);
        // SAFETY: a grave's cell is live until `free`.
        unsafe { grave.header.as_ref() }.word.store(next.cast(), Ordering::Relaxed);
        self.newest = Some(grave.header);
    }

    pub(super) fn pop(&mut self) -> Option<Grave> {
        let header = self.newest?;
        // SAFETY: `newest` is the header of a grave, whose cell is live until `free`.
        let next = unsafe { header.as_ref() }.word.load(Ordering::Relaxed);
        self.newest = NonNull::new(next.cast());
        Some(Grave { header })
    }
}

/// A counted reference to an async value.
///
/// **Threads**: any. **Owns**: a share of the value, which goes with its last reference.
#[repr(transparent)]
pub struct AsyncValueRef<T: Payload> {
    pub(super) any: AsyncValueAny,
    marker: PhantomData<fn() -> T>,
}

impl<T: Payload> AsyncValueRef<T> {
    /// Returns a value that is there.
    #[inline]
    pub fn available(value: T) -> Self {
        Self::adopt(Cell::allocate(1, AVAILABLE, Body::Value(value)))
    }

    /// Returns a value that will never be there.
    pub fn from_error(error: Error) -> Self {
        Self::adopt(Cell::<T>::allocate(1, ERROR, Body::Error(error)))
    }

    /// Takes over a counted reference to a cell that holds a `T`.
    #[inline]
    pub(super) fn adopt(header: NonNull<Header>) -> Self {
        Self { any: AsyncValueAny { header }, marker: PhantomData }
    }

    /// # Safety
    /// 1. The cell holds a `T`.
    pub(super) unsafe fn of(any: &AsyncValueAny) -> &Self {
        // SAFETY: the layout is the same (transparent), and condition 1.
        unsafe { &*std::ptr::from_ref(any).cast::<Self>() }
    }

    /// Returns the value or the error, if it is concrete.
    #[inline]
    pub fn outcome(&self) -> Option<Result<&T, &Error>> {
        if !self.any.is_concrete() {
            return None;
        }
        // SAFETY: the cell holds a `T` (type), and lives as long as this reference.
        let cell = unsafe { self.any.header.cast::<Cell<T>>().as_ref() };
        // SAFETY: the state is concrete, read with Acquire: the body is written no more.
        match cell.body.with(|body| unsafe { &*body }) {
            Body::Value(value) => Some(Ok(value)),
            Body::Error(error) => Some(Err(error)),
            // One step: that cell is not forwarded.
            Body::Forwarded(target) => target.outcome(),
            Body::Empty => None,
        }
    }

    /// Returns the cell that has the value itself, for a value that is available.
    fn direct(&self) -> &Self {
        if self.any.raw_state() != FORWARDED {
            return self;
        }
        // SAFETY: the cell holds a `T` (type), and lives as long as this reference.
        let cell = unsafe { self.any.header.cast::<Cell<T>>().as_ref() };
        // SAFETY: FORWARDED is concrete, and was read with Acquire: the body is written no more.
        match cell.body.with(|body| unsafe { &*body }) {
            Body::Forwarded(target) => target,
            _ => self,
        }
    }

    /// Returns the same without its type.
    pub fn erase(self) -> AsyncValueAny {
        self.any
    }

    /// Returns the same, borrowed.
    #[inline]
    pub fn as_ptr(&self) -> AsyncValuePtr<'_, T> {
        AsyncValuePtr { header: self.any.header, marker: PhantomData }
    }
}

impl<T: Payload> Clone for AsyncValueRef<T> {
    fn clone(&self) -> Self {
        Self { any: self.any.clone(), marker: PhantomData }
    }
}

impl<T: Payload> Deref for AsyncValueRef<T> {
    type Target = AsyncValueAny;

    fn deref(&self) -> &AsyncValueAny {
        &self.any
    }
}

/// A borrowed reference to an async value: a copy costs nothing, and touches no count.
pub struct AsyncValuePtr<'a, T: Payload> {
    header: NonNull<Header>,
    marker: PhantomData<&'a AsyncValueRef<T>>,
}

// SAFETY: it is a `&AsyncValueRef`, which is Send.
unsafe impl<T: Payload> Send for AsyncValuePtr<'_, T> {}
// SAFETY: it gives what `&AsyncValueRef` gives, which is `Sync`.
unsafe impl<T: Payload> Sync for AsyncValuePtr<'_, T> {}

impl<'a, T: Payload> AsyncValuePtr<'a, T> {
    /// Returns the value, if it is available, for the lifetime of this borrow.
    pub fn get(self) -> Option<&'a T> {
        let value = std::ptr::from_ref(self.outcome()?.ok()?);
        // SAFETY: the reference that this borrows from lives for 'a, and the value with it.
        Some(unsafe { &*value })
    }

    /// A counted reference.
    pub fn to_ref(self) -> AsyncValueRef<T> {
        (*self).clone()
    }
}

impl<T: Payload> Clone for AsyncValuePtr<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Payload> Copy for AsyncValuePtr<'_, T> {}

impl<T: Payload> Deref for AsyncValuePtr<'_, T> {
    type Target = AsyncValueRef<T>;

    fn deref(&self) -> &AsyncValueRef<T> {
        // SAFETY: both are a pointer to the header and nothing else; the reference given is not dropped, and this
        // borrows from one that keeps the cell alive.
        unsafe { &*std::ptr::from_ref(&self.header).cast::<AsyncValueRef<T>>() }
    }
}

/// The one handle that may write a cell; its reference keeps the cell alive until it is concrete.
pub(super) struct Producer<T: Payload> {
    pub(super) header: NonNull<Header>,
    pub(super) marker: PhantomData<fn(T)>,
}

// SAFETY: it is a reference to a cell, and a `T` may be given to it on any thread (Payload).
unsafe impl<T: Payload> Send for Producer<T> {}
// SAFETY: nothing can be written through a shared one.
unsafe impl<T: Payload> Sync for Producer<T> {}

impl<T: Payload> Producer<T> {
    /// Creates an empty cell. Returns its producer and a reference for readers.
    #[inline]
    pub(super) fn new() -> (Self, AsyncValueRef<T>) {
        let header = Cell::<T>::allocate(2, UNCONSTRUCTED, Body::Empty);
        (Self { header, marker: PhantomData }, AsyncValueRef::adopt(header))
    }

    #[inline]
    fn cell(&self) -> &Cell<T> {
        // SAFETY: the producer's reference keeps the cell alive, and it holds a `T`.
        unsafe { self.header.cast::<Cell<T>>().as_ref() }
    }

    #[inline]
    fn write(&self, body: Body<T>) {
        // SAFETY: the state is not concrete, so only the producer touches the body; there is one producer.
        self.cell().body.with_mut(|place| unsafe { *place = body });
    }

    /// Another reference to read by.
    pub(super) fn value(&self) -> AsyncValueRef<T> {
        let own = ManuallyDrop::new(AsyncValueRef::<T>::adopt(self.header));
        AsyncValueRef::clone(&own)
    }

    pub(super) fn is_constructed(&self) -> bool {
        // Relaxed: the producer wrote it.
        state_of(self.cell().header.word.load(Ordering::Relaxed)) == CONSTRUCTED
    }

    /// Builds the value; it is not published. The cell is unconstructed.
    pub(super) fn construct(&mut self, value: T) {
        self.write(Body::Value(value));
        let word = &self.cell().header.word;
        let mut now = word.load(Ordering::Relaxed);
        loop {
            let constructed = list_of(now).map_addr(|addr| addr | CONSTRUCTED);
            match word.compare_exchange_weak(now, constructed, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => now = other,
            }
        }
    }

    /// The value that was built.
    pub(super) fn constructed_mut(&mut self) -> Option<&mut T> {
        // SAFETY: the state is not concrete, so only the producer touches the body, and this is the producer
        // (`&mut self`); the reference ends before it can publish.
        match self.cell().body.with_mut(|body| unsafe { &mut *body }) {
            Body::Value(value) => Some(value),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn emplace(self, value: T) {
        self.write(Body::Value(value));
        self.publish(AVAILABLE);
    }

    /// Publishes the value that `construct` built.
    pub(super) fn set_available(self) {
        debug_assert!(self.is_constructed());
        self.publish(AVAILABLE);
    }

    pub(super) fn set_error(self, error: Error) {
        self.write(Body::Error(error));
        self.publish(ERROR);
    }

    /// Takes the state of another value, which is concrete.
    pub(super) fn forward(self, target: &AsyncValueRef<T>) {
        if let Some(error) = target.error() {
            return self.set_error(error.clone());
        }
        // INVARIANT: a forwarded cell refers to one that is available and not forwarded.
        self.write(Body::Forwarded(target.direct().clone()));
        self.publish(FORWARDED);
    }

    /// Makes the cell concrete; its waiters run, or are queued behind the one that runs.
    #[inline]
    fn publish(self, state: usize) {
        let header = self.header;
        forget(self);
        // The producer's reference.
        let own = AsyncValueAny { header };
        let (refs, word) = (&own.header().refs, &own.header().word);
        let state = without_provenance_mut(state);
        let before = if refs.load(Ordering::Acquire) == 1 {
            // Alone, and the writes of earlier holders are seen.
            let before = word.load(Ordering::Relaxed);
            word.store(state, Ordering::Relaxed);
            before
        } else {
            word.swap(state, Ordering::AcqRel)
        };
        if let Some(newest) = NonNull::new(list_of(before)) {
            run::fire(Waiters::due(newest, own));
        }
    }
}

impl<T: Payload> Drop for Producer<T> {
    fn drop(&mut self) {
        let error = if std::thread::panicking() {
            Error::new(ErrorKind::Internal, "the continuation that was to set this value panicked")
        } else {
            Error::new(
                ErrorKind::Cancelled,
                "the value's setter was dropped before it set a value or an error",
            )
        };
        Self { header: self.header, marker: PhantomData }.set_error(error);
    }
}
