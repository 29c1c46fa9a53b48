"""InferenceSession and IOBinding over `devbay.Session`."""

import itertools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy

import devbay
from devbay.onnxruntime import _providers
from devbay.onnxruntime._errors import (
    Fail,
    InvalidArgument,
    InvalidProtobuf,
    NoSuchFile,
    error,
    of_run,
    translated,
    unsupported,
)
from devbay.onnxruntime._options import GraphOptimizationLevel, RunOptions, SessionOptions
from devbay.onnxruntime._values import ModelMetadata, NodeArg, OrtDevice, OrtValue, array_at

# Two sessions of one second have files of their own.
_PROFILES = itertools.count()

# The seed of new sessions: None lets each draw its own.
_seed = None


def set_seed(seed):
    """Seeds the random ops of new sessions, as `onnxruntime.set_seed`: sessions of one seed draw the same numbers."""
    global _seed
    # A signed number of 64 bits there, an unsigned one here.
    _seed = int(seed) % 2**64


class InferenceSession:
    """A model, ready to run. Any number of threads may run it at once."""

    def __init__(self, path_or_bytes, sess_options=None, providers=None, provider_options=None, **kwargs):
        if not isinstance(path_or_bytes, (str, bytes, os.PathLike)):
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise TypeError(f"expected SessionOptions, found {type(sess_options).__name__}")
        # These choose a fallback and passes of onnxruntime. They do not change results.
        for name in kwargs:
            if name not in ("enable_fallback", "disabled_optimizers", "read_config_from_model"):
                raise TypeError(f"InferenceSession has no argument {name!r}")
        self._sess_options = sess_options if sess_options is not None else SessionOptions()
        self._model = path_or_bytes if isinstance(path_or_bytes, bytes) else os.fspath(path_or_bytes)
        self._made = threading.Lock()
        self._pool = None
        self._open(providers, provider_options)

    def _open(self, providers, provider_options):
        options = self._sess_options
        if not providers and options._providers:
            providers = options._providers
        self._providers, self._provider_options = _providers.chosen(providers, provider_options)
        device, runtime = _providers.place(self._providers, self._provider_options, options.intra_op_num_threads)
        self._profile_begin_ns = time.monotonic_ns() if options.enable_profiling else None
        # The only level that is about results: without passes, each node is computed as the model says.
        is_plain = options.graph_optimization_level == GraphOptimizationLevel.ORT_DISABLE_ALL
        self._how = {
            "device": device,
            "runtime": runtime,
            "profile": options.enable_profiling,
            "options": {"no-pass": "all"} if is_plain else {},
        }
        self._session = _load(self._model, **self._how)
        self._defaults = self._session.defaults
        self._overridden = None
        overrides = options._overrides
        self._inputs = [NodeArg(port, overrides) for port in self._session.inputs]
        self._outputs = [NodeArg(port, overrides) for port in self._session.outputs]
        self._input_names = frozenset(port.name for port in self._inputs)
        self._output_names = [port.name for port in self._outputs]
        self._float8 = frozenset(port.name for port in self._outputs if port.type.startswith("tensor(float8"))

    def get_session_options(self):
        """Returns the session's options."""
        return self._sess_options

    def get_inputs(self):
        """Returns the model's inputs."""
        return self._inputs

    def get_outputs(self):
        """Returns the model's outputs."""
        return self._outputs

    def get_overridable_initializers(self):
        """Returns the initializers that are also inputs: a run may give them other values."""
        with translated():
            return [NodeArg.of_tensor(name, tensor) for name, tensor in self._defaults.items()]

    def get_modelmeta(self):
        """Returns what the model's file says about itself."""
        return ModelMetadata(self._session.metadata)

    def get_providers(self):
        """Returns the providers in use, in order of precedence."""
        return list(self._providers)

    def get_provider_options(self):
        """Returns the options of each provider in use."""
        return {name: dict(self._provider_options[name]) for name in self._providers}

    def set_providers(self, providers=None, provider_options=None):
        """Opens the model again with other providers."""
        self._open(providers, provider_options)

    def enable_fallback(self):
        """Does nothing: nodes that a device has no kernel for run on the processor in any case."""

    def disable_fallback(self):
        """Does nothing, as `enable_fallback`."""

    def run(self, output_names, input_feed, run_options=None):
        """Runs the model, and returns a list of arrays: of the named outputs, or of all if None are named.

        Inputs are arrays, OrtValues, numbers or lists by name.
        """
        names = self._wanted(output_names)
        results = self._run(self._checked(input_feed), run_options)
        return [self._as_onnxruntime(name, results[name]) for name in names]

    def run_with_ort_values(self, output_names, input_dict_ort_values, run_options=None):
        """Runs as `run` does, and returns OrtValues."""
        return [OrtValue(value) for value in self.run(output_names, input_dict_ort_values, run_options)]

    def run_async(self, output_names, input_feed, callback, user_data, run_options=None):
        """Starts a run, and calls `callback(results, user_data, error)` from another thread when it ends.

        `error` is empty if the run succeeded.
        """
        names, feed = self._wanted(output_names), self._checked(input_feed)

        def work():
            try:
                results = self._run(feed, run_options)
                outputs = [self._as_onnxruntime(name, results[name]) for name in names]
            except Exception as found:  # noqa: BLE001  (the callback gets every error)
                callback([], user_data, str(found))
            else:
                callback(outputs, user_data, "")

        with self._made:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(thread_name_prefix="devbay.onnxruntime")
        self._pool.submit(work)

    def io_binding(self):
        """Returns a binding of this session's inputs and outputs."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding, run_options=None):
        """Runs on bound inputs, and puts the results where the binding says."""
        if iobinding._session is not self:
            raise ValueError("IOBinding must be used with the session that created it.")
        iobinding._run(run_options)

    def end_profiling(self):
        """Writes the timeline of all runs so far, for ui.perfetto.dev, and returns the file's name."""
        if not self._sess_options.enable_profiling:
            raise error(Fail, "profiling is not enabled: set SessionOptions.enable_profiling")
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        name = f"{self._sess_options.profile_file_prefix}{os.getpid()}_{next(_PROFILES)}_{stamp}.json"
        with translated():
            self._session.profile().write(name)
        return name

    def get_profiling_start_time_ns(self):
        """Returns when profiling began, by `time.monotonic_ns`."""
        if self._profile_begin_ns is None:
            raise error(Fail, "profiling is not enabled: set SessionOptions.enable_profiling")
        return self._profile_begin_ns

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"devbay.onnxruntime: InferenceSession.{name} is not supported; see docs/python.md")

    def _wanted(self, output_names):
        if not output_names:
            return self._output_names
        for name in output_names:
            if name not in self._output_names:
                raise error(InvalidArgument, f"Invalid output name: {name}; the model has {self._output_names}")
        return output_names

    def _checked(self, feed):
        """Checks names, shapes and types as onnxruntime does before a run."""
        if not feed.keys() >= self._input_names:
            missing = [port.name for port in self._inputs if port.name not in feed]
            raise ValueError(f"Required inputs ({missing}) are missing from input feed ({list(feed)}).")
        values = {}
        for name, value in feed.items():
            if name not in self._input_names and name not in self._defaults:
                raise error(InvalidArgument, f"Invalid input name: {name}")
            values[name] = value._value if isinstance(value, OrtValue) else value
        if self._sess_options._overrides:
            self._check_overrides(values)
        return values

    def _check_overrides(self, values):
        overrides = self._sess_options._overrides
        for port in self._session.inputs:
            for axis, extent in enumerate(port.shape or ()):
                wanted = overrides.get(extent)
                given = numpy.shape(values[port.name])
                if wanted is not None and len(given) > axis and given[axis] != wanted:
                    text = f"input {port.name!r} has {given[axis]} at {extent!r}, which is overridden as {wanted}"
                    raise error(InvalidArgument, text)

    def _with_overrides(self):
        """Returns a session whose overridable initializers are inputs; in the other one they are constants."""
        with self._made:
            if self._overridden is None:
                self._overridden = _load(self._model, overridable=True, **self._how)
            return self._overridden

    def _run(self, values, run_options, on_device=False):
        cancel = None
        if run_options is not None:
            if not isinstance(run_options, RunOptions):
                raise TypeError(f"expected RunOptions, found {type(run_options).__name__}")
            cancel = run_options._cancel
        session = self._session if self._input_names.issuperset(values) else self._with_overrides()
        run = session.run_on_device if on_device else session.run
        try:
            return run(values, cancel=cancel)
        except KeyboardInterrupt:
            # Ctrl-C set the flag, which must not end later runs with these options.
            if cancel is not None and not run_options.terminate:
                run_options._cancel = devbay.Cancel()
            raise
        except devbay.Error as found:
            raise of_run(found) from found

    def _as_onnxruntime(self, name, value):
        """Returns a result as onnxruntime's Python interface has it: float8 as its bytes."""
        if isinstance(value, devbay.Tensor):
            raise unsupported(f"the result {name!r} is of type {value.dtype}, which NumPy lacks: install ml_dtypes")
        return value.view(numpy.uint8) if name in self._float8 else value


