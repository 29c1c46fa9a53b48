//! The most bytes that may live at the same time where tasks run side by side: the lower bound of their arena.
//!
//! "Done with before the other is made" is a partial order of values. Values of which no two are in that order may each
//! live at the same time as each of the others, so that no two of them may share a byte: an antichain. An arena is no
//! smaller than the heaviest one. By Dilworth's theorem for weights (Schrijver, "Combinatorial Optimization", 2003,
//! section 14.3) that weighs as much as the least chains which cover each value as often as it has bytes, and that is
//! all weights less a maximum flow from values to those that come after them.

use crate::cancel::look;

/// Values of which the heaviest antichain is found; the time grows faster than with their square.
const VALUES_MAX: usize = 1024;

/// The weight of the heaviest antichain of the partial order `before`. None for too many values, or if the work is to end.
pub(in crate::plan) fn heaviest(weights: &[u64], before: &impl Fn(usize, usize) -> bool) -> Option<u64> {
    let n = weights.len();
    if n > VALUES_MAX {
        return None;
    }
    let after: Vec<Vec<u32>> =
        (0..n).map(|a| (0..n).filter(|&b| a != b && before(a, b)).map(|b| b as u32).collect()).collect();
    let total: u64 = weights.iter().try_fold(0u64, |sum, &weight| sum.checked_add(weight))?;
    Some(total - Flow::new(weights, after).maximum()?)
}

/// A flow from each value, as the earlier one, to values after it, as the later ones: each gives and takes its weight at
/// most.
struct Flow {
    /// The values after each.
    after: Vec<Vec<u32>>,
    /// Flow along each of these.
    flow: Vec<Vec<u64>>,
    /// For each value its predecessors, with the value's place among the successors of each.
    from: Vec<Vec<(u32, u32)>>,
    /// Amount that each can still give and take.
    give: Vec<u64>,
    take: Vec<u64>,
}

/// A value as the earlier one is its number, as the later one so much more.
const LATER: u32 = VALUES_MAX as u32;

impl Flow {
    fn new(weights: &[u64], after: Vec<Vec<u32>>) -> Self {
        let mut from = vec![Vec::new(); weights.len()];
        for (a, after) in after.iter().enumerate() {
            for (place, &b) in after.iter().enumerate() {
                from[b as usize].push((a as u32, place as u32));
            }
        }
        let flow = after.iter().map(|after| vec![0; after.len()]).collect();
        Self { after, flow, from, give: weights.to_vec(), take: weights.to_vec() }
    }

    /// Returns the greatest flow, along shortest paths first (Edmonds and Karp, 1972), after the flow without a
    /// detour.
    fn maximum(mut self) -> Option<u64> {
        let mut sum = 0;
        for a in 0..self.after.len() {
            for place in 0..self.after[a].len() {
                let b = self.after[a][place] as usize;
                let amount = self.give[a].min(self.take[b]);
                self.give[a] -= amount;
                self.take[b] -= amount;
                self.flow[a][place] += amount;
                sum += amount;
            }
        }
        while let Some(amount) = self.augment() {
            look().ok()?;
            sum += amount;
        }
        Some(sum)
    }

    /// Sends more along one path; None if there is none.
    fn augment(&mut self) -> Option<u64> {
        let n = self.after.len();
        // How the search reached each side of a value: the place of the flow, from the other side.
        let mut via: Vec<Option<(u32, u32)>> = vec![None; 2 * LATER as usize];
        let mut queue: Vec<u32> = (0..n as u32).filter(|&a| self.give[a as usize] > 0).collect();
        let mut is_seen = vec![false; 2 * LATER as usize];
        queue.iter().for_each(|&a| is_seen[a as usize] = true);
        let mut at = 0;
        let end = loop {
            let node = *queue.get(at)?;
            at += 1;
            if node >= LATER {
                let b = (node - LATER) as usize;
                if self.take[b] > 0 {
                    break node;
                }
                for &(a, place) in &self.from[b] {
                    if !is_seen[a as usize] && self.flow[a as usize][place as usize] > 0 {
                        is_seen[a as usize] = true;
                        via[a as usize] = Some((node, place));
                        queue.push(a);
                    }
                }
            } else {
                for (place, &b) in self.after[node as usize].iter().enumerate() {
                    let later = LATER + b;
                    if !is_seen[later as usize] {
                        is_seen[later as usize] = true;
                        via[later as usize] = Some((node, place as u32));
                        queue.push(later);
                    }
                }
            }
        };
        let mut amount = self.take[(end - LATER) as usize];
        let mut node = end;
        while let Some((before, place)) = via[node as usize] {
            if node < LATER {
                amount = amount.min(self.flow[node as usize][place as usize]);
            }
            node = before;
        }
        amount = amount.min(self.give[node as usize]);
        self.give[node as usize] -= amount;
        self.take[(end - LATER) as usize] -= amount;
        let mut node = end;
        while let Some((before, place)) = via[node as usize] {
            match node < LATER {
                true => self.flow[node as usize][place as usize] -= amount,
                false => self.flow[before as usize][place as usize] += amount,
            }
            node = before;
        }
        Some(amount)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_waits_for_one_of_two_may_live_beside_the_other() {
        // Two lines side by side, of 5 before 1 and of 2 before 7.
        let before = |a: usize, b: usize| (a, b) == (0, 1) || (a, b) == (2, 3);
        assert_eq!(heaviest(&[5, 1, 2, 7], &before), Some(12));
    }

    proptest! {
        #[test]
        fn no_set_without_order_is_heavier(
            weights in prop::collection::vec(1u64..50, 1..9),
            bits in prop::collection::vec(any::<bool>(), 81),
        ) {
            let n = weights.len();
            let mut before = vec![vec![false; n]; n];
            for a in 0..n {
                for b in a + 1..n {
                    before[a][b] = bits[a * 9 + b];
                }
            }
            for k in 0..n {
                for a in 0..n {
                    for b in 0..n {
                        before[a][b] |= before[a][k] && before[k][b];
                    }
                }
            }
            let is_antichain = |set: &usize| {
                (0..n).all(|a| (0..n).all(|b| set >> a & 1 == 0 || set >> b & 1 == 0 || !before[a][b]))
            };
            let weight = |set: usize| (0..n).filter(|i| set >> i & 1 == 1).map(|i| weights[i]).sum::<u64>();
            let expected = (0..1usize << n).filter(is_antichain).map(weight).max();
            prop_assert_eq!(heaviest(&weights, &|a, b| before[a][b]), expected);
        }
    }
}
