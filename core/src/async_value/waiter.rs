//! Waiters: functions that run when a value becomes concrete, in an allocation of their own or in the cell that they
//! set.
//!
//! [`super::cell`] lists them in a cell's word; [`super::run`] orders their runs. A waiter is a
//! node at the front of a [`Task`] or inside a [`Linked`] cell. The thread that takes it out of a list runs it once.

use super::cell::{
    AsyncValueAny, AsyncValueRef, Body, Cell, Header, INDIRECT, Payload, Producer, Table, UNCONSTRUCTED, free,
};
use crate::sync::UnsafeCell;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, forget, offset_of};
use std::ptr::{NonNull, null_mut};

/// A cell with the waiter that will set it.
#[repr(C)]
struct Linked<U: Payload, W> {
    cell: Cell<U>,
    waiter: Waiter,
    /// There from `arm` until the waiter runs.
    work: UnsafeCell<Option<W>>,
}

// The rule of two cache lines, with room for a waiter's own data.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Linked<u64, [u64; 4]>>() <= 128);

impl<U: Payload, W> Linked<U, W> {
    const TABLE: &'static Table = &Table::new::<U>(free::<Self>);
}

/// The value that a waiter waits for: a reference with its type, or without.
pub(super) trait Source {
    fn any(&self) -> &AsyncValueAny;

    /// # Safety
    /// 1. The cell is of this source's type.
    unsafe fn of(any: &AsyncValueAny) -> &Self;
}

impl Source for AsyncValueAny {
    fn any(&self) -> &AsyncValueAny {
        self
    }

    unsafe fn of(any: &AsyncValueAny) -> &Self {
        any
    }
}

impl<T: Payload> Source for AsyncValueRef<T> {
    fn any(&self) -> &AsyncValueAny {
        &self.any
    }

    unsafe fn of(any: &AsyncValueAny) -> &Self {
        // SAFETY: `any` is of type `Self` (# Safety).
        unsafe { Self::of(any) }
    }
}

/// A node of a list of waiters.
///
/// # Invariants
/// It is in at most one list. The thread that took it out runs it once, which ends it.
#[repr(C, align(8))]
pub(super) struct Waiter {
    pub(super) next: *mut Self,
    /// The value waited for, once it is concrete; [`LAST`] is set in the last waiter of a value, to which the
    /// producer's reference to it has passed.
    source: *mut Header,
    /// Runs the action behind this node, and ends the node.
    run: unsafe fn(NonNull<Self>, &AsyncValueAny),
}

const LAST: usize = 1;

impl Waiter {
    const fn new(run: unsafe fn(NonNull<Self>, &AsyncValueAny)) -> Self {
        Self { next: null_mut(), source: null_mut(), run }
    }
}

/// Waiters that are due, in the order in which they run.
#[derive(Default)]
pub(super) struct Waiters {
    ends: Option<(NonNull<Waiter>, NonNull<Waiter>)>,
}

impl Waiters {
    pub(super) const NONE: Self = Self { ends: None };

    /// Returns the waiters of a value that has become concrete, oldest first; `own` was the producer's.
    pub(super) fn due(newest: NonNull<Waiter>, own: AsyncValueAny) -> Self {
        let source = ManuallyDrop::new(own).header.as_ptr();
        let (mut first, mut tag, mut at) = (null_mut(), LAST, newest.as_ptr());
        while !at.is_null() {
            // SAFETY: the list was taken out of the word, so its nodes are this thread's; each is live until it runs.
            let waiter = unsafe { &mut *at };
            waiter.source = source.map_addr(|addr| addr | tag);
            at = std::mem::replace(&mut waiter.next, first);
            first = waiter;
            tag = 0;
        }
        Self { ends: NonNull::new(first).map(|first| (first, newest)) }
    }