def _load(model, **options):
    """Opens a session, with onnxruntime's exceptions for files that are not there or are no models."""
    if not isinstance(model, bytes):
        if not os.path.exists(model):
            text = f"Load model from {model} failed:Load model {model} failed. File doesn't exist"
            raise error(NoSuchFile, text)
        if Path(model).suffix == ".ort":
            raise unsupported(f"{model} has onnxruntime's own format: devbay reads ONNX models")
    try:
        with translated():
            return devbay.Session(model, seed=_seed, **options)
    except Exception as found:
        cause = found.__cause__
        if isinstance(cause, devbay.InvalidModel) and "expected a program's text or an ONNX model" in str(cause):
            raise error(InvalidProtobuf, f"Failed to load model because protobuf parsing failed: {cause}") from cause
        raise


class IOBinding:
    """Inputs and outputs that stay bound between runs."""

    def __init__(self, session):
        self._session = session
        self._inputs = {}
        # By name, in the order of binding: an array to be filled, or the name of a device.
        self._outputs = {}
        self._results = {}

    def bind_cpu_input(self, name, arr_on_cpu):
        """Binds an input to an array, which each run reads."""
        self._inputs[self._input(name)] = arr_on_cpu

    def bind_ortvalue_input(self, name, ortvalue):
        """Binds an input to a value."""
        self._inputs[self._input(name)] = ortvalue._value

    def bind_input(self, name, device_type, device_id, element_type, shape, buffer_ptr):
        """Binds an input to host memory at an address, which the caller keeps alive."""
        self._host_only(device_type, device_id)
        self._inputs[self._input(name)] = array_at(buffer_ptr, element_type, shape)

    def bind_output(self, name, device_type="cpu", device_id=0, element_type=None, shape=None, buffer_ptr=None):
        """Binds an output to host memory at an address, or to a device on which each run allocates it."""
        OrtDevice.make(device_type, device_id)
        if buffer_ptr is None:
            self._check_place(device_type, device_id)
            self._outputs[self._output(name)] = device_type
            return
        if element_type is None or shape is None:
            raise ValueError("`element_type` and `shape` are to be provided if pre-allocated memory is provided")
        self._host_only(device_type, device_id)
        self._outputs[self._output(name)] = array_at(buffer_ptr, element_type, shape)

    def bind_ortvalue_output(self, name, ortvalue):
        """Binds an output to a value's memory, which each run fills."""
        if not isinstance(ortvalue._value, numpy.ndarray):
            raise unsupported("outputs are bound to values in host memory, or to a device by `bind_output`")
        self._outputs[self._output(name)] = ortvalue._value

    def synchronize_inputs(self):
        """Does nothing: a run waits for its inputs."""

    def synchronize_outputs(self):
        """Does nothing: results are complete when a run returns."""

    def get_outputs(self):
        """Returns the results of the last run, in the order in which they were bound."""
        return [OrtValue(self._results[name]) for name in self._outputs if name in self._results]

    def copy_outputs_to_cpu(self):
        """Returns the results of the last run as arrays, in the order in which they were bound."""
        return [value.numpy() for value in self.get_outputs()]

    def clear_binding_inputs(self):
        """Removes all inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self):
        """Removes all outputs, and their results."""
        self._outputs.clear()
        self._results.clear()

    def _input(self, name):
        if name not in self._session._input_names and name not in self._session._defaults:
            raise RuntimeError(f"Failed to find NodeArg with name: {name} among the inputs")
        return name

    def _output(self, name):
        if name not in self._session._output_names:
            raise RuntimeError(f"Failed to find NodeArg with name: {name} among the outputs")
        return name

    def _check_place(self, device_type, device_id):
        """Refuses a device that is not the session's: results are on that one, or in host memory."""
        own = self._session._session.device
        is_own = own == f"{device_type}:{device_id}" or (device_type in ("gpu", "npu") and not own.startswith("cpu:"))
        if device_type != "cpu" and not is_own:
            text = f"results cannot be left on {device_type}:{device_id}: the session runs on {own}"
            raise error(InvalidArgument, text)

    @staticmethod
    def _host_only(device_type, device_id):
        if OrtDevice.make(device_type, device_id).device_type() != OrtDevice.cpu():
            raise unsupported(
                f"memory of {device_type}:{device_id} is not taken by its address: bind an OrtValue.from_dlpack of its "
                "tensor"
            )

    def _run(self, run_options):
        session = self._session
        if not self._outputs:
            raise RuntimeError("no output is bound: use bind_output")
        stays = any(isinstance(to, str) and to != "cpu" for to in self._outputs.values())
        results = session._run(session._checked(self._inputs), run_options, on_device=stays)
        for name, to in self._outputs.items():
            value = results[name]
            if isinstance(to, str):
                self._results[name] = value.numpy() if stays and to == "cpu" else value
                continue
            array = value.numpy() if stays else value
            if array.dtype != to.dtype or array.shape != to.shape:
                text = f"the result {name!r} is {array.dtype}{list(array.shape)}, bound to {to.dtype}{list(to.shape)}"
                raise error(InvalidArgument, text)
            to[...] = array
            self._results[name] = to


# The class of the same name that onnxruntime's own IOBinding wraps.
SessionIOBinding = IOBinding
