"""devbay under `torch.compile`.

>>> model = torch.compile(model, backend="devbay")
>>> model = torch.compile(model, backend="devbay", options={"device": "wgpu:0"})

PyTorch finds the backend by the package's entry point. Importing this module registers it too, for an environment
without the package's metadata.

TorchDynamo gives a graph for each part of the model between graph breaks. AOTAutograd makes it functional, so that no
op writes into its operands, and writes changed inputs back afterwards. The graph is exported to ONNX in memory, and a
session runs it. The graph of gradients stays with PyTorch.

Weights and buffers are constants of the session, so that devbay can pack and fold them. They are compared by address
and version before each run. Once one has changed, all of them become inputs.

It needs the packages torch, onnx and onnxscript, which the rest of devbay does not.
"""

import importlib.util
import os
import tempfile
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy
import torch
from functorch.compile import make_boxed_func
from torch._decomp import get_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import list_backends, register_backend

import devbay

__all__ = ["backend"]

# Arguments of `devbay.Session`. All other options go among its `options`, by the names of the command's flags.
_ARGUMENTS = ("plugins", "runtime", "progress")

# Weights of this many bytes or more go through a file: a message of ONNX's format has 2 GiB at most.
_BYTES_IN_MEMORY_MAX = 2**30

# The exporter writes these as they are in evaluation, so that they would not look at the batch.
_DECOMPOSED = [
    getattr(torch.ops.aten, name)
    for name in ("_native_batch_norm_legit_functional", "_batch_norm_with_update_functional")
    if hasattr(torch.ops.aten, name)
]

# One export at a time: Python's parser of syntax trees, which the exporter uses, is not safe in several threads in 3.11
# (CPython 106905).
_EXPORT = threading.Lock()


class _Settings:
    """The options of one call of `torch.compile`."""

    def __init__(self, options):
        options = dict(options or {})
        # Graphs that cannot run on devbay raise, instead of running in PyTorch.
        self.strict = bool(options.pop("strict", False))
        # Weights are constants of the session.
        self.freeze = bool(options.pop("freeze", True))
        self.device = options.pop("device", None)
        self.session = {name: options.pop(name) for name in _ARGUMENTS if name in options}
        self.session["options"] = options


def backend(graph, inputs, *, options=None, mode=None):
    """Compiles one graph of TorchDynamo; `torch.compile` calls it.

    `options` has `device`, a name such as `wgpu:0`; `plugins`, `runtime` and `progress` as `devbay.Session` takes them; `strict`,
    true to raise an exception for graphs that devbay cannot run; `freeze`, false to keep weights as inputs; and all
    options of sessions by the names of the command's flags. PyTorch's `mode` has no effect.
    """
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"the backend needs {' and '.join(missing)}: pip install devbay[torch]")
    settings = _Settings(options)
    compile_aot = aot_autograd(
        inference_compiler=lambda graph, _: _Compiled(graph, settings, settings.freeze),
        # Weights that have gradients are about to change.
        fw_compiler=lambda graph, _: _Compiled(graph, settings, freezes=False),
        bw_compiler=lambda graph, _: make_boxed_func(graph.forward),
        decompositions=get_decompositions(_DECOMPOSED),
    )
    return compile_aot(graph, inputs)


class _Compiled:
    """A functional graph of ATen ops, exported when it is first called: only then are its weights known."""

    _boxed_call = True

    def __init__(self, graph, settings, freezes):
        self._graph = graph
        self._settings = settings
        self._freezes = freezes
        self._lock = threading.Lock()
        # The session, once it is made; the graph itself if PyTorch runs it.
        self._run = None if _computes_tensors(graph) else graph.forward

    def __call__(self, args):
        own = list(args)
        # The caller gives the list away, so that its tensors can be freed.
        args.clear()
        run = self._run
        if run is None or (isinstance(run, _Exported) and run.is_stale(own)):
            run = self._prepare(own)
        try:
            return run(*own)
        except devbay.UnsupportedModel as error:
            # The plan for open extents is made by the first run.
            return self._give_up(error)(*own)

    def _prepare(self, args):
        """Exports the graph, unless another thread did so meanwhile."""
        with self._lock:
            if isinstance(self._run, _Exported) and self._run.is_stale(args):
                # A program that changes weights once does so again, as training does.
                self._run, self._freezes = None, False
            if self._run is None:
                try:
                    self._run = _Exported(self._graph, self._settings, args, self._freezes)
                except (devbay.UnsupportedModel, devbay.InvalidModel) as error:
                    return self._give_up(error)
            return self._run

    def _give_up(self, error):
        """Lets PyTorch run the graph from now on, and says why."""
        if self._settings.strict:
            raise error
        text = f"PyTorch runs a part of the model in devbay's place: {error}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        self._run = self._graph.forward
        return self._run


