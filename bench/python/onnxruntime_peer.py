"""onnxruntime beside devbay: runs a model when the benchmarks ask for it.

Without arguments it obeys lines on its standard input, as `bench/src/peers.rs` describes. With
`once THREADS MODEL INPUTS` it runs the model once, for the cold start, and prints how many nanoseconds passed between
the first line of this file and the first result. With `save MODEL FILE.ort` it writes the model as its optimiser leaves
it, in onnxruntime's own format. With `arena MODEL INPUTS` it runs the model three times on one thread, and prints how many
bytes its arena has taken, and of how many the greatest block is that came after the first run.
"""

import time

BEGIN = time.perf_counter_ns()

import sys

import numpy as np
import onnxruntime


ALL = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
NONE = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


def open_session(model, threads, level=ALL, profile=None):
    """A session as a user makes it who wants speed: every optimisation (the default), and so many threads. `profile` is
    the beginning of the name of a file that is to have the times of all runs."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = profile
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
        options.graph_optimization_level = NONE
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


def load(threads, model, inputs, level):
    """A model on the arrays of an archive."""
    with np.load(inputs) as arrays:
        return Loaded(open_session(model, threads, level), dict(arrays))


def load_workload(what, threads, argument):
    """A workload on 0."""
    session = open_workload(what, threads, argument)
    x = session.get_inputs()[0]
    dtype = np.float64 if x.type == "tensor(double)" else np.float32
    return Loaded(session, {x.name: np.zeros(x.shape, dtype)})


def obey(words, held):
    """Does what a line says, and gives the reply."""
    match words:
        case ["load" | "unoptimised" as what, threads, model, inputs, outputs]:
            level = {"load": ALL, "unoptimised": NONE}[what]
            held.replace(lambda: load(int(threads), model, inputs, level)).write(outputs)
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
    options.graph_optimization_level = ALL
    options.optimized_model_filepath = file
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def arena(model, inputs):
    """Prints what an arena took that grows by what is asked for, and holds no constants. Only its log says it."""
    import os
    import re
    import tempfile

    # 1 stands for growing by what is asked for; a first chunk would be a megabyte. -1 are defaults.
    config = {"max_mem": 0, "arena_extend_strategy": 1, "initial_chunk_size_bytes": 256}
    config |= {"max_dead_bytes_per_chunk": -1, "initial_growth_chunk_size_bytes": -1}
    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    # At 1 what it does is logged.
    onnxruntime.set_default_logger_severity(1)
    onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg(config))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 1
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    with np.load(inputs) as arrays:
        arrays = dict(arrays)

    def taken(does):
        """How many bytes the arena took each time while something was done."""
        stderr = os.dup(2)
        with tempfile.TemporaryFile() as log:
            os.dup2(log.fileno(), 2)
            try:
                result = does()
            finally:
                os.dup2(stderr, 2)
                os.close(stderr)
            log.seek(0)
            return result, [int(n) for n in re.findall(rb"Extended allocation by (\d+) bytes", log.read())]

    session, loading = taken(lambda: onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]))
    runs = [taken(lambda: session.run(None, arrays))[1] for _ in range(3)]
    print(sum(loading) + sum(map(sum, runs)), max(runs[1] + runs[2], default=0))


if __name__ == "__main__":
    if sys.argv[1:2] == ["once"]:
        once(*sys.argv[2:])
    elif sys.argv[1:2] == ["save"]:
        save(*sys.argv[2:])
    elif sys.argv[1:2] == ["arena"]:
        arena(*sys.argv[2:])
    else:
        # Not at the top: `once` counts what is imported.
        import workloads

        workloads.serve(f"onnxruntime {onnxruntime.__version__}", obey)
