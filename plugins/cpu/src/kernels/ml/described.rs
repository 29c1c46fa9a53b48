//! A forest as its node describes it: branches and leaves in the order of the attributes, checked.
//!
//! Two forms are read: lists with the ids of trees and nodes (TreeEnsembleClassifier, TreeEnsembleRegressor), and positions
//! in arrays of branches and leaves (TreeEnsemble). Whether the nodes form trees, `forest.rs` finds out.

use super::attributes::{Numbers, elements, ints, numbers, tensor_of, words};
use devbay_plugin_api::reserve;
use devbay_plugin_api::sdk::{Attrs, DType, Error, F32, F64, Result, U8};
use std::collections::HashMap;

const WHAT: &str = "the nodes of a forest";

/// The comparison of a branch: the feature with the split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Test {
    LessOrEqual,
    Less,
    GreaterOrEqual,
    Greater,
    Equal,
    NotEqual,
    /// The feature is one of a set.
    Member,
}

/// A node of a tree.
#[derive(Clone, Debug)]
pub(super) enum Node {
    Branch(Branch),
    /// The scores that it adds: targets and weights.
    Leaf(Vec<(u32, f64)>),
}

/// A node with two children.
#[derive(Clone, Debug)]
pub(super) struct Branch {
    pub feature: u32,
    pub test: Test,
    pub split: f64,
    /// The set of a [`Test::Member`].
    pub members: Vec<f64>,
    /// True if NaN passes the test.
    pub nan_passes: bool,
    /// The children where the test holds and where it does not.
    pub children: [usize; 2],
}

/// A forest.
#[derive(Debug)]
pub(super) struct Described {
    pub nodes: Vec<Node>,
    /// The root of each tree.
    pub roots: Vec<usize>,
    /// True if a leaf may have several parents: TreeEnsemble lists leaves apart.
    pub shares_leaves: bool,
    /// Added to the scores in the end.
    pub base: Vec<f64>,
    /// F64 if the splits or weights need it.
    pub dtype: DType,
}

impl Described {
    /// Names a node in messages.
    pub(super) fn name(&self, at: usize) -> String {
        match &self.nodes[at] {
            Node::Branch(_) => format!("the branch at position {at}"),
            Node::Leaf(_) => format!("the leaf at position {at}"),
        }
    }
}

/// Names of the lists of weights, which differ between the ops.
pub(super) struct WeightNames {
    pub ids: &'static str,
    pub nodes: &'static str,
    pub trees: &'static str,
    pub weights: &'static str,
    pub weights_as_tensor: &'static str,
}

/// Checks that a list has as many entries as another one.
fn expect_length(name: &str, found: usize, of: &str, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::invalid(format!("expected as many entries in {name} as in {of}, {expected}, found {found}")))
}

/// Checks that a feature exists.
fn feature(id: i64, width: usize) -> Result<u32> {
    match u32::try_from(id) {
        // The two highest bits are marks in the forest's layout.
        Ok(feature) if (id as usize) < width && feature < 1 << 30 => Ok(feature),
        _ => Err(Error::invalid(format!("expected a feature below {width} in nodes_featureids, found {id}"))),
    }
}

/// Checks that a target exists.
fn target(name: &str, id: i64, n_targets: usize) -> Result<u32> {
    match u32::try_from(id) {
        Ok(target) if (target as usize) < n_targets => Ok(target),
        _ => Err(Error::invalid(format!("expected a target below {n_targets} in {name}, found {id}"))),
    }
}

/// Reads `nodes_missing_value_tracks_true`, which may be left out.
fn tracks(attrs: &Attrs<'_>, n: usize, of: &str) -> Result<Vec<bool>> {
    const NAME: &str = "nodes_missing_value_tracks_true";
    let tracks = ints(attrs, NAME)?;
    if tracks.is_empty() {
        return Ok(reserve::filled(false, n, WHAT)?);
    }
    expect_length(NAME, tracks.len(), of, n)?;
    Ok(reserve::collected(tracks.into_iter().map(|track| track != 0), WHAT)?)
}

/// The wider of the element types of numbers.
fn widest<'a>(lists: impl IntoIterator<Item = &'a Numbers>) -> DType {
    if lists.into_iter().any(|list| list.dtype == F64) { F64 } else { F32 }
}

