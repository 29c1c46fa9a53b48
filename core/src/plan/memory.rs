//! Where the values of a section live: offsets in one arena, by lifetime.
//!
//! The rule: two values share a byte only if everything that touches one happens before the other is made. Within a
//! straight line that is the order of its steps ([`assign`]); between tasks it is the edges between them
//! ([`assign_where`]), because tasks without a path from one to the other run at the same time.
//!
//! Offsets are assigned to the largest first, each at the lowest gap that it fits into ("greedy by size", Pisarchyk
//! and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, section 5.2). The result is compared
//! with the lower bound: the most bytes that live at one step. That takes a time that grows with the square of the
//! number of values, so that from `GREEDY_MAX` on lines are assigned in their order, each value to the best gap
//! that is free then.

use std::collections::{BTreeMap, BTreeSet};

/// Values that are assigned by size; more are assigned in order.
const GREEDY_MAX: usize = 8192;

/// Something that needs memory from one step to another, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interval {
    /// Bytes.
    pub size: usize,
    /// Alignment, a power of two.
    pub align: usize,
    /// First step that uses it.
    pub first: u32,
    /// Last step that uses it.
    pub last: u32,
}

/// Offsets, and how good they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArenaPlan {
    /// Offset of each interval, in their order.
    pub offsets: Vec<usize>,
    /// Bytes of the arena.
    pub size: usize,
    /// Most bytes that live at one step, sizes rounded to alignment.
    pub lower_bound: usize,
}

/// Whether so many values are assigned by size, which takes a time that grows with the square of their number.
pub fn is_greedy(n: usize) -> bool {
    n <= GREEDY_MAX
}

/// Assigns offsets by lifetimes in one order. None if the sizes overflow.
pub fn assign(intervals: &[Interval]) -> Option<ArenaPlan> {
    if !is_greedy(intervals.len()) {
        return in_order(intervals);
    }
    assign_where(intervals, |a, b| {
        intervals[a].last < intervals[b].first || intervals[b].last < intervals[a].first
    })
}

/// Assigns offsets to values of which `apart(a, b)` says whether one is done with before the other is made. None if
/// the sizes overflow.
pub fn assign_where(intervals: &[Interval], apart: impl Fn(usize, usize) -> bool) -> Option<ArenaPlan> {
    let mut order: Vec<usize> = (0..intervals.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(intervals[i].size), intervals[i].first, i));
    let mut offsets = vec![0usize; intervals.len()];
    // Placed intervals by offset.
    let mut placed: Vec<usize> = Vec::with_capacity(intervals.len());
    let mut size = 0usize;
    for &i in &order {
        let interval = &intervals[i];
        let mut offset = 0usize;
        for &k in &placed {
            if apart(i, k) {
                continue;
            }
            let other = &intervals[k];
            if offset.checked_add(interval.size)? <= offsets[k] {
                break;
            }
            let end = offsets[k].checked_add(other.size)?.checked_next_multiple_of(interval.align)?;
            offset = offset.max(end);
        }
        offsets[i] = offset;
        let at = placed.partition_point(|&k| offsets[k] <= offset);
        placed.insert(at, i);
        size = size.max(offset.checked_add(interval.size)?.checked_next_multiple_of(interval.align)?);
    }
    Some(ArenaPlan { offsets, size, lower_bound: lower_bound(intervals)? })
}

/// Assigns each value memory of its own, one after the other. None if the sizes overflow.
pub fn assign_apart(intervals: &[Interval]) -> Option<ArenaPlan> {
    let mut offsets = Vec::with_capacity(intervals.len());
    let mut size = 0usize;
    for interval in intervals {
        let offset = size.checked_next_multiple_of(interval.align)?;
        offsets.push(offset);
        size = offset.checked_add(interval.size)?;
    }
    Some(ArenaPlan { offsets, size, lower_bound: lower_bound(intervals)? })
}

/// Free ranges of an arena: by size for the best fit, by offset to join neighbours.
#[derive(Default)]
struct Gaps {
    by_size: BTreeSet<(usize, usize)>,
    by_offset: BTreeMap<usize, usize>,
}

impl Gaps {
    fn add(&mut self, mut offset: usize, mut size: usize) {
        if let Some((&before, &length)) = self.by_offset.range(..offset).next_back()
            && before + length == offset
        {
            self.remove(before, length);
            (offset, size) = (before, length + size);
        }
        if let Some(&length) = self.by_offset.get(&(offset + size)) {
            self.remove(offset + size, length);
            size += length;
        }
        self.by_size.insert((size, offset));
        self.by_offset.insert(offset, size);
    }

