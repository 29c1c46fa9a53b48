//! Assignment of a place to each part of a program, so that launches and copies together take least.
//!
//! Places are memories: the host's is the first, and the way from any to any other leads through it. A value is copied to
//! a place once, however many read it there. With two places the answer is the cheapest cut of a network (Stone,
//! "Multiprocessor scheduling with the aid of network flow algorithms", 1977), a value's copies being a vertex each.
//! With more, one place after the other is offered to all parts at once, each of which takes it or stays where it is,
//! which is such a cut again, until nothing gains ("alpha expansion": Boykov, Veksler and Zabih, "Fast approximate energy
//! minimization via graph cuts", 2001).
//!
//! The cost is the sum, as if nothing ran side by side. That is an upper bound of a run's time, and the only form that
//! a cut can minimise. Costs are whole numbers, 1/64 ns, so that sums compare exactly.

use crate::min_cut::{End, Network, UNCUTTABLE};

/// Where the host's values are.
pub const HOST: usize = 0;

/// Units in a nanosecond.
const UNITS: f64 = 64.0;

/// The most that one launch or copy counts: half an hour, so that sums stay far below [`UNCUTTABLE`].
const COST_MAX: f64 = (1u64 << 47) as f64;

/// Parts of a program, and their costs at each place.
#[derive(Clone, Debug, Default)]
pub struct Problem {
    pub n_places: usize,
    /// For each part its cost at each place; None where it cannot run.
    pub costs: Vec<Vec<Option<u64>>>,
    pub values: Vec<Carried>,
}

/// A value that may have to be copied.
#[derive(Clone, Debug, Default)]
pub struct Carried {
    /// The part that makes it; None if it comes from the host.
    pub maker: Option<usize>,
    /// The parts that read it, each once.
    pub readers: Vec<usize>,
    /// True if the host reads it.
    pub is_result: bool,
    /// The cost of a copy from the host to each place.
    pub to: Vec<u64>,
    /// The cost of a copy from each place to the host.
    pub from: Vec<u64>,
}

/// Nanoseconds as a cost.
pub fn cost(ns: f64) -> u64 {
    // NaN stays NaN, and counts as nothing.
    (ns * UNITS).clamp(0.0, COST_MAX).round() as u64
}

/// A cost in nanoseconds.
pub fn ns(cost: u64) -> f64 {
    cost as f64 / UNITS
}

impl Problem {
    /// Returns the cost of an assignment; None if a part cannot run where it is.
    pub fn price(&self, places: &[usize]) -> Option<u64> {
        let launches = self.costs.iter().zip(places).map(|(costs, &place)| costs[place]);
        let launches = launches.sum::<Option<u64>>()?;
        Some(launches + self.values.iter().map(|value| value.price(self.n_places, places)).sum::<u64>())
    }

    /// Returns the cheapest assignment. With more than two places, returns the best assignment found from the `starts`
    /// that no offer of a place makes cheaper. None if there is a part that can run nowhere.
    pub fn solve(&self, starts: &[Vec<usize>]) -> Option<Vec<usize>> {
        if self.costs.iter().any(|costs| costs.iter().all(Option::is_none)) {
            return None;
        }
        let on_host = vec![HOST; self.costs.len()];
        // With two places one offer decides everything, wherever it begins.
        let starts = if self.n_places == 2 { &[] } else { starts };
        let found = std::iter::once(&on_host).chain(starts).map(|start| self.improve(start.clone()));
        found.min_by_key(|places| self.key(places))
    }

    /// Returns the key to compare: the number of parts that cannot run where they are, then the cost of all else.
    fn key(&self, places: &[usize]) -> (usize, u64) {
        let costs = || self.costs.iter().zip(places).map(|(costs, &place)| costs[place]);
        let copies = self.values.iter().map(|value| value.price(self.n_places, places));
        (costs().filter(Option::is_none).count(), costs().flatten().chain(copies).sum())
    }

    fn improve(&self, mut places: Vec<usize>) -> Vec<usize> {
        let mut best = self.key(&places);
        loop {
            let before = best;
            for place in 0..self.n_places {
                let offered = self.offer(&places, place);
                let key = self.key(&offered);
                if key < best {
                    (best, places) = (key, offered);
                }
            }
            if best == before {
                return places;
            }
        }
    }

