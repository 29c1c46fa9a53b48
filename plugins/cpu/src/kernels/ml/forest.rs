//! Forests in the layout of their kernels, and the walk from roots to leaves.
//!
//! A tree is an array in the order of its levels, so that siblings are adjacent and a step is `child + (x > split)`. A leaf
//! is its own child, so that all walks of a tree take as many steps as it has levels and no branch is mispredicted; its
//! split holds its weight. Several walks go side by side, because a step waits for memory: rows of one tree, or
//! trees of one row.
//!
//! All tests but two become `<=`: `x < s` is `x <= s'` with the number before `s`, and `>` and `>=` exchange the children.
//! Equality and sets need a list of tests beside the nodes ([`Forest::special`]).
//!
//! A row's scores are summed in the order of the trees, whatever the number of rows and threads: results are the same bits.

use super::described::{Branch, Described, Node, Test};
use devbay_plugin_api::reserve;
use devbay_plugin_api::sdk::{Error, Result};
use std::collections::VecDeque;

const WHAT: &str = "a forest";

/// Marks of [`Place::feature`].
const INNER: u32 = 1 << 31;
const NAN_LEFT: u32 = 1 << 30;

/// Walks side by side.
pub(super) const LANES: usize = 8;

/// The numbers of features and scores: f32 or f64.
pub(super) trait Number:
    Copy + Default + PartialOrd + Send + Sync + std::ops::AddAssign + 'static
{
    fn of(value: f64) -> Self;
    fn wide(self) -> f64;
    /// The largest number below this one; NaN, which nothing is below or equal to, if there is none.
    fn before(self) -> Self;
}

macro_rules! number {
    ($type:ty) => {
        impl Number for $type {
            fn of(value: f64) -> Self {
                value as $type
            }
            fn wide(self) -> f64 {
                self.into()
            }
            fn before(self) -> Self {
                if self == Self::NEG_INFINITY { Self::NAN } else { self.next_down() }
            }
        }
    };
}
number!(f32);
number!(f64);

/// A node in its place.
#[derive(Clone, Copy)]
struct Place<T> {
    /// The largest feature that goes left; a leaf's weight, if the forest has one target.
    split: T,
    /// The feature, with [`INNER`] unless it is a leaf and [`NAN_LEFT`] if NaN goes left.
    feature: u32,
    /// The left child, which the right one follows; a leaf's own place.
    child: u32,
}

/// A test that is not `<=`.
enum Special<T> {
    /// Equal features go left.
    Equal,
    /// Features in the set go left: sorted.
    Member(Vec<T>),
}

/// A tree.
#[derive(Clone, Copy)]
struct Tree {
    root: u32,
    /// Steps from the root to the deepest leaf.
    n_steps: u32,
}

/// How the scores of trees become one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Aggregate {
    Average,
    Sum,
    Min,
    Max,
}

/// Weights of the leaves.
enum Weights<T> {
    /// One target: they are in the leaves.
    Single,
    /// Each leaf has a row with a weight for each target.
    Rows(Vec<T>),
    /// Each leaf has a part of the list: targets and weights.
    Parts(Vec<[u32; 2]>, Vec<(u32, T)>),
}

/// A forest.
pub(super) struct Forest<T> {
    places: Vec<Place<T>>,
    /// By place; empty if every test is `<=`.
    special: Vec<Option<Special<T>>>,
    trees: Vec<Tree>,
    pub n_targets: usize,
    pub aggregate: Aggregate,
    weights: Weights<T>,
    /// Number of each leaf in `weights`, by place; empty for one target.
    leaf_of: Vec<u32>,
}

impl<T: Number> Forest<T> {
    /// Lays out a forest.
    ///
    /// # Errors
    /// Invalid if a node has two parents, or is its own ancestor; unsupported for more than 2^32 nodes; out of memory.
    pub(super) fn new(from: &Described, n_targets: usize, aggregate: Aggregate) -> Result<Self> {
        let mut forest = Self {
            places: Vec::new(),
            special: Vec::new(),
            trees: reserve::with_capacity(from.roots.len(), WHAT)?,
            n_targets,
            aggregate,
            weights: Weights::Single,
            leaf_of: Vec::new(),
        };
        let mut leaves = Vec::new();
        let mut seen = reserve::filled(false, from.nodes.len(), WHAT)?;
        for &root in &from.roots {
            forest.add_tree(from, root, &mut seen, &mut leaves)?;
        }
        let is_special = |branch: &Branch| matches!(branch.test, Test::Equal | Test::NotEqual | Test::Member);
        if !from.nodes.iter().any(|node| matches!(node, Node::Branch(branch) if is_special(branch))) {
            forest.special = Vec::new();
        }
        if n_targets > 1 || aggregate != Aggregate::Sum && leaves.iter().any(|scores| scores.len() != 1) {
            forest.set_weights(&leaves)?;
        } else {
            forest.leaf_of = Vec::new();
        }
        Ok(forest)
    }

