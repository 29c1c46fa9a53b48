"""Options of sessions and runs, and the enumerations that they take.

An option that devbay honours has an effect. One that only chooses how onnxruntime manages memory, threads or passes is
kept and has none: results are the same. One that asks for something that devbay lacks raises an exception.
"""

import enum

import devbay
from devbay.onnxruntime._errors import InvalidArgument, error, unsupported


class _Names(enum.IntEnum):
    """An enumeration that prints as pybind11's do."""

    def __repr__(self):
        return f"<{type(self).__name__}.{self.name}: {self.value}>"

    def __str__(self):
        return f"{type(self).__name__}.{self.name}"


class GraphOptimizationLevel(_Names):
    """Levels of onnxruntime's passes. devbay runs none for ORT_DISABLE_ALL, and all of its own at every other level."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(_Names):
    """Order of nodes in a run. devbay runs independent nodes at once if that is faster."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(_Names):
    """Order in which onnxruntime visits nodes. devbay's plans have their own."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class OrtAllocatorType(_Names):
    """Kinds of onnxruntime's allocators."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(_Names):
    """Kinds of memory for inputs and outputs."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    DEFAULT = 0


class _Closed:
    """An object that, as those of pybind11, refuses attributes that it does not have."""

    __slots__ = ()

    def __setattr__(self, name, value):
        if not hasattr(type(self), name):
            what = type(self).__name__
            raise AttributeError(f"devbay.onnxruntime: {what} has no attribute {name!r}; see docs/python.md")
        check = getattr(type(self), f"_check_{name.lstrip('_')}", None)
        object.__setattr__(self, name, check(value) if check else value)


def _threads(name):
    def check(value):
        if not isinstance(value, int) or value < 0:
            raise error(InvalidArgument, f"{name} is a number of threads, 0 for one per processor, found {value!r}")
        return value

    return staticmethod(check)


def _one_of(cls):
    def check(value):
        if not isinstance(value, cls):
            raise TypeError(f"expected a value of {cls.__name__}, found {value!r}")
        return value

    return staticmethod(check)


class SessionOptions(_Closed):
    """Options of a session.

    Honoured: `intra_op_num_threads`, `graph_optimization_level` (ORT_DISABLE_ALL, or passes), `enable_profiling` with
    `profile_file_prefix`, `add_provider`, and `add_free_dimension_override_by_name`.

    Kept without effect, because results do not depend on them: `execution_mode`, `execution_order`,
    `inter_op_num_threads`, the memory options, `use_deterministic_compute` (runs are deterministic),
    `use_per_session_threads`, `logid` and the log levels (devbay reports by exceptions), and entries of
    `add_session_config_entry` but those that ask for onnxruntime's own file format.
    """

    __slots__ = (
        "_config",
        "_overrides",
        "_providers",
        "enable_cpu_mem_arena",
        "enable_mem_pattern",
        "enable_mem_reuse",
        "enable_profiling",
        "execution_mode",
        "execution_order",
        "graph_optimization_level",
        "inter_op_num_threads",
        "intra_op_num_threads",
        "log_severity_level",
        "log_verbosity_level",
        "logid",
        "optimized_model_filepath",
        "profile_file_prefix",
        "use_deterministic_compute",
        "use_per_session_threads",
    )
    _check_intra_op_num_threads = _threads("intra_op_num_threads")
    _check_inter_op_num_threads = _threads("inter_op_num_threads")
    _check_graph_optimization_level = _one_of(GraphOptimizationLevel)
    _check_execution_mode = _one_of(ExecutionMode)
    _check_execution_order = _one_of(ExecutionOrder)

    def __init__(self):
        self._config = {}
        self._overrides = {}
        self._providers = []
        self.enable_cpu_mem_arena = True
        self.enable_mem_pattern = True
        self.enable_mem_reuse = True
        self.enable_profiling = False
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order = ExecutionOrder.DEFAULT
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.inter_op_num_threads = 0
        self.intra_op_num_threads = 0
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.optimized_model_filepath = ""
        self.profile_file_prefix = "onnxruntime_profile_"
        self.use_deterministic_compute = False
        self.use_per_session_threads = True

    @staticmethod
    def _check_optimized_model_filepath(value):
        if value:
            raise unsupported(
                "SessionOptions.optimized_model_filepath is not supported: devbay does not write ONNX models; "
                "`devbay compile` writes a compiled model"
            )
        return ""

    def add_session_config_entry(self, key, value):
        """Keeps a pair of key and value."""
        if key == "session.load_model_format" and str(value).upper() != "ONNX":
            raise unsupported(f"models of the format {value} are not supported: devbay reads ONNX models")
        self._config[str(key)] = str(value)

    def get_session_config_entry(self, key):
        """Returns the value of a key."""
        if key not in self._config:
            raise RuntimeError(f"SessionOptions does not have configuration with key: {key}")
        return self._config[key]

    def add_free_dimension_override_by_name(self, name, extent):
        """Sets an extent that the model names."""
        self._overrides[str(name)] = int(extent)

    def add_provider(self, name, options=None):
        """Adds a provider, as the argument `providers` of a session does."""
        self._providers.append((str(name), dict(options or {})))

    def has_providers(self):
        """Returns whether a provider was added."""
        return bool(self._providers)

    def register_custom_ops_library(self, path):
        """Raises an exception: libraries of custom ops are made for onnxruntime's own interface."""
        raise unsupported(
            f"the custom ops of {path} cannot be loaded: they are made for onnxruntime's C interface; write a plugin "
            "of devbay for ops of your own"
        )

    def add_free_dimension_override_by_denotation(self, denotation, extent):
        """Raises an exception: devbay does not keep denotations of extents."""
        raise unsupported(
            f"extents are overridden by name only, not by the denotation {denotation!r}: use "
            "add_free_dimension_override_by_name"
        )

    def add_initializer(self, name, value):
        """Raises an exception: devbay reads weights from the model's files."""
        raise unsupported(f"the initializer {name!r} cannot be replaced: devbay reads weights from the model's files")

    def add_external_initializers(self, names, values):
        """Raises an exception, as `add_initializer` does."""
        raise unsupported("initializers cannot be replaced: devbay reads weights from the model's files")

    add_external_initializers_from_files_in_memory = add_external_initializers


