//! Places for what a layer keeps of each plugin that it wraps.
//!
//! Functions of the ABI have no context pointer, and handles go through a layer unchanged, so that a function of a
//! layer could only find its books by looking up a handle; two plugins may well give equal handles. Instead each
//! function is compiled once for each slot (`extern "C" fn f<const SLOT: usize>(..)`), and a table that a layer hands
//! out has the functions of one slot. The slot says whose table comes next.
//!
//! # Invariants
//! A slot is free, or taken by one value. It is given back when the [`Slot`] that holds it is dropped, which is when
//! nobody calls the table any more: the runtime drops it behind the plugin's instance. A call that comes later all the
//! same finds the slot empty, or another plugin's books that do not know its handles; it never finds memory that is
//! gone.
//!
//! Left out on purpose: growing. The number of slots is the number of copies of each function.

use devbay_plugin_api::locks::unpoisoned;
use std::sync::{Arc, RwLock};

/// Slots of one layer: so many plugins can be under it at once, each time that it is in a stack counted.
pub const N_SLOTS: usize = 32;

/// One layer's slots.
pub struct Slots<T: 'static> {
    slots: [RwLock<Option<Arc<T>>>; N_SLOTS],
}

/// A slot that is taken, until this is dropped.
pub struct Slot<T: 'static> {
    slots: &'static Slots<T>,
    idx: usize,
}

impl<T: 'static> Slots<T> {
    /// All free.
    pub const fn new() -> Self {
        Self { slots: [const { RwLock::new(None) }; N_SLOTS] }
    }

    /// Takes a free slot for what `make` makes; None if there is none.
    pub fn take(&'static self, make: impl FnOnce(usize) -> T) -> Option<Slot<T>> {
        for (idx, slot) in self.slots.iter().enumerate() {
            let mut slot = unpoisoned(slot.write());
            if slot.is_none() {
                *slot = Some(Arc::new(make(idx)));
                return Some(Slot { slots: self, idx });
            }
        }
        None
    }

    /// Returns the content of a slot; None if the slot was given back.
    pub fn get(&self, idx: usize) -> Option<Arc<T>> {
        unpoisoned(self.slots.get(idx)?.read()).clone()
    }
}

impl<T: 'static> Default for Slots<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: 'static> Slot<T> {
    /// Returns its index.
    pub fn idx(&self) -> usize {
        self.idx
    }
}

impl<T: 'static> Drop for Slot<T> {
    fn drop(&mut self) {
        let mut slot = unpoisoned(self.slots.slots[self.idx].write());
        let gone = slot.take();
        drop(slot);
        // Its destructor may run any code, and so runs without the lock.
        drop(gone);
    }
}

/// An array with a generic constant for each slot: `per_slot!(Tables::TABLE)` is `[Tables::<0>::TABLE, ..]`.
macro_rules! per_slot {
    ($type:ident :: $item:ident) => {
        per_slot!(@ $type $item
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31)
    };
    (@ $type:ident $item:ident $($slot:literal)*) => { [$($type::<$slot>::$item),*] };
}
pub(crate) use per_slot;

#[cfg(test)]
mod tests {
    use super::*;

    static SLOTS: Slots<usize> = Slots::new();

    #[test]
    fn slots_are_counted_and_come_back() {
        let mut taken: Vec<_> = (0..N_SLOTS).map(|_| SLOTS.take(|idx| idx).expect("a free slot")).collect();
        assert!(SLOTS.take(|idx| idx).is_none(), "one more than there are");
        assert_eq!(SLOTS.get(7).as_deref(), Some(&7));
        let seventh = taken.remove(7);
        assert_eq!(seventh.idx(), 7);
        drop(seventh);
        assert_eq!(SLOTS.get(7), None);
        let again = SLOTS.take(|idx| idx + 100).expect("the one that was given back");
        assert_eq!((again.idx(), SLOTS.get(7).as_deref()), (7, Some(&107)));
        assert_eq!(SLOTS.get(N_SLOTS), None, "a number that is no slot");
    }
}