    fn remove(&mut self, offset: usize, size: usize) {
        self.by_size.remove(&(size, offset));
        self.by_offset.remove(&offset);
    }

    /// The smallest gap that is large enough.
    fn take(&mut self, wanted: usize) -> Option<usize> {
        let &(size, offset) = self.by_size.range((wanted, 0)..).next()?;
        self.remove(offset, size);
        if size > wanted {
            self.add(offset + wanted, size - wanted);
        }
        Some(offset)
    }
}

/// As [`assign`], value by value in the order of their first steps.
fn in_order(intervals: &[Interval]) -> Option<ArenaPlan> {
    let mut order: Vec<usize> = (0..intervals.len()).collect();
    order.sort_by_key(|&i| (intervals[i].first, i));
    // Every offset is a multiple of the greatest alignment, because every size is.
    let align = intervals.iter().map(|interval| interval.align).max().unwrap_or(1);
    let mut offsets = vec![0usize; intervals.len()];
    let mut ends: BTreeSet<(u32, usize)> = BTreeSet::new();
    let mut gaps = Gaps::default();
    let mut size = 0usize;
    let padded = |i: usize| intervals[i].size.checked_next_multiple_of(align);
    for i in order {
        while let Some(&(last, ended)) = ends.first()
            && last < intervals[i].first
        {
            ends.pop_first();
            gaps.add(offsets[ended], padded(ended)?);
        }
        let wanted = padded(i)?;
        offsets[i] = match gaps.take(wanted) {
            Some(offset) => offset,
            None => {
                let offset = size;
                size = size.checked_add(wanted)?;
                offset
            }
        };
        ends.insert((intervals[i].last, i));
    }
    Some(ArenaPlan { offsets, size, lower_bound: lower_bound(intervals)? })
}

/// The most bytes that live at one step.
fn lower_bound(intervals: &[Interval]) -> Option<usize> {
    // Changes by step: what begins, and what ended the step before.
    let mut changes: Vec<(u32, bool, usize)> = Vec::with_capacity(2 * intervals.len());
    for interval in intervals {
        let size = interval.size.checked_next_multiple_of(interval.align)?;
        changes.push((interval.first, true, size));
        changes.push((interval.last.checked_add(1)?, false, size));
    }
    // Ends before begins at one step.
    changes.sort_unstable();
    let (mut live, mut most) = (0usize, 0usize);
    for (_, begins, size) in changes {
        if begins {
            live = live.checked_add(size)?;
            most = most.max(live);
        } else {
            live -= size;
        }
    }
    Some(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn interval(size: usize, first: u32, last: u32) -> Interval {
        Interval { size, align: 64, first, last }
    }

    #[test]
    fn lifetimes_that_do_not_meet_share_memory() {
        let plan = assign(&[interval(256, 0, 1), interval(256, 2, 3), interval(128, 1, 2)]).unwrap();
        assert_eq!((plan.size, plan.lower_bound), (384, 384));
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        assert_eq!(assign(&[interval(usize::MAX - 8, 0, 1), interval(64, 0, 1)]), None);
    }

    proptest! {
        #[test]
        fn overlapping_lifetimes_never_share_a_byte(
            list in prop::collection::vec((1usize..2000, 0u32..40, 0u32..10), 1..60)
        ) {
            let intervals: Vec<_> =
                list.iter().map(|&(size, first, len)| interval(size, first, first + len)).collect();
            for plan in [assign(&intervals).unwrap(), in_order(&intervals).unwrap()] {
            prop_assert!(plan.size >= intervals.iter().map(|i| i.size).max().unwrap());
            for (a, x) in intervals.iter().enumerate() {
                prop_assert_eq!(plan.offsets[a] % x.align, 0);
                prop_assert!(plan.offsets[a] + x.size <= plan.size);
                for (b, y) in intervals.iter().enumerate().skip(a + 1) {
                    let together = x.first <= y.last && y.first <= x.last;
                    let apart = plan.offsets[a] + x.size <= plan.offsets[b]
                        || plan.offsets[b] + y.size <= plan.offsets[a];
                    prop_assert!(!together || apart, "{x:?} and {y:?}");
                }
            }
            }
        }
    }
}
