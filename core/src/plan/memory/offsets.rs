//! Where the values of a section live: offsets in one arena, by lifetime.
//!
//! The rule: two values share a byte only if everything that touches one happens before the other is made. Within a
//! straight line that is the order of its steps ([`assign`]); between tasks it is the edges between them
//! ([`assign_where`]), because tasks without a path from one to the other run at the same time.
//!
//! Values are placed one after the other, each at the lowest gap that it fits into. The order decides how good that is:
//! several are tried, by size first ("greedy by size", Pisarchyk and Lee, "Efficient Memory Management for Deep Neural
//! Net Inference", 2020, section 5.2), then the best of them is changed bit by bit. The search ends when the lower
//! bound is reached, or when its steps are used up: it is the same search each time. A placement takes a time that
//! grows with the square of the number of values, so that from `GREEDY_MAX` on lines are assigned in their order, each
//! value to the best gap that is free then.
//!
//! The lower bound of a line is the most bytes that live at one step; that of a graph is `antichain.rs`'s. Sizes are
//! rounded to alignment in both, and in the assignment.

use super::antichain;
use crate::cancel::look;
use std::cmp::Reverse;
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

impl Interval {
    /// Returns its size rounded to its alignment.
    fn padded(&self) -> Option<usize> {
        self.size.checked_next_multiple_of(self.align)
    }

    /// Returns the number of steps that it lives for.
    fn steps(&self) -> u128 {
        u128::from(self.last - self.first) + 1
    }
}

/// Offsets, and how good they are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArenaPlan {
    /// Offset of each interval, in their order.
    pub offsets: Vec<usize>,
    /// Bytes of the arena.
    pub size: usize,
    /// Bytes below which no assignment can be, sizes rounded to alignment: the most that may live at the same time.
    pub lower_bound: usize,
}

/// Returns whether so many values are assigned by size, which takes a time that grows with the square of their number.
pub fn is_greedy(n: usize) -> bool {
    n <= GREEDY_MAX
}

/// Assigns offsets by lifetimes in one order. None if the sizes overflow, or the work is to end.
pub fn assign(intervals: &[Interval]) -> Option<ArenaPlan> {
    if !is_greedy(intervals.len()) {
        return in_order(intervals);
    }
    let apart =
        |a: usize, b: usize| intervals[a].last < intervals[b].first || intervals[b].last < intervals[a].first;
    let bound = lower_bound(intervals)?;
    let (offsets, size) = search(intervals, &apart, bound)?;
    Some(ArenaPlan { offsets, size, lower_bound: bound })
}

/// Assigns offsets to values of which `ends_before(a, b)` says whether one is done with before the other is made, an
/// order in which `first` and `last` are steps of one possible run. None if the sizes
/// overflow, or the work is to end.
pub fn assign_where(intervals: &[Interval], ends_before: impl Fn(usize, usize) -> bool) -> Option<ArenaPlan> {
    // Asked once for each pair: a search asks many times.
    let n = intervals.len();
    let mut order = Vec::with_capacity(n * n);
    for a in 0..n {
        look().ok()?;
        order.extend((0..n).map(|b| a != b && ends_before(a, b)));
    }
    let ends_before = |a: usize, b: usize| order[a * n + b];
    let apart = |a: usize, b: usize| ends_before(a, b) || ends_before(b, a);
    // The values of one possible run are a subset of those that may live at the same time.
    let of_one_run = lower_bound(intervals)?;
    let (mut offsets, mut size) = search_for(intervals, &apart, of_one_run, 1)?;
    let mut bound = of_one_run;
    if size > of_one_run {
        let sizes: Vec<u64> =
            intervals.iter().map(|interval| Some(interval.padded()? as u64)).collect::<Option<_>>()?;
        if let Some(heaviest) = antichain::heaviest(&sizes, &ends_before) {
            bound = bound.max(usize::try_from(heaviest).ok()?);
        }
        if size > bound {
            (offsets, size) = search(intervals, &apart, bound)?;
        }
    }
    Some(ArenaPlan { offsets, size, lower_bound: bound })
}

/// Pairs of values that a search looks at: some tens of milliseconds.
const PAIRS_MAX: usize = 1 << 25;
/// Placements that a search tries at most, and those in a row that gain nothing.
const TRIALS_MAX: usize = 600;
const IDLE_MAX: usize = 100;

