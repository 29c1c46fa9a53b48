//! The ops that the device takes: all that devbay's catalogue has kernels run, each in the version that programs hold.
//!
//! The list is this plugin's own, as plugins know nothing of the engine; a test of the command compares the two.

use crate::NullDevice;
use crate::kernel::{prepare, prepare_extents};
use devbay_plugin_api::abi::{DEVBAY_KERNEL_DATA_SHAPE, DEVBAY_VARIADIC};
use devbay_plugin_api::sdk::*;

/// Every dtype that the ABI has, complex numbers left out: ONNX's ops have none.
const DTYPES: &[DType] = &[
    F32, F64, F16, BF16, I8, I16, I32, I64, U8, U16, U32, U64, BOOL, I4, U4, I2, U2, F8E4M3FN, F8E4M3FNUZ,
    F8E5M2, F8E5M2FNUZ, F8E8M0, F4E2M1,
];

/// Operands of one kind whose types do not depend on each other; those after them have the last one's.
const N_FREE: usize = 16;
/// A variable for each of them, inputs first.
const TYPEVARS: &[TypeVar] = &[TypeVar::of(DTYPES); 2 * N_FREE];
const INPUTS: &[u8] = &numbers::<N_FREE>(0);
const OUTPUTS: &[u8] = &numbers::<N_FREE>(N_FREE as u8);

const fn numbers<const N: usize>(first: u8) -> [u8; N] {
    let mut all = [0; N];
    let mut i = 0;
    while i < N {
        all[i] = first + i as u8;
        i += 1;
    }
    all
}