    /// Returns the cheapest of the assignments in which each part stays, or takes a place.
    fn offer(&self, places: &[usize], place: usize) -> Vec<usize> {
        let mut network = Network::new(places.len());
        for (part, (costs, &own)) in self.costs.iter().zip(places).enumerate() {
            let part = End::Vertex(part);
            let (stays, goes) = match (costs[own], costs[place]) {
                (None, None) => (0, 0),
                (stays, goes) => (stays.unwrap_or(UNCUTTABLE), goes.unwrap_or(UNCUTTABLE)),
            };
            let both = stays.min(goes);
            network.edge(part, End::Sink, stays - both);
            network.edge(End::Source, part, goes - both);
        }
        for value in &self.values {
            value.offered(&mut network, self.n_places, places, place);
        }
        let goes = network.cut();
        places.iter().zip(goes).map(|(&own, goes)| if goes { place } else { own }).collect()
    }
}

impl Carried {
    fn price(&self, n_places: usize, places: &[usize]) -> u64 {
        let home = self.maker.map_or(HOST, |maker| places[maker]);
        let is_read_at = |place| {
            (place == HOST && self.is_result) || self.readers.iter().any(|&reader| places[reader] == place)
        };
        let mut price = 0;
        for place in (0..n_places).filter(|&place| place != home && place != HOST && is_read_at(place)) {
            price += self.to[place];
        }
        let leaves = (0..n_places).any(|place| place != home && is_read_at(place));
        if home != HOST && leaves { price + self.from[home] } else { price }
    }

