//! Slots for the state that a layer keeps for each plugin.
//!
//! Functions of the ABI have no context pointer, and handles pass through a layer unchanged. A layer's function could
//! therefore find its state only by looking up a handle, and two plugins may use equal handles. Instead, each function
//! is compiled once per slot (`extern "C" fn f<const SLOT: usize>(..)`), and the table for a plugin holds the functions
//! of one slot. The slot names the next table.
//!
//! # Invariants
//! A slot is free or belongs to one value. Dropping its [`Slot`] frees it; the runtime does that after the plugin's
//! instance, when no more calls are expected. A call that comes later still finds an empty slot, or the state of
//! another plugin that does not know its handles. It never reaches freed memory.
//!
//! Growing is left out on purpose: the number of slots is the number of copies of each function.

use devbay_plugin_api::locks::unpoisoned;
use std::sync::{Arc, RwLock};

/// Number of plugins that one layer can wrap at once. A plugin counts once for each time the layer is in its stack.
pub const N_SLOTS: usize = 32;

/// The slots of one layer.
pub struct Slots<T: 'static> {
    slots: [RwLock<Option<Arc<T>>>; N_SLOTS],
}

/// A slot in use, freed when this value is dropped.
pub struct Slot<T: 'static> {
    slots: &'static Slots<T>,
    idx: usize,
}

impl<T: 'static> Slots<T> {
    /// Creates the slots, all free.
    pub const fn new() -> Self {
        Self { slots: [const { RwLock::new(None) }; N_SLOTS] }
    }

    /// Takes a free slot and stores the result of `make` in it; None if every slot is in use.
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

    /// Returns the content of a slot; None if the slot is free.
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
    /// Returns the slot's index.
    pub fn idx(&self) -> usize {
        self.idx
    }
}

impl<T: 'static> Drop for Slot<T> {
    fn drop(&mut self) {
        let mut slot = unpoisoned(self.slots.slots[self.idx].write());
        let gone = slot.take();
        drop(slot);
        // The value's destructor may run arbitrary code, so the lock is released first.
        drop(gone);
    }
}

/// Builds an array from a generic constant, one element per slot: `per_slot!(Tables::TABLE)` is `[Tables::<0>::TABLE,
/// ..]`.
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
