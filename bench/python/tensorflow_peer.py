"""TensorFlow beside devbay: computes graphs, conditionals and loops when the benchmarks ask for it.

It obeys lines on its standard input, as `bench/src/peers.rs` describes: `graph`, `cond`, `loop` and `run`. A session of
the graph mode runs what is built, with so many inter-op threads and no optimisation of the graph, so that each node
is run; a prepared callable passes one number in and one out.
"""

import os
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import workloads

import tensorflow as tf

v1 = tf.compat.v1


def config(threads):
    options = v1.ConfigProto(
        inter_op_parallelism_threads=threads, intra_op_parallelism_threads=1, use_per_session_threads=True
    )
    options.graph_options.rewrite_options.disable_meta_optimizer = True
    options.graph_options.optimizer_options.opt_level = -1
    options.graph_options.optimizer_options.do_constant_folding = False
    return options


def graph(path):
    """Nodes of int64 scalars: what has one input adds a constant to it."""
    x, one = v1.placeholder(tf.int64, [], "x"), tf.constant(1, tf.int64)
    values = []
    for predecessors in workloads.read_graph(path):
        match [values[node] for node in predecessors]:
            case []:
                values.append(tf.add(x, one))
            case [a]:
                values.append(tf.add(a, one))
            case [a, b]:
                values.append(tf.add(a, b))
            case many:
                values.append(tf.add_n(many))
    return x, values[-1]


def conditionals(n):
    x = v1.placeholder(tf.float32, [], "x")
    value = x
    for _ in range(n):
        value = tf.cond(value < 500.0, lambda v=value: v + 1.0 + 1.0 + 1.0, lambda v=value: v + 2.0 + 2.0 + 2.0)
        value = value + 1.0
    return x, value


def loop(n):
    x, one = v1.placeholder(tf.float32, [], "x"), tf.constant(1.0)
    _, value = tf.while_loop(
        lambda i, v: i < n,
        lambda i, v: (i + 1, v + one + one + one + one),
        [tf.constant(0), x],
        parallel_iterations=1,
    )
    return x, value


class Loaded:
    """A workload in a session."""

    def __init__(self, threads, build):
        with v1.Graph().as_default():
            v1.enable_control_flow_v2()
            x, y = build()
            self.session = v1.Session(config=config(threads))
            self.run = self.session.make_callable(y, [x])
        self.zero = x.dtype.as_numpy_dtype(0)

    def __del__(self):
        self.session.close()

    def value(self):
        return self.run(self.zero).item()

    def time(self, n):
        """Nanoseconds per run."""
        # Caches hold what ran before: the first run is not counted.
        run, zero = self.run, self.zero
        run(zero)
        begin = time.perf_counter_ns()
        for _ in range(n):
            run(zero)
        return (time.perf_counter_ns() - begin) / n


def obey(words, held):
    """Does what a line says, and gives the reply."""
    match words:
        case ["graph" | "cond" | "loop" as what, threads, argument]:
            build = {
                "graph": lambda: graph(argument),
                "cond": lambda: conditionals(int(argument)),
                "loop": lambda: loop(int(argument)),
            }
            loaded = held.replace(lambda: Loaded(int(threads), build[what]))
            return f"value {loaded.value()}"
        case ["run", n] if held.loaded is not None:
            return f"ns {held.loaded.time(int(n))}"
        case _:
            raise ValueError(f"unexpected line: {words}")


if __name__ == "__main__":
    workloads.serve(f"tensorflow {tf.__version__}", obey)