/// Offsets and their end, from several orders of placement, until the end is `bound`.
fn search(
    intervals: &[Interval],
    apart: &impl Fn(usize, usize) -> bool,
    bound: usize,
) -> Option<(Vec<usize>, usize)> {
    let pairs = intervals.len().saturating_mul(intervals.len()).max(1);
    search_for(intervals, apart, bound, (PAIRS_MAX / pairs).clamp(1, TRIALS_MAX))
}

/// As [`search`], with so many placements.
fn search_for(
    intervals: &[Interval],
    apart: &impl Fn(usize, usize) -> bool,
    bound: usize,
    trials: usize,
) -> Option<(Vec<usize>, usize)> {
    type Key = fn(&Interval) -> (Reverse<u128>, u32);
    let by_size: Key = |x| (Reverse(x.size as u128), x.first);
    let by_area: Key = |x| (Reverse(x.size as u128 * x.steps()), x.first);
    let by_steps: Key = |x| (Reverse(x.steps()), x.first);
    let by_first: Key = |x| (Reverse(0), x.first);
    let mut best: Option<(Vec<usize>, Vec<usize>, usize)> = None;
    let mut tried = 0;
    for key in [by_size, by_area, by_steps, by_first] {
        if tried == trials {
            break;
        }
        let mut order: Vec<usize> = (0..intervals.len()).collect();
        order.sort_by_key(|&i| (key(&intervals[i]), i));
        let (offsets, size) = place(intervals, &order, apart)?;
        tried += 1;
        if best.as_ref().is_none_or(|(_, _, least)| size < *least) {
            best = Some((order, offsets, size));
        }
        if size <= bound {
            break;
        }
    }
    let (mut order, mut offsets, mut size) = best?;
    // The value that ends the arena is placed earlier than it was ("hill climbing", as in Apache TVM's memory planner).
    // An order that is as good is taken too, so that the search goes on from there. The numbers are Knuth's
    // generator's.
    let mut seed = 7u64;
    let (mut kept, mut least) = (offsets.clone(), size);
    let mut idle = 0;
    while tried < trials && idle < IDLE_MAX && least > bound {
        (tried, idle) = (tried + 1, idle + 1);
        let Some(at) =
            order.iter().position(|&i| offsets[i] + intervals[i].size.max(1) > size - MARGIN.min(size))
        else {
            break;
        };
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // If the value is in front already, a random one goes there.
        let from = if at == 0 { (seed >> 13) as usize % order.len() } else { at };
        let to = (seed >> 33) as usize % (from + 1);
        let mut changed = order.clone();
        changed[to..=from].rotate_right(1);
        let (changed_offsets, changed_size) = place(intervals, &changed, apart)?;
        if changed_size <= size {
            (order, offsets, size) = (changed, changed_offsets, changed_size);
        }
        if size < least {
            (kept, least, idle) = (offsets.clone(), size, 0);
        }
    }
    Some((kept, least))
}

/// Bytes below the end of an arena within which a value counts as ending it.
const MARGIN: usize = 64;

/// Places values in an order, each at the lowest gap that it fits into: offsets and their end.
fn place(
    intervals: &[Interval],
    order: &[usize],
    apart: &impl Fn(usize, usize) -> bool,
) -> Option<(Vec<usize>, usize)> {
    let mut offsets = vec![0usize; intervals.len()];
    // Placed intervals by offset.
    let mut placed: Vec<usize> = Vec::with_capacity(intervals.len());
    let mut size = 0usize;
    for &i in order {
        // The caller says why there is nothing.
        look().ok()?;
        let (wanted, align) = (intervals[i].padded()?, intervals[i].align);
        let mut offset = 0usize;
        for &k in &placed {
            // An interval that ends below is not in the way.
            let end = offsets[k] + intervals[k].padded()?;
            if end <= offset || apart(i, k) {
                continue;
            }
            if offset.checked_add(wanted)? <= offsets[k] {
                break;
            }
            offset = end.checked_next_multiple_of(align)?;
        }
        offsets[i] = offset;
        let at = placed.partition_point(|&k| offsets[k] <= offset);
        placed.insert(at, i);
        size = size.max(offset.checked_add(wanted)?);
    }
    Some((offsets, size))
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
        look().ok()?;
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

/// Returns the most bytes that live at one step.
fn lower_bound(intervals: &[Interval]) -> Option<usize> {
    // Changes by step: intervals that begin, and those that ended with the step before.
    let mut changes: Vec<(u32, bool, usize)> = Vec::with_capacity(2 * intervals.len());
    for interval in intervals {
        let size = interval.padded()?;
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

#[cfg(all(test, not(loom)))]
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
