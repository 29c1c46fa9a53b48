//! Numbers: every op against a plain reference in f64, over shapes from nothing to a few thousand elements and over
//! the edges of the dtype's range, with the bounds that `numbers` states; and what a plugin keeps of NaN, infinities, zeros, subnormal
//! and the largest numbers.
//!
//! A case for each op that has a reference: the ids follow from the references.

use crate::case::Case;
use crate::numbers::{self, judge, judge_specials};
use crate::rig::Rig;
use crate::verdict::{Outcome, failed};

/// An op, by domain and name.
pub(crate) type OpName = (&'static str, &'static str);

const RULES: &[&str] = &["B20", "B21"];

/// `numerics.*`.
pub(crate) fn cases() -> Vec<Case> {
    let case = |op: OpName| Case {
        id: id("numerics", op),
        rules: RULES,
        requires: leak(format!(
            "{} is correct within its bound, in every offered dtype, on random shapes and edge values",
            op.1
        )),
        needs: &["memory.zero", "transfer.offsets", "launch.bounds", "launch.host_refs"],
        run: |rig| with_op(rig, judge),
    };
    numbers::subjects().into_iter().map(case).collect()
}

/// `specials.*`.
pub(crate) fn specials() -> Vec<Case> {
    let case = |op: OpName| Case {
        id: id("specials", op),
        rules: RULES,
        requires: leak(format!(
            "{} gives NaN, infinities and finite numbers wherever its definition does",
            op.1
        )),
        needs: Box::leak(Box::new([
            "memory.zero",
            "transfer.offsets",
            "launch.bounds",
            "launch.workspace",
            "launch.host_refs",
            id("numerics", op),
        ])),
        run: |rig| with_op(rig, judge_specials),
    };
    numbers::special_subjects().into_iter().map(case).collect()
}

/// Returns the op that a case of these lists is about.
pub(crate) fn op_of(id: &str) -> Option<OpName> {
    let (topic, op) = id.split_once('.')?;
    let all = match topic {
        "numerics" => numbers::subjects(),
        "specials" => numbers::special_subjects(),
        _ => return None,
    };
    all.into_iter().find(|(_, name)| name.eq_ignore_ascii_case(op))
}

/// `topic.op`, in small letters; the domain of ops that are not ONNX's says nothing that the name does not.
fn id(topic: &str, (_, op): OpName) -> &'static str {
    leak(format!("{topic}.{}", op.to_ascii_lowercase()))
}

/// A text of the list of cases, which is made once.
fn leak(text: String) -> &'static str {
    text.leak()
}

fn with_op(rig: &Rig<'_>, judge: fn(&Rig<'_>, OpName) -> Outcome) -> Outcome {
    match rig.op {
        Some(op) => judge(rig, op),
        None => failed("the suite asked for no op"),
    }
}
