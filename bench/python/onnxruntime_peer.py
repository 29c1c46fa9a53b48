"""onnxruntime beside devbay: runs a model when the benchmarks ask for it.

Without arguments it obeys lines on its standard input, as `bench/src/peers.rs` describes. With
`once THREADS MODEL INPUTS` it runs the model once, for the cold start, and prints how many nanoseconds passed between
the first line of this file and the first result.
"""

import time

BEGIN = time.perf_counter_ns()

import gc
import sys

import numpy as np
import onnxruntime


def open_session(model, threads):
    """A session as a user makes it who wants speed: every optimisation (the default), and so many threads."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Errors only: some models make it warn at every iteration of a loop, which takes longer than the loop.
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class Loaded:
    """A model with its inputs and outputs bound, so that a run passes no array through Python."""

    def __init__(self, threads, model, inputs):
        self.session = open_session(model, threads)
        self.binding = self.session.io_binding()
        with np.load(inputs) as arrays:
            for name in arrays:
                value = onnxruntime.OrtValue.ortvalue_from_numpy(arrays[name])
                self.binding.bind_ortvalue_input(name, value)
        self.names = [output.name for output in self.session.get_outputs()]
        for name in self.names:
            self.binding.bind_output(name, "cpu")
        self.run()
        # From now on results go to the memory that they have; devbay's do so too.
        self.outputs = dict(zip(self.names, self.binding.get_outputs()))
        self.binding.clear_binding_outputs()
        for name, value in self.outputs.items():
            self.binding.bind_ortvalue_output(name, value)

    def run(self):
        self.session.run_with_iobinding(self.binding)

    def write(self, path):
        self.run()
        np.savez(path, **{name: value.numpy() for name, value in self.outputs.items()})

    def time(self, n):
        """Nanoseconds per run."""
        # Caches hold what ran before: the first run is not counted.
        self.run()
        run, binding = self.session.run_with_iobinding, self.binding
        begin = time.perf_counter_ns()
        for _ in range(n):
            run(binding)
        return (time.perf_counter_ns() - begin) / n


def obey(words, loaded):
    """Does what a line says; gives the reply and the model that is loaded then."""
    match words:
        case ["load", threads, model, inputs, outputs]:
            # The old session goes first, with its threads.
            loaded = None
            gc.collect()
            loaded = Loaded(int(threads), model, inputs)
            loaded.write(outputs)
            return "loaded", loaded
        case ["run", n] if loaded is not None:
            return f"ns {loaded.time(int(n))}", loaded
        case _:
            raise ValueError(f"unexpected line: {words}")


def serve():
    """Obeys line by line until the input ends."""
    gc.disable()
    print(f"subject onnxruntime {onnxruntime.__version__}", flush=True)
    loaded = None
    for line in sys.stdin:
        try:
            reply, loaded = obey(line.rstrip("\n").split("\t"), loaded)
        except Exception as error:
            reply = "error " + str(error).replace("\n", " ")
        print(reply, flush=True)


def once(threads, model, inputs):
    """Runs the model once, and says how long it took from the first line of this file."""
    session = open_session(model, int(threads))
    with np.load(inputs) as arrays:
        outputs = session.run(None, dict(arrays))
    print(time.perf_counter_ns() - BEGIN, flush=True)
    print(outputs[0])


if __name__ == "__main__":
    if sys.argv[1:2] == ["once"]:
        once(*sys.argv[2:])
    else:
        serve()