    /// Puts others behind these.
    #[inline]
    pub(super) fn append(&mut self, others: Self) {
        match (&mut self.ends, others.ends) {
            (Some((_, last)), Some((first, others_last))) => {
                // SAFETY: waiters that are due are live, and this list is their only owner.
                unsafe { last.as_mut().next = first.as_ptr() };
                *last = others_last;
            }
            (ends, others) => *ends = ends.or(others),
        }
    }

    /// Takes the first.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Due> {
        let (waiter, last) = self.ends?;
        // SAFETY: waiters that are due are live, and this list is their only owner.
        let next = unsafe { waiter.as_ref() }.next;
        self.ends = NonNull::new(next).map(|next| (next, last));
        Some(Due { waiter })
    }
}

/// A waiter whose value is concrete.
#[must_use]
pub(super) struct Due {
    waiter: NonNull<Waiter>,
}

impl Due {
    #[inline]
    pub(super) fn run(self) {
        // SAFETY: it was taken out of the list of those due, and is live until it runs.
        let Waiter { source, run, .. } = *unsafe { self.waiter.as_ref() };
        let is_last = source.addr() & LAST != 0;
        // SAFETY: `due` stored a pointer to a header, and LAST is below its alignment.
        let header = unsafe { NonNull::new_unchecked(source.map_addr(|addr| addr & !LAST)) };
        // The reference of the last waiter, or borrowed from it: the last runs after this one.
        let source = ManuallyDrop::new(AsyncValueAny { header });
        // SAFETY: the function is made for the object around the waiter, and this is the one call (invariant of
        // Waiter).
        unsafe { run(self.waiter, &source) };
        if is_last {
            drop(ManuallyDrop::into_inner(source));
        }
    }
}

/// A waiter that sets nothing, in an allocation of its own.
#[repr(C)]
struct Task<F> {
    waiter: Waiter,
    work: F,
}

/// Runs `work` when a value is concrete: at once, if it is so now. It must not unwind.
#[inline]
pub(super) fn when_concrete<S: Source, F: FnOnce(&S) + Send + 'static>(source: &S, work: F) {
    if source.any().is_concrete() {
        return work(source);
    }
    let task = Box::new(Task { waiter: Waiter::new(run_task::<S, F>), work });
    let waiter: NonNull<Waiter> = NonNull::from(Box::leak(task)).cast();
    // SAFETY: just made, and its function is the one for this task and source.
    if !unsafe { source.any().push(waiter) } {
        // SAFETY: `push` refused it, so it is still this thread's.
        unsafe { run_task::<S, F>(waiter, source.any()) };
    }
}

/// # Safety
/// 1. `waiter` is the front of a boxed `Task<F>`, which is not used any more.
/// 2. `source` is of type `S`.
unsafe fn run_task<S: Source, F: FnOnce(&S)>(waiter: NonNull<Waiter>, source: &AsyncValueAny) {
    // SAFETY: condition 1; it was leaked from a box.
    let task = unsafe { Box::from_raw(waiter.cast::<Task<F>>().as_ptr()) };
    // Freed before the work begins, which may allocate one like it.
    let Task { work, .. } = *task;
    // SAFETY: condition 2.
    work(unsafe { S::of(source) });
}

/// The action of a cell's own waiter: it sets the cell, or waits for something else. It must not unwind.
pub(super) trait Work<U: Payload>: Sized + Send + 'static {
    /// The value that it waits for.
    type Source: Source;

    /// `source` is concrete.
    fn run(self, source: &Self::Source, link: Link<U, Self>);
}

/// The producer of a cell that has its waiter in it, while that waits for nothing.
pub(super) struct Link<U: Payload, W: Work<U>> {
    /// Of a [`Linked<U, W>`].
    producer: Producer<U>,
    marker: PhantomData<fn(W)>,
}

