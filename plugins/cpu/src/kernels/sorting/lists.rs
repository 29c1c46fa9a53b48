//! Sorting of lists of any length, which looks whether the run goes on.
//!
//! The standard library's sort cannot be stopped, and a list of a model may take it seconds. So long lists are divided
//! here, looking in between, until the pieces are short enough for it.

use core::cmp::Ordering;
use devbay_plugin_api::sdk::{Pace, Result};

/// Elements of a piece that the standard library sorts, times what a comparison costs: some milliseconds.
const SHORT: usize = 1 << 18;

/// A total order in which no two elements of a list are equal.
pub trait Order<T> {
    /// Returns the largest cost of a comparison, in operations on numbers.
    fn cost(&self) -> usize;

    /// The order of two elements.
    fn compare(&self, a: &T, b: &T) -> Ordering;

    /// As [`Order::compare`], for comparisons that may take long by themselves.
    ///
    /// # Errors
    /// CANCELLED if the run is to end.
    #[inline(always)]
    fn compare_looking(&self, a: &T, b: &T, pace: &mut Pace<'_>) -> Result<Ordering> {
        pace.work(self.cost())?;
        Ok(self.compare(a, b))
    }
}

/// Numbers as they are.
pub struct Natural;

impl<T: Ord> Order<T> for Natural {
    fn cost(&self) -> usize {
        1
    }

    fn compare(&self, a: &T, b: &T) -> Ordering {
        a.cmp(b)
    }
}

/// Sorts a list.
///
/// # Errors
/// CANCELLED if the run is to end; the list then has its elements in any order.
pub fn sort<T: Copy>(list: &mut [T], order: &impl Order<T>, pace: &mut Pace<'_>) -> Result<()> {
    let divisions = divisions_max(list.len());
    sort_divided(list, order, pace, divisions)
}

/// Brings the `k` smallest elements of a list to its front, in any order.
///
/// # Errors
/// As [`sort`].
pub fn select<T: Copy>(list: &mut [T], k: usize, order: &impl Order<T>, pace: &mut Pace<'_>) -> Result<()> {
    let (mut k, mut divisions) = (k, divisions_max(list.len()));
    let mut list = list;
    while k > 0 && k < list.len() {
        if is_short(list.len(), order) {
            pace.work(list.len().saturating_mul(4 * order.cost()))?;
            list.select_nth_unstable_by(k, |a, b| order.compare(a, b));
            return Ok(());
        }
        if divisions == 0 {
            return sort_heap(list, order, pace);
        }
        divisions -= 1;
        let at = divide(list, order, pace)?;
        match at < k {
            true => {
                k -= at + 1;
                list = &mut list[at + 1..];
            }
            false => list = &mut list[..at],
        }
    }
    Ok(())
}

fn is_short<T>(len: usize, order: &impl Order<T>) -> bool {
    len < 2 || len.saturating_mul(order.cost()) <= SHORT
}

/// Divisions after which a list counts as one that is divided badly.
fn divisions_max(len: usize) -> u32 {
    2 * (len + 1).ilog2()
}

fn sort_divided<T: Copy>(
    list: &mut [T],
    order: &impl Order<T>,
    pace: &mut Pace<'_>,
    mut divisions: u32,
) -> Result<()> {
    let mut list = list;
    while !is_short(list.len(), order) {
        if divisions == 0 {
            return sort_heap(list, order, pace);
        }
        divisions -= 1;
        let at = divide(list, order, pace)?;
        let (left, right) = list.split_at_mut(at);
        let right = &mut right[1..];
        // The shorter one first, so that the stack stays short.
        let (short, long) = if left.len() < right.len() { (left, right) } else { (right, left) };
        sort_divided(short, order, pace, divisions)?;
        list = long;
    }
    let n = list.len();
    pace.work(n.saturating_mul((n + 1).ilog2() as usize * order.cost()))?;
    list.sort_unstable_by(|a, b| order.compare(a, b));
    Ok(())
}

