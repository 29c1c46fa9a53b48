"""Convolutions of many shapes beside onnxruntime and OpenVINO, as one table: shapes that no model of ours has, too.

    shapes.py [FILTER ...] [--channels-last] [--threads N] [--seconds S] [--turns N] [--devbay PROGRAM] [--plugin LIBRARY]

Each shape is a model of its own: one layer with a Relu, or a few of them one after the other where the result can be
the next one's image. A GlobalAveragePool ends it, so that images behind the first layer have the runtime's own order, as they
have within a model. The runtimes take turns; the table has the least time of each in milliseconds, devbay's share of the
others', and the greatest difference from onnxruntime's result as a part of its largest number. Weights and images are normal
numbers of a fixed seed.
"""

import dataclasses

import beside
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# Layers that follow each other where they can.
DEPTH = 4


@dataclasses.dataclass
class Shape:
    """A convolution: images of `spatial`, `channels` in and out."""

    name: str
    channels: tuple
    spatial: tuple
    kernel: tuple
    stride: int = 1
    groups: int = 1
    dilation: int = 1
    batch: int = 1
    transposed: bool = False

    def layer(self, x, y, weights, biases):
        """The nodes of one layer."""
        pads = [(k - 1) * self.dilation // 2 for k in self.kernel]
        rank = len(self.spatial)
        conv = helper.make_node(
            "ConvTranspose" if self.transposed else "Conv",
            [x, weights, biases],
            [y + "_conv"],
            strides=[self.stride] * rank,
            dilations=[self.dilation] * rank,
            group=self.groups,
            pads=pads + pads,
        )
        return [conv, helper.make_node("Relu", [y + "_conv"], [y])]

    def model(self, rng, channels_last):
        """The model, and its input, whose channels come last or second."""
        c_in, c_out = self.channels
        first = c_in if self.transposed else c_out
        second = (c_out if self.transposed else c_in) // self.groups
        depth = DEPTH if c_in == c_out and self.stride == 1 else 1
        nodes, constants, first_image = [], [], "x"
        if channels_last:
            rank = len(self.spatial) + 2
            nodes.append(helper.make_node("Transpose", ["x"], ["x0"], perm=[0, rank - 1, *range(1, rank - 1)]))
            first_image = "x0"
        fan = second * np.prod(self.kernel)
        for i in range(depth):
            w = rng.standard_normal((first, second, *self.kernel)) / np.sqrt(fan)
            b = rng.standard_normal(c_out)
            names = f"w{i}", f"b{i}"
            constants += [
                numpy_helper.from_array(value.astype(np.float32), name) for name, value in zip(names, (w, b))
            ]
            nodes += self.layer(first_image if i == 0 else f"x{i}", f"x{i + 1}", *names)
        nodes.append(helper.make_node("GlobalAveragePool", [f"x{depth}"], ["y"]))
        x = rng.standard_normal((self.batch, c_in, *self.spatial)).astype(np.float32)
        if channels_last:
            x = np.ascontiguousarray(np.moveaxis(x, 1, -1))
        graph = helper.make_graph(
            nodes,
            self.name,
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            constants,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        return onnx.shape_inference.infer_shapes(model), x


SHAPES = [
    Shape("first 7x7/2, 3 to 64", (3, 64), (224, 224), (7, 7), 2),
    Shape("first 3x3/2, 3 to 32", (3, 32), (224, 224), (3, 3), 2),
    Shape("first 3x3/2, 3 to 16", (3, 16), (320, 320), (3, 3), 2),
    Shape("first 5x5/2, 3 to 24", (3, 24), (128, 128), (5, 5), 2),
    Shape("first 3x3, 1 to 32", (1, 32), (128, 128), (3, 3)),
    Shape("first 16x16/16, 3 to 768", (3, 768), (224, 224), (16, 16), 16),
    Shape("first 4x4/4, 3 to 96", (3, 96), (224, 224), (4, 4), 4),
    Shape("1x1, 64, 56", (64, 64), (56, 56), (1, 1)),
    Shape("1x1, 256 to 64, 56", (256, 64), (56, 56), (1, 1)),
    Shape("1x1, 384, 14", (384, 384), (14, 14), (1, 1)),
    Shape("1x1, 960 to 160, 7", (960, 160), (7, 7), (1, 1)),
    Shape("1x1/2, 256 to 512, 56", (256, 512), (56, 56), (1, 1), 2),
    Shape("3x3, 16, 112", (16, 16), (112, 112), (3, 3)),
    Shape("3x3, 64, 56", (64, 64), (56, 56), (3, 3)),
    Shape("3x3, 256, 14", (256, 256), (14, 14), (3, 3)),
    Shape("3x3, 512, 7", (512, 512), (7, 7), (3, 3)),
    Shape("3x3/2, 64 to 128, 56", (64, 128), (56, 56), (3, 3), 2),
    Shape("3x3 dilated 2, 128, 28", (128, 128), (28, 28), (3, 3), dilation=2),
    Shape("3x3, 20, 45", (20, 20), (45, 45), (3, 3)),
    Shape("3x3, 64, 13, batch 8", (64, 64), (13, 13), (3, 3), batch=8),
    Shape("3x3 to 1, 64, 96", (64, 1), (96, 96), (3, 3)),
    Shape("5x5, 32, 28", (32, 32), (28, 28), (5, 5)),
    Shape("7x1, 128, 17", (128, 128), (17, 17), (7, 1)),
    Shape("grouped 3x3, 32 groups of 4, 56", (128, 128), (56, 56), (3, 3), groups=32),
    Shape("grouped 3x3, 32 groups of 8, 28", (256, 256), (28, 28), (3, 3), groups=32),
    Shape("grouped 3x3, 32 groups of 16, 14", (512, 512), (14, 14), (3, 3), groups=32),
    Shape("grouped 3x3, 10 groups of 24, 28", (240, 240), (28, 28), (3, 3), groups=10),
    Shape("grouped 1x1, 3 groups of 80, 28", (240, 240), (28, 28), (1, 1), groups=3),
    Shape("grouped 1x1, 8 groups of 17, 20", (136, 136), (20, 20), (1, 1), groups=8),
    Shape("depthwise 3x3, 144, 56", (144, 144), (56, 56), (3, 3), groups=144),
    Shape("depthwise 3x3/2, 96, 112", (96, 96), (112, 112), (3, 3), 2, groups=96),
    Shape("depthwise 5x5, 672, 14", (672, 672), (14, 14), (5, 5), groups=672),
    Shape("depthwise 7x7, 96, 56", (96, 96), (56, 56), (7, 7), groups=96),
    Shape("depthwise 3x3 dilated 2, 160, 14", (160, 160), (14, 14), (3, 3), groups=160, dilation=2),
    Shape("depthwise twice, 64, 28", (64, 128), (28, 28), (3, 3), groups=64),
    Shape("1-D 3, 80 to 512, 1500", (80, 512), (1500,), (3,)),
    Shape("1-D 7, 192, 256", (192, 192), (256,), (7,)),
    Shape("1-D 11 dilated 3, 128, 2000", (128, 128), (2000,), (11,), dilation=3),
    Shape("1-D depthwise 31, 256, 400", (256, 256), (400,), (31,), groups=256),
    Shape("3-D 3x3x3, 32, 16", (32, 32), (16, 16, 16), (3, 3, 3)),
    Shape("3-D 3x3x3, 3 to 64, 16x56x56", (3, 64), (16, 56, 56), (3, 3, 3)),
    Shape("transposed 2x2/2, 64 to 32, 32", (64, 32), (32, 32), (2, 2), 2, transposed=True),
    Shape("transposed 4x4/2, 128 to 64, 28", (128, 64), (28, 28), (4, 4), 2, transposed=True),
    Shape("transposed 3x3/2, 24, 80", (24, 24), (80, 80), (3, 3), 2, transposed=True),
    Shape("transposed 3x3, 64, 28", (64, 64), (28, 28), (3, 3), transposed=True),
    Shape("transposed 1-D 16/8, 256 to 128, 128", (256, 128), (128,), (16,), 8, transposed=True),
]


def main():
    parser = beside.parser(__doc__)
    parser.add_argument("--channels-last", action="store_true", help="the input is NHWC, with a Transpose behind it")
    arguments = parser.parse_args()

    def make(shape):
        model, x = shape.model(np.random.default_rng(7), arguments.channels_last)
        return model, {"x": x}

    beside.table([(shape.name, lambda shape=shape: make(shape)) for shape in SHAPES], arguments)


if __name__ == "__main__":
    main()