class RunOptions(_Closed):
    """Options of a run. Setting `terminate` ends every run that was given these options, also from another thread.

    The log levels, `logid` and `only_execute_path_to_fetches` are kept without effect.
    """

    __slots__ = (
        "_cancel",
        "_config",
        "_terminate",
        "log_severity_level",
        "log_verbosity_level",
        "logid",
        "only_execute_path_to_fetches",
    )

    def __init__(self):
        self._cancel = devbay.Cancel()
        self._config = {}
        self._terminate = False
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False

    @property
    def terminate(self):
        """Whether runs with these options end at once."""
        return self._terminate

    @terminate.setter
    def terminate(self, value):
        if value:
            self._cancel.cancel()
        elif self._terminate:
            self._cancel = devbay.Cancel()
        self._terminate = bool(value)

    def add_run_config_entry(self, key, value):
        """Keeps a pair of key and value, which has no effect."""
        self._config[str(key)] = str(value)

    def get_run_config_entry(self, key):
        """Returns the value of a key."""
        if key not in self._config:
            raise RuntimeError(f"RunOptions does not have configuration with key: {key}")
        return self._config[key]

    def add_active_adapter(self, adapter):
        """Raises an exception: devbay has no adapters."""
        raise unsupported("LoRA adapters are not supported: merge the adapter into the model's weights")


def check_severity(level):
    """Returns a level of onnxruntime's log: 0 for verbose to 4 for fatal."""
    if not isinstance(level, int) or not 0 <= level <= 4:
        raise RuntimeError(f"a log level is a number from 0 to 4, found {level!r}")
    return level