    /// Adds the costs if parts stay (with the source) or take `place` (with the sink).
    ///
    /// Each term is a cost of its maker's choice and of whether any of some readers makes a certain choice. A vertex
    /// stands for that "any": it can be with the readers only.
    fn offered(&self, network: &mut Network, n_places: usize, places: &[usize], place: usize) {
        // The host never moves, nor does a part that is there already.
        let moves = |part: usize| places[part] != place;
        let maker = self.maker.map(|maker| (maker, places[maker]));
        let home = maker.map_or(HOST, |(_, home)| home);
        let maker_moves = maker.filter(|&(maker, _)| moves(maker)).map(|(maker, _)| End::Vertex(maker));
        let any_stays =
            |network: &mut Network, from: End, readers: &mut dyn Iterator<Item = usize>, cost: u64| {
                // Paid if `from` goes, or is the sink, and any reader stays.
                let any = network.vertex();
                network.edge(any, from, cost);
                readers.for_each(|reader| network.edge(End::Vertex(reader), any, UNCUTTABLE));
            };
        let any_goes =
            |network: &mut Network, from: End, readers: &mut dyn Iterator<Item = usize>, cost: u64| {
                // Paid if `from` stays, or is the source, and any reader goes.
                let any = network.vertex();
                network.edge(from, any, cost);
                readers.for_each(|reader| network.edge(any, End::Vertex(reader), UNCUTTABLE));
            };
        let movers = || self.readers.iter().copied().filter(|&reader| moves(reader));
        let read_at = |at: usize| {
            (at == HOST && self.is_result) || self.readers.iter().any(|&reader| places[reader] == at)
        };

        // Copies from the host to each place where it is read and not made.
        for to in (0..n_places).filter(|&to| to != HOST) {
            let cost = self.to[to];
            if to == place {
                if home == place {
                    continue;
                }
                let from = maker_moves.unwrap_or(End::Source);
                if read_at(place) {
                    network.edge(from, End::Sink, cost);
                } else {
                    any_goes(network, from, &mut movers(), cost);
                }
            } else {
                let mut stayers = self.readers.iter().copied().filter(|&reader| places[reader] == to);
                if home != to {
                    any_stays(network, End::Sink, &mut stayers, cost);
                } else if let Some(maker) = maker_moves {
                    any_stays(network, maker, &mut stayers, cost);
                }
            }
        }

        // The copy to the host from where it is made, if it is read elsewhere.
        if let Some(maker) = maker_moves {
            if home != HOST {
                let cost = self.from[home];
                let elsewhere = (0..n_places).any(|at| at != home && read_at(at));
                if elsewhere {
                    network.edge(maker, End::Sink, cost);
                } else {
                    any_goes(network, maker, &mut movers(), cost);
                }
            }
            if place != HOST {
                if self.is_result {
                    network.edge(End::Source, maker, self.from[place]);
                } else {
                    any_stays(network, maker, &mut movers(), self.from[place]);
                }
            }
        } else if maker.is_some() && place != HOST && !self.is_result {
            any_stays(network, End::Sink, &mut movers(), self.from[place]);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(n_parts: usize, n_places: usize) -> impl Strategy<Value = Carried> {
        let part = prop::option::of(0..n_parts);
        let readers = prop::collection::btree_set(0..n_parts, 0..4);
        let costs = || prop::collection::vec(0u64..30, n_places);
        (part, readers, any::<bool>(), costs(), costs()).prop_map(
            |(maker, mut readers, is_result, to, from)| {
                readers.retain(|&reader| Some(reader) != maker);
                Carried { maker, readers: readers.into_iter().collect(), is_result, to, from }
            },
        )
    }

    fn problem(n_parts: usize, n_places: usize) -> impl Strategy<Value = Problem> {
        // One in eight places has no kernel; the place `spare` has one in any case.
        let cost = prop_oneof![1 => Just(None), 7 => (0u64..40).prop_map(Some)];
        let costs = (prop::collection::vec(cost, n_places), 0..n_places, 0u64..40);
        let costs = costs.prop_map(|(mut costs, spare, cost)| {
            costs[spare].get_or_insert(cost);
            costs
        });
        let values = prop::collection::vec(value(n_parts, n_places), 0..8);
        (prop::collection::vec(costs, n_parts), values).prop_map(move |(costs, values)| Problem {
            n_places,
            costs,
            values,
        })
    }

    /// Returns all assignments in which each part has one of two places.
    fn choices(a: &[usize], b: &[usize]) -> Vec<Vec<usize>> {
        let pick = |bits: usize| (0..a.len()).map(|i| if bits >> i & 1 == 1 { b[i] } else { a[i] }).collect();
        (0..1 << a.len()).map(pick).collect()
    }

    proptest! {
        #[test]
        fn with_two_places_nothing_is_cheaper(problem in problem(7, 2)) {
            let found = problem.solve(&[]).unwrap();
            let all = choices(&[0; 7], &[1; 7]);
            let best = all.iter().filter_map(|places| problem.price(places)).min();
            prop_assert_eq!(problem.price(&found), best);
        }

        /// Also where parts are at places that they cannot run at.
        #[test]
        fn no_answer_to_an_offer_is_cheaper(
            problem in problem(6, 4), places in prop::collection::vec(0..4usize, 6), place in 0..4usize
        ) {
            let found = problem.offer(&places, place);
            let all = choices(&places, &[place; 6]);
            prop_assert_eq!(Some(problem.key(&found)), all.iter().map(|places| problem.key(places)).min());
        }

        #[test]
        fn with_more_places_every_part_can_run_where_it_is(
            problem in problem(6, 4), start in prop::collection::vec(0..4usize, 6)
        ) {
            let found = problem.solve(std::slice::from_ref(&start)).unwrap();
            let price = problem.price(&found);
            prop_assert!(price.is_some());
            if let Some(before) = problem.price(&start) {
                prop_assert!(price <= Some(before));
            }
        }
    }

    fn copies(maker: Option<usize>, readers: &[usize], is_result: bool, cost: u64) -> Carried {
        Carried { maker, readers: readers.to_vec(), is_result, to: vec![0, cost], from: vec![0, cost] }
    }

    #[test]
    fn a_value_is_copied_once_however_many_read_it() {
        let costs = vec![vec![Some(10), Some(1)]; 3];
        // Each part gains 9 there; one copy of the input costs less than that together, and results stay.
        let of = |values| Problem { n_places: 2, costs: costs.clone(), values };
        assert_eq!(of(vec![copies(None, &[0, 1, 2], false, 20)]).solve(&[]), Some(vec![1, 1, 1]));
        let each = (0..3).map(|part| copies(None, &[part], false, 20)).collect();
        assert_eq!(of(each).solve(&[]), Some(vec![0, 0, 0]));
    }

    #[test]
    fn a_part_that_can_run_nowhere_has_no_place() {
        let problem = Problem { n_places: 2, costs: vec![vec![None, None]], values: Vec::new() };
        assert_eq!(problem.solve(&[]), None);
    }

    #[test]
    fn times_are_counted_in_parts_of_a_nanosecond() {
        assert_eq!((cost(1.5), ns(cost(1.5))), (96, 1.5));
        assert_eq!((cost(-1.0), cost(f64::NAN), cost(f64::INFINITY)), (0, 0, COST_MAX as u64));
    }
}
