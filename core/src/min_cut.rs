//! The cheapest cut of a network: which of its vertices stay with the source, and which go with the sink.
//!
//! Dinic's algorithm: augmenting paths of one length at a time ("Algorithm for solution of a problem of maximum flow in
//! networks with power estimation", 1970). Capacities are whole numbers, so that the cut is exact. Written here because
//! it is a page, and crates that have it bring a library of graphs.

use std::collections::VecDeque;

/// A capacity that no cut is worth.
pub const UNCUTTABLE: u64 = u64::MAX / 4;

const SOURCE: usize = 0;
const SINK: usize = 1;

/// A network; its own vertices are numbered from 0 on, source and sink are not among them.
pub struct Network {
    /// The edges that leave each vertex: source, sink, then its own ones.
    leaving: Vec<Vec<usize>>,
    /// Edges in pairs: an edge and the one back are `2 * i` and `2 * i + 1`.
    heads: Vec<usize>,
    /// Capacity that each has left.
    rest: Vec<u64>,
}

/// An end of an edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Where flow comes from.
    Source,
    /// Where it goes.
    Sink,
    /// A vertex.
    Vertex(usize),
}

impl End {
    fn idx(self) -> usize {
        match self {
            Self::Source => SOURCE,
            Self::Sink => SINK,
            Self::Vertex(vertex) => vertex + 2,
        }
    }
}

impl Network {
    /// Creates a network of so many vertices without edges.
    pub fn new(n_vertices: usize) -> Self {
        Self { leaving: vec![Vec::new(); n_vertices + 2], heads: Vec::new(), rest: Vec::new() }
    }

    /// One more vertex.
    pub fn vertex(&mut self) -> End {
        self.leaving.push(Vec::new());
        End::Vertex(self.leaving.len() - 3)
    }

    /// An edge, cut where `from` stays with the source and `to` goes with the sink.
    pub fn edge(&mut self, from: End, to: End, capacity: u64) {
        if capacity == 0 || from == to {
            return;
        }
        for (from, to, capacity) in [(from, to, capacity), (to, from, 0)] {
            self.leaving[from.idx()].push(self.heads.len());
            self.heads.push(to.idx());
            self.rest.push(capacity);
        }
    }

    /// For each vertex whether it goes with the sink, in the cheapest cut that gives the source as little as it can.
    pub fn cut(mut self) -> Vec<bool> {
        loop {
            let levels = self.levels();
            if levels[SINK] == usize::MAX {
                return levels[2..].iter().map(|&level| level == usize::MAX).collect();
            }
            self.fill(&levels);
        }
    }

    /// Edges between each vertex and the source, on a shortest path of those that may take more.
    fn levels(&self) -> Vec<usize> {
        let mut levels = vec![usize::MAX; self.leaving.len()];
        levels[SOURCE] = 0;
        let mut queue = VecDeque::from([SOURCE]);
        while let Some(at) = queue.pop_front() {
            for &edge in &self.leaving[at] {
                let to = self.heads[edge];
                if self.rest[edge] > 0 && levels[to] == usize::MAX {
                    levels[to] = levels[at] + 1;
                    queue.push_back(to);
                }
            }
        }
        levels
    }

    /// Fills all shortest paths. Without recursion: paths may be as long as a program.
    fn fill(&mut self, levels: &[usize]) {
        let mut next = vec![0usize; self.leaving.len()];
        let mut path: Vec<usize> = Vec::new();
        loop {
            let at = path.last().map_or(SOURCE, |&edge| self.heads[edge]);
            if at == SINK {
                let flow = path.iter().map(|&edge| self.rest[edge]).min().unwrap_or(0);
                for &edge in &path {
                    self.rest[edge] -= flow;
                    self.rest[edge ^ 1] = self.rest[edge ^ 1].saturating_add(flow);
                }
                // Goes on from where the path is full.
                let full = path.iter().position(|&edge| self.rest[edge] == 0).unwrap_or(0);
                path.truncate(full);
                continue;
            }
            let found = self.leaving[at][next[at]..]
                .iter()
                .position(|&edge| self.rest[edge] > 0 && levels[self.heads[edge]] == levels[at] + 1);
            match found {
                Some(skipped) => {
                    next[at] += skipped;
                    path.push(self.leaving[at][next[at]]);
                }
                None => {
                    next[at] = self.leaving[at].len();
                    let Some(edge) = path.pop() else { return };
                    // An edge that leads nowhere is not tried again.
                    next[self.heads[edge ^ 1]] += 1;
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the cost of a cut.
    fn price(edges: &[(End, End, u64)], goes: &dyn Fn(End) -> bool) -> u64 {
        edges.iter().filter(|(from, to, _)| !goes(*from) && goes(*to)).map(|(_, _, capacity)| capacity).sum()
    }

    fn goes(end: End, cut: &dyn Fn(usize) -> bool) -> bool {
        match end {
            End::Source => false,
            End::Sink => true,
            End::Vertex(vertex) => cut(vertex),
        }
    }

    fn end(n: usize) -> impl Strategy<Value = End> {
        (0..n + 2).prop_map(|i| match i {
            0 => End::Source,
            1 => End::Sink,
            i => End::Vertex(i - 2),
        })
    }

    proptest! {
        #[test]
        fn no_cut_is_cheaper(
            edges in prop::collection::vec((end(7), end(7), 0u64..20), 0..40)
        ) {
            let mut network = Network::new(7);
            for &(from, to, capacity) in &edges {
                network.edge(from, to, capacity);
            }
            let cut = network.cut();
            let found = price(&edges, &|end| goes(end, &|vertex| cut[vertex]));
            let all = (0..1u32 << 7).map(|bits| price(&edges, &|end| goes(end, &|vertex| bits >> vertex & 1 == 1)));
            prop_assert_eq!(Some(found), all.min());
        }
    }

    #[test]
    fn a_long_path_is_cut_at_its_narrowest() {
        let n = 100_000;
        let mut network = Network::new(n);
        network.edge(End::Source, End::Vertex(0), UNCUTTABLE);
        for i in 1..n {
            network.edge(End::Vertex(i - 1), End::Vertex(i), if i == 777 { 3 } else { 5 });
        }
        network.edge(End::Vertex(n - 1), End::Sink, UNCUTTABLE);
        let cut = network.cut();
        assert_eq!(cut.iter().position(|&goes| goes), Some(777));
    }
}
