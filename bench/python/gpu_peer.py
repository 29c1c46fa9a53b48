"""PyTorch and JAX beside devbay on a GPU: `gpu_peer.py torch|torch-compile|jax [strict|tf32|f16]`.

It obeys lines on its standard input as `bench/src/peers.rs` describes, `load` and `run` of them, and `copy BYTES N`:
`ns IN OUT`, nanoseconds of a copy of page-locked memory to the device and back. It takes the model file itself: what
only depends on shapes is computed once, with NumPy, when the model is loaded; a run is then the rest of the nodes, one
call of the framework each. Sums are in f32; the inputs of products are rounded to TF32 or f16 if that is asked for, the way
the framework has for it. Where the framework finds no GPU it computes on the processor,
and says so in its name.
"""

import sys
import time

import numpy as np
import onnx_file
import workloads

# Element types by ONNX's numbers.
DTYPES = {1: np.float32, 2: np.uint8, 3: np.int8, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16, 11: np.float64}


def numpy_of(tensor):
    return np.frombuffer(tensor.data, DTYPES[tensor.dtype]).reshape(tensor.shape)


def ints(value):
    return [int(n) for n in np.asarray(value).reshape(-1)]


def slices(rank, starts, ends, axes=None, steps=None):
    """What ONNX's Slice takes, as indices."""
    index = [slice(None)] * rank
    axes = ints(axes) if axes is not None else range(len(ints(starts)))
    steps = ints(steps) if steps is not None else [1] * len(ints(starts))
    for axis, start, end, step in zip(axes, ints(starts), ints(ends), steps):
        if step < 1:
            raise ValueError("a slice that runs backwards")
        index[axis] = slice(start, None if end >= 1 << 31 else end, step)
    return tuple(index)


def new_shape(x, shape):
    """Extents that a Reshape to `shape` gives."""
    return [x.shape[i] if n == 0 else n for i, n in enumerate(ints(shape))]


def expanded(shape, wanted):
    return list(np.broadcast_shapes(tuple(shape), tuple(ints(wanted))))


def pads_of(attributes):
    """Padding in front and behind of each axis."""
    pads = attributes.get("pads", [0, 0, 0, 0])
    if attributes.get("auto_pad", "NOTSET") != "NOTSET":
        raise ValueError("auto_pad")
    half = len(pads) // 2
    return list(zip(pads[:half], pads[half:]))


def arrays(xp, erf):
    """Ops that NumPy and JAX have alike."""

    def divide(_, a, b):
        return a // b if np.issubdtype(a.dtype, np.integer) else a / b

    def softmax(a, x):
        x = xp.exp(x - xp.max(x, axis=a.get("axis", -1), keepdims=True))
        return x / xp.sum(x, axis=a.get("axis", -1), keepdims=True)

    def unsqueeze(a, x, axes=None):
        axes = ints(axes) if axes is not None else a["axes"]
        for axis in sorted(axis % (x.ndim + len(axes)) for axis in axes):
            x = xp.expand_dims(x, axis)
        return x

    def gemm(a, x, w, b=None):
        x, w = (x.T if a.get("transA") else x), (w.T if a.get("transB") else w)
        y = a.get("alpha", 1.0) * xp.matmul(x, w)
        return y if b is None else y + a.get("beta", 1.0) * b

    def flatten(a, x):
        axis = a.get("axis", 1)
        return xp.reshape(x, (int(np.prod(x.shape[:axis], dtype=np.int64)), -1))

    def norm(a, x, scale, bias, mean, var):
        shape = (1, -1) + (1,) * (x.ndim - 2)
        factor = scale / xp.sqrt(var + a.get("epsilon", 1e-5))
        return x * factor.reshape(shape) + (bias - mean * factor).reshape(shape)

    def mean(a, x, axes=None):
        axes = tuple(ints(axes)) if axes is not None else tuple(a["axes"])
        return xp.mean(x, axis=axes, keepdims=bool(a.get("keepdims", 1)))

    return {
        "Add": lambda _, a, b: a + b,
        "Sub": lambda _, a, b: a - b,
        "Mul": lambda _, a, b: a * b,
        "Div": divide,
        "Pow": lambda _, a, b: xp.power(a, b).astype(a.dtype),
        "Sqrt": lambda _, x: xp.sqrt(x),
        "Tanh": lambda _, x: xp.tanh(x),
        "Erf": lambda _, x: erf(x),
        "Relu": lambda _, x: xp.maximum(x, 0),
        "Equal": lambda _, a, b: a == b,
        "GreaterOrEqual": lambda _, a, b: a >= b,
        "And": lambda _, a, b: xp.logical_and(a, b),
        "Where": lambda _, c, a, b: xp.where(c, a, b),
        "Cast": lambda a, x: x.astype(DTYPES[a["to"]]),
        "Concat": lambda a, *xs: xp.concatenate(xs, axis=a["axis"]),
        "Reshape": lambda _, x, shape: xp.reshape(x, new_shape(x, shape)),
        "Transpose": lambda a, x: xp.transpose(x, a.get("perm")),
        "Unsqueeze": unsqueeze,
        "Gather": lambda a, x, i: xp.take(x, i, axis=a.get("axis", 0)),
        "Slice": lambda _, x, *rest: x[slices(x.ndim, *rest)],
        "Expand": lambda _, x, shape: xp.broadcast_to(x, expanded(x.shape, shape)),
        "MatMul": lambda _, a, b: xp.matmul(a, b),
        "Gemm": gemm,
        "Softmax": softmax,
        "ReduceMean": mean,
        "Flatten": flatten,
        "BatchNormalization": norm,
        "GlobalAveragePool": lambda _, x: xp.mean(x, axis=tuple(range(2, x.ndim)), keepdims=True),
    }


