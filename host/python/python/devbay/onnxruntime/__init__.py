"""onnxruntime's Python interface over devbay.

>>> import devbay.onnxruntime as ort
>>> session = ort.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
>>> [scores] = session.run(None, {"image": array})

`python -m devbay.onnxruntime program.py` runs a program that imports onnxruntime, unchanged. What devbay does not have
raises an exception that says so, at the first use. docs/python.md lists the differences.
"""

import platform
import sys

from devbay.onnxruntime import _session
from devbay.onnxruntime._absent import AbsentModules, absent
from devbay.onnxruntime._options import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtMemType,
    RunOptions,
    SessionOptions,
    check_severity,
)
from devbay.onnxruntime._providers import get_all_providers, get_available_providers, get_device
from devbay.onnxruntime._session import InferenceSession, IOBinding, SessionIOBinding
from devbay.onnxruntime._values import ModelMetadata, NodeArg, OrtDevice, OrtValue, copy_tensors

# The version of onnxruntime whose interface this is. Programs compare it.
__version__ = "1.32.0"
__author__ = "devbay"

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtDevice",
    "OrtMemType",
    "OrtValue",
    "RunOptions",
    "SessionIOBinding",
    "SessionOptions",
    "copy_tensors",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "has_collective_ops",
    "install",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]


def __getattr__(name):
    raise absent(name)


def get_version_string():
    """Returns the version of onnxruntime whose interface this is."""
    return __version__


def get_build_info():
    """Returns a sentence about this build."""
    import devbay

    return f"devbay {devbay.__version__}, Python {platform.python_version()}"


def has_collective_ops():
    """Returns False: there are no ops over several processes."""
    return False


def set_default_logger_severity(severity):
    """Checks the level, and has no effect: devbay reports by exceptions."""
    check_severity(severity)


def set_default_logger_verbosity(verbosity):
    """Has no effect, as `set_default_logger_severity`."""


def set_seed(seed):
    """Seeds the random ops of the sessions that are made from now on."""
    _session.set_seed(seed)


def enable_telemetry_events():
    """Has no effect: devbay sends no telemetry."""


def disable_telemetry_events():
    """Has no effect: devbay sends no telemetry."""


def install():
    """Makes `import onnxruntime` give this module, in this process. Call it before the program imports onnxruntime.

    Raises ImportError if the real onnxruntime was imported before.
    """
    from devbay.onnxruntime import capi
    from devbay.onnxruntime.capi import _pybind_state, onnxruntime_inference_collection, onnxruntime_pybind11_state

    here = sys.modules[__name__]
    known = sys.modules.get("onnxruntime")
    if known is not None and known is not here:
        raise ImportError("onnxruntime was imported before: call devbay.onnxruntime.install() first")
    if known is here:
        return
    sys.meta_path.append(AbsentModules)
    # The same modules under both names, so that an exception has one class.
    sys.modules["onnxruntime"] = here
    sys.modules["onnxruntime.capi"] = capi
    for module in (_pybind_state, onnxruntime_inference_collection, onnxruntime_pybind11_state):
        sys.modules[f"onnxruntime.capi.{module.__name__.rsplit('.', 1)[1]}"] = module
