"""Times of calls on tiny models, beside onnxruntime in the same process.

`python bench_calls.py [PASSES]`, with onnx and onnxruntime installed. Both run on one thread, in turns. A row has the median of the
passes, the fastest and slowest one, and the ratio of the medians. Results are compared first.
"""

import statistics
import sys
import time

import devbay
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

RUNS = 5_000


def model(nodes, inputs, output, weights=()):
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs]
    result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(array, name) for name, array in weights]
    graph = helper.make_graph(nodes, "calls", values, [result], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def add():
    """Adds two rows of eight numbers."""
    return model([helper.make_node("Add", ["a", "b"], ["y"])], [("a", [1, 8]), ("b", [1, 8])], "y")


def mlp():
    """Three layers: 64 to 64 to 64 to 10."""
    random = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for i, (n, m) in enumerate([(64, 64), (64, 64), (64, 10)]):
        weights += [
            (f"w{i}", (random.standard_normal((n, m)) / 8).astype(np.float32)),
            (f"b{i}", random.standard_normal(m).astype(np.float32)),
        ]
        nodes.append(helper.make_node("Gemm", [last, f"w{i}", f"b{i}"], [f"g{i}"]))
        last = f"g{i}"
        if i < 2:
            nodes.append(helper.make_node("Relu", [last], [f"r{i}"]))
            last = f"r{i}"
    return model(nodes, [("x", [1, 64])], last, weights)


def peers(content):
    """Returns a call of each library, and compares their results."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    theirs = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    ours = devbay.Session(content, runtime=devbay.Runtime(threads=1))
    random = np.random.default_rng(1)
    inputs = {i.name: random.standard_normal(i.shape).astype(np.float32) for i in theirs.get_inputs()}
    [name] = [output.name for output in ours.outputs]
    np.testing.assert_allclose(ours.run(inputs)[name], theirs.run(None, inputs)[0], rtol=1e-4, atol=1e-5)
    return {
        "devbay": lambda: ours.run(inputs),
        "onnxruntime": lambda: theirs.run(None, inputs),
    }


def time_of(call):
    for _ in range(RUNS // 10):
        call()
    begin = time.perf_counter()
    for _ in range(RUNS):
        call()
    return (time.perf_counter() - begin) / RUNS * 1e6


def main():
    passes = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    print(f"devbay {devbay.__version__}, onnxruntime {onnxruntime.__version__}, {RUNS} runs in a pass, {passes} passes")
    for name, content in [("add", add()), ("mlp", mlp())]:
        calls = peers(content)
        times = {peer: [] for peer in calls}
        for _ in range(passes):
            for peer, call in calls.items():
                times[peer].append(time_of(call))
        medians = {peer: statistics.median(list) for peer, list in times.items()}
        row = ", ".join(f"{peer} {medians[peer]:.2f} us ({min(t):.2f} to {max(t):.2f})" for peer, t in times.items())
        print(f"{name}: {row}, ratio {medians['devbay'] / medians['onnxruntime']:.2f}")


if __name__ == "__main__":
    main()