# What is computed when a model is loaded.
FOLDED = arrays(np, lambda x: NotImplemented) | {
    "Constant": lambda a: numpy_of(a["value"]),
    "ConstantOfShape": lambda a, shape: np.full(
        ints(shape), numpy_of(a["value"]).item() if "value" in a else 0, DTYPES[a["value"].dtype] if "value" in a else np.float32
    ),
    "Range": lambda _, start, limit, delta: np.arange(start, limit, delta, dtype=start.dtype),
    "Identity": lambda _, x: x,
}


class Torch:
    """PyTorch, node by node as it comes, or compiled."""

    def __init__(self, compiled, numerics):
        import torch

        self.torch, self.compiled, self.numerics = torch, compiled, numerics
        torch.backends.cuda.matmul.allow_tf32 = numerics == "tf32"
        torch.backends.cudnn.allow_tf32 = numerics == "tf32"
        torch.set_grad_enabled(False)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.name = f"torch{'-compile' if compiled else ''} {torch.__version__} on {self.device}"
        self.ops = self.make_ops()

    def make_ops(self):
        torch = self.torch
        F = torch.nn.functional

        def conv(a, x, w, b=None):
            pads = pads_of(a)
            if any(first != last for first, last in pads):
                raise ValueError("a convolution that is padded on one side")
            if w.ndim != 4:
                raise ValueError("a convolution that has not two axes")
            return F.conv2d(x, w, b, a.get("strides", 1), [n for n, _ in pads], a.get("dilations", 1), a.get("group", 1))

        def pool(a, x):
            return F.max_pool2d(x, a["kernel_shape"], a.get("strides", 1), [n for n, _ in pads_of(a)])

        def gemm(a, x, w, b=None):
            x, w = (x.T if a.get("transA") else x), (w.T if a.get("transB") else w)
            y = x @ w if b is None or a.get("alpha", 1.0) != 1.0 or a.get("beta", 1.0) != 1.0 else torch.addmm(b, x, w)
            return y if b is None or (a.get("alpha", 1.0), a.get("beta", 1.0)) == (1.0, 1.0) else a.get("alpha", 1.0) * y + a.get("beta", 1.0) * b

        def divide(_, a, b):
            return torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc")

        def unsqueeze(a, x, axes=None):
            axes = ints(axes) if axes is not None else a["axes"]
            for axis in sorted(axis % (x.ndim + len(axes)) for axis in axes):
                x = x.unsqueeze(axis)
            return x

        def gather(a, x, i):
            axis = a.get("axis", 0)
            if isinstance(i, np.ndarray) and i.ndim == 0:
                return x.select(axis, int(i))
            i = self.put(i)
            flat = x.index_select(axis, i.reshape(-1))
            return flat.reshape(*x.shape[:axis], *i.shape, *x.shape[axis + 1 :])

        def mean(a, x, axes=None):
            axes = ints(axes) if axes is not None else a["axes"]
            return x.mean(axes, keepdim=bool(a.get("keepdims", 1)))

        kinds = {1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool, 10: torch.float16, 11: torch.float64}
        return {
            "Add": lambda _, a, b: a + b,
            "Sub": lambda _, a, b: a - b,
            "Mul": lambda _, a, b: a * b,
            "Div": divide,
            "Pow": lambda _, a, b: torch.pow(a, b),
            "Sqrt": lambda _, x: torch.sqrt(x),
            "Tanh": lambda _, x: torch.tanh(x),
            "Erf": lambda _, x: torch.erf(x),
            "Relu": lambda _, x: torch.relu(x),
            "Equal": lambda _, a, b: a == b,
            "GreaterOrEqual": lambda _, a, b: a >= b,
            "And": lambda _, a, b: torch.logical_and(a, b),
            "Where": lambda _, c, a, b: torch.where(c, a, b),
            "Cast": lambda a, x: x.to(kinds[a["to"]]),
            "Concat": lambda a, *xs: torch.cat(xs, a["axis"]),
            "Reshape": lambda _, x, shape: x.reshape(new_shape(x, shape)),
            "Transpose": lambda a, x: x.permute(a.get("perm") or tuple(reversed(range(x.ndim)))),
            "Unsqueeze": unsqueeze,
            "Gather": gather,
            "Slice": lambda _, x, *rest: x[slices(x.ndim, *rest)],
            "Expand": lambda _, x, shape: x.expand(expanded(x.shape, shape)),
            "MatMul": lambda _, a, b: a @ b,
            "Gemm": gemm,
            "Softmax": lambda a, x: torch.softmax(x, a.get("axis", -1)),
            "ReduceMean": mean,
            "Flatten": lambda a, x: x.reshape(int(np.prod(x.shape[: a.get("axis", 1)])), -1),
            "BatchNormalization": lambda a, x, s, b, m, v: F.batch_norm(x, m, v, s, b, False, 0.0, a.get("epsilon", 1e-5)),
            "GlobalAveragePool": lambda _, x: x.mean(list(range(2, x.ndim)), keepdim=True),
            "MaxPool": pool,
            "Conv": conv,
        }

    def put(self, x):
        return self.torch.from_numpy(np.array(x)).to(self.device) if isinstance(x, np.ndarray) else x

    def get(self, x):
        return x.cpu().numpy()

    def function(self, run):
        if self.numerics == "f16":

            def in_f16(*given, run=run):
                with self.torch.autocast(self.device, self.torch.float16):
                    return tuple(x.float() if x.is_floating_point() else x for x in run(*given))

            run = in_f16
        return self.torch.compile(run) if self.compiled else run

    def wait(self, _results):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def copy(self, n_bytes, n):
        """Nanoseconds of a copy of page-locked memory to the device, and back."""
        torch = self.torch
        if self.device != "cuda":
            raise ValueError("there is no GPU to copy to")
        host = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)
        device = torch.empty(n_bytes, dtype=torch.uint8, device="cuda")
        times = []
        for to, source in ((device, host), (host, device)):
            to.copy_(source)
            self.wait(None)
            begin = time.perf_counter_ns()
            for _ in range(n):
                to.copy_(source, non_blocking=True)
            self.wait(None)
            times.append((time.perf_counter_ns() - begin) / n)
        return times


