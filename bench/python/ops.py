"""Single ops of many shapes beside onnxruntime and OpenVINO, as one table.

    ops.py [FILTER ...] [--threads N] [--seconds S] [--turns N] [--devbay PROGRAM] [--plugin LIBRARY]

Each row is a model of one op, or of the few that exporters write for one. The runtimes take turns; the table has the least
time of each in milliseconds, devbay's share of the others', and the greatest difference from onnxruntime's result as a part of
its largest number. Inputs are normal numbers of a fixed seed.
"""

import beside
import numpy as np
import onnx
from onnx import helper, numpy_helper


class Case:
    """A model of some nodes: `x` is computed, all other operands are constants unless they are inputs too."""

    def __init__(self, name, nodes, inputs, constants=None, opset=18):
        self.name, self.nodes, self.inputs, self.constants, self.opset = name, nodes, inputs, constants or {}, opset

    def make(self):
        rng = np.random.default_rng(11)

        def fill(value):
            if isinstance(value, tuple):
                return rng.standard_normal(value).astype(np.float32)
            return value(rng) if callable(value) else value

        inputs = {name: fill(value) for name, value in self.inputs.items()}
        constants = [numpy_helper.from_array(fill(value), name) for name, value in self.constants.items()]
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in inputs.items()
        ]
        graph = helper.make_graph(self.nodes, "op", infos, [helper.make_empty_tensor_value_info("y")], constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)
        return onnx.shape_inference.infer_shapes(model), inputs


def ints(*values):
    return np.array(values, np.int64)


def indices(shape, below):
    return lambda rng: rng.integers(0, below, shape)


def uniform(low, high, shape):
    return lambda rng: rng.uniform(low, high, shape).astype(np.float32)


def op(kind, operands="x", **attributes):
    return helper.make_node(kind, operands.split(" "), ["y"], **attributes)


def unary(kind, shape, **attributes):
    return Case(f"{kind} {'x'.join(map(str, shape))}", [op(kind, **attributes)], {"x": shape})


def binary(kind, a, b):
    name = f"{kind} {'x'.join(map(str, a))}, {'x'.join(map(str, b))}"
    return Case(name, [op(kind, "x z")], {"x": a, "z": b})


def product(a, b, constant=True):
    name = f"MatMul {'x'.join(map(str, a))}, {'x'.join(map(str, b))}{'' if constant else ', computed'}"
    nodes, z = [op("MatMul", "x z")], {"z": b}
    return Case(name, nodes, {"x": a}, z) if constant else Case(name, nodes, {"x": a} | z)


def reduction(kind, shape, *axes):
    name = f"{kind} {'x'.join(map(str, shape))} over {','.join(map(str, axes))}"
    return Case(name, [op(kind, "x axes", keepdims=0)], {"x": shape}, {"axes": ints(*axes)})


def permuted(shape, *perm):
    return Case(
        f"Transpose {'x'.join(map(str, shape))} to {','.join(map(str, perm))}", [op("Transpose", perm=perm)], {"x": shape}
    )


def resize(name, shape, scales, **attributes):
    scales = np.array(scales, np.float32)
    return Case(f"Resize {name} {'x'.join(map(str, shape))}", [op("Resize", "x  s", **attributes)], {"x": shape}, {"s": scales})


def recurrent(kind, n_gates, steps, batch, n_in, n, direction):
    d = 2 if direction == "bidirectional" else 1
    weights = {"w": (d, n_gates * n, n_in), "r": (d, n_gates * n, n)}
    node = helper.make_node(kind, ["x", "w", "r"], ["y"], hidden_size=n, direction=direction)
    scaled = {k: (lambda rng, v=v: (rng.standard_normal(v) * 0.1).astype(np.float32)) for k, v in weights.items()}
    return Case(f"{kind} {steps}x{batch}x{n_in}, {n} units, {direction}", [node], {"x": (steps, batch, n_in)}, scaled)


SEQUENCE = (1, 128, 768)
IMAGE = (1, 64, 56, 56)

