//! Before and after, in the text form, on a device that has Attention on f32.

use super::super::testing::{body, check};

fn becomes(before: &[&str], after: &[&str]) {
    check("fuse-attention", &body(before), &body(after));
}

fn stays(lines: &[&str]) {
    becomes(lines, lines);
}

/// Two steps of three heads, whose rows have one element.
const FLAT: &[&str] = &[
    "%flat = const i64[3] [1, 2, 3]",
    "%f: f32[1,2,3] = Reshape@25(%x, %flat)",
    "%g: f32[1,2,3] = Exp@13(%f)",
];
const DIVIDED: &[&str] = &[
    "%divided = const i64[4] [1, 2, 3, 1]",
    "%a: f32[1,2,3,1] = Reshape@25(%f, %divided)",
    "%b: f32[1,2,3,1] = Reshape@25(%g, %divided)",
    "%qs: f32[1,3,2,1] = Transpose@25(%a) {perm = [0, 2, 1, 3]}",
    "%k: f32[1,3,1,2] = Transpose@25(%b) {perm = [0, 2, 3, 1]}",
    "%v: f32[1,3,2,1] = Transpose@25(%a) {perm = [0, 2, 1, 3]}",
    "%half = const f32[] [0.5]",
    "%s: f32[1,3,2,2] = MatMul@13(%qs, %k)",
    "%t: f32[1,3,2,2] = Mul@14(%s, %half)",
];
const ATTENDED: &[&str] = &[
    "%w: f32[1,3,2,2] = Softmax@13(%u) {axis = 3}",
    "%z: f32[1,3,2,1] = MatMul@13(%w, %v)",
    "%y: f32[1,2,3,1] = Transpose@25(%z) {perm = [0, 2, 1, 3]}",
];

#[test]
fn heads_behind_the_sequence_need_no_transposition() {
    let mask = "%mask = const f32[2,2] [0.0, -1.0, 0.0, 0.0]";
    let sum = "%u: f32[1,3,2,2] = Add@14(%mask, %t)";
    becomes(
        &[FLAT, DIVIDED, &[mask, sum], ATTENDED, &["return %y"]].concat(),
        &[
            FLAT,
            &[
                mask,
                "%z: f32[1,2,3] = Attention@25(%f, %g, %f, %mask) {kv_num_heads = 3, q_num_heads = 3, scale = 0.5}",
                "%divided = const i64[4] [1, 2, 3, 1]",
                "%y: f32[1,2,3,1] = Reshape@25(%z, %divided)",
                "return %y",
            ],
        ]
        .concat(),
    );
}

/// Queries, keys and values of one head, two steps of three.
const PLAIN: &[&str] = &[
    "%extents = const i64[4] [1, 1, 2, 3]",
    "%a: f32[1,1,2,3] = Reshape@25(%x, %extents)",
    "%b: f32[1,1,2,3] = Exp@13(%a)",
    "%two = const f32[] [2.0]",
    "%qs: f32[1,1,2,3] = Mul@14(%two, %a)",
    "%k: f32[1,1,3,2] = Transpose@25(%b) {perm = [0, 1, 3, 2]}",
    "%s: f32[1,1,2,2] = MatMul@13(%qs, %k)",
];

#[test]
fn factors_of_queries_and_of_scores_are_one() {
    let rest = [
        "%half = const f32[] [0.5]",
        "%t: f32[1,1,2,2] = Div@14(%s, %half)",
        "%w: f32[1,1,2,2] = Softmax@13(%t) {axis = -1}",
        "%y: f32[1,1,2,3] = MatMul@13(%w, %b)",
        "return %y",
    ];
    let after = ["%y: f32[1,1,2,3] = Attention@25(%a, %b, %b) {scale = 4.0}", "return %y"];
    becomes(&[PLAIN, &rest].concat(), &[&PLAIN[..3], &after].concat());
}

#[test]
fn a_batch_may_be_missing() {
    becomes(
        &[
            "%extents = const i64[3] [2, 3, 1]",
            "%a: f32[2,3,1] = Reshape@25(%x, %extents)",
            "%qs: f32[3,2,1] = Transpose@25(%a) {perm = [1, 0, 2]}",
            "%k: f32[3,1,2] = Transpose@25(%a) {perm = [1, 2, 0]}",
            "%s: f32[3,2,2] = MatMul@13(%qs, %k)",
            "%w: f32[3,2,2] = Softmax@13(%s) {axis = -1}",
            "%z: f32[3,2,1] = MatMul@13(%w, %qs)",
            "%y: f32[2,3,1] = Transpose@25(%z) {perm = [1, 0, 2]}",
            "return %y",
        ],
        &[
            "%extents = const i64[3] [2, 3, 1]",
            "%a: f32[2,3,1] = Reshape@25(%x, %extents)",
            "%flat = const i64[3] [1, 2, 3]",
            "%qs: f32[1,2,3] = Reshape@25(%a, %flat)",
            "%flat2 = const i64[3] [1, 2, 3]",
            "%k: f32[1,2,3] = Reshape@25(%a, %flat2)",
            "%flat3 = const i64[3] [1, 2, 3]",
            "%v: f32[1,2,3] = Reshape@25(%a, %flat3)",
            "%z: f32[1,2,3] = Attention@25(%qs, %k, %v) {kv_num_heads = 3, q_num_heads = 3, scale = 1.0}",
            "%whole = const i64[3] [2, 3, 1]",
            "%y: f32[2,3,1] = Reshape@25(%z, %whole)",
            "return %y",
        ],
    );
}