class Jax:
    """JAX, compiled."""

    def __init__(self, numerics):
        import jax
        import jax.numpy as jnp
        from jax import lax

        precision = {"strict": "highest", "tf32": "tensorfloat32", "f16": "F16_F16_F32"}[numerics]
        jax.config.update("jax_default_matmul_precision", precision)
        jax.config.update("jax_enable_x64", True)
        self.jax = jax
        self.name = f"jax {jax.__version__} on {jax.devices()[0].platform}"

        def conv(a, x, w, b=None):
            axes = x.ndim - 2
            y = lax.conv_general_dilated(
                x,
                w,
                a.get("strides", [1] * axes),
                pads_of(a) if "pads" in a else [(0, 0)] * axes,
                rhs_dilation=a.get("dilations", [1] * axes),
                feature_group_count=a.get("group", 1),
            )
            return y if b is None else y + b.reshape((1, -1) + (1,) * axes)

        def pool(a, x):
            window = (1, 1, *a["kernel_shape"])
            strides = (1, 1, *a.get("strides", [1] * (x.ndim - 2)))
            return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, [(0, 0), (0, 0), *pads_of(a)])

        self.ops = arrays(jnp, jax.scipy.special.erf) | {"Conv": conv, "MaxPool": pool}

    def put(self, x):
        return self.jax.device_put(x) if isinstance(x, np.ndarray) else x

    def get(self, x):
        return np.asarray(x)

    def function(self, run):
        return self.jax.jit(run)

    def wait(self, results):
        self.jax.block_until_ready(results)

    def copy(self, _n_bytes, _n):
        raise ValueError("JAX does not say how its memory is copied")


