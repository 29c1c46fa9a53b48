"""Convolutions and products of 8-bit integers beside onnxruntime and OpenVINO, as one table.

    integers.py [FILTER ...] [--threads N] [--seconds S] [--turns N] [--no-openvino] [--devbay PROGRAM] [--plugin LIBRARY]

Each row is a model of its own: QLinearConv, four of them one after the other where the result can be the next one's image, or
one MatMulInteger or QLinearMatMul. Bytes of the left are unsigned, weights are signed with a scale for each filter or column.
The runtimes take turns; the table has the least time of each in milliseconds, devbay's share of the others', and the greatest
difference from onnxruntime's result, 0 if all bits are equal. The last column is the share of the most multiply-adds of bytes
that the threads can do, as a loop of the instruction `vpdpbusd` does them, which `cc` compiles for the measurement.
"""

import ctypes
import dataclasses
import pathlib
import subprocess
import tempfile

import beside
import numpy as np
from onnx import TensorProto, helper, numpy_helper

# Layers that follow each other where they can.
DEPTH = 4

# Twelve sums in registers, as many as two instructions at once need.
PEAK = """
#include <time.h>
#define DOT(i) "vpdpbusd %%zmm30, %%zmm31, %%zmm" #i "\\n"
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
double peak(void) {
    double best = 0;
    for (int turn = 0; turn < 100; turn++) {
        double begin = now();
        for (int n = 0; n < 50000; n++)
            __asm__ volatile(DOT(0) DOT(1) DOT(2) DOT(3) DOT(4) DOT(5) DOT(6) DOT(7) DOT(8) DOT(9) DOT(10) DOT(11) ::: "zmm0",
                "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11");
        double rate = 50000.0 * 12 * 128 / (now() - begin);
        if (rate > best) best = rate;
    }
    return best;
}
"""


