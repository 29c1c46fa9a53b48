//! NaN, infinities, zeros, subnormal and the largest numbers through activations, and through ops that others are fused
//! to: a table of what a plugin keeps of them.

use crate::case::Case;
use crate::numbers::judge_specials;

macro_rules! specials {
    ($($id:literal $op:literal $(in $domain:literal)?,)*) => {
        pub(crate) const CASES: &[Case] = &[$(Case {
            id: concat!("specials.", $id),
            rules: &["B20", "B21"],
            requires: concat!($op, " gives NaN, infinities and finite numbers where its definition does"),
            needs: &[
                "memory.zero",
                "transfer.offsets",
                "launch.bounds",
                "launch.workspace",
                "launch.host_refs",
                concat!("numerics.", $id),
            ],
            run: |rig| judge_specials(rig, concat!($($domain)?), $op),
        }),*];
    };
}

specials! {
    "relu" "Relu",
    "leakyrelu" "LeakyRelu",
    "clip" "Clip",
    "hardsigmoid" "HardSigmoid",
    "hardswish" "HardSwish",
    "sigmoid" "Sigmoid",
    "tanh" "Tanh",
    "elu" "Elu",
    "celu" "Celu",
    "selu" "Selu",
    "gelu" "Gelu",
    "swish" "Swish",
    "mish" "Mish",
    "softplus" "Softplus",
    "softsign" "Softsign",
    "thresholdedrelu" "ThresholdedRelu",
    "erf" "Erf",
    "exp" "Exp",
    "log" "Log",
    "sqrt" "Sqrt",
    "reciprocal" "Reciprocal",
    "matmul" "MatMul",
    "gemm" "Gemm",
    "conv" "Conv",
    "maxpool" "MaxPool",
    "reducemax" "ReduceMax",
    "reducemin" "ReduceMin",
    "reducesum" "ReduceSum",
    "softmax" "Softmax",
    "logsoftmax" "LogSoftmax",
    "fusedconv" "FusedConv" in "devbay",
    "fusedelementwise" "FusedElementwise" in "devbay",
    "fusedgemm" "FusedGemm" in "devbay",
    "fusedmatmul" "FusedMatMul" in "devbay",
}