/// Moves what is less than an element before it and the rest behind it; gives its place.
fn divide<T: Copy>(list: &mut [T], order: &impl Order<T>, pace: &mut Pace<'_>) -> Result<usize> {
    let n = list.len();
    let mut is_less =
        |a: &T, b: &T| -> Result<bool> { Ok(order.compare_looking(a, b, pace)? == Ordering::Less) };
    // The middle one of three.
    let [mut a, mut b, c] = [n / 4, n / 2, n / 4 * 3];
    if is_less(&list[b], &list[a])? {
        (a, b) = (b, a);
    }
    if is_less(&list[c], &list[b])? {
        b = if is_less(&list[c], &list[a])? { a } else { c };
    }
    list.swap(0, b);
    let pivot = list[0];
    // Before `i` all are less, from `j` on none is.
    let (mut i, mut j) = (1, n);
    loop {
        while i < j && is_less(&list[i], &pivot)? {
            i += 1;
        }
        while i < j && !is_less(&list[j - 1], &pivot)? {
            j -= 1;
        }
        if i == j {
            break;
        }
        j -= 1;
        list.swap(i, j);
        i += 1;
    }
    list.swap(0, i - 1);
    Ok(i - 1)
}

/// Sorts what is divided badly: slower, and never slower than that.
fn sort_heap<T: Copy>(list: &mut [T], order: &impl Order<T>, pace: &mut Pace<'_>) -> Result<()> {
    let mut sink = |list: &mut [T], mut at: usize| -> Result<()> {
        loop {
            let mut child = 2 * at + 1;
            if child >= list.len() {
                return Ok(());
            }
            if child + 1 < list.len()
                && order.compare_looking(&list[child], &list[child + 1], pace)? == Ordering::Less
            {
                child += 1;
            }
            if order.compare_looking(&list[at], &list[child], pace)? != Ordering::Less {
                return Ok(());
            }
            list.swap(at, child);
            at = child;
        }
    };
    for at in (0..list.len() / 2).rev() {
        sink(list, at)?;
    }
    for end in (1..list.len()).rev() {
        list.swap(0, end);
        sink(&mut list[..end], 0)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::Chance;
    use devbay_plugin_api::sdk::Host;

    /// Comparisons that are dear, so that short lists are divided too.
    struct Dear;

    impl Order<u64> for Dear {
        fn cost(&self) -> usize {
            SHORT / 4
        }

        fn compare(&self, a: &u64, b: &u64) -> Ordering {
            a.cmp(b)
        }
    }

    #[test]
    fn lists_of_any_order_are_sorted_and_selected_from() {
        let mut random = Chance::new(3);
        let host = Host::none();
        let mut lists: Vec<Vec<u64>> = (0..60u64)
            .map(|n| {
                random
                    .floats(n as usize, 1000.0)
                    .iter()
                    .zip(0u64..)
                    .map(|(x, i)| (*x as i64 as u64) << 8 | i)
                    .collect()
            })
            .collect();
        lists.push((0..1000).collect());
        lists.push((0..1000).rev().collect());
        // A list that the middle one of three divides badly, again and again.
        lists.push((0..500).flat_map(|i| [i, 1000 - i]).map(|i| i * 1000 % 100_003 + i).collect());
        for list in lists {
            let mut expected = list.clone();
            expected.sort_unstable();
            let mut sorted = list.clone();
            sort(&mut sorted, &Dear, &mut host.pace()).expect("it goes on");
            assert_eq!(sorted, expected);
            sorted.clone_from(&list);
            sort_heap(&mut sorted, &Dear, &mut host.pace()).expect("it goes on");
            assert_eq!(sorted, expected);
            for k in [0, 1, list.len() / 3, list.len()] {
                let mut selected = list.clone();
                select(&mut selected, k.min(list.len()), &Dear, &mut host.pace()).expect("it goes on");
                selected[..k.min(list.len())].sort_unstable();
                assert_eq!(selected[..k.min(list.len())], expected[..k.min(list.len())]);
            }
        }
    }
}
