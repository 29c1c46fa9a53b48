//! Ops of classical machine learning: trees, support vectors and tables.
//!
//! Trees are grown as trees and walked as trees; the lists of attributes come from them. Weights, splits and features are small
//! multiples of powers of 2, so that sums are exact in any order.

use super::index::word;
use super::*;
use crate::ops::random;
use devbay_ops::ML_DOMAIN;

const FEATURES: &[DType] = &[F32, F64, I64, I32];
const KEYS: &[DType] = &[I64, F32, F64, I32, I16];

const fn ml(
    op: &'static str,
    dtypes: &'static [DType],
    make: fn(DType, &mut Dice, u64) -> Trial,
) -> OpTrials {
    OpTrials { domain: ML_DOMAIN, ..OpTrials::new(op, dtypes, make) }
}

pub(super) const OPS: &[OpTrials] = &[
    ml("LabelEncoder", KEYS, label_encoder),
    ml("OneHotEncoder", FEATURES, one_hot_encoder),
    ml("SVMClassifier", FEATURES, svm_classifier),
    ml("SVMRegressor", FEATURES, svm_regressor),
    ml("TreeEnsemble", &[F32, F64, F16], tree_ensemble),
    ml("TreeEnsembleClassifier", FEATURES, tree_ensemble_classifier),
    ml("TreeEnsembleRegressor", FEATURES, tree_ensemble_regressor),
];

// Tables.

fn some(dice: &mut Dice, low: i64, n: u64) -> i64 {
    low + dice.below(n) as i64
}