/// Reads a forest of lists with ids.
///
/// # Errors
/// Invalid for lists of different lengths, ids that are not there or there twice, and unknown modes; out of memory.
pub(super) fn of_lists(
    attrs: &Attrs<'_>,
    of: &WeightNames,
    width: usize,
    n_targets: usize,
) -> Result<Described> {
    const FIRST: &str = "nodes_nodeids";
    let node_ids = ints(attrs, FIRST)?;
    let n = node_ids.len();
    let list = |name: &'static str| {
        let list = ints(attrs, name)?;
        expect_length(name, list.len(), FIRST, n).map(|()| list)
    };
    let (tree_ids, features) = (list("nodes_treeids")?, list("nodes_featureids")?);
    let (passed, failed) = (list("nodes_truenodeids")?, list("nodes_falsenodeids")?);
    let modes = words(attrs, "nodes_modes")?;
    expect_length("nodes_modes", modes.len(), FIRST, n)?;
    let splits = numbers(attrs, "nodes_values", "nodes_values_as_tensor")?;
    expect_length(splits.name, splits.values.len(), FIRST, n)?;
    let tracks = tracks(attrs, n, FIRST)?;
    let base = numbers(attrs, "base_values", "base_values_as_tensor")?;

    let mut places = HashMap::new();
    for (at, id) in tree_ids.iter().copied().zip(node_ids.iter().copied()).enumerate() {
        if places.insert(id, at).is_some() {
            return Err(Error::invalid(format!("the node {} of the tree {} is there twice", id.1, id.0)));
        }
    }
    let child = |at: usize, name: &str, id: i64| {
        places.get(&(tree_ids[at], id)).copied().ok_or_else(|| {
            let (tree, node) = (tree_ids[at], node_ids[at]);
            Error::invalid(format!(
                "expected a node of the tree {tree} as {name} of its node {node}, found {id}"
            ))
        })
    };
    let mut nodes = reserve::with_capacity(n, WHAT)?;
    for at in 0..n {
        let Some(test) = test_of_name(modes[at])? else {
            nodes.push(Node::Leaf(Vec::new()));
            continue;
        };
        nodes.push(Node::Branch(Branch {
            feature: feature(features[at], width)?,
            test,
            split: splits.values[at],
            members: Vec::new(),
            nan_passes: tracks[at],
            children: [
                child(at, "nodes_truenodeids", passed[at])?,
                child(at, "nodes_falsenodeids", failed[at])?,
            ],
        }));
    }
    // As in onnxruntime: a tree begins where its id does.
    let begins = |at: &usize| *at == 0 || tree_ids[*at] != tree_ids[*at - 1];
    let roots = (0..n).filter(begins).collect();
    let weights = add_weights(attrs, of, &mut nodes, |id| places.get(&id).copied(), n_targets)?;
    let dtype = widest([&splits, &base, &weights]);
    Ok(Described { nodes, roots, shares_leaves: false, base: base.values, dtype })
}

/// Gives the leaves their weights. Weights of branches are ignored, as in onnxruntime: some exporters write them.
fn add_weights(
    attrs: &Attrs<'_>,
    of: &WeightNames,
    nodes: &mut [Node],
    place: impl Fn((i64, i64)) -> Option<usize>,
    n_targets: usize,
) -> Result<Numbers> {
    let ids = ints(attrs, of.ids)?;
    let (of_nodes, of_trees) = (ints(attrs, of.nodes)?, ints(attrs, of.trees)?);
    let weights = numbers(attrs, of.weights, of.weights_as_tensor)?;
    for (name, found) in
        [(of.nodes, of_nodes.len()), (of.trees, of_trees.len()), (weights.name, weights.values.len())]
    {
        expect_length(name, found, of.ids, ids.len())?;
    }
    for (i, &weight) in weights.values.iter().enumerate() {
        let target = target(of.ids, ids[i], n_targets)?;
        let at = place((of_trees[i], of_nodes[i])).ok_or_else(|| {
            let (tree, node) = (of_trees[i], of_nodes[i]);
            Error::invalid(format!(
                "{} has a weight of the node {node} of the tree {tree}, which is not there",
                of.nodes
            ))
        })?;
        if let Node::Leaf(scores) = &mut nodes[at] {
            reserve::push(scores, (target, weight), WHAT)?;
        }
    }
    Ok(weights)
}

/// Reads a mode; None for a leaf.
fn test_of_name(name: &str) -> Result<Option<Test>> {
    Ok(Some(match name {
        "BRANCH_LEQ" => Test::LessOrEqual,
        "BRANCH_LT" => Test::Less,
        "BRANCH_GTE" => Test::GreaterOrEqual,
        "BRANCH_GT" => Test::Greater,
        "BRANCH_EQ" => Test::Equal,
        "BRANCH_NEQ" => Test::NotEqual,
        "LEAF" => return Ok(None),
        other => {
            return Err(Error::invalid(format!(
                "nodes_modes has BRANCH_LEQ, LT, GTE, GT, EQ, NEQ and LEAF, found {other}"
            )));
        }
    }))
}

