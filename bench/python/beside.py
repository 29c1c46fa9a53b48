"""Small models beside onnxruntime and OpenVINO in the same run: what `shapes.py` and `ops.py` share."""

import argparse
import json
import pathlib
import subprocess
import tempfile
import time

import numpy as np
import onnx


def onnxruntime_runner(path, inputs, threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, inputs)[0]


def openvino_runner(path, inputs, threads):
    import openvino

    core = openvino.Core()
    hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    request = core.compile_model(core.read_model(path), "CPU", hints).create_infer_request()
    for name, value in inputs.items():
        request.set_tensor(name, openvino.Tensor(value))
    return lambda: request.infer()


def least_ms(run, seconds):
    """The least time of a run."""
    run()
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        begin = time.perf_counter()
        run()
        now = time.perf_counter()
        best = min(best, now - begin)
        if now > end:
            return best * 1e3


class Devbay:
    """Runs of the command."""

    def __init__(self, arguments, folder):
        self.program, self.seconds = arguments.devbay, arguments.seconds
        self.options = ["--input", str(folder / "x.npz"), "--threads", str(arguments.threads)]
        if arguments.plugin:
            self.options += ["--plugin", arguments.plugin]

    def call(self, verb, path, *options):
        command = [self.program, verb, path, *self.options, *options]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def least_ms(self, path):
        return json.loads(self.call("bench", path, "--seconds", str(self.seconds), "--json"))["min"] / 1e6

    def result(self, path, folder):
        self.call("run", path, "--output", str(folder / "y.npz"))
        return np.load(folder / "y.npz")["y"]


def row(name, model, inputs, arguments, folder, operations=None, peak=float("nan")):
    """Prints a row, and returns the shares of onnxruntime's time and of the faster one's.

    With a number of operations the row ends with their share of the peak, in operations a nanosecond.
    """
    path = str(folder / "model.onnx")
    onnx.save(model, path)
    np.savez(folder / "x.npz", **inputs)
    devbay = Devbay(arguments, folder)
    runners = []
    for make in (onnxruntime_runner, openvino_runner):
        if make is openvino_runner and arguments.no_openvino:
            runners.append(None)
            continue
        try:
            runners.append(make(path, inputs, arguments.threads))
            runners[-1]()
        except Exception as error:  # Neither has every op of every type.
            reason = str(error).strip().splitlines()[-1][:60]
            print(f"{name}: {make.__name__}: {reason}")
            del runners[len(runners) :]
            runners.append(None)
    error = float("nan")
    if runners[0]:
        found, expected = devbay.result(path, folder), runners[0]()
        error = np.abs(found.astype(np.float64) - expected).max() / max(np.abs(expected).max(), 1e-30)
    times = [
        (devbay.least_ms(path), *(least_ms(run, arguments.seconds) if run else float("nan") for run in runners))
        for _ in range(arguments.turns)
    ]
    ours, of_ort, of_ov = np.min(times, axis=0)
    share = "" if operations is None else f" {operations / ours / 1e6 / peak:6.2f}"
    print(
        f"{name:38} {ours:9.4f} {of_ort:9.4f} {of_ov:9.4f} {ours / of_ort:6.2f} {ours / of_ov:6.2f} {error:9.1e}{share}",
        flush=True,
    )
    return ours / of_ort, ours / np.nanmin([of_ort, of_ov])


def parser(doc):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("filters", nargs="*", help="parts of names; what has one of them in its name is run")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--devbay", default="target/release/devbay", help="the command")
    parser.add_argument("--plugin", help="a plugin in place of the command's own")
    parser.add_argument("--no-openvino", action="store_true", help="beside onnxruntime alone")
    return parser


def table(cases, arguments, peak=float("nan")):
    """Prints a table of cases: their names, functions that make each one's model and inputs, and perhaps their numbers of
    operations, of which the peak, in operations a nanosecond, is the most that a thread can do."""
    chosen = [c for c in cases if not arguments.filters or any(f in c[0] for f in arguments.filters)]
    if not chosen:
        raise SystemExit(f"no name has one of {arguments.filters} in it")
    share = f" {'peak':>6}" if any(len(case) > 2 for case in chosen) else ""
    print(f"{'':38} {'devbay':>9} {'ort':>9} {'openvino':>9} {'/ort':>6} {'/ov':>6} {'error':>9}{share}")
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        ratios = np.array([row(name, *make(), arguments, place, *more, peak=peak) for name, make, *more in chosen])
    of_ort, of_best = np.exp(np.nanmean(np.log(ratios), axis=0))
    print(f"geometric mean of {len(chosen)}: {of_ort:.2f} of onnxruntime, {of_best:.2f} of the faster one")
