"""OpenVINO beside devbay: runs a model when the benchmarks ask for it.

It obeys lines on its standard input, as `bench/src/peers.rs` describes: `load` and `run`. The model is reshaped to the
shapes of its inputs before it is compiled, because devbay plans for them too, and computes in f32 on every processor.
"""

import time

import numpy as np
import onnx
import openvino

import workloads


def compile_model(model, threads, shapes, more={}):
    """A model as a user compiles it who wants short runs, one after another."""
    core = openvino.Core()
    try:
        program = core.read_model(model)
    except RuntimeError as error:
        # Before that it has places in OpenVINO's sources.
        raise RuntimeError(" ".join(str(error).split()).rpartition("detailed log: ")[2]) from error
    program.reshape({name: openvino.PartialShape(list(shape)) for name, shape in shapes.items()})
    config = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        # Else processors with instructions for bf16 or f16 round to them.
        "INFERENCE_PRECISION_HINT": "f32",
    }
    return core.compile_model(program, "CPU", config | more)


def output_names(model):
    """The model's own names: a result may have those of several tensors in OpenVINO, which keeps the order."""
    return [output.name for output in onnx.load(model, load_external_data=False).graph.output]


class Loaded:
    """A request with its inputs and outputs bound, so that a run passes no array through Python."""

    def __init__(self, model, threads, inputs, more={}):
        shapes = {name: array.shape for name, array in inputs.items()}
        self.compiled = compile_model(model, threads, shapes, more)
        self.request = self.compiled.create_infer_request()
        # A tensor is a view of its array, so both are kept.
        self.inputs = [np.require(array, requirements="CW") for array in inputs.values()]
        for name, array in zip(inputs, self.inputs):
            self.request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
        self.run()
        # Extents may depend on data: only now all of them are known.
        found = [np.array(tensor.data) for tensor in self.request.output_tensors]
        self.outputs = dict(zip(output_names(model), found))
        for i, array in enumerate(self.outputs.values()):
            self.request.set_output_tensor(i, openvino.Tensor(array, shared_memory=True))

    def run(self):
        # Shared outputs are views: without that, each run would copy them for Python.
        self.request.infer(share_outputs=True)

    def write(self, path):
        for array in self.outputs.values():
            array.fill(0)
        self.run()
        np.savez(path, **self.outputs)

    def time(self, n):
        """Nanoseconds per run."""
        # Caches hold what ran before: the first run is not counted.
        self.run()
        infer = self.request.infer
        begin = time.perf_counter_ns()
        for _ in range(n):
            infer(share_outputs=True)
        return (time.perf_counter_ns() - begin) / n


def load(threads, model, inputs):
    """A model on the arrays of an archive."""
    with np.load(inputs) as arrays:
        return Loaded(model, threads, dict(arrays))


def obey(words, held):
    """Does what a line says, and gives the reply."""
    match words:
        case ["load", threads, model, inputs, outputs]:
            held.replace(lambda: load(int(threads), model, inputs)).write(outputs)
            return "loaded"
        case ["run", n] if held.loaded is not None:
            return f"ns {held.loaded.time(int(n))}"
        case _:
            raise ValueError(f"unexpected line: {words}")


if __name__ == "__main__":
    # Without the number of the build.
    workloads.serve(f"openvino {openvino.__version__.split('-')[0]}", obey)