/// Reads a forest of arrays of branches and leaves.
///
/// # Errors
/// Invalid for arrays of different lengths, positions that are not there, unknown modes, and a number of sets that differs
/// from that of branches with sets; out of memory.
pub(super) fn of_arrays(attrs: &Attrs<'_>, width: usize, n_targets: usize) -> Result<Described> {
    const FIRST: &str = "nodes_featureids";
    let features = ints(attrs, FIRST)?;
    let n = features.len();
    let list = |name: &'static str| {
        let list = ints(attrs, name)?;
        expect_length(name, list.len(), FIRST, n).map(|()| list)
    };
    let tensor = |name: &'static str| {
        let tensor = tensor_of(attrs, name)?;
        let dtype = tensor.as_ref().map_or(F32, |tensor| tensor.dtype());
        let values = tensor.map_or(Ok(Vec::new()), |tensor| elements(name, &tensor))?;
        Ok::<_, Error>(Numbers { name, values, dtype })
    };
    let (passed, failed) = (list("nodes_truenodeids")?, list("nodes_falsenodeids")?);
    let (passed_leaf, failed_leaf) = (list("nodes_trueleafs")?, list("nodes_falseleafs")?);
    let (modes, splits) = (tensor("nodes_modes")?, tensor("nodes_splits")?);
    if modes.dtype != U8 {
        return Err(Error::invalid(format!("nodes_modes of {:?} elements, expected bytes", modes.dtype)));
    }
    for list in [&modes, &splits] {
        expect_length(list.name, list.values.len(), FIRST, n)?;
    }
    let tracks = tracks(attrs, n, FIRST)?;
    let (targets, weights) = (ints(attrs, "leaf_targetids")?, tensor("leaf_weights")?);
    expect_length("leaf_weights", weights.values.len(), "leaf_targetids", targets.len())?;
    let members = tensor("membership_values")?;
    let mut sets = Sets { rest: &members.values };

    let place = |name: &str, id: i64, is_leaf: i64| {
        let (first, count, what) = if is_leaf != 0 { (n, targets.len(), "leaf") } else { (0, n, "branch") };
        match usize::try_from(id) {
            Ok(id) if id < count => Ok(first + id),
            _ => Err(Error::invalid(format!("expected a {what} below {count} in {name}, found {id}"))),
        }
    };
    let mut nodes = reserve::with_capacity(n + targets.len(), WHAT)?;
    for at in 0..n {
        let test = test_of_number(modes.values[at])?;
        nodes.push(Node::Branch(Branch {
            feature: feature(features[at], width)?,
            test,
            split: splits.values[at],
            members: if test == Test::Member { sets.next()? } else { Vec::new() },
            nan_passes: tracks[at],
            children: [
                place("nodes_truenodeids", passed[at], passed_leaf[at])?,
                place("nodes_falsenodeids", failed[at], failed_leaf[at])?,
            ],
        }));
    }
    sets.end()?;
    for (&id, &weight) in targets.iter().zip(&weights.values) {
        let scores = vec![(target("leaf_targetids", id, n_targets)?, weight)];
        nodes.push(Node::Leaf(scores));
    }
    let roots = ints(attrs, "tree_roots")?;
    let roots = roots.into_iter().map(|root| place("tree_roots", root, 0)).collect::<Result<_>>()?;
    let dtype = widest([&splits, &weights, &members]);
    Ok(Described { nodes, roots, shares_leaves: true, base: Vec::new(), dtype })
}

fn test_of_number(number: f64) -> Result<Test> {
    const TESTS: [Test; 7] = [
        Test::LessOrEqual,
        Test::Less,
        Test::GreaterOrEqual,
        Test::Greater,
        Test::Equal,
        Test::NotEqual,
        Test::Member,
    ];
    let test = TESTS.get(number as usize).copied();
    test.ok_or_else(|| Error::invalid(format!("nodes_modes has numbers from 0 to 6, found {number}")))
}

/// The sets of branches, each ended by NaN; the last one's may be left out.
struct Sets<'a> {
    rest: &'a [f64],
}

impl Sets<'_> {
    fn next(&mut self) -> Result<Vec<f64>> {
        if self.rest.is_empty() {
            return Err(Error::invalid(
                "membership_values has fewer sets than nodes_modes has BRANCH_MEMBER",
            ));
        }
        let end = self.rest.iter().position(|value| value.is_nan()).unwrap_or(self.rest.len());
        let set = reserve::copied(&self.rest[..end], WHAT)?;
        self.rest = &self.rest[(end + 1).min(self.rest.len())..];
        Ok(set)
    }

    fn end(&self) -> Result<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(Error::invalid("membership_values has more sets than nodes_modes has BRANCH_MEMBER"))
    }
}
