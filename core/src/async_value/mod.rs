//! Async values: values that are not yet there, later concrete or an error, with continuations.
//!
//! An [`AsyncValueRef`] is a counted reference to a value that is set once, by the one [`AsyncValueSetter`] that came
//! with it. To use the value, attach a waiter ([`AsyncValueRef::and_then`], [`AsyncValueRef::map`], [`when_all`], a
//! task that awaits it), which does not block. [`AsyncValueAny`] is the same without the type, [`AsyncValuePtr`] the
//! same borrowed. A [`Chain`] has no data. An indirect value stands for another that is not known yet.
//!
//! Invariants:
//!
//! - A value becomes concrete exactly once: available, or an error. A setter that is dropped without having set it sets
//!   an error, so no waiter waits for nothing.
//! - Waiters of one value run in the order in which they came, on the thread that set it, or at once on the caller's
//!   if it is concrete already. Setting a value within a waiter queues its waiters until that one has returned, so no
//!   chain of values is too long for a stack.
//! - An error travels along data edges as one shared [`Error`](crate::Error): each dependent shows the first cause.
//!   Only what depends on the failure is skipped.
//! - A waiter that panics affects no other: `map` and `flat_map` set an error on their value. A panic in a waiter that
//!   sets nothing (`and_then`) is reported through `tracing` and the panic hook.
//! - No locks. A value is one allocation, a waiter another; a dependent value and its waiter are one together.
//!
//! Left out on purpose: taking a waiter back (it stays until the value is set), and choosing where a waiter runs, which
//! is the executor's business.

mod cell;
mod chain;
mod run;
mod value;
mod wait;
mod waiter;
mod when;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

pub use cell::{AsyncValueAny, AsyncValuePtr, AsyncValueRef, Payload, State};
pub use chain::Chain;
pub use value::{AsyncValueForwarder, AsyncValueSetter, Refused};
pub use wait::{Available, AwaitedValue};
pub use when::when_all;