impl<U: Payload, W: Work<U>> Link<U, W> {
    /// Returns a cell with nothing in it, in one of the states that are not concrete.
    fn with_state(state: usize) -> (Self, AsyncValueRef<U>) {
        let linked = Linked::<U, W> {
            cell: Cell::new(Linked::<U, W>::TABLE, 2, state, Body::Empty),
            waiter: Waiter::new(run_linked::<U, W>),
            work: UnsafeCell::new(None),
        };
        let header = NonNull::from(Box::leak(Box::new(linked))).cast();
        let producer = Producer { header, marker: PhantomData };
        (Self { producer, marker: PhantomData }, AsyncValueRef::adopt(header))
    }

    /// Creates a cell for a value that is computed.
    #[inline]
    pub(super) fn new() -> (Self, AsyncValueRef<U>) {
        Self::with_state(UNCONSTRUCTED)
    }

    /// Returns a cell that will be another value.
    #[inline]
    pub(super) fn indirect() -> (Self, AsyncValueRef<U>) {
        Self::with_state(INDIRECT)
    }

    /// Returns the producer, to set the cell now.
    #[inline]
    pub(super) fn into_producer(self) -> Producer<U> {
        self.producer
    }

    /// Returns whether this is the producer of that value.
    pub(super) fn is_for(&self, value: &AsyncValueRef<U>) -> bool {
        self.producer.header == value.any.header
    }

    /// Runs `work` when `source` is concrete: at once, if it is so now.
    #[inline]
    pub(super) fn arm(self, work: W, source: &W::Source) {
        if let Err((link, work)) = self.try_arm(work, source) {
            work.run(source, link);
        }
    }

    /// Lets `work` wait for `source`; gives both back if that is concrete.
    #[inline]
    pub(super) fn try_arm(self, work: W, source: &W::Source) -> Result<(), (Self, W)> {
        if source.any().is_concrete() {
            return Err((self, work));
        }
        let linked = self.producer.header.cast::<Linked<U, W>>();
        // SAFETY: the waiter waits for nothing, so only this link touches the work; the cell is live.
        unsafe { linked.as_ref() }.work.with_mut(|place| unsafe { *place = Some(work) });
        // SAFETY: within the allocation, to which `header` has the right.
        let waiter = unsafe { NonNull::new_unchecked(&raw mut (*linked.as_ptr()).waiter) };
        // From here on the waiter stands for the producer.
        forget(self);
        // SAFETY: the waiter is in no list, and its function is the one for this cell.
        if unsafe { source.any().push(waiter) } {
            return Ok(());
        }
        // SAFETY: `push` refused it, so it is still this thread's.
        Err(unsafe { take_work(waiter) })
    }
}

/// # Safety
/// 1. `waiter` is the one in a `Linked<U, W>`, was armed, and is in no list any more.
#[inline]
unsafe fn take_work<U: Payload, W: Work<U>>(waiter: NonNull<Waiter>) -> (Link<U, W>, W) {
    // SAFETY: condition 1; the pointer was made from one to the whole cell.
    let linked = unsafe { waiter.byte_sub(offset_of!(Linked<U, W>, waiter)) }.cast::<Linked<U, W>>();
    // SAFETY: the waiter holds the producer's reference, so the cell lives; it is in no list (condition 1), so only
    // this thread touches the work.
    let work = unsafe { linked.as_ref() }.work.with_mut(|place| unsafe { (*place).take() });
    let producer = Producer { header: linked.cast(), marker: PhantomData };
    let link = Link { producer, marker: PhantomData };
    (link, work.expect("an armed waiter has its work"))
}

/// # Safety
/// 1. `waiter` is the one in a `Linked<U, W>`, was armed, and is in no list any more.
/// 2. `source` is of type `W::Source`.
unsafe fn run_linked<U: Payload, W: Work<U>>(waiter: NonNull<Waiter>, source: &AsyncValueAny) {
    // SAFETY: condition 1.
    let (link, work) = unsafe { take_work::<U, W>(waiter) };
    // SAFETY: condition 2.
    work.run(unsafe { W::Source::of(source) }, link);
}