def peak():
    """Operations a nanosecond of a thread, two for a multiply-add; NaN on processors without AVX512-VNNI."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = pathlib.Path(folder, "peak.c"), pathlib.Path(folder, "peak.so")
        source.write_text(PEAK)
        if "avx512_vnni" not in pathlib.Path("/proc/cpuinfo").read_text():
            return float("nan")
        options = ["-O2", "-mavx512f", "-mavx512vnni", "-shared", "-fPIC"]
        subprocess.run(["cc", *options, str(source), "-o", str(library)], check=True)
        function = ctypes.CDLL(str(library)).peak
        function.restype = ctypes.c_double
        return function()


def constant(constants, name, value):
    """Adds a constant, and returns its name."""
    constants.append(numpy_helper.from_array(np.asarray(value), name))
    return name


def model_of(name, nodes, constants, x, y):
    """A model of one input and one output."""
    shape, dtype = y
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)],
        [helper.make_tensor_value_info("y", dtype, shape)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@dataclasses.dataclass
class Convolution:
    """A QLinearConv: images of `spatial`, `channels` in and out."""

    name: str
    channels: tuple
    spatial: tuple
    kernel: tuple
    stride: int = 1
    groups: int = 1
    dilation: int = 1
    batch: int = 1

    def pads(self):
        return [(k - 1) * self.dilation // 2 if k < 16 else 0 for k in self.kernel]

    def depth(self):
        return DEPTH if self.channels[0] == self.channels[1] and self.stride == 1 else 1

    def output(self):
        """Extents of the result."""
        each = zip(self.spatial, self.kernel, self.pads())
        return [(n + 2 * p - (k - 1) * self.dilation - 1) // self.stride + 1 for n, k, p in each]

    def operations(self):
        c_in, c_out = self.channels
        terms = c_in // self.groups * np.prod(self.kernel)
        return int(2 * self.depth() * self.batch * c_out * terms * np.prod(self.output()))

    def make(self):
        rng = np.random.default_rng(7)
        c_in, c_out = self.channels
        terms = c_in // self.groups * np.prod(self.kernel)
        x = rng.integers(0, 256, (self.batch, c_in, *self.spatial), dtype=np.uint8)
        nodes, constants = [], []
        scale = constant(constants, "scale", np.float32(0.02))
        zero = constant(constants, "zero", np.uint8(121))
        depth = self.depth()
        for i in range(depth):
            filters = rng.integers(-127, 128, (c_out, c_in // self.groups, *self.kernel)).astype(np.int8)
            # Results of each layer use the whole range.
            filter_scales = rng.uniform(0.5, 1.5, c_out) / np.sqrt(terms) / 140
            operands = [
                "x" if i == 0 else f"x{i}",
                scale,
                zero,
                constant(constants, f"w{i}", filters),
                constant(constants, f"w_scale{i}", filter_scales.astype(np.float32)),
                constant(constants, f"w_zero{i}", np.zeros(c_out, np.int8)),
                scale,
                zero,
                constant(constants, f"b{i}", rng.integers(-2000, 2000, c_out).astype(np.int32)),
            ]
            rank = len(self.spatial)
            attributes = {
                "strides": [self.stride] * rank,
                "dilations": [self.dilation] * rank,
                "group": self.groups,
                "pads": self.pads() * 2,
            }
            y = "y" if i == depth - 1 else f"x{i + 1}"
            nodes.append(helper.make_node("QLinearConv", operands, [y], **attributes))
        y = [self.batch, c_out, *self.output()], TensorProto.UINT8
        return model_of("convolution", nodes, constants, x, y), {"x": x}


@dataclasses.dataclass
class Product:
    """A product of `m` rows by `k` by `n`."""

    op: str
    m: int
    k: int
    n: int

    @property
    def name(self):
        return f"{self.op}, {self.m} by {self.k} by {self.n}"

    def operations(self):
        return 2 * self.m * self.k * self.n

    def make(self):
        rng = np.random.default_rng(7)
        x = rng.integers(0, 256, (self.m, self.k), dtype=np.uint8)
        constants = []
        w = constant(constants, "w", rng.integers(-127, 128, (self.k, self.n)).astype(np.int8))
        zero = constant(constants, "zero", np.uint8(121))
        w_zero = constant(constants, "w_zero", np.zeros(self.n, np.int8))
        if self.op == "MatMulInteger":
            operands, dtype = ["x", w, zero, w_zero], TensorProto.INT32
        else:
            scale = constant(constants, "scale", np.float32(0.02))
            of_columns = (rng.uniform(0.5, 1.5, self.n) / np.sqrt(self.k) / 140).astype(np.float32)
            w_scale = constant(constants, "w_scale", of_columns)
            operands, dtype = ["x", scale, zero, w, w_scale, w_zero, scale, zero], TensorProto.UINT8
        node = helper.make_node(self.op, operands, ["y"])
        return model_of("product", [node], constants, x, ([self.m, self.n], dtype)), {"x": x}


CONVOLUTIONS = [
    Convolution("first 7x7/2, 3 to 64, 224", (3, 64), (224, 224), (7, 7), 2),
    Convolution("first 3x3/2, 3 to 32, 224", (3, 32), (224, 224), (3, 3), 2),
    Convolution("first 16x16/16, 3 to 768, 224", (3, 768), (224, 224), (16, 16), 16),
    Convolution("1x1, 64, 56", (64, 64), (56, 56), (1, 1)),
    Convolution("1x1, 256 to 64, 56", (256, 64), (56, 56), (1, 1)),
    Convolution("1x1, 384, 14", (384, 384), (14, 14), (1, 1)),
    Convolution("1x1, 960 to 160, 7", (960, 160), (7, 7), (1, 1)),
    Convolution("1x1/2, 256 to 512, 56", (256, 512), (56, 56), (1, 1), 2),
    Convolution("3x3, 16, 112", (16, 16), (112, 112), (3, 3)),
    Convolution("3x3, 64, 56", (64, 64), (56, 56), (3, 3)),
    Convolution("3x3, 128, 28", (128, 128), (28, 28), (3, 3)),
    Convolution("3x3, 256, 14", (256, 256), (14, 14), (3, 3)),
    Convolution("3x3, 512, 7", (512, 512), (7, 7), (3, 3)),
    Convolution("3x3/2, 64 to 128, 56", (64, 128), (56, 56), (3, 3), 2),
    Convolution("3x3/2, 256 to 512, 14", (256, 512), (14, 14), (3, 3), 2),
    Convolution("3x3 dilated 2, 128, 28", (128, 128), (28, 28), (3, 3), dilation=2),
    Convolution("5x5, 32, 28", (32, 32), (28, 28), (5, 5)),
    Convolution("grouped 3x3, 32 groups of 8, 28", (256, 256), (28, 28), (3, 3), groups=32),
    Convolution("depthwise 3x3, 144, 56", (144, 144), (56, 56), (3, 3), groups=144),
    Convolution("depthwise 3x3/2, 96, 112", (96, 96), (112, 112), (3, 3), 2, groups=96),
    Convolution("depthwise 5x5, 672, 14", (672, 672), (14, 14), (5, 5), groups=672),
    Convolution("depthwise 5x5/2, 240, 28", (240, 240), (28, 28), (5, 5), 2, groups=240),
    Convolution("depthwise 3x3, 960, 7", (960, 960), (7, 7), (3, 3), groups=960),
    Convolution("1-D 3, 80 to 512, 1500", (80, 512), (1500,), (3,)),
]

PRODUCTS = [
    Product(op, m, k, n)
    for op in ("MatMulInteger", "QLinearMatMul")
    for k, n in ((64, 64), (256, 1024), (1024, 1024), (1024, 4096), (4096, 1024))
    for m in (1, 4, 32, 512)
]


def main():
    arguments = beside.parser(__doc__).parse_args()
    peak_ns = peak() * arguments.threads
    print(f"peak: {peak_ns:.0f} Gop/s of bytes on {arguments.threads} threads")
    cases = [(case.name, case.make, case.operations()) for case in (*CONVOLUTIONS, *PRODUCTS)]
    beside.table(cases, arguments, peak_ns)


if __name__ == "__main__":
    main()