    /// Number of trees.
    pub(super) fn n_trees(&self) -> usize {
        self.trees.len()
    }

    /// Lays out a tree, level by level.
    fn add_tree<'d>(
        &mut self,
        from: &'d Described,
        root: usize,
        seen: &mut [bool],
        leaves: &mut Vec<&'d [(u32, f64)]>,
    ) -> Result<()> {
        let first = self.take_places(1)?;
        let mut queue = VecDeque::from([(root, first, 0)]);
        let mut n_steps = 0;
        while let Some((at, place, depth)) = queue.pop_front() {
            let is_shared_leaf = from.shares_leaves && matches!(from.nodes[at], Node::Leaf(_));
            if std::mem::replace(&mut seen[at], true) && !is_shared_leaf {
                let name = from.name(at);
                return Err(Error::invalid(format!(
                    "{name} has two parents, or is its own ancestor: expected trees"
                )));
            }
            n_steps = n_steps.max(depth);
            match &from.nodes[at] {
                Node::Leaf(scores) => {
                    let weight = scores.iter().map(|(_, weight)| weight).sum::<f64>();
                    self.places[place] = Place { split: T::of(weight), feature: 0, child: place as u32 };
                    self.leaf_of[place] = leaves.len() as u32;
                    reserve::push(leaves, &scores[..], WHAT)?;
                }
                Node::Branch(branch) => {
                    let child = self.take_places(2)?;
                    let [left, right] = self.set_branch(branch, place, child)?;
                    queue.push_back((left, child, depth + 1));
                    queue.push_back((right, child + 1, depth + 1));
                }
            }
        }
        self.trees.push(Tree { root: first as u32, n_steps });
        Ok(())
    }

    /// Appends places that are yet to be filled, and returns the first.
    fn take_places(&mut self, n: usize) -> Result<usize> {
        let first = self.places.len();
        if u32::try_from(first + n).is_err() {
            return Err(Error::unsupported("a forest of more than 2^32 nodes"));
        }
        for _ in 0..n {
            let empty = Place { split: T::default(), feature: 0, child: first as u32 };
            reserve::push(&mut self.places, empty, WHAT)?;
            reserve::push(&mut self.special, None, WHAT)?;
            reserve::push(&mut self.leaf_of, 0, WHAT)?;
        }
        Ok(first)
    }

    /// Fills the place of a branch, and returns its left and right child.
    fn set_branch(&mut self, branch: &Branch, place: usize, child: usize) -> Result<[usize; 2]> {
        let split = T::of(branch.split);
        let [passed, failed] = branch.children;
        // The split, whether the children are exchanged, and whether NaN passes the test as it is written.
        let (split, is_exchanged, nan_passes) = match branch.test {
            Test::LessOrEqual | Test::Equal | Test::Member => (split, false, branch.nan_passes),
            Test::Less => (split.before(), false, branch.nan_passes),
            Test::Greater => (split, true, branch.nan_passes),
            Test::GreaterOrEqual => (split.before(), true, branch.nan_passes),
            // NaN differs from every number.
            Test::NotEqual => (split, true, true),
        };
        self.special[place] = match branch.test {
            Test::Equal | Test::NotEqual => Some(Special::Equal),
            Test::Member => {
                let mut set = reserve::collected(branch.members.iter().map(|&member| T::of(member)), WHAT)?;
                set.sort_unstable_by(|a, b| a.wide().total_cmp(&b.wide()));
                Some(Special::Member(set))
            }
            _ => None,
        };
        let nan_left = if nan_passes != is_exchanged { NAN_LEFT } else { 0 };
        let feature = branch.feature | INNER | nan_left;
        self.places[place] = Place { split, feature, child: child as u32 };
        Ok(if is_exchanged { [failed, passed] } else { [passed, failed] })
    }

    /// Sets the weights of leaves for several targets.
    fn set_weights(&mut self, leaves: &[&[(u32, f64)]]) -> Result<()> {
        let in_order =
            |scores: &&[(u32, f64)]| scores.iter().map(|(target, _)| *target as usize).eq(0..self.n_targets);
        let all = leaves.iter().flat_map(|scores| scores.iter());
        if self.aggregate == Aggregate::Sum && leaves.iter().all(in_order) {
            self.weights = Weights::Rows(reserve::collected(all.map(|(_, weight)| T::of(*weight)), WHAT)?);
            return Ok(());
        }
        let (mut parts, mut end) = (reserve::with_capacity(leaves.len(), WHAT)?, 0);
        for scores in leaves {
            let begin = end;
            end += scores.len() as u32;
            parts.push([begin, end]);
        }
        let list = reserve::collected(all.map(|(target, weight)| (*target, T::of(*weight))), WHAT)?;
        self.weights = Weights::Parts(parts, list);
        Ok(())
    }

    /// Computes the scores of rows side by side: `scores` and `has` have an element for each row and target, the second
    /// whether any leaf gave the target a score. Scores are not yet averaged.
    ///
    /// # Panics
    /// If the rows are narrower than the forest's features, or the results are shorter.
    pub(super) fn score(&self, x: &[T], n_rows: usize, scores: &mut [T], has: &mut [bool]) {
        scores.fill(T::default());
        has.fill(matches!(self.weights, Weights::Rows(_)));
        if n_rows == 0 {
            return;
        }
        let width = x.len() / n_rows;
        let has_nan = x.iter().any(|x| x.partial_cmp(x).is_none());
        let walk = if !self.special.is_empty() {
            Self::walk_special
        } else if has_nan {
            Self::walk::<true>
        } else {
            Self::walk::<false>
        };
        let row = |i: usize| &x[i * width..][..width];
        let whole = n_rows - n_rows % LANES;
        for tree in &self.trees {
            for first in (0..whole).step_by(LANES) {
                let rows = std::array::from_fn(|lane| row(first + lane));
                let leaves = walk(self, [tree.root; LANES], rows, tree.n_steps);
                for (lane, leaf) in leaves.into_iter().enumerate() {
                    self.add(leaf, first + lane, scores, has);
                }
            }
        }
        for i in whole..n_rows {
            for trees in self.trees.chunks(LANES) {
                let roots = std::array::from_fn(|lane| trees[lane.min(trees.len() - 1)].root);
                let n_steps = trees.iter().map(|tree| tree.n_steps).max().unwrap_or(0);
                let leaves = walk(self, roots, [row(i); LANES], n_steps);
                for leaf in &leaves[..trees.len()] {
                    self.add(*leaf, i, scores, has);
                }
            }
        }
    }

    /// Walks from places to leaves, by `<=` alone. Without `NAN`, no feature is NaN.
    fn walk<const NAN: bool>(&self, mut at: [u32; LANES], rows: [&[T]; LANES], n_steps: u32) -> [u32; LANES] {
        for _ in 0..n_steps {
            for (at, row) in at.iter_mut().zip(&rows) {
                let place = &self.places[*at as usize];
                let x = row[(place.feature & !(INNER | NAN_LEFT)) as usize];
                let mut is_left = x <= place.split;
                if NAN {
                    is_left |= x.partial_cmp(&x).is_none() && place.feature & NAN_LEFT != 0;
                }
                *at = place.child + (u32::from(!is_left) & place.feature >> 31);
            }
        }
        at
    }

    /// Walks from places to leaves, by any test.
    fn walk_special(&self, at: [u32; LANES], rows: [&[T]; LANES], n_steps: u32) -> [u32; LANES] {
        std::array::from_fn(|lane| {
            let mut at = at[lane];
            for _ in 0..n_steps {
                let place = &self.places[at as usize];
                if place.feature & INNER == 0 {
                    break;
                }
                let x = rows[lane][(place.feature & !(INNER | NAN_LEFT)) as usize];
                let is_left = match &self.special[at as usize] {
                    None => x <= place.split,
                    Some(Special::Equal) => x == place.split,
                    Some(Special::Member(set)) => set.binary_search_by(|member| order(*member, x)).is_ok(),
                } || x.partial_cmp(&x).is_none() && place.feature & NAN_LEFT != 0;
                at = place.child + u32::from(!is_left);
            }
            at
        })
    }

    /// Adds a leaf's weights to the scores of a row.
    #[inline(always)]
    fn add(&self, leaf: u32, row: usize, scores: &mut [T], has: &mut [bool]) {
        let first = row * self.n_targets;
        match &self.weights {
            Weights::Single => {
                let weight = self.places[leaf as usize].split;
                self.merge(&mut scores[row], &mut has[row], weight);
            }
            Weights::Rows(weights) => {
                let number = self.leaf_of[leaf as usize] as usize;
                let weights = &weights[number * self.n_targets..][..self.n_targets];
                for (score, weight) in scores[first..][..self.n_targets].iter_mut().zip(weights) {
                    *score += *weight;
                }
            }
            Weights::Parts(parts, list) => {
                let [begin, end] = parts[self.leaf_of[leaf as usize] as usize];
                for (target, weight) in &list[begin as usize..end as usize] {
                    let at = first + *target as usize;
                    self.merge(&mut scores[at], &mut has[at], *weight);
                }
            }
        }
    }

    #[inline(always)]
    fn merge(&self, score: &mut T, has: &mut bool, weight: T) {
        match self.aggregate {
            Aggregate::Sum | Aggregate::Average => *score += weight,
            Aggregate::Min if !*has || weight < *score => *score = weight,
            Aggregate::Max if !*has || weight > *score => *score = weight,
            Aggregate::Min | Aggregate::Max => {}
        }
        *has = true;
    }
}

/// The order of a set: that of numbers, where NaN is no member.
fn order<T: Number>(member: T, x: T) -> std::cmp::Ordering {
    member.partial_cmp(&x).unwrap_or(std::cmp::Ordering::Less)
}
