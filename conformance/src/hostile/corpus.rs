//! The list of cases, and the model that a case is.

use super::mutate::{Attributes, Mutation, apply, learn, mutations, op};
use super::seed::{HostileModel, Seed};
use crate::onnx::{corpus, index};
use devbay_host::internals::import::{from_bytes, read_tensor};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// One hostile model, by name: `SEED/N`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Case {
    /// The node test.
    pub seed: String,
    /// Position in the seed's list of changes.
    pub mutation_idx: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.seed, self.mutation_idx)
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.rsplit_once('/').and_then(|(seed, idx)| Some((seed.to_owned(), idx.parse().ok()?)));
        let (seed, mutation_idx) = parts.ok_or_else(|| format!("expected a case as SEED/N, found {text}"))?;
        Ok(Self { seed, mutation_idx })
    }
}

/// Selection of cases.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Seeds of these ops alone; of all if there are none.
    pub ops: Vec<String>,
    /// Seeds for an op at most, those with the most changes first.
    pub seeds_per_op: usize,
    /// One of so many changes; 1 for all.
    pub every: usize,
}

/// Seeds with their changes.
pub struct Corpus {
    seeds: BTreeMap<String, (Seed, Vec<Mutation>)>,
    every: usize,
    /// Seeds of the ops asked for that cannot be used: what is no tensor, or no model that is imported.
    pub n_left_out: usize,
}

impl Corpus {
    /// Selects the seeds that are asked for.
    pub fn select(selection: &Selection) -> Self {
        let mut corpus = Self::of(&whole_tests());
        corpus.every = selection.every.max(1);
        if !selection.ops.is_empty() {
            corpus.seeds.retain(|_, (seed, _)| selection.ops.contains(&op(seed)));
        }
        // A list that is longer has more operands and attributes to change.
        let mut by_op: BTreeMap<String, Vec<(usize, String)>> = BTreeMap::new();
        for (name, (seed, list)) in &corpus.seeds {
            by_op.entry(op(seed)).or_default().push((list.len(), name.clone()));
        }
        let mut kept = BTreeSet::new();
        for seeds in by_op.values_mut() {
            seeds.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
            // Some from the front, and some from all over: their lists differ.
            let n = selection.seeds_per_op.max(1);
            let step = seeds.len().div_ceil(n).max(1);
            kept.extend(seeds.iter().step_by(step).map(|(_, name)| name.clone()));
        }
        corpus.seeds.retain(|name, _| kept.contains(name));
        corpus
    }

    /// Takes the seeds of these names, with all their changes.
    pub fn of_names<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let wanted: BTreeSet<&str> = names.collect();
        let mut corpus = Self::of(&whole_tests());
        corpus.seeds.retain(|name, _| wanted.contains(name.as_str()));
        corpus
    }

    fn of(names: &BTreeSet<&str>) -> Self {
        let tests = corpus::load(names);
        let seeds: Vec<(String, Seed)> = tests
            .iter()
            .filter_map(|(name, test)| Some((name.clone(), Seed::of(test)?)))
            .filter(|(_, seed)| is_usable(seed))
            .collect();
        let mut attributes = Attributes::new();
        seeds.iter().for_each(|(_, seed)| learn(&mut attributes, seed));
        let n_left_out = names.len() - seeds.len();
        let listed = seeds.into_iter().map(|(name, seed)| {
            let list = mutations(&seed, &attributes);
            (name, (seed, list))
        });
        Self { seeds: listed.collect(), every: 1, n_left_out }
    }

    /// Returns the number of seeds.
    pub fn n_seeds(&self) -> usize {
        self.seeds.len()
    }

    /// Returns the number of their ops.
    pub fn n_ops(&self) -> usize {
        self.seeds.values().map(|(seed, _)| op(seed)).collect::<BTreeSet<_>>().len()
    }

    /// Returns every case, in the order of the seeds' names.
    pub fn cases(&self) -> Vec<Case> {
        let all = self.seeds.iter().flat_map(|(seed, (_, list))| {
            (0..list.len()).map(move |mutation_idx| Case { seed: seed.clone(), mutation_idx })
        });
        all.enumerate()
            .filter(|(i, case)| case.mutation_idx == 0 || i % self.every == 0)
            .map(|(_, case)| case)
            .collect()
    }

    /// Returns the model of a case; None where there is none of that name.
    pub fn model(&self, case: &Case) -> Option<HostileModel> {
        let (seed, list) = self.seeds.get(&case.seed)?;
        apply(seed, list.get(case.mutation_idx)?)
    }

    /// Returns the op that a case is about.
    pub fn op(&self, case: &Case) -> String {
        self.seeds.get(&case.seed).map(|(seed, _)| op(seed)).unwrap_or_default()
    }

    /// Describes the change in words.
    pub fn describe(&self, case: &Case) -> String {
        self.mutation(case).map(ToString::to_string).unwrap_or_default()
    }

    /// Returns the case whose input has what is a constant in this one.
    pub fn given_late(&self, case: &Case) -> Option<Case> {
        let late = self.mutation(case)?.given_late()?;
        let mutation_idx = self.seeds.get(&case.seed)?.1.iter().position(|other| *other == late)?;
        Some(Case { seed: case.seed.clone(), mutation_idx })
    }

    /// Returns whether a case is about an attribute that is missing, of another type, or a list of another length.
    pub fn is_form_of_attribute(&self, case: &Case) -> bool {
        self.mutation(case).is_some_and(Mutation::is_form_of_attribute)
    }

    /// Returns whether a case is about an attribute of another type.
    pub fn is_type_of_attribute(&self, case: &Case) -> bool {
        self.mutation(case).is_some_and(Mutation::is_type_of_attribute)
    }

    /// Returns whether rounding decides which of a case's results overflow.
    pub(super) fn is_large(&self, case: &Case) -> bool {
        self.mutation(case).is_some_and(Mutation::is_large)
    }

    fn mutation(&self, case: &Case) -> Option<&Mutation> {
        self.seeds.get(&case.seed)?.1.get(case.mutation_idx)
    }
}

/// Tests of ops, not of the graphs that ops stand for.
fn whole_tests() -> BTreeSet<&'static str> {
    index().iter().filter(|(_, about)| !about.expanded).map(|(name, _)| name.as_str()).collect()
}

/// Returns whether the host reads the test at all: sequences and strings are refused before any kernel sees them.
fn is_usable(seed: &Seed) -> bool {
    let model = seed.unchanged();
    let inputs = model.inputs.into_iter().all(|(_, bytes)| read_tensor(bytes).is_ok());
    inputs && from_bytes(model.model, None).is_ok()
}