def _computes_tensors(graph):
    """Returns whether the graph has ops, and tensors among its results."""
    [output] = graph.graph.find_nodes(op="output")
    has_ops = any(node.op.startswith("call_") for node in graph.graph.nodes)
    return has_ops and any(isinstance(_value(node), torch.Tensor) for node in output.args[0])


def _value(node):
    """Returns the value that tracing gave a node, whose extents may be symbols; constants are their own value."""
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else node


class _Exported:
    """A graph as a session, with the way from its arguments to the session's inputs, and back."""

    def __init__(self, graph, settings, args, freezes):
        nodes = graph.graph.find_nodes(op="placeholder")
        weights = {
            at: arg
            for at, arg in enumerate(args)
            if freezes and isinstance(arg, torch.Tensor) and _is_weight(arg)
        }
        # Position, address and version of each weight at the export.
        self._weights = [(at, arg.data_ptr(), _version(arg)) for at, arg in weights.items()]
        self._taken = [at for at, arg in enumerate(args) if isinstance(arg, torch.Tensor) and at not in weights]
        self._results, module = _rewrite(graph, nodes, weights)
        examples = tuple(args[at].detach() for at in self._taken)
        shapes = tuple(_open_extents(_value(nodes[at])) for at in self._taken)
        devices = {arg.device for arg in args if isinstance(arg, torch.Tensor)}
        cuda = next((device for device in devices if device.type == "cuda"), None)
        # Results must be where PyTorch expects them: on the device of its own tensors.
        self._stays = cuda is not None
        name = settings.device
        if name is None:
            name = "auto" if cuda is None else f"cuda:{cuda.index or 0}"
        with tempfile.TemporaryDirectory(prefix="devbay-torch-") as folder:
            model = _export(module, examples, shapes, folder)
            self._session = devbay.Session(model, device=name, **settings.session)
        self._inputs = [port.name for port in self._session.inputs]
        self._outputs = [port.name for port in self._session.outputs]
        n_outputs = sum(isinstance(result, _Output) for result in self._results)
        if len(self._inputs) != len(self._taken) or len(self._outputs) != n_outputs:
            raise devbay.UnsupportedModel("the exported model has other inputs or outputs than the graph")

    def is_stale(self, args):
        """Returns whether a weight has changed since it became a constant."""
        return any(args[at].data_ptr() != place or _version(args[at]) != version for at, place, version in self._weights)

    def __call__(self, *args):
        inputs = {
            name: args[at].detach().contiguous() for name, at in zip(self._inputs, self._taken, strict=True)
        }
        run = self._session.run_on_device if self._stays else self._session.run
        outputs = run(inputs)
        tensors = [outputs[name] for name in self._outputs]
        return [result(args, tensors) for result in self._results]


def _is_weight(arg):
    """Returns whether TorchDynamo found a tensor as a parameter or buffer of a module."""
    return isinstance(arg, torch.nn.Parameter) or getattr(arg, "_dynamo_static_input_type", None) is not None


def _version(arg):
    """Returns the number of changes of a tensor so far; tensors of inference mode count none."""
    return None if arg.is_inference() else arg._version


def _open_extents(value):
    """Returns the extents that differ between calls, as `torch.export` takes them."""
    is_open = [isinstance(extent, torch.SymInt) for extent in value.shape]
    return {at: torch.export.Dim.DYNAMIC for at, found in enumerate(is_open) if found} or None


class _Output:
    """A result of the graph that the session computes."""

    def __init__(self, value, at):
        self._at = at
        self._is_int = not isinstance(value, torch.Tensor)
        self._dtype = torch.int64 if self._is_int else value.dtype
        # The order of the extents in memory, if it is not the usual one. PyTorch planned with it.
        self._order = None
        if not self._is_int and not value.is_contiguous():
            self._order = _memory_order(value)

    def __call__(self, args, outputs):
        """Returns a tensor that shares the memory of a session's output."""
        tensor = self._tensor(outputs[self._at])
        if self._is_int:
            return int(tensor)
        if tensor.dtype != self._dtype:
            tensor = tensor.to(self._dtype)
        if self._order is not None:
            back = [self._order.index(at) for at in range(len(self._order))]
            tensor = tensor.permute(self._order).contiguous().permute(back)
        return tensor

    def _tensor(self, output):
        if isinstance(output, devbay.Tensor):
            tensor = torch.from_dlpack(output)
            # Memory of the host may be a constant's, which the program must not write.
            return tensor.clone() if output.device is None else tensor
        if output.dtype.kind == "V" or output.dtype.name not in _NUMPY:
            # A type of ml_dtypes: the bytes are the same.
            bits = output.view(numpy.dtype(f"u{output.itemsize}"))
            return torch.from_dlpack(bits).view(self._dtype)
        return torch.from_dlpack(output)


