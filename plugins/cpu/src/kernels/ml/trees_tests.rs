//! Tests of forests: results of small ones, the same bits in any batch, and descriptions that are wrong.

use crate::isa::Isa;
use crate::kernels::test_host::{Array, Value, run};
use devbay_plugin_api::abi::Str;

type Attrs = Vec<(&'static str, Value)>;

fn texts(list: &[&'static str]) -> Value {
    Value::Texts(list.iter().map(|text| Str::new(text)).collect())
}

/// A tree with a branch on feature 0 at 0.5: on the left the weight 1, on the right a branch on feature 1 at 2 with the
/// weights 10 and 100.
fn small() -> Attrs {
    vec![
        ("n_targets", Value::Int(1)),
        ("nodes_treeids", Value::Ints(vec![0; 5])),
        ("nodes_nodeids", Value::Ints(vec![0, 1, 2, 3, 4])),
        ("nodes_featureids", Value::Ints(vec![0, 0, 1, 0, 0])),
        ("nodes_modes", texts(&["BRANCH_LEQ", "LEAF", "BRANCH_LT", "LEAF", "LEAF"])),
        ("nodes_values", Value::Floats(vec![0.5, 0.0, 2.0, 0.0, 0.0])),
        ("nodes_truenodeids", Value::Ints(vec![1, 0, 3, 0, 0])),
        ("nodes_falsenodeids", Value::Ints(vec![2, 0, 4, 0, 0])),
        ("nodes_missing_value_tracks_true", Value::Ints(vec![0, 0, 1, 0, 0])),
        ("target_treeids", Value::Ints(vec![0; 3])),
        ("target_nodeids", Value::Ints(vec![1, 3, 4])),
        ("target_ids", Value::Ints(vec![0; 3])),
        ("target_weights", Value::Floats(vec![1.0, 10.0, 100.0])),
    ]
}

fn with(mut attrs: Attrs, name: &'static str, value: Value) -> Attrs {
    attrs.retain(|(known, _)| *known != name);
    attrs.push((name, value));
    attrs
}

fn regress(attrs: &Attrs, rows: usize, x: &[f32]) -> Result<Vec<f32>, String> {
    let x = Array::of(&[rows, x.len() / rows.max(1)], x);
    let y = Array::empty::<f32>(&[rows, 1]);
    let found = run(Isa::Baseline, "TreeEnsembleRegressor", attrs, &[Some(x)], &[Some(y)])?;
    Ok(found[0].as_ref().expect("an output").elements())
}

#[test]
fn rows_end_at_their_leaves() {
    const NAN: f32 = f32::NAN;
    let x = [0.5, 9.0, 0.6, 1.9, 0.6, 2.0, NAN, NAN, NAN, 3.0, f32::INFINITY, -f32::INFINITY];
    let expected = [1.0, 10.0, 100.0, 10.0, 100.0, 10.0];
    assert_eq!(regress(&small(), 6, &x), Ok(expected.to_vec()));
    // A full block of rows is walked side by side, and gives the same.
    let many: Vec<f32> = std::iter::repeat_n(x, 30).flatten().collect();
    assert_eq!(regress(&small(), 180, &many), Ok(expected.repeat(30)));
}

#[test]
fn every_test_has_its_meaning() {
    let check = |mode, expected: [f32; 4]| {
        let attrs = with(small(), "nodes_modes", texts(&[mode, "LEAF", "BRANCH_LEQ", "LEAF", "LEAF"]));
        let found = regress(&attrs, 4, &[0.0, 3.0, 0.5, 3.0, 1.0, 3.0, f32::NAN, 3.0]);
        assert_eq!(found, Ok(expected.to_vec()), "{mode}");
    };
    check("BRANCH_LEQ", [1.0, 1.0, 100.0, 100.0]);
    check("BRANCH_LT", [1.0, 100.0, 100.0, 100.0]);
    check("BRANCH_GTE", [100.0, 1.0, 1.0, 100.0]);
    check("BRANCH_GT", [100.0, 100.0, 1.0, 100.0]);
    check("BRANCH_EQ", [100.0, 1.0, 100.0, 100.0]);
    // NaN differs from the split.
    check("BRANCH_NEQ", [1.0, 100.0, 1.0, 1.0]);
}

/// A forest of random full trees, with four targets.
fn random_forest(n_trees: usize, depth: u32) -> Attrs {
    let mut state = 7u64;
    let mut below = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let (n_branches, n_nodes) = ((1i64 << depth) - 1, (1i64 << (depth + 1)) - 1);
    let (mut lists, mut values, mut modes) = ([(); 5].map(|()| Vec::new()), Vec::new(), Vec::new());
    let (mut leaves, mut weights) = ([(); 3].map(|()| Vec::new()), Vec::new());
    for tree in 0..n_trees as i64 {
        for node in 0..n_nodes {
            let entries = [tree, node, below(6) as i64, 2 * node + 1, 2 * node + 2];
            lists.iter_mut().zip(entries).for_each(|(list, entry)| list.push(entry));
            values.push(below(1000) as f64 / 1000.0);
            modes.push(if node < n_branches { "BRANCH_LEQ" } else { "LEAF" });
            if node >= n_branches {
                for target in 0..4 {
                    leaves.iter_mut().zip([tree, node, target]).for_each(|(list, entry)| list.push(entry));
                    weights.push(below(1000) as f64 / 7.0);
                }
            }
        }
    }
    let [trees, nodes, features, passed, failed] = lists.map(Value::Ints);
    let [of_trees, of_nodes, targets] = leaves.map(Value::Ints);
    vec![
        ("n_targets", Value::Int(4)),
        ("nodes_treeids", trees),
        ("nodes_nodeids", nodes),
        ("nodes_featureids", features),
        ("nodes_truenodeids", passed),
        ("nodes_falsenodeids", failed),
        ("nodes_values", Value::Floats(values)),
        ("nodes_modes", texts(&modes)),
        ("target_treeids", of_trees),
        ("target_nodeids", of_nodes),
        ("target_ids", targets),
        ("target_weights", Value::Floats(weights)),
    ]
}

#[test]
fn a_row_has_the_same_bits_in_any_batch() {
    let attrs = random_forest(21, 5);
    let x: Vec<f32> = (0..131 * 6).map(|i| (i * 37 % 1009) as f32 / 1009.0).collect();
    let scores = |rows: usize, x: &[f32]| {
        let operand = Array::of(&[rows, 6], x);
        let y = Array::empty::<f32>(&[rows, 4]);
        let found = run(Isa::Baseline, "TreeEnsembleRegressor", &attrs, &[Some(operand)], &[Some(y)]);
        found.expect("runs")[0].as_ref().expect("an output").elements::<f32>()
    };
    let all = scores(131, &x);
    for row in 0..131 {
        assert_eq!(scores(1, &x[row * 6..][..6]), all[row * 4..][..4], "row {row}");
    }
    assert_eq!(scores(13, &x[..13 * 6]), all[..13 * 4]);
}

#[test]
fn wrong_descriptions_are_refused() {
    let refused = |name, value, words: &str| {
        let error = regress(&with(small(), name, value), 1, &[0.0, 0.0]).expect_err(words);
        assert!(error.contains(words), "{name}: {error}");
    };
    let ints = |list: &[i64]| Value::Ints(list.to_vec());
    refused(
        "nodes_featureids",
        ints(&[0, 0]),
        "as many entries in nodes_featureids as in nodes_nodeids, 5, found 2",
    );
    refused("nodes_featureids", ints(&[2, 0, 1, 0, 0]), "a feature below 2 in nodes_featureids, found 2");
    refused("nodes_featureids", ints(&[-1, 0, 1, 0, 0]), "found -1");
    refused("nodes_truenodeids", ints(&[9, 0, 3, 0, 0]), "as nodes_truenodeids of its node 0, found 9");
    refused("nodes_falsenodeids", ints(&[1, 0, 4, 0, 0]), "two parents");
    refused("nodes_falsenodeids", ints(&[2, 0, 0, 0, 0]), "its own ancestor");
    refused("nodes_truenodeids", ints(&[0, 0, 3, 0, 0]), "its own ancestor");
    refused("nodes_nodeids", ints(&[0, 1, 2, 3, 3]), "the node 3 of the tree 0 is there twice");
    refused("nodes_modes", texts(&["BRANCH_LEQ", "LEAF", "TWIG", "LEAF", "LEAF"]), "found TWIG");
    refused("nodes_modes", texts(&["LEAF"]), "nodes_modes");
    refused("nodes_values", Value::Floats(vec![1.0]), "nodes_values");
    refused("nodes_missing_value_tracks_true", ints(&[1]), "nodes_missing_value_tracks_true");
    refused("target_nodeids", ints(&[1, 3, 7]), "the node 7 of the tree 0, which is not there");
    refused("target_ids", ints(&[0, 1, 0]), "a target below 1 in target_ids, found 1");
    refused("target_weights", Value::Floats(vec![1.0]), "target_weights");
    refused("base_values", Value::Floats(vec![1.0, 2.0]), "base_values has 2 entries");
    refused("post_transform", Value::Text("HARDMAX"), "found HARDMAX");
    refused("aggregate_function", Value::Text("MEAN"), "found MEAN");
}

/// Lists of random numbers and lengths are refused or give results, and nothing panics.
#[test]
fn hostile_descriptions_never_panic() {
    let mut state = 3u64;
    let mut below = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let (mut n_run, mut n_refused) = (0, 0);
    for _ in 0..2000 {
        let mut attrs = small();
        for _ in 0..1 + below(2) {
            let at = below(attrs.len() as u64) as usize;
            match &mut attrs[at].1 {
                Value::Ints(list) if !list.is_empty() && below(4) > 0 => {
                    let i = below(list.len() as u64) as usize;
                    let edges = [-1, 0, 1, 2, 3, 4, 5, i64::MAX, i64::MIN];
                    list[i] = edges[below(9) as usize];
                }
                Value::Ints(list) => list.truncate(below(5) as usize),
                Value::Floats(list) => list[0] = [f64::NAN, f64::INFINITY, -0.0][below(3) as usize],
                Value::Int(number) => *number = below(3) as i64 - 1,
                _ => {}
            }
        }
        match regress(&attrs, 3, &[0.0, 1.0, 0.7, f32::NAN, f32::INFINITY, -0.0]) {
            Ok(_) => n_run += 1,
            Err(error) => {
                assert!(!error.contains("panic"), "{error}");
                n_refused += 1;
            }
        }
    }
    assert!(n_run > 100 && n_refused > 100, "{n_run} ran, {n_refused} were refused");
}