/// A kernel of any number of operands of any types. It is not DETERMINISTIC: what its outputs hold is what was there.
const fn kernel(
    op: &'static str,
    version: u32,
    prepare: fn(&PrepareRequest<'_, NullDevice>) -> Result<Prepared>,
) -> Kernel<NullDevice> {
    Kernel::new(op, version, prepare)
        .types(TYPEVARS)
        .operands(INPUTS, OUTPUTS)
        .inputs(0, DEVBAY_VARIADIC)
        .outputs(0, DEVBAY_VARIADIC)
        .flags(0)
        .doc("takes everything, computes nothing")
}

const fn onnx(op: &'static str, version: u32) -> Kernel<NullDevice> {
    kernel(op, version, prepare)
}

/// An op whose results are as large as its data say: it says that they are empty.
const fn data_shape(op: &'static str, version: u32) -> Kernel<NullDevice> {
    kernel(op, version, prepare_extents).flags(DEVBAY_KERNEL_DATA_SHAPE)
}

/// An op that the host's passes make (docs/fused-ops.md).
const fn fused(op: &'static str) -> Kernel<NullDevice> {
    kernel(op, 1, prepare).domain("devbay")
}

/// The kernels, sorted by domain and name.
pub const KERNELS: &[Kernel<NullDevice>] = &[
    onnx("Abs", 13),
    onnx("Acos", 22),
    onnx("Acosh", 22),
    onnx("Add", 14),
    onnx("AffineGrid", 20),
    onnx("And", 7),
    onnx("ArgMax", 13),
    onnx("ArgMin", 13),
    onnx("Asin", 22),
    onnx("Asinh", 22),
    onnx("Atan", 22),
    onnx("Atanh", 22),
    onnx("Attention", 25),
    onnx("AveragePool", 22),
    onnx("BatchNormalization", 15),
    onnx("BitShift", 28),
    onnx("BitwiseAnd", 18),
    onnx("BitwiseNot", 18),
    onnx("BitwiseOr", 18),
    onnx("BitwiseXor", 18),
    onnx("BlackmanWindow", 17),
    onnx("Cast", 28),
    onnx("CastLike", 25),
    onnx("CausalConvWithState", 27),
    onnx("Ceil", 13),
    onnx("Celu", 28),
    onnx("CenterCropPad", 18),
    onnx("Clip", 13),
    onnx("Col2Im", 18),
    data_shape("Compress", 28),
    onnx("Concat", 13),
    onnx("ConstantOfShape", 25),
    onnx("Conv", 22),
    onnx("ConvInteger", 10),
    onnx("ConvTranspose", 22),
    onnx("Cos", 22),
    onnx("Cosh", 22),
    onnx("CumProd", 26),
    onnx("CumSum", 14),
    onnx("DFT", 20),
    onnx("DeformConv", 22),
    onnx("DepthToSpace", 28),
    onnx("DequantizeLinear", 28),
    onnx("Det", 22),
    onnx("Div", 14),
    onnx("Dropout", 22),
    onnx("DynamicQuantizeLinear", 11),
    onnx("Einsum", 28),
    onnx("Elu", 22),
    onnx("Equal", 19),
    onnx("Erf", 13),
    onnx("Exp", 13),
    onnx("Expand", 13),
    onnx("EyeLike", 22),
    onnx("Floor", 13),
    onnx("GRU", 22),
    onnx("Gather", 13),
    onnx("GatherElements", 13),
    onnx("GatherND", 13),
    onnx("Gelu", 20),
    onnx("Gemm", 13),
    onnx("GlobalAveragePool", 22),
    onnx("GlobalLpPool", 22),
    onnx("GlobalMaxPool", 22),
    onnx("Greater", 13),
    onnx("GreaterOrEqual", 16),
    onnx("GridSample", 22),
    onnx("GroupNormalization", 21),
    onnx("HammingWindow", 17),
    onnx("HannWindow", 17),
    onnx("HardSigmoid", 22),
    onnx("HardSwish", 22),
    onnx("Hardmax", 13),
    onnx("InstanceNormalization", 22),
    onnx("IsInf", 20),
    onnx("IsNaN", 20),
    onnx("LRN", 13),
    onnx("LSTM", 22),
    onnx("LayerNormalization", 17),
    onnx("LeakyRelu", 16),
    onnx("Less", 13),
    onnx("LessOrEqual", 16),
    onnx("LinearAttention", 27),
    onnx("Log", 13),
    onnx("LogSoftmax", 13),
    onnx("LpNormalization", 22),
    onnx("LpPool", 22),
    onnx("MatMul", 13),
    onnx("MatMulInteger", 10),
    onnx("Max", 13),
    onnx("MaxPool", 22),
    onnx("MaxUnpool", 22),
    onnx("Mean", 13),
    onnx("MeanVarianceNormalization", 13),
    onnx("MelWeightMatrix", 17),
    onnx("Min", 13),
    onnx("Mish", 22),
    onnx("Mod", 28),
    onnx("Mul", 14),
    onnx("Neg", 13),
    onnx("NegativeLogLikelihoodLoss", 22),
    data_shape("NonMaxSuppression", 11),
    data_shape("NonZero", 13),
    onnx("Not", 1),
    onnx("OneHot", 28),
    onnx("Or", 7),
    onnx("PRelu", 16),
    onnx("Pad", 25),
    onnx("Pow", 15),
    onnx("QLinearConv", 10),
    onnx("QLinearMatMul", 21),
    onnx("QuantizeLinear", 28),
    onnx("RMSNormalization", 23),
    onnx("RNN", 22),
    onnx("Range", 27),
    onnx("Reciprocal", 13),
    onnx("ReduceL1", 18),
    onnx("ReduceL2", 18),
    onnx("ReduceLogSum", 28),
    onnx("ReduceLogSumExp", 28),
    onnx("ReduceMax", 20),
    onnx("ReduceMean", 18),
    onnx("ReduceMin", 20),
    onnx("ReduceProd", 18),
    onnx("ReduceSum", 13),
    onnx("ReduceSumSquare", 18),
    onnx("Relu", 14),
    onnx("Resize", 19),
    onnx("ReverseSequence", 28),
    onnx("RoiAlign", 22),
    onnx("RotaryEmbedding", 23),
    onnx("Round", 22),
    onnx("STFT", 17),
    onnx("ScatterElements", 18),
    onnx("ScatterND", 18),
    onnx("Selu", 22),
    onnx("Shrink", 9),
    onnx("Sigmoid", 13),
    onnx("Sign", 13),
    onnx("Sin", 22),
    onnx("Sinh", 22),
    onnx("Slice", 13),
    onnx("Softmax", 13),
    onnx("SoftmaxCrossEntropyLoss", 13),
    onnx("Softplus", 22),
    onnx("Softsign", 22),
    onnx("SpaceToDepth", 28),
    onnx("Split", 18),
    onnx("Sqrt", 13),
    onnx("Sub", 14),
    onnx("Sum", 13),
    onnx("SwiGLU", 28),
    onnx("Swish", 24),
    onnx("Tan", 22),
    onnx("Tanh", 13),
    onnx("TensorScatter", 24),
    onnx("TfIdfVectorizer", 9),
    onnx("ThresholdedRelu", 22),
    onnx("Tile", 13),
    onnx("TopK", 24),
    onnx("Transpose", 25),
    onnx("Trilu", 14),
    data_shape("Unique", 28),
    onnx("Where", 16),
    onnx("Xor", 7),
    fused("FusedConv"),
    fused("FusedElementwise"),
    fused("FusedGemm"),
    fused("FusedMatMul"),
];