# Element types that NumPy and PyTorch share.
_NUMPY = ("bool", "float16", "float32", "float64", "complex64", "complex128") + tuple(
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
)


def _memory_order(value):
    """Returns the extents of a dense tensor from the outermost in memory to the innermost; None for one with gaps."""
    order = sorted(range(value.dim()), key=lambda at: _hint(value.stride(at)), reverse=True)
    return order if value.permute(order).is_contiguous() else None


def _hint(number):
    """Returns the number that a symbol stood for when the graph was traced."""
    return number.node.hint if isinstance(number, torch.SymInt) else number


def _rewrite(graph, placeholders, weights):
    """Returns the results of the graph, as functions of its arguments and the outputs, and a module to export.

    The module takes the tensors that are no weights, and returns tensors alone. An integer that is an extent of a tensor
    is read from there.
    """
    new, env, module = torch.fx.Graph(), {}, torch.nn.Module()
    for at, node in enumerate(placeholders):
        if not isinstance(_value(node), torch.Tensor):
            continue
        if at in weights:
            module.register_buffer(f"weight_{at}", weights[at].detach())
            env[node] = new.get_attr(f"weight_{at}")
        else:
            env[node] = new.placeholder(f"input_{at}")
    for node in placeholders:
        if node not in env and any(user.op != "output" for user in node.users):
            env[node] = _extent(new, env, placeholders, _value(node))
    for node in graph.graph.nodes:
        if _is_random(node):
            raise devbay.UnsupportedModel(f"{node.target} takes random numbers, which are PyTorch's own")
        if node.op == "get_attr":
            setattr(module, node.target, getattr(graph, node.target))
        if node.op not in ("placeholder", "output"):
            env[node] = new.node_copy(node, env.__getitem__)
    [output] = graph.graph.find_nodes(op="output")
    results, returned = [], []
    for node in output.args[0]:
        value = _value(node)
        if node in placeholders:
            results.append(lambda args, _, at=placeholders.index(node): args[at])
        elif isinstance(value, (torch.SymBool, torch.SymFloat)):
            raise devbay.UnsupportedModel(f"the graph returns {value}, which is no tensor and no integer")
        elif isinstance(value, torch.Tensor) or _is_symbol(value):
            results.append(_Output(value, len(returned)))
            result = env[node]
            if _is_symbol(value):
                result = new.call_function(torch.ops.aten.scalar_tensor.default, (result,), {"dtype": torch.int64})
            returned.append(result)
        else:
            # None, or a number.
            results.append(lambda _, __, value=value: value)
    new.output(tuple(returned))
    new.lint()
    return results, torch.fx.GraphModule(module, new)


def _is_random(node):
    """Returns whether an op takes random numbers; attention does so only if it drops some of its weights."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    names = [argument.name for argument in node.target._schema.arguments]
    given = dict(zip(names, node.args)) | node.kwargs
    return "dropout_p" not in names or given.get("dropout_p", 0.0) != 0.0


def _is_symbol(value):
    """Returns whether a number differs between calls."""
    return isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat))


def _extent(new, env, placeholders, value):
    """Returns a node for an integer among the arguments: an extent of a tensor."""
    if not _is_symbol(value):
        return value
    for node in placeholders:
        tensor = _value(node)
        if node in env and isinstance(tensor, torch.Tensor) and env[node].op == "placeholder":
            for at, extent in enumerate(tensor.shape):
                if isinstance(extent, torch.SymInt) and extent.node.expr == value.node.expr:
                    return new.call_function(torch.ops.aten.sym_size.int, (env[node], at))
    raise devbay.UnsupportedModel(f"the number {value} changes between calls, and is no extent of an input")


def _export(module, examples, shapes, folder):
    """Returns the model as bytes of ONNX, or as the path of a file in `folder` if it is large."""

    def export():
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.export.export(module, examples, dynamic_shapes=shapes)
            return torch.onnx.export(exported, dynamo=True, verbose=False)

    # AOTAutograd calls its graph with some of the thread's dispatch keys off, and the exporter needs them.
    with _EXPORT, ThreadPoolExecutor(1, "devbay-torch-export") as thread:
        try:
            program = thread.submit(export).result()
        except Exception as cause:
            raise devbay.UnsupportedModel(f"PyTorch cannot export it to ONNX: {_reason(cause)}") from cause
    n_bytes = sum(tensor.nbytes for tensor in module.buffers())
    if n_bytes < _BYTES_IN_MEMORY_MAX:
        return program.model_proto.SerializeToString()
    path = os.path.join(folder, "model.onnx")
    program.save(path, external_data=True)
    return path


def _reason(error):
    """Returns the first line of the innermost cause: the exporter's own messages are about its stages."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


# An entry point is loaded because PyTorch looks for it, and registers the result itself.
if "devbay" not in list_backends(exclude_tags=()):
    register_backend(backend, name="devbay")
