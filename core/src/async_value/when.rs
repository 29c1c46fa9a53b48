//! Waiting for many values at once.
//!
//! One waiter goes from value to value: it waits for the first that is not concrete, and when that is, for the next.
//! The last is concrete when all are, so nothing is counted, and setters do not meet at a counter, and it
//! gives back its references as it goes. However many they are, it is one allocation besides the list of them.

use super::waiter::{Link, Work};
use super::{AsyncValueAny, Chain};
use crate::error::Error;
use std::vec::IntoIter;

/// A chain that is available when all values are.
///
/// **Errors**: the first in the order of the arguments, whichever came first in time, and not before all are concrete:
/// nothing that was waited for is then still under way.
pub fn when_all<I>(values: I) -> Chain
where
    I: IntoIterator<Item: Into<AsyncValueAny>>,
{
    let mut values: Vec<AsyncValueAny> = values.into_iter().map(Into::into).collect();
    values.retain(|value| !value.is_available());
    let mut values = values.into_iter();
    let Some(first) = values.next() else {
        return Chain::ready();
    };
    let (link, all) = Link::new();
    link.arm(WhenAll { values, error: None }, &first);
    all
}

struct WhenAll {
    /// Those after the one that it waits for.
    values: IntoIter<AsyncValueAny>,
    error: Option<Error>,
}

impl Work<()> for WhenAll {
    type Source = AsyncValueAny;

    fn run(mut self, source: &AsyncValueAny, mut link: Link<(), Self>) {
        self.error = self.error.or_else(|| source.error().cloned());
        while let Some(next) = self.values.next() {
            match link.try_arm(self, &next) {
                Ok(()) => return,
                Err(refused) => (link, self) = refused,
            }
            self.error = self.error.or_else(|| next.error().cloned());
        }
        match self.error {
            Some(error) => link.into_producer().set_error(error),
            None => link.into_producer().emplace(()),
        }
    }
}