CASES = [
    *(product((m, k), (k, n)) for m, k, n in [
        (1, 768, 768), (1, 768, 3072), (1, 4096, 4096), (4, 512, 512), (8, 1024, 1024), (32, 256, 256), (64, 64, 64),
        (128, 768, 768), (128, 768, 3072), (128, 3072, 768), (197, 192, 576), (512, 512, 512), (1000, 10, 10),
        (1000, 3, 64), (7, 33, 65), (128, 768, 2), (2048, 64, 64),
    ]),
    *(product(a, b, constant=False) for a, b in [
        ((12, 128, 64), (12, 64, 128)), ((12, 128, 128), (12, 128, 64)), ((64, 49, 32), (64, 32, 49)),
        ((256, 256), (256, 256)), ((1, 1024), (1024, 512)), ((8, 16, 16), (8, 16, 16)),
    ]),
    Case("Gemm 64x512, 512x512 transposed", [op("Gemm", "x w b", transB=1)], {"x": (64, 512)}, {"w": (512, 512), "b": (512,)}),
    *(unary(kind, SEQUENCE) for kind in
      ["Relu", "Sigmoid", "Tanh", "Exp", "Erf", "Sqrt", "Abs", "Softplus", "HardSwish", "Elu", "Sin", "Cos", "Tan", "Atan", "Sinh", "Asinh",
       "Floor", "Neg"]),
    Case("Asin 1x128x768", [op("Asin")], {"x": uniform(-1, 1, SEQUENCE)}), Case("Acos 1x128x768", [op("Acos")], {"x": uniform(-1, 1, SEQUENCE)}),
    Case("Sin of large 1x128x768", [op("Sin")], {"x": uniform(-1e5, 1e5, SEQUENCE)}),
    Case("Log 1x128x768", [helper.make_node("Abs", ["x"], ["a"]), op("Log", "a")], {"x": SEQUENCE}),
    Case("Pow 2 1x128x768", [op("Pow", "x two")], {"x": SEQUENCE}, {"two": np.float32(2)}),
    Case("Clip 1x128x768", [op("Clip", "x lo hi")], {"x": SEQUENCE}, {"lo": np.float32(-1), "hi": np.float32(1)}),
    Case("Cast to int32 1x128x768", [op("Cast", to=onnx.TensorProto.INT32)], {"x": SEQUENCE}),
    Case("Cast to f16 1x128x768", [op("Cast", to=onnx.TensorProto.FLOAT16)], {"x": SEQUENCE}),
    Case("Cast to f16 1000", [op("Cast", to=onnx.TensorProto.FLOAT16)], {"x": (1000,)}),
    Case("Cast f16 to f32 1x128x768", [op("Cast", to=onnx.TensorProto.FLOAT)], {"x": lambda rng: rng.standard_normal(SEQUENCE).astype(np.float16)}),
    *(binary(kind, SEQUENCE, SEQUENCE) for kind in ["Add", "Mul", "Div", "Max", "Less"]),
    binary("Add", SEQUENCE, (768,)), binary("Add", IMAGE, (64, 1, 1)), binary("Mul", (1, 256, 14, 14), (1, 256, 1, 1)),
    binary("Add", (128, 1), (1, 128)), binary("Sub", (1, 12, 128, 128), (1, 1, 1, 128)), binary("Pow", SEQUENCE, SEQUENCE),
    Case("Where 1x12x128x128", [op("Where", "c x z")], {"c": lambda rng: rng.random((1, 1, 128, 128)) < 0.5, "x": (1, 12, 128, 128), "z": (1,)}),
    Case("Where alike 1x128x768", [op("Where", "c x z")], {"c": lambda rng: rng.random(SEQUENCE) < 0.5, "x": SEQUENCE, "z": SEQUENCE}),
    Case("Where rows 1000x64", [op("Where", "c x z")], {"c": lambda rng: rng.random((1000, 1)) < 0.5, "x": (1000, 64), "z": (64,)}),
    *(Case(f"Softmax {'x'.join(map(str, shape))} {axis}", [op("Softmax", axis=axis)], {"x": shape})
      for shape, axis in [((12, 128, 128), -1), ((1, 1000), -1), ((64, 10), -1), ((1, 21, 64, 64), 1), ((8, 6, 49, 49), -1), ((1, 50257), -1), ((12, 197, 197), -1), ((10000, 3), -1), ((8, 64, 512), -1)]),
    *(Case(f"LogSoftmax {'x'.join(map(str, shape))}", [op("LogSoftmax", axis=-1)], {"x": shape}) for shape in [(128, 1000), (500, 29), (4, 50257)]),
    *(Case(f"LayerNormalization {'x'.join(map(str, shape))}", [op("LayerNormalization", "x s b", axis=-1)], {"x": shape}, {"s": (shape[-1],), "b": (shape[-1],)})
      for shape in [SEQUENCE, (196, 192), (3136, 96), (1, 4096)]),
    Case("InstanceNormalization 1x64x56x56", [op("InstanceNormalization", "x s b")], {"x": IMAGE}, {"s": (64,), "b": (64,)}),
    Case("BatchNormalization 1x64x56x56", [op("BatchNormalization", "x s b m v")], {"x": IMAGE}, {"s": (64,), "b": (64,), "m": (64,), "v": lambda rng: rng.random(64).astype(np.float32) + 0.5}),
    Case("LpNormalization 128x512", [op("LpNormalization", axis=-1)], {"x": (128, 512)}),
    Case("LpNormalization 1 128x512", [op("LpNormalization", axis=-1, p=1)], {"x": (128, 512)}),
    Case("LpNormalization 1x64x56x56 1", [op("LpNormalization", axis=1)], {"x": IMAGE}),
    *(reduction(kind, shape, *axes) for kind, shape, axes in [
        ("ReduceMean", SEQUENCE, (2,)), ("ReduceMean", IMAGE, (2, 3)), ("ReduceMean", SEQUENCE, (1,)), ("ReduceSum", (1000, 1000), (0,)),
        ("ReduceMax", (64, 1000), (1,)), ("ReduceMax", (1, 80, 80, 64), (3,)), ("ReduceProd", (256, 256), (1,)), ("ReduceL2", SEQUENCE, (2,)),
        ("ReduceLogSumExp", (128, 1000), (1,)), ("ReduceSum", (32, 32, 32, 32), (0, 2)), ("ReduceMin", (8, 100000), (1,)),
        ("ReduceMax", (5000, 7), (1,)), ("ReduceMin", (1000, 100), (1,)), ("ReduceMax", IMAGE, (2, 3)),
    ]),
    *(Case(f"ArgMax {'x'.join(map(str, shape))} {axis}", [op("ArgMax", axis=axis, keepdims=0)], {"x": shape})
      for shape, axis in [((128, 1000), 1), ((1, 21, 128, 128), 1), ((1, 50257), 1)]),
    Case("TopK 5 of 128x1000", [helper.make_node("TopK", ["x", "k"], ["y", "i"])], {"x": (128, 1000)}, {"k": ints(5)}),
    Case("TopK 100 of 1x8400", [helper.make_node("TopK", ["x", "k"], ["y", "i"])], {"x": (1, 8400)}, {"k": ints(100)}),
    Case("TopK 300 of 1x8400", [helper.make_node("TopK", ["x", "k"], ["y", "i"])], {"x": (1, 8400)}, {"k": ints(300)}),
    Case("TopK 1 of 1000x80", [helper.make_node("TopK", ["x", "k"], ["y", "i"])], {"x": (1000, 80)}, {"k": ints(1)}),
    Case("TopK smallest 16 of 64x2048", [helper.make_node("TopK", ["x", "k"], ["y", "i"], largest=0)], {"x": (64, 2048)}, {"k": ints(16)}),
    Case("TopK 10 of 1x1000x64 1", [helper.make_node("TopK", ["x", "k"], ["y", "i"], axis=1)], {"x": (1, 1000, 64)}, {"k": ints(10)}),
    Case("TopK 500 of 64x1000", [helper.make_node("TopK", ["x", "k"], ["y", "i"])], {"x": (64, 1000)}, {"k": ints(500)}),
    Case("CumSum 128x1000 1", [op("CumSum", "x a")], {"x": (128, 1000)}, {"a": np.int64(1)}),
    Case("CumSum 1000x128 0", [op("CumSum", "x a")], {"x": (1000, 128)}, {"a": np.int64(0)}),
    *(permuted(shape, *perm) for shape, perm in [
        ((1, 128, 12, 64), (0, 2, 1, 3)), ((1, 12, 128, 64), (0, 1, 3, 2)), ((1, 64, 56, 56), (0, 2, 3, 1)), ((1, 56, 56, 64), (0, 3, 1, 2)),
        ((512, 512), (1, 0)), ((1, 8, 7, 8, 7, 96), (0, 1, 3, 2, 4, 5)), ((16, 8, 4, 32, 4), (4, 1, 2, 0, 3)), ((3, 1000, 7), (2, 1, 0)),
    ]),
    Case("Concat 1x64x56x56 1", [op("Concat", "x z", axis=1)], {"x": IMAGE, "z": IMAGE}),
    Case("Concat 1x128x768 2", [op("Concat", "x z", axis=2)], {"x": SEQUENCE, "z": SEQUENCE}),
    Case("Concat 1000x3 1", [op("Concat", "x z", axis=1)], {"x": (1000, 3), "z": (1000, 1)}),
    Case("Slice 1x64x56x56 by 2", [op("Slice", "x b e a s")], {"x": IMAGE}, {"b": ints(0, 0), "e": ints(56, 56), "a": ints(2, 3), "s": ints(2, 2)}),
    Case("Slice 1x128x768", [op("Slice", "x b e a")], {"x": SEQUENCE}, {"b": ints(100), "e": ints(600), "a": ints(2)}),
    Case("Split 1x128x2304", [helper.make_node("Split", ["x"], ["y", "u", "v"], axis=2, num_outputs=3)], {"x": (1, 128, 2304)}),
    Case("Pad reflect 1x64x56x56", [op("Pad", "x p", mode="reflect")], {"x": IMAGE}, {"p": ints(0, 0, 1, 1, 0, 0, 1, 1)}),
    Case("Pad constant 1x64x56x56", [op("Pad", "x p")], {"x": IMAGE}, {"p": ints(0, 0, 1, 1, 0, 0, 1, 1)}),
    Case("Tile 64x64 by 8x8", [op("Tile", "x n")], {"x": (64, 64)}, {"n": ints(8, 8)}),
    Case("Expand 1x1x768 to 128", [op("Expand", "x n")], {"x": (1, 1, 768)}, {"n": ints(1, 128, 768)}),
    Case("Gather rows 128 of 30522x768", [op("Gather", "x i")], {"i": indices((1, 128), 30522)}, {"x": (30522, 768)}),
    Case("Gather 1000 columns", [op("Gather", "x i", axis=1)], {"x": (256, 1000), "i": indices((500,), 1000)}),
    Case("GatherElements 256x1000", [op("GatherElements", "x i", axis=1)], {"x": (256, 1000), "i": indices((256, 500), 1000)}),
    Case("GatherElements 256x1000 0", [op("GatherElements", "x i", axis=0)], {"x": (256, 1000), "i": indices((100, 1000), 256)}),
    Case("GatherElements 1x300x4 1", [op("GatherElements", "x i", axis=1)], {"x": (1, 8400, 4), "i": indices((1, 300, 4), 8400)}),
    Case("GatherND 5000", [op("GatherND", "x i")], {"x": (100, 100, 4), "i": indices((5000, 2), 100)}),
    Case("ScatterND 5000", [op("ScatterND", "x i u")], {"x": (100, 100, 4), "i": indices((5000, 2), 100), "u": (5000, 4)}),
    Case("ScatterElements 256x500", [op("ScatterElements", "x i u", axis=1)], {"x": (256, 1000), "i": indices((256, 500), 1000), "u": (256, 500)}),
    Case("OneHot 1000 of 64", [op("OneHot", "i d v")], {"i": indices((1000,), 64)}, {"d": np.int64(64), "v": np.array([0, 1], np.float32)}),
    Case("NonZero 256x256", [op("NonZero")], {"x": lambda rng: (rng.random((256, 256)) < 0.3).astype(np.float32)}),
    resize("nearest 2x", (1, 64, 40, 40), (1, 1, 2, 2), mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    resize("nearest 2x", (1, 256, 13, 13), (1, 1, 2, 2), mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    resize("nearest 3x", (1, 64, 40, 40), (1, 1, 3, 3), mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    resize("nearest 1.5x", (1, 64, 40, 40), (1, 1, 1.5, 1.5), mode="nearest"),
    resize("linear 2x", (1, 64, 40, 40), (1, 1, 2, 2), mode="linear"),
    resize("linear to half", (1, 3, 480, 640), (1, 1, 0.5, 0.5), mode="linear"),
    resize("cubic 2x", (1, 3, 128, 128), (1, 1, 2, 2), mode="cubic"),
    *(Case(f"GridSample {mode} {outside} {'x'.join(map(str, shape))}", [op("GridSample", "x g", mode=mode, padding_mode=outside)], {"x": shape, "g": uniform(-1.1, 1.1, (shape[0], n, n, 2))}, opset=16)
      for mode, outside, shape, n in [("bilinear", "zeros", IMAGE, 56), ("bilinear", "border", (2, 3, 256, 256), 200), ("nearest", "zeros", IMAGE, 56),
                                      ("bicubic", "reflection", (1, 16, 64, 64), 64), ("bilinear", "zeros", (8, 32, 40, 40), 10)]),
    Case("MaxPool 3x3/2 1x64x112x112", [op("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])], {"x": (1, 64, 112, 112)}),
    Case("MaxPool 2x2/2 1x64x56x56", [op("MaxPool", kernel_shape=[2, 2], strides=[2, 2])], {"x": IMAGE}),
    Case("MaxPool 5x5 1x256x20x20", [op("MaxPool", kernel_shape=[5, 5], pads=[2, 2, 2, 2])], {"x": (1, 256, 20, 20)}),
    Case("AveragePool 3x3 1x64x56x56", [op("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1])], {"x": IMAGE}),
    Case("AveragePool 2x2/2 1x64x56x56", [op("AveragePool", kernel_shape=[2, 2], strides=[2, 2])], {"x": IMAGE}),
    Case("GlobalAveragePool 1x512x7x7", [op("GlobalAveragePool")], {"x": (1, 512, 7, 7)}),
    Case("DepthToSpace 1x128x32x32", [op("DepthToSpace", blocksize=2)], {"x": (1, 128, 32, 32)}),
    Case("Einsum bhid,bhjd", [op("Einsum", "x z", equation="bhid,bhjd->bhij")], {"x": (1, 12, 128, 64), "z": (1, 12, 128, 64)}),
    Case("Gelu of ops 1x128x3072", [
        helper.make_node("Div", ["x", "root"], ["a"]), helper.make_node("Erf", ["a"], ["b"]), helper.make_node("Add", ["b", "one"], ["c"]),
        helper.make_node("Mul", ["x", "c"], ["d"]), op("Mul", "d half")],
        {"x": (1, 128, 3072)}, {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}),
    recurrent("LSTM", 4, 50, 1, 128, 128, "forward"), recurrent("LSTM", 4, 50, 8, 256, 256, "bidirectional"),
    recurrent("GRU", 3, 100, 1, 64, 256, "forward"), recurrent("RNN", 1, 64, 4, 64, 64, "forward"),
]


def main():
    beside.table([(case.name, case.make) for case in CASES], beside.parser(__doc__).parse_args())


if __name__ == "__main__":
    main()
