"""Runs ONNX models on whatever accelerator is plugged in.

>>> import devbay
>>> session = devbay.Session("model.onnx")
>>> outputs = session.run({"x": array})
"""

from devbay._devbay import Cancel, Device, Port, Runtime, Session, Tensor, __version__, devices, op
from devbay._errors import (
    Cancelled,
    DeadlineExceeded,
    DeviceError,
    Error,
    FileError,
    InvalidArgument,
    InvalidInput,
    InvalidModel,
    NoMemory,
    NotFound,
    PluginError,
    UnsupportedModel,
)

__all__ = [
    "Cancel",
    "Cancelled",
    "DeadlineExceeded",
    "Device",
    "DeviceError",
    "Error",
    "FileError",
    "InvalidArgument",
    "InvalidInput",
    "InvalidModel",
    "NoMemory",
    "NotFound",
    "PluginError",
    "Port",
    "Runtime",
    "Session",
    "Tensor",
    "UnsupportedModel",
    "__version__",
    "devices",
    "op",
]