/// Returns numbers of an element type as an attribute: a list where there is one for the type, else a tensor.
fn numbers_attribute(side: [&'static str; 3], dtype: DType, values: &[f64]) -> (&'static str, AttrValue) {
    match dtype {
        I64 => (side[0], AttrValue::Ints(values.iter().map(|&value| value as i64).collect())),
        F32 => (side[1], AttrValue::Floats(values.iter().map(|&value| value as f32).collect())),
        _ => (side[2], AttrValue::Tensor(tensor_of(dtype, values))),
    }
}

fn tensor_of(dtype: DType, values: &[f64]) -> Tensor {
    let tensor = HostTensor::new(dtype, &[values.len() as i64], values.to_vec());
    Tensor::from_bytes(dtype, &[values.len()], &tensor.bytes()).expect("as many bytes as the type has")
}

fn label_encoder(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let shape = shape_of(dice, i, 0..=3);
    let n_keys = 1 + dice.below(12) as i64;
    // Close together, or far apart; each once.
    let step = if i.is_multiple_of(2) { 1 } else { 997 };
    let half = if is_float(dtype) { 0.5 } else { 0.0 };
    let keys: Vec<f64> = (0..n_keys).map(|k| ((k - 3) * step) as f64 + half).collect();
    let of_values = KEYS[(i as usize / 2) % KEYS.len()];
    let values: Vec<f64> = keys.iter().map(|_| some(dice, -50, 100) as f64).collect();
    let x: Vec<f64> = (0..n_elements(&shape))
        .map(|_| match dice.below(n_keys as u64 + 2) as usize {
            at if at < keys.len() => keys[at],
            _ => 5.0,
        })
        .collect();
    let default = if is_float(of_values) { 2.5 } else { 2.0 };
    let found = |x: &f64| keys.iter().position(|key| key == x).map_or(default, |at| values[at]);
    let y = x.iter().map(found).collect();
    let attributes = vec![
        numbers_attribute(["keys_int64s", "keys_floats", "keys_tensor"], dtype, &keys),
        numbers_attribute(["values_int64s", "values_floats", "values_tensor"], of_values, &values),
        ("default_tensor", AttrValue::Tensor(tensor_of(of_values, &[default]))),
    ];
    let x = HostTensor::new(dtype, &shape, x);
    Trial { attributes, inputs: vec![Some(x)], outputs: vec![Expected::exact(of_values, &shape, y)] }
}

fn one_hot_encoder(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let shape = shape_of(dice, i, 1..=2);
    let n = 1 + dice.below(9) as i64;
    let categories: Vec<i64> = (0..n).map(|k| 7 * k - 10).collect();
    let x: Vec<f64> =
        (0..n_elements(&shape)).map(|_| (7 * some(dice, 0, n as u64 + 1) - 10) as f64).collect();
    let y =
        x.iter().flat_map(|x| categories.iter().map(move |&known| f64::from(known as f64 == *x))).collect();
    let outputs = vec![Expected::exact(F32, &[&shape[..], &[n]].concat(), y)];
    let x = HostTensor::new(dtype, &shape, x);
    Trial { attributes: vec![("cats_int64s", AttrValue::Ints(categories))], inputs: vec![Some(x)], outputs }
}

// Trees.

/// A tree.
enum Tree {
    Branch { feature: usize, mode: usize, split: f64, nan_passes: bool, children: Box<[Tree; 2]> },
    Leaf { target: usize, weight: f64 },
}

const MODES: [&str; 6] = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"];

impl Tree {
    fn grow(
        dice: &mut Dice,
        depth: u64,
        width: usize,
        targets: &[usize],
        modes: u64,
        is_positive: bool,
    ) -> Self {
        if depth == 0 || dice.below(6) == 0 {
            let weight = some(dice, if is_positive { 0 } else { -16 }, 33) as f64 / 16.0;
            return Self::Leaf { target: targets[dice.below(targets.len() as u64) as usize], weight };
        }
        let (feature, mode) = (dice.below(width as u64) as usize, dice.below(modes) as usize);
        let (split, nan_passes) = (some(dice, -6, 13) as f64 / 4.0, dice.below(2) == 1);
        let mut child = || Self::grow(dice, depth - 1, width, targets, modes, is_positive);
        Self::Branch { feature, mode, split, nan_passes, children: Box::new([child(), child()]) }
    }

    /// Returns the target and weight of the leaf that a row ends at.
    fn walk(&self, row: &[f64]) -> (usize, f64) {
        match self {
            Self::Leaf { target, weight } => (*target, *weight),
            Self::Branch { feature, mode, split, nan_passes, children } => {
                let x = row[*feature];
                let passes = match mode {
                    0 => x <= *split,
                    1 => x < *split,
                    2 => x >= *split,
                    3 => x > *split,
                    4 => x == *split,
                    _ => x != *split,
                };
                children[usize::from(!(passes || x.is_nan() && *nan_passes))].walk(row)
            }
        }
    }
}

/// A forest with rows of features.
struct Forest {
    trees: Vec<Tree>,
    x: HostTensor,
    n_targets: usize,
}

impl Forest {
    fn grow(
        dtype: DType,
        dice: &mut Dice,
        i: u64,
        n_targets: usize,
        targets: &[usize],
        is_positive: bool,
    ) -> Self {
        let [rows, width] = match i {
            0 => [1, 1],
            1 => [67, 3],
            2 => [130, 9],
            _ => [1 + dice.below(20), 1 + dice.below(7)],
        };
        let n_trees = if i == 0 { 1 } else { 1 + dice.below(20) };
        let modes = if i.is_multiple_of(3) { 6 } else { 1 + i % 4 };
        let mut tree = || Tree::grow(dice, 6, width as usize, targets, modes, is_positive);
        let trees = (0..n_trees).map(|_| tree()).collect();
        let number = |_| match dice.below(12) {
            0 if is_float(dtype) => f64::NAN,
            _ if is_float(dtype) => some(dice, -8, 17) as f64 / 4.0,
            _ => some(dice, -2, 5) as f64,
        };
        let x = (0..rows * width).map(number).collect();
        Self { trees, x: HostTensor::new(dtype, &[rows as i64, width as i64], x), n_targets }
    }

    fn rows(&self) -> impl Iterator<Item = &[f64]> {
        self.x.values.chunks(self.x.shape[1] as usize)
    }

    /// The weights of each target that a row finds, tree by tree.
    fn found(&self, row: &[f64]) -> Vec<Vec<f64>> {
        let mut found = vec![Vec::new(); self.n_targets];
        for (target, weight) in self.trees.iter().map(|tree| tree.walk(row)) {
            found[target].push(weight);
        }
        found
    }

    /// The attributes of the ops with lists of ids. `prefix` begins the names of the weights.
    fn lists(&self, names: [&'static str; 4]) -> Vec<(&'static str, AttrValue)> {
        let mut lists = Lists::default();
        for (tree, root) in self.trees.iter().enumerate() {
            let mut n_nodes = 0;
            lists.add(tree as i64, &mut n_nodes, root);
        }
        let [trees, ids, features, passed, failed, tracks] = lists.nodes.map(AttrValue::Ints);
        let [of_trees, of_nodes, targets] = lists.leaves.map(AttrValue::Ints);
        vec![
            ("nodes_treeids", trees),
            ("nodes_nodeids", ids),
            ("nodes_featureids", features),
            ("nodes_truenodeids", passed),
            ("nodes_falsenodeids", failed),
            ("nodes_missing_value_tracks_true", tracks),
            ("nodes_modes", AttrValue::Strings(lists.modes)),
            ("nodes_values", AttrValue::Floats(lists.splits)),
            (names[0], of_trees),
            (names[1], of_nodes),
            (names[2], targets),
            (names[3], AttrValue::Floats(lists.weights)),
        ]
    }

    /// The attributes of TreeEnsemble.
    fn arrays(&self) -> Vec<(&'static str, AttrValue)> {
        let mut arrays = Arrays::default();
        let mut roots = Vec::new();
        for tree in &self.trees {
            let (at, is_leaf) = arrays.add(tree);
            roots.push(if is_leaf == 1 { arrays.around(at) } else { at });
        }
        let [features, passed, passed_leaf, failed, failed_leaf, tracks] = arrays.nodes.map(AttrValue::Ints);
        let dtype = self.x.dtype;
        vec![
            ("tree_roots", AttrValue::Ints(roots)),
            ("nodes_featureids", features),
            ("nodes_truenodeids", passed),
            ("nodes_trueleafs", passed_leaf),
            ("nodes_falsenodeids", failed),
            ("nodes_falseleafs", failed_leaf),
            ("nodes_missing_value_tracks_true", tracks),
            ("nodes_modes", AttrValue::Tensor(tensor_of(U8, &arrays.modes))),
            ("nodes_splits", AttrValue::Tensor(tensor_of(dtype, &arrays.splits))),
            ("leaf_targetids", AttrValue::Ints(arrays.targets)),
            ("leaf_weights", AttrValue::Tensor(tensor_of(dtype, &arrays.weights))),
        ]
    }
}

/// Lists of ids.
#[derive(Default)]
struct Lists {
    /// Trees, ids, features, both children, and what NaN does.
    nodes: [Vec<i64>; 6],
    modes: Vec<String>,
    splits: Vec<f32>,
    /// Trees, ids and targets of leaves.
    leaves: [Vec<i64>; 3],
    weights: Vec<f32>,
}

impl Lists {
    /// Appends a node and those below it, and returns its id.
    fn add(&mut self, tree: i64, n_nodes: &mut i64, node: &Tree) -> i64 {
        let (at, id) = (self.splits.len(), *n_nodes);
        *n_nodes += 1;
        let (feature, tracks, mode, split) = match node {
            Tree::Leaf { .. } => (0, 0, "LEAF", 0.0),
            Tree::Branch { feature, mode, split, nan_passes, .. } => {
                (*feature as i64, i64::from(*nan_passes), MODES[*mode], *split as f32)
            }
        };
        let entries = [tree, id, feature, 0, 0, tracks];
        self.nodes.iter_mut().zip(entries).for_each(|(list, entry)| list.push(entry));
        self.modes.push(mode.to_owned());
        self.splits.push(split);
        match node {
            Tree::Leaf { target, weight } => {
                let entries = [tree, id, *target as i64];
                self.leaves.iter_mut().zip(entries).for_each(|(list, entry)| list.push(entry));
                self.weights.push(*weight as f32);
            }
            Tree::Branch { children, .. } => {
                self.nodes[3][at] = self.add(tree, n_nodes, &children[0]);
                self.nodes[4][at] = self.add(tree, n_nodes, &children[1]);
            }
        }
        id
    }
}

/// Arrays of branches and leaves.
#[derive(Default)]
struct Arrays {
    /// Features, both children with whether they are leaves, and what NaN does.
    nodes: [Vec<i64>; 6],
    modes: Vec<f64>,
    splits: Vec<f64>,
    targets: Vec<i64>,
    weights: Vec<f64>,
}

impl Arrays {
    /// Appends a node and those below it; returns its position and 1 for a leaf.
    fn add(&mut self, node: &Tree) -> (i64, i64) {
        match node {
            Tree::Leaf { target, weight } => {
                self.targets.push(*target as i64);
                self.weights.push(*weight);
                (self.weights.len() as i64 - 1, 1)
            }
            Tree::Branch { feature, mode, split, nan_passes, children } => {
                let at = self.push([*feature as i64, 0, 0, 0, 0, i64::from(*nan_passes)], *mode, *split);
                for (i, child) in children.iter().enumerate() {
                    let (child, is_leaf) = self.add(child);
                    (self.nodes[1 + 2 * i][at as usize], self.nodes[2 + 2 * i][at as usize]) =
                        (child, is_leaf);
                }
                (at, 0)
            }
        }
    }

    /// Appends a branch whose children are the same leaf: roots are branches.
    fn around(&mut self, leaf: i64) -> i64 {
        self.push([0, leaf, 1, leaf, 1, 0], 0, 0.0)
    }

    fn push(&mut self, entries: [i64; 6], mode: usize, split: f64) -> i64 {
        self.nodes.iter_mut().zip(entries).for_each(|(list, entry)| list.push(entry));
        self.modes.push(mode as f64);
        self.splits.push(split);
        self.splits.len() as i64 - 1
    }
}

/// The ways to make one score of those of trees, in the order of TreeEnsemble's numbers.
const AGGREGATES: [&str; 4] = ["AVERAGE", "SUM", "MIN", "MAX"];

fn aggregated(found: &[f64], how: usize, n_trees: usize) -> f64 {
    match how {
        0 => found.iter().sum::<f64>() / n_trees as f64,
        1 => found.iter().sum(),
        _ if found.is_empty() => 0.0,
        2 => found.iter().copied().fold(f64::INFINITY, f64::min),
        _ => found.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    }
}

/// Scores of rows, with a base for each target.
fn scores(forest: &Forest, how: usize, base: &[f64], dtype: DType) -> Expected {
    let mut y = Vec::new();
    for row in forest.rows() {
        let found = forest.found(row);
        let score = |(k, found): (usize, &Vec<f64>)| {
            aggregated(found, how, forest.trees.len()) + base.get(k).copied().unwrap_or(0.0)
        };
        y.extend(found.iter().enumerate().map(score));
    }
    // A quotient is rounded, then the sum with the base.
    let bound = |y: &f64| if how == 0 { sum_bound(dtype, 4, 4.0 + y.abs()) } else { 0.0 };
    let bounds = y.iter().map(bound).collect();
    Expected::within(dtype, &[forest.x.shape[0], forest.n_targets as i64], y, bounds)
}

fn tree_ensemble_regressor(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let n_targets = 1 + i as usize % 3;
    let targets: Vec<usize> = (0..n_targets).collect();
    let forest = Forest::grow(dtype, dice, i, n_targets, &targets, false);
    let how = (1 + i as usize / 3) % 4;
    let base: Vec<f64> = (0..n_targets).map(|_| some(dice, -8, 17) as f64 / 4.0).collect();
    let base = if i.is_multiple_of(2) { base } else { Vec::new() };
    let mut attributes = forest.lists(["target_treeids", "target_nodeids", "target_ids", "target_weights"]);
    attributes.push(("n_targets", AttrValue::Int(n_targets as i64)));
    attributes.push(("aggregate_function", word(AGGREGATES[how])));
    if !base.is_empty() {
        attributes.push(("base_values", AttrValue::Floats(base.iter().map(|&base| base as f32).collect())));
    }
    let outputs = vec![scores(&forest, how, &base, F32)];
    Trial { attributes, inputs: vec![Some(forest.x)], outputs }
}

fn tree_ensemble(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let n_targets = 1 + i as usize % 3;
    let targets: Vec<usize> = (0..n_targets).collect();
    let forest = Forest::grow(dtype, dice, i, n_targets, &targets, false);
    let how = (1 + i as usize / 3) % 4;
    let mut attributes = forest.arrays();
    attributes.push(("n_targets", AttrValue::Int(n_targets as i64)));
    attributes.push(("aggregate_function", AttrValue::Int(how as i64)));
    let outputs = vec![scores(&forest, how, &[], dtype)];
    Trial { attributes, inputs: vec![Some(forest.x)], outputs }
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn tree_ensemble_classifier(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    // Two classes with weights of one of them, or more classes.
    let n_classes = if i.is_multiple_of(2) { 2 } else { 3 + i as usize % 3 };
    let (is_positive, is_logistic) = (i % 4 < 2, i % 3 == 2);
    let only = [(i as usize / 2) % 2];
    let all: Vec<usize> = (0..n_classes).collect();
    let targets = if n_classes == 2 { &only[..] } else { &all };
    let forest = Forest::grow(dtype, dice, i, n_classes, targets, is_positive);
    let all_positive = forest.trees.iter().all(has_no_negative);
    let labels: Vec<i64> = (0..n_classes as i64).map(|k| 11 * k - 4).collect();
    let (mut y, mut z) = (Vec::new(), Vec::new());
    for row in forest.rows() {
        let found = forest.found(row);
        let sums: Vec<f64> = found.iter().map(|found| found.iter().sum()).collect();
        if n_classes > 2 {
            // Classes without a leaf have a score of 0, and do not win.
            let seen = (0..n_classes).filter(|&k| !found[k].is_empty());
            let best = seen.reduce(|a, b| if sums[b] > sums[a] { b } else { a }).unwrap_or(0);
            y.push(labels[best] as f64);
            z.extend(sums.iter().map(|&sum| if is_logistic { logistic(sum) } else { sum }));
            continue;
        }
        let score = sums[only[0]];
        y.push(labels[usize::from(score > if all_positive { 0.5 } else { 0.0 })] as f64);
        z.extend(match (only[0], all_positive, is_logistic) {
            // Scores of the second class alone stay beside a score of 0.
            (1, _, false) => [0.0, score],
            (1, _, true) => [0.5, logistic(score)],
            (_, _, true) => [logistic(-score), logistic(score)],
            (_, true, _) => [1.0 - score, score],
            (_, false, _) => [-score, score],
        });
    }
    let bounds =
        z.iter().map(|z| if is_logistic { sum_bound(F32, 16, 1.0 + z.abs()) } else { 0.0 }).collect();
    let mut attributes = forest.lists(["class_treeids", "class_nodeids", "class_ids", "class_weights"]);
    attributes.push(("classlabels_int64s", AttrValue::Ints(labels)));
    attributes.push(("post_transform", word(if is_logistic { "LOGISTIC" } else { "NONE" })));
    let rows = forest.x.shape[0];
    let outputs =
        vec![Expected::exact(I64, &[rows], y), Expected::within(F32, &[rows, n_classes as i64], z, bounds)];
    Trial { attributes, inputs: vec![Some(forest.x)], outputs }
}

fn has_no_negative(tree: &Tree) -> bool {
    match tree {
        Tree::Leaf { weight, .. } => *weight >= 0.0,
        Tree::Branch { children, .. } => children.iter().all(has_no_negative),
    }
}

// Support vectors.

/// A kernel with vectors of features.
struct Vectors {
    kind: &'static str,
    params: [f32; 3],
    list: Vec<Vec<f32>>,
}

impl Vectors {
    fn new(dice: &mut Dice, i: u64, n: usize, width: usize) -> Self {
        let kind = ["LINEAR", "POLY", "RBF", "SIGMOID"][i as usize % 4];
        let params = [dice.between(0.05, 0.2) as f32, dice.between(0.0, 0.5) as f32, (2 + i % 2) as f32];
        let mut vector = || (0..width).map(|_| dice.between(-1.0, 1.0) as f32).collect();
        Self { kind, params, list: (0..n).map(|_| vector()).collect() }
    }

    fn compare(&self, row: &[f64], vector: &[f32]) -> f64 {
        let [gamma, coef0, degree] = self.params.map(f64::from);
        let pairs = || row.iter().zip(vector).map(|(a, b)| (*a, f64::from(*b)));
        let dot: f64 = pairs().map(|(a, b)| a * b).sum();
        match self.kind {
            "LINEAR" => dot,
            "POLY" => (gamma * dot + coef0).powf(degree),
            "RBF" => (-gamma * pairs().map(|(a, b)| (a - b) * (a - b)).sum::<f64>()).exp(),
            _ => (gamma * dot + coef0).tanh(),
        }
    }

    fn attributes(&self) -> Vec<(&'static str, AttrValue)> {
        vec![
            ("kernel_type", word(self.kind)),
            ("kernel_params", AttrValue::Floats(self.params.to_vec())),
            ("support_vectors", AttrValue::Floats(self.list.concat())),
        ]
    }
}

/// Bound of a sum of kernels with this magnitude of terms, in f32: a kernel has a few roundings for each feature.
fn kernel_bound(width: usize, magnitude: f64) -> f64 {
    sum_bound(F32, 32 + 8 * width, 1.0 + magnitude)
}

/// Rows of features, which f32 holds exactly.
fn rows_of(dtype: DType, dice: &mut Dice, i: u64) -> HostTensor {
    let rows = if i == 0 { 1 } else { 1 + dice.below(40) as i64 };
    let width = if i == 0 { 1 } else { 1 + dice.below(9) as i64 };
    let x = random(F32, dice, &[rows, width], (-2.0, 2.0));
    let values = if is_float(dtype) { x.values } else { x.values.iter().map(|x| x.round()).collect() };
    HostTensor::new(dtype, &[rows, width], values)
}

fn floats_of(dice: &mut Dice, n: usize) -> Vec<f32> {
    (0..n).map(|_| dice.between(-1.0, 1.0) as f32).collect()
}

fn svm_regressor(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let x = rows_of(dtype, dice, i);
    let width = x.shape[1] as usize;
    let n = 1 + dice.below(7) as usize;
    let vectors = Vectors::new(dice, i, n, width);
    let (factors, rho) = (floats_of(dice, n), floats_of(dice, 1));
    let (mut y, mut bounds) = (Vec::new(), Vec::new());
    for row in x.values.chunks(width) {
        let terms: Vec<f64> = vectors
            .list
            .iter()
            .zip(&factors)
            .map(|(vector, factor)| vectors.compare(row, vector) * f64::from(*factor))
            .collect();
        y.push(terms.iter().sum::<f64>() + f64::from(rho[0]));
        bounds.push(kernel_bound(width, terms.iter().map(|term| term.abs()).sum()));
    }
    let mut attributes = vectors.attributes();
    attributes.push(("n_supports", AttrValue::Int(n as i64)));
    attributes.push(("coefficients", AttrValue::Floats(factors)));
    attributes.push(("rho", AttrValue::Floats(rho)));
    let outputs = vec![Expected::within(F32, &[x.shape[0], 1], y, bounds)];
    Trial { attributes, inputs: vec![Some(x)], outputs }
}

fn svm_classifier(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    // Votes change where a score is near 0: such data is drawn again.
    loop {
        if let Some(trial) = svm_classifier_of(dtype, dice, i) {
            return trial;
        }
    }
}

fn svm_classifier_of(dtype: DType, dice: &mut Dice, i: u64) -> Option<Trial> {
    let x = rows_of(dtype, dice, i);
    let width = x.shape[1] as usize;
    let n_classes = 2 + dice.below(3) as usize;
    let counts: Vec<usize> = (0..n_classes).map(|_| 1 + dice.below(4) as usize).collect();
    let n: usize = counts.iter().sum();
    let of_class: Vec<usize> = (0..n_classes).flat_map(|class| vec![class; counts[class]]).collect();
    let vectors = Vectors::new(dice, i, n, width);
    let pairs: Vec<[usize; 2]> =
        (0..n_classes).flat_map(|a| (a + 1..n_classes).map(move |b| [a, b])).collect();
    let (factors, rho) = (floats_of(dice, (n_classes - 1) * n), floats_of(dice, pairs.len()));
    let sigmoids = (i % 3 == 1).then(|| [floats_of(dice, pairs.len()), floats_of(dice, pairs.len())]);
    let labels: Vec<i64> = (0..n_classes as i64).map(|k| 5 - 3 * k).collect();
    let (mut y, mut z, mut bounds) = (Vec::new(), Vec::new(), Vec::new());
    for row in x.values.chunks(width) {
        let compared: Vec<f64> = vectors.list.iter().map(|vector| vectors.compare(row, vector)).collect();
        let mut votes = vec![0; n_classes];
        let mut scores = Vec::new();
        let mut magnitude = 0f64;
        for (pair, &[a, b]) in pairs.iter().enumerate() {
            // A vector of one class has a factor for each other class.
            let term = |k: usize| match of_class[k] {
                class if class == a => compared[k] * f64::from(factors[(b - 1) * n + k]),
                class if class == b => compared[k] * f64::from(factors[a * n + k]),
                _ => 0.0,
            };
            let score = (0..n).map(term).sum::<f64>() + f64::from(rho[pair]);
            magnitude = magnitude.max((0..n).map(|k| term(k).abs()).sum());
            if score.abs() < 1e-3 {
                return None;
            }
            votes[if score > 0.0 { a } else { b }] += 1;
            scores.push(score);
        }
        let most = votes.iter().max()?;
        y.push(labels[votes.iter().position(|n| n == most)?] as f64);
        let bound = kernel_bound(width, magnitude);
        match &sigmoids {
            Some([a, b]) => {
                let sigmoid =
                    |pair: usize| logistic(-(scores[pair] * f64::from(a[pair]) + f64::from(b[pair])));
                z.extend(coupled(n_classes, &pairs, sigmoid));
                // The iteration ends early.
                bounds.extend(vec![0.01; n_classes]);
            }
            None if n_classes == 2 => {
                z.extend([-scores[0], scores[0]]);
                bounds.extend([bound; 2]);
            }
            None => {
                bounds.extend(vec![bound; scores.len()]);
                z.extend(scores);
            }
        }
    }
    let mut attributes = vectors.attributes();
    attributes.push(("classlabels_ints", AttrValue::Ints(labels)));
    attributes.push(("vectors_per_class", AttrValue::Ints(counts.iter().map(|&n| n as i64).collect())));
    attributes.push(("coefficients", AttrValue::Floats(factors)));
    attributes.push(("rho", AttrValue::Floats(rho)));
    if let Some([a, b]) = sigmoids {
        attributes.push(("prob_a", AttrValue::Floats(a)));
        attributes.push(("prob_b", AttrValue::Floats(b)));
    }
    let rows = x.shape[0];
    let columns = z.len() as i64 / rows;
    let outputs = vec![Expected::exact(I64, &[rows], y), Expected::within(F32, &[rows, columns], z, bounds)];
    Some(Trial { attributes, inputs: vec![Some(x)], outputs })
}

/// The probabilities of classes that fit those of pairs best: they minimise the sum of `(r_ba p_a - r_ab p_b)^2` with a sum of
/// 1. That is a linear system, which is solved here by elimination.
fn coupled(n: usize, pairs: &[[usize; 2]], r: impl Fn(usize) -> f64) -> Vec<f64> {
    let size = n + 1;
    let mut rows = vec![vec![0.0; size + 1]; size];
    for (pair, &[a, b]) in pairs.iter().enumerate() {
        let first = r(pair);
        let second = 1.0 - first;
        rows[a][a] += second * second;
        rows[b][b] += first * first;
        rows[a][b] -= first * second;
        rows[b][a] -= first * second;
    }
    rows[..n].iter_mut().for_each(|row| row[n] = 1.0);
    rows[n][..n].fill(1.0);
    rows[n][size] = 1.0;
    for column in 0..size {
        let size_of = |row: &usize| (rows[*row][column].abs() * 1e15) as u64;
        let pivot = (column..size).max_by_key(size_of).unwrap_or(column);
        rows.swap(column, pivot);
        let pivot = rows[column].clone();
        for (_, row) in rows.iter_mut().enumerate().filter(|(at, _)| *at != column) {
            let factor = row[column] / pivot[column];
            row.iter_mut().zip(&pivot).for_each(|(x, pivot)| *x -= factor * pivot);
        }
    }
    (0..n).map(|k| rows[k][size] / rows[k][k]).collect()
}