class Loaded:
    """A model on its inputs, which are on the device; its outputs stay there."""

    def __init__(self, framework, model, inputs):
        graph = onnx_file.read(model)
        self.framework, self.names = framework, graph.outputs
        self.inputs = {name: framework.put(inputs[name]) for name in graph.inputs}
        self.results = graph.outputs
        steps, constants = self.specialise(graph)
        self.constants = constants

        def run(values, constants):
            values = {**values, **constants}
            for op, attributes, given, result in steps:
                values[result] = op(attributes, *(values[x] if isinstance(x, str) else x for x in given))
            return tuple(values[name] for name in self.results)

        self.function = framework.function(run)

    def specialise(self, graph):
        """Runs the model once: nodes whose operands are known, or are shapes, are gone afterwards."""
        framework = self.framework
        values = {name: numpy_of(tensor) for name, tensor in graph.constants.items()}
        values.update(self.inputs)
        steps, constants = [], {}

        def operand(node, i, name):
            """What a step is given: the name of a value, or what is known and not data."""
            if not name:
                return None
            value = values[name]
            by_value = {"Reshape": [1], "Expand": [1], "Slice": [1, 2, 3, 4], "Unsqueeze": [1], "ReduceMean": [1]}
            is_index = node.op == "Gather" and i == 1 and isinstance(value, np.ndarray)
            if i in by_value.get(node.op, []) or is_index:
                if not isinstance(value, np.ndarray):
                    raise ValueError(f"{node.op}: an operand that depends on data")
                return value
            if isinstance(value, np.ndarray) and name not in constants:
                constants[name] = framework.put(value)
            return name

        for node in graph.nodes:
            result = node.outputs[0]
            given = [values[name] if name else None for name in node.inputs]
            if node.op == "Shape":
                values[result] = np.array(given[0].shape, np.int64)
                continue
            if node.op in FOLDED and all(x is None or isinstance(x, np.ndarray) for x in given):
                values[result] = np.asarray(FOLDED[node.op](node.attributes, *given))
                continue
            if node.op not in framework.ops:
                raise ValueError(f"the op {node.op}, which this peer does not have")
            operands = [operand(node, i, name) for i, name in enumerate(node.inputs)]
            now = [constants.get(x, values[x]) if isinstance(x, str) else x for x in operands]
            values[result] = framework.ops[node.op](node.attributes, *now)
            steps.append((framework.ops[node.op], node.attributes, operands, result))
        return steps, constants

    def run(self):
        results = self.function(self.inputs, self.constants)
        self.framework.wait(results)
        return results

    def write(self, path):
        np.savez(path, **{name: self.framework.get(x) for name, x in zip(self.names, self.run())})

    def time(self, n):
        """Nanoseconds per run."""
        # Caches hold what ran before: the first run is not counted.
        self.run()
        begin = time.perf_counter_ns()
        for _ in range(n):
            self.run()
        return (time.perf_counter_ns() - begin) / n


def main():
    numerics = sys.argv[2] if len(sys.argv) > 2 else "strict"
    makers = {"torch": lambda: Torch(False, numerics), "torch-compile": lambda: Torch(True, numerics), "jax": lambda: Jax(numerics)}
    framework = makers[sys.argv[1]]()

    def obey(words, held):
        match words:
            case ["load", _threads, model, inputs, outputs]:
                with np.load(inputs) as given:
                    given = dict(given)
                held.replace(lambda: Loaded(framework, model, given)).write(outputs)
                return "loaded"
            case ["run", n] if held.loaded is not None:
                return f"ns {held.loaded.time(int(n))}"
            case ["copy", n_bytes, n]:
                return "ns {} {}".format(*framework.copy(int(n_bytes), int(n)))
            case _:
                raise ValueError(f"unexpected line: {words}")

    workloads.serve(framework.name, obey)


if __name__ == "__main__":
    main()
