//! Numbers: every kernel of the base set against a plain reference in f64, over shapes from nothing to a few tens of
//! thousands of elements and over the edges of the dtype's range, with the bounds that `ops` states.

use crate::case::Case;
use crate::node::{How, Request, candidates};
use crate::ops::{Op, Sample, find};
use crate::rig::Rig;
use crate::tensor::from_bytes;
use crate::verdict::{Outcome, Why, failed, not_run};
use devbay_plugin_api::abi::*;

macro_rules! numbers {
    ($($id:literal $op:literal,)*) => {
        pub(crate) const CASES: &[Case] = &[$(Case {
            id: concat!("numerics.", $id),
            rules: &["B20", "B21"],
            requires: concat!($op, " is right within its bound, in every dtype offered, over fuzzed shapes and edges"),
            needs: &["kernel.prepare", "transfer.offsets"],
            run: |rig| judge(rig, $op),
        }),*];
    };
}

numbers! {
    "add" "Add",
    "sub" "Sub",
    "mul" "Mul",
    "div" "Div",
    "min" "Min",
    "max" "Max",
    "equal" "Equal",
    "less" "Less",
    "greater" "Greater",
    "and" "And",
    "or" "Or",
    "xor" "Xor",
    "relu" "Relu",
    "neg" "Neg",
    "abs" "Abs",
    "floor" "Floor",
    "ceil" "Ceil",
    "reciprocal" "Reciprocal",
    "exp" "Exp",
    "log" "Log",
    "sqrt" "Sqrt",
    "sin" "Sin",
    "cos" "Cos",
    "tanh" "Tanh",
    "sigmoid" "Sigmoid",
    "matmul" "MatMul",
    "softmax" "Softmax",
    "transpose" "Transpose",
}

fn judge(rig: &Rig<'_>, name: &str) -> Outcome {
    let Some(op) = find(name) else {
        return failed(format!("the suite has no reference for {name}"));
    };
    let about = rig.about()?;
    if candidates(about, op).is_empty() {
        return not_run(Why::NotOffered, format!("the plugin has no kernel for {name}"));
    }
    let mut n_taken = 0;
    rig.each_device(|device| {
        device.plain_memory()?;
        let stream = device.stream()?;
        for (kernel, dtype) in candidates(about, op) {
            for sample in samples(op, dtype) {
                let node = match Request::new(device, kernel.idx, &sample).prepare(device)? {
                    Ok(node) => node,
                    Err((DEVBAY_STATUS_UNSUPPORTED, _)) => continue,
                    Err((_, words)) => return failed(format!("{}: {words}", describe(op, &sample))),
                };
                n_taken += 1;
                // Bits that are no number, so that an element that was not written is found.
                let ran = node.run(kernel, &stream, &sample, How { fill: 0xff, ..How::default() })?;
                compare(&sample, &ran.output, || describe(op, &sample))?;
            }
        }
        Ok(())
    })?;
    if n_taken == 0 {
        return not_run(Why::Refused, "prepare answered UNSUPPORTED for every sample");
    }
    Ok(())
}

fn samples(op: &Op, dtype: DType) -> Vec<Sample> {
    op.samples(dtype)
}

fn describe(op: &Op, sample: &Sample) -> String {
    let shapes: Vec<String> = sample.inputs.iter().map(|input| format!("{:?}", input.shape)).collect();
    let dtype = devbay_host::core::tensor::dtype_name(sample.expected.dtype);
    format!("{} of {dtype} {}", op.name, shapes.join(" and "))
}

/// Refuses an element that is further off than its bound.
fn compare(sample: &Sample, output: &[u8], what: impl Fn() -> String) -> Outcome {
    let found = from_bytes(sample.expected.dtype, output);
    for (i, (&found, &expected)) in found.iter().zip(&sample.expected.values).enumerate() {
        let bound = sample.bounds[i];
        // A NaN is within no bound, and an infinity is its own.
        let within =
            found == expected || (found.is_nan() && expected.is_nan()) || (found - expected).abs() <= bound;
        if !within {
            return failed(format!(
                "{}: element {i} is {found}, expected {expected} within {bound:.1e}",
                what()
            ));
        }
    }
    Ok(())
}