#[test]
fn one_query_was_not_transposed() {
    let keys = [
        "%many = const i64[4] [1, 2, 3, 1]",
        "%one = const i64[4] [1, 3, 1, 1]",
        "%a: f32[1,2,3,1] = Reshape@25(%x, %many)",
        "%qs: f32[1,3,1,1] = Reshape@25(%row, %one)",
    ];
    becomes(
        &[
            &keys[..],
            &[
                "%k: f32[1,3,1,2] = Transpose@25(%a) {perm = [0, 2, 3, 1]}",
                "%v: f32[1,3,2,1] = Transpose@25(%a) {perm = [0, 2, 1, 3]}",
                "%s: f32[1,3,1,2] = MatMul@13(%qs, %k)",
                "%w: f32[1,3,1,2] = Softmax@13(%s) {axis = -1}",
                "%y: f32[1,3,1,1] = MatMul@13(%w, %v)",
                "return %y",
            ],
        ]
        .concat(),
        &[
            &keys[..],
            &[
                "%flat = const i64[3] [1, 1, 3]",
                "%q1: f32[1,1,3] = Reshape@25(%qs, %flat)",
                "%flat2 = const i64[3] [1, 2, 3]",
                "%k: f32[1,2,3] = Reshape@25(%a, %flat2)",
                "%flat3 = const i64[3] [1, 2, 3]",
                "%v: f32[1,2,3] = Reshape@25(%a, %flat3)",
                "%z: f32[1,1,3] = Attention@25(%q1, %k, %v) {kv_num_heads = 3, q_num_heads = 3, scale = 1.0}",
                "%result = const i64[4] [1, 3, 1, 1]",
                "%y: f32[1,3,1,1] = Reshape@25(%z, %result)",
                "return %y",
            ],
        ]
        .concat(),
    );
}

#[test]
fn keys_that_two_share_are_read_where_they_were() {
    let two = [
        "%s: f32[1,3,2,2] = MatMul@13(%qs, %k)",
        "%s2: f32[1,3,2,2] = MatMul@13(%v, %k)",
        "%w: f32[1,3,2,2] = Softmax@13(%s) {axis = 3}",
        "%w2: f32[1,3,2,2] = Softmax@13(%s2) {axis = 3}",
        "%z: f32[1,3,2,1] = MatMul@13(%w, %v)",
        "%z2: f32[1,3,2,1] = MatMul@13(%w2, %v)",
        "%y: f32[1,2,3,1] = Transpose@25(%z) {perm = [0, 2, 1, 3]}",
        "%y2: f32[1,2,3,1] = Transpose@25(%z2) {perm = [0, 2, 1, 3]}",
        "return %y, %y2",
    ];
    let attrs = "{kv_num_heads = 3, q_num_heads = 3, scale = 1.0}";
    let attend = |y: &str, of: &str| format!("%{y}: f32[1,2,3] = Attention@25({of}) {attrs}");
    let [one, other] = [attend("z", "%f, %g, %f"), attend("z2", "%f, %g, %f")];
    becomes(
        &[FLAT, &DIVIDED[..6], &two].concat(),
        &[
            FLAT,
            &[
                &*one,
                "%divided = const i64[4] [1, 2, 3, 1]",
                "%y: f32[1,2,3,1] = Reshape@25(%z, %divided)",
                &*other,
                "%divided2 = const i64[4] [1, 2, 3, 1]",
                "%y2: f32[1,2,3,1] = Reshape@25(%z2, %divided2)",
                "return %y, %y2",
            ],
        ]
        .concat(),
    );
}

#[test]
fn what_is_something_else_stays() {
    let end = ["%y: f32[1,1,2,3] = MatMul@13(%w, %b)", "return %y"];
    // Weights of the other axis.
    let other = ["%w: f32[1,1,2,2] = Softmax@13(%s) {axis = 2}"];
    stays(&[PLAIN, &other, &end].concat());
    // Weights that others want.
    let softmax = ["%w: f32[1,1,2,2] = Softmax@13(%s) {axis = 3}"];
    stays(&[PLAIN, &softmax, &end[..1], &["return %y, %w"]].concat());
    // One number for all keys of a query, while a mask has one for each key.
    let line = [
        "%column = const f32[2,1] [1.0, 2.0]",
        "%t: f32[1,1,2,2] = Add@14(%s, %column)",
        "%w: f32[1,1,2,2] = Softmax@13(%t) {axis = 3}",
    ];
    stays(&[PLAIN, &line, &end].concat());
    // Keys that are not transposed: the op would take their transposition.
    stays(&[
        "%extents = const i64[4] [1, 1, 3, 2]",
        "%queries = const i64[4] [1, 1, 2, 3]",
        "%qs: f32[1,1,2,3] = Reshape@25(%x, %queries)",
        "%k: f32[1,1,3,2] = Reshape@25(%x, %extents)",
        "%s: f32[1,1,2,2] = MatMul@13(%qs, %k)",
        "%w: f32[1,1,2,2] = Softmax@13(%s) {axis = 3}",
        "%y: f32[1,1,2,3] = MatMul@13(%w, %qs)",
        "return %y",
    ]);
}
