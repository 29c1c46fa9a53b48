"""Compares each node of a model with onnxruntime, on onnxruntime's own values: `python check_nodes.py MODEL INPUTS.npz`.

A model whose values are quantised again and again magnifies roundings: two right results may be far apart at its end. Here each
node gets the operands that onnxruntime computed, on one thread with its optimiser off, so that its difference is its own. Real
numbers may differ by 1e-4 of the largest of the result (by 2e-2 of DynamicQuantizeLSTM, which quantises its own state in each
step), quantised ones by a step, other integers not at all. Nodes in the bodies of control flow are not compared. The last line is `passed`, or the exit code is 1. It needs the packages onnx and
onnxruntime, so the test command does not run it.
"""

import argparse
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import devbay

TOLERANCE = 1e-4
TOLERANCES = {"com.microsoft.DynamicQuantizeLSTM": 2e-2}
QUANTISERS = {"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"}


def values_of(model, feeds):
    """Returns every value of the main graph, as onnxruntime computes it."""
    graph = model.graph
    given = {port.name for port in graph.output}
    computed = [name for node in graph.node for name in node.output if name]
    graph.output.extend(helper.make_empty_tensor_value_info(name) for name in computed if name not in given)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_outputs()]
    values = dict(zip(names, session.run(names, feeds), strict=True))
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    return constants | feeds | values, set(constants)


def alone(node, values, constants, opsets):
    """Returns a model of one node, and what to feed it."""
    names = dict.fromkeys(name for name in node.input if name)
    initializers = [numpy_helper.from_array(values[name], name) for name in names if name in constants]
    feeds = {name: values[name] for name in names if name not in constants}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "alone", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString(), feeds


def apart(op, expected, found):
    """Returns a difference as a fraction of what is allowed."""
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return np.inf
    a, b = expected.astype(np.float64), found.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    worst = np.nan_to_num(np.abs(a - b)[~same], nan=np.inf).max()
    if expected.dtype.kind == "f":
        finite = np.abs(a[np.isfinite(a)])
        return worst / (TOLERANCES.get(op, TOLERANCE) * (finite.max() if finite.size else 1) + 1e-6)
    return worst if op in QUANTISERS and expected.dtype.itemsize == 1 else np.inf


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("inputs")
    settings = parser.parse_args()
    model = onnx.load(settings.model)
    values, constants = values_of(model, dict(np.load(settings.inputs)))
    counts, worst, wrong = {}, {}, 0
    for node in model.graph.node:
        op = f"{node.domain}.{node.op_type}".lstrip(".")
        if any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute):
            continue
        data, feeds = alone(node, values, constants, model.opset_import)
        found = devbay.Session(data).run(feeds)
        fraction = max(apart(op, values[name], value) for name, value in found.items())
        counts[op] = counts.get(op, 0) + 1
        worst[op] = max(worst.get(op, 0.0), fraction)
        if fraction > 1:
            wrong += 1
            print(f"{node.name or node.output[0]} ({op}): {fraction:.1e} of what is allowed", file=sys.stderr)
    for op, n in sorted(counts.items()):
        print(f"{n:6} {op:40} {worst[op]:.1e} of what is allowed")
    print(f"{sum(counts.values())} nodes, {wrong} wrong")
    print("failed" if wrong else "passed")
    return not wrong


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
