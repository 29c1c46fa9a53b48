"""The error of a model's 3 x 3 convolutions, layer by layer: with Winograd's products, without, and onnxruntime's.

    winograd.py MODEL.onnx INPUTS.npz [--devbay PROGRAM] [--plugin LIBRARY]

Each such convolution that moves by one runs alone, on the image that it gets in the model (from onnxruntime) and with the model's
weights. Errors are the greatest difference from sums in f64, as a part of the largest result.
"""

import argparse
import pathlib
import subprocess
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper


def layers(model):
    """The convolutions, with their weights and biases."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        ones = all(n == 1 for name in ("strides", "dilations") for n in given.get(name, []))
        if node.op_type != "Conv" or node.input[1] not in constants or not ones or given.get("group", 1) != 1:
            continue
        operands = [numpy_helper.to_array(constants[name]) for name in node.input[1:] if name in constants]
        if operands[0].shape[2:] == (3, 3) and len(operands) + 1 == len(node.input):
            yield node, operands, given.get("pads", [0] * 4)


def exact(x, w, bias, pads):
    """The convolution in f64."""
    top, left, bottom, right = pads
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    height, width = x.shape[2] - 2, x.shape[3] - 2
    y = np.zeros((x.shape[0], w.shape[0], height, width))
    for i in range(3):
        for j in range(3):
            seen = x[:, :, i : i + height, j : j + width]
            y += np.einsum("nchw,mc->nmhw", seen, w[:, :, i, j].astype(np.float64), optimize=True)
    return y + bias[0].astype(np.float64)[:, None, None] if bias else y


def alone(node, x, operands):
    """A model of one layer whose image and result are NHWC, so that no order of channels is left to choose."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["second"], perm=[0, 3, 1, 2]),
        onnx.NodeProto.FromString(node.SerializeToString()),
        helper.make_node("Transpose", ["made"], ["y"], perm=[0, 2, 3, 1]),
    ]
    names = ["w", "b"][: len(operands)]
    nodes[1].input[:], nodes[1].output[:] = ["second", *names], ["made"]
    constants = [numpy_helper.from_array(value, name) for value, name in zip(operands, names)]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [x.shape[i] for i in (0, 2, 3, 1)])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "layer", [image], [result], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("inputs")
    parser.add_argument("--devbay", default="target/release/devbay", help="the command")
    parser.add_argument("--plugin", help="a plugin in place of the command's own")
    arguments = parser.parse_args()
    model = onnx.load(arguments.model)
    found = list(layers(model))
    for node, _, _ in found:
        for name in (node.input[0], node.output[0]):
            if name not in [value.name for value in [*model.graph.output, *model.graph.input]]:
                model.graph.output.append(onnx.ValueInfoProto(name=name))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = dict(np.load(arguments.inputs))
    values = dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs))) | inputs
    plugin = ["--plugin", arguments.plugin] if arguments.plugin else []
    print(f"{'layer':32} {'image':>18} {'out':>5} {'winograd':>9} {'direct':>9} {'ort':>9}")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for node, operands, pads in found:
            x = values[node.input[0]]
            y = exact(x, operands[0], operands[1:], pads)
            onnx.save(alone(node, x, operands), folder / "layer.onnx")
            np.savez(folder / "x.npz", x=np.ascontiguousarray(np.moveaxis(x, 1, -1)))
            errors = []
            for option in ("on", "off"):
                files = ["--input", folder / "x.npz", "--output", folder / "y.npz"]
                option = ["--plugin-option", f"cpu.winograd={option}"]
                subprocess.run([arguments.devbay, "run", folder / "layer.onnx", *files, *option, *plugin], check=True, capture_output=True)
                errors.append(np.moveaxis(np.load(folder / "y.npz")["y"], -1, 1))
            one = onnxruntime.InferenceSession((folder / "layer.onnx").read_bytes(), providers=["CPUExecutionProvider"])
            errors.append(np.moveaxis(one.run(None, {"x": np.load(folder / "x.npz")["x"]})[0], -1, 1))
            errors = [np.abs(e - y).max() / np.abs(y).max() for e in errors]
            print(
                f"{(node.name or node.output[0])[-32:]:32} {'x'.join(map(str, x.shape)):>18} {y.shape[1]:5} "
                + " ".join(f"{e:9.1e}" for e in errors),
                flush=True,
            )


if __name__ == "__main__":
    main()
