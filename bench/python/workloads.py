"""What the Python peers share: the lines that they obey, and graphs as ONNX models."""

import gc
import sys

import numpy as np


class Held:
    """What a peer has loaded: what was there before goes first, with its threads."""

    def __init__(self):
        self.loaded = None

    def replace(self, load):
        self.loaded = None
        gc.collect()
        self.loaded = load()
        return self.loaded


def serve(subject, obey):
    """Obeys line by line until the input ends."""
    gc.disable()
    print(f"subject {subject}", flush=True)
    held = Held()
    for line in sys.stdin:
        try:
            reply = obey(line.rstrip("\n").split("\t"), held)
        except Exception as error:
            reply = "error " + str(error).replace("\n", " ")
        print(reply, flush=True)


def read_graph(path):
    """The predecessors of each node: `bench/src/graphs.rs` writes such files."""
    with open(path) as file:
        lines = file.read().splitlines()
    return [[int(word) for word in line.split()[1:]] for line in lines[1 : 1 + int(lines[0])]]


def graph(path):
    """Nodes of f64 [1], as onnxruntime's Sum takes no integers: what has one input adds a constant to it."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = []
    for i, predecessors in enumerate(read_graph(path)):
        inputs = [f"n{node}" for node in predecessors] or ["x"]
        if len(inputs) == 1:
            inputs.append("one")
        nodes.append(helper.make_node("Add" if len(inputs) == 2 else "Sum", inputs, [f"n{i}"]))
    x = helper.make_tensor_value_info("x", TensorProto.DOUBLE, [1])
    y = helper.make_tensor_value_info(f"n{len(nodes) - 1}", TensorProto.DOUBLE, [1])
    one = numpy_helper.from_array(np.array([1.0]), "one")
    return _model(nodes, x, y, [one])


def conditionals(n):
    """If of two branches of three additions, then one more, n times, on a scalar of f32."""
    from onnx import TensorProto, helper

    nodes, value = [], "x"
    for i in range(n):

        def branch(name, added, value=value, i=i):
            names = [value] + [f"{name}{i}_{k}" for k in range(3)]
            adds = [helper.make_node("Add", [a, added], [b]) for a, b in zip(names, names[1:])]
            result = helper.make_tensor_value_info(names[-1], TensorProto.FLOAT, [])
            return helper.make_graph(adds, f"{name}{i}", [], [result])

        nodes.append(helper.make_node("Less", [value, "limit"], [f"less{i}"]))
        branches = {"then_branch": branch("then", "one"), "else_branch": branch("else", "two")}
        nodes.append(helper.make_node("If", [f"less{i}"], [f"if{i}"], **branches))
        nodes.append(helper.make_node("Add", [f"if{i}", "one"], [f"x{i}"]))
        value = f"x{i}"
    return _scalar_model(nodes, value, {"one": 1.0, "two": 2.0, "limit": 500.0})


def loop(n):
    """n iterations of four additions, on a scalar of f32."""
    from onnx import TensorProto, helper, numpy_helper

    names = ["v", "a", "b", "c", "out"]
    nodes = [helper.make_node("Identity", ["go"], ["go_on"])]
    nodes += [helper.make_node("Add", [a, "one"], [b]) for a, b in zip(names, names[1:])]
    body = helper.make_graph(
        nodes,
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("out", TensorProto.FLOAT, []),
        ],
    )
    nodes = [helper.make_node("Loop", ["n", "yes", "x"], ["y"], body=body)]
    more = [numpy_helper.from_array(np.array(n), "n"), numpy_helper.from_array(np.array(True), "yes")]
    return _scalar_model(nodes, "y", {"one": 1.0}, more)


def _scalar_model(nodes, output, constants, more=()):
    from onnx import TensorProto, helper, numpy_helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in ("x", output))
    weights = [numpy_helper.from_array(np.float32(value).reshape(()), name) for name, value in constants.items()]
    return _model(nodes, x, y, weights + list(more))


def _model(nodes, x, y, weights):
    from onnx import helper

    graph = helper.make_graph(nodes, "workload", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    return model.SerializeToString()
