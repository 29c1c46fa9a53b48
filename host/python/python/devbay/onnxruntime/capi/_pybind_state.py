"""The other name of `onnxruntime_pybind11_state`."""

from devbay.onnxruntime.capi.onnxruntime_pybind11_state import *  # noqa: F403
from devbay.onnxruntime.capi.onnxruntime_pybind11_state import __getattr__  # noqa: F401
