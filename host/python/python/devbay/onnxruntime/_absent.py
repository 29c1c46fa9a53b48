"""Parts of onnxruntime that devbay does not have, and the reason of each."""

# Every other name gets a general sentence.
_REASONS: dict[str, str] = {
    "SparseTensor": "sparse tensors are not supported",
    "LoraAdapter": "LoRA adapters are not supported: merge the adapter into the model's weights",
    "AdapterFormat": "LoRA adapters are not supported: merge the adapter into the model's weights",
    "ModelCompiler": "models are not compiled to onnxruntime's format: `devbay compile` writes a compiled model",
    "training": "training is not supported: devbay runs models",
    "quantization": "tools that change models are not part of devbay: quantize with onnxruntime, and run the result",
    "transformers": "tools that change models are not part of devbay: optimize with onnxruntime, and run the result",
    "tools": "onnxruntime's tools are not part of devbay",
    "register_execution_provider_library": "libraries of providers are made for onnxruntime's own interface: "
    "write a plugin of devbay",
    "set_default_logger_callback": "devbay reports by exceptions, and writes no log",
    "set_global_thread_pool_sizes": "set SessionOptions.intra_op_num_threads: sessions of equal numbers share threads",
}


def absent(name):
    """Makes the exception for a name that a module does not have."""
    return AttributeError(name if name.startswith("__") else _sentence(name))


def _sentence(name):
    why = _REASONS.get(name, "it is not part of devbay's interface")
    return f"devbay.onnxruntime has no {name}: {why}; see docs/python.md"


class AbsentModules:
    """The last finder of modules: says why a module of onnxruntime is not there."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Raises an exception for modules of onnxruntime, and finds nothing else."""
        package, _, rest = name.partition(".")
        if package == "onnxruntime":
            raise ModuleNotFoundError(_sentence(rest.split(".")[0]), name=name)
