"""onnxruntime beside devbay: runs a model when the benchmarks ask for it.

Without arguments it obeys lines on its standard input, as `bench/src/peers.rs` describes. With
`once THREADS MODEL INPUTS` it runs the model once, for the cold start, and prints how many nanoseconds passed between
the first line of this file and the first result. With `save MODEL FILE.ort` it writes the model as its optimiser leaves
it, in onnxruntime's own format.
"""

import time

BEGIN = time.perf_counter_ns()

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


def open_workload(what, threads, argument):
    """A session for what `workloads` makes. Graphs run as they are, node by node; two threads run nodes beside each
    other, which is ORT_PARALLEL."""
    import workloads

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    if what == "graph":
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        if threads > 1:
            options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
            options.inter_op_num_threads = threads
            # Threads that spin take a run of one node to ten milliseconds on a machine of two processors.
            options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        model = workloads.graph(argument)
    else:
        model = {"cond": workloads.conditionals, "loop": workloads.loop}[what](int(argument))
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


class Loaded:
    """A session with its inputs and outputs bound, so that a run passes no array through Python."""

    def __init__(self, session, inputs):
        self.session = session
        self.binding = self.session.io_binding()
        for name, array in inputs.items():
            value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
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


def load(threads, model, inputs):
    """A model on the arrays of an archive."""
    with np.load(inputs) as arrays:
        return Loaded(open_session(model, threads), dict(arrays))


def load_workload(what, threads, argument):
    """A workload on 0."""
    session = open_workload(what, threads, argument)
    x = session.get_inputs()[0]
    dtype = np.float64 if x.type == "tensor(double)" else np.float32
    return Loaded(session, {x.name: np.zeros(x.shape, dtype)})


def obey(words, held):
    """Does what a line says, and gives the reply."""
    match words:
        case ["load", threads, model, inputs, outputs]:
            held.replace(lambda: load(int(threads), model, inputs)).write(outputs)
            return "loaded"
        case ["graph" | "cond" | "loop" as what, threads, argument]:
            loaded = held.replace(lambda: load_workload(what, int(threads), argument))
            (value,) = loaded.outputs.values()
            return f"value {value.numpy().item()}"
        case ["run", n] if held.loaded is not None:
            return f"ns {held.loaded.time(int(n))}"
        case _:
            raise ValueError(f"unexpected line: {words}")


def once(threads, model, inputs):
    """Runs the model once, and says how long it took from the first line of this file."""
    session = open_session(model, int(threads))
    with np.load(inputs) as arrays:
        outputs = session.run(None, dict(arrays))
    print(time.perf_counter_ns() - BEGIN, flush=True)
    print(outputs[0])


def save(model, file):
    """Writes what the optimiser makes of the model."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = file
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["once"]:
        once(*sys.argv[2:])
    elif sys.argv[1:2] == ["save"]:
        save(*sys.argv[2:])
    else:
        # Not at the top: `once` counts what is imported.
        import workloads

        workloads.serve(f"onnxruntime {onnxruntime.__version__}", obey)
