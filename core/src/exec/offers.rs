//! Offers: ready tasks that a thread shows to others.
//!
//! Each participant of a run keeps its ready tasks to itself and shows a few ranges of them, a word each, so that a
//! thread that is never robbed pays next to nothing (Acar, Charguéraud and Rainey, "Scheduling Parallel Programs by
//! Work Stealing with Private Deques", 2013).
//!
//! # Protocol
//!
//! A word is a range `(begin, end)` of places in the list of successors, or 0 when it is empty.
//!
//! | actor | transition | when |
//! | --- | --- | --- |
//! | owner | 0 to (b, e) | shows a range (Release: a thief sees all writes that made its tasks ready) |
//! | owner | (b, e) to 0 | takes it back, by exchange |
//! | thief | (b, e) to (b, m), or 0 for a single task | takes the back half, by compare-exchange (Acquire) |
//!
//! A range may come back to a word while a thief looks at it, with the next iteration of a loop or the next run. A word
//! that compares equal stands for tasks that are ready now, whatever was there in between.

use crate::sync::{AtomicU64, Ordering};

/// Ranges that a participant shows at once.
const WORDS: usize = 4;

/// A range of places in the list of successors, whose tasks are ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First place.
    pub begin: u32,
    /// One past the last.
    pub end: u32,
}

impl Range {
    /// No tasks.
    pub const EMPTY: Self = Self { begin: 0, end: 0 };

    /// Tasks in it.
    #[inline(always)]
    pub fn len(self) -> u32 {
        self.end - self.begin
    }

    fn pack(self) -> u64 {
        u64::from(self.begin) << 32 | u64::from(self.end)
    }

    fn unpack(word: u64) -> Option<Self> {
        (word != 0).then_some(Self { begin: (word >> 32) as u32, end: word as u32 })
    }
}

/// The ranges that one participant shows.
#[derive(Default)]
pub struct Offers {
    words: [AtomicU64; WORDS],
}

impl Offers {
    /// Shows a range that is not empty; false if there is no room. For the owner alone.
    pub fn show(&self, range: Range) -> bool {
        debug_assert!(range.begin < range.end);
        for word in &self.words {
            // No other thread fills an empty word.
            if word.load(Ordering::Relaxed) == 0 {
                word.store(range.pack(), Ordering::Release);
                return true;
            }
        }
        false
    }

    /// Returns whether there is room to show another range. For the owner alone.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.words.iter().any(|word| word.load(Ordering::Relaxed) == 0)
    }

    /// Returns whether something is there to take.
    pub fn is_showing(&self) -> bool {
        self.words.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Takes back the newest range that is still there. Only the owner may call it.
    pub fn take_back(&self) -> Option<Range> {
        self.words.iter().rev().find_map(|word| match word.load(Ordering::Relaxed) {
            0 => None,
            _ => Range::unpack(word.swap(0, Ordering::Acquire)),
        })
    }

    /// Takes the back half of a range.
    pub fn steal(&self) -> Option<Range> {
        for word in &self.words {
            let mut seen = word.load(Ordering::Relaxed);
            while let Some(range) = Range::unpack(seen) {
                let middle = range.begin + range.len() / 2;
                let left = Range { end: middle, ..range };
                let left = if left.len() == 0 { 0 } else { left.pack() };
                match word.compare_exchange_weak(seen, left, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => return Some(Range { begin: middle, ..range }),
                    Err(now) => seen = now,
                }
            }
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thief_takes_the_back_half_and_the_owner_the_rest() {
        let offers = Offers::default();
        assert!(offers.show(Range { begin: 0, end: 5 }));
        assert_eq!(offers.steal(), Some(Range { begin: 2, end: 5 }));
        assert_eq!(offers.steal(), Some(Range { begin: 1, end: 2 }));
        assert_eq!(offers.take_back(), Some(Range { begin: 0, end: 1 }));
        assert_eq!((offers.steal(), offers.take_back()), (None, None));
    }

    #[test]
    fn there_is_room_for_a_few_ranges() {
        let offers = Offers::default();
        for begin in 0..WORDS as u32 {
            assert!(offers.has_room() && offers.show(Range { begin, end: begin + 1 }));
        }
        assert!(!offers.has_room() && !offers.show(Range { begin: 9, end: 10 }));
        assert_eq!(offers.take_back(), Some(Range { begin: WORDS as u32 - 1, end: WORDS as u32 }));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::AtomicU32;
    use loom::sync::Arc;

    /// Owner and thief take each task once, and the thief sees the writes that made it ready.
    #[test]
    fn owner_takes_back_while_a_thief_steals() {
        loom::model(|| {
            let offers = Arc::new(Offers::default());
            let data = Arc::new(AtomicU32::new(0));
            data.store(7, Ordering::Relaxed);
            offers.show(Range { begin: 0, end: 2 });
            let thief = {
                let (offers, data) = (Arc::clone(&offers), Arc::clone(&data));
                loom::thread::spawn(move || {
                    let stolen = offers.steal();
                    if stolen.is_some() {
                        assert_eq!(data.load(Ordering::Relaxed), 7);
                    }
                    stolen.map_or(0, Range::len)
                })
            };
            let kept: u32 = std::iter::from_fn(|| offers.take_back()).map(Range::len).sum();
            let stolen = thief.join().unwrap();
            assert_eq!(
                kept + stolen + std::iter::from_fn(|| offers.take_back()).map(Range::len).sum::<u32>(),
                2
            );
        });
    }

    /// Two thieves never take the same task.
    #[test]
    fn two_thieves_share_a_range() {
        loom::model(|| {
            let offers = Arc::new(Offers::default());
            offers.show(Range { begin: 0, end: 3 });
            let thieves: Vec<_> = (0..2)
                .map(|_| {
                    let offers = Arc::clone(&offers);
                    loom::thread::spawn(move || offers.steal())
                })
                .collect();
            let mut taken: Vec<Range> =
                thieves.into_iter().filter_map(|thief| thief.join().unwrap()).collect();
            taken.extend(std::iter::from_fn(|| offers.take_back()));
            let mut tasks: Vec<u32> = taken.iter().flat_map(|range| range.begin..range.end).collect();
            tasks.sort_unstable();
            assert_eq!(tasks, [0, 1, 2]);
        });
    }
}
