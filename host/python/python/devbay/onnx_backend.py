"""ONNX's own backend interface over devbay: `prepare`, `run_model`, `run_node`, `supports_device`.

>>> import devbay.onnx_backend as backend
>>> outputs = backend.run_model(onnx.load("model.onnx"), [array])

It needs the package onnx, which the rest of devbay does not. ONNX's own tests run through it:
`onnx.backend.test.BackendTest(devbay.onnx_backend)`.
"""

import numpy
import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

import devbay

# Names of devices in ONNX's interface, and devbay's plugins for them.
_PLUGINS = {"CPU": "cpu", "CUDA": "cuda"}


def _device(device):
    """Returns devbay's name of a device such as `CPU` or `CUDA:1`; devbay's own names are taken too."""
    kind, _, number = device.partition(":")
    if kind not in _PLUGINS:
        return device
    return f"{_PLUGINS[kind]}:{number or 0}"


class DevbayBackendRep(BackendRep):
    """A model that is ready to run."""

    def __init__(self, session):
        self.session = session
        self._inputs = [port.name for port in session.inputs]
        self._outputs = [port.name for port in session.outputs]

    def run(self, inputs, **kwargs):
        """Runs on arrays in the model's order, or by name; returns the outputs in the model's order.

        The result is a tuple whose elements also have the outputs' names.
        """
        if kwargs:
            raise devbay.InvalidArgument(f"a run takes no options, found {', '.join(kwargs)}")
        if not isinstance(inputs, dict):
            # A single array is the only input.
            given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
            if len(given) != len(self._inputs):
                text = f"{len(given)} inputs are given, the model takes {len(self._inputs)}: {', '.join(self._inputs)}"
                raise devbay.InvalidInput(text)
            inputs = dict(zip(self._inputs, given, strict=True))
        results = self.session.run(inputs)
        values = [results[name] for name in self._outputs]
        return namedtupledict("Outputs", self._outputs)(*values)


class DevbayBackend(Backend):
    """The backend."""

    @classmethod
    def is_compatible(cls, model, device="CPU", **kwargs):
        """Returns whether devbay can prepare a model."""
        try:
            cls.prepare(model, device, **kwargs)
        except (devbay.UnsupportedModel, devbay.NotFound):
            return False
        return True

    @classmethod
    def prepare(cls, model, device="CPU", **kwargs):
        """Prepares a model: an onnx.ModelProto, its bytes, or a file's path.

        Keywords are options of `devbay.Session`.
        """
        if isinstance(model, onnx.ModelProto):
            onnx.checker.check_model(model)
            model = model.SerializeToString()
        return DevbayBackendRep(devbay.Session(model, device=_device(device), **kwargs))

    @classmethod
    def run_model(cls, model, inputs, device="CPU", **kwargs):
        """Runs a model once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(cls, node, inputs, device="CPU", outputs_info=None, **kwargs):
        """Runs one node on arrays; an absent optional input is left out of the list.

        `opset_version` is the opset of the node, by default the newest one of this onnx. `outputs_info`, the type and
        shape of each output, is not needed.
        """
        opset = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        super().run_node(node, inputs, device, outputs_info, opset_version=opset)
        names = [name for name in node.input if name]
        given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        if len(given) != len(names):
            raise devbay.InvalidInput(f"{len(given)} inputs are given, the node takes {len(names)}: {', '.join(names)}")
        # A name that stands for two inputs is one input of the graph.
        arrays = {name: numpy.asarray(value) for name, value in zip(names, given, strict=True)}
        ports = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in arrays.items()
        ]
        results = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", ports, results)
        imports = [onnx.helper.make_opsetid("", opset)]
        if node.domain:
            imports.append(onnx.helper.make_opsetid(node.domain, kwargs.pop("domain_version", 1)))
        model = onnx.helper.make_model(graph, opset_imports=imports)
        rep = DevbayBackendRep(devbay.Session(model.SerializeToString(), device=_device(device), **kwargs))
        return rep.run(arrays)

    @classmethod
    def supports_device(cls, device):
        """Returns whether there is a device of this name: CPU, CUDA, CUDA:1, or one of devbay's own."""
        name = _device(device)
        return any(found.name == name for found in devbay.devices())


is_compatible = DevbayBackend.is_compatible
prepare = DevbayBackend.prepare
run_model = DevbayBackend.run_model
# The name that onnxruntime and others give it.
run = DevbayBackend.run_model
run_node = DevbayBackend.run_node
supports_device = DevbayBackend.supports_device
