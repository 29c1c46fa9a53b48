"""Quantised models in integers and between conversions, beside onnxruntime and OpenVINO in the same run.

    python bench/python/qdq.py FOLDER ...

A FOLDER has `model.onnx` and `inputs.npz`, as `quantised.py` writes them. Prints the least milliseconds of devbay, of devbay
without the passes for quantised models, and of the peers; then the largest difference of devbay's outputs from those of
onnxruntime and from its own without the passes, in steps of the output's quantisation, or as a part of its largest number
where it is not quantised. OpenVINO may round to bytes as well.
"""

import json
import pathlib
import subprocess
import tempfile

import numpy as np
import onnx
from onnx import numpy_helper

from beside import Devbay, least_ms, onnxruntime_runner, parser

PLAIN = ("--no-pass", "lower-quantised", "--no-pass", "fuse-quantised")


def openvino_runner(path, inputs, threads):
    import openvino

    core = openvino.Core()
    hints = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    request = core.compile_model(core.read_model(path), "CPU", hints).create_infer_request()
    for name, value in inputs.items():
        request.set_tensor(name, openvino.Tensor(value))
    return lambda: request.infer()


def step_of(model):
    """The scale of the first output's quantisation; None if it is not quantised."""
    name = model.graph.output[0].name
    maker = next((node for node in model.graph.node if name in node.output), None)
    if maker is None or maker.op_type != "DequantizeLinear":
        return None
    scales = {tensor.name: tensor for tensor in model.graph.initializer}
    return float(numpy_helper.to_array(scales[maker.input[1]]).reshape(-1)[0])


def difference(found, expected, step):
    largest = np.abs(found.astype(np.float64) - expected).max()
    if step is None:
        return f"{largest / max(np.abs(expected).max(), 1e-30):.1e}"
    return f"{largest / step:.0f} steps"


def row(folder, arguments, scratch):
    path = str(folder / "model.onnx")
    model = onnx.load(path)
    inputs = dict(np.load(folder / "inputs.npz"))
    inputs = {value.name: inputs[value.name] for value in model.graph.input}
    np.savez(scratch / "x.npz", **inputs)
    devbay = Devbay(arguments, scratch)
    output = model.graph.output[0].name

    def ours(*options):
        devbay.call("run", path, "--output", str(scratch / "y.npz"), *options)
        return np.load(scratch / "y.npz")[output]

    def milliseconds(*options):
        return json.loads(devbay.call("bench", path, "--seconds", str(arguments.seconds), "--json", *options))["min"] / 1e6

    peers = []
    for make in (onnxruntime_runner, openvino_runner):
        try:
            peers.append(make(path, inputs, arguments.threads))
            peers[-1]()
        except Exception as error:  # Neither has every op of every type.
            print(f"{folder}: {make.__name__}: {str(error).strip().splitlines()[-1][:60]}")
            del peers[len(peers) :]
            peers.append(None)
    step = step_of(model)
    found, plain = ours(), ours(*PLAIN)
    of_peer = difference(found, peers[0](), step) if peers[0] else "-"
    times = [
        (milliseconds(), milliseconds(*PLAIN), *(least_ms(run, arguments.seconds) if run else float("nan") for run in peers))
        for _ in range(arguments.turns)
    ]
    times = " ".join(f"{time:10.3f}" for time in np.min(times, axis=0))
    name = "/".join(folder.parts[-2:])
    print(f"{name:34} {times}   {of_peer:>10} {difference(found, plain, step):>10}", flush=True)


def main():
    arguments = parser(__doc__).parse_args()
    print(f"{'':34} {'devbay':>10} {'plain':>10} {'ort':>10} {'openvino':>10}   {'from ort':>10} {'from plain':>10}")
    with tempfile.TemporaryDirectory() as scratch:
        for folder in arguments.filters:
            try:
                row(pathlib.Path(folder), arguments, pathlib.Path(scratch))
            except subprocess.CalledProcessError as error:
                print(f"{folder}: {error.stderr.strip().splitlines()[-1]}")


if __name__ == "__main__":
    main()
