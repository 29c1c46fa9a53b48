//! Where the values of a straight line live: offsets in one arena, by lifetime.
//!
//! The rule: two values whose lifetimes overlap in the line's order never share a byte. Offsets are
//! assigned to the largest first, each at the lowest gap that it fits into ("greedy by size", Pisarchyk and
//! Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, section 5.2). The result is
//! compared with the lower bound: the most bytes that live at one step.

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

/// Assigns offsets. None if the sizes overflow.
pub fn assign(intervals: &[Interval]) -> Option<ArenaPlan> {
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
            let other = &intervals[k];
            if other.last < interval.first || interval.last < other.first {
                continue;
            }
            if offset.checked_add(interval.size)? <= offsets[k] {
                break;
            }
            let end = offsets[k].checked_add(other.size)?.checked_next_multiple_of(interval.align)?;
            offset = offset.max(end);
        }
        offsets[i] = offset;
        let at = placed.partition_point(|&k| offsets[k] <= offset);
        placed.insert(at, i);
        size = size.max(offset.checked_add(interval.size)?);
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
            let plan = assign(&intervals).unwrap();
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
