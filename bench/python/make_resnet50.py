"""Writes ResNet-50 v1.5 with made-up weights: `make_resnet50.py FOLDER` gives model.onnx and inputs.npz there.

Weights are He-normal and biases small, so that activations stay in the range where no number is denormal;
BatchNormalization stays a node of its own, as exporters leave it; the output is the logits. NumPy's legacy
generator gives the same numbers in every version, and so the same file.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# Width and number of blocks of each stage.
STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))


class Network:
    """Nodes and weights as they are added."""

    def __init__(self):
        self.random = np.random.RandomState(0)
        self.nodes = []
        self.weights = []
        self.n_convs = 0

    def node(self, op, inputs, output, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def weight(self, name, values):
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype=np.float32), name))
        return name

    def conv(self, x, n_in, n_out, kernel, stride, relu=True):
        """Conv, BatchNormalization and, but before an addition, Relu."""
        i = self.n_convs
        self.n_convs += 1
        random = self.random
        scale = np.sqrt(2 / (n_in * kernel * kernel))
        w = self.weight(f"w{i}", random.randn(n_out, n_in, kernel, kernel) * scale)
        parameters = [
            self.weight(f"scale{i}", 1 + 0.1 * random.randn(n_out)),
            self.weight(f"bias{i}", 0.1 * random.randn(n_out)),
            self.weight(f"mean{i}", 0.1 * random.randn(n_out)),
            self.weight(f"var{i}", random.uniform(0.8, 1.2, n_out)),
        ]
        pads = [(kernel - 1) // 2] * 4
        x = self.node(
            "Conv", [x, w], f"conv{i}", kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads, dilations=[1, 1], group=1
        )
        x = self.node("BatchNormalization", [x, *parameters], f"norm{i}", epsilon=1e-5)
        return self.node("Relu", [x], f"relu{i}") if relu else x

    def bottleneck(self, x, n_in, width, stride, first, name):
        """1x1, 3x3 (which strides: that is v1.5) and 1x1, added to the input or its projection."""
        y = self.conv(x, n_in, width, 1, 1)
        y = self.conv(y, width, width, 3, stride)
        y = self.conv(y, width, 4 * width, 1, 1, relu=False)
        shortcut = self.conv(x, n_in, 4 * width, 1, stride, relu=False) if first else x
        return self.node("Relu", [self.node("Add", [y, shortcut], f"add{name}")], f"out{name}")


def model():
    net = Network()
    x = net.conv("data", 3, 64, 7, 2)
    x = net.node("MaxPool", [x], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    n_in = 64
    for stage, (width, n_blocks) in enumerate(STAGES):
        for block in range(n_blocks):
            stride = 2 if block == 0 and stage > 0 else 1
            x = net.bottleneck(x, n_in, width, stride, block == 0, f"{stage}_{block}")
            n_in = 4 * width
    x = net.node("GlobalAveragePool", [x], "average")
    x = net.node("Flatten", [x], "flat", axis=1)
    w = net.weight("fc_w", net.random.randn(1000, 2048) * 0.02)
    b = net.weight("fc_b", np.zeros(1000))
    net.node("Gemm", [x, w, b], "logits", transB=1)
    data = helper.make_tensor_value_info("data", TensorProto.FLOAT, [1, 3, 224, 224])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 1000])
    graph = helper.make_graph(net.nodes, "resnet50", [data], [logits], net.weights)
    # Opset and IR version of 2021: every peer reads them.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    return model


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "inputs.npz", data=np.random.RandomState(1).rand(1, 3, 224, 224).astype(np.float32))
    onnx.save(model(), folder / "model.onnx")


if __name__ == "__main__":
    main()
